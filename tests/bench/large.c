/*
 * large -- what payloads of 1, 16 and 64 MB cost: the server's time in scripts
 * per MB, by INFO commandstats, beside a GET and a SET of as many bytes in Lua;
 * and how long the calls take, which is mostly the way of the bytes through
 * the socket. All of them by turns, on one server; medians of the rounds.
 */
#include "bench.h"

#define ROWS 12
#define MOST_ROUNDS 15

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
/* At least one ms later, when it is due. */
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

static const struct row {
    const char *name;
    void (*call)(void);
} rows[ROWS] = {{"SET in Lua", set_in_lua},
                {"GET in Lua", get_in_lua},
                {"offer", offer},
                {"take", take},
                {"offer", offer},
                {"tick", tick},
                {"take what is ready", take},
                {"offer", offer_again},
                {"take with a lease", take_lease},
                {"nack", nack},
                {"take it again", take_lease},
                {"ack", ack}};

static void measure(size_t mb, int rounds) {
    double script[ROWS][MOST_ROUNDS], call[ROWS][MOST_ROUNDS], us;
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
    printf("%2d MB, ms per MB    script   least    most    call   least"
           "    most\n",
           (int)mb);
    for (k = 0; k < ROWS; k++) {
        struct spread s = spread_of(script[k], rounds);
        struct spread w = spread_of(call[k], rounds);
        printf("%-19s%8.2f%8.2f%8.2f%8.2f%8.2f%8.2f\n", rows[k].name, s.middle,
               s.least, s.most, w.middle, w.least, w.most);
    }
    free(payload);
}

/* On a busy machine 64 MB may need longer than the default. */
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
    measure(1, 15);
    measure(16, 7);
    measure(64, 5);
    do_command(c, "FLUSHALL");
    delayq_close(&plain);
    delayq_close(&leased);
    redisFree(c);
    return 0;
}
