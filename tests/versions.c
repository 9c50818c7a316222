/*
 * The format of the data in Redis is a promise. An old version and the current
 * one use one queue at the same time. First, each call is made by one version
 * on items of the other, in every combination. Then many processes of both
 * versions work. Some are killed and restarted as the other version, as in a
 * fleet that is upgraded and rolled back while it works. At the end no item is
 * missing.
 *
 * DELAYQ_TEST_SECONDS   the time in which the processes of each test work, 1 s
 *                       by default
 */
#include "peer.h"
#include <stdarg.h>
#include <sys/wait.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"
#define MINUTE 60000

/* The old version: 0.1, or 0.2 in tests/versions_0_2.c. */
#ifndef OLD
#define OLD peer_0_1
#define OLD_TEST(sentence) TEST(sentence)
#endif

static const struct peer *const versions[2] = {&OLD, &peer_today};

/* A handle of one version. DO_ fails the test unless a call returns `want`. */
struct hand {
    const struct peer *v;
    delayq *q;
};
#define DO_(h, want, verb, ...)                                              \
    do {                                                                     \
        delayq_status s_ = (h).v->verb((h).q, __VA_ARGS__);                  \
        if (s_ != (want))                                                    \
            FAIL("%s: %s is %d (%s), not %d: %s", (h).v->version, #verb, s_, \
                 delayq_strstatus(s_), want, (h).v->errmsg((h).q));          \
    } while (0)
#define DO(h, verb, ...) DO_(h, DELAYQ_OK, verb, __VA_ARGS__)
#define GONE(h, verb, ...) DO_(h, DELAYQ_GONE, verb, __VA_ARGS__)

static struct hand hand(const struct peer *v, struct peer_options o) {
    struct hand h;
    o.name = "jobs";
    o.url = main_server.url;
    o.io_timeout_ms = 20000 * test_slow();
    h.v = v;
    h.q = v->open(&o);
    if (!h.q) FAIL("%s can't open a handle", v->version);
    return h;
}

/* Take an item, and compare its payload and attempt. */
static delayq_item taken(struct hand h, const char *payload, int attempt) {
    delayq_item item;
    DO(h, take, &item, 20000 * test_slow());
    if (item.len != strlen(payload) || memcmp(item.data, payload, item.len))
        FAIL("%s took \"%.*s\", not \"%s\"", h.v->version, (int)item.len,
             (const char *)item.data, payload);
    /* The attempt of an item that was in the ready list may be unknown. */
    if (item.attempt > 0 || item.late_us >= 0) CHECK_INT(item.attempt, attempt);
    return item;
}

static delayq_message far_off(const char *payload) {
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = payload;
    m.len = strlen(payload);
    m.delay_ms = MINUTE;
    return m;
}

static void counts_are(struct hand h, int pending, int ready, int dead) {
    delayq_counts c;
    DO(h, count, &c);
    CHECK_INT(c.pending, pending);
    CHECK_INT(c.ready, ready);
    CHECK_INT(c.dead, dead);
}

OLD_TEST(versions_have_the_same_items_and_tickets) {
    CHECK_TEXT(peer_0_1.version, "0.1.0");
    CHECK_TEXT(peer_today.version, DELAYQ_VERSION);
    CHECK_INT(peer_0_1.item_size, sizeof(delayq_item));
    CHECK(peer_0_1.dead_size <= sizeof(delayq_dead));
    CHECK(peer_0_1.counts_size <= sizeof(delayq_counts));
    CHECK(peer_0_1.message_size <= sizeof(delayq_message));
}

/* --- verb by verb --------------------------------------------------------- */

