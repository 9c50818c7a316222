/*
 * fleet -- the number of devices that one server can serve. It measures the
 * server's cost of each request, simulates devices that offer and consumers
 * that take with a lease and ack, compares the simulation with real runs on
 * this machine, and prints simulated figures for other loads (see README.md).
 *
 * The simulated server runs one request after another, each at its measured
 * cost. Offers come at random times (Poisson). Due times are rounded up to
 * whole milliseconds. Consumers take up to `batch` items, ack them, and wait
 * while nothing is due. All items have the same delay, since any distribution
 * of delays makes the same random stream of due items. The cost of waiting is
 * fitted to the first real run. The noise of the machine is not simulated.
 */
#include "bench.h"
#include <math.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define RUN_S 4.0    /* length of a run */
#define DELAY_MS 200 /* the delay of each item */
#define MOST 400000  /* the maximum number of items in a run */
#define TURN_US 50   /* time from a reply to the client's next request */

static struct cost {
    double once, item; /* microseconds for a request, and for an item in it */
} offer, take, ack;
static double wait_us; /* the extra cost of a take that has waited */
static double wake_us; /* the client's part of the lateness */
static redisContext *c;
static delayq q;
static volatile struct shared {
    int n;
    double late_us[MOST];
} * shared;

static void check(delayq_status status) {
    if (status != DELAYQ_OK) die(delayq_errmsg(&q));
}

/* Measure the server's microseconds for an offer, a take and an ack of `batch`
 * items. Each call is made n times. */
static void life(int batch, int n, double us[3][5], int round) {
    int64_t *far = due_times(batch * n, 0, 1);
    int64_t *past = due_times(batch * n, batch * n, 0);
    static delayq_item items[10000];
    double at[4];
    size_t got;
    int i;
    empty_bench(c, &q);
    at[0] = server_us(c);
    for (i = 0; i < n; i++) store(&q, far + i * batch, batch, 100);
    us[0][round] = (server_us(c) - at[0]) / n;
    empty_bench(c, &q);
    store(&q, past, batch * n, 100);
    at[1] = server_us(c);
    for (i = 0; i < n; i++)
        check(delayq_take_many(&q, items + i * batch, (size_t)batch, &got, 0));
    at[2] = server_us(c);
    for (i = 0; i < n; i++)
        check(delayq_ack_many(&q, items + i * batch, (size_t)batch));
    at[3] = server_us(c);
    us[1][round] = (at[2] - at[1]) / n;
    us[2][round] = (at[3] - at[2]) / n;
    free(far);
    free(past);
}

/* Compute the costs of a request and of an item from batches of 1 and of 100
 * items, as medians of five rounds. */
static void measure(void) {
    struct cost *costs[3] = {&offer, &take, &ack};
    double one[3][5], many[3][5];
    int round, k;
    for (round = 0; round < 5; round++) {
        life(1, 2000, one, round);
        life(100, 100, many, round);
    }
    for (k = 0; k < 3; k++) {
        double a = median(one[k], 5), b = median(many[k], 5);
        costs[k]->item = (b - a) / 99;
        costs[k]->once = a - costs[k]->item;
    }
}

/* --- the simulation ------------------------------------------------------ */

struct result {
    double busy, p50, p99; /* share of busy time; lateness in ms */
    double waits;          /* the number of takes a second that had to wait */
};

static double exponential(double mean) {
    return -mean * log((rand() + 1.0) / (RAND_MAX + 2.0));
}

static struct result quantiles(double busy, double *late_us, int n) {
    struct result r = {busy, median(late_us, n) / 1000, 0, 0};
    r.p99 = late_us[n * 99LL / 100] / 1000; /* median() has sorted late_us */
    return r;
}

/* Simulate RUN_S seconds with `rate` offers a second, each of one item. */
static struct result simulate(double rate, int batch, int consumers) {
    static double due[MOST], late[MOST];
    struct consumer {
        enum { WAITS, TAKES, ACKS } state;
        double at; /* the time of its next request, or of the start of a wait */
        int n;     /* the number of items to ack */
    } all[64], *leader, *who;
    double next = 0, now = 0, busy = 0, at, cost;
    int head = 0, tail = 0, k, n, waits = 0;
    struct result r;
    memset(all, 0, sizeof all);
    while (tail < MOST) {
        at = next, who = leader = NULL;
        for (k = 0; k < consumers; k++) {
            struct consumer *one = &all[k];
            if (one->state != WAITS) {
                if (one->at < at) at = one->at, who = one;
            } else if (!leader || one->at < leader->at) {
                leader = one;
            }
        }
        if (leader && head < tail) {
            double wakes = fmax(leader->at, due[head]) + wake_us;
            if (wakes < at) at = wakes, who = leader;
        }
        if (at > RUN_S * 1e6) break;
        /* a request waits until the server has finished the one before */
        now = fmax(now, at);
        if (!who) {
            cost = offer.once + offer.item;
            due[tail++] = ceil(now / 1000) * 1000 + DELAY_MS * 1000;
            next += exponential(1e6 / rate);
        } else if (who->state == ACKS) {
            cost = ack.once + ack.item * who->n;
            who->state = TAKES;
        } else {
            for (n = 0; n < batch && head + n < tail; n++)
                if (due[head + n] > now) break;
            cost = take.once + take.item * n;
            if (who->state == WAITS) cost += wait_us, waits++;
            for (k = 0; k < n; k++, head++) late[head] = now + cost - due[head];
            who->n = n;
            who->state = n ? ACKS : WAITS;
        }
        now += cost;
        busy += cost;
        if (who) who->at = now + TURN_US;
    }
    r = quantiles(busy / now, late, head);
    r.waits = waits / RUN_S;
    return r;
}

