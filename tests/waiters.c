/*
 * Many handles that wait in a take on one queue: one of them, the leader, has
 * the exact timer, and another one replaces it when it leaves, dies or hangs.
 * max_wait_ms is an hour in here, so that a handle that is not notified of an
 * item does not find it by polling.
 */
#include "test.h"
#include <sys/wait.h>

#define WAITERS_KEY "delayq_waiting:{jobs}"
#define COUNT 8

static pid_t waiters[COUNT];
static volatile int *taken; /* by each waiter, in shared memory */
static long lease = 0;

static void wait_and_count(void *number) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    int i = (int)(long)number;
    o.max_wait_ms = 3600000;
    o.lease_ms = lease;
    OK(&q, delayq_open(&q, &o));
    for (;;) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        taken[i]++;
        if (lease) OK(&q, delayq_ack(&q, &item));
    }
}

/* How many track the ready list: their last command is LLEN. */
static int tracking(void) {
    const char *at = ask("CLIENT LIST");
    int n = 0;
    while ((at = strstr(at, "cmd=llen")) != NULL) {
        at++;
        n++;
    }
    return n;
}

/* One after the other, so that their order is known. */
static void start_waiters(void) {
    int i;
    taken = (volatile int *)shared(COUNT * sizeof *taken);
    for (i = 0; i < COUNT; i++) {
        waiters[i] = spawn(wait_and_count, (void *)(long)i);
        UNTIL(ask_int("ZCARD " WAITERS_KEY) == i + 1);
    }
    UNTIL(tracking() >= 2);
}

static int all_taken(void) {
    int i, n = 0;
    for (i = 0; i < COUNT; i++) n += taken[i];
    return n;
}

static void end_waiters(void) {
    int i;
    for (i = 0; i < COUNT; i++) {
        kill(waiters[i], SIGKILL);
        waitpid(waiters[i], NULL, 0);
    }
}

TEST(each_waiter_gets_items_and_few_scripts_are_run) {
    delayq p;
    int i, k;
    long long scripts;
    const char *stats;
    start_waiters();
    open_queue(&p, "jobs");
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 3 * COUNT; i++) {
        if (i % 2)
            OFFER(&p, "x", 20);
        else
            ask("RPUSH jobs x");
        UNTIL(all_taken() == i + 1);
        UNTIL(ask_int("ZCARD " WAITERS_KEY) == COUNT);
    }
    for (k = 0; k < COUNT; k++)
        if (taken[k] == 0)
            FAIL("of 24 items they got %d %d %d %d %d %d %d %d", taken[0],
                 taken[1], taken[2], taken[3], taken[4], taken[5], taken[6],
                 taken[7]);
    stats = strstr(ask("INFO commandstats"), "cmdstat_evalsha:calls=");
    scripts = stats ? atoll(stats + strlen("cmdstat_evalsha:calls=")) : 0;
    if (test_slow() == 1 && scripts > 6 * 3 * COUNT)
        FAIL("%lld scripts for %d items", scripts, 3 * COUNT);
    end_waiters();
    delayq_close(&p);
}

static void leader_is_lost(int sig, int pushed, int both) {
    delayq p;
    int i;
    start_waiters();
    open_queue(&p, "jobs");
    if (!pushed) OFFER(&p, "x", 300);
    kill(waiters[0], sig);
    if (both) kill(waiters[1], sig);
    if (pushed) ask("RPUSH jobs x");
    UNTIL(all_taken() == 1);
    /* the lost leader was removed: the others go on */
    for (i = 2; i < 6; i++) {
        OFFER(&p, "y", 10);
        UNTIL(all_taken() == i);
    }
    if (sig == SIGSTOP) { /* resumed, it joins the waiters again */
        kill(waiters[0], SIGCONT);
        UNTIL(ask_int("ZCARD " WAITERS_KEY) == COUNT);
    }
    end_waiters();
    delayq_close(&p);
}

TEST(a_leader_that_is_killed_is_replaced) {
    leader_is_lost(SIGKILL, 0, 0);
}
TEST(a_leader_that_is_killed_is_replaced_for_pushes_too) {
    leader_is_lost(SIGKILL, 1, 0);
}
TEST(a_leader_that_is_frozen_is_replaced) {
    leader_is_lost(SIGSTOP, 0, 0);
}

/* Once the dead waiters are removed, the only one left is the live one. */
static void offer_to_the_living(void *unused) {
    delayq p;
    (void)unused;
    UNTIL(ask_int("ZCARD " WAITERS_KEY) == 1);
    open_queue(&p, "jobs");
    OFFER(&p, "x", 100);
    delayq_close(&p);
}

TEST(dead_waiters_do_not_keep_others_from_taking) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    pid_t child;
    start_waiters();
    end_waiters();
    CHECK_INT(ask_int("ZCARD " WAITERS_KEY), COUNT);
    o.max_wait_ms = 3600000;
    OK(&q, delayq_open(&q, &o));
    child = spawn(offer_to_the_living, NULL);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK_INT(ask_int("ZCARD " WAITERS_KEY), 0);
    join(child);
    delayq_close(&q);
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
    signal(SIGUSR1, on_signal);
    OK(&woken, delayq_open(&woken, &o));
    CHECK_STATUS(&woken, delayq_take(&woken, &item, 30), DELAYQ_EMPTY);
    CHECK_INT(ask_int("EXISTS " WAITERS_KEY), 0); /* short waits don't join */
    fflush(stdout);
    child = fork();
    if (child == 0) {
        redisContext *c = server_connect(&main_server);
        long long n = 0;
        while (n == 0) {
            redisReply *r = run(c, "ZCARD " WAITERS_KEY);
            n = r->integer;
            freeReplyObject(r);
        }
        kill(parent, SIGUSR1);
        _exit(0);
    }
    CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    join(child);
    CHECK_INT(ask_int("EXISTS " WAITERS_KEY), 0);
    delayq_close(&woken);
}

TEST(without_the_right_to_the_waiters_key_a_take_waits_as_if_alone) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "jobs");
    char url[200];
    if (main_server.major < 6) test_skip("no ACL before Redis 6");
    snprintf(url, sizeof url, "unix://half:pw@%s", main_server.socket);
    acl_user("half", "~jobs ~redisson* ~delayq_dead* ~delayq_retry* +@all");
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 100);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK_INT(ask_int("EXISTS " WAITERS_KEY), 0);
    delayq_close(&q);
}
