/*
 * Each function of delayq that sends a script, except delayq_open and
 * delayq_wait, for a handle without an outbox.
 */
#ifndef VERBS_H
#define VERBS_H

#include "test.h"

/* Call each of these functions. Call before() before each of them. */
static void each_verb(delayq *q, void (*before)(void)) {
    delayq_message m[2];
    delayq_counts counts;
    delayq_dead letter;
    delayq_item item, items[2];
    int64_t due = 1, n;
    size_t count;
#define VERB(call) (before(), call)
    ask("FLUSHALL");
    memset(m, 0, sizeof m);
    m[0].data = m[1].data = "y";
    m[0].len = m[1].len = 1;
    m[0].delay_ms = m[1].delay_ms = 60000;
    m[0].key = "k";
    m[0].key_ttl_ms = 60000;
    m[0].replace = 1;
    OK(q, VERB(delayq_offer_many(q, m, 2)));
    OK(q, VERB(delayq_offer_message(q, &m[0])));
    OK(q, VERB(delayq_reschedule(q, &m[1].ticket, 90000)));
    OK(q, VERB(delayq_cancel(q, &m[1].ticket)));
    OK(q, VERB(delayq_cancel_key(q, "k")));
    OK(q, VERB(delayq_offer(q, "x", 1, 0)));
    OK(q, VERB(delayq_take(q, &item, 20000)));
    if (q->options.lease_ms > 0) {
        OK(q, VERB(delayq_extend(q, &item, 1000)));
        OK(q, VERB(delayq_nack(q, &item, 0)));
        OK(q, VERB(delayq_take(q, &item, 20000)));
        OK(q, VERB(delayq_ack(q, &item)));
        OK(q, VERB(delayq_offer(q, "x", 1, 0)));
        OK(q, VERB(delayq_take(q, &item, 20000)));
        OK(q, VERB(delayq_offer(q, "x", 1, 0)));
        OK(q, VERB(delayq_ack_take(q, &item, 20000)));
        OK(q, VERB(delayq_bury(q, &item, "why")));
        OK(q, VERB(delayq_dead_peek(q, &letter, 1, &count, 0)));
        OK(q, VERB(delayq_dead_redrive(q, 1, &count)));
        OK(q, VERB(delayq_dead_clear(q, &n)));
    }
    OK(q, VERB(delayq_offer(q, "x", 1, 0)));
    OK(q, VERB(delayq_take_many(q, items, 2, &count, 20000)));
    if (q->options.lease_ms > 0) OK(q, VERB(delayq_ack_many(q, items, count)));
    OK(q, VERB(delayq_offer(q, "x", 1, 60000)));
    OK(q, VERB(delayq_peek(q, items, 2, &count, NULL)));
    OK(q, VERB(delayq_count(q, &counts)));
    OK(q, VERB(delayq_count_due(q, &due, 1, &n)));
    poll_now(q);
    OK(q, VERB(delayq_tick(q, NULL)));
    OK(q, VERB(delayq_clear(q, &n)));
    OK(q, VERB(delayq_pause(q, 1)));
    OK(q, VERB(delayq_pause(q, 0)));
#undef VERB
}

#endif
