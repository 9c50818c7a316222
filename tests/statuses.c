/*
 * A status is true. If it is unknown whether a request has run, the status is
 * neither "done" nor "not done". If nobody can ever know the outcome, the
 * status ends the caller's retries. A ticket belongs to one lease, and items
 * keep the order of their offers.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "system.h"
#include "proxy.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"

/* in shared memory: the number of items that the consumer has taken */
static volatile int *taken;

/* Connect through the proxy. Before a resend, wait until the consumer has taken
 * the item, and until a key with a TTL of 1 ms has expired. */
static int resend_waits;
static redisContext *connect_after_the_take(void *user, int timeout_ms) {
    if (resend_waits) UNTIL(*taken > 0);
    if (resend_waits) usleep(2000);
    return through_proxy(user, timeout_ms);
}

static void open_proxied(delayq *q, const server *s) {
    delayq_options o = options_for(s, "jobs");
    o.url = NULL;
    o.connect = connect_after_the_take;
    OK(q, delayq_open(q, &o));
}

/* Make the proxy lose the reply to the next request, and the connection. */
static void lose_an_answer(void) {
    proxy_strike(CUT, 1, 0, 1);
    resend_waits = taken != NULL;
}

/* --- an offer whose answer is lost --------------------------------------- */

struct consumer {
    const server *s;
    int step_s; /* change of the server's clock after the first take */
};

static void consume(void *argument) {
    const struct consumer *with = (const struct consumer *)argument;
    delayq_options o = options_for(with->s, "jobs");
    delayq_item item;
    delayq q;
    clock_rate = 100;
    o.max_wait_ms = 100;
    OK(&q, delayq_open(&q, &o));
    while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK) {
        if (*taken == 0 && with->step_s != 0) server_set_clock(with->step_s);
        ++*taken;
    }
}

/* Make an offer whose reply is lost, while a consumer takes due items. The item
 * must not be stored twice. */
static void offer_once(server *s, int rate, int idle_ms, int64_t delay_ms,
                       int step_s) {
    struct consumer with;
    delayq_status status;
    delayq q;
    with.s = s;
    with.step_s = step_s;
    taken = (volatile int *)shared(sizeof *taken);
    proxy_start(s);
    spawn(consume, &with);
    open_proxied(&q, s);
    clock_rate = rate;
    usleep((useconds_t)idle_ms * 1000);
    lose_an_answer();
    status = delayq_offer(&q, "x", 1, delay_ms);
    CHECK_STATUS(&q, status, DELAYQ_ERR_UNKNOWN);
    /* a second delivery would come within this time */
    usleep((useconds_t)(delay_ms + 200) * 1000);
    CHECK_INT(*taken, 1);
    delayq_close(&q);
}

TEST(an_offer_of_a_fast_clock_is_not_stored_twice_when_its_answer_is_lost) {
    offer_once(&main_server, 140, 1500, 0, 0);
}

TEST(an_offer_is_not_stored_twice_though_the_servers_clock_was_set_back) {
    server s;
    server_start_with_clock(&s);
    offer_once(&s, 100, 0, 60, -3600);
    server_end(&s);
}

/* The item is not due before the resend. So the handle learns the outcome, and
 * the item is stored once. */
