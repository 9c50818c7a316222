/*
 * The rights of each role, taken from README.md below "## Rights". With them
 * everything works and the server refuses nothing; without any one of them
 * something fails.
 */
#include "test.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define RIGHTS 64

/* --- the README's lines -------------------------------------------------- */

struct rights {
    char *text; /* the text that the words point into */
    char *word[RIGHTS];
    int n, common; /* how many of them stand in the user's first line */
};

/* All lines of code below the heading "## Rights", as they are pasted. */
static char *pasted(void) {
    static char text[100000];
    char *from, *to, *line, *rest, *out;
    int code = 0;
    FILE *f = fopen("README.md", "r");
    size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
    if (!f) FAIL("no README.md: run the tests from the project's root");
    fclose(f);
    text[n] = '\0';
    from = strstr(text, "\n## Rights\n");
    to = from ? strstr(from + 1, "\n## ") : NULL;
    if (!to) FAIL("README.md has no part ## Rights, or nothing after it");
    *to = '\0';
    out = (char *)calloc(1, (size_t)(to - from) + 2);
    rest = from + 1;
    while ((line = strtok_r(rest, "\n", &rest))) {
        if (strncmp(line, "```", 3) == 0)
            code = !code;
        else if (code)
            strcat(strcat(out, line), "\n");
    }
    return out;
}

/* The words of all lines "ACL SETUSER user ...": the first line is for every
 * wire, the second is added beside Redisson. */
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
    if (r->n == 0) FAIL("README.md gives no rights to %s", user);
    if (lines == 1) r->common = r->n;
}

/* Create the user anew, with all of the words but one. */
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
static delayq q;    /* the one that is tested */
static char why[300];
static int strict; /* with all rights: what is awaited has to happen */

static void complain(const char *what, const char *text) {
    if (!why[0]) snprintf(why, sizeof why, "%s: %s", what, text);
}
static void on_fault(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)status;
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

/* Items of each kind, all due: a new one, a redelivered one, an undecodable
 * one. */
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

/* Have the subscriber pinged, as after a long silence, and the ping answered.
 * A message that arrives just then postpones the ping. */
