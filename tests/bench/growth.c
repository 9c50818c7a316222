/*
 * growth -- the server's cost of moving an item, for different numbers of
 * pending items: with delayq on a native queue, with delayq and Redisson's
 * mirror, and with the published protocol. Items have 100 bytes, and are due in
 * the order of their offers or at random (a million: only at random). The last
 * table has 50,000 items that are due at random, half with the random ids of
 * Redisson, half with delayq's ids. Its yardstick is the transfer of Redisson
 * >= 3.21.1.
 *
 *     growth [most pending, default 1000000]
 *
 * The server has all queues of a row at once, and another one with 1,000 items.
 * Each lap moves a hundred items of each queue. The bench prints the server's
 * CPU time, and the ratios of the laps.
 */
#include "bench.h"

#define BATCH 100
#define FEW_PENDING 1000
/* a lap moves a hundred items, or a few more */
#define DUE ((LAPS + 3) * BATCH)

enum kind { FEW, NATIVE, MIRRORED, PUBLISHED, KINDS };
static const char *const names[KINDS] = {"few", "native", "mirrored",
                                         "published"};

static redisContext *c;
static char *sha;
static struct queue {
    delayq q; /* in queues[PUBLISHED] only store_mixed() uses it */
    int pending, left, batch;
    double most_us; /* the longest call */
} queues[KINDS];

static void forget(const char *name) {
    redisAppendCommand(c,
                       "DEL %s redisson_delay_queue_timeout:{%s} "
                       "redisson_delay_queue:{%s}",
                       name, name, name);
    freeReplyObject(reply(c));
}

/* Fill the queue. DUE items are due, but at most half of all its items. */
static void refill(enum kind kind, int shuffled) {
    struct queue *w = &queues[kind];
    int due = w->pending / 2 < DUE ? w->pending / 2 : DUE;
    int64_t *times = due_times(w->pending, due, shuffled);
    forget(names[kind]);
    if (kind == PUBLISHED)
        store_published(c, names[kind], times, w->pending, 100);
    else
        store(&w->q, times, w->pending, 100);
    free(times);
    w->left = due;
}

/* Move a batch. Returns the server's CPU time for an item in microseconds. If
 * items are costly, a tick moves fewer of them, so a batch needs more ticks. */
static double move(enum kind kind, int shuffled) {
    struct queue *w = &queues[kind];
    double us = 0;
    int moved = 0;
    if (w->left < w->batch) refill(kind, shuffled);
    while (moved < w->batch) {
        double begin = server_us(c);
        if (kind == PUBLISHED) {
            transfer_published(c, names[kind], sha, w->batch);
            moved = w->batch;
        } else {
            int n = tick_now(&w->q);
            if (n < 1) die("nothing moves");
            moved += n;
        }
        begin = server_us(c) - begin;
        if (begin > w->most_us) w->most_us = begin;
        us += begin;
    }
    w->left -= moved;
    return us / moved;
}

/* --- a row ---------------------------------------------------------------- */

#define ROWS 7 /* 3 sizes, each in order and at random; 1,000,000 at random */

static struct outcome {
    int pending, shuffled;
    struct spread us[KINDS], over_few, over_native, over_mirrored;
    double most_us[KINDS];
} outcomes[ROWS];

static void measure(struct outcome *o) {
    static double us[KINDS][LAPS], ratio[3][LAPS];
    int i, k;
    for (k = 0; k < KINDS; k++) {
        struct queue *w = &queues[k];
        w->left = 0;
        w->pending = k == FEW ? FEW_PENDING : o->pending;
        w->batch = BATCH;
        w->most_us = 0;
    }
    if (o->shuffled && o->pending > 100000)
        queues[PUBLISHED].batch = BATCH / 10; /* an item costs 17 ms */
    for (i = -1; i < LAPS; i++) {
        double cost[KINDS];
        for (k = 0; k < KINDS; k++) {
            enum kind kind = (enum kind)(i & 1 ? KINDS - 1 - k : k);
            cost[kind] = move(kind, o->shuffled);
        }
        if (i < 0) continue;
        for (k = 0; k < KINDS; k++) us[k][i] = cost[k];
        ratio[0][i] = cost[NATIVE] / cost[FEW];
        ratio[1][i] = cost[PUBLISHED] / cost[NATIVE];
        ratio[2][i] = cost[PUBLISHED] / cost[MIRRORED];
    }
    for (k = 0; k < KINDS; k++) {
        o->us[k] = spread_of(us[k], LAPS);
        o->most_us[k] = queues[k].most_us;
    }
    o->over_few = spread_of(ratio[0], LAPS);
    o->over_native = spread_of(ratio[1], LAPS);
    o->over_mirrored = spread_of(ratio[2], LAPS);
}

static void ratios(const struct outcome *o) {
    char where[24];
    int hard = o->shuffled && o->pending == 100000;
    snprintf(where, sizeof where, "%d", o->pending);
    print_row("native", o->shuffled ? "1,000, at random" : "1,000, in order",
              where, o->over_few, o->pending > FEW_PENDING ? "<= 2.5" : "");
    print_row("published", "native", "", o->over_native, hard ? ">= 150" : "");
    print_row("", "with a mirror", "", o->over_mirrored, hard ? ">= 12" : "");
}

/* --- both kinds of items in one queue ------------------------------------ */

