/*
 * Broken connections of a handle with an outbox. They are cut at every 7th byte
 * (with DELAYQ_TEST_FULL in most tests at every byte), stalled, garbled, or
 * work in one direction only. Requests reach the server long after the handle
 * has given up their connection. The server is frozen, killed or promoted.
 * Every accepted op is done exactly once (at least once if the server itself
 * has lost data), even if its item was delivered before the op was sent again.
 */
#include "outbox.h"
#include "proxy.h"
#include "calls.h"
#include <sys/wait.h>

/* The reply is above 0 as long as the queue contains items. */
#define EXISTS "EXISTS " ZSET " jobs delayq_retry:{jobs}"

static delayq_item one;

/* Open q, and wait for a reply. From then on offers have tickets. */
static void open_known(const delayq_options *o) {
    OK(&q, delayq_open(&q, o));
    OFFER(&q, "first", 60000);
    SETTLE(&q);
}

static delayq_options faulty(int io_timeout_ms, int64_t lease_ms) {
    delayq_options o = box_options(&main_server, BOX);
    o.url = proxy_url();
    o.reconnect_max_ms = 2;
    o.lease_ms = lease_ms;
    o.io_timeout_ms = io_timeout_ms * test_slow();
    return o;
}

/* --- a mover ------------------------------------------------------------- */

/* Moves ready and pending items, due or not, to the list `moved`, in the order
 * of delivery. So if an offer is sent again, its item is already delivered. If
 * a kill -9 cuts the server's write to its AOF between two pages, Redis 7.0
 * keeps the beginning of the transaction, and runs it at the second restart.
 * Then moved items would come twice, so the mover moves at most 8 items at
 * once. */
static const char mover[] =
    "local moved = redis.call('LRANGE', 'jobs', 0, 7)\n"
    "if #moved > 0 then\n"
    "  redis.call('LTRIM', 'jobs', #moved, -1)\n"
    "else\n"
    "  for i, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, 7)) do\n"
    "    moved[i] = string.sub(e, 18 + struct.size('L'))\n"
    "  end\n"
    "  redis.call('ZREMRANGEBYRANK', KEYS[1], 0, math.max(#moved, 1) - 1)\n"
    "end\n"
    "if #moved > 0 then redis.call('RPUSH', 'moved', unpack(moved)) end\n"
    "return #moved\n";

static void move(redisContext *c) {
    redisReply *r;
    long long n;
    do {
        r = run(c, "EVAL %s 1 " ZSET, mover);
        if (r->type == REDIS_REPLY_ERROR) FAIL("%s", r->str);
        n = r->integer;
        freeReplyObject(r);
    } while (n > 0);
}

/* Check that the list `moved` contains each number from 0 to n - 1 once, in
 * ascending order. */
static void each_once(redisContext *c, int n) {
    redisReply *r;
    int *times = (int *)calloc((size_t)n, sizeof *times), i, last = -1;
    size_t k;
    int late = 0;
    move(c);
    r = run(c, "LRANGE moved 0 -1");
    for (k = 0; k < r->elements; k++) {
        int id = atoi(r->element[k]->str);
        CHECK(id >= 0 && id < n);
        times[id]++;
        late += id < last;
        last = id;
    }
    for (i = 0; i < n; i++)
        if (times[i] != 1)
            FAIL("item %d of %d is there %d times", i, n, times[i]);
    if (late) FAIL("%d items stand behind later ones", late);
    freeReplyObject(r);
    free(times);
}

/* --- each kind of entry -------------------------------------------------- */

static void wait_with_offers(void) {
    /* from now on offers have tickets */
    UNTIL((delayq_tick(&q, NULL), q.conn->known));
    prepare_pending();
    SETTLE(&q);
}
/* Lease n items. Returns 0 if a take gave up because its reply was late, as on
 * a slow machine. Then nobody has the items of that reply, which are leased. */
static int leased(int n) {
    long long end = now_us() + 2000000LL * test_slow();
    int i;
    ask("DEL " ZSET " jobs delayq_retry:{jobs}");
    while (delayq_take(&q, &one, 0) == DELAYQ_OK) { /* drop earlier items */
    }
    for (i = 0; i < n; i++) OFFER(&q, "x", 0);
    for (i = 0; i < n && now_us() < end;) i += took(&q, &items[i]);
    SETTLE(&q);
    return i == n && ask_int("ZCARD " ZSET) == n;
}
static void wait_with_leases(void) {
    UNTIL(leased(3));
}

static delayq_status do_all(void) {
    OK(&q, do_extend());
    OK(&q, delayq_nack(&q, &items[0], 30000));
    OK(&q, delayq_bury(&q, &items[2], NULL));
    OK(&q, do_offer_many());
    OK(&q, do_cancel());
    OK(&q, delayq_reschedule(&q, &messages[2].ticket, 30000));
    OK(&q, do_key());
    return do_ack();
}

