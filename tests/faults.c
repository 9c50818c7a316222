/*
 * Faults of the connection during a call, made by a proxy. The proxy cuts the
 * connection at every 7th byte (with DELAYQ_TEST_FULL at every byte), in both
 * directions, and at fewer bytes twice in a row. It also stalls, drops and
 * delays bytes, replaces the end of a reply by garbage, and sends a reply
 * twice. The status must be true, the handle must recover by itself, and no
 * item may be lost.
 */
#include "calls.h"
#include "proxy.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define STRUCK_MS 40   /* io_timeout_ms of a call that gets no reply */
/* io_timeout_ms of a call whose reply may seem endless */
#define GARBLED_MS 400

static int nothing_happened(delayq_status s) {
    return s < 0 && s != DELAYQ_ERR_UNKNOWN && s != DELAYQ_ERR_PROTOCOL;
}

static const char *const faults[] = {"passed",   "cut",     "stalled",
                                     "delayed",  "dropped", "garbled",
                                     "replayed", "forged"};

struct strike {
    const struct verb *v;
    enum fault what;
    int direction;
    long at;
    int times;
};

static void wrong(const struct strike *s, delayq_status status, int now) {
    FAIL("%s, %s at byte %ld %s, %d times: %d (%s: %s), and %d items",
         s->v->name, faults[s->what], s->at, s->direction ? "back" : "out",
         s->times, status, delayq_strstatus(status), delayq_errmsg(&q), now);
}

static void told_truly(const struct strike *s, delayq_status status) {
    const struct verb *v = s->v;
    int now = in_queue();
    if (status == v->good && now != v->done) wrong(s, status, now);
    if (nothing_happened(status) && now != v->undone) wrong(s, status, now);
    if (status != v->good && status >= 0) wrong(s, status, now);
    if (now != v->undone && now != v->done) wrong(s, status, now);
    if ((v->call == do_peek || v->call == do_count) && /* they only read */
        status == DELAYQ_ERR_UNKNOWN)
        wrong(s, status, now);
}

/* Wait until the handle has recovered by itself, and check the number of
 * items. */
static long long slowest; /* the slowest recovery of this test */
static void recovers(const struct strike *s) {
    long long from = now_us();
    delayq_counts c;
    UNTIL(delayq_count(&q, &c) == DELAYQ_OK);
    if (now_us() - from > slowest) slowest = now_us() - from;
    if (c.pending + c.ready + c.dead != in_queue())
        wrong(s, DELAYQ_OK, (int)(c.pending + c.ready + c.dead));
}

static void begin(const struct verb *v) {
    ask("FLUSHDB");
    forget_ready(&q);
    v->prepare();
}

/* Make a call during the fault. If no reply will come, use a short timeout. */
static delayq_status call_struck(const struct strike *s) {
    int full = q.options.io_timeout_ms;
    delayq_status status;
    if (s->what == STALL || s->what == DROP)
        q.options.io_timeout_ms = STRUCK_MS;
    if (s->what == GARBAGE)
        q.options.io_timeout_ms = GARBLED_MS * test_slow();
    if (s->what == REPLAY && q.conn->cmd.c)
        proxy->only = proxy_number(q.conn->cmd.c);
    proxy_strike(s->what, s->direction, s->at, s->times);
    status = s->v->call();
    proxy_calm();
    q.options.io_timeout_ms = full;
    return status;
}

static void strike(struct strike s) {
    delayq_status status;
    begin(s.v);
    s.v->call(); /* this loads the script */
    begin(s.v);
    status = call_struck(&s);
    if (s.what == DELAY) CHECK_STATUS(&q, status, s.v->good);
    told_truly(&s, status);
    recovers(&s);
}

/* Returns how many bytes a call without a fault passes in this direction. */
static long size_of(const struct verb *v, int direction) {
    int i;
    for (i = 0; i < 2; i++) { /* opens the subscriber, loads the script */
        begin(v);
        v->call();
    }
    begin(v);
    proxy->passed[0] = proxy->passed[1] = 0;
    CHECK_STATUS(&q, v->call(), v->good);
    CHECK(proxy->passed[direction] > 0);
    return proxy->passed[direction];
}

static void open_for(const struct verb *v) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.connect = through_proxy;
    o.lease_ms = v->lease ? 60000 : 0;
    o.io_timeout_ms = 20000 * test_slow();
    OK(&q, delayq_open(&q, &o));
}

