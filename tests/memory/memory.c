/*
 * Each allocation that hiredis makes in a call fails in turn. There must be no
 * crash and no leak. The status must be true, and the handle must recover by
 * itself. Each offered item must be in the queue, or have been taken.
 *
 * delayq allocates nothing itself. hiredis is linked in from libhiredis.a, so
 * that the linker's --wrap can come between it and malloc.
 */
#define DELAYQ_IMPLEMENTATION
#include "../calls.h"
#include <fcntl.h>
#include <hiredis/sds.h>
#include <sys/socket.h>

/* --- failing allocations ------------------------------------------------- */

static int armed; /* allocations are counted, and one fails */
/* not 0 while hiredis runs code that does not survive a failed allocation */
static int spared;
/* not 0 while hiredis runs code that does not survive a failing sdsempty */
static int refilling;
static long fail_at;     /* the number of the allocation that fails, from 1 */
static long allocations; /* the number of allocations since arm() */

static int fails(void) {
    return armed && !spared && ++allocations == fail_at;
}

/* Replace a function of libc, which the linker renames to __real_NAME. */
#define WRAP(type, name, parameters, arguments)          \
    type __real_##name parameters;                       \
    type __wrap_##name parameters;                       \
    type __wrap_##name parameters {                      \
        return fails() ? NULL : __real_##name arguments; \
    }
WRAP(void *, malloc, (size_t size), (size))
WRAP(void *, calloc, (size_t n, size_t size), (n, size))
WRAP(void *, realloc, (void *p, size_t size), (p, size))
WRAP(char *, strdup, (const char *text), (text))

/*
 * Failures that hiredis 0.14 does not survive are not tested:
 *
 *   hi_malloc, hi_strdup   call abort() if they can't copy the path, host or
 *                          address in redisContextConnectUnix and ...Tcp
 *   redisBufferWrite       after its last write, reads the length of the new
 *                          buffer, which is NULL if sdsempty has failed
 *   redisReaderFeed        frees a large buffer, and asserts that sdsempty
 *                          returns a new one
 */
#define WITHIN(counter, type, name, parameters, arguments) \
    type __real_##name parameters;                         \
    type __wrap_##name parameters;                         \
    type __wrap_##name parameters {                        \
        type result;                                       \
        counter++;                                         \
        result = __real_##name arguments;                  \
        counter--;                                         \
        return result;                                     \
    }
/* In hiredis 1.0 and later these two are inline, and no failure is fatal. */
#if HIREDIS_MAJOR < 1
WITHIN(spared, void *, hi_malloc, (size_t size), (size))
WITHIN(spared, char *, hi_strdup, (const char *text), (text))
#endif
WITHIN(refilling, int, redisBufferWrite, (redisContext * c, int *done),
       (c, done))
WITHIN(refilling, int, redisReaderFeed,
       (redisReader * r, const char *bytes, size_t size), (r, bytes, size))

sds __real_sdsempty(void);
sds __wrap_sdsempty(void);
sds __wrap_sdsempty(void) {
    int spare = HIREDIS_MAJOR < 1 ? refilling : 0;
    sds result;
    spared += spare;
    result = __real_sdsempty();
    spared -= spare;
    return result;
}

static void arm(long at) {
    allocations = 0;
    fail_at = at;
    armed = 1;
}

/* Stop counting. Returns 1 if an allocation has failed. */
static int disarm(void) {
    armed = 0;
    return allocations >= fail_at;
}

/* --- more calls ---------------------------------------------------------- */

static delayq second;

static delayq_status do_offer_large(void) {
    static char large[300000];
    return delayq_offer(&q, large, sizeof large, 60000);
}
/* One message with a key and two without, so that there is more than one
 * script. */
