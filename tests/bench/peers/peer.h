/*
 * What the peers written in C share: clocks, payloads that say which job they
 * are, the check that each was delivered once, and the commands. peers.c says
 * what a peer is asked to do.
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

/* Each of them defines these; a call that fails ends in die(). */
static void offer(int batch, int count, int delay_ms);
static void take(int batch, int count);
static void late(int count);  /* consume the jobs that a thread offers */
static void offer_due(int i); /* in that thread: job i, due at due_us[i] */

static int64_t due_us[MOST_JOBS], late_us[MOST_JOBS];
static unsigned char seen[MOST_JOBS];
static int in_order; /* main sets it: due times rise */

__attribute__((noreturn)) static void die(const char *what) {
    printf("error: %s\n", what);
    exit(1);
}

static int64_t clock_us(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

/* The job's number, and x up to 100 bytes. */
static void fill(char *payload, int i) {
    memset(payload, 'x', PAYLOAD);
    snprintf(payload, 9, "%08d", i);
    payload[8] = 'x';
}

/* Job i of count has arrived now. */
static void note(const char *payload, size_t len, int count) {
    int64_t now = clock_us(CLOCK_REALTIME);
    int i = len == PAYLOAD ? atoi(payload) : -1;
    if (i < 0 || i >= count) die("a payload that was never offered");
    if (seen[i]++) die("delivered twice");
    late_us[i] = now - due_us[i];
}

static int by_time(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static void *offer_all_due(void *count) {
    int i;
    for (i = 0; i < *(int *)count; i++) {
        if (clock_us(CLOCK_REALTIME) > due_us[i]) die("offered too late");
        offer_due(i);
    }
    return NULL;
}

/* Random due times in spread_ms, lead_ms from now; offered in a thread. */
static void lateness(int count, int lead_ms, int spread_ms) {
    int64_t base_ms = clock_us(CLOCK_REALTIME) / 1000 + lead_ms;
    pthread_t thread;
    int i;
    for (i = 0; i < count; i++)
        due_us[i] = (base_ms + rand() % spread_ms) * 1000;
    if (in_order) qsort(due_us, (size_t)count, sizeof due_us[0], by_time);
    if (pthread_create(&thread, NULL, offer_all_due, &count)) die("no thread");
    late(count);
    pthread_join(thread, NULL);
    printf("ok");
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
        if (sscanf(line, "late %d %d %d", &a, &b, &c) == 3) {
            lateness(a, b, c);
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
