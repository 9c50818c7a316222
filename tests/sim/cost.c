/*
 * The exact cost of delayq for the server and the line: commands, bytes and
 * round trips. The header and the real hiredis run in the simulated world, so
 * every run has the same counts.
 *
 *     cost FILE          prints the table, and compares it with FILE
 *     cost FILE --write  writes FILE
 *
 * Exits with 1 if a figure is above the one in FILE, with 0 otherwise. The
 * server answers at once, and a round trip takes 20 ms.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "redis.h"
#include "world.h"
#include "../../delayq.h"

#define ONE_WAY_US 10000
#define ROUND_TRIP_US (2 * ONE_WAY_US)
#define SECOND SIM_SECOND
#define FIGURES 6

static const char *const titles[FIGURES] = {
    "commands", "in scripts", "bytes out", "bytes in", "round trips", "waited"};
static const char heading[] =
    "# `make cost` prints this table and fails if a figure rises; `make cost\n"
    "# WRITE=1` writes it. Of each item, call or hour:\n"
    "#\n"
    "#     commands      commands that the programs send\n"
    "#     in scripts    commands that the scripts call in the server\n"
    "#     bytes out     bytes to the server, without TCP/IP\n"
    "#     bytes in      bytes from the server\n"
    "#     round trips   how often a connection sends something; what is sent\n"
    "#                   at the same moment counts once\n"
    "#     waited        round trips for which the caller waits, those of TCP\n"
    "#                   included; `-` if the time depends on something else\n";

/* --- what is counted ----------------------------------------------------- */

static int counting;
static double counts[FIGURES]; /* in the order of titles */
static int64_t waited_us;      /* time for which the caller has waited */

/* --- the server ---------------------------------------------------------- */

typedef struct session {
    net_link *link;
    client *c;
    int counted;     /* 0: a connection of the process "other" */
    int64_t sent_us; /* time of its last bytes to the server */
} session;

static machine *server, *here;
static redis *store;

static int64_t now_us(void *arg) {
    (void)arg;
    return machine_realtime(server);
}

static void executed(void *arg, client *by, int argc, const char **argv,
                     const size_t *lens) {
    (void)arg, (void)by, (void)argc, (void)argv, (void)lens;
}

static void answered(void *arg, client *by, const char *command, int calls,
                     int64_t work) {
    session *s = by ? (session *)client_user(by) : NULL;
    (void)arg, (void)command, (void)work;
    if (!counting || !s || !s->counted) return;
    counts[0]++;
    counts[1] += calls;
}

static void client_write(void *user, const char *bytes, size_t len) {
    session *s = (session *)user;
    if (counting && s->counted) counts[3] += (double)len;
    if (s->link) link_write(s->link, bytes, len);
}

static void client_close(void *user) {
    session *s = (session *)user;
    s->c = NULL;
    if (s->link) link_close(s->link);
    s->link = NULL;
}

static void *accepted(void *service, net_link *l) {
    session *s = (session *)calloc(1, sizeof *s);
    (void)service;
    s->link = l;
    s->counted = strcmp(process_name(link_process(l)), "other") != 0;
    s->sent_us = -1;
    s->c = redis_connect(store, client_write, client_close, s);
    return s;
}

static void received(void *of, const char *bytes, size_t len) {
    session *s = (session *)of;
    if (counting && s->counted) {
        counts[2] += (double)len;
        counts[4] += s->sent_us != sim_now();
        s->sent_us = sim_now();
    }
    if (s->c) redis_feed(s->c, bytes, len);
}

static void closed(void *of) {
    session *s = (session *)of;
    if (s->c) redis_disconnect(s->c);
    s->c = NULL;
    s->link = NULL;
}

static const net_service service = {accepted, received, closed};

/* --- calls --------------------------------------------------------------- */

static const char *scenario; /* the scenario that runs */

static void check(delayq *q, delayq_status status, int line) {
    if (status == DELAYQ_OK) return;
    printf("FAIL %s: line %d: %s: %s\n", scenario, line,
           delayq_strstatus(status), delayq_errmsg(q));
    fflush(stdout);
    exit(1);
}

#define OK(call) check(q, (call), __LINE__)
/* Make a call, and count the time for which the caller waits. */
#define TIMED(call)                    \
    do {                               \
        int64_t before_us = sim_now(); \
        OK(call);                      \
        waited(before_us);             \
    } while (0)

