/*
 * Faults that version 0.2 had. Each test fails with the header of 0.2 (`make
 * old`), so this file uses public names only.
 */
#define _GNU_SOURCE
#define ATTEMPTS_US 1000000 /* as in a program; most tests set 1 us */
#include "test.h"
#include "proxy.h"
#include <poll.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"

static delayq q, other;
static delayq_item item;

/* --- the log -------------------------------------------------------------- */

static int lines, auth_lines;
static char last_line[300];
static void count_lines(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status == DELAYQ_OK && !strstr(text, "polling")) return;
    lines++;
    auth_lines += status == DELAYQ_ERR_AUTH;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void open_plain(void) {
    delayq_options o = options_for(&main_server, "jobs");
    OK(&q, delayq_open(&q, &o));
}

/* --- outboxes ------------------------------------------------------------- */

#define MEMORY (1 << 20)

static void open_outbox(int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_counts counts;
    o.outbox = shared(MEMORY);
    o.outbox_size = MEMORY;
    o.lease_ms = lease_ms;
    o.log = count_lines;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_count(&q, &counts));
}

static delayq_outbox_state state(void) {
    delayq_outbox_state s;
    CHECK(delayq_outbox(&q, &s) == DELAYQ_OK);
    return s;
}

/* Lease n items. */
static delayq_item leased[400];
static void lease(int n) {
    delayq_options o = options_for(&main_server, "jobs");
    size_t count;
    int i;
    o.lease_ms = 600000;
    OK(&other, delayq_open(&other, &o));
    for (i = 0; i < n; i++) OFFER(&other, "x", 0);
    for (i = 0; i < n; i += (int)count)
        OK(&other, delayq_take_many(&other, leased + i, (size_t)(n - i), &count,
                                    20000));
}

TEST(alternating_acks_nacks_extends_and_buries_share_requests) {
    int i, before;
    lease(400);
    open_outbox(60000);
    before = scripts_run(main_connection());
    for (i = 0; i < 400; i++)
        OK(&q, i % 4 == 0   ? delayq_ack(&q, &leased[i])
               : i % 4 == 1 ? delayq_nack(&q, &leased[i], 50000)
               : i % 4 == 2 ? delayq_extend(&q, &leased[i], 40000)
                            : BURY(&q, &leased[i]));
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(state().gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 200);
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 100);
    /* One script runs for the first change, one for each hundred of the others,
     * and one for a take. */
    if (scripts_run(main_connection()) - before > 8)
        FAIL("%d scripts for 400 changes",
             scripts_run(main_connection()) - before);
    delayq_close(&q);
    delayq_close(&other);
}

TEST(offers_with_and_without_a_key_share_requests) {
    char keys[400][16];
    int i, before;
    open_outbox(0);
    before = scripts_run(main_connection());
    for (i = 0; i < 400; i++) {
        delayq_message m = message("x", 60000);
        snprintf(keys[i], sizeof keys[i], "key %d", i);
        if (i % 2) m.key = keys[i];
        if (i % 2) m.key_ttl_ms = 60000;
        OK(&q, delayq_offer_message(&q, &m));
    }
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(ask_int("ZCARD " ZSET), 400);
    CHECK_INT(ask_int("DBSIZE"), 202);
    if (scripts_run(main_connection()) - before > 8)
        FAIL("%d scripts for 400 offers",
             scripts_run(main_connection()) - before);
    delayq_close(&q);
}

