/* Bad arguments, refusals by the server, lost connections. */
#include "test.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static void refused(const char *name, const char *url, const char *says) {
    delayq q;
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.url = url;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), says);
    if (strstr(delayq_errmsg(&q), "secret")) FAIL("%s", delayq_errmsg(&q));
    delayq_close(&q);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_ARG);
}

TEST(open_refuses_bad_options_and_shows_no_password) {
    static char name[600];
    delayq q;
    delayq_options o;
    memset(name, 'n', sizeof name - 1);
    refused(NULL, NULL, "name");
    refused("", NULL, "name");
    refused(name, NULL, "512 bytes");
    refused("q", "http://secret@h", "must begin with");
    refused("q", "redis://", "host is missing");
    refused("q", "redis://u:secret@", "host is missing");
    refused("q", "redis://u:secret@:6379", "host is missing");
    refused("q", "redis://u:secret@h:0", "port");
    refused("q", "redis://u:secret@h:65536", "port");
    refused("q", "redis://u:secret@h:", "port");
    refused("q", "redis://u:secret@h:12x", "port");
    refused("q", "redis://u:secret@h:6379/x", "database");
    refused("q", "redis://u:secret@h:6379/-1", "database");
    refused("q", "redis://u:secret@h?db=1", "after the port");
    refused("q", "redis://u:secret%4@h", "password");
    refused("q", "redis://u%zz:secret@h", "user");
    refused("q", "redis://[::1", "not closed");
    refused("q", "redis://[::1]x", "after ]");
    refused("q", "redis://h1,,h2", "host is missing");
    refused("q", "redis://u:secret@h1,h2:x/1", "port");
    refused("q", "redis+sentinel://u:secret@h1,h2", "service is missing");
    refused("q", "redis+sentinel://h1/s%4", "service");
    refused("q", "redis+sentinel://h1/s/x", "database");
    refused("q", "rediss://u:secret@h", "DELAYQ_TLS");
    refused("q", "unix://", "path");
    refused("q", "unix:///s?secret=1", "after ?");
    refused("q", "unix:///s?db=x", "database");
    CHECK_INT(delayq_open(&q, NULL), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_open(NULL, NULL), DELAYQ_ERR_ARG);
    o = options_for(&main_server, "q");
    o.batch = -1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = options_for(&main_server, "q");
    o.max_wait_ms = -1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = options_for(&main_server, "q");
    o.io_timeout_ms = -1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o = options_for(&main_server, "q");
}

TEST(bad_arguments_change_nothing) {
    delayq q;
    delayq_item item;
    delayq *one = &q;
    open_queue(&q, "jobs");
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, -1), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "negative");
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, INT64_MAX), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "2^53");
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 9007199254740991),
                 DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_offer(&q, NULL, 1, 0), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "NULL");
    CHECK_STATUS(&q, delayq_take(&q, NULL, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_take(&q, &item, -2), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_take(NULL, &item, 0), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_wait(NULL, 1, 0), DELAYQ_ERR_ARG);
    CHECK_INT(delayq_wait(&one, 0, 0), DELAYQ_ERR_ARG);
    CHECK_INT(ask_int("DBSIZE"), 0);
    /* A due time in the far future is accepted, and stored exactly. */
    OFFER(&q, "far", 9007199254740991 - 2000000000000);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK_TEXT(delayq_strstatus((delayq_status)99), "unknown status");
    delayq_close(&q);
    delayq_close(&q);
    delayq_close(NULL);
}

TEST(a_handle_is_not_used_after_fork) {
    delayq q;
    int status;
    pid_t pid;
    delayq_item none;
    open_queue(&q, "jobs"); /* the take subscribes; nothing is due */
    CHECK_STATUS(&q, delayq_take(&q, &none, 20), DELAYQ_EMPTY);
    pid = fork();
    if (pid == 0) {
        delayq_item item;
        CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_ARG);
        CHECK_HAS(delayq_errmsg(&q), "fork");
        delayq_wake(&q); /* must not wake the parent's take */
        /* a take with timeout 0 reads the socket once a millisecond at most */
        usleep(1000);
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, delayq_take(&q, &item, 9), DELAYQ_ERR_ARG);
        CHECK_STATUS(&q, delayq_tick(&q, NULL), DELAYQ_ERR_ARG);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    CHECK_INT(status, 0);
    OFFER(&q, "x", 0);
    /* DELAYQ_WOKEN would mean that the child has woken the parent */
    OK(&q, delayq_take(&q, &none, 20000));
    delayq_close(&q);
}

