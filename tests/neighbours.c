/*
 * Other programs have written into the keys of a queue, by mistake or by
 * malice. No call fails or becomes slower because of that.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "test.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static delayq q;

/* --- peek ---------------------------------------------------------------- */

/* Peek at all items, `page` at a time. seen[c] counts how often peek showed the
 * payload that ends in the letter c. */
static void page_through(size_t page, int seen[128]) {
    delayq_item items[8];
    delayq_ticket after;
    size_t n, i;
    int pages = 0;
    memset(&after, 0, sizeof after);
    memset(seen, 0, 128 * sizeof *seen);
    while (delayq_peek(&q, items, page, &n, &after) == DELAYQ_OK) {
        for (i = 0; i < n; i++) {
            const char *data = (const char *)items[i].data;
            seen[data[items[i].len - 1] & 127]++;
        }
        after = items[n - 1].ticket;
        if (++pages > 100) FAIL("still paging after 100 pages");
    }
}

/* Check that peek shows each item once, although one item has this unusual
 * score. If `decodable` is 0, this item can't be decoded. */
static void is_shown_once(const char *score, int decodable) {
    unsigned char e[64];
    size_t n, page;
    int seen[128], i;
    ask("FLUSHALL");
    for (i = 0; i < 6; i++) {
        char payload = (char)('a' + i);
        n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\0", &payload, 1);
        e[8] = (unsigned char)i;
        ask("ZADD " ZSET " %d %b", 5000 + i / 2, e, n);
    }
    n = element(e, 16, 8, "NBCDEFGHIJKLM\0\0\0", "z", 1);
    if (!decodable) e[1] = 8, e[17] = 99;
    ask("ZADD " ZSET " %s %b", score, e, n);
    if (!decodable) ask("ZADD " ZSET " %s y", score);
    for (page = 1; page < 8; page++) {
        page_through(page, seen);
        for (i = 'a'; i <= 'f'; i++)
            if (seen[i] != 1)
                FAIL("score %s: a good item is shown %d times by pages of %zu",
                     score, seen[i], page);
        if (seen['z'] != 1 || seen['y'] != !decodable)
            FAIL("score %s: shown %d times by pages of %zu", score, seen['z'],
                 page);
    }
}

TEST(paging_by_peek_ends_and_shows_each_element_once) {
    static const char *const scores[] = {"5001",  "5001.5", "5000.4", "-5",
                                         "-0",    "-inf",   "+inf",   "1e20",
                                         "1e300", "5e-324", "-0.5",   "-1e300"};
    size_t i;
    open_queue(&q, "jobs");
    for (i = 0; i < sizeof scores / sizeof *scores; i++) {
        is_shown_once(scores[i], 1);
        is_shown_once(scores[i], 0);
    }
    delayq_close(&q);
}

/* Only forged elements have the same id. Peek must end, in spite of them. */
TEST(paging_by_peek_ends_where_elements_have_the_same_id) {
    unsigned char e[64];
    size_t page;
    int seen[128], i;
    open_queue(&q, "jobs");
    for (i = 0; i < 9; i++) {
        char payload[9] = "twins   ";
        size_t n;
        payload[i] = 't';
        n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\0", payload, 9);
        ask("ZADD " ZSET " 5000 %b", e, n);
    }
    for (page = 1; page < 8; page++) page_through(page, seen);
    delayq_close(&q);
}

/* --- a broadcast's stream ------------------------------------------------ */

/* Check that a broadcast handle with this cursor takes these payloads. */
static void broadcast_takes(const char *after, const char *payloads) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item items[20];
    size_t n, i, want = strlen(payloads);
    SET_BROADCAST(o);
    o.broadcast_after = after;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_take_many(&q, items, 20, &n, 0));
    CHECK_INT(n, want);
    for (i = 0; i < n; i++) {
        CHECK_INT(items[i].len, 1);
        CHECK_INT(*(const char *)items[i].data, payloads[i]);
    }
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, items, 0), DELAYQ_EMPTY);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take_many(&q, items, 20, &n, 0), DELAYQ_EMPTY);
    delayq_close(&q);
}

