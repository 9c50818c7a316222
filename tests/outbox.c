/*
 * Handles with an outbox. Each accepted op is done once, in order. An op that
 * the server refuses stays in the outbox until the cause has ended. If there is
 * no room for an op, its call fails at once. A take does not wait, and hands
 * out only items that have already arrived.
 *
 * outbox_faults.c tests broken connections, nonblock/ tests that no call waits,
 * and outbox_idle.c tests the cost of a loop.
 */
#include "outbox.h"
#include <hiredis/sds.h>
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

static delayq q;
static delayq_item item;

static int64_t wall_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Take an item with another handle, which has no outbox. */
static void taken_elsewhere(const char *payload) {
    delayq other;
    open_queue(&other, "jobs");
    OK(&other, delayq_take(&other, &item, 20000));
    item_is(&item, payload);
    delayq_close(&other);
}

/* A server for a single test. */
static server own;
static redisContext *admin;
static void start_own(const char *const *arguments) {
    server_start(&own, arguments);
    admin = server_connect(&own);
}
/* Start the server `own`, and open q on it, with an outbox. */
static void open_own(int64_t lease_ms) {
    delayq_options o;
    start_own(NULL);
    o = box_options(&own, BOX);
    o.lease_ms = lease_ms;
    OK(&q, delayq_open(&q, &o));
}
static void end_own(void) {
    redisFree(admin);
    server_end(&own);
}
static void tell(const char *command) {
    redisReply *r = run(admin, command);
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", command, r->str);
    freeReplyObject(r);
}
static long long number(const char *command) {
    redisReply *r = run(admin, command);
    long long n = r->integer;
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", command, r->str);
    freeReplyObject(r);
    return n;
}

static volatile int logged;
static char log_text[512];
static void on_log(void *user, delayq_status status, const char *text) {
    (void)user;
    CHECK(*text && !strchr(text, '\n'));
    if (status == DELAYQ_OK) return; /* an event, not a fault */
    snprintf(log_text, sizeof log_text, "%s", text);
    logged++;
}

/* --- accounting ---------------------------------------------------------- */

TEST(an_outbox_counts_what_it_has_accepted_and_what_is_settled) {
    delayq_outbox_state s;
    int i;
    open_box(&q, 0);
    s = box(&q);
    CHECK_INT(s.offers_accepted + s.changes_accepted + s.bytes, 0);
    CHECK(s.size > BOX / 2 && s.size <= BOX);
    for (i = 0; i < 10; i++) OFFER(&q, "x", 60000);
    s = box(&q);
    CHECK_INT(s.offers_accepted, 10);
    CHECK_INT(s.changes_accepted, 0);
    SETTLE(&q);
    s = box(&q);
    CHECK_INT(s.offers_settled, 10);
    CHECK_INT(s.gone + s.duplicate + s.dropped, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 10);
    delayq_close(&q);
}

TEST(bytes_of_an_outbox_grow_with_each_offer_while_no_server_answers) {
    delayq_options o;
    size_t bytes = 0;
    int i;
    start_own(NULL);
    server_kill(&own, SIGSTOP);
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 10; i++) {
        OFFER(&q, "payload", 60000);
        CHECK(box(&q).bytes >= bytes + 7);
        bytes = box(&q).bytes;
    }
    CHECK_INT(box(&q).offers_settled, 0);
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 10);
    delayq_close(&q);
    end_own();
}

/* Ops that wait for a frozen server are kept in the caller's memory, not in
 * hiredis' buffer. */
TEST(a_frozen_server_fills_the_outbox_and_no_other_memory) {
    static char large[300000];
    static const size_t lengths[] = {100, 3000, sizeof large};
    size_t i, most = 0;
    CHECK(sizeof(delayq) < 4096);
    for (i = 0; i < 3; i++) {
        delayq_options o;
        int accepted = 0, full = 0;
        start_own(NULL);
        o = box_options(&own, 1 << 20);
        OK(&q, delayq_open(&q, &o));
        UNTIL((turn(&q), q.conn->known));
        server_kill(&own, SIGSTOP);
        while (full < 1000) {
            const redisContext *c = q.conn->cmd.c;
            delayq_status status = delayq_offer(&q, large, lengths[i], 60000);
            accepted += status == DELAYQ_OK;
            if (status == DELAYQ_ERR_FULL) full++;
            turn(&q);
            if (c && c == q.conn->cmd.c && sdslen(c->obuf) > most)
                most = sdslen(c->obuf);
        }
        CHECK(most < 256 * 1024);
        CHECK(box(&q).bytes <= box(&q).size);
        server_kill(&own, SIGCONT);
        SETTLE(&q);
        CHECK_INT(number("ZCARD " ZSET), accepted);
        delayq_close(&q);
        end_own();
    }
    CHECK(most > 0);
}

TEST(a_full_outbox_refuses_and_has_room_again_later) {
    static char payload[100];
    delayq_message m[50];
    delayq_outbox_state s;
    int i, n = 0, refused;
    memset(payload, 'x', sizeof payload);
    open_own(0);
    for (i = 0; i < 2; i++) {
        server_kill(&own, SIGSTOP);
        while (delayq_offer(&q, payload, sizeof payload, 60000) == DELAYQ_OK) {
            CHECK(++n < 2000);
            if (n % 50 == 0) turn(&q);
        }
        CHECK_STATUS(&q, delayq_offer(&q, payload, sizeof payload, 60000),
                     DELAYQ_ERR_FULL);
        CHECK(delayq_errmsg(&q)[0]);
        s = box(&q);
        CHECK_INT(s.offers_accepted, n);
        CHECK_INT(s.dropped, 0);
        server_kill(&own, SIGCONT);
        SETTLE(&q);
        CHECK_INT(number("ZCARD " ZSET), n);
    }
    /* the ring of the offers has 48 KiB, and an offer needs at most 230 bytes
     * more than its payload */
    CHECK(n > 2 * 150);
    server_kill(&own, SIGSTOP);
    for (i = 0, refused = 0; i < 2000 && !refused; i += 50) {
        int k;
        for (k = 0; k < 50; k++) {
            m[k] = message("y", 60000);
            m[k].data = payload;
            m[k].len = sizeof payload;
        }
        refused = delayq_offer_many(&q, m, 50) == DELAYQ_ERR_FULL;
        for (k = 0; k < 50; k++) {
            CHECK(m[k].status == DELAYQ_OK || m[k].status == DELAYQ_ERR_FULL);
            n += m[k].status == DELAYQ_OK;
            if (refused && k == 49) CHECK(m[k].status == DELAYQ_ERR_FULL);
        }
        CHECK_INT(box(&q).offers_accepted, n);
    }
    CHECK(refused);
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), n);
    delayq_close(&q);
    end_own();
}

/* The ring wraps many times. All remainders of a length modulo 8 occur. */
TEST(payloads_of_all_lengths_pass_through_a_small_outbox_unchanged) {
    static unsigned char bytes[1500];
    delayq_options o = box_options(&main_server, 8 * 1024);
    delayq other;
    int i, n = test_brief() ? 150 : 600, got = 0;
    for (i = 0; i < (int)sizeof bytes; i++) bytes[i] = (unsigned char)(i * 7);
    OK(&q, delayq_open(&q, &o));
    open_queue(&other, "jobs");
    for (i = 0; i < n; i++) {
        size_t len = (size_t)(i * 37 % 1500);
        UNTIL(offered(&q, bytes + i % 7, len > 7 ? len - 7 : 0, 0));
        if (i % 5 == 0) turn(&q);
    }
    SETTLE(&q);
    while (got < n) {
        size_t len = (size_t)(got * 37 % 1500);
        OK(&other, delayq_take(&other, &item, 20000));
        CHECK_INT(item.len, len > 7 ? len - 7 : 0);
        CHECK(memcmp(item.data, bytes + got % 7, item.len) == 0);
        got++;
    }
    CHECK_INT(box(&q).offers_settled, n);
    delayq_close(&q);
    delayq_close(&other);
}

