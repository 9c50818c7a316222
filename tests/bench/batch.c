/*
 * batch -- the CPU time of program and server for offers and takes of many
 * items of 100 bytes. It is compared with that of the leanest scripts that
 * store and report the same, of one plain ZADD, and of a ZADD that is followed
 * by a script. For the ZADDs the program computes the due times.
 *
 * The chart shows how many items a second delayq and the published protocol
 * handle in calls of 1, 10, 100 or 1,000 items.
 */
#include "bench.h"

#define MOST 10000
#define ELEMENT 125

static redisContext *c;
static delayq q, leased;
static char payload[100];
static int64_t *far, *past;

/* --- the leanest scripts ------------------------------------------------- */

/*
 * This script has the effects of an offer. It computes due times by the
 * server's clock, in ms, rounded up. It stores no element twice. If the zset
 * gets a new first item, the script publishes the due time of that item.
 *
 *     KEYS 1   zset
 *     ARGV 1   channel
 *     ARGV 2   a delay in ms; or - and a due time; or nothing, if it is the
 *              same as in the pair before
 *     ARGV 3   the element; then more pairs of these two arguments
 */
static const char lean_offer[] =
    "local t = redis.call('TIME')\n"
    "local us = t[1] * 1000000 + t[2]\n"
    "local base, argv, sub = math.ceil(us / 1000), ARGV, string.sub\n"
    "local first, ties, at, text = 1 / 0, 0, nil, nil\n"
    "for i = 2, #argv, 2 do\n"
    "  local when = argv[i]\n"
    "  if when ~= '' then\n"
    "    at = tonumber(when)\n"
    "    if at < 0 then\n"
    "      at, text = -at, sub(when, 2)\n"
    "    else\n"
    "      at = base + at\n"
    "      text = string.format('%d%07d', at / 10000000, at % 10000000)\n"
    "    end\n"
    "  end\n"
    "  argv[i] = text\n"
    "  if at == first then ties = ties + 1\n"
    "  elseif at < first then first, ties = at, 1 end\n"
    "end\n"
    "redis.call('ZADD', KEYS[1], 'NX', unpack(argv, 2))\n"
    "text = string.format('%.0f', first)\n"
    "if redis.call('ZCOUNT', KEYS[1], '0', text) == ties then\n"
    "  redis.call('PUBLISH', argv[1], text)\n"
    "end\n"
    "return {us}\n";

/* This script reports as much as a take: the due time of each item, the next
 * time to poll, and the sum of the lengths of the two lists. KEYS 1: the zset;
 * 2, 3: the lists. ARGV 1: the maximum number of items. */
#define LEAN_TAKE(check)                                               \
    "local call = redis.call\n"                                        \
    "local t = call('TIME')\n"                                         \
    "local us, want = t[1] * 1000000 + t[2], 2 * ARGV[1]\n"            \
    "local ready = call('LLEN', KEYS[2]) + call('LLEN', KEYS[3])\n"    \
    "local es = call('ZRANGE', KEYS[1], '0', ARGV[1], 'WITHSCORES')\n" \
    "local n, next = #es, -1\n"                                        \
    "while n > want or n > 0 and es[n] * 1000 > us do\n"               \
    "  next = math.max(0, es[n] * 1000 - us)\n"                        \
    "  n = n - 2\n"                                                    \
    "end\n"                                                            \
    "local out, dues, k = {us, next, ready, ''}, {}, 0\n"              \
    "for i = 1, n, 2 do\n"                                             \
    "  local e = es[i]\n" check "  k = k + 1\n"                        \
    "  out[k + 4], dues[k] = e, es[i + 1]\n"                           \
    "end\n"                                                            \
    "if n > 0 then call('ZREMRANGEBYRANK', KEYS[1], '0', k - 1) end\n" \
    "out[4] = table.concat(dues, ' ')\n"                               \
    "return out\n"
static const char lean_take[] = LEAN_TAKE("");
/* This lean take also checks that each member of the zset is an element.
 * Otherwise it would lose items that it can't decode. */
static const char safe_take[] = LEAN_TAKE(
    "  if #e < 25 or string.byte(e) ~= 16 or\n"
    "    struct.unpack('I8', e, 18) ~= #e - 25 then return nil end\n");

