/*
 * game_loop -- 60 frames a second. None of them waits for the network, because
 * the handle has an outbox. Three times a second an orc dies, and is due to
 * come back 500 ms later. While the server is away or frozen, the frames go on,
 * the outbox fills, and no orc comes back. When the server is there again, all
 * orcs come back. `make demo` shows this over a line with a round trip of 50
 * ms.
 *
 *     $ ./game_loop 4
 *     second 1: longest frame 0.17 ms; 3 died, 2 are back; outbox 0 bytes
 *     second 2: longest frame 0.10 ms; 6 died, 5 are back; outbox 0 bytes
 *     second 3: longest frame 0.06 ms; 9 died, 8 are back; outbox 0 bytes
 *     second 4: longest frame 0.09 ms; 12 died, 11 are back; outbox 0 bytes
 *     12 died, 12 came back; the longest of 253 frames took 0.17 ms
 *
 * The argument is the number of seconds during which orcs die (default 6). The
 * printed times of frames contain only the delayq calls, and no work of a game.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#ifndef _WIN32
#include <time.h>
#endif

#define FPS 60
#define PATIENCE (10 * FPS) /* frames in which the last orcs may come back */

static int died, back;

/* The handle recovers by itself, so only print the faults and events. */
static void tell(void *user, delayq_status status, const char *text) {
    (void)user, (void)status;
    fprintf(stderr, "%s\n", text);
}

#ifdef _WIN32
static double now_ms(void) {
    LARGE_INTEGER ticks, second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&second);
    return (double)ticks.QuadPart * 1e3 / (double)second.QuadPart;
}

static void sleep_ms(double ms) {
    Sleep((DWORD)ms);
}
#else
static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static void sleep_ms(double ms) {
    struct timespec t = {0, 0};
    t.tv_nsec = (long)(ms * 1e6);
    nanosleep(&t, NULL);
}
#endif

/* Use the queue in one frame: take until it is empty, then offer, then tick.
 * The tick sends the offers and the acks, and reads the items that the next
 * frame will take. */
static void frame(delayq *q, int orc_dies) {
    delayq_item item;
    while (delayq_take(q, &item, 0) == DELAYQ_OK) {
        back++;
        delayq_ack(q, &item);
    }
    /* if the outbox is full (DELAYQ_ERR_FULL), this orc does not die */
    if (orc_dies && delayq_offer(q, "orc", 3, 500) == DELAYQ_OK) died++;
    delayq_tick(q, NULL);
}

static void sleep_until_next_frame(void) {
    static double next;
    double left;
    if (next == 0) next = now_ms();
    next += 1000.0 / FPS;
    left = next - now_ms();
    if (left > 0) sleep_ms(left);
}

static void show_second(const delayq *q, int second, double longest) {
    delayq_outbox_state outbox;
    delayq_outbox(q, &outbox);
    printf("second %d: longest frame %.2f ms; %d died, %d %s back; "
           "outbox %lu bytes%s\n",
           second, longest, died, back, back == 1 ? "is" : "are",
           (unsigned long)outbox.bytes, outbox.connected ? "" : ", offline");
    fflush(stdout);
}

int main(int argc, char **argv) {
    static delayq q;
    /* the outbox, for ops that the server has not confirmed yet */
    static char memory[16384];
    delayq_options options = {0};
    double longest = 0, longest_of_all = 0;
    int frames = (argc > 1 ? atoi(argv[1]) : 6) * FPS, i;

    options.name = "respawn";
    options.url = getenv("DELAYQ_URL");
    options.outbox = memory;
    options.outbox_size = sizeof memory;
    /* if the reply with an orc is lost, the orc is delivered again after 4 s */
    options.lease_ms = 4000;
    options.log = tell;
    /* with an outbox, open fails only for bad options */
    if (delayq_open(&q, &options) != DELAYQ_OK) {
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
        delayq_close(&q);
        return 1;
    }
    for (i = 0; i < frames || (back < died && i < frames + PATIENCE); i++) {
        double began = now_ms(), spent;
        frame(&q, i < frames && i % (FPS / 3) == 0);
        spent = now_ms() - began;
        if (spent > longest) longest = spent;
        if (spent > longest_of_all) longest_of_all = spent;
        if ((i + 1) % FPS == 0) {
            show_second(&q, (i + 1) / FPS, longest);
            longest = 0;
        }
        sleep_until_next_frame();
    }
    printf("%d died, %d came back; the longest of %d frames took %.2f ms\n",
           died, back, i, longest_of_all);
    if (delayq_flush(&q, 2000) != DELAYQ_OK) /* waits for the server */
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
    delayq_close(&q);
    return 0;
}
