/*
 * waiters -- what an item costs when 1, 2, 10 or 100 consumers wait for it:
 * server CPU, scripts, how many of the consumers wake, lateness. Items come one
 * at a time, ten a second, delayed by 20 ms or pushed. Then what the waiters
 * cost a consumer that is alone, against one whose takes are too short to be
 * one of them. Then the leader is killed or frozen 40 times. Each consumer is a
 * process.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ITEMS 50
#define ROUNDS 3
#define LONE_ITEMS 200
#define LONE_ROUNDS 12
#define LOSSES 40
#define MOST 100

static redisContext *c;
static pid_t pids[MOST];
static volatile struct shared {
    int taken;
    double last;     /* when */
    int64_t late_us; /* by how much */
    char id[MOST][18];
} * shared;

static void consume(int number, int64_t timeout_ms) {
    static delayq q;
    delayq_options o = {0};
    delayq_item item;
    delayq_status status;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    strcpy((char *)shared->id[number], q.id);
    while ((status = delayq_take(&q, &item, timeout_ms)) >= DELAYQ_OK) {
        if (status != DELAYQ_OK) continue;
        shared->last = seconds();
        shared->late_us = item.late_us;
        __sync_fetch_and_add(&shared->taken, 1);
    }
    _exit(1);
}

static void open_producer(delayq *p) {
    delayq_options o = {0};
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(p, &o) != DELAYQ_OK) die(delayq_errmsg(p));
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

static void start(int i, int64_t timeout_ms) {
    fflush(stdout);
    pids[i] = fork();
    if (pids[i] == 0) consume(i, timeout_ms);
}

static void await_waiters(int n) {
    if (n == 1)
        usleep(100000); /* alone: it is not in the set */
    else
        while (number("ZCARD delayq_waiters:{bench}") < n) usleep(1000);
}

static void start_all(int n, int64_t timeout_ms) {
    int i;
    do_command(c, "FLUSHALL");
    shared->taken = 0;
    for (i = 0; i < n; i++) start(i, timeout_ms);
    await_waiters(n);
    /* each has looked again, and knows how many wait */
    usleep(n > 16 ? 12000000 : 100000);
}

static void end_all(int n) {
    int i;
    for (i = 0; i < n; i++) kill(pids[i], SIGKILL);
    for (i = 0; i < n; i++) waitpid(pids[i], NULL, 0);
}

/* Seconds of CPU that a process has used. */
static double cpu_of(pid_t pid) {
    clockid_t clock;
    struct timespec t;
    if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &t) != 0)
        die("no CPU clock of a process");
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static pid_t server(void) {
    redisReply *r;
    pid_t pid;
    redisAppendCommand(c, "INFO server");
    r = reply(c);
    pid = (pid_t)atoi(strstr(r->str, "process_id:") + 11);
    freeReplyObject(r);
    return pid;
}

/* How often a process has slept. */
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

struct result {
    double cpu_us, scripts, woken, late_us;
};

static double one_item(delayq *p, int pushed, int i) {
    double asked = seconds();
    if (pushed)
        do_command(c, "RPUSH bench x");
    else if (delayq_offer(p, "x", 1, 20) != DELAYQ_OK)
        die(delayq_errmsg(p));
    while (shared->taken <= i) usleep(100);
    return pushed ? (shared->last - asked) * 1e6 : (double)shared->late_us;
}

/* n consumers wait, and have got items of earlier rounds. */
static struct result measure(delayq *p, int n, int pushed) {
    struct result r;
    double late[ITEMS], before, scripts_before, next;
    long was[MOST], woken = 0;
    int i, k, taken = shared->taken;
    pid_t pid = server();
    before = cpu_of(pid);
    scripts_before = scripts();
    next = seconds();
    for (k = 0; k < n; k++) was[k] = slept(pids[k]);
    for (i = 0; i < ITEMS; i++) {
        late[i] = one_item(p, pushed, taken + i);
        next += 0.1;
        while (seconds() < next) usleep(1000);
        for (k = 0; k < n; k++) {
            long now = slept(pids[k]);
            woken += now != was[k];
            was[k] = now;
        }
    }
    r.cpu_us = (cpu_of(pid) - before) / ITEMS * 1e6;
    r.scripts =
        (scripts() - scripts_before) / ITEMS - (pushed ? 0 : 1); /* the offer */
    r.woken = (double)woken / ITEMS;
    r.late_us = median(late, ITEMS);
    return r;
}

