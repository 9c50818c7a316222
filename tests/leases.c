/* Leases, acks, nacks, extensions, retries, dead letters. */
#include "test.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static void open_leased(delayq *q, delayq_wire wire, int64_t lease_ms,
                        int most) {
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = wire;
    o.lease_ms = lease_ms;
    o.max_attempts = most;
    o.backoff_ms = 4;
    o.backoff_max_ms = 16;
    OK(q, delayq_open(q, &o));
}

static void take(delayq *q, delayq_item *item, const char *payload,
                 int attempt) {
    OK(q, delayq_take(q, item, 20000));
    if (item->len != strlen(payload) ||
        memcmp(item->data, payload, item->len) != 0)
        FAIL("took \"%.*s\", not \"%s\"", (int)item->len,
             (const char *)item->data, payload);
    CHECK_INT(item->attempt, attempt);
}

TEST(a_leased_item_stays_until_it_is_acked) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        delayq_item item;
        open_leased(&q, wire, 60000, 0);
        OFFER(&q, "x", 0);
        take(&q, &item, "x", wire == DELAYQ_REDISSON_OLD ? 0 : 1);
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        CHECK_INT(ask_int("LLEN redisson_delay_queue:{jobs}"), 0);
        OK(&q, delayq_ack(&q, &item));
        CHECK_INT(ask_int("DBSIZE"), 0);
        CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
        delayq_close(&q);
    }
}

TEST(a_lease_that_runs_out_delivers_again_with_its_attempt_counted) {
    delayq q;
    delayq_item item, again;
    open_leased(&q, DELAYQ_NATIVE, 20, 0);
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    take(&q, &again, "x", 2);
    CHECK(again.due_ms > 0);
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
    OK(&q, delayq_ack(&q, &again));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(a_late_ack_does_not_remove_what_another_holds) {
    delayq slow, fast;
    delayq_item late, item;
    open_leased(&slow, DELAYQ_NATIVE, 10, 0);
    open_leased(&fast, DELAYQ_NATIVE, 60000, 0);
    OFFER(&slow, "x", 0);
    take(&slow, &late, "x", 1);
    take(&fast, &item, "x", 2);
    CHECK_STATUS(&slow, delayq_ack(&slow, &late), DELAYQ_GONE);
    CHECK_STATUS(&slow, delayq_nack(&slow, &late, 0), DELAYQ_GONE);
    CHECK_STATUS(&slow, delayq_extend(&slow, &late, 5), DELAYQ_GONE);
    CHECK_STATUS(&slow, delayq_bury(&slow, &late, NULL), DELAYQ_GONE);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    OK(&fast, delayq_ack(&fast, &item));
    delayq_close(&slow);
    delayq_close(&fast);
}

TEST(a_lease_that_ran_out_may_be_acked_while_nobody_took_it) {
    delayq q;
    delayq_item item;
    open_leased(&q, DELAYQ_NATIVE, 1, 0);
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    elapse(main_connection(), 3);
    OK(&q, delayq_ack(&q, &item));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(the_attempt_count_survives_a_tick_and_the_retry_list) {
    delayq q, mover;
    delayq_item item;
    int64_t wait;
    open_leased(&q, DELAYQ_NATIVE, 5, 0);
    open_queue(&mover, "jobs");
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    UNTIL(delayq_tick(&mover, &wait) == DELAYQ_OK &&
          ask_int("LLEN delayq_retry:{jobs}") == 1);
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
    take(&q, &item, "x", 2);
    OK(&q, delayq_ack(&q, &item));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
    delayq_close(&mover);
}

TEST(retry_and_ready_are_taken_alternately) {
    delayq q, mover;
    delayq_item items[4], got[8];
    size_t n, i, retried = 0;
    int64_t wait;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    open_queue(&mover, "jobs");
    for (i = 0; i < 4; i++) OFFER(&q, "old", 0);
    elapse(main_connection(), 1);
    OK(&q, delayq_take_many(&q, items, 4, &n, 1000));
    CHECK_INT(n, 4);
    for (i = 0; i < 4; i++) OK(&q, delayq_nack(&q, &items[i], 0));
    UNTIL(delayq_tick(&mover, &wait) == DELAYQ_OK &&
          ask_int("LLEN delayq_retry:{jobs}") == 4);
    ask("RPUSH jobs n n n n");
    OK(&q, delayq_take_many(&q, got, 4, &n, 1000));
    CHECK_INT(n, 4);
    for (i = 0; i < n; i++) retried += got[i].attempt == 2;
    CHECK_INT(retried, 2);
    OK(&q, delayq_ack_many(&q, got, 4));
    OK(&q, delayq_take_many(&q, got, 8, &n, 1000));
    CHECK_INT(n, 4);
    OK(&q, delayq_ack_many(&q, got, 4));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
    delayq_close(&mover);
}

TEST(foreign_elements_on_the_retry_list_are_delivered_too) {
    unsigned char e[64];
    delayq q;
    delayq_item item;
    int lease;
    for (lease = 0; lease <= 60000; lease += 60000) {
        open_leased(&q, DELAYQ_NATIVE, lease, 0);
        ask("RPUSH delayq_retry:{jobs} %b", e,
            element(e, 8, q.conn->long_size, "ABCDEFGH", "java", 4));
        take(&q, &item, "java", 1);
        delayq_close(&q);
    }
}

TEST(a_raw_payload_is_leased_in_the_handles_own_format) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        delayq_item a, b;
        int old = wire == DELAYQ_REDISSON_OLD;
        open_leased(&q, wire, 60000, 0);
        ask("RPUSH jobs same same");
        take(&q, &a, "same", wire == DELAYQ_NATIVE);
        take(&q, &b, "same", wire == DELAYQ_NATIVE);
        CHECK(strcmp(a.ticket.text, b.ticket.text) != 0);
        CHECK_INT(ask_int("ZCARD " ZSET), 2);
        CHECK_INT(strlen(strchr(a.ticket.text, '-') + 1), old ? 16 : 32);
        OK(&q, delayq_ack(&q, &a));
        OK(&q, delayq_ack(&q, &b));
        CHECK_INT(ask_int("DBSIZE"), 0);
        delayq_close(&q);
    }
}

