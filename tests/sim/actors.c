/*
 * The programs that use delayq. Each is a process that runs the unchanged
 * header. It notes its intention before a call, and the result after the call.
 */
#include "sim.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if SIM_API >= 2
#include "../told.h"
#endif

typedef struct held {
    item *it;
    delayq_item got;
    uint64_t hash; /* hash of its element; 0: unknown */
} held;

struct outbox_entry {
    uint64_t number;
    item *it;
    const char *verb;
    int64_t at_us;
    int ahead; /* ops that were not settled then */
    delayq_status dropped; /* the status with which it was dropped */
};

/* --- calls --------------------------------------------------------------- */

#if SIM_API >= 2
delayq_status honest(const delayq *q, delayq_status status, const char *call) {
    const char *why = falsehood(q, status);
    if (why)
        check_fail("texts", "%s: %s (%s) %s: \"%s\"",
                   process_name(process_self()), call, delayq_strstatus(status),
                   why, delayq_errmsg(q));
    return status;
}
#endif

static int64_t between(actor *a, int64_t low, int64_t high) {
    return chance_between(&a->chance, low, high);
}

static int percent(actor *a, int p) {
    return chance_percent(&a->chance, p);
}

static uint64_t hash_of(const char *bytes, size_t len) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    size_t i;
    for (i = 0; i < len; i++)
        hash = (hash ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static void into_hand(actor *a, const delayq_item *got, int id) {
    in_hand *h = &a->hand[a->hand_count];
    if (a->hand_count == HAND) return;
    a->hand_count++;
    h->of = a->q;
    h->id = id;
    h->data = (const char *)got->data;
    h->len = got->len;
    h->hash = hash_of(h->data, h->len);
}

/* Drop the handle's items if `call` ends their validity. */
static void out_of_hand(actor *a, const char *call) {
    static const char *const ends[] = {"take", "take(0)", "take_many",
                                       "ack_take", "peek", "dead_peek",
                                       "close"};
    int i, n = 0;
    size_t k = 0;
    while (k < sizeof ends / sizeof ends[0] && strcmp(call, ends[k]) != 0) k++;
    if (k == sizeof ends / sizeof ends[0]) return;
    for (i = 0; i < a->hand_count; i++)
        if (a->hand[i].of != a->q) a->hand[n++] = a->hand[i];
    a->hand_count = n;
}

static void read_hand(const actor *a, const char *call) {
    int i;
    for (i = 0; i < a->hand_count; i++) {
        const in_hand *h = &a->hand[i];
        if (hash_of(h->data, h->len) != h->hash)
            check_fail("hand", "%s: after %s the payload of item %d is gone",
                       a->name, call, h->id);
    }
}

static void begin(actor *a, const char *call, int64_t bound_us) {
    out_of_hand(a, call);
    a->call = a->last_call = call;
    a->call_us = sim_now();
    a->call_bound_us = bound_us;
    a->frozen_us = 0;
    a->ran_then = a->ran;
    a->refused_then = a->refused;
    a->ends_then = process_ends(a->p);
}

int actor_can_take(const char *call) {
    return strstr(call, "take") || strstr(call, "tick") ||
           strstr(call, "wait") || strstr(call, "poll");
}

static int leaving; /* 1: the run has ended */
static void close_all(void *arg);

static delayq_status end(actor *a, delayq_status status) {
    int64_t took = sim_now() - a->call_us - a->frozen_us;
    const char *call = a->call;
    a->call = NULL;
    read_hand(a, call);
    if (a->free_us && !actor_can_take(call)) a->free_us += took;
    if (leaving) {
        a->call = "close"; /* so that leave_all waits for its end */
        a->awake = 0;      /* so that leave_all wakes no closed handle */
        close_all(a);
        process_kill(a->p);
    }
    a->outcome_us = sim_now();
    if (status == DELAYQ_WOKEN && !a->wakes)
        check_fail("wake", "%s: %s was woken by nobody", a->name, call);
    if (status == DELAYQ_WOKEN && a->wakes) a->wakes--;
    a->woken_us = 0;
    if (status < 0) a->trouble_us = sim_now();
    /* If a reply arrives while the process is frozen, the measured round trip
     * includes that time, and the next request gets two such round trips. */
    if (a->call_bound_us >= 0 && took > a->call_bound_us + 2 * a->frozen_us)
        check_fail("blocks", "%s: %s took %lld us, at most %lld are promised",
                   a->name, call, (long long)took, (long long)a->call_bound_us);
    if (status != DELAYQ_EMPTY &&
        (status != DELAYQ_OK || call[0] != 't' || call[1] != 'i'))
        TELL("%s: %s: %s%s%s", a->name, call, delayq_strstatus(status),
             status < 0 ? ": " : "", status < 0 ? delayq_errmsg(a->q) : "");
    check_status(a, call, status);
    if (strncmp(call, "offer_m", 7) != 0) check_unknown(a, status);
    if (status == DELAYQ_EMPTY && strstr(call, "take") && !a->outbox &&
        a->refused > a->refused_then && a->ran == a->ran_then)
        check_fail("status",
                   "%s: %s finds nothing, and each of its requests was refused",
                   a->name, call);
    return status;
}

#define CALL(a, what, bound, expression) \
    (begin(a, what, bound), end(a, expression))

/* Returns the longest time of a call with one request. A request that is sent
 * late gets two measured round trips. So does the load of its script, which may
 * have six parts, and so does its second try. Flushes of the scripts may cause
 * five tries. A measured round trip includes the time for which the server was
 * frozen or the line stalled (at most step_us, the limit of a step of
 * connecting). It also includes the time for which the program slept, perhaps
 * in three pauses, before it read the first reply. */
static int64_t request_us(const actor *a) {
    int64_t step_us = 4 * a->io_timeout_ms * MS, held_us = 0;
    int i;
    int sleeps = a->kind == WATCHER || a->kind == PRODUCER ||
                 a->kind == REDRIVER || a->kind == PAUSER;
    for (i = 0; i < sim_plan.fault_count; i++)
        if (sim_plan.faults[i].kind == FREEZE_SERVER ||
            sim_plan.faults[i].kind == STALL)
            held_us += sim_plan.faults[i].lasts_us;
    if (held_us > step_us) held_us = step_us;
    return a->io_timeout_ms * MS * 103 / 100 + 2 * held_us + 50 * MS +
           (sim_plan.kinds & 1u << SCRIPTS ? 100 : 24) *
               (sim_plan.latency_us + sim_plan.jitter_us) +
           (sim_plan.kinds & 1u << LATENCY ? 4 * 40 * MS : 0) +
           (sleeps && sim_plan.fault_count ? 6 * a->gap_us : 0);
}

/* Returns request_us(a), or 2 ms with an outbox, which waits for no reply. */
static int64_t once_us(const actor *a) {
    return a->outbox ? 2 * MS : request_us(a);
}

/* Returns the longest time of a call that may transfer large payloads. The
 * limit of a call begins again with each MB. Any take may get such payloads. */
static int64_t transfer_us(const actor *a) {
    return request_us(a) * (plan_has_large() ? 2 : 1);
}

static int64_t large_us(const actor *a) {
    return a->outbox ? 2 * MS : transfer_us(a);
}

/* Returns the longest time of a take, or -1 if it has no limit. An outbox sends
 * its other requests first, and loads a script in a request of its own. If
 * somebody flushes the scripts again and again, the take may wait for ever. */
static int64_t take_us(const actor *a, int64_t timeout_ms) {
    if (timeout_ms < 0) return -1;
    if (timeout_ms && a->outbox && sim_plan.kinds & 1u << SCRIPTS) return -1;
    if (!timeout_ms) return large_us(a);
    return timeout_ms * MS * 103 / 100 + transfer_us(a) * (a->outbox ? 2 : 1) +
           (timeout_ms >= 10000 ? request_us(a) : 0);
}

static void tell(void *user, delayq_status status, const char *text) {
    actor *a = (actor *)user;
    /* All other lines report an event that is not a failure. */
    if (status != DELAYQ_OK || strstr(text, "polling")) {
        a->logs++;
        a->trouble_us = sim_now();
    }
    TELL("%s: log: %d %s", a->name, status, text);
    if ((strstr(text, "polling") && !sim_plan.fault_count) ||
        (status == DELAYQ_ERR_AUTH && !(sim_plan.kinds & 1u << DENIED)))
        check_fail("logs", "%s: the log blames a right that it has: %s",
                   a->name, text);
}

static int uses_outbox(const actor *a) {
#if SIM_API < 2
    (void)a;
    return 0;
#else
    return a->kind == OUTBOX_PRODUCER || a->kind == OUTBOX_WORKER;
#endif
}

#if SIM_API >= 3
static void on_settled(void *user, int changes, uint64_t number,
                       delayq_status status) {
    actor *a = (actor *)user;
    struct outbox_entry *e = changes ? a->changes : a->offers;
    int i, n = changes ? a->change_count : a->offer_count;
    if (number != ++a->told_settled[changes])
        check_fail("outbox", "%s: %llu is reported, with %d, after %llu",
                   a->name, (unsigned long long)number, status,
                   (unsigned long long)a->told_settled[changes] - 1);
    for (i = 0; i < n && status < DELAYQ_OK; i++)
        if (e[i].number == number) e[i].dropped = status;
    if (status < DELAYQ_OK) a->drops++;
}
#endif

static void outbox_resume(actor *a);

/* A URL with servers that never reply, and the server among them. */
static const char *silent_url(void) {
    static char url[300];
    int i, at = (int)(sim_plan.seed % (uint64_t)(sim_plan.silent + 1));
    strcpy(url, "redis://");
    for (i = 0; i <= sim_plan.silent; i++)
        sprintf(url + strlen(url), "%s10.0.%d.%d:6379", i ? "," : "",
                i == at ? 0 : 9, i == at ? 1 : i + 1);
    return url;
}

/* Returns 1 if a stranger has the native wire, and not the other Redisson's. */
static int is_native(const actor *a) {
    return plan_version >= 9 && a->seed % 2;
}

static delayq *open_handle(actor *a, int queue, delayq *share) {
    delayq *q = (delayq *)calloc(1, sizeof *q);
    delayq_options o;
    delayq_status status;
    memset(&o, 0, sizeof o);
    o.name = queue == 0 ? "jobs" : queue == 1 ? "more" : "long";
    o.url = share                           ? NULL
            : sim_plan.finds == BY_NAME     ? "redis://redis:6379"
            : sim_plan.silent               ? silent_url()
            : sim_plan.finds == BY_SENTINEL ? "redis+sentinel://10.0.0.3/master"
            : sim_plan.hosts || (sim_plan.finds == BY_CLUSTER &&
                                 sim_plan.latency_us < 100 * MS)
                ? "redis://10.0.0.1:6379,10.0.0.2:6379"
                : "redis://10.0.0.1:6379";
    o.wire = sim_plan.wire;
    if (a->kind == STRANGER)
        o.wire = is_native(a)                ? DELAYQ_NATIVE
                 : o.wire == DELAYQ_REDISSON ? DELAYQ_REDISSON_OLD
                                             : DELAYQ_REDISSON;
    o.lease_ms = sim_plan.lease_ms;
    o.max_attempts = sim_plan.max_attempts;
    o.backoff_ms = sim_plan.backoff_ms;
    o.backoff_max_ms = sim_plan.backoff_max_ms;
    if (sim_plan.broadcast) SIM_BROADCAST(o);
    o.batch = sim_plan.batch;
    o.max_wait_ms = a->max_wait_ms;
    o.log = tell;
    o.user = a;
    o.share = share;
    if (!share) o.io_timeout_ms = a->io_timeout_ms;
    if (queue == LONG_QUEUE) {
        o.wire = DELAYQ_NATIVE;
        o.lease_ms = 3600 * 1000;
        o.max_attempts = 0;
        o.batch = 1000;
    }
#if SIM_API >= 2
    if (!share) o.reconnect_max_ms = sim_plan.reconnect_max_ms;
    o.counters = sim_plan.counters;
#endif
#if SIM_API >= 3
    o.poll_ms = sim_plan.mix.poll_ms;
    o.max_late_ms = queue == LONG_QUEUE ? 0 : sim_plan.max_late_ms;
#endif
#if SIM_API >= 2
    if (uses_outbox(a)) {
        int kept = a->image && !share;
        o.outbox_size = (size_t)sim_plan.mix.outbox_size;
        o.outbox = a->outbox = kept ? a->image : malloc(o.outbox_size);
#if SIM_API >= 3
        if (kept) o.outbox_keep = DELAYQ_KEEP;
        if (!share) o.settled = on_settled;
#endif
        if (!share) a->told_settled[0] = a->told_settled[1] = a->drops = 0;
    }
#endif
    if (!share) a->q = q;
    a->handles[a->handle_count++] = q;
    begin(a, "open",
          a->outbox ? 2 * MS : 50 * MS + 103 * 20 * MS + 2 * once_us(a));
    a->opens++;
    status = delayq_open(q, &o);
    a->opened = end(a, status);
    if (a->image && !share) outbox_resume(a);
    a->awake = 1;
    a->verbs++;
    return q;
}

/* --- taken items --------------------------------------------------------- */

static void outbox_add(actor *a, int change, item *it, const char *verb) {
    struct outbox_entry **list = change ? &a->changes : &a->offers, *e;
    int *n = change ? &a->change_count : &a->offer_count;
    *list = (struct outbox_entry *)realloc(
        *list, (size_t)(*n + 1) * sizeof(struct outbox_entry));
    e = &(*list)[(*n)++];
    e->number = change ? ++a->changes_accepted : ++a->offers_accepted;
    e->it = it;
    e->verb = verb;
    e->at_us = sim_now();
    e->ahead = *n - 1;
    e->dropped = DELAYQ_OK;
}

/* Note that the ops in the outbox may still change their items. */
static void intend_pending(actor *a) {
    int i;
    for (i = 0; i < a->offer_count; i++)
        if (a->offers[i].verb && a->offers[i].it)
            a->offers[i].it->intents |= bit_of(a);
    for (i = 0; i < a->change_count; i++)
        if (a->changes[i].it) a->changes[i].it->intents |= bit_of(a);
}

/* Go on with the ops of the killed process: all accepted ones, and those of the
 * call during which it was killed. */
static void outbox_resume(actor *a) {
#if SIM_API >= 3
    delayq_outbox_state s;
    if (delayq_outbox(a->q, &s) != DELAYQ_OK) return;
    if (s.offers_accepted < a->offers_accepted ||
        s.changes_accepted < a->changes_accepted)
        check_fail("outbox",
                   "%s: of %llu offers and %llu changes an image "
                   "has %llu and %llu",
                   a->name, (unsigned long long)a->offers_accepted,
                   (unsigned long long)a->changes_accepted,
                   (unsigned long long)s.offers_accepted,
                   (unsigned long long)s.changes_accepted);
    while (a->offers_accepted < s.offers_accepted) outbox_add(a, 0, NULL, NULL);
    while (a->changes_accepted < s.changes_accepted)
        outbox_add(a, 1, NULL, NULL);
    a->told_settled[0] = s.offers_settled;
    a->told_settled[1] = s.changes_settled;
    a->drops = s.dropped;
    a->trouble_us = sim_now();
    intend_pending(a);
    if (a->life > 1)
        TELL("%s goes on with %d offers and %d changes", a->name,
             a->offer_count, a->change_count);
#else
    (void)a;
#endif
}

/* Note the ops that the outbox reports as settled. */
static void outbox_look(actor *a) {
#if SIM_API >= 2
    delayq_outbox_state s;
    int i = 0, sure;
    if (!a->outbox || delayq_outbox(a->q, &s) != DELAYQ_OK) return;
    if (s.offers_accepted != a->offers_accepted ||
        s.changes_accepted != a->changes_accepted)
        check_fail("outbox",
                   "%s: %llu offers and %llu changes were accepted, "
                   "the outbox counts %llu and %llu",
                   a->name, (unsigned long long)a->offers_accepted,
                   (unsigned long long)a->changes_accepted,
                   (unsigned long long)s.offers_accepted,
                   (unsigned long long)s.changes_accepted);
    if (SIM_API < 3) {
        a->told_settled[0] = s.offers_settled;
        a->told_settled[1] = s.changes_settled;
    }
    if (s.offers_settled != a->told_settled[0] ||
        s.changes_settled != a->told_settled[1])
        check_fail("outbox", "%s: not each settled op is reported", a->name);
    if (s.dropped != a->drops)
        check_fail("outbox", "%s: of %llu dropped ops %llu were reported",
                   a->name, (unsigned long long)s.dropped,
                   (unsigned long long)a->drops);
    for (; i < a->offer_count && a->offers[i].number <= s.offers_settled; i++) {
        struct outbox_entry *e = &a->offers[i];
        if (e->dropped) check_dropped(a, e->it, e->verb);
        if (!e->it) continue; /* it is an op on a key */
        if (e->verb)
            check_left(a, e->it, e->verb);
        else if (e->dropped)
            check_offered(a, e->it, e->dropped);
        else if (!e->it->key)
            check_offered(a, e->it, DELAYQ_OK);
    }
    if (i) a->drained_us[0] = sim_now();
    if (i)
        memmove(a->offers, a->offers + i,
                (size_t)(a->offer_count - i) * sizeof *a->offers);
    a->offer_count -= i;
    sure = !s.gone;
    for (i = 0;
         i < a->change_count && a->changes[i].number <= s.changes_settled;
         i++) {
        struct outbox_entry *e = &a->changes[i];
        if (e->dropped) check_dropped(a, NULL, e->verb);
        if (!e->it) continue; /* a kill interrupted the call of this op */
        /* If a reply was lost, GONE may be the effect of the op itself. */
        if (sure && a->trouble_us < e->at_us &&
            strcmp(e->verb, "extend") != 0 && strcmp(e->verb, "nack") != 0)
            check_settled(a, e->it, DELAYQ_OK, e->verb);
        else
            check_left(a, e->it, e->verb);
    }
    if (i) a->drained_us[1] = sim_now();
    if (i)
        memmove(a->changes, a->changes + i,
                (size_t)(a->change_count - i) * sizeof *a->changes);
    a->change_count -= i;
    for (i = 0; i < 2; i++) { /* check the first op that is not settled */
        const struct outbox_entry *e = i ? a->changes : a->offers;
        const char *verb;
        if (!(i ? a->change_count : a->offer_count)) continue;
        verb = i && e->verb ? e->verb : "offer";
        check_drains(a, verb,
                     e->at_us > a->drained_us[i] ? e->at_us : a->drained_us[i]);
        check_rate(a, verb, e->at_us, e->ahead);
    }
    intend_pending(a);
#else
    (void)a;
#endif
}

/* Note the outcome of a call on a ticket. */
static void ended(actor *a, held *h, delayq_status status, const char *verb) {
    a->verbs++;
    if (a->outbox) {
        if (status == DELAYQ_OK)
            outbox_add(a, 1, h->it, verb);
        else
            check_left(a, h->it, verb);
        intend_pending(a);
        return;
    }
    check_settled(a, h->it, status, verb);
    if (status == DELAYQ_GONE && h->hash && h->it->now.set &&
        h->it->now.hash == h->hash &&
        /* The ticket begins with the due time. If the item was redriven and
         * leased again, its due time is another one. */
        h->it->now.score == atoll(h->got.ticket.text) && !h->it->disturbed &&
        !(h->it->unknown & bit_of(a)))
        check_fail("status",
                   "%s: %s of item %d is told as gone, and its "
                   "lease is in the server",
                   a->name, verb, h->it->id);
}

static void received(actor *a, const delayq_item *got, held *h) {
    TELL("%s: takes item %d, attempt %d, %lld us late%s%s", a->name,
         check_find(got->data, got->len) ? check_find(got->data, got->len)->id
                                         : -1,
         got->attempt, (long long)got->late_us, got->ticket.text[0] ? ", " : "",
         got->ticket.text);
    if (sim_plan.max_late_ms && got->late_us > sim_plan.max_late_ms * 1000)
        check_fail("late", "%s is handed an item %lld us late", a->name,
                   (long long)got->late_us);
    check_got(a, got, sim_plan.lease_ms > 0);
    h->it = check_find(got->data, got->len);
    into_hand(a, got, h->it ? h->it->id : -1);
    h->got = *got;
    h->hash = h->it && h->it->hand_actor == a->index &&
                      h->it->hand_life == a->life &&
                      h->it->now.hash == h->it->hand_hash
                  ? h->it->hand_hash
                  : 0;
}

/* If a call has set the due time that the item already had, count the call as a
 * change. */
static void same_due(actor *a, const held *h, delayq_status status,
                     int64_t low_ms, int64_t high_ms) {
    /* accept the former due time, too, since the item may have been moved */
    int64_t left = (h->it->due_true_us - sim_now()) / 1000;
    int64_t before = (h->it->due_former_us - sim_now()) / 1000;
    int64_t took = (sim_now() - a->call_us) / 1000 + 2;
    /* An outbox computes due times from its estimate of the server's clock. */
    int64_t off = 1 + (sim_plan.latency_us + sim_plan.jitter_us) / 1000;
    if (status == DELAYQ_OK &&
        ((left >= low_ms - took && left <= high_ms + off) ||
         (before >= low_ms - took && before <= high_ms + off)))
        h->it->changed |= bit_of(a);
}

/* Bury an item. Every second item gets a text, which is its number. */
static delayq_status bury(actor *a, held *h) {
#if SIM_API < 3
    return delayq_bury(a->q, &h->got);
#else
    char why[32];
    snprintf(why, sizeof why, "item\n%d", h->it->id);
    return delayq_bury(a->q, &h->got, h->it->id % 2 ? why : NULL);
#endif
}

static void check_letters(const actor *a, const delayq_dead *dead, size_t n) {
#if SIM_API < 3
    (void)a, (void)dead, (void)n;
#else
    char why[32];
    size_t i;
    for (i = 0; i < n; i++) {
        const item *it = check_find(dead[i].data, dead[i].len);
        int buried = strcmp(dead[i].reason, "buried") == 0;
        if (!it) continue;
        snprintf(why, sizeof why, "item %d", it->id);
        if (strcmp(dead[i].why, buried && it->id % 2 ? why : "") != 0 ||
            (!buried && strcmp(dead[i].reason, "attempts") != 0 &&
             (!sim_plan.max_late_ms || strcmp(dead[i].reason, "late") != 0)))
            check_fail("bytes", "%s reads that item %d died of \"%s\": \"%s\"",
                       a->name, it->id, dead[i].reason, dead[i].why);
    }
#endif
}

/* --- calls while an item is in hand --------------------------------------- */

typedef struct offered {
    item *it;
    delayq_ticket ticket;
} offered;

/* recent offers of each queue, which other programs of the queue may cancel */
static struct posted {
    item *it;
    delayq_ticket ticket;
    int by;
} posted[2][4];

static void produce_one(actor *a, delayq *q, offered *kept);
static void offer_plain(actor *a, delayq *q);
static int offers_on(void);
static void flush(actor *a);

/* Returns 1 if the program is to call another function now, before its next
 * take. This changes no other random choice. */
static int meddles(const actor *a, chance *c) {
    c->state = a->seed + 37 * (a->verbs + a->items);
    return chance_percent(c, sim_plan.meddles);
}

static void wait_shortly(actor *a, int64_t timeout_ms) {
    delayq_status status;
    begin(a, "wait",
          timeout_ms * MS + (a->outbox ? 20 * MS : 2 * large_us(a)));
    status = delayq_wait(&a->q, 1, timeout_ms);
    if (a->outbox && status < DELAYQ_OK) status = DELAYQ_EMPTY;
    end(a, status);
}

/* Sometimes make a call that does not end the validity of an item. */
static void meddle(actor *a) {
    delayq_counts counts;
    int64_t wait_ms;
    chance c;
    if (!meddles(a, &c)) return;
    a->verbs++;
    switch (chance_between(&c, 0, 4)) {
    case 0:
        process_sleep(chance_between(&c, 0, 300 * MS));
        CALL(a, "tick", large_us(a), delayq_tick(a->q, &wait_ms));
        break;
    case 1:
        if (a->outbox)
            flush(a);
        else
            CALL(a, "count", large_us(a), delayq_count(a->q, &counts));
        break;
    case 2:
        if (offers_on() && !check_crowded(a->queue)) offer_plain(a, a->q);
        break;
    default:
        wait_ms = chance_between(&c, 0, 300);
        wait_shortly(a, plan_version >= 10 && wait_ms < 100 ? 0 : wait_ms);
    }
}

static void cancel_of_others(actor *a) {
    delayq_status status;
    struct posted *p;
    chance c;
    held h;
    c.state = a->seed + 43 * (a->verbs + a->items);
    if (!chance_percent(&c, sim_plan.cancels_others)) return;
    p = &posted[a->queue][chance_between(&c, 0, 3)];
    /* An outbox would regard an id of 8 bytes as one of its own. */
    if (!p->it || p->by == a->index || p->ticket.text[0] == '\0' ||
        (a->outbox && strlen(strchr(p->ticket.text, '-')) < 30))
        return;
    memset(&h, 0, sizeof h);
    h.it = p->it;
    h.got.ticket = p->ticket;
    p->it = NULL;
    check_intend(a, h.it);
    TELL("%s: cancels item %d of another", a->name, h.it->id);
    status = CALL(a, "cancel", large_us(a),
                  delayq_cancel(a->q, &h.got.ticket));
    ended(a, &h, status, "cancel");
}

/* Returns 1 if the program is to repeat its last call. */
static int repeats(const actor *a) {
    chance c;
    c.state = a->seed + 47 * (a->verbs + a->items);
    return chance_percent(&c, sim_plan.repeats);
}

/* Sometimes nack an item again, long before it is due. This nack counts. */
static void nack_again(actor *a, held *h, delayq_status status,
                       int64_t delay_ms) {
    int before = h->it->disturbed;
    int64_t begun = sim_now();
    if (status != DELAYQ_OK || delay_ms < 500 || !repeats(a)) return;
    check_intend(a, h->it);
    status = CALL(a, "nack", large_us(a), delayq_nack(a->q, &h->got, 400));
    same_due(a, h, status, 400, 400);
    ended(a, h, status, "nack");
    if (status == DELAYQ_GONE && !a->outbox && !before && !h->it->disturbed &&
        !h->it->cancelled && !h->it->ended_us && sim_now() - begun < 300 * MS)
        check_fail("status", "%s: a second nack of item %d is told as gone",
                   a->name, h->it->id);
}

/* Work on an item, and perhaps end its lease. Returns 1 if the caller must ack
 * the item. */
static int work(actor *a, held *h, int waits) {
    const mix *m = &sim_plan.mix;
    int nack = m->nack, backoff = nack + m->backoff;
    int release = backoff + m->release, buries = release + m->bury;
    int64_t lease = sim_plan.lease_ms * MS;
    int what = (int)between(a, 0, 99);
    delayq_status status;
    if (!h->it) return 0;
    meddle(a);
    cancel_of_others(a);
    if (waits && a->work_us)
        process_sleep(between(a, a->work_us / 2, a->work_us * 2));
    if (!lease) return 0;
    if (what < a->loses) {
        TELL("%s: forgets item %d", a->name, h->it->id);
        return 0;
    }
    if (waits && what < a->loses * 2)
        process_sleep(between(a, lease, lease * 2));
    what = (int)between(a, 0, 99);
    if (what < backoff) {
        int64_t delay = what < nack ? between(a, 0, 2000) : DELAYQ_BACKOFF;
        check_intend(a, h->it);
        status =
            CALL(a, "nack", large_us(a), delayq_nack(a->q, &h->got, delay));
        if (what < nack)
            same_due(a, h, status, delay, delay);
        else
            same_due(a, h, status, sim_plan.backoff_ms / 2,
                     sim_plan.backoff_max_ms);
        ended(a, h, status, "nack");
        if (what < nack) nack_again(a, h, status, delay);
        return 0;
    }
    if (what < release) {
        h->it->attempts--;
        h->it->told_attempt--;
        check_intend(a, h->it);
        status = CALL(a, "nack", large_us(a),
                      delayq_nack(a->q, &h->got, DELAYQ_RELEASE));
        same_due(a, h, status, 0, 0);
        ended(a, h, status, "release");
        return 0;
    }
    if (what < buries) {
        check_intend(a, h->it);
        status = CALL(a, "bury", large_us(a), bury(a, h));
        ended(a, h, status, "bury");
        return 0;
    }
    if (what < buries + m->extend) {
        delayq_ticket before = h->got.ticket;
        check_intend(a, h->it);
        status =
            CALL(a, "extend", large_us(a), delayq_extend(a->q, &h->got, 0));
        /* In the millisecond of the take, the new end of the lease may be equal
         * to the old end. */
        if (strcmp(before.text, h->got.ticket.text) == 0 && status == DELAYQ_OK)
            h->it->changed |= bit_of(a);
        else if (status == DELAYQ_OK && !a->outbox)
            check_ticket(a, h->got.ticket.text);
        ended(a, h, status, "extend");
        if (status == DELAYQ_GONE) return 0;
        if (status == DELAYQ_OK) h->hash = 0;
        if (waits) process_sleep(between(a, 0, lease / 2));
    }
    return 1;
}

static void ack(actor *a, held *h) {
    delayq_status status;
    int tries = 0;
    do {
        check_intend(a, h->it);
        status = CALL(a, "ack", large_us(a), delayq_ack(a->q, &h->got));
        ended(a, h, status, "ack");
        if (status >= 0 || a->outbox) return;
        process_sleep(between(a, 20 * MS, 200 * MS));
    } while (++tries < 5);
}

static void is_free(actor *a) {
    if (!a->free_us) a->free_us = sim_now();
}

int actor_takes(const actor *a) {
    return a->kind == WORKER || a->kind == BATCH_WORKER ||
           a->kind == LOOP_WORKER || a->kind == OUTBOX_WORKER ||
           a->kind == WAIT_WORKER || a->kind == SHARER || a->kind == READER;
}

/* Pause after a failed call. */
static void pause_after(actor *a, delayq_status status) {
    if (status < 0) process_sleep(between(a, 20 * MS, 100 * MS));
}

/* Check that a program without an open handle owns no memory of hiredis and no
 * descriptor. */
static void check_leaks(const actor *a) {
    if (process_blocks(a->p) || process_files(a->p))
        check_fail("leaks",
                   "%s has closed its handles, and has %zu blocks of memory "
                   "and %d descriptors",
                   a->name, process_blocks(a->p), process_files(a->p));
}

/* Close all handles: those that share a connection before its owner. */
static void close_all(void *arg) {
    actor *a = (actor *)arg;
    while (a->handle_count > 0) delayq_close(a->handles[--a->handle_count]);
    check_leaks(a);
}

/* Close the handle, and open another one on the same queue. */
static void reopen(actor *a) {
    delayq *old = a->q;
    CALL(a, "close", 2 * MS, (delayq_close(old), DELAYQ_OK));
    a->handle_count = 0;
    check_leaks(a);
    free(old);
    open_handle(a, a->queue, NULL);
}

static void worker(actor *a) {
    held h;
    memset(&h, 0, sizeof h);
    for (;;) {
        delayq_item got;
        delayq_status status;
        memset(&got, 0, sizeof got);
        if (!h.it && !a->wakes && percent(a, sim_plan.mix.reopen)) reopen(a);
        is_free(a);
        a->verbs++;
        if (h.it) { /* this call must ack the item */
            item *it = h.it;
            got = h.got;
            check_intend(a, it);
            status = CALL(a, "ack_take", take_us(a, a->take_ms),
                          delayq_ack_take(a->q, &got, a->take_ms));
            ended(a, &h, got.acked, "ack");
            if (got.acked < 0 && status < 0) {
                pause_after(a, status);
                if (percent(a, 60)) {
                    h.got = got;
                    continue;
                }
            }
            h.it = NULL;
        } else {
            status = CALL(a, "take", take_us(a, a->take_ms),
                          delayq_take(a->q, &got, a->take_ms));
        }
        if (status == DELAYQ_OK) {
            received(a, &got, &h);
            if (!work(a, &h, 1)) {
                h.it = NULL;
            } else if (percent(a, sim_plan.mix.ack_alone)) {
                ack(a, &h);
                h.it = NULL;
            }
        }
        pause_after(a, status);
    }
}

static void batch_worker(actor *a) {
    enum { MOST = 32 };
    static delayq_item none;
    for (;;) {
        delayq_item got[MOST];
        held h[MOST];
        item *acked[MOST];
        size_t count = 0, i, n = 0;
        delayq_status status;
        is_free(a);
        a->verbs++;
        status = CALL(a, "take_many", take_us(a, a->take_ms),
                      delayq_take_many(a->q, got, (size_t)between(a, 1, MOST),
                                       &count, a->take_ms));
        if (status == DELAYQ_OK)
            for (i = 0; i < count; i++) received(a, &got[i], &h[i]);
        for (i = 0; status == DELAYQ_OK && i < count; i++) {
            if (!work(a, &h[i], i == 0)) continue;
            acked[n] = h[i].it;
            got[n] = none;
            got[n++].ticket = h[i].got.ticket;
        }
        if (n) {
            for (i = 0; i < n; i++) check_intend(a, acked[i]);
            int twice = n < MOST && repeats(a);
            if (twice) got[n] = got[0];
            a->verbs++;
            delayq_status told =
                CALL(a, "ack_many", large_us(a),
                     delayq_ack_many(a->q, got, n + (size_t)twice));
            for (i = 0; i < n + (size_t)twice; i++)
                if (got[i].acked < DELAYQ_OK && told >= DELAYQ_OK)
                    check_fail("status", "%s: one of many acks has failed: %s",
                               a->name, delayq_strstatus(told));
            if (twice && got[0].acked == DELAYQ_OK &&
                got[n].acked == DELAYQ_OK)
                check_fail("status", "%s: two acks of item %d are told as done",
                           a->name, acked[0]->id);
            for (i = 0; i < n; i++)
                check_settled(a, acked[i], got[i].acked, "ack");
        }
        pause_after(a, status);
    }
}

/* --- loops ---------------------------------------------------------------- */

/* Poll the handle's descriptors for wait_ms at most. */
static void sleep_in_poll(actor *a, int64_t wait_ms) {
    struct pollfd p[8];
    int fds[8];
    size_t n = delayq_fds(a->q, fds, 8), i;
    for (i = 0; i < n; i++) {
        p[i].fd = fds[i];
        p[i].events = POLLIN;
    }
    poll(p, (nfds_t)n, (int)wait_ms);
}

static void take_all(actor *a, int waits) {
    delayq_item got;
    held h;
    chance c;
    int turns = 0;
    for (;;) {
        delayq_status status =
            CALL(a, "take(0)", take_us(a, 0), delayq_take(a->q, &got, 0));
        if (status != DELAYQ_OK) return;
        received(a, &got, &h);
        a->verbs++;
        if (work(a, &h, waits)) ack(a, &h);
        /* sometimes return, so that the loop ticks with the item in hand */
        if (++turns == 200 || meddles(a, &c)) return;
    }
}

static void loop_worker(actor *a) {
    for (;;) {
        int64_t wait_ms = 0;
        take_all(a, 1);
        is_free(a);
        CALL(a, "tick", large_us(a), delayq_tick(a->q, &wait_ms));
        a->turns += wait_ms == 0;
        sleep_in_poll(a, wait_ms);
    }
}

/* Sometimes open a second handle on the connection, which only ticks. */
static void open_neighbour(actor *a) {
    void *own = a->outbox;
    if (!percent(a, sim_plan.mix.neighbour)) return;
    a->q2 = open_handle(a, a->queue, a->q);
    a->outbox2 = a->outbox;
    a->outbox = own;
}

/* Sometimes close the second handle, and open it again. */
static void reopen_neighbour(actor *a) {
    void *own = a->outbox;
    chance c;
    c.state = a->seed + 53 * (uint64_t)(sim_now() / MS);
    if (!a->q2 || !offers_on() ||
        chance_between(&c, 0, 999) >= sim_plan.reopens)
        return;
    CALL(a, "close", 2 * MS, (delayq_close(a->q2), DELAYQ_OK));
    free(a->q2);
    free(a->outbox2);
    a->handle_count--;
    a->q2 = open_handle(a, a->queue, a->q);
    a->outbox2 = a->outbox;
    a->outbox = own;
    faults_disconnect(); /* if a request was in flight */
}

/* Tick all handles of the actor. Returns the shortest wait_ms. */
static int64_t tick_all(actor *a) {
    int64_t wait_ms = 0, other_ms;
    CALL(a, "tick", 2 * MS, delayq_tick(a->q, &wait_ms));
    if (a->q2) {
        CALL(a, "tick", 2 * MS, delayq_tick(a->q2, &other_ms));
        if (other_ms < wait_ms) wait_ms = other_ms;
    }
    outbox_look(a);
    a->turns += wait_ms == 0;
    return wait_ms;
}

/* Sometimes take with a timeout, although the program has an outbox. */
static void take_waiting(actor *a) {
    delayq_item got;
    held h;
    chance c;
    int64_t ms;
    int n;
    if (!meddles(a, &c)) return;
    ms = chance_between(&c, 1, 500);
    for (n = 0; n < sim_plan.takes; n++) {
        a->verbs++;
        if (CALL(a, "take", take_us(a, ms), delayq_take(a->q, &got, ms)) !=
            DELAYQ_OK)
            return;
        received(a, &got, &h);
        if (work(a, &h, 0)) ack(a, &h);
    }
}

/* Wait as delayq_wait does instead of polling descriptors. */
static void wait_for_items(actor *a) {
    int64_t begun = sim_now();
    wait_shortly(a, 500);
    a->turns += sim_now() - begun < MS;
    outbox_look(a);
}

/* This worker also offers, so that acks and offers of one handle are in flight
 * when a connection is lost. */
static void outbox_worker(actor *a) {
    offered kept[8];
    memset(kept, 0, sizeof kept);
    open_neighbour(a);
    for (;;) {
        int64_t wait_ms;
        take_waiting(a);
        take_all(a, 0);
        if (offers_on() && percent(a, a->gap_us ? 3 : 20)) {
            produce_one(a, a->q, kept);
            if (sim_plan.waits) take_waiting(a);
        }
        is_free(a);
        reopen_neighbour(a);
        wait_ms = tick_all(a);
        if (a->gap_us) /* in frames */
            process_sleep(sim_plan.frame_us);
        else if (sim_plan.waits)
            wait_for_items(a);
        else
            sleep_in_poll(a, wait_ms);
    }
}

static void mover(actor *a) {
    for (;;) {
        int64_t wait_ms = 0;
        CALL(a, "tick", large_us(a), delayq_tick(a->q, &wait_ms));
        a->turns += wait_ms == 0;
        sleep_in_poll(a, wait_ms);
    }
}

static void wait_worker(actor *a) {
    delayq *both[2], *first = a->q;
    both[0] = a->q;
    both[1] = a->q2 = open_handle(a, 1, NULL);
    for (;;) {
        delayq_status status;
        size_t i;
        is_free(a);
        a->q = first;
        a->verbs++;
        status =
            CALL(a, "wait",
                 a->take_ms < 0 ? -1 : take_us(a, a->take_ms) + large_us(a),
                 delayq_wait(both, 2, a->take_ms));
        if (status == DELAYQ_OK)
            for (i = 0; i < 2; i++) {
                a->q = both[i];
                a->queue = (int)i;
                take_all(a, 1);
            }
        a->queue = 0;
        pause_after(a, status);
    }
}

/* --- offers -------------------------------------------------------------- */

static size_t payload_len(actor *a) {
    if (between(a, 0, 999) < a->large)
        return (size_t)between(
            a, 1000, a->outbox ? sim_plan.mix.outbox_size / 4 : 300000);
    return (size_t)between(a, 8, sim_plan.mix.size);
}

static int64_t some_delay(actor *a) {
    int what = (int)between(a, 0, 9);
    if (what < 2) return 0;
    if (what < 5) return between(a, 0, 50);
    return between(a, 0, a->delay_ms);
}

static void offer_plain(actor *a, delayq *q) {
    item *it = check_new_item(a, a->queue, payload_len(a), some_delay(a));
    char *bytes = (char *)malloc(it->len);
    delayq_status status;
    it->by_outbox = a->outbox != NULL;
    it->plain = 1;
    check_payload(it, bytes);
    a->verbs++;
    TELL("%s: offers item %d, %zu bytes, in %lld ms", a->name, it->id, it->len,
         (long long)it->delay_ms);
    status = CALL(a, "offer", large_us(a),
                  delayq_offer(q, bytes, it->len, it->delay_ms));
    if (a->outbox && status == DELAYQ_OK)
        outbox_add(a, 0, it, NULL);
    else
        check_offered(a, it, status);
    free(bytes);
}

/* Offer one or more messages, up to 40 times, until each status is known. */
static void offer_messages(actor *a, delayq *q, int count, offered *kept) {
    delayq_message m[16];
    item *of[16];
    char keys[16][24];
    int i, tries = 0, left;
    delayq_status status;
    memset(m, 0, sizeof m);
    for (i = 0; i < count; i++) {
        int64_t delay = some_delay(a);
        item *it;
        char *bytes;
        int keyed = percent(a, sim_plan.mix.keyed);
        it = check_new_item(a, a->queue, payload_len(a), delay);
        of[i] = it;
        it->by_outbox = a->outbox != NULL;
        bytes = (char *)malloc(it->len);
        check_payload(it, bytes);
        m[i].data = bytes;
        m[i].len = it->len;
        m[i].delay_ms = delay;
        if (percent(a, sim_plan.mix.due)) {
            m[i].delay_ms = 0;
            m[i].due_ms = service_now_us() / 1000 + delay - 500;
            it->delay_ms = delay - 500;
        }
        if (keyed) {
            it->key = (int)between(a, 1, 12);
            snprintf(keys[i], sizeof keys[i], "key%d", it->key);
            m[i].key = keys[i];
            m[i].key_ttl_ms = between(a, 100, 20000);
            m[i].replace = percent(a, sim_plan.mix.replace);
            if (m[i].replace) a->replaces |= 1u << it->key;
        }
        TELL("%s: offers item %d, %zu bytes, in %lld ms%s%s%s", a->name, it->id,
             it->len, (long long)it->delay_ms, keyed ? ", as " : "",
             keyed ? keys[i] : "", m[i].replace ? ", replacing" : "");
    }
    for (;;) {
        a->verbs++;
        if (count == 1) {
#if SIM_API < 2
            status =
                CALL(a, "offer_many", large_us(a), delayq_offer_many(q, m, 1));
#else
            status = CALL(a, "offer_message", large_us(a),
                          delayq_offer_message(q, m));
#endif
        } else {
            /* 0.1 and 0.2 send up to 16 scripts, 8 in a round trip */
            status = CALL(a, "offer_many", a->outbox ? 2 * MS : 3 * large_us(a),
                          delayq_offer_many(q, m, (size_t)count));
        }
        /* Afterwards the outcome of an earlier try may be unknown. */
        if (!tries) check_unknown(a, status);
        for (i = left = 0; i < count; i++)
            if (m[i].status == DELAYQ_ERR_UNKNOWN) left++;
        if (!left || ++tries == 40) break;
        /* A message with another status must not be offered again. */
        for (i = left = 0; i < count; i++) {
            if (m[i].status != DELAYQ_ERR_UNKNOWN) {
                if (m[i].status == DELAYQ_OK || m[i].status < 0 || !a->outbox)
                    check_offered(a, of[i], m[i].status);
                free((void *)(uintptr_t)m[i].data);
                continue;
            }
            if (i != left) {
                m[left] = m[i];
                of[left] = of[i];
                if (m[left].key) {
                    memcpy(keys[left], keys[i], sizeof keys[left]);
                    m[left].key = keys[left];
                }
            }
            left++;
        }
        count = left;
        process_sleep(between(a, 20 * MS, 300 * MS));
    }
    for (i = 0; i < count; i++) {
        if (a->outbox && m[i].status == DELAYQ_OK) {
            outbox_add(a, 0, of[i], NULL);
        } else {
            check_offered(a, of[i], m[i].status);
        }
        if (m[i].status == DELAYQ_OK && kept) {
            struct posted *p = &posted[a->queue][of[i]->id % 4];
            kept->it = of[i];
            kept->ticket = m[i].ticket;
            p->it = of[i];
            p->ticket = m[i].ticket;
            p->by = a->index;
        }
        free((void *)(uintptr_t)m[i].data);
    }
}

static void change_offer(actor *a, delayq *q, offered *o) {
    delayq_status status;
    const char *verb;
    a->verbs++;
    check_intend(a, o->it);
    if (percent(a, 50)) {
        verb = "cancel";
        status = CALL(a, "cancel", large_us(a), delayq_cancel(q, &o->ticket));
    } else {
        int64_t delay = some_delay(a);
        held h;
        memset(&h, 0, sizeof h);
        h.it = o->it;
        verb = "reschedule";
        status = CALL(a, "reschedule", large_us(a),
                      delayq_reschedule(q, &o->ticket, delay));
        same_due(a, &h, status, delay, delay);
    }
    TELL("%s: that was item %d", a->name, o->it->id);
    if (a->outbox) {
        if (status == DELAYQ_OK)
            outbox_add(a, 0, o->it, verb);
        else
            check_left(a, o->it, verb);
    } else {
        check_settled(a, o->it, status, verb);
    }
    if (status != DELAYQ_OK || verb[0] == 'c') o->it = NULL;
}

/* Sometimes cancel a key, which may be another actor's. */
static int cancel_key(actor *a, delayq *q) {
#if SIM_API >= 3
    chance c;
    char name[24];
    int before = a->cancelled, key;
    delayq_status status;
    /* with a state of its own, which leaves all other choices the same */
    c.state = a->seed + 31 * a->verbs;
    if (!sim_plan.cancels || !chance_percent(&c, sim_plan.mix.cancel_key))
        return 0;
    key = (int)chance_between(&c, 1, 12);
    snprintf(name, sizeof name, "key%d", key);
    a->cancels |= 1u << key;
    a->verbs++;
    TELL("%s: cancels %s", a->name, name);
    status = CALL(a, "cancel_key", large_us(a), delayq_cancel_key(q, name));
    if (a->outbox && status == DELAYQ_OK)
        outbox_add(a, 0, NULL, "cancel");
    else if (!a->outbox)
        check_key_cancelled(a, a->cancelled - before, status);
    return 1;
#else
    (void)a, (void)q;
    return 0;
#endif
}

static void produce_one(actor *a, delayq *q, offered *kept) {
    const mix *m = &sim_plan.mix;
    int message = m->plain + m->message, many = message + m->many;
    int what = (int)between(a, 0, many + m->change - 1);
    offered *o = &kept[between(a, 0, 7)];
    if (plan_version >= 2 && check_crowded(a->queue)) return;
    if (cancel_key(a, q)) return;
    if (sim_plan.broadcast && what >= many) what = 0;
    if (what < m->plain)
        offer_plain(a, q);
    else if (what < message)
        offer_messages(a, q, 1, o);
    else if (what < many)
        offer_messages(a, q, (int)between(a, 2, a->outbox ? 4 : 16), NULL);
    else if (o->it && o->ticket.text[0])
        change_offer(a, q, o);
}

/* Sometimes offer many items at once. */
static void offer_burst(actor *a) {
    chance c;
    int i, each = a->outbox ? 4 : 16;
    c.state = a->seed + 59 * a->verbs;
    if (!sim_plan.bursts || !chance_percent(&c, 5) || check_crowded(a->queue))
        return;
    for (i = (int)chance_between(&c, 50, sim_plan.bursts); i > 0; i -= each)
        offer_messages(a, a->q, each, NULL);
}

static int offers_on(void) {
    return sim_now() < sim_plan.offers_until_us;
}

static void producer(actor *a) {
    offered kept[8];
    memset(kept, 0, sizeof kept);
    while (offers_on()) {
        produce_one(a, a->q, kept);
        offer_burst(a);
        process_sleep(between(a, a->gap_us / 4, a->gap_us * 2));
    }
    for (;;) process_sleep(3600 * SIM_SECOND);
}

/* Flush, and check that after DELAYQ_OK all ops are settled. */
static void flush(actor *a) {
#if SIM_API >= 2
    int64_t timeout_ms = between(a, 0, 300);
    delayq_status status;
    if (!a->outbox) return;
    begin(a, "flush", timeout_ms * MS + 20 * MS);
    status = delayq_flush(a->q, timeout_ms);
    /* A flush also reports the failure of an earlier op. */
    end(a, status < DELAYQ_OK ? DELAYQ_OK : status);
    outbox_look(a);
    if (status == DELAYQ_OK && a->offer_count + a->change_count > 0)
        check_fail("outbox",
                   "%s: a flush returns OK, and %d ops are not settled",
                   a->name, a->offer_count + a->change_count);
#else
    (void)a;
#endif
}

static void outbox_producer(actor *a) {
    offered kept[8];
    int64_t next = sim_now();
    memset(kept, 0, sizeof kept);
    open_neighbour(a);
    for (;;) {
        int64_t wait_ms;
        if (offers_on() && sim_now() >= next) {
            produce_one(a, a->q, kept);
            offer_burst(a);
            next = sim_now() + between(a, a->gap_us / 4, a->gap_us * 2);
        }
        wait_ms = tick_all(a);
        if (percent(a, sim_plan.mix.flush)) flush(a);
        if (offers_on())
            process_sleep(sim_plan.frame_us);
        else
            sleep_in_poll(a, wait_ms);
    }
}

/* Use two handles on one connection: one takes in a loop, the other offers. */
static void sharer(actor *a) {
    offered kept[8];
    int64_t next = sim_now();
    memset(kept, 0, sizeof kept);
    a->q2 = open_handle(a, a->queue, a->q);
    for (;;) {
        int64_t wait_ms = 0, left;
        if (offers_on() && sim_now() >= next) {
            produce_one(a, a->q2, kept);
            next = sim_now() + between(a, a->gap_us / 4, a->gap_us * 2);
        }
        take_all(a, 1);
        is_free(a);
        CALL(a, "tick", large_us(a), delayq_tick(a->q, &wait_ms));
        a->turns += wait_ms == 0;
        left = offers_on() ? (next - sim_now()) / 1000 + 1 : wait_ms;
        if (left < 0) left = 0;
        sleep_in_poll(a, wait_ms < left ? wait_ms : left);
    }
}

/* --- the others ---------------------------------------------------------- */

static void watcher(actor *a) {
    for (;;) {
        delayq_item items[20];
        delayq_dead dead[20];
        delayq_counts c;
        size_t n;
        process_sleep(between(a, a->gap_us / 2, a->gap_us * 2));
        a->verbs++;
        switch (between(a, 0, sim_plan.clears ? 4 : 3)) {
        case 4: {
            int64_t removed;
            delayq_status status;
            check_clears(a);
            status = CALL(a, "clear", once_us(a), delayq_clear(a->q, &removed));
            check_cleared(a, status, removed);
            break;
        }
        case 0:
            if (CALL(a, "count", large_us(a), delayq_count(a->q, &c)) ==
                    DELAYQ_OK &&
                (c.pending < c.overdue || c.pending < 0 || c.ready < 0))
                check_fail("status",
                           "%s: count tells of %lld pending, %lld "
                           "overdue",
                           a->name, (long long)c.pending, (long long)c.overdue);
            break;
        case 1:
            CALL(a, "peek", large_us(a),
                 delayq_peek(a->q, items, 20, &n, NULL));
            break;
        case 2:
            if (CALL(a, "dead_peek", large_us(a),
                     delayq_dead_peek(a->q, dead, 20, &n, 0)) == DELAYQ_OK)
                check_letters(a, dead, n);
            break;
        default: {
            int64_t due = service_now_us() / 1000, counts;
            CALL(a, "count_due", large_us(a),
                 delayq_count_due(a->q, &due, 1, &counts));
        }
        }
    }
}

#if SIM_API >= 3
static delayq_status set_pause(actor *a, int on) {
    delayq_status status;
    a->verbs++;
    status =
        CALL(a, on ? "pause" : "resume", once_us(a), delayq_pause(a->q, on));
    check_paused(a, on, status);
    return status;
}
#endif

/* Pause and resume a queue. After a restart or a failed call, resume it. */
static void pauser(actor *a) {
#if SIM_API >= 3
    for (;;) {
        while (set_pause(a, 0) != DELAYQ_OK)
            process_sleep(between(a, 50 * MS, 300 * MS));
        if (!offers_on()) break;
        process_sleep(between(a, 20 * MS, 2 * a->gap_us));
        if (!offers_on()) break;
        set_pause(a, 1);
        process_sleep(between(a, MS, 2 * a->gap_us));
    }
#else
    (void)a;
#endif
    for (;;) process_sleep(3600 * SIM_SECOND);
}

static void redriver(actor *a) {
    for (;;) {
        size_t n;
        int i;
        delayq_status status;
        process_sleep(between(a, a->gap_us, a->gap_us * 4));
        a->verbs++;
        for (i = 0; i < check_item_count(); i++)
            if (check_item(i)->queue == a->queue)
                check_item(i)->intents |= bit_of(a);
        status = CALL(a, "dead_redrive", large_us(a),
                      delayq_dead_redrive(a->q, 10, &n));
        for (i = 0; i < check_item_count(); i++) {
            item *it = check_item(i);
            it->intents &= ~bit_of(a);
            if (status == DELAYQ_ERR_UNKNOWN && it->queue == a->queue)
                it->unknown |= bit_of(a);
        }
    }
}

/* Open the queue, and if the wire is wrong, try to take an item. */
static void stranger(actor *a) {
    for (;;) {
        delayq_item got;
        delayq_status status;
        int64_t begun_us;
        process_sleep(between(a, a->gap_us, a->gap_us * 4));
        begun_us = sim_now();
        reopen(a);
        a->verbs++;
        if (a->opened == DELAYQ_OK && is_native(a) &&
            check_mirror_empty_us(a->queue) < begun_us)
            check_fail("status", "%s opens a queue that has a mirror", a->name);
        if (a->opened != DELAYQ_ERR_WIRE) continue;
        status = CALL(a, "take(0)", take_us(a, 0), delayq_take(a->q, &got, 0));
        if (status == DELAYQ_OK)
            check_fail("status", "%s takes an item of another wire", a->name);
    }
}

/* Take one item more often than one byte can count, by take and take_many. */
static void take_again(actor *a, int times, int64_t delay_ms,
                       int64_t *counted) {
    int i;
    for (i = 0; i < times; i++) {
        delayq_item got;
        size_t n = 1;
        delayq_status status;
        a->verbs += 2;
        status = i % 2 ? CALL(a, "take", take_us(a, 1000),
                              delayq_take(a->q, &got, 1000))
                       : CALL(a, "take_many", take_us(a, 1000),
                              delayq_take_many(a->q, &got, 1, &n, 1000));
        if (status != DELAYQ_OK) continue;
        if (got.attempt != a->attempts + 1)
            check_fail("attempts", "%s takes an item for time %lld, not %d",
                       a->name, (long long)a->attempts + 1, got.attempt);
        if (CALL(a, "nack", once_us(a), delayq_nack(a->q, &got, delay_ms)) ==
            DELAYQ_OK)
            ++*counted;
    }
}

/* Read many elements, then take one item many times. */
static void long_worker(actor *a) {
#if SIM_API >= 2
    enum { ITEMS = 1000 };
    static delayq_item items[ITEMS];
    static delayq_message m[ITEMS];
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < ITEMS; i++) {
        m[i].data = "long";
        m[i].len = 4;
        m[i].delay_ms = 3600 * 1000;
    }
    a->verbs += 200;
    CALL(a, "offer_many", 30 * once_us(a), delayq_offer_many(a->q, m, ITEMS));
    for (i = 0; i < 260; i++) {
        size_t n = 0;
        a->verbs++;
        CALL(a, "peek", once_us(a), delayq_peek(a->q, items, ITEMS, &n, NULL));
        a->elements += (int64_t)n;
        process_sleep(between(a, MS, 20 * MS));
    }
    CALL(a, "offer", once_us(a), delayq_offer(a->q, "again", 5, 0));
    take_again(a, 300, 0, &a->attempts);
    take_again(a, 300, DELAYQ_RELEASE, &a->releases);
    TELL("%s has read %lld elements, and taken an item %lld + %lld times",
         a->name, (long long)a->elements, (long long)a->attempts,
         (long long)a->releases);
#endif
    for (;;) process_sleep(3600 * SIM_SECOND);
}

