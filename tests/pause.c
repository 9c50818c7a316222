/*
 * A paused queue. No handle moves its items or takes from it until the queue is
 * resumed. All other calls work. A resume wakes all handles that wait.
 */
#include "outbox.h"
#include "peer.h"
#include "proxy.h"
#include <sys/wait.h>

#define PAUSED "delayq_paused:{jobs}"
#define MOST 50

static void pause_by(delayq *q, int on) {
    OK(q, delayq_pause(q, on));
    CHECK_INT(ask_int("EXISTS " PAUSED), on);
}

static int64_t paused_since(delayq *q) {
    delayq_counts c;
    OK(q, delayq_count(q, &c));
    return c.paused;
}

static void takes_nothing(delayq *q) {
    delayq_item item;
    poll_now(q);
    CHECK_STATUS(q, delayq_take(q, &item, 0), DELAYQ_EMPTY);
    poll_now(q);
    CHECK_STATUS(q, delayq_take(q, &item, 20), DELAYQ_EMPTY);
}

static long long stream_length(void) {
    return ask_int("XLEN delayq_stream:{jobs}");
}

/* Put a due item into the set, and one item into each list. */
static void due_everywhere(delayq *q) {
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHIJKLMN\0\2", "again", 5);
    OFFER(q, "due", 0);
    ask("RPUSH jobs ready");
    if (q->wire->third_key && !q->wire->mirror && !q->wire->stream)
        ask("RPUSH delayq_retry:{jobs} %b", e, n);
    elapse(main_connection(), 1);
}

/* --- moves and takes stop ------------------------------------------------- */

TEST(a_paused_queue_is_neither_moved_nor_taken_from_on_any_wire) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq q;
        delayq_item item;
        int lease, n = wire == DELAYQ_NATIVE ? 3 : 2;
        for (lease = 0; lease < 2; lease++) {
            delayq_options o = options_for(&main_server, "jobs");
            delayq_counts before, after;
            ask("FLUSHALL");
            o.wire = wire;
            o.lease_ms = lease * 60000;
            OK(&q, delayq_open(&q, &o));
            due_everywhere(&q);
            pause_by(&q, 1);
            OK(&q, delayq_count(&q, &before));
            takes_nothing(&q);
            poll_now(&q);
            OK(&q, delayq_tick(&q, NULL));
            OK(&q, delayq_count(&q, &after));
            CHECK_INT(after.pending, before.pending);
            CHECK_INT(after.ready, before.ready);
            CHECK(after.paused > 0);
            pause_by(&q, 0);
            while (n-- > 0) OK(&q, delayq_take(&q, &item, 20000));
            n = wire == DELAYQ_NATIVE ? 3 : 2;
            delayq_close(&q);
        }
    }
}

TEST(a_paused_broadcast_reaches_nobody_until_it_is_resumed) {
    delayq q, late;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    o.wire = DELAYQ_BROADCAST;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "one", 0);
    elapse(main_connection(), 1);
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
    CHECK_INT(stream_length(), 1);
    pause_by(&q, 1);
    OFFER(&q, "two", 0);
    elapse(main_connection(), 1);
    takes_nothing(&q);
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
    CHECK_INT(stream_length(), 1);
    OK(&late, delayq_open(&late, &o)); /* its cursor begins after "one" */
    takes_nothing(&late);
    pause_by(&q, 0);
    OK(&q, delayq_take(&q, &item, 20000));
    item_is(&item, "one");
    OK(&q, delayq_take(&q, &item, 20000));
    item_is(&item, "two");
    OK(&late, delayq_take(&late, &item, 20000));
    item_is(&item, "two");
    delayq_close(&q);
    delayq_close(&late);
}

TEST(all_but_moving_and_taking_goes_on_while_a_queue_is_paused) {
    delayq q;
    delayq_item a, b, c, d;
    delayq_message m = message("later", 60000);
    delayq_options o = options_for(&main_server, "jobs");
    delayq_counts counts;
    delayq_dead letter;
    size_t n;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (n = 0; n < 5; n++) OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &a, 20000));
    OK(&q, delayq_take(&q, &b, 20000));
    OK(&q, delayq_take(&q, &c, 20000));
    OK(&q, delayq_take(&q, &d, 20000));
    pause_by(&q, 1);
    OK(&q, delayq_ack(&q, &a));
    OK(&q, delayq_extend(&q, &b, 90000));
    OK(&q, delayq_nack(&q, &b, 0));
    OK(&q, delayq_bury(&q, &c, NULL));
    CHECK_STATUS(&q, delayq_ack_take(&q, &d, 20), DELAYQ_EMPTY);
    OK(&q, d.acked);
    OK(&q, delayq_offer_message(&q, &m));
    OK(&q, delayq_reschedule(&q, &m.ticket, 50000));
    OK(&q, delayq_cancel(&q, &m.ticket));
    OK(&q, delayq_dead_peek(&q, &letter, 1, &n, 0));
    OK(&q, delayq_dead_redrive(&q, 1, &n));
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.pending, 2);
    CHECK_INT(counts.ready, 1);
    takes_nothing(&q);
    delayq_close(&q);
}

