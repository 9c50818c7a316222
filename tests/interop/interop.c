/*
 * delayq together with unmodified Redisson. Peer.java runs the commands that
 * these tests send. Environment variables select the version of Redisson:
 *
 * DELAYQ_REDISSON_CP        the class path, with Peer and Example
 * DELAYQ_REDISSON_WIRE      old (<= 3.21.0) or new (>= 3.21.1)
 * DELAYQ_REDISSON_EXAMPLE   examples/redisson/example.c, built
 */
#define DELAYQ_IMPLEMENTATION
#include "../test.h"
#include <arpa/inet.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ZSET "redisson_delay_queue_timeout:{q}"
#define MIRROR "redisson_delay_queue:{q}"

static server s;
static char tcp_url[64], port_text[16];
static redisContext *c;

static int is_old(void) {
    const char *wire = getenv("DELAYQ_REDISSON_WIRE");
    return wire && strcmp(wire, "old") == 0;
}

static delayq_wire fleet(void) {
    return is_old() ? DELAYQ_REDISSON_OLD : DELAYQ_REDISSON;
}

/* The server has a TCP port, since Redisson uses only TCP. */
static void start_server(void) {
    const char *with[] = {"--port", port_text, "--bind", "127.0.0.1", NULL};
    snprintf(port_text, sizeof port_text, "%d", free_port());
    snprintf(tcp_url, sizeof tcp_url, "redis://127.0.0.1:%s", port_text);
    server_start(&s, with);
    c = server_connect(&s);
}

static long long number(const char *format, ...) {
    va_list args;
    redisReply *r;
    long long value;
    va_start(args, format);
    r = (redisReply *)redisvCommand(c, format, args);
    va_end(args);
    if (!r || r->type == REDIS_REPLY_ERROR) FAIL("%s", r ? r->str : format);
    value = r->integer;
    freeReplyObject(r);
    return value;
}

static void open_q(delayq *q, delayq_wire wire, int64_t lease_ms) {
    delayq_options o = options_for(&s, "q");
    o.wire = wire;
    o.lease_ms = lease_ms;
    OK(q, delayq_open(q, &o));
}

static void finish(void) {
    redisFree(c);
    server_end(&s);
}

/* --- the Java side ------------------------------------------------------- */

typedef struct peer {
    pid_t pid;
    FILE *to, *from;
} peer;

static char answer[1 << 20];

static const char *tell(peer *p, const char *format, ...) {
    va_list args;
    char *end;
    va_start(args, format);
    vfprintf(p->to, format, args);
    va_end(args);
    fputc('\n', p->to);
    fflush(p->to);
    if (!fgets(answer, sizeof answer, p->from))
        FAIL("Java is gone: %s", format);
    end = strchr(answer, '\n');
    if (end) *end = '\0';
    if (strncmp(answer, "error", 5) == 0) FAIL("%s: %s", format, answer);
    return answer;
}

static void start(peer *p, const char *codec, const char *skew) {
    const char *cp = getenv("DELAYQ_REDISSON_CP");
    int in[2], out[2];
    CHECK(cp != NULL);
    CHECK(pipe(in) == 0 && pipe(out) == 0);
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        close(in[1]);
        close(out[0]);
        unsetenv("LD_PRELOAD");
        if (skew) {
            setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1", 1);
            execlp("faketime", "faketime", "-f", skew, "java", "-cp", cp,
                   "Peer", tcp_url, codec, (char *)NULL);
        }
        execlp("java", "java", "-Xshare:auto", "-XX:TieredStopAtLevel=1", "-cp",
               cp, "Peer", tcp_url, codec, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p->to = fdopen(in[1], "w");
    p->from = fdopen(out[0], "r");
    do {
        if (!fgets(answer, sizeof answer, p->from)) FAIL("Java doesn't start");
    } while (strncmp(answer, "ready", 5) != 0);
}

static void stop(peer *p) {
    fclose(p->to);
    fclose(p->from);
    kill(p->pid, SIGKILL);
    waitpid(p->pid, NULL, 0);
}

static const char *hex(const void *bytes, size_t len) {
    static char text[512];
    size_t i;
    text[0] = 'x';
    text[1] = '\0';
    for (i = 0; i < len; i++)
        snprintf(text + 1 + 2 * i, 3, "%02x",
                 ((const unsigned char *)bytes)[i]);
    return text;
}

#define HEX(text) hex(text, strlen(text))

static void took(delayq *q, const void *bytes, size_t len) {
    delayq_item item;
    OK(q, delayq_take(q, &item, 20000));
    if (item.len != len || memcmp(item.data, bytes, len) != 0)
        FAIL("took %s", hex(item.data, item.len < 200 ? item.len : 200));
}

/* Wait until Redisson has subscribed and polled. If the reply to its first poll
 * came after a message, Redisson would forget the message. */
static void settle(void) {
    UNTIL(number("EVAL %s 0", "return redis.call('PUBSUB', 'NUMSUB',\n"
                              "  'redisson_delay_queue_channel:{q}')[2]") >= 1);
    usleep(300000);
}

/* Wake Redisson in case it still sleeps. Returns the number of ready items. */
static long long ready_after_nudge(void) {
    usleep(50000);
    number("PUBLISH redisson_delay_queue_channel:{q} 1");
    return number("LLEN q");
}

/* --- 1: both offer, both take -------------------------------------------- */

static void cross(const char *codec, const char *java, size_t jlen,
                  const char *wire, size_t wlen) {
    peer p;
    delayq q;
    start(&p, codec, NULL);
    open_q(&q, fleet(), 0);
    tell(&p, "offer q 50 %s", hex(java, jlen));
    tell(&p, "unwatch q"); /* from now on only C moves items */
    took(&q, wire, wlen);
    OK(&q, delayq_offer(&q, wire, wlen, 50));
    tell(&p, "watch q");
    CHECK_TEXT(tell(&p, "take q 20000"), hex(java, jlen));
    CHECK_TEXT(tell(&p, "push q %s", hex(java, jlen)), "true");
    took(&q, wire, wlen);
    delayq_close(&q);
    stop(&p);
    CHECK_INT(number("DBSIZE"), 0);
}

TEST(payloads_cross_byte_for_byte_in_each_codec) {
    start_server();
    cross("string", "h\xc3\xa4llo", 6, "h\xc3\xa4llo", 6);
    cross("bytes", "\0\xff\r\n\1", 5, "\0\xff\r\n\1", 5);
    cross("json", "say \"hi\"", 8, "\"say \\\"hi\\\"\"", 12);
    finish();
}

TEST(the_default_codecs_bytes_pass_through_c_unread) {
    unsigned char bytes[256];
    peer p;
    delayq q;
    delayq_item item;
    size_t n;
    start_server();
    start(&p, "default", NULL);
    open_q(&q, fleet(), 0);
    CHECK_TEXT(tell(&p, "push q %s", HEX("hello")), "true");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK(item.len > 5 && item.len < sizeof bytes);
    memcpy(bytes, item.data, n = item.len);
    OK(&q, delayq_offer(&q, bytes, n, 50));
    tell(&p, "watch q");
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("hello"));
    stop(&p);
    delayq_close(&q);
    finish();
}

