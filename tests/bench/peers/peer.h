/*
 * Shared by the peers that are written in C: clocks, payloads that contain the
 * number of the job, the check that each job is delivered once, and the
 * commands, which peers.c describes.
 */
#ifndef PEER_H
#define PEER_H

#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAYLOAD 100
#define MOST_JOBS 100000
#define MOST_BATCH 100

/* Each peer defines these functions. If one fails, it calls die(). */
static void offer(int batch, int count, int delay_ms);
static void take(int batch, int count);
/* Take `count` jobs, which another thread offers meanwhile. */
static void consume(int count);
/* Offer n jobs, beginning with job i, in the thread that offers. due_us[] has
 * their due times. */
static void offer_due(int i, int n);

static int64_t due_us[MOST_JOBS], late_us[MOST_JOBS];
static unsigned char seen[MOST_JOBS];

__attribute__((noreturn)) static void die(const char *what) {
    printf("error: %s\n", what);
    exit(1);
}

static int64_t clock_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* Make the payload of job i: its number, and then x up to 100 bytes. */
static void fill(char *payload, int i) {
    memset(payload, 'x', PAYLOAD);
    snprintf(payload, 9, "%08u", (unsigned)i % 100000000u);
    payload[8] = 'x';
}

/* Note the lateness of a job that comes now. Its number must be below count. */
static void note(const char *payload, size_t len, int count) {
    int64_t now = clock_us(CLOCK_REALTIME);
    int i = len == PAYLOAD ? atoi(payload) : -1;
    if (i < 0 || i >= count) die("a payload that was never offered");
    if (seen[i]++) die("delivered twice");
    late_us[i] = now - due_us[i];
}

/* Job i arrives at arrives_us(i). It is offered then, together with all jobs
 * that have arrived by then. It is due delay_us after its arrival, rounded up
 * to a whole ms. So at 10,000 a second 10 jobs are due in the same millisecond.
 * If main sets due_any_us, due times are not rounded. */
static int due_any_us;
static int64_t first_us, delay_us;
static int arrival_rate, arrivals;

static int64_t arrives_us(int i) {
    return first_us + (int64_t)i * 1000000 / arrival_rate;
}

static void *offer_arrivals(void *unused) {
    int i = 0, n;
    (void)unused;
    while (i < arrivals) {
        struct timespec t;
        int64_t at = arrives_us(i);
        t.tv_sec = at / 1000000;
        t.tv_nsec = at % 1000000 * 1000;
        clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
        for (n = 1; n < MOST_BATCH && i + n < arrivals; n++)
            if (arrives_us(i + n) > clock_us(CLOCK_REALTIME)) break;
        offer_due(i, n);
        i += n;
    }
    return NULL;
}

static void open_loop(int rate, int count, int delay_ms) {
    pthread_t thread;
    int64_t last = 0;
    int i;
    if (count > MOST_JOBS) die("too many jobs");
    first_us = clock_us(CLOCK_REALTIME) / 1000 * 1000 + 300000;
    delay_us = (int64_t)delay_ms * 1000;
    arrival_rate = rate;
    arrivals = count;
    for (i = 0; i < count; i++) {
        due_us[i] = arrives_us(i) + delay_us;
        if (!due_any_us) due_us[i] = (due_us[i] + 999) / 1000 * 1000;
    }
    if (pthread_create(&thread, NULL, offer_arrivals, NULL)) die("no thread");
    consume(count);
    pthread_join(thread, NULL);
    for (i = 0; i < count; i++)
        if (due_us[i] + late_us[i] > last) last = due_us[i] + late_us[i];
    printf("ok %.6f", (double)(last - first_us - delay_us) / 1e6);
    for (i = 0; i < count; i++) printf(" %lld", (long long)late_us[i]);
    printf("\n");
}

static void serve(const char *about) {
    char line[256];
    int a, b, c;
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("ready %s\n", about);
    while (fgets(line, sizeof line, stdin)) {
        int64_t begin = clock_us(CLOCK_MONOTONIC);
        memset(seen, 0, sizeof seen);
        if (sscanf(line, "open %d %d %d", &a, &b, &c) == 3) {
            open_loop(a, b, c);
            continue;
        }
        if (sscanf(line, "offer %d %d %d", &a, &b, &c) == 3)
            offer(a, b, c);
        else if (sscanf(line, "take %d %d", &a, &b) == 2)
            take(a, b);
        else
            die("what?");
        printf("ok %.6f\n", (double)(clock_us(CLOCK_MONOTONIC) - begin) / 1e6);
    }
}

#endif
