/*
 * Handles that share a queue with a Redisson of another wire. If a handle finds
 * elements of this Redisson, its calls fail before they write. The error text
 * names a remedy, and the remedy works.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "system.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"

/* One id of each version of Redisson: a double, and eight random bytes. */
#define OLD_ID "\x81\xe9}\xf4\x10\"\xb1\xc3"
#define NEW_ID "\x9dZ*o8?fw"

static const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                    DELAYQ_REDISSON_OLD};
static const char *const cures[] = {NULL, "wire = DELAYQ_REDISSON",
                                    "wire = DELAYQ_REDISSON_OLD"};

static delayq_status open_with(delayq *q, delayq_wire wire, int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = wire;
    o.lease_ms = lease_ms;
    return delayq_open(q, &o);
}

/* Store an item as a Redisson with wire `whose` does, or, if that is
 * DELAYQ_NATIVE, as a C program does. */
static void offered_by(delayq_wire whose, const char *payload, int64_t due_ms) {
    static const char *const ids[] = {"ABCDEFGHabcde\0\0", NEW_ID, OLD_ID};
    static const int lengths[] = {16, 8, 0};
    unsigned char e[64];
    size_t n = element(e, lengths[WIRE_NUMBER(whose)], 8,
                       ids[WIRE_NUMBER(whose)], payload, strlen(payload));
    ask("ZADD " ZSET " %lld %b", (long long)due_ms, e, n);
    if (whose != DELAYQ_NATIVE) ask("RPUSH " MIRROR " %b", e, n);
}

/* Returns 1 if a handle of `wire` can share a queue with Redisson `whose`. */
static int fits(delayq_wire wire, delayq_wire whose) {
    return whose == DELAYQ_NATIVE || wire == whose;
}

static void refuses(delayq *q, delayq_status status, delayq_wire whose) {
    CHECK_STATUS(q, status, DELAYQ_ERR_WIRE);
    CHECK_HAS(delayq_errmsg(q), cures[WIRE_NUMBER(whose)]);
}

#define FAR 1900000000000 /* a due time in ms */

TEST(elements_of_another_redisson_are_refused_at_the_open) {
    size_t i, j;
    for (i = 0; i < 3; i++)
        for (j = 1; j < 3; j++) {
            char before[1024];
            delayq q;
            delayq_item item;
            ask("FLUSHALL");
            offered_by(wires[j], "java", FAR);
            if (fits(wires[i], wires[j])) {
                OK(&q, open_with(&q, wires[i], 0));
                OFFER(&q, "x", 60000);
                delayq_close(&q);
                continue;
            }
            snprintf(before, sizeof before, "%s", contents(main_connection()));
            refuses(&q, open_with(&q, wires[i], 0), wires[j]);
            refuses(&q, delayq_offer(&q, "x", 1, 0), wires[j]);
            refuses(&q, delayq_take(&q, &item, 0), wires[j]);
            CHECK_TEXT(contents(main_connection()), before);
            delayq_close(&q);
        }
}

TEST(an_element_of_another_redisson_behind_others_is_seen_at_the_open) {
    delayq q;
    delayq_wire whose;
    EACH_WIRE(whose, 1, 2) {
        delayq_wire other =
            whose == DELAYQ_REDISSON ? DELAYQ_REDISSON_OLD : DELAYQ_REDISSON;
        int place;
        for (place = 0; place < 2; place++) {
            int i;
            ask("FLUSHALL");
            /* items of a C program, which are in the mirror, too */
            for (i = 0; i < 20; i++) {
                delayq_message m = {0};
                if (i == 0) OK(&q, open_with(&q, other, 0));
                m.data = "c";
                m.len = 1;
                m.due_ms = FAR + i;
                OK(&q, delayq_offer_many(&q, &m, 1));
            }
            delayq_close(&q);
            offered_by(whose, "java", place == 0 ? FAR + 1 : FAR + 100);
            ask("LTRIM " MIRROR " %d %d", place, place);
            refuses(&q, open_with(&q, other, 0), whose);
            delayq_close(&q);
        }
    }
}

/* In a large set, an open checks only some elements, with ZSCAN. */
TEST(elements_of_another_redisson_among_many_are_seen_at_the_open) {
    delayq_wire whose;
    EACH_WIRE(whose, 1, 2) {
        delayq_wire other =
            whose == DELAYQ_REDISSON ? DELAYQ_REDISSON_OLD : DELAYQ_REDISSON;
        char payload[20];
        delayq q;
        int i;
        ask("FLUSHALL");
        OK(&q, open_with(&q, other, 0));
        for (i = 0; i < 200; i++) OFFER(&q, "c", 3600000);
        delayq_close(&q);
        OK(&q, open_with(&q, other, 0));
        delayq_close(&q);
        for (i = 0; i < 800; i++) {
            snprintf(payload, sizeof payload, "java %d", i);
            offered_by(whose, payload, FAR);
        }
        ask("DEL " MIRROR);
        refuses(&q, open_with(&q, other, 0), whose);
        delayq_close(&q);
    }
}

/* Returns the number of bytes that the server's Lua uses, including the garbage
 * of the last script. */
static int64_t lua_bytes(void) {
    const char *info = strstr(ask("INFO memory"), "used_memory_lua:");
    if (!info) FAIL("INFO memory doesn't show used_memory_lua");
    return atoll(info + strlen("used_memory_lua:"));
}

/* A copy of a payload in Lua would cost the server up to 1 ms per MB, at each
 * open of each handle. */
