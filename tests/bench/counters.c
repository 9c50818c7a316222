/*
 * counters -- what options.counters adds to the cost of a job that is offered,
 * taken with a lease and acked. A handle with the option and one without it run
 * in turns on one server; payloads have 100 bytes. The figures come from INFO
 * cpu (all work of the server), INFO commandstats (only its scripts), and
 * aof_current_size. Only the cheapest turn of a round counts, because
 * disturbances only add time.
 */
#include "bench.h"

#define ROUNDS 9
#define TURNS 10

static redisContext *c;
static delayq off, on;
static char payload[100];

static void check(delayq *q, delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(q));
}

static void one_by_one(delayq *q, int jobs) {
    delayq_item item;
    int i;
    for (i = 0; i < jobs; i++)
        check(q, delayq_offer(q, payload, sizeof payload, 0));
    for (i = 0; i < jobs; i++) {
        check(q, delayq_take(q, &item, 1000));
        check(q, delayq_ack(q, &item));
    }
}

static void ack_take(delayq *q, int jobs) {
    delayq_item item;
    int i;
    memset(&item, 0, sizeof item);
    for (i = 0; i < jobs; i++)
        check(q, delayq_offer(q, payload, sizeof payload, 0));
    for (i = 0; i < jobs; i++) check(q, delayq_ack_take(q, &item, 1000));
    check(q, delayq_ack(q, &item));
}

static void by_100(delayq *q, int jobs) {
    static delayq_message m[100];
    static delayq_item items[100];
    size_t got;
    int i;
    for (i = 0; i < jobs; i += 100) {
        memset(m, 0, sizeof m);
        for (got = 0; got < 100; got++) {
            m[got].data = payload;
            m[got].len = sizeof payload;
        }
        check(q, delayq_offer_many(q, m, 100));
    }
    for (i = 0; i < jobs; i += (int)got) {
        check(q, delayq_take_many(q, items, 100, &got, 1000));
        check(q, delayq_ack_many(q, items, got));
    }
}

static const struct cost {
    const char *title;
    void (*live)(delayq *q, int jobs);
    int jobs;
} rows[] = {{"1", one_by_one, 200},
            {"1, ack_take", ack_take, 200},
            {"100", by_100, 2000}};
#define ROWS (sizeof rows / sizeof rows[0])

enum { CPU, SCRIPTS, BYTES, MEASURES };
static double us[MEASURES][ROWS][2][ROUNDS];

static void cheaper(double *least, double value, int turn) {
    if (turn == 0 || value < *least) *least = value;
}

static void measure(size_t i, int counts, int round, int turn, int bytes) {
    double jobs = rows[i].jobs, before = bytes ? aof_bytes(c) : server_us(c);
    if (!bytes) do_command(c, "CONFIG RESETSTAT");
    rows[i].live(counts ? &on : &off, rows[i].jobs);
    if (bytes) {
        cheaper(&us[BYTES][i][counts][round], (aof_bytes(c) - before) / jobs,
                turn);
        return;
    }
    cheaper(&us[SCRIPTS][i][counts][round], script_us(c) / jobs, turn);
    cheaper(&us[CPU][i][counts][round], (server_us(c) - before) / jobs, turn);
}

static void show(int what, const char *title) {
    int k, rounds = what == BYTES ? 1 : ROUNDS;
    size_t i;
    printf("%-24s%9s%9s%9s%9s%9s\n", title, "without", "with", "ratio", "least",
           "most");
    for (i = 0; i < ROWS; i++) {
        double ratio[ROUNDS];
        struct spread s;
        for (k = 0; k < rounds; k++)
            ratio[k] = us[what][i][1][k] / us[what][i][0][k];
        s = spread_of(ratio, rounds);
        printf("batch %-18s%9.1f%9.1f%9.2f%9.2f%9.2f\n", rows[i].title,
               median(us[what][i][0], rounds), median(us[what][i][1], rounds),
               s.middle, s.least, s.most);
    }
}

int main(void) {
    delayq_options o = {0};
    delayq_counts n;
    int round, turn, bytes;
    size_t i;
    c = bare();
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    o.lease_ms = 30000;
    check(&off, delayq_open(&off, &o));
    o.counters = 1;
    check(&on, delayq_open(&on, &o));
    memset(payload, 'x', sizeof payload);
    do_command(c, "FLUSHALL");
    for (i = 0; i < ROWS; i++) { /* this loads the scripts */
        rows[i].live(&off, rows[i].jobs);
        rows[i].live(&on, rows[i].jobs);
    }
    for (bytes = 0; bytes < 2; bytes++) {
        if (bytes) aof_on(c);
        for (round = 0; round < (bytes ? 1 : ROUNDS); round++)
            for (turn = 0; turn < (bytes ? 1 : TURNS); turn++)
                for (i = 0; i < ROWS; i++) {
                    measure(i, turn % 2, round, turn, bytes);
                    measure(i, 1 - turn % 2, round, turn, bytes);
                }
    }
    check(&on, delayq_count(&on, &n));
    if (n.total.offered != n.total.acked || n.total.acked != n.total.taken)
        die("not counted");
    do_command(c, "CONFIG SET appendonly no");
    do_command(c, "FLUSHALL");
    show(CPU, "server us a job");
    show(SCRIPTS, "its scripts alone");
    show(BYTES, "AOF bytes a job");
    delayq_close(&off);
    delayq_close(&on);
    redisFree(c);
    return 0;
}
