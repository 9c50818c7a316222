/*
 * handles -- what a connected program costs the server: to open and close a
 * handle, to keep one that only offers and one that waits, and to notify a
 * hundred waiting handles of an item that comes before all others. Server CPU
 * in microseconds, medians of the rounds; memory by INFO.
 */
#include "bench.h"

#define ROUNDS 5
#define HANDLES 100
#define OFFERS 500

static redisContext *c;
static delayq q, handle[HANDLES];

static void row(const char *title, double *v, const char *unit) {
    struct spread s = spread_of(v, ROUNDS);
    printf("%-44s%9.1f%9.1f%9.1f  %s\n", title, s.middle, s.least, s.most,
           unit);
}

static void open_one(int i) {
    delayq_options o = {0};
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&handle[i], &o) != DELAYQ_OK)
        die(delayq_errmsg(&handle[i]));
}

/* An offer: each before all others, or each behind them. */
static double offer_us(int step) {
    double before;
    int i;
    empty_bench(c, &q);
    before = server_us(c);
    for (i = 0; i < OFFERS; i++)
        if (delayq_offer(&q, "x", 1, 90000000 + i * step) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    return (server_us(c) - before) / OFFERS;
}

/* KiB a handle above `before`, once the server has shrunk idle buffers. */
static double idle_kib(double before) {
    sleep(8);
    return (info(c, "memory", "used_memory:") - before) / HANDLES / 1024;
}

static void listen_all(void) {
    int i;
    for (i = 0; i < HANDLES; i++) {
        while (!handle[i].subscribed) /* a tick or two after it has opened */
            if (delayq_tick(&handle[i], NULL) != DELAYQ_OK)
                die(delayq_errmsg(&handle[i]));
    }
}

int main(void) {
    double opened[ROUNDS], head[ROUNDS], heard[ROUNDS], offers = 0, takes = 0;
    double before, plain, first;
    int round, i;
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    for (round = 0; round < ROUNDS; round++) {
        int last = round == ROUNDS - 1;
        before = server_us(c);
        for (i = 0; i < HANDLES; i++) open_one(i), delayq_close(&handle[i]);
        opened[round] = (server_us(c) - before) / HANDLES;
        plain = offer_us(10000);
        first = offer_us(-10000);
        head[round] = first - plain;
        before = info(c, "memory", "used_memory:");
        for (i = 0; i < HANDLES; i++) open_one(i);
        if (last) offers = idle_kib(before);
        listen_all();
        if (last) takes = idle_kib(before);
        heard[round] = (offer_us(-10000) - first) / HANDLES;
        for (i = 0; i < HANDLES; i++) delayq_close(&handle[i]);
    }
    printf("%-44s%9s%9s%9s\n", "what a handle costs the server", "", "least",
           "most");
    row("open and close", opened, "us");
    row("an offer that becomes the earliest, on top", head, "us");
    row("and for each handle that hears of it", heard, "us");
    printf("%-44s%9.1f%18s  KiB\n", "memory, idle: one that only offers",
           offers, "");
    printf("%-44s%9.1f%18s  KiB\n", "one that ticks, takes or waits", takes,
           "");
    do_command(c, "FLUSHALL");
    delayq_close(&q);
    return 0;
}
