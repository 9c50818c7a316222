/*
 * Details that only these tests check. tests/sim/mutations.txt breaks most of
 * them, one at a time, and no other test notices it.
 */
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#include "outbox.h"
#include "proxy.h"
#include <sys/resource.h>

#define LEASE_MS 60000

static delayq q;

static void open_leased(void) {
    delayq_options o = options_for(&main_server, "jobs");
    o.lease_ms = LEASE_MS;
    OK(&q, delayq_open(&q, &o));
}

/* --- numbers, URLs, replies ----------------------------------------------- */

TEST(two_back_offs_are_seldom_equal) {
    int64_t first = dq_num_backoff(1000, 60000, 3);
    int i, equal = 0;
    for (i = 0; i < 50; i++) {
        int64_t us = dq_num_backoff(1000, 60000, 3);
        CHECK(us >= 2000 && us <= 4000);
        equal += us == first;
    }
    if (equal > 10) FAIL("%d of 50 are equal", equal);
}

TEST(an_old_id_is_finite_whatever_the_handles_random_bytes_are) {
    unsigned char id[16];
    double d;
    int i;
    open_wire(&q, "jobs", DELAYQ_REDISSON_OLD);
    /* change the handle's random bytes after every 32 ids */
    for (i = 0; i < 32 * 8 * 256; i++) {
        q.handle_id[5] = (unsigned char)(i / 32 / 256);
        q.handle_id[6] = (unsigned char)(i / 32);
        dq_elem_next_id(&q, id);
        memcpy(&d, id, 8);
        if (d - d != 0.0)
            FAIL("bytes %02x %02x", q.handle_id[5], q.handle_id[6]);
    }
    delayq_close(&q);
}

TEST(an_escape_may_end_each_part_of_a_url) {
    dq_url u;
    CHECK(dq_url_parse("redis://us%40:p%40@host/3", &u) == NULL);
    CHECK_TEXT(u.user, "us@");
    CHECK_TEXT(u.password, "p@");
    CHECK(dq_url_parse("redis://:%41@host", &u) == NULL);
    CHECK_TEXT(u.password, "A");
    CHECK(dq_url_parse("redis://u%4@host", &u) != NULL);
}

/* The limits of one reply do not apply to a whole connection. */
TEST(a_million_elements_come_over_one_connection) {
    static char reply[9 + 4 * 1000 + 1];
    delayq_reply_scan scan;
    size_t n = (size_t)snprintf(reply, sizeof reply, "*1000\r\n");
    int i;
    for (i = 0; i < 1000; i++) n += (size_t)sprintf(reply + n, ":1\r\n");
    memset(&scan, 0, sizeof scan);
    for (i = 0; i < 1000; i++) {
        const char *wrong = dq_resp_scan(&scan, reply, n);
        if (wrong) FAIL("reply %d: %s", i, wrong);
    }
}

/* --- the clock ------------------------------------------------------------ */

TEST(a_slow_reply_corrects_a_clock_that_was_set_back) {
    delayq_conn conn;
    memset(&conn, 0, sizeof conn);
    conn.cmd.step_us = 5000;
    /* in us: the server's clock, the local clock before and after a request */
    dq_conn_set_clock(&conn, 5000001000, 0, 1000);
    conn.known = 1;
    conn.clock_number = 1;
    CHECK_INT(conn.clock_offset_us, 5000000000);
    CHECK_INT(conn.clock_error_us, 1000);
    /* a slower reply that agrees with the first changes nothing */
    dq_conn_set_clock(&conn, 5000012000, 10000, 12000);
    CHECK_INT(conn.clock_offset_us, 5000000000);
    CHECK_INT(conn.clock_error_us, 1000);
    CHECK_INT(conn.trip_us, 1000);
    /* a slower reply on a new connection changes only the round trip */
    conn.known = 0;
    dq_conn_set_clock(&conn, 5000015000, 13000, 15000);
    CHECK_INT(conn.clock_error_us, 1000);
    CHECK_INT(conn.trip_us, 2000);
    /* the program may read the first reply late, so step_us limits trip_us */
    conn.cmd.step_us = 1000;
    dq_conn_set_clock(&conn, 5000015000, 13000, 15000);
    conn.known = 1;
    CHECK_INT(conn.trip_us, 1000);
    dq_conn_set_clock(&conn, 4000022000, 20000, 22000);
    CHECK_INT(conn.clock_offset_us, 4000000000);
    /* the server's clock was set forward */
    dq_conn_set_clock(&conn, 6000032000, 30000, 32000);
    CHECK_INT(conn.clock_offset_us, 6000000000);
}

