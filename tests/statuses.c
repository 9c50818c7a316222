/*
 * A status is true: what may have happened is not called done, nor undone, and
 * what can't be told any more is said in a way that ends. A ticket belongs to
 * one lease, and the order is that of the offers.
 *
 * This file uses public names only, so that it compiles with older headers. It
 * compiles delayq with a clock that may run fast.
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <time.h>

/* The handle's clock runs at `clock_rate` hundredths of the real speed. */
static int clock_rate = 100;

static int rated_clock_gettime(clockid_t id, struct timespec *t) {
    static int64_t began_us;
    int status = clock_gettime(id, t);
    int64_t us = (int64_t)t->tv_sec * 1000000 + t->tv_nsec / 1000;
    if (began_us == 0) began_us = us;
    us = began_us + (us - began_us) * clock_rate / 100;
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000) * 1000;
    return status;
}
#define clock_gettime rated_clock_gettime
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#ifndef DELAYQ_HEADER
#define DELAYQ_HEADER "../delayq.h"
#endif
#include DELAYQ_HEADER
#undef clock_gettime
#include "proxy.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static delayq_message message(const char *text, int64_t delay_ms) {
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = text;
    m.len = strlen(text);
    m.delay_ms = delay_ms;
    return m;
}

/* Through the proxy, and slowly, so that there is time before a resend. */
static redisContext *connect_slowly(void *user, int timeout_ms) {
    usleep(150000);
    return through_proxy(user, timeout_ms);
}

static void open_proxied(delayq *q, const server *s) {
    delayq_options o = options_for(s, "jobs");
    o.url = NULL;
    o.connect = connect_slowly;
    OK(q, delayq_open(q, &o));
}

/* The answer to the next request gets lost, with its connection. */
static void lose_an_answer(void) {
    proxy_strike(CUT, 1, 0, 1);
}

/* --- a take whose answer is lost ------------------------------------------ */

enum verb { TAKE, TAKE_MANY, ACK_TAKE, VERBS };

/* The item is lost with the answer; then the server wants a password. */
static void lose_an_item(server *s, redisContext *c, enum verb verb) {
    delayq q, other;
    delayq_options o = options_for(s, "jobs");
    delayq_item item;
    delayq_status status = DELAYQ_OK;
    size_t count;
    OK(&other, delayq_open(&other, &o));
    open_proxied(&q, s);
    while (delayq_take(&q, &item, 0) != DELAYQ_EMPTY) continue;
    OFFER(&other, "x", 0);
    elapse(c, 1);
    poll_now(&q);
    lose_an_answer();
    freeReplyObject(run(c, "CONFIG SET requirepass pw"));
    memset(&item, 0, sizeof item);
    if (verb == TAKE) status = delayq_take(&q, &item, 20000);
    if (verb == TAKE_MANY)
        status = delayq_take_many(&q, &item, 1, &count, 20000);
    if (verb == ACK_TAKE) status = delayq_ack_take(&q, &item, 20000);
    freeReplyObject(run(c, "CONFIG SET requirepass %s", ""));
    CHECK_STATUS(&q, status, DELAYQ_ERR_UNKNOWN);
    CHECK_HAS(delayq_errmsg(&q), "NOAUTH"); /* and why it ended */
    freeReplyObject(run(c, "FLUSHALL"));
    delayq_close(&q);
    delayq_close(&other);
}

TEST(a_take_that_may_have_lost_an_item_says_so_whatever_it_fails_of) {
    server s;
    redisContext *c;
    int verb;
    server_start(&s, NULL);
    c = server_connect(&s);
    proxy_start(&s);
    for (verb = 0; verb < VERBS; verb++) lose_an_item(&s, c, (enum verb)verb);
    redisFree(c);
    server_end(&s);
}

/* --- an ack that is not sent ---------------------------------------------- */

static delayq_item kept;

static void ack_in_a_child(void *argument) {
    delayq *q = (delayq *)argument;
    CHECK_STATUS(q, delayq_ack_take(q, &kept, 0), DELAYQ_ERR_ARG);
    CHECK_INT(kept.acked, DELAYQ_ERR_ARG);
}