TEST(an_item_larger_than_half_a_ring_is_refused_as_an_argument) {
    static char big[BOX];
    delayq_message m = message("x", 0);
    open_box(&q, 0);
    CHECK_STATUS(&q, delayq_offer(&q, big, BOX * 3 / 4 * 4 / 5, 0),
                 DELAYQ_ERR_ARG);
    m.data = big;
    m.len = BOX * 3 / 4 * 4 / 5;
    CHECK_STATUS(&q, delayq_offer_message(&q, &m), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_offer(&q, NULL, 1, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, -1), DELAYQ_ERR_ARG);
    CHECK_INT(box(&q).offers_accepted, 0);
    OK(&q, delayq_offer(&q, big, BOX * 3 / 4 / 3, 60000));
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

/* --- order --------------------------------------------------------------- */

/* Check that items 0 to n - 1 are taken in this order, and no other item. */
static void come_in_order(int n) {
    delayq other;
    char text[16];
    int i;
    open_queue(&other, "jobs");
    for (i = 0; i < n; i++) {
        snprintf(text, sizeof text, "%d", i);
        OK(&other, delayq_take(&other, &item, 20000));
        item_is(&item, text);
    }
    CHECK_STATUS(&other, delayq_take(&other, &item, 0), DELAYQ_EMPTY);
    delayq_close(&other);
}

/* delayq_offer_message fixes the due time at the call, delayq_offer doesn't. */
TEST(messages_of_one_outbox_keep_their_order_with_keys_and_without) {
    char text[16], key[16];
    int i, n = 300;
    open_box(&q, 0);
    for (i = 0; i < n; i++) {
        delayq_message m;
        snprintf(text, sizeof text, "%d", i);
        snprintf(key, sizeof key, "k%d", i);
        m = message(text, 0);
        if (i % 7 == 0) m.key = key, m.key_ttl_ms = 60000;
        UNTIL(changed(&q, delayq_offer_message(&q, &m)));
        if (i % 11 == 0) turn(&q);
    }
    SETTLE(&q);
    come_in_order(n);
    delayq_close(&q);
}

/* Open q and wait for a reply. From then on its calls can return tickets. */
static void open_known(int64_t lease_ms) {
    open_box(&q, lease_ms);
    OFFER(&q, "first", 60000);
    SETTLE(&q);
    ask("DEL " ZSET);
}

TEST(changes_of_own_offers_are_done_in_the_order_of_the_calls) {
    delayq_message a = message("a", 60000), b = message("b", 60000);
    delayq_message c = message("c", 60000);
    delayq_ticket old;
    int64_t due;
    open_known(0);
    OK(&q, delayq_offer_message(&q, &a));
    OK(&q, delayq_cancel(&q, &a.ticket));
    OK(&q, delayq_offer_message(&q, &b));
    OK(&q, delayq_offer_message(&q, &c));
    OK(&q, delayq_reschedule(&q, &c.ticket, 600000));
    old = b.ticket;
    OK(&q, delayq_reschedule(&q, &b.ticket, 900000));
    CHECK(strcmp(old.text, b.ticket.text) != 0);
    OK(&q, delayq_cancel(&q, &b.ticket));
    CHECK_INT(box(&q).changes_accepted, 0);
    CHECK_INT(box(&q).offers_accepted, 1 + 7);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    due = only_due(main_connection());
    CHECK(due > wall_ms() + 500000 && due < wall_ms() + 700000);
    CHECK(atoll(c.ticket.text) == due);
    delayq_close(&q);
}

/* --- each kind of offer -------------------------------------------------- */

TEST(a_message_with_a_key_is_stored_once_and_its_double_counted) {
    delayq_message a = message("a", 60000), b = message("b", 60000);
    open_box(&q, 0);
    a.key = b.key = "k";
    a.key_ttl_ms = b.key_ttl_ms = 60000;
    OK(&q, delayq_offer_message(&q, &a));
    OK(&q, delayq_offer_message(&q, &b));
    SETTLE(&q);
    CHECK_INT(box(&q).duplicate, 1);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    b.replace = 1;
    b.delay_ms = 0;
    OK(&q, delayq_offer_message(&q, &b));
    SETTLE(&q);
    CHECK_INT(box(&q).duplicate, 1);
    CHECK_INT(box(&q).offers_settled, 3);
    taken_elsewhere("b");
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

TEST(a_message_with_a_due_time_of_its_own_is_due_then) {
    delayq_message m = message("x", 0);
    int64_t due = wall_ms() + 123456;
    open_box(&q, 0);
    m.due_ms = due;
    OK(&q, delayq_offer_message(&q, &m));
    SETTLE(&q);
    CHECK_INT(only_due(main_connection()), due);
    delayq_close(&q);
}

TEST(a_ticket_is_that_of_the_item_which_is_stored) {
    delayq_message m = message("x", 60000), many[3];
    delayq_item items[8];
    delayq other;
    size_t n, i;
    int64_t before, after;
    open_known(0);
    before = wall_ms();
    OK(&q, delayq_offer_message(&q, &m));
    after = wall_ms();
    CHECK(m.ticket.text[0]);
    for (i = 0; i < 3; i++) many[i] = message("y", 70000 + (int64_t)i * 1000);
    OK(&q, delayq_offer_many(&q, many, 3));
    SETTLE(&q);
    open_queue(&other, "jobs");
    OK(&other, delayq_peek(&other, items, 8, &n, NULL));
    CHECK_INT(n, 4);
    CHECK_TEXT(items[0].ticket.text, m.ticket.text);
    for (i = 0; i < 3; i++) {
        CHECK_INT(many[i].status, DELAYQ_OK);
        CHECK_TEXT(items[i + 1].ticket.text, many[i].ticket.text);
    }
    CHECK(items[0].due_ms >= before + 60000);
    CHECK(items[0].due_ms <= after + 60000 + 1000 * test_slow());
    OK(&other, delayq_cancel(&other, &m.ticket));
    delayq_close(&other);
    delayq_close(&q);
}

TEST(before_the_first_connection_there_is_no_ticket) {
    delayq_message m = message("x", 60000);
    delayq_ticket foreign;
    delayq_options o;
    memset(&foreign, 0, sizeof foreign);
    start_own(NULL);
    server_kill(&own, SIGSTOP);
    o = box_options(&own, BOX);
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    strcpy(m.ticket.text, "left over");
    OK(&q, delayq_offer_message(&q, &m));
    CHECK_TEXT(m.ticket.text, "");
    CHECK_STATUS(&q, delayq_cancel(&q, &m.ticket), DELAYQ_ERR_ARG);
    snprintf(foreign.text, sizeof foreign.text, "%s",
             "1700000000000-00112233445566778899aabbccddeeff");
    CHECK_STATUS(&q, delayq_reschedule(&q, &foreign, 1000), DELAYQ_ERR_IO);
    memset(&item, 0, sizeof item);
    item.ticket = foreign;
    CHECK_STATUS(&q, delayq_extend(&q, &item, 1000), DELAYQ_ERR_IO);
    CHECK_INT(box(&q).changes_accepted, 0);
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 1);
    delayq_close(&q);
    end_own();
}

TEST(a_delay_counts_from_the_call_though_it_is_sent_later) {
    int64_t before, after, due, outage = 1000 * test_slow();
    delayq_options o;
    start_own(NULL);
    server_kill(&own, SIGSTOP);
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    before = wall_ms();
    OFFER(&q, "x", 3600000);
    after = wall_ms();
    while (wall_ms() < after + outage) {
        turn(&q);
        usleep(1000);
    }
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    due = only_due(admin) - 3600000;
    CHECK(due >= before);
    if (due > after + outage / 2)
        FAIL("due %lld ms after the call and its delay",
             (long long)(due - after));
    delayq_close(&q);
    end_own();
}

TEST(a_delay_that_has_run_out_before_it_was_sent_is_due_at_once) {
    delayq_options o;
    int first;
    start_own(NULL);
    server_kill(&own, SIGSTOP);
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "b", 50);
    OFFER(&q, "a", 20);
    usleep(100000);
    server_kill(&own, SIGCONT);
    UNTIL(took(&q, &item));
    first = *(const char *)item.data;
    UNTIL(took(&q, &item));
    CHECK_INT(first + *(const char *)item.data, 'a' + 'b');
    delayq_close(&q);
    end_own();
}

