/*
 * device_loop -- a device whose own poll() waits for a sensor and the queue.
 * Here the sensor is a child process that writes to a pipe. Each reading is
 * offered, to be sent 200 ms later. The handle has an outbox, so the device
 * goes on measuring while the server is away. Readings from this time are sent
 * when the server is back.
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
 * The first argument is the number of readings (default 3). Each reading is
 * sent at least once, because its item is leased, and acked only after it was
 * sent. The second argument is a file for the outbox, which is created if it
 * does not exist. With this file, the next run goes on with the offers and acks
 * of this run, even if this run is killed.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 255   /* the largest number of readings */
#define PERIOD 100 /* ms between two readings */

#define OUTBOX 8192 /* bytes for ops that the server has not confirmed yet */

static int sensor; /* the pipe that delivers the readings; -1 after its end */
static int held;   /* the number of the reading that isn't offered yet, or 0 */

/* The handle recovers by itself, so only print the faults and events. */
static void tell(void *user, delayq_status status, const char *text) {
    (void)user, (void)status;
    fprintf(stderr, "%s\n", text);
}

/* Start the sensor, which writes the number of each reading to a pipe. */
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
        sensor = -1; /* poll ignores a negative descriptor */
}

static void offer_reading(delayq *q) {
    delayq_outbox_state outbox;
    char text[40];
    int len =
        snprintf(text, sizeof text, "reading %d, %d degrees", held, 19 + held);
    delayq_status status = delayq_offer(q, text, (size_t)len, 200);
    /* keep the reading until the outbox has room */
    if (status == DELAYQ_ERR_FULL) return;
    if (status != DELAYQ_OK) fprintf(stderr, "%s\n", delayq_errmsg(q));
    delayq_outbox(q, &outbox);
    printf("reading %d: %d degrees; outbox %lu of %lu bytes\n", held, 19 + held,
           (unsigned long)outbox.bytes, (unsigned long)outbox.size);
    held = 0;
}

/* Map a file into memory. Exits at once if another program uses the file. */
static void *map_file(const char *path) {
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    void *memory;
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ||
        posix_fallocate(fd, 0, OUTBOX) != 0) {
        perror(path);
        exit(1);
    }
    memory = mmap(NULL, OUTBOX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) exit(1);
    return memory; /* fd stays open, since closing it would end the lock */
}

/* For outbox_sync. After this call, a power cut loses nothing of the file. */
static int sync_file(void *user, void *address, size_t size) {
    (void)user;
    return msync(address, size, MS_SYNC);
}

/* Send a reading. Returns 1 if it is sent for the first time. After an outage
 * that is longer than the lease, the same reading may be delivered again. */
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
    static char memory[OUTBOX];
    delayq_options options = {0};
    delayq_item item;
    struct pollfd p[4];
    int readings = argc > 1 ? atoi(argv[1]) : 3, sent = 0, polls = 0;

    if (readings > MOST) readings = MOST;
    sensor = start_sensor(readings);
    options.name = "device";
    options.url = getenv("DELAYQ_URL");
    options.lease_ms = 5000;
    options.outbox = memory;
    options.outbox_size = sizeof memory;
    if (argc > 2) {
        options.outbox = map_file(argv[2]);
        options.outbox_keep = DELAYQ_KEEP;
        options.outbox_sync = sync_file;
    }
    options.reconnect_max_ms = 1000;
    options.log = tell;
    /* with an outbox, open fails only for bad options or a bad file */
    if (delayq_open(&q, &options) != DELAYQ_OK) {
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
        return 1;
    }

    for (;;) {
        int fds[3];
        int64_t wait_ms;
        size_t n, i;
        while (delayq_take(&q, &item, 0) == DELAYQ_OK) {
            sent += send_reading(&item);
            delayq_ack(&q, &item); /* the ack goes through the outbox, too */
        }
        if (sent == readings) break;
        if (held) offer_reading(&q);
        /* The tick comes last, because it sends the offers and acks. It also
         * sets wait_ms, the time to sleep. Without a connection, this is the
         * time until the next attempt to connect. */
        delayq_tick(&q, &wait_ms);
        n = delayq_fds(&q, fds, 3); /* the descriptors may change */
        p[0].fd = held ? -1 : sensor;
        for (i = 0; i < n; i++) p[1 + i].fd = fds[i];
        for (i = 0; i <= n; i++) p[i].events = POLLIN;
        poll(p, (nfds_t)(1 + n), (int)wait_ms);
        polls++;
        if (p[0].fd >= 0 && (p[0].revents & (POLLIN | POLLHUP))) read_sensor();
    }
    if (delayq_flush(&q, 5000) != DELAYQ_OK) /* sends the last acks */
        fprintf(stderr, "%s\n", delayq_errmsg(&q));
    printf("sent %d of %d readings; polled %d times\n", sent, readings, polls);
    delayq_close(&q);
    wait(NULL);
    return 0;
}
