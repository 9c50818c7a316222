/*
 * lateness -- how late an item is handed out by delayq_take, beside the floor
 * that nothing on this machine can beat by much: sleep until due, then one
 * PING. Both in turn, item by item, in the same run. An item that comes early
 * ends it.
 *
 *     lateness [items, default 2000]
 *
 * Least and most are those of the ratio in five parts of the run.
 */
#include "bench.h"

#define PARTS 5

static delayq q;
static redisContext *c;

static double floor_us(int delay_ms) {
    int64_t due_us = ((wall_us() + 999) / 1000 + delay_ms) * 1000;
    struct timespec t;
    t.tv_sec = due_us / 1000000;
    t.tv_nsec = due_us % 1000000 * 1000;
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
    do_command(c, "PING");
    return (double)(wall_us() - due_us);
}

static double delayq_us(int delay_ms) {
    delayq_item item;
    if (delayq_offer(&q, "x", 1, delay_ms) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (delayq_take(&q, &item, 10000) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (item.due_ms == 0) die("an item without a due time");
    return (double)(wall_us() - item.due_ms * 1000);
}

/* v[] is sorted; 1 of 1000 is the last. */
static double at(const double *v, int n, int permille) {
    int i = (int)((int64_t)n * permille / 1000);
    return v[i < n ? i : n - 1];
}

/* The ratio at a quantile of all, and in each part by itself. */
static void row(const char *title, const double *ours, const double *its, int n,
                int permille, const char *goal) {
    double ratio[PARTS], *a, *b;
    struct spread s;
    int i, part = n / PARTS;
    a = (double *)malloc((size_t)n * sizeof *a);
    b = (double *)malloc((size_t)n * sizeof *b);
    if (!a || !b) die("out of memory");
    for (i = 0; i < PARTS; i++) {
        memcpy(a, ours + i * part, (size_t)part * sizeof *a);
        memcpy(b, its + i * part, (size_t)part * sizeof *b);
        median(a, part);
        median(b, part);
        ratio[i] = at(a, part, permille) / at(b, part, permille);
    }
    s = spread_of(ratio, PARTS);
    memcpy(a, ours, (size_t)n * sizeof *a);
    memcpy(b, its, (size_t)n * sizeof *b);
    median(a, n);
    median(b, n);
    printf("%-14s%12.0f%12.0f%8.2f%8.2f%8.2f%9s\n", title, at(a, n, permille),
           at(b, n, permille), at(a, n, permille) / at(b, n, permille), s.least,
           s.most, goal);
    free(a);
    free(b);
}

/* By time in us: per cent of the items that were less late by up to a quarter
 * of an octave, and per cent that were later; ours, then the floor's. */
static void histogram(FILE *f, double *ours, double *its, int n) {
    int i[2] = {0, 0}, from[2];
    double edge = 16;
    median(ours, n);
    median(its, n);
    while (i[0] < n || i[1] < n) {
        from[0] = i[0], from[1] = i[1];
        while (i[0] < n && ours[i[0]] < edge) i[0]++;
        while (i[1] < n && its[i[1]] < edge) i[1]++;
        fprintf(f, "%.1f %.2f %.2f %.2f %.2f\n", edge,
                100.0 * (i[0] - from[0]) / n, 100.0 * (n - i[0]) / n,
                100.0 * (i[1] - from[1]) / n, 100.0 * (n - i[1]) / n);
        edge *= 1.189207115;
    }
    fclose(f);
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 2000, i;
    double *ours, *its;
    FILE *data = data_file("lateness.dat");
    if (n < 100) die("at least 100 items");
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    ours = (double *)calloc((size_t)n, sizeof *ours);
    its = (double *)calloc((size_t)n, sizeof *its);
    if (!ours || !its) die("out of memory");
    srand(1);
    for (i = 0; i < n; i++) {
        int delay_ms = 3 + rand() % 8;
        its[i] = floor_us(delay_ms);
        ours[i] = delayq_us(delay_ms);
        if (ours[i] < 0) die("an item came early");
    }
    printf("%-14s%12s%12s%8s%8s%8s%9s\n", "lateness, us", "take", "sleep, PING",
           "ratio", "least", "most", "goal");
    row("p50", ours, its, n, 500, "<= 1.1");
    row("p90", ours, its, n, 900, "-");
    row("p99", ours, its, n, 990, "<= 1.3");
    row("most", ours, its, n, 1000, "-");
    if (data) histogram(data, ours, its, n);
    free(ours);
    free(its);
    redisFree(c);
    delayq_close(&q);
    return 0;
}