/* A lean take with a lease of ARGV 2 ms. */
static const char lean_lease[] =
    "local call, sub, byte = redis.call, string.sub, string.byte\n"
    "local t = call('TIME')\n"
    "local us, want = t[1] * 1000000 + t[2], 2 * ARGV[1]\n"
    "local ready = call('LLEN', KEYS[2]) + call('LLEN', KEYS[3])\n"
    "local es = call('ZRANGE', KEYS[1], '0', ARGV[1], 'WITHSCORES')\n"
    "local n, next = #es, -1\n"
    "while n > want or n > 0 and es[n] * 1000 > us do\n"
    "  next = math.max(0, es[n] * 1000 - us)\n"
    "  n = n - 2\n"
    "end\n"
    "local out, dues, k, again = {us, next, ready, ''}, {}, 0, {}\n"
    "local ends = string.format('%.0f', math.ceil(us / 1000) + ARGV[2])\n"
    "for i = 1, n, 2 do\n"
    "  local e = es[i]\n"
    "  local high, low = byte(e, 16, 17)\n"
    "  k, low = k + 1, high * 256 + low + 1\n"
    "  e = sub(e, 1, 15) .. string.char(math.floor(low / 256), low % 256) ..\n"
    "    sub(e, 18)\n"
    "  out[k + 4], dues[k], again[i], again[i + 1] = e, es[i + 1], ends, e\n"
    "end\n"
    "if k > 0 then\n"
    "  call('ZADD', KEYS[1], unpack(again))\n"
    "  call('ZREMRANGEBYRANK', KEYS[1], '0', k - 1)\n"
    "end\n"
    "out[4] = table.concat(dues, ' ')\n"
    "return out\n";

/* A lean ack. KEYS 1: the zset. ARGV: the elements. */
static const char lean_ack[] =
    "return redis.call('ZREM', KEYS[1], unpack(ARGV))\n";

/* If an added item is the earliest of all, publish its due time. KEYS 1: zset.
 * ARGV 1: channel; 2: due time; 3: the number of added items with that time. */
static const char head_told[] =
    "if redis.call('ZCOUNT', KEYS[1], '0', ARGV[2]) == ARGV[3] + 0 then\n"
    "  redis.call('PUBLISH', ARGV[1], ARGV[2])\n"
    "end\n"
    "return redis.call('TIME')\n";

static char *sha_offer, *sha_take, *sha_safe, *sha_lease, *sha_ack, *sha_head;

/* --- what is measured ---------------------------------------------------- */

static void check(delayq *h, delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(h));
}

/* If `due`, each message has its own due time. Else all have the same delay. */
static void offer(int items, int n, int due) {
    static delayq_message m[1000];
    int i, k;
    for (i = 0; i < items; i += n) {
        memset(m, 0, sizeof m[0] * (size_t)n);
        for (k = 0; k < n; k++) {
            m[k].data = payload;
            m[k].len = sizeof payload;
            if (due)
                m[k].due_ms = far[i + k];
            else
                m[k].delay_ms = 3600000;
        }
        check(&q, delayq_offer_many(&q, m, (size_t)n));
    }
}
static void d_offer_100(void) {
    offer(MOST, 100, 0);
}
static void d_offer_1000(void) {
    offer(MOST, 1000, 0);
}
static void d_due_1000(void) {
    offer(MOST, 1000, 1);
}

static void element_of(char *e, int i) {
    memset(e, 0, ELEMENT);
    e[0] = 16;
    e[1] = (char)(i >> 24);
    e[2] = (char)(i >> 16);
    e[3] = (char)(i >> 8);
    e[4] = (char)i;
    e[17] = 100;
    memcpy(e + 25, payload, 100);
}

/* Send one command with n pairs of a due time and an element. head[] has the
 * words before the pairs, and ends with NULL. */
