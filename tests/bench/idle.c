/*
 * idle -- the cost of a handle while nothing is due. It measures a tick and a
 * take with timeout 0, in multiples of the cost of reading the clock, and
 * counts the commands of a consumer that waits in a take for ever. The count is
 * the mean of two consumers, one with nothing pending, one with an item due in
 * an hour. MONITOR shows the commands. Commands that scripts call don't count,
 * since they cost no round trip.
 *
 *     idle [seconds that the consumer waits, default 20]
 */
#include "bench.h"
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define CALLS 2000
#define TRIES 20

static delayq q;
static delayq_item item;

static void read_clock(void) {
    dq_sys_now();
}
static void tick(void) {
    int64_t wait_ms;
    delayq_tick(&q, &wait_ms);
}
static void take(void) {
    delayq_take(&q, &item, 0);
}

/* Returns the nanoseconds of a call. This is the lowest of TRIES figures, since
 * it has the least noise. */
static double cost_of(void (*call)(void)) {
    double least = 1e9;
    int i, n;
    for (i = 0; i < TRIES; i++) {
        double begin = seconds(), ns;
        for (n = 0; n < CALLS; n++) call();
        ns = (seconds() - begin) * 1e9 / CALLS;
        if (ns < least) least = ns;
    }
    return least;
}

static void calls(void) {
    double clock[LAPS], ticks[LAPS], takes[LAPS];
    int i;
    open_bench(&q, DELAYQ_NATIVE, 0);
    for (i = 0; i < 5; i++) take();
    for (i = 0; i < LAPS; i++) {
        clock[i] = cost_of(read_clock);
        ticks[i] = cost_of(tick) / clock[i];
        takes[i] = cost_of(take) / clock[i];
    }
    delayq_close(&q);
    print_head("an idle call", "costs so often");
    print_row("tick", "reading the clock", "", spread_of(ticks, LAPS), "<= 4");
    print_row("take(0)", "reading the clock", "", spread_of(takes, LAPS),
              "<= 4");
    printf("reading the clock: %.0f ns\n", median(clock, LAPS));
}

static void open_named(const char *name) {
    delayq_options o = {0};
    o.name = name;
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
}

static pid_t consume(const char *name) {
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid != 0) return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_named(name);
    delayq_take(&q, &item, DELAYQ_FOREVER);
    _exit(1);
}

/* Returns the number of commands in MONITOR until the given time, without those
 * that scripts call. */
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

static void waits(int for_s) {
    static const char *const names[] = {"nothing", "one"};
    redisContext *c = bare(), *monitor = bare();
    pid_t pids[2];
    double all;
    int n, i;
    open_named("one");
    if (delayq_offer(&q, "x", 1, 3600000) != DELAYQ_OK) die(delayq_errmsg(&q));
    delayq_close(&q);
    for (i = 0; i < 2; i++) pids[i] = consume(names[i]);
    sleep(1); /* by then both consumers wait */
    do_command(monitor, "MONITOR");
    all = info(c, "stats", "total_commands_processed:");
    heard(monitor, seconds() + 0.1); /* skip this bench's own INFO */
    n = heard(monitor, seconds() + for_s);
    all = info(c, "stats", "total_commands_processed:") - all - 1;
    printf("a consumer that waits: %.2f commands a second (goal: 0.2), %.2f "
           "with those in scripts\n",
           (double)n / for_s / 2, all / for_s / 2);
    for (i = 0; i < 2; i++) {
        kill(pids[i], SIGKILL);
        waitpid(pids[i], NULL, 0);
    }
    redisFree(c);
    redisFree(monitor);
}

int main(int argc, char **argv) {
    calls();
    waits(argc > 1 ? atoi(argv[1]) : 20);
    return 0;
}
