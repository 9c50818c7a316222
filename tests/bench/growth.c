/*
 * growth -- what the transfer of an item costs the server, by how many are
 * pending: with delayq on a native queue, with delayq and Redisson's mirror,
 * and with the published protocol. Items of 100 bytes, due in the order of
 * their offers or at random. Microseconds in scripts, by INFO commandstats: the
 * median of the transfers of 100, and the longest in ms. Then the same where
 * Redisson offers, too: 50,000 pending at random, half with its random ids,
 * half with delayq's, beside the transfer of Redisson >= 3.21.1.
 *
 *     growth [most pending, default 1000000]
 */
#include "bench.h"

#define BATCH 100
#define MOST 60 /* transfers measured */

enum kind { NATIVE, MIRRORED, PUBLISHED };

static redisContext *c;
static delayq q;
static char *sha;
static struct spread us[4][2][3]; /* 10^3 .. 10^6, order, kind */

/* How many of n are due: few, if one transfer takes a second. */
static int due_of(enum kind kind, int n, int shuffled) {
    if (kind != NATIVE && shuffled && n >= 1000000) return 1 * BATCH;
    if (kind != NATIVE && shuffled && n >= 100000) return 3 * BATCH;
    return n >= 10000 ? 20 * BATCH : n / 2;
}

/* Fill the queue and move the due items; adds samples: microseconds an item. */
static int measure(enum kind kind, int n, int shuffled, double *sample) {
    int due = due_of(kind, n, shuffled), left = due, count = 0;
    int64_t *times = due_times(n, due, shuffled);
    do_command(c, "FLUSHALL");
    if (kind != PUBLISHED) {
        open_bench(&q, kind == NATIVE ? DELAYQ_NATIVE : DELAYQ_REDISSON, 0);
        tick_now(&q);
        store(&q, times, n, 100);
    } else {
        store_published(c, times, n, 100);
    }
    free(times);
    do_command(c, "CONFIG RESETSTAT");
    while (left > 0) {
        double before = script_us(c);
        int moved = BATCH;
        if (kind == PUBLISHED)
            transfer_published(c, sha, BATCH);
        else
            moved = tick_now(&q);
        if (moved < 1) die("nothing moves");
        sample[count++] = (script_us(c) - before) / moved;
        left -= moved;
    }
    delayq_close(&q);
    return count;
}

/* One row: all kinds alternately, in more rounds if they are cheap. */
static void row(int k, int n, int shuffled, FILE *data) {
    double sample[3][3 * MOST];
    int count[3] = {0, 0, 0}, kind, round;
    struct spread *s = us[k][shuffled];
    for (round = 0; round < (n > 100000 ? 1 : 3); round++)
        for (kind = NATIVE; kind <= PUBLISHED; kind++)
            count[kind] += measure((enum kind)kind, n, shuffled,
                                   sample[kind] + count[kind]);
    printf("%-9d%-7s", n, shuffled ? "random" : "same");
    for (kind = NATIVE; kind <= PUBLISHED; kind++) {
        s[kind] = spread_of(sample[kind], count[kind]);
        printf(" |%9.2f%9.2f", s[kind].middle, s[kind].most * BATCH / 1000);
    }
    printf(" |%7.1f%7.1f\n", s[PUBLISHED].middle / s[NATIVE].middle,
           s[PUBLISHED].middle / s[MIRRORED].middle);
    if (data)
        fprintf(data, "%d %d %.3f %.3f %.3f\n", n, shuffled, s[NATIVE].middle,
                s[MIRRORED].middle, s[PUBLISHED].middle);
}

static void goal(const char *what, double value, const char *bound) {
    printf("%-58s%9.2f%10s\n", what, value, bound);
}

static void goals(int rows) {
    double worst = 0, grown = 0;
    int k, shuffled;
    for (shuffled = 0; shuffled < 2; shuffled++) {
        double ratio = us[rows - 1][shuffled][NATIVE].middle /
                       us[0][shuffled][NATIVE].middle;
        if (ratio > grown) grown = ratio;
        for (k = 0; k < rows; k++)
            if (us[k][shuffled][NATIVE].middle > worst)
                worst = us[k][shuffled][NATIVE].middle;
    }
    printf("%-58s%9s%10s\n", "", "", "goal");
    goal("native, us an item, at most", worst, "<= 2.5");
    goal("native, the most pending over 1,000", grown, "<= 2.5");
    if (rows < 3) return;
    goal("published over native, 100,000 at random",
         us[2][1][PUBLISHED].middle / us[2][1][NATIVE].middle, ">= 150");
    goal("published over mirror, 100,000 at random",
         us[2][1][PUBLISHED].middle / us[2][1][MIRRORED].middle, ">= 12");
}

/* --- where both offer ---------------------------------------------------- */

#define MIXED 50000
#define RUN 10 /* so many of one and so many of the other, alternately */