static void consume(int batch) {
    static delayq_item items[100];
    size_t n, i;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_bench(&q, DELAYQ_NATIVE, 60000);
    for (;;) {
        int64_t now;
        check(delayq_take_many(&q, items, (size_t)batch, &n, DELAYQ_FOREVER));
        now = wall_us();
        for (i = 0; i < n; i++) {
            int k = __sync_fetch_and_add(&shared->n, 1);
            shared->late_us[k] = (double)(now - items[i].due_ms * 1000);
        }
        check(delayq_ack_many(&q, items, n));
    }
}

static struct result run(double rate, int batch, int consumers) {
    static double late[MOST];
    pid_t pids[64];
    double begin, next = 0, us, wait;
    int i, sent = 0;
    empty_bench(c, &q);
    shared->n = 0;
    fflush(stdout);
    for (i = 0; i < consumers; i++)
        if ((pids[i] = fork()) == 0) consume(batch);
    sleep(1);
    us = server_us(c);
    begin = seconds();
    for (; next < RUN_S; next += exponential(1 / rate), sent++) {
        wait = begin + next - seconds();
        if (wait > 0) usleep((useconds_t)(wait * 1e6));
        check(delayq_offer(&q, "x", 1, DELAY_MS));
    }
    while (shared->n < sent && seconds() - begin < RUN_S + 3) usleep(1000);
    us = (server_us(c) - us) / (seconds() - begin);
    for (i = 0; i < consumers; i++) kill(pids[i], SIGKILL);
    for (i = 0; i < consumers; i++) waitpid(pids[i], NULL, 0);
    memcpy(late, (const void *)shared->late_us, sizeof late);
    return quantiles(us / 1e6, late, shared->n);
}

/* Compare a real run with the simulation of the same load. */
static void held_against(double rate, int batch, int consumers, int fit) {
    struct result b = run(rate, batch, consumers);
    struct result a = simulate(rate, batch, consumers);
    if (fit) {
        wait_us = fmax(0, (b.busy - a.busy) / a.waits * 1e6);
        wake_us = fmax(0, (b.p50 - a.p50) * 1000 - wait_us);
        a = simulate(rate, batch, consumers);
    }
    printf("%8.0f%7d%11d |%6.1f %%%6.1f %%%6.2f |%7.2f%7.2f |%7.2f%7.2f%s\n",
           rate, batch, consumers, 100 * a.busy, 100 * b.busy, a.busy / b.busy,
           a.p50, b.p50, a.p99, b.p99, fit ? "  fitted" : "");
}

static void forecast(double rate) {
    int batch;
    printf("%8.0f%12.0f", rate, rate * 60);
    for (batch = 1; batch <= 100; batch *= 10) {
        struct result r = simulate(rate, batch, 16);
        if (r.p99 < 100)
            printf(" |%4.0f %%%7.2f%7.2f", 100 * r.busy, r.p50, r.p99);
        else
            printf(" |%6s%14s", "full", "");
    }
    printf("\n");
}

int main(void) {
    double rate;
    c = bare();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    open_bench(&q, DELAYQ_NATIVE, 60000);
    measure();
    printf("%-26s |%19s |%14s |%14s\n", "simulated and measured", "busy, ratio",
           "p50 late, ms", "p99");
    printf("%8s%7s%11s |%8s%8s%6s |%7s%7s |%7s%7s\n", "a second", "batch",
           "consumers", "sim.", "meas.", "", "sim.", "meas.", "sim.", "meas.");
    held_against(1000, 100, 1, 1);
    held_against(2000, 100, 1, 0);
    held_against(4000, 100, 1, 0);
    held_against(8000, 100, 1, 0);
    held_against(4000, 10, 4, 0);
    printf("server CPU in us, a request + an item: offer %.1f + %.2f, take "
           "%.1f + %.2f, ack %.1f + %.2f,\na take that has waited %.1f more\n",
           offer.once, offer.item, take.once, take.item, ack.once, ack.item,
           wait_us);
    printf("simulated, 16 consumers: busy, lateness p50 and p99 in ms\n");
    printf("%8s%12s |%20s |%20s |%20s\n", "a second", "a minute", "batch 1",
           "10", "100");
    for (rate = 1000; rate < 50000; rate *= rate < 2000 ? 2 : 1.5)
        forecast(rate);
    do_command(c, "FLUSHALL");
    return 0;
}