static void waited(int64_t since_us) {
    if (counting) waited_us += sim_now() - since_us;
}

static delayq *opened(int64_t lease_ms, size_t outbox) {
    delayq *q = (delayq *)calloc(1, sizeof *q);
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = "redis://10.0.0.1:6379";
    o.lease_ms = lease_ms;
    if (outbox) {
        o.outbox = malloc(outbox);
        o.outbox_size = outbox;
    }
    OK(delayq_open(q, &o));
    return q;
}

static const char payload[] = "a payload of 32 bytes, as usual.";
#define LEN (sizeof payload - 1)

static void offer_many(delayq *q, int64_t delay_ms) {
    delayq_message m[100];
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < 100; i++) {
        m[i].data = payload;
        m[i].len = LEN;
        m[i].delay_ms = delay_ms;
    }
    OK(delayq_offer_many(q, m, 100));
}

/* Sleep until the handle has learned of all items, then begin to count. The
 * server must have all scripts already. */
static void begins(void) {
    process_sleep(SECOND);
    memset(counts, 0, sizeof counts);
    waited_us = 0;
    counting = 1;
}

static void ends(void) {
    counting = 0;
    sim_stop();
}

static delayq_item item, items[1000];
static delayq_message message, messages[1000];

/* Offer, take and ack with another handle, so the server has the scripts. */
static void load_scripts(void) {
    delayq *q = opened(60000, 0);
    size_t n;
    offer_many(q, 0);
    OK(delayq_offer(q, payload, LEN, 0));
    process_sleep(SECOND / 10);
    OK(delayq_take_many(q, items, 100, &n, 1000));
    OK(delayq_ack_many(q, items, n));
    OK(delayq_take(q, &item, 1000));
    OK(delayq_nack(q, &item, 0));
    process_sleep(SECOND / 10);
    OK(delayq_take(q, &item, 1000));
    OK(delayq_extend(q, &item, 0));
    OK(delayq_ack_take(q, &item, 0) == DELAYQ_EMPTY ? DELAYQ_OK
                                                    : DELAYQ_ERR_PROTOCOL);
    delayq_close(q);
    free(q);
    q = opened(0, 0);
    offer_many(q, 0);
    OK(delayq_offer(q, payload, LEN, 0));
    process_sleep(SECOND / 10);
    OK(delayq_take_many(q, items, 100, &n, 1000));
    OK(delayq_take(q, &item, 1000));
    delayq_close(q);
    free(q);
}

/* --- the scenarios ------------------------------------------------------- */

static void offer(void *arg) {
    delayq *q;
    int i;
    (void)arg;
    load_scripts();
    q = opened(0, 0);
    OK(delayq_offer(q, payload, LEN, 3600000));
    begins();
    for (i = 0; i < 10; i++) {
        TIMED(delayq_offer(q, payload, LEN, 3600000));
    }
    ends();
}

/* Offer an item an hour after the last call. */
static void lone(void *arg) {
    delayq *q;
    (void)arg;
    load_scripts();
    q = opened(0, 0);
    OK(delayq_offer(q, payload, LEN, 3600000));
    begins();
    process_sleep(3600 * SECOND);
    TIMED(delayq_offer(q, payload, LEN, 3600000));
    ends();
}

static void offers_key(void *arg) {
    delayq *q;
    char key[16];
    int i, round;
    (void)arg;
    load_scripts();
    q = opened(0, 0);
    for (round = 0; round < 2; round++) {
        if (round) begins();
        for (i = 0; i < 10; i++) {
            memset(&message, 0, sizeof message);
            message.data = payload;
            message.len = LEN;
            message.delay_ms = 3600000;
            snprintf(key, sizeof key, "key-%05d", round * 10 + i);
            message.key = key;
            message.key_ttl_ms = 60000;
            TIMED(delayq_offer_message(q, &message));
        }
    }
    ends();
}

static void offers_100(void *arg) {
    delayq *q;
    int i;
    int64_t before_us;
    (void)arg;
    load_scripts();
    q = opened(0, 0);
    offer_many(q, 3600000);
    begins();
    before_us = sim_now();
    for (i = 0; i < 10; i++) offer_many(q, 3600000);
    waited(before_us);
    ends();
}

