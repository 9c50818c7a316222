/*
 * peers -- delayq compared with other delay queues: the CPU time of the server
 * for a job's whole life, the jobs a second, and their lateness.
 *
 *     peers 'NAME|PROMISE|life|late|PID|COMMAND' ...
 *
 * `life` and `late` are 1 if the peer takes part in these measurements. PID is
 * the process of its server, whose CPU time is measured (user and system, as in
 * INFO cpu; beanstalkd has no INFO). COMMAND starts the peer, in a shell. The
 * costs of each peer are divided by those of the first peer with the same
 * promise. A peer reads requests from stdin, and writes each reply as one line
 * to stdout:
 *
 *     (at first)                "ready" and a text about it
 *     offer BATCH COUNT DELAY   offer COUNT jobs of 100 bytes, due in DELAY ms,
 *                               BATCH at a time: "ok SECONDS"
 *     take BATCH COUNT          take and ack them, each once: "ok SECONDS"
 *     open RATE COUNT DELAY     while a consumer works, COUNT jobs arrive, RATE
 *                               a second, however long an offer takes. Each is
 *                               offered at its arrival, together with up to 99
 *                               that arrive meanwhile. It is due DELAY ms after
 *                               its arrival, in whole ms. "ok SECONDS" is the
 *                               time from the first due time until the last
 *                               job, and the lateness of each job follows, in
 *                               microseconds
 *
 * Any other reply ends the run. Each round runs all peers. During `open` only
 * the peer's program runs on core 1 (the servers run on core 0).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PEERS 12
#ifndef LIVES
#define LIVES 5 /* the first round, in which a JVM warms up, does not count */
#endif
#ifndef OPENS
#define OPENS 5 /* rounds of `open` */
#endif
#define DELAY 1000      /* a job's delay in ms; for beanstalkd a whole second */
#define ANSWER_MS 60000 /* the time limit for one reply */

static const struct { int batch, jobs; } lives[] = {{1, 2000}, {100, 10000}};
#define BATCHES 2

static const struct {
    int rate, seconds;
} arrivals[] = {{100, 4}, {1000, 2}, {10000, 2}};
#define RATES 3
#define MOST_ITEMS 20000

static const struct {
    const char *name;
    double share;
} quantiles[] = {{"p50", 0.5}, {"p99", 0.99}, {"p99.9", 0.999}};
#define QUANTILES 3

static struct peer {
    char name[32], promise[16], command[1024], about[256];
    int life, late;
    pid_t server, pid;
    FILE *to;
    int from;
    char line[16 * MOST_ITEMS];
    double cpu[BATCHES][LIVES], ratio[BATCHES][LIVES], rate[BATCHES][LIVES];
    struct {
        double late[QUANTILES][OPENS], rate[OPENS], worst, stall;
        int early;
    } open[RATES];
    double stall;
} peers[PEERS];
static int count;

/* --- the peers' processes ------------------------------------------------ */

static void end_all(void) {
    int i, n;
    for (i = 0; i < count; i++)
        if (peers[i].to) fclose(peers[i].to);
    for (i = 0; i < count; i++) {
        for (n = 0; n < 100 && peers[i].pid > 0; n++) {
            if (waitpid(peers[i].pid, NULL, WNOHANG) != 0)
                peers[i].pid = 0;
            else
                usleep(10000);
        }
        if (peers[i].pid > 0) kill(peers[i].pid, SIGKILL);
    }
}