/* Read the items of a broadcast, and check their payloads. */
static void reader(actor *a) {
    a->last_seen = 0;
    for (;;) {
        delayq_item got;
        delayq_status status;
        is_free(a);
        a->verbs++;
        status = CALL(a, "take", take_us(a, a->take_ms),
                      delayq_take(a->q, &got, a->take_ms));
        if (status == DELAYQ_OK) {
            item *it = check_find(got.data, got.len);
            check_got(a, &got, 0);
            into_hand(a, &got, it ? it->id : -1);
            TELL("%s: reads item %d", a->name, it ? it->id : -1);
        }
        pause_after(a, status);
    }
}

/* --- the ready list's other users ---------------------------------------- */

static void push(void *arg) {
    actor *a = (actor *)arg;
    if (!offers_on()) return;
    if (a->alive && !a->frozen && service_is_open()) {
        item *it = check_new_item(a, a->queue, (size_t)between(a, 8, 40), 0);
        char bytes[64];
        const char *argv[3] = {"RPUSH", a->queue ? "more" : "jobs", bytes};
        size_t lens[3] = {5, 4, it->len}, n;
        check_payload(it, bytes);
        TELL("%s: pushes item %d", a->name, it->id);
        check_act_as(a);
        redis_command(sim_redis, &n, 3, argv, lens);
        check_executed(NULL, NULL, 3, argv, lens);
        check_act_as(NULL);
    }
    sim_at(sim_now() + between(a, a->gap_us / 4, a->gap_us * 2), push, a);
}

