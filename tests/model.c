/*
 * No item is lost. Each offered item is acked, cancelled, pending (or leased),
 * ready or dead. The sums are checked after thousands of random operations,
 * each of which is compared with a model in memory, and after workers that
 * nack, die and time out at random.
 */
#include "test.h"
#include <sys/wait.h>

#define ITEMS 4000
#define HELD 16
#define MOST 5
#define KEYS 8

enum fate { NEVER, WAITING, ACKED, CANCELLED, DEAD };

struct model {
    enum fate fate[ITEMS];
    int attempt[ITEMS];  /* number of deliveries without the released ones */
    int delivery[ITEMS]; /* number of the item's last delivery */
    /* local time in us before which the item may not be delivered again */
    long long leased_until[ITEMS];
    /* ticket of the offer; "" after the item was handed out */
    delayq_ticket ticket[ITEMS];
    int offered, acked, cancelled, dead, late;
    int64_t max_late_ms; /* 0: no limit */
    int paused;
    int has_key[KEYS]; /* 1: an offer with this key is a duplicate */
    int of_key[KEYS];  /* the last item that was offered with this key */
};
struct hold {
    delayq_item item;
    int id, delivery, attempt;
    long long sure_until; /* the lease lasts at least until this time */
};

static struct model m;
static struct hold held[HELD];
static delayq handles[3];
static int lease_of[3] = {15, 40, 60000};

static int is_due_soon(int id) {
    return m.fate[id] == WAITING;
}

static void do_offer(delayq *q) {
    delayq_message one;
    char text[16];
    int id = m.offered, key = rand() % (4 * KEYS);
    char name[2] = "a";
    if (id == ITEMS) return;
    snprintf(text, sizeof text, "%d", id);
    memset(&one, 0, sizeof one);
    one.data = text;
    one.len = strlen(text);
    one.delay_ms = rand() % 12;
    if (key < KEYS) {
        name[0] = (char)('a' + key);
        one.key = name;
        one.key_ttl_ms = 3600000;
    }
    if (key < KEYS && m.has_key[key]) {
        CHECK_STATUS(q, delayq_offer_message(q, &one), DELAYQ_DUPLICATE);
        return;
    }
    OK(q, delayq_offer_message(q, &one));
    if (key < KEYS) m.has_key[key] = 1;
    if (key < KEYS) m.of_key[key] = id;
    m.fate[id] = WAITING;
    m.ticket[id] = one.ticket;
    m.leased_until[id] = 0;
    m.offered++;
}

static void do_take(int which) {
    delayq *q = &handles[which];
    int slot = rand() % HELD, id;
    struct hold *h = &held[slot];
    delayq_item item;
    long long before = now_us(), after;
    delayq_status status = delayq_take(q, &item, 0);
    if (status == DELAYQ_EMPTY) return;
    OK(q, status);
    if (m.paused) FAIL("an item of a paused queue");
    after = now_us();
    id = atoi((const char *)item.data);
    CHECK(id >= 0 && id < m.offered);
    CHECK_INT(m.fate[id], WAITING);
    if (after < m.leased_until[id])
        FAIL("item %d came %lld us before its lease's end", id,
             m.leased_until[id] - after);
    m.attempt[id]++;
    if (item.attempt != m.attempt[id])
        FAIL("item %d: attempt %d, not %d", id, item.attempt, m.attempt[id]);
    CHECK(item.attempt <= MOST);
    if (m.max_late_ms > 0) /* ticks move nothing, so the lateness is known */
        CHECK(item.late_us >= 0 && item.late_us <= m.max_late_ms * 1000);
    m.delivery[id]++;
    m.ticket[id].text[0] = '\0';
    m.leased_until[id] = before + lease_of[which] * 1000LL;
    h->item = item;
    h->id = id;
    h->delivery = m.delivery[id];
    h->attempt = item.attempt;
    h->sure_until = m.leased_until[id];
}

/* Check that the status of an operation on a lease is allowed. Returns 1 if the
 * operation was done. */
static int settle(struct hold *h, delayq *q, delayq_status status) {
    int mine = h->delivery == m.delivery[h->id] && m.fate[h->id] == WAITING;
    if (status != DELAYQ_OK && status != DELAYQ_GONE)
        FAIL("%d: %s", status, delayq_errmsg(q));
    if (status == DELAYQ_OK && !mine)
        FAIL("item %d: done with a lease that another has", h->id);
    if (status == DELAYQ_GONE && mine && now_us() < h->sure_until)
        FAIL("item %d: its lease is lost before its end", h->id);
    return status == DELAYQ_OK;
}

