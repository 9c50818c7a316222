/*
 * Many handles that wait in a take on one queue. One of them, the leader, acts
 * when an item is due or pushed. Standbys act if the leader does not. Sleepers
 * wait until another handle wakes them. In this file max_wait_ms is an hour,
 * unless a test says otherwise. So a handle that is not notified of an item
 * does not find it by polling.
 */
#include "peer.h"
#include "proxy.h"
#include <sys/wait.h>

#ifdef DELAYQ_VERSION_MAJOR
#define WAITERS "delayq_waiters:{jobs}"
#define LEADER_RANK "-1 -1"
#define LEADER_SCORE 2e14
#else /* 0.1 sorts the waiters by their arrival */
#define WAITERS "delayq_waiting:{jobs}"
#define LEADER_RANK "0 0"
#define LEADER_SCORE 0
#endif
#define CHANNEL "redisson_delay_queue_channel:{jobs}"
#define MOST 24

/* In this file standbys act later than in a program, after 2 to 4 s. So even on
 * a busy machine the leader acts first, and standbys act before the subscriber
 * is pinged, after 10 s. The simulator checks the real times. */
#ifdef DELAYQ_VERSION_MAJOR
#define SLACK_US 2000000
#else /* standbys of 0.1 act after 300 to 600 ms */
#define SLACK_US 300000
#endif
/* The limits of an item's lateness if the leader fails, and if it does not. */
#define LATE_US (4 * SLACK_US)
#define ON_TIME_US (SLACK_US - 10000)

static struct waiter {
    pid_t pid;
    volatile int taken;
    volatile int64_t late_us; /* lateness of its last item */
    volatile char id[18];
    /* Set by the test before the waiter starts: */
    int64_t max_wait_ms;
    int64_t lease_ms;
    int busy_ms; /* time for which it works on an item */
    size_t most; /* limit of the items in a take */
    int share;   /* the number that selects standbys; -1: a random one */
    const char *url;
} * waiters; /* in shared memory */
static int count;

static void wait_and_count(void *number) {
    struct waiter *w = &waiters[(long)number];
    delayq q;
    delayq_item item[4];
    size_t n;
    delayq_options o = options_for(&main_server, "jobs");
    o.max_wait_ms = w->max_wait_ms;
    o.lease_ms = w->lease_ms;
    /* a hundred handles connect at once */
    o.connect_timeout_ms = o.io_timeout_ms;
    SET_POLL_MS(o, 250);
    if (w->url) o.url = w->url;
    OK(&q, delayq_open(&q, &o));
    if (w->share >= 0) {
#ifdef DELAYQ_VERSION_MAJOR
        q.handle_id[6] = (unsigned char)(w->share >> 8);
        q.handle_id[7] = (unsigned char)w->share;
#endif
    }
    strcpy((char *)w->id, q.id);
    for (;;) {
        OK(&q, delayq_take_many(&q, item, w->most, &n, DELAYQ_FOREVER));
        w->late_us = item[0].late_us;
        __sync_fetch_and_add(&w->taken, (int)n);
        if (w->busy_ms) usleep((useconds_t)w->busy_ms * 1000);
    }
}

static void start(int i) {
    waiters[i].id[0] = '\0';
    waiters[i].pid = spawn(wait_and_count, (void *)(long)i);
    UNTIL(waiters[i].id[0]);
}

/* Returns the number of the leader, or -1 if none of the waiters leads. */
static int leader(void) {
    redisReply *r =
        run(main_connection(), "ZRANGE " WAITERS " " LEADER_RANK " WITHSCORES");
    int i, found = -1;
    for (i = 0; i < count && r->elements == 2; i++)
        if (strcmp(r->element[0]->str, (char *)waiters[i].id) == 0 &&
            atof(r->element[1]->str) >= LEADER_SCORE)
            found = i;
    freeReplyObject(r);
    return found;
}

static int everybody_entered(void) {
    if (count == 1) return subscribers(main_connection(), WAITERS) == 1;
    return ask_int("ZCARD " WAITERS) == count && leader() >= 0;
}

/* Returns how many handles track the ready list or have tracked it. */
static int tracking(void) {
    const char *at = strstr(ask("INFO clients"), "tracking_clients:");
    return at ? atoi(at + strlen("tracking_clients:")) : 0;
}