static const struct entry {
    const char *name;
    void (*prepare)(void);
    delayq_status (*call)(void);
    int pending, dead;
} entries[] = {
    {"offer", prepare_nothing, do_offer, 1, 0},
    {"offer_many", prepare_nothing, do_offer_many, 3, 0},
    {"offer with a key", prepare_nothing, do_key, 1, 0},
    {"ack", wait_with_leases, do_ack, 2, 0},
    {"ack_many", wait_with_leases, do_ack_many, 0, 0},
    {"ack_take", wait_with_leases, do_ack_take, 2, 0},
    {"nack", wait_with_leases, do_nack, 3, 0},
    {"extend", wait_with_leases, do_extend, 3, 0},
    {"bury", wait_with_leases, do_bury, 2, 1},
    {"cancel", wait_with_offers, do_cancel, 2, 0},
    {"reschedule", wait_with_offers, do_reschedule, 3, 0},
    {"all of them", wait_with_leases, do_all, 4, 1},
};
#define ENTRIES (sizeof entries / sizeof entries[0])

/* Put the ops of an entry into the outbox. An ack_take also takes, and finds
 * nothing without waiting. */
static void submit(const struct entry *v) {
    if (v->call == do_ack_take) {
        CHECK(do_ack_take() != DELAYQ_OK);
        OK(&q, got[0].acked);
    } else {
        OK(&q, v->call());
    }
}

static const char *const faults[] = {"passed",   "cut",     "stalled",
                                     "delayed",  "dropped", "garbled",
                                     "replayed", "forged",  "copied",
                                     "late"};

static void begin(const struct entry *v) {
    ask("FLUSHDB");
    v->prepare();
}

static void strike(const struct entry *v, enum fault what, int direction,
                   long at, int times) {
    delayq_outbox_state before, after;
    long long end;
    int pending, dead;
    begin(v);
    before = box(&q);
    end = now_us() + 20000000LL * test_slow();
    if (q.options.connect) proxy->only = proxy_number(q.conn->cmd.c);
    proxy_strike(what, direction, at, times);
    submit(v);
    while (!settled(&q)) {
        if (now_us() > end)
            FAIL("%s, %s at byte %ld %s, %d times: never settled: %s", v->name,
                 faults[what], at, direction ? "back" : "out", times,
                 delayq_errmsg(&q));
        usleep(50);
    }
    proxy_calm();
    after = box(&q);
    pending = (int)ask_int("ZCARD " ZSET);
    dead = (int)ask_int("LLEN delayq_dead:{jobs}");
    if (pending != v->pending || dead != v->dead || after.gone != before.gone ||
        after.duplicate != before.duplicate || after.dropped != before.dropped)
        FAIL("%s, %s at byte %ld %s, %d times: %d pending and %d dead, not %d "
             "and %d; gone %d, duplicate %d, dropped %d",
             v->name, faults[what], at, direction ? "back" : "out", times,
             pending, dead, v->pending, v->dead,
             (int)(after.gone - before.gone),
             (int)(after.duplicate - before.duplicate),
             (int)(after.dropped - before.dropped));
    if (what == CUT) return;
    /* a fault that has hit nothing yet must hit this offer, and no later op */
    OFFER(&q, "y", 60000);
    SETTLE(&q);
}

/* Returns how many bytes pass in this direction if there is no fault. */
static long size_of(const struct entry *v, int direction) {
    int i;
    for (i = 0; i < 2; i++) {
        begin(v);
        proxy->passed[0] = proxy->passed[1] = 0;
        submit(v);
        SETTLE(&q);
    }
    CHECK(proxy->passed[direction] > 0);
    return proxy->passed[direction];
}

static void at_bytes(const struct entry *v, enum fault what, int direction,
                     long step, int times) {
    long size = size_of(v, direction), at;
    for (at = 0; at <= size; at += step) strike(v, what, direction, at, times);
}

static void each_entry(void (*body)(const struct entry *), size_t from,
                       size_t to, int io_timeout_ms) {
    proxy_start(&main_server);
    for (; from < to; from++) {
        delayq_options o = faulty(io_timeout_ms, 600000);
        open_known(&o);
        body(&entries[from]);
        delayq_close(&q);
    }
}

static long every(long n) {
    return test_step((int)n, 41);
}

/* --- cut ----------------------------------------------------------------- */

static void cut(const struct entry *v) {
    int direction;
    for (direction = 0; direction < 2; direction++) {
        at_bytes(v, CUT, direction, every(v->call == do_all ? 5 : 1), 1);
        at_bytes(v, CUT, direction, every(17), 2);
    }
}

TEST(an_offer_in_an_outbox_survives_a_cut_at_any_byte) {
    each_entry(cut, 0, 3, 20000);
}
TEST(an_ack_in_an_outbox_survives_a_cut_at_any_byte) {
    each_entry(cut, 3, 6, 20000);
}
LONG_TEST(a_nack_extend_or_bury_in_an_outbox_survives_a_cut_at_any_byte) {
    each_entry(cut, 6, 9, 20000);
}
TEST(a_cancel_or_reschedule_in_an_outbox_survives_a_cut_at_any_byte) {
    each_entry(cut, 9, 11, 20000);
}
TEST(a_mixture_in_an_outbox_survives_a_cut_at_any_byte) {
    each_entry(cut, 11, ENTRIES, 20000);
}

/* The first conversation contains the login, the probe, the text of the script,
 * and the subscriber. */