/* Take 60 due items. acks: 0 none, 1 with delayq_ack, 2 with ack_take. */
static void takes(int64_t lease_ms, int acks) {
    delayq *q;
    int i;
    load_scripts();
    q = opened(lease_ms, 0);
    offer_many(q, 0);
    process_sleep(SECOND);
    for (i = 0; i < 60; i++) {
        if (i == 40) begins(); /* count from the middle of the burst */
        if (i == 0 || acks != 2) {
            TIMED(delayq_take(q, &item, 1000));
        } else {
            TIMED(delayq_ack_take(q, &item, 1000));
        }
        if (acks == 1) TIMED(delayq_ack(q, &item));
    }
    ends();
}
static void take(void *arg) {
    (void)arg;
    takes(0, 0);
}
static void lease_ack(void *arg) {
    (void)arg;
    takes(60000, 1);
}
static void ack_take(void *arg) {
    (void)arg;
    takes(60000, 2);
}

/* Make calls with 100 items. */
static void batches(int64_t lease_ms) {
    delayq *q;
    int i;
    size_t n;
    load_scripts();
    q = opened(lease_ms, 0);
    for (i = 0; i < 11; i++) offer_many(q, 0);
    process_sleep(SECOND);
    for (i = 0; i < 11; i++) {
        if (i == 1) begins();
        TIMED(delayq_take_many(q, items, 100, &n, 1000));
        if (n != 100) check(q, DELAYQ_ERR_PROTOCOL, __LINE__);
        if (lease_ms) TIMED(delayq_ack_many(q, items, 100));
    }
    ends();
}
static void take_100(void *arg) {
    (void)arg;
    batches(0);
}
static void lease_ack_100(void *arg) {
    (void)arg;
    batches(60000);
}

/* Make calls with as many items as one script handles. */
static void most(int takes, int keys) {
    static char names[200][16];
    delayq *q;
    int round, i, count = keys ? 200 : 1000;
    size_t n;
    load_scripts();
    q = opened(takes ? 60000 : 0, 0);
    for (round = 0; round < 2; round++) {
        memset(messages, 0, sizeof messages);
        for (i = 0; i < count; i++) {
            messages[i].data = payload;
            messages[i].len = LEN;
            messages[i].delay_ms = takes ? 0 : 3600000;
            if (!keys) continue;
            snprintf(names[i], sizeof names[i], "key-%d-%03d", round, i);
            messages[i].key = names[i];
            messages[i].key_ttl_ms = 60000;
        }
        if (round && !takes) begins();
        TIMED(delayq_offer_many(q, messages, (size_t)count));
        if (!takes) continue;
        process_sleep(SECOND);
        if (round && takes == 1) begins();
        TIMED(delayq_take_many(q, items, 1000, &n, 1000));
        if (n != 1000) check(q, DELAYQ_ERR_PROTOCOL, __LINE__);
        if (round && takes == 1) ends();
        if (round && takes == 2) begins();
        TIMED(delayq_ack_many(q, items, 500));
        if (round && takes == 2) ends();
        OK(delayq_ack_many(q, items + 500, 500));
    }
    ends();
}
static void offers_1000(void *arg) {
    (void)arg;
    most(0, 0);
}
static void offers_200(void *arg) {
    (void)arg;
    most(0, 1);
}
static void takes_1000(void *arg) {
    (void)arg;
    most(1, 0);
}
static void acks_500(void *arg) {
    (void)arg;
    most(2, 0);
}

static void nacks(void *arg) {
    delayq *q;
    int i;
    (void)arg;
    load_scripts();
    q = opened(60000, 0);
    for (i = 0; i < 20; i++) {
        if (i == 10) begins();
        counting = 0;
        OK(delayq_offer(q, payload, LEN, 0));
        OK(delayq_take(q, &item, 1000));
        counting = i >= 10;
        TIMED(delayq_nack(q, &item, 3600000));
    }
    ends();
}

/* Make a call 10 times, each with 101 items in the queue, among them `message`.
 * Before, make it 10 times without counting, since this loads its scripts. */