/* --- items ---------------------------------------------------------------- */

/* Set the attempt count of the only pending element. */
static void set_attempts(int attempts) {
    redisContext *c = main_connection();
    redisReply *r = run(c, "ZRANGE " ZSET " 0 0 WITHSCORES");
    unsigned char e[256];
    size_t len = r->element[0]->len;
    CHECK(len < sizeof e);
    memcpy(e, r->element[0]->str, len);
    e[15] = (unsigned char)(attempts >> 8);
    e[16] = (unsigned char)attempts;
    freeReplyObject(run(c, "ZREM " ZSET " %b", r->element[0]->str, len));
    freeReplyObject(run(c, "ZADD " ZSET " %s %b", r->element[1]->str, e, len));
    freeReplyObject(r);
}

TEST(the_256th_attempt_is_counted) {
    delayq_item items[3];
    size_t n, i;
    int many;
    open_leased();
    for (many = 1; many <= 3; many++) {
        OFFER(&q, "x", 0);
        elapse(main_connection(), 2);
        set_attempts(255);
        /* makes take_many use the general script */
        if (many == 3) ask("RPUSH jobs y");
        poll_now(&q);
        OK(&q, delayq_take_many(&q, items, (size_t)many, &n, 5000));
        for (i = 0; i < n; i++) {
            if (*(const char *)items[i].data == 'x')
                CHECK_INT(items[i].attempt, 256);
            OK(&q, delayq_ack(&q, &items[i]));
        }
        CHECK_INT(n, many == 3 ? 2 : 1);
    }
    delayq_close(&q);
}

TEST(an_item_however_late_is_counted_by_its_lateness) {
    delayq_counts counts;
    delayq_item item;
    redisReply *r;
    uint64_t sum = 0;
    size_t i, n = sizeof counts.lateness / sizeof counts.lateness[0];
    open_queue(&q, "jobs");
    OFFER(&q, "x", 0);
    r = run(main_connection(), "ZRANGE " ZSET " 0 0");
    freeReplyObject(run(main_connection(), "ZINCRBY " ZSET " -20000 %b",
                        r->element[0]->str, r->element[0]->len));
    freeReplyObject(r);
    poll_now(&q);
    OK(&q, delayq_take(&q, &item, 5000));
    CHECK(item.late_us > 19000000);
    OK(&q, delayq_count(&q, &counts));
    for (i = 0; i < n; i++) sum += counts.lateness[i];
    CHECK_INT(sum, 1);
    CHECK_INT(counts.lateness[n - 1], 1);
    delayq_close(&q);
}

static int reports[2];
static void count_reports(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)text;
    if (status < DELAYQ_OK) reports[status == DELAYQ_ERR_IO]++;
}

TEST(two_faults_in_turn_are_each_reported_once_a_second) {
    delayq_options o = options_for(&main_server, "jobs");
    long long began, seconds;
    int i;
    o.log = count_reports;
    OK(&q, delayq_open(&q, &o));
    reports[0] = reports[1] = 0;
    began = now_us();
    for (i = 0; i < 1000; i++) {
        dq_err_log_again(&q, DELAYQ_ERR_IO, "lost");
        dq_err_log_again(&q, DELAYQ_ERR_AGAIN, "busy");
    }
    seconds = (now_us() - began) / 1000000 + 1;
    for (i = 0; i < 2; i++) CHECK(reports[i] >= 1 && reports[i] <= seconds);
    delayq_close(&q);
}

/* ASan and valgrind find leaks themselves, and keep freed memory for a
 * while. */
#if defined(__SANITIZE_ADDRESS__)
#define MEASURES_MEMORY 0
#else
#define MEASURES_MEMORY (!test_brief())
#endif