TEST(a_cut_at_any_byte_of_a_first_conversation_loses_and_doubles_nothing) {
    int direction;
    long at, size, step;
    delayq_options o;
    proxy_start(&main_server);
    o = faulty(20000, 50 * test_slow());
    for (direction = 0; direction < 2; direction++)
        for (at = 0, size = 1, step = 0; at <= size; at += step) {
            long long end = now_us() + 20000000LL * test_slow();
            ask("FLUSHALL");
            proxy->passed[0] = proxy->passed[1] = 0;
            if (step > 0) proxy_strike(CUT, direction, at, 1);
            OK(&q, delayq_open(&q, &o));
            OFFER(&q, "x", 0);
            SETTLE(&q);
            while (ask_int(EXISTS) > 0 || !settled(&q))
                if (took(&q, &one))
                    OK(&q, delayq_ack(&q, &one));
                else if (now_us() > end)
                    FAIL("cut %s at byte %ld: never acked: %s",
                         direction ? "back" : "out", at, delayq_errmsg(&q));
            proxy_calm();
            CHECK_INT(box(&q).dropped, 0);
            delayq_close(&q);
            if (step == 0) { /* the first pass only measures the size */
                size = proxy->passed[direction];
                step = every(size / 200 + 1);
                at = -step;
            }
        }
}

/* This fails if a second sending relies on the id of the offer alone, because
 * ZADD NX does not notice that an item has been delivered. */
TEST(an_offer_that_was_delivered_is_not_stored_by_its_second_sending) {
    static const enum fault kinds[] = {CUT, GARBAGE};
    long at, size;
    int direction, n = 0, i;
    delayq_options o;
    proxy_start(&main_server);
    o = faulty(200, 0);
    OK(&q, delayq_open(&q, &o));
    for (direction = 0; direction < 2; direction++) {
        size = size_of(&entries[0], direction);
        ask("FLUSHDB");
        n = 0;
        for (at = 0; at <= size; at += every(1))
            for (i = direction ? 0 : 1; i < 2; i++) {
                char text[16];
                long long end = now_us() + 20000000LL * test_slow();
                snprintf(text, sizeof text, "%d", n++);
                proxy_strike(kinds[direction ? i : 0], direction, at, 1);
                OFFER(&q, text, 0);
                while (!settled(&q)) {
                    move(main_connection());
                    if (now_us() > end) FAIL("byte %ld is never settled", at);
                }
                proxy_calm();
            }
        each_once(main_connection(), n);
    }
    delayq_close(&q);
}

/* Items that were fetched and lost are delivered again after the lease. */
TEST(a_fetch_that_is_cut_at_any_byte_comes_again_with_its_lease) {
    long at, size = 0, step = every(3);
    int direction;
    delayq_options o;
    proxy_start(&main_server);
    o = faulty(20000, 50 * test_slow());
    OK(&q, delayq_open(&q, &o));
    for (direction = 0; direction < 2; direction++)
        for (at = -step; at <= size; at += step) {
            long long end = now_us() + 20000000LL * test_slow();
            OFFER(&q, "x", 0);
            SETTLE(&q);
            proxy->passed[0] = proxy->passed[1] = 0;
            if (at >= 0) proxy_strike(CUT, direction, at, 1);
            while (ask_int(EXISTS) > 0 || !settled(&q)) {
                if (took(&q, &one)) {
                    item_is(&one, "x");
                    OK(&q, delayq_ack(&q, &one));
                }
                if (now_us() > end) FAIL("cut at byte %ld: never acked", at);
            }
            proxy_calm();
            if (at < 0) size = proxy->passed[direction];
            CHECK_INT(box(&q).dropped, 0);
        }
    delayq_close(&q);
}

/* --- stalled, dropped, garbled ------------------------------------------- */

static void stall(const struct entry *v) {
    int direction, i;
    for (direction = 0; direction < 2; direction++) {
        long size = size_of(v, direction);
        for (i = 0; i < 3; i++) {
            strike(v, STALL, direction, i * (size - 1) / 2, 1);
            strike(v, DROP, direction, i * (size - 1) / 2, 1);
        }
    }
}

/* The item is lost with its reply. Then the server requires a password. */
TEST(a_take_of_an_outbox_that_may_have_lost_an_item_always_says_so) {
    delayq other;
    delayq_options o;
    if (main_server.major < 6)
        test_skip("Redis 5 asks those who are connected for the password, too");
    proxy_start(&main_server);
    o = faulty(20000, 0);
    open_known(&o);
    CHECK_STATUS(&q, delayq_take(&q, &one, 100), DELAYQ_EMPTY);
    open_queue(&other, "jobs");
    proxy->only = 0; /* the command socket */
    proxy_strike(CUT, 1, 0, 1);
    ask("CONFIG SET requirepass pw");
    OFFER(&other, "x", 0);
    elapse(main_connection(), 1);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &one, 20000), DELAYQ_ERR_UNKNOWN);
    CHECK_HAS(delayq_errmsg(&q), "NOAUTH");
    ask("CONFIG SET requirepass %s", "");
    delayq_close(&q);
    delayq_close(&other);
}

TEST(an_outbox_survives_connections_that_stall_or_carry_one_way_only) {
    each_entry(stall, 0, ENTRIES, 40);
}