TEST(a_password_is_sent_and_never_shown) {
    static const char *const with[] = {"--requirepass", "se cret", NULL};
    server s;
    delayq q;
    delayq_options o;
    char url[256];
    server_start(&s, with);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = s.url;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    snprintf(url, sizeof url, "unix://:wrongsecret@%s", s.socket);
    o.url = url;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
    if (strstr(delayq_errmsg(&q), "secret")) FAIL("%s", delayq_errmsg(&q));
    delayq_close(&q);
    snprintf(url, sizeof url, "unix://%s:se%%20cret@%s?db=3",
             s.major < 6 ? "" : "default", s.socket); /* Redis 5 has no users */
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    take_is(&q, "x");
    delayq_close(&q);
    server_end(&s);
}

TEST(a_server_over_tcp_and_its_database_are_reached) {
    char port[16], url[64];
    const char *with[] = {"--port", port, "--bind", "127.0.0.1", NULL};
    server s;
    delayq q;
    delayq_options o;
    redisContext *c;
    redisReply *r;
    snprintf(port, sizeof port, "%d", free_port());
    server_start(&s, with);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = url;
    snprintf(url, sizeof url, "redis://localhost:%s/5", port);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    c = server_connect(&s);
    freeReplyObject(run(c, "SELECT 5"));
    r = run(c, "DBSIZE");
    CHECK_INT(r->integer, 1);
    freeReplyObject(r);
    redisFree(c);
    delayq_close(&q);
    snprintf(url, sizeof url, "redis://127.0.0.1:%s/99", port);
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_REDIS);
    CHECK_HAS(delayq_errmsg(&q), "DB index");
    delayq_close(&q);
    server_end(&s);
}

TEST(a_server_that_is_gone_is_reported_and_found_again_by_itself) {
    server s;
    delayq q;
    delayq_item item;
    long long since;
    int64_t wait;
    delayq_options o;
    server_start(&s, NULL);
    o = options_for(&s, "jobs");
    server_kill(&s, SIGKILL);
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), s.socket);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_IO);
    do CHECK_STATUS(&q, delayq_tick(&q, &wait), DELAYQ_ERR_IO);
    while (wait == 0); /* until the handle pauses before its next attempt */
    CHECK(wait > 0 && wait <= 5000);
    CHECK_STATUS(&q, delayq_take(&q, &item, 30), DELAYQ_ERR_IO);
    server_start_again(&s, NULL);
    since = now_us();
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    report_row("server killed and started again",
               "`ERR_IO`; a waiting take goes on", "those that it had saved",
               now_us() - since);
    elapse(main_connection(), 1);
    take_is(&q, "x");
    delayq_close(&q);
    server_end(&s);
}

TEST(a_key_of_the_wrong_type_is_an_error_and_changes_nothing) {
    static const char *const keys[] = {"jobs", ZSET, "delayq_dead:{jobs}",
                                       "delayq_retry:{jobs}",
                                       "redisson_delay_queue:{jobs}"};
    size_t i;
    for (i = 0; i < 5; i++) {
        delayq q;
        delayq_item item;
        int64_t wait = 0;
        char before[2048];
        delayq_status status;
        ask("FLUSHALL");
        open_wire(&q, "jobs", i == 4 ? DELAYQ_REDISSON : DELAYQ_NATIVE);
        if (i != 1) {
            OFFER(&q, "a", 0);
            ask("ZADD " ZSET " 5 poison");
        }
        ask("DEL %s", keys[i]);
        ask("SET %s string", keys[i]);
        elapse(main_connection(), 1);
        snprintf(before, sizeof before, "%s", contents(main_connection()));
        CHECK_STATUS(&q, delayq_tick(&q, &wait), DELAYQ_ERR_TYPE);
        CHECK_HAS(delayq_errmsg(&q), "wrong kind of value; a key of this");
        CHECK(wait > 0);
        CHECK_TEXT(contents(main_connection()), before);
        CHECK_STATUS(&q, delayq_take(&q, &item, DELAYQ_FOREVER),
                     DELAYQ_ERR_TYPE);
        CHECK_TEXT(contents(main_connection()), before);
        status = delayq_offer(&q, "b", 1, 0);
        CHECK_INT(status, i == 1 || i == 4 ? DELAYQ_ERR_TYPE : DELAYQ_OK);
        /* When the fault is removed, the handle works again. */
        ask("DEL %s", keys[i]);
        OFFER(&q, "c", 0);
        OK(&q, delayq_take(&q, &item, 20000));
        delayq_close(&q);
    }
}

