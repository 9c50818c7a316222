/*
 * Three kinds of peers: delayq; the protocol of Redisson <= 3.21.0, sent by
 * bare hiredis; and the floor, a sleep until the due time followed by one PING.
 *
 *     delayq URL at-least-once | at-most-once | protocol | floor
 *
 * A batch of 1 uses delayq_offer, and delayq_ack_take or delayq_take. Larger
 * batches use the functions whose names end in _many. For the protocol a batch
 * of n is n offers in one write, and a transfer of n jobs with an LPOP of n.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../../delayq.h"
#include "peer.h"

static delayq q, producer;
static delayq_options options;
static redisContext *bare; /* used by the floor and by the protocol */
/* NULL unless the peer is the protocol */
static char *sha_offer, *sha_transfer;

static void check(delayq *d, delayq_status status) {
    if (status < 0) die(delayq_errmsg(d));
    if (status > 0) die(delayq_strstatus(status));
}

/* --- the protocol -------------------------------------------------------- */

#define ZSET "redisson_delay_queue_timeout:{peer}"
#define MIRROR "redisson_delay_queue:{peer}"
#define CHANNEL "redisson_delay_queue_channel:{peer}"

/* KEYS 1 zset, 2 mirror, 3 channel; ARGV 1 due, 2 id, 3 payload */
static const char protocol_offer[] =
    "local e = struct.pack('dLc0', tonumber(ARGV[2]), #ARGV[3], ARGV[3])\n"
    "redis.call('ZADD', KEYS[1], ARGV[1], e)\n"
    "redis.call('RPUSH', KEYS[2], e)\n"
    "if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == e then\n"
    "  redis.call('PUBLISH', KEYS[3], ARGV[1])\n"
    "end\n";
/* KEYS 1 ready, 2 zset, 3 mirror; ARGV 1 now, 2 limit */
static const char protocol_transfer[] =
    "local es = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[1], 'LIMIT', 0,\n"
    "  ARGV[2])\n"
    "for _, e in ipairs(es) do\n"
    "  local id, v = struct.unpack('dLc0', e)\n"
    "  redis.call('RPUSH', KEYS[1], v)\n"
    "  redis.call('LREM', KEYS[3], 1, e)\n"
    "end\n"
    "if #es > 0 then redis.call('ZREM', KEYS[2], unpack(es)) end\n"
    "return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]\n";

static redisReply *answer(void) {
    redisReply *r = NULL;
    if (redisGetReply(bare, (void **)&r) != REDIS_OK) die(bare->errstr);
    if (r->type == REDIS_REPLY_ERROR) die(r->str);
    return r;
}

static char *load(const char *script) {
    redisReply *r;
    char *sha;
    redisAppendCommand(bare, "SCRIPT LOAD %s", script);
    r = answer();
    sha = strdup(r->str);
    freeReplyObject(r);
    return sha;
}

static void protocol_offers(int batch, int count, int delay_ms) {
    int i, k;
    for (i = 0; i < count; i += batch) {
        for (k = 0; k < batch; k++) {
            char payload[PAYLOAD];
            fill(payload, i + k);
            redisAppendCommand(
                bare, "EVALSHA %s 3 " ZSET " " MIRROR " " CHANNEL " %lld %d %b",
                sha_offer,
                (long long)clock_us(CLOCK_REALTIME) / 1000 + delay_ms, rand(),
                payload, (size_t)PAYLOAD);
        }
        for (k = 0; k < batch; k++) freeReplyObject(answer());
    }
}

static void protocol_takes(int batch, int count) {
    int done = 0;
    while (done < count) {
        redisReply *r;
        size_t i;
        redisAppendCommand(
            bare, "EVALSHA %s 3 {peer} " ZSET " " MIRROR " %lld %d",
            sha_transfer, (long long)clock_us(CLOCK_REALTIME) / 1000, batch);
        redisAppendCommand(bare, "LPOP {peer} %d", batch);
        freeReplyObject(answer());
        r = answer();
        for (i = 0; i < r->elements; i++)
            note(r->element[i]->str, r->element[i]->len, count);
        done += (int)r->elements;
        freeReplyObject(r);
    }
}

/* --- a job's life -------------------------------------------------------- */

