/*
 * A connection cut at every byte of a call's exchange, in both directions,
 * once and twice in a row: the status tells the truth, the handle recovers by
 * itself, and nothing is lost.
 *
 * The cut is made by a proxy between the handle and the server, a process of
 * its own that is told through shared memory.
 */
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

/* --- the proxy ----------------------------------------------------------- */

struct control {
    volatile int direction; /* 0: to the server, 1: from it */
    volatile long cut_at;   /* close after so many more bytes; -1: never */
    volatile int times;     /* do so for so many connections */
    volatile long passed[2];
};
static struct control *ctl;
static char proxy_path[128];

struct pair {
    int fd[2]; /* client, server */
};

static int unix_socket(const char *path, int listening) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (listening ? bind(fd, (struct sockaddr *)&a, sizeof a) != 0 ||
                        listen(fd, 16) != 0
                  : connect(fd, (struct sockaddr *)&a, sizeof a) != 0)
        FAIL("%s: %s", path, strerror(errno));
    return fd;
}

/* Pass on what has come; 0: this connection has ended. */
static int pass(const struct pair *p, int direction) {
    char bytes[65536];
    ssize_t n = read(p->fd[direction], bytes, sizeof bytes), done = 0;
    int cut = 0;
    if (n <= 0) return 0;
    if (ctl->times > 0 && ctl->direction == direction && ctl->cut_at >= 0) {
        cut = n >= ctl->cut_at;
        if (cut) n = (ssize_t)ctl->cut_at;
        ctl->cut_at -= n;
    }
    ctl->passed[direction] += n;
    while (done < n) {
        ssize_t w = write(p->fd[!direction], bytes + done, (size_t)(n - done));
        if (w <= 0) return 0;
        done += w;
    }
    if (!cut) return 1;
    ctl->times--;
    ctl->cut_at = ctl->times > 0 ? 0 : -1;
    return 0;
}

static void proxy(void *unused) {
    struct pair pairs[32];
    struct pollfd p[65];
    int listener = unix_socket(proxy_path, 1), n = 0, i, d;
    (void)unused;
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        p[0].fd = listener;
        p[0].events = POLLIN;
        for (i = 0; i < 2 * n; i++) {
            p[1 + i].fd = pairs[i / 2].fd[i % 2];
            p[1 + i].events = POLLIN;
        }
        poll(p, (nfds_t)(1 + 2 * n), -1);
        for (i = n - 1; i >= 0; i--)
            for (d = 0; d < 2; d++) {
                if (!p[1 + 2 * i + d].revents || pass(&pairs[i], d)) continue;
                close(pairs[i].fd[0]);
                close(pairs[i].fd[1]);
                pairs[i] = pairs[--n];
                break;
            }
        if (p[0].revents && n < 32) {
            pairs[n].fd[0] = accept(listener, NULL, NULL);
            pairs[n].fd[1] = unix_socket(main_server.socket, 0);
            n++;
        }
    }
}

static redisContext *through_proxy(void *user, int timeout_ms) {
    (void)user;
    (void)timeout_ms;
    return redisConnectUnix(proxy_path);
}

/* --- what is cut --------------------------------------------------------- */

static delayq q;
static delayq_item items[3], got[3];
static delayq_message messages[3];
static size_t count;

static void prepare_nothing(void) {
}
static void prepare_due(void) {
    OFFER(&q, "a", 0);
    OFFER(&q, "b", 0);
    OFFER(&q, "c", 0);
    usleep(2000);
}
static void prepare_pending(void) {
    int i;
    memset(messages, 0, sizeof messages);
    for (i = 0; i < 3; i++) {
        messages[i].data = "abc" + i;
        messages[i].len = 1;
        messages[i].delay_ms = 60000;
    }
    OK(&q, delayq_offer_many(&q, messages, 3));
}
static void prepare_leased(void) {
    size_t n, i = 0;
    prepare_due();
    while (i < 3) {
        OK(&q, delayq_take_many(&q, items + i, 3 - i, &n, 20000));
        i += n;
    }
}
static void prepare_dead(void) {
    int i;
    prepare_leased();
    for (i = 0; i < 3; i++) OK(&q, delayq_bury(&q, &items[i]));
}