/* Count an item whose payload is a number. Each number may come only once. */
static void mark(unsigned char *seen, int limit, const char *text, size_t len) {
    char number_text[16];
    int id;
    if (len >= sizeof number_text) FAIL("no number: %.*s", (int)len, text);
    memcpy(number_text, text, len);
    number_text[len] = '\0';
    id = atoi(number_text);
    CHECK(id >= 0 && id < limit);
    if (seen[id]++) FAIL("item %d came twice", id);
}

static void mark_hex(unsigned char *seen, int limit, char *words) {
    char *word = strtok(words, " ");
    for (; word && *word == 'x'; word = strtok(NULL, " ")) {
        char text[16];
        size_t n = 0;
        for (word++; word[0] && word[1] && n < 15; word += 2)
            text[n++] =
                (char)(dq_num_unhex(word[0]) * 16 + dq_num_unhex(word[1]));
        mark(seen, limit, text, n);
    }
}

static void all_seen(const unsigned char *seen, int limit) {
    int i;
    for (i = 0; i < limit; i++)
        if (seen[i] != 1) FAIL("item %d came %d times", i, seen[i]);
}

TEST(both_offer_and_both_take_each_item_once) {
    static unsigned char seen[2000];
    peer p, producer;
    delayq q;
    delayq_item item;
    int i, mine = 0;
    start_server();
    start(&p, "string", NULL);
    start(&producer, "string", NULL);
    open_q(&q, fleet(), 0);
    tell(&p, "watch q");
    tell(&p, "consume q");
    fprintf(producer.to, "fill q 0 1000 0\n");
    fflush(producer.to);
    for (i = 1000; i < 2000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        OFFER(&q, text, i % 50);
        if (delayq_take(&q, &item, 0) == DELAYQ_OK) {
            mark(seen, 2000, (const char *)item.data, item.len);
            mine++;
        }
    }
    CHECK(fgets(answer, sizeof answer, producer.from) != NULL);
    UNTIL((delayq_take(&q, &item, 5) == DELAYQ_OK &&
           (mark(seen, 2000, (const char *)item.data, item.len), mine++, 0)) ||
          mine + atoi(tell(&p, "count")) >= 2000);
    tell(&p, "consumed");
    mark_hex(seen, 2000, answer);
    all_seen(seen, 2000);
    printf("    C took %d, Java %d\n", mine, 2000 - mine);
    stop(&p);
    stop(&producer);
    delayq_close(&q);
    CHECK_INT(number("DBSIZE"), 0);
    finish();
}

/* --- 2: who moves -------------------------------------------------------- */

#define MANY 5000

static void fill_from_c(delayq *q, int from, int count, int64_t delay_ms) {
    int i;
    for (i = from; i < from + count; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        OFFER(q, text, delay_ms + i % 50);
    }
}

/* Check that the ready list has each item once, and no other items. */
static void check_ready(void) {
    static unsigned char seen[MANY];
    redisReply *r;
    size_t i;
    memset(seen, 0, sizeof seen);
    r = run(c, "LRANGE q 0 -1");
    for (i = 0; i < r->elements; i++)
        mark(seen, MANY, r->element[i]->str, r->element[i]->len);
    freeReplyObject(r);
    all_seen(seen, MANY);
    CHECK_INT(number("ZCARD " ZSET), 0);
    CHECK_INT(number("LLEN " MIRROR), 0);
    freeReplyObject(run(c, "FLUSHALL"));
}

