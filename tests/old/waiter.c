/*
 * waiter URL -- a consumer built with the header of version 0.1, for a test of
 * both versions on one queue. It takes from "jobs" for ever and pushes how late
 * each item was, in microseconds, into the list "old".
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

int main(int argc, char **argv) {
    static delayq q;
    delayq_options o;
    delayq_item item;
    redisContext *c;
    if (argc != 2 || strncmp(argv[1], "unix://", 7) != 0) return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    c = redisConnectUnix(argv[1] + 7);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = argv[1];
    o.max_wait_ms = 3600000;
    if (!c || c->err || delayq_open(&q, &o) != DELAYQ_OK) return 1;
    while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
        freeReplyObject(
            redisCommand(c, "RPUSH old %lld", (long long)item.late_us));
    fprintf(stderr, "%s\n", delayq_errmsg(&q));
    return 1;
}
