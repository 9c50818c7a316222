/* Tickets, keys, batches, absolute times, peek, count, clear, and handles that
 * share a connection. */
#include "test.h"
#include <time.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"

static delayq_ticket offer(delayq *q, const char *text, int64_t delay_ms) {
    delayq_message m = message(text, delay_ms);
    OK(q, delayq_offer_message(q, &m));
    OK(q, m.status);
    return m.ticket;
}

TEST(cancel_removes_the_item_or_reports_that_it_is_gone) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        delayq_ticket a, b;
        delayq_item item;
        open_wire(&q, "jobs", wire);
        a = offer(&q, "a", 60000);
        b = offer(&q, "b", 60000);
        OK(&q, delayq_cancel(&q, &a));
        CHECK_STATUS(&q, delayq_cancel(&q, &a), DELAYQ_GONE);
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        CHECK_INT(ask_int("LLEN " MIRROR), wire == DELAYQ_NATIVE ? 0 : 1);
        OK(&q, delayq_reschedule(&q, &b, 10));
        CHECK_INT(ask_int("LLEN " MIRROR), wire == DELAYQ_NATIVE ? 0 : 1);
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK(memcmp(item.data, "b", 1) == 0);
        CHECK_STATUS(&q, delayq_cancel(&q, &b), DELAYQ_GONE);
        CHECK_STATUS(&q, delayq_reschedule(&q, &b, 10), DELAYQ_GONE);
        CHECK_INT(ask_int("DBSIZE"), 0);
        delayq_close(&q);
    }
}

