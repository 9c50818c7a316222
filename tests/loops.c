/*
 * A program's loop during a lasting fault. No loop may spin, no push or wake is
 * lost, and no call blocks longer than promised. The clock skips most of the
 * waiting. The time that a call blocks is the total time of its polls.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "system.h"
#include "proxy.h"
#include <pthread.h>

static volatile int *at; /* in shared memory: the progress of the processes */

static void count_one(volatile int *n) {
    __sync_fetch_and_add(n, 1);
}

/* --- no connection ------------------------------------------------------- */

#define TURNS 200 /* the most turns in a second */

enum loop { TICKS, TICKS_AND_OFFERS, TAKES, LOOKS, ONE_TAKE, ONE_WAIT, LOOPS };
static const char *const loop_names[] = {
    "tick + poll", "tick + poll, and offers", "take(0) + tick + poll",
    "wait(0) + tick + poll, after a wake", "a take", "a wait"};

struct loop_options {
    const server *s;
    const char *url; /* NULL: the server's own URL */
    enum loop kind;
    int timeout_ms;
    int fault_ms; /* how long the fault lasts */
};

static long logs;
static void count_log(void *user, delayq_status status, const char *text) {
    (void)user, (void)text;
    logs += status != DELAYQ_OK; /* events are not faults */
}

static void sleep_on_fds(const delayq *q, int64_t wait_ms) {
    struct pollfd p[3];
    int fds[3];
    size_t n = delayq_fds(q, fds, 3), i;
    for (i = 0; i < n; i++) {
        p[i].fd = fds[i];
        p[i].events = POLLIN;
    }
    test_poll(p, (nfds_t)n, (int)wait_ms);
}

/* Make one turn of the loop. A take and a wait go on for `left_ms`. */
static void loop_turn(delayq *q, enum loop kind, int64_t left_ms) {
    static long long offered_us;
    int64_t wait_ms = 0;
    delayq_item item;
    if (kind == ONE_TAKE) {
        delayq_take(q, &item, left_ms);
        return;
    }
    if (kind == ONE_WAIT) {
        delayq_wait(&q, 1, left_ms);
        return;
    }
    if (kind == TICKS_AND_OFFERS && clock_us() - offered_us > 300000) {
        offered_us = clock_us();
        delayq_offer(q, "x", 1, 3600000);
    }
    if (kind == TAKES) delayq_take(q, &item, 0);
    if (kind == LOOKS) delayq_wait(&q, 1, 0);
    delayq_tick(q, &wait_ms);
    sleep_on_fds(q, wait_ms < left_ms ? wait_ms : left_ms);
}

/* Loop before the fault and during it, in a process of its own. Check how many
 * turns, polls and log lines there were during the fault. */
static void loop_process(void *argument) {
    const struct loop_options *with = (const struct loop_options *)argument;
    delayq_options o = options_for(with->s, "jobs");
    long long end;
    long turns = 0, reads, most = (long)TURNS * with->fault_ms / 1000;
    delayq q;
    if (with->url) o.url = with->url;
    o.io_timeout_ms = o.connect_timeout_ms = with->timeout_ms;
    o.log = count_log;
    delayq_open(&q, &o);
    for (end = clock_us() + 500000; clock_us() < end;)
        loop_turn(&q, with->kind, (end - clock_us() + 999) / 1000);
    count_one(&at[0]);
    UNTIL(at[1] > 0);
    if (with->kind == LOOKS) delayq_wake(&q);
    polls = logs = clock_reads = 0;
    clock_skips = 20;
    for (end = clock_us() + with->fault_ms * 1000LL; clock_us() < end; turns++)
        loop_turn(&q, with->kind, (end - clock_us() + 999) / 1000);
    reads = clock_reads;
    printf("    %s: %ld turns, %ld polls, %ld times, %ld log lines\n",
           loop_names[with->kind], turns, polls, reads, logs);
    fflush(stdout);
    /* The polls that check whether a socket is connected count, too. */
    if (turns > most || polls > 4 * most || reads > 10 * most || logs > most)
        FAIL("%s spins: %ld turns, %ld polls, %ld times, %ld log lines",
             loop_names[with->kind], turns, polls, reads, logs);
    count_one(&at[2]);
    UNTIL(at[3] > 0); /* keeps its sockets open until all have counted */
    delayq_close(&q);
}

