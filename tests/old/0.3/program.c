/* A program with each public name of 0.3, its type and its value. Later
 * versions compile it unchanged, as C and as C++: see .github/STABILITY.md.
 * Don't change it once 0.3.0 is out. tests/hygiene.sh compiles and runs it. */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <string.h>

static const struct {
    delayq_status (*open)(delayq *, const delayq_options *);
    void (*close)(delayq *);
    delayq_status (*offer)(delayq *, const void *, size_t, int64_t);
    delayq_status (*offer_message)(delayq *, delayq_message *);
    delayq_status (*offer_many)(delayq *, delayq_message *, size_t);
    delayq_status (*tick)(delayq *, int64_t *);
    delayq_status (*take)(delayq *, delayq_item *, int64_t);
    delayq_status (*take_many)(delayq *, delayq_item *, size_t, size_t *,
                               int64_t);
    delayq_status (*ack)(delayq *, const delayq_item *);
    delayq_status (*ack_many)(delayq *, delayq_item *, size_t);
    delayq_status (*ack_take)(delayq *, delayq_item *, int64_t);
    delayq_status (*nack)(delayq *, const delayq_item *, int64_t);
    delayq_status (*extend)(delayq *, delayq_item *, int64_t);
    delayq_status (*bury)(delayq *, const delayq_item *, const char *);
    delayq_status (*cancel)(delayq *, const delayq_ticket *);
    delayq_status (*cancel_key)(delayq *, const char *);
    delayq_status (*reschedule)(delayq *, delayq_ticket *, int64_t);
    delayq_status (*peek)(delayq *, delayq_item *, size_t, size_t *,
                          const delayq_ticket *);
    delayq_status (*count)(delayq *, delayq_counts *);
    delayq_status (*count_due)(delayq *, const int64_t *, size_t, int64_t *);
    delayq_status (*pause)(delayq *, int);
    delayq_status (*load_scripts)(delayq *);
    delayq_status (*clear)(delayq *, int64_t *);
    delayq_status (*dead_peek)(delayq *, delayq_dead *, size_t, size_t *,
                               size_t);
    delayq_status (*dead_redrive)(delayq *, size_t, size_t *);
    delayq_status (*dead_clear)(delayq *, int64_t *);
    delayq_status (*wait)(delayq *const *, size_t, int64_t);
    void (*wake)(delayq *);
    delayq_status (*flush)(delayq *, int64_t);
    delayq_status (*outbox)(const delayq *, delayq_outbox_state *);
    size_t (*fds)(const delayq *, int *, size_t);
    const char *(*errmsg)(const delayq *);
    const char *(*strstatus)(delayq_status);
} calls = {
    delayq_open, delayq_close, delayq_offer, delayq_offer_message,
    delayq_offer_many, delayq_tick, delayq_take, delayq_take_many, delayq_ack,
    delayq_ack_many, delayq_ack_take, delayq_nack, delayq_extend, delayq_bury,
    delayq_cancel, delayq_cancel_key, delayq_reschedule, delayq_peek,
    delayq_count, delayq_count_due, delayq_pause, delayq_load_scripts,
    delayq_clear, delayq_dead_peek, delayq_dead_redrive, delayq_dead_clear,
    delayq_wait, delayq_wake, delayq_flush, delayq_outbox, delayq_fds,
    delayq_errmsg, delayq_strstatus};

/* An array of a negative size does not compile. */
#define MUST(what, condition) typedef char what[(condition) ? 1 : -1]
MUST(delayq_good,
     DELAYQ_OK == 0 && DELAYQ_EMPTY == 1 && DELAYQ_GONE == 2 &&
         DELAYQ_DUPLICATE == 3 && DELAYQ_WOKEN == 4);
MUST(delayq_bad,
     DELAYQ_ERR_ARG == -1 && DELAYQ_ERR_IO == -2 && DELAYQ_ERR_TIMEOUT == -3 &&
         DELAYQ_ERR_AUTH == -4 && DELAYQ_ERR_REDIS == -5 &&
         DELAYQ_ERR_PROTOCOL == -6 && DELAYQ_ERR_READONLY == -7 &&
         DELAYQ_ERR_FULL == -8 && DELAYQ_ERR_WIRE == -9 &&
         DELAYQ_ERR_UNKNOWN == -10 && DELAYQ_ERR_AGAIN == -11 &&
         DELAYQ_ERR_TYPE == -12 && DELAYQ_ERR_MEMORY == -13);
MUST(delayq_numbers, DELAYQ_FOREVER == -1 && DELAYQ_BACKOFF == -1 &&
                         DELAYQ_RELEASE == -2);
MUST(delayq_version_number,
     DELAYQ_VERSION_MAJOR > 0 ||
         (DELAYQ_VERSION_MINOR >= 3 && DELAYQ_VERSION_PATCH >= 0));

#define FIELD(type, place)                        \
    do {                                          \
        type *field = &(place);                   \
        memset((void *)field, 0, sizeof *field);  \
    } while (0)
typedef char ticket_text[52], reason_text[16];
typedef uint64_t lateness_counts[24];
typedef struct redisContext *connect_hook(void *, int);
typedef int sync_hook(void *, void *, size_t);
typedef void settled_hook(void *, int, uint64_t, delayq_status);
typedef int resolve_hook(void *, const char *, char *, size_t);
typedef void log_hook(void *, delayq_status, const char *);

