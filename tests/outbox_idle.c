/*
 * The cost of an outbox for a program that sleeps in poll() for the time that
 * each tick returns. Whatever the server does, the program makes at most 20
 * turns a second, and logs at most one line a second and two more. The clock
 * skips most of each sleep.
 */
#include "system.h"
#include "outbox.h"
#include "proxy.h"

#define SECONDS 2
#define TURNS (20 * SECONDS)
#define LINES (SECONDS + 2) /* one line per second, and two for new texts */

static delayq q;
static int lines;
static char text[SECONDS * 100][200]; /* the first lines of the log */

static void on_log(void *user, delayq_status status, const char *line) {
    (void)user;
    if (status == DELAYQ_OK) return; /* an event, not a fault */
    if (lines < SECONDS * 100)
        snprintf(text[lines], sizeof text[lines], "%s", line);
    lines++;
}

static delayq_options idle_options(const server *s) {
    delayq_options o = box_options(s, BOX);
    o.log = on_log;
    o.reconnect_max_ms = 0; /* 0: the default */
    o.io_timeout_ms = 0;
    return o;
}

/* Make one turn as delayq.h recommends: take, tick, sleep. */
static void sleep_once(int with_take, int most_ms) {
    delayq_item item;
    struct pollfd p[8];
    int fds[8], i, n;
    int64_t wait_ms;
    while (with_take && delayq_take(&q, &item, 0) == DELAYQ_OK) {
    }
    delayq_tick(&q, &wait_ms);
    CHECK(wait_ms >= 0 && wait_ms <= 10000);
    n = (int)delayq_fds(&q, fds, 8);
    for (i = 0; i < n; i++) {
        p[i].fd = fds[i];
        p[i].events = POLLIN;
    }
    test_poll(p, (nfds_t)n, wait_ms < most_ms ? (int)wait_ms : most_ms);
}

/* Returns the number of turns that the loop makes in SECONDS. */
static int count_turns(int with_take) {
    int64_t end = clock_us() + SECONDS * 1000000LL;
    int turns = 0;
    for (; clock_us() < end; turns++)
        sleep_once(with_take, (int)((end - clock_us()) / 1000) + 1);
    return turns;
}

/* Check the number of turns and of log lines in SECONDS. `spared` additional
 * turns are allowed. */
static void is_economical(const char *what, int with_take, int spared) {
    int turns, i;
    lines = 0;
    clock_skips = 20;
    turns = count_turns(with_take);
    clock_skips = 0;
    for (i = 0; i < lines && i < 10; i++) printf("    log: %s\n", text[i]);
    if (turns - spared > TURNS || lines > LINES)
        FAIL("%s%s: %d turns and %d lines in %d s, at most %d and %d", what,
             with_take ? " with takes" : "", turns, lines, SECONDS,
             TURNS + spared, LINES);
}

static void connect_first(int with_take) {
    OFFER(&q, "x", 3600000);
    UNTIL((sleep_once(with_take, 100), settled(&q)));
    poll(NULL, 0, 20);
    sleep_once(with_take, 0);
}

TEST(an_idle_outbox_wakes_its_program_rarely) {
    int with_take;
    for (with_take = 0; with_take < 2; with_take++) {
        delayq_options o = idle_options(&main_server);
        OK(&q, delayq_open(&q, &o));
        connect_first(with_take);
        is_economical("an idle handle", with_take, 0);
        delayq_close(&q);
    }
}

/* Connect to a new server, and stop it with `sig`. */
static void lose_server(server *s, int with_take, int sig) {
    delayq_options o;
    server_start(s, NULL);
    o = idle_options(s);
    OK(&q, delayq_open(&q, &o));
    connect_first(with_take);
    server_kill(s, sig);
}

/* Stop the server with `sig`. If `with_offer` is 1, there is an op to send. */
static void stopped(int with_take, int sig, int with_offer) {
    server s;
    lose_server(&s, with_take, sig);
    if (with_offer) OFFER(&q, "y", 0);
    is_economical(sig == SIGSTOP ? "a frozen server" : "a stopped server",
                  with_take, 0);
    delayq_close(&q);
    server_end(&s);
}