TEST(a_full_server_refuses_offers_and_still_delivers) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        server s;
        redisContext *c;
        redisReply *r;
        delayq q;
        delayq_item item;
        int64_t wait = 0;
        delayq_options o;
        char before[2048];
        int i;
        server_start(&s, NULL);
        c = server_connect(&s);
        o = options_for(&s, "jobs");
        o.wire = wire;
        OK(&q, delayq_open(&q, &o));
        for (i = 0; i < 4; i++) OFFER(&q, "due", 20);
        freeReplyObject(run(c, "ZADD " ZSET " 7 poison"));
        freeReplyObject(run(c, "CONFIG SET maxmemory 1"));
        snprintf(before, sizeof before, "%s", contents(c));
        CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_FULL);
        CHECK_TEXT(contents(c), before);
        elapse(c, 21);
        OK(&q, delayq_take(&q, &item, 0));
        CHECK_INT(item.len, 3);
        OK(&q, delayq_tick(&q, &wait));
        OK(&q, delayq_tick(&q, &wait));
        r = run(c, "LLEN jobs");
        CHECK_INT(r->integer, 3);
        freeReplyObject(r);
        r = run(c, "LLEN delayq_dead:{jobs}");
        CHECK_INT(r->integer, 1);
        freeReplyObject(r);
        for (i = 0; i < 3; i++) OK(&q, delayq_take(&q, &item, 0));
        redisFree(c);
        delayq_close(&q);
        server_end(&s);
    }
}

/* --- servers that report no pushes ------------- */

static long evalsha_calls(void) {
    const char *at = strstr(ask("INFO commandstats"), "evalsha:calls=");
    return at ? atol(at + strlen("evalsha:calls=")) : 0;
}

static int lines_of_events;
static char last_event[300];
static void keep_event(void *unused, delayq_status status, const char *text) {
    (void)unused;
    if (status != DELAYQ_OK || !strstr(text, "polling")) return;
    lines_of_events++;
    snprintf(last_event, sizeof last_event, "%s", text);
}

static delayq_options options_of_a_deaf_one(void) {
    delayq_options o = options_with_rights(main_server.major < 7
                                               ? "~* +@all -client"
                                               : "~* +@all -client|tracking");
    o.max_wait_ms = 3600000;
    o.log = keep_event;
    lines_of_events = 0;
    return o;
}

struct polls {
    long count;
    long long since_us, took_us;
};

/* Push an item after `count` polls, and record how long these polls took. */
static void push_after_polls(void *argument) {
    struct polls *polls = (struct polls *)argument;
    UNTIL(evalsha_calls() >= polls->count);
    polls->took_us = now_us() - polls->since_us;
    ask("RPUSH jobs x");
}
static long long polls_take_us(delayq *q, long count) {
    struct polls *polls = (struct polls *)shared(sizeof *polls);
    delayq_item item;
    pid_t child;
    ask("CONFIG RESETSTAT");
    polls->count = count;
    polls->since_us = now_us();
    child = spawn(push_after_polls, polls);
    OK(q, delayq_take(q, &item, 40000 * test_slow()));
    join(child);
    return polls->took_us;
}

/* At most three of the six polls come early. The next three come 250, 750 and
 * 1,750 ms after the third. */
LONG_TEST(without_tracking_a_take_polls_more_and_more_rarely) {
    delayq q;
    delayq_item item;
    delayq_options o = options_of_a_deaf_one();
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    if (polls_take_us(&q, 6) < 1700000) FAIL("it polls too often");
    CHECK_INT(q.quiet_polls, 1); /* the push has reset the count */
    CHECK_INT(lines_of_events, 1);
    if (!strstr(last_event, "options.poll_ms") || !strstr(last_event, "NOPERM"))
        FAIL("the log says: %s", last_event);
    delayq_close(&q);
}

