/*
 * Clocks. Only the server's clock counts. A client's clock may be years off,
 * stand still or run at double speed. The server's clock may be set while the
 * queue is in use. If a message of the subscriber changes the time of the next
 * poll during a request, the reply to that request must not overwrite it.
 *
 * This file compiles delayq with a clock that the tests set.
 */
#include <stdint.h>
#include <sys/time.h>
#include <time.h>

/* The handle's clock. It showed `shown` at the real time `base` (both in us),
 * and has run at `rate` percent of the real speed since then. */
static struct {
    int64_t base, shown;
    int rate;
    int calls;
    /* begins at ten years, so that the clock can be set back */
} hands = {0, 315360000000000, 100, 0};

static int test_clock_gettime(clockid_t id, struct timespec *t);
static time_t test_time(time_t *t);
static int test_gettimeofday(struct timeval *t, void *zone);

#define clock_gettime test_clock_gettime
#define gettimeofday test_gettimeofday
#define time(t) test_time(t)
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#include "proxy.h"
#undef clock_gettime
#undef gettimeofday
#undef time

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static int64_t real_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int64_t hands_us(void) {
    return hands.shown + (real_us() - hands.base) * hands.rate / 100;
}

/* Returns the handle's clock. Fails if the library reads the wall time. */
static int test_clock_gettime(clockid_t id, struct timespec *t) {
    int64_t us = hands_us();
    if (id != CLOCK_MONOTONIC) FAIL("clock %d is asked", (int)id);
    hands.calls++;
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000) * 1000;
    return 0;
}
static __attribute__((unused)) time_t test_time(time_t *t) {
    (void)t;
    FAIL("time() is asked");
}
static __attribute__((unused)) int test_gettimeofday(struct timeval *t,
                                                     void *zone) {
    (void)t;
    (void)zone;
    FAIL("gettimeofday() is asked");
}

/* Let the handle's clock run at `rate` percent from now on, without a jump. */
static void run_at(int rate) {
    hands.shown = hands_us();
    hands.base = real_us();
    hands.rate = rate;
}

/* Set the handle's clock forward by `us`, or back if `us` is negative. */
static void jump(int64_t us) {
    hands.shown += us;
}

/* Returns the server's clock, in ms. */
static long long server_ms(redisContext *c) {
    redisReply *r = run(c, "TIME");
    long long ms;
    ms = atoll(r->element[0]->str) * 1000 + atoll(r->element[1]->str) / 1000;
    freeReplyObject(r);
    return ms;
}

static void open_here(delayq *q, const server *s, int64_t lease_ms,
                      int64_t max_wait_ms) {
    delayq_options o = options_for(s, "jobs");
    o.lease_ms = lease_ms;
    o.max_wait_ms = max_wait_ms;
    OK(q, delayq_open(q, &o));
}

/* Check that the item was not taken before its due time by the server's
 * clock. */
static void not_early(redisContext *c, const delayq_item *item,
                      long long due_ms) {
    long long now = server_ms(c);
    if (now < due_ms || (item->due_ms > 0 && now < item->due_ms))
        FAIL("taken at %lld, due at %lld (%lld)", now, due_ms,
             (long long)item->due_ms);
}

/* Take one item with a loop of takes with timeout 0, and another with a take
 * that waits. Check that neither item is early. */
static void never_early(delayq *q, redisContext *c, int delay) {
    long long due = server_ms(c) + delay;
    delayq_item item;
    OFFER(q, "x", delay);
    UNTIL(delayq_take(q, &item, 0) == DELAYQ_OK);
    not_early(c, &item, due);
    due = server_ms(c) + delay;
    OFFER(q, "y", delay);
    OK(q, delayq_take(q, &item, 20000));
    not_early(c, &item, due);
}

/* --- the client's clock -------------------------------------------------- */

TEST(a_clients_wall_clock_is_never_read) {
    delayq q;
    delayq_item item;
    delayq_message m;
    delayq_counts counts;
    int calls = hands.calls;
    open_here(&q, &main_server, 30, 0);
    OFFER(&q, "x", 20);
    OK(&q, delayq_take(&q, &item, 20000)); /* it comes again after its lease */
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.attempt, 2);
    OK(&q, delayq_nack(&q, &item, 10));
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_extend(&q, &item, 100));
    OK(&q, delayq_ack(&q, &item));
    memset(&m, 0, sizeof m);
    m.data = "k";
    m.len = 1;
    m.delay_ms = 20;
    m.key = "k";
    m.key_ttl_ms = 1000;
    OK(&q, delayq_offer_message(&q, &m));
    OK(&q, delayq_reschedule(&q, &m.ticket, 30));
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_count(&q, &counts));
    OK(&q, delayq_tick(&q, NULL));
    CHECK(hands.calls > calls);
    delayq_close(&q);
}

