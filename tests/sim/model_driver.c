/*
 * A program that makes random calls on a queue, for model.c. It ignores their
 * results, and the items. All its handles connect to one Unix socket.
 */
#include <signal.h>
#include <string.h>
#include <unistd.h>
#include "../lua/scripts.h"
#include "model.h"

#define HANDLES 4

static delayq handles[HANDLES];
static delayq_options options[HANDLES];
static delayq_item items[8];
static delayq_ticket tickets[8];

static void offer(delayq *q, int big) {
    static char text[100000];
    delayq_message m[4];
    int n = 1 + rand() % 4, i;
    memset(m, 0, sizeof m);
    memset(text, 'p', sizeof text);
    for (i = 0; i < n; i++) {
        m[i].data = text;
        m[i].len = (size_t)(rand() % (big > 1 ? 100000 : big ? 2000 : 20));
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
    switch (rand() % 9) {
    case 5: delayq_ack_many(q, items, 1 + (size_t)rand() % 8); break;
    case 6:
    case 7: delayq_ack_take(q, item, rand() % 8); break;
    case 0: delayq_ack(q, item); break;
    case 1: delayq_nack(q, item, rand() % 20); break;
    case 2: delayq_extend(q, item, 20); break;
    case 3: delayq_bury(q, item, rand() % 2 ? "so" : NULL); break;
    case 4: delayq_nack(q, item, DELAYQ_RELEASE); break;
    default: delayq_take_many(q, items, 1 + (size_t)rand() % 8, &got, 0);
    }
}

static void step(delayq *q) {
    delayq_counts counts;
    delayq_item peeked[8];
    delayq_dead dead[8];
    int64_t n = 1700000000000 + rand() % 100;
    size_t got = 0;
    switch (rand() % 24) {
    case 0:
    case 1:
    case 2:
    case 3:
    case 4: offer(q, rand() % 8 ? 0 : rand() % 8 ? 1 : 2); break;
    case 5:
    case 6:
    case 7:
        delayq_take(q, &items[rand() % 8], rand() % 3 ? 0 : rand() % 12);
        break;
    case 8:
    case 9:
    case 10: lease(q); break;
    case 11:
    case 12:
    case 19:
    case 20: delayq_tick(q, &n); break;
    case 13: delayq_cancel(q, &tickets[rand() % 8]); break;
    case 14: delayq_reschedule(q, &tickets[rand() % 8], rand() % 30); break;
    case 15:
        if (rand() % 2)
            delayq_count(q, &counts);
        else
            delayq_count_due(q, &n, 1, &n);
        break;
    case 16:
        delayq_peek(q, peeked, 4, &got, NULL);
        if (got > 0) delayq_peek(q, peeked, 8, &got, &peeked[got - 1].ticket);
        break;
    case 17: delayq_dead_peek(q, dead, 8, &got, 0); break;
    case 18: delayq_dead_redrive(q, 8, &got); break;
    case 21: delayq_pause(q, rand() % 4 == 0); break; /* mostly not */
    case 22: delayq_cancel_key(q, rand() % 2 ? "k" : "key"); break;
    default:
        if (rand() % 4)
            delayq_clear(q, &n);
        else
            delayq_dead_clear(q, &n);
    }
}

/* Write random elements into the queue's keys, as other programs may do. */
static void litter(redisContext *c) {
    static const char *const scores[] = {
        "-5",  "0",    "1699999999990", "1700000000005.5",  "1700000000020.5",
        "inf", "-inf", "1700000000003", "9007199254740993", "-1700000000000"};
    static const char *const lists[] = {
        "q", "delayq_retry:{q}", "delayq_dead:{q}", "redisson_delay_queue:{q}"};
    int n = rand() % 24, i;
    for (i = 0; i < n; i++) {
        static const unsigned char ids[] = {16, 16, 16, 8, 0};
        unsigned char e[64] = {0};
        size_t at = ids[rand() % (rand() % 8 ? 3 : 5)], len = rand() % 12, k;
        redisReply *r;
        e[0] = (unsigned char)at;
        at = at ? at + 1 : 8;
        for (k = e[0] > 0; k < at; k++) e[k] = (unsigned char)rand();
        e[15] = 0; /* attempts */
        e[16] = rand() % 4 ? 0 : (unsigned char)(rand() % 2 ? 3 : 255);
        e[at] = (unsigned char)(len + (rand() % 16 == 0));
        at += 8 + len;
        if (rand() % 3)
            r = redisCommand(
                c, "ZADD redisson_delay_queue_timeout:{q} %s %b",
                scores[rand() % (int)(sizeof scores / sizeof *scores)], e, at);
        else
            r = redisCommand(c, "RPUSH %s %b",
                             lists[rand() % (rand() % 8 ? 3 : 4)], e, at);
        if (r) freeReplyObject(r);
    }
}

/* Offer more items than a search of the mirror visits from its beginning. */
static void offer_many(delayq *q) {
    static delayq_message m[1500];
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < 1500; i++) {
        m[i].data = &m[i];
        m[i].len = (size_t)(rand() % 30);
        m[i].delay_ms = rand() % 500;
    }
    delayq_offer_many(q, m, 1500);
    for (i = 0; i < 8; i++) tickets[i] = m[rand() % 1500].ticket;
}