/* A connection logs the line once, and again only after tracking has worked. */
TEST(without_tracking_the_log_has_one_line_for_all_that_share) {
    delayq q, b;
    delayq_item item;
    delayq_options o, of_b;
    int i;
    if (main_server.major < 7) test_skip("rights to a part of CLIENT");
    o = options_of_a_deaf_one();
    OK(&q, delayq_open(&q, &o));
    memset(&of_b, 0, sizeof of_b);
    of_b.name = "others";
    of_b.share = &q;
    of_b.log = keep_event;
    OK(&b, delayq_open(&b, &of_b));
    for (i = 0; i < 3; i++) {
        CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
        CHECK_STATUS(&b, delayq_take(&b, &item, 20), DELAYQ_EMPTY);
        if (i == 1) ask("CLIENT KILL TYPE pubsub");
    }
    UNTIL((delayq_take(&q, &item, 1),
           q.subscribed && q.conn->tracking == DELAYQ_TRACK_OFF));
    CHECK_INT(lines_of_events, 1);
    ask("ACL SETUSER half +client");
    q.conn->track_retry_us = now_us();
    UNTIL((delayq_take(&q, &item, 1), q.list_tracked));
    ask("ACL SETUSER half -client");
    ask("CLIENT KILL TYPE normal SKIPME yes");
    UNTIL((delayq_take(&q, &item, 1), lines_of_events == 2));
    delayq_close(&b);
    delayq_close(&q);
}

static struct {
    int connected, scripts;
    char text[300]; /* the last line about a connection */
} news;
static void keep_news(void *unused, delayq_status status, const char *text) {
    (void)unused;
    if (status != DELAYQ_OK) return;
    news.scripts += strstr(text, "scripts") != NULL;
    if (strncmp(text, "connected to ", 13) != 0) return;
    news.connected++;
    snprintf(news.text, sizeof news.text, "%s", text);
}

/* The log reports the missing scripts and the server once, and then at most
 * every 10 s. At the end it reports the connection that lasts. */
LONG_TEST(the_log_names_the_server_once_in_a_storm_of_connections) {
    long long began = now_us(), killed = 0, back;
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    int i;
    o.log = keep_news;
    memset(&news, 0, sizeof news);
    ask("SCRIPT FLUSH");
    OK(&q, delayq_open(&q, &o));
    CHECK_INT(news.connected, 1);
    if (!strstr(news.text, o.url + strlen("unix://")) ||
        atol(strstr(news.text, " after ") + 7) > 20000)
        FAIL("said: %s", news.text);
    for (i = 0; i < 5; i++) {
        OFFER(&q, "x", 0);
        CHECK_INT(news.scripts, 1);
        ask("SCRIPT FLUSH");
    }
    for (i = 0; i < 20; i++) {
        killed = now_us();
        ask("CLIENT KILL TYPE normal SKIPME yes");
        UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    }
    back = now_us();
    CHECK(news.connected <= 1 + (now_us() - began) / 10000000);
    began = q.conn->known_told_us;
    UNTIL((delayq_offer(&q, "x", 1, 0), q.conn->known_told_us > began));
    CHECK(news.connected > 1);
    if (atol(strstr(news.text, " after ") + 7) > (back - killed) / 1000)
        FAIL("the report is late, and says: %s", news.text);
    delayq_close(&q);
}

static char eviction[300];
static int evictions;
static void keep_eviction(void *unused, delayq_status status,
                          const char *text) {
    (void)unused;
    if (status != DELAYQ_OK || !strstr(text, "evict")) return;
    evictions++;
    snprintf(eviction, sizeof eviction, "%s", text);
}
static const char *eviction_with(const char *limit, const char *policy) {
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    o.log = keep_eviction;
    evictions = 0;
    eviction[0] = '\0';
    ask("CONFIG SET maxmemory %s maxmemory-policy %s", limit, policy);
    OK(&q, delayq_open(&q, &o));
    ask("CLIENT KILL TYPE normal SKIPME yes");
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    CHECK_INT(evictions, eviction[0] != '\0'); /* logged only once */
    delayq_close(&q);
    return eviction;
}