static void ping_subscriber(void (*step)(void)) {
    while (!why[0] && q.conn->sub.c && q.conn->sub_pinged_us == 0) {
        q.conn->sub.moved_us -= 11000000;
        q.conn->sub_read_us = 0;
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
    m.status = DELAYQ_ERR_UNKNOWN; /* sent again, as after a lost answer */
    TRY(delayq_offer_message(&q, &m), DELAYQ_OK);
    TRY(delayq_offer(&q, "head", 4, 50000), DELAYQ_OK);
    TRY(delayq_reschedule(&q, &m.ticket, 40000), DELAYQ_OK);
    TRY(delayq_cancel(&q, &m.ticket), DELAYQ_OK);
    TRY(delayq_offer_message(&q, &key), DELAYQ_OK);
    key.replace = 1;
    TRY(delayq_offer_message(&q, &key), DELAYQ_OK);
}

static void move(void) {
    due_items();
    tick(); /* opens the subscriber */
    while (!why[0] && tick() == 0) {
    }
    OFFER(&boss, "soon", 30);
    while (strict && ask_int("LLEN jobs") < 4)
        TRY(delayq_tick(&q, NULL), DELAYQ_OK); /* until notified */
    ping_subscriber(tick_once);
    if (!q.subscribed) complain("not subscribed", "");
}

/* Take everything; ack it if it is leased. */
static void take_all(void) {
    delayq_item item;
    delayq_status status;
    while ((status = delayq_take(&q, &item, 0)) == DELAYQ_OK)
        if (q.options.lease_ms) TRY(delayq_ack(&q, &item), DELAYQ_OK);
    TRY(status, DELAYQ_EMPTY);
}

static int cannot_track(void) {
    return q.conn->sub.state >= DELAYQ_SOCKET_OPEN &&
           now_us() - q.conn->sub.begun_us > 100000LL * test_slow() &&
           q.conn->tracking == DELAYQ_TRACK_OFF;
}

static void be_notified(void) {
    delayq_item item;
    do TRY(delayq_take(&q, &item, 20), DELAYQ_EMPTY); /* subscribes, tracks */
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

/* The next take's item comes soon. */
static void take_soon(void) {
    delayq_item item;
    if (why[0]) return;
    OFFER(&boss, "soon", 60);
    TRY(delayq_take(&q, &item, DELAYQ_FOREVER), DELAYQ_OK);
    if (q.options.lease_ms && !why[0]) TRY(delayq_ack(&q, &item), DELAYQ_OK);
}

/* Tell q, if it sleeps, to act after the item is due. */
static void promote(void *unused) {
    redisContext *c = server_connect(&main_server);
    (void)unused;
    usleep(70000);
    freeReplyObject(run(c, "PUBLISH delayq_turn:{jobs}%s 1", q.id));
    redisFree(c);
}

/* Wait long: alone, where a dead waiter has left the set; as the leader, after
 * a dead one, and before another one; as one of many sleepers. */
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
    ask("PUBLISH delayq_waiters:{jobs} 1"); /* it is no longer alone */
    take_soon();
    q.handle_id[6] = q.handle_id[7] = 255;
    child = spawn(promote, NULL);
    take_soon();
    join(child);
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
    OFFER(&boss, "fresh", 0); /* straight from the set, with poison */
    ask("ZADD " ZSET " 7 poison");
    usleep(1500);
    q.next_poll_us = 0;
    take_all();
}

/* All requests of the tool's watch, peek, count and dead. */
static void watch(void) {
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
    TRY(delayq_bury(&q, &item), DELAYQ_OK);
    TRY(delayq_take_many(&q, some, 3, &n, 0), DELAYQ_OK);
    TRY(delayq_ack_many(&q, some, n), DELAYQ_OK);
}

/* --- with all of them, and without each ---------------------------------- */

/* All that the server has refused, also silently; except the EXISTS by which a
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
        if (strcasecmp(object, "exists") != 0 && !strstr(client, "cmd=exists"))
            complain("refused", object);
    }
    freeReplyObject(r);
}

/* NULL, or what failed. */
static const char *works(const struct rights *r, int but, delayq_wire wire,
                         void (*role)(void), int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    char url[200];
    int far;
    why[0] = '\0';
    strict = but < 0;
    ask("FLUSHALL");
    ask("ACL LOG RESET");
    set_rights(r, but);
    snprintf(url, sizeof url, "unix://tested:secret@%s", main_server.socket);
    open_wire(&boss, "jobs", wire);
    for (far = wire == DELAYQ_NATIVE ? 1 : 1100; far > 0; far--)
        OFFER(&boss, "far", 3600000); /* so many that the mirror is searched */
    o.url = url;
    o.wire = wire;
    o.lease_ms = lease_ms;
    o.log = on_fault;
    o.max_wait_ms = 1800000; /* so that polls find nothing */
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
    for (wire = DELAYQ_NATIVE; wire <= DELAYQ_REDISSON_OLD;
         wire = (delayq_wire)(wire + 1)) {
        struct rights r;
        const char *wrong;
        read_rights(user, &r);
        if (wire == DELAYQ_NATIVE) r.n = r.common;
        wrong = works(&r, -1, wire, role, lease_ms);
        if (!wrong) wrong = works(&r, r.n, wire, role, lease_ms);
        if (wrong) FAIL("%s, %s: %s", user, names[wire], wrong);
        /* beside Redisson, the words of the second line have to be needed */
        for (i = wire == DELAYQ_NATIVE ? 0 : r.common; i < r.n; i++)
            if (strchr("~&+", r.word[i][0]) &&
                !works(&r, i, wire, role, lease_ms))
                FAIL("%s, %s: all goes well without %s", user, names[wire],
                     r.word[i]);
        free(r.text);
    }
}

TEST(the_rights_of_a_producer_suffice_and_are_the_least) {
    least("producer", produce, 0);
}
TEST(the_rights_of_a_mover_suffice_and_are_the_least) {
    least("mover", move, 0);
}
TEST(the_rights_of_a_consumer_without_a_lease_suffice_and_are_the_least) {
    least("taker", take, 0);
}
TEST(the_rights_of_a_consumer_with_a_lease_suffice_and_are_the_least) {
    least("worker", work, 60000);
}
TEST(the_rights_of_a_watcher_suffice_and_are_the_least) {
    least("watcher", watch, 0);
}

/* Paste the lines as a reader does: one by one, in one session. */
static void paste(void) {
    char command[400], reply[400];
    char *lines = pasted(), *line, *rest = lines;
    int wanted = 0, got = 0;
    FILE *f;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    if (system("redis-cli --version >/dev/null 2>&1") != 0)
        test_skip("no redis-cli");
    snprintf(command, sizeof command, "%s/pasted", main_server.dir);
    f = fopen(command, "w");
    if (!f || fputs(lines, f) < 0 || fclose(f) != 0)
        FAIL("can't write %s", command);
    while ((line = strtok_r(rest, "\n", &rest))) wanted++;
    snprintf(command, sizeof command, "redis-cli -s %s <%s/pasted 2>&1",
             main_server.socket, main_server.dir);
    f = popen(command, "r");
    while (f && fgets(reply, sizeof reply, f)) {
        if (reply[0] == '\n') continue;
        if (strcmp(reply, "OK\n") != 0) FAIL("redis-cli answers: %s", reply);
        got++;
    }
    if (!f || pclose(f) != 0) FAIL("redis-cli failed");
    CHECK_INT(got, wanted);
    CHECK(wanted >= 5); /* a line for each role */
    free(lines);
}

static void open_role(const char *user, int64_t lease_ms) {
    static char url[200];
    delayq_options o = options_for(&main_server, "jobs");
    snprintf(url, sizeof url, "unix://%s:secret@%s", user, main_server.socket);
    o.url = url;
    o.lease_ms = lease_ms;
    OK(&q, delayq_open(&q, &o));
}

TEST(the_lines_of_the_readme_can_be_pasted_and_each_role_does_its_part) {
    delayq_counts counts;
    delayq_item item;
    paste();
    open_role("producer", 0);
    OFFER(&q, "one", 0);
    OFFER(&q, "two", 0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    open_role("mover", 0);
    UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK && ask_int("LLEN jobs") == 2);
    delayq_close(&q);
    open_role("watcher", 0);
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.ready, 2);
    delayq_close(&q);
    open_role("taker", 0);
    take_is(&q, "one");
    delayq_close(&q);
    open_role("worker", 60000);
    OK(&q, delayq_take(&q, &item, 0));
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&q);
    CHECK_INT(ask_int("EXISTS jobs " ZSET), 0);
}

TEST(a_watcher_moves_takes_and_changes_nothing) {
    delayq_item item;
    delayq_message m;
    char *before;
    size_t n;
    paste();
    open_queue(&boss, "jobs");
    memset(&m, 0, sizeof m);
    m.data = "later";
    m.len = 5;
    m.delay_ms = 3600000;
    OK(&boss, delayq_offer_many(&boss, &m, 1));
    due_items();
    ask("RPUSH delayq_dead:{jobs} %b", "buried 5\nx", (size_t)10);
    before = strdup(contents(main_connection()));
    open_role("watcher", 60000);
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
    REFUSED(delayq_dead_redrive(&q, 1, &n));
    REFUSED(delayq_dead_clear(&q, NULL));
    CHECK_TEXT(contents(main_connection()), before);
    free(before);
    delayq_close(&q);
    delayq_close(&boss);
}