TEST(an_offer_whose_answer_is_lost_before_it_is_due_is_stored_once) {
    delayq q;
    proxy_start(&main_server);
    open_proxied(&q, &main_server);
    lose_an_answer();
    OFFER(&q, "x", 60000);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

/* The item was stored and delivered. Then its key expired, and another item was
 * offered with this key. */
TEST(a_lost_answer_is_no_duplicate_because_another_has_the_key_since) {
    struct consumer with = {&main_server, 0};
    delayq_message m = message("x", 0), other = message("y", 60000);
    delayq q, b;
    taken = (volatile int *)shared(sizeof *taken);
    proxy_start(&main_server);
    spawn(consume, &with);
    open_proxied(&q, &main_server);
    lose_an_answer();
    m.key = other.key = "key";
    m.key_ttl_ms = 1;
    other.key_ttl_ms = 60000;
    CHECK_STATUS(&q, delayq_offer_many(&q, &m, 1), DELAYQ_ERR_UNKNOWN);
    UNTIL(*taken == 1);
    open_queue(&b, "jobs");
    UNTIL(delayq_offer_many(&b, &other, 1) == DELAYQ_OK);
    delayq_offer_many(&q, &m, 1);
    CHECK_INT(m.status, DELAYQ_GONE);
    delayq_close(&b);
    delayq_close(&q);
}

/* Offer as examples/README.md recommends after DELAYQ_ERR_UNKNOWN. */
TEST(offering_a_message_again_comes_to_an_end_after_its_due_time_too) {
    struct consumer with = {&main_server, 0};
    delayq_message m = message("x", 0);
    delayq q;
    int tries = 0;
    taken = (volatile int *)shared(sizeof *taken);
    proxy_start(&main_server);
    spawn(consume, &with);
    open_proxied(&q, &main_server);
    lose_an_answer();
    CHECK_STATUS(&q, delayq_offer_many(&q, &m, 1), DELAYQ_ERR_UNKNOWN);
    CHECK_INT(*taken, 1);
    while (m.status == DELAYQ_ERR_UNKNOWN && ++tries < 10)
        delayq_offer_many(&q, &m, 1);
    /* unknown if it was stored before; now nothing was stored */
    CHECK_INT(m.status, DELAYQ_GONE);
    CHECK_INT(tries, 1);
    CHECK_INT(*taken, 1);
    /* the next offer of the message stores it again */
    OK(&q, delayq_offer_many(&q, &m, 1));
    UNTIL(*taken == 2);
    delayq_close(&q);
}

/* Send an offer again after its key has expired or belongs to another item. The
 * item must be stored only once, and the ticket must be that of this item. */
static void offer_again_without_its_key(delayq_wire wire, int taken_by_other) {
    delayq_message m = message("x", 60000), other = message("y", 60000);
    delayq q;
    open_wire(&q, "jobs", wire);
    m.key = other.key = "k";
    m.key_ttl_ms = 1;
    other.key_ttl_ms = 60000;
    m.replace = 1;
    OK(&q, delayq_offer_many(&q, &m, 1));
    UNTIL(ask_int("EXISTS delayq_once:{jobs}:1:k") == 0);
    if (taken_by_other) OK(&q, delayq_offer_many(&q, &other, 1));
    m.status = DELAYQ_ERR_UNKNOWN; /* as if its reply had been lost */
    OK(&q, delayq_offer_many(&q, &m, 1));
    OK(&q, delayq_cancel(&q, &m.ticket));
    if (taken_by_other) OK(&q, delayq_cancel(&q, &other.ticket));
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    CHECK_INT(ask_int("LLEN redisson_delay_queue:{jobs}"), 0);
    delayq_close(&q);
}

TEST(an_offer_that_outlives_its_key_is_stored_once_and_its_ticket_is_true) {
    int wire;
    for (wire = 0; wire < WIRES; wire++) {
        freeReplyObject(run(main_connection(), "FLUSHALL"));
        offer_again_without_its_key(WIRE(wire), 0);
        offer_again_without_its_key(WIRE(wire), 1);
    }
}

/* --- a take whose answer is lost ------------------------------------------ */

enum verb { TAKE, TAKE_MANY, ACK_TAKE, VERBS };

/* Lose an item with the reply, on a server that then requires a password. */
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
    /* the text also contains the error that ended the take */
    CHECK_HAS(delayq_errmsg(&q), "NOAUTH");
    freeReplyObject(run(c, "FLUSHALL"));
    delayq_close(&q);
    delayq_close(&other);
}

TEST(a_take_that_may_have_lost_an_item_says_so_whatever_it_fails_of) {
    server s;
    redisContext *c;
    int verb;
    if (main_server.major < 6)
        test_skip("Redis 5 asks those who are connected for the password, too");
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

#define SLOW_MS 60 /* delay in one direction */

/* Both items are due in the same millisecond. The second offer begins at least
 * 20 ms after the first has returned. On a busy machine it begins later, since
 * the handles' readings of the server's clock have larger errors. */
static void in_order(delayq *first, delayq *second, redisContext *c) {
    delayq_message a = message("first", 0), b = message("second", 0);
    int64_t late_us = 0;
    a.due_ms = b.due_ms = server_us(c) / 1000 + 300;
    OK(first, delayq_offer_many(first, &a, 1));
#ifdef DELAYQ_VERSION_MAJOR /* 0.1 has no such member */
    late_us = first->conn->clock_error_us + second->conn->clock_error_us -
              SLOW_MS * 1000;
#endif
    usleep(20000 + (useconds_t)late_us);
    OK(second, delayq_offer_many(second, &b, 1));
    while (server_us(c) / 1000 < a.due_ms) usleep(1000);
    poll_now(first);
    take_is(first, "first");
    poll_now(first);
    take_is(first, "second");
}

/* If `slow` is 0, requests are delayed; if it is 1, replies. */
static void in_order_on_a_slow_line(int slow) {
    redisContext *c = main_connection();
    delayq far, near;
    int i;
    proxy_start(&main_server);
    proxy->delay_ms = SLOW_MS;
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

/* Take an item, give it back, and take it with another handle, often within one
 * millisecond. */
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
