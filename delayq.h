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
 *
 * and in the implementation, from the ground up:
 *
 *     >>system         clock, random bytes, SIGPIPE, sockets, the pipe
 *     >>numbers        numbers as text, in hex, in a back-off
 *     >>elements       every byte of an element
 *     >>errors-inside  statuses, what server errors mean, error texts
 *     >>url            the URL
 *     >>tls            TLS
 *     >>scripts        what runs in the server
 *     >>protocol       writing requests, reading replies
 *     >>schedule       when the server is asked next
 *     >>waiters        which of the handles that wait on a queue acts
 *     >>connections    dialing, login, probe, redirections, back-off
 *     >>requests       sending scripts, one retry policy
 *     >>subscriber     the connection that only listens
 *     >>taking         transfers and takes
 *     >>waiting        the only place that sleeps until there are items
 *     >>verbs          the functions of the API
 *
 * >>start -- quick start
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     static void tell(void *user, delayq_status status, const char *text) {
 *         (void)user, (void)status;
 *         fprintf(stderr, "%s\n", text);
 *     }
 *
 *     int main(void) {
 *         static delayq q;
 *         delayq_options options = {0};
 *         delayq_item item;
 *
 *         options.name = "jobs";
 *         options.url = getenv("DELAYQ_URL");  (NULL: 127.0.0.1:6379)
 *         options.log = tell;                  (faults that the take waits out)
 *         if (delayq_open(&q, &options) == DELAYQ_OK &&
 *             delayq_offer(&q, "hello", 5, 5000) == DELAYQ_OK)  (due in 5 s)
 *             while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
 *                 printf("%.*s\n", (int)item.len, (const char *)item.data);
 *         fprintf(stderr, "%s\n", delayq_errmsg(&q));  (only a failure ends it)
 *         delayq_close(&q);
 *         return 1;
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
 * With options.lease_ms a take only lends the item:
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
 * Pending items lie in a sorted set, ordered by due time; ready items lie in a
 * list. The transfer, which every tick and take runs, moves what is due from
 * the set to the list. A take that finds the list empty takes what is due
 * straight from the set.
 *
 * A lease puts the item back into the set, due at the end of the lease, with
 * its attempt count raised by one. An ack removes it from there; a nack or an
 * extend changes its due time. So the items of a consumer that has crashed
 * fall due again by themselves; no other process has to look for them.
 *
 * >>promises -- what is guaranteed, and what isn't
 *
 *                    lease_ms = 0                lease_ms > 0
 *     delivery       at most once: a take        at least once: handlers
 *                    removes the item            must be idempotent
 *     crash          what a consumer had taken   delivered again after the
 *                    is gone                     lease
 *     order          by due time, then offer     the same; redeliveries take
 *                                                turns with the rest
 *     early          never by the server's clock; nor measured from the offer,
 *                    unless somebody sets the server's clock forward meanwhile
 *
 * Each move is one script. If the server refuses it (memory full, a command
 * that the ACL forbids, a key of another type) the items stay where they are.
 * A full server still delivers, acks, nacks and extends.
 *
 * Items are lost in no other way than these, and by what Redis itself loses:
 * see its persistence settings, and its asynchronous replication at a
 * failover. If the server restarts from an older state, items taken or acked
 * since then are delivered again, even without a lease.
 *
 * Where Redisson moves items of the queue too, three things are weaker: a
 * lease ends by the fastest Java clock; attempts are counted anew whenever
 * Java has moved the item (so max_attempts is refused); and a crashed
 * consumer's item may be delivered to Java.
 *
 * >>keys -- what lies in Redis
 *
 * For a queue named N, T is N itself if N contains a '{', else {N}:
 *
 *     N                               list   ready payloads, tail to head
 *     redisson_delay_queue_timeout:T  zset   pending and leased elements, by
 *                                            due time in ms
 *     redisson_delay_queue:T          list   Redisson's mirror: the pending
 *                                            elements by offer; only with a
 *                                            Redisson wire
 *     redisson_delay_queue_channel:T  channel  the new earliest due time
 *     delayq_retry:T                  list   native: elements with an attempt
 *                                            count that are ready again
 *     delayq_dead:T                   list   "reason time\n", then the element
 *     delayq_once:T:LEN:KEY           string with a TTL: the ticket of what
 *                                            was offered under KEY. Eviction
 *                                            (volatile-*) may drop it early
 *     delayq_waiters:T                zset   handles that wait in a take, and
 *                                            the channel that calls all of them
 *     delayq_turn:T:HANDLE            channel  tells one of them to lead
 *     delayq_stream:T                 stream, trimmed: a broadcast's items
 *
 * The first four are the keys, the bytes and the channel of Redisson's
 * RDelayedQueue over an RBlockingQueue: Java programs can offer to and take
 * from the same queue. options.wire says for which Redisson; all handles on a
 * queue use the same wire.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts: a device without a clock, or with a wrong
 * one, can offer and take. Due times are whole milliseconds since the epoch,
 * rounded up.
 *
 * Nothing ever blocks on the server; the handle waits in poll(), sleeps for the
 * last fraction of a millisecond, and spends the last 80 us awake, because
 * sleepers are woken late. A handle that waits opens a second connection, the
 * subscriber, which is told of items that are due earlier and of payloads that
 * anybody pushes into N. It only saves time: without it the handle asks the
 * server every 250 ms; with it at least every max_wait_ms.
 *
 * Handles that wait in a take for 10 s or longer on one queue share the work.
 * One of them, the leader, keeps the exact timer. About 16 others, the
 * standbys, step in if the leader has not acted 0.3 to 0.6 s after something
 * was due or pushed. The rest sleep until the others are busy. So of a hundred
 * that wait few wake for an item, and one that waits alone pays nothing for
 * them.
 *
 * Waiting programs that die or freeze delay one item, once, by 1 s at most. The
 * exception: where more than 16 wait, and a fault hits the leader and every
 * standby, a sleeper finds the item, each of which looks every max_wait_ms.
 *
 * Beside idle Redisson consumers, the server serves their BLPOP first: there
 * is no fairness between them and delayq's.
 *
 * >>servers -- one server, Sentinel, a cluster, TLS
 *
 * If the URL names several hosts, they are tried in turn, each for its share
 * of connect_timeout_ms; replicas and nodes that are down are passed over.
 * redis+sentinel:// asks the sentinels, at each connect, where the master is.
 *
 * On a cluster one host is enough to begin with; redirections are followed.
 * All keys of a queue lie in one slot, so a name has either no '}' or one
 * whole, non-empty {tag}; other names are refused there. While the slot moves
 * to another node, offers without a key, acks, nacks, and takes of pending
 * items go on (native queues only); everything else returns DELAYQ_ERR_AGAIN
 * until it has arrived.
 *
 * A queue is one slot, and so one node's work. To spread a hot queue, open
 * several, "jobs{0}", "jobs{1}" ..., offer to them in turn, and wait for all
 * of them with delayq_wait.
 *
 * rediss:// checks that the server's certificate is valid and is the host's.
 *
 * >>threads -- blocking, threads, signals, fork
 *
 * A handle is used by one thread at a time, and only by the process that
 * opened it; open as many as you like. The exception is delayq_wake: any
 * thread or signal handler may call it. No signal disposition is changed, and
 * a lost connection raises no SIGPIPE.
 *
 * A call that asks the server blocks for io_timeout_ms at most, reconnecting
 * included, or for connect_timeout_ms if that is longer; a take or a wait for
 * its timeout on top. A host name in the URL is looked up by getaddrinfo,
 * which has no time limit: use an address where that matters.
 *
 * A connection that is dead without saying so (a frozen server, a lost
 * network) is noticed by the next request after io_timeout_ms, and by the
 * subscriber after 10 s and io_timeout_ms at most.
 *
 * >>errors -- errors and retries
 *
 * 0 is done, > 0 means that nothing went wrong but there is nothing to show,
 * < 0 is a failure. Only after DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL may
 * the effect have happened; after any other failure it has not. delayq_errmsg
 * has the sentence.
 *
 * A lost connection is replaced by itself: at once the first time, after a
 * failed attempt with a growing pause of up to 5 s, during which calls fail at
 * once. The only error that requires reopening the handle is DELAYQ_ERR_WIRE.
 *
 * >>limits -- limits
 *
 * Names have 1 to 512 bytes. Payloads have any bytes, as many as the server
 * takes (512 MB by default). Due times lie below 2^53 ms.
 *
 * A script moves or takes at most options.batch items and stops after 256 KiB
 * of payload, so it blocks the server for about 2 ms. A payload larger than
 * that is moved alone and blocks the server for some ms per MB; for twice as
 * long if the next item is as large and due within max_wait_ms.
 *
 * With a Redisson wire each script walks through the mirror list once: a few
 * ms per 100,000 pending items. One walk serves up to 100 items offered by
 * delayq, but only 1 to 3 offered by Java.
 *
 * The handle is plain memory of a few KB. A call needs up to 28 KB of stack,
 * most of it hiredis' read buffer. The library itself allocates nothing;
 * hiredis does.
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
#define DELAYQ_VERSION_MAJOR 0
#define DELAYQ_VERSION_MINOR 1
#define DELAYQ_VERSION_PATCH 0

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

/* Which programs share the queue. All its handles use the same. */
typedef enum delayq_wire {
    DELAYQ_NATIVE = 0,  /* C programs. Redisson >= 3.21.1 can move and take the
                           items, but its size(), contains() and so on don't
                           see what C has offered */
    DELAYQ_REDISSON,    /* a fleet with Redisson >= 3.21.1 */
    DELAYQ_REDISSON_OLD /* a fleet with Redisson <= 3.21.0 */
} delayq_wire;

typedef struct delayq delayq;

/* Zero means the default, in every field but name. The strings and hooks must
 * outlive the handle, except name, which is copied. */
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
    int max_attempts;       /* an item that has been handed out so often goes
                               to the dead letters at its next take; up to
                               65,535; default 0: never. Only with
                               DELAYQ_NATIVE */
    int64_t backoff_ms;     /* DELAYQ_BACKOFF after the first attempt, doubled
                               for each further one; default 1,000 */
    int64_t backoff_max_ms; /* and at most; default 300,000 */

    /* Broadcast: every handle gets every item. All handles of the queue set
     * it; only with DELAYQ_NATIVE and without a lease. */
    int broadcast;
    const char *broadcast_after; /* NULL: only what comes after the open; "":
                                    everything that is kept; or the ticket text
                                    of the last item seen */
    int64_t broadcast_keep;      /* items that the stream keeps, about; default
                                    10,000 */

    int batch;              /* most items that one tick moves: 1 to 1,000;
                               default 100 */
    int64_t max_wait_ms;    /* longest wait that a tick returns, and longest
                               time between two polls; default 10,000 */
    int connect_timeout_ms; /* to connect and log in; default 2,000, or
                               io_timeout_ms where that is shorter */
    int io_timeout_ms;      /* for one round trip; default 3,000 */

    /* Files, for rediss://. */
    const char *tls_ca;   /* certificates to trust; default the system's */
    const char *tls_cert; /* this program's certificate, and its chain; */
    const char *tls_key;  /* and its key: default neither */

    /* Returns a connected context, or NULL after a failure. Used instead of
     * the URL's host or path; its user, password and db still count. For TLS
     * of your own, proxies, tests. The handle frees the context. */
    struct redisContext *(*connect)(void *user, int timeout_ms);
    /* Called with each fault that a waiting call rides out; text is one line
     * without a newline. It must not use the handle. */
    void (*log)(void *user, delayq_status status, const char *text);
    void *user; /* handed to the hooks */

    /* An open handle whose connections this one uses. It must be used in the
     * same thread, be closed after this one, and not share itself. url,
     * connect, the timeouts and the tls_ files are the other handle's. */
    delayq *share;
} delayq_options;

/* Identifies a pending or leased item. Each offer and each lease has a new
 * ticket, which ends when the item is moved, taken or acked, or when its lease
 * ends. It is text, to be printed, stored and compared as it is: the due time,
 * a dash, the id in hex digits. "" is no ticket. */
typedef struct delayq_ticket {
    char text[52];
} delayq_ticket;

/* What offer_message and offer_many hand in. */
typedef struct delayq_message {
    const void *data; /* NUL bytes allowed; nothing of it is kept */
    size_t len;
    int64_t delay_ms; /* >= 0 */
    int64_t due_ms;   /* > 0: this due time instead, ms since the epoch by the
                         server's clock; one in the past is due at once */

    const char *key;    /* NULL, or a name of 1 to 256 bytes: a second offer
                           under it is a DELAYQ_DUPLICATE */
    int64_t key_ttl_ms; /* with a key: how long it is kept, > 0 */
    int replace;        /* instead take the place of the first item, if that
                           is still pending */

    delayq_status status; /* out: the result. After DELAYQ_ERR_UNKNOWN offer
                             the same struct again, unchanged: the item is
                             then stored once at most */
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
                        included; peek: so far. 0 if unknown: with
                        DELAYQ_REDISSON_OLD and a lease */
    int64_t due_ms;  /* when it was due, by the server's clock; 0 if unknown */
    int64_t late_us; /* how much later it was taken, in microseconds by the
                        server's clock; -1 if unknown. Both are unknown of
                        items from the ready list, which doesn't keep them */
    delayq_ticket ticket; /* for ack, nack, extend, bury; "" without a lease.
                             Broadcast: where the reader stands */
    delayq_status acked;  /* out of ack_take and ack_many */
} delayq_item;

/* A dead letter, as dead_peek hands it out. */
typedef struct delayq_dead {
    const void *data; /* the payload; the whole element if undecodable */
    size_t len;
    char reason[16]; /* "attempts", "buried" or "undecodable" */
    int attempt;     /* how often it was handed out; 0 if unknown */
    int64_t dead_ms; /* when it was given up, by the server's clock */
} delayq_dead;

/* What delayq_count tells. The first block describes the queue; the second
 * counts what this handle has done since it was opened. */
typedef struct delayq_counts {
    int64_t pending;     /* in the set, leased ones included */
    int64_t overdue;     /* of these: due, and not yet moved or taken */
    int64_t overdue_ms;  /* how long the oldest of them has been due; or 0 */
    int64_t ready;       /* in the lists; broadcast: always 0 */
    int64_t dead;        /* dead letters */
    int64_t next_due_ms; /* the earliest due time; 0: nothing is pending */
    int64_t now_ms;      /* the server's clock */

    uint64_t offered, moved, taken, acked, nacked;
    uint64_t redelivered; /* taken with an attempt above 1 */
    uint64_t died;        /* sent to the dead letters */
    uint64_t reconnects;
    uint64_t lateness[24]; /* [n]: items taken less than 2^n us late, but at
                              least half of that; the last: all above */
} delayq_counts;

/* A handle, in memory of yours. {0} is a closed handle. An open handle must
 * not be copied or moved. All its fields are private. */
typedef struct delayq_address {
    char host[256]; /* or the path of a unix socket, */
    int port;       /* which has port 0 */
} delayq_address;

/* Private: of the command connection, ... */
typedef enum delayq_conn_state {
    DELAYQ_CONN_CLOSED,     /* cmd is NULL; next: the URL's hosts */
    DELAYQ_CONN_REDIRECTED, /* cmd is NULL; next: conn->redirect */
    DELAYQ_CONN_OPEN,       /* logged in; no script has been answered yet */
    DELAYQ_CONN_PROVEN      /* a script has been answered */
} delayq_conn_state;

/* ... and whether the server tells of pushes into the lists. */
typedef enum delayq_track_state {
    DELAYQ_TRACK_OFF,     /* no sub, or refused: handles poll more often */
    DELAYQ_TRACK_ALLOWED, /* sub is ready for it, cmd has not turned it on */
    DELAYQ_TRACK_ON       /* cmd has turned it on, REDIRECT to sub */
} delayq_track_state;

typedef struct delayq_conn {
    const delayq *owner; /* its options say where to connect */
    delayq *handles;     /* all that use this connection */

    /* The command connection: requests and their replies. */
    struct redisContext *cmd;
    delayq_conn_state state;
    delayq_address at;            /* where cmd leads, or is to lead */
    delayq_address redirect;      /* the node that MOVED or ASK has named */
    unsigned host;                /* number of the URL's host to try next */
    unsigned failures;            /* attempts in a row that have failed */
    unsigned conns_without_reply; /* in a row, that no script survived */
    int64_t used_us;              /* when cmd was last used; 0: never */
    int64_t retry_us;             /* connect no sooner */
    delayq_status failure;        /* what a request is told until then, */
    char err[256];                /* and the text */
    unsigned loaded;              /* bits of the scripts that cmd has loaded */

    /* The subscriber. */
    struct redisContext *sub;
    delayq_track_state tracking;
    unsigned sub_failures;
    int64_t sub_id;        /* its CLIENT ID */
    int64_t sub_retry_us;  /* connect no sooner */
    int64_t sub_read_us;   /* when it was last read */
    int64_t sub_heard_us;  /* when something came */
    int64_t sub_pinged_us; /* when it was pinged; 0: no answer is awaited */

    /* The server. */
    int64_t clock_offset_us;           /* its clock minus ours, at least, */
    int64_t clock_error_us;            /* and at most so much more */
    unsigned char long_size, long_big; /* its unsigned long */

    void *tls;   /* the SSL_CTX */
    int pipe[2]; /* delayq_wake writes, a wait reads */
} delayq_conn;

/* What a handle is among those that wait in a take on its queue; in this order
 * in a take's reply. */
typedef enum delayq_waiter_role {
    DELAYQ_WAITER_NONE,    /* it is not one of them */
    DELAYQ_WAITER_ALONE,   /* it was the only one when it asked */
    DELAYQ_WAITER_LEADER,  /* it acts when something is due or pushed */
    DELAYQ_WAITER_STANDBY, /* it acts 0.3 to 0.6 s later, if it has to */
    DELAYQ_WAITER_SLEEPER  /* it waits until it is told to lead */
} delayq_waiter_role;

/* All 0 while conn->sub is NULL. */
typedef struct delayq_waiter {
    delayq_waiter_role role;
    unsigned char asked;     /* SUBSCRIBE of these two channels is written: */
    unsigned char own_heard; /* the handle's own, and */
    unsigned char all_heard; /* that of all waiters: it is confirmed */
    unsigned char off_queue; /* the queue's channel is unsubscribed */
    unsigned char known;     /* an answer has given it a role */
    unsigned char promoted;  /* told to lead since its last take was written */
    unsigned char called;    /* 1: told to enter anew; 2: a take that does so
                                is under way */
    /* A standby's. */
    unsigned char overdue; /* something was pushed, and still lies there */
    unsigned char looking; /* the LLEN under way looks after a push */
    int64_t push_us;       /* when to look after a push; 0: none */
    int64_t due_us;        /* when the next item is due; 0: unknown */
    int64_t look_us;       /* ask no later than then */
} delayq_waiter;

struct delayq {
    unsigned open;
    int64_t pid;
    delayq_options options;
    delayq_conn *conn;   /* own, or that of options.share; NULL once the handle
                            that it belongs to is closed */
    delayq_conn own;     /* unused by a handle that shares another's */
    delayq *next;        /* of the handles on a connection */
    uint64_t last_order; /* of the last id */
    unsigned char handle_id[8]; /* random */
    char id[18];                /* ":" and handle_id in hex */

    /* The schedule. */
    int64_t next_poll_us; /* ask the server no later than then */
    int64_t ready;        /* how many lay ready by the last answer */

    /* What is heard; all 0 while conn->sub is NULL. */
    unsigned char subscribed;   /* to the queue's channel */
    unsigned char list_tracked; /* the next push into N will be heard: only
                                   while conn->tracking is DELAYQ_TRACK_ON */

    unsigned char will_wait; /* in a take that waits long enough to be one
                                of the waiters */
    delayq_waiter waiter;

    unsigned char empty_takes;  /* the last take was empty and did not wait */
    unsigned char retry_turn;   /* which list the next take looks at first */
    unsigned char probed;       /* a probe of this queue has been answered */
    unsigned char wire_refused; /* elements of an older Redisson were met */
    volatile int woken;         /* by delayq_wake */
    void *reply;                /* what the items point into */
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

/* "Any server failure" below means that the function can return each of these:
 *
 *     DELAYQ_ERR_IO, _TIMEOUT, _AUTH, _REDIS, _READONLY, _AGAIN, _TYPE,
 *     _MEMORY    nothing was changed
 *     DELAYQ_ERR_WIRE      nothing was changed; all further calls fail until
 *                          the handle is reopened
 *     DELAYQ_ERR_UNKNOWN, _PROTOCOL   it may have happened
 *     DELAYQ_ERR_ARG       the handle is closed, or was opened before a
 *                          fork(), or its name or tls_ files turn out to be
 *                          bad when it connects; nothing was changed
 */

/*
 * delayq_open -- open a handle on a queue, and connect.
 *
 *   q         a closed or zeroed handle, in the caller's storage
 *   options   copied, but for the strings in it other than the name
 *
 * Returns     DELAYQ_OK        open and connected
 *             DELAYQ_ERR_ARG   a bad option, a tls_ file that can't be used,
 *                              or on a cluster a name that lies in two slots;
 *                              the handle is closed
 *             DELAYQ_ERR_WIRE  the handle is open, but every call will return
 *                              this: see delayq_wire
 *             any server failure: the handle is open and connects when it is
 *                              used
 * Blocks      up to connect_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, EXISTS, 1 script, O(log n)
 *
 * delayq_errmsg and delayq_close work in every case.
 */
DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options);

/* delayq_close -- close a handle; does nothing to a zeroed or closed one. The
 * payloads of its items are freed. Never blocks. What is in Redis stays. */
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
 * Blocks       one round trip; if the connection turns out to be lost, a
 *              connect and one more (>>threads says for how long)
 * Redis        1 script, O(log n)
 *
 * If the answer is lost, the offer is sent again under the same id, so that it
 * is stored once. If the item was due meanwhile, nobody can tell whether it
 * was stored, and the status is DELAYQ_ERR_UNKNOWN.
 */
DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms);

/*
 * delayq_offer_message -- hand in one, with a key, a due time or a ticket.
 *
 *   message    see delayq_message; status and ticket are set in it
 *
 * Returns      DELAYQ_OK          stored; the ticket is the item's
 *              DELAYQ_DUPLICATE   the key is taken, nothing was stored; the
 *                                 ticket is that of the item which has the key
 *              DELAYQ_ERR_ARG     a bad message, or NULL; nothing was sent
 *              DELAYQ_ERR_FULL    the server's memory is full; not stored
 *              any server failure
 * Blocks       as delayq_offer
 * Redis        1 script, O(log n)
 *
 * To retry after DELAYQ_ERR_UNKNOWN pass the same message unchanged: the item
 * is stored at most once. message->status is what was returned, except that it
 * stays DELAYQ_ERR_UNKNOWN when such a retry fails.
 */
DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message);

/*
 * delayq_offer_many -- hand in many, each with its own time, key and answer.
 *
 *   messages   see delayq_message; status and ticket are set in each
 *   count      0 is fine
 *
 * Returns      DELAYQ_OK   each is stored, or a DELAYQ_DUPLICATE
 *              else the server's first failure, or DELAYQ_ERR_ARG if some were
 *              bad; the others are stored all the same
 * Blocks       a round trip per 8 scripts or 256 KiB
 * Redis        a script per 128 messages or 256 KiB, one per key; O(log n) per
 *              message
 *
 * After DELAYQ_ERR_UNKNOWN offer those messages again that have this status:
 * they are stored once. Leave out those that are DELAYQ_OK.
 */
DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count);

/*
 * delayq_tick -- move what is due to the ready list; for your own loop.
 *
 *   wait_ms    out, may be NULL, always set: call again in so many ms, or
 *              sooner if one of delayq_fds is readable. 0: more work is
 *              pending, call again now. At most max_wait_ms. After a failure:
 *              the pause before the next attempt
 *
 * A program that also takes should take first, with timeout 0 until that
 * returns DELAYQ_EMPTY, and then tick, right before it sleeps. Such a tick also
 * asks the server to report the next push.
 *
 * Returns      DELAYQ_OK, or any server failure (the items are safe; the
 *              next tick goes on)
 * Blocks       for at most one of: connecting (connect_timeout_ms), opening
 *              the subscriber (io_timeout_ms), one transfer (io_timeout_ms);
 *              after an empty take also a round trip to ask for pushes, within
 *              the same time. While nothing is due it only reads the clock,
 *              and the subscriber's socket at most once a millisecond
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
 *              any server failure. DELAYQ_ERR_UNKNOWN: if the server had
 *              handed out an item, it is lost; with a lease it comes again
 * Blocks       timeout_ms, and a round trip; if it waited for 10 s or longer
 *              beside others, one more to leave them. With 0: one, or none
 *              while the subscriber is open and nothing is due (it is opened
 *              at the second empty take in a row)
 * Redis        1 script, O(log n); while it waits 0.2 commands a second
 *
 * Passing faults (_IO, _TIMEOUT, _AGAIN, _READONLY, _UNKNOWN) don't end a take
 * that waits: they are told to options.log, and it tries again until the
 * timeout, then returns the last one. All others return at once.
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
 *              any server failure; DELAYQ_ERR_UNKNOWN also if the answer was
 *              lost and the item is no longer there
 * Blocks       one round trip
 * Redis        1 script, O(log n)
 *
 * A lease that has run out may still be acked until somebody moves or takes
 * the item. The same holds for nack, extend and bury.
 */
DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item);

/* delayq_ack_many -- ack `count` items, up to 500 in a round trip, and set
 * `acked` in each. Returns DELAYQ_OK if all were acked, else the first other
 * status; after a failure the rest are not tried. */
DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count);

/*
 * delayq_ack_take -- ack the item in hand and take the next in one round trip.
 *
 *   item   in: the item to ack; its ticket is enough. A zeroed item: only
 *          take. out: the next item, and in `acked` the ack's status
 *
 * Returns what delayq_take returns. The ack's status is always in `acked`:
 * DELAYQ_OK, DELAYQ_GONE, the failure that kept it from being sent, or
 * DELAYQ_ERR_UNKNOWN if its answer was lost. If the ack isn't settled the item
 * keeps its ticket (and loses its payload): call again. After DELAYQ_EMPTY and
 * DELAYQ_WOKEN the ack is settled.
 */
DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms);

/*
 * delayq_nack -- not done: deliver a leased item again.
 *
 *   delay_ms   >= 0: in so many ms; DELAYQ_BACKOFF: in backoff_ms, doubled for
 *              each further attempt, up to backoff_max_ms, half of it random;
 *              DELAYQ_RELEASE: at once, without counting this attempt (for an
 *              item that was taken and not begun)
 *
 * Returns, blocks and costs as delayq_ack. It may be called again.
 */
DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms);

/* delayq_extend -- let a lease end in lease_ms from now (0: options.lease_ms).
 * Puts the new ticket into the item. Otherwise as delayq_ack. */
DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms);

/* delayq_bury -- give a leased item up: it goes to the dead letters, with the
 * reason "buried". Otherwise as delayq_ack. */
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
 * Puts the new ticket in place of the old one. `replace` no longer finds an
 * item that was rescheduled: if it has a key, offer it again with replace.
 * Otherwise as delayq_cancel; O(log n) even with a mirror. */
DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms);

/*
 * delayq_peek -- look at what is pending (leased ones among it) in the order
 * of due times, without touching it.
 *
 *   items, max   room for max items
 *   count        out; may be fewer than there are: a script stops after 256
 *                KiB. For the next page, hand in the last item's ticket
 *   after        NULL or "": from the start; else the items behind this one,
 *                whether it is still there or not
 *
 * Returns      DELAYQ_OK, DELAYQ_EMPTY (none), or any server failure
 * Redis        1 script, O(log n) + O(max)
 */
DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count, const delayq_ticket *after);

/* delayq_count -- what is in the queue, and what this handle has done.
 * DELAYQ_OK or any server failure; the handle's own counters are set in both
 * cases. One round trip, O(log n), and the server reads the earliest item,
 * its payload included. */
DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts);

/* delayq_count_due -- for a histogram: counts[i] = how many of what is pending
 * are due at due_ms[i] (ms since 1970) or before. n: 1 to 1,000. One round
 * trip, O(n log n_pending). DELAYQ_OK, DELAYQ_ERR_ARG or any server failure. */
DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts);

/* delayq_clear -- remove all items that are pending, leased or ready (of a
 * broadcast also the stream); not the dead letters, nor keys. `removed`: how
 * many, may be NULL. DELAYQ_OK or any server failure. One round trip, O(1) for
 * the server's main thread. */
DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed);

/* delayq_dead_peek -- look at up to max dead letters, the oldest first,
 * beginning with number `from` (0 is the oldest). DELAYQ_OK, DELAYQ_EMPTY or
 * any server failure. One round trip, O(from + max), at most 256 KiB. */
DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from);

/* delayq_dead_redrive -- make up to max dead letters ready, the oldest first,
 * as if they had never been handed out. What can't be decoded stays a dead
 * letter, behind the others. `count`: how many were made ready, may be NULL.
 * One round trip, at most 256 KiB. */
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
 * For programs that take: while any of the queues has a ready item it returns
 * at once, so take that item first.
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

/* delayq_errmsg -- why the last failed call on q failed, in one line; "" if
 * none has failed. Never holds a password. Lives until the next call on q. */
DELAYQ_API const char *delayq_errmsg(const delayq *q);

/* delayq_strstatus -- a status in words, a constant string. */
DELAYQ_API const char *delayq_strstatus(delayq_status status);

#ifdef __cplusplus
}
#endif

#endif /* DELAYQ_H */