static void tickets_of_x(struct hand x, struct hand y, struct hand z) {
    delayq_message a = far_off("a"), b = far_off("b"), c = far_off("c");
    delayq_message d = far_off("d");
    delayq_item item;
    delayq_ticket first;
    int64_t due[2], counts[2];
    size_t n;

    /* offer, peek, count, cancel */
    DO(x, offer_one, &a);
    DO(y, peek, &item, 1, &n, NULL);
    CHECK_TEXT(item.ticket.text, a.ticket.text);
    CHECK_INT(item.len, 1);
    counts_are(y, 1, 0, 0);
    due[0] = item.due_ms - 1;
    due[1] = item.due_ms;
    DO(y, count_due, due, 2, counts);
    CHECK_INT(counts[0], 0);
    CHECK_INT(counts[1], 1);
    DO(z, cancel, &a.ticket);
    GONE(x, cancel, &a.ticket);

    /* keys, replace, reschedule, peek page by page */
    b.key = c.key = d.key = "key";
    b.key_ttl_ms = c.key_ttl_ms = d.key_ttl_ms = MINUTE;
    DO(x, offer_one, &b);
    (void)y.v->offer_one(y.q, &c);
    CHECK_INT(c.status, DELAYQ_DUPLICATE);
    CHECK_TEXT(c.ticket.text, b.ticket.text);
    d.replace = 1;
    DO(z, offer_one, &d);
    counts_are(x, 1, 0, 0);
    GONE(y, cancel, &b.ticket);
    first = d.ticket;
    DO(x, reschedule, &d.ticket, 2 * MINUTE);
    GONE(y, reschedule, &first, 1);
    DO(x, offer_one, &a);
    DO(y, peek, &item, 1, &n, NULL);
    CHECK_TEXT(item.ticket.text, a.ticket.text);
    DO(z, peek, &item, 1, &n, &item.ticket);
    CHECK_TEXT(item.ticket.text, d.ticket.text);
    DO(z, cancel, &a.ticket);
    DO(y, cancel, &d.ticket);
    counts_are(z, 0, 0, 0);
}

static void leases(struct hand x, struct hand y, struct hand z, int native,
                   int old_wire) {
    int one = !old_wire, two = old_wire ? 0 : 2;
    delayq_item item, again;
    delayq_dead letter;
    size_t n;
    memset(&letter, 0, sizeof letter);

    /* One version moves the item, and another takes it. Then nack, extend and
     * ack an item that another version has leased. */
    DO(x, offer, "b", 1, 1);
    UNTIL(y.v->tick(y.q, NULL) == DELAYQ_OK && ask_int("LLEN jobs") == 1);
    item = taken(z, "b", one);
    DO(x, nack, &item, 0);
    GONE(z, ack, &item);
    item = again = taken(y, "b", two);
    DO(x, extend, &item, 2 * MINUTE);
    GONE(y, ack, &again);
    DO(z, ack, &item);
    counts_are(x, 0, 0, 0);

    /* release, bury, redrive, ack_take */
    DO(x, offer, "d", 1, 0);
    item = taken(y, "d", one);
    DO(z, nack, &item, DELAYQ_RELEASE);
    item = taken(x, "d", one);
    DO(y, bury, &item, "exit 100");
    DO(z, dead_peek, &letter, 1, &n, 0);
    CHECK_TEXT(letter.reason, "buried");
    CHECK(letter.dead_ms > 1600000000000LL);
    if (z.v == &peer_today)
        CHECK_TEXT(letter.why, y.v == &peer_today ? "exit 100" : "");
    CHECK_INT(letter.attempt, one);
    CHECK_INT(letter.len, 1);
    counts_are(x, 0, 0, 1);
    DO(x, dead_redrive, 10, &n);
    CHECK_INT(n, 1);
    item = taken(y, "d", one);
    DO_(z, DELAYQ_EMPTY, ack_take, &item, 0);
    CHECK_INT(item.acked, DELAYQ_OK);
    counts_are(y, 0, 0, 0);

    /* an item that is moved after its attempts have been counted */
    if (native) {
        DO(x, offer, "e", 1, 0);
        item = taken(y, "e", 1);
        DO(z, nack, &item, 1);
        UNTIL(x.v->tick(x.q, NULL) == DELAYQ_OK &&
              ask_int("LLEN delayq_retry:{jobs}") == 1);
        item = taken(z, "e", 2);
        DO(y, nack, &item, DELAYQ_BACKOFF);
        item = taken(x, "e", 3);
        DO(z, nack, &item, 0);
        /* the item dies after 3 attempts */
        UNTIL(y.v->take(y.q, &item, 0) == DELAYQ_EMPTY &&
              ask_int("LLEN delayq_dead:{jobs}") == 1);
        DO(x, dead_peek, &letter, 1, &n, 0);
        CHECK_TEXT(letter.reason, "attempts");
        CHECK_INT(letter.attempt, 3);
        DO(z, dead_clear, NULL);
    }
}