TEST(timers_that_are_set_and_cancelled_in_turn_share_requests) {
    int i, before;
    open_outbox(0);
    UNTIL((delayq_tick(&q, NULL), q.probed));
    before = scripts_run(main_connection());
    for (i = 0; i < 400; i++) {
        delayq_message m = message("x", 60000);
        OK(&q, delayq_offer_message(&q, &m));
        OK(&q, delayq_cancel(&q, &m.ticket));
    }
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(state().gone, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    if (scripts_run(main_connection()) - before > 8)
        FAIL("%d scripts for 800 ops", scripts_run(main_connection()) - before);
    delayq_close(&q);
}

/* --- loops -------------------------------------------------------------- */

/* If a turn of the program's loop is longer than the lease, the handle reports
 * it, and no attempt is used up. */
TEST(items_whose_lease_ends_before_they_are_taken_are_reported) {
    int i;
    open_outbox(50);
    OFFER(&q, "x", 0);
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    OK(&q, delayq_ack(&q, &item)); /* shows that this program acks its items */
    OK(&q, delayq_flush(&q, 20000));
    OFFER(&q, "slow", 0);
    lines = 0;
    for (i = 0; i < 40 && lines == 0; i++) {
        delayq_tick(&q, NULL);
        usleep(80000);
        if (delayq_take(&q, &item, 0) == DELAYQ_OK) FAIL("it was in time");
    }
    CHECK(lines > 0);
    CHECK_HAS(last_line, "lease");
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    if (item.attempt > 2)
        FAIL("attempt %d, and it was never seen", item.attempt);
    delayq_close(&q);
}

TEST(a_program_that_stops_taking_can_sleep) {
    int64_t wait_ms = 0;
    open_plain();
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    OFFER(&q, "a", 0);
    elapse(main_connection(), 1);
    UNTIL((delayq_tick(&q, &wait_ms), ask_int("LLEN jobs") == 1));
    OK(&q, delayq_tick(&q, &wait_ms));
    OK(&q, delayq_tick(&q, &wait_ms));
    if (wait_ms == 0) FAIL("the loop spins: wait_ms is 0");
    take_is(&q, "a");
    delayq_close(&q);
}

/* --- connections -------------------------------------------------------- */

/* Returns 1 if the server reports pushes to some client. */
static int is_tracked(void) {
    const char *p = ask("CLIENT LIST");
    while ((p = strstr(p, " flags=")) != NULL) {
        p += 7;
        if (memchr(p, 't', strcspn(p, " "))) return 1;
    }
    return 0;
}

/* With default options and a round trip of 2 s, the handle connects and is
 * notified of pushes. The log must not report a missing right. */
LONG_TEST(on_a_line_with_a_round_trip_of_2_s_pushes_are_heard) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    proxy_start(&main_server);
    o.name = "jobs";
    o.url = proxy_url();
    o.log = count_lines;
    proxy->delay_ms = 2000;
    proxy_strike(DELAY, 1, 0, 1 << 30);
    delayq_open(&q, &o);
    while (!is_tracked()) {
        delayq_status status = delayq_take(&q, &item, 1000);
        if (status != DELAYQ_EMPTY && status != DELAYQ_ERR_TIMEOUT &&
            status != DELAYQ_ERR_IO && status != DELAYQ_ERR_UNKNOWN)
            FAIL("%d: %s", status, delayq_errmsg(&q));
        if (auth_lines > 0) FAIL("%s", last_line);
    }
    CHECK_INT(auth_lines, 0);
    delayq_close(&q);
}

/* A proxy closes each connection at the command `word`. Each of the two sockets
 * may connect three times per second, and the log must report something. */
static void closed_at(const char *word, int box) {
    delayq_options o;
    int seconds = 3, most, i;
    long long end;
    static char box_of_this[1 << 16];
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = proxy_url();
    o.log = count_lines;
    o.reconnect_max_ms = 50;
    if (box) o.outbox = box_of_this;
    if (box) o.outbox_size = sizeof box_of_this;
    lines = 0;
    for (i = 0; i < 2; i++) {
        delayq_open(&q, &o);
        if (i == 0) delayq_close(&q);
    }
    snprintf(proxy->word, sizeof proxy->word, "%s", word);
    if (strcmp(word, "SETNAME") == 0 || strcmp(word, "EXISTS") == 0)
        ask("CLIENT KILL TYPE normal");
    proxy->connections = 0;
    end = now_us() + seconds * 1000000LL;
    while (now_us() < end) take_once(&q, box);
    most = 2 * 3 * (seconds + 1);
    if (proxy->connections > most)
        FAIL("%d connections in %d s, closed at %s, %s", proxy->connections,
             seconds, word, box ? "with an outbox" : "in a take");
    if (lines == 0) FAIL("closed at %s, and the log says nothing", word);
    proxy->word[0] = '\0';
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    delayq_close(&q);
}

static const char *const commands[] = {
    "SETNAME", "EXISTS", "EVALSHA", "TRACKING", "CACHING", "LLEN", "SUBSCRIBE"};
LONG_TEST(a_take_whose_connections_are_closed_at_a_command_connects_rarely) {
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++)
        closed_at(commands[i], 0);
}
LONG_TEST(a_loop_whose_connections_are_closed_at_a_command_connects_rarely) {
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < sizeof commands / sizeof commands[0]; i++)
        closed_at(commands[i], 1);
}

/* --- items -------------------------------------------------------------- */

