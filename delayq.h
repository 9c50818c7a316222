/*
 * delayq.h -- a distributed delay queue for C programs, on Redis or Valkey.
 *
 * Version 0.1.0. One file, C99 (and C++11), needs hiredis. Licence: MIT, at
 * the end.
 *
 * In one .c file of your program:
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *
 * and in all others just #include "delayq.h". Link with -lhiredis.
 *
 * Contents (search for the tag)
 *
 *     >>start       quick start
 *     >>life        the life of an item
 *     >>promises    what is guaranteed, and what isn't
 *     >>keys        what lies in Redis
 *     >>time        clocks, waiting, order
 *     >>threads     blocking, threads, signals, fork
 *     >>errors      errors and retries
 *     >>limits      limits
 *     >>macros      option macros
 *     >>status      what a call can tell you
 *     >>types       options, the item, the handle
 *     >>functions   the functions
 *     >>inside      the implementation: platform, wire, scripts, statuses,
 *                   sockets, the ear, waiting, public functions
 *
 * >>start -- quick start
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *     #include <stdio.h>
 *
 *     int main(void) {
 *         static delayq q;
 *         delayq_options options = {0};
 *         delayq_item item;
 *
 *         options.name = "jobs";
 *         if (delayq_open(&q, &options) != DELAYQ_OK) {
 *             fprintf(stderr, "%s\n", delayq_errmsg(&q));
 *             return 1;
 *         }
 *         delayq_offer(&q, "hello", 5, 5000);          (due in 5 s)
 *         while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
 *             printf("%.*s\n", (int)item.len, (const char *)item.data);
 *         delayq_close(&q);
 *     }
 *
 * There is no thread and no event loop in here. A take moves what is due by
 * itself, so one consumer alone is enough. A program with a loop of its own
 * calls delayq_take(&q, &item, 0) in each turn, which costs nothing while
 * nothing is due; a program that only moves items, for other programs to
 * take, calls delayq_tick(&q, &wait_ms) and is told when to come back.
 *
 * >>life -- the life of an item
 *
 *     offer --> pending --(due)--> ready --take--> gone
 *
 * and as a whole:
 *
 *                      tick, take                 take
 *     offer --> pending ---------> ready -------------------> gone
 *                  |     (when due)                            ^
 *                  |                    take, when due         |
 *                  +-------------------------------------------+
 *                  |
 *                  +--> dead: what can't be decoded, with the reason
 *
 * "Pending" is a place in a sorted set, ordered by due time; "ready" a list.
 * A transfer, which any handle's tick or take runs, moves what is due from
 * the one to the other. A take that finds nothing ready takes what is due
 * straight from the set.
 *
 * >>promises -- what is guaranteed, and what isn't
 *
 *     delivery   at most once: a take removes the item
 *     crash      what a consumer had taken when it died is gone
 *     order      by due time, then by offer
 *     early      never, by the server's clock and by the offerer's stopwatch
 *
 * Each move is one script, and a script that is refused at any point (memory
 * full, a command that the ACL forbids, a key of another type) leaves
 * everything where it was. A full server still delivers. Items are lost in no
 * other way than these and by what Redis itself loses: its persistence
 * settings, and asynchronous replication at a failover.
 *
 * >>keys -- what lies in Redis
 *
 * For a queue named N, T is N itself where N contains a '{', else {N}:
 *
 *     N                               list   ready payloads, tail to head
 *     redisson_delay_queue_timeout:T  zset   pending elements, by due in ms
 *     redisson_delay_queue:T          list   pending elements by offer, where
 *                                            the wire is a Redisson one
 *     redisson_delay_queue_channel:T  channel  the new earliest due time
 *     delayq_retry:T                  list   elements with an attempt count
 *     delayq_dead:T                   list   "reason time\n", then the element
 *
 * These are the keys, the bytes and the channel of Redisson's RDelayedQueue
 * over an RBlockingQueue: Java programs can offer to and take from the same
 * queue. options.wire says for which Redisson; all handles of a queue have to
 * say the same.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts; a device with no clock, or a wrong one, may
 * offer and take. Due times are whole milliseconds since the epoch, rounded
 * up. Waiting is done by the program (poll, then a sleep of less than a
 * millisecond); nothing ever blocks on the server. A handle that waits has a
 * second connection, the ear, that hears of earlier items and of payloads
 * that anybody pushes into N. The ear only speeds things up: without it a
 * handle looks every 250 ms, and in any case every max_wait_ms.
 *
 * Beside idle Redisson consumers the server serves their BLPOP first; there
 * is no fairness between them and delayq's.
 *
 * >>threads -- blocking, threads, signals, fork
 *
 * A handle is used by one thread at a time and by the process that opened it;
 * open as many as you like. delayq_wake is the exception: any thread or
 * signal handler may call it. No signal disposition is changed, and a lost
 * connection raises no SIGPIPE. A host name in the URL is looked up by
 * getaddrinfo, which knows no time limit; give an address where that matters.
 *
 * >>errors -- errors and retries
 *
 * 0 is done, > 0 means that nothing went wrong but there is nothing to show,
 * < 0 is a failure. A failure says whether its effect may have happened: only
 * after DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL it may. delayq_errmsg has
 * the sentence. A lost connection is replaced by itself, after a back-off of
 * 100 ms to 5 s; until then calls fail at once. A handle never has to be
 * closed and opened again, but after DELAYQ_ERR_WIRE.
 *
 * >>limits -- limits
 *
 * Names of 1 to 512 bytes. Payloads of any bytes, as long as the server takes
 * (512 MB by default). Due times below 2^53 ms. One script moves or takes at
 * most options.batch items and stops after 256 KiB of payload, so that it
 * stalls the server for about 2 ms; a single larger payload costs what it
 * costs, about 3 ms per MB. The handle is plain memory of a few KB; a call
 * needs up to 24 KB of stack, mostly hiredis' read buffer. The library
 * allocates nothing itself; hiredis does.
 *
 * >>macros -- option macros
 *
 *     DELAYQ_IMPLEMENTATION   define it in exactly one .c or .cc file
 *     DELAYQ_STATIC           all functions static, for that file alone
 *     DELAYQ_HIREDIS          the header to include for hiredis,
 *                             <hiredis/hiredis.h> unless defined
 */

#ifndef DELAYQ_H
#define DELAYQ_H

#if defined(DELAYQ_IMPLEMENTATION) && defined(__STRICT_ANSI__) && \
    !defined(_GNU_SOURCE) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* -std=c99 hides POSIX otherwise */
#endif

#include <stddef.h>
#include <stdint.h>

#define DELAYQ_VERSION "0.1.0"

#ifdef DELAYQ_STATIC
#if defined(__GNUC__)
#define DELAYQ_API static __attribute__((unused))
#else
#define DELAYQ_API static
#endif
#else
#define DELAYQ_API extern
#endif

struct redisContext;

#ifdef __cplusplus
extern "C" {
#endif

/*-----------------------------------------------------------------------------
 * MARK: - Status
 * >>status   what a call can tell you
 *---------------------------------------------------------------------------*/

typedef enum delayq_status {
    DELAYQ_OK = 0, /* done */

    /* Nothing went wrong, but there is nothing to show. */
    DELAYQ_EMPTY = 1, /* nothing to take within the timeout */
    DELAYQ_WOKEN = 4, /* delayq_wake was called */

    /* Failures after which nothing has happened. */
    DELAYQ_ERR_ARG = -1,      /* a bad argument or option */
    DELAYQ_ERR_IO = -2,       /* no connection; the handle tries again */
    DELAYQ_ERR_TIMEOUT = -3,  /* no connection in time, or nothing sent */
    DELAYQ_ERR_AUTH = -4,     /* wrong password, or no permission (ACL) */
    DELAYQ_ERR_REDIS = -5,    /* any other error that the server answers */
    DELAYQ_ERR_READONLY = -7, /* a replica, or a server that can't write now */
    DELAYQ_ERR_FULL = -8,     /* maxmemory reached: an offer was refused */
    DELAYQ_ERR_WIRE = -9,     /* elements of Redisson <= 3.21.0 were met, and
                                 options.wire is not DELAYQ_REDISSON_OLD */
    DELAYQ_ERR_AGAIN = -11,   /* loading, failing over, busy: try later */
    DELAYQ_ERR_TYPE = -12,    /* one of the queue's keys has a wrong type */
    DELAYQ_ERR_MEMORY = -13,  /* this program has no memory left */

    /* Failures after which the effect may have happened. */
    DELAYQ_ERR_PROTOCOL = -6, /* the server answered what it shouldn't */
    DELAYQ_ERR_UNKNOWN = -10  /* sent, but no answer came */
} delayq_status;

/*-----------------------------------------------------------------------------
 * MARK: - Types
 * >>types   options, the item, the handle
 *---------------------------------------------------------------------------*/

/* A timeout without end. */
#define DELAYQ_FOREVER (-1)

/* Which programs share the queue. All its handles have to say the same. */
typedef enum delayq_wire {
    DELAYQ_NATIVE = 0,  /* C programs; Redisson >= 3.21.1 may move and take,
                           but its size(), contains() and so on don't see
                           what C has offered */
    DELAYQ_REDISSON,    /* a fleet with Redisson >= 3.21.1 */
    DELAYQ_REDISSON_OLD /* a fleet with Redisson <= 3.21.0 */
} delayq_wire;

/* Zero everywhere means the default, but for the name. Strings and hooks are
 * used as long as the handle is open, except name, which is copied. */
typedef struct delayq_options {
    const char *name; /* required: the queue, 1 to 512 bytes */
    const char *url;  /* redis://[user[:password]@]host[:port][/db] or
                         unix:///path[?db=N], also with user and password
                         before the path; default redis://127.0.0.1:6379.
                         %XX stands for a byte in user, password and path */
    delayq_wire wire; /* default DELAYQ_NATIVE */

    int batch;              /* most items that one tick moves: 1 to 1,000;
                               default 100 */
    int64_t max_wait_ms;    /* longest wait that a tick returns, and longest
                               time between two looks: default 10,000 */
    int connect_timeout_ms; /* to connect and log in; default 2,000, or
                               io_timeout_ms where that is shorter */
    int io_timeout_ms;      /* for one round trip; default 3,000 */

    /* Gives a connected context instead of the URL's host or path (whose
     * user, password and db count all the same), or NULL. For TLS, proxies,
     * tests. The handle owns what it is given. */
    struct redisContext *(*connect)(void *user, int timeout_ms);
    /* Told of faults that a call rides out, one line without a newline. */
    void (*log)(void *user, delayq_status status, const char *text);
    void *user; /* handed to the hooks */
} delayq_options;

/* What a take hands out. The payload belongs to the handle and lives until
 * the next take on it, or its close. */
typedef struct delayq_item {
    const void *data;
    size_t len;
    int attempt;     /* how often it has been handed out, this time included;
                        0 where unknown */
    int64_t due_ms;  /* when it was due, server's clock; 0 where unknown */
    int64_t late_us; /* taken - due, microseconds, by the server's clock; -1
                        where unknown: the ready list keeps neither */
} delayq_item;

/* A handle, in your storage. {0} is a closed one. An open one is not copied;
 * all its fields are private. */
typedef struct delayq_link {
    struct redisContext *cmd, *ear;
    int64_t server_us; /* the server's clock minus ours, at least */
    int64_t span_us;   /* and at most so much more */
    int64_t used_us;   /* when the command socket was last used */
    int64_t retry_us;  /* connect no sooner */
    int64_t ear_retry_us;
    int64_t looked_us; /* when the ear was last looked at */
    int64_t heard_us;  /* when it last said anything */
    int64_t pinged_us; /* when it was pinged; 0: no answer is awaited */
    int64_t ear_id;    /* its CLIENT ID */
    unsigned failures, ear_failures;
    delayq_status failure;             /* of the last attempt to connect */
    unsigned char long_size, long_big; /* the server's unsigned long */
    unsigned char hears_heads, hears_pushes, tracking;
    int pipe[2];     /* delayq_wake writes, a wait reads */
    char sha[3][41]; /* as SCRIPT LOAD gave it on this connection, or "" */
} delayq_link;

typedef struct delayq {
    unsigned open;
    int64_t pid;
    delayq_options options;
    delayq_link link;
    int64_t wake_us; /* ask the server no later than then */
    int64_t ready;   /* how many lay ready by the last answer */
    uint64_t order;  /* of the last id */
    unsigned char nonce[8];
    unsigned char armed; /* a push into N will be heard */
    unsigned char polls; /* empty takes in a row that did not wait */
    unsigned char retry_turn, wire_refused;
    volatile int woken;
    void *reply; /* what the items point into */
    size_t name_len;
    char name[513];
    char err[256];
} delayq;

/*-----------------------------------------------------------------------------
 * MARK: - Functions
 * >>functions   in the order in which you meet them
 *---------------------------------------------------------------------------*/

/* Failures that every function which asks the server can return, told once
 * here and named "any server failure" below:
 *
 *     DELAYQ_ERR_IO, _TIMEOUT, _AUTH, _REDIS, _READONLY, _AGAIN, _TYPE,
 *     _MEMORY    nothing has happened
 *     DELAYQ_ERR_WIRE      nothing has happened, nor will until reopened
 *     DELAYQ_ERR_UNKNOWN, _PROTOCOL   it may have happened
 *     DELAYQ_ERR_ARG       the handle is closed, or from before a fork()
 */

/*
 * delayq_open -- open a handle on a queue, and connect.
 *
 *   q         a closed or zeroed handle, in the caller's storage
 *   options   copied, but for the strings in it other than the name
 *
 * Returns     DELAYQ_OK        open and connected
 *             DELAYQ_ERR_ARG   a bad option; the handle is closed
 *             DELAYQ_ERR_WIRE  open, but every call will say so
 *             any server failure: open; it connects when it is used
 * Blocks      up to connect_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, 1 script, O(log n)
 *
 * delayq_errmsg and delayq_close work in every case.
 */
DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options);

