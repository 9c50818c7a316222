/*
 * The invariants. Each payload names its item. After each request this reads
 * the keys that the request has changed, and compares the effect on each item
 * with the intentions of the actors and the results that they got. Ten times a
 * second it checks that due items are taken, and that no actor does too much.
 */
#include "sim.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- violations ---------------------------------------------------------- */

char check_failed[64], check_text[512];
int64_t check_when;
const char *check_only;
static int run_over; /* 1: the run has ended, and only leaks count */

static int is_wanted(const char *invariant) {
    const char *at = check_only;
    size_t n = strlen(invariant);
    if (!at) return 1;
    for (;; at++) {
        if (strncmp(at, invariant, n) == 0 && (!at[n] || at[n] == ','))
            return 1;
        at = strchr(at, ',');
        if (!at) return 0;
    }
}

void check_fail(const char *invariant, const char *format, ...) {
    va_list list;
    if (check_failed[0] || !is_wanted(invariant)) return;
    if (run_over && strcmp(invariant, "leaks") != 0) return;
    snprintf(check_failed, sizeof check_failed, "%s", invariant);
    va_start(list, format);
    vsnprintf(check_text, sizeof check_text, format, list);
    va_end(list);
    check_when = sim_now();
    TELL("!!! %s: %s", invariant, check_text);
    sim_stop();
}

/* --- items --------------------------------------------------------------- */

typedef enum role {
    SET,
    MIRROR,
    READY,
    RETRY,
    DEAD,
    STREAM,
    WAITERS,
    COUNTERS,
    PAUSED,
    ONCE, /* ONCE and SENT: strings whose keys have the name as a prefix */
    SENT,
    ROLES
} role;

typedef struct element {
    int id, late;
    int64_t score;
    uint64_t hash;
} element;

typedef struct content {
    element *of;
    int count, room;
} content;

static item **items;
static int item_count, item_room;
static content contents[QUEUES][STREAM + 1], fresh;
static struct name {
    char text[64];
    size_t len;
} names[QUEUES][ROLES];
static unsigned dirty;
static int *touched, touched_count, touched_room;
static uint64_t seq;
static unsigned clock_sets;
static actor *acting; /* the actor of check_act_as while its command runs */
static int any_loss;  /* 1: the server has lost data since the beginning */
static int64_t
    taken_us[2]; /* for each queue: when an item was last handed out */
static int64_t woke_us;
static uint64_t events, events_then; /* number of changes in the server */
static int paused[QUEUES], pause_touched;
static int64_t resumed_us[QUEUES];
static int64_t mirror_empty_us[QUEUES]; /* it was empty until then */

item *check_item(int id) {
    return id >= 0 && id < item_count ? items[id] : NULL;
}

int check_item_count(void) {
    return item_count;
}

static int hex(unsigned char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 87 : -1;
}

/* Returns the id of the item whose payload begins in the first 120 bytes, or
 * -1. */
static int find_id(const char *bytes, size_t len) {
    size_t i, k;
    for (i = 0; i + 8 <= len && i < 120; i++) {
        int id = 0;
        if (bytes[i] != '<' || bytes[i + 7] != '>') continue;
        for (k = 1; k < 7 && hex((unsigned char)bytes[i + k]) >= 0; k++)
            id = id * 16 + hex((unsigned char)bytes[i + k]);
        if (k == 7 && id < item_count) return id;
    }
    return -1;
}

item *check_find(const void *bytes, size_t len) {
    return check_item(find_id((const char *)bytes, len));
}

static char filler(const item *it, size_t i) {
    return (char)(i * 31 + (size_t)it->id * 7 + (i >> 8));
}

size_t check_payload(const item *it, char *bytes) {
    char mark[16];
    size_t i;
    snprintf(mark, sizeof mark, "<%06x>", (unsigned)it->id);
    memcpy(bytes, mark, 8);
    for (i = 8; i < it->len; i++) bytes[i] = filler(it, i);
    return it->len;
}

item *check_new_item(actor *a, int queue, size_t len, int64_t delay_ms) {
    item *it = (item *)calloc(1, sizeof *it);
    if (item_count == item_room) {
        item_room = item_room ? item_room * 2 : 256;
        items = (item **)realloc(items, (size_t)item_room * sizeof *items);
    }
    it->id = item_count;
    items[item_count++] = it;
    it->queue = queue;
    it->owner = a->index;
    it->life = a->life;
    it->len = len < 8 ? 8 : len;
    it->delay_ms = delay_ms;
    it->offered_us = sim_now();
    it->offered_ms = service_now_us() / 1000;
    it->clock_sets = clock_sets;
    it->hand_actor = -1;
    history_new_item(a, it);
    return it;
}

/* --- the content of the server ------------------------------------------- */

static uint64_t hash_of(const char *bytes, size_t len) {
    uint64_t h = UINT64_C(14695981039346656037) + len;
    size_t i;
    for (i = 0; i < len && i < 48; i++)
        h = (h ^ (unsigned char)bytes[i]) * UINT64_C(1099511628211);
    return h;
}

static void name_set(int queue, role r, const char *prefix, int tagged) {
    struct name *n = &names[queue][r];
    snprintf(n->text, sizeof n->text, tagged ? "%s{%s}" : "%s%s", prefix,
             queue == 0 ? "jobs" : "more");
    n->len = strlen(n->text);
}

static int role_of(const char *key, size_t len, int *queue) {
    int q, r;
    for (q = 0; q < sim_plan.queues; q++)
        for (r = 0; r < ROLES; r++) {
            const struct name *n = &names[q][r];
            if (len < n->len || memcmp(key, n->text, n->len) != 0) continue;
            if (len > n->len && (r < ONCE || key[n->len] != ':')) continue;
            *queue = q;
            return r;
        }
    return -1;
}

static void touch(item *it) {
    if (it->touched) return;
    it->touched = 1;
    it->was = it->now;
    if (touched_count == touched_room) {
        touched_room = touched_room ? touched_room * 2 : 256;
        touched =
            (int *)realloc(touched, (size_t)touched_room * sizeof *touched);
    }
    touched[touched_count++] = it->id;
}

static void read_element(void *arg, const char *bytes, size_t len,
                         double score) {
    element *e;
    int id = find_id(bytes, len);
    role r = *(const role *)arg;
    if (id < 0) return;
    if (fresh.count == fresh.room) {
        fresh.room = fresh.room ? fresh.room * 2 : 64;
        fresh.of =
            (element *)realloc(fresh.of, (size_t)fresh.room * sizeof *fresh.of);
    }
    e = &fresh.of[fresh.count++];
    e->id = id;
    e->score = (int64_t)score;
    e->hash = r == SET || r == RETRY ? hash_of(bytes, len) : 0;
    e->late = len > 5 && memcmp(bytes, "late ", 5) == 0;
}

static void place_add(item *it, role r, const element *e, int by) {
    place *p = &it->now;
    touch(it);
    if (r == SET) p->set += by;
    if (r == READY) p->ready += by;
    if (r == RETRY) p->retry += by;
    if (r == DEAD) p->dead += by, p->late += by * e->late;
    if (r == STREAM) p->stream += by;
    if (by > 0 && r == SET) p->score = e->score;
    if (by > 0 && (r == SET || r == RETRY)) p->hash = e->hash;
}

static int same(const element *a, const element *b) {
    return a->id == b->id && a->score == b->score && a->hash == b->hash &&
           a->late == b->late;
}

static void read_role(int queue, role r) {
    content *c = &contents[queue][r], old = *c;
    const struct name *n = &names[queue][r];
    int i, from = 0, was, is;
    fresh.count = 0;
    redis_each(sim_redis, n->text, n->len, read_element, &r);
    was = old.count;
    is = fresh.count;
    if (r == MIRROR) {
        if (was == 0) mirror_empty_us[queue] = sim_now();
        was = is = 0;
    }
    /* skip the unchanged elements at both ends */
    while (from < was && from < is && same(&old.of[from], &fresh.of[from]))
        from++;
    while (was > from && is > from && same(&old.of[was - 1], &fresh.of[is - 1]))
        was--, is--;
    for (i = from; i < was; i++)
        place_add(items[old.of[i].id], r, &old.of[i], -1);
    for (i = from; i < is; i++)
        place_add(items[fresh.of[i].id], r, &fresh.of[i], 1);
    *c = fresh;
    fresh = old;
}

int check_crowded(int queue) {
    int r, n = 0;
    for (r = SET; r <= DEAD; r++)
        if (r != MIRROR) n += contents[queue][r].count;
    return n > 500;
}

