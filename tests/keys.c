/*
 * Cancels of keys. A cancel removes the item of its key if the item is pending
 * and was not leased or rescheduled. It removes no other item. In every case
 * the key is free afterwards.
 */
#include "outbox.h"
#include "proxy.h"

#define KEY "delayq_once:{jobs}:1:k"

static delayq_status offer_as(delayq *q, const char *text, int64_t delay_ms,
                              delayq_ticket *ticket) {
    delayq_message m = message(text, delay_ms);
    delayq_status status;
    m.key = "k";
    m.key_ttl_ms = 3600000;
    status = delayq_offer_message(q, &m);
    if (ticket) *ticket = m.ticket;
    return status;
}

static int key_exists(void) {
    return (int)ask_int("EXISTS " KEY);
}

static int64_t all_items(delayq *q) {
    delayq_counts c;
    OK(q, delayq_count(q, &c));
    return c.pending + c.ready;
}

/* Make the proxy drop all later replies on the command connection. */
static void lose_replies(delayq *q) {
    proxy->only = proxy_number(q->conn->cmd.c);
    proxy_strike(DROP, 1, 0, 1);
}

TEST(a_cancelled_key_takes_its_item_along_and_is_free) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        int i;
        ask("FLUSHALL");
        open_wire(&q, "jobs", wire);
        for (i = 0; i < 3; i++) {
            OFFER(&q, "other", 60000);
            OK(&q, offer_as(&q, "x", 60000, NULL));
            CHECK_STATUS(&q, offer_as(&q, "y", 60000, NULL), DELAYQ_DUPLICATE);
            OK(&q, delayq_cancel_key(&q, "k"));
            CHECK_INT(key_exists(), 0);
            CHECK_INT(all_items(&q), i + 1);
            if (wire != DELAYQ_NATIVE)
                CHECK_INT(ask_int("LLEN redisson_delay_queue:{jobs}"), i + 1);
        }
        CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_GONE);
        delayq_close(&q);
    }
}

TEST(a_key_of_a_broadcast_is_cancelled) {
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = DELAYQ_BROADCAST;
    OK(&q, delayq_open(&q, &o));
    OK(&q, offer_as(&q, "x", 60000, NULL));
    OK(&q, delayq_cancel_key(&q, "k"));
    CHECK_INT(all_items(&q), 0);
    delayq_close(&q);
}

TEST(a_key_is_free_though_its_item_is_no_longer_pending) {
    delayq q;
    delayq_item item;
    delayq_ticket t;
    int how;
    for (how = 0; how < 6; how++) {
        delayq_options o = options_for(&main_server, "jobs");
        ask("FLUSHALL");
        o.lease_ms = how >= 3 ? 60000 : 0;
        OK(&q, delayq_open(&q, &o));
        OK(&q, offer_as(&q, "x", 0, &t));
        elapse(main_connection(), 1);
        poll_now(&q);
        /* the tick moves the item to the ready list */
        if (how == 0) OK(&q, delayq_tick(&q, NULL));
        if (how == 1 || how >= 3) OK(&q, delayq_take(&q, &item, 0));
        if (how == 2) OK(&q, delayq_cancel(&q, &t));
        if (how == 4) OK(&q, delayq_nack(&q, &item, 60000));
        if (how == 5) OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
        CHECK_INT(key_exists(), 1);
        CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_GONE);
        CHECK_INT(key_exists(), 0);
        /* the number of items is unchanged */
        CHECK_INT(all_items(&q), how == 0 || how >= 3);
        if (how == 3) OK(&q, delayq_ack(&q, &item));
        OK(&q, offer_as(&q, "y", 60000, NULL));
        OK(&q, delayq_cancel_key(&q, "k"));
        delayq_close(&q);
    }
}

/* A reschedule gives the item a new ticket, but the key keeps the old one. */
TEST(a_rescheduled_item_stays_when_its_key_is_cancelled) {
    delayq q;
    delayq_ticket t;
    open_queue(&q, "jobs");
    OK(&q, offer_as(&q, "x", 60000, &t));
    OK(&q, delayq_reschedule(&q, &t, 90000));
    CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_GONE);
    CHECK_INT(all_items(&q), 1);
    OK(&q, delayq_cancel(&q, &t));
    delayq_close(&q);
}

