/*
 * aof -- the bytes that the server writes to the append-only file and to
 * replicas for each moved or taken item of 100 bytes, compared with those of
 * the published transfer of as many items in the same order. The bytes are the
 * growth of aof_current_size and aof_buffer_length in INFO persistence.
 */
#include "bench.h"

#define ITEMS 3000

static redisContext *c;
static delayq q;
static char *sha;

static void tick(void) {
    int left = ITEMS;
    while (left > 0) left -= tick_now(&q);
}

static void take(void) {
    static delayq_item items[100];
    size_t n, got = 0;
    for (; got < ITEMS; got += n)
        if (delayq_take_many(&q, items, 100, &n, 0) != DELAYQ_OK)
            die(delayq_errmsg(&q));
}

static void take_ack(void) {
    static delayq_item items[100];
    size_t n, got = 0;
    for (; got < ITEMS; got += n)
        if (delayq_take_many(&q, items, 100, &n, 0) != DELAYQ_OK ||
            delayq_ack_many(&q, items, n) != DELAYQ_OK)
            die(delayq_errmsg(&q));
}

static void published(void) {
    int i;
    for (i = 0; i < ITEMS; i += 100) transfer_published(c, "bench", sha, 100);
}

static void published_take(void) {
    int i;
    for (i = 0; i < ITEMS; i += 100) {
        transfer_published(c, "bench", sha, 100);
        do_command(c, "LPOP bench 100");
    }
}

static double bytes_of(void (*run)(void)) {
    double before = aof_bytes(c);
    run();
    return (aof_bytes(c) - before) / ITEMS;
}

static const struct row_of_bytes {
    const char *title, *yardstick, *goal;
    void (*run)(void), (*yard)(void);
    delayq_wire wire;
    int64_t lease_ms;
    int shuffled;
} rows[] = {
    {"tick", "transfer", "<= 0.35", tick, published, DELAYQ_NATIVE, 0, 1},
    {"take_many(100)", "transfer, LPOP 100", "<= 0.35", take, published_take,
     DELAYQ_NATIVE, 0, 1},
    {"the same, leased; acks", "transfer, LPOP 100", "-", take_ack,
     published_take, DELAYQ_NATIVE, 60000, 1},
    {"mirror: tick, in order", "transfer", "-", tick, published,
     DELAYQ_REDISSON, 0, 0},
    {"mirror: tick, random", "transfer", "-", tick, published, DELAYQ_REDISSON,
     0, 1},
};

int main(void) {
    size_t i;
    c = bare();
    sha = load(c, published_transfer);
    aof_on(c);
    printf("%-24s%-20s%7s%7s%7s%9s\n", "AOF bytes an item", "beside", "ours",
           "its", "ratio", "goal");
    for (i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct row_of_bytes *r = &rows[i];
        int64_t *due = due_times(ITEMS, ITEMS, r->shuffled);
        double ours, its;
        open_bench(&q, r->wire, r->lease_ms);
        empty_bench(c, &q);
        store(&q, due, ITEMS, 100);
        ours = bytes_of(r->run);
        do_command(c, "FLUSHALL");
        store_published(c, "bench", due, ITEMS, 100);
        its = bytes_of(r->yard);
        printf("%-24s%-20s%7.0f%7.0f%7.2f%9s\n", r->title, r->yardstick, ours,
               its, ours / its, r->goal);
        delayq_close(&q);
        free(due);
    }
    do_command(c, "FLUSHALL");
    do_command(c, "CONFIG SET appendonly no");
    return 0;
}