/* Run all kinds of loops at once, with the same fault. */
static void loops_through(server *s, const char *url, int timeout_ms,
                          int fault_ms, void (*fault)(server *),
                          void (*cure)(server *)) {
    struct loop_options with[LOOPS];
    pid_t pids[LOOPS];
    int i;
    at = (volatile int *)shared(4 * sizeof *at);
    for (i = 0; i < LOOPS; i++) {
        with[i].s = s;
        with[i].url = url;
        with[i].kind = (enum loop)i;
        with[i].timeout_ms = timeout_ms;
        with[i].fault_ms = fault_ms;
        pids[i] = spawn(loop_process, &with[i]);
    }
    UNTIL(at[0] == LOOPS);
    if (fault) fault(s);
    at[1] = 1;
    UNTIL(at[2] == LOOPS);
    if (cure) cure(s);
    at[3] = 1;
    for (i = 0; i < LOOPS; i++) join(pids[i]);
}

static void freeze(server *s) {
    server_kill(s, SIGSTOP);
}
static void thaw(server *s) {
    server_kill(s, SIGCONT);
}

/* The fault lasts longer than the 10 s after which the subscriber is pinged. */
TEST(no_loop_spins_while_the_server_is_frozen) {
    server s;
    server_start(&s, NULL);
    loops_through(&s, NULL, 300, 13000, freeze, thaw);
    server_end(&s);
}

static void kill_9(server *s) {
    server_kill(s, SIGKILL);
}

TEST(no_loop_spins_while_the_server_is_gone) {
    server s;
    server_start(&s, NULL);
    loops_through(&s, NULL, 1000, 3000, kill_9, NULL);
}

/* Leave only one client connected, which is `admin`. */
static redisContext *admin;
static void fill(server *s) {
    admin = server_connect(s);
    freeReplyObject(run(admin, "CONFIG SET maxclients 1"));
    freeReplyObject(run(admin, "CLIENT KILL TYPE pubsub"));
    freeReplyObject(run(admin, "CLIENT KILL TYPE normal SKIPME yes"));
}
static void empty(server *s) {
    (void)s;
    freeReplyObject(run(admin, "CONFIG SET maxclients 1000"));
    redisFree(admin);
}

TEST(no_loop_spins_while_the_server_takes_no_more_clients) {
    server s;
    server_start(&s, NULL);
    loops_through(&s, NULL, 1000, 3000, fill, empty);
    server_end(&s);
}

TEST(no_loop_spins_while_the_host_answers_nothing) {
    loops_through(&main_server, silent_host(), 100, 3000, NULL, NULL);
}

/* --- a server that closes idle connections ------------------------------- */

/* Push an item after the server has closed the idle command connection. On a
 * busy machine the server may close the connection `c`, too. Then the write
 * would raise SIGPIPE. */
static void push_later(void *argument) {
    redisContext *c = NULL;
    redisReply *r = NULL;
    signal(SIGPIPE, SIG_IGN);
    usleep(4000000);
    while (!r) {
        if (c) redisFree(c);
        c = server_connect((const server *)argument);
        r = (redisReply *)redisCommand(c, "RPUSH jobs x");
    }
    at[0] = 1;
    freeReplyObject(r);
    redisFree(c);
}

LONG_TEST(pushes_are_heard_on_a_server_that_closes_idle_connections) {
    const char *with[] = {"--timeout", "1", NULL};
    server s;
    int kind;
    server_start(&s, with);
    at = (volatile int *)shared(4 * sizeof *at);
    for (kind = 0; kind < 3; kind++) {
        delayq q;
        delayq_item item;
        delayq_status status;
        pid_t child;
        long long pushed = 0;
        delayq_options o = options_for(&s, "jobs");
        o.max_wait_ms = 60000;
        at[0] = 0;
        OK(&q, delayq_open(&q, &o));
        child = spawn(push_later, &s);
        if (kind == 2) OK(&q, delayq_take(&q, &item, 30000 * test_slow()));
        while (kind < 2) {
            int64_t wait_ms;
            status = kind == 1 ? delayq_tick(&q, &wait_ms) : DELAYQ_OK;
            CHECK(status >= DELAYQ_OK);
            status = delayq_take(&q, &item, 0);
            CHECK(status >= DELAYQ_OK);
            if (status == DELAYQ_OK) break;
            if (pushed == 0 && at[0]) pushed = now_us();
            /* a handle that missed the push would see it after max_wait_ms */
            if (pushed > 0 && now_us() - pushed > 50000000)
                FAIL("not heard, kind %d", kind);
            if (kind == 0)
                usleep(10000);
            else
                sleep_on_fds(&q, wait_ms < 500 ? wait_ms : 500);
        }
        join(child);
        delayq_close(&q);
    }
    server_end(&s);
}