TEST(an_item_is_unique_until_it_is_done) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&q, offer_as(&q, "one", 0, NULL));
    CHECK_STATUS(&q, offer_as(&q, "two", 0, NULL), DELAYQ_DUPLICATE);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_STATUS(&q, offer_as(&q, "two", 0, NULL), DELAYQ_DUPLICATE);
    OK(&q, delayq_ack(&q, &item));
    CHECK_STATUS(&q, offer_as(&q, "two", 0, NULL), DELAYQ_DUPLICATE);
    CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_GONE);
    OK(&q, offer_as(&q, "two", 0, NULL));
    OK(&q, delayq_take(&q, &item, 20000));
    item_is(&item, "two");
    delayq_close(&q);
}

TEST(a_bad_key_is_refused) {
    char key[258];
    delayq q;
    memset(key, 'k', sizeof key);
    key[257] = '\0';
    open_queue(&q, "jobs");
    CHECK_STATUS(&q, delayq_cancel_key(&q, key), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_cancel_key(&q, ""), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_cancel_key(&q, NULL), DELAYQ_ERR_ARG);
    key[256] = '\0';
    CHECK_STATUS(&q, delayq_cancel_key(&q, key), DELAYQ_GONE);
    delayq_close(&q);
    CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_ERR_ARG);
}

TEST(a_cancelled_key_counts_as_a_cancel) {
    delayq q;
    delayq_counts c;
    delayq_options o = options_for(&main_server, "jobs");
    o.counters = 1;
    OK(&q, delayq_open(&q, &o));
    OK(&q, offer_as(&q, "x", 60000, NULL));
    OK(&q, delayq_cancel_key(&q, "k"));
    CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_GONE);
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.total.canceled, 1);
    delayq_close(&q);
}

/* --- lost replies --------------------------------------------------------- */

/* A second run would cancel an item that another handle has offered since. */
TEST(a_cancel_of_a_key_whose_reply_is_lost_is_not_sent_again) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq q, other;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    open_queue(&other, "jobs");
    OK(&other, offer_as(&other, "x", 60000, NULL));
    proxy_strike(CUT, 1, 0, 1);
    CHECK_STATUS(&q, delayq_cancel_key(&q, "k"), DELAYQ_ERR_UNKNOWN);
    proxy_calm();
    CHECK_INT(key_exists(), 0);
    OK(&other, offer_as(&other, "y", 60000, NULL));
    CHECK_INT(all_items(&other), 1);
    delayq_close(&q);
    delayq_close(&other);
}

/* If the request could not be sent at all, it is sent again. */
TEST(a_cancel_of_a_key_goes_over_a_new_connection) {
    delayq q;
    open_queue(&q, "jobs");
    OK(&q, offer_as(&q, "x", 60000, NULL));
    ask("CLIENT KILL TYPE normal SKIPME yes");
    OK(&q, delayq_cancel_key(&q, "k"));
    delayq_close(&q);
}

/* --- an outbox ------------------------------------------------------------ */

TEST(an_outbox_cancels_keys_in_the_order_of_its_offers) {
    delayq q;
    int i, round;
    for (round = 0; round < 2; round++) {
        /* in the second round the handle is already connected */
        open_box(&q, 0);
        if (round) SETTLE(&q);
        for (i = 0; i < 5; i++) {
            OK(&q, offer_as(&q, "x", 60000, NULL));
            OFFER(&q, "other", 60000);
            OK(&q, delayq_cancel_key(&q, "k"));
            OK(&q, delayq_cancel_key(&q, "free"));
        }
        OK(&q, offer_as(&q, "last", 60000, NULL));
        SETTLE(&q);
        CHECK_INT(ask_int("ZCARD " ZSET), 6);
        /* the cancels of the unused key `free` */
        CHECK_INT(box(&q).gone, 5);
        CHECK_INT(box(&q).duplicate, 0);
        CHECK_INT(box(&q).offers_accepted, 21);
        OK(&q, delayq_cancel_key(&q, "k"));
        SETTLE(&q);
        CHECK_INT(ask_int("ZCARD " ZSET), 5);
        ask("FLUSHALL");
        delayq_close(&q);
    }
}