/* Items that a handle had fetched before the pause count as taken. */
TEST(fetched_items_are_handed_out_after_a_pause_and_no_others) {
    delayq q, other;
    delayq_item item;
    size_t offered = 0, n = 0, i;
    open_box(&q, 60000);
    open_queue(&other, "jobs");
    while (!q.fetch.reply || q.fetch.reply->elements < 7) {
        if (n == offered) {
            for (i = 0; i < 20; i++) OFFER(&other, "x", 0);
            offered += 20;
            elapse(main_connection(), 1);
        }
        for (; took(&q, &item); n++) OK(&q, delayq_ack(&q, &item));
        turn(&q);
    }
    UNTIL(delayq_flush(&q, 1000) == DELAYQ_OK);
    n += q.fetch.reply->elements - q.fetch.at;
    pause_by(&other, 1);
    for (i = 0; i < 50; i++, usleep(1000))
        while (took(&q, &item)) OK(&q, delayq_ack(&q, &item));
    SETTLE(&q);
    CHECK_INT(q.counts.taken, n);
    /* due items may have been moved to the list */
    CHECK_INT(ask_int("ZCARD " ZSET) + ask_int("LLEN jobs"), offered - n);
    pause_by(&other, 0);
    while (q.counts.taken < offered) {
        if (took(&q, &item)) OK(&q, delayq_ack(&q, &item));
    }
    delayq_close(&q);
    delayq_close(&other);
}

/* --- the state of a pause ------------------------------------------------- */

TEST(a_pause_stands_until_it_is_resumed) {
    delayq q;
    delayq_counts c;
    int64_t since, before = server_us(main_connection()) / 1000;
    open_queue(&q, "jobs");
    CHECK_INT(paused_since(&q), 0);
    OFFER(&q, "x", 0);
    OK(&q, delayq_pause(&q, 1));
    since = paused_since(&q);
    CHECK(since >= before && since <= server_us(main_connection()) / 1000);
    elapse(main_connection(), 3);
    OK(&q, delayq_pause(&q, 1)); /* only the first pause counts */
    CHECK_INT(paused_since(&q), since);
    CHECK_INT(ask_int("PTTL " PAUSED), -1);
    OK(&q, delayq_clear(&q, NULL));
    CHECK_INT(paused_since(&q), since);
    delayq_close(&q);
    open_queue(&q, "jobs");
    CHECK_INT(paused_since(&q), since);
    OK(&q, delayq_pause(&q, 0));
    OK(&q, delayq_pause(&q, 0));
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.paused, 0);
    delayq_close(&q);
}

/* A queue is paused if the key exists, whatever its type and content are. */
TEST(a_pause_of_any_content_is_one) {
    static const char *const sets[] = {
        "SET " PAUSED " maintenance", "SET " PAUSED " -5",
        "SET " PAUSED " 1e99", "SET " PAUSED " 1.5", "RPUSH " PAUSED " x"};
    delayq q;
    size_t i;
    open_queue(&q, "jobs");
    OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    for (i = 0; i < sizeof sets / sizeof *sets; i++) {
        ask("DEL " PAUSED);
        ask(sets[i]);
        CHECK(paused_since(&q) >= 1);
        takes_nothing(&q);
        OK(&q, delayq_pause(&q, 1));
        takes_nothing(&q);
    }
    pause_by(&q, 0);
    take_is(&q, "x");
    delayq_close(&q);
}