/* --- each kind of change ------------------------------------------------- */

/* Lease one item through the outbox. */
static void lease(const char *text) {
    delayq producer;
    open_queue(&producer, "jobs");
    OFFER(&producer, text, 0);
    delayq_close(&producer);
    UNTIL(took(&q, &item));
    item_is(&item, text);
    CHECK(item.ticket.text[0]);
}

TEST(an_ack_through_an_outbox_removes_the_item) {
    open_box(&q, 60000);
    lease("x");
    CHECK_INT(item.attempt, 1);
    OK(&q, delayq_ack(&q, &item));
    CHECK_INT(box(&q).changes_accepted, 1);
    CHECK_INT(box(&q).offers_accepted, 0);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(box(&q).changes_settled, 2);
    CHECK_INT(box(&q).gone, 1);
    memset(&item, 0, sizeof item);
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(many_acks_through_an_outbox_are_told_one_by_one) {
    delayq_item items[20];
    delayq producer;
    size_t have = 0, i;
    open_box(&q, 60000);
    open_queue(&producer, "jobs");
    for (i = 0; i < 20; i++) OFFER(&producer, "x", 0);
    while (have < 20) have += took_many(&q, items + have, 20 - have);
    OK(&q, delayq_ack_many(&q, items, 20));
    for (i = 0; i < 20; i++) CHECK_INT(items[i].acked, DELAYQ_OK);
    CHECK_INT(box(&q).changes_accepted, 20);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&producer);
    delayq_close(&q);
}

TEST(a_nack_through_an_outbox_is_due_after_its_delay) {
    int64_t due;
    open_box(&q, 600000);
    lease("x");
    OK(&q, delayq_nack(&q, &item, 100000));
    SETTLE(&q);
    due = only_due(main_connection()) - wall_ms();
    CHECK(due > 100000 - 30000 && due < 100000 + 30000);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
}

TEST(a_nack_with_back_off_through_an_outbox_is_due_within_it) {
    delayq_options o = box_options(&main_server, BOX);
    int64_t due;
    o.lease_ms = 600000;
    o.backoff_ms = 100000;
    OK(&q, delayq_open(&q, &o));
    lease("x");
    OK(&q, delayq_nack(&q, &item, DELAYQ_BACKOFF));
    SETTLE(&q);
    due = only_due(main_connection()) - wall_ms();
    CHECK(due > 50000 - 20000 && due <= 100000 + 1000);
    delayq_close(&q);
}

TEST(a_release_through_an_outbox_does_not_count_the_attempt) {
    open_box(&q, 60000);
    lease("x");
    OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
    UNTIL(took(&q, &item));
    CHECK_INT(item.attempt, 1);
    OK(&q, delayq_nack(&q, &item, 0));
    UNTIL(took(&q, &item));
    CHECK_INT(item.attempt, 2);
    OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

TEST(an_extend_through_an_outbox_gives_a_ticket_that_can_be_acked) {
    delayq_ticket old;
    int64_t due;
    open_box(&q, 60000);
    lease("x");
    old = item.ticket;
    OK(&q, delayq_extend(&q, &item, 600000));
    CHECK(strcmp(old.text, item.ticket.text) != 0);
    SETTLE(&q);
    due = only_due(main_connection());
    CHECK(due - wall_ms() > 500000);
    CHECK(atoll(item.ticket.text) == due);
    OK(&q, delayq_extend(&q, &item, 700000));
    /* the ack is sent right after the extend, and has the new ticket */
    OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

TEST(buries_through_an_outbox_keep_their_texts_and_share_requests) {
    static delayq_item items[90];
    delayq_dead dead[90];
    char why[16];
    size_t i, n, got = 0;
    int before;
    open_box(&q, 60000);
    for (i = 0; i < 90; i++) OFFER(&q, i % 3 ? "x" : "", 0);
    SETTLE(&q);
    while (got < 90) {
        OK(&q, delayq_take_many(&q, items + got, 90 - got, &n, 20000));
        got += n;
    }
    before = scripts_run(main_connection());
    for (i = 0; i < 90; i++) {
        snprintf(why, sizeof why, "%d", (int)i % 3);
        OK(&q, delayq_bury(&q, &items[i], i % 3 ? why : NULL));
        memset(why, '-', sizeof why); /* the outbox has a copy of the text */
    }
    SETTLE(&q);
    if (scripts_run(main_connection()) - before > 5)
        FAIL("%d scripts", scripts_run(main_connection()) - before);
    CHECK_INT(box(&q).gone, 0);
    OK(&q, delayq_dead_peek(&q, dead, 90, &n, 0));
    CHECK_INT(n, 90);
    for (i = 0; i < 90; i++) {
        snprintf(why, sizeof why, "%d", (int)i % 3);
        CHECK_TEXT(dead[i].why, i % 3 ? why : "");
        CHECK_INT(dead[i].len, i % 3 ? 1 : 0);
    }
    delayq_close(&q);
}

TEST(ack_take_through_an_outbox_acks_and_fetches) {
    delayq producer;
    int i, got = 0;
    open_box(&q, 60000);
    open_queue(&producer, "jobs");
    for (i = 0; i < 30; i++) OFFER(&producer, "x", 0);
    memset(&item, 0, sizeof item);
    while (got < 30) {
        if (delayq_ack_take(&q, &item, 0) == DELAYQ_OK) {
            got++;
        } else {
            CHECK_INT(item.acked, DELAYQ_OK);
            memset(&item, 0, sizeof item);
            turn(&q);
        }
    }
    OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(box(&q).changes_settled, 30);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&producer);
    delayq_close(&q);
}

TEST(a_change_that_comes_too_late_is_counted_as_gone) {
    delayq other;
    delayq_item again;
    delayq_options o = options_for(&main_server, "jobs");
    open_box(&q, 20);
    lease("x");
    o.lease_ms = 60000;
    OK(&other, delayq_open(&other, &o));
    OK(&other, delayq_take(&other, &again, 20000));
    OK(&q, delayq_ack(&q, &item));
    OK(&q, delayq_nack(&q, &item, 0));
    OK(&q, delayq_bury(&q, &item, NULL));
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 3);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    OK(&other, delayq_ack(&other, &again));
    delayq_close(&other);
    delayq_close(&q);
}

TEST(items_of_others_are_cancelled_and_rescheduled_as_changes) {
    delayq other;
    delayq_message a = message("a", 60000), b = message("b", 60000);
    int64_t due;
    open_known(0);
    open_queue(&other, "jobs");
    OK(&other, delayq_offer_message(&other, &a));
    OK(&other, delayq_offer_message(&other, &b));
    OK(&q, delayq_cancel(&q, &a.ticket));
    OK(&q, delayq_reschedule(&q, &b.ticket, 600000));
    CHECK_INT(box(&q).changes_accepted, 2);
    SETTLE(&q);
    due = only_due(main_connection());
    CHECK(due - wall_ms() > 500000);
    CHECK(atoll(b.ticket.text) == due);
    OK(&q, delayq_cancel(&q, &a.ticket));
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 1);
    delayq_close(&other);
    delayq_close(&q);
}

TEST(a_cancel_beside_a_bury_looks_through_no_dead_letters) {
    delayq other;
    delayq_message a = message("a", 60000);
    open_known(60000);
    open_queue(&other, "jobs");
    OK(&other, delayq_offer_message(&other, &a));
    OFFER(&other, "b", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    ask("CONFIG RESETSTAT");
    /* the extend is sent at once; the next two ops share a request */
    OK(&q, delayq_extend(&q, &item, 60000));
    OK(&q, delayq_bury(&q, &item, NULL));
    OK(&q, delayq_cancel(&q, &a.ticket));
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 1);
    CHECK(!strstr(ask("INFO commandstats"), "cmdstat_lrem"));
    delayq_close(&other);
    delayq_close(&q);
}