/* The transfer of Redisson >= 3.21.1, rewritten: id and payload with lengths.
 */
static const char redisson_transfer[] =
    "local es = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[1], 'LIMIT', 0,\n"
    "  ARGV[2])\n"
    "for _, e in ipairs(es) do\n"
    "  local id, v = struct.unpack('Bc0Lc0', e)\n"
    "  redis.call('RPUSH', KEYS[1], v)\n"
    "  redis.call('LREM', KEYS[3], 1, e)\n"
    "end\n"
    "if #es > 0 then redis.call('ZREM', KEYS[2], unpack(es)) end\n"
    "return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]\n";

/* As Redisson >= 3.21.1 offers RUN items of 100 bytes. */
static void store_redisson(const int64_t *due_ms) {
    unsigned char e[117];
    int i, k;
    memset(e, 'x', sizeof e);
    e[0] = 8;
    dq_elem_put_uint(e + 9, 8, 0, 100);
    for (i = 0; i < RUN; i++) {
        for (k = 1; k < 9; k++) e[k] = (unsigned char)(rand() >> 7);
        redisAppendCommand(c, "ZADD " ZSET " %lld %b", (long long)due_ms[i], e,
                           sizeof e);
        redisAppendCommand(c, "RPUSH " MIRROR " %b", e, sizeof e);
    }
    for (i = 0; i < 2 * RUN; i++) freeReplyObject(reply(c));
}

/* Due are only items that C or that Redisson has offered. */
static void store_mixed(int of_redisson, int due) {
    int64_t *times = due_times(MIXED, 0, 1);
    int i;
    do_command(c, "FLUSHALL");
    open_bench(&q, DELAYQ_REDISSON, 0);
    tick_now(&q);
    while (due > 0) {
        i = (int)((unsigned)rand() % MIXED);
        if (i / RUN % 2 != of_redisson || times[i] < FAR_MS) continue;
        times[i] = PAST_MS + due--;
    }
    for (i = 0; i < MIXED; i += 2 * RUN) {
        store(&q, times + i, RUN, 100);
        store_redisson(times + i + RUN);
    }
    free(times);
}

static void mixed_row(int of_redisson) {
    enum { ROUNDS = 3, DUE = 3 * BATCH };
    double sample[2][ROUNDS], longest[2] = {0, 0};
    char *theirs = load(c, redisson_transfer);
    int round, way;
    for (round = 0; round < ROUNDS; round++)
        for (way = 0; way < 2; way++) {
            int left = DUE;
            double begin;
            store_mixed(of_redisson, DUE);
            do_command(c, "CONFIG RESETSTAT");
            begin = script_us(c);
            while (left > 0) {
                double before = script_us(c);
                int moved = BATCH;
                if (way == 0)
                    moved = tick_now(&q);
                else
                    transfer_published(c, theirs, BATCH);
                if (moved < 1) die("nothing moves");
                left -= moved;
                before = (script_us(c) - before) / 1000;
                if (before > longest[way]) longest[way] = before;
            }
            sample[way][round] = (script_us(c) - begin) / DUE;
            delayq_close(&q);
        }
    free(theirs);
    printf("%-20s", of_redisson ? "Redisson's are due" : "delayq's are due");
    for (way = 0; way < 2; way++) {
        struct spread s = spread_of(sample[way], ROUNDS);
        printf(" |%7.0f%7.0f%7.0f%8.1f", s.middle, s.least, s.most,
               longest[way]);
    }
    printf(" |%6.2f\n", median(sample[0], ROUNDS) / median(sample[1], ROUNDS));
}

static void mixed(void) {
    int of_redisson;
    printf("\n%-20s |%29s |%29s |\n%-20s", "50,000 pending,",
           "delayq's us an item, longest", "Redisson's us, longest",
           "half of each");
    printf(" |%7s%7s%7s%8s |%7s%7s%7s%8s | ratio\n", "median", "least", "most",
           "ms", "median", "least", "most", "ms");
    for (of_redisson = 0; of_redisson < 2; of_redisson++)
        mixed_row(of_redisson);
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 1000000, n, k, shuffled;
    FILE *data = data_file("growth.dat");
    c = bare();
    sha = load(c, published_transfer);
    printf("%-16s |%9s%9s |%9s%9s |%9s%9s |%7s%7s\n", "transfer", "native us",
           "most ms", "mirror us", "most ms", "publ. us", "most ms", "native",
           "mirror");
    printf("%-9s%-7s |%9s%9s |%9s%9s |%9s%9s |%7s%7s\n", "pending", "order",
           "an item", "of 100", "an item", "of 100", "an item", "of 100",
           "times", "times");
    for (n = 1000, k = 0; n <= most && k < 4; n *= 10, k++)
        for (shuffled = 0; shuffled < 2; shuffled++) row(k, n, shuffled, data);
    goals(k);
    mixed();
    if (data) fclose(data);
    do_command(c, "FLUSHALL");
    return 0;
}
