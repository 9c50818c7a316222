/*
 * Calls, and a table of those of a handle without an outbox: each with its
 * preparation, and with the number of items in the queue before and after it.
 */
#ifndef CALLS_H
#define CALLS_H

#include "test.h"

static delayq q;
static delayq_item items[3], got[3];
static delayq_message messages[3];
static size_t count;
static size_t first_len = 1; /* of the payload that is offered first */

static void prepare_nothing(void) {
}
static delayq_status offer_three(int64_t delay_ms) {
    static char payload[40000];
    int i;
    memset(messages, 0, sizeof messages);
    for (i = 0; i < 3; i++) {
        messages[i].data = payload;
        messages[i].len = i == 0 ? first_len : 1;
        messages[i].delay_ms = delay_ms;
    }
    return delayq_offer_many(&q, messages, 3);
}
static void prepare_due(void) {
    OK(&q, offer_three(0));
    elapse(main_connection(), 1);
}
static void prepare_pending(void) {
    OK(&q, offer_three(60000));
}
static void prepare_leased(void) {
    size_t n, i;
    prepare_due();
    for (i = 0; i < 3; i += n)
        OK(&q, delayq_take_many(&q, items + i, 3 - i, &n, 20000));
}
static void prepare_dead(void) {
    int i;
    prepare_leased();
    for (i = 0; i < 3; i++) OK(&q, delayq_bury(&q, &items[i], NULL));
}

static delayq_status do_offer(void) {
    return delayq_offer(&q, "x", 1, 60000);
}
static delayq_status do_offer_many(void) {
    return offer_three(60000);
}
static delayq_status do_key(void) {
    memset(messages, 0, sizeof messages);
    messages[0].data = "x";
    messages[0].len = 1;
    messages[0].delay_ms = 60000;
    messages[0].key = "k";
    messages[0].key_ttl_ms = 60000;
    return delayq_offer_message(&q, messages);
}
static delayq_status do_tick(void) {
    poll_now(&q);
    return delayq_tick(&q, NULL);
}
static delayq_status do_take(void) {
    poll_now(&q);
    return delayq_take_many(&q, got, 2, &count, 0);
}
static delayq_status do_ack(void) {
    return delayq_ack(&q, &items[1]);
}
static delayq_status do_ack_many(void) {
    return delayq_ack_many(&q, items, 3);
}
static delayq_status do_ack_take(void) {
    got[0] = items[1];
    return delayq_ack_take(&q, &got[0], 0);
}
static delayq_status do_nack(void) {
    return delayq_nack(&q, &items[1], 30000);
}
static delayq_status do_extend(void) {
    return delayq_extend(&q, &items[1], 30000);
}
static delayq_status do_bury(void) {
    return delayq_bury(&q, &items[1], NULL);
}
static delayq_status do_cancel(void) {
    return delayq_cancel(&q, &messages[1].ticket);
}
static delayq_status do_reschedule(void) {
    return delayq_reschedule(&q, &messages[1].ticket, 30000);
}
static delayq_status do_peek(void) {
    return delayq_peek(&q, got, 3, &count, NULL);
}
static delayq_status do_count(void) {
    delayq_counts c;
    return delayq_count(&q, &c);
}
static delayq_status do_redrive(void) {
    return delayq_dead_redrive(&q, 2, &count);
}
static delayq_status do_clear(void) {
    return delayq_clear(&q, NULL);
}

/* The number of items in the queue after the call is `done` if the call was
 * done, else `undone`. Both are equal for calls that only read or move. */
struct verb {
    const char *name;
    void (*prepare)(void);
    delayq_status (*call)(void);
    int undone, done;
    delayq_status good; /* the status without a fault */
    int lease;          /* 1: the handle has a lease */
};
static const struct verb verbs[] = {
    {"offer", prepare_nothing, do_offer, 0, 1, DELAYQ_OK, 0},
    {"offer_many", prepare_nothing, do_offer_many, 0, 3, DELAYQ_OK, 0},
    {"offer with a key", prepare_nothing, do_key, 0, 1, DELAYQ_OK, 0},
    {"tick", prepare_due, do_tick, 3, 3, DELAYQ_OK, 0},
    {"take", prepare_due, do_take, 3, 1, DELAYQ_OK, 0},
    {"take with a lease", prepare_due, do_take, 3, 3, DELAYQ_OK, 1},
    {"ack", prepare_leased, do_ack, 3, 2, DELAYQ_OK, 1},
    {"ack_many", prepare_leased, do_ack_many, 3, 0, DELAYQ_OK, 1},
    {"ack_take", prepare_leased, do_ack_take, 3, 2, DELAYQ_EMPTY, 1},
    {"nack", prepare_leased, do_nack, 3, 3, DELAYQ_OK, 1},
    {"extend", prepare_leased, do_extend, 3, 3, DELAYQ_OK, 1},
    {"bury", prepare_leased, do_bury, 3, 3, DELAYQ_OK, 1},
    {"cancel", prepare_pending, do_cancel, 3, 2, DELAYQ_OK, 0},
    {"reschedule", prepare_pending, do_reschedule, 3, 3, DELAYQ_OK, 0},
    {"peek", prepare_pending, do_peek, 3, 3, DELAYQ_OK, 0},
    {"count", prepare_pending, do_count, 3, 3, DELAYQ_OK, 0},
    {"dead_redrive", prepare_dead, do_redrive, 3, 3, DELAYQ_OK, 1},
    {"clear", prepare_pending, do_clear, 3, 0, DELAYQ_OK, 0},
};
#define VERBS (sizeof verbs / sizeof verbs[0])

__attribute__((unused)) static int in_queue(void) {
    return (int)ask_int(
        "EVAL %s 0",
        "return redis.call('ZCARD', 'redisson_delay_queue_timeout:{jobs}') +\n"
        "  redis.call('LLEN', 'jobs') +\n"
        "  redis.call('LLEN', 'delayq_retry:{jobs}') +\n"
        "  redis.call('LLEN', 'delayq_dead:{jobs}')");
}

#endif
