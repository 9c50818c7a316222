/*
 * The counters of a queue: totals over all handles that set options.counters.
 * Each item must be counted once, even if replies are lost.
 */
#include "outbox.h"
#include "proxy.h"

#define COUNTERS "delayq_counters:{jobs}"

static delayq_options counting(delayq_wire wire, int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = wire;
    o.lease_ms = lease_ms;
    o.counters = 1;
    return o;
}

static void open_counting(delayq *q, delayq_wire wire, int64_t lease_ms) {
    delayq_options o = counting(wire, lease_ms);
    OK(q, delayq_open(q, &o));
}

/* Compare the totals, written "offered taken acked nacked died canceled". */
static void totals_are(delayq *q, const char *want, const char *file,
                       int line) {
    delayq_counts c;
    char got[160];
    OK(q, delayq_count(q, &c));
    snprintf(got, sizeof got, "%d %d %d %d %d %d", (int)c.total.offered,
             (int)c.total.taken, (int)c.total.acked, (int)c.total.nacked,
             (int)c.total.died, (int)c.total.canceled);
    if (strcmp(got, want) != 0)
        test_fail(file, line, "the totals are %s, not %s", got, want);
}
#define TOTALS(q, want) totals_are(q, want, __FILE__, __LINE__)

static void take_one(delayq *q, delayq_item *item) {
    memset(item, 0, sizeof *item);
    OK(q, delayq_take(q, item, 20000));
}

/* --- what is counted ----------------------------------------------------- */

static void offers_are_counted(delayq_wire wire) {
    delayq_message m[4], key = message("key", 60000);
    delayq q;
    int i;
    ask("FLUSHALL");
    open_counting(&q, wire, 0);
    TOTALS(&q, "0 0 0 0 0 0");
    CHECK_INT(ask_int("EXISTS " COUNTERS), 0);
    OFFER(&q, "x", 60000);
    TOTALS(&q, "1 0 0 0 0 0");
    for (i = 0; i < 4; i++) m[i] = message("many", 60000);
    OK(&q, delayq_offer_many(&q, m, 4));
    TOTALS(&q, "5 0 0 0 0 0");
    key.key = "k";
    key.key_ttl_ms = 60000;
    OK(&q, delayq_offer_message(&q, &key));
    TOTALS(&q, "6 0 0 0 0 0");
    CHECK_STATUS(&q, delayq_offer_message(&q, &key), DELAYQ_DUPLICATE);
    TOTALS(&q, "6 0 0 0 0 0");
    key.replace = 1;
    OK(&q, delayq_offer_message(&q, &key));
    TOTALS(&q, "7 0 0 0 0 1");
    OK(&q, delayq_reschedule(&q, &m[0].ticket, 50000));
    TOTALS(&q, "7 0 0 0 0 1");
    OK(&q, delayq_cancel(&q, &m[0].ticket));
    TOTALS(&q, "7 0 0 0 0 2");
    CHECK_STATUS(&q, delayq_cancel(&q, &m[0].ticket), DELAYQ_GONE);
    TOTALS(&q, "7 0 0 0 0 2");
    OK(&q, delayq_clear(&q, NULL));
    TOTALS(&q, "7 0 0 0 0 2");
    delayq_close(&q);
}
TEST(each_offer_and_each_cancel_is_counted_and_a_duplicate_is_not) {
    offers_are_counted(DELAYQ_NATIVE);
    offers_are_counted(DELAYQ_REDISSON);
    offers_are_counted(DELAYQ_REDISSON_OLD);
}