TEST(five_thousand_items_whoever_moves_them) {
    peer p;
    delayq q;
    int64_t wait;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    /* Only Java moves the items. */
    tell(&p, "fill q 0 %d 0", MANY / 2);
    fill_from_c(&q, MANY / 2, MANY / 2, 0);
    UNTIL(ready_after_nudge() >= MANY);
    check_ready();
    /* Only C moves the items. */
    tell(&p, "fill q 0 %d 3000", MANY / 2);
    tell(&p, "unwatch q");
    fill_from_c(&q, MANY / 2, MANY / 2, 0);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && number("LLEN q") >= MANY);
    check_ready();
    /* Both move the items. */
    tell(&p, "fill q 0 %d 0", MANY / 2);
    fill_from_c(&q, MANY / 2, MANY / 2, 0);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && number("LLEN q") >= MANY);
    check_ready();
    stop(&p);
    delayq_close(&q);
    finish();
}

/* --- 3: an earlier offer wakes ------------------------------------------- */

TEST(an_earlier_offer_wakes_the_other_side) {
    peer p, producer;
    delayq q;
    start_server();
    start(&p, "string", NULL);
    start(&producer, "string", NULL);
    open_q(&q, fleet(), 0);
    tell(&p, "offer q 3600000 %s", HEX("late"));
    settle();
    OFFER(&q, "early", 100);
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("early"));
    tell(&p, "unwatch q");
    /* The producer's own transfer is off, too, so only C waits. */
    fprintf(producer.to, "offer q 100 %s\nunwatch q\n", HEX("early"));
    fflush(producer.to);
    took(&q, "early", 5);
    stop(&p);
    stop(&producer);
    delayq_close(&q);
    finish();
}

/* --- 4: what Java sees --------------------------------------------------- */

TEST(java_sees_what_c_has_offered) {
    peer p;
    delayq q;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    OFFER(&q, "3", 60000);
    OFFER(&q, "1", 50000);
    OFFER(&q, "2", 40000);
    OFFER(&q, "4", 30000);
    CHECK_TEXT(tell(&p, "size q"), "4");
    CHECK_TEXT(tell(&p, "contains q %s", HEX("1")), "true");
    CHECK_TEXT(tell(&p, "contains q %s", HEX("9")), "false");
    CHECK_TEXT(tell(&p, "peek q"), HEX("3"));
    CHECK_TEXT(tell(&p, "readall q"), "x33 x31 x32 x34");
    CHECK_TEXT(tell(&p, "remove q %s", HEX("1")), "true");
    CHECK_TEXT(tell(&p, "remove q %s", HEX("1")), "false");
    CHECK_TEXT(tell(&p, "poll q"), HEX("3"));
    CHECK_TEXT(tell(&p, "polln q 1"), HEX("2"));
    CHECK_TEXT(tell(&p, "removeall q %s", HEX("4")), "true");
    CHECK_TEXT(tell(&p, "size q"), "0");
    CHECK_INT(number("DBSIZE"), 0);
    stop(&p);
    delayq_close(&q);
    finish();
}

TEST(a_new_redisson_delivers_native_elements_but_does_not_list_them) {
    peer p;
    delayq q;
    if (is_old()) return;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, DELAYQ_NATIVE, 0);
    tell(&p, "watch q");
    settle();
    OFFER(&q, "x", 500);
    CHECK_TEXT(tell(&p, "size q"), "0");
    CHECK_TEXT(tell(&p, "contains q %s", HEX("x")), "false");
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("x"));
    CHECK_INT(number("DBSIZE"), 0);
    stop(&p);
    delayq_close(&q);
    finish();
}

/* --- 5: leases beside Java ----------------------------------------------- */

static void hold_and_hang(void *argument) {
    delayq q;
    delayq_item item;
    int i;
    (void)argument;
    open_q(&q, fleet(), 400);
    for (i = 0; i < 3; i++) OK(&q, delayq_take(&q, &item, 20000));
    freeReplyObject(run(server_connect(&s), "SET held yes"));
    for (;;) pause();
}

TEST(what_a_killed_worker_held_comes_back_through_javas_transfer) {
    peer p;
    delayq q;
    pid_t worker;
    int i;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    for (i = 0; i < 3; i++) OFFER(&q, "x", 0);
    worker = spawn(hold_and_hang, NULL);
    UNTIL(number("EXISTS held") == 1);
    kill(worker, SIGKILL);
    waitpid(worker, NULL, 0);
    CHECK_INT(number("ZCARD " ZSET), 3);
    CHECK_INT(number("LLEN " MIRROR), 0); /* so Java's poll() can't take them */
    tell(&p, "watch q");
    for (i = 0; i < 3; i++) CHECK_TEXT(tell(&p, "take q 9000"), HEX("x"));
    CHECK_INT(number("ZCARD " ZSET), 0);
    stop(&p);
    delayq_close(&q);
    finish();
}

