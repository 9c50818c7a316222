/*
 * delayq.h -- a distributed delay queue for C programs, on Redis or Valkey.
 *
 * Version 0.2.0. One file, C99 (and C++11), needs hiredis. Licence: MIT, at
 * the end.
 *
 * One .c file of your program, delayq_impl.c, has these two lines and nothing
 * else: a system header before them might hide what they need.
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *
 * All others just #include "delayq.h". A program of one file may begin with the
 * two. Link with -lhiredis; on Windows also with ws2_32 and bcrypt.
 *
 * Contents (search for the tag)
 *
 *     >>start       quick start
 *     >>life        the life of an item
 *     >>promises    the guarantees, and their limits
 *     >>keys        the data in Redis
 *     >>time        clocks, waiting, order
 *     >>servers     one server, Sentinel, a cluster, TLS
 *     >>threads     blocking, threads, signals, fork
 *     >>outbox      handles that never wait
 *     >>errors      errors and retries
 *     >>limits      limits
 *     >>macros      option macros
 *     >>status      the results of a call
 *     >>types       options, the item, the handle
 *     >>functions   the functions
 *
 * and in the implementation, from the ground up:
 *
 *     >>system         what a port supplies: clock, random bytes, sockets ...
 *     >>numbers        numbers as text, in hex, in a back-off
 *     >>elements       every byte of an element
 *     >>errors-inside  statuses, error texts
 *     >>url            the URL
 *     >>tls            TLS
 *     >>scripts        the Lua that runs in the server
 *     >>protocol       writing requests, reading replies
 *     >>schedule       the time of the next poll
 *     >>waiters        the handles that wait on one queue
 *     >>connections    dialing, login, probe, redirections, back-off
 *     >>ops            the operations that calls request; an outbox's rings
 *     >>lanes          ops in order, with one request in flight; retries
 *     >>subscriber     the socket that only listens
 *     >>waiting        the one step, and the one sleep
 *     >>taking         transfers and takes
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
 *         options.log = tell;                  (faults that the take rides out)
 *         if (delayq_open(&q, &options) == DELAYQ_OK &&
 *             delayq_offer(&q, "hello", 5, 5000) == DELAYQ_OK)  (due in 5 s)
 *             while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
 *                 printf("%.*s\n", (int)item.len, (const char *)item.data);
 *         fprintf(stderr, "%s\n", delayq_errmsg(&q));  (only a failure ends it)
 *         delayq_close(&q);
 *         return 1;
 *     }
 *
 * There is no thread and no event loop in here. A take moves the due items
 * itself, so one consumer alone is enough. A program with a loop of its own
 * calls delayq_take(&q, &item, 0) in each turn, which costs nothing while
 * nothing is due. A program that only moves items, for other programs to take,
 * calls delayq_tick(&q, &wait_ms), which says when to call it again.
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
 * list. The transfer, which every tick and take runs, moves due items from the
 * set to the list. A take that finds the list empty takes due items straight
 * from the set.
 *
 * A lease puts the item back into the set, due at the end of the lease, with
 * its attempt count raised by one. An ack removes it from there; a nack or an
 * extend changes its due time. So the items of a consumer that has crashed
 * fall due again by themselves; no other process has to look for them.
 *
 * >>promises -- the guarantees, and their limits
 *
 *                    lease_ms = 0                lease_ms > 0
 *     delivery       at most once: a take        at least once: handlers
 *                    removes the item            must be idempotent
 *     crash          the items that a consumer   delivered again after the
 *                    had taken are gone          lease
 *     order          by due time, then offer     the same; redeliveries take
 *                                                turns with the rest
 *     early          never by the server's clock; nor measured from the offer,
 *                    unless somebody sets the server's clock forward meanwhile
 *
 * Each move is one script. If the server refuses it (memory full, a command
 * that the ACL forbids, a key of another type) the items stay where they are.
 * If it refuses a part behind the first items, these have been moved or taken,
 * the call succeeds, and the next one fails. A full server still delivers,
 * acks, nacks and extends.
 *
 * Items are lost in no other way than these, and by data loss in Redis itself:
 * see its persistence settings, and its asynchronous replication at a
 * failover. If the server restarts from an older state, items taken or acked
 * since then are delivered again, even without a lease.
 *
 * If Redisson moves items of the queue too, three guarantees are weaker: a
 * lease ends by the fastest Java clock; attempt counts restart whenever Java
 * has moved the item (so max_attempts is refused); and a crashed consumer's
 * item may be delivered to Java.
 *
 * >>keys -- the data in Redis
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
 *     delayq_once:T:LEN:KEY           string with a TTL: the ticket of the
 *                                            item offered under KEY. Eviction
 *                                            (volatile-*) may drop it early
 *     delayq_sent:T:HANDLE            string with a TTL of a day: the highest
 *                                            number that an outbox has stored
 *     delayq_waiters:T                zset   handles that wait in a take, and
 *                                            the channel that calls all of them
 *     delayq_turn:T:HANDLE            channel  tells one of them to lead
 *     delayq_stream:T                 stream, trimmed: a broadcast's items
 *     delayq_counters:T               hash   totals of handles with
 *                                            options.counters
 *
 * The first four are the keys, the bytes and the channel of Redisson's
 * RDelayedQueue over an RBlockingQueue: Java programs can offer to and take
 * from the same queue. options.wire names the Redisson; all handles of a queue
 * use the same wire. An element that the fleet's Redisson can't read stops its
 * transfer for ever. So a handle that finds an element of another Redisson
 * returns DELAYQ_ERR_WIRE. It looks at both ends of the set and of the mirror
 * at the open, and with an offer if it has not looked for 10 s; takes and ticks
 * look at the elements that they move and at the next one, if that is due
 * within max_wait_ms. It does not look at every element, and can't see a
 * Redisson that has not offered yet. If a queue holds elements of two formats
 * all the same, let one handle with DELAYQ_REDISSON_OLD tick until the wrong
 * ones are gone: its ticks move every format, and write none.
 *
 * Handles with options.counters count in the script that does the work, so a
 * resend after a lost reply counts once. delayq_count returns the totals.
 * They don't include the work of Redisson and of handles without the option, a
 * redrive, the items that delayq_clear removes, and some work while the slot
 * moves to another node. A counter that a call changes costs the server about
 * 1.5 us, and 85 bytes in the append-only file. The counters stay until
 * somebody deletes their key.
 *
 * The data in Redis outlives the programs, so it is a contract of its own.
 * Versions of delayq with the same first number can work on one queue at once:
 * they offer, move, take and ack each other's items, and know each other's
 * tickets and keys. So programs can be upgraded one by one, and rolled back,
 * while they work. A new version adds a key of its own, or a bit that older
 * versions ignore. A change that these can't handle raises the first number,
 * and the newer version refuses their queues with an explanatory text.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts: a device without a clock, or with a wrong
 * one, can offer and take. Due times are whole milliseconds since the epoch,
 * rounded up.
 *
 * Nothing ever blocks on the server: the handle waits in poll(). A sleeper is
 * woken up to 50 us late (on Windows 600), so the handle sleeps so much less,
 * and spends the rest awake. A handle that waits opens a second socket, the
 * subscriber, which hears of items that are due earlier and of payloads that
 * anybody pushes into N. It only saves time: without it the handle polls the
 * server every 250 ms; with it at least every max_wait_ms.
 *
 * Handles that wait in a take for 10 s or longer on one queue share the work.
 * One of them, the leader, keeps the exact timer. About 16 others, the
 * standbys, step in if the leader has not acted 0.3 to 0.6 s after an item was
 * due or pushed. The rest sleep until one of those takes an item and needs a
 * successor. So of a hundred waiting handles few wake for an item, and one that
 * waits alone pays nothing for them.
 *
 * Waiting programs that die or freeze delay one item, once, by 1 s at most. The
 * exception: if more than 16 wait, and a fault hits the leader and every
 * standby, a sleeper finds the item, each of which looks every max_wait_ms.
 *
 * The items that one handle offers for the same millisecond come in the order
 * of the offers. Between handles that holds, too, for an offer that begins
 * after another has returned. The exception: two offers may change places if
 * they follow each other more closely than the round trips of a handle differ,
 * or than its clock has drifted from the server's since its last request.
 *
 * Beside idle Redisson consumers, the server serves their BLPOP first: there
 * is no fairness between them and delayq's.
 *
 * >>servers -- one server, Sentinel, a cluster, TLS
 *
 * If the URL names several hosts, they are tried in turn, each for its share
 * of connect_timeout_ms; replicas and nodes that are down are passed over.
 * redis+sentinel:// asks the sentinels, at each connect, for the master.
 *
 * On a cluster one host is enough to begin with; redirections are followed.
 * All keys of a queue lie in one slot, so a name has either no '}' or one
 * whole, non-empty {tag}; other names are refused there. While the slot moves
 * to another node, offers without a key, acks, nacks, and takes of pending
 * items go on (native queues only; an outbox keeps its offers until then); all
 * other calls return DELAYQ_ERR_AGAIN until it has arrived.
 *
 * A queue is one slot, and so the work of one node. To spread a hot queue, open
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
 * included, or for connect_timeout_ms if that is given and longer. A request
 * that is sent late in this time has two measured round trips. With each MB of
 * a payload that moves, the time begins again. A take or a wait may take its
 * timeout in addition. An attempt to connect that needs more time goes on in
 * the next call. getaddrinfo looks a host name up at each connect, without a
 * time limit: use an address, or options.resolve, if that matters.
 *
 * A connection that is dead without a sign (a frozen server, a lost network) is
 * noticed by the next request after io_timeout_ms, and by the subscriber after
 * 10 s and io_timeout_ms at most.
 *
 * >>outbox -- handles that never wait
 *
 * For a frame of a game, the superloop of a device, a callback of an event
 * loop. With options.outbox a handle waits for the server only in calls with a
 * timeout other than 0, and in those that need a reply: peek, count,
 * count_due, dead letters, clear, wait, flush. The others do this:
 *
 *     open     checks the options, loads the tls_ files, begins to connect, and
 *              returns DELAYQ_OK. A tick returns refusals
 *     tick     one step: writes and reads at most 64 KiB, and returns. Call it
 *              once a frame, or when wait_ms is over or a descriptor is
 *              readable. It returns the fault that keeps the outbox from going
 *              on
 *     take     hands out an item that a reply has brought; if there is none, it
 *              sends a request and returns DELAYQ_EMPTY: the item comes a round
 *              trip later. The lease begins with the request. Take until
 *              DELAYQ_EMPTY, then tick
 *     offer, ack, nack, extend, bury, cancel, reschedule
 *              copy into the outbox and return DELAYQ_OK: accepted. No room:
 *              DELAYQ_ERR_FULL, nothing has happened. Larger than half of its
 *              ring: DELAYQ_ERR_ARG
 *
 * Offers have three quarters of the memory, acks and the like the rest, so that
 * a full server, which refuses offers, still gets the acks that make room. Each
 * part is done in the order of the calls. An accepted op stays until the server
 * has confirmed it, through lost connections, wrong passwords, missing rights,
 * a full or read-only server. An op is dropped only if, sent alone, it has
 * ended 8 connections; this is reported to the log, and delayq_outbox counts
 * it.
 *
 * An offer is stored once, even if its reply was lost and it was sent again:
 * for a day the queue remembers the highest number that each handle has stored.
 * It is stored at least once if Redis forgets that (a failover, a restart
 * without synced AOF), and after a day without a connection. A delay counts
 * from the call. If a ticket is wanted (offer_message, offer_many) the due time
 * is settled at the call, by the server's clock as it is known then: after a
 * failover to a server with a faster clock the item is early by the
 * difference. Before the first connection there is no ticket: it is "", and
 * extend and reschedule return DELAYQ_ERR_IO.
 *
 * A crash of the program, and close, lose the contents of the outbox; call
 * delayq_flush before. They also lose items that were fetched and not handed
 * out, unless there is a lease.
 *
 * >>errors -- errors and retries
 *
 * 0 is done, > 0 means that nothing went wrong but there is nothing to show,
 * < 0 is a failure. Only after DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL may
 * the effect have happened; after any other failure it has not. delayq_errmsg
 * returns the text. If a reply was lost, the call goes on, and then fails, the
 * status is DELAYQ_ERR_UNKNOWN, and the text names both faults.
 *
 * If a server or a proxy sends a reply that nobody awaits, the connection is
 * closed before the next request is written. One such fault can't be noticed: a
 * proxy sends a reply twice, and the copy comes while the next reply is
 * awaited.
 *
 * A lost connection is replaced by itself: at once the first time, after a
 * failed attempt with a growing pause of up to reconnect_max_ms, during which
 * calls fail at once. The only error that requires reopening the handle is
 * DELAYQ_ERR_WIRE.
 *
 * >>limits -- limits
 *
 * Names have 1 to 512 bytes. Payloads have any bytes, as many as the server
 * takes (512 MB by default), and up to 1 GB. Due times lie below 2^53 ms.
 *
 * A reply with more than 250,000 elements or more than 1 GB is refused as soon
 * as the server announces it; otherwise memory grows only with the bytes that
 * have come.
 *
 * A script moves or takes at most options.batch items and stops after 256 KiB
 * of payload, so it blocks the server for about 2 ms. A larger payload is moved
 * alone. With 1 to 64 MB it blocks the server for so many ms per MB: an offer
 * or a take 2 to 5, a take with a lease 7 to 13, an ack, nack or extend 3 to 6,
 * a tick that moves it 4 to 8 (a GET or SET in Lua: 2 to 3). A take or tick
 * needs twice as long if the next item is as large, since it reads that for its
 * due time. An item of 60 MB goes through with the default options; for larger
 * ones raise io_timeout_ms, since nothing moves while the script runs.
 *
 * With a Redisson wire each script walks through the mirror list once, that of
 * a replace twice: a few ms per 100,000 pending items. One walk serves up to
 * 100 items offered by delayq, but only 1 to 3 offered by Java.
 *
 * The handle is plain memory of less than 4 KB. A call needs up to 22 KB of
 * stack, 16 of these for hiredis' read buffer, and more under TLS. The library
 * itself allocates nothing; hiredis does.
 *
 * >>macros -- option macros
 *
 *     DELAYQ_IMPLEMENTATION   define it in exactly one .c or .cc file
 *     DELAYQ_STATIC           all functions static, for that file alone
 *     DELAYQ_TLS              rediss:// URLs: needs hiredis >= 1.0 and OpenSSL,
 *                             -lhiredis_ssl -lssl -lcrypto
 *     DELAYQ_HIREDIS          the header to include for hiredis,
 *                             <hiredis/hiredis.h> unless defined
 *     DELAYQ_PORT             a file with what >>system asks for, where that is
 *                             neither Windows nor POSIX: a device
 */

#ifndef DELAYQ_H
#define DELAYQ_H

#if defined(DELAYQ_IMPLEMENTATION) && defined(__STRICT_ANSI__) && \
    !defined(_GNU_SOURCE) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* -std=c99 hides POSIX otherwise */
#endif

#include <stddef.h>
#include <stdint.h>

#define DELAYQ_VERSION "0.2.0"
#define DELAYQ_VERSION_MAJOR 0
#define DELAYQ_VERSION_MINOR 2
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
 * >>status   the results of a call
 *---------------------------------------------------------------------------*/

typedef enum delayq_status {
    DELAYQ_OK = 0, /* done */

    /* Nothing went wrong, but there is nothing to show. */
    DELAYQ_EMPTY = 1,     /* nothing to take within the timeout */
    DELAYQ_GONE = 2,      /* it is no longer there: nothing was changed */
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
    DELAYQ_ERR_FULL = -8,     /* maxmemory reached, or the outbox is full: it
                                 was refused */
    DELAYQ_ERR_WIRE = -9,     /* elements of a Redisson were met for which
                                 options.wire is wrong; the text names it */
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
#define DELAYQ_FOREVER (-1) /* a timeout without end */
#define DELAYQ_BACKOFF (-1) /* nack: exponential, with jitter */
#define DELAYQ_RELEASE (-2) /* nack: at once, this attempt doesn't count */

/* The programs that share the queue. All its handles use the same wire:
 *
 *     DELAYQ_NATIVE         C programs; the default, 0. Redisson >= 3.21.1 can
 *                           move and take the items. But it must not offer any,
 *                           and its size(), contains() and the like don't see
 *                           the items that C has offered
 *     DELAYQ_REDISSON       a fleet with Redisson >= 3.21.1
 *     DELAYQ_REDISSON_OLD   a fleet with Redisson <= 3.21.0
 *     DELAYQ_BROADCAST      C programs; each handle gets each item. Without a
 *                           lease
 *
 * A program links the code only of the wires that it names. */
typedef const struct delayq_wire_kind *delayq_wire;
#define DELAYQ_NATIVE ((delayq_wire)0)
#define DELAYQ_REDISSON (&delayq_wire_redisson)
#define DELAYQ_REDISSON_OLD (&delayq_wire_redisson_old)
#define DELAYQ_BROADCAST (&delayq_wire_broadcast)

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
                               65,535; default 0: never. Not with a Redisson
                               wire */
    int64_t backoff_ms;     /* DELAYQ_BACKOFF after the first attempt, doubled
                               for each further one; default 1,000 */
    int64_t backoff_max_ms; /* and at most; default 300,000 */

    /* With DELAYQ_BROADCAST. */
    const char *broadcast_after; /* NULL: only what comes after the open; "":
                                    everything that is kept; or the ticket text
                                    of the last item seen */
    int64_t broadcast_keep;      /* items that the stream keeps, about; default
                                    10,000 */

    int batch;              /* most items that one tick moves: 1 to 1,000;
                               default 100 */
    int64_t max_wait_ms;    /* longest wait that a tick returns, and longest
                               time between two polls; default 10,000 */
    int connect_timeout_ms; /* to connect and log in; default 2,000. If given
                               and longer than io_timeout_ms, calls may take
                               that long */
    int io_timeout_ms;      /* for a call that asks the server; with an outbox:
                               without a byte that comes or goes. On a slow
                               line twice the measured round trip is used, if
                               that is longer; default 3,000 */

    int reconnect_max_ms; /* longest pause between two attempts to connect;
                             default 5,000 */
    int counters; /* 1: count in Redis what this handle does, for the totals of
                     delayq_count: see >>keys */

    /* A handle that never waits: see >>outbox. */
    void *outbox;       /* memory of yours, which outlives the handle; what lay
                           in it is not read */
    size_t outbox_size; /* its bytes, at least 8,192 */
    /* Looks up the address of a host in the URL: writes its text, and returns
     * 1; 0: it is not known yet, ask again in the next step; -1: there is none.
     * Default: getaddrinfo, which may wait. */
    int (*resolve)(void *user, const char *host, char *address, size_t size);

    /* Files, for rediss://. */
    const char *tls_ca;   /* certificates to trust; default the system's */
    const char *tls_cert; /* this program's certificate, and its chain; */
    const char *tls_key;  /* and its key: default neither */

    /* Returns a connected context without unread answers, or NULL after a
     * failure. Used instead of the URL's host or path; its user, password and
     * db still count. For TLS of your own, proxies, tests. The handle frees
     * the context; it has the server answer in RESP2. */
    struct redisContext *(*connect)(void *user, int timeout_ms);
    /* Called with each fault that a call rides out, from within the call; text
     * is one line without a newline and lives until it returns. On this handle,
     * and on those that share its connection, it may call delayq_wake and
     * nothing else. */
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

    delayq_status status; /* out: the result. While it is DELAYQ_ERR_UNKNOWN
                             offer the same struct again, unchanged: the item
                             is stored once at most */
    delayq_ticket ticket; /* out: of the item, or of the one that has the key */
    unsigned char id[16]; /* private */
    /* Private: it may have been due from then on, */
    int64_t first_due_ms; /* by the server's clock, */
    int64_t first_due_us; /* and by this machine's */
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
 * counts what this handle has done since it was opened, the third what all
 * have. */
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

    /* What all handles with options.counters have done: see >>keys. All 0
     * where there was none, or an ACL hides it. */
    struct {
        uint64_t offered; /* stored; a duplicate isn't */
        uint64_t taken;   /* handed out, redeliveries included; of a broadcast:
                             put into the stream */
        uint64_t acked, nacked;
        uint64_t died;     /* sent to the dead letters */
        uint64_t canceled; /* or replaced */
    } total;
} delayq_counts;

/* What delayq_outbox tells, counted since the open. Offers: and what cancels
 * or reschedules this handle's own; changes: acks and the like. They are
 * settled in their order: the n-th is once ..._settled >= n. */
typedef struct delayq_outbox_state {
    uint64_t offers_accepted, offers_settled;
    uint64_t changes_accepted, changes_settled;
    uint64_t gone;      /* changes that came too late */
    uint64_t duplicate; /* offers whose key was taken */
    uint64_t dropped;   /* what the server can't take: see >>outbox */
    size_t bytes, size; /* used, of so many */
} delayq_outbox_state;

/* From here to the functions (>>functions) stands the content of a handle. It
 * is private. It is here so that a handle can lie in memory of yours. */

typedef struct delayq_address {
    char host[256]; /* or the path of a unix socket, */
    int port;       /* which has port 0 */
} delayq_address;

/* Commands that are written together, until each of their replies is there. */
typedef enum delayq_exchange_state {
    DELAYQ_EXCHANGE_NONE,
    DELAYQ_EXCHANGE_WAITING, /* to be written */
    DELAYQ_EXCHANGE_SENT,    /* replies are to come */
    DELAYQ_EXCHANGE_ANSWERED /* its replies are there, or its socket is lost */
} delayq_exchange_state;

typedef struct delayq_exchange {
    struct delayq_exchange *next; /* on the same socket */
    delayq_exchange_state state;
    delayq_status status;     /* why there are no replies, or OK */
    unsigned char wants, got; /* replies */
    unsigned number;          /* the socket's, when it was sent; 0: never */
    unsigned char written;    /* the server has all of it, or may have */
    unsigned char alone;      /* it was the only one on the lost socket */
    struct redisReply *replies[5]; /* `got` of them */
    int64_t sent_us, read_us;
} delayq_exchange;

typedef enum delayq_socket_state {
    DELAYQ_SOCKET_CLOSED,
    DELAYQ_SOCKET_RESOLVING, /* the address of its host is being looked up */
    DELAYQ_SOCKET_DIALING,   /* it is being connected */
    DELAYQ_SOCKET_TLS,       /* in the handshake of TLS */
    DELAYQ_SOCKET_GREETING,  /* its login is sent */
    DELAYQ_SOCKET_OPEN,      /* logged in */
    DELAYQ_SOCKET_PROVEN     /* and has been of use */
} delayq_socket_state;

/* The part of a reply that has been read. */
typedef struct delayq_reply_scan {
    char type;           /* of the element; 0: its first byte comes next */
    char last;           /* the byte before, in a line; */
    unsigned short line; /* the length of the line so far */
    unsigned number;     /* in the line; of a string: bytes still to come */
    unsigned bytes;      /* of all strings in the reply so far */
    unsigned items;      /* of all its arrays */
    unsigned depth;      /* arrays that are not complete, nested: */
    unsigned left[4];    /* their elements that are still to come */
} delayq_reply_scan;

/* Invariants: c is NULL if the state is CLOSED or RESOLVING; first and last are
 * both NULL or both not; body_len > 0 only while c is not NULL. */
typedef struct delayq_socket {
    struct redisContext *c;
    void *ssl; /* c's SSL; hiredis owns it */
    delayq_socket_state state;
    unsigned number;         /* counts the attempts to connect it */
    unsigned char purpose;   /* dq_conn_purpose */
    unsigned char unwritten; /* c's output buffer, or `body`, is not empty */
    unsigned char more;      /* there may be more to read */
    unsigned char unproven;  /* connections in a row that were lost unproven */
    unsigned failures;       /* failed attempts in a row */
    int64_t retry_us;        /* connect no sooner */
    int64_t begun_us;        /* when this attempt began; */
    int64_t deadline_us;     /* it has to be open by then */
    int64_t moved_us;        /* when bytes were last read or written */
    delayq_reply_scan scan;
    const char *body; /* a payload that is written behind c's buffer, */
    size_t body_len;  /* and the length of its rest */
    delayq_exchange *first, *last; /* in flight, in the order of replies */
    delayq_exchange greeting;
    unsigned char login[8]; /* its steps */
} delayq_socket;

/* Whether the server reports pushes into the lists. */
typedef enum delayq_track_state {
    DELAYQ_TRACK_OFF,     /* no sub, or refused: handles poll more often */
    DELAYQ_TRACK_ALLOWED, /* sub is ready for it, cmd has not turned it on */
    DELAYQ_TRACK_ON       /* cmd has turned it on, REDIRECT to sub */
} delayq_track_state;

/* The address of a host. */
typedef struct delayq_name {
    unsigned hash;    /* of its name */
    int64_t found_us; /* when it was looked up; 0: never */
    char text[46];
} delayq_name;

/* A connection: up to three sockets to one server, or one cluster. */
typedef struct delayq_conn {
    const delayq *owner; /* its options say where to connect */
    delayq *handles;     /* all that use this connection */

    delayq_socket cmd; /* requests and their replies */
    delayq_socket sub; /* the subscriber */
    delayq_socket ask; /* to the node that an ASK has named, for one request */

    delayq_address at;        /* where cmd leads, or is to lead */
    delayq_address redirect;  /* the node that MOVED or ASK has named */
    unsigned char redirected; /* cmd's next attempt goes there */
    unsigned char hops;       /* redirections in a row while connecting */
    unsigned char timed_out;  /* the last fault was a timeout */
    unsigned host;            /* number of the URL's host to try next */
    delayq_name *names;       /* three, in the owner's outbox; or NULL */
    unsigned hosts_left;      /* to try before a pause */
    delayq_status failure;    /* the status of requests during that, */
    char err[256];            /* and its cause */

    delayq_track_state tracking;
    int64_t sub_id;        /* its CLIENT ID */
    unsigned sub_at;       /* a hash of the address to which it leads */
    int64_t sub_read_us;   /* when it was last read */
    int64_t sub_pinged_us; /* when it was pinged; 0: no reply is awaited */

    /* The server. */
    unsigned char known;               /* a probe was answered on cmd */
    unsigned char probed_twice;        /* the first reply was late */
    unsigned clock_number;             /* counts the servers that were known */
    int64_t clock_offset_us;           /* its clock minus ours, at least, */
    int64_t clock_error_us;            /* and at most so much more, */
    int64_t clock_read_us;             /* as it was read then */
    unsigned char long_size, long_big; /* its unsigned long */

    unsigned moved; /* bytes of large payloads and of replies so far */

    void *tls;   /* the SSL_CTX */
    int pipe[2]; /* delayq_wake writes, a sleep ends */
} delayq_conn;

/* Ops in order, with one request in flight. The ops lie in a ring of the
 * outbox, or in one of the caller's arrays; a bare lane has one op, which is
 * no more than its verb.
 *
 * Invariants: settled + n <= accepted while a request is in flight; the first
 * `unsure` ops behind `settled` may have run. */
typedef struct delayq_lane {
    struct delayq_lane *next;       /* of the same handle */
    delayq_exchange x;              /* of the request; NONE: there is none */
    const struct dq_policy *policy; /* how it is retried */
    const struct dq_verb *verb;     /* of the request's first op */
    unsigned char key;              /* the second key of the request */
    size_t n;                       /* the request's ops */
    delayq_status status;           /* of the last request */
    struct redisReply *reply;       /* of a bare lane: for its caller */
    delayq_status result;           /* the first status of an op but OK */
    int64_t due_ms;                 /* of the last op that has a new one */

    struct dq_ring *ring;     /* where the ops lie: one of these, */
    delayq_message *messages; /* or none if the lane is bare */
    delayq_item *items;
    struct dq_op *ops;
    const struct dq_verb *array_verb, *keyed_verb; /* of messages or items; of
                                                      a bare lane */
    const struct dq_query *query; /* the arguments of a bare verb */
    int64_t begun_us;             /* the local time of the call */
    uint64_t accepted, settled;   /* ops */

    uint64_t unsure, was_unsure; /* the latter: before this sending */
    unsigned tries;              /* of this request */
    unsigned char resent;        /* this request, since a socket was lost */
    unsigned char resends;       /* one of its ops may have run before */
    unsigned char uploads;       /* the script, with the next sending */
    unsigned char asking;        /* it goes to the node that ASK has named */
    unsigned char as_waiter;     /* a take: with the waiters' key */
    unsigned char zset_alone;    /* a take: the zset and no other key */
    unsigned char suspect;       /* its last request has lost a socket */
    unsigned char failures;      /* in a row, of a ring */
    unsigned char losses;        /* of sockets, with one op alone */
    size_t limit;                /* ops of a ring's next request */
    int64_t retry_us;            /* send no sooner */
} delayq_lane;

/* The handle's take or transfer, and its reply. */
typedef struct delayq_fetch {
    delayq_lane lane;           /* bare */
    const struct dq_verb *take; /* the wire's; NULL before the first take */
    unsigned char takes;        /* it is a take */
    unsigned char overdue;      /* the last reply said that something is due */
    size_t max;                 /* items that it asks for */
    uint64_t order;             /* of the ids that its leases make */
    delayq_ticket ack;          /* acked with it; "": none */
    delayq_status acked;        /* the status of that ack */
    unsigned char lost;         /* a reply was lost since the call began */
    delayq_status status;       /* of its last reply */

    struct redisReply *reply; /* the items point into it */
    size_t at;                /* the next element to hand out */
    const char *due;          /* the due times of the rest, as text */
    int64_t us;               /* the server's clock in the reply */
    int64_t lease_end_us;     /* of all its items, by the local clock */

    /* How a loop takes. */
    size_t want;           /* items that the next take asks for, */
    size_t most;           /* at least these, if the program can hold them */
    size_t got;            /* items of the last one */
    unsigned char taken;   /* since the last tick 1: the program has taken, 2:
                              and has got something */
    delayq_status failure; /* a take has failed: the next tick returns it */
} delayq_fetch;

/* The role of a handle among those that wait in a take on its queue; in this
 * order in a take's reply. */
typedef enum delayq_waiter_role {
    DELAYQ_WAITER_NONE,    /* it is not one of them */
    DELAYQ_WAITER_ALONE,   /* it was the only one when it asked */
    DELAYQ_WAITER_LEADER,  /* it acts when something is due or pushed */
    DELAYQ_WAITER_STANDBY, /* it acts 0.3 to 0.6 s later, if it has to */
    DELAYQ_WAITER_SLEEPER  /* it waits until it is told to lead */
} delayq_waiter_role;

/* All 0 while the subscriber is closed. */
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

/* What q->setup asks. */
typedef enum delayq_setup_kind {
    DELAYQ_SETUP_PROBE,
    DELAYQ_SETUP_TRACK,
    DELAYQ_SETUP_STALE /* tracking; its reply is out of date */
} delayq_setup_kind;

/* A handle. {0} is a closed one. An open one must not be copied or moved. */
struct delayq {
    unsigned open;
    int call_ms; /* how long a call that asks may take */
    int64_t pid;
    delayq_options options;
    delayq_wire wire;    /* never NULL */
    delayq_conn *conn;   /* own, or that of options.share; NULL once the handle
                            that it belongs to is closed */
    delayq_conn own;     /* unused by a handle that shares another's */
    delayq *next;        /* of the handles on a connection */
    uint64_t last_order; /* of the last id */
    unsigned char handle_id[8]; /* random */
    char id[18];                /* ":" and handle_id in hex */

    delayq_exchange setup; /* the probe of its queue, or tracking: */
    delayq_setup_kind setup_kind;
    unsigned char probe_uploads; /* the probe's script, with the next probe */

    delayq_lane *lanes; /* all: fetch, the outbox's, a call's */
    delayq_fetch fetch;
    struct dq_outbox *outbox; /* in options.outbox, or NULL */

    /* The schedule. */
    int64_t next_poll_us;    /* ask the server no later than then */
    int64_t pause_us;        /* the last request failed: none before then,
                                whatever is heard */
    int64_t track_us;        /* ask it to track the list no sooner than then */
    int64_t ready;           /* how many lay ready by the last reply */
    unsigned char poll_sent; /* a transfer or take is in flight */

    /* What is heard; all 0 while the subscriber is closed. */
    unsigned char subscribed;   /* to the queue's channel */
    unsigned char list_tracked; /* the next push into N will be heard: only
                                   while conn->tracking is DELAYQ_TRACK_ON */

    unsigned char will_wait; /* in a take that waits long enough to be one
                                of the waiters */
    delayq_waiter waiter;

    unsigned char empty_takes; /* 1: the last take was empty, and one of the
                                  empty ones since the last item didn't wait */
    unsigned char retry_turn;  /* the list that the last take began with */
    unsigned char probed;      /* a probe of this queue has been answered */
    unsigned char foreign;     /* DQ_FOREIGN_...: the elements met there */
    volatile int woken;        /* by delayq_wake */
    void *reply;               /* of a peek: the items point into it */
    delayq_counts counts;
    size_t name_len;
    char name[513];
    char cursor[44]; /* of a broadcast */
    char err[256];
};

/* A wire, and what depends on it. */
struct delayq_wire_kind {
    char letter[2];          /* its name in scripts */
    unsigned char id_len;    /* of the ids that its handles write */
    unsigned char old_first; /* read elements as Redisson <= 3.21.0 first */
    unsigned char mirror;    /* pending elements stand in a list, too */
    unsigned char stream;    /* due items go into a stream */
    const char *third_key;   /* of scripts that move items: its prefix */
    const struct dq_verb *take, *tick; /* NULL: those of DELAYQ_NATIVE */
};

#ifndef DELAYQ_STATIC
#define DELAYQ_WIRE_KIND extern const struct delayq_wire_kind
#define DELAYQ_WIRES_BEGIN
#define DELAYQ_WIRES_END
#elif !defined(__cplusplus)
#define DELAYQ_WIRE_KIND DELAYQ_API const struct delayq_wire_kind
#define DELAYQ_WIRES_BEGIN
#define DELAYQ_WIRES_END
#else /* where a static constant has to have its value at once */
#define DELAYQ_WIRE_KIND extern const struct delayq_wire_kind
#define DELAYQ_WIRES_BEGIN namespace {
#define DELAYQ_WIRES_END }
#endif
DELAYQ_WIRES_BEGIN
DELAYQ_WIRE_KIND delayq_wire_redisson;
DELAYQ_WIRE_KIND delayq_wire_redisson_old;
DELAYQ_WIRE_KIND delayq_wire_broadcast;
DELAYQ_WIRES_END

/*-----------------------------------------------------------------------------
 * MARK: - Functions
 * >>functions   in the order in which you meet them
 *---------------------------------------------------------------------------*/

/* Unless a contract says otherwise, a function that asks the server
 *
 *     blocks      for one round trip; if the connection turns out to be lost,
 *                 for a connect and another one. >>threads has the limits
 *     costs       one script, O(log n) for n pending items
 *     keeps       nothing of its arguments
 *     returns     DELAYQ_OK, or "any server failure", each of these:
 *
 *     DELAYQ_ERR_IO, _TIMEOUT, _AUTH, _REDIS, _READONLY, _AGAIN, _TYPE,
 *     _MEMORY    nothing was changed
 *     DELAYQ_ERR_WIRE   the items due before the foreign element may have been
 *                moved, and an item acked, which `acked` shows; nothing else
 * was changed. All further calls fail until the handle is reopened. With
 * DELAYQ_REDISSON_OLD only offers and takes fail; ticks go on
 *     DELAYQ_ERR_UNKNOWN, _PROTOCOL   it may have happened
 *     DELAYQ_ERR_ARG    the handle is closed, or was opened before a fork(), or
 *                its name or tls_ files turn out to be bad when it connects;
 *                nothing was changed
 *
 * A handle with an outbox does not block in offer, ack, nack, extend, bury,
 * cancel, reschedule, tick, and a take with timeout 0: see >>outbox. */

/*
 * delayq_open -- open a handle on a queue, and connect.
 *
 *   q         a closed or zeroed handle, in the caller's storage
 *   options   copied, except the strings in it other than the name
 *
 * Returns     DELAYQ_OK        open and connected
 *             DELAYQ_ERR_ARG   a bad option, a tls_ file that can't be used,
 *                              a system without random bytes, or on a cluster
 *                              a name that lies in two slots; the handle is
 *                              closed
 *             DELAYQ_ERR_WIRE  the handle is open, but its calls will return
 *                              this: see >>keys
 *             any server failure: the handle is open and connects when it is
 *                              used
 * Blocks      up to connect_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, EXISTS, 1 script; a broadcast also
 *             XREVRANGE
 *
 * delayq_errmsg and delayq_close work in every case.
 */
DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options);

/* delayq_close -- close a handle; does nothing to a zeroed or closed one. The
 * payloads of its items are freed. Never blocks. The data in Redis stays. */
DELAYQ_API void delayq_close(delayq *q);

/*
 * delayq_offer -- store a payload, to be delivered after delay_ms.
 *
 *   data       the payload; may contain NUL bytes
 *   len        its length in bytes, 0 allowed
 *   delay_ms   milliseconds, >= 0; 0 = due at once
 *
 * Returns      DELAYQ_OK           stored
 *              DELAYQ_ERR_ARG      a negative delay, a due time past 2^53 ms,
 *                                  NULL with a length, or more than 1 GB
 *              DELAYQ_ERR_FULL     the server's memory, or the outbox, is full;
 *                                  not stored
 *              any server failure
 *
 * If the reply is lost, the offer is sent again under the same id, so that it
 * is stored once. It is not sent again if the item may have been due meanwhile,
 * by the server's clock or by this machine's: then nobody can tell whether it
 * was stored and delivered, and the status is DELAYQ_ERR_UNKNOWN. Three things
 * between the two sendings can deceive this check: a server's clock that is set
 * forward and back again; a network that keeps the first request until the
 * second was delivered; somebody who cancels or clears the item, or moves it to
 * an earlier time.
 */
DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms);

/*
 * delayq_offer_message -- store a payload, with a key, a due time or a ticket.
 *
 *   message    see delayq_message; status and ticket are set in it
 *
 * Returns      as delayq_offer, and
 *              DELAYQ_OK          stored; the ticket is the item's
 *              DELAYQ_DUPLICATE   the key is taken, nothing was stored; the
 *                                 ticket is that of the item which has the key
 *              DELAYQ_GONE        only if its status was DELAYQ_ERR_UNKNOWN: it
 *                                 has been due since, and is not there. It was
 *                                 delivered, or never stored; nothing was
 * stored now
 *
 * To retry after DELAYQ_ERR_UNKNOWN pass the same message unchanged until its
 * status is another: the item is stored at most once. DELAYQ_GONE ends that,
 * too. If you would rather have the item twice than never, offer the message
 * once more then, which stores a new item.
 *
 * message->status is the returned status, except that it stays
 * DELAYQ_ERR_UNKNOWN if such a retry fails.
 */
DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message);

/*
 * delayq_offer_many -- store many payloads, each with its time, key and status.
 *
 *   messages   see delayq_message; status and ticket are set in each
 *   count      0 is fine
 *
 * Returns      DELAYQ_OK   each is stored, or DELAYQ_DUPLICATE or DELAYQ_GONE
 *              else the server's first failure, or DELAYQ_ERR_ARG if some were
 *              bad; the others are stored all the same
 * Blocks       for a round trip per script
 * Redis        a script per 1,000 neighbours (100 with keys) or 256 KiB; those
 *              with a key, a delay_ms or a due_ms don't share one
 *
 * After DELAYQ_ERR_UNKNOWN offer the messages again that have this status, as
 * delayq_offer_message explains. Leave out the others: they would be stored
 * again.
 */
DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count);

/*
 * delayq_tick -- move the due items to the ready list; for your own loop.
 *
 *   wait_ms    out, may be NULL, always set: call again after so many ms, or
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
 * Blocks       for connecting and one transfer. It does not wait for the
 *              subscriber, nor for pushes. While nothing is due it only reads
 *              the clock, and its sockets at most once a millisecond
 * Redis        1 script, O(log n) per item moved, at most options.batch; with
 *              a Redisson wire O(n), see >>limits
 */
DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms);

/*
 * delayq_take -- get the next item, moving the due items on the way.
 *
 *   item         out; see delayq_item for how long its payload lives
 *   timeout_ms   0: don't wait; > 0: wait so long; DELAYQ_FOREVER
 *
 * Returns      DELAYQ_OK       an item
 *              DELAYQ_EMPTY    none within the timeout
 *              DELAYQ_WOKEN    delayq_wake was called; only if timeout_ms is
 *                              not 0
 *              any server failure. After DELAYQ_ERR_UNKNOWN an item that the
 *              server had handed out is lost; with a lease it comes again
 * Blocks       for timeout_ms and a round trip; after a wait of 10 s or longer
 *              beside others, one more to leave them. With 0: for one, or for
 *              none while the subscriber is open and nothing is due (it is
 *              opened at the second empty take in a row)
 * Redis        1 script; 0.2 commands a second while it waits
 *
 * Transient faults (_IO, _TIMEOUT, _AGAIN, _READONLY, _UNKNOWN) don't end a
 * take that waits. They are reported to options.log, and it tries again until
 * the timeout. Then it returns the last one, or _UNKNOWN if that was among
 * them. All other faults end it at once. DELAYQ_OK and DELAYQ_EMPTY say nothing
 * about an item that was lost before: without a lease only the log does.
 */
DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms);

/* delayq_take_many -- get up to max items, 1 to 10,000, in one round trip. As
 * delayq_take; it waits for the first item only, and may bring fewer than lie
 * ready: a script stops after 256 KiB. count: out, their number. */
DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms);

/*
 * delayq_ack -- done with a leased item: it is removed.
 *
 * Returns      DELAYQ_OK     removed
 *              DELAYQ_GONE   the lease ended and the item was moved or given to
 *                            another, or it was acked before; nothing was
 *                            changed
 *              DELAYQ_ERR_ARG  an item without a lease, or a broadcast's
 *              any server failure; DELAYQ_ERR_UNKNOWN also if a reply was lost
 *              and the item is no longer there
 *
 * A lease that has ended may still be acked until somebody moves or takes the
 * item. The same holds for nack, extend and bury.
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
 * Returns the status of the take, as delayq_take. `acked` is DELAYQ_OK,
 * DELAYQ_GONE, the failure that kept the ack from being sent, or
 * DELAYQ_ERR_UNKNOWN if its reply was lost. If the ack isn't settled, the item
 * keeps its ticket (and loses its payload): call again. After DELAYQ_EMPTY and
 * DELAYQ_WOKEN the ack is settled.
 */
DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms);

/*
 * delayq_nack -- not done: deliver a leased item again.
 *
 *   delay_ms   >= 0: after so many ms; DELAYQ_BACKOFF: after backoff_ms,
 * doubled for each further attempt, up to backoff_max_ms, half of it random;
 * DELAYQ_RELEASE: at once, without counting this attempt (for an item that was
 * taken and not begun)
 *
 * Otherwise as delayq_ack. Called again for the same item, the last one counts,
 * until it is delivered.
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

/* delayq_cancel -- take back an offer that has not been moved or taken yet.
 * Returns DELAYQ_OK if it will never be delivered, DELAYQ_GONE if it was moved,
 * taken or cancelled before, DELAYQ_ERR_ARG for no ticket, or any server
 * failure, as delayq_ack. O(n) with a mirror. */
DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket);

/* delayq_reschedule -- let a pending item be due in delay_ms >= 0 from now.
 * Puts the new ticket in place of the old one. `replace` no longer finds an
 * item that was rescheduled: if it has a key, offer it again with replace.
 * Otherwise as delayq_cancel; O(log n) even with a mirror. */
DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms);

/*
 * delayq_peek -- look at the pending items, leased ones among them, in the
 * order of their due times, without touching them.
 *
 *   items, max   room for max items
 *   count        out; may be fewer than there are: a script stops after 256
 * KiB. For the next page, hand in the last item's ticket. If others have
 * written elements that can't be decoded, or scores that are no due times, the
 * ticket is a place in the set, good for this alone: items that are moved
 * between two pages may shift it after        NULL or "": from the start; else
 * the items behind this one, whether it is still there or not
 *
 * Returns      DELAYQ_OK, DELAYQ_EMPTY (none), or any server failure
 * Redis        1 script, O(log n) + O(max)
 */
DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count, const delayq_ticket *after);

/* delayq_count -- count the items of the queue, and what this handle has done.
 * The handle's own counters are set even after a failure. The server reads the
 * earliest item, its payload included. */
DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts);

/* delayq_count_due -- for a histogram: counts[i] = the number of pending items
 * that are due at due_ms[i] (ms since 1970) or before. n: 1 to 1,000, else
 * DELAYQ_ERR_ARG. O(n log n_pending). */
DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts);

/* delayq_clear -- remove all pending, leased and ready items (of a broadcast
 * also the stream); not the dead letters, nor keys. `removed`: their number,
 * may be NULL. O(1) for the server's main thread. */
DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed);

/* delayq_dead_peek -- look at up to max dead letters, the oldest first,
 * beginning with number `from` (0 is the oldest). Returns DELAYQ_OK,
 * DELAYQ_EMPTY or any server failure. O(from + max), at most 256 KiB. */
DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from);

/* delayq_dead_redrive -- make up to max dead letters ready, the oldest first,
 * as if they had never been handed out. One that can't be decoded stays a dead
 * letter, behind the others. `count`: the number made ready, may be NULL. At
 * most 256 KiB in a call. */
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
 *              any server failure; transient ones don't end it, as in a take
 * Blocks       for timeout_ms, and a round trip per queue
 * Redis        the transfers of all of them
 *
 * For programs that take: while any of the queues has a ready item it returns
 * at once, so take that item first. If that take fails, it waits 0.1 s.
 */
DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms);

/* delayq_wake -- end the take or wait on q at once, or the next one. May be
 * called from another thread or a signal handler while the handle is open. */
DELAYQ_API void delayq_wake(delayq *q);

/*
 * delayq_flush -- wait until everything in the outbox is settled.
 *
 * Returns      DELAYQ_OK           it is empty, and nothing was dropped since
 *                                  the last flush
 *              DELAYQ_WOKEN        delayq_wake was called
 *              DELAYQ_ERR_TIMEOUT  not yet, and nothing has failed
 *              DELAYQ_ERR_ARG      no outbox, or the handle isn't open
 *              the first failure since the last flush, of an op that is still
 *                                  there, or was dropped
 * Blocks       for timeout_ms, as in delayq_take
 */
DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms);

/* delayq_outbox -- count the ops that were accepted and settled. Sends nothing.
 * Returns DELAYQ_OK, or DELAYQ_ERR_ARG if there is no outbox. */
DELAYQ_API delayq_status delayq_outbox(const delayq *q,
                                       delayq_outbox_state *state);

/*
 * delayq_fds -- the descriptors to poll() for reading until the next tick.
 *
 *   fds, max    room for max descriptors; 3 are enough
 *
 * Returns how many were stored. Ask before each poll(): they change at a
 * reconnect. If one is readable call delayq_tick, or take with timeout 0. On
 * Windows they are SOCKETs, whose handles fit into an int, for select or
 * WSAPoll; a wait of the handle ends the effect of WSAEventSelect on them.
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
 * Four sentences describe its shape: a call makes an op; a lane moves ops; one
 * function decides about retries; one function sleeps. Each section uses only
 * those above it. From the ground up:
 *
 *     System, Numbers, Elements, Errors, URL, TLS    send no requests
 *     Scripts, Protocol      the content of requests and replies
 *     Schedule, Waiters      when a handle polls, and which of many does
 *     Connections            sockets, and the exchanges in flight on them
 *     Ops, Lanes             what calls request, and its way to the server
 *     Subscriber             messages from the server
 *     Waiting                the one step, and the one sleep
 *     Taking, Verbs          the meaning of requests and replies
 *
 * The way of one request, an ack:
 *
 *     delayq_ack_many    checks the arguments; makes a lane over the items
 *     dq_do              without an outbox, dq_wait_run attaches the lane to
 *                        the handle, steps and sleeps until it is settled;
 *                        with one, dq_outbox_accept_all copies the ops into a
 *                        ring, which has a lane of its own
 *     dq_step            reads the sockets (dq_conn_pump) and steps all lanes
 *     dq_lane_step       moves a lane:
 *       dq_lane_socket     connects, logs in, probes, a step at a time
 *                          (dq_conn_ensure)
 *       dq_lane_plan       takes the first ops that can share a request
 *       dq_lane_write      writes it: verb->writer, dq_conn_submit
 *       dq_lane_read       gives the reply a status: verb->reader, which
 *                          the ops (dq_op_settle)
 *       dq_decide          done, send it again, keep the ops, drop or fail them
 *     dq_sleep           sleeps until dq_sched_next, or input
 *
 * A take goes the same way, from dq_fetch_send on, on the lane of q->fetch.
 * dq_read_fetch keeps its reply until dq_fetch_hand_out has handed out the
 * items.
 *
 * The owners of state:
 *
 *     conn->cmd, sub, ask, at, redirect, host, err, known, clock_...
 *                        Connections
 *     conn->tracking, sub_...   Subscriber; cleared by dq_conn_close
 *     q->setup           Connections while it is a probe, else Subscriber
 *     q->next_poll_us, pause_us, poll_sent, ready    Schedule; Waiters, if it
 *                        isn't the handle that acts
 *     q->subscribed, list_tracked, waiter, will_wait    Waiters
 *     q->lanes           Lanes; q->fetch Taking; q->outbox Ops and Verbs
 *     q->woken           Waiting; set by any thread, the only such field
 *
 * Where to look for:
 *
 *     MOVED, ASK         dq_conn_read_probe (connecting) and dq_lane_learn read
 *                        them; dq_conn_choose goes to the new node, and
 *                        dq_lane_socket to the one that ASK has named
 *     a resend after a lost reply    dq_decide
 *     the next poll      dq_sched_on_..., dq_waiters_on_...: an event each;
 *                        dq_sched_next says what a handle waits for
 *     an undecodable element    in a tick or take the scripts' split() returns
 *                        nil, and it goes to the dead letters. In C
 *                        dq_elem_parse returns -1; a peek shows all its bytes
 *     an argument of a script    its writer (dq_write_...), and the list above
 *                        the script; then `make lua`
 *     a new option       delayq_options; its range and default dq_check_options
 *     a new error of the server    dq_err_table
 *     a new verb         its script, writer, reader and constant, in Verbs
 *===========================================================================*/

#if defined(DELAYQ_IMPLEMENTATION) && !defined(DELAYQ_IMPLEMENTED)
#define DELAYQ_IMPLEMENTED

/*-----------------------------------------------------------------------------
 * MARK: - System
 * >>system   clock, random bytes, sockets, the wake-up pipe, SIGPIPE
 *
 * Owns everything that differs between operating systems; no other section
 * tests for one. It begins with the functions that each system supplies, first
 * declared, then defined for Windows, for POSIX, or by a port. The rest is made
 * of these functions.
 *---------------------------------------------------------------------------*/

#if defined(_WINSOCKAPI_) && !defined(_WINSOCK2API_)
#error "<windows.h> came first and brought an old winsock: compile \
DELAYQ_IMPLEMENTATION in a file of its own, with nothing before it"
#endif

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#if defined(_WIN32) && !defined(DELAYQ_PORT)
#define DQ_WINDOWS 1
#include <winsock2.h>

#include <bcrypt.h>
#include <ws2tcpip.h>
#elif !defined(DELAYQ_PORT)
#define DQ_POSIX 1
#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#ifndef CLOCK_MONOTONIC
#error "a system header came first and hides POSIX: compile \
DELAYQ_IMPLEMENTATION in a file of its own, with nothing before it"
#endif
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

/* Marks a function that has buffers. If the compiler merged it into its caller,
 * the buffers would stay on the stack during the caller's other calls. */
#if defined(__GNUC__)
#define DQ_APART __attribute__((noinline))
#else
#define DQ_APART
#endif

#define DQ_OPEN 0x64713031u
#define DQ_NEVER INT64_MAX
#define DQ_SECOND_US 1000000

/* --- what each system supplies --- */

/* A port to another system is a file that DELAYQ_PORT names, for example
 * examples/device/lwip.h. It defines the functions below. It also supplies, as
 * POSIX does,
 *
 *     struct pollfd, POLLIN, POLLOUT; socklen_t, struct sockaddr, sockaddr_in,
 *     sockaddr_in6; socket, bind, connect, getsockname, getpeername,
 *     getsockopt, setsockopt, send, recv; inet_pton, htons, htonl
 *
 * and two macros: DQ_SPIN_US, by how many microseconds a sleeper usually wakes
 * late at most; and DQ_REFUSED, the SO_ERROR of a connect that was refused,
 * unless that is ECONNREFUSED. */
struct pollfd;

/* Returns the local clock in microseconds. It never steps. Only differences
 * between two readings are used. */
static int64_t dq_sys_now(void);

/* Fill `bytes` with random bytes, of which ids are made: no other program may
 * get the same ones. Returns 0 if there are none, and delayq_open fails. */
static int dq_sys_random(unsigned char *bytes, size_t len);

/* Returns the meaning of an errno. It may be written to `room`. */
static const char *dq_sys_strerror(int code, char room[40]);

/* Make a new socket non-blocking, close it on exec, and keep it from raising
 * SIGPIPE, as far as the system can do that. */
static void dq_sys_set_modes(int fd);

/* Close a socket that no redisContext owns. */
static void dq_sys_close(int fd);

/* Wait for at most `ms` milliseconds until one of up to 60 descriptors is ready
 * for its POLLIN or POLLOUT; with none, sleep. A failed connect is ready for
 * POLLOUT. Returns the number of those that are ready; below 0 if the wait was
 * interrupted. */
static int dq_sys_poll(struct pollfd *fds, size_t count, int ms);

/* Sleep until one of the descriptors is ready or the local clock reaches
 * until_us. Returns 1 if a descriptor is ready or the sleep was interrupted, 0
 * if the time is over. It should return at most DQ_SPIN_US late. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us);

/* Write one address of `host` to `address`, as text. `number` selects it: it
 * counts through the IPv4 addresses, then through those of IPv6, and then
 * begins again with the first. May wait for a name server. Returns 0 if the
 * name has no address. */
static int dq_sys_resolve(const char *host, unsigned number, char address[64]);

#ifdef DELAYQ_PORT
#include DELAYQ_PORT
#endif

#ifdef DQ_WINDOWS

/* --- Windows 10 and later; link with ws2_32 and bcrypt --- */

#ifdef _MSC_VER
#pragma comment(lib, "ws2_32")
#pragma comment(lib, "bcrypt")
#pragma warning(disable : 4996) /* strerror */
#endif
#define DQ_HIGH_RESOLUTION 2 /* CREATE_WAITABLE_TIMER_..., in new headers */
#define DQ_SPIN_US 600       /* such a timer ticks every 500 us */

static int64_t dq_sys_now(void) {
    LARGE_INTEGER ticks, second;
    QueryPerformanceFrequency(&second);
    QueryPerformanceCounter(&ticks);
    return ticks.QuadPart / second.QuadPart * DQ_SECOND_US +
           ticks.QuadPart % second.QuadPart * DQ_SECOND_US / second.QuadPart;
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    return BCryptGenRandom(NULL, bytes, (ULONG)len,
                           BCRYPT_USE_SYSTEM_PREFERRED_RNG) == 0;
}

/* This section leaves Winsock's codes in errno, hiredis leaves C's, and older
 * C libraries have no text for some of either. (FormatMessage knows Winsock's
 * codes only, and its sentences are translated and too long.) */
static const char *dq_sys_strerror(int code, char room[40]) {
    static const struct {
        int winsock, c;
        const char *text;
    } errors[] = {
        {WSAECONNREFUSED, ECONNREFUSED, "Connection refused"},
        {WSAECONNRESET, ECONNRESET, "Connection reset by peer"},
        {WSAECONNABORTED, ECONNABORTED, "Connection aborted"},
        {WSAETIMEDOUT, ETIMEDOUT, "Connection timed out"},
        {WSAEHOSTUNREACH, EHOSTUNREACH, "No route to host"},
        {WSAENETUNREACH, ENETUNREACH, "Network is unreachable"},
        {WSAENETDOWN, ENETDOWN, "Network is down"},
        {WSAEADDRINUSE, EADDRINUSE, "Address already in use"},
        {WSAEADDRNOTAVAIL, EADDRNOTAVAIL, "Address not available"},
        {WSAEAFNOSUPPORT, EAFNOSUPPORT, "Address family not supported"},
        {WSAEACCES, EACCES, "Permission denied"},
        {WSAENOBUFS, ENOBUFS, "No buffer space"}};
    size_t i;
    for (i = 0; i < sizeof errors / sizeof errors[0]; i++)
        if (code == errors[i].winsock || code == errors[i].c)
            return errors[i].text;
    if (code < 10000) return strerror(code);
    snprintf(room, 40, "Windows Sockets error %d", code);
    return room;
}

static void dq_sys_set_modes(int fd) {
    u_long on = 1;
    ioctlsocket((SOCKET)fd, (long)FIONBIO, &on);
    SetHandleInformation((HANDLE)(SOCKET)fd, HANDLE_FLAG_INHERIT, 0);
}

static void dq_sys_close(int fd) {
    closesocket((SOCKET)fd);
}

/* Call select, as WSAPoll does not see a failed connect before Windows 10
 * version 2004. */
static int dq_sys_poll(struct pollfd *fds, size_t count, int ms) {
    fd_set in, out, failed;
    struct timeval t;
    size_t i;
    assert(count <= FD_SETSIZE);
    if (count == 0) { /* which select refuses */
        Sleep((DWORD)ms);
        return 0;
    }
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&failed);
    for (i = 0; i < count; i++) {
        if (fds[i].events & POLLIN) FD_SET(fds[i].fd, &in);
        if (fds[i].events & POLLOUT) FD_SET(fds[i].fd, &out);
        FD_SET(fds[i].fd, &failed);
    }
    t.tv_sec = ms / 1000;
    t.tv_usec = ms % 1000 * 1000;
    return select(0, &in, &out, &failed, &t);
}

/* Wait for an event of the sockets or for a timer. The timeouts of select,
 * WSAPoll and Sleep end with a tick of the system, which may take 15.6 ms; the
 * timer ticks faster since Windows 10 version 1803. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us) {
    HANDLE event = CreateEventW(NULL, TRUE, FALSE, NULL);
    HANDLE timer = CreateWaitableTimerExW(NULL, NULL, DQ_HIGH_RESOLUTION,
                                          TIMER_ALL_ACCESS);
    LARGE_INTEGER due; /* below 0: from now on, in units of 100 ns */
    size_t i;
    int ready;
    if (!timer) timer = CreateWaitableTimerExW(NULL, NULL, 0, TIMER_ALL_ACCESS);
    for (i = 0; i < count; i++) {
        long events = FD_CLOSE;
        WSANETWORKEVENTS old;
        if (fds[i].events & POLLIN) events |= FD_READ;
        if (fds[i].events & POLLOUT) events |= FD_CONNECT | FD_WRITE;
        WSAEventSelect(fds[i].fd, event, events);
        WSAEnumNetworkEvents(fds[i].fd, NULL, &old);
    }
    ResetEvent(event); /* dq_sys_poll reports the earlier events */
    ready = dq_sys_poll(fds, count, 0);
    due.QuadPart = (dq_sys_now() - until_us) * 10;
    if (ready == 0 && due.QuadPart < 0) {
        HANDLE both[2] = {event, timer};
        if (due.QuadPart < -3600 * 10LL * DQ_SECOND_US)
            due.QuadPart = -3600 * 10LL * DQ_SECOND_US;
        SetWaitableTimer(timer, &due, 0, NULL, NULL, FALSE);
        ready = WaitForMultipleObjects(2, both, FALSE, INFINITE) !=
                WAIT_OBJECT_0 + 1;
    }
    for (i = 0; i < count; i++) WSAEventSelect(fds[i].fd, NULL, 0);
    CloseHandle(event);
    CloseHandle(timer);
    return ready != 0;
}

#endif
#ifdef DQ_POSIX

/* --- POSIX --- */

#define DQ_SPIN_US 50 /* Linux' timer slack */

static int64_t dq_sys_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * DQ_SECOND_US + t.tv_nsec / 1000;
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    int fd = open("/dev/urandom", O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, bytes, len);
    if (fd >= 0) close(fd);
    return got == (ssize_t)len;
}

static const char *dq_sys_strerror(int code, char room[40]) {
    (void)room;
    return strerror(code);
}

static void dq_sys_set_modes(int fd) {
    int flags = fcntl(fd, F_GETFL);
    if (flags >= 0) fcntl(fd, F_SETFL, flags | O_NONBLOCK);
    fcntl(fd, F_SETFD, FD_CLOEXEC);
#ifdef SO_NOSIGPIPE
    flags = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &flags, sizeof flags);
#endif
}

static void dq_sys_close(int fd) {
    close(fd);
}

static int dq_sys_poll(struct pollfd *fds, size_t count, int ms) {
    return poll(fds, (nfds_t)count, ms);
}

/* poll counts whole milliseconds. The rest, less than one, is slept without
 * watching the descriptors. Linux may end a poll late by a thousandth of its
 * timeout, so the timeout is shorter by that. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us) {
    int64_t left_us = until_us - dq_sys_now(), ms;
    struct timespec rest;
    do {
        ms = (left_us - left_us / 1000) / 1000;
        ms = ms > 3600000 ? 3600000 : ms > 0 ? ms : 0;
        if (poll(fds, (nfds_t)count, (int)ms) != 0) return 1;
        left_us = until_us - dq_sys_now();
    } while (left_us > 1000);
    rest.tv_sec = 0;
    rest.tv_nsec = (long)left_us * 1000;
    return left_us > 0 && nanosleep(&rest, NULL) != 0;
}

#endif

#ifndef DELAYQ_PORT

static int dq_sys_resolve(const char *host, unsigned number, char address[64]) {
    struct addrinfo hints, *all = NULL, *a;
    unsigned n[2] = {0, 0}; /* addresses of IPv4, of IPv6 */
    int found = 0, v6;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, NULL, &hints, &all) != 0) return 0;
    for (a = all; a; a = a->ai_next) n[a->ai_family == AF_INET6]++;
    assert(all);
    number %= n[0] + n[1];
    v6 = number >= n[0];
    if (v6) number -= n[0];
    for (a = all; a && !found; a = a->ai_next)
        if ((a->ai_family == AF_INET6) == v6 && number-- == 0)
            found = getnameinfo(a->ai_addr, (socklen_t)a->ai_addrlen, address,
                                64, NULL, 0, NI_NUMERICHOST) == 0;
    freeaddrinfo(all);
    return found;
}

#endif

/* --- types and macros made of that --- */

/* The type of sockets, the last error of a socket function, and two errors. */
#ifdef DQ_WINDOWS
typedef SOCKET dq_sys_socket;
#define DQ_ERRNO WSAGetLastError()
#define DQ_CONNECTING WSAEWOULDBLOCK
#define DQ_REFUSED WSAECONNREFUSED
#else
typedef int dq_sys_socket;
#define DQ_ERRNO errno
#define DQ_CONNECTING EINPROGRESS
#endif
#ifndef DQ_REFUSED
#define DQ_REFUSED ECONNREFUSED
#endif

typedef union dq_sys_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
#ifdef DQ_POSIX
    struct sockaddr_un path;
#endif
} dq_sys_address;

/* Read and write an int that another thread, or a signal handler, writes. */
#if defined(__GNUC__)
#define DQ_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define DQ_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#elif defined(_MSC_VER)
#define DQ_LOAD(p) InterlockedOr((volatile LONG *)(p), 0)
#define DQ_STORE(p, v) InterlockedExchange((volatile LONG *)(p), v)
#else
#define DQ_LOAD(p) (*(p))
#define DQ_STORE(p, v) (*(p) = (v))
#endif

/* --- fork, unix sockets and pipes, or their substitutes --- */

/* dq_sys_pid returns a number that differs between a process and its fork;
 * dq_sys_refuse_path returns why a unix socket can't have that path, or NULL.
 *
 * dq_sys_open_pipe opens the wake-up pipe: delayq_wake, perhaps in a signal
 * handler, writes to fds[1], and a sleeper polls fds[0]. Neither end blocks. It
 * returns 0, with errno, if it fails. A handle calls no other function of this
 * section before it, and none after dq_sys_close_pipe. */
static void dq_sys_close_pipe(const int fds[2]) {
    dq_sys_close(fds[0]);
    if (fds[1] != fds[0]) dq_sys_close(fds[1]);
#ifdef DQ_WINDOWS
    WSACleanup();
#endif
}

#ifdef DQ_POSIX

static int64_t dq_sys_pid(void) {
    return (int64_t)getpid();
}

static const char *dq_sys_refuse_path(const char *path) {
    const struct sockaddr_un *to = NULL;
    return strlen(path) < sizeof to->sun_path ? NULL : "the path is too long";
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

static void dq_sys_write_pipe(int fd) {
    if (write(fd, "w", 1) < 0) {
    }
}

#else

static int64_t dq_sys_pid(void) {
    return 0;
}

static const char *dq_sys_refuse_path(const char *path) {
    (void)path;
    return "this system has no unix:// sockets";
}

/* Open a datagram socket on the loopback interface, and connect it to itself:
 * it receives nothing from any other socket. */
static int dq_sys_open_pipe(int fds[2]) {
    dq_sys_address own;
    socklen_t size = sizeof own.v4;
    dq_sys_socket s;
    int error;
#ifdef DQ_WINDOWS
    const char on = 1;
    WSADATA data;
    errno = WSAStartup(MAKEWORD(2, 2), &data);
    if (errno != 0) return 0;
#endif
    memset(&own, 0, sizeof own);
    own.v4.sin_family = AF_INET;
    own.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    s = socket(AF_INET, SOCK_DGRAM, 0);
    fds[0] = fds[1] = (int)s;
#ifdef DQ_WINDOWS
    setsockopt(s, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, &on, sizeof on);
#endif
    if (fds[0] >= 0 && bind(s, &own.any, size) == 0 &&
        getsockname(s, &own.any, &size) == 0 &&
        connect(s, &own.any, size) == 0) {
        dq_sys_set_modes(fds[0]);
        return 1;
    }
    error = DQ_ERRNO;
    dq_sys_close_pipe(fds);
    errno = error;
    return 0;
}

static void dq_sys_drain_pipe(int fd) {
    char datagram[1];
    while (recv((dq_sys_socket)fd, datagram, 1, 0) > 0) {
    }
}

static void dq_sys_write_pipe(int fd) {
    send((dq_sys_socket)fd, "w", 1, 0);
}

#endif

/* --- SIGPIPE --- */

/* Call dq_sys_block_sigpipe before, and dq_sys_unblock_sigpipe after, whatever
 * may write to a lost connection, so that the program gets no SIGPIPE from it.
 * `failed`: the write has failed, so it may have raised one. */
#if !defined(DQ_POSIX) || defined(SO_NOSIGPIPE)

/* There is no SIGPIPE, or dq_sys_set_modes has disabled it. */
typedef char dq_sys_signals;
#define dq_sys_block_sigpipe(signals) ((void)(signals))
#define dq_sys_unblock_sigpipe(signals, failed) ((void)(failed))

#else

/* hiredis and OpenSSL write without MSG_NOSIGNAL. So SIGPIPE is blocked in this
 * thread, and the signal that a write has raised is removed. A signal that was
 * pending before belongs to the program. (sigprocmask changes only the thread's
 * mask on Linux, OpenBSD and illumos, the systems without SO_NOSIGPIPE.
 * pthread_sigmask needs -lpthread before glibc 2.32.) */
typedef struct dq_sys_signals {
    sigset_t sigpipe, mask; /* SIGPIPE alone; the thread's mask before */
    int pending;            /* a SIGPIPE was pending before */
} dq_sys_signals;

static int dq_sys_is_sigpipe_pending(void) {
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, SIGPIPE) == 1;
}

static void dq_sys_block_sigpipe(dq_sys_signals *signals) {
    sigemptyset(&signals->sigpipe);
    sigaddset(&signals->sigpipe, SIGPIPE);
    sigprocmask(SIG_BLOCK, &signals->sigpipe, &signals->mask);
    signals->pending = sigismember(&signals->mask, SIGPIPE) == 1 &&
                       dq_sys_is_sigpipe_pending();
}

static void dq_sys_unblock_sigpipe(const dq_sys_signals *signals, int failed) {
    int saved = errno;
    if (failed && !signals->pending) {
#ifdef __OpenBSD__ /* no sigtimedwait; but no other thread takes the signal */
        int number;
        if (dq_sys_is_sigpipe_pending()) sigwait(&signals->sigpipe, &number);
#else
        struct timespec none = {0, 0};
        while (sigtimedwait(&signals->sigpipe, NULL, &none) < 0 &&
               errno == EINTR) {
        }
#endif
    }
    sigprocmask(SIG_SETMASK, &signals->mask, NULL);
    errno = saved;
}

#endif

/* --- hiredis' contexts --- */

/* Returns a context's socket. On Windows hiredis holds a SOCKET of 64 bits, of
 * which Windows uses 32, as of all handles. */
static int dq_sys_fd(const redisContext *c) {
    return (int)c->fd;
}

/* Write as much of the output buffer as the socket takes. *sent is 1 if that is
 * all of it. A context that has failed before writes nothing. */
static int dq_sys_write(redisContext *c, int *sent) {
    dq_sys_signals signals;
    int status;
    *sent = 0;
    if (c->err) return REDIS_ERR;
    dq_sys_block_sigpipe(&signals);
    status = redisBufferWrite(c, sent);
    if (c->err == REDIS_ERR_OOM) *sent = 1; /* written, then no new buffer */
    dq_sys_unblock_sigpipe(&signals, status != REDIS_OK);
    return status;
}

/* Read into the reader's buffer. Under TLS a read may write, too. */
static int dq_sys_read_tls(redisContext *c) {
    dq_sys_signals signals;
    int status;
    dq_sys_block_sigpipe(&signals);
    status = redisBufferRead(c);
    dq_sys_unblock_sigpipe(&signals, status != REDIS_OK);
    return status;
}

/* --- time --- */

/* Returns a random number below 65,536, for pauses. */
static unsigned dq_sys_random16(void) {
    unsigned char r[2] = {0, 0};
    dq_sys_random(r, 2);
    return (unsigned)r[0] << 8 | r[1];
}

/* Returns an entry for dq_sys_poll. `events`: POLLIN, POLLOUT, or both. */
static struct pollfd dq_sys_watch(int fd, int events) {
    struct pollfd p;
    assert(fd >= 0 && events != 0);
    p.fd = (dq_sys_socket)fd;
    p.events = (short)events;
    p.revents = 0;
    return p;
}

/* Sleep until a descriptor is ready or the local clock reaches until_us. The
 * last DQ_SPIN_US are spent awake, since a sleeper may wake that much late. */
static void dq_sys_poll_until(struct pollfd *fds, size_t count,
                              int64_t until_us) {
    assert(count <= 60);
    if (dq_sys_sleep(fds, count, until_us - DQ_SPIN_US)) return;
    while (dq_sys_now() < until_us) {
    }
}

/* --- addresses and connects --- */

/* Read an IP address, or with port 0 the path of a unix socket. Returns the
 * length of the address, or 0 if `text` is a host's name. */
static size_t dq_sys_parse_address(dq_sys_address *to, const char *text,
                                   int port) {
    memset(to, 0, sizeof *to);
#ifdef DQ_POSIX
    if (port == 0) {
        assert(!dq_sys_refuse_path(text)); /* dq_url_parse has checked it */
        to->path.sun_family = AF_UNIX;
        snprintf(to->path.sun_path, sizeof to->path.sun_path, "%s", text);
        return sizeof to->path;
    }
#endif
    assert(port > 0 && port <= 65535);
    to->v4.sin_port = htons((unsigned short)port);
    if (inet_pton(AF_INET, text, &to->v4.sin_addr) == 1) {
        to->v4.sin_family = AF_INET;
        return sizeof to->v4;
    }
    to->v6.sin6_port = htons((unsigned short)port);
    if (inet_pton(AF_INET6, text, &to->v6.sin6_addr) != 1) return 0;
    to->v6.sin6_family = AF_INET6;
    return sizeof to->v6;
}

/* Create a socket and begin to connect it. Returns -1, with errno, if that
 * fails at once. */
static int dq_sys_connect(const dq_sys_address *to, size_t size) {
    dq_sys_socket s = socket(to->any.sa_family, SOCK_STREAM, 0);
    int fd = (int)s, on = 1, error;
    errno = DQ_ERRNO;
    if (fd < 0) return -1;
    dq_sys_set_modes(fd);
    /* A unix socket does not know this option, nor need it. */
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    if (connect(s, &to->any, (socklen_t)size) == 0) return fd;
    error = DQ_ERRNO;
    if (error == DQ_CONNECTING || error == EINTR) return fd;
    dq_sys_close(fd);
    errno = error;
    return -1;
}

/* Returns 1 if a socket is connected to itself. That may happen if nobody
 * listens on a port that the system also assigns to clients. */
static int dq_sys_is_self_connected(dq_sys_socket s) {
    dq_sys_address a, b;
    socklen_t n = sizeof a, m = sizeof b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    return getsockname(s, &a.any, &n) == 0 &&
           (a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6) &&
           getpeername(s, &b.any, &m) == 0 && n == m &&
           memcmp(&a, &b, sizeof a) == 0;
}

/* Returns 1 if a connect has succeeded, 0 if it is in progress, -1, with errno,
 * if it has failed. */
static int dq_sys_is_connected(int fd) {
    dq_sys_socket s = (dq_sys_socket)fd;
    struct pollfd p = dq_sys_watch(fd, POLLOUT);
    int error = 0;
    socklen_t size = sizeof error;
    if (dq_sys_poll(&p, 1, 0) <= 0) return 0;
    if (getsockopt(s, SOL_SOCKET, SO_ERROR, (char *)&error, &size) != 0)
        error = DQ_ERRNO;
    if (error == DQ_REFUSED || (error == 0 && dq_sys_is_self_connected(s)))
        error = ECONNREFUSED;
    errno = error;
    return error == 0 ? 1 : -1;
}

/* Read what a socket has received, without waiting. Returns its length; 0 or
 * less if there is nothing. */
static int dq_sys_receive(int fd, char *to, unsigned short size) {
    return (int)recv((dq_sys_socket)fd, to, size, 0);
}

/*-----------------------------------------------------------------------------
 * MARK: - Numbers
 * >>numbers   numbers as text, in hex, in a back-off
 *
 * Owns the limit of due times; keeps no state.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_DUE 9007199254740991 /* ms since the epoch: 2^53 - 1 */

/* Write a number's text, without a NUL. Returns its length, 20 at most. */
static size_t dq_num_decimal(char *to, int64_t value) {
    char digits[20]; /* and the sign, the last one first */
    size_t n = 0, i;
    uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do digits[n++] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    if (value < 0) digits[n++] = '-';
    assert(n <= sizeof digits);
    for (i = 0; i < n; i++) to[i] = digits[n - 1 - i];
    return n;
}

/* Returns the number with which a text begins, DQ_MAX_DUE at most. */
static int64_t dq_num_due(const char *p) {
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        value = value < DQ_MAX_DUE / 10 ? value * 10 + (*p - '0') : DQ_MAX_DUE;
    return value;
}

/* Returns the number of exactly `len` digits with which a text begins; -1 if
 * there are more or fewer digits, or if the number is above `max`. */
static int dq_num_small(const char *text, size_t len, int max) {
    int64_t value = dq_num_due(text);
    if (len == 0 || strspn(text, "0123456789") != len) return -1;
    return value <= max ? (int)value : -1;
}

/* Write bytes as hex digits and a NUL. Returns the end of the digits. */
static char *dq_num_hex(char *to, const unsigned char *bytes, size_t len) {
    static const char digits[] = "0123456789abcdef";
    for (; len > 0; len--, bytes++) {
        *to++ = digits[*bytes >> 4];
        *to++ = digits[*bytes & 15];
    }
    *to = '\0';
    return to;
}

/* Returns the value of a hex digit, or -1. */
static int dq_num_unhex(int c) {
    if (c >= '0' && c <= '9') return c - '0';
    if ((c | 32) >= 'a' && (c | 32) <= 'f') return (c | 32) - 'a' + 10;
    return -1;
}

/* Returns the pause before the next attempt, in the unit of `base` and `cap`:
 * `base`, doubled for each failure after the first, `cap` at most. Half of it
 * is random, so that the programs of a fleet don't retry in step. */
static int64_t dq_num_backoff(int64_t base, int64_t cap, unsigned failures) {
    int64_t d = base;
    assert(base > 0 && cap > 0 && cap <= DQ_MAX_DUE);
    while (failures-- > 1 && d < cap) d *= 2;
    if (d > cap) d = cap;
    return d / 2 + (int64_t)((double)(d / 2) * dq_sys_random16() / 65536);
}

/*-----------------------------------------------------------------------------
 * MARK: - Elements
 * >>elements   every byte of an element, an id, a ticket
 *
 * Owns the bytes of elements, ids and tickets. (Two other functions know an id:
 * dq_write_take writes the rest of the ids that a lease makes, and
 * dq_outbox_is_own reads the handle's bytes.)
 *
 *     native, Redisson >= 3.21.1   u8 k, id of k bytes, L, payload
 *     Redisson <= 3.21.0           id of 8 bytes (a double), L, payload
 *
 * k is 16 if delayq wrote the element, 8 if Redisson did. L is the payload's
 * length as the server's unsigned long: 8 bytes, or 4 on 32-bit servers and on
 * Windows. The exact length tells the formats apart: no element fits both
 * lengths of L, nor both values of k. However, an old id can begin with 16 or 8
 * and be followed by a plausible L. Such an element is decoded in the format of
 * the handle's wire. That is correct as long as all handles on the queue, and
 * Redisson, use the same wire.
 *
 * An id of 16 bytes consists of
 *
 *     8 bytes   the order: microseconds, big-endian
 *     5 bytes   random, the same in all ids of a handle
 *     1 byte    the number of releases in its lower 6 bits, flags (0) above
 *     2 bytes   the attempt, big-endian
 *
 * A release takes the attempt back. The number of releases then makes the id of
 * the next lease differ from the last one.
 *---------------------------------------------------------------------------*/

#define DQ_ELEM_HEADER_MAX 25
#define DQ_ELEM_PREFIX_MAX 17
#define DQ_ELEM_OLD 0 /* a kind; the other kinds are k: 16 and 8 */

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

/* Returns the length of the ids that this handle writes. */
static size_t dq_elem_id_len(const delayq *q) {
    return q->wire->id_len;
}

/* Write the bytes of an element that stand before its payload of `len` bytes.
 * Returns their number. */
static size_t dq_elem_write_header(const delayq *q, const unsigned char id[16],
                                   size_t len, unsigned char *to) {
    const delayq_conn *conn = q->conn;
    size_t n = 0, id_len = dq_elem_id_len(q);
    assert(conn->long_size == 8 || (conn->long_size == 4 && len >> 31 == 0));
    if (id_len == 16) to[n++] = 16;
    memcpy(to + n, id, id_len);
    n += id_len;
    dq_elem_put_uint(to + n, conn->long_size, conn->long_big, len);
    return n + conn->long_size;
}

/* Returns the kind of an element of n bytes, and where its payload begins; -1
 * if it can't be decoded, and *start is 0. With old_first, an element that fits
 * both formats is an old one. */
static int dq_elem_parse(const unsigned char *e, size_t n, int big,
                         int old_first, size_t *start) {
    int k = n > 0 && (e[0] == 16 || e[0] == 8) ? e[0] : DQ_ELEM_OLD, i;
    for (i = 0; i < 4; i++) { /* two formats, each with two lengths of L */
        int kind = (i < 2) == (old_first != 0) ? DQ_ELEM_OLD : k;
        size_t at = kind == DQ_ELEM_OLD ? 8 : 1 + (size_t)kind;
        int size = i % 2 == 0 ? 8 : 4;
        *start = at + (size_t)size;
        if (n >= *start && dq_elem_get_uint(e + at, size, big) == n - *start)
            return kind;
    }
    *start = 0;
    return -1;
}

/* Parse an element that this handle has met. */
static int dq_elem_parse_of(const delayq *q, const unsigned char *e, size_t n,
                            size_t *start) {
    return dq_elem_parse(e, n, q->conn->long_big, q->wire->old_first, start);
}

/* Returns the attempt that an element, or a ticket's prefix of it, contains; 0
 * if its id has less than 16 bytes. */
static int dq_elem_attempt(const unsigned char *e, int kind) {
    return kind == 16 ? e[15] << 8 | e[16] : 0;
}

/* Returns the lower 11 bits of the handle's old ids: random ones and a 1, so
 * that the id, read as a double, is no infinity and no NaN. */
static int dq_elem_old_id_low(const delayq *q) {
    return (q->handle_id[5] & 7) << 8 | 0x20 | (q->handle_id[6] & 0x1f);
}

/* Reserve `count` orders, and return the first: what the server's clock will
 * show when a request that is sent now arrives, if that takes no longer than
 * the fastest one did. So the order is above that of each offer that has
 * returned, and below that of each offer that begins after this one returns. */
static uint64_t dq_elem_next_order(delayq *q, size_t count) {
    const delayq_conn *conn = q->conn;
    uint64_t order =
        (uint64_t)(dq_sys_now() + conn->clock_offset_us + conn->clock_error_us);
    assert(count > 0);
    if (order <= q->last_order) order = q->last_order + 1;
    q->last_order = order + count - 1;
    return order;
}

/* Make the id of the next offer. As bytes, too, the ids of a handle rise
 * strictly: Redis sorts the elements of one millisecond by their bytes. */
static void dq_elem_next_id(delayq *q, unsigned char id[16]) {
    uint64_t order = dq_elem_next_order(q, 1);
    if (q->wire->old_first)
        order = order << 11 | (uint64_t)dq_elem_old_id_low(q);
    dq_elem_put_uint(id, 8, 1, order);
    memcpy(id + 8, q->handle_id, 5);
    memset(id + 13, 0, 3);
}

/* Write a ticket of a due time and an id. */
static void dq_elem_id_ticket(delayq_ticket *t, int64_t due_ms,
                              const unsigned char *id, size_t id_len) {
    size_t n = dq_num_decimal(t->text, due_ms);
    assert(n + 1 + 2 * id_len < sizeof t->text);
    t->text[n++] = '-';
    dq_num_hex(t->text + n, id, id_len);
}

/* Write an element's ticket. In that of Redisson's ids of 8 bytes, k is a part
 * of the id, which would look like an old one otherwise. */
static void dq_elem_ticket(delayq_ticket *t, int64_t due_ms,
                           const unsigned char *e, int kind) {
    size_t id_len = kind == 16 ? 16 : kind == 8 ? 9 : 8;
    dq_elem_id_ticket(t, due_ms, e + (kind == 16), id_len);
}

/* Write a ticket by which a peek can only continue: that of an element that
 * can't be decoded, or whose score is no due time. It contains the rank. */
static void dq_elem_rank_ticket(delayq_ticket *t, int64_t due_ms,
                                uint64_t rank) {
    unsigned char id[9] = {0xff}; /* no other id of 9 bytes begins with it */
    dq_elem_put_uint(id + 1, 8, 1, rank);
    dq_elem_id_ticket(t, due_ms, id, sizeof id);
}

/* Write the first bytes of a ticket's element to `key`. Returns their number,
 * or 0 if `text` is no ticket. *due_len: the length of the due time's text. */
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
    assert(n <= DQ_ELEM_PREFIX_MAX);
    return n;
}

/* Replace the due time of a ticket. */
static void dq_elem_set_ticket_due(delayq_ticket *t, int64_t due_ms) {
    char id[sizeof t->text];
    snprintf(id, sizeof id, "%s", strchr(t->text, '-'));
    memcpy(t->text + dq_num_decimal(t->text, due_ms), id, strlen(id) + 1);
}

/* Returns 1 if a ticket's text, which may lack its NUL, is well-formed. */
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
 * Owns the error texts of handles and connections, and the table that gives
 * each error of a server its status. A connection's text is the cause alone;
 * a handle's text also says what follows from it.
 *---------------------------------------------------------------------------*/

/* Statuses inside only: nothing has happened, and the request has to be sent in
 * another way. dq_err_public makes DELAYQ_ERR_AGAIN of them before a caller
 * sees them. (A C++ delayq_status holds no number above 15.) */
#define DQ_NOSCRIPT ((delayq_status)12) /* the script has to be loaded */
#define DQ_MOVED ((delayq_status)13)    /* another node has the slot */
#define DQ_ASK ((delayq_status)14)      /* it has these keys already */
#define DQ_TRYAGAIN ((delayq_status)15) /* each has some of the keys */

static delayq_status dq_err_public(delayq_status status) {
    return status < DQ_NOSCRIPT ? status : DELAYQ_ERR_AGAIN;
}

/* Write the error text of a handle or a connection: one line, whatever a server
 * has sent. Returns the status. */
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
    int leave;        /* another server may be able to */
    const char *hint; /* or NULL */
} dq_err_entry;

#define DQ_HINT_SLOT                                                         \
    "; on a cluster a name has no }, or one whole {tag}, which is the same " \
    "for all on a shared connection"
#define DQ_HINT_TYPE "; a key of this queue is used for something else"
#define DQ_HINT_USER "; users need Redis 6, before there is only a password"

static const dq_err_entry dq_err_table[] = {
    {"NOSCRIPT", DQ_NOSCRIPT, 0, NULL},
    {"MOVED ", DQ_MOVED, 0, NULL},
    {"ASK ", DQ_ASK, 0, NULL},
    {"TRYAGAIN", DQ_TRYAGAIN, 0, NULL},
    {"CROSSSLOT", DELAYQ_ERR_ARG, 0, DQ_HINT_SLOT},
    {"WRONGTYPE", DELAYQ_ERR_TYPE, 0, DQ_HINT_TYPE},
    {"OOM", DELAYQ_ERR_FULL, 0, NULL},
    {"READONLY", DELAYQ_ERR_READONLY, 1, NULL},
    {"MISCONF", DELAYQ_ERR_READONLY, 0, NULL},
    {"NOREPLICAS", DELAYQ_ERR_READONLY, 0, NULL},
    {"LOADING", DELAYQ_ERR_AGAIN, 0, NULL},
    {"MASTERDOWN", DELAYQ_ERR_AGAIN, 1, NULL},
    {"CLUSTERDOWN", DELAYQ_ERR_AGAIN, 1, NULL},
    {"UNBLOCKED", DELAYQ_ERR_AGAIN, 0, NULL},
    {"BUSY", DELAYQ_ERR_AGAIN, 0, NULL},
    {"ERR max number of clients", DELAYQ_ERR_AGAIN, 0, NULL},
    {"NOAUTH", DELAYQ_ERR_AUTH, 0, NULL},
    {"WRONGPASS", DELAYQ_ERR_AUTH, 0, NULL},
    {"NOPERM", DELAYQ_ERR_AUTH, 0, NULL},
    {"DENIED", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR invalid password", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR Client sent AUTH", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR AUTH", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR wrong number of arguments for 'auth'", DELAYQ_ERR_AUTH, 0,
     DQ_HINT_USER},
    {"ERR Protocol error: unauthenticated", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR The user executing the script can't", DELAYQ_ERR_AUTH, 0, NULL},
    {"ERR ACL failure in script", DELAYQ_ERR_AUTH, 0, NULL},
    {"ACL failure in script", DELAYQ_ERR_AUTH, 0, NULL},
    {"The user executing the script can't", DELAYQ_ERR_AUTH, 0, NULL},
    {"", DELAYQ_ERR_REDIS, 0, NULL},
};

/* Returns the cause in the text of an error reply. Up to Redis 6 the error that
 * a script has met stands behind
 * "ERR Error running script (call to ...): @user_script:7: @user_script: 7: -".
 */
static const char *dq_err_cause(const char *text) {
    static const char place[] = "@user_script:";
    const char *at;
    while ((at = strstr(text, place)) != NULL) {
        at = strstr(at + sizeof place - 1, ": ");
        if (!at) break; /* Redis 7 tells the place last */
        text = at + 2;
    }
    return *text == '-' ? text + 1 : text;
}

static const dq_err_entry *dq_err_lookup(const char *text) {
    const dq_err_entry *e = dq_err_table;
    text = dq_err_cause(text);
    while (strncmp(text, e->code, strlen(e->code)) != 0) e++;
    return e;
}

/* Turn an error reply into a status and a text. Cut off the command's
 * arguments, which Redis repeats and which may hold a password, and the
 * script's SHA1, which takes the room of the advice. */
static delayq_status dq_err_reply(char *err, const char *what,
                                  const redisReply *r) {
    const char *text = dq_err_cause(r->str);
    const char *cut = strstr(text, " script: ");
    const dq_err_entry *e = dq_err_lookup(text);
    int len;
    if (!cut || strspn(cut + 9, "0123456789abcdef") != 40)
        cut = strstr(text, ", with args");
    len = (int)(cut ? (size_t)(cut - text) : strlen(text));
    while (len > 0 && text[len - 1] == ' ') len--; /* of Redis 5 */
    return dq_err_set(err, e->status, "%s: the server says: %.*s%s", what,
                      len > 120 ? 120 : len, text, e->hint ? e->hint : "");
}

#define DQ_BAD_REPLY "%s: the reply is not what delayq's script returns"

static delayq_status dq_err_bad_reply(delayq *q, const char *what) {
    return dq_err_set(q->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, what);
}

/* Set the text of a request whose connection was lost, or whose time is over:
 * the cause, and what follows from `status` for its effect. The only place that
 * says so. */
static delayq_status dq_err_lost(delayq *q, delayq_status status,
                                 const char *cause) {
    return dq_err_set(q->err, status, "%.160s; %s", cause,
                      status == DELAYQ_ERR_UNKNOWN
                          ? "the request was sent, so it may have happened"
                          : "nothing has happened");
}

/* A call fails with `status`, whose text is in q->err, after one of its
 * requests was lost that may have run. Returns the status of the call. */
static delayq_status dq_err_after_loss(delayq *q, const char *what,
                                       delayq_status status) {
    char then[160];
    if (status >= DELAYQ_OK || status == DELAYQ_ERR_PROTOCOL ||
        status == DELAYQ_ERR_UNKNOWN)
        return status;
    snprintf(then, sizeof then, "%.159s", q->err);
    return dq_err_set(
        q->err, DELAYQ_ERR_UNKNOWN,
        "%s: sent, but no reply came: it may have happened; then: "
        "%s",
        what, then);
}

/* Elements beside which a handle must not write. */
enum { DQ_FOREIGN_OLD = 1, DQ_FOREIGN_NEW = 2 };

/* Set the text that explains which elements q has met. */
static delayq_status dq_err_wire(delayq *q) {
    if (q->foreign == DQ_FOREIGN_OLD)
        return dq_err_set(q->err, DELAYQ_ERR_WIRE,
                          "queue %.64s holds elements of Redisson <= 3.21.0, "
                          "which can't read this handle's elements: open it "
                          "with wire = DELAYQ_REDISSON_OLD",
                          q->name);
    return dq_err_set(q->err, DELAYQ_ERR_WIRE,
                      "queue %.64s holds elements of Redisson >= 3.21.1: open "
                      "it with wire = DELAYQ_REDISSON%s",
                      q->name,
                      q->wire->old_first
                          ? "; only ticks of this handle go on, which move "
                            "elements of every format"
                          : "");
}

/* Report a transient fault to the program. */
static void dq_err_log(const delayq *q, delayq_status status,
                       const char *text) {
    if (q->options.log) q->options.log(q->options.user, status, text);
}

/* Returns 1 if a retry may succeed without anybody's help. */
static int dq_err_is_transient(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}
/*-----------------------------------------------------------------------------
 * MARK: - URL
 * >>url   the URL of options.url
 *
 * Owns the grammar of URLs. An error text is a constant: it repeats no part of
 * the URL, which may contain a password.
 *---------------------------------------------------------------------------*/

#define DQ_HOSTS_MAX 64

typedef struct dq_url {
    const char *hosts; /* in the URL: host[:port][,...], or a socket's path */
    size_t hosts_len;
    unsigned count; /* of the hosts */
    int local, sentinel, tls, login, db;
    char user[256], password[512], service[256];
} dq_url;

/* Copy a text, with each %XX decoded. Returns 0 if it has more than size - 1
 * bytes, a malformed %XX, or %00. */
static int dq_url_unescape(char *to, size_t size, const char *from,
                           size_t len) {
    const char *end = from + len;
    size_t n = 0;
    while (from < end) {
        int c = (unsigned char)*from++;
        if (c == '%') {
            int hi = end - from < 2 ? -1 : dq_num_unhex(from[0]);
            int lo = hi < 0 ? -1 : dq_num_unhex(from[1]);
            if (lo < 0 || hi + lo == 0) return 0;
            c = hi * 16 + lo;
            from += 2;
        }
        if (n + 1 >= size) return 0;
        to[n++] = (char)c;
    }
    to[n] = '\0';
    return 1;
}

/* Read host[:port] or [host][:port]; `port` is the default. Returns NULL, or
 * what is wrong. */
static const char *dq_url_read_address(const char *p, size_t len, int port,
                                       delayq_address *a) {
    const char *end = p + len, *colon;
    if (len > 0 && *p == '[') {
        const char *close = (const char *)memchr(p, ']', len);
        if (!close) return "the [ of the address is not closed";
        p++;
        len = (size_t)(close - p);
        colon = close + 1 < end ? close + 1 : NULL;
        if (colon && *colon != ':')
            return "after ] there must be : and the port";
    } else {
        colon = (const char *)memchr(p, ':', len);
        if (colon) len = (size_t)(colon - p);
    }
    if (len == 0) return "the host is missing";
    if (len >= sizeof a->host || memchr(p, '%', len))
        return "the host is too long or contains a %";
    memcpy(a->host, p, len);
    a->host[len] = '\0';
    a->port = colon ? dq_num_small(colon + 1, (size_t)(end - colon - 1), 65535)
                    : port;
    return a->port > 0 ? NULL : "the port is not a number from 1 to 65535";
}

/* Read the host with a number, which begins again with the first host after
 * the last. Returns NULL, or what is wrong. */
static const char *dq_url_host(const dq_url *u, unsigned number,
                               delayq_address *a) {
    const char *p = u->hosts, *end = p + u->hosts_len, *comma;
    assert(u->count > 0 && u->count <= DQ_HOSTS_MAX);
    if (u->local) {
        a->port = 0;
        return dq_url_unescape(a->host, sizeof a->host, p, u->hosts_len)
                   ? dq_sys_refuse_path(a->host)
                   : "the path is too long or has a malformed %XX";
    }
    for (number %= u->count; number > 0; number--)
        p = (const char *)memchr(p, ',', (size_t)(end - p)) + 1;
    comma = (const char *)memchr(p, ',', (size_t)(end - p));
    return dq_url_read_address(p, (size_t)((comma ? comma : end) - p),
                               u->sentinel ? 26379 : 6379, a);
}

/* Read redis://, rediss://, redis+sentinel://, rediss+sentinel:// or unix://.
 * Returns what follows it, or NULL. */
static const char *dq_url_read_scheme(const char *p, dq_url *u) {
    u->local = strncmp(p, "unix://", 7) == 0;
    if (u->local) return p + 7;
    if (strncmp(p, "redis", 5) != 0) return NULL;
    p += 5;
    u->tls = *p == 's';
    p += u->tls;
    u->sentinel = strncmp(p, "+sentinel", 9) == 0;
    if (u->sentinel) p += 9;
    return strncmp(p, "://", 3) == 0 ? p + 3 : NULL;
}

/* Read what follows the hosts: /service, /db, or ?db=N. Returns NULL, or what
 * is wrong. */
static const char *dq_url_read_rest(dq_url *u, const char *p) {
    if (u->local && *p && strncmp(p, "?db=", 4) != 0)
        return "after ? there must be db=N";
    if (!u->local && *p == '?')
        return "after the port there must be / and the rest";
    p += !*p ? 0 : u->local ? 4 : 1;
    if (u->sentinel) {
        size_t len = strcspn(p, "/?");
        if (len == 0) return "the service is missing: .../service";
        if (!dq_url_unescape(u->service, sizeof u->service, p, len))
            return "the service is too long or has a malformed %XX";
        p += len;
        p += *p == '/';
    }
    u->db = *p ? dq_num_small(p, strlen(p), 1000000) : 0;
    return u->db >= 0 ? NULL : "the database is not a number";
}

/* Read a URL; *u points into it. Returns NULL, or what is wrong. */
static const char *dq_url_parse(const char *url, dq_url *u) {
    const char *p, *at, *end, *wrong = NULL;
    delayq_address a;
    unsigned i;
    memset(u, 0, sizeof *u);
    p = dq_url_read_scheme(url, u);
    if (!p)
        return "it must begin with redis://, rediss://, unix:// or "
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
            return "the user is too long or has a malformed %XX";
        if (colon && !dq_url_unescape(u->password, sizeof u->password,
                                      colon + 1, (size_t)(at - 2 - colon)))
            return "the password is too long or has a malformed %XX";
    }
    if (u->local && at == end) return "the path of the socket is missing";
    u->hosts = at;
    u->hosts_len = (size_t)(end - at);
    u->count = 1;
    for (p = at; !u->local && p < end; p++) u->count += *p == ',';
    if (u->count > DQ_HOSTS_MAX) return "more than 64 hosts";
    for (i = 0; !wrong && i < u->count; i++) wrong = dq_url_host(u, i, &a);
    return wrong ? wrong : dq_url_read_rest(u, end);
}

/*-----------------------------------------------------------------------------
 * MARK: - TLS
 * >>tls   TLS with OpenSSL
 *
 * Owns the SSL_CTX of a connection, and drives the handshake itself: hiredis'
 * functions check neither the host's name nor a deadline.
 *---------------------------------------------------------------------------*/

#ifdef DELAYQ_TLS

/* Set the error text to the cause of the last failure, in OpenSSL's words.
 * Returns `status`, or DELAYQ_ERR_AUTH if the certificate was refused. */
static delayq_status dq_tls_fail(delayq_conn *conn, delayq_status status,
                                 const char *where, const SSL *ssl) {
    long verdict = SSL_get_verify_result(ssl);
    const char *why = ERR_reason_error_string(ERR_get_error());
    if (verdict != X509_V_OK) {
        status = DELAYQ_ERR_AUTH;
        why = X509_verify_cert_error_string(verdict);
    }
    return dq_err_set(conn->err, status, "TLS, %s: %s", where,
                      why ? why : "the connection is lost");
}

/* Return why a file of the options can't be used. OpenSSL has no words for a
 * file that can't be opened. */
static const char *dq_tls_refuse(delayq_conn *conn, const char *option,
                                 const char *file) {
    const char *why = ERR_reason_error_string(ERR_peek_last_error());
    FILE *f = fopen(file, "rb");
    if (!f) why = strerror(errno);
    if (f) fclose(f);
    dq_err_set(conn->err, DELAYQ_ERR_ARG, "options.%s, %.120s: %s", option,
               file, why ? why : "OpenSSL can't use it");
    return conn->err;
}

/* Make the connection's SSL_CTX, unless it has one. Reading the files may take
 * a while. Returns NULL, or what is wrong with the files. */
static const char *dq_tls_prepare(delayq_conn *conn) {
    const delayq_options *o = &conn->owner->options;
    const char *wrong = NULL;
    SSL_CTX *t;
    if (conn->tls) return NULL;
    ERR_clear_error();
    t = SSL_CTX_new(TLS_client_method());
    if (!t) {
        dq_err_set(conn->err, DELAYQ_ERR_ARG, "TLS: out of memory");
        return conn->err;
    }
    SSL_CTX_set_min_proto_version(t, TLS1_2_VERSION);
    SSL_CTX_set_verify(t, SSL_VERIFY_PEER, NULL);
    if (!o->tls_ca)
        SSL_CTX_set_default_verify_paths(t);
    else if (!SSL_CTX_load_verify_locations(t, o->tls_ca, NULL))
        wrong = dq_tls_refuse(conn, "tls_ca", o->tls_ca);
    if (!wrong && o->tls_cert &&
        !SSL_CTX_use_certificate_chain_file(t, o->tls_cert))
        wrong = dq_tls_refuse(conn, "tls_cert", o->tls_cert);
    if (!wrong && o->tls_key &&
        !SSL_CTX_use_PrivateKey_file(t, o->tls_key, SSL_FILETYPE_PEM))
        wrong = dq_tls_refuse(conn, "tls_key", o->tls_key);
    if (wrong)
        SSL_CTX_free(t);
    else
        conn->tls = t;
    return wrong;
}

/* Prepare a connected socket for a handshake that requires a certificate of
 * `host`. */
static delayq_status dq_tls_begin(delayq_conn *conn, delayq_socket *s,
                                  const char *host) {
    delayq_status status = DELAYQ_OK;
    dq_sys_signals signals;
    SSL *ssl;
    assert(!s->ssl && s->state == DELAYQ_SOCKET_DIALING);
    if (dq_tls_prepare(conn)) return DELAYQ_ERR_ARG;
    ssl = SSL_new((SSL_CTX *)conn->tls);
    if (!ssl ||
        (!X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) &&
         !(SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host)))) {
        SSL_free(ssl);
        return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
    }
    dq_sys_block_sigpipe(&signals);
    if (redisInitiateSSL(s->c, ssl) == REDIS_OK) {
        s->ssl = ssl; /* and hiredis owns it */
    } else {
        status = dq_tls_fail(conn, DELAYQ_ERR_IO, host, ssl);
        SSL_free(ssl);
    }
    dq_sys_unblock_sigpipe(&signals, status != DELAYQ_OK);
    return status;
}

/* Continue the handshake. Returns DELAYQ_OK when it is complete, DELAYQ_EMPTY
 * while it needs more time. */
static delayq_status dq_tls_step(delayq_conn *conn, delayq_socket *s,
                                 const char *where) {
    delayq_status status = DELAYQ_OK;
    dq_sys_signals signals;
    int result;
    assert(s->ssl && s->state == DELAYQ_SOCKET_TLS);
    ERR_clear_error();
    dq_sys_block_sigpipe(&signals);
    result = SSL_do_handshake((SSL *)s->ssl);
    if (result != 1) {
        int cause = SSL_get_error((SSL *)s->ssl, result);
        status = cause == SSL_ERROR_WANT_READ || cause == SSL_ERROR_WANT_WRITE
                     ? DELAYQ_EMPTY
                     : dq_tls_fail(conn, DELAYQ_ERR_IO, where, (SSL *)s->ssl);
    }
    dq_sys_unblock_sigpipe(&signals, status < DELAYQ_OK);
    return status;
}

/* Returns the events for which the handshake waits. */
static short dq_tls_events(const delayq_socket *s) {
    return SSL_want_write((const SSL *)s->ssl) ? POLLOUT : POLLIN;
}

static void dq_tls_end(delayq_conn *conn) {
    SSL_CTX_free((SSL_CTX *)conn->tls);
    conn->tls = NULL;
}

#else

/* Stand in for code that never runs, as dq_url_parse refuses rediss://. */
#define dq_tls_prepare(conn) ((void)(conn), (const char *)NULL)
#define dq_tls_begin(conn, s, host) ((void)(host), DELAYQ_ERR_ARG)
#define dq_tls_step(conn, s, where) ((void)(where), DELAYQ_ERR_ARG)
#define dq_tls_events(s) POLLIN
#define dq_tls_end(conn) ((void)(conn))

#endif

/*-----------------------------------------------------------------------------
 * MARK: - Scripts
 * >>scripts   the Lua that runs in the server
 *
 * A script is its fragments, complete chunks that define functions, and one
 * main at the end. Three fragments for the usual case, offer_usual, take_usual
 * and take_many_usual, also run by themselves, before the rest. `make lua`
 * writes the scripts to build/lua/NAME.lua, where the line in an error message
 * can be looked up.
 *
 * Each script that moves items works in four steps: read (also what it will
 * write: a wrong type ends it here), probe (the later removal with an empty
 * range, or of 'delayq', which is no element: a missing permission ends it
 * here, and after any write command Redis no longer refuses for memory), add,
 * remove. So a refusal leaves everything where it was; those that work in
 * chunks, all of the chunk: see attempt() for what was done before.
 *
 * A script measures its work, not time, which stands still inside scripts
 * since Redis 7.2: it reads chunks that grow to 64 elements (128 in the usual
 * take of many), until its limit or DQ_BUDGET. Strings are never compared with
 * <, which follows the server's locale. A number becomes text by
 * string.format('%.0f'): `..` writes only 14 digits. As an argument of
 * redis.call it needs no text: Redis writes 17.
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

/* tally(field, n): add n to a field of the queue's counters. It is nil unless
 * ARGV[1], the first argument of each script that counts, names their key. The
 * counted work is done already, so a refusal (of HINCRBY, or because of the
 * key's type) is ignored. */
static const char dq_lua_tally[] =
    "local tally = ARGV[1] ~= '' and function(field, n)\n"
    "  if n > 0 then redis.pcall('HINCRBY', ARGV[1], field, n) end\n"
    "end\n";

/* refusal(why): the error that a script returns for one that pcall has caught.
 */
static const char dq_lua_refusal[] =
    "local function refusal(why)\n"
    "  why = type(why) == 'table' and why.err or why\n"
    "  return {err = string.find(why, '^%u+ ') and why or 'ERR ' .. why}\n"
    "end\n";

/* split(e, old_first): as dq_elem_parse in C: the kind of an element and the
 * start of its payload, or nil. attempts(e): the count in one of kind 16. */
static const char dq_lua_elements[] =
    "local long = struct.size('L')\n"
    "local function payload_start(e, at)\n"
    "  local rest = #e - at + 1\n"
    /* a server of 32 bits reads only the lower half */
    "  if rest >= 8 and struct.unpack('I8', e, at) == rest - 8 and\n"
    "    (long == 8 or\n"
    "      struct.pack('I8', rest - 8) == string.sub(e, at, at + 7)) then\n"
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
    "end\n"
    "local function attempts(e)\n"
    "  local high, low = string.byte(e, 16, 17)\n"
    "  return high * 256 + low\n"
    "end\n"
    "local function with_attempts(e, n)\n"
    "  return string.sub(e, 1, 15) ..\n"
    "    string.char(math.floor(n / 256), n % 256) .. string.sub(e, 18)\n"
    "end\n";

/* foreign(e, wire): the DQ_FOREIGN of an element beside which a handle of this
 * wire must not write, else 0; then as split(). Only Redisson writes elements
 * of kind 0 into another's queue, or of kind 8 at all. */
static const char dq_lua_foreign[] =
    "local function foreign(e, wire)\n"
    "  local kind, start = split(e, wire == 'o')\n"
    "  local why = kind == 0 and wire ~= 'o' and 1 or\n"
    "    kind == 8 and wire ~= 'r' and 2 or 0\n"
    "  return why, kind, start\n"
    "end\n";

/* PROBE: what is asked of a queue on a new connection, and by offers now and
 * then. It works also on another node of a cluster, and under an ACL that hides
 * the mirror: its keys are not declared.
 * ARGV     1 zset, 2 mirror, 3 wire
 * returns  clock; foreign() of the first element that is, else 0; an unsigned
 *          long of 1, as the server packs it
 *
 * It looks at both ends of the mirror, and of the zset at the last one and the
 * first 8, as far as the budget goes; not below 0, where Redisson never reads.
 */
static const char dq_lua_probe[] =
    "local zset, mirror, wire = unpack(ARGV)\n"
    "local why, bytes = 0, 0\n"
    "local function look(e)\n"
    "  if type(e) ~= 'string' then return false end\n"
    "  bytes = bytes + #e\n"
    "  if why == 0 then why = foreign(e, wire) end\n"
    "  return why == 0 and bytes < " DQ_BUDGET "\n"
    "end\n"
    /* what is below 0, or infinite, is never due */
    "local function look_at(rank)\n"
    "  local e = redis.pcall('ZRANGE', zset, rank, rank, 'WITHSCORES')\n"
    "  local due = tonumber(e[2])\n"
    "  return due and due >= 0 and due < 2 ^ 53 and look(e[1])\n"
    "end\n"
    "local first = redis.pcall('ZCOUNT', zset, '-inf', '(0')\n"
    "if type(first) ~= 'number' then first = 0 end\n"
    "for i = first, first + 7 do\n"
    "  if not look_at(i) then break end\n"
    "end\n"
    "look_at(-1)\n"
    "look(redis.pcall('LINDEX', mirror, 0))\n"
    "look(redis.pcall('LINDEX', mirror, -1))\n"
    "return {clock(), why, struct.pack('L', 1)}\n";

/* find(zset, due, prefix): the element of score due whose first bytes are
 * prefix, or nil; and the rank at which it stands, or would stand. By bisection
 * within its millisecond; mostly it is the first there. */
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
    "    if string.sub(e, 1, #prefix) == prefix then return e, rank end\n"
    "    if sorts_before(e, prefix) then low = rank + 1 else high = rank end\n"
    "    rank = math.floor((low + high) / 2)\n"
    "  end\n"
    "  return nil, low\n"
    "end\n";

/* remove(zset, argv, from, to, reply, mirror): take the elements of the pairs
 * (due, prefix) in argv[from .. to] out of the zset, and of the mirror if it is
 * named. Appends to reply, and returns it: of each pair 1 (done) or 0 (not
 * there); and how many have left, if any. Where a millisecond holds not many
 * more than are asked for, as after a take of many, it is read once. */
static const char dq_lua_remove[] =
    "local function remove(zset, argv, from, to, reply, mirror)\n"
    "  local found, many, n = {}, to - from + 1, #reply\n"
    "  local page, page_due, length, held, began, rank\n"
    "  for i = from, to, 2 do\n"
    "    local due, prefix, e = argv[i], argv[i + 1]\n"
    "    if many > 2 and (due ~= page_due or #prefix ~= length) then\n"
    "      page, page_due, length, began = nil, due, #prefix, i\n"
    "      if redis.call('ZCOUNT', zset, due, due) <= many then\n"
    "        page, held = {}, redis.call('ZRANGEBYSCORE', zset, due, due)\n"
    "        for _, each in ipairs(held) do\n"
    "          page[string.sub(each, 1, length)] = each\n"
    "        end\n"
    "      end\n"
    "    end\n"
    "    if page then\n"
    "      e, page[prefix] = page[prefix], nil\n"
    "    else\n"
    "      e, rank = find(zset, due, prefix)\n"
    "    end\n"
    "    found[#found + 1], n = e, n + 1\n"
    "    reply[n] = e and 1 or 0\n"
    "  end\n"
    "  for i = 1, mirror and #found or 0 do\n"
    "    redis.call('ZREM', zset, 'delayq')\n"
    "    redis.call('LREM', mirror, 1, found[i])\n"
    "  end\n"
    /* by ranks, where that is allowed, what is long as an argument, also for
     * replicas: a whole millisecond, or one large element */
    "  local gone\n"
    "  if page and began == from and #found == #held then\n"
    "    rank = redis.call('ZCOUNT', zset, '-inf', '(' .. page_due)\n"
    "  elseif many > 2 or #found > 0 and #found[1] < 65536 then\n"
    "    rank = nil\n"
    "  end\n"
    "  if rank and #found > 0 and not mirror then\n"
    "    gone = redis.pcall('ZREMRANGEBYRANK', zset, rank, rank + #found - 1)\n"
    "  end\n"
    "  if #found > 0 and type(gone) ~= 'number' then\n"
    "    gone = redis.call('ZREM', zset, unpack(found))\n"
    "  end\n"
    "  return reply, gone\n"
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
 * KEYS     1 zset; the mirror, if the wire has one; the highest number of an
 *          outbox
 * ARGV     1 counters; 2 channel; 3 'delay' or 'due': the times below are
 * delays in ms, or due times; 4 the number of the first offer of an outbox, or
 *          ''; 5 '', or, of exactly one offer that is sent again, the time in
 * ms from which it may have been due; then up to 1,000 pairs: time, element
 * returns  clock; how many offers were skipped, since their number is not above
 *          the highest; 0, or, of an offer that is sent again, the due time
 * that stands, or -1 if it may have been delivered meanwhile: then nothing is
 * stored */
/* The usual offer, made for speed: one element, a first sending, no mirror. */
static const char dq_lua_offer_usual[] =
    "if not KEYS[2] and not ARGV[8] and ARGV[5] == '' then\n"
    "  local zset, argv, call = KEYS[1], ARGV, redis.call\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local due = argv[6]\n"
    "  if argv[3] == 'delay' then\n"
    "    due = (us + 999) / 1000 + due\n"
    /* cuts a fraction off; faster than %.0f; a %d may have 32 bits */
    "    due = string.format('%d%07d', due / 10000000, due % 10000000)\n"
    "  end\n"
    "  local added = call('ZADD', zset, 'NX', due, argv[7])\n"
    "  if redis.pcall('ZCOUNT', zset, '0', due) == 1 then\n"
    "    redis.pcall('PUBLISH', argv[2], due)\n"
    "  end\n"
    "  if tally then tally('offered', added) end\n"
    "  return {us, 0, 0}\n"
    "end\n";
/* due_of(time, base): the due time, and as text, of an offer at `base`. */
static const char dq_lua_due[] =
    "local function due_of(time, base)\n"
    "  if ARGV[3] == 'due' then return tonumber(time), time end\n"
    "  local due = base + time\n"
    "  local text = string.format('%d%07d', due / 10000000, due % 10000000)\n"
    "  return due, text\n"
    "end\n";
static const char dq_lua_offer[] =
    "local argv, us, zset, mirror = ARGV, clock(), KEYS[1], KEYS[2]\n"
    "local base, from, skipped = math.ceil(us / 1000), 6, 0\n"
    "local number, mark = tonumber(argv[4]), nil\n"
    "if number then\n"
    "  mark = KEYS[#KEYS]\n"
    "  if #KEYS == 2 then mirror = nil end\n"
    "  local highest = redis.call('GET', mark)\n"
    "  skipped = math.max(0, (highest or 0) - number + 1)\n"
    "  skipped = math.min((#argv - 5) / 2, skipped)\n"
    "  from = from + 2 * skipped\n"
    "  redis.call('SET', mark, '', highest and 'NX' or 'XX')\n"
    "end\n"
    "if mirror then\n"
    /* refused like the ZADD that follows the RPUSH, and does nothing */
    "  redis.call('LLEN', mirror)\n"
    "  redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "end\n"
    "local first, ties, last, at, text = nil, 0, nil, nil, nil\n"
    "for i = from, #argv, 2 do\n"
    "  if argv[i] ~= last then\n"
    "    last = argv[i]\n"
    "    at, text = due_of(last, base)\n"
    "  end\n"
    "  argv[i] = text\n"
    "  if at == first then ties = ties + 1\n"
    "  elseif not first or at < first then first, ties = at, 1 end\n"
    "end\n"
    "if argv[5] ~= '' then\n"
    "  local stands = redis.call('ZSCORE', zset, argv[7])\n"
    "  if stands then return {us, 0, tonumber(stands)} end\n"
    "  if base >= tonumber(argv[5]) then return {us, 0, -1} end\n"
    "end\n"
    "if not first then return {us, skipped, 0} end\n"
    "for i = from + 1, mirror and #argv or 0, 2 do\n"
    "  redis.call('RPUSH', mirror, argv[i])\n"
    "end\n"
    "local added = redis.call('ZADD', zset, 'NX', unpack(argv, from))\n"
    "if number then\n"
    "  number = string.format('%.0f', number + (#argv - 5) / 2 - 1)\n"
    "  redis.call('SET', mark, number, 'PX', 86400000)\n"
    "end\n"
    "publish_if_head(zset, argv[2], first, ties)\n"
    "if tally then tally('offered', added) end\n"
    "return {us, skipped, argv[5] ~= '' and first or 0}\n";

/* OFFER_KEYED
 * KEYS     1 zset; the mirror, if the wire has one; the highest number of an
 *          outbox; then of each offer the key that holds its ticket
 * ARGV     1 to 5 as of OFFER; 6 how many offers; then of each: time, id in
 * hex, the key's life in ms, 'replace' or '', element returns  clock; then of
 * each offer its outcome (0 stored, 1 the key is taken, 2 sent again, and may
 * have been delivered meanwhile, 3 skipped); the due time; the key's ticket. If
 * the server refuses one, only of those before it; of the first, its error
 *
 * All reads come before the first write. Two offers with the same key act in
 * their order. */
static const char dq_lua_offer_keyed[] =
    "local zset, n, us = KEYS[1], tonumber(ARGV[6]), clock()\n"
    "local number = tonumber(ARGV[4]) or 0\n"
    "local others = #KEYS - n\n"
    "local mark = number > 0 and KEYS[others] or nil\n"
    "local mirror = others > (mark and 2 or 1) and KEYS[2] or nil\n"
    "local highest = mark and redis.call('GET', mark)\n"
    "local base, reply = math.ceil(us / 1000), {us}\n"
    "for i = 2, n do redis.call('GET', KEYS[others + i]) end\n"
    "redis.call('ZCOUNT', zset, 0, 0)\n"
    "if mirror then redis.call('LLEN', mirror) end\n"
    /* the element of the key's ticket, if it is still pending */
    "local function find_held(held_due, held_id)\n"
    "  local prefix = string.gsub(held_id, '%x%x', function(digits)\n"
    "    return string.char(tonumber(digits, 16))\n"
    "  end)\n"
    "  if #prefix == 16 then prefix = '\\16' .. prefix end\n"
    "  return (find(zset, held_due, prefix))\n"
    "end\n"
    "local function store(holder, held, old, ticket, text, ttl_ms, i, e)\n"
    /* probes, each without an effect */
    "  redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "  redis.call('SET', holder, held, held == '' and 'XX' or 'NX',\n"
    "    'PX', ttl_ms)\n"
    "  if mark then redis.call('SET', mark, '', highest and 'NX' or 'XX') end\n"
    "  if old then redis.call('ZREM', zset, 'delayq') end\n"
    "  if mirror then\n"
    "    if old then redis.call('LREM', mirror, 1, 'delayq') end\n"
    "    redis.call('RPUSH', mirror, e)\n"
    "    if old then redis.call('LREM', mirror, 1, old) end\n"
    "  end\n"
    "  redis.call('ZADD', zset, 'NX', text, e)\n"
    "  redis.call('SET', holder, ticket, 'PX', ttl_ms)\n"
    "  if mark then\n"
    "    highest = string.format('%.0f', number + i - 1)\n"
    "    redis.call('SET', mark, highest, 'PX', 86400000)\n"
    "  end\n"
    "  if old then redis.call('ZREM', zset, old) end\n"
    "  if tally then tally('offered', 1) end\n"
    "  if tally and old then tally('canceled', 1) end\n"
    "end\n"
    "local function offer(i)\n"
    "  local holder, at = KEYS[others + i], 5 * i + 2\n"
    "  local time, id, ttl_ms, replace, e = unpack(ARGV, at, at + 4)\n"
    "  local due, text = due_of(time, base)\n"
    /* its key may have ended, or be another's by now */
    "  local stands = ARGV[5] ~= '' and redis.call('ZSCORE', zset, e)\n"
    "  if stands then\n"
    "    text = string.format('%.0f', stands)\n"
    "    return 0, tonumber(stands), text .. '-' .. id\n"
    "  end\n"
    "  if mark and tonumber(highest or 0) >= number + i - 1 then\n"
    "    return 3, due, ''\n"
    "  end\n"
    "  local held = redis.call('GET', holder) or ''\n"
    "  local held_due, held_id = string.match(held, '^(%d+)-(%x+)$')\n"
    "  if held_id == id then return 0, tonumber(held_due), held end\n"
    "  if ARGV[5] ~= '' and base >= tonumber(ARGV[5]) then\n"
    "    return 2, due, ''\n"
    "  end\n"
    "  if held ~= '' and replace == '' then return 1, due, held end\n"
    "  local old = held_id and find_held(held_due, held_id)\n"
    "  local ticket = text .. '-' .. id\n"
    "  store(holder, held, old, ticket, text, ttl_ms, i, e)\n"
    "  publish_if_head(zset, ARGV[2], due, 1)\n"
    "  return 0, due, ticket\n"
    "end\n"
    "for i = 1, n do\n"
    "  local fine, outcome, due, ticket = pcall(offer, i)\n"
    "  if not fine then return i > 1 and reply or refusal(outcome) end\n"
    "  reply[3 * i - 1], reply[3 * i] = outcome, due\n"
    "  reply[3 * i + 1] = ticket\n"
    "end\n"
    "return reply\n";

/* What TICK, TAKE and BROADCAST know and count while they run.
 * KEYS     1 zset, 2 ready (broadcast: stream), 3 retry (native) or mirror
 *          (Redisson), 4 dead
 * ARGV     1 counters; 2 wire: n, r, o, or b for broadcast; 3 limit: items to
 *          move; 4 horizon: how far to look for the next due time, in ms; 5
 *          'due' if something is known to be due, else ''
 *
 * ready, other: the lengths of keys[2] and keys[3].
 * returns  clock; next: microseconds until something is due, -1: nothing within
 *          the horizon; 1 if what was to be acknowledged was there, else 0; 0,
 *          or an array of what is mostly 0: ready, moved, dead, foreign, its
 *          role among the waiters; in one text the due times of what is handed
 *          out; then its elements
 *
 * Until finish_run completes it, `reply` has the elements behind its first 5
 * values, and `dues` their due times; the first `safe` of these have left.
 *
 * attempt(run, f, ...): call f(run, ...). Returns nothing, or, where the server
 * has refused something before anything was done, the error for the script to
 * return. What was done before a refusal stays so, and the script tells of it:
 * the next call will run into the error. */
static const char dq_lua_run[] =
    "local function begin_run(keys, argv, ready, other)\n"
    "  local us, now = clock()\n"
    "  return {\n"
    "    zset = keys[1], ready_list = keys[2], other_list = keys[3],\n"
    "    dead_list = keys[4], wire = argv[2], native = argv[2] == 'n',\n"
    "    us = us, now = now, horizon = now + argv[4],\n"
    "    ready = ready, other = other, bytes = 0, from_rank = 0,\n"
    "    moved = 0, dead = 0, foreign = 0,\n"
    "    dues = {}, safe = 0, reply = {us, 0, 0, 0, ''}\n"
    "  }\n"
    "end\n"
    "local function finish_run(run)\n"
    "  local reply, soon, next, ready = run.reply, run.soon, 0, run.ready\n"
    "  if run.foreign > 0 or run.all and not soon then next = -1\n"
    "  elseif run.all then\n"
    "    next = math.max(0, math.min(1e13, soon * 1000 - run.us))\n"
    "  end\n"
    "  if run.native then ready = ready + run.other end\n"
    "  if ready + run.moved + run.dead + run.foreign > 0 then\n"
    "    reply[4] = {ready, run.moved, run.dead, run.foreign, 0}\n"
    "  end\n"
    "  reply[2], reply[5] = next, table.concat(run.dues, ' ')\n"
    "  if tally then tally('died', run.dead) end\n"
    "  return reply\n"
    "end\n"
    "local function attempt(run, f, ...)\n"
    "  local fine, why = pcall(f, run, ...)\n"
    "  if fine then return nil end\n"
    "  local dues, reply = run.dues, run.reply\n"
    "  if run.moved + run.dead + run.safe == 0 and not run.acked then\n"
    "    return refusal(why)\n"
    "  end\n"
    /* what has not left is not handed out; poll again in 250 ms */
    "  for i = #dues, run.safe + 1, -1 do\n"
    "    dues[i], reply[i + 5] = nil, nil\n"
    "  end\n"
    "  run.all, run.soon = true, (run.us + 250000) / 1000\n"
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

/* read_due(run, count): the first elements with their scores, and how many of
 * them are due, count at most. One more is read, which tells when to come
 * again: run.soon, nil where nothing is within the horizon (so a look copies no
 * large element that is far off). run.all: nothing else is due. */
static const char dq_lua_read_due[] =
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
    "end\n";

/* drain(run, max, keep, add): empty the zset of what is due. What can't be
 * decoded goes to the dead letters. keep(run, due, e, kind, start) is called
 * with each other element; it returns a reason if that shall go there, too; or
 * nil, and true if it stays in the zset. Without keep all are handed out.
 * add(run) is called once a chunk, to put away what was kept. run.mirror, of
 * Redisson's wires only: what has left the zset leaves the mirror when a drain
 * ends, in whatever way. */
static const char dq_lua_drain[] =
    "local function drain_chunk(run, want, keep, add)\n"
    "  local mirror, reply, dues = run.mirror, run.reply, run.dues\n"
    "  local wire, found, due = run.wire, read_due(run, want)\n"
    "  local bad, read, stay, bytes, at = {}, 0, 0, 0, #dues\n"
    "  local byte, unpacked = string.byte, struct.unpack\n"
    "  for i = 1, math.min(#found, 2 * due + 2), 2 do\n"
    "    local e, reason, stays = found[i]\n"
    "    local kind, start, length = 16, 18 + long, #e - 17 - long\n"
    /* the usual one, without a call */
    "    if wire == 'o' or length < 0 or byte(e) ~= 16 or\n"
    "      unpacked('L', e, 18) ~= length then\n"
    "      local why\n"
    "      why, kind, start = foreign(e, wire)\n"
    "      if why > 0 and not run.any_format then\n"
    "        run.foreign = why\n"
    "        break\n"
    "      end\n"
    "    end\n"
    /* the one behind what is due was looked at, no more */
    "    if i > 2 * due then break end\n"
    "    if mirror and not mirror.locate(e, kind) then\n"
    "      run.all = false\n"
    "      break\n"
    "    end\n"
    "    if not kind then\n"
    "      reason = 'undecodable'\n"
    "    elseif keep then\n"
    "      reason, stays = keep(run, found[i + 1], e, kind, start)\n"
    "    else\n"
    "      at = at + 1\n"
    "      dues[at], reply[at + 5] = found[i + 1], e\n"
    "    end\n"
    "    if reason then\n"
    "      bad[#bad + 1] = dead_letter(run, reason, e)\n"
    "      bad[-#bad] = read\n"
    "    end\n"
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
    /* dead letters leave at once: the rest may be refused */
    "  if #bad > 0 then redis.call('RPUSH', run.dead_list, unpack(bad)) end\n"
    "  local from, left = run.from_rank, read - stay\n"
    "  if #bad > 0 and #bad < read then\n"
    "    for i = #bad, 1, -1 do\n"
    "      local rank = from + bad[-i]\n"
    "      redis.call('ZREMRANGEBYRANK', run.zset, rank, rank)\n"
    "    end\n"
    "    left = left - #bad\n"
    "  end\n"
    "  run.dead = run.dead + #bad\n"
    "  if add then add(run) end\n"
    "  if left > 0 then\n"
    "    redis.call('ZREMRANGEBYRANK', run.zset, from, from + left - 1)\n"
    "  end\n"
    "  if mirror then mirror.left() end\n"
    "  run.safe = #dues\n"
    "  return read - #bad, bytes, not run.all and run.foreign == 0\n"
    "end\n"
    "local function drain(run, max, keep, add)\n"
    "  if run.foreign > 0 or run.bytes >= " DQ_BUDGET " then max = 0 end\n"
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
    /* a large one isn't copied once more: LREM compares it in place */
    "    if #e < 65536 then\n"
    "      m.head = m.head or redis.call('LINDEX', m.list, m.first)\n"
    "    end\n"
    "    if m.head == e then\n"
    "      at, m.first, m.head = m.first, m.first + 1, nil\n"
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

/* TICK. KEYS, ARGV, and what it returns: see dq_lua_run. */
static const char dq_lua_tick[] =
    "local ready = redis.call('LLEN', KEYS[2])\n"
    "local run = begin_run(KEYS, ARGV, ready, redis.call('LLEN', KEYS[3]))\n"
    "run.mirror = open_mirror(run)\n"
    /* it writes no element, and so is the cure of queues that are mixed */
    "run.any_format = run.wire == 'o'\n"
    "return attempt(run, move, tonumber(ARGV[3])) or finish_run(run)\n";

/* A lease is a re-offer: the element goes back into the zset, its attempt
 * count raised, due at the lease's end. Beside an old Redisson it becomes an
 * old one, without a count: its transfer reads no other, and stops at one.
 *
 * give(run, due, e, kind, start): hand out an element, or e without a kind, a
 * raw payload. With a lease what is put back is held until commit(run) adds it
 * to the zset. Returns what drain's keep does.
 * take_listed(run, count): hand out what lies in the lists, by turns. */
static const char dq_lua_give[] =
    "local function new_id(run)\n"
    "  local old = run.wire == 'o'\n"
    "  local order = run.order * (old and 2048 or 1)\n"
    "  local high = math.floor(order / 4294967296)\n"
    "  local low = order - high * 4294967296\n"
    "  run.order = run.order + 1\n"
    "  if old then return struct.pack('>I4I4', high, low + run.id_rest) end\n"
    "  return '\\16' .. struct.pack('>I4I4', high, low) .. run.id_rest ..\n"
    "    '\\0\\1'\n"
    "end\n"
    "local function give(run, due, e, kind, start)\n"
    "  local again, dues, held, n = e, run.dues, run.held, 0\n"
    "  if kind == 16 then\n"
    "    n = attempts(e)\n"
    "    if run.most > 0 and n >= run.most then return 'attempts' end\n"
    "  end\n"
    "  if run.lease_end then\n"
    "    if kind == 16 and run.wire ~= 'o' then\n"
    "      again = with_attempts(e, math.min(n + 1, 65535))\n"
    /* without a count each lease has an id, and so a ticket, of its own */
    "    elseif kind == 0 then\n"
    "      again = new_id(run) .. string.sub(e, 9)\n"
    "    else\n"
    "      local payload = kind and string.sub(e, start) or e\n"
    "      again = new_id(run) .. struct.pack('L', #payload) .. payload\n"
    "    end\n"
    "    held[#held + 1], held[#held + 2] = run.lease_end, again\n"
    "  end\n"
    "  dues[#dues + 1] = due\n"
    "  run.reply[#dues + 5] = again\n"
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
    "        give(run, '-', e, kind, start)\n"
    "    else\n"
    "      j = j + 1\n"
    "      e = payloads[j]\n"
    "      give(run, run.lease_end and '-' or 'r', e)\n"
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
    "  run.dead, run.safe = run.dead + #bad, #run.dues\n"
    "  return i + j - #bad, bytes, i + j > 0\n"
    "end\n";

/* give_role(reply, waiters, argv): enter the handle among the waiters, or
 * strike it off, by what its take has got. Section Waiters says what the roles
 * mean. The reply tells the role: 0 none (it has got an item, or stops
 * waiting), 1 alone, 2 leader, 3 standby, 4 sleeper.
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
    "  local us, next, claim = reply[1], reply[2], argv[18]\n"
    "  local now = math.floor(us / 1000)\n"
    "  local soon = next < 0 and now + argv[4] or\n"
    "    math.ceil((us + next) / 1000)\n"
    "  if reply[4][1] > 0 then soon = now end\n" /* more lie ready */
    "  local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')\n"
    "  local since = (tonumber(last[2]) or 0) - 2e14\n"
    "  return {\n"
    "    set = waiters, id = argv[15], turns = argv[17], claim = claim,\n"
    "    now = now, got = reply[5] ~= '', any = last[1] ~= nil,\n"
    "    due = tonumber(string.match(reply[5], '^[^ ]*')),\n"
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
    "  local late = w.got and (not due and w.follows or\n"
    "    due and due < w.now - (w.follows and 50 or 250))\n"
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
    "  if w.got or argv[16] ~= '1' then\n"
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
    "    return follow(w, n, argv[19], argv[14])\n"
    "  end\n"
    "  return lead(w, n)\n"
    "end\n"
    /* an ACL that forbids something, a key of another type: as if alone */
    "local function waiter_role(reply, waiters, argv)\n"
    "  local fine, role = pcall(role_among_waiters, reply, waiters, argv)\n"
    "  if fine then return role end\n"
    "  redis.pcall('ZREM', waiters, argv[15])\n"
    "  return 1\n"
    "end\n"
    "local function give_role(reply, waiters, argv)\n"
    "  if reply[4] == 0 then reply[4] = {0, 0, 0, 0} end\n"
    "  reply[4][5] = waiter_role(reply, waiters, argv)\n"
    "  return reply\n"
    "end\n";

/* TAKE
 * KEYS     1 zset, 2 ready, 3 retry (native) or mirror (Redisson), 4 dead; 5
 *          the waiters, only where the handle is one of them or would be. A
 *          native TAKE may be given the zset alone, from which it takes what is
 *          due while the keys are on their way to another node of a cluster
 * ARGV     1 to 5: see dq_lua_run; 6 how many; 7 'retry' or 'ready': the list
 *          whose turn it is; then, or nothing: 8 most attempts, or 0; 9 lease
 * in ms, or 0; 10 due and 11 prefix of an element to acknowledge before, or
 *          ''; for a lease 12 order of a new id, 13 the rest of it (6 bytes;
 * with an old wire a number below 2048), 14 channel; with a fifth key: 15 the
 *          handle's id, 16 '1': it waits if there is nothing, 17 the beginning
 * of the handles' channels, 18 what it is by its own account: 'new' (since its
 * subscriber is open), 'none', 'leader', 'standby', 'check' (a standby that has
 * found something overdue), 'sleeper'; 19 its share, a number below 65536
 * returns  see dq_lua_run; for the due time - where it is unknown, r of a raw
 *          payload. A lease ends that many ms behind the clock, rounded up
 *
 * Straight from the zset where nothing lies ready. Where something does, what
 * is due goes behind it first, or pushes would starve it. In a Redisson fleet
 * what is left over is moved too, since Java waits for it.
 *
 * What has been acknowledged stays so, too, where the rest is refused. */
/* take_usual(call, zset, argv): the usual take, made for speed: a native queue
 * with nothing in its lists; an element to acknowledge only if one item is
 * asked for. It reads chunks as in_chunks does, each with one element more,
 * which tells when to come again, and removes them all at the end. Returns
 * TAKE's reply; or nil, and has written nothing.
 *
 * without_acked(found, done): `found` without the element to acknowledge.
 * leased(e, tried): the element with one attempt more. */
static const char dq_lua_take_usual_parts[] =
    "local function without_acked(found, done)\n"
    "  local at = done == found[1] and 1 or done == found[3] and 3 or 5\n"
    "  for i = at, 4 do found[i] = found[i + 2] end\n"
    "  found[5], found[6] = nil, nil\n"
    "end\n"
    "local function leased(e, tried)\n"
    "  local count = string.char(math.floor((tried + 1) / 256),\n"
    "    (tried + 1) % 256)\n"
    "  return string.sub(e, 1, 15) .. count .. string.sub(e, 18)\n"
    "end\n"
    "local function finish_usual(zset, channel, reply, n, soon, done, dues,\n"
    "  lease_end, refused)\n"
    "  if type(refused) == 'table' then\n"
    "    return not done and refused or {reply[1], 250000, 1, 0, ''}\n"
    "  end\n"
    "  if done then reply[3] = 1 end\n"
    "  if dues then reply[5] = table.concat(dues, ' ') end\n"
    "  if n > 0 and lease_end and (not soon or soon + 0 >= lease_end) then\n"
    "    soon = lease_end\n"
    "    publish_if_head(zset, channel, soon, n)\n"
    "  end\n"
    "  if soon then\n"
    "    soon = soon * 1000 - reply[1]\n"
    "    reply[2] = soon < 0 and 0 or soon > 1e13 and 1e13 or soon\n"
    "  end\n"
    "  return reply\n"
    "end\n";
static const char dq_lua_take_usual[] =
    "local function take_usual(call, zset, argv)\n"
    "  local byte, unpacked, ack = string.byte, struct.unpack, argv[10]\n"
    "  local max, lease, most = argv[6] + 0, argv[9] or '0', argv[8] or '0'\n"
    "  local time, around = call('TIME'), 17 + struct.size('L')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local n, bytes, size = 0, 0, 1\n"
    "  local reply, soon, done, dues, held, lease_end, text, refused\n"
    "  if max < 1 or max > 1000 then return nil end\n"
    "  if ack == '' then ack = nil end\n"
    "  if lease ~= '0' then\n"
    "    lease_end = math.ceil(us / 1000) + lease\n"
    "    text = max > 1 and string.format('%.0f', lease_end) or lease_end\n"
    "  end\n"
    "  repeat\n"
    "    local found = n == 0 and argv[5] == '' and\n"
    "      call('ZRANGEBYSCORE', zset, '-inf', us / 1000 + argv[4],\n"
    "        'WITHSCORES', 'LIMIT', '0', ack and '3' or '2') or\n"
    /* a text, where that is possible: Redis converts numbers slowly */
    "      call('ZRANGE', zset, n == 0 and '0' or n,\n"
    "        n > 0 and n + size or ack and '2' or '1', 'WITHSCORES')\n"
    "    if ack then\n"
    "      done = call('ZRANGEBYSCORE', zset, ack, ack, 'LIMIT', '0', '1')[1]\n"
    "      if done and string.sub(done, 1, #argv[11]) ~= argv[11] then\n"
    "        return nil\n"
    "      end\n"
    "      without_acked(found, done)\n"
    "    end\n"
    "    local due = #found / 2\n"
    "    soon = nil\n"
    "    while due > 0 and found[2 * due] * 1000 > us do\n"
    "      soon, due = found[2 * due], due - 1\n"
    "    end\n"
    "    if due > size then soon, due = found[2 * due], size end\n"
    "    for i = 1, 2 * due, 2 do\n"
    "      local e, tried = found[i], nil\n"
    "      local length = #e - around\n"
    "      if length < 0 or byte(e) ~= 16 or\n"
    "        unpacked('L', e, 18) ~= length then\n"
    "        return nil\n"
    "      end\n"
    "      if lease_end or most ~= '0' then\n"
    "        local high, low = byte(e, 16, 17)\n"
    "        tried = high * 256 + low\n"
    "        if most ~= '0' and tried >= most + 0 or tried == 65535 then\n"
    "          return nil\n"
    "        end\n"
    "      end\n"
    "      if lease_end then e = leased(e, tried) end\n"
    "      n, bytes = n + 1, bytes + length + 89\n"
    "      if n == 1 then\n"
    "        if byte(found[2]) == 45 then return nil end\n"
    "        reply = {us, -1, 0, 0, found[2], e}\n"
    "        held = lease_end and {text, e}\n"
    "      else\n"
    "        dues = dues or {reply[5]}\n"
    "        dues[n], reply[n + 5] = found[i + 1], e\n"
    "        if held then held[2 * n - 1], held[2 * n] = text, e end\n"
    "      end\n"
    "    end\n"
    "    if due < size or n == max then break end\n"
    "    local room = math.floor((" DQ_BUDGET " - bytes) * n / bytes)\n"
    "    size = math.min(128, 8 * size, math.max(1, room), max - n)\n"
    "  until bytes >= " DQ_BUDGET "\n"
    /* the ack is the first write, and proves the right to remove */
    "  if done then call('ZREM', zset, done) end\n"
    "  if held then\n"
    "    if not done then call('ZREMRANGEBYRANK', zset, '1', '0') end\n"
    "    refused = redis.pcall('ZADD', zset, unpack(held))\n"
    "  end\n"
    "  if n > 0 and type(refused) ~= 'table' then\n"
    "    refused = redis.pcall('ZREMRANGEBYRANK', zset, '0',\n"
    "      n == 1 and '0' or n - 1)\n"
    "    if type(refused) == 'table' and held and done then\n"
    "      call('ZREM', zset, held[2])\n"
    "    end\n"
    "  end\n"
    "  return finish_usual(zset, argv[14], reply or {us, -1, 0, 0, ''}, n,\n"
    "    soon, done, dues, lease_end, refused)\n"
    "end\n";
/* It runs before the rest of the script is even made, as in offer_usual. */
static const char dq_lua_take_begin[] =
    "local call, in_ready, in_retry, usual = redis.call, 0, 0, nil\n"
    "if KEYS[2] then\n"
    "  in_ready, in_retry = call('LLEN', KEYS[2]), call('LLEN', KEYS[3])\n"
    "end\n"
    "if in_ready + in_retry == 0 and\n"
    "  (ARGV[6] == '1' or (ARGV[10] or '') == '') then\n"
    "  usual = take_usual(call, KEYS[1], ARGV)\n"
    "end\n"
    "if usual and tally and not usual.err then\n"
    "  tally('acked', usual[3])\n"
    "  tally('taken', #usual - 5)\n"
    "end\n"
    "if usual and (usual.err or not KEYS[5]) then return usual end\n";
/* the same for one of the waiters */
static const char dq_lua_take_usual_waits[] =
    "if usual then return give_role(usual, KEYS[5], ARGV) end\n";
static const char dq_lua_take[] =
    "local function take_items(run, max, limit)\n"
    "  local direct = run.ready == 0 and (run.other == 0 or not run.native)\n"
    "  if direct then\n"
    "    drain(run, max, (run.lease_end or run.most > 0) and give,\n"
    "      run.lease_end and commit)\n"
    "    if run.native or run.all then return end\n"
    "  end\n"
    "  move(run, limit)\n"
    "  if not direct and run.foreign == 0 then\n"
    "    in_chunks(run, max, take_listed)\n"
    "  end\n"
    "end\n"
    "local function take(keys, argv, ready, other)\n"
    "  local run = begin_run(keys, argv, ready, other)\n"
    "  local reply, lease_ms = run.reply, tonumber(argv[9] or 0)\n"
    "  run.retry_turn, run.most = argv[7] == 'retry', tonumber(argv[8] or 0)\n"
    "  run.order, run.id_rest, run.held = tonumber(argv[12]), argv[13], {}\n"
    /* few bits of an old id are random: the server's own microsecond is no
     * other take's */
    "  if run.wire == 'o' then run.order = run.us end\n"
    "  if lease_ms > 0 then\n"
    "    run.lease_end = math.ceil(run.us / 1000) + lease_ms\n"
    "  end\n"
    "  run.mirror = open_mirror(run)\n"
    "  if (argv[10] or '') ~= '' then\n"
    "    run.acked = remove(run.zset, argv, 10, 11, {})[1]\n"
    "  end\n"
    "  local failed = attempt(run, take_items, tonumber(argv[6]),\n"
    "    tonumber(argv[3]))\n"
    "  if failed then return failed end\n"
    "  if run.lease_end and run.safe > 0 then\n"
    /* Redisson sets its timer by the channel */
    "    publish_if_head(run.zset, argv[14], run.lease_end, run.safe)\n"
    "    run.soon = math.min(run.soon or run.lease_end, run.lease_end)\n"
    "  end\n"
    "  reply[3] = run.acked or 0\n"
    "  finish_run(run)\n"
    "  if tally then\n"
    "    tally('acked', reply[3])\n"
    "    tally('taken', #run.dues)\n"
    "  end\n"
    "  return keys[5] and give_role(reply, keys[5], argv) or reply\n"
    "end\n";
static const char dq_lua_take_native[] =
    "return take(KEYS, ARGV, in_ready, in_retry)\n";
static const char dq_lua_take_redisson[] =
    "local ready = redis.call('LLEN', KEYS[2])\n"
    "return take(KEYS, ARGV, ready, redis.call('LLEN', KEYS[3]))\n";

/* BROADCAST: what is due goes into the stream, and the reader is given what
 * stands behind its cursor.
 * KEYS     1 zset, 2 stream, 3 retry, 4 dead
 * ARGV     1 to 5: see dq_lua_run; 6 how many; 7 cursor, '$': the stream's end;
 *          8 how many entries the stream keeps; 9 channel
 * returns  see dq_lua_run; before what is handed out the cursor; then pairs:
 *          id, payload. A due time is - where it is unknown */
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
    "  if #seq < 16 then\n"
    "    local after = ms .. string.format('-%.0f', seq + 1)\n"
    "    return redis.call('XRANGE', stream, after, '+', 'COUNT', count)\n"
    "  end\n"
    /* seq + 1 isn't exact: read from the cursor on, and leave that out */
    "  local found = redis.call('XRANGE', stream, cursor, '+', 'COUNT',\n"
    "    count + 1)\n"
    "  if found[1] and found[1][1] == cursor then table.remove(found, 1) end\n"
    "  found[count + 1] = nil\n"
    "  return found\n"
    "end\n"
    "local function broadcast(run, max, cursor)\n"
    "  local stream, reply = run.ready_list, run.reply\n"
    "  if cursor == '$' then\n"
    "    local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)\n"
    "    cursor = last[1] and last[1][1] or '0-0'\n"
    "  end\n"
    "  reply[6] = cursor\n"
    "  add_to_stream(run, tonumber(ARGV[3]), ARGV[8])\n"
    "  if max > 0 then\n"
    "    in_chunks({bytes = 0}, max, function(_, count)\n"
    "      local entries, bytes = read_stream(stream, cursor, count), 0\n"
    "      for _, entry in ipairs(entries) do\n"
    /* a stream may hold what others have put there */
    "        local due, payload = tonumber(entry[2][2]), entry[2][4] or ''\n"
    "        local known = due and due >= 0 and due < 2 ^ 53\n"
    "        due = known and string.format('%.0f', due) or '-'\n"
    "        run.dues[#run.dues + 1] = due\n"
    "        cursor, bytes = entry[1], bytes + cost(payload)\n"
    "        reply[#reply + 1], reply[#reply + 2] = cursor, payload\n"
    "      end\n"
    "      run.safe = #run.dues\n"
    "      return #entries, bytes, #entries > 0\n"
    "    end)\n"
    "  end\n"
    "  reply[6] = cursor\n"
    /* what is left over for the next take */
    "  run.ready = read_stream(stream, cursor, 1)[1] and 1 or 0\n"
    "end\n"
    "local length = redis.call('XLEN', KEYS[2])\n"
    "local run = begin_run(KEYS, ARGV, length, redis.call('LLEN', KEYS[3]))\n"
    "local failed = attempt(run, broadcast, tonumber(ARGV[6]), ARGV[7])\n"
    "if failed then return failed end\n"
    /* the others poll at once */
    "if run.moved > 0 then\n"
    "  redis.pcall('PUBLISH', ARGV[9], string.format('%.0f', run.now))\n"
    "end\n"
    "if tally then tally('taken', run.moved) end\n"
    "return finish_run(run)\n";

/* TICKETS: acks, cancels, nacks, releases, extends, reschedules, buries.
 * KEYS     1 zset; 2 the dead letters of a bury, or the mirror of a cancel
 * ARGV     1 counters; 2 channel; 3 'again' if it is sent again, else ''; then
 *          runs: verb, how many; of each ticket due and prefix, and if it has a
 *          new due time also this and a delay in ms, or ''
 * returns  clock; of each ticket 0 if it is not there, else the due time that
 * it has now, or 1 if it was removed. If the server refuses one, only of those
 * before it; of the first, its error
 *
 * A new due time is the handle's reckoning, so that a resend finds what the
 * first sending did. With a delay it is checked: if a clock was set, or a
 * machine slept meanwhile, the delay counts. */
static const char dq_lua_tickets[] =
    "local argv, zset, second, us, now = ARGV, KEYS[1], KEYS[2], clock()\n"
    "local reply, proven = {us}, false\n"
    "local fields = {ack = 'acked', cancel = 'canceled', nack = 'nacked',\n"
    "  release = 'nacked', bury = 'died'}\n"
    /* counted as a release instead, or the next lease had the same ticket */
    "local function released(e)\n"
    "  local n = string.byte(e, 15)\n"
    "  n = n % 64 < 63 and n + 1 or n - 63\n"
    "  e = string.sub(e, 1, 14) .. string.char(n) .. string.sub(e, 16)\n"
    "  return with_attempts(e, math.max(attempts(e) - 1, 0))\n"
    "end\n"
    "local function changed(verb, e, prefix)\n"
    "  if verb ~= 'release' or #prefix ~= 17 then return e end\n"
    "  return released(e)\n"
    "end\n"
    "local function prove()\n"
    "  if not proven then redis.call('ZREM', zset, 'delayq') end\n"
    "  proven = true\n"
    "end\n"
    "local function bury(due, prefix)\n"
    "  local e = find(zset, due, prefix)\n"
    "  if not e then return 0 end\n"
    "  prove()\n"
    "  local letter = string.format('buried %.0f\\n', now) .. e\n"
    "  redis.call('RPUSH', second, letter)\n"
    "  redis.call('ZREM', zset, e)\n"
    "  return 1\n"
    "end\n"
    "local function retime(verb, due, prefix, new_due, delay)\n"
    "  local e = find(zset, due, prefix)\n"
    "  local at = tonumber(new_due)\n"
    "  if not e then\n"
    "    if argv[3] ~= '' then\n"
    "      e = find(zset, new_due, changed(verb, prefix, prefix))\n"
    "    end\n"
    "    return e and at or 0, true\n"
    "  end\n"
    "  local by_delay = delay ~= '' and math.ceil(us / 1000) + delay\n"
    "  if by_delay and (at < by_delay or at > by_delay + 1000) then\n"
    "    at = by_delay\n"
    "  end\n"
    "  prove()\n"
    "  local again = changed(verb, e, prefix)\n"
    "  redis.call('ZADD', zset, at, again)\n"
    "  if again ~= e then redis.call('ZREM', zset, e) end\n"
    "  publish_if_head(zset, argv[2], at, 1)\n"
    "  return at\n"
    "end\n"
    "local done\n"
    "local function run(verb, at, n)\n"
    "  if verb == 'ack' or verb == 'cancel' then\n"
    "    local found, gone = remove(zset, argv, at, at + 2 * n - 1, {},\n"
    "      verb == 'cancel' and second or nil)\n"
    "    for i = 1, n do reply[#reply + 1] = found[i] end\n"
    "    done = gone or 0\n"
    "    return\n"
    "  end\n"
    "  for i = 1, n do\n"
    "    local now_due, before\n"
    "    if verb == 'bury' then\n"
    "      now_due = bury(argv[at + 2 * i - 2], argv[at + 2 * i - 1])\n"
    "    else\n"
    "      local first = at + 4 * i - 4\n"
    "      now_due, before = retime(verb, unpack(argv, first, first + 3))\n"
    "    end\n"
    "    reply[#reply + 1] = now_due\n"
    "    if now_due > 0 and not before then done = done + 1 end\n"
    "  end\n"
    "end\n"
    "if second then redis.call('LLEN', second) end\n"
    "local at = 4\n"
    "while argv[at] do\n"
    "  local verb, n = argv[at], tonumber(argv[at + 1])\n"
    "  done = 0\n"
    "  local fine, why = pcall(run, verb, at + 2, n)\n"
    "  if tally and fields[verb] then tally(fields[verb], done) end\n"
    "  if not fine then return #reply > 1 and reply or refusal(why) end\n"
    "  local short = verb == 'ack' or verb == 'cancel' or verb == 'bury'\n"
    "  at = at + 2 + (short and 2 or 4) * n\n"
    "end\n"
    "return reply\n";

/* PEEK
 * KEYS     1 zset
 * ARGV     1 how many; 2 due and 3 prefix of the last one seen, or missing
 * returns  clock; the rank of the first; the due times in one text, where a
 *          foreign score is no due time with a '-' before the nearest; then
 *          the elements */
static const char dq_lua_peek[] =
    "local zset, max, reply, dues = KEYS[1], tonumber(ARGV[1]), {}, {}\n"
    "local due, prefix, rank, _ = ARGV[2], ARGV[3], 0, nil\n"
    "if due and string.byte(prefix) == 255 then\n"
    "  rank = struct.unpack('>I4', prefix, 6) + 1\n"
    "elseif due then\n"
    /* behind all that begin so: or twins would be shown again and again */
    "  _, rank = find(zset, due, prefix .. string.rep('\\255', 9))\n"
    "end\n"
    "reply[1], reply[2] = clock(), rank\n"
    "in_chunks({bytes = 0}, max, function(_, count)\n"
    "  local last, bytes = rank + count - 1, 0\n"
    "  local found = redis.call('ZRANGE', zset, rank, last, 'WITHSCORES')\n"
    "  for i = 1, #found, 2 do\n"
    "    local score = tonumber(found[i + 1])\n"
    "    local near = math.max(0, math.min(math.floor(score), 2 ^ 53 - 1))\n"
    "    local sign = near == score and '' or '-'\n"
    "    dues[#dues + 1] = string.format('%s%.0f', sign, near)\n"
    "    reply[#dues + 3] = found[i]\n"
    "    bytes = bytes + cost(found[i])\n"
    "  end\n"
    "  rank = rank + count\n"
    "  return #found / 2, bytes, #found == 2 * count\n"
    "end)\n"
    "reply[3] = table.concat(dues, ' ')\n"
    "return reply\n";

/* COUNT
 * KEYS     1 zset, 2 ready or stream, 3 retry (native) or mirror, 4 dead
 * ARGV     1 wire, 2 counters, then due times
 * returns  clock, pending, overdue, ready, dead; next: the earliest due time,
 *          -1 where nothing is pending; the six counters; of each due time how
 *          many are due by then
 *
 * The counters aren't declared, so that it works where an ACL hides them. */
static const char dq_lua_count[] =
    "local zset, wire, ready, us, now = KEYS[1], ARGV[1], 0, clock()\n"
    "if wire ~= 'b' then ready = redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then ready = ready + redis.call('LLEN', KEYS[3]) end\n"
    "local first = redis.call('ZRANGEBYSCORE', zset, 0, 2 ^ 53 - 1,\n"
    "  'WITHSCORES', 'LIMIT', 0, 1)\n"
    "local reply = {us, redis.call('ZCARD', zset),\n"
    "  redis.call('ZCOUNT', zset, 0, now), ready,\n"
    "  redis.call('LLEN', KEYS[4]), tonumber(first[2] or -1)}\n"
    "local totals = redis.pcall('HMGET', ARGV[2], 'offered', 'taken',\n"
    "  'acked', 'nacked', 'died', 'canceled')\n"
    "for i = 1, 6 do\n"
    "  local n = tonumber(totals[i] or 0) or 0\n"
    "  reply[6 + i] = math.max(0, math.min(n, 2 ^ 53 - 1))\n"
    "end\n"
    "for i = 3, #ARGV do\n"
    "  reply[10 + i] = redis.call('ZCOUNT', zset, 0, ARGV[i])\n"
    "end\n"
    "return reply\n";

/* CLEAR
 * KEYS     1 zset, 2 ready or stream, 3 retry or mirror
 * ARGV     1 wire
 * returns  clock, count */
static const char dq_lua_clear[] =
    "local wire, reply = ARGV[1], {(clock())}\n"
    "local n = redis.call('ZCARD', KEYS[1])\n"
    "if wire ~= 'b' then n = n + redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then n = n + redis.call('LLEN', KEYS[3]) end\n"
    "redis.call('UNLINK', unpack(KEYS))\n"
    "reply[2] = n\n"
    "return reply\n";

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
    "  if not ready_list then from = from + #letters\n"
    "  elseif #letters > 0 then\n"
    "    redis.call('LTRIM', dead_list, 0, -1)\n"
    "    if #payloads > 0 then\n"
    "      redis.call('RPUSH', ready_list, unpack(payloads))\n"
    "    end\n"
    "    if #bad > 0 then redis.call('RPUSH', dead_list, unpack(bad)) end\n"
    "    redis.call('LTRIM', dead_list, #letters, -1)\n"
    "  end\n"
    "  return #letters, bytes, #letters > 0\n"
    "end)\n"
    "return reply\n";

/* A verb points at its script, and there is no table of all: so a program links
 * only the Lua of the calls that it makes. `sha` is the SHA1 of the text, by
 * which EVALSHA names it: `make lua` writes it here, a test checks it. */
typedef struct dq_script {
    const char *name; /* of the file in build/lua */
    const char *sha;
    const char *const *parts; /* up to NULL */
} dq_script;

#define DQ_SCRIPT(name, sha, ...)                                     \
    static const char *const dq_parts_##name[] = {__VA_ARGS__, NULL}; \
    static const dq_script dq_script_##name = {#name, sha, dq_parts_##name}

#define DQ_LUA_RUN                                                 \
    dq_lua_clock, dq_lua_refusal, dq_lua_elements, dq_lua_foreign, \
        dq_lua_chunks, dq_lua_run, dq_lua_read_due, dq_lua_drain
#define DQ_LUA_MIRROR dq_lua_mirror_seek, dq_lua_mirror
#define DQ_LUA_WAITERS dq_lua_waiters_leave, dq_lua_waiters_stay
#define DQ_LUA_TAKE \
    dq_lua_move, dq_lua_remove, dq_lua_give, dq_lua_take_listed, dq_lua_take

/* Long fragments stand in the middle: hiredis' buffer, which doubles with what
 * is in it, then ends at little more than the text. */
DQ_SCRIPT(offer, "77daf23c1835c6e005da79eb21f899414ae902d4", dq_lua_tally,
          dq_lua_offer_usual, dq_lua_clock, dq_lua_publish, dq_lua_due,
          dq_lua_offer);
DQ_SCRIPT(offer_keyed, "2fa6d9b37716c4e70fdddd5dd7164842c61a3540", dq_lua_tally,
          dq_lua_clock, dq_lua_refusal, dq_lua_publish, dq_lua_due, dq_lua_find,
          dq_lua_offer_keyed);
DQ_SCRIPT(tick, "a3d555555bf898eef53fe447e7aecc3da6f1e696", dq_lua_tally,
          DQ_LUA_RUN, dq_lua_no_mirror, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(tick_redisson, "11c08984d19b2bd805c573bb62e716b307e75b67",
          dq_lua_tally, DQ_LUA_RUN, DQ_LUA_MIRROR, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(take, "9d70a6e4fef3898ce64e799291e51e07d2e45da0", dq_lua_tally,
          dq_lua_publish, dq_lua_take_usual_parts, dq_lua_take_usual,
          dq_lua_take_begin, dq_lua_find, DQ_LUA_WAITERS,
          dq_lua_take_usual_waits, DQ_LUA_RUN, dq_lua_no_mirror, DQ_LUA_TAKE,
          dq_lua_take_native);
DQ_SCRIPT(take_redisson, "3e00416ab076e414be151343266cb789e9c86f53",
          dq_lua_tally, dq_lua_publish, DQ_LUA_WAITERS, DQ_LUA_RUN,
          DQ_LUA_MIRROR, dq_lua_find, DQ_LUA_TAKE, dq_lua_take_redisson);
DQ_SCRIPT(broadcast, "ae4c40ed41ba0922b622af49c285c760dfd8a9f5", dq_lua_tally,
          DQ_LUA_RUN, dq_lua_broadcast);
DQ_SCRIPT(tickets, "90c3058110c44366d73d66abee6174c9151cfb53", dq_lua_tally,
          dq_lua_clock, dq_lua_refusal, dq_lua_elements, dq_lua_publish,
          dq_lua_find, dq_lua_remove, dq_lua_tickets);
DQ_SCRIPT(peek, "9eb3a1873d2b4e74018cfbc3f863d2ce2c8374f8", dq_lua_clock,
          dq_lua_find, dq_lua_chunks, dq_lua_peek);
DQ_SCRIPT(count, "5dd494d6473e1956a89de34fa5ac739834a68fc1", dq_lua_clock,
          dq_lua_count);
DQ_SCRIPT(clear, "a9ee1541de910170d35137af0ed32747da2988f5", dq_lua_clock,
          dq_lua_clear);
DQ_SCRIPT(dead, "7fa90702d67402742d4aa2f81e82aaeaad7c819e", dq_lua_clock,
          dq_lua_elements, dq_lua_chunks, dq_lua_dead);
DQ_SCRIPT(probe, "436825e2491fbf664279b20488cb84ca67317ef0", dq_lua_clock,
          dq_lua_elements, dq_lua_foreign, dq_lua_probe);

/*-----------------------------------------------------------------------------
 * MARK: - Protocol
 * >>protocol   writing requests, reading replies
 *
 * Commands are written into a small buffer and from there into hiredis', larger
 * payloads and scripts directly: no array of arguments.
 *---------------------------------------------------------------------------*/

/* The numbers with which the reply of a tick, take or broadcast begins. Those
 * from READY on stand in an array in its place; mostly 0 stands there. Behind
 * that come the due times. */
enum {
    DQ_AT_US, /* the server's clock */
    DQ_AT_NEXT,
    DQ_AT_ACKED,
    DQ_AT_READY,
    DQ_AT_MOVED,
    DQ_AT_DEAD,
    DQ_AT_FOREIGN,
    DQ_AT_ROLE,
    DQ_NUMBERS,
    DQ_AT_DUES = DQ_AT_READY + 1
};

/* Read the n integers at the beginning of an array, of which the first is the
 * server's clock. Returns 0 if the reply is not one of our scripts'. */
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

#define DQ_RESP_ITEMS_MAX 250000u    /* in one reply; no script returns more */
#define DQ_RESP_BYTES_MAX (1u << 30) /* in its strings: a large payload, */
#define DQ_PAYLOAD_MAX (DQ_RESP_BYTES_MAX - (1 << 20)) /* and what is small */
#define DQ_RESP_LINE_MAX 60000 /* of an error's text, say */
#define DQ_RESP_BODY 'b'       /* a type: what follows the line of a string */

/* Check the next bytes of a reply before hiredis reads them. hiredis would
 * allocate an array of any length that the server claims, and walk through all
 * of it to free it; a length may overflow its arithmetic; and it searches for
 * the end of a line from its beginning each time. Returns NULL, or the fault.
 * hiredis itself finds numbers that are none. */
static const char *dq_resp_scan(delayq_reply_scan *r, const char *p, size_t n) {
    const char *end = p + n;
    while (p < end) {
        int complete = 0; /* an element, but for an array's own */
        if (r->type == 0) {
            if (memchr("_#,(!=%~>|", *p, 10))
                return "this is RESP3, which HELLO 2 did not end";
            if (!memchr("+-:$*", *p, 5)) return "no reply begins like this";
            r->type = *p++;
            r->last = 0;
            r->line = 0;
            r->number = 0;
        } else if (r->type == DQ_RESP_BODY) {
            size_t step = (size_t)(end - p);
            if (step > r->number) step = r->number;
            p += step;
            r->number -= (unsigned)step;
            complete = r->number == 0;
        } else if (*p != '\n' || r->last != '\r') {
            if (++r->line > DQ_RESP_LINE_MAX) return "a line without an end";
            if (*p == '-')
                r->type = '+'; /* nil: no more than its line */
            else if (*p >= '0' && *p <= '9' && r->number != UINT_MAX)
                r->number = r->number < DQ_RESP_BYTES_MAX / 5
                                ? r->number * 10 + (unsigned)(*p - '0')
                                : UINT_MAX;
            r->last = *p++;
        } else if (r->type == '$') {
            if (r->number > DQ_RESP_BYTES_MAX - r->bytes)
                return "more than 1 GB in one reply";
            r->bytes += r->number;
            r->number += 2; /* with its line end */
            r->type = DQ_RESP_BODY;
            p++;
        } else if (r->type == '*' && r->number > 0) {
            if (r->depth == sizeof r->left / sizeof r->left[0])
                return "arrays nested too deep";
            if (r->number > DQ_RESP_ITEMS_MAX - r->items)
                return "more elements than any reply has";
            r->items += r->number;
            r->left[r->depth++] = r->number;
            r->type = 0;
            p++;
        } else {
            complete = 1;
            p++;
        }
        if (!complete) continue;
        r->type = 0;
        while (r->depth > 0 && --r->left[r->depth - 1] == 0) r->depth--;
        if (r->depth == 0) r->bytes = r->items = 0;
    }
    return NULL;
}

#define DQ_RESP_SMALL 1024  /* longest argument but for scripts and payloads */
#define DQ_RESP_SLICE 65536 /* most that is written of a payload in one go */

typedef struct dq_resp_writer {
    redisContext *c;
    int counting; /* nothing goes to c: what doesn't fit buf is forgotten */
    int spilled;  /* while counting: it did not fit */
    size_t args, keys; /* so many; the first ones are a script's keys */
    const char *body;  /* what follows all this, and */
    size_t body_len;   /* its length */
    size_t n;          /* bytes in buf */
    char buf[2048];
} dq_resp_writer;

static void dq_resp_begin(dq_resp_writer *o, redisContext *c) {
    o->c = c;
    o->n = o->keys = o->args = o->body_len = 0;
    o->counting = o->spilled = 0;
}

/* Append bytes to the output buffer of hiredis. If it has no memory for them
 * the context has a fault from then on, and takes nothing more. */
static void dq_resp_append(dq_resp_writer *o, const void *bytes, size_t len) {
    if (o->counting)
        o->spilled = 1;
    else if (!o->c->err)
        redisAppendFormattedCommand(o->c, (const char *)bytes, len);
}

static void dq_resp_flush(dq_resp_writer *o) {
    if (o->n > 0) dq_resp_append(o, o->buf, o->n);
    o->n = 0;
}

/* Write an argument of len + more bytes, of which the first `len` always fit
 * the buffer. The caller appends the other ones. */
static void dq_resp_arg(dq_resp_writer *o, const void *bytes, size_t len,
                        size_t more) {
    size_t value = len + more, rest, digits = 1, i;
    assert(len <= DQ_RESP_SMALL);
    if (sizeof o->buf - o->n < DQ_RESP_SMALL + 32) dq_resp_flush(o);
    for (rest = value; rest >= 10; rest /= 10) digits++;
    o->buf[o->n] = '$';
    for (i = digits; i > 0; i--, value /= 10)
        o->buf[o->n + i] = (char)('0' + value % 10);
    memcpy(o->buf + o->n + digits + 1, "\r\n", 2);
    o->n += digits + 3;
    memcpy(o->buf + o->n, bytes, len);
    if (more == 0) memcpy(o->buf + o->n + len, "\r\n", 2);
    o->n += more == 0 ? len + 2 : len;
    o->args++;
}

/* Write an argument of any length: a small head, then data. If it is the last
 * argument of a request and large, it is not copied: the socket writes it in
 * slices. */
static void dq_resp_long_arg(dq_resp_writer *o, const void *head,
                             size_t head_len, const void *data, size_t len,
                             int last) {
    dq_resp_arg(o, head, head_len, len);
    if (len == 0) return;
    if (last && len > DQ_RESP_SLICE) {
        o->body = (const char *)data;
        o->body_len = len;
        return;
    }
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
    dq_resp_arg(o, text, strlen(text), 0);
}

static void dq_resp_int(dq_resp_writer *o, int64_t value) {
    char text[24];
    dq_resp_arg(o, text, dq_num_decimal(text, value), 0);
}

/* The text of a script. */
static void dq_resp_script(dq_resp_writer *o, const char *const *parts) {
    size_t len = 0, i;
    for (i = 0; parts[i]; i++) len += strlen(parts[i]);
    dq_resp_arg(o, "", 0, len);
    dq_resp_flush(o);
    for (i = 0; parts[i]; i++) dq_resp_append(o, parts[i], strlen(parts[i]));
    dq_resp_append(o, "\r\n", 2);
}

/* Write a command of `count` words, of which these are the first. The caller
 * adds the others. */
static void dq_resp_command(dq_resp_writer *o, size_t count,
                            const char *words) {
    assert(count < 10);
    dq_resp_flush(o);
    o->n = (size_t)snprintf(o->buf, 8, "*%d\r\n", (int)count);
    while (*words) {
        size_t len = strcspn(words, " ");
        dq_resp_arg(o, words, len, 0);
        words += len + (words[len] == ' ');
    }
}

/* Write a key or channel of the queue: prefix, T, rest. Returns its length. */
static size_t dq_resp_key_text(const delayq *q, const char *prefix,
                               const char *rest, char to[DQ_RESP_SMALL]) {
    int tagged = memchr(q->name, '{', q->name_len) != NULL;
    const char *parts[5];
    size_t n = 0, len, i;
    parts[0] = prefix;
    parts[1] = tagged ? "" : "{";
    parts[2] = q->name;
    parts[3] = tagged ? "" : "}";
    parts[4] = rest;
    for (i = 0; i < 5; i++) { /* snprintf would be slow: a take has three */
        len = strlen(parts[i]);
        assert(n + len <= DQ_RESP_SMALL);
        memcpy(to + n, parts[i], len);
        n += len;
    }
    return n;
}

static void dq_resp_key(dq_resp_writer *o, const delayq *q, const char *prefix,
                        const char *rest) {
    char key[DQ_RESP_SMALL];
    dq_resp_arg(o, key, dq_resp_key_text(q, prefix, rest, key), 0);
}

#define DQ_ZSET "redisson_delay_queue_timeout:"
#define DQ_MIRROR "redisson_delay_queue:"
#define DQ_CHANNEL "redisson_delay_queue_channel:"
#define DQ_RETRY "delayq_retry:"
#define DQ_DEAD "delayq_dead:"
#define DQ_STREAM "delayq_stream:"
#define DQ_DEDUP "delayq_once:"
#define DQ_SENT "delayq_sent:"
#define DQ_COUNTERS "delayq_counters:"
#define DQ_WAITERS "delayq_waiters:" /* also their channel */
#define DQ_TURN "delayq_turn:"
#define DQ_INVALIDATE "__redis__:invalidate"
/* End the keys of a script. Its first argument is the key of the counters, or
 * ''. */
static void dq_resp_end_keys(dq_resp_writer *o, const delayq *q) {
    o->keys = o->args;
    if (q->options.counters)
        dq_resp_key(o, q, DQ_COUNTERS, "");
    else
        dq_resp_text(o, "");
}

/* Writes the keys and arguments of a script. */
typedef void dq_resp_args(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane);

/* Write the call of a script, behind SCRIPT LOAD if it `uploads` the script,
 * and behind ASKING if it follows an ASK. The numbers of keys and arguments are
 * known when `args` has run: what fits the buffer waits there for the line with
 * these numbers. If it doesn't fit, `args` runs again. Returns the number of
 * replies. */
static int dq_resp_call(dq_resp_writer *o, delayq *q, const dq_script *script,
                        int uploads, int asking, dq_resp_args *args,
                        const delayq_lane *lane) {
    char call[120];
    int n;
    if (uploads) {
        dq_resp_command(o, 3, "SCRIPT LOAD");
        dq_resp_script(o, script->parts);
    }
    if (asking) dq_resp_command(o, 1, "ASKING");
    dq_resp_flush(o);
    o->counting = 1;
    o->spilled = 0;
    o->keys = o->args = 0;
    args(o, q, lane);
    assert(o->keys <= o->args);
    n = snprintf(call, sizeof call,
                 "*%lu\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$%d\r\n%lu\r\n",
                 (unsigned long)(3 + o->args), script->sha,
                 o->keys < 10    ? 1
                 : o->keys < 100 ? 2
                                 : 3,
                 (unsigned long)o->keys);
    o->counting = 0;
    dq_resp_append(o, call, (size_t)n);
    if (o->spilled) {
        size_t keys = o->keys, total = o->args;
        o->n = o->keys = o->args = 0;
        args(o, q, lane);
        assert(o->keys == keys && o->args == total);
        (void)keys, (void)total; /* without asserts */
    }
    return 1 + uploads + asking;
}

/*-----------------------------------------------------------------------------
 * MARK: - Schedule
 * >>schedule   the time of the next poll
 *
 * Owns next_poll_us, the time of the next poll: it has one function for each
 * event. Nobody else writes it but section Waiters, which decides for handles
 * that wait beside others. It also owns the answer to "what does the handle
 * wait for?", dq_sched_next.
 *
 * The relative time in a reply counts from the moment at which its request was
 * sent: at worst the poll is some microseconds early and is repeated, once.
 * Counted from the reply it would be late by a round trip. A message that comes
 * while a take is in flight counts beside its reply. Without a connection
 * nothing is polled; the first poll is sent when it is open.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_UNHEARD_POLL_US 250000 /* where nothing would announce an item */

/* Returns the time of the next attempt to connect: the first is at once, then
 * the pause between the beginnings of two attempts grows. */
static int64_t dq_sched_next_attempt(const delayq *owner,
                                     const delayq_socket *s) {
    int64_t now = dq_sys_now(), when = now;
    if (s->failures > 0)
        when = s->begun_us +
               dq_num_backoff(DQ_BACKOFF_US,
                              owner->options.reconnect_max_ms * 1000LL,
                              s->failures);
    return when < now ? now : when;
}

/* Returns the time that a reply may take, in us: `ms`, but at least two round
 * trips, of which the clock's error is a measure. On a line longer than its
 * timeout every request would expire, after the server has run it. */
static int64_t dq_sched_patience_us(const delayq_conn *conn, int ms) {
    int64_t twice = conn->known ? 2 * conn->clock_error_us : 0;
    return twice > ms * 1000LL ? twice : ms * 1000LL;
}

/* Returns the time at which a socket needs a step though it is not ready. */
static int64_t dq_sched_socket(const delayq_conn *conn,
                               const delayq_socket *s) {
    int64_t end;
    if (s->state == DELAYQ_SOCKET_CLOSED) return s->retry_us;
    if (s->state == DELAYQ_SOCKET_RESOLVING) return dq_sys_now() + 10000;
    if (s->state < DELAYQ_SOCKET_OPEN) return s->deadline_us;
    if (!s->first) return DQ_NEVER;
    end = s->moved_us +
          dq_sched_patience_us(conn, conn->owner->options.io_timeout_ms);
    if (s == &conn->cmd && !conn->known && s->deadline_us < end)
        return s->deadline_us; /* the probe is part of connecting */
    return end; /* the exchanges in flight are given up if nothing moves */
}

/* Returns the time at which a quiet subscriber is pinged, or its reply to the
 * ping is overdue. */
static int64_t dq_sched_ping_us(const delayq_conn *conn) {
    if (conn->sub_pinged_us == 0) return conn->sub.moved_us + DQ_PING_US;
    return conn->sub_pinged_us + conn->owner->options.io_timeout_ms * 1000LL;
}

/* Returns 1 if a standby has a deferred LLEN that it can send. */
static int dq_sched_looks(const delayq *q) {
    return q->waiter.push_us > 0 && q->conn->tracking != DELAYQ_TRACK_OFF &&
           q->setup.state == DELAYQ_EXCHANGE_NONE && q->conn->cmd.body_len == 0;
}

/* Returns 1 if a ring must wait for the replies in flight: after a request of a
 * ring has lost a socket, one is sent at a time until the guilty one is known.
 */
static int dq_sched_is_held_back(const delayq *q) {
    const delayq_lane *lane = q->lanes;
    while (lane && !lane->suspect) lane = lane->next;
    return lane && q->conn->cmd.first;
}

/* Returns the time at which a lane goes on by itself. DQ_NEVER: it is empty, or
 * waits for a reply, for the connection or for another lane. */
static int64_t dq_sched_lane(const delayq *q, const delayq_lane *lane) {
    if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) return 0;
    if (lane->x.state != DELAYQ_EXCHANGE_NONE) return DQ_NEVER;
    if (lane->settled == lane->accepted) return DQ_NEVER;
    return lane->ring && dq_sched_is_held_back(q) ? DQ_NEVER : lane->retry_us;
}

/* Returns the time at which q acts though nothing is heard: the only function
 * that says what a handle waits for. `polling`: a poll counts, too. Without a
 * connection it is the next step of connecting. */
static int64_t dq_sched_next(const delayq *q, int polling) {
    const delayq_conn *conn = q->conn;
    const delayq_lane *lane;
    int64_t next = dq_sched_socket(conn, &conn->cmd), other;
    if (q->setup.state == DELAYQ_EXCHANGE_ANSWERED) return 0;
    if (conn->cmd.state < DELAYQ_SOCKET_OPEN || !conn->known) return next;
    if (!q->probed) /* it waits for its probe */
        return q->setup.state == DELAYQ_EXCHANGE_NONE && conn->cmd.body_len == 0
                   ? 0
                   : next;
    if (polling && q->next_poll_us < next && !q->poll_sent)
        next = q->next_poll_us;
    if (dq_sched_looks(q) && q->waiter.push_us < next) next = q->waiter.push_us;
    for (lane = q->lanes; lane; lane = lane->next) {
        other = dq_sched_lane(q, lane);
        if (other < next) next = other;
    }
    if (conn->ask.state != DELAYQ_SOCKET_CLOSED) {
        other = dq_sched_socket(conn, &conn->ask);
        if (other < next) next = other;
    }
    if (conn->sub.state == DELAYQ_SOCKET_CLOSED) return next;
    other = conn->sub.state < DELAYQ_SOCKET_OPEN
                ? dq_sched_socket(conn, &conn->sub)
                : dq_sched_ping_us(conn);
    return other < next ? other : next;
}

/* Poll no later than `when`, but not within a pause. */
static void dq_sched_lower(delayq *q, int64_t when) {
    if (when < q->pause_us) when = q->pause_us;
    if (q->next_poll_us > when) q->next_poll_us = when;
}

/* Returns 1 if something lies ready and no pause forbids to ask for it. */
static int dq_sched_has_ready(const delayq *q) {
    return q->ready > 0 && (!q->pause_us || dq_sys_now() >= q->pause_us);
}

/* Returns by how much the two clocks may have drifted apart since the server's
 * was read: 500 us a second. */
static int64_t dq_sched_drift_us(const delayq_conn *conn, int64_t now) {
    return now > conn->clock_read_us ? (now - conn->clock_read_us) / 2000 : 0;
}

/* Returns the latest time that the server's clock can show at a local moment.
 */
static int64_t dq_sched_server_us(const delayq_conn *conn, int64_t local_us,
                                  int64_t now) {
    return local_us + conn->clock_offset_us + conn->clock_error_us +
           dq_sched_drift_us(conn, now);
}

/* Returns the earliest local moment at which the server's clock can show
 * due_ms. */
static int64_t dq_sched_local_us(const delayq *q, int64_t due_ms, int64_t now) {
    return due_ms * 1000 - dq_sched_server_us(q->conn, 0, now);
}

static int dq_sched_same_queue(const delayq *a, const delayq *b) {
    return a->name_len == b->name_len &&
           memcmp(a->name, b->name, a->name_len) == 0;
}

/* The server may no longer track the list. A reply to tracking that is in
 * flight is out of date. */
static void dq_sched_untrack(delayq *q) {
    q->list_tracked = 0;
    if (q->setup_kind == DELAYQ_SETUP_TRACK) q->setup_kind = DELAYQ_SETUP_STALE;
}

/* --- events of the connections --- */

/* The command socket is closed, and client tracking ends with it. The next poll
 * is sent when it is open again. */
static void dq_sched_on_conn_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->list_tracked = 0;
        h->waiter.push_us = h->pause_us = 0;
    }
}

/* The command socket is open: poll at once. */
static void dq_sched_on_conn_back(delayq_conn *conn, int64_t now) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->pause_us = 0;
        h->next_poll_us = now;
    }
}

/* The subscriber is closed. sub.retry_us is set. */
static void dq_sched_on_sub_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->subscribed = 0;
        dq_sched_untrack(h);
        memset(&h->waiter, 0, sizeof h->waiter);
        dq_sched_lower(h, conn->sub.retry_us);
    }
}

/* A transfer or take has failed. Pause if a connection is there; else its own
 * pause counts. */
static void dq_sched_on_fault(delayq *q) {
    q->poll_sent = 0;
    q->waiter.push_us = 0;
    if (!q->conn->cmd.c) return;
    q->next_poll_us = q->pause_us = dq_sys_now() + DQ_BACKOFF_US;
}

/* A take of the program ends a pause. */
static void dq_sched_on_take(delayq *q) {
    int64_t pause_us = q->pause_us;
    q->pause_us = 0;
    if (pause_us) dq_sched_lower(q, dq_sys_now());
}

/* --- events of the queue --- */

/* A transfer or take is sent. Its reply will say when the next poll is, unless
 * a message that is heard meanwhile makes it sooner. */
static void dq_sched_on_sent(delayq *q) {
    q->poll_sent = 1;
    q->pause_us = 0;
    q->next_poll_us = DQ_NEVER;
}

/* The reply to a transfer or take is there: the next item is due in next_us,
 * `ready` items lie in the lists. That holds for every handle on the same queue
 * and connection. unheard: the next push would not be heard; taken: the list
 * has changed.
 *
 * If an item is due within a millisecond, this poll came too early. It took
 * longer to get there than the next one will, since all are awake now: counted
 * from the moment of its sending, the next one would be too early, too. */
static void dq_sched_on_reply(delayq *q, const delayq_exchange *x,
                              int64_t next_us, int64_t ready, int unheard,
                              int taken) {
    int64_t cap = q->options.max_wait_ms * 1000;
    int64_t sent_us = x->sent_us, from_us = sent_us;
    delayq *h;
    if ((unheard || !q->subscribed) && cap > DQ_UNHEARD_POLL_US)
        cap = DQ_UNHEARD_POLL_US;
    if (next_us < 0 || next_us > cap) next_us = cap;
    if (next_us < 1000) from_us += (x->read_us - sent_us) / 2;
    for (h = q->conn->handles; h; h = h->next) {
        if (h != q && (h->wire->stream || !dq_sched_same_queue(h, q))) continue;
        h->pause_us = 0;
        h->ready = ready < 0 ? 0 : ready;
        if (!h->poll_sent || from_us + next_us < h->next_poll_us)
            h->next_poll_us = from_us + next_us;
        if (h->track_us > sent_us) dq_sched_lower(h, h->track_us);
        if (taken) dq_sched_untrack(h);
    }
    q->poll_sent = 0;
}

/* The handle itself has stored an item, or changed its due time to due_ms, as a
 * reply says that was read at read_us. */
static void dq_sched_on_own_item(delayq *q, int64_t due_ms, int64_t read_us) {
    dq_sched_lower(q, dq_sched_local_us(q, due_ms, read_us));
}

/* Returns the local time at which the item of a message is due; due_ms 0: now.
 */
static int64_t dq_sched_message_us(const delayq *q, int64_t due_ms) {
    int64_t now = dq_sys_now();
    if (due_ms > DQ_MAX_DUE / 1000) return now + q->options.max_wait_ms * 1000;
    return due_ms > 0 ? dq_sched_local_us(q, due_ms, now) : now;
}

/* A message announces an item that is due at due_ms. */
static void dq_sched_on_message(delayq *q, int64_t due_ms) {
    dq_sched_lower(q, dq_sched_message_us(q, due_ms));
}

/* A call of the handle has pushed `more` items into the ready list. The server
 * reports that to other connections, but not to this one, for which it no
 * longer tracks the list. */
static void dq_sched_on_own_push(delayq *q, int64_t more) {
    delayq *h;
    for (h = q->conn->handles; h; h = h->next) {
        if (!dq_sched_same_queue(h, q)) continue;
        dq_sched_untrack(h);
        h->ready += more;
    }
}

/* At read_us the server has refused to track the list. */
static void dq_sched_on_untracked(delayq *q, int64_t read_us) {
    delayq *h;
    if (q->conn->tracking == DELAYQ_TRACK_OFF) /* for all */
        for (h = q->conn->handles; h; h = h->next) dq_sched_untrack(h);
    q->track_us = read_us + DQ_UNHEARD_POLL_US;
    dq_sched_lower(q, q->track_us);
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

/* A standby acts so much later than the leader. */
static int64_t dq_waiters_slack(void) {
    return 300000 + (int64_t)dq_sys_random16() * 300000 / 65536;
}

/* --- what the handle's requests and subscriptions depend on --- */

/* Does its next take name the waiters? */
static int dq_waiters_in_take(const delayq *q) {
    const delayq_waiter *w = &q->waiter;
    return w->role >= DELAYQ_WAITER_LEADER || /* it is in the set */
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
    q->will_wait =
        (timeout_ms < 0 || timeout_ms >= DQ_WAITERS_MS) && !q->wire->stream;
    if (!q->will_wait) q->waiter.called = 0;
    if (q->waiter.role == DELAYQ_WAITER_NONE && dq_waiters_in_take(q))
        dq_sched_lower(q, dq_sys_now());
}

/* A take that names the waiters begins: what was heard until now it takes into
 * account. */
static void dq_waiters_on_take(delayq *q) {
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
    if (role > DELAYQ_WAITER_NONE && !(w->own_heard && w->all_heard))
        role = DELAYQ_WAITER_NONE; /* the subscriber was lost meanwhile */
    if (role >= DELAYQ_WAITER_NONE && role <= DELAYQ_WAITER_SLEEPER)
        w->role = (delayq_waiter_role)role;
    else if (got && q->waiter.role >= DELAYQ_WAITER_LEADER)
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
            cap = cap / 65536 * dq_sys_random16();
        q->next_poll_us = sent_us + cap;
    }
    if (w->called && dq_waiters_in_take(q)) dq_sched_lower(q, dq_sys_now());
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

/* The queue's channel is subscribed: something may have been published before.
 * Or no more: nothing will be heard. */
static void dq_waiters_on_subscribe(delayq *q, int on) {
    q->subscribed = on != 0;
    dq_waiters_on_message(q, 0);
}

/* The list has changed; the server tells of that once. */
static void dq_waiters_on_push(delayq *q) {
    delayq_waiter *w = &q->waiter;
    dq_sched_untrack(q);
    if (w->role < DELAYQ_WAITER_STANDBY)
        dq_sched_on_message(q, 0);
    else if (w->role == DELAYQ_WAITER_STANDBY && w->push_us == 0)
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
    q->list_tracked = 1;
    if (w->role == DELAYQ_WAITER_STANDBY && w->looking) w->push_us = 0;
    if (w->role == DELAYQ_WAITER_STANDBY && !w->looking && ready > 0) {
        dq_waiters_on_push(q);
        return;
    }
    w->overdue = w->role == DELAYQ_WAITER_STANDBY && ready > 0;
    if (ready > 0) q->ready = ready;
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
    if (q->waiter.role < DELAYQ_WAITER_LEADER) return;
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
    if (w->role == DELAYQ_WAITER_ALONE) w->role = DELAYQ_WAITER_NONE;
    if (!q->will_wait) return; /* it enters when it waits again */
    w->called = 1;
    if (count > 1000) count = 1000;
    count = count * 1000 * (int64_t)dq_sys_random16() / 65536;
    dq_sched_lower(q, dq_sys_now() + count);
}

/* It has left the waiters, or tried to. */
static void dq_waiters_on_leave(delayq *q) {
    if (q->waiter.role >= DELAYQ_WAITER_LEADER) q->next_poll_us = dq_sys_now();
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
 * Owns the sockets of a delayq_conn and their state. It is the only section
 * that connects, that decides when and where to, and that writes and reads; it
 * hands the subscriber's messages to section Subscriber. Nothing here waits:
 * each function goes as far as it can, and is called again when the socket is
 * ready (dq_conn_watch) or its time is over. The cause of a failure stands in
 * conn->err.
 *---------------------------------------------------------------------------*/

#define DQ_SLOW_US 100000 /* a clock's error above this is large */
#define DQ_HOPS 5  /* most redirections of a connect, sendings of a request */
#define DQ_READS 4 /* of 16 KiB each, before somebody else's turn */

typedef enum dq_conn_purpose {
    DQ_CONN_CMD,
    DQ_CONN_SUB,
    DQ_CONN_ASK,
    DQ_CONN_SENTINEL /* in the place of cmd */
} dq_conn_purpose;

/* Parse the owner's URL. Returns NULL, or the fault, which the URL of an open
 * handle does not have. */
static const char *dq_conn_parse_url(const delayq_conn *conn, dq_url *u) {
    const char *url = conn->owner->options.url;
    return dq_url_parse(url ? url : "redis://127.0.0.1:6379", u);
}

static delayq_status dq_conn_no_memory(delayq_conn *conn) {
    return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
}

/* An error reply to a command of the connection itself. */
static delayq_status dq_conn_refused(delayq_conn *conn, const char *what,
                                     const redisReply *r) {
    return dq_err_public(dq_err_reply(conn->err, what, r));
}

/* --- exchanges --- */

static void dq_conn_free_replies(delayq_exchange *x) {
    while (x->got > 0) freeReplyObject(x->replies[--x->got]);
}

/* The exchanges in flight on a socket end because it is closed for `why`. An
 * incomplete command does nothing, but the commands before it may have run. */
static void dq_conn_end_exchanges(delayq_socket *s, delayq_status why) {
    delayq_exchange *x;
    for (x = s->first; x; x = x->next) {
        dq_conn_free_replies(x);
        x->state = DELAYQ_EXCHANGE_ANSWERED;
        x->alone = x == s->first && !x->next;
        x->status = why;
        if (why == DELAYQ_ERR_PROTOCOL) continue;
        if (x->written || x->next) x->status = DELAYQ_ERR_UNKNOWN;
    }
    s->first = s->last = NULL;
    dq_conn_free_replies(&s->greeting);
}

/* Close the hiredis context of a socket. */
static void dq_conn_hang_up(delayq_socket *s) {
    if (s->c) redisFree(s->c);
    s->c = NULL;
    s->ssl = NULL;
    s->state = DELAYQ_SOCKET_CLOSED;
    s->unwritten = s->more = 0;
    s->body_len = 0;
}

/* Close a socket for `why`, which conn->err explains. */
static void dq_conn_close(delayq_conn *conn, delayq_socket *s,
                          delayq_status why) {
    delayq *h;
    assert(why < DELAYQ_OK || why >= DQ_NOSCRIPT);
    dq_conn_end_exchanges(s, why);
    dq_conn_hang_up(s);
    s->retry_us = dq_sched_next_attempt(conn->owner, s);
    if (s == &conn->sub) {
        conn->tracking = DELAYQ_TRACK_OFF;
        dq_sched_on_sub_lost(conn);
    } else if (s == &conn->cmd) {
        if (conn->tracking == DELAYQ_TRACK_ON)
            conn->tracking = DELAYQ_TRACK_ALLOWED;
        conn->failure =
            why == DELAYQ_ERR_PROTOCOL ? DELAYQ_ERR_IO : dq_err_public(why);
        conn->known = conn->probed_twice = 0;
        for (h = conn->handles; h; h = h->next) {
            dq_conn_free_replies(&h->setup);
            h->setup.state = DELAYQ_EXCHANGE_NONE;
        }
        dq_sched_on_conn_lost(conn);
    }
}

/* A logged-in socket is lost, or its server refuses to work: close it. If it
 * was of no use, and the one before it neither, the next attempt has a pause.
 */
static void dq_conn_lose(delayq_conn *conn, delayq_socket *s,
                         delayq_status why) {
    if (s->state == DELAYQ_SOCKET_OPEN) s->unproven++;
    if (s->unproven > 1 && s->failures < s->unproven) s->failures = s->unproven;
    dq_conn_close(conn, s, why);
}

#define DQ_BAD_PROTOCOL "the server doesn't speak Redis' protocol: %s"

/* Set the cause for which hiredis has given up on a socket. */
static delayq_status dq_conn_fault(delayq_conn *conn, const delayq_socket *s) {
    const redisContext *c = s->c;
    const char *cause = c->errstr[0] ? c->errstr : "the connection is lost";
    char room[40];
    conn->timed_out = 0;
    if (c->err == REDIS_ERR_IO && errno != 0)
        cause = dq_sys_strerror(errno, room);
    if (c->err == REDIS_ERR_OOM) return dq_conn_no_memory(conn);
    if (c->err == REDIS_ERR_PROTOCOL)
        return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_PROTOCOL,
                          c->errstr);
    if (!s->first) cause = "the server has closed the connection";
    return dq_err_set(conn->err, DELAYQ_ERR_IO, "%s%s",
                      s->first ? "connection lost: " : "", cause);
}

/* Set the cause for which the exchanges on an open socket are given up. Returns
 * the status with which the socket is closed. */
static delayq_status dq_conn_timeout(delayq_conn *conn,
                                     const delayq_socket *s) {
    int written = s->first && s->first->written;
    conn->timed_out = 1;
    return dq_err_set(conn->err, written ? DELAYQ_ERR_IO : DELAYQ_ERR_TIMEOUT,
                      written ? "no reply in time" : "not sent in time");
}

/* Write the output buffer, then a slice of a large payload, without waiting. */
static delayq_status dq_conn_write(delayq_conn *conn, delayq_socket *s) {
    delayq_exchange *x;
    int done, status;
    errno = 0;
    status = dq_sys_write(s->c, &done);
    if (status == REDIS_OK && done && s->body_len > 0) {
        size_t n = s->body_len < DQ_RESP_SLICE ? s->body_len : DQ_RESP_SLICE;
        redisAppendFormattedCommand(s->c, s->body, n);
        s->body += n;
        s->body_len -= n;
        conn->moved += (unsigned)n;
        if (s->body_len == 0) redisAppendFormattedCommand(s->c, "\r\n", 2);
        s->moved_us = dq_sys_now();
        status = dq_sys_write(s->c, &done);
    }
    if (done && s->body_len == 0) {
        s->unwritten = 0;
        for (x = s->first; x; x = x->next) x->written = 1;
    }
    return status == REDIS_OK ? DELAYQ_OK : dq_conn_fault(conn, s);
}

/* Make an exchange of the commands in the writer. If they can't be written, the
 * next pump finds that out, and reads what the server has sent before. */
static void dq_conn_submit(delayq_conn *conn, delayq_socket *s,
                           delayq_exchange *x, dq_resp_writer *o, int wants) {
    assert(wants > 0 && wants <= 5 && s->c && s->body_len == 0);
    assert(x->state <= DELAYQ_EXCHANGE_WAITING && x->got == 0);
    dq_resp_flush(o);
    x->next = NULL;
    x->state = DELAYQ_EXCHANGE_SENT;
    x->status = DELAYQ_OK;
    x->number = s->number;
    x->wants = (unsigned char)wants;
    x->got = x->written = 0;
    x->sent_us = dq_sys_now();
    if (s->first) {
        s->last->next = x;
    } else {
        s->first = x;
        s->moved_us = x->sent_us;
    }
    s->last = x;
    s->unwritten = 1;
    s->body = o->body;
    s->body_len = o->body_len;
    dq_conn_write(conn, s);
}

/* Give a reply to the first exchange in flight. */
static delayq_status dq_conn_match(delayq_conn *conn, delayq_socket *s,
                                   redisReply *r) {
    delayq_exchange *x = s->first;
    const redisReader *reader = s->c->reader;
    if (x) {
        x->replies[x->got++] = r;
        if (x->got < x->wants) return DELAYQ_OK;
        s->first = x->next;
        if (!s->first) s->last = NULL;
        x->state = DELAYQ_EXCHANGE_ANSWERED;
        x->read_us = s->moved_us;
        if (s->first || reader->pos >= reader->len) return DELAYQ_OK;
        /* A later request would take the rest for its own reply. */
        dq_conn_free_replies(x);
        x->status = DELAYQ_ERR_PROTOCOL;
    } else {
        freeReplyObject(r);
    }
    return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                      "the server has sent more replies than it got commands");
}

/* Write the pending output and read what is there. A reply that no exchange
 * awaits is for `hear`; if that is NULL, it is a fault. */
static delayq_status dq_conn_pump(delayq_conn *conn, delayq_socket *s,
                                  void (*hear)(delayq_conn *,
                                               const redisReply *)) {
    delayq_status status = s->unwritten ? dq_conn_write(conn, s) : DELAYQ_OK;
    const redisReader *reader = s->c->reader;
    int tls = s->ssl || conn->owner->options.connect; /* a hook's, perhaps */
    int reads;
    s->more = 0;
    for (reads = 0; reads < DQ_READS && status == DELAYQ_OK; reads++) {
        size_t before = reader->len;
        const char *wrong;
        void *r = NULL;
        errno = 0;
        if ((tls ? dq_sys_read_tls(s->c) : redisBufferRead(s->c)) != REDIS_OK)
            return dq_conn_fault(conn, s);
        if (reader->len == before) return DELAYQ_OK;
        wrong =
            dq_resp_scan(&s->scan, reader->buf + before, reader->len - before);
        if (wrong)
            return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_PROTOCOL,
                              wrong);
        s->moved_us = dq_sys_now();
        conn->moved += (unsigned)(reader->len - before);
        do {
            if (redisGetReplyFromReader(s->c, &r) != REDIS_OK)
                return dq_conn_fault(conn, s);
            if (r && hear && !s->first) {
                hear(conn, (const redisReply *)r);
                freeReplyObject(r);
            } else if (r) {
                status = dq_conn_match(conn, s, (redisReply *)r);
            }
        } while (r && status == DELAYQ_OK);
        if (!s->first && !hear && s->state >= DELAYQ_SOCKET_OPEN) return status;
    }
    s->more = status == DELAYQ_OK;
    return status;
}

/* --- connecting a socket --- */

static const delayq_address *dq_conn_target(const delayq_conn *conn,
                                            const delayq_socket *s) {
    return s == &conn->ask ? &conn->redirect : &conn->at;
}

/* Set the cause "can't connect to host:port" and why: NULL is errno's text. */
static delayq_status dq_conn_cant(delayq_conn *conn, const delayq_socket *s,
                                  delayq_status status, const char *why) {
    const delayq_address *a = dq_conn_target(conn, s);
    const char *colon = why ? "" : ": ";
    char port[16] = "", room[40];
    if (!why) why = dq_sys_strerror(errno, room);
    if (conn->owner->options.connect)
        return dq_err_set(conn->err, status,
                          "can't connect to the connect hook%s%s", colon, why);
    if (a->port) snprintf(port, sizeof port, ":%d", a->port);
    return dq_err_set(conn->err, status, "can't connect to %.80s%s%s%s",
                      a->host, port, colon, why);
}

/* Set the cause for which a socket is not open in time. */
static delayq_status dq_conn_late(delayq_conn *conn, const delayq_socket *s,
                                  const char *then) {
    const char *found = s->state == DELAYQ_SOCKET_RESOLVING
                            ? ": no address was found"
                        : s->state == DELAYQ_SOCKET_TLS ? ": TLS"
                                                        : "";
    char why[80];
    if (s->state >= DELAYQ_SOCKET_GREETING)
        return dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                          "connected, but no reply came in time%s", then);
    snprintf(why, sizeof why, " in time%s%s", found, then);
    return dq_conn_cant(conn, s, DELAYQ_ERR_TIMEOUT, why);
}

static unsigned dq_conn_hash_address(const delayq_address *a) {
    unsigned h = (unsigned)a->port;
    const char *p;
    for (p = a->host; *p; p++) h = h * 31 + (unsigned char)*p;
    return h;
}

/* Find the address of a host's name. Returns
 *      1   it is in `address`
 *      0   it is not known yet: call again later
 *     -1   the name has none
 * A handle with an outbox looks a name up when it is opened, and again after
 * two failed attempts, but not within 30 s. */
static int dq_conn_resolve(delayq_conn *conn, const delayq_socket *s,
                           const char *host, char address[64]) {
    const delayq_options *o = &conn->owner->options;
    delayq_address named;
    delayq_name *name = NULL;
    int64_t now = dq_sys_now();
    unsigned hash, i;
    int found;
    memset(&named, 0, sizeof named);
    snprintf(named.host, sizeof named.host, "%s", host);
    hash = dq_conn_hash_address(&named);
    for (i = 0; conn->names && i < 3 && (!name || name->hash != hash); i++)
        if (!name || conn->names[i].hash == hash ||
            conn->names[i].found_us < name->found_us)
            name = &conn->names[i];
    if (name && name->hash == hash && name->found_us > 0 &&
        (s->failures < 2 || now - name->found_us < 30 * DQ_SECOND_US)) {
        memcpy(address, name->text, sizeof name->text);
        return 1;
    }
    found = o->resolve ? o->resolve(o->user, host, address, 64)
                       : dq_sys_resolve(host, s->failures, address);
    if (found > 0 && name && strlen(address) < sizeof name->text) {
        name->hash = hash;
        name->found_us = now;
        memcpy(name->text, address, sizeof name->text);
    }
    return found > 0 ? 1 : o->resolve ? found : -1;
}

/* Find the address, and begin to connect to it. */
static delayq_status dq_conn_begin(delayq_conn *conn, delayq_socket *s) {
    const delayq_options *o = &conn->owner->options;
    const delayq_address *a = dq_conn_target(conn, s);
    if (o->connect) {
        int64_t left = (s->deadline_us - dq_sys_now() + 999) / 1000;
        /* in brackets, since lwIP has a macro of this name */
        s->c = (o->connect)(o->user, left > 1 ? (int)left : 1);
        if (!s->c)
            return dq_err_set(conn->err, DELAYQ_ERR_IO,
                              "the connect hook gave nothing");
        if (s->c->err)
            return dq_err_set(conn->err, DELAYQ_ERR_IO,
                              "can't connect to the connect hook: %s",
                              s->c->errstr);
        if (s->c->reader->pos < s->c->reader->len)
            return dq_err_set(conn->err, DELAYQ_ERR_IO,
                              "the connect hook has left a reply unread");
        dq_sys_set_modes(dq_sys_fd(s->c));
    } else {
        dq_sys_address to;
        char address[64];
        size_t size = dq_sys_parse_address(&to, a->host, a->port);
        int fd;
        if (size == 0 && a->port != 0) {
            int found = dq_conn_resolve(conn, s, a->host, address);
            if (found == 0) return DELAYQ_EMPTY;
            if (found > 0) size = dq_sys_parse_address(&to, address, a->port);
        }
        if (size == 0)
            return dq_conn_cant(conn, s, DELAYQ_ERR_IO,
                                ": the name has no address");
        fd = dq_sys_connect(&to, size);
        if (fd < 0) return dq_conn_cant(conn, s, DELAYQ_ERR_IO, NULL);
        s->c = redisConnectFd((dq_sys_socket)fd);
        if (!s->c) {
            dq_sys_close(fd);
            return dq_conn_no_memory(conn);
        }
    }
    s->c->flags &= ~REDIS_BLOCK;
    s->state = DELAYQ_SOCKET_DIALING;
    return DELAYQ_EMPTY;
}

/* The steps of a login, in their order; a socket needs some of them. HELLO
 * (a connect hook may have turned RESP3 on), SETNAME and ID may be refused. A
 * sentinel may have a password or none; if it has one, it is the URL's. */
enum {
    DQ_LOGIN_AUTH,
    DQ_LOGIN_SELECT,
    DQ_LOGIN_SENTINEL,
    DQ_LOGIN_HELLO,
    DQ_LOGIN_SETNAME,
    DQ_LOGIN_ID,
    DQ_LOGIN_STEPS
};
static const char *const dq_conn_words[] = {"AUTH",
                                            "SELECT",
                                            "SENTINEL get-master-addr-by-name",
                                            "HELLO 2",
                                            "CLIENT SETNAME delayq",
                                            "CLIENT ID",
                                            "the first request"};

DQ_APART static int dq_conn_wants_tls(const delayq_conn *conn) {
    dq_url u;
    dq_conn_parse_url(conn, &u);
    return u.tls && !conn->owner->options.connect;
}

/* Send the login. It changes nothing on the server. */
DQ_APART static void dq_conn_greet(delayq_conn *conn, delayq_socket *s) {
    static const size_t counts[] = {2, 2, 3, 2, 3, 2};
    int sentinel = s->purpose == DQ_CONN_SENTINEL, n = 0, step;
    char needs[DQ_LOGIN_STEPS];
    dq_resp_writer o;
    dq_url u;
    dq_conn_parse_url(conn, &u);
    needs[DQ_LOGIN_AUTH] = (char)u.login;
    needs[DQ_LOGIN_SELECT] = !sentinel && u.db > 0;
    needs[DQ_LOGIN_SENTINEL] = (char)sentinel;
    needs[DQ_LOGIN_HELLO] = conn->owner->options.connect != NULL;
    needs[DQ_LOGIN_SETNAME] = !sentinel;
    needs[DQ_LOGIN_ID] = s->purpose == DQ_CONN_SUB;
    dq_resp_begin(&o, s->c);
    for (step = 0; step < DQ_LOGIN_STEPS; step++) {
        if (!needs[step]) continue;
        s->login[n++] = (unsigned char)step;
        dq_resp_command(&o, counts[step] + (step == DQ_LOGIN_AUTH && u.user[0]),
                        dq_conn_words[step]);
        if (step == DQ_LOGIN_AUTH && u.user[0]) dq_resp_text(&o, u.user);
        if (step == DQ_LOGIN_AUTH) dq_resp_text(&o, u.password);
        if (step == DQ_LOGIN_SENTINEL) dq_resp_text(&o, u.service);
        if (step == DQ_LOGIN_SELECT) dq_resp_int(&o, u.db);
    }
    s->login[n] = DQ_LOGIN_STEPS;
    s->state = DELAYQ_SOCKET_GREETING;
    dq_conn_submit(conn, s, &s->greeting, &o, n);
}

/* Set the cause for which a login had no reply. A server that refuses a
 * connection may send the reason before it closes it. */
static delayq_status dq_conn_not_greeted(delayq_conn *conn, delayq_socket *s) {
    const delayq_exchange *x = &s->greeting;
    char said[160];
    redisReply refusal;
    int n;
    if (x->got > 0 && x->replies[x->got - 1]->type == REDIS_REPLY_ERROR)
        return dq_conn_refused(conn, "login", x->replies[x->got - 1]);
    n = dq_sys_receive(dq_sys_fd(s->c), said, sizeof said - 1);
    if (n < 2 || said[0] != '-')
        return dq_err_set(
            conn->err, DELAYQ_ERR_IO,
            "connected, but the server closed the connection at %s",
            dq_conn_words[s->login[x->got]]);
    said[n] = '\0';
    said[strcspn(said, "\r\n")] = '\0';
    refusal.str = said + 1;
    return dq_conn_refused(conn, "login", &refusal);
}

/* Read the replies to the login. A step that may be refused still fails if
 * there are too many clients. */
static delayq_status dq_conn_read_greeting(delayq_conn *conn,
                                           delayq_socket *s) {
    const delayq_exchange *x = &s->greeting;
    delayq_status status = x->state == DELAYQ_EXCHANGE_SENT
                               ? dq_conn_pump(conn, s, NULL)
                               : DELAYQ_OK;
    int i;
    if (status == DELAYQ_ERR_IO) return dq_conn_not_greeted(conn, s);
    if (status != DELAYQ_OK) return status;
    if (x->state == DELAYQ_EXCHANGE_SENT) return DELAYQ_EMPTY;
    for (i = 0; i < x->wants; i++) {
        if (x->replies[i]->type != REDIS_REPLY_ERROR) continue;
        if (s->purpose == DQ_CONN_SENTINEL && i + 1 < x->wants &&
            x->replies[i + 1]->type != REDIS_REPLY_ERROR)
            continue; /* it has no password */
        if (s->login[i] <= DQ_LOGIN_SELECT ||
            dq_err_lookup(x->replies[i]->str)->status == DELAYQ_ERR_AGAIN)
            return dq_conn_refused(conn, "login", x->replies[i]);
    }
    s->state = DELAYQ_SOCKET_OPEN;
    return DELAYQ_OK;
}

/* Go on with connecting a socket. Returns OK if it is open, EMPTY if it needs
 * more time; else it has failed, and the caller closes it. */
static delayq_status dq_conn_advance(delayq_conn *conn, delayq_socket *s) {
    delayq_status status = DELAYQ_EMPTY;
    if (s->state == DELAYQ_SOCKET_RESOLVING) status = dq_conn_begin(conn, s);
    if (s->state == DELAYQ_SOCKET_DIALING) {
        int done = dq_sys_is_connected(dq_sys_fd(s->c));
        if (done < 0) {
            status = dq_conn_cant(conn, s, DELAYQ_ERR_IO, NULL);
        } else if (done > 0 && dq_conn_wants_tls(conn)) {
            status = dq_tls_begin(conn, s, dq_conn_target(conn, s)->host);
            if (status == DELAYQ_OK) s->state = DELAYQ_SOCKET_TLS;
        } else if (done > 0) {
            dq_conn_greet(conn, s);
        }
    }
    if (s->state == DELAYQ_SOCKET_TLS) {
        status = dq_tls_step(conn, s, dq_conn_target(conn, s)->host);
        if (status == DELAYQ_OK) dq_conn_greet(conn, s);
    }
    if (s->state == DELAYQ_SOCKET_GREETING)
        status = dq_conn_read_greeting(conn, s);
    if (status != DELAYQ_EMPTY || dq_sys_now() < s->deadline_us) return status;
    return dq_conn_late(conn, s, "");
}

/* Begin to connect a closed socket, which has to be open within within_us. */
static delayq_status dq_conn_dial(delayq_conn *conn, delayq_socket *s,
                                  dq_conn_purpose purpose, int64_t within_us) {
    int64_t now = dq_sys_now();
    assert(!s->c && !s->first);
    s->number++;
    s->purpose = (unsigned char)purpose;
    s->state = DELAYQ_SOCKET_RESOLVING;
    s->begun_us = now;
    s->deadline_us = now + within_us;
    s->greeting.state = DELAYQ_EXCHANGE_NONE;
    memset(&s->scan, 0, sizeof s->scan);
    return dq_conn_advance(conn, s);
}

/* Returns how long, in us, a program may sleep that polls delayq_fds, which
 * names sockets to be read only. While one waits to become writable, or an ASK
 * is followed: 10 ms, or a quarter of the time that it has waited so far. */
static int64_t dq_conn_nap_us(const delayq_conn *conn, int64_t now) {
    const delayq_socket *all[3];
    int64_t nap = DQ_NEVER, us;
    int i;
    all[0] = &conn->cmd;
    all[1] = &conn->sub;
    all[2] = &conn->ask;
    for (i = 0; i < 3; i++) {
        const delayq_socket *s = all[i];
        if (s->state != DELAYQ_SOCKET_DIALING && !s->unwritten &&
            (i < 2 || !s->c))
            continue;
        us = (now - (s->unwritten ? s->moved_us : s->begun_us)) / 4;
        if (us < 10000) us = 10000;
        if (us < nap) nap = us;
    }
    return nap;
}

/* Returns the events that a socket waits for. */
static struct pollfd dq_conn_watch(const delayq_socket *s) {
    int events = s->state == DELAYQ_SOCKET_DIALING ? POLLOUT
                 : s->state == DELAYQ_SOCKET_TLS   ? dq_tls_events(s)
                 : s->unwritten                    ? POLLIN | POLLOUT
                                                   : POLLIN;
    return dq_sys_watch(dq_sys_fd(s->c), events);
}

/* --- the command connection --- */

/* The server's clock showed `us` at some moment between two of ours. Of two
 * such replies the faster one is the more exact, unless it is old or the other
 * one contradicts it. */
static void dq_conn_set_clock(delayq_conn *conn, int64_t us, int64_t sent_us,
                              int64_t read_us) {
    int64_t drift = dq_sched_drift_us(conn, read_us);
    int64_t low = conn->clock_offset_us - drift;
    int64_t high = conn->clock_offset_us + conn->clock_error_us + drift;
    int agrees = us - read_us <= high && us - sent_us >= low;
    if (conn->known && agrees && read_us - sent_us > high - low) return;
    conn->clock_offset_us = us - read_us;
    conn->clock_error_us = read_us - sent_us;
    conn->clock_read_us = read_us;
}

/* Read the address in "MOVED slot host:port" or "ASK slot host:port" into
 * conn->redirect. If the host is missing, it is that of this node. */
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

/* Read the master's address in a sentinel's reply into conn->at. */
static delayq_status dq_conn_read_sentinel(delayq_conn *conn) {
    const delayq_exchange *x = &conn->cmd.greeting;
    const redisReply *said = x->replies[x->wants - 1], *host, *port;
    delayq_address *a = &conn->at;
    dq_url u;
    dq_conn_parse_url(conn, &u);
    host = said->elements == 2 ? said->element[0] : NULL;
    port = said->elements == 2 ? said->element[1] : NULL;
    if (said->type == REDIS_REPLY_ERROR)
        return dq_conn_refused(conn, "sentinel", said);
    if (said->type != REDIS_REPLY_ARRAY || !host ||
        host->type != REDIS_REPLY_STRING || port->type != REDIS_REPLY_STRING ||
        host->len >= sizeof a->host)
        return dq_err_set(conn->err, DELAYQ_ERR_IO,
                          "the sentinel %.80s:%d knows no %s", a->host, a->port,
                          u.service);
    memcpy(a->host, host->str, host->len + 1);
    a->port = dq_num_small(port->str, port->len, 65535);
    if (a->port >= 1) return DELAYQ_OK;
    return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                      "sentinel: the reply has no port");
}

/* Set the target of the next attempt, conn->at: the node of a redirection, or
 * the next host of the URL, which may be a sentinel. Returns its share of the
 * time to connect, in us. */
DQ_APART static int64_t dq_conn_choose(delayq_conn *conn,
                                       dq_conn_purpose *purpose) {
    dq_url u;
    dq_conn_parse_url(conn, &u);
    *purpose = DQ_CONN_CMD;
    if (conn->hosts_left == 0) conn->hosts_left = u.count + conn->redirected;
    if (conn->redirected) {
        conn->at = conn->redirect;
        conn->redirected = 0;
    } else if (!conn->owner->options.connect) {
        dq_url_host(&u, conn->host, &conn->at);
        if (u.sentinel) *purpose = DQ_CONN_SENTINEL;
    }
    return conn->owner->options.connect_timeout_ms * 1000LL / u.count;
}

static delayq_status dq_conn_attempt(delayq_conn *conn) {
    dq_conn_purpose purpose;
    int64_t within_us = dq_conn_choose(conn, &purpose);
    return dq_conn_dial(conn, &conn->cmd, purpose, within_us);
}

/* An attempt has failed. Returns 1 if the next one may begin at once, 0 if all
 * hosts have been tried and there is a pause. */
static int dq_conn_attempt_failed(delayq_conn *conn, delayq_status why) {
    delayq_socket *s = &conn->cmd;
    int64_t begun_us = s->begun_us;
    int more;
    if (why == DQ_MOVED && ++conn->hops > DQ_HOPS)
        why = dq_err_set(conn->err, DELAYQ_ERR_AGAIN,
                         "the cluster's nodes point at each other");
    conn->redirected = why == DQ_MOVED;
    more = why == DQ_MOVED;
    if (!more) {
        conn->host++;
        conn->hosts_left -= conn->hosts_left > 0;
        more = conn->hosts_left > 0 && why != DELAYQ_ERR_ARG &&
               why != DELAYQ_ERR_AUTH && why != DELAYQ_ERR_MEMORY;
    }
    if (!more) {
        s->failures++;
        conn->hosts_left = conn->hops = 0;
    }
    dq_conn_close(conn, s, why);
    if (more) s->retry_us = begun_us;
    return more;
}

/* Pump an open socket, cmd or ask. Returns OK, or EMPTY if it had to be closed:
 * the lanes decide about their lost requests before anything else. */
static delayq_status dq_conn_pump_open(delayq_conn *conn, delayq_socket *s) {
    delayq_status status = dq_conn_pump(conn, s, NULL);
    if (status == DELAYQ_OK && s->first &&
        dq_sys_now() >= dq_sched_socket(conn, s))
        status = dq_conn_timeout(conn, s);
    if (status == DELAYQ_OK) return status;
    dq_conn_lose(conn, s, status);
    return DELAYQ_EMPTY;
}

/* Take the command socket as far as it goes without waiting. Returns
 *     OK      it is open
 *     EMPTY   it is being connected
 *     else    the status of conn->err; there is a pause until cmd.retry_us */
static delayq_status dq_conn_step(delayq_conn *conn) {
    delayq_socket *s = &conn->cmd;
    delayq_status status = DELAYQ_OK;
    if (s->state >= DELAYQ_SOCKET_OPEN) return dq_conn_pump_open(conn, s);
    for (;;) {
        if (s->state != DELAYQ_SOCKET_CLOSED)
            status = dq_conn_advance(conn, s);
        else if (dq_sys_now() < s->retry_us)
            return conn->failure;
        else
            status = dq_conn_attempt(conn);
        if (status == DELAYQ_OK && s->purpose == DQ_CONN_SENTINEL) {
            int64_t left = s->deadline_us - dq_sys_now();
            status = dq_conn_read_sentinel(conn);
            if (status == DELAYQ_OK) {
                dq_conn_free_replies(&s->greeting);
                dq_conn_hang_up(s);
                status = dq_conn_dial(conn, s, DQ_CONN_CMD, left);
            }
        }
        if (status == DELAYQ_EMPTY) return status;
        if (status == DELAYQ_OK) break;
        if (!dq_conn_attempt_failed(conn, status)) return status;
    }
    dq_conn_free_replies(&s->greeting);
    if (conn->sub.c && conn->sub_at != dq_conn_hash_address(&conn->at))
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
    return DELAYQ_OK;
}

/* --- the probe --- */

static void dq_write_probe(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    (void)lane;
    dq_resp_key(o, q, DQ_ZSET, "");
    dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_text(o, q->wire->letter);
}

/* Send the probe: it reads the server's clock and unsigned long, looks for
 * foreign elements in q's queue, checks that this node serves its slot, and
 * finds the end of a broadcast's stream if q begins there. */
static void dq_conn_send_probe(delayq *q) {
    delayq_conn *conn = q->conn;
    int begins = q->cursor[0] == '$' && q->wire->stream, n;
    dq_resp_writer o;
    dq_resp_begin(&o, conn->cmd.c);
    dq_resp_command(&o, 4, "EXISTS");
    dq_resp_arg(&o, q->name, q->name_len, 0);
    dq_resp_key(&o, q, DQ_ZSET, "");
    dq_resp_key(&o, conn->owner, DQ_ZSET, "");
    if (begins) {
        dq_resp_command(&o, 6, "XREVRANGE");
        dq_resp_key(&o, q, DQ_STREAM, "");
        dq_resp_text(&o, "+");
        dq_resp_text(&o, "-");
        dq_resp_text(&o, "COUNT");
        dq_resp_int(&o, 1);
    }
    n = dq_resp_call(&o, q, &dq_script_probe, q->probe_uploads, 0,
                     dq_write_probe, NULL);
    q->setup_kind = DELAYQ_SETUP_PROBE;
    dq_conn_submit(conn, &conn->cmd, &q->setup, &o, n + 1 + begins);
}

/* Read the stream's last entry. If this was refused, the first take will fail.
 */
static void dq_conn_read_end(delayq *q, const redisReply *r) {
    const redisReply *last =
        r->type == REDIS_REPLY_ARRAY && r->elements > 0 ? r->element[0] : NULL;
    const redisReply *id =
        last && last->type == REDIS_REPLY_ARRAY && last->elements > 0
            ? last->element[0]
            : NULL;
    if (id && id->type == REDIS_REPLY_STRING && id->len < sizeof q->cursor)
        memcpy(q->cursor, id->str, id->len + 1);
    else if (r->type == REDIS_REPLY_ARRAY && !last)
        memcpy(q->cursor, "0-0", 4);
}

static delayq_status dq_conn_read_probe(delayq *q) {
    delayq_conn *conn = q->conn;
    const delayq_exchange *x = &q->setup;
    const redisReply *slot = x->replies[0], *probe = x->replies[x->got - 1];
    const redisReply *value;
    int64_t n[2];
    /* Only a cluster refuses EXISTS because of the slot. If an ACL forbids it,
     * the first script will fail. */
    if (slot->type == REDIS_REPLY_ERROR) {
        const dq_err_entry *e = dq_err_lookup(slot->str);
        if (e->status == DQ_MOVED)
            return dq_conn_parse_redirect(conn, slot->str);
        if (e->status == DELAYQ_ERR_ARG || e->leave)
            return dq_conn_refused(conn, "open", slot);
    }
    if (probe->type == REDIS_REPLY_ERROR) {
        delayq_status status = dq_err_reply(conn->err, "open", probe);
        if (status == DQ_NOSCRIPT && !q->probe_uploads) return status;
        if (q->probe_uploads &&
            x->replies[x->got - 2]->type == REDIS_REPLY_ERROR)
            status = dq_err_reply(conn->err, "open", x->replies[x->got - 2]);
        return dq_err_public(status);
    }
    value = probe->type == REDIS_REPLY_ARRAY && probe->elements == 3
                ? probe->element[2]
                : NULL;
    if (!value || value->type != REDIS_REPLY_STRING ||
        (value->len != 8 && value->len != 4) || !dq_resp_integers(probe, n, 2))
        return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, "open");
    q->counts.reconnects += !conn->known && conn->long_size > 0;
    conn->long_size = (unsigned char)value->len;
    conn->long_big = value->str[0] == 0;
    dq_conn_set_clock(conn, n[0], x->sent_us, x->read_us);
    if (n[1] > 0) q->foreign = (unsigned char)n[1];
    if (x->got > 2 + q->probe_uploads) dq_conn_read_end(q, x->replies[1]);
    q->probed = 1;
    q->probe_uploads = 0;
    return DELAYQ_OK;
}

/* Refuse requests of a handle that has met foreign elements. A handle of the
 * old wire does not offer and take beside them, but goes on to move them. */
static delayq_status dq_conn_may_use(delayq *q) {
    return q->foreign && !q->wire->old_first ? dq_err_wire(q) : DELAYQ_OK;
}

/* The reply to q's probe is there. If the first probe on a connection is
 * refused, the next host is tried. If a later one is, other handles keep the
 * connection, unless the queue has moved or the reply is nonsense. */
static delayq_status dq_conn_on_probe(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_status status = dq_conn_read_probe(q);
    int late = status == DELAYQ_OK && !conn->known && !conn->probed_twice &&
               conn->clock_error_us > DQ_SLOW_US;
    dq_conn_free_replies(&q->setup);
    q->setup.state = DELAYQ_EXCHANGE_NONE;
    if (late || status == DQ_NOSCRIPT) {
        if (late) conn->probed_twice = 1; /* perhaps it was held up */
        q->probe_uploads = status == DQ_NOSCRIPT;
        dq_conn_send_probe(q);
        return DELAYQ_EMPTY;
    }
    if (status == DELAYQ_OK && !conn->known) {
        conn->known = 1;
        conn->clock_number++;
        conn->cmd.failures = 0;
        conn->hosts_left = conn->hops = 0;
        dq_sched_on_conn_back(conn, dq_sys_now());
    } else if (status != DELAYQ_OK && (!conn->known || status == DQ_MOVED ||
                                       status == DELAYQ_ERR_PROTOCOL)) {
        if (dq_conn_attempt_failed(conn, status)) return DELAYQ_EMPTY;
    }
    if (status != DELAYQ_OK)
        return dq_err_set(q->err, dq_err_public(status), "%s", conn->err);
    return dq_conn_may_use(q);
}

/* Go on towards an open connection on which q's queue is known. Returns OK if
 * it is there, EMPTY if not yet, else the status of q->err. Every request
 * starts here, except those that follow an ASK. */
static delayq_status dq_conn_ensure(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_socket *s = &conn->cmd;
    int outlived;
    if (dq_conn_may_use(q) != DELAYQ_OK) return DELAYQ_ERR_WIRE;
    if (s->state >= DELAYQ_SOCKET_OPEN && conn->known && q->probed && s->first)
        return DELAYQ_OK; /* an idle one is read before it is used: it may be
                             lost, or have sent a second reply, which the next
                             request would take for its own */
    /* An attempt whose time was over long before this call says nothing about
     * the server now: another one may begin. */
    outlived = s->state > DELAYQ_SOCKET_CLOSED &&
               s->state < DELAYQ_SOCKET_OPEN &&
               dq_sys_now() - s->deadline_us > DQ_BACKOFF_US;
    for (;;) {
        delayq_status status;
        int64_t now;
        if (dq_conn_step(conn) < DELAYQ_OK) {
            now = dq_sys_now();
            if (outlived && now >= s->retry_us) {
                outlived = 0;
                continue;
            }
            return dq_err_set(q->err, conn->failure,
                              "%s; the next attempt is in %d ms", conn->err,
                              (int)((s->retry_us - now + 999) / 1000));
        }
        if (s->state >= DELAYQ_SOCKET_OPEN && conn->known && q->probed)
            return DELAYQ_OK;
        if (s->state >= DELAYQ_SOCKET_GREETING && s->purpose == DQ_CONN_CMD &&
            q->setup.state == DELAYQ_EXCHANGE_NONE && s->body_len == 0)
            dq_conn_send_probe(q);
        if (s->state == DELAYQ_SOCKET_CLOSED) continue;
        if (s->state < DELAYQ_SOCKET_OPEN ||
            q->setup_kind != DELAYQ_SETUP_PROBE ||
            q->setup.state != DELAYQ_EXCHANGE_ANSWERED)
            return DELAYQ_EMPTY;
        status = dq_conn_on_probe(q);
        if (status != DELAYQ_EMPTY) return status;
    }
}
/*-----------------------------------------------------------------------------
 * MARK: - Ops
 * >>ops   the operations that calls request; the rings that keep them
 *
 * Owns the memory of options.outbox, and the ways to walk through the ops of a
 * lane, wherever they lie.
 *
 * A ring is first in, first out. An op stays in its ring until the server has
 * confirmed it. Offers, and cancels and reschedules of this handle's own
 * offers, lie in one ring; acks and the like in another, so that a full server,
 * which refuses offers, still gets the acks that make room.
 *
 * An offer has a number in its ring. The script keeps the highest one in a key
 * of this handle, skips the offers whose number is not above it, and returns
 * how many these were. So a resend stores nothing twice, even if the item has
 * been delivered meanwhile.
 *---------------------------------------------------------------------------*/

/* What is true of a verb. */
enum {
    DQ_IDEMPOTENT = 1, /* two runs do what one run does */
    DQ_READ_ONLY = 2,  /* it changes nothing */
    DQ_OFFERS = 4,     /* it stores new elements */
    DQ_TAKES = 8,      /* it hands elements out */
    DQ_RETIMES = 16,   /* it gives an item a new due time, */
    DQ_RENAMES = 32,   /* and so a new ticket, which the call returns */
    DQ_OF_OFFERS = 64  /* it may concern an item that this handle has offered */
};

/* A verb: a constant to which its ops point. A program links the scripts only
 * of the verbs that it names. */
typedef struct dq_verb {
    const char *name; /* in error texts */
    const char *word; /* in scripts */
    const dq_script *script;
    dq_resp_args *writer;
    /* Reads a request's reply and settles its ops; NULL: the caller reads it.
     * If the reply is none of the script's, no op is settled. */
    delayq_status (*reader)(delayq *q, delayq_lane *lane);
    size_t most;       /* ops in one request */
    size_t counter;    /* the offset in delayq_counts; 0: none */
    int flags;         /* the above */
    unsigned char key; /* the second key of a request, of those below */
} dq_verb;

enum { DQ_KEY_NONE, DQ_KEY_DEAD, DQ_KEY_MIRROR };

typedef struct dq_op {
    const dq_verb *verb;
    const char *data; /* an offer's payload, or a ticket's text */
    size_t len;
    const char *key; /* of an offer, or NULL */
    size_t key_len;
    int64_t key_ttl_ms;
    int64_t begun_us;   /* the local time of the call */
    int64_t delay_ms;   /* from then; */
    int64_t due_ms;     /* > 0: due then instead */
    int64_t planned_ms; /* in a ring: due then, by the request in flight */
    unsigned char id[16];
    unsigned char has_id, replace;
    unsigned char resend; /* of a message: it may have been stored before */
} dq_op;

/* The arguments of a bare verb. */
typedef struct dq_query {
    size_t max;           /* items, letters or times */
    int64_t from;         /* the first letter */
    const char *ticket;   /* a peek goes on behind it; or NULL */
    const int64_t *times; /* to count by */
} dq_query;

/* An op in a ring, followed by its key and data; aligned to 8 bytes. If the end
 * of the memory is unused, an entry without a verb stands there. */
typedef struct dq_entry {
    size_t size; /* of all of it */
    dq_op op;
} dq_entry;

/* Invariants: used <= size; head and tail are offsets of entries; all entries
 * up to `dated` have a due time and an id. */
typedef struct dq_ring {
    delayq_lane lane;
    unsigned char *data;
    size_t size, head, tail, used; /* bytes */
    uint64_t dated;                /* up to this op due times are reckoned, */
    unsigned dated_on;             /* by the clock of this server; */
    size_t date_at;                /* there is the next one */
    int64_t call_us; /* the last offer's call, by the server's clock */
} dq_ring;

typedef struct dq_outbox {
    dq_ring offers, changes;
    delayq_status failure; /* the first one since a flush */
    uint64_t gone, duplicate, dropped, told_dropped;
    delayq_name names[3];
    int64_t log_us; /* the time and status of the last report to the log */
    delayq_status logged;
} dq_outbox;

/* Draw the numbers by which the queue knows this handle. Returns 0 if there are
 * no random bytes, and keeps the former numbers. */
static int dq_handle_identify(delayq *q) {
    unsigned char bytes[sizeof q->handle_id];
    if (!dq_sys_random(bytes, sizeof bytes)) return 0;
    memcpy(q->handle_id, bytes, sizeof bytes);
    q->id[0] = ':';
    dq_num_hex(q->id + 1, bytes, sizeof bytes);
    return 1;
}

/* Returns the latest time, in ms by the server's clock, delay_ms behind a local
 * moment. */
static int64_t dq_due_after(const delayq *q, int64_t local_us,
                            int64_t delay_ms) {
    int64_t us = dq_sched_server_us(q->conn, local_us, dq_sys_now());
    return (us + 999) / 1000 + delay_ms;
}

/* --- the ring --- */

static dq_entry *dq_ring_at(const dq_ring *ring, size_t at) {
    return (dq_entry *)(void *)(ring->data + at);
}

/* Returns the entry at a place or, if the end is unused, at the beginning. */
static dq_entry *dq_ring_entry(const dq_ring *ring, size_t at) {
    size_t end = ring->size - at;
    assert(at <= ring->size);
    if (end < sizeof(dq_entry) || !dq_ring_at(ring, at)->op.verb) at = 0;
    return dq_ring_at(ring, at);
}

/* Returns the place behind an entry. */
static size_t dq_ring_behind(const dq_ring *ring, const dq_entry *e) {
    return (size_t)((const unsigned char *)e - ring->data) + e->size;
}

/* Copy an op into the ring. Returns NULL if there is no room. */
static dq_op *dq_ring_add(dq_ring *ring, const dq_op *op) {
    size_t key = op->key ? op->key_len + 1 : 0, end;
    size_t size = (sizeof(dq_entry) + key + op->len + 7) & ~(size_t)7;
    char *to;
    dq_entry *e;
    if (ring->used == 0) ring->head = ring->tail = ring->date_at = 0;
    if (ring->used + size > ring->size) return NULL;
    end = ring->size - ring->tail;
    if (ring->tail >= ring->head && size > end) {
        if (size > ring->head) return NULL;
        if (end >= sizeof(dq_entry))
            dq_ring_at(ring, ring->tail)->op.verb = NULL;
        ring->used += end;
        ring->tail = 0;
    } else if (ring->tail < ring->head && size > ring->head - ring->tail) {
        return NULL;
    }
    e = dq_ring_at(ring, ring->tail);
    to = (char *)(e + 1);
    e->size = size;
    e->op = *op;
    if (key > 0) memcpy(to, op->key, key);
    if (key > 0) e->op.key = to;
    if (op->len > 0) memcpy(to + key, op->data, op->len);
    e->op.data = to + key;
    ring->tail += size;
    ring->used += size;
    ring->lane.accepted++;
    assert(ring->used <= ring->size && ring->tail <= ring->size);
    return &e->op;
}

/* Remove the first entry. */
static void dq_ring_pop(dq_ring *ring) {
    dq_entry *e = dq_ring_entry(ring, ring->head);
    size_t at = (size_t)((unsigned char *)e - ring->data);
    assert(ring->lane.settled < ring->lane.accepted);
    if (at < ring->head) ring->used -= ring->size - ring->head;
    ring->used -= e->size;
    ring->head = at + e->size;
    ring->lane.settled++;
}

/* Give an offer an id and a due time, by the server's clock as it is known: its
 * delay counts from the call. Due times never decrease within a ring, though
 * knowledge of the clock varies. An offer that is dated again keeps at least
 * its former due time: offers before it may already be stored with theirs. */
static void dq_ring_date(delayq *q, dq_ring *ring, dq_op *op) {
    int64_t us = dq_sched_server_us(q->conn, op->begun_us, dq_sys_now());
    int64_t least = ring->call_us, former;
    if (op->has_id && op->due_ms == 0) {
        former = (op->planned_ms - op->delay_ms) * 1000;
        if (former > least) least = former;
    }
    if (us < least && us > least - DQ_SECOND_US) us = least;
    ring->call_us = us;
    op->planned_ms =
        op->due_ms > 0 ? op->due_ms : (us + 999) / 1000 + op->delay_ms;
    if (op->planned_ms > DQ_MAX_DUE) /* the clock was not known at the call */
        op->planned_ms = DQ_MAX_DUE;
    if (!op->has_id) dq_elem_next_id(q, op->id);
    op->has_id = 1;
}

/* Date the offers that have no date, or one by another server's clock, but a
 * limited number in one step. Returns the number of dated ops that are not
 * settled. */
static uint64_t dq_ring_date_all(delayq *q, dq_ring *ring) {
    delayq_lane *lane = &ring->lane;
    int left = 2000;
    if (ring->dated_on != q->conn->clock_number ||
        ring->dated < lane->settled) {
        ring->dated_on = q->conn->clock_number;
        if (ring->dated > lane->settled) ring->call_us = 0; /* of the last */
        ring->dated = lane->settled;
        ring->date_at = ring->head;
    }
    while (ring->dated < lane->accepted && left-- > 0) {
        dq_entry *e = dq_ring_entry(ring, ring->date_at);
        if (e->op.verb->flags & DQ_OFFERS) dq_ring_date(q, ring, &e->op);
        ring->dated++;
        ring->date_at = dq_ring_behind(ring, e);
    }
    return ring->dated - lane->settled;
}

/* Another handle uses the numbers of this one: a cloned machine. Draw new ones,
 * and give all offers new ids. */
static void dq_ring_meet_twin(delayq *q, dq_ring *ring) {
    size_t at = ring->head;
    uint64_t i;
    for (i = ring->lane.settled; i < ring->lane.accepted; i++) {
        dq_entry *e = dq_ring_entry(ring, at);
        e->op.has_id = 0;
        at = dq_ring_behind(ring, e);
    }
    ring->dated_on = 0;
    dq_handle_identify(q);
    if (q->conn->sub.c) dq_conn_close(q->conn, &q->conn->sub, DELAYQ_ERR_IO);
    ring->lane.unsure = ring->lane.was_unsure = 0;
}

/* --- the ops of a lane --- */

/* A walk through the ops of a lane that are not settled. */
typedef struct dq_cursor {
    const delayq_lane *lane;
    size_t number; /* of the op, from 0; */
    size_t i;      /* of its place in the caller's array */
    dq_entry *entry;
    dq_op *op;  /* NULL: before the first, or behind the last */
    dq_op made; /* of an element of the caller's array */
} dq_cursor;

static void dq_cursor_begin(dq_cursor *c, const delayq_lane *lane) {
    c->lane = lane;
    c->op = NULL;
}

/* Returns the earliest time, in ms, that the server's clock can show now. */
static int64_t dq_due_least(const delayq_conn *conn) {
    int64_t now = dq_sys_now();
    return (now + conn->clock_offset_us - dq_sched_drift_us(conn, now)) / 1000;
}

/* Give a message an id, and note from when on its item may be due. */
static void dq_message_date(delayq *q, delayq_message *m) {
    int64_t now = dq_sys_now();
    m->first_due_ms = dq_due_least(q->conn) + m->delay_ms;
    m->first_due_us = now + m->delay_ms * 1000;
    if (m->due_ms > 0) {
        m->first_due_ms = m->due_ms;
        m->first_due_us = dq_sched_local_us(q, m->due_ms, now);
    }
    m->ticket.text[0] = '\0';
    dq_elem_next_id(q, m->id);
}

/* Make an op of a message. */
static void dq_op_of_message(dq_op *op, const delayq_lane *lane,
                             const delayq_message *m, size_t number) {
    op->resend = number < lane->unsure ||
                 (m->status == DELAYQ_ERR_UNKNOWN && m->first_due_ms > 0);
    op->verb = m->key ? lane->keyed_verb : lane->array_verb;
    op->data = (const char *)m->data;
    op->len = m->len;
    op->key = m->key;
    op->key_len = m->key ? strlen(m->key) : 0;
    op->key_ttl_ms = m->key_ttl_ms;
    op->replace = m->replace != 0;
    op->begun_us = lane->begun_us;
    op->delay_ms = m->delay_ms;
    op->due_ms = m->due_ms;
    memcpy(op->id, m->id, sizeof op->id);
}

/* Go to the next op, of a new cursor to the first. Returns NULL behind the
 * last. A message that was refused as an argument is no op. */
static dq_op *dq_cursor_next(dq_cursor *c) {
    const delayq_lane *lane = c->lane;
    int first = !c->op;
    c->number = first ? 0 : c->number + 1;
    if (lane->ring) {
        if (c->number >= lane->accepted - lane->settled) return c->op = NULL;
        c->entry = dq_ring_entry(lane->ring,
                                 first ? lane->ring->head
                                       : dq_ring_behind(lane->ring, c->entry));
        return c->op = &c->entry->op;
    }
    c->i = first ? (size_t)lane->settled : c->i + 1;
    while (lane->messages && c->i < lane->accepted &&
           lane->messages[c->i].status == DELAYQ_ERR_ARG)
        c->i++;
    if (c->i >= lane->accepted) return c->op = NULL;
    if (lane->ops) return c->op = lane->ops + c->i;
    memset(&c->made, 0, sizeof c->made);
    c->made.verb = lane->array_verb;
    if (lane->messages)
        dq_op_of_message(&c->made, lane, &lane->messages[c->i], c->number);
    if (lane->items) c->made.data = lane->items[c->i].ticket.text;
    if (lane->items) c->made.len = strlen(c->made.data) + 1;
    return c->op = &c->made;
}
/*-----------------------------------------------------------------------------
 * MARK: - Lanes
 * >>lanes   ops in order, with one request in flight; the retry policy
 *
 * Owns the way of an op from its lane to its status, in four phases: plan
 * (which neighbouring ops share a request), write, read, settle. dq_lane_step
 * moves a lane, dq_decide is the only function that decides about retries, and
 * dq_op_settle is the only one that counts what was done. Nothing here waits.
 *
 * The lanes of a handle are the two rings of its outbox, its fetch (a take or
 * transfer), and during a call the lane of this call, which lies on the stack.
 *---------------------------------------------------------------------------*/

#define DQ_LOOK_US (10 * DQ_SECOND_US) /* offers look for foreign elements */

/* How the requests of a lane are planned, and what follows if one fails. */
typedef struct dq_policy {
    size_t bytes;    /* payload of one request; more if its first op has it */
    unsigned losses; /* 0: a failure ends the ops, after one resend if that is
                        harmless. Else a failed op stays; it is dropped if, sent
                        alone, it has ended so many logged-in connections */
} dq_policy;

#define DQ_RING_LIMIT 1000 /* ops of a ring's request, halved by each loss */
static const dq_policy dq_policy_call = {256 * 1024, 0};
static const dq_policy dq_policy_ring = {65536, 8}; /* a socket takes that */

static void dq_lane_begin(delayq_lane *lane, const dq_policy *policy,
                          const dq_verb *verb, size_t count) {
    memset(lane, 0, sizeof *lane);
    lane->policy = policy;
    lane->array_verb = lane->verb = verb;
    lane->accepted = count;
    lane->limit = DQ_RING_LIMIT;
    lane->begun_us = dq_sys_now();
}

/* Append a lane to those of a handle. Its steps come behind theirs. */
static void dq_lane_attach(delayq *q, delayq_lane *lane) {
    delayq_lane **at = &q->lanes;
    while (*at) at = &(*at)->next;
    *at = lane;
    lane->next = NULL;
}

static void dq_lane_detach(delayq *q, delayq_lane *lane) {
    delayq_lane **at = &q->lanes;
    assert(lane->x.state != DELAYQ_EXCHANGE_SENT);
    while (*at != lane) at = &(*at)->next;
    *at = lane->next;
}

static int dq_lane_is_idle(const delayq_lane *lane) {
    return lane->x.state == DELAYQ_EXCHANGE_NONE &&
           lane->settled == lane->accepted;
}

static int dq_lane_is_bare(const delayq_lane *lane) {
    return !lane->ring && !lane->messages && !lane->items && !lane->ops;
}

/* Report a failure of an outbox: a new status at once, the same one once a
 * second. */
static void dq_lane_note(delayq *q, delayq_status status) {
    dq_outbox *b = q->outbox;
    int64_t now = dq_sys_now();
    if (!b) return;
    if (b->failure == DELAYQ_OK) b->failure = status;
    if (status == b->logged && now - b->log_us < DQ_SECOND_US) return;
    b->logged = status;
    b->log_us = now;
    dq_err_log(q, status, q->err);
}

/* --- plan --- */

/* Returns the second key of a request with this op, if it needs one. */
static unsigned char dq_op_key(const delayq *q, const dq_op *op) {
    if (op->verb->key == DQ_KEY_MIRROR && !q->wire->mirror) return DQ_KEY_NONE;
    return op->verb->key;
}

/* Returns the absolute due time of an op, or 0 if it has only a delay. */
static int64_t dq_op_due(const delayq_lane *lane, const dq_op *op) {
    return lane->ring && (op->verb->flags & DQ_OFFERS) ? op->planned_ms
                                                       : op->due_ms;
}

/* Returns 1 if an earlier op of a planned request has the key of this one. */
static int dq_lane_has_key(const delayq_lane *lane, const dq_op *op) {
    dq_cursor c;
    dq_cursor_begin(&c, lane);
    while (dq_cursor_next(&c) && c.number < lane->n)
        if (c.op->key_len == op->key_len &&
            memcmp(c.op->key, op->key, op->key_len) == 0)
            return 1;
    return 0;
}

/* Returns 1 if an op can share the request of a lane. */
static int dq_lane_joins(const delayq *q, const delayq_lane *lane,
                         const dq_op *first, int by_due, const dq_op *op) {
    unsigned char key = dq_op_key(q, op);
    if (op->verb->script != first->verb->script) return 0;
    if (key && lane->key && key != lane->key) return 0;
    if (op->resend) return 0; /* it goes alone */
    if (op->key && dq_lane_has_key(lane, op)) return 0;
    return !(op->verb->flags & DQ_OFFERS) ||
           (dq_op_due(lane, op) > 0) == by_due;
}

/* Returns the verb of the first op of a lane that is not empty. */
static const dq_verb *dq_lane_first_verb(const delayq_lane *lane) {
    dq_cursor c;
    if (dq_lane_is_bare(lane)) return lane->array_verb;
    dq_cursor_begin(&c, lane);
    return dq_cursor_next(&c)->verb;
}

/* Plan a request of the first ops of a lane. */
static void dq_lane_plan(delayq *q, delayq_lane *lane) {
    size_t most = lane->limit, bytes = 0;
    const dq_op *op, *first;
    dq_op kept;
    dq_cursor c;
    int by_due;
    lane->n = 0;
    lane->key = DQ_KEY_NONE;
    lane->tries = 0;
    lane->resent = lane->uploads = lane->asking = lane->zset_alone = 0;
    lane->x.number = 0;
    lane->resends = lane->unsure > 0;
    lane->x.state = DELAYQ_EXCHANGE_WAITING;
    if (dq_lane_is_bare(lane)) {
        lane->n = 1;
        return;
    }
    if (lane->ring && dq_ring_date_all(q, lane->ring) < most)
        most = (size_t)(lane->ring->dated - lane->settled);
    dq_cursor_begin(&c, lane);
    op = dq_cursor_next(&c);
    assert(op && most > 0);
    kept = *op;
    first = &kept;
    by_due = dq_op_due(lane, first) > 0;
    lane->verb = first->verb;
    if (first->verb->most < most) most = first->verb->most;
    if (lane->messages) lane->resends = first->resend;
    if (first->resend) most = 1;
    for (;;) {
        if (lane->messages && !op->resend)
            dq_message_date(q, &lane->messages[c.i]);
        if ((op->verb->flags & DQ_RETIMES) && c.op->due_ms == 0)
            c.op->due_ms = dq_due_after(q, op->begun_us, op->delay_ms);
        if (dq_op_key(q, op)) lane->key = dq_op_key(q, op);
        lane->n++;
        bytes += sizeof(dq_entry) + op->len;
        if (lane->n >= most) break;
        op = dq_cursor_next(&c);
        if (!op || !dq_lane_joins(q, lane, first, by_due, op) ||
            bytes + sizeof(dq_entry) + op->len > lane->policy->bytes)
            break;
        if (op->verb->most < most) most = op->verb->most;
        if (lane->n >= most) break;
    }
}

/* --- write --- */

/* Find the socket of a lane's request, and go on towards its being open.
 * Returns OK if it is, EMPTY if not yet, else the status of q->err. If the slot
 * is on its way to another node, which has the keys already, the request goes
 * there, on a socket of its own. */
static delayq_status dq_lane_socket(delayq *q, delayq_lane *lane,
                                    delayq_socket **s) {
    delayq_conn *conn = q->conn;
    delayq_status status = DELAYQ_OK;
    int flags = lane->verb->flags;
    *s = lane->asking ? &conn->ask : &conn->cmd;
    if (!lane->asking) {
        if ((flags & DQ_OFFERS) && q->setup.state == DELAYQ_EXCHANGE_NONE &&
            dq_sys_now() - q->setup.read_us > DQ_LOOK_US)
            q->probed = 0; /* a handle that only offers meets no element */
        status = dq_conn_ensure(q);
        if (status == DELAYQ_OK && q->foreign &&
            (flags & (DQ_OFFERS | DQ_TAKES)))
            status = dq_err_wire(q);
        return status;
    }
    if (conn->ask.first && conn->ask.state >= DELAYQ_SOCKET_OPEN)
        return DELAYQ_EMPTY; /* another lane's */
    if (conn->ask.state == DELAYQ_SOCKET_CLOSED)
        status = dq_conn_dial(conn, &conn->ask, DQ_CONN_ASK,
                              conn->owner->options.connect_timeout_ms * 1000LL);
    else if (conn->ask.state < DELAYQ_SOCKET_OPEN)
        status = dq_conn_advance(conn, &conn->ask);
    if (status == DELAYQ_OK) dq_conn_free_replies(&conn->ask.greeting);
    if (status >= DELAYQ_OK) return status;
    dq_conn_close(conn, &conn->ask, status);
    return dq_err_set(q->err, status, "%s", conn->err);
}

/* Write a lane's request. */
DQ_APART static void dq_lane_write(delayq *q, delayq_lane *lane,
                                   delayq_socket *s) {
    dq_resp_writer o;
    int n;
    dq_resp_begin(&o, s->c);
    n = dq_resp_call(&o, q, lane->verb->script, lane->uploads, lane->asking,
                     lane->verb->writer, lane);
    dq_conn_submit(q->conn, s, &lane->x, &o, n);
    lane->was_unsure = lane->unsure;
    if (lane->unsure < lane->n) lane->unsure = lane->n;
}

/* --- read --- */

/* Read a request's reply as the status of a lane: OK if there is an array to
 * read, else q->err says why not. `r` is NULL if its socket was lost. */
static delayq_status dq_lane_read_status(delayq *q, delayq_lane *lane,
                                         const redisReply *r) {
    const delayq_exchange *x = &lane->x;
    const char *name = lane->verb->name;
    if (!r) return dq_err_lost(q, x->status, q->conn->err);
    if (r->type == REDIS_REPLY_ERROR) {
        delayq_status status = dq_err_reply(q->err, name, r);
        if (status == DQ_NOSCRIPT && lane->uploads &&
            x->replies[0]->type == REDIS_REPLY_ERROR)
            status =
                dq_err_reply(q->err, name, x->replies[0]); /* the upload's */
        return status;
    }
    if (r->type == REDIS_REPLY_ARRAY && r->elements > 0) return DELAYQ_OK;
    return dq_err_bad_reply(q, name);
}

/* Learn from a reply on cmd: the server's clock, whether the socket is of use,
 * and where a redirection points. Returns the status of the lane. */
static delayq_status dq_lane_learn(delayq *q, const delayq_lane *lane,
                                   const redisReply *r, delayq_status status) {
    delayq_conn *conn = q->conn;
    int leave = r->type == REDIS_REPLY_ERROR && dq_err_lookup(r->str)->leave;
    int64_t us;
    conn->cmd.state = leave ? DELAYQ_SOCKET_OPEN : DELAYQ_SOCKET_PROVEN;
    conn->host += leave != 0; /* another server may be able to */
    if (!leave) conn->cmd.unproven = 0;
    if (status == DELAYQ_OK && dq_resp_integers(r, &us, 1))
        dq_conn_set_clock(conn, us, lane->x.sent_us, lane->x.read_us);
    if (status == DQ_MOVED || status == DQ_ASK) {
        status = dq_conn_parse_redirect(conn, r->str);
        if (status == DELAYQ_ERR_REDIS)
            dq_err_set(q->err, status, "%s", conn->err);
    }
    if (status == DQ_MOVED || leave) {
        conn->redirected = status == DQ_MOVED;
        dq_err_set(conn->err, status, "%s", q->err);
        dq_conn_lose(conn, &conn->cmd, status);
    }
    return status;
}

/* All replies to a lane's request are there, or its socket is lost: set the
 * lane's status and reply. */
static void dq_lane_read(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    delayq_exchange *x = &lane->x;
    const redisReply *r = x->got > 0 ? x->replies[x->got - 1] : NULL;
    assert(x->state == DELAYQ_EXCHANGE_ANSWERED && !lane->reply);
    lane->status = dq_lane_read_status(q, lane, r);
    if (r && !lane->asking && conn->cmd.c && x->number == conn->cmd.number)
        lane->status = dq_lane_learn(q, lane, r, lane->status);
    if (lane->asking && conn->ask.c)
        dq_conn_close(conn, &conn->ask, DELAYQ_ERR_IO);
    if (lane->status == DELAYQ_OK) lane->reply = x->replies[--x->got];
    dq_conn_free_replies(x);
    lane->asking = lane->uploads = 0;
    if (lane->status != DELAYQ_ERR_UNKNOWN &&
        lane->status != DELAYQ_ERR_PROTOCOL)
        lane->unsure =
            lane->was_unsure; /* this sending has done nothing more */
    if (lane->status == DELAYQ_OK && lane->verb->reader)
        lane->status = lane->verb->reader(q, lane);
}

/* The reply of a lane is none of its script's. */
static delayq_status dq_lane_reject(delayq *q, delayq_lane *lane) {
    return dq_err_bad_reply(q, lane->verb->name);
}

static void dq_lane_free_reply(delayq_lane *lane) {
    if (lane->reply) freeReplyObject(lane->reply);
    lane->reply = NULL;
}

/* --- settle --- */

/* An op has its final status: count it, tell the caller, and let the schedule
 * know its due time unless due_ms is 0. */
static void dq_op_settle(delayq *q, delayq_lane *lane, const dq_cursor *c,
                         delayq_status status, int64_t due_ms) {
    size_t counter = c->op->verb->counter;
    assert(status != DELAYQ_EMPTY && status < DQ_NOSCRIPT);
    if (status == DELAYQ_OK && counter > 0)
        ++*(uint64_t *)(void *)((char *)&q->counts + counter);
    if (status == DELAYQ_OK && due_ms > 0) {
        lane->due_ms = due_ms;
        dq_sched_on_own_item(q, due_ms, lane->x.read_us);
    }
    if (lane->ring) {
        q->outbox->gone += status == DELAYQ_GONE;
        q->outbox->duplicate += status == DELAYQ_DUPLICATE;
    }
    if (lane->items) lane->items[c->i].acked = status;
    if (lane->messages) { /* one that may have been stored stays so */
        delayq_message *m = &lane->messages[c->i];
        if (status >= DELAYQ_OK || m->status != DELAYQ_ERR_UNKNOWN)
            m->status = status;
        if (status > DELAYQ_OK) return;
    }
    if (lane->result == DELAYQ_OK) lane->result = status;
}

/* The first n ops are settled. */
static void dq_lane_pop(delayq_lane *lane, size_t n) {
    dq_cursor c;
    size_t i;
    assert(n > 0);
    lane->unsure -= lane->unsure < n ? lane->unsure : n;
    dq_cursor_begin(&c, lane);
    for (i = 0; lane->ring && i < n; i++) dq_ring_pop(lane->ring);
    if (lane->ring) return;
    if (dq_lane_is_bare(lane)) {
        lane->settled++;
        return;
    }
    for (i = 0; i < n; i++) dq_cursor_next(&c);
    lane->settled = c.i + 1;
    c.op = NULL; /* only refused messages may be left */
    if (!dq_cursor_next(&c)) lane->settled = lane->accepted;
}

/* A take or transfer has failed. */
static void dq_lane_fail_fetch(delayq *q, delayq_status status) {
    delayq_fetch *f = &q->fetch;
    if (f->ack.text[0])
        f->acked = f->lost && status < DELAYQ_OK ? DELAYQ_ERR_UNKNOWN : status;
    f->lost |= status == DELAYQ_ERR_UNKNOWN;
    f->failure = status;
    dq_sched_on_fault(q);
}

/* A call's request of n ops has failed for good. They get its status; so do all
 * others, unless only this request was lost and there is a connection again. */
static void dq_lane_fail(delayq *q, delayq_lane *lane, size_t n) {
    delayq_status status = lane->status, rest = status;
    int goes_on = n > 0 && status == DELAYQ_ERR_UNKNOWN && q->conn->cmd.c;
    dq_cursor c;
    if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL)
        rest = DELAYQ_ERR_IO; /* the others were not sent */
    dq_cursor_begin(&c, lane);
    if (dq_lane_is_bare(lane)) {
        lane->result = status;
        lane->settled = lane->accepted;
        lane->unsure = 0;
        if (lane == &q->fetch.lane) dq_lane_fail_fetch(q, status);
        return;
    }
    while (dq_cursor_next(&c) && (c.number < n || !goes_on))
        dq_op_settle(q, lane, &c,
                     c.number < n              ? status
                     : c.number < lane->unsure ? DELAYQ_ERR_UNKNOWN
                                               : rest,
                     0);
    if (goes_on)
        dq_lane_pop(lane, n);
    else
        lane->settled = lane->accepted, lane->unsure = 0;
}

/* --- decide --- */

typedef enum dq_verdict {
    DQ_DONE,   /* its ops are settled */
    DQ_RESEND, /* send it again at once */
    DQ_KEEP,   /* its ops stay, and are sent again at lane->retry_us */
    DQ_DROP,   /* its only op can't be sent: it goes */
    DQ_FAIL    /* its ops fail with lane->status */
} dq_verdict;

/* A request that has not run may succeed in another form: give it this form.
 * Returns 1 if there is one. */
static int dq_decide_form(delayq *q, delayq_lane *lane) {
    int is_native = !q->wire->mirror && !q->wire->stream;
    if (lane->status == DQ_NOSCRIPT) {
        lane->uploads = 1;
    } else if (lane->status == DQ_ASK) {
        lane->asking = q->conn->cmd.c != NULL;
    } else if (lane->status == DQ_TRYAGAIN && (lane->verb->flags & DQ_TAKES) &&
               !lane->zset_alone && is_native) {
        lane->zset_alone = 1; /* one key lies on one node */
        lane->as_waiter = 0;
    } else if (lane->status == DELAYQ_ERR_AUTH && lane->as_waiter) {
        lane->as_waiter = 0; /* forbidden: wait as if alone */
        dq_waiters_on_refusal(q);
    } else {
        return lane->status == DQ_MOVED;
    }
    return 1;
}

/* A socket was lost before or after a call's request was sent. Returns 1 if
 * another sending is provably harmless; there is one at most. */
static int dq_decide_resend(const delayq *q, delayq_lane *lane) {
    const delayq_conn *conn = q->conn;
    int flags = lane->verb->flags;
    int lost = !conn->cmd.c ||
               (lane->x.number > 0 && lane->x.number != conn->cmd.number);
    if (lane->resent || !lost || conn->cmd.failures > 0) return 0;
    lane->resent = 1;
    if (lane->status == DELAYQ_ERR_UNKNOWN && (flags & DQ_IDEMPOTENT)) {
        lane->resends = 1;
        return 1;
    }
    return lane->status == DELAYQ_ERR_IO ||
           lane->status == DELAYQ_ERR_READONLY ||
           lane->status == DELAYQ_ERR_AGAIN ||
           (lane->status == DELAYQ_ERR_UNKNOWN && (flags & DQ_READ_ONLY));
}

/* A ring's request has failed: its ops stay. After a lost socket the next
 * request is half as large, until a single op has ended so many connections
 * that it must be the cause. */
static dq_verdict dq_decide_ring(delayq *q, delayq_lane *lane) {
    int lost = lane->x.number > 0 && (lane->status == DELAYQ_ERR_UNKNOWN ||
                                      lane->status == DELAYQ_ERR_IO);
    if (!lost) {
        int64_t most = q->options.reconnect_max_ms * 1000LL;
        if (lane->failures < 60) lane->failures++;
        lane->retry_us =
            dq_sys_now() + dq_num_backoff(DQ_BACKOFF_US, most, lane->failures);
        return DQ_KEEP;
    }
    lane->retry_us = 0; /* the connection has its own pause */
    lane->limit = lane->n > 1 ? lane->n / 2 : 1;
    lane->suspect = 1;
    if (lane->n > 1 || q->conn->timed_out)
        lane->losses = 0;
    else if (lane->x.alone && ++lane->losses >= lane->policy->losses)
        return DQ_DROP;
    return DQ_KEEP;
}

/* Decide about a request whose reply is read, or whose socket is lost: the only
 * function that decides about retries. */
static dq_verdict dq_decide(delayq *q, delayq_lane *lane) {
    if (lane->status == DELAYQ_OK) return DQ_DONE;
    if (lane->tries++ < DQ_HOPS) {
        if (dq_decide_form(q, lane)) return DQ_RESEND;
        if (!lane->policy->losses && dq_decide_resend(q, lane))
            return DQ_RESEND;
    }
    if (lane->status == DQ_NOSCRIPT)
        dq_err_set(q->err, lane->status, "the server forgets its scripts");
    return lane->policy->losses ? dq_decide_ring(q, lane) : DQ_FAIL;
}

/* --- the step --- */

/* The request of a lane has come to its end, for now. */
static void dq_lane_end(delayq *q, delayq_lane *lane) {
    dq_verdict verdict = dq_decide(q, lane);
    size_t n = lane->n;
    lane->x.state = DELAYQ_EXCHANGE_NONE;
    if (verdict == DQ_RESEND) {
        int apart = lane->messages && n > 1 && lane->unsure > 0;
        if (n > 0 && !apart) lane->x.state = DELAYQ_EXCHANGE_WAITING;
        if (apart) lane->n = 0; /* planned again, one by one */
        return;
    }
    lane->n = 0;
    if (verdict == DQ_DONE) {
        dq_lane_pop(lane, n);
        lane->failures = lane->losses = lane->suspect = 0;
        lane->retry_us = 0;
        if (2 * n > lane->limit) lane->limit *= 2;
        if (lane->limit > DQ_RING_LIMIT) lane->limit = DQ_RING_LIMIT;
        return;
    }
    if (lane->status == DELAYQ_ERR_UNKNOWN &&
        (lane->verb->flags & DQ_READ_ONLY))
        lane->status =
            dq_err_set(q->err, DELAYQ_ERR_IO,
                       "%s: no reply came, or there is no memory for it; it "
                       "changes nothing",
                       lane->verb->name);
    if (lane->unsure > 0 && verdict == DQ_FAIL &&
        !(lane->verb->flags & DQ_READ_ONLY))
        lane->status = dq_err_after_loss(q, lane->verb->name, lane->status);
    lane->status = dq_err_public(lane->status);
    if (lane->ring || lane == &q->fetch.lane) dq_lane_note(q, lane->status);
    if (verdict == DQ_FAIL) dq_lane_fail(q, lane, n);
    if (verdict != DQ_DROP) return;
    dq_err_set(
        q->err, lane->status,
        "%s of %lu bytes: dropped, since the server ends each connection "
        "over which it is sent",
        lane->verb->name,
        (unsigned long)dq_ring_entry(lane->ring, lane->ring->head)->op.len);
    dq_err_log(q, lane->status, q->err);
    dq_lane_pop(lane, 1);
    q->outbox->dropped++;
    lane->losses = 0;
}

/* Returns 1 if a lane may send now. */
static int dq_lane_may_send(const delayq *q, const delayq_lane *lane) {
    if (lane->x.state == DELAYQ_EXCHANGE_WAITING) return 1;
    if (dq_sched_lane(q, lane) > dq_sys_now()) return 0;
    return !lane->ring || (q->conn->known && q->probed); /* a tick connects */
}

/* Go on with a lane as far as it goes without waiting. */
static void dq_lane_step(delayq *q, delayq_lane *lane) {
    while (lane->x.state != DELAYQ_EXCHANGE_SENT) {
        delayq_status ready;
        delayq_socket *s;
        if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) {
            dq_lane_read(q, lane);
            dq_lane_end(q, lane);
            continue;
        }
        if (!dq_lane_may_send(q, lane)) return;
        if (lane->n == 0) lane->verb = dq_lane_first_verb(lane);
        ready = dq_lane_socket(q, lane, &s);
        if (ready == DELAYQ_EMPTY) return;
        if (ready != DELAYQ_OK) {
            lane->status = ready;
            dq_lane_end(q, lane);
            continue;
        }
        if (s->body_len > 0) return; /* another payload is being written */
        if (lane->x.state == DELAYQ_EXCHANGE_NONE) dq_lane_plan(q, lane);
        dq_lane_write(q, lane, s);
    }
}
/*-----------------------------------------------------------------------------
 * MARK: - Subscriber
 * >>subscriber   the connection that only listens
 *
 * Owns the messages that a connection hears: on the queue's channel, on the
 * handle's own, and of pushes into N, which the server reports by client
 * tracking. It only saves time: without it a handle polls every 250 ms. Its
 * failures are reported to the log.
 *---------------------------------------------------------------------------*/

#define DQ_SUB_POLL_US 1000 /* between two reads of an idle subscriber */

static int dq_sub_is_key(const delayq *q, const char *prefix, const char *rest,
                         const redisReply *r) {
    char key[DQ_RESP_SMALL];
    size_t len = dq_resp_key_text(q, prefix, rest, key);
    return r->len == len && memcmp(r->str, key, len) == 0;
}

/* Hand a message, or the begin or end of a subscription, to one handle. */
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

/* Send the commands in the writer. Their replies are read like messages. */
static delayq_status dq_sub_send(delayq_conn *conn, dq_resp_writer *o) {
    dq_resp_flush(o);
    conn->sub.unwritten = 1;
    return dq_conn_write(conn, &conn->sub);
}

/* Subscribe or unsubscribe some of a handle's channels. */
static void dq_sub_subscribe(delayq *q, const char *verb, int what) {
    static const char *const prefixes[] = {DQ_CHANNEL, DQ_WAITERS, DQ_TURN};
    delayq_conn *conn = q->conn;
    dq_resp_writer o;
    int i;
    if (conn->sub.state < DELAYQ_SOCKET_OPEN || what == 0) return;
    dq_resp_begin(&o, conn->sub.c);
    for (i = 0; i < 3; i++) {
        if (!(what & 1 << i)) continue;
        dq_resp_command(&o, 2, verb);
        dq_resp_key(&o, q, prefixes[i], i == 2 ? q->id : "");
    }
    if (dq_sub_send(conn, &o) != DELAYQ_OK)
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
}

/* Returns 1 if another handle on the connection uses the same queue. */
static int dq_sub_queue_shared(const delayq *q) {
    const delayq *h;
    for (h = q->conn->handles; h; h = h->next)
        if (h != q && dq_sched_same_queue(h, q)) return 1;
    return 0;
}

/* Subscribe q to what its role among the waiters needs. */
static void dq_sub_follow_role(delayq *q) {
    const delayq_socket *s = &q->conn->sub;
    delayq_waiter *w = &q->waiter;
    int off;
    if (s->state >= DELAYQ_SOCKET_OPEN && q->will_wait && !w->asked) {
        w->asked = 1;
        dq_sub_subscribe(q, "SUBSCRIBE", DQ_SUB_OWN | DQ_SUB_WAITERS);
    }
    off = w->role == DELAYQ_WAITER_SLEEPER;
    if (s->state < DELAYQ_SOCKET_OPEN || w->off_queue == off ||
        dq_sub_queue_shared(q))
        return;
    w->off_queue = off != 0;
    dq_sub_subscribe(q, off ? "UNSUBSCRIBE" : "SUBSCRIBE", DQ_SUB_QUEUE);
}

/* Close the subscriber for `why`, and report it. */
static void dq_sub_fail(delayq_conn *conn, delayq_status why) {
    if (conn->sub.state < DELAYQ_SOCKET_OPEN) conn->sub.failures++;
    dq_conn_lose(conn, &conn->sub, why);
    dq_err_log(conn->owner, dq_err_public(why), conn->err);
}

/* Read a message, or the reply to a subscription or ping. A refused
 * subscription leaves a subscriber that hears less. */
static void dq_sub_receive(delayq_conn *conn, const redisReply *r) {
    delayq *h = conn->handles;
    conn->sub_pinged_us = 0;
    if (r->type == REDIS_REPLY_ERROR)
        dq_err_log(conn->owner, dq_conn_refused(conn, "listening", r),
                   conn->err);
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(r->element[1]->str, DQ_INVALIDATE) == 0 &&
        strcmp(r->element[0]->str, "subscribe") == 0 && conn->sub_id > 0)
        conn->tracking = DELAYQ_TRACK_ALLOWED;
    for (; h; h = h->next)
        dq_sub_dispatch(h, r->element[0]->str, r->element[1], r->element[2]);
}

/* Returns 1 if the subscriber hears nothing at all. */
static int dq_sub_is_deaf(const delayq_conn *conn) {
    const delayq *h = conn->handles;
    while (h && !h->subscribed && !h->waiter.own_heard) h = h->next;
    return !h && conn->tracking == DELAYQ_TRACK_OFF;
}

/* Read what the subscriber has received, and ping it when it is quiet. */
static delayq_status dq_sub_read(delayq_conn *conn, int64_t now) {
    delayq_socket *s = &conn->sub;
    delayq_status status = dq_conn_pump(conn, s, dq_sub_receive);
    dq_resp_writer o;
    if (status == DELAYQ_OK && s->state == DELAYQ_SOCKET_OPEN &&
        now - s->begun_us > DQ_SECOND_US) {
        if (dq_sub_is_deaf(conn)) /* until the rights are mended */
            return dq_err_set(conn->err, DELAYQ_ERR_AUTH,
                              "listening: the server refuses all of it");
        s->state = DELAYQ_SOCKET_PROVEN;
        s->failures = s->unproven = 0;
    }
    if (status != DELAYQ_OK || now - s->moved_us < DQ_PING_US) return status;
    if (conn->sub_pinged_us > 0)
        return now < dq_sched_ping_us(conn)
                   ? DELAYQ_OK
                   : dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                                "listening: no reply in time");
    conn->sub_pinged_us = now;
    dq_resp_begin(&o, s->c);
    dq_resp_command(&o, 1, "PING");
    return dq_sub_send(conn, &o);
}

/* The subscriber is logged in: subscribe the channels of all handles. */
static void dq_sub_opened(delayq_conn *conn) {
    delayq_socket *s = &conn->sub;
    redisReply **r = s->greeting.replies;
    const redisReply *id = r[s->greeting.wants - 1];
    dq_resp_writer o;
    delayq *h;
    conn->sub_id = id->type == REDIS_REPLY_INTEGER ? id->integer : 0;
    dq_conn_free_replies(&s->greeting);
    conn->sub_pinged_us = 0;
    s->moved_us = dq_sys_now();
    for (h = conn->handles; h && s->c; h = h->next) {
        h->waiter.asked = h->will_wait;
        dq_sub_subscribe(h, "SUBSCRIBE",
                         h->will_wait
                             ? DQ_SUB_QUEUE | DQ_SUB_WAITERS | DQ_SUB_OWN
                             : DQ_SUB_QUEUE);
    }
    if (!s->c) return;
    /* The last one, so that tracking begins when all others are confirmed. */
    dq_resp_begin(&o, s->c);
    dq_resp_command(&o, 2, "SUBSCRIBE " DQ_INVALIDATE);
    if (dq_sub_send(conn, &o) != DELAYQ_OK) dq_sub_fail(conn, DELAYQ_ERR_IO);
}

/* Empty the pipe and read both sockets, at most once a millisecond; go on with
 * connecting the subscriber. Nobody else reads an idle cmd, and tracking ends
 * with it. */
static void dq_sub_step(delayq_conn *conn, int64_t now) {
    delayq_socket *s = &conn->sub;
    delayq_status status;
    if (now - conn->sub_read_us < DQ_SUB_POLL_US) return;
    conn->sub_read_us = now;
    dq_sys_drain_pipe(conn->pipe[0]);
    if (conn->cmd.state >= DELAYQ_SOCKET_OPEN) dq_conn_step(conn);
    if (s->state == DELAYQ_SOCKET_CLOSED) return;
    status = s->state >= DELAYQ_SOCKET_OPEN ? dq_sub_read(conn, now)
                                            : dq_conn_advance(conn, s);
    if (status < DELAYQ_OK) dq_sub_fail(conn, status);
    if (status == DELAYQ_OK && s->state == DELAYQ_SOCKET_OPEN &&
        s->greeting.got > 0)
        dq_sub_opened(conn);
}

/* Begin to open the subscriber to the server of cmd, unless a pause after a
 * failure forbids it. */
static void dq_sub_open(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_status status;
    if (conn->sub.state != DELAYQ_SOCKET_CLOSED || !conn->known ||
        dq_sys_now() < conn->sub.retry_us)
        return;
    conn->sub_at = dq_conn_hash_address(&conn->at);
    status = dq_conn_dial(conn, &conn->sub, DQ_CONN_SUB,
                          conn->owner->options.connect_timeout_ms * 1000LL);
    if (status < DELAYQ_OK) dq_sub_fail(conn, status);
    if (status == DELAYQ_OK) dq_sub_opened(conn);
}

/* Ask the server to report the next push into N, and for the length of N, which
 * counts the pushes before. Do nothing if it reports the push anyway, or can't
 * be asked now. */
static void dq_sub_track(delayq *q) {
    delayq_conn *conn = q->conn;
    const delayq_waiter *w = &q->waiter;
    int64_t now = dq_sys_now();
    dq_resp_writer o;
    int n = 2;
    assert(!q->list_tracked || conn->tracking == DELAYQ_TRACK_ON);
    if (q->list_tracked || q->wire->stream || !conn->known || !q->probed ||
        q->setup.state != DELAYQ_EXCHANGE_NONE || conn->cmd.body_len > 0 ||
        conn->tracking == DELAYQ_TRACK_OFF || now < q->track_us ||
        w->role == DELAYQ_WAITER_SLEEPER || w->push_us > now)
        return;
    dq_waiters_on_track_sent(q);
    dq_resp_begin(&o, conn->cmd.c);
    if (conn->tracking != DELAYQ_TRACK_ON) {
        dq_resp_command(&o, 7, "CLIENT TRACKING ON REDIRECT");
        dq_resp_int(&o, conn->sub_id);
        dq_resp_text(&o, "OPTIN");
        dq_resp_text(&o, "NOLOOP");
        n++;
    }
    dq_resp_command(&o, 3, "CLIENT CACHING YES");
    dq_resp_command(&o, 2, "LLEN");
    dq_resp_arg(&o, q->name, q->name_len, 0);
    q->setup_kind = DELAYQ_SETUP_TRACK;
    dq_conn_submit(conn, &conn->cmd, &q->setup, &o, n);
}

/* Read the replies to tracking, if they are there. A transient error is not a
 * refusal: tracking is tried again later. */
static delayq_status dq_sub_on_track(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_exchange *x = &q->setup;
    const redisReply *length;
    delayq_status status = DELAYQ_OK;
    int i = 0;
    if (q->setup_kind == DELAYQ_SETUP_PROBE ||
        x->state != DELAYQ_EXCHANGE_ANSWERED)
        return DELAYQ_OK;
    length = x->replies[x->wants - 1];
    while (i < x->wants && x->replies[i]->type != REDIS_REPLY_ERROR) i++;
    if (i < x->wants) {
        delayq_status why = dq_err_lookup(x->replies[i]->str)->status;
        if (i + 1 < x->wants && !dq_err_is_transient(why))
            conn->tracking = DELAYQ_TRACK_OFF; /* Redis 5, or an ACL */
        else if (why < DQ_NOSCRIPT) /* the next take follows a redirection */
            status = dq_err_reply(q->err, "wait", x->replies[i]);
        dq_sched_on_untracked(q, x->read_us);
    } else if (length->type != REDIS_REPLY_INTEGER) {
        status = dq_err_bad_reply(q, "wait");
    } else if (conn->tracking != DELAYQ_TRACK_OFF &&
               q->setup_kind == DELAYQ_SETUP_TRACK) {
        conn->tracking = DELAYQ_TRACK_ON;
        dq_waiters_on_track(q, length->integer);
    }
    dq_conn_free_replies(x);
    x->state = DELAYQ_EXCHANGE_NONE;
    q->setup_kind = DELAYQ_SETUP_PROBE;
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiting
 * >>waiting   the one step, and the one sleep
 *
 * dq_step is the only function that drives the sockets and lanes of a handle;
 * dq_sleep is the only one that sleeps. A blocking call repeats both until its
 * lane is settled or its time is over.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_CONNS 20

/* Read the input, settle the requests that are answered, send the pending ones:
 * as far as it goes without waiting. Returns why pushes can't be heard, or OK.
 */
static delayq_status dq_step(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_lane *lane;
    delayq_status status;
    dq_sub_step(conn, dq_sys_now());
    if (conn->cmd.first && conn->cmd.state >= DELAYQ_SOCKET_OPEN)
        dq_conn_step(conn);
    if (conn->ask.first && conn->ask.state >= DELAYQ_SOCKET_OPEN)
        dq_conn_pump_open(conn, &conn->ask);
    status = dq_sub_on_track(q);
    for (lane = q->lanes; lane; lane = lane->next)
        if (!dq_lane_is_idle(lane)) dq_lane_step(q, lane);
    return status;
}

/* What a sleep may be ended by, besides the schedule. */
typedef enum dq_sleep_for {
    DQ_FOR_REPLY, /* the replies in flight */
    DQ_FOR_FLUSH, /* also delayq_wake, and messages */
    DQ_FOR_ITEMS  /* and the next poll */
} dq_sleep_for;

/* Returns 1 if a queue before number i uses the same connection. */
static int dq_wait_seen_conn(delayq *const *queues, size_t i) {
    size_t k;
    for (k = 0; k < i; k++)
        if (queues[k]->conn == queues[i]->conn) return 1;
    return 0;
}

/* Sleep until one of the queues can go on, or until `until`. A handle that was
 * woken before does not sleep: its pipe may have been emptied meanwhile. */
static void dq_sleep(delayq *const *queues, size_t count, int64_t until,
                     dq_sleep_for what) {
    struct pollfd p[4 * DQ_MAX_CONNS];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq_conn *conn = queues[i]->conn;
        int64_t next = dq_sched_next(queues[i], what == DQ_FOR_ITEMS);
        if (what != DQ_FOR_REPLY && DQ_LOAD(&queues[i]->woken)) return;
        if (next < until) until = next;
        if (dq_wait_seen_conn(queues, i)) continue;
        if (what != DQ_FOR_REPLY) p[n++] = dq_sys_watch(conn->pipe[0], POLLIN);
        if (what != DQ_FOR_REPLY && conn->sub.c)
            p[n++] = dq_conn_watch(&conn->sub);
        if (conn->cmd.c) p[n++] = dq_conn_watch(&conn->cmd);
        if (conn->ask.c) p[n++] = dq_conn_watch(&conn->ask);
    }
    assert(n <= sizeof p / sizeof p[0]);
    dq_sys_poll_until(p, n, until);
    for (i = 0; i < count && what != DQ_FOR_REPLY; i++)
        queues[i]->conn->sub_read_us = 0;
}

/* Returns the end of a call that begins now, reconnecting included. */
static int64_t dq_wait_limit(const delayq *q) {
    return dq_sys_now() + dq_sched_patience_us(q->conn, q->call_ms);
}

static int64_t dq_wait_deadline(int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return dq_sys_now() + timeout_ms * 1000;
}

/* The time of a call's lane is over: give its request up. */
static void dq_wait_expire(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    delayq_socket *s = lane->asking ? &conn->ask : &conn->cmd;
    lane->tries = DQ_HOPS; /* no other sending */
    if (lane->x.state == DELAYQ_EXCHANGE_SENT)
        dq_conn_lose(conn, s, dq_conn_timeout(conn, s));
    if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) {
        dq_lane_read(q, lane);
    } else {
        if (s->state >= DELAYQ_SOCKET_OPEN)
            dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                       "connected, but no time is left: nothing has happened");
        else
            dq_conn_late(conn, s, "; the attempt goes on");
        lane->status = dq_err_set(q->err, DELAYQ_ERR_TIMEOUT, "%s", conn->err);
    }
    dq_lane_end(q, lane);
    if (lane->x.state == DELAYQ_EXCHANGE_NONE && lane->settled < lane->accepted)
        dq_lane_fail(q, lane, 0); /* the rest was not sent */
}

/* Returns the time until which a request in flight is awaited although its call
 * should be over: a request that was sent late has two round trips. */
static int64_t dq_wait_late_us(const delayq *q, const delayq_lane *lane) {
    if (lane->x.state != DELAYQ_EXCHANGE_SENT) return 0;
    return lane->x.sent_us + dq_sched_patience_us(q->conn, 0);
}

/* Returns 1 if the socket of a lane's request has input to read. */
static int dq_wait_has_input(const delayq *q, const delayq_lane *lane) {
    const delayq_socket *s = lane->asking ? &q->conn->ask : &q->conn->cmd;
    struct pollfd p;
    if (!s->c) return 0;
    p = dq_conn_watch(s);
    return dq_sys_poll(&p, 1, 0) > 0;
}

/* Step and sleep until a lane is settled. Each of its requests has until the
 * deadline, or until dq_wait_limit counted from its planning; with each MB that
 * moves the time begins again, as a line may need longer for a large payload. A
 * server that sends byte by byte can't hold the call for ever, but the bytes
 * that have come in time are read. */
static void dq_wait_lane(delayq *q, delayq_lane *lane, int64_t deadline) {
    unsigned moved = q->conn->moved;
    uint64_t settled = lane->settled;
    int late = 0;
    dq_lane_step(q, lane);
    while (!dq_lane_is_idle(lane)) {
        int64_t now = dq_sys_now(), end;
        if (lane->settled != settled || q->conn->moved - moved >= 1u << 20) {
            settled = lane->settled;
            moved = q->conn->moved;
            end = dq_wait_limit(q);
            if (end > deadline) deadline = end;
        }
        if (now >= deadline) {
            end = dq_wait_late_us(q, lane);
            if (end > deadline) deadline = end;
        }
        if (now >= deadline && (!dq_wait_has_input(q, lane) || ++late > 64)) {
            dq_wait_expire(q, lane);
            return;
        }
        dq_sleep(&q, 1, deadline, DQ_FOR_REPLY);
        dq_step(q);
    }
}

/* Run a lane of a call to its end. Returns its result. */
static delayq_status dq_wait_run(delayq *q, delayq_lane *lane) {
    dq_lane_attach(q, lane);
    dq_wait_lane(q, lane, dq_wait_limit(q));
    dq_lane_detach(q, lane);
    return lane->result;
}

/* Wait for an open connection on which q's queue is known. */
static delayq_status dq_wait_connected(delayq *q, int64_t deadline) {
    const delayq_conn *conn = q->conn;
    for (;;) {
        delayq_status status = dq_conn_ensure(q);
        if (status != DELAYQ_EMPTY) return status;
        if (dq_sys_now() >= deadline)
            return dq_err_set(
                q->err,
                dq_conn_late(q->conn, &conn->cmd, "; the attempt goes on"),
                "%s", conn->err);
        dq_sleep(&q, 1, deadline, DQ_FOR_REPLY);
        if (conn->cmd.state >= DELAYQ_SOCKET_OPEN) dq_conn_step(q->conn);
        dq_sub_on_track(q);
    }
}

/* Returns 1 if delayq_wake was called. It counts once. */
static int dq_wait_consume_wake(delayq *q) {
    if (!DQ_LOAD(&q->woken)) return 0;
    DQ_STORE(&q->woken, 0);
    return 1;
}

/* Returns 1 in the pause before the next attempt to connect. The log has the
 * cause, and need not get it again each time that something ends a sleep. */
static int dq_wait_is_paused(const delayq *q) {
    const delayq_socket *s = &q->conn->cmd;
    return s->state == DELAYQ_SOCKET_CLOSED && dq_sys_now() < s->retry_us;
}

/* A transient fault within a take or wait: report it, and don't spin. */
static void dq_wait_ride_out(delayq *q, delayq_status status) {
    dq_err_log(q, status, q->err);
    dq_sched_on_fault(q);
}
/*-----------------------------------------------------------------------------
 * MARK: - Taking
 * >>taking   transfers and takes
 *
 * Owns q->fetch: the one transfer or take of a handle, and the items that its
 * reply has brought. A loop and a blocking call use it in the same way; only
 * the latter waits for the reply. It also owns the meaning of such a reply.
 *---------------------------------------------------------------------------*/

/* --- write --- */

/* The due time and the prefix that a ticket names. */
static void dq_write_ticket(dq_resp_writer *o, const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n = dq_elem_ticket_prefix(text, key, &due_len);
    dq_resp_arg(o, text, due_len, 0);
    dq_resp_arg(o, key, n, 0);
}

/* Three keys: the zset; the ready list or the stream; the retry list or the
 * mirror. */
static void dq_write_three_keys(dq_resp_writer *o, const delayq *q) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->wire->stream)
        dq_resp_key(o, q, DQ_STREAM, "");
    else
        dq_resp_arg(o, q->name, q->name_len, 0);
    dq_resp_key(o, q, q->wire->third_key, "");
}

/* The keys and arguments of a transfer, with which those of a take begin. */
static void dq_write_transfer(dq_resp_writer *o, delayq *q,
                              const delayq_lane *lane) {
    if (lane->zset_alone) {
        dq_resp_key(o, q, DQ_ZSET, "");
    } else {
        dq_write_three_keys(o, q);
        dq_resp_key(o, q, DQ_DEAD, "");
        if (lane->as_waiter) dq_resp_key(o, q, DQ_WAITERS, "");
    }
    dq_resp_end_keys(o, q);
    dq_resp_text(o, q->wire->letter);
    dq_resp_int(o, q->options.batch);
    dq_resp_int(o, q->options.max_wait_ms);
    dq_resp_text(o, q->fetch.overdue ? "due" : "");
}

static void dq_write_take(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    const delayq_fetch *f = &q->fetch;
    int acks = f->ack.text[0] != '\0';
    unsigned char id_rest[6] = {0};
    dq_write_transfer(o, q, lane);
    dq_resp_int(o, (int64_t)f->max);
    dq_resp_text(o, q->retry_turn ? "retry" : "ready");
    if (q->options.lease_ms == 0 && q->options.max_attempts == 0 && !acks &&
        !lane->as_waiter)
        return;
    dq_resp_int(o, q->options.max_attempts);
    dq_resp_int(o, q->options.lease_ms);
    if (acks) {
        dq_write_ticket(o, f->ack.text);
    } else {
        dq_resp_text(o, "");
        dq_resp_text(o, "");
    }
    dq_resp_int(o, (int64_t)f->order);
    memcpy(id_rest, q->handle_id, 5);
    if (q->wire->old_first)
        dq_resp_int(o, dq_elem_old_id_low(q));
    else
        dq_resp_arg(o, id_rest, sizeof id_rest, 0);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    if (!lane->as_waiter) return;
    dq_resp_text(o, q->id);
    dq_resp_text(o, q->will_wait ? "1" : "0");
    dq_resp_key(o, q, DQ_TURN, "");
    dq_resp_text(o, dq_waiters_claim(q));
    /* the standbys among many: the same number in each script */
    dq_resp_int(o, q->handle_id[6] << 8 | q->handle_id[7]);
}

static void dq_write_broadcast(dq_resp_writer *o, delayq *q,
                               const delayq_lane *lane) {
    dq_write_transfer(o, q, lane);
    dq_resp_int(o, (int64_t)(q->fetch.takes ? q->fetch.max : 0));
    dq_resp_text(o, q->cursor);
    dq_resp_int(o, q->options.broadcast_keep);
    dq_resp_key(o, q, DQ_CHANNEL, "");
}

/* --- read --- */

/* The numbers of a reply tell the schedule and the waiters when to go on. */
static void dq_fetch_apply(delayq *q, const delayq_lane *lane,
                           const int64_t *n) {
    const redisReply *dues = lane->reply->element[DQ_AT_DUES];
    int takes = q->fetch.takes && !q->wire->stream;
    int empty = lane->reply->elements <= DQ_AT_DUES + 1;
    /* a tick beside takes waits for the next of them */
    int unheard = (takes || q->empty_takes) &&
                  (q->conn->tracking == DELAYQ_TRACK_OFF || lane->zset_alone);
    /* an item of the list has no due time; one that is taken straight from the
     * zset leaves the list as it is */
    int taken = n[DQ_AT_MOVED] > 0 ||
                (dues->len > 0 && (*dues->str < '0' || *dues->str > '9'));
    if (q->wire->stream) unheard = 0;
    q->counts.moved += (uint64_t)n[DQ_AT_MOVED];
    q->counts.died += (uint64_t)n[DQ_AT_DEAD];
    dq_sched_on_reply(q, &lane->x, n[DQ_AT_NEXT], n[DQ_AT_READY], unheard,
                      taken);
    if (takes)
        dq_waiters_on_reply(q, lane->x.sent_us, n[DQ_AT_NEXT], !empty,
                            lane->as_waiter ? n[DQ_AT_ROLE] : -1);
    if (n[DQ_AT_FOREIGN] > 0) q->foreign = (unsigned char)n[DQ_AT_FOREIGN];
}

/* Read the numbers with which a reply begins. Returns 0 if it is none of ours.
 */
static int dq_fetch_numbers(const redisReply *r, int64_t n[DQ_NUMBERS]) {
    size_t more = DQ_NUMBERS - DQ_AT_READY;
    const redisReply *rest;
    memset(n, 0, DQ_NUMBERS * sizeof *n);
    if (r->elements <= DQ_AT_DUES || !dq_resp_integers(r, n, DQ_AT_READY))
        return 0;
    rest = r->element[DQ_AT_READY];
    if (r->element[DQ_AT_DUES]->type != REDIS_REPLY_STRING) return 0;
    return rest->type == REDIS_REPLY_INTEGER ||
           dq_resp_integers(rest, n + DQ_AT_READY, more);
}

/* Keep the items of a reply, to be handed out. Returns 0 if these are more than
 * were asked for, or a broadcast's are no pairs behind a cursor. */
static int dq_fetch_keep(delayq *q, delayq_lane *lane, int64_t us) {
    delayq_fetch *f = &q->fetch;
    redisReply *r = lane->reply;
    size_t stream = q->wire->stream, step = 1 + stream;
    f->at = DQ_AT_DUES + 1 + stream;
    f->us = us;
    f->due = r->element[DQ_AT_DUES]->str;
    if (r->elements < f->at || (r->elements - f->at) % step != 0) return 0;
    f->got = (r->elements - f->at) / step;
    if (f->got > (f->takes ? f->max : 0)) return 0;
    if (stream) {
        const redisReply *cursor = r->element[f->at - 1];
        if (cursor->type != REDIS_REPLY_STRING ||
            cursor->len >= sizeof q->cursor)
            return 0;
        memcpy(q->cursor, cursor->str, cursor->len + 1);
    }
    f->lease_end_us = q->options.lease_ms > 0
                          ? lane->x.sent_us + q->options.lease_ms * 1000
                          : DQ_NEVER;
    f->reply = r;
    lane->reply = NULL;
    return 1;
}

/* The status of a ticket whose item was done, or is not there. */
static delayq_status dq_ticket_status(delayq *q, const delayq_lane *lane,
                                      int done) {
    if (done) return DELAYQ_OK;
    if (!lane->resends) return DELAYQ_GONE;
    return dq_err_set(q->err, DELAYQ_ERR_UNKNOWN,
                      "%s: sent twice, and the item is no longer there: it was "
                      "done, or the lease was lost",
                      lane->verb->name);
}

static void dq_fetch_free(delayq *q) {
    if (q->fetch.reply) freeReplyObject(q->fetch.reply);
    q->fetch.reply = NULL;
}

/* Read the reply to a transfer or take. */
static delayq_status dq_read_fetch(delayq *q, delayq_lane *lane) {
    delayq_fetch *f = &q->fetch;
    int64_t n[DQ_NUMBERS];
    int acks = f->ack.text[0] != '\0', fine;
    assert(!f->reply);
    fine = dq_fetch_numbers(lane->reply, n) && (n[DQ_AT_ACKED] & ~1) == 0;
    if (fine) {
        dq_fetch_apply(q, lane, n);
        if (acks) f->acked = dq_ticket_status(q, lane, n[DQ_AT_ACKED] != 0);
        if (acks && f->lost && f->acked != DELAYQ_OK)
            f->acked = DELAYQ_ERR_UNKNOWN;
        if (acks) q->counts.acked += f->acked == DELAYQ_OK;
        f->ack.text[0] = '\0';
        fine = dq_fetch_keep(q, lane, n[DQ_AT_US]);
    }
    dq_lane_free_reply(lane);
    if (!fine) return dq_lane_reject(q, lane);
    if (n[DQ_AT_FOREIGN] > 0 && f->got == 0) f->failure = dq_err_wire(q);
    return DELAYQ_OK;
}

/* --- items --- */

/* Returns 1 if there are items that were not handed out. */
static int dq_fetch_has_items(const delayq *q) {
    const delayq_fetch *f = &q->fetch;
    return f->reply && f->at < f->reply->elements;
}

/* Count an item that is handed out, and how late it is. */
static void dq_item_count(delayq *q, delayq_item *item, int64_t us) {
    int bucket = 0;
    q->counts.taken++;
    q->counts.redelivered += item->attempt > 1;
    item->late_us = -1;
    if (item->due_ms == 0) return;
    item->late_us = us - item->due_ms * 1000;
    if (item->late_us < 0) item->late_us = 0;
    while (bucket < 23 && item->late_us >= (int64_t)1 << bucket) bucket++;
    q->counts.lateness[bucket]++;
}

/* Read an item of a broadcast: a place in the stream, and the payload. */
static int dq_item_of_stream(delayq_item *item, redisReply *const *r) {
    const redisReply *place = r[0];
    if (place->type != REDIS_REPLY_STRING || place->len >= 44) return 0;
    memcpy(item->ticket.text, place->str, place->len + 1);
    item->data = r[1]->str;
    item->len = r[1]->len;
    item->attempt = 1;
    return r[1]->type == REDIS_REPLY_STRING;
}

/* Read an item of the lists or the zset: an element, or a raw payload. */
static int dq_item_of_element(const delayq *q, delayq_item *item,
                              const redisReply *r, int raw) {
    const delayq_fetch *f = &q->fetch;
    const unsigned char *e = (const unsigned char *)r->str;
    int64_t lease_ms = q->options.lease_ms;
    size_t at = 0;
    int kind = -1;
    if (r->type != REDIS_REPLY_STRING) return 0;
    if (lease_ms > 0 || !raw) {
        kind = dq_elem_parse_of(q, e, r->len, &at);
        if (kind < 0) return 0;
    }
    if (lease_ms > 0)
        dq_elem_ticket(&item->ticket, (f->us + 999) / 1000 + lease_ms, e, kind);
    item->data = e + at;
    item->len = r->len - at;
    item->attempt = dq_elem_attempt(e, kind) + (lease_ms == 0);
    return 1;
}

/* Hand out up to max items. If one is malformed, no other is to be believed. */
static delayq_status dq_fetch_hand_out(delayq *q, delayq_item *items,
                                       size_t max, size_t *count) {
    delayq_fetch *f = &q->fetch;
    size_t stream = q->wire->stream;
    *count = 0;
    while (*count < max && dq_fetch_has_items(q)) {
        delayq_item *item = &items[*count];
        redisReply *const *r = f->reply->element + f->at;
        int fine;
        memset(item, 0, sizeof *item);
        if (*f->due >= '0' && *f->due <= '9') item->due_ms = dq_num_due(f->due);
        fine = stream ? dq_item_of_stream(item, r)
                      : dq_item_of_element(q, item, r[0], *f->due == 'r');
        if (!fine || !*f->due) {
            *count = 0;
            dq_fetch_free(q);
            return dq_err_bad_reply(q, "take");
        }
        dq_item_count(q, item, f->us);
        ++*count;
        f->at += 1 + stream;
        f->due += strcspn(f->due, " ");
        f->due += *f->due == ' ';
    }
    return *count > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

/* --- transfer and take --- */

/* Send a transfer or take. */
static void dq_fetch_send(delayq *q, const dq_verb *verb, size_t max) {
    delayq_fetch *f = &q->fetch;
    delayq_lane *lane = &f->lane;
    assert(dq_lane_is_idle(lane) && !dq_fetch_has_items(q));
    dq_fetch_free(q);
    f->takes = (verb->flags & DQ_TAKES) != 0;
    f->max = max;
    f->failure = DELAYQ_OK;
    lane->array_verb = verb;
    lane->as_waiter = f->takes && dq_waiters_in_take(q);
    if (lane->as_waiter) dq_waiters_on_take(q);
    if (q->options.lease_ms > 0) f->order = dq_elem_next_order(q, max + 1);
    if (f->takes) q->retry_turn = !q->retry_turn;
    lane->accepted++;
    f->overdue = q->next_poll_us < q->conn->cmd.moved_us;
    dq_sched_on_sent(q);
    dq_lane_step(q, lane);
}

/* Returns the failure of the last transfer or take, once. */
static delayq_status dq_fetch_failure(delayq *q) {
    delayq_status status = q->fetch.failure;
    q->fetch.failure = DELAYQ_OK;
    return status;
}

/* Returns how many items a take asks for. A loop fetches ahead: twice as many
 * as before if all of these were taken before the next tick. */
static size_t dq_fetch_size(delayq *q, size_t max) {
    delayq_fetch *f = &q->fetch;
    size_t batch = (size_t)q->options.batch;
    if (!q->outbox) return max;
    if (max > 1) f->most = max;
    if (f->most > f->want)
        f->want = f->most;
    else if (f->taken > 1 && f->got >= f->want)
        f->want *= 2;
    f->most = 0;
    if (f->want > batch) f->want = batch;
    return f->want;
}

/* See to it that the next item is heard of. Returns EMPTY, or the failure. */
static delayq_status dq_take_listen(delayq *q) {
    delayq_status status = dq_sub_on_track(q); /* read with the take's reply */
    dq_sub_open(q);
    dq_sub_track(q);
    return status == DELAYQ_OK || dq_err_is_transient(status) ? DELAYQ_EMPTY
                                                              : status;
}

/* Returns 1 if a take should be sent: there may be something, or only the
 * server knows. A call that waits connects, too. */
static int dq_take_is_due(const delayq *q, int waits) {
    const delayq_conn *conn = q->conn;
    if (!dq_lane_is_idle(&q->fetch.lane) || dq_fetch_has_items(q)) return 0;
    if (q->fetch.ack.text[0]) return 1;
    if (waits && (!conn->known || conn->sub.state == DELAYQ_SOCKET_CLOSED))
        return 1;
    return conn->known && q->probed &&
           (dq_sched_has_ready(q) || dq_sys_now() >= q->next_poll_us);
}

/* One step of a take: hand out the items of a reply; if there are none, fetch
 * if there may be something; else see to it that the next item is heard of. */
static delayq_status dq_take_step(delayq *q, delayq_item *items, size_t max,
                                  size_t *count, int waits, int listens) {
    delayq_fetch *f = &q->fetch;
    delayq_status status = dq_step(q);
    *count = 0;
    if (dq_fetch_has_items(q) && dq_sys_now() >= f->lease_end_us)
        dq_fetch_free(q); /* they may be somebody else's by now */
    if (status < DELAYQ_OK && !dq_err_is_transient(status)) return status;
    if (q->foreign && !dq_fetch_has_items(q)) return dq_err_wire(q);
    if (dq_take_is_due(q, waits))
        dq_fetch_send(q, f->take, dq_fetch_size(q, max));
    else if (max > 1)
        f->most = max;
    if (waits && !dq_lane_is_idle(&f->lane))
        dq_wait_lane(q, &f->lane, dq_wait_limit(q));
    dq_sub_follow_role(q);
    status = f->failure; /* if the call can't wait, a tick returns it, too */
    if (waits) f->failure = DELAYQ_OK;
    if (status < DELAYQ_OK && (waits || !dq_err_is_transient(status)))
        return status;
    status = dq_fetch_hand_out(q, items, max, count);
    if (status == DELAYQ_OK) f->taken |= 2;
    return status == DELAYQ_EMPTY && listens ? dq_take_listen(q) : status;
}

/* Returns the verb with which the due items of a queue are moved. */
static const dq_verb *dq_transfer_verb(const delayq *q);

/* Move what is due, if it is time; a loop that takes fetches it instead. If
 * nothing is due, `listens` asks for reports of pushes. */
static void dq_tick_fetch(delayq *q, int listens) {
    delayq_fetch *f = &q->fetch;
    int ahead = q->outbox && f->taken && !q->foreign;
    if (!q->conn->known || !q->probed || !dq_lane_is_idle(&f->lane) ||
        dq_fetch_has_items(q) || dq_conn_may_use(q) != DELAYQ_OK)
        return;
    if (dq_sys_now() >= q->next_poll_us || (ahead && dq_sched_has_ready(q)))
        dq_fetch_send(q, ahead ? f->take : dq_transfer_verb(q),
                      ahead ? dq_fetch_size(q, 1) : 0);
    else if (listens && (ahead || q->ready == 0))
        dq_sub_track(q);
}

/* Connect, go on with everything, and move what is due. If the handle has no
 * outbox, wait for the connection and the transfer. */
static delayq_status dq_tick(delayq *q, int64_t deadline, int listens) {
    delayq_fetch *f = &q->fetch;
    int left = dq_fetch_has_items(q); /* since the last tick */
    delayq_status ready =
        q->outbox ? dq_conn_ensure(q) : dq_wait_connected(q, deadline);
    delayq_status status = dq_step(q);
    const delayq_lane *lane;
    if (ready == DELAYQ_OK && (status == DELAYQ_OK || q->outbox)) {
        dq_sub_open(q);
        dq_tick_fetch(q, listens);
        if (!q->outbox && !dq_lane_is_idle(&f->lane)) {
            dq_wait_lane(q, &f->lane, deadline);
            if (listens && f->failure == DELAYQ_OK && q->ready == 0 &&
                dq_sys_now() < q->next_poll_us)
                dq_sub_track(q);
        }
    }
    if (f->taken && left && f->want > 1) f->want /= 2;
    f->taken = 0;
    if (ready < DELAYQ_OK) dq_lane_note(q, ready);
    if (ready < DELAYQ_OK) return ready;
    if (f->failure < DELAYQ_OK) return dq_fetch_failure(q);
    for (lane = q->lanes; lane; lane = lane->next)
        if (lane->ring && lane->status < DELAYQ_OK) return lane->status;
    return status;
}

/* One turn of a wait. Returns OK if there is something to take, else EMPTY. */
static delayq_status dq_wait_turn(delayq *q) {
    delayq_status status;
    int any;
    q->fetch.taken |= 1;
    status = dq_tick(q, dq_wait_limit(q), !q->foreign);
    if (status == DELAYQ_OK && q->foreign) return dq_err_wire(q);
    if (status != DELAYQ_OK) return status;
    any = q->outbox ? dq_fetch_has_items(q) : dq_sched_has_ready(q);
    return any ? DELAYQ_OK : DELAYQ_EMPTY;
}
/*-----------------------------------------------------------------------------
 * MARK: - Verbs
 * >>verbs   the functions of the API
 *
 * Owns the constants of the verbs and wires, the writers and readers of all but
 * takes, and the checks of the caller's arguments. A public function checks its
 * arguments, makes ops, and lets dq_do put them into the outbox or send them.
 *---------------------------------------------------------------------------*/

#if defined(DELAYQ_STATIC) && !defined(__cplusplus)
#define DQ_WIRE_KIND static const struct delayq_wire_kind
#else
#define DQ_WIRE_KIND const struct delayq_wire_kind
#endif

static const struct delayq_wire_kind dq_wire_native = {
    "n", 16, 0, 0, 0, DQ_RETRY, NULL, NULL};

/* --- checks --- */

/* Every verb that may ask the server begins here. `wrong` is NULL, or the fault
 * of its arguments. */
static delayq_status dq_check(delayq *q, const char *wrong) {
    if (!q) return DELAYQ_ERR_ARG;
    if (q->open != DQ_OPEN)
        wrong = "the handle is closed";
    else if (!q->conn)
        wrong = "the handle whose connection this one shares is closed";
    else if (q->pid != dq_sys_pid())
        wrong = "the handle was opened before a fork(): open one of your own";
    return wrong ? dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong) : DELAYQ_OK;
}

static int dq_is_stream(const delayq *q) {
    return q && q->open == DQ_OPEN && q->wire->stream;
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

/* Check options.share. Returns NULL, or the fault. */
static const char *dq_check_share(delayq_options *o) {
    delayq *owner = o->share;
    if (owner->open != DQ_OPEN || owner->conn != &owner->own)
        return "options.share: not an open handle with a connection of its own";
    if (owner->pid != dq_sys_pid())
        return "options.share: opened before a fork()";
    if (o->url || o->connect || o->connect_timeout_ms || o->io_timeout_ms ||
        o->tls_ca || o->tls_cert)
        return "options.share: url, tls, connect, timeouts are the owner's";
    o->connect_timeout_ms = owner->options.connect_timeout_ms;
    o->io_timeout_ms = owner->options.io_timeout_ms;
    return NULL;
}

/* Check the options and fill in the defaults. Returns NULL, or the fault. */
static const char *dq_check_options(delayq_options *o) {
    size_t len = o->name ? strlen(o->name) : 0;
    if (len < 1 || len > 512) return "options.name: 1 to 512 bytes";
    if (o->batch < 0 || o->batch > 1000)
        return "options.batch: 1 to 1,000, or 0 for the default";
    if (o->max_wait_ms < 0 || o->max_wait_ms > 86400000)
        return "options.max_wait_ms: up to a day, or 0 for the default";
    if (o->connect_timeout_ms < 0 || o->io_timeout_ms < 0 ||
        o->connect_timeout_ms > 3600000 || o->io_timeout_ms > 3600000)
        return "options.connect_timeout_ms, io_timeout_ms: up to an hour";
    if (o->reconnect_max_ms < 0 || o->reconnect_max_ms > 3600000)
        return "options.reconnect_max_ms: up to an hour";
    if (!o->tls_cert != !o->tls_key)
        return "options.tls_cert and tls_key: both or none";
    if (o->lease_ms < 0 || o->lease_ms > DQ_MAX_DUE / 4)
        return "options.lease_ms is negative or too long";
    if (o->max_attempts < 0 || o->max_attempts > 65535)
        return "options.max_attempts: up to 65,535, or 0 for no limit";
    if (o->max_attempts > 0 && o->wire && o->wire->mirror)
        return "options.max_attempts: not with a Redisson wire, since attempts "
               "restart whenever Redisson moves an item";
    if (o->backoff_ms < 0 || o->backoff_max_ms < 0 ||
        o->backoff_max_ms > DQ_MAX_DUE / 4)
        return "options.backoff_ms, backoff_max_ms: negative or too long";
    if (o->broadcast_keep < 0) return "options.broadcast_keep is negative";
    if (o->wire && o->wire->stream && o->lease_ms > 0)
        return "options.wire: DELAYQ_BROADCAST has no lease";
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
    if (o->reconnect_max_ms == 0) o->reconnect_max_ms = 5000;
    return NULL;
}

/* Set the place where a broadcast's reader begins. Returns NULL, or the fault.
 */
static const char *dq_check_cursor(delayq *q) {
    const char *after = q->options.broadcast_after;
    size_t ms, seq;
    if (!after || !*after) {
        memcpy(q->cursor, after ? "0-0" : "$", after ? 4 : 2);
        return NULL;
    }
    ms = strspn(after, "0123456789");
    seq = after[ms] == '-' ? strspn(after + ms + 1, "0123456789") : 0;
    if (ms < 1 || ms > 20 || seq < 1 || seq > 20 || after[ms + 1 + seq])
        return "options.broadcast_after: the ticket text of an item";
    memcpy(q->cursor, after, ms + seq + 2);
    return NULL;
}
/* --- the verbs of offers --- */

/* The channel, whether the times are delays or due times, the number of an
 * outbox, and, of one offer that is sent again, the time in ms from which it
 * may have been due. That time is 0 if by this machine's clock it may have been
 * due: the server's clock may have been set back, and ours may run at another
 * speed, so either is enough. */
static void dq_write_offer_head(dq_resp_writer *o, delayq *q,
                                const delayq_lane *lane, const dq_cursor *c) {
    const delayq_message *m = lane->messages ? &lane->messages[c->i] : NULL;
    dq_resp_end_keys(o, q);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_text(o, dq_op_due(lane, c->op) > 0 ? "due" : "delay");
    if (lane->ring)
        dq_resp_int(o, (int64_t)lane->settled + 1);
    else
        dq_resp_text(o, "");
    if (m && lane->resends)
        dq_resp_int(o, dq_sys_now() < m->first_due_us ? m->first_due_ms : 0);
    else
        dq_resp_text(o, "");
}

/* The keys with which each offer begins: the zset, the mirror if the wire has
 * one, the highest number of an outbox. */
static void dq_write_offer_keys(dq_resp_writer *o, const delayq *q,
                                const delayq_lane *lane) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->wire->mirror) dq_resp_key(o, q, DQ_MIRROR, "");
    if (lane->ring) dq_resp_key(o, q, DQ_SENT, q->id);
}

/* The time of an offer: its due time or its delay, in ms. */
static void dq_write_time(dq_resp_writer *o, const delayq_lane *lane,
                          const dq_op *op) {
    int64_t due = dq_op_due(lane, op);
    dq_resp_int(o, due > 0 ? due : op->delay_ms);
}

static void dq_write_element(dq_resp_writer *o, const delayq *q,
                             const dq_op *op, int last) {
    unsigned char head[DQ_ELEM_HEADER_MAX];
    size_t n = dq_elem_write_header(q, op->id, op->len, head);
    dq_resp_long_arg(o, head, n, op->data, op->len, last);
}

static void dq_write_offer(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    dq_cursor c;
    dq_cursor_begin(&c, lane);
    dq_cursor_next(&c);
    dq_write_offer_keys(o, q, lane);
    dq_write_offer_head(o, q, lane, &c);
    do {
        dq_write_time(o, lane, c.op);
        dq_write_element(o, q, c.op, c.number + 1 == lane->n);
    } while (c.number + 1 < lane->n && dq_cursor_next(&c));
}

/* The key that holds the ticket of an offer with a key. */
static void dq_write_holder(dq_resp_writer *o, const delayq *q,
                            const dq_op *op) {
    char rest[280];
    snprintf(rest, sizeof rest, ":%d:%.256s", (int)op->key_len, op->key);
    dq_resp_key(o, q, DQ_DEDUP, rest);
}

static void dq_write_keyed(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    char id[33];
    dq_cursor c;
    dq_write_offer_keys(o, q, lane);
    dq_cursor_begin(&c, lane);
    while (dq_cursor_next(&c) && c.number < lane->n)
        dq_write_holder(o, q, c.op);
    dq_cursor_begin(&c, lane);
    dq_cursor_next(&c);
    dq_write_offer_head(o, q, lane, &c);
    dq_resp_int(o, (int64_t)lane->n);
    do {
        dq_write_time(o, lane, c.op);
        dq_num_hex(id, c.op->id, q->wire->id_len);
        dq_resp_text(o, id);
        dq_resp_int(o, c.op->key_ttl_ms);
        dq_resp_text(o, c.op->replace ? "replace" : "");
        dq_write_element(o, q, c.op, c.number + 1 == lane->n);
    } while (c.number + 1 < lane->n && dq_cursor_next(&c));
}

/* An offer is stored, due at due_ms. */
static void dq_offer_settle(delayq *q, delayq_lane *lane, const dq_cursor *c,
                            int64_t due_ms) {
    if (due_ms > DQ_MAX_DUE) due_ms = DQ_MAX_DUE; /* a server that lies */
    if (lane->messages)
        dq_elem_id_ticket(&lane->messages[c->i].ticket, due_ms, c->op->id,
                          q->wire->id_len);
    dq_op_settle(q, lane, c, DELAYQ_OK, due_ms);
}

/* A message was sent again, and may have been delivered meanwhile. The call
 * that sent it first can't know. A later call returns GONE: the outcome can no
 * longer be known. */
static void dq_offer_settle_late(delayq *q, delayq_lane *lane,
                                 const dq_cursor *c) {
    delayq_message *m = &lane->messages[c->i];
    m->ticket.text[0] = '\0';
    if (m->status == DELAYQ_ERR_UNKNOWN) {
        dq_op_settle(q, lane, c, DELAYQ_GONE, 0);
        return;
    }
    dq_err_set(q->err, DELAYQ_ERR_UNKNOWN,
               "offer: sent twice, and due before the server could be asked "
               "whether the first one arrived");
    dq_op_settle(q, lane, c, DELAYQ_ERR_UNKNOWN, 0);
}

/* Refuse a reply which says that more offers were skipped than were sent
 * before: another handle uses the same numbers. */
static delayq_status dq_offer_check_twin(delayq *q, delayq_lane *lane,
                                         int64_t skipped) {
    if (!lane->ring || skipped <= (int64_t)lane->was_unsure) return DELAYQ_OK;
    dq_ring_meet_twin(q, lane->ring);
    return dq_err_set(q->err, DELAYQ_ERR_AGAIN,
                      "offer: another machine uses this handle's numbers; it "
                      "takes new ones");
}

static delayq_status dq_read_offer(delayq *q, delayq_lane *lane) {
    delayq_status status;
    int64_t n[3];
    dq_cursor c;
    int fine =
        lane->reply->elements == 3 && dq_resp_integers(lane->reply, n, 3);
    int resent = fine && lane->messages && lane->resends;
    dq_lane_free_reply(lane);
    if (!fine) return dq_lane_reject(q, lane);
    status = dq_offer_check_twin(q, lane, n[1]);
    if (status != DELAYQ_OK) return status;
    dq_cursor_begin(&c, lane);
    while (dq_cursor_next(&c) && c.number < lane->n) {
        int64_t due = dq_op_due(lane, c.op);
        if (due == 0) due = (n[0] + 999) / 1000 + c.op->delay_ms;
        if (resent && n[2] < 0)
            dq_offer_settle_late(q, lane, &c);
        else
            dq_offer_settle(q, lane, &c, resent ? n[2] : due);
    }
    return DELAYQ_OK;
}

/* Read of each offer with a key its outcome, its due time, and the key's
 * ticket. */
static delayq_status dq_read_keyed(delayq *q, delayq_lane *lane) {
    const redisReply *r = lane->reply;
    delayq_status status = DELAYQ_OK;
    int64_t skipped = 0, us;
    size_t i;
    dq_cursor c;
    int fine = dq_resp_integers(r, &us, 1) && r->elements > 1 &&
               r->elements % 3 == 1 && r->elements <= 1 + 3 * lane->n;
    for (i = 1; fine && i < r->elements; i += 3) {
        fine = r->element[i]->type == REDIS_REPLY_INTEGER &&
               r->element[i + 1]->type == REDIS_REPLY_INTEGER &&
               r->element[i + 2]->type == REDIS_REPLY_STRING &&
               r->element[i + 2]->len < sizeof(delayq_ticket);
        skipped += fine && r->element[i]->integer == 3;
    }
    if (fine) status = dq_offer_check_twin(q, lane, skipped);
    if (fine) lane->n = r->elements / 3; /* the others were refused */
    dq_cursor_begin(&c, lane);
    while (fine && status == DELAYQ_OK && dq_cursor_next(&c) &&
           c.number < lane->n) {
        redisReply *const *e = r->element + 1 + 3 * c.number;
        if (e[0]->integer == 2 && lane->messages) {
            dq_offer_settle_late(q, lane, &c);
            continue;
        }
        if (lane->messages)
            memcpy(lane->messages[c.i].ticket.text, e[2]->str, e[2]->len + 1);
        dq_op_settle(q, lane, &c,
                     e[0]->integer == 1 ? DELAYQ_DUPLICATE : DELAYQ_OK,
                     e[1]->integer < DQ_MAX_DUE ? e[1]->integer : DQ_MAX_DUE);
    }
    dq_lane_free_reply(lane);
    return fine ? status : dq_lane_reject(q, lane);
}

static const dq_verb dq_verb_offer = {"offer",
                                      "",
                                      &dq_script_offer,
                                      dq_write_offer,
                                      dq_read_offer,
                                      1000,
                                      offsetof(delayq_counts, offered),
                                      DQ_IDEMPOTENT | DQ_OFFERS,
                                      DQ_KEY_NONE};
static const dq_verb dq_verb_keyed = {"offer",
                                      "",
                                      &dq_script_offer_keyed,
                                      dq_write_keyed,
                                      dq_read_keyed,
                                      100,
                                      offsetof(delayq_counts, offered),
                                      DQ_IDEMPOTENT | DQ_OFFERS,
                                      DQ_KEY_NONE};

/* --- the verbs of tickets --- */

/* Runs of ops of one verb: the verb, their number, and of each its due time and
 * prefix; if it has a new due time, this and, in a call, the delay by which the
 * script checks it. */
static void dq_write_tickets(dq_resp_writer *o, delayq *q,
                             const delayq_lane *lane) {
    dq_cursor c, ahead;
    const dq_verb *verb = NULL;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (lane->key == DQ_KEY_DEAD) dq_resp_key(o, q, DQ_DEAD, "");
    if (lane->key == DQ_KEY_MIRROR) dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_end_keys(o, q);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_text(o, lane->resends ? "again" : "");
    dq_cursor_begin(&c, lane);
    dq_cursor_begin(&ahead, lane);
    while (dq_cursor_next(&c) && c.number < lane->n) {
        if (c.op->verb != verb) {
            size_t run = 0;
            verb = c.op->verb;
            if (c.number == 0) dq_cursor_next(&ahead);
            while (ahead.op && ahead.op->verb == verb &&
                   ahead.number < lane->n) {
                run++;
                dq_cursor_next(&ahead);
            }
            dq_resp_text(o, verb->word);
            dq_resp_int(o, (int64_t)run);
        }
        dq_write_ticket(o, c.op->data);
        if (!(verb->flags & DQ_RETIMES)) continue;
        dq_resp_int(o, c.op->due_ms);
        if (lane->ring)
            dq_resp_text(o, "");
        else
            dq_resp_int(o, c.op->delay_ms);
    }
}

/* Read of each ticket 0 if the item is not there, else its due time, or 1. Of
 * the tickets that an outbox has sent before, a lost reply may have said that
 * they are done. */
static delayq_status dq_read_tickets(delayq *q, delayq_lane *lane) {
    const redisReply *r = lane->reply;
    int64_t us;
    size_t i;
    dq_cursor c;
    int fine = dq_resp_integers(r, &us, 1) && r->elements > 1 &&
               r->elements <= 1 + lane->n;
    for (i = 1; fine && i < r->elements; i++)
        fine = r->element[i]->type == REDIS_REPLY_INTEGER &&
               r->element[i]->integer >= 0 &&
               r->element[i]->integer <= DQ_MAX_DUE;
    if (fine) lane->n = r->elements - 1; /* the others were refused */
    dq_cursor_begin(&c, lane);
    while (fine && dq_cursor_next(&c) && c.number < lane->n) {
        int64_t due = r->element[1 + c.number]->integer;
        int done = due > 0 || (lane->ring && c.number < lane->was_unsure);
        delayq_status status = done         ? DELAYQ_OK
                               : lane->ring ? DELAYQ_GONE
                                            : dq_ticket_status(q, lane, 0);
        dq_op_settle(q, lane, &c, status,
                     c.op->verb->flags & DQ_RETIMES ? due : 0);
    }
    dq_lane_free_reply(lane);
    return fine ? DELAYQ_OK : dq_lane_reject(q, lane);
}

#define DQ_TICKET_VERB(id, name, word, counter, flags, key)     \
    static const dq_verb dq_verb_##id = {                       \
        name,                                                   \
        word,                                                   \
        &dq_script_tickets,                                     \
        dq_write_tickets,                                       \
        dq_read_tickets,                                        \
        (flags)&DQ_RETIMES || (key) == DQ_KEY_DEAD ? 200 : 500, \
        counter,                                                \
        DQ_IDEMPOTENT | (flags),                                \
        key}
DQ_TICKET_VERB(ack, "ack", "ack", offsetof(delayq_counts, acked), 0,
               DQ_KEY_NONE);
DQ_TICKET_VERB(cancel, "cancel", "cancel", 0, DQ_OF_OFFERS, DQ_KEY_MIRROR);
DQ_TICKET_VERB(nack, "nack", "nack", offsetof(delayq_counts, nacked),
               DQ_RETIMES, DQ_KEY_NONE);
DQ_TICKET_VERB(release, "nack", "release", offsetof(delayq_counts, nacked),
               DQ_RETIMES, DQ_KEY_NONE);
DQ_TICKET_VERB(extend, "extend", "extend", 0, DQ_RETIMES | DQ_RENAMES,
               DQ_KEY_NONE);
DQ_TICKET_VERB(reschedule, "reschedule", "reschedule", 0,
               DQ_RETIMES | DQ_RENAMES | DQ_OF_OFFERS, DQ_KEY_NONE);
DQ_TICKET_VERB(bury, "bury", "bury", offsetof(delayq_counts, died), 0,
               DQ_KEY_DEAD);

/* --- the verbs of takes, and the wires --- */

#define DQ_FETCH_VERB(id, name, script, write, flags)              \
    static const dq_verb dq_verb_##id = {                          \
        name, "",    &dq_script_##script, write, dq_read_fetch, 1, \
        0,    flags, DQ_KEY_NONE}
DQ_FETCH_VERB(take, "take", take, dq_write_take, DQ_TAKES);
DQ_FETCH_VERB(tick, "tick", tick, dq_write_transfer, 0);
DQ_FETCH_VERB(take_redisson, "take", take_redisson, dq_write_take, DQ_TAKES);
DQ_FETCH_VERB(tick_redisson, "tick", tick_redisson, dq_write_transfer, 0);
DQ_FETCH_VERB(take_stream, "take", broadcast, dq_write_broadcast, DQ_TAKES);
DQ_FETCH_VERB(tick_stream, "tick", broadcast, dq_write_broadcast, 0);

DELAYQ_WIRES_BEGIN
DQ_WIRE_KIND delayq_wire_redisson = {"r",
                                     16,
                                     0,
                                     1,
                                     0,
                                     DQ_MIRROR,
                                     &dq_verb_take_redisson,
                                     &dq_verb_tick_redisson};
DQ_WIRE_KIND delayq_wire_redisson_old = {
    "o", 8, 1, 1, 0, DQ_MIRROR, &dq_verb_take_redisson, &dq_verb_tick_redisson};
DQ_WIRE_KIND delayq_wire_broadcast = {
    "b", 16, 0, 0, 1, DQ_RETRY, &dq_verb_take_stream, &dq_verb_tick_stream};
DELAYQ_WIRES_END

static const dq_verb *dq_transfer_verb(const delayq *q) {
    return q->wire->tick ? q->wire->tick : &dq_verb_tick;
}

static const dq_verb *dq_take_verb(const delayq *q) {
    return q->wire->take ? q->wire->take : &dq_verb_take;
}

/* --- what all ops have in common --- */

/* Returns 1 if this handle may have offered the item of a ticket. An id of 8
 * bytes does not tell. */
static int dq_outbox_is_own(const delayq *q, const char *ticket) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len, n = dq_elem_ticket_prefix(ticket, key, &due_len);
    return n < 17 ? n == 8 : memcmp(key + 9, q->handle_id, 5) == 0;
}

/* Copy an op into a ring. Returns DELAYQ_OK, or why it can't be accepted. */
static delayq_status dq_outbox_add(delayq *q, dq_ring *ring, dq_op **op) {
    const char *name = (*op)->verb->name;
    size_t size = sizeof(dq_entry) + (*op)->key_len + 1 + (*op)->len;
    if (size > ring->size / 2 || (*op)->len > ring->size)
        return dq_err_set(q->err, DELAYQ_ERR_ARG,
                          "%s: larger than half of its ring, which has %lu "
                          "bytes: enlarge options.outbox_size",
                          name, (unsigned long)ring->size);
    *op = dq_ring_add(ring, *op);
    if (*op) return DELAYQ_OK;
    return dq_err_set(q->err, DELAYQ_ERR_FULL,
                      "%s: the outbox is full; nothing has happened", name);
}

/* Accept one op of a call's lane. If the caller wants its ticket, settle the
 * due time now, by the server's clock as it is known. */
static delayq_status dq_outbox_accept(delayq *q, delayq_lane *lane,
                                      const dq_cursor *c, int wants_ticket) {
    dq_op *op = c->op;
    int flags = op->verb->flags;
    dq_ring *ring = &q->outbox->changes;
    delayq_status status;
    if (flags & DQ_OFFERS ||
        ((flags & DQ_OF_OFFERS) && dq_outbox_is_own(q, op->data)))
        ring = &q->outbox->offers;
    if ((flags & DQ_RENAMES) && q->conn->long_size == 0)
        return dq_err_set(q->err, DELAYQ_ERR_IO,
                          "%s: not connected yet, and the server's clock is "
                          "not known; nothing has happened",
                          op->verb->name);
    if (flags & DQ_RENAMES)
        op->due_ms = dq_due_after(q, op->begun_us, op->delay_ms);
    lane->due_ms = op->due_ms;
    status = dq_outbox_add(q, ring, &op);
    if (status != DELAYQ_OK || !(flags & DQ_OFFERS) || !wants_ticket ||
        q->conn->clock_number == 0)
        return status;
    dq_ring_date_all(q, ring);
    if (ring->dated < ring->lane.accepted) return status;
    if (op->due_ms == 0) op->due_ms = op->planned_ms;
    dq_elem_id_ticket(&lane->messages[c->i].ticket, op->due_ms, op->id,
                      q->wire->id_len);
    return status;
}

/* Put the ops of a call's lane into the outbox, in order, as far as there is
 * room, and send them if nothing is in flight. */
static delayq_status dq_outbox_accept_all(delayq *q, delayq_lane *lane,
                                          int wants_tickets) {
    dq_outbox *b = q->outbox;
    delayq_status stop = DELAYQ_OK; /* nothing overtakes a refused op */
    dq_cursor c;
    dq_cursor_begin(&c, lane);
    while (dq_cursor_next(&c)) {
        delayq_status status = stop;
        if (stop == DELAYQ_OK)
            status = dq_outbox_accept(q, lane, &c, wants_tickets);
        if (status == DELAYQ_ERR_FULL || !lane->messages) stop = status;
        if (lane->messages) lane->messages[c.i].status = status;
        if (lane->items) lane->items[c.i].acked = status;
        if (lane->result == DELAYQ_OK || status == DELAYQ_ERR_FULL)
            lane->result = status;
    }
    if (!q->conn->known || !q->probed)
        return lane->result; /* a tick connects */
    if (b->changes.lane.x.state == DELAYQ_EXCHANGE_NONE)
        dq_lane_step(q, &b->changes.lane);
    if (b->offers.lane.x.state == DELAYQ_EXCHANGE_NONE)
        dq_lane_step(q, &b->offers.lane);
    return lane->result;
}

/* Do the ops of a call's lane: the only place where a handle with an outbox and
 * one without it differ. */
static delayq_status dq_do(delayq *q, delayq_lane *lane, int wants_tickets) {
    if (q->outbox) return dq_outbox_accept_all(q, lane, wants_tickets);
    return dq_wait_run(q, lane);
}

#define DQ_OUTBOX_MIN 8192

/* Lay out the caller's memory. Returns NULL, or the fault. */
static const char *dq_outbox_init(delayq *q) {
    const delayq_options *o = &q->options;
    unsigned char *p = (unsigned char *)o->outbox;
    dq_outbox *b;
    size_t room;
    if (!o->outbox)
        return o->outbox_size > 0 ? "options.outbox_size without outbox" : NULL;
    if (o->outbox_size < DQ_OUTBOX_MIN)
        return "options.outbox_size: at least 8,192 bytes";
    p += (16 - ((uintptr_t)p & 15)) & 15;
    b = (dq_outbox *)(void *)p;
    memset(b, 0, sizeof *b);
    p += (sizeof *b + 15) & ~(size_t)15;
    room = (size_t)((unsigned char *)o->outbox + o->outbox_size - p);
    b->offers.size = room / 4 * 3 & ~(size_t)15;
    b->offers.data = p;
    b->changes.size = (room - b->offers.size) & ~(size_t)15;
    b->changes.data = p + b->offers.size;
    dq_lane_begin(&b->changes.lane, &dq_policy_ring, NULL, 0);
    dq_lane_begin(&b->offers.lane, &dq_policy_ring, NULL, 0);
    b->changes.lane.ring = &b->changes;
    b->offers.lane.ring = &b->offers;
    dq_lane_attach(q, &b->changes.lane);
    dq_lane_attach(q, &b->offers.lane);
    q->outbox = b;
    q->own.names = b->names;
    return NULL;
}

/* Free the items of a peek. */
static void dq_free_items(delayq *q) {
    if (q->reply) freeReplyObject(q->reply);
    q->reply = NULL;
}

DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options) {
    delayq_status status;
    const char *wrong;
    int64_t deadline, limit;
    char room[40];
    dq_url u;
    if (!q) return DELAYQ_ERR_ARG;
    memset(q, 0, sizeof *q);
    if (!options) return dq_err_set(q->err, DELAYQ_ERR_ARG, "options is NULL");
    q->options = *options;
    q->wire = options->wire ? options->wire : &dq_wire_native;
    q->own.owner = q;
    q->conn = &q->own;
    wrong = dq_check_options(&q->options);
    if (!wrong) wrong = dq_check_cursor(q);
    q->fetch.want = 1;
    dq_lane_begin(&q->fetch.lane, &dq_policy_call, NULL, 0);
    dq_lane_attach(q, &q->fetch.lane);
    if (!wrong) wrong = dq_outbox_init(q);
    if (!wrong && q->options.share) q->conn = q->options.share->conn;
    if (wrong) return dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
    wrong = dq_conn_parse_url(q->conn, &u);
    if (wrong)
        return dq_err_set(q->err, DELAYQ_ERR_ARG, "options.url: %s", wrong);
    if (!q->options.share && !dq_sys_open_pipe(q->own.pipe))
        return dq_err_set(q->err, DELAYQ_ERR_MEMORY, "no pipe: %s",
                          dq_sys_strerror(errno, room));
    if (q->options.share)
        q->call_ms = q->options.share->call_ms;
    else if (q->options.connect_timeout_ms > q->options.io_timeout_ms)
        q->call_ms = q->options.connect_timeout_ms;
    else
        q->call_ms = q->options.io_timeout_ms;
    if (q->options.connect_timeout_ms == 0)
        q->options.connect_timeout_ms = 2000;
    q->name_len = strlen(q->options.name);
    memcpy(q->name, q->options.name, q->name_len + 1);
    q->options.name = NULL; /* the copy counts */
    q->open = DQ_OPEN;
    q->pid = dq_sys_pid();
    q->next = q->conn->handles;
    q->conn->handles = q;
    if (!dq_handle_identify(q))
        wrong = "the system gives no random bytes: two machines would make the "
                "same ids";
    dq_sub_subscribe(q, "SUBSCRIBE", DQ_SUB_QUEUE);
    if (!wrong && q->outbox && u.tls && q->conn == &q->own)
        wrong = dq_tls_prepare(q->conn);
    if (wrong) {
        delayq_close(q);
        return dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
    }
    if (q->outbox) {
        dq_conn_ensure(q);
        q->err[0] = '\0'; /* a tick returns failures */
        return DELAYQ_OK;
    }
    deadline = dq_wait_limit(q);
    limit = dq_sys_now() + q->options.connect_timeout_ms * 1000LL;
    if (limit < deadline) deadline = limit; /* where io_timeout_ms is longer */
    status = dq_wait_connected(q, deadline);
    if (status == DELAYQ_OK && q->foreign) status = dq_err_wire(q);
    if (status == DELAYQ_ERR_ARG) delayq_close(q);
    return status;
}

DELAYQ_API void delayq_close(delayq *q) {
    delayq_conn *conn;
    delayq_lane *lane;
    delayq **at, *h;
    int in_flight;
    if (!q || q->open != DQ_OPEN) return;
    dq_free_items(q);
    dq_fetch_free(q);
    in_flight = q->setup.state == DELAYQ_EXCHANGE_SENT;
    for (lane = q->lanes; lane; lane = lane->next) {
        dq_conn_free_replies(&lane->x);
        in_flight |= lane->x.state == DELAYQ_EXCHANGE_SENT;
    }
    q->open = 0;
    conn = q->conn;
    if (!conn) dq_conn_free_replies(&q->setup);
    if (!conn) return;
    if (conn != &q->own) {
        /* The subscriber goes on for another handle of this name. */
        int what = q->waiter.asked ? DQ_SUB_OWN | DQ_SUB_WAITERS : 0;
        for (at = &conn->handles; *at != q;) at = &(*at)->next;
        *at = q->next;
        if (!dq_sub_queue_shared(q)) what |= DQ_SUB_QUEUE;
        for (h = conn->handles; h; h = h->next)
            if (h->waiter.asked && dq_sched_same_queue(h, q))
                what &= ~DQ_SUB_WAITERS;
        if (q->pid == dq_sys_pid()) dq_sub_subscribe(q, "UNSUBSCRIBE", what);
        if (in_flight) { /* its memory ends */
            dq_err_set(conn->err, DELAYQ_ERR_IO,
                       "a handle was closed while its request was in flight");
            dq_conn_close(conn, &conn->cmd, DELAYQ_ERR_IO);
            dq_conn_close(conn, &conn->ask, DELAYQ_ERR_IO);
        }
        dq_conn_free_replies(&q->setup);
        return;
    }
    for (h = conn->handles; h; h = h->next) {
        h->conn = NULL; /* q's memory may be gone soon */
        h->options.share = NULL;
    }
    conn->handles = NULL;
    dq_conn_close(conn, &conn->cmd, DELAYQ_ERR_IO);
    dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
    dq_conn_close(conn, &conn->ask, DELAYQ_ERR_IO);
    dq_conn_free_replies(&q->setup);
    dq_tls_end(conn);
    dq_sys_close_pipe(conn->pipe);
}

/* --- offers --- */

static const char *dq_offer_check(const delayq_message *m, int64_t now_ms) {
    size_t klen = m->key ? strlen(m->key) : 0;
    if (!m->data && m->len > 0) return "data is NULL";
    if (m->len > DQ_PAYLOAD_MAX) return "the payload has more than 1 GB";
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
/* Offer messages. `keyed` is the verb of those with a key: delayq_offer, which
 * has none, does not name it, so a program that calls no other does not link
 * it. */
static delayq_status dq_offer_all(delayq *q, delayq_message *messages,
                                  size_t count, const dq_verb *keyed) {
    delayq_status status =
        dq_check(q, messages || count == 0 ? NULL : "messages is NULL");
    const char *fault = NULL;
    delayq_lane lane;
    int64_t now_ms;
    size_t i, good = 0;
    if (status != DELAYQ_OK) {
        for (i = 0; messages && i < count; i++)
            if (messages[i].status != DELAYQ_ERR_UNKNOWN)
                messages[i].status = status;
        return status;
    }
    dq_lane_begin(&lane, &dq_policy_call, &dq_verb_offer, count);
    lane.keyed_verb = keyed;
    lane.messages = messages;
    now_ms = dq_due_least(q->conn);
    for (i = 0; i < count; i++) {
        delayq_message *m = &messages[i];
        const char *wrong = dq_offer_check(m, now_ms);
        if (wrong) fault = wrong;
        if (wrong)
            m->status = DELAYQ_ERR_ARG;
        else if (m->status != DELAYQ_ERR_UNKNOWN || q->outbox)
            m->status = DELAYQ_OK;
        if (m->status == DELAYQ_OK) m->ticket.text[0] = '\0';
        good += !wrong;
    }
    if (good > 0) status = dq_do(q, &lane, keyed != NULL);
    if (fault && status == DELAYQ_OK)
        status = dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", fault);
    return status;
}

DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count) {
    return dq_offer_all(q, messages, count, &dq_verb_keyed);
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
    return dq_offer_all(q, &m, 1, NULL);
}

/* --- ticks and takes --- */

/* Returns 1 if a tick, or a take that does not wait, would only read the clock:
 * nothing is due, the next item will be heard of, and the sockets were read
 * within this millisecond. It runs before dq_check, whose look at the process
 * costs more than all of this. */
static int dq_is_idle(const delayq *q) {
    const delayq_conn *conn = q && q->open == DQ_OPEN ? q->conn : NULL;
    int64_t now;
    if (!conn || !conn->known || !q->probed || q->foreign || q->outbox ||
        q->ready > 0 || q->pause_us || conn->cmd.state < DELAYQ_SOCKET_OPEN ||
        conn->sub.state == DELAYQ_SOCKET_CLOSED ||
        (q->empty_takes && !q->list_tracked &&
         conn->tracking != DELAYQ_TRACK_OFF))
        return 0;
    now = dq_sys_now();
    return now < q->next_poll_us && now - conn->sub_read_us < DQ_SUB_POLL_US;
}

DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms) {
    int idle = dq_is_idle(q), took;
    delayq_status status = idle ? DELAYQ_OK : dq_check(q, NULL);
    int64_t now, left, nap;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    took = q->fetch.taken;
    /* A program whose last take was empty and did not wait will now sleep until
     * wait_ms is over or a descriptor is readable: ask for reports of pushes,
     * as a take that waits does. */
    if (!idle) status = dq_tick(q, dq_wait_limit(q), q->empty_takes);
    if (!wait_ms) return status;
    now = dq_sys_now();
    left = dq_sched_next(q, 1) - now;
    nap = dq_conn_nap_us(q->conn, now);
    left = ((left < nap ? left : nap) + 999) / 1000;
    if (!q->outbox && q->empty_takes && dq_sched_has_ready(q))
        left = 0; /* it takes: there is something */
    if (q->conn->cmd.more || (took && dq_fetch_has_items(q))) left = 0;
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
    q->will_wait = 0;
    if (q->waiter.role < DELAYQ_WAITER_LEADER) return;
    memcpy(err, q->err, sizeof err);
    if (q->conn->cmd.c && dq_lane_is_idle(&q->fetch.lane) &&
        !dq_fetch_has_items(q)) {
        dq_fetch_send(q, q->fetch.take, 0);
        dq_wait_lane(q, &q->fetch.lane, dq_wait_limit(q));
        q->fetch.failure = DELAYQ_OK;
    }
    dq_waiters_on_leave(q);
    dq_sub_follow_role(q);
    memcpy(q->err, err, sizeof err);
}

/* Take until something comes, the timeout is over, or delayq_wake was called.
 * An ack in hand goes first: a wake must not lose it. */
static delayq_status dq_take(delayq *q, delayq_item *items, size_t max,
                             size_t *count, int64_t timeout_ms) {
    delayq_fetch *f = &q->fetch;
    int acks = f->ack.text[0] != '\0', waits = timeout_ms != 0 || !q->outbox;
    int64_t deadline = timeout_ms != 0 ? dq_wait_deadline(timeout_ms) : 0;
    delayq_status status;
    dq_free_items(q);
    f->take = dq_take_verb(q);
    f->taken |= 1;
    f->lost = 0;
    if (waits) dq_sched_on_take(q);
    dq_waiters_begin(q, timeout_ms);
    for (;;) {
        if (timeout_ms != 0 && !f->ack.text[0] && dq_wait_consume_wake(q)) {
            status = DELAYQ_WOKEN;
            break;
        }
        status = dq_take_step(q, items, max, count, waits,
                              timeout_ms != 0 || q->empty_takes > 0);
        q->empty_takes =
            status == DELAYQ_EMPTY && (timeout_ms == 0 || q->empty_takes > 0);
        if (status != DELAYQ_EMPTY && !dq_err_is_transient(status)) break;
        if (timeout_ms == 0 || dq_sys_now() >= deadline) break;
        if (status != DELAYQ_EMPTY) dq_wait_ride_out(q, status);
        if (acks &&
            dq_wait_consume_wake(q)) { /* not settled: the fault counts */
            if (!f->ack.text[0]) status = DELAYQ_WOKEN;
            break;
        }
        if (q->ready == 0 || status != DELAYQ_EMPTY)
            dq_sleep(&q, 1, deadline, DQ_FOR_ITEMS);
    }
    /* an item that a lost reply had handed out is not forgotten */
    if (f->lost) status = dq_err_after_loss(q, "take", status);
    if (status != DELAYQ_OK) dq_take_leave(q);
    q->will_wait = 0;
    return status;
}

DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms) {
    const char *wrong = !items || !count         ? "items or count is NULL"
                        : max < 1 || max > 10000 ? "max: 1 to 10,000"
                                                 : dq_wrong_timeout(timeout_ms);
    delayq_status status;
    if (count) *count = 0;
    if (!wrong && timeout_ms == 0 && dq_is_idle(q)) {
        dq_free_items(q);
        dq_fetch_free(q);
        q->empty_takes = 1;
        return DELAYQ_EMPTY;
    }
    status = dq_check(q, wrong);
    if (status != DELAYQ_OK) return status;
    return dq_take(q, items, max, count, timeout_ms);
}

DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms) {
    size_t count;
    if (item) memset(item, 0, sizeof *item);
    return delayq_take_many(q, item, 1, &count, timeout_ms);
}

/* --- what is done with a ticket --- */

/* Do one op by its ticket. Returns its status; *due_ms: its new due time. */
static delayq_status dq_do_ticket(delayq *q, const dq_verb *verb,
                                  const char *ticket, int64_t delay_ms,
                                  int64_t *due_ms) {
    delayq_lane lane;
    dq_op op;
    dq_lane_begin(&lane, &dq_policy_call, verb, 1);
    memset(&op, 0, sizeof op);
    op.verb = verb;
    op.data = ticket;
    op.len = strlen(ticket) + 1;
    op.begun_us = lane.begun_us;
    op.delay_ms = delay_ms;
    lane.ops = &op;
    dq_do(q, &lane, 0);
    if (due_ms) *due_ms = lane.due_ms;
    return lane.result;
}

DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket) {
    delayq_status status =
        dq_check(q, dq_wrong_ticket(ticket ? ticket->text : NULL));
    if (status != DELAYQ_OK) return status;
    return dq_do_ticket(q, &dq_verb_cancel, ticket->text, 0, NULL);
}

DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count) {
    const char *wrong = !items && count > 0 ? "items is NULL"
                        : dq_is_stream(q)   ? "a broadcast has nothing to ack"
                                            : NULL;
    delayq_status status;
    delayq_lane lane;
    size_t i;
    for (i = 0; !wrong && i < count; i++)
        wrong = dq_wrong_ticket(items[i].ticket.text);
    status = dq_check(q, wrong);
    for (i = 0; items && i < count; i++) items[i].acked = status;
    if (status != DELAYQ_OK || count == 0) return status;
    dq_lane_begin(&lane, &dq_policy_call, &dq_verb_ack, count);
    lane.items = items;
    return dq_do(q, &lane, 0);
}

DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item) {
    delayq_item one; /* of which `acked` is written */
    if (item) one = *item;
    return delayq_ack_many(q, item ? &one : NULL, 1);
}

DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms) {
    const char *wrong = item ? dq_wrong_timeout(timeout_ms) : "item is NULL";
    delayq_status status;
    delayq_item acked;
    size_t count;
    if (!wrong && item->ticket.text[0])
        wrong = dq_is_stream(q) ? "a broadcast has nothing to ack"
                                : dq_wrong_ticket(item->ticket.text);
    status = dq_check(q, wrong);
    if (status == DELAYQ_OK && q->outbox && item->ticket.text[0])
        status = delayq_ack(q, item);
    if (status != DELAYQ_OK) {
        if (item) item->acked = status;
        return status;
    }
    acked = *item;
    acked.data = NULL; /* it ends here */
    acked.len = 0;
    memset(item, 0, sizeof *item);
    if (!q->outbox) q->fetch.ack = acked.ticket;
    q->fetch.acked = DELAYQ_OK;
    status = dq_take(q, item, 1, &count, timeout_ms);
    item->acked = q->fetch.acked;
    if (q->fetch.ack.text[0]) { /* not settled: still in hand */
        *item = acked;
        item->acked = q->fetch.acked != DELAYQ_OK ? q->fetch.acked : status;
        q->fetch.ack.text[0] = '\0';
    }
    return status;
}

/* Returns the delay of a nack with back-off. An item that only has a ticket has
 * the attempt count in it. */
static int64_t dq_nack_backoff(const delayq *q, const delayq_item *item) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t len, n = dq_elem_ticket_prefix(item->ticket.text, key, &len);
    int attempt = item->attempt > 0 ? item->attempt
                                    : dq_elem_attempt(key, n == 17 ? 16 : 0);
    return dq_num_backoff(q->options.backoff_ms, q->options.backoff_max_ms,
                          attempt < 1    ? 1
                          : attempt > 60 ? 60
                                         : (unsigned)attempt);
}

DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms) {
    const char *wrong = dq_wrong_ticket(item ? item->ticket.text : NULL);
    const dq_verb *verb = &dq_verb_nack;
    delayq_status status;
    if (!wrong && (delay_ms < DELAYQ_RELEASE || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms: not negative, DELAYQ_BACKOFF or DELAYQ_RELEASE";
    status = dq_check(q, wrong);
    if (status != DELAYQ_OK) return status;
    if (delay_ms == DELAYQ_RELEASE) verb = &dq_verb_release;
    if (delay_ms == DELAYQ_RELEASE) delay_ms = 0;
    if (delay_ms == DELAYQ_BACKOFF) delay_ms = dq_nack_backoff(q, item);
    return dq_do_ticket(q, verb, item->ticket.text, delay_ms, NULL);
}

DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item) {
    const char *ticket = item ? item->ticket.text : NULL;
    delayq_status status = dq_check(q, dq_wrong_ticket(ticket));
    if (status != DELAYQ_OK) return status;
    return dq_do_ticket(q, &dq_verb_bury, ticket, 0, NULL);
}

/* Give an item a new due time; the ticket follows it. */
static delayq_status dq_retime(delayq *q, const dq_verb *verb,
                               delayq_ticket *ticket, int64_t delay_ms,
                               const char *wrong) {
    int64_t due_ms;
    delayq_status status = dq_check(q, wrong);
    if (status != DELAYQ_OK) return status;
    status = dq_do_ticket(q, verb, ticket->text, delay_ms, &due_ms);
    if (status == DELAYQ_OK) dq_elem_set_ticket_due(ticket, due_ms);
    return status;
}

DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms) {
    const char *wrong = dq_wrong_ticket(item ? item->ticket.text : NULL);
    if (q && lease_ms == 0) lease_ms = q->options.lease_ms;
    if (!wrong && (lease_ms <= 0 || lease_ms > DQ_MAX_DUE / 4))
        wrong = "lease_ms: above 0 and not too long, or the handle has a lease";
    return dq_retime(q, &dq_verb_extend, wrong ? NULL : &item->ticket, lease_ms,
                     wrong);
}

DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms) {
    const char *wrong = dq_wrong_ticket(ticket ? ticket->text : NULL);
    if (!wrong && (delay_ms < 0 || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms is negative or too long";
    return dq_retime(q, &dq_verb_reschedule, ticket, delay_ms, wrong);
}

/* --- looking and clearing --- */

#define DQ_QUERY_VERB(id, name, word, script, write, flags)                 \
    static const dq_verb dq_verb_##id = {name,  word,  &dq_script_##script, \
                                         write, NULL,  1,                   \
                                         0,     flags, DQ_KEY_NONE}

/* Run a bare verb. After DELAYQ_OK the caller has its reply, lane->reply, which
 * begins with the `count` numbers n. */
static delayq_status dq_ask(delayq *q, delayq_lane *lane, const dq_verb *verb,
                            const dq_query *query, int64_t *n, size_t count) {
    delayq_status status;
    memset(n, 0, count * sizeof *n);
    dq_lane_begin(lane, &dq_policy_call, verb, 1);
    lane->query = query;
    status = dq_wait_run(q, lane);
    if (status != DELAYQ_OK || dq_resp_integers(lane->reply, n, count))
        return status;
    dq_lane_free_reply(lane);
    return dq_lane_reject(q, lane);
}

static void dq_write_peek(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    dq_resp_key(o, q, DQ_ZSET, "");
    o->keys = o->args;
    dq_resp_int(o, (int64_t)lane->query->max);
    if (lane->query->ticket) dq_write_ticket(o, lane->query->ticket);
}
DQ_QUERY_VERB(peek, "peek", "", peek, dq_write_peek, DQ_READ_ONLY);

/* Read one item of a peek: what can't be decoded, or has a score that is no due
 * time, has its rank as a ticket. Returns 0 if it is none. */
static int dq_peek_item(const delayq *q, delayq_item *item, const redisReply *r,
                        const char *due, uint64_t rank) {
    const unsigned char *e = (const unsigned char *)r->str;
    int odd = *due == '-', kind;
    size_t at;
    due += odd;
    if (r->type != REDIS_REPLY_STRING || *due < '0' || *due > '9') return 0;
    memset(item, 0, sizeof *item);
    kind = dq_elem_parse_of(q, e, r->len, &at);
    item->due_ms = dq_num_due(due);
    if (kind < 0 || odd)
        dq_elem_rank_ticket(&item->ticket, item->due_ms, rank);
    else
        dq_elem_ticket(&item->ticket, item->due_ms, e, kind);
    item->data = e + at;
    item->len = r->len - at;
    item->attempt = dq_elem_attempt(e, kind);
    item->late_us = -1;
    return 1;
}

DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count,
                                     const delayq_ticket *after) {
    dq_query query = {0, 0, NULL, NULL};
    delayq_status status;
    const redisReply *r;
    const char *due;
    delayq_lane lane;
    int64_t n[2];
    size_t i;
    if (after && after->text[0]) query.ticket = after->text;
    status = dq_check(q, !items || !count || max == 0
                             ? "items or count is NULL, or max is 0"
                         : query.ticket && !dq_elem_is_ticket(query.ticket)
                             ? "after: no ticket"
                             : NULL);
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_free_items(q);
    query.max = max < 100000 ? max : 100000;
    status = dq_ask(q, &lane, &dq_verb_peek, &query, n, 2);
    if (status != DELAYQ_OK) return status;
    q->reply = lane.reply;
    r = lane.reply;
    if (r->elements < 3 || r->element[2]->type != REDIS_REPLY_STRING ||
        r->elements - 3 > query.max)
        return dq_lane_reject(q, &lane);
    due = r->element[2]->str;
    for (i = 0; i + 3 < r->elements; i++) {
        if (!dq_peek_item(q, &items[i], r->element[i + 3], due,
                          (uint64_t)n[1] + i))
            return dq_lane_reject(q, &lane);
        due += strcspn(due, " ");
        due += *due == ' ';
    }
    *count = i;
    return i > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

#define DQ_COUNTS 12 /* numbers that a count's reply begins with */

static void dq_write_count(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    size_t i;
    dq_write_three_keys(o, q);
    dq_resp_key(o, q, DQ_DEAD, "");
    o->keys = o->args;
    dq_resp_text(o, q->wire->letter);
    dq_resp_key(o, q, DQ_COUNTERS, "");
    for (i = 0; i < lane->query->max; i++)
        dq_resp_int(o, lane->query->times[i]);
}
DQ_QUERY_VERB(count, "count", "", count, dq_write_count, DQ_READ_ONLY);

DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts) {
    delayq_status status = dq_check(q, counts ? NULL : "counts is NULL");
    dq_query query = {0, 0, NULL, NULL};
    int64_t n[DQ_COUNTS];
    delayq_lane lane;
    if (status != DELAYQ_OK) return status;
    *counts = q->counts;
    status = dq_ask(q, &lane, &dq_verb_count, &query, n, DQ_COUNTS);
    dq_lane_free_reply(&lane);
    if (status != DELAYQ_OK) return status;
    counts->now_ms = n[0] / 1000;
    counts->pending = n[1];
    counts->overdue = n[2];
    counts->ready = n[3];
    counts->dead = n[4];
    counts->next_due_ms = n[5] < 0 ? 0 : n[5];
    if (n[2] > 0 && counts->now_ms > n[5])
        counts->overdue_ms = counts->now_ms - n[5];
    counts->total.offered = (uint64_t)n[6];
    counts->total.taken = (uint64_t)n[7];
    counts->total.acked = (uint64_t)n[8];
    counts->total.nacked = (uint64_t)n[9];
    counts->total.died = (uint64_t)n[10];
    counts->total.canceled = (uint64_t)n[11];
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts) {
    delayq_status status =
        dq_check(q, !due_ms || !counts  ? "due_ms or counts is NULL"
                    : n < 1 || n > 1000 ? "n: 1 to 1,000"
                                        : NULL);
    dq_query query = {0, 0, NULL, NULL};
    int64_t head[DQ_COUNTS];
    delayq_lane lane;
    size_t i;
    if (status != DELAYQ_OK) return status;
    query.times = due_ms;
    query.max = n;
    status = dq_ask(q, &lane, &dq_verb_count, &query, head, DQ_COUNTS);
    if (status != DELAYQ_OK) return status;
    for (i = 0; i < n && lane.reply->elements == n + DQ_COUNTS; i++) {
        const redisReply *r = lane.reply->element[i + DQ_COUNTS];
        if (r->type != REDIS_REPLY_INTEGER) break;
        counts[i] = r->integer;
    }
    dq_lane_free_reply(&lane);
    return i == n ? DELAYQ_OK : dq_lane_reject(q, &lane);
}

/* Run a verb that removes items or dead letters. *removed: their number. */
static delayq_status dq_ask_removal(delayq *q, const dq_verb *verb, size_t max,
                                    const char *wrong, int64_t *removed) {
    delayq_status status = dq_check(q, wrong);
    dq_query query = {0, 0, NULL, NULL};
    delayq_lane lane;
    int64_t n[2];
    query.max = max;
    if (status == DELAYQ_OK) {
        status = dq_ask(q, &lane, verb, &query, n, 2);
        dq_lane_free_reply(&lane);
    }
    if (removed) *removed = status == DELAYQ_OK ? n[1] : 0;
    return status;
}

static void dq_write_clear(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    (void)lane;
    dq_write_three_keys(o, q);
    o->keys = o->args;
    dq_resp_text(o, q->wire->letter);
}
DQ_QUERY_VERB(clear, "clear", "", clear, dq_write_clear, 0);

DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed) {
    delayq_status status = dq_ask_removal(q, &dq_verb_clear, 0, NULL, removed);
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, 0);
    return status;
}

#define DQ_DEAD_MAX 1000000 /* dead letters in one request */

static void dq_write_dead(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    const char *word = lane->verb->word;
    size_t max = lane->query->max;
    dq_resp_key(o, q, DQ_DEAD, "");
    if (strcmp(word, "redrive") == 0) dq_resp_arg(o, q->name, q->name_len, 0);
    o->keys = o->args;
    dq_resp_text(o, word);
    dq_resp_int(o, (int64_t)(max < DQ_DEAD_MAX ? max : DQ_DEAD_MAX));
    dq_resp_int(o, lane->query->from);
    dq_resp_text(o, q->wire->letter);
}
DQ_QUERY_VERB(dead_peek, "dead letters", "peek", dead, dq_write_dead,
              DQ_READ_ONLY);
DQ_QUERY_VERB(dead_redrive, "dead letters", "redrive", dead, dq_write_dead, 0);
DQ_QUERY_VERB(dead_clear, "dead letters", "clear", dead, dq_write_dead, 0);

/* Read a dead letter: "reason time\n", then the element. One that begins in
 * another way is shown whole. */
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
    dq_query query = {0, 0, NULL, NULL};
    delayq_lane lane;
    int64_t n[2];
    size_t i;
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_free_items(q);
    query.max = max;
    query.from = from < INT32_MAX ? (int64_t)from : INT32_MAX;
    status = dq_ask(q, &lane, &dq_verb_dead_peek, &query, n, 2);
    if (status != DELAYQ_OK) return status;
    q->reply = lane.reply;
    for (i = 0; i + 2 < lane.reply->elements; i++)
        if (i == max ||
            !dq_dead_letter(q, &letters[i], lane.reply->element[i + 2]))
            return dq_lane_reject(q, &lane);
    *count = i;
    return i > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

DELAYQ_API delayq_status delayq_dead_redrive(delayq *q, size_t max,
                                             size_t *count) {
    const char *wrong =
        dq_is_stream(q) ? "a broadcast has no ready list to redrive to" : NULL;
    int64_t n;
    delayq_status status =
        dq_ask_removal(q, &dq_verb_dead_redrive, max, wrong, &n);
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, n);
    if (count) *count = (size_t)n;
    return status;
}

DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed) {
    return dq_ask_removal(q, &dq_verb_dead_clear, 1, NULL, removed);
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
            int paused = dq_wait_is_paused(queues[i]);
            if (timeout_ms != 0 && dq_wait_consume_wake(queues[i]))
                return DELAYQ_WOKEN;
            queues[i]->fetch.take = dq_take_verb(queues[i]);
            status = dq_wait_turn(queues[i]);
            if (status < 0 && !dq_err_is_transient(status)) return status;
            if (status < 0 && !paused) dq_wait_ride_out(queues[i], status);
            if (status == DELAYQ_OK || all == DELAYQ_EMPTY) all = status;
        }
        if (all == DELAYQ_OK || timeout_ms == 0 || dq_sys_now() >= deadline)
            return all;
        dq_sleep(queues, count, deadline, DQ_FOR_ITEMS);
    }
}

DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms) {
    delayq_status status = dq_check(q, dq_wrong_timeout(timeout_ms));
    int64_t deadline = dq_wait_deadline(timeout_ms);
    dq_outbox *b;
    if (status == DELAYQ_OK && !q->outbox) status = dq_check(q, "no outbox");
    if (status != DELAYQ_OK) return status;
    b = q->outbox;
    for (;;) {
        int empty;
        if (timeout_ms != 0 && dq_wait_consume_wake(q)) return DELAYQ_WOKEN;
        status = dq_conn_ensure(q);
        if (status < DELAYQ_OK) dq_lane_note(q, status);
        dq_step(q);
        empty = dq_lane_is_idle(&b->offers.lane) &&
                dq_lane_is_idle(&b->changes.lane);
        if (empty || dq_sys_now() >= deadline) {
            status = empty && b->dropped == b->told_dropped ? DELAYQ_OK
                     : b->failure < DELAYQ_OK               ? b->failure
                                              : DELAYQ_ERR_TIMEOUT;
            b->told_dropped = b->dropped;
            b->failure = DELAYQ_OK;
            if (status == DELAYQ_ERR_TIMEOUT && !empty)
                dq_err_set(q->err, status, "flush: not everything is settled");
            return status;
        }
        dq_sleep(&q, 1, deadline, DQ_FOR_FLUSH);
    }
}

DELAYQ_API delayq_status delayq_outbox(const delayq *q,
                                       delayq_outbox_state *state) {
    const dq_outbox *b;
    if (!q || !state || q->open != DQ_OPEN || !q->outbox) return DELAYQ_ERR_ARG;
    b = q->outbox;
    state->offers_accepted = b->offers.lane.accepted;
    state->offers_settled = b->offers.lane.settled;
    state->changes_accepted = b->changes.lane.accepted;
    state->changes_settled = b->changes.lane.settled;
    state->gone = b->gone;
    state->duplicate = b->duplicate;
    state->dropped = b->dropped;
    state->bytes = b->offers.used + b->changes.used;
    state->size = b->offers.size + b->changes.size;
    return DELAYQ_OK;
}

DELAYQ_API void delayq_wake(delayq *q) {
    int saved = errno;
    if (!q || q->open != DQ_OPEN || !q->conn) return;
    if (q->pid != dq_sys_pid()) return; /* the parent's pipe */
    DQ_STORE(&q->woken, 1);
    /* A full pipe has been written to before, which is as good. */
    dq_sys_write_pipe(q->conn->pipe[1]);
    errno = saved;
}

DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = 0;
    if (!q || q->open != DQ_OPEN || !q->conn || !fds) return 0;
    q->conn->sub_read_us = 0; /* what wakes the poll has to be read then */
    if (n < max) fds[n++] = q->conn->pipe[0];
    if (n < max && q->conn->sub.c) fds[n++] = dq_sys_fd(q->conn->sub.c);
    if (n < max && q->conn->cmd.c) fds[n++] = dq_sys_fd(q->conn->cmd.c);
    return n;
}

DELAYQ_API const char *delayq_errmsg(const delayq *q) {
    return q ? q->err : "";
}

DELAYQ_API const char *delayq_strstatus(delayq_status status) {
    switch (status) {
    case DELAYQ_OK: return "done";
    case DELAYQ_EMPTY: return "nothing to take";
    case DELAYQ_GONE: return "it is no longer there";
    case DELAYQ_DUPLICATE: return "the key is taken";
    case DELAYQ_WOKEN: return "woken by delayq_wake";
    case DELAYQ_ERR_ARG: return "bad argument";
    case DELAYQ_ERR_IO: return "no connection; nothing has happened";
    case DELAYQ_ERR_TIMEOUT: return "not in time; nothing has happened";
    case DELAYQ_ERR_AUTH: return "wrong password or no permission";
    case DELAYQ_ERR_REDIS: return "the server answered with an error";
    case DELAYQ_ERR_PROTOCOL: return "the server answered nonsense";
    case DELAYQ_ERR_READONLY: return "the server takes no writes now";
    case DELAYQ_ERR_FULL: return "the server's memory, or the outbox, is full";
    case DELAYQ_ERR_WIRE: return "the queue belongs to another Redisson";
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
