/*
 * lone -- the cost and the lateness of an item for which one consumer waits.
 * The cost is the CPU time of the server and of the consumer, from the offer
 * until the consumer waits again. It includes the server's cost of the offer,
 * but not the producer's CPU time.
 *
 * The yardsticks are three consumers that use plain hiredis:
 *
 *     told    reads the due time from a pipe, sleeps until then, and takes the
 *             item with a bare script
 *     hears   the same, but the server publishes the due time
 *     BLPOP   waits in BLPOP for pushed items
 *
 * Each consumer is a process. The consumers get their items in turn.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ITEMS 12 /* the items of each kind in each lap */
#define DELAY_MS 12
#define SETTLE_MS 4 /* by then the consumer waits again */

enum kind { OURS, TOLD, HEARS, PUSHED, POPS, KINDS };

static redisContext *c;
static char *sha_offer;
static delayq producer;
static int told[2]; /* the pipe for due times */
static pid_t pids[KINDS];
static volatile struct shared {
    int taken;
    double late_us;
} * shared;

static const char bare_take[] =
    "local t = redis.call('TIME')\n"
    "local now = string.format('%.0f', t[1] * 1000 +\n"
    "  math.floor(t[2] / 1000))\n"
    "local es = redis.call('ZRANGEBYSCORE', KEYS[1], 0, now, 'LIMIT', 0, 1)\n"
    "if #es > 0 then redis.call('ZREMRANGEBYRANK', KEYS[1], 0, 0) end\n"
    "return es\n";

/* --- the consumers ------------------------------------------------------- */

static void taken(int64_t due_ms) {
    shared->late_us = due_ms ? (double)(wall_us() - due_ms * 1000) : 0;
    __sync_fetch_and_add(&shared->taken, 1);
}

static void open_on(delayq *q, const char *name) {
    delayq_options o = {0};
    o.name = name;
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(q, &o) != DELAYQ_OK) die(delayq_errmsg(q));
}

static void consume(const char *name) {
    static delayq q;
    delayq_item item;
    open_on(&q, name);
    while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
        taken(item.due_ms);
}

static void take_bare(redisContext *r, const char *sha, const char *zset,
                      int64_t due_ms) {
    struct timespec t;
    t.tv_sec = due_ms / 1000;
    t.tv_nsec = due_ms % 1000 * 1000000;
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
    redisAppendCommand(r, "EVALSHA %s 1 %s", sha, zset);
    freeReplyObject(reply(r));
    taken(due_ms);
}

static void consume_bare(enum kind kind) {
    redisContext *r = bare(), *messages = bare();
    char *sha = load(r, bare_take);
    int64_t due_ms;
    if (kind == HEARS) do_command(messages, "SUBSCRIBE hears");
    for (;;) {
        if (kind == TOLD) {
            if (read(told[0], &due_ms, sizeof due_ms) < 1) return;
        } else {
            redisReply *message = reply(messages);
            due_ms = atoll(message->element[2]->str);
            freeReplyObject(message);
        }
        take_bare(r, sha, kind == TOLD ? "told" : "heard", due_ms);
    }
}

static void consume_popped(void) {
    redisContext *r = bare();
    for (;;) {
        do_command(r, "BLPOP popped 0");
        taken(0);
    }
}