/* The two ways to cancel have different scripts. */
TEST(an_outbox_cancels_by_key_and_by_ticket_in_turn) {
    delayq q;
    delayq_message m[2];
    int i;
    open_box(&q, 0);
    UNTIL((turn(&q), q.probed));
    for (i = 0; i < 10; i++) {
        /* the offer is in flight, and the other ops wait */
        OK(&q, offer_as(&q, "x", 60000, NULL));
        m[0] = message("y", 60000);
        m[1] = message("z", 60000);
        OK(&q, delayq_offer_many(&q, m, 2));
        CHECK(m[0].ticket.text[0]);
        OK(&q, delayq_cancel(&q, &m[0].ticket));
        OK(&q, delayq_cancel_key(&q, "k"));
        OK(&q, delayq_cancel(&q, &m[1].ticket));
        OFFER(&q, "stays", 60000);
        SETTLE(&q);
        CHECK_INT(ask_int("ZCARD " ZSET), i + 1);
        CHECK_INT(key_exists(), 0);
    }
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
}

/* The connection is cut at many places, in each direction. Each op must be done
 * once, and in order. */
TEST(an_outbox_whose_replies_are_lost_cancels_each_key_once) {
    int direction;
    long at;
    proxy_start(&main_server);
    for (direction = 0; direction < 2; direction++)
        for (at = 0; at < (direction ? 120 : 900); at += direction ? 7 : 41) {
            delayq_options o = box_options(&main_server, BOX);
            delayq q, other;
            int i;
            ask("FLUSHALL");
            o.url = proxy_url();
            OK(&q, delayq_open(&q, &o));
            SETTLE(&q);
            UNTIL((turn(&q), q.probed));
            open_queue(&other, "jobs");
            OK(&other, offer_as(&other, "first", 60000, NULL));
            proxy_strike(CUT, direction, at, 2);
            OK(&q, delayq_cancel_key(&q, "k"));
            for (i = 0; i < 3; i++) {
                OK(&q, offer_as(&q, "x", 60000, NULL));
                OK(&q, delayq_cancel_key(&q, "k"));
            }
            OK(&q, offer_as(&q, "last", 60000, NULL));
            SETTLE(&q);
            proxy_calm();
            CHECK_INT(key_exists(), 1);
            CHECK_INT(all_items(&other), 1);
            CHECK_INT(box(&q).duplicate, 0);
            delayq_close(&q);
            delayq_close(&other);
        }
}

/* A resend must not cancel an item that was offered meanwhile. */
TEST(an_outbox_that_sends_a_cancel_of_a_key_again_leaves_the_next_item) {
    delayq_options o = box_options(&main_server, BOX);
    delayq q, other;
    int i;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    UNTIL((turn(&q), q.probed));
    open_queue(&other, "jobs");
    OK(&other, offer_as(&other, "x", 60000, NULL));
    lose_replies(&q);
    OK(&q, delayq_cancel_key(&q, "k"));
    UNTIL((turn(&q), key_exists() == 0));
    OK(&other, offer_as(&other, "y", 60000, NULL));
    for (i = 0; i < 20; i++, usleep(1000)) turn(&q);
    CHECK(box(&q).offers_settled == 0);
    ask("CLIENT KILL TYPE normal SKIPME yes");
    SETTLE(&q);
    proxy_calm();
    CHECK_INT(key_exists(), 1);
    CHECK_INT(all_items(&other), 1);
    delayq_close(&q);
    delayq_close(&other);
}

/* --- a key is cancelled while the reply to its offer is lost -------------- */

static void cancel_when_stored(void *unused) {
    delayq q;
    (void)unused;
    open_queue(&q, "jobs");
    UNTIL(key_exists());
    OK(&q, delayq_cancel_key(&q, "k"));
    usleep(20000);
    ask("CLIENT KILL TYPE normal SKIPME yes");
    delayq_close(&q);
}

/* The call sends the offer again after the cancel, so the item is stored. */
TEST(a_key_is_cancelled_while_the_reply_to_an_offer_is_lost) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq q;
    pid_t child;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    lose_replies(&q);
    child = spawn(cancel_when_stored, NULL);
    OK(&q, offer_as(&q, "x", 60000, NULL));
    join(child);
    CHECK_INT(key_exists(), 1);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK_STATUS(&q, offer_as(&q, "x", 60000, NULL), DELAYQ_DUPLICATE);
    delayq_close(&q);
}

/* An outbox stores an offer only once, so its resend after the cancel stores
 * nothing. */
TEST(a_key_is_cancelled_while_the_reply_to_an_outboxs_offer_is_lost) {
    delayq_options o = box_options(&main_server, BOX);
    delayq q;
    pid_t child;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    UNTIL((turn(&q), q.probed));
    lose_replies(&q);
    child = spawn(cancel_when_stored, NULL);
    OK(&q, offer_as(&q, "x", 60000, NULL));
    SETTLE(&q);
    join(child);
    CHECK_INT(key_exists(), 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}