static void prepare(int n) {
    int i;
    waiters = (struct waiter *)shared(MOST * sizeof *waiters);
    count = n;
    test_slack_us = SLACK_US;
    for (i = 0; i < n; i++) {
        waiters[i].max_wait_ms = 3600000;
        waiters[i].share = -1;
        waiters[i].most = 1;
    }
}

static void needs_order(void) {
    if (!server_can("PUBSUB")) test_skip("scripts can't count subscribers");
}

static void start_all(void) {
    int i;
    if (count > 1) needs_order();
    for (i = 0; i < count; i++) start(i);
    UNTIL(everybody_entered());
    UNTIL(!can_track() || tracking() >= 1);
    usleep(30000); /* until no request is in flight */
}

static void end_all(void) {
    int i;
    for (i = 0; i < count; i++) {
        kill(waiters[i].pid, SIGKILL);
        waitpid(waiters[i].pid, NULL, 0);
    }
}

static int all_taken(void) {
    int i, n = 0;
    for (i = 0; i < count; i++) n += waiters[i].taken;
    return n;
}

/* Offer or push one item, and wait until a waiter has it. Returns its lateness
 * in us. */
static int64_t one_item(delayq *p, int pushed, int delay_ms) {
    int taken[MOST], before = all_taken(), i;
    long long from = now_us();
    for (i = 0; i < count; i++) taken[i] = waiters[i].taken;
    if (pushed)
        ask("RPUSH jobs x");
    else
        OFFER(p, "x", delay_ms);
    UNTIL(all_taken() > before);
    if (pushed) return now_us() - from;
    for (i = 0; i < count; i++)
        if (waiters[i].taken > taken[i]) return waiters[i].late_us;
    return -1;
}

/* Offer or push five items. At most `allowed` of them may be later than
 * ON_TIME_US, and none later than LATE_US. */
static void items_come_in_time(delayq *p, int pushed, int allowed) {
    int i, late = 0;
    for (i = 0; i < 5; i++) {
        int64_t us = one_item(p, pushed, 60);
        /* without tracking, the leader polls */
        if (pushed && !can_track()) us -= 4000000;
        if (us > LATE_US) FAIL("item %d is %lld us late", i, (long long)us);
        if (us > ON_TIME_US && ++late > allowed)
            FAIL("item %d is late (%lld us), too", i, (long long)us);
        usleep(20000);
    }
}

/* --- few scripts and commands --------------------------------------------- */

static long long calls(const char *command) {
    char name[64];
    const char *at;
    snprintf(name, sizeof name, "cmdstat_%s:calls=", command);
    at = strstr(ask("INFO commandstats"), name);
    return at ? atoll(at + strlen(name)) : 0;
}

TEST(each_waiter_gets_items_and_few_scripts_are_run) {
    delayq p;
    int i, k;
    long long scripts;
    prepare(8);
    start_all();
    open_queue(&p, "jobs");
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 3 * count; i++) {
        one_item(&p, i % 2, 20);
        UNTIL(everybody_entered());
    }
    for (k = 0; k < count; k++)
        if (waiters[k].taken == 0) FAIL("waiter %d got no item of 24", k);
    scripts = calls("evalsha");
    if (!test_brief() && scripts > 5 * 3 * count)
        FAIL("%lld scripts for %d items", scripts, 3 * count);
    end_all();
    delayq_close(&p);
}

/* Store n items of a dead worker, whose leases have ended. */
static void leave_for_retry(int n) {
    unsigned char e[64];
    size_t len;
    int i;
    for (i = 0; i < n; i++) {
        char id[] = "ABCDEFGHIJKLM?\0\1";
        id[13] = (char)('0' + i);
        len = element(e, 16, 8, id, "x", 1);
        ask("RPUSH delayq_retry:{jobs} %b", e, len);
    }
    ask("PUBLISH " CHANNEL " 1");
}

/* Several waiters get items at the same time, because a waiter that takes one
 * wakes the next waiter before it works on its item. */
TEST(what_is_ready_goes_at_once_to_all_who_wait) {
    int i;
    prepare(4);
    for (i = 0; i < count; i++) {
        waiters[i].busy_ms = SLACK_US / 1000 + 200;
        waiters[i].lease_ms = 60000;
    }
    start_all();
    for (i = 0; i < 2; i++) {
        int before = all_taken();
        long long from = now_us();
        leave_for_retry(count);
        UNTIL(all_taken() == before + count);
        from = now_us() - from;
        if (from > ON_TIME_US) FAIL("round %d takes %lld us", i, from);
        UNTIL(everybody_entered());
    }
    end_all();
}

