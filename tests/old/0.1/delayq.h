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
 *     >>servers     one server, Sentinel, a cluster, TLS
 *     >>threads     blocking, threads, signals, fork
 *     >>errors      errors and retries
 *     >>limits      limits
 *     >>macros      option macros
 *     >>status      what a call can tell you
 *     >>types       options, the item, the handle
 *     >>functions   the functions
 *     >>inside      the implementation: platform, wire, scripts, statuses,
 *                   requests, URL, TLS, sockets, the ear, moving and taking,
 *                   waiting, public functions
 *
 * >>start -- quick start
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     int main(void) {
 *         static delayq q;
 *         delayq_options options = {0};
 *         delayq_item item;
 *
 *         options.name = "jobs";
 *         options.url = getenv("DELAYQ_URL");     (NULL: 127.0.0.1:6379)
 *         if (delayq_open(&q, &options) != DELAYQ_OK) {
 *             fprintf(stderr, "%s\n", delayq_errmsg(&q));
 *             return 1;
 *         }
 *         delayq_offer(&q, "hello", 5, 5000);     (due in 5 s)
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
 * and as a whole; with options.lease_ms a take only lends:
 *
 *                         tick, take
 *     offer -----> pending --------> ready
 *        cancel <--|   ^  \            |
 *                  |   |   \           | take
 *       reschedule +---+    \ take     v
 *                      ^     +-----> leased ----ack----> gone
 *                      |                |
 *                      +----------------+--- bury, or its attempts are used
 *                        nack, or the   |    up, or it can't be decoded
 *                        lease runs out v
 *                                     dead ---redrive---> ready
 *
 * "Pending" is a place in a sorted set, ordered by due time; "ready" a list.
 * A transfer, which any handle's tick or take runs, moves what is due from
 * the one to the other. A take that finds nothing ready takes what is due
 * straight from the set. A lease is a re-offer: the item goes back into the
 * set, due at the lease's end, its attempt count raised. An ack is a cancel,
 * a nack or an extend is a reschedule. So a crashed consumer's items come
 * again by themselves, and nothing has to look for them.
 *
 * >>promises -- what is guaranteed, and what isn't
 *
 *                    lease_ms = 0                lease_ms > 0
 *     delivery       at most once: a take        at least once
 *                    removes the item
 *     crash          what a consumer had taken   delivered again after the
 *                    is gone                     lease
 *     order          by due time, then offer     the same; what comes again
 *                                                by turns with the rest
 *     early          never, by the server's clock and the offerer's stopwatch
 *
 * Each move is one script, and a script that is refused at any point (memory
 * full, a command that the ACL forbids, a key of another type) leaves
 * everything where it was. A full server still delivers, acks, nacks and
 * extends. Items are lost in no other way than these and by what Redis itself
 * loses: its persistence settings, and asynchronous replication at a failover.
 * A server that has fallen back to an earlier state so also brings back what
 * was taken or acked since then, without a lease, too.
 *
 * Where Redisson moves items of the queue, too, three things are weaker: a
 * lease ends by the fastest Java clock, attempts are counted anew whenever
 * Java has moved the item (so max_attempts is refused), and a crashed
 * consumer's item may come to Java.
 *
 * >>keys -- what lies in Redis
 *
 * For a queue named N, T is N itself where N contains a '{', else {N}:
 *
 *     N                               list   ready payloads, tail to head
 *     redisson_delay_queue_timeout:T  zset   pending and leased elements, by
 *                                            due time in ms
 *     redisson_delay_queue:T          list   pending elements by offer, where
 *                                            the wire is a Redisson one
 *     redisson_delay_queue_channel:T  channel  the new earliest due time
 *     delayq_retry:T                  list   native: elements with an attempt
 *                                            count, ready again
 *     delayq_dead:T                   list   "reason time\n", then the element
 *     delayq_once:T:LEN:KEY           string with a TTL: the ticket of what
 *                                            was offered under KEY. Eviction
 *                                            (volatile-*) may drop it early
 *     delayq_waiting:T                zset   handles that wait in a take
 *     delayq_turn:T:HANDLE            channel  "your turn", to one of them
 *     delayq_stream:T                 stream, trimmed: a broadcast's items
 *
 * The first four are the keys, the bytes and the channel of Redisson's
 * RDelayedQueue over an RBlockingQueue: Java programs can offer to and take
 * from the same queue. options.wire says for which Redisson; all handles of a
 * queue have to say the same.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts; a device with no clock, or a wrong one, may
 * offer and take. Due times are whole milliseconds since the epoch, rounded
 * up. Waiting is done by the program (poll, a sleep of less than a
 * millisecond, and the last 80 us awake, since sleepers are woken late);
 * nothing ever blocks on the server. A handle that waits has a
 * second connection, the ear, that hears of earlier items and of payloads
 * that anybody pushes into N. The ear only speeds things up: without it a
 * handle looks every 250 ms, and in any case every max_wait_ms.
 *
 * Of the handles that wait in a take for 10 s or longer on one queue, one
 * keeps watch, with the exact timer; the others are told when it is their
 * turn. So an item wakes one of a hundred. Where the one that keeps watch dies
 * or freezes, the next in line takes over 0.3 to 0.6 s after something was
 * due or pushed.
 *
 * Beside idle Redisson consumers the server serves their BLPOP first; there
 * is no fairness between them and delayq's.
 *
 * >>servers -- one server, Sentinel, a cluster, TLS
 *
 * With several hosts in the URL a connect tries them in turn, each with its
 * share of connect_timeout_ms, and passes over replicas and nodes that are
 * down. redis+sentinel:// asks the sentinels, at each connect, who is master.
 *
 * On a cluster one host is enough to begin with; redirections are followed.
 * All keys of a queue lie in one slot, so a name either has no '}' or one
 * whole, non-empty {tag}; others are refused there. While the slot is moved
 * to another node these go on, in a native queue: offers without a key, acks,
 * nacks, and takes of what comes from the set; all else is DELAYQ_ERR_AGAIN
 * until the slot has arrived. One queue is one slot, and so one node's work:
 * to spread a hot one open several, "jobs{0}", "jobs{1}" ..., offer to them in
 * turn, and wait on all of them with delayq_wait.
 *
 * rediss:// checks the server's certificate and that it is the host's.
 *
 * >>threads -- blocking, threads, signals, fork
 *
 * A handle is used by one thread at a time and by the process that opened it;
 * open as many as you like. delayq_wake is the exception: any thread or
 * signal handler may call it. No signal disposition is changed, and a lost
 * connection raises no SIGPIPE.
 *
 * A call that asks the server blocks for io_timeout_ms at most, reconnecting
 * included (or connect_timeout_ms, where that is longer); a take or wait for
 * its timeout on top. But a host name in the URL is looked up by getaddrinfo,
 * which knows no time limit: give an address where that matters.
 *
 * A connection that is dead without saying so (a frozen server, a lost
 * network) is noticed by the next request after io_timeout_ms, and by the ear
 * after 10 s and io_timeout_ms at most.
 *
 * >>errors -- errors and retries
 *
 * 0 is done, > 0 means that nothing went wrong but there is nothing to show,
 * < 0 is a failure. A failure says whether its effect may have happened: only
 * after DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL it may. delayq_errmsg has
 * the sentence. A lost connection is replaced by itself: at once, and after a
 * failed attempt with a back-off of up to 5 s, in which calls fail at once. A
 * handle never has to be closed and opened again, but after DELAYQ_ERR_WIRE.
 *
 * >>limits -- limits
 *
 * Names of 1 to 512 bytes. Payloads of any bytes, as long as the server takes
 * (512 MB by default). Due times below 2^53 ms. One script moves or takes at
 * most options.batch items and stops after 256 KiB of payload, so that it
 * stalls the server for about 2 ms; a single larger payload costs what it
 * costs, about 3 ms per MB, and as much again for one like it that is due
 * within max_wait_ms. With a Redisson wire the mirror is a list, and a script
 * that moves or cancels walks through it once: some ms per 100,000 pending, for
 * up to 100 items, but for 1 to 3 that Java has offered.
 *
 * The handle is plain memory of a few KB; a call needs up to 24 KB of stack,
 * mostly hiredis' read buffer. The library allocates nothing itself; hiredis
 * does.
 *
 * >>macros -- option macros
 *
 *     DELAYQ_IMPLEMENTATION   define it in exactly one .c or .cc file
 *     DELAYQ_STATIC           all functions static, for that file alone
 *     DELAYQ_TLS              rediss:// URLs: needs hiredis >= 1.0 and OpenSSL,
 *                             -lhiredis_ssl -lssl -lcrypto
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
    DELAYQ_EMPTY = 1,     /* nothing to take within the timeout */
    DELAYQ_GONE = 2,      /* the ticket no longer fits: nothing was changed */
    DELAYQ_DUPLICATE = 3, /* the key is taken: nothing was stored */
    DELAYQ_WOKEN = 4,     /* delayq_wake was called */

    /* Failures after which nothing has happened. */
    DELAYQ_ERR_ARG = -1,      /* a bad argument or option */
    DELAYQ_ERR_IO = -2,       /* no connection; the handle tries again */
    DELAYQ_ERR_TIMEOUT = -3,  /* no connection in time, or nothing sent */
    DELAYQ_ERR_AUTH = -4,     /* wrong password, no permission (ACL), or a
                                 certificate that isn't trusted */
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

#define DELAYQ_FOREVER (-1) /* a timeout without end */
#define DELAYQ_BACKOFF (-1) /* nack: exponential, with jitter */
#define DELAYQ_RELEASE (-2) /* nack: at once, this attempt doesn't count */

/* Which programs share the queue. All its handles have to say the same. */
typedef enum delayq_wire {
    DELAYQ_NATIVE = 0,  /* C programs; Redisson >= 3.21.1 may move and take,
                           but its size(), contains() and so on don't see
                           what C has offered */
    DELAYQ_REDISSON,    /* a fleet with Redisson >= 3.21.1 */
    DELAYQ_REDISSON_OLD /* a fleet with Redisson <= 3.21.0 */
} delayq_wire;

typedef struct delayq delayq;

/* Zero everywhere means the default, but for the name. Strings and hooks are
 * used as long as the handle is open, except name, which is copied. */
typedef struct delayq_options {
    const char *name; /* required: the queue, 1 to 512 bytes */
    const char *url;  /* where the server is, default redis://127.0.0.1:6379:
                         redis://[user[:password]@]host[:port][,...][/db]
                         rediss://... the same over TLS
                         redis+sentinel://[...@]host[:port][,...]/service[/db]
                         unix://[...@]/path[?db=N]
                         Several hosts are tried in turn: nodes of a cluster,
                         or sentinels. %XX stands for a byte in user,
                         password, service and path */
    delayq_wire wire; /* default DELAYQ_NATIVE */

    /* At least once. */
    int64_t lease_ms;       /* how long a taken item may stay without an ack
                               before it is delivered again; default 0: a take
                               removes the item */
    int max_attempts;       /* a take that finds an item handed out so often
                               sends it to the dead letters; up to 65,535;
                               default 0: never. Only with DELAYQ_NATIVE */
    int64_t backoff_ms;     /* DELAYQ_BACKOFF after the first attempt, doubled
                               for each further one; default 1,000 */
    int64_t backoff_max_ms; /* and at most; default 300,000 */

    /* Broadcast: every handle gets every item. All handles of the queue are
     * opened so; only with DELAYQ_NATIVE and without a lease. */
    int broadcast;
    const char *broadcast_after; /* NULL: only what comes after the open; "":
                                    everything that is kept; or the ticket text
                                    of the last item seen */
    int64_t broadcast_keep;      /* items that the stream keeps, about; default
                                    10,000 */

    int batch;              /* most items that one tick moves: 1 to 1,000;
                               default 100 */
    int64_t max_wait_ms;    /* longest wait that a tick returns, and longest
                               time between two looks: default 10,000 */
    int connect_timeout_ms; /* to connect and log in; default 2,000, or
                               io_timeout_ms where that is shorter */
    int io_timeout_ms;      /* for one round trip; default 3,000 */

    /* Files, for rediss://. */
    const char *tls_ca;   /* certificates to trust; default the system's */
    const char *tls_cert; /* this program's certificate, and its chain; */
    const char *tls_key;  /* and its key: default neither */

    /* Gives a connected context instead of the URL's host or path (whose
     * user, password and db count all the same), or NULL. For TLS of your own,
     * proxies, tests. The handle owns what it is given. */
    struct redisContext *(*connect)(void *user, int timeout_ms);
    /* Told of faults that a call rides out, one line without a newline. */
    void (*log)(void *user, delayq_status status, const char *text);
    void *user; /* handed to the hooks */

    /* An open handle whose sockets this one uses, in the same thread; closed
     * after this one; it doesn't share itself, and neither of the two is moved
     * in memory. url, connect and the timeouts are its. */
    delayq *share;
} delayq_options;

/* Names one stay of an item in the set: from its offer until it is moved or
 * taken, or from its lease until that ends. Text, to be printed, stored and
 * compared as it is: due time, dash, id in hex digits. "" is none. */
typedef struct delayq_ticket {
    char text[52];
} delayq_ticket;

/* What offer_many hands in. */
typedef struct delayq_message {
    const void *data; /* NUL bytes allowed; nothing of it is kept */
    size_t len;
    int64_t delay_ms; /* >= 0 */
    int64_t due_ms;   /* > 0: this due time instead, ms since the epoch by the
                         server's clock; one in the past is due at once */

    const char *key;    /* NULL, or a name of 1 to 256 bytes: a second offer
                           under it is a DELAYQ_DUPLICATE */
    int64_t key_ttl_ms; /* > 0 with a key: for so long, from this offer on */
    int replace;        /* instead take the place of the first, if that still
                           waits */

    delayq_status status; /* out, and in: DELAYQ_ERR_UNKNOWN together with
                             what the call left here sends it again, and it is
                             stored once */
    delayq_ticket ticket; /* out: of the item, or of the one that has the key */
    unsigned char id[16]; /* private */
    int64_t not_after_ms; /* private */
} delayq_message;

/* What a take or peek hands out. The payload belongs to the handle and lives
 * until the next take, ack_take, peek or dead_peek on it, or its close. */
typedef struct delayq_item {
    const void *data;
    size_t len;
    int attempt;     /* take: how often it has been handed out, this time
                        included; peek: handed out so far. 0 where unknown:
                        with DELAYQ_REDISSON_OLD and a lease */
    int64_t due_ms;  /* when it was due, server's clock; 0 where unknown */
    int64_t late_us; /* taken - due, microseconds, by the server's clock; -1
                        where unknown: the ready list keeps neither */
    delayq_ticket ticket; /* for ack, nack, extend, bury; "" without a lease.
                             Broadcast: where the reader stands */
    delayq_status acked;  /* out of ack_take and ack_many */
} delayq_item;

/* A dead letter, as dead_peek hands it out. */
typedef struct delayq_dead {
    const void *data; /* the payload; all of it where it can't be decoded */
    size_t len;
    char reason[16]; /* "attempts", "buried" or "undecodable" */
    int attempt;     /* how often it was handed out; 0 where unknown */
    int64_t dead_ms; /* when it was given up, server's clock */
} delayq_dead;

/* What delayq_count tells. The first block is the queue, by the server; the
 * second this handle since its open. */
typedef struct delayq_counts {
    int64_t pending;     /* in the set, leased ones included */
    int64_t overdue;     /* of these, due and not yet moved */
    int64_t overdue_ms;  /* the oldest of them, for how long; else 0 */
    int64_t ready;       /* in the lists; broadcast: always 0 */
    int64_t dead;        /* dead letters */
    int64_t next_due_ms; /* the earliest due time; 0: nothing is pending */
    int64_t now_ms;      /* the server's clock */

    uint64_t offered, moved, taken, acked, nacked;
    uint64_t redelivered; /* taken with an attempt above 1 */
    uint64_t died;        /* sent to the dead letters */
    uint64_t reconnects;
    uint64_t lateness[24]; /* items taken less than 2^n us late, and not less
                              than half of that; the last: all above */
} delayq_counts;

/* A handle, in your storage. {0} is a closed one. An open one is not copied;
 * all its fields are private. */
#define DELAYQ_SCRIPTS 11
typedef struct delayq_address {
    char host[256]; /* or the path of a unix socket, */
    int port;       /* which has port 0 */
} delayq_address;

typedef struct delayq_link {
    struct redisContext *cmd, *ear;
    delayq_address at;  /* where cmd leads, or shall lead */
    delayq_address ask; /* where the slot is going, by the last ASK */
    unsigned host;      /* number of the URL's host that is tried next */
    void *tls;
    delayq *handles;     /* all that use this link */
    int64_t server_us;   /* the server's clock minus ours, at least */
    int64_t span_us;     /* and at most so much more */
    int64_t used_us;     /* when the command socket was last used */
    int64_t patience_us; /* the sockets' SO_RCVTIMEO; 0: not to be used */
    int64_t retry_us;    /* connect no sooner */
    int64_t ear_retry_us;
    int64_t looked_us; /* when the ear was last looked at */
    int64_t heard_us;  /* when it last said anything */
    int64_t pinged_us; /* when it was pinged; 0: no answer is awaited */
    int64_t ear_id;    /* its CLIENT ID */
    unsigned failures, ear_failures;
    unsigned barren;       /* connections in a row that no script survived */
    delayq_status failure; /* of the last attempt to connect */
    unsigned char long_size, long_big; /* the server's unsigned long */
    unsigned char hears_pushes, tracking, connected, answered;
    unsigned char moved;          /* the server has told where to connect: at */
    int pipe[2];                  /* delayq_wake writes, a wait reads */
    char why[160];                /* it is not connected */
    char sha[DELAYQ_SCRIPTS][41]; /* from SCRIPT LOAD, or "" */
} delayq_link;

struct delayq {
    unsigned open;
    int64_t pid;
    delayq_options options;
    delayq_link link; /* not used by one that shares another's */
    delayq *next;     /* of the handles on a link */
    int64_t limit_us; /* when this call shall end; 0: not reckoned yet */
    int64_t wake_us;  /* ask the server no later than then */
    int64_t ready;    /* how many lay ready by the last answer */
    uint64_t order;   /* of the last id */
    unsigned char nonce[8];
    char id[18];         /* ":" and the nonce in hex */
    unsigned char armed; /* a push into N will be heard */
    unsigned char hears; /* the channel */
    unsigned char turns; /* its turn channel, too */
    unsigned char joins; /* it will wait long: in the line of those who do */
    unsigned char place; /* there: 1 keeper, 2 next, 3 further; 0: none */
    unsigned char polls; /* an empty take that did not wait */
    unsigned char retry_turn, looked, wire_refused, orphan;
    volatile int woken;
    void *reply; /* what the items point into */
    delayq_counts counts;
    size_t name_len;
    char name[513];
    char cursor[44]; /* of a broadcast */
    char err[256];
};

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
 *     DELAYQ_ERR_ARG       the handle is closed, or from before a fork() (seen
 *                          before it touches a socket); what open says of
 *                          names and tls_ files, where it connects later
 */

/*
 * delayq_open -- open a handle on a queue, and connect.
 *
 *   q         a closed or zeroed handle, in the caller's storage
 *   options   copied, but for the strings in it other than the name
 *
 * Returns     DELAYQ_OK        open and connected
 *             DELAYQ_ERR_ARG   a bad option, a tls_ file that is of no use, or
 *                              on a cluster a name that lies in two slots;
 *                              the handle is closed
 *             DELAYQ_ERR_WIRE  open, but every call will say so
 *             any server failure: open; it connects when it is used
 * Blocks      up to connect_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, EXISTS, 1 script, O(log n)
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
 * Blocks       one round trip; where the connection turns out to be lost, a
 *              connect and one more (>>threads says for how long)
 * Redis        1 script, O(log n)
 *
 * An offer whose answer got lost is sent again under the same id, so it is
 * stored once or, where that can't be told any more, DELAYQ_ERR_UNKNOWN.
 */
DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms);

/*
 * delayq_offer_many -- hand in many, each with its own time, key and answer.
 *
 *   messages   see delayq_message; status and ticket are set in each
 *   count      0 is fine
 *
 * Returns      DELAYQ_OK   each is stored, or a DELAYQ_DUPLICATE
 *              else the server's first failure, or DELAYQ_ERR_ARG where some
 *              were bad, which keeps no others from being stored
 * Blocks       a round trip per 8 scripts or 256 KiB
 * Redis        a script per 128 messages or 256 KiB, one per key; O(log n) per
 *              message
 *
 * After DELAYQ_ERR_UNKNOWN offer the same messages again: those that have this
 * status are stored once, and those that are DELAYQ_OK have to be left out.
 */
DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count);

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
 * Redis        1 script, O(log n) per item moved, at most options.batch; with
 *              a Redisson wire O(n), see >>limits
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
 *              out, if it did, is gone; with a lease it comes again
 * Blocks       timeout_ms, and a round trip; where it waited for 10 s or
 *              longer, one more to leave the line. With 0: one round trip, or
 *              none while the ear is open and nothing is due (a program that
 *              keeps taking with 0 gets an ear at the second empty take)
 * Redis        1 script, O(log n); while it waits 0.2 commands a second
 *
 * Passing faults (_IO, _TIMEOUT, _AGAIN, _READONLY, _UNKNOWN) are ridden out
 * within the timeout, and told to options.log; the timeout passed, the last
 * one is returned. All others return at once.
 */
DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms);

/*
 * delayq_take_many -- get up to max items in one round trip.
 *
 *   items, max   room for max items, 1 to 10,000
 *   count        out: how many came
 *
 * As delayq_take; waits for the first only, and may bring fewer than lie
 * ready: a script stops after 256 KiB.
 */
DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms);

/*
 * delayq_ack -- done with a leased item: it is removed.
 *
 * Returns      DELAYQ_OK     removed
 *              DELAYQ_GONE   the lease ran out and the item was moved or given
 *                            to another, or it was acked before; nothing was
 *                            changed
 *              DELAYQ_ERR_ARG  an item without a lease, or a broadcast's
 *              any server failure; DELAYQ_ERR_UNKNOWN also where the answer
 *              was lost and the item is no longer there
 * Blocks       one round trip
 * Redis        1 script, O(log n)
 *
 * A lease that has run out may still be acked until somebody moves or takes
 * the item. The same holds for nack, extend and bury.
 */
DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item);

/* delayq_ack_many -- ack `count` items, at most 500 in a round trip. Each
 * one's status stands in its `acked`. Returns DELAYQ_OK if all were acked,
 * else the first other status; after a failure the rest were not tried. */
DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count);

/*
 * delayq_ack_take -- ack the item in hand and take the next in one round trip.
 *
 *   item   in: the one to ack, its ticket is enough; with none (zeroed) it is
 *          a take. out: the next one, and in `acked` what the ack said
 *
 * Returns what delayq_take returns; what the ack said stands in `acked`, after
 * a failure, too: DELAYQ_OK, DELAYQ_GONE, or the failure that kept it from
 * being sent, or DELAYQ_ERR_UNKNOWN where its answer was lost. Where it isn't
 * settled the item keeps its ticket (and loses its payload): call again.
 * DELAYQ_EMPTY and DELAYQ_WOKEN mean that it is settled.
 */
DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms);

/*
 * delayq_nack -- not done: deliver a leased item again.
 *
 *   delay_ms   >= 0: in so many ms; DELAYQ_BACKOFF: backoff_ms, doubled for
 *              each further attempt, up to backoff_max_ms, half of it at
 *              random; DELAYQ_RELEASE: at once, and as if it had not been
 *              taken (for what was taken and not begun)
 *
 * Returns, blocks, costs as delayq_ack. Safe to be sent again.
 */
DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms);

/* delayq_extend -- let a lease end in lease_ms from now (0: options.lease_ms).
 * Puts the new ticket into the item. Otherwise as delayq_ack. */
DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms);

/* delayq_bury -- give a leased item up: to the dead letters, as "buried".
 * Otherwise as delayq_ack. */
DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item);

/*
 * delayq_cancel -- take back an offer that has not been moved or taken yet.
 *
 * Returns      DELAYQ_OK     it will never be delivered
 *              DELAYQ_GONE   it was moved, taken or cancelled before
 *              DELAYQ_ERR_ARG  no ticket
 *              any server failure, as for delayq_ack
 * Redis        1 script, O(log n); with a mirror O(n)
 */
DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket);

/* delayq_reschedule -- let a pending item be due in delay_ms >= 0 from now.
 * Puts the new ticket in place of the old one. An item offered under a key is
 * no longer found by `replace` then: to move it, offer it again with replace.
 * Otherwise as delayq_cancel; O(log n) with a mirror, too. */
DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms);

/*
 * delayq_peek -- look at what is pending (leased ones among it) in the order
 * of due times, without touching it.
 *
 *   items, max   room for max items
 *   count        out; may be fewer than there are: a script stops after 256
 *                KiB. To page on, hand in the last item's ticket
 *   after        NULL or "": from the start; else the items behind this one,
 *                whether it is still there or not
 *
 * Returns      DELAYQ_OK, DELAYQ_EMPTY (none), or any server failure
 * Redis        1 script, O(log n) + O(max)
 */
DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count, const delayq_ticket *after);

/* delayq_count -- what there is, and what this handle has done. One round
 * trip, O(log n), and reads the head, payload included. DELAYQ_OK or any
 * server failure; the handle's own counters are filled in then, too. */
DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts);

/* delayq_count_due -- for a histogram: counts[i] = how many of what is pending
 * are due at due_ms[i] (ms since 1970) or before. n: 1 to 1,000. One round
 * trip, O(n log n_pending). DELAYQ_OK, DELAYQ_ERR_ARG or any server failure. */
DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts);

/* delayq_clear -- remove all that is pending, leased or ready (broadcast: and
 * the stream); not the dead letters, nor keys. `removed` may be NULL. One
 * round trip, O(1) for the server's main thread; DELAYQ_OK or any failure. */
DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed);

/* delayq_dead_peek -- look at up to max dead letters, the oldest first,
 * beginning with number `from` (0 is the oldest). DELAYQ_OK, DELAYQ_EMPTY or
 * any server failure. One round trip, O(from + max), at most 256 KiB. */
DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from);

/* delayq_dead_redrive -- make up to max dead letters ready, the oldest first,
 * as if never handed out. What can't be decoded stays, as the newest. `count`
 * (may be NULL): how many were made ready. One round trip, at most 256 KiB. */
DELAYQ_API delayq_status delayq_dead_redrive(delayq *q, size_t max,
                                             size_t *count);

/* delayq_dead_clear -- remove all dead letters. `removed` may be NULL. */
DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed);

/*
 * delayq_wait -- sleep until one of several queues has something to take.
 *
 *   queues       open handles, with at most 20 different connections
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
#include <sys/ioctl.h>
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

#ifdef DELAYQ_TLS
#include <hiredis/hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

#define DQ_OPEN 0x64713031u
#define DQ_NEVER INT64_MAX
#define DQ_SECOND_US 1000000
#define DQ_LOOK_US 1000   /* between two looks at an idle ear */
#define DQ_DEAF_US 250000 /* between two looks without an ear */
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_PATIENT_MS 200           /* below, the kernel's tick is too coarse */
#define DQ_SPIN_US 80               /* Linux' timer slack, and a bit */
#define DQ_MAX_DUE 9007199254740991 /* 2^53 - 1 */
#define DQ_MAX_LINKS 20
#define DQ_LINE_MS 10000 /* who waits so long stands in the line */

/* The sockets that a handle uses: its own, or those that it shares. */
static delayq_link *dq_link(const delayq *q) {
    return q->options.share ? &q->options.share->link
                            : &((delayq *)(uintptr_t)q)->link;
}

/* The handle whose options say where to connect. */
static const delayq *dq_owner(const delayq *q) {
    return q->options.share ? q->options.share : q;
}

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
    return d / 2 + (int64_t)((double)(d / 2) * (r[0] * 256 + r[1]) / 65536);
}

/* hiredis and OpenSSL write without MSG_NOSIGNAL, and a library must not let a
 * lost connection kill its program: SIGPIPE is held back, and swallowed where
 * something failed. On macOS and BSD it is an option of the socket. */
#ifdef SO_NOSIGPIPE
typedef int dq_signals;

static void dq_hold_signals(dq_signals *old) {
    *old = 0;
}

static void dq_let_signals(const dq_signals *old, int failed) {
    (void)old;
    (void)failed;
}
#else
typedef sigset_t dq_signals;

static void dq_hold_signals(dq_signals *old) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_BLOCK, &mask, old);
}

static void dq_let_signals(const dq_signals *old, int failed) {
    if (failed) {
        struct timespec none = {0, 0};
        int saved = errno;
        sigset_t mask;
        sigemptyset(&mask);
        sigaddset(&mask, SIGPIPE);
        while (sigtimedwait(&mask, NULL, &none) < 0 && errno == EINTR) {
        }
        errno = saved;
    }
    sigprocmask(SIG_SETMASK, old, NULL);
}
#endif

static int dq_flush(redisContext *c, int *sent) {
    dq_signals old;
    int status;
    dq_hold_signals(&old);
    status = redisBufferWrite(c, sent);
    if (c->err == REDIS_ERR_OOM) *sent = 1; /* written, then no new buffer */
    dq_let_signals(&old, status != REDIS_OK);
    return status;
}

/* Under TLS a read may write. */
static int dq_fill(redisContext *c) {
#ifdef DELAYQ_TLS
    dq_signals old;
    int status;
    dq_hold_signals(&old);
    status = redisBufferRead(c);
    dq_let_signals(&old, status != REDIS_OK);
    return status;
#else
    return redisBufferRead(c);
#endif
}

/* Wait in the read itself, for the socket's SO_RCVTIMEO at most: a poll with a
 * timeout sets a precise timer, and in a virtual machine that costs more than
 * all else the client does for a call. */
static int dq_fill_patiently(redisContext *c) {
    int on = 0, status;
    ioctl(c->fd, FIONBIO, &on);
    status = dq_fill(c);
    on = 1;
    ioctl(c->fd, FIONBIO, &on);
    return status;
}

/* Sleep until a descriptor is readable or the clock says `until`. poll counts
 * whole milliseconds; the rest is slept, deaf for less than one. A sleeper is
 * woken up to DQ_SPIN_US late, so the last of it is spent awake. */