/*=============================================================================
 * You can stop reading here. What follows is the implementation.
 *
 * Each section uses only those above it. From the ground up:
 *
 *     System, Numbers, Elements, Errors, URL, TLS    send no requests
 *     Scripts, Protocol      what is said to the server
 *     Schedule, Waiters      when it is said, and by whom
 *     Connections, Requests, Subscriber    saying it, and being told
 *     Taking, Waiting, Verbs               what the caller has asked for
 *
 * The way of one request, a take:
 *
 *     delayq_take, delayq_take_many          check the arguments
 *     dq_take            repeats steps until there is an item, the timeout is
 *                        over or delayq_wake was called; sleeps in
 *                        dq_wait_sleep between them
 *     dq_take_step       asks if there may be something, else sees to it that
 *                        the next item is heard of (subscriber, tracking)
 *     dq_take_once       describes the request in a dq_req
 *     dq_req_run_all     sends requests until each is settled:
 *       dq_conn_ensure   has an open connection: connects, logs in, probes
 *       dq_req_send      writes them in one go, reads the replies
 *       dq_req_judge     gives an error reply its status; notes MOVED
 *       dq_req_decide    settles it, or has it sent again: the retry policy
 *     dq_take_apply      tells the schedule when the next item is due
 *     dq_read_items      makes items of the reply
 *
 * An offer and the verbs of a ticket go the same way from dq_req_run_all on; a
 * tick goes from dq_wait_tick_step to dq_take_transfer.
 *
 * Who owns which state:
 *
 *     conn->cmd, state, at, redirect, host, retry_us, err    Connections
 *     conn->loaded       set by Protocol, which writes SCRIPT LOAD; cleared by
 *                        Requests (NOSCRIPT) and with the connection
 *     conn->sub, tracking                    Subscriber; cleared by
 *                        dq_conn_close and dq_conn_close_sub
 *     q->next_poll_us, ready, subscribed, list_tracked    Schedule; Waiters,
 *                        where it isn't the handle that acts
 *     q->waiter, will_wait                   Waiters
 *     q->reply (what the items point into)   Taking, Verbs
 *     q->woken           Waiting; set by any thread, the only such field
 *
 * Where to look for:
 *
 *     a MOVED            dq_conn_probe meets it when connecting, dq_req_judge
 *                        later; both leave the address to
 *                        dq_conn_parse_redirect, and dq_conn_attempt goes there
 *     an ASK             dq_req_send_ask
 *     what may be sent twice                 dq_req_decide, req->idempotent
 *     when the server is asked next          dq_sched_on_..., dq_waiters_on_
 *                        ...: an event each
 *     an element that can't be decoded       of a tick or take, in the
 *                        scripts: split() gives nil, and drain or take_listed
 *                        puts it to the dead letters. In C dq_elem_parse gives
 *                        -1, and a peek shows all its bytes as the payload
 *     a new option       delayq_options; range and default dq_check_options;
 *                        where it comes from options.share, dq_check_share
 *     a new error of the server              dq_err_table
 *     a new script       its text and DQ_SCRIPT in Scripts, a writer of its
 *                        keys and arguments beside its verb; then `make lua`
 *
 * Words: a transfer moves due items from the zset to the ready list. The probe
 * is the first request about a queue on a connection. Tracking is Redis' client
 * tracking, which tells the subscriber of a push into the list. The waiters are
 * the handles in a take of 10 s or longer: the leader acts, a standby acts if
 * the leader doesn't, sleepers only look now and then. A poll asks the server
 * without having been told to. A request is idempotent if sending it twice does
 * what sending it once does.
 *===========================================================================*/

#if defined(DELAYQ_IMPLEMENTATION) && !defined(DELAYQ_IMPLEMENTED)
#define DELAYQ_IMPLEMENTED

/*-----------------------------------------------------------------------------
 * MARK: - System
 * >>system   clock, random bytes, SIGPIPE, sockets, the wake-up pipe
 *
 * Owns everything that differs between operating systems. A port begins here.
 *---------------------------------------------------------------------------*/

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
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
#define DQ_SPIN_US 80 /* Linux' timer slack, and a bit */

/* The local clock. It only measures distances. */
static int64_t dq_sys_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * DQ_SECOND_US + t.tv_nsec / 1000;
}

static void dq_sys_random(unsigned char *bytes, size_t len) {
    int fd = open("/dev/urandom", O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, bytes, len);
    if (fd >= 0) close(fd);
    if (got != (ssize_t)len) { /* no urandom: time, process and address */
        uint64_t x = (uint64_t)dq_sys_now() ^ ((uint64_t)getpid() << 40) ^
                     (uint64_t)(uintptr_t)bytes;
        size_t i;
        for (i = 0; i < len; i++) {
            x = x * 6364136223846793005u + 1442695040888963407u;
            bytes[i] = (unsigned char)(x >> 56);
        }
    }
}

/* hiredis and OpenSSL write without MSG_NOSIGNAL. So that a lost connection
 * does not kill the program, SIGPIPE is blocked around each write, and removed
 * where one was raised. On macOS and BSD a socket option does this. */
#ifdef SO_NOSIGPIPE
typedef int dq_sys_signals;

static void dq_sys_block_sigpipe(dq_sys_signals *old) {
    *old = 0;
}

static void dq_sys_unblock_sigpipe(const dq_sys_signals *old, int failed) {
    (void)old;
    (void)failed;
}
#else
typedef sigset_t dq_sys_signals;

static void dq_sys_block_sigpipe(dq_sys_signals *old) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGPIPE);
    sigprocmask(SIG_BLOCK, &mask, old);
}

static void dq_sys_unblock_sigpipe(const dq_sys_signals *old, int failed) {
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

/* Write what is in the buffer. *sent: the server has all of it. */
static int dq_sys_write(redisContext *c, int *sent) {
    dq_sys_signals old;
    int status;
    dq_sys_block_sigpipe(&old);
    status = redisBufferWrite(c, sent);
    if (c->err == REDIS_ERR_OOM) *sent = 1; /* written, then no new buffer */
    dq_sys_unblock_sigpipe(&old, status != REDIS_OK);
    return status;
}

/* Under TLS a read may write. */
static int dq_sys_read(redisContext *c) {
#ifdef DELAYQ_TLS
    dq_sys_signals old;
    int status;
    dq_sys_block_sigpipe(&old);
    status = redisBufferRead(c);
    dq_sys_unblock_sigpipe(&old, status != REDIS_OK);
    return status;
#else
    return redisBufferRead(c);
#endif
}

/* Make a new descriptor non-blocking, closed by exec and, if it is a socket,
 * silent about SIGPIPE. */
static void dq_sys_set_modes(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    flags = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &flags, sizeof flags);
#endif
}

static struct pollfd dq_sys_watch(int fd, int events) {
    struct pollfd p;
    p.fd = fd;
    p.events = (short)events;
    p.revents = 0;
    return p;
}

/* Sleep until a descriptor is readable or the clock says `until`. poll counts
 * whole milliseconds; the rest, less than one, is slept without listening. A
 * sleeper is woken up to DQ_SPIN_US late, so the last of it is spent awake. */
static void dq_sys_poll_until(struct pollfd *fds, size_t count, int64_t until) {
    int64_t ms = (until - dq_sys_now() - DQ_SPIN_US) / 1000, left;
    int n = ms > 3600000 ? 3600000 : ms > 0 ? (int)ms : 0;
    if (poll(fds, (nfds_t)count, n) != 0) return;
    left = until - dq_sys_now();
    if (left > 1000 + DQ_SPIN_US) return; /* an hour is over */
    if (left > DQ_SPIN_US) {
        struct timespec t;
        t.tv_sec = 0;
        t.tv_nsec = (long)(left - DQ_SPIN_US) * 1000;
        if (nanosleep(&t, NULL) != 0) return;
    }
    while (dq_sys_now() < until) {
    }
}

/* 1: ready for what was asked; 2: the same, but after the deadline. 0: it is
 * not, and the deadline has passed. */
static int dq_sys_poll_one(int fd, int events, int64_t deadline) {
    for (;;) {
        struct pollfd p = dq_sys_watch(fd, events);
        int64_t left = deadline - dq_sys_now();
        int n;
        n = poll(&p, 1, left > 0 ? (int)((left + 999) / 1000) : 0);
        if (n > 0) return left > 0 ? 1 : 2;
        if (n == 0 && left <= 0) return 0;
        if (n < 0 && errno != EINTR && errno != EAGAIN) return 0;
    }
}

static int dq_sys_open_pipe(int fds[2]) {
    if (pipe(fds) != 0) return 0;
    dq_sys_set_modes(fds[0]);
    dq_sys_set_modes(fds[1]);
    return 1;
}

static void dq_sys_drain_pipe(int fd) {
    char bytes[64];
    while (read(fd, bytes, sizeof bytes) > 0) {
    }
}

/*-----------------------------------------------------------------------------
 * MARK: - Numbers
 * >>numbers   numbers as text, in hex, in a back-off
 *
 * Owns nothing; only the back-off is random.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_DUE 9007199254740991 /* 2^53 - 1 */

static size_t dq_num_decimal(char *to, int64_t value) {
    char digits[24];
    size_t n = 0, i;
    uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    if (value < 0) digits[n++] = '-';
    for (i = 0; i < n; i++) to[i] = digits[n - 1 - i];
    return n;
}

/* A whole number from 0 to max; -1 where it isn't one. */
static int dq_num_small(const char *text, size_t len, int max) {
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

/* The digits with which a text begins; 2^53 - 1 at most. */
static int64_t dq_num_due(const char *p) {
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        value = value < DQ_MAX_DUE / 10 ? value * 10 + (*p - '0') : DQ_MAX_DUE;
    return value;
}

static char *dq_num_hex(char *to, const unsigned char *bytes, size_t len) {
    static const char digits[] = "0123456789abcdef";
    for (; len > 0; len--, bytes++) {
        *to++ = digits[*bytes >> 4];
        *to++ = digits[*bytes & 15];
    }
    *to = '\0';
    return to;
}

static int dq_num_unhex(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* The delay before the next attempt: base, doubled for each failure after the
 * first, at most cap; half of it is random so that a fleet doesn't come back
 * in step. */
static int64_t dq_num_backoff(int64_t base, int64_t cap, unsigned failures) {
    unsigned char r[2];
    int64_t d = base;
    while (failures-- > 1 && d < cap) d *= 2;
    if (d > cap) d = cap;
    dq_sys_random(r, sizeof r);
    return d / 2 + (int64_t)((double)(d / 2) * (r[0] * 256 + r[1]) / 65536);
}

/*-----------------------------------------------------------------------------
 * MARK: - Elements
 * >>elements   every byte of an element, an id, a ticket
 *
 * The only place in C that knows the bytes of an element, an id, a ticket;
 * dq_write_take writes the rest of the ids that a lease makes.
 *
 *     native, Redisson >= 3.21.1   u8 k, id of k bytes, L, payload
 *     Redisson <= 3.21.0           id of 8 bytes (a double), L, payload
 *
 * k is 16 where delayq wrote it, 8 where Redisson did. L is the payload's
 * length as the server's unsigned long: 8 bytes, or 4 on 32-bit servers and
 * on Windows. The formats are told apart by their exact length; what fits
 * both is read as the format of the handle's wire.
 *
 * An id of 16 bytes: 8 of order (microseconds, big-endian), 5 random of the
 * handle, 1 of flags (0), 2 of attempt (big-endian).
 *---------------------------------------------------------------------------*/

#define DQ_ELEM_HEADER_MAX 25
#define DQ_ELEM_OLD 0 /* other kinds are the length of the id */

static void dq_elem_put_uint(unsigned char *to, int size, int big,
                             uint64_t value) {
    int i;
    for (i = 0; i < size; i++)
        to[big ? size - 1 - i : i] = (unsigned char)(value >> (8 * i));
}

static uint64_t dq_elem_get_uint(const unsigned char *from, int size, int big) {
    uint64_t value = 0;
    int i;
    for (i = 0; i < size; i++)
        value = value << 8 | from[big ? i : size - 1 - i];
    return value;
}

/* The length of the ids that this handle writes. */
static size_t dq_elem_id_len(const delayq *q) {
    return q->options.wire == DELAYQ_REDISSON_OLD ? 8 : 16;
}

/* Write an element's head; the payload follows it. Returns its length. */
static size_t dq_elem_write_header(const delayq *q, const unsigned char id[16],
                                   size_t len, unsigned char *to) {
    const delayq_conn *conn = q->conn;
    size_t n = 0, id_len = dq_elem_id_len(q);
    if (id_len == 16) to[n++] = 16;
    memcpy(to + n, id, id_len);
    n += id_len;
    dq_elem_put_uint(to + n, conn->long_size, conn->long_big, len);
    return n + conn->long_size;
}

/* Does a length stand at `at` that fits what follows it? Where the payload
 * begins then, else 0. */
static size_t dq_elem_payload_start(const unsigned char *e, size_t n, int big,
                                    size_t at) {
    size_t size;
    for (size = 8; size >= 4; size -= 4)
        if (n >= at + size &&
            dq_elem_get_uint(e + at, (int)size, big) == n - at - size)
            return at + size;
    return 0;
}

/* The kind of an element and where its payload begins; -1: undecodable, and
 * the payload is all of it. With a wire of old_first an element that could be
 * read as either is an old one: its id or payload only looks like a new one. */
static int dq_elem_parse(const unsigned char *e, size_t n, int big,
                         int old_first, size_t *start) {
    size_t old = dq_elem_payload_start(e, n, big, 8);
    *start = old;
    if (old > 0 && old_first) return DQ_ELEM_OLD;
    if (n > 0 && (e[0] == 16 || e[0] == 8)) {
        *start = dq_elem_payload_start(e, n, big, 1 + (size_t)e[0]);
        if (*start > 0) return e[0];
    }
    *start = old;
    return old > 0 ? DQ_ELEM_OLD : -1;
}

/* An element, read as this handle's wire has it. */
static int dq_elem_parse_of(const delayq *q, const unsigned char *e, size_t n,
                            size_t *start) {
    return dq_elem_parse(e, n, q->conn->long_big,
                         q->options.wire == DELAYQ_REDISSON_OLD, start);
}

/* The attempt count in an element, or in what a ticket says that it begins
 * with; only an id of 16 bytes has one. */
static int dq_elem_attempt(const unsigned char *e, int kind) {
    return kind == 16 ? (int)dq_elem_get_uint(e + 15, 2, 1) : 0;
}

/* The lower 11 bits of an old id: random, and no infinity or NaN. */
static int dq_elem_old_id_low(const delayq *q) {
    return (q->handle_id[5] & 7) << 8 | 0x20 | (q->handle_id[6] & 0x1f);
}

/* The order of the next id, where `count` are needed. */
static uint64_t dq_elem_next_order(delayq *q, size_t count) {
    uint64_t order = (uint64_t)(dq_sys_now() + q->conn->clock_offset_us);
    if (order <= q->last_order) order = q->last_order + 1;
    q->last_order = order + count - 1;
    return order;
}

/* The id of the next offer: strictly rising within the handle, as bytes too,
 * by which Redis sorts the elements of one millisecond. An old id is read as a
 * double: its last byte keeps it from being an infinity or a NaN. */
static void dq_elem_next_id(delayq *q, unsigned char id[16]) {
    uint64_t order = dq_elem_next_order(q, 1);
    if (q->options.wire == DELAYQ_REDISSON_OLD)
        order = order << 11 | (uint64_t)dq_elem_old_id_low(q);
    dq_elem_put_uint(id, 8, 1, order);
    memcpy(id + 8, q->handle_id, 5);
    memset(id + 13, 0, 3);
}

#define DQ_ELEM_PREFIX_MAX 17

static void dq_elem_id_ticket(delayq_ticket *t, int64_t due_ms,
                              const unsigned char *id, size_t id_len) {
    size_t n = dq_num_decimal(t->text, due_ms);
    t->text[n++] = '-';
    dq_num_hex(t->text + n, id, id_len);
}

/* An element's ticket: due time and id. Of Redisson's ids of 8 bytes the 8
 * before them is part, or they would look like old ones. */
static void dq_elem_ticket(delayq_ticket *t, int64_t due_ms,
                           const unsigned char *e, int kind) {
    if (kind == 16)
        dq_elem_id_ticket(t, due_ms, e + 1, 16);
    else
        dq_elem_id_ticket(t, due_ms, e, kind == 8 ? 9 : 8);
}

/* The due time and the bytes that a ticket's element begins with; 0: it is
 * none. *due_len: the length of the due time's text. */
static size_t dq_elem_ticket_prefix(const char *text,
                                    unsigned char key[DQ_ELEM_PREFIX_MAX],
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
        int hi = dq_num_unhex(text[0]), lo = dq_num_unhex(text[1]);
        if (hi < 0 || lo < 0) return 0;
        key[n++] = (unsigned char)(hi * 16 + lo);
    }
    return n;
}

/* A ticket's due time changes; its id stays. */
static void dq_elem_set_ticket_due(delayq_ticket *t, int64_t due_ms) {
    char id[sizeof t->text];
    snprintf(id, sizeof id, "%s", strchr(t->text, '-'));
    memcpy(t->text + dq_num_decimal(t->text, due_ms), id, strlen(id) + 1);
}

static int dq_elem_is_ticket(const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t len;
    return memchr(text, 0, sizeof(delayq_ticket)) &&
           dq_elem_ticket_prefix(text, key, &len) > 0;
}

/*-----------------------------------------------------------------------------
 * MARK: - Errors
 * >>errors-inside   statuses, what server errors mean, error texts
 *
 * Owns the error texts of handles and connections, and the table that says
 * what each error of a server means.
 *---------------------------------------------------------------------------*/

/* Inside only: nothing has happened, and something else is to be done first.
 * dq_err_public makes DELAYQ_ERR_AGAIN of them before a caller sees them. (A
 * C++ delayq_status holds no number above 15.) */
#define DQ_NOSCRIPT ((delayq_status)12) /* the script has to be loaded */
#define DQ_MOVED ((delayq_status)13)    /* another node has the slot */
#define DQ_ASK ((delayq_status)14)      /* it has these keys already */
#define DQ_TRYAGAIN ((delayq_status)15) /* each has some of the keys */

static delayq_status dq_err_public(delayq_status status) {
    return status < DQ_NOSCRIPT ? status : DELAYQ_ERR_AGAIN;
}

/* Write the error text of a handle or a connection: one line, whatever a server
 * says. Returns the status. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static delayq_status
dq_err_set(char err[256], delayq_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(err, 256, format, args);
    va_end(args);
    for (; *err; err++)
        if ((unsigned char)*err < ' ') *err = ' ';
    return status;
}

typedef struct dq_err_entry {
    const char *code;
    delayq_status status;
    int leave; /* another server may do better */
} dq_err_entry;