static int total(const place *p) {
    return p->set + p->ready + p->retry + p->dead + p->stream;
}

/* --- what a change means ------------------------------------------------- */

static const char *place_name(const place *p) {
    return p->set      ? "pending"
           : p->ready  ? "ready"
           : p->retry  ? "retry"
           : p->dead   ? "dead"
           : p->stream ? "stream"
                       : "nowhere";
}

static void rescored(item *it) {
    it->due_former_us = it->due_true_us;
    it->due_true_us = sim_now() + (it->now.score * 1000 - service_now_us());
    it->overdue_us = 0;
}

/* An item is handed out. Check that no item is left that the same owner stored
 * earlier, and that is due at the same time or earlier. */
static void check_order(const item *it) {
    int i;
    if (it->disturbed || sim_plan.broadcast) return;
    for (i = it->id - 1; i >= 0 && i > it->id - 400; i--) {
        const item *x = items[i];
        if (x->owner != it->owner || x->life != it->life ||
            x->queue != it->queue || x->first_out || !x->stored || x->lost ||
            x->disturbed || x->moved > 1 || x->touched ||
            x->stored_seq >= it->stored_seq || x->due_ms > it->due_ms ||
            x->due_ms == 0 || !total(&x->now) || x->intents)
            continue;
        /* Items with equal due times are ordered by id. Java's ids are random.
         * If the clock was set back, ids of two handles are unrelated. */
        if (x->due_ms == it->due_ms &&
            (sim_plan.actors[it->owner].kind == JAVA ||
             (sim_plan.actors[it->owner].kind == SHARER && clock_sets)))
            continue;
        /* x may come later if Java has moved it to the list, because takes
         * with max_late_ms begin with list and set in turn. */
        if (sim_plan.max_late_ms && x->now.ready) continue;
        check_fail("order",
                   "item %d, due %lld ms, is handed out before item %d, due "
                   "%lld ms and stored before",
                   it->id, (long long)it->due_ms, x->id, (long long)x->due_ms);
        return;
    }
}

/* The item is leased again, or dead. If its lease has ended in a handle with an
 * outbox, which never handed it out, this must be in the log soon. */
static void lease_ended(const item *it) {
    actor *a = it->hand_actor < 0 ? NULL : &sim_plan.actors[it->hand_actor];
    if (!a || !a->alive || !a->outbox || a->life != it->hand_life ||
        a->unseen >= 0 || it->got > it->hand_got || it->disturbed ||
        it->unknown ||
        (it->was.set && it->was.score * 1000 > service_now_us()) ||
        a->trouble_us + 2 * SIM_SECOND > it->hand_us)
        return;
    a->unseen = it->id;
    a->unseen_us = sim_now();
    a->unseen_logs = it->hand_logs;
}

static void check_unseen(actor *a) {
    if (a->unseen < 0 || !a->outbox || !a->alive || a->frozen ||
        sim_now() - a->unseen_us < /* a frame may read only 64 KiB */
            SIM_SECOND + (plan_has_large() ? 40 : 2) * sim_plan.frame_us +
                plan_round_trip_us())
        return;
    if (a->logs == a->unseen_logs && a->trouble_us < a->unseen_us &&
        a->frozen_since_us < a->unseen_us - 10 * SIM_SECOND)
        check_fail("logs",
                   "the lease of item %d ended before %s handed it out, and "
                   "the log doesn't say so",
                   a->unseen, a->name);
    a->unseen = -1;
}

static void handed_out(item *it, actor *by) {
    lease_ended(it);
    if (it->popped) by = NULL; /* it went on to a client that was blocked */
    it->popped = 0;
    taken_us[it->queue] = sim_now();
    it->handed++;
    it->attempts++;
    if (sim_plan.max_attempts && it->attempts > sim_plan.max_attempts &&
        !it->disturbed && !it->unknown)
        check_fail("attempts", "item %d is handed out %d times", it->id,
                   it->attempts);
    it->hand_actor = by ? by->index : -1;
    it->hand_life = by ? by->life : 0;
    it->hand_us = sim_now();
    it->hand_got = it->got;
    it->hand_logs = by ? by->logs : 0;
    it->hand_hash = it->now.set ? it->now.hash : 0;
    if (by) by->items++;
    if (!it->first_out && it->due_ms && it->moved <= 2) {
        it->first_out = 1;
        check_order(it);
    }
    it->first_out = 1;
}

/* Check that a take hands out items that are in time, and gives up others. */
static void check_late(const item *it, const actor *by, int dies) {
    int64_t late_us = service_now_us() - it->was.score * 1000;
    int64_t most_us = sim_plan.max_late_ms * 1000;
    if (!it->was.set || (by && by->kind == JAVA)) return;
    if (dies ? !most_us || late_us <= most_us : most_us && late_us > most_us)
        check_fail("late", "item %d, %lld us late, is %s by %s", it->id,
                   (long long)late_us, dies ? "given up" : "handed out",
                   by ? by->name : "nobody");
}

static void check_early(const item *it, const actor *by, const char *what) {
    int64_t now_ms = service_now_us() / 1000;
    if (by && by->kind == JAVA) return;
    if (it->was.score > now_ms)
        check_fail("early", "item %d is %s by %s %lld ms before it is due",
                   it->id, what, by ? by->name : "nobody",
                   (long long)(it->was.score - now_ms));
    else if (!it->first_out && !it->moved && it->clock_sets == clock_sets &&
             it->due_ms && !it->by_outbox &&
             now_ms < it->offered_ms + it->delay_ms)
        check_fail("early",
                   "item %d is %s %lld ms after its offer, with a "
                   "delay of %lld ms",
                   it->id, what, (long long)(now_ms - it->offered_ms),
                   (long long)it->delay_ms);
}

static void tell_change(const item *it, const actor *by) {
    const place *w = &it->was, *n = &it->now;
    if (!sim_tells) return;
    if (n->set && (!w->set || n->score != w->score || n->hash != w->hash))
        sim_tell("    server: item %d: %s -> %s, due in %lld ms, by %s", it->id,
                 place_name(w), place_name(n),
                 (long long)(n->score - service_now_us() / 1000),
                 by ? by->name : "nobody");
    else
        sim_tell("    server: item %d: %s -> %s, by %s", it->id, place_name(w),
                 place_name(n), by ? by->name : "nobody");
}

/* Check that an item is not due earlier than a previous item of its handle if
 * its delay is equal or longer. */
static void check_dates(const item *it) {
    int i;
    if (!it->plain || !it->due_ms || it->stored > 1 || clock_sets) return;
    for (i = it->id - 200 < 0 ? 0 : it->id - 200;
         i < it->id + 200 && i < item_count; i++) {
        const item *x = items[i], *a = i < it->id ? x : it,
                   *b = i < it->id ? it : x;
        if (i == it->id || !x->plain || !x->due_ms || x->stored != 1 ||
            x->disturbed || x->owner != it->owner || x->life != it->life ||
            x->queue != it->queue || a->delay_ms > b->delay_ms ||
            a->due_ms <= b->due_ms)
            continue;
        check_fail("order",
                   "item %d is due %lld ms after item %d, which was offered "
                   "later",
                   a->id, (long long)(a->due_ms - b->due_ms), b->id);
        return;
    }
}

static void stored(item *it, actor *by) {
    it->stored++;
    it->stored_us = sim_now();
    it->stored_seq = ++seq;
    it->due_ms = it->now.set ? it->now.score : 0;
    it->moved = it->attempts = 0;
    if (by) by->items++;
    check_dates(it);
    if (it->forbidden)
        check_fail("status",
                   "item %d is stored by %s, which was told that it isn't",
                   it->id, by ? by->name : "nobody");
    if (it->stored > 1 && !it->disturbed)
        check_fail("twice", "item %d is stored anew by %s: number %d", it->id,
                   by ? by->name : "nobody", it->stored);
}

static int java_blocks(int queue) {
    int i;
    for (i = 0; i < sim_plan.actor_count; i++) {
        const actor *a = &sim_plan.actors[i];
        if (a->kind == JAVA && a->alive && a->take_ms && a->queue == queue)
            return 1;
    }
    return 0;
}

