/*
 * An item in hand stays readable until its handle's next take or peek, whatever
 * the program calls before that. Run with ASan or valgrind.
 */
#include "test.h"

#define LEN 100
#define MOST 3

/* The handles, and the items in hand. */
static struct {
    delayq q, owner, helper;
    delayq_item items[MOST];
    size_t count;
    delayq_ticket offered; /* the ticket of an item that is still pending */
    unsigned char memory[2][32768];
} hand;

static delayq *q;
static delayq_item *item;

static void do_nothing(void) {
}
static void do_offer(void) {
    delayq_offer(q, "x", 1, 60000);
}
static void do_offer_message(void) {
    delayq_message m = message("x", 60000);
    m.key = "key";
    m.key_ttl_ms = 60000;
    delayq_offer_message(q, &m);
}
static void do_offer_many(void) {
    delayq_message m[2];
    m[0] = m[1] = message("x", 0);
    delayq_offer_many(q, m, 2);
}
static void do_tick(void) {
    delayq_tick(q, NULL);
}
static void do_ack(void) {
    delayq_ack(q, item);
}
static void do_ack_many(void) {
    delayq_item acked[MOST];
    memcpy(acked, hand.items, sizeof acked);
    delayq_ack_many(q, acked, hand.count);
}
static void do_nack(void) {
    delayq_nack(q, item, 0);
}
static void do_release(void) {
    delayq_nack(q, item, DELAYQ_RELEASE);
}
static void do_extend(void) {
    delayq_item extended = *item;
    delayq_extend(q, &extended, 60000);
}
static void do_bury(void) {
    delayq_bury(q, item, "why");
}
static void do_cancel(void) {
    delayq_cancel(q, &hand.offered);
}
static void do_cancel_key(void) {
    delayq_cancel_key(q, "key");
}
static void do_reschedule(void) {
    delayq_reschedule(q, &hand.offered, 0);
}
static void do_count(void) {
    delayq_counts counts;
    delayq_count(q, &counts);
}
static void do_count_due(void) {
    int64_t due = 1, n;
    delayq_count_due(q, &due, 1, &n);
}
static void do_pause(void) {
    delayq_pause(q, 1);
    delayq_tick(q, NULL);
    delayq_pause(q, 0);
}
static void do_load_scripts(void) {
    delayq_load_scripts(q);
}
static void do_redrive(void) {
    size_t n;
    delayq_dead_redrive(q, 5, &n);
}
static void do_dead_clear(void) {
    int64_t n;
    delayq_dead_clear(q, &n);
}
static void do_clear(void) {
    int64_t n;
    delayq_clear(q, &n);
}
static void do_wait(void) {
    delayq_wait(&q, 1, 20);
}
static void do_look(void) {
    delayq_wait(&q, 1, 0);
}
static void do_wake(void) {
    delayq_wake(q);
    delayq_wait(&q, 1, 20);
}
static void do_flush(void) {
    delayq_flush(q, 100);
}
static void do_outbox(void) {
    delayq_outbox_state state;
    int fds[4];
    delayq_outbox(q, &state);
    delayq_fds(q, fds, 4);
}
/* Take with the owner of the shared connection, if there is one. */
static void do_others_take(void) {
    delayq_item other;
    if (hand.owner.conn) delayq_take(&hand.owner, &other, 20);
}
static void do_others_tick(void) {
    if (hand.owner.conn) delayq_tick(&hand.owner, NULL);
}
static void do_others_close(void) {
    if (hand.owner.conn) delayq_close(&hand.owner);
}

static void (*const calls[])(void) = {
    do_nothing,    do_offer,      do_offer_message, do_offer_many,
    do_tick,       do_ack,        do_ack_many,      do_nack,
    do_release,    do_extend,     do_bury,          do_cancel,
    do_cancel_key, do_reschedule, do_count,         do_count_due,
    do_pause,      do_load_scripts, do_redrive,     do_dead_clear,
    do_clear,      do_wait,       do_look,          do_wake,
    do_flush,      do_outbox,     do_others_take,   do_others_tick,
    do_others_close,
};
#define CALLS (sizeof calls / sizeof calls[0])

