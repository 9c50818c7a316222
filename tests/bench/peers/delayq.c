/*
 * delayq as a peer, and the floor: sleep until due, then one PING.
 *
 *     delayq URL at-least-once | at-most-once | floor
 *
 * A batch of 1 is delayq_offer, and delayq_ack_take or delayq_take; larger
 * ones the functions whose names end in _many.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../../delayq.h"
#include "peer.h"

static delayq q, producer;
static delayq_options options;
static redisContext *bare; /* the floor's */

static void check(delayq *d, delayq_status status) {
    if (status < 0) die(delayq_errmsg(d));
    if (status > 0) die(delayq_strstatus(status));
}

/* --- a job's life -------------------------------------------------------- */

static void offer(int batch, int count, int delay_ms) {
    static char payload[100][PAYLOAD];
    static delayq_message m[100];
    int i, k;
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
    if (batch == 1)
        take_singly(count);
    else
        take_many(batch, count);
    check(&q, delayq_count(&q, &n));
    if (n.pending + n.ready + n.dead != 0) die("jobs are left");
}

/* --- lateness ------------------------------------------------------------ */

static void offer_due(int i) {
    char payload[PAYLOAD];
    delayq_message m;
    if (bare) return;
    fill(payload, i);
    memset(&m, 0, sizeof m);
    m.data = payload;
    m.len = PAYLOAD;
    m.due_ms = due_us[i] / 1000;
    check(&producer, delayq_offer_message(&producer, &m));
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

static void late(int count) {
    if (bare)
        ping_when_due(count);
    else
        take_many(100, count);
}

static const char *floor_of(const char *url) {
    bare = redisConnect("127.0.0.1", atoi(strrchr(url, ':') + 1));
    if (!bare || bare->err) die("can't connect");
    in_order = 1;
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
    serve(strcmp(argv[2], "floor") == 0 ? floor_of(argv[1])
                                        : delayq_of(argv[1], argv[2]));
    return 0;
}