TEST(twenty_thousand_ticks_need_no_memory) {
    struct rusage u;
    long before = 0;
    int i;
    open_queue(&q, "jobs");
    for (i = 0; i < 22000; i++) {
        if (i == 2000) {
            getrusage(RUSAGE_SELF, &u);
            before = u.ru_maxrss;
        }
        poll_now(&q);
        OK(&q, delayq_tick(&q, NULL));
    }
    getrusage(RUSAGE_SELF, &u);
    if (MEASURES_MEMORY && u.ru_maxrss - before > 4096)
        FAIL("%ld KB", u.ru_maxrss - before);
    delayq_close(&q);
}

/* --- outboxes ------------------------------------------------------------- */

TEST(an_outbox_sends_large_requests_again_after_small_ones) {
    int before, i;
    delayq_options o = box_options(&main_server, 1 << 20);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    OK(&q, delayq_flush(&q, 20000));
    q.outbox->offers.lane.limit = 1; /* as after lost connections */
    before = scripts_run(main_connection());
    for (i = 0; i < 2000; i++) OFFER(&q, "x", 60000);
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(ask_int("ZCARD " ZSET), 2001);
    if (scripts_run(main_connection()) - before > 20)
        FAIL("%d requests", scripts_run(main_connection()) - before);
    delayq_close(&q);
}

/* If a connection is lost t us after an op was sent alone, the next one has to
 * last for 4 t us before the op is sent again. A large op is sent in parts, and
 * t begins with the first. */
TEST(a_large_offer_that_loses_its_connection_waits_for_a_better_one) {
    enum { SIZE = 1 << 20 };
    static char large[SIZE], memory[4 * SIZE];
    delayq_options o = box_options(&main_server, BOX);
    long long begun, killed;
    int i;
    o.outbox = memory;
    o.outbox_size = sizeof memory;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    OK(&q, delayq_offer(&q, large, SIZE, 60000));
    UNTIL((turn(&q), q.conn->cmd.body_len > 0));
    begun = now_us();
    for (i = 0; i < 5; i++) {
        usleep(10000);
        turn(&q);
    }
    CHECK(q.conn->cmd.body_len > 0);
    killed = now_us();
    ask("CLIENT KILL TYPE normal");
    UNTIL((turn(&q), q.outbox->offers.lane.losses == 1));
    CHECK(q.outbox->offers.lane.trial_us >= 4 * (killed - begun) ||
          q.outbox->offers.lane.trial_us >= 1000000);
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    delayq_close(&q);
}

TEST(a_nack_in_an_outbox_is_due_no_sooner_than_its_delay_says) {
    redisContext *c = main_connection();
    delayq_item item;
    int i;
    open_box(&q, LEASE_MS);
    for (i = 0; i < 100; i++) {
        long long us;
        redisReply *r;
        OFFER(&q, "x", 0);
        UNTIL((turn(&q), delayq_take(&q, &item, 0) == DELAYQ_OK));
        us = server_us(c);
        OK(&q, delayq_nack(&q, &item, 5000));
        OK(&q, delayq_flush(&q, 20000));
        r = run(c, "ZRANGE " ZSET " 0 0 WITHSCORES");
        CHECK_INT(r->elements, 2);
        if (atoll(r->element[1]->str) * 1000 < us + 5000000)
            FAIL("%lld us too early",
                 us + 5000000 - atoll(r->element[1]->str) * 1000);
        freeReplyObject(r);
        ask("DEL " ZSET);
    }
    delayq_close(&q);
}

/* The server refuses the outbox's first ack, so that ack has no effect. Another
 * handle then acks the item, and the outbox's second ack comes too late. */
TEST(an_ack_that_was_refused_once_may_be_gone) {
    static delayq other;
    delayq_options o;
    delayq_item item;
    redisContext *c;
    server s;
    server_start(&s, NULL);
    c = server_connect(&s);
    o = box_options(&s, BOX);
    o.lease_ms = LEASE_MS;
    OK(&q, delayq_open(&q, &o));
    o = options_for(&s, "jobs");
    o.lease_ms = LEASE_MS;
    OK(&other, delayq_open(&other, &o));
    OFFER(&q, "x", 0);
    UNTIL((turn(&q), delayq_take(&q, &item, 0) == DELAYQ_OK));
    freeReplyObject(run(c, "ACL SETUSER default -evalsha"));
    OK(&q, delayq_ack(&q, &item));
    UNTIL(turn(&q) < DELAYQ_OK);
    freeReplyObject(run(c, "ACL SETUSER default +evalsha"));
    OK(&other, delayq_ack(&other, &item));
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(box(&q).gone, 1);
    delayq_close(&other);
    delayq_close(&q);
    redisFree(c);
    server_end(&s);
}