static const dq_err_entry dq_err_table[] = {
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
static const dq_err_entry *dq_err_lookup(const char *text) {
    const size_t last = sizeof dq_err_table / sizeof dq_err_table[0] - 1;
    const char *inner = strstr(text, "user_script:");
    size_t i;
    for (i = 0; i < last; i++)
        if (strncmp(text, dq_err_table[i].code, strlen(dq_err_table[i].code)) ==
            0)
            return &dq_err_table[i];
    for (i = 0; inner && i < last; i++)
        if (strstr(inner, dq_err_table[i].code)) return &dq_err_table[i];
    return &dq_err_table[last];
}

/* Turn an error reply into a status and a text. What Redis repeats of a
 * command's arguments may hold a password, and is cut off. */
static delayq_status dq_err_reply(char *err, const char *what,
                                  const redisReply *r) {
    const char *cut = strstr(r->str, ", with args"), *hint = "";
    int len = (int)(cut ? (size_t)(cut - r->str) : strlen(r->str));
    delayq_status status = dq_err_lookup(r->str)->status;
    if (status == DELAYQ_ERR_TYPE)
        hint = "; a key of this queue is used for something else";
    if (status == DELAYQ_ERR_ARG)
        hint = "; on a cluster a name has no }, or one whole {tag}, which is "
               "the same for all on a shared connection";
    return dq_err_set(err, status, "%s: the server says: %.*s%s", what,
                      len > 120 ? 120 : len, r->str, hint);
}

#define DQ_BAD_REPLY "%s: the answer is not what delayq's script returns"

static delayq_status dq_err_bad_reply(delayq *q, const char *what) {
    return dq_err_set(q->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, what);
}

static delayq_status dq_err_wire(delayq *q) {
    return dq_err_set(q->err, DELAYQ_ERR_WIRE,
                      "queue %.64s holds elements of Redisson <= 3.21.0, which "
                      "can't read this handle's elements: open it with "
                      "wire = DELAYQ_REDISSON_OLD",
                      q->name);
}

/* Does it pass by itself? */
static int dq_err_passing(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}

/*-----------------------------------------------------------------------------
 * MARK: - URL
 * >>url   the URL of options.url
 *
 * Owns its grammar. A parsed URL points into the text.
 *---------------------------------------------------------------------------*/

#define DQ_HOSTS_MAX 64

typedef struct dq_url {
    const char *hosts; /* in the URL: host[:port][,...], or a socket's path */
    size_t hosts_len;
    unsigned count; /* of the hosts */
    int local, sentinel, tls, login, db;
    char user[256], password[512], service[256];
} dq_url;

/* Copy with %XX decoded; 0 where it doesn't fit or is broken. */
static int dq_url_unescape(char *to, size_t size, const char *from,
                           size_t len) {
    size_t n = 0;
    while (len > 0) {
        int c = (unsigned char)*from;
        if (c == '%') {
            int hi = len > 2 ? dq_num_unhex(from[1]) : -1;
            int lo = len > 2 ? dq_num_unhex(from[2]) : -1;
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
    a->port = colon ? dq_num_small(colon + 1, (size_t)(end - colon - 1), 65535)
                    : port;
    return a->port > 0 ? NULL : "the port is no number from 1 to 65535";
}

/* The host of a number, counted round and round. */
static const char *dq_url_host(const dq_url *u, unsigned number,
                               delayq_address *a) {
    const char *p = u->hosts, *end = p + u->hosts_len, *comma;
    if (u->local) {
        a->port = 0;
        return dq_url_unescape(a->host, sizeof a->host, p, u->hosts_len)
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
        if (!dq_url_unescape(u->service, sizeof u->service, p, len))
            return "the service is too long or has a broken %XX";
        p += len;
        p += *p == '/';
    }
    u->db = *p ? dq_num_small(p, strlen(p), 1000000) : 0;
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
    if (at > p) { /* user, :password, or both */
        const char *colon = (const char *)memchr(p, ':', (size_t)(at - p));
        const char *user_end = colon ? colon : at - 1;
        u->login = 1;
        if (!dq_url_unescape(u->user, sizeof u->user, p,
                             (size_t)(user_end - p)))
            return "the user is too long or has a broken %XX";
        if (colon && !dq_url_unescape(u->password, sizeof u->password,
                                      colon + 1, (size_t)(at - 2 - colon)))
            return "the password is too long or has a broken %XX";
    }
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
 * >>tls   TLS with OpenSSL
 *
 * Owns the SSL_CTX of a connection. Not hiredis' own functions, since they
 * look neither at the host's name nor at a deadline.
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
static delayq_status dq_tls_fail(delayq_conn *conn, delayq_status status,
                                 const char *where, const SSL *ssl) {
    long verdict = ssl ? SSL_get_verify_result(ssl) : X509_V_OK;
    const char *why = ERR_reason_error_string(ERR_get_error());
    if (verdict != X509_V_OK) {
        status = DELAYQ_ERR_AUTH;
        why = X509_verify_cert_error_string(verdict);
    }
    return dq_err_set(conn->err, status, "TLS, %s: %s", where,
                      why ? why : "the connection is lost");
}

/* The TLS handshake; it writes to the socket. */
static delayq_status dq_tls_start(delayq_conn *conn, redisContext *c,
                                  const char *host, const char *where,
                                  int64_t deadline) {
    delayq_status status = DELAYQ_OK;
    dq_sys_signals old;
    SSL *ssl;
    int said;
    ERR_clear_error();
    if (!conn->tls) conn->tls = dq_tls_context(&conn->owner->options);
    if (!conn->tls)
        return dq_tls_fail(conn, DELAYQ_ERR_ARG, "options.tls_...", NULL);
    ssl = SSL_new((SSL_CTX *)conn->tls);
    /* The certificate has to be the host's. */
    if (!ssl ||
        (!X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) &&
         !(SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host)))) {
        SSL_free(ssl);
        return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
    }
    dq_sys_block_sigpipe(&old);
    if (redisInitiateSSL(c, ssl) != REDIS_OK) {
        status = dq_tls_fail(conn, DELAYQ_ERR_IO, where, ssl);
        SSL_free(ssl); /* hiredis owns it only after a success */
    }
    while (status == DELAYQ_OK && (said = SSL_do_handshake(ssl)) != 1) {
        int wants = SSL_get_error(ssl, said);
        if (wants != SSL_ERROR_WANT_READ && wants != SSL_ERROR_WANT_WRITE)
            status = dq_tls_fail(conn, DELAYQ_ERR_IO, where, ssl);
        else if (!dq_sys_poll_one(
                     c->fd, wants == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT,
                     deadline))
            status = dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                                "TLS, %s: not in time", where);
    }
    dq_sys_unblock_sigpipe(&old, status != DELAYQ_OK);
    return status;
}

static void dq_tls_end(delayq_conn *conn) {
    SSL_CTX_free((SSL_CTX *)conn->tls);
    conn->tls = NULL;
}

#else

static delayq_status dq_tls_start(delayq_conn *conn, redisContext *c,
                                  const char *host, const char *where,
                                  int64_t deadline) {
    (void)c, (void)host, (void)where, (void)deadline;
    return dq_err_set(conn->err, DELAYQ_ERR_ARG, "compiled without DELAYQ_TLS");
}

static void dq_tls_end(delayq_conn *conn) {
    (void)conn;
}

#endif

/*-----------------------------------------------------------------------------
 * MARK: - Scripts
 * >>scripts   the Lua that runs in the server
 *
 * A script is its fragments, complete chunks that define functions, and one
 * main at the end. Two fragments for the usual case, offer_usual and
 * take_usual, also run by themselves, before the rest. `make lua` writes the
 *scripts to build/lua/NAME.lua, where the line in an error message can be
 *looked up.
 *
 * Each script that moves items works in four steps: read (also what it will
 * write: a wrong type ends it here), probe (the later removal with an empty
 * range: a missing permission ends it here, and after any write command Redis
 * no longer refuses for memory), add, remove. So a refusal at any point leaves
 * everything where it was.
 *
 * A script measures its work, not time, which stands still inside scripts
 * since Redis 7.2: it reads chunks that grow to 64 elements, until its limit
 * or DQ_BUDGET. Strings are never compared with <, which follows the server's
 * locale. A number becomes text by string.format('%.0f'): `..` writes only 14
 * digits. As an argument of redis.call it needs no text: Redis writes 17.
 *
 * Every reply is an array that begins with the server's clock in microseconds.
 * Whole numbers are sent as integers.
 *---------------------------------------------------------------------------*/

#define DQ_BUDGET "262144" /* bytes of elements that one script reads */

/* clock(): the server's clock in microseconds, and in whole milliseconds. */
static const char dq_lua_clock[] = "local function clock()\n"
                                   "  local time = redis.call('TIME')\n"
                                   "  local us = time[1] * 1000000 + time[2]\n"
                                   "  return us, math.floor(us / 1000)\n"
                                   "end\n";

/* split(e, old_first): as dq_elem_parse in C: the kind of an element and the
 * start of its payload, or nil. attempts(e): the count in one of kind 16. */
static const char dq_lua_split[] =
    "local function payload_start(e, at)\n"
    "  local rest = #e - at + 1\n"
    "  if rest >= 8 and struct.unpack('I8', e, at) == rest - 8 then\n"
    "    return at + 8\n"
    "  end\n"
    "  if rest >= 4 and struct.unpack('I4', e, at) == rest - 4 then\n"
    "    return at + 4\n"
    "  end\n"
    "end\n"
    "local function split(e, old_first)\n"
    "  local kind, old = string.byte(e, 1), payload_start(e, 9)\n"
    "  local new = (kind == 16 or kind == 8) and payload_start(e, kind + 2)\n"
    "  if old and (old_first or not new) then return 0, old end\n"
    "  if new then return kind, new end\n"
    "end\n";
static const char dq_lua_attempts[] =
    "local function attempts(e)\n"
    "  local high, low = string.byte(e, 16, 17)\n"
    "  return high * 256 + low\n"
    "end\n"
    "local function with_attempts(e, n)\n"
    "  return string.sub(e, 1, 15) ..\n"
    "    string.char(math.floor(n / 256), n % 256) .. string.sub(e, 18)\n"
    "end\n";

/* PROBE: what a new connection asks of a queue, which works also on another
 * node of a cluster, and under an ACL that hides the mirror: its keys are not
 * declared.
 * ARGV     1 zset, 2 mirror
 * returns  clock; 1 where an element of Redisson <= 3.21.0 stands at a head,
 *          else 0; an unsigned long of 1, as the server packs it */
static const char dq_lua_probe[] =
    "local function is_old(e)\n"
    "  return type(e) == 'string' and split(e) == 0\n"
    "end\n"
    "local old = is_old(redis.pcall('LINDEX', ARGV[2], 0)) or\n"
    "  is_old(redis.pcall('ZRANGE', ARGV[1], 0, 0)[1])\n"
    "return {clock(), old and 1 or 0, struct.pack('L', 1)}\n";

/* find(zset, due, prefix): the rank at which the element of score due whose
 * first bytes are prefix stands, or would stand, and the element if it is
 * there. By bisection within its millisecond; mostly it is the first there. */
static const char dq_lua_find[] =
    "local function sorts_before(e, prefix)\n"
    "  for i = 1, #prefix do\n"
    "    local a, b = string.byte(e, i) or -1, string.byte(prefix, i)\n"
    "    if a ~= b then return a < b end\n"
    "  end\n"
    "end\n"
    "local function find(zset, due, prefix)\n"
    "  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. due)\n"
    "  local high = low + redis.call('ZCOUNT', zset, due, due)\n"
    "  local rank = low\n"
    "  while low < high do\n"
    "    local e = redis.call('ZRANGE', zset, rank, rank)[1]\n"
    "    if string.sub(e, 1, #prefix) == prefix then return rank, e end\n"
    "    if sorts_before(e, prefix) then low = rank + 1 else high = rank end\n"
    "    rank = math.floor((low + high) / 2)\n"
    "  end\n"
    "  return low\n"
    "end\n";

/* remove(zset, argv, from, to, reply): take the elements of the pairs (due,
 * prefix) in argv[from .. to] out of the zset. Appends to reply, and returns
 * it: of each pair 1 (done) or 0 (not there). Where a millisecond holds not
 * many more than are asked for, as after a take of many, it is read once. */
static const char dq_lua_remove[] =
    "local function remove(zset, argv, from, to, reply)\n"
    "  local found, page, page_name = {}, nil, nil\n"
    "  local many = to - from + 1\n"
    "  for i = from, to, 2 do\n"
    "    local due, prefix, e = argv[i], argv[i + 1]\n"
    "    local name = due .. ':' .. #prefix\n"
    "    if many > 2 and name ~= page_name and\n"
    "      redis.call('ZCOUNT', zset, due, due) <= many then\n"
    "      page, page_name = {}, name\n"
    "      local all = redis.call('ZRANGEBYSCORE', zset, due, due)\n"
    "      for _, each in ipairs(all) do\n"
    "        page[string.sub(each, 1, #prefix)] = each\n"
    "      end\n"
    "    end\n"
    "    if name == page_name then\n"
    "      e, page[prefix] = page[prefix], nil\n"
    "    else\n"
    "      e = select(2, find(zset, due, prefix))\n"
    "    end\n"
    "    found[#found + 1] = e\n"
    "    reply[#reply + 1] = e and 1 or 0\n"
    "  end\n"
    "  for i = 1, #found, 500 do\n"
    "    local last = math.min(i + 499, #found)\n"
    "    redis.call('ZREM', zset, unpack(found, i, last))\n"
    "  end\n"
    "  return reply\n"
    "end\n";

/* publish_if_head(zset, channel, due, ties): tell a due time on the channel if
 * only `ties` elements are due by then. Counted, not read: the head may be
 * large. Where that is forbidden, others see to the item at their next poll. */
static const char dq_lua_publish[] =
    "local function publish_if_head(zset, channel, due, ties)\n"
    "  local text = string.format('%.0f', due)\n"
    "  if redis.pcall('ZCOUNT', zset, '0', text) == ties then\n"
    "    redis.pcall('PUBLISH', channel, text)\n"
    "  end\n"
    "end\n";

/* OFFER
 * KEYS     1 zset, 2 mirror (only where the wire has one)
 * ARGV     1 channel, then pairs, 128 at most: when, element
 *          when: a delay in ms, or - and a due time; '': as the one before;
 *          with !T behind it, it is sent again, and has been due at T if the
 *          first sending was stored
 * returns  clock; due = delay + that time in ms, rounded up. Then, of those
 *          that were sent again, pairs: its number (from 1), and the due time
 *          that stands, or -1 if it may have been delivered meanwhile */
/* The usual offer, made for speed: one message, a first sending, no mirror. */
static const char dq_lua_offer_usual[] =
    "local wait = not KEYS[2] and not ARGV[4] and tonumber(ARGV[2])\n"
    "if wait then\n"
    "  local zset, channel, call = KEYS[1], ARGV[1], redis.call\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local due = wait < 0 and -wait or math.ceil(us / 1000) + wait\n"
    /* faster than %.0f; a %d may have 32 bits */
    "  local text = string.format('%d%07d', due / 10000000, due % 10000000)\n"
    "  call('ZADD', zset, 'NX', text, ARGV[3])\n"
    "  if redis.pcall('ZCOUNT', zset, '0', text) == 1 then\n"
    "    redis.pcall('PUBLISH', channel, text)\n"
    "  end\n"
    "  return {us}\n"
    "end\n";
/* read_when(when, base): the due time; and, if it is sent again, whether the
 * first sending may have been delivered. */
static const char dq_lua_when[] =
    "local function read_when(when, base)\n"
    "  local delay, after = tonumber(when), nil\n"
    "  if not delay then\n"
    "    delay, after = string.match(when, '^(-?%d+)!(%d+)$')\n"
    "    delay, after = tonumber(delay), base >= tonumber(after)\n"
    "  end\n"
    "  return delay < 0 and -delay or base + delay, after\n"
    "end\n";
static const char dq_lua_offer[] =
    "local zset, mirror, channel = KEYS[1], KEYS[2], ARGV[1]\n"
    "local us = clock()\n"
    "local base, reply = math.ceil(us / 1000), {us}\n"
    "local first, ties, at, last, text = nil, 0, nil, 1, nil\n"
    "if mirror then\n"
    /* refused like the ZADD that follows the RPUSH, and does nothing */
    "  redis.call('LLEN', mirror)\n"
    "  redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "end\n"
    /* what is to be stored stands at the beginning of ARGV then */
    "for i = 2, #ARGV, 2 do\n"
    "  local when, e, delivered, stands = ARGV[i], ARGV[i + 1], nil, nil\n"
    "  if when ~= '' then\n"
    "    at, delivered = read_when(when, base)\n"
    "    text = string.format('%.0f', at)\n"
    "    stands = delivered ~= nil and redis.call('ZSCORE', zset, e)\n"
    "  end\n"
    "  if stands or delivered then\n"
    "    reply[#reply + 1] = i / 2\n"
    "    reply[#reply + 1] = stands and tonumber(stands) or -1\n"
    "  else\n"
    "    ARGV[last + 1], ARGV[last + 2] = text, e\n"
    "    last = last + 2\n"
    "    if not first or at < first then first, ties = at, 0 end\n"
    "    if at == first then ties = ties + 1 end\n"
    "  end\n"
    "end\n"
    "if not first then return reply end\n"
    "for i = 3, mirror and last or 0, 2 do\n"
    "  redis.call('RPUSH', mirror, ARGV[i])\n"
    "end\n"
    "redis.call('ZADD', zset, 'NX', unpack(ARGV, 2, last))\n"
    "publish_if_head(zset, channel, first, ties)\n"
    "return reply\n";

/* OFFER_KEYED
 * KEYS     1 zset, 2 the key's ticket, 3 mirror (only where the wire has one)
 * ARGV     1 channel, 2 when (as above), 3 element, 4 its id in hex, 5 the
 *          key's life in ms, 6 '1': take the place of the first
 * returns  clock; 0: stored, 1: the key is taken, 2: sent again, and may have
 *          been delivered meanwhile; due; the key's ticket */
static const char dq_lua_offer_keyed[] =
    "local zset, holder, mirror = KEYS[1], KEYS[2], KEYS[3]\n"
    "local channel, when, e, id, ttl_ms, replace = unpack(ARGV)\n"
    "local us = clock()\n"
    "local due, delivered = read_when(when, math.ceil(us / 1000))\n"
    "local held = redis.call('GET', holder) or ''\n"
    "local held_due, held_id = string.match(held, '^(%d+)-(%x+)$')\n"
    "if held_id == id then return {us, 0, tonumber(held_due), held} end\n"
    "if held ~= '' and replace ~= '1' then return {us, 1, due, held} end\n"
    "if delivered then return {us, 2, due, ''} end\n"
    "local prefix, old\n"
    "if held_id then\n"
    "  prefix = string.gsub(held_id, '%x%x', function(digits)\n"
    "    return string.char(tonumber(digits, 16))\n"
    "  end)\n"
    "  if #prefix == 16 then prefix = '\\16' .. prefix end\n"
    "  old = select(2, find(zset, held_due, prefix))\n"
    "end\n"
    "redis.call('ZCOUNT', zset, 0, 0)\n"
    /* probes, each without an effect */
    "redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "local unless = held == '' and 'XX' or 'NX'\n"
    "redis.call('SET', holder, held, unless, 'PX', ttl_ms)\n"
    "if old then redis.call('ZREMRANGEBYRANK', zset, 1, 0) end\n"
    "if mirror then\n"
    "  redis.call('LLEN', mirror)\n"
    "  if old then redis.call('LREM', mirror, 1, old) end\n"
    "  redis.call('RPUSH', mirror, e)\n"
    "end\n"
    "redis.call('ZADD', zset, 'NX', due, e)\n"
    "local ticket = string.format('%.0f', due) .. '-' .. id\n"
    "redis.call('SET', holder, ticket, 'PX', ttl_ms)\n"
    "if old then\n"
    "  local rank = find(zset, held_due, prefix)\n"
    "  redis.call('ZREMRANGEBYRANK', zset, rank, rank)\n"
    "end\n"
    "publish_if_head(zset, channel, due, 1)\n"
    "return {us, 0, due, ticket}\n";

/* What TICK, TAKE and BROADCAST know and count while they run.
 * KEYS     1 zset, 2 ready (broadcast: stream), 3 retry (native) or mirror
 *          (Redisson), 4 dead
 * ARGV     1 wire: n, r, o, or b for broadcast; 2 limit: items to move; 3
 *          horizon: how far to look for the next due time, in ms
 *
 * ready, other: the lengths of keys[2] and keys[3]. Behind the 9 numbers with
 * which it begins, `reply` has what is handed out: pairs (due time, bytes); its
 * first `safe` values are of items that have left. finish_run fills in these
 * numbers. */
static const char dq_lua_run[] =
    "local function begin_run(keys, argv, ready, other)\n"
    "  local us, now = clock()\n"
    "  return {\n"
    "    zset = keys[1], ready_list = keys[2], other_list = keys[3],\n"
    "    dead_list = keys[4], wire = argv[1], native = argv[1] == 'n',\n"
    "    us = us, now = now, horizon = now + argv[3],\n"
    "    ready = ready, other = other, bytes = 0, from_rank = 0,\n"
    "    moved = 0, dead = 0, old = 0,\n"
    "    safe = 9, reply = {us, 0, 0, 0, 0, 0, 0, 0, 0}\n"
    "  }\n"
    "end\n"
    "local function finish_run(run)\n"
    "  local reply, soon, next = run.reply, run.soon, 0\n"
    /* microseconds until something is due; -1: nothing within the horizon */
    "  if run.old == 1 or run.all and not soon then next = -1\n"
    "  elseif run.all then\n"
    "    next = math.max(0, math.min(1e13, soon * 1000 - run.us))\n"
    "  end\n"
    "  reply[2] = next\n"
    "  reply[3] = run.native and run.ready + run.other or run.ready\n"
    "  reply[4], reply[5], reply[6] = run.moved, run.dead, run.old\n"
    "  return reply\n"
    "end\n"
    /* a dead letter, of which run.now is the date */
    "local function dead_letter(run, reason, e)\n"
    "  return reason .. string.format(' %.0f\\n', run.now) .. e\n"
    "end\n";

/* in_chunks(run, max, chunk, ...): the one loop that keeps to the budget, of
 * which run.bytes are used. It calls chunk(run, count, ...) at least once,
 * first with 1 (0 if max is 0), then with what the budget may hold, 64 at most;
 * that returns how many it has got towards max, their bytes, and false if
 * nothing is left. cost(e): what an element counts; 64, since many small ones
 * are work, too. */
static const char dq_lua_chunks[] =
    "local function cost(e) return #e + 64 end\n"
    "local function in_chunks(run, max, chunk, ...)\n"
    "  local got, size = 0, 1\n"
    "  repeat\n"
    "    local n, bytes, more = chunk(run, math.min(size, max - got), ...)\n"
    "    got, run.bytes = got + n, run.bytes + bytes\n"
    /* as many as the budget may hold, by those read so far */
    "    local room = (" DQ_BUDGET " - run.bytes) * got / (run.bytes + 1)\n"
    "    size = math.min(64, 8 * size, math.max(1, math.floor(room)))\n"
    "  until not more or got >= max or run.bytes >= " DQ_BUDGET "\n"
    "end\n";

/* drain(run, max, keep, add): empty the zset of what is due. What can't be
 * decoded goes to the dead letters. keep(run, due, e, kind, start) is called
 * with each other element; it returns a reason if that shall go there, too; or
 * nil, and true if it stays in the zset. Without keep all are handed out.
 * add(run) is called once a chunk, to put away what was kept. run.mirror, of
 * Redisson's wires only: what has left the zset leaves the mirror when a drain
 * ends, in whatever way.
 *
 * Each chunk is read with the element behind it, which tells when to come
 * again: run.soon, nil where nothing is within the horizon (so a look copies
 * no large element that is far off). run.all: nothing due is left. */
static const char dq_lua_drain[] =
    "local function read_due(run, count)\n"
    "  local function read()\n"
    "    return redis.call('ZRANGEBYSCORE', run.zset, '-inf', run.horizon,\n"
    "      'WITHSCORES', 'LIMIT', run.from_rank, count + 1)\n"
    "  end\n"
    "  local found = read()\n"
    /* what is below 0 is never due */
    "  local score = found[2]\n"
    "  if run.from_rank == 0 and score and string.byte(score) == 45 then\n"
    "    run.from_rank = redis.call('ZCOUNT', run.zset, '-inf', '(0')\n"
    "    found = read()\n"
    "  end\n"
    "  local due = #found / 2\n"
    "  run.soon = nil\n"
    "  while due > 0 and tonumber(found[2 * due]) > run.now do\n"
    "    run.soon = tonumber(found[2 * due])\n"
    "    due = due - 1\n"
    "  end\n"
    "  run.all = due <= count\n"
    "  return found, math.min(due, count)\n"
    "end\n"
    "local function drain_chunk(run, want, keep, add)\n"
    "  local mirror, reply = run.mirror, run.reply\n"
    "  local old_first = run.wire == 'o'\n"
    "  local found, due = read_due(run, want)\n"
    "  local bad, read, stay, bytes, at = {}, 0, 0, 0, #reply\n"
    "  local byte, unpacked = string.byte, struct.unpack\n"
    "  for i = 1, 2 * due, 2 do\n"
    "    local e, reason, stays = found[i]\n"
    "    local kind, start, length = 16, 26, #e - 25\n"
    /* the usual one, without a call */
    "    if old_first or length < 0 or byte(e) ~= 16 or\n"
    "      unpacked('I8', e, 18) ~= length then\n"
    "      kind, start = split(e, old_first)\n"
    "    end\n"
    "    if kind == 0 and not old_first then run.old = 1 break end\n"
    "    if mirror and not mirror.locate(e, kind) then\n"
    "      run.all = false\n"
    "      break\n"
    "    end\n"
    "    if not kind then\n"
    "      reason = 'undecodable'\n"
    "    elseif keep then\n"
    "      reason, stays = keep(run, found[i + 1], e, kind, start)\n"
    "    else\n"
    "      reply[at + 1], reply[at + 2] = found[i + 1] + 0, e\n"
    "      at = at + 2\n"
    "    end\n"
    "    if reason then bad[#bad + 1] = dead_letter(run, reason, e) end\n"
    "    if stays then stay = stay + 1 end\n"
    "    read, bytes = read + 1, bytes + #e + 64\n"
    "  end\n"
    "  if read == 0 then return 0, 0, false end\n"
    "  if #bad > 0 and not run.dead_list then\n"
    "    error('TRYAGAIN dead letters', 0)\n"
    "  end\n"
    /* prove the rights to write, once, and that memory is no obstacle */
    "  if (add or #bad > 0 or mirror) and not run.probed then\n"
    "    redis.call('ZREMRANGEBYRANK', run.zset, 1, 0)\n"
    "    if run.lease_end then\n"
    "      redis.call('ZADD', run.zset, 'XX', 'INCR', 0, '')\n"
    "    end\n"
    "    run.probed = true\n"
    "  end\n"
    "  if mirror then mirror.probe() end\n"
    "  if #bad > 0 then redis.call('RPUSH', run.dead_list, unpack(bad)) end\n"
    "  if add then add(run) end\n"
    "  if read > stay then\n"
    "    redis.call('ZREMRANGEBYRANK', run.zset, run.from_rank,\n"
    "      run.from_rank + read - stay - 1)\n"
    "  end\n"
    "  if mirror then mirror.left() end\n"
    "  run.dead, run.safe = run.dead + #bad, #reply\n"
    "  return read - #bad, bytes, not run.all and run.old == 0\n"
    "end\n"
    "local function drain(run, max, keep, add)\n"
    "  if run.old == 1 or run.bytes >= " DQ_BUDGET " then max = 0 end\n"
    "  if not run.mirror then\n"
    "    return in_chunks(run, max, drain_chunk, keep, add)\n"
    "  end\n"
    "  local fine, why = pcall(in_chunks, run, max, drain_chunk, keep, add)\n"
    "  run.mirror.sweep()\n"
    "  if fine then return end\n"
    /* the prefix is written once more where this ends the script */
    "  if type(why) == 'string' then why = string.gsub(why, '^ERR ', '') end\n"
    "  error(why, 0)\n"
    "end\n";

/* move(run, max): from the zset to the lists. */
static const char dq_lua_move[] =
    "local function move(run, max)\n"
    "  local payloads, retries = {}, {}\n"
    "  local native, byte, sub = run.native, string.byte, string.sub\n"
    "  drain(run, max, function(_, _, e, kind, start)\n"
    "    local high, low = byte(e, 16, 17)\n"
    "    if native and kind == 16 and (low > 0 or high > 0) then\n"
    "      retries[#retries + 1] = e\n"
    "    else\n"
    "      payloads[#payloads + 1] = sub(e, start)\n"
    "    end\n"
    "  end, function()\n"
    "    if #retries > 0 then\n"
    "      run.other = redis.call('RPUSH', run.other_list, unpack(retries))\n"
    "    end\n"
    "    if #payloads > 0 then\n"
    "      run.ready = redis.call('RPUSH', run.ready_list, unpack(payloads))\n"
    "    end\n"
    "    run.moved = run.moved + #retries + #payloads\n"
    "    payloads, retries = {}, {}\n"
    "  end)\n"
    "end\n";

/* The mirror of a Redisson fleet stands in order of offer. Elements of delayq
 * are found there by the time in their ids; where offers of several hosts have
 * overtaken each other, in the neighbourhood. Foreign ids tell no time: their
 * LREM walks through the list.
 *
 * open_mirror(run) gives four functions. locate(e, kind) finds an element and
 * writes nothing; false: the budget of 100,000 steps is used up. probe() proves
 * the right to write. left() says that those located so far have left the
 * zset. sweep() takes these out of the mirror: the first ones by LTRIM, others
 * marked with LSET and removed by one LREM. */
static const char dq_lua_mirror_seek[] =
    /* the microseconds in an id; nil where there are none */
    "local function offered_at(m, e)\n"
    "  local high, low, us\n"
    "  if m.run.wire == 'o' and #e > 8 then\n"
    "    high, low = struct.unpack('>I4I4', e)\n"
    "    us = high * 2097152 + math.floor(low / 2048)\n"
    "  elseif string.byte(e) == 16 and #e > 17 then\n"
    "    high, low = struct.unpack('>I4I4', e, 2)\n"
    "    us = high * 4294967296 + low\n"
    "  end\n"
    /* 30 years */
    "  if us and math.abs(us - m.run.us) < 1e15 then return us end\n"
    "end\n"
    /* the same of the element at an index; read once */
    "local function time_at(m, index)\n"
    "  if m.times[index] == nil then\n"
    "    local e = redis.call('LINDEX', m.list, index)\n"
    "    m.bytes = m.bytes + (e and #e or 0)\n"
    "    m.times[index] = e and offered_at(m, e) or false\n"
    "  end\n"
    "  return m.times[index]\n"
    "end\n"
    "local function look_between(m, e, from, to)\n"
    "  if m.bytes > " DQ_BUDGET " then return nil end\n"
    "  from = math.max(from, 0)\n"
    "  for i, found in ipairs(redis.call('LRANGE', m.list, from, to)) do\n"
    "    m.bytes = m.bytes + #found\n"
    "    if found == e then return from + i - 1 end\n"
    "  end\n"
    "end\n"
    /* by interpolation, a little past the guess, so that it soon lies between;
     * by halves where that gets on badly */
    "local function seek(m, e)\n"
    "  local time, a, b, slow = offered_at(m, e), m.first, m.run.other - 1, 0\n"
    "  if not time then return nil end\n"
    "  local at_a, at_b = time_at(m, a) or 0, time_at(m, b) or 1e17\n"
    "  while b - a > 24 do\n"
    "    local width, at = b - a, math.floor((a + b) / 2)\n"
    "    if slow < 2 and at_a < at_b then\n"
    "      local past = math.floor(math.sqrt(width))\n"
    "      at = a + math.floor(width * (time - at_a) / (at_b - at_a))\n"
    "      at = math.max(a + past, math.min(b - past, at))\n"
    "    end\n"
    "    local there, stop = time_at(m, at), math.min(at + 8, b - 1)\n"
    /* past some foreign ones */
    "    while not there and at < stop do\n"
    "      at = at + 1\n"
    "      there = time_at(m, at)\n"
    "    end\n"
    "    if not there then return nil end\n"
    "    if there <= time then a, at_a = at, there end\n"
    "    if there >= time then b, at_b = at, there end\n"
    "    slow = b - a > width / 2 and (slow + 1) % 3 or 0\n"
    "  end\n"
    "  return look_between(m, e, a, b) or\n"
    "    look_between(m, e, a - 32, b + 32) or\n"
    "    look_between(m, e, a - 256, b + 256)\n"
    "end\n";
static const char dq_lua_mirror[] =
    "local function open_mirror(run)\n"
    "  local m = {run = run, list = run.other_list, located = {}, gone = 0,\n"
    "    first = 0, work = 0, bytes = 0, times = {}}\n"
    "  function m.locate(e, kind)\n"
    /* a lease never stands in the mirror */
    "    if kind == 16 and attempts(e) > 0 then return true end\n"
    "    if m.work >= 100000 then return false end\n"
    "    local at\n"
    "    m.head = m.head or redis.call('LINDEX', m.list, m.first)\n"
    "    if m.head == e then\n"
    "      at, m.first, m.head = m.first, m.first + 1, nil\n"
    /* LREM copies nothing: better for large payloads */
    "    elseif run.other > 1000 and #e < 4096 and m.bytes < " DQ_BUDGET
    " then\n"
    "      at = seek(m, e)\n"
    "      m.sample_at, m.sample = at or m.sample_at, at and e or m.sample\n"
    "    end\n"
    "    m.work = m.work + 10 + run.other / (at and 1000 or 1)\n"
    "    m.located[#m.located + 1] = at or e\n"
    "    return true\n"
    "  end\n"
    /* LSET of what stands there already */
    "  function m.probe()\n"
    "    if not m.probed then\n"
    "      redis.call('LREM', run.dead_list, 1, '')\n"
    "      if run.other > 0 then redis.call('LTRIM', m.list, 0, -1) end\n"
    "    end\n"
    "    if m.sample and not m.set then\n"
    "      redis.call('LSET', m.list, m.sample_at, m.sample)\n"
    "    end\n"
    "    m.probed, m.set = true, m.sample\n"
    "  end\n"
    "  function m.left() m.gone = #m.located end\n"
    "  function m.sweep()\n"
    "    local marks, least, most, first = 0, run.other, 0, 0\n"
    "    local mark = string.format('delayq %.0f', run.us)\n"
    "    for i = 1, m.gone do\n"
    "      local at = m.located[i]\n"
    "      if at == first then first = first + 1\n"
    "      elseif type(at) == 'number' then\n"
    "        redis.call('LSET', m.list, at, mark)\n"
    "        marks = marks + 1\n"
    "        least, most = math.min(least, at), math.max(most, at)\n"
    "      end\n"
    "    end\n"
    /* from the end that is nearer to the farthest mark */
    "    if marks > 0 then\n"
    "      if run.other - least < most then marks = -marks end\n"
    "      redis.call('LREM', m.list, marks, mark)\n"
    "    end\n"
    "    if first > 0 then redis.call('LTRIM', m.list, first, -1) end\n"
    "    for i = 1, m.gone do\n"
    "      local e = m.located[i]\n"
    "      if type(e) == 'string' then redis.call('LREM', m.list, 1, e) end\n"
    "    end\n"
    "    m.located, m.gone, m.first, m.head, m.times = {}, 0, 0, nil, {}\n"
    "    run.other = redis.call('LLEN', m.list)\n"
    "  end\n"
    "  return m\n"
    "end\n";
/* A native queue has none. */
static const char dq_lua_no_mirror[] = "local function open_mirror() end\n";

/* TICK. KEYS, ARGV: see dq_lua_run.
 * Returns clock, next, ready, moved, dead, old; then zeros. */
static const char dq_lua_tick[] =
    "local ready = redis.call('LLEN', KEYS[2])\n"
    "local run = begin_run(KEYS, ARGV, ready, redis.call('LLEN', KEYS[3]))\n"
    "run.mirror = open_mirror(run)\n"
    "move(run, tonumber(ARGV[2]))\n"
    "return finish_run(run)\n";

/* A lease is a re-offer: the element goes back into the zset, its attempt
 * count raised, due at the lease's end.
 *
 * give(run, due, e, kind, start): hand out an element, or e without a kind, a
 * raw payload. With a lease what is put back is held until commit(run) adds it
 * to the zset. Returns what drain's keep does.
 * take_listed(run, count): hand out what lies in the lists, by turns. */
static const char dq_lua_give[] =
    "local function new_element(run, payload)\n"
    "  local old = run.wire == 'o'\n"
    "  local order = run.order * (old and 2048 or 1)\n"
    "  local high = math.floor(order / 4294967296)\n"
    "  local low = order - high * 4294967296\n"
    "  local tail = struct.pack('L', #payload) .. payload\n"
    "  run.order = run.order + 1\n"
    "  if old then\n"
    "    return struct.pack('>I4I4', high, low + run.id_rest) .. tail\n"
    "  end\n"
    "  return '\\16' .. struct.pack('>I4I4', high, low) .. run.id_rest ..\n"
    "    '\\0\\1' .. tail\n"
    "end\n"
    "local function give(run, due, e, kind, start)\n"
    "  local again, reply, held, n = e, run.reply, run.held, 0\n"
    "  if kind == 16 then\n"
    "    n = attempts(e)\n"
    "    if run.most > 0 and n >= run.most then return 'attempts' end\n"
    "  end\n"
    "  if run.lease_end then\n"
    "    if kind == 16 then\n"
    "      again = with_attempts(e, math.min(n + 1, 65535))\n"
    "    elseif kind ~= 0 then\n"
    "      again = new_element(run, kind and string.sub(e, start) or e)\n"
    "    end\n"
    "    held[#held + 1], held[#held + 2] = run.lease_end, again\n"
    "  end\n"
    "  reply[#reply + 1], reply[#reply + 2] = tonumber(due), again\n"
    "  return nil, run.lease_end and again == e\n"
    "end\n"
    "local function commit(run)\n"
    "  local held = run.held\n"
    "  if #held > 0 then redis.call('ZADD', run.zset, unpack(held)) end\n"
    "  run.held = {}\n"
    "end\n";
static const char dq_lua_take_listed[] =
    "local function take_listed(run, count)\n"
    "  local function read(list, length)\n"
    "    if length == 0 then return {} end\n"
    "    return redis.call('LRANGE', list, 0, count - 1)\n"
    "  end\n"
    "  local retries = read(run.other_list, run.native and run.other or 0)\n"
    "  local payloads = read(run.ready_list, run.ready)\n"
    "  local i, j, bad, bytes = 0, 0, {}, 0\n"
    "  while i + j - #bad < count and (i < #retries or j < #payloads) do\n"
    "    local e, reason\n"
    "    if i < #retries and (run.retry_turn or j == #payloads) then\n"
    "      i = i + 1\n"
    "      e = retries[i]\n"
    "      local kind, start = split(e)\n"
    "      reason = not kind and 'undecodable' or\n"
    "        give(run, -1, e, kind, start)\n"
    "    else\n"
    "      j = j + 1\n"
    "      e = payloads[j]\n"
    "      give(run, run.lease_end and -1 or -2, e)\n"
    "    end\n"
    "    if reason then bad[#bad + 1] = dead_letter(run, reason, e) end\n"
    "    bytes, run.retry_turn = bytes + cost(e), not run.retry_turn\n"
    "  end\n"
    "  if run.lease_end or #bad > 0 or i > 0 and j > 0 then\n"
    "    if i > 0 then redis.call('LTRIM', run.other_list, 0, -1) end\n"
    "    if j > 0 then redis.call('LTRIM', run.ready_list, 0, -1) end\n"
    "    if #run.held > 0 then\n"
    "      redis.call('ZADD', run.zset, 'XX', 'INCR', 0, '')\n"
    "    end\n"
    "  end\n"
    "  if #bad > 0 then redis.call('RPUSH', run.dead_list, unpack(bad)) end\n"
    "  commit(run)\n"
    "  if i > 0 then redis.call('LTRIM', run.other_list, i, -1) end\n"
    "  if j > 0 then redis.call('LTRIM', run.ready_list, j, -1) end\n"
    "  run.ready, run.other = run.ready - j, run.other - i\n"
    "  run.dead, run.safe = run.dead + #bad, #run.reply\n"
    "  return i + j - #bad, bytes, i + j > 0\n"
    "end\n";

/* waiter_role(reply, waiters, argv): enter the handle among the waiters, or
 * strike it off, by what its take has got. Section Waiters says what the roles
 * mean. Returns the role: 0 none (it has got an item, or stops waiting), 1
 * alone, 2 leader, 3 standby, 4 sleeper.
 *
 * The sorted set holds standbys first, then sleepers, then the leader, told
 * apart by ranges of the score: the time in ms since which a handle waits; of
 * sleepers 1e14 more; of the leader 2e14 more, and the time since which it
 * leads. The set's name is also that of the channel that calls all of them. It
 * lives for a day; then it is lost, as by a FLUSHALL, and made anew.
 *
 * A handle is dead where nobody is subscribed to its channel. One that is
 * frozen is found out by what it was to take: another one gets it late though
 * the leader has led for some time, and empties the set; then all who live
 * enter anew.
 *
 * Nothing in here walks through more than 64 handles. More than that in a row
 * are dead: all are called. */
static const char dq_lua_waiters_leave[] =
    "local function read_waiters(reply, waiters, argv)\n"
    "  local us, next, claim = reply[1], reply[2], argv[16]\n"
    "  local now = math.floor(us / 1000)\n"
    "  local soon = next < 0 and now + argv[3] or\n"
    "    math.ceil((us + next) / 1000)\n"
    "  local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')\n"
    "  local since = (tonumber(last[2]) or 0) - 2e14\n"
    "  return {\n"
    "    set = waiters, id = argv[13], turns = argv[15], claim = claim,\n"
    "    now = now, due = reply[10], any = last[1] ~= nil,\n"
    "    leader = since >= 0 and last[1] or nil, since = since,\n"
    "    soon = string.format('%.0f', math.min(soon, 1e15)),\n"
    "    follows = claim == 'standby' or claim == 'check' or\n"
    "      claim == 'sleeper'\n"
    "  }\n"
    "end\n"
    "local function subscribers(channel)\n"
    "  return redis.call('PUBSUB', 'NUMSUB', channel)[2]\n"
    "end\n"
    "local function call_all(w)\n"
    "  redis.call('UNLINK', w.set)\n"
    "  redis.call('PUBLISH', w.set, subscribers(w.set))\n"
    "end\n"
    "local function hand_over(w)\n"
    "  local others, heard = redis.call('ZRANGE', w.set, 0, 63), nil\n"
    "  local dead = #others\n"
    "  for i, other in ipairs(others) do\n"
    "    if redis.call('PUBLISH', w.turns .. other, w.soon) > 0 then\n"
    "      heard, dead = other, i - 1\n"
    "      break\n"
    "    end\n"
    "  end\n"
    "  if heard then redis.call('ZADD', w.set, 2e14 + w.now, heard) end\n"
    "  if dead == 64 then call_all(w)\n"
    "  elseif dead > 0 then\n"
    "    redis.call('ZREM', w.set, unpack(others, 1, dead))\n"
    "  end\n"
    "end\n"
    "local function leave_waiters(w)\n"
    "  if w.any then redis.call('ZREM', w.set, w.id) end\n"
    "  if w.leader == w.id then return hand_over(w) end\n"
    /* of a push it isn't known how long it has lain there */
    "  local due = w.due\n"
    "  local late = due and (due < 0 and w.follows or\n"
    "    due >= 0 and due < w.now - (w.follows and 50 or 250))\n"
    "  if w.leader and late and w.since < w.now - 250 or not w.leader and\n"
    "    (late and w.follows or w.claim == 'leader') then\n"
    "    call_all(w)\n"
    "  end\n"
    "end\n";
static const char dq_lua_waiters_stay[] =
    "local function follow(w, n, share, channel)\n"
    "  local size = redis.call('ZCARD', w.set)\n"
    "  local standby = share * math.min(n, size) < 16 * 65536\n"
    /* it keeps its place unless its role has changed */
    "  local same = w.follows and standby == (w.claim ~= 'sleeper')\n"
    "  local score = standby and w.now or 1e14 + w.now\n"
    "  if size < 1024 then\n"
    "    redis.call('ZADD', w.set, same and 'NX' or 'CH', score, w.id)\n"
    "  end\n"
    "  if w.claim == 'check' then redis.pcall('PUBLISH', channel, w.soon) end\n"
    "  return standby and 3 or 4\n"
    "end\n"
    "local function lead(w, n)\n"
    "  if w.leader == w.id then return 2 end\n"
    "  if w.leader then redis.call('ZREM', w.set, w.leader) end\n"
    "  redis.call('ZADD', w.set, 2e14 + w.now, w.id)\n"
    "  redis.call('PEXPIRE', w.set, 86400000)\n"
    /* others may believe to be alone, or the set was lost */
    "  local lost = not w.any and (w.follows or w.claim == 'leader')\n"
    "  if lost or w.claim == 'new' then redis.call('PUBLISH', w.set, n) end\n"
    "  return 2\n"
    "end\n"
    "local function role_among_waiters(reply, waiters, argv)\n"
    "  local w = read_waiters(reply, waiters, argv)\n"
    "  if w.due or argv[14] ~= '1' then\n"
    "    leave_waiters(w)\n"
    "    return 0\n"
    "  end\n"
    "  local n = subscribers(waiters)\n"
    "  if n <= 1 then\n"
    "    if w.any then redis.call('UNLINK', waiters) end\n"
    "    return 1\n"
    "  end\n"
    "  if w.leader and w.leader ~= w.id and\n"
    "    subscribers(w.turns .. w.leader) > 0 then\n"
    "    return follow(w, n, argv[17], argv[12])\n"
    "  end\n"
    "  return lead(w, n)\n"
    "end\n"
    /* an ACL that forbids something, a key of another type: as if alone */
    "local function waiter_role(reply, waiters, argv)\n"
    "  local fine, role = pcall(role_among_waiters, reply, waiters, argv)\n"
    "  if fine then return role end\n"
    "  redis.pcall('ZREM', waiters, argv[13])\n"
    "  return 1\n"
    "end\n";

/* TAKE
 * KEYS     1 zset, 2 ready, 3 retry (native) or mirror (Redisson), 4 dead; 5
 *          the waiters, only where the handle is one of them or would be. A
 *          native TAKE may be given the zset alone, from which it takes what is
 *          due while the keys are on their way to another node of a cluster
 * ARGV     1 wire, 2 limit, 3 horizon: see dq_lua_run; 4 how many; 5 'x': the
 *          retry list's turn; 6 most attempts, or 0; 7 lease in ms, or 0; 8
 *          due and 9 prefix of an element to acknowledge before, or ''; with a
 *          lease: 10 order of a new id, 11 the rest of it (6 bytes; with an
 *          old wire a number below 2048); with one or with a fifth key: 12
 *          channel; with a fifth key: 13 the handle's id, 14 '1': it waits if
 *          there is nothing, 15 what the handles' channels begin with, 16 what
 *          it is by its own account: 'new' (since its subscriber is open),
 *          'none', 'leader', 'standby', 'check' (a standby that has found
 *          something overdue), 'sleeper'; 17 its share, a number below 65536.
 *          Those at the end may be missing
 * returns  clock; next, ready, moved, dead, old: see finish_run; the lease's
 *          end, or 0; its role among the waiters; whether what was to be
 *          acknowledged was there (1 or 0). Then pairs: due time, element; for
 *          the due time -1 where it is unknown, -2 before a raw payload
 *
 * Straight from the zset where nothing lies ready. Where something does, what
 * is due goes behind it first, or pushes would starve it. In a Redisson fleet
 * what is left over is moved too, since Java waits for it.
 *
 * What has been handed out or acknowledged stays so: a refusal after that ends
 * the script without an error, which the next call will run into. */
/* take_usual(keys, argv): the usual take, made for speed: a native queue,
 * nothing in its lists, one item to hand out or none.
 * Returns TAKE's reply; or nil, and has written nothing. */
static const char dq_lua_take_usual[] =
    "local function take_usual(keys, argv)\n"
    /* faster than %.0f; a %d may have 32 bits */
    "  local function decimal(n)\n"
    "    return string.format('%d%07d', n / 10000000, n % 10000000)\n"
    "  end\n"
    "  local call, zset, ack = redis.call, keys[1], argv[8]\n"
    "  local lease = argv[7] ~= '0'\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local now, done = math.floor(us / 1000), nil\n"
    "  if ack == '' then ack = nil end\n"
    /* the first two; of three where one of them may be what is acked */
    "  local found = call('ZRANGEBYSCORE', zset, '-inf',\n"
    "    decimal(now + argv[3]), 'WITHSCORES',\n"
    "    'LIMIT', '0', ack and '3' or '2')\n"
    "  local e, due, after = found[1], found[2], found[4]\n"
    "  if ack then\n"
    "    done = call('ZRANGEBYSCORE', zset, ack, ack, 'LIMIT', '0', '1')[1]\n"
    "    if done and string.sub(done, 1, #argv[9]) ~= argv[9] then\n"
    "      return nil\n"
    "    elseif done and done == e then\n"
    "      e, due, after = found[3], found[4], found[6]\n"
    "    elseif done and done == found[3] then\n"
    "      after = found[6]\n"
    "    end\n"
    "  end\n"
    "  local acked, lease_end = done and 1 or 0, 0\n"
    "  local soon, handed_out = due, nil\n"
    "  due = due and due + 0\n"
    "  if not e or due > now then\n"
    "    due = nil\n"
    "    if done then call('ZREM', zset, done) end\n"
    "  else\n"
    "    local length, tried = #e - 25, 0\n"
    "    if due < 0 or length < 0 or string.byte(e) ~= 16 or\n"
    "      struct.unpack('I8', e, 18) ~= length then\n"
    "      return nil\n"
    "    end\n"
    "    if lease or argv[6] ~= '0' then\n"
    "      local high, low = string.byte(e, 16, 17)\n"
    "      local most = tonumber(argv[6])\n"
    "      tried = high * 256 + low\n"
    "      if most > 0 and tried >= most or tried == 65535 then\n"
    "        return nil\n"
    "      end\n"
    "    end\n"
    "    handed_out = e\n"
    /* the ack is the first write, and proves the right to remove */
    "    if done then call('ZREM', zset, done) end\n"
    "    if lease then\n"
    "      local n = tried + 1\n"
    "      handed_out = string.sub(e, 1, 15) ..\n"
    "        string.char(math.floor(n / 256), n % 256) .. string.sub(e, 18)\n"
    "      lease_end = math.ceil(us / 1000) + argv[7]\n"
    "      if not done then call('ZREMRANGEBYRANK', zset, '1', '0') end\n"
    "      local ends = decimal(lease_end)\n"
    "      local added = redis.pcall('ZADD', zset, ends, handed_out)\n"
    "      if type(added) == 'table' then\n"
    "        return not done and added or {us, 250000, 0, 0, 0, 0, 0, 0, 1}\n"
    "      end\n"
    "    end\n"
    "    call('ZREMRANGEBYRANK', zset, '0', '0')\n"
    "    soon = after and after + 0\n"
    "    if lease and not (soon and soon <= lease_end) then\n"
    "      publish_if_head(zset, argv[12], lease_end, 1)\n"
    "      soon = lease_end\n"
    "    end\n"
    "  end\n"
    "  local next = soon and soon * 1000 - us or -1\n"
    "  if soon then next = next > 0 and math.min(1e13, next) or 0 end\n"
    "  return {us, next, 0, 0, 0, 0, lease_end, 0, acked, due, handed_out}\n"
    "end\n"
    /* run before the rest of the script is even made, as in offer_usual */
    "local in_ready, in_retry, usual = 0, 0, nil\n"
    "if KEYS[2] then\n"
    "  in_ready = redis.call('LLEN', KEYS[2])\n"
    "  in_retry = redis.call('LLEN', KEYS[3])\n"
    "end\n"
    "if in_ready + in_retry == 0 and ARGV[4] == '1' then\n"
    "  usual = take_usual(KEYS, ARGV)\n"
    "end\n"
    "if usual and (usual.err or not KEYS[5]) then return usual end\n";
/* the same for one of the waiters */
static const char dq_lua_take_usual_waits[] =
    "if usual then\n"
    "  usual[8] = waiter_role(usual, KEYS[5], ARGV)\n"
    "  return usual\n"
    "end\n";
static const char dq_lua_take[] =
    "local function take_items(run, max, limit)\n"
    "  local direct = run.ready == 0 and (run.other == 0 or not run.native)\n"
    "  if direct then\n"
    "    drain(run, max, (run.lease_end or run.most > 0) and give,\n"
    "      run.lease_end and commit)\n"
    "    if run.native or run.all then return end\n"
    "  end\n"
    "  move(run, limit)\n"
    "  if not direct then in_chunks(run, max, take_listed) end\n"
    "end\n"
    "local function take(keys, argv, ready, other)\n"
    "  local run, acked = begin_run(keys, argv, ready, other), nil\n"
    "  local reply, lease_ms = run.reply, tonumber(argv[7])\n"
    "  run.retry_turn, run.most = argv[5] == 'x', tonumber(argv[6])\n"
    "  run.order, run.id_rest, run.held = tonumber(argv[10]), argv[11], {}\n"
    "  if lease_ms > 0 then\n"
    "    run.lease_end = math.ceil(run.us / 1000) + lease_ms\n"
    "  end\n"
    "  run.mirror = open_mirror(run)\n"
    "  if (argv[8] or '') ~= '' then\n"
    "    acked = remove(run.zset, argv, 8, 9, {})[1]\n"
    "  end\n"
    "  local fine, why = pcall(take_items, run, tonumber(argv[4]),\n"
    "    tonumber(argv[2]))\n"
    "  if not fine then\n"
    "    if run.safe == 9 and not acked then\n"
    "      why = type(why) == 'table' and why.err or why\n"
    "      return {err = string.find(why, '^%u+ ') and why or 'ERR ' .. why}\n"
    "    end\n"
    /* what has not left is not handed out; poll again in 250 ms */
    "    for i = #reply, run.safe + 1, -1 do reply[i] = nil end\n"
    "    run.all, run.soon = true, (run.us + 250000) / 1000\n"
    "  end\n"
    "  if run.lease_end and run.safe > 9 then\n"
    /* Redisson sets its timer by the channel */
    "    local leases = (run.safe - 9) / 2\n"
    "    publish_if_head(run.zset, argv[12], run.lease_end, leases)\n"
    "    run.soon = math.min(run.soon or run.lease_end, run.lease_end)\n"
    "  end\n"
    "  reply[7], reply[9] = run.lease_end or 0, acked or 0\n"
    "  finish_run(run)\n"
    "  if keys[5] then reply[8] = waiter_role(reply, keys[5], argv) end\n"
    "  return reply\n"
    "end\n";
static const char dq_lua_take_native[] =
    "return take(KEYS, ARGV, in_ready, in_retry)\n";
static const char dq_lua_take_redisson[] =
    "local ready = redis.call('LLEN', KEYS[2])\n"
    "return take(KEYS, ARGV, ready, redis.call('LLEN', KEYS[3]))\n";

/* BROADCAST: what is due goes into the stream, and the reader is given what
 * stands behind its cursor.
 * KEYS     1 zset, 2 stream, 3 retry, 4 dead
 * ARGV     1 wire, 2 limit, 3 horizon: see dq_lua_run; 4 how many; 5 cursor,
 *          '$': the stream's end; 6 how many entries the stream keeps; 7
 *          channel
 * returns  clock, next, ready, moved, dead, old: see finish_run; 3 zeros; the
 *          cursor; then triples: id, due (-1 where it is unknown), payload */
static const char dq_lua_broadcast[] =
    "local function add_to_stream(run, max, keep)\n"
    "  local entries = {}\n"
    "  drain(run, max, function(_, due, e, _, start)\n"
    "    entries[#entries + 1] = due\n"
    "    entries[#entries + 1] = string.sub(e, start)\n"
    "  end, function()\n"
    "    for i = 1, #entries, 2 do\n"
    "      redis.call('XADD', run.ready_list, 'MAXLEN', '~', keep, '*',\n"
    "        'due', entries[i], 'payload', entries[i + 1])\n"
    "    end\n"
    "    run.moved, entries = run.moved + #entries / 2, {}\n"
    "  end)\n"
    "end\n"
    "local function read_stream(stream, cursor, count)\n"
    "  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')\n"
    "  local after = ms .. string.format('-%.0f', seq + 1)\n"
    "  return redis.call('XRANGE', stream, after, '+', 'COUNT', count)\n"
    "end\n"
    "local stream, max, cursor = KEYS[2], tonumber(ARGV[4]), ARGV[5]\n"
    "local length = redis.call('XLEN', stream)\n"
    "local run = begin_run(KEYS, ARGV, length, redis.call('LLEN', KEYS[3]))\n"
    "local reply = run.reply\n"
    "if cursor == '$' then\n"
    "  local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]\n"
    "  cursor = last and last[1] or '0-0'\n"
    "end\n"
    "add_to_stream(run, tonumber(ARGV[2]), ARGV[6])\n"
    /* the others poll at once */
    "if run.moved > 0 then\n"
    "  redis.pcall('PUBLISH', ARGV[7], string.format('%.0f', run.now))\n"
    "end\n"
    "reply[10] = cursor\n"
    "if max > 0 then\n"
    "  in_chunks({bytes = 0}, max, function(_, count)\n"
    "    local entries, bytes = read_stream(stream, cursor, count), 0\n"
    "    for _, entry in ipairs(entries) do\n"
    /* a stream may hold what others have put there */
    "      local n, due, payload = #reply, entry[2][2], entry[2][4] or ''\n"
    "      due = tonumber(due) or -1\n"
    "      if due < 0 or due >= 2 ^ 53 then due = -1 end\n"
    "      cursor, bytes = entry[1], bytes + cost(payload)\n"
    "      reply[n + 1], reply[n + 2], reply[n + 3] = cursor, due, payload\n"
    "    end\n"
    "    return #entries, bytes, #entries > 0\n"
    "  end)\n"
    "end\n"
    "reply[10] = cursor\n"
    /* what is left over for the next take */
    "run.ready = read_stream(stream, cursor, 1)[1] and 1 or 0\n"
    "return finish_run(run)\n";

/* REMOVE, by ticket: acks, or a cancel.
 * KEYS     1 zset
 * ARGV     pairs: due, prefix
 * returns  clock, and of each 1 (done) or 0 (not there) */
static const char dq_lua_remove_main[] =
    "return remove(KEYS[1], ARGV, 1, #ARGV, {(clock())})\n";

/* CANCEL_REDISSON: a cancel where the wire has a mirror.
 * KEYS     1 zset, 2 mirror
 * ARGV     1 due, 2 prefix
 * returns  clock, 1 (done) or 0 (not there) */
static const char dq_lua_cancel_redisson[] =
    "local zset, mirror, us = KEYS[1], KEYS[2], clock()\n"
    "redis.call('LLEN', mirror)\n"
    "local rank, e = find(zset, ARGV[1], ARGV[2])\n"
    "if not e then return {us, 0} end\n"
    "redis.call('ZREMRANGEBYRANK', zset, 1, 0)\n"
    "redis.call('LREM', mirror, 1, e)\n"
    "redis.call('ZREMRANGEBYRANK', zset, rank, rank)\n"
    "return {us, 1}\n";

/* CHANGE, by ticket: nack, extend, reschedule; or bury.
 * KEYS     1 zset, 2 dead (only of a bury)
 * ARGV     1 due, 2 prefix, 3 new due time, 4 channel, 5 '1': this attempt
 *          doesn't count, 6 '1': sent again, 7 delay
 * returns  clock; 1: done, 0: not there; the due time
 *
 * The new due time is the handle's reckoning, so that what is sent again finds
 * what the first sending did; where a clock was set or a machine slept
 * meanwhile, the delay counts. */
static const char dq_lua_change[] =
    "local zset, dead_list, due, prefix = KEYS[1], KEYS[2], ARGV[1], ARGV[2]\n"
    "local new_due, channel = tonumber(ARGV[3]), ARGV[4]\n"
    "local uncount, resent = ARGV[5] == '1' and #prefix == 17, ARGV[6] == '1'\n"
    "local us, now = clock()\n"
    "local function uncounted(e)\n"
    "  if not uncount then return e end\n"
    "  return with_attempts(e, math.max(attempts(e) - 1, 0))\n"
    "end\n"
    "local rank, e = find(zset, due, prefix)\n"
    "if not e then\n"
    "  if resent and not dead_list then\n"
    "    e = select(2, find(zset, ARGV[3], uncounted(prefix)))\n"
    "  end\n"
    "  return {us, e and 1 or 0, new_due}\n"
    "end\n"
    "redis.call('ZREMRANGEBYRANK', zset, 1, 0)\n"
    "if dead_list then\n"
    "  local letter = string.format('buried %.0f\\n', now) .. e\n"
    "  redis.call('RPUSH', dead_list, letter)\n"
    "  redis.call('ZREMRANGEBYRANK', zset, rank, rank)\n"
    "  return {us, 1, 0}\n"
    "end\n"
    "local by_delay = math.ceil(us / 1000) + ARGV[7]\n"
    "if new_due < by_delay or new_due > by_delay + 1000 then\n"
    "  new_due = by_delay\n"
    "end\n"
    "redis.call('ZADD', zset, new_due, uncounted(e))\n"
    "if uncount then\n"
    "  rank = find(zset, due, prefix)\n"
    "  redis.call('ZREMRANGEBYRANK', zset, rank, rank)\n"
    "end\n"
    "publish_if_head(zset, channel, new_due, 1)\n"
    "return {us, 1, new_due}\n";

/* PEEK
 * KEYS     1 zset
 * ARGV     1 how many; 2 due and 3 prefix of the last one seen, or missing
 * returns  clock, then pairs: due, element */
static const char dq_lua_peek[] =
    "local zset, max, due = KEYS[1], tonumber(ARGV[1]), ARGV[2]\n"
    "local reply, rank, seen = {(clock())}, 0, false\n"
    "if due then rank, seen = find(zset, due, ARGV[3]) end\n"
    "if seen then rank = rank + 1 end\n"
    "in_chunks({bytes = 0}, max, function(_, count)\n"
    "  local last, n, bytes = rank + count - 1, #reply, 0\n"
    "  local found = redis.call('ZRANGE', zset, rank, last, 'WITHSCORES')\n"
    "  for i = 1, #found, 2 do\n"
    /* a foreign score may be infinite */
    "    local score = math.min(tonumber(found[i + 1]), 2 ^ 53 - 1)\n"
    "    reply[n + i], reply[n + i + 1] = math.max(score, 0), found[i]\n"
    "    bytes = bytes + cost(found[i])\n"
    "  end\n"
    "  rank = rank + count\n"
    "  return #found / 2, bytes, #found == 2 * count\n"
    "end)\n"
    "return reply\n";

/* COUNT
 * KEYS     1 zset, 2 ready or stream, 3 retry (native) or mirror, 4 dead
 * ARGV     1 wire, then due times
 * returns  clock, pending, overdue, ready, dead; next: the earliest due time,
 *          -1 where nothing is pending; of each due time how many are due by
 *          then */
static const char dq_lua_count[] =
    "local zset, wire, ready, us, now = KEYS[1], ARGV[1], 0, clock()\n"
    "if wire ~= 'b' then ready = redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then ready = ready + redis.call('LLEN', KEYS[3]) end\n"
    "local first = redis.call('ZRANGEBYSCORE', zset, 0, 2 ^ 53 - 1,\n"
    "  'WITHSCORES', 'LIMIT', 0, 1)\n"
    "local reply = {us, redis.call('ZCARD', zset),\n"
    "  redis.call('ZCOUNT', zset, 0, now), ready,\n"
    "  redis.call('LLEN', KEYS[4]), tonumber(first[2] or -1)}\n"
    "for i = 2, #ARGV do\n"
    "  reply[5 + i] = redis.call('ZCOUNT', zset, 0, ARGV[i])\n"
    "end\n"
    "return reply\n";

/* CLEAR
 * KEYS     1 zset, 2 ready or stream, 3 retry or mirror
 * ARGV     1 wire
 * returns  clock, count */
static const char dq_lua_clear[] =
    "local wire, n = ARGV[1], redis.call('ZCARD', KEYS[1])\n"
    "if wire ~= 'b' then n = n + redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then n = n + redis.call('LLEN', KEYS[3]) end\n"
    "redis.call('UNLINK', unpack(KEYS))\n"
    "return {clock(), n}\n";

/* DEAD: dead letters.
 * KEYS     1 dead, 2 ready (only of a redrive)
 * ARGV     1 what: peek, redrive, clear; 2 how many; 3 from (peek); 4 wire
 * returns  clock, count, then the dead letters (peek)
 *
 * A redrive puts payloads onto the ready list; what can't be decoded goes to
 * the end of the dead ones. */
static const char dq_lua_dead[] =
    "local dead_list, ready_list = KEYS[1], KEYS[2]\n"
    "local old_first = ARGV[4] == 'o'\n"
    "local from, length = tonumber(ARGV[3]), redis.call('LLEN', dead_list)\n"
    "local max, reply = math.min(tonumber(ARGV[2]), length), {clock(), 0}\n"
    "if ARGV[1] == 'clear' then\n"
    "  redis.call('UNLINK', dead_list)\n"
    "  return {reply[1], length}\n"
    "end\n"
    "if ready_list then redis.call('LLEN', ready_list) end\n"
    "if max == 0 then return reply end\n"
    "in_chunks({bytes = 0}, max, function(_, count)\n"
    "  local last, payloads, bad, bytes = from + count - 1, {}, {}, 0\n"
    "  local letters = redis.call('LRANGE', dead_list, from, last)\n"
    "  for _, letter in ipairs(letters) do\n"
    "    local line_end = string.find(letter, '\\n', 1, true) or #letter\n"
    "    local e = string.sub(letter, line_end + 1)\n"
    "    local kind, start = split(e, old_first)\n"
    "    if not ready_list then reply[#reply + 1] = letter\n"
    "    elseif kind then payloads[#payloads + 1] = string.sub(e, start)\n"
    "    else bad[#bad + 1] = letter end\n"
    "    bytes = bytes + cost(letter)\n"
    "  end\n"
    "  reply[2] = reply[2] + (ready_list and #payloads or #letters)\n"
    "  if #letters == 0 then return 0, 0, false end\n"
    "  if not ready_list then\n"
    "    from = from + #letters\n"
    "    return #letters, bytes, true\n"
    "  end\n"
    "  redis.call('LTRIM', dead_list, 0, -1)\n"
    "  if #payloads > 0 then\n"
    "    redis.call('RPUSH', ready_list, unpack(payloads))\n"
    "  end\n"
    "  if #bad > 0 then redis.call('RPUSH', dead_list, unpack(bad)) end\n"
    "  redis.call('LTRIM', dead_list, #letters, -1)\n"
    "  return #letters, bytes, true\n"
    "end)\n"
    "return reply\n";

/* What a request does: several scripts may do the same for several wires. */
typedef enum dq_req_verb {
    DQ_OFFER,
    DQ_OFFER_KEYED,
    DQ_TICK,
    DQ_TAKE,
    DQ_BROADCAST,
    DQ_REMOVE,
    DQ_CHANGE,
    DQ_PEEK,
    DQ_COUNT,
    DQ_CLEAR,
    DQ_DEADS
} dq_req_verb;

/* A request points at its script, and there is no table of all: so a program
 * links only the Lua of the calls that it makes. `sha` is the SHA1 of the text,
 * by which EVALSHA names it: `make lua` writes it here, a test checks it. */
typedef struct dq_script {
    const char *name; /* of the file in build/lua */
    dq_req_verb verb;
    unsigned bit; /* in conn->loaded: this connection has loaded it */
    const char *sha;
    const char *const *parts; /* up to NULL */
} dq_script;

#define DQ_SCRIPT(name, verb, bit, sha, ...)                                \
    static const char *const dq_parts_##name[] = {__VA_ARGS__, NULL};       \
    static const dq_script dq_script_##name = {#name, verb, 1u << bit, sha, \
                                               dq_parts_##name}

#define DQ_LUA_RUN dq_lua_clock, dq_lua_split, dq_lua_chunks, dq_lua_run
#define DQ_LUA_MIRROR dq_lua_attempts, dq_lua_mirror_seek, dq_lua_mirror
#define DQ_LUA_WAITERS dq_lua_waiters_leave, dq_lua_waiters_stay
#define DQ_LUA_TAKE                                                            \
    dq_lua_drain, dq_lua_move, dq_lua_remove, dq_lua_give, dq_lua_take_listed, \
        dq_lua_take

/* Long fragments stand in the middle: hiredis' buffer, which doubles with what
 * is in it, then ends at little more than the text. */
DQ_SCRIPT(offer, DQ_OFFER, 0, "be3cd7bfc922d17ab02f8e489f882e1510c62c30",
          dq_lua_offer_usual, dq_lua_clock, dq_lua_publish, dq_lua_when,
          dq_lua_offer);
DQ_SCRIPT(offer_keyed, DQ_OFFER_KEYED, 1,
          "987ed804f7d3d821ad0fb6190c86e6c5bc36359b", dq_lua_clock,
          dq_lua_publish, dq_lua_when, dq_lua_find, dq_lua_offer_keyed);
DQ_SCRIPT(tick, DQ_TICK, 2, "0938c12a2c23c3660a7de29cb79b9e709a5f70b5",
          DQ_LUA_RUN, dq_lua_drain, dq_lua_no_mirror, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(tick_redisson, DQ_TICK, 3, "2de5db5a4f06a686402d31a990f33c71b1bd516e",
          DQ_LUA_RUN, dq_lua_drain, DQ_LUA_MIRROR, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(take, DQ_TAKE, 4, "0994d9e1ba68420437ad6fd4ff99e22a6d3aedd0",
          dq_lua_publish, dq_lua_take_usual, DQ_LUA_WAITERS,
          dq_lua_take_usual_waits, DQ_LUA_RUN, dq_lua_attempts,
          dq_lua_no_mirror, dq_lua_find, DQ_LUA_TAKE, dq_lua_take_native);
DQ_SCRIPT(take_redisson, DQ_TAKE, 5, "29109d58507daa5455cfa3dca0322fc373b8de22",
          dq_lua_publish, DQ_LUA_WAITERS, DQ_LUA_RUN, DQ_LUA_MIRROR,
          dq_lua_find, DQ_LUA_TAKE, dq_lua_take_redisson);
DQ_SCRIPT(broadcast, DQ_BROADCAST, 6,
          "e60b96bca3795f4c5eec71d44cc0f4521906c21f", DQ_LUA_RUN, dq_lua_drain,
          dq_lua_broadcast);
DQ_SCRIPT(remove, DQ_REMOVE, 7, "ec68dc786092da958f840479711822a3f81c8879",
          dq_lua_clock, dq_lua_find, dq_lua_remove, dq_lua_remove_main);
DQ_SCRIPT(cancel_redisson, DQ_REMOVE, 8,
          "810afb14c89b93cd24c5680fddc396dc86010a1b", dq_lua_clock, dq_lua_find,
          dq_lua_cancel_redisson);
DQ_SCRIPT(change, DQ_CHANGE, 9, "54d0944c77034fa4da67542ddb2fe2bf74b4dbfa",
          dq_lua_clock, dq_lua_attempts, dq_lua_publish, dq_lua_find,
          dq_lua_change);
DQ_SCRIPT(peek, DQ_PEEK, 10, "e437d35cec4b5016d2f9cccd798b1cb202a9454f",
          dq_lua_clock, dq_lua_find, dq_lua_chunks, dq_lua_peek);
DQ_SCRIPT(count, DQ_COUNT, 11, "b539c561d2510a4e48719736ee49c335bd930e8c",
          dq_lua_clock, dq_lua_count);
DQ_SCRIPT(clear, DQ_CLEAR, 12, "aa16eb033b1cc6588e045ed11058b147ed63fc5a",
          dq_lua_clock, dq_lua_clear);
DQ_SCRIPT(dead, DQ_DEADS, 13, "88a9069b1b3679efc3c07069646ab390f6c5c149",
          dq_lua_clock, dq_lua_split, dq_lua_chunks, dq_lua_dead);

/* Run by EVAL, once per connection and queue. */
static const char *const dq_parts_probe[] = {dq_lua_clock, dq_lua_split,
                                             dq_lua_probe, NULL};

/*-----------------------------------------------------------------------------
 * MARK: - Protocol
 * >>protocol   writing requests, reading replies
 *
 * Commands are written into a small buffer and from there into hiredis', larger
 * payloads and scripts directly: no array of arguments.
 *---------------------------------------------------------------------------*/

/* The numbers with which the reply of a tick, take or broadcast begins; of a
 * tick those up to OLD are read. */
enum {
    DQ_AT_US, /* the server's clock */
    DQ_AT_NEXT,
    DQ_AT_READY,
    DQ_AT_MOVED,
    DQ_AT_DEAD,
    DQ_AT_OLD,
    DQ_AT_LEASE,
    DQ_AT_ROLE,
    DQ_AT_ACKED,
    DQ_NUMBERS, /* a take's */
    DQ_TICK_NUMBERS = DQ_AT_OLD + 1
};

/* Read the n integers at the beginning of an array. The first is the server's
 * clock. 0: it is no reply of ours. */
static int dq_resp_integers(const redisReply *r, int64_t *to, size_t n) {
    size_t i;
    if (r->type != REDIS_REPLY_ARRAY || r->elements < n) return 0;
    for (i = 0; i < n; i++) {
        const redisReply *e = r->element[i];
        if (e->type != REDIS_REPLY_INTEGER || e->integer > DQ_MAX_DUE ||
            e->integer < -DQ_MAX_DUE)
            return 0;
        to[i] = e->integer;
    }
    return to[0] >= 0;
}

#define DQ_RESP_SMALL 1024 /* longest argument but for scripts and payloads */

typedef struct dq_resp_writer {
    redisContext *c;
    int counting; /* nothing goes to c: what doesn't fit buf is forgotten */
    int spilled;  /* while counting: it did not fit */
    int failed;   /* no memory */
    size_t keys, args;
    size_t n; /* bytes in buf */
    char buf[2048];
} dq_resp_writer;

static void dq_resp_begin(dq_resp_writer *o, redisContext *c) {
    o->c = c;
    o->n = o->keys = o->args = 0;
    o->counting = o->spilled = o->failed = 0;
}

static void dq_resp_append(dq_resp_writer *o, const void *bytes, size_t len) {
    if (o->counting)
        o->spilled = 1;
    else if (len > 0 && redisAppendFormattedCommand(o->c, (const char *)bytes,
                                                    len) != REDIS_OK)
        o->failed = 1;
}

static void dq_resp_flush(dq_resp_writer *o) {
    dq_resp_append(o, o->buf, o->n);
    o->n = 0;
}

/* A line of the protocol: a sign and a number. It fits the buffer, and so does
 * what follows, if that is small. */
static void dq_resp_line(dq_resp_writer *o, char sign, size_t value) {
    if (sizeof o->buf - o->n < DQ_RESP_SMALL + 32) dq_resp_flush(o);
    o->buf[o->n++] = sign;
    o->n += dq_num_decimal(o->buf + o->n, (int64_t)value);
    o->buf[o->n++] = '\r';
    o->buf[o->n++] = '\n';
}

static void dq_resp_arg(dq_resp_writer *o, const void *bytes, size_t len) {
    assert(len <= DQ_RESP_SMALL);
    o->args++;
    dq_resp_line(o, '$', len);
    memcpy(o->buf + o->n, bytes, len);
    memcpy(o->buf + o->n + len, "\r\n", 2);
    o->n += len + 2;
}

/* An argument of any length: something small, then what is copied into the
 * buffer only if it fits. */
static void dq_resp_long_arg(dq_resp_writer *o, const void *head,
                             size_t head_len, const void *data, size_t len) {
    o->args++;
    dq_resp_line(o, '$', head_len + len);
    memcpy(o->buf + o->n, head, head_len);
    o->n += head_len;
    if (len + 2 > sizeof o->buf - o->n) {
        dq_resp_flush(o);
        dq_resp_append(o, data, len);
        len = 0;
    }
    if (len > 0) memcpy(o->buf + o->n, data, len);
    memcpy(o->buf + o->n + len, "\r\n", 2);
    o->n += len + 2;
}

static void dq_resp_text(dq_resp_writer *o, const char *text) {
    dq_resp_arg(o, text, strlen(text));
}

static void dq_resp_int(dq_resp_writer *o, int64_t value) {
    char text[24];
    dq_resp_arg(o, text, dq_num_decimal(text, value));
}

static void dq_resp_script(dq_resp_writer *o, const char *const *parts) {
    size_t len = 0, i;
    for (i = 0; parts[i]; i++) len += strlen(parts[i]);
    dq_resp_line(o, '$', len);
    dq_resp_flush(o);
    for (i = 0; parts[i]; i++) dq_resp_append(o, parts[i], strlen(parts[i]));
    dq_resp_append(o, "\r\n", 2);
}

/* A command of `count` words, which begins with these; the caller adds the
 * others. */
static void dq_resp_command(dq_resp_writer *o, size_t count,
                            const char *words) {
    dq_resp_line(o, '*', count);
    while (*words) {
        size_t len = strcspn(words, " ");
        dq_resp_arg(o, words, len);
        words += len + (words[len] == ' ');
    }
}

/* A key or channel of the queue: prefix, then T, then what follows. Returns
 * its length. */
static size_t dq_resp_key_text(const delayq *q, const char *prefix,
                               const char *rest, char to[DQ_RESP_SMALL]) {
    int tagged = memchr(q->name, '{', q->name_len) != NULL;
    return (size_t)snprintf(to, DQ_RESP_SMALL, "%s%s%s%s%s", prefix,
                            tagged ? "" : "{", q->name, tagged ? "" : "}",
                            rest);
}

static void dq_resp_key(dq_resp_writer *o, const delayq *q, const char *prefix,
                        const char *rest) {
    char key[DQ_RESP_SMALL];
    dq_resp_arg(o, key, dq_resp_key_text(q, prefix, rest, key));
}

#define DQ_ZSET "redisson_delay_queue_timeout:"
#define DQ_MIRROR "redisson_delay_queue:"
#define DQ_CHANNEL "redisson_delay_queue_channel:"
#define DQ_RETRY "delayq_retry:"
#define DQ_DEAD "delayq_dead:"
#define DQ_STREAM "delayq_stream:"
#define DQ_DEDUP "delayq_once:"
#define DQ_WAITERS "delayq_waiters:" /* also their channel */
#define DQ_TURN "delayq_turn:"
#define DQ_INVALIDATE "__redis__:invalidate"

/* What has been written of a script's call up to here were keys. */
static void dq_resp_keys_end(dq_resp_writer *o) {
    o->keys = o->args;
    o->args = 0;
}

typedef enum dq_req_state {
    DQ_REQ_WAITING,  /* to be sent */
    DQ_REQ_ANSWERED, /* status is set; dq_req_decide says what follows */
    DQ_REQ_SETTLED   /* status is final */
} dq_req_state;

typedef enum dq_req_next {
    DQ_SETTLE,
    DQ_SEND_AGAIN, /* on a new connection, if there is none */
    DQ_SEND_ASK    /* once, to the node in conn->redirect */
} dq_req_next;

/* The run of a script. */
typedef struct dq_req {
    const dq_script *script;
    const char *what; /* for error texts */
    void (*write)(dq_resp_writer *o, delayq *q, const struct dq_req *call);
    int idempotent; /* it may be sent again though it may have run */
    int read_only;  /* it changes nothing */
    int no_retry;   /* one round trip and no more; DELAYQ_EMPTY: the next one
                       loads the script or goes to the right node */
    int is_resend;  /* this is another sending of what may have run */
    int resent;     /* it was sent again after a connection was lost */
    int asking;     /* to a node that is about to get the slot */

    /* What the writer names. */
    int as_waiter;  /* a take: the waiters' key, too */
    int zset_alone; /* a take: the zset and no other key */
    int bury;       /* a change: the dead letters, where it puts the item */

    delayq_message *messages; /* an offer's, `max` of them */
    size_t max;               /* how many of these, or of those to come */
    delayq_item *items;       /* to ack, `max` of them */
    const char *ticket;       /* to change, remove, ack, peek behind */
    const int64_t *times;     /* to count by, `max` of them */
    int64_t due_ms;
    int64_t from;     /* where to begin; of a change the delay */
    uint64_t order;   /* of the ids that a lease may make */
    const char *word; /* dead letters: what to do */
    int less;         /* this attempt doesn't count */

    int64_t deadline_us; /* when it ends, reconnecting included */
    dq_req_state state;
    delayq_status status; /* out */
    redisReply *reply;    /* out: an array; the caller frees it */
    int64_t sent_us;      /* out: when it was sent; read at conn->used_us */
    int tries;
} dq_req;

#define DQ_PIPELINE_MAX 8 /* most requests in one go */

/* Write a request's call of its script. How many keys and arguments that has
 * is known when its callback has run: what fits the buffer waits there for the
 * line with the counts; only for what doesn't, the callback runs again. On a
 * new connection the script is loaded in the same write; what came by EVAL
 * alone would be forgotten by Redis 7.4 after 500 others. Returns how many
 * replies come. */
static int dq_req_write(dq_resp_writer *o, delayq *q, const dq_req *req) {
    const dq_script *script = req->script;
    int loads = req->asking || !(q->conn->loaded & script->bit), n;
    char call[120];
    if (loads) {
        dq_resp_command(o, 3, "SCRIPT LOAD");
        dq_resp_script(o, script->parts);
        if (!req->asking) q->conn->loaded |= script->bit;
    }
    if (req->asking) dq_resp_command(o, 1, "ASKING");
    dq_resp_flush(o);
    o->counting = 1;
    o->spilled = 0;
    o->keys = o->args = 0;
    req->write(o, q, req);
    assert(o->keys > 0 && o->keys < 10);
    n = snprintf(call, sizeof call,
                 "*%lu\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n%lu\r\n",
                 (unsigned long)(3 + o->keys + o->args), script->sha,
                 (unsigned long)o->keys);
    o->counting = 0;
    dq_resp_append(o, call, (size_t)n);
    if (o->spilled) {
        size_t keys = o->keys, args = o->args;
        o->n = o->keys = o->args = 0;
        req->write(o, q, req);
        assert(o->keys == keys && o->args == args);
        (void)keys, (void)args; /* without asserts */
    }
    dq_resp_flush(o);
    return 1 + loads + req->asking;
}

/*-----------------------------------------------------------------------------
 * MARK: - Schedule
 * >>schedule   when the server is asked next
 *
 * Owns next_poll_us: one function per event, and nobody else writes it but
 * section Waiters, which puts off what a handle does not see to. The relative
 * time in a reply is counted from when its request
 * was sent: at worst the poll is some microseconds early and is repeated.
 * Counted from the reply it would be late by a round trip. Messages read since
 * then lower it. The subscriber is never read between a request and its
 * reply, so nothing else can get in between. Without a connection the next
 * poll is the next attempt to connect.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_BACKOFF_MAX_US (5 * DQ_SECOND_US)
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_UNHEARD_POLL_US 250000 /* where nothing would announce an item */

/* When to try to connect after so many failures: the first time at once. */
static int64_t dq_sched_next_attempt(unsigned failures) {
    int64_t now = dq_sys_now();
    if (failures == 0) return now;
    return now + dq_num_backoff(DQ_BACKOFF_US, DQ_BACKOFF_MAX_US, failures);
}

/* The moment at which q acts though nothing is heard. */
static int64_t dq_sched_next(const delayq *q) {
    const delayq_conn *conn = q->conn;
    int64_t next = q->next_poll_us, ping;
    if (!conn->sub) return next;
    if (q->waiter.push_us > 0 && q->waiter.push_us < next &&
        conn->tracking != DELAYQ_TRACK_OFF)
        next = q->waiter.push_us;
    ping = conn->sub_pinged_us > 0
               ? conn->sub_pinged_us + q->options.io_timeout_ms * 1000LL
               : conn->sub_heard_us + DQ_PING_US;
    return next < ping ? next : ping;
}

/* Poll no later than that. */
static void dq_sched_lower(delayq *q, int64_t when) {
    if (q->next_poll_us > when) q->next_poll_us = when;
}

/* The earliest local moment at which the server's clock can show due_ms. */
static int64_t dq_sched_local_us(const delayq *q, int64_t due_ms) {
    return due_ms * 1000 - q->conn->clock_offset_us - q->conn->clock_error_us;
}

static int dq_sched_same_queue(const delayq *a, const delayq *b) {
    return a->name_len == b->name_len &&
           memcmp(a->name, b->name, a->name_len) == 0;
}

/* --- events of the connections --- */

/* The command connection is closed, and client tracking ends with it.
 * conn->retry_us is set. */
static void dq_sched_on_conn_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->list_tracked = 0;
        h->waiter.push_us = 0;
        h->next_poll_us = conn->retry_us;
    }
}

/* One of the two connections is open: what has happened meanwhile? */
static void dq_sched_on_conn_back(delayq_conn *conn, int64_t now) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) h->next_poll_us = now;
}

