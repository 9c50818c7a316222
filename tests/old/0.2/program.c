/* A program that was written for 0.2, with each place that a program has to change
 * for the next version: tests/hygiene.sh changes them as CHANGELOG.md says. */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <string.h>

static delayq_options redisson = {.name = "jobs", .wire = DELAYQ_REDISSON};

static int is_native(const delayq_options *o) {
    int wire = o->wire;
    return wire == DELAYQ_NATIVE;
}

static delayq_status listen_to(delayq *q, const char *name) {
    delayq_options options = {0};
    options.name = name;
    options.broadcast = 1;
    options.broadcast_after = "";
    return delayq_open(q, &options);
}

int main(void) {
    static delayq q, listener;
    delayq_item item;
    delayq_status status;
    redisson.lease_ms = 60000;
    if (delayq_open(&q, &redisson) != DELAYQ_OK) return 1;
    if (listen_to(&listener, "news") != DELAYQ_OK) return 1;
    status = delayq_take(&q, &item, DELAYQ_FOREVER);
    if (status == DELAYQ_OK && item.attempt > 3 && !is_native(&redisson))
        status = delayq_bury(&q, &item);
    delayq_close(&listener);
    delayq_close(&q);
    return status != DELAYQ_OK;
}