static int changed(item *it, actor *by) {
    const place *w = &it->was, *n = &it->now;
    int before = total(w), after = total(n);
    /* 1: this is a transfer, which an earlier call may have left in flight */
    int moves = w->set && (n->ready || n->retry || n->stream);
    int meant =
        by && !moves &&
        ((it->intents | it->unknown) & bit_of(by) ||
         (it->key && (by->replaces | by->cancels) & 1u << it->key) ||
         /* The item died while a redrive was in flight. */
         (by->kind == REDRIVER && w->dead));
    int anew = n->hash != w->hash || n->score != w->score;
    int leases = sim_plan.lease_ms > 0 && !(by && by->kind == JAVA);
    int64_t in_ms = n->score - service_now_us() / 1000;
    if (before == after && n->set == w->set && n->ready == w->ready &&
        n->retry == w->retry && n->dead == w->dead && (!n->set || !anew))
        return 0;
    events++;
    tell_change(it, by);
    /* Redisson uses its own clock. If the reply to the offer was lost, and the
     * item was not due by a clock of the handle, the handle stores it again. */
    if (by && by->kind == JAVA && moves && w->score > service_now_us() / 1000)
        it->disturbed = it->hasty = 1;
    if (after > 1 && it->hasty) {
        it->handed = 1000;
        return 1;
    }
    if (after > 1) {
        check_fail("twice",
                   "item %d lies in the server %d times: set %d, "
                   "ready %d, retry %d, dead %d",
                   it->id, after, n->set, n->ready, n->retry, n->dead);
        return 1;
    }
    if (it->now.set && (!w->set || n->score != w->score)) rescored(it);
    it->ready_us = n->ready || n->retry || n->stream ? sim_now() : 0;
    if (before == 0 && after == 1) {
        stored(it, by);
        return 1;
    }
    if (by && it->key && (by->cancels | by->replaces) & 1u << it->key &&
        after == 0 && w->set) {
        by->cancelled += by->cancels >> it->key & 1;
        /* If the reply to the item's offer was lost, it is stored again. */
        it->disturbed = 1;
    }
    if (paused[it->queue] && by && !meant && by->kind != JAVA &&
        !(n->set && w->set && it->hand_actor == by->index &&
          in_ms < sim_plan.lease_ms / 2))
        check_fail("paused", "item %d is %s, by %s, from a paused queue",
                   it->id, after ? "moved or leased" : "taken", by->name);
    if (meant) it->changed |= bit_of(by);
    if (meant && after == 0) it->removed |= bit_of(by);
    /* Perhaps the item was moved, and Java popped it at once. */
    if (meant && after == 0 && w->set && java_blocks(it->queue))
        it->unknown |= bit_of(by);
    if (meant && (n->set || after == 0)) { /* this may have been a take */
        it->maybe++;
        it->hand_actor = by->index;
        it->hand_life = by->life;
        it->hand_hash = 0;
    }
    if (after == 0) {
        if (meant) {
            it->first_out = 1;
        } else if (leases && java_blocks(it->queue)) {
            /* The item was moved, and Java popped it at once. */
            if (w->set) check_early(it, by, "moved");
            handed_out(it, NULL);
        } else if (leases) {
            check_fail("lost",
                       "item %d is removed by %s, from %s: nobody "
                       "has acked it",
                       it->id, by ? by->name : "nobody", place_name(w));
        } else {
            if (w->set) check_early(it, by, "taken");
            check_late(it, by, 0);
            if (w->dead)
                check_fail("lost", "dead letter %d is removed by %s", it->id,
                           by ? by->name : "nobody");
            handed_out(it, by);
        }
        return 1;
    }
    /* An item that is given back is due at once, by the clock that the handle
     * knew. That clock may have been set back since. */
    if (n->set && w->set && !meant && by &&
        (in_ms < sim_plan.lease_ms / 2 ||
         (it->clock_sets != clock_sets && in_ms > sim_plan.lease_ms + 1) ||
         n->hash == w->hash) && /* a lease would change the element */
        it->hand_actor == by->index &&
        it->hand_life == by->life) {
        it->handed--; /* it was fetched, and is given back */
        it->attempts -= it->attempts > 0;
        if (sim_plan.wire != DELAYQ_NATIVE) it->told_attempt = 0;
    } else if (n->set && w->set) { /* leased, extended, nacked, rescheduled */
        if (!meant) {
            check_early(it, by, "leased");
            check_late(it, by, 0);
            if (!leases)
                check_fail("lost", "item %d is changed by %s", it->id,
                           by ? by->name : "nobody");
            handed_out(it, by);
        } else if (!it->first_out) {
            it->due_ms = 0; /* rescheduled */
        }
    } else if (n->set) { /* leased from a list, or set by a nack */
        if (!meant) handed_out(it, by);
    } else if (n->dead) {
        if (!meant) lease_ended(it);
        it->attempts = it->told_attempt = 0;
        if (!meant && w->set) check_early(it, by, "given up");
        if (n->late > w->late) check_late(it, by, 1);
        it->first_out = 1;
    } else if (w->set && !meant) {
        check_early(it, by, "moved");
        if (sim_plan.max_late_ms && by && by->kind != JAVA)
            check_fail("late", "item %d is moved by %s, and its due time lost",
                       it->id, by->name);
    } else if (w->dead && !meant) {
        check_fail("lost", "dead letter %d is made ready by %s", it->id,
                   by ? by->name : "nobody");
    }
    if (n->ready && sim_plan.wire != DELAYQ_NATIVE) it->told_attempt = 0;
    it->moved++;
    if (it->acked)
        check_fail("status", "item %d is acked, and still there", it->id);
    return 1;
}

static void find_pause(void *arg, const char *key, size_t len, char type) {
    int *now = (int *)arg, queue;
    (void)type;
    if (role_of(key, len, &queue) == PAUSED) now[queue] = 1;
}

/* Find out which queues are paused. */
static void find_pauses(void) {
    int now[QUEUES] = {0}, q;
    pause_touched = 0;
    redis_each_key(sim_redis, find_pause, now);
    for (q = 0; q < sim_plan.queues; q++) {
        if (now[q] == paused[q]) continue;
        events++;
        paused[q] = now[q];
        if (!now[q]) resumed_us[q] = sim_now();
        TELL("    server: queue %d is %s", q, now[q] ? "paused" : "resumed");
    }
}

static int has_pauser(void) {
    return plan_has(PAUSER);
}

/* The numbers of items that the last part of a request, and the whole request,
 * have changed. */
static int touched_last, moved_now;

static void settle(actor *by) {
    unsigned d = dirty;
    int q, r, i;
    touched_last = 0;
    if (!d) return;
    dirty = 0;
    for (q = 0; q < sim_plan.queues; q++)
        for (r = 0; r <= STREAM; r++)
            if (d & 1u << (q * 8 + r)) read_role(q, (role)r);
    for (i = 0; i < touched_count; i++)
        touched_last += changed(items[touched[i]], by);
    for (i = 0; i < touched_count; i++) items[touched[i]]->touched = 0;
    touched_count = 0;
}

static void all_dirty(void) {
    int q, r;
    for (q = 0; q < sim_plan.queues; q++)
        for (r = 0; r <= STREAM; r++) dirty |= 1u << (q * 8 + r);
}

/* Read the content after the server has lost data. Missing items are lost, and
 * changed items are disturbed. An item that an outbox has stored since since_us
 * is also disturbed, since the outbox stores it again if the reply was lost. */
void check_crash(int64_t since_us) {
    int q, r, i;
    for (i = 0; i < item_count; i++) {
        item *it = items[i];
        if (!it->by_outbox || it->stored_us < since_us) continue;
        it->disturbed = 1;
        it->acked = it->cancelled = 0;
    }
    all_dirty();
    dirty = 0;
    any_loss = 1;
    for (q = 0; q < sim_plan.queues; q++)
        for (r = 0; r <= STREAM; r++) read_role(q, (role)r);
    for (i = 0; i < touched_count; i++) {
        item *it = items[touched[i]];
        const place *w = &it->was, *n = &it->now;
        it->touched = 0;
        if (total(w) == total(n) && w->set == n->set && w->ready == n->ready &&
            w->retry == n->retry && w->dead == n->dead &&
            w->stream == n->stream && w->score == n->score &&
            w->hash == n->hash)
            continue;
        it->disturbed = 1;
        it->lost = total(n) == 0;
        it->acked = it->cancelled = 0;
        it->ready_us = n->ready || n->retry || n->stream ? sim_now() : 0;
        if (n->set) rescored(it);
        if (total(n)) it->got = 0, it->handed = 1000;
        TELL("    server: item %d: %s -> %s, by the fault", it->id,
             place_name(w), place_name(n));
    }
    touched_count = 0;
    find_pauses();
}

