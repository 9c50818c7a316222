/*
 * Servers as providers run them (tests/hosted/profiles.h), and proxies that
 * close the connection at a command. `make hosted` runs many other tests on
 * each profile. The tests in this file also check which requests the proxy has
 * seen.
 */
#define _GNU_SOURCE
#define ATTEMPTS_US 1000000 /* as in a program; most tests set 1 us */
#include "hosted/hosted.h"
#include <sys/wait.h>

static server s;
static struct hosted *hosted;
static redisContext *real; /* a connection to the server itself */
static delayq q, other;
static delayq_item item;
static char memory[1 << 16];

static int lines, poll_lines, reasons;
static char last_line[300];
static void count_lines(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)status;
    lines++;
    reasons += strncmp(text, "connected to ", 13) != 0;
    if (strstr(text, "options.poll_ms")) poll_lines++;
    snprintf(last_line, sizeof last_line, "%s", text);
}

static void start(const char *profile) {
    const struct profile *p = hosted_profile(profile);
    const char *const *with = p->server[0] ? p->server : NULL;
    if (with && main_server.major < 7 && strstr(with[0], "debug"))
        with = NULL; /* no such option before Redis 7 */
    server_start(&s, with);
    real = server_connect(&s);
    hosted = hosted_behind(&s, p);
}

static void end(void) {
    redisFree(real);
    server_end(&s);
}

/* Run `body` for each argument, each in a process of its own, in parallel. */
static void in_parallel(void (*body)(void *), const void *const *arguments) {
    pid_t pids[64];
    int n = 0, i, failed = 0, status;
    fflush(stdout);
    for (; arguments[n]; n++) pids[n] = spawn(body, (void *)arguments[n]);
    for (i = 0; i < n; i++) {
        CHECK(waitpid(pids[i], &status, 0) == pids[i]);
        failed += status != 0;
    }
    if (failed > 0) FAIL("%d of %d failed", failed, n);
}

/* --- a connection that is closed at a command ---------------------------- */

/* The commands that a handle sends to a server, except SENTINEL. `needed` is 1
 * if the handle can't work without the command. */
static const struct command {
    const char *name;
    int needed;
} commands[] = {
    {"AUTH", 1},           {"SELECT", 1},      {"HELLO", 1},
    {"CLIENT SETNAME", 0}, {"CLIENT ID", 0},   {"EXISTS", 1},
    {"EVALSHA", 1},        {"SCRIPT LOAD", 1}, {"CLIENT TRACKING", 0},
    {"CLIENT CACHING", 0}, {"LLEN", 0},        {"SUBSCRIBE", 0},
    {"UNSUBSCRIBE", 0},    {"PING", 0},        {"INFO", 0}};
#define COMMANDS ((int)(sizeof commands / sizeof *commands))

static redisContext *hook(void *path, int timeout_ms) {
    (void)timeout_ms;
    return redisConnectUnix((const char *)path);
}

/* These servers are slow, and the tests run beside one another, so an open has
 * as much time as a request. */
static delayq_options patient(const char *name) {
    delayq_options o = options_for(&s, name);
    o.connect_timeout_ms = o.io_timeout_ms;
    return o;
}

static delayq_options options(const char *name, int box) {
    delayq_options o = patient(name);
    o.log = count_lines;
    o.max_wait_ms = 500;
    if (box) o.outbox = memory;
    if (box) o.outbox_size = sizeof memory;
    return o;
}

/* Act as if the subscriber had been silent for 11 s, so that the handle pings
 * it. */
static void be_quiet(delayq *h) {
    if (h->conn->sub.state < DELAYQ_SOCKET_OPEN) return;
    h->conn->sub.active_us -= 11000000;
    h->conn->idle_read_us = 0;
}