TEST(the_log_names_a_policy_that_may_evict_what_a_queue_needs) {
    if (main_server.major < 7) test_skip("CONFIG SET of two parameters");
    CHECK(strstr(eviction_with("1gb", "allkeys-lru"),
                 "allkeys-lru, may evict whole queues"));
    CHECK(strstr(eviction_with("1gb", "volatile-ttl"),
                 "volatile-ttl, may evict the keys that prevent duplicates"));
    CHECK_TEXT(eviction_with("0", "allkeys-lru"), "");
    CHECK_TEXT(eviction_with("1gb", "noeviction"), "");
    ask("CONFIG SET maxmemory 0 maxmemory-policy noeviction");
}

static int no_connection;
static redisContext *refuse_for_a_while(void *unused, int timeout_ms) {
    (void)unused;
    (void)timeout_ms;
    return no_connection ? NULL : redisConnectUnix(main_server.socket);
}

TEST(the_log_says_how_long_the_server_was_away) {
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    const char *after;
    long long began;
    o.connect = refuse_for_a_while;
    o.log = keep_news;
    OK(&q, delayq_open(&q, &o));
    no_connection = 1;
    ask("CLIENT KILL TYPE normal SKIPME yes");
    began = now_us();
    UNTIL((delayq_offer(&q, "x", 1, 0), now_us() > began + 300000));
    no_connection = 0;
    q.conn->known_told_us = 1; /* as if the last report was long ago */
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    after = strstr(news.text, "connected to the connect hook after ");
    if (!after || atol(after + 36) < 290) FAIL("said: %s", news.text);
    delayq_close(&q);
}

TEST(poll_ms_is_the_time_between_two_polls_for_pushes) {
    delayq q;
    delayq_item item;
    delayq_options o = options_of_a_deaf_one();
    o.poll_ms = 700;
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    if (polls_take_us(&q, 6) < 1300000) FAIL("it polls too often");
    if (!strstr(last_event, "every 700 ms")) FAIL("%s", last_event);
    delayq_close(&q);
}

/* Offers of other handles are announced on the channel, without tracking. */
TEST(without_tracking_an_offer_of_another_handle_ends_a_take) {
    delayq q, other;
    delayq_item item;
    delayq_options o = options_of_a_deaf_one();
    int i;
    o.poll_ms = 3600000;
    OK(&q, delayq_open(&q, &o));
    open_queue(&other, "jobs");
    for (i = 0; i < 5; i++) {
        CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
        OFFER(&other, "x", i % 2 ? 300 : 0);
        OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    }
    delayq_close(&other);
    delayq_close(&q);
}

/* Two handles share a connection. The second one's request for tracking is
 * refused, which ends the tracking for both. */
TEST(a_right_to_track_that_is_taken_away_counts_for_all_that_share) {
    delayq q, b;
    delayq_item item;
    delayq_options o = options_with_rights("~* +@all");
    OK(&q, delayq_open(&q, &o));
    memset(&o, 0, sizeof o);
    o.name = "others";
    o.share = &q;
    OK(&b, delayq_open(&b, &o));
    UNTIL((delayq_take(&q, &item, 1), q.list_tracked));
    ask("ACL SETUSER half -client");
    UNTIL((delayq_take(&b, &item, 1), q.conn->tracking == DELAYQ_TRACK_OFF));
    CHECK_STATUS(&q, delayq_take(&q, &item, 1), DELAYQ_EMPTY);
    OFFER(&b, "x", 0);
    ask("RPUSH jobs y");
    OK(&q, delayq_take(&q, &item, 20000 * test_slow()));
    /* The handle asks for tracking again after a minute. */
    ask("ACL SETUSER half +client");
    CHECK(q.conn->track_retry_us > now_us() + 30000000);
    q.conn->track_retry_us = now_us();
    UNTIL((delayq_take(&q, &item, 1), q.list_tracked));
    delayq_close(&b);
    delayq_close(&q);
}

static int refusals, early_refusals;
static void keep_refusal(void *unused, delayq_status status, const char *text) {
    static long long last_us;
    (void)unused;
    (void)text;
    if (status != DELAYQ_ERR_AUTH) return;
    if (refusals++ > 0 && now_us() < last_us + 900000) early_refusals++;
    last_us = now_us();
}

/* Without a subscription nothing announces the offers of other handles. The log
 * must report the refusal once a second at most. */
