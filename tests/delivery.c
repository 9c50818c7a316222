/* Delivery: an offered item is taken when it is due, in order and intact. */
#include "test.h"

TEST(an_offer_is_taken_when_it_is_due_and_not_before) {
    delayq q;
    delayq_item item;
    delayq_status status;
    redisContext *c = main_connection();
    long long offered = server_us(c);
    open_queue(&q, "jobs");
    OFFER(&q, "hello", 50);
    /* the item may come late on a slow machine */
    status = delayq_take(&q, &item, 0);
    if (status == DELAYQ_EMPTY) status = delayq_take(&q, &item, 20000);
    OK(&q, status);
    CHECK(server_us(c) >= offered + 50000);
    CHECK_INT(item.len, 5);
    CHECK(memcmp(item.data, "hello", 5) == 0);
    CHECK_INT(item.attempt, 1);
    CHECK(item.due_ms > 1600000000000LL);
    CHECK(item.late_us >= 0);
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

/* By the server's clock, an item is due 5 ms after its offer, rounded up to a
 * whole millisecond. */
TEST(nothing_is_early_by_the_offerers_own_stopwatch_unless_a_clock_is_set) {
    delayq q;
    int i;
    redisContext *c = main_connection();
    if (!server_can("TIME")) test_skip("scripts are told whole milliseconds");
    open_queue(&q, "jobs");
    for (i = 0; i < 200; i++) {
        delayq_item item;
        long long before = server_us(c), after, due, called = now_us();
        OFFER(&q, "x", 5);
        after = server_us(c);
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        if (now_us() - called < 5000)
            FAIL("item %d came %lld us after it was offered", i,
                 now_us() - called);
        due = item.due_ms * 1000;
        if (due < before + 5000 || due > after + 5999 || server_us(c) < due)
            FAIL("item %d, offered from %lld to %lld, is due at %lld", i,
                 before, after, due);
    }
    delayq_close(&q);
}

TEST(items_of_one_millisecond_come_in_the_order_of_their_offer) {
    delayq q;
    char text[16];
    int i;
    open_queue(&q, "jobs");
    for (i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "%d", i);
        OFFER(&q, text, 0);
    }
    elapse(main_connection(), 1);
    for (i = 0; i < 300; i++) {
        snprintf(text, sizeof text, "%d", i);
        take_is(&q, text);
    }
    delayq_close(&q);
}

TEST(items_come_in_the_order_of_their_due_times) {
    delayq q;
    delayq_item item;
    const char *want = "abcde", *offered = "caebd";
    int64_t now = server_us(main_connection()) / 1000;
    open_queue(&q, "jobs");
    for (; *offered; offered++) {
        delayq_message m;
        memset(&m, 0, sizeof m);
        m.data = offered;
        m.len = 1;
        m.due_ms = now + 20 * (*offered - 'a' + 1);
        OK(&q, delayq_offer_many(&q, &m, 1));
    }
    for (; *want; want++) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        CHECK_INT(*(const char *)item.data, *want);
    }
    delayq_close(&q);
}

TEST(empty_binary_and_large_payloads_arrive_byte_for_byte) {
    enum { LARGE = 4 << 20 };
    char *large = SHARED(char, LARGE);
    delayq q;
    delayq_item item;
    size_t i;
    delayq_wire wire;
    for (i = 0; i < LARGE; i++) large[i] = (char)(i * 31 + (i >> 9));
    EACH_WIRE(wire, 0, 2) {
        open_wire(&q, "jobs", wire);
        OK(&q, delayq_offer(&q, NULL, 0, 0));
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(item.len, 0);
        OK(&q, delayq_offer(&q, "a\0b\0\r\n", 6, 0));
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(item.len, 6);
        CHECK(memcmp(item.data, "a\0b\0\r\n", 6) == 0);
        OK(&q, delayq_offer(&q, large, LARGE, 0));
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(item.len, LARGE);
        CHECK(memcmp(item.data, large, LARGE) == 0);
        delayq_close(&q);
    }
}