static void crowds(struct hand x, struct hand y, struct hand z) {
    static const char *const texts[] = {"1", "2", "3", "4", "5"};
    delayq_item items[5];
    size_t n = 0, i;
    int64_t removed;
    DO(x, offer_many, texts, 5, 1);
    elapse(main_connection(), 2);
    UNTIL(y.v->tick(y.q, NULL) == DELAYQ_OK && ask_int("LLEN jobs") == 5);
    DO(z, take_many, items, 5, &n, 20000);
    CHECK_INT(n, 5);
    for (i = 0; i < 5; i++) CHECK(*(const char *)items[i].data == *texts[i]);
    DO(x, ack_many, items, 5);
    for (i = 0; i < 5; i++) CHECK_INT(items[i].acked, DELAYQ_OK);
    DO(y, offer_many, texts, 5, MINUTE);
    DO(x, clear, &removed);
    CHECK_INT(removed, 5);
    counts_are(z, 0, 0, 0);
}

/* The lease of one version ends. Then the other version takes the item. */
static void a_lease_that_ends(struct hand brief, struct hand y, int again) {
    delayq_item late = {0}, item;
    DO(y, offer, "f", 1, 0);
    late = taken(brief, "f", again ? 1 : 0);
    item = taken(y, "f", again);
    GONE(brief, ack, &late);
    DO(y, ack, &item);
}

static void each_verb(int wire) {
    struct peer_options o;
    int way;
    memset(&o, 0, sizeof o);
    o.wire = wire;
    o.max_attempts = wire == 0 ? 3 : 0;
    for (way = 0; way < 8; way++) {
        struct hand h[3], brief;
        int i;
        o.lease_ms = MINUTE;
        o.max_wait_ms = 20; /* each handle soon notices changes by others */
        ask("FLUSHALL");
        for (i = 0; i < 3; i++) h[i] = hand(versions[way >> i & 1], o);
        o.lease_ms = 5;
        brief = hand(versions[way & 1], o);
        tickets_of_x(h[0], h[1], h[2]);
        leases(h[0], h[1], h[2], wire == 0, wire == 2);
        crowds(h[0], h[1], h[2]);
        a_lease_that_ends(brief, h[1], wire == 2 ? 0 : 2);
        CHECK_INT(ask_int("EXISTS jobs " ZSET " " MIRROR), 0);
        for (i = 0; i < 3; i++) h[i].v->close(h[i].q);
        brief.v->close(brief.q);
    }
}

OLD_TEST(each_verb_of_0_1_and_of_today_meets_the_items_of_the_other) {
    each_verb(0);
}
OLD_TEST(each_verb_of_both_versions_meets_items_beside_redisson) {
    each_verb(1);
}
OLD_TEST(each_verb_of_both_versions_meets_items_beside_old_redisson) {
    each_verb(2);
}

OLD_TEST(broadcasts_of_one_version_are_read_by_the_other_and_go_on_in_it) {
    int way;
    for (way = 0; way < 4; way++) {
        const struct peer *one = versions[way & 1], *other = versions[way >> 1];
        struct peer_options o;
        struct hand x, y;
        delayq_item item;
        memset(&o, 0, sizeof o);
        o.broadcast = 1;
        o.max_wait_ms = 20;
        ask("FLUSHALL");
        x = hand(one, o);
        y = hand(other, o);
        DO(x, offer, "1", 1, 0);
        DO(y, offer, "2", 1, 5);
        taken(x, "1", 1);
        taken(y, "1", 1);
        item = taken(x, "2", 1);
        x.v->close(x.q);
        DO(y, offer, "3", 1, 0);
        o.broadcast_after = item.ticket.text;
        x = hand(other, o); /* as after an upgrade or a rollback */
        taken(x, "3", 1);
        x.v->close(x.q);
        y.v->close(y.q);
    }
}

/* Handles of the current version make dead letters of late items. But an item
 * that an older version has moved is handed out even if it is late. The older
 * version also reads and redrives the dead letters. */
