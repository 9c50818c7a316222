/*
 * A handle that waits. Idle calls send nothing, the subscriber notices offers
 * and pushes, and delayq_wake ends a wait.
 */
#include "test.h"
#include <pthread.h>
#include <time.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define CHANNEL "redisson_delay_queue_channel:{jobs}"

/* Returns the number of commands that the server has run before this INFO. */
static long long commands(void) {
    const char *at = strstr(ask("INFO stats"), "total_commands_processed:");
    return at ? atoll(at + 25) : -1;
}

static void tick_until_idle(delayq *q) {
    int64_t wait = 0;
    while (wait == 0 || !q->subscribed) OK(q, delayq_tick(q, &wait));
}

TEST(an_idle_tick_sends_nothing) {
    delayq q;
    int64_t wait;
    long long before;
    int i;
    open_queue(&q, "jobs");
    OFFER(&q, "later", 3600000);
    tick_until_idle(&q);
    before = commands();
    for (i = 0; i < 10000; i++) {
        OK(&q, delayq_tick(&q, &wait));
        CHECK(wait > 0 && wait <= 10000);
    }
    CHECK_INT(commands() - before, 1);
    delayq_close(&q);
}

TEST(a_take_of_a_game_loop_sends_nothing_while_nothing_is_due) {
    delayq q;
    delayq_item item;
    long long before;
    int i;
    if (!can_track()) test_skip("the server tracks no keys");
    open_queue(&q, "jobs");
    while (!q.list_tracked) /* connect, subscribe, and track the list */
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    before = commands();
    for (i = 0; i < 600; i++) {
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        usleep(200);
    }
    CHECK_INT(commands() - before, 1);
    /* A push is noticed without polling. */
    ask("RPUSH jobs pushed");
    UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
    delayq_close(&q);
}

TEST(one_take_with_timeout_zero_opens_no_second_connection) {
    delayq q;
    delayq_item item;
    open_queue(&q, "jobs");
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    /* Two clients are the tests' own. Those of the previous test may still be
     * closing. */
    UNTIL(strstr(ask("INFO clients"), "connected_clients:3"));
    delayq_close(&q);
}

/* Returns 1 if a handle waits: its subscriber exists, and the server tracks a
 * key (if the server reports pushes at all). */
static int one_waits(redisContext *c) {
    redisReply *clients = run(c, "CLIENT LIST"), *stats = run(c, "INFO stats");
    const char *keys = strstr(stats->str, "tracking_total_keys:");
    int sub = strstr(clients->str, "sub=2") || /* sub=2 in a short take */
              strstr(clients->str, "sub=4");
    int waits = sub && (!can_track() || (keys && atoi(keys + 20) > 0));
    freeReplyObject(clients);
    freeReplyObject(stats);
    return waits;
}

/* Wait until a take in another process waits. */
static void wait_ready(void) {
    redisContext *c = server_connect(&main_server);
    UNTIL(one_waits(c));
    redisFree(c);
}

static void offer_soon(void *unused) {
    delayq q;
    (void)unused;
    wait_ready();
    open_queue(&q, "jobs");
    OFFER(&q, "early", 100);
    delayq_close(&q);
}

