/*
 * A process of the rig, compiled with the header of each version. It uses one
 * queue in one role until SIGTERM, and writes its history to a file of its own.
 *
 *     worker KEY=VALUE...   see set_argument
 *
 * Each line of a history is one event: its letter, the time, and so on. Times
 * are real time in microseconds. A request has one line before it and one after
 * it. If the process is killed meanwhile, the second line is missing.
 *
 *     h T version role world queue lease wire outbox pid
 *     p T                     the open of a handle begins
 *     o T N ID DELAY KEY R    offer number N of an item; R is 1: replace
 *     c T N ID, s T N ID DELAY        cancel, reschedule
 *     a T N ID TICKET, b ...          ack, bury
 *     n T N ID TICKET DELAY, x ...    nack, extend
 *     f T N KEY, z T N ON, v T N      cancel_key, pause, redrive
 *     r T N STATUS TICKET     the result of request N, and the new ticket. 97:
 *                             a kept outbox has accepted it. 98: OK, GONE or
 *                             DUPLICATE
 *     T T0 T1 ID ATTEMPT DUE LATE TICKET LEN    an item was taken
 *     e T STATUS TEXT         a call has failed
 *     ! T TEXT                something that must not happen
 *     q T                     the process ends by itself
 */
#define _GNU_SOURCE
#include "../preload/settime.c" /* the rig makes its wall clock jump */
#define DELAYQ_IMPLEMENTATION
#include RIG_HEADER
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#define HELD 16

struct held {
    delayq_item item;
    long long id;
};

static struct {
    const char *role, *world, *url, *queue, *log, *tls_ca, *keep;
    long long instance, lease_ms, gap_us, outbox_size;
    int wire, counters, max_attempts, drain, keys;
} set = {.gap_us = 30000, .max_attempts = 0};

static int file = -1;
static volatile sig_atomic_t ended;
static delayq *volatile waiting; /* the handle that SIGTERM must wake */
static long number;              /* number of the last request */
static long long next_id;
static uint64_t chance_state;

/* --- chance, time, the history --------------------------------------------*/