TEST(a_tick_moves_at_most_a_batch_and_says_that_more_is_due) {
    delayq q;
    int64_t wait;
    char text[16];
    int i;
    if (!server_can("EVALSHA")) test_skip("the server forgets scripts");
    open_queue(&q, "jobs");
    for (i = 0; i < 250; i++) {
        snprintf(text, sizeof text, "%d", i);
        OFFER(&q, text, 1);
    }
    elapse(main_connection(), 2);
    for (i = 100; i <= 300; i += 100) {
        long long before = ask_int("EVAL %s 0", "return 0"), calls;
        const char *info;
        (void)before;
        ask("CONFIG RESETSTAT");
        OK(&q, delayq_tick(&q, &wait));
        info = ask("INFO commandstats");
        calls = strstr(info, "cmdstat_evalsha:calls=1,") != NULL ||
                (strstr(info, "cmdstat_eval:calls=1,") != NULL &&
                 strstr(info, "cmdstat_evalsha:") == NULL);
        if (!calls) FAIL("not one script: %s", info);
        CHECK_INT(ask_int("LLEN jobs"), i < 250 ? i : 250);
        if (i < 250) CHECK_INT(wait, 0);
    }
    /* If the subscription was confirmed meanwhile, one more tick is needed. */
    if (wait == 0) OK(&q, delayq_tick(&q, &wait));
    CHECK(wait > 0 && wait <= 10000);
    for (i = 0; i < 250; i++) {
        snprintf(text, sizeof text, "%d", i);
        CHECK_TEXT(ask("LINDEX jobs %d", i), text);
    }
    delayq_close(&q);
}

TEST(large_items_are_moved_one_by_one) {
    enum { LARGE = 1 << 20 };
    char *large = SHARED(char, LARGE);
    delayq q;
    int64_t wait;
    int i;
    open_queue(&q, "jobs");
    memset(large, 'x', LARGE);
    for (i = 0; i < 20; i++) OK(&q, delayq_offer(&q, large, LARGE, 0));
    OK(&q, delayq_tick(&q, &wait)); /* opens the subscriber */
    for (i = 1; i <= 20; i++) {
        UNTIL(
            ask_int("LLEN jobs") == i ||
            (delayq_tick(&q, &wait) == DELAYQ_OK && ask_int("LLEN jobs") == i));
        if (i < 20) CHECK_INT(wait, 0);
    }
    delayq_close(&q);
}

TEST(a_take_of_many_stops_where_its_budget_of_bytes_does) {
    static char large[28000];
    static delayq_item items[100];
    size_t n, i, taken = 0;
    delayq q;
    open_queue(&q, "jobs");
    for (i = 0; i < 100; i++) OK(&q, delayq_offer(&q, large, sizeof large, 0));
    while (delayq_take_many(&q, items, 100, &n, 0) == DELAYQ_OK) {
        CHECK(n * sizeof large < 320000);
        taken += n;
    }
    CHECK_INT(taken, 100);
    delayq_close(&q);
}

TEST(poison_between_good_items_goes_to_the_dead_letters) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        int64_t wait;
        delayq_item item;
        ask("FLUSHALL");
        open_wire(&q, "jobs", wire);
        OFFER(&q, "one", 0);
        ask("ZADD redisson_delay_queue_timeout:{jobs} %s %b", "1", "poison",
            (size_t)6);
        OFFER(&q, "two", 0);
        ask("ZADD redisson_delay_queue_timeout:{jobs} %s %b", "9", "",
            (size_t)0);
        OFFER(&q, "three", 0);
        UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && ask_int("LLEN jobs") == 3);
        take_is(&q, "one");
        take_is(&q, "two");
        take_is(&q, "three");
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 2);
        CHECK_HAS(ask("LINDEX delayq_dead:{jobs} 0"), "undecodable 1");
        CHECK_HAS(ask("LINDEX delayq_dead:{jobs} 0"), "\npoison");
        CHECK_INT(ask_int("ZCARD redisson_delay_queue_timeout:{jobs}"), 0);
        CHECK_INT(ask_int("LLEN redisson_delay_queue:{jobs}"), 0);
        /* A take that reads the set directly also finds undecodable items. */
        ask("ZADD redisson_delay_queue_timeout:{jobs} 1 poison");
        OFFER(&q, "four", 0);
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(item.len, 4);
        CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 3);
        delayq_close(&q);
    }
}

TEST(a_negative_score_hides_nothing_and_stays) {
    delayq q;
    open_queue(&q, "jobs");
    ask("ZADD redisson_delay_queue_timeout:{jobs} -9 overflow");
    OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    take_is(&q, "x");
    CHECK_INT(ask_int("ZCARD redisson_delay_queue_timeout:{jobs}"), 1);
    delayq_close(&q);
}

TEST(a_push_by_anyone_does_not_starve_what_is_due) {
    delayq q;
    open_queue(&q, "jobs");
    ask("RPUSH jobs a b");
    OFFER(&q, "due", 0);
    elapse(main_connection(), 1);
    take_is(&q, "a");
    ask("RPUSH jobs c");
    take_is(&q, "b");
    take_is(&q, "due");
    take_is(&q, "c");
    delayq_close(&q);
}
