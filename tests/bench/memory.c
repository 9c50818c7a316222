/*
 * memory -- the server's memory for a pending item, compared with the published
 * layout, for payloads of 16 bytes to 1 KiB. It is the growth of used_memory in
 * INFO memory over 50,000 items. An element is a string of 25 bytes and the
 * payload. jemalloc rounds it up to a size class, by up to a quarter. A payload
 * of 100 bytes just exceeds a class, so 99 bytes are measured, too. The last
 * line shows the memory of a ready item, and of a key against duplicates.
 */
#include "bench.h"

#define ITEMS 50000

static redisContext *c;

/* Returns the server's used memory in bytes after it has resized its buffers
 * and tables. */
static double used(void) {
    usleep(50000);
    info(c, "memory", "used_memory:");
    return info(c, "memory", "used_memory:");
}

static double empty(void) {
    do_command(c, "FLUSHALL");
    return used();
}

/* Returns the memory in bytes of a ready item, stored by RPUSH, with a payload
 * of len bytes. */
static double ready(size_t len) {
    static char payload[STORE_MAX];
    double before = empty();
    int i;
    for (i = 0; i < ITEMS; i++)
        redisAppendCommand(c, "RPUSH bench %b", payload, len);
    for (i = 0; i < ITEMS; i++) freeReplyObject(reply(c));
    return (used() - before) / ITEMS;
}

/* Returns how many more bytes a pending item of 100 bytes needs if it has a key
 * of 12 bytes. */
static double keys(delayq *q, const int64_t *due, double without) {
    static delayq_message m[100];
    static char key[100][16], payload[100];
    double before = empty();
    int i, k;
    for (i = 0; i < ITEMS; i += 100) {
        memset(m, 0, sizeof m);
        for (k = 0; k < 100; k++) {
            snprintf(key[k], sizeof key[k], "user%08d", i + k);
            m[k].data = payload;
            m[k].len = sizeof payload;
            m[k].due_ms = due[i + k];
            m[k].key = key[k];
            m[k].key_ttl_ms = 3600000;
        }
        if (delayq_offer_many(q, m, 100) != DELAYQ_OK) die(delayq_errmsg(q));
    }
    return (used() - before) / ITEMS - without;
}

int main(void) {
    double plain = 0;
    static const int sizes[] = {16, 64, 99, 100, 256, 1024};
    static const char *const goals[] = {"-", "-", "-", "<= 0.65", "-", "-"};
    static delayq native, mirror;
    int64_t *due = due_times(ITEMS, 0, 1);
    int k;
    c = bare();
    open_bench(&native, DELAYQ_NATIVE, 0);
    open_bench(&mirror, DELAYQ_REDISSON, 0);
    printf("%-20s%8s%8s%8s%8s%9s\n", "bytes a pending item", "native", "mirror",
           "publ.", "ratio", "goal");
    for (k = 0; k < 6; k++) {
        double ours, both, its, before;
        size_t len = (size_t)sizes[k];
        before = empty();
        store(&native, due, ITEMS, len);
        ours = (used() - before) / ITEMS;
        before = empty();
        store(&mirror, due, ITEMS, len);
        both = (used() - before) / ITEMS;
        before = empty();
        store_published(c, "bench", due, ITEMS, len);
        its = (used() - before) / ITEMS;
        if (sizes[k] == 100) plain = ours;
        printf("payload of %4d B   %9.0f%8.0f%8.0f%8.2f%9s\n", sizes[k], ours,
               both, its, ours / its, goals[k]);
    }
    printf(
        "a ready item: %.0f with 100 B, %.0f with 1024 B; a key of 12 B: %.0f"
        " on top\n",
        ready(100), ready(1024), keys(&native, due, plain));
    do_command(c, "FLUSHALL");
    delayq_close(&native);
    delayq_close(&mirror);
    free(due);
    return 0;
}
