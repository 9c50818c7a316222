/*
 * Every error that a server can return. Each has a status and a text, and
 * changes no item. During a transient error a waiting take goes on. When the
 * cause has ended, the handle works again by itself.
 *
 * A full server and keys of a wrong type are tested in errors.c.
 */
#include "proxy.h"
#include <sys/ioctl.h>
#include <sys/stat.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define CHANNEL "redisson_delay_queue_channel:{jobs}"

/* --- a server, a handle, three items ------------------------------------- */

static server s;
static redisContext *admin;
static delayq q;
/* a leased item; the queue also has one that is ready, and one that is due */
static delayq_item held;
static volatile int *told;
/* the time at which the fault ended */
static volatile long long *mended_us;

static void on_fault(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status == DELAYQ_OK) return; /* an event, not a fault */
    CHECK(status < 0 && *text);
    *told = 1;
}

/* Connect again, since a child must not use its parent's connection. */
static void admin_of_ones_own(void) {
    redisFree(admin);
    admin = server_connect(&s);
}

static void tell(const char *command) {
    redisReply *r = (redisReply *)redisCommand(admin, command);
    if (!r) { /* the server has closed the idle connection */
        admin_of_ones_own();
        r = (redisReply *)redisCommand(admin, command);
    }
    if (!r) FAIL("%s: %s", command, admin->errstr);
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", command, r->str);
    freeReplyObject(r);
}

static void config(const char *name, const char *value) {
    redisReply *r = run(admin, "CONFIG SET %s %s", name, value);
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", name, r->str);
    freeReplyObject(r);
}

/* Returns 1 if the reply to `command` contains `part`. */
static int says(const char *command, const char *part) {
    redisReply *r = run(admin, command);
    int found = r->str && strstr(r->str, part);
    freeReplyObject(r);
    return found;
}

static long long number(const char *command) {
    redisReply *r = run(admin, command);
    long long n = r->integer;
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", command, r->str);
    freeReplyObject(r);
    return n;
}

enum socket { COMMANDS, SUBSCRIBER, BOTH };

/* Returns the number of the handle's sockets of this kind. Sets *last to the id
 * of one. If close_them is 1, closes them. */
static int sockets(enum socket kind, int close_them, int *last) {
    redisReply *r = run(admin, "CLIENT LIST");
    char *line = strtok(r->str, "\n"), command[64];
    int n = 0;
    for (; line; line = strtok(NULL, "\n")) {
        enum socket is = strstr(line, " sub=0 ") ? COMMANDS : SUBSCRIBER;
        if (!strstr(line, "name=delayq ") || (is != kind && kind != BOTH))
            continue;
        snprintf(command, sizeof command, "CLIENT KILL ID %d", atoi(line + 3));
        if (close_them) tell(command);
        if (last) *last = atoi(line + 3);
        n++;
    }
    freeReplyObject(r);
    return n;
}
static void kill_command_socket(void) {
    sockets(COMMANDS, 1, NULL);
}
static void kill_subscriber(void) {
    sockets(SUBSCRIBER, 1, NULL);
}
static void kill_both(void) {
    sockets(BOTH, 1, NULL);
}

static void tick_twice(void) {
    int i;
    for (i = 0; i < 2; i++) { /* the first tick opens the subscriber */
        poll_now(&q);
        OK(&q, delayq_tick(&q, NULL));
    }
}

static void fill(void) {
    mended_us = (volatile long long *)shared(64);
    told = (volatile int *)(mended_us + 1);
    OFFER(&q, "held", 0);
    OK(&q, delayq_take(&q, &held, 20000));
    OFFER(&q, "ready", 0);
    UNTIL((tick_twice(), number("LLEN jobs") == 1));
    OFFER(&q, "due", 0);
    elapse(admin, 1);
}

static void begin(const char *const *arguments, const char *login) {
    static char url[200];
    delayq_options o;
    server_start(&s, arguments);
    admin = server_connect(&s);
    o = options_for(&s, "jobs");
    snprintf(url, sizeof url, "unix://%s%s", login, s.socket);
    o.url = url;
    o.lease_ms = 60000;
    o.log = on_fault;
    if (*login) tell("ACL SETUSER w reset on >pw ~* &* +@all");
    OK(&q, delayq_open(&q, &o));
    fill();
}

static void finish(void) {
    delayq_close(&q);
    redisFree(admin);
    server_end(&s);
}

/* --- the statuses of calls ----------------------------------------------- */

