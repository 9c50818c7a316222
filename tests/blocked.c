/*
 * A handle that is blocked acts as soon as it can, and sleeps until then. In
 * these tests it must neither wait for ever nor poll without sleeping.
 */
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#include "system.h"
#include "outbox.h"
#include "proxy.h"
#include <time.h>

static delayq q, other;
static delayq_item item;

/* Returns the options of a handle that shares a connection. */
static delayq_options sharing(delayq *owner, const char *name, int has_box) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.share = owner;
    if (has_box) o.outbox = box_memory(BOX);
    if (has_box) o.outbox_size = BOX;
    return o;
}

/* Tick the handles for 1 s while they can do nothing. Returns the number of
 * rounds in which a tick reported that there is more work now (wait_ms = 0). */
static int busy_ticks(delayq *const *handles, int n) {
    long long end = now_us() + 1000000;
    int busy = 0, i;
    while (now_us() < end) {
        int64_t wait_ms, least = 50;
        for (i = 0; i < n; i++) {
            delayq_tick(handles[i], &wait_ms);
            if (wait_ms < least) least = wait_ms;
        }
        busy += least == 0;
        usleep((useconds_t)(least * 1000));
    }
    return busy;
}

/* The last probe is old, so the offer has to wait for a new one. As no tick
 * follows the offer, the take must read the probe's reply. */
TEST(an_outbox_that_was_idle_takes_what_it_then_offers) {
    int ticks;
    for (ticks = 0; ticks < 2; ticks++) {
        open_box(&q, 0);
        CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
        if (ticks) OK(&q, turn(&q));
        look_again(&q);
        OFFER(&q, "x", 0);
        idle_polls = 0;
        OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
        CHECK(idle_polls < 1000);
        delayq_close(&q);
    }
}

TEST(a_take_goes_on_after_the_probe_of_its_queue_has_failed) {
    delayq_options o;
    int box;
    proxy_start(&main_server);
    for (box = 0; box < 2; box++) {
        o = options_for(&main_server, "jobs");
        o.url = proxy_url();
        OK(&other, delayq_open(&other, &o));
        CHECK_STATUS(&other, delayq_take(&other, &item, 50), DELAYQ_EMPTY);
        o = sharing(&other, "jobs", box);
        strcpy(proxy->forged, "-BUSY forged\r\n");
        proxy_strike(FORGE, 0, 0, 1 << 30);
        if (box) {
            OK(&q, delayq_open(&q, &o));
            UNTIL(turn(&q) == DELAYQ_ERR_AGAIN);
        } else {
            CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AGAIN);
        }
        proxy_calm();
        ask("RPUSH jobs x");
        idle_polls = 0;
        OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
        CHECK(idle_polls < 1000);
        delayq_close(&q);
        delayq_close(&other);
    }
}

static void end_connections(void *unused) {
    (void)unused;
    UNTIL(proxy->times < 1 << 30);
    proxy_calm();
    ask("CLIENT KILL TYPE normal SKIPME yes");
}

/* The first reply says that the queue's slot moves, so the call pauses. */
TEST(a_call_that_loses_its_connection_while_a_slot_moves_sleeps) {
    delayq_options o;
    int takes;
    proxy_start(&main_server);
    for (takes = 0; takes < 2; takes++) {
        pid_t killer;
        o = options_for(&main_server, "jobs");
        o.url = proxy_url();
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "x", 0);
        strcpy(proxy->forged, "-TRYAGAIN forged\r\n");
        proxy_strike(FORGE, 0, 0, 1 << 30);
        killer = spawn(end_connections, NULL);
        idle_polls = 0;
        if (takes)
            OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
        else
            OFFER(&q, "y", 60000);
        CHECK(idle_polls < 1000);
        join(killer);
        delayq_close(&q);
    }
}

/* The second handle shares the connection of the first. Its op waits until the
 * first handle's payload is written. */