static uint64_t chance(void) {
    uint64_t z = chance_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static int below(int n) {
    return (int)(chance() % (uint64_t)n);
}

static int percent(int n) {
    return below(100) < n;
}

/* Returns the machine's time, whatever the clock of this process shows. */
static long long now_us(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

/* Write a line by one write(), so that a kill leaves no partial line. */
static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...) {
    char line[700];
    va_list list;
    int n;
    va_start(list, format);
    n = vsnprintf(line, sizeof line - 1, format, list);
    va_end(list);
    if (n > (int)sizeof line - 2) n = (int)sizeof line - 2;
    line[n++] = '\n';
    if (write(file, line, (size_t)n) != n) _exit(9);
}

static void note_failure(const delayq *q, delayq_status status,
                         const char *verb) {
    static long long next_us;
    if (now_us() < next_us) return;
    next_us = now_us() + 200000;
    note("e %lld %d %s: %s", now_us(), status, verb, delayq_errmsg(q));
}

static void note_result(long n, delayq_status status, const char *ticket) {
    note("r %lld %ld %d %s", now_us(), n, status,
         ticket && ticket[0] ? ticket : "-");
}

static void nap(long long us) {
    struct timespec t;
    t.tv_sec = us / 1000000;
    t.tv_nsec = us % 1000000 * 1000;
    if (us > 0 && !ended) nanosleep(&t, NULL);
}

/* --- payloads --------------------------------------------------------------*/

static char filler(long long id, size_t i) {
    return (char)('a' + (i * 7 + (size_t)id) % 26);
}

static size_t payload(long long id, char *to, size_t size) {
    size_t len = (size_t)(24 + below(100)), i, head;
    if (below(200) == 0) len = (size_t)(1000 + below(20000));
    if (below(2000) == 0) len = (size_t)(100000 + below(200000));
    if (len > size) len = size;
    head =
        (size_t)snprintf(to, size, "<%llx %zu>", (unsigned long long)id, len);
    for (i = head; i < len; i++) to[i] = filler(id, i);
    return len;
}

/* Returns the item's id, or -1 if these are not the bytes that were offered. */
static long long payload_id(const void *data, size_t len) {
    char head[64];
    unsigned long long id;
    size_t said, i, n = len < sizeof head - 1 ? len : sizeof head - 1;
    int used = 0;
    memcpy(head, data, n);
    head[n] = '\0';
    if (sscanf(head, "<%llx %zu>%n", &id, &said, &used) != 2 || !used)
        return -1;
    for (i = (size_t)used; i < len; i++)
        if (((const char *)data)[i] != filler((long long)id, i)) return -1;
    return said == len ? (long long)id : -1;
}

/* --- handles ---------------------------------------------------------------*/

static char outbox[1 << 17];
/* 1: the request is a change, which may end as GONE or DUPLICATE */
static int changing;

#if RIG_VERSION >= 2
/* Contains the request of the n-th offer and of the n-th change of the outbox.
 * If the outbox is kept, this table is kept, too. */
#define RING 65536
struct accepted {
    long number;
    long long life;
    int plain; /* an offer without a key */
    uint64_t connections;
};
static struct accepted ours[2][RING], (*accepted)[RING] = ours;
static delayq_outbox_state state;
static delayq *settling; /* the handle whose ops are being settled */

/* Returns a number that grows when a reply may have been lost. */
static uint64_t connections(const delayq *q) {
    return q->counts.reconnects;
}

static void note_accepted(delayq *q, long n) {
    delayq_outbox_state now;
    int changes;
    uint64_t at;
    if (delayq_outbox(q, &now) != DELAYQ_OK) return;
    changes = now.offers_accepted == state.offers_accepted;
    at = (changes ? now.changes_accepted : now.offers_accepted) % RING;
    accepted[changes][at].life = set.instance;
    accepted[changes][at].plain = !changes && !changing;
    accepted[changes][at].connections = connections(q);
    accepted[changes][at].number = n;
    /* From now on the op must be settled, by this process or a later one. */
    if (set.keep) note_result(n, (delayq_status)97, NULL);
    state.offers_accepted = now.offers_accepted;
    state.changes_accepted = now.changes_accepted;
}

/* Note the result of an op. After a lost reply OK may mean GONE or DUPLICATE,
 * so it is noted as 98. */
static void note_settled(int changes, uint64_t n, delayq_status status,
                         int sure) {
    uint64_t at = n % RING;
    if (status == DELAYQ_OK && !accepted[changes][at].plain &&
        (!sure || accepted[changes][at].life != set.instance ||
         accepted[changes][at].connections != connections(settling)))
        status = (delayq_status)98;
    note_result(accepted[changes][at].number, status, NULL);
}
#endif

#if RIG_VERSION >= 3
static int sync_image(void *user, void *address, size_t size) {
    size_t before = (size_t)address % 4096;
    (void)user;
    return msync((char *)address - before, size + before, MS_SYNC);
}

/* Map a file that survives this process: the outbox, or accepted[]. */
static void *map_file(const char *suffix, size_t size) {
    char name[512];
    void *at;
    int fd;
    snprintf(name, sizeof name, "%s%s", set.keep, suffix);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0 || ftruncate(fd, (off_t)size) != 0) _exit(9);
    at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) _exit(9);
    close(fd);
    return at;
}

static void settled(void *user, int changes, uint64_t n, delayq_status status) {
    (void)user;
    note_settled(changes, n, status, 1);
}
#define look_for_settled(q) ((void)0)
#elif RIG_VERSION == 2
/* Version 0.2 reports only the numbers of settled ops. */
static void look_for_settled(delayq *q) {
    delayq_outbox_state now;
    if (delayq_outbox(q, &now) != DELAYQ_OK) return;
    while (state.offers_settled < now.offers_settled)
        note_settled(0, ++state.offers_settled,
                     now.dropped ? (delayq_status)98 : DELAYQ_OK, 0);
    while (state.changes_settled < now.changes_settled)
        note_settled(1, ++state.changes_settled, DELAYQ_OK, 0);
}
#endif

static delayq_options make_options(void) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = set.queue;
    o.url = set.url;
    o.lease_ms = set.lease_ms;
    o.max_attempts = set.wire ? 0 : set.max_attempts;
    o.backoff_ms = 200;
    o.backoff_max_ms = 2000;
    o.tls_ca = set.tls_ca;
    o.io_timeout_ms = 1500;
    o.connect_timeout_ms = 1500;
    o.max_wait_ms = 3000;
#if RIG_VERSION >= 2
    o.reconnect_max_ms = 1000;
    o.counters = set.counters;
    if (set.outbox_size) {
        o.outbox = outbox;
        o.outbox_size = (size_t)set.outbox_size;
    }