static void leases_are_counted(delayq_wire wire) {
    delayq_item item, some[3];
    size_t n = 0, got;
    delayq q;
    int i;
    ask("FLUSHALL");
    open_counting(&q, wire, 60000);
    for (i = 0; i < 6; i++) OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    take_one(&q, &item);
    TOTALS(&q, "6 1 0 0 0 0");
    OK(&q, delayq_extend(&q, &item, 50000));
    TOTALS(&q, "6 1 0 0 0 0");
    OK(&q, delayq_nack(&q, &item, 3600000));
    TOTALS(&q, "6 1 0 1 0 0");
    CHECK_STATUS(&q, delayq_nack(&q, &item, 0), DELAYQ_GONE);
    TOTALS(&q, "6 1 0 1 0 0");
    take_one(&q, &item);
    OK(&q, delayq_ack(&q, &item));
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
    TOTALS(&q, "6 2 1 1 0 0");
    take_one(&q, &item);
    OK(&q, delayq_ack_take(&q, &item, 0));
    TOTALS(&q, "6 4 2 1 0 0");
    OK(&q, delayq_bury(&q, &item, NULL));
    TOTALS(&q, "6 4 2 1 1 0");
    CHECK_STATUS(&q, delayq_bury(&q, &item, NULL), DELAYQ_GONE);
    TOTALS(&q, "6 4 2 1 1 0");
    for (; n < 2; n += got)
        OK(&q, delayq_take_many(&q, some + n, 3 - n, &got, 20000));
    TOTALS(&q, "6 6 2 1 1 0");
    some[2] = some[1]; /* an item acked twice in one request counts once */
    delayq_ack_many(&q, some, 3);
    TOTALS(&q, "6 6 4 1 1 0");
    delayq_close(&q);
}
TEST(each_take_ack_nack_and_bury_of_a_lease_is_counted) {
    leases_are_counted(DELAYQ_NATIVE);
    leases_are_counted(DELAYQ_REDISSON);
    leases_are_counted(DELAYQ_REDISSON_OLD);
}

static void takes_are_counted(delayq_wire wire) {
    delayq_item some[200];
    char want[64];
    delayq q;
    int i, left;
    size_t n;
    ask("FLUSHALL");
    open_counting(&q, wire, 0);
    for (i = 0; i < 20; i++) OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    OK(&q, delayq_take(&q, some, 0)); /* taken straight from the set */
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL)); /* a moved item is not yet taken */
    CHECK_INT(ask_int("LLEN jobs"), 19);
    TOTALS(&q, "20 1 0 0 0 0");
    ask("RPUSH jobs pushed");
    for (left = 20; left > 0; left -= (int)n) {
        OK(&q, delayq_take_many(&q, some, 7, &n, 20000));
        snprintf(want, sizeof want, "20 %d 0 0 0 0", 21 - left + (int)n);
        TOTALS(&q, want);
    }
    CHECK_STATUS(&q, delayq_take(&q, some, 0), DELAYQ_EMPTY);
    TOTALS(&q, want);
    delayq_close(&q);
}
TEST(each_take_from_the_set_and_from_the_list_is_counted_once) {
    takes_are_counted(DELAYQ_NATIVE);
    takes_are_counted(DELAYQ_REDISSON);
    takes_are_counted(DELAYQ_REDISSON_OLD);
}

TEST(a_take_that_waits_among_others_is_counted) {
    delayq a, b;
    delayq_item item;
    open_counting(&a, DELAYQ_NATIVE, 60000);
    open_counting(&b, DELAYQ_NATIVE, 60000);
    OFFER(&a, "x", 50);
    OK(&a, delayq_take(&a, &item, 20000));
    OK(&a, delayq_ack(&a, &item));
    OFFER(&a, "y", 50);
    OFFER(&a, "z", 60);
    OK(&b, delayq_take(&b, &item, 20000));
    OK(&b, delayq_ack_take(&b, &item, 20000));
    TOTALS(&a, "3 3 2 0 0 0");
    delayq_close(&a);
    delayq_close(&b);
}

TEST(an_item_that_dies_is_counted_then_and_not_when_it_is_redriven) {
    delayq_options o = counting(DELAYQ_NATIVE, 60000);
    delayq_item item;
    size_t n;
    delayq q;
    int i;
    o.max_attempts = 2;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    for (i = 0; i < 2; i++) {
        take_one(&q, &item);
        OK(&q, delayq_nack(&q, &item, 0));
    }
    elapse(main_connection(), 1);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    TOTALS(&q, "1 2 0 2 1 0");
    ask("ZADD " ZSET " 5 poison"); /* this one dies in a take */
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    TOTALS(&q, "1 2 0 2 2 0");
    ask("ZADD " ZSET " 5 poison"); /* this one dies in a tick */
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
    TOTALS(&q, "1 2 0 2 3 0");
    ask("RPUSH delayq_retry:{jobs} poison"); /* this one, in the retry list */
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    TOTALS(&q, "1 2 0 2 4 0");
    OK(&q, delayq_dead_redrive(&q, 10, &n));
    CHECK_INT(n, 1);
    TOTALS(&q, "1 2 0 2 4 0");
    take_one(&q, &item);
    OK(&q, delayq_ack(&q, &item));
    TOTALS(&q, "1 3 1 2 4 0");
    OK(&q, delayq_dead_clear(&q, NULL));
    TOTALS(&q, "1 3 1 2 4 0");
    delayq_close(&q);
}

