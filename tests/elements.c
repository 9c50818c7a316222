/*
 * Elements of every format, with ids and payloads that make them look like
 * another format. No operation may change a payload, and at the end of a test
 * nothing may be left in Redis.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "test.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"
#define MANY 240
#define OLD 0 /* kind of the old format; other kinds are id lengths: 8, 16 */

typedef struct made {
    unsigned char e[160];
    size_t n;
    /* part of e: the payload, read in the format of the queue's wire */
    const unsigned char *payload;
    size_t len;
    int kind, attempts, seen;
} made;

static made all[MANY];
static delayq q;
static delayq_item held[MANY];

/* Random numbers, the same in each run. */
static uint64_t state;
static int roll(int sides) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int)((state >> 33) % (uint64_t)sides);
}

/* --- elements read as the formats are described --------------------------- */

/* Write a length in `size` bytes, as the server packs it. */
static void put_length(unsigned char *to, int size, size_t len) {
    static unsigned char e[256], any[200];
    element(e, OLD, size, "12345678", any, len);
    memcpy(to, e + 8, (size_t)size);
}

static size_t payload_start(const unsigned char *e, size_t n, size_t at) {
    unsigned char length[8];
    int size;
    for (size = 4; size <= 8; size += 4) {
        if (n < at + (size_t)size) continue;
        put_length(length, size, n - at - (size_t)size);
        if (memcmp(e + at, length, (size_t)size) == 0) return at + (size_t)size;
    }
    return 0;
}

static void read_as(made *m, int old_first) {
    size_t old = payload_start(m->e, m->n, 8);
    size_t new = m->e[0] == 16 || m->e[0] == 8
                     ? payload_start(m->e, m->n, 1u + m->e[0])
                     : 0;
    size_t start = (old_first && old) || !new ? old : new;
    CHECK(start > 0);
    m->kind = start == old ? OLD : m->e[0];
    m->attempts = m->kind == 16 ? m->e[15] * 256 + m->e[16] : 0;
    m->payload = m->e + start;
    m->len = m->n - start;
}

/* --- ambiguous elements --------------------------------------------------- */

static size_t random_bytes(unsigned char *to, int n) {
    int i;
    for (i = 0; i < n; i++) to[i] = (unsigned char)roll(256);
    return (size_t)n;
}

static size_t make_payload(unsigned char *to) {
    static const int before[] = {1, 5, 0, 4, 8, 9};
    size_t n, rest;
    int size;
    memset(to, 0, 8);
    switch (roll(10)) {
    case 0: return 0;
    case 1: return 1; /* a byte 0 */
    case 2: return 5;
    case 3: return random_bytes(to, 4);
    case 4: return random_bytes(to, 8);
    case 5: return random_bytes(to, roll(60));
    default: /* some bytes, a length, and as many bytes as that length says */
        n = random_bytes(to, before[roll(3) ? roll(2) : roll(6)]);
        size = roll(2) ? 8 : 4;
        rest = (size_t)(roll(4) ? roll(20) : 4 * roll(3));
        put_length(to + n, size, rest);
        n += (size_t)size;
        return n + random_bytes(to + n, (int)rest);
    }
}

/* Change an element of the new format so that it looks like an old one. */
static void look_old(unsigned char id[16], int kind, int size, size_t *len) {
    int as = roll(2) ? 8 : 4;
    if (kind == 8) {
        *len = 0;
        size = 8;
        id[7] = (unsigned char)(as == 8 ? 1 : 5);
    } else {
        put_length(id + 7, as, 17 + (size_t)size + *len - 8 - (size_t)as);
    }
}

static void make(made *m, delayq_wire wire, int ended_leases) {
    /* kind 8 is written only by Redisson */
    static const int new_kinds[] = {16, 8};
    int fleet_old = wire == DELAYQ_REDISSON_OLD, size = roll(2) ? 8 : 4;
    int kind = fleet_old && roll(4)      ? OLD
               : wire == DELAYQ_REDISSON ? new_kinds[roll(2)]
                                         : 16;
    unsigned char id[16], payload[160];
    size_t len = make_payload(payload);
    memset(m, 0, sizeof *m);
    random_bytes(id, 16);
    if (kind == OLD && roll(2)) id[0] = (unsigned char)new_kinds[roll(2)];
    if (kind == 16) memset(id + 13, 0, 3);
    if (kind == 16 && ended_leases && !fleet_old)
        id[15] = (unsigned char)roll(3);
    if (kind != OLD && fleet_old && roll(2)) look_old(id, kind, size, &len);
    m->n = element(m->e, kind, size, (const char *)id, payload, len);
    read_as(m, fleet_old);
    if (fleet_old && kind != OLD) return; /* it may fit both formats */
    CHECK_INT(m->kind, kind);
    CHECK_INT(m->len, len);
}