/* If the handle itself closes a connection, the request in flight must not be
 * blamed for it. */
TEST(a_connection_that_the_handle_leaves_is_not_ended_by_a_request) {
    delayq_exchange x;
    int left;
    for (left = 0; left < 2; left++) {
        memset(&q, 0, sizeof q);
        memset(&x, 0, sizeof x);
        q.own.owner = &q;
        q.own.cmd.first = q.own.cmd.last = &x;
        x.written = 1;
        dq_conn_close(&q.own, &q.own.cmd,
                      left ? DELAYQ_ERR_READONLY : DELAYQ_ERR_IO);
        CHECK_INT(x.status, DELAYQ_ERR_UNKNOWN);
        CHECK_INT(x.blame > 1, !left);
    }
}

/* --- names ---------------------------------------------------------------- */

#define CHANNEL "redisson_delay_queue_channel:{jobs}"

static int looked_up;
static const char *found;
static int look_up(void *user, const char *host, char *address, size_t size) {
    (void)user;
    (void)host;
    looked_up++;
    snprintf(address, size, "%s", found);
    return 1;
}

TEST(a_name_that_has_moved_is_looked_up_again) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    delayq_options o;
    server s;
    int i;
    snprintf(text, sizeof text, "%d", free_port());
    server_start(&s, with);
    snprintf(url, sizeof url, "redis://queue.test:%s", text);
    o = box_options(&s, BOX);
    o.url = url;
    o.resolve = look_up;
    found = "127.0.0.2"; /* nobody listens at this address */
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    UNTIL((turn(&q), q.conn->cmd.failures >= 4));
    CHECK_INT(looked_up, 1);
    found = "127.0.0.1";
    /* as if the name had been looked up half a minute ago */
    for (i = 0; i < 3; i++)
        if (q.conn->names[i].found_us > 0)
            q.conn->names[i].found_us -= 30000000;
    SETTLE(&q);
    delayq_close(&q);
    server_end(&s);
}

/* The handle's transfers find nothing due, so they succeed on the replica,
 * too. */
TEST(a_name_whose_server_has_become_a_replica_is_looked_up_again) {
    char port[16], url[64];
    const char *one[] = {"--port", port, "--bind", "127.0.0.1", NULL};
    const char *two[] = {"--port", port, "--bind", "127.0.0.2", NULL};
    delayq_options o;
    delayq_item item;
    redisContext *c, *there;
    server before, after;
    int i;
    snprintf(port, sizeof port, "%d", free_port());
    server_start(&before, one);
    server_start(&after, two);
    snprintf(url, sizeof url, "redis://queue.test:%s", port);
    o = box_options(&before, BOX);
    o.url = url;
    o.max_wait_ms = 5; /* so transfers run between attempts to send the offer */
    o.lease_ms = LEASE_MS;
    o.resolve = look_up;
    looked_up = 0;
    found = "127.0.0.1";
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    CHECK_INT(looked_up, 1);
    UNTIL((turn(&q), delayq_take(&q, &item, 0), q.subscribed));
    c = server_connect(&before);
    freeReplyObject(run(c, "REPLICAOF 127.0.0.2 %s", port));
    found = "127.0.0.2";
    OFFER(&q, "y", 60000);
    UNTIL(turn(&q) == DELAYQ_ERR_READONLY);
    /* as if the name had been looked up half a minute ago */
    for (i = 0; i < 3; i++)
        if (q.conn->names[i].found_us > 0)
            q.conn->names[i].found_us -= 30000000;
    SETTLE(&q);
    /* The subscriber leaves the replica, too. */
    there = server_connect(&after);
    UNTIL((turn(&q), delayq_take(&q, &item, 0),
           subscribers(there, CHANNEL) == 1));
    CHECK_INT(subscribers(c, CHANNEL), 0);
    UNTIL((turn(&q), delayq_take(&q, &item, 0), q.list_tracked));
    redisFree(there);
    delayq_close(&q);
    redisFree(c);
    server_end(&before);
    server_end(&after);
}

/* --- the subscriber ------------------------------------------------------- */

