/*
 * sensor -- a device without the Lua: it is built with DELAYQ_NO_LUA, and
 * gateway.c loads the scripts. The device measures even before the gateway
 * runs, and keeps its readings in its outbox.
 *
 *     $ ./sensor 3 & sleep 2; ./gateway 3
 *     sensor: open: the server lacks the scripts of delayq ...
 *     gateway: the scripts are loaded
 *     gateway: 20 degrees
 *     gateway: 21 degrees
 *     gateway: 22 degrees
 *     sensor: sent 3 readings
 *
 * The argument is the number of readings (default 3).
 */
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_NO_LUA
#include "delayq.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>

static int missing; /* 1: the missing scripts were reported */

/* Poll for wait_ms, but for 100 ms at most, because the next reading is due
 * after that time. */
static void rest(delayq *q, int64_t wait_ms) {
    struct pollfd fds[4];
    int fd[4], n = (int)delayq_fds(q, fd, 4), i;
    for (i = 0; i < n; i++) {
        fds[i].fd = fd[i];
        fds[i].events = POLLIN;
    }
    poll(fds, (nfds_t)n, wait_ms < 100 ? (int)wait_ms : 100);
}

static void tick(delayq *q) {
    int64_t wait_ms = 100;
    delayq_status status = delayq_tick(q, &wait_ms);
    if (status == DELAYQ_ERR_AGAIN && !missing++)
        printf("sensor: %s\n", delayq_errmsg(q));
    rest(q, wait_ms);
}

int main(int argc, char **argv) {
    static char memory[8192];
    static delayq q;
    delayq_options options = {0};
    delayq_outbox_state outbox = {0};
    int readings = argc > 1 ? atoi(argv[1]) : 3, i;
    char text[40];
    options.name = "readings";
    options.url = getenv("DELAYQ_URL");
    options.outbox = memory;
    options.outbox_size = sizeof memory;
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (delayq_open(&q, &options) != DELAYQ_OK) {
        fprintf(stderr, "sensor: %s\n", delayq_errmsg(&q));
        return 1;
    }
    for (i = 0; i < readings; i++) {
        int n = snprintf(text, sizeof text, "%d degrees", 20 + i);
        while (delayq_offer(&q, text, (size_t)n, 0) == DELAYQ_ERR_FULL)
            tick(&q);
        tick(&q);
    }
    do {
        tick(&q);
        delayq_outbox(&q, &outbox);
    } while (outbox.offers_settled < outbox.offers_accepted);
    printf("sensor: sent %d readings\n", readings);
    delayq_close(&q);
    return 0;
}