static void among_100(int64_t delay_ms, int ticks,
                      delayq_status (*call)(delayq *)) {
    delayq *q;
    int i;
    load_scripts();
    q = opened(0, 0);
    for (i = 0; i < 20; i++) {
        if (i == 10) begins();
        counting = 0;
        OK(delayq_clear(q, NULL));
        memset(&message, 0, sizeof message);
        message.data = payload;
        message.len = LEN;
        message.delay_ms = delay_ms;
        OK(delayq_offer_message(q, &message));
        offer_many(q, delay_ms);
        process_sleep(SECOND / 10);
        if (ticks) OK(delayq_tick(q, NULL));
        counting = i >= 10;
        TIMED(call(q));
    }
    ends();
}
static delayq_status cancel(delayq *q) {
    return delayq_cancel(q, &message.ticket);
}
static delayq_status reschedule(delayq *q) {
    return delayq_reschedule(q, &message.ticket, 1000);
}
static delayq_status tick(delayq *q) {
    return delayq_tick(q, NULL);
}
static delayq_status take_one(delayq *q) {
    return delayq_take(q, &item, 0);
}
static delayq_status count(delayq *q) {
    delayq_counts c;
    return delayq_count(q, &c);
}
static delayq_status count_due(delayq *q) {
    static const int64_t due[3] = {1, 1000, 9007199254740991};
    int64_t n[3];
    return delayq_count_due(q, due, 3, n);
}
static delayq_status peek(delayq *q) {
    size_t n;
    return delayq_peek(q, items, 100, &n, NULL);
}
#define AMONG_100(name, delay_ms, ticks, call)  \
    static void name(void *arg) {               \
        (void)arg;                              \
        among_100((delay_ms), (ticks), (call)); \
    }
AMONG_100(cancels, 3600000, 0, cancel)
AMONG_100(reschedules, 3600000, 0, reschedule)
AMONG_100(ticks_101, 0, 0, tick)
AMONG_100(takes_ready, 0, 1, take_one)
AMONG_100(counts_all, 3600000, 0, count)
AMONG_100(counts_due, 3600000, 0, count_due)
AMONG_100(peeks, 3600000, 0, peek)

/* Offer an item every 100 ms, while the counted handle waits in a take. */
static void other_offers(void *arg) {
    delayq *q = opened(0, 0);
    int64_t delay_ms = *(const int64_t *)arg;
    process_sleep(30 * SECOND);
    for (;;) {
        OK(delayq_offer(q, payload, LEN, delay_ms));
        process_sleep(SECOND / 10);
    }
}

static void waits(int64_t lease_ms) {
    static const int64_t delay_ms = 500;
    delayq *q;
    int i;
    load_scripts();
    q = opened(lease_ms, 0);
    process_start(here, "other", other_offers, (void *)(uintptr_t)&delay_ms);
    for (i = 0; i < 30; i++) {
        if (i == 10) begins();
        OK(delayq_take(q, &item, DELAYQ_FOREVER));
        if (lease_ms) OK(delayq_ack(q, &item));
    }
    ends();
}
static void take_waits(void *arg) {
    (void)arg;
    waits(0);
}
static void lease_waits(void *arg) {
    (void)arg;
    waits(60000);
}

/* Offer with an outbox in frames: one op in each frame, or all in one frame. */
static void outbox(int burst) {
    delayq *q;
    int i, k;
    delayq_outbox_state s;
    load_scripts();
    q = opened(0, 65536);
    memset(&s, 0, sizeof s);
    for (i = 0; i < 200; i++) {
        if (i == 100) begins();
        for (k = 0; k < (burst ? (i == 100 ? 100 : 0) : 1); k++)
            OK(delayq_offer(q, payload, LEN, 3600000));
        OK(delayq_tick(q, NULL));
        process_sleep(16667);
    }
    while (s.offers_settled != s.offers_accepted || !s.offers_settled) {
        OK(delayq_tick(q, NULL));
        process_sleep(16667);
        OK(delayq_outbox(q, &s));
    }
    ends();
}
static void outbox_frames(void *arg) {
    (void)arg;
    outbox(0);
}
static void outbox_burst(void *arg) {
    (void)arg;
    outbox(1);
}

/* Wait for an hour in which nothing happens. */
static void idle_for(void *arg) {
    delayq *q;
    (void)arg;
    q = opened(0, 0);
    delayq_take(q, &item, 100000);
    begins();
    delayq_take(q, &item, 3600000);
    ends();
}

static void idle_offers(void *arg) {
    delayq *q;
    (void)arg;
    q = opened(0, 0);
    OK(delayq_offer(q, payload, LEN, 24 * 3600000));
    begins();
    process_sleep(3600 * SECOND);
    ends();
}

/* Wait for an hour on a server that, like many hosted ones, reports no push. */
static void idle_unheard(void *arg) {
    redis_faults_of(store)->denied = " client|tracking ";
    idle_for(arg);
}