TEST(no_open_reads_the_payload_of_a_large_item) {
    enum { LARGE = 20000000 };
    char *data = (char *)calloc(1, LARGE);
    delayq_wire wire;
    delayq q;
    int place;
    EACH_WIRE(wire, 0, 2) {
        for (place = 0; place < 3; place++) {
            ask("FLUSHALL");
            OK(&q, open_with(&q, wire, 0));
            OFFER(&q, "c", place == 0 ? 7200000 : 60000);
            OK(&q, delayq_offer(&q, data, LARGE, 3600000));
            if (place == 2) OFFER(&q, "c", 7200000);
            delayq_close(&q);
            ask("SCRIPT FLUSH"); /* frees the memory of the offer's script */
            OK(&q, open_with(&q, wire, 0));
            CHECK(lua_bytes() < LARGE);
            delayq_close(&q);
        }
    }
    free(data);
}

TEST(no_count_reads_the_payload_of_a_large_item) {
    enum { LARGE = 20000000 };
    char *data = (char *)calloc(1, LARGE);
    delayq_counts counts;
    delayq q;
    OK(&q, open_with(&q, DELAYQ_NATIVE, 0));
    OK(&q, delayq_offer(&q, data, LARGE, 3600000));
    ask("SCRIPT FLUSH"); /* frees the memory of the offer's script */
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.pending, 1);
    CHECK(counts.next_due_ms > counts.now_ms + 3000000);
    CHECK(lua_bytes() < LARGE);
    free(data);
    delayq_close(&q);
}

TEST(a_handle_that_only_offers_looks_again_after_ten_seconds) {
    size_t i, j;
    for (i = 0; i < 3; i++)
        for (j = 1; j < 3; j++) {
            delayq q;
            ask("FLUSHALL");
            OK(&q, open_with(&q, wires[i], 0));
            OFFER(&q, "c", 3600000);
            offered_by(wires[j], "java", FAR);
            clock_ahead_us += 11000000;
            if (fits(wires[i], wires[j])) {
                OFFER(&q, "c", 3600000);
                CHECK_INT(ask_int("ZCARD " ZSET), 3);
            } else {
                refuses(&q, delayq_offer(&q, "c", 1, 3600000), wires[j]);
                CHECK_INT(ask_int("ZCARD " ZSET), 2);
            }
            delayq_close(&q);
        }
}

TEST(a_take_that_meets_an_element_of_another_redisson_refuses) {
    size_t i, j;
    int lease;
    for (i = 0; i < 3; i++)
        for (j = 1; j < 3; j++)
            for (lease = 0; lease < 2; lease++) {
                delayq q;
                delayq_item item;
                if (fits(wires[i], wires[j])) continue;
                ask("FLUSHALL");
                OK(&q, open_with(&q, wires[i], lease ? 60000 : 0));
                CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
                offered_by(wires[j], "java", 1);
                OFFER(&q, "c", 0); /* makes the next take send a request */
                refuses(&q, delayq_take(&q, &item, 5000), wires[j]);
                CHECK_INT(ask_int("ZCARD " ZSET), 2);
                CHECK_INT(ask_int("EXISTS jobs"), 0);
                refuses(&q, delayq_offer(&q, "c", 1, 0), wires[j]);
                delayq_close(&q);
            }
}

/* Java has moved a payload to the ready list. Without a check, the take would
 * lease it in the wrong format. */
TEST(a_take_sees_what_is_due_soon_before_it_writes_a_lease) {
    delayq q;
    delayq_item item;
    OK(&q, open_with(&q, DELAYQ_REDISSON, 60000));
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    offered_by(DELAYQ_REDISSON_OLD, "java",
               server_us(main_connection()) / 1000 + 5000);
    ask("RPUSH jobs moved");
    refuses(&q, delayq_take(&q, &item, 5000), DELAYQ_REDISSON_OLD);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK_INT(ask_int("LLEN jobs"), 1);
    delayq_close(&q);
}

/* Whatever formats are mixed, the ticks of one handle move all items to the
 * ready list, where every consumer can take them. */
TEST(ticks_with_the_old_wire_move_elements_of_every_format) {
    delayq q;
    delayq_item item;
    int64_t wait;
    offered_by(DELAYQ_REDISSON_OLD, "old", 1);
    offered_by(DELAYQ_REDISSON, "new", 2);
    offered_by(DELAYQ_NATIVE, "c", 3);
    refuses(&q, open_with(&q, DELAYQ_REDISSON_OLD, 60000), DELAYQ_REDISSON);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && ask_int("LLEN jobs") == 3);
    /* only the list is left; the zset and the mirror are empty */
    CHECK_INT(ask_int("DBSIZE"), 1);
    refuses(&q, delayq_take(&q, &item, 0), DELAYQ_REDISSON);
    delayq_close(&q);
}

/* Java's mirror contains the pending items. If a native handle delivered one of
 * them, it would leave the item in the mirror. */
TEST(a_native_handle_leaves_no_delivered_item_in_javas_mirror) {
    delayq q;
    delayq_item item;
    OK(&q, open_with(&q, DELAYQ_NATIVE, 0));
    offered_by(DELAYQ_REDISSON, "java", 1);
    delayq_take(&q, &item, 100);
    CHECK_INT(ask_int("LLEN " MIRROR), ask_int("ZCARD " ZSET));
    delayq_close(&q);
}

/* An open does not check elements with a score below 0, because Redisson's
 * transfer begins at 0. */
TEST(an_element_below_zero_says_nothing_of_a_fleet) {
    unsigned char e[64];
    size_t n = element(e, 0, 8, OLD_ID, "x", 1);
    delayq q;
    ask("ZADD " ZSET " -1e300 %b", e, n);
    OK(&q, open_with(&q, DELAYQ_NATIVE, 0));
    OFFER(&q, "c", 60000);
    delayq_close(&q);
}
