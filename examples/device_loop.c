/*
 * device_loop -- a device whose own poll() watches a sensor, and the queue
 * beside it. Here a child process plays the sensor, through a pipe: each
 * reading is offered to be sent 200 ms later. The handle has an outbox, so
 * the device goes on measuring while the server is away; what it has offered
 * meanwhile is due after that.
 *
 *     $ ./device_loop
 *     reading 1: 20 degrees; outbox 128 of 6752 bytes
 *     reading 2: 21 degrees; outbox 128 of 6752 bytes
 *     reading 3: 22 degrees; outbox 128 of 6752 bytes
 *     due: reading 1, 20 degrees
 *     due: reading 2, 21 degrees
 *     due: reading 3, 22 degrees
 *     sent 3 of 3 readings; polled 20 times
 *
 * The argument: how many readings, 3 unless given. Each is handed out at least
 * once: it is leased, and acknowledged when it has been sent.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 255   /* readings */
#define PERIOD 100 /* ms between them */

static int sensor; /* readings come from here */
static int held;   /* the number of one that isn't offered yet; 0: none */

/* The sensor writes the number of each reading. */
static int start_sensor(int readings) {
    int ends[2], i;
    if (pipe(ends) != 0) exit(1);
    if (fork() == 0) {
        close(ends[0]);
        for (i = 1; i <= readings; i++) {
            unsigned char number = (unsigned char)i;
            usleep(PERIOD * 1000);
            if (write(ends[1], &number, 1) != 1) break;
        }
        _exit(0);
    }
    close(ends[1]);
    return ends[0];
}

static void read_sensor(void) {
    unsigned char number;
    if (read(sensor, &number, 1) == 1)
        held = number;
    else
        sensor = -1; /* poll skips it from now on */
}

static void offer_reading(delayq *q) {
    delayq_outbox_state outbox;
    char text[40];
    int len =
        snprintf(text, sizeof text, "reading %d, %d degrees", held, 19 + held);
    delayq_status status = delayq_offer(q, text, (size_t)len, 200);
    if (status == DELAYQ_ERR_FULL) return; /* it is held until there is room */
    if (status != DELAYQ_OK) fprintf(stderr, "%s\n", delayq_errmsg(q));
    delayq_outbox(q, &outbox);
    printf("reading %d: %d degrees; outbox %lu of %lu bytes\n", held, 19 + held,
           (unsigned long)outbox.bytes, (unsigned long)outbox.size);
    held = 0;
}

/* 1 if it was sent for the first time. After an outage longer than the lease
 * it may come again. */
static int send_reading(const delayq_item *item) {
    static char sent[MOST + 1];
    int number = 0;
    printf("due: %.*s\n", (int)item->len, (const char *)item->data);
    sscanf((const char *)item->data, "reading %d", &number);
    if (number < 1 || number > MOST || sent[number]) return 0;
    return sent[number] = 1;
}

int main(int argc, char **argv) {
    static delayq q;
    static char memory[8192]; /* what the server has not confirmed yet */
    delayq_options options = {0};
    delayq_item item;
    delayq_status status, last = DELAYQ_OK;
    struct pollfd p[4];
    int readings = argc > 1 ? atoi(argv[1]) : 3, sent = 0, polls = 0;

    if (readings > MOST) readings = MOST;
    sensor = start_sensor(readings);
    options.name = "device";
    options.url = getenv("DELAYQ_URL");
    options.lease_ms = 5000;
    options.outbox = memory;
    options.outbox_size = sizeof memory;
    options.reconnect_max_ms = 1000;
    if (delayq_open(&q, &options) != DELAYQ_OK) /* only of bad options */
        fprintf(stderr, "%s\n", delayq_errmsg(&q));

    for (;;) {
        int fds[3];
        int64_t wait_ms;
        size_t n, i;
        while (delayq_take(&q, &item, 0) == DELAYQ_OK) {
            sent += send_reading(&item);
            delayq_ack(&q, &item); /* through the outbox, too */
        }
        if (sent == readings) break;
        if (held) offer_reading(&q);
        /* The tick comes last: it writes what was offered and acknowledged, and
         * tells how long to sleep; without a connection, until it tries again
         * to connect. */
        status = delayq_tick(&q, &wait_ms);
        if (status != last && status != DELAYQ_OK)
            fprintf(stderr, "%s\n", delayq_errmsg(&q));
        last = status;
        n = delayq_fds(&q, fds, 3); /* anew each time: they change */
        p[0].fd = held ? -1 : sensor;
        for (i = 0; i < n; i++) p[1 + i].fd = fds[i];
        for (i = 0; i <= n; i++) p[i].events = POLLIN;
        poll(p, (nfds_t)(1 + n), (int)wait_ms);
        polls++;
        if (p[0].fd >= 0 && (p[0].revents & (POLLIN | POLLHUP))) read_sensor();
    }
    if (delayq_flush(&q, 5000) != DELAYQ_OK) /* the last acks */
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
    printf("sent %d of %d readings; polled %d times\n", sent, readings, polls);
    delayq_close(&q);
    wait(NULL);
    return 0;
}