static void offer(int batch, int count, int delay_ms) {
    static char payload[100][PAYLOAD];
    static delayq_message m[100];
    int i, k;
    if (sha_offer) {
        protocol_offers(batch, count, delay_ms);
        return;
    }
    for (i = 0; i < count; i += batch) {
        memset(m, 0, sizeof m);
        for (k = 0; k < batch; k++) {
            fill(payload[k], i + k);
            m[k].data = payload[k];
            m[k].len = PAYLOAD;
            m[k].delay_ms = delay_ms;
        }
        if (batch == 1)
            check(&q, delayq_offer(&q, payload[0], PAYLOAD, delay_ms));
        else
            check(&q, delayq_offer_many(&q, m, (size_t)batch));
    }
}

static void take_singly(int count) {
    delayq_item item;
    int i;
    memset(&item, 0, sizeof item);
    for (i = 0; i < count; i++) {
        if (options.lease_ms)
            check(&q, delayq_ack_take(&q, &item, 10000));
        else
            check(&q, delayq_take(&q, &item, 10000));
        if (options.lease_ms && i > 0) check(&q, item.acked);
        note((const char *)item.data, item.len, count);
    }
    if (options.lease_ms) check(&q, delayq_ack(&q, &item));
}

static void take_many(int batch, int count) {
    static delayq_item items[100];
    size_t got, i;
    int done = 0;
    while (done < count) {
        check(&q, delayq_take_many(&q, items, (size_t)batch, &got, 10000));
        for (i = 0; i < got; i++)
            note((const char *)items[i].data, items[i].len, count);
        if (options.lease_ms) check(&q, delayq_ack_many(&q, items, got));
        done += (int)got;
    }
}

static void take(int batch, int count) {
    delayq_counts n;
    if (sha_offer) {
        protocol_takes(batch, count);
        return;
    }
    if (batch == 1)
        take_singly(count);
    else
        take_many(batch, count);
    check(&q, delayq_count(&q, &n));
    if (n.pending + n.ready + n.dead != 0) die("jobs are left");
}

/* --- lateness ------------------------------------------------------------ */

static void offer_due(int i, int n) {
    static char payload[MOST_BATCH][PAYLOAD];
    static delayq_message m[MOST_BATCH];
    int k;
    if (bare) return;
    memset(m, 0, sizeof m);
    for (k = 0; k < n; k++) {
        fill(payload[k], i + k);
        m[k].data = payload[k];
        m[k].len = PAYLOAD;
        m[k].due_ms = due_us[i + k] / 1000;
    }
    check(&producer, delayq_offer_many(&producer, m, (size_t)n));
}

static void ping_when_due(int count) {
    int i;
    for (i = 0; i < count; i++) {
        struct timespec t;
        redisReply *r;
        t.tv_sec = due_us[i] / 1000000;
        t.tv_nsec = due_us[i] % 1000000 * 1000;
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
        r = (redisReply *)redisCommand(bare, "PING");
        if (!r) die(bare->errstr);
        freeReplyObject(r);
        late_us[i] = clock_us(CLOCK_REALTIME) - due_us[i];
    }
}

static void consume(int count) {
    if (bare)
        ping_when_due(count);
    else
        take_many(100, count);
}

static void connect_bare(const char *url) {
    bare = redisConnect("127.0.0.1", atoi(strrchr(url, ':') + 1));
    if (!bare || bare->err) die("can't connect");
}

static const char *protocol_of(const char *url) {
    connect_bare(url);
    sha_offer = load(protocol_offer);
    sha_transfer = load(protocol_transfer);
    return "protocol: that of Redisson <= 3.21.0 by bare hiredis, pipelined";
}

static const char *floor_of(const char *url) {
    connect_bare(url);
    return "sleep, PING: clock_nanosleep until due, then one PING";
}

static const char *delayq_of(const char *url, const char *mode) {
    options.name = "bench";
    options.url = url;
    if (strcmp(mode, "at-least-once") == 0) options.lease_ms = 30000;
    check(&q, delayq_open(&q, &options));
    check(&producer, delayq_open(&producer, &options));
    return options.lease_ms
               ? "delayq " DELAYQ_VERSION " with a lease: offer, ack_take; "
                 "batch 100: offer_many, take_many, ack_many"
               : "delayq " DELAYQ_VERSION " without: offer, take; batch 100: "
                 "offer_many, take_many";
}

int main(int argc, char **argv) {
    if (argc != 3) die("usage: delayq URL MODE");
    if (strcmp(argv[2], "floor") == 0)
        serve(floor_of(argv[1]));
    else if (strcmp(argv[2], "protocol") == 0)
        serve(protocol_of(argv[1]));
    else
        serve(delayq_of(argv[1], argv[2]));
    return 0;
}