TEST(an_ack_take_that_is_refused_has_not_acked) {
    delayq q, guest;
    delayq_options o = options_for(&main_server, "jobs"), shares;
    memset(&shares, 0, sizeof shares);
    shares.name = "jobs";
    shares.share = &q;
    o.lease_ms = shares.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&guest, delayq_open(&guest, &shares));
    OFFER(&q, "x", 0);
    OK(&guest, delayq_take(&guest, &kept, 20000));
    kept.acked = DELAYQ_OK;
    join(spawn(ack_in_a_child, &guest));
    delayq_close(&q);
    CHECK_STATUS(&guest, delayq_ack_take(&guest, &kept, 0), DELAYQ_ERR_ARG);
    CHECK_INT(kept.acked, DELAYQ_ERR_ARG);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&guest);
}

/* --- order --------------------------------------------------------------- */

/* Both are due in the same millisecond, and the second begins after the first
 * has returned. */
static void in_order(delayq *first, delayq *second, redisContext *c) {
    delayq_message a = message("first", 0), b = message("second", 0);
    a.due_ms = b.due_ms = server_us(c) / 1000 + 300;
    OK(first, delayq_offer_many(first, &a, 1));
    usleep(20000); /* a busy machine's round trips differ */
    OK(second, delayq_offer_many(second, &b, 1));
    while (server_us(c) / 1000 < a.due_ms) usleep(1000);
    poll_now(first);
    take_is(first, "first");
    poll_now(first);
    take_is(first, "second");
}

/* slow: requests (0), answers (1) */
static void in_order_on_a_slow_line(int slow) {
    redisContext *c = main_connection();
    delayq far, near;
    int i;
    proxy_start(&main_server);
    proxy->delay_ms = 60;
    proxy_strike(DELAY, slow, 0, 1 << 30);
    {
        delayq_options o = options_for(&main_server, "jobs");
        o.url = proxy_url();
        OK(&far, delayq_open(&far, &o));
    }
    open_queue(&near, "jobs");
    for (i = 0; i < 3; i++) {
        in_order(&near, &far, c);
        in_order(&far, &near, c);
    }
    delayq_close(&far);
    delayq_close(&near);
}

TEST(offers_one_after_the_other_keep_their_order_though_answers_are_slow) {
    in_order_on_a_slow_line(1);
}

TEST(offers_one_after_the_other_keep_their_order_though_requests_are_slow) {
    in_order_on_a_slow_line(0);
}

/* --- tickets ------------------------------------------------------------- */

/* Take, give back, take by another, often within one millisecond. */
static void tickets_differ(delayq_wire wire, int64_t delay_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item first, second;
    delayq a, b;
    int i;
    o.lease_ms = 60000;
    o.wire = wire;
    OK(&a, delayq_open(&a, &o));
    OK(&b, delayq_open(&b, &o));
    OFFER(&a, "x", 0);
    OK(&a, delayq_take(&a, &first, 20000));
    for (i = 0; i < 400; i++) {
        OK(&a, delayq_nack(&a, &first, delay_ms));
        do poll_now(&b);
        while (delayq_take(&b, &second, 0) == DELAYQ_EMPTY);
        if (strcmp(first.ticket.text, second.ticket.text) == 0)
            FAIL("lease %d has the ticket of the one before: %s", i,
                 first.ticket.text);
        CHECK_STATUS(&a, delayq_ack(&a, &first), DELAYQ_GONE);
        OK(&b, delayq_nack(&b, &second, delay_ms));
        do poll_now(&a);
        while (delayq_take(&a, &first, 0) == DELAYQ_EMPTY);
    }
    if (delay_ms == DELAYQ_RELEASE)
        CHECK_INT(first.attempt, wire == DELAYQ_REDISSON_OLD ? 0 : 1);
    OK(&a, delayq_ack(&a, &first));
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&a);
    delayq_close(&b);
}

TEST(a_lease_after_a_release_has_a_ticket_of_its_own) {
    tickets_differ(DELAYQ_NATIVE, DELAYQ_RELEASE);
    tickets_differ(DELAYQ_REDISSON, DELAYQ_RELEASE);
}

TEST(each_lease_of_an_old_element_has_a_ticket_of_its_own) {
    tickets_differ(DELAYQ_REDISSON_OLD, 0);
}
