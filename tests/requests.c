/* The form of requests. Each script declares the keys that it uses, and no
 * request has more words than hosted servers allow. */
#include "proxy.h"
#include "verbs.h"

/* --- declared keys -------------------------------------------------------- */

/* Returns the n-th word of a line of MONITOR, or "" if there is none. Word 0 is
 * the command. */
static const char *word(const char *line, int n, char to[600]) {
    size_t i = 0;
    for (line = strchr(line, '"'); line && n > 0; n--) {
        for (line++; *line && *line != '"'; line++)
            if (*line == '\\' && line[1]) line++;
        line = *line ? strchr(line + 1, '"') : NULL;
    }
    for (line = line ? line + 1 : ""; *line && *line != '"' && i < 599; line++)
        to[i++] = *line;
    to[i] = '\0';
    return to;
}

/* Returns 1 for keys that scripts use without declaring them: the counters and,
 * if the wire has no mirror, the mirror. An ACL may forbid these keys, and the
 * commands with them may fail. */
static int may_be_undeclared(const char *command, const char *key,
                             const delayq *q) {
    return strcmp(command, "HINCRBY") == 0 || strcmp(command, "HMGET") == 0 ||
           (strcmp(key, "redisson_delay_queue:{jobs}") == 0 &&
            (!q->wire || !q->wire->mirror));
}

/* Check the lines of MONITOR up to an ECHO. Returns how many are scripts. */
static int check_keys(redisContext *m, const delayq *q) {
    char declared[8][600], count[600], name[600], key[600];
    int scripts = 0, keys = 0, k;
    for (;;) {
        redisReply *r;
        const char *line;
        if (redisGetReply(m, (void **)&r) != REDIS_OK)
            FAIL("MONITOR: %s", m->errstr);
        line = r->str;
        word(line, 0, name);
        if (strcmp(name, "ECHO") == 0) {
            freeReplyObject(r);
            return scripts;
        }
        if (strncmp(name, "EVAL", 4) == 0) {
            scripts++;
            keys = atoi(word(line, 2, count));
            if (keys < 1) FAIL("no key is declared: %.300s", line);
            for (k = 0; k < keys && k < 8; k++) word(line, 3 + k, declared[k]);
        } else if (strstr(line, " lua]") && strcmp(name, "TIME") != 0 &&
                   strcmp(name, "PUBLISH") != 0 &&
                   strcmp(name, "PUBSUB") != 0) {
            word(line, 1, key);
            for (k = 0; k < keys; k++)
                if (strcmp(key, declared[k]) == 0) break;
            if (k == keys && !may_be_undeclared(name, key, q))
                FAIL("%s is not declared: %.300s", key, line);
            if (k < keys && strncmp(key, "delayq_counters", 15) == 0)
                FAIL("the counters are declared: %.300s", line);
        }
        freeReplyObject(r);
    }
}

static void nothing(void) {
}

static void wait_for_one(void *unused) {
    delayq_item item;
    delayq q;
    (void)unused;
    open_queue(&q, "jobs");
    OK(&q, delayq_take(&q, &item, 60000));
    delayq_close(&q);
}

TEST(each_script_declares_the_keys_that_it_uses) {
    static char box[65536];
    int kind, scripts = 0;
    for (kind = 0; kind < 7; kind++) {
        delayq_options o = options_for(&main_server, "jobs");
        redisContext *m = server_connect(&main_server);
        delayq q;
        ask("FLUSHALL");
        ask("SCRIPT FLUSH");
        freeReplyObject(run(m, "MONITOR"));
        if (kind < 6) o.wire = WIRE(kind % WIRES);
        if (kind == 6) SET_BROADCAST(o);
        if (kind < 3) o.lease_ms = 60000;
        o.counters = 1;
        if (kind % 2) {
            o.outbox = box;
            o.outbox_size = sizeof box;
        }
        OK(&q, delayq_open(&q, &o));
        if (q.outbox) {
            OFFER(&q, "x", 0);
            OK(&q, delayq_flush(&q, 20000));
            delayq_close(&q);
            o.outbox = NULL;
            o.outbox_size = 0;
            OK(&q, delayq_open(&q, &o));
        }
        each_verb(&q, nothing);
        ask("ECHO done");
        scripts += check_keys(m, &q);
        delayq_close(&q);
        redisFree(m);
    }
    printf("    %d scripts\n", scripts);
    CHECK(scripts > 150);
}