TEST(nothing_spins_while_a_large_payload_is_being_written) {
    enum { SIZE = 12 << 20 };
    char *payload = (char *)calloc(1, SIZE);
    delayq *both[2] = {&q, &other};
    delayq_options o;
    server s;
    server_start(&s, NULL);
    o = options_for(&s, "jobs");
    o.outbox_size = 3 * SIZE;
    o.outbox = box_memory(o.outbox_size);
    o.lease_ms = 60000;
    o.io_timeout_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    o = sharing(&q, "jobs", 1);
    OK(&other, delayq_open(&other, &o));
    OFFER(&q, "x", 0);
    SETTLE(&q);
    UNTIL((turn(&q), delayq_take(&q, &item, 0) == DELAYQ_OK));
    UNTIL((turn(&other), other.probed));
    server_kill(&s, SIGSTOP);
    OK(&q, delayq_offer(&q, payload, SIZE, 60000));
    UNTIL((turn(&q), q.conn->cmd.body_len > 0));
    OK(&q, delayq_ack(&q, &item));
    OFFER(&other, "y", 60000);
    CHECK(busy_ticks(both, 2) < 100);
    idle_polls = 0;
    CHECK_STATUS(&q, delayq_flush(&q, 300), DELAYQ_ERR_TIMEOUT);
    CHECK(idle_polls < 1000);
    server_kill(&s, SIGCONT);
    SETTLE(&q);
    SETTLE(&other);
    delayq_close(&other);
    delayq_close(&q);
    server_end(&s);
    free(payload);
}

/* The server of `other` never answers. The item of `q` must come in time. */
TEST(a_wait_is_not_held_up_by_a_silent_server) {
    delayq *both[2] = {&other, &q};
    delayq_options o = options_for(&main_server, "jobs");
    int box, i;
    for (box = 0; box < 2; box++) {
        OK(&q, delayq_open(&q, &o));
        o = box ? box_options(&main_server, BOX)
                : options_for(&main_server, "jobs");
        o.url = silent_host();
        o.io_timeout_ms = o.connect_timeout_ms = 5000;
        if (box)
            OK(&other, delayq_open(&other, &o));
        else {
            o.connect_timeout_ms = 1;
            CHECK_STATUS(&other, delayq_open(&other, &o), DELAYQ_ERR_TIMEOUT);
            other.options.connect_timeout_ms = 5000;
            other.call_ms = 5000;
        }
        for (i = 0; i < 3; i++) {
            OFFER(&q, "x", 200);
            over_ms = idle_polls = 0;
            OK(&q, delayq_wait(both, 2, 20000 * test_slow()));
            CHECK(over_ms < 1500 && idle_polls < 5000);
            OK(&q, delayq_take(&q, &item, 0));
        }
        delayq_close(&other);
        delayq_close(&q);
        o = options_for(&main_server, "jobs");
    }
}

TEST(a_wait_does_not_return_because_an_outbox_can_send_nothing) {
    delayq *one = &q;
    delayq_options o;
    server s;
    redisContext *c;
    server_start(&s, NULL);
    c = server_connect(&s);
    o = options_for(&s, "jobs");
    o.outbox_size = BOX;
    o.outbox = box_memory(BOX);
    OK(&q, delayq_open(&q, &o));
    UNTIL(turn(&q) == DELAYQ_OK && q.probed);
    freeReplyObject(run(c, "CONFIG SET maxmemory 1"));
    OFFER(&q, "x", 60000);
    UNTIL(turn(&q) == DELAYQ_ERR_FULL);
    over_ms = 0;
    CHECK_STATUS(&q, delayq_wait(&one, 1, 300), DELAYQ_EMPTY);
    CHECK(over_ms > 100);
    CHECK_STATUS(&q, turn(&q), DELAYQ_ERR_FULL); /* a tick reports it */
    freeReplyObject(run(c, "CONFIG SET maxmemory 0"));
    SETTLE(&q);
    delayq_close(&q);
    redisFree(c);
    server_end(&s);
}

/* Each take leases just one item, with or without a tick before it. */
TEST(a_take_that_waits_fetches_nothing_ahead) {
    enum { ITEMS = 40 };
    delayq_counts c;
    int i, ticks;
    for (ticks = 0; ticks < 2; ticks++) {
        ask("FLUSHALL");
        open_queue(&other, "jobs");
        for (i = 0; i < ITEMS; i++) OFFER(&other, "x", 0);
        UNTIL(delayq_count(&other, &c) == DELAYQ_OK && c.overdue == ITEMS);
        open_box(&q, 60000);
        for (i = 0; i < ITEMS; i++) {
            OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
            OK(&other, delayq_count(&other, &c));
            CHECK_INT(c.overdue + c.ready, ITEMS - i - 1);
            OK(&q, delayq_ack(&q, &item));
            if (ticks) turn(&q);
        }
        SETTLE(&q);
        delayq_close(&q);
        delayq_close(&other);
    }
}

/* Open two outboxes on a connection whose replies are delayed by delay_ms. */
static void open_two_outboxes(int delay_ms) {
    delayq_options o = box_options(&main_server, BOX);
    proxy_start(&main_server);
    proxy->delay_ms = delay_ms;
    proxy_strike(DELAY, 1, 0, 1 << 30);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    o = sharing(&q, "others", 1);
    o.lease_ms = 600000;
    o.batch = 10;
    OK(&other, delayq_open(&other, &o));
    UNTIL((turn(&q), turn(&other), q.probed && other.probed));
}