static void is(const char *what, delayq_status got, delayq_status want,
               const char *text) {
    const char *said = delayq_errmsg(&q);
    if (got != want)
        FAIL("%s: %d (%s), not %d: %s", what, got, delayq_strstatus(got), want,
             said);
    if (got < 0 && !strstr(said, text) && !strstr(said, "next attempt"))
        FAIL("%s: \"%s\" doesn't say \"%s\"", what, said, text);
}

/* Tick until a tick fails, or three times. The first may only subscribe. */
static delayq_status tick(void) {
    delayq_status status = DELAYQ_OK;
    int64_t wait = 0;
    int i;
    for (i = 0; i < 3 && status == DELAYQ_OK; i++) {
        poll_now(&q);
        status = delayq_tick(&q, &wait);
    }
    if (status < 0 && (wait < 0 || wait > 10000))
        FAIL("after a failure a tick says %lld ms", (long long)wait);
    return status;
}

static void calls_say(delayq_status status, const char *text) {
    delayq_item item;
    delayq_counts c;
    is("offer", delayq_offer(&q, "x", 1, 60000), status, text);
    is("tick", tick(), status, text);
    is("take", delayq_take(&q, &item, 0), status, text);
    is("ack", delayq_ack(&q, &held), status, text);
    is("nack", delayq_nack(&q, &held, 5), status, text);
    if (status != DELAYQ_ERR_READONLY)
        is("count", delayq_count(&q, &c), status, text);
}

/* Check that everything works again on the same handle, and that no item is
 * lost. */
static void goes_on(int taken) {
    delayq_item item;
    UNTIL(delayq_ack(&q, &held) >= DELAYQ_OK);
    for (; taken < 2; taken++) {
        UNTIL(delayq_take(&q, &item, 1000) == DELAYQ_OK);
        OK(&q, delayq_ack(&q, &item));
    }
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    OFFER(&q, "x", 60000);
    CHECK_INT(number("ZCARD " ZSET), 1);
    CHECK_INT(number("LLEN jobs"), 0);
    CHECK_INT(number("LLEN delayq_retry:{jobs}"), 0);
    CHECK_INT(number("LLEN delayq_dead:{jobs}"), 0);
}

static const char *status_name(delayq_status status) {
    switch (status) {
    case DELAYQ_ERR_READONLY: return "`ERR_READONLY`";
    case DELAYQ_ERR_AGAIN: return "`ERR_AGAIN`";
    case DELAYQ_ERR_AUTH: return "`ERR_AUTH`";
    case DELAYQ_ERR_REDIS: return "`ERR_REDIS`";
    default: return "";
    }
}

struct outcome {
    void (*cause)(void), (*mend)(void);
    delayq_status status;
    /* `text` is a part of the error text; `name` is for the table of faults */
    const char *text, *name;
};

static void mend_when_told(void *o) {
    UNTIL(*told);
    *mended_us = now_us();
    ((const struct outcome *)o)->mend();
}

/* Check a waiting take. It logs a transient fault, and goes on until the fault
 * has ended. It returns a permanent fault. */
static void waits(struct outcome *o) {
    int passes = o->status != DELAYQ_ERR_AUTH && o->status != DELAYQ_ERR_REDIS;
    delayq_item item;
    pid_t child = 0;
    char seen[64];
    *told = 0;
    if (passes) child = spawn(mend_when_told, o);
    is("a waiting take", delayq_take(&q, &item, DELAYQ_FOREVER),
       passes ? DELAYQ_OK : o->status, o->text);
    snprintf(seen, sizeof seen, "%s; a waiting take %s", status_name(o->status),
             passes ? "goes on" : "returns");
    if (passes) {
        report_row(o->name ? o->name : o->text, seen, "unchanged",
                   now_us() - *mended_us);
        join(child);
        OK(&q, delayq_ack(&q, &item));
    } else {
        long long from = now_us();
        o->mend();
        UNTIL(delayq_extend(&q, &held, 60000) == DELAYQ_OK);
        report_row(o->status == DELAYQ_ERR_REDIS
                       ? "an error that delayq does not know"
                   : o->name ? o->name
                             : o->text,
                   seen, "unchanged", now_us() - from);
    }
    goes_on(passes);
}

static void comes_and_goes(struct outcome o) {
    char *before = strdup(contents(admin));
    o.cause();
    calls_say(o.status, o.text);
    o.mend();
    CHECK_TEXT(contents(admin), before);
    free(before);
    o.cause();
    waits(&o);
}

/* --- can't write now ----------------------------------------------------- */

static void follow_nobody(void) {
    tell("REPLICAOF 127.0.0.1 1");
}
static void follow_none(void) {
    tell("REPLICAOF NO ONE");
}