/* The subscriber is closed; conn->sub_retry_us is set. */
static void dq_sched_on_sub_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->subscribed = h->list_tracked = 0;
        memset(&h->waiter, 0, sizeof h->waiter);
        dq_sched_lower(h, conn->sub_retry_us);
    }
}

/* A request was refused, or failed though a connection is there: pause. */
static void dq_sched_on_fault(delayq *q) {
    q->waiter.push_us = 0;
    if (q->conn->cmd) q->next_poll_us = dq_sys_now() + DQ_BACKOFF_US;
}

/* --- events of the queue --- */

/* A transfer or take, sent then, was answered: so long until the next item is
 * due, so many ready. That holds for every handle on the same queue and
 * connection. unheard: the next push would not be heard; taken: the list has
 * changed. */
static void dq_sched_on_reply(delayq *q, int64_t sent_us, int64_t next_us,
                              int64_t ready, int unheard, int taken) {
    int64_t cap = q->options.max_wait_ms * 1000;
    delayq *h;
    if ((unheard || !q->conn->sub || !q->subscribed) &&
        cap > DQ_UNHEARD_POLL_US)
        cap = DQ_UNHEARD_POLL_US;
    if (next_us < 0 || next_us > cap) next_us = cap;
    for (h = q->conn->handles; h; h = h->next) {
        if (h != q && (h->options.broadcast || !dq_sched_same_queue(h, q)))
            continue;
        h->ready = ready < 0 ? 0 : ready;
        h->next_poll_us = sent_us + next_us;
        if (taken) h->list_tracked = 0;
    }
}

