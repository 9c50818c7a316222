/*
 * stall -- the longest time for which a script blocks the server. A native
 * queue has a million pending and 100,000 due items; a queue with Redisson's
 * mirror has 100,000 of each. Items are due at random. The time is taken from
 * the server's slow log, and from the slowest reply to a second client that
 * sends one PING after another.
 *
 *     stall [pending, default 1000000 [with the mirror, default 100000]]
 *
 * In each lap each call moves a thousand items (two hundred with a mirror) or
 * cancels a tenth of that, and the bench notes the longest script and the
 * slowest PING. The last two rows show the delays of the machine itself: with a
 * script that only counts to 50,000, and with an idle server.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define DUE 100000

static redisContext *c;
static delayq q, lease;
static char *sha_transfer, *sha_spin;
static int moved;      /* the number of items that each call moves in a lap */
static int64_t *times; /* due times in the past, in random order */
static int next_time;
static delayq_message kept[100];
static volatile struct shared {
    int quit;
    double ms; /* the slowest PING since the last reset to 0 */
} * shared;

static void ping(void) {
    redisContext *p = bare();
    while (!shared->quit) {
        double begin = seconds();
        do_command(p, "PING");
        begin = (seconds() - begin) * 1000;
        if (begin > shared->ms) shared->ms = begin;
        usleep(200);
    }
    _exit(0);
}

/* Returns the time in ms of the longest script in the slow log. */
static double longest(void) {
    redisReply *r;
    double ms = 0;
    size_t i;
    redisAppendCommand(c, "SLOWLOG GET 100000");
    r = reply(c);
    for (i = 0; i < r->elements; i++) {
        redisReply *e = r->element[i];
        double us = (double)e->element[2]->integer;
        if (strcmp(e->element[3]->element[0]->str, "EVALSHA") == 0 &&
            us / 1000 > ms)
            ms = us / 1000;
    }
    freeReplyObject(r);
    do_command(c, "SLOWLOG RESET");
    return ms;
}

/* --- what is called ------------------------------------------------------ */

static void offer(void) {
    store(&q, times + next_time, moved, 100);
    next_time = (next_time + moved) % (DUE - moved);
}

static void tick(void) {
    int left = moved;
    while (left > 0) left -= tick_now(&q);
}

static void take_of(delayq *from, int ack) {
    static delayq_item items[100];
    size_t n, left = (size_t)moved;
    for (; left > 0; left -= n < left ? n : left)
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

/* Offer the items for cancel(). */
static void keep(void) {
    int i;
    memset(kept, 0, sizeof kept);
    for (i = 0; i < moved / 10; i++) {
        kept[i].data = "x";
        kept[i].len = 1;
        kept[i].due_ms = FAR_MS + rand();
    }
    if (delayq_offer_many(&q, kept, (size_t)moved / 10) != DELAYQ_OK)
        die(delayq_errmsg(&q));
}

static void cancel(void) {
    int i;
    for (i = 0; i < moved / 10; i++)
        if (delayq_cancel(&q, &kept[i].ticket) != DELAYQ_OK)
            die(delayq_errmsg(&q));
}

static void transfer(void) {
    transfer_published(c, "bench", sha_transfer, 100);
}

static void spin(void) {
    int i;
    for (i = 0; i < 20; i++) {
        redisAppendCommand(c, "EVALSHA %s 0", sha_spin);
        freeReplyObject(reply(c));
    }
}

static void nothing(void) {
    usleep(50000);
}

/* --- rows ----------------------------------------------------------------- */

struct call {
    const char *title;
    void (*run)(void);
    int measured;
};

/* A lap moves only items that the same lap has offered. */
static const struct call calls[] = {
    {"offer_many", offer, 1},
    {"tick", tick, 1},
    {"", take, 0}, /* removes the moved items */
    {"", offer, 0},
    {"take_many(100)", take, 1},
    {"", offer, 0},
    {"take, ack_many", take_ack, 1},
    {"", keep, 0},
    {"cancel", cancel, 1},
};
static const struct call published[] = {{"transfer(100)", transfer, 1}};
static const struct call machine[] = {{"counting", spin, 1},
                                      {"nothing", nothing, 1}};
#define CALLS_MAX 9

static void laps(const char *name, const struct call *what, size_t n,
                 const char *goal) {
    static double script[CALLS_MAX][LAPS], reply_ms[CALLS_MAX][LAPS];
    int i;
    size_t k;
    for (i = -1; i < LAPS; i++) {
        progress(i + 1, LAPS);
        for (k = 0; k < n; k++) {
            do_command(c, "SLOWLOG RESET");
            shared->ms = 0;
            what[k].run();
            usleep(1000);
            if (i < 0) continue;
            reply_ms[k][i] = shared->ms;
            script[k][i] = longest();
        }
    }
    progress(1, 1);
    for (k = 0; k < n; k++) {
        if (!what[k].measured) continue;
        print_row(what[k].title, name, "script", spread_of(script[k], LAPS),
                  goal);
        print_row("", "", "PING", spread_of(reply_ms[k], LAPS), "");
    }
}

static void rows(const char *name, delayq_wire wire, int n, const char *goal) {
    int64_t *far = due_times(n, 0, 1);
    char title[64];
    open_bench(&q, wire, 0);
    open_bench(&lease, wire, 3600000);
    empty_bench(c, &q);
    store(&q, far, n, 100);
    store(&q, times, DUE, 100);
    free(far);
    snprintf(title, sizeof title, "%s, %d", name, n);
    laps(title, calls, sizeof calls / sizeof calls[0], goal);
    delayq_close(&q);
    delayq_close(&lease);
}

/* Measure the yardstick: the published transfer with n pending items. */
static void rows_published(int n) {
    int64_t *all = due_times(n + DUE, 0, 1);
    char title[64];
    memcpy(all + n, times, DUE * sizeof *all);
    do_command(c, "FLUSHALL");
    store_published(c, "bench", all, n + DUE, 100);
    free(all);
    snprintf(title, sizeof title, "published, %d", n);
    laps(title, published, 1, "");
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
    times = due_times(DUE, DUE, 1);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ping();
    }
    do_command(c, "CONFIG SET slowlog-max-len 100000");
    do_command(c, "CONFIG SET slowlog-log-slower-than 0");
    printf("%-17s%-22s%-10s%6s%14s%9s\n", "the longest of",
           "beside so many pending", "", "ms", "quartiles", "goal");
    moved = 1000;
    rows("native", DELAYQ_NATIVE, n, "<= 2");
    moved = 200;
    rows("mirror", DELAYQ_REDISSON, mirrored, "");
    rows_published(mirrored);
    laps("the machine", machine, 2, "");
    shared->quit = 1;
    waitpid(pid, NULL, 0);
    free(times);
    do_command(c, "FLUSHALL");
    do_command(c, "CONFIG SET slowlog-log-slower-than 10000");
    return 0;
}