/* Offer as Redisson does, with its clock and its id. */
static void offer_as_redisson(void *unused) {
    redisContext *c;
    unsigned char e[64];
    size_t n = element(e, 8, 8, "ABCDEFGH", "early", 5);
    char due[32];
    struct timespec t;
    (void)unused;
    wait_ready();
    c = server_connect(&main_server);
    clock_gettime(CLOCK_REALTIME, &t);
    snprintf(due, sizeof due, "%lld",
             (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000 + 100);
    freeReplyObject(run(c, "ZADD " ZSET " %s %b", due, e, n));
    freeReplyObject(run(c, "PUBLISH " CHANNEL " %s", due));
    redisFree(c);
}

static void push_bare(void *unused) {
    redisContext *c;
    (void)unused;
    wait_ready();
    c = server_connect(&main_server);
    freeReplyObject(run(c, "RPUSH jobs early"));
    redisFree(c);
}

/* Open a handle that polls once an hour if it gets no notification. */
static void open_without_polls(delayq *q, delayq_wire wire) {
    delayq_options o = options_for(&main_server, "jobs");
    o.max_wait_ms = 3600000;
    o.wire = wire;
    OK(q, delayq_open(q, &o));
}

static void is_notified(void (*other)(void *), delayq_wire wire) {
    delayq q;
    delayq_item item;
    pid_t child;
    open_without_polls(&q, wire);
    OFFER(&q, "late", 3600000);
    child = spawn(other, NULL);
    OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    CHECK(memcmp(item.data, "early", 5) == 0);
    join(child);
    delayq_close(&q);
}

TEST(a_waiting_take_notices_an_earlier_offer) {
    is_notified(offer_soon, DELAYQ_NATIVE);
}

TEST(a_waiting_take_notices_an_earlier_offer_by_redisson) {
    is_notified(offer_as_redisson, DELAYQ_REDISSON);
}

TEST(a_waiting_take_notices_a_bare_push) {
    is_notified(push_bare, DELAYQ_NATIVE);
}

TEST(a_wait_on_many_queues_returns_when_one_has_something) {
    delayq a, b;
    delayq *both[2] = {&a, &b};
    delayq_item item;
    open_queue(&a, "a");
    open_queue(&b, "b");
    OFFER(&b, "x", 50);
    OK(&a, delayq_wait(both, 2, DELAYQ_FOREVER));
    CHECK_STATUS(&a, delayq_take(&a, &item, 0), DELAYQ_EMPTY);
    take_is(&b, "x");
    CHECK_STATUS(&a, delayq_wait(both, 2, 20), DELAYQ_EMPTY);
    ask("RPUSH a pushed");
    OK(&a, delayq_wait(both, 2, DELAYQ_FOREVER));
    take_is(&a, "pushed");
    delayq_wake(&b);
    CHECK_STATUS(&a, delayq_wait(both, 2, DELAYQ_FOREVER), DELAYQ_WOKEN);
    delayq_close(&a);
    delayq_close(&b);
}

static int wait_lines;
static void on_wait_log(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)text;
    if (status != DELAYQ_OK) wait_lines++; /* events have DELAYQ_OK */
}

static void tell_often(void *unused) {
    redisContext *c = server_connect(&main_server);
    int i;
    (void)unused;
    for (i = 0; i < 200; i++) {
        freeReplyObject(
            run(c, "PUBLISH redisson_delay_queue_channel:{b} %d", 1000 + i));
        usleep(2000);
    }
    redisFree(c);
}

/* A wait on two queues, one of which has lost its server. Notifications of the
 * other queue wake the wait, but the handle must not log the lost server each
 * time. */
TEST(a_wait_tells_of_a_lost_server_once_per_attempt) {
    server gone;
    delayq a, b;
    delayq *both[2] = {&a, &b};
    delayq_options o;
    pid_t child;
    server_start(&gone, NULL);
    o = options_for(&gone, "a");
    o.log = on_wait_log;
    o.reconnect_max_ms = 0; /* the default */
    OK(&a, delayq_open(&a, &o));
    open_queue(&b, "b");
    CHECK_STATUS(&a, delayq_wait(both, 2, 50), DELAYQ_EMPTY);
    server_end(&gone);
    child = spawn(tell_often, NULL);
    wait_lines = 0;
    CHECK(delayq_wait(both, 2, 1500) != DELAYQ_OK);
    join(child);
    if (wait_lines > 8) FAIL("%d lines of the log", wait_lines);
    delayq_close(&a);
    delayq_close(&b);
}

static delayq woken;

static void *wake_later(void *unused) {
    (void)unused;
    wait_ready();
    delayq_wake(&woken);
    return NULL;
}

TEST(wake_from_another_thread_ends_a_take) {
    delayq_item item;
    pthread_t thread;
    open_queue(&woken, "jobs");
    pthread_create(&thread, NULL, wake_later, NULL);
    CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    pthread_join(thread, NULL);
    CHECK_STATUS(&woken, delayq_take(&woken, &item, 20), DELAYQ_EMPTY);
    delayq_close(&woken);
}

static void on_alarm(int sig) {
    (void)sig;
    delayq_wake(&woken);
}

static void signal_waiter(void *unused) {
    (void)unused;
    wait_ready();
    kill(getppid(), SIGUSR1);
}