/* A Redisson. It calls the model of the server directly, without a network. */
typedef struct java {
    actor *a; /* must be first: see service_actor */
    client *command, *listens, *blocks;
    char reply[4096];
    size_t len;
    int64_t timer_us; /* 0: no timer */
    int answered;     /* 1: BLPOP has replied; its reply is in `popped` */
    char *popped;
    size_t popped_len;
    int connecting;
    char timeout_set[64], queue[16], mirror[64], topic[80];
} java;

static const char java_offer[] =
    "local value = struct.pack('Bc0Lc0', string.len(ARGV[2]), ARGV[2], "
    "string.len(ARGV[3]), ARGV[3]);"
    "redis.call('zadd', KEYS[2], ARGV[1], value);"
    "redis.call('rpush', KEYS[3], value);"
    "local v = redis.call('zrange', KEYS[2], 0, 0); "
    "if v[1] == value then "
    "redis.call('publish', KEYS[4], ARGV[1]); "
    "end;";
static const char java_offer_old[] =
    "local value = struct.pack('dLc0', tonumber(ARGV[2]), "
    "string.len(ARGV[3]), ARGV[3]);"
    "redis.call('zadd', KEYS[2], ARGV[1], value);"
    "redis.call('rpush', KEYS[3], value);"
    "local v = redis.call('zrange', KEYS[2], 0, 0); "
    "if v[1] == value then "
    "redis.call('publish', KEYS[4], ARGV[1]); "
    "end;";