static void dq_poll(struct pollfd *fds, size_t count, int64_t until) {
    int64_t ms = (until - dq_now() - DQ_SPIN_US) / 1000, left;
    int n = ms > 3600000 ? 3600000 : ms > 0 ? (int)ms : 0;
    if (poll(fds, (nfds_t)count, n) != 0) return;
    left = until - dq_now();
    if (left > 1000 + DQ_SPIN_US) return; /* an hour is over */
    if (left > DQ_SPIN_US) {
        struct timespec t;
        t.tv_sec = 0;
        t.tv_nsec = (long)(left - DQ_SPIN_US) * 1000;
        if (nanosleep(&t, NULL) != 0) return;
    }
    while (dq_now() < until) {
    }
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
    const delayq_link *l = dq_link(q);
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

/* The lower 11 bits of an old id: random, and no infinity or NaN. */
static int dq_old_tail(const delayq *q) {
    return (q->nonce[5] & 7) << 8 | 0x20 | (q->nonce[6] & 0x1f);
}

/* The id of the next offer: strictly rising within the handle, as bytes too,
 * by which Redis sorts the elements of one millisecond. An old id is read as a
 * double: its last byte keeps it from being an infinity or a NaN. */
static void dq_next_id(delayq *q, unsigned char id[16]) {
    uint64_t order = (uint64_t)(dq_now() + dq_link(q)->server_us);
    if (order <= q->order) order = q->order + 1;
    q->order = order;
    if (q->options.wire == DELAYQ_REDISSON_OLD)
        order = order << 11 | (uint64_t)dq_old_tail(q);
    dq_put_uint(id, 8, 1, order);
    memcpy(id + 8, q->nonce, 5);
    memset(id + 13, 0, 3);
}

/*-----------------------------------------------------------------------------
 * MARK: - Scripts
 *
 * A script is the concatenation of its parts. Each that moves works in four
 * steps: read (what it will write, too: a wrong type ends it), probe (the
 * later removal with an empty range: it shows the permission, and
 * after any write Redis no longer refuses for memory), add, remove. So a
 * refusal at any point leaves everything where it was.
 *
 * They measure work, not time, which stands still inside scripts since Redis
 * 7.2: elements are read in chunks that grow to 64, until the limit or 256 KiB.
 * Strings are never compared with <, which is strcoll; numbers of more than 14
 * digits become text only through string.format, since .. writes no more.
 *---------------------------------------------------------------------------*/

/* us, now: the server's clock in microseconds and milliseconds. stamp: the
 * same as text, seconds and microseconds; each reply begins with it. num(n): a
 * whole number as text. */
static const char dq_lua_clock[] =
    "local t = redis.call('TIME')\n"
    "local us, stamp = t[1] * 1000000 + t[2], t[1] .. ' ' .. t[2]\n"
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
 * Look at a queue on a new connection. Its keys are not declared, since it has
 * to work where they aren't: on another node of a cluster, or under an ACL
 * that hides the mirror.
 *
 * ARGV     1 zset, 2 mirror
 * returns  "stamp old", old = 1 where an element of Redisson <= 3.21.0
 *          stands at a head; an unsigned long of 1, as the server packs it
 */
static const char dq_lua_look[] =
    "local function old(v)\n"
    "  if type(v) == 'string' and split(v) == 0 then return 1 end\n"
    "  return 0\n"
    "end\n"
    "local o = old(redis.pcall('LINDEX', ARGV[2], 0))\n"
    "if o == 0 then\n"
    "  local z = redis.pcall('ZRANGE', ARGV[1], 0, 0)\n"
    "  o = old(z[1])\n"
    "end\n"
    "return {stamp .. ' ' .. o, struct.pack('L', 1)}\n";

/* find(Z, due, k): the rank at which the element of score due whose first bytes
 * are k stands, or would stand, and the element, if it is there. By bisection
 * within its millisecond. */
static const char dq_lua_find[] =
    "local function four(h)\n"
    "  return struct.unpack('>I4I4I4I4I4', string.sub(h, 1, 17) ..\n"
    "    string.rep('\\0', 20))\n"
    "end\n"
    "local function find(Z, due, k)\n"
    "  local a, b, c, d, e = four(k)\n"
    "  local function less(h)\n"
    "    local f, g, i, j, l = four(string.sub(h, 1, #k))\n"
    "    if f ~= a then return f < a end\n"
    "    if g ~= b then return g < b end\n"
    "    if i ~= c then return i < c end\n"
    "    if j ~= d then return j < d end\n"
    "    return l < e\n"
    "  end\n"
    "  local low = redis.call('ZCOUNT', Z, '-inf', '(' .. due)\n"
    "  local n = redis.call('ZCOUNT', Z, due, due)\n"
    "  local stop = low + n\n"
    "  while n > 0 do\n"
    "    local half = math.floor(n / 2)\n"
    "    local at = low + half\n"
    "    if less(redis.call('ZRANGE', Z, at, at)[1]) then\n"
    "      low, n = at + 1, n - half - 1\n"
    "    else\n"
    "      n = half\n"
    "    end\n"
    "  end\n"
    "  if low == stop then return low end\n"
    "  local h = redis.call('ZRANGE', Z, low, low)[1]\n"
    "  if string.sub(h, 1, #k) == k then return low, h end\n"
    "  return low\n"
    "end\n";

/* remove(Z, argv, from): take the elements of pairs (due, k) out of the zset;
 * returns a text of 1 (done) and 0 (not there). Where a millisecond holds not
 * many more than are asked for, as after a take of many, it is read once. */
static const char dq_lua_remove[] =
    "local function remove(Z, argv, from)\n"
    "  local said, gone, known, read = {}, {}, {}, nil\n"
    "  local many = (#argv - from + 1) / 2\n"
    "  for i = from, #argv, 2 do\n"
    "    local due, k, e = argv[i], argv[i + 1], nil\n"
    "    local page = due .. ':' .. #k\n"
    "    if many > 1 and page ~= read and\n"
    "      redis.call('ZCOUNT', Z, due, due) <= 2 * many then\n"
    "      known, read = {}, page\n"
    "      for _, h in ipairs(redis.call('ZRANGEBYSCORE', Z, due, due)) do\n"
    "        known[string.sub(h, 1, #k)] = h\n"
    "      end\n"
    "    end\n"
    "    if page == read then\n"
    "      e = known[k]\n"
    "      known[k] = nil\n"
    "    else\n"
    "      local _, h = find(Z, due, k)\n"
    "      e = h\n"
    "    end\n"
    "    if e then gone[#gone + 1] = e end\n"
    "    said[#said + 1] = e and '1' or '0'\n"
    "  end\n"
    "  for i = 1, #gone, 500 do\n"
    "    redis.call('ZREM', Z, unpack(gone, i, math.min(i + 499, #gone)))\n"
    "  end\n"
    "  return table.concat(said)\n"
    "end\n";

/*
 * Offer.
 *
 * KEYS     1 zset, 2 mirror (only where the wire has one)
 * ARGV     1 channel, then pairs: when, element
 *          when: a delay in ms, or - and a due time; '': as the one before;
 *          with !T behind it, it is sent again, and has been due at T if the
 *          first sending was stored
 * returns  "stamp"; due = delay + that time in ms, rounded up; then, of those
 *          that were sent again,
 *          pairs: its number (from 1), and the due time that stands, or '' if
 *          it may have been delivered meanwhile
 */
static const char dq_lua_offer[] =
    "local Z, M = KEYS[1], KEYS[2]\n"
    "local base = math.ceil(us / 1000)\n"
    "local first, ties, due, text, bulk = nil, 0, nil, nil, not M\n"
    "local out = {stamp}\n"
    "if M then\n"
    /* refused like the ZADD that follows the RPUSH, and does nothing */
    "  redis.call('LLEN', M)\n"
    "  redis.call('ZADD', Z, 'XX', 'INCR', 0, '')\n"
    "end\n"
    /* each when becomes its score, or false: not stored again */
    "for i = 2, #ARGV, 2 do\n"
    "  local when, stands, gone = ARGV[i], nil, nil\n"
    "  if when ~= '' then\n"
    "    local at = string.find(when, '!', 1, true)\n"
    "    if at then\n"
    "      stands = redis.call('ZSCORE', Z, ARGV[i + 1])\n"
    "      gone = base >= tonumber(string.sub(when, at + 1))\n"
    "      when = string.sub(when, 1, at - 1)\n"
    "    end\n"
    "    due = tonumber(when)\n"
    "    due = due < 0 and -due or base + due\n"
    "    text = num(due)\n"
    "  end\n"
    "  if stands or gone then\n"
    "    ARGV[i], bulk = false, false\n"
    "    out[#out + 1], out[#out + 2] = num(i / 2), stands or ''\n"
    "  else\n"
    "    if not first or due < first then first, ties = due, 0 end\n"
    "    if due == first then ties = ties + 1 end\n"
    "    ARGV[i] = text\n"
    "  end\n"
    "end\n"
    "for i = 2, #ARGV, bulk and 1000 or 2 do\n"
    "  if ARGV[i] then\n"
    "    if M then redis.call('RPUSH', M, ARGV[i + 1]) end\n"
    "    local last = bulk and math.min(i + 999, #ARGV) or i + 1\n"
    "    redis.call('ZADD', Z, 'NX', unpack(ARGV, i, last))\n"
    "  end\n"
    "end\n"
    /* counted, not read: the head may be large; where that is forbidden others
     * see to the item when they look next */
    "first = first and num(first)\n"
    "if first and redis.pcall('ZCOUNT', Z, 0, first) == ties then\n"
    "  redis.pcall('PUBLISH', ARGV[1], first)\n"
    "end\n"
    "return out\n";

/*
 * Offer under a key.
 *
 * KEYS     1 zset, 2 once, 3 mirror (only where the wire has one)
 * ARGV     1 channel, 2 when (as above), 3 element, 4 its id in hex, 5 the
 *          key's life in ms, 6 '1': take the place of the first
 * returns  "stamp said due": said 0: stored, 1: the key is taken, 2: sent
 *          again, and may have been delivered meanwhile; then the key's ticket
 */
static const char dq_lua_once[] =
    "local Z, O, M, e = KEYS[1], KEYS[2], KEYS[3], ARGV[3]\n"
    "local base = math.ceil(us / 1000)\n"
    "local when, after = string.match(ARGV[2], '^(-?%d+)!?(%d*)$')\n"
    "when, after = tonumber(when), tonumber(after)\n"
    "local due = num(when < 0 and -when or base + when)\n"
    "local held = redis.call('GET', O) or ''\n"
    "local held_due, hex = string.match(held, '^(%d+)-(%x+)$')\n"
    "if hex == ARGV[4] then return {stamp .. ' 0 ' .. held_due, held} end\n"
    "if held ~= '' and ARGV[6] ~= '1' then\n"
    "  return {stamp .. ' 1 ' .. due, held}\n"
    "end\n"
    "if after and base >= after then return {stamp .. ' 2 ' .. due, ''} end\n"
    "local k, old, rank\n"
    "if hex then\n"
    "  k = string.gsub(hex, '%x%x', function(x)\n"
    "    return string.char(tonumber(x, 16))\n"
    "  end)\n"
    "  if #k == 16 then k = '\\16' .. k end\n"
    "  rank, old = find(Z, held_due, k)\n"
    "end\n"
    "redis.call('ZCOUNT', Z, 0, 0)\n"
    /* probes, each without an effect */
    "redis.call('ZADD', Z, 'XX', 'INCR', 0, '')\n"
    "redis.call('SET', O, held, held == '' and 'XX' or 'NX', 'PX', ARGV[5])\n"
    "if old then redis.call('ZREMRANGEBYRANK', Z, 1, 0) end\n"
    "if M then\n"
    "  redis.call('LLEN', M)\n"
    "  if old then redis.call('LREM', M, 1, old) end\n"
    "  redis.call('RPUSH', M, e)\n"
    "end\n"
    "redis.call('ZADD', Z, 'NX', due, e)\n"
    "local ticket = due .. '-' .. ARGV[4]\n"
    "redis.call('SET', O, ticket, 'PX', ARGV[5])\n"
    "if old then\n"
    "  rank = find(Z, held_due, k)\n"
    "  redis.call('ZREMRANGEBYRANK', Z, rank, rank)\n"
    "end\n"
    "if redis.call('ZCOUNT', Z, 0, due) == 1 then\n"
    "  redis.pcall('PUBLISH', ARGV[1], due)\n"
    "end\n"
    "return {stamp .. ' 0 ' .. due, ticket}\n";

/*
 * What tick, take and broadcast have in common.
 *
 * KEYS     1 zset, 2 ready (broadcast: stream), 3 retry (native) or mirror
 *          (Redisson), 4 dead. A native take may be given the zset alone: then
 *          it takes what is due straight from there, which it can while the
 *          keys are on their way from one node of a cluster to another
 * ARGV     1 wire: n, r, o, or b for broadcast; 2 limit: items to move; 3
 *          horizon: how far to look for the next due time, in ms
 *
 * drain(max, keep, add) empties the zset of what is due: keep is called with
 * each element (element, kind, start of payload, score), and returns a reason
 * if it shall die, or true if add moves it within the zset; add is called once
 * a chunk, to put away what was kept. Without keep all are handed out. Each
 * chunk is read with the element behind it, which tells when to come again:
 * soon, nil where nothing is within the horizon (so a look copies no large head
 * that is far off). Returns how many, and whether nothing due is left.
 */
static const char dq_lua_drain[] =
    "local Z, N, X, D = KEYS[1], KEYS[2], KEYS[3], KEYS[4]\n"
    "local wire, limit = ARGV[1], tonumber(ARGV[2])\n"
    "local horizon = num(now + ARGV[3])\n"
    "local cast = wire == 'b'\n"
    "local native = cast or wire == 'n'\n"
    "local byte, sub, unpacked = string.byte, string.sub, struct.unpack\n"
    "local moved, dead, old, bytes, probed, term = 0, 0, 0, 0, false, 0\n"
    "local ready, other, low, soon = 0, 0, 0, nil\n"
    "if N then\n"
    "  ready = redis.call(cast and 'XLEN' or 'LLEN', N)\n"
    "  other = redis.call('LLEN', X)\n"
    "end\n"
    /* what is handed out, and when it was due; up to sure it has left */
    "local out, dues, given, sure = {'', ''}, {}, 0, 0\n"
    "local function attempts(e)\n"
    "  local a, b = byte(e, 16, 17)\n"
    "  return a * 256 + b\n"
    "end\n"
    /* of the mirror: see below */
    "local locate, found, probe\n"
    "local function read(count)\n"
    "  return redis.call('ZRANGEBYSCORE', Z, '-inf', horizon, 'WITHSCORES',\n"
    "    'LIMIT', low, count)\n"
    "end\n"
    "local function drain(max, keep, add)\n"
    "  local step, n, all = 1, 0, nil\n"
    "  if old == 1 or bytes >= 262144 then max = 0 end\n"
    "  repeat\n"
    "    local want = math.min(step, max - n)\n"
    "    local bad, k, stay = {}, 0, 0\n"
    "    local es = read(want + 1)\n"
    /* what is below 0 is never due */
    "    if low == 0 and es[2] and byte(es[2]) == 45 then\n"
    "      low = redis.call('ZCOUNT', Z, '-inf', '(0')\n"
    "      es = read(want + 1)\n"
    "    end\n"
    "    local due = #es / 2\n"
    "    soon = nil\n"
    "    while due > 0 and tonumber(es[2 * due]) > now do\n"
    "      soon = tonumber(es[2 * due])\n"
    "      due = due - 1\n"
    "    end\n"
    "    all = due <= want\n"
    "    for i = 1, 2 * math.min(due, want), 2 do\n"
    "      local e = es[i]\n"
    "      local kind, p, len = 16, 26, #e - 25\n"
    /* the usual one, without a call */
    "      if len < 0 or byte(e) ~= 16 or unpacked('I8', e, 18) ~= len then\n"
    "        kind, p = split(e)\n"
    "        if kind == 0 and wire ~= 'o' then old = 1 break end\n"
    "      end\n"
    "      if locate and not locate(e, kind) then all = false break end\n"
    "      local why\n"
    "      if not kind then why = 'undecodable'\n"
    "      elseif keep then why = keep(e, kind, p, es[i + 1])\n"
    "      else\n"
    "        given = given + 1\n"
    "        out[given + 2], dues[given] = e, es[i + 1]\n"
    "      end\n"
    "      if why == true then stay = stay + 1\n"
    "      elseif why then\n"
    "        bad[#bad + 1] = why .. ' ' .. num(now) .. '\\n' .. e\n"
    "      end\n"
    /* 64: so that many small ones are work, too */
    "      k, bytes = k + 1, bytes + #e + 64\n"
    "    end\n"
    "    if #bad > 0 and not D then error('TRYAGAIN dead letters', 0) end\n"
    "    if k > 0 then\n"
    "      if not probed and (add or #bad > 0 or probe) then\n"
    "        probed = true\n"
    "        redis.call('ZREMRANGEBYRANK', Z, 1, 0)\n"
    "        if term > 0 then redis.call('ZADD', Z, 'XX', 'INCR', 0, '') end\n"
    "      end\n"
    "      if probe then probe() end\n"
    "      if #bad > 0 then redis.call('RPUSH', D, unpack(bad)) end\n"
    "      if add then add() end\n"
    "      if k > stay then\n"
    "        redis.call('ZREMRANGEBYRANK', Z, low, low + k - stay - 1)\n"
    "      end\n"
    "      if found then found() end\n"
    "    end\n"
    "    n, dead, sure = n + k - #bad, dead + #bad, given\n"
    /* as many as the budget may hold, by those read so far */
    "    step = math.min(64, 8 * step,\n"
    "      math.max(1, math.floor((262144 - bytes) * n / (bytes + 1))))\n"
    "  until all or k == 0 or n >= max or bytes >= 262144 or old == 1\n"
    "  return n, all\n"
    "end\n";

/*
 * head, what the reply begins with, from all: "stamp next waiting moved dead
 * old lease". next: microseconds until something is due, -1: nothing within the
 * horizon. Numbers become text where they aren't 0, which they mostly are.
 */
static const char dq_lua_head[] =
    "local next = 0\n"
    "if old == 1 or all and not soon then next = -1\n"
    "elseif all then\n"
    "  next = math.max(0, math.min(1e13, math.floor(soon * 1000 - us)))\n"
    "end\n"
    "local head = stamp .. ' ' .. next .. ' ' .. (native and\n"
    "  ready + other or ready)\n"
    "if moved + dead + old + term == 0 then head = head .. ' 0 0 0 0'\n"
    "else\n"
    "  head = head .. string.format(' %.0f %.0f %.0f %.0f', moved, dead, old,\n"
    "    term)\n"
    "end\n";

/*
 * The mirror of a Redisson fleet stands in order of offer. Elements of delayq
 * are found there by the time in their ids: by guesses, strides and bisection,
 * and where offers of several hosts have overtaken each other in the
 * neighbourhood. Foreign ids tell no time: their LREM walks through the list.
 *
 * locate(e, kind) finds an element and writes nothing; false: the budget of
 * 100,000 steps is used up. found() says that those located so far have left
 * the zset. A sweep takes these out of the mirror: the first ones by LTRIM,
 * others marked with LSET and removed by one LREM.
 */
static const char dq_lua_mirror[] =
    "if not native then\n"
    "local spots, sum, first, work, ids = {}, 0, 0, 0, {}\n"
    /* what stands at first; bytes that were read to find things */
    "local top, seen = nil, 0\n"
    "local asked, spot_of, element, marked = false, nil, nil, false\n"
    /* the microseconds in an id; nil where there are none */
    "local function when(v)\n"
    "  local hi, lo, t\n"
    "  if wire == 'o' and #v > 8 then\n"
    "    hi, lo = struct.unpack('>I4I4', v)\n"
    "    t = hi * 2097152 + math.floor(lo / 2048)\n"
    "  elseif byte(v) == 16 and #v > 17 then\n"
    "    hi, lo = struct.unpack('>I4I4', v, 2)\n"
    "    t = hi * 4294967296 + lo\n"
    "  end\n"
    /* 30 years */
    "  if t and math.abs(t - us) < 1e15 then return t end\n"
    "end\n"
    "local function id(i)\n"
    "  if ids[i] == nil then\n"
    "    local v = redis.call('LINDEX', X, i)\n"
    "    seen = seen + (v and #v or 0)\n"
    "    ids[i] = v and when(v) or false\n"
    "  end\n"
    "  return ids[i]\n"
    "end\n"
    "local function near(e, from, to)\n"
    "  if seen > 262144 then return nil end\n"
    "  from = math.max(from, 0)\n"
    "  for i, v in ipairs(redis.call('LRANGE', X, from, to)) do\n"
    "    seen = seen + #v\n"
    "    if v == e then return from + i - 1 end\n"
    "  end\n"
    "end\n"
    /* where ids have been read, in order, and the ids */
    "local spot, time = {}, {}\n"
    "local function seek(e)\n"
    "  local t, step, up = when(e), 0, nil\n"
    "  if not t then return nil end\n"
    "  if not spot[1] then\n"
    "    spot = {first, other - 1}\n"
    "    time = {id(first) or 0, id(other - 1) or 1e17}\n"
    "  end\n"
    "  local j, k = 1, #spot\n"
    "  while k - j > 1 do\n"
    "    local half = math.floor((j + k) / 2)\n"
    "    if time[half] <= t then j = half else k = half end\n"
    "  end\n"
    "  local a, b = spot[j], spot[j + 1]\n"
    "  while b - a > 24 do\n"
    "    local ta, tb, half = time[j], time[j + 1], math.floor((b - a) / 2)\n"
    "    local at, there = a + half, nil\n"
    "    if step == 0 and 0 < ta and ta < tb and tb < 1e17 then\n"
    "      at = a + math.floor((b - a) * (t - ta) / (tb - ta))\n"
    "      at = math.max(a + 1, math.min(b - 1, at))\n"
    "    elseif step > 0 and step < half then\n"
    "      at = up and a + step or b - step\n"
    "    end\n"
    "    there = id(at)\n"
    /* past some foreign ones */
    "    for i = 1, 8 do\n"
    "      if there or at + 1 >= b then break end\n"
    "      at = at + 1\n"
    "      there = id(at)\n"
    "    end\n"
    "    if not there then return nil end\n"
    "    table.insert(spot, j + 1, at)\n"
    "    table.insert(time, j + 1, there)\n"
    "    if there == t then a, b = at, at break end\n"
    "    if there < t then a, j = at, j + 1 else b = at end\n"
    /* batches are steps in a slope: a guess is near, so it is followed by
     * strides away from it; between two of them the next guess is good */
    "    if step == 0 then step, up = 64, there < t\n"
    "    elseif (there < t) ~= up or step >= half then step = 0\n"
    "    else step = step * 8 end\n"
    "  end\n"
    "  return near(e, a, b) or near(e, a - 32, b + 32) or\n"
    "    near(e, a - 256, b + 256)\n"
    "end\n"
    "locate = function(e, kind)\n"
    /* a lease never stands in the mirror */
    "  if kind == 16 and attempts(e) > 0 then return true end\n"
    "  if work >= 100000 then return false end\n"
    "  local at\n"
    "  top = top or redis.call('LINDEX', X, first)\n"
    "  if top == e then\n"
    "    at, first, top = first, first + 1, nil\n"
    /* LREM copies nothing: better for large payloads */
    "  elseif other > 1000 and #e < 4096 and seen < 262144 then\n"
    "    at = seek(e)\n"
    "    if at then spot_of, element = spot_of or at, element or e end\n"
    "  end\n"
    "  work = work + 10 + other / (at and 1000 or 1)\n"
    "  spots[#spots + 1] = at or e\n"
    "  return true\n"
    "end\n"
    "found = function() sum = #spots end\n"
    /* LSET of what stands there already */
    "probe = function()\n"
    "  if not asked then\n"
    "    redis.call('LREM', D, 1, '')\n"
    "    if other > 0 then redis.call('LTRIM', X, 0, -1) end\n"
    "    asked = true\n"
    "  end\n"
    "  if spot_of and not marked then\n"
    "    redis.call('LSET', X, spot_of, element)\n"
    "    marked = true\n"
    "  end\n"
    "end\n"
    "local function sweep()\n"
    "  local marks, least, most, head = 0, other, 0, 0\n"
    "  local mark = 'delayq ' .. stamp\n"
    "  for i = 1, sum do\n"
    "    local at = spots[i]\n"
    "    if at == head then head = head + 1\n"
    "    elseif type(at) == 'number' then\n"
    "      redis.call('LSET', X, at, mark)\n"
    "      marks = marks + 1\n"
    "      least, most = math.min(least, at), math.max(most, at)\n"
    "    end\n"
    "  end\n"
    /* from the end that is nearer to the farthest mark */
    "  if marks > 0 then\n"
    "    if other - least < most then marks = -marks end\n"
    "    redis.call('LREM', X, marks, mark)\n"
    "  end\n"
    "  if head > 0 then redis.call('LTRIM', X, head, -1) end\n"
    "  for i = 1, sum do\n"
    "    local e = spots[i]\n"
    "    if type(e) == 'string' then redis.call('LREM', X, 1, e) end\n"
    "  end\n"
    "  spots, sum, first, ids, spot, top = {}, 0, 0, {}, {}, nil\n"
    "  other = redis.call('LLEN', X)\n"
    "end\n"
    /* whatever ends a drain: what has left the zset leaves the mirror */
    "local chunks = drain\n"
    "drain = function(...)\n"
    "  local fine, n, all = pcall(chunks, ...)\n"
    "  if sum > 0 then sweep() end\n"
    "  spots = {}\n"
    /* the prefix is written once more where this ends the script */
    "  if not fine then\n"
    "    if type(n) == 'string' then n = string.gsub(n, '^ERR ', '') end\n"
    "    error(n, 0)\n"
    "  end\n"
    "  return n, all\n"
    "end\n"
    "end\n";

/* move(max): from the zset to the lists. */
static const char dq_lua_move[] =
    "local function move(max)\n"
    "  local fresh, again = {}, {}\n"
    "  local n, all = drain(max, function(e, kind, p)\n"
    "    if native and kind == 16 and attempts(e) > 0 then\n"
    "      again[#again + 1] = e\n"
    "    else\n"
    "      fresh[#fresh + 1] = sub(e, p)\n"
    "    end\n"
    "  end, function()\n"
    "    if #again > 0 then other = redis.call('RPUSH', X, unpack(again)) end\n"
    "    if #fresh > 0 then ready = redis.call('RPUSH', N, unpack(fresh)) end\n"
    "    moved = moved + #again + #fresh\n"
    "    fresh, again = {}, {}\n"
    "  end)\n"
    "  return all\n"
    "end\n";

/* Tick: as above. Returns {head}. */
static const char dq_lua_tick[] = "local all = move(limit)\n";
static const char dq_lua_ticked[] = "return {head}\n";

/*
 * Take.
 *
 * KEYS     as above; 5 the line of those who wait (only where the handle
 *          stands in it, or would)
 * ARGV     as above; 4 how many, 5 x: the retry list's turn, 6 most attempts
 *          or 0, 7 lease in ms or 0; with a lease the order of a new id, the
 *          rest of it (native: 6 bytes; old: a number below 2048), channel;
 *          with a fifth key the handle's id, 1: it waits, if there is nothing,
 *          what the turn channels begin with; then a pair (due, k) to
 *          acknowledge before
 * returns  head, the place in the line (1, 2, 3: further; 0: none) and whether
 *          what was to be acknowledged was there (1 or 0); then, in one text,
 *          each item's due time, or e or r; then the items: an element, or
 *          after r a raw payload
 *
 * Straight from the zset where nothing lies ready. Where something does, what
 * is due goes behind it first, or pushes would starve it. In a Redisson fleet
 * what is left over is moved too, since Java waits for it.
 *
 * A lease is a re-offer: the element goes back into the zset, its attempt
 * count raised, due at the lease's end.
 */
static const char dq_lua_lease[] =
    "local most, lease = tonumber(ARGV[6]), tonumber(ARGV[7])\n"
    "local leases, adds, again, hold, commit = 0, {}, nil, nil, nil\n"
    "local max, turn = tonumber(ARGV[4]), ARGV[5] == 'x'\n"
    "local direct = ready == 0 and (other == 0 or not native)\n"
    "local retry, got, all = native and other or 0, 0, nil\n"
    "local arg = lease > 0 and 11 or 8\n"
    /* closures cost: only those that this run needs are made */
    "if lease > 0 or not direct then\n"
    "local order = tonumber(ARGV[8])\n"
    "if lease > 0 then term = math.ceil(us / 1000) + lease end\n"
    "local function fresh(v)\n"
    "  local x = order * (wire == 'o' and 2048 or 1)\n"
    "  local hi = math.floor(x / 4294967296)\n"
    "  local lo, tail = x - hi * 4294967296, struct.pack('L', #v) .. v\n"
    "  order = order + 1\n"
    "  if wire == 'o' then\n"
    "    return struct.pack('>I4I4', hi, lo + ARGV[9]) .. tail\n"
    "  end\n"
    "  local id = struct.pack('>I4I4', hi, lo) .. ARGV[9] .. '\\0\\1'\n"
    "  return '\\16' .. id .. tail\n"
    "end\n"
    /* the element to lease (without a kind: of a raw payload), or nil: its
     * attempts are used up */
    "again = function(e, kind, p)\n"
    "  if kind == 16 then\n"
    "    local n = attempts(e)\n"
    "    if most > 0 and n >= most then return nil end\n"
    "    return sub(e, 1, 15) ..\n"
    "      struct.pack('>I2', math.min(n + 1, 65535)) .. sub(e, 18)\n"
    "  end\n"
    "  if kind == 0 then return e end\n"
    "  return fresh(kind and sub(e, p) or e)\n"
    "end\n"
    "hold = function(e)\n"
    "  adds[#adds + 1], adds[#adds + 2] = num(term), e\n"
    "  leases = leases + 1\n"
    "end\n"
    "commit = function()\n"
    "  if #adds > 0 then redis.call('ZADD', Z, unpack(adds)) end\n"
    "  adds = {}\n"
    "end\n"
    "end\n";

static const char dq_lua_take[] =
    "local give, keep, from_lists\n"
    "if lease > 0 or most > 0 or not direct then\n"
    "give = function(due, e)\n"
    "  given = given + 1\n"
    "  out[given + 2], dues[given] = e, due\n"
    "end\n"
    "keep = function(e, kind, p, due)\n"
    "  local to = e\n"
    "  if lease > 0 then\n"
    "    to = again(e, kind, p)\n"
    "    if not to then return 'attempts' end\n"
    "    hold(to)\n"
    "  elseif kind == 16 and attempts(e) >= most then\n"
    "    return 'attempts'\n"
    "  end\n"
    "  give(due, to)\n"
    "  return lease > 0 and to == e\n"
    "end\n"
    "end\n"
    "if not direct then\n"
    /* one from the retry list: false where it goes to the dead letters */
    "local function from_retry(e, bad)\n"
    "  local kind, p = split(e)\n"
    /* without a lease only the count is looked at */
    "  local to = kind and (lease == 0 and kind ~= 16 and e or\n"
    "    again(e, kind, p))\n"
    "  if not to then\n"
    "    bad[#bad + 1] = (kind and 'attempts ' or 'undecodable ') ..\n"
    "      num(now) .. '\\n' .. e\n"
    "    return false\n"
    "  end\n"
    "  if lease > 0 then hold(to) else to = e end\n"
    "  give('e', to)\n"
    "  return true\n"
    "end\n"
    "local function from_ready(e)\n"
    "  if lease == 0 then return give('r', e) end\n"
    "  local to = again(e)\n"
    "  hold(to)\n"
    "  give('e', to)\n"
    "end\n"
    "from_lists = function(step)\n"
    "  local m = math.min(step, max - got) - 1\n"
    "  local a = retry > 0 and redis.call('LRANGE', X, 0, m) or {}\n"
    "  local b = ready > 0 and redis.call('LRANGE', N, 0, m) or {}\n"
    "  local i, j, bad = 0, 0, {}\n"
    "  while got < max and (i < #a or j < #b) do\n"
    "    local e, good\n"
    "    if i < #a and (turn or j == #b) then\n"
    "      i = i + 1\n"
    "      e = a[i]\n"
    "      good = from_retry(e, bad)\n"
    "    else\n"
    "      j = j + 1\n"
    "      e, good = b[j], true\n"
    "      from_ready(e)\n"
    "    end\n"
    "    if good then got = got + 1 end\n"
    "    bytes, turn = bytes + #e + 64, not turn\n"
    "  end\n"
    "  if lease > 0 or #bad > 0 or i > 0 and j > 0 then\n"
    "    if i > 0 then redis.call('LTRIM', X, 0, -1) end\n"
    "    if j > 0 then redis.call('LTRIM', N, 0, -1) end\n"
    "    if #adds > 0 then redis.call('ZADD', Z, 'XX', 'INCR', 0, '') end\n"
    "  end\n"
    "  if #bad > 0 then redis.call('RPUSH', D, unpack(bad)) end\n"
    "  commit()\n"
    "  if i > 0 then redis.call('LTRIM', X, i, -1) end\n"
    "  if j > 0 then redis.call('LTRIM', N, j, -1) end\n"
    "  retry, ready, dead = retry - i, ready - j, dead + #bad\n"
    "  sure = given\n"
    "  return i + j\n"
    "end\n"
    "end\n";

/*
 * The line of those who wait in a take, in order of arrival. Its first, the
 * keeper, has the exact timer and hears of pushes; the second acts when the
 * keeper has not for 0.3 to 0.6 s; the others hear from their turn channel
 * when they have become first or second: "place, next due time". Who gets an
 * item leaves, and tells the first two. Who got one that was overdue strikes
 * off those before it, dead or frozen though their sockets may live, and tells
 * them so: one that only slept stands at the end, then.
 *
 * It is an economy only. Whatever fails in here, the handle waits as if alone.
 */
static const char dq_lua_line[] =
    "local stand\n"
    "if KEYS[5] then stand = function(W)\n"
    "  local me, waits, turns = ARGV[arg], ARGV[arg + 1], ARGV[arg + 2]\n"
    "  local rank\n"
    "  local function alive(h)\n"
    "    local n = redis.pcall('PUBSUB', 'NUMSUB', turns .. h)\n"
    "    return n.err or n[2] ~= 0\n"
    "  end\n"
    "  rank = redis.call('ZRANK', W, me)\n"
    "  if sure == 0 and waits == '1' then\n"
    "    if not rank then\n"
    "      redis.call('ZADD', W, num(us), me)\n"
    "      redis.call('PEXPIRE', W, 86400000)\n"
    "    end\n"
    "    for i = 0, 1 do\n"
    "      local h = redis.call('ZRANGE', W, i, i)[1]\n"
    "      while h ~= me and h and not alive(h) do\n"
    "        redis.call('ZREM', W, h)\n"
    "        h = redis.call('ZRANGE', W, i, i)[1]\n"
    "      end\n"
    "      if h == me then return i + 1 end\n"
    "    end\n"
    "    return 3\n"
    "  end\n"
    "  if not rank then return 0 end\n"
    "  redis.call('ZREM', W, me)\n"
    /* of a push it isn't known how long it has lain there */
    "  local due = dues[1] and (tonumber(dues[1]) or rank == 1 and 0)\n"
    "  if rank > 0 and due and due < now - 250 then\n"
    "    for _, h in ipairs(redis.call('ZRANGE', W, 0, rank - 1)) do\n"
    "      redis.call('ZREM', W, h)\n"
    "      redis.call('PUBLISH', turns .. h, '0 0')\n"
    "    end\n"
    "    rank = 0\n"
    "  end\n"
    "  while rank < 2 do\n"
    "    local h = redis.call('ZRANGE', W, rank, rank)[1]\n"
    "    if not h then break end\n"
    "    local due = num(soon and math.min(soon, 1e15) or 0)\n"
    "    local text = rank + 1 .. ' ' .. due\n"
    "    if redis.call('PUBLISH', turns .. h, text) == 0 then\n"
    "      redis.call('ZREM', W, h)\n"
    "    else\n"
    "      rank = rank + 1\n"
    "    end\n"
    "  end\n"
    "  return 0\n"
    "end end\n";

/* What has been handed out or acknowledged stays so: a refusal after it ends
 * the script without an error, which the next call will run into. */
static const char dq_lua_ack[] = "local ack, acked = arg, nil\n"
                                 "if KEYS[5] then ack = ack + 3 end\n"
                                 "if ARGV[ack] then\n";
static const char dq_lua_acked[] = "acked = remove(Z, ARGV, ack)\n"
                                   "end\n";
static const char dq_lua_taken[] =
    "local fine, why = true, nil\n"
    "if direct then\n"
    "  fine, why, all = pcall(drain, max, keep, lease > 0 and commit or nil)\n"
    "end\n"
    "if fine and (not direct or not native and not all) then\n"
    "fine, why = pcall(function()\n"
    "  all = move(limit)\n"
    "  retry = native and other or 0\n"
    "  local step = 1\n"
    "  while not direct and got < max and (bytes < 262144 or got == 0) do\n"
    "    if from_lists(step) == 0 then break end\n"
    "    step = math.min(64, 2 * step)\n"
    "  end\n"
    "end)\n"
    "end\n"
    "if not fine then\n"
    "  if sure == 0 and not acked then\n"
    "    why = type(why) == 'table' and why.err or why\n"
    "    return {err = string.find(why, '^%u+ ') and why or 'ERR ' .. why}\n"
    "  end\n"
    "  for i = given, sure + 1, -1 do out[i + 2], dues[i] = nil, nil end\n"
    "  all, soon = true, (us + 250000) / 1000\n"
    "end\n"
    "other = native and retry or other\n"
    /* Redisson arms its timer by the channel */
    "if leases > 0 then\n"
    "  local n = redis.pcall('ZCOUNT', Z, 0, num(term))\n"
    "  if n == leases then redis.pcall('PUBLISH', ARGV[10], num(term)) end\n"
    "  soon = math.min(soon or term, term)\n"
    "end\n"
    "local place = 0\n"
    "if stand then\n"
    "  fine, place = pcall(stand, KEYS[5])\n"
    "  if not fine then place = 0 end\n"
    "end\n";
static const char dq_lua_given[] =
    "out[1] = head .. ' ' .. place .. ' ' .. (acked or '0')\n"
    "out[2] = dues[2] and table.concat(dues, ' ') or dues[1] or ''\n"
    "return out\n";

/*
 * Broadcast: what is due goes into the stream, and the reader is given what
 * stands behind its cursor.
 *
 * ARGV     as for drain; 4 how many, 5 cursor, '$': the stream's end, 6 how
 *          many entries the stream keeps, 7 channel
 * returns  head, the cursor, then triples: id, due, payload
 */
static const char dq_lua_cast[] =
    "local max, cursor, list = tonumber(ARGV[4]), ARGV[5], {}\n"
    "if cursor == '$' then\n"
    "  local last = redis.call('XREVRANGE', N, '+', '-', 'COUNT', 1)[1]\n"
    "  cursor = last and last[1] or '0-0'\n"
    "end\n"
    "local n, all = drain(limit, function(e, kind, p, due)\n"
    "  list[#list + 1], list[#list + 2] = due, sub(e, p)\n"
    "end, function()\n"
    "  for i = 1, #list, 2 do\n"
    "    redis.call('XADD', N, 'MAXLEN', '~', ARGV[6], '*', 'due', list[i],\n"
    "      'payload', list[i + 1])\n"
    "  end\n"
    "  moved, list = moved + #list / 2, {}\n"
    "end)\n"
    /* the others look at once */
    "if moved > 0 then redis.pcall('PUBLISH', ARGV[7], num(now)) end\n"
    "local got, size, step = 0, 0, 1\n"
    "out[2] = cursor\n"
    "ready = 0\n"
    "while got < max and size < 262144 do\n"
    "  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')\n"
    "  local es = redis.call('XRANGE', N, ms .. '-' .. num(seq + 1), '+',\n"
    "    'COUNT', math.min(step, max - got))\n"
    "  if #es == 0 then break end\n"
    "  for _, e in ipairs(es) do\n"
    "    cursor = e[1]\n"
    "    local payload = e[2][4] or ''\n"
    "    out[#out + 1], out[#out + 2] = cursor, e[2][2]\n"
    "    out[#out + 1] = payload\n"
    "    got, size = got + 1, size + #payload + 64\n"
    "  end\n"
    "  step = math.min(64, 2 * step)\n"
    "end\n"
    /* what is left over for the next take */
    "local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')\n"
    "local behind = ms .. '-' .. num(seq + 1)\n"
    "if redis.call('XRANGE', N, behind, '+', 'COUNT', 1)[1] then\n"
    "  ready = 1\n"
    "end\n"
    "other, out[2] = 0, cursor\n";
static const char dq_lua_casted[] = "out[1] = head\nreturn out\n";

/*
 * Remove, by ticket: an ack, or a cancel.
 *
 * KEYS     1 zset, 2 mirror (only of a cancel, where the wire has one; then
 *          one ticket at a time)
 * ARGV     1 ..., pairs: due, k
 * returns  "stamp", and of each 1 (done) or 0 (not there)
 */
static const char dq_lua_drop[] =
    "local Z, M = KEYS[1], KEYS[2]\n"
    "if not M then return {stamp, remove(Z, ARGV, 1)} end\n"
    "redis.call('LLEN', M)\n"
    "local rank, e = find(Z, ARGV[1], ARGV[2])\n"
    "if not e then return {stamp, '0'} end\n"
    "redis.call('ZREMRANGEBYRANK', Z, 1, 0)\n"
    "redis.call('LREM', M, 1, e)\n"
    "redis.call('ZREMRANGEBYRANK', Z, rank, rank)\n"
    "return {stamp, '1'}\n";

/*
 * Change, by ticket: nack, extend, reschedule; or bury.
 *
 * KEYS     1 zset, 2 dead (only of a bury)
 * ARGV     1 due, 2 k, 3 new due time, 4 channel, 5 '1': this attempt doesn't
 *          count, 6 '1': sent again, 7 delay
 * returns  "stamp said due": said 1: done, 0: not there
 *
 * The new due time is the handle's reckoning, so that what is sent again finds
 * what the first sending did; where a clock was set or a machine slept
 * meanwhile, the delay counts.
 */
static const char dq_lua_change[] =
    "local Z, D, k, to = KEYS[1], KEYS[2], ARGV[2], tonumber(ARGV[3])\n"
    "local less = ARGV[5] == '1' and string.byte(k, 1) == 16 and #k == 17\n"
    "local function down(e)\n"
    "  local a, b = string.byte(e, 16, 17)\n"
    "  return string.sub(e, 1, 15) ..\n"
    "    struct.pack('>I2', math.max(a * 256 + b - 1, 0)) ..\n"
    "    string.sub(e, 18)\n"
    "end\n"
    "local rank, e = find(Z, ARGV[1], k)\n"
    "local want = math.ceil(us / 1000) + ARGV[7]\n"
    "if to < want or to > want + 1000 then to = want end\n"
    "to = num(to)\n"
    "if not e then\n"
    "  if ARGV[6] ~= '1' or D then return {stamp .. ' 0 0'} end\n"
    "  _, e = find(Z, ARGV[3], less and down(k) or k)\n"
    "  return {stamp .. (e and ' 1 ' or ' 0 ') .. ARGV[3]}\n"
    "end\n"
    "redis.call('ZREMRANGEBYRANK', Z, 1, 0)\n"
    "if D then\n"
    "  redis.call('RPUSH', D, 'buried ' .. num(now) .. '\\n' .. e)\n"
    "  redis.call('ZREMRANGEBYRANK', Z, rank, rank)\n"
    "  return {stamp .. ' 1 0'}\n"
    "end\n"
    "redis.call('ZADD', Z, to, less and down(e) or e)\n"
    "if less then\n"
    "  rank = find(Z, ARGV[1], k)\n"
    "  redis.call('ZREMRANGEBYRANK', Z, rank, rank)\n"
    "end\n"
    "if redis.call('ZCOUNT', Z, 0, to) == 1 then\n"
    "  redis.pcall('PUBLISH', ARGV[4], to)\n"
    "end\n"
    "return {stamp .. ' 1 ' .. to}\n";

/*
 * Peek.
 *
 * KEYS     1 zset
 * ARGV     1 how many, 2 due and 3 k of the last one seen, or ''
 * returns  "stamp", then pairs: due, element
 */
static const char dq_lua_peek[] =
    "local Z, max, at, out, bytes = KEYS[1], tonumber(ARGV[1]), 0, {''}, 0\n"
    "local step, e = 1, nil\n"
    "if ARGV[2] ~= '' then\n"
    "  at, e = find(Z, ARGV[2], ARGV[3])\n"
    "  if e then at = at + 1 end\n"
    "end\n"
    "while max > 0 and bytes < 262144 do\n"
    "  local n = math.min(step, max)\n"
    "  local es = redis.call('ZRANGE', Z, at, at + n - 1, 'WITHSCORES')\n"
    "  for i = 1, #es, 2 do\n"
    "    out[#out + 1], out[#out + 2] = es[i + 1], es[i]\n"
    "    bytes = bytes + #es[i] + 64\n"
    "  end\n"
    "  if #es < 2 * n then break end\n"
    "  at, max, step = at + n, max - n, math.min(64, 2 * step)\n"
    "end\n"
    "out[1] = stamp\n"
    "return out\n";

/*
 * Count.
 *
 * KEYS     1 zset, 2 ready or stream, 3 retry (native) or mirror, 4 dead
 * ARGV     1 wire, then due times
 * returns  "stamp pending overdue ready dead next", next: the earliest due
 *          time, -1 where nothing is pending; of each due time how many are
 *          due by then
 */
static const char dq_lua_count[] =
    "local Z, wire, ready, next = KEYS[1], ARGV[1], 0, -1\n"
    "if wire ~= 'b' then ready = redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then ready = ready + redis.call('LLEN', KEYS[3]) end\n"
    "local h = redis.call('ZRANGEBYSCORE', Z, 0, num(2^53 - 1), 'WITHSCORES',\n"
    "  'LIMIT', 0, 1)\n"
    "if h[2] then next = h[2] end\n"
    "local out = {table.concat({stamp, num(redis.call('ZCARD', Z)),\n"
    "  num(redis.call('ZCOUNT', Z, 0, num(now))), num(ready),\n"
    "  num(redis.call('LLEN', KEYS[4])), num(next)}, ' ')}\n"
    "for i = 2, #ARGV do\n"
    "  out[i] = redis.call('ZCOUNT', Z, 0, ARGV[i])\n"
    "end\n"
    "return out\n";

/*
 * Clear.
 *
 * KEYS     1 zset, 2 ready or stream, 3 retry or mirror
 * ARGV     1 wire
 * returns  "stamp count"
 */
static const char dq_lua_clear[] =
    "local n = redis.call('ZCARD', KEYS[1])\n"
    "if ARGV[1] ~= 'b' then n = n + redis.call('LLEN', KEYS[2]) end\n"
    "if ARGV[1] == 'n' then n = n + redis.call('LLEN', KEYS[3]) end\n"
    "redis.call('UNLINK', KEYS[1], KEYS[2], KEYS[3])\n"
    "return {stamp .. ' ' .. num(n)}\n";

/*
 * Dead letters.
 *
 * KEYS     1 dead, 2 ready (only of a redrive)
 * ARGV     1 what: peek, redrive, clear; 2 how many; 3 from (peek)
 * returns  "stamp count", then the dead letters (peek)
 *
 * A redrive puts payloads onto the ready list; what can't be decoded goes to
 * the end of the dead ones.
 */
static const char dq_lua_dead[] =
    "local D, N, what, max = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])\n"
    "local n, out, bytes, step = redis.call('LLEN', D), {''}, 0, 1\n"
    "if what == 'clear' then\n"
    "  redis.call('UNLINK', D)\n"
    "  return {stamp .. ' ' .. num(n)}\n"
    "end\n"
    "local at, done = tonumber(ARGV[3]), 0\n"
    "if N then redis.call('LLEN', N) end\n"
    "max = math.min(max, n)\n"
    "while max > 0 and bytes < 262144 do\n"
    "  local m, good, bad = math.min(step, max), {}, {}\n"
    "  local es = redis.call('LRANGE', D, at, at + m - 1)\n"
    "  for _, e in ipairs(es) do\n"
    "    bytes = bytes + #e + 64\n"
    "    out[#out + 1] = e\n"
    "    if N then\n"
    "      local cut = string.find(e, '\\n', 1, true)\n"
    "      local v = cut and string.sub(e, cut + 1)\n"
    "      local kind, p\n"
    "      if v then kind, p = split(v) end\n"
    "      if kind then good[#good + 1] = string.sub(v, p)\n"
    "      else bad[#bad + 1] = e end\n"
    "    end\n"
    "  end\n"
    "  if #es == 0 then break end\n"
    "  if N then\n"
    "    redis.call('LTRIM', D, 0, -1)\n"
    "    if #good > 0 then redis.call('RPUSH', N, unpack(good)) end\n"
    "    if #bad > 0 then redis.call('RPUSH', D, unpack(bad)) end\n"
    "    redis.call('LTRIM', D, #es, -1)\n"
    "    done, out = done + #good, {''}\n"
    "  else\n"
    "    at, done = at + #es, done + #es\n"
    "  end\n"
    "  max, step = max - #es, math.min(64, 2 * step)\n"
    "end\n"
    "out[1] = stamp .. ' ' .. num(done)\n"
    "return out\n";

typedef enum dq_verb {
    DQ_OFFER,
    DQ_ONCE,
    DQ_TICK,
    DQ_TAKE,
    DQ_CAST,
    DQ_DROP,
    DQ_CHANGE,
    DQ_PEEK,
    DQ_COUNT,
    DQ_CLEAR,
    DQ_DEADS
} dq_verb;

#define DQ_PARTS 15

static const char *const dq_scripts[DELAYQ_SCRIPTS][DQ_PARTS] = {
    /* OFFER */ {dq_lua_clock, dq_lua_offer},
    /* ONCE */ {dq_lua_clock, dq_lua_find, dq_lua_once},
    /* TICK */
    {dq_lua_clock, dq_lua_split, dq_lua_drain, dq_lua_mirror, dq_lua_move,
     dq_lua_tick, dq_lua_head, dq_lua_ticked},
    /* TAKE */
    {dq_lua_clock, dq_lua_split, dq_lua_drain, dq_lua_mirror, dq_lua_lease,
     dq_lua_ack, dq_lua_find, dq_lua_remove, dq_lua_acked, dq_lua_move,
     dq_lua_take, dq_lua_line, dq_lua_taken, dq_lua_head, dq_lua_given},
    /* CAST */
    {dq_lua_clock, dq_lua_split, dq_lua_drain, dq_lua_cast, dq_lua_head,
     dq_lua_casted},
    /* DROP */ {dq_lua_clock, dq_lua_find, dq_lua_remove, dq_lua_drop},
    /* CHANGE */ {dq_lua_clock, dq_lua_find, dq_lua_change},
    /* PEEK */ {dq_lua_clock, dq_lua_find, dq_lua_peek},
    /* COUNT */ {dq_lua_clock, dq_lua_count},
    /* CLEAR */ {dq_lua_clock, dq_lua_clear},
    /* DEADS */ {dq_lua_clock, dq_lua_split, dq_lua_dead},
};
static const char *const dq_look_script[DQ_PARTS] = {dq_lua_clock, dq_lua_split,
                                                     dq_lua_look};

/*-----------------------------------------------------------------------------
 * MARK: - Statuses
 * The only place that turns a failure or an error reply into a status.
 *---------------------------------------------------------------------------*/

/* Private: what dq_run makes something of. Nothing has happened. */
#define DQ_NOSCRIPT 15 /* load it and run it again */
#define DQ_MOVED 16    /* another node of the cluster has the queue */
#define DQ_ASK 17      /* another one has its keys just now */
#define DQ_TRYAGAIN 18 /* one node has some of its keys, another the others */

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static delayq_status
dq_fail(delayq *q, int status, const char *format, ...) {
    va_list args;
    char *p;
    va_start(args, format);
    vsnprintf(q->err, sizeof q->err, format, args);
    va_end(args);
    for (p = q->err; *p; p++) /* one line, whatever a server says */
        if ((unsigned char)*p < ' ') *p = ' ';
    return (delayq_status)status;
}

typedef struct dq_error {
    const char *code;
    int status;
    int leave; /* another server may do better */
} dq_error;

static const dq_error dq_errors[] = {
    {"NOSCRIPT", DQ_NOSCRIPT, 0},
    {"MOVED ", DQ_MOVED, 0},
    {"ASK ", DQ_ASK, 0},
    {"TRYAGAIN", DQ_TRYAGAIN, 0},
    {"CROSSSLOT", DELAYQ_ERR_ARG, 0},
    {"WRONGTYPE", DELAYQ_ERR_TYPE, 0},
    {"OOM", DELAYQ_ERR_FULL, 0},
    {"READONLY", DELAYQ_ERR_READONLY, 1},
    {"MISCONF", DELAYQ_ERR_READONLY, 0},
    {"NOREPLICAS", DELAYQ_ERR_READONLY, 0},
    {"LOADING", DELAYQ_ERR_AGAIN, 0},
    {"MASTERDOWN", DELAYQ_ERR_AGAIN, 1},
    {"CLUSTERDOWN", DELAYQ_ERR_AGAIN, 1},
    {"UNBLOCKED", DELAYQ_ERR_AGAIN, 0},
    {"BUSY", DELAYQ_ERR_AGAIN, 0},
    {"ERR max number of clients", DELAYQ_ERR_AGAIN, 0},
    {"NOAUTH", DELAYQ_ERR_AUTH, 0},
    {"WRONGPASS", DELAYQ_ERR_AUTH, 0},
    {"NOPERM", DELAYQ_ERR_AUTH, 0},
    {"DENIED", DELAYQ_ERR_AUTH, 0},
    {"ERR invalid password", DELAYQ_ERR_AUTH, 0},
    {"ERR Client sent AUTH", DELAYQ_ERR_AUTH, 0},
    {"ERR AUTH", DELAYQ_ERR_AUTH, 0},
    {"ERR The user executing the script can't", DELAYQ_ERR_AUTH, 0},
    {"ERR ACL failure in script", DELAYQ_ERR_AUTH, 0},
    {"The user executing the script can't", DELAYQ_ERR_AUTH, 0},
    {"", DELAYQ_ERR_REDIS, 0},
};

/* What an error reply means. Up to Redis 6 what a script ran into stands in
 * the middle of "ERR Error running script ...: @user_script: 7: -OOM ...". */
static const dq_error *dq_meaning(const char *text) {
    const size_t last = sizeof dq_errors / sizeof dq_errors[0] - 1;
    const char *inner = strstr(text, "user_script:");
    size_t i;
    for (i = 0; i < last; i++)
        if (strncmp(text, dq_errors[i].code, strlen(dq_errors[i].code)) == 0)
            return &dq_errors[i];
    for (i = 0; inner && i < last; i++)
        if (strstr(inner, dq_errors[i].code)) return &dq_errors[i];
    return &dq_errors[last];
}

/* An error reply, told to the user. What Redis repeats of a command's
 * arguments may hold a password, and is cut off. */
static delayq_status dq_refused_by(delayq *q, const char *what,
                                   const char *text) {
    const char *cut = strstr(text, ", with args");
    int len = cut ? (int)(cut - text) : (int)strlen(text);
    int status = dq_meaning(text)->status;
    const char *hint = "";
    if (status == DELAYQ_ERR_TYPE)
        hint = "; a key of this queue is used for something else";
    if (status == DELAYQ_ERR_ARG)
        hint = q->options.share
                   ? "; on a cluster a shared connection is for names with the "
                     "same {tag}"
                   : "; on a cluster a name has no }, or one whole {tag}";
    return dq_fail(q, status, "%s: the server says: %.*s%s", what,
                   len > 160 ? 160 : len, text, hint);
}

static delayq_status dq_refused(delayq *q, const char *what,
                                const redisReply *r) {
    return dq_refused_by(q, what, r->str);
}

/* A private status that nothing could be made of. */
static delayq_status dq_public(delayq_status status) {
    return (int)status < DQ_NOSCRIPT ? status : DELAYQ_ERR_AGAIN;
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

/* What the reply of a tick, take or broadcast begins with; the last two only
 * that of a take. See dq_lua_head. */
enum {
    DQ_AT_US,
    DQ_AT_NEXT,
    DQ_AT_READY,
    DQ_AT_MOVED,
    DQ_AT_DEAD,
    DQ_AT_OLD,
    DQ_AT_LEASE,
    DQ_AT_PLACE,
    DQ_AT_ACKED,
    DQ_NUMBERS /* most in any reply */
};

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
            value = value * 10 + (*p - '0');
            if (value > DQ_MAX_DUE) return 0;
        }
        if (*p != (i == n - 1 ? '\0' : ' ')) return 0;
        p++;
        to[i] = minus ? -value : value;
    }
    return p != NULL;
}