/* Items fall due together. The leader takes some of them, and its script wakes
 * enough waiters for the rest. The woken waiters leave the set, except for the
 * next leader. All but the leader are frozen, so that only the leader takes. */
static void leader_calls_others(size_t takes, int items, int calls) {
    delayq p;
    delayq_message m[6];
    int i, first;
    prepare(6);
    for (i = 0; i < count; i++) {
        waiters[i].most = takes;
        waiters[i].busy_ms = 3600000;
    }
    start_all();
    first = leader();
    for (i = 0; i < count; i++)
        if (i != first) kill(waiters[i].pid, SIGSTOP);
    open_queue(&p, "jobs");
    memset(m, 0, sizeof m);
    for (i = 0; i < items; i++) {
        m[i].data = "x";
        m[i].len = 1;
        m[i].delay_ms = 50;
    }
    OK(&p, delayq_offer_many(&p, m, (size_t)items));
    UNTIL(waiters[first].taken == (int)takes);
    CHECK_INT(ask_int("ZCARD " WAITERS), count - calls);
    CHECK(leader() >= 0 && leader() != first);
    for (i = 0; i < count; i++) kill(waiters[i].pid, SIGCONT);
    UNTIL(all_taken() == items);
    end_all();
    delayq_close(&p);
}
TEST(the_leader_calls_a_waiter_for_each_item_that_is_due) {
    leader_calls_others(1, 4, 3);
}
TEST(the_leader_calls_fewer_waiters_if_they_take_several_items) {
    leader_calls_others(2, 6, 2);
}
TEST(the_leader_calls_one_waiter_if_nothing_else_is_due) {
    leader_calls_others(1, 1, 1);
}

/* Count the commands of all kinds, including those inside scripts, that the
 * server runs for one item of a consumer whose takes have this timeout. The
 * result is the lowest of several counts, since a timer may fire early and
 * cause a second poll. */
static void commands_per_item(int64_t timeout_ms, int pushed, long long *all) {
    delayq q;
    delayq_item item;
    pid_t producer;
    int i;
    open_queue(&q, "jobs");
    *all = INT64_MAX;
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    for (i = 0; i < 8; i++) {
        const char *at;
        long long sum = 0;
        fflush(stdout);
        producer = fork();
        if (producer == 0) {
            delayq p;
            redisContext *c = server_connect(&main_server);
            delayq_options o = options_for(&main_server, "jobs");
            /* until the take waits */
            usleep((useconds_t)(30000 * test_slow()));
            OK(&p, delayq_open(&p, &o));
            freeReplyObject(run(c, "CONFIG RESETSTAT"));
            if (pushed)
                freeReplyObject(run(c, "RPUSH jobs x"));
            else
                OFFER(&p, "x", 20);
            delayq_close(&p);
            redisFree(c);
            _exit(0);
        }
        OK(&q, delayq_take(&q, &item, timeout_ms));
        at = ask("INFO commandstats");
        while ((at = strstr(at, "calls=")) != NULL) sum += atoll(at += 6);
        join(producer);
        if (i > 0 && sum < *all) *all = sum;
    }
    delayq_close(&q);
}

TEST(a_lone_consumer_pays_nothing_for_the_waiters) {
    int pushed;
    for (pushed = 0; pushed < 2; pushed++) {
        long long with, without;
        commands_per_item(9999, pushed, &without);
        commands_per_item(DELAYQ_FOREVER, pushed, &with);
        CHECK_INT(with, without);
        CHECK_INT(ask_int("EXISTS " WAITERS), 0);
    }
}

/* Start 4 standbys and many sleepers, and wait until each sleeper has polled
 * once. */
static void start_sleepers(int busy_ms) {
    int i;
    prepare(MOST);
    for (i = 0; i < count; i++) {
        waiters[i].max_wait_ms = 1500;
        waiters[i].share = i < 4 ? i : 65535;
        waiters[i].busy_ms = busy_ms;
    }
    start_all();
    UNTIL(subscribers(main_connection(), CHANNEL) <= 5);
    UNTIL(leader() >= 0);
}

