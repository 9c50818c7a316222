/*
 * Uses a queue at random, for model.c: a few handles of each kind on one
 * socket. What the calls return does not matter here, nor what they deliver.
 */
#define DELAYQ_IMPLEMENTATION
#ifndef DELAYQ_HEADER
#define DELAYQ_HEADER "../../delayq.h"
#endif
#include DELAYQ_HEADER
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "model.h"

#define HANDLES 4

static delayq handles[HANDLES];
static delayq_options options[HANDLES];
static delayq_item items[8];
static delayq_ticket tickets[8];

static void offer(delayq *q, int big) {
    delayq_message m[4];
    char text[2000];
    int n = 1 + rand() % 4, i;
    memset(m, 0, sizeof m);
    memset(text, 'p', sizeof text);
    for (i = 0; i < n; i++) {
        m[i].data = text;
        m[i].len = (size_t)(rand() % (big ? 2000 : 20));
        m[i].delay_ms = rand() % 3 ? rand() % 30 : 0;
        if (rand() % 4) continue;
        m[i].key = rand() % 2 ? "k" : "key";
        m[i].key_ttl_ms = 1 + rand() % 200;
        m[i].replace = rand() % 2;
    }
    delayq_offer_many(q, m, (size_t)n);
    tickets[rand() % 8] = m[0].ticket;
}

static void lease(delayq *q) {
    delayq_item *item = &items[rand() % 8];
    size_t got = 0;
    switch (rand() % 6) {
    case 0: delayq_ack(q, item); break;
    case 1: delayq_nack(q, item, rand() % 20); break;
    case 2: delayq_extend(q, item, 20); break;
    case 3: delayq_bury(q, item); break;
    case 4: delayq_nack(q, item, DELAYQ_RELEASE); break;
    default: delayq_take_many(q, items, 1 + (size_t)rand() % 8, &got, 0);
    }
}

static void step(delayq *q) {
    delayq_counts counts;
    delayq_item peeked[8];
    delayq_dead dead[8];
    int64_t n;
    size_t got;
    switch (rand() % 16) {
    case 0:
    case 1:
    case 2:
    case 3: offer(q, rand() % 8 == 0); break;
    case 4:
    case 5:
        delayq_take(q, &items[rand() % 8], rand() % 3 ? 0 : rand() % 12);
        break;
    case 6:
    case 7:
    case 8: lease(q); break;
    case 9:
    case 10: delayq_tick(q, &n); break;
    case 11: delayq_cancel(q, &tickets[rand() % 8]); break;
    case 12: delayq_reschedule(q, &tickets[rand() % 8], rand() % 30); break;
    case 13: delayq_count(q, &counts); break;
    case 14:
        got = 0;
        if (rand() % 2)
            delayq_peek(q, peeked, 8, &got, NULL);
        else
            delayq_dead_peek(q, dead, 8, &got, 0);
        break;
    default:
        if (rand() % 4 == 0)
            delayq_dead_redrive(q, 8, &got);
        else if (rand() % 8 == 0)
            delayq_clear(q, &n);
        else if (rand() % 8 == 0)
            delayq_dead_clear(q, &n);
    }
}

void model_drive(const char *url, unsigned seed) {
    int kind = (int)(seed % 6), i, open[HANDLES] = {0};
    srand(seed);
    for (i = 0; i < HANDLES; i++) {
        delayq_options *o = &options[i];
        o->name = "q";
        o->url = url;
        o->batch = rand() % 3 ? 0 : 3;
        if (kind == 2) o->wire = DELAYQ_REDISSON;
        if (kind == 3) o->wire = DELAYQ_REDISSON_OLD;
        if (kind == 4) o->wire = DELAYQ_BROADCAST, o->broadcast_keep = 20;
        if (kind == 1 || (kind != 4 && kind != 0 && i % 2))
            o->lease_ms = 10 + rand() % 20;
        o->counters = (int)(seed / 6 + (unsigned)i) % 2;
        if (kind == 1) o->max_attempts = rand() % 2 ? 2 : 0;
        open[i] = delayq_open(&handles[i], o) == DELAYQ_OK;
    }
    for (i = 0; i < 150; i++) {
        int h = rand() % HANDLES;
        if (open[h]) step(&handles[h]);
    }
    for (i = 0; i < HANDLES; i++)
        if (open[i]) delayq_close(&handles[i]);
}