static const char java_transfer[] =
    "local expiredValues = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], "
    "'limit', 0, ARGV[2]); "
    "if #expiredValues > 0 then "
    "for i, v in ipairs(expiredValues) do "
    "local randomId, value = struct.unpack('Bc0Lc0', v);"
    "redis.call('rpush', KEYS[1], value);"
    "redis.call('lrem', KEYS[3], 1, v);"
    "end; "
    "redis.call('zrem', KEYS[2], unpack(expiredValues));"
    "end; "
    "local v = redis.call('zrange', KEYS[2], 0, 0, 'WITHSCORES'); "
    "if v[1] ~= nil then "
    "return v[2]; "
    "end "
    "return nil;";
static const char java_transfer_old[] =
    "local expiredValues = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1], "
    "'limit', 0, ARGV[2]); "
    "if #expiredValues > 0 then "
    "for i, v in ipairs(expiredValues) do "
    "local randomId, value = struct.unpack('dLc0', v);"
    "redis.call('rpush', KEYS[1], value);"
    "redis.call('lrem', KEYS[3], 1, v);"
    "end; "
    "redis.call('zrem', KEYS[2], unpack(expiredValues));"
    "end; "
    "local v = redis.call('zrange', KEYS[2], 0, 0, 'WITHSCORES'); "
    "if v[1] ~= nil then "
    "return v[2]; "
    "end "
    "return nil;";

