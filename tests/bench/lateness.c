/*
 * lateness -- the lateness of the items that delayq_take hands out. Yardsticks
 * are a sleep until the due time and one PING, which is the least possible on
 * this machine; and a bare script that takes one due item. delayq and these two
 * are measured in turns, item by item, in one run. An early item ends the run.
 *
 *     lateness [items of each kind, default 1200]
 *
 * A lap has a twentieth of the items. The quantiles of each lap are computed
 * separately.
 */
#include "bench.h"

/* a long delay, for a few items: Linux's poll() may be late by 0.1 % of it */
#define LONG_MS 300
#define KINDS 3

static delayq q;
static redisContext *c;

static const char bare_take[] =
    "local e = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, "
    "1)\n"
    "redis.call('ZREMRANGEBYRANK', KEYS[1], 0, 0)\n"
    "return e\n";

/* Sleep until the item is due. Then send a PING or, if sha is set, a script. */
static double bare_us(int delay_ms, const char *sha) {
    int64_t due_us = ((wall_us() + 999) / 1000 + delay_ms) * 1000;
    struct timespec t;
    t.tv_sec = due_us / 1000000;
    t.tv_nsec = due_us % 1000000 * 1000;
    if (sha) {
        redisAppendCommand(c, "ZADD other %lld x", (long long)due_us / 1000);
        freeReplyObject(reply(c));
    }
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
    if (sha)
        redisAppendCommand(c, "EVALSHA %s 1 other %lld", sha,
                           (long long)due_us / 1000);
    else
        redisAppendCommand(c, "PING");
    freeReplyObject(reply(c));
    return (double)(wall_us() - due_us);
}

static double delayq_us(int delay_ms) {
    delayq_item item;
    if (delayq_offer(&q, "x", 1, delay_ms) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (delayq_take(&q, &item, 10000) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (item.due_ms == 0) die("an item without a due time");
    return (double)(wall_us() - item.due_ms * 1000);
}

/* Returns a quantile of v[], which is sorted. The quantile of 1000 permille is
 * the last item. */
static double at(const double *v, int n, int permille) {
    int i = (int)((int64_t)n * permille / 1000);
    return v[i < n ? i : n - 1];
}

static double *copy(const double *v, int n) {
    double *sorted = (double *)malloc((size_t)n * sizeof *sorted);
    if (!sorted) die("out of memory");
    memcpy(sorted, v, (size_t)n * sizeof *sorted);
    median(sorted, n);
    return sorted;
}

static double quantile(const double *v, int n, int permille) {
    double *sorted = copy(v, n), value = at(sorted, n, permille);
    free(sorted);
    return value;
}

/* Print a quantile: the ratios of the laps, and microseconds over all laps. */
static void row(const char *title, double *v[KINDS], int n, int permille,
                const char *where, const char *goal) {
    double ratio[LAPS];
    int lap;
    for (lap = 0; lap < LAPS; lap++)
        ratio[lap] = quantile(v[0] + lap * (n / LAPS), n / LAPS, permille) /
                     quantile(v[2] + lap * (n / LAPS), n / LAPS, permille);
    print_row(title, "sleep, then PING", where, spread_of(ratio, LAPS), goal);
    printf("%-17s%.0f us; bare script %.0f; sleep, PING %.0f\n", "",
           quantile(v[0], n, permille), quantile(v[1], n, permille),
           quantile(v[2], n, permille));
}

/* Write a histogram of the lateness: a line for each step of a quarter of an
 * octave. A line has the upper edge of the step in us and, for each kind, the
 * percentages of the items in the step and of the items that came later. */
static void histogram(FILE *f, double *v[3], int n) {
    int i[3] = {0, 0, 0}, k, from, left = 1;
    double edge = 16;
    for (k = 0; k < 3; k++) median(v[k], n);
    for (; left; edge *= 1.189207115) {
        fprintf(f, "%.1f", edge);
        for (left = k = 0; k < 3; k++) {
            from = i[k];
            while (i[k] < n && v[k][i[k]] < edge) i[k]++;
            fprintf(f, " %.2f %.2f", 100.0 * (i[k] - from) / n,
                    100.0 * (n - i[k]) / n);
            left += n - i[k];
        }
        fprintf(f, "\n");
    }
    fclose(f);
}

static void measure(double *v[KINDS], const char *sha, int n, int long_ms) {
    int i;
    for (i = 0; i < n; i++) {
        int delay_ms = long_ms ? long_ms : 1 + rand() % 3;
        progress(i, n);
        v[2][i] = bare_us(delay_ms, NULL);
        v[1][i] = bare_us(delay_ms, sha);
        v[0][i] = delayq_us(delay_ms);
        if (v[0][i] < 0) die("an item came early");
    }
    progress(1, 1);
}

int main(int argc, char **argv) {
    static const char *const names[] = {"", "one core"};
    int n = argc > 1 ? atoi(argv[1]) : 1200, i, where;
    double *v[KINDS];
    char *sha;
    FILE *data = data_file("lateness.dat");
    if (n < LAPS) die("at least 20 items");
    n = n / LAPS * LAPS;
    c = bare();
    sha = load(c, bare_take);
    open_bench(&q, DELAYQ_NATIVE, 0);
    for (i = 0; i < KINDS; i++) {
        v[i] = (double *)calloc((size_t)n, sizeof *v[i]);
        if (!v[i]) die("out of memory");
    }
    srand(1);
    print_head("lateness", "over that of");
    for (where = 0; where < WHERES && put((enum where)where); where++) {
        measure(v, sha, n, 0);
        row("p50", v, n, 500, names[where], "<= 1.1");
        row("p99", v, n, 990, names[where], "<= 1.3");
        if (data && where == FREE) histogram(data, v, n);
    }
    put(FREE);
    measure(v, sha, LAPS, LONG_MS);
    row("p50, after 0.3 s", v, LAPS, 500, "", "<= 1.1");
    for (i = 0; i < KINDS; i++) free(v[i]);
    redisFree(c);
    delayq_close(&q);
    return 0;
}