/* delayq_close -- close a handle; a zeroed or closed one is left alone. Its
 * items end. Never blocks. What is in Redis stays there. */
DELAYQ_API void delayq_close(delayq *q);

/*
 * delayq_offer -- hand in a payload, to be delivered in delay_ms from now.
 *
 *   data       the payload, NUL bytes allowed; nothing of it is kept
 *   len        its length in bytes, 0 allowed
 *   delay_ms   >= 0; 0 = due at once
 *
 * Returns      DELAYQ_OK           stored
 *              DELAYQ_ERR_ARG      negative delay, or due past 2^53 ms, or
 *                                  NULL with a length
 *              DELAYQ_ERR_FULL     the server's memory is full; not stored
 *              any server failure
 * Blocks       one round trip, at most io_timeout_ms; where the connection
 *              turns out to be lost, once more and connect_timeout_ms
 * Redis        1 script, O(log n)
 *
 * An offer whose answer got lost is sent again under the same id, so it is
 * stored once or, where that can't be told any more, DELAYQ_ERR_UNKNOWN.
 */
DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms);

/*
 * delayq_tick -- move what is due to the ready list; for your own loop.
 *
 *   wait_ms    out, may be NULL, always set: come back in so many ms, or
 *              sooner if one of delayq_fds is readable. 0: a step is left or
 *              more is due, call again. Never above max_wait_ms. After a
 *              failure the back-off
 *
 * Returns      DELAYQ_OK, or any server failure (the items are safe; the
 *              next tick goes on)
 * Blocks       at most one of: connecting (connect_timeout_ms), opening the
 *              ear (io_timeout_ms), one transfer (io_timeout_ms). Nothing due
 *              and nothing heard: reads the clock, and looks at the ear at
 *              most once a millisecond; no round trip
 * Redis        1 script, O(log n) per item moved, at most options.batch
 */
DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms);

/*
 * delayq_take -- get the next item, moving what is due on the way.
 *
 *   item         out; see there for how long it lives
 *   timeout_ms   0: don't wait; > 0: wait so long; DELAYQ_FOREVER
 *
 * Returns      DELAYQ_OK       an item
 *              DELAYQ_EMPTY    none within the timeout
 *              DELAYQ_WOKEN    delayq_wake was called; only where timeout_ms
 *                              is not 0
 *              any server failure. DELAYQ_ERR_UNKNOWN: what the server handed
 *              out, if it did, is gone
 * Blocks       timeout_ms, and a round trip. With 0: one round trip, or none
 *              while the ear is open and nothing is due (a program that keeps
 *              taking with 0 gets an ear at the second empty take)
 * Redis        1 script, O(log n); while it waits 0.2 commands a second
 *
 * Passing faults (_IO, _TIMEOUT, _AGAIN, _READONLY, _UNKNOWN) are ridden out
 * within the timeout, and told to options.log; the timeout passed, the last
 * one is returned. All others return at once.
 */
DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms);

/*
 * delayq_wait -- sleep until one of several queues has something to take.
 *
 *   queues       open handles, at most 20
 *   timeout_ms   as in delayq_take
 *
 * Returns      DELAYQ_OK       take from each with timeout 0
 *              DELAYQ_EMPTY    nothing within the timeout
 *              DELAYQ_WOKEN    delayq_wake was called on one of them
 *              any server failure; passing ones are ridden out as in a take
 * Blocks       timeout_ms, and a round trip per queue
 * Redis        the transfers of all of them
 *
 * For programs that take: it returns as long as something lies ready.
 */
DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms);

/* delayq_wake -- end the take or wait on q at once, or the next one. May be
 * called from another thread or a signal handler while the handle is open. */
DELAYQ_API void delayq_wake(delayq *q);

/*
 * delayq_fds -- the descriptors to poll() for reading until the next tick.
 *
 *   fds, max    room for max descriptors; 2 are enough
 *
 * Returns how many were stored. Ask before each poll(): they change at a
 * reconnect. When one is readable call delayq_tick, or take with timeout 0.
 */
DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max);

/* delayq_errmsg -- what the last failed call on q ran into, one line; "" when
 * none has failed. Never a password. Lives until the next call on q. */
DELAYQ_API const char *delayq_errmsg(const delayq *q);

/* delayq_strstatus -- a status in words, a constant string. */
DELAYQ_API const char *delayq_strstatus(delayq_status status);

#ifdef __cplusplus
}
#endif

#endif /* DELAYQ_H */

/*=============================================================================
 * You can stop reading here. What follows is the implementation.
 *===========================================================================*/

#if defined(DELAYQ_IMPLEMENTATION) && !defined(DELAYQ_IMPLEMENTED)
#define DELAYQ_IMPLEMENTED

/*-----------------------------------------------------------------------------
 * MARK: - Platform
 * >>inside   clock, randomness, SIGPIPE
 *---------------------------------------------------------------------------*/

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#ifndef CLOCK_MONOTONIC
#error "POSIX is hidden: include delayq.h first, or compile with -std=gnu99"
#endif

#ifdef DELAYQ_HIREDIS
#include DELAYQ_HIREDIS
#else
#include <hiredis/hiredis.h>
#endif

#define DQ_OPEN 0x64713031u
#define DQ_NEVER INT64_MAX
#define DQ_SECOND_US 1000000
#define DQ_LOOK_US 1000   /* between two looks at an idle ear */
#define DQ_DEAF_US 250000 /* between two looks without an ear */
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_MAX_DUE 9007199254740991 /* 2^53 - 1 */
#define DQ_MAX_QUEUES 20

/* The local clock. It only measures distances. */
static int64_t dq_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * DQ_SECOND_US + t.tv_nsec / 1000;
}

static void dq_random(unsigned char *bytes, size_t len) {
    int fd = open("/dev/urandom", O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, bytes, len);
    if (fd >= 0) close(fd);
    if (got != (ssize_t)len) { /* no urandom: time, process and address */
        uint64_t x = (uint64_t)dq_now() ^ ((uint64_t)getpid() << 40) ^
                     (uint64_t)(uintptr_t)bytes;
        size_t i;
        for (i = 0; i < len; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (unsigned char)(x >> 56);
        }
    }
}

/* A moment in a back-off: base doubled for each failure, at most cap, half of
 * it at random so that a fleet doesn't come back in step. */
static int64_t dq_backoff(int64_t base, int64_t cap, unsigned failures) {
    unsigned char r[2];
    int64_t d = base;
    while (failures-- > 1 && d < cap) d *= 2;
    if (d > cap) d = cap;
    dq_random(r, sizeof r);
    return d / 2 + d / 2 * (r[0] * 256 + r[1]) / 65536;
}

/* hiredis writes without MSG_NOSIGNAL, and a library must not let a lost
 * connection kill its program. */
static int dq_flush(redisContext *c, int *sent) {
#ifdef SO_NOSIGPIPE /* set on the socket: macOS, BSD */
    return redisBufferWrite(c, sent);
#else
    sigset_t mask, old;
    int status;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_BLOCK, &mask, &old);
    status = redisBufferWrite(c, sent);
    if (status != REDIS_OK) {
        struct timespec none = {0, 0};
        int saved = errno;
        while (sigtimedwait(&mask, NULL, &none) < 0 && errno == EINTR) {
        }
        errno = saved;
    }
    sigprocmask(SIG_SETMASK, &old, NULL);
    return status;
#endif
}

/* Sleep until a descriptor is readable or the clock says `until`. poll counts
 * whole milliseconds; the rest is slept, deaf for less than one. */
static void dq_poll(struct pollfd *fds, size_t count, int64_t until) {
    int64_t left = until - dq_now();
    int64_t ms = left / 1000;
    if (ms > 0) {
        int n = ms > 3600000 ? 3600000 : (int)ms;
        if (poll(fds, (nfds_t)count, n) != 0) return;
        left = until - dq_now();
    } else if (poll(fds, (nfds_t)count, 0) != 0) {
        return;
    }
    if (left > 0 && left < 1000) {
        struct timespec t;
        t.tv_sec = 0;
        t.tv_nsec = (long)left * 1000;
        nanosleep(&t, NULL);
    }
}

/*-----------------------------------------------------------------------------
 * MARK: - Wire format
 * The only place in C that knows what an element looks like.
 *
 *     native, Redisson >= 3.21.1   u8 k, id of k bytes, L, payload
 *     Redisson <= 3.21.0           id of 8 bytes (a double), L, payload
 *
 * k is 16 where delayq wrote it, 8 where Redisson did. L is the payload's
 * length as the server's unsigned long: 8 bytes, or 4 on 32-bit servers and
 * on Windows. The formats are told apart by their exact length.
 *
 * An id of 16 bytes: 8 of order (microseconds, big-endian), 5 random of the
 * handle, 1 of flags (0), 2 of attempt (big-endian).
 *---------------------------------------------------------------------------*/

#define DQ_HEAD_MAX 25
#define DQ_KIND_OLD 0 /* other kinds are the length of the id */

static void dq_put_uint(unsigned char *to, int size, int big, uint64_t value) {
    int i;
    for (i = 0; i < size; i++)
        to[big ? size - 1 - i : i] = (unsigned char)(value >> (8 * i));
}

static uint64_t dq_get_uint(const unsigned char *from, int size, int big) {
    uint64_t value = 0;
    int i;
    for (i = 0; i < size; i++)
        value = value << 8 | from[big ? i : size - 1 - i];
    return value;
}

/* Write an element's head; the payload follows it. Returns its length. */
static size_t dq_head(const delayq *q, const unsigned char id[16], size_t len,
                      unsigned char *to) {
    const delayq_link *l = &q->link;
    size_t n;
    if (q->options.wire == DELAYQ_REDISSON_OLD) {
        memcpy(to, id, 8);
        n = 8;
    } else {
        to[0] = 16;
        memcpy(to + 1, id, 16);
        n = 17;
    }
    dq_put_uint(to + n, l->long_size, l->long_big, len);
    return n + l->long_size;
}

/* The kind of an element and where its payload begins; -1: undecodable. */
static int dq_split(const unsigned char *e, size_t n, int big, size_t *at) {
    size_t k;
    int size;
    if (n > 0 && (e[0] == 16 || e[0] == 8)) {
        for (k = e[0], size = 8; size >= 4; size -= 4) {
            *at = 1 + k + (size_t)size;
            if (n >= *at && dq_get_uint(e + 1 + k, size, big) == n - *at)
                return (int)k;
        }
    }
    for (size = 8; size >= 4; size -= 4) {
        *at = 8 + (size_t)size;
        if (n >= *at && dq_get_uint(e + 8, size, big) == n - *at)
            return DQ_KIND_OLD;
    }
    return -1;
}

/* The id of the next offer: strictly rising within the handle, as bytes too,
 * by which Redis sorts the elements of one millisecond. An old id is read as a
 * double: its last byte keeps it from being an infinity or a NaN. */