/* The handle itself has stored or moved an item that is due then. */
static void dq_sched_on_own_item(delayq *q, int64_t due_ms) {
    dq_sched_lower(q, dq_sched_local_us(q, due_ms));
}

/* When a message's item is due by our clock; 0: now. */
static int64_t dq_sched_message_us(const delayq *q, int64_t due_ms) {
    if (due_ms > DQ_MAX_DUE / 1000)
        return dq_sys_now() + q->options.max_wait_ms * 1000;
    return due_ms > 0 ? dq_sched_local_us(q, due_ms) : dq_sys_now();
}

/* A message tells of an item that is due then. */
static void dq_sched_on_message(delayq *q, int64_t due_ms) {
    dq_sched_lower(q, dq_sched_message_us(q, due_ms));
}

/* The queue's channel is subscribed: something may have been published
 * before. Or no more: nothing will be heard. */
static void dq_sched_on_subscribe(delayq *q, int on) {
    q->subscribed = on != 0;
    dq_sched_lower(q, dq_sys_now());
}

/* A push into the list will be heard; so many lie there already. */
static void dq_sched_on_track(delayq *q, int64_t ready) {
    q->list_tracked = 1;
    if (ready > 0) q->ready = ready;
}

/* The list has changed; the server tells of that once. */
static void dq_sched_on_push(delayq *q) {
    q->list_tracked = 0;
    dq_sched_on_message(q, 0);
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiters
 * >>waiters   which of the handles that wait on a queue acts
 *
 * Of many handles that wait in a take on one queue, few should wake for an
 * item. So the take script (waiter_role in its Lua) gives each a role:
 *
 *     alone     Nobody else waits. It acts at once when something is due or
 *               pushed, and its takes don't mention the waiters: it pays
 *               nothing for them.
 *     leader    It acts at once, too. When it gets an item or stops waiting
 *               its script names the next leader: the standby that has waited
 *               longest; where there is none, a sleeper.
 *     standby   About 16 of the others. They hear what the leader hears, and
 *               act 0.3 to 0.6 s later if what was due or pushed is still
 *               there: the leader is dead or frozen. The first to find out
 *               tells the other standbys, so that these don't ask as well.
 *     sleeper   All others. They hear nothing but their own channel and the
 *               waiters', and look every max_wait_ms.
 *
 * Who has none of these roles (it has just begun to wait, or an ACL forbids
 * it) acts at once. What each of them does when it hears
 *
 *                   a due time on      of a push       on its own  on the
 *                   the queue's                        channel     waiters'
 *                   channel                            "lead, due" channel
 *
 *     none, alone   act then           act             -           enter
 *     leader        act then           act             act then    enter
 *     standby       act 0.3 to 0.6 s   look as much    act then    enter
 *                   later              later (LLEN)
 *     sleeper       (unsubscribed)     -               act then    enter
 *
 * To a standby the latest due time on the queue's channel replaces the one
 * before: it is the head's. "Enter": ask within a second, and be given a role
 * anew.
 *
 * All this only saves work. A handle's role is what it was last told: if two
 * believe to lead, both act, and the next script sets one of them right. If
 * nobody leads a standby acts, late, and its script calls all to enter anew; if
 * no standby is left, a sleeper's does.
 *
 * Owns q->waiter, will_wait, and next_poll_us of standbys and sleepers.
 *---------------------------------------------------------------------------*/

#define DQ_WAITERS_MS 10000 /* a take that may last so long takes part */

static unsigned dq_waiters_random(void) {
    unsigned char r[2];
    dq_sys_random(r, 2);
    return (unsigned)r[0] << 8 | r[1];
}

/* A standby acts so much later than the leader. */
static int64_t dq_waiters_slack(void) {
    return 300000 + (int64_t)dq_waiters_random() * 300000 / 65536;
}

/* Is it in the set? */
static int dq_waiters_listed(const delayq *q) {
    return q->waiter.role >= DELAYQ_WAITER_LEADER;
}

/* --- what the handle's requests and subscriptions depend on --- */

/* Does its next take name the waiters? */
static int dq_waiters_in_take(const delayq *q) {
    const delayq_waiter *w = &q->waiter;
    return dq_waiters_listed(q) ||
           (q->will_wait && w->role == DELAYQ_WAITER_NONE && w->own_heard &&
            w->all_heard);
}

/* What it is by its own account, for the script. */
static const char *dq_waiters_claim(const delayq *q) {
    const delayq_waiter *w = &q->waiter;
    if (!w->known) return "new";
    if (w->called) return "none";
    switch (w->role) {
    case DELAYQ_WAITER_LEADER: return "leader";
    case DELAYQ_WAITER_SLEEPER: return "sleeper";
    case DELAYQ_WAITER_STANDBY:
        return w->overdue || q->conn->tracking == DELAYQ_TRACK_OFF ||
                       (w->due_us > 0 && w->due_us <= dq_sys_now())
                   ? "check"
                   : "standby";
    default: return "none";
    }
}

/* Which of many are standbys: the same in each script. */
static int dq_waiters_share(const delayq *q) {
    return q->handle_id[6] << 8 | q->handle_id[7];
}

/* Does it have to hear the queue's channel? */
static int dq_waiters_need_queue(const delayq *q) {
    return q->waiter.role != DELAYQ_WAITER_SLEEPER;
}

/* May it ask to be told of pushes now? */
static int dq_waiters_may_track(const delayq *q) {
    const delayq_waiter *w = &q->waiter;
    return w->role != DELAYQ_WAITER_SLEEPER &&
           (w->push_us == 0 || w->push_us <= dq_sys_now());
}

/* --- when it acts --- */

/* At the latest: sooner where nothing would announce an item. */
static int64_t dq_waiters_latest(const delayq *q) {
    int64_t wait_us = q->options.max_wait_ms * 1000;
    int heard = q->conn->tracking != DELAYQ_TRACK_OFF && q->subscribed;
    if (!heard && wait_us > DQ_UNHEARD_POLL_US) wait_us = DQ_UNHEARD_POLL_US;
    return dq_sys_now() + wait_us;
}

/* The next item is due then: when a standby acts. */
static void dq_waiters_stand_by(delayq *q, int64_t due_us) {
    int64_t now = dq_sys_now(), latest = dq_waiters_latest(q);
    if (due_us > latest) due_us = latest; /* as the leader polls */
    if (due_us < now) due_us = now;
    due_us += dq_waiters_slack();
    if (due_us > q->waiter.look_us) due_us = q->waiter.look_us;
    if (q->waiter.called)
        dq_sched_lower(q, due_us); /* it enters before */
    else
        q->next_poll_us = due_us;
}

/* --- events --- */

/* A take begins: may it wait long? One that has left the waiters with an item
 * enters at once. */
static void dq_waiters_begin(delayq *q, int64_t timeout_ms) {
    q->will_wait = (timeout_ms < 0 || timeout_ms >= DQ_WAITERS_MS) &&
                   !q->options.broadcast;
    if (q->waiter.role == DELAYQ_WAITER_NONE && dq_waiters_in_take(q))
        dq_sched_lower(q, dq_sys_now());
}

/* A take is written: what was heard until now it takes into account. */
static void dq_waiters_on_write(delayq *q) {
    q->waiter.promoted = 0;
    if (q->waiter.called) q->waiter.called = 2;
}

/* A take, sent then, was answered: so long until the next item is due; whether
 * it has got something; the role, or -1 if it did not name the waiters. */
static void dq_waiters_on_reply(delayq *q, int64_t sent_us, int64_t next_us,
                                int got, int64_t role) {
    delayq_waiter *w = &q->waiter;
    delayq_waiter_role before = w->role;
    int64_t cap = q->options.max_wait_ms * 1000;
    if (role >= DELAYQ_WAITER_NONE && role <= DELAYQ_WAITER_SLEEPER)
        w->role = (delayq_waiter_role)role;
    else if (got && dq_waiters_listed(q))
        w->role = DELAYQ_WAITER_NONE;
    if (role > DELAYQ_WAITER_NONE) w->known = 1;
    w->overdue = 0;
    if (role >= 0 && w->called == 2) w->called = 0;
    if (w->called && w->role == DELAYQ_WAITER_ALONE)
        w->role = DELAYQ_WAITER_NONE; /* called meanwhile */
    if (w->promoted && w->role > DELAYQ_WAITER_LEADER)
        w->role = DELAYQ_WAITER_LEADER; /* told meanwhile: at worst there are
                                           two for a time */
    if (w->role != DELAYQ_WAITER_STANDBY) w->push_us = 0;
    if (w->role == DELAYQ_WAITER_STANDBY) {
        w->due_us = next_us < 0 ? 0 : sent_us + next_us;
        w->look_us = sent_us + cap;
        dq_waiters_stand_by(q, next_us < 0 ? w->look_us : w->due_us);
    } else if (w->role == DELAYQ_WAITER_SLEEPER) {
        if (before != DELAYQ_WAITER_SLEEPER) /* not all at the same time */
            cap = cap / 65536 * dq_waiters_random();
        q->next_poll_us = sent_us + cap;
    }
    if (w->called) dq_sched_lower(q, dq_sys_now());
}

/* A message on the queue's channel: the next item is due then; 0: now. */
static void dq_waiters_on_message(delayq *q, int64_t due_ms) {
    delayq_waiter *w = &q->waiter;
    if (w->role == DELAYQ_WAITER_SLEEPER) return;
    if (w->role == DELAYQ_WAITER_STANDBY) {
        w->due_us = dq_sched_message_us(q, due_ms);
        dq_waiters_stand_by(q, w->due_us);
    } else {
        dq_sched_on_message(q, due_ms);
    }
}

/* The queue's channel is subscribed, or no more. */
static void dq_waiters_on_subscribe(delayq *q, int on) {
    q->subscribed = on != 0;
    if (q->waiter.role == DELAYQ_WAITER_STANDBY)
        dq_waiters_on_message(q, 0);
    else if (q->waiter.role != DELAYQ_WAITER_SLEEPER)
        dq_sched_on_subscribe(q, on);
}

/* The list has changed. */
static void dq_waiters_on_push(delayq *q) {
    delayq_waiter *w = &q->waiter;
    if (w->role < DELAYQ_WAITER_STANDBY) {
        dq_sched_on_push(q);
        return;
    }
    q->list_tracked = 0;
    if (w->role == DELAYQ_WAITER_STANDBY && w->push_us == 0)
        w->push_us = dq_sys_now() + dq_waiters_slack();
}

/* It is asked whether something was pushed. Should that fail, a standby asks
 * again as much later. */
static void dq_waiters_on_track_sent(delayq *q) {
    delayq_waiter *w = &q->waiter;
    w->looking = w->push_us > 0;
    if (w->looking) w->push_us = dq_sys_now() + dq_waiters_slack();
}

/* A push into the list will be heard; so many lie there already. Those are the
 * leader's at first. */
static void dq_waiters_on_track(delayq *q, int64_t ready) {
    delayq_waiter *w = &q->waiter;
    if (w->role == DELAYQ_WAITER_STANDBY && w->looking) w->push_us = 0;
    if (w->role == DELAYQ_WAITER_STANDBY && !w->looking && ready > 0) {
        q->list_tracked = 1;
        dq_waiters_on_push(q);
        return;
    }
    w->overdue = w->role == DELAYQ_WAITER_STANDBY && ready > 0;
    dq_sched_on_track(q, ready);
}

/* Its own channel or, all, that of the waiters, is subscribed, or no more. */
static void dq_waiters_on_heard(delayq *q, int all, int on) {
    if (all)
        q->waiter.all_heard = on != 0;
    else
        q->waiter.own_heard = on != 0;
    if (q->waiter.role == DELAYQ_WAITER_NONE && dq_waiters_in_take(q))
        dq_sched_lower(q, dq_sys_now());
}

/* A message on its own channel: it leads; the next item is due then. One that
 * is in no role is in no take, or asks soon: the message is for a former one.
 */
static void dq_waiters_on_promotion(delayq *q, int64_t due_ms) {
    delayq_waiter *w = &q->waiter;
    if (!dq_waiters_listed(q)) return;
    w->role = DELAYQ_WAITER_LEADER;
    w->promoted = 1;
    w->push_us = 0;
    q->next_poll_us = dq_sched_message_us(q, due_ms);
    dq_sched_lower(q, dq_waiters_latest(q));
    if (w->called) dq_sched_lower(q, dq_sys_now());
}

/* A message on the waiters' channel: all that wait, so many, enter anew, each
 * at a moment of its own. */
static void dq_waiters_on_call(delayq *q, int64_t count) {
    delayq_waiter *w = &q->waiter;
    w->called = 1;
    if (w->role == DELAYQ_WAITER_ALONE) w->role = DELAYQ_WAITER_NONE;
    if (count > 1000) count = 1000;
    count = count * 1000 * (int64_t)dq_waiters_random() / 65536;
    if (q->will_wait) dq_sched_lower(q, dq_sys_now() + count);
}

/* It has left the waiters, or tried to. */
static void dq_waiters_on_leave(delayq *q) {
    if (dq_waiters_listed(q)) q->next_poll_us = dq_sys_now();
    q->waiter.role = DELAYQ_WAITER_NONE;
    q->waiter.push_us = 0;
}

/* An ACL forbids the waiters' key: it waits as if alone, until the subscriber
 * is opened anew. */
static void dq_waiters_on_refusal(delayq *q) {
    dq_waiters_on_leave(q);
    q->waiter.own_heard = 0;
}

/*-----------------------------------------------------------------------------
 * MARK: - Connections
 * >>connections   dialing, login, probe, sentinels, redirections, back-off
 *
 * Owns the two sockets of a delayq_conn and their state. It is the only
 * section that connects, and that decides when and where to. Its failures
 * stand in conn->err; dq_conn_ensure copies them to the handle that asked.
 *---------------------------------------------------------------------------*/

#define DQ_HOPS 5 /* most redirections of a connect, resends of a request */

/* In ms milliseconds, but no later than the deadline. */
static int64_t dq_conn_until(int ms, int64_t deadline) {
    int64_t until = dq_sys_now() + ms * 1000LL;
    return until < deadline ? until : deadline;
}

/* Close the command connection. why and text are what requests are told until
 * the next attempt to connect. */
static void dq_conn_close(delayq_conn *conn, delayq_status why,
                          const char *text) {
    if (conn->cmd) {
        redisFree(conn->cmd);
        if (conn->state != DELAYQ_CONN_PROVEN) conn->conns_without_reply++;
    }
    if (conn->conns_without_reply > 1 &&
        conn->failures < conn->conns_without_reply)
        conn->failures = conn->conns_without_reply;
    conn->cmd = NULL;
    conn->state = why == DQ_MOVED ? DELAYQ_CONN_REDIRECTED : DELAYQ_CONN_CLOSED;
    if (conn->tracking == DELAYQ_TRACK_ON)
        conn->tracking = DELAYQ_TRACK_ALLOWED;
    conn->failure = why == DELAYQ_ERR_UNKNOWN || why == DELAYQ_ERR_PROTOCOL
                        ? DELAYQ_ERR_IO
                        : dq_err_public(why);
    if (text != conn->err)
        snprintf(conn->err, sizeof conn->err, "%.*s", (int)sizeof conn->err - 1,
                 text);
    conn->loaded = 0;
    conn->retry_us = dq_sched_next_attempt(conn->failures);
    dq_sched_on_conn_lost(conn);
}

static void dq_conn_close_sub(delayq_conn *conn) {
    if (conn->sub) redisFree(conn->sub);
    conn->sub = NULL;
    conn->tracking = DELAYQ_TRACK_OFF;
    conn->sub_retry_us = dq_sched_next_attempt(conn->sub_failures);
    dq_sched_on_sub_lost(conn);
}

/* An error reply to something that the connection itself has said. */
static delayq_status dq_conn_refused(delayq_conn *conn, const char *what,
                                     const redisReply *r) {
    return dq_err_public(dq_err_reply(conn->err, what, r));
}

static delayq_status dq_conn_no_memory(delayq_conn *conn) {
    return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
}

/* Why an exchange has failed, and what may have happened. */
static delayq_status dq_conn_fail_exchange(delayq_conn *conn,
                                           const redisContext *c, int sent) {
    const char *cause = c->errstr[0] ? c->errstr : "the connection is lost";
    if (c->err == REDIS_ERR_IO && errno != 0) cause = strerror(errno);
    if (c->err == REDIS_ERR_OOM)
        return dq_err_set(conn->err,
                          sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_MEMORY,
                          "out of memory");
    if (c->err == REDIS_ERR_PROTOCOL)
        return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                          "not Redis' protocol: %s", c->errstr);
    return dq_err_set(conn->err, sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_IO,
                      "connection lost %s: %s",
                      sent ? "before the answer: it may have happened"
                           : "before sending: nothing has happened",
                      cause);
}

/* Write what is in the buffer and read n replies, by the deadline. The caller
 * frees the replies, of which *got came. *sent: the server may have run
 * something. After a failure the connection is of no more use. */
static delayq_status dq_conn_exchange(delayq_conn *conn, redisContext *c,
                                      redisReply **replies, int n, int *got,
                                      int *sent, int64_t deadline) {
    int late = 0, ready;
    *got = *sent = 0;
    while (*got < n) {
        void *r = NULL;
        errno = 0;
        if ((!*sent && dq_sys_write(c, sent) != REDIS_OK) ||
            redisGetReplyFromReader(c, &r) != REDIS_OK)
            return dq_conn_fail_exchange(conn, c, *sent);
        if (r) {
            replies[(*got)++] = (redisReply *)r;
            continue;
        }
        /* What came in time is read though we may be late, but a server that
         * sends byte by byte does not hold us for ever. */
        ready =
            dq_sys_poll_one(c->fd, *sent ? POLLIN : POLLIN | POLLOUT, deadline);
        if (!ready || (ready == 2 && ++late > 64))
            return dq_err_set(conn->err,
                              *sent ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_TIMEOUT,
                              "%s",
                              *sent ? "no answer in time: it may have happened"
                                    : "not sent in time: nothing has happened");
        if (dq_sys_read(c) != REDIS_OK)
            return dq_conn_fail_exchange(conn, c, *sent);
    }
    /* A later request would take it for its own answer. */
    if (c == conn->cmd && c->reader->pos < c->reader->len)
        return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                          "the server says more than it was asked");
    return DELAYQ_OK;
}

static const char *dq_conn_url(const delayq_conn *conn) {
    const char *url = conn->owner->options.url;
    return url ? url : "redis://127.0.0.1:6379";
}

/* A connected socket, with TLS where the URL says so. */
static delayq_status dq_conn_open_socket(delayq_conn *conn, const dq_url *u,
                                         const delayq_address *a,
                                         redisContext **out, int64_t deadline) {
    const delayq_options *o = &conn->owner->options;
    int64_t left = (deadline - dq_sys_now() + 999) / 1000;
    int error = 0;
    socklen_t size = sizeof error;
    delayq_status status = DELAYQ_OK;
    redisContext *c;
    char where[100], port[16] = "";
    if (a->port) snprintf(port, sizeof port, ":%d", a->port);
    snprintf(where, sizeof where, "%.80s%s",
             o->connect ? "the connect hook" : a->host, o->connect ? "" : port);
    *out = NULL;
    if (o->connect)
        c = o->connect(o->user, left > 1 ? (int)left : 1);
    else if (a->port)
        c = redisConnectNonBlock(a->host, a->port);
    else
        c = redisConnectUnixNonBlock(a->host);
    if (!c && !o->connect) return dq_conn_no_memory(conn);
    if (!c)
        return dq_err_set(conn->err, DELAYQ_ERR_IO,
                          "the connect hook gave nothing");
    if (!c->err) {
        c->flags &= ~REDIS_BLOCK;
        dq_sys_set_modes(c->fd);
    }
    if (c->err)
        status = dq_err_set(conn->err, DELAYQ_ERR_IO, "can't connect to %s: %s",
                            where, c->errstr);
    else if (!dq_sys_poll_one(c->fd, POLLOUT, deadline))
        status = dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                            "can't connect to %s in time", where);
    else if (getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
             error != 0)
        status = dq_err_set(conn->err, DELAYQ_ERR_IO, "can't connect to %s: %s",
                            where, strerror(error));
    else if (u->tls && !o->connect)
        status = dq_tls_start(conn, c, a->host, where, deadline);
    if (status == DELAYQ_OK)
        *out = c;
    else
        redisFree(c);
    return status;
}