/* --- 100 handles that wait ------------------------------------------------ */

static int arrived;
static int64_t crowd_lease_ms;

static void one_of_100(void *arg) {
    delayq *q = opened(crowd_lease_ms, 0);
    delayq_item got;
    (void)arg;
    for (;;) {
        OK(delayq_take(q, &got, DELAYQ_FOREVER));
        arrived++;
        if (crowd_lease_ms) OK(delayq_ack(q, &got));
    }
}

static void crowd(int64_t lease_ms, int hour) {
    static const int64_t delay_ms = 500;
    int i, before;
    crowd_lease_ms = lease_ms;
    load_scripts();
    arrived = 0;
    for (i = 0; i < 100; i++) process_start(here, "waits", one_of_100, NULL);
    if (!hour)
        process_start(here, "other", other_offers,
                      (void *)(uintptr_t)&delay_ms);
    while (arrived < 10 && !hour) process_sleep(SECOND / 100);
    if (hour) process_sleep(100 * SECOND);
    begins();
    before = arrived;
    while (arrived < before + 100 && !hour) process_sleep(SECOND / 100);
    if (hour) process_sleep(3600 * SECOND);
    ends();
}
static void crowd_take(void *arg) {
    (void)arg;
    crowd(0, 0);
}
static void crowd_lease(void *arg) {
    (void)arg;
    crowd(60000, 0);
}
static void crowd_hour(void *arg) {
    (void)arg;
    crowd(0, 1);
}

/* 50 items fall due at once, while 100 handles wait. Each handle works on its
 * item for a second. */
static void one_of_burst(void *arg) {
    delayq *q = opened(0, 0);
    delayq_item got;
    (void)arg;
    for (;;) {
        OK(delayq_take(q, &got, DELAYQ_FOREVER));
        arrived++;
        process_sleep(SECOND);
    }
}
static void crowd_burst(void *arg) {
    delayq_message m[50];
    delayq *q;
    int64_t due_us;
    int i;
    (void)arg;
    load_scripts();
    q = opened(0, 0);
    arrived = 0;
    for (i = 0; i < 100; i++) process_start(here, "waits", one_of_burst, NULL);
    process_sleep(20 * SECOND);
    memset(m, 0, sizeof m);
    for (i = 0; i < 50; i++) {
        m[i].data = payload;
        m[i].len = LEN;
        m[i].delay_ms = 12000;
    }
    OK(delayq_offer_many(q, m, 50));
    due_us = sim_now() + 11 * SECOND;
    begins();
    process_sleep(due_us - sim_now());
    due_us += SECOND - ONE_WAY_US;
    process_sleep(due_us - sim_now());
    while (arrived < 50) process_sleep(SECOND / 1000);
    waited(due_us);
    ends();
}

/* --- from the open to the first result ------------------------------------ */

static void first_take(int loaded) {
    delayq *q;
    int64_t before_us;
    if (loaded) load_scripts();
    q = opened(0, 0);
    OK(delayq_offer(q, payload, LEN, 0));
    delayq_close(q);
    begins();
    before_us = sim_now();
    q = opened(0, 0);
    OK(delayq_take(q, &item, 0));
    waited(before_us);
    delayq_close(q);
    process_sleep(SECOND);
    ends();
}
static void first_loaded(void *arg) {
    (void)arg;
    first_take(1);
}
static void first_ever(void *arg) {
    (void)arg;
    first_take(0);
}
static void first_offer(void *arg) {
    delayq *q;
    int64_t before_us;
    (void)arg;
    load_scripts();
    begins();
    before_us = sim_now();
    q = opened(0, 0);
    OK(delayq_offer(q, payload, LEN, 3600000));
    waited(before_us);
    delayq_close(q);
    process_sleep(SECOND);
    ends();
}