static void do_lease(int which) {
    delayq *q = &handles[which];
    struct hold *h = &held[rand() % HELD];
    long long before = now_us();
    int delay = rand() % 10;
    if (h->id < 0) return;
    switch (rand() % 6) {
    case 0:
    case 1:
        if (settle(h, q, delayq_ack(q, &h->item))) {
            m.fate[h->id] = ACKED;
            m.acked++;
        }
        h->id = -1;
        break;
    case 2:
        if (settle(h, q, delayq_nack(q, &h->item, delay))) {
            m.delivery[h->id]++;
            m.leased_until[h->id] = before + delay * 1000LL;
        }
        h->id = -1;
        break;
    case 3:
        if (settle(h, q, delayq_nack(q, &h->item, DELAYQ_RELEASE))) {
            m.delivery[h->id]++;
            m.attempt[h->id]--;
            m.leased_until[h->id] = 0;
        }
        h->id = -1;
        break;
    case 4:
        if (settle(h, q, delayq_extend(q, &h->item, 20)))
            h->sure_until = m.leased_until[h->id] = before + 20000;
        else
            h->id = -1;
        break;
    default:
        if (rand() % 4) return;
        if (settle(h, q, delayq_bury(q, &h->item, h->id % 2 ? "odd" : NULL))) {
            m.fate[h->id] = DEAD;
            m.dead++;
        }
        h->id = -1;
    }
}

static void do_ticket(delayq *q) {
    int id = m.offered ? rand() % m.offered : 0;
    delayq_status status;
    if (!m.offered || !m.ticket[id].text[0]) return;
    if (rand() % 2) {
        status = delayq_cancel(q, &m.ticket[id]);
        if (status == DELAYQ_OK) {
            CHECK_INT(m.fate[id], WAITING);
            m.fate[id] = CANCELLED;
            m.cancelled++;
        }
    } else {
        status = delayq_reschedule(q, &m.ticket[id], rand() % 10);
    }
    if (status != DELAYQ_OK && status != DELAYQ_GONE)
        FAIL("%d: %s", status, delayq_errmsg(q));
}

/* Cancel a key. Afterwards the key is free, even if its item was due and had
 * already been moved. */
static void do_key(delayq *q) {
    int key = rand() % KEYS, id = m.of_key[key];
    char name[2] = "a";
    delayq_status status;
    name[0] = (char)('a' + key);
    status = delayq_cancel_key(q, name);
    if (status == DELAYQ_OK) {
        CHECK(m.has_key[key]);
        CHECK_INT(m.fate[id], WAITING);
        CHECK_INT(m.attempt[id], 0);
        m.fate[id] = CANCELLED;
        m.cancelled++;
    } else {
        CHECK_STATUS(q, status, DELAYQ_GONE);
    }
    m.has_key[key] = 0;
}

static void do_pause(delayq *q) {
    delayq_counts c;
    m.paused = !m.paused;
    OK(q, delayq_pause(q, m.paused));
    OK(q, delayq_count(q, &c));
    CHECK_INT(c.paused > 0, m.paused);
}

static void do_tick(delayq *q) {
    uint64_t moved = q->counts.moved;
    OK(q, delayq_tick(q, NULL));
    if (m.paused) CHECK_INT(q->counts.moved, moved);
}

/* Read the dead letters, and note the items that have died because of too many
 * attempts, or because they were late. */
static void learn_dead(delayq *q) {
    delayq_dead dead[64];
    size_t n, from = 0, i;
    while (delayq_dead_peek(q, dead, 64, &n, from) == DELAYQ_OK) {
        for (i = 0; i < n; i++) {
            int id = atoi((const char *)dead[i].data);
            int buried = strcmp(dead[i].reason, "buried") == 0;
            int late = strcmp(dead[i].reason, "late") == 0;
            CHECK_TEXT(dead[i].why, buried && id % 2 ? "odd" : "");
            if (m.fate[id] == DEAD) continue;
            CHECK_INT(m.fate[id], WAITING);
            if (late) CHECK(m.max_late_ms > 0);
            if (!late) CHECK_TEXT(dead[i].reason, "attempts");
            if (!late) CHECK_INT(m.attempt[id], MOST);
            CHECK(dead[i].attempt <= m.attempt[id]);
            m.late += late;
            m.fate[id] = DEAD;
            m.dead++;
        }
        from += n;
    }
}