/* --- a server that reports no pushes ------------------------------------- */

/* The server is Redis 5, or the user lacks the right to CLIENT TRACKING. */
TEST(where_pushes_are_not_announced_a_tick_and_a_take_notice_them) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    char url[200];
    int i;
    snprintf(url, sizeof url, "unix://half:pw@%s", main_server.socket);
    if (main_server.major >= 6) {
        acl_user("half", main_server.major < 7 ? "~* +@all -client"
                                               : "~* +@all -client|tracking");
        o.url = url;
    }
    o.max_wait_ms = 20000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 3; i++) {
        long long pushed = 0, began = now_us();
        int64_t slept_us = 0;
        delayq_status status = DELAYQ_EMPTY;
        while (status == DELAYQ_EMPTY) {
            int64_t wait_ms;
            OK(&q, delayq_tick(&q, &wait_ms));
            status = delayq_take(&q, &item, 0);
            CHECK(status >= DELAYQ_OK);
            if (pushed == 0 && now_us() - began > 600000) {
                ask("RPUSH jobs x");
                pushed = now_us();
                slept_us = waited_us;
            }
            if (pushed > 0 && waited_us - slept_us > 2000000)
                FAIL("round %d: not noticed within two seconds", i);
            if (status == DELAYQ_EMPTY)
                sleep_on_fds(&q, wait_ms < 700 ? wait_ms : 700);
        }
    }
    delayq_close(&q);
}

/* --- readable descriptors ------------------------------------------------ */

TEST(what_makes_the_descriptors_readable_is_taken_at_once) {
    delayq q, other;
    delayq_item item;
    redisContext *c = main_connection();
    delayq_options o = options_for(&main_server, "jobs");
    delayq_message m;
    int i;
    memset(&m, 0, sizeof m);
    m.data = "x";
    m.len = 1;
    OK(&q, delayq_open(&q, &o));
    OK(&other, delayq_open(&other, &o));
    for (i = 0; i < 2; i++)
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    for (i = 0; i < 50; i++) {
        delayq_status status = DELAYQ_EMPTY;
        int tries, fds[3];
        int64_t wait_ms;
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        OK(&q, delayq_tick(&q, &wait_ms));
        usleep(5000);
        /* the server reports pushes */
        if (i % 2 > 0 && main_server.major >= 6) {
            freeReplyObject(run(c, "RPUSH jobs x"));
        } else {
            m.due_ms = 1; /* the item has been due for long */
            OK(&other, delayq_offer_many(&other, &m, 1));
        }
        /* If a take returns EMPTY, a descriptor must soon be readable. */
        for (tries = 0; status == DELAYQ_EMPTY && tries < 5; tries++) {
            struct pollfd p[3];
            size_t n = delayq_fds(&q, fds, 3), k;
            for (k = 0; k < n; k++) {
                p[k].fd = fds[k];
                p[k].events = POLLIN;
            }
            if (poll(p, (nfds_t)n, 2000 * test_slow()) < 1)
                FAIL("round %d, try %d: due, but nothing is readable", i,
                     tries);
            status = delayq_take(&q, &item, 0);
        }
        CHECK_STATUS(&q, status, DELAYQ_OK);
    }
    delayq_close(&q);
    delayq_close(&other);
}

/* --- delayq_wake --------------------------------------------------------- */

static delayq *sleeper;
static volatile int go, done;
static volatile long long woken_us;

/* For each `go`, wake the handle once, within `*most_us` microseconds. */
static void *waker(void *most_us) {
    int seen = 0, most = *(int *)most_us;
    unsigned seed = 1;
    while (!done) {
        long long until;
        if (go == seen) continue;
        seen = go;
        seed = seed * 1103515245 + 12345;
        until = now_us() + (int)(seed >> 8) % most;
        while (now_us() < until) {
        }
        delayq_wake(sleeper);
        woken_us = now_us();
        if (most < 1000) usleep(1000); /* so that it doesn't always spin */
    }
    return NULL;
}