TEST(an_outbox_beside_a_frozen_server_wakes_its_program_rarely) {
    stopped(0, SIGSTOP, 0);
    stopped(1, SIGSTOP, 1);
}
TEST(an_outbox_beside_a_stopped_server_wakes_its_program_rarely) {
    stopped(0, SIGKILL, 0);
    stopped(1, SIGKILL, 1);
}

/* A loop of frames calls the handle often during the pause before each attempt
 * to connect. The log must not report the last attempt again each second. */
TEST(a_loop_of_frames_reports_each_failed_attempt_once) {
    int with_take;
    for (with_take = 0; with_take < 2; with_take++) {
        server s;
        unsigned first;
        lose_server(&s, with_take, SIGKILL);
        OFFER(&q, "y", 0);
        first = q.own.cmd.number;
        lines = 0;
        clock_skips = 2;
        UNTIL((sleep_once(with_take, 16), q.own.cmd.number >= first + 8));
        clock_skips = 0;
        if (lines < 4 || lines > 9) FAIL("%d lines for 8 attempts", lines);
        delayq_close(&q);
        server_end(&s);
    }
}

/* While the handle connects, its descriptors are polled for input only. So the
 * handle itself has to check the socket every 10 ms. */
TEST(an_outbox_of_a_host_that_does_not_answer_wakes_its_program_rarely) {
    delayq_options o = idle_options(&main_server);
    o.url = silent_host();
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    is_economical("an unreachable server", 0, SECONDS * 100);
    delayq_close(&q);
}

static void refused(const char *what, const char *const *with,
                    const char *password) {
    server s;
    delayq_options o;
    char url[160];
    server_start(&s, with);
    o = idle_options(&s);
    snprintf(url, sizeof url, "unix://:%s@%s", password, s.socket);
    if (*password) o.url = url;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 3600000);
    UNTIL((sleep_once(0, 100), delayq_tick(&q, NULL) < DELAYQ_OK));
    is_economical(what, 0, 0);
    CHECK_INT(box(&q).offers_settled, 0);
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    server_end(&s);
}

/* Items are ready, and the server refuses takes. The handle sends ten requests
 * per second, and each request needs two turns. */
TEST(an_outbox_whose_takes_are_refused_wakes_its_program_rarely) {
    server s;
    delayq_options o;
    delayq_item item;
    redisContext *c;
    server_start(&s, NULL);
    if (s.major < 6) test_skip("no ACLs before Redis 6");
    o = idle_options(&s);
    c = server_connect(&s);
    freeReplyObject(run(c, "EVAL %s 0",
                        "for i = 1, 999 do redis.call('RPUSH', 'jobs', i) "
                        "end"));
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    freeReplyObject(run(c, "ACL SETUSER default -ltrim"));
    lines = 0;
    UNTIL((sleep_once(1, 100), lines > 0));
    is_economical("takes are refused", 1, SECONDS * 10);
    freeReplyObject(run(c, "ACL SETUSER default +ltrim"));
    UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
    redisFree(c);
    delayq_close(&q);
    server_end(&s);
}

/* A handle whose takes are refused notices pushes, but does not poll earlier
 * because of them. */