TEST(a_replica_is_reported_and_waited_out_until_it_is_a_master) {
    begin(NULL, "");
    comes_and_goes((struct outcome){follow_nobody, follow_none,
                                    DELAYQ_ERR_READONLY, "READONLY", NULL});
    finish();
}

static void want_replicas(void) {
    tell("CONFIG SET min-replicas-to-write 1");
}
static void want_none(void) {
    tell("CONFIG SET min-replicas-to-write 0");
}

TEST(missing_replicas_are_reported_and_waited_out) {
    if (main_server.major < 7)
        test_skip("scripts may write all the same before Redis 7");
    begin(NULL, "");
    comes_and_goes((struct outcome){want_replicas, want_none,
                                    DELAYQ_ERR_READONLY, "NOREPLICAS", NULL});
    finish();
}

/* Returns the path of a file in the server's folder. If there is a folder with
 * the name of the dump, the server can't write its dump. */
static const char *in_dir(const char *name) {
    static char path[160];
    snprintf(path, sizeof path, "%s/%s", s.dir, name);
    return path;
}
static void saved(const char *how) {
    tell("BGSAVE");
    UNTIL(says("INFO persistence", "rdb_bgsave_in_progress:0") &&
          says("INFO persistence", how));
}
static void block_dump(void) {
    if (mkdir(in_dir("dump"), 0700) != 0) FAIL("no folder");
    saved("rdb_last_bgsave_status:err");
}
static void free_dump(void) {
    if (rmdir(in_dir("dump")) != 0) FAIL("the folder stays");
    saved("rdb_last_bgsave_status:ok");
    if (unlink(in_dir("dump")) != 0) FAIL("no dump");
}

TEST(a_server_that_cannot_save_is_reported_and_waited_out) {
    static const char *const with[] = {"--dbfilename", "dump", NULL};
    begin(with, "");
    config("save", "3600 1000000");
    comes_and_goes((struct outcome){block_dump, free_dump, DELAYQ_ERR_READONLY,
                                    "MISCONF", NULL});
    finish();
}

/* --- not now ------------------------------------------------------------- */

static void lose_master(void) {
    tell("CONFIG SET replica-serve-stale-data no");
    follow_nobody();
}

TEST(a_replica_without_its_master_is_reported_and_waited_out) {
    begin(NULL, "");
    comes_and_goes((struct outcome){lose_master, follow_none, DELAYQ_ERR_AGAIN,
                                    "MASTERDOWN", NULL});
    finish();
}

static redisContext *busy[2];
static int busy_count;
static void keep_busy(void) {
    redisContext *c = server_connect(&s);
    redisAppendCommand(c, "EVAL %s 0", "while true do end");
    busy[busy_count++] = c;
    if (redisBufferWrite(c, NULL) != REDIS_OK) FAIL("%s", c->errstr);
    UNTIL(says("PING", "BUSY"));
}
static void kill_script(void) {
    tell("SCRIPT KILL");
    UNTIL(says("PING", "PONG"));
}

TEST(a_busy_server_is_reported_and_waited_out) {
    begin(NULL, "");
    tell("CONFIG SET lua-time-limit 5");
    comes_and_goes((struct outcome){keep_busy, kill_script, DELAYQ_ERR_AGAIN,
                                    "BUSY", NULL});
    while (busy_count > 0) redisFree(busy[--busy_count]);
    finish();
}

/* If the last probe is more than 10 s old, an offer probes the queue first. If
 * the server refuses the probe, the offer fails at once, because the connection
 * was never lost. */
TEST(an_offer_that_looks_at_a_busy_server_says_so_at_once) {
    int64_t began;
    begin(NULL, "");
    tell("CONFIG SET lua-time-limit 5");
    keep_busy();
    look_again(&q);
    began = now_us();
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_AGAIN);
    if (now_us() - began > 2000000)
        FAIL("an answer after %lld us", (long long)(now_us() - began));
    kill_script();
    OK(&q, delayq_offer(&q, "x", 1, 0));
    while (busy_count > 0) redisFree(busy[--busy_count]);
    finish();
}

/* A handle that joins a connection subscribes at once. If the server is busy
 * then, the handle repeats this later. */
TEST(a_subscription_that_a_busy_server_refuses_is_tried_again) {
    static delayq second;
    delayq_options o;
    delayq_item item;
    begin(NULL, "");
    tell("CONFIG SET lua-time-limit 5");
    OK(&q, delayq_clear(&q, NULL));
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    keep_busy();
    memset(&o, 0, sizeof o);
    o.name = "others";
    o.share = &q;
    CHECK_STATUS(&second, delayq_open(&second, &o), DELAYQ_ERR_AGAIN);
    kill_script();
    UNTIL((delayq_take(&second, &item, 100),
           subscribers(admin, "redisson_delay_queue_channel:{others}") == 1));
    UNTIL((delayq_take(&q, &item, 100), subscribers(admin, CHANNEL) == 1));
    delayq_close(&second);
    while (busy_count > 0) redisFree(busy[--busy_count]);
    finish();
}