/* The server answers only after the leases have ended. If a take were sent
 * before the second ack, it would get the item of this ack again. */
TEST(no_take_overtakes_an_ack) {
    delayq_item second;
    int64_t wait_ms;
    int i;
    open_own(1000);
    OFFER(&q, "a", 0);
    OFFER(&q, "b", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_take(&q, &second, 20000));
    SETTLE(&q);
    UNTIL((turn(&q), !q.conn->cmd.first)); /* no transfer is in flight */
    server_kill(&own, SIGSTOP);
    OK(&q, delayq_ack(&q, &item)); /* this ack is sent at once */
    OK(&q, delayq_ack(&q, &second));
    for (i = 0; i < 10; i++) {
        OK(&q, delayq_tick(&q, &wait_ms));
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    }
    CHECK(wait_ms > 0);
    usleep(1010000); /* until the leases have ended */
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(number("ZCARD " ZSET), 0);
    delayq_close(&q);
    end_own();
}

/* Returns the number of round trips, from the first item on, that a loop needs
 * to take and ack 64 items. Each frame waits for all replies. The loop acks an
 * item at once or, if `acks_later` is 1, in the next frame before its takes. */
static int trips_of_a_loop(int acks_later) {
    static delayq_item items[65];
    int trips = 0, taken = 0, acked = 0, i;
    open_own(60000);
    OFFER(&q, "the server gets the scripts", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_ack(&q, &item));
    for (i = 0; i < 64; i++) OFFER(&q, "x", 0);
    SETTLE(&q);
    while (box(&q).changes_settled < 65) {
        server_kill(&own, SIGSTOP);
        while (acked < taken) OK(&q, delayq_ack(&q, &items[acked++]));
        while (took(&q, &items[taken])) {
            taken++;
            if (!acks_later) OK(&q, delayq_ack(&q, &items[acked++]));
        }
        server_kill(&own, SIGCONT);
        tell("PING"); /* until the server has read the requests */
        tell("PING"); /* until the server has answered the requests */
        turn(&q);
        trips += taken > 0;
    }
    delayq_close(&q);
    end_own();
    return trips;
}

/* The takes are of 2, 4, 8, 16, 32 and 1 items. The last acks follow them. */
TEST(a_loop_needs_one_round_trip_for_its_acks_and_its_next_take) {
    int trips = trips_of_a_loop(0);
    if (trips > 9) FAIL("%d round trips", trips);
}

/* The first ack of a frame is sent alone. The other acks wait for its reply,
 * and the take waits for these acks. */
TEST(a_loop_that_acks_later_needs_two_round_trips) {
    int trips = trips_of_a_loop(1);
    if (trips > 15) FAIL("%d round trips", trips);
}

/* --- refused ops --------------------------------------------------------- */

/* Take one item without waiting, and bury it. Returns 1 if there was one. */
static int buried(void) {
    if (!took(&q, &item)) return 0;
    OK(&q, delayq_bury(&q, &item, NULL));
    return 1;
}

/* The server refuses buries, since the key of the dead letters contains a
 * string. The pauses between the retries grow to 5 s. Meanwhile the program
 * still gets its other items. */
TEST(takes_go_on_while_the_server_refuses_buries) {
    delayq_options o = box_options(&main_server, BOX);
    int i, n = 0;
    o.lease_ms = 600000;
    o.batch = 1;
    o.reconnect_max_ms = 5000;
    OK(&q, delayq_open(&q, &o));
    ask("SET delayq_dead:{jobs} x");
    for (i = 0; i < 30; i++) OFFER(&q, "x", 0);
    UNTIL((n += buried()) == 30);
    CHECK_INT(box(&q).changes_settled, 0);
    ask("DEL delayq_dead:{jobs}");
    SETTLE(&q);
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 30);
    delayq_close(&q);
}

static void offer_three(void) {
    OFFER(&q, "a", 60000);
    OFFER(&q, "b", 60000);
    OFFER(&q, "c", 60000);
}

/* Check that ticks report this status for some time, and that the outbox keeps
 * the three offers. */
static void is_told(delayq_status want) {
    int i;
    UNTIL(turn(&q) == want);
    CHECK(delayq_errmsg(&q)[0]);
    for (i = 0; i < 50; i++) {
        delayq_status status = turn(&q);
        CHECK(status <= DELAYQ_OK);
        usleep(1000);
    }
    UNTIL(turn(&q) == want);
    CHECK_INT(box(&q).dropped, 0);
    CHECK_INT(box(&q).offers_settled, 0);
    CHECK_INT(box(&q).offers_accepted, 3);
}
static void goes_through(void) {
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 3);
    CHECK_INT(box(&q).dropped, 0);
    UNTIL(turn(&q) == DELAYQ_OK);
}

TEST(a_wrong_password_keeps_the_outbox_until_it_is_mended) {
    delayq_options o;
    char url[160];
    start_own(NULL);
    if (own.major < 6) test_skip("no ACL before Redis 6");
    o = box_options(&own, BOX);
    snprintf(url, sizeof url, "unix://user:pw@%s", own.socket);
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    offer_three();
    is_told(DELAYQ_ERR_AUTH);
    if (strstr(delayq_errmsg(&q), "pw@")) FAIL("%s", delayq_errmsg(&q));
    tell(own.major < 7 ? "ACL SETUSER user on >pw ~* +@all"
                       : "ACL SETUSER user on >pw ~* &* +@all");
    goes_through();
    delayq_close(&q);
    end_own();
}

TEST(a_key_of_a_wrong_type_keeps_the_outbox_until_it_is_deleted) {
    delayq_options o;
    start_own(NULL);
    tell("SET " ZSET " x");
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    offer_three();
    is_told(DELAYQ_ERR_TYPE);
    tell("DEL " ZSET);
    goes_through();
    delayq_close(&q);
    end_own();
}

TEST(a_full_server_keeps_the_outbox_until_it_has_room) {
    delayq_options o;
    start_own(NULL);
    tell("CONFIG SET maxmemory 1");
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    offer_three();
    is_told(DELAYQ_ERR_FULL);
    tell("CONFIG SET maxmemory 0");
    goes_through();
    delayq_close(&q);
    end_own();
}

TEST(a_replica_keeps_the_outbox_until_it_is_promoted) {
    delayq_options o;
    start_own(NULL);
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "before", 0);
    SETTLE(&q);
    tell("DEL " ZSET " jobs");
    delayq_close(&q);
    tell("REPLICAOF 127.0.0.1 1");
    OK(&q, delayq_open(&q, &o));
    offer_three();
    is_told(DELAYQ_ERR_READONLY);
    tell("REPLICAOF NO ONE");
    goes_through();
    delayq_close(&q);
    end_own();
}

TEST(a_connected_handle_waits_out_a_server_that_turns_read_only) {
    open_own(0);
    OFFER(&q, "a", 60000);
    SETTLE(&q);
    tell("REPLICAOF 127.0.0.1 1");
    OFFER(&q, "b", 60000);
    OFFER(&q, "c", 60000);
    UNTIL(turn(&q) == DELAYQ_ERR_READONLY);
    CHECK_INT(box(&q).offers_settled, 1);
    tell("REPLICAOF NO ONE");
    goes_through();
    delayq_close(&q);
    end_own();
}

/* This fails if acks wait for the offers that the server refuses. */
TEST(a_full_server_refuses_offers_and_still_gets_the_acks) {
    delayq_item held[4];
    int i;
    open_own(600000);
    for (i = 0; i < 4; i++) OFFER(&q, "x", 0);
    for (i = 0; i < 4; i++) UNTIL(took(&q, &held[i]));
    SETTLE(&q);
    tell("CONFIG SET maxmemory 1");
    OFFER(&q, "refused", 60000);
    UNTIL(turn(&q) == DELAYQ_ERR_FULL);
    OK(&q, delayq_ack(&q, &held[0]));
    OK(&q, delayq_bury(&q, &held[1], NULL));
    OK(&q, delayq_nack(&q, &held[2], 300000));
    OK(&q, delayq_extend(&q, &held[3], 300000));
    UNTIL((turn(&q), box(&q).changes_settled == 4));
    CHECK_INT(box(&q).offers_settled, 4);
    CHECK_INT(box(&q).gone + box(&q).dropped, 0);
    CHECK_INT(number("ZCARD " ZSET), 2);
    CHECK_INT(number("LLEN delayq_dead:{jobs}"), 1);
    tell("CONFIG SET maxmemory 0");
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 3);
    delayq_close(&q);
    end_own();
}