static void dq_next_id(delayq *q, unsigned char id[16]) {
    uint64_t order = (uint64_t)(dq_now() + q->link.server_us);
    if (order <= q->order) order = q->order + 1;
    q->order = order;
    if (q->options.wire == DELAYQ_REDISSON_OLD)
        order = order << 11 | (q->nonce[5] & 7u) << 8 | 0x20u |
                (q->nonce[6] & 0x1fu);
    dq_put_uint(id, 8, 1, order);
    memcpy(id + 8, q->nonce, 5);
    memset(id + 13, 0, 3);
}

/*-----------------------------------------------------------------------------
 * MARK: - Scripts
 *
 * A script is the concatenation of its parts. Each that moves works in four
 * steps: read (LLEN, ZCARD of what it will write: a wrong type ends it),
 * probe (the later removal with an empty range: it shows the permission, and
 * after any write Redis no longer refuses for memory), add, remove. So a
 * refusal at any point leaves everything where it was.
 *
 * They measure work, not time, which stands still inside scripts since Redis
 * 7.2: elements are read in chunks of 1, 2, 4 ... 64, until the limit or 256
 * KiB. Strings are never compared with <, which is strcoll; numbers become
 * text only through string.format, since .. would write 1.7e+12.
 *---------------------------------------------------------------------------*/

/* t: the time. us, now: the server's clock in microseconds and milliseconds.
 * num(n): a whole number as text. */
static const char dq_lua_clock[] =
    "local t = redis.call('TIME')\n"
    "local us = t[1] * 1000000 + t[2]\n"
    "local now = math.floor(us / 1000)\n"
    "local function num(n) return string.format('%.0f', n) end\n";

/* split(e): what dq_split does in C: kind and start of the payload, or nil. */
static const char dq_lua_split[] =
    "local function split(e)\n"
    "  local n, k = #e, string.byte(e, 1)\n"
    "  if k == 16 or k == 8 then\n"
    "    if n >= k + 9 and struct.unpack('I8', e, k + 2) == n - k - 9 then\n"
    "      return k, k + 10\n"
    "    end\n"
    "    if n >= k + 5 and struct.unpack('I4', e, k + 2) == n - k - 5 then\n"
    "      return k, k + 6\n"
    "    end\n"
    "  end\n"
    "  if n >= 16 and struct.unpack('I8', e, 9) == n - 16 then\n"
    "    return 0, 17\n"
    "  end\n"
    "  if n >= 12 and struct.unpack('I4', e, 9) == n - 12 then\n"
    "    return 0, 13\n"
    "  end\n"
    "end\n";

/*
 * Look at a queue on a new connection.
 *
 * KEYS     1 zset, 2 mirror
 * returns  "us old", old = 1 where an element of Redisson <= 3.21.0 stands at
 *          a head; an unsigned long of 1, as the server packs it
 */
static const char dq_lua_look[] =
    "local function old(v)\n"
    "  if type(v) == 'string' and split(v) == 0 then return 1 end\n"
    "  return 0\n"
    "end\n"
    "local o = old(redis.pcall('LINDEX', KEYS[2], 0))\n"
    "if o == 0 then\n"
    "  local z = redis.pcall('ZRANGE', KEYS[1], 0, 0)\n"
    "  o = old(z[1])\n"
    "end\n"
    "return {num(us) .. ' ' .. o, struct.pack('L', 1)}\n";

/*
 * Offer.
 *
 * KEYS     1 zset, 2 mirror (only where the wire has one)
 * ARGV     1 channel, then pairs: when, element
 *          when: a delay in ms; with !T behind it, it is sent again, and has
 *          been due at T if the first sending was stored
 * returns  "us base": due = base + delay; then, of those that were sent again
 *          and may have been delivered meanwhile, their number (from 1)
 */
static const char dq_lua_offer[] =
    "local Z, M = KEYS[1], KEYS[2]\n"
    "local base = math.ceil(us / 1000)\n"
    "local first, ties, args, out = nil, 0, {}, {num(us) .. ' ' .. num(base)}\n"
    /* what is asked below is tried before anything is written */
    "redis.call('ZCOUNT', Z, 0, 0)\n"
    "if M then\n"
    /* refused like the ZADD that follows the RPUSH, and does nothing */
    "  redis.call('LLEN', M)\n"
    "  redis.call('ZADD', Z, 'XX', 'INCR', 0, '')\n"
    "end\n"
    "local function flush()\n"
    "  if #args > 0 then redis.call('ZADD', Z, 'NX', unpack(args)) end\n"
    "  args = {}\n"
    "end\n"
    "for i = 2, #ARGV, 2 do\n"
    "  local e, delay, after = ARGV[i + 1], tonumber(ARGV[i]), nil\n"
    "  if not delay then\n"
    "    delay, after = string.match(ARGV[i], '^(%d+)!(%d+)$')\n"
    "    delay, after = tonumber(delay), tonumber(after)\n"
    "  end\n"
    "  local due = base + delay\n"
    "  if after and redis.call('ZSCORE', Z, e) then\n"
    "    due = nil\n"
    "  elseif after and base >= after then\n"
    "    due, out[#out + 1] = nil, num(i / 2)\n"
    "  end\n"
    "  if due then\n"
    "    if not first or due < first then first, ties = due, 0 end\n"
    "    if due == first then ties = ties + 1 end\n"
    "    if M then\n"
    "      redis.call('RPUSH', M, e)\n"
    "      redis.call('ZADD', Z, 'NX', num(due), e)\n"
    "    else\n"
    "      args[#args + 1], args[#args + 2] = num(due), e\n"
    "      if #args >= 1000 then flush() end\n"
    "    end\n"
    "  end\n"
    "end\n"
    "flush()\n"
    /* counted, not read: the head may be large */
    "if first and redis.call('ZCOUNT', Z, 0, num(first)) == ties then\n"
    "  redis.pcall('PUBLISH', ARGV[1], num(first))\n"
    "end\n"
    "return out\n";

/*
 * What tick and take have in common.
 *
 * KEYS     1 ready, 2 zset, 3 dead, 4 retry (native) or mirror (Redisson)
 * ARGV     1 wire: n, r, o; 2 limit: items to move; 3 horizon: how far to
 *          look for the next due time, in ms
 *
 * drain(max, keep, add) empties the zset of what is due: keep is called with
 * each element (element, kind, start of payload, score), add once a chunk, to
 * put away what was kept. Returns how many, and whether nothing due is left.
 * head() is what the reply begins with: "us next moved ready dead old". next:
 * microseconds until something is due, -1: nothing within the horizon.
 */
static const char dq_lua_drain[] =
    "local N, Z, D, X = KEYS[1], KEYS[2], KEYS[3], KEYS[4]\n"
    "local native, limit = ARGV[1] == 'n', tonumber(ARGV[2])\n"
    "local horizon = num(now + ARGV[3])\n"
    "local moved, dead, old, bytes, probed = 0, 0, 0, 0, false\n"
    "local ready, other = redis.call('LLEN', N), redis.call('LLEN', X)\n"
    "local low, upto = redis.call('ZCOUNT', Z, '-inf', '(0'), num(now)\n"
    "local function probe()\n"
    "  if probed then return end\n"
    "  probed = true\n"
    "  redis.call('LLEN', D)\n"
    "  redis.call('ZREMRANGEBYRANK', Z, 1, 0)\n"
    "  if not native then redis.call('LREM', D, 1, '') end\n"
    "end\n"
    "local function drain(max, keep, add)\n"
    "  local step, n = 1, 0\n"
    "  while n < max and bytes < 262144 and old == 0 do\n"
    "    local want = math.min(step, max - n)\n"
    "    local es = redis.call('ZRANGEBYSCORE', Z, 0, upto, 'WITHSCORES',\n"
    "      'LIMIT', 0, want)\n"
    "    local bad, k = {}, 0\n"
    "    for i = 1, #es, 2 do\n"
    "      local e = es[i]\n"
    "      local kind, p = split(e)\n"
    "      if kind == 0 and ARGV[1] ~= 'o' then old = 1 break end\n"
    "      if kind then keep(e, kind, p, es[i + 1])\n"
    "      else bad[#bad + 1] = 'undecodable ' .. upto .. '\\n' .. e end\n"
    /* 64: so that many small ones are work, too */
    "      k, bytes = k + 1, bytes + #e + 64\n"
    "    end\n"
    "    if k > 0 then\n"
    "      if add or #bad > 0 or not native then probe() end\n"
    "      if #bad > 0 then redis.call('RPUSH', D, unpack(bad)) end\n"
    "      if add then add() end\n"
    "      if not native then\n"
    "        for i = 1, k do redis.call('LREM', X, 1, es[2 * i - 1]) end\n"
    "      end\n"
    "      redis.call('ZREMRANGEBYRANK', Z, low, low + k - 1)\n"
    "    end\n"
    "    n, dead = n + k - #bad, dead + #bad\n"
    "    if #es < 2 * want then return n, true end\n"
    "    step = math.min(64, 2 * step)\n"
    "  end\n"
    "  return n\n"
    "end\n"
    "local function move(max)\n"
    "  local fresh, again = {}, {}\n"
    "  local n, all = drain(max, function(e, kind, p)\n"
    "    if native and kind == 16 and string.sub(e, 16, 17) ~= '\\0\\0' then\n"
    "      again[#again + 1] = e\n"
    "    else\n"
    "      fresh[#fresh + 1] = string.sub(e, p)\n"
    "    end\n"
    "  end, function()\n"
    "    if #again > 0 then other = redis.call('RPUSH', X, unpack(again)) end\n"
    "    if #fresh > 0 then ready = redis.call('RPUSH', N, unpack(fresh)) end\n"
    "    moved = moved + #again + #fresh\n"
    "    fresh, again = {}, {}\n"
    "  end)\n"
    "  return all\n"
    "end\n"
    "local function head(all)\n"
    "  local next = 0\n"
    "  if not all then all = redis.call('ZCOUNT', Z, 0, upto) == 0 end\n"
    "  if old == 1 then next = -1\n"
    "  elseif all then\n"
    "    next = -1\n"
    /* counted before it is read: an idle look copies no large head */
    "    if redis.call('ZCOUNT', Z, 0, horizon) > 0 then\n"
    "      local h = redis.call('ZRANGEBYSCORE', Z, 0, horizon,\n"
    "        'WITHSCORES', 'LIMIT', 0, 1)\n"
    "      next = math.max(0, h[2] * 1000 - us)\n"
    "    end\n"
    "  end\n"
    "  local waiting = native and ready + other or ready\n"
    "  return table.concat({num(us), num(next), num(moved), num(waiting),\n"
    "    num(dead), num(old)}, ' ')\n"
    "end\n";

/* Tick: as above. Returns {head}. */
static const char dq_lua_tick[] = "return {head(move(limit))}\n";

/*
 * Take.
 *
 * ARGV     as above; 4 how many, 5 x: the retry list's turn
 * returns  head, then pairs: a due time and an element, or 'e' and an
 *          element, or 'r' and a raw payload
 *
 * Straight from the zset where nothing lies ready. Where something does, what
 * is due goes behind it first, or pushes would starve it. In a Redisson fleet
 * what is left over is moved too, since Java waits for it.
 */
static const char dq_lua_take[] =
    "local max, turn = tonumber(ARGV[4]), ARGV[5] == 'x'\n"
    "local out, all = {''}, nil\n"
    "local function give(due, e) out[#out + 1], out[#out + 2] = due, e end\n"
    "local direct = ready == 0 and (other == 0 or not native)\n"
    "if direct then\n"
    "  local n\n"
    "  n, all = drain(max, function(e, kind, p, due) give(due, e) end)\n"
    "end\n"
    "if not direct or not native then all = move(limit) or all end\n"
    "local retry, got, step = native and other or 0, 0, 1\n"
    "while not direct and got < max and (bytes < 262144 or got == 0) do\n"
    "  local m = math.min(step, max - got) - 1\n"
    "  local a = retry > 0 and redis.call('LRANGE', X, 0, m) or {}\n"
    "  local b = ready > 0 and redis.call('LRANGE', N, 0, m) or {}\n"
    "  local i, j = 0, 0\n"
    "  while got < max and (i < #a or j < #b) do\n"
    "    if i < #a and (turn or j == #b) then\n"
    "      i = i + 1\n"
    "      give('e', a[i])\n"
    "    else\n"
    "      j = j + 1\n"
    "      give('r', b[j])\n"
    "    end\n"
    "    got, bytes, turn = got + 1, bytes + #out[#out] + 64, not turn\n"
    "  end\n"
    "  if i + j == 0 then break end\n"
    "  if i > 0 then redis.call('LTRIM', X, i, -1) end\n"
    "  if j > 0 then redis.call('LTRIM', N, j, -1) end\n"
    "  retry, ready, step = retry - i, ready - j, math.min(64, 2 * step)\n"
    "end\n"
    "other = native and retry or other\n"
    "out[1] = head(all)\n"
    "return out\n";