/* What a connection says besides requests, in one write; its caller adds to o
 * and n. Nothing of it has an effect. */
typedef struct dq_conn_batch {
    dq_resp_writer o;
    int login, n, got; /* replies: of the login, all, those that came */
    redisReply *r[7];
} dq_conn_batch;

static void dq_conn_begin_batch(dq_conn_batch *t, redisContext *c) {
    memset(t, 0, sizeof *t);
    dq_resp_begin(&t->o, c);
}

static delayq_status dq_conn_run_batch(delayq_conn *conn, dq_conn_batch *t,
                                       int64_t deadline) {
    int sent;
    delayq_status status;
    dq_resp_flush(&t->o);
    if (t->o.failed) return dq_conn_no_memory(conn);
    status =
        dq_conn_exchange(conn, t->o.c, t->r, t->n, &t->got, &sent, deadline);
    if (status != DELAYQ_ERR_UNKNOWN) return status;
    return dq_err_set(conn->err, DELAYQ_ERR_IO,
                      "connected, but no answer came");
}

static void dq_conn_end_batch(dq_conn_batch *t) {
    while (t->got-- > 0) freeReplyObject(t->r[t->got]);
}

/* Open a socket and begin its login. A sentinel may have a password or
 * none; where it has one, it is the URL's. */
static delayq_status dq_conn_dial(delayq_conn *conn, dq_conn_batch *t,
                                  const delayq_address *a, int is_sentinel,
                                  int64_t deadline) {
    dq_url u;
    redisContext *c;
    delayq_status status;
    dq_url_parse(dq_conn_url(conn), &u);
    status = dq_conn_open_socket(conn, &u, a, &c, deadline);
    dq_conn_begin_batch(t, c);
    if (status != DELAYQ_OK) return status;
    if (u.login) {
        dq_resp_command(&t->o, u.user[0] ? 3 : 2, "AUTH");
        if (u.user[0]) dq_resp_text(&t->o, u.user);
        dq_resp_text(&t->o, u.password);
        t->n++;
    }
    if (is_sentinel) {
        dq_resp_command(&t->o, 3, "SENTINEL get-master-addr-by-name");
        dq_resp_text(&t->o, u.service);
        t->n++;
        return DELAYQ_OK;
    }
    if (u.db > 0) {
        dq_resp_command(&t->o, 2, "SELECT");
        dq_resp_int(&t->o, u.db);
        t->n++;
    }
    dq_resp_command(&t->o, 3, "CLIENT SETNAME delayq");
    t->login = ++t->n;
    return DELAYQ_OK;
}

/* Exchange a login and what follows it, the first of which is t->r[t->login].
 */
static delayq_status dq_conn_run_login(delayq_conn *conn, dq_conn_batch *t,
                                       int64_t deadline) {
    delayq_status status = dq_conn_run_batch(conn, t, deadline);
    int i;
    if (status == DELAYQ_ERR_IO) {
        /* A server that refuses a connection may say why, then closes it. */
        char said[160];
        redisReply refusal;
        ssize_t n;
        if (t->got > 0 && t->r[t->got - 1]->type == REDIS_REPLY_ERROR)
            return dq_conn_refused(conn, "login", t->r[t->got - 1]);
        n = recv(t->o.c->fd, said, sizeof said - 1, MSG_DONTWAIT);
        if (n < 2 || said[0] != '-') return status;
        said[n] = '\0';
        said[strcspn(said, "\r\n")] = '\0';
        refusal.str = said + 1;
        return dq_conn_refused(conn, "login", &refusal);
    }
    /* The last one is SETNAME, which may be refused. */
    for (i = 0; status == DELAYQ_OK && i < t->login - 1; i++)
        if (t->r[i]->type == REDIS_REPLY_ERROR)
            return dq_conn_refused(conn, "login", t->r[i]);
    return status;
}

/* The server's clock showed `us` at some moment between two of ours. */
static void dq_conn_set_clock(delayq_conn *conn, int64_t us, int64_t sent_us,
                              int64_t read_us) {
    conn->clock_offset_us = us - read_us;
    conn->clock_error_us = read_us - sent_us;
}

/* Where "MOVED slot host:port" or "ASK slot host:port" points: to
 * conn->redirect. Without a host it is the node that says so. */
static delayq_status dq_conn_parse_redirect(delayq_conn *conn,
                                            const char *text) {
    const char *p = strrchr(text, ' '), *colon = strrchr(text, ':');
    size_t len = p && colon > p ? (size_t)(colon - p - 1) : 0;
    int port = colon ? dq_num_small(colon + 1, strlen(colon + 1), 65535) : -1;
    delayq_address *to = &conn->redirect;
    if (conn->owner->options.connect)
        return dq_err_set(conn->err, DELAYQ_ERR_REDIS,
                          "the queue lies on another node of the cluster than "
                          "the connect hook leads to: %.60s",
                          text);
    if (port < 1 || len >= sizeof to->host)
        return dq_err_set(conn->err, DELAYQ_ERR_REDIS, "the server says: %.60s",
                          text);
    *to = conn->at;
    if (len > 0 && p[1] != '?') {
        memcpy(to->host, p + 1, len);
        to->host[len] = '\0';
    }
    to->port = port;
    return dq_err_lookup(text)->status;
}

/* Run a login, if any, with the probe of q's queue, which tells the server's
 * clock, its unsigned long, whether old elements lie there, and whether this
 * node serves the slot. */
static delayq_status dq_conn_probe(delayq *q, dq_conn_batch *t,
                                   int64_t deadline) {
    delayq_conn *conn = q->conn;
    int64_t sent_us = dq_sys_now(), n[2];
    const redisReply *probe, *slot, *value;
    delayq_status status;
    dq_resp_command(&t->o, 5, "EVAL");
    dq_resp_script(&t->o, dq_parts_probe);
    dq_resp_int(&t->o, 0);
    dq_resp_key(&t->o, q, DQ_ZSET, "");
    dq_resp_key(&t->o, q, DQ_MIRROR, "");
    dq_resp_command(&t->o, 4, "EXISTS");
    dq_resp_arg(&t->o, q->name, q->name_len);
    dq_resp_key(&t->o, q, DQ_ZSET, "");
    dq_resp_key(&t->o, conn->owner, DQ_ZSET, "");
    t->n += 2;
    status = dq_conn_run_login(conn, t, deadline);
    if (status != DELAYQ_OK) goto done;
    /* EXISTS: only a cluster refuses it for the slot. Where an ACL forbids it,
     * the first script will tell. */
    probe = t->r[t->login];
    slot = t->r[t->login + 1];
    if (slot->type == REDIS_REPLY_ERROR) {
        const dq_err_entry *e = dq_err_lookup(slot->str);
        if (e->status == DQ_MOVED)
            status = dq_conn_parse_redirect(conn, slot->str);
        else if (e->status == DELAYQ_ERR_ARG || e->leave)
            status = dq_conn_refused(conn, "open", slot);
        if (status != DELAYQ_OK) goto done;
    }
    if (probe->type == REDIS_REPLY_ERROR) {
        status = dq_conn_refused(conn, "open", probe);
        goto done;
    }
    value = probe->type == REDIS_REPLY_ARRAY && probe->elements == 3
                ? probe->element[2]
                : NULL;
    if (!value || value->type != REDIS_REPLY_STRING ||
        (value->len != 8 && value->len != 4) ||
        !dq_resp_integers(probe, n, 2)) {
        status =
            dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, "open");
        goto done;
    }
    conn->long_size = (unsigned char)value->len;
    conn->long_big = value->str[0] == 0;
    dq_conn_set_clock(conn, n[0], sent_us, dq_sys_now());
    if (n[1] == 1 && q->options.wire != DELAYQ_REDISSON_OLD)
        q->wire_refused = 1;
    q->probed = 1;
done:
    dq_conn_end_batch(t);
    return status;
}

/* Ask a sentinel where the master is. */
static delayq_status dq_conn_ask_sentinel(delayq_conn *conn, const dq_url *u,
                                          delayq_address *a, int64_t deadline) {
    const redisReply *said, *host, *port;
    dq_conn_batch t;
    delayq_status status = dq_conn_dial(conn, &t, a, 1, deadline);
    if (status != DELAYQ_OK) return status;
    status = dq_conn_run_login(conn, &t, deadline);
    if (status != DELAYQ_OK) goto done;
    said = t.r[t.n - 1];
    host = said->elements == 2 ? said->element[0] : NULL;
    port = said->elements == 2 ? said->element[1] : NULL;
    if (said->type == REDIS_REPLY_ERROR) {
        status = dq_conn_refused(conn, "sentinel", said);
    } else if (said->type != REDIS_REPLY_ARRAY || !host ||
               host->type != REDIS_REPLY_STRING ||
               port->type != REDIS_REPLY_STRING ||
               host->len >= sizeof a->host) {
        status = dq_err_set(conn->err, DELAYQ_ERR_IO,
                            "the sentinel %.80s:%d knows no %s", a->host,
                            a->port, u->service);
    } else {
        memcpy(a->host, host->str, host->len + 1);
        a->port = dq_num_small(port->str, port->len, 65535);
        if (a->port < 1)
            status = dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                                "sentinel: the answer has no port");
    }
done:
    dq_conn_end_batch(&t);
    redisFree(t.o.c);
    return status;
}

/* One attempt: at the node to which a redirection has pointed, or the next
 * host of the URL. */
static delayq_status dq_conn_attempt(delayq *q, const dq_url *u,
                                     int64_t deadline) {
    delayq_conn *conn = q->conn;
    delayq_status status = DELAYQ_OK;
    dq_conn_batch t;
    if (conn->state == DELAYQ_CONN_REDIRECTED) {
        conn->at = conn->redirect;
    } else if (!conn->owner->options.connect) {
        dq_url_host(u, conn->host, &conn->at);
        if (u->sentinel)
            status = dq_conn_ask_sentinel(conn, u, &conn->at, deadline);
    }
    if (status == DELAYQ_OK) {
        status = dq_conn_dial(conn, &t, &conn->at, 0, deadline);
        conn->cmd = t.o.c;
    }
    if (status == DELAYQ_OK) status = dq_conn_probe(q, &t, deadline);
    conn->state = status == DELAYQ_OK  ? DELAYQ_CONN_OPEN
                  : status == DQ_MOVED ? DELAYQ_CONN_REDIRECTED
                                       : DELAYQ_CONN_CLOSED;
    if (status == DELAYQ_OK) return status;
    if (conn->cmd) redisFree(conn->cmd);
    conn->cmd = NULL;
    if (status != DQ_MOVED) conn->host++;
    return status;
}

/* Make the command connection, unless an attempt has failed too lately. The
 * hosts are tried in turn, each with its share of the time. */
static delayq_status dq_conn_connect(delayq *q, int64_t deadline) {
    delayq_conn *conn = q->conn;
    delayq_address before = conn->at;
    int64_t now = dq_sys_now();
    unsigned left, hops = 0;
    delayq_status status;
    dq_url u;
    assert(!conn->cmd);
    if (now < conn->retry_us)
        return dq_err_set(q->err, conn->failure,
                          "%s; the next attempt is in %d ms", conn->err,
                          (int)((conn->retry_us - now + 999) / 1000));
    dq_url_parse(dq_conn_url(conn), &u);
    deadline = dq_conn_until(q->options.connect_timeout_ms, deadline);
    left = u.count + (conn->state == DELAYQ_CONN_REDIRECTED);
    for (;;) {
        now = dq_sys_now();
        status = dq_conn_attempt(q, &u, now + (deadline - now) / (int64_t)left);
        if (status == DQ_MOVED && ++hops <= DQ_HOPS) continue;
        if (status == DQ_MOVED) {
            status = dq_err_set(conn->err, DELAYQ_ERR_AGAIN,
                                "the cluster's nodes point at each other");
            break;
        }
        if (status == DELAYQ_OK || status == DELAYQ_ERR_ARG ||
            status == DELAYQ_ERR_AUTH || status == DELAYQ_ERR_MEMORY ||
            --left == 0 || dq_sys_now() >= deadline)
            break;
    }
    if (status != DELAYQ_OK) {
        conn->failures++;
        dq_conn_close(conn, status, conn->err);
        return dq_err_set(q->err, status, "%s", conn->err);
    }
    if (conn->sub && (before.port != conn->at.port ||
                      strcmp(before.host, conn->at.host) != 0))
        dq_conn_close_sub(conn);
    conn->failures = 0;
    q->counts.reconnects += conn->used_us > 0;
    conn->used_us = dq_sys_now();
    dq_sched_on_conn_back(conn, conn->used_us);
    return DELAYQ_OK;
}

/* An idle connection that the server has closed is readable. */
static void dq_conn_check_idle(delayq_conn *conn) {
    redisContext *c = conn->cmd;
    void *r = NULL;
    if (!dq_sys_poll_one(c->fd, POLLIN, 0)) return;
    if (dq_sys_read(c) == REDIS_OK &&
        redisGetReplyFromReader(c, &r) == REDIS_OK && !r)
        return; /* TLS sends records of its own now and then */
    if (r) freeReplyObject(r);
    dq_conn_close(conn, DELAYQ_ERR_IO, "the server has closed the connection");
}

/* Have an open connection on which q's queue is known. Whatever asks the
 * server begins here. */
static delayq_status dq_conn_ensure(delayq *q, int64_t deadline) {
    delayq_conn *conn = q->conn;
    delayq_status status = DELAYQ_OK;
    if (q->wire_refused) return dq_err_wire(q);
    if (conn->cmd && dq_sys_now() - conn->used_us > DQ_SECOND_US)
        dq_conn_check_idle(conn);
    if (!conn->cmd) status = dq_conn_connect(q, deadline);
    if (status == DELAYQ_OK && !q->probed) {
        /* A handle that shares the connection probes its own queue. */
        dq_conn_batch t;
        dq_conn_begin_batch(&t, conn->cmd);
        status = dq_conn_probe(
            q, &t, dq_conn_until(q->options.io_timeout_ms, deadline));
        if (status == DQ_MOVED) {
            dq_conn_close(conn, status, conn->err);
            status = dq_conn_connect(q, deadline);
        } else if (status != DELAYQ_OK) {
            dq_err_set(q->err, status, "%s", conn->err);
            /* A refusal leaves the connection to the others. */
            if (status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
                status == DELAYQ_ERR_PROTOCOL || status == DELAYQ_ERR_MEMORY)
                dq_conn_close(conn, status, conn->err);
        }
        status = dq_err_public(status);
    }
    if (status != DELAYQ_OK) return status;
    assert(conn->cmd && conn->state >= DELAYQ_CONN_OPEN && q->probed);
    return q->wire_refused ? dq_err_wire(q) : DELAYQ_OK;
}

/* A script on cmd was answered; leave: another server may do better. */
static void dq_conn_note_answer(delayq_conn *conn, int leave) {
    conn->state = leave ? DELAYQ_CONN_OPEN : DELAYQ_CONN_PROVEN;
    if (leave)
        conn->host++;
    else
        conn->conns_without_reply = 0;
}

/*-----------------------------------------------------------------------------
 * MARK: - Requests
 * >>requests   sending scripts, reading their replies, one retry policy
 *
 * Owns the requests under way on a command connection. dq_req_decide is the
 * only place that decides about sending one again.
 *---------------------------------------------------------------------------*/

/* A request's answer: its status, and what it says of the connection. That of
 * another node, which ASK has named, says nothing of ours. */
static delayq_status dq_req_judge(delayq *q, dq_req *req, const redisReply *r) {
    delayq_conn *conn = q->conn;
    int refused = r->type == REDIS_REPLY_ERROR;
    int leave = refused && dq_err_lookup(r->str)->leave;
    delayq_status status = DELAYQ_OK;
    if (refused)
        status = dq_err_reply(q->err, req->what, r);
    else if (r->type != REDIS_REPLY_ARRAY || r->elements == 0)
        status = dq_err_bad_reply(q, req->what);
    if (req->asking || !conn->cmd) return status;
    if (status == DQ_NOSCRIPT) conn->loaded &= ~req->script->bit;
    if (status == DQ_MOVED || status == DQ_ASK) {
        status = dq_conn_parse_redirect(conn, r->str);
        if (status == DELAYQ_ERR_REDIS)
            dq_err_set(q->err, status, "%s", conn->err);
    }
    dq_conn_note_answer(conn, leave);
    if (status == DQ_MOVED || leave) dq_conn_close(conn, status, q->err);
    return status;
}

/* Send the requests that wait, in one go on c, and read their replies: each
 * that was sent has its status then. The server begins with the first while
 * the next is written. */
static void dq_req_send(delayq *q, redisContext *c, dq_req *reqs,
                        size_t count) {
    delayq_conn *conn = q->conn;
    dq_req *under_way[DQ_PIPELINE_MAX];
    redisReply *replies[DQ_PIPELINE_MAX + 2]; /* two may load a script */
    int first[DQ_PIPELINE_MAX + 1];           /* of each, among the replies */
    int n = 0, got = 0, sent = 0, i;
    int64_t now = dq_sys_now(), deadline;
    delayq_status status = DELAYQ_OK;
    size_t k;
    deadline = now + q->options.io_timeout_ms * 1000LL;
    if (deadline > reqs->deadline_us) deadline = reqs->deadline_us;
    first[0] = 0;
    for (k = 0; k < count && n < DQ_PIPELINE_MAX; k++) {
        dq_req *req = &reqs[k];
        dq_resp_writer o;
        if (req->state != DQ_REQ_WAITING) continue;
        if (now >= deadline) {
            req->state = DQ_REQ_ANSWERED;
            req->status = dq_err_set(q->err, DELAYQ_ERR_TIMEOUT,
                                     "connected, but no time is left: nothing "
                                     "has happened");
            continue;
        }
        if (n > 0) {
            if (dq_sys_write(c, &sent) != REDIS_OK) break;
            now = dq_sys_now();
        }
        req->sent_us = now;
        dq_resp_begin(&o, c);
        first[n + 1] = first[n] + dq_req_write(&o, q, req);
        dq_resp_flush(&o);
        req->state = DQ_REQ_ANSWERED;
        under_way[n++] = req;
        if (o.failed) {
            status = dq_conn_no_memory(conn);
            break;
        }
    }
    if (n == 0) return;
    memset(replies, 0, sizeof replies);
    if (status == DELAYQ_OK)
        status =
            dq_conn_exchange(conn, c, replies, first[n], &got, &sent, deadline);
    conn->used_us = dq_sys_now();
    if (status != DELAYQ_OK) dq_err_set(q->err, status, "%s", conn->err);
    for (i = 0; i < n; i++) {
        dq_req *req = under_way[i];
        int last = first[i + 1] - 1;
        const redisReply *loaded = last > first[i] ? replies[first[i]] : NULL;
        if (status == DELAYQ_ERR_PROTOCOL) {
            req->status = status;
        } else if (got <= last) {
            /* The server may have read what was written before the last. */
            req->status = i < n - 1 ? DELAYQ_ERR_UNKNOWN : status;
        } else {
            req->status = dq_req_judge(q, req, replies[last]);
            if (req->status == DQ_NOSCRIPT && loaded &&
                loaded->type == REDIS_REPLY_ERROR)
                req->status = dq_req_judge(q, req, loaded); /* why it failed */
            if (req->status != DELAYQ_OK) continue;
            req->reply = replies[last];
            replies[last] = NULL;
        }
    }
    if (status != DELAYQ_OK && c == conn->cmd)
        dq_conn_close(conn, status, conn->err);
    for (i = 0; i < got; i++)
        if (replies[i]) freeReplyObject(replies[i]);
}

/* The slot is on its way to another node, and this request's keys are there
 * already: send it there, on a connection of its own. */
static void dq_req_send_ask(delayq *q, dq_req *req) {
    delayq_conn *conn = q->conn;
    dq_conn_batch t;
    req->status = dq_conn_dial(
        conn, &t, &conn->redirect, 0,
        dq_conn_until(q->options.connect_timeout_ms, req->deadline_us));
    if (req->status == DELAYQ_OK)
        req->status = dq_conn_run_login(
            conn, &t,
            dq_conn_until(q->options.io_timeout_ms, req->deadline_us));
    dq_conn_end_batch(&t);
    if (req->status == DELAYQ_OK) {
        req->state = DQ_REQ_WAITING;
        req->asking = 1;
        dq_req_send(q, t.o.c, req, 1);
        req->asking = 0;
    } else {
        dq_err_set(q->err, req->status, "%s", conn->err);
    }
    if (t.o.c) redisFree(t.o.c);
}

/* The retry policy. A request that may have run is sent again only where that
 * is provably harmless, and once; what is settled has its final status. */
static dq_req_next dq_req_decide(delayq *q, dq_req *req) {
    const delayq_conn *conn = q->conn;
    delayq_status status = req->status;
    assert(status != DELAYQ_OK);
    if (req->no_retry) {
        int later = status == DQ_NOSCRIPT || status == DQ_MOVED;
        req->status = later ? DELAYQ_EMPTY : dq_err_public(status);
        return DQ_SETTLE;
    }
    if (++req->tries <= DQ_HOPS) {
        if (status == DQ_NOSCRIPT || status == DQ_MOVED) return DQ_SEND_AGAIN;
        if (status == DQ_ASK) return conn->cmd ? DQ_SEND_ASK : DQ_SEND_AGAIN;
        if (status == DQ_TRYAGAIN && req->script->verb == DQ_TAKE &&
            !req->zset_alone && q->options.wire == DELAYQ_NATIVE) {
            req->zset_alone = 1; /* one key lies on one node */
            req->as_waiter = 0;
            return DQ_SEND_AGAIN;
        }
        if (status == DELAYQ_ERR_AUTH && req->as_waiter) {
            req->as_waiter = 0; /* forbidden: wait as if alone */
            dq_waiters_on_refusal(q);
            return DQ_SEND_AGAIN;
        }
        if (!req->resent && !conn->cmd && conn->failures == 0) {
            req->resent = 1;
            req->is_resend = status == DELAYQ_ERR_UNKNOWN && req->idempotent;
            if (req->is_resend || status == DELAYQ_ERR_IO ||
                status == DELAYQ_ERR_READONLY || status == DELAYQ_ERR_AGAIN ||
                (status == DELAYQ_ERR_UNKNOWN && req->read_only))
                return DQ_SEND_AGAIN;
        }
    }
    if (status == DQ_NOSCRIPT)
        dq_err_set(q->err, status, "the server forgets its scripts");
    if (status == DELAYQ_ERR_UNKNOWN && req->read_only)
        status = dq_err_set(q->err, DELAYQ_ERR_IO,
                            "%s: sent, but no answer came (or no memory for "
                            "it); it changes nothing",
                            req->what);
    if (req->is_resend && status != DELAYQ_ERR_PROTOCOL) {
        char then[160];
        status = DELAYQ_ERR_UNKNOWN;
        snprintf(then, sizeof then, "%.159s", q->err);
        if (!strstr(then, "may have happened; then")) /* said by the last one */
            dq_err_set(q->err, status,
                       "%s: sent, but no answer came: it may have happened; "
                       "then: %s",
                       req->what, then);
    }
    req->status = dq_err_public(status);
    return DQ_SETTLE;
}

/* Run scripts until each is settled; one may fail and the next one not. */
static void dq_req_run_all(delayq *q, dq_req *reqs, size_t count) {
    size_t open, i;
    do {
        delayq_status ready = dq_conn_ensure(q, reqs->deadline_us);
        if (ready == DELAYQ_OK) dq_req_send(q, q->conn->cmd, reqs, count);
        for (i = open = 0; i < count; i++) {
            dq_req *req = &reqs[i];
            dq_req_next next = DQ_SETTLE;
            if (req->state == DQ_REQ_SETTLED) continue;
            if (req->state == DQ_REQ_WAITING && ready == DELAYQ_OK) {
                open++; /* it did not fit this time */
                continue;
            }
            if (req->state == DQ_REQ_WAITING) req->status = ready;
            while (req->status != DELAYQ_OK &&
                   (next = dq_req_decide(q, req)) == DQ_SEND_ASK)
                dq_req_send_ask(q, req);
            if (req->status == DELAYQ_OK || next == DQ_SETTLE) {
                req->state = DQ_REQ_SETTLED;
            } else {
                req->state = DQ_REQ_WAITING;
                open++;
            }
        }
    } while (open > 0);
}

/* When a call that begins now shall end, reconnecting included. */
static int64_t dq_req_deadline(const delayq *q) {
    int ms = q->options.io_timeout_ms;
    if (ms < q->options.connect_timeout_ms) ms = q->options.connect_timeout_ms;
    return dq_sys_now() + ms * 1000LL;
}

static void dq_req_begin(dq_req *req, const dq_script *script, const char *what,
                         void (*write)(dq_resp_writer *, delayq *,
                                       const dq_req *)) {
    memset(req, 0, sizeof *req);
    req->script = script;
    req->what = what;
    req->write = write;
}

/* Read the numbers that the reply of a settled request begins with. */
static delayq_status dq_req_numbers(delayq *q, dq_req *req, int64_t *n,
                                    size_t count) {
    memset(n, 0, count * sizeof *n);
    if (req->status != DELAYQ_OK) return req->status;
    if (dq_resp_integers(req->reply, n, count)) {
        dq_conn_set_clock(q->conn, n[0], req->sent_us, q->conn->used_us);
        return DELAYQ_OK;
    }
    freeReplyObject(req->reply);
    req->reply = NULL;
    return dq_err_bad_reply(q, req->what);
}

/* Run one request. After DELAYQ_OK the caller has its reply. */
static delayq_status dq_req_run(delayq *q, dq_req *req, int64_t *n,
                                size_t count) {
    if (req->deadline_us == 0) req->deadline_us = dq_req_deadline(q);
    dq_req_run_all(q, req, 1);
    return dq_req_numbers(q, req, n, count);
}

/* Run one request of whose reply only the numbers count. */
static delayq_status dq_req_ask(delayq *q, dq_req *req, int64_t *n,
                                size_t count) {
    delayq_status status = dq_req_run(q, req, n, count);
    if (status == DELAYQ_OK) freeReplyObject(req->reply);
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Subscriber
 * >>subscriber   the connection that only listens
 *
 * Owns what is heard: the queue's channel, the handle's own, and pushes into N,
 * of which the server tells by client tracking. It only speeds things up:
 * without it a handle polls every 250 ms. Its failures are told to the log.
 *---------------------------------------------------------------------------*/

#define DQ_SUB_POLL_US 1000 /* between two reads of an idle subscriber */

static int dq_sub_is_key(const delayq *q, const char *prefix, const char *rest,
                         const redisReply *r) {
    char key[DQ_RESP_SMALL];
    size_t len = dq_resp_key_text(q, prefix, rest, key);
    return r->len == len && memcmp(r->str, key, len) == 0;
}

/* What a message, or the end of a subscription, means to one handle. */
static void dq_sub_dispatch(delayq *q, const char *kind,
                            const redisReply *channel, const redisReply *text) {
    int message = strcmp(kind, "message") == 0;
    int gone = strcmp(kind, "unsubscribe") == 0;
    const char *words = text->type == REDIS_REPLY_STRING ? text->str : "";
    size_t i;
    if (strcmp(channel->str, DQ_INVALIDATE) == 0) {
        /* The keys that have changed; nil: all of them. */
        int ours = text->type != REDIS_REPLY_ARRAY;
        for (i = 0; message && !ours && i < text->elements; i++)
            ours = text->element[i]->type == REDIS_REPLY_STRING &&
                   text->element[i]->len == q->name_len &&
                   memcmp(text->element[i]->str, q->name, q->name_len) == 0;
        if (message && ours) dq_waiters_on_push(q);
    } else if (dq_sub_is_key(q, DQ_CHANNEL, "", channel)) {
        if (message)
            dq_waiters_on_message(q, dq_num_due(words));
        else
            dq_waiters_on_subscribe(q, !gone);
    } else if (dq_sub_is_key(q, DQ_TURN, q->id, channel)) {
        if (message)
            dq_waiters_on_promotion(q, dq_num_due(words));
        else
            dq_waiters_on_heard(q, 0, !gone);
    } else if (dq_sub_is_key(q, DQ_WAITERS, "", channel)) {
        if (message)
            dq_waiters_on_call(q, dq_num_due(words));
        else
            dq_waiters_on_heard(q, 1, !gone);
    }
}

enum { DQ_SUB_QUEUE = 1, DQ_SUB_WAITERS = 2, DQ_SUB_OWN = 4 };

/* SUBSCRIBE or UNSUBSCRIBE, without waiting: the answers are read like
 * messages. */
static void dq_sub_subscribe(delayq *q, const char *verb, int what) {
    static const char *const prefixes[] = {DQ_CHANNEL, DQ_WAITERS, DQ_TURN};
    delayq_conn *conn = q->conn;
    dq_resp_writer o;
    int i, sent;
    if (!conn->sub || what == 0) return;
    dq_resp_begin(&o, conn->sub);
    for (i = 0; i < 3; i++) {
        if (!(what & 1 << i)) continue;
        dq_resp_command(&o, 2, verb);
        dq_resp_key(&o, q, prefixes[i], i == 2 ? q->id : "");
    }
    dq_resp_flush(&o);
    if (o.failed || dq_sys_write(conn->sub, &sent) != REDIS_OK)
        dq_conn_close_sub(conn);
}

/* Does another handle on the connection use the same queue? */
static int dq_sub_queue_shared(const delayq *q) {
    const delayq *h;
    for (h = q->conn->handles; h; h = h->next)
        if (h != q && dq_sched_same_queue(h, q)) return 1;
    return 0;
}

/* Subscribe q to what its role among the waiters needs. */
static void dq_sub_follow_role(delayq *q) {
    delayq_waiter *w = &q->waiter;
    int off = !dq_waiters_need_queue(q);
    if (!q->conn->sub) return;
    if (q->will_wait && !w->asked) {
        w->asked = 1;
        dq_sub_subscribe(q, "SUBSCRIBE", DQ_SUB_OWN | DQ_SUB_WAITERS);
    }
    if (q->conn->sub && w->off_queue != off && !dq_sub_queue_shared(q)) {
        w->off_queue = off != 0;
        dq_sub_subscribe(q, off ? "UNSUBSCRIBE" : "SUBSCRIBE", DQ_SUB_QUEUE);
    }
}

/* Read what the subscriber has received, at most 16 buffers full, and ping it
 * when it is quiet. 0: it is lost. */
static int dq_sub_read(delayq_conn *conn, int64_t now) {
    int64_t patience_us = conn->owner->options.io_timeout_ms * 1000LL;
    int i, any = 1, sent;
    for (i = 0; i < 16 && any; i++) {
        void *reply = NULL;
        any = 0;
        if (dq_sys_read(conn->sub) != REDIS_OK) return 0;
        while (redisGetReplyFromReader(conn->sub, &reply) == REDIS_OK &&
               reply) {
            const redisReply *r = (const redisReply *)reply;
            delayq *h = conn->handles;
            if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
                r->element[0]->type != REDIS_REPLY_STRING ||
                r->element[1]->type != REDIS_REPLY_STRING)
                h = NULL; /* an answer to a ping */
            for (; h; h = h->next)
                dq_sub_dispatch(h, r->element[0]->str, r->element[1],
                                r->element[2]);
            freeReplyObject(reply);
            reply = NULL;
            any = 1;
            conn->sub_heard_us = now;
            conn->sub_pinged_us = 0;
        }
        if (conn->sub->err) return 0;
    }
    if (conn->sub_pinged_us > 0) return now - conn->sub_pinged_us < patience_us;
    if (now - conn->sub_heard_us < DQ_PING_US) return 1;
    conn->sub_pinged_us = now;
    return redisAppendFormattedCommand(conn->sub, "*1\r\n$4\r\nPING\r\n", 14) ==
               REDIS_OK &&
           dq_sys_write(conn->sub, &sent) == REDIS_OK;
}