#endif
#if RIG_VERSION >= 3
    if (set.outbox_size) o.settled = settled;
    if (set.keep) {
        static void *image;
        if (!image) {
            image = map_file("", (size_t)set.outbox_size);
            accepted =
                (struct accepted(*)[RING])map_file(".accepted", sizeof ours);
        }
        o.outbox = image;
        o.outbox_keep = DELAYQ_KEEP;
        if (set.instance % 2) o.outbox_sync = sync_image;
    }
    if (set.wire) o.wire = DELAYQ_REDISSON;
#else
    if (set.wire) o.wire = DELAYQ_REDISSON;
#endif
    return o;
}

static void open_handle(delayq *q) {
    delayq_options o = make_options();
    delayq_status status;
    memset(q, 0, sizeof *q);
#if RIG_VERSION >= 2
    memset(&state, 0, sizeof state);
    settling = q;
#endif
    note("p %lld", now_us());
    status = delayq_open(q, &o);
    if (status != DELAYQ_OK) note_failure(q, status, "open");
#if RIG_VERSION >= 2
    (void)delayq_outbox(q, &state); /* a kept outbox continues its numbers */
#endif
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_WIRE)
        note("! %lld open returns %d: %s", now_us(), status, delayq_errmsg(q));
}

/* Note a result. If the handle has an outbox, the request is only accepted now,
 * and its result comes later. */
static void result(delayq *q, long n, delayq_status status,
                   const char *ticket) {
#if RIG_VERSION >= 2
    if (set.outbox_size && status == DELAYQ_OK) {
        note_accepted(q, n);
        return;
    }
#endif
    note_result(n, status, ticket);
    if (status < 0) note_failure(q, status, "call");
}

/* --- offers ----------------------------------------------------------------*/

struct offered {
    delayq_ticket ticket;
    long long id;
};
static struct offered mine[HELD];
static char bytes[8][320000];

static int64_t some_delay(void) {
    if (percent(30)) return 0;
    if (percent(2)) return 86400000; /* longer than any run */
    return percent(70) ? below(800) : below(4000);
}

/* Returns one of 60 keys; with *replace set to 1, one of 60 others; or NULL. */
static const char *some_key(char *to, size_t size, int *replace) {
    *replace = 0;
    if (!set.keys || !percent(15)) return NULL;
    *replace = percent(20);
    snprintf(to, size, "%s%d", *replace ? "r" : "k", below(60));
    if (percent(50)) to[0] = (char)(*replace ? 'r' : 'k');
    return to;
}

static void offer_plain(delayq *q) {
    long long id = next_id++;
    size_t len = payload(id, bytes[0], sizeof bytes[0]);
    int64_t delay = some_delay();
    long n = ++number;
    note("o %lld %ld %lld %lld - 0", now_us(), n, id, (long long)delay);
    result(q, n, delayq_offer(q, bytes[0], len, delay), NULL);
}

static delayq_status offer_message(delayq *q, delayq_message *m) {
#if RIG_VERSION >= 2
    return delayq_offer_message(q, m);
#else
    return delayq_offer_many(q, m, 1);
#endif
}

/* Offer a message until its outcome is known, for at most `tries` times. */
static void offer_with_ticket(delayq *q) {
    long long id = next_id++;
    delayq_message m;
    char key[16];
    int tries = percent(80) ? 20 : 1;
    memset(&m, 0, sizeof m);
    m.len = payload(id, bytes[0], sizeof bytes[0]);
    m.data = bytes[0];
    m.delay_ms = some_delay();
    m.key = some_key(key, sizeof key, &m.replace);
    if (m.key) m.key_ttl_ms = 7200000; /* longer than the run */
    do {
        long n = ++number;
        note("o %lld %ld %lld %lld %s %d", now_us(), n, id,
             (long long)m.delay_ms, m.key ? m.key : "-", m.replace);
        (void)offer_message(q, &m);
        changing = m.key != NULL;
        result(q, n, m.status, m.ticket.text);
        changing = 0;
        if (m.status != DELAYQ_ERR_UNKNOWN || set.outbox_size) break;
        nap(50000);
    } while (--tries > 0 && !ended);
    if (m.status == DELAYQ_OK && m.ticket.text[0]) {
        int at = below(HELD);
        mine[at].ticket = m.ticket;
        mine[at].id = id;
    }
}