OLD_TEST(what_an_older_version_moves_is_never_late) {
    const struct peer *older = versions[0], *today = versions[1];
    struct peer_options o;
    struct hand x, y;
    delayq_item item;
    delayq_dead letter;
    delayq_message m;
    size_t n;
    memset(&o, 0, sizeof o);
    o.max_wait_ms = 20;
    o.max_late_ms = MINUTE;
    x = hand(older, o);
    y = hand(today, o);
    m = far_off("late");
    m.due_ms = server_us(main_connection()) / 1000 - 2 * MINUTE;
    DO(x, offer_one, &m);
    DO_(y, DELAYQ_EMPTY, take, &item, 0);
    DO(x, dead_peek, &letter, 1, &n, 0);
    CHECK_TEXT(letter.reason, "late");
    CHECK_INT(letter.len, 4);
    CHECK(letter.dead_ms > 1600000000000LL);
    DO(x, dead_redrive, 1, &n);
    taken(y, "late", 1);
    m.status = DELAYQ_OK;
    DO(y, offer_one, &m);
    UNTIL(x.v->tick(x.q, NULL) == DELAYQ_OK && ask_int("LLEN jobs") == 1);
    item = taken(y, "late", 1);
    CHECK_INT(item.late_us, -1);
    m.status = DELAYQ_OK;
    DO(y, offer_one, &m);
    DO(y, tick, NULL);
    CHECK_INT(ask_int("LLEN jobs"), 0);
    item = taken(x, "late", 1); /* 0.1 and 0.2 have no limit */
    CHECK(item.late_us > MINUTE * 1000LL);
    x.v->close(x.q);
    y.v->close(y.q);
}

/* --- a crowd ---------------------------------------------------------------
 *
 * A process notes in shared memory which items its next call changes, makes the
 * call, and notes that it is done. If the process was killed, the call may have
 * had an effect or not. The outcome of all other calls is known. */

#define IDS 200000
#define HELD 5
#define OUTSTANDING 400
#define LEASE_MS 150

enum { OFFERED = 1, STORED, REFUSED };

static struct ledger {
    int next, stop, ends, kills;
    /* crossed[i]: items that version i offered and the other version removed */
    int crossed[2];
    struct entry {
        unsigned char offered, ended, maybe, by;
        long long earliest_us; /* the item is not due before this time */
    } ids[IDS];
    struct process {
        int doing[HELD + 3]; /* ids of items; 0: none */
    } processes[16];
} * ledger;

static struct process *me; /* an entry in the ledger */
static struct hand my;
static int the_wire;

static int new_id(int64_t delay_ms) {
    int id = __atomic_add_fetch(&ledger->next, 1, __ATOMIC_SEQ_CST);
    if (id >= IDS) FAIL("there are no ids left");
    ledger->ids[id].earliest_us = now_us() + delay_ms * 1000;
    ledger->ids[id].by = my.v == versions[1];
    ledger->ids[id].offered = OFFERED;
    return id;
}

/* Note that this process has removed the item from the queue. */
static void ended(int id) {
    if (id == 0) return;
    __atomic_add_fetch(&ledger->ids[id].ended, 1, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&ledger->ends, 1, __ATOMIC_SEQ_CST);
    if (ledger->ids[id].by != (my.v == versions[1]))
        __atomic_add_fetch(&ledger->crossed[ledger->ids[id].by], 1,
                           __ATOMIC_SEQ_CST);
}

/* Returns 1 if the call was done, 0 if the item was gone. Any other status
 * fails the test. */
static int happened(delayq_status status, const char *verb) {
    if (status != DELAYQ_OK && status != DELAYQ_GONE)
        FAIL("%s: %s is %d (%s): %s", my.v->version, verb, status,
             delayq_strstatus(status), my.v->errmsg(my.q));
    return status == DELAYQ_OK;
}
#define DONE(verb, ...) happened(my.v->verb(my.q, __VA_ARGS__), #verb)

/* Returns the item's id, or 0 if the item only wakes a consumer. */
static int id_of(const delayq_item *item) {
    char text[16] = "";
    int id;
    CHECK(item->len < sizeof text);
    memcpy(text, item->data, item->len);
    id = atoi(text);
    CHECK(id >= 0 && id < IDS);
    if (id == 0) return 0;
    if (ledger->ids[id].offered != OFFERED && ledger->ids[id].offered != STORED)
        FAIL("%s: item %d was never stored", my.v->version, id);
    if (now_us() < ledger->ids[id].earliest_us)
        FAIL("%s: item %d came %lld us early", my.v->version, id,
             ledger->ids[id].earliest_us - now_us());
    return id;
}

