/* The Lua scripts: they load, and their pieces keep the limits of C and Lua. */
#include "lua/scripts.h"
#include "proxy.h"
#include "test.h"

void load_scripts(redisContext *c) {
    redisReply *pong = (redisReply *)redisCommand(c, "PING");
    int open = pong && pong->type != REDIS_REPLY_ERROR; /* no password */
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

/* C99 guarantees string literals of 4,095 bytes; more than 3,000 are more than
 * one idea. */
TEST(no_piece_of_a_script_is_longer_than_3000_bytes) {
    size_t i, k;
    for (i = 0; i < SCRIPTS; i++)
        for (k = 0; all_scripts[i]->parts[k]; k++)
            if (strlen(all_scripts[i]->parts[k]) > 3000)
                FAIL("part %zu of %s has %zu bytes", k, all_scripts[i]->name,
                     strlen(all_scripts[i]->parts[k]));
}

/* Each piece is a complete chunk of its own: it compiles alone. */
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

/* A script is uploaded once, when the server first says that it lacks it. */
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

/* --- how scripts reach the server ------------------------------------------
 */

/* The bytes that a handle sends from its open to the end of `use`. */
static long bytes_sent(void (*use)(delayq *)) {
    delayq_options o = options_for(&main_server, "jobs");
    long before = proxy->passed[0];
    delayq q;
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    use(&q);
    delayq_close(&q);
    return proxy->passed[0] - before;
}
static void use_offer(delayq *q) {
    OK(q, delayq_offer(q, "hello", 5, 0));
}
static void use_take(delayq *q) {
    delayq_item item;
    OK(q, delayq_take(q, &item, 20000));
}

TEST(a_server_that_has_the_scripts_receives_few_bytes) {
    long offer, take;
    load_scripts(main_connection());
    proxy_start(&main_server);
    offer = bytes_sent(use_offer);
    usleep(2000);
    take = bytes_sent(use_take);
    printf("    %ld bytes for an offer, %ld for a take\n", offer, take);
    CHECK(offer > 100 && offer < 1024);
    CHECK(take > 100 && take < 2560);
}

static delayq_item leased(delayq *q) {
    delayq_item item;
    ask("FLUSHALL");
    OK(q, delayq_offer(q, "x", 1, 0));
    OK(q, delayq_take(q, &item, 20000));
    ask("SCRIPT FLUSH");
    return item;
}

/* Each verb succeeds at its first call on a server that has lost its scripts.
 */
static void each_verb(delayq *q) {
    delayq_message m[2];
    delayq_counts counts;
    delayq_dead letter;
    delayq_item item, items[2];
    delayq_ticket ticket;
    int64_t due = 1, n;
    size_t count;
    ask("SCRIPT FLUSH");
    OK(q, delayq_offer(q, "x", 1, 0));
    memset(m, 0, sizeof m);
    m[0].data = m[1].data = "y";
    m[0].len = m[1].len = 1;
    m[0].key = "k";
    m[0].key_ttl_ms = 60000;
    m[1].delay_ms = 60000;
    ask("SCRIPT FLUSH");
    OK(q, delayq_offer_many(q, m, 2));
    ticket = m[1].ticket;
    ask("SCRIPT FLUSH");
    OK(q, delayq_reschedule(q, &ticket, 90000));
    ask("SCRIPT FLUSH");
    OK(q, delayq_cancel(q, &ticket));
    ask("SCRIPT FLUSH");
    usleep(2000);
    OK(q, delayq_take_many(q, items, 2, &count, 20000));
    item = leased(q);
    OK(q, delayq_ack(q, &item));
    item = leased(q);
    OK(q, delayq_nack(q, &item, 1000));
    item = leased(q);
    OK(q, delayq_extend(q, &item, 1000));
    item = leased(q);
    OK(q, delayq_bury(q, &item));
    ask("SCRIPT FLUSH");
    OK(q, delayq_dead_peek(q, &letter, 1, &count, 0));
    ask("SCRIPT FLUSH");
    OK(q, delayq_dead_redrive(q, 1, &count));
    ask("SCRIPT FLUSH");
    OK(q, delayq_dead_clear(q, &n));
    item = leased(q);
    OK(q, delayq_peek(q, items, 2, &count, NULL));
    ask("SCRIPT FLUSH");
    OK(q, delayq_count(q, &counts));
    ask("SCRIPT FLUSH");
    OK(q, delayq_count_due(q, &due, 1, &n));
    ask("SCRIPT FLUSH");
    OK(q, delayq_tick(q, NULL));
    ask("SCRIPT FLUSH");
    OK(q, delayq_clear(q, &n));
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
        each_verb(&q);
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