/* Strike at every step-th byte, from byte 0 to the last. */
static void at_bytes(const struct verb *v, enum fault what, int direction,
                     long step, int times) {
    long size = size_of(v, direction), at;
    for (at = 0; at <= size; at += step)
        strike((struct strike){v, what, direction, at, times});
}

/* Strike at the first byte, in the middle, and at the last. */
static void at_three(const struct verb *v, enum fault what, int direction) {
    long size = size_of(v, direction);
    strike((struct strike){v, what, direction, 0, 1});
    strike((struct strike){v, what, direction, size / 2, 1});
    strike((struct strike){v, what, direction, size - 1, 1});
}

static void each_verb(void (*body)(const struct verb *), size_t from,
                      size_t to) {
    size_t i;
    proxy_start(&main_server);
    for (i = from; i < to; i++) {
        open_for(&verbs[i]);
        body(&verbs[i]);
        delayq_close(&q);
    }
}

/* --- cut ----------------------------------------------------------------- */

/* A second cut causes a back-off, so it is made only at every 7th byte. */
static void cut(const struct verb *v) {
    long once = test_step(1, 41), twice = test_step(7, 41);
    int direction;
    for (direction = 0; direction < 2; direction++) {
        at_bytes(v, CUT, direction, once, 1);
        at_bytes(v, CUT, direction, twice, 2);
    }
}

LONG_TEST(a_cut_at_any_byte_of_an_offer_is_reported_truthfully) {
    each_verb(cut, 0, 3);
    report_row("connection cut at any byte, once or twice in a row",
               "done, nothing happened, or `ERR_UNKNOWN`; the status is "
               "always true",
               "done or not, never half", slowest);
}
TEST(a_cut_at_any_byte_of_a_tick_or_take_is_reported_truthfully) {
    each_verb(cut, 3, 6);
}
LONG_TEST(a_cut_at_any_byte_of_an_ack_is_reported_truthfully) {
    each_verb(cut, 6, 9);
}
LONG_TEST(a_cut_at_any_byte_of_a_nack_extend_or_bury_is_reported_truthfully) {
    each_verb(cut, 9, 12);
}
LONG_TEST(a_cut_at_any_byte_of_cancel_or_reschedule_is_reported_truthfully) {
    each_verb(cut, 12, 14);
}
LONG_TEST(a_cut_at_any_byte_of_a_peek_count_or_clear_is_reported_truthfully) {
    each_verb(cut, 14, VERBS);
}

/* --- several pipelined scripts -------------------------------------------- */

static delayq_message four[4];

static delayq_status do_several(void) {
    int i;
    memset(four, 0, sizeof four);
    for (i = 0; i < 4; i++) {
        four[i].data = &"abcd"[i];
        four[i].len = 1;
        four[i].delay_ms = 60000;
        four[i].key = i % 2 ? &"k1\0k3"[i / 2 * 3] : NULL;
        four[i].key_ttl_ms = 60000;
    }
    return delayq_offer_many(&q, four, 4);
}

static const struct verb several = {
    "offers in one go", prepare_nothing, do_several, 0, 4, DELAYQ_OK, 0};

/* Check that each message's status is true, and that a second offer stores only
 * the messages that the first did not store. */
static void strike_several(enum fault what, int direction, long at, int times) {
    struct strike s = {&several, what, direction, at, times};
    int i, now, good = 0, unknown = 0;
    size_t left;
    delayq_status status;
    begin(&several);
    do_several(); /* loads the scripts */
    begin(&several);
    status = call_struck(&s);
    now = in_queue();
    for (i = 0; i < 4; i++) {
        good += four[i].status == DELAYQ_OK;
        unknown += !nothing_happened(four[i].status) && four[i].status < 0;
    }
    if (now < good || now > good + unknown) wrong(&s, status, now);
    if ((status == DELAYQ_OK) != (good == 4)) wrong(&s, status, now);
    for (left = 4; left > 0;) {
        size_t n = 0;
        for (i = 0; i < (int)left; i++)
            if (four[i].status != DELAYQ_OK) four[n++] = four[i];
        if ((left = n) > 0) delayq_offer_many(&q, four, n);
        if (left > 0 && four[0].status != DELAYQ_OK) usleep(1000);
    }
    if (in_queue() != 4) wrong(&s, status, in_queue());
    recovers(&s);
}