TEST(java_does_not_see_a_leased_or_nacked_item_until_it_is_moved) {
    peer p;
    delayq q;
    delayq_item item;
    int nacked;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 60000);
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    for (nacked = 0; nacked < 2; nacked++) {
        delayq_counts counts;
        if (nacked) OK(&q, delayq_nack(&q, &item, 3600000));
        OK(&q, delayq_count(&q, &counts));
        CHECK_INT(counts.pending, 1);
        CHECK_TEXT(tell(&p, "size q"), "0");
        CHECK_TEXT(tell(&p, "contains q %s", HEX("x")), "false");
        CHECK_TEXT(tell(&p, "readall q"), "-");
        CHECK_TEXT(tell(&p, "poll q"), "-");
        CHECK_TEXT(tell(&p, "remove q %s", HEX("x")), "false");
        CHECK_TEXT(tell(&p, "take q 10"), "-");
    }
    /* Java's transfer moves the item when it is due. Make it due now. */
    number("EVAL %s 1 " ZSET,
           "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
           "return redis.call('ZADD', KEYS[1], 1, e)");
    number("PUBLISH redisson_delay_queue_channel:{q} 1");
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("x"));
    CHECK_INT(number("DBSIZE"), 0);
    stop(&p);
    delayq_close(&q);
    finish();
}

/* --- 6: what a mixed fleet inherits -------------------------------------- */

/* While a queue is paused, delayq's handles neither move nor take its items,
 * but Java does. */
TEST(a_pause_does_not_stop_java) {
    peer p;
    delayq q;
    delayq_item item;
    int64_t wait;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    OK(&q, delayq_pause(&q, 1));
    OFFER(&q, "first", 20);
    OFFER(&q, "second", 20);
    CHECK_STATUS(&q, delayq_take(&q, &item, 100), DELAYQ_EMPTY);
    OK(&q, delayq_tick(&q, &wait));
    CHECK_INT(number("LLEN q"), 0);
    tell(&p, "watch q");
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("first"));
    CHECK_STATUS(&q, delayq_take(&q, &item, 100), DELAYQ_EMPTY);
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("second"));
    stop(&p);
    OFFER(&q, "third", 20);
    OK(&q, delayq_pause(&q, 0));
    took(&q, "third", 5);
    delayq_close(&q);
    CHECK_INT(number("DBSIZE"), 0);
    finish();
}

TEST(a_fast_java_clock_delivers_early) {
    peer p;
    delayq q;
    redisReply *r;
    long long now_ms, due_ms;
    if (system("command -v faketime >/dev/null") != 0)
        test_skip("faketime is not installed");
    start_server();
    open_q(&q, fleet(), 0);
    start(&p, "string", "+5s");
    OFFER(&q, "x", 8000);
    r = run(c, "ZRANGE " ZSET " 0 0 WITHSCORES");
    due_ms = atoll(r->element[1]->str);
    freeReplyObject(r);
    tell(&p, "watch q");
    CHECK_TEXT(tell(&p, "take q 20000"), HEX("x"));
    r = run(c, "TIME");
    now_ms =
        atoll(r->element[0]->str) * 1000 + atoll(r->element[1]->str) / 1000;
    freeReplyObject(r);
    if (now_ms >= due_ms) FAIL("came %lld ms after due", now_ms - due_ms);
    stop(&p);
    delayq_close(&q);
    finish();
}

TEST(an_undecodable_element_jams_java_until_c_moves_it_away) {
    peer p;
    delayq q;
    int64_t wait;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    tell(&p, "watch q");
    freeReplyObject(run(c, "ZADD " ZSET " 2 poison"));
    OFFER(&q, "good", 0);
    usleep(5000); /* so that Java's item is due later, and comes second */
    tell(&p, "offer q 0 %s", HEX("better")); /* makes Java poll */
    CHECK_TEXT(tell(&p, "take q 1000"), "-");
    /* Java's BLPOP may end a little later than its take. Until then the BLPOP
     * would get an item that nobody reads. */
    UNTIL(number("EVAL %s 0", "return tonumber(string.match(\n"
                              "  redis.call('INFO', 'clients'),\n"
                              "  'blocked_clients:(%d+)'))") == 0);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && number("LLEN q") == 2);
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("good"));
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("better"));
    CHECK_INT(number("LLEN delayq_dead:{q}"), 1);
    stop(&p);
    delayq_close(&q);
    finish();
}

TEST(attempts_begin_anew_when_java_has_moved_the_item) {
    peer p;
    delayq q;
    delayq_item item;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 60000);
    OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.attempt, is_old() ? 0 : 1);
    OK(&q, delayq_nack(&q, &item, 10));
    tell(&p, "watch q");
    UNTIL(number("LLEN q") == 1);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.attempt, 0); /* Java keeps only the payload */
    stop(&p);                   /* otherwise it may move the item once more */
    OK(&q, delayq_nack(&q, &item, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    if (!is_old()) CHECK_INT(item.attempt, 2);
    OK(&q, delayq_ack(&q, &item));
    delayq_close(&q);
    finish();
}

/* A native element would stop an old Redisson's transfers for good, so a native
 * handle must refuse this queue. */
TEST(an_old_fleet_is_jammed_by_a_native_element_and_guarded_against_it) {
    unsigned char e[64];
    peer p;
    delayq q;
    delayq_item item;
    delayq_options o;
    size_t n = element(e, 16, 8, "ABCDEFGHabcde\0\0\1", "native", 6);
    if (!is_old()) return;
    start_server();
    start(&p, "string", NULL);
    tell(&p, "offer q 1500 %s", HEX("java"));
    o = options_for(&s, "q");
    o.lease_ms = 60000;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_WIRE);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_WIRE);
    CHECK_STATUS(&q, delayq_take(&q, &item, 3000), DELAYQ_ERR_WIRE);
    delayq_close(&q);
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("java"));
    /* Show that a native element stops Redisson's transfers. */
    freeReplyObject(run(c, "ZADD " ZSET " 2 %b", e, n));
    tell(&p, "offer q 0 %s", HEX("stuck"));
    CHECK_TEXT(tell(&p, "take q 2000"), "-");
    CHECK_INT(number("ZCARD " ZSET), 2);
    stop(&p);
    finish();
}

