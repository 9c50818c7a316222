/*
 * With DELAYQ_NO_LUA a handle knows only the hashes of its scripts. Until the
 * scripts are loaded into the server, its calls fail with a text that names the
 * command to run, and an outbox keeps all ops.
 *
 * This file compiles delayq without Lua. load_scripts() is in scripts.c.
 */
#define DELAYQ_STATIC
#define DELAYQ_NO_LUA
#define DELAYQ_IMPLEMENTATION
#include "test.h"

static server s;
static redisContext *c;

static const char advice[] = "run `delayq load-scripts`";

static void flush_scripts(void) {
    freeReplyObject(run(c, "SCRIPT FLUSH"));
}

static delayq_options begin(int64_t lease_ms) {
    delayq_options o;
    server_start(&s, NULL);
    c = server_connect(&s);
    o = options_for(&s, "jobs");
    o.reconnect_max_ms = 50;
    o.lease_ms = lease_ms;
    return o;
}

static void end(delayq *q) {
    delayq_close(q);
    redisFree(c);
    server_end(&s);
}

TEST(without_lua_a_call_says_what_to_run_until_the_scripts_are_loaded) {
    delayq_options o = begin(60000);
    delayq_counts counts;
    delayq_item item;
    redisReply *r;
    delayq q;
    flush_scripts();
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AGAIN);
    CHECK_HAS(delayq_errmsg(&q), advice);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_AGAIN);
    CHECK_HAS(delayq_errmsg(&q), advice);
    CHECK_STATUS(&q, delayq_load_scripts(&q), DELAYQ_ERR_ARG);
    load_scripts(c);
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    OK(&q, delayq_take(&q, &item, 1000));
    /* the scripts are lost while the handle is connected */
    flush_scripts();
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_ERR_AGAIN);
    CHECK_HAS(delayq_errmsg(&q), advice);
    CHECK_STATUS(&q, delayq_count(&q, &counts), DELAYQ_ERR_AGAIN);
    load_scripts(c);
    UNTIL(delayq_ack(&q, &item) == DELAYQ_OK);
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.pending + counts.ready, 0);
    r = run(c, "SCRIPT EXISTS %s", dq_script_take.sha);
    CHECK_INT(r->element[0]->integer, 1);
    freeReplyObject(r);
    end(&q);
}

static void load_later(void *unused) {
    redisContext *own = server_connect(&s);
    (void)unused;
    usleep(300000);
    load_scripts(own);
    redisFree(own);
}

TEST(without_lua_a_take_waits_for_the_scripts) {
    delayq_options o = begin(0);
    delayq_item item;
    pid_t pid;
    delayq q;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    flush_scripts();
    pid = spawn(load_later, NULL);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.len, 1);
    join(pid);
    end(&q);
}

/* Make ten offers, and ack `acks` items. Check that all these ops stay in the
 * outbox until the scripts are loaded. Then take the ten items. */
static void keep_and_settle(delayq *q, delayq_item *items, size_t acks) {
    delayq_outbox_state state;
    delayq_status status;
    size_t i, n;
    flush_scripts();
    for (i = 0; i < 10; i++) OFFER(q, "payload", 0);
    for (i = 0; i < acks; i++) OK(q, delayq_ack(q, &items[i]));
    UNTIL(delayq_tick(q, NULL) == DELAYQ_ERR_AGAIN &&
          strstr(delayq_errmsg(q), advice));
    OK(q, delayq_outbox(q, &state));
    CHECK_INT(state.offers_accepted - state.offers_settled, 10);
    CHECK_INT(state.changes_accepted - state.changes_settled, (int)acks);
    load_scripts(c);
    UNTIL(delayq_flush(q, 100) == DELAYQ_OK);
    OK(q, delayq_outbox(q, &state));
    CHECK_INT(state.dropped, 0);
    for (i = 0; i < 10; i += n) {
        n = 0;
        status = delayq_take_many(q, items + i, 10 - i, &n, 1000);
        if (status < DELAYQ_OK) FAIL("%d: %s", status, delayq_errmsg(q));
    }
}

TEST(without_lua_an_outbox_keeps_everything_until_the_scripts_are_loaded) {
    static const char *const with[] = {"--appendonly", "yes", NULL};
    static char memory[1 << 16];
    delayq_options o = begin(60000);
    delayq_counts counts;
    delayq_item items[10];
    size_t i;
    delayq q;
    o.outbox = memory;
    o.outbox_size = sizeof memory;
    OK(&q, delayq_open(&q, &o));
    keep_and_settle(&q, items, 0);
    keep_and_settle(&q, items, 10);
    for (i = 0; i < 10; i++) OK(&q, delayq_ack(&q, &items[i]));
    OK(&q, delayq_flush(&q, 5000));
    redisFree(c);
    server_kill(&s, SIGTERM);
    server_start_again(&s, with);
    c = server_connect(&s);
    keep_and_settle(&q, items, 0);
    for (i = 0; i < 10; i++) OK(&q, delayq_ack(&q, &items[i]));
    OK(&q, delayq_flush(&q, 5000));
    OK(&q, delayq_count(&q, &counts));
    CHECK_INT(counts.pending + counts.ready + counts.dead, 0);
    end(&q);
}