/* Some garbage makes the reader wait for more bytes, until its timeout. */
static void garble(const struct entry *v) {
    at_bytes(v, GARBAGE, 1, every(v->prepare == prepare_nothing ? 1 : 5), 1);
}

TEST(offers_in_an_outbox_survive_garbage_from_any_byte_of_a_reply_on) {
    each_entry(garble, 0, 3, 200);
}
/* The reply to an ack is as short as the reply to an offer. All other bytes
 * belong to replies to takes. */
TEST(changes_in_an_outbox_survive_garbage_in_a_reply) {
    each_entry(garble, 3, ENTRIES, 200);
}

/* Replace the reply by one that has the form of a reply, but is not the verb's.
 * The request was run. Afterwards the connection is not used. If the read that
 * is replaced contains several replies, the handle waits for its timeout. */
static void mix_up(const struct entry *v) {
    static const char *const replies[] = {"+OK\r\n", "*0\r\n",
                                          "*2\r\n:1700000000000000\r\n$-1\r\n",
                                          "*2\r\n:1700000000000000\r\n*0\r\n"};
    size_t i;
    for (i = 0; i < sizeof replies / sizeof *replies; i++) {
        int before = proxy->connections;
        strcpy(proxy->forged, replies[i]);
        strike(v, FORGE, 1, 0, 1);
        if (proxy->connections == before)
            FAIL("%s: the connection is used after the reply %s", v->name,
                 replies[i]);
    }
}

TEST(an_outbox_survives_replies_that_are_not_its_own) {
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < ENTRIES; i++) {
        delayq_options o = faulty(1000, 600000);
        o.url = NULL;
        o.connect = through_proxy; /* so that each strike hits the cmd socket */
        open_known(&o);
        mix_up(&entries[i]);
        delayq_close(&q);
    }
}

/* Hold requests or replies for longer than the timeout, then deliver them. */
static void hold_back(const struct entry *v) {
    int i;
    proxy->delay_ms = 90 * test_slow();
    for (i = 0; i < 2; i++) {
        long size = size_of(v, i);
        strike(v, DELAY, i, 0, 1);
        strike(v, DELAY, i, size / 2, 1);
        strike(v, DELAY, i, 0, 3);
    }
}

LONG_TEST(an_outbox_survives_replies_that_come_after_their_timeout) {
    each_entry(hold_back, 0, ENTRIES, 40);
}

TEST(an_outbox_waits_out_a_delay_within_the_timeout) {
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < ENTRIES; i++) {
        delayq_options o = faulty(20000, 600000);
        int before;
        open_known(&o);
        size_of(&entries[i], 0);
        before = proxy->connections;
        proxy->delay_ms = 20;
        strike(&entries[i], DELAY, 1, 5, 1);
        strike(&entries[i], DELAY, 0, 5, 1);
        CHECK_INT(proxy->connections, before);
        delayq_close(&q);
    }
}

/* --- stragglers ---------------------------------------------------------- */

/* Let the server receive the requests on connections that were given up, and
 * wait until it has run these requests. */
static void let_stragglers_go(void) {
    int i;
    CHECK(proxy->kept > 0);
    proxy->let_go = 1;
    UNTIL(proxy->kept == 0);
    for (i = 0; i < 3; i++) ask("PING");
    proxy->let_go = 0;
}

static void open_late(int64_t lease_ms) {
    delayq_options o;
    proxy_start(&main_server);
    o = faulty(60, lease_ms);
    open_known(&o);
    ask("DEL " ZSET);
}

TEST(an_offer_that_arrives_after_its_second_sending_is_not_stored_again) {
    int times, n = 0;
    open_late(0);
    for (times = 1; times <= 3; times++) {
        char text[16];
        snprintf(text, sizeof text, "%d", n++);
        proxy_strike(LATE, 0, 0, times);
        OFFER(&q, text, 0);
        SETTLE(&q);
        proxy_calm();
        move(main_connection());
        let_stragglers_go();
        CHECK_INT(ask_int("ZCARD " ZSET), 0);
    }
    each_once(main_connection(), n);
    delayq_close(&q);
}

TEST(a_cancelled_offer_is_not_revived_by_a_straggler) {
    delayq_message m;
    open_late(0);
    memset(&m, 0, sizeof m);
    m.data = "x";
    m.len = 1;
    m.delay_ms = 60000;
    proxy_strike(LATE, 0, 0, 1);
    OK(&q, delayq_offer_message(&q, &m));
    SETTLE(&q);
    proxy_calm();
    OK(&q, delayq_cancel(&q, &m.ticket));
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    let_stragglers_go();
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
}

TEST(an_older_change_that_arrives_late_does_not_undo_a_newer_one) {
    int64_t due;
    open_late(600000);
    UNTIL(leased(1));
    one = items[0];
    proxy_strike(LATE, 0, 0, 1);
    OK(&q, delayq_extend(&q, &one, 700000));
    SETTLE(&q);
    proxy_calm();
    OK(&q, delayq_extend(&q, &one, 900000));
    SETTLE(&q);
    due = only_due(main_connection());
    CHECK(atoll(one.ticket.text) == due);
    let_stragglers_go();
    CHECK_INT(only_due(main_connection()), due);
    proxy_strike(LATE, 0, 0, 1);
    OK(&q, delayq_nack(&q, &one, 100000));
    SETTLE(&q);
    proxy_calm();
    due = only_due(main_connection());
    let_stragglers_go();
    CHECK_INT(only_due(main_connection()), due);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
}

