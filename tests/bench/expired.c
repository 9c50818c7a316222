/*
 * expired -- compares delayq with keys that expire, for which Redis publishes
 * an event. It measures the lateness of jobs, and the share that never comes.
 * Ten times a second, Redis checks random keys for expiry, until few of the
 * checked keys have expired. An event reaches only clients that are connected
 * at that moment.
 *
 * Jobs are due at random within 4 s. The rows are 10^4 jobs; 10^5 jobs; 10^4
 * jobs and ten times as many others that are due in an hour; and 10^4 jobs with
 * a consumer that is away during the third second.
 */
#include "bench.h"

#define MOST 100000
#define SPREAD_MS 4000
#define LEAD_MS 1500
#define PATIENCE_MS 6000 /* the longest wait after the last due time */
#define ROUNDS 3

static const struct {
    const char *title;
    int jobs, others; /* others: jobs that are due in an hour */
    int away;
} rows[] = {{"10^4 jobs", 10000, 0, 0},
            {"10^5 jobs", 100000, 0, 0},
            {"10^4, 10^5 others", 10000, 100000, 0},
            {"10^4, away for 1 s", 10000, 0, 1}};
#define ROWS (sizeof rows / sizeof rows[0])

static redisContext *c;
static int64_t due_ms[MOST];
static double late_ms[MOST];
static int come, jobs;
static unsigned char seen[MOST];

static int64_t wall_ms(void) {
    return wall_us() / 1000;
}

static void note(const char *name, size_t len) {
    int i = len > 1 && len < 12 && name[0] == 'j' ? atoi(name + 1) : -1;
    if (i < 0 || i >= jobs || seen[i]++) return;
    late_ms[come++] = (double)(wall_us() - due_ms[i] * 1000) / 1000;
}

/* --- keys ---------------------------------------------------------------- */

static redisContext *subscribe(void) {
    redisContext *s = bare();
    redisAppendCommand(s, "SUBSCRIBE __keyevent@0__:expired");
    freeReplyObject(reply(s));
    return s;
}

static void set_keys(int others) {
    int i, sent = 0;
    do_command(c, "CONFIG SET notify-keyspace-events Ex");
    for (i = 0; i < jobs + others; i++) {
        if (i < jobs)
            redisAppendCommand(c, "SET j%d %d PXAT %lld", i, i,
                               (long long)due_ms[i]);
        else
            redisAppendCommand(c, "SET o%d %d PX 3600000", i, i);
        if (++sent == 1000 || i == jobs + others - 1)
            for (; sent > 0; sent--) freeReplyObject(reply(c));
    }
}

/* Read the events that have arrived, or wait up to 10 ms for the first one. */
static void hear(redisContext *s) {
    redisReply *r = NULL;
    struct pollfd f;
    f.fd = s->fd;
    f.events = POLLIN;
    if (poll(&f, 1, 10) < 1) return;
    if (redisBufferRead(s) != REDIS_OK) die("the subscriber was cut off");
    while (redisGetReplyFromReader(s, (void **)&r) == REDIS_OK && r) {
        if (r->elements == 3 && r->element[2]->type == REDIS_REPLY_STRING)
            note(r->element[2]->str, r->element[2]->len);
        freeReplyObject(r);
    }
}

/* --- delayq -------------------------------------------------------------- */

static void offer_jobs(delayq *q, int others) {
    static delayq_message m[100];
    static char text[100][16];
    int i, k;
    for (i = 0; i < jobs + others; i += 100) {
        memset(m, 0, sizeof m);
        for (k = 0; k < 100; k++) {
            m[k].data = text[k];
            m[k].len = (size_t)snprintf(text[k], sizeof text[k], "j%d", i + k);
            if (i < jobs)
                m[k].due_ms = due_ms[i + k];
            else
                m[k].delay_ms = 3600000;
        }
        if (delayq_offer_many(q, m, 100) != DELAYQ_OK) die(delayq_errmsg(q));
    }
}

