/*
 * game_loop -- 60 frames a second, and a take in each frame that costs
 * nothing until something is due. Monsters respawn 250 ms after they died.
 *
 *     $ ./game_loop
 *     frame  30: the orc dies
 *     frame  46: the orc is back, 8.11 ms late
 *     frame  60: the troll dies
 *     frame  76: the troll is back, 7.64 ms late
 *     120 frames; delayq's share of a frame: median 0.2 us, longest 0.13 ms
 *
 * An item arrives with the first frame after its due time. The longest frames
 * are those with a round trip: connecting is done before the loop begins.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FRAMES 120
#define FRAME_NS (1000000000 / 60)

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The game's use of the queue in one frame. */
static void frame(delayq *q, int number) {
    delayq_item item;
    const char *victim = number == 30 ? "orc" : number == 60 ? "troll" : NULL;
    if (victim) {
        printf("frame %3d: the %s dies\n", number, victim);
        if (delayq_offer(q, victim, strlen(victim), 250) != DELAYQ_OK)
            fprintf(stderr, "%s\n", delayq_errmsg(q));
    }
    while (delayq_take(q, &item, 0) == DELAYQ_OK)
        printf("frame %3d: the %.*s is back, %.2f ms late\n", number,
               (int)item.len, (const char *)item.data,
               (double)item.late_us / 1000);
}

int main(void) {
    static delayq q;
    static double spent[FRAMES];
    delayq_options options = {0};
    struct timespec next;
    int i;

    options.name = "respawn";
    options.url = getenv("DELAYQ_URL");
    options.io_timeout_ms = 5; /* a slow network must not cost a frame */
    options.connect_timeout_ms = 1000; /* but connecting may take longer */
    if (delayq_open(&q, &options) != DELAYQ_OK) {
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
        delayq_close(&q);
        return 1;
    }
    clock_gettime(CLOCK_MONOTONIC, &next);
    for (i = 0; i < FRAMES; i++) {
        double begin = now_us();
        frame(&q, i);
        spent[i] = now_us() - begin;
        next.tv_nsec += FRAME_NS;
        if (next.tv_nsec >= 1000000000) {
            next.tv_nsec -= 1000000000;
            next.tv_sec++;
        }
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &next, NULL);
    }
    qsort(spent, FRAMES, sizeof spent[0], by_size);
    printf("%d frames; delayq's share of a frame: median %.1f us, "
           "longest %.2f ms\n",
           FRAMES, spent[FRAMES / 2], spent[FRAMES - 1] / 1000);
    delayq_close(&q);
    return 0;
}
