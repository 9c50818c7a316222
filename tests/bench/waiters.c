/*
 * waiters -- what an item costs the server when 1, 10 or 100 consumers wait for
 * it: server CPU as a multiple of one consumer's, scripts an item, and
 * lateness. Items come one at a time, delayed by 20 ms or pushed. Then the
 * leader of the waiters is killed 40 times. Each consumer is a process.
 */
#include "bench.h"
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ITEMS 150
#define ROUNDS 3
#define MOST 100

static redisContext *c;
static pid_t pids[MOST];
static volatile struct shared {
    int taken;
    double last;     /* when */
    int64_t late_us; /* by how much */
} * shared;

static void consume(void) {
    static delayq q;
    delayq_options o = {0};
    delayq_item item;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    prctl(PR_SET_NAME, q.id + 1); /* the name in the set of waiters */
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

static void start(int i) {
    fflush(stdout);
    pids[i] = fork();
    if (pids[i] == 0) consume();
}

static void await_waiters(int n) {
    while (number("ZCARD delayq_waiting:{bench}") < n) usleep(1000);
}

static void start_all(int n) {
    int i;
    do_command(c, "FLUSHALL");
    shared->taken = 0;
    for (i = 0; i < n; i++) start(i);
    await_waiters(n);
    usleep(100000);
}

static void end_all(int n) {
    int i;
    for (i = 0; i < n; i++) kill(pids[i], SIGKILL);
    for (i = 0; i < n; i++) waitpid(pids[i], NULL, 0);
}

/* Seconds of CPU that the server's main thread has used. */
static double cpu(void) {
    redisReply *r;
    const char *user, *sys;
    double sum;
    redisAppendCommand(c, "INFO cpu");
    r = reply(c);
    user = strstr(r->str, "used_cpu_user_main_thread:");
    sys = strstr(r->str, "used_cpu_sys_main_thread:");
    if (!user) user = strstr(r->str, "used_cpu_user:");
    if (!sys) sys = strstr(r->str, "used_cpu_sys:");
    sum = atof(strchr(user, ':') + 1) + atof(strchr(sys, ':') + 1);
    freeReplyObject(r);
    return sum;
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
    double cpu_us, scripts, late_us;
};

static struct result measure(int n, int pushed) {
    static delayq p;
    delayq_options o = {0};
    struct result r;
    double late[ITEMS], before, scripts_before, asked;
    int i;
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    start_all(n);
    if (delayq_open(&p, &o) != DELAYQ_OK) die(delayq_errmsg(&p));
    before = cpu();
    scripts_before = scripts();
    for (i = 0; i < ITEMS; i++) {
        asked = seconds();
        if (pushed)
            do_command(c, "RPUSH bench x");
        else if (delayq_offer(&p, "x", 1, 20) != DELAYQ_OK)
            die(delayq_errmsg(&p));
        while (shared->taken <= i) usleep(100);
        late[i] =
            pushed ? (shared->last - asked) * 1e6 : (double)shared->late_us;
        usleep(20000); /* until all wait again */
    }
    r.cpu_us = (cpu() - before) / ITEMS * 1e6;
    r.scripts = (scripts() - scripts_before) / ITEMS;
    r.late_us = median(late, ITEMS);
    delayq_close(&p);
    end_all(n);
    return r;
}

static void kill_leaders(int n) {
    static delayq p;
    delayq_options o = {0};
    double late[40], most = 0;
    int i, k;
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    start_all(n);
    if (delayq_open(&p, &o) != DELAYQ_OK) die(delayq_errmsg(&p));
    for (i = 0; i < 40; i++) {
        redisReply *r;
        if (delayq_offer(&p, "x", 1, 50) != DELAYQ_OK) die(delayq_errmsg(&p));
        /* the leader, by its process's name */
        redisAppendCommand(c, "ZRANGE delayq_waiting:{bench} 0 0");
        r = reply(c);
        for (k = 0; k < n; k++) {
            char path[64], name[32] = "";
            FILE *f;
            snprintf(path, sizeof path, "/proc/%d/comm", (int)pids[k]);
            f = fopen(path, "r");
            if (f && fgets(name, sizeof name, f)) name[strcspn(name, "\n")] = 0;
            if (f) fclose(f);
            if (r->elements > 0 &&
                strncmp(name, r->element[0]->str + 1, 15) == 0) {
                kill(pids[k], SIGKILL);
                waitpid(pids[k], NULL, 0);
                start(k);
            }
        }
        freeReplyObject(r);
        while (shared->taken <= i) usleep(200);
        late[i] = (double)shared->late_us;
        if (late[i] > most) most = late[i];
        await_waiters(n);
    }
    median(late, 40);
    printf("leader killed before each of 40 items, %d wait: late by %.1f ms "
           "at p50, %.1f at p95, %.1f at most\n",
           n, late[20] / 1000, late[38] / 1000, most / 1000);
    delayq_close(&p);
    end_all(n);
}

int main(void) {
    static const int counts[] = {1, 10, MOST};
    int pushed, k, round;
    c = bare();
    shared = (volatile struct shared *)mmap(NULL, sizeof *shared,
                                            PROT_READ | PROT_WRITE,
                                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    printf("%-9s%10s%12s%12s%10s%12s\n", "", "waiting", "cpu us", "times one",
           "scripts", "late us p50");
    for (pushed = 0; pushed < 2; pushed++) {
        double one = 0;
        for (k = 0; k < 3; k++) {
            double us[ROUNDS], s[ROUNDS], l[ROUNDS];
            for (round = 0; round < ROUNDS; round++) {
                struct result r = measure(counts[k], pushed);
                us[round] = r.cpu_us;
                s[round] = r.scripts;
                l[round] = r.late_us;
            }
            if (k == 0) one = median(us, ROUNDS);
            printf("%-9s%10d%12.0f%12.1f%10.1f%12.0f\n",
                   pushed ? "pushed" : "delayed", counts[k], median(us, ROUNDS),
                   median(us, ROUNDS) / one, median(s, ROUNDS),
                   median(l, ROUNDS));
        }
    }
    kill_leaders(10);
    do_command(c, "FLUSHALL");
    return 0;
}