TEST(a_handle_that_leaves_a_connection_leaves_others_subscribed) {
    static delayq second;
    delayq_item item;
    delayq_options o;
    open_queue(&q, "jobs");
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.share = &q;
    OK(&second, delayq_open(&second, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    CHECK_STATUS(&second, delayq_take(&second, &item, 20), DELAYQ_EMPTY);
    UNTIL((delayq_take(&q, &item, 5), q.subscribed));
    delayq_close(&second);
    CHECK_STATUS(&q, delayq_take(&q, &item, 100), DELAYQ_EMPTY);
    CHECK(q.subscribed);
    CHECK_INT(subscribers(main_connection(), CHANNEL), 1);
    delayq_close(&q);
}

/* Until its subscription is confirmed, the handle is not notified of offers. */
TEST(a_handle_polls_when_its_subscription_is_confirmed) {
    delayq other;
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    open_queue(&other, "jobs");
    OFFER(&other, "later", 3600000);
    proxy_strike(STALL, 0, 0, 999);
    proxy->only = 1; /* the subscriber's connection */
    UNTIL((delayq_tick(&q, NULL), proxy->kept > 0));
    OFFER(&other, "x", 0);
    elapse(main_connection(), 2);
    q.next_poll_us = now_us() + 3600000000LL; /* as if it had just polled */
    proxy->let_go = 1;
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    CHECK_INT(item.len, 1);
    delayq_close(&other);
    delayq_close(&q);
}

/* Both servers stay alive, and the handle moves from one to the other. */
TEST(the_subscriber_follows_to_another_master) {
    server a, b;
    redisContext *first, *second;
    char text[2][16], url[96];
    delayq_options o;
    int i;
    for (i = 0; i < 2; i++) {
        const char *with[] = {"--port", text[i], "--bind", "127.0.0.1", NULL};
        snprintf(text[i], sizeof text[i], "%d", free_port());
        server_start(i ? &b : &a, with);
    }
    first = server_connect(&a);
    second = server_connect(&b);
    snprintf(url, sizeof url, "redis://127.0.0.1:%s,127.0.0.1:%s", text[0],
             text[1]);
    o = options_for(&a, "jobs");
    o.url = url;
    o.reconnect_max_ms = 20;
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_tick(&q, NULL), subscribers(first, CHANNEL) == 1));
    freeReplyObject(run(first, "REPLICAOF 127.0.0.1 1"));
    UNTIL(delayq_offer(&q, "x", 1, 60000) == DELAYQ_OK);
    UNTIL((delayq_tick(&q, NULL), subscribers(second, CHANNEL) == 1));
    UNTIL(subscribers(first, CHANNEL) == 0);
    delayq_close(&q);
    redisFree(first);
    redisFree(second);
    server_end(&a);
    server_end(&b);
}

/* A program takes one item in each turn of its loop, and a tick finds that more
 * items are ready. In the second round the take before the tick sent no
 * request, because nothing was due. */
TEST(a_tick_that_makes_items_ready_tells_a_loop_that_takes) {
    delayq_item item;
    int64_t wait_ms;
    int i;
    open_queue(&q, "jobs");
    for (i = 0; i < 2; i++) {
        OFFER(&q, "x", 0);
        if (i == 0)
            UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
        else
            UNTIL((delayq_take(&q, &item, 0), delayq_tick(&q, NULL),
                   dq_is_idle(&q)));
        ask("FLUSHALL");
        if (i == 1) CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        ask("RPUSH jobs y z");
        q.next_poll_us = 0;
        OK(&q, delayq_tick(&q, &wait_ms));
        CHECK_INT(wait_ms, 0);
        OK(&q, delayq_take(&q, &item, 0));
    }
    delayq_close(&q);
}

/* On a slow line the server's clock is known only roughly. The handle polls for
 * its own items as soon as they may be due. */
TEST(a_handle_on_a_slow_line_looks_for_its_item_a_round_trip_sooner) {
    delayq_options o = options_for(&main_server, "jobs");
    proxy_start(&main_server);
    o.url = proxy_url();
    proxy->delay_ms = 200;
    proxy_strike(DELAY, 1, 0, 1 << 30);
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_tick(&q, NULL), q.next_poll_us > now_us() + 3500000));
    OFFER(&q, "x", 3000);
    /* The reply took 200 ms. The request may have taken as long. */
    CHECK(q.next_poll_us - now_us() < 2900000);
    delayq_close(&q);
}
