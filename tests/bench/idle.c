/*
 * idle -- what a tick and a take with timeout 0 cost while nothing is due, in
 * multiples of reading the clock. Rounds of both in turn; the median counts.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>

#define ROUNDS 9
#define CALLS 200000

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v) {
    qsort(v, ROUNDS, sizeof *v, by_size);
    return v[ROUNDS / 2] * 1e9 / CALLS;
}

int main(void) {
    static delayq q;
    delayq_options o = {0};
    delayq_item item;
    double clock[ROUNDS], tick[ROUNDS], take[ROUNDS], c, begin;
    int64_t wait_ms = 0;
    int i, n;
    o.name = "idle";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &o) != DELAYQ_OK) {
        fprintf(stderr, "idle: %s\n", delayq_errmsg(&q));
        return 1;
    }
    for (i = 0; i < 5; i++) delayq_take(&q, &item, 0);
    for (i = 0; i < ROUNDS; i++) {
        begin = seconds();
        for (n = 0; n < CALLS; n++) dq_now();
        clock[i] = seconds() - begin;
        begin = seconds();
        for (n = 0; n < CALLS; n++) delayq_tick(&q, &wait_ms);
        tick[i] = seconds() - begin;
        begin = seconds();
        for (n = 0; n < CALLS; n++) delayq_take(&q, &item, 0);
        take[i] = seconds() - begin;
    }
    c = median(clock);
    printf("idle, ns a call: clock %.0f, tick %.0f (%.1f clocks)", c,
           median(tick), median(tick) / c);
    printf(", take %.0f (%.1f clocks)\n", median(take), median(take) / c);
    delayq_close(&q);
    return 0;
}