/* Check that the wake has ended the call, and not a poll that came later. */
static void check_woken(delayq_status status, int round) {
    long long back = now_us();
    UNTIL(woken_us > 0);
    if (status != DELAYQ_WOKEN)
        FAIL("round %d: %s", round, delayq_strstatus(status));
    if (back - woken_us > 4000000)
        FAIL("round %d: the wake was seen %lld ms later", round,
             (back - woken_us) / 1000);
}

TEST(no_wake_of_a_take_is_lost) {
    static int most = 60;
    int i, rounds = 4000 / test_step(1, 20);
    pthread_t thread;
    delayq_item item;
    delayq q;
    open_queue(&q, "jobs");
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    sleeper = &q;
    go = done = 0;
    pthread_create(&thread, NULL, waker, &most);
    for (i = 0; i < rounds; i++) {
        struct timespec t = {0, 1200000};
        nanosleep(&t, NULL); /* so that the next take reads the pipe */
        woken_us = 0;
        go++;
        check_woken(delayq_take(&q, &item, 9000), i);
    }
    done = 1;
    pthread_join(thread, NULL);
    delayq_close(&q);
}

TEST(no_wake_of_a_wait_with_a_shared_connection_is_lost) {
    static int most = 2000;
    int i, rounds = test_brief() ? 50 : 600;
    pthread_t thread;
    delayq q[2];
    delayq_options o = options_for(&main_server, "a{x}");
    sleeper = &q[0];
    go = done = 0;
    pthread_create(&thread, NULL, waker, &most);
    for (i = 0; i < rounds; i++) {
        delayq *both[2] = {&q[0], &q[1]};
        delayq_options p;
        OK(&q[0], delayq_open(&q[0], &o));
        memset(&p, 0, sizeof p);
        p.name = "b{x}";
        p.share = &q[0];
        OK(&q[1], delayq_open(&q[1], &p));
        woken_us = 0;
        go++;
        check_woken(delayq_wait(both, 2, 9000), i);
        delayq_close(&q[1]);
        delayq_close(&q[0]);
    }
    done = 1;
    pthread_join(thread, NULL);
}

/* --- no call blocks longer than promised --------------------------------- */