static void take_some(delayq *q) {
    static delayq_item items[100];
    size_t n, i;
    delayq_status status = delayq_take_many(q, items, 100, &n, 10);
    if (status < 0) die(delayq_errmsg(q));
    for (i = 0; status == DELAYQ_OK && i < n; i++)
        note((const char *)items[i].data, items[i].len);
}

/* --- the table ----------------------------------------------------------- */

/* Consume until all jobs have come, or PATIENCE_MS after the last due time. */
static void consume(delayq *q, redisContext *s, int64_t from, int away) {
    int64_t end = from + SPREAD_MS + PATIENCE_MS;
    while (come < jobs && wall_ms() < end) {
        if (away && wall_ms() >= from + SPREAD_MS / 2) {
            if (s) redisFree(s);
            usleep(1000000);
            if (s) s = subscribe();
            away = 0;
        }
        if (q)
            take_some(q);
        else
            hear(s);
    }
    if (s) redisFree(s);
}

/* Run row k. Compute p50 and p99 of the lateness, in ms, of the jobs that came,
 * and the percentage of the jobs that did not come. */
static void one_run(size_t k, int ours, double *p50, double *p99,
                    double *lost) {
    int64_t from;
    delayq q;
    int i;
    do_command(c, "FLUSHALL");
    jobs = rows[k].jobs;
    come = 0;
    memset(seen, 0, sizeof seen);
    /* leaves enough time to store the jobs */
    from = wall_ms() + LEAD_MS + (jobs + rows[k].others) / 50;
    for (i = 0; i < jobs; i++)
        due_ms[i] = from + (int64_t)(drand48() * SPREAD_MS);
    if (ours) {
        open_bench(&q, DELAYQ_NATIVE, 0);
        offer_jobs(&q, rows[k].others);
    } else {
        set_keys(rows[k].others);
    }
    if (wall_ms() > from) die("storing took too long");
    consume(ours ? &q : NULL, ours ? NULL : subscribe(), from, rows[k].away);
    if (ours) delayq_close(&q);
    *p50 = come ? median(late_ms, come) : 0;
    *p99 = come ? late_ms[come * 99 / 100] : 0;
    *lost = 100.0 * (jobs - come) / jobs;
}

int main(void) {
    static double p50[ROWS][2][ROUNDS], p99[ROWS][2][ROUNDS],
        lost[ROWS][2][ROUNDS];
    int round, ours;
    size_t k;
    c = bare();
    for (round = 0; round < ROUNDS; round++)
        for (k = 0; k < ROWS; k++)
            for (ours = 0; ours < 2; ours++) {
                int way = ours ^ (round & 1);
                progress((int)k + round * (int)ROWS, ROUNDS * (int)ROWS);
                one_run(k, way, &p50[k][way][round], &p99[k][way][round],
                        &lost[k][way][round]);
            }
    progress(1, 1);
    printf("%-20s%-9s%10s%18s%10s%18s%12s\n", "late, ms", "", "p50",
           "least..most", "p99", "least..most", "never come");
    for (k = 0; k < ROWS; k++)
        for (ours = 0; ours < 2; ours++) {
            struct spread m = spread_of(p50[k][ours], ROUNDS),
                          h = spread_of(p99[k][ours], ROUNDS);
            char of_m[40], of_h[40];
            snprintf(of_m, sizeof of_m, "%.2f..%.2f", m.least, m.most);
            snprintf(of_h, sizeof of_h, "%.2f..%.2f", h.least, h.most);
            printf("%-20s%-9s%10.2f%18s%10.2f%18s%10.1f %%\n",
                   ours ? "" : rows[k].title, ours ? "delayq" : "keys",
                   m.middle, of_m, h.middle, of_h,
                   median(lost[k][ours], ROUNDS));
        }
    redisAppendCommand(c, "CONFIG SET notify-keyspace-events %s", "");
    freeReplyObject(reply(c));
    do_command(c, "FLUSHALL");
    return 0;
}