/* What our scripts begin their replies with: the server's clock, in seconds
 * and microseconds, then numbers. to[0]: the clock in microseconds. */
static int dq_stamped(const redisReply *r, int64_t *to, int n) {
    int64_t all[DQ_NUMBERS + 1];
    if (!dq_numbers(r, all, n + 1)) return 0;
    if (all[0] < 0 || all[0] > DQ_MAX_DUE / DQ_SECOND_US || all[1] < 0 ||
        all[1] >= DQ_SECOND_US)
        return 0;
    memcpy(to, all + 1, (size_t)n * sizeof *to);
    to[0] += all[0] * DQ_SECOND_US;
    return 1;
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

static void dq_begin(dq_out *o, redisContext *c) {
    o->c = c;
    o->n = 0;
    o->failed = 0;
}

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

/* A key or channel of the queue: prefix, then T, then what follows. */
static void dq_long_key(dq_out *o, const delayq *q, const char *prefix,
                        const char *rest, size_t rest_len) {
    size_t plen = strlen(prefix);
    int tagged = memchr(q->name, '{', q->name_len) != NULL;
    dq_line(o, '$', plen + q->name_len + (tagged ? 0 : 2) + rest_len);
    dq_put(o, prefix, plen);
    if (!tagged) dq_put(o, "{", 1);
    dq_put(o, q->name, q->name_len);
    if (!tagged) dq_put(o, "}", 1);
    dq_put(o, rest, rest_len);
    dq_put(o, "\r\n", 2);
}

static void dq_key(dq_out *o, const delayq *q, const char *prefix) {
    dq_long_key(o, q, prefix, "", 0);
}

#define DQ_ZSET "redisson_delay_queue_timeout:"
#define DQ_MIRROR "redisson_delay_queue:"
#define DQ_CHANNEL "redisson_delay_queue_channel:"
#define DQ_RETRY "delayq_retry:"
#define DQ_DEAD "delayq_dead:"
#define DQ_STREAM "delayq_stream:"
#define DQ_ONCE_KEY "delayq_once:"
#define DQ_LINE "delayq_waiting:"
#define DQ_TURN "delayq_turn:"
#define DQ_INVALIDATE "__redis__:invalidate"

static void dq_script_text(dq_out *o, const char *const *parts) {
    size_t len = 0, i;
    for (i = 0; i < DQ_PARTS && parts[i]; i++) len += strlen(parts[i]);
    dq_line(o, '$', len);
    for (i = 0; i < DQ_PARTS && parts[i]; i++)
        dq_put(o, parts[i], strlen(parts[i]));
    dq_put(o, "\r\n", 2);
}

/* A call of a script. */
typedef struct dq_call {
    dq_verb verb;
    const char *what; /* for error texts */
    size_t keys, args;
    void (*write)(dq_out *o, delayq *q, const struct dq_call *call);
    int harmless; /* it may be sent again though it may have run */
    int reads;    /* it changes nothing */
    int once;     /* one round trip and no more */
    int again;    /* this is another sending of what may have run */
    int resent;   /* it was sent again after a connection was lost */
    int asking;   /* on a node that is about to get the slot */

    delayq_message *messages; /* an offer's, `max` of them */
    size_t max;               /* how many of these, or of those to come */
    const delayq_item *item;  /* to ack before a take */
    delayq_item *items;       /* to ack, `max` of them */
    const char *ticket;       /* to change, remove, peek behind */
    const int64_t *times;     /* to count by, `max` of them */
    int64_t due_ms;
    int64_t from;     /* where to begin; of a change the delay */
    const char *word; /* dead letters: what to do */
    int less;         /* this attempt doesn't count */

    delayq_status status; /* out */
    redisReply *reply;    /* out: an array; the caller frees it */
    int64_t sent_us;      /* out: when it was sent; read at link.used_us */
    int sent, settled, tries;
} dq_call;

#define DQ_PIPE 8 /* most calls in one go */

/* Begin to run a script; its keys and arguments follow. On a new
 * connection it is loaded in the same write; what came by EVAL alone would be
 * forgotten by Redis 7.4 after 500 others. Returns how many replies come. */
static int dq_eval(dq_out *o, const delayq_link *l, const dq_call *call) {
    const char *sha = l->sha[call->verb];
    if (!*sha) {
        dq_line(o, '*', 3);
        dq_text(o, "SCRIPT");
        dq_text(o, "LOAD");
        dq_script_text(o, dq_scripts[call->verb]);
    }
    if (call->asking) dq_words(o, 1, "ASKING");
    dq_line(o, '*', 3 + call->keys + call->args);
    if (*sha) {
        dq_text(o, "EVALSHA");
        dq_arg(o, sha, 40);
    } else {
        dq_text(o, "EVAL");
        dq_script_text(o, dq_scripts[call->verb]);
    }
    dq_number(o, (int64_t)call->keys);
    return 1 + !*sha + call->asking;
}

/*-----------------------------------------------------------------------------
 * MARK: - The URL
 *---------------------------------------------------------------------------*/

#define DQ_HOSTS_MAX 64

typedef struct dq_url {
    const char *hosts; /* in the URL: host[:port][,...], or a socket's path */
    size_t hosts_len;
    unsigned count; /* of the hosts */
    int local, sentinel, tls, login, db;
    char user[256], password[512], service[256];
} dq_url;

static char *dq_hex_text(char *to, const unsigned char *bytes, size_t len) {
    static const char digits[] = "0123456789abcdef";
    for (; len > 0; len--, bytes++) {
        *to++ = digits[*bytes >> 4];
        *to++ = digits[*bytes & 15];
    }
    *to = '\0';
    return to;
}

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

/* host[:port], [host][:port] */
static const char *dq_url_address(const char *p, size_t len, int port,
                                  delayq_address *a) {
    const char *end = p + len, *colon;
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
    if (len >= sizeof a->host || memchr(p, '%', len))
        return "the host is too long or has a character that none has";
    memcpy(a->host, p, len);
    a->host[len] = '\0';
    a->port =
        colon ? dq_small(colon + 1, (size_t)(end - colon - 1), 65535) : port;
    return a->port > 0 ? NULL : "the port is no number from 1 to 65535";
}

/* The host of a number, counted round and round. */
static const char *dq_url_host(const dq_url *u, unsigned number,
                               delayq_address *a) {
    const char *p = u->hosts, *end = p + u->hosts_len, *comma;
    if (u->local) {
        a->port = 0;
        return dq_unescape(a->host, sizeof a->host, p, u->hosts_len)
                   ? NULL
                   : "the path is too long or has a broken %XX";
    }
    for (number %= u->count; number > 0; number--)
        p = (const char *)memchr(p, ',', (size_t)(end - p)) + 1;
    comma = (const char *)memchr(p, ',', (size_t)(end - p));
    return dq_url_address(p, (size_t)((comma ? comma : end) - p),
                          u->sentinel ? 26379 : 6379, a);
}

static const char *dq_url_scheme(const char *url, dq_url *u) {
    static const char *const schemes[] = {"redis://", "rediss://", "unix://",
                                          "redis+sentinel://",
                                          "rediss+sentinel://"};
    int i;
    for (i = 0; i < 5; i++) {
        size_t n = strlen(schemes[i]);
        if (strncmp(url, schemes[i], n) != 0) continue;
        u->tls = schemes[i][5] == 's';
        u->local = i == 2;
        u->sentinel = i > 2;
        return url + n;
    }
    return NULL;
}

/* What follows the hosts: /service, /db, or ?db=N. */
static const char *dq_url_rest(dq_url *u, const char *p) {
    if (u->local && *p && strncmp(p, "?db=", 4) != 0)
        return "after ? comes db=N";
    if (!u->local && *p == '?') return "after the port comes / and the rest";
    p += !*p ? 0 : u->local ? 4 : 1;
    if (u->sentinel) {
        size_t len = strcspn(p, "/?");
        if (len == 0) return "the service is missing: .../service";
        if (!dq_unescape(u->service, sizeof u->service, p, len))
            return "the service is too long or has a broken %XX";
        p += len;
        p += *p == '/';
    }
    u->db = *p ? dq_small(p, strlen(p), 1000000) : 0;
    return u->db >= 0 ? NULL : "the database is no number";
}

/* NULL, or what is wrong with it: a sentence that repeats nothing of it. It
 * points into the URL. */
static const char *dq_url_parse(const char *url, dq_url *u) {
    const char *p, *at, *end, *wrong = NULL;
    delayq_address a;
    unsigned i;
    memset(u, 0, sizeof *u);
    p = dq_url_scheme(url, u);
    if (!p)
        return "it begins with none of redis://, rediss://, unix:// and "
               "redis+sentinel://";
#ifndef DELAYQ_TLS
    if (u->tls) return "TLS needs DELAYQ_TLS defined before delayq.h";
#endif
    end = p + strcspn(p, u->local ? "?" : "/?");
    for (at = end; at > p && at[-1] != '@'; at--) {
    }
    if (at > p) wrong = dq_url_login(u, p, (size_t)(at - 1 - p));
    u->hosts = at;
    u->hosts_len = (size_t)(end - at);
    u->count = 1;
    for (p = at; !u->local && p < end; p++) u->count += *p == ',';
    if (u->local && at == end) return "the path of the socket is missing";
    if (u->count > DQ_HOSTS_MAX) return "more than 64 hosts";
    for (i = 0; !wrong && i < u->count; i++) wrong = dq_url_host(u, i, &a);
    return wrong ? wrong : dq_url_rest(u, end);
}

/*-----------------------------------------------------------------------------
 * MARK: - TLS
 * hiredis' own functions look neither at the host's name nor at a deadline.
 *---------------------------------------------------------------------------*/

#ifdef DELAYQ_TLS

static SSL_CTX *dq_tls_context(const delayq_options *o) {
    SSL_CTX *t = SSL_CTX_new(TLS_client_method());
    int good = t && SSL_CTX_set_min_proto_version(t, TLS1_2_VERSION);
    if (good) SSL_CTX_set_verify(t, SSL_VERIFY_PEER, NULL);
    if (good)
        good = o->tls_ca ? SSL_CTX_load_verify_locations(t, o->tls_ca, NULL)
                         : SSL_CTX_set_default_verify_paths(t);
    if (good && o->tls_cert)
        good = SSL_CTX_use_certificate_chain_file(t, o->tls_cert);
    if (good && o->tls_key)
        good = SSL_CTX_use_PrivateKey_file(t, o->tls_key, SSL_FILETYPE_PEM);
    if (good) return t;
    SSL_CTX_free(t);
    return NULL;
}

/* What the last step ran into, in OpenSSL's words. */
static delayq_status dq_tls_failed(delayq *q, delayq_status status,
                                   const char *where, const SSL *ssl) {
    long verdict = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    const char *why = ERR_reason_error_string(ERR_get_error());
    if (verdict != X509_V_OK) {
        status = DELAYQ_ERR_AUTH;
        why = X509_verify_cert_error_string(verdict);
    }
    return dq_fail(q, status, "TLS, %s: %s", where,
                   why ? why : "the connection is lost");
}

/* The certificate has to be the host's. */
static int dq_tls_expect(SSL *ssl, const char *host) {
    if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host)) return 1;
    return SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host);
}

static delayq_status dq_tls_shake(delayq *q, redisContext *c, const char *host,
                                  const char *where, int64_t deadline) {
    delayq_link *l = dq_link(q);
    SSL *ssl;
    int said;
    ERR_clear_error();
    if (!l->tls) l->tls = dq_tls_context(&dq_owner(q)->options);
    if (!l->tls)
        return dq_tls_failed(q, DELAYQ_ERR_ARG, "options.tls_...", NULL);
    ssl = SSL_new((SSL_CTX *)l->tls);
    if (!ssl || !dq_tls_expect(ssl, host)) {
        SSL_free(ssl);
        return dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    }
    if (redisInitiateSSL(c, ssl) != REDIS_OK) {
        delayq_status status = dq_tls_failed(q, DELAYQ_ERR_IO, where, ssl);
        SSL_free(ssl); /* hiredis owns it only after a success */
        return status;
    }
    while ((said = SSL_do_handshake(ssl)) != 1) {
        int wants = SSL_get_error(ssl, said);
        if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE)
            return dq_tls_failed(q, DELAYQ_ERR_IO, where, ssl);
        if (!dq_poll_one(c->fd, wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
                         deadline))
            return dq_fail(q, DELAYQ_ERR_TIMEOUT, "TLS, %s: not in time",
                           where);
    }
    return DELAYQ_OK;
}

static delayq_status dq_tls_start(delayq *q, redisContext *c, const char *host,
                                  const char *where, int64_t deadline) {
    dq_signals old;
    delayq_status status;
    dq_hold_signals(&old);
    status = dq_tls_shake(q, c, host, where, deadline);
    dq_let_signals(&old, status != DELAYQ_OK);
    return status;
}

static void dq_tls_end(delayq_link *l) {
    SSL_CTX_free((SSL_CTX *)l->tls);
    l->tls = NULL;
}

#else

static delayq_status dq_tls_start(delayq *q, redisContext *c, const char *host,
                                  const char *where, int64_t deadline) {
    (void)c, (void)host, (void)where, (void)deadline;
    return dq_fail(q, DELAYQ_ERR_ARG, "compiled without DELAYQ_TLS");
}

static void dq_tls_end(delayq_link *l) {
    (void)l;
}

#endif

/*-----------------------------------------------------------------------------
 * MARK: - Sockets
 * The only place that connects, and that decides about connecting again.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_BACKOFF_MAX_US (5 * DQ_SECOND_US)
#define DQ_HOPS 5 /* most redirections of one connect or call */

/* When the call that is under way shall end, reconnecting included. */
static int64_t dq_limit(delayq *q) {
    int ms = q->options.io_timeout_ms;
    if (ms < q->options.connect_timeout_ms) ms = q->options.connect_timeout_ms;
    if (q->limit_us == 0) q->limit_us = dq_now() + ms * 1000LL;
    return q->limit_us;
}

/* In so many ms, but no later than that. */
static int64_t dq_within(delayq *q, int ms) {
    int64_t limit = dq_limit(q), until = dq_now() + ms * 1000LL;
    return until < limit ? until : limit;
}

static const char *dq_cause(const redisContext *c) {
    if (c->err == REDIS_ERR_IO && errno != 0) return strerror(errno);
    return c->errstr[0] ? c->errstr : "the connection is lost";
}

/* After a failed attempt the next one waits; the first may come at once. */
static int64_t dq_retry_at(unsigned failures) {
    int64_t now = dq_now();
    if (failures == 0) return now;
    return now + dq_backoff(DQ_BACKOFF_US, DQ_BACKOFF_MAX_US, failures);
}

/* The command socket is of no use any more; why, for the calls that come
 * before the next attempt. */
static void dq_drop(delayq *q, delayq_status why) {
    delayq_link *l = dq_link(q);
    delayq *h;
    if (l->cmd) {
        redisFree(l->cmd);
        if (!l->answered) l->barren++;
    }
    if (l->barren > 1 && l->failures < l->barren) l->failures = l->barren;
    l->cmd = NULL;
    l->tracking = 0;
    l->failure = why == DELAYQ_ERR_UNKNOWN || why == DELAYQ_ERR_PROTOCOL
                     ? DELAYQ_ERR_IO
                     : dq_public(why);
    snprintf(l->why, sizeof l->why, "%.159s", q->err);
    memset(l->sha, 0, sizeof l->sha);
    l->retry_us = dq_retry_at(l->failures);
    for (h = l->handles; h; h = h->next) {
        h->armed = 0;
        h->wake_us = l->retry_us;
    }
}

static void dq_drop_ear(delayq *q) {
    delayq_link *l = dq_link(q);
    delayq *h;
    if (l->ear) redisFree(l->ear);
    l->ear = NULL;
    l->tracking = l->hears_pushes = 0;
    l->ear_retry_us = dq_retry_at(l->ear_failures);
    for (h = l->handles; h; h = h->next) {
        h->armed = h->hears = h->turns = h->place = 0;
        if (h->wake_us > l->ear_retry_us) h->wake_us = l->ear_retry_us;
    }
}

/* Why an exchange broke off, and what may have happened. */
static delayq_status dq_broken(delayq *q, const redisContext *c, int sent) {
    if (c->err == REDIS_ERR_OOM)
        return dq_fail(q, sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_MEMORY,
                       "out of memory");
    if (c->err == REDIS_ERR_PROTOCOL)
        return dq_fail(q, DELAYQ_ERR_PROTOCOL, "not Redis' protocol: %s",
                       c->errstr);
    if (sent)
        return dq_fail(q, DELAYQ_ERR_UNKNOWN,
                       "connection lost before the answer: it may have "
                       "happened: %s",
                       dq_cause(c));
    return dq_fail(q, DELAYQ_ERR_IO,
                   "connection lost before sending: nothing has happened: %s",
                   dq_cause(c));
}

