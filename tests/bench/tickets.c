/*
 * tickets -- the server's cost of a cancel and a reschedule among 100,000
 * pending items, of which 5,000 are due in the same millisecond. It is compared
 * with a ZREM of the exact element, although a client can't know the element.
 * The figures are the server's microseconds, from INFO commandstats.
 */
#include "bench.h"

#define PENDING 100000
#define TIES 5000
#define CALLS 500

static redisContext *c;
static delayq q;
static delayq_message m[PENDING];

static double us_of(const char *field) {
    redisReply *r;
    const char *at;
    double us = -1;
    redisAppendCommand(c, "INFO commandstats");
    r = reply(c);
    at = strstr(r->str, field);
    at = at ? strstr(at, "usec_per_call=") : NULL;
    if (at) us = atof(at + 14);
    freeReplyObject(r);
    do_command(c, "CONFIG RESETSTAT");
    return us;
}

static void exactly(const delayq_message *one) {
    unsigned char e[DQ_ELEM_HEADER_MAX + 100];
    size_t len = dq_elem_write_header(&q, one->id, one->len, e);
    memcpy(e + len, one->data, one->len);
    redisAppendCommand(c, "ZREM " ZSET " %b", e, len + one->len);
    if (reply(c)->integer != 1) die("nothing removed");
}

int main(void) {
    static char payload[100];
    double cancel, move, exact;
    int i;
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    do_command(c, "FLUSHALL");
    for (i = 0; i < PENDING; i++) {
        m[i].data = payload;
        m[i].len = sizeof payload;
        m[i].due_ms = FAR_MS + (i < TIES ? 0 : i);
    }
    if (delayq_offer_many(&q, m, PENDING) != DELAYQ_OK) die(delayq_errmsg(&q));
    us_of("");
    for (i = 0; i < CALLS; i++)
        if (delayq_reschedule(&q, &m[i * 7].ticket, 1000000) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    move = us_of("cmdstat_evalsha:");
    for (i = 0; i < CALLS; i++)
        if (delayq_cancel(&q, &m[i * 7 + 1].ticket) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    cancel = us_of("cmdstat_evalsha:");
    for (i = 0; i < CALLS; i++) exactly(&m[i * 7 + 2]);
    exact = us_of("cmdstat_zrem:");
    printf("server us among %d pending and %d ties: cancel %.1f, reschedule "
           "%.1f, ZREM of the exact element %.1f\n",
           PENDING, TIES, cancel, move, exact);
    do_command(c, "FLUSHALL");
    delayq_close(&q);
    return 0;
}