typedef enum dq_verb { DQ_OFFER, DQ_TICK, DQ_TAKE, DQ_VERBS } dq_verb;

static const char *const dq_scripts[DQ_VERBS][5] = {
    {dq_lua_clock, dq_lua_offer, NULL, NULL, NULL},
    {dq_lua_clock, dq_lua_split, dq_lua_drain, dq_lua_tick, NULL},
    {dq_lua_clock, dq_lua_split, dq_lua_drain, dq_lua_take, NULL},
};
static const char *const dq_look_script[] = {dq_lua_clock, dq_lua_split,
                                             dq_lua_look, NULL};

/*-----------------------------------------------------------------------------
 * MARK: - Statuses
 * The only place that turns a failure or an error reply into a status.
 *---------------------------------------------------------------------------*/

#define DQ_NOSCRIPT 15 /* private: load it and run it again */

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static delayq_status
dq_fail(delayq *q, int status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(q->err, sizeof q->err, format, args);
    va_end(args);
    return (delayq_status)status;
}

static const struct {
    const char *code;
    int status;
} dq_errors[] = {
    {"NOSCRIPT", DQ_NOSCRIPT},
    {"WRONGTYPE", DELAYQ_ERR_TYPE},
    {"OOM", DELAYQ_ERR_FULL},
    {"READONLY", DELAYQ_ERR_READONLY},
    {"MISCONF", DELAYQ_ERR_READONLY},
    {"NOREPLICAS", DELAYQ_ERR_READONLY},
    {"LOADING", DELAYQ_ERR_AGAIN},
    {"MASTERDOWN", DELAYQ_ERR_AGAIN},
    {"CLUSTERDOWN", DELAYQ_ERR_AGAIN},
    {"TRYAGAIN", DELAYQ_ERR_AGAIN},
    {"BUSY", DELAYQ_ERR_AGAIN},
    {"ERR max number of clients", DELAYQ_ERR_AGAIN},
    {"NOAUTH", DELAYQ_ERR_AUTH},
    {"WRONGPASS", DELAYQ_ERR_AUTH},
    {"NOPERM", DELAYQ_ERR_AUTH},
    {"DENIED", DELAYQ_ERR_AUTH},
    {"ERR invalid password", DELAYQ_ERR_AUTH},
    {"ERR Client sent AUTH", DELAYQ_ERR_AUTH},
    {"ERR AUTH", DELAYQ_ERR_AUTH},
    {"ERR The user executing the script can't", DELAYQ_ERR_AUTH},
};

/* An error reply's status. Up to Redis 6 what a script ran into stands in the
 * middle of "ERR Error running script ...: @user_script: 7: -OOM ...". */
static int dq_error_status(const char *text) {
    const char *inner = strstr(text, "user_script: ");
    size_t i;
    for (i = 0; i < sizeof dq_errors / sizeof dq_errors[0]; i++)
        if (strncmp(text, dq_errors[i].code, strlen(dq_errors[i].code)) == 0)
            return dq_errors[i].status;
    for (i = 0; inner && i < sizeof dq_errors / sizeof dq_errors[0]; i++)
        if (strstr(inner, dq_errors[i].code)) return dq_errors[i].status;
    return DELAYQ_ERR_REDIS;
}

/* An error reply, told to the user. What Redis repeats of a command's
 * arguments may hold a password, and is cut off. */
static delayq_status dq_refused(delayq *q, const char *what,
                                const redisReply *r) {
    const char *cut = strstr(r->str, ", with args");
    int len = cut ? (int)(cut - r->str) : (int)r->len;
    int status = dq_error_status(r->str);
    const char *hint = "";
    if (status == DQ_NOSCRIPT) return (delayq_status)DQ_NOSCRIPT;
    if (status == DELAYQ_ERR_TYPE)
        hint = "; a key of this queue is used for something else";
    return dq_fail(q, status, "%s: the server says: %.*s%s", what,
                   len > 160 ? 160 : len, r->str, hint);
}

static delayq_status dq_bad_reply(delayq *q, const char *what) {
    return dq_fail(q, DELAYQ_ERR_PROTOCOL,
                   "%s: the answer is not what delayq's script returns", what);
}

/* Will time heal it? */
static int dq_passing(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}

/* The n whole numbers that a reply's first text consists of. */
static int dq_numbers(const redisReply *r, int64_t *to, int n) {
    const char *p = r && r->type == REDIS_REPLY_STRING ? r->str : NULL;
    int i;
    for (i = 0; p && i < n; i++) {
        int minus = *p == '-';
        int64_t value = 0;
        p += minus;
        if (*p < '0' || *p > '9') return 0;
        for (; *p >= '0' && *p <= '9'; p++) {
            if (value > DQ_MAX_DUE) return 0;
            value = value * 10 + (*p - '0');
        }
        if (*p != (i == n - 1 ? '\0' : ' ')) return 0;
        p++;
        to[i] = minus ? -value : value;
    }
    return p != NULL;
}

/*-----------------------------------------------------------------------------
 * MARK: - Requests
 * Commands are written piece by piece into hiredis' buffer: no copy of a
 * payload, no array of arguments.
 *---------------------------------------------------------------------------*/

typedef struct dq_out {
    redisContext *c;
    int failed;
    size_t n;
    char buf[1024];
} dq_out;

static void dq_spill(dq_out *o) {
    if (o->n > 0 && redisAppendFormattedCommand(o->c, o->buf, o->n) != REDIS_OK)
        o->failed = 1;
    o->n = 0;
}

static void dq_put(dq_out *o, const void *bytes, size_t len) {
    if (len > sizeof o->buf - o->n) dq_spill(o);
    if (len <= sizeof o->buf - o->n) {
        if (len > 0) memcpy(o->buf + o->n, bytes, len);
        o->n += len;
    } else if (redisAppendFormattedCommand(o->c, (const char *)bytes, len) !=
               REDIS_OK) {
        o->failed = 1;
    }
}

static size_t dq_decimal(char *to, int64_t value) {
    char digits[24];
    size_t n = 0, i;
    uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    if (value < 0) digits[n++] = '-';
    for (i = 0; i < n; i++) to[i] = digits[n - 1 - i];
    return n;
}

/* A line of the protocol: a sign and a number. */
static void dq_line(dq_out *o, char sign, size_t value) {
    char line[32];
    size_t n;
    line[0] = sign;
    n = 1 + dq_decimal(line + 1, (int64_t)value);
    line[n] = '\r';
    line[n + 1] = '\n';
    dq_put(o, line, n + 2);
}

/* One argument, of two pieces. */
static void dq_arg2(dq_out *o, const void *a, size_t alen, const void *b,
                    size_t blen) {
    dq_line(o, '$', alen + blen);
    dq_put(o, a, alen);
    dq_put(o, b, blen);
    dq_put(o, "\r\n", 2);
}

static void dq_arg(dq_out *o, const void *bytes, size_t len) {
    dq_arg2(o, bytes, len, NULL, 0);
}

static void dq_text(dq_out *o, const char *text) {
    dq_arg(o, text, strlen(text));
}

static void dq_number(dq_out *o, int64_t value) {
    char text[24];
    dq_arg(o, text, dq_decimal(text, value));
}

/* A command all of whose arguments are plain words. */
static void dq_words(dq_out *o, size_t count, ...) {
    va_list words;
    va_start(words, count);
    dq_line(o, '*', count);
    while (count-- > 0) dq_text(o, va_arg(words, const char *));
    va_end(words);
}

/* A key or channel of the queue: prefix, then T. */
static void dq_key(dq_out *o, const delayq *q, const char *prefix) {
    size_t plen = strlen(prefix);
    int tagged = memchr(q->name, '{', q->name_len) != NULL;
    dq_line(o, '$', plen + q->name_len + (tagged ? 0 : 2));
    dq_put(o, prefix, plen);
    if (!tagged) dq_put(o, "{", 1);
    dq_put(o, q->name, q->name_len);
    if (!tagged) dq_put(o, "}", 1);
    dq_put(o, "\r\n", 2);
}

#define DQ_ZSET "redisson_delay_queue_timeout:"
#define DQ_MIRROR "redisson_delay_queue:"
#define DQ_CHANNEL "redisson_delay_queue_channel:"
#define DQ_RETRY "delayq_retry:"
#define DQ_DEAD "delayq_dead:"
#define DQ_INVALIDATE "__redis__:invalidate"

static void dq_script_text(dq_out *o, const char *const *parts) {
    size_t len = 0, i;
    for (i = 0; parts[i]; i++) len += strlen(parts[i]);
    dq_line(o, '$', len);
    for (i = 0; parts[i]; i++) dq_put(o, parts[i], strlen(parts[i]));
    dq_put(o, "\r\n", 2);
}

/* Begin to run a script, `keys` keys and `args` arguments follow. On a new
 * connection it is loaded in the same write; what came by EVAL alone would be
 * forgotten by Redis 7.4 after 500 others. Returns how many replies come. */
static int dq_eval(dq_out *o, const delayq_link *l, dq_verb verb, size_t keys,
                   size_t args) {
    const char *sha = l->sha[verb];
    if (!*sha) {
        dq_line(o, '*', 3);
        dq_text(o, "SCRIPT");
        dq_text(o, "LOAD");
        dq_script_text(o, dq_scripts[verb]);
    }
    dq_line(o, '*', 3 + keys + args);
    if (*sha) {
        dq_text(o, "EVALSHA");
        dq_arg(o, sha, 40);
    } else {
        dq_text(o, "EVAL");
        dq_script_text(o, dq_scripts[verb]);
    }
    dq_number(o, (int64_t)keys);
    return *sha ? 1 : 2;
}

/*-----------------------------------------------------------------------------
 * MARK: - The URL
 *---------------------------------------------------------------------------*/

typedef struct dq_url {
    char host[256]; /* or the path of a unix socket */
    char user[256], password[512];
    int port, db; /* port 0: a unix socket */
    int login;
} dq_url;