static int reads(const char *c, size_t n) {
    static const char *const all[] = {
        "ZRANGE",        "ZSCORE", "ZCARD",   "ZCOUNT", "LRANGE",   "LLEN",
        "LINDEX",        "GET",    "EXISTS",  "TYPE",   "TIME",     "PUBLISH",
        "PUBSUB",        "STRLEN", "XRANGE",  "XLEN",   "XINFO",    "XREVRANGE",
        "EXPIRE",        "PTTL",   "PEXPIRE", "SET",    "GETRANGE", "ZREVRANGE",
        "ZSCAN",
        "ZRANGEBYSCORE", "MEMORY", "ZRANK",   "SETEX",  "PSETEX"};
    size_t i, k;
    for (i = 0; i < sizeof all / sizeof all[0]; i++) {
        for (k = 0; k < n && all[i][k]; k++)
            if ((c[k] & ~32) != all[i][k]) break;
        if (k == n && !all[i][k]) return 1;
    }
    return 0;
}

/* The actor that clears its queue, and the number of items that its request has
 * removed, or -1 before the request arrives. */
static actor *clearing;
static int64_t cleared, all_cleared;

static void clear_queue(void) {
    int r;
    if (cleared < 0) cleared = 0;
    for (r = 0; r <= STREAM; r++)
        if (r == SET || r == READY || r == RETRY || r == STREAM)
            cleared += contents[clearing->queue][r].count;
    check_crash(sim_now());
    for (r = 0; r <= STREAM; r++)
        if (r == SET || r == READY || r == RETRY || r == STREAM)
            cleared -= contents[clearing->queue][r].count;
    all_cleared++;
}

void check_clears(actor *a) {
    clearing = a;
    cleared = -1;
}

void check_cleared(actor *a, delayq_status status, int64_t removed) {
    clearing = NULL;
    if (status == DELAYQ_OK && removed != cleared)
        check_fail("status",
                   "%s: clear says that it removed %lld items, not "
                   "%lld",
                   a->name, (long long)removed, (long long)cleared);
}

/* Number of items that the earlier parts of the request have changed. */
static int moved_before;

/* Returns 1 if this is the key of the highest number that an outbox has
 * stored. */
static int is_mark(const char *key, size_t len) {
    return len > 12 && memcmp(key, "delayq_sent:", 12) == 0;
}

void check_executed(void *arg, client *by, int argc, const char **argv,
                    const size_t *lens) {
    int i, last = argc - 1, queue = 0, r;
    (void)arg;
    if (argc < 2) {
        if (argc == 1 && lens[0] == 8) all_dirty(); /* FLUSHALL */
        return;
    }
    if (lens[0] == 3 && role_of(argv[1], lens[1], &queue) == PAUSED)
        pause_touched = 1; /* SET, DEL */
    if (argc > 3 && lens[2] > 0 && is_mark(argv[1], lens[1])) {
        /* The request has stored an offer. Read it now, because a later op of
         * the request may remove the item. */
        settle(acting ? acting : service_actor(by));
        moved_before += touched_last;
    }
    if (argc == 4 && lens[0] == 4 && (argv[0][1] | 32) == 'r' && lens[3] > 0 &&
        role_of(argv[1], lens[1], &queue) == DEAD) /* LREM */
        check_fail("work", "an LREM walks through the dead letters");
    if (argc == 3 && lens[0] == 5 && (argv[0][0] | 32) == 'b') {
        item *popped = check_find(argv[2], lens[2]); /* BLPOP, BRPOP */
        if (popped) popped->popped = 1;
    }
    if (reads(argv[0], lens[0])) return;
    if (lens[0] == 5 && (argv[0][1] | 32) == 'p') events++; /* LPUSH, RPUSH */
    if (lens[0] == 5 && (argv[0][0] | 32) == 'l' && argc == 4 && /* LTRIM */
        lens[2] == 1 && argv[2][0] == '0' && lens[3] == 2 && argv[3][0] == '-')
        return;
    /* Commands such as DEL, UNLINK, RENAME and RPOPLPUSH have several keys. */
    if (lens[0] != 3 && lens[0] != 6 && lens[0] != 9) last = 1;
    for (i = 1; i <= last && i < 12; i++) {
        r = role_of(argv[i], lens[i], &queue);
        if (r >= 0 && r <= STREAM) dirty |= 1u << (queue * 8 + r);
    }
}

void check_act_as(actor *a) {
    if (acting && !a) settle(acting);
    acting = a;
}

/* --- the results that the actors get ------------------------------------- */

static int is_open_end(delayq_status s) {
    return s == DELAYQ_ERR_UNKNOWN || s == DELAYQ_ERR_PROTOCOL;
}

void check_intend(actor *a, item *it) {
    history_intend(a, it);
    /* Ops that an outbox has accepted before may still take effect. */
    if (!a->outbox) it->changed &= ~bit_of(a);
    if (!a->outbox) it->removed &= ~bit_of(a);
    it->intents |= bit_of(a);
}

void check_left(actor *a, item *it, const char *verb) {
    history_settled(a, it, DELAYQ_OK, verb);
    it->intents &= ~bit_of(a);
}

static int unchanged;

void check_settled(actor *a, item *it, delayq_status status, const char *verb) {
    int removes = strcmp(verb, "ack") == 0 || strcmp(verb, "cancel") == 0;
    int done = ((removes ? it->removed : it->changed) & bit_of(a)) != 0;
    history_settled(a, it, status, verb);
    it->intents &= ~bit_of(a);
    check_unknown(a, status);
    if (is_open_end(status)) {
        it->unknown |= bit_of(a);
        return;
    }
    if (it->disturbed || it->unknown & bit_of(a)) return;
    /* Once in a run, the new due time may be the old one by chance. */
    if (status == DELAYQ_OK && !done && !removes && it->now.set &&
        unchanged++ == 0)
        return;
    if (status == DELAYQ_OK && !done)
        check_fail("status", "%s of item %d is told as done, and isn't", verb,
                   it->id);
    if (status != DELAYQ_OK && done)
        check_fail("status", "%s of item %d is done, and is told as %d: %s",
                   verb, it->id, status, delayq_strstatus(status));
    if (status != DELAYQ_OK) return;
    it->ended_us = sim_now();
    if (strcmp(verb, "ack") == 0) it->acked = 1;
    if (strcmp(verb, "cancel") == 0) it->cancelled = 1;
}

void check_offered(actor *a, item *it, delayq_status status) {
    history_offered(a, it, status);
    if (is_open_end(status)) return;
    if (status == DELAYQ_OK) {
        if (!it->stored && !any_loss)
            check_fail("status", "item %d is told as stored, and isn't",
                       it->id);
        return;
    }
    /* If it is not stored now, it must never be stored. */
    if (status == DELAYQ_GONE) {
        if (!it->stored) it->forbidden = 1;
        return;
    }
    /* Another item got its key before this item was offered again. */
    if (status == DELAYQ_DUPLICATE && it->stored && it->first_out &&
        !it->handed)
        return;
    it->forbidden = 1;
    if (it->stored && !it->disturbed)
        check_fail("status", "item %d is stored, and is told as %d: %s", it->id,
                   status, delayq_strstatus(status));
}

void check_dropped(actor *a, const item *it, const char *verb) {
    int i;
    for (i = 0; i < sim_plan.fault_count; i++) {
        const fault *f = &sim_plan.faults[i];
        if (f->kind == LIMIT && !verb &&
            (!it || (int64_t)it->len + 100 > f->amount))
            return;
    }
    check_fail("outbox", "%s: %s of item %d is dropped", a->name,
               verb ? verb : "offer", it ? it->id : -1);
}

/* Compare the result of a cancel_key with the number of removed items. */
void check_key_cancelled(actor *a, int went, delayq_status status) {
    if (status != DELAYQ_OK && status != DELAYQ_GONE && !is_open_end(status) &&
        went > 0)
        check_fail("status", "%s: a key is cancelled, and is told as %d",
                   a->name, status);
    if ((status == DELAYQ_OK && went != 1) ||
        (status == DELAYQ_GONE && went > 0))
        check_fail("status", "%s: cancel of a key is told as %d: %d items went",
                   a->name, status, went);
}

void check_paused(actor *a, int on, delayq_status status) {
    if (status == DELAYQ_OK && has_pauser() == 1 && !any_loss &&
        !(sim_plan.kinds & 1u << GARBLE) &&
        paused[a->queue] != on)
        check_fail("status", "%s: queue %d is told as %s, and isn't", a->name,
                   a->queue, on ? "paused" : "resumed");
}