TEST(of_many_waiters_most_sleep_and_take_over_when_the_others_are_busy) {
    delayq p;
    int i;
    start_sleepers(400);
    open_queue(&p, "jobs");
    for (i = 0; i < 15; i++) OFFER(&p, "x", 100);
    UNTIL(all_taken() == 15);
    for (i = 0; i < count; i++) {
        CHECK(waiters[i].taken <= 1);
        if (waiters[i].late_us > ON_TIME_US)
            FAIL("late by %lld us", (long long)waiters[i].late_us);
    }
    /* until the sleepers sleep again */
    UNTIL(everybody_entered() && subscribers(main_connection(), CHANNEL) <= 5);
    end_all();
    delayq_close(&p);
}

/* --- dead and frozen waiters ---------------------------------------------- */

/* Stop `lost` of `n` waiters, the leader first. */
static void some_are_lost(int n, int lost, int sig, int pushed) {
    delayq p;
    int i, gone[MOST] = {0};
    prepare(n);
    start_all();
    open_queue(&p, "jobs");
    for (i = 0; i < lost; i++) {
        int k = i == 0 ? leader() : 0;
        while (k >= 0 && gone[k]) k++;
        CHECK(k >= 0 && k < n);
        gone[k] = 1;
        kill(waiters[k].pid, sig);
        if (sig == SIGKILL) waitpid(waiters[k].pid, NULL, 0);
    }
    if (sig == SIGKILL)
        UNTIL(subscribers(main_connection(), WAITERS) == n - lost);
    items_come_in_time(&p, pushed, 1);
    if (sig == SIGSTOP) { /* resumed handles enter the set again */
        for (i = 0; i < n; i++) kill(waiters[i].pid, SIGCONT);
        UNTIL(everybody_entered());
        items_come_in_time(&p, pushed, 0);
    }
    end_all();
    delayq_close(&p);
}

TEST(a_leader_that_is_killed_is_replaced) {
    some_are_lost(8, 1, SIGKILL, 0);
}
TEST(half_of_the_waiters_are_frozen) {
    some_are_lost(8, 4, SIGSTOP, 0);
}
TEST(half_of_the_waiters_are_frozen_and_items_are_pushed) {
    some_are_lost(8, 4, SIGSTOP, 1);
}
TEST(all_waiters_but_one_are_frozen_and_items_are_pushed) {
    some_are_lost(12, 11, SIGSTOP, 1);
}

/* Frozen waiters delay an item by a second at most, unless the leader and all
 * standbys are frozen. Then a sleeper finds the item at its next poll, after
 * max_wait_ms at most. */
TEST(the_leader_and_all_standbys_are_frozen_while_many_sleep) {
    delayq p;
    int i;
    int64_t us;
    start_sleepers(0);
    open_queue(&p, "jobs");
    kill(waiters[leader()].pid, SIGSTOP);
    for (i = 0; i < 4; i++) kill(waiters[i].pid, SIGSTOP);
    do { /* repeat it, since a sleeper may happen to poll in time */
        us = one_item(&p, 0, 20);
        if (us > 1500000 + ON_TIME_US)
            FAIL("late by %lld us", (long long)us);
        usleep(50000);
    } while (leader() < 4);
    items_come_in_time(&p, 0, 0);
    end_all();
    delayq_close(&p);
}

/* --- the set -------------------------------------------------------------- */

static void the_set_is_lost(int pushed) {
    delayq p;
    int i, late = 0;
    prepare(12);
    start_all();
    for (i = 0; i < count; i++) waiters[i].busy_ms = 600;
    ask("FLUSHALL");
    usleep(20000);
    open_queue(&p, "jobs");
    for (i = 0; i < 8; i++) {
        int64_t us = one_item(&p, pushed, 100);
        late += us > ON_TIME_US; /* on a busy machine one leader may be late */
        if (us > LATE_US || late > 1)
            FAIL("item %d is %lld us late", i, (long long)us);
    }
    for (i = 0; i < count; i++) waiters[i].busy_ms = 0;
    UNTIL(everybody_entered());
    end_all();
    delayq_close(&p);
}

TEST(flushall_while_many_wait_delays_no_item) {
    the_set_is_lost(0);
}
TEST(flushall_while_many_wait_delays_no_pushed_item) {
    the_set_is_lost(1);
}

static void add_dead(int dead, int sleepers) {
    ask("EVAL %s 1 " WAITERS " %d %s",
        "for i = 1, ARGV[1] do redis.call('ZADD', KEYS[1], ARGV[2] + i, "
        "':dead' .. i) end",
        dead, sleepers ? "1e14" : "0");
}