static void send_pairs(const char **head, int from, int n, int due,
                       const char *other) {
    static char e[1000][ELEMENT], when[1000][24];
    static const char *argv[2010];
    static size_t lens[2010];
    int i, k = 0;
    for (; head[k]; k++) argv[k] = head[k], lens[k] = strlen(head[k]);
    for (i = 0; i < n; i++, k += 2) {
        element_of(e[i], from + i);
        if (due)
            snprintf(when[i], sizeof when[i], "%s%lld", other ? "-" : "",
                     (long long)far[from + i]);
        else
            strcpy(when[i], !other ? "1900000000000" : i == 0 ? other : "");
        argv[k] = when[i], lens[k] = strlen(when[i]);
        argv[k + 1] = e[i], lens[k + 1] = ELEMENT;
    }
    redisAppendCommandArgv(c, k, argv, lens);
}

static void y_script(int items, int n, int due) {
    const char *head[] = {"EVALSHA", sha_offer, "1", ZSET, CHANNEL, NULL};
    int i;
    for (i = 0; i < items; i += n) {
        send_pairs(head, i, n, due, "3600000");
        freeReplyObject(reply(c));
    }
}
static void y_script_100(void) {
    y_script(MOST, 100, 0);
}
static void y_script_1000(void) {
    y_script(MOST, 1000, 0);
}
static void y_script_due(void) {
    y_script(MOST, 1000, 1);
}

static void y_zadd_1000(void) {
    const char *head[] = {"ZADD", ZSET, NULL};
    int i;
    for (i = 0; i < MOST; i += 1000) {
        send_pairs(head, i, 1000, 0, NULL);
        freeReplyObject(reply(c));
    }
}

/* Send in one write a ZADD, whose due times the program has computed, and the
 * script that publishes the earliest due time. */
static void y_zadd_head(void) {
    const char *head[] = {"ZADD", ZSET, "NX", NULL};
    int i;
    for (i = 0; i < MOST; i += 1000) {
        send_pairs(head, i, 1000, 0, NULL);
        redisAppendCommand(
            c, "EVALSHA %s 1 " ZSET " " CHANNEL " 1900000000000 1000",
            sha_head);
        freeReplyObject(reply(c));
        freeReplyObject(reply(c));
    }
}

static void take(delayq *h, int n) {
    static delayq_item item[1000];
    size_t got = 0, count;
    for (; got < MOST; got += count) {
        check(h, delayq_take_many(h, item, (size_t)n, &count, 0));
        if (h == &leased) check(h, delayq_ack_many(h, item, count));
    }
}
static void d_take(void) {
    take(&q, 100);
}
static void d_lease(void) {
    take(&leased, 100);
}

static redisReply *taken(const char *sha) {
    redisAppendCommand(c,
                       "EVALSHA %s 3 " ZSET " bench delayq_retry:{bench} "
                       "100 60000",
                       sha);
    return reply(c);
}
static void y_take(void) {
    int i;
    for (i = 0; i < MOST; i += 100) freeReplyObject(taken(sha_take));
}
static void y_safe(void) {
    int i;
    for (i = 0; i < MOST; i += 100) freeReplyObject(taken(sha_safe));
}
static void y_lease(void) {
    const char *argv[110] = {"EVALSHA", sha_ack, "1", ZSET};
    size_t lens[110], k;
    int i;
    for (k = 0; k < 4; k++) lens[k] = strlen(argv[k]);
    for (i = 0; i < MOST; i += 100) {
        redisReply *r = taken(sha_lease);
        for (k = 4; k < r->elements; k++)
            argv[k] = r->element[k]->str, lens[k] = r->element[k]->len;
        redisAppendCommandArgv(c, (int)r->elements, argv, lens);
        freeReplyObject(reply(c));
        freeReplyObject(r);
    }
}

static double used(void) {
    return both_us(c);
}

/* --- the queue before a lap ---------------------------------------------- */

static void empty(void) {
    empty_bench(c, &q);
    leased.ready = 0;
    leased.next_poll_us = 0;
}
static void fill(void) {
    empty();
    store(&q, past, MOST, sizeof payload);
}