/* Check that the number of attempts grows. With a Redisson wire it may become
 * unknown (0), and then begins again. A reply that comes late may tell of an
 * earlier attempt. */
static void check_attempt(const actor *a, item *it, int attempt) {
    int sure = !plan_has(JAVA) && !it->disturbed && !it->unknown &&
               it->got >= it->handed && it->hand_actor == a->index &&
               it->hand_life == a->life;
    if (sure && (attempt ? attempt <= it->told_attempt
                         : sim_plan.wire == DELAYQ_NATIVE))
        check_fail("attempts", "item %d is handed out as attempt %d after %d",
                   it->id, attempt, it->told_attempt);
    it->told_attempt = attempt;
}

void check_got(actor *a, const delayq_item *got, int leases) {
    item *it = check_find(got->data, got->len);
    const char *bytes = (const char *)got->data;
    size_t i;
    if (!it) {
        check_fail("bytes", "%s is handed what nobody has offered: %zu bytes",
                   a->name, got->len);
        return;
    }
    for (i = 8; i < it->len && i < got->len && bytes[i] == filler(it, i);) i++;
    if (got->len != it->len || (i < it->len && it->len > 8))
        check_fail("bytes",
                   "item %d of %zu bytes is delivered with %zu, the "
                   "same up to %zu",
                   it->id, it->len, got->len, i);
    history_got(a, it, got);
    a->free_us = 0;
    it->got++;
    if (sim_plan.broadcast) return;
    if (it->got > it->handed + it->maybe)
        check_fail("twice",
                   "item %d is delivered %d times, and was handed "
                   "out %d times",
                   it->id, it->got, it->handed);
    /* A reply from before the ack or cancel may have arrived only now. */
    if (it->acked && it->hand_us > it->ended_us)
        check_fail("twice", "item %d is delivered to %s after its ack", it->id,
                   a->name);
    if (it->cancelled && it->hand_us > it->ended_us)
        check_fail("status", "item %d is delivered to %s after its cancel",
                   it->id, a->name);
    if (!leases && it->got > 1 && !it->disturbed)
        check_fail("twice", "item %d is delivered twice without a lease",
                   it->id);
    if (leases) check_ticket(a, got->ticket.text);
    if (leases) check_attempt(a, it, got->attempt);
}

/* The tickets of all leases, in a hash table with open addressing. */
static char (*tickets)[52];
static size_t ticket_count, ticket_room;

static size_t ticket_place(char (*table)[52], size_t room, const char *text) {
    size_t i = hash_of(text, strlen(text)) & (room - 1);
    while (table[i][0] && strcmp(table[i], text) != 0) i = (i + 1) & (room - 1);
    return i;
}

void check_ticket(actor *a, const char *text) {
    size_t i;
    if (!text[0]) {
        check_fail("ticket", "%s is handed a lease without a ticket", a->name);
        return;
    }
    if (ticket_count * 2 >= ticket_room) {
        size_t room = ticket_room ? ticket_room * 2 : 256;
        char(*grown)[52] = (char(*)[52])calloc(room, sizeof *grown);
        for (i = 0; i < ticket_room; i++)
            if (tickets[i][0])
                strcpy(grown[ticket_place(grown, room, tickets[i])],
                       tickets[i]);
        free(tickets);
        tickets = grown;
        ticket_room = room;
    }
    i = ticket_place(tickets, ticket_room, text);
    /* An id of the old wire is the server's time in microseconds, and 11 bits
     * of the handle. If the clock was set back, a time may come again. */
    if (tickets[i][0] && !any_loss &&
        !(sim_plan.wire == DELAYQ_REDISSON_OLD && clock_sets))
        check_fail("ticket", "two leases have the ticket %s, the second %s's",
                   text, a->name);
    if (!tickets[i][0]) ticket_count++;
    snprintf(tickets[i], sizeof tickets[i], "%s", text);
}

/* Returns 1 if the status may come from a large payload, which may need longer
 * than a short io_timeout_ms. */
static int is_slow(delayq_status status) {
    int i;
    for (i = 0; i < sim_plan.actor_count; i++)
        if (sim_plan.actors[i].large && status == DELAYQ_ERR_TIMEOUT) return 1;
    return 0;
}

/* Check how long the first op of a ring has been unsettled. At since_us it was
 * accepted, or the op before it was settled. */
void check_drains(actor *a, const char *verb, int64_t since_us) {
    int64_t now = sim_now(), pause_us = sim_plan.reconnect_max_ms * MS,
            most = 3 * SIM_SECOND + pause_us + 8 * plan_round_trip_us() +
                   plan_search_us() + 4 * sim_plan.frame_us;
    if (sim_plan.mix.outbox_size >= 1 << 20) /* 3,000 bytes in a round trip */
        most += sim_plan.mix.outbox_size / 4 / 3000 * plan_round_trip_us();
    if (sim_plan.kinds == 1u << LIMIT) /* it ends up to 30 connections */
        most += 30 * (pause_us + 4 * plan_round_trip_us());
    else if (!faults_quiet())
        return;
    if (a->frozen ||
        (sim_plan.kinds != 1u << LIMIT &&
         now - faults_connections_us() < most + 2 * SIM_SECOND) ||
        now - faults_other_us() < most + 2 * SIM_SECOND ||
        now - a->frozen_since_us < most || now - a->start_us < most)
        return;
    if (now - since_us > most)
        check_fail("outbox", "%s: %s is not settled after %lld ms", a->name,
                   verb ? verb : "offer", (long long)((now - since_us) / 1000));
}

/* Check that an outcome is only unknown if a connection has ended, or if the
 * reply did not come in time. */
void check_unknown(const actor *a, delayq_status status) {
    if (status != DELAYQ_ERR_UNKNOWN || a->outbox || a->frozen_us ||
        actor_can_take(a->last_call) || /* these have a shorter limit */
        process_ends(a->p) != a->ends_then ||
        sim_now() - a->call_us >= a->io_timeout_ms * MS * 97 / 100)
        return;
    check_fail("status",
               "%s: an outcome is unknown, and no reply is late or lost: %s",
               a->name, delayq_errmsg(a->q));
}

void check_rate(actor *a, const char *verb, int64_t at_us, int ahead) {
    int64_t trip = plan_round_trip_us(), turn = trip + sim_plan.frame_us;
    int64_t most = SIM_SECOND / 2 + 6 * turn + ahead * turn / 8;
    if (sim_plan.fault_count || sim_plan.silent || sim_plan.reopens ||
        has_pauser() || sim_plan.mix.outbox_size >= 1 << 20 ||
        at_us < a->start_us + 5 * SIM_SECOND + 20 * trip)
        return;
    if (sim_now() - at_us > most)
        check_fail("rate",
                   "%s: %s is not settled after %lld ms, with %d ops ahead",
                   a->name, verb, (long long)((sim_now() - at_us) / 1000),
                   ahead);
}

/* Check that a fault has caused a failure. A program that rarely makes a call
 * may use a connection, or an attempt to connect, from the time of the fault.
 * Such an attempt lasts up to four times connect_timeout_ms, and one more call
 * may fail. */
void check_status(actor *a, const char *verb, delayq_status status) {
    int64_t now = sim_now();
    int64_t most =
        (status == DELAYQ_ERR_TIMEOUT ? 8 : 2) * SIM_SECOND + plan_search_us() +
        4 * sim_plan.frame_us;
    /* a handle that shares a connection has the default reconnect_max_ms */
    if (a->q2) most += 5 * SIM_SECOND;
    if (status >= 0) return;
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_TYPE ||
        (status == DELAYQ_ERR_WIRE && a->kind != STRANGER) ||
        status == DELAYQ_ERR_MEMORY ||
        (status == DELAYQ_ERR_PROTOCOL && !(sim_plan.kinds & 1u << GARBLE)))
        check_fail("status", "%s: %s returns %d: %s", a->name, verb, status,
                   delayq_errmsg(a->q));
    else if (faults_quiet() &&
             now - faults_connections_us() >
                 most + sim_plan.reconnect_max_ms * MS +
                     12 * plan_round_trip_us() &&
             now - faults_other_us() > most && now - a->start_us > most &&
             now - a->frozen_since_us > 5 * SIM_SECOND &&
             status != DELAYQ_ERR_FULL &&
             !is_slow(status) && status != DELAYQ_ERR_UNKNOWN &&
             status != DELAYQ_ERR_WIRE &&
             !(sim_plan.silent && strcmp(verb, "open") == 0) &&
             a->failed_in_calm++)
        check_fail("failure", "%s: %s returns %d without a fault: %s", a->name,
                   verb, status, delayq_errmsg(a->q));
}