TEST(a_pause_survives_a_restart_of_the_server) {
    const char *arguments[] = {"--appendonly", "yes", "--appendfsync", "always",
                               NULL};
    server s;
    delayq q;
    delayq_item item;
    delayq_options o;
    int64_t since;
    server_start(&s, arguments);
    o = options_for(&s, "jobs");
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_pause(&q, 1));
    since = paused_since(&q);
    server_kill(&s, SIGKILL);
    server_start_again(&s, arguments);
    UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK);
    CHECK_INT(paused_since(&q), since);
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    OK(&q, delayq_pause(&q, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    delayq_close(&q);
    server_end(&s);
}

TEST(a_full_server_can_be_paused_and_resumed) {
    delayq q;
    open_queue(&q, "jobs");
    OFFER(&q, "x", 0);
    ask("CONFIG SET maxmemory 1");
    CHECK_STATUS(&q, delayq_offer(&q, "y", 1, 0), DELAYQ_ERR_FULL);
    OK(&q, delayq_pause(&q, 1));
    CHECK(paused_since(&q) > 0);
    OK(&q, delayq_pause(&q, 0));
    ask("CONFIG SET maxmemory 0");
    delayq_close(&q);
}

/* delayq_pause needs a reply, so it waits for one even with an outbox. */
TEST(a_handle_with_an_outbox_pauses_before_the_call_returns) {
    delayq q;
    open_box(&q, 0);
    pause_by(&q, 1);
    pause_by(&q, 0);
    SETTLE(&q);
    delayq_close(&q);
}

TEST(a_pause_fails_as_every_call_does) {
    delayq q;
    delayq_options o;
    memset(&q, 0, sizeof q);
    CHECK_INT(delayq_pause(&q, 1), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_pause(NULL, 1), DELAYQ_ERR_ARG);
    o = options_with_rights("~* +@all -set -del");
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_pause(&q, 1), DELAYQ_ERR_AUTH);
    CHECK_HAS(delayq_errmsg(&q), "pause");
    CHECK_STATUS(&q, delayq_pause(&q, 0), DELAYQ_ERR_AUTH);
    CHECK_HAS(delayq_errmsg(&q), "resume");
    delayq_close(&q);
}

/* --- the cost of waiting -------------------------------------------------- */

/* Returns the number of scripts that n waiting takes run in `ms` ms. */
static int scripts_of_waiting(int n, int ms) {
    pid_t pid[8];
    int i, before;
    for (i = 0; i < n; i++) {
        pid[i] = fork();
        if (pid[i] == 0) {
            delayq q;
            delayq_item item;
            open_queue(&q, "jobs");
            delayq_take(&q, &item, DELAYQ_FOREVER);
            _exit(0);
        }
    }
    UNTIL(subscribers(main_connection(), "delayq_waiters:{jobs}") == n);
    usleep(1500000); /* until each of them has a role */
    before = scripts_run(main_connection());
    usleep((useconds_t)ms * 1000);
    before = scripts_run(main_connection()) - before;
    for (i = 0; i < n; i++) {
        kill(pid[i], SIGKILL);
        waitpid(pid[i], NULL, 0);
    }
    return before;
}

/* No handle polls for due and ready items of a paused queue. */
TEST(handles_that_wait_on_a_paused_queue_do_not_spin) {
    delayq q;
    int n;
    if (main_server.major < 6) test_skip("pushes are not reported");
    open_queue(&q, "jobs");
    pause_by(&q, 1);
    due_everywhere(&q);
    n = scripts_of_waiting(5, 2000);
    if (n > 4) FAIL("%d scripts in 2 s", n);
    delayq_close(&q);
}

TEST(a_loop_on_a_paused_queue_does_not_spin) {
    int outbox;
    for (outbox = 0; outbox < 2; outbox++) {
        delayq q, other;
        delayq_item item;
        int i, before, waits = 0;
        if (main_server.major < 6) test_skip("pushes are not reported");
        ask("FLUSHALL");
        if (outbox)
            open_box(&q, 0);
        else
            open_queue(&q, "jobs");
        open_queue(&other, "jobs");
        pause_by(&other, 1);
        due_everywhere(&other);
        /* until the handle has learned of the pause */
        for (i = 0; i < 300; i++, usleep(1000)) {
            CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
            turn(&q);
        }
        before = scripts_run(main_connection());
        for (i = 0; i < 300; i++, usleep(1000)) {
            int64_t wait_ms;
            CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
            OK(&q, delayq_tick(&q, &wait_ms));
            waits += wait_ms > 50;
        }
        if (scripts_run(main_connection()) - before > 1)
            FAIL("outbox %d: %d scripts in 300 turns", outbox,
                 scripts_run(main_connection()) - before);
        CHECK(waits > 280);
        pause_by(&other, 0);
        UNTIL(took(&q, &item));
        delayq_close(&q);
        delayq_close(&other);
    }
}

