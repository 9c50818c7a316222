/*
 * rates -- offers and takes, one at a time, compared with bare hiredis loops
 * that do the minimum; and batches, compared with the published protocol (the
 * bench `batch` has other yardsticks). Items have 100 bytes. The processes run
 * on any core, and then with server and client on one core.
 */
#include "bench.h"

#define SINGLES 1000
#define MANY 10000

static redisContext *c;
static delayq q;
static char payload[100];
static char *sha_offer, *sha_take, *sha_telling, *sha_published, *sha_transfer;

/* --- yardsticks ---------------------------------------------------------- */

static const char bare_take[] =
    "local t = redis.call('TIME')\n"
    "local now = string.format('%.0f', t[1] * 1000 +\n"
    "  math.floor(t[2] / 1000))\n"
    "local es = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0,\n"
    "  ARGV[1])\n"
    "if #es > 0 then\n"
    "  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, #es - 1)\n"
    "end\n"
    "return es\n";

/* This script reports as much as a take: the due time of each item, the next
 * time to poll, and the length of the ready list. */
static const char bare_telling[] =
    "local t = redis.call('TIME')\n"
    "local us = t[1] * 1000000 + t[2]\n"
    "local ready = redis.call('LLEN', 'bench')\n"
    "local es = redis.call('ZRANGE', KEYS[1], 0, ARGV[1], 'WITHSCORES')\n"
    "local out, dues, n, next = {'', ''}, {}, 0, -1\n"
    "for i = 1, #es, 2 do\n"
    "  if es[i + 1] * 1000 > us or n == ARGV[1] + 0 then\n"
    "    next = math.max(0, es[i + 1] * 1000 - us)\n"
    "    break\n"
    "  end\n"
    "  n = n + 1\n"
    "  out[n + 2], dues[n] = es[i], es[i + 1]\n"
    "end\n"
    "if n > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, n - 1) end\n"
    "out[1] = t[1] .. ' ' .. t[2] .. ' ' .. next .. ' ' .. ready\n"
    "out[2] = table.concat(dues, ' ')\n"
    "return out\n";

static void element_of(unsigned char *e, int i) {
    memset(e, 0, 125);
    e[0] = 16;
    e[1] = (unsigned char)(i >> 24);
    e[2] = (unsigned char)(i >> 16);
    e[3] = (unsigned char)(i >> 8);
    e[4] = (unsigned char)i;
    e[17] = 100;
    memcpy(e + 25, payload, 100);
}

static void y_offer(void) {
    unsigned char e[125];
    int i;
    for (i = 0; i < SINGLES; i++) {
        element_of(e, i);
        redisAppendCommand(c, "EVALSHA %s 1 " ZSET " 3600000 %b " CHANNEL,
                           sha_offer, e, sizeof e);
        freeReplyObject(reply(c));
    }
}

static void take_by(const char *sha) {
    int i;
    for (i = 0; i < SINGLES; i++) {
        redisAppendCommand(c, "EVALSHA %s 1 " ZSET " 1", sha);
        freeReplyObject(reply(c));
    }
}
static void y_take(void) {
    take_by(sha_take);
}
static void y_telling(void) {
    take_by(sha_telling);
}

static void published_many(int n) {
    int i, k;
    for (i = 0; i < MANY; i += n) {
        for (k = 0; k < n; k++)
            redisAppendCommand(c,
                               "EVALSHA %s 3 " ZSET " " MIRROR " " CHANNEL
                               " 1900000000000 %d %b",
                               sha_published, i + k, payload, (size_t)100);
        for (k = 0; k < n; k++) freeReplyObject(reply(c));
    }
}
static void y_published_100(void) {
    published_many(100);
}
static void y_published_1000(void) {
    published_many(1000);
}

static void transfer(void) {
    redisAppendCommand(
        c, "EVALSHA %s 3 bench " ZSET " " MIRROR " 1900000000000 100",
        sha_transfer);
}
static void y_published_lpop(void) {
    int i;
    for (i = 0; i < MANY; i += 100) {
        transfer();
        redisAppendCommand(c, "LPOP bench 100");
        freeReplyObject(reply(c));
        freeReplyObject(reply(c));
    }
}
static void y_published_blpop(void) {
    int i, k;
    for (i = 0; i < MANY / 10; i += 100) {
        transfer();
        freeReplyObject(reply(c));
        for (k = 0; k < 100; k++) {
            redisAppendCommand(c, "BLPOP bench 0");
            freeReplyObject(reply(c));
        }
    }
}

