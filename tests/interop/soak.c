/*
 * The C side of soak.sh. Each line of a log is one letter, an item's number,
 * and milliseconds; soak.sh reads them.
 *
 *     soak produce URL old|new LOG FROM END   offers numbers until END
 *     soak work URL old|new LOG               takes with leases until it gets
 *                                             killed
 *
 *     o    an offer begins; the milliseconds are the earliest due time
 *     O    the offer is confirmed
 *     T    the item is taken with a lease
 *     a    an ack begins
 *     A    the ack is confirmed
 *     G    the ack failed: the item is gone, or still in the queue
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int log_file;

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Write a line with one write(), so that a kill leaves no partial line. */
static void note(char letter, long id, long long ms) {
    char line[64];
    int n = snprintf(line, sizeof line, "%c %ld %lld\n", letter, id, ms);
    if (write(log_file, line, (size_t)n) != n) abort();
}

static void produce(delayq *q, long id, long long end_ms) {
    for (; now_ms() < end_ms; id++) {
        char text[24];
        delayq_message m = {0};
        m.len = (size_t)snprintf(text, sizeof text, "%ld", id);
        m.data = text;
        m.delay_ms = rand() % 4 ? rand() % 400 : rand() % 3000;
        note('o', id, now_ms() + m.delay_ms);
        do { /* a message that is offered again is stored once */
            (void)delayq_offer_message(q, &m);
        } while (m.status == DELAYQ_ERR_UNKNOWN && !usleep(20000));
        if (m.status == DELAYQ_OK)
            note('O', id, now_ms());
        else if (m.status != DELAYQ_GONE)
            usleep(50000); /* without a server nothing was stored */
        usleep((useconds_t)(rand() % 8000));
    }
}

static void work(delayq *q) {
    for (;;) {
        delayq_item item;
        long id;
        int what = rand() % 100;
        if (delayq_take(q, &item, rand() % 300) != DELAYQ_OK) continue;
        id = strtol((const char *)item.data, NULL, 10);
        note('T', id, now_ms());
        if (what < 10) {
            (void)delayq_nack(q, &item, rand() % 200);
            /* if what >= 98, do nothing, so the item comes again */
        } else if (what < 98) {
            delayq_status status;
            note('a', id, now_ms());
            status = delayq_ack(q, &item);
            if (status == DELAYQ_OK)
                note('A', id, now_ms());
            else if (status != DELAYQ_ERR_UNKNOWN)
                note('G', id, now_ms());
        }
    }
}

int main(int argc, char **argv) {
    static delayq q;
    delayq_options o = {0};
    if (argc < 5) return 2;
    srand((unsigned)getpid());
    o.name = "soak";
    o.url = argv[2];
    o.wire =
        strcmp(argv[3], "old") == 0 ? DELAYQ_REDISSON_OLD : DELAYQ_REDISSON;
    o.backoff_ms = 50;
    if (strcmp(argv[1], "work") == 0) o.lease_ms = 1500;
    log_file = open(argv[4], O_WRONLY | O_CREAT | O_APPEND, 0644);
    (void)delayq_open(&q, &o); /* without a server the handle connects later */
    if (o.lease_ms)
        work(&q);
    else if (argc > 6)
        produce(&q, atol(argv[5]), atoll(argv[6]));
    delayq_close(&q);
    return 0;
}
