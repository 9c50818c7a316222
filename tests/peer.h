/*
 * A table of the library's functions for each version, so that one program can
 * use the current version and an old one (tests/old/). Items and tickets have
 * the same layout in both versions, and an old message has the layout of the
 * first part of a current one. Handles and options differ, so a handle is
 * opened and used only through the table of its version.
 */
#ifndef PEER_H
#define PEER_H

#include "test.h"

struct peer_options {
    const char *name, *url;
    int wire; /* the wire's number */
    int64_t lease_ms, max_wait_ms;
    int max_attempts, broadcast;
    int64_t max_late_ms; /* 0.1 and 0.2 ignore it */
    const char *broadcast_after;
    int io_timeout_ms;
    int outbox; /* 1: the handle has an outbox, except with 0.1 */
};

struct peer {
    const char *version;
    size_t item_size; /* the same in all versions */
    /* at most the sizes in the current version */
    size_t dead_size, counts_size, message_size;

    /* Open a new handle. Returns NULL if that fails, and prints the reason. */
    delayq *(*open)(const struct peer_options *options);
    void (*close)(delayq *q);
    delayq_status (*offer)(delayq *, const void *, size_t, int64_t);
    delayq_status (*offer_one)(delayq *, delayq_message *);
    /* Offer these payloads, without keys, due after delay_ms. */
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
    /* only the current version uses `why` */
    delayq_status (*bury)(delayq *, const delayq_item *, const char *why);
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
    delayq_status (*flush)(delayq *, int64_t); /* 0.1 flushes nothing */
    const char *(*errmsg)(const delayq *);
};

extern const struct peer peer_0_1, peer_0_2, peer_today;

#endif