static delayq_status do_offer(void) {
    return delayq_offer(&q, "x", 1, 60000);
}
static delayq_status do_offer_many(void) {
    int i;
    memset(messages, 0, sizeof messages);
    for (i = 0; i < 3; i++) {
        messages[i].data = "x";
        messages[i].len = 1;
        messages[i].delay_ms = 60000;
    }
    return delayq_offer_many(&q, messages, 3);
}
static delayq_status do_once(void) {
    memset(messages, 0, sizeof messages);
    messages[0].data = "x";
    messages[0].len = 1;
    messages[0].delay_ms = 60000;
    messages[0].key = "k";
    messages[0].key_ttl_ms = 60000;
    return delayq_offer_many(&q, messages, 1);
}
static delayq_status do_tick(void) {
    q.wake_us = 0;
    return delayq_tick(&q, NULL);
}
static delayq_status do_take(void) {
    return delayq_take_many(&q, got, 2, &count, 0);
}
static delayq_status do_ack(void) {
    return delayq_ack(&q, &items[1]);
}
static delayq_status do_ack_many(void) {
    return delayq_ack_many(&q, items, 3);
}
static delayq_status do_ack_take(void) {
    got[0] = items[1];
    return delayq_ack_take(&q, &got[0], 0);
}
static delayq_status do_nack(void) {
    return delayq_nack(&q, &items[1], 30000);
}
static delayq_status do_extend(void) {
    return delayq_extend(&q, &items[1], 30000);
}
static delayq_status do_bury(void) {
    return delayq_bury(&q, &items[1]);
}
static delayq_status do_cancel(void) {
    return delayq_cancel(&q, &messages[1].ticket);
}
static delayq_status do_reschedule(void) {
    return delayq_reschedule(&q, &messages[1].ticket, 30000);
}
static delayq_status do_peek(void) {
    return delayq_peek(&q, got, 3, &count, NULL);
}
static delayq_status do_count(void) {
    delayq_counts c;
    return delayq_count(&q, &c);
}
static delayq_status do_redrive(void) {
    return delayq_dead_redrive(&q, 2, &count);
}
static delayq_status do_clear(void) {
    return delayq_clear(&q, NULL);
}

/* After the call so many items are in the queue: `done` if it was done, else
 * `undone`. Of what only looks or moves both are the same. */
static const struct verb {
    const char *name;
    void (*prepare)(void);
    delayq_status (*call)(void);
    int undone, done;
    delayq_status good; /* what it returns when nothing is cut */
} verbs[] = {
    {"offer", prepare_nothing, do_offer, 0, 1, DELAYQ_OK},
    {"offer_many", prepare_nothing, do_offer_many, 0, 3, DELAYQ_OK},
    {"offer with a key", prepare_nothing, do_once, 0, 1, DELAYQ_OK},
    {"tick", prepare_due, do_tick, 3, 3, DELAYQ_OK},
    {"take", prepare_due, do_take, 3, 1, DELAYQ_OK},
    {"take with a lease", prepare_due, do_take, 3, 3, DELAYQ_OK},
    {"ack", prepare_leased, do_ack, 3, 2, DELAYQ_OK},
    {"ack_many", prepare_leased, do_ack_many, 3, 0, DELAYQ_OK},
    {"ack_take", prepare_leased, do_ack_take, 3, 2, DELAYQ_EMPTY},
    {"nack", prepare_leased, do_nack, 3, 3, DELAYQ_OK},
    {"extend", prepare_leased, do_extend, 3, 3, DELAYQ_OK},
    {"bury", prepare_leased, do_bury, 3, 3, DELAYQ_OK},
    {"cancel", prepare_pending, do_cancel, 3, 2, DELAYQ_OK},
    {"reschedule", prepare_pending, do_reschedule, 3, 3, DELAYQ_OK},
    {"peek", prepare_pending, do_peek, 3, 3, DELAYQ_OK},
    {"count", prepare_pending, do_count, 3, 3, DELAYQ_OK},
    {"dead_redrive", prepare_dead, do_redrive, 3, 3, DELAYQ_OK},
    {"clear", prepare_pending, do_clear, 3, 0, DELAYQ_OK},
};