TEST(a_tick_that_may_not_subscribe_any_more_polls) {
    delayq mover, q;
    delayq_options o;
    int64_t wait;
    refusals = early_refusals = 0;
    if (main_server.major < 7)
        test_skip("no rights on channels before Redis 7");
    open_queue(&q, "jobs");
    o = options_with_rights("~* +@all");
    o.max_wait_ms = 3600000;
    o.log = keep_refusal;
    OK(&mover, delayq_open(&mover, &o));
    UNTIL((delayq_tick(&mover, &wait), mover.subscribed));
    ask("ACL SETUSER half resetchannels"); /* closes the subscriber, too */
    UNTIL((delayq_tick(&mover, &wait), !mover.subscribed));
    OFFER(&q, "x", 0);
    UNTIL((delayq_tick(&mover, &wait),
           strcmp(ask("LINDEX jobs 0"), "(nil)") != 0));
    UNTIL((delayq_tick(&mover, &wait), refusals > 1));
    CHECK_INT(early_refusals, 0);
    delayq_close(&mover);
    delayq_close(&q);
}

/* A take must report the refusal even within the millisecond in which an idle
 * handle sends no request. */
TEST(a_take_that_is_refused_says_so_each_time) {
    delayq q;
    delayq_item item;
    delayq_options o = options_with_rights("~* +@all");
    int i;
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_take(&q, &item, 1), q.list_tracked));
    ask("ACL SETUSER half -zrange -zremrangebyrank");
    OFFER(&q, "x", 0);
    elapse(main_connection(), 1);
    for (i = 0; i < 20; i++)
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_AUTH);
    delayq_close(&q);
}

static int no_address(void *u, const char *host, char *address, size_t size) {
    (void)u, (void)host, (void)address, (void)size;
    return -1;
}

TEST(what_belongs_to_the_owner_of_a_connection_is_refused) {
    delayq_options o, own = options_for(&main_server, "jobs");
    delayq q, sharer;
    int i;
    OK(&q, delayq_open(&q, &own));
    for (i = 0; i < 7; i++) {
        memset(&o, 0, sizeof o);
        o.name = "others";
        o.share = &q;
        if (i == 1) o.url = own.url;
        if (i == 2) o.resolve = no_address;
        if (i == 3) o.connect_timeout_ms = 1;
        if (i == 4) o.io_timeout_ms = 1;
        if (i == 5) o.tls_ca = "ca";
        if (i == 6) o.tls_cert = o.tls_key = "cert";
        if (i == 0) {
            OK(&sharer, delayq_open(&sharer, &o));
            delayq_close(&sharer);
            continue;
        }
        CHECK_STATUS(&sharer, delayq_open(&sharer, &o), DELAYQ_ERR_ARG);
        CHECK_HAS(delayq_errmsg(&sharer), "share: no url");
    }
    delayq_close(&q);
}

static redisContext *hook(void *user, int timeout_ms) {
    CHECK(timeout_ms > 0);
    return redisConnectUnix((const char *)user);
}

TEST(a_connect_hook_supplies_the_sockets) {
    delayq q;
    delayq_item item;
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.connect = hook;
    o.user = main_server.socket;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 20);
    OK(&q, delayq_take(&q, &item, 20000));
    delayq_close(&q);
}

TEST(a_refusal_after_an_item_was_handed_out_loses_nothing) {
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHabcde\0\0", "good", 4);
    delayq q;
    delayq_item items[10];
    delayq_options o;
    size_t count;
    /* The dead letters' key has a wrong type, and an undecodable item follows a
     * good one. */
    open_queue(&q, "jobs");
    ask("SET delayq_dead:{jobs} string");
    ask("ZADD " ZSET " 1 %b", e, n);
    ask("ZADD " ZSET " 2 poison");
    OK(&q, delayq_take_many(&q, items, 10, &count, 0));
    CHECK_INT(count, 1);
    CHECK_STATUS(&q, delayq_take_many(&q, items, 10, &count, 0),
                 DELAYQ_ERR_TYPE);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
    if (main_server.major < 6) return;
    /* With a Redisson wire and no right to RPUSH, the second item stays. */
    ask("FLUSHALL");
    o = options_with_rights("~* +@all -rpush");
    ask("ZADD " ZSET " 1 %b", e, n);
    e[1] = 'Z';
    ask("ZADD " ZSET " 2 %b", e, n);
    o.wire = DELAYQ_REDISSON;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_take_many(&q, items, 1, &count, 0));
    CHECK_INT(count, 1);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_tick(&q, NULL), DELAYQ_ERR_AUTH);
    delayq_close(&q);
}