/* Each handle sees a clock that is right, or years fast or slow. */
TEST(clients_whose_clocks_are_years_apart_agree) {
    static const int64_t years[] = {0, 630720000000000, -283824000000000};
    redisContext *c = main_connection();
    int i;
    for (i = 0; i < 3; i++) {
        delayq q;
        jump(years[i]);
        open_here(&q, &main_server, 0, 0);
        never_early(&q, c, 30);
        OFFER(&q, "left", 50); /* for the next handle */
        delayq_close(&q);
        jump(years[(i + 1) % 3] - years[i]);
        open_here(&q, &main_server, 0, 0);
        UNTIL(delayq_take(&q, &(delayq_item){0}, 0) == DELAYQ_OK);
        delayq_close(&q);
        jump(-years[(i + 1) % 3]);
    }
}

TEST(a_clock_that_runs_double_or_half_delivers_nothing_early) {
    static const int rates[] = {200, 50, 1000, 10};
    redisContext *c = main_connection();
    size_t i;
    for (i = 0; i < 4; i++) {
        delayq q;
        open_here(&q, &main_server, 0, 0);
        run_at(rates[i]);
        never_early(&q, c, 40);
        delayq_close(&q);
        run_at(100);
    }
}

/* While its clock stands still, the handle does not poll, but it is notified.
 * When the clock runs again, the handle polls. */
TEST(a_clock_that_stands_still_delivers_nothing_early) {
    delayq q;
    delayq_item item;
    redisContext *c = main_connection();
    delayq_status status = DELAYQ_EMPTY;
    long long due;
    open_here(&q, &main_server, 0, 0);
    OK(&q, delayq_tick(&q, NULL)); /* opens the subscriber */
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    run_at(0);
    due = server_ms(c) + 40;
    OFFER(&q, "x", 40);
    while (status == DELAYQ_EMPTY && server_ms(c) < due + 20)
        status = delayq_take(&q, &item, 0);
    if (status != DELAYQ_OK) CHECK_STATUS(&q, status, DELAYQ_EMPTY);
    run_at(100);
    if (status != DELAYQ_OK) UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
    not_early(c, &item, due);
    delayq_close(&q);
}

/* CLOCK_MONOTONIC stops while a machine sleeps, but the server's clock goes on.
 * If the script did not compare the handle's due time with the delay, a nack,
 * extend or reschedule right after the sleep would use a due time in the past,
 * and this test would fail. */
TEST(a_reschedule_after_the_machine_slept_is_not_early) {
    delayq q;
    delayq_item item;
    delayq_message m;
    redisContext *c = main_connection();
    long long due;
    int what;
    for (what = 0; what < 3; what++) {
        open_here(&q, &main_server, 60000, 0);
        memset(&m, 0, sizeof m);
        m.data = "x";
        m.len = 1;
        m.delay_ms = what == 2 ? 60000 : 0;
        OK(&q, delayq_offer_message(&q, &m));
        if (what < 2) OK(&q, delayq_take(&q, &item, 20000));
        jump(-3600000000); /* the machine has slept for an hour */
        due = server_ms(c) + 300;
        if (what == 0) OK(&q, delayq_nack(&q, &item, 300));
        if (what == 1) OK(&q, delayq_extend(&q, &item, 300));
        if (what == 2) OK(&q, delayq_reschedule(&q, &m.ticket, 300));
        UNTIL((poll_now(&q), delayq_take(&q, &item, 0) == DELAYQ_OK));
        not_early(c, &item, due);
        OK(&q, delayq_ack(&q, &item));
        delayq_close(&q);
    }
}

/* --- the server's clock -------------------------------------------------- */

static server faked;

static redisContext *start_faked(void) {
    server_start_with_clock(&faked);
    return server_connect(&faked);
}

