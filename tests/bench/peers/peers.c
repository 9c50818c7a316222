/*
 * peers -- delayq compared with other delay queues: the CPU of the server for a
 * job's whole life, jobs a second, and how late jobs are.
 *
 *     peers 'NAME|PROMISE|life|late|PID|COMMAND' ...
 *
 * `life` and `late` are 1 where the peer takes part; PID is its server, whose
 * processor time is that of the process, user and system (as in INFO cpu;
 * beanstalkd has no INFO). COMMAND runs
 * in a shell. The others' costs are divided by those of the first peer with the
 * same promise. Every command is one line to the peer's stdin, every answer one
 * line on its stdout:
 *
 *     (at first)                "ready" and a text about it
 *     offer BATCH COUNT DELAY   offer COUNT jobs of 100 bytes, due in DELAY ms,
 *                               BATCH at a time: "ok SECONDS"
 *     take BATCH COUNT          take and ack them, each once: "ok SECONDS"
 *     late COUNT LEAD SPREAD    a consumer at work, offer COUNT jobs singly,
 *                               due at random within SPREAD ms, from LEAD ms
 *                               on: "ok" and a number each, how late it came
 *                               in microseconds
 *
 * Any other answer ends the run. Each round runs all peers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
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
#define LIVES 5 /* rounds after the first, in which a JVM warms up */
#define LATES 5
#define DELAY 1000
#define ITEMS 2000
#define LEAD 1500
#define SPREAD 3000
#define ANSWER_MS 60000 /* ms, for one answer */

static const struct { int batch, jobs; } lives[] = {{1, 2000}, {100, 10000}};
#define BATCHES 2

static struct peer {
    char name[32], promise[16], command[1024], about[256];
    int life, late;
    pid_t server, pid;
    FILE *to;
    int from;
    char line[65536];
    double cpu[BATCHES][LIVES], ratio[BATCHES][LIVES], rate[BATCHES][LIVES];
    double p50[LATES], p99[LATES], worst, stall;
    int early;
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

/* Wakes every 5 ms and keeps the longest delay: for that long the machine
 * itself stood still. */
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

/* One line of reply, without its expected beginning. */
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

/* Offer all, wait until the last is due, take all. The wait is not counted in
 * the jobs a second, but the server's CPU in it is. */
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

/* The first peer with the same promise. */
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

static void be_late(struct peer *p, int round) {
    static double ms[ITEMS];
    char *at;
    int i;
    if (round == 0) p->stall = 0;
    fprintf(p->to, "late %d %d %d\n", ITEMS, LEAD, SPREAD);
    fflush(p->to);
    at = answer(p, "ok ");
    for (i = 0; i < ITEMS; i++) {
        char *from = at;
        ms[i] = strtod(from, &at) / 1000;
        if (at == from) die(p->name, "jobs are missing");
        p->early += ms[i] < 0;
    }
    p->p50[round] = median(ms, ITEMS);
    p->p99[round] = ms[ITEMS * 99 / 100];
    if (round == 0 || ms[ITEMS - 1] > p->worst) p->worst = ms[ITEMS - 1];
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

/* Three digits at least. */
static void print_ms(double ms) {
    double size = ms < 0 ? -ms : ms;
    printf("%6.*f", size < 10 ? 2 : size < 100 ? 1 : 0, ms);
}

static void print_lateness(void) {
    int i, k;
    printf("\nlateness of %d jobs, due at random within %d s, ms; early: of "
           "%d\nstall: how late the bench's own timer was at most, meanwhile\n"
           "%-15s%9s%6s%6s%6s%6s%6s%6s%6s%6s%7s\n",
           ITEMS, SPREAD / 1000, ITEMS * LATES, "", "once", "p50", "least",
           "most", "p99", "least", "most", "max", "stall", "early");
    for (i = 0; i < count; i++) {
        struct peer *p = &peers[i];
        double *figures[2];
        if (!p->late) continue;
        printf("%-15s%9s", p->name, p->promise);
        figures[0] = p->p50;
        figures[1] = p->p99;
        for (k = 0; k < 2; k++) {
            print_ms(median(figures[k], LATES));
            print_ms(figures[k][0]);
            print_ms(figures[k][LATES - 1]);
        }
        print_ms(p->worst);
        print_ms(p->stall);
        printf("%7d\n", p->early);
    }
}

int main(int argc, char **argv) {
    int i, round;
    signal(SIGPIPE, SIG_IGN);
    if (argc < 2 || argc > PEERS + 1) die("peers", "which?");
    for (i = 1; i < argc; i++) parse(&peers[i - 1], argv[i]);
    for (; count < argc - 1; count++) start(&peers[count]);
    for (round = -1; round < LIVES; round++) live_all(round);
    for (round = 0; round < LATES; round++)
        for (i = 0; i < count; i++)
            if (peers[i].late) be_late(&peers[i], round);
    print_lives();
    print_lateness();
    printf("\n");
    for (i = 0; i < count; i++) printf("%s\n", peers[i].about);
    end_all();
    return 0;
}