/* Is the time left more than what the socket itself would wait? */
static int dq_has_patience(const delayq_link *l, const redisContext *c,
                           int64_t left) {
    return c == l->cmd && l->patience_us > 0 &&
           left > l->patience_us + l->patience_us / 6;
}

/* Wait for what comes next, or for room to write, and read. What has come in
 * time is read, though we may be late; no trickle. */
static delayq_status dq_read_on(delayq *q, redisContext *c, int sent,
                                int64_t deadline, int *late) {
    int64_t left = deadline - dq_now();
    int status;
    if (left <= 0) ++*late;
    if (sent && dq_has_patience(dq_link(q), c, left)) {
        status = dq_fill_patiently(c);
    } else {
        if (!dq_poll_one(c->fd, sent ? POLLIN : POLLIN | POLLOUT, deadline) ||
            *late > 64)
            return dq_fail(q, sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_TIMEOUT,
                           sent ? "no answer in time: it may have happened"
                                : "not sent in time: nothing has happened");
        status = dq_fill(c);
    }
    return status == REDIS_OK ? DELAYQ_OK : dq_broken(q, c, sent);
}

/* Write what is in the buffer and read n replies, by the deadline. The caller
 * frees the replies, of which `*got` came. After a failure the connection is
 * of no use. *sent tells whether the server can have run anything. */
static delayq_status dq_exchange(delayq *q, redisContext *c,
                                 redisReply **replies, int n, int *got,
                                 int *sent, int64_t deadline) {
    int late = 0;
    *got = *sent = 0;
    while (*got < n) {
        delayq_status status;
        void *r = NULL;
        errno = 0;
        if ((!*sent && dq_flush(c, sent) != REDIS_OK) ||
            redisGetReplyFromReader(c, &r) != REDIS_OK)
            return dq_broken(q, c, *sent);
        if (r) {
            replies[(*got)++] = (redisReply *)r;
            continue;
        }
        status = dq_read_on(q, c, *sent, deadline, &late);
        if (status != DELAYQ_OK) return status;
    }
    /* or a later call would take it for its own answer */
    if (c == dq_link(q)->cmd && c->reader->pos < c->reader->len)
        return dq_fail(q, DELAYQ_ERR_PROTOCOL,
                       "the server says more than it was asked");
    return DELAYQ_OK;
}

static void dq_free_replies(redisReply **replies, int n) {
    while (n-- > 0)
        if (replies[n]) freeReplyObject(replies[n]);
}

static const char *dq_url_text(const delayq *q) {
    const char *url = dq_owner(q)->options.url;
    return url ? url : "redis://127.0.0.1:6379";
}

/* "127.0.0.1:6379", for error texts. */
static void dq_where(const delayq *q, const delayq_address *a, char *to,
                     size_t size) {
    if (dq_owner(q)->options.connect)
        snprintf(to, size, "the connect hook");
    else if (a->port)
        snprintf(to, size, "%.80s:%d", a->host, a->port);
    else
        snprintf(to, size, "%.80s", a->host);
}

static redisContext *dq_dial(delayq *q, const delayq_address *a,
                             int64_t deadline) {
    const delayq_options *o = &dq_owner(q)->options;
    int64_t left = (deadline - dq_now() + 999) / 1000;
    if (o->connect) return o->connect(o->user, left > 1 ? (int)left : 1);
    if (a->port) return redisConnectNonBlock(a->host, a->port);
    return redisConnectUnixNonBlock(a->host);
}

/* hiredis' own waiting knows only a timeout per read; ours a deadline. */
static void dq_unblock(delayq *q, redisContext *c) {
    int flags = fcntl(c->fd, F_GETFL), ms = dq_owner(q)->options.io_timeout_ms;
    delayq_link *l = dq_link(q);
    struct timeval patience;
    ms = ms / 4 * 3; /* the rest is for a poll: this may take a tenth more */
    patience.tv_sec = ms / 1000;
    patience.tv_usec = ms % 1000 * 1000;
    l->patience_us = ms < DQ_PATIENT_MS ? 0 : ms * 1000LL;
    if (setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &patience,
                   sizeof patience) != 0)
        l->patience_us = 0;
    c->flags &= ~REDIS_BLOCK;
    if (flags >= 0) fcntl(c->fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(c->fd, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    flags = 1;
    setsockopt(c->fd, SOL_SOCKET, SO_NOSIGPIPE, &flags, sizeof flags);
#endif
}

/* A socket whose connection stands, or a failure. */
static delayq_status dq_connected(delayq *q, const char *where,
                                  const redisContext *c, int64_t deadline) {
    int error = 0;
    socklen_t size = sizeof error;
    if (!dq_poll_one(c->fd, POLLOUT, deadline))
        return dq_fail(q, DELAYQ_ERR_TIMEOUT, "can't connect to %s in time",
                       where);
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return DELAYQ_OK;
    return dq_fail(q, DELAYQ_ERR_IO, "can't connect to %s: %s", where,
                   strerror(error));
}

static delayq_status dq_socket(delayq *q, const dq_url *u,
                               const delayq_address *a, redisContext **out,
                               int64_t deadline) {
    int hook = dq_owner(q)->options.connect != NULL;
    redisContext *c = dq_dial(q, a, deadline);
    delayq_status status;
    char where[100];
    dq_where(q, a, where, sizeof where);
    *out = NULL;
    if (!c)
        return hook ? dq_fail(q, DELAYQ_ERR_IO, "the connect hook gave nothing")
                    : dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    if (c->err) {
        status = dq_fail(q, DELAYQ_ERR_IO, "can't connect to %s: %s", where,
                         c->errstr);
    } else {
        dq_unblock(q, c);
        status = dq_connected(q, where, c, deadline);
    }
    if (status == DELAYQ_OK && u->tls && !hook)
        status = dq_tls_start(q, c, a->host, where, deadline);
    if (u->tls || hook) /* TLS, perhaps: a record comes in pieces */
        dq_link(q)->patience_us = 0;
    if (status == DELAYQ_OK)
        *out = c;
    else
        redisFree(c);
    return status;
}

static void dq_write_auth(dq_out *o, const dq_url *u) {
    dq_line(o, '*', u->user[0] ? 3 : 2);
    dq_text(o, "AUTH");
    if (u->user[0]) dq_text(o, u->user);
    dq_text(o, u->password);
}

/* What a new socket says, in one write: the login, and what its caller adds.
 * Nothing of it has an effect. */
typedef struct dq_talk {
    dq_out o;
    int login, n, got; /* replies: of the login, all, those that came */
    redisReply *r[7];
} dq_talk;

static void dq_begin_talk(dq_talk *t, redisContext *c, const dq_url *login) {
    memset(t, 0, sizeof *t);
    dq_begin(&t->o, c);
    if (!login) return;
    if (login->login) {
        dq_write_auth(&t->o, login);
        t->n++;
    }
    if (login->db > 0) {
        dq_line(&t->o, '*', 2);
        dq_text(&t->o, "SELECT");
        dq_number(&t->o, login->db);
        t->n++;
    }
    dq_words(&t->o, 3, "CLIENT", "SETNAME", "delayq");
    t->login = ++t->n;
}

/* A server that takes no connection may say why before it closes it. */
static delayq_status dq_last_words(delayq *q, dq_talk *t,
                                   delayq_status status) {
    char said[160];
    ssize_t n;
    if (t->got > 0 && t->r[t->got - 1]->type == REDIS_REPLY_ERROR)
        return dq_refused(q, "login", t->r[t->got - 1]);
    n = recv(t->o.c->fd, said, sizeof said - 1, MSG_DONTWAIT);
    if (n < 2 || said[0] != '-') return status;
    said[n] = '\0';
    said[strcspn(said, "\r\n")] = '\0';
    return dq_refused_by(q, "login", said + 1);
}

/* Say it. The first of the caller's replies is *r. */
static delayq_status dq_end_talk(delayq *q, dq_talk *t, int64_t deadline,
                                 redisReply ***r) {
    delayq_status status;
    int sent, i;
    *r = t->r + t->login;
    dq_spill(&t->o);
    if (t->o.failed) return dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    status = dq_exchange(q, t->o.c, t->r, t->n, &t->got, &sent, deadline);
    if (status == DELAYQ_ERR_UNKNOWN)
        status =
            dq_fail(q, DELAYQ_ERR_IO, "connected, but no answer to the login");
    if (status == DELAYQ_ERR_IO) return dq_last_words(q, t, status);
    /* the last is SETNAME, whose refusal is nobody's loss */
    for (i = 0; status == DELAYQ_OK && i < t->login - 1; i++)
        if (t->r[i]->type == REDIS_REPLY_ERROR)
            return dq_refused(q, "login", t->r[i]);
    return status;
}

static void dq_free_talk(dq_talk *t) {
    dq_free_replies(t->r, t->got);
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
    delayq_link *l = dq_link(q);
    int64_t n[2];
    const redisReply *probe;
    if (r->type == REDIS_REPLY_ERROR) return dq_refused(q, "open", r);
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 2 ||
        !dq_stamped(r->element[0], n, 2))
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
    q->looked = 1;
    return DELAYQ_OK;
}

static delayq_status dq_wire_failure(delayq *q) {
    return dq_fail(q, DELAYQ_ERR_WIRE,
                   "queue %.64s holds elements of Redisson <= 3.21.0, whose "
                   "transfer this handle's elements would jam: open it with "
                   "wire = DELAYQ_REDISSON_OLD",
                   q->name);
}

/* Where "MOVED slot host:port" or "ASK slot host:port" points. Without a host
 * it is the one that says so. */
static delayq_status dq_redirect(delayq *q, const char *text,
                                 delayq_address *to) {
    const char *p = strrchr(text, ' '), *colon = strrchr(text, ':');
    size_t len = p && colon > p ? (size_t)(colon - p - 1) : 0;
    int port = colon ? dq_small(colon + 1, strlen(colon + 1), 65535) : -1;
    if (dq_owner(q)->options.connect)
        return dq_fail(q, DELAYQ_ERR_REDIS,
                       "the queue lies on another node of the cluster than "
                       "the connect hook leads to: %.60s",
                       text);
    if (port < 1 || len >= sizeof to->host)
        return dq_fail(q, DELAYQ_ERR_REDIS, "the server says: %.60s", text);
    if (len > 0 && p[1] != '?') {
        memcpy(to->host, p + 1, len);
        to->host[len] = '\0';
    } else {
        *to = dq_link(q)->at;
    }
    to->port = port;
    return (delayq_status)dq_meaning(text)->status;
}

static delayq_status dq_moved(delayq *q, const char *text) {
    delayq_link *l = dq_link(q);
    delayq_status status = dq_redirect(q, text, &l->at);
    l->moved = (int)status == DQ_MOVED;
    return status;
}

/* Has this node the queue, and in one slot? It has, but in a cluster. Where
 * the question is forbidden, the first script will tell. */
static delayq_status dq_placed(delayq *q, const redisReply *r) {
    const dq_error *e;
    if (r->type != REDIS_REPLY_ERROR) return DELAYQ_OK;
    e = dq_meaning(r->str);
    if (e->status == DQ_MOVED) return dq_moved(q, r->str);
    if (e->status == DELAYQ_ERR_ARG || e->leave)
        return dq_refused(q, "open", r);
    return DELAYQ_OK;
}

/* One write: login, unless u is NULL, and a look at the queue. */
static delayq_status dq_greet(delayq *q, const dq_url *u, redisContext *c,
                              int64_t deadline) {
    const delayq *owner = dq_owner(q);
    int64_t sent_us = dq_now();
    delayq_status status;
    redisReply **r;
    dq_talk t;
    dq_begin_talk(&t, c, u);
    dq_line(&t.o, '*', 5);
    dq_text(&t.o, "EVAL");
    dq_script_text(&t.o, dq_look_script);
    dq_number(&t.o, 0);
    dq_key(&t.o, q, DQ_ZSET);
    dq_key(&t.o, q, DQ_MIRROR);
    dq_line(&t.o, '*', 4);
    dq_text(&t.o, "EXISTS");
    dq_arg(&t.o, q->name, q->name_len);
    dq_key(&t.o, q, DQ_ZSET);
    dq_key(&t.o, owner, DQ_ZSET);
    t.n += 2;
    status = dq_end_talk(q, &t, deadline, &r);
    if (status == DELAYQ_OK) status = dq_placed(q, r[1]);
    if (status == DELAYQ_OK) status = dq_looked(q, r[0], sent_us, dq_now());
    dq_free_talk(&t);
    return status;
}

/* Ask a sentinel where the master is. It may have a password or not; where it
 * has, it is the URL's. */
static delayq_status dq_ask_sentinel(delayq *q, const dq_url *u,
                                     delayq_address *a, int64_t deadline) {
    const redisReply *said = NULL;
    redisContext *c;
    redisReply **r;
    dq_talk t;
    delayq_status status = dq_socket(q, u, a, &c, deadline);
    if (status != DELAYQ_OK) return status;
    dq_begin_talk(&t, c, NULL);
    if (u->login) {
        dq_write_auth(&t.o, u);
        t.n++;
    }
    dq_words(&t.o, 3, "SENTINEL", "get-master-addr-by-name", u->service);
    t.n++;
    status = dq_end_talk(q, &t, deadline, &r);
    if (status == DELAYQ_OK) said = r[t.n - 1];
    if (said && said->type == REDIS_REPLY_ERROR) {
        status = dq_refused(q, "sentinel", said);
    } else if (said && said->type == REDIS_REPLY_ARRAY && said->elements == 2 &&
               said->element[0]->type == REDIS_REPLY_STRING &&
               said->element[1]->type == REDIS_REPLY_STRING &&
               said->element[0]->len < sizeof a->host) {
        memcpy(a->host, said->element[0]->str, said->element[0]->len + 1);
        a->port = dq_small(said->element[1]->str, said->element[1]->len, 65535);
        if (a->port < 1) status = dq_bad_reply(q, "sentinel");
    } else if (said) {
        status = dq_fail(q, DELAYQ_ERR_IO, "the sentinel %.80s:%d knows no %s",
                         a->host, a->port, u->service);
    }
    dq_free_talk(&t);
    redisFree(c);
    return status;
}

/* One attempt at the server to which a redirection has pointed, or the next
 * one of the URL. */
static delayq_status dq_attempt(delayq *q, const dq_url *u, int64_t deadline) {
    delayq_link *l = dq_link(q);
    delayq_status status = DELAYQ_OK;
    if (!l->moved && !dq_owner(q)->options.connect) {
        dq_url_host(u, l->host, &l->at);
        if (u->sentinel) status = dq_ask_sentinel(q, u, &l->at, deadline);
    }
    l->moved = 0;
    if (status == DELAYQ_OK)
        status = dq_socket(q, u, &l->at, &l->cmd, deadline);
    if (status == DELAYQ_OK) status = dq_greet(q, u, l->cmd, deadline);
    if (status == DELAYQ_OK) return DELAYQ_OK;
    if (l->cmd) redisFree(l->cmd);
    l->cmd = NULL;
    if (!l->moved) l->host++;
    return status;
}

/* Try the hosts in turn, each with its share of the time. */
static delayq_status dq_attempts(delayq *q, const dq_url *u, int64_t deadline) {
    unsigned left = u->count + dq_link(q)->moved, hops = 0;
    for (;;) {
        int64_t now = dq_now();
        delayq_status status =
            dq_attempt(q, u, now + (deadline - now) / (int64_t)left);
        if ((int)status == DQ_MOVED && ++hops <= DQ_HOPS) continue;
        if ((int)status == DQ_MOVED)
            return dq_fail(q, DELAYQ_ERR_AGAIN,
                           "the cluster's nodes point at each other");
        if (status == DELAYQ_OK || status == DELAYQ_ERR_ARG ||
            status == DELAYQ_ERR_AUTH || status == DELAYQ_ERR_MEMORY)
            return status;
        if (--left == 0 || dq_now() >= deadline) return status;
    }
}

/* Make the command socket, unless it was tried too lately. */
static delayq_status dq_connect(delayq *q) {
    delayq_link *l = dq_link(q);
    delayq_address ear = l->at;
    delayq_status status;
    delayq *h;
    dq_url u;
    if (dq_now() < l->retry_us)
        return dq_fail(q, l->failure, "%s; the next attempt is in %d ms",
                       l->why, (int)((l->retry_us - dq_now() + 999) / 1000));
    dq_url_parse(dq_url_text(q), &u);
    status = dq_public(
        dq_attempts(q, &u, dq_within(q, q->options.connect_timeout_ms)));
    memset(&u, 0, sizeof u);
    if (status != DELAYQ_OK) {
        l->failures++;
        dq_drop(q, status);
        return status;
    }
    if (l->ear && (ear.port != l->at.port || strcmp(ear.host, l->at.host) != 0))
        dq_drop_ear(q);
    l->failures = l->answered = 0;
    l->used_us = dq_now();
    for (h = l->handles; h; h = h->next) h->wake_us = l->used_us;
    q->counts.reconnects += l->connected;
    l->connected = 1;
    return DELAYQ_OK;
}

/* A handle that shares a connection looks at its own queue. */
static delayq_status dq_look(delayq *q) {
    delayq_status status = dq_greet(q, NULL, dq_link(q)->cmd,
                                    dq_within(q, q->options.io_timeout_ms));
    if ((int)status == DQ_MOVED) {
        dq_drop(q, status);
        dq_drop_ear(q);
        return dq_connect(q);
    }
    if (status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
        status == DELAYQ_ERR_PROTOCOL || status == DELAYQ_ERR_MEMORY)
        dq_drop(q, status); /* a refusal leaves the connection to its owner */
    return dq_public(status);
}

/* An idle socket that the server has closed shows it by being readable. */
static void dq_check_idle(delayq *q) {
    redisContext *c = dq_link(q)->cmd;
    void *r = NULL;
    struct pollfd p;
    p.fd = c->fd;
    p.events = POLLIN;
    p.revents = 0;
    if (poll(&p, 1, 0) <= 0) return;
    if (dq_fill(c) == REDIS_OK && redisGetReplyFromReader(c, &r) == REDIS_OK &&
        !r)
        return; /* TLS talks to itself now and then */
    if (r) freeReplyObject(r);
    dq_fail(q, DELAYQ_ERR_IO, "the server has closed the connection");
    dq_drop(q, DELAYQ_ERR_IO);
}

/* Every call that asks the server begins here. */
static delayq_status dq_ready(delayq *q) {
    if (q->pid != (int64_t)getpid())
        return dq_fail(q, DELAYQ_ERR_ARG,
                       "the handle was opened before a "
                       "fork(): open one of your own");
    if (q->orphan)
        return dq_fail(q, DELAYQ_ERR_ARG,
                       "the handle whose sockets this one shares is closed");
    if (q->wire_refused) return dq_wire_failure(q);
    if (dq_link(q)->cmd && dq_now() - dq_link(q)->used_us > DQ_SECOND_US)
        dq_check_idle(q);
    if (!dq_link(q)->cmd) {
        delayq_status status = dq_connect(q);
        if (status != DELAYQ_OK) return status;
    }
    if (!q->looked) {
        delayq_status status = dq_look(q);
        if (status != DELAYQ_OK) return status;
    }
    return q->wire_refused ? dq_wire_failure(q) : DELAYQ_OK;
}

/* A refusal may say that this is not the server to ask. */
static delayq_status dq_call_refused(delayq *q, dq_call *call,
                                     const redisReply *r) {
    delayq_link *l = dq_link(q);
    delayq_status status = dq_refused(q, call->what, r);
    if ((int)status == DQ_NOSCRIPT) l->sha[call->verb][0] = '\0';
    if ((int)status == DQ_ASK) status = dq_redirect(q, r->str, &l->ask);
    if ((int)status == DQ_MOVED) status = dq_moved(q, r->str);
    l->answered = !dq_meaning(r->str)->leave;
    if (!l->answered && l->cmd) l->host++;       /* once, of several calls */
    if ((int)status == DQ_MOVED) dq_drop_ear(q); /* goes along */
    if ((int)status == DQ_MOVED || !l->answered) dq_drop(q, status);
    return status;
}

static delayq_status dq_call_reply(delayq *q, dq_call *call,
                                   const redisReply *r) {
    if (r->type == REDIS_REPLY_ERROR) return dq_call_refused(q, call, r);
    dq_link(q)->answered = 1;
    if (r->type != REDIS_REPLY_ARRAY || r->elements == 0)
        return dq_bad_reply(q, call->what);
    return DELAYQ_OK;
}

/* The calls that are not settled have this status for now. */
static void dq_tell_all(dq_call *calls, size_t count, delayq_status status,
                        int sent) {
    for (; count > 0; count--, calls++) {
        if (calls->settled) continue;
        calls->status = status;
        calls->sent = sent;
    }
}

/* Calls on their way: replies begin[i] to begin[i + 1] - 1 are those of i. */
typedef struct dq_flight {
    dq_call *calls[DQ_PIPE];
    int begin[DQ_PIPE + 1], n, sent;
    redisReply *replies[DQ_PIPE + 2];
} dq_flight;

/* Write the calls that are not settled yet. The server begins with the first
 * while the next is written. One that loads its script is the last, since
 * those behind it may need the same. */
static delayq_status dq_take_off(delayq *q, dq_flight *f, dq_call *calls,
                                 size_t count) {
    delayq_link *l = dq_link(q);
    int loads = 0;
    size_t i;
    f->n = f->begin[0] = 0;
    for (i = 0; i < count && !loads; i++) {
        dq_call *call = &calls[i];
        dq_out o;
        if (call->settled) continue;
        if (f->n > 0 && dq_flush(l->cmd, &f->sent) != REDIS_OK) break;
        loads = !*l->sha[call->verb];
        call->sent_us = dq_now();
        dq_begin(&o, l->cmd);
        f->begin[f->n + 1] = f->begin[f->n] + dq_eval(&o, l, call);
        f->calls[f->n++] = call;
        call->sent = 1;
        call->write(&o, q, call);
        dq_spill(&o);
        if (o.failed) return dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory");
    }
    return DELAYQ_OK;
}

/* What became of call i, of which `got` replies of the flight have come. What
 * was written before the last call may have been read by the server. */
static void dq_land(delayq *q, dq_flight *f, int i, int got,
                    delayq_status status) {
    redisReply **r = f->replies + f->begin[i];
    int last = f->begin[i + 1] - 1 - f->begin[i];
    dq_call *call = f->calls[i];
    if (last > 0 && got > f->begin[i] && r[0]->type == REDIS_REPLY_STRING &&
        r[0]->len == 40 && dq_link(q)->cmd)
        memcpy(dq_link(q)->sha[call->verb], r[0]->str, 41);
    if (got < f->begin[i + 1] || status == DELAYQ_ERR_PROTOCOL) {
        call->status = status;
        if (i < f->n - 1 && status != DELAYQ_ERR_PROTOCOL)
            call->status = DELAYQ_ERR_UNKNOWN;
        return;
    }
    call->status = dq_call_reply(q, call, r[last]);
    if (call->status != DELAYQ_OK) return;
    call->reply = r[last];
    r[last] = NULL;
}

/* Send the calls that are not settled, in one go, and read their replies: each
 * has its status then, but for those behind one that loads its script. */
static void dq_send(delayq *q, dq_call *calls, size_t count) {
    int64_t deadline = dq_within(q, q->options.io_timeout_ms);
    delayq_link *l = dq_link(q);
    delayq_status status;
    int i, got = 0;
    dq_flight f;
    if (dq_now() >= deadline) {
        status = dq_fail(q, DELAYQ_ERR_TIMEOUT,
                         "connected, but no time is left: nothing has "
                         "happened");
        dq_tell_all(calls, count, status, 1);
        return;
    }
    memset(f.replies, 0, sizeof f.replies);
    status = dq_take_off(q, &f, calls, count);
    if (status == DELAYQ_OK)
        status = dq_exchange(q, l->cmd, f.replies, f.begin[f.n], &got, &f.sent,
                             deadline);
    l->used_us = dq_now();
    if (status != DELAYQ_OK) dq_drop(q, status);
    for (i = 0; i < f.n; i++) dq_land(q, &f, i, got, status);
    if (l->answered) l->barren = 0;
    dq_free_replies(f.replies, got);
}

/* A slot is on its way to another node, and what this call touches is there:
 * this one call goes there, on a connection of its own. */
static delayq_status dq_send_there(delayq *q, dq_call *call) {
    delayq_link *l = dq_link(q);
    redisContext *here = l->cmd, *there;
    delayq_status status;
    redisReply **r;
    char sha[41];
    dq_talk t;
    dq_url u;
    dq_url_parse(dq_url_text(q), &u);
    status = dq_socket(q, &u, &l->ask, &there,
                       dq_within(q, q->options.connect_timeout_ms));
    if (status != DELAYQ_OK) return status;
    dq_begin_talk(&t, there, &u);
    status = dq_end_talk(q, &t, dq_within(q, q->options.io_timeout_ms), &r);
    dq_free_talk(&t);
    memset(&u, 0, sizeof u);
    memcpy(sha, l->sha[call->verb], sizeof sha);
    l->sha[call->verb][0] = '\0';
    l->cmd = there;
    call->asking = 1;
    if (status == DELAYQ_OK) {
        dq_send(q, call, 1);
        status = call->status;
    }
    call->asking = 0;
    if (l->cmd) redisFree(l->cmd);
    l->cmd = here;
    memcpy(l->sha[call->verb], sha, sizeof sha);
    return status;
}

/* Is it worth sending again, after this status? Nothing has happened, or it
 * is provably harmless. */