TEST(each_of_several_pipelined_offers_is_reported_truthfully) {
    long once = test_step(5, 61), at, size;
    int direction;
    proxy_start(&main_server);
    open_for(&several);
    for (direction = 0; direction < 2; direction++) {
        size = size_of(&several, direction);
        for (at = 0; at <= size; at += once)
            strike_several(CUT, direction, at, 1);
        for (at = 3; at <= size; at += 8 * once)
            strike_several(CUT, direction, at, 2);
        for (at = 0; at <= size; at += size / 3 + 1)
            strike_several(STALL, direction, at, 1);
    }
    delayq_close(&q);
}

/* --- stalled, dropped, delayed ------------------------------------------- */

static void stall(const struct verb *v) {
    at_three(v, STALL, 0);
    at_three(v, STALL, 1);
}

TEST(a_connection_that_stalls_is_reported_truthfully_and_replaced) {
    each_verb(stall, 0, VERBS);
    report_row("connection stalls at any byte",
               "`ERR_UNKNOWN` or `ERR_TIMEOUT` after io_timeout_ms",
               "done or not, never half", slowest);
}

static void drop(const struct verb *v) {
    strike((struct strike){v, DROP, 0, 0, 1});
    strike((struct strike){v, DROP, 1, 0, 1});
    strike((struct strike){v, DROP, 1, 5, 1});
}

TEST(a_one_way_connection_is_reported_truthfully_and_replaced) {
    each_verb(drop, 0, VERBS);
    report_row("connection carries data in one direction only",
               "`ERR_UNKNOWN` or `ERR_TIMEOUT` after io_timeout_ms",
               "done or not, never half", slowest);
}

static void delay(const struct verb *v) {
    proxy->delay_ms = 5;
    at_three(v, DELAY, 0);
    at_three(v, DELAY, 1);
}

TEST(a_delay_within_the_timeout_is_waited_out) {
    each_verb(delay, 0, VERBS);
}

/* --- garbled ------------------------------------------------------------- */

static void garble(const struct verb *v) {
    at_bytes(v, GARBAGE, 1, test_step(1, 13), 1);
}

/* This fails if the handle reads an ack's flag that is neither 0 nor 1 as a 0,
 * and returns DELAYQ_GONE for an ack that was done. */
LONG_TEST(garbage_from_any_byte_of_a_reply_on_is_reported_truthfully) {
    each_verb(garble, 0, VERBS);
    report_row("garbage in a reply, from any byte on",
               "`ERR_PROTOCOL`, `ERR_UNKNOWN`, or done",
               "done or not, never half", slowest);
}

/* --- a reply that comes twice -------------------------------------------- */

/* Make the server refuse every later call. */
static void break_types(void) {
    ask("FLUSHDB");
    ask("MSET jobs s " ZSET " s delayq_dead:{jobs} s delayq_retry:{jobs} s");
}

/* Check that a later call returns the reply to its own request, not an older
 * reply. (A tick that first has to connect or to subscribe sends no
 * request.) */
static void later_is_refused(const struct verb *v) {
    delayq_status status;
    int asks;
    break_types();
    do {
        long long id = q.conn->sub_id;
        asks = q.conn->cmd.c && q.conn->sub.c;
        status = v->call();
        if (!q.conn->sub.c || q.conn->sub_id != id) asks = 0;
    } while (v->call == do_tick && status == DELAYQ_OK && !asks);
    if (status >= 0)
        FAIL("%s after an answer that came twice believes it: %d", v->name,
             status);
    UNTIL(v->call() == DELAYQ_ERR_TYPE);
    ask("FLUSHDB");
}

/* The proxy sends both copies in one write, so both are in the socket when the
 * handle reads. Only the command connection is struck, because the subscriber
 * may receive a message just then. */
static void replay(const struct verb *v) {
    struct strike s = {v, REPLAY, 1, 0, 1};
    delayq_status status;
    begin(v);
    do v->call();
    while (v->call == do_tick && !q.conn->sub.c);
    begin(v);
    status = call_struck(&s);
    CHECK_STATUS(&q, status, DELAYQ_ERR_PROTOCOL);
    told_truly(&s, status);
    later_is_refused(v);
    strike(s);
}

/* This fails if the handle does not notice bytes that are left in its reader
 * after a reply. */
TEST(a_reply_that_comes_twice_is_not_taken_for_that_of_a_later_call) {
    each_verb(replay, 0, VERBS);
    report_row("a reply sent twice", "`ERR_PROTOCOL`", "done", slowest);
}
