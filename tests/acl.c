/*
 * The rights of each role: those in examples/server/users.acl and, for queues
 * that Redisson shares, also those below "## Rights" in that folder's README.
 * With all its rights a role works, and the server refuses nothing. If any one
 * of the rights is missing, something fails.
 */
#include "test.h"
#include <sys/wait.h>
#include <limits.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define RIGHTS 64
#define FOLDER "examples/server/"

/* --- the lines that an operator copies ----------------------------------- */

struct rights {
    char *text; /* the text that the words point into */
    char *word[RIGHTS];
    int n, common; /* n words; the first `common` are on the first line */
};

static char *whole(const char *path) {
    enum { MOST = 100000 };
    char *text = (char *)calloc(1, MOST);
    FILE *f = fopen(path, "r");
    if (!f || fread(text, 1, MOST - 1, f) == 0)
        FAIL("can't read %s: run the tests from the project's root", path);
    fclose(f);
    return text;
}

/* Returns the ACL SETUSER commands for the roles of users.acl, then those of
 * the README's section. */
static char *pasted(void) {
    char *acl = whole(FOLDER "users.acl"), *text = whole(FOLDER "README.md");
    char *out = (char *)calloc(2, strlen(acl) + strlen(text));
    char *line, *rest = acl, *from, *to;
    while ((line = strtok_r(rest, "\n", &rest)))
        if (strncmp(line, "user default ", 13) != 0)
            strcat(strcat(strcat(out, "ACL SETUSER "), line + 5), "\n");
    from = strstr(text, "\n## Rights\n");
    to = from ? strstr(from + 1, "\n## ") : NULL;
    if (!to) FAIL(FOLDER "README.md has no part ## Rights, or nothing after");
    *to = '\0';
    while ((line = strtok_r(from, "\n", &from)))
        if (strncmp(line, "ACL SETUSER ", 12) == 0)
            strcat(strcat(out, line), "\n");
    free(acl);
    free(text);
    return out;
}

/* Read the words of all lines "ACL SETUSER user ...". The first line is for
 * every wire, the second one only for queues that Redisson shares. */
static void read_rights(const char *user, struct rights *r) {
    char *word, *line, *rest, *after;
    int lines = 0;
    memset(r, 0, sizeof *r);
    r->text = rest = pasted();
    while ((line = strtok_r(rest, "\n", &rest))) {
        if (strncmp(line, "ACL SETUSER ", 12) != 0) continue;
        word = strtok_r(line + 12, " ", &after);
        if (strcmp(word, user) != 0) continue;
        r->common = r->n;
        lines++;
        while ((word = strtok_r(NULL, " ", &after)) && r->n < RIGHTS)
            r->word[r->n++] = word;
    }
    if (r->n == 0) FAIL("no rights are given to %s", user);
    if (lines == 1) r->common = r->n;
}

/* Create the user "tested" again, with all words except number `but`. */
static void set_rights(const struct rights *r, int but) {
    const char *argv[RIGHTS + 4] = {"ACL", "SETUSER", "tested", "reset"};
    redisReply *reply;
    int n = 4, i;
    for (i = 0; i < r->n; i++)
        if (i != but) argv[n++] = r->word[i];
    reply = (redisReply *)redisCommandArgv(main_connection(), n, argv, NULL);
    if (!reply || reply->type == REDIS_REPLY_ERROR)
        FAIL("ACL SETUSER: %s", reply ? reply->str : "no answer");
    freeReplyObject(reply);
}

/* --- what a role does ---------------------------------------------------- */

static delayq boss; /* may do everything */
static delayq q;    /* the handle that is tested */
static char why[300];
/* 1: the user has all rights, so every expected effect must happen */
static int strict;