static void die(const char *who, const char *what) {
    fflush(stdout);
    fprintf(stderr, "FAIL %s: %s\n", who, what);
    end_all();
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* Wait for a reply in steps of 5 ms. If a step ends late, the machine itself
 * was slow. The longest such delay is noted in p->stall. Returns 0 after
 * ANSWER_MS. */
static int wait_for(struct peer *p) {
    double begin = now_ms(), before = begin;
    struct pollfd f;
    f.fd = p->from;
    f.events = POLLIN;
    while (before < begin + ANSWER_MS) {
        double after;
        if (poll(&f, 1, 5) > 0) return 1;
        after = now_ms();
        if (after - before - 5 > p->stall) p->stall = after - before - 5;
        before = after;
    }
    return 0;
}

/* Returns one line of reply after its beginning, which must be `begin`. */
static char *answer(struct peer *p, const char *begin) {
    size_t len = 0;
    for (;;) {
        ssize_t n;
        if (!wait_for(p)) die(p->name, "no answer");
        n = read(p->from, p->line + len, sizeof p->line - 1 - len);
        if (n <= 0) die(p->name, "it ended");
        len += (size_t)n;
        p->line[len] = '\0';
        if (p->line[len - 1] == '\n') break;
    }
    p->line[len - 1] = '\0';
    if (strncmp(p->line, begin, strlen(begin)) != 0) die(p->name, p->line);
    return p->line + strlen(begin);
}

static void start(struct peer *p) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) die(p->name, "pipe");
    p->pid = fork();
    if (p->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        execl("/bin/sh", "sh", "-c", p->command, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p->to = fdopen(in[1], "w");
    p->from = out[0];
    snprintf(p->about, sizeof p->about, "%s", answer(p, "ready "));
}

static void parse(struct peer *p, const char *spec) {
    int server;
    if (sscanf(spec, "%31[^|]|%15[^|]|%d|%d|%d|%1023[^\n]", p->name, p->promise,
               &p->life, &p->late, &server, p->command) != 6)
        die(spec, "can't be understood");
    p->server = server;
}

/* --- the whole life ------------------------------------------------------ */

static double cpu_us(pid_t pid) {
    struct timespec t;
    clockid_t clock;
    if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
        die("server", "its processor time can't be read");
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double timed(struct peer *p, const char *command) {
    fprintf(p->to, "%s\n", command);
    fflush(p->to);
    return atof(answer(p, "ok "));
}

/* Offer all jobs, wait until the last one is due, and take all. The server's
 * CPU time includes the wait, but the jobs a second don't. */
static void live(struct peer *p, int b, int round) {
    int jobs = lives[b].jobs;
    double begin = cpu_us(p->server), took;
    char command[64];
    snprintf(command, sizeof command, "offer %d %d %d", lives[b].batch, jobs,
             DELAY);
    took = timed(p, command);
    usleep((DELAY + 5) * 1000);
    snprintf(command, sizeof command, "take %d %d", lives[b].batch, jobs);
    took += timed(p, command);
    if (round < 0) return;
    p->cpu[b][round] = (cpu_us(p->server) - begin) / jobs;
    p->rate[b][round] = jobs / took;
}

/* Returns the first peer with the same promise. */
static const struct peer *yardstick(const struct peer *p) {
    const struct peer *y = peers;
    while (!y->life || strcmp(y->promise, p->promise) != 0) y++;
    return y;
}

static void live_all(int round) {
    int i, b;
    for (b = 0; b < BATCHES; b++)
        for (i = 0; i < count; i++)
            if (peers[i].life) live(&peers[i], b, round);
    if (round < 0) return;
    for (b = 0; b < BATCHES; b++)
        for (i = 0; i < count; i++)
            if (peers[i].life)
                peers[i].ratio[b][round] = peers[i].cpu[b][round] /
                                           yardstick(&peers[i])->cpu[b][round];
}

/* --- lateness ------------------------------------------------------------ */

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

/* Run all threads of the process, also those that it will start, on core 1 or,
 * if not `pinned`, on any core. If there is no core 1, this has no effect. */
static void pin(pid_t pid, int pinned) {
    char path[32];
    DIR *tasks;
    struct dirent *task;
    cpu_set_t set;
    size_t i;
    CPU_ZERO(&set);
    for (i = 0; i < CPU_SETSIZE; i++)
        if (i == 1 || !pinned) CPU_SET(i, &set);
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    tasks = opendir(path);
    while (tasks && (task = readdir(tasks)))
        if (task->d_name[0] != '.')
            sched_setaffinity(atoi(task->d_name), sizeof set, &set);
    if (tasks) closedir(tasks);
}

static void run_open(struct peer *p, int r, int round) {
    static double ms[MOST_ITEMS];
    int i, q, jobs = arrivals[r].rate * arrivals[r].seconds;
    char *at;
    double seconds;
    p->stall = 0;
    pin(p->pid, 1);
    fprintf(p->to, "open %d %d %d\n", arrivals[r].rate, jobs, DELAY);
    fflush(p->to);
    at = answer(p, "ok ");
    pin(p->pid, 0);
    seconds = strtod(at, &at);
    for (i = 0; i < jobs; i++) {
        char *from = at;
        ms[i] = strtod(from, &at) / 1000;
        if (at == from) die(p->name, "jobs are missing");
        p->open[r].early += ms[i] < 0;
    }
    qsort(ms, (size_t)jobs, sizeof *ms, by_size);
    for (q = 0; q < QUANTILES; q++)
        p->open[r].late[q][round] = ms[(int)(jobs * quantiles[q].share)];
    p->open[r].rate[round] = jobs / seconds;
    if (round == 0 || ms[jobs - 1] > p->open[r].worst)
        p->open[r].worst = ms[jobs - 1];
    if (p->stall > p->open[r].stall) p->open[r].stall = p->stall;
}

/* --- the tables ---------------------------------------------------------- */

static void print_lives(void) {
    int i, b;
    printf(
        "whole life: offered with a delay of %d ms, taken when all are due, "
        "acked\n"
        "cpu: of the server, us a job; ratio: of it, over the first with the "
        "same promise\n"
        "%-15s%6s%9s%7s%7s%7s%7s%7s%7s%7s\n",
        DELAY, "", "batch", "once", "cpu", "least", "most", "ratio", "jobs/s",
        "least", "most");
    for (b = 0; b < BATCHES; b++) {
        for (i = 0; i < count; i++) {
            struct peer *p = &peers[i];
            if (!p->life) continue;
            printf("%-15s%6d%9s%7.1f", p->name, lives[b].batch, p->promise,
                   median(p->cpu[b], LIVES));
            printf("%7.1f%7.1f%7.2f%7.0f", p->cpu[b][0], p->cpu[b][LIVES - 1],
                   median(p->ratio[b], LIVES), median(p->rate[b], LIVES));
            printf("%7.0f%7.0f\n", p->rate[b][0], p->rate[b][LIVES - 1]);
        }
    }
}

/* Print a time with at least three digits. */
static void print_ms(double ms) {
    double size = ms < 0 ? -ms : ms;
    printf("%8.*f", size < 10 ? 2 : size < 100 ? 1 : 0, ms);
}

static void print_open(int r) {
    int i, q;
    printf("\nopen loop: %d jobs a second arrive for %d s, each due after %d "
           "ms; ms late; medians of %d rounds, least and most\nrate: of the "
           "deliveries; early: of %d; stall: how late the bench's own timer "
           "was at most, meanwhile\n%-15s%9s%7s",
           arrivals[r].rate, arrivals[r].seconds, DELAY, OPENS,
           arrivals[r].rate * arrivals[r].seconds * OPENS, "", "once", "rate");
    for (q = 0; q < QUANTILES; q++)
        printf("%8s%8s%8s", quantiles[q].name, "least", "most");
    printf("%8s%8s%7s\n", "max", "stall", "early");
    for (i = 0; i < count; i++) {
        struct peer *p = &peers[i];
        if (!p->late) continue;
        printf("%-15s%9s%7.0f", p->name, p->promise,
               median(p->open[r].rate, OPENS));
        for (q = 0; q < QUANTILES; q++) {
            print_ms(median(p->open[r].late[q], OPENS));
            print_ms(p->open[r].late[q][0]);
            print_ms(p->open[r].late[q][OPENS - 1]);
        }
        print_ms(p->open[r].worst);
        print_ms(p->open[r].stall);
        printf("%7d\n", p->open[r].early);
    }
}

int main(int argc, char **argv) {
    int i, r, round;
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || argc > PEERS + 1) die("peers", "which?");
    for (i = 1; i < argc; i++) parse(&peers[i - 1], argv[i]);
    for (; count < argc - 1; count++) start(&peers[count]);
    for (round = -1; round < LIVES; round++) live_all(round);
    for (round = 0; round < OPENS; round++)
        for (r = 0; r < RATES; r++)
            for (i = 0; i < count; i++)
                if (peers[i].late) run_open(&peers[i], r, round);
    print_lives();
    for (r = 0; r < RATES; r++) print_open(r);
    printf("\n");
    for (i = 0; i < count; i++) printf("%s\n", peers[i].about);
    end_all();
    return 0;
}