TEST(wake_from_a_signal_handler_ends_a_take) {
    delayq_item item;
    pid_t child;
    struct sigaction action;
    open_queue(&woken, "jobs");
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1); /* this wake comes before the take, and must not be lost */
    CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    child = spawn(signal_waiter, NULL);
    CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    join(child);
    delayq_close(&woken);
}

TEST(wake_ends_a_loop_whose_queue_is_never_empty) {
    delayq_item item;
    open_queue(&woken, "jobs");
    OFFER(&woken, "x", 0);
    elapse(main_connection(), 1);
    delayq_wake(&woken);
    CHECK_STATUS(&woken, delayq_take(&woken, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    take_is(&woken, "x");
    delayq_close(&woken);
}

TEST(fds_gives_the_command_socket_and_the_subscriber) {
    delayq q, producer;
    int fds[4];
    int64_t wait;
    open_queue(&q, "jobs");
    open_queue(&producer, "jobs");
    CHECK_INT(delayq_fds(&q, fds, 4), 2);
    tick_until_idle(&q);
    CHECK_INT(delayq_fds(&q, fds, 4), 3);
    CHECK_INT(delayq_fds(&q, fds, 1), 1);
    OFFER(&producer, "x", 0);
    UNTIL(ask_int("LLEN jobs") == 1 ||
          (delayq_tick(&q, &wait) == DELAYQ_OK && ask_int("LLEN jobs") == 1));
    delayq_close(&q);
    delayq_close(&producer);
    CHECK_INT(delayq_fds(&q, fds, 4), 0);
}

TEST(an_offer_on_the_same_handle_shortens_its_own_wait) {
    delayq q;
    int64_t wait;
    open_queue(&q, "jobs");
    tick_until_idle(&q);
    OFFER(&q, "x", 300);
    OK(&q, delayq_tick(&q, &wait));
    CHECK(wait <= 302); /* the time is rounded up twice */
    delayq_close(&q);
}

TEST(a_dead_subscriber_is_noticed_and_replaced) {
    delayq q;
    int64_t wait;
    open_queue(&q, "jobs");
    tick_until_idle(&q);
    ask("CLIENT KILL TYPE pubsub");
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK &&
          strstr(ask("CLIENT LIST TYPE pubsub"), "sub=2"));
    delayq_close(&q);
}

TEST(a_push_is_noticed_after_another_one_was_taken) {
    delayq q;
    delayq_item item;
    pid_t child;
    open_without_polls(&q, DELAYQ_NATIVE);
    do CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    while (!one_waits(main_connection()));
    ask("RPUSH jobs x");
    OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    if (can_track()) /* the take has ended the tracking */
        CHECK(!one_waits(main_connection()));
    child = spawn(push_bare, NULL);
    OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    join(child);
    delayq_close(&q);
}

/* A take straight from the zset does not change the list, so it stays tracked.
 * At a push, the handle takes the item at once, without polling the list. */
TEST(a_consumer_of_delayed_items_asks_once_to_be_told_of_pushes) {
    delayq q;
    delayq_item item;
    pid_t child;
    int i;
    if (!can_track()) test_skip("the server tracks no keys");
    open_without_polls(&q, DELAYQ_NATIVE);
    do CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    while (!q.list_tracked);
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 3; i++) {
        OFFER(&q, "x", 20);
        OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
        CHECK(q.list_tracked);
    }
    CHECK(!strstr(ask("INFO commandstats"), "cmdstat_client"));
    child = spawn(push_bare, NULL);
    OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    CHECK(memcmp(item.data, "early", 5) == 0);
    CHECK(!strstr(ask("INFO commandstats"), "cmdstat_client|caching"));
    join(child);
    delayq_close(&q);
}

/* The take after the wait moves the due items, too. */
TEST(a_wait_beside_ready_items_sends_nothing) {
    delayq q, *one = &q;
    delayq_item item;
    open_queue(&q, "jobs");
    ask("RPUSH jobs a b");
    OK(&q, delayq_wait(&one, 1, 20000));
    OK(&q, delayq_take(&q, &item, 0));
    OK(&q, delayq_wait(&one, 1, 20000));
    OFFER(&q, "c", 0);
    elapse(main_connection(), 1);
    ask("CONFIG RESETSTAT");
    OK(&q, delayq_wait(&one, 1, 20000));
    CHECK_INT(scripts_run(main_connection()), 0);
    OK(&q, delayq_take(&q, &item, 0));
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}