static void offer_some(delayq *q) {
    delayq_message m[8];
    long n[8];
    int count = 2 + below(6), i;
    memset(m, 0, sizeof m);
    for (i = 0; i < count; i++) {
        long long id = next_id++;
        n[i] = ++number;
        m[i].len = payload(id, bytes[i], sizeof bytes[i]);
        m[i].data = bytes[i];
        m[i].delay_ms = some_delay();
        note("o %lld %ld %lld %lld - 0", now_us(), n[i], id,
             (long long)m[i].delay_ms);
    }
    /* delayq_outbox gives the number only of the last accepted offer. */
    if (set.outbox_size) {
        for (i = 0; i < count; i++) {
            (void)offer_message(q, &m[i]);
            result(q, n[i], m[i].status, NULL);
        }
        return;
    }
    (void)delayq_offer_many(q, m, (size_t)count);
    for (i = 0; i < count; i++) {
        note_result(n[i], m[i].status, m[i].ticket.text);
        if (m[i].status < 0) note_failure(q, m[i].status, "offer_many");
    }
}

static void change_mine(delayq *q) {
    struct offered *o = &mine[below(HELD)];
    long n = ++number;
    delayq_status status;
    if (!o->ticket.text[0]) return;
    changing = 1;
    if (percent(50)) {
        note("c %lld %ld %lld", now_us(), n, o->id);
        status = delayq_cancel(q, &o->ticket);
        result(q, n, status, NULL);
        o->ticket.text[0] = '\0';
    } else {
        int64_t delay = below(2000);
        note("s %lld %ld %lld %lld", now_us(), n, o->id, (long long)delay);
        status = delayq_reschedule(q, &o->ticket, delay);
        result(q, n, status, o->ticket.text);
        if (status != DELAYQ_OK || set.outbox_size) o->ticket.text[0] = '\0';
    }
    changing = 0;
}

static void free_key(delayq *q) {
#if RIG_VERSION >= 3
    char key[16];
    long n = ++number;
    changing = 1;
    snprintf(key, sizeof key, "k%d", below(60));
    note("f %lld %ld %s", now_us(), n, key);
    result(q, n, delayq_cancel_key(q, key), NULL);
    changing = 0;
#else
    (void)q;
#endif
}

static void offer_something(delayq *q) {
    int what = below(100);
    if (what < 45)
        offer_plain(q);
    else if (what < 75)
        offer_with_ticket(q);
    else if (what < 85)
        offer_some(q);
    else if (what < 97)
        change_mine(q);
    else if (set.keys)
        free_key(q);
}

/* --- takes -----------------------------------------------------------------*/

static long long note_taken(const delayq_item *item, long long began_us) {
    long long id = payload_id(item->data, item->len);
    if (id < 0)
        note("! %lld taken bytes that nobody has offered: %zu, \"%.*s\"",
             now_us(), item->len, (int)(item->len < 40 ? item->len : 40),
             (const char *)item->data);
    else
        note("T %lld %lld %lld %d %lld %lld %s %zu", began_us, now_us(), id,
             item->attempt, (long long)item->due_ms, (long long)item->late_us,
             item->ticket.text[0] ? item->ticket.text : "-", item->len);
    return id;
}

static long note_change(char letter, long long id, const char *ticket) {
    note("%c %lld %ld %lld %s", letter, now_us(), ++number, id, ticket);
    return number;
}

static void ack(delayq *q, const delayq_item *item, long long id) {
    int tries = percent(50) ? 5 : 1;
    delayq_status status;
    do { /* after UNKNOWN another ack is harmless */
        long n = note_change('a', id, item->ticket.text);
        status = delayq_ack(q, item);
        result(q, n, status, NULL);
        if (status != DELAYQ_ERR_UNKNOWN || ended) break;
        nap(50000);
    } while (--tries > 0);
}

static void nack(delayq *q, const delayq_item *item, long long id) {
    int64_t delay = percent(50) ? below(600) : percent(70) ? 0 : DELAYQ_BACKOFF;
#if RIG_VERSION >= 2 /* in 0.1 the next lease would have the same ticket */
    if (percent(20)) delay = DELAYQ_RELEASE;
#endif
    note("n %lld %ld %lld %s %lld", now_us(), ++number, id, item->ticket.text,
         (long long)delay);
    result(q, number, delayq_nack(q, item, delay), NULL);
}