/* Make the calls whose ops an outbox sends in mixed requests. */
static void set_and_cancel(delayq *q) {
    static delayq_ticket own[8];
    int n = rand() % 30;
    while (n-- > 0) {
        delayq_ticket *ticket = &own[rand() % 8];
        delayq_message m;
        memset(&m, 0, sizeof m);
        m.data = "m";
        m.len = 1;
        m.delay_ms = rand() % 60;
        if (rand() % 4 == 0) m.key = rand() % 2 ? "k" : "key";
        m.key_ttl_ms = 1 + rand() % 200;
        m.replace = rand() % 2;
        switch (rand() % 6) {
        case 0: delayq_cancel(q, ticket); break;
        case 1: delayq_reschedule(q, ticket, rand() % 60); break;
        case 2: delayq_cancel_key(q, rand() % 2 ? "k" : "key"); break;
        default:
            if (delayq_offer_message(q, &m) == DELAYQ_OK) *ticket = m.ticket;
        }
    }
}

/* Start a process that waits for items together with the other handles. */
static pid_t begin_waiter(delayq_options *o) {
    pid_t child = fork();
    if (child != 0) return child;
    srand((unsigned)getpid());
    alarm(20);
    o->outbox = NULL;
    if (delayq_open(&handles[0], o) == DELAYQ_OK)
        for (;;) {
            delayq_take(&handles[0], &items[0], 20000);
            if (rand() % 2) delayq_ack(&handles[0], &items[0]);
        }
    _exit(0);
}

void model_drive(const char *url, unsigned seed) {
    static char boxes[HANDLES][16384];
    int kind = (int)(seed % 6), i, open[HANDLES] = {0};
    pid_t waiters[4] = {0};
    srand(seed);
    if (seed % 4 == 3) {
        redisContext *c = redisConnectUnix(url + strlen("unix://"));
        if (c && !c->err) litter(c);
        if (c) redisFree(c);
    }
    for (i = 0; i < HANDLES; i++) {
        delayq_options *o = &options[i];
        o->name = "q";
        o->url = url;
        o->batch = rand() % 3 ? 0 : 3;
        if (kind == 2) o->wire = DELAYQ_REDISSON;
        if (kind == 3) o->wire = DELAYQ_REDISSON_OLD;
        if (kind == 4) {
            o->wire = DELAYQ_BROADCAST;
            o->broadcast_keep = 20;
            o->broadcast_after = rand() % 3 ? NULL : "";
        }
        if (kind == 1 || (kind != 4 && kind != 0 && i % 2))
            o->lease_ms = 10 + rand() % 20;
        if (kind != 4 && seed % 5 == 4 && i % 2) {
            o->outbox = boxes[i];
            o->outbox_size = sizeof boxes[i];
        }
        o->counters = (int)(seed / 6 + (unsigned)i) % 2;
        if (kind == 1) o->max_attempts = rand() % 2 ? 2 : 0;
        if (kind <= 1) o->max_late_ms = rand() % 2 ? 4 : 0;
        open[i] = delayq_open(&handles[i], o) == DELAYQ_OK;
    }
    if (seed % 8 == 5 && open[0]) offer_many(&handles[0]);
    for (i = 0; i < 4 && kind != 4 && seed % 5 == 2; i++)
        waiters[i] = begin_waiter(&options[i]);
    for (i = 0; i < 170; i++) {
        int h = rand() % HANDLES;
        if (i == 75 && waiters[0] > 0) kill(waiters[rand() % 4], SIGKILL);
        if (waiters[0] > 0) usleep(1000);
        if (open[h]) step(&handles[h]);
        if (open[h] && options[h].outbox && rand() % 4)
            set_and_cancel(&handles[h]);
        if (open[h] && options[h].outbox) delayq_flush(&handles[h], 100);
    }
    for (i = 0; i < 4; i++)
        if (waiters[i] > 0) kill(waiters[i], SIGKILL);
    for (i = 0; i < HANDLES; i++)
        if (open[i]) delayq_close(&handles[i]);
}

const char *model_script(size_t i, const char **sha) {
    if (i >= SCRIPTS) return NULL;
    *sha = all_scripts[i]->sha;
    return all_scripts[i]->name;
}
