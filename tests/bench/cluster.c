/*
 * Measure how work spreads over a cluster. The same items go through one queue,
 * through 24 queues, and through one queue under 24 names. The busiest node
 * limits the rate. Prints that node's share of the time that all nodes spend in
 * scripts, and the capacity of the cluster as a multiple of a single node's.
 *
 * Needs DELAYQ_URL: several hosts, separated by commas.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>

#define QUEUES 24
#define ITEMS 9600

static double work[8];
static int nodes;

/* Returns the busiest node's share of the time that all nodes have spent in
 * scripts since the last call. */
static double busiest(const char *url) {
    double sum = 0, most = 0;
    const char *p = strchr(url, '/') + 2;
    for (nodes = 0; p && nodes < 8; nodes++) {
        char host[64];
        double us = 0;
        redisContext *c;
        redisReply *r;
        const char *at;
        snprintf(host, sizeof host, "%.*s", (int)strcspn(p, ",:/"), p);
        c = redisConnect(host, atoi(p + strcspn(p, ":") + 1));
        r = (redisReply *)redisCommand(c, "INFO commandstats");
        at = strstr(r->str, "cmdstat_evalsha:");
        if (at) us = atof(strstr(at, "usec=") + 5);
        freeReplyObject(r);
        redisFree(c);
        sum += us - work[nodes];
        if (us - work[nodes] > most) most = us - work[nodes];
        work[nodes] = us;
        p = strchr(p, ',');
        if (p) p++;
    }
    return sum > 0 ? most / sum : 0;
}

static void die(delayq *q) {
    fprintf(stderr, "%s\n", delayq_errmsg(q));
    exit(1);
}

static void run(const char *title, const char *format, int queues,
                const char *url) {
    static delayq q[QUEUES];
    delayq_options o;
    delayq_item item;
    double share;
    int i;
    memset(&o, 0, sizeof o);
    o.url = url;
    for (i = 0; i < queues; i++) {
        char name[32];
        snprintf(name, sizeof name, format, i);
        o.name = name;
        if (delayq_open(&q[i], &o) != DELAYQ_OK) die(&q[i]);
    }
    busiest(url);
    for (i = 0; i < ITEMS; i++)
        if (delayq_offer(&q[i % queues], "x", 1, 0)) die(&q[i % queues]);
    for (i = 0; i < ITEMS; i++)
        if (delayq_take(&q[i % queues], &item, 20000)) die(&q[i % queues]);
    share = busiest(url);
    printf("  %-34s %5.0f %%  %9.1f\n", title, 100 * share, 1 / share);
    for (i = 0; i < queues; i++) delayq_close(&q[i]);
}

int main(void) {
    const char *url = getenv("DELAYQ_URL");
    if (!url || !strchr(url, ',')) {
        fprintf(stderr, "DELAYQ_URL: hosts of a cluster, by commas\n");
        return 1;
    }
    busiest(url);
    printf("over %d masters, %d items           busiest  times one\n", nodes,
           ITEMS);
    run("one queue", "jobs", 1, url);
    run("24 queues", "queue%d", QUEUES, url);
    run("one queue as 24: jobs{0} ...", "jobs{%d}", QUEUES, url);
    return 0;
}