static void complain(const char *what, const char *text) {
    if (!why[0]) snprintf(why, sizeof why, "%s: %s", what, text);
}
static void on_fault(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status == DELAYQ_OK) return; /* an event, not a fault */
    complain("told to the log", text);
}
#define TRY(call, want) \
    ((call) == (want) ? (void)0 : complain(#call, delayq_errmsg(&q)))

static int64_t tick(void) {
    int64_t wait;
    q.next_poll_us = 0;
    TRY(delayq_tick(&q, &wait), DELAYQ_OK);
    return wait;
}

static void tick_once(void) {
    tick();
}

/* Create due items of each kind: new, redelivered, undecodable, and one that
 * another program has pushed to the ready list. */
static void due_items(void) {
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\2", "again", 5);
    OFFER(&boss, "fresh", 0);
    OFFER(&boss, "fresh", 0);
    if (boss.options.wire == DELAYQ_NATIVE) ask("ZADD " ZSET " 5 %b", e, n);
    ask("ZADD " ZSET " 7 poison -7 below");
    if (boss.options.wire == DELAYQ_NATIVE)
        ask("RPUSH delayq_retry:{jobs} %b", e, n);
    ask("RPUSH jobs bare");
    usleep(1500);
}

/* Make the handle ping its subscriber, as after a long silence, and wait for
 * the answer. A message that arrives just then postpones the ping. */
static void ping_subscriber(void (*step)(void)) {
    UNTIL((step(), why[0] || !q.conn->sub.c ||
                       (q.conn->sub.state >= DELAYQ_SOCKET_OPEN &&
                        q.conn->sub_pending == 0)));
    while (!why[0] && q.conn->sub.c && q.conn->sub_pinged_us == 0) {
        q.conn->sub.active_us -= 11000000;
        q.conn->idle_read_us = 0;
        step();
    }
    UNTIL((step(), why[0] || !q.conn->sub.c || q.conn->sub_pinged_us == 0));
}

static void produce(void) {
    delayq_message m, key;
    memset(&m, 0, sizeof m);
    m.data = "x";
    m.len = 1;
    m.delay_ms = 60000;
    key = m;
    key.key = "k";
    key.key_ttl_ms = 60000;
    TRY(delayq_offer_message(&q, &m), DELAYQ_OK);
    m.status = DELAYQ_ERR_UNKNOWN; /* offered again, as after a lost reply */
    TRY(delayq_offer_message(&q, &m), DELAYQ_OK);
    TRY(delayq_offer(&q, "head", 4, 50000), DELAYQ_OK);
    TRY(delayq_reschedule(&q, &m.ticket, 40000), DELAYQ_OK);
    TRY(delayq_cancel(&q, &m.ticket), DELAYQ_OK);
    TRY(delayq_offer_message(&q, &key), DELAYQ_OK);
    key.replace = 1;
    TRY(delayq_offer_message(&q, &key), DELAYQ_OK);
    TRY(delayq_cancel_key(&q, "k"), DELAYQ_OK);
}

static void move(void) {
    due_items();
    tick(); /* opens the subscriber */
    while (!why[0] && tick() == 0) {
    }
    OFFER(&boss, "soon", 30);
    /* the subscriber reads the notification */
    while (strict && ask_int("LLEN jobs") < 4)
        TRY(delayq_tick(&q, NULL), DELAYQ_OK);
    ping_subscriber(tick_once);
    if (boss.options.wire == DELAYQ_NATIVE) {
        q.options.max_late_ms = 60000;
        due_items();
        tick();
        q.options.max_late_ms = 0;
    }
    if (!q.subscribed) complain("not subscribed", "");
}

/* Take all items, and ack them if they are leased. */
static void take_all(void) {
    delayq_item item;
    delayq_status status;
    while ((status = delayq_take(&q, &item, 0)) == DELAYQ_OK)
        if (q.options.lease_ms) TRY(delayq_ack(&q, &item), DELAYQ_OK);
    TRY(status, DELAYQ_EMPTY);
}

/* Returns 1 if the server has answered all requests of the subscriber, and has
 * refused to report pushes. */
static int cannot_track(void) {
    return q.conn->sub.state >= DELAYQ_SOCKET_OPEN &&
           q.conn->sub_pending == 0 &&
           q.conn->tracking == DELAYQ_TRACK_OFF;
}

static void be_notified(void) {
    delayq_item item;
    do TRY(delayq_take(&q, &item, 20), DELAYQ_EMPTY); /* the take subscribes */
    while (!why[0] && !q.list_tracked && !cannot_track());
    if (!q.list_tracked || !q.subscribed)
        complain("not subscribed", delayq_errmsg(&q));
    if (!strict || why[0]) return;
    ask("RPUSH jobs pushed");
    UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    OFFER(&boss, "soon", 30);
    UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
}

static void take_none(void) {
    delayq_item item;
    TRY(delayq_take(&q, &item, 0), DELAYQ_EMPTY);
}

/* Offer an item that becomes due during the next take. */
static void take_soon(void) {
    delayq_item item;
    if (why[0]) return;
    OFFER(&boss, "soon", 60);
    TRY(delayq_take(&q, &item, DELAYQ_FOREVER), DELAYQ_OK);
    if (q.options.lease_ms && !why[0]) TRY(delayq_ack(&q, &item), DELAYQ_OK);
}

/* Tell q to lead, every 70 ms, since q may not be a sleeper yet. The item of
 * take_soon() is due before the first message. */
static void promote(void *unused) {
    redisContext *c = server_connect(&main_server);
    (void)unused;
    for (;;) {
        usleep(70000);
        freeReplyObject(run(c, "PUBLISH delayq_turn:{jobs}%s 1", q.id));
    }
}

/* Run three takes. In the first, q waits alone, with a dead handle in the set.
 * In the second, q leads, between a dead handle and the next one. In the third,
 * q is one of many sleepers. */
static void wait_among_others(void) {
    enum { OTHERS = 17 };
    redisContext *others[OTHERS];
    pid_t child;
    int i;
    ask("ZADD delayq_waiters:{jobs} 1 :gone");
    take_soon();
    for (i = 0; i < OTHERS; i++) {
        others[i] = server_connect(&main_server);
        freeReplyObject(run(others[i], "SUBSCRIBE delayq_waiters:{jobs}"));
        ask("ZADD delayq_waiters:{jobs} 1 :other%d", i);
    }
    freeReplyObject(run(others[0], "SUBSCRIBE delayq_turn:{jobs}:other0"));
    ask("ZADD delayq_waiters:{jobs} 3e14 :gone");
    ask("PUBLISH delayq_waiters:{jobs} 1"); /* q no longer waits alone */
    take_soon();
    q.handle_id[6] = q.handle_id[7] = 255;
    child = spawn(promote, NULL);
    take_soon();
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (i = 0; i < OTHERS; i++) redisFree(others[i]);
    ask("DEL delayq_waiters:{jobs}");
}

static void take(void) {
    be_notified();
    wait_among_others();
    ping_subscriber(take_none);
    due_items();
    q.next_poll_us = 0;
    take_all();
    /* this take gets items straight from the set, one of them undecodable */
    OFFER(&boss, "fresh", 0);
    ask("ZADD " ZSET " 7 poison");
    usleep(1500);
    q.next_poll_us = 0;
    take_all();
    if (boss.options.wire != DELAYQ_NATIVE) return;
    /* as if q had been opened with this option */
    q.options.max_late_ms = 60000;
    due_items(); /* the item "again" is late */
    q.next_poll_us = 0;
    take_all();
    due_items();
    tick();
    take_all();
    q.options.max_late_ms = 0;
}

/* Send all requests of the tool's watch, peek, count, dead and list. */
static void watch(void) {
    redisContext *c;
    redisReply *r;
    delayq_counts counts;
    delayq_item some[3];
    delayq_dead letters[3];
    int64_t due[2] = {1000, 4000000000000}, up_to[2];
    size_t n;
    due_items();
    ask("RPUSH delayq_dead:{jobs} '' 'buried 5\nx'");
    TRY(delayq_count(&q, &counts), DELAYQ_OK);
    TRY(delayq_count_due(&q, due, 2, up_to), DELAYQ_OK);
    TRY(delayq_peek(&q, some, 3, &n, NULL), DELAYQ_OK);
    if (why[0]) return;
    TRY(delayq_peek(&q, some, 3, &n, &some[0].ticket), DELAYQ_OK);
    TRY(delayq_dead_peek(&q, letters, 3, &n, 0), DELAYQ_OK);
    c = server_connect(&main_server);
    freeReplyObject(run(c, "AUTH tested secret"));
    r = run(c, "SCAN 0");
    if (r->type == REDIS_REPLY_ERROR) complain("SCAN", r->str);
    freeReplyObject(r);
    redisFree(c);
}

static void work(void) {
    delayq_item item, some[3];
    size_t n;
    int i;
    take();
    for (i = 0; i < 6; i++) OFFER(&boss, "w", 0);
    usleep(1500);
    q.next_poll_us = 0;
    memset(&item, 0, sizeof item);
    TRY(delayq_take(&q, &item, 0), DELAYQ_OK);
    if (why[0]) return;
    TRY(delayq_ack_take(&q, &item, 0), DELAYQ_OK);
    TRY(delayq_extend(&q, &item, 70000), DELAYQ_OK);
    TRY(delayq_nack(&q, &item, 50000), DELAYQ_OK);
    TRY(delayq_take(&q, &item, 0), DELAYQ_OK);
    TRY(delayq_nack(&q, &item, DELAYQ_RELEASE), DELAYQ_OK);
    TRY(delayq_take(&q, &item, 1000), DELAYQ_OK);
    TRY(delayq_bury(&q, &item, NULL), DELAYQ_OK);
    TRY(delayq_take_many(&q, some, 3, &n, 0), DELAYQ_OK);
    TRY(delayq_ack_many(&q, some, n), DELAYQ_OK);
}

static void pause_queue(void) {
    redisContext *other = server_connect(&main_server);
    freeReplyObject(run(other, "SUBSCRIBE delayq_waiters:{jobs} "
                               "redisson_delay_queue_channel:{jobs}"));
    TRY(delayq_pause(&q, 1), DELAYQ_OK);
    TRY(delayq_pause(&q, 0), DELAYQ_OK);
    redisFree(other);
}

/* --- with all rights, and without each one ------------------------------- */

/* Complain about each command that the server has refused, even if the handle
 * has not reported it. The exceptions are INFO, and the EXISTS with which a
 * connection checks the slot in a cluster. */
static void check_log(void) {
    redisReply *r = run(main_connection(), "ACL LOG");
    size_t i, k;
    for (i = 0; i < r->elements; i++) {
        const redisReply *e = r->element[i];
        const char *object = "", *client = "";
        for (k = 0; k + 1 < e->elements; k += 2) {
            if (strcmp(e->element[k]->str, "object") == 0)
                object = e->element[k + 1]->str;
            if (strcmp(e->element[k]->str, "client-info") == 0)
                client = e->element[k + 1]->str;
        }
        /* a role may lack the right to INFO */
        if (strcasecmp(object, "info") == 0) continue;
        if (strcasecmp(object, "exists") != 0 && !strstr(client, "cmd=exists"))
            complain("refused", object);
    }
    freeReplyObject(r);
}

/* Run a role without right number `but`, or with all rights if there is no such
 * right. Returns NULL, or the failure. */
static const char *works(const struct rights *r, int but, delayq_wire wire,
                         void (*role)(void), int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    char url[200];
    int far;
    why[0] = '\0';
    strict = but < 0;
    ask("FLUSHALL");
    if (but < 0 || but == r->n || strstr(r->word[but], "script"))
        ask("SCRIPT FLUSH"); /* the role uploads its own scripts */
    ask("ACL LOG RESET");
    set_rights(r, but);
    snprintf(url, sizeof url, "unix://tested:secret@%s", main_server.socket);
    open_wire(&boss, "jobs", wire);
    /* a mirror is searched only if it has more than 1,000 elements */
    for (far = wire == DELAYQ_NATIVE ? 1 : 1100; far > 0; far--)
        OFFER(&boss, "far", 3600000);
    o.url = url;
    o.wire = wire;
    o.lease_ms = lease_ms;
    o.log = on_fault;
    o.max_wait_ms = 1800000; /* only messages find items */
    o.counters = 1;          /* only this needs +hincrby */
    TRY(delayq_open(&q, &o), DELAYQ_OK);
    if (!why[0]) role();
    check_log();
    delayq_close(&q);
    delayq_close(&boss);
    return why[0] ? why : NULL;
}

static void least(const char *user, void (*role)(void), int64_t lease_ms) {
    static const char *const names[] = {"native", "redisson", "redisson_old"};
    delayq_wire wire;
    int i;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    EACH_WIRE(wire, 0, 2) {
        struct rights r;
        const char *wrong;
        read_rights(user, &r);
        if (wire == DELAYQ_NATIVE) r.n = r.common;
        wrong = works(&r, -1, wire, role, lease_ms);
        if (!wrong) wrong = works(&r, r.n, wire, role, lease_ms);
        if (wrong) FAIL("%s, %s: %s", user, names[WIRE_NUMBER(wire)], wrong);
        /* with a Redisson wire, test only the words of the second line */
        for (i = wire == DELAYQ_NATIVE ? 0 : r.common; i < r.n; i++)
            if (strchr("~&+", r.word[i][0]) &&
                !works(&r, i, wire, role, lease_ms))
                FAIL("%s, %s: all goes well without %s", user,
                     names[WIRE_NUMBER(wire)], r.word[i]);
        free(r.text);
    }
}

TEST(the_rights_of_a_producer_suffice_and_are_the_least) {
    least("producer", produce, 0);
}
TEST(the_rights_of_a_mover_suffice_and_are_the_least) {
    least("mover", move, 0);
}
LONG_TEST(the_rights_of_a_consumer_without_a_lease_suffice_and_are_the_least) {
    least("taker", take, 0);
}
LONG_TEST(the_rights_of_a_consumer_with_a_lease_suffice_and_are_the_least) {
    least("worker", work, 60000);
}
TEST(the_rights_of_a_watcher_suffice_and_are_the_least) {
    least("watcher", watch, 0);
}
TEST(the_rights_of_a_pauser_suffice_and_are_the_least) {
    least("pauser", pause_queue, 0);
}

/* a server whose users are those of users.acl, and no others */
static server guarded;
static redisContext *admin; /* may do everything on that server */

/* Run one command on a connection, and check its reply. */
static void says(redisContext *c, const char *command, const char *answer) {
    redisReply *r = run(c, command);
    CHECK_HAS(r->str ? r->str : "", answer);
    freeReplyObject(r);
}

/* Start `guarded`, and run the README's lines for a queue that Redisson
 * shares. */
static void start_guarded(void) {
    char path[PATH_MAX], *lines = pasted(), *line, *rest = lines;
    const char *arguments[] = {"--aclfile", path, NULL};
    int n = 0;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    if (!realpath(FOLDER "users.acl", path)) FAIL("no " FOLDER "users.acl");
    server_start(&guarded, arguments);
    admin = server_connect(&guarded);
    says(admin, "PING", "NOAUTH");
    says(admin, "AUTH admin secret", "OK");
    while ((line = strtok_r(rest, "\n", &rest))) {
        if (strchr(line, '~')) continue; /* lines of users.acl */
        says(admin, line, "OK");
        n++;
    }
    CHECK_INT(n, 4);
    free(lines);
}

static void open_role(const char *user, int64_t lease_ms, delayq_wire wire) {
    static char url[200];
    delayq_options o = options_for(&guarded, "jobs");
    snprintf(url, sizeof url, "unix://%s:secret@%s", user, guarded.socket);
    o.url = url;
    o.lease_ms = lease_ms;
    o.wire = wire;
    OK(&q, delayq_open(&q, &o));
}

static long long admin_int(const char *command) {
    redisReply *r = run(admin, command);
    long long value = r->integer;
    if (r->type != REDIS_REPLY_INTEGER) FAIL("%s: %s", command, r->str);
    freeReplyObject(r);
    return value;
}

static void all_roles(delayq_wire wire) {
    delayq_counts counts;
    delayq_item item;
    open_role("producer", 0, wire);
    OFFER(&q, "one", 0);
    OFFER(&q, "two", 0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    open_role("mover", 0, wire);
    UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK && admin_int("LLEN jobs") == 2);
    delayq_close(&q);
    open_role("watcher", 0, wire);
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.ready, 2);
    delayq_close(&q);
    open_role("taker", 0, wire);
    take_is(&q, "one");
    delayq_close(&q);
    open_role("worker", 60000, wire);
    OK(&q, delayq_take(&q, &item, 0));
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&q);
    CHECK_INT(admin_int("EXISTS jobs " ZSET), 0);
}

