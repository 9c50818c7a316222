/* The table for the version whose header was included before this file, or for
 * the current version if none was. */
#include "peer.h"
#ifndef PEER
#define PEER peer_today
#endif

static delayq *peer_open(const struct peer_options *wanted) {
    delayq *q = (delayq *)calloc(1, sizeof *q);
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = wanted->name;
    o.url = wanted->url;
    o.wire = WIRE(wanted->wire);
    o.lease_ms = wanted->lease_ms;
    o.max_wait_ms = wanted->max_wait_ms;
    o.max_attempts = wanted->max_attempts;
    if (wanted->broadcast) SET_BROADCAST(o);
#ifdef DELAYQ_BROADCAST
    o.max_late_ms = wanted->max_late_ms;
#endif
    o.broadcast_after = wanted->broadcast_after;
    o.io_timeout_ms = wanted->io_timeout_ms;
#ifdef DELAYQ_VERSION_MAJOR
    if (wanted->outbox) {
        static char outbox[65536];
        o.outbox = outbox;
        o.outbox_size = sizeof outbox;
    }
#endif
    if (q && delayq_open(q, &o) == DELAYQ_OK) return q;
    printf("    %s: %s\n", DELAYQ_VERSION, q ? delayq_errmsg(q) : "no memory");
    free(q);
    return NULL;
}

static void peer_close(delayq *q) {
    delayq_close(q);
    free(q);
}

/* Offer one message. The struct of a message is smaller in 0.1, so 0.1 can't
 * read an array of current messages. */
static delayq_status peer_offer_one(delayq *q, delayq_message *m) {
    return delayq_offer_many(q, m, 1);
}

static delayq_status peer_offer_many(delayq *q, const char *const *texts,
                                     size_t count, int64_t delay_ms) {
    delayq_message *m = (delayq_message *)calloc(count, sizeof *m);
    delayq_status status;
    size_t i;
    if (!m) return DELAYQ_ERR_MEMORY;
    for (i = 0; i < count; i++) {
        m[i].data = texts[i];
        m[i].len = strlen(texts[i]);
        m[i].delay_ms = delay_ms;
    }
    status = delayq_offer_many(q, m, count);
    free(m);
    return status;
}

static delayq_status peer_bury(delayq *q, const delayq_item *item,
                               const char *why) {
#ifdef DELAYQ_BROADCAST
    return delayq_bury(q, item, why);
#else
    (void)why;
    return delayq_bury(q, item);
#endif
}

static delayq_status peer_flush(delayq *q, int64_t timeout_ms) {
#ifdef DELAYQ_VERSION_MAJOR
    return delayq_flush(q, timeout_ms);
#else
    (void)q, (void)timeout_ms;
    return DELAYQ_OK;
#endif
}

const struct peer PEER = {DELAYQ_VERSION,
                          sizeof(delayq_item),
                          sizeof(delayq_dead),
                          sizeof(delayq_counts),
                          sizeof(delayq_message),
                          peer_open,
                          peer_close,
                          delayq_offer,
                          peer_offer_one,
                          peer_offer_many,
                          delayq_tick,
                          delayq_take,
                          delayq_take_many,
                          delayq_ack,
                          delayq_ack_many,
                          delayq_ack_take,
                          delayq_nack,
                          delayq_extend,
                          peer_bury,
                          delayq_cancel,
                          delayq_reschedule,
                          delayq_peek,
                          delayq_count,
                          delayq_count_due,
                          delayq_clear,
                          delayq_dead_peek,
                          delayq_dead_redrive,
                          delayq_dead_clear,
                          delayq_wait,
                          peer_flush,
                          delayq_errmsg};
