/*
 * device_loop -- a device whose own poll() watches a sensor, and the queue
 * beside it. Here a child process plays the sensor, through a pipe: each
 * reading is offered to be sent 200 ms later.
 *
 *     $ ./device_loop
 *     sensor: 20 degrees
 *     sensor: 21 degrees
 *     due: 20
 *     sensor: 22 degrees
 *     due: 21
 *     due: 22
 *     polled 8 times
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define READINGS 3

/* The sensor: a byte every 150 ms. */
static int start_sensor(void) {
    int ends[2], i;
    if (pipe(ends) != 0) return -1;
    if (fork() == 0) {
        for (i = 0; i < READINGS; i++) {
            unsigned char degrees = (unsigned char)(20 + i);
            usleep(150000);
            if (write(ends[1], &degrees, 1) != 1) break;
        }
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

static void read_sensor(delayq *q, struct pollfd *sensor) {
    unsigned char degrees;
    char text[8];
    int len;
    if (read(sensor->fd, &degrees, 1) != 1) {
        sensor->fd = -1; /* poll skips it from now on */
        return;
    }
    printf("sensor: %d degrees\n", degrees);
    len = snprintf(text, sizeof text, "%d", degrees);
    if (delayq_offer(q, text, (size_t)len, 200) != DELAYQ_OK)
        fprintf(stderr, "%s\n", delayq_errmsg(q));
}

int main(void) {
    static delayq q;
    delayq_options options = {0};
    delayq_item item;
    struct pollfd p[3];
    int sent = 0, polls = 0;

    p[0].fd = start_sensor();
    options.name = "device";
    options.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &options) != DELAYQ_OK)
        fprintf(stderr, "%s; going on\n", delayq_errmsg(&q));

    for (;;) {
        int fds[2];
        int64_t wait_ms;
        size_t n, i;
        while (delayq_take(&q, &item, 0) == DELAYQ_OK) {
            printf("due: %.*s\n", (int)item.len, (const char *)item.data);
            sent++;
        }
        if (sent == READINGS) break;
        /* The tick comes right before the sleep. After a failure wait_ms is the
         * time until the next attempt, so the loop need not handle it. */
        if (delayq_tick(&q, &wait_ms) != DELAYQ_OK)
            fprintf(stderr, "%s\n", delayq_errmsg(&q));
        n = delayq_fds(&q, fds, 2);
        for (i = 0; i < n; i++) p[1 + i].fd = fds[i];
        for (i = 0; i <= n; i++) p[i].events = POLLIN;
        poll(p, (nfds_t)(1 + n), (int)wait_ms);
        polls++;
        if (p[0].fd >= 0 && (p[0].revents & (POLLIN | POLLHUP)))
            read_sensor(&q, &p[0]);
    }
    printf("polled %d times\n", polls);
    delayq_close(&q);
    wait(NULL);
    return 0;
}