TEST(an_attempt_that_redissons_list_has_lost_is_unknown) {
    int i;
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = DELAYQ_REDISSON;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&other, delayq_open(&other, &o));
    OFFER(&q, "x", 0);
    for (i = 0; i < 3; i++) {
        UNTIL((delayq_tick(&other, NULL), ask_int("LLEN jobs") == 1));
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(item.attempt, 0);
        OK(&q, delayq_nack(&q, &item, 0));
        elapse(main_connection(), 2);
        poll_now(&other);
    }
    /* If a take gets the item straight from the set, the attempt is counted. */
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.attempt, 2);
    delayq_close(&q);
    delayq_close(&other);
}

TEST(an_item_named_twice_in_ack_many_is_acked_once) {
    size_t n, done = 0;
    delayq_options o = options_for(&main_server, "jobs");
    static delayq_item items[100];
    int i;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 50; i++) OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    for (; done < 50; done += n)
        OK(&q, delayq_take_many(&q, items + done, 50, &n, 20000));
    items[1] = items[0];
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 2), DELAYQ_GONE);
    CHECK_INT(items[0].acked, DELAYQ_OK);
    CHECK_INT(items[1].acked, DELAYQ_GONE);
    delayq_close(&q);
}

/* The leases end in different milliseconds, and the script reads the first of
 * these milliseconds twice. */
TEST(an_item_named_again_behind_another_is_acked_once) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item items[3];
    int i;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 2; i++) {
        OFFER(&q, "x", 0);
        OK(&q, delayq_take(&q, &items[i], 20000));
        elapse(main_connection(), 2);
    }
    items[2] = items[0];
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 3), DELAYQ_GONE);
    CHECK_INT(items[0].acked, DELAYQ_OK);
    CHECK_INT(items[1].acked, DELAYQ_OK);
    CHECK_INT(items[2].acked, DELAYQ_GONE);
    delayq_close(&q);
}

TEST(ack_nack_extend_and_bury_refuse_the_ticket_of_an_offer) {
    int i;
    for (i = 0; i < 2; i++) {
        delayq_message m = message("x", 60000);
        delayq_options o = options_for(&main_server, "jobs");
        o.wire = WIRE(i);
        o.lease_ms = 60000;
        ask("FLUSHALL");
        OK(&q, delayq_open(&q, &o));
        OK(&q, delayq_offer_message(&q, &m));
        memset(&item, 0, sizeof item);
        item.ticket = m.ticket;
        CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, BURY(&q, &item), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, delayq_nack(&q, &item, 0), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, delayq_extend(&q, &item, 0), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, delayq_ack_take(&q, &item, 0), DELAYQ_ERR_ARG);
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        OK(&q, delayq_cancel(&q, &m.ticket));
        delayq_close(&q);
    }
}

TEST(a_broadcast_that_is_cleared_tells_how_many_stood_in_the_stream) {
    delayq_options o = options_for(&main_server, "jobs");
    int64_t removed = 0;
    int i;
    SET_BROADCAST(o);
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 10; i++) OFFER(&q, "x", 0);
    for (i = 0; i < 10; i++) OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_clear(&q, &removed));
    CHECK_INT(removed, 10);
    delayq_close(&q);
}

TEST(due_times_reach_2_to_the_53rd_and_a_long_lease_is_called_long) {
    delayq_message m = message("x", 0);
    delayq_options o = options_for(&main_server, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    m.due_ms = 9007199254740990;
    OK(&q, delayq_offer_message(&q, &m));
    OFFER(&q, "y", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_STATUS(&q, delayq_extend(&q, &item, INT64_MAX / 2), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "too long");
    delayq_close(&q);
}

/* --- a native handle on a queue of Redisson's ---------------------------- */

TEST(a_native_handle_refuses_a_queue_that_has_a_mirror) {
    int64_t removed = 7;
    delayq_options o = options_for(&main_server, "jobs");
    OK(&q, delayq_open(&q, &o));
    o.wire = DELAYQ_REDISSON;
    OK(&other, delayq_open(&other, &o));
    OFFER(&other, "java's", 60000);
    CHECK_STATUS(&q, delayq_clear(&q, &removed), DELAYQ_ERR_WIRE);
    CHECK_INT(removed, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK_INT(ask_int("LLEN " MIRROR), 1);
    CHECK_HAS(delayq_errmsg(&q), "mirror");
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_WIRE);
    delayq_close(&q);
    o.wire = DELAYQ_NATIVE;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_WIRE);
    delayq_close(&q);
    delayq_close(&other);
}