TEST(a_broadcast_counts_an_item_once_however_many_read_it) {
    delayq_options o = counting(DELAYQ_NATIVE, 0);
    delayq readers[3];
    delayq_item item;
    int i, k;
    if (!server_can("XADD")) test_skip("the server has no streams");
    SET_BROADCAST(o);
    o.broadcast_after = "";
    for (i = 0; i < 3; i++) OK(&readers[i], delayq_open(&readers[i], &o));
    for (i = 0; i < 4; i++) OFFER(&readers[0], "news", 0);
    for (i = 0; i < 3; i++)
        for (k = 0; k < 4; k++)
            OK(&readers[i], delayq_take(&readers[i], &item, 20000));
    TOTALS(&readers[1], "4 4 0 0 0 0");
    for (i = 0; i < 3; i++) delayq_close(&readers[i]);
}

TEST(an_outbox_counts_its_acks_and_its_cancels_apart) {
    delayq_options o = box_options(&main_server, BOX);
    delayq q, plain;
    delayq_message theirs[4];
    delayq_item items[8];
    size_t n, i;
    o.counters = 1;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    open_counting(&plain, DELAYQ_NATIVE, 60000);
    for (i = 0; i < 4; i++) {
        theirs[i] = message("theirs", 60000);
        OK(&plain, delayq_offer_message(&plain, &theirs[i]));
        OFFER(&q, "ours", 0);
    }
    SETTLE(&q);
    TOTALS(&plain, "8 0 0 0 0 0");
    for (n = 0; n < 4;) n += took_many(&q, items + n, 8 - n);
    /* acks and cancels, which share a request, alternate in the ring */
    for (i = 0; i < 3; i++) {
        OK(&q, delayq_ack(&q, &items[i]));
        OK(&q, delayq_cancel(&q, &theirs[i].ticket));
    }
    OK(&q, delayq_nack(&q, &items[3], 60000));
    SETTLE(&q);
    TOTALS(&plain, "8 4 3 1 0 3");
    delayq_close(&q);
    delayq_close(&plain);
}

/* --- who counts ---------------------------------------------------------- */

TEST(only_handles_with_the_option_count_also_on_one_connection) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq counts, plain, shares;
    delayq_item item;
    ask("SCRIPT FLUSH");
    ask("CONFIG RESETSTAT");
    open_counting(&counts, DELAYQ_NATIVE, 60000);
    o.lease_ms = 60000;
    OK(&plain, delayq_open(&plain, &o));
    o.url = NULL;
    o.share = &counts;
    o.connect_timeout_ms = o.io_timeout_ms = 0;
    OK(&shares, delayq_open(&shares, &o));
    OFFER(&plain, "x", 0);
    OFFER(&shares, "x", 0);
    OFFER(&counts, "x", 0);
    OFFER(&shares, "x", 0);
    TOTALS(&plain, "1 0 0 0 0 0");
    take_one(&shares, &item);
    OK(&counts, delayq_ack(&counts, &item));
    take_one(&counts, &item);
    OK(&shares, delayq_ack(&shares, &item));
    take_one(&counts, &item);
    OK(&counts, delayq_ack_take(&counts, &item, 20000));
    OK(&plain, delayq_nack(&plain, &item, 0));
    TOTALS(&shares, "1 3 2 0 0 0");
    delayq_close(&shares);
    delayq_close(&counts);
    delayq_close(&plain);
}