/* In the old format, the id of a lease has the server's microsecond, and the id
 * of an offer has the handle's estimate of it. A lease and an offer that are
 * due in the same millisecond must not get the same ticket. */
TEST(no_lease_gets_the_old_id_of_an_offer) {
    delayq q;
    delayq_item item;
    delayq_message offered = {0};
    unsigned long ids[2];
    open_leased(&q, DELAYQ_REDISSON_OLD, 60000, 0);
    offered.data = "x";
    offered.len = 1;
    OK(&q, delayq_offer_message(&q, &offered));
    take(&q, &item, "x", 0);
    ids[0] = strtoul(strrchr(offered.ticket.text, '-') + 1 + 13, NULL, 16);
    ids[1] = strtoul(strrchr(item.ticket.text, '-') + 1 + 13, NULL, 16);
    CHECK_INT(ids[0] & 0x7f, ids[1] & 0x7f); /* both have the handle's bits */
    CHECK_INT(ids[0] & 0x80, 0);             /* this bit marks a lease */
    CHECK_INT(ids[1] & 0x80, 0x80);
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&q);
}

TEST(a_lease_comes_back_through_redissons_own_transfer) {
    delayq_wire wire;
    EACH_WIRE(wire, 1, 2) {
        delayq q;
        delayq_item item;
        open_leased(&q, wire, 5, 0);
        OFFER(&q, "x", 0);
        take(&q, &item, "x", wire == DELAYQ_REDISSON);
        elapse(main_connection(), 7);
        /* This script has the effects of Redisson's transfer. */
        CHECK_INT(ask_int("EVAL %s 2 " ZSET " jobs %s",
                          "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
                          "local id, v = struct.unpack(ARGV[1], e)\n"
                          "redis.call('RPUSH', KEYS[2], v)\n"
                          "return redis.call('ZREM', KEYS[1], e)",
                          wire == DELAYQ_REDISSON ? "Bc0Lc0" : "dLc0"),
                  1);
        CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
        take(&q, &item, "x", 0); /* the ready list has no attempt counts */
        OK(&q, delayq_ack(&q, &item));
        delayq_close(&q);
    }
}