TEST(reschedule_returns_the_new_ticket) {
    delayq q;
    delayq_ticket t;
    char before[64];
    open_queue(&q, "jobs");
    t = offer(&q, "a", 60000);
    snprintf(before, sizeof before, "%s", t.text);
    OK(&q, delayq_reschedule(&q, &t, 1000));
    CHECK(strcmp(before, t.text) != 0);
    OK(&q, delayq_reschedule(&q, &t, 90000));
    OK(&q, delayq_cancel(&q, &t));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(a_ticket_finds_its_item_among_thousands_of_one_millisecond) {
    delayq_message *m = SHARED(delayq_message, 5000);
    delayq q;
    int i;
    int64_t due;
    open_queue(&q, "jobs");
    due = 4000000000000;
    for (i = 0; i < 5000; i++) {
        m[i] = message("same", 0);
        m[i].due_ms = due;
    }
    OK(&q, delayq_offer_many(&q, m, 5000));
    CHECK_INT(ask_int("ZCARD " ZSET), 5000);
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 5000; i += 499) OK(&q, delayq_cancel(&q, &m[i].ticket));
    /* A binary search needs 13 reads, not 5,000. */
    CHECK(atoi(strstr(ask("INFO commandstats"), "cmdstat_zrange:calls=") + 21) <
          11 * 16);
    for (i = 0; i < 5000; i++)
        CHECK_STATUS(&q, delayq_cancel(&q, &m[i].ticket),
                     i % 499 ? DELAYQ_OK : DELAYQ_GONE);
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(peek_pages_through_in_due_order_and_touches_nothing) {
    delayq q;
    delayq_item items[7];
    delayq_ticket after = {""};
    size_t n, i, seen = 0;
    char before[8192];
    open_queue(&q, "jobs");
    CHECK_STATUS(&q, delayq_peek(&q, items, 7, &n, NULL), DELAYQ_EMPTY);
    for (i = 0; i < 20; i++) {
        char text[16];
        snprintf(text, sizeof text, "%02d", (int)(i * 7 % 20));
        offer(&q, text, 60000 + (int64_t)(i * 7 % 20) * 60000);
    }
    snprintf(before, sizeof before, "%s", contents(main_connection()));
    while (delayq_peek(&q, items, 7, &n, &after) == DELAYQ_OK) {
        for (i = 0; i < n; i++, seen++) {
            char text[16];
            snprintf(text, sizeof text, "%02d", (int)seen);
            CHECK(items[i].len == 2 && memcmp(items[i].data, text, 2) == 0);
            CHECK_INT(items[i].attempt, 0);
            CHECK(items[i].due_ms > 0);
        }
        after = items[n - 1].ticket;
    }
    CHECK_INT(seen, 20);
    CHECK_TEXT(contents(main_connection()), before);
    /* A ticket from a peek can cancel its item. Another peek can still begin
     * after this ticket. */
    OK(&q, delayq_cancel(&q, &after));
    CHECK_STATUS(&q, delayq_peek(&q, items, 7, &n, &after), DELAYQ_EMPTY);
    CHECK_STATUS(&q, delayq_peek(&q, NULL, 7, &n, NULL), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(peek_and_cancel_know_redissons_own_elements) {
    unsigned char e[64];
    delayq q;
    delayq_item items[2];
    size_t n = element(e, 8, 8, "ABCDEFGH", "java", 4);
    ask("ZADD " ZSET " 4000000000000 %b", e, n);
    ask("RPUSH " MIRROR " %b", e, n);
    open_wire(&q, "jobs", DELAYQ_REDISSON);
    OK(&q, delayq_peek(&q, items, 2, &n, NULL));
    CHECK_INT(n, 1);
    CHECK(memcmp(items[0].data, "java", 4) == 0);
    OK(&q, delayq_cancel(&q, &items[0].ticket));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(a_second_offer_under_a_key_is_a_duplicate_with_the_firsts_ticket) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        delayq_message a = message("a", 60000), b = message("b", 30000), c;
        ask("FLUSHALL");
        open_wire(&q, "jobs", wire);
        a.key = b.key = "mail";
        a.key_ttl_ms = b.key_ttl_ms = 60000;
        OK(&q, delayq_offer_message(&q, &a));
        CHECK_STATUS(&q, delayq_offer_message(&q, &b), DELAYQ_DUPLICATE);
        CHECK_INT(a.status, DELAYQ_OK);
        CHECK_INT(b.status, DELAYQ_DUPLICATE);
        CHECK_TEXT(b.ticket.text, a.ticket.text);
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        CHECK_TEXT(ask("GET delayq_once:{jobs}:4:mail"), a.ticket.text);
        /* Debouncing: this offer replaces the first one. */
        c = message("c", 10000);
        c.key = "mail";
        c.key_ttl_ms = 60000;
        c.replace = 1;
        OK(&q, delayq_offer_message(&q, &c));
        OK(&q, c.status);
        CHECK(strcmp(c.ticket.text, a.ticket.text) != 0);
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        CHECK_INT(ask_int("LLEN " MIRROR), wire == DELAYQ_NATIVE ? 0 : 1);
        CHECK_STATUS(&q, delayq_cancel(&q, &a.ticket), DELAYQ_GONE);
        OK(&q, delayq_cancel(&q, &c.ticket));
        CHECK_INT(ask_int("LLEN " MIRROR), 0);
        /* If no item is pending, `replace` only stores the new one. */
        c.status = DELAYQ_OK;
        OK(&q, delayq_offer_message(&q, &c));
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        delayq_close(&q);
    }
}

TEST(a_key_ends_with_its_time) {
    delayq q;
    delayq_message a = message("a", 60000), b = message("b", 60000);
    open_queue(&q, "jobs");
    a.key = b.key = "k";
    a.key_ttl_ms = b.key_ttl_ms = 20;
    OK(&q, delayq_offer_message(&q, &a));
    UNTIL(ask_int("EXISTS delayq_once:{jobs}:1:k") == 0);
    OK(&q, delayq_offer_message(&q, &b));
    OK(&q, b.status);
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    delayq_close(&q);
}

TEST(a_message_of_unknown_outcome_is_stored_once_when_offered_again) {
    delayq q;
    delayq_message m = message("x", 60000), old = message("y", 60000), key;
    open_queue(&q, "jobs");
    OK(&q, delayq_offer_message(&q, &m));
    m.status = DELAYQ_ERR_UNKNOWN; /* as if the reply had been lost */
    OK(&q, delayq_offer_message(&q, &m));
    OK(&q, m.status);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    OK(&q, delayq_cancel(&q, &m.ticket));
    /* The item has become due, so it may have been delivered. */
    OK(&q, delayq_offer_message(&q, &old));
    OK(&q, delayq_cancel(&q, &old.ticket));
    old.status = DELAYQ_ERR_UNKNOWN;
    old.first_due_ms = 1;
    CHECK_STATUS(&q, delayq_offer_message(&q, &old), DELAYQ_GONE);
    CHECK_INT(old.status, DELAYQ_GONE);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    OK(&q, delayq_offer_message(&q, &old)); /* this stores it again */
    OK(&q, delayq_cancel(&q, &old.ticket));
    key = message("z", 60000);
    key.key = "k";
    key.key_ttl_ms = 60000;
    OK(&q, delayq_offer_message(&q, &key));
    key.status = DELAYQ_ERR_UNKNOWN;
    OK(&q, delayq_offer_message(&q, &key));
    OK(&q, key.status);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

TEST(offer_message_sets_the_status_that_it_returns) {
    delayq q, closed;
    delayq_message m = message("x", 60000), first = message("y", 60000), second;
    open_queue(&q, "jobs");
    OK(&q, delayq_offer_message(&q, &m));
    OK(&q, m.status);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    OK(&q, delayq_cancel(&q, &m.ticket));
    first.key = "k";
    first.key_ttl_ms = 60000;
    second = first;
    OK(&q, delayq_offer_message(&q, &first));
    CHECK_STATUS(&q, delayq_offer_message(&q, &second), DELAYQ_DUPLICATE);
    CHECK_INT(second.status, DELAYQ_DUPLICATE);
    CHECK_TEXT(second.ticket.text, first.ticket.text);
    m = message("x", -1);
    CHECK_STATUS(&q, delayq_offer_message(&q, &m), DELAYQ_ERR_ARG);
    CHECK_INT(m.status, DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "delay_ms");
    CHECK_STATUS(&q, delayq_offer_message(&q, NULL), DELAYQ_ERR_ARG);
    memset(&closed, 0, sizeof closed);
    m = message("x", 0);
    CHECK_STATUS(&closed, delayq_offer_message(&closed, &m), DELAYQ_ERR_ARG);
    CHECK_INT(m.status, DELAYQ_ERR_ARG);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

TEST(a_batch_sets_the_status_of_each_message) {
    delayq q;
    delayq_message m[6];
    int i;
    open_queue(&q, "jobs");
    for (i = 0; i < 6; i++) m[i] = message("x", 60000);
    m[1].delay_ms = -1;
    m[2].key = "k";
    m[2].key_ttl_ms = 60000;
    m[3] = m[2];
    m[4].key = "no ttl";
    CHECK_STATUS(&q, delayq_offer_many(&q, m, 6), DELAYQ_ERR_ARG);
    CHECK_INT(m[0].status, DELAYQ_OK);
    CHECK_INT(m[1].status, DELAYQ_ERR_ARG);
    CHECK_INT(m[2].status, DELAYQ_OK);
    CHECK_INT(m[3].status, DELAYQ_DUPLICATE);
    CHECK_INT(m[4].status, DELAYQ_ERR_ARG);
    CHECK_INT(m[5].status, DELAYQ_OK);
    CHECK_INT(ask_int("ZCARD " ZSET), 3);
    OK(&q, delayq_cancel(&q, &m[5].ticket));
    CHECK_STATUS(&q, delayq_offer_many(&q, NULL, 1), DELAYQ_ERR_ARG);
    OK(&q, delayq_offer_many(&q, NULL, 0));
    delayq_close(&q);
}

/* Messages with and without keys alternate, so the pipeline has two kinds of
 * scripts. In later rounds the server has lost these scripts. */
TEST(a_long_batch_of_all_kinds_sets_the_status_of_each_message) {
    enum { COUNT = 1000 };
    delayq_message *m = SHARED(delayq_message, COUNT);
    static char keys[COUNT][12];
    int round, i, bad = 0, plain = 0;
    delayq q;
    open_queue(&q, "jobs");
    for (round = 0; round < 3; round++) {
        bad = plain = 0;
        for (i = 0; i < COUNT; i++) {
            m[i] = message("x", 60000 + i);
            if (i % 7 == 3) m[i].delay_ms = -1;
            if (i % 3 == 0) {
                snprintf(keys[i], sizeof keys[i], "%d", i);
                m[i].key = keys[i];
                m[i].key_ttl_ms = 60000;
            }
            bad += i % 7 == 3;
            plain += i % 7 != 3 && i % 3 != 0;
        }
        CHECK_STATUS(&q, delayq_offer_many(&q, m, COUNT), DELAYQ_ERR_ARG);
        for (i = 0; i < COUNT; i++)
            CHECK_INT(m[i].status, i % 7 == 3                ? DELAYQ_ERR_ARG
                                   : i % 3 == 0 && round > 0 ? DELAYQ_DUPLICATE
                                                             : DELAYQ_OK);
        CHECK_INT(ask_int("ZCARD " ZSET), COUNT - bad + round * plain);
        CHECK_INT(q.counts.offered, COUNT - bad + round * plain);
        ask("SCRIPT FLUSH");
    }
    for (i = 0; i < COUNT; i++)
        if (i % 7 != 3 && i % 3 != 0) OK(&q, delayq_cancel(&q, &m[i].ticket));
    delayq_close(&q);
}

TEST(a_long_batch_that_the_server_refuses_shows_which_messages_are_stored) {
    enum { COUNT = 5000 };
    delayq_message *m = SHARED(delayq_message, COUNT);
    int i, stored = 0;
    delayq q;
    open_queue(&q, "jobs");
    ask("CONFIG SET maxmemory-policy noeviction");
    ask("CONFIG SET maxmemory %lld",
        atoll(strstr(ask("INFO memory"), "used_memory:") + 12) + 400000);
    for (i = 0; i < COUNT; i++)
        m[i] = message("some hundred bytes of it", 1000);
    CHECK_STATUS(&q, delayq_offer_many(&q, m, COUNT), DELAYQ_ERR_FULL);
    for (i = 0; i < COUNT; i++) {
        if (m[i].status != DELAYQ_OK) CHECK_INT(m[i].status, DELAYQ_ERR_FULL);
        stored += m[i].status == DELAYQ_OK;
    }
    CHECK_INT(ask_int("ZCARD " ZSET), stored);
    CHECK(stored > 0 && stored < COUNT);
    ask("CONFIG SET maxmemory 0");
    delayq_close(&q);
}

TEST(a_hundred_thousand_messages_in_one_call_come_out_in_order) {
    size_t count = test_brief() ? 10000 : 100000, i, n, seen = 0;
    delayq_message *m = (delayq_message *)calloc(count, sizeof *m);
    char(*text)[16] = (char(*)[16])calloc(count, 16);
    static delayq_item items[1000];
    delayq q;
    CHECK(m && text);
    open_queue(&q, "jobs");
    for (i = 0; i < count; i++) {
        snprintf(text[i], 16, "%u", (unsigned)i);
        m[i] = message(text[i], 0);
        m[i].due_ms = 1000; /* the same past due time for all */
    }
    OK(&q, delayq_offer_many(&q, m, count));
    CHECK_INT(ask_int("ZCARD " ZSET), count);
    while (delayq_take_many(&q, items, 1000, &n, 0) == DELAYQ_OK)
        for (i = 0; i < n; i++, seen++)
            if (items[i].len != strlen(text[seen]) ||
                memcmp(items[i].data, text[seen], items[i].len) != 0)
                FAIL("number %d is \"%.*s\"", (int)seen, (int)items[i].len,
                     (const char *)items[i].data);
    CHECK_INT(seen, count);
    free(m);
    free(text);
    delayq_close(&q);
}

TEST(an_absolute_due_time_is_kept_unchanged) {
    delayq q;
    delayq_message m = message("x", 5);
    delayq_item item;
    open_queue(&q, "jobs");
    m.due_ms = 4000000000123;
    OK(&q, delayq_offer_message(&q, &m));
    CHECK_HAS(m.ticket.text, "4000000000123-");
    OK(&q, delayq_cancel(&q, &m.ticket));
    m = message("past", 0);
    m.due_ms = 1;
    OK(&q, delayq_offer_message(&q, &m));
    take_is(&q, "past");
    m.due_ms = -1;
    CHECK_STATUS(&q, delayq_offer_message(&q, &m), DELAYQ_ERR_ARG);
    m.due_ms = 9007199254740992;
    CHECK_STATUS(&q, delayq_offer_message(&q, &m), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    delayq_close(&q);
}

TEST(count_due_counts_the_items_due_by_each_time) {
    delayq q;
    delayq_counts c;
    int64_t due[5], counts[5];
    open_queue(&q, "jobs");
    offer(&q, "now", 0);
    offer(&q, "in a minute", 60000);
    offer(&q, "in an hour", 3600000);
    ask("ZADD " ZSET " -5 never");
    OK(&q, delayq_count(&q, &c));
    CHECK(c.now_ms > 1600000000000);
    due[0] = 0;
    due[1] = c.now_ms + 2;
    due[2] = c.next_due_ms + 60000 - 1;
    due[3] = c.next_due_ms + 60000 + 20000LL * test_slow();
    due[4] = 9007199254740991;
    OK(&q, delayq_count_due(&q, due, 5, counts));
    CHECK_INT(counts[0], 0);
    CHECK_INT(counts[1], 1);
    CHECK_INT(counts[2], 1);
    CHECK_INT(counts[3], 2);
    CHECK_INT(counts[4], 3);
    CHECK_STATUS(&q, delayq_count_due(&q, NULL, 1, counts), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_count_due(&q, due, 1, NULL), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_count_due(&q, due, 0, counts), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_count_due(&q, due, 1001, counts), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

/* delayq_count finds the earliest due time by a search. */
TEST(the_next_due_time_is_exact) {
    static const int64_t from_now[] = {-86400000, -1, 0, 1, 15, 16, 17, 59999};
    static const int64_t due[] = {0, 1, 2, 4102444800000, 9007199254740990,
                                  9007199254740991};
    enum { RELATIVE = sizeof from_now / sizeof *from_now };
    size_t i;
    delayq q;
    delayq_counts c;
    open_queue(&q, "jobs");
    ask("ZADD " ZSET " -5 never +inf never9 9007199254740992 never8");
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 3);
    CHECK_INT(c.next_due_ms, 0);
    ask("ZADD " ZSET " 9007199254740991 last");
    for (i = 0; i < RELATIVE + sizeof due / sizeof *due; i++) {
        int64_t want = i < RELATIVE ? c.now_ms + from_now[i]
                                    : due[i - RELATIVE];
        ask("ZADD " ZSET " %lld x", (long long)want);
        OK(&q, delayq_count(&q, &c));
        CHECK_INT(c.next_due_ms, want);
    }
    delayq_close(&q);
}

TEST(count_and_clear_report_the_items_that_exist) {
    delayq q;
    delayq_counts c;
    delayq_item item;
    int64_t removed;
    uint64_t late = 0;
    size_t i;
    open_queue(&q, "jobs");
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 0);
    CHECK_INT(c.next_due_ms, 0);
    offer(&q, "later", 60000);
    ask("RPUSH jobs a b");
    ask("ZADD " ZSET " 1 poison");
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 2);
    CHECK_INT(c.overdue, 1);
    CHECK(c.overdue_ms > 1000000);
    CHECK_INT(c.next_due_ms, 1);
    CHECK_INT(c.ready, 2);
    CHECK_INT(c.offered, 1);
    offer(&q, "now", 0);
    elapse(main_connection(), 1);
    while (delayq_take(&q, &item, 0) == DELAYQ_OK) {
    }
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.dead, 1);
    CHECK_INT(c.died, 1);
    CHECK_INT(c.taken, 3);
    CHECK_INT(c.moved, 1);
    offer(&q, "now", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_count(&q, &c));
    for (i = 0; i < 24; i++) late += c.lateness[i];
    CHECK_INT(late, 1); /* the other three items had no known due time */
    ask("RPUSH jobs x");
    OK(&q, delayq_clear(&q, &removed));
    CHECK_INT(removed, 2);
    CHECK_INT(ask_int("DBSIZE"), 1); /* only the dead letters are left */
    CHECK_STATUS(&q, delayq_count(&q, NULL), DELAYQ_ERR_ARG);
    delayq_close(&q);
}

TEST(fifty_queues_share_two_sockets) {
    static delayq owner, queues[50];
    delayq *all[50];
    delayq_item item;
    delayq_options o;
    char name[24];
    int i, rounds;
    open_queue(&owner, "owner");
    for (i = 0; i < 50; i++) {
        memset(&o, 0, sizeof o);
        snprintf(name, sizeof name, "topic%d", i);
        o.name = name;
        o.share = &owner;
        OK(&queues[i], delayq_open(&queues[i], &o));
        all[i] = &queues[i];
    }
    for (i = 0; i < 50; i++) OFFER(&queues[i], "x", 20 + i);
    for (rounds = 0, i = 0; i < 50;) {
        int k;
        OK(&owner, delayq_wait(all, 50, DELAYQ_FOREVER));
        for (k = 0; k < 50; k++)
            while (delayq_take(&queues[k], &item, 0) == DELAYQ_OK) i++;
        if (++rounds > 10000) FAIL("only %d came", i);
    }
    CHECK_INT(i, 50);
    /* two of these connections belong to the tests */
    CHECK_HAS(ask("INFO clients"), "connected_clients:4");
    /* A push into any of the lists is noticed. */
    while (delayq_wait(all, 50, 50) == DELAYQ_OK) {
    }
    ask("RPUSH topic33 pushed");
    OK(&owner, delayq_wait(all, 50, 9000));
    take_is(&queues[33], "pushed");
    /* Waking one of the handles ends the wait. */
    delayq_wake(&queues[7]);
    CHECK_STATUS(&owner, delayq_wait(all, 50, DELAYQ_FOREVER), DELAYQ_WOKEN);
    for (i = 0; i < 49; i++) delayq_close(&queues[i]);
    /* too early, because one handle still uses its connection */
    delayq_close(&owner);
    CHECK_STATUS(&queues[49], delayq_offer(&queues[49], "x", 1, 0),
                 DELAYQ_ERR_ARG);
    CHECK_STATUS(&queues[49], delayq_take(&queues[49], &item, 0),
                 DELAYQ_ERR_ARG);
    CHECK_STATUS(&queues[49], delayq_tick(&queues[49], NULL), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&queues[49]), "closed");
    delayq_wake(&queues[49]);
    /* from now on no handle uses the memory of the owner */
    memset(&owner, 0xee, sizeof owner);
    CHECK_STATUS(&queues[49], delayq_tick(&queues[49], NULL), DELAYQ_ERR_ARG);
    CHECK_STATUS(&queues[49], delayq_take(&queues[49], &item, 9),
                 DELAYQ_ERR_ARG);
    CHECK_STATUS(&queues[49], delayq_clear(&queues[49], NULL), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_wait(&all[49], 1, 9), DELAYQ_ERR_ARG);
    delayq_close(&queues[49]);
}

TEST(a_wake_of_another_handle_on_the_connection_does_not_spin) {
    delayq a, b;
    delayq_options o;
    delayq_item item;
    clock_t before;
    open_queue(&a, "a");
    memset(&o, 0, sizeof o);
    o.name = "b";
    o.share = &a;
    OK(&b, delayq_open(&b, &o));
    delayq_wake(&a);
    before = clock();
    CHECK_STATUS(&b, delayq_take(&b, &item, 500), DELAYQ_EMPTY);
    CHECK(clock() - before < CLOCKS_PER_SEC / 4 * test_slow());
    CHECK_STATUS(&a, delayq_take(&a, &item, 500), DELAYQ_WOKEN);
    delayq_close(&b);
    delayq_close(&a);
}

TEST(ack_many_of_two_formats_in_one_millisecond_acks_both) {
    unsigned char e[64];
    delayq q;
    delayq_item items[2];
    delayq_options o = options_for(&main_server, "jobs");
    size_t n = element(e, 16, 8, "ABCDEFGHabcde\0\0\0", "new", 3);
    o.wire = DELAYQ_REDISSON_OLD;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    ask("ZADD " ZSET " 1 %b", e, n);
    n = element(e, 0, 8, "\x81\xe9}\xf4\x10\"\xb1\xc3", "old", 3);
    ask("ZADD " ZSET " 2 %b", e, n);
    OK(&q, delayq_take_many(&q, items, 2, &n, 0));
    CHECK_INT(n, 2);
    OK(&q, delayq_ack_many(&q, items, 2));
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(share_refuses_what_does_not_fit) {
    delayq owner, q, third;
    delayq_options o;
    open_queue(&owner, "owner");
    memset(&o, 0, sizeof o);
    o.name = "q";
    o.share = &owner;
    o.url = "redis://elsewhere";
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o.url = NULL;
    OK(&q, delayq_open(&q, &o));
    o.share = &q;
    CHECK_STATUS(&third, delayq_open(&third, &o), DELAYQ_ERR_ARG);
    memset(&third, 0, sizeof third);
    o.share = &third;
    CHECK_STATUS(&third, delayq_open(&third, &o), DELAYQ_ERR_ARG);
    delayq_close(&q);
    delayq_close(&owner);
}

TEST(two_handles_with_one_name_on_one_connection_do_not_work_twice) {
    delayq a, b;
    delayq_options o;
    int64_t wait;
    long long before, after;
    int i;
    open_queue(&a, "jobs");
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.share = &a;
    OK(&b, delayq_open(&b, &o));
    OFFER(&a, "x", 30);
    for (i = 0; i < 4; i++) {
        OK(&a, delayq_tick(&a, &wait));
        OK(&b, delayq_tick(&b, &wait));
    }
    UNTIL(delayq_tick(&a, &wait) == DELAYQ_OK && ask_int("LLEN jobs") == 1);
    before = atoll(strstr(ask("INFO stats"), "total_commands_processed:") + 25);
    for (i = 0; i < 100; i++) OK(&b, delayq_tick(&b, &wait));
    after = atoll(strstr(ask("INFO stats"), "total_commands_processed:") + 25);
    CHECK_INT(after - before, 1);
    take_is(&b, "x");
    delayq_close(&b);
    delayq_close(&a);
}

TEST(a_sharing_handle_survives_a_lost_connection) {
    delayq a, b;
    delayq_options o;
    delayq_item item;
    open_queue(&a, "a");
    memset(&o, 0, sizeof o);
    o.name = "b";
    o.share = &a;
    OK(&b, delayq_open(&b, &o));
    CHECK_STATUS(&b, delayq_take(&b, &item, 20), DELAYQ_EMPTY);
    ask("CLIENT KILL TYPE pubsub");
    OFFER(&a, "x", 20);
    OFFER(&b, "y", 20);
    OK(&b, delayq_take(&b, &item, 20000));
    OK(&a, delayq_take(&a, &item, 20000));
    delayq_close(&b);
    delayq_close(&a);
}

/* Only a few bits of an old id are random. */
TEST(handles_that_lease_old_elements_at_one_moment_have_tickets_of_their_own) {
    delayq q[2];
    delayq_item items[2];
    uint64_t order = 3000000000000000u; /* far in the future */
    int i;
    for (i = 0; i < 2; i++) {
        delayq_options o = options_for(&main_server, "jobs");
        o.wire = DELAYQ_REDISSON_OLD;
        o.lease_ms = 60000;
        OK(&q[i], delayq_open(&q[i], &o));
        memcpy(q[i].handle_id, q[0].handle_id, sizeof q[i].handle_id);
        q[i].last_order = order; /* as if both clocks showed the same time */
        ask("RPUSH jobs x");
        OK(&q[i], delayq_take(&q[i], &items[i], 0));
    }
    if (strcmp(strchr(items[0].ticket.text, '-'),
               strchr(items[1].ticket.text, '-')) == 0)
        FAIL("both have %s", items[0].ticket.text);
    for (i = 0; i < 2; i++) delayq_close(&q[i]);
}
