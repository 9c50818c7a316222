/*
 * growth -- what the transfer of an item costs the server while more and more
 * is pending: delayq on a queue of its own, delayq where Redisson's mirror is
 * written, and the published protocol; items of 100 bytes, due in the order of
 * their offer, and at random against it. Microseconds in scripts, by INFO
 * commandstats, and the longest of the scripts in ms.
 *
 *     growth [most pending, default 1000000]
 */
#include "bench.h"

static redisContext *c;
static delayq q;
static char payload[100];

enum kind { NATIVE, FLEET, PUBLISHED };

static size_t element_of(unsigned char *e, enum kind kind, int i) {
    size_t n = 0;
    memset(e, 0, 25);
    if (kind != PUBLISHED) {
        e[n++] = 16;
        dq_put_uint(e + n, 8, 1, 1700000000000000 + (uint64_t)i);
        n += 16;
    } else {
        double id = i + 1;
        memcpy(e, &id, 8);
        n = 8;
    }
    dq_put_uint(e + n, 8, 0, 100);
    memcpy(e + n + 8, payload, 100);
    return n + 108;
}

/* n items in order of offer, of which `due` are due. */
static void fill(enum kind kind, int n, int due, int shuffled) {
    int *rank = (int *)malloc((size_t)n * sizeof *rank), i;
    long long now = (long long)time(NULL) * 1000;
    for (i = 0; i < n; i++) rank[i] = i;
    for (i = n - 1; shuffled && i > 0; i--) {
        int k = (int)(((unsigned)rand() * 32768u + (unsigned)rand()) %
                      (unsigned)(i + 1));
        int t = rank[i];
        rank[i] = rank[k];
        rank[k] = t;
    }
    do_command(c, "FLUSHALL");
    for (i = 0; i < n; i++) {
        unsigned char e[140];
        size_t len = element_of(e, kind, i);
        char score[32];
        snprintf(score, sizeof score, "%lld",
                 rank[i] < due ? now - 1000000 + rank[i]
                               : now + 100000000 + rank[i]);
        redisAppendCommand(c, "ZADD " ZSET " %s %b", score, e, len);
        if (kind != NATIVE)
            redisAppendCommand(c, "RPUSH " MIRROR " %b", e, len);
        if (i % 500 == 499 || i == n - 1) {
            int k = (i % 500 + 1) * (kind == NATIVE ? 1 : 2);
            while (k-- > 0) freeReplyObject(reply(c));
        }
    }
    free(rank);
}

static double worst_ms;

/* Move what is due; microseconds an item. */
static double move(enum kind kind, int due, const char *sha) {
    double before, total = 0;
    int left = due;
    worst_ms = 0;
    do_command(c, "CONFIG RESETSTAT");
    while (left > 0) {
        before = script_us(c);
        if (kind == PUBLISHED) {
            redisAppendCommand(
                c, "EVALSHA %s 3 bench " ZSET " " MIRROR " %lld000 100", sha,
                (long long)time(NULL));
            freeReplyObject(reply(c));
            left -= 100;
        } else {
            uint64_t moved = q.counts.moved;
            q.wake_us = 0;
            if (delayq_tick(&q, NULL) != DELAYQ_OK) die(delayq_errmsg(&q));
            left -= (int)(q.counts.moved - moved);
        }
        before = script_us(c) - before;
        total += before;
        if (before / 1000 > worst_ms) worst_ms = before / 1000;
    }
    return total / due;
}

static double measure(enum kind kind, int n, int shuffled, const char *sha) {
    int due = n >= 100000 ? 200 : n >= 10000 ? 500 : n / 2;
    int64_t wait = 0;
    fill(kind, n, due, shuffled);
    if (kind != PUBLISHED) {
        delayq_options o = {0};
        o.name = "bench";
        o.url = getenv("DELAYQ_URL");
        o.wire = kind == FLEET ? DELAYQ_REDISSON : DELAYQ_NATIVE;
        o.max_wait_ms = 86400000;
        fill(kind, 1, 0, 0); /* connect, open the ear, load the script */
        if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
        while (wait == 0)
            if (delayq_tick(&q, &wait) != DELAYQ_OK) die(delayq_errmsg(&q));
        fill(kind, n, due, shuffled);
    }
    return move(kind, due, sha);
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 1000000, n, shuffled;
    char *sha;
    c = bare();
    memset(payload, 'x', sizeof payload);
    sha = load(c, published_transfer);
    printf("%-9s%-8s|%9s%7s |%9s%7s |%10s%8s |%8s%8s\n", "pending", "order",
           "native us", "ms", "mirror us", "ms", "publ. us", "ms", "native x",
           "mirror x");
    for (n = 1000; n <= most; n *= 10)
        for (shuffled = 0; shuffled < 2; shuffled++) {
            double us[3], ms[3];
            int kind;
            for (kind = NATIVE; kind <= PUBLISHED; kind++) {
                us[kind] = measure((enum kind)kind, n, shuffled, sha);
                ms[kind] = worst_ms;
                delayq_close(&q);
            }
            printf("%-9d%-8s|%9.2f%7.2f |%9.2f%7.2f |%10.2f%8.2f |%8.0f%8.0f\n",
                   n, shuffled ? "random" : "same", us[0], ms[0], us[1], ms[1],
                   us[2], ms[2], us[2] / us[0], us[2] / us[1]);
        }
    do_command(c, "FLUSHALL");
    return 0;
}