static delayq_status do_offer_keys(void) {
    int i;
    memset(messages, 0, sizeof messages);
    for (i = 0; i < 3; i++) {
        messages[i].data = "x";
        messages[i].len = 1;
        messages[i].delay_ms = 60000;
    }
    messages[1].key = "k";
    messages[1].key_ttl_ms = 60000;
    return delayq_offer_many(&q, messages, 3);
}
static delayq_status do_take_waiting(void) {
    return delayq_take_many(&q, got, 2, &count, 40);
}
static delayq_status do_dead_peek(void) {
    delayq_dead letters[3];
    return delayq_dead_peek(&q, letters, 3, &count, 0);
}
static delayq_status do_dead_clear(void) {
    return delayq_dead_clear(&q, NULL);
}
static delayq_status do_wait(void) {
    delayq *const all[] = {&q};
    poll_now(&q);
    return delayq_wait(all, 1, 40);
}
static delayq_status do_share(void) {
    delayq_options o;
    delayq_status status;
    memset(&o, 0, sizeof o);
    o.name = "more";
    o.share = &q;
    status = delayq_open(&second, &o);
    if (status == DELAYQ_OK) status = delayq_tick(&second, NULL);
    delayq_close(&second);
    return status;
}

static const struct verb own_verbs[] = {
    {"offer, large", prepare_nothing, do_offer_large, 0, 1, DELAYQ_OK, 0},
    {"offer_many, a key", prepare_nothing, do_offer_keys, 0, 3, DELAYQ_OK, 0},
    {"take, waiting", prepare_nothing, do_take_waiting, 0, 0, DELAYQ_EMPTY, 0},
    {"wait", prepare_pending, do_wait, 3, 3, DELAYQ_EMPTY, 0},
    {"share", prepare_pending, do_share, 3, 3, DELAYQ_OK, 0},
    {"dead_peek", prepare_dead, do_dead_peek, 3, 3, DELAYQ_OK, 1},
    {"dead_clear", prepare_dead, do_dead_clear, 3, 0, DELAYQ_OK, 1},
};

/* --- what has to hold ---------------------------------------------------- */

static int open_files(void) {
    int fd, n = 0;
    for (fd = 0; fd < 256; fd++) n += fcntl(fd, F_GETFD) >= 0;
    return n;
}

/* Check that each message is where its status says. */
static void check_messages(int now, long k) {
    int i, sure = 0, perhaps = 0;
    for (i = 0; i < 3; i++) {
        sure += messages[i].status == DELAYQ_OK;
        perhaps += messages[i].status == DELAYQ_ERR_UNKNOWN;
    }
    if (now < sure || now > sure + perhaps)
        FAIL("offer_many, allocation %ld: %d items, but %d stored and %d "
             "unknown",
             k, now, sure, perhaps);
}

static void check_truth(const struct verb *v, delayq_status s, long k) {
    int now = in_queue();
    if (s != v->good && s != DELAYQ_ERR_MEMORY && s != DELAYQ_ERR_IO &&
        s != DELAYQ_ERR_UNKNOWN)
        FAIL("%s, allocation %ld: %d: %s", v->name, k, s, delayq_errmsg(&q));
    if (s == DELAYQ_ERR_UNKNOWN && (now == v->undone || now == v->done)) return;
    if (v->call == do_offer_keys)
        check_messages(now, k);
    else if (now != (s == v->good ? v->done : v->undone))
        FAIL("%s, allocation %ld: %d (%s), but %d items", v->name, k, s,
             delayq_errmsg(&q), now);
}

/* Check that the next call succeeds. The back-off is skipped. */
static void recover(const struct verb *v, long k) {
    delayq_counts c;
    q.conn->cmd.retry_us = q.conn->sub.retry_us = 0;
    if (delayq_count(&q, &c) != DELAYQ_OK)
        FAIL("%s, allocation %ld: doesn't recover: %s", v->name, k,
             delayq_errmsg(&q));
}

/* Make a call in which allocation k fails, on an open connection or on one that
 * has just been cut. Returns 0 if the call makes fewer allocations. */
static int failing(const struct verb *v, int lost, long k) {
    delayq_status status;
    int reached, files;
    ask("FLUSHDB");
    forget_ready(&q);
    v->prepare();
    q.conn->cmd.retry_us = q.conn->sub.retry_us = 0;
    if (lost) {
        shutdown(q.conn->cmd.c->fd, SHUT_RDWR);
        if (q.conn->sub.c) shutdown(q.conn->sub.c->fd, SHUT_RDWR);
    }
    files = open_files();
    arm(k);
    status = v->call();
    reached = disarm();
    check_truth(v, status, k);
    if (!reached && !lost) CHECK_STATUS(&q, status, v->good);
    if (open_files() > files + 1) /* the subscriber may be new */
        FAIL("%s, allocation %ld: sockets left open", v->name, k);
    recover(v, k);
    return reached;
}