/* --- 7: Redisson's own tests, rewritten ---------------------------------- */

TEST(offers_of_1_5_4_2_3_arrive_in_order_and_never_early) {
    static const int order[] = {1, 5, 4, 2, 3};
    peer p;
    delayq q;
    delayq_item item;
    int i;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    for (i = 0; i < 5; i++) {
        char text[2] = {(char)('0' + order[i]), 0};
        if (i % 2)
            OFFER(&q, text, order[i] * 1000);
        else
            tell(&p, "offer q %d %s", order[i] * 1000, HEX(text));
    }
    tell(&p, "unwatch q");
    for (i = 1; i <= 5; i++) {
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK_INT(*(const char *)item.data, '0' + i);
        CHECK(item.late_us >= 0);
    }
    stop(&p);
    delayq_close(&q);
    CHECK_INT(number("DBSIZE"), 0);
    finish();
}

TEST(equal_payloads_are_kept_apart) {
    peer p;
    delayq q;
    int i;
    start_server();
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    for (i = 0; i < 3; i++) {
        OFFER(&q, "same", 100);
        tell(&p, "offer q 100 %s", HEX("same"));
    }
    for (i = 0; i < 3; i++) {
        took(&q, "same", 4);
        CHECK_TEXT(tell(&p, "take q 9000"), HEX("same"));
    }
    CHECK_INT(number("DBSIZE"), 0);
    stop(&p);
    delayq_close(&q);
    finish();
}

static void interrupt_then_offer(void *unused) {
    (void)unused;
    usleep(200000);
    kill(getppid(), SIGUSR1);
}

static delayq interrupted;
static void on_signal(int sig) {
    (void)sig;
    delayq_wake(&interrupted);
}

TEST(an_interrupted_take_does_not_lose_the_next_item) {
    peer p;
    delayq_item item;
    pid_t child;
    start_server();
    start(&p, "string", NULL);
    open_q(&interrupted, fleet(), 0);
    signal(SIGUSR1, on_signal);
    child = spawn(interrupt_then_offer, NULL);
    CHECK_STATUS(&interrupted, delayq_take(&interrupted, &item, DELAYQ_FOREVER),
                 DELAYQ_WOKEN);
    join(child);
    tell(&p, "offer q 50 %s", HEX("next"));
    CHECK_TEXT(tell(&p, "take q 9000"), HEX("next"));
    tell(&p, "consume q");
    tell(&p, "interrupt");
    OFFER(&interrupted, "after", 50);
    took(&interrupted, "after", 5);
    stop(&p);
    delayq_close(&interrupted);
    finish();
}

TEST(a_server_restarted_while_a_take_waits_loses_nothing) {
    const char *with[] = {"--port",        port_text,      "--bind",
                          "127.0.0.1",     "--appendonly", "yes",
                          "--appendfsync", "always",       NULL};
    peer p;
    delayq q;
    delayq_item item;
    start_server();
    server_kill(&s, SIGTERM);
    redisFree(c);
    server_start_again(&s, with);
    c = server_connect(&s);
    start(&p, "string", NULL);
    open_q(&q, fleet(), 0);
    tell(&p, "offer q 6000 %s", HEX("kept"));
    tell(&p, "unwatch q");
    CHECK_STATUS(&q, delayq_take(&q, &item, 100), DELAYQ_EMPTY);
    server_kill(&s, SIGKILL);
    redisFree(c);
    server_start_again(&s, with);
    c = server_connect(&s);
    took(&q, "kept", 4);
    stop(&p);
    delayq_close(&q);
    finish();
}

/* --- 8: payloads that look like another format ---------------------------- */

#define CROWD 20000

typedef struct shaped {
    unsigned char len, bytes[63];
} shaped;

static shaped sent[CROWD], received[CROWD];
static int received_count;

static size_t random_bytes(unsigned char *to, int n) {
    int i;
    for (i = 0; i < n; i++) to[i] = (unsigned char)(rand() % 256);
    return (size_t)n;
}

/* Make a payload that lets an old element look new: one NUL if the id begins
 * with 8, or a byte, a length and as many bytes if the id begins with 16. */
