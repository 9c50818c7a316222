/*
 * lateness -- how late an item is handed out by delayq_take, beside the floor
 * that nothing on this machine can beat by much: sleep until due, then one
 * PING. Both in turn, item by item, in the same run.
 *
 *     lateness [items]     default 1,000
 *
 * Prints p50, p90, p99 and the worst of both, in microseconds, and the ratio.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static int64_t wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void die(const char *text) {
    fprintf(stderr, "lateness: %s\n", text);
    exit(1);
}

static int64_t floor_us(redisContext *c, int delay_ms) {
    int64_t due_us = ((wall_us() + 999) / 1000 + delay_ms) * 1000;
    struct timespec t;
    redisReply *r;
    t.tv_sec = due_us / 1000000;
    t.tv_nsec = due_us % 1000000 * 1000;
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
    r = (redisReply *)redisCommand(c, "PING");
    if (!r) die(c->errstr);
    freeReplyObject(r);
    return wall_us() - due_us;
}

static int64_t delayq_us(delayq *q, int delay_ms) {
    delayq_item item;
    if (delayq_offer(q, "x", 1, delay_ms) != DELAYQ_OK) die(delayq_errmsg(q));
    if (delayq_take(q, &item, 10000) != DELAYQ_OK) die(delayq_errmsg(q));
    if (item.due_ms == 0) die("an item without a due time");
    return wall_us() - item.due_ms * 1000;
}

static void row(const char *name, int64_t *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    printf("%-12s %7lld %7lld %7lld %7lld\n", name, (long long)v[n / 2],
           (long long)v[n * 9 / 10], (long long)v[n * 99 / 100],
           (long long)v[n - 1]);
}

int main(int argc, char **argv) {
    static delayq q;
    delayq_options o;
    redisContext *c;
    const char *url = getenv("DELAYQ_URL");
    int n = argc > 1 ? atoi(argv[1]) : 1000, i;
    int64_t *ours, *bare;
    if (!url || strncmp(url, "unix://", 7) != 0 || n < 1)
        die("needs DELAYQ_URL=unix://... (make bench gives one)");
    memset(&o, 0, sizeof o);
    o.name = "lateness";
    o.url = url;
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    c = redisConnectUnix(url + 7);
    if (!c || c->err) die("can't connect");
    ours = (int64_t *)calloc((size_t)n, sizeof *ours);
    bare = (int64_t *)calloc((size_t)n, sizeof *bare);
    if (!ours || !bare) die("out of memory");
    srand(1);
    for (i = 0; i < n; i++) {
        int delay_ms = 3 + rand() % 8;
        bare[i] = floor_us(c, delay_ms);
        ours[i] = delayq_us(&q, delay_ms);
        if (ours[i] < 0) die("an item came early");
    }
    printf("lateness of %d items, us\n%-12s %7s %7s %7s %7s\n", n, "", "p50",
           "p90", "p99", "worst");
    row("sleep, PING", bare, n);
    row("delayq_take", ours, n);
    printf("ratio        %7.2f %7.2f %7.2f\n",
           (double)ours[n / 2] / (double)bare[n / 2],
           (double)ours[n * 9 / 10] / (double)bare[n * 9 / 10],
           (double)ours[n * 99 / 100] / (double)bare[n * 99 / 100]);
    free(ours);
    free(bare);
    redisFree(c);
    delayq_close(&q);
    return 0;
}