/* Since 8.6 Redis refuses subscriptions if its memory is full. */
TEST(a_subscription_that_a_full_server_refuses_is_tried_again) {
    static delayq second;
    delayq_options o;
    delayq_item item;
    begin(NULL, "");
    delayq_close(&q);
    proxy_start(&s);
    o = options_for(&s, "jobs");
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    UNTIL((delayq_take(&q, &item, 5), q.subscribed));
    strcpy(proxy->forged,
           "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    proxy->only = 1; /* the subscriber's connection */
    proxy_strike(FORGE, 0, 0, 1);
    memset(&o, 0, sizeof o);
    o.name = "others";
    o.share = &q;
    OK(&second, delayq_open(&second, &o));
    UNTIL((delayq_take(&second, &item, 5), proxy->times == 0));
    UNTIL((delayq_take(&second, &item, 100),
           subscribers(admin, "redisson_delay_queue_channel:{others}") == 1));
    UNTIL((delayq_take(&q, &item, 100), subscribers(admin, CHANNEL) == 1));
    delayq_close(&second);
    finish();
}

/* Restart the server with a pause at each of its many keys, so that it loads
 * for a long time. */
static void load_slowly(void) {
    char delay[16];
    const char *with[] = {"--key-load-delay", delay,
                          "--loading-process-events-interval-bytes", "1024",
                          NULL};
    snprintf(delay, sizeof delay, "%d", 5000 * test_slow());
    tell("SAVE");
    redisFree(admin);
    server_kill(&s, SIGKILL);
    server_start_again(&s, with);
    admin = server_connect(&s);
    CHECK(says("INFO persistence", "\nloading:1"));
}
static void load_fast(void) {
    if (says("INFO persistence", "\nloading:1"))
        tell("CONFIG SET key-load-delay 0");
    UNTIL(says("INFO persistence", "\nloading:0"));
}

TEST(a_server_that_is_loading_is_reported_and_waited_out) {
    if (main_server.major < 7) test_skip("no such options before Redis 7");
    begin(NULL, "");
    freeReplyObject(run(admin, "EVAL %s 0",
                        "for i = 1, 400 do\n"
                        "  redis.call('SET', 'k' .. i,\n"
                        "    string.rep(string.char(i % 90 + 33), 3) ..\n"
                        "    string.rep(tostring(i * 7919 % 99991), 300))\n"
                        "end"));
    tell("CONFIG SET rdbcompression no");
    comes_and_goes((struct outcome){load_slowly, load_fast, DELAYQ_ERR_AGAIN,
                                    "LOADING", NULL});
    finish();
}

static void give_slots(void) {
    tell("CLUSTER ADDSLOTSRANGE 0 16383");
    UNTIL(says("CLUSTER INFO", "cluster_state:ok"));
}
static void take_slots(void) {
    tell("CLUSTER DELSLOTSRANGE 0 16383");
    UNTIL(says("CLUSTER INFO", "cluster_state:fail"));
}

TEST(a_cluster_without_its_slots_is_reported_and_waited_out) {
    char port[16];
    const char *with[] = {"--port",
                          port,
                          "--bind",
                          "127.0.0.1",
                          "--cluster-node-timeout",
                          "500",
                          "--cluster-enabled",
                          "yes",
                          NULL};
    delayq_options o;
    snprintf(port, sizeof port, "%d", free_port());
    server_start(&s, with);
    if (s.major < 7) test_skip("no ADDSLOTSRANGE before Redis 7");
    admin = server_connect(&s);
    give_slots();
    o = options_for(&s, "jobs");
    o.lease_ms = 60000;
    o.log = on_fault;
    OK(&q, delayq_open(&q, &o));
    fill();
    comes_and_goes((struct outcome){take_slots, give_slots, DELAYQ_ERR_AGAIN,
                                    "CLUSTERDOWN", NULL});
    finish();
}

/* Set maxclients to 1. The test's own connection is this client. */
static void one_client(void) {
    tell("CONFIG SET maxclients 1");
    kill_both();
}
static void many_clients(void) {
    tell("CONFIG SET maxclients 100");
}

/* This fails with DELAYQ_ERR_IO, "Broken pipe", if the server's text is not
 * reported when the server ends a connection during its login. */
TEST(a_server_with_too_many_clients_is_reported_and_waited_out) {
    begin(NULL, "");
    comes_and_goes((struct outcome){one_client, many_clients, DELAYQ_ERR_AGAIN,
                                    "max number of clients", NULL});
    finish();
}

/* --- forged -------------------------------------------------------------- */

static void forge(const char *error) {
    snprintf(proxy->forged, sizeof proxy->forged, "-%s\r\n", error);
    proxy_strike(FORGE, 0, 0, 1 << 30);
}
static void forge_tryagain(void) {
    q.call_ms = 200 * test_slow(); /* calls repeat requests for this time */
    forge("TRYAGAIN Multiple keys request during rehashing of slot");
}
static void forge_unblocked(void) {
    forge("UNBLOCKED force unblock from blocking operation");
}
static void forge_long(void) {
    forge("ERR Error running script (call to f_48cae93e80ce85cb79d028c4b68e377d"
          "9d3fadf3): @user_script:121: @user_script: 121: -READONLY You can't "
          "write against a read only replica.");
}
static void forge_unknown(void) {
    forge("NEWS of a later Redis");
}

static void forged(void (*cause)(void), delayq_status status,
                   const char *text) {
    delayq_options o;
    server_start(&s, NULL);
    proxy_start(&s);
    admin = server_connect(&s);
    o = options_for(&s, "jobs");
    o.url = NULL;
    o.connect = through_proxy;
    o.lease_ms = 60000;
    o.log = on_fault;
    OK(&q, delayq_open(&q, &o));
    fill();
    comes_and_goes((struct outcome){cause, proxy_calm, status, text, NULL});
    finish();
}

TEST(tryagain_is_reported_and_waited_out) {
    forged(forge_tryagain, DELAYQ_ERR_AGAIN, "TRYAGAIN");
}
/* This fails if the error UNBLOCKED is not reported as DELAYQ_ERR_AGAIN. */
TEST(unblocked_is_reported_and_waited_out) {
    forged(forge_unblocked, DELAYQ_ERR_AGAIN, "UNBLOCKED");
}
/* The text is shortened, but it still contains the cause. */
TEST(what_a_script_ran_into_is_reported_as_before_redis_7) {
    forged(forge_long, DELAYQ_ERR_READONLY,
           "READONLY You can't write against a "
           "read only replica.");
}
TEST(an_unknown_error_is_reported_and_returned) {
    forged(forge_unknown, DELAYQ_ERR_REDIS, "NEWS of a later Redis");
}

/* --- not allowed --------------------------------------------------------- */

static void ask_password(void) {
    tell("CONFIG SET requirepass secret");
    kill_both();
}
static void ask_none(void) {
    config("requirepass", "");
}

TEST(a_missing_password_is_reported_at_once_and_repaired) {
    if (main_server.major < 6) /* a call may return DELAYQ_ERR_UNKNOWN */
        test_skip("Redis 5 closes before it has read a whole script");
    begin(NULL, "");
    comes_and_goes((struct outcome){ask_password, ask_none, DELAYQ_ERR_AUTH,
                                    "NOAUTH", NULL});
    finish();
}

static void other_password(void) {
    tell("ACL SETUSER w resetpass >other");
    kill_both();
}
static void old_password(void) {
    tell("ACL SETUSER w >pw");
}

TEST(a_wrong_password_is_reported_at_once_and_repaired) {
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    begin(NULL, "w:pw@");
    comes_and_goes((struct outcome){other_password, old_password,
                                    DELAYQ_ERR_AUTH, "WRONGPASS", NULL});
    finish();
}

static void no_keys(void) {
    tell("ACL SETUSER w resetkeys ~other*");
}
static void no_evalsha(void) {
    tell("ACL SETUSER w -evalsha -eval");
}
static void no_time(void) {
    tell("ACL SETUSER w -time");
}
static void all_rights(void) {
    tell("ACL SETUSER w ~* &* +@all");
}

TEST(a_user_without_the_keys_is_reported_at_once) {
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    begin(NULL, "w:pw@");
    comes_and_goes((struct outcome){no_keys, all_rights, DELAYQ_ERR_AUTH,
                                    "to access", "NOPERM for a key"});
    finish();
}
TEST(a_user_without_scripts_is_reported_at_once) {
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    begin(NULL, "w:pw@");
    comes_and_goes((struct outcome){no_evalsha, all_rights, DELAYQ_ERR_AUTH,
                                    "NOPERM", NULL});
    finish();
}
TEST(a_user_without_a_command_that_scripts_call_is_reported_at_once) {
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    begin(NULL, "w:pw@");
    comes_and_goes((struct outcome){no_time, all_rights, DELAYQ_ERR_AUTH,
                                    " run ", "NOPERM within a script"});
    finish();
}

/* Without a right to channels all calls work. The handle polls more often. */
TEST(a_user_without_the_channels_has_no_subscriber_and_misses_nothing) {
    delayq_item item;
    if (main_server.major < 7) test_skip("rights as of Redis 7");
    begin(NULL, "w:pw@");
    *told = 0;
    tell("ACL SETUSER w resetchannels"); /* closes the subscriber, too */
    OFFER(&q, "x", 0);
    goes_on(-1);
    while (!*told) { /* until the refused SUBSCRIBE is logged */
        OFFER(&q, "y", 30);
        CHECK_STATUS(&q, delayq_take(&q, &item, DELAYQ_FOREVER), DELAYQ_OK);
        OK(&q, delayq_ack(&q, &item));
    }
    CHECK(!q.subscribed && q.conn->tracking == DELAYQ_TRACK_OFF);
    finish();
}

static int has_bytes(const delayq_socket *from) {
    int n = 0;
    return ioctl(from->c->fd, FIONREAD, &n) == 0 && n > 0;
}

/* Call delayq_take and delayq_tick alternately. */
static void turn(void) {
    static int ticks;
    delayq_item item;
    ticks = !ticks;
    if (ticks)
        delayq_tick(&q, NULL);
    else
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
}

/* The subscriber is lost while a request for tracking is in flight. The server
 * refuses this request when the next subscriber has already connected. The
 * refusal must have no effect on the next subscriber. */
TEST(a_late_refusal_to_report_to_a_lost_subscriber_does_not_end_tracking) {
    static unsigned char memory[65536];
    delayq_options o = options_for(&main_server, "jobs");
    const delayq_conn *conn;
    if (!can_track()) test_skip("the server tracks no keys");
    proxy_start(&main_server);
    o.url = proxy_url();
    o.max_wait_ms = 60000;
    o.outbox = memory;
    o.outbox_size = sizeof memory;
    OK(&q, delayq_open(&q, &o));
    conn = q.conn;
    proxy->only = 0; /* the command socket */
    do {             /* until a poll is in flight, and no request to track */
        UNTIL((turn(), conn->tracking == DELAYQ_TRACK_ON));
        ask("CLIENT KILL ID %lld", (long long)conn->sub_id);
        UNTIL((turn(), conn->tracking == DELAYQ_TRACK_ALLOWED));
    } while (!conn->cmd.first || q.setup.x.state != DELAYQ_EXCHANGE_NONE);
    UNTIL(has_bytes(&conn->cmd));
    proxy_strike(STALL, 0, 0, 1);
    UNTIL((turn(), q.setup.x.state == DELAYQ_EXCHANGE_SENT));
    ask("CLIENT KILL ID %lld", (long long)conn->sub_id);
    server_kill(&main_server, SIGSTOP); /* no new connection can log in */
    UNTIL((turn(), conn->tracking == DELAYQ_TRACK_OFF));
    UNTIL((turn(), conn->sub.state == DELAYQ_SOCKET_GREETING));
    server_kill(&main_server, SIGCONT);
    UNTIL(has_bytes(&conn->sub));
    proxy->let_go = 1;
    UNTIL(has_bytes(&conn->cmd));
    q.conn->idle_read_us = 0; /* this turn reads both sockets */
    turn();
    CHECK(conn->sub.state >= DELAYQ_SOCKET_OPEN && !q.list_tracked);
    UNTIL((turn(), q.list_tracked));
    CHECK(conn->tracking == DELAYQ_TRACK_ON && conn->track_retry_us == 0);
    delayq_close(&q);
}

static void push_after(void *ms) {
    usleep(1000 * *(useconds_t *)ms);
    ask("RPUSH jobs pushed");
}

/* The subscriber is lost again and again. In its back-off a take gets an item.
 * The reply delays the next poll, but not the next attempt to connect. */
TEST(a_take_that_finds_an_item_does_not_put_off_the_subscriber) {
    delayq_options o = options_for(&main_server, "jobs");
    useconds_t ms = 500;
    delayq_item item;
    const delayq_conn *conn;
    if (!can_track()) test_skip("the server tracks no keys");
    o.max_wait_ms = o.poll_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    conn = q.conn;
    do {
        UNTIL((delayq_take(&q, &item, 20), q.list_tracked));
        ask("CLIENT KILL ID %lld", (long long)conn->sub_id);
        UNTIL((delayq_take(&q, &item, 0), conn->tracking == DELAYQ_TRACK_OFF));
    } while (conn->sub.state != DELAYQ_SOCKET_CLOSED ||
             conn->sub.retry_us < now_us() + 100000);
    ask("RPUSH jobs first");
    OK(&q, delayq_take(&q, &item, 9000));
    spawn(push_after, &ms);
    OK(&q, delayq_take(&q, &item, 9000));
    CHECK(conn->sub.state >= DELAYQ_SOCKET_OPEN); /* it reported the push */
    delayq_close(&q);
}

/* --- servers that lack something ----------------------------------------- */

/* The error text ends with advice for a server that refuses the command. */
TEST(what_a_hosted_server_refuses_is_told_with_the_setting_that_helps) {
    static const struct {
        const char *says, *advice;
    } refusals[] = {
        {"ERR unknown command `EVALSHA`, with args beginning with: `x`",
         "runs Lua scripts"},
        {"ERR unknown command 'SCRIPT'", "--lua"},
        {"ERR Could not find scripting engine 'lua'", "Lua module"},
        {"ERR bad lua script for redis cluster, all the keys that the script "
         "uses should be passed using the KEYS array",
         "script_check_enable"},
        {"ERR Error running script (call to 0123456789012345678901234567890123"
         "456789): @user_script:2: script tried accessing undeclared key, key: "
         "k",
         "--default_lua_flags=allow-undeclared-keys"},
        {"WRONGTYPE Operation against a key holding the wrong kind of value "
         "script: on @user_script:210.",
         "wrong kind of value; a key of this"},
    };
    size_t i;
    begin(NULL, "");
    delayq_close(&q);
    proxy_start(&s);
    for (i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        delayq_options o = options_for(&s, "jobs");
        o.url = proxy_url();
        OK(&q, delayq_open(&q, &o));
        snprintf(proxy->forged, sizeof proxy->forged, "-%s\r\n",
                 refusals[i].says);
        proxy_strike(FORGE, 0, 0, 1);
        if (delayq_offer(&q, "x", 1, 0) >= DELAYQ_OK) FAIL("%zu: stored", i);
        CHECK_HAS(delayq_errmsg(&q), refusals[i].advice);
        if (strstr(delayq_errmsg(&q), "args") || strstr(delayq_errmsg(&q), "@"))
            FAIL("%s", delayq_errmsg(&q));
        OFFER(&q, "y", 0); /* only the first offer was refused */
        delayq_close(&q);
    }
    OK(&q, delayq_open(&q, &(delayq_options){.name = "jobs", .url = s.url}));
    finish();
}

/* --- lost clients -------------------------------------------------------- */

/* One socket or both are closed before each call. No call fails. */
TEST(killed_sockets_cost_nothing_but_a_connection) {
    static void (*const kills[])(void) = {kill_command_socket, kill_subscriber,
                                          kill_both};
    size_t i;
    for (i = 0; i < 3; i++) {
        delayq_item item;
        delayq_counts c;
        begin(NULL, "");
        kills[i]();
        OFFER(&q, "x", 0);
        kills[i]();
        UNTIL(tick() == DELAYQ_OK); /* the first tick may only connect */
        kills[i]();
        UNTIL(delayq_take(&q, &item, 0) == DELAYQ_OK);
        kills[i]();
        OK(&q, delayq_ack(&q, &item));
        kills[i]();
        OK(&q, delayq_count(&q, &c));
        CHECK_INT(c.pending + c.ready, 3);
        goes_on(0);
        finish();
    }
}

/* Returns 1 if the handle has both its sockets, and both are new. */
static int has_others_than(int cmd, int sub) {
    int now = 0, now_sub = 0;
    return sockets(COMMANDS, 0, &now) == 1 &&
           sockets(SUBSCRIBER, 0, &now_sub) == 1 && now != cmd &&
           now_sub != sub;
}

static void kill_then_offer(void *kills) {
    delayq other;
    delayq_options o = options_for(&s, "jobs");
    int i;
    admin_of_ones_own();
    for (i = 0; i < 3; i++) { /* after the handle has both sockets again */
        UNTIL(has_others_than(0, 0));
        (*(void (**)(void))kills)();
    }
    UNTIL(has_others_than(0, 0));
    OK(&other, delayq_open(&other, &o));
    OFFER(&other, "after", 0);
    delayq_close(&other);
    redisFree(admin);
}

TEST(a_waiting_take_survives_the_loss_of_either_socket) {
    static void (*kills[])(void) = {kill_command_socket, kill_subscriber,
                                    kill_both};
    size_t i;
    for (i = 0; i < 3; i++) {
        delayq_item item;
        pid_t child;
        begin(NULL, "");
        goes_on(0);
        child = spawn(kill_then_offer, &kills[i]);
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        CHECK(memcmp(item.data, "after", 5) == 0);
        join(child);
        finish();
    }
}

TEST(a_server_that_closes_idle_clients_costs_nothing_but_a_connection) {
    delayq_item item;
    begin(NULL, "");
    goes_on(0);
    tell("CONFIG SET timeout 1");
    UNTIL((tell("PING"), sockets(COMMANDS, 0, NULL) == 0));
    tell("CONFIG SET timeout 0");
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OK(&q, delayq_ack(&q, &item));
    /* the server closes the idle sockets while a take waits */
    tell("CONFIG SET timeout 1");
    OFFER(&q, "y", 2300);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    OK(&q, delayq_ack(&q, &item));
    finish();
}

#define LARGE 3000000 /* bytes of a payload */

/* Set the server's output limit. If the reply to a take exceeds it, the server
 * closes the connection before the handle has the item. The item is delivered
 * again when its lease ends. */
static void limit_answers(void) {
    config("client-output-buffer-limit", "normal 65536 0 0 pubsub 65536 0 0");
}
static void unlimit_answers(void) {
    config("client-output-buffer-limit",
           "normal 0 0 0 pubsub 33554432 8388608 60");
}

TEST(a_reply_beyond_the_output_limit_is_unknown_and_its_item_comes_again) {
    char *large = SHARED(char, LARGE);
    delayq_item item;
    if (main_server.major < 6) test_skip("Redis 5 answers before it closes");
    begin(NULL, "");
    goes_on(0);
    OK(&q, delayq_clear(&q, NULL));
    memset(large, 'l', LARGE);
    q.options.lease_ms = 100;
    OK(&q, delayq_offer(&q, large, LARGE, 0));
    elapse(admin, 1);
    limit_answers();
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_UNKNOWN);
    CHECK_INT(number("ZCARD " ZSET), 1);
    OFFER(&q, "x", 60000); /* the handle has recovered */
    unlimit_answers();
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.len, LARGE);
    CHECK(item.attempt >= 2);
    OK(&q, delayq_ack(&q, &item));
    finish();
}