TEST(an_ack_counts_even_if_the_take_behind_it_is_refused) {
    delayq q;
    delayq_item item;
    delayq_options o = options_with_rights("~* +@all");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OFFER(&q, "y", 0);
    elapse(main_connection(), 1);
    ask("ACL SETUSER half -zadd");
    CHECK_STATUS(&q, delayq_ack_take(&q, &item, 0), DELAYQ_EMPTY);
    OK(&q, item.acked);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK_STATUS(&q, delayq_take(&q, &item, 1000), DELAYQ_ERR_AUTH);
    delayq_close(&q);
}

TEST(a_wake_while_the_server_is_gone_keeps_the_ack_for_later) {
    server s;
    delayq q;
    delayq_item item;
    delayq_options o;
    char ticket[64];
    server_start(&s, NULL);
    o = options_for(&s, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    snprintf(ticket, sizeof ticket, "%s", item.ticket.text);
    server_kill(&s, SIGKILL);
    delayq_wake(&q);
    CHECK(delayq_ack_take(&q, &item, DELAYQ_FOREVER) < 0);
    CHECK(item.acked < 0);
    CHECK_TEXT(item.ticket.text, ticket);
    CHECK_INT(item.attempt, 1);
    delayq_close(&q);
    server_end(&s);
}

TEST(an_outcome_stays_unknown_until_the_server_answers) {
    delayq q;
    delayq_message m;
    delayq_options o = options_with_rights("~* +@all");
    OK(&q, delayq_open(&q, &o));
    memset(&m, 0, sizeof m);
    m.data = "x";
    m.len = 1;
    m.delay_ms = 60000;
    OK(&q, delayq_offer_message(&q, &m));
    m.status = DELAYQ_ERR_UNKNOWN; /* as if the reply had been lost */
    ask("ACL SETUSER half -zscore");
    CHECK_STATUS(&q, delayq_offer_message(&q, &m), DELAYQ_ERR_AUTH);
    CHECK_INT(m.status, DELAYQ_ERR_UNKNOWN);
    ask("ACL SETUSER half +zscore");
    OK(&q, delayq_offer_message(&q, &m));
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

/* Open a handle while descriptors are left for the wake-up pipe, but not for
 * /dev/urandom, which is missing after a chroot, too. */
static delayq_status open_without_dev(delayq *q) {
    delayq_options o;
    delayq_status got;
    struct rlimit limit, few;
    int lowest = dup(0);
    CHECK(lowest >= 0 && close(lowest) == 0);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    CHECK_INT(getrlimit(RLIMIT_NOFILE, &limit), 0);
    few = limit;
    few.rlim_cur = (rlim_t)lowest + 2;
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &few), 0);
    got = delayq_open(q, &o);
    CHECK_INT(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (got != DELAYQ_ERR_ARG) delayq_close(q);
    CHECK_INT(dup(0), lowest); /* the handle's pipe is closed, too */
    close(lowest);
    return got;
}

TEST(an_open_after_a_chroot_needs_no_dev) {
    delayq q;
    CHECK_INT(open_without_dev(&q), DELAYQ_ERR_IO);
}

/* As the Linux of 2014 and older does. */
static void forbid_getrandom(void) {
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getrandom, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program;
    program.len = sizeof rules / sizeof rules[0];
    program.filter = rules;
    CHECK_INT(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        test_skip("this system has no seccomp");
}

/* If ids were made from the time and similar values, two identical boards would
 * make the same ids. */
TEST(an_open_where_there_are_no_random_bytes_is_refused) {
    delayq q;
    delayq_item item;
    forbid_getrandom();
    CHECK_INT(open_without_dev(&q), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "random");
    /* the handle is closed */
    CHECK_INT(delayq_take(&q, &item, 0), DELAYQ_ERR_ARG);
    open_queue(&q, "jobs"); /* /dev/urandom is enough */
    delayq_close(&q);
}
