/*
 * The library as a table of its functions, so that one program has two
 * versions of it: today's, and old ones (tests/old/). Items, messages and
 * tickets have the same layout in both; handles and options have not, so a
 * handle is opened through the table of its version, and used through that.
 */
#ifndef PEER_H
#define PEER_H

#include "test.h"

struct peer_options {
    const char *name, *url;
    int wire; /* its number */
    int64_t lease_ms, max_wait_ms;
    int max_attempts, broadcast;
    const char *broadcast_after;
    int io_timeout_ms;
    int outbox; /* 1: it never waits; only today's */
};

struct peer {
    const char *version;
    size_t item_size, dead_size;      /* the same in both */
    size_t counts_size, message_size; /* at most today's */

    /* A new handle, opened; NULL and the reason on stdout if it can't be. */
    delayq *(*open)(const struct peer_options *options);
    void (*close)(delayq *q);
    delayq_status (*offer)(delayq *, const void *, size_t, int64_t);
    delayq_status (*offer_one)(delayq *, delayq_message *);
    /* The payloads, without keys, due after delay_ms. */
    delayq_status (*offer_many)(delayq *, const char *const *texts,
                                size_t count, int64_t delay_ms);
    delayq_status (*tick)(delayq *, int64_t *);
    delayq_status (*take)(delayq *, delayq_item *, int64_t);
    delayq_status (*take_many)(delayq *, delayq_item *, size_t, size_t *,
                               int64_t);
    delayq_status (*ack)(delayq *, const delayq_item *);
    delayq_status (*ack_many)(delayq *, delayq_item *, size_t);
    delayq_status (*ack_take)(delayq *, delayq_item *, int64_t);
    delayq_status (*nack)(delayq *, const delayq_item *, int64_t);
    delayq_status (*extend)(delayq *, delayq_item *, int64_t);
    delayq_status (*bury)(delayq *, const delayq_item *);
    delayq_status (*cancel)(delayq *, const delayq_ticket *);
    delayq_status (*reschedule)(delayq *, delayq_ticket *, int64_t);
    delayq_status (*peek)(delayq *, delayq_item *, size_t, size_t *,
                          const delayq_ticket *);
    delayq_status (*count)(delayq *, delayq_counts *);
    delayq_status (*count_due)(delayq *, const int64_t *, size_t, int64_t *);
    delayq_status (*clear)(delayq *, int64_t *);
    delayq_status (*dead_peek)(delayq *, delayq_dead *, size_t, size_t *,
                               size_t);
    delayq_status (*dead_redrive)(delayq *, size_t, size_t *);
    delayq_status (*dead_clear)(delayq *, int64_t *);
    delayq_status (*wait)(delayq *const *, size_t, int64_t);
    delayq_status (*flush)(delayq *, int64_t); /* 0.1: nothing to do */
    const char *(*errmsg)(const delayq *);
};

extern const struct peer peer_0_1, peer_0_2, peer_today;

#endif