TEST(nack_with_a_delay_delivers_again_after_it) {
    delayq q;
    delayq_item item;
    long long before;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    before = now_us();
    OK(&q, delayq_nack(&q, &item, 30));
    CHECK_STATUS(&q, delayq_nack(&q, &item, 60000), DELAYQ_GONE);
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
    take(&q, &item, "x", 2); /* only the first nack counts */
    CHECK(now_us() - before >= 30000);
    OK(&q, delayq_nack(&q, &item, DELAYQ_BACKOFF));
    take(&q, &item, "x", 3);
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&q);
}

TEST(a_ticket_alone_knows_how_long_to_back_off) {
    delayq q;
    delayq_item item, only;
    delayq_counts c;
    int i;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    q.options.backoff_ms = 1000;
    q.options.backoff_max_ms = 3600000;
    OFFER(&q, "x", 0);
    for (i = 1; i < 8; i++) {
        take(&q, &item, "x", i);
        OK(&q, delayq_nack(&q, &item, 0));
    }
    take(&q, &item, "x", 8);
    memset(&only, 0, sizeof only);
    only.ticket = item.ticket;
    OK(&q, delayq_nack(&q, &only, DELAYQ_BACKOFF));
    /* the back-off is at least half of 1000 * 2^7 ms */
    OK(&q, delayq_count(&q, &c));
    CHECK(c.next_due_ms - c.now_ms > 60000);
    delayq_close(&q);
}