static int dq_hex(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* Copy with %XX decoded; 0 where it doesn't fit or is broken. */
static int dq_unescape(char *to, size_t size, const char *from, size_t len) {
    size_t n = 0;
    while (len > 0) {
        int c = (unsigned char)*from;
        if (c == '%') {
            int hi = len > 2 ? dq_hex(from[1]) : -1;
            int lo = len > 2 ? dq_hex(from[2]) : -1;
            if (hi < 0 || lo < 0 || (hi == 0 && lo == 0)) return 0;
            c = hi * 16 + lo;
            from += 2;
            len -= 2;
        }
        if (n + 1 >= size) return 0;
        to[n++] = (char)c;
        from++;
        len--;
    }
    to[n] = '\0';
    return 1;
}

/* A whole number from 0 to max; -1 where it isn't one. */
static int dq_small(const char *text, size_t len, int max) {
    int value = 0;
    size_t i;
    if (len == 0) return -1;
    for (i = 0; i < len; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
        if (value > max) return -1;
    }
    return value;
}

static const char *dq_url_login(dq_url *u, const char *p, size_t len) {
    const char *colon = (const char *)memchr(p, ':', len);
    size_t ulen = colon ? (size_t)(colon - p) : len;
    u->login = 1;
    if (!dq_unescape(u->user, sizeof u->user, p, ulen))
        return "the user is too long or has a broken %XX";
    if (colon && !dq_unescape(u->password, sizeof u->password, colon + 1,
                              len - ulen - 1))
        return "the password is too long or has a broken %XX";
    return NULL;
}

static const char *dq_url_address(dq_url *u, const char *p, size_t len) {
    const char *end = p + len, *colon;
    u->port = 6379;
    if (len > 0 && *p == '[') {
        const char *close = (const char *)memchr(p, ']', len);
        if (!close) return "the [ of the address is not closed";
        p++;
        len = (size_t)(close - p);
        colon = close + 1 < end ? close + 1 : NULL;
        if (colon && *colon != ':') return "after ] comes : and the port";
    } else {
        colon = (const char *)memchr(p, ':', len);
        if (colon) len = (size_t)(colon - p);
    }
    if (len == 0) return "the host is missing";
    if (len >= sizeof u->host || memchr(p, ',', len) || memchr(p, '%', len))
        return "the host is too long or has a character that none has";
    memcpy(u->host, p, len);
    if (colon) u->port = dq_small(colon + 1, (size_t)(end - colon - 1), 65535);
    return u->port > 0 ? NULL : "the port is no number from 1 to 65535";
}

/* NULL, or what is wrong with it: a sentence that repeats nothing of it. */
static const char *dq_url_parse(const char *url, dq_url *u) {
    const char *p, *at, *end, *db, *wrong;
    int local = strncmp(url, "unix://", 7) == 0;
    memset(u, 0, sizeof *u);
    if (!local && strncmp(url, "redis://", 8) != 0)
        return "it begins neither with redis:// nor with unix://";
    p = url + (local ? 7 : 8);
    end = p + strcspn(p, local ? "?" : "/?");
    for (at = end; at > p && at[-1] != '@'; at--) {
    }
    if (at > p) {
        wrong = dq_url_login(u, p, (size_t)(at - 1 - p));
        if (wrong) return wrong;
        p = at;
    }
    db = end;
    if (local) {
        if (end == p) return "the path of the socket is missing";
        if (!dq_unescape(u->host, sizeof u->host, p, (size_t)(end - p)))
            return "the path is too long or has a broken %XX";
        if (*db && strncmp(db, "?db=", 4) != 0) return "after ? comes db=N";
        db += *db ? 4 : 0;
    } else {
        wrong = dq_url_address(u, p, (size_t)(end - p));
        if (wrong) return wrong;
        if (*db == '?') return "after the port comes / and the database";
        db += *db ? 1 : 0;
    }
    u->db = *db ? dq_small(db, strlen(db), 1000000) : 0;
    return u->db >= 0 ? NULL : "the database is no number";
}

/*-----------------------------------------------------------------------------
 * MARK: - Sockets
 * The only place that connects, and that decides about connecting again.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_BACKOFF_MAX_US (5 * DQ_SECOND_US)

static const char *dq_cause(const redisContext *c) {
    if (c->err == REDIS_ERR_IO && errno != 0) return strerror(errno);
    return c->errstr[0] ? c->errstr : "the connection is lost";
}

/* The command socket is of no use any more. The first attempt to replace it
 * may come at once; after one that failed, wait. */
static void dq_drop(delayq *q) {
    delayq_link *l = &q->link;
    if (l->cmd) redisFree(l->cmd);
    l->cmd = NULL;
    l->tracking = 0;
    q->armed = 0;
    memset(l->sha, 0, sizeof l->sha);
    l->retry_us = dq_now();
    if (l->failures > 0)
        l->retry_us +=
            dq_backoff(DQ_BACKOFF_US, DQ_BACKOFF_MAX_US, l->failures);
    q->wake_us = l->retry_us;
}

static void dq_drop_ear(delayq *q) {
    delayq_link *l = &q->link;
    int64_t now = dq_now();
    if (l->ear) redisFree(l->ear);
    l->ear = NULL;
    l->tracking = 0;
    l->hears_heads = l->hears_pushes = 0;
    q->armed = 0;
    l->ear_retry_us = now;
    if (l->ear_failures > 0)
        l->ear_retry_us +=
            dq_backoff(DQ_BACKOFF_US, DQ_BACKOFF_MAX_US, l->ear_failures);
    if (q->wake_us > l->ear_retry_us) q->wake_us = l->ear_retry_us;
}

/* 1: ready for what was asked. 0: the deadline has passed. */
static int dq_poll_one(int fd, int events, int64_t deadline) {
    for (;;) {
        struct pollfd p;
        int64_t left = deadline - dq_now();
        int n;
        p.fd = fd;
        p.events = (short)events;
        p.revents = 0;
        n = poll(&p, 1, left > 0 ? (int)((left + 999) / 1000) : 0);
        if (n > 0) return 1;
        if (n == 0 && left <= 0) return 0;
        if (n < 0 && errno != EINTR && errno != EAGAIN) return 0;
    }
}

/* Write what is in the buffer and read n replies, by the deadline. The caller
 * frees the replies, of which `*got` came. After a failure the connection is
 * of no use. *sent tells whether the server can have run anything. */
static delayq_status dq_exchange(delayq *q, redisContext *c,
                                 redisReply **replies, int n, int *got,
                                 int *sent, int64_t deadline) {
    int events = POLLIN, failed = 0;
    *got = *sent = 0;
    while (*got < n) {
        void *r = NULL;
        errno = 0;
        failed = !*sent && dq_flush(c, sent) != REDIS_OK;
        if (!failed) failed = redisGetReplyFromReader(c, &r) != REDIS_OK;
        if (failed) break;
        if (r) {
            replies[(*got)++] = (redisReply *)r;
            continue;
        }
        events = *sent ? POLLIN : POLLIN | POLLOUT;
        if (!dq_poll_one(c->fd, events, deadline))
            return dq_fail(q, *sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_TIMEOUT,
                           *sent ? "no answer in time: it may have happened"
                                 : "not sent in time: nothing has happened");
        failed = redisBufferRead(c) != REDIS_OK;
        if (failed) break;
    }
    if (!failed) return DELAYQ_OK;
    if (c->err == REDIS_ERR_OOM)
        return dq_fail(q, *sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_MEMORY,
                       "out of memory");
    if (c->err == REDIS_ERR_PROTOCOL)
        return dq_fail(q, DELAYQ_ERR_PROTOCOL, "not Redis' protocol: %s",
                       c->errstr);
    if (*sent)
        return dq_fail(q, DELAYQ_ERR_UNKNOWN,
                       "connection lost before the answer: it may have "
                       "happened: %s",
                       dq_cause(c));
    return dq_fail(q, DELAYQ_ERR_IO,
                   "connection lost before sending: nothing has happened: %s",
                   dq_cause(c));
}

static void dq_free_replies(redisReply **replies, int n) {
    while (n-- > 0)
        if (replies[n]) freeReplyObject(replies[n]);
}

static const char *dq_url_text(const delayq *q) {
    return q->options.url ? q->options.url : "redis://127.0.0.1:6379";
}

/* "127.0.0.1:6379", for error texts. */
static void dq_where(const delayq *q, const dq_url *u, char *to, size_t size) {
    if (q->options.connect)
        snprintf(to, size, "the connect hook");
    else if (u->port)
        snprintf(to, size, "%.80s:%d", u->host, u->port);
    else
        snprintf(to, size, "%.80s", u->host);
}

static redisContext *dq_dial(delayq *q, const dq_url *u, int64_t deadline) {
    int64_t left = (deadline - dq_now() + 999) / 1000;
    if (q->options.connect)
        return q->options.connect(q->options.user, left > 1 ? (int)left : 1);
    if (u->port) return redisConnectNonBlock(u->host, u->port);
    return redisConnectUnixNonBlock(u->host);
}

/* hiredis' own waiting knows only a timeout per read; ours a deadline. */
static void dq_unblock(redisContext *c) {
    int flags = fcntl(c->fd, F_GETFL);
    c->flags &= ~REDIS_BLOCK;
    if (flags >= 0) fcntl(c->fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(c->fd, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    flags = 1;
    setsockopt(c->fd, SOL_SOCKET, SO_NOSIGPIPE, &flags, sizeof flags);
#endif
}

/* A connected socket, or a failure. */
static delayq_status dq_socket(delayq *q, const dq_url *u, redisContext **out,
                               int64_t deadline) {
    char where[100];
    redisContext *c = dq_dial(q, u, deadline);
    int error = 0;
    socklen_t size = sizeof error;
    dq_where(q, u, where, sizeof where);
    *out = NULL;
    if (!c) {
        return q->options.connect
                   ? dq_fail(q, DELAYQ_ERR_IO, "the connect hook gave nothing")
                   : dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    }
    if (c->err) {
        dq_fail(q, DELAYQ_ERR_IO, "can't connect to %s: %s", where, c->errstr);
        redisFree(c);
        return DELAYQ_ERR_IO;
    }
    dq_unblock(c);
    if (!dq_poll_one(c->fd, POLLOUT, deadline)) {
        redisFree(c);
        return dq_fail(q, DELAYQ_ERR_TIMEOUT, "can't connect to %s in time",
                       where);
    }
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error != 0) {
        redisFree(c);
        return dq_fail(q, DELAYQ_ERR_IO, "can't connect to %s: %s", where,
                       strerror(error));
    }
    *out = c;
    return DELAYQ_OK;
}

/* What both sockets say first. Returns how many replies come. */
static int dq_login(dq_out *o, const dq_url *u) {
    int n = 1;
    if (u->login) {
        dq_line(o, '*', u->user[0] ? 3 : 2);
        dq_text(o, "AUTH");
        if (u->user[0]) dq_text(o, u->user);
        dq_text(o, u->password);
        n++;
    }
    if (u->db > 0) {
        dq_line(o, '*', 2);
        dq_text(o, "SELECT");
        dq_number(o, u->db);
        n++;
    }
    dq_words(o, 3, "CLIENT", "SETNAME", "delayq");
    return n;
}

/* The login's replies; a refused SETNAME is nobody's loss. */
static delayq_status dq_logged_in(delayq *q, redisReply **replies, int n) {
    int i;
    for (i = 0; i < n - 1; i++)
        if (replies[i]->type == REDIS_REPLY_ERROR)
            return dq_refused(q, "login", replies[i]);
    return DELAYQ_OK;
}

/* The server said `us` at some moment between two of ours. */
static void dq_set_clock(delayq_link *l, int64_t us, int64_t sent_us,
                         int64_t read_us) {
    l->server_us = us - read_us;
    l->span_us = read_us - sent_us;
}

/* What the look found: clock, the server's unsigned long, old elements. */
static delayq_status dq_looked(delayq *q, const redisReply *r, int64_t sent_us,
                               int64_t read_us) {
    delayq_link *l = &q->link;
    int64_t n[2];
    const redisReply *probe;
    if (r->type == REDIS_REPLY_ERROR) return dq_refused(q, "open", r);
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        !dq_numbers(r->element[0], n, 2))
        return dq_bad_reply(q, "open");
    probe = r->element[1];
    if (probe->type != REDIS_REPLY_STRING ||
        (probe->len != 8 && probe->len != 4))
        return dq_bad_reply(q, "open");
    l->long_size = (unsigned char)probe->len;
    l->long_big = probe->str[0] == 0;
    dq_set_clock(l, n[0], sent_us, read_us);
    if (n[1] == 1 && q->options.wire != DELAYQ_REDISSON_OLD)
        q->wire_refused = 1;
    return DELAYQ_OK;
}

static delayq_status dq_wire_failure(delayq *q) {
    return dq_fail(q, DELAYQ_ERR_WIRE,
                   "queue %.64s holds elements of Redisson <= 3.21.0, whose "
                   "transfer this handle's elements would jam: open it with "
                   "wire = DELAYQ_REDISSON_OLD",
                   q->name);
}

/* One write: login and a look at the queue. */
static delayq_status dq_greet(delayq *q, const dq_url *u, redisContext *c,
                              int64_t deadline) {
    redisReply *replies[4] = {NULL, NULL, NULL, NULL};
    delayq_status status;
    int64_t sent_us = dq_now();
    int n, got, sent;
    dq_out o;
    o.c = c;
    o.n = 0;
    o.failed = 0;
    n = dq_login(&o, u);
    dq_line(&o, '*', 5);
    dq_text(&o, "EVAL");
    dq_script_text(&o, dq_look_script);
    dq_number(&o, 2);
    dq_key(&o, q, DQ_ZSET);
    dq_key(&o, q, DQ_MIRROR);
    dq_spill(&o);
    if (o.failed) return dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    status = dq_exchange(q, c, replies, n + 1, &got, &sent, deadline);
    if (status == DELAYQ_ERR_UNKNOWN) { /* nothing of it has an effect */
        status =
            dq_fail(q, DELAYQ_ERR_IO, "connected, but no answer to the login");
    }
    if (status == DELAYQ_OK) status = dq_logged_in(q, replies, n);
    if (status == DELAYQ_OK)
        status = dq_looked(q, replies[n], sent_us, dq_now());
    dq_free_replies(replies, got);
    return status;
}

/* Make the command socket, unless it was tried too lately. */
static delayq_status dq_connect(delayq *q) {
    delayq_link *l = &q->link;
    int64_t now = dq_now();
    int64_t deadline = now + (int64_t)q->options.connect_timeout_ms * 1000;
    delayq_status status;
    dq_url u;
    if (now < l->retry_us)
        return dq_fail(q, l->failure, "%s; the next attempt is in %d ms",
                       "not connected since the last attempt failed",
                       (int)((l->retry_us - now + 999) / 1000));
    dq_url_parse(dq_url_text(q), &u);
    status = dq_socket(q, &u, &l->cmd, deadline);
    if (status == DELAYQ_OK) status = dq_greet(q, &u, l->cmd, deadline);
    memset(&u, 0, sizeof u);
    if (status != DELAYQ_OK) {
        l->failures++;
        l->failure = status;
        dq_drop(q);
        return status;
    }
    l->failures = 0;
    l->used_us = q->wake_us = dq_now();
    return DELAYQ_OK;
}

/* An idle socket that the server has closed shows it by being readable. */
static void dq_check_idle(delayq *q) {
    redisContext *c = q->link.cmd;
    void *r = NULL;
    struct pollfd p;
    p.fd = c->fd;
    p.events = POLLIN;
    p.revents = 0;
    if (poll(&p, 1, 0) <= 0) return;
    if (redisBufferRead(c) == REDIS_OK &&
        redisGetReplyFromReader(c, &r) == REDIS_OK && !r)
        return; /* TLS talks to itself now and then */
    if (r) freeReplyObject(r);
    dq_drop(q);
}

/* Every call that asks the server begins here. */
static delayq_status dq_ready(delayq *q) {
    if (q->pid != (int64_t)getpid())
        return dq_fail(q, DELAYQ_ERR_ARG,
                       "the handle was opened before a "
                       "fork(): open one of your own");
    if (q->wire_refused) return dq_wire_failure(q);
    if (q->link.cmd && dq_now() - q->link.used_us > DQ_SECOND_US)
        dq_check_idle(q);
    if (!q->link.cmd) {
        delayq_status status = dq_connect(q);
        if (status != DELAYQ_OK) return status;
    }
    return q->wire_refused ? dq_wire_failure(q) : DELAYQ_OK;
}

/* A call of a script. */
typedef struct dq_call {
    dq_verb verb;
    const char *what; /* for error texts */
    size_t keys, args;
    void (*write)(dq_out *o, delayq *q, const struct dq_call *call);
    int harmless; /* it may be sent again though it may have run */
    int once;     /* one round trip and no more */
    int again;    /* this is another sending of what may have run */

    unsigned char id[16]; /* an offer's */
    const void *data;
    size_t len;
    int64_t delay_ms, not_after_ms;
    size_t max; /* a take's */

    redisReply *reply; /* out: an array; the caller frees it */
    int64_t sent_us;   /* out: when it was sent; read at link.used_us */
} dq_call;

static delayq_status dq_call_reply(delayq *q, dq_call *call, redisReply *r) {
    if (r->type == REDIS_REPLY_ERROR) {
        delayq_status status = dq_refused(q, call->what, r);
        if ((int)status == DQ_NOSCRIPT) q->link.sha[call->verb][0] = '\0';
        return status;
    }
    if (r->type != REDIS_REPLY_ARRAY || r->elements == 0)
        return dq_bad_reply(q, call->what);
    return DELAYQ_OK;
}

static delayq_status dq_send(delayq *q, dq_call *call) {
    delayq_link *l = &q->link;
    redisReply *r[2] = {NULL, NULL};
    int64_t now = dq_now();
    delayq_status status;
    int n, got = 0, sent = 0;
    dq_out o;
    o.c = l->cmd;
    o.n = 0;
    o.failed = 0;
    n = dq_eval(&o, l, call->verb, call->keys, call->args);
    call->write(&o, q, call);
    dq_spill(&o);
    status = o.failed ? dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory")
                      : dq_exchange(q, l->cmd, r, n, &got, &sent,
                                    now + q->options.io_timeout_ms * 1000LL);
    call->sent_us = now;
    l->used_us = dq_now();
    if (n == 2 && got >= 1 && r[0]->type == REDIS_REPLY_STRING &&
        r[0]->len == 40)
        memcpy(l->sha[call->verb], r[0]->str, 41);
    if (status == DELAYQ_OK) {
        status = dq_call_reply(q, call, r[n - 1]);
        if (status == DELAYQ_OK) {
            call->reply = r[n - 1];
            r[n - 1] = NULL;
        }
    } else {
        dq_drop(q);
    }
    dq_free_replies(r, got);
    return status;
}

/* Run a script. Where the connection turns out to be lost, it is replaced
 * and the script sent once more, if that is provably harmless. */
static delayq_status dq_run(delayq *q, dq_call *call) {
    int tries;
    delayq_status status = DELAYQ_OK;
    for (tries = 0; tries < 3; tries++) {
        status = dq_ready(q);
        if (status == DELAYQ_OK) status = dq_send(q, call);
        if (call->once || status == DELAYQ_OK) break;
        if ((int)status == DQ_NOSCRIPT) continue;
        if (tries > 0 || q->link.cmd || q->link.failures > 0) break;
        if (status == DELAYQ_ERR_IO) continue;
        if (status != DELAYQ_ERR_UNKNOWN || !call->harmless) break;
        call->again = 1;
    }
    if ((int)status == DQ_NOSCRIPT)
        return dq_fail(q, DELAYQ_ERR_AGAIN, "the server forgets its scripts");
    if (call->again && status != DELAYQ_OK && status != DELAYQ_ERR_PROTOCOL)
        status = DELAYQ_ERR_UNKNOWN; /* the first sending may have run */
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - The ear
 * A socket that only listens: to the queue's channel, and for pushes into N,
 * of which the server tells by client tracking. It only speeds things up.
 *
 * One field, wake_us, one rule. When a reply is applied, wake_us = when its
 * request was sent + its relative time (a look that comes a few microseconds
 * early is repeated; one that comes late by a round trip is late); messages
 * read since then lower it. The ear is never read between a request and its
 * reply, so that is all.
 *---------------------------------------------------------------------------*/

static void dq_wake_by(delayq *q, int64_t when) {
    if (q->wake_us > when) q->wake_us = when;
}

static int dq_is_key(const delayq *q, const char *prefix, const redisReply *r) {
    size_t plen = strlen(prefix);
    int brace = memchr(q->name, '{', q->name_len) ? 0 : 1;
    if (r->type != REDIS_REPLY_STRING ||
        r->len != plen + q->name_len + 2 * (size_t)brace)
        return 0;
    return memcmp(r->str, prefix, plen) == 0 &&
           memcmp(r->str + plen + brace, q->name, q->name_len) == 0;
}

/* A message on the queue's channel: the new earliest due time. */
static void dq_heard_head(delayq *q, const redisReply *r) {
    int64_t due_ms, now = dq_now();
    if (!dq_numbers(r, &due_ms, 1) || due_ms <= 0)
        dq_wake_by(q, now);
    else
        dq_wake_by(q,
                   due_ms > DQ_MAX_DUE / 1000
                       ? now + q->options.max_wait_ms * 1000
                       : due_ms * 1000 - q->link.server_us - q->link.span_us);
}

/* The keys that have changed; nil: all of them. */
static void dq_heard_keys(delayq *q, const redisReply *r) {
    size_t i;
    int ours = r->type != REDIS_REPLY_ARRAY;
    for (i = 0; !ours && i < r->elements; i++)
        ours = r->element[i]->type == REDIS_REPLY_STRING &&
               r->element[i]->len == q->name_len &&
               memcmp(r->element[i]->str, q->name, q->name_len) == 0;
    if (!ours) return;
    q->armed = 0;
    dq_wake_by(q, dq_now());
}

static void dq_heard(delayq *q, const redisReply *r) {
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(r->element[0]->str, "message") != 0)
        dq_wake_by(q, dq_now()); /* a subscription began or ended */
    else if (strcmp(r->element[1]->str, DQ_INVALIDATE) == 0)
        dq_heard_keys(q, r->element[2]);
    else if (dq_is_key(q, DQ_CHANNEL, r->element[1]))
        dq_heard_head(q, r->element[2]);
}

/* Read what the ear has received, at most 16 buffers full. */
static int dq_read_ear(delayq *q, int64_t now) {
    delayq_link *l = &q->link;
    int i;
    for (i = 0; i < 16; i++) {
        int any = 0;
        void *r = NULL;
        if (redisBufferRead(l->ear) != REDIS_OK) return 0;
        while (redisGetReplyFromReader(l->ear, &r) == REDIS_OK && r) {
            dq_heard(q, (redisReply *)r);
            freeReplyObject(r);
            r = NULL;
            any = 1;
            l->heard_us = now;
            l->pinged_us = 0;
        }
        if (l->ear->err) return 0;
        if (!any) break;
    }
    return 1;
}

/* Say something to a quiet ear; a dead one doesn't answer. */
static int dq_ping_ear(delayq *q, int64_t now) {
    delayq_link *l = &q->link;
    int sent;
    if (l->pinged_us > 0)
        return now - l->pinged_us < q->options.io_timeout_ms * 1000LL;
    if (now - l->heard_us < DQ_PING_US) return 1;
    l->pinged_us = now;
    return redisAppendFormattedCommand(l->ear, "*1\r\n$4\r\nPING\r\n", 14) ==
               REDIS_OK &&
           dq_flush(l->ear, &sent) == REDIS_OK;
}

/* Look at the ear, at most once a millisecond. */
static void dq_listen(delayq *q, int64_t now) {
    delayq_link *l = &q->link;
    if (!l->ear || now - l->looked_us < DQ_LOOK_US) return;
    l->looked_us = now;
    if (!dq_read_ear(q, now) || !dq_ping_ear(q, now)) dq_drop_ear(q);
}

/* One write: login, CLIENT ID, and the subscriptions; an answer to each. A
 * refused subscription leaves the ear half deaf, not the queue broken. */
static delayq_status dq_greet_ear(delayq *q, const dq_url *u, redisContext *c,
                                  int64_t deadline) {
    delayq_link *l = &q->link;
    redisReply *r[6] = {NULL, NULL, NULL, NULL, NULL, NULL};
    delayq_status status;
    int n, got, sent;
    dq_out o;
    o.c = c;
    o.n = 0;
    o.failed = 0;
    n = dq_login(&o, u);
    dq_words(&o, 2, "CLIENT", "ID");
    dq_line(&o, '*', 2);
    dq_text(&o, "SUBSCRIBE");
    dq_key(&o, q, DQ_CHANNEL);
    dq_words(&o, 2, "SUBSCRIBE", DQ_INVALIDATE);
    dq_spill(&o);
    if (o.failed) return dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    status = dq_exchange(q, c, r, n + 3, &got, &sent, deadline);
    if (status == DELAYQ_ERR_UNKNOWN) status = DELAYQ_ERR_IO;
    if (status == DELAYQ_OK) status = dq_logged_in(q, r, n);
    if (status == DELAYQ_OK) {
        int id = r[n]->type == REDIS_REPLY_INTEGER;
        l->ear_id = id ? r[n]->integer : 0;
        l->hears_heads = r[n + 1]->type == REDIS_REPLY_ARRAY;
        l->hears_pushes = id && r[n + 2]->type == REDIS_REPLY_ARRAY;
        if (!l->hears_heads && !l->hears_pushes) {
            int type = r[n + 1]->type;
            status = type == REDIS_REPLY_ERROR
                         ? dq_refused(q, "listening", r[n + 1])
                         : dq_bad_reply(q, "listening");
        }
    }
    dq_free_replies(r, got);
    return status;
}

/* Open the ear, unless that was tried too lately. Its failure is no failure
 * of the queue: it is told to the log, and the handle looks more often. */
static void dq_open_ear(delayq *q) {
    delayq_link *l = &q->link;
    int64_t now = dq_now();
    int64_t deadline = now + q->options.io_timeout_ms * 1000LL;
    delayq_status status;
    dq_url u;
    if (l->ear || now < l->ear_retry_us) return;
    dq_url_parse(dq_url_text(q), &u);
    status = dq_socket(q, &u, &l->ear, deadline);
    if (status == DELAYQ_OK) status = dq_greet_ear(q, &u, l->ear, deadline);
    memset(&u, 0, sizeof u);
    if (status != DELAYQ_OK) {
        l->ear_failures++;
        dq_drop_ear(q);
        if (q->options.log) q->options.log(q->options.user, status, q->err);
        return;
    }
    l->ear_failures = 0;
    l->heard_us = l->looked_us = q->wake_us = dq_now();
    l->pinged_us = 0;
}

/* Ask to be told of the next push into N, and whether something lies there
 * already: pushed before the server began to watch. */
static delayq_status dq_arm(delayq *q) {
    delayq_link *l = &q->link;
    redisReply *r[3] = {NULL, NULL, NULL};
    int64_t now = dq_now();
    int begin = !l->tracking, got, sent, n = 0;
    delayq_status status = dq_ready(q);
    dq_out o;
    if (status != DELAYQ_OK) return status;
    o.c = l->cmd;
    o.n = 0;
    o.failed = 0;
    if (begin) {
        dq_line(&o, '*', 7);
        dq_text(&o, "CLIENT");
        dq_text(&o, "TRACKING");
        dq_text(&o, "ON");
        dq_text(&o, "REDIRECT");
        dq_number(&o, l->ear_id);
        dq_text(&o, "OPTIN");
        dq_text(&o, "NOLOOP");
        n++;
    }
    dq_words(&o, 3, "CLIENT", "CACHING", "YES");
    dq_line(&o, '*', 2);
    dq_text(&o, "LLEN");
    dq_arg(&o, q->name, q->name_len);
    dq_spill(&o);
    n += 2;
    status = o.failed ? dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory")
                      : dq_exchange(q, l->cmd, r, n, &got, &sent,
                                    now + q->options.io_timeout_ms * 1000LL);
    if (o.failed) got = 0;
    l->used_us = dq_now();
    if (status != DELAYQ_OK) {
        if (status == DELAYQ_ERR_UNKNOWN) status = DELAYQ_ERR_IO;
        dq_drop(q);
    } else if (r[n - 2]->type == REDIS_REPLY_ERROR ||
               r[0]->type == REDIS_REPLY_ERROR) {
        l->hears_pushes = 0; /* Redis 5, an ACL: a look every 250 ms */
        dq_wake_by(q, dq_now() + DQ_DEAF_US);
    } else if (r[n - 1]->type == REDIS_REPLY_INTEGER) {
        l->tracking = q->armed = 1;
        if (r[n - 1]->integer > 0) q->ready = r[n - 1]->integer;
    } else {
        status = r[n - 1]->type == REDIS_REPLY_ERROR
                     ? dq_refused(q, "wait", r[n - 1])
                     : dq_bad_reply(q, "wait");
    }
    dq_free_replies(r, got);
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Moving and taking
 *---------------------------------------------------------------------------*/

static const char *dq_wire_letter(const delayq *q) {
    return q->options.wire == DELAYQ_NATIVE     ? "n"
           : q->options.wire == DELAYQ_REDISSON ? "r"
                                                : "o";
}

/* What tick and take say first. */
static void dq_write_drain(dq_out *o, delayq *q, const dq_call *call) {
    int native = q->options.wire == DELAYQ_NATIVE;
    dq_arg(o, q->name, q->name_len);
    dq_key(o, q, DQ_ZSET);
    dq_key(o, q, DQ_DEAD);
    dq_key(o, q, native ? DQ_RETRY : DQ_MIRROR);
    dq_text(o, dq_wire_letter(q));
    dq_number(o, q->options.batch);
    dq_number(o, q->options.max_wait_ms);
    if (call->verb == DQ_TAKE) {
        dq_number(o, (int64_t)call->max);
        dq_text(o, q->retry_turn ? "x" : "r");
    }
}

/* Apply the head of a reply: the one rule for wake_us. */
static delayq_status dq_apply(delayq *q, const dq_call *call, int64_t *us) {
    int64_t n[6], cap = q->options.max_wait_ms * 1000;
    int taking = call->verb == DQ_TAKE;
    delayq_link *l = &q->link;
    if (!dq_numbers(call->reply->element[0], n, 6))
        return dq_bad_reply(q, call->what);
    if (!l->ear || !l->hears_heads || (taking && !l->hears_pushes))
        cap = cap < DQ_DEAF_US ? cap : DQ_DEAF_US;
    dq_set_clock(l, n[0], call->sent_us, l->used_us);
    q->wake_us = call->sent_us + (n[1] < 0 || n[1] > cap ? cap : n[1]);
    q->ready = n[3] < 0 ? 0 : n[3];
    if (n[2] > 0 || call->reply->elements > 1) q->armed = 0;
    if (n[5] == 1) q->wire_refused = 1;
    *us = n[0];
    return DELAYQ_OK;
}

/* Run the transfer, one round trip. */
static delayq_status dq_transfer(delayq *q) {
    dq_call call;
    delayq_status status;
    int64_t us;
    memset(&call, 0, sizeof call);
    call.verb = DQ_TICK;
    call.what = "tick";
    call.keys = 4;
    call.args = 3;
    call.write = dq_write_drain;
    call.once = 1;
    status = dq_run(q, &call);
    if (status == DELAYQ_ERR_AGAIN && q->link.cmd && !q->link.sha[DQ_TICK][0])
        return DELAYQ_OK; /* forgotten: loaded by the next call */
    if (status != DELAYQ_OK) {
        int64_t later = dq_now() + DQ_BACKOFF_US;
        if (q->link.cmd) q->wake_us = later;
        return status;
    }
    status = dq_apply(q, &call, &us);
    freeReplyObject(call.reply);
    if (status == DELAYQ_OK && q->wire_refused) return dq_wire_failure(q);
    return status;
}

/* The item that a pair of the reply stands for. */
static int dq_item(const delayq *q, delayq_item *item, const redisReply *due,
                   const redisReply *bytes, int64_t us) {
    const unsigned char *e = (const unsigned char *)bytes->str;
    size_t at = 0;
    int kind = -1;
    if (due->type != REDIS_REPLY_STRING || bytes->type != REDIS_REPLY_STRING)
        return 0;
    memset(item, 0, sizeof *item);
    item->late_us = -1;
    if (due->str[0] != 'r')
        kind = dq_split(e, bytes->len, q->link.long_big, &at);
    if (kind < 0) at = 0;
    item->data = e + at;
    item->len = bytes->len - at;
    item->attempt = 1;
    if (kind == 16) item->attempt += (int)dq_get_uint(e + 15, 2, 1);
    if (due->str[0] >= '0' && due->str[0] <= '9') {
        const char *p;
        for (p = due->str; *p >= '0' && *p <= '9'; p++)
            item->due_ms = item->due_ms < DQ_MAX_DUE / 10
                               ? item->due_ms * 10 + (*p - '0')
                               : DQ_MAX_DUE;
        item->late_us = us - item->due_ms * 1000;
        if (item->late_us < 0) item->late_us = 0;
    }
    return 1;
}

static void dq_forget(delayq *q) {
    if (q->reply) freeReplyObject(q->reply);
    q->reply = NULL;
}

/* Ask the server for up to max items. EMPTY or OK. */
static delayq_status dq_ask(delayq *q, delayq_item *items, size_t max,
                            size_t *count) {
    dq_call call;
    delayq_status status;
    int64_t us;
    size_t i;
    memset(&call, 0, sizeof call);
    call.verb = DQ_TAKE;
    call.what = "take";
    call.keys = 4;
    call.args = 5;
    call.write = dq_write_drain;
    call.max = max;
    q->retry_turn = !q->retry_turn;
    status = dq_run(q, &call);
    if (status != DELAYQ_OK) return status;
    status = dq_apply(q, &call, &us);
    q->reply = call.reply;
    if (status != DELAYQ_OK) return status;
    *count = (call.reply->elements - 1) / 2;
    if (call.reply->elements != 2 * *count + 1 || *count > max)
        return dq_bad_reply(q, "take");
    for (i = 0; i < *count; i++)
        if (!dq_item(q, &items[i], call.reply->element[2 * i + 1],
                     call.reply->element[2 * i + 2], us))
            return dq_bad_reply(q, "take");
    if (*count > 0) return DELAYQ_OK;
    return q->wire_refused ? dq_wire_failure(q) : DELAYQ_EMPTY;
}

/* One turn of a take: ask if there may be something; if not, get closer to
 * hearing of it. */
static delayq_status dq_take_turn(delayq *q, delayq_item *items, size_t max,
                                  size_t *count, int listen) {
    delayq_link *l = &q->link;
    delayq_status status;
    int64_t now = dq_now();
    dq_listen(q, now);
    if (l->cmd && l->ear && q->ready == 0 && now < q->wake_us)
        return DELAYQ_EMPTY;
    status = dq_ask(q, items, max, count);
    if (status != DELAYQ_EMPTY || !listen) return status;
    if (!l->ear)
        dq_open_ear(q);
    else if (!q->armed && l->hears_pushes)
        status = dq_arm(q);
    return status == DELAYQ_OK || dq_passing(status) ? DELAYQ_EMPTY : status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiting
 *---------------------------------------------------------------------------*/

#if defined(__GNUC__)
#define DQ_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define DQ_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#else
#define DQ_LOAD(p) (*(p))
#define DQ_STORE(p, v) (*(p) = (v))
#endif

static void dq_drain_pipe(delayq *q) {
    char bytes[64];
    while (read(q->link.pipe[0], bytes, sizeof bytes) > 0) {
    }
}

/* Was delayq_wake called? It counts once. */
static int dq_woken(delayq *q) {
    if (!DQ_LOAD(&q->woken)) return 0;
    DQ_STORE(&q->woken, 0);
    dq_drain_pipe(q);
    return 1;
}

/* The moment at which q wants to act though nothing is heard. */
static int64_t dq_next_us(const delayq *q) {
    const delayq_link *l = &q->link;
    int64_t next = q->wake_us, ping;
    if (!l->ear) return next;
    ping = l->pinged_us > 0 ? l->pinged_us + q->options.io_timeout_ms * 1000LL
                            : l->heard_us + DQ_PING_US;
    return next < ping ? next : ping;
}

static void dq_watch(struct pollfd *p, size_t *n, int fd) {
    p[*n].fd = fd;
    p[*n].events = POLLIN;
    p[*n].revents = 0;
    ++*n;
}

/* Sleep until one of the queues wants to act, is told something, or until. A
 * command socket speaks while nobody asks it only when it dies. */
static void dq_sleep(delayq *const *queues, size_t count, int64_t until) {
    struct pollfd p[3 * DQ_MAX_QUEUES];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq *q = queues[i];
        int64_t next = dq_next_us(q);
        if (next < until) until = next;
        dq_watch(p, &n, q->link.pipe[0]);
        if (q->link.ear) dq_watch(p, &n, q->link.ear->fd);
        if (q->link.cmd) dq_watch(p, &n, q->link.cmd->fd);
    }
    dq_poll(p, n, until);
    for (i = 0; i < count; i++) {
        queues[i]->link.looked_us = 0;
        if (queues[i]->link.cmd) dq_check_idle(queues[i]);
    }
}

static int64_t dq_deadline(int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return dq_now() + timeout_ms * 1000;
}

/* A passing fault within a take or wait: tell the log, and don't spin. */
static void dq_ride_out(delayq *q, delayq_status status) {
    if (q->options.log) q->options.log(q->options.user, status, q->err);
    if (q->link.cmd) q->wake_us = dq_now() + DQ_BACKOFF_US;
}

/* One step of a tick: connect, or open the ear, or look and transfer. */
static delayq_status dq_tick_step(delayq *q) {
    delayq_link *l = &q->link;
    int64_t now;
    if (!l->cmd || q->wire_refused) return dq_ready(q);
    now = dq_now();
    if (!l->ear && now >= l->ear_retry_us) {
        if (q->pid != (int64_t)getpid()) return dq_ready(q);
        dq_open_ear(q);
        return DELAYQ_OK;
    }
    dq_listen(q, now);
    return now < q->wake_us ? DELAYQ_OK : dq_transfer(q);
}

/* One turn of a wait: a step, and OK if something lies ready then. */
static delayq_status dq_wait_turn(delayq *q) {
    delayq_status status = dq_tick_step(q);
    if (status == DELAYQ_OK && q->ready == 0 && q->link.ear && q->link.cmd &&
        !q->armed && q->link.hears_pushes && dq_now() < q->wake_us)
        status = dq_arm(q);
    if (status != DELAYQ_OK) return status;
    return q->ready > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

/*-----------------------------------------------------------------------------
 * MARK: - Public functions
 *---------------------------------------------------------------------------*/

static delayq_status dq_check(delayq *q, int good, const char *why) {
    if (!q || q->open != DQ_OPEN) {
        if (q) dq_fail(q, DELAYQ_ERR_ARG, "the handle is closed");
        return DELAYQ_ERR_ARG;
    }
    return good ? DELAYQ_OK : dq_fail(q, DELAYQ_ERR_ARG, "%s", why);
}

/* Options in range, defaults filled in. NULL, or what is wrong. */
static const char *dq_check_options(delayq_options *o) {
    size_t len = o->name ? strlen(o->name) : 0;
    if (len < 1 || len > 512) return "options.name: 1 to 512 bytes";
    if (o->wire < DELAYQ_NATIVE || o->wire > DELAYQ_REDISSON_OLD)
        return "options.wire: none of the three";
    if (o->batch < 0 || o->batch > 1000)
        return "options.batch: 1 to 1,000, or 0 for the default";
    if (o->max_wait_ms < 0 || o->max_wait_ms > 86400000)
        return "options.max_wait_ms: up to a day, or 0 for the default";
    if (o->connect_timeout_ms < 0 || o->io_timeout_ms < 0 ||
        o->connect_timeout_ms > 3600000 || o->io_timeout_ms > 3600000)
        return "options.connect_timeout_ms, io_timeout_ms: up to an hour";
    if (o->batch == 0) o->batch = 100;
    if (o->max_wait_ms == 0) o->max_wait_ms = 10000;
    if (o->io_timeout_ms == 0) o->io_timeout_ms = 3000;
    if (o->connect_timeout_ms == 0)
        o->connect_timeout_ms =
            o->io_timeout_ms < 2000 ? o->io_timeout_ms : 2000;
    return NULL;
}

static int dq_open_pipe(int fds[2]) {
    int i;
    if (pipe(fds) != 0) return 0;
    for (i = 0; i < 2; i++) {
        fcntl(fds[i], F_SETFL, fcntl(fds[i], F_GETFL) | O_NONBLOCK);
        fcntl(fds[i], F_SETFD, FD_CLOEXEC);
    }
    return 1;
}

DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options) {
    const char *wrong;
    dq_url u;
    if (!q) return DELAYQ_ERR_ARG;
    memset(q, 0, sizeof *q);
    if (!options) return dq_fail(q, DELAYQ_ERR_ARG, "options is NULL");
    q->options = *options;
    wrong = dq_check_options(&q->options);
    if (wrong) return dq_fail(q, DELAYQ_ERR_ARG, "%s", wrong);
    wrong = dq_url_parse(dq_url_text(q), &u);
    memset(&u, 0, sizeof u);
    if (wrong) return dq_fail(q, DELAYQ_ERR_ARG, "options.url: %s", wrong);
    if (!dq_open_pipe(q->link.pipe))
        return dq_fail(q, DELAYQ_ERR_MEMORY, "no pipe: %s", strerror(errno));
    q->name_len = strlen(options->name);
    memcpy(q->name, options->name, q->name_len + 1);
    q->options.name = NULL; /* the copy counts */
    q->open = DQ_OPEN;
    q->pid = (int64_t)getpid();
    dq_random(q->nonce, sizeof q->nonce);
    return dq_ready(q);
}

DELAYQ_API void delayq_close(delayq *q) {
    if (!q || q->open != DQ_OPEN) return;
    dq_forget(q);
    if (q->link.cmd) redisFree(q->link.cmd);
    if (q->link.ear) redisFree(q->link.ear);
    close(q->link.pipe[0]);
    close(q->link.pipe[1]);
    q->open = 0;
    q->link.cmd = q->link.ear = NULL;
}

static void dq_write_offer(dq_out *o, delayq *q, const dq_call *call) {
    unsigned char head[DQ_HEAD_MAX];
    char when[64];
    size_t n = dq_decimal(when, call->delay_ms);
    dq_key(o, q, DQ_ZSET);
    if (call->keys == 2) dq_key(o, q, DQ_MIRROR);
    dq_key(o, q, DQ_CHANNEL);
    if (call->again) {
        when[n++] = '!';
        n += dq_decimal(when + n, call->not_after_ms);
    }
    dq_arg(o, when, n);
    n = dq_head(q, call->id, call->len, head);
    dq_arg2(o, head, n, call->data, call->len);
}

DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms) {
    dq_call call;
    delayq_status status = dq_check(q, data || len == 0, "data is NULL");
    int64_t n[2], server_ms;
    if (status == DELAYQ_OK)
        status = dq_check(q, delay_ms >= 0, "delay_ms is negative");
    if (status == DELAYQ_OK) status = dq_ready(q);
    if (status != DELAYQ_OK) return status;
    server_ms = (dq_now() + q->link.server_us) / 1000;
    if (delay_ms > DQ_MAX_DUE - 1000 - server_ms)
        return dq_fail(q, DELAYQ_ERR_ARG, "delay_ms: due past 2^53 ms");
    memset(&call, 0, sizeof call);
    call.verb = DQ_OFFER;
    call.what = "offer";
    call.keys = q->options.wire == DELAYQ_NATIVE ? 1 : 2;
    call.args = 3;
    call.write = dq_write_offer;
    call.harmless = 1;
    call.data = data;
    call.len = len;
    call.delay_ms = delay_ms;
    call.not_after_ms = server_ms + delay_ms;
    dq_next_id(q, call.id);
    status = dq_run(q, &call);
    if (status != DELAYQ_OK) return status;
    if (!dq_numbers(call.reply->element[0], n, 2)) {
        status = dq_bad_reply(q, "offer");
    } else if (call.reply->elements > 1) {
        status = dq_fail(q, DELAYQ_ERR_UNKNOWN,
                         "offer: sent twice, and due before it could be told "
                         "whether the first arrived");
    } else {
        dq_set_clock(&q->link, n[0], call.sent_us, q->link.used_us);
        dq_wake_by(q, n[1] * 1000 + delay_ms * 1000 - q->link.server_us);
    }
    freeReplyObject(call.reply);
    return status;
}

DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms) {
    delayq_status status = dq_check(q, 1, "");
    int64_t now, left;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    if (DQ_LOAD(&q->woken)) dq_drain_pipe(q);
    status = dq_tick_step(q);
    if (!wait_ms) return status;
    now = dq_now();
    left = (dq_next_us(q) - now + 999) / 1000;
    if (q->link.cmd && !q->link.ear && now >= q->link.ear_retry_us) left = 0;
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_WIRE)
        left = q->options.max_wait_ms;
    *wait_ms = left < 0                        ? 0
               : left > q->options.max_wait_ms ? q->options.max_wait_ms
                                               : left;
    return status;
}