TEST(two_outboxes_on_a_slow_line_sleep) {
    delayq *both[2] = {&q, &other};
    open_two_outboxes(150);
    busy_ticks(both, 2);
    CHECK(busy_ticks(both, 2) < 100);
    OFFER(&q, "x", 60000);
    SETTLE(&q);
    proxy_calm();
    delayq_close(&other);
    delayq_close(&q);
}

/* After a connection was lost, a ring's next request must be sent alone. So the
 * other handle, which always has a request in flight, has to yield. */
TEST(a_ring_gets_its_turn_beside_a_busy_neighbour) {
    int i, taken = 0;
    for (i = 0; i < 1000; i++) ask("RPUSH others y y");
    open_two_outboxes(15);
    while (box(&q).offers_settled == 0) {
        while (delayq_take(&other, &item, 0) == DELAYQ_OK) {
            OK(&other, delayq_ack(&other, &item));
            if (++taken == 100) OFFER(&q, "x", 3600000);
            if (taken == 100) ask("CLIENT KILL TYPE normal SKIPME yes");
            if (taken == 1000) FAIL("the offer is still not sent");
        }
        turn(&other);
        turn(&q);
        usleep(16000);
    }
    proxy_calm();
    delayq_close(&other);
    delayq_close(&q);
}

/* A wait may leave a transfer in flight. The next take must not miss the items
 * that the transfer moves. */
TEST(a_take_looks_although_a_transfer_is_in_flight) {
    delayq_options o;
    int box;
    for (box = 0; box < 2; box++) {
        o = box ? box_options(&main_server, BOX)
                : options_for(&main_server, "jobs");
        OK(&q, delayq_open(&q, &o));
        UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK && q.probed &&
              !dq_fetch_is_busy(&q));
        open_queue(&other, "jobs");
        OFFER(&other, "x", 0);
        usleep(2000);
        dq_fetch_send(&q, dq_transfer_verb(&q), 0);
        CHECK(q.fetch.lane.x.state == DELAYQ_EXCHANGE_SENT);
        OK(&q, delayq_take(&q, &item, box ? 5000 : 0));
        delayq_close(&other);
        delayq_close(&q);
    }
}

/* The take must send the ack, since the request in flight is a transfer, which
 * does not contain the ack. */