static void make_shaped(shaped *to) {
    unsigned char length[128], any[64];
    int size = rand() % 2 ? 8 : 4, rest = rand() % 30;
    size_t n;
    memset(to, 0, sizeof *to);
    switch (rand() % 8) {
    case 0: n = 1; break;
    case 1: n = random_bytes(to->bytes, 1 + rand() % 50); break;
    default:
        n = random_bytes(to->bytes, 1);
        random_bytes(any, rest);
        element(length, 0, size, "12345678", any, (size_t)rest);
        memcpy(to->bytes + n, length + 8, (size_t)(size + rest));
        n += (size_t)(size + rest);
    }
    to->len = (unsigned char)n;
}

/* Offer payloads as Redisson does, with ids that begin with 16 or 8. */
static void offer_shaped_raw(const shaped *from, int count) {
    unsigned char e[128], id[8];
    int i;
    for (i = 0; i < count; i++) {
        size_t n;
        void *r;
        random_bytes(id, 8);
        id[0] = i % 2 ? 16 : 8;
        id[7] = 0x43; /* a double between 2^49 and 2^65 */
        n = element(e, is_old() ? 0 : 8, 8, (const char *)id, from[i].bytes,
                    from[i].len);
        redisAppendCommand(c, "ZADD " ZSET " 4e12 %b", e, n);
        redisAppendCommand(c, "RPUSH " MIRROR " %b", e, n);
        CHECK(redisGetReply(c, &r) == REDIS_OK);
        freeReplyObject(r);
        CHECK(redisGetReply(c, &r) == REDIS_OK);
        freeReplyObject(r);
    }
}

static void offer_shaped_in_java(peer *p, const shaped *from, int count) {
    int i, k;
    for (i = 0; i < count; i += k) {
        fprintf(p->to, "offerall q 3600000");
        for (k = 0; k < 500 && i + k < count; k++)
            fprintf(p->to, " %s", hex(from[i + k].bytes, from[i + k].len));
        CHECK_TEXT(tell(p, ""), "ok");
    }
    tell(p, "unwatch q");
}

/* Java offers half of the items, delayq a tenth, offer_shaped_raw() the others.
 * Then all of them are made due, in random order. */
static void offer_shaped(peer *p, delayq *q, const shaped *from, int count) {
    int i, mine = count / 2, raw = mine * 4 / 5;
    offer_shaped_raw(from, raw);
    for (i = raw; i < mine; i++)
        OK(q, delayq_offer(q, from[i].bytes, from[i].len, 3600000));
    offer_shaped_in_java(p, from + mine, count - mine);
    CHECK_INT(number("ZCARD " ZSET), count);
    CHECK_INT(number("LLEN " MIRROR), count);
    number("EVAL %s 1 " ZSET,
           "for i, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
           "  redis.call('ZADD', KEYS[1], 1 + i * 7919 % 5000, e)\n"
           "end");
}

static void receive(const void *bytes, size_t len) {
    shaped *to = &received[received_count++];
    CHECK(received_count <= CROWD && len < sizeof to->bytes);
    to->len = (unsigned char)len;
    memcpy(to->bytes, bytes, len);
}

static void take_shaped(delayq *q, int count) {
    static delayq_item items[100];
    size_t n, i;
    for (; count > 0; count -= (int)n) {
        OK(q, delayq_take_many(q, items, 100, &n, 20000));
        for (i = 0; i < n; i++) receive(items[i].data, items[i].len);
        if (items[0].ticket.text[0]) OK(q, delayq_ack_many(q, items, n));
    }
}

static void take_shaped_in_java(peer *p, int count) {
    for (; count > 0; count -= 500) {
        char *word = strtok((tell(p, "drain q 500"), answer), " ");
        for (; word && *word == 'x'; word = strtok(NULL, " ")) {
            unsigned char bytes[64];
            size_t n = 0;
            for (word++; word[0] && word[1] && n < sizeof bytes; word += 2)
                bytes[n++] = (unsigned char)strtol(
                    (char[]){word[0], word[1], 0}, NULL, 16);
            receive(bytes, n);
        }
    }
}

static int compare_shaped(const void *a, const void *b) {
    return memcmp(a, b, sizeof(shaped));
}

TEST(a_crowd_of_items_that_look_like_others_comes_byte_for_byte) {
    peer p;
    delayq q, lender;
    int i, half = CROWD / 2;
    srand(1);
    start_server();
    start(&p, "bytes", NULL);
    open_q(&q, fleet(), 0);
    open_q(&lender, fleet(), 60000);
    for (i = 0; i < CROWD; i++) make_shaped(&sent[i]);
    memset(received, 0, sizeof received);
    received_count = 0;
    /* C moves the items. */
    offer_shaped(&p, &q, sent, half);
    take_shaped(&lender, half / 4);
    take_shaped(&q, half / 4);
    UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK && !number("EXISTS " ZSET));
    take_shaped_in_java(&p, half / 2);
    CHECK_INT(number("DBSIZE"), 0);
    /* Java moves the items. */
    offer_shaped(&p, &q, sent + half, half);
    tell(&p, "watch q");
    UNTIL(ready_after_nudge() == half);
    CHECK_INT(number("LLEN " MIRROR), 0);
    take_shaped(&lender, half / 4);
    take_shaped(&q, half / 4);
    take_shaped_in_java(&p, half / 2);
    CHECK_INT(number("DBSIZE"), 0);
    /* All items came, and no others. */
    CHECK_INT(received_count, CROWD);
    qsort(sent, CROWD, sizeof *sent, compare_shaped);
    qsort(received, CROWD, sizeof *received, compare_shaped);
    for (i = 0; i < CROWD; i++)
        if (compare_shaped(&sent[i], &received[i]) != 0)
            FAIL("payload %d came otherwise: %s", i,
                 hex(received[i].bytes, received[i].len));
    stop(&p);
    delayq_close(&q);
    delayq_close(&lender);
    finish();
}