/* --- a resume wakes handles ----------------------------------------------- */

static struct sleeper {
    pid_t pid;
    volatile int open, taken;
    volatile char id[18];
} * sleepers;

static int64_t timeout_of_sleepers;
static int shares_of_sleepers;

static void sleep_and_count(void *number) {
    struct sleeper *s = &sleepers[(long)number];
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    o.max_wait_ms = 3600000;
    o.connect_timeout_ms = o.io_timeout_ms;
    OK(&q, delayq_open(&q, &o));
    /* with these ids the first four become standbys, the others sleepers */
    if (shares_of_sleepers)
        q.handle_id[6] = q.handle_id[7] = (long)number < 4 ? 0 : 255;
    strcpy((char *)s->id, q.id);
    s->open = 1;
    for (;;) {
        delayq_status status = delayq_take(&q, &item, timeout_of_sleepers);
        if (status == DELAYQ_OK)
            __sync_fetch_and_add(&s->taken, 1);
        else
            CHECK_STATUS(&q, status, DELAYQ_EMPTY);
    }
}

static void start_sleepers(int n) {
    int i;
    sleepers = (struct sleeper *)shared(MOST * sizeof *sleepers);
    for (i = 0; i < n; i++) {
        sleepers[i].pid = spawn(sleep_and_count, (void *)(long)i);
        UNTIL(sleepers[i].open);
    }
    if (timeout_of_sleepers < 0)
        UNTIL(subscribers(main_connection(), "delayq_waiters:{jobs}") == n);
    usleep(300000);
}

static void end_sleepers(int n) {
    int i;
    for (i = 0; i < n; i++) {
        kill(sleepers[i].pid, SIGKILL);
        waitpid(sleepers[i].pid, NULL, 0);
    }
}

static int taken_by(int n) {
    int i, sum = 0;
    for (i = 0; i < n; i++) sum += sleepers[i].taken;
    return sum;
}

/* max_wait_ms is an hour, so a handle that is not woken takes nothing. */
static void a_resume_wakes(int n, int64_t timeout_ms) {
    delayq q;
    int i;
    long long from;
    if (main_server.major < 6) test_skip("pushes are not reported");
    timeout_of_sleepers = timeout_ms;
    start_sleepers(n);
    open_queue(&q, "jobs");
    pause_by(&q, 1);
    for (i = 0; i < 2 * n; i++) OFFER(&q, "x", i % 30);
    ask("RPUSH jobs pushed");
    usleep(700000); /* until standbys and sleepers have polled once */
    CHECK_INT(taken_by(n), 0);
    pause_by(&q, 0);
    from = now_us();
    UNTIL(taken_by(n) == 2 * n + 1);
    printf("    %d handles: all taken %d ms after the resume\n", n,
           (int)((now_us() - from) / 1000));
    end_sleepers(n);
    delayq_close(&q);
}

TEST(a_resume_wakes_a_take_that_waits_alone) {
    a_resume_wakes(1, DELAYQ_FOREVER);
}
TEST(a_resume_wakes_takes_that_are_no_waiters) {
    a_resume_wakes(3, 5000);
}
TEST(a_resume_wakes_leader_standbys_and_sleepers) {
    a_resume_wakes(24, DELAYQ_FOREVER);
}

/* Freeze those waiters whose score is between `least` and `most`. Returns their
 * number. */
static int freeze(int n, const char *least, const char *most) {
    redisReply *r =
        run(main_connection(), "ZRANGEBYSCORE delayq_waiters:{jobs} %s %s",
            least, most);
    size_t k;
    int i, frozen = 0;
    for (k = 0; k < r->elements; k++)
        for (i = 0; i < n; i++)
            if (strcmp(r->element[k]->str, (char *)sleepers[i].id) == 0)
                frozen += kill(sleepers[i].pid, SIGSTOP) == 0;
    freeReplyObject(r);
    return frozen;
}

/* All handles that would act at a due time are frozen, so the resume has to
 * wake the sleepers. */