static void extend(delayq *q, delayq_item *item, long long id) {
    int64_t lease = set.lease_ms + below(2000);
    delayq_status status;
    note("x %lld %ld %lld %s %lld", now_us(), ++number, id, item->ticket.text,
         (long long)lease);
    status = delayq_extend(q, item, lease);
    result(q, number, status, item->ticket.text);
    if (status != DELAYQ_OK) item->ticket.text[0] = '\0';
}

static void bury(delayq *q, const delayq_item *item, long long id) {
    long n = note_change('b', id, item->ticket.text);
#if RIG_VERSION >= 3
    result(q, n, delayq_bury(q, item, "the rig"), NULL);
#else
    result(q, n, delayq_bury(q, item), NULL);
#endif
}

/* End a lease by a call that is chosen at random, or let it run out. */
static void handle(delayq *q, delayq_item *item, long long id) {
    int what = below(100);
    if (id < 0 || !set.lease_ms) return;
    if (set.drain) what = 99;
    if (what < 12) {
        nack(q, item, id);
    } else if (what < 20) {
        extend(q, item, id);
        if (!item->ticket.text[0]) return;
        nap(below(20000));
        ack(q, item, id);
    } else if (what < 22) {
        bury(q, item, id);
    } else if (what >= 26 || set.drain) {
        if (percent(5) && !set.outbox_size) nap(below(300000));
        ack(q, item, id);
    }
}

static int64_t some_timeout(void) {
    static const int64_t all[] = {0, 20, 300, 300, 2000, 12000};
    return set.drain ? 500 : all[below(6)];
}

static void take_failed(delayq *q, delayq_status status) {
    if (status >= 0) return;
    note_failure(q, status, "take");
    nap(30000 + below(50000));
}

static void take_one(delayq *q, int64_t timeout_ms) {
    delayq_item item;
    long long began = now_us();
    delayq_status status;
    memset(&item, 0, sizeof item);
    waiting = q;
    status = delayq_take(q, &item, timeout_ms);
    waiting = NULL;
    if (status == DELAYQ_OK)
        handle(q, &item, note_taken(&item, began));
    else
        take_failed(q, status);
}

static void take_several(delayq *q, int64_t timeout_ms) {
    delayq_item items[6];
    size_t count = 0, i, n = 0;
    long long id[6], began = now_us();
    long numbers_of[6];
    delayq_status status;
    memset(items, 0, sizeof items);
    waiting = q;
    status = delayq_take_many(q, items, 6, &count, timeout_ms);
    waiting = NULL;
    if (status != DELAYQ_OK) {
        take_failed(q, status);
        return;
    }
    for (i = 0; i < count; i++) id[i] = note_taken(&items[i], began);
    if (!set.lease_ms) return;
    for (i = 0; i < count; i++) {
        if (id[i] < 0 || (!set.drain && percent(10))) continue;
        items[n] = items[i];
        id[n] = id[i];
        numbers_of[n] = note_change('a', id[n], items[n].ticket.text);
        n++;
    }
    if (n == 0) return;
    status = delayq_ack_many(q, items, n);
    /* After a failure `acked` says which items were not tried. */
    for (i = 0; i < n; i++) note_result(numbers_of[i], items[i].acked, NULL);
}

static void take_and_ack(delayq *q, int64_t timeout_ms) {
    delayq_item item;
    long long id = -1;
    int turns;
    memset(&item, 0, sizeof item);
    for (turns = 0; turns < 20; turns++) {
        long long began = now_us();
        delayq_status status;
        long n = 0;
        if (item.ticket.text[0]) n = note_change('a', id, item.ticket.text);
        waiting = q;
        status = delayq_ack_take(q, &item, timeout_ms);
        waiting = NULL;
        if (n) note_result(n, item.acked, NULL);
        if (status != DELAYQ_OK) {
            take_failed(q, status);
            return; /* if the ack has failed, the lease runs out */
        }
        id = note_taken(&item, began);
        if (id < 0 || ended) return;
    }
}

static void take_something(delayq *q) {
    int what = below(100);
    if (what < 60 || !set.lease_ms)
        take_one(q, some_timeout());
    else if (what < 80)
        take_several(q, some_timeout());
    else
        take_and_ack(q, some_timeout());
}

/* --- roles -----------------------------------------------------------------*/

static void produce(delayq *q) {
    while (!ended) {
        offer_something(q);
        nap(below((int)set.gap_us * 2));
    }
}

static void work(delayq *q) {
    while (!ended) {
        take_something(q);
        if (!set.drain) nap(below((int)set.gap_us));
    }
}