/* The first entries of the set are dead waiters. One script removes at most 64
 * of them. If there are more, they may delay only the first item. */
static void dead_are_ahead(int dead) {
    delayq p;
    int i;
    prepare(3);
    start_all();
    open_queue(&p, "jobs");
    add_dead(dead, 0);
    ask("CONFIG RESETSTAT");
    one_item(&p, 0, 30);
    if (calls("publish") > 2 + 64 + 1) FAIL("%lld were told", calls("publish"));
    items_come_in_time(&p, 0, 0);
    items_come_in_time(&p, 1, 0);
    if (calls("publish") > 300) FAIL("%lld were told", calls("publish"));
    for (i = 0; i < count; i++) CHECK(waiters[i].taken > 0);
    UNTIL(ask_int("ZCARD " WAITERS) == count);
    end_all();
    delayq_close(&p);
}

TEST(waiters_that_have_died_are_passed_over) {
    dead_are_ahead(20);
}
TEST(a_set_full_of_dead_waiters_is_emptied) {
    dead_are_ahead(20000);
}

TEST(the_set_does_not_grow_with_the_dead) {
    int i;
    prepare(3);
    start_all();
    add_dead(1100, 1);
    for (i = 0; i < 10; i++) { /* the number of dead entries must not grow */
        kill(waiters[2].pid, SIGKILL);
        waitpid(waiters[2].pid, NULL, 0);
        start(2);
        UNTIL(subscribers(main_connection(), WAITERS) == 3);
    }
    CHECK(ask_int("ZCARD " WAITERS) <= 1103);
    end_all();
}

/* A lone consumer removes the entries that dead waiters have left. */
TEST(dead_waiters_do_not_keep_others_from_taking) {
    delayq p;
    prepare(8);
    start_all();
    end_all();
    CHECK_INT(ask_int("ZCARD " WAITERS), count);
    prepare(1);
    start_all();
    UNTIL(ask_int("EXISTS " WAITERS) == 0);
    open_queue(&p, "jobs");
    items_come_in_time(&p, 0, 0);
    end_all();
    delayq_close(&p);
}

static delayq woken;
static void on_signal(int sig) {
    (void)sig;
    delayq_wake(&woken);
}

TEST(a_take_that_ends_leaves_the_waiters) {
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    pid_t child, parent = getpid();
    int leads;
    needs_order();
    for (leads = 0; leads < 2; leads++) {
        ask("FLUSHALL");
        signal(SIGUSR1, on_signal);
        OK(&woken, delayq_open(&woken, &o));
        prepare(1);
        CHECK_STATUS(&woken, delayq_take(&woken, &item, 30), DELAYQ_EMPTY);
        CHECK_INT(ask_int("EXISTS " WAITERS), 0); /* short takes don't enter */
        if (!leads) start_all();
        fflush(stdout);
        child = fork();
        if (child == 0) {
            redisContext *c = server_connect(&main_server);
            long long n = 0;
            if (leads) {
                usleep(100000);
                start(0);
            }
            while (n < 2) {
                redisReply *r = run(c, "ZCARD " WAITERS);
                n = r->integer;
                freeReplyObject(r);
            }
            kill(parent, SIGUSR1);
            while (leads && waiters[0].taken == 0) usleep(1000);
            redisFree(c);
            _exit(0); /* this ends the other waiter, too */
        }
        CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                     DELAYQ_WOKEN);
        CHECK_INT(ask_int("ZCARD " WAITERS), 1);
        CHECK_INT(leader(), 0); /* the other handle leads, whoever led before */
        OFFER(&woken, "x", 50);
        UNTIL(all_taken() == 1);
        CHECK(waiters[0].late_us < ON_TIME_US);
        kill(waiters[0].pid, SIGKILL);
        join(child);
        delayq_close(&woken);
        UNTIL(subscribers(main_connection(), WAITERS) == 0);
    }
}

/* A handle enters the set with a take. The server replies, and then sends it a
 * promotion and a due time. Both messages arrive before the reply. */