TEST(a_resume_wakes_sleepers_though_the_leader_and_all_standbys_are_frozen) {
    enum { N = 24 };
    delayq q;
    if (main_server.major < 6) test_skip("pushes are not reported");
    timeout_of_sleepers = DELAYQ_FOREVER;
    shares_of_sleepers = 1;
    start_sleepers(N);
    UNTIL(ask_int("ZCARD delayq_waiters:{jobs}") == N);
    /* makes all handles enter the set again, now that there are many */
    ask("PUBLISH delayq_waiters:{jobs} 100");
    UNTIL(ask_int("ZCOUNT delayq_waiters:{jobs} -inf (1e14") <= 4);
    usleep(300000);
    open_queue(&q, "jobs");
    pause_by(&q, 1);
    CHECK(freeze(N, "2e14", "+inf") == 1);
    CHECK(freeze(N, "-inf", "(1e14") >= 3);
    OFFER(&q, "x", 0);
    pause_by(&q, 0);
    UNTIL(taken_by(N) == 1);
    end_sleepers(N);
    delayq_close(&q);
}

static void pause_and_resume(void *number) {
    delayq q;
    int i;
    open_queue(&q, "jobs");
    srand((unsigned)(long)number + 1);
    for (i = 0; i < 60; i++) {
        OK(&q, delayq_pause(&q, rand() % 2));
        usleep((useconds_t)(rand() % 20000));
    }
    delayq_close(&q);
}

/* Two programs pause and resume at once while 50 handles wait. 20 handles
 * freeze meanwhile, among them the first ones, which lead or stand by. Frozen
 * handles keep the items that they had taken. */
TEST(two_programs_pause_and_resume_while_fifty_wait_and_twenty_freeze) {
    enum { FROZEN = 20, ITEMS = 200 };
    pid_t programs[2];
    delayq q;
    int i;
    timeout_of_sleepers = DELAYQ_FOREVER;
    if (main_server.major < 6) test_skip("pushes are not reported");
    start_sleepers(MOST);
    open_queue(&q, "jobs");
    for (i = 0; i < 2; i++)
        programs[i] = spawn(pause_and_resume, (void *)(long)i);
    for (i = 0; i < ITEMS; i++) {
        OFFER(&q, "x", i % 50);
        if (i % 10 == 5) kill(sleepers[i / 10].pid, SIGSTOP);
        usleep(2000);
    }
    for (i = 0; i < 2; i++) join(programs[i]);
    OK(&q, delayq_pause(&q, 1));
    OFFER(&q, "last", 0);
    OK(&q, delayq_pause(&q, 0));
    UNTIL(ask_int("ZCARD " ZSET) == 0); /* the others have taken all */
    for (i = 0; i < FROZEN; i++) kill(sleepers[i].pid, SIGCONT);
    UNTIL(taken_by(MOST) == ITEMS + 1);
    end_sleepers(MOST);
    delayq_close(&q);
}

/* --- old handles ---------------------------------------------------------- */

/* Handles of 0.1 and 0.2 ignore a pause, but they do not end it. */
TEST(handles_of_0_1_and_0_2_take_from_a_paused_queue) {
    const struct peer *old[2] = {&peer_0_1, &peer_0_2};
    int i;
    for (i = 0; i < 2; i++) {
        struct peer_options o;
        delayq_item item;
        delayq q, *h;
        ask("FLUSHALL");
        memset(&o, 0, sizeof o);
        o.name = "jobs";
        o.url = main_server.url;
        o.io_timeout_ms = 20000;
        h = old[i]->open(&o);
        CHECK(h != NULL);
        open_queue(&q, "jobs");
        OK(&q, delayq_pause(&q, 1));
        OFFER(&q, "x", 0);
        takes_nothing(&q);
        CHECK_INT(old[i]->take(h, &item, 20000), DELAYQ_OK);
        CHECK(paused_since(&q) > 0);
        old[i]->close(h);
        delayq_close(&q);
    }
}

/* --- lost replies --------------------------------------------------------- */

TEST(a_pause_whose_reply_is_lost_is_sent_again) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq q;
    int on;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    for (on = 1; on >= 0; on--) {
        proxy_strike(CUT, 1, 0, 1);
        pause_by(&q, on);
        proxy_calm();
    }
    delayq_close(&q);
}

/* --- rights --------------------------------------------------------------- */

TEST(a_count_that_may_not_read_the_pause_is_refused) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_counts c;
    delayq q;
    char url[256];
    if (main_server.major < 6) return;
    acl_user("w", "~* +@all -get");
    snprintf(url, sizeof url, "unix://w:pw@%s", main_server.socket);
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_count(&q, &c), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    ask("ACL DELUSER w");
}