TEST(takes_that_are_refused_are_sent_rarely_though_others_push) {
    int with_outbox;
    for (with_outbox = 0; with_outbox < 2; with_outbox++) {
        server s;
        delayq_options o;
        delayq_item item;
        redisContext *c;
        long long end;
        int before, ran;
        server_start(&s, NULL);
        if (s.major < 6) test_skip("no ACLs before Redis 6");
        o = idle_options(&s);
        if (!with_outbox) o.outbox = NULL, o.outbox_size = 0;
        c = server_connect(&s);
        OK(&q, delayq_open(&q, &o));
        freeReplyObject(run(c, "RPUSH jobs first"));
        UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
        freeReplyObject(run(c, "ACL SETUSER default -ltrim"));
        before = scripts_run(c);
        for (end = now_us() + 1000000; now_us() < end;) {
            freeReplyObject(run(c, "RPUSH jobs x"));
            if (with_outbox) {
                sleep_once(1, 2);
            } else {
                delayq *queue = &q;
                if (delayq_wait(&queue, 1, 2) == DELAYQ_OK)
                    delayq_take(&q, &item, 0);
            }
        }
        ran = scripts_run(c) - before;
        if (ran > 50)
            FAIL("%s: %d scripts in a second",
                 with_outbox ? "an outbox" : "wait and take", ran);
        freeReplyObject(run(c, "ACL SETUSER default +ltrim"));
        UNTIL((delayq_tick(&q, NULL), delayq_take(&q, &item, 0) == DELAYQ_OK));
        redisFree(c);
        delayq_close(&q);
        server_end(&s);
    }
}

/* After 10 s without offers a handle probes its queue again. If the server
 * refuses the probe, the handle repeats it with a back-off. */
TEST(an_outbox_whose_look_is_refused_wakes_its_program_rarely) {
    server s;
    delayq_options o;
    redisContext *c;
    int with_take;
    for (with_take = 0; with_take < 2; with_take++) {
        server_start(&s, NULL);
        o = idle_options(&s);
        OK(&q, delayq_open(&q, &o));
        connect_first(with_take);
        c = server_connect(&s);
        freeReplyObject(run(c, "ACL SETUSER default -evalsha -eval"));
        look_again(&q);
        OFFER(&q, "y", 3600000);
        is_economical("a refused look", with_take, 10);
        freeReplyObject(run(c, "ACL SETUSER default +evalsha +eval"));
        redisFree(c);
        OK(&q, delayq_flush(&q, 20000));
        delayq_close(&q);
        server_end(&s);
    }
}

/* --- a lost connection with requests of both rings in flight -------------- */

/* Lose a connection while an offer and an ack are in flight. Afterwards replies
 * are slow, so both requests are in flight for a long time again. */
static server far;
static void lose_both_rings(void) {
    delayq_options o;
    delayq_item item;
    redisContext *c;
    server_start(&far, NULL);
    o = idle_options(&far);
    memset(&item, 0, sizeof item);
    snprintf(item.ticket.text, sizeof item.ticket.text,
             "1700000000000-41424344454647486162636465000001");
    proxy_start(&far);
    o.url = proxy_url();
    o.io_timeout_ms = 2000;
    OK(&q, delayq_open(&q, &o));
    connect_first(0);
    proxy->delay_ms = 400;
    proxy_strike(DELAY, 1, 0, 999);
    OFFER(&q, "x", 0);
    OK(&q, delayq_ack(&q, &item));
    delayq_tick(&q, NULL);
    c = server_connect(&far);
    freeReplyObject(run(c, "CLIENT KILL TYPE normal SKIPME yes"));
    redisFree(c);
    lines = 0;
    UNTIL((delayq_tick(&q, NULL), lines > 0));
}

TEST(an_outbox_that_has_lost_an_offer_and_an_ack_wakes_its_program_rarely) {
    int turns;
    lose_both_rings();
    turns = count_turns(1);
    if (turns > 4 * TURNS) /* including turns that only connect */
        FAIL("%d turns in %d s, at most %d", turns, SECONDS, 4 * TURNS);
    proxy_calm();
    OK(&q, delayq_flush(&q, 20000));
    delayq_close(&q);
    server_end(&far);
}

TEST(a_flush_that_waits_for_lost_requests_sleeps) {
    lose_both_rings();
    polls = 0;
    delayq_flush(&q, 20000);
    CHECK(settled(&q));
    if (polls > 500) FAIL("%ld polls in a flush, at most 500", polls);
    proxy_calm();
    delayq_close(&q);
    server_end(&far);
}

/* The take waits for the ring that may have broken the connection, and has to
 * reconnect for this ring. */
