/*
 * Any mixture of offers, cancels and reschedules through an outbox. The result
 * is the same as if the ops were done one by one, even if connections are lost.
 * If none is lost, the ops share few requests.
 */
#include "outbox.h"

enum { SLOTS = 64, KEYS = 4, OPS = 2000 };

/* The items that the queue must contain. */
static struct {
    struct {
        delayq_ticket ticket;
        int pending, rescheduled;
    } slot[SLOTS];
    int held_by[KEYS]; /* a slot, or -1: none */
    int next, pending;
    uint64_t gone, duplicate;
} model;

static void remove_item(int slot) {
    if (slot < 0 || !model.slot[slot].pending) {
        model.gone++;
        return;
    }
    model.slot[slot].pending = 0;
    model.pending--;
}

/* Returns the slot that key `k` names, or -1. The key holds the ticket of the
 * offer, which is no longer valid after a reschedule. */
static int held(int k) {
    int slot = model.held_by[k];
    return slot >= 0 && model.slot[slot].rescheduled ? -1 : slot;
}

static void key_text(int k, char text[8]) {
    memcpy(text, "k0", 3);
    text[1] = (char)(text[1] + k);
}

/* Offer an item in the next slot, with key `k` if k >= 0. If the slot had an
 * item, that item stays in the queue, but nobody has its ticket. */
static void offer(delayq *q, int k, int replace) {
    int slot = model.next++ % SLOTS, i;
    char name[8];
    delayq_message m = message("x", 3600000);
    for (i = 0; i < KEYS; i++) /* don't reuse a slot that a key names */
        if (model.held_by[i] == slot) return;
    if (k >= 0) key_text(k, name);
    if (k >= 0) m.key = name;
    m.key_ttl_ms = 3600000;
    m.replace = replace;
    OK(q, delayq_offer_message(q, &m));
    if (k >= 0 && model.held_by[k] >= 0 && !replace) {
        model.duplicate++;
        return;
    }
    if (k >= 0 && held(k) >= 0 && model.slot[held(k)].pending) {
        model.slot[held(k)].pending = 0;
        model.pending--;
    }
    if (k >= 0) model.held_by[k] = slot;
    model.slot[slot].ticket = m.ticket;
    model.slot[slot].pending = 1;
    model.slot[slot].rescheduled = 0;
    model.pending++;
}

static void do_something(delayq *q, unsigned chance) {
    int slot = (int)(chance >> 8) % SLOTS, k = (int)(chance >> 16) % KEYS;
    char name[8];
    if (chance % 8 < 4) {
        offer(q, chance % 8 < 2 ? -1 : k, chance % 8 == 3);
    } else if (!model.slot[slot].ticket.text[0]) {
        offer(q, -1, 0);
    } else if (chance % 8 == 4) {
        OK(q, delayq_cancel(q, &model.slot[slot].ticket));
        remove_item(slot);
    } else if (chance % 8 < 7) {
        OK(q, delayq_reschedule(q, &model.slot[slot].ticket, 1800000));
        if (!model.slot[slot].pending) model.gone++;
        model.slot[slot].rescheduled = 1;
    } else {
        key_text(k, name);
        OK(q, delayq_cancel_key(q, name));
        remove_item(held(k));
        model.held_by[k] = -1;
    }
}

static void mix(delayq_wire wire, int lost) {
    delayq q;
    delayq_options o = box_options(&main_server, 1 << 20);
    unsigned chance = 1;
    int i, before;
    memset(&model, 0, sizeof model);
    for (i = 0; i < KEYS; i++) model.held_by[i] = -1;
    ask("FLUSHALL");
    o.wire = wire;
    OK(&q, delayq_open(&q, &o));
    UNTIL((turn(&q), q.probed));
    before = scripts_run(main_connection());
    for (i = 0; i < OPS; i++) {
        chance = chance * 1103515245 + 12345;
        do_something(&q, chance >> 4);
        if (lost && i % 37 == 0) turn(&q);
        if (lost && i % 61 == 0) ask("CLIENT KILL TYPE normal SKIPME yes");
    }
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), model.pending);
    if (q.wire->mirror)
        CHECK_INT(ask_int("LLEN redisson_delay_queue:{jobs}"), model.pending);
    if (lost) { /* the result in a lost reply is not counted */
        CHECK(box(&q).duplicate <= (uint64_t)model.duplicate);
        CHECK(box(&q).gone <= (uint64_t)model.gone);
    } else {
        CHECK_INT(box(&q).duplicate, model.duplicate);
        CHECK_INT(box(&q).gone, model.gone);
    }
    CHECK_INT(box(&q).dropped, 0);
    i = scripts_run(main_connection()) - before;
    if (!lost && i > OPS / 100) FAIL("%d scripts for %d ops", i, OPS);
    delayq_close(&q);
}

TEST(a_mixture_of_offers_and_cancels_shares_requests_in_its_order) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) mix(wire, 0);
}
TEST(a_mixture_of_offers_and_cancels_survives_lost_connections) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) mix(wire, 1);
}

/* If an offer is refused, all later ops wait for it, also those of the same
 * request. */
TEST(nothing_overtakes_a_refused_offer_in_a_mixture) {
    delayq q;
    delayq_message x = message("x", 3600000), a = x, k = x;
    int before;
    k.key = "k";
    k.key_ttl_ms = 60000;
    ask("RPUSH delayq_once:{jobs}:1:k wrong");
    open_box(&q, 0);
    UNTIL((turn(&q), q.probed));
    /* this offer is in flight; the others share one request */
    OK(&q, delayq_offer_message(&q, &x));
    OK(&q, delayq_offer_message(&q, &a));
    OK(&q, delayq_cancel(&q, &x.ticket));
    OK(&q, delayq_offer_message(&q, &k));
    OK(&q, delayq_cancel(&q, &a.ticket));
    OFFER(&q, "behind", 3600000);
    before = scripts_run(main_connection());
    UNTIL((turn(&q), scripts_run(main_connection()) > before + 3));
    CHECK_INT(ask_int("ZCARD " ZSET), 1); /* `a` has not been cancelled yet */
    ask("DEL delayq_once:{jobs}:1:k");
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
}
