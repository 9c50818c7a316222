/*
 * stall -- the longest time for which a script blocks the server: with a
 * million pending and 100,000 due at once on a native queue, and with
 * Redisson's mirror, due at random. By the server's slow log, and by the
 * slowest reply to a second client that sends one PING after another.
 *
 *     stall [pending, default 1000000 [with the mirror, default 100000]]
 *
 * The last two rows show the share of the machine itself: a script that only
 * counts for half a millisecond, and an idle server. A verb is stopped after 2
 * s.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/wait.h>

#define DUE 100000
#define TICKETS 2000
#define LIMIT 2.0 /* seconds a verb */
#define PINGS 20000

static redisContext *c;
static delayq q, lease;
static char *sha_transfer, *sha_spin;
static delayq_message kept[TICKETS];
static volatile struct shared {
    int quit, count; /* of PINGs; to be zeroed */
    double ms[PINGS];
} * shared;

static void ping(void) {
    redisContext *p = bare();
    while (!shared->quit) {
        double begin = seconds();
        do_command(p, "PING");
        begin = seconds() - begin;
        if (shared->count < PINGS) shared->ms[shared->count++] = begin * 1000;
        usleep(200);
    }
    _exit(0);
}

/* The scripts of the slow log, in ms; how many there are. */
static int scripts(double *ms, int max) {
    redisReply *r;
    int n = 0;
    size_t i;
    redisAppendCommand(c, "SLOWLOG GET 100000");
    r = reply(c);
    for (i = 0; i < r->elements && n < max; i++) {
        redisReply *e = r->element[i];
        if (strcmp(e->element[3]->element[0]->str, "EVALSHA") == 0)
            ms[n++] = (double)e->element[2]->integer / 1000;
    }
    freeReplyObject(r);
    do_command(c, "SLOWLOG RESET");
    return n;
}

static void row(const char *title, void (*run)(void), const char *goal) {
    static double ms[20000];
    static double pings[PINGS];
    struct spread s, p;
    int n, count;
    do_command(c, "SLOWLOG RESET");
    shared->count = 0;
    run();
    usleep(1000);
    count = shared->count;
    memcpy(pings, (const void *)shared->ms, sizeof pings);
    n = scripts(ms, 20000);
    if (n == 0) ms[n++] = 0;
    if (count == 0) pings[count++] = 0;
    s = spread_of(ms, n);
    p = spread_of(pings, count);
    printf("%-28s%8d |%8.2f%8.2f%8.2f |%8.2f%8.2f |%7s\n", title, n, s.middle,
           ms[n * 99 / 100], s.most, pings[count * 99 / 100], p.most, goal);
}

static void offer_due(int n) {
    int64_t *times = due_times(n, n, 1);
    store(&q, times, n, 100);
    free(times);
}

static void offer_many(void) {
    offer_due(DUE);
}

static void tick(void) {
    double end = seconds() + LIMIT;
    int left = DUE;
    while (left > 0 && seconds() < end) left -= tick_now(&q);
}

static void take_of(delayq *from, int ack) {
    static delayq_item items[100];
    double end = seconds() + LIMIT;
    size_t n, left = DUE;
    for (; left > 0 && seconds() < end; left -= n)
        if (delayq_take_many(from, items, 100, &n, 0) != DELAYQ_OK ||
            (ack && delayq_ack_many(from, items, n) != DELAYQ_OK))
            die(delayq_errmsg(from));
}

static void take(void) {
    take_of(&q, 0);
}

static void take_ack(void) {
    take_of(&lease, 1);
}

static void cancel(void) {
    double end = seconds() + LIMIT;
    int i;
    for (i = 0; i < TICKETS && seconds() < end; i++)
        if (delayq_cancel(&q, &kept[i].ticket) != DELAYQ_OK)
            die(delayq_errmsg(&q));
}

static void transfer(void) {
    double end = seconds() + LIMIT;
    int left = DUE;
    for (; left > 0 && seconds() < end; left -= 100)
        transfer_published(c, sha_transfer, 100);
}

static void spin(void) {
    int i;
    for (i = 0; i < 1000; i++) {
        redisAppendCommand(c, "EVALSHA %s 0", sha_spin);
        freeReplyObject(reply(c));
    }
}

static void nothing(void) {
    sleep(1);
}

/* n pending far away, at random; keeps the tickets of some of them. */
static void fill(int n) {
    int64_t *times = due_times(n, 0, 1);
    int i;
    store(&q, times, n - TICKETS, 100);
    memset(kept, 0, sizeof kept);
    for (i = 0; i < TICKETS; i++) {
        kept[i].data = "x";
        kept[i].len = 1;
        kept[i].due_ms = times[n - TICKETS + i];
    }
    if (delayq_offer_many(&q, kept, TICKETS) != DELAYQ_OK)
        die(delayq_errmsg(&q));
    free(times);
}

static void again(int n) {
    empty_bench(c, &q);
    empty_bench(c, &lease);
    fill(n);
    offer_due(DUE);
}

static void rows(const char *name, delayq_wire wire, int n, const char *goal) {
    open_bench(&q, wire, 0);
    open_bench(&lease, wire, 60000);
    empty_bench(c, &q);
    fill(n);
    printf("%s, %d pending, %d due\n", name, n, DUE);
    row("  offer_many", offer_many, goal);
    row("  tick", tick, goal);
    again(n);
    row("  take_many(100)", take, goal);
    again(n);
    row("  take_many(100), ack_many", take_ack, goal);
    row("  cancel", cancel, goal);
    delayq_close(&q);
    delayq_close(&lease);
}

/* The yardstick: a list of pending and due ones, as rows() leaves it. */
static void published(int n) {
    int64_t *times = due_times(n + DUE, DUE, 1);
    do_command(c, "FLUSHALL");
    store_published(c, times, n + DUE, 100);
    free(times);
    printf("published, %d pending, %d due\n", n, DUE);
    row("  transfer(100)", transfer, "-");
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1000000;
    int mirrored = argc > 2 ? atoi(argv[2]) : 100000;
    pid_t pid;
    c = bare();
    shared = (volatile struct shared *)mmap(NULL, sizeof *shared,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    sha_transfer = load(c, published_transfer);
    sha_spin = load(c, "for i = 1, 50000 do end");
    fflush(stdout);
    pid = fork();
    if (pid == 0) ping();
    do_command(c, "CONFIG SET slowlog-max-len 100000");
    do_command(c, "CONFIG SET slowlog-log-slower-than 0");
    printf("%-28s%8s |%8s%8s%8s |%8s%8s |%7s\n", "ms", "scripts", "p50", "p99",
           "longest", "PING p99", "most", "goal");
    rows("native", DELAYQ_NATIVE, n, "<= 2");
    rows("mirror", DELAYQ_REDISSON, mirrored, "-");
    published(mirrored);
    printf("the machine\n");
    row("  counting", spin, "-");
    row("  nothing", nothing, "-");
    shared->quit = 1;
    waitpid(pid, NULL, 0);
    do_command(c, "FLUSHALL");
    do_command(c, "CONFIG SET slowlog-log-slower-than 10000");
    return 0;
}