/* The send buffer is as small as that of a device. It takes three times
 * io_timeout_ms to send the request, but some bytes are sent every 0.1 s. */
TEST(a_request_that_is_sent_in_small_parts_does_not_expire) {
    static char payload[60000];
    int small = 1; /* the system raises this to its minimum */
    delayq_options o = faulty(500, 0);
    o.outbox_size = 1 << 20;
    o.outbox = calloc(1, o.outbox_size);
    proxy_start(&main_server);
    o.url = proxy_url();
    open_known(&o);
    proxy->pace_us = 1500000 * test_slow();
    CHECK(setsockopt(q.conn->cmd.c->fd, SOL_SOCKET, SO_SNDBUF, &small,
                     sizeof small) == 0);
    OK(&q, delayq_offer(&q, payload, sizeof payload, 60000));
    SETTLE(&q);
    CHECK_INT(q.counts.reconnects, 0);
    delayq_close(&q);
    free(o.outbox);
}

/* On a slow connection the estimate of the server's clock has a larger error
 * than on a fast one. */
TEST(offers_keep_their_order_when_a_better_known_clock_dates_them_again) {
    delayq_options o = box_options(&main_server, BOX);
    redisReply *r;
    proxy_start(&main_server);
    o.url = proxy_url();
    proxy->pace_us = 2000000; /* makes a probe take 60 ms */
    OK(&q, delayq_open(&q, &o));
    UNTIL((turn(&q), q.conn->known));
    OFFER(&q, "0", 60000);
    proxy->pace_us = 0;
    SETTLE(&q);
    proxy_strike(DROP, 0, 0, 1);
    proxy->only = proxy_number(q.conn->cmd.c);
    OFFER(&q, "1", 60000);
    usleep(1100000);
    OFFER(&q, "2", 60000);
    proxy_calm();
    shutdown(q.conn->cmd.c->fd, SHUT_RDWR);
    SETTLE(&q);
    r = run(main_connection(), "ZRANGE " ZSET " 0 -1");
    CHECK_INT(r->elements, 3);
    CHECK_INT(r->element[0]->str[r->element[0]->len - 1], '0');
    CHECK_INT(r->element[1]->str[r->element[1]->len - 1], '1');
    freeReplyObject(r);
    delayq_close(&q);
}

/* --- many offers --------------------------------------------------------- */

static server own;
static const char *const synced[] = {"--appendonly", "yes", "--appendfsync",
                                     "always", NULL};
static volatile int *stop;

/* Move items in a separate process, even if the server dies and restarts. */
static void keep_moving(void *argument) {
    const server *s = (const server *)argument;
    signal(SIGPIPE, SIG_IGN);
    while (!*stop) {
        redisContext *c = redisConnectUnix(s->socket);
        redisReply *r = NULL;
        while (!*stop && c && !c->err &&
               (r = (redisReply *)redisCommand(c, "EVAL %s 1 " ZSET, mover))) {
            if (r->type != REDIS_REPLY_INTEGER || r->integer == 0) usleep(1000);
            freeReplyObject(r);
        }
        if (c) redisFree(c);
        usleep(1000);
    }
}

static pid_t start_moving(const server *s) {
    stop = (volatile int *)shared(sizeof *stop);
    return spawn(keep_moving, (void *)s);
}

static void offer_number(int i) {
    char text[16];
    snprintf(text, sizeof text, "%d", i);
    OK(&q, delayq_offer(&q, text, strlen(text), 0));
    if (i % 10 == 0) turn(&q);
}

TEST(ten_thousand_offers_survive_a_frozen_and_a_killed_server_once_each) {
    int n = test_brief() ? 2000 : 10000, i;
    delayq_options o;
    redisContext *c;
    pid_t child;
    server_start(&own, synced);
    child = start_moving(&own);
    o = box_options(&own, 4 << 20);
    o.io_timeout_ms = 100 * test_slow();
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < n; i++) {
        offer_number(i);
        if (i == n / 5) server_kill(&own, SIGSTOP);
        if (i == n * 2 / 5) {
            int k;
            for (k = 0; k < 300; k++) {
                turn(&q);
                usleep(1000);
            }
            server_kill(&own, SIGCONT);
        }
        if (i == n / 2) server_kill(&own, SIGKILL);
        if (i == n * 3 / 5) server_start_again(&own, synced);
        if (i > n * 3 / 5 && i % (n / 20) == 7) { /* in the middle of a batch */
            UNTIL((turn(&q), box(&q).offers_settled > (uint64_t)(i - n / 20)));
            turn(&q);
            server_kill(&own, SIGKILL);
            server_start_again(&own, synced);
        }
    }
    SETTLE(&q);
    *stop = 1;
    join(child);
    c = server_connect(&own);
    each_once(c, n);
    CHECK_INT(box(&q).dropped, 0);
    CHECK_INT(box(&q).offers_settled, n);
    redisFree(c);
    delayq_close(&q);
    server_end(&own);
}