static void java_connect(void *arg);
static void java_timer(void *arg);
static void java_served(void *arg);
static void java_block(actor *a);

static void java_reconnect(actor *a, int64_t in_us) {
    java *j = (java *)a->more;
    if (j->connecting) return;
    j->connecting = 1;
    sim_at(sim_now() + in_us, java_connect, a);
}

static int64_t java_now_ms(const actor *a) {
    return machine_realtime(a->m) / 1000;
}

static void java_wrote(void *user, const char *bytes, size_t len) {
    java *j = (java *)user;
    size_t n = sizeof j->reply - 1 - j->len;
    if (len < n) n = len;
    memcpy(j->reply + j->len, bytes, n);
    j->len += n;
    j->reply[j->len] = '\0';
}

static void java_send(actor *a, client *c, int argc, const char **argv,
                      const size_t *lens) {
    java *j = (java *)a->more;
    char head[32];
    size_t room = 64, at = 0;
    char *out;
    int i;
    for (i = 0; i < argc; i++) room += lens[i] + 32;
    out = (char *)malloc(room);
    at += (size_t)sprintf(out, "*%d\r\n", argc);
    for (i = 0; i < argc; i++) {
        int n = sprintf(head, "$%zu\r\n", lens[i]);
        memcpy(out + at, head, (size_t)n);
        at += (size_t)n;
        memcpy(out + at, argv[i], lens[i]);
        at += lens[i];
        memcpy(out + at, "\r\n", 2);
        at += 2;
    }
    if (c == j->command) j->len = 0;
    redis_feed(c, out, at);
    free(out);
}