static void store(int delay_ms) {
    char text[16];
    int id = new_id(delay_ms);
    snprintf(text, sizeof text, "%d", id);
    if (DONE(offer, text, strlen(text), delay_ms))
        ledger->ids[id].offered = STORED;
}

static void store_many(int delay_ms) {
    char texts[10][16];
    const char *list[10];
    int ids[10], i;
    for (i = 0; i < 10; i++) {
        ids[i] = new_id(delay_ms);
        snprintf(texts[i], sizeof texts[i], "%d", ids[i]);
        list[i] = texts[i];
    }
    DONE(offer_many, list, 10, delay_ms);
    for (i = 0; i < 10; i++) ledger->ids[ids[i]].offered = STORED;
}

/* Make three offers under a key. The second one is refused, and the third one
 * replaces the first. Then cancel or reschedule some of the items. */
static void store_one(void) {
    char text[3][16];
    delayq_message m[3];
    int ids[3], i;
    for (i = 0; i < 3; i++) {
        ids[i] = new_id(i == 2 ? 20 : 60 * MINUTE);
        snprintf(text[i], sizeof text[i], "%d", ids[i]);
        m[i] = far_off(text[i]);
        m[i].delay_ms = i == 2 ? 20 : 60 * MINUTE;
        m[i].key = text[0];
        m[i].key_ttl_ms = MINUTE;
        m[i].replace = i == 2;
        if (i == 2) me->doing[0] = ids[0];
        my.v->offer_one(my.q, &m[i]);
        if (m[i].status != (i == 1 ? DELAYQ_DUPLICATE : DELAYQ_OK))
            happened(m[i].status < 0 ? m[i].status : DELAYQ_ERR_ARG, "offer");
        ledger->ids[ids[i]].offered = i == 1 ? REFUSED : STORED;
    }
    ended(ids[0]);
    me->doing[0] = ids[2];
    if (rand() % 2) {
        ledger->ids[ids[2]].earliest_us = now_us();
        DONE(reschedule, &m[2].ticket, rand() % 40);
    } else if (DONE(cancel, &m[2].ticket)) {
        ended(ids[2]);
    }
    me->doing[0] = 0;
}

static void look(void) {
    delayq_item items[8];
    delayq_counts c;
    int64_t due = 1, n_due;
    size_t n, i;
    if (my.v->peek(my.q, items, 8, &n, NULL) == DELAYQ_OK)
        for (i = 0; i < n; i++) CHECK(items[i].len > 0);
    DONE(count, &c);
    DONE(count_due, &due, 1, &n_due);
    DONE(tick, NULL);
}

static void produce(void) {
    if (ledger->next - ledger->ends > OUTSTANDING || ledger->next > IDS - 100) {
        usleep(1000);
        DONE(tick, NULL);
        return;
    }
    switch (rand() % 8) {
    case 0: store_many(rand() % 30); break;
    case 1: store_one(); break;
    case 2: look(); break;
    default: store(rand() % 30);
    }
}

/* Offers of a handle with an outbox are stored after a flush has returned. */
static void produce_without_waiting(void) {
    char text[16];
    int from = ledger->next, ids[5], i;
    if (from - ledger->ends > OUTSTANDING || from > IDS - 100) {
        usleep(1000);
        return;
    }
    for (i = 0; i < 5; i++) {
        ids[i] = new_id(5);
        snprintf(text, sizeof text, "%d", ids[i]);
        DONE(offer, text, strlen(text), 5);
        DONE(tick, NULL);
    }
    DONE(flush, 20000 * test_slow());
    for (i = 0; i < 5; i++) ledger->ids[ids[i]].offered = STORED;
}

static void consume_many(void) {
    delayq_item items[HELD];
    size_t n, i;
    if (my.v->take_many(my.q, items, HELD, &n, 20) != DELAYQ_OK) return;
    for (i = 0; i < n; i++) me->doing[i] = id_of(&items[i]);
    (void)my.v->ack_many(my.q, items, n);
    for (i = 0; i < n; i++)
        if (happened(items[i].acked, "ack_many")) ended(me->doing[i]);
}