/* The payload "poison" ends each connection on which it is sent. Each frame has
 * a take, so a transfer or a fetch could be sent after the payload. */
static void send_poison(const char *answer) {
    delayq_options o;
    int i, came = 0;
    proxy_start(&main_server);
    o = faulty(20000, 60000);
    OK(&q, delayq_open(&q, &o));
    SETTLE(&q);
    snprintf(proxy->forged, sizeof proxy->forged, "%s", answer);
    snprintf(proxy->word, sizeof proxy->word, "poison");
    OFFER(&q, "before", 0);
    OFFER(&q, "poison", 0);
    for (i = 0; i < 3; i++) OFFER(&q, "after", 0);
    UNTIL((turn(&q), came += delayq_take(&q, &one, 0) == DELAYQ_OK,
           box(&q).dropped == 1 && came == 4));
    SETTLE(&q);
    CHECK_INT(box(&q).offers_settled, 5);
    CHECK_INT(box(&q).dropped, 1);
    UNTIL(turn(&q) == DELAYQ_OK);
    delayq_close(&q);
}
TEST(an_op_that_ends_connections_is_dropped_though_the_program_takes) {
    send_poison("");
}
/* The server's reply arrives before the end of the connection. */
TEST(an_op_that_ends_connections_with_an_answer_is_dropped) {
    send_poison("-ERR Protocol error: invalid bulk length\r\n");
}

/* Check the payload of `item` or, if `item` is NULL, write a payload to `to`. A
 * payload's first number determines all other bytes. Returns the length. */
static size_t large_payload(unsigned char *to, const delayq_item *item) {
    size_t i, len;
    unsigned n;
    if (item) {
        CHECK(item->len >= sizeof n);
        memcpy(&n, item->data, sizeof n);
    } else {
        memcpy(&n, to, sizeof n);
    }
    len = sizeof n + n * 7919 % 40000;
    if (item) CHECK_INT(item->len, len);
    for (i = sizeof n; i < len; i++) {
        unsigned char byte = (unsigned char)(n * 31 + i);
        if (!item)
            to[i] = byte;
        else if (((const unsigned char *)item->data)[i] != byte)
            FAIL("item %u is another one from byte %u on", n, (unsigned)i);
    }
    return len;
}

/* A full run sends 100 MB. Between a take and the reading of its item the test
 * makes other calls, which must not change the memory of the item. */
LONG_TEST(megabytes_through_a_connection_that_is_cut_arrive_whole) {
    enum { SIZE = 1 << 20 };
    static unsigned char payload[50000], came[20000];
    unsigned offers = test_brief() ? 100 : 500;
    unsigned n, next = 0, acked = 0, cuts = 0;
    delayq_options o;
    long long end = now_us() + 150000000LL * test_slow();
    if (getenv("DELAYQ_TEST_FULL")) offers = 5000;
    proxy_start(&main_server);
    o = faulty(20000, 700 * test_slow());
    o.outbox = box_memory(SIZE);
    o.outbox_size = SIZE;
    OK(&q, delayq_open(&q, &o));
    while (acked < offers || !settled(&q)) {
        if (proxy->times == 0 && acked < offers) {
            cuts++;
            proxy_strike(CUT, rand() % 2, rand() % 100000, 1);
        }
        memcpy(payload, &next, sizeof next);
        if (next < offers)
            next += (unsigned)offered(&q, payload, large_payload(payload, NULL),
                                      rand() % 20);
        if (took(&q, &one)) {
            if (rand() % 2) turn(&q);
            if (rand() % 8 == 0) delayq_flush(&q, 1);
            large_payload(NULL, &one);
            memcpy(&n, one.data, sizeof n);
            CHECK(n < next);
            acked += came[n]++ == 0;
            UNTIL(changed(&q, delayq_ack(&q, &one)));
        }
        if (now_us() > end) FAIL("it never ends: %s", delayq_errmsg(&q));
    }
    proxy_calm();
    if (cuts < 3) FAIL("%u cuts", cuts);
    /* an ack after the end of the lease did nothing, so this item is delivered
     * again */
    while (ask_int(EXISTS) > 0 || !settled(&q)) {
        if (took(&q, &one)) UNTIL(changed(&q, delayq_ack(&q, &one)));
        if (now_us() > end) FAIL("it is never empty: %s", delayq_errmsg(&q));
    }
    delayq_close(&q);
}