/* Set the timer as Redisson does. There is only one timer. It keeps its time if
 * the new time is later, and more than 10 ms away. */
static void java_schedule(actor *a, int64_t due_ms) {
    java *j = (java *)a->more;
    int64_t in_us = (due_ms - java_now_ms(a)) * 1000;
    int64_t at = sim_now() + (in_us > 10 * MS ? in_us : MS);
    if (j->timer_us && j->timer_us <= at && in_us > 10 * MS) return;
    j->timer_us = at;
    sim_at(at, java_timer, a);
}

static void java_timer(void *arg) {
    actor *a = (actor *)arg;
    java *j = (java *)a->more;
    char now[32], *answer;
    const char *argv[9], *script;
    size_t lens[9];
    int i;
    /* the timer was replaced */
    if (!j->timer_us || j->timer_us != sim_now()) return;
    j->timer_us = 0;
    if (!a->alive || !j->command || !service_is_open()) return;
    if (a->frozen) {
        java_schedule(a, java_now_ms(a) + 500);
        return;
    }
    script = sim_plan.wire == DELAYQ_REDISSON_OLD ? java_transfer_old
                                                  : java_transfer;
    snprintf(now, sizeof now, "%lld", (long long)java_now_ms(a));
    argv[0] = "EVAL";
    argv[1] = script;
    argv[2] = "3";
    argv[3] = j->queue;
    argv[4] = j->timeout_set;
    argv[5] = j->mirror;
    argv[6] = now;
    argv[7] = "100";
    for (i = 0; i < 8; i++) lens[i] = strlen(argv[i]);
    java_send(a, j->command, 8, argv, lens);
    if (!j->command) return;
    answer = j->reply;
    if (answer[0] == '$' && answer[1] != '-') {
        char *line = strstr(answer, "\r\n");
        if (line) java_schedule(a, (int64_t)atof(line + 2));
    } else if (answer[0] == '-') {
        java_schedule(a, java_now_ms(a) + 5000);
    }
}

