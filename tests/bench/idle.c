/*
 * idle -- what a handle costs while nothing is due: a tick and a take with
 * timeout 0, in multiples of reading the clock; and the commands of a consumer
 * that waits in a take for ever, with nothing pending, and with one item due in
 * an hour. The commands are those in MONITOR; the last column adds those called
 * by scripts, which cost no round trip.
 *
 *     idle [seconds that the consumer waits, default 20]
 */
#include "bench.h"
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define ROUNDS 9
#define CALLS 200000

static delayq q;

static void row(const char *title, double *ns, const double *clock,
                const char *goal) {
    double ratio[ROUNDS], middle;
    struct spread s;
    int i;
    for (i = 0; i < ROUNDS; i++) ratio[i] = ns[i] / clock[i];
    middle = median(ns, ROUNDS);
    s = spread_of(ratio, ROUNDS);
    printf("%-28s%8.0f%9.1f%8.1f%8.1f%9s\n", title, middle, s.middle, s.least,
           s.most, goal);
}

static void calls(void) {
    double clock[ROUNDS], tick[ROUNDS], take[ROUNDS], begin;
    delayq_item item;
    int64_t wait_ms;
    int i, n;
    open_bench(&q, DELAYQ_NATIVE, 0);
    for (i = 0; i < 5; i++) delayq_take(&q, &item, 0);
    for (i = 0; i < ROUNDS; i++) {
        begin = seconds();
        for (n = 0; n < CALLS; n++) dq_sys_now();
        clock[i] = (seconds() - begin) * 1e9 / CALLS;
        begin = seconds();
        for (n = 0; n < CALLS; n++) delayq_tick(&q, &wait_ms);
        tick[i] = (seconds() - begin) * 1e9 / CALLS;
        begin = seconds();
        for (n = 0; n < CALLS; n++) delayq_take(&q, &item, 0);
        take[i] = (seconds() - begin) * 1e9 / CALLS;
    }
    delayq_close(&q);
    printf("%-28s%8s%9s%8s%8s%9s\n", "an idle call", "ns", "clocks", "least",
           "most", "goal");
    row("tick", tick, clock, "<= 4");
    row("take(0)", take, clock, "<= 4");
}

static void consume(void) {
    delayq_item item;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_bench(&q, DELAYQ_NATIVE, 0);
    delayq_take(&q, &item, DELAYQ_FOREVER);
    _exit(1);
}

/* Commands of clients in MONITOR, without those of scripts. */
static int heard(redisContext *monitor, double until) {
    struct pollfd p;
    redisReply *r = NULL;
    int n = 0, ms;
    p.fd = monitor->fd;
    p.events = POLLIN;
    while ((ms = (int)((until - seconds()) * 1000)) > 0) {
        if (poll(&p, 1, ms) < 1) continue;
        if (redisBufferRead(monitor) != REDIS_OK) die("connection lost");
        while (redisGetReplyFromReader(monitor, (void **)&r) == REDIS_OK && r) {
            n += strstr(r->str, " lua]") == NULL;
            freeReplyObject(r);
        }
    }
    return n;
}

static void waits(const char *title, int pending, int for_s) {
    redisContext *c = bare(), *monitor = bare();
    double all;
    pid_t pid;
    int n;
    do_command(c, "FLUSHALL");
    if (pending) {
        open_bench(&q, DELAYQ_NATIVE, 0);
        delayq_offer(&q, "x", 1, 3600000);
        delayq_close(&q);
    }
    fflush(stdout);
    pid = fork();
    if (pid == 0) consume();
    sleep(1); /* until it waits */
    do_command(monitor, "MONITOR");
    all = info(c, "stats", "total_commands_processed:");
    heard(monitor, seconds() + 0.1); /* our own INFO */
    n = heard(monitor, seconds() + for_s);
    all = info(c, "stats", "total_commands_processed:") - all - 1;
    printf("%-28s%8d%9.2f%16s%9s%9.1f\n", title, n, (double)n / for_s, "",
           "<= 0.2", all / for_s);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    redisFree(c);
    redisFree(monitor);
}

int main(int argc, char **argv) {
    int for_s = argc > 1 ? atoi(argv[1]) : 20;
    calls();
    printf("%-28s%8s%9s%16s%9s%9s\n", "a consumer that waits", "commands",
           "a second", "", "goal", "in all");
    waits("nothing pending", 0, for_s);
    waits("one due in an hour", 1, for_s);
    return 0;
}
