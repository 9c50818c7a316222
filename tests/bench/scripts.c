/*
 * scripts -- the server's cost of each call's script, from INFO commandstats:
 * offers, takes, ack_takes and ticks, with many due items of 100 bytes. Prints
 * NAME=microseconds of a call in the cheapest round. `make bench-old
 * OLD=commit` also builds it with another delayq.h, and runs both in turns on
 * one server.
 */
#include "bench.h"

#define ROUNDS 20
#define CALLS 100 /* the calls of each round */
#define ITEMS (ROUNDS * CALLS + 400)

static redisContext *c;
static delayq q;
static delayq_item item;

static delayq_item some[100];

static void fill(int due) {
    int64_t *ms = due_times(ITEMS, due, 0);
    empty_bench(c, &q);
    store(&q, ms, ITEMS, 100);
    free(ms);
}

static const char payload[100];

static void offer(void) {
    if (delayq_offer(&q, payload, sizeof payload, 3600000) != DELAYQ_OK)
        die(delayq_errmsg(&q));
}
static void take(void) {
    if (delayq_take(&q, &item, 0) != DELAYQ_OK) die(delayq_errmsg(&q));
}
static void ack_take(void) {
    if (delayq_ack_take(&q, &item, 0) != DELAYQ_OK || item.acked < 0)
        die(delayq_errmsg(&q));
}
static void offer_100(void) {
    static delayq_message m[100];
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < 100; i++) {
        m[i].data = payload;
        m[i].len = sizeof payload;
        m[i].delay_ms = 3600000;
    }
    if (delayq_offer_many(&q, m, 100) != DELAYQ_OK) die(delayq_errmsg(&q));
}
static void take_100(void) {
    size_t n = 0;
    if (delayq_take_many(&q, some, 100, &n, 0) != DELAYQ_OK || n != 100)
        die(delayq_errmsg(&q));
}
static void take_and_ack_100(void) {
    take_100();
    if (delayq_ack_many(&q, some, 100) != DELAYQ_OK) die(delayq_errmsg(&q));
}
static void tick_100(void) {
    if (tick_now(&q) != 100) die("a tick moved less than 100");
}

/* Returns the least microseconds per call, since disturbances only add time. */
static double per_call(int64_t lease_ms, int due, int calls,
                       void (*call)(void)) {
    double us, least = 0;
    int i, round;
    open_bench(&q, DELAYQ_NATIVE, lease_ms);
    fill(due);
    memset(&item, 0, sizeof item);
    for (i = 0; i < calls / 5 + 1; i++) call();
    for (round = 0; round < ROUNDS; round++) {
        do_command(c, "CONFIG RESETSTAT");
        for (i = 0; i < calls; i++) call();
        us = script_us(c) / calls;
        if (round == 0 || us < least) least = us;
    }
    delayq_close(&q);
    return least;
}

static void row(const char *name, double us) {
    printf("%s=%.2f ", name, us);
}

int main(void) {
    c = bare();
    row("offer", per_call(0, 0, CALLS, offer));
    row("take", per_call(0, ITEMS - 50, CALLS, take));
    row("take_lease", per_call(30000, ITEMS - 50, CALLS, take));
    row("ack_take_lease", per_call(30000, ITEMS - 50, CALLS, ack_take));
    row("offer_100", per_call(0, 0, 1, offer_100));
    row("take_100", per_call(0, ITEMS - 50, 1, take_100));
    row("take_ack_100", per_call(30000, ITEMS - 50, 1, take_and_ack_100));
    row("tick_100", per_call(0, ITEMS - 50, 1, tick_100));
    puts("");
    redisFree(c);
    return 0;
}
