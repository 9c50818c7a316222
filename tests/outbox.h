/*
 * Shared by the tests of handles with an outbox: memory, options, one turn of a
 * program's loop, and the check that all accepted ops are settled.
 */
#ifndef OUTBOX_H
#define OUTBOX_H

#include "test.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define SHARED_BY_FILES __attribute__((unused)) static
#define BOX (64 * 1024)
#define ZSET "redisson_delay_queue_timeout:{jobs}"

/* Memory that is neither aligned nor zeroed. It is freed when the process ends.
 * It is on the heap, so that ASan reports an access past its end. */
static char *box_kept[64];
static int box_count;
static void free_boxes(void) {
    while (box_count > 0) free(box_kept[--box_count]);
}
SHARED_BY_FILES void *box_memory(size_t size) {
    char *memory = (char *)malloc(size + 1);
    CHECK(memory != NULL && box_count < 64);
    if (box_count == 0) atexit(free_boxes);
    memset(memory, 0xa5, size + 1);
    box_kept[box_count++] = memory;
    return memory + 1;
}

SHARED_BY_FILES delayq_options box_options(const server *s, size_t size) {
    delayq_options o = options_for(s, "jobs");
    o.outbox = box_memory(size);
    o.outbox_size = size;
    o.reconnect_max_ms = 20;
    return o;
}

SHARED_BY_FILES void open_box(delayq *q, int64_t lease_ms) {
    delayq_options o = box_options(&main_server, BOX);
    o.lease_ms = lease_ms;
    OK(q, delayq_open(q, &o));
}

SHARED_BY_FILES delayq_outbox_state box(const delayq *q) {
    delayq_outbox_state state;
    CHECK(delayq_outbox(q, &state) == DELAYQ_OK);
    CHECK(state.offers_settled <= state.offers_accepted);
    CHECK(state.changes_settled <= state.changes_accepted);
    CHECK(state.bytes <= state.size);
    return state;
}

/* Run a command on each key that contains the highest number of a handle.
 * "'DEL', k" deletes the number. A 'SET' acts as a clone that has used higher
 * numbers. */
SHARED_BY_FILES void at_each_number(const char *command) {
    char lua[128];
    snprintf(lua, sizeof lua,
             "for _, k in ipairs(redis.call('KEYS', 'delayq_sent:*')) do "
             "redis.call(%s) end return 0",
             command);
    ask("EVAL %s 0", lua);
}
#define USE_NUMBERS_AS_A_CLONE() at_each_number("'SET', k, 1000")

/* Make one turn of the program's loop. Returns the status of its tick. */
SHARED_BY_FILES delayq_status turn(delayq *q) {
    int64_t wait_ms = -1;
    delayq_status status = delayq_tick(q, &wait_ms);
    CHECK(wait_ms >= 0);
    return status;
}

/* Make one turn. Returns 1 if all ops are settled. */
SHARED_BY_FILES int settled(delayq *q) {
    delayq_outbox_state state;
    turn(q);
    state = box(q);
    if (state.offers_settled < state.offers_accepted ||
        state.changes_settled < state.changes_accepted)
        return 0;
    CHECK_INT(state.bytes, 0);
    return 1;
}

/* Make turns until all ops are settled. Fails after 20 s. */
SHARED_BY_FILES void settle_at(delayq *q, const char *file, int line) {
    long long end = now_us() + 20000000LL * test_slow();
    while (!settled(q)) {
        if (now_us() > end)
            test_fail(file, line, "it is never settled: %s", delayq_errmsg(q));
        usleep(100);
    }
}
#define SETTLE(q) settle_at(q, __FILE__, __LINE__)

/* Take without waiting. Returns 1 if there was an item. Otherwise makes a turn
 * and returns 0. */
SHARED_BY_FILES int took(delayq *q, delayq_item *item) {
    delayq_status status = delayq_take(q, item, 0);
    if (status == DELAYQ_OK) return 1;
    if (status > 0) CHECK_INT(status, DELAYQ_EMPTY);
    turn(q);
    return 0;
}

/* Take up to `max` items without waiting. Returns their number, or makes a
 * turn and returns 0. */
SHARED_BY_FILES size_t took_many(delayq *q, delayq_item *items, size_t max) {
    size_t n;
    delayq_status status = delayq_take_many(q, items, max, &n, 0);
    CHECK(n <= max);
    if (status == DELAYQ_OK) {
        CHECK(n >= 1);
        return n;
    }
    if (status > 0) CHECK_INT(status, DELAYQ_EMPTY);
    turn(q);
    return 0;
}

/* Make an offer. Returns 1. If there is no room, makes a turn and returns 0. */
SHARED_BY_FILES int offered(delayq *q, const void *data, size_t len,
                            int64_t delay_ms) {
    delayq_status status = delayq_offer(q, data, len, delay_ms);
    if (status == DELAYQ_OK) return 1;
    CHECK_STATUS(q, status, DELAYQ_ERR_FULL);
    turn(q);
    return 0;
}

/* Returns 1 if a change was accepted. If there was no room, makes a turn. */
SHARED_BY_FILES int changed(delayq *q, delayq_status status) {
    if (status == DELAYQ_OK) return 1;
    CHECK_STATUS(q, status, DELAYQ_ERR_FULL);
    turn(q);
    return 0;
}

SHARED_BY_FILES void item_is(const delayq_item *item, const char *payload) {
    if (item->len != strlen(payload) ||
        memcmp(item->data, payload, item->len) != 0)
        FAIL("took \"%.*s\", not \"%s\"", (int)item->len,
             (const char *)item->data, payload);
}

/* Returns the due time of the only item in the zset. */
SHARED_BY_FILES int64_t only_due(redisContext *c) {
    redisReply *r = run(c, "ZRANGE " ZSET " 0 -1 WITHSCORES");
    int64_t due;
    CHECK_INT(r->elements, 2);
    due = atoll(r->element[1]->str);
    freeReplyObject(r);
    return due;
}

#endif
