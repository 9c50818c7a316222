/*
 * A machine that runs the cron recipe with shorter minutes. It records in Redis
 * how many seconds its clock is ahead (ahead:NAME), the times of its offers
 * (rounds), and the minutes that it has run (runs, attempts). The machine named
 * "dies" kills itself between its first take and the offer.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static redisContext *c;
static int dies;
static delayq q;
static delayq_item item;

static redisReply *must(void *reply) {
    redisReply *r = (redisReply *)reply;
    if (!r || r->type == REDIS_REPLY_ERROR) exit(1);
    return r;
}

static delayq_status counted(delayq *handle, delayq_counts *counts) {
    delayq_status status;
    if (dies && item.len > 0) {
        must(redisCommand(c, "SET lost %b", item.data, item.len));
        kill(getpid(), SIGKILL);
    }
    status = delayq_count(handle, counts);
    return status;
}

/* Offer a message. If it is stored, record the time in Redis. */
static delayq_status offered(delayq *handle, delayq_message *m,
                             const delayq_counts *counts) {
    delayq_status status = delayq_offer_message(handle, m);
    if (status == DELAYQ_OK)
        freeReplyObject(must(
            redisCommand(c, "RPUSH rounds %lld", (long long)counts->now_ms)));
    return status;
}

static void ran(int len, const char *data) {
    freeReplyObject(must(redisCommand(c, "HSET attempts %b %d", data,
                                      (size_t)len, item.attempt)));
    freeReplyObject(must(redisCommand(c, "RPUSH runs %b", data, (size_t)len)));
}

int main(int argc, char **argv) {
    delayq_options options = {0};
    const char *name = argc > 1 ? argv[1] : "";
    redisReply *r;
    options.url = getenv("DELAYQ_URL");
    c = options.url ? redisConnectUnix(options.url + strlen("unix://")) : NULL;
    if (!c || c->err) return 1;
    dies = strcmp(name, "dies") == 0;
    r = must(redisCommand(c, "TIME"));
    freeReplyObject(
        must(redisCommand(c, "SET ahead:%s %lld", name,
                          (long long)time(NULL) - atoll(r->element[0]->str))));
    freeReplyObject(r);
#define printf(format, len, data) ran(len, data)
#define delayq_count counted
#define delayq_offer_message(handle, m) offered(handle, m, &counts)
#include "piece-cron.h"
}
