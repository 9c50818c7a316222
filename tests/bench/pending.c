/*
 * pending -- the cost of items on a server that has ten million pending items:
 * their memory, and the CPU time of program and server for each item of a batch
 * of 100. The time is compared with that in a queue of 10,000 items on the same
 * server. Items have 100 bytes, and are due at random. Ten million need 2.6 GB.
 *
 *     pending [how many, default 10000000]
 */
#include "bench.h"

#define FEW 10000
#define BATCH 100

static redisContext *c;
static delayq queues[2]; /* [0]: the queue with few items; [1]: with many */
static char payload[BATCH];

static void check(delayq *q, delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(q));
}

/* Offer a batch that is due now, or within the year that begins tomorrow. */
static void offer(delayq *q, int now) {
    static delayq_message m[BATCH];
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < BATCH; i++) {
        m[i].data = payload;
        m[i].len = sizeof payload;
        m[i].delay_ms = now ? 0 : 86400000 + (int64_t)(drand48() * 3e10);
    }
    check(q, delayq_offer_many(q, m, BATCH));
}

/* Store n items. Returns the server's memory for each of them in bytes. */
static double fill(delayq *q, int n) {
    double before = info(c, "memory", "used_memory:");
    int i;
    for (i = 0; i < n; i += BATCH) {
        offer(q, 0);
        if (i % 100000 == 0) progress(i, n);
    }
    progress(1, 1);
    usleep(200000); /* lets the server finish resizing its tables */
    return (info(c, "memory", "used_memory:") - before) / n;
}

static delayq_item items[BATCH];

static void do_offer(delayq *q) {
    offer(q, 0);
}
static void do_take(delayq *q) {
    size_t got;
    check(q, delayq_take_many(q, items, BATCH, &got, 1000));
    if (got != BATCH) die("a take brought less than 100");
}
static void do_ack(delayq *q) {
    check(q, delayq_ack_many(q, items, BATCH));
}

/* The yardstick of offer_many is a plain ZADD of as many elements. */
static void do_zadd(delayq *q) {
    static unsigned char e[BATCH][125];
    static char due[BATCH][24], key[600];
    static const char *argv[2 + 2 * BATCH] = {"ZADD"};
    static size_t lens[2 + 2 * BATCH] = {4};
    static uint64_t id;
    int i;
    snprintf(key, sizeof key, "redisson_delay_queue_timeout:{%s}", q->name);
    argv[1] = key, lens[1] = strlen(key);
    for (i = 0; i < BATCH; i++) {
        memset(e[i], 0, sizeof e[i]);
        e[i][0] = 16;
        dq_elem_put_uint(e[i] + 1, 8, 1, ++id);
        dq_elem_put_uint(e[i] + 17, 8, 0, sizeof payload);
        snprintf(due[i], sizeof due[i], "%.0f",
                 (double)wall_us() / 1e3 + 86400000 + drand48() * 3e10);
        argv[2 + 2 * i] = due[i], lens[2 + 2 * i] = strlen(due[i]);
        argv[3 + 2 * i] = (const char *)e[i], lens[3 + 2 * i] = sizeof e[i];
    }
    redisAppendCommandArgv(c, 2 + 2 * BATCH, argv, lens);
    freeReplyObject(reply(c));
}

static const struct step {
    const char *title;
    void (*run)(delayq *q);
} steps[] = {{"one ZADD of 100", do_zadd},
             {"offer_many(100)", do_offer},
             {"take_many(100)", do_take},
             {"ack_many(100)", do_ack}};
#define STEPS (sizeof steps / sizeof steps[0])

/* Each lap runs the steps on both queues. Every second lap swaps the queues. */
static void measure(void) {
    static double us[STEPS][2][LAPS], ratio[STEPS][LAPS];
    int i, which;
    size_t k;
    for (i = -1; i < LAPS; i++)
        for (which = 0; which < 2; which++) {
            delayq *q = &queues[which ^ (i & 1)];
            for (k = 0; k < STEPS; k++) {
                double begin;
                if (steps[k].run == do_take) {
                    offer(q, 1);
                    usleep(3000);
                }
                begin = both_us(c);
                steps[k].run(q);
                if (i >= 0)
                    us[k][which ^ (i & 1)][i] = (both_us(c) - begin) / BATCH;
            }
        }
    print_head("cost of an item", "over that of");
    for (k = 0; k < STEPS; k++) {
        for (i = 0; i < LAPS; i++) ratio[k][i] = us[k][1][i] / us[k][0][i];
        print_row(steps[k].title, "10,000 pending", "",
                  spread_of(ratio[k], LAPS), k == 0 ? "" : "<= 2.5");
    }
    for (k = 0; k < STEPS; k++)
        printf("%s%s %.1f us", k ? ", " : "", steps[k].title,
               median(us[k][1], LAPS));
    printf(" an item\n");
}

int main(int argc, char **argv) {
    int many = argc > 1 ? atoi(argv[1]) : 10000000, i;
    delayq_options o = {0};
    double bytes, begin;
    c = bare();
    memset(payload, 'x', sizeof payload);
    do_command(c, "FLUSHALL");
    o.url = getenv("DELAYQ_URL");
    o.lease_ms = 3600000;
    for (i = 0; i < 2; i++) {
        o.name = i ? "many" : "few";
        check(&queues[i], delayq_open(&queues[i], &o));
    }
    fill(&queues[0], FEW);
    begin = seconds();
    bytes = fill(&queues[1], many);
    printf("%d pending: %.0f bytes an item, offered in %.0f s\n", many, bytes,
           seconds() - begin);
    measure();
    for (i = 0; i < 2; i++) delayq_close(&queues[i]);
    do_command(c, "FLUSHALL");
    redisFree(c);
    return 0;
}