static delayq_status dq_take(delayq *q, delayq_item *items, size_t max,
                             size_t *count, int64_t timeout_ms) {
    int64_t deadline = dq_deadline(timeout_ms);
    delayq_status status;
    dq_forget(q);
    for (;;) {
        if (timeout_ms != 0 && dq_woken(q)) return DELAYQ_WOKEN;
        status =
            dq_take_turn(q, items, max, count, timeout_ms != 0 || q->polls > 0);
        if (status != DELAYQ_EMPTY) q->polls = 0;
        if (timeout_ms == 0 && status == DELAYQ_EMPTY) q->polls = 1;
        if (status != DELAYQ_EMPTY && !dq_passing(status)) return status;
        if (timeout_ms == 0 || dq_now() >= deadline) return status;
        dq_forget(q);
        if (status != DELAYQ_EMPTY) dq_ride_out(q, status);
        if (q->ready == 0) dq_sleep(&q, 1, deadline);
    }
}

DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms) {
    size_t count = 0;
    delayq_status status = dq_check(q, item != NULL, "item is NULL");
    if (status == DELAYQ_OK)
        status =
            dq_check(q, timeout_ms >= DELAYQ_FOREVER, "timeout_ms is below -1");
    if (status != DELAYQ_OK) return status;
    memset(item, 0, sizeof *item);
    return dq_take(q, item, 1, &count, timeout_ms);
}