TEST(release_delivers_at_once_and_counts_no_attempt) {
    delayq q;
    delayq_item item;
    int i;
    open_leased(&q, DELAYQ_NATIVE, 60000, 2);
    OFFER(&q, "x", 0);
    for (i = 0; i < 5; i++) {
        take(&q, &item, "x", 1);
        OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
    }
    take(&q, &item, "x", 1);
    OK(&q, delayq_nack(&q, &item, 0));
    take(&q, &item, "x", 2);
    OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
    take(&q, &item, "x", 2);
    OK(&q, delayq_ack(&q, &item));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(an_item_that_was_never_taken_is_not_released) {
    delayq q;
    delayq_item item;
    size_t n;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    OFFER(&q, "x", 60000);
    OFFER(&q, "later", 120000);
    OK(&q, delayq_peek(&q, &item, 1, &n, NULL));
    CHECK_STATUS(&q, delayq_nack(&q, &item, DELAYQ_RELEASE), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "ticket");
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    delayq_close(&q);
}

TEST(extend_moves_the_end_of_a_lease_and_its_ticket) {
    delayq q, other;
    delayq_item item, none;
    open_leased(&q, DELAYQ_NATIVE, 40, 0);
    open_leased(&other, DELAYQ_NATIVE, 40, 0);
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    OK(&q, delayq_extend(&q, &item, 60000));
    CHECK_STATUS(&other, delayq_take(&other, &none, 80), DELAYQ_EMPTY);
    /* 0 means the handle's own lease_ms */
    OK(&q, delayq_extend(&q, &item, 0));
    take(&other, &none, "x", 2);
    CHECK_STATUS(&q, delayq_extend(&q, &item, 5), DELAYQ_GONE);
    delayq_close(&q);
    delayq_close(&other);
}

TEST(an_item_without_attempts_left_goes_to_the_dead_letters) {
    delayq q;
    delayq_item item;
    delayq_dead dead[4];
    size_t n;
    int i;
    open_leased(&q, DELAYQ_NATIVE, 60000, 3);
    OFFER(&q, "bad", 0);
    for (i = 1; i <= 3; i++) {
        take(&q, &item, "bad", i);
        OK(&q, delayq_nack(&q, &item, 0));
    }
    OFFER(&q, "good", 3);
    take(&q, &item, "good", 1);
    OK(&q, delayq_ack(&q, &item));
    OK(&q, delayq_dead_peek(&q, dead, 4, &n, 0));
    CHECK_INT(n, 1);
    CHECK_TEXT(dead[0].reason, "attempts");
    CHECK_INT(dead[0].attempt, 3);
    CHECK_INT(dead[0].len, 3);
    CHECK(memcmp(dead[0].data, "bad", 3) == 0);
    CHECK(dead[0].dead_ms > 1600000000000LL);
    OK(&q, delayq_dead_redrive(&q, 10, &n));
    CHECK_INT(n, 1);
    take(&q, &item, "bad", 1);
    OK(&q, delayq_bury(&q, &item, NULL));
    OK(&q, delayq_dead_peek(&q, dead, 4, &n, 0));
    CHECK_TEXT(dead[0].reason, "buried");
    CHECK_INT(dead[0].attempt, 1);
    delayq_close(&q);
}

/* Bury an item with the text `why`, and check that `want` is read back. */
static void why_is(delayq *q, const char *why, const char *want) {
    delayq_item item;
    delayq_dead dead;
    size_t n;
    OFFER(q, "bad", 0);
    elapse(main_connection(), 1);
    OK(q, delayq_take(q, &item, 1000));
    OK(q, delayq_bury(q, &item, why));
    OK(q, delayq_dead_peek(q, &dead, 1, &n, 0));
    CHECK_TEXT(dead.reason, "buried");
    CHECK_TEXT(dead.why, want);
    CHECK_INT(dead.attempt, 1);
    CHECK(dead.dead_ms > 1600000000000LL);
    CHECK_INT(dead.len, 3);
    CHECK(memcmp(dead.data, "bad", 3) == 0);
    OK(q, delayq_dead_clear(q, NULL));
}

TEST(a_dead_letter_says_why_it_was_buried) {
    static char text[300], want[300];
    delayq_options o = options_for(&main_server, "jobs");
    delayq q;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    why_is(&q, NULL, "");
    why_is(&q, "", "");
    why_is(&q, "x", "x");
    why_is(&q, "exit 100", "exit 100");
    why_is(&q, " 12 {} %s '\\", " 12 {} %s '\\");
    why_is(&q, "two\nlines\r\n\ttab\x1b[0m\x7f", "two lines   tab [0m ");
    memset(text, 'y', 299);
    memset(want, 'y', 200);
    why_is(&q, text, want);
    text[200] = '\0';
    why_is(&q, text, want);
    /* A character of two, three or four bytes is kept whole or left out. */
    memset(want, 0, sizeof want);
    memset(text, 'y', 299);
    memcpy(text + 198, "\xc3\xa9", 2);
    memcpy(want, text, 200);
    why_is(&q, text, want);
    memset(text + 190, 'y', 20);
    memcpy(text + 199, "\xc3\xa9", 2);
    want[198] = 'y';
    want[199] = '\0';
    why_is(&q, text, want);
    memset(text + 190, 'y', 20);
    memcpy(text + 197, "\xf0\x9f\x8e\x89", 4);
    want[197] = '\0';
    why_is(&q, text, want);
    delayq_close(&q);
}

/* Other programs write dead letters, too, and may write nonsense. */
TEST(a_first_line_of_any_kind_is_read) {
    static const struct {
        const char *line, *reason, *why, *data;
        long long dead_ms;
    } all[] = {{"buried 5\n", "buried", "", "p", 5},
               {"buried 5 \n", "buried", "", "p", 5},
               {"buried 5 a b\n", "buried", "a b", "p", 5},
               {"late 5x y\n", "late", "", "p", 5},
               {"late \n", "late", "", "p", 0},
               {"late\n", "undecodable", "", "late\np", 0},
               {" 5 a\n", "", "a", "p", 5}};
    delayq_dead dead;
    delayq q;
    size_t i, n;
    open_queue(&q, "jobs");
    for (i = 0; i < sizeof all / sizeof all[0]; i++) {
        ask("DEL delayq_dead:{jobs}");
        ask("RPUSH delayq_dead:{jobs} %b%s", all[i].line, strlen(all[i].line),
            "p");
        OK(&q, delayq_dead_peek(&q, &dead, 1, &n, 0));
        CHECK_TEXT(dead.reason, all[i].reason);
        CHECK_TEXT(dead.why, all[i].why);
        CHECK_INT(dead.dead_ms, all[i].dead_ms);
        CHECK_INT(dead.len, strlen(all[i].data));
        CHECK(memcmp(dead.data, all[i].data, dead.len) == 0);
    }
    delayq_close(&q);
}

TEST(dead_letters_are_paged_redriven_and_cleared) {
    delayq q;
    delayq_item item;
    delayq_dead dead[4];
    size_t n;
    int64_t removed;
    char text[16];
    int i;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    CHECK_STATUS(&q, delayq_dead_peek(&q, dead, 4, &n, 0), DELAYQ_EMPTY);
    ask("ZADD " ZSET " 1 poison");
    for (i = 0; i < 10; i++) {
        snprintf(text, sizeof text, "%d", i);
        OFFER(&q, text, 0);
        take(&q, &item, text, 1);
        OK(&q, delayq_bury(&q, &item, NULL));
    }
    OK(&q, delayq_dead_peek(&q, dead, 4, &n, 0));
    CHECK_INT(n, 4);
    CHECK_TEXT(dead[0].reason, "undecodable");
    CHECK(dead[0].len == 6 && memcmp(dead[0].data, "poison", 6) == 0);
    CHECK(memcmp(dead[1].data, "0", 1) == 0);
    OK(&q, delayq_dead_peek(&q, dead, 4, &n, 9));
    CHECK_INT(n, 2);
    CHECK(memcmp(dead[1].data, "9", 1) == 0);
    /* these 4 letters are the undecodable one and items 0, 1, 2 */
    OK(&q, delayq_dead_redrive(&q, 4, &n));
    CHECK_INT(n, 3);
    for (i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "%d", i);
        take(&q, &item, text, 1);
        OK(&q, delayq_ack(&q, &item));
    }
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 8);
    OK(&q, delayq_dead_clear(&q, &removed));
    CHECK_INT(removed, 8);
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(ack_take_acks_and_takes_in_one_round_trip) {
    delayq q;
    delayq_item item;
    const char *info;
    int i;
    if (!server_can("EVALSHA")) test_skip("the server forgets scripts");
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    for (i = 0; i < 5; i++) OFFER(&q, "x", 0);
    memset(&item, 0, sizeof item);
    elapse(main_connection(), 1);
    OK(&q, delayq_ack_take(&q, &item, 0));
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 4; i++) {
        OK(&q, delayq_ack_take(&q, &item, 0));
        OK(&q, item.acked);
    }
    info = ask("INFO commandstats");
    CHECK_HAS(info, "cmdstat_evalsha:calls=4,");
    CHECK_STATUS(&q, delayq_ack_take(&q, &item, 0), DELAYQ_EMPTY);
    OK(&q, item.acked);
    CHECK_INT(ask_int("DBSIZE"), 0);
    /* A stale ack is reported, but the take still returns an item. */
    OFFER(&q, "a", 0);
    take(&q, &item, "a", 1);
    OK(&q, delayq_ack(&q, &item));
    OFFER(&q, "b", 0);
    OK(&q, delayq_ack_take(&q, &item, 20000));
    CHECK_INT(item.acked, DELAYQ_GONE);
    CHECK(memcmp(item.data, "b", 1) == 0);
    delayq_close(&q);
}