static void each_allocation(const struct verb *v, delayq_options *o, int lost) {
    long k = 0;
    o->lease_ms = v->lease ? 60000 : 0;
    OK(&q, delayq_open(&q, o));
    while (failing(v, lost, ++k)) {
    }
    CHECK(k > 1);
    delayq_close(&q);
}

static void every_verb(int lease, int lost) {
    delayq_options o = options_for(&main_server, "jobs");
    size_t i;
    first_len = 40000; /* hiredis frees a reader's buffer of this size */
    for (i = 0; i < VERBS; i++)
        if (verbs[i].lease == lease) each_allocation(&verbs[i], &o, lost);
    for (i = 0; i < sizeof own_verbs / sizeof own_verbs[0]; i++)
        if (own_verbs[i].lease == lease)
            each_allocation(&own_verbs[i], &o, lost);
}

TEST(each_allocation_of_a_call_without_a_lease_fails) {
    every_verb(0, 0);
}
TEST(each_allocation_of_a_call_with_a_lease_fails) {
    every_verb(1, 0);
}
TEST(each_allocation_of_a_call_that_reconnects_fails) {
    every_verb(0, 1);
}
TEST(each_allocation_of_a_call_with_a_lease_that_reconnects_fails) {
    every_verb(1, 1);
}

/* hiredis 1.x has written a request, and then fails to allocate the buffer of
 * the next request. The next call must not fail because of this error. */
TEST(a_context_that_has_failed_after_a_request_is_not_used_again) {
    open_queue(&q, "jobs");
    q.conn->cmd.c->err = REDIS_ERR_OOM;
    OFFER(&q, "x", 0);
    delayq_close(&q);
}

static void each_allocation_of_an_open(delayq_options *o) {
    long k = 0;
    int reached = 1;
    while (reached) {
        delayq_status status;
        arm(++k);
        status = delayq_open(&q, o);
        reached = disarm();
        if (status != DELAYQ_OK && status != DELAYQ_ERR_MEMORY)
            CHECK_STATUS(&q, status, DELAYQ_ERR_IO);
        recover(&verbs[0], k);
        delayq_close(&q);
    }
    CHECK(k > 10);
}

TEST(each_allocation_of_an_open_fails) {
    delayq_options o = options_for(&main_server, "jobs");
    each_allocation_of_an_open(&o);
    SET_BROADCAST(o);
    each_allocation_of_an_open(&o);
}

TEST(each_allocation_of_an_open_by_tcp_fails) {
    char port[16], url[64];
    const char *arguments[] = {"--port", port, NULL};
    delayq_options o = options_for(&main_server, "jobs");
    server s;
    snprintf(port, sizeof port, "%d", free_port());
    snprintf(url, sizeof url, "redis://127.0.0.1:%s", port);
    server_start(&s, arguments);
    o.url = url;
    each_allocation_of_an_open(&o);
    server_end(&s);
}

/* Take from a stream of three items while allocation k fails. If the take
 * fails, later takes must get all items. Returns 0 if no allocation failed. */
static int failing_broadcast(delayq_options *o, long k) {
    delayq_status status;
    size_t n = 0, more = 0;
    int reached;
    ask("FLUSHDB");
    OK(&q, delayq_open(&q, o));
    prepare_due();
    arm(k);
    status = do_take();
    reached = disarm();
    if (status == DELAYQ_OK) n = count;
    if (status != DELAYQ_OK && status != DELAYQ_ERR_MEMORY &&
        status != DELAYQ_ERR_UNKNOWN)
        CHECK_STATUS(&q, status, DELAYQ_ERR_IO);
    recover(&verbs[0], k);
    for (; n < 3; n += more) OK(&q, delayq_take_many(&q, got, 3, &more, 20000));
    CHECK_INT(n, 3);
    delayq_close(&q);
    return reached;
}

TEST(each_allocation_of_a_broadcast_fails) {
    delayq_options o = options_for(&main_server, "jobs");
    long k = 0;
    SET_BROADCAST(o);
    o.broadcast_after = "";
    while (failing_broadcast(&o, ++k)) {
    }
    CHECK(k > 10);
}