/* A turn of each. OK where one has something. */
static delayq_status dq_wait_all(delayq *const *queues, size_t count,
                                 int timed) {
    delayq_status all = DELAYQ_EMPTY;
    size_t i;
    for (i = 0; i < count; i++) {
        delayq_status status;
        if (timed && dq_woken(queues[i])) return DELAYQ_WOKEN;
        status = dq_wait_turn(queues[i]);
        if (status < 0 && !dq_passing(status)) return status;
        if (status < 0) dq_ride_out(queues[i], status);
        if (status == DELAYQ_OK)
            all = DELAYQ_OK;
        else if (status < 0 && all == DELAYQ_EMPTY)
            all = status;
    }
    return all;
}

DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms) {
    int64_t deadline = dq_deadline(timeout_ms);
    size_t i;
    if (!queues || count < 1 || !queues[0]) return DELAYQ_ERR_ARG;
    for (i = 0; i < count; i++) {
        delayq_status status = dq_check(
            queues[i], count <= DQ_MAX_QUEUES && timeout_ms >= DELAYQ_FOREVER,
            "wait: at most 20 queues, timeout_ms not below -1");
        if (status != DELAYQ_OK) return status;
    }
    for (;;) {
        delayq_status status = dq_wait_all(queues, count, timeout_ms != 0);
        if (status == DELAYQ_OK || status == DELAYQ_WOKEN) return status;
        if (status < 0 && !dq_passing(status)) return status;
        if (timeout_ms == 0 || dq_now() >= deadline) return status;
        dq_sleep(queues, count, deadline);
    }
}