TEST(a_handle_sends_these_commands_and_no_others) {
    delayq_options o;
    delayq_item none;
    static char url[300]; /* static, because the handle keeps a pointer to it */
    int i, k;
    start("redis");
    freeReplyObject(run(real, "CONFIG SET requirepass secret"));
    snprintf(url, sizeof url, "unix://:secret@%s?db=1", s.url + 7);
    o = options("jobs", 0);
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    memset(&o, 0, sizeof o);
    o.name = "others";
    o.share = &q;
    OK(&other, delayq_open(&other, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    freeReplyObject(run(real, "SCRIPT FLUSH"));
    UNTIL((delayq_take(&q, &item, 20), q.list_tracked));
    be_quiet(&q);
    UNTIL((delayq_take(&q, &item, 20), q.conn->sub_pinged_us == 0));
    delayq_close(&other);
    delayq_close(&q);
    o = options("jobs", 0);
    o.connect = hook;
    o.user = s.url + 7;
    o.url = NULL;
    freeReplyObject(run(real, "CONFIG SET requirepass %s", ""));
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &none, 0), DELAYQ_EMPTY);
    delayq_close(&q);
    for (k = 0; hosted->names[k][0]; k++) {
        for (i = 0; i < COMMANDS; i++)
            if (strcmp(commands[i].name, hosted->names[k]) == 0) break;
        if (i == COMMANDS) FAIL("it sends %s, too", hosted->names[k]);
    }
    if (k != COMMANDS) FAIL("it sends %d commands, not %d", k, COMMANDS);
    end();
}

/* the proxy closes a connection at this command */
static const struct command *closing;
static const char *with;

/* Like UNTIL, except that a timeout calls complain() and returns. */
#define TRY(condition)                                        \
    do {                                                      \
        long long end_ = now_us() + 20000000LL * test_slow(); \
        while (!(condition) && now_us() < end_) usleep(1000); \
        if (now_us() >= end_) {                               \
            complain("never came true: %s: %s", #condition,   \
                     delayq_errmsg(&q));                      \
            return;                                           \
        }                                                     \
    } while (0)

static int complaints;
static void complain(const char *format, ...)
    __attribute__((format(printf, 1, 2)));
static void complain(const char *format, ...) {
    va_list args;
    complaints++;
    printf("    closed at %s, %s: ", closing->name, with);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
}

/* Make calls while the proxy closes the handle's connections at the command. */
static void works_without(int box) {
    delayq_message m = message("later", 600000);
    if (closing->needed) hosted->closes_at[0] = '\0';
    TRY(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    TRY(delayq_take(&q, &item, 100) == DELAYQ_OK);
    TRY(delayq_ack(&q, &item) == DELAYQ_OK);
    TRY(delayq_offer_message(&q, &m) == DELAYQ_OK);
    if (box) TRY(delayq_flush(&q, 1000) == DELAYQ_OK);
    TRY(delayq_cancel(&q, &m.ticket) == DELAYQ_OK);
    freeReplyObject(run(real, "RPUSH jobs pushed"));
    TRY(delayq_take(&q, &item, 100) == DELAYQ_OK);
    hosted->closes_at[0] = '\0';
    TRY(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    TRY(delayq_take(&q, &item, 100) == DELAYQ_OK);
}

/* Close both sockets of a handle that waits. The proxy closes all new sockets
 * at the command. */
static void close_all(int box) {
    delayq_options o = options("jobs", box);
    int at_login = strcmp(closing->name, "AUTH") == 0 ||
                   strcmp(closing->name, "SELECT") == 0;
    static char url[300]; /* static, because the handle keeps a pointer to it */
    o.lease_ms = 60000;
    if (at_login)
        snprintf(url, sizeof url, "unix://default:pw@%s?db=%d", s.url + 7,
                 closing->name[0] == 'S');
    if (at_login) o.url = url;
    if (strcmp(closing->name, "HELLO") == 0) {
        o.connect = hook;
        o.user = s.url + 7;
        o.url = NULL;
    }
    freeReplyObject(
        run(real, "SELECT %d", at_login && closing->name[0] == 'S'));
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_take(&q, &item, 20), q.list_tracked));
    if (strcmp(closing->name, "SCRIPT LOAD") == 0)
        freeReplyObject(run(real, "SCRIPT FLUSH"));
    strcpy(hosted->closes_at, closing->name);
    freeReplyObject(run(real, "CLIENT KILL TYPE pubsub"));
    freeReplyObject(run(real, "CLIENT KILL TYPE normal SKIPME yes"));
    hosted->connections = lines = reasons = 0;
}

