/*
 * waiters -- the cost of an item for which 1, 10 or 100 consumers wait: the
 * server's CPU time, the scripts, the consumers that wake, and the lateness.
 * Each consumer is a process, and all three queues have consumers at once. The
 * queues get items in turn, by an offer with a delay of 20 ms or by a push. The
 * cost of an equally long time without an item is subtracted. At the end the
 * leader of 10 consumers is killed ten times, and frozen ten times.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ITEMS 3 /* a queue gets 3 delayed and 3 pushed items in each lap */
#define WINDOW_S 0.05
#define LOSSES 10
#define MOST 111
#define QUEUES 3

static redisContext *c;
static pid_t pids[MOST];
static const struct queue {
    const char *name, *waiters, *push;
    int first, count; /* the range of its consumers in pids[] */
} queues[QUEUES] = {
    {"one", "ZCARD delayq_waiters:{one}", "RPUSH one x", 0, 1},
    {"ten", "ZCARD delayq_waiters:{ten}", "RPUSH ten x", 1, 10},
    {"many", "ZCARD delayq_waiters:{many}", "RPUSH many x", 11, 100},
};
static volatile struct shared {
    int taken;
    double last;     /* the time at which the last item came */
    int64_t late_us; /* the lateness of the last item */
    char id[MOST][18];
} * shared;

static void open_on(delayq *q, const char *name) {
    delayq_options o = {0};
    o.name = name;
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(q, &o) != DELAYQ_OK) die(delayq_errmsg(q));
}

static void consume(int number, const char *name) {
    static delayq q;
    delayq_item item;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_on(&q, name);
    strcpy((char *)shared->id[number], q.id);
    while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK) {
        shared->last = seconds();
        shared->late_us = item.late_us;
        __sync_fetch_and_add(&shared->taken, 1);
    }
    _exit(1);
}

static long long number(const char *command) {
    redisReply *r;
    long long n;
    redisAppendCommand(c, command);
    r = reply(c);
    n = r->integer;
    freeReplyObject(r);
    return n;
}

static void start(const struct queue *w, int i) {
    fflush(stdout);
    pids[i] = fork();
    if (pids[i] == 0) consume(i, w->name);
}

static void await_waiters(const struct queue *w) {
    while (w->count > 1 && number(w->waiters) < w->count) usleep(1000);
}

static void start_all(const struct queue *w) {
    int i;
    for (i = 0; i < w->count; i++) start(w, w->first + i);
    await_waiters(w);
}

static void end_all(const struct queue *w) {
    int i;
    for (i = 0; i < w->count; i++) kill(pids[w->first + i], SIGKILL);
    for (i = 0; i < w->count; i++) waitpid(pids[w->first + i], NULL, 0);
}

/* Returns the number of times that a process has slept. */
static long slept(pid_t pid) {
    char path[64], line[128];
    long n = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f))
        sscanf(line, "voluntary_ctxt_switches: %ld", &n);
    if (f) fclose(f);
    return n;
}

static double scripts(void) {
    redisReply *r;
    const char *at;
    double n;
    redisAppendCommand(c, "INFO commandstats");
    r = reply(c);
    at = strstr(r->str, "cmdstat_evalsha:calls=");
    n = at ? atof(at + strlen("cmdstat_evalsha:calls=")) : 0;
    freeReplyObject(r);
    return n;
}

enum { CPU_US, SCRIPTS, WOKEN, LATE_US, FIGURES };

/* Offer or push an item. Returns its lateness in microseconds. */
static double one_item(delayq *p, const struct queue *w, int pushed) {
    double asked = seconds();
    int before = shared->taken;
    if (pushed)
        do_command(c, w->push);
    else if (delayq_offer(p, "x", 1, 20) != DELAYQ_OK)
        die(delayq_errmsg(p));
    while (shared->taken == before) usleep(100);
    return pushed ? (shared->last - asked) * 1e6 : (double)shared->late_us;
}

/* Measure a window of time. If there is a producer p, it offers an item in the
 * window; otherwise no item comes. */
static void window(delayq *p, const struct queue *w, int pushed, double *to) {
    long was[MOST];
    double end = seconds() + WINDOW_S, cpu, before;
    int k;
    before = scripts();
    for (k = 0; k < w->count; k++) was[k] = slept(pids[w->first + k]);
    cpu = server_us(c);
    to[LATE_US] = p ? one_item(p, w, pushed) : 0;
    while (seconds() < end) usleep(2000);
    to[CPU_US] = server_us(c) - cpu;
    to[WOKEN] = 0;
    for (k = 0; k < w->count; k++)
        to[WOKEN] += slept(pids[w->first + k]) != was[k];
    /* the script of the offer does not count */
    to[SCRIPTS] = scripts() - before - (p && !pushed);
}