static void start(enum kind kind) {
    fflush(stdout);
    pids[kind] = fork();
    if (pids[kind] != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (kind == OURS) consume("bench");
    if (kind == TOLD || kind == HEARS) consume_bare(kind);
    if (kind == PUSHED) consume("pushed");
    if (kind == POPS) consume_popped();
    _exit(1);
}

/* --- an item of each kind ------------------------------------------------ */

static void offer_bare(enum kind kind) {
    const char *zset = kind == TOLD ? "told" : "heard";
    redisReply *r;
    int64_t due_ms;
    redisAppendCommand(c, "EVALSHA %s 1 %s %d x %s", sha_offer, zset, DELAY_MS,
                       kind == TOLD ? "nobody" : "hears");
    r = reply(c);
    due_ms = atoll(r->element[0]->str);
    freeReplyObject(r);
    if (kind == TOLD && write(told[1], &due_ms, sizeof due_ms) < 0) die("pipe");
}

/* In us: the cost of an item, the server's part of it, and the lateness. */
enum figure { CPU, OF_SERVER, LATE, FIGURES };

static void item(enum kind kind, double *to) {
    double of_server = server_us(c), own = cpu_of(pids[kind]);
    int before = shared->taken;
    if (kind == OURS) {
        if (delayq_offer(&producer, "x", 1, DELAY_MS) != DELAYQ_OK)
            die(delayq_errmsg(&producer));
    } else if (kind == TOLD || kind == HEARS) {
        offer_bare(kind);
    } else {
        do_command(c, kind == PUSHED ? "RPUSH pushed x" : "RPUSH popped x");
    }
    if (kind <= HEARS) usleep(DELAY_MS * 1000);
    do {
        usleep(SETTLE_MS * 1000);
    } while (shared->taken == before);
    to[OF_SERVER] = server_us(c) - of_server;
    to[CPU] = to[OF_SERVER] + cpu_of(pids[kind]) - own;
    to[LATE] = shared->late_us;
}

/* --- the table ----------------------------------------------------------- */

static double us[WHERES][KINDS][FIGURES][LAPS];

static void laps(enum where where) {
    static double v[KINDS][FIGURES][ITEMS];
    double figures[FIGURES];
    int i, k, kind, f;
    for (i = -1; i < LAPS; i++) { /* the first lap does not count */
        progress((int)where * LAPS + i + 1, WHERES * LAPS);
        for (k = 0; k < ITEMS; k++)
            for (kind = 0; kind < KINDS; kind++) {
                item((enum kind)kind, figures);
                for (f = 0; f < FIGURES; f++) v[kind][f][k] = figures[f];
            }
        for (kind = 0; i >= 0 && kind < KINDS; kind++)
            for (f = 0; f < FIGURES; f++)
                us[where][kind][f][i] = median(v[kind][f], ITEMS);
    }
}

static void row(const char *title, const char *yardstick, enum figure f,
                enum kind ours, enum kind yard, int wheres, const char *goal) {
    double ratio[LAPS];
    int i, where;
    for (where = 0; where < wheres; where++) {
        for (i = 0; i < LAPS; i++)
            ratio[i] = us[where][ours][f][i] / us[where][yard][f][i];
        print_row(where == FREE ? title : "", where == FREE ? yardstick : "",
                  where == FREE ? "" : "one core", spread_of(ratio, LAPS),
                  goal);
    }
}

/* Call this function last, since it sorts the laps. */
static void print_us(int wheres) {
    static const char *const names[] = {"delayed", "sleep, bare script",
                                        "the same, that hears", "pushed",
                                        "BLPOP"};
    int kind, where, f;
    printf("%-22s%-10s%10s%12s%10s\n", "us, medians", "", "of CPU", "server's",
           "late");
    for (kind = 0; kind < KINDS; kind++)
        for (where = 0; where < wheres; where++) {
            printf("%-22s%-10s", where == FREE ? names[kind] : "",
                   where == FREE ? "" : "one core");
            for (f = 0; f < FIGURES; f++)
                printf("%*.0f", f == OF_SERVER ? 12 : 10,
                       median(us[where][kind][f], LAPS));
            printf("\n");
        }
}

int main(void) {
    int where, wheres = 1, kind;
    c = bare();
    sha_offer = load(c, bare_offer);
    shared = (volatile struct shared *)mmap(NULL, sizeof *shared,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (pipe(told) != 0) die("pipe");
    open_on(&producer, "bench");
    for (where = 0; where < WHERES; where++) {
        if (!put((enum where)where)) break;
        wheres = where + 1;
        for (kind = 0; kind < KINDS; kind++) start((enum kind)kind);
        usleep(200000); /* by then the consumers wait */
        laps((enum where)where);
        for (kind = 0; kind < KINDS; kind++) {
            kill(pids[kind], SIGKILL);
            waitpid(pids[kind], NULL, 0);
        }
    }
    progress(1, 1);
    put(FREE);
    print_head("CPU of an item", "over that of");
    row("delayed", "sleep, bare script", CPU, OURS, TOLD, wheres, "<= 1.3");
    row("", "the same, that hears", CPU, OURS, HEARS, wheres, "");
    row("pushed", "BLPOP", CPU, PUSHED, POPS, wheres, "");
    print_us(wheres);
    do_command(c, "FLUSHALL");
    return 0;
}
