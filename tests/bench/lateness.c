/*
 * lateness -- how late delayq_take hands an item out, compared with the least
 * that is possible on this machine: sleep until due, then one PING; and with a
 * bare script that takes one due item. They alternate, item by item, in the
 * same run. An early item ends the run.
 *
 *     lateness [items, default 2000]
 *
 * Least and most are those of the ratio in five parts of the run.
 */
#include "bench.h"

#define PARTS 5

static delayq q;
static redisContext *c;

static const char bare_take[] =
    "local e = redis.call('ZRANGEBYSCORE', KEYS[1], 0, ARGV[1], 'LIMIT', 0, "
    "1)\n"
    "redis.call('ZREMRANGEBYRANK', KEYS[1], 0, 0)\n"
    "return e\n";

/* Sleep until then, and ask: with PING, or with the bare script. */
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

/* v[] is sorted; 1 of 1000 is the last. */
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

/* The ratio at a quantile of all, and in each part by itself. */
static void row(const char *title, const double *ours, const double *script,
                const double *ping, int n, int permille, const char *goal) {
    double ratio[PARTS], a = quantile(ours, n, permille);
    double b = quantile(script, n, permille), p = quantile(ping, n, permille);
    struct spread s;
    int i, part = n / PARTS;
    for (i = 0; i < PARTS; i++)
        ratio[i] = quantile(ours + i * part, part, permille) /
                   quantile(ping + i * part, part, permille);
    s = spread_of(ratio, PARTS);
    printf("%-14s%9.0f%13.0f%13.0f%8.2f%8.2f%8.2f%9s\n", title, a, b, p, a / p,
           s.least, s.most, goal);
}

/* By time in us: per cent of the items that were less late by up to a quarter
 * of an octave, and per cent that were later; for each of the three. */
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

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 2000, i;
    double *v[3], *ours, *script, *ping;
    char *sha;
    FILE *data = data_file("lateness.dat");
    if (n < 100) die("at least 100 items");
    c = bare();
    sha = load(c, bare_take);
    open_bench(&q, DELAYQ_NATIVE, 0);
    for (i = 0; i < 3; i++) {
        v[i] = (double *)calloc((size_t)n, sizeof *v[i]);
        if (!v[i]) die("out of memory");
    }
    ours = v[0], script = v[1], ping = v[2];
    srand(1);
    for (i = 0; i < n; i++) {
        int delay_ms = 3 + rand() % 5;
        ping[i] = bare_us(delay_ms, NULL);
        script[i] = bare_us(delay_ms, sha);
        ours[i] = delayq_us(delay_ms);
        if (ours[i] < 0) die("an item came early");
    }
    printf("%-14s%9s%13s%13s%8s%8s%8s%9s\n", "lateness, us", "take",
           "bare script", "sleep, PING", "ratio", "least", "most", "goal");
    row("p50", ours, script, ping, n, 500, "<= 1.1");
    row("p90", ours, script, ping, n, 900, "-");
    row("p99", ours, script, ping, n, 990, "<= 1.3");
    row("most", ours, script, ping, n, 1000, "-");
    if (data) histogram(data, v, n);
    for (i = 0; i < 3; i++) free(v[i]);
    redisFree(c);
    delayq_close(&q);
    return 0;
}