static double v[QUEUES][2][FIGURES][LAPS];

/* Compute the figures of all laps. From the figures of a window with an item,
 * subtract those of a window without an item. */
static void laps(void) {
    static delayq p[QUEUES];
    int lap, k, n, pushed, f;
    for (k = 0; k < QUEUES; k++) open_on(&p[k], queues[k].name);
    for (lap = 0; lap < LAPS; lap++) {
        double none[FIGURES], one[FIGURES];
        progress(lap, LAPS);
        for (n = 0; n < ITEMS; n++)
            for (k = 0; k < QUEUES; k++) {
                window(NULL, &queues[k], 0, none);
                for (pushed = 0; pushed < 2; pushed++) {
                    window(&p[k], &queues[k], pushed, one);
                    for (f = 0; f < FIGURES; f++)
                        v[k][pushed][f][lap] += (one[f] - none[f]) / ITEMS;
                }
            }
    }
    progress(1, 1);
    for (k = 0; k < QUEUES; k++) delayq_close(&p[k]);
}

static void print_many(void) {
    int k, pushed, lap;
    print_head("server's CPU", "over that of");
    for (pushed = 0; pushed < 2; pushed++)
        for (k = 1; k < QUEUES; k++) {
            double ratio[LAPS];
            for (lap = 0; lap < LAPS; lap++)
                ratio[lap] =
                    v[k][pushed][CPU_US][lap] / v[0][pushed][CPU_US][lap];
            print_row(pushed ? "pushed" : "delayed", "one waiting consumer",
                      k == 1 ? "10 wait" : "100 wait", spread_of(ratio, LAPS),
                      "");
        }
    printf("%-9s%10s%12s%10s%12s%14s\n", "", "waiting", "cpu us", "scripts",
           "woken", "late us p50");
    for (pushed = 0; pushed < 2; pushed++)
        for (k = 0; k < QUEUES; k++)
            printf("%-9s%10d%12.0f%10.1f%12.1f%14.0f\n",
                   pushed ? "pushed" : "delayed", queues[k].count,
                   median(v[k][pushed][CPU_US], LAPS),
                   median(v[k][pushed][SCRIPTS], LAPS),
                   median(v[k][pushed][WOKEN], LAPS),
                   median(v[k][pushed][LATE_US], LAPS));
    fflush(stdout);
}

/* Returns the index of the leader in pids[], or -1 if there is no leader. */
static int leader(const struct queue *w) {
    redisReply *r;
    int i, found = -1;
    redisAppendCommand(c, "ZRANGE delayq_waiters:{%s} -1 -1 WITHSCORES",
                       w->name);
    r = reply(c);
    for (i = w->first; i < w->first + w->count && r->elements == 2; i++)
        if (strcmp((const char *)shared->id[i], r->element[0]->str) == 0 &&
            atof(r->element[1]->str) >= 2e14)
            found = i;
    freeReplyObject(r);
    return found;
}

static void lose_leaders(const struct queue *w, int sig) {
    static delayq p;
    double late[LOSSES];
    int i, k;
    start_all(w);
    usleep(100000);
    open_on(&p, w->name);
    for (i = 0; i < LOSSES; i++) {
        progress(i, LOSSES);
        while ((k = leader(w)) < 0) usleep(1000);
        kill(pids[k], sig);
        if (sig == SIGKILL) waitpid(pids[k], NULL, 0);
        late[i] = one_item(&p, w, 0);
        if (sig == SIGKILL)
            start(w, k);
        else
            kill(pids[k], SIGCONT);
        await_waiters(w);
        usleep(20000);
    }
    progress(1, 1);
    median(late, LOSSES);
    printf("leader %s before each of %d items, %d wait: late by %.1f ms at "
           "p50, %.1f at most\n",
           sig == SIGKILL ? "killed" : "frozen", LOSSES, w->count,
           late[LOSSES / 2] / 1000, late[LOSSES - 1] / 1000);
    delayq_close(&p);
    end_all(w);
}

int main(void) {
    int k;
    c = bare();
    shared = (volatile struct shared *)mmap(NULL, sizeof *shared,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (k = 0; k < QUEUES; k++) start_all(&queues[k]);
    /* After 12 s each consumer has polled again, and knows how many wait. */
    sleep(12);
    laps();
    for (k = 0; k < QUEUES; k++) end_all(&queues[k]);
    print_many();
    do_command(c, "FLUSHALL");
    lose_leaders(&queues[1], SIGKILL);
    lose_leaders(&queues[1], SIGSTOP);
    do_command(c, "FLUSHALL");
    return 0;
}