/* Read a message of the topic: a due time, or the reply to SUBSCRIBE. */
static void java_listened(void *user, const char *bytes, size_t len) {
    actor *a = ((java *)user)->a;
    char text[512];
    const char *end;
    size_t n = len < sizeof text - 1 ? len : sizeof text - 1;
    memcpy(text, bytes, n);
    text[n] = '\0';
    if (strstr(text, "subscribe")) {
        java_schedule(a, java_now_ms(a));
        return;
    }
    if (!strstr(text, "message")) return;
    end = text + n - 2;
    while (end > text && end[-1] != '\n') end--;
    java_schedule(a, (int64_t)atof(end));
}

static void java_popped(void *user, const char *bytes, size_t len) {
    java *j = (java *)user;
    actor *a = j->a;
    j->popped = (char *)realloc(j->popped, j->popped_len + len);
    memcpy(j->popped + j->popped_len, bytes, len);
    j->popped_len += len;
    if (j->answered) return;
    j->answered = 1;
    sim_at(sim_now() + 500, java_served, a); /* then the reply is complete */
}

static void java_served(void *arg) {
    actor *a = (actor *)arg;
    java *j = (java *)a->more;
    item *it = j->popped_len ? check_find(j->popped, j->popped_len) : NULL;
    j->answered = 0;
    if (j->popped_len > 0 && j->popped[0] == '-') {
        j->popped_len = 0;
        sim_at(sim_now() + SIM_SECOND, java_served, a);
        return;
    }
    if (it) {
        TELL("%s: takes item %d", a->name, it->id);
        /* The server passed the item on at once: it was never in the list. */
        if (!it->stored) {
            it->stored = it->handed = it->first_out = 1;
            it->hand_actor = a->index;
        }
        it->got++;
        if (it->got > it->handed + it->maybe)
            check_fail("twice",
                       "item %d comes to Java %d times, and was "
                       "handed out %d times",
                       it->id, it->got, it->handed);
    }
    j->popped_len = 0;
    if (a->alive) java_block(a);
}

static void java_block(actor *a) {
    java *j = (java *)a->more;
    const char *argv[3] = {"BLPOP", j->queue, "0"};
    size_t lens[3] = {5, strlen(j->queue), 1};
    if (j->blocks && a->take_ms) java_send(a, j->blocks, 3, argv, lens);
}

static void java_drop(actor *a) {
    java *j = (java *)a->more;
    client *c[3];
    int i;
    c[0] = j->command;
    c[1] = j->listens;
    c[2] = j->blocks;
    j->command = j->listens = j->blocks = NULL;
    for (i = 0; i < 3; i++)
        if (c[i]) redis_disconnect(c[i]);
}

static void java_close_command(void *user) {
    ((java *)user)->command = NULL;
    java_reconnect(((java *)user)->a, 300 * MS);
}