static int in_queue(void) {
    return (int)ask_int(
        "EVAL %s 0",
        "return redis.call('ZCARD', 'redisson_delay_queue_timeout:{jobs}') +\n"
        "  redis.call('LLEN', 'jobs') +\n"
        "  redis.call('LLEN', 'delayq_retry:{jobs}') +\n"
        "  redis.call('LLEN', 'delayq_dead:{jobs}')");
}

static int nothing_happened(delayq_status s) {
    return s < 0 && s != DELAYQ_ERR_UNKNOWN && s != DELAYQ_ERR_PROTOCOL;
}

/* One call, cut there. Returns how many bytes would have passed uncut. */
static void cut(const struct verb *v, int direction, long at, int times) {
    delayq_status status;
    int now;
    ask("FLUSHDB");
    q.ready = 0;
    UNTIL(delayq_count(&q, &(delayq_counts){0}) == DELAYQ_OK);
    v->prepare();
    v->call(); /* loads the script */
    ask("FLUSHDB");
    q.ready = 0;
    v->prepare();
    ctl->direction = direction;
    ctl->cut_at = at;
    ctl->times = times;
    status = v->call();
    ctl->cut_at = -1;
    ctl->times = 0;
    now = in_queue();
    if (status == v->good && now != v->done)
        FAIL("%s, cut at byte %ld %s, %d times: done, but %d items", v->name,
             at, direction ? "back" : "out", times, now);
    if (nothing_happened(status) && now != v->undone)
        FAIL("%s, cut at byte %ld %s, %d times: %d (%s), but %d items", v->name,
             at, direction ? "back" : "out", times, status, delayq_errmsg(&q),
             now);
    if (status != v->good && status >= 0)
        FAIL("%s, cut at byte %ld %s, %d times: %d", v->name, at,
             direction ? "back" : "out", times, status);
    if (now != v->undone && now != v->done)
        FAIL("%s, cut at byte %ld %s, %d times: %d items", v->name, at,
             direction ? "back" : "out", times, now);
}

static void every_byte(const struct verb *v, int64_t lease_ms) {
    delayq_options o;
    int direction, times, step;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.connect = through_proxy;
    o.lease_ms = lease_ms;
    OK(&q, delayq_open(&q, &o));
    for (times = 1; times <= 2; times++)
        for (direction = 0; direction < 2; direction++) {
            long at, size;
            cut(v, 0, -1, 0);
            ask("FLUSHDB");
            q.ready = 0;
            v->prepare();
            ctl->passed[0] = ctl->passed[1] = 0;
            CHECK_STATUS(&q, v->call(), v->good);
            size = ctl->passed[direction];
            CHECK(size > 0);
            /* the second cut costs a back-off: every 7th byte will do */
            step = test_slow() > 1 ? 41 : times == 2 ? 7 : 1;
            for (at = 0; at <= size; at += step) cut(v, direction, at, times);
        }
    delayq_close(&q);
}

static void start_proxy(void) {
    ctl = (struct control *)mmap(NULL, sizeof *ctl, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(ctl != MAP_FAILED);
    ctl->cut_at = -1;
    snprintf(proxy_path, sizeof proxy_path, "%s/proxy%d", main_server.dir,
             (int)getpid());
    spawn(proxy, NULL);
    UNTIL(access(proxy_path, F_OK) == 0);
    usleep(10000);
}

static void cut_all(size_t from, size_t to) {
    size_t i;
    start_proxy();
    for (i = from; i < to; i++)
        every_byte(&verbs[i], strcmp(verbs[i].name, "take") == 0 ? 0 : 60000);
}

TEST(a_cut_at_any_byte_of_an_offer_is_told_truly) {
    cut_all(0, 3);
}
TEST(a_cut_at_any_byte_of_a_tick_or_take_is_told_truly) {
    cut_all(3, 6);
}
TEST(a_cut_at_any_byte_of_an_ack_is_told_truly) {
    cut_all(6, 9);
}
TEST(a_cut_at_any_byte_of_a_nack_extend_or_bury_is_told_truly) {
    cut_all(9, 12);
}
TEST(a_cut_at_any_byte_of_cancel_or_reschedule_is_told_truly) {
    cut_all(12, 14);
}
TEST(a_cut_at_any_byte_of_what_looks_or_clears_is_told_truly) {
    cut_all(14, sizeof verbs / sizeof verbs[0]);
}