static void closed_at(const void *command, int box) {
    enum { SECONDS = 5 };
    long long until;
    int connections, told, why;
    closing = (const struct command *)command;
    with = box ? "with an outbox" : "in a take";
    start("redis");
    freeReplyObject(run(real, "ACL SETUSER default on >pw nopass"));
    close_all(box);
    until = now_us() + SECONDS * 1000000LL;
    while (now_us() < until) {
        take_once(&q, box);
        if (strcmp(closing->name, "PING") == 0) be_quiet(&q);
    }
    connections = hosted->connections;
    told = lines, why = reasons;
    printf("    closed at %s, %s: %d connections, %d lines in %d s\n",
           closing->name, with, connections, told, SECONDS);
    fflush(stdout);
    works_without(box);
    delayq_close(&q);
    if (connections > 3 * (SECONDS + 1))
        complain("%d connections in %d s", connections, SECONDS);
    if (told > 2 * SECONDS) /* each status is logged once a second */
        complain("%d lines in %d s, the last one: %s", told, SECONDS,
                 last_line);
    if (connections > 2 && why == 0)
        complain("%d connections, and the log doesn't say why", connections);
    end();
    if (complaints > 0) FAIL("%d complaints", complaints);
}

static void close_at(void *command) {
    closed_at(command, 0);
}
static void close_at_with_box(void *command) {
    closed_at(command, 1);
}

static void each_command(void (*body)(void *)) {
    const void *all[COMMANDS + 1];
    int i;
    if (main_server.major < 6) test_skip("no tracking before Redis 6");
    for (i = 0; i < COMMANDS; i++) all[i] = &commands[i];
    all[i] = NULL;
    in_parallel(body, all);
}

LONG_TEST(a_connection_that_is_closed_at_any_command_is_made_rarely) {
    each_command(close_at);
}
LONG_TEST(an_outbox_whose_connection_is_closed_at_any_command_connects_rarely) {
    each_command(close_at_with_box);
}

/* --- what a waiting handle costs ----------------------------------------- */

#define IDLE_S 12 /* a waiting handle's requests are counted for this time */

static struct taken {
    volatile int opened, count;
    volatile int64_t us; /* when the last item came */
} * taken;

static void wait_for_ever(void *unused) {
    delayq_options o = patient("jobs");
    (void)unused;
    OK(&q, delayq_open(&q, &o));
    taken->opened = 1;
    for (;;) {
        UNTIL(delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK);
        taken->us = now_us();
        taken->count++;
    }
}

/* Returns the number of requests per hour that a handle sends while it waits on
 * an empty queue. The first 6 s are not counted. */
static int idle_cost(void) {
    enum { FIRST = 6 };
    int before;
    UNTIL(taken->opened);
    sleep(FIRST);
    before = hosted->commands;
    sleep(IDLE_S);
    return (hosted->commands - before) * (3600 / IDLE_S);
}

/* Returns the lateness, in ms, of an item that a handle gets after a long wait.
 * Another handle offers the item or, if `pushed`, a program pushes it. */
static int late_ms(int pushed) {
    int count = taken->count;
    long long due = now_us();
    if (pushed) {
        freeReplyObject(run(real, "RPUSH jobs pushed"));
    } else {
        delayq_options o = patient("jobs");
        OK(&other, delayq_open(&other, &o));
        due = now_us() + 200000;
        OFFER(&other, "offered", 200);
        delayq_close(&other);
    }
    UNTIL(taken->count > count);
    return (int)((taken->us - due) / 1000);
}