/* Read the subscriber and empty the pipe, at most once a millisecond. */
static void dq_sub_poll(delayq_conn *conn, int64_t now) {
    if (now - conn->sub_read_us < DQ_SUB_POLL_US) return;
    conn->sub_read_us = now;
    dq_sys_drain_pipe(conn->pipe[0]);
    if (conn->sub && !dq_sub_read(conn, now)) dq_conn_close_sub(conn);
}

/* Open the subscriber, unless that has failed too lately. One write: login,
 * CLIENT ID, and the subscriptions; an answer to each. A refused subscription
 * leaves a subscriber that hears less, not a broken queue. */
static void dq_sub_open(delayq *q, int64_t deadline) {
    delayq_conn *conn = q->conn;
    delayq_status status;
    dq_conn_batch t;
    delayq *h;
    if (conn->sub || dq_sys_now() < conn->sub_retry_us) return;
    deadline = dq_conn_until(q->options.io_timeout_ms, deadline);
    status = dq_conn_dial(conn, &t, &conn->at, 0, deadline);
    conn->sub = t.o.c;
    if (status == DELAYQ_OK) {
        dq_resp_command(&t.o, 2, "CLIENT ID");
        dq_resp_command(&t.o, 2, "SUBSCRIBE");
        dq_resp_key(&t.o, q, DQ_CHANNEL, "");
        dq_resp_command(&t.o, 2, "SUBSCRIBE " DQ_INVALIDATE);
        t.n += 3;
        if (q->will_wait) {
            dq_resp_command(&t.o, 2, "SUBSCRIBE");
            dq_resp_key(&t.o, q, DQ_TURN, q->id);
            dq_resp_command(&t.o, 2, "SUBSCRIBE");
            dq_resp_key(&t.o, q, DQ_WAITERS, "");
            t.n += 2;
        }
        status = dq_conn_run_login(conn, &t, deadline);
    }
    if (status == DELAYQ_OK) {
        redisReply **r = t.r + t.login; /* id, channel, pushes, waiters */
        int id = r[0]->type == REDIS_REPLY_INTEGER;
        conn->sub_id = id ? r[0]->integer : 0;
        q->subscribed = r[1]->type == REDIS_REPLY_ARRAY;
        if (q->will_wait) {
            q->waiter.asked = 1;
            dq_waiters_on_heard(q, 0, r[3]->type == REDIS_REPLY_ARRAY);
            dq_waiters_on_heard(q, 1, r[4]->type == REDIS_REPLY_ARRAY);
        }
        conn->tracking = id && r[2]->type == REDIS_REPLY_ARRAY
                             ? DELAYQ_TRACK_ALLOWED
                             : DELAYQ_TRACK_OFF;
        if (!q->subscribed && conn->tracking == DELAYQ_TRACK_OFF)
            status =
                r[1]->type == REDIS_REPLY_ERROR
                    ? dq_conn_refused(conn, "listening", r[1])
                    : dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                                 "listening: the answer is no subscription");
    }
    dq_conn_end_batch(&t);
    if (status != DELAYQ_OK) {
        conn->sub_failures++;
        dq_conn_close_sub(conn);
        if (q->options.log) q->options.log(q->options.user, status, conn->err);
        return;
    }
    conn->sub_failures = 0;
    conn->sub_heard_us = conn->sub_read_us = dq_sys_now();
    conn->sub_pinged_us = 0;
    dq_sched_on_conn_back(conn, conn->sub_heard_us);
    for (h = conn->handles; h; h = h->next)
        if (h != q) dq_sub_subscribe(h, "SUBSCRIBE", DQ_SUB_QUEUE);
}

/* Does it have to ask to be told of pushes into its list? */
static int dq_sub_wants_track(const delayq *q) {
    assert(!q->list_tracked || q->conn->tracking == DELAYQ_TRACK_ON);
    return !q->list_tracked && !q->options.broadcast &&
           q->conn->tracking != DELAYQ_TRACK_OFF && dq_waiters_may_track(q);
}

/* Ask to be told of the next push into N, and how many lie there already,
 * which were pushed before the server began to watch. */
static delayq_status dq_sub_track(delayq *q, int64_t deadline) {
    delayq_conn *conn = q->conn;
    const redisReply *caching, *length;
    delayq_status status = dq_conn_ensure(q, deadline);
    dq_conn_batch t;
    if (status != DELAYQ_OK || conn->tracking == DELAYQ_TRACK_OFF)
        return status;
    dq_waiters_on_track_sent(q);
    dq_conn_begin_batch(&t, conn->cmd);
    if (conn->tracking != DELAYQ_TRACK_ON) {
        dq_resp_command(&t.o, 7, "CLIENT TRACKING ON REDIRECT");
        dq_resp_int(&t.o, conn->sub_id);
        dq_resp_text(&t.o, "OPTIN");
        dq_resp_text(&t.o, "NOLOOP");
        t.n++;
    }
    dq_resp_command(&t.o, 3, "CLIENT CACHING YES");
    dq_resp_command(&t.o, 2, "LLEN");
    dq_resp_arg(&t.o, q->name, q->name_len);
    t.n += 2;
    status = dq_conn_run_batch(
        conn, &t, dq_conn_until(q->options.io_timeout_ms, deadline));
    conn->used_us = dq_sys_now();
    caching = t.r[t.n - 2];
    length = t.r[t.n - 1];
    if (status != DELAYQ_OK) {
        dq_err_set(q->err, status, "%s", conn->err);
        dq_conn_close(conn, status, conn->err);
    } else if (t.r[0]->type == REDIS_REPLY_ERROR ||
               caching->type == REDIS_REPLY_ERROR) {
        conn->tracking = DELAYQ_TRACK_OFF; /* Redis 5, or an ACL */
        dq_sched_lower(q, conn->used_us + DQ_UNHEARD_POLL_US);
    } else if (length->type == REDIS_REPLY_ERROR) {
        status = dq_err_reply(q->err, "wait", length);
        if (status >= DQ_NOSCRIPT) { /* the next take follows a redirection */
            status = DELAYQ_OK;
            dq_sched_lower(q, conn->used_us + DQ_UNHEARD_POLL_US);
        }
    } else if (length->type != REDIS_REPLY_INTEGER) {
        status = dq_err_bad_reply(q, "wait");
    } else {
        conn->tracking = DELAYQ_TRACK_ON;
        dq_waiters_on_track(q, length->integer);
    }
    dq_conn_end_batch(&t);
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Taking
 * >>taking   transfers and takes
 *
 * Owns what a transfer and a take ask and what their replies mean: items,
 * tickets, the ack that goes along.
 *---------------------------------------------------------------------------*/

static const char *dq_wire_letter(const delayq *q) {
    static const char *const letters[] = {"n", "r", "o"};
    return q->options.broadcast ? "b" : letters[q->options.wire];
}

/* What the server's clock will show then, at most, in ms. */
static int64_t dq_due_in(const delayq *q, int64_t delay_ms) {
    const delayq_conn *conn = q->conn;
    return (dq_sys_now() + conn->clock_offset_us + conn->clock_error_us + 999) /
               1000 +
           delay_ms;
}

/* Two arguments: the due time and the prefix that a ticket names. */
static void dq_write_ticket(dq_resp_writer *o, const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n = dq_elem_ticket_prefix(text, key, &due_len);
    dq_resp_arg(o, text, due_len);
    dq_resp_arg(o, key, n);
}

/* --- transfer and take --- */

/* Three keys: the zset; the ready list or the stream; the retry list or the
 * mirror. */
static void dq_write_three_keys(dq_resp_writer *o, const delayq *q) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->options.broadcast)
        dq_resp_key(o, q, DQ_STREAM, "");
    else
        dq_resp_arg(o, q->name, q->name_len);
    dq_resp_key(o, q, q->options.wire != DELAYQ_NATIVE ? DQ_MIRROR : DQ_RETRY,
                "");
}

/* What the scripts that move items have in common: all that a tick says. */
static void dq_write_run(dq_resp_writer *o, delayq *q, const dq_req *call) {
    if (call->zset_alone) {
        dq_resp_key(o, q, DQ_ZSET, "");
    } else {
        dq_write_three_keys(o, q);
        dq_resp_key(o, q, DQ_DEAD, "");
        if (call->as_waiter) dq_resp_key(o, q, DQ_WAITERS, "");
    }
    dq_resp_keys_end(o);
    dq_resp_text(o, dq_wire_letter(q));
    dq_resp_int(o, q->options.batch);
    dq_resp_int(o, q->options.max_wait_ms);
}

static void dq_write_take(dq_resp_writer *o, delayq *q, const dq_req *call) {
    int leases = q->options.lease_ms > 0;
    unsigned char id_rest[6];
    dq_write_run(o, q, call);
    dq_resp_int(o, (int64_t)call->max);
    dq_resp_text(o, q->retry_turn ? "x" : "r");
    dq_resp_int(o, q->options.max_attempts);
    dq_resp_int(o, q->options.lease_ms);
    if (call->ticket) {
        dq_write_ticket(o, call->ticket);
    } else if (leases || call->as_waiter) {
        dq_resp_text(o, "");
        dq_resp_text(o, "");
    }
    if (leases) {
        memcpy(id_rest, q->handle_id, 5);
        id_rest[5] = 0;
        dq_resp_int(o, (int64_t)call->order);
        if (q->options.wire == DELAYQ_REDISSON_OLD)
            dq_resp_int(o, dq_elem_old_id_low(q));
        else
            dq_resp_arg(o, id_rest, sizeof id_rest);
    } else if (call->as_waiter) {
        dq_resp_text(o, "");
        dq_resp_text(o, "");
    }
    if (leases || call->as_waiter) dq_resp_key(o, q, DQ_CHANNEL, "");
    if (!call->as_waiter) return;
    dq_resp_text(o, q->id);
    dq_resp_text(o, q->will_wait ? "1" : "0");
    dq_resp_key(o, q, DQ_TURN, "");
    dq_resp_text(o, dq_waiters_claim(q));
    dq_resp_int(o, dq_waiters_share(q));
    dq_waiters_on_write(q);
}

static void dq_write_broadcast(dq_resp_writer *o, delayq *q,
                               const dq_req *call) {
    dq_write_run(o, q, call);
    dq_resp_int(o, (int64_t)call->max);
    dq_resp_text(o, q->cursor);
    dq_resp_int(o, q->options.broadcast_keep);
    dq_resp_key(o, q, DQ_CHANNEL, "");
}

/* What a transfer's or take's reply says besides the items. */
static delayq_status dq_take_apply(delayq *q, const dq_req *call,
                                   const int64_t *n) {
    const redisReply *r = call->reply, *cursor;
    dq_req_verb verb = call->script->verb;
    int unheard = verb == DQ_TAKE &&
                  (q->conn->tracking == DELAYQ_TRACK_OFF || call->zset_alone);
    int taken = n[DQ_AT_MOVED] > 0 || r->elements > DQ_NUMBERS + 1;
    q->counts.moved += (uint64_t)n[DQ_AT_MOVED];
    q->counts.died += (uint64_t)n[DQ_AT_DEAD];
    dq_sched_on_reply(q, call->sent_us, n[DQ_AT_NEXT], n[DQ_AT_READY], unheard,
                      taken);
    if (verb == DQ_TAKE)
        dq_waiters_on_reply(q, call->sent_us, n[DQ_AT_NEXT],
                            r->elements > DQ_NUMBERS,
                            call->as_waiter ? n[DQ_AT_ROLE] : -1);
    if (verb == DQ_BROADCAST && r->elements > DQ_NUMBERS) {
        cursor = r->element[DQ_NUMBERS];
        if (cursor->type == REDIS_REPLY_STRING &&
            cursor->len < sizeof q->cursor)
            memcpy(q->cursor, cursor->str, cursor->len + 1);
    }
    if (n[DQ_AT_OLD] == 1) q->wire_refused = 1;
    return q->wire_refused ? dq_err_wire(q) : DELAYQ_OK;
}

/* Run the transfer, one round trip. */
static delayq_status dq_take_transfer(delayq *q, int64_t deadline) {
    delayq_status status;
    int64_t n[DQ_NUMBERS] = {0};
    dq_req call;
    if (q->options.broadcast)
        dq_req_begin(&call, &dq_script_broadcast, "tick", dq_write_broadcast);
    else if (q->options.wire == DELAYQ_NATIVE)
        dq_req_begin(&call, &dq_script_tick, "tick", dq_write_run);
    else
        dq_req_begin(&call, &dq_script_tick_redisson, "tick", dq_write_run);
    call.no_retry = 1;
    call.deadline_us = deadline;
    status = dq_req_run(q, &call, n, DQ_TICK_NUMBERS);
    if (status == DELAYQ_EMPTY) return DELAYQ_OK; /* the next does it */
    if (status != DELAYQ_OK) {
        dq_sched_on_fault(q);
        return status;
    }
    status = dq_take_apply(q, &call, n);
    freeReplyObject(call.reply);
    return status;
}

#define DQ_DUE_RAW (-2) /* a raw payload, whose due time nobody knows */

/* One item of a reply: [broadcast: cursor,] due time, bytes. n: the numbers
 * with which a take's reply begins. A peek shows what can't be decoded, too. */
static int dq_read_item(delayq *q, dq_req_verb verb, delayq_item *item,
                        redisReply *const *r, const int64_t *n) {
    const redisReply *cursor = verb == DQ_BROADCAST ? *r++ : NULL;
    const unsigned char *e = (const unsigned char *)r[1]->str;
    int peek = verb == DQ_PEEK, leased = !peek && q->options.lease_ms > 0;
    int kind = -1, bucket = 0;
    int64_t due_ms = r[0]->integer;
    size_t at = 0;
    if (r[0]->type != REDIS_REPLY_INTEGER || due_ms > DQ_MAX_DUE ||
        r[1]->type != REDIS_REPLY_STRING || (peek && due_ms < 0))
        return 0;
    memset(item, 0, sizeof *item);
    if (cursor) {
        if (cursor->type != REDIS_REPLY_STRING ||
            cursor->len >= sizeof q->cursor)
            return 0;
        memcpy(item->ticket.text, cursor->str, cursor->len + 1);
    } else if (leased || due_ms != DQ_DUE_RAW) {
        kind = dq_elem_parse_of(q, e, r[1]->len, &at);
        if (kind < 0 && !peek) return 0;
    }
    if (kind >= 0 && (leased || peek))
        dq_elem_ticket(&item->ticket, leased ? n[DQ_AT_LEASE] : due_ms, e,
                       kind);
    item->data = e + at;
    item->len = r[1]->len - at;
    item->attempt = dq_elem_attempt(e, kind) + (!peek && !leased);
    item->late_us = -1;
    if (due_ms >= 0) item->due_ms = due_ms;
    if (peek) return 1;
    q->counts.taken++;
    q->counts.redelivered += item->attempt > 1;
    if (due_ms < 0) return 1;
    item->late_us = n[DQ_AT_US] - due_ms * 1000;
    if (item->late_us < 0) item->late_us = 0;
    while (bucket < 23 && item->late_us >= (int64_t)1 << bucket) bucket++;
    q->counts.lateness[bucket]++;
    return 1;
}

/* The items of a take's, broadcast's or peek's reply; the reply stays with
 * the handle, since they point into it. */
static delayq_status dq_read_items(delayq *q, const dq_req *call,
                                   delayq_item *items, size_t *count,
                                   const int64_t *n) {
    dq_req_verb verb = call->script->verb;
    size_t first = verb == DQ_PEEK        ? 1
                   : verb == DQ_BROADCAST ? DQ_NUMBERS + 1
                                          : DQ_NUMBERS;
    size_t step = verb == DQ_BROADCAST ? 3 : 2, at, got = 0;
    const redisReply *r = call->reply;
    q->reply = call->reply;
    *count = 0;
    if (r->elements < first || (r->elements - first) % step != 0 ||
        (r->elements - first) / step > call->max)
        return dq_err_bad_reply(q, call->what);
    for (at = first; at < r->elements; at += step)
        if (!dq_read_item(q, verb, &items[got++], r->element + at, n))
            return dq_err_bad_reply(q, call->what);
    *count = got;
    return got > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

static void dq_free_items(delayq *q) {
    if (q->reply) freeReplyObject(q->reply);
    q->reply = NULL;
}

/* What the answer about one ticket means: it was done, or is not there. */
static delayq_status dq_ticket_status(delayq *q, const dq_req *call,
                                      int64_t done) {
    if (done) return DELAYQ_OK;
    if (!call->is_resend) return DELAYQ_GONE;
    return dq_err_set(q->err, DELAYQ_ERR_UNKNOWN,
                      "%s: sent twice, and the item is no longer there: it was "
                      "done, or the lease was lost",
                      call->what);
}

/* What a take is asked for, and what it has got. */
typedef struct dq_take_state {
    delayq_item *items;
    size_t max, count;
    delayq_item ack;     /* to be acked first, while it has a ticket */
    delayq_status acked; /* what became of it */
    int ack_sent;        /* an answer to the ack was lost */
} dq_take_state;

/* One round trip: the ack in hand, then up to t->max items. EMPTY or OK, or
 * what went wrong. */
static delayq_status dq_take_once(delayq *q, dq_take_state *t,
                                  int64_t deadline) {
    int ack = t->ack.ticket.text[0] != '\0';
    delayq_status status, acked;
    int64_t n[DQ_NUMBERS];
    dq_req call;
    if (q->options.broadcast)
        dq_req_begin(&call, &dq_script_broadcast, "take", dq_write_broadcast);
    else if (q->options.wire == DELAYQ_NATIVE)
        dq_req_begin(&call, &dq_script_take, "take", dq_write_take);
    else
        dq_req_begin(&call, &dq_script_take_redisson, "take", dq_write_take);
    call.as_waiter = dq_waiters_in_take(q);
    call.max = t->max;
    call.ticket = ack ? t->ack.ticket.text : NULL;
    call.deadline_us = deadline;
    if (q->options.lease_ms > 0) call.order = dq_elem_next_order(q, t->max + 1);
    q->retry_turn = !q->retry_turn;
    acked = status = dq_req_run(q, &call, n, DQ_NUMBERS);
    if (status == DELAYQ_OK && ack && (n[DQ_AT_ACKED] | 1) != 1) {
        q->reply = call.reply;
        acked = status = dq_err_bad_reply(q, "take");
    } else if (status == DELAYQ_OK) {
        delayq_status applied, read;
        if (ack) acked = dq_ticket_status(q, &call, n[DQ_AT_ACKED]);
        q->counts.acked += ack && acked == DELAYQ_OK;
        applied = dq_take_apply(q, &call, n);
        read = dq_read_items(q, &call, t->items, &t->count, n);
        status = read == DELAYQ_EMPTY && applied != DELAYQ_OK ? applied : read;
    }
    if (!ack) return status;
    if (t->ack_sent && acked != DELAYQ_OK) acked = DELAYQ_ERR_UNKNOWN;
    if (acked == DELAYQ_ERR_UNKNOWN || acked == DELAYQ_ERR_PROTOCOL)
        t->ack_sent = 1;
    t->acked = acked;
    if (status >= DELAYQ_OK || acked >= DELAYQ_OK)
        t->ack.ticket.text[0] = '\0'; /* it is settled */
    return status;
}

/* One step of a take: ask if there may be something; if there isn't, see to
 * it that the next item is heard of. */
static delayq_status dq_take_step(delayq *q, dq_take_state *t, int listen) {
    delayq_conn *conn = q->conn;
    int64_t now = dq_sys_now(), deadline = dq_req_deadline(q);
    delayq_status status;
    dq_sub_poll(conn, now);
    status = DELAYQ_EMPTY;
    if (!conn->cmd || !conn->sub || q->ready > 0 || now >= q->next_poll_us ||
        t->ack.ticket.text[0])
        status = dq_take_once(q, t, deadline);
    dq_sub_follow_role(q);
    if (status != DELAYQ_EMPTY || !listen ||
        (conn->sub && !dq_sub_wants_track(q)) ||
        deadline - dq_sys_now() <= q->options.io_timeout_ms * 500LL)
        return status; /* half of the time has to be left */
    if (!conn->sub)
        dq_sub_open(q, deadline);
    else
        status = dq_sub_track(q, deadline);
    return status == DELAYQ_OK || dq_err_passing(status) ? DELAYQ_EMPTY
                                                         : status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiting
 * >>waiting   the only place that sleeps until there are items
 *
 * Owns the sleep of takes and waits, what ends it, and the steps of a tick.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_CONNS 20

#if defined(__GNUC__)
#define DQ_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define DQ_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#else
#define DQ_LOAD(p) (*(p))
#define DQ_STORE(p, v) (*(p) = (v))
#endif

/* Was delayq_wake called? It counts once. */
static int dq_wait_consume_wake(delayq *q) {
    if (!DQ_LOAD(&q->woken)) return 0;
    DQ_STORE(&q->woken, 0);
    return 1;
}

/* Does one before number i use the same connection? */
static int dq_wait_seen_conn(delayq *const *queues, size_t i) {
    size_t k;
    for (k = 0; k < i; k++)
        if (queues[k]->conn == queues[i]->conn) return 1;
    return 0;
}

/* Sleep until one of the queues wants to act or something is readable. A
 * command connection that nobody asks is readable only when it dies. */
static void dq_wait_sleep(delayq *const *queues, size_t count, int64_t until) {
    struct pollfd p[3 * DQ_MAX_CONNS];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq_conn *conn = queues[i]->conn;
        int64_t next = dq_sched_next(queues[i]);
        if (next < until) until = next;
        if (dq_wait_seen_conn(queues, i)) continue;
        p[n++] = dq_sys_watch(conn->pipe[0], POLLIN);
        if (conn->sub) p[n++] = dq_sys_watch(conn->sub->fd, POLLIN);
        if (conn->cmd) p[n++] = dq_sys_watch(conn->cmd->fd, POLLIN);
    }
    dq_sys_poll_until(p, n, until);
    for (i = 0; i < count; i++) {
        if (dq_wait_seen_conn(queues, i)) continue;
        queues[i]->conn->sub_read_us = 0;
        if (queues[i]->conn->cmd) dq_conn_check_idle(queues[i]->conn);
    }
}

static int64_t dq_wait_deadline(int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return dq_sys_now() + timeout_ms * 1000;
}

/* A passing fault within a take or wait: tell the log, and don't spin. */
static void dq_wait_ride_out(delayq *q, delayq_status status) {
    if (q->options.log) q->options.log(q->options.user, status, q->err);
    dq_sched_on_fault(q);
}

/* One step of a tick: connect, or open the subscriber, or read it and run the
 * transfer if it is time. */
static delayq_status dq_wait_tick_step(delayq *q, int64_t deadline) {
    delayq_conn *conn = q->conn;
    int64_t now;
    if (!conn->cmd || q->wire_refused) return dq_conn_ensure(q, deadline);
    now = dq_sys_now();
    dq_sub_poll(conn, now);
    if (!conn->sub && now >= conn->sub_retry_us) {
        dq_sub_open(q, deadline);
        return DELAYQ_OK;
    }
    return now < q->next_poll_us ? DELAYQ_OK : dq_take_transfer(q, deadline);
}

/* Nothing is to be done now: is it time to ask to be told of a push? */
static int dq_wait_may_track(const delayq *q) {
    return q->ready == 0 && q->conn->sub && q->conn->cmd &&
           dq_sub_wants_track(q) && dq_sys_now() < q->next_poll_us;
}

/* One turn of a wait. OK if something lies ready, else EMPTY. */
static delayq_status dq_wait_step(delayq *q) {
    delayq_conn *conn = q->conn;
    int64_t deadline = dq_req_deadline(q);
    delayq_status status = DELAYQ_OK;
    int steps; /* connect, open the subscriber, transfer */
    for (steps = 0; steps < 3 && status == DELAYQ_OK; steps++) {
        status = dq_wait_tick_step(q, deadline);
        if (q->ready > 0 || (conn->sub && dq_sys_now() < q->next_poll_us))
            break;
    }
    if (status == DELAYQ_OK && dq_wait_may_track(q))
        status = dq_sub_track(q, deadline);
    if (status != DELAYQ_OK) return status;
    return q->ready > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

/*-----------------------------------------------------------------------------
 * MARK: - Verbs
 * >>verbs   the functions of the API
 *
 * Own the checks of what callers hand in, the handle's counters, and what a
 * reply means to the caller.
 *---------------------------------------------------------------------------*/

/* Every verb begins here. wrong: NULL, or what is wrong with its arguments. */
static delayq_status dq_check(delayq *q, const char *wrong) {
    if (!q) return DELAYQ_ERR_ARG;
    if (q->open != DQ_OPEN)
        wrong = "the handle is closed";
    else if (!q->conn)
        wrong = "the handle whose connection this one shares is closed";
    else if (q->pid != (int64_t)getpid())
        wrong = "the handle was opened before a fork(): open one of your own";
    return wrong ? dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong) : DELAYQ_OK;
}

static const char *dq_wrong_timeout(int64_t timeout_ms) {
    return timeout_ms < DELAYQ_FOREVER ? "timeout_ms is below -1" : NULL;
}

static const char *dq_wrong_ticket(const char *text) {
    if (!text) return "no item or ticket";
    if (dq_elem_is_ticket(text)) return NULL;
    return "the ticket is none: an item that was taken without a lease, or of "
           "a broadcast, has nothing to acknowledge";
}

/* The connection of options.share. NULL, or what is wrong. */
static const char *dq_check_share(delayq_options *o) {
    delayq *owner = o->share;
    if (owner->open != DQ_OPEN || owner->conn != &owner->own)
        return "options.share: not an open handle with a connection of its own";
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
    if (o->share) {
        const char *wrong = dq_check_share(o);
        if (wrong) return wrong;
    }
    if (o->backoff_ms == 0) o->backoff_ms = 1000;
    if (o->backoff_max_ms == 0) o->backoff_max_ms = 300000;
    if (o->broadcast_keep == 0) o->broadcast_keep = 10000;
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

DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options) {
    delayq_status status;
    const char *wrong;
    int64_t deadline;
    dq_url u;
    if (!q) return DELAYQ_ERR_ARG;
    memset(q, 0, sizeof *q);
    if (!options) return dq_err_set(q->err, DELAYQ_ERR_ARG, "options is NULL");
    q->options = *options;
    q->own.owner = q;
    q->conn = &q->own;
    wrong = dq_check_options(&q->options);
    if (!wrong) wrong = dq_check_cursor(q);
    if (!wrong && q->options.share) q->conn = q->options.share->conn;
    if (wrong) return dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
    wrong = dq_url_parse(dq_conn_url(q->conn), &u);
    if (wrong)
        return dq_err_set(q->err, DELAYQ_ERR_ARG, "options.url: %s", wrong);
    if (!q->options.share && !dq_sys_open_pipe(q->own.pipe))
        return dq_err_set(q->err, DELAYQ_ERR_MEMORY, "no pipe: %s",
                          strerror(errno));
    q->name_len = strlen(q->options.name);
    memcpy(q->name, q->options.name, q->name_len + 1);
    q->options.name = NULL; /* the copy counts */
    q->open = DQ_OPEN;
    q->pid = (int64_t)getpid();
    q->next = q->conn->handles;
    q->conn->handles = q;
    dq_sys_random(q->handle_id, sizeof q->handle_id);
    q->id[0] = ':';
    dq_num_hex(q->id + 1, q->handle_id, sizeof q->handle_id);
    dq_sub_subscribe(q, "SUBSCRIBE", DQ_SUB_QUEUE);
    deadline = dq_req_deadline(q);
    status = q->options.broadcast && q->cursor[0] == '$'
                 ? dq_take_transfer(q, deadline) /* finds the stream's end */
                 : dq_conn_ensure(q, deadline);
    if (status == DELAYQ_ERR_ARG) delayq_close(q);
    return status;
}

DELAYQ_API void delayq_close(delayq *q) {
    delayq_conn *conn;
    delayq **at, *h;
    if (!q || q->open != DQ_OPEN) return;
    dq_free_items(q);
    q->open = 0;
    conn = q->conn;
    if (!conn) return;
    if (conn != &q->own) {
        /* The subscriber goes on for another handle of this name. */
        int what = q->waiter.asked ? DQ_SUB_OWN : 0;
        for (at = &conn->handles; *at != q;) at = &(*at)->next;
        *at = q->next;
        if (!dq_sub_queue_shared(q))
            what |=
                q->waiter.asked ? DQ_SUB_QUEUE | DQ_SUB_WAITERS : DQ_SUB_QUEUE;
        if (q->pid == (int64_t)getpid())
            dq_sub_subscribe(q, "UNSUBSCRIBE", what);
        return;
    }
    for (h = conn->handles; h; h = h->next) {
        h->conn = NULL; /* q's memory may be gone soon */
        h->options.share = NULL;
    }
    if (conn->cmd) redisFree(conn->cmd);
    if (conn->sub) redisFree(conn->sub);
    conn->cmd = conn->sub = NULL;
    dq_tls_end(conn);
    close(conn->pipe[0]);
    close(conn->pipe[1]);
}

/* --- offers --- */

#define DQ_OFFER_MAX 128
#define DQ_OFFER_BYTES (256 * 1024)

/* When it is due, which the script explains, and the element. */
static void dq_write_message(dq_resp_writer *o, const delayq *q,
                             const delayq_message *m,
                             const delayq_message *before, int again) {
    unsigned char head[DQ_ELEM_HEADER_MAX];
    char when[64];
    size_t n = 0;
    again |= m->status == DELAYQ_ERR_UNKNOWN;
    if (!before || again || before->due_ms != m->due_ms ||
        before->delay_ms != m->delay_ms)
        n += dq_num_decimal(when, m->due_ms > 0 ? -m->due_ms : m->delay_ms);
    if (again) {
        when[n++] = '!';
        n += dq_num_decimal(when + n, m->not_after_ms);
    }
    dq_resp_arg(o, when, n);
    n = dq_elem_write_header(q, m->id, m->len, head);
    dq_resp_long_arg(o, head, n, m->data, m->len);
}

static void dq_write_offer(dq_resp_writer *o, delayq *q, const dq_req *call) {
    size_t i;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->options.wire != DELAYQ_NATIVE) dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_keys_end(o);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    for (i = 0; i < call->max; i++)
        dq_write_message(o, q, &call->messages[i],
                         i > 0 ? &call->messages[i - 1] : NULL,
                         call->is_resend);
}