/* --- economy ------------------------------------------------------------- */

static int watched;            /* tenths of a second */
static int64_t quiet_idle_us;  /* nothing was pending or happened since then */
static int64_t idle_window_us; /* beginning of the idle window; 0: none */

/* Returns the steps that a script may spend on the mirror. Before it removes
 * elements, it checks its right to LREM with an LREM that visits all dead
 * letters. If the mirror has at most 1,000 elements, or the element is Java's,
 * each LREM visits the mirror's elements, at most 100,000 in a script. */
static int64_t mirror_work(void) {
    int64_t all = contents[0][MIRROR].count + contents[1][MIRROR].count;
    int64_t work = contents[0][DEAD].count + contents[1][DEAD].count + 8 * all;
    int64_t before = all + moved_now, each = before * moved_now;
    int i, java = 0;
    for (i = 0; i < sim_plan.actor_count; i++)
        java |= sim_plan.actors[i].kind == JAVA;
    if (before > 1000 && !java) return work;
    return work + (each < 100000 + before ? each : 100000 + before);
}

void check_answered(void *arg, client *by, const char *command, int calls,
                    int64_t work) {
    actor *a = acting ? acting : service_actor(by);
    int64_t budget;
    (void)arg;
    if (a && a == clearing && dirty)
        clear_queue();
    else
        settle(a);
    moved_now = touched_last + moved_before;
    moved_before = 0;
    if (pause_touched) find_pauses();
    if (a) a->commands++;
    if (a && strcmp(command, "evalsha") == 0) {
        if (calls > 0)
            a->ran++;
        else
            a->refused++;
    }
    /* A script may visit 64 waiters, run a few commands for each item, search
     * for a lease among those that end in the same ms, walk through the mirror,
     * which is a list, and copy the KB of large payloads: up to 300 for each of
     * 200 tickets. */
    budget = 700 + (sim_plan.lease_ms ? 80 : 25) * (int64_t)moved_now;
    if (sim_plan.wire != DELAYQ_NATIVE) budget += mirror_work();
    if (plan_has_large()) budget += 60000;
    if (a && a->kind != JAVA && a->kind != PUSHER && a->kind != LONG &&
        /* A ticket whose item is gone costs three calls. A request has at most
         * 200 such tickets. */
        (work > budget + 20 * calls || calls > 650 + 12 * moved_now))
        check_fail("work",
                   "%s of %s costs %lld, with %d calls, and changes %d "
                   "items; the mirrors have %d and %d, the dead letters %d "
                   "and %d",
                   command, a->name, (long long)work, calls, moved_now,
                   contents[0][MIRROR].count, contents[1][MIRROR].count,
                   contents[0][DEAD].count, contents[1][DEAD].count);
}

void check_connected(actor *a) {
    a->connects++;
}

/* Returns 1 if the actor runs in frames, 60 a second. */
static int is_framed(const actor *a) {
    return a->outbox && (a->kind == OUTBOX_PRODUCER || a->gap_us);
}

/* Number of items that fell due in the last second. A handle with max_late_ms
 * polls at each due time, since its ticks move nothing. */
static uint64_t fell_due;

int64_t check_mirror_empty_us(int queue) {
    return contents[queue][MIRROR].count ? mirror_empty_us[queue] : sim_now();
}

static void window_of(actor *a) {
    uint64_t steps = a->p ? process_steps(a->p) + a->turns : 0;
    uint64_t did = steps - a->steps_then, logs = a->logs - a->logs_then,
             connects = a->connects - a->connects_then,
             items = a->items - a->items_then, verbs = a->verbs - a->verbs_then,
             bytes = a->p ? process_bytes(a->p) : 0,
             large = (bytes - a->bytes_then) / 512,
             happened = events - events_then + fell_due,
             kills = faults_kills(), limit;
    a->steps_then = steps;
    a->logs_then = a->logs;
    a->connects_then = a->connects;
    a->items_then = a->items;
    a->verbs_then = a->verbs;
    a->bytes_then = bytes;
    if (!a->alive || a->kind == JAVA || a->kind == PUSHER) return;
    /* An actor that waits for two queues has two handles. */
    limit = (a->kind == WAIT_WORKER ? 100
             : a->outbox            ? 60
                                    : 50) +
            (is_framed(a) ? 100 : 0) + 30 * items + 20 * verbs + 6 * happened +
            large;
    if (a->kind == PRODUCER) /* its sleeps between offers */
        limit += (uint64_t)(4 * SIM_SECOND / a->gap_us);
    if (sim_plan.pieces) limit *= 2;
    if (sim_plan.kinds & 1u << SCRIPTS) limit *= 2; /* scripts come in parts */
    limit += 30 * connects;
    /* A call repeats its request while the queue's slot moves. */
    if (sim_plan.finds == BY_CLUSTER && !faults_quiet()) limit += 100;
    /* If a waiter comes back, all other waiters enter the set again. */
    if (sim_now() - faults_connections_us() < 2 * SIM_SECOND ||
        sim_plan.kinds & 1u << ACTOR_CHURN)
        limit += 60 + 8 * (uint64_t)sim_plan.actor_count;
    if (did > limit)
        check_fail("steps",
                   "%s takes %llu steps in a second with %llu calls, "
                   "%llu items, %llu events in the queue, %llu "
                   "connects",
                   a->name, (unsigned long long)did, (unsigned long long)verbs,
                   (unsigned long long)items, (unsigned long long)happened,
                   (unsigned long long)connects);
    /* Two handles may try to connect, each after half of the longest pause. */
    if (logs > 4 + verbs + 6 * 2000 / (uint64_t)sim_plan.reconnect_max_ms +
                   4 * kills + 10 * (uint64_t)(a->life - a->life_then))
        check_fail("logs",
                   "%s writes %llu lines into its log in a second, "
                   "with %llu calls",
                   a->name, (unsigned long long)logs,
                   (unsigned long long)verbs);
    /* A connection that has worked is replaced at once. */
    limit = 6 + 4 * 1000 / (uint64_t)sim_plan.reconnect_max_ms;
    if (a->kind == WAIT_WORKER) limit *= 2;
    limit += 3 * kills + 3 * (uint64_t)(a->life - a->life_then);
    limit += 2 * (a->opens - a->opens_then); /* also for the subscriber */
    a->life_then = a->life;
    a->opens_then = a->opens;
    if (connects > limit)
        check_fail("connects", "%s connects %llu times in a second", a->name,
                   (unsigned long long)connects);
}

static int helper_count;
static void count_key(void *arg, const char *key, size_t len, char type) {
    (void)arg, (void)key, (void)len, (void)type;
    helper_count++;
}

static void count_element(void *arg, const char *bytes, size_t len,
                          double score) {
    (void)bytes, (void)len, (void)score;
    ++*(int *)arg;
}

/* Check the number of keys in the server, and of the waiters of each queue. */
static void check_keys(void) {
    int i, q, handles = 0, lives = 0, keyed = 0;
    for (i = 0; i < sim_plan.actor_count; i++) {
        handles += sim_plan.actors[i].alive;
        lives += sim_plan.actors[i].life;
    }
    for (i = 0; i < item_count; i++) keyed += items[i]->key != 0;
    helper_count = 0;
    redis_each_key(sim_redis, count_key, NULL);
    if (helper_count > 10 * (sim_plan.queues + 1) + keyed + lives)
        check_fail("keys", "%d keys lie in the server", helper_count);
    for (q = 0; q < sim_plan.queues; q++) {
        const struct name *n = &names[q][WAITERS];
        int count = 0;
        redis_each(sim_redis, n->text, n->len, count_element, &count);
        if (count > 1024 + handles)
            check_fail("waiters", "%d handles are waiting in %s, and %d live",
                       count, n->text, handles);
    }
}

/* Check that Redisson's mirror contains only pending items. */
static void check_mirror(void) {
    int q, i;
    if (sim_plan.wire == DELAYQ_NATIVE) return;
    for (q = 0; q < sim_plan.queues; q++) {
        const content *m = &contents[q][MIRROR];
        for (i = 0; i < m->count; i++)
            if (!items[m->of[i].id]->now.set)
                check_fail("mirror",
                           "item %d is %s, and in the list of what is pending",
                           m->of[i].id, place_name(&items[m->of[i].id]->now));
    }
}