static const struct row {
    const char *name, *per;
    int of;    /* number of items or calls */
    int waits; /* 1: count the time for which the caller waits */
    void (*run)(void *arg);
} rows[] = {
    {"offer", "item", 10, 1, offer},
    {"offer, after an hour", "item", 1, 1, lone},
    {"offer with a key", "item", 10, 1, offers_key},
    {"offer_many of 100", "item", 1000, 1, offers_100},
    {"outbox, an offer each frame", "item", 100, 0, outbox_frames},
    {"outbox, 100 offers in one frame", "item", 100, 0, outbox_burst},
    {"take, items lie due", "item", 20, 1, take},
    {"take with a lease, ack", "item", 20, 1, lease_ack},
    {"ack_take", "item", 20, 1, ack_take},
    {"take_many of 100", "item", 1000, 1, take_100},
    {"take_many with a lease, ack_many", "item", 1000, 1, lease_ack_100},
    {"take that waits for the item", "item", 20, 0, take_waits},
    {"take that waits, a lease, ack", "item", 20, 0, lease_waits},
    {"100 takes wait", "item", 100, 0, crowd_take},
    {"100 takes wait, a lease, ack", "item", 100, 0, crowd_lease},
    {"100 takes wait, 50 items are due", "burst", 1, 1, crowd_burst},
    {"offer_many of 1,000", "call", 1, 1, offers_1000},
    {"offer_many of 200 with keys", "call", 1, 1, offers_200},
    {"take_many of 1,000, with a lease", "call", 1, 1, takes_1000},
    {"ack_many of 500", "call", 1, 1, acks_500},
    {"nack", "call", 10, 1, nacks},
    {"cancel among 101", "call", 10, 1, cancels},
    {"reschedule among 101", "call", 10, 1, reschedules},
    {"tick, 101 items are due", "call", 10, 1, ticks_101},
    {"take from the ready list", "call", 10, 1, takes_ready},
    {"count of 101", "call", 10, 1, counts_all},
    {"count_due of 3 times", "call", 10, 1, counts_due},
    {"peek of 100", "call", 10, 1, peeks},
    {"a take waits, nothing comes", "hour", 1, 0, idle_for},
    {"a take waits, pushes are unheard", "hour", 1, 0, idle_unheard},
    {"100 takes wait, nothing comes", "hour", 1, 0, crowd_hour},
    {"a handle that has only offered", "hour", 1, 0, idle_offers},
    {"open, offer", "time", 1, 1, first_offer},
    {"open, take", "time", 1, 1, first_loaded},
    {"open, take, the scripts are missing", "time", 1, 1, first_ever},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* Sentences about costs in other files. Each has a row of the table, and the
 * highest figure with which the sentence is true. */
static const struct claim {
    const char *file, *text, *row;
    int figure;
    double most;
} claims[] = {
    {"delayq.h", "0.2 commands a second while it waits",
     "a take waits, nothing comes", 0, 0.2 * 3600},
    {"delayq.h", "one script for up to 1,000 messages", "offer_many of 1,000",
     0, 1},
    {"delayq.h", "(200 if some have keys)", "offer_many of 200 with keys", 0,
     1},
    {"delayq.h", "1 to 10,000, in one round trip",
     "take_many of 1,000, with a lease", 5, 1},
    {"delayq.h", "up to 500 in a round trip", "ack_many of 500", 5, 1},
    {"delayq.h", "ack an item and take the next one in one round trip",
     "ack_take", 5, 1},
    {"delayq.h", "for one round trip", "offer", 5, 1},
    {".github/CHANGELOG.md", "less than 1 KB for an offer", "open, offer", 2,
     1024},
    {".github/CHANGELOG.md", "less than 2.5 KB for a take", "open, take", 2,
     2560},
    {"tests/bench/README.md", "waiting consumer sends 0.2 commands a second",
     "a take waits, nothing comes", 0, 0.2 * 3600},
    {"examples/server/README.md", "of one waiting handle | 600 to 720 |",
     "a take waits, nothing comes", 0, 720},
};

static int is_in(const char *path, const char *text) {
    FILE *f = fopen(path, "rb");
    static char all[2000000];
    size_t n;
    if (!f) return 0;
    n = fread(all, 1, sizeof all - 1, f);
    fclose(f);
    all[n] = '\0';
    return strstr(all, text) != NULL;
}

static int check_claims(double figures[ROWS][FIGURES]) {
    size_t i, k;
    int wrong = 0;
    for (i = 0; i < sizeof claims / sizeof claims[0]; i++) {
        const struct claim *c = &claims[i];
        int found = is_in(c->file, c->text);
        for (k = 0; k < ROWS && strcmp(rows[k].name, c->row) != 0;) k++;
        if (!found)
            printf("FAIL %s no longer says: %s\n", c->file, c->text);
        else if (k == ROWS || figures[k][c->figure] > c->most + 0.05)
            printf("FAIL %s says \"%s\": %s of \"%s\" are %g\n", c->file,
                   c->text, titles[c->figure], c->row,
                   k < ROWS ? figures[k][c->figure] : -1);
        else
            continue;
        wrong++;
    }
    return wrong;
}

static void run(const struct row *r, double figures[FIGURES]) {
    redis_hooks hooks;
    int i;
    memset(&hooks, 0, sizeof hooks);
    hooks.now_us = now_us;
    hooks.executed = executed;
    hooks.answered = answered;
    scenario = r->name;
    counting = 0;
    sim_begin(1);
    server = machine_new("server", "10.0.0.1");
    here = machine_new("here", "10.0.1.1");
    for (i = 0; i < 2; i++) {
        route *way = i ? net_route(here, server) : net_route(server, here);
        way->latency_us = ONE_WAY_US;
        way->jitter_us = 0;
    }
    store = redis_new(&hooks);
    net_listen(server, 6379, &service, NULL);
    process_start(here, "counted", r->run, NULL);
    sim_run(3 * 3600 * SECOND);
    if (sim_now() >= 3 * 3600 * SECOND) {
        printf("FAIL %s: it did not end\n", r->name);
        exit(1);
    }
    counts[5] = (double)waited_us / ROUND_TRIP_US;
    for (i = 0; i < FIGURES; i++) figures[i] = counts[i] / r->of;
    if (!r->waits) figures[5] = -1;
    sim_end();
}

/* --- the table ----------------------------------------------------------- */

static void row_text(size_t i, const double figures[FIGURES], char *text,
                     size_t size) {
    int k, n;
    n = snprintf(text, size, "%-38s%-5s", rows[i].name, rows[i].per);
    for (k = 0; k < FIGURES; k++) {
        int many = strcmp(rows[i].per, "hour") == 0;
        if (figures[k] < 0)
            n += snprintf(text + n, size - (size_t)n, "%12s", "-");
        else
            n += snprintf(text + n, size - (size_t)n, "%12.*f",
                          k == 5 ? 1
                          : many ? 0
                                 : 2,
                          figures[k]);
    }
}

int main(int argc, char **argv) {
    static char table[ROWS][200], line[200];
    static double figures[ROWS][FIGURES];
    size_t i, n = 0;
    int k, rose = 0, fell = 0, wrong, writes = argc == 3;
    FILE *f;
    if (argc < 2 || (writes && strcmp(argv[2], "--write") != 0)) {
        fprintf(stderr, "usage: cost FILE [--write]\n");
        return 2;
    }
    f = writes ? NULL : fopen(argv[1], "r");
    printf("%-43s", "");
    for (k = 0; k < FIGURES; k++) printf("%12s", titles[k]);
    printf("\n");
    for (i = 0; i < ROWS; i++) {
        run(&rows[i], figures[i]);
        row_text(i, figures[i], table[i], sizeof table[i]);
        printf("%s\n", table[i]);
        fflush(stdout);
    }
    if (writes) {
        f = fopen(argv[1], "w");
        if (!f) {
            perror(argv[1]);
            return 1;
        }
        fprintf(f, "%s#\n%-43s", heading, "#");
        for (k = 0; k < FIGURES; k++) fprintf(f, "%12s", titles[k]);
        fprintf(f, "\n");
        for (i = 0; i < ROWS; i++) fprintf(f, "%s\n", table[i]);
        return fclose(f) != 0;
    }
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] == '#') continue;
        if (n == ROWS || strncmp(line, table[n], 43) != 0) {
            rose++;
            break;
        }
        for (k = 0; k < FIGURES; k++) {
            double was = atof(line + 43 + 12 * k);
            double is = atof(table[n] + 43 + 12 * k);
            if (is > was)
                printf("FAIL %s: %s rose from %g to %g\n", rows[n].name,
                       titles[k], was, is);
            rose += is > was;
            fell += is < was;
        }
        n++;
    }
    if (f) fclose(f);
    if (n != ROWS) {
        printf("FAIL the rows of %s are others than these\n", argv[1]);
        rose += !rose;
    }
    if (fell)
        printf("%d figures fell: `make cost WRITE=1` keeps that.\n", fell);
    wrong = check_claims(figures);
    printf("%d passed, %d failed, 0 skipped\n",
           (int)(ROWS * FIGURES + sizeof claims / sizeof claims[0]) - rose -
               wrong,
           rose + wrong);
    return rose + wrong > 0;
}