static void consume(void) {
    delayq_item item;
    delayq_status status;
    int id, what = rand() % 20;
    size_t n;
    if (what == 0) DONE(dead_redrive, 20, &n);
    if (what == 1) {
        consume_many();
        memset(me->doing, 0, sizeof me->doing);
        return;
    }
    /* Sometimes take for so long that this handle becomes a waiter. */
    status = my.v->take(my.q, &item, rand() % 50 ? 20 : 12000);
    if (status == DELAYQ_EMPTY) return;
    happened(status, "take");
    id = me->doing[0] = id_of(&item);
    switch (what) {
    case 2: DONE(nack, &item, rand() % 10); break;
    case 3: DONE(nack, &item, DELAYQ_BACKOFF); break;
    case 4: DONE(nack, &item, DELAYQ_RELEASE); break;
    case 5: DONE(bury, &item, rand() % 2 ? "failed" : NULL); break;
    case 6: break; /* let the lease end */
    case 7:
        DONE(extend, &item, LEASE_MS);
        if (DONE(ack, &item)) ended(id);
        break;
    case 8: /* the ack may come too late */
        usleep((useconds_t)(rand() % (2 * LEASE_MS)) * 1000);
        if (DONE(ack, &item)) ended(id);
        break;
    case 9:
    case 10:
    case 11:
        status = my.v->ack_take(my.q, &item, 0);
        if (happened(item.acked, "ack_take")) ended(id);
        if (status == DELAYQ_EMPTY) break;
        happened(status, "ack_take");
        id = me->doing[0] = id_of(&item);
        if (DONE(ack, &item)) ended(id);
        break;
    default:
        if (DONE(ack, &item)) ended(id);
    }
    me->doing[0] = 0;
}

/* Without a lease a taken item leaves the queue at once, so this process is not
 * killed. */
static void pop(void) {
    delayq_item items[HELD];
    size_t n, i;
    delayq_status status = my.v->wait(&my.q, 1, 20);
    if (status != DELAYQ_EMPTY) happened(status, "wait");
    status = my.v->take_many(my.q, items, HELD, &n, 0);
    if (status == DELAYQ_EMPTY) return;
    happened(status, "take_many");
    for (i = 0; i < n; i++) ended(id_of(&items[i]));
    usleep(20000); /* so that the others get most items */
}

static const struct role {
    void (*step)(void);
    int first; /* number of its first version */
    int64_t lease_ms;
    int killed, outbox;
} roles[] = {{pop, 0, 0, 0, 0},
             {pop, 1, 0, 0, 0},
             {produce, 0, LEASE_MS, 1, 0},
             {produce, 1, LEASE_MS, 1, 0},
             {consume, 0, LEASE_MS, 1, 0},
             {consume, 1, LEASE_MS, 1, 0},
             {consume, 0, LEASE_MS, 1, 0},
             {consume, 1, LEASE_MS, 1, 0},
             {produce_without_waiting, 1, LEASE_MS, 1, 1}};
#define ROLES ((int)(sizeof roles / sizeof *roles))

static struct peer_options crowd_options(void) {
    struct peer_options o;
    memset(&o, 0, sizeof o);
    o.wire = the_wire;
    o.max_attempts = the_wire == 0 ? 5 : 0;
    o.max_wait_ms = 1000;
    return o;
}

static int version_of[16];

static void live(void *number) {
    const struct role *r = &roles[(long)number];
    struct peer_options o = crowd_options();
    o.lease_ms = r->lease_ms;
    o.outbox = r->outbox;
    me = &ledger->processes[(long)number];
    my = hand(versions[version_of[(long)number]], o);
    while (!ledger->stop) r->step();
    my.v->close(my.q);
}

static void one_is_killed(pid_t *pids) {
    int i = rand() % ROLES, k, status;
    if (!roles[i].killed) return;
    kill(pids[i], SIGKILL);
    CHECK(waitpid(pids[i], &status, 0) == pids[i]);
    if (!WIFSIGNALED(status)) FAIL("process %d has failed", i);
    for (k = 0; k < HELD; k++)
        ledger->ids[ledger->processes[i].doing[k]].maybe = 1;
    memset(&ledger->processes[i], 0, sizeof ledger->processes[i]);
    if (!roles[i].outbox) version_of[i] = !version_of[i];
    pids[i] = spawn(live, (void *)(long)i);
    ledger->kills++;
}

/* Make all items due, as if all leases and back-offs had ended. */
static void everything_is_due(void) {
    ask("EVAL %s 1 " ZSET,
        "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
        "  redis.call('ZADD', KEYS[1], 1, e)\n"
        "end");
}

