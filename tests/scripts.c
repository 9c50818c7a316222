/* The Lua scripts load, and their pieces are within the limits of C and Lua. */
#include "lua/scripts.h"
#include "proxy.h"
#include "verbs.h"

void load_scripts(redisContext *c) {
    redisReply *pong = (redisReply *)redisCommand(c, "PING");
    /* the reply is an error if a password is needed */
    int open = pong && pong->type != REDIS_REPLY_ERROR;
    size_t i;
    if (pong) freeReplyObject(pong);
    for (i = 0; open && i < SCRIPTS; i++) {
        char *text = script_text(all_scripts[i]);
        redisReply *r = (redisReply *)redisCommand(c, "SCRIPT LOAD %s", text);
        if (r) freeReplyObject(r);
        free(text);
    }
}

TEST(every_script_loads_and_has_the_sha_that_the_header_says) {
    size_t i;
    for (i = 0; i < SCRIPTS; i++) {
        const dq_script *script = all_scripts[i];
        char *text = script_text(script);
        const char *sha = ask("SCRIPT LOAD %s", text);
        if (strlen(sha) != 40) FAIL("%s: %s", script->name, sha);
        if (strcmp(sha, script->sha) != 0)
            FAIL("%s has another text: run make lua", script->name);
        free(text);
    }
}

/* C99 guarantees string literals of 4,095 bytes. A piece of more than 3,000
 * bytes contains more than one idea. */
TEST(no_piece_of_a_script_is_longer_than_3000_bytes) {
    size_t i, k;
    for (i = 0; i < SCRIPTS; i++)
        for (k = 0; all_scripts[i]->parts[k]; k++)
            if (strlen(all_scripts[i]->parts[k]) > 3000)
                FAIL("part %zu of %s has %zu bytes", k, all_scripts[i]->name,
                     strlen(all_scripts[i]->parts[k]));
}

/* Each piece is a complete Lua chunk, so it compiles by itself. */
TEST(every_piece_of_a_script_is_a_complete_chunk) {
    size_t i, k;
    for (i = 0; i < SCRIPTS; i++)
        for (k = 0; all_scripts[i]->parts[k]; k++) {
            const char *sha = ask("SCRIPT LOAD %s", all_scripts[i]->parts[k]);
            if (strlen(sha) != 40)
                FAIL("part %zu of %s: %s", k, all_scripts[i]->name, sha);
        }
}

TEST(a_native_queue_has_no_mirror_in_its_scripts) {
    size_t i;
    for (i = 0; i < SCRIPTS; i++) {
        char *text = script_text(all_scripts[i]);
        if (strstr(text, "sweep_mirror("))
            CHECK(strstr(all_scripts[i]->name, "redisson"));
        free(text);
    }
}

/* A handle uploads a script once, after the server's first NOSCRIPT error. */
TEST(a_script_is_uploaded_once) {
    delayq q;
    delayq_item item;
    const char *info;
    int i;
    open_queue(&q, "jobs");
    ask("SCRIPT FLUSH");
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 3; i++) {
        OFFER(&q, "x", 0);
        usleep(1500);
        OK(&q, delayq_take(&q, &item, 0));
    }
    info = ask("INFO commandstats");
    CHECK_HAS(info, "cmdstat_evalsha:calls=8,");
    CHECK(!strstr(info, "cmdstat_eval:"));
    if (main_server.major >= 7) CHECK_HAS(info, "cmdstat_script|load:calls=2,");
    delayq_close(&q);
}

/* --- the upload of scripts ------------------------------------------------ */

static void lose_scripts(void) {
    ask("SCRIPT FLUSH");
}

TEST(each_verb_succeeds_at_once_on_a_server_that_has_lost_its_scripts) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        delayq_options o = options_for(&main_server, "jobs");
        delayq q;
        ask("FLUSHALL");
        ask("SCRIPT FLUSH");
        o.wire = wire;
        o.lease_ms = 60000;
        OK(&q, delayq_open(&q, &o));
        each_verb(&q, lose_scripts);
        delayq_close(&q);
    }
}