#define MIXED 50000
#define RUN 10 /* after this number of items of one kind comes the other */

/* The transfer of Redisson >= 3.21.1, rewritten. Both the id and the payload
 * are preceded by their length. */
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

/* Store RUN items of 100 bytes as Redisson >= 3.21.1 offers them. */
static void store_redisson(const char *name, const int64_t *due_ms) {
    unsigned char e[117];
    int i, k;
    memset(e, 'x', sizeof e);
    e[0] = 8;
    dq_elem_put_uint(e + 9, 8, 0, 100);
    for (i = 0; i < RUN; i++) {
        for (k = 1; k < 9; k++) e[k] = (unsigned char)(rand() >> 7);
        redisAppendCommand(c, "ZADD redisson_delay_queue_timeout:{%s} %lld %b",
                           name, (long long)due_ms[i], e, sizeof e);
        redisAppendCommand(c, "RPUSH redisson_delay_queue:{%s} %b", name, e,
                           sizeof e);
    }
    for (i = 0; i < 2 * RUN; i++) freeReplyObject(reply(c));
}

/* Store items of delayq and of Redisson. The due ones are all of Redisson if
 * of_redisson is 1, else all of delayq. */
static void store_mixed(enum kind kind, int of_redisson) {
    int64_t *times = due_times(MIXED, 0, 1);
    int i, due = DUE;
    forget(names[kind]);
    while (due > 0) {
        i = (int)((unsigned)rand() % MIXED);
        if (i / RUN % 2 != of_redisson || times[i] < FAR_MS) continue;
        times[i] = PAST_MS + due--;
    }
    for (i = 0; i < MIXED; i += 2 * RUN) {
        store(&queues[kind].q, times + i, RUN, 100);
        store_redisson(names[kind], times + i + RUN);
    }
    free(times);
    queues[kind].left = DUE;
    queues[kind].batch = BATCH;
    queues[kind].most_us = 0;
}

static void mixed(void) {
    static double us[2][2][LAPS], ratio[2][LAPS];
    static const enum kind kinds[] = {MIRRORED, PUBLISHED};
    int of_redisson, i, k;
    sha = load(c, redisson_transfer);
    printf("\n%d pending, half of each%13s%9s%10s%9s\n", MIXED, "delayq us",
           "most ms", "Redisson", "most ms");
    for (of_redisson = 0; of_redisson < 2; of_redisson++) {
        for (k = 0; k < 2; k++) store_mixed(kinds[k], of_redisson);
        for (i = -1; i < LAPS; i++) {
            double cost[2];
            for (k = 0; k < 2; k++)
                cost[(k ^ i) & 1] = move(kinds[(k ^ i) & 1], 1);
            if (i < 0) continue;
            for (k = 0; k < 2; k++) us[of_redisson][k][i] = cost[k];
            ratio[of_redisson][i] = cost[0] / cost[1];
        }
        printf("%-25s",
               of_redisson ? "Redisson's are due" : "delayq's are due");
        for (k = 0; k < 2; k++) {
            struct spread s = spread_of(us[of_redisson][k], LAPS);
            printf("%*.0f%9.1f", k ? 10 : 22, s.middle,
                   queues[kinds[k]].most_us / 1000);
        }
        printf("\n");
    }
    free(sha);
    print_head("cost of", "over that of");
    print_row("delayq's", "Redisson's transfer", "", spread_of(ratio[0], LAPS),
              "");
    print_row("Redisson's", "", "", spread_of(ratio[1], LAPS), "");
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 1000000, n, rows = 0, i;
    FILE *data = data_file("growth.dat");
    c = bare();
    sha = load(c, published_transfer);
    for (i = FEW; i < KINDS; i++)
        open_queue(&queues[i].q, names[i],
                   i >= MIRRORED ? DELAYQ_REDISSON : DELAYQ_NATIVE, 0);
    printf("%-16s |%10s%9s |%10s%9s |%10s%9s\n", "moving an item", "native us",
           "most ms", "mirror us", "most ms", "publ. us", "most ms");
    printf("%-9s%-7s |%10s%9s |%10s%9s |%10s%9s\n", "pending", "order",
           "an item", "at once", "an item", "at once", "an item", "at once");
    for (n = FEW_PENDING; n <= most && rows < ROWS; n *= 10)
        for (i = n >= 1000000; i < 2; i++) { /* a million: only at random */
            struct outcome *o = &outcomes[rows];
            int k;
            o->pending = n;
            o->shuffled = i;
            progress(rows++, ROWS);
            measure(o);
            progress(1, 1);
            printf("%-9d%-7s", n, i ? "random" : "same");
            for (k = NATIVE; k < KINDS; k++)
                printf(" |%10.2f%9.2f", o->us[k].middle, o->most_us[k] / 1000);
            printf("\n");
            fflush(stdout);
            if (data)
                fprintf(data, "%d %d %.3f %.3f %.3f\n", n, i,
                        o->us[NATIVE].middle, o->us[MIRRORED].middle,
                        o->us[PUBLISHED].middle);
        }
    print_head("cost of", "over that of");
    for (i = 0; i < rows; i++) ratios(&outcomes[i]);
    free(sha);
    mixed();
    for (i = FEW; i < KINDS; i++) delayq_close(&queues[i].q);
    if (data) fclose(data);
    do_command(c, "FLUSHALL");
    return 0;
}