static void dq_write_keyed(dq_resp_writer *o, delayq *q, const dq_req *call) {
    const delayq_message *m = call->messages;
    char rest[280], id[33];
    dq_resp_key(o, q, DQ_ZSET, "");
    snprintf(rest, sizeof rest, ":%d:%s", (int)strlen(m->key), m->key);
    dq_resp_key(o, q, DQ_DEDUP, rest);
    if (q->options.wire != DELAYQ_NATIVE) dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_keys_end(o);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_write_message(o, q, m, NULL, call->is_resend);
    dq_num_hex(id, m->id, dq_elem_id_len(q));
    dq_resp_text(o, id);
    dq_resp_int(o, m->key_ttl_ms);
    dq_resp_text(o, m->replace ? "1" : "0");
}

static delayq_status dq_offer_unknown(delayq *q) {
    return dq_err_set(q->err, DELAYQ_ERR_UNKNOWN,
                      "offer: sent twice, and due before it could be told "
                      "whether the first arrived");
}

/* A message that may have been stored stays so until the server answers. */
static void dq_message_set_status(delayq_message *m, delayq_status status) {
    if (status == DELAYQ_OK || m->status != DELAYQ_ERR_UNKNOWN)
        m->status = status;
}

/* What became of messages without keys, which went in one script. Of those
 * that were sent again, pairs say more: number, and due time or -1. */
static delayq_status dq_apply_offer(delayq *q, dq_req *call) {
    delayq_message *m = call->messages;
    redisReply *const *r;
    size_t i, id_len = dq_elem_id_len(q);
    int64_t us;
    delayq_status status = dq_req_numbers(q, call, &us, 1);
    for (i = 0; i < call->max; i++) {
        int64_t due =
            m[i].due_ms > 0 ? m[i].due_ms : (us + 999) / 1000 + m[i].delay_ms;
        dq_message_set_status(&m[i], status);
        if (status != DELAYQ_OK) continue;
        if (due > DQ_MAX_DUE) due = DQ_MAX_DUE; /* a server that lies */
        dq_elem_id_ticket(&m[i].ticket, due, m[i].id, id_len);
        dq_sched_on_own_item(q, due);
    }
    if (status != DELAYQ_OK) return status;
    q->counts.offered += call->max;
    for (i = 1; i + 1 < call->reply->elements; i += 2) {
        int64_t number, due_ms;
        r = call->reply->element + i;
        number = r[0]->integer, due_ms = r[1]->integer;
        if (r[0]->type != REDIS_REPLY_INTEGER || number < 1 ||
            number > (int64_t)call->max || r[1]->type != REDIS_REPLY_INTEGER ||
            due_ms > DQ_MAX_DUE) {
            for (i = 0; i < call->max; i++) m[i].status = DELAYQ_ERR_PROTOCOL;
            return dq_err_bad_reply(q, "offer");
        }
        if (due_ms >= 0)
            dq_elem_id_ticket(&m[number - 1].ticket, due_ms, m[number - 1].id,
                              id_len);
        else
            m[number - 1].status = status = dq_offer_unknown(q);
    }
    return status;
}

/* What became of a message that has a key. */
static delayq_status dq_apply_keyed(delayq *q, dq_req *call) {
    delayq_message *m = call->messages;
    const redisReply *ticket;
    int64_t n[3];
    delayq_status status = dq_req_numbers(q, call, n, 3);
    dq_message_set_status(m, status);
    if (status != DELAYQ_OK) return status;
    ticket = call->reply->elements == 4 ? call->reply->element[3] : NULL;
    if (!ticket || ticket->type != REDIS_REPLY_STRING ||
        ticket->len >= sizeof m->ticket.text) {
        status = dq_err_bad_reply(q, "offer");
    } else if (n[1] == 2) {
        status = dq_offer_unknown(q);
    } else {
        memcpy(m->ticket.text, ticket->str, ticket->len + 1);
        status = n[1] == 0 ? DELAYQ_OK : DELAYQ_DUPLICATE;
        q->counts.offered += n[1] == 0;
        dq_sched_on_own_item(q, n[2]);
    }
    m->status = status;
    return status;
}

static const char *dq_offer_check(const delayq_message *m, int64_t now_ms) {
    size_t klen = m->key ? strlen(m->key) : 0;
    if (!m->data && m->len > 0) return "data is NULL";
    if (m->delay_ms < 0) return "delay_ms is negative";
    if (m->due_ms < 0) return "due_ms is negative";
    if (m->delay_ms > DQ_MAX_DUE - 1000 - now_ms)
        return "delay_ms: due past 2^53 ms";
    if (m->due_ms > DQ_MAX_DUE - 1000) return "due_ms is past 2^53 ms";
    if (m->key && (klen < 1 || klen > 256)) return "key: 1 to 256 bytes";
    if (m->key && m->key_ttl_ms <= 0) return "a key needs a key_ttl_ms above 0";
    if (m->key && m->key_ttl_ms > DQ_MAX_DUE / 4) return "key_ttl_ms: too long";
    return NULL;
}

/* Make requests of what goes in one go, and leave out what is bad: messages
 * without a key that stand side by side are one request. A message has a new
 * id, unless it keeps the one of a sending whose outcome is unknown. Returns
 * how many messages were looked at. */
static size_t dq_offer_plan(delayq *q, delayq_message *messages, size_t count,
                            dq_req *reqs, size_t *n, int *bad) {
    int64_t now_ms = (dq_sys_now() + q->conn->clock_offset_us) / 1000;
    size_t at, bytes = 0, sum = 0;
    dq_req *req = NULL;
    *n = 0;
    *bad = 0;
    for (at = 0; at < count; at++) {
        delayq_message *m = &messages[at];
        const char *wrong;
        int joins = req && req->script == &dq_script_offer && !m->key &&
                    req->messages + req->max == m && req->max < DQ_OFFER_MAX &&
                    bytes < DQ_OFFER_BYTES;
        if (!joins && (*n == DQ_PIPELINE_MAX || sum >= DQ_OFFER_BYTES)) break;
        wrong = dq_offer_check(m, now_ms);
        if (wrong) {
            *bad = 1;
            dq_message_set_status(m, DELAYQ_ERR_ARG);
            dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
            continue;
        }
        if (m->status != DELAYQ_ERR_UNKNOWN || m->not_after_ms <= 0) {
            m->status = DELAYQ_OK;
            m->not_after_ms = m->due_ms > 0 ? m->due_ms : now_ms + m->delay_ms;
            m->ticket.text[0] = '\0';
            dq_elem_next_id(q, m->id);
        }
        if (!joins) {
            req = &reqs[(*n)++];
            if (m->key)
                dq_req_begin(req, &dq_script_offer_keyed, "offer",
                             dq_write_keyed);
            else
                dq_req_begin(req, &dq_script_offer, "offer", dq_write_offer);
            req->idempotent = 1;
            req->messages = m;
            bytes = 0;
        }
        req->max++;
        bytes += m->len;
        sum += m->len;
    }
    return at;
}

DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count) {
    delayq_status first =
        dq_check(q, messages || count == 0 ? NULL : "messages is NULL");
    delayq_status rest; /* of those that are not sent */
    dq_req reqs[DQ_PIPELINE_MAX];
    int64_t deadline = 0;
    size_t at = 0, n, i;
    int bad;
    if (first == DELAYQ_OK) {
        deadline = dq_req_deadline(q);
        first = dq_conn_ensure(q, deadline);
    }
    rest = first;
    /* As many in one go as fit, each go with its own deadline. */
    while (at < count && rest == DELAYQ_OK) {
        at += dq_offer_plan(q, messages + at, count - at, reqs, &n, &bad);
        for (i = 0; i < n; i++) reqs[i].deadline_us = deadline;
        if (n > 0) dq_req_run_all(q, reqs, n);
        for (i = 0; i < n; i++) {
            delayq_status status = reqs[i].messages->key
                                       ? dq_apply_keyed(q, &reqs[i])
                                       : dq_apply_offer(q, &reqs[i]);
            if (reqs[i].reply) freeReplyObject(reqs[i].reply);
            if (status >= DELAYQ_OK) continue;
            if (first == DELAYQ_OK) first = status;
            if (status != DELAYQ_ERR_UNKNOWN || !q->conn->cmd) rest = status;
        }
        if (bad && first == DELAYQ_OK) first = DELAYQ_ERR_ARG;
        if (rest == DELAYQ_ERR_UNKNOWN || rest == DELAYQ_ERR_PROTOCOL)
            rest = DELAYQ_ERR_IO; /* the others were not sent */
        if (at < count) deadline = dq_req_deadline(q);
    }
    for (; messages && at < count; at++)
        dq_message_set_status(&messages[at], rest);
    return first;
}

DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message) {
    delayq_status status = delayq_offer_many(q, message, 1);
    return status == DELAYQ_OK ? message->status : status;
}

DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms) {
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = data;
    m.len = len;
    m.delay_ms = delay_ms;
    return delayq_offer_message(q, &m);
}

/* --- ticks and takes --- */

DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms) {
    delayq_status status = dq_check(q, NULL);
    const delayq_conn *conn;
    int64_t now, left, deadline;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    conn = q->conn;
    deadline = dq_req_deadline(q);
    status = dq_wait_tick_step(q, deadline);
    /* A program whose last take was empty and did not wait will now sleep until
     * wait_ms is over or a descriptor is readable: ask to be told of a push, as
     * a take that waits does. */
    if (status == DELAYQ_OK && q->empty_takes && dq_wait_may_track(q))
        status = dq_sub_track(q, deadline);
    if (!wait_ms) return status;
    now = dq_sys_now();
    left = (dq_sched_next(q) - now + 999) / 1000;
    if (q->empty_takes && q->ready > 0)
        left = 0; /* it takes: there is something */
    if (conn->cmd && !conn->sub && now >= conn->sub_retry_us) left = 0;
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_WIRE ||
        left > q->options.max_wait_ms)
        left = q->options.max_wait_ms;
    *wait_ms = left < 0 ? 0 : left;
    return status;
}

/* Leave the waiters with a take of nothing. Its errors are ignored: the other
 * waiters recover by timeout. */
static void dq_take_leave(delayq *q) {
    char err[sizeof q->err];
    dq_take_state t;
    q->will_wait = 0;
    if (!dq_waiters_listed(q)) return;
    memset(&t, 0, sizeof t);
    memcpy(err, q->err, sizeof err);
    dq_free_items(q);
    if (q->conn->cmd) dq_take_once(q, &t, dq_req_deadline(q));
    dq_free_items(q);
    dq_waiters_on_leave(q);
    dq_sub_follow_role(q);
    memcpy(q->err, err, sizeof err);
}

/* Take until something comes, the timeout is over, or wake was called. */
static delayq_status dq_take(delayq *q, dq_take_state *t, int64_t timeout_ms) {
    int ack = t->ack.ticket.text[0] != '\0', lost = 0;
    int64_t deadline = timeout_ms != 0 ? dq_wait_deadline(timeout_ms) : 0;
    delayq_status status;
    dq_free_items(q);
    dq_waiters_begin(q, timeout_ms);
    for (;;) {
        /* The ack in hand goes first: a wake must not lose it. */
        if (timeout_ms != 0 && !t->ack.ticket.text[0] &&
            dq_wait_consume_wake(q)) {
            status = DELAYQ_WOKEN;
            break;
        }
        status = dq_take_step(q, t, timeout_ms != 0 || q->empty_takes > 0);
        q->empty_takes =
            status == DELAYQ_EMPTY && (timeout_ms == 0 || q->empty_takes > 0);
        if (status != DELAYQ_EMPTY && !dq_err_passing(status)) break;
        lost |= status == DELAYQ_ERR_UNKNOWN;
        if (timeout_ms == 0 || dq_sys_now() >= deadline) break;
        dq_free_items(q);
        if (status != DELAYQ_EMPTY) dq_wait_ride_out(q, status);
        if (ack &&
            dq_wait_consume_wake(q)) { /* not settled: the fault counts */
            if (!t->ack.ticket.text[0]) status = DELAYQ_WOKEN;
            break;
        }
        if (q->ready == 0 || status != DELAYQ_EMPTY)
            dq_wait_sleep(&q, 1, deadline);
    }
    /* What an answer that was lost had handed out is not forgotten. */
    if (lost && dq_err_passing(status)) status = DELAYQ_ERR_UNKNOWN;
    if (status != DELAYQ_OK) dq_take_leave(q);
    q->will_wait = 0;
    return status;
}

DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms) {
    delayq_status status =
        dq_check(q, !items || !count         ? "items or count is NULL"
                    : max < 1 || max > 10000 ? "max: 1 to 10,000"
                                             : dq_wrong_timeout(timeout_ms));
    dq_take_state t;
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
    if (item) memset(item, 0, sizeof *item);
    return delayq_take_many(q, item, 1, &count, timeout_ms);
}

/* --- what is done with a lease, by its ticket --- */

static void dq_write_remove(dq_resp_writer *o, delayq *q, const dq_req *call) {
    size_t i;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (call->script == &dq_script_cancel_redisson)
        dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_keys_end(o);
    if (call->ticket) dq_write_ticket(o, call->ticket);
    for (i = 0; !call->ticket && i < call->max; i++)
        dq_write_ticket(o, call->items[i].ticket.text);
}

/* Remove elements by their tickets, one or those of items: acks, or with a
 * mirror to clean, a cancel. What became of each item stands in its `acked`.
 * Returns the first that is not DELAYQ_OK. */
static delayq_status dq_remove(delayq *q, const dq_script *script,
                               const char *what, const char *ticket,
                               delayq_item *items, size_t count) {
    delayq_status status, first = DELAYQ_OK;
    int64_t us;
    size_t i;
    dq_req call;
    dq_req_begin(&call, script, what, dq_write_remove);
    call.idempotent = 1;
    call.ticket = ticket;
    call.items = items;
    call.max = count;
    status = dq_req_run(q, &call, &us, 1);
    if (status == DELAYQ_OK && call.reply->elements != 1 + count)
        status = dq_err_bad_reply(q, what);
    for (i = 1; status == DELAYQ_OK && i <= count; i++) {
        const redisReply *r = call.reply->element[i];
        if (r->type != REDIS_REPLY_INTEGER || (r->integer | 1) != 1)
            status = dq_err_bad_reply(q, what);
    }
    for (i = 0; i < count; i++) {
        delayq_status one = status;
        if (status == DELAYQ_OK)
            one =
                dq_ticket_status(q, &call, call.reply->element[i + 1]->integer);
        if (items) items[i].acked = one;
        if (items) q->counts.acked += one == DELAYQ_OK;
        if (first == DELAYQ_OK) first = one;
    }
    if (call.reply) freeReplyObject(call.reply);
    return first;
}

DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item) {
    const char *ticket = item ? item->ticket.text : NULL;
    delayq_status status = dq_check(q, dq_wrong_ticket(ticket));
    if (status == DELAYQ_OK)
        status = dq_remove(q, &dq_script_remove, "ack", ticket, NULL, 1);
    if (status == DELAYQ_OK) q->counts.acked++;
    return status;
}

DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket) {
    delayq_status status =
        dq_check(q, dq_wrong_ticket(ticket ? ticket->text : NULL));
    if (status != DELAYQ_OK) return status;
    return dq_remove(q,
                     q->options.wire == DELAYQ_NATIVE
                         ? &dq_script_remove
                         : &dq_script_cancel_redisson,
                     "cancel", ticket->text, NULL, 1);
}

#define DQ_ACK_MAX 500

DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count) {
    const char *wrong = !items && count > 0 ? "items is NULL"
                        : q && q->options.broadcast
                            ? "a broadcast has nothing to ack"
                            : NULL;
    delayq_status first, status;
    size_t i, n;
    for (i = 0; !wrong && i < count; i++)
        wrong = dq_wrong_ticket(items[i].ticket.text);
    first = status = dq_check(q, wrong);
    for (i = 0; i < count && status == DELAYQ_OK; i += n) {
        n = count - i < DQ_ACK_MAX ? count - i : DQ_ACK_MAX;
        status = dq_remove(q, &dq_script_remove, "ack", NULL, items + i, n);
        if (first == DELAYQ_OK) first = status;
        if (status >= DELAYQ_OK ||
            (status == DELAYQ_ERR_UNKNOWN && q->conn->cmd))
            status = DELAYQ_OK; /* go on */
        else if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL)
            status = DELAYQ_ERR_IO; /* the rest was not sent */
    }
    for (; items && i < count; i++) items[i].acked = status;
    return first;
}

DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms) {
    const char *wrong = item ? dq_wrong_timeout(timeout_ms) : "item is NULL";
    delayq_status status;
    dq_take_state t;
    if (!wrong && item->ticket.text[0])
        wrong = q && q->options.broadcast ? "a broadcast has nothing to ack"
                                          : dq_wrong_ticket(item->ticket.text);
    status = dq_check(q, wrong);
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

static void dq_write_change(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (call->bury) dq_resp_key(o, q, DQ_DEAD, "");
    dq_resp_keys_end(o);
    dq_write_ticket(o, call->ticket);
    dq_resp_int(o, call->due_ms);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_text(o, call->less ? "1" : "0");
    dq_resp_text(o, call->is_resend ? "1" : "0");
    dq_resp_int(o, call->from);
}

/* Nack, extend, reschedule; bury if delay_ms is negative. The new due time is
 * absolute, so that sending it twice does no harm. *stands: as it is now. */
static delayq_status dq_change(delayq *q, const char *ticket, int64_t delay_ms,
                               int less, const char *what, int64_t *stands) {
    int64_t deadline = dq_req_deadline(q);
    delayq_status status = dq_conn_ensure(q, deadline); /* for its clock */
    int64_t n[3];
    dq_req call;
    if (status != DELAYQ_OK) return status;
    dq_req_begin(&call, &dq_script_change, what, dq_write_change);
    call.idempotent = 1;
    call.ticket = ticket;
    call.bury = delay_ms < 0;
    call.from = call.bury ? 0 : delay_ms;
    call.due_ms = dq_due_in(q, call.from);
    call.less = less;
    call.deadline_us = deadline;
    status = dq_req_ask(q, &call, n, 3);
    if (status != DELAYQ_OK) return status;
    if (n[1] != 1) return dq_ticket_status(q, &call, 0);
    if (stands) *stands = n[2];
    if (!call.bury) dq_sched_on_own_item(q, n[2]);
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms) {
    const char *wrong = dq_wrong_ticket(item ? item->ticket.text : NULL);
    int release = delay_ms == DELAYQ_RELEASE;
    delayq_status status;
    if (!wrong && (delay_ms < DELAYQ_RELEASE || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms: not negative, DELAYQ_BACKOFF or DELAYQ_RELEASE";
    status = dq_check(q, wrong);
    if (status != DELAYQ_OK) return status;
    if (delay_ms == DELAYQ_BACKOFF) {
        /* An item that only has a ticket has the count that stands in it. */
        unsigned char key[DQ_ELEM_PREFIX_MAX];
        size_t len, n = dq_elem_ticket_prefix(item->ticket.text, key, &len);
        int attempt = item->attempt > 0
                          ? item->attempt
                          : dq_elem_attempt(key, n == 17 ? 16 : 0);
        delay_ms =
            dq_num_backoff(q->options.backoff_ms, q->options.backoff_max_ms,
                           attempt < 1    ? 1
                           : attempt > 60 ? 60
                                          : (unsigned)attempt);
    }
    status = dq_change(q, item->ticket.text, release ? 0 : delay_ms, release,
                       "nack", NULL);
    q->counts.nacked += status == DELAYQ_OK;
    return status;
}

DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item) {
    const char *ticket = item ? item->ticket.text : NULL;
    delayq_status status = dq_check(q, dq_wrong_ticket(ticket));
    if (status == DELAYQ_OK) status = dq_change(q, ticket, -1, 0, "bury", NULL);
    if (status == DELAYQ_OK) q->counts.died++;
    return status;
}

/* A ticket's due time moves; its id stays. */
static delayq_status dq_move_ticket(delayq *q, delayq_ticket *ticket,
                                    int64_t delay_ms, const char *what,
                                    const char *wrong) {
    int64_t due_ms = 0;
    delayq_status status = dq_check(q, wrong);
    if (status == DELAYQ_OK)
        status = dq_change(q, ticket->text, delay_ms, 0, what, &due_ms);
    if (status == DELAYQ_OK) dq_elem_set_ticket_due(ticket, due_ms);
    return status;
}

DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms) {
    const char *wrong = dq_wrong_ticket(item ? item->ticket.text : NULL);
    if (q && lease_ms == 0) lease_ms = q->options.lease_ms;
    if (!wrong && (lease_ms <= 0 || lease_ms > DQ_MAX_DUE / 4))
        wrong = "lease_ms: above 0, or the handle has a lease";
    return dq_move_ticket(q, wrong ? NULL : &item->ticket, lease_ms, "extend",
                          wrong);
}

DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms) {
    const char *wrong = dq_wrong_ticket(ticket ? ticket->text : NULL);
    if (!wrong && (delay_ms < 0 || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms is negative or too long";
    return dq_move_ticket(q, ticket, delay_ms, "reschedule", wrong);
}

/* --- looking and clearing --- */

static void dq_write_peek(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_resp_key(o, q, DQ_ZSET, "");
    dq_resp_keys_end(o);
    dq_resp_int(o, (int64_t)call->max);
    if (call->ticket) dq_write_ticket(o, call->ticket);
}

DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count,
                                     const delayq_ticket *after) {
    const char *ticket = after && after->text[0] ? after->text : NULL;
    delayq_status status = dq_check(
        q, !items || !count || max == 0 ? "items or count is NULL, or max is 0"
           : ticket && !dq_elem_is_ticket(ticket) ? "after: no ticket"
                                                  : NULL);
    int64_t us;
    dq_req call;
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_free_items(q);
    dq_req_begin(&call, &dq_script_peek, "peek", dq_write_peek);
    call.read_only = 1;
    call.max = max < 100000 ? max : 100000;
    call.ticket = ticket;
    status = dq_req_run(q, &call, &us, 1);
    if (status != DELAYQ_OK) return status;
    return dq_read_items(q, &call, items, count, &us);
}

static void dq_write_count(dq_resp_writer *o, delayq *q, const dq_req *call) {
    size_t i;
    dq_write_three_keys(o, q);
    dq_resp_key(o, q, DQ_DEAD, "");
    dq_resp_keys_end(o);
    dq_resp_text(o, dq_wire_letter(q));
    for (i = 0; i < call->max; i++) dq_resp_int(o, call->times[i]);
}

DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts) {
    delayq_status status = dq_check(q, counts ? NULL : "counts is NULL");
    int64_t n[6];
    dq_req call;
    if (status != DELAYQ_OK) return status;
    *counts = q->counts;
    dq_req_begin(&call, &dq_script_count, "count", dq_write_count);
    call.read_only = 1;
    status = dq_req_ask(q, &call, n, 6);
    if (status != DELAYQ_OK) return status;
    counts->now_ms = n[0] / 1000;
    counts->pending = n[1];
    counts->overdue = n[2];
    counts->ready = n[3];
    counts->dead = n[4];
    counts->next_due_ms = n[5] < 0 ? 0 : n[5];
    if (n[2] > 0 && counts->now_ms > n[5])
        counts->overdue_ms = counts->now_ms - n[5];
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts) {
    delayq_status status =
        dq_check(q, !due_ms || !counts  ? "due_ms or counts is NULL"
                    : n < 1 || n > 1000 ? "n: 1 to 1,000"
                                        : NULL);
    int64_t head[6];
    size_t i;
    dq_req call;
    if (status != DELAYQ_OK) return status;
    dq_req_begin(&call, &dq_script_count, "count", dq_write_count);
    call.read_only = 1;
    call.times = due_ms;
    call.max = n;
    status = dq_req_run(q, &call, head, 6);
    if (status != DELAYQ_OK) return status;
    for (i = 0; i < n && call.reply->elements == n + 6; i++) {
        const redisReply *r = call.reply->element[i + 6];
        if (r->type != REDIS_REPLY_INTEGER) break;
        counts[i] = r->integer;
    }
    freeReplyObject(call.reply);
    return i == n ? DELAYQ_OK : dq_err_bad_reply(q, "count");
}

/* Run what removes items or dead letters, and says how many. */
static delayq_status dq_run_removal(delayq *q, dq_req *call, const char *wrong,
                                    int64_t *removed) {
    delayq_status status = dq_check(q, wrong);
    int64_t n[2];
    if (status == DELAYQ_OK) status = dq_req_ask(q, call, n, 2);
    *removed = status == DELAYQ_OK ? n[1] : 0;
    return status;
}

static void dq_write_clear(dq_resp_writer *o, delayq *q, const dq_req *call) {
    (void)call;
    dq_write_three_keys(o, q);
    dq_resp_keys_end(o);
    dq_resp_text(o, dq_wire_letter(q));
}

DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed) {
    int64_t none;
    dq_req call;
    dq_req_begin(&call, &dq_script_clear, "clear", dq_write_clear);
    return dq_run_removal(q, &call, NULL, removed ? removed : &none);
}

static void dq_write_dead(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_resp_key(o, q, DQ_DEAD, "");
    if (strcmp(call->word, "redrive") == 0)
        dq_resp_arg(o, q->name, q->name_len);
    dq_resp_keys_end(o);
    dq_resp_text(o, call->word);
    dq_resp_int(o, (int64_t)call->max);
    dq_resp_int(o, call->from);
    dq_resp_text(o, dq_wire_letter(q));
}

static void dq_begin_dead(dq_req *call, const char *word, size_t max) {
    dq_req_begin(call, &dq_script_dead, "dead letters", dq_write_dead);
    call->word = word;
    call->max = max < 1000000 ? max : 1000000;
}

/* "reason time\n", then the element. What begins otherwise is shown whole. */
static int dq_dead_letter(const delayq *q, delayq_dead *d,
                          const redisReply *r) {
    size_t reason, line, at = 0;
    const unsigned char *e = (const unsigned char *)r->str;
    int kind;
    memset(d, 0, sizeof *d);
    if (r->type != REDIS_REPLY_STRING) return 0;
    d->data = r->str;
    d->len = r->len;
    snprintf(d->reason, sizeof d->reason, "undecodable");
    reason = strcspn(r->str, " \n");
    line = strcspn(r->str, "\n");
    if (reason >= sizeof d->reason || line <= reason || line >= r->len)
        return 1;
    memcpy(d->reason, r->str, reason);
    d->reason[reason] = '\0';
    d->dead_ms = dq_num_due(r->str + reason + 1);
    e += line + 1;
    kind = dq_elem_parse_of(q, e, r->len - line - 1, &at);
    d->attempt = dq_elem_attempt(e, kind);
    d->data = e + at;
    d->len = r->len - line - 1 - at;
    return 1;
}

DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from) {
    delayq_status status =
        dq_check(q, !letters || !count || max == 0
                        ? "letters or count is NULL, or max is 0"
                        : NULL);
    int64_t n[2];
    size_t i;
    dq_req call;
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_free_items(q);
    dq_begin_dead(&call, "peek", max);
    call.read_only = 1;
    call.from = from < INT32_MAX ? (int64_t)from : INT32_MAX;
    status = dq_req_run(q, &call, n, 2);
    if (status != DELAYQ_OK) return status;
    q->reply = call.reply;
    for (i = 0; i + 2 < call.reply->elements; i++)
        if (i == max ||
            !dq_dead_letter(q, &letters[i], call.reply->element[i + 2]))
            return dq_err_bad_reply(q, "dead letters");
    *count = i;
    return i > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

DELAYQ_API delayq_status delayq_dead_redrive(delayq *q, size_t max,
                                             size_t *count) {
    const char *wrong = q && q->options.broadcast
                            ? "a broadcast has no ready list to redrive to"
                            : NULL;
    delayq_status status;
    int64_t n;
    dq_req call;
    dq_begin_dead(&call, "redrive", max);
    status = dq_run_removal(q, &call, wrong, &n);
    if (count) *count = (size_t)n;
    if (n > 0) q->ready += n;
    return status;
}

DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed) {
    int64_t none;
    dq_req call;
    dq_begin_dead(&call, "clear", 1);
    return dq_run_removal(q, &call, NULL, removed ? removed : &none);
}

DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms) {
    int64_t deadline;
    size_t i, conns = 0;
    if (!queues || count < 1) return DELAYQ_ERR_ARG;
    for (i = 0; i < count; i++) {
        delayq *q = queues[i];
        delayq_status status = dq_check(q, dq_wrong_timeout(timeout_ms));
        if (status != DELAYQ_OK) return status;
        conns += !dq_wait_seen_conn(queues, i);
        if (conns > DQ_MAX_CONNS)
            return dq_check(q, "wait: more than 20 connections");
    }
    deadline = dq_wait_deadline(timeout_ms);
    for (;;) {
        delayq_status all = DELAYQ_EMPTY; /* OK where one has something */
        for (i = 0; i < count; i++) {
            delayq_status status;
            if (timeout_ms != 0 && dq_wait_consume_wake(queues[i]))
                return DELAYQ_WOKEN;
            status = dq_wait_step(queues[i]);
            if (status < 0 && !dq_err_passing(status)) return status;
            if (status < 0) dq_wait_ride_out(queues[i], status);
            if (status == DELAYQ_OK || all == DELAYQ_EMPTY) all = status;
        }
        if (all == DELAYQ_OK || timeout_ms == 0 || dq_sys_now() >= deadline)
            return all;
        dq_wait_sleep(queues, count, deadline);
    }
}

DELAYQ_API void delayq_wake(delayq *q) {
    int saved = errno;
    if (!q || q->open != DQ_OPEN || !q->conn) return;
    if (q->pid != (int64_t)getpid()) return; /* the parent's pipe */
    DQ_STORE(&q->woken, 1);
    /* A full pipe has been written to before, which is as good. */
    if (write(q->conn->pipe[1], "w", 1) < 0) {
    }
    errno = saved;
}

DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = 0;
    if (!q || q->open != DQ_OPEN || !q->conn || !fds) return 0;
    q->conn->sub_read_us = 0; /* what wakes the poll has to be read then */
    if (n < max) fds[n++] = q->conn->pipe[0];
    if (n < max && q->conn->sub) fds[n++] = q->conn->sub->fd;
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