DELAYQ_API void delayq_wake(delayq *q) {
    int saved = errno;
    if (!q || q->open != DQ_OPEN) return;
    DQ_STORE(&q->woken, 1);
    /* A full pipe has been written to before, which is as good. */
    if (write(q->link.pipe[1], "w", 1) < 0) {
    }
    errno = saved;
}

DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = 0;
    if (!q || q->open != DQ_OPEN || !fds) return 0;
    if (n < max) fds[n++] = q->link.pipe[0];
    if (n < max && q->link.ear) fds[n++] = q->link.ear->fd;
    return n;
}

DELAYQ_API const char *delayq_errmsg(const delayq *q) {
    return q ? q->err : "";
}

DELAYQ_API const char *delayq_strstatus(delayq_status status) {
    switch (status) {
    case DELAYQ_OK: return "done";
    case DELAYQ_EMPTY: return "nothing to take";
    case DELAYQ_WOKEN: return "woken by delayq_wake";
    case DELAYQ_ERR_ARG: return "bad argument";
    case DELAYQ_ERR_IO: return "no connection; nothing has happened";
    case DELAYQ_ERR_TIMEOUT: return "not in time; nothing has happened";
    case DELAYQ_ERR_AUTH: return "wrong password or no permission";
    case DELAYQ_ERR_REDIS: return "the server answered with an error";
    case DELAYQ_ERR_PROTOCOL: return "the server answered nonsense";
    case DELAYQ_ERR_READONLY: return "the server takes no writes now";
    case DELAYQ_ERR_FULL: return "the server's memory is full";
    case DELAYQ_ERR_WIRE: return "the queue belongs to an older Redisson";
    case DELAYQ_ERR_UNKNOWN: return "no answer; it may have happened";
    case DELAYQ_ERR_AGAIN: return "the server is busy or starting";
    case DELAYQ_ERR_TYPE: return "a key of the queue has a wrong type";
    case DELAYQ_ERR_MEMORY: return "out of memory";
    }
    return "unknown status";
}

#endif /* DELAYQ_IMPLEMENTATION */

/*
 * MIT License
 *
 * Copyright (c) 2026 the delayq authors
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy
 * of this software and associated documentation files (the "Software"), to
 * deal in the Software without restriction, including without limitation the
 * rights to use, copy, modify, merge, publish, distribute, sublicense, and/or
 * sell copies of the Software, and to permit persons to whom the Software is
 * furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in
 * all copies or substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
 * IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
 * FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
 * AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
 * LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING
 * FROM, OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER
 * DEALINGS IN THE SOFTWARE.
 */