static void print_many(void) {
    static const int counts[] = {1, 2, 10, MOST};
    static delayq p;
    int pushed, k, round;
    printf("%-9s%10s%12s%10s%12s%14s\n", "", "waiting", "cpu us", "scripts",
           "woken", "late us p50");
    open_producer(&p);
    for (pushed = 0; pushed < 2; pushed++)
        for (k = 0; k < 4; k++) {
            double us[ROUNDS], s[ROUNDS], w[ROUNDS], l[ROUNDS];
            start_all(counts[k], DELAYQ_FOREVER);
            for (round = 0; round < ROUNDS; round++) {
                struct result r = measure(&p, counts[k], pushed);
                us[round] = r.cpu_us;
                s[round] = r.scripts;
                w[round] = r.woken;
                l[round] = r.late_us;
            }
            end_all(counts[k]);
            printf("%-9s%10d%12.0f%10.1f%12.1f%14.0f\n",
                   pushed ? "pushed" : "delayed", counts[k], median(us, ROUNDS),
                   median(s, ROUNDS), median(w, ROUNDS), median(l, ROUNDS));
            fflush(stdout);
        }
    delayq_close(&p);
}

/* CPU that the server and a lone consumer use for an item. */
static double lone(delayq *p, int64_t timeout_ms, int pushed) {
    double before, us;
    int i;
    pid_t pid = server();
    start_all(1, timeout_ms);
    one_item(p, pushed, 0);
    usleep(50000);
    before = cpu_of(pid) + cpu_of(pids[0]);
    for (i = 1; i <= LONE_ITEMS; i++) {
        one_item(p, pushed, i);
        usleep(3000); /* until it waits again */
    }
    us = (cpu_of(pid) + cpu_of(pids[0]) - before) / LONE_ITEMS * 1e6;
    end_all(1);
    return us;
}

static void print_lone(void) {
    static delayq p;
    int pushed, round;
    open_producer(&p);
    for (pushed = 0; pushed < 2; pushed++) {
        double with[LONE_ROUNDS], without[LONE_ROUNDS];
        for (round = 0; round < LONE_ROUNDS; round++) {
            with[round] = lone(&p, DELAYQ_FOREVER, pushed);
            without[round] = lone(&p, DQ_WAITERS_MS - 1, pushed);
        }
        printf("alone, %s: %.0f us of CPU an item, server and consumer; %.0f "
               "where its takes are short (medians of %d)\n",
               pushed ? "pushed" : "delayed", median(with, LONE_ROUNDS),
               median(without, LONE_ROUNDS), LONE_ROUNDS);
    }
    delayq_close(&p);
}

/* The number of the leader, or -1. */
static int leader(int n) {
    redisReply *r;
    int i, found = -1;
    redisAppendCommand(c, "ZRANGE delayq_waiters:{bench} -1 -1 WITHSCORES");
    r = reply(c);
    for (i = 0; i < n && r->elements == 2; i++)
        if (strcmp((const char *)shared->id[i], r->element[0]->str) == 0 &&
            atof(r->element[1]->str) >= 2e14)
            found = i;
    freeReplyObject(r);
    return found;
}

static void lose_leaders(int n, int sig) {
    static delayq p;
    double late[LOSSES];
    int i, k;
    start_all(n, DELAYQ_FOREVER);
    open_producer(&p);
    for (i = 0; i < LOSSES; i++) {
        while ((k = leader(n)) < 0) usleep(1000);
        kill(pids[k], sig);
        if (sig == SIGKILL) waitpid(pids[k], NULL, 0);
        late[i] = one_item(&p, 0, i);
        if (sig == SIGKILL)
            start(k, DELAYQ_FOREVER);
        else
            kill(pids[k], SIGCONT);
        await_waiters(n);
        usleep(20000);
    }
    median(late, LOSSES);
    printf("leader %s before each of %d items, %d wait: late by %.1f ms at "
           "p50, %.1f at p95, %.1f at most\n",
           sig == SIGKILL ? "killed" : "frozen", LOSSES, n,
           late[LOSSES / 2] / 1000, late[LOSSES * 95 / 100] / 1000,
           late[LOSSES - 1] / 1000);
    delayq_close(&p);
    end_all(n);
}

int main(void) {
    c = bare();
    shared = (volatile struct shared *)mmap(NULL, sizeof *shared,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    print_many();
    print_lone();
    lose_leaders(10, SIGKILL);
    lose_leaders(10, SIGSTOP);
    do_command(c, "FLUSHALL");
    return 0;
}