/* --- reports to options.settled ----------------------------------------- */

static struct {
    uint64_t count[2];
    delayq_status of[2][64];
} reported;
static void on_settled(void *user, int changes, uint64_t number_of,
                       delayq_status status) {
    CHECK(user == &reported && (changes == 0 || changes == 1));
    CHECK_INT(number_of, ++reported.count[changes]);
    if (number_of <= 64) reported.of[changes][number_of - 1] = status;
}
static void report(delayq_options *o) {
    memset(&reported, 0, sizeof reported);
    o->settled = on_settled;
    o->user = &reported;
}
static void everything_was_reported(void) {
    CHECK_INT(reported.count[0], box(&q).offers_accepted);
    CHECK_INT(reported.count[1], box(&q).changes_accepted);
}

TEST(each_op_of_an_outbox_is_reported_once_and_in_order) {
    delayq_options o = box_options(&main_server, BOX);
    delayq_message m;
    delayq_item b;
    int i;
    o.lease_ms = 60000;
    report(&o);
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 3; i++) { /* the second one is a duplicate */
        memset(&m, 0, sizeof m);
        m.data = "x";
        m.len = 1;
        m.key = i < 2 ? "key" : NULL;
        m.key_ttl_ms = 60000;
        CHECK(delayq_offer_message(&q, &m) >= DELAYQ_OK);
    }
    CHECK_INT(reported.count[0], 0); /* none is settled yet */
    UNTIL(took(&q, &item));
    UNTIL(took(&q, &b));
    OK(&q, delayq_nack(&q, &item, 60000));
    OK(&q, delayq_ack(&q, &item)); /* the nack has ended the lease */
    OK(&q, delayq_ack(&q, &b));
    OK(&q, delayq_cancel_key(&q, "key"));
    OK(&q, delayq_flush(&q, 20000));
    everything_was_reported();
    CHECK_INT(reported.of[0][0], DELAYQ_OK);
    CHECK_INT(reported.of[0][1], DELAYQ_DUPLICATE);
    CHECK_INT(reported.of[0][2], DELAYQ_OK);
    CHECK_INT(reported.of[0][3], DELAYQ_GONE);
    CHECK_INT(reported.of[1][0], DELAYQ_OK);
    CHECK_INT(reported.of[1][1], DELAYQ_GONE);
    CHECK_INT(reported.of[1][2], DELAYQ_OK);
    delayq_close(&q);
}

/* Start a server that ends a connection on which it gets a payload of LARGE
 * bytes. Returns such a payload. */
enum { LARGE = 1100000 };
static char *refused_payload(void) {
    const char *const with[] = {"--proto-max-bulk-len", "1mb", NULL};
    char *big = SHARED(char, LARGE);
    memset(big, 'x', LARGE);
    start_own(with);
    return big;
}

/* One payload ends each connection on which it is sent. Only it is dropped. */
TEST(a_payload_that_the_server_never_takes_is_dropped_and_the_rest_passes) {
    char *big = refused_payload();
    delayq_options o;
    int i;
    o = box_options(&own, 16 << 20);
    report(&o);
    o.log = on_log;
    o.lease_ms = 60000;
    o.reconnect_max_ms = 1;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "leased", 0);
    UNTIL(took(&q, &item));
    OFFER(&q, "before", 60000);
    OK(&q, delayq_offer(&q, big, LARGE, 60000));
    for (i = 0; i < 20; i++) OFFER(&q, "after", 60000);
    OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 1);
    everything_was_reported();
    CHECK(reported.of[0][2] < DELAYQ_OK && reported.of[0][3] == DELAYQ_OK);
    CHECK_INT(box(&q).offers_settled, 23);
    CHECK_INT(number("ZCARD " ZSET), 21);
    CHECK(logged > 0);
    CHECK(delayq_flush(&q, 1000) < DELAYQ_OK); /* reports the drop, once */
    OK(&q, delayq_flush(&q, 1000));
    OFFER(&q, "later", 60000);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(box(&q).dropped, 1);
    delayq_close(&q);
    end_own();
}

/* The server reports the reason, and ends the connection during the upload. */
TEST(a_payload_that_the_server_refuses_is_reported_with_its_reason) {
    char *big = refused_payload();
    delayq_options o;
    int i;
    o = box_options(&own, BOX);
    o.outbox = NULL;
    o.outbox_size = 0;
    for (i = 0; i < 20; i++) {
        OK(&q, delayq_open(&q, &o));
        CHECK_INT(delayq_offer(&q, big, LARGE, 60000), DELAYQ_ERR_REDIS);
        if (!strstr(delayq_errmsg(&q), "invalid bulk length"))
            FAIL("%s", delayq_errmsg(&q));
        OFFER(&q, "small", 60000);
        delayq_close(&q);
    }
    end_own();
}

TEST(after_a_drop_ticks_are_fine_again) {
    char *big = refused_payload();
    delayq_options o;
    o = box_options(&own, 16 << 20);
    o.reconnect_max_ms = 1;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_offer(&q, big, LARGE, 60000));
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 1);
    UNTIL(turn(&q) == DELAYQ_OK);
    CHECK(!*delayq_errmsg(&q));
    CHECK(delayq_flush(&q, 1000) < DELAYQ_OK);
    if (!strstr(delayq_errmsg(&q), "dropped ops: 1;"))
        FAIL("%s", delayq_errmsg(&q));
    delayq_close(&q);
    end_own();
}

/* Attempts to connect fail many times. That is no reason to drop an op. */
TEST(an_entry_survives_any_number_of_connections_that_fail_to_log_in) {
    delayq_options o;
    int i;
    start_own(NULL);
    o = box_options(&own, BOX);
    o.reconnect_max_ms = 1;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    tell("DEL " ZSET);
    server_kill(&own, SIGKILL);
    OFFER(&q, "y", 60000);
    for (i = 0; i < 200; i++) {
        turn(&q);
        usleep(1000);
    }
    CHECK_INT(box(&q).dropped, 0);
    CHECK_INT(box(&q).offers_settled, 1);
    redisFree(admin);
    server_start_again(&own, NULL);
    admin = server_connect(&own);
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    CHECK_INT(number("ZCARD " ZSET), 1);
    delayq_close(&q);
    end_own();
}

TEST(payloads_of_5_MB_pass_through_16_MB) {
    enum { SIZE = 5 << 20, COUNT = 6 };
    char *big = (char *)malloc(SIZE);
    delayq_options o = box_options(&main_server, 16 << 20);
    delayq other;
    size_t k;
    int i;
    CHECK(big != NULL);
    OK(&q, delayq_open(&q, &o));
    open_queue(&other, "jobs");
    for (i = 0; i < COUNT; i++) {
        for (k = 0; k < SIZE; k++) big[k] = (char)((int)(k * 31) + i);
        UNTIL(offered(&q, big, SIZE, 0));
    }
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    for (i = 0; i < COUNT; i++) {
        const char *data;
        OK(&other, delayq_take(&other, &item, 20000));
        CHECK_INT(item.len, SIZE);
        data = (const char *)item.data;
        for (k = 0; k < SIZE; k++)
            if (data[k] != (char)((int)(k * 31) + i))
                FAIL("byte %zu of item %d is %d", k, i, data[k]);
    }
    free(big);
    delayq_close(&other);
    delayq_close(&q);
}

/* --- fetched items ------------------------------------------------------- */

#define LEASE_MS 600000
/* Returns the number of leased items. Their leases end later than any other
 * item of these tests is due. */