TEST(an_ack_goes_with_the_take_behind_a_transfer_in_flight) {
    delayq_options o = options_for(&main_server, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    dq_fetch_send(&q, dq_transfer_verb(&q), 0); /* as after a wait */
    CHECK(q.fetch.lane.x.state == DELAYQ_EXCHANGE_SENT);
    CHECK_STATUS(&q, delayq_ack_take(&q, &item, 0), DELAYQ_EMPTY);
    OK(&q, item.acked);
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

/* While a slot moves, a call retries its request. The last retry is so early
 * that its reply arrives in time and tells the caller that nothing happened. */
TEST(no_request_is_sent_again_shortly_before_the_end_of_its_call) {
    delayq_lane lane;
    char why[256];
    int64_t limit_us, part;
    open_queue(&q, "jobs");
    limit_us = dq_sched_patience_us(q.conn, q.call_ms);
    dq_lane_begin(&q, &lane, NULL, &dq_verb_ack, 1);
    lane.why = why;
    for (part = 0; part < 8; part++) {
        lane.moving_us = q.conn->now_us - limit_us * part / 8;
        CHECK_INT(dq_decide_moving(&q, &lane), part < 6);
    }
    delayq_close(&q);
}

/* Both queues must yield their items, whichever transfer has ended the wait. */
TEST(after_a_wait_each_queue_gives_what_is_due) {
    delayq *both[2] = {&other, &q};
    int i;
    open_queue(&q, "jobs");
    open_queue(&other, "urgent");
    for (i = 0; i < 100; i++) {
        OFFER(&q, "job", 0);
        OFFER(&other, "urgent", 0);
        usleep(2000); /* both items are due */
        OK(&q, delayq_wait(both, 2, 20000 * test_slow()));
        OK(&other, delayq_take(&other, &item, 0));
        OK(&q, delayq_take(&q, &item, 0));
    }
    delayq_close(&other);
    delayq_close(&q);
}

/* A wait accepts at most 20 connections, each with its own subscriber. */
TEST(a_wait_on_20_connections_hears_the_last_one) {
    enum { MOST = DQ_MAX_CONNS };
    static delayq handles[MOST + 1];
    delayq *all[MOST + 1], producer;
    char name[16];
    int i;
    open_queue(&producer, "queue19");
    for (i = 0; i <= MOST; i++) {
        snprintf(name, sizeof name, "queue%d", i);
        all[i] = &handles[i];
        open_queue(all[i], name);
    }
    CHECK_STATUS(all[MOST], delayq_wait(all, MOST + 1, 20000), DELAYQ_ERR_ARG);
    CHECK_TEXT(delayq_errmsg(all[MOST]), "wait: more than 20 connections");
    CHECK_STATUS(all[0], delayq_wait(all, MOST, 200), DELAYQ_EMPTY);
    OFFER(&producer, "x", 100);
    OK(all[0], delayq_wait(all, MOST, 20000 * test_slow()));
    OK(all[MOST - 1], delayq_take(all[MOST - 1], &item, 0));
    for (i = 0; i <= MOST; i++) delayq_close(all[i]);
    delayq_close(&producer);
}

/* Items are ready. After a take, a program calls tick, wait, nothing, or a take
 * that fails, and works for 150 ms. The next tick must not let it sleep. */
TEST(a_tick_lets_no_program_sleep_that_takes) {
    delayq *one = &q;
    int box, call, i;
    for (box = 0; box < 2; box++)
        for (call = 0; call < 4 - box; call++) {
            int64_t wait_ms;
            ask("FLUSHALL");
            if (box) open_box(&q, 0);
            if (!box) open_queue(&q, "jobs");
            for (i = 0; i < 9; i++) ask("RPUSH jobs x");
            UNTIL((turn(&q), delayq_take(&q, &item, 0) == DELAYQ_OK));
            if (call == 0 || call == 3) OK(&q, turn(&q));
            if (call == 1) OK(&q, delayq_wait(&one, 1, 20000));
            if (call == 3) {
                ask("RENAME jobs kept");
                ask("SET jobs x");
                CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_TYPE);
                ask("RENAME kept jobs");
            }
            usleep(150000); /* longer than the pause after a failure */
            UNTIL((delayq_tick(&q, &wait_ms),
                   box ? q.fetch.reply != NULL
                       : q.ready > 0 && !q.not_before_us));
            if (wait_ms > 15)
                FAIL("%s outbox, call %d: a nap of %lld ms", box ? "an" : "no",
                     call, (long long)wait_ms);
            delayq_close(&q);
        }
}

/* The probe of a new connection is held back for 3 s, so its reading of the
 * server's clock is inexact. Offers must use the earlier, better reading. */
TEST(a_probe_that_was_held_back_does_not_date_offers) {
    delayq_message m;
    int64_t held_us, least_ms;
    struct timespec now;
    delayq_options o = options_for(&main_server, "jobs");
    proxy_start(&main_server);
    o.url = proxy_url();
    o.outbox = box_memory(BOX);
    o.outbox_size = BOX;
    o.io_timeout_ms = o.connect_timeout_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 3600000);
    OK(&q, delayq_flush(&q, 20000 * test_slow()));
    proxy_strike(STALL, 0, 0, 1 << 30);
    ask("CLIENT KILL TYPE normal SKIPME yes");
    UNTIL((turn(&q), q.setup.x.state == DELAYQ_EXCHANGE_SENT));
    UNTIL(dq_sys_now() > q.setup.x.sent_us + 3000000);
    held_us = dq_sys_now() - q.setup.x.sent_us;
    proxy_calm();
    proxy->let_go = 1;
    UNTIL((turn(&q), q.conn->known));
    memset(&m, 0, sizeof m);
    m.data = "y";
    m.len = 1;
    m.delay_ms = 3600000;
    OK(&q, delayq_offer_message(&q, &m));
    clock_gettime(CLOCK_REALTIME, &now); /* the server's clock */
    least_ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000 + m.delay_ms;
    if (strtoll(m.ticket.text, NULL, 10) > least_ms + held_us / 4000)
        FAIL("the item is due too late: %s", m.ticket.text);
    CHECK_INT(q.counts.reconnects, 1);
    delayq_close(&q);
}

/* The program takes one item in each turn of its loop, and then sleeps. */
TEST(a_tick_asks_for_reports_after_a_take_that_has_got_an_item) {
    if (!can_track()) test_skip("the server tracks no keys");
    open_queue(&q, "jobs");
    ask("RPUSH jobs x");
    OK(&q, delayq_take(&q, &item, 0));
    UNTIL((delayq_tick(&q, NULL), q.list_tracked));
    delayq_close(&q);
}