static int dq_once_more(delayq *q, dq_call *call, delayq_status status) {
    if ((int)status == DQ_NOSCRIPT || (int)status == DQ_MOVED) return 1;
    if ((int)status == DQ_TRYAGAIN && call->verb == DQ_TAKE && call->keys > 1 &&
        q->options.wire == DELAYQ_NATIVE) {
        if (call->keys == 5) call->args -= 3;
        call->keys = 1; /* straight from the zset */
        return 1;
    }
    if (status == DELAYQ_ERR_AUTH && call->keys == 5) {
        call->args -= 3; /* the line is forbidden: it waits as if alone */
        call->keys = 4;
        q->turns = q->place = 0;
        return 1;
    }
    if (call->resent || dq_link(q)->cmd || dq_link(q)->failures > 0) return 0;
    call->resent = 1;
    call->again = status == DELAYQ_ERR_UNKNOWN && call->harmless;
    if (status == DELAYQ_ERR_UNKNOWN && call->reads) return 1;
    return call->again || status == DELAYQ_ERR_IO ||
           status == DELAYQ_ERR_READONLY || status == DELAYQ_ERR_AGAIN;
}

/* A call that is not sent again: what its caller is told. */
static void dq_settle(delayq *q, dq_call *call) {
    call->settled = 1;
    if (call->once || call->status == DELAYQ_OK) return;
    if ((int)call->status == DQ_NOSCRIPT)
        dq_fail(q, call->status, "the server forgets its scripts");
    if (call->reads && call->status == DELAYQ_ERR_UNKNOWN)
        call->status = dq_fail(q, DELAYQ_ERR_IO,
                               "%s: sent, but no answer came (or no memory for "
                               "it); it changes nothing",
                               call->what);
    if (call->again && call->status != DELAYQ_ERR_PROTOCOL) {
        char then[160];
        call->status = DELAYQ_ERR_UNKNOWN;
        snprintf(then, sizeof then, "%.159s", q->err);
        if (!strstr(then, "may have happened; then")) /* said by the last one */
            dq_fail(q, call->status,
                    "%s: sent, but no answer came: it may have happened; "
                    "then: %s",
                    call->what, then);
    }
    call->status = dq_public(call->status);
}

/* Run scripts, each on its own: one may fail and the next one not. */
static void dq_run_all(delayq *q, dq_call *calls, size_t count) {
    size_t i, open = count;
    while (open > 0) {
        delayq_status status = dq_ready(q);
        dq_tell_all(calls, count, status, 0);
        if (status == DELAYQ_OK) dq_send(q, calls, count);
        for (i = open = 0; i < count; i++) {
            dq_call *call = &calls[i];
            if (call->settled) continue;
            open++;
            if (status == DELAYQ_OK && !call->sent) continue;
            if ((int)call->status == DQ_ASK && !call->once)
                call->status = dq_send_there(q, call);
            if (call->status != DELAYQ_OK && !call->once &&
                ++call->tries <= DQ_HOPS && dq_once_more(q, call, call->status))
                continue;
            dq_settle(q, call);
            open--;
        }
    }
}