static const struct row rows[] = {
    {"offer_many(100)", "lean script", ">= 0.95", empty, d_offer_100, empty,
     y_script_100, 1},
    {"offer_many(1000)", "lean script", ">= 0.95", empty, d_offer_1000, empty,
     y_script_1000, 1},
    {"each at a time", "lean script", ">= 0.95", empty, d_due_1000, empty,
     y_script_due, 1},
    {"offer_many(1000)", "one ZADD", ">= 0.8", empty, d_offer_1000, empty,
     y_zadd_1000, 1},
    {"lean script", "one ZADD", "", empty, y_script_1000, empty, y_zadd_1000,
     1},
    {"ZADD and head", "one ZADD", "", empty, y_zadd_head, empty, y_zadd_1000,
     1},
    {"take_many(100)", "lean script", ">= 0.95", fill, d_take, fill, y_take, 1},
    {"take_many(100)", "one that checks each", "", fill, d_take, fill, y_safe,
     1},
    {"lease, ack_many", "lean scripts", "", fill, d_lease, fill, y_lease, 1},
};

/* --- the chart ----------------------------------------------------------- */

#define ROUNDS 7

static char *sha_published, *sha_transfer;

static void offer_published(int items, int n) {
    int i, k;
    for (i = 0; i < items; i += n) {
        for (k = 0; k < n; k++)
            redisAppendCommand(
                c, "EVALSHA %s 3 " ZSET " " MIRROR " " CHANNEL " %lld %d %b",
                sha_published, (long long)far[i + k], i + k, payload,
                sizeof payload);
        for (k = 0; k < n; k++) freeReplyObject(reply(c));
    }
}
static void take_published(int items, int n) {
    int i;
    for (i = 0; i < items; i += n) {
        redisAppendCommand(c, "EVALSHA %s 3 bench " ZSET " " MIRROR " %lld %d",
                           sha_transfer, PAST_MS + 100000000000LL, n);
        redisAppendCommand(c, "LPOP bench %d", n);
        freeReplyObject(reply(c));
        freeReplyObject(reply(c));
    }
}
static void offer_due(int items, int n) {
    offer(items, n, 1);
}
static void take_by(int items, int n) {
    static delayq_item item[1000];
    size_t got = 0, count;
    for (; got < (size_t)items; got += count)
        check(&q, delayq_take_many(&q, item, (size_t)n, &count, 0));
}
static void none(int items) {
    (void)items;
}
static void stored(int items) {
    store(&q, past, items, sizeof payload);
}
static void stored_published(int items) {
    store_published(c, "bench", past, items, sizeof payload);
}

/* Returns the median of ROUNDS rounds, in items a second. */
static double rate(void (*before)(int), void (*run)(int, int), int items,
                   int n) {
    double v[ROUNDS];
    int round;
    for (round = 0; round < ROUNDS; round++) {
        double begin;
        empty();
        before(items);
        begin = seconds();
        run(items, n);
        v[round] = items / (seconds() - begin);
    }
    return median(v, ROUNDS);
}

static void chart(const char *name, void (*before)(int), void (*run)(int, int),
                  void (*before_yard)(int), void (*yard)(int, int)) {
    FILE *data = data_file(name);
    int n;
    for (n = 1; data && n <= 1000; n *= 10) {
        int items = n == 1 ? MOST / 10 : MOST;
        double ours = rate(before, run, items, n);
        fprintf(data, "%d %.0f %.0f\n", n, ours,
                rate(before_yard, yard, items, n));
    }
    if (data) fclose(data);
}

int main(void) {
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    open_bench(&leased, DELAYQ_NATIVE, 60000);
    memset(payload, 'x', sizeof payload);
    far = due_times(MOST, 0, 1);
    past = due_times(MOST, MOST, 0);
    sha_offer = load(c, lean_offer);
    sha_take = load(c, lean_take);
    sha_safe = load(c, safe_take);
    sha_lease = load(c, lean_lease);
    sha_ack = load(c, lean_ack);
    sha_head = load(c, head_told);
    sha_published = load(c, published_offer);
    sha_transfer = load(c, published_transfer);
    compare("rate of", rows, sizeof rows / sizeof rows[0], used);
    chart("offer.dat", none, offer_due, none, offer_published);
    chart("take.dat", stored, take_by, stored_published, take_published);
    do_command(c, "FLUSHALL");
    delayq_close(&q);
    delayq_close(&leased);
    return 0;
}