/* An item whose ack was settled as done, not as gone, never comes again. */
LONG_TEST(leases_acked_through_a_connection_that_is_cut_come_no_second_time) {
    enum { ITEMS = 1000 };
    static unsigned char acked[ITEMS];
    delayq producer;
    delayq_options o;
    char text[16];
    int i, again = 0, cuts = test_brief() ? 20 : 60;
    long long end = now_us() + 40000000LL * test_slow();
    proxy_start(&main_server);
    open_queue(&producer, "jobs");
    for (i = 0; i < ITEMS; i++) {
        snprintf(text, sizeof text, "%d", i);
        OFFER(&producer, text, 0);
    }
    delayq_close(&producer);
    o = faulty(20000, 500 * test_slow());
    OK(&q, delayq_open(&q, &o));
    while (ask_int(EXISTS) > 0 || !settled(&q)) {
        if (proxy->times == 0 && cuts-- > 0)
            proxy_strike(CUT, rand() % 2, rand() % 3000, 1);
        for (i = 0; i < 20 && took(&q, &one); i++) {
            int id;
            snprintf(text, sizeof text, "%.*s", (int)one.len,
                     (const char *)one.data);
            id = atoi(text);
            CHECK(id >= 0 && id < ITEMS);
            again += acked[id]++ > 0;
            UNTIL(changed(&q, delayq_ack(&q, &one)));
        }
        if (i == 0) usleep(2000);
        if (now_us() > end) FAIL("it never ends: %s", delayq_errmsg(&q));
    }
    proxy_calm();
    for (i = 0; i < ITEMS; i++)
        if (!acked[i]) FAIL("item %d never came", i);
    if ((int)box(&q).gone < again)
        FAIL("%d items came after their ack, %d were gone", again,
             (int)box(&q).gone);
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
}

/* --- failover ------------------------------------------------------------ */

static void start_node(server *s, int port, int of) {
    char text[16], master[16];
    const char *with[] = {"--port", text,        "--bind", "127.0.0.1",
                          NULL,     "127.0.0.1", master,   NULL};
    snprintf(text, sizeof text, "%d", port);
    snprintf(master, sizeof master, "%d", of);
    if (of) with[4] = "--replicaof";
    server_start(s, with);
}

static int has_replica(redisContext *c) {
    redisReply *r = run(c, "INFO replication");
    int found = strstr(r->str, "state=online") != NULL;
    freeReplyObject(r);
    return found;
}

/* Redis replicates an op after it has replied, so delayq can promise no more
 * than "at least once" here. */
TEST(a_promoted_replica_gets_every_offer_at_least_once) {
    int a = free_port(), b = free_port(), i, n = 1000;
    server master, replica;
    redisContext *c;
    delayq_options o;
    redisReply *r;
    char url[96];
    start_node(&master, a, 0);
    start_node(&replica, b, a);
    c = server_connect(&master);
    UNTIL(has_replica(c));
    snprintf(url, sizeof url, "redis://127.0.0.1:%d,127.0.0.1:%d", a, b);
    o = box_options(&master, 1 << 20);
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < n / 2; i++) offer_number(i);
    SETTLE(&q);
    /* WAIT waits only for writes of its own connection */
    freeReplyObject(run(c, "SET written x"));
    r = run(c, "WAIT 1 %d", 10000 * test_slow());
    CHECK_INT(r->integer, 1);
    freeReplyObject(r);
    redisFree(c);
    for (; i < n * 3 / 4; i++) OK(&q, delayq_offer(&q, "", 0, 0));
    server_kill(&master, SIGKILL);
    for (; i < n; i++) OK(&q, delayq_offer(&q, "", 0, 0));
    for (i = 0; i < 100; i++) {
        turn(&q);
        usleep(1000);
    }
    CHECK(!settled(&q));
    c = server_connect(&replica);
    freeReplyObject(run(c, "REPLICAOF NO ONE"));
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    move(c);
    r = run(c, "LLEN moved");
    if (r->integer < n) FAIL("%lld of %d", r->integer, n);
    freeReplyObject(r);
    redisFree(c);
    delayq_close(&q);
    server_end(&master);
    server_end(&replica);
}

/* --- a model ------------------------------------------------------------- */

#define OWN 300
#define HELD 100

enum fate { ABSENT, PENDING, DEAD };

/* The state that each item must have after all accepted ops, whatever the
 * connection does. Items 0 to OWN - 1 are offered by this program, and the
 * others are leased. */
static struct {
    enum fate fate;
    delayq_ticket ticket;
    int64_t due_ms; /* the due time in the ticket; 0: unknown */
} model[OWN + HELD];

static int64_t ticket_due(const delayq_ticket *t) {
    CHECK(t->text[0]);
    return atoll(t->text);
}

/* Offer, cancel or reschedule item i. Returns 0 if there is no room. */
static int change_own(int i) {
    delayq_status status = DELAYQ_OK;
    delayq_message m;
    char text[16];
    if (model[i].fate == ABSENT) {
        memset(&m, 0, sizeof m);
        m.data = text;
        m.len = (size_t)snprintf(text, sizeof text, "%d", i);
        m.delay_ms = 600000 + rand() % 600000;
        status = delayq_offer_message(&q, &m);
        if (status != DELAYQ_OK) return changed(&q, status);
        model[i].fate = PENDING;
        model[i].ticket = m.ticket;
        model[i].due_ms = ticket_due(&m.ticket);
    } else if (rand() % 3 == 0) {
        status = delayq_cancel(&q, &model[i].ticket);
        if (status != DELAYQ_OK) return changed(&q, status);
        model[i].fate = ABSENT;
    } else {
        status =
            delayq_reschedule(&q, &model[i].ticket, 600000 + rand() % 600000);
        if (status != DELAYQ_OK) return changed(&q, status);
        model[i].due_ms = ticket_due(&model[i].ticket);
    }
    return 1;
}

/* Ack, bury, nack or extend a leased item. Returns 0 if there is no room. An
 * item can be changed again only after an extend. */
