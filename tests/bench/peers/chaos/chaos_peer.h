/*
 * Shared by the peers of bench-chaos that are written in C. chaos.c describes
 * the work of a peer. The peers in other languages do the same.
 */
#ifndef CHAOS_PEER_H
#define CHAOS_PEER_H

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define PAYLOAD 100
#define OFFERERS 4 /* threads of the producer */
#define WORKERS 8  /* threads of a worker */
#define WORK_US 40000
#define RETRY_US 100000 /* pause before a failed call is repeated */

/* Each peer defines these functions. `thread` is the caller's number. */
/* Connects the thread. Returns 1 if that succeeded. */
static int peer_open(int thread, int port, int works);
static int peer_offer(int thread, int id, const char *payload,
                      int64_t delay_us);    /* 1: accepted; 0: try again */
static void peer_work(int thread);          /* calls handle() for each job */
static int peer_left(int *left, int *dead); /* 1: the jobs were counted */

static int records, jobs, rate;
static int64_t start_us;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void sleep_until(int64_t at_us) {
    struct timespec t;
    t.tv_sec = at_us / 1000000;
    t.tv_nsec = at_us % 1000000 * 1000;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
}

static void record(char kind, long long a, long long b) {
    char line[96];
    int len = snprintf(line, sizeof line, "%c %lld %lld %lld\n", kind, a, b,
                       (long long)now_us());
    if (write(records, line, (size_t)len) != len) _exit(1);
}

/* Handle a job that a worker has received. */
static void handle(const char *payload, size_t len) {
    char text[PAYLOAD + 1];
    long long id = -1, due = 0;
    if (len > PAYLOAD) len = PAYLOAD;
    memcpy(text, payload, len);
    text[len] = '\0';
    sscanf(text, "%lld %lld", &id, &due);
    record('B', id, due);
    sleep_until(now_us() + WORK_US);
    record('E', id, due);
}

static void *offer_all(void *of) {
    int thread = (int)(intptr_t)of, id;
    for (id = thread; id < jobs; id += OFFERERS) {
        int64_t at = start_us + (int64_t)id * 1000000 / rate;
        int64_t due = at + 500000 + (int64_t)id * 7919 % 1000 * 1000;
        char payload[PAYLOAD + 1];
        int len = snprintf(payload, sizeof payload, "%08d %020lld ", id,
                           (long long)due);
        memset(payload + len, 'x', (size_t)(PAYLOAD - len));
        sleep_until(at);
        for (;;) {
            int64_t delay = due - now_us();
            if (peer_offer(thread, id, payload, delay > 0 ? delay : 0)) break;
            sleep_until(now_us() + RETRY_US);
        }
        record('O', id, due);
    }
    return NULL;
}

static void *work(void *of) {
    peer_work((int)(intptr_t)of);
    return NULL;
}

static int chaos_main(int argc, char **argv) {
    pthread_t threads[WORKERS];
    int works, count, i, port, left, dead;
    char line[64];
    if (argc != 6) {
        fprintf(stderr, "usage: %s work|produce PORT RECORDS JOBS RATE\n",
                argv[0]);
        return 2;
    }
    works = strcmp(argv[1], "work") == 0;
    port = atoi(argv[2]);
    records = open(argv[3], O_WRONLY | O_APPEND | O_CREAT, 0600);
    jobs = atoi(argv[4]);
    rate = atoi(argv[5]);
    count = works ? WORKERS : OFFERERS;
    for (i = 0; i < count; i++)
        while (!peer_open(i, port, works)) sleep_until(now_us() + RETRY_US);
    printf("ready\n");
    fflush(stdout);
    if (!works &&
        (!fgets(line, sizeof line, stdin) || (start_us = atoll(line)) == 0))
        return 2;
    for (i = 0; i < count; i++)
        if (pthread_create(&threads[i], NULL, works ? work : offer_all,
                           (void *)(intptr_t)i))
            return 2;
    for (i = 0; i < count; i++) pthread_join(threads[i], NULL);
    for (;;) {
        if (peer_left(&left, &dead)) record('L', left, dead);
        sleep_until(now_us() + 500000);
    }
}

#endif