static struct {
    int64_t offered, taken, acked, nacked, died, canceled, *next;
} counters;
static void read_counter(void *arg, const char *bytes, size_t len,
                         double score) {
    static const struct {
        const char *name;
        int64_t *value;
    } all[] = {
        {"offered", &counters.offered}, {"taken", &counters.taken},
        {"acked", &counters.acked},     {"nacked", &counters.nacked},
        {"died", &counters.died},       {"canceled", &counters.canceled}};
    size_t i;
    (void)arg, (void)score;
    if (counters.next) *counters.next = atoll(bytes);
    if (counters.next) {
        counters.next = NULL;
        return;
    }
    for (i = 0; i < 6; i++)
        if (len == strlen(all[i].name) && memcmp(bytes, all[i].name, len) == 0)
            counters.next = all[i].value;
}

/* Check that each item that was counted as offered is there, or was counted
 * when it left, even if the server has lost data. Java and programs that push
 * maintain no counters. */
static void check_counters(void) {
    int q, r, i,
        uncounted = sim_plan.broadcast || !sim_plan.counters || all_cleared > 0;
    for (i = 0; i < sim_plan.actor_count; i++)
        uncounted |=
            !sim_plan.actors[i].dropped && (sim_plan.actors[i].kind == JAVA ||
                                            sim_plan.actors[i].kind == PUSHER);
    if (uncounted) return;
    for (q = 0; q < sim_plan.queues; q++) {
        const struct name *n = &names[q][COUNTERS];
        int64_t in = 0, out;
        for (r = 0; r <= STREAM; r++)
            if (r != MIRROR) in += contents[q][r].count;
        memset(&counters, 0, sizeof counters);
        redis_each(sim_redis, n->text, n->len, read_counter, NULL);
        out = counters.acked + counters.canceled;
        if (!sim_plan.lease_ms) out += counters.taken;
        if (counters.offered != in + out)
            check_fail("counters",
                       "%lld offered, %lld taken, %lld acked, %lld nacked, "
                       "%lld died, %lld canceled, and %lld lie in the server",
                       (long long)counters.offered, (long long)counters.taken,
                       (long long)counters.acked, (long long)counters.nacked,
                       (long long)counters.died, (long long)counters.canceled,
                       (long long)in);
    }
}

static void tick_second(void) {
    int64_t now = service_now_us();
    int i;
    fell_due = 0;
    for (i = 0; i < item_count && sim_plan.max_late_ms; i++)
        fell_due += items[i]->now.set && items[i]->now.score * 1000 <= now &&
                    items[i]->now.score * 1000 > now - SIM_SECOND;
    for (i = 0; i < sim_plan.actor_count; i++)
        window_of(&sim_plan.actors[i]);
    for (i = 0; i < sim_plan.actor_count; i++)
        check_unseen(&sim_plan.actors[i]);
    events_then = events;
    check_keys();
}

/* Check the commands of each actor in an idle window: 3 s in which nothing is
 * stored, due or pushed, and there is no fault. */
static void check_idle(void) {
    int64_t now = sim_now();
    int q, i, full = 0, slow = plan_round_trip_us() > 200 * MS;
    static uint64_t events_seen;
    for (q = 0; q < sim_plan.queues; q++)
        if (!paused[q])
            full += contents[q][SET].count + contents[q][READY].count +
                    contents[q][RETRY].count;
    if (full || events != events_seen || !faults_quiet() ||
        now - faults_connections_us() < 3 * SIM_SECOND ||
        now - faults_other_us() < 3 * SIM_SECOND ||
        now - woke_us < 3 * SIM_SECOND) {
        events_seen = events;
        quiet_idle_us = now;
        idle_window_us = 0;
        return;
    }
    if (now - quiet_idle_us < 3 * SIM_SECOND) return;
    if (idle_window_us && now - idle_window_us < 3 * SIM_SECOND) return;
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor *a = &sim_plan.actors[i];
        uint64_t sent = a->commands - a->commands_then;
        uint64_t verbs = a->verbs - a->idle_verbs_then, polls;
        int logs_in = 0;
        a->commands_then = a->commands;
        a->idle_verbs_then = a->verbs;
        /* A login takes up to nine round trips. */
        if (a->connects != a->idle_connects_then)
            logs_in = 2 + slow + (int)(3 * plan_round_trip_us() / SIM_SECOND);
        else if (a->idle_logs_in)
            logs_in = a->idle_logs_in - 1;
        a->idle_connects_then = a->connects;
        a->idle_logs_in = logs_in;
        if (logs_in) sent = 0; /* a login may be in two windows */
        if (!idle_window_us || !a->alive || a->frozen) continue;
        if (a->kind == LOOP_WORKER || a->kind == OUTBOX_WORKER ||
            a->kind == MOVER || a->kind == SHARER)
            verbs = 1;
        if (!actor_takes(a) && a->kind != MOVER) continue;
        if (now - a->frozen_since_us < 15 * SIM_SECOND && a->frozen_us)
            continue;
        /* A sleeper sends five commands if it becomes a standby, two if it then
         * sleeps again, and a PING. It also polls if an ACL denies tracking. */
        polls = sim_plan.kinds & 1u << DENIED ? 8 : 0;
        if (polls && a->kind == WAIT_WORKER) polls += 12; /* two handles */
        if (slow) polls += 3; /* it learns late that another handle leads */
        if (sent > 8 + 5 * verbs + polls)
            check_fail("idle",
                       "%s sends %llu commands in 3 s in which "
                       "nothing happens, with %llu calls",
                       a->name, (unsigned long long)sent,
                       (unsigned long long)verbs);
    }
    idle_window_us = now;
}

/* --- liveness ------------------------------------------------------------ */

void check_woke(void) {
    woke_us = sim_now();
    events++; /* the other waiters may get new roles */
}

/* Time at which the server's clock was last set. A handle that waits notices
 * this at its next poll, after max_wait_ms at most. */
static int64_t clock_set_us;

void check_clock_set(void) {
    clock_set_us = sim_now();
    clock_sets++;
    history_clock_set();
}

/* Returns the time since which the item could have been taken, or 0 if it can't
 * be. */
static int64_t takable_since(item *it) {
    if (it->ready_us) return it->ready_us;
    if (!it->now.set || it->now.score * 1000 > service_now_us()) {
        it->overdue_us = 0;
        return 0;
    }
    if (!it->overdue_us)
        it->overdue_us =
            it->due_true_us > sim_now() ? it->due_true_us : sim_now();
    return it->overdue_us;
}

/* Returns the longest frame in which a fetched item surely is taken before its
 * lease ends. */
static int64_t most_frame_us(void) {
    int64_t lease_us = sim_plan.lease_ms * MS;
    return lease_us ? lease_us / 2 - plan_round_trip_us() : 16 * MS;
}