static int leased(void) {
    return (int)ask_int("ZCOUNT " ZSET " %lld +inf",
                        (long long)wall_ms() + LEASE_MS / 2);
}
static void hundred(int n) {
    delayq producer;
    open_queue(&producer, "jobs");
    while (n-- > 0) OFFER(&producer, "x", 0);
    delayq_close(&producer);
    elapse(main_connection(), 1);
}

TEST(a_slow_taker_has_no_more_than_a_few_items_fetched) {
    int i;
    hundred(100);
    open_box(&q, LEASE_MS);
    for (i = 1; i <= 30; i++) { /* one take per frame */
        UNTIL(took(&q, &item));
        turn(&q);
        if (leased() > i + 4) FAIL("%d leased after %d takes", leased(), i);
    }
    delayq_close(&q);
}

TEST(a_taker_that_slows_down_fetches_less_again) {
    int n = 0, i;
    hundred(400);
    open_box(&q, LEASE_MS);
    while (n < 150) {
        turn(&q);
        while (delayq_take(&q, &item, 0) == DELAYQ_OK) n++;
    }
    /* take the items that were fetched before the loop slowed down */
    while (leased() > n + 2) {
        UNTIL(took(&q, &item));
        n++;
        turn(&q);
        CHECK(n < 390);
    }
    for (i = 0; i < 6; i++) {
        UNTIL(took(&q, &item));
        n++;
        turn(&q);
    }
    if (leased() > n + 8) FAIL("%d leased, %d taken", leased(), n);
    delayq_close(&q);
}

TEST(a_taker_to_which_few_items_come_fetches_few) {
    int i;
    open_box(&q, LEASE_MS);
    for (i = 0; i < 8; i++) {
        OFFER(&q, "x", 0);
        UNTIL(took(&q, &item));
    }
    hundred(100);
    UNTIL(took(&q, &item));
    CHECK(leased() <= 8 + 4);
    delayq_close(&q);
}

TEST(take_many_through_an_outbox_requests_and_hands_out_its_maximum) {
    delayq_item items[50];
    size_t n;
    int i;
    hundred(100);
    open_box(&q, LEASE_MS);
    for (i = 0; i < 2; i++) {
        UNTIL((n = took_many(&q, items, 50)) > 0);
        CHECK_INT(n, 50);
    }
    CHECK_INT(leased(), 100);
    delayq_close(&q);
}

/* Request an item, and give the server time to answer. Returns 1 if the server
 * has leased the item. */
static int asked_for_it(void) {
    /* if the reply has already come, give the item back, for another try */
    if (delayq_take(&q, &item, 0) == DELAYQ_OK) {
        OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
        SETTLE(&q);
    }
    usleep(5000);
    return ask_int("ZCOUNT " ZSET " %lld +inf", (long long)wall_ms() + 1) == 1;
}

/* The handle reads the reply before the lease has ended or, if `is_read` is 0,
 * only afterwards. This fails if the handle counts the lease from the moment at
 * which it reads the reply. */
static void lease_runs_out(int is_read) {
    int lease_ms = 300 * test_slow(), i;
    open_box(&q, lease_ms);
    hundred(1);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    UNTIL((turn(&q), asked_for_it()));
    for (i = 0; is_read && i < 5; i++) turn(&q);
    usleep((useconds_t)(lease_ms + 50) * 1000);
    UNTIL(took(&q, &item));
    if (atoll(item.ticket.text) <= wall_ms())
        FAIL("the lease has ended: %s", item.ticket.text);
    delayq_close(&q);
    ask("FLUSHALL");
}

TEST(an_item_whose_lease_is_over_is_not_handed_out) {
    lease_runs_out(1);
    lease_runs_out(0);
}

TEST(a_take_with_a_timeout_waits_also_with_an_outbox) {
    open_box(&q, 60000);
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    OFFER(&q, "x", 30);
    OK(&q, delayq_take(&q, &item, 20000));
    item_is(&item, "x");
    OK(&q, delayq_ack(&q, &item));
    OFFER(&q, "y", 0);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    item_is(&item, "y");
    CHECK_STATUS(&q, delayq_ack_take(&q, &item, 1), DELAYQ_EMPTY);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

TEST(calls_that_want_an_answer_wait_for_it) {
    delayq *one = &q;
    delayq_counts c;
    delayq_item items[4];
    int64_t n[2], due[2] = {1, 9007199254740991}, removed;
    size_t count;
    open_box(&q, 60000);
    OFFER(&q, "x", 60000);
    OK(&q, delayq_flush(&q, 20000));
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 1);
    CHECK_INT(c.offered, 1);
    OK(&q, delayq_count_due(&q, due, 2, n));
    CHECK_INT(n[1], 1);
    OK(&q, delayq_peek(&q, items, 4, &count, NULL));
    CHECK_INT(count, 1);
    CHECK_STATUS(&q, delayq_wait(&one, 1, 20), DELAYQ_EMPTY);
    ask("RPUSH jobs pushed");
    OK(&q, delayq_wait(&one, 1, 20000));
    OK(&q, delayq_clear(&q, &removed));
    CHECK_INT(removed, 2);
    OK(&q, delayq_dead_clear(&q, NULL));
    delayq_close(&q);
}

/* --- flush --------------------------------------------------------------- */

TEST(a_flush_waits_until_all_is_settled) {
    int i;
    open_box(&q, 0);
    OK(&q, delayq_flush(&q, 0));
    for (i = 0; i < 100; i++) OFFER(&q, "x", 60000);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(box(&q).offers_settled, 100);
    CHECK_INT(box(&q).bytes, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 100);
    OFFER(&q, "y", 60000);
    OK(&q, delayq_flush(&q, DELAYQ_FOREVER));
    CHECK_STATUS(&q, delayq_flush(&q, -2), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(a_flush_ends_with_its_timeout_and_drops_nothing) {
    open_own(0);
    OK(&q, delayq_flush(&q, 1000));
    server_kill(&own, SIGSTOP);
    OFFER(&q, "x", 60000);
    CHECK_STATUS(&q, delayq_flush(&q, 50), DELAYQ_ERR_TIMEOUT);
    CHECK_STATUS(&q, delayq_flush(&q, 0), DELAYQ_ERR_TIMEOUT);
    CHECK_INT(box(&q).offers_accepted - box(&q).offers_settled, 1);
    server_kill(&own, SIGCONT);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(number("ZCARD " ZSET), 1);
    delayq_close(&q);
    end_own();
}

TEST(a_flush_returns_what_the_server_refuses) {
    delayq_options o;
    start_own(NULL);
    tell("CONFIG SET maxmemory 1");
    o = box_options(&own, BOX);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    UNTIL(delayq_flush(&q, 50) == DELAYQ_ERR_FULL);
    CHECK_INT(box(&q).offers_settled, 0);
    tell("CONFIG SET maxmemory 0");
    SETTLE(&q);
    delayq_close(&q);
    end_own();
}

static void *wake_soon(void *unused) {
    (void)unused;
    usleep(30000);
    delayq_wake(&q);
    return NULL;
}

TEST(a_wake_ends_a_flush_and_a_take_of_an_outbox) {
    pthread_t thread;
    open_own(0);
    CHECK(pthread_create(&thread, NULL, wake_soon, NULL) == 0);
    CHECK_STATUS(&q, delayq_take(&q, &item, DELAYQ_FOREVER), DELAYQ_WOKEN);
    pthread_join(thread, NULL);
    server_kill(&own, SIGSTOP);
    OFFER(&q, "x", 60000);
    CHECK(pthread_create(&thread, NULL, wake_soon, NULL) == 0);
    CHECK_STATUS(&q, delayq_flush(&q, DELAYQ_FOREVER), DELAYQ_WOKEN);
    pthread_join(thread, NULL);
    server_kill(&own, SIGCONT);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(number("ZCARD " ZSET), 1);
    delayq_close(&q);
    end_own();
}

/* --- several handles, processes ------------------------------------------ */

TEST(a_closed_handle_drops_what_is_in_its_outbox) {
    static char memory[BOX];
    delayq_options o;
    int i;
    start_own(NULL);
    server_kill(&own, SIGSTOP);
    o = box_options(&own, BOX);
    o.outbox = memory;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 100; i++) OFFER(&q, "x", 60000);
    turn(&q);
    delayq_close(&q);
    /* from now on the handle must not use the memory */
    memset(memory, 0xff, sizeof memory);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_flush(&q, 0), DELAYQ_ERR_ARG);
    server_kill(&own, SIGCONT);
    OK(&q, delayq_open(&q, &o));
    CHECK_INT(box(&q).offers_accepted + box(&q).bytes, 0);
    OFFER(&q, "y", 60000);
    OK(&q, delayq_flush(&q, 20000));
    CHECK(number("ZCARD " ZSET) >= 1);
    delayq_close(&q);
    end_own();
}

