/*
 * batch -- offers and takes a second of 1, 10, 100 or 1,000 items of 100 bytes
 * at a time, compared with the published protocol: its offers pipelined, its
 * transfer followed by an LPOP of as many. Each round runs all of them; printed
 * is the median of the rounds' ratios, with the least and the most.
 */
#include "bench.h"

#define ROUNDS 7
#define MOST 20000

static redisContext *c;
static delayq q;
static char payload[100];
static char *sha_offer, *sha_transfer;
static int64_t *far, *past;

static void offer(int items, int n) {
    static delayq_message m[1000];
    int i, k;
    for (i = 0; i < items; i += n) {
        memset(m, 0, sizeof m[0] * (size_t)n);
        for (k = 0; k < n; k++) {
            m[k].data = payload;
            m[k].len = sizeof payload;
            m[k].due_ms = far[i + k];
        }
        if (delayq_offer_many(&q, m, (size_t)n) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    }
}

static void offer_published(int items, int n) {
    int i, k;
    for (i = 0; i < items; i += n) {
        for (k = 0; k < n; k++)
            redisAppendCommand(
                c, "EVALSHA %s 3 " ZSET " " MIRROR " " CHANNEL " %lld %d %b",
                sha_offer, (long long)far[i + k], i + k, payload,
                sizeof payload);
        for (k = 0; k < n; k++) freeReplyObject(reply(c));
    }
}

static void take(int items, int n) {
    static delayq_item item[1000];
    size_t got = 0, count;
    for (; got < (size_t)items; got += count)
        if (delayq_take_many(&q, item, (size_t)n, &count, 0) != DELAYQ_OK)
            die(delayq_errmsg(&q));
}

static void take_published(int items, int n) {
    int i;
    for (i = 0; i < items; i += n) {
        redisAppendCommand(c, "EVALSHA %s 3 bench " ZSET " " MIRROR " %lld %d",
                           sha_transfer, PAST_MS + 100000000000LL, n);
        redisAppendCommand(c, "LPOP bench %d", n);
        freeReplyObject(reply(c));
        freeReplyObject(reply(c));
    }
}

static void stored(int items) {
    store(&q, past, items, sizeof payload);
}
static void stored_published(int items) {
    store_published(c, past, items, sizeof payload);
}

static const struct verb {
    const char *title;
    void (*before)(int items), (*before_yard)(int items);
    void (*run)(int items, int n), (*yard)(int items, int n);
    const char *goal[4];
} verbs[] = {
    {"offer",
     NULL,
     NULL,
     offer,
     offer_published,
     {"-", "-", ">= 2.5", ">= 2.5"}},
    {"take",
     stored,
     stored_published,
     take,
     take_published,
     {"-", "-", ">= 2", "-"}},
};

/* Items a second. */
static double rate(void (*before)(int), void (*run)(int, int), int items,
                   int n) {
    double begin;
    empty_bench(c, &q);
    if (before) before(items);
    begin = seconds();
    run(items, n);
    return items / (seconds() - begin);
}

static void row(const struct verb *v, int k, int n, FILE *data) {
    int items = n == 1 ? MOST / 10 : MOST, round;
    double ours[ROUNDS], its[ROUNDS], ratio[ROUNDS];
    struct spread s, a, b;
    for (round = 0; round < ROUNDS; round++) {
        ours[round] = rate(v->before, v->run, items, n);
        its[round] = rate(v->before_yard, v->yard, items, n);
        ratio[round] = ours[round] / its[round];
    }
    s = spread_of(ratio, ROUNDS);
    a = spread_of(ours, ROUNDS);
    b = spread_of(its, ROUNDS);
    printf("%-8s%8d%12.0f%12.0f%8.2f%8.2f%8.2f%9s\n", v->title, n, a.middle,
           b.middle, s.middle, s.least, s.most, v->goal[k]);
    if (data) fprintf(data, "%d %.0f %.0f\n", n, a.middle, b.middle);
}

int main(void) {
    size_t i;
    int k, n;
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    memset(payload, 'x', sizeof payload);
    far = due_times(MOST, 0, 1);
    past = due_times(MOST, MOST, 0);
    sha_offer = load(c, published_offer);
    sha_transfer = load(c, published_transfer);
    printf("%-8s%8s%12s%12s%8s%8s%8s%9s\n", "a second", "at once", "delayq",
           "published", "ratio", "least", "most", "goal");
    for (i = 0; i < sizeof verbs / sizeof verbs[0]; i++) {
        FILE *data = data_file(i ? "take.dat" : "offer.dat");
        for (k = 0, n = 1; n <= 1000; k++, n *= 10) row(&verbs[i], k, n, data);
        if (data) fclose(data);
    }
    do_command(c, "FLUSHALL");
    delayq_close(&q);
    return 0;
}