/* Use the queue like a program with a poll loop. */
static void loop(delayq *q) {
    while (!ended) {
        struct pollfd p[4];
        int fds[4];
        int64_t wait_ms = 0;
        size_t n, i;
        take_one(q, 0);
        if (delayq_tick(q, &wait_ms) < 0) note_failure(q, -99, "tick");
        if (wait_ms > 300) wait_ms = 300;
        n = delayq_fds(q, fds, 4);
        for (i = 0; i < n; i++) {
            p[i].fd = fds[i];
            p[i].events = POLLIN;
        }
        if (!ended) poll(p, (nfds_t)n, (int)wait_ms);
        nap(2000);
    }
}

static void move(delayq *q) {
    while (!ended) {
        int64_t wait_ms = 0;
        delayq_status status = delayq_tick(q, &wait_ms);
        if (status < 0) note_failure(q, status, "tick");
        nap(wait_ms > 200 ? 200000 : 5000 + wait_ms * 1000);
    }
}

#if RIG_VERSION >= 2
/* Offer and take in frames, like a game with an outbox. */
static void frames(delayq *q) {
    /* If the rig drains the queue, only settle the ops of a kept outbox. */
    if (set.keep && set.drain) ended = 1;
    while (!ended) {
        int i;
        for (i = 0; i < 10; i++) {
            delayq_item item;
            long long began = now_us();
            memset(&item, 0, sizeof item);
            if (delayq_take(q, &item, 0) != DELAYQ_OK) break;
            handle(q, &item, note_taken(&item, began));
        }
        if (!set.drain && below((int)set.gap_us) < 16000) offer_something(q);
        (void)delayq_tick(q, NULL);
        look_for_settled(q);
        nap(16000);
    }
    if (set.keep && !set.drain && percent(70))
        return; /* the next process continues with the outbox */
    /* Flush, since a lost offer would be a fault (a lost lease would not). */
    for (;;) {
        delayq_status status = delayq_flush(q, 1000);
        look_for_settled(q);
        if (status == DELAYQ_OK || status == DELAYQ_ERR_ARG) break;
        if (ended > 1) break;
    }
}
#endif

/* Open, use and close the handle, again and again. */
static void churn(delayq *q) {
    while (!ended) {
        int n = below(4);
        while (n-- > 0 && !ended) {
            if (percent(50))
                offer_something(q);
            else
                take_one(q, percent(50) ? 0 : 100);
        }
        delayq_close(q);
        nap(below((int)set.gap_us));
        open_handle(q);
    }
}

/* Check that a child can't use its parent's handle, and let it use its own. */
static void child(delayq *inherited) {
    static delayq own;
    delayq_status status;
    char name[512];
    delayq_item item;
    memset(&item, 0, sizeof item);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(file);
    snprintf(name, sizeof name, "%s.%lld", set.log, next_id);
    file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) _exit(9);
    note("h %lld %s %s %s %s %lld %d 0 %d", now_us(), RIG_NAME, "child",
         set.world, set.queue, set.lease_ms, set.wire, (int)getpid());
    chance_state += (uint64_t)next_id;
    if (delayq_offer(inherited, "x", 1, 0) != DELAYQ_ERR_ARG)
        note("! %lld a child may use its parent's handle", now_us());
    /* an idle handle reads its socket at most once in a millisecond */
    usleep(5000);
    status = delayq_take(inherited, &item, 0);
    if (status != DELAYQ_ERR_ARG)
        note("! %lld a child's take with its parent's handle returns %d",
             now_us(), status);
    delayq_close(inherited);
    open_handle(&own);
    offer_plain(&own);
    take_one(&own, 0);
    delayq_close(&own);
    note("q %lld", now_us());
    _exit(0);
}

static void fork_children(delayq *q) {
    while (!ended) {
        pid_t pid;
        int status = 0;
        offer_plain(q);
        take_one(q, 20);
        pid = fork();
        if (pid == 0) child(q);
        next_id += 4; /* the child has used up to 4 ids */
        while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {
        }
        if (pid > 0 && status)
            note("! %lld a child ends with status %d", now_us(), status);
        nap(400000 + below(800000));
    }
}