TEST(ack_many_sets_the_outcome_of_each_item) {
    delayq q;
    static delayq_item items[700];
    size_t n, i, total = 0;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    for (i = 0; i < 700; i++) OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    while (total < 700) {
        OK(&q, delayq_take_many(&q, items + total, 700 - total, &n, 1000));
        total += n;
    }
    OK(&q, delayq_ack(&q, &items[3]));
    OK(&q, delayq_ack(&q, &items[600]));
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 700), DELAYQ_GONE);
    for (i = 0; i < 700; i++)
        CHECK_INT(items[i].acked, i == 3 || i == 600 ? DELAYQ_GONE : DELAYQ_OK);
    CHECK_INT(ask_int("DBSIZE"), 0);
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 0), DELAYQ_OK);
    delayq_close(&q);
}

/* If acks name all items whose leases end in one millisecond, the script
 * removes these items by their ranks. */
TEST(acks_of_many_leave_what_is_due_before_behind_and_beside_them) {
    static const int shifts[] = {-1, 1, 0};
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHabcde\0\0\0", "other", 5), count, i;
    delayq q;
    delayq_item items[3];
    for (i = 0; i < 3; i++) {
        long long due;
        ask("FLUSHALL");
        open_leased(&q, DELAYQ_NATIVE, 60000, 0);
        OFFER(&q, "a", 0);
        OFFER(&q, "b", 0);
        OFFER(&q, "c", 0);
        elapse(main_connection(), 1);
        OK(&q, delayq_take_many(&q, items, 3, &count, 0));
        CHECK_INT(count, 3);
        due = atoll(items[0].ticket.text);
        CHECK_INT(atoll(items[2].ticket.text), due);
        ask("ZADD " ZSET " %lld %b", due + shifts[i], e, n);
        OK(&q, delayq_ack_many(&q, items, 3));
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        CHECK_INT(ask_int("ZCOUNT " ZSET " %lld %lld", due + shifts[i],
                          due + shifts[i]),
                  1);
        delayq_close(&q);
    }
}