TEST(with_the_acl_file_of_the_examples_each_role_does_its_part_and_no_other) {
    start_guarded();
    all_roles(DELAYQ_NATIVE);
    all_roles(DELAYQ_REDISSON);
    redisFree(admin);
    server_end(&guarded);
}

TEST(a_watcher_moves_takes_and_changes_nothing) {
    delayq_item item;
    delayq_message m;
    struct rights r;
    char *before, url[200];
    delayq_options o;
    size_t n;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    read_rights("watcher", &r); /* including those for Redisson */
    set_rights(&r, -1);
    free(r.text);
    open_queue(&boss, "jobs");
    memset(&m, 0, sizeof m);
    m.data = "later";
    m.len = 5;
    m.delay_ms = 3600000;
    OK(&boss, delayq_offer_many(&boss, &m, 1));
    due_items();
    ask("RPUSH delayq_dead:{jobs} %b", "buried 5\nx", (size_t)10);
    before = strdup(contents(main_connection()));
    o = options_for(&main_server, "jobs");
    snprintf(url, sizeof url, "unix://tested:secret@%s", main_server.socket);
    o.url = url;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
#define REFUSED(call) CHECK_STATUS(&q, call, DELAYQ_ERR_AUTH)
    REFUSED(delayq_take(&q, &item, 0));
    CHECK_TEXT(contents(main_connection()), before);
    do q.next_poll_us = 0;
    while (delayq_tick(&q, NULL) == DELAYQ_OK); /* opens the subscriber */
    q.next_poll_us = 0;
    REFUSED(delayq_tick(&q, NULL));
    REFUSED(delayq_offer(&q, "x", 1, 0));
    REFUSED(delayq_cancel(&q, &m.ticket));
    REFUSED(delayq_reschedule(&q, &m.ticket, 5));
    REFUSED(delayq_clear(&q, NULL));
    REFUSED(delayq_pause(&q, 1));
    REFUSED(delayq_pause(&q, 0));
    REFUSED(delayq_dead_redrive(&q, 1, &n));
    REFUSED(delayq_dead_clear(&q, NULL));
    CHECK_TEXT(contents(main_connection()), before);
    free(before);
    delayq_close(&q);
    delayq_close(&boss);
}