/* --- ours ---------------------------------------------------------------- */

static void check(delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(&q));
}

static void d_offer(void) {
    int i;
    for (i = 0; i < SINGLES; i++)
        check(delayq_offer(&q, payload, 100, 3600000));
}

static void d_take(void) {
    delayq_item item;
    int i;
    for (i = 0; i < SINGLES; i++) check(delayq_take(&q, &item, 0));
}

static void offer_many(int n) {
    static delayq_message m[1000];
    int i, k;
    for (i = 0; i < MANY; i += n) {
        memset(m, 0, sizeof m[0] * (size_t)n);
        for (k = 0; k < n; k++) {
            m[k].data = payload;
            m[k].len = 100;
            m[k].due_ms = 1900000000000;
        }
        check(delayq_offer_many(&q, m, (size_t)n));
    }
}
static void d_offer_100(void) {
    offer_many(100);
}
static void d_offer_1000(void) {
    offer_many(1000);
}

static void d_take_many(void) {
    static delayq_item items[100];
    size_t n, got = 0;
    while (got < MANY) {
        check(delayq_take_many(&q, items, 100, &n, 0));
        got += n;
    }
}

/* --- the queue before a lap ---------------------------------------------- */

static void empty(void) {
    do_command(c, "FLUSHALL");
    q.ready = 0;
    q.next_poll_us = 0;
}

/* Store n due items in the layout of each protocol. */
static void fill(int n, int published) {
    unsigned char e[125];
    int i;
    empty();
    for (i = 0; i < n; i++) {
        element_of(e, i);
        if (published)
            redisAppendCommand(
                c, "EVALSHA %s 3 " ZSET " " MIRROR " " CHANNEL " %lld %d %b",
                sha_published, 1700000000000LL + i, i, payload, (size_t)100);
        else
            redisAppendCommand(c, "ZADD " ZSET " %lld %b", 1700000000000LL + i,
                               e, sizeof e);
    }
    for (i = 0; i < n; i++) freeReplyObject(reply(c));
}
static void fill_singles(void) {
    fill(SINGLES, 0);
}
static void fill_many(void) {
    fill(MANY, 0);
}
static void fill_published(void) {
    fill(MANY, 1);
}

/* --- the table ----------------------------------------------------------- */

static const struct row rows[] = {
    {"offer", "bare script", ">= 0.95", empty, d_offer, empty, y_offer, 1},
    {"take", "bare script", ">= 0.85", fill_singles, d_take, fill_singles,
     y_take, 1},
    {"take", "script that tells all", ">= 0.95", fill_singles, d_take,
     fill_singles, y_telling, 1},
    {"offer_many(100)", "published, pipelined", ">= 2.5", empty, d_offer_100,
     empty, y_published_100, 1},
    {"offer_many(1000)", "published, pipelined", ">= 2.5", empty, d_offer_1000,
     empty, y_published_1000, 1},
    {"take_many(100)", "published, LPOP 100", "", fill_many, d_take_many,
     fill_published, y_published_lpop, 1},
    {"take_many(100)", "published, BLPOP", "", fill_many, d_take_many,
     fill_published, y_published_blpop, 10},
};

/* The client's CPU time. A call that stays awake for its reply uses more. */
static const struct row own_rows[] = {
    {"offer", "bare script", "<= 3", empty, d_offer, empty, y_offer, 1},
    {"take", "bare script", "<= 3", fill_singles, d_take, fill_singles, y_take,
     1},
};
static double own_us(void) {
    return cpu_of(getpid());
}

int main(void) {
    delayq_options o = {0};
    c = bare();
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    memset(payload, 'x', sizeof payload);
    sha_offer = load(c, bare_offer);
    sha_take = load(c, bare_take);
    sha_telling = load(c, bare_telling);
    sha_published = load(c, published_offer);
    sha_transfer = load(c, published_transfer);
    compare("rate of", rows, sizeof rows / sizeof rows[0], seconds);
    printf("\n");
    compare("client's CPU of", own_rows, 2, own_us);
    empty();
    delayq_close(&q);
    return 0;
}
