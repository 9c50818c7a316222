/*
 * worker -- delivery at least once: leases, retries with a back-off, dead
 * letters, and a clean stop on SIGINT. Run several workers. If you kill -9 one
 * of them, another worker gets its item. The argument is the number of jobs to
 * offer first. A job whose number ends in 7 fails at each attempt.
 *
 *     $ ./worker 10
 *     job 0: done
 *     job 7: failed, attempt 1 of 3
 *     ...
 *     job 7: failed, attempt 3 of 3
 *     ^C
 *     stopping; 9 done
 *     dead letter: job 7, attempts, handed out 3 times
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 3

static delayq q;
static volatile sig_atomic_t stopping;

static void on_interrupt(int sig) {
    (void)sig;
    stopping = 1;
    delayq_wake(&q); /* ends the waiting take at once */
}

static void tell(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status == DELAYQ_OK) /* an event, not a fault */
        fprintf(stderr, "worker: %s\n", text);
    else
        fprintf(stderr, "worker: %s (%s)\n", text, delayq_strstatus(status));
}

static void offer_jobs(int count) {
    int i;
    for (i = 0; i < count; i++) {
        char job[16];
        int len = snprintf(job, sizeof job, "%d", i);
        if (delayq_offer(&q, job, (size_t)len, 100 * i) != DELAYQ_OK)
            fprintf(stderr, "worker: %s\n", delayq_errmsg(&q));
    }
}

/* Do the work. Returns 1 if it is done. */
static int work(const delayq_item *item) {
    const char *job = (const char *)item->data;
    return job[item->len - 1] != '7';
}

/* Run a job. Returns 1 if it is done; the next delayq_ack_take acks it. */
static int handle(delayq_item *item) {
    printf("job %.*s: ", (int)item->len, (const char *)item->data);
    if (work(item)) {
        printf("done\n");
        return 1;
    }
    printf("failed, attempt %d of %d\n", item->attempt, MOST);
    if (delayq_nack(&q, item, DELAYQ_BACKOFF) < 0)
        fprintf(stderr, "worker: %s\n", delayq_errmsg(&q));
    item->ticket.text[0] = '\0'; /* delayq_ack_take then acks nothing */
    return 0;
}

static void list_dead(void) {
    delayq_dead dead[16];
    size_t n, i;
    if (delayq_dead_peek(&q, dead, 16, &n, 0) != DELAYQ_OK) return;
    for (i = 0; i < n; i++)
        printf("dead letter: job %.*s, %s, handed out %d times\n",
               (int)dead[i].len, (const char *)dead[i].data, dead[i].reason,
               dead[i].attempt);
}

int main(int argc, char **argv) {
    delayq_options options = {0};
    delayq_item item;
    delayq_status status;
    int done = 0;

    options.name = "worker";
    options.url = getenv("DELAYQ_URL");
    options.lease_ms = 30000;
    options.max_attempts = MOST;
    options.backoff_ms = 200;
    options.log = tell;
    if (delayq_open(&q, &options) != DELAYQ_OK)
        fprintf(stderr, "worker: %s\n", delayq_errmsg(&q));
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    if (argc > 1) offer_jobs(atoi(argv[1]));

    memset(&item, 0, sizeof item);
    while (!stopping) {
        status = delayq_ack_take(&q, &item, DELAYQ_FOREVER);
        if (status == DELAYQ_OK) {
            done += handle(&item);
        } else if (status != DELAYQ_WOKEN) {
            fprintf(stderr, "worker: %s\n", delayq_errmsg(&q));
            break;
        }
    }
    /* No delayq_ack_take has acked the last finished item yet. */
    if (item.ticket.text[0]) delayq_ack(&q, &item);
    printf("stopping; %d done\n", done);
    list_dead();
    delayq_close(&q);
    return 0;
}