static int tracks(const struct profile *p) {
    const struct refusal *r;
    for (r = p->refused; r->command; r++)
        if (strncmp("CLIENT TRACKING", r->command, strlen(r->command)) == 0)
            return 0;
    return 1;
}

/* requests an hour that 0.2 sent without tracking */
#define POLLED_BEFORE 14400

static void wait_on(void *profile) {
    const struct profile *p = (const struct profile *)profile;
    const char *path = getenv("DELAYQ_TEST_ROWS");
    FILE *rows = path ? fopen(path, "a") : NULL;
    int cost, most = POLLED_BEFORE / 10, offered, pushed;
    pid_t pid;
    /* allow for the uploads of scripts that the server forgets */
    if (p->forgets > 0) most += 2 * most / p->forgets;
    start(p->name);
    taken = (struct taken *)shared(sizeof *taken);
    pid = spawn(wait_for_ever, NULL);
    cost = idle_cost();
    offered = late_ms(0);
    sleep(7);
    pushed = late_ms(1);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    if (rows)
        fprintf(rows, "    %-24s %6d %8d %8d\n", p->name, cost, offered,
                pushed);
    if (rows) fclose(rows);
    printf("    %s: %d requests an hour; an offer is %d ms late, a push %d\n",
           p->name, cost, offered, pushed);
    fflush(stdout);
    if (cost == 0) FAIL("%s: it sends nothing", p->name);
    /* By chance, one request more may fall into the measured time. */
    most += 3600 / IDLE_S;
    if (cost > most)
        FAIL("%s: %d requests an hour of a handle that waits, not %d", p->name,
             cost, most);
    end();
}

LONG_TEST(a_handle_that_waits_costs_little_on_hosted_servers) {
    const void *all[PROFILES + 1];
    int n = 0, i;
    for (i = 0; i < PROFILES; i++)
        if (!profiles[i].advice) all[n++] = &profiles[i];
    all[n] = NULL;
    in_parallel(wait_on, all);
}

/* --- the log and the error texts ----------------------------------------- */

static void told_of(void *profile) {
    const struct profile *p = (const struct profile *)profile;
    delayq_options o;
    int refused = !tracks(p);
    start(p->name);
    o = patient("jobs");
    o.log = count_lines;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    delayq_take(&q, &item, 3000);
    if (poll_lines != refused)
        FAIL("%s: %d of %d lines tell of polls, the last one: %s", p->name,
             poll_lines, lines, last_line);
    delayq_close(&q);
    end();
}

TEST(a_log_tells_once_that_pushes_cant_be_heard) {
    const void *all[PROFILES + 1];
    int n = 0, i;
    for (i = 0; i < PROFILES; i++)
        if (!profiles[i].advice) all[n++] = &profiles[i];
    all[n] = NULL;
    in_parallel(told_of, all);
}

static void advised(void *profile) {
    const struct profile *p = (const struct profile *)profile;
    delayq_options o;
    delayq_status status;
    start(p->name);
    freeReplyObject(run(real, "SCRIPT FLUSH"));
    o = patient("jobs");
    status = delayq_open(&q, &o);
    if (status == DELAYQ_OK) status = delayq_offer(&q, "x", 1, 0);
    if (status != DELAYQ_ERR_REDIS && status != DELAYQ_ERR_AUTH)
        FAIL("%s: %d: %s", p->name, status, delayq_errmsg(&q));
    CHECK_HAS(delayq_errmsg(&q), p->advice);
    end();
}

TEST(the_error_of_a_server_that_refuses_scripts_names_what_helps) {
    const void *all[PROFILES + 1];
    int n = 0, i;
    for (i = 0; i < PROFILES; i++)
        if (profiles[i].advice) all[n++] = &profiles[i];
    all[n] = NULL;
    in_parallel(advised, all);
}