static delayq_status dq_run(delayq *q, dq_call *call) {
    dq_run_all(q, call, 1);
    return call->status;
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

static int dq_is_key(const delayq *q, const char *prefix, const char *rest,
                     const redisReply *r) {
    size_t plen = strlen(prefix), rlen = strlen(rest);
    size_t brace = memchr(q->name, '{', q->name_len) ? 0 : 1;
    const char *at = r->str;
    if (r->len != plen + q->name_len + 2 * brace + rlen) return 0;
    if (memcmp(at, prefix, plen) != 0) return 0;
    at += plen + brace;
    return memcmp(at, q->name, q->name_len) == 0 &&
           memcmp(at + q->name_len + brace, rest, rlen) == 0;
}

/* By how much later than the keeper the next in line acts. */
static int64_t dq_slack(const delayq *q) {
    unsigned char r;
    if (q->place != 2) return 0;
    dq_random(&r, 1);
    return 300000 + r * 300000 / 255;
}

/* Something is due then, by the server's clock; 0: now. */
static void dq_wake_at(delayq *q, int64_t due_ms) {
    int64_t now = dq_now(), when = now;
    if (q->place > 2) return; /* others see to it */
    if (due_ms > DQ_MAX_DUE / 1000)
        when = now + q->options.max_wait_ms * 1000;
    else if (due_ms > 0)
        when = due_ms * 1000 - dq_link(q)->server_us - dq_link(q)->span_us;
    if (q->place == 2 && when < now) when = now;
    dq_wake_by(q, when + dq_slack(q));
}

/* A message on the queue's channel: the new earliest due time. */
static void dq_heard_head(delayq *q, const redisReply *r) {
    int64_t due_ms;
    dq_wake_at(q, dq_numbers(r, &due_ms, 1) && due_ms > 0 ? due_ms : 0);
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
    dq_wake_at(q, 0);
}

/* "place due": a step forward in the line, or 0: struck off. */
static void dq_heard_turn(delayq *q, const redisReply *r) {
    int64_t n[2];
    if (q->place == 0) return; /* it has left */
    if (dq_numbers(r, n, 2) && n[0] == 2) {
        q->place = 2;
        if (n[1] > 0) dq_wake_at(q, n[1]);
    } else {
        q->place = 1;
        dq_wake_at(q, 0);
    }
}

static void dq_heard_by(delayq *q, int message, int gone,
                        const redisReply *channel, const redisReply *text) {
    if (strcmp(channel->str, DQ_INVALIDATE) == 0) {
        if (message) dq_heard_keys(q, text);
    } else if (dq_is_key(q, DQ_CHANNEL, "", channel)) {
        q->hears = !gone;
        if (message)
            dq_heard_head(q, text);
        else
            dq_wake_by(q, dq_now());
    } else if (dq_is_key(q, DQ_TURN, q->id, channel)) {
        q->turns = !gone;
        if (message) dq_heard_turn(q, text);
    }
}

static void dq_heard(delayq *q, const redisReply *r) {
    delayq *h;
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return;
    for (h = dq_link(q)->handles; h; h = h->next)
        dq_heard_by(h, strcmp(r->element[0]->str, "message") == 0,
                    strcmp(r->element[0]->str, "unsubscribe") == 0,
                    r->element[1], r->element[2]);
}

/* Tell the ear to listen for one more handle, or one less, whose name others
 * may have, too; the answers are heard like messages. */
static void dq_subscribe(delayq *q, const char *verb, int with_name) {
    delayq_link *l = dq_link(q);
    int sent;
    dq_out o;
    if (!l->ear) return;
    dq_begin(&o, l->ear);
    dq_line(&o, '*', 2);
    dq_text(&o, verb);
    dq_long_key(&o, q, DQ_TURN, q->id, strlen(q->id));
    if (with_name) {
        dq_line(&o, '*', 2);
        dq_text(&o, verb);
        dq_key(&o, q, DQ_CHANNEL);
    }
    dq_spill(&o);
    if (o.failed || dq_flush(l->ear, &sent) != REDIS_OK) dq_drop_ear(q);
}

/* Read what the ear has received, at most 16 buffers full. */
static int dq_read_ear(delayq *q, int64_t now) {
    delayq_link *l = dq_link(q);
    int i;
    for (i = 0; i < 16; i++) {
        int any = 0;
        void *r = NULL;
        if (dq_fill(l->ear) != REDIS_OK) return 0;
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
    delayq_link *l = dq_link(q);
    int sent;
    if (l->pinged_us > 0)
        return now - l->pinged_us < q->options.io_timeout_ms * 1000LL;
    if (now - l->heard_us < DQ_PING_US) return 1;
    l->pinged_us = now;
    return redisAppendFormattedCommand(l->ear, "*1\r\n$4\r\nPING\r\n", 14) ==
               REDIS_OK &&
           dq_flush(l->ear, &sent) == REDIS_OK;
}

static void dq_drain_pipe(delayq_link *l) {
    char bytes[64];
    while (read(l->pipe[0], bytes, sizeof bytes) > 0) {
    }
}

/* Look at the ear, and empty the pipe, at most once a millisecond. What wake
 * has said stands in the handles. */
static delayq_status dq_listen(delayq *q, int64_t now) {
    delayq_link *l = dq_link(q);
    if (now - l->looked_us < DQ_LOOK_US) return DELAYQ_OK;
    if (q->pid != (int64_t)getpid()) return dq_ready(q); /* the parent's */
    l->looked_us = now;
    dq_drain_pipe(l);
    if (l->ear && (!dq_read_ear(q, now) || !dq_ping_ear(q, now)))
        dq_drop_ear(q);
    return DELAYQ_OK;
}

/* One write: login, CLIENT ID, and the subscriptions; an answer to each. A
 * refused subscription leaves the ear half deaf, not the queue broken. */
static delayq_status dq_greet_ear(delayq *q, const dq_url *u, redisContext *c,
                                  int64_t deadline) {
    delayq_link *l = dq_link(q);
    delayq_status status;
    redisReply **r;
    dq_talk t;
    dq_begin_talk(&t, c, u);
    dq_words(&t.o, 2, "CLIENT", "ID");
    dq_line(&t.o, '*', 2);
    dq_text(&t.o, "SUBSCRIBE");
    dq_key(&t.o, q, DQ_CHANNEL);
    dq_words(&t.o, 2, "SUBSCRIBE", DQ_INVALIDATE);
    dq_line(&t.o, '*', 2);
    dq_text(&t.o, "SUBSCRIBE");
    dq_long_key(&t.o, q, DQ_TURN, q->id, strlen(q->id));
    t.n += 4;
    status = dq_end_talk(q, &t, deadline, &r);
    if (status == DELAYQ_OK) {
        int id = r[0]->type == REDIS_REPLY_INTEGER;
        l->ear_id = id ? r[0]->integer : 0;
        q->hears = r[1]->type == REDIS_REPLY_ARRAY;
        l->hears_pushes = id && r[2]->type == REDIS_REPLY_ARRAY;
        q->turns = q->hears && r[3]->type == REDIS_REPLY_ARRAY;
        if (!q->hears && !l->hears_pushes)
            status = r[1]->type == REDIS_REPLY_ERROR
                         ? dq_refused(q, "listening", r[1])
                         : dq_bad_reply(q, "listening");
    }
    dq_free_talk(&t);
    return status;
}

/* Open the ear, unless that was tried too lately. Its failure is no failure
 * of the queue: it is told to the log, and the handle looks more often. */
static void dq_open_ear(delayq *q) {
    delayq_link *l = dq_link(q);
    int64_t deadline = dq_within(q, q->options.io_timeout_ms);
    delayq_status status;
    delayq *h;
    dq_url u;
    if (l->ear || dq_now() < l->ear_retry_us) return;
    dq_url_parse(dq_url_text(q), &u);
    status = dq_socket(q, &u, &l->at, &l->ear, deadline);
    if (status == DELAYQ_OK) status = dq_greet_ear(q, &u, l->ear, deadline);
    memset(&u, 0, sizeof u);
    if (status != DELAYQ_OK) {
        l->ear_failures++;
        dq_drop_ear(q);
        if (q->options.log)
            q->options.log(q->options.user, dq_public(status), q->err);
        return;
    }
    l->ear_failures = 0;
    l->heard_us = l->looked_us = dq_now();
    l->pinged_us = 0;
    for (h = l->handles; h; h = h->next) {
        h->wake_us = l->heard_us;
        if (h != q && l->ear) dq_subscribe(h, "SUBSCRIBE", 1);
    }
}

static int dq_write_arm(dq_out *o, const delayq *q) {
    const delayq_link *l = dq_link(q);
    if (!l->tracking) {
        dq_line(o, '*', 7);
        dq_text(o, "CLIENT");
        dq_text(o, "TRACKING");
        dq_text(o, "ON");
        dq_text(o, "REDIRECT");
        dq_number(o, l->ear_id);
        dq_text(o, "OPTIN");
        dq_text(o, "NOLOOP");
    }
    dq_words(o, 3, "CLIENT", "CACHING", "YES");
    dq_line(o, '*', 2);
    dq_text(o, "LLEN");
    dq_arg(o, q->name, q->name_len);
    dq_spill(o);
    return l->tracking ? 2 : 3;
}

static delayq_status dq_armed(delayq *q, redisReply *const *r, int n) {
    delayq_link *l = dq_link(q);
    const redisReply *length = r[n - 1];
    if (r[0]->type == REDIS_REPLY_ERROR ||
        r[n - 2]->type == REDIS_REPLY_ERROR) {
        l->hears_pushes = 0; /* Redis 5, an ACL: a look every 250 ms */
        dq_wake_by(q, dq_now() + DQ_DEAF_US);
        return DELAYQ_OK;
    }
    if (length->type == REDIS_REPLY_ERROR) {
        delayq_status status = dq_refused(q, "wait", length);
        if ((int)status < DQ_NOSCRIPT) return status;
        dq_wake_by(q, dq_now() + DQ_DEAF_US); /* the take will go along */
        return DELAYQ_OK;
    }
    if (length->type != REDIS_REPLY_INTEGER) return dq_bad_reply(q, "wait");
    l->tracking = q->armed = 1;
    if (length->integer > 0 && q->place == 2)
        dq_wake_at(q, 0); /* the keeper's, if it lives */
    else if (length->integer > 0)
        q->ready = length->integer;
    return DELAYQ_OK;
}

/* Ask to be told of the next push into N, and whether something lies there
 * already: pushed before the server began to watch. */
static delayq_status dq_arm(delayq *q) {
    delayq_link *l = dq_link(q);
    redisReply *r[3] = {NULL, NULL, NULL};
    delayq_status status = dq_ready(q);
    int got = 0, sent, n;
    dq_out o;
    if (status != DELAYQ_OK) return status;
    dq_begin(&o, l->cmd);
    n = dq_write_arm(&o, q);
    status = o.failed ? dq_fail(q, DELAYQ_ERR_MEMORY, "out of memory")
                      : dq_exchange(q, l->cmd, r, n, &got, &sent,
                                    dq_within(q, q->options.io_timeout_ms));
    l->used_us = dq_now();
    if (status == DELAYQ_ERR_UNKNOWN) status = DELAYQ_ERR_IO; /* no effect */
    if (status == DELAYQ_OK)
        status = dq_armed(q, r, n);
    else
        dq_drop(q, status);
    dq_free_replies(r, got);
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Moving and taking
 *---------------------------------------------------------------------------*/

static const char *dq_wire_letter(const delayq *q) {
    static const char *const letters[] = {"n", "r", "o"};
    return q->options.broadcast ? "b" : letters[q->options.wire];
}

static void dq_begin_call(dq_call *call, dq_verb verb, const char *what,
                          size_t keys, size_t args,
                          void (*write)(dq_out *, delayq *, const dq_call *)) {
    memset(call, 0, sizeof *call);
    call->verb = verb;
    call->what = what;
    call->keys = keys;
    call->args = args;
    call->write = write;
}

/* Read the n numbers that a call's reply begins with. */
static delayq_status dq_reply_numbers(delayq *q, dq_call *call, int64_t *n,
                                      int count) {
    memset(n, 0, (size_t)count * sizeof *n);
    if (call->status != DELAYQ_OK) return call->status;
    if (!dq_stamped(call->reply->element[0], n, count)) {
        freeReplyObject(call->reply);
        call->reply = NULL;
        return dq_bad_reply(q, call->what);
    }
    dq_set_clock(dq_link(q), n[0], call->sent_us, dq_link(q)->used_us);
    return DELAYQ_OK;
}

static delayq_status dq_run_numbers(delayq *q, dq_call *call, int64_t *n,
                                    int count) {
    dq_run(q, call);
    return dq_reply_numbers(q, call, n, count);
}

/* The server's clock, at least and at most, in ms. */
static int64_t dq_server_ms(const delayq *q) {
    return (dq_now() + dq_link(q)->server_us) / 1000;
}

static int64_t dq_due_in(const delayq *q, int64_t delay_ms) {
    const delayq_link *l = dq_link(q);
    return (dq_now() + l->server_us + l->span_us + 999) / 1000 + delay_ms;
}

/* --- tickets --- */

#define DQ_KEY_MAX 17

/* An element's ticket: due time and id. Of Redisson's ids of 8 bytes the 8
 * before them is part, or they would look like old ones. */
static void dq_ticket(delayq_ticket *t, int64_t due_ms, const unsigned char *e,
                      int kind) {
    size_t n = dq_decimal(t->text, due_ms);
    t->text[n++] = '-';
    dq_hex_text(t->text + n, e + (kind == 16),
                kind == 16  ? 16
                : kind == 8 ? 9
                            : 8);
}

/* The due time and the bytes that a ticket's element begins with; 0: it is
 * none. *due_len: the length of the due time's text. */
static size_t dq_ticket_key(const char *text, unsigned char key[DQ_KEY_MAX],
                            size_t *due_len) {
    size_t n = 0, digits, due = 0;
    while (text[due] >= '0' && text[due] <= '9') due++;
    if (due < 1 || due > 16 || text[due] != '-') return 0;
    *due_len = due;
    text += due + 1;
    digits = strlen(text);
    if (digits != 32 && digits != 18 && digits != 16) return 0;
    if (digits == 32) key[n++] = 16;
    for (; *text; text += 2) {
        int hi = dq_hex(text[0]), lo = dq_hex(text[1]);
        if (hi < 0 || lo < 0) return 0;
        key[n++] = (unsigned char)(hi * 16 + lo);
    }
    return n;
}

static int dq_is_ticket(const char *text) {
    unsigned char key[DQ_KEY_MAX];
    size_t len;
    return memchr(text, 0, sizeof(delayq_ticket)) &&
           dq_ticket_key(text, key, &len) > 0;
}

/* Two arguments: due, k. */
static void dq_write_ticket(dq_out *o, const char *text) {
    unsigned char key[DQ_KEY_MAX];
    size_t due_len = 0, n = dq_ticket_key(text, key, &due_len);
    dq_arg(o, text, due_len);
    dq_arg(o, key, n);
}

/* --- transfer and take --- */

static void dq_set_cursor(delayq *q, const redisReply *r) {
    if (r->type == REDIS_REPLY_STRING && r->len < sizeof q->cursor)
        memcpy(q->cursor, r->str, r->len + 1);
}

static void dq_write_keys(dq_out *o, delayq *q, size_t count) {
    dq_key(o, q, DQ_ZSET);
    if (count > 1 && q->options.broadcast)
        dq_key(o, q, DQ_STREAM);
    else if (count > 1)
        dq_arg(o, q->name, q->name_len);
    if (count > 2)
        dq_key(o, q, q->options.wire != DELAYQ_NATIVE ? DQ_MIRROR : DQ_RETRY);
    if (count > 3) dq_key(o, q, DQ_DEAD);
    if (count > 4) dq_key(o, q, DQ_LINE);
}

static void dq_write_lease(dq_out *o, delayq *q, const dq_call *call) {
    uint64_t order = (uint64_t)(dq_now() + dq_link(q)->server_us);
    unsigned char tail[6];
    if (order <= q->order) order = q->order + 1;
    q->order = order + call->max;
    dq_number(o, (int64_t)order);
    memcpy(tail, q->nonce, 5);
    tail[5] = 0;
    if (q->options.wire == DELAYQ_REDISSON_OLD)
        dq_number(o, dq_old_tail(q));
    else
        dq_arg(o, tail, sizeof tail);
    dq_key(o, q, DQ_CHANNEL);
}

static void dq_write_take(dq_out *o, delayq *q, const dq_call *call) {
    dq_text(o, q->retry_turn ? "x" : "r");
    dq_number(o, q->options.max_attempts);
    dq_number(o, q->options.lease_ms);
    if (q->options.lease_ms > 0) dq_write_lease(o, q, call);
    if (call->keys == 5) {
        dq_text(o, q->id);
        dq_text(o, q->joins ? "1" : "0");
        dq_key(o, q, DQ_TURN);
    }
    if (call->item) dq_write_ticket(o, call->item->ticket.text);
}

/* What tick, take and broadcast say. */
static void dq_write_drain(dq_out *o, delayq *q, const dq_call *call) {
    dq_write_keys(o, q, call->keys);
    dq_text(o, dq_wire_letter(q));
    dq_number(o, q->options.batch);
    dq_number(o, q->options.max_wait_ms);
    if (call->verb == DQ_TICK) return;
    dq_number(o, (int64_t)call->max);
    if (call->verb == DQ_TAKE) {
        dq_write_take(o, q, call);
    } else {
        dq_text(o, q->cursor);
        dq_number(o, q->options.broadcast_keep);
        dq_key(o, q, DQ_CHANNEL);
    }
}

/* Do pushes into the list matter to this handle, unless it hears of them? */
static int dq_wants_arm(const delayq *q) {
    return !q->armed && !q->options.broadcast && dq_link(q)->hears_pushes &&
           q->place < 3;
}

/* Apply the head of a reply: the one rule for wake_us. What it says holds for
 * every handle on the same queue and link. */
static delayq_status dq_apply(delayq *q, const dq_call *call, int64_t *n) {
    int64_t cap = q->options.max_wait_ms * 1000, next = n[DQ_AT_NEXT];
    int deaf =
        call->verb == DQ_TAKE && (!dq_link(q)->hears_pushes || call->keys == 1);
    delayq *h;
    if (!dq_link(q)->ear || !q->hears || deaf)
        cap = cap < DQ_DEAF_US ? cap : DQ_DEAF_US;
    if (next < 0 || next > cap) next = cap;
    q->ready = n[DQ_AT_READY] < 0 ? 0 : n[DQ_AT_READY];
    if (n[DQ_AT_OLD] == 1) q->wire_refused = 1;
    q->counts.moved += (uint64_t)n[DQ_AT_MOVED];
    q->counts.died += (uint64_t)n[DQ_AT_DEAD];
    for (h = dq_link(q)->handles; h; h = h->next) {
        if (h != q && (h->name_len != q->name_len || h->options.broadcast ||
                       memcmp(h->name, q->name, q->name_len) != 0))
            continue;
        h->ready = q->ready;
        h->wake_us = call->sent_us + next;
        if (n[DQ_AT_MOVED] > 0 || call->reply->elements > 2) h->armed = 0;
    }
    q->place = call->keys != 5      ? 0
               : n[DQ_AT_PLACE] > 2 ? 3
                                    : (unsigned char)n[DQ_AT_PLACE];
    if (q->place == 2) q->wake_us += dq_slack(q);
    if (q->place > 2) q->wake_us = call->sent_us + cap;
    return q->wire_refused ? dq_wire_failure(q) : DELAYQ_OK;
}

/* Run the transfer, one round trip. */
static delayq_status dq_transfer(delayq *q) {
    int cast = q->options.broadcast;
    delayq_status status;
    int64_t n[DQ_NUMBERS]; /* the last two only of a take */
    dq_call call;
    dq_begin_call(&call, cast ? DQ_CAST : DQ_TICK, "tick", 4, cast ? 7 : 3,
                  dq_write_drain);
    call.once = 1;
    status = dq_run_numbers(q, &call, n, DQ_AT_PLACE);
    if ((int)status == DQ_NOSCRIPT || (int)status == DQ_MOVED)
        return DELAYQ_OK; /* loaded or followed by the next call */
    status = dq_public(status);
    if (status != DELAYQ_OK) {
        if (dq_link(q)->cmd) q->wake_us = dq_now() + DQ_BACKOFF_US;
        return status;
    }
    status = dq_apply(q, &call, n);
    if (cast && call.reply->elements > 1)
        dq_set_cursor(q, call.reply->element[1]);
    freeReplyObject(call.reply);
    return status;
}

static int64_t dq_score(const char *p) {
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        value = value < DQ_MAX_DUE / 10 ? value * 10 + (*p - '0') : DQ_MAX_DUE;
    return value;
}

static void dq_count_taken(delayq *q, const delayq_item *item) {
    int bucket = 0;
    q->counts.taken++;
    q->counts.redelivered += item->attempt > 1;
    if (item->late_us < 0) return;
    while (bucket < 23 && item->late_us >= (int64_t)1 << bucket) bucket++;
    q->counts.lateness[bucket]++;
}

static void dq_late(delayq_item *item, const char *due, int64_t us) {
    item->late_us = -1;
    if (*due < '0' || *due > '9') return;
    item->due_ms = dq_score(due);
    item->late_us = us - item->due_ms * 1000;
    if (item->late_us < 0) item->late_us = 0;
}

/* An item of a take's reply: its due time, or e or r, and its bytes; n: the
 * reply's head. */
static int dq_item(delayq *q, delayq_item *item, const char *due,
                   const redisReply *bytes, const int64_t *n) {
    const unsigned char *e = (const unsigned char *)bytes->str;
    int leased = q->options.lease_ms > 0, kind = -1;
    size_t at = 0;
    if (!*due || bytes->type != REDIS_REPLY_STRING) return 0;
    memset(item, 0, sizeof *item);
    if (*due != 'r') kind = dq_split(e, bytes->len, dq_link(q)->long_big, &at);
    if (kind < 0 && (leased || *due != 'r')) return 0;
    if (kind < 0) at = 0;
    item->data = e + at;
    item->len = bytes->len - at;
    item->attempt = kind == DQ_KIND_OLD && leased ? 0 : !leased;
    if (kind == 16) item->attempt += (int)dq_get_uint(e + 15, 2, 1);
    if (leased) dq_ticket(&item->ticket, n[DQ_AT_LEASE], e, kind);
    dq_late(item, due, n[0]);
    dq_count_taken(q, item);
    return 1;
}

/* The item that a triple of a broadcast's reply stands for. */
static int dq_cast_item(delayq *q, delayq_item *item, redisReply *const *r,
                        int64_t us) {
    int i;
    for (i = 0; i < 3; i++)
        if (r[i]->type != REDIS_REPLY_STRING) return 0;
    if (r[0]->len >= sizeof q->cursor) return 0;
    memset(item, 0, sizeof *item);
    memcpy(item->ticket.text, r[0]->str, r[0]->len + 1);
    item->data = r[2]->str;
    item->len = r[2]->len;
    item->attempt = 1;
    dq_late(item, r[1]->str, us);
    dq_count_taken(q, item);
    return 1;
}

static void dq_forget(delayq *q) {
    if (q->reply) freeReplyObject(q->reply);
    q->reply = NULL;
}

/* What an ack's answer says of one ticket. */
static delayq_status dq_acked(delayq *q, const dq_call *call, int done) {
    if (done) {
        q->counts.acked++;
        return DELAYQ_OK;
    }
    if (!call->again) return DELAYQ_GONE;
    return dq_fail(q, DELAYQ_ERR_UNKNOWN,
                   "%s: sent twice, and the item is no longer there: it was "
                   "done, or the lease was lost",
                   call->what);
}

/* The items of a reply, behind its first two elements; n: its head.
 * SIZE_MAX: that is no reply of ours. */
static size_t dq_read_items(delayq *q, const dq_call *call, delayq_item *items,
                            const int64_t *n) {
    redisReply *const *r = call->reply->element + 2;
    size_t step = call->verb == DQ_CAST ? 3 : 1, i, count;
    const char *due = r[-1]->str;
    count = (call->reply->elements - 2) / step;
    if (call->reply->elements != 2 + step * count || count > call->max)
        return SIZE_MAX;
    for (i = 0; i < count; i++, r += step) {
        if (call->verb == DQ_CAST ? !dq_cast_item(q, &items[i], r, n[0])
                                  : !dq_item(q, &items[i], due, r[0], n))
            return SIZE_MAX;
        due += strcspn(due, " ");
        due += *due == ' ';
    }
    return count;
}

/* Is it about to wait long, where it hears of its turn? */
static int dq_would_join(const delayq *q) {
    return q->joins && q->turns;
}

/* Ask the server for up to max items, with an ack before if ack is not NULL;
 * *acked is what became of it. EMPTY or OK. */
static delayq_status dq_ask(delayq *q, delayq_item *items, size_t max,
                            size_t *count, const delayq_item *ack,
                            delayq_status *acked) {
    int cast = q->options.broadcast;
    delayq_status status;
    int64_t n[DQ_NUMBERS];
    dq_call call;
    dq_begin_call(&call, cast ? DQ_CAST : DQ_TAKE, "take", 4, 7,
                  dq_write_drain);
    if (q->options.lease_ms > 0) call.args += 3;
    if (q->place > 0 || dq_would_join(q)) {
        call.keys = 5;
        call.args += 3;
    }
    if (ack && !cast) call.args += 2;
    call.max = max;
    call.item = ack;
    q->retry_turn = !q->retry_turn;
    status = dq_run_numbers(q, &call, n, cast ? DQ_AT_PLACE : DQ_NUMBERS);
    if (ack) *acked = status;
    if (status != DELAYQ_OK) return status;
    q->reply = call.reply;
    if (call.reply->elements < 2 ||
        call.reply->element[1]->type != REDIS_REPLY_STRING)
        return dq_bad_reply(q, "take");
    if (ack && n[DQ_AT_ACKED] != 0 && n[DQ_AT_ACKED] != 1) {
        *acked = DELAYQ_ERR_PROTOCOL;
        return dq_bad_reply(q, "take");
    }
    if (ack) *acked = dq_acked(q, &call, n[DQ_AT_ACKED] == 1);
    status = dq_apply(q, &call, n);
    if (cast) dq_set_cursor(q, call.reply->element[1]);
    *count = dq_read_items(q, &call, items, n);
    if (*count == SIZE_MAX) {
        *count = 0;
        return dq_bad_reply(q, "take");
    }
    if (*count > 0) return DELAYQ_OK;
    return status == DELAYQ_OK ? DELAYQ_EMPTY : status;
}

/* What a take is asked for, and what it has got. */
typedef struct dq_taking {
    delayq_item *items;
    size_t max, count;
    delayq_item ack; /* to be acked first, if it has a ticket */
    delayq_status acked;
    int asked; /* the ack has been sent at least once */
} dq_taking;

static delayq_status dq_take_ask(delayq *q, dq_taking *t) {
    delayq_status status, acked = DELAYQ_OK;
    int ack = t->ack.ticket.text[0] != '\0';
    status =
        dq_ask(q, t->items, t->max, &t->count, ack ? &t->ack : NULL, &acked);
    if (!ack) return status;
    if (t->asked && acked != DELAYQ_OK) acked = DELAYQ_ERR_UNKNOWN;
    if (acked == DELAYQ_ERR_UNKNOWN || acked == DELAYQ_ERR_PROTOCOL)
        t->asked = 1;
    t->acked = acked;
    if (status >= DELAYQ_OK || acked >= DELAYQ_OK)
        t->ack.ticket.text[0] = '\0'; /* it is settled */
    return status;
}

/* Is half of the call's time left? */
static int dq_has_time(delayq *q) {
    return dq_limit(q) - dq_now() > q->options.io_timeout_ms * 500LL;
}

/* One turn of a take: ask if there may be something; if not, get closer to
 * hearing of it. */
static delayq_status dq_take_turn(delayq *q, dq_taking *t, int listen) {
    delayq_link *l = dq_link(q);
    delayq_status status;
    int64_t now = dq_now();
    if (q->orphan) return dq_ready(q);
    q->limit_us = 0;
    status = dq_listen(q, now);
    if (status != DELAYQ_OK) return status;
    status = DELAYQ_EMPTY;
    if (!l->cmd || !l->ear || q->ready > 0 || now >= q->wake_us ||
        t->ack.ticket.text[0] || (q->place == 0 && dq_would_join(q)))
        status = dq_take_ask(q, t);
    if (status != DELAYQ_EMPTY || !listen || (l->ear && !dq_wants_arm(q)) ||
        !dq_has_time(q))
        return status;
    if (!l->ear)
        dq_open_ear(q);
    else
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

/* Was delayq_wake called? It counts once. */
static int dq_woken(delayq *q) {
    if (!DQ_LOAD(&q->woken)) return 0;
    DQ_STORE(&q->woken, 0);
    return 1;
}

/* The moment at which q wants to act though nothing is heard. */
static int64_t dq_next_us(const delayq *q) {
    const delayq_link *l = dq_link(q);
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

/* Does one before number i use the same connection? */
static int dq_seen_link(delayq *const *queues, size_t i) {
    size_t k;
    for (k = 0; k < i; k++)
        if (dq_link(queues[k]) == dq_link(queues[i])) return 1;
    return 0;
}

/* Sleep until one of the queues wants to act, is told something, or until. A
 * command socket speaks while nobody asks it only when it dies. */
static void dq_sleep(delayq *const *queues, size_t count, int64_t until) {
    struct pollfd p[3 * DQ_MAX_LINKS];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq_link *l = dq_link(queues[i]);
        int64_t next = dq_next_us(queues[i]);
        if (next < until) until = next;
        if (dq_seen_link(queues, i)) continue;
        dq_watch(p, &n, l->pipe[0]);
        if (l->ear) dq_watch(p, &n, l->ear->fd);
        if (l->cmd) dq_watch(p, &n, l->cmd->fd);
    }
    dq_poll(p, n, until);
    for (i = 0; i < count; i++) {
        if (dq_seen_link(queues, i)) continue;
        dq_link(queues[i])->looked_us = 0;
        if (dq_link(queues[i])->cmd) dq_check_idle(queues[i]);
    }
}

static int64_t dq_deadline(int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return dq_now() + timeout_ms * 1000;
}

/* A passing fault within a take or wait: tell the log, and don't spin. */
static void dq_ride_out(delayq *q, delayq_status status) {
    if (q->options.log) q->options.log(q->options.user, status, q->err);
    if (dq_link(q)->cmd) q->wake_us = dq_now() + DQ_BACKOFF_US;
}

/* One step of a tick: connect, or open the ear, or look and transfer. */
static delayq_status dq_tick_step(delayq *q) {
    delayq_link *l = dq_link(q);
    delayq_status status;
    int64_t now;
    if (!l->cmd || q->wire_refused || q->orphan) return dq_ready(q);
    now = dq_now();
    status = dq_listen(q, now);
    if (status != DELAYQ_OK) return status;
    if (!l->ear && now >= l->ear_retry_us) {
        dq_open_ear(q);
        return DELAYQ_OK;
    }
    return now < q->wake_us ? DELAYQ_OK : dq_transfer(q);
}

/* One turn of a wait: a step, and OK if something lies ready then. */
static delayq_status dq_wait_turn(delayq *q) {
    delayq_link *l = dq_link(q);
    delayq_status status = DELAYQ_OK;
    int steps; /* connect, open the ear, transfer */
    q->limit_us = 0;
    for (steps = 0; steps < 3 && status == DELAYQ_OK; steps++) {
        status = dq_tick_step(q);
        if (q->ready > 0 || (l->ear && dq_now() < q->wake_us)) break;
    }
    if (status == DELAYQ_OK && q->ready == 0 && l->ear && l->cmd &&
        dq_wants_arm(q) && dq_now() < q->wake_us)
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
    q->limit_us = 0;
    return good ? DELAYQ_OK : dq_fail(q, DELAYQ_ERR_ARG, "%s", why);
}

/* At least once and broadcast: what fits together. */
static const char *dq_check_modes(delayq_options *o) {
    if (o->lease_ms < 0 || o->lease_ms > DQ_MAX_DUE / 4)
        return "options.lease_ms is negative or too long";
    if (o->max_attempts < 0 || o->max_attempts > 65535)
        return "options.max_attempts: up to 65,535, or 0 for no limit";
    if (o->max_attempts > 0 && o->wire != DELAYQ_NATIVE)
        return "options.max_attempts: only with DELAYQ_NATIVE, since attempts "
               "begin anew whenever Redisson moves an item";
    if (o->backoff_ms < 0 || o->backoff_max_ms < 0 ||
        o->backoff_max_ms > DQ_MAX_DUE / 4)
        return "options.backoff_ms, backoff_max_ms: negative or too long";
    if (o->broadcast_keep < 0) return "options.broadcast_keep is negative";
    if (o->broadcast && (o->wire != DELAYQ_NATIVE || o->lease_ms > 0))
        return "options.broadcast: only with DELAYQ_NATIVE and no lease";
    if (o->backoff_ms == 0) o->backoff_ms = 1000;
    if (o->backoff_max_ms == 0) o->backoff_max_ms = 300000;
    if (o->broadcast_keep == 0) o->broadcast_keep = 10000;
    return NULL;
}

static const char *dq_check_share(delayq_options *o) {
    delayq *owner = o->share;
    if (!owner) return NULL;
    if (owner->open != DQ_OPEN || owner->options.share)
        return "options.share: not an open handle with sockets of its own";
    if (owner->pid != (int64_t)getpid())
        return "options.share: opened before a fork()";
    if (o->url || o->connect || o->connect_timeout_ms || o->io_timeout_ms ||
        o->tls_ca || o->tls_cert)
        return "options.share: url, tls, connect, timeouts are the owner's";
    o->connect_timeout_ms = owner->options.connect_timeout_ms;
    o->io_timeout_ms = owner->options.io_timeout_ms;
    return NULL;
}

/* Options in range, defaults filled in. NULL, or what is wrong. */
static const char *dq_check_options(delayq_options *o) {
    size_t len = o->name ? strlen(o->name) : 0;
    const char *wrong;
    if (len < 1 || len > 512) return "options.name: 1 to 512 bytes";
    if ((int)o->wire < DELAYQ_NATIVE || (int)o->wire > DELAYQ_REDISSON_OLD)
        return "options.wire: none of the three";
    if (o->batch < 0 || o->batch > 1000)
        return "options.batch: 1 to 1,000, or 0 for the default";
    if (o->max_wait_ms < 0 || o->max_wait_ms > 86400000)
        return "options.max_wait_ms: up to a day, or 0 for the default";
    if (o->connect_timeout_ms < 0 || o->io_timeout_ms < 0 ||
        o->connect_timeout_ms > 3600000 || o->io_timeout_ms > 3600000)
        return "options.connect_timeout_ms, io_timeout_ms: up to an hour";
    if (!o->tls_cert != !o->tls_key)
        return "options.tls_cert and tls_key: both or none";
    wrong = dq_check_modes(o);
    if (!wrong) wrong = dq_check_share(o);
    if (wrong) return wrong;
    if (o->batch == 0) o->batch = 100;
    if (o->max_wait_ms == 0) o->max_wait_ms = 10000;
    if (o->io_timeout_ms == 0) o->io_timeout_ms = 3000;
    if (o->connect_timeout_ms == 0)
        o->connect_timeout_ms =
            o->io_timeout_ms < 2000 ? o->io_timeout_ms : 2000;
    return NULL;
}

/* Where a broadcast's reader begins. NULL, or what is wrong. */
static const char *dq_check_cursor(delayq *q) {
    const char *after = q->options.broadcast_after;
    size_t ms, seq;
    if (!after || !*after) {
        memcpy(q->cursor, after ? "0-0" : "$", after ? 4 : 2);
        return NULL;
    }
    ms = strspn(after, "0123456789");
    seq = after[ms] == '-' ? strspn(after + ms + 1, "0123456789") : 0;
    if (ms < 1 || ms > 16 || seq < 1 || seq > 16 || after[ms + 1 + seq])
        return "options.broadcast_after: the ticket text of an item";
    memcpy(q->cursor, after, ms + seq + 2);
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

/* Name, id, and a place on the link. */
static void dq_enter(delayq *q) {
    q->name_len = strlen(q->options.name);
    memcpy(q->name, q->options.name, q->name_len + 1);
    q->options.name = NULL; /* the copy counts */
    q->open = DQ_OPEN;
    q->pid = (int64_t)getpid();
    q->next = dq_link(q)->handles;
    dq_link(q)->handles = q;
    dq_random(q->nonce, sizeof q->nonce);
    q->id[0] = ':';
    dq_hex_text(q->id + 1, q->nonce, sizeof q->nonce);
    if (q->options.share) {
        q->wake_us = dq_now();
        dq_subscribe(q, "SUBSCRIBE", 1);
    }
}

DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options) {
    delayq_status status;
    const char *wrong;
    dq_url u;
    if (!q) return DELAYQ_ERR_ARG;
    memset(q, 0, sizeof *q);
    if (!options) return dq_fail(q, DELAYQ_ERR_ARG, "options is NULL");
    q->options = *options;
    wrong = dq_check_options(&q->options);
    if (!wrong) wrong = dq_check_cursor(q);
    if (wrong) {
        q->options.share = NULL;
        return dq_fail(q, DELAYQ_ERR_ARG, "%s", wrong);
    }
    wrong = dq_url_parse(dq_url_text(q), &u);
    memset(&u, 0, sizeof u);
    if (wrong) return dq_fail(q, DELAYQ_ERR_ARG, "options.url: %s", wrong);
    if (!q->options.share && !dq_open_pipe(q->link.pipe))
        return dq_fail(q, DELAYQ_ERR_MEMORY, "no pipe: %s", strerror(errno));
    dq_enter(q);
    status = q->options.broadcast && q->cursor[0] == '$'
                 ? dq_transfer(q) /* finds the stream's end */
                 : dq_ready(q);
    if (status == DELAYQ_ERR_ARG) delayq_close(q);
    return status;
}

/* Take a handle off its link. The ear goes on for another of this name. */
static void dq_leave(delayq *q) {
    delayq **at = &dq_link(q)->handles, *h;
    int others = 0;
    while (*at != q) at = &(*at)->next;
    *at = q->next;
    for (h = dq_link(q)->handles; h; h = h->next)
        others += h->name_len == q->name_len &&
                  memcmp(h->name, q->name, q->name_len) == 0;
    if (q->pid == (int64_t)getpid())
        dq_subscribe(q, "UNSUBSCRIBE", others == 0);
}

DELAYQ_API void delayq_close(delayq *q) {
    delayq *h;
    if (!q || q->open != DQ_OPEN) return;
    dq_forget(q);
    q->open = 0;
    if (q->orphan) return;
    if (q->options.share) {
        dq_leave(q);
        return;
    }
    for (h = q->link.handles; h; h = h->next) {
        if (h == q) continue;
        h->orphan = 1; /* q's memory may be gone soon */
        h->options.share = NULL;
        h->link.pipe[0] = h->link.pipe[1] = -1;
    }
    if (q->link.cmd) redisFree(q->link.cmd);
    if (q->link.ear) redisFree(q->link.ear);
    q->link.cmd = q->link.ear = NULL;
    dq_tls_end(&q->link);
    close(q->link.pipe[0]);
    close(q->link.pipe[1]);
}

/* --- offers --- */

#define DQ_OFFER_MAX 128
#define DQ_OFFER_BYTES (256 * 1024)

/* When it is due: see the script. */
static void dq_write_when(dq_out *o, const delayq_message *m,
                          const delayq_message *before, int again) {
    char when[64];
    size_t n = 0;
    again |= m->status == DELAYQ_ERR_UNKNOWN;
    if (!before || again || before->due_ms != m->due_ms ||
        before->delay_ms != m->delay_ms)
        n += dq_decimal(when, m->due_ms > 0 ? -m->due_ms : m->delay_ms);
    if (again) {
        when[n++] = '!';
        n += dq_decimal(when + n, m->not_after_ms);
    }
    dq_arg(o, when, n);
}

static void dq_write_element(dq_out *o, const delayq *q,
                             const delayq_message *m) {
    unsigned char head[DQ_HEAD_MAX];
    size_t n = dq_head(q, m->id, m->len, head);
    dq_arg2(o, head, n, m->data, m->len);
}

static void dq_write_offer(dq_out *o, delayq *q, const dq_call *call) {
    size_t i;
    dq_key(o, q, DQ_ZSET);
    if (call->keys == 2) dq_key(o, q, DQ_MIRROR);
    dq_key(o, q, DQ_CHANNEL);
    for (i = 0; i < call->max; i++) {
        dq_write_when(o, &call->messages[i],
                      i > 0 ? &call->messages[i - 1] : NULL, call->again);
        dq_write_element(o, q, &call->messages[i]);
    }
}

static void dq_write_once(dq_out *o, delayq *q, const dq_call *call) {
    const delayq_message *m = call->messages;
    size_t klen = strlen(m->key), n = 1;
    char rest[270]; /* :LEN:KEY */
    dq_key(o, q, DQ_ZSET);
    rest[0] = ':';
    n += dq_decimal(rest + n, (int64_t)klen);
    rest[n++] = ':';
    memcpy(rest + n, m->key, klen);
    dq_long_key(o, q, DQ_ONCE_KEY, rest, n + klen);
    if (call->keys == 3) dq_key(o, q, DQ_MIRROR);
    dq_key(o, q, DQ_CHANNEL);
    dq_write_when(o, m, NULL, call->again);
    dq_write_element(o, q, m);
    dq_text(o, strchr(m->ticket.text, '-') + 1);
    dq_number(o, m->key_ttl_ms);
    dq_text(o, m->replace ? "1" : "0");
}

/* A message's ticket, from its id; the due time is what the server says. */
static void dq_message_ticket(const delayq *q, delayq_message *m,
                              int64_t due_ms) {
    unsigned char e[DQ_HEAD_MAX];
    int old = q->options.wire == DELAYQ_REDISSON_OLD;
    dq_head(q, m->id, 0, e);
    dq_ticket(&m->ticket, due_ms, e, old ? DQ_KIND_OLD : 16);
}

static delayq_status dq_twice(delayq *q) {
    return dq_fail(q, DELAYQ_ERR_UNKNOWN,
                   "offer: sent twice, and due before it could be told "
                   "whether the first arrived");
}

/* Of messages that were sent again, what the reply says. */
static delayq_status dq_offered_again(delayq *q, const dq_call *call,
                                      delayq_message *m) {
    redisReply *const *r = call->reply->element;
    delayq_status status = DELAYQ_OK;
    size_t i;
    for (i = 1; i + 1 < call->reply->elements; i += 2) {
        int64_t number, due_ms;
        if (!dq_numbers(r[i], &number, 1) || number < 1 ||
            number > (int64_t)call->max) {
            for (i = 0; i < call->max; i++) m[i].status = DELAYQ_ERR_PROTOCOL;
            return dq_bad_reply(q, "offer");
        }
        if (dq_numbers(r[i + 1], &due_ms, 1)) {
            dq_message_ticket(q, &m[number - 1], due_ms);
        } else {
            status = m[number - 1].status = DELAYQ_ERR_UNKNOWN;
            dq_twice(q);
        }
    }
    return status;
}

/* A message that may have been stored stays so until the server answers. */
static void dq_say(delayq_message *m, delayq_status status) {
    if (status == DELAYQ_OK || m->status != DELAYQ_ERR_UNKNOWN)
        m->status = status;
}

/* What became of messages without keys, which went in one script. */
static delayq_status dq_offered(delayq *q, dq_call *call) {
    delayq_message *m = call->messages;
    int64_t us;
    delayq_status status = dq_reply_numbers(q, call, &us, 1);
    size_t i;
    for (i = 0; i < call->max; i++) dq_say(&m[i], status);
    if (status != DELAYQ_OK) return status;
    for (i = 0; i < call->max; i++) {
        int64_t due =
            m[i].due_ms > 0 ? m[i].due_ms : (us + 999) / 1000 + m[i].delay_ms;
        if (due > DQ_MAX_DUE) due = DQ_MAX_DUE; /* a server that lies */
        dq_message_ticket(q, &m[i], due);
        dq_wake_by(q, due * 1000 - dq_link(q)->server_us);
    }
    q->counts.offered += call->max;
    return dq_offered_again(q, call, m);
}

/* What became of a message that has a key. */
static delayq_status dq_offered_once(delayq *q, dq_call *call) {
    delayq_message *m = call->messages;
    const redisReply *ticket;
    int64_t n[3];
    delayq_status status = dq_reply_numbers(q, call, n, 3);
    dq_say(m, status);
    if (status != DELAYQ_OK) return status;
    ticket = call->reply->elements == 2 ? call->reply->element[1] : NULL;
    if (!ticket || ticket->type != REDIS_REPLY_STRING ||
        ticket->len >= sizeof m->ticket.text) {
        status = dq_bad_reply(q, "offer");
    } else if (n[1] == 2) {
        status = dq_twice(q);
    } else {
        memcpy(m->ticket.text, ticket->str, ticket->len + 1);
        status = n[1] == 0 ? DELAYQ_OK : DELAYQ_DUPLICATE;
        q->counts.offered += n[1] == 0;
        dq_wake_by(q, n[2] * 1000 - dq_link(q)->server_us);
    }
    return m->status = status;
}

static const char *dq_bad_message(const delayq *q, const delayq_message *m) {
    size_t klen = m->key ? strlen(m->key) : 0;
    if (!m->data && m->len > 0) return "data is NULL";
    if (m->delay_ms < 0) return "delay_ms is negative";
    if (m->due_ms < 0) return "due_ms is negative";
    if (m->delay_ms > DQ_MAX_DUE - 1000 - dq_server_ms(q))
        return "delay_ms: due past 2^53 ms";
    if (m->due_ms > DQ_MAX_DUE - 1000) return "due_ms is past 2^53 ms";
    if (m->key && (klen < 1 || klen > 256)) return "key: 1 to 256 bytes";
    if (m->key && m->key_ttl_ms <= 0) return "a key needs a key_ttl_ms above 0";
    if (m->key && m->key_ttl_ms > DQ_MAX_DUE / 4) return "key_ttl_ms: too long";
    return NULL;
}

/* An id, unless it keeps the one of a sending whose outcome is unknown. */
static delayq_status dq_prepare(delayq *q, delayq_message *m) {
    const char *wrong = dq_bad_message(q, m);
    if (wrong) {
        dq_say(m, DELAYQ_ERR_ARG);
        return dq_fail(q, DELAYQ_ERR_ARG, "%s", wrong);
    }
    if (m->status == DELAYQ_ERR_UNKNOWN && m->not_after_ms > 0)
        return DELAYQ_OK;
    m->status = DELAYQ_OK;
    m->not_after_ms = m->due_ms > 0 ? m->due_ms : dq_server_ms(q) + m->delay_ms;
    dq_next_id(q, m->id);
    dq_message_ticket(q, m, m->not_after_ms);
    return DELAYQ_OK;
}

/* Begin a call that offers this message, and perhaps those behind it. */
static void dq_begin_offer(const delayq *q, dq_call *call, delayq_message *m) {
    size_t mirror = q->options.wire != DELAYQ_NATIVE;
    if (m->key)
        dq_begin_call(call, DQ_ONCE, "offer", 2 + mirror, 6, dq_write_once);
    else
        dq_begin_call(call, DQ_OFFER, "offer", 1 + mirror, 1, dq_write_offer);
    call->harmless = 1;
    call->messages = m;
}

/* Make calls of what goes in one go, and leave out what is bad: messages
 * without a key that stand side by side are one call. Returns how many
 * messages were looked at. */
static size_t dq_plan(delayq *q, delayq_message *m, size_t count,
                      dq_call *calls, size_t *n, int *bad) {
    size_t at, bytes = 0, sum = 0;
    dq_call *call = NULL;
    *n = 0;
    *bad = 0;
    for (at = 0; at < count; at++) {
        int joins = call && call->verb == DQ_OFFER && !m[at].key &&
                    call->messages + call->max == &m[at] &&
                    call->max < DQ_OFFER_MAX && bytes < DQ_OFFER_BYTES;
        if (!joins && (*n == DQ_PIPE || sum >= DQ_OFFER_BYTES)) break;
        if (dq_prepare(q, &m[at]) != DELAYQ_OK) {
            *bad = 1;
            continue;
        }
        if (!joins) {
            call = &calls[(*n)++];
            dq_begin_offer(q, call, &m[at]);
            bytes = 0;
        }
        call->max++;
        if (call->verb == DQ_OFFER) call->args += 2;
        bytes += m[at].len;
        sum += m[at].len;
    }
    return at;
}

/* Offer some, as many as go in one go; *all: the first failure so far. Returns
 * how many, and in *rest what is to be said of those that follow. */
static size_t dq_offer_some(delayq *q, delayq_message *m, size_t count,
                            delayq_status *all, delayq_status *rest) {
    dq_call calls[DQ_PIPE];
    size_t n, i, done;
    int bad;
    q->limit_us = 0; /* each go has its time */
    done = dq_plan(q, m, count, calls, &n, &bad);
    dq_run_all(q, calls, n);
    for (i = 0; i < n; i++) {
        delayq_status status = calls[i].verb == DQ_ONCE
                                   ? dq_offered_once(q, &calls[i])
                                   : dq_offered(q, &calls[i]);
        if (calls[i].reply) freeReplyObject(calls[i].reply);
        if (status >= DELAYQ_OK) continue;
        if (*all == DELAYQ_OK) *all = status;
        if (status != DELAYQ_ERR_UNKNOWN || !dq_link(q)->cmd) *rest = status;
    }
    if (bad && *all == DELAYQ_OK) *all = DELAYQ_ERR_ARG;
    /* they were not sent */
    if (*rest == DELAYQ_ERR_UNKNOWN || *rest == DELAYQ_ERR_PROTOCOL)
        *rest = DELAYQ_ERR_IO;
    return done;
}

DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count) {
    delayq_status all = dq_check(q, messages || count == 0, "messages is NULL");
    delayq_status rest;
    size_t at = 0;
    if (all == DELAYQ_OK) all = dq_ready(q);
    rest = all;
    while (at < count && rest == DELAYQ_OK)
        at += dq_offer_some(q, messages + at, count - at, &all, &rest);
    for (; messages && at < count; at++) dq_say(&messages[at], rest);
    return all;
}

DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms) {
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = data;
    m.len = len;
    m.delay_ms = delay_ms;
    return delayq_offer_many(q, &m, 1);
}

DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms) {
    delayq_status status = dq_check(q, 1, "");
    int64_t now, left;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    status = dq_tick_step(q);
    if (!wait_ms) return status;
    now = dq_now();
    left = (dq_next_us(q) - now + 999) / 1000;
    if (dq_link(q)->cmd && !dq_link(q)->ear && now >= dq_link(q)->ear_retry_us)
        left = 0;
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_WIRE)
        left = q->options.max_wait_ms;
    *wait_ms = left < 0                        ? 0
               : left > q->options.max_wait_ms ? q->options.max_wait_ms
                                               : left;
    return status;
}

