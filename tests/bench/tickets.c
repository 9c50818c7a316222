/*
 * tickets -- what a cancel and a reschedule cost the server among 100,000
 * pending, 5,000 of them due in the same millisecond, beside a ZREM of the
 * exact element, which nobody can know; and the longest of the scripts that
 * store and take 100,000 at once. Server microseconds, INFO commandstats.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PENDING 100000
#define TIES 5000
#define CALLS 500

static redisContext *c;

static void die(const char *text) {
    fprintf(stderr, "tickets: %s\n", text);
    exit(1);
}

static redisReply *ask(const char *command) {
    redisReply *r = (redisReply *)redisCommand(c, command);
    if (!r) die(c->errstr);
    return r;
}

/* Mean microseconds of a command since the last reset. */
static double usec(const char *name) {
    redisReply *r = ask("INFO commandstats");
    char key[64], *at;
    double value;
    snprintf(key, sizeof key, "cmdstat_%s:", name);
    at = strstr(r->str, key);
    at = at ? strstr(at, "usec_per_call=") : NULL;
    value = at ? atof(at + 14) : -1;
    freeReplyObject(r);
    freeReplyObject(ask("CONFIG RESETSTAT"));
    return value;
}

/* The slowest script since the last reset, by the server's own log. */
static long long slowest(void) {
    redisReply *r = ask("SLOWLOG GET 1000");
    long long most = 0;
    size_t i;
    for (i = 0; i < r->elements; i++)
        if (r->element[i]->element[2]->integer > most)
            most = r->element[i]->element[2]->integer;
    freeReplyObject(r);
    freeReplyObject(ask("SLOWLOG RESET"));
    return most;
}

int main(void) {
    static delayq q;
    static delayq_message m[PENDING];
    static delayq_item items[100];
    delayq_options o = {0};
    size_t i, n, taken = 0;
    const char *url = getenv("DELAYQ_URL");
    double cancel, move, exact;
    if (!url || strncmp(url, "unix://", 7) != 0)
        die("needs DELAYQ_URL=unix://... (make bench gives one)");
    o.name = "tickets";
    o.url = url;
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    c = redisConnectUnix(url + 7);
    if (!c || c->err) die("can't connect");
    freeReplyObject(ask("CONFIG SET slowlog-log-slower-than 500"));
    freeReplyObject(ask("CONFIG SET slowlog-max-len 1000"));
    for (i = 0; i < PENDING; i++) {
        m[i].data = "a payload of 100 bytes, more or less: 0123456789 "
                    "0123456789 0123456789 0123456789 0123456789 01234";
        m[i].len = strlen((const char *)m[i].data);
        m[i].due_ms = 4000000000000 + (i < TIES ? 0 : (int64_t)i);
    }
    if (delayq_offer_many(&q, m, PENDING) != DELAYQ_OK) die(delayq_errmsg(&q));
    printf("offer_many(%d): longest script %lld us\n", PENDING, slowest());
    usec("evalsha");
    for (i = 0; i < CALLS; i++)
        if (delayq_reschedule(&q, &m[i * 7].ticket, 1000000) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    move = usec("evalsha");
    for (i = 0; i < CALLS; i++)
        if (delayq_cancel(&q, &m[i * 7 + 1].ticket) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    cancel = usec("evalsha");
    for (i = 0; i < CALLS; i++) {
        unsigned char e[256];
        size_t len = dq_head(&q, m[i * 7 + 2].id, m[0].len, e);
        memcpy(e + len, m[0].data, m[0].len);
        freeReplyObject(
            redisCommand(c, "ZREM redisson_delay_queue_timeout:{tickets} %b", e,
                         len + m[0].len));
    }
    exact = usec("zrem");
    printf("server us, %d pending, %d ties: cancel %.1f, reschedule %.1f, "
           "ZREM of the exact element %.1f\n",
           PENDING, TIES, cancel, move, exact);
    delayq_clear(&q, NULL);
    for (i = 0; i < PENDING; i++) m[i].due_ms = 1;
    if (delayq_offer_many(&q, m, PENDING) != DELAYQ_OK) die(delayq_errmsg(&q));
    slowest();
    while (delayq_take_many(&q, items, 100, &n, 0) == DELAYQ_OK) taken += n;
    printf("take_many(100) of %zu due: longest script %lld us\n", taken,
           slowest());
    redisFree(c);
    delayq_close(&q);
    return 0;
}