/* --- 9: every order of starting, right wires and wrong ones --------------- */

typedef enum beginning {
    JAVA_OFFERS,  /* Java comes first, and has offered */
    JAVA_WATCHES, /* Java comes first, to an empty queue */
    C_OFFERS,     /* C comes first, and has offered */
    C_OPENS       /* C comes first, to an empty queue */
} beginning;

typedef struct meeting {
    char name[16];
    delayq_wire wire;
    beginning how;
    delayq q;
    int c_has_offered;
} meeting;

/* Returns 1 if C's elements stop Redisson's transfer, as is documented. */
static int jams(const meeting *m) {
    return m->c_has_offered && is_old() != (m->wire == DELAYQ_REDISSON_OLD);
}

static long long pending(const meeting *m) {
    return number("ZCARD redisson_delay_queue_timeout:{%s}", m->name);
}

static void meet(meeting *m, peer *p) {
    delayq_options o = options_for(&s, m->name);
    delayq_item item;
    int fits = m->wire == fleet();
    o.wire = m->wire;
    if (m->how == JAVA_OFFERS) tell(p, "offer %s 8000 %s", m->name, HEX("j"));
    if (m->how == JAVA_WATCHES) tell(p, "watch %s", m->name);
    CHECK_STATUS(&m->q, delayq_open(&m->q, &o),
                 m->how == JAVA_OFFERS && !fits ? DELAYQ_ERR_WIRE : DELAYQ_OK);
    if (m->how == JAVA_WATCHES || m->how == C_OFFERS) {
        OFFER(&m->q, "c", 6000); /* the handle can't know of Redisson yet */
        m->c_has_offered = 1;
    }
    if (m->how != JAVA_OFFERS) tell(p, "offer %s 8000 %s", m->name, HEX("j"));
    if (fits && !m->c_has_offered) {
        OFFER(&m->q, "c", 6000);
        m->c_has_offered = 1;
    } else if (!fits) { /* a handle that is opened now finds Redisson's item */
        delayq late;
        CHECK_STATUS(&late, delayq_open(&late, &o), DELAYQ_ERR_WIRE);
        CHECK_STATUS(&late, delayq_offer(&late, "c", 1, 0), DELAYQ_ERR_WIRE);
        CHECK_STATUS(&late, delayq_take(&late, &item, 0), DELAYQ_ERR_WIRE);
        delayq_close(&late);
    }
    CHECK_INT(pending(m), 1 + m->c_has_offered);
}

/* Repair the queue by ticks of a handle with DELAYQ_REDISSON_OLD. */
static void cure(meeting *m) {
    delayq_options o = options_for(&s, m->name);
    delayq old;
    o.wire = DELAYQ_REDISSON_OLD;
    /* open returns DELAYQ_ERR_WIRE, but the handle can tick */
    (void)delayq_open(&old, &o);
    UNTIL(delayq_tick(&old, NULL) == DELAYQ_OK && pending(m) == 0);
    delayq_close(&old);
}

TEST(in_each_order_of_starting_each_wire_works_is_refused_or_can_be_cured) {
    static meeting all[12];
    peer p;
    int i, jammed = 0;
    start_server();
    start(&p, "string", NULL);
    for (i = 0; i < 12; i++) {
        snprintf(all[i].name, sizeof all[i].name, "q%d", i);
        all[i].wire = WIRE(i % 3);
        all[i].how = (beginning)(i / 3);
        meet(&all[i], &p);
    }
    for (i = 0; i < 12; i++) /* Java moves the items that it can read */
        if (!jams(&all[i]))
            UNTIL(number("LLEN %s", all[i].name) == 1 + all[i].c_has_offered);
    for (i = 0; i < 12; i++)
        if (jams(&all[i])) {
            jammed++;
            CHECK_INT(pending(&all[i]), 2);
            CHECK_INT(number("LLEN %s", all[i].name), 0);
            cure(&all[i]);
        }
    CHECK_INT(jammed, is_old() ? 4 : 2);
    for (i = 0; i < 12; i++) {
        CHECK_TEXT(tell(&p, "drain %s 2", all[i].name),
                   all[i].c_has_offered ? "x63 x6a" : "x6a -");
        delayq_close(&all[i].q);
    }
    CHECK_INT(number("DBSIZE"), 0);
    stop(&p);
    finish();
}

/* --- moving a fleet ------------------------------------------------------ */

/* Run a command of examples/redisson/README.md. */
static void tool(const char *arguments, const char *wire, const char *more) {
    char command[1024];
    snprintf(command, sizeof command, "DELAYQ_URL=%s %s %s --wire %s %s",
             tcp_url, getenv("DELAYQ_REDISSON_TOOL"), arguments, wire, more);
    if (system(command) != 0) FAIL("%s", command);
}