static void messages_overtake_the_reply(int promoted) {
    delayq p;
    proxy_start(&main_server);
    needs_order();
    prepare(2);
    waiters[0].url = proxy_url();
    waiters[1].busy_ms = 3600000;
    count = 1;
    start_all();
    count = 2;
    open_queue(&p, "jobs");
    proxy->only = 0;
    proxy_strike(STALL, 1, 0, 1);
    start(1);
    UNTIL(ask_int("ZCARD " WAITERS) == 2 && leader() == 1);
    if (promoted) {
        OFFER(&p, "a", 0);
        UNTIL(waiters[1].taken == 1);
        CHECK_INT(leader(), 0);
    } else {
        kill(waiters[1].pid, SIGSTOP);
    }
    OFFER(&p, "b", 300);
    usleep(100000); /* until the handle has both messages */
    CHECK(proxy->kept > 0);
    CHECK_INT(waiters[0].taken, 0);
    proxy->let_go = 1;
    UNTIL(waiters[0].taken == 1);
    CHECK(waiters[0].late_us < (promoted ? ON_TIME_US : LATE_US));
    end_all();
    delayq_close(&p);
}
TEST(a_promotion_counts_before_the_reply_to_a_take) {
    messages_overtake_the_reply(1);
}
TEST(a_due_time_counts_before_the_reply_to_a_take) {
    messages_overtake_the_reply(0);
}

/* --- beside version 0.1 --------------------------------------------------- */

#define OLD_WAITERS "delayq_waiting:{jobs}"
#define OLD 3

static pid_t old[OLD];

/* Take for ever, and push the lateness of each item into the list "old". */
static void old_waiter(void *unused) {
    struct peer_options o;
    redisContext *c = server_connect(&main_server);
    delayq_item item;
    delayq *q;
    (void)unused;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = main_server.url;
    o.max_wait_ms = 3600000;
    q = peer_0_1.open(&o);
    if (!q) FAIL("0.1 can't open a handle");
    for (;;) {
        delayq_status status = peer_0_1.take(q, &item, DELAYQ_FOREVER);
        if (status != DELAYQ_OK) FAIL("0.1: %s", peer_0_1.errmsg(q));
        freeReplyObject(run(c, "RPUSH old %lld", (long long)item.late_us));
    }
}

static void start_old(void) {
    int i;
    for (i = 0; i < OLD; i++) {
        old[i] = spawn(old_waiter, NULL);
        UNTIL(ask_int("ZCARD " OLD_WAITERS) == i + 1);
    }
}

static int old_taken(void) {
    return (int)ask_int("LLEN old");
}

/* Offer or push one item for both versions. Returns its lateness in us. */
static int64_t item_to_either(delayq *p, int pushed) {
    int new_before = all_taken(), old_before = old_taken(), i;
    int taken[MOST];
    long long from = now_us();
    for (i = 0; i < count; i++) taken[i] = waiters[i].taken;
    if (pushed)
        ask("RPUSH jobs x");
    else
        OFFER(p, "x", 40);
    UNTIL(all_taken() + old_taken() > new_before + old_before);
    usleep(2000);
    CHECK_INT(all_taken() + old_taken(), new_before + old_before + 1);
    if (pushed) return now_us() - from;
    for (i = 0; i < count; i++)
        if (waiters[i].taken > taken[i]) return waiters[i].late_us;
    return atoll(ask("LINDEX old -1"));
}

static void items_to_either_come_in_time(delayq *p, int items, int allowed) {
    int i;
    for (i = 0; i < items; i++) {
        int64_t us = item_to_either(p, i % 2), in_time = ON_TIME_US;
        /* without tracking, the leader polls */
        if (i % 2 && !can_track()) us -= 4000000;
        if (us > LATE_US || (us > in_time && allowed-- == 0))
            FAIL("item %d is late by %lld us", i, (long long)us);
    }
}

TEST(handles_of_0_1_and_of_today_wait_on_one_queue) {
    delayq p;
    int i;
    prepare(3);
    start_old();
    start_all();
    open_queue(&p, "jobs");
    CHECK_INT(ask_int("ZCARD " OLD_WAITERS), OLD);
    items_to_either_come_in_time(&p, 30, 0);
    UNTIL(everybody_entered());
    UNTIL(ask_int("ZCARD " OLD_WAITERS) == OLD);
    /* The leader of each version may fail. */
    i = leader();
    kill(waiters[i].pid, SIGSTOP);
    items_to_either_come_in_time(&p, 4, 1);
    kill(waiters[i].pid, SIGCONT);
    UNTIL(everybody_entered());
    for (i = 0; i < OLD; i++) {
        kill(old[i], SIGKILL);
        waitpid(old[i], NULL, 0);
    }
    items_to_either_come_in_time(&p, 10, 0);
    /* No new handle has touched the set of the old version. */
    CHECK(ask_int("ZCARD " OLD_WAITERS) > 0);
    end_all();
    delayq_close(&p);
}