TEST(acks_of_many_that_are_gone_remove_nothing) {
    delayq q;
    delayq_item items[2];
    size_t count;
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    OFFER(&q, "a", 0);
    OFFER(&q, "b", 0);
    elapse(main_connection(), 1);
    OK(&q, delayq_take_many(&q, items, 2, &count, 0));
    CHECK_INT(count, 2);
    OK(&q, delayq_clear(&q, NULL));
    OFFER(&q, "c", 3600000);
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 2), DELAYQ_GONE);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

TEST(acks_of_many_need_no_right_to_remove_by_rank) {
    delayq_options o = options_for(&main_server, "jobs");
    static char url[200];
    delayq q, acking;
    delayq_item items[3];
    size_t count;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    OFFER(&q, "a", 0);
    OFFER(&q, "b", 0);
    OFFER(&q, "c", 0);
    elapse(main_connection(), 1);
    OK(&q, delayq_take_many(&q, items, 3, &count, 0));
    CHECK_INT(count, 3);
    ask("ACL SETUSER acker on >secret ~* &* +@all -zremrangebyrank");
    snprintf(url, sizeof url, "unix://acker:secret@%s", main_server.socket);
    o.url = url;
    o.lease_ms = 60000;
    OK(&acking, delayq_open(&acking, &o));
    OK(&acking, delayq_ack_many(&acking, items, 3));
    ask("ACL DELUSER acker");
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&acking);
    delayq_close(&q);
}