/* Rewrite all elements for another wire. Nobody may use the queue meanwhile. */
static void rewrite(const char *from, const char *to) {
    char file[256], dump[300], load[300];
    long long items = number("ZCARD " ZSET) + number("LLEN q");
    snprintf(file, sizeof file, "%s/jobs.ndjson", s.dir);
    snprintf(dump, sizeof dump, ">%s", file);
    snprintf(load, sizeof load, "-q <%s", file);
    tool("dump q", from, dump);
    tool("clear q", from, "--yes -q");
    CHECK_INT(number("DBSIZE"), 0);
    tool("load q", to, load);
    CHECK_INT(number("ZCARD " ZSET) + number("LLEN q"), items);
}

static int take_marked(delayq *q, unsigned char *seen, int wait_ms) {
    delayq_item item;
    if (delayq_take(q, &item, wait_ms) != DELAYQ_OK) return 0;
    mark(seen, 2000, (const char *)item.data, item.len);
    if (item.ticket.text[0]) OK(q, delayq_ack(q, &item));
    return 1;
}

/* Offer 300 items, and take one after each offer, if there is one. Returns the
 * number of taken items. */
static int offers_and_takes(delayq *q, unsigned char *seen, int from) {
    int i, taken = 0;
    for (i = from; i < from + 300; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        OFFER(q, text, i % 50);
        taken += take_marked(q, seen, 0);
    }
    return taken;
}

TEST(a_fleet_moves_to_both_to_c_and_back_under_load) {
    static unsigned char seen[2000];
    const char *wire = is_old() ? "redisson-old" : "redisson";
    peer producer, consumer;
    delayq q;
    int mine;
    start_server();
    /* Only Java uses the queue. 100 items are due in an hour. */
    start(&producer, "string", NULL);
    start(&consumer, "string", NULL);
    tell(&consumer, "watch q");
    tell(&consumer, "consume q");
    tell(&producer, "fill q 0 400 0");
    tell(&producer, "fill q 400 100 3600000");
    /* Both use the queue. */
    fprintf(producer.to, "fill q 500 400 0\n");
    fflush(producer.to);
    open_q(&q, fleet(), 0);
    mine = offers_and_takes(&q, seen, 900);
    CHECK(fgets(answer, sizeof answer, producer.from) != NULL);
    /* Only C uses the queue. */
    stop(&producer);
    UNTIL((mine += take_marked(&q, seen, 5),
           mine + atoi(tell(&consumer, "count")) >= 1100));
    tell(&consumer, "consumed");
    mark_hex(seen, 2000, answer);
    stop(&consumer); /* nothing is ready now, and Java has no lease */
    offers_and_takes(&q, seen, 1200);
    fill_from_c(&q, 1500, 100, 3600000);
    delayq_close(&q);
    rewrite(wire, "native");
    open_q(&q, DELAYQ_NATIVE, 60000);
    offers_and_takes(&q, seen, 1600);
    /* Back to Java. */
    UNTIL((take_marked(&q, seen, 0), number("ZCARD " ZSET) == 200 &&
                                         number("LLEN q") == 0 &&
                                         number("LLEN delayq_retry:{q}") == 0));
    fill_from_c(&q, 1900, 100, 3600000);
    delayq_close(&q);
    rewrite("native", wire);
    CHECK_INT(number("LLEN " MIRROR), 300);
    start(&consumer, "string", NULL);
    CHECK_TEXT(tell(&consumer, "size q"), "300");
    tell(&consumer, "polln q 300");
    mark_hex(seen, 2000, answer);
    stop(&consumer);
    all_seen(seen, 2000);
    CHECK_INT(number("ZCARD " ZSET) + number("LLEN " MIRROR), 0);
    finish();
}

/* --- 10: the examples ----------------------------------------------------- */

/* Run one of the examples, with the argument `offered`. It must print `line`,
 * as its opening comment says. */
static void says(int java, const char *offered, const char *line) {
    const char *file =
        java ? "examples/redisson/Example.java" : "examples/redisson/example.c";
    char command[4096], text[2048] = "";
    FILE *f = fopen(file, "r");
    CHECK(f != NULL);
    text[fread(text, 1, sizeof text - 1, f)] = '\0';
    fclose(f);
    snprintf(command, sizeof command, " *     %s", line);
    CHECK_HAS(text, command);
    snprintf(command, sizeof command, "DELAYQ_URL=%s timeout 60 %s%s%s %s",
             tcp_url, java ? "java -cp '" : "",
             getenv(java ? "DELAYQ_REDISSON_CP" : "DELAYQ_REDISSON_EXAMPLE"),
             java ? "' Example" : "", offered);
    f = popen(command, "r");
    CHECK(f && fgets(text, sizeof text, f));
    CHECK_INT(pclose(f), 0);
    CHECK(text[0] && text[strlen(text) - 1] == '\n');
    text[strlen(text) - 1] = '\0';
    CHECK_TEXT(text, line);
}

TEST(the_examples_say_what_they_promise) {
    if (is_old()) return;
    start_server();
    says(0, "'hello from C'", "offered: hello from C");
    says(1, "", "took: hello from C");
    says(1, "'hello from Java'", "offered: hello from Java");
    says(0, "", "took: hello from Java");
    CHECK_INT(number("DBSIZE"), 0);
    finish();
}