static void java_close_listens(void *user) {
    ((java *)user)->listens = NULL;
    java_reconnect(((java *)user)->a, 300 * MS);
}

static void java_close_blocks(void *user) {
    ((java *)user)->blocks = NULL;
    java_reconnect(((java *)user)->a, 300 * MS);
}

static void java_connect(void *arg) {
    actor *a = (actor *)arg;
    java *j = (java *)a->more;
    const char *argv[2] = {"SUBSCRIBE", j->topic};
    size_t lens[2] = {9, strlen(j->topic)};
    j->connecting = 0;
    if (!a->alive) return;
    if (!service_is_open()) {
        java_reconnect(a, 300 * MS);
        return;
    }
    java_drop(a);
    j->timer_us = 0;
    j->command = redis_connect(sim_redis, java_wrote, java_close_command, j);
    if (j->command)
        j->listens =
            redis_connect(sim_redis, java_listened, java_close_listens, j);
    if (j->listens) {
        j->blocks = redis_connect(sim_redis, java_popped, java_close_blocks, j);
        java_send(a, j->listens, 2, argv, lens);
        java_block(a);
    }
    if (j->command) client_set_node(j->command, -1);
    if (j->listens) client_set_node(j->listens, -1);
    if (j->blocks) client_set_node(j->blocks, -1);
    if (!j->command || !j->listens || !j->blocks) java_reconnect(a, 500 * MS);
}

static void java_offers(void *arg) {
    actor *a = (actor *)arg;
    java *j = (java *)a->more;
    if (!offers_on()) return;
    if (a->alive && !a->frozen && j->command && service_is_open()) {
        item *it = check_new_item(a, a->queue, (size_t)between(a, 8, 40),
                                  some_delay(a));
        char bytes[64], due[32], id[32];
        const char *argv[10];
        size_t lens[10];
        int i, old = sim_plan.wire == DELAYQ_REDISSON_OLD;
        check_payload(it, bytes);
        snprintf(due, sizeof due, "%lld",
                 (long long)(java_now_ms(a) + it->delay_ms));
        snprintf(id, sizeof id, old ? "%lld" : "%08llx",
                 (long long)(uint32_t)chance_next(&a->chance));
        it->clock_sets = ~0u; /* due by Java's own clock */
        argv[0] = "EVAL";
        argv[1] = old ? java_offer_old : java_offer;
        argv[2] = "4";
        argv[3] = j->queue;
        argv[4] = j->timeout_set;
        argv[5] = j->mirror;
        argv[6] = j->topic;
        argv[7] = due;
        argv[8] = id;
        argv[9] = bytes;
        for (i = 0; i < 9; i++) lens[i] = strlen(argv[i]);
        lens[9] = it->len;
        TELL("%s: offers item %d, in %lld ms", a->name, it->id,
             (long long)it->delay_ms);
        java_send(a, j->command, 10, argv, lens);
    }
    sim_at(sim_now() + between(a, a->gap_us / 4, a->gap_us * 2), java_offers,
           a);
}

static void java_start(actor *a) {
    java *j = (java *)calloc(1, sizeof *j);
    const char *name = a->queue ? "more" : "jobs";
    a->more = j;
    j->a = a;
    snprintf(j->queue, sizeof j->queue, "%s", name);
    snprintf(j->timeout_set, sizeof j->timeout_set,
             "redisson_delay_queue_timeout:{%s}", name);
    snprintf(j->mirror, sizeof j->mirror, "redisson_delay_queue:{%s}", name);
    snprintf(j->topic, sizeof j->topic, "redisson_delay_queue_channel:{%s}",
             name);
    java_connect(a);
    if (sim_plan.wire != DELAYQ_NATIVE) java_offers(a);
}

/* Reconnect all JAVA actors, whose clients were dropped without `close`. */
void java_lost(void) {
    int i;
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor *a = &sim_plan.actors[i];
        java *j = (java *)a->more;
        if (!j) continue;
        j->command = j->listens = j->blocks = NULL;
        java_reconnect(a, 300 * MS);
    }
}

/* --- life ---------------------------------------------------------------- */

static void actor_main(void *arg) {
    actor *a = (actor *)arg;
    if (a->start_us > sim_now()) process_sleep(a->start_us - sim_now());
    if (a->kind == WAIT_WORKER)
        a->queue = 0; /* the killed process may have used queue 1 */
    open_handle(a, a->queue, NULL);
    switch (a->kind) {
    case PRODUCER: producer(a); break;
    case OUTBOX_PRODUCER:
        uses_outbox(a) ? outbox_producer(a) : producer(a);
        break;
    case WORKER: worker(a); break;
    case BATCH_WORKER: batch_worker(a); break;
    case LOOP_WORKER: loop_worker(a); break;
    case OUTBOX_WORKER:
        uses_outbox(a) ? outbox_worker(a) : loop_worker(a);
        break;
    case WAIT_WORKER: wait_worker(a); break;
    case MOVER: mover(a); break;
    case SHARER: sharer(a); break;
    case WATCHER: watcher(a); break;
    case REDRIVER: redriver(a); break;
    case READER: reader(a); break;
    case PAUSER: pauser(a); break;
    case LONG: long_worker(a); break;
    case STRANGER: stranger(a); break;
    default: break;
    }
}

void actor_start(actor *a) {
    a->life++;
    a->trouble_us = sim_now(); /* a request of the killed process may run */
    a->alive = 1;
    a->call = NULL;
    a->free_us = 0;
    a->outbox = a->outbox2 = NULL;
    a->q = a->q2 = NULL;
    a->handle_count = a->hand_count = 0;
    if (!a->image) {
        a->offer_count = a->change_count = 0;
        a->offers_accepted = a->changes_accepted = 0;
    }
#if SIM_API >= 3
    if (!a->image && uses_outbox(a) && a->seed % 2)
        a->image =
            calloc(1, (size_t)sim_plan.mix.outbox_size); /* survives kills */
#endif
    a->steps_then = a->bytes_then = a->turns = 0;
    a->unseen = -1;
    a->drained_us[0] = a->drained_us[1] = 0;
    a->frozen = a->awake = a->wakes = 0;
    a->woken_us = 0;
    a->chance.state = a->seed + (uint64_t)a->life * 7919;
    if (a->start_us < sim_now()) a->start_us = sim_now();
    if (a->kind == PUSHER) {
        push(a);
    } else if (a->kind == JAVA) {
        java_start(a);
    } else {
        a->p = process_start(a->m, a->name, actor_main, a);
    }
}

/* Kill an actor. Its items are delivered again after their leases, and the
 * outcome of its last requests is unknown. */
void actor_kill(actor *a) {
    int i;
    if (!a->alive || !a->p) return;
    a->alive = 0;
    for (i = 0; i < check_item_count(); i++) {
        item *it = check_item(i);
        if (it->intents & bit_of(a)) it->unknown |= bit_of(a);
        it->intents &= ~bit_of(a);
    }
    process_kill(a->p);
    a->p = NULL;
}

void actor_freeze(actor *a, int on) {
    if (!a->alive || !a->p || a->frozen == on) return;
    a->frozen = on;
    if (on) {
        a->frozen_since_us = sim_now();
        process_freeze(a->p);
    } else {
        a->frozen_us += sim_now() - a->frozen_since_us;
        if (a->free_us) a->free_us = sim_now();
        a->frozen_since_us = sim_now();
        a->steps_then = process_steps(a->p) + a->turns;
        process_thaw(a->p);
    }
}

static void wake(void *arg) {
    delayq_wake((delayq *)arg);
}

/* Call delayq_wake, as another thread of the actor's process would. */
void actor_wake(actor *a) {
    if (!a->alive || !a->p || a->frozen || !a->q || !a->awake) return;
    a->wakes++;
    if (a->call &&
        (strncmp(a->call, "take", 4) == 0 || strcmp(a->call, "wait") == 0) &&
        strcmp(a->call, "take(0)") != 0 && !a->woken_us)
        a->woken_us = sim_now();
    TELL("%s is woken", a->name);
    process_call(a->p, wake, a->q);
}

/* End all programs, at once or after their current call. Wake calls that
 * wait. */
static void leave_all(void *arg) {
    int i, left = 0;
    (void)arg;
    leaving = 1;
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor *a = &sim_plan.actors[i];
        if (!a->alive || !a->p || process_ended(a->p)) continue;
        if (!a->call) {
            process_call(a->p, close_all, a);
            process_kill(a->p);
            continue;
        }
        left = 1;
        if (a->awake) process_call(a->p, wake, a->q);
    }
    if (left)
        sim_at(sim_now() + 100 * MS, leave_all, NULL);
    else
        sim_stop();
}

/* Let all programs close their handles, and check for leaks. This waits longest
 * for an attempt to connect, since a wake ends every other call. */
void actors_leave(void) {
    int i;
    sim_at(sim_now(), leave_all, NULL);
    sim_run(sim_now() + 30 * SIM_SECOND);
    leaving = 0;
    for (i = 0; i < sim_plan.actor_count; i++) {
        const actor *a = &sim_plan.actors[i];
        if (a->alive && a->p && !process_ended(a->p))
            check_fail("leaks", "%s is in %s for ever", a->name,
                       a->call ? a->call : "no call");
    }
}

void actors_end(void) {
    int i;
    memset(posted, 0, sizeof posted);
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor *a = &sim_plan.actors[i];
        java *j = (java *)a->more;
        if (j) free(j->popped);
        free(j);
        a->more = NULL;
        free(a->offers);
        free(a->changes);
        if (a->outbox != a->image) free(a->outbox);
        free(a->outbox2);
        free(a->image);
        a->image = NULL;
        a->offers = a->changes = NULL;
    }
}