TEST(a_take_of_many_makes_dead_letters_of_what_has_no_attempts_left) {
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHabcde\0\0\3", "tired", 5), count;
    delayq q;
    delayq_item items[9];
    delayq_counts counts;
    int lease;
    for (lease = 0; lease < 2; lease++) {
        ask("FLUSHALL");
        open_leased(&q, DELAYQ_NATIVE, 60000 * lease, 3);
        OFFER(&q, "a", 0);
        ask("ZADD " ZSET " 1 %b", e, n);
        OFFER(&q, "b", 0);
        elapse(main_connection(), 1);
        OK(&q, delayq_take_many(&q, items, 9, &count, 0));
        CHECK_INT(count, 2);
        CHECK_INT(items[1].attempt, 1);
        OK(&q, delayq_count(&q, &counts));
        CHECK_INT(counts.dead, 1);
        delayq_close(&q);
    }
}

TEST(bad_input_of_the_lease_verbs_changes_nothing) {
    delayq q, plain;
    delayq_item item, zero;
    delayq_options o = options_for(&main_server, "jobs");
    size_t n;
    memset(&zero, 0, sizeof zero);
    open_leased(&q, DELAYQ_NATIVE, 60000, 0);
    open_queue(&plain, "jobs");
    OFFER(&q, "x", 0);
    take(&q, &item, "x", 1);
    CHECK_STATUS(&q, delayq_ack(&q, NULL), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_ack(&q, &zero), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "ticket");
    CHECK_STATUS(&q, delayq_nack(&q, &item, -3), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_nack(&q, &item, INT64_MAX), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_extend(&q, &item, -1), DELAYQ_ERR_ARG);
    CHECK_STATUS(&plain, delayq_extend(&plain, &item, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_ack_many(&q, &zero, 1), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_ack_take(&q, NULL, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_take_many(&q, &zero, 0, &n, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_take_many(&q, &zero, 10001, &n, 0), DELAYQ_ERR_ARG);
    strcpy(zero.ticket.text, "12-zz");
    CHECK_STATUS(&q, delayq_ack(&q, &zero), DELAYQ_ERR_ARG);
    strcpy(zero.ticket.text, "99999999999999999-00112233445566770011223344");
    CHECK_STATUS(&q, delayq_ack(&q, &zero), DELAYQ_ERR_ARG);
    memset(zero.ticket.text, '1', sizeof zero.ticket.text);
    CHECK_STATUS(&q, delayq_ack(&q, &zero), DELAYQ_ERR_ARG);
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&plain);
    o.wire = DELAYQ_REDISSON;
    o.max_attempts = 3;
    CHECK_STATUS(&plain, delayq_open(&plain, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&plain), "max_attempts");
    delayq_close(&q);
}

TEST(leases_go_on_while_the_server_is_full) {
    server s;
    redisContext *c;
    delayq q;
    delayq_item item;
    delayq_options o;
    int i;
    server_start(&s, NULL);
    c = server_connect(&s);
    o = options_for(&s, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 3; i++) OFFER(&q, "x", 0);
    freeReplyObject(run(c, "RPUSH jobs raw"));
    freeReplyObject(run(c, "CONFIG SET maxmemory 1"));
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_FULL);
    elapse(main_connection(), 1);
    OK(&q, delayq_take(&q, &item, 0)); /* taken from the ready list */
    OK(&q, delayq_nack(&q, &item, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_extend(&q, &item, 1000));
    OK(&q, delayq_nack(&q, &item, DELAYQ_RELEASE));
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_bury(&q, &item, NULL));
    for (i = 0; i < 3; i++) {
        OK(&q, delayq_take(&q, &item, 20000));
        OK(&q, delayq_ack(&q, &item));
    }
    OK(&q, delayq_dead_redrive(&q, 1, NULL));
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_ack(&q, &item));
    redisFree(c);
    delayq_close(&q);
    server_end(&s);
}