/* Open the queue, and store the elements with due times in 1970. */
static void fill(delayq_wire wire, int ended_leases, int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    int i;
    state = 20261 + (uint64_t)WIRE_NUMBER(wire);
    ask("FLUSHALL");
    o.wire = wire;
    o.lease_ms = lease_ms;
    o.batch = 1000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < MANY; i++) {
        made *m = &all[i];
        make(m, wire, ended_leases);
        CHECK_INT(
            ask_int("ZADD " ZSET " %d %b", 1 + roll(MANY / 2), m->e, m->n), 1);
        /* only an element without a lease is in the mirror */
        if (wire != DELAYQ_NATIVE && m->attempts == 0)
            ask_int("RPUSH " MIRROR " %b", m->e, m->n);
    }
    poll_now(&q);
}

/* --- the payloads that are delivered -------------------------------------- */

static void came(const void *data, size_t len, int attempts) {
    int i;
    for (i = 0; i < MANY; i++)
        if (!all[i].seen && all[i].len == len &&
            memcmp(all[i].payload, data, len) == 0 &&
            (attempts < 0 || attempts == all[i].attempts)) {
            all[i].seen = 1;
            return;
        }
    FAIL("nobody offered these %d bytes", (int)len);
}

static void forget(void) {
    int i;
    for (i = 0; i < MANY; i++) all[i].seen = 0;
}

static void all_came(void) {
    int i;
    for (i = 0; i < MANY; i++)
        if (!all[i].seen) FAIL("element %d did not come out", i);
    forget();
}

/* Take all elements into `held`, a few at a time. If `counted`, check the
 * attempt of each item, too. */
static void take_all(int counted) {
    size_t n, i, got = 0;
    while (got < MANY) {
        poll_now(&q);
        OK(&q, delayq_take_many(&q, held + got,
                                1 + (size_t)roll((int)(MANY - got)), &n, 0));
        for (i = got; i < got + n; i++)
            came(held[i].data, held[i].len, counted ? held[i].attempt - 1 : -1);
        got += n;
    }
    all_came();
}

static void with_each(delayq_status (*verb)(delayq *, const delayq_item *)) {
    int i;
    for (i = 0; i < MANY; i++) OK(&q, verb(&q, &held[i]));
}

static void move_all(void) {
    do {
        poll_now(&q);
        OK(&q, delayq_tick(&q, NULL));
    } while (ask_int("EXISTS " ZSET));
    CHECK_INT(ask_int("EXISTS " MIRROR), 0);
}

/* Peek at all elements, page by page, into `held`. */
static void peek_all(int counted) {
    size_t n, i, got = 0;
    while (got < MANY) {
        OK(&q, delayq_peek(&q, held + got, 1 + (size_t)roll((int)(MANY - got)),
                           &n, got ? &held[got - 1].ticket : NULL));
        for (i = got; i < got + n; i++)
            came(held[i].data, held[i].len, counted ? held[i].attempt : -1);
        got += n;
    }
    all_came();
}

static void nothing_is_left(void) {
    CHECK_INT(ask_int("LLEN " MIRROR), 0);
    CHECK_INT(ask_int("DBSIZE"), 0);
    delayq_close(&q);
}

TEST(elements_that_look_like_others_are_taken_byte_for_byte) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        fill(wire, 1, 0);
        /* with other wires, items come from a list that lacks the attempts */
        take_all(wire == DELAYQ_NATIVE);
        nothing_is_left();
    }
}

TEST(elements_that_look_like_others_are_moved_byte_for_byte) {
    delayq_wire wire;
    int64_t lease_ms;
    EACH_WIRE(wire, 0, 2)
    for (lease_ms = 0; lease_ms <= 60000; lease_ms += 60000) {
        fill(wire, 1, lease_ms);
        move_all();
        take_all(0);
        if (lease_ms > 0) with_each(delayq_ack);
        nothing_is_left();
    }
}

TEST(elements_that_look_like_others_are_leased_and_acked) {
    delayq_wire wire;
    delayq_item item;
    int i;
    EACH_WIRE(wire, 0, 2) {
        fill(wire, 1, 60000);
        take_all(0);
        OK(&q, delayq_ack_many(&q, held, MANY));
        nothing_is_left();
        fill(wire, 1, 60000);
        memset(&item, 0, sizeof item);
        for (i = 0; i <= MANY; i++) {
            poll_now(&q);
            CHECK_STATUS(&q, delayq_ack_take(&q, &item, 0),
                         i < MANY ? DELAYQ_OK : DELAYQ_EMPTY);
            CHECK_INT(item.acked, DELAYQ_OK);
            if (i < MANY) came(item.data, item.len, -1);
        }
        all_came();
        nothing_is_left();
    }
}