TEST(waiters_declare_the_keys_that_they_use) {
    redisContext *m = server_connect(&main_server);
    pid_t waiters[3];
    delayq q;
    int i;
    open_queue(&q, "jobs");
    freeReplyObject(run(m, "MONITOR"));
    for (i = 0; i < 3; i++) waiters[i] = spawn(wait_for_one, NULL);
    UNTIL(ask_int("ZCARD delayq_waiters:{jobs}") == 3);
    for (i = 0; i < 3; i++) OFFER(&q, "x", 0);
    for (i = 0; i < 3; i++) join(waiters[i]);
    ask("ECHO done");
    CHECK(check_keys(m, &q) > 8);
    delayq_close(&q);
    redisFree(m);
}

/* --- words ---------------------------------------------------------------- */

#define MANY 10000

TEST(no_request_has_more_words_than_hosted_servers_allow) {
    enum { BOX = 4 << 20 };
    delayq_message *m = SHARED(delayq_message, MANY);
    delayq_item *items = SHARED(delayq_item, MANY);
    static char keys[MANY][8];
    char *box = SHARED(char, BOX);
    delayq_options o = options_for(&main_server, "jobs");
    const int many = test_brief() ? 2500 : MANY;
    size_t taken = 0, count;
    delayq q;
    int i, round;
    proxy_start(&main_server);
    o.url = proxy_url();
    o.lease_ms = 3600000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < many; i++) m[i].data = "x", m[i].len = 1;
    OK(&q, delayq_offer_many(&q, m, (size_t)many));
    for (; taken < (size_t)many; taken += count)
        OK(&q, delayq_take_many(&q, items + taken, (size_t)many - taken, &count,
                                20000));
    OK(&q, delayq_ack_many(&q, items, (size_t)many));
    for (i = 0; i < many; i++) {
        sprintf(keys[i], "k%d", i);
        if (i % 3) m[i].key = keys[i], m[i].key_ttl_ms = 60000;
    }
    OK(&q, delayq_offer_many(&q, m, (size_t)many));
    delayq_close(&q);
    CHECK(proxy->requests > many / 500);
    /* Put small ops into both rings. Long runs of one op make the longest
     * requests. */
    o.outbox = box;
    o.outbox_size = BOX;
    OK(&q, delayq_open(&q, &o));
    for (round = 0; round < 2; round++) {
        for (i = 0; i < 4000; i++) OFFER(&q, "", 0);
        OK(&q, delayq_flush(&q, 60000));
        taken = 0;
        UNTIL((delayq_take_many(&q, items + taken, 4000 - taken, &count, 0),
               taken += count) == 4000);
        for (i = 0; i < 4000; i++) {
            switch (round ? i % 4 : 0) {
            case 0: OK(&q, delayq_ack(&q, &items[i])); break;
            case 1: OK(&q, delayq_nack(&q, &items[i], 1000)); break;
            case 2: OK(&q, delayq_bury(&q, &items[i], NULL)); break;
            default: OK(&q, delayq_nack(&q, &items[i], DELAYQ_RELEASE));
            }
        }
        OK(&q, delayq_flush(&q, 60000));
    }
    delayq_close(&q);
    printf("    %ld requests, %ld words at most\n", proxy->requests,
           proxy->most_words);
    CHECK(proxy->most_words > 2000);
    CHECK(proxy->most_words <= 3900);
}
