/*
 * scripts -- what each call's script costs the server, by INFO commandstats:
 * offer, take, take with a lease, ack_take with a lease, one item at a time
 * among others that are due, items of 100 bytes. Built with another delayq.h
 * by `make bench-old OLD=commit`, it runs in turn with this one, so that both
 * meet the same machine.
 */
#include "bench.h"

#define ROUNDS 20
#define CALLS 100 /* in each; the cheapest round counts */
#define ITEMS (ROUNDS * CALLS + 100)

static redisContext *c;
static delayq q;
static delayq_item item;

static void fill(int due) {
    int64_t *ms = due_times(ITEMS, due ? ITEMS - 50 : 0, 0);
    empty_bench(c, &q);
    store(&q, ms, ITEMS, 100);
    free(ms);
}

static void offer(void) {
    static const char payload[100];
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

static double per_call(int64_t lease_ms, int due, void (*call)(void)) {
    double us, least = 0;
    int i, round;
    open_bench(&q, DELAYQ_NATIVE, lease_ms);
    fill(due);
    memset(&item, 0, sizeof item);
    for (i = 0; i < 20; i++) call();
    for (round = 0; round < ROUNDS; round++) {
        do_command(c, "CONFIG RESETSTAT");
        for (i = 0; i < CALLS; i++) call();
        us = script_us(c) / CALLS;
        if (round == 0 || us < least) least = us;
    }
    delayq_close(&q);
    return least;
}

int main(void) {
    c = bare();
    printf("us: offer %5.1f  take %5.1f  take, lease %5.1f  ack_take, lease "
           "%5.1f\n",
           per_call(0, 0, offer), per_call(0, 1, take),
           per_call(30000, 1, take), per_call(30000, 1, ack_take));
    redisFree(c);
    return 0;
}