TEST(an_outbox_settles_everything_on_a_server_that_has_lost_its_scripts) {
    static char box[65536];
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    delayq_message m;
    delayq q;
    o.outbox = box;
    o.outbox_size = sizeof box;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_offer(&q, "x", 1, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    ask("SCRIPT FLUSH");
    memset(&m, 0, sizeof m);
    m.data = "y";
    m.len = 1;
    m.key = "k";
    m.key_ttl_ms = 60000;
    OK(&q, delayq_offer(&q, "z", 1, 0));
    OK(&q, delayq_offer_message(&q, &m));
    OK(&q, delayq_nack(&q, &item, 1000));
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(ask_int("ZCARD redisson_delay_queue_timeout:{jobs}"), 3);
    delayq_close(&q);
}

/* Load the scripts for a user who may not load them, as another program would.
 * The request after the refused load then runs, and its reply counts. */
static void load_meanwhile(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status == DELAYQ_OK && strstr(text, "not have the scripts"))
        load_scripts(main_connection());
}

TEST(a_request_behind_a_refused_load_runs_if_others_load_its_script) {
    delayq_options o = options_with_rights("~* +@all -script");
    int box;
    for (box = 0; box < 2; box++) {
        static char memory[65536];
        delayq_item item;
        delayq q;
        ask("FLUSHALL");
        ask("SCRIPT FLUSH");
        load_scripts(main_connection()); /* the probe needs them */
        o.outbox = box ? memory : NULL;
        o.outbox_size = box ? sizeof memory : 0;
        o.log = load_meanwhile;
        OK(&q, delayq_open(&q, &o));
        UNTIL((delayq_tick(&q, NULL), q.probed));
        ask("SCRIPT FLUSH");
        OK(&q, delayq_offer(&q, "a", 1, 0));
        OK(&q, delayq_offer(&q, "b", 1, 0));
        if (box) OK(&q, delayq_flush(&q, 20000));
        CHECK_INT(ask_int("ZCARD redisson_delay_queue_timeout:{jobs}"), 2);
        ask("SCRIPT FLUSH");
        q.conn->scripts_told_us = 0; /* else this is logged once a minute */
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(*(const char *)item.data, 'a');
        delayq_close(&q);
    }
}

/* --- a server that miscounts ---------------------------------------------- */

/* Returns the reply to a waiter's take on a server like Valkey 9.1.2, which may
 * report the value of a pointer as the number of subscribers. */
static redisReply *take_miscounted(const char *waits, const char *claim) {
    static const char miscount[] =
        "local redis_ = redis\n"
        "local redis = {pcall = redis_.pcall, call = function(...)\n"
        "  if select(2, ...) ~= 'NUMSUB' then return redis_.call(...) end\n"
        "  return {select(3, ...), 139914173998087}\n"
        "end}\n";
    char *text = script_text(&dq_script_take), *whole;
    redisReply *r;
    whole = (char *)malloc(sizeof miscount + strlen(text));
    sprintf(whole, "%s%s", miscount, text);
    r = run(
        main_connection(),
        "EVAL %s 6 redisson_delay_queue_timeout:{jobs} jobs "
        "delayq_retry:{jobs} delayq_dead:{jobs} delayq_paused:{jobs} "
        "delayq_waiters:{jobs} "
        "%s n 100 10000 1 retry 0 0 %s %s 1 123456 "
        "redisson_delay_queue_channel:{jobs} 0 me %s delayq_turn:{jobs}: %s "
        "0",
        whole, "", "", "", waits, claim);
    free(text);
    free(whole);
    if (r->type != REDIS_REPLY_ARRAY) FAIL("%s", r->str);
    return r;
}

/* Returns the number in the next message on a subscribed connection. */
static long long told(redisContext *c) {
    redisReply *r;
    long long n;
    if (redisGetReply(c, (void **)&r) != REDIS_OK) FAIL("%s", c->errstr);
    n = atoll(r->element[2]->str);
    freeReplyObject(r);
    return n;
}