/* Give up the place in the line: a take of nothing. What it says is the
 * handle's state; its failure is nobody's, since the others help themselves. */
static void dq_step_out(delayq *q) {
    char err[sizeof q->err];
    size_t count = 0;
    q->joins = 0;
    if (q->place == 0) return;
    memcpy(err, q->err, sizeof err);
    q->limit_us = 0;
    dq_forget(q);
    if (dq_link(q)->cmd) dq_ask(q, NULL, 0, &count, NULL, NULL);
    dq_forget(q);
    if (q->place > 0) q->wake_us = dq_now();
    q->place = 0;
    memcpy(q->err, err, sizeof err);
}

/* Take until something comes, the timeout is over, or wake was called. */
static delayq_status dq_take_for(delayq *q, dq_taking *t, int64_t timeout_ms) {
    int64_t deadline = dq_deadline(timeout_ms);
    int ack = t->ack.ticket.text[0] != '\0', lost = 0;
    delayq_status status;
    for (;;) {
        /* The ack in hand goes first: it is not to be lost to a wake. */
        if (timeout_ms != 0 && !t->ack.ticket.text[0] && dq_woken(q))
            return DELAYQ_WOKEN;
        status = dq_take_turn(q, t, timeout_ms != 0 || q->polls > 0);
        if (status != DELAYQ_EMPTY) q->polls = 0;
        if (timeout_ms == 0 && status == DELAYQ_EMPTY) q->polls = 1;
        if (status != DELAYQ_EMPTY && !dq_passing(status)) break;
        lost |= status == DELAYQ_ERR_UNKNOWN;
        if (timeout_ms == 0 || dq_now() >= deadline) break;
        dq_forget(q);
        if (status != DELAYQ_EMPTY) dq_ride_out(q, status);
        if (ack && dq_woken(q)) { /* not settled: the fault counts */
            if (!t->ack.ticket.text[0]) status = DELAYQ_WOKEN;
            break;
        }
        if (q->ready == 0 || status != DELAYQ_EMPTY) dq_sleep(&q, 1, deadline);
    }
    /* What an answer that was lost had handed out is not forgotten. */
    return lost && dq_passing(status) ? DELAYQ_ERR_UNKNOWN : status;
}

static delayq_status dq_take(delayq *q, dq_taking *t, int64_t timeout_ms) {
    delayq_status status;
    if (timeout_ms != 0 && q->pid != (int64_t)getpid()) return dq_ready(q);
    dq_forget(q);
    q->joins =
        (timeout_ms < 0 || timeout_ms >= DQ_LINE_MS) && !q->options.broadcast;
    status = dq_take_for(q, t, timeout_ms);
    if (status != DELAYQ_OK) dq_step_out(q);
    q->joins = 0;
    return status;
}

DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms) {
    delayq_status status =
        dq_check(q, items && count, "items or count is NULL");
    dq_taking t;
    if (status == DELAYQ_OK)
        status = dq_check(q, max >= 1 && max <= 10000, "max: 1 to 10,000");
    if (status == DELAYQ_OK)
        status =
            dq_check(q, timeout_ms >= DELAYQ_FOREVER, "timeout_ms is below -1");
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    memset(&t, 0, sizeof t);
    t.items = items;
    t.max = max;
    status = dq_take(q, &t, timeout_ms);
    if (status == DELAYQ_OK) *count = t.count;
    return status;
}

DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms) {
    size_t count;
    delayq_status status = dq_check(q, item != NULL, "item is NULL");
    if (status != DELAYQ_OK) return status;
    memset(item, 0, sizeof *item);
    return delayq_take_many(q, item, 1, &count, timeout_ms);
}

/* --- what is done with a lease, by its ticket --- */

static delayq_status dq_check_ticket(delayq *q, const char *text) {
    delayq_status status = dq_check(q, text != NULL, "no item or ticket");
    if (status != DELAYQ_OK) return status;
    return dq_check(q, dq_is_ticket(text),
                    "the ticket is none: an item that was taken without a "
                    "lease, or of a broadcast, has nothing to acknowledge");
}

static const char *dq_text_of(const delayq_item *item) {
    return item ? item->ticket.text : NULL;
}

static void dq_write_drop(dq_out *o, delayq *q, const dq_call *call) {
    size_t i;
    dq_key(o, q, DQ_ZSET);
    if (call->keys == 2) dq_key(o, q, DQ_MIRROR);
    if (call->ticket) dq_write_ticket(o, call->ticket);
    for (i = 0; !call->ticket && i < call->max; i++)
        dq_write_ticket(o, call->items[i].ticket.text);
}

static const redisReply *dq_flags(const dq_call *call, size_t count) {
    const redisReply *r =
        call->reply->elements == 2 ? call->reply->element[1] : NULL;
    return r && r->type == REDIS_REPLY_STRING && r->len == count &&
                   strspn(r->str, "01") == count
               ? r
               : NULL;
}

/* Remove one element: an ack, or with a mirror to clean, a cancel. */
static delayq_status dq_remove(delayq *q, const char *ticket, int mirror,
                               const char *what) {
    const redisReply *flags;
    delayq_status status;
    int64_t us;
    dq_call call;
    dq_begin_call(&call, DQ_DROP, what, mirror ? 2 : 1, 2, dq_write_drop);
    call.harmless = 1;
    call.ticket = ticket;
    status = dq_run_numbers(q, &call, &us, 1);
    if (status != DELAYQ_OK) return status;
    flags = dq_flags(&call, 1);
    status = flags ? dq_acked(q, &call, flags->str[0] == '1')
                   : dq_bad_reply(q, what);
    freeReplyObject(call.reply);
    return status;
}

DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item) {
    delayq_status status = dq_check_ticket(q, dq_text_of(item));
    if (status != DELAYQ_OK) return status;
    return dq_remove(q, item->ticket.text, 0, "ack");
}

DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket) {
    int mirror = q && q->options.wire != DELAYQ_NATIVE;
    delayq_status status = dq_check_ticket(q, ticket ? ticket->text : NULL);
    if (status != DELAYQ_OK) return status;
    status = dq_remove(q, ticket->text, mirror, "cancel");
    if (status == DELAYQ_OK) q->counts.acked--; /* counted as an ack */
    return status;
}

#define DQ_ACK_MAX 500

static delayq_status dq_ack_some(delayq *q, delayq_item *items, size_t count) {
    const redisReply *flags;
    delayq_status status;
    int64_t us;
    size_t i;
    dq_call call;
    dq_begin_call(&call, DQ_DROP, "ack", 1, 2 * count, dq_write_drop);
    call.harmless = 1;
    call.items = items;
    call.max = count;
    status = dq_run_numbers(q, &call, &us, 1);
    if (status == DELAYQ_OK) {
        flags = dq_flags(&call, count);
        if (!flags) status = dq_bad_reply(q, "ack");
        for (i = 0; flags && i < count; i++) {
            items[i].acked = dq_acked(q, &call, flags->str[i] == '1');
            if (status == DELAYQ_OK) status = items[i].acked;
        }
        freeReplyObject(call.reply);
        if (flags) return status;
    }
    for (i = 0; i < count; i++) items[i].acked = status;
    return status;
}

DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count) {
    delayq_status all = dq_check(q, items || count == 0, "items is NULL");
    size_t i, n;
    if (all == DELAYQ_OK && q->options.broadcast)
        all = dq_fail(q, DELAYQ_ERR_ARG, "a broadcast has nothing to ack");
    for (i = 0; all == DELAYQ_OK && i < count; i++)
        all = dq_check_ticket(q, items[i].ticket.text);
    for (i = 0; items && i < count; i++) items[i].acked = all;
    if (all != DELAYQ_OK) return all;
    for (i = 0; i < count; i += n) {
        delayq_status status;
        n = count - i < DQ_ACK_MAX ? count - i : DQ_ACK_MAX;
        status = dq_ack_some(q, items + i, n);
        if (all == DELAYQ_OK) all = status;
        if (status >= DELAYQ_OK) continue;
        if (status == DELAYQ_ERR_UNKNOWN && dq_link(q)->cmd) continue;
        if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL)
            status = DELAYQ_ERR_IO; /* the rest was not sent */
        for (i += n; i < count; i++) items[i].acked = status;
        break;
    }
    return all;
}

DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms) {
    delayq_status status = dq_check(q, item != NULL, "item is NULL");
    dq_taking t;
    if (status == DELAYQ_OK && item->ticket.text[0])
        status =
            q->options.broadcast
                ? dq_fail(q, DELAYQ_ERR_ARG, "a broadcast has nothing to ack")
                : dq_check_ticket(q, item->ticket.text);
    if (status == DELAYQ_OK)
        status =
            dq_check(q, timeout_ms >= DELAYQ_FOREVER, "timeout_ms is below -1");
    if (status != DELAYQ_OK) {
        if (item) item->acked = status;
        return status;
    }
    memset(&t, 0, sizeof t);
    t.ack = *item;
    t.ack.data = NULL; /* it ends here */
    t.ack.len = 0;
    t.items = item;
    t.max = 1;
    memset(item, 0, sizeof *item);
    status = dq_take(q, &t, timeout_ms);
    if (t.ack.ticket.text[0]) *item = t.ack; /* not settled: still in hand */
    item->acked = t.acked;
    return status;
}

static void dq_write_change(dq_out *o, delayq *q, const dq_call *call) {
    dq_key(o, q, DQ_ZSET);
    if (call->keys == 2) dq_key(o, q, DQ_DEAD);
    dq_write_ticket(o, call->ticket);
    dq_number(o, call->due_ms);
    dq_key(o, q, DQ_CHANNEL);
    dq_text(o, call->less ? "1" : "0");
    dq_text(o, call->again ? "1" : "0");
    dq_number(o, call->from);
}

/* Nack, extend, reschedule; bury where due_ms is negative. The new due time is
 * absolute, so that sending it twice does no harm. *stands: as it is now. */
static delayq_status dq_change(delayq *q, const char *ticket, int64_t delay_ms,
                               int less, const char *what, int64_t *stands) {
    delayq_status status = dq_ready(q);
    int bury = delay_ms < 0;
    int64_t n[3];
    dq_call call;
    if (status != DELAYQ_OK) return status;
    dq_begin_call(&call, DQ_CHANGE, what, bury ? 2 : 1, 7, dq_write_change);
    call.harmless = 1;
    call.ticket = ticket;
    call.from = bury ? 0 : delay_ms;
    call.due_ms = dq_due_in(q, call.from);
    call.less = less;
    status = dq_run_numbers(q, &call, n, 3);
    if (status != DELAYQ_OK) return status;
    freeReplyObject(call.reply);
    if (n[1] != 1) return dq_acked(q, &call, 0);
    if (stands) *stands = n[2];
    if (!bury) dq_wake_by(q, n[2] * 1000 - dq_link(q)->server_us);
    return DELAYQ_OK;
}

/* The back-off after so many attempts, half of it at random. An item that only
 * has a ticket has the count that stands in it. */
static int64_t dq_nack_delay(const delayq *q, const delayq_item *item) {
    unsigned char key[DQ_KEY_MAX];
    size_t len;
    int attempt = item->attempt;
    unsigned failures;
    if (attempt < 1 && dq_ticket_key(item->ticket.text, key, &len) == 17)
        attempt = (int)dq_get_uint(key + 15, 2, 1);
    failures = attempt < 1 ? 1 : attempt > 60 ? 60 : (unsigned)attempt;
    return dq_backoff(q->options.backoff_ms, q->options.backoff_max_ms,
                      failures);
}

DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms) {
    delayq_status status = dq_check_ticket(q, dq_text_of(item));
    int release = delay_ms == DELAYQ_RELEASE;
    if (status == DELAYQ_OK)
        status = dq_check(
            q, delay_ms >= DELAYQ_RELEASE && delay_ms <= DQ_MAX_DUE / 4,
            "delay_ms: not negative, DELAYQ_BACKOFF or DELAYQ_RELEASE");
    if (status != DELAYQ_OK) return status;
    if (delay_ms == DELAYQ_BACKOFF) delay_ms = dq_nack_delay(q, item);
    status = dq_change(q, item->ticket.text, release ? 0 : delay_ms, release,
                       "nack", NULL);
    if (status == DELAYQ_OK) q->counts.nacked++;
    return status;
}

DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item) {
    delayq_status status = dq_check_ticket(q, dq_text_of(item));
    if (status != DELAYQ_OK) return status;
    status = dq_change(q, item->ticket.text, -1, 0, "bury", NULL);
    if (status == DELAYQ_OK) q->counts.died++;
    return status;
}

/* A ticket's due time moves; its id stays. */
static delayq_status dq_move_ticket(delayq *q, delayq_ticket *ticket,
                                    int64_t delay_ms, const char *what) {
    int64_t due_ms = 0;
    char id[40], *dash;
    delayq_status status =
        dq_change(q, ticket->text, delay_ms, 0, what, &due_ms);
    if (status != DELAYQ_OK) return status;
    dash = strchr(ticket->text, '-');
    snprintf(id, sizeof id, "%s", dash);
    memcpy(ticket->text + dq_decimal(ticket->text, due_ms), id, strlen(id) + 1);
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms) {
    delayq_status status = dq_check_ticket(q, dq_text_of(item));
    if (status == DELAYQ_OK && lease_ms == 0) lease_ms = q->options.lease_ms;
    if (status == DELAYQ_OK)
        status = dq_check(q, lease_ms > 0 && lease_ms <= DQ_MAX_DUE / 4,
                          "lease_ms: above 0, or the handle has a lease");
    if (status != DELAYQ_OK) return status;
    return dq_move_ticket(q, &item->ticket, lease_ms, "extend");
}

DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms) {
    delayq_status status = dq_check_ticket(q, ticket ? ticket->text : NULL);
    if (status == DELAYQ_OK)
        status = dq_check(q, delay_ms >= 0 && delay_ms <= DQ_MAX_DUE / 4,
                          "delay_ms is negative or too long");
    if (status != DELAYQ_OK) return status;
    return dq_move_ticket(q, ticket, delay_ms, "reschedule");
}

/* --- looking and clearing --- */

static void dq_write_peek(dq_out *o, delayq *q, const dq_call *call) {
    dq_key(o, q, DQ_ZSET);
    dq_number(o, (int64_t)call->max);
    if (call->ticket) {
        dq_write_ticket(o, call->ticket);
    } else {
        dq_text(o, "");
        dq_text(o, "");
    }
}

static int dq_peeked(delayq *q, delayq_item *item, const redisReply *due,
                     const redisReply *bytes) {
    const unsigned char *e = (const unsigned char *)bytes->str;
    size_t at = 0;
    int kind;
    if (due->type != REDIS_REPLY_STRING || bytes->type != REDIS_REPLY_STRING)
        return 0;
    memset(item, 0, sizeof *item);
    kind = dq_split(e, bytes->len, dq_link(q)->long_big, &at);
    if (kind < 0) at = 0;
    item->data = e + at;
    item->len = bytes->len - at;
    item->due_ms = dq_score(due->str);
    item->late_us = -1;
    if (kind == 16) item->attempt = (int)dq_get_uint(e + 15, 2, 1);
    if (kind >= 0) dq_ticket(&item->ticket, item->due_ms, e, kind);
    return 1;
}

DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count,
                                     const delayq_ticket *after) {
    delayq_status status = dq_check(q, items && count && max > 0,
                                    "items or count is NULL, or max is 0");
    int64_t us;
    size_t i;
    dq_call call;
    if (count) *count = 0;
    if (status == DELAYQ_OK && after && after->text[0])
        status = dq_check(q, dq_is_ticket(after->text), "after: no ticket");
    if (status != DELAYQ_OK) return status;
    dq_forget(q);
    dq_begin_call(&call, DQ_PEEK, "peek", 1, 3, dq_write_peek);
    call.reads = 1;
    call.max = max < 100000 ? max : 100000;
    call.ticket = after && after->text[0] ? after->text : NULL;
    status = dq_run_numbers(q, &call, &us, 1);
    if (status != DELAYQ_OK) return status;
    q->reply = call.reply;
    *count = (call.reply->elements - 1) / 2;
    for (i = 0; i < *count && i < max; i++)
        if (!dq_peeked(q, &items[i], call.reply->element[2 * i + 1],
                       call.reply->element[2 * i + 2]))
            break;
    if (i < *count) *count = max + 1;
    if (*count <= max) return *count > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
    *count = 0;
    return dq_bad_reply(q, "peek");
}

static void dq_write_count(dq_out *o, delayq *q, const dq_call *call) {
    size_t i;
    dq_write_keys(o, q, call->keys);
    dq_text(o, dq_wire_letter(q));
    for (i = 0; i < call->max; i++) dq_number(o, call->times[i]);
}

static delayq_status dq_run_count(delayq *q, dq_call *call,
                                  const int64_t *times, size_t max,
                                  int64_t n[6]) {
    dq_begin_call(call, DQ_COUNT, "count", 4, 1 + max, dq_write_count);
    call->reads = 1;
    call->times = times;
    call->max = max;
    return dq_run_numbers(q, call, n, 6);
}

DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts) {
    delayq_status status = dq_check(q, counts != NULL, "counts is NULL");
    int64_t n[6];
    dq_call call;
    if (status != DELAYQ_OK) return status;
    *counts = q->counts;
    status = dq_run_count(q, &call, NULL, 0, n);
    if (status != DELAYQ_OK) return status;
    freeReplyObject(call.reply);
    counts->pending = n[1];
    counts->overdue = n[2];
    counts->ready = n[3];
    counts->dead = n[4];
    counts->next_due_ms = n[5] < 0 ? 0 : n[5];
    counts->now_ms = n[0] / 1000;
    if (n[2] > 0 && counts->now_ms > n[5])
        counts->overdue_ms = counts->now_ms - n[5];
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts) {
    delayq_status status =
        dq_check(q, due_ms && counts, "due_ms or counts is NULL");
    int64_t head[6];
    size_t i;
    dq_call call;
    if (status == DELAYQ_OK)
        status = dq_check(q, n >= 1 && n <= 1000, "n: 1 to 1,000");
    if (status != DELAYQ_OK) return status;
    status = dq_run_count(q, &call, due_ms, n, head);
    if (status != DELAYQ_OK) return status;
    for (i = 0; i < n && call.reply->elements == n + 1; i++) {
        const redisReply *r = call.reply->element[i + 1];
        if (r->type != REDIS_REPLY_INTEGER) break;
        counts[i] = r->integer;
    }
    freeReplyObject(call.reply);
    return i == n ? DELAYQ_OK : dq_bad_reply(q, "count");
}

static delayq_status dq_removed(delayq *q, dq_call *call, int64_t *removed) {
    int64_t n[2];
    delayq_status status = dq_run_numbers(q, call, n, 2);
    if (removed) *removed = status == DELAYQ_OK ? n[1] : 0;
    if (status == DELAYQ_OK) freeReplyObject(call->reply);
    return status;
}

static void dq_write_clear(dq_out *o, delayq *q, const dq_call *call) {
    dq_write_keys(o, q, call->keys);
    dq_text(o, dq_wire_letter(q));
}

DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed) {
    delayq_status status = dq_check(q, 1, "");
    dq_call call;
    if (status != DELAYQ_OK) return status;
    dq_begin_call(&call, DQ_CLEAR, "clear", 3, 1, dq_write_clear);
    return dq_removed(q, &call, removed);
}

static void dq_write_dead(dq_out *o, delayq *q, const dq_call *call) {
    dq_key(o, q, DQ_DEAD);
    if (call->keys == 2) dq_arg(o, q->name, q->name_len);
    dq_text(o, call->word);
    dq_number(o, (int64_t)call->max);
    dq_number(o, call->from);
}

static void dq_begin_dead(dq_call *call, const char *word, size_t max) {
    int redrive = word[0] == 'r';
    dq_begin_call(call, DQ_DEADS, "dead letters", redrive ? 2 : 1, 3,
                  dq_write_dead);
    call->word = word;
    call->max = max < 1000000 ? max : 1000000;
}

/* "reason time\n", then the element. */
static int dq_dead_letter(const delayq *q, delayq_dead *d,
                          const redisReply *r) {
    const char *space, *line;
    size_t at = 0, n;
    int kind;
    memset(d, 0, sizeof *d);
    if (r->type != REDIS_REPLY_STRING) return 0;
    d->data = r->str;
    d->len = r->len;
    snprintf(d->reason, sizeof d->reason, "undecodable");
    line = (const char *)memchr(r->str, '\n', r->len);
    space = line ? (const char *)memchr(r->str, ' ', (size_t)(line - r->str))
                 : NULL;
    if (!space || space - r->str >= (ptrdiff_t)sizeof d->reason) return 1;
    memcpy(d->reason, r->str, (size_t)(space - r->str));
    d->reason[space - r->str] = '\0';
    d->dead_ms = dq_score(space + 1);
    line++;
    n = r->len - (size_t)(line - r->str);
    kind = dq_split((const unsigned char *)line, n, dq_link(q)->long_big, &at);
    if (kind < 0) at = 0;
    if (kind == 16)
        d->attempt = (int)dq_get_uint((const unsigned char *)line + 15, 2, 1);
    d->data = line + at;
    d->len = n - at;
    return 1;
}

DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from) {
    delayq_status status = dq_check(q, letters && count && max > 0,
                                    "letters or count is NULL, or max is 0");
    int64_t n[2];
    size_t i;
    dq_call call;
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_forget(q);
    dq_begin_dead(&call, "peek", max);
    call.reads = 1;
    call.from = from < INT32_MAX ? (int64_t)from : INT32_MAX;
    status = dq_run_numbers(q, &call, n, 2);
    if (status != DELAYQ_OK) return status;
    q->reply = call.reply;
    if (call.reply->elements - 1 > max) return dq_bad_reply(q, "dead letters");
    for (i = 0; i + 1 < call.reply->elements; i++)
        if (!dq_dead_letter(q, &letters[i], call.reply->element[i + 1]))
            return dq_bad_reply(q, "dead letters");
    *count = call.reply->elements - 1;
    return *count > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

DELAYQ_API delayq_status delayq_dead_redrive(delayq *q, size_t max,
                                             size_t *count) {
    delayq_status status = dq_check(q, 1, "");
    int64_t n = 0;
    dq_call call;
    if (count) *count = 0;
    if (status == DELAYQ_OK)
        status = dq_check(q, !q->options.broadcast,
                          "a broadcast has no ready list to redrive to");
    if (status != DELAYQ_OK) return status;
    dq_begin_dead(&call, "redrive", max);
    status = dq_removed(q, &call, &n);
    if (count) *count = (size_t)n;
    if (n > 0) q->ready += n;
    return status;
}

DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed) {
    delayq_status status = dq_check(q, 1, "");
    dq_call call;
    if (status != DELAYQ_OK) return status;
    dq_begin_dead(&call, "clear", 1);
    return dq_removed(q, &call, removed);
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
    size_t i, links = 0;
    if (!queues || count < 1 || !queues[0]) return DELAYQ_ERR_ARG;
    for (i = 0; i < count; i++) {
        delayq_status status = dq_check(queues[i], timeout_ms >= DELAYQ_FOREVER,
                                        "timeout_ms is below -1");
        if (status != DELAYQ_OK) return status;
        if (queues[i]->pid != (int64_t)getpid()) return dq_ready(queues[i]);
        links += !dq_seen_link(queues, i);
        if (links > DQ_MAX_LINKS)
            return dq_fail(queues[i], DELAYQ_ERR_ARG,
                           "wait: more than 20 connections");
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
    if (!q || q->open != DQ_OPEN || q->orphan) return;
    if (q->pid != (int64_t)getpid()) return; /* the parent's pipe */
    DQ_STORE(&q->woken, 1);
    /* A full pipe has been written to before, which is as good. */
    if (write(dq_link(q)->pipe[1], "w", 1) < 0) {
    }
    errno = saved;
}

DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = 0;
    if (!q || q->open != DQ_OPEN || q->orphan || !fds) return 0;
    if (n < max) fds[n++] = dq_link(q)->pipe[0];
    if (n < max && dq_link(q)->ear) fds[n++] = dq_link(q)->ear->fd;
    return n;
}

DELAYQ_API const char *delayq_errmsg(const delayq *q) {
    return q ? q->err : "";
}

DELAYQ_API const char *delayq_strstatus(delayq_status status) {
    switch (status) {
    case DELAYQ_OK: return "done";
    case DELAYQ_EMPTY: return "nothing to take";
    case DELAYQ_GONE: return "the ticket no longer fits";
    case DELAYQ_DUPLICATE: return "the key is taken";
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