TEST(a_handle_without_the_option_touches_no_counters_and_sends_no_more) {
    delayq q;
    delayq_item item;
    const char *info;
    open_queue(&q, "jobs");
    ask("CONFIG RESETSTAT");
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    info = ask("INFO commandstats");
    CHECK(!strstr(info, "hincrby") && !strstr(info, "hmget"));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(the_counters_of_a_name_with_a_tag_lie_in_its_slot) {
    delayq_options o = counting(DELAYQ_NATIVE, 0);
    delayq q;
    o.name = "a{b}c";
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    CHECK_TEXT(ask("HGET delayq_counters:a{b}c offered"), "1");
    TOTALS(&q, "1 0 0 0 0 0");
    delayq_close(&q);
}

/* --- lost replies -------------------------------------------------------- */

static delayq q;

static void open_by_proxy(int64_t lease_ms) {
    delayq_options o = counting(DELAYQ_NATIVE, lease_ms);
    if (!proxy) proxy_start(&main_server);
    o.url = NULL;
    o.connect = through_proxy;
    OK(&q, delayq_open(&q, &o));
}

/* Cut the connection after `at` bytes of the next reply. */
static void lose_answer(long at) {
    proxy->only = proxy_number(q.conn->cmd.c);
    proxy_strike(CUT, 1, at, 1);
}

/* After a lost reply a call returns OK, or UNKNOWN if its outcome can't be
 * known. */
static void done_or_unknown(delayq_status status) {
    if (status != DELAYQ_OK) CHECK_INT(status, DELAYQ_ERR_UNKNOWN);
    CHECK_INT(proxy->times, 0); /* the reply was lost */
}

static void lose_and_count(delayq *plain, long at) {
    delayq_message m = message("x", 60000), key = message("key", 60000);
    delayq_item item;
    ask("DEL " COUNTERS);
    key.key = "k";
    key.key_ttl_ms = 60000;
    lose_answer(at);
    done_or_unknown(delayq_offer_message(&q, &m));
    TOTALS(plain, "1 0 0 0 0 0");
    lose_answer(at);
    done_or_unknown(delayq_offer_message(&q, &key));
    TOTALS(plain, "2 0 0 0 0 0");
    OFFER(&q, "y", 0);
    take_one(&q, &item);
    lose_answer(at);
    done_or_unknown(delayq_nack(&q, &item, 0));
    TOTALS(plain, "3 1 0 1 0 0");
    take_one(&q, &item);
    lose_answer(at);
    done_or_unknown(delayq_ack(&q, &item));
    TOTALS(plain, "3 2 1 1 0 0");
    lose_answer(at);
    done_or_unknown(delayq_cancel(&q, &key.ticket));
    TOTALS(plain, "3 2 1 1 0 1");
    OFFER(&q, "z", 0);
    take_one(&q, &item);
    lose_answer(at);
    done_or_unknown(delayq_bury(&q, &item, NULL));
    TOTALS(plain, "4 3 1 1 1 1");
    proxy_calm();
    OK(&q, delayq_cancel(&q, &m.ticket));
    ask("DEL delayq_once:{jobs}:1:k");
}

TEST(what_is_sent_again_after_a_lost_answer_is_counted_once) {
    delayq plain;
    long at;
    open_queue(&plain, "jobs");
    open_by_proxy(60000);
    for (at = 0; at < 3; at++) lose_and_count(&plain, at);
    delayq_close(&q);
    delayq_close(&plain);
}

TEST(an_item_whose_answer_is_lost_has_been_taken_and_counts) {
    delayq plain;
    delayq_item item;
    open_queue(&plain, "jobs");
    open_by_proxy(0);
    OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    lose_answer(0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_UNKNOWN);
    TOTALS(&plain, "1 1 0 0 0 0");
    proxy_calm();
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    TOTALS(&plain, "1 1 0 0 0 0");
    delayq_close(&q);
    delayq_close(&plain);
}

TEST(an_outbox_whose_answers_are_lost_counts_each_item_once) {
    enum { ITEMS = 60 };
    delayq_options o = box_options(&main_server, BOX);
    delayq plain;
    delayq_item items[ITEMS];
    char want[64];
    size_t i, n;
    proxy_start(&main_server);
    open_queue(&plain, "jobs");
    o.url = proxy_url();
    o.lease_ms = 60000;
    o.counters = 1;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < ITEMS; i++) {
        if (i % 9 == 4) proxy_strike(CUT, 1, (long)i % 4, 1);
        OFFER(&q, "x", 0);
        if (i % 9 == 6) SETTLE(&q);
    }
    SETTLE(&q);
    proxy_calm();
    TOTALS(&plain, "60 0 0 0 0 0");
    for (n = 0; n < ITEMS;) n += took_many(&q, items + n, ITEMS - n);
    for (i = 0; i < ITEMS; i++) {
        if (i % 9 == 4) proxy_strike(CUT, 1, (long)i % 4, 1);
        OK(&q, delayq_ack(&q, &items[i]));
        if (i % 9 == 6) SETTLE(&q);
    }
    SETTLE(&q);
    proxy_calm();
    snprintf(want, sizeof want, "%d %d %d 0 0 0", ITEMS, ITEMS, ITEMS);
    TOTALS(&plain, want);
    delayq_close(&q);
    delayq_close(&plain);
}