TEST(a_server_that_miscounts_subscribers_does_no_harm) {
    redisContext *c = server_connect(&main_server);
    redisReply *r;
    freeReplyObject(run(c, "SUBSCRIBE delayq_waiters:{jobs}"));
    r = take_miscounted("1", "new");
    CHECK_INT(r->element[3]->element[4]->integer, 2); /* the handle leads */
    freeReplyObject(r);
    CHECK_INT(told(c), 1000); /* the others enter the set within 1,000 ms */
    CHECK_INT(ask_int("ZCARD delayq_waiters:{jobs}"), 1);
    ask("UNLINK delayq_waiters:{jobs}");
    /* the set was lost, so this take wakes all waiters */
    r = take_miscounted("", "leader");
    CHECK_INT(r->element[3]->element[4]->integer, 0);
    freeReplyObject(r);
    CHECK_INT(told(c), 1000);
    redisFree(c);
}

TEST(delayq_load_scripts_loads_every_script) {
    static char memory[8192];
    int outbox;
    for (outbox = 0; outbox < 2; outbox++) {
        delayq_options o = options_with_rights("+@all ~*");
        size_t i;
        delayq q;
        if (outbox) o.outbox = memory, o.outbox_size = sizeof memory;
        OK(&q, delayq_open(&q, &o));
        ask("SCRIPT FLUSH");
        OK(&q, delayq_load_scripts(&q));
        for (i = 0; i < SCRIPTS; i++) {
            redisReply *r =
                run(main_connection(), "SCRIPT EXISTS %s", all_scripts[i]->sha);
            CHECK_INT(r->element[0]->integer, 1);
            freeReplyObject(r);
        }
        acl_user("half", "+@all -script ~*");
        CHECK_STATUS(&q, delayq_load_scripts(&q), DELAYQ_ERR_AUTH);
        delayq_close(&q);
    }
}

/* The connection ends while the scripts are loaded. The script in flight is
 * loaded again. */
TEST(delayq_load_scripts_goes_on_after_a_lost_connection) {
    int direction, i;
    proxy_start(&main_server);
    for (direction = 0; direction < 2; direction++)
        for (i = 0; i < 5; i++) {
            delayq_options o = options_for(&main_server, "jobs");
            redisReply *r;
            size_t k;
            delayq q;
            o.url = proxy_url();
            OK(&q, delayq_open(&q, &o));
            ask("SCRIPT FLUSH");
            proxy_strike(CUT, direction, direction ? i * 100 : i * 9001, 1);
            OK(&q, delayq_load_scripts(&q));
            CHECK_INT(proxy->times, 0);
            for (k = 0; k < SCRIPTS; k++) {
                r = run(main_connection(), "SCRIPT EXISTS %s",
                        all_scripts[k]->sha);
                CHECK_INT(r->element[0]->integer, 1);
                freeReplyObject(r);
            }
            proxy_calm();
            delayq_close(&q);
        }
}

TEST(delayq_load_scripts_reports_a_server_that_refuses_or_ignores_them) {
    static const char *const errors[] = {
        "-NOSCRIPT no\r\n",
        "-ERR no\r\n",
        "-MOVED 1 127.0.0.1:1\r\n",
        "-ASK 1 127.0.0.1:1\r\n",
        "-TRYAGAIN no\r\n",
        "-LOADING no\r\n",
        "+OK\r\n",
        ":1\r\n",
        "*0\r\n",
        "$-1\r\n",
        "$40\r\n0123456789012345678901234567890123456789\r\n"};
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < sizeof errors / sizeof errors[0]; i++) {
        delayq_options o = options_for(&main_server, "jobs");
        delayq_status status;
        delayq q;
        o.url = proxy_url();
        o.io_timeout_ms = 300 * test_slow(); /* most requests are retried */
        OK(&q, delayq_open(&q, &o));
        snprintf(proxy->forged, sizeof proxy->forged, "%s", errors[i]);
        proxy_strike(FORGE, 0, 0, 1 << 30);
        status = delayq_load_scripts(&q);
        if (status >= DELAYQ_OK) FAIL("%s: %d", errors[i], status);
        proxy_calm();
        delayq_close(&q);
    }
}