TEST(a_server_whose_clock_is_set_forward_delivers_what_is_due_by_it) {
    redisContext *c = start_faked();
    delayq q;
    delayq_item item;
    long long due;
    open_here(&q, &faked, 0, 300);
    due = server_ms(c) + 3600000;
    OFFER(&q, "in an hour", 3600000);
    OK(&q, delayq_tick(&q, NULL));
    CHECK_STATUS(&q, delayq_take(&q, &item, 400), DELAYQ_EMPTY);
    server_set_clock(3605);
    /* The item is taken after max_wait_ms at most, not after an hour. */
    OK(&q, delayq_take(&q, &item, 20000));
    not_early(c, &item, due);
    never_early(&q, c, 50);
    delayq_close(&q);
    redisFree(c);
    server_end(&faked);
}

TEST(a_server_whose_clock_is_set_back_delivers_nothing_before_it_is_due) {
    redisContext *c = start_faked();
    delayq q, other;
    delayq_item item;
    long long due;
    open_here(&q, &faked, 0, 300);
    open_here(&other, &faked, 0, 300);
    due = server_ms(c) + 200;
    OFFER(&q, "soon", 200);
    server_set_clock(-3600);
    CHECK_STATUS(&q, delayq_take(&q, &item, 500), DELAYQ_EMPTY);
    never_early(&q, c, 50); /* new items are due before "soon" */
    CHECK_STATUS(&other, delayq_take(&other, &item, 400), DELAYQ_EMPTY);
    server_set_clock(1);
    OK(&other, delayq_take(&other, &item, 20000));
    not_early(c, &item, due);
    never_early(&q, c, 50);
    delayq_close(&q);
    delayq_close(&other);
    redisFree(c);
    server_end(&faked);
}

/* Nack, extend or reschedule right after the server's clock was set by `step`
 * seconds. The new due time must be 300 ms after the new server time. The test
 * fails if the script does not compare the handle's due time with the delay. */
static void put_off_after(int step) {
    redisContext *c = start_faked();
    delayq q;
    delayq_item item;
    delayq_message m;
    int what;
    long long due;
    open_here(&q, &faked, 60000, 300);
    for (what = 0; what < 3; what++) {
        server_set_clock(0);
        memset(&m, 0, sizeof m);
        m.data = "x";
        m.len = 1;
        m.delay_ms = what == 2 ? 60000 : 0;
        OK(&q, delayq_offer_message(&q, &m));
        if (what < 2) OK(&q, delayq_take(&q, &item, 20000));
        server_set_clock(step);
        due = server_ms(c) + 300;
        if (what == 0) OK(&q, delayq_nack(&q, &item, 300));
        if (what == 1) OK(&q, delayq_extend(&q, &item, 300));
        if (what == 2) OK(&q, delayq_reschedule(&q, &m.ticket, 300));
        OK(&q, delayq_take(&q, &item, 20000));
        not_early(c, &item, due);
        OK(&q, delayq_ack(&q, &item));
    }
    delayq_close(&q);
    redisFree(c);
    server_end(&faked);
}

TEST(a_reschedule_after_the_servers_clock_was_set_forward_is_not_early) {
    put_off_after(3600);
}
TEST(a_reschedule_after_the_servers_clock_was_set_back_is_not_late) {
    put_off_after(-3600);
}

/* The server's machine has no battery, so its clock starts in 1970. An offer
 * that an outbox accepted before this start is due at once, not at a negative
 * time. */
TEST(an_outbox_that_is_older_than_its_servers_clock_offers_all_the_same) {
    static unsigned char memory[16384];
    redisContext *c = start_faked();
    delayq_options o = options_for(&faked, "jobs");
    delayq q;
    delayq_item item;
    redisReply *r;
    char aside[sizeof faked.socket + 2];
    int got = 0;
    o.outbox = memory;
    o.outbox_size = sizeof memory;
    o.reconnect_max_ms = 20;
    /* hide the server, so that the clock is not read before it is set */
    snprintf(aside, sizeof aside, "%s-", faked.socket);
    CHECK_INT(rename(faked.socket, aside), 0);
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_offer(&q, "now", 3, 0));
    OK(&q, delayq_offer(&q, "soon", 4, 1));
    usleep(2100000);
    CHECK_INT(rename(aside, faked.socket), 0);
    server_set_clock(-(int)time(NULL));
    OK(&q, delayq_flush(&q, 20000 * test_slow()));
    r = run(c, "ZCOUNT " ZSET " 1 inf");
    CHECK_INT(r->integer, 2);
    freeReplyObject(r);
    UNTIL((got += delayq_take(&q, &item, 0) == DELAYQ_OK) == 2 ||
          (delayq_tick(&q, NULL), 0));
    CHECK_TEXT(delayq_errmsg(&q), "");
    delayq_close(&q);
    redisFree(c);
    server_end(&faked);
}
