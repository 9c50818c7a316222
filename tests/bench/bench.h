/*
 * What the benches share: clocks, medians, a bare connection, and the protocol
 * as it is published for Redisson <= 3.21.0, as a yardstick.
 */
#ifndef BENCH_H
#define BENCH_H

#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>

#define ZSET "redisson_delay_queue_timeout:{bench}"
#define MIRROR "redisson_delay_queue:{bench}"
#define CHANNEL "redisson_delay_queue_channel:{bench}"

__attribute__((unused)) static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

__attribute__((unused)) static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

static void die(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* A connection of plain hiredis to the server that DELAYQ_URL names. */
static redisContext *bare(void) {
    const char *url = getenv("DELAYQ_URL");
    redisContext *c;
    char host[256];
    if (url && strncmp(url, "unix://", 7) == 0) {
        c = redisConnectUnix(url + 7);
    } else {
        const char *p = url ? strstr(url, "://") + 3 : "127.0.0.1";
        const char *port = strchr(p, ':');
        snprintf(host, sizeof host, "%.*s", (int)strcspn(p, ":/"), p);
        c = redisConnect(host, port ? atoi(port + 1) : 6379);
    }
    if (!c || c->err) die("no connection: set DELAYQ_URL, or run make bench");
    return c;
}

static redisReply *reply(redisContext *c) {
    redisReply *r = NULL;
    if (redisGetReply(c, (void **)&r) != REDIS_OK) die("connection lost");
    if (r->type == REDIS_REPLY_ERROR) die(r->str);
    return r;
}

static void do_command(redisContext *c, const char *text) {
    redisAppendCommand(c, text);
    freeReplyObject(reply(c));
}

/* SCRIPT LOAD: the SHA, to be freed. */
__attribute__((unused)) static char *load(redisContext *c, const char *script) {
    redisReply *r;
    char *sha;
    redisAppendCommand(c, "SCRIPT LOAD %s", script);
    r = reply(c);
    sha = strdup(r->str);
    freeReplyObject(r);
    return sha;
}

/* Microseconds that scripts have cost the server since CONFIG RESETSTAT. */
__attribute__((unused)) static double script_us(redisContext *c) {
    redisReply *r;
    const char *at;
    double us = 0;
    redisAppendCommand(c, "INFO commandstats");
    r = reply(c);
    at = strstr(r->str, "cmdstat_evalsha:");
    if (at) us = atof(strstr(at, "usec=") + 5);
    freeReplyObject(r);
    return us;
}

/*
 * The two scripts of the published protocol, in our own words: element = id as
 * a double, length, payload; a list in order of offer beside the zset.
 *
 * offer     KEYS 1 zset, 2 mirror, 3 channel; ARGV 1 due, 2 id, 3 payload
 * transfer  KEYS 1 ready, 2 zset, 3 mirror; ARGV 1 now, 2 limit
 */
__attribute__((unused)) static const char published_offer[] =
    "local e = struct.pack('dLc0', tonumber(ARGV[2]), #ARGV[3], ARGV[3])\n"
    "redis.call('ZADD', KEYS[1], ARGV[1], e)\n"
    "redis.call('RPUSH', KEYS[2], e)\n"
    "if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == e then\n"
    "  redis.call('PUBLISH', KEYS[3], ARGV[1])\n"
    "end\n";
static const char published_transfer[] =
    "local es = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[1], 'LIMIT', 0,\n"
    "  ARGV[2])\n"
    "for _, e in ipairs(es) do\n"
    "  local id, v = struct.unpack('dLc0', e)\n"
    "  redis.call('RPUSH', KEYS[1], v)\n"
    "  redis.call('LREM', KEYS[3], 1, e)\n"
    "end\n"
    "if #es > 0 then redis.call('ZREM', KEYS[2], unpack(es)) end\n"
    "return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]\n";

#endif
