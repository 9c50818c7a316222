/*
 * The checker of bench-chaos. It reads the records of the peers' processes, and
 * judges all peers in the same way. Each record is one line, written by one
 * write(2), so that a killed process loses none. Times are microseconds by
 * CLOCK_MONOTONIC, which is the same in all processes, and which no fault
 * changes:
 *
 *     O ID DUE TIME     the offer of this job has been accepted
 *     B ID DUE TIME     a worker has received the job, and handles it
 *     E ID DUE TIME     the handling is done; the ack comes after it
 *     L LEFT DEAD TIME  after all offers: the number of jobs that are left in
 *                       the queue, and the number of jobs that it has given up,
 *                       as the queue itself reports them
 *
 * ID and DUE of B and E are read from the payload that was delivered.
 */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SECOND 1000000
/* Due times are whole ms. A job counts as early if it comes more than this time
 * before its due time. */
#define EARLY_US 1000
#define BEFORE_S 3      /* seconds before the fault, for the rate `before` */
#define AGAIN_S 2       /* seconds over which a recovered rate is measured */
#define AGAIN_SHARE 0.9 /* a recovered rate is at least this part of `before` */
#define AFTER_S 3       /* seconds after the recovery, for the rate after it */
#define MOST_JOBS 20000
#define MOST_RECORDS 200000

typedef struct {
    int accepted;   /* accepted offers */
    int lost;       /* accepted jobs that were never handled to the end */
    int twice;      /* jobs that were handled to the end more than once */
    int early;      /* jobs that were received before they were due */
    double early_s; /* how early the earliest job was, in seconds */
    /* jobs a second before the fault, at most the rate of arrivals, so that a
     * backlog does not count */
    double before;
    /* seconds from the fault's end until the rate is back; -1: never */
    double again_s;
    double ratio;       /* rate after / rate before */
    double last_s;      /* seconds from the fault's end to the last E record */
    int left, dead;     /* the queue's own counts at the end; -1: unknown */
    int64_t quiet_from; /* time of the last B or E record */
    int empties;        /* consecutive L records with LEFT 0 at the end */
    int strange;        /* lines that are not valid records */
} verdict;

static struct { unsigned char accepted, done; } judged[MOST_JOBS];
static int64_t done_at[MOST_RECORDS];

static int check_earlier(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Returns the number of jobs that were done in [from, from + seconds). */
static int check_count(int n, int64_t from, int seconds) {
    int i, count = 0;
    for (i = 0; i < n; i++)
        count += done_at[i] >= from && done_at[i] < from + seconds * SECOND;
    return count;
}

/* Compute the rates. The fault lasted from begin to end; if there was none,
 * begin is 0. `rate` jobs arrive in a second. */
static void check_rates(verdict *v, int n, int64_t begin, int64_t end,
                        int rate) {
    int i;
    v->again_s = v->ratio = -1;
    if (begin == 0 || n == 0) return;
    v->before =
        check_count(n, begin - BEFORE_S * SECOND, BEFORE_S) / (double)BEFORE_S;
    if (v->before > rate) v->before = rate;
    v->last_s = (double)(done_at[n - 1] - end) / SECOND;
    for (i = 0; i < n; i++) {
        int64_t t = done_at[i];
        if (t < end) continue;
        if (check_count(n, t, AGAIN_S) < AGAIN_SHARE * v->before * AGAIN_S)
            continue;
        v->again_s = (double)(t - end) / SECOND;
        v->ratio = check_count(n, t, AFTER_S) / (double)AFTER_S / v->before;
        return;
    }
}

static void check_record(verdict *v, int *n, char kind, long long id,
                         long long due, long long at) {
    if (kind == 'L') {
        v->left = (int)id;
        v->dead = (int)due;
        v->empties = id == 0 ? v->empties + 1 : 0;
        return;
    }
    if (id < 0 || id >= MOST_JOBS || *n == MOST_RECORDS) {
        v->strange++;
        return;
    }
    if (kind == 'O') {
        v->accepted += !judged[id].accepted;
        judged[id].accepted = 1;
        return;
    }
    v->quiet_from = at;
    v->empties = 0;
    if (kind == 'B') {
        double early = (double)(due - at) / SECOND;
        if (due - at > EARLY_US) v->early++;
        if (due - at > EARLY_US && early > v->early_s) v->early_s = early;
        return;
    }
    if (judged[id].done++ == 1) v->twice++;
    done_at[(*n)++] = at;
}

static verdict check(FILE *records, int64_t begin, int64_t end, int rate) {
    verdict v;
    char line[128];
    int i, n = 0;
    memset(&v, 0, sizeof v);
    memset(judged, 0, sizeof judged);
    v.left = v.dead = -1;
    rewind(records);
    while (fgets(line, sizeof line, records)) {
        char kind;
        long long a, b, c;
        if (sscanf(line, "%c %lld %lld %lld", &kind, &a, &b, &c) == 4 &&
            strchr("OBEL", kind))
            check_record(&v, &n, kind, a, b, c);
        else
            v.strange++;
    }
    for (i = 0; i < MOST_JOBS; i++)
        v.lost += judged[i].accepted && !judged[i].done;
    qsort(done_at, (size_t)n, sizeof done_at[0], check_earlier);
    check_rates(&v, n, begin, end, rate);
    return v;
}

#endif