static void check_live(void) {
    int64_t now = sim_now(), trip = plan_round_trip_us(), calm, since, bound;
    int q, r, i, k;
    if (!faults_quiet()) return;
    if (clock_sets && now < clock_set_us + 62 * SIM_SECOND) return;
    calm = faults_other_us();
    since =
        faults_connections_us() + sim_plan.reconnect_max_ms * 1000 + 6 * trip;
    since += plan_search_us();
    if (since > calm) calm = since;
    if (woke_us > calm) calm = woke_us;
    if (now < calm + SIM_SECOND + 4 * trip + 50 * MS) return;
    /* Long after the last fault the limit is lower. On a slow line, and if the
     * server reports nothing, polls take a while. */
    bound = now > calm + 8 * SIM_SECOND ? 300 * MS : SIM_SECOND + 150 * MS;
    for (q = 0; q < sim_plan.queues; q++) {
        item *oldest = NULL;
        int64_t when = now, waited;
        int64_t most = bound + (sim_plan.queues > 1 ? 6 : 4) * trip;
        /* A script is sent in parts of 4 KB, each in its own round trip. */
        if (trip > SIM_SECOND) most += 6 * trip;
        if (paused[q]) continue;
        for (r = SET; r <= RETRY; r++) {
            const content *c = &contents[q][r];
            if (r == MIRROR) continue;
            for (i = 0; i < c->count; i++) {
                int64_t at = takable_since(items[c->of[i].id]);
                if (at && at < resumed_us[q]) at = resumed_us[q];
                if (at && at < when) when = at, oldest = items[c->of[i].id];
                if (r != SET || !at) break; /* the first item is the oldest */
            }
        }
        if (!oldest) continue;
        /* If an ACL denies PUBLISH, workers find a backlog only at their next
         * poll, and take it one by one. So this measures from the last take. */
        if (sim_plan.kinds & 1u << DENIED && when < taken_us[q])
            when = taken_us[q];
        waited = now - (when > calm ? when : calm);
        /* Without faults all workers learn of due items. If many items are due
         * together, an item may have to wait for the takes of others, for takes
         * that only bury, for a transfer of delayq_wait and a take from the
         * other queue, and for a small batch. */
        if (!sim_plan.fault_count && !oldest->ready_us &&
            now - taken_us[q] > trip + 20 * MS)
            most = trip * (1 + (sim_plan.max_attempts > 0) +
                           (sim_plan.max_late_ms > 0) +
                           2 * (sim_plan.queues > 1) +
                           (sim_plan.batch < 10)) +
                   20 * MS;
        most += 4 * (sim_plan.frame_us - 16 * MS);
        /* If an ACL denies PUBLISH, only the next poll finds the item. */
        if (sim_plan.kinds & 1u << DENIED &&
            (oldest->due_true_us <= calm || has_pauser()))
            most = 62 * SIM_SECOND;
        if (waited <= most) continue;
        for (k = 0; k < sim_plan.actor_count; k++) {
            const actor *a = &sim_plan.actors[k];
            if (!actor_takes(a) || !a->alive || a->frozen || !a->free_us ||
                (a->call && !actor_can_take(a->call)) ||
                (a->queue != q && a->kind != WAIT_WORKER) ||
                (is_framed(a) && (sim_plan.frame_us > most_frame_us() ||
                                  /* a frame may write only 3,000 bytes */
                                  sim_plan.mix.outbox_size >= 1 << 20)) ||
                now - a->free_us < waited)
                continue;
            check_fail("liveness",
                       "item %d is %s and could have been taken "
                       "for %lld ms, while %s waits in %s",
                       oldest->id, place_name(&oldest->now),
                       (long long)(waited / 1000), a->name,
                       a->call ? a->call : "poll");
            return;
        }
    }
}

static void check_calls(void) {
    int i;
    int64_t now = sim_now();
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor *a = &sim_plan.actors[i];
        if (!a->alive || !a->call || a->frozen) continue;
        if (a->woken_us && a->call && faults_quiet() &&
            now - a->woken_us > SIM_SECOND + 8 * plan_round_trip_us() &&
            now - faults_connections_us() >
                3 * SIM_SECOND + sim_plan.reconnect_max_ms * MS &&
            now - faults_other_us() > 3 * SIM_SECOND)
            check_fail("wake", "%s: %s was to end %lld ms ago", a->name,
                       a->call, (long long)((now - a->woken_us) / 1000));
        /* A freeze lengthens the measured round trip, and the next request gets
         * twice the measured time. */
        if (a->call_bound_us >= 0 && a->call &&
            now - a->call_us - 3 * a->frozen_us > a->call_bound_us + 100 * MS)
            check_fail("blocks",
                       "%s has been in %s for %lld ms, at most %lld "
                       "are promised",
                       a->name, a->call, (long long)((now - a->call_us) / 1000),
                       (long long)(a->call_bound_us / 1000));
    }
}

static void watch(void *arg) {
    (void)arg;
    check_live();
    check_mirror();
    check_counters();
    check_idle();
    check_calls();
    if (watched++ % 10 == 9) tick_second();
    sim_at(sim_now() + 100 * MS, watch, NULL);
}

/* --- a run --------------------------------------------------------------- */

/* Report a process that only polls and reads. A handle must sleep if it can't
 * act. */
static void check_spins(const char *name) {
    check_fail("spin", "%s polls or reads, and neither sleeps nor moves a byte",
               name);
}

void check_begin(void) {
    int q;
    process_spins = check_spins;
    check_failed[0] = check_text[0] = '\0';
    run_over = 0;
    check_free();
    memset(contents, 0, sizeof contents);
    dirty = 0;
    touched_count = 0;
    seq = 0;
    clock_sets = 0;
    acting = NULL;
    any_loss = 0;
    clearing = NULL;
    all_cleared = 0;
    woke_us = 0;
    events = events_then = 0;
    memset(paused, 0, sizeof paused);
    memset(resumed_us, 0, sizeof resumed_us);
    memset(mirror_empty_us, 0, sizeof mirror_empty_us);
    pause_touched = 0;
    quiet_idle_us = idle_window_us = 0;
    watched = unchanged = 0;
    for (q = 0; q < sim_plan.queues; q++) {
        name_set(q, READY, "", 0);
        name_set(q, SET, "redisson_delay_queue_timeout:", 1);
        name_set(q, MIRROR, "redisson_delay_queue:", 1);
        name_set(q, RETRY, "delayq_retry:", 1);
        name_set(q, DEAD, "delayq_dead:", 1);
        name_set(q, STREAM, "delayq_stream:", 1);
#if SIM_API < 2
        name_set(q, WAITERS, "delayq_waiting:", 1);
#else
        name_set(q, WAITERS, "delayq_waiters:", 1);
#endif
        name_set(q, COUNTERS, "delayq_counters:", 1);
        name_set(q, PAUSED, "delayq_paused:", 1);
        name_set(q, ONCE, "delayq_once:", 1);
        name_set(q, SENT, "delayq_sent:", 1);
    }
    history_begin();
    sim_at(100 * MS, watch, NULL);
}

static void tell_letter(void *arg, const char *bytes, size_t len,
                        double score) {
    (void)arg, (void)score;
    if (find_id(bytes, len) >= 0)
        history_final("dead", find_id(bytes, len), bytes, len);
}

static void tell_final(void) {
    static const char *const states[] = {"pending", "mirror", "ready", "retry"};
    int q, r, i;
    for (q = 0; q < sim_plan.queues; q++) {
        for (r = SET; r <= RETRY; r++)
            for (i = 0; i < contents[q][r].count; i++)
                history_final(states[r], contents[q][r].of[i].id, NULL, 0);
        redis_each(sim_redis, names[q][DEAD].text, names[q][DEAD].len,
                   tell_letter, NULL);
    }
    history_end();
}

/* Check that every item is where it should be, or that there is a reason why it
 * is not. */
void check_end_of_run(void) {
    int i, in = 0, out = 0, lost = 0, gone = 0;
    all_dirty();
    settle(NULL);
    tell_final();
    for (i = 0; i < item_count && !check_failed[0]; i++) {
        const item *it = items[i];
        const actor *a;
        if (total(&it->now)) {
            in++;
            continue;
        }
        if (!it->stored) continue;
        if (it->lost || it->disturbed) {
            lost++;
            continue;
        }
        out++;
        if (sim_plan.broadcast || it->got || !it->handed || sim_plan.lease_ms)
            continue;
        /* It was handed out, and never received. */
        gone++;
        a = it->hand_actor >= 0 ? &sim_plan.actors[it->hand_actor] : NULL;
        if (!a || a->kind == JAVA) continue;
        if (a->life == it->hand_life && a->alive && !a->call &&
            a->kind != OUTBOX_WORKER &&
            /* A recent fault may have delayed or lost the reply. */
            a->trouble_us + 2 * SIM_SECOND < it->hand_us)
            check_fail("lost",
                       "item %d was handed out to %s at %lld us, "
                       "which was told of nothing",
                       it->id, a->name, (long long)it->hand_us);
    }
    for (i = 0; i < sim_plan.actor_count; i++) {
        const actor *a = &sim_plan.actors[i];
        if (a->kind == LONG && !a->dropped &&
            (a->connects != 2 || a->elements <= 250000 || a->attempts <= 256 ||
             a->releases <= 256))
            check_fail("long",
                       "%s has read %lld elements, and nacked %lld times and "
                       "released %lld times, with %llu connections",
                       a->name, (long long)a->elements, (long long)a->attempts,
                       (long long)a->releases, (unsigned long long)a->connects);
    }
    TELL("at the end: %d items, %d in the server, %d gone, %d lost by faults",
         item_count, in, out, lost);
    run_over = 1;
}

void check_free(void) {
    int i, q, r;
    for (i = 0; i < item_count; i++) free(items[i]);
    free(items);
    items = NULL;
    item_count = item_room = 0;
    for (q = 0; q < QUEUES; q++)
        for (r = 0; r <= STREAM; r++) {
            free(contents[q][r].of);
            memset(&contents[q][r], 0, sizeof contents[q][r]);
        }
    free(tickets);
    tickets = NULL;
    ticket_count = ticket_room = 0;
}