static delayq_status nack_now(delayq *to, const delayq_item *item) {
    return delayq_nack(to, item, 0);
}

static delayq_status release(delayq *to, const delayq_item *item) {
    return delayq_nack(to, item, DELAYQ_RELEASE);
}

TEST(elements_that_look_like_others_are_nacked_and_come_again) {
    delayq_wire wire;
    EACH_WIRE(wire, 0, 2) {
        fill(wire, 1, 60000);
        take_all(0);
        CHECK_INT(ask_int("EXISTS " MIRROR), 0);
        peek_all(0);
        with_each(nack_now);
        elapse(main_connection(), 1);
        take_all(0);
        with_each(release);
        elapse(main_connection(), 1);
        take_all(0);
        with_each(delayq_ack);
        nothing_is_left();
    }
}

TEST(elements_that_look_like_others_are_peeked_rescheduled_and_cancelled) {
    delayq_wire wire;
    int i;
    EACH_WIRE(wire, 0, 2) {
        fill(wire, 1, 0);
        peek_all(1);
        for (i = 0; i < MANY; i++)
            OK(&q, delayq_reschedule(&q, &held[i].ticket, 60000));
        peek_all(1);
        for (i = 0; i < MANY; i++) OK(&q, delayq_cancel(&q, &held[i].ticket));
        nothing_is_left();
    }
}

static delayq_status bury(delayq *on, const delayq_item *item) {
    return BURY(on, item);
}

TEST(elements_that_look_like_others_are_buried_and_redriven) {
    static delayq_dead letters[MANY];
    delayq_wire wire;
    size_t n, i;
    EACH_WIRE(wire, 0, 2) {
        fill(wire, 1, 60000);
        take_all(0);
        with_each(bury);
        /* only the dead letters' key is left */
        CHECK_INT(ask_int("DBSIZE"), 1);
        OK(&q, delayq_dead_peek(&q, letters, MANY, &n, 0));
        for (i = 0; i < n; i++) came(letters[i].data, letters[i].len, -1);
        all_came();
        OK(&q, delayq_dead_redrive(&q, MANY, &n));
        take_all(0);
        with_each(delayq_ack);
        nothing_is_left();
    }
}

/* The transfers of Redisson 3.21.0 and earlier stop at an element that Redisson
 * can't read. */
TEST(beside_an_old_redisson_a_lease_is_an_old_element) {
    redisReply *r;
    size_t n, i, got = 0;
    fill(DELAYQ_REDISSON_OLD, 1, 60000);
    for (; got < MANY; got += n) {
        poll_now(&q);
        OK(&q, delayq_take_many(&q, held + got, MANY - got, &n, 0));
    }
    r = run(main_connection(), "ZRANGE " ZSET " 0 -1");
    CHECK_INT(r->elements, MANY);
    for (i = 0; i < r->elements; i++)
        CHECK(payload_start((unsigned char *)r->element[i]->str,
                            r->element[i]->len, 8) > 0);
    freeReplyObject(r);
    for (i = 0; i < MANY; i++) CHECK_INT(held[i].attempt, 0); /* 0: not known */
    with_each(delayq_ack);
    nothing_is_left();
}

/* An element that fits the handle's own format is read in that format. */
TEST(an_old_element_is_refused_unless_it_fits_the_wires_own_format) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    char before[1024];
    int i, refused = 0;
    state = 1;
    for (i = 0; i < MANY; i++) {
        made *m = &all[i];
        make(m, DELAYQ_REDISSON_OLD, 0);
        read_as(m, 0); /* the new format first, as on the other wires */
        o.wire = i % 2 ? DELAYQ_REDISSON : DELAYQ_NATIVE;
        ask("FLUSHALL");
        ask_int("ZADD " ZSET " 1 %b", m->e, m->n);
        snprintf(before, sizeof before, "%s", contents(main_connection()));
        if (m->kind == OLD || (m->kind == 8 && o.wire == DELAYQ_NATIVE)) {
            refused++;
            /* delayq_open checks only an element's first byte */
            int own = m->e[0] == 16 || (i % 2 && m->e[0] == 8);
            CHECK_STATUS(&q, delayq_open(&q, &o),
                         own ? DELAYQ_OK : DELAYQ_ERR_WIRE);
            CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_WIRE);
            CHECK_TEXT(contents(main_connection()), before);
        } else {
            OK(&q, delayq_open(&q, &o));
            OK(&q, delayq_take(&q, &item, 0));
            CHECK_INT(item.len, m->len);
            CHECK(memcmp(item.data, m->payload, m->len) == 0);
            CHECK_INT(ask_int("DBSIZE"), 0);
        }
        delayq_close(&q);
    }
    CHECK(refused > MANY / 3 && refused < MANY);
}