TEST(a_broadcast_goes_on_behind_any_id_in_its_stream) {
    static const char *const ids[] = {
        "5-9007199254740991",     "5-9007199254740992",
        "5-9007199254740993",     "5-18446744073709551614",
        "5-18446744073709551615", "6-0",
        "9007199254740993-5"};
    static const char *const payloads[] = {"a", "b", "c", "d", "e", "f", "g"};
    char all[8] = "";
    size_t i;
    for (i = 0; i < 7; i++) {
        ask("XADD delayq_stream:{jobs} %s due 5 payload %s", ids[i],
            payloads[i]);
        if (i > 0) broadcast_takes(ids[i - 1], payloads[i]);
        strcat(all, payloads[i]);
        broadcast_takes("", all);
    }
}

/* --- elements that are never due ----------------------------------------- */

/* An item whose score is negative, infinite or very large is never moved,
 * neither by delayq nor by Redisson. */
TEST(an_old_element_that_is_never_due_refuses_no_handle) {
    static const char *const scores[] = {"-1e300", "-inf", "-1", "1e300",
                                         "+inf"};
    unsigned char e[64];
    delayq_item item;
    size_t i, n = element(e, 0, 8, "abcdefgh", "old", 3);
    for (i = 0; i < 5; i++) {
        ask("FLUSHALL");
        ask("ZADD " ZSET " %s %b", scores[i], e, n);
        open_queue(&q, "jobs");
        OFFER(&q, "new", 0);
        elapse(main_connection(), 1);
        OK(&q, delayq_take(&q, &item, 0));
        CHECK_INT(ask_int("ZCARD " ZSET), 1);
        delayq_close(&q);
    }
}

/* --- waiters ------------------------------------------------------------- */

static volatile int *taken;

static void take_on(void *unused) {
    delayq_item item;
    (void)unused;
    open_queue(&q, "jobs");
    for (;;) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        __sync_fetch_and_add(taken, 1);
    }
}

/* Returns how many commands the server has run, including those of scripts. */
static long long commands(void) {
    const char *at = ask("INFO commandstats");
    long long n = 0;
    while ((at = strstr(at, ":calls=")) != NULL) n += atoll(at += 7);
    return n;
}

/* Returns how many clients are subscribed to the queue's channel. */
static long long listeners(void) {
    redisReply *r = run(main_connection(),
                        "PUBSUB NUMSUB redisson_delay_queue_channel:{jobs}");
    long long n = r->element[1]->integer;
    freeReplyObject(r);
    return n;
}

/* Write garbage into the sets of waiters of this and of older versions. */
static void add_garbage(int count) {
    static const char *const sets[] = {"delayq_waiting:{jobs}",
                                       "delayq_waiters:{jobs}"};
    int i;
    for (i = 0; i < 2; i++)
        ask("EVAL %s 1 %s %d",
            "local scores = {'-inf', '-1e300', -1, 0, 5, 1e12, 1e14, 15e13,\n"
            "  2e14, '1e300', '+inf'}\n"
            "for i = 1, tonumber(ARGV[1]) do\n"
            "  local name = string.char(i % 256, i % 7) .. i\n"
            "  if i % 100 == 0 then name = name .. string.rep('x', 5000) end\n"
            "  if i % 2 == 0 then name = ':' .. name end\n"
            "  redis.call('ZADD', KEYS[1], scores[i % #scores + 1], name)\n"
            "end\n"
            "redis.call('ZADD', KEYS[1], '+inf', '')\n",
            sets[i], count);
}

TEST(a_set_of_waiters_full_of_garbage_holds_up_no_script) {
    int i;
    taken = (volatile int *)shared(sizeof *taken);
    spawn(take_on, NULL);
    spawn(take_on, NULL);
    UNTIL(listeners() == 2);
    open_queue(&q, "jobs");
    for (i = 0; i < 6; i++) {
        long long before;
        if (i % 2 == 0) add_garbage(20000);
        before = commands();
        OFFER(&q, "x", 5);
        UNTIL(*taken > i);
        if (commands() - before > 1000)
            FAIL("%lld commands for an item", commands() - before);
    }
    delayq_close(&q);
}