TEST(handles_of_0_1_go_on_when_those_of_today_die) {
    delayq p;
    prepare(3);
    start_old();
    start_all();
    open_queue(&p, "jobs");
    items_to_either_come_in_time(&p, 4, 0);
    end_all();
    items_to_either_come_in_time(&p, 10, 0);
    delayq_close(&p);
}

/* --- missing rights ------------------------------------------------------- */

static void wait_as_if_alone(const char *rights) {
    delayq p;
    static char url[200];
    long long before;
    int i;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    ask("ACL SETUSER half on resetpass >pw resetkeys resetchannels ~jobs "
        "~redisson* ~delayq_dead* ~delayq_retry* ~delayq_paused* &redisson* "
        "&__redis__* +@all");
    ask(rights);
    snprintf(url, sizeof url, "unix://half:pw@%s", main_server.socket);
    prepare(3);
    for (i = 0; i < count; i++) {
        waiters[i].url = url;
        start(i);
    }
    UNTIL(subscribers(main_connection(), CHANNEL) == count);
    UNTIL(tracking() == count);
    CHECK_INT(ask_int("EXISTS " WAITERS), 0);
    open_queue(&p, "jobs");
    items_come_in_time(&p, 0, 0);
    items_come_in_time(&p, 1, 0);
    CHECK_INT(ask_int("EXISTS " WAITERS), 0);
    /* A message tells the handles to enter the set, which the ACL forbids. They
     * must not repeat their requests again and again. */
    before = calls("evalsha");
    ask("PUBLISH " WAITERS " 1");
    usleep(300000);
    CHECK(calls("evalsha") - before < 100);
    end_all();
    delayq_close(&p);
}

TEST(without_the_right_to_the_waiters_key_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half &delayq*");
}
TEST(without_the_right_to_the_waiters_channel_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half ~delayq_waiters* &delayq_turn*");
}
TEST(without_the_right_to_its_own_channel_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half ~delayq_waiters* &delayq_waiters*");
}
TEST(without_the_right_to_count_subscribers_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half ~delayq_waiters* &delayq* -pubsub");
}
TEST(without_the_right_to_zadd_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half ~delayq_waiters* &delayq* -zadd");
}
TEST(without_the_right_to_publish_a_take_waits_as_if_alone) {
    wait_as_if_alone("ACL SETUSER half ~delayq_waiters* &delayq* -publish");
}

/* The server reports no pushes, like Redis 5. The leader polls every 250 ms,
 * and standbys poll half as often. */
TEST(where_pushes_are_not_announced_a_standby_polls_for_a_frozen_leader) {
    delayq p;
    static char url[200];
    int i;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    acl_user("deaf", "~* +@all -client|tracking");
    snprintf(url, sizeof url, "unix://deaf:pw@%s", main_server.socket);
    prepare(4);
    for (i = 0; i < count; i++) waiters[i].url = url;
    for (i = 0; i < count; i++) start(i);
    UNTIL(everybody_entered());
    open_queue(&p, "jobs");
    for (i = 0; i < 4; i++) CHECK(one_item(&p, 1, 0) < 250000 + ON_TIME_US);
    items_come_in_time(&p, 0, 0);
    UNTIL(everybody_entered());
    kill(waiters[leader()].pid, SIGSTOP);
    CHECK(one_item(&p, 1, 0) < LATE_US);
    CHECK(one_item(&p, 1, 0) < 250000 + ON_TIME_US);
    items_come_in_time(&p, 0, 0);
    ask("CONFIG RESETSTAT");
    sleep(1);
    if (!test_brief()) CHECK(calls("evalsha") <= 12);
    end_all();
    delayq_close(&p);
}

/* The waiters' key has another type. */
TEST(beside_a_foreign_key_a_take_waits_as_if_alone) {
    delayq p;
    prepare(3);
    ask("SET " WAITERS " x");
    start(0), start(1), start(2);
    UNTIL(subscribers(main_connection(), CHANNEL) == count);
    open_queue(&p, "jobs");
    items_come_in_time(&p, 0, 0);
    CHECK_TEXT(ask("GET " WAITERS), "x");
    end_all();
    delayq_close(&p);
}