static void balance(delayq *q) {
    delayq_counts c;
    int waiting = 0, i;
    learn_dead(q);
    OK(q, delayq_count(q, &c));
    for (i = 0; i < m.offered; i++) waiting += is_due_soon(i);
    if (c.pending + c.ready != waiting || c.dead != m.dead)
        FAIL("%d offered, %d acked, %d cancelled: pending %d + ready %d, not "
             "%d; dead %d, not %d",
             m.offered, m.acked, m.cancelled, (int)c.pending, (int)c.ready,
             waiting, (int)c.dead, m.dead);
    CHECK_INT(m.offered, m.acked + m.cancelled + m.dead + waiting);
}

/* Run random operations. If `late` is 1, the handles have a max_late_ms, so
 * late items become dead letters. */
static void random_operations(int late) {
    int steps = test_brief() ? 2000 : 20000, i;
    m.max_late_ms = late ? 1 + rand() % 20 : 0;
    for (i = 0; i < HELD; i++) held[i].id = -1;
    for (i = 0; i < 3; i++) {
        delayq_options o = options_for(&main_server, "jobs");
        o.lease_ms = lease_of[i];
        o.max_attempts = MOST;
        o.max_late_ms = m.max_late_ms;
        OK(&handles[i], delayq_open(&handles[i], &o));
    }
    for (i = 0; i < steps; i++) {
        int which = rand() % 3, what = rand() % 10;
        if (what < 2)
            do_offer(&handles[which]);
        else if (what < 5)
            do_take(which);
        else if (what < 7)
            do_lease(which);
        else if (what < 8)
            do_ticket(&handles[which]);
        else if (what < 9)
            do_tick(&handles[which]);
        else if (rand() % 4 == 0)
            do_key(&handles[which]);
        else if (rand() % (m.paused ? 4 : 20) == 0)
            do_pause(&handles[which]);
        if (i % 500 == 0) balance(&handles[0]);
    }
    if (m.paused) do_pause(&handles[0]);
    /* give back the items that are still held */
    for (i = 0; i < HELD; i++) {
        if (held[i].id < 0) continue;
        if (settle(&held[i], &handles[0],
                   delayq_nack(&handles[0], &held[i].item, 0))) {
            m.delivery[held[i].id]++;
            m.leased_until[held[i].id] = 0;
        }
        held[i].id = -1;
    }
    /* Items that are no longer in held[] may still be leased, for up to 60 s */
    for (i = 0; i < m.offered; i++) m.leased_until[i] = 0;
    for (;;) { /* make all items due, as if these 60 s had passed */
        delayq_item item;
        delayq_status status;
        delayq_counts c;
        ask("EVAL %s 1 redisson_delay_queue_timeout:{jobs}",
            "local time = redis.call('TIME')\n"
            "local now = time[1] * 1000 + math.floor(time[2] / 1000)\n"
            "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
            "  redis.call('ZADD', KEYS[1], now, e)\n"
            "end");
        poll_now(&handles[2]);
        status = delayq_take(&handles[2], &item, 0);
        OK(&handles[2], delayq_count(&handles[2], &c));
        if (status == DELAYQ_EMPTY && c.pending + c.ready > 0) continue;
        if (status == DELAYQ_EMPTY) break;
        OK(&handles[2], status);
        CHECK_INT(m.fate[atoi((const char *)item.data)], WAITING);
        m.fate[atoi((const char *)item.data)] = ACKED;
        m.acked++;
        OK(&handles[2], delayq_ack(&handles[2], &item));
    }
    /* The model does not count these takes. A dead item has MOST attempts. */
    for (i = 0; i < m.offered; i++)
        if (m.fate[i] == WAITING) m.attempt[i] = MOST;
    balance(&handles[0]);
    CHECK_INT(m.offered, m.acked + m.cancelled + m.dead);
    if (late) printf("    %d late\n", m.late);
    for (i = 0; i < 3; i++) delayq_close(&handles[i]);
}

LONG_TEST(random_operations_agree_with_a_model) {
    random_operations(0);
}
TEST(random_operations_with_late_items_agree_with_a_model) {
    random_operations(1);
}