static void watch(delayq *q) {
    while (!ended) {
        delayq_item items[40];
        delayq_counts counts;
        delayq_ticket after;
        size_t n = 0, i;
        int64_t last = 0;
        int pages;
        memset(&after, 0, sizeof after);
        (void)delayq_count(q, &counts);
        for (pages = 0; pages < 5; pages++) {
            if (delayq_peek(q, items, 40, &n, &after) != DELAYQ_OK) break;
            for (i = 0; i < n; i++) {
                if (items[i].due_ms < last)
                    note("! %lld peek shows %lld after %lld", now_us(),
                         (long long)items[i].due_ms, (long long)last);
                last = items[i].due_ms;
            }
            after = items[n - 1].ticket;
        }
        nap(200000 + below(300000));
    }
}

static void redrive(delayq *q) {
    while (!ended) {
        size_t count = 0;
        nap(1500000 + below(1500000));
        note("v %lld %ld", now_us(), ++number);
        note_result(number, delayq_dead_redrive(q, 20, &count), NULL);
    }
}

static void pause_it(delayq *q) {
#if RIG_VERSION >= 3
    while (!ended) {
        int on;
        nap(2000000 + below(3000000));
        for (on = 1; on >= 0; on--) {
            delayq_status status;
            do {
                note("z %lld %ld %d", now_us(), ++number, on);
                status = delayq_pause(q, on);
                note_result(number, status, NULL);
                if (status != DELAYQ_OK) nap(200000);
            } while (!on && status != DELAYQ_OK && !ended);
            if (on) nap(200000 + below(600000));
        }
    }
#endif
    (void)q;
}

/* --- the process -----------------------------------------------------------*/

static void on_term(int sig) {
    (void)sig;
    ended++;
    if (waiting) delayq_wake(waiting);
}

static int set_argument(const char *text) {
    const char *value = strchr(text, '=');
    if (!value) return 0;
    value++;
#define IS(name) (strncmp(text, name "=", sizeof name) == 0)
    if (IS("role"))
        set.role = value;
    else if (IS("world"))
        set.world = value;
    else if (IS("url"))
        set.url = value;
    else if (IS("queue"))
        set.queue = value;
    else if (IS("log"))
        set.log = value;
    else if (IS("tls_ca"))
        set.tls_ca = value;
    else if (IS("keep"))
        set.keep = value;
    else if (IS("instance"))
        set.instance = atoll(value);
    else if (IS("seed"))
        chance_state = strtoull(value, NULL, 10);
    else if (IS("lease"))
        set.lease_ms = atoll(value);
    else if (IS("gap"))
        set.gap_us = atoll(value);
    else if (IS("outbox"))
        set.outbox_size = atoll(value);
    else if (IS("wire"))
        set.wire = atoi(value);
    else if (IS("counters"))
        set.counters = atoi(value);
    else if (IS("attempts"))
        set.max_attempts = atoi(value);
    else if (IS("drain"))
        set.drain = atoi(value);
    else if (IS("keys"))
        set.keys = atoi(value);
    else
        return 0;
    return 1;
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(delayq *);
    } roles[] = {
        {"produce", produce},
        {"work", work},
        {"loop", loop},
        {"move", move},
        {"churn", churn},
        {"fork", fork_children},
        {"watch", watch},
        {"redrive", redrive},
        {"pause", pause_it},
#if RIG_VERSION >= 2
        {"frames", frames},
#endif
    };
    static delayq q;
    struct sigaction action;
    size_t r;
    int i;
    for (i = 1; i < argc; i++)
        if (!set_argument(argv[i])) {
            fprintf(stderr, "worker: %s?\n", argv[i]);
            return 2;
        }
    for (r = 0; r < sizeof roles / sizeof roles[0]; r++)
        if (set.role && strcmp(set.role, roles[r].name) == 0) break;
    if (r == sizeof roles / sizeof roles[0] || !set.log || !set.url) return 2;
    file = open(set.log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (file < 0) return 2;
    next_id = set.instance * 1000000;
    number = set.instance * 1000000;
    if (set.outbox_size > (long long)sizeof outbox) return 2;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_term; /* so that SIGTERM ends nanosleep and poll */
    sigaction(SIGTERM, &action, NULL);
    note("h %lld %s %s %s %s %lld %d %d %d", now_us(), RIG_NAME, set.role,
         set.world, set.queue, set.lease_ms, set.wire,
         set.keep ? 2 : set.outbox_size > 0, (int)getpid());
    open_handle(&q);
    roles[r].run(&q);
    delayq_close(&q);
    note("q %lld", now_us());
    return 0;
}