TEST(a_take_beside_lost_requests_sleeps) {
    delayq_item item;
    lose_both_rings();
    polls = 0;
    OK(&q, delayq_take(&q, &item, 20000));
    if (polls > 500) FAIL("%ld polls in a take, at most 500", polls);
    proxy_calm();
    OK(&q, delayq_flush(&q, 20000));
    delayq_close(&q);
    server_end(&far);
}

/* The second handle can send nothing until it has a reply to the probe of its
 * queue. */
TEST(a_second_handle_beside_a_frozen_server_wakes_its_program_rarely) {
    server s;
    delayq second;
    delayq_options o, shares;
    int64_t wait_ms;
    int turns;
    int64_t end;
    server_start(&s, NULL);
    o = idle_options(&s);
    o.io_timeout_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    connect_first(1);
    server_kill(&s, SIGSTOP);
    memset(&shares, 0, sizeof shares);
    shares.name = "other";
    shares.share = &q;
    shares.outbox = box_memory(BOX);
    shares.outbox_size = BOX;
    OK(&second, delayq_open(&second, &shares));
    OK(&second, delayq_offer(&second, "x", 1, 0));
    end = clock_us() + SECONDS * 1000000LL;
    clock_skips = 20;
    for (turns = 0; clock_us() < end; turns++) {
        delayq_tick(&second, &wait_ms);
        sleep_once(1, wait_ms < 1000 ? (int)wait_ms : 1000);
    }
    clock_skips = 0;
    if (turns > TURNS)
        FAIL("%d turns in %d s, at most %d", turns, SECONDS, TURNS);
    server_kill(&s, SIGCONT);
    OK(&second, delayq_flush(&second, 20000));
    delayq_close(&second);
    delayq_close(&q);
    server_end(&s);
}

/* Each handle sends its probe again. It reads the reply to this probe, even if
 * the reply to the other handle's probe came first. */
TEST(handles_that_share_a_lost_connection_wake_their_program_rarely) {
    server s;
    delayq others[2];
    delayq_options o, shares;
    redisContext *c;
    int turns, i;
    int64_t end;
    server_start(&s, NULL);
    o = idle_options(&s);
    OK(&q, delayq_open(&q, &o));
    connect_first(1);
    for (i = 0; i < 2; i++) {
        memset(&shares, 0, sizeof shares);
        shares.name = i ? "other" : o.name;
        shares.share = &q;
        shares.outbox = box_memory(BOX);
        shares.outbox_size = BOX;
        OK(&others[i], delayq_open(&others[i], &shares));
        OK(&others[i], delayq_offer(&others[i], "x", 1, 3600000));
        OK(&others[i], delayq_flush(&others[i], 20000));
    }
    c = server_connect(&s);
    freeReplyObject(run(c, "CLIENT KILL TYPE normal SKIPME yes"));
    redisFree(c);
    end = clock_us() + SECONDS * 1000000LL;
    clock_skips = 20;
    for (turns = 0; clock_us() < end; turns++) {
        int64_t wait_ms, least = 1000;
        for (i = 0; i < 2; i++) {
            delayq_tick(&others[i], &wait_ms);
            if (wait_ms < least) least = wait_ms;
        }
        sleep_once(1, (int)least);
    }
    clock_skips = 0;
    if (turns > TURNS)
        FAIL("%d turns in %d s, at most %d", turns, SECONDS, TURNS);
    for (i = 0; i < 2; i++) delayq_close(&others[i]);
    delayq_close(&q);
    server_end(&s);
}

TEST(an_outbox_that_is_refused_wakes_its_program_rarely) {
    const char *const full[] = {"--maxmemory", "1", NULL};
    const char *const locked[] = {"--requirepass", "secret", NULL};
    const char *const replica[] = {"--replicaof", "127.0.0.1", "1", NULL};
    refused("a full server", full, "");
    refused("a wrong password", locked, "wrong");
    refused("a replica", replica, "");
}