static int change_held(int i) {
    delayq_item held;
    delayq_status status;
    int what = rand() % 8;
    if (!model[i].ticket.text[0]) return 1;
    memset(&held, 0, sizeof held);
    held.ticket = model[i].ticket;
    status = what == 0   ? delayq_ack(&q, &held)
             : what == 1 ? delayq_bury(&q, &held, NULL)
             : what == 2 ? delayq_nack(&q, &held, 800000)
                         : delayq_extend(&q, &held, 600000 + rand() % 600000);
    if (status != DELAYQ_OK) return changed(&q, status);
    model[i].ticket = held.ticket;
    if (what > 2) {
        model[i].due_ms = ticket_due(&held.ticket);
        return 1;
    }
    model[i].fate = what == 0 ? ABSENT : what == 1 ? DEAD : PENDING;
    model[i].due_ms = 0; /* a nack returns no due time */
    model[i].ticket.text[0] = '\0';
    return 1;
}

static void hold_some(void) {
    int n = 0, i;
    char text[16];
    for (i = OWN; i < OWN + HELD; i++) {
        snprintf(text, sizeof text, "%d", i);
        UNTIL(offered(&q, text, strlen(text), 0));
    }
    while (n < HELD) {
        if (!took(&q, &one)) continue;
        snprintf(text, sizeof text, "%.*s", (int)one.len,
                 (const char *)one.data);
        i = atoi(text);
        model[i].fate = PENDING;
        model[i].ticket = one.ticket;
        model[i].due_ms = ticket_due(&one.ticket);
        n++;
    }
    SETTLE(&q);
}

static void compare_with_model(void) {
    static const char all[] =
        "local out = {}\n"
        "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
        "  out[#out + 1] = string.sub(e, 18 + struct.size('L'))\n"
        "  out[#out + 1] = redis.call('ZSCORE', KEYS[1], e)\n"
        "end\n"
        "return out\n";
    redisReply *r = run(main_connection(), "EVAL %s 1 " ZSET, all);
    int seen[OWN + HELD] = {0}, i, dead = 0;
    size_t k;
    CHECK(r->type == REDIS_REPLY_ARRAY);
    for (k = 0; k + 1 < r->elements; k += 2) {
        int64_t due = atoll(r->element[k + 1]->str);
        i = atoi(r->element[k]->str);
        CHECK(i >= 0 && i < OWN + HELD);
        seen[i]++;
        if (model[i].due_ms && due != model[i].due_ms)
            FAIL("item %d is due at %lld, not %lld", i, (long long)due,
                 (long long)model[i].due_ms);
    }
    for (i = 0; i < OWN + HELD; i++) {
        dead += model[i].fate == DEAD;
        if (seen[i] != (model[i].fate == PENDING))
            FAIL("item %d is there %d times, not %d", i, seen[i],
                 model[i].fate == PENDING);
    }
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), dead);
    freeReplyObject(r);
}

TEST(any_sequence_of_calls_ends_in_its_state_though_connections_are_cut) {
    int cuts = test_brief() ? 15 : 80, n = 0;
    delayq_options o;
    proxy_start(&main_server);
    o = faulty(20000, 3600000);
    open_known(&o);
    ask("DEL " ZSET);
    hold_some();
    while (cuts > 0) {
        if (proxy->times == 0) {
            cuts--;
            proxy_strike(CUT, rand() % 2, rand() % 5000, 1);
        }
        UNTIL(change_own(rand() % OWN));
        if (rand() % 4 == 0) UNTIL(change_held(OWN + rand() % HELD));
        if (n++ % 8 == 0) turn(&q);
    }
    proxy_calm();
    SETTLE(&q);
    CHECK_INT(box(&q).gone + box(&q).dropped, 0);
    compare_with_model();
    delayq_close(&q);
}

/* Check that an op is kept if each of its requests gets this error, after an
 * earlier request has ended a connection. */
static void keep_refused(const char *answer) {
    delayq_options o = box_options(&main_server, BOX);
    long long end;
    proxy_start(&main_server);
    o.url = proxy_url();
    o.reconnect_max_ms = 20;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "a", 60000);
    SETTLE(&q);
    strcpy(proxy->word, "EVALSHA");
    OFFER(&q, "b", 60000);
    UNTIL(turn(&q) < DELAYQ_OK); /* the connection ends */
    proxy->word[0] = '\0';
    SETTLE(&q);
    snprintf(proxy->forged, sizeof proxy->forged, "%s", answer);
    proxy_strike(FORGE, 0, 0, 1 << 30);
    OFFER(&q, "c", 60000);
    for (end = now_us() + 1000000; now_us() < end;) {
        turn(&q);
        usleep(1000);
    }
    CHECK_INT(box(&q).offers_settled, 2);
    proxy_calm();
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 3);
    delayq_close(&q);
}
/* The ASK names a node that refuses connections. No handle follows an ASK. */
TEST(an_op_is_kept_while_its_slot_moves) {
    char ask_for[64];
    snprintf(ask_for, sizeof ask_for, "-ASK 1 127.0.0.1:%d\r\n", free_port());
    keep_refused(ask_for);
}
TEST(an_op_is_kept_while_the_server_is_full) {
    keep_refused("-OOM command not allowed when used memory > 'maxmemory'\r\n");
}
