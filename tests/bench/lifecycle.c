/*
 * lifecycle -- the server's cost of a job that is offered, taken with a lease
 * and acked. Payloads have 100 bytes. Each lap runs batches of 1, 10 and 100
 * jobs. The bench prints the median and the quartiles of the laps:
 * the microseconds of the server's CPU time for a job; the part of it in
 * scripts (INFO commandstats), which does not include reading, parsing and
 * replying; and the jobs a second of one program.
 *
 * The row "1, ack_take" acks a job and takes the next one in one round trip.
 */
#include "bench.h"

static redisContext *c;
static delayq q;
static char payload[100];

static void check(delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(&q));
}

/* --- the lives ----------------------------------------------------------- */

static void offer_all(int n, int batch) {
    static delayq_message m[100];
    int i, k;
    for (i = 0; i < n; i += batch) {
        memset(m, 0, sizeof m);
        for (k = 0; k < batch; k++) {
            m[k].data = payload;
            m[k].len = sizeof payload;
        }
        if (batch == 1)
            check(delayq_offer(&q, payload, sizeof payload, 0));
        else
            check(delayq_offer_many(&q, m, (size_t)batch));
    }
}

static void one_by_one(int n, int batch) {
    delayq_item item;
    int i;
    (void)batch;
    for (i = 0; i < n; i++) {
        check(delayq_take(&q, &item, 1000));
        check(delayq_ack(&q, &item));
    }
}

static void ack_take(int n, int batch) {
    delayq_item item;
    int i;
    (void)batch;
    memset(&item, 0, sizeof item);
    for (i = 0; i < n; i++) check(delayq_ack_take(&q, &item, 1000));
    check(delayq_ack(&q, &item));
}

static void many(int n, int batch) {
    static delayq_item items[100];
    size_t got, done;
    for (done = 0; done < (size_t)n; done += got) {
        check(delayq_take_many(&q, items, (size_t)batch, &got, 1000));
        check(delayq_ack_many(&q, items, got));
    }
}

/* --- the table ----------------------------------------------------------- */

static const struct life {
    const char *title;
    int batch, jobs;
    void (*take_all)(int n, int batch);
    const char *goal;
} rows[] = {
    {"1 at a time", 1, 1000, one_by_one, ""},
    {"1, ack_take", 1, 1000, ack_take, ""},
    {"10", 10, 5000, many, ""},
    {"100", 100, 10000, many, "<= 8"},
};
#define ROWS (sizeof rows / sizeof rows[0])

static double cpu[ROWS][LAPS], script[ROWS][LAPS], rate[ROWS][LAPS];

static void live(size_t i, int round) {
    const struct life *r = &rows[i];
    delayq_counts n;
    double used, begin, jobs = r->jobs;
    do_command(c, "CONFIG RESETSTAT");
    begin = seconds();
    used = server_us(c);
    offer_all(r->jobs, r->batch);
    r->take_all(r->jobs, r->batch);
    cpu[i][round] = (server_us(c) - used) / jobs;
    script[i][round] = script_us(c) / jobs;
    rate[i][round] = jobs / (seconds() - begin);
    check(delayq_count(&q, &n));
    if (n.pending + n.ready + n.dead != 0) die("jobs are left");
}

int main(void) {
    delayq_options o = {0};
    size_t i;
    int round;
    c = bare();
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    o.lease_ms = 30000;
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    memset(payload, 'x', sizeof payload);
    check(delayq_clear(&q, NULL));
    for (round = 0; round < LAPS; round++)
        for (i = 0; i < ROWS; i++) live(i, round);
    print_head("server us a job", "of it, in scripts");
    for (i = 0; i < ROWS; i++) {
        char scripts[32], jobs[32];
        snprintf(scripts, sizeof scripts, "%.1f", median(script[i], LAPS));
        snprintf(jobs, sizeof jobs, "%.0f/s", median(rate[i], LAPS));
        print_row(rows[i].title, scripts, jobs, spread_of(cpu[i], LAPS),
                  rows[i].goal);
    }
    delayq_close(&q);
    return 0;
}