static void payload(char *to, size_t number) {
    memset(to, 'a' + (int)number, LEN);
}

/* Check each byte of the items in hand. */
static void readable(size_t call) {
    char text[LEN];
    size_t i;
    for (i = 0; i < hand.count; i++) {
        payload(text, (size_t)(*(const char *)hand.items[i].data - 'a'));
        if (hand.items[i].len != LEN ||
            memcmp(hand.items[i].data, text, LEN) != 0)
            FAIL("item %d has changed after call %d", (int)i, (int)call);
    }
}

static void turns(int n) {
    for (; n > 0; n--) {
        delayq_tick(q, NULL);
        usleep(500);
    }
}

enum { OUTBOX = 1, SHARED = 2 };

/* Open the handles, offer MOST items, and take up to `many` of them. */
static void take_some(int kind, int lease_ms, int many) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_message m[MOST];
    char text[MOST][LEN];
    int i;
    ask("FLUSHALL");
    memset(&hand, 0, sizeof hand);
    q = &hand.q;
    OK(&hand.helper, delayq_open(&hand.helper, &o));
    o.lease_ms = lease_ms;
    if (kind & SHARED) {
        delayq_options owner = o;
        owner.outbox = kind & OUTBOX ? hand.memory[1] : NULL;
        owner.outbox_size = sizeof hand.memory[1];
        if (!owner.outbox) owner.outbox_size = 0;
        OK(&hand.owner, delayq_open(&hand.owner, &owner));
        o.share = &hand.owner;
        o.url = NULL;
        o.io_timeout_ms = 0;
    }
    if (kind & OUTBOX) {
        o.outbox = hand.memory[0];
        o.outbox_size = sizeof hand.memory[0];
    }
    OK(q, delayq_open(q, &o));
    m[0] = message("later", 60000);
    OK(&hand.helper, delayq_offer_message(&hand.helper, &m[0]));
    hand.offered = m[0].ticket;
    for (i = 0; i < MOST; i++) {
        payload(text[i], (size_t)i);
        m[i] = message("", 0);
        m[i].data = text[i];
        m[i].len = LEN;
    }
    OK(&hand.helper, delayq_offer_many(&hand.helper, m, MOST));
    elapse(main_connection(), 1);
    UNTIL(delayq_take_many(q, hand.items, (size_t)many, &hand.count, 20) ==
          DELAYQ_OK);
    item = &hand.items[0];
}

static void close_all(void) {
    delayq_close(q);
    if (hand.owner.conn) delayq_close(&hand.owner);
    delayq_close(&hand.helper);
}

/* Take items, let another fall due, call a function, and read the items. */
static void each_call(int kind, int lease_ms) {
    size_t call;
    int many, cut;
    for (call = 0; call < CALLS; call++)
        for (many = 1; many <= MOST; many += MOST - 1)
            for (cut = 0; cut < 2; cut++) {
                if (cut && test_brief()) continue;
                take_some(kind, lease_ms, many);
                OFFER(&hand.helper, "another", 0);
                elapse(main_connection(), 1);
                if (cut) ask("CLIENT KILL TYPE normal SKIPME yes");
                if (cut) ask("CLIENT KILL TYPE pubsub");
                calls[call]();
                readable(call);
                turns(3);
                readable(call);
                close_all();
            }
}

TEST(an_item_in_hand_is_readable_after_each_call) {
    each_call(0, 0);
}
TEST(an_item_in_hand_is_readable_after_each_call_with_a_lease) {
    each_call(0, 60000);
}
TEST(an_item_in_hand_is_readable_after_each_call_with_an_outbox) {
    each_call(OUTBOX, 0);
    each_call(OUTBOX, 60000);
}
TEST(an_item_in_hand_is_readable_after_each_call_on_a_shared_connection) {
    each_call(SHARED, 0);
    each_call(SHARED, 60000);
}
TEST(an_item_in_hand_is_readable_after_each_call_with_a_shared_outbox) {
    each_call(SHARED | OUTBOX, 0);
    each_call(SHARED | OUTBOX, 60000);
}