/* Check a call's limit, with 20 ms to spare, since polls are rounded up. */
#define LIMITED(limit_ms, call)                                           \
    do {                                                                  \
        long long ms_;                                                    \
        waited_us = 0;                                                    \
        (void)(call);                                                     \
        ms_ = waited_us / 1000;                                           \
        if (ms_ > (limit_ms) + 20)                                        \
            FAIL("%s took %lld ms, not %d", #call, ms_, (int)(limit_ms)); \
    } while (0)

static void calls_within(delayq *q, int limit_ms) {
    static const delayq_ticket ticket = {
        "1700000000000-00060b1c2d3e4f50a1a2a3a4a5000002"};
    delayq_item item;
    delayq_counts counts;
    delayq_message m[2];
    size_t n;
    memset(m, 0, sizeof m);
    m[0].data = m[1].data = "x";
    m[0].len = m[1].len = 1;
    m[0].key = "key";
    m[0].key_ttl_ms = 1000;
    LIMITED(limit_ms, delayq_offer(q, "x", 1, 0));
    LIMITED(limit_ms, delayq_offer_many(q, m, 2));
    LIMITED(limit_ms, delayq_take(q, &item, 0));
    LIMITED(limit_ms, delayq_tick(q, NULL));
    LIMITED(limit_ms, delayq_cancel(q, &ticket));
    LIMITED(limit_ms, delayq_count(q, &counts));
    LIMITED(limit_ms, delayq_peek(q, &item, 1, &n, NULL));
    LIMITED(limit_ms + 100, delayq_take(q, &item, 100));
    LIMITED(limit_ms + 100, delayq_wait(&q, 1, 100));
}

/* How the handle is opened. */
enum way { ALONE, BROADCAST, SHARING, WAYS };

static void opens_within(const char *url, int connect_ms, int io_ms,
                         delayq *owner, enum way way, int limit_ms) {
    delayq q;
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    if (way == SHARING) {
        o.share = owner;
    } else {
        o.url = url;
        o.connect_timeout_ms = connect_ms;
        o.io_timeout_ms = io_ms;
        if (way == BROADCAST) SET_BROADCAST(o);
    }
    LIMITED(limit_ms, delayq_open(&q, &o));
    if (way != BROADCAST)
        calls_within(&q, connect_ms > io_ms ? connect_ms : io_ms);
    delayq_close(&q);
}

TEST(no_call_blocks_longer_than_promised_by_a_frozen_server) {
    static const int times[][2] = {{200, 400}, {400, 200}};
    server s;
    size_t i;
    int way;
    server_start(&s, NULL);
    for (i = 0; i < 2; i++) {
        delayq q;
        delayq_options o = options_for(&s, "jobs");
        o.connect_timeout_ms = times[i][0];
        o.io_timeout_ms = times[i][1];
        clock_skips = 0;
        OK(&q, delayq_open(&q, &o));
        server_kill(&s, SIGSTOP);
        clock_skips = 20;
        calls_within(&q, 400);
        for (way = 0; way < WAYS; way++)
            opens_within(s.url, times[i][0], times[i][1], &q, (enum way)way,
                         400);
        delayq_close(&q);
        server_kill(&s, SIGCONT);
    }
    server_end(&s);
}

TEST(no_call_blocks_longer_than_promised_by_a_host_that_answers_nothing) {
    const char *url = silent_host();
    char hosts[400];
    delayq q;
    delayq_options o;
    int way, i;
    memset(&o, 0, sizeof o);
    clock_skips = 20;
    o.name = "owner";
    o.url = url;
    o.connect_timeout_ms = 200;
    o.io_timeout_ms = 400;
    LIMITED(400, delayq_open(&q, &o));
    for (way = 0; way < WAYS; way++)
        opens_within(url, 200, 400, &q, (enum way)way, 400);
    calls_within(&q, 400);
    delayq_close(&q);
    strcpy(hosts, url); /* eight hosts share the time */
    for (i = 1; i < 8; i++) strcat(strcat(hosts, ","), url + 8);
    o.url = hosts;
    LIMITED(200, delayq_open(&q, &o));
    delayq_close(&q);
}

/* Open a handle. The server sends `bytes` bytes, and then nothing more. */
static void opens_stalled(delayq *q, const delayq_options *o, long bytes) {
    proxy_strike(STALL, 1, bytes, 1);
    LIMITED(300, delayq_open(q, o));
    CHECK_INT(proxy->times, 0); /* the open has read all these bytes */
}

/* An open reads 50 bytes, of the login, the probe and the first script. On the
 * handle's clock only the polls that time out take time. */
TEST(no_open_blocks_longer_than_connect_timeout_wherever_the_server_stops) {
    long bytes;
    clock_rate = 1;
    clock_skips = 500;
    proxy_start(&main_server);
    for (bytes = 0; bytes < 50; bytes += 16) {
        delayq q, other;
        delayq_options o = options_for(&main_server, "jobs");
        o.url = proxy_url();
        o.connect_timeout_ms = 300;
        o.io_timeout_ms = 4000 * test_slow();
        SET_BROADCAST(o);
        opens_stalled(&q, &o, bytes);
        delayq_close(&q);
        NOT_BROADCAST(o);
        opens_stalled(&q, &o, bytes);
        proxy_calm();
        UNTIL((clock_ahead_us += 1000, delayq_tick(&q, NULL)) == DELAYQ_OK);
        memset(&o, 0, sizeof o);
        o.name = "more";
        o.share = &q;
        opens_stalled(&other, &o, bytes / 2); /* without a login */
        delayq_close(&other);
        delayq_close(&q);
        proxy_calm();
    }
}

/* As soon as the login is being delayed, hold back everything after the probe's
 * reply. */
static void stall_the_script(void *unused) {
    (void)unused;
    UNTIL(proxy->times == 0);
    proxy_strike(STALL, 1, 46, 1);
}

/* The login's reply is slow, and the script's reply never comes. One limit
 * holds for both together, because the script is sent so early that the limit
 * leaves time for two round trips as slow as the login's. */
TEST(an_offer_that_connects_first_has_one_limit) {
    server s;
    delayq q;
    delayq_options o;
    redisContext *c;
    server_start(&s, NULL);
    c = server_connect(&s);
    proxy_start(&s);
    o = options_for(&s, "jobs");
    o.url = proxy_url();
    o.connect_timeout_ms = 1800;
    o.io_timeout_ms = 2000;
    OK(&q, delayq_open(&q, &o));
    proxy->delay_ms = 300;
    proxy_strike(DELAY, 1, 0, 1);
    freeReplyObject(run(c, "CLIENT KILL TYPE normal SKIPME yes"));
    UNTIL(proxy->pairs == 0);
    spawn(stall_the_script, NULL);
    LIMITED(2000, delayq_offer(&q, "x", 1, 0));
    proxy->let_go = 1;
    redisFree(c);
    delayq_close(&q);
    server_end(&s);
}

/* --- short timeouts ------------------------------------------------------ */

static long long left_in(redisContext *c) {
    redisReply *r = run(c, "LLEN jobs");
    long long n = r->integer;
    freeReplyObject(r);
    return n;
}

/* Take until an item comes. If a take's reply comes too late, its item is
 * leased, so push another one. Returns the time until then in us, without the
 * turns in which the server was slow for other clients, too. */
static long long until_taken(delayq *q, redisContext *c) {
    long long began = now_us(), waited = 0, turn = began, end;
    delayq_item item;
    for (;;) {
        long long asked = now_us();
        int empty = left_in(c) == 0, slow = now_us() - asked > 2000;
        if (empty) freeReplyObject(run(c, "RPUSH jobs y"));
        if (delayq_take(q, &item, 0) == DELAYQ_OK) return waited;
        usleep(1000);
        end = now_us();
        if (!slow) waited += end - turn;
        turn = end;
        if (end - began > 20000000LL * test_slow())
            FAIL("never taken: %s", delayq_errmsg(q));
    }
}

TEST(a_timeout_that_is_shorter_than_the_round_trip_loses_nothing) {
    server s;
    delayq q;
    delayq_options o;
    long long began = now_us();
    delayq_item item;
    int i, taken = 0;
    redisContext *c;
    server_start(&s, NULL);
    c = server_connect(&s);
    proxy_start(&s);
    proxy->delay_ms = 10 * test_slow();
    proxy_strike(DELAY, 1, 0, 1 << 30);
    o = options_for(&s, "jobs");
    o.url = proxy_url();
    o.io_timeout_ms = 5 * test_slow();
    delayq_open(&q, &o);
    while (delayq_offer(&q, "x", 1, 3600000) != DELAYQ_OK) {
        if (now_us() - began > 5000000LL * test_slow())
            FAIL("not connected: %s", delayq_errmsg(&q));
        usleep(1000);
    }
    /* A take loses an item if it ends before the reply comes. That may happen
     * only if the machine stalls for longer than the line needs. */
    for (i = 0; i < 20; i++) freeReplyObject(run(c, "RPUSH jobs y"));
    do taken += delayq_take(&q, &item, 0) == DELAYQ_OK;
    while (left_in(c) > 0 && now_us() - began < 40000000LL * test_slow());
    if (taken < 10) FAIL("%d of 20 taken", taken);
    redisFree(c);
    delayq_close(&q);
    server_end(&s);
}

TEST(after_a_freeze_a_handle_with_a_short_timeout_is_soon_back) {
    server s;
    delayq q;
    delayq_options o;
    long long end, us;
    delayq_item item;
    redisContext *c;
    server_start(&s, NULL);
    c = server_connect(&s);
    o = options_for(&s, "jobs");
    o.io_timeout_ms = 5 * test_slow();
    o.lease_ms = 3600000;
    delayq_open(&q, &o);
    UNTIL(delayq_take(&q, &item, 0) == DELAYQ_EMPTY);
    UNTIL(delayq_offer(&q, "x", 1, 500) == DELAYQ_OK);
    server_kill(&s, SIGSTOP);
    end = now_us() + 3500000;
    while (now_us() < end) {
        delayq_take(&q, &item, 0);
        usleep(1000);
    }
    server_kill(&s, SIGCONT);
    us = until_taken(&q, c);
    if (us > 1000000LL * test_slow()) FAIL("%lld ms later", us / 1000);
    redisFree(c);
    delayq_close(&q);
    server_end(&s);
}
