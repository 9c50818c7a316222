/*
 * The plan of a seed: its actors, and its faults with their times. The plan is
 * made before the run. Each part has its own random numbers, so that leaving
 * out one part doesn't change the others.
 */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

plan sim_plan;
#if SIM_API < 2 /* later versions use functions that 0.1 does not have */
int plan_version = 0;
#else
int plan_version = 10;
#endif

/* --- chance -------------------------------------------------------------- */

uint64_t chance_next(chance *c) {
    uint64_t z = c->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

int64_t chance_between(chance *c, int64_t low, int64_t high) {
    if (high <= low) return low;
    return low + (int64_t)(chance_next(c) % (uint64_t)(high - low + 1));
}

int chance_percent(chance *c, int percent) {
    return chance_between(c, 0, 99) < percent;
}

/* Returns a random number. All orders of magnitude are equally likely. */
static int64_t scaled(chance *c, int64_t low, int64_t high) {
    int doublings = 0;
    while (low << (doublings + 1) <= high) doublings++;
    low <<= chance_between(c, 0, doublings);
    return chance_between(c, low, low * 2 > high ? high : low * 2);
}

/* --- the plan ------------------------------------------------------------ */

static const struct kind {
    const char *name;
    int weight;
    int connections; /* 1: it affects connections */
} kinds[FAULT_KINDS] = {
    {"latency", 6, 0},        {"stall", 10, 1},      {"cut", 10, 1},
    {"forget", 8, 1},         {"refuse", 6, 1},      {"silent", 6, 1},
    {"freeze-server", 10, 1}, {"crash", 10, 1},      {"power", 6, 1},
    {"failover", 8, 1},       {"loading", 5, 1},     {"busy", 6, 1},
    {"masterdown", 4, 1},     {"oom", 6, 1},         {"misconf", 4, 1},
    {"denied", 5, 1},         {"scripts", 5, 0},     {"flushall", 6, 0},
    {"kill", 6, 1},           {"kill-loop", 5, 1},   {"kill-pubsub", 5, 1},
    {"max-clients", 5, 1},    {"actor-kill", 12, 0}, {"actor-churn", 5, 0},
    {"actor-freeze", 12, 0},  {"actor-wake", 8, 0},  {"actor-clock", 5, 0},
    {"server-clock", 6, 0},   {"move", 0, 1},        {"garble", 0, 1},
    {"limit", 0, 1},
};

const char *fault_name(fault_kind kind) {
    return kinds[kind].name;
}

const char *actor_kind_name(actor_kind kind) {
    static const char *const all[] = {"producer",    "outbox-producer",
                                      "worker",      "batch-worker",
                                      "loop-worker", "outbox-worker",
                                      "waits",       "mover",
                                      "sharer",      "watcher",
                                      "redrive",     "reader",
                                      "pusher",      "java",
                                      "pauser",      "long",
                                      "stranger"};
    return all[kind];
}

/* Returns a random weight or percentage: 0, `usual`, or 1 to `most`. */
static int some_weight(chance *c, int usual, int most) {
    int what = (int)chance_between(c, 0, 9);
    if (what < 4) return 0;
    return what < 6 ? usual : (int)chance_between(c, 1, most);
}

/* Choose what the programs of this seed do, and how often. This has its own
 * random numbers, so it changes no other random choice. */
static void make_mix(uint64_t seed) {
    static const mix usual = {
        4,     3,  1,
        2,     25, 10,
        40,    6,  3,
        3,     3,  10,
        10,    1,  1,
        30,    60, 60,
        65536, 0,  {WORKER, WORKER, BATCH_WORKER, LOOP_WORKER, OUTBOX_WORKER}};
    static const int sizes[] = {8, 20, 60, 60, 300, 2000};
    static const int polls[] = {0, 0, 1000, 4000};
    plan *p = &sim_plan;
    mix *m = &p->mix;
    actor_kind some[4];
    chance c;
    int i, n = 0, all;
    *m = usual;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 13;
    if (plan_version < 2 || chance_percent(&c, 25)) return;
    m->plain = some_weight(&c, 4, 12);
    m->message = some_weight(&c, 3, 12);
    m->many = some_weight(&c, 1, 6);
    m->change = some_weight(&c, 2, 12);
    if (m->plain + m->message + m->many == 0) m->message = 1;
    m->keyed = some_weight(&c, 25, 100);
    m->due = some_weight(&c, 10, 100);
    m->replace = some_weight(&c, 40, 100);
    m->nack = some_weight(&c, 6, 30);
    m->backoff = some_weight(&c, 3, 30);
    m->release = some_weight(&c, 3, 30);
    m->bury = some_weight(&c, 3, 30);
    m->extend = some_weight(&c, 10, 60);
    all = m->nack + m->backoff + m->release + m->bury + m->extend;
    if (all > 60) { /* most items are acked */
        m->nack = m->nack * 60 / all;
        m->backoff = m->backoff * 60 / all;
        m->release = m->release * 60 / all;
        m->bury = m->bury * 60 / all;
        m->extend = m->extend * 60 / all;
    }
    m->cancel_key = some_weight(&c, 10, 40);
    m->reopen = some_weight(&c, 1, 5);
    m->flush = some_weight(&c, 1, 10);
    m->neighbour = some_weight(&c, 30, 100);
    m->ack_alone = (int)chance_between(&c, 0, 100);
    m->size = sizes[chance_between(&c, 0, 5)];
    m->outbox_size = (int)scaled(&c, 16384, 65536);
    m->poll_ms = polls[chance_between(&c, 0, 3)];
    for (i = 1; i < 5; i++)
        if (chance_percent(&c, 60)) some[n++] = usual.workers[i];
    if (n == 0) some[n++] = WORKER;
    for (i = 0; i < 5; i++) m->workers[i] = some[chance_between(&c, 0, n - 1)];
    p->wire = chance_percent(&c, 40)   ? DELAYQ_NATIVE
              : chance_percent(&c, 50) ? DELAYQ_REDISSON
                                       : DELAYQ_REDISSON_OLD;
    p->broadcast = p->wire == DELAYQ_NATIVE && chance_percent(&c, 20);
    p->queues = !p->broadcast && chance_percent(&c, 25) ? 2 : 1;
    p->lease_ms =
        !p->broadcast && chance_percent(&c, 60) ? scaled(&c, 200, 5000) : 0;
    p->max_attempts =
        p->lease_ms && p->wire == DELAYQ_NATIVE && chance_percent(&c, 40)
            ? (int)chance_between(&c, 1, 6)
            : 0;
    p->batch = (int)scaled(&c, 1, 1000);
    p->tracks_reads = chance_percent(&c, 50);
    p->evicts = chance_percent(&c, 5) ? (int)chance_between(&c, 1, 2) : 0;
    p->hosts = chance_percent(&c, 10);
}

static actor *add_actor(chance *c, actor_kind kind, int queue) {
    static const int timeouts[] = {500, 1000, 3000};
    static const int64_t takes[] = {0, 100, 1000, 5000, 12000, 30000, -1};
    plan *p = &sim_plan;
    actor *a;
    if (p->actor_count == MAX_ACTORS) return NULL;
    a = &p->actors[p->actor_count];
    memset(a, 0, sizeof *a);
    a->index = p->actor_count++;
    a->kind = kind;
    a->queue = queue;
    snprintf(a->name, sizeof a->name, "%s-%d", actor_kind_name(kind), a->index);
    a->seed = chance_next(c);
    a->gap_us = scaled(c, 20 * MS, 2 * SIM_SECOND);
    a->delay_ms = scaled(c, 50, 3000);
    a->take_ms = takes[chance_between(c, 1, 6)];
    a->work_us = chance_percent(c, 50) ? 0 : scaled(c, MS, 400 * MS);
    a->start_us = chance_between(c, 0, SIM_SECOND);
    a->loses = chance_percent(c, 50) ? 0 : (int)chance_between(c, 1, 10);
    a->large = chance_percent(c, 10) ? (int)chance_between(c, 1, 40) : 0;
    a->io_timeout_ms = timeouts[chance_between(c, 0, 2)];
    a->max_wait_ms = chance_percent(c, 30) ? 60000 : 0;
    /* Most actors have a machine of their own. */
    a->machine = p->machine_count && chance_percent(c, 30)
                     ? (int)chance_between(c, 0, p->machine_count - 1)
                     : p->machine_count++;
    if (kind == WATCHER || kind == REDRIVER)
        a->gap_us = chance_between(c, 300 * MS, 2 * SIM_SECOND);
    if (kind == OUTBOX_WORKER && chance_percent(c, 50)) a->gap_us = 0;
    if (kind == LOOP_WORKER || kind == SHARER) a->work_us /= 4;
    return a;
}

static int some_queue(chance *c) {
    return (int)chance_between(c, 0, sim_plan.queues - 1);
}

static void make_actors(chance *c) {
    plan *p = &sim_plan;
    int i, n, q;
    n = (int)chance_between(c, 1, 3);
    for (i = 0; i < n; i++)
        add_actor(c, chance_percent(c, 40) ? OUTBOX_PRODUCER : PRODUCER,
                  i < p->queues ? i : some_queue(c));
    if (p->broadcast) {
        n = (int)chance_between(c, 1, 4);
        for (i = 0; i < n; i++) add_actor(c, READER, 0);
        if (chance_percent(c, 50)) add_actor(c, MOVER, 0);
        return;
    }
    for (q = 0; q < p->queues; q++) {
        n = (int)chance_between(c, q == 0, 4);
        for (i = 0; i < n; i++)
            add_actor(c, p->mix.workers[chance_between(c, 0, 4)], q);
    }
    if (p->queues > 1)
        for (i = 0; i < 2; i++) add_actor(c, WAIT_WORKER, 0);
    if (chance_percent(c, 40)) { /* a crowd */
        int64_t work =
            chance_percent(c, 50) ? 0 : scaled(c, 100 * MS, 5 * SIM_SECOND);
        n = (int)chance_between(c, 3, 40);
        for (i = 0; i < n; i++) {
            actor *a = add_actor(c, WORKER, 0);
            if (!a) break;
            a->take_ms = chance_percent(c, 80) ? -1 : 12000;
            a->work_us = work;
        }
    }
    if (chance_percent(c, 30)) add_actor(c, MOVER, some_queue(c));
    if (chance_percent(c, 25)) add_actor(c, SHARER, some_queue(c));
    if (chance_percent(c, 30)) add_actor(c, WATCHER, some_queue(c));
    if (p->lease_ms && chance_percent(c, 60))
        add_actor(c, REDRIVER, some_queue(c));
    if (chance_percent(c, 30)) add_actor(c, PUSHER, some_queue(c));
    if (chance_percent(c, p->wire == DELAYQ_NATIVE ? 5 : 50) &&
        !p->max_attempts) {
        actor *a = add_actor(c, JAVA, some_queue(c));
        if (a) a->take_ms = chance_percent(c, 50);
    }
}

/* Add programs that pause queues, and let producers cancel keys. This has its
 * own random numbers, so it does not change the rest of a seed. */
static void make_pausers(uint64_t seed) {
#if SIM_API >= 3
    chance c;
    int i, n;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 7;
    n = chance_percent(&c, 80) ? 0 : (int)chance_between(&c, 1, 2);
    for (i = 0; i < n; i++) add_actor(&c, PAUSER, some_queue(&c));
    sim_plan.cancels = chance_percent(&c, 40);
#else
    (void)seed;
#endif
}

/* In some seeds the handles find the server by its name, by a sentinel or by a
 * cluster's redirections. Another machine may then become the master, and soon
 * afterwards the handles can find it. A handle with an outbox renews the
 * address of a name after 30 s, so the run is 40 s longer. */
static void make_names(uint64_t seed) {
    plan *p = &sim_plan;
    int i, moves, outboxes = 0;
    chance c;
    if (plan_version < 1) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 11;
    if (chance_percent(&c, 30) && !p->hosts) p->finds = BY_NAME;
    p->clears = chance_percent(&c, 10);
    moves = p->finds && chance_percent(&c, 50) ? (int)chance_between(&c, 1, 3)
                                               : 0;
    if (plan_version >= 7 && p->finds && seed % 3)
        p->finds = seed % 3 == 1 ? BY_SENTINEL : BY_CLUSTER;
    for (i = 0; i < moves && p->fault_count < MAX_FAULTS; i++) {
        fault *f = &p->faults[p->fault_count];
        f->index = p->fault_count++;
        f->kind = MOVE;
        f->at_us = chance_between(&c, SIM_SECOND, p->faults_until_us);
        f->amount = f->lasts_us = scaled(&c, 50 * MS, 3 * SIM_SECOND);
        f->actor = -1;
        f->seed = chance_next(&c);
        p->kinds |= 1u << MOVE;
    }
    for (i = 0; i < p->actor_count; i++)
        outboxes += p->actors[i].kind == OUTBOX_PRODUCER ||
                    p->actors[i].kind == OUTBOX_WORKER;
    if (moves == 0 || outboxes == 0 || p->end_us < p->offers_until_us) return;
    p->offers_until_us += 40 * SIM_SECOND;
    p->end_us += 40 * SIM_SECOND;
}

/* In one seed of 500, add a program that makes very many calls on its own queue
 * through one connection. Such a seed has a short latency and no faults. */
static void make_long(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    if (plan_version < 2 || seed % 500 != 250) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 17;
    add_actor(&c, LONG, LONG_QUEUE);
    p->fault_count = 0;
    p->kinds = 0;
    p->latency_us = scaled(&c, 50, 400);
    p->jitter_us = p->latency_us / 2;
    p->pieces = 0;
}

/* With versions 3 and 7 of the plan, change up to eight replies on their way in
 * 6 % of the seeds. */
static void make_garble(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    int i, n;
    if (plan_version != 3 && plan_version < 7) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 19;
    n = chance_percent(&c, 94) ? 0 : (int)scaled(&c, 1, 8);
    for (i = 0; i < n && p->fault_count < MAX_FAULTS; i++) {
        fault *f = &p->faults[p->fault_count];
        f->index = p->fault_count++;
        f->kind = GARBLE;
        f->at_us = chance_between(&c, SIM_SECOND, p->faults_until_us);
        f->lasts_us = 0;
        f->actor = -1;
        f->seed = chance_next(&c);
        p->kinds |= 1u << GARBLE;
    }
}

/* In one seed of 20, unless a round trip is long, the server refuses long
 * payloads for some time. */
static void make_limit(uint64_t seed) {
    plan *p = &sim_plan;
    fault *f = &p->faults[p->fault_count];
    chance c;
    int i;
    if (plan_version < 7 || p->latency_us >= 100 * MS ||
        p->fault_count == MAX_FAULTS)
        return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 37;
    if (!chance_percent(&c, 5)) return;
    f->index = p->fault_count++;
    f->kind = LIMIT;
    f->at_us = chance_between(&c, 0, p->faults_until_us / 2);
    f->lasts_us = chance_between(&c, SIM_SECOND, p->faults_until_us - f->at_us);
    f->amount = scaled(&c, 12000, 100000); /* all scripts are shorter */
    f->actor = -1;
    p->kinds |= 1u << LIMIT;
    for (i = 0; i < p->actor_count; i++)
        p->actors[i].large = (int)chance_between(&c, 1, 200);
    p->mix.outbox_size = 4 << 16; /* for payloads of up to a quarter of it */
}

/* Since version 8 of the plan: in half of the seeds in which payloads are too
 * long there is no other fault. In others an outbox has payloads that are
 * written in several parts, a worker waits for its outbox, calls nack or ack
 * twice, or opens its second handle again, and the URL names silent servers. */
static void make_variety(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    int i;
    if (plan_version < 8) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 41;
    p->waits = chance_percent(&c, 30);
    p->repeats = chance_percent(&c, 50) ? 0 : (int)chance_between(&c, 1, 30);
    p->reopens = chance_percent(&c, 70) ? 0 : (int)chance_between(&c, 1, 20);
    if (p->latency_us >= 100 * MS) return;
    if (p->kinds & 1u << LIMIT) {
        if (chance_percent(&c, 50)) return;
        p->faults[0] = p->faults[p->fault_count - 1];
        p->faults[0].index = 0;
        p->fault_count = 1;
        p->kinds = 1u << LIMIT;
        return;
    }
    if (!p->finds && !p->hosts && chance_percent(&c, 8))
        p->silent = (int)chance_between(&c, 1, 3);
    if (!chance_percent(&c, 5)) return;
    p->mix.outbox_size = (int)scaled(&c, 1 << 20, 4 << 20);
    for (i = 0; i < p->actor_count; i++)
        p->actors[i].large = (int)chance_between(&c, 1, 100);
}

/* Since version 9 of the plan: some programs with an outbox have long frames,
 * so that leases end before a take, or call several takes that may wait. */
static void make_frames(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    p->takes = 1;
    p->frame_us = 16 * MS;
    if (plan_version < 9) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 43;
    if (chance_percent(&c, 20)) p->takes = (int)chance_between(&c, 2, 20);
    if (p->lease_ms && chance_percent(&c, 10))
        p->frame_us = p->lease_ms * MS * chance_between(&c, 20, 200) / 100;
}

/* Since version 9 of the plan, in some seeds with leases there are no faults,
 * and producers offer up to 400 items at once. Most workers have an outbox, and
 * they nack often. */
static void make_bursts(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    int i;
    if (plan_version < 9 || p->broadcast || !p->lease_ms ||
        p->latency_us >= 100 * MS || p->mix.outbox_size >= 1 << 18)
        return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 47;
    if (!chance_percent(&c, 10)) return;
    p->bursts = (int)chance_between(&c, 100, 400);
    p->fault_count = 0;
    p->kinds = 0;
    p->mix.keyed = 0;
    p->mix.nack = (int)chance_between(&c, 20, 90);
    p->meddles = (int)chance_between(&c, 10, 80);
    for (i = 0; i < p->actor_count; i++) {
        actor *a = &p->actors[i];
        if ((a->kind != WORKER && a->kind != BATCH_WORKER) ||
            chance_percent(&c, 30))
            continue;
        a->kind = OUTBOX_WORKER;
        snprintf(a->name, sizeof a->name, "outbox-worker-%d", i);
    }
}

/* Choose how often a program calls another function before its next take. */
static void make_meddling(uint64_t seed) {
    chance c;
    if (plan_version < 4) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 23;
    sim_plan.meddles =
        chance_percent(&c, 50) ? 0 : (int)chance_between(&c, 1, 50);
}

/* Choose how often a worker cancels an offer of another program, and whether a
 * program uses another wire. */
static void make_strangers(uint64_t seed) {
    chance c;
    if (plan_version < 6) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 31;
    if (plan_version >= 7 && sim_plan.wire != DELAYQ_NATIVE && seed % 8 == 0 &&
        sim_plan.latency_us < 100 * MS)
        add_actor(&c, STRANGER, some_queue(&c));
    if (sim_plan.broadcast || chance_percent(&c, 50)) return;
    sim_plan.cancels_others = (int)chance_between(&c, 1, 30);
}

/* In one seed of ten, a round trip takes 0.2 to 2 s. All programs have an
 * io_timeout_ms of 5 s, and most outboxes share their connection. */
static void make_line(uint64_t seed) {
    plan *p = &sim_plan;
    chance c;
    int i;
    if (plan_version < 5) return;
    c.state = seed * UINT64_C(0x9e3779b97f4a7c15) + 29;
    if (!chance_percent(&c, 10)) return;
    p->latency_us = scaled(&c, 100 * MS, 900 * MS);
    p->jitter_us = chance_between(&c, 0, p->latency_us / 10);
    p->pieces = 0;
    p->hosts = 0; /* each host has only a share of connect_timeout_ms */
    if (p->lease_ms) p->lease_ms += 10 * p->latency_us / MS;
    p->mix.neighbour = 80;
    for (i = 0; i < p->actor_count; i++) p->actors[i].io_timeout_ms = 5000;
    p->faults_until_us += 20 * SIM_SECOND;
    p->offers_until_us += 20 * SIM_SECOND;
    p->end_us += 60 * SIM_SECOND;
}

static void make_faults(chance *c) {
    plan *p = &sim_plan;
    fault_kind of[4];
    int n = (int)chance_between(c, 0, 20), i, k, total = 0;
    n = n == 0 ? 0 : n < 9 ? 1 : n < 15 ? 2 : (int)chance_between(c, 3, 4);
    for (k = 0; k < FAULT_KINDS; k++) total += kinds[k].weight;
    for (i = 0; i < n; i++) {
        int at = (int)chance_between(c, 0, total - 1);
        for (k = 0; at >= kinds[k].weight; k++) at -= kinds[k].weight;
        of[i] = (fault_kind)k;
        p->kinds |= 1u << k;
    }
    if (!n) return;
    p->fault_count = (int)scaled(c, 1, 16);
    for (i = 0; i < p->fault_count; i++) {
        fault *f = &p->faults[i];
        memset(f, 0, sizeof *f);
        f->index = i;
        f->kind = of[chance_between(c, 0, n - 1)];
        f->at_us = chance_between(c, SIM_SECOND, p->faults_until_us);
        f->lasts_us = scaled(c, 50 * MS, 12 * SIM_SECOND);
        if (f->at_us + f->lasts_us > p->faults_until_us)
            f->lasts_us = p->faults_until_us - f->at_us;
        f->actor = chance_percent(c, 30)
                       ? -1
                       : (int)chance_between(c, 0, p->actor_count - 1);
        f->count = (int)scaled(c, 1, 16);
        f->seed = chance_next(c);
        switch (f->kind) {
        case LATENCY: f->amount = scaled(c, MS, 40 * MS); break;
        case CRASH:
        case POWER:
        case FAILOVER: /* changes of the last `amount` us are lost */
            f->amount =
                chance_percent(c, 50) ? 0 : scaled(c, 10 * MS, 2 * SIM_SECOND);
            if (f->amount > f->at_us) f->amount = f->at_us;
            break;
        case ACTOR_CLOCK:
        case SERVER_CLOCK:
            f->amount = scaled(c, MS, 7200 * SIM_SECOND);
            if (chance_percent(c, 50)) f->amount = -f->amount;
            break;
        case MAX_CLIENTS: f->amount = chance_between(c, 1, 10); break;
        default: break;
        }
    }
}

void plan_make(uint64_t seed, int64_t seconds) {
    plan *p = &sim_plan;
    chance c;
    memset(p, 0, sizeof *p);
    c.state = seed * UINT64_C(0x2545f4914f6cdd1d) + 1;
    p->seed = seed;
    p->wire = chance_percent(&c, 70)   ? DELAYQ_NATIVE
              : chance_percent(&c, 60) ? DELAYQ_REDISSON
                                       : DELAYQ_REDISSON_OLD;
    p->broadcast = p->wire == DELAYQ_NATIVE && chance_percent(&c, 8);
    p->queues = !p->broadcast && chance_percent(&c, 15) ? 2 : 1;
    if (!p->broadcast && chance_percent(&c, 55))
        p->lease_ms = chance_between(&c, 300, 3000);
    if (p->lease_ms && p->wire == DELAYQ_NATIVE && chance_percent(&c, 40))
        p->max_attempts = (int)chance_between(&c, 2, 6);
    p->backoff_ms = chance_between(&c, 50, 1000);
    p->backoff_max_ms = 2000;
    p->batch = chance_percent(&c, 70)   ? 100
               : chance_percent(&c, 50) ? (int)chance_between(&c, 1, 5)
                                        : 500;
    make_mix(seed);
#if SIM_API < 2
    p->reconnect_max_ms = 5000;
    (void)chance_between(&c, 200, 500);
#else
    p->reconnect_max_ms = (int)chance_between(&c, 200, 500);
#endif
#if SIM_API >= 2
    /* not from a random number, which would change the later ones */
    p->counters = seed % 3 == 1;
#endif
#if SIM_API >= 3
    if (seed % 7 == 1 && p->wire == DELAYQ_NATIVE && !p->broadcast) {
        chance late;
        late.state = seed;
        p->max_late_ms = scaled(&late, 5, 4000);
    }
#endif
    p->latency_us = scaled(&c, 50, 40 * MS);
    p->jitter_us = chance_between(&c, 0, p->latency_us / 2);
    p->pieces = chance_percent(&c, 20) ? (int)chance_between(&c, 10, 60) : 0;
    p->faults_until_us = chance_between(&c, 5, 25) * SIM_SECOND;
    p->offers_until_us =
        p->faults_until_us + chance_between(&c, 3, 8) * SIM_SECOND;
    p->end_us = p->offers_until_us + 14 * SIM_SECOND;
    if (seconds) p->end_us = seconds * SIM_SECOND;
    make_actors(&c);
    make_faults(&c);
    make_pausers(seed);
    make_names(seed);
    make_garble(seed);
    make_meddling(seed);
    make_line(seed);
    make_limit(seed);
    make_variety(seed);
    make_frames(seed);
    make_bursts(seed);
    make_strangers(seed);
    make_long(seed);
    /* With a denied command Redisson's scripts stop halfway. */
    if (p->kinds & 1u << DENIED) {
        int i;
        for (i = 0; i < p->actor_count; i++)
            if (p->actors[i].kind == JAVA) p->actors[i].dropped = 1;
    }
}

void plan_tell(void) {
    static const char *const wires[] = {"native", "Redisson", "old Redisson"};
    const plan *p = &sim_plan;
    const mix *m = &p->mix;
    int i;
    sim_tell(
        "seed %llu: %s%s%s, lease %lld ms, %d attempts, %lld ms late, "
        "batch %d, "
        "reconnect_max %d ms, latency %lld + %lld us, pieces %d %%; "
        "faults until %lld s, offers until %lld s, ends at %lld s",
        (unsigned long long)p->seed,
        wires[p->wire == DELAYQ_REDISSON_OLD ? 2 : p->wire == DELAYQ_REDISSON],
        p->broadcast ? ", broadcast" : "", p->counters ? ", counters" : "",
        (long long)p->lease_ms, p->max_attempts, (long long)p->max_late_ms,
        p->batch, p->reconnect_max_ms, (long long)p->latency_us,
        (long long)p->jitter_us, p->pieces,
        (long long)(p->faults_until_us / SIM_SECOND),
        (long long)(p->offers_until_us / SIM_SECOND),
        (long long)(p->end_us / SIM_SECOND));
    sim_tell(
        "offers %d plain, %d messages, %d of many, %d changes; %d %% keyed, "
        "%d %% due, %d %% replace; nack %d %%, backoff %d, release %d, bury "
        "%d, extend %d; cancel_key %d, reopen %d, flush %d, neighbour %d, "
        "ack alone %d, meddling %d, cancels of others %d; payloads up to %d, "
        "outbox %d, poll_ms %d; bursts of %d, %d takes, frames of %lld ms",
        m->plain, m->message, m->many, m->change, m->keyed, m->due, m->replace,
        m->nack, m->backoff, m->release, m->bury, m->extend, m->cancel_key,
        m->reopen, m->flush, m->neighbour, m->ack_alone, p->meddles,
        p->cancels_others, m->size, m->outbox_size, m->poll_ms,
        p->bursts, p->takes, (long long)(p->frame_us / MS));
    for (i = 0; i < p->actor_count; i++) {
        const actor *a = &p->actors[i];
        if (a->dropped) continue;
        sim_tell("actor a%d: %s, queue %d, machine %d, gap %lld ms, take %lld "
                 "ms, work %lld ms, io_timeout %d ms, max_wait %lld ms, "
                 "forgets %d %%, large %d per mille",
                 i, a->name, a->queue, a->machine, (long long)(a->gap_us / MS),
                 (long long)a->take_ms, (long long)(a->work_us / MS),
                 a->io_timeout_ms, (long long)a->max_wait_ms, a->loses,
                 a->large);
    }
    for (i = 0; i < p->fault_count; i++) {
        const fault *f = &p->faults[i];
        if (f->dropped) continue;
        sim_tell("fault f%d: %s at %lld ms for %lld ms, actor %d, count %d, "
                 "amount %lld",
                 i, fault_name(f->kind), (long long)(f->at_us / MS),
                 (long long)(f->lasts_us / MS), f->actor, f->count,
                 (long long)f->amount);
    }
}

int plan_has(actor_kind kind) {
    int i, n = 0;
    for (i = 0; i < sim_plan.actor_count; i++)
        n += sim_plan.actors[i].kind == kind;
    return n;
}

int plan_has_large(void) {
    int i, any = 0;
    for (i = 0; i < sim_plan.actor_count; i++) any |= sim_plan.actors[i].large;
    return any != 0;
}

int64_t plan_round_trip_us(void) {
    return 2 * (sim_plan.latency_us + sim_plan.jitter_us) +
           (sim_plan.pieces ? 4 * (sim_plan.latency_us + sim_plan.jitter_us)
                            : 0) +
           MS;
}

/* Returns how long a handle may need to find the server. After failures each
 * silent server gets up to a second. */
int64_t plan_search_us(void) {
    return 3 * sim_plan.silent * SIM_SECOND;
}

/* --- faults -------------------------------------------------------------- */

static int active;
static int64_t connections_us, other_us;
static int down;

int faults_quiet(void) {
    return active == 0;
}

int64_t faults_connections_us(void) {
    return connections_us;
}

int64_t faults_other_us(void) {
    return other_us;
}

/* Returns 1 if the fault kills, freezes or wakes actors while others go on. */
static int of_actors(const fault *f) {
    return f->kind == ACTOR_KILL || f->kind == ACTOR_FREEZE ||
           f->kind == ACTOR_CHURN || f->kind == ACTOR_WAKE;
}

static int hits(const fault *f, int machine_number) {
    return f->actor < 0 || sim_plan.actors[f->actor].machine == machine_number;
}

/* Returns 1 if a router has forgotten connections for good. Only the ping of an
 * idle subscriber, after 10 s, notices that. */
static int is_for_good(const fault *f) {
    return f->kind == FORGET && f->seed >> 24 & 1;
}

/* Returns how long a handle with an outbox may use a name's former address:
 * 30 s, plus 10 s for an attempt to connect that began before. */
static int64_t names_age_us(void) {
    int i;
    for (i = 0; i < sim_plan.actor_count; i++)
        if (sim_plan.actors[i].outbox) return 40 * SIM_SECOND;
    return 0;
}

static void heals_at(int64_t when) {
    if (when > connections_us) connections_us = when;
}

void faults_disconnect(void) {
    heals_at(sim_now());
}

/* Put the active faults into effect. */
static void apply(void) {
    static char denied[64];
    static const char *const commands[] = {
        " zadd ",    " client|tracking ", " subscribe ",
        " publish ", " rpush ",           " zrem ",
        " evalsha ", " pubsub|numsub ",   " zrange ",
        " lrange ",  " ltrim ",           " script|load ",
        " lpop ",    " client|setname ",  " exists ",
        " pexpire "};
    const plan *p = &sim_plan;
    redis_faults *r = redis_faults_of(sim_redis);
    int i, k, freeze = 0;
    memset(r, 0, sizeof *r);
    for (k = 0; service_node(k / p->machine_count); k++) {
        machine *server = service_node(k / p->machine_count);
        machine *m = p->machines[k % p->machine_count];
        route *to = net_route(m, server), *from = net_route(server, m);
        int stalled_to = 0, stalled_from = 0;
        net_connects how = NET_CONNECTS;
        /* a quarter of the machines are so near that calls poll for replies */
        int near = k % p->machine_count % 4 == 3;
        to->latency_us = from->latency_us = near ? 10 : p->latency_us;
        to->jitter_us = from->jitter_us = near ? 10 : p->jitter_us;
        to->pieces = from->pieces = p->pieces;
        for (i = 0; i < p->fault_count; i++) {
            const fault *f = &p->faults[i];
            if (!f->active || !hits(f, k % p->machine_count)) continue;
            if (f->kind == LATENCY) {
                to->latency_us = from->latency_us = f->amount;
                to->jitter_us = from->jitter_us = f->amount / 2;
            }
            if (f->kind == STALL) {
                int which = 1 + (int)(f->seed / 3 % 3);
                if (f->seed % 3 != 0) stalled_to = which;
                if (f->seed % 3 != 1) stalled_from = which;
            }
            if (f->kind == REFUSE) how = NET_REFUSES;
            if (f->kind == SILENT) how = NET_SILENT;
        }
        if (to->stalled != stalled_to || from->stalled != stalled_from) {
            to->stalled = stalled_to;
            from->stalled = stalled_from;
            net_heal(m, server);
        }
        net_connects_are(m, server, how);
    }
    for (i = 0; i < p->fault_count; i++) {
        const fault *f = &p->faults[i];
        if (!f->active) continue;
        switch (f->kind) {
        case LOADING:
            r->error = "LOADING Redis is loading the dataset in memory";
            break;
        case BUSY:
            r->error = "BUSY Redis is busy running a script. You can only "
                       "call SCRIPT KILL or SHUTDOWN NOSAVE.";
            break;
        case MASTERDOWN:
            r->error = "MASTERDOWN Link with MASTER is down and "
                       "replica-serve-stale-data is set to 'no'.";
            break;
        case OOM: r->out_of_memory = 1 + (int)(f->seed % 2); break;
        case MISCONF: r->no_persistence = 1; break;
        case FAILOVER: r->read_only = 1; break;
        case MAX_CLIENTS: r->max_clients = (int)f->amount; break;
        case DENIED:
            snprintf(denied, sizeof denied, "%s", commands[f->seed % 16]);
            r->denied = denied;
            r->closes = f->seed / 16 % 2 ? 0 : 1 + (int)(f->seed / 32 % 2);
            break;
        case LIMIT: r->longest_bulk = (int)f->amount; break;
        case FREEZE_SERVER: freeze = 1; break;
        default: break;
        }
    }
    if (!down) service_freeze(freeze);
}

static void save(void *arg) {
    fault *f = (fault *)arg;
    if (f->image) return;
    f->image = redis_save(sim_redis);
    f->image_us = sim_now();
}

static void restart_server(fault *f) {
    save(f);
    redis_restart(sim_redis, f->image);
    java_lost();
    check_crash(f->image_us);
}

static int64_t kill_second;
static uint64_t kills_then, kills_now;

static void kill_clock(void) {
    int64_t second = sim_now() / SIM_SECOND;
    if (second == kill_second) return;
    kills_then = second == kill_second + 1 ? kills_now : 0;
    kills_now = 0;
    kill_second = second;
}

static void note_kill(void) {
    kill_clock();
    kills_now++;
}

uint64_t faults_kills(void) {
    kill_clock();
    return kills_then + kills_now;
}

static void finish(void *arg);

static void again(void *arg) {
    fault *f = (fault *)arg;
    chance c;
    if (!f->active) return;
    c.state = f->seed + (uint64_t)sim_now();
    if (f->kind == KILL_LOOP || f->kind == KILL_PUBSUB) {
        service_kill(f->kind == KILL_PUBSUB ? SUBSCRIBED : ALL_CLIENTS);
        if (f->kind == KILL_LOOP) note_kill();
        sim_at(sim_now() +
                   chance_between(&c, MS,
                                  f->kind == KILL_PUBSUB ? 15 * MS : 60 * MS),
               again, f);
    } else if (f->kind == SCRIPTS) {
        const char *argv[2] = {"SCRIPT", "FLUSH"};
        size_t lens[2] = {6, 5}, n;
        redis_command(sim_redis, &n, 2, argv, lens);
        sim_at(sim_now() + chance_between(&c, MS, 60 * MS), again, f);
    } else { /* ACTOR_CHURN */
        int i, n = 0;
        for (i = 0; i < sim_plan.actor_count; i++)
            n += sim_plan.actors[i].kind == WORKER;
        n = (int)chance_between(&c, 0, n ? n - 1 : 0);
        for (i = 0; i < sim_plan.actor_count; i++) {
            actor *a = &sim_plan.actors[i];
            if (a->kind != WORKER || n-- > 0 || a->dropped) continue;
            actor_kill(a);
            a->start_us = sim_now();
            actor_start(a);
            check_woke();
            break;
        }
        sim_at(sim_now() + chance_between(&c, MS, 40 * MS), again, f);
    }
}

/* A fault that strikes exactly at a system call of an actor. */
typedef struct ambush {
    fault *f;
    actor *a;
    int life;
} ambush;

static void sprung(void *arg) {
    ambush *b = (ambush *)arg;
    actor *a = b->a;
    fault *f = b->f;
    int life = b->life;
    free(b);
    if (!f->active || a->life != life || !a->alive) return;
    if (f->kind == CUT) {
        net_cut(a->m, sim_server);
        finish(f);
    } else if (f->kind == ACTOR_FREEZE) {
        TELL("%s freezes", a->name);
        actor_freeze(a, 1);
    } else if (f->kind == ACTOR_WAKE) {
        actor_wake(a);
    } else {
        TELL("%s is killed", a->name);
        actor_kill(a);
    }
    check_woke();
}

static int lie_in_wait(fault *f, actor *a) {
    ambush *b;
    if (!a->p || !a->alive || a->frozen) return 0;
    b = (ambush *)malloc(sizeof *b);
    b->f = f;
    b->a = a;
    b->life = a->life;
    process_at_call(a->p, (int)(f->seed >> 8) % 30 + 1, sprung, b);
    return 1;
}

static void each_actor(fault *f, int on) {
    int i;
    for (i = 0; i < f->count; i++) {
        int n = (f->actor < 0 ? 0 : f->actor) + i;
        actor *a;
        if (n >= sim_plan.actor_count) break;
        a = &sim_plan.actors[n];
        if (a->dropped || !a->m) continue;
        if (f->kind == ACTOR_WAKE) {
            if (on && !(f->seed & 4 && lie_in_wait(f, a))) actor_wake(a);
        } else if (on && f->seed & 4 && lie_in_wait(f, a)) {
            continue;
        } else if (f->kind == ACTOR_KILL) {
            if (on) {
                TELL("%s is killed", a->name);
                actor_kill(a);
            } else if (!a->alive) {
                TELL("%s is started again", a->name);
                a->start_us = sim_now();
                actor_start(a);
            }
        } else {
            TELL("%s %s", a->name, on ? "freezes" : "thaws");
            actor_freeze(a, on);
        }
    }
    check_woke();
}

static void finish(void *arg) {
    fault *f = (fault *)arg;
    if (!f->active) return;
    f->active = 0;
    TELL("--- %s (f%d) is over", fault_name(f->kind), f->index);
    switch (f->kind) {
    case FORGET:
        if (!is_for_good(f)) net_tell_truth();
        break;
    case POWER:
        down = 0;
        machine_boot(sim_server);
        service_open();
        net_tell_truth();
        break;
    case CRASH:
        down = 0;
        service_open();
        break;
    case FAILOVER:
        if (down) break;
        service_shut();
        restart_server(f);
        service_open();
        break;
    case MOVE:
        if (f->slot_moves) {
            service_move(OLD_FOLLOWS);
            check_clock_set();
        }
        service_name_master();
        net_tell_truth();
        break;
    case ACTOR_KILL:
    case ACTOR_WAKE:
    case ACTOR_FREEZE: each_actor(f, 0); break;
    default: break;
    }
    apply();
    if (!of_actors(f)) active--;
    if (kinds[f->kind].connections)
        heals_at(is_for_good(f)    ? f->at_us + 14 * SIM_SECOND
                 : f->kind == MOVE ? sim_now() + names_age_us()
                                   : sim_now());
    else if (!of_actors(f))
        other_us = sim_now();
}

static void strike(void *arg) {
    fault *f = (fault *)arg;
    plan *p = &sim_plan;
    int k, waits = 0;
    if (down && (f->kind == CRASH || f->kind == POWER || f->kind == FAILOVER ||
                 f->kind == FREEZE_SERVER || f->kind == FLUSH))
        return;
    if (!service_is_open() && (f->kind == CRASH || f->kind == POWER ||
                               f->kind == FAILOVER || f->kind == MOVE))
        return; /* the server is frozen */
    TELL("--- %s (f%d) for %lld ms, actor %d, amount %lld", fault_name(f->kind),
         f->index, (long long)(f->lasts_us / MS), f->actor,
         (long long)f->amount);
    f->active = 1;
    if (!of_actors(f)) active++;
    switch (f->kind) {
    case CUT:
    case FORGET:
        if (f->kind == CUT && f->seed & 4 && f->actor >= 0) {
            waits = lie_in_wait(f, &p->actors[f->actor]);
            if (waits) {
                sim_at(sim_now() + f->lasts_us, finish, f);
                break;
            }
        }
        for (k = 0; k < p->machine_count; k++) {
            machine *m = p->machines[k];
            if (!hits(f, k)) continue;
            if (f->kind == CUT)
                net_cut(m, sim_server);
            else
                net_forget(m, sim_server,
                           f->seed % 3 == 0   ? m
                           : f->seed % 3 == 1 ? sim_server
                                              : NULL,
                           f->seed >> 25 & 1);
        }
        break;
    case CRASH:
        down = 1;
        service_shut();
        restart_server(f);
        break;
    case POWER:
        down = 1;
        machine_crash(sim_server);
        service_forget();
        restart_server(f);
        break;
    case MOVE:
        f->slot_moves = p->finds == BY_CLUSTER && f->seed / 3 % 2;
        if (f->slot_moves)
            service_migrate();
        else
            service_move((service_end_of)(f->seed % 3));
        check_clock_set();
        break;
    case FAILOVER: /* the server is read-only until there is a new master */
        save(f);
        break;
    case FLUSH: {
        const char *argv[1] = {"FLUSHALL"};
        size_t len = 8, n;
        redis_command(sim_redis, &n, 1, argv, &len);
        check_crash(0);
        break;
    }
    case KILL:
        service_kill(f->seed % 2         ? SUBSCRIBED
                     : f->seed >> 20 & 1 ? UNSUBSCRIBED
                                         : ALL_CLIENTS);
        break;
    case GARBLE: service_garble(f->seed); break;
    case KILL_LOOP:
    case KILL_PUBSUB:
    case SCRIPTS:
    case ACTOR_CHURN: again(f); break;
    case ACTOR_KILL:
    case ACTOR_WAKE:
    case ACTOR_FREEZE: each_actor(f, 1); break;
    case ACTOR_CLOCK: {
        machine *m =
            p->machines[p->actors[f->actor < 0 ? 0 : f->actor].machine];
        machine_set_clock(m, f->amount);
        machine_drift(m, (int)(f->seed % 1001) - 500);
        break;
    }
    case SERVER_CLOCK:
        machine_set_clock(sim_server, f->amount);
        machine_drift(sim_server, (int)(f->seed % 401) - 200);
        check_clock_set();
        break;
    default: break;
    }
    apply();
    /* These faults last only for a moment. */
    if (f->kind == CUT && waits) return;
    if (f->kind == CUT || f->kind == FLUSH || f->kind == KILL ||
        f->kind == GARBLE || f->kind == ACTOR_CLOCK || f->kind == SERVER_CLOCK)
        finish(f);
    else
        sim_at(sim_now() + f->lasts_us, finish, f);
}

void faults_begin(void) {
    int i;
    active = down = 0;
    connections_us = other_us = 0;
    kill_second = 0;
    kills_then = kills_now = 0;
    apply();
    for (i = 0; i < sim_plan.fault_count; i++) {
        fault *f = &sim_plan.faults[i];
        if (f->dropped) continue;
        if ((f->kind == CRASH || f->kind == POWER || f->kind == FAILOVER) &&
            f->amount)
            sim_at(f->at_us - f->amount, save, f);
        sim_at(f->at_us, strike, f);
    }
}

/* --- a run --------------------------------------------------------------- */

/* Leave out the actors and faults that `drop` names, such as "a3,f1,f2". */
static void drop_some(const char *drop) {
    while (drop && *drop) {
        int n = atoi(drop + 1);
        if (*drop == 'a' && n < sim_plan.actor_count)
            sim_plan.actors[n].dropped = 1;
        if (*drop == 'f' && n < sim_plan.fault_count)
            sim_plan.faults[n].dropped = 1;
        drop = strchr(drop, ',');
        if (drop) drop++;
    }
}

uint64_t sim_last_hash;

int sim_run_seed(uint64_t seed, int64_t seconds, const char *drop) {
    plan *p = &sim_plan;
    int i;
    sim_begin(seed);
    plan_make(seed, seconds);
    drop_some(drop);
    service_begin();
    check_begin();
    for (i = 0; i < p->machine_count; i++) {
        char name[32], address[32];
        snprintf(name, sizeof name, "m%d", i);
        snprintf(address, sizeof address, "10.0.1.%d", i + 1);
        p->machines[i] = machine_new(name, address);
    }
    for (i = 0; i < p->actor_count; i++)
        p->actors[i].m = p->machines[p->actors[i].machine];
    faults_begin();
    if (sim_tells) plan_tell();
    for (i = 0; i < p->actor_count; i++)
        if (!p->actors[i].dropped) actor_start(&p->actors[i]);
    sim_run(p->end_us);
    if (!check_failed[0]) check_end_of_run();
    if (!check_failed[0]) actors_leave();
    sim_last_hash = sim_hash();
    actors_end();
    service_end();
    for (i = 0; i < p->fault_count; i++)
        if (p->faults[i].image) redis_image_free(p->faults[i].image);
    sim_end();
    check_free();
    return check_failed[0] != '\0';
}