static void child_of_fork(void *unused) {
    (void)unused;
    CHECK_STATUS(&q, delayq_offer(&q, "child", 5, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_tick(&q, NULL), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_flush(&q, 100), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(a_child_process_sends_nothing_of_its_parents_outbox) {
    int i;
    open_own(0);
    OK(&q, delayq_flush(&q, 1000));
    server_kill(&own, SIGSTOP);
    for (i = 0; i < 50; i++) OFFER(&q, "x", 60000);
    turn(&q);
    join(spawn(child_of_fork, NULL));
    server_kill(&own, SIGCONT);
    for (i = 0; i < 50; i++) OFFER(&q, "x", 60000);
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 100);
    CHECK_INT(box(&q).offers_settled, 100);
    delayq_close(&q);
    end_own();
}

/* --- broadcast, Redisson ------------------------------------------------- */

TEST(listeners_with_an_outbox_get_a_broadcast_in_order) {
    delayq a, b, *all[2];
    delayq_options o = box_options(&main_server, BOX);
    int seen[2] = {0, 0}, i;
    char text[16];
    if (!server_can("XADD")) test_skip("the server has no streams");
    o.name = "news";
    SET_BROADCAST(o);
    o.broadcast_after = "";
    OK(&a, delayq_open(&a, &o));
    o.outbox = box_memory(BOX);
    OK(&b, delayq_open(&b, &o));
    all[0] = &a;
    all[1] = &b;
    for (i = 0; i < 200; i++) {
        snprintf(text, sizeof text, "%d", i);
        UNTIL(offered(&a, text, strlen(text), 0));
    }
    SETTLE(&a);
    CHECK_INT(box(&a).offers_settled, 200);
    while (seen[0] + seen[1] < 400)
        for (i = 0; i < 2; i++) {
            UNTIL(took(all[i], &item) || seen[i] == 200);
            if (seen[i] == 200) continue;
            snprintf(text, sizeof text, "%d", seen[i]++);
            item_is(&item, text);
        }
    delayq_close(&a);
    delayq_close(&b);
}

/* Returns the number of items. The set and the mirror must have one length. */
static long long all_of_the_mirror(void) {
    long long all =
        ask_int("EVAL %s 3 " ZSET " redisson_delay_queue:{jobs} jobs",
                "local n = redis.call('ZCARD', KEYS[1])\n"
                "if redis.call('LLEN', KEYS[2]) ~= n then return -1 end\n"
                "return n + redis.call('LLEN', KEYS[3])\n");
    CHECK(all >= 0);
    return all;
}

TEST(both_wires_of_redisson_pass_through_an_outbox) {
    delayq_wire wire;
    EACH_WIRE(wire, 1, 2) {
        delayq_options o = box_options(&main_server, BOX);
        delayq_message m = message("gone", 60000), k = message("keyed", 0);
        delayq other;
        char text[16];
        int i;
        ask("FLUSHALL");
        o.wire = wire;
        o.lease_ms = 60000;
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "0", 0);
        SETTLE(&q);
        CHECK_INT(all_of_the_mirror(), 1);
        for (i = 1; i < 20; i++) {
            snprintf(text, sizeof text, "%d", i);
            OFFER(&q, text, 0);
        }
        OK(&q, delayq_offer_message(&q, &m));
        OK(&q, delayq_cancel(&q, &m.ticket));
        k.key = "k";
        k.key_ttl_ms = 60000;
        OK(&q, delayq_offer_message(&q, &k));
        OK(&q, delayq_offer_message(&q, &k));
        SETTLE(&q);
        CHECK_INT(box(&q).gone, 0);
        CHECK_INT(box(&q).duplicate, 1);
        CHECK_INT(all_of_the_mirror(), 21);
        for (i = 0; i < 21; i++) {
            snprintf(text, sizeof text, "%d", i);
            UNTIL(took(&q, &item));
            item_is(&item, i < 20 ? text : "keyed");
            OK(&q, delayq_ack(&q, &item));
        }
        SETTLE(&q);
        CHECK_INT(box(&q).gone, 0);
        CHECK_INT(all_of_the_mirror(), 0);
        OFFER(&q, "last", 0);
        SETTLE(&q);
        delayq_close(&q);
        open_wire(&other, "jobs", wire);
        OK(&other, delayq_take(&other, &item, 20000));
        item_is(&item, "last");
        CHECK_INT(all_of_the_mirror(), 0);
        delayq_close(&other);
    }
}

/* --- open ---------------------------------------------------------------- */

TEST(an_outbox_below_8_KiB_is_refused) {
    delayq_options o = box_options(&main_server, BOX);
    o.outbox_size = 8191;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "outbox");
    CHECK_STATUS(&q, delayq_tick(&q, NULL), DELAYQ_ERR_ARG);
    o.outbox_size = 0;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o.outbox_size = 8192;
    OK(&q, delayq_open(&q, &o));
    CHECK(box(&q).size <= 8192);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    delayq_close(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
}

TEST(wrong_options_of_an_outbox_are_refused_at_open) {
    delayq_options good = box_options(&main_server, BOX), o = good;
    delayq_outbox_state state;
    o.name = "";
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = good;
    o.url = "nonsense://";
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = good;
    o.reconnect_max_ms = -1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = good;
    SET_BROADCAST(o);
    o.lease_ms = 1000;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK(delayq_outbox(&q, &state) == DELAYQ_ERR_ARG);
    open_queue(&q, "jobs"); /* this handle has no outbox */
    CHECK(delayq_outbox(&q, &state) == DELAYQ_ERR_ARG);
    delayq_close(&q);
    OK(&q, delayq_open(&q, &good));
    CHECK(delayq_outbox(&q, NULL) == DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(an_outbox_shows_whether_it_is_connected) {
    delayq_options o;
    start_own(NULL);
    o = box_options(&own, BOX);
    o.io_timeout_ms = o.connect_timeout_ms = 500 * test_slow();
    server_kill(&own, SIGSTOP);
    OK(&q, delayq_open(&q, &o));
    UNTIL(delayq_tick(&q, NULL) < DELAYQ_OK);
    CHECK_INT(box(&q).connected, 0);
    server_kill(&own, SIGCONT);
    UNTIL((turn(&q), box(&q).connected));
    OK(&q, delayq_tick(&q, NULL));
    server_kill(&own, SIGSTOP);
    OFFER(&q, "x", 60000); /* its reply does not come */
    UNTIL((turn(&q), !box(&q).connected));
    server_kill(&own, SIGCONT);
    SETTLE(&q);
    CHECK_INT(box(&q).connected, 1);
    delayq_close(&q);
    end_own();
}

TEST(the_descriptors_of_an_outbox_end_a_poll_when_an_answer_comes) {
    int fds[8];
    size_t n;
    open_box(&q, 0);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    n = delayq_fds(&q, fds, 8);
    CHECK(n >= 1);
    CHECK(fds[0] >= 0);
    CHECK_INT(delayq_fds(&q, fds, 0), 0);
    delayq_close(&q);
    CHECK_INT(delayq_fds(&q, fds, 8), 0);
}

/* --- names --------------------------------------------------------------- */

static volatile int asked, answer;
static int resolve(void *user, const char *host, char *address, size_t size) {
    (void)user;
    CHECK_TEXT(host, "queue.test");
    asked++;
    if (answer > 0) snprintf(address, size, "127.0.0.1");
    return answer;
}

TEST(a_name_is_asked_for_again_until_it_is_found) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    delayq_options o;
    snprintf(text, sizeof text, "%d", free_port());
    start_own(with);
    o = box_options(&own, BOX);
    snprintf(url, sizeof url, "redis://queue.test:%s", text);
    o.url = url;
    o.resolve = resolve;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    UNTIL((turn(&q), asked >= 3));
    CHECK_INT(box(&q).offers_settled, 0);
    answer = 1;
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 1);
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    end_own();
}

TEST(a_name_that_does_not_exist_is_told_and_keeps_the_outbox) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    delayq_options o;
    snprintf(text, sizeof text, "%d", free_port());
    start_own(with);
    o = box_options(&own, BOX);
    snprintf(url, sizeof url, "redis://queue.test:%s", text);
    o.url = url;
    o.resolve = resolve;
    answer = -1;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    UNTIL((turn(&q), asked >= 1 && delayq_errmsg(&q)[0]));
    CHECK_HAS(delayq_errmsg(&q), "queue.test");
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    end_own();
}

