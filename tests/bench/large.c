/*
 * large -- the cost of payloads of 1, 16 and 64 MB. "script" is the server's
 * time in scripts per MB, from INFO commandstats. It can be compared with a GET
 * and a SET of as many bytes in Lua. "call" is the time of the calls, most of
 * which is the transfer through the socket. All calls run in turns on one
 * server. The figures are medians of the rounds.
 *
 * The last rows divide the cost of a take with a lease and its ack by that of a
 * GET, a SET and two copies in Lua, and by that of the leanest scripts that do
 * the same with a sorted set. The number of strings that Lua makes determines
 * the cost: since Redis 7.0 Lua hashes each of their bytes, which takes ten
 * times as long as copying the byte. A GET, a SET and a copy each make one
 * string. A take with a lease makes three (the element, the part after the
 * count, and the new element), an ack one.
 */
#include "bench.h"

#define ROWS 16
#define MOST_ROUNDS 20

static redisContext *c;
static delayq plain, leased;
static delayq_item item;
static char *payload;
static size_t len;

static double eval_us(void) {
    redisReply *r;
    const char *at;
    double us = 0;
    redisAppendCommand(c, "INFO commandstats");
    r = reply(c);
    if ((at = strstr(r->str, "cmdstat_evalsha:")) != NULL)
        us += atof(strstr(at, "usec=") + 5);
    if ((at = strstr(r->str, "cmdstat_eval:")) != NULL)
        us += atof(strstr(at, "usec=") + 5);
    freeReplyObject(r);
    return us;
}

static void get_in_lua(void) {
    do_command(c, "EVAL return#redis.call('GET',KEYS[1]) 1 large");
}

/* Each string.sub() makes one string. */
static void copies_in_lua(void) {
    redisAppendCommand(c, "EVAL %s 1 large",
                       "local s = redis.call('GET', KEYS[1])\n"
                       "return #string.sub(s, 2) + #string.sub(s, 3)\n");
    freeReplyObject(reply(c));
}

/* A lean take with a lease. KEYS 1: the zset. ARGV 1: the end of the lease. */
static void lean_lease(void) {
    redisAppendCommand(
        c, "EVAL %s 1 lean 4000000000000",
        "local z = KEYS[1]\n"
        "local e = redis.call('ZRANGE', z, 0, 0)[1]\n"
        "e = string.sub(e, 1, 15) .. '\\0\\1' .. string.sub(e, 18)\n"
        "redis.call('ZADD', z, ARGV[1], e)\n"
        "redis.call('ZREMRANGEBYRANK', z, 0, 0)\n"
        "return e\n");
    freeReplyObject(reply(c));
}
static void lean_ack(void) {
    redisAppendCommand(c, "EVAL %s 1 lean",
                       "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
                       "return redis.call('ZREM', KEYS[1], e)\n");
    freeReplyObject(reply(c));
}
static void lean_offer(void) {
    redisAppendCommand(c, "ZADD lean 1 %b", payload, len);
    freeReplyObject(reply(c));
}
static void set_in_lua(void) {
    redisAppendCommand(c, "EVAL %s 1 large %b",
                       "redis.call('SET', KEYS[1], ARGV[1])", payload, len);
    freeReplyObject(reply(c));
}
static void offer_to(delayq *q, int64_t delay_ms) {
    if (delayq_offer(q, payload, len, delay_ms) != DELAYQ_OK)
        die(delayq_errmsg(q));
}
static void take_from(delayq *q) {
    if (delayq_take(q, &item, 5000) != DELAYQ_OK || item.len != len)
        die(delayq_errmsg(q));
}
static void offer(void) {
    offer_to(&plain, 0);
}
static void take(void) {
    take_from(&plain);
}
/* Tick until the item has been moved. It is due after at most 1 ms. */
static void tick(void) {
    int moved = 0;
    while (moved == 0) moved = tick_now(&plain);
}
static void offer_again(void) {
    offer_to(&leased, 0);
}
static void take_lease(void) {
    take_from(&leased);
}
static void nack(void) {
    if (delayq_nack(&leased, &item, 0) != DELAYQ_OK)
        die(delayq_errmsg(&leased));
}
static void ack(void) {
    if (delayq_ack(&leased, &item) != DELAYQ_OK) die(delayq_errmsg(&leased));
}

static const struct verb {
    const char *name;
    void (*call)(void);
} rows[ROWS] = {{"SET in Lua", set_in_lua},
                {"GET in Lua", get_in_lua},
                {"GET, two copies", copies_in_lua},
                {"offer", offer},
                {"take", take},
                {"offer", offer},
                {"tick", tick},
                {"take what is ready", take},
                {"offer", offer_again},
                {"take with a lease", take_lease},
                {"nack", nack},
                {"take it again", take_lease},
                {"ack", ack},
                {"a plain ZADD", lean_offer},
                {"lease, lean", lean_lease},
                {"ack, lean", lean_ack}};
enum { SET, COPIES = 2, LEASE = 9, ACK = 12, LEAN_LEASE = 14, LEAN_ACK };

static void measure(size_t mb, int rounds) {
    double script[ROWS][MOST_ROUNDS], call[ROWS][MOST_ROUNDS], us;
    double over_set[MOST_ROUNDS], over_lean[MOST_ROUNDS];
    int round, k;
    len = mb << 20;
    payload = (char *)malloc(len);
    if (!payload) die("out of memory");
    memset(payload, 'x', len);
    for (round = -1; round < rounds; round++)
        for (k = 0; k < ROWS; k++) {
            double from;
            do_command(c, "CONFIG RESETSTAT");
            from = seconds();
            rows[k].call();
            us = (seconds() - from) * 1e6;
            if (round < 0) continue;
            script[k][round] = eval_us() / 1000 / (double)mb;
            call[k][round] = us / 1000 / (double)mb;
        }
    free(payload);
    for (k = 0; k < rounds; k++) {
        double both = script[LEASE][k] + script[ACK][k];
        over_set[k] = both / (script[SET][k] + script[COPIES][k]);
        over_lean[k] = both / (script[LEAN_LEASE][k] + script[LEAN_ACK][k]);
    }
    printf("%2d MB, ms per MB    script   least    most    call   least"
           "    most\n",
           (int)mb);
    for (k = 0; k < ROWS; k++) {
        struct spread s = spread_of(script[k], rounds);
        struct spread w = spread_of(call[k], rounds);
        printf("%-19s%8.2f%8.2f%8.2f%8.2f%8.2f%8.2f\n", rows[k].name, s.middle,
               s.least, s.most, w.middle, w.least, w.most);
    }
    print_head("cost of", "over that of");
    print_row("lease and ack", "GET, SET, 2 copies", "",
              spread_of(over_set, rounds), "<= 1.25");
    print_row("", "lean, a sorted set", "", spread_of(over_lean, rounds),
              "<= 1.10");
}

/* On a busy machine 64 MB may need longer than the default time limit. */
static void open_patient(delayq *q, int64_t lease_ms) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    o.lease_ms = lease_ms;
    o.io_timeout_ms = 60000;
    if (delayq_open(q, &o) != DELAYQ_OK) die(delayq_errmsg(q));
}

int main(void) {
    c = bare();
    do_command(c, "FLUSHALL");
    open_patient(&plain, 0);
    open_patient(&leased, 60000);
    measure(1, 20);
    measure(16, 5);
    measure(64, 3);
    do_command(c, "FLUSHALL");
    delayq_close(&plain);
    delayq_close(&leased);
    redisFree(c);
    return 0;
}