/* Take the remaining items, with both versions. Returns their number. */
static int take_all_that_is_left(unsigned char *left) {
    struct peer_options o = crowd_options();
    struct hand h[2];
    int i, n = 0;
    o.lease_ms = 60 * MINUTE;
    o.max_wait_ms = 5;
    for (i = 0; i < 2; i++) h[i] = hand(versions[i], o);
    for (i = 0;; i = !i) {
        delayq_counts c;
        delayq_item item;
        size_t redriven;
        my = h[i];
        DONE(dead_redrive, 1000, &redriven);
        DONE(count, &c);
        if (c.pending + c.ready + c.dead == 0) break;
        everything_is_due();
        usleep(6000); /* longer than max_wait_ms */
        while (my.v->take(my.q, &item, 0) == DELAYQ_OK) {
            char text[16] = "";
            memcpy(text, item.data, item.len < 15 ? item.len : 15);
            CHECK(DONE(ack, &item));
            if (atoi(text) == 0) continue;
            left[atoi(text)]++;
            n++;
        }
    }
    for (i = 0; i < 2; i++) h[i].v->close(h[i].q);
    return n;
}

/* Returns 1 if each kind of event has happened often enough. A test waits for
 * this, not for a time. */
static int has_met_all(void) {
    return ledger->ends > 200 && ledger->crossed[0] > 20 &&
           ledger->crossed[1] > 20;
}

static void a_crowd(int wire) {
    static unsigned char left[IDS];
    const char *text = getenv("DELAYQ_TEST_SECONDS");
    int seconds = text && atoi(text) > 0 ? atoi(text) : 1;
    pid_t pids[ROLES];
    long long end;
    int i, n, maybe = 0, stored = 0, alive = ROLES, status;
    alarm((unsigned)((seconds + 60) * test_slow()));
    the_wire = wire;
    ledger = (struct ledger *)shared(sizeof *ledger);
    for (i = 0; i < ROLES; i++) {
        version_of[i] = roles[i].first;
        pids[i] = spawn(live, (void *)(long)i);
    }
    end = now_us() + seconds * 1000000LL * test_slow();
    while (now_us() < end || ledger->kills < 3 ||
           (ledger->next <= IDS - 100 && !has_met_all())) {
        /* most calls should return before their process is killed */
        usleep(test_brief() ? 500000 : 50000);
        one_is_killed(pids);
        if (waitpid(-1, &status, WNOHANG) > 0) FAIL("a process has ended");
    }
    ledger->stop = 1;
    while (alive > 0) {
        pid_t pid = waitpid(-1, &status, WNOHANG);
        if (pid > 0) {
            CHECK_INT(status, 0);
            alive--;
        } else { /* wake the takes that wait for a long time */
            if (ask_int("LLEN jobs") < 10) ask("RPUSH jobs 0");
            usleep(1000);
        }
    }
    n = take_all_that_is_left(left);
    for (i = 1; i <= ledger->next; i++) {
        struct entry *e = &ledger->ids[i];
        int seen = e->ended + left[i];
        stored += e->offered == STORED;
        maybe += e->maybe || e->offered == OFFERED;
        if (seen > (e->offered != REFUSED))
            FAIL("item %d: ended %d times, left %d times", i, e->ended,
                 left[i]);
        if (e->offered == STORED && !e->maybe && seen == 0)
            FAIL("item %d is lost", i);
    }
    CHECK_INT(ask_int("EXISTS jobs " ZSET " " MIRROR " delayq_retry:{jobs}"),
              0);
    printf("    %d stored, %d ended, %d left, %d killed, %d unknown; from the "
           "old version to today's %d, the other way %d\n",
           stored, ledger->ends, n, ledger->kills, maybe, ledger->crossed[0],
           ledger->crossed[1]);
    CHECK(stored > 100 && has_met_all());
    CHECK(maybe < stored / 10);
}

OLD_TEST(a_crowd_of_both_versions_loses_no_item_and_has_none_twice) {
    a_crowd(0);
}
OLD_TEST(a_crowd_of_both_versions_beside_redisson_loses_no_item) {
    a_crowd(1);
}
OLD_TEST(a_crowd_of_both_versions_beside_old_redisson_loses_no_item) {
    a_crowd(2);
}