/* --- counters that can't be written -------------------------------------- */

static void use_it(delayq *h) {
    delayq_item item;
    delayq_message m = message("y", 60000);
    OFFER(h, "x", 0);
    take_one(h, &item);
    OK(h, delayq_nack(h, &item, 0));
    take_one(h, &item);
    OK(h, delayq_ack(h, &item));
    OK(h, delayq_offer_message(h, &m));
    OK(h, delayq_cancel(h, &m.ticket));
}

TEST(where_counters_can_not_be_written_all_else_goes_on) {
    delayq_options o = counting(DELAYQ_NATIVE, 60000);
    char url[200];
    delayq h;
    open_counting(&h, DELAYQ_NATIVE, 60000);
    ask("SET " COUNTERS " text");
    use_it(&h);
    TOTALS(&h, "0 0 0 0 0 0");
    ask("DEL " COUNTERS);
    use_it(&h);
    TOTALS(&h, "2 2 1 1 0 1");
    delayq_close(&h);
    if (main_server.major < 6) return;
    acl_user("w", "~* +@all -hincrby -hmget");
    snprintf(url, sizeof url, "unix://w:pw@%s", main_server.socket);
    o.url = url;
    OK(&h, delayq_open(&h, &o));
    use_it(&h);
    TOTALS(&h, "0 0 0 0 0 0");
    delayq_close(&h);
    ask("ACL SETUSER w +@all resetkeys ~jobs ~redisson* ~delayq_dead*"
        " ~delayq_retry* ~delayq_waiters* ~delayq_paused*");
    OK(&h, delayq_open(&h, &o));
    use_it(&h); /* without the right to the counters all calls still work */
    TOTALS(&h, "0 0 0 0 0 0");
    delayq_close(&h);
    ask("ACL DELUSER w");
}

TEST(counters_that_somebody_else_has_written_break_nothing) {
    delayq_counts c;
    delayq h;
    open_counting(&h, DELAYQ_NATIVE, 60000);
    ask("HSET " COUNTERS
        " offered nan taken -5 acked 1e300 nacked x died 9223372036854775807");
    OK(&h, delayq_count(&h, &c));
    CHECK_INT(c.total.offered + c.total.taken + c.total.nacked, 0);
    CHECK_INT(c.total.acked, (1LL << 53) - 1);
    CHECK_INT(c.total.died, (1LL << 53) - 1);
    use_it(&h);
    delayq_close(&h);
}

TEST(a_full_server_counts_the_acks_that_make_room) {
    delayq_item items[3];
    size_t n;
    delayq h;
    int i;
    open_counting(&h, DELAYQ_NATIVE, 60000);
    for (i = 0; i < 3; i++) OFFER(&h, "x", 0);
    elapse(main_connection(), 1);
    ask("CONFIG SET maxmemory 1");
    OK(&h, delayq_take_many(&h, items, 3, &n, 20000));
    CHECK_INT(n, 3);
    OK(&h, delayq_nack(&h, &items[0], 60000));
    OK(&h, delayq_bury(&h, &items[1], NULL));
    OK(&h, delayq_ack(&h, &items[2]));
    CHECK_STATUS(&h, delayq_offer(&h, "x", 1, 0), DELAYQ_ERR_FULL);
    ask("CONFIG SET maxmemory 0");
    TOTALS(&h, "3 3 1 1 1 0");
    delayq_close(&h);
}