static void set_options(delayq_options *o) {
    FIELD(const char *, o->name);
    FIELD(const char *, o->url);
    FIELD(delayq_wire, o->wire);
    FIELD(int64_t, o->lease_ms);
    FIELD(int, o->max_attempts);
    FIELD(int64_t, o->max_late_ms);
    FIELD(int64_t, o->backoff_ms);
    FIELD(int64_t, o->backoff_max_ms);
    FIELD(const char *, o->broadcast_after);
    FIELD(int64_t, o->broadcast_keep);
    FIELD(int, o->batch);
    FIELD(int64_t, o->max_wait_ms);
    FIELD(int64_t, o->poll_ms);
    FIELD(int, o->connect_timeout_ms);
    FIELD(int, o->io_timeout_ms);
    FIELD(int, o->reconnect_max_ms);
    FIELD(int, o->counters);
    FIELD(void *, o->outbox);
    FIELD(size_t, o->outbox_size);
    FIELD(delayq_keep, o->outbox_keep);
    FIELD(sync_hook *, o->outbox_sync);
    FIELD(settled_hook *, o->settled);
    FIELD(resolve_hook *, o->resolve);
    FIELD(const char *, o->tls_ca);
    FIELD(const char *, o->tls_cert);
    FIELD(const char *, o->tls_key);
    FIELD(connect_hook *, o->connect);
    FIELD(log_hook *, o->log);
    FIELD(void *, o->user);
    FIELD(delayq *, o->share);
}

static void set_messages(delayq_message *m, delayq_item *i, delayq_dead *d) {
    FIELD(const void *, m->data);
    FIELD(size_t, m->len);
    FIELD(int64_t, m->delay_ms);
    FIELD(int64_t, m->due_ms);
    FIELD(const char *, m->key);
    FIELD(int64_t, m->key_ttl_ms);
    FIELD(int, m->replace);
    FIELD(delayq_status, m->status);
    FIELD(delayq_ticket, m->ticket);
    FIELD(ticket_text, m->ticket.text);
    FIELD(const void *, i->data);
    FIELD(size_t, i->len);
    FIELD(int, i->attempt);
    FIELD(int64_t, i->due_ms);
    FIELD(int64_t, i->late_us);
    FIELD(delayq_ticket, i->ticket);
    FIELD(delayq_status, i->acked);
    FIELD(const void *, d->data);
    FIELD(size_t, d->len);
    FIELD(reason_text, d->reason);
    FIELD(int, d->attempt);
    FIELD(int64_t, d->dead_ms);
    FIELD(const char *, d->why);
}

static void set_counts(delayq_counts *c, delayq_outbox_state *s) {
    FIELD(int64_t, c->pending);
    FIELD(int64_t, c->overdue);
    FIELD(int64_t, c->overdue_ms);
    FIELD(int64_t, c->ready);
    FIELD(int64_t, c->dead);
    FIELD(int64_t, c->next_due_ms);
    FIELD(int64_t, c->now_ms);
    FIELD(int64_t, c->paused);
    FIELD(uint64_t, c->offered);
    FIELD(uint64_t, c->moved);
    FIELD(uint64_t, c->taken);
    FIELD(uint64_t, c->acked);
    FIELD(uint64_t, c->nacked);
    FIELD(uint64_t, c->redelivered);
    FIELD(uint64_t, c->died);
    FIELD(uint64_t, c->reconnects);
    FIELD(lateness_counts, c->lateness);
    FIELD(uint64_t, c->total.offered);
    FIELD(uint64_t, c->total.taken);
    FIELD(uint64_t, c->total.acked);
    FIELD(uint64_t, c->total.nacked);
    FIELD(uint64_t, c->total.died);
    FIELD(uint64_t, c->total.canceled);
    FIELD(uint64_t, s->offers_accepted);
    FIELD(uint64_t, s->offers_settled);
    FIELD(uint64_t, s->changes_accepted);
    FIELD(uint64_t, s->changes_settled);
    FIELD(uint64_t, s->gone);
    FIELD(uint64_t, s->duplicate);
    FIELD(uint64_t, s->dropped);
    FIELD(size_t, s->bytes);
    FIELD(size_t, s->size);
    FIELD(int, s->connected);
}

int main(void) {
    static delayq q; /* closed: all its bytes are 0 */
    const delayq_wire wires[4] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                  DELAYQ_REDISSON_OLD, DELAYQ_BROADCAST};
    const delayq_keep keep = DELAYQ_KEEP;
    delayq_options o;
    delayq_message m;
    delayq_item i;
    delayq_dead d;
    delayq_counts c;
    delayq_outbox_state s;
    int n;
    memset(&o, 0, sizeof o);
    set_options(&o);
    set_messages(&m, &i, &d);
    set_counts(&c, &s);
    for (n = 0; n < 4; n++)
        if (!wires[n] != (n == 0) || (n && wires[n] == wires[n - 1])) return 1;
    o.outbox_keep = keep;
    if (calls.open(&q, &o) != DELAYQ_ERR_ARG || !*calls.errmsg(&q)) return 2;
    if (calls.offer(&q, "x", 1, 0) != DELAYQ_ERR_ARG) return 3;
    calls.close(&q);
    return !*calls.strstatus(DELAYQ_OK) || !*DELAYQ_VERSION;
}