TEST(an_address_is_not_asked_for) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    delayq_options o;
    snprintf(text, sizeof text, "%d", free_port());
    start_own(with);
    o = box_options(&own, BOX);
    snprintf(url, sizeof url, "redis://127.0.0.1:%s", text);
    o.url = url;
    o.resolve = resolve;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    CHECK_INT(asked, 0);
    delayq_close(&q);
    end_own();
}

/* --- the data in Redis --------------------------------------------------- */

TEST(the_mark_of_a_handle_lives_for_a_day_at_most) {
    redisReply *r;
    long long ttl;
    open_box(&q, 0);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    r = run(main_connection(), "KEYS delayq_sent:{jobs}:*");
    CHECK_INT(r->elements, 1);
    ttl = ask_int("PTTL %s", r->element[0]->str);
    CHECK(ttl > 0 && ttl <= 86400000);
    freeReplyObject(r);
    delayq_close(&q);
}

TEST(a_lost_mark_costs_no_offer) {
    int i;
    open_box(&q, 0);
    for (i = 0; i < 20; i++) {
        OFFER(&q, "x", 60000);
        SETTLE(&q);
        if (i % 5 == 0) at_each_number("'DEL', k");
    }
    CHECK_INT(ask_int("ZCARD " ZSET), 20);
    delayq_close(&q);
}

static void offer_as(char who) {
    delayq_counts c;
    char text[16];
    int i;
    /* Wait until this process has a new connection. An offer on the old one
     * would be sent again, and the test could not tell which of the two
     * processes has stored its number. */
    UNTIL(turn(&q) == DELAYQ_OK && delayq_count(&q, &c) == DELAYQ_OK);
    for (i = 0; i < 50; i++) {
        snprintf(text, sizeof text, "%c%d", who, i);
        UNTIL(offered(&q, text, strlen(text), 60000));
        if (i % 3 == 0) turn(&q);
        usleep(200);
    }
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
}

static void be_the_clone(void *unused) {
    (void)unused;
    q.pid = (int64_t)getpid();
    offer_as('b');
}

/* A handle has a clone, as in a copied virtual machine, with the same state.
 * This fails if the script skips an offer that is sent for the first time, and
 * the handle counts the offer as stored. */
TEST(two_clones_of_a_handle_lose_no_offer) {
    pid_t clone;
    open_own(0);
    OFFER(&q, "first", 60000);
    SETTLE(&q);
    tell("CLIENT KILL TYPE normal");
    tell("CLIENT KILL TYPE pubsub");
    clone = spawn(be_the_clone, NULL);
    offer_as('a');
    join(clone);
    CHECK_INT(number("ZCARD " ZSET), 101);
    delayq_close(&q);
    end_own();
}

/* A clone has used higher numbers than the handle. */
TEST(an_offer_with_a_key_beside_a_clone_is_not_passed_over) {
    delayq_message m = message("y", 60000);
    open_box(&q, 0);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    USE_NUMBERS_AS_A_CLONE();
    m.key = "k";
    m.key_ttl_ms = 60000;
    OK(&q, delayq_offer_message(&q, &m));
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    delayq_close(&q);
}

/* A clone has used the number of the first of two offers, which are in one
 * request. The second one must not be stored before the handle takes new
 * numbers for both. */
static void offer_two_beside_a_clone(const char *key) {
    delayq_message m[2] = {message("y", 60000), message("z", 60000)};
    open_box(&q, 0);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    at_each_number("'INCRBY', k, 1");
    m[0].key = key;
    m[0].key_ttl_ms = 60000;
    OK(&q, delayq_offer_many(&q, m, 2));
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 3);
    delayq_close(&q);
}
TEST(two_offers_beside_a_clone_are_stored_once) {
    offer_two_beside_a_clone(NULL);
}
TEST(two_offers_one_with_a_key_beside_a_clone_are_stored_once) {
    offer_two_beside_a_clone("k");
}

/* Offer with the latest possible due time while the server's clock is unknown.
 * The limit is checked when the clock is known. */
static void offer_the_farthest(const char *key) {
    delayq_message m = message("y", 9007199254740991 - 1000 - now_us() / 1000);
    delayq_options o;
    start_own(NULL);
    o = box_options(&own, BOX);
    server_kill(&own, SIGTERM);
    OK(&q, delayq_open(&q, &o));
    m.key = key;
    m.key_ttl_ms = 60000;
    while (delayq_offer_message(&q, &m) != DELAYQ_OK) m.delay_ms -= 1000;
    server_start_again(&own, (const char *const[]){NULL});
    redisFree(admin);
    admin = server_connect(&own);
    SETTLE(&q);
    CHECK_INT(number("ZCARD " ZSET), 1);
    CHECK_INT(number("ZCOUNT " ZSET " -inf 9007199254740991"), 1);
    delayq_close(&q);
    end_own();
}

TEST(an_offer_to_an_outbox_is_never_due_past_the_limit) {
    offer_the_farthest(NULL);
    offer_the_farthest("k");
}

/* --- closing with unread replies (with ASan) ----------------------------- */

/* Open a handle that has its own memory, and shares the owner's connection. */
static delayq *open_sharer(delayq *owner) {
    delayq *sharer = (delayq *)malloc(sizeof *sharer);
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.share = owner;
    o.outbox = malloc(BOX);
    o.outbox_size = BOX;
    OK(sharer, delayq_open(sharer, &o));
    UNTIL(turn(sharer) == DELAYQ_OK && sharer->probed);
    return sharer;
}

static void end_sharer(delayq *sharer) {
    void *memory = sharer->options.outbox;
    delayq_close(sharer);
    free(memory);
    free(sharer);
}

TEST(a_close_frees_what_was_answered_and_not_read) {
    int owner_first;
    for (owner_first = 0; owner_first < 2; owner_first++) {
        delayq owner, *sharer;
        delayq_item got;
        open_queue(&owner, "jobs");
        sharer = open_sharer(&owner);
        OFFER(sharer, "x", 0);
        delayq_take(sharer, &got, 0);
        usleep(20000);
        poll_now(&owner);
        OK(&owner, delayq_tick(&owner, NULL)); /* reads all replies */
        if (owner_first) delayq_close(&owner);
        end_sharer(sharer);
        delayq_close(&owner);
    }
}

TEST(a_child_closes_and_frees_a_handle_that_had_asked) {
    delayq owner, *sharer;
    pid_t pid;
    open_queue(&owner, "jobs");
    sharer = open_sharer(&owner);
    freeReplyObject(run(main_connection(), "CLIENT PAUSE 300"));
    OFFER(sharer, "x", 0);
    pid = fork();
    if (pid == 0) {
        end_sharer(sharer);
        delayq_close(&owner);
        _exit(0);
    }
    join(pid);
    SETTLE(sharer);
    end_sharer(sharer);
    delayq_close(&owner);
}