static void shout(void *unused) {
    char *large = SHARED(char, LARGE);
    delayq other;
    delayq_options o = options_for(&s, "jobs");
    (void)unused;
    int sub = 0;
    admin_of_ones_own();
    UNTIL(sockets(SUBSCRIBER, 0, &sub) == 1);
    memset(large, 'l', LARGE - 1);
    freeReplyObject(run(admin, "PUBLISH " CHANNEL " %s", large));
    /* Valkey 9.1 does not count such a message towards the limit. */
    UNTIL(has_others_than(0, sub) || says("INFO server", "valkey_version:9.1"));
    OK(&other, delayq_open(&other, &o));
    OFFER(&other, "after", 0);
    delayq_close(&other);
    redisFree(admin);
}

TEST(a_subscriber_beyond_the_output_limit_is_replaced) {
    delayq_item item;
    pid_t child;
    begin(NULL, "");
    goes_on(0);
    limit_answers();
    child = spawn(shout, NULL);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK(memcmp(item.data, "after", 5) == 0);
    join(child);
    finish();
}

/* The server evicts a client that needs more than 128 KB, the lowest limit that
 * Redis allows. The client offers, and then takes, a large payload. */
TEST(an_evicted_client_is_reported_truthfully_and_reconnects) {
    char *large = SHARED(char, LARGE);
    delayq_message m;
    delayq_item item;
    begin(NULL, "");
    if (s.major < 7) test_skip("no maxmemory-clients before Redis 7");
    goes_on(0);
    OK(&q, delayq_clear(&q, NULL));
    memset(large, 'l', LARGE);
    memset(&m, 0, sizeof m);
    m.data = large;
    m.len = LARGE;
    tell("CLIENT NO-EVICT ON");
    config("maxmemory-clients", "1");
    CHECK(delayq_offer_message(&q, &m) < 0);
    CHECK_INT(number("ZCARD " ZSET), 0);
    UNTIL(delayq_offer(&q, "small", 5, 60000) == DELAYQ_OK);
    config("maxmemory-clients", "0");
    UNTIL(delayq_offer_message(&q, &m) == DELAYQ_OK);
    CHECK_INT(number("ZCARD " ZSET), 2);
    config("maxmemory-clients", "1");
    q.options.lease_ms = 100;
    elapse(admin, 1);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_UNKNOWN);
    config("maxmemory-clients", "0");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.len, LARGE);
    OK(&q, delayq_ack(&q, &item));
    finish();
}
