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
 *     >>promises    what is guaranteed, and what isn't
 *     >>keys        what lies in Redis
 *     >>time        clocks, waiting, order
 *     >>servers     one server, Sentinel, a cluster, TLS
 *     >>threads     blocking, threads, signals, fork
 *     >>outbox      handles that never wait
 *     >>errors      errors and retries
 *     >>limits      limits
 *     >>macros      option macros
 *     >>status      what a call can tell you
 *     >>types       options, the item, the handle
 *     >>functions   the functions
 *
 * and in the implementation, from the ground up:
 *
 *     >>system         what a port supplies: clock, random bytes, sockets ...
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
 *     >>waiting        the only place that waits
 *     >>taking         transfers and takes
 *     >>outbox-inside  what handles that never wait have yet to send
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
 * If it refuses only what comes after the first items, these have been moved or
 * taken, the call succeeds, and the next one fails. A full server still
 * delivers, acks, nacks and extends.
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
 *     delayq_sent:T:HANDLE            string with a TTL of a day: how far the
 *                                            offers of an outbox have come
 *     delayq_waiters:T                zset   handles that wait in a take, and
 *                                            the channel that calls all of them
 *     delayq_turn:T:HANDLE            channel  tells one of them to lead
 *     delayq_stream:T                 stream, trimmed: a broadcast's items
 *     delayq_counters:T               hash   what handles with options.counters
 *                                            have done
 *
 * The first four are the keys, the bytes and the channel of Redisson's
 * RDelayedQueue over an RBlockingQueue: Java programs can offer to and take
 * from the same queue. options.wire says for which Redisson; all handles on a
 * queue use the same wire. An element that the fleet's Redisson can't read
 * stops its transfer for ever. So a handle that meets an element of another
 * Redisson than its own returns DELAYQ_ERR_WIRE. It looks at both ends of the
 * set and of the mirror at the open, and with an offer if it has not looked for
 * 10 s; takes and ticks look at what they move and at the next item, if that is
 * due within max_wait_ms. It does not look at each element, and can't see a
 * Redisson that has not offered yet. If elements of two formats have come
 * together all the same, let one handle with DELAYQ_REDISSON_OLD tick until the
 * wrong ones are gone: its ticks move every format, and write none.
 *
 * Handles with options.counters add what they do to the counters, in the script
 * that does it: so what is sent again after a lost answer counts once, and the
 * totals that delayq_count tells make the rates of the fleet. Not counted is
 * what Redisson and handles without the option do, a redrive, what delayq_clear
 * removes, and some of what is done while the slot moves to another node. Each
 * counter that a call changes costs the server about 1.5 us, and 85 bytes in
 * the append-only file. They stay until somebody deletes their key, and begin
 * at 0 then.
 *
 * What lies in Redis outlives the programs, so it is a contract of its own.
 * Versions of delayq with the same first number can work on one queue at once:
 * they offer, move, take and ack each other's items and know each other's
 * tickets and keys. So programs can be upgraded one by one, and rolled back,
 * while they work. What a version adds lies in a key of its own, or in a bit
 * that older versions pass over. A change that these could not live with raises
 * the first number, and the newer version refuses their queues in words.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts: a device without a clock, or with a wrong
 * one, can offer and take. Due times are whole milliseconds since the epoch,
 * rounded up.
 *
 * Nothing ever blocks on the server; the handle waits in poll(), and sleeps for
 * the last fraction of a millisecond. Sleepers are woken up to 50 us late (on
 * Windows 600), so it sleeps for so much less, and spends the rest awake. A
 * handle that waits opens a second connection, the subscriber, which is told of
 * items that are due earlier and of payloads that anybody pushes into N. It
 * only saves time: without it the handle asks the server every 250 ms; with it
 * at least every max_wait_ms.
 *
 * Handles that wait in a take for 10 s or longer on one queue share the work.
 * One of them, the leader, keeps the exact timer. About 16 others, the
 * standbys, step in if the leader has not acted 0.3 to 0.6 s after something
 * was due or pushed. The rest sleep until one of those takes an item and needs
 * a successor. So of a hundred that wait few wake for an item, and one that
 * waits alone pays nothing for them.
 *
 * Waiting programs that die or freeze delay one item, once, by 1 s at most. The
 * exception: where more than 16 wait, and a fault hits the leader and every
 * standby, a sleeper finds the item, each of which looks every max_wait_ms.
 *
 * What one handle offers for the same millisecond comes in the order of the
 * offers. Between handles that holds, too, for an offer that begins after
 * another has returned. The exception: two that follow each other more closely
 * than round trips of a handle differ, or than its clock has drifted from the
 * server's since it last asked, may change places.
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
 * included, or for connect_timeout_ms if that is given and longer. What it
 * sends late in that time is given two measured round trips. With each MB of a
 * payload that moves, the time begins anew. A take or a wait may take its
 * timeout on top. An attempt to connect that needs more time goes on in the
 * next call. A host name in the URL is looked up by getaddrinfo at each
 * connect, which has no time limit: use an address, or options.resolve, where
 * that matters. A handle with an outbox does not block: see there.
 *
 * A connection that is dead without saying so (a frozen server, a lost
 * network) is noticed by the next request after io_timeout_ms, and by the
 * subscriber after 10 s and io_timeout_ms at most.
 *
 * >>outbox -- handles that never wait
 *
 * For a frame of a game, the superloop of a device, a callback of an event
 * loop. With options.outbox a handle waits for the server only in calls with a
 * timeout other than 0, and in those that want an answer: peek, count,
 * count_due, dead letters, clear, wait, flush. The others do this:
 *
 *     open     checks the options, loads the tls_ files, begins to connect, and
 *              returns DELAYQ_OK. Refusals come from tick
 *     tick     one step: writes and reads at most 64 KiB, and comes back. Call
 *              it once a frame, or when wait_ms is over or a descriptor is
 *              readable. It returns what keeps the outbox from going on
 *     take     hands out what an answer has brought; else asks, and returns
 *              DELAYQ_EMPTY: the item comes a round trip later. The lease runs
 *              from when it was asked. Take until DELAYQ_EMPTY, then tick
 *     offer, ack, nack, extend, bury, cancel, reschedule
 *              copy into the outbox and return DELAYQ_OK: accepted. No room:
 *              DELAYQ_ERR_FULL, nothing has happened. Larger than half of its
 *              ring: DELAYQ_ERR_ARG
 *
 * Offers have three quarters of the memory, acks and the like the rest, so that
 * a full server, which refuses offers, still gets the acks that make room. Each
 * is done in the order of the calls. What is accepted stays until the server
 * has confirmed it, through lost connections, wrong passwords, missing rights,
 * a full or read-only server. Only what the server can't take is dropped: what,
 * sent alone, has ended 8 connections; the log is told, and delayq_outbox
 * counts it.
 *
 * An offer is stored once, also where its answer was lost and it was sent
 * again: the queue remembers how far each handle has come, for a day. It is
 * stored at least once where Redis forgets that (a failover, a restart without
 * synced AOF), and after a day without a connection. A delay counts from the
 * call. With a ticket wanted (offer_message, offer_many) the due time is
 * settled at the call, by the server's clock as it is known then: after a
 * failover to a server with a faster clock the item is early by the
 * difference. Before the first connection there is no ticket: it is "", and
 * extend and reschedule return DELAYQ_ERR_IO.
 *
 * A crash of the program, and close, lose what lies in the outbox; call
 * delayq_flush before. They also lose items that were fetched and not handed
 * out, unless there is a lease.
 *
 * >>errors -- errors and retries
 *
 * 0 is done, > 0 means that nothing went wrong but there is nothing to show,
 * < 0 is a failure. Only after DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL may
 * the effect have happened; after any other failure it has not. delayq_errmsg
 * has the sentence. If an answer was lost and the call goes on, whatever it
 * then fails of is DELAYQ_ERR_UNKNOWN, and the sentence tells of both.
 *
 * What a server or a proxy says unasked closes the connection before the next
 * request is written. One such fault can't be noticed: if a proxy sends an
 * answer twice, and the copy comes while the next answer is awaited, it is
 * taken for that.
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
 * An answer with more than 250,000 elements or more than 1 GB is refused as
 * soon as the server announces it; else memory grows only with what has come.
 *
 * A script moves or takes at most options.batch items and stops after 256 KiB
 * of payload, so it blocks the server for about 2 ms. A payload larger than
 * that is moved alone. Of 1 to 64 MB it blocks the server for so many ms per
 * MB: an offer or a take 2 to 5, a take with a lease 7 to 13, an ack, nack or
 * extend 3 to 6, a tick that moves it 4 to 8 (a GET or SET in Lua: 2 to 3). A
 * take or tick needs twice as long if the next item is as large, since it looks
 * at that to know when it is due. An item of 60 MB goes through with the
 * default options; for larger ones raise io_timeout_ms, since nothing moves
 * while the script runs.
 *
 * With a Redisson wire each script walks through the mirror list once, that of
 * a replace twice: a few ms per 100,000 pending items. One walk serves up to
 * 100 items offered by delayq, but only 1 to 3 offered by Java.
 *
 * The handle is plain memory of a few KB. A call needs up to 22 KB of stack, 16
 * of these for hiredis' read buffer, and more under TLS. The library itself
 * allocates nothing; hiredis does.
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
 * >>status   what a call can tell you
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
#define DELAYQ_BACKOFF (-1) /* nack: exponential, with jitter */
#define DELAYQ_RELEASE (-2) /* nack: at once, this attempt doesn't count */

/* Which programs share the queue. All its handles use the same. */
typedef enum delayq_wire {
    DELAYQ_NATIVE = 0,  /* C programs. Redisson >= 3.21.1 can move and take the
                           items, but must not offer any, and its size(),
                           contains() and so on don't see what C has offered */
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

/* From here to the functions (>>functions): what a handle is made of, private.
 * It is here so that a handle can lie in memory of yours. */

typedef struct delayq_address {
    char host[256]; /* or the path of a unix socket, */
    int port;       /* which has port 0 */
} delayq_address;

/* Private: commands that were written together, until each of their replies
 * is there. */
typedef enum delayq_exchange_state {
    DELAYQ_EXCHANGE_NONE,
    DELAYQ_EXCHANGE_WAITING,  /* to be written */
    DELAYQ_EXCHANGE_SENT,     /* replies are to come */
    DELAYQ_EXCHANGE_ANSWERED, /* by the server, or by the loss of its socket */
    DELAYQ_EXCHANGE_SETTLED   /* and what follows from that is done */
} delayq_exchange_state;

typedef struct delayq_exchange {
    struct delayq_exchange *next; /* on the same socket */
    delayq_exchange_state state;
    delayq_status status;          /* why there are no replies, or OK */
    unsigned char wants, got;      /* replies */
    unsigned number;               /* the socket's, when it was sent */
    unsigned char written;         /* the server has all of it, or may have; so
                                      it has where another one follows */
    unsigned char alone;           /* nothing else was lost with it */
    struct redisReply *replies[5]; /* `got` of them */
    int64_t sent_us, read_us;
} delayq_exchange;

/* Private: one connection to a server. */
typedef enum delayq_socket_state {
    DELAYQ_SOCKET_CLOSED,
    DELAYQ_SOCKET_RESOLVING, /* its host's address is being looked up */
    DELAYQ_SOCKET_DIALING,   /* it is being connected */
    DELAYQ_SOCKET_TLS,       /* in the handshake of TLS */
    DELAYQ_SOCKET_GREETING,  /* its login waits for answers */
    DELAYQ_SOCKET_OPEN,      /* logged in */
    DELAYQ_SOCKET_PROVEN     /* and has been of use */
} delayq_socket_state;

/* Private: how far a reply has come. */
typedef struct delayq_reply_scan {
    char type;           /* of what comes; 0: its first byte comes */
    char last;           /* the byte before, in a line; */
    unsigned short line; /* the length of that */
    unsigned number;     /* in that; of a string: bytes still to come */
    unsigned bytes;      /* of all strings in the reply so far */
    unsigned items;      /* of all its arrays */
    unsigned depth;      /* arrays that aren't complete, one in the other: */
    unsigned left[4];    /* so many elements are to come */
} delayq_reply_scan;

typedef struct delayq_socket {
    struct redisContext *c; /* NULL until it is being connected */
    void *ssl;              /* c's SSL; hiredis owns it */
    delayq_socket_state state;
    unsigned number;         /* counts the attempts to connect it */
    unsigned char purpose;   /* dq_conn_purpose */
    unsigned char unwritten; /* c's output buffer, or `body`, is not empty */
    unsigned char more;      /* there may be more to read */
    unsigned char unproven;  /* so many in a row were lost before of use */
    unsigned failures;       /* so many attempts in a row have failed */
    int64_t retry_us;        /* connect no sooner */
    int64_t begun_us;        /* when this attempt began; */
    int64_t deadline_us;     /* it has to be open by then */
    int64_t moved_us;        /* when it was last of use */
    delayq_reply_scan scan;  /* of what is read */
    const char *body;        /* what is to be written then, */
    size_t body_len;         /* a payload of that length */
    delayq_exchange *first, *last; /* under way, in the order of replies */
    delayq_exchange greeting;
    unsigned char login[8]; /* the steps that it consists of */
} delayq_socket;

/* Private: whether the server tells of pushes into the lists. */
typedef enum delayq_track_state {
    DELAYQ_TRACK_OFF,     /* no sub, or refused: handles poll more often */
    DELAYQ_TRACK_ALLOWED, /* sub is ready for it, cmd has not turned it on */
    DELAYQ_TRACK_ON       /* cmd has turned it on, REDIRECT to sub */
} delayq_track_state;

/* Private: a host's address. */
typedef struct delayq_name {
    unsigned hash;    /* of its name */
    int64_t found_us; /* when it was looked up; 0: never */
    char text[46];
} delayq_name;

typedef struct delayq_conn {
    const delayq *owner; /* its options say where to connect */
    delayq *handles;     /* all that use this connection */

    delayq_socket cmd;  /* requests and their replies */
    delayq_socket sub;  /* the subscriber */
    delayq_socket *ask; /* to the node that ASK has named: dq_wait_settle's, or
                           NULL */

    delayq_address at;        /* where cmd leads, or is to lead */
    delayq_address redirect;  /* the node that MOVED or ASK has named */
    unsigned char redirected; /* cmd's next attempt goes there */
    unsigned char hops;       /* redirections in a row while connecting */
    unsigned char timed_out;  /* the last fault: given up, not closed by the
                                 server */
    unsigned host;            /* number of the URL's host to try next */
    delayq_name *names;       /* three, in the owner's outbox; or NULL */
    unsigned hosts_left;      /* to try before a pause */
    delayq_status failure;    /* what a request is told during that, */
    char err[256];            /* and the text */
    unsigned loaded;          /* bits of the scripts that cmd has loaded */

    delayq_track_state tracking;
    int64_t sub_id;        /* its CLIENT ID */
    unsigned sub_at;       /* a hash of the address to which it leads */
    int64_t sub_read_us;   /* when it was last read */
    int64_t sub_pinged_us; /* when it was pinged; 0: no answer is awaited */

    /* The server. */
    unsigned char known;               /* cmd has been told what follows; */
    unsigned char probed_again;        /* the first answer was late */
    unsigned clock_number;             /* counts the servers that were known */
    int64_t clock_offset_us;           /* its clock minus ours, at least, */
    int64_t clock_error_us;            /* and at most so much more, */
    int64_t clock_read_us;             /* when it was told */
    unsigned char long_size, long_big; /* its unsigned long */

    unsigned moved; /* bytes of large payloads and of answers so far */

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

/* A handle. {0} is a closed one. An open one must not be copied or moved. */
struct delayq {
    unsigned open;
    int call_ms; /* how long a call that asks may take */
    int64_t pid;
    delayq_options options;
    delayq_conn *conn;   /* own, or that of options.share; NULL once the handle
                            that it belongs to is closed */
    delayq_conn own;     /* unused by a handle that shares another's */
    delayq *next;        /* of the handles on a connection */
    uint64_t last_order; /* of the last id */
    unsigned char handle_id[8]; /* random */
    char id[18];                /* ":" and handle_id in hex */

    delayq_exchange setup; /* the probe of its queue, or tracking: */
    unsigned char tracks;  /* it is tracking; 2: its answer is out of date */

    /* The schedule. */
    int64_t next_poll_us; /* ask the server no later than then */
    int64_t pause_us;     /* the last request failed: none before then, whatever
                             is heard */
    int64_t track_us;     /* ask it to track the list no sooner than then */
    int64_t ready;        /* how many lay ready by the last answer */
    void *outbox;         /* in options.outbox, or NULL */
    int64_t send_us;      /* that has something to send then */
    unsigned char asked;  /* its transfer or take is under way */

    /* What is heard; all 0 while the subscriber is closed. */
    unsigned char subscribed;   /* to the queue's channel */
    unsigned char list_tracked; /* the next push into N will be heard: only
                                   while conn->tracking is DELAYQ_TRACK_ON */

    unsigned char will_wait; /* in a take that waits long enough to be one
                                of the waiters */
    delayq_waiter waiter;

    unsigned char empty_takes; /* 1: the last take was empty, and one of the
                                  empty ones since the last item didn't wait */
    unsigned char retry_turn;  /* which list the last take looked at first */
    unsigned char probed;      /* a probe of this queue has been answered */
    unsigned char foreign;     /* dq_foreign: what was met there */
    volatile int woken;        /* by delayq_wake */
    void *reply;               /* what the items point into */
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
 *     DELAYQ_ERR_WIRE      what was due before the element may have been moved,
 *                          and an item acked, which `acked` tells; nothing
 *                          else was changed. All further calls fail until the
 *                          handle is reopened. Exception: with
 *                          DELAYQ_REDISSON_OLD only those that write elements,
 *                          offers and takes; ticks go on
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
 *                              a system without random bytes, or on a cluster
 *                              a name that lies in two slots; the handle is
 *                              closed
 *             DELAYQ_ERR_WIRE  the handle is open, but its calls will return
 *                              this: see >>keys
 *             any server failure: the handle is open and connects when it is
 *                              used
 * Blocks      up to connect_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, EXISTS, 1 script, O(log n); a
 *             broadcast also XREVRANGE
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
 *                                  NULL with a length, or more than 1 GB
 *              DELAYQ_ERR_FULL     the server's memory, or the outbox, is full;
 *                                  not stored
 *              any server failure
 * Blocks       one round trip; if the connection turns out to be lost, a
 *              connect and one more (>>threads says for how long)
 * Redis        1 script, O(log n)
 *
 * If the answer is lost, the offer is sent again under the same id, so that it
 * is stored once: but only as long as it can't have been due yet, neither by
 * the server's clock nor by this machine's. After that nobody can tell whether
 * it was stored and delivered, so it is not stored again, and the status is
 * DELAYQ_ERR_UNKNOWN. What can deceive that, between the two sendings: a
 * server's clock that is set forward and back again; a network that keeps the
 * first until the second was delivered; somebody who cancels or clears it, or
 * moves it to an earlier time.
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
 *              DELAYQ_GONE        only where its status was
 *                                 DELAYQ_ERR_UNKNOWN: it has been due since,
 *                                 and is not there. It was delivered, or never
 *                                 stored; nothing was stored now
 *              DELAYQ_ERR_ARG     a bad message, or NULL; nothing was sent
 *              DELAYQ_ERR_FULL    the server's memory, or the outbox, is full;
 *                                 not stored
 *              any server failure
 * Blocks       as delayq_offer
 * Redis        1 script, O(log n)
 *
 * To retry after DELAYQ_ERR_UNKNOWN pass the same message unchanged until its
 * status is another: the item is stored at most once. DELAYQ_GONE ends that,
 * too. Who would rather have the item twice than never offers the message once
 * more then, which stores it anew.
 *
 * message->status is what was returned, except that it stays DELAYQ_ERR_UNKNOWN
 * when such a retry fails.
 */
DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message);

/*
 * delayq_offer_many -- hand in many, each with its own time, key and answer.
 *
 *   messages   see delayq_message; status and ticket are set in each
 *   count      0 is fine
 *
 * Returns      DELAYQ_OK   each is stored, or DELAYQ_DUPLICATE or DELAYQ_GONE
 *              else the server's first failure, or DELAYQ_ERR_ARG if some were
 *              bad; the others are stored all the same
 * Blocks       a round trip per 8 scripts or 256 KiB
 * Redis        a script per 128 messages or 256 KiB, one per key; O(log n) per
 *              message
 *
 * After DELAYQ_ERR_UNKNOWN offer those messages again that have this status, as
 * delayq_offer_message explains. Leave out the others: they would be stored
 * anew.
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
 * Blocks       for connecting and one transfer, within the limits of >>threads;
 *              with an outbox never. The subscriber is opened, and pushes are
 *              asked for, without waiting. While nothing is due it only reads
 *              the clock, and its sockets at most once a millisecond
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
 * timeout, then returns the last one, or _UNKNOWN if that was among them. All
 * others return at once. DELAYQ_OK and DELAYQ_EMPTY don't tell of an item that
 * was lost before them: without a lease only the log does.
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
 * Returns, blocks and costs as delayq_ack. Called again for the same item, the
 * last one counts, until it is delivered.
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
 *                KiB. For the next page, hand in the last item's ticket. Where
 *                others have written what can't be decoded, or scores that are
 *                no due times, the ticket is a place in the set, good for this
 *                alone: what is moved between two pages may shift it
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
 *              the first failure since the last flush: of what is still there,
 *                                  or was dropped
 * Blocks       timeout_ms, as in delayq_take
 */
DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms);

/* delayq_outbox -- what has been accepted and what is settled. Asks nobody.
 * DELAYQ_OK, or DELAYQ_ERR_ARG: no outbox. */
DELAYQ_API delayq_status delayq_outbox(const delayq *q,
                                       delayq_outbox_state *state);

/*
 * delayq_fds -- the descriptors to poll() for reading until the next tick.
 *
 *   fds, max    room for max descriptors; 3 are enough
 *
 * Returns how many were stored. Ask before each poll(): they change at a
 * reconnect. When one is readable call delayq_tick, or take with timeout 0. On
 * Windows they are SOCKETs, whose handles fit into an int, for select or
 * WSAPoll; a wait of the handle ends what WSAEventSelect has been told of them.
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
 *     Waiting                waiting for that; the only place that waits
 *     Taking, Outbox, Verbs  what the caller has asked for
 *
 * A connection is a delayq_socket, whose state dq_conn_advance moves on, and a
 * queue of exchanges under way on it, which dq_conn_pump writes and reads. No
 * section before Waiting waits, but for a connect hook and the look-up of a
 * host name. Outbox doesn't either, unless its call has a timeout.
 *
 * The way of one request, a take:
 *
 *     delayq_take, delayq_take_many          check the arguments
 *     dq_take            repeats steps until there is an item, the timeout is
 *                        over or delayq_wake was called; sleeps in
 *                        dq_wait_sleep between them
 *     dq_take_step       asks if there may be something, else sees to it that
 *                        the next item is heard of (subscriber, tracking)
 *     dq_take_begin      describes the request in a dq_req
 *     dq_wait_settle     repeats until it is settled:
 *       dq_req_step      settles what is answered, sends what waits:
 *         dq_conn_ensure   connects, logs in, probes, a step at a time
 *         dq_conn_submit   writes it; its exchange is under way
 *       dq_wait_conn     waits until the socket is ready; dq_conn_pump reads
 *     dq_req_answered    gives an error reply its status; notes MOVED
 *     dq_req_decide      settles it, or has it sent again: the retry policy
 *     dq_take_apply      tells the schedule when the next item is due
 *     dq_read_items      makes items of the reply
 *
 * With an outbox the same request lies in the outbox, and dq_outbox_step moves
 * it on: dq_outbox_ask sends it, dq_outbox_answered keeps its reply, and
 * dq_outbox_hand_out reads that. Offers and acks are entries of a dq_ring;
 * dq_ring_plan makes a request of the first ones, dq_ring_settled removes them.
 *
 * Without one, an offer and the verbs of a ticket go the same way from
 * dq_wait_settle on; a tick goes from dq_take_tick to dq_take_transfer.
 *
 * Who owns which state:
 *
 *     conn->cmd, sub, ask, at, redirect, host, err    Connections
 *     conn->known, clock_...    Connections: set by the probe, and by replies
 *     conn->loaded       set by Protocol, which writes SCRIPT LOAD; cleared by
 *                        Requests (NOSCRIPT) and with the connection
 *     conn->tracking, sub_...   Subscriber; cleared by dq_conn_close
 *     q->setup           Connections while it is a probe, else Subscriber
 *     q->next_poll_us, pause_us, asked, ready    Schedule; Waiters, where it
 *                        isn't the handle that acts
 *     q->subscribed, list_tracked      Waiters; cleared by Schedule
 *     q->waiter, will_wait        Waiters
 *     q->outbox, send_us, and what the memory holds    Outbox
 *     q->reply (what the items point into)   Taking, Verbs
 *     q->woken           Waiting; set by any thread, the only such field
 *
 * Where to look for:
 *
 *     a MOVED            dq_conn_read_probe meets it when connecting,
 *                        dq_req_answered later; both leave the address to
 *                        dq_conn_parse_redirect, and dq_conn_attempt goes there
 *     an ASK             dq_req_decide sets req->asking; dq_req_socket
 *     what may be sent twice                 dq_req_decide, req->idempotent
 *     when the server is asked next          dq_sched_on_..., dq_waiters_on_
 *                        ...: an event each. dq_take_step, dq_take_tick,
 *                        dq_outbox_tick go by it; dq_sched_next says when to
 *                        wake for it
 *     an element that can't be decoded       of a tick or take, in the
 *                        scripts: split() gives nil, and drain or take_listed
 *                        puts it to the dead letters. In C dq_elem_parse gives
 *                        -1, and a peek shows all its bytes as the payload
 *     a new argument of a script     its writer, the Lua that reads it, the
 *                        list above that; then `make lua`. TAKE is read by
 *                        take_usual, too, and its first three by RUN
 *     a new option       delayq_options; range and default dq_check_options;
 *                        where it comes from options.share, dq_check_share
 *     a new error of the server              dq_err_table
 *     a new script       its text and DQ_SCRIPT in Scripts, a writer of its
 *                        keys and arguments beside its verb; then `make lua`
 *
 * Words: a transfer moves due items from the zset to the ready list. The probe
 * is the first request on a connection, and the first about a queue. Tracking
 * is Redis' client tracking, which tells the subscriber of a push into the
 * list. The waiters are the handles in a take of 10 s or longer: the leader
 * acts, a standby acts if the leader doesn't, sleepers only look now and then.
 * A poll asks the server without having been told to. A request is idempotent
 * if sending it twice does what sending it once does.
 *===========================================================================*/

#if defined(DELAYQ_IMPLEMENTATION) && !defined(DELAYQ_IMPLEMENTED)
#define DELAYQ_IMPLEMENTED

/*-----------------------------------------------------------------------------
 * MARK: - System
 * >>system   clock, random bytes, SIGPIPE, sockets, the wake-up pipe
 *
 * Owns everything that differs between operating systems: no other section asks
 * which one it is. First stands what each has to supply, then how a port,
 * Windows and POSIX do that, then what is made of it.
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
#if defined(DELAYQ_PORT)
/* included below, as one more column */
#elif defined(_WIN32)
#include <winsock2.h>

#include <bcrypt.h>
#include <ws2tcpip.h>
#else
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

/* Stands before a function with buffers: merged into its caller, it would keep
 * these on the stack below whatever that calls next. */
#if defined(__GNUC__)
#define DQ_APART __attribute__((noinline))
#else
#define DQ_APART
#endif

#define DQ_OPEN 0x64713031u
#define DQ_NEVER INT64_MAX
#define DQ_SECOND_US 1000000

/* --- what a system has to supply: a port writes these --- */

/* And it defines struct pollfd, POLLIN and POLLOUT; dq_sys_socket, the type of
 * hiredis' socket; the addresses of IPv4 and IPv6, and dq_sys_address for any
 * of them; socklen_t, getsockname, getpeername and inet_pton; and DQ_SPIN_US,
 * how late a sleeper is woken at most, as a rule.
 *
 * A port to another system is a file with all this, which DELAYQ_PORT names:
 * examples/device/lwip.h is one. */
struct pollfd;

/* The local clock, in us, which never steps. It only measures distances. */
static int64_t dq_sys_now(void);

/* Random bytes, of which ids are made: nobody else may get the same. 1; 0: it
 * has none, and delayq_open refuses. */
static int dq_sys_random(unsigned char *bytes, size_t len);

/* Tells a process from its fork. Any constant where there is no fork. */
static int64_t dq_sys_pid(void);

/* What errno says, in words; `room` is for those that need some. */
static const char *dq_sys_strerror(int code, char room[40]);

/* Make a new socket non-blocking, closed by exec, silent about SIGPIPE. */
static void dq_sys_set_modes(int fd);

/* Close a socket that hiredis has not got yet. */
static void dq_sys_close(int fd);

/* Read what has come, without waiting. Below 1: nothing. */
static int dq_sys_receive(int fd, char *to, size_t size);

/* How many of up to 60 are ready for their POLLIN or POLLOUT, at the latest
 * after so many ms? With none it sleeps. Where a connect has failed it is ready
 * for POLLOUT. */
static int dq_sys_poll(struct pollfd *fds, size_t count, int ms);

/* Sleep until one is ready, which is 1, or the clock says `until`, which is 0.
 * It may be up to DQ_SPIN_US late for that, and should not be later. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until);

/* Why this can't be the path of a unix socket, or NULL; and its address. */
typedef union dq_sys_address dq_sys_address;
static const char *dq_sys_refuse_path(const char *path);
static size_t dq_sys_parse_path(dq_sys_address *to, const char *path);

/* The text of an address that a host's name has; `number` counts through them
 * round and round, those of IPv4 first. It may wait for a name server. 0: the
 * name has none. */
static int dq_sys_resolve(const char *host, unsigned number, char address[64]);

/* A socket that is being connected. -1: errno says why not. */
static int dq_sys_connect(const dq_sys_address *to, size_t size);

/* Why a connect has failed, as errno has it, or 0. */
static int dq_sys_socket_error(int fd);

/* What delayq_wake writes to, fds[1], and a wait reads from, fds[0], which can
 * be polled beside sockets; neither ever blocks, and a signal handler may
 * write. 0: errno says why not. It is the first that an open asks for, the
 * last that a close gives back. */
static int dq_sys_open_pipe(int fds[2]);
static void dq_sys_close_pipe(const int fds[2]);
static void dq_sys_drain_pipe(int fd);
static void dq_sys_write_pipe(int fd);

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

#if defined(DELAYQ_PORT)

#include DELAYQ_PORT

#elif defined(_WIN32)

/* --- Windows 10 and later; link with ws2_32 and bcrypt --- */

#ifdef _MSC_VER
#pragma comment(lib, "ws2_32")
#pragma comment(lib, "bcrypt")
#pragma warning(disable : 4996) /* strerror */
#endif
#define DQ_HIGH_RESOLUTION 2 /* CREATE_WAITABLE_TIMER_..., in new headers */
typedef SOCKET dq_sys_socket;
#define DQ_SPIN_US 600       /* such a timer ticks every 500 us */

union dq_sys_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

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

static int64_t dq_sys_pid(void) {
    return 0;
}

/* Our calls leave Winsock's codes in errno, hiredis those of C, for some of
 * which strerror has no words. */
static const char *dq_sys_strerror(int code, char room[40]) {
    static const struct {
        int winsock, c;
        const char *text;
    } known[] = {
        {WSAECONNREFUSED, ECONNREFUSED, "Connection refused"},
        {WSAECONNRESET, ECONNRESET, "Connection reset by peer"},
        {WSAECONNABORTED, ECONNABORTED, "Connection aborted"},
        {WSAETIMEDOUT, ETIMEDOUT, "Connection timed out"},
        {WSAENOTCONN, ENOTCONN, "Not connected"},
        {WSAEHOSTUNREACH, EHOSTUNREACH, "No route to host"},
        {WSAENETUNREACH, ENETUNREACH, "Network is unreachable"},
        {WSAENETRESET, ENETRESET, "Network has reset the connection"},
        {WSAENETDOWN, ENETDOWN, "Network is down"},
        {WSAEADDRINUSE, EADDRINUSE, "Address already in use"},
        {WSAEADDRNOTAVAIL, EADDRNOTAVAIL, "Address not available"},
        {WSAEAFNOSUPPORT, EAFNOSUPPORT, "Address family not supported"},
        {WSAEACCES, EACCES, "Permission denied"},
        {WSAEMFILE, EMFILE, "Too many open sockets"},
        {WSAENOBUFS, ENOBUFS, "No buffer space"},
    };
    size_t i;
    for (i = 0; i < sizeof known / sizeof known[0]; i++)
        if (code == known[i].winsock || code == known[i].c)
            return known[i].text;
    if (code < 10000) return strerror(code);
    snprintf(room, 40, "Windows Sockets error %d", code);
    return room;
}

static void dq_sys_set_modes(int fd) {
    u_long on = 1;
    ioctlsocket((dq_sys_socket)fd, (long)FIONBIO, &on);
    SetHandleInformation((HANDLE)(dq_sys_socket)fd, HANDLE_FLAG_INHERIT, 0);
}

static void dq_sys_close(int fd) {
    closesocket((dq_sys_socket)fd);
}

static int dq_sys_receive(int fd, char *to, size_t size) {
    return recv((dq_sys_socket)fd, to, (int)size, 0);
}

/* Not by WSAPoll: before Windows 10 2004 it doesn't see a failed connect. */
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

/* The timeouts of select, WSAPoll and Sleep end with a tick of the system,
 * which may take 15.6 ms; this timer's are finer since Windows 10 1803. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until) {
    HANDLE either[2]; /* an event of the sockets, the timer */
    LARGE_INTEGER in;
    size_t i;
    int ready;
    either[0] = CreateEventW(NULL, TRUE, FALSE, NULL);
    either[1] = CreateWaitableTimerExW(NULL, NULL, DQ_HIGH_RESOLUTION,
                                       TIMER_ALL_ACCESS);
    if (!either[1])
        either[1] = CreateWaitableTimerExW(NULL, NULL, 0, TIMER_ALL_ACCESS);
    for (i = 0; i < count; i++) { /* and forget what was recorded before, */
        WSANETWORKEVENTS old;
        WSAEventSelect(
            fds[i].fd, either[0],
            FD_CLOSE | (fds[i].events & POLLIN ? FD_READ : 0) |
                (fds[i].events & POLLOUT ? FD_CONNECT | FD_WRITE : 0));
        WSAEnumNetworkEvents(fds[i].fd, NULL, &old);
    }
    ResetEvent(either[0]);
    ready = dq_sys_poll(fds, count, 0);        /* since this sees it */
    in.QuadPart = (dq_sys_now() - until) * 10; /* < 0: so many 100 ns */
    if (ready == 0 && in.QuadPart < 0) {
        if (in.QuadPart < -3600 * 10LL * DQ_SECOND_US)
            in.QuadPart = -3600 * 10LL * DQ_SECOND_US;
        SetWaitableTimer(either[1], &in, 0, NULL, NULL, FALSE);
        ready = WaitForMultipleObjects(2, either, FALSE, INFINITE) !=
                WAIT_OBJECT_0 + 1;
    }
    for (i = 0; i < count; i++) WSAEventSelect(fds[i].fd, NULL, 0);
    CloseHandle(either[0]);
    CloseHandle(either[1]);
    return ready != 0;
}

static const char *dq_sys_refuse_path(const char *path) {
    (void)path;
    return "unix:// can't be used on Windows";
}

static size_t dq_sys_parse_path(dq_sys_address *to, const char *path) {
    (void)to;
    (void)path;
    return 0;
}

static int dq_sys_connect(const dq_sys_address *to, size_t size) {
    SOCKET s = socket(to->any.sa_family, SOCK_STREAM, 0);
    int on = 1, error;
    errno = WSAGetLastError();
    if (s == INVALID_SOCKET) return -1;
    dq_sys_set_modes((int)s);
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    if (connect(s, &to->any, (socklen_t)size) == 0) return (int)s;
    error = WSAGetLastError();
    if (error == WSAEWOULDBLOCK) return (int)s;
    closesocket(s);
    errno = error;
    return -1;
}

static int dq_sys_socket_error(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt((dq_sys_socket)fd, SOL_SOCKET, SO_ERROR, (char *)&error,
                   &size) != 0)
        error = WSAGetLastError();
    return error;
}

/* Two sockets that are connected over loopback. Whoever else may have connected
 * to the one that listens has another port than ours, and is sent away. */
static int dq_sys_open_pipe(int fds[2]) {
    WSADATA data;
    struct sockaddr_in at, ours, theirs;
    SOCKET listener, in = INVALID_SOCKET, out;
    int error = WSAStartup(MAKEWORD(2, 2), &data), size = sizeof at, on = 1;
    errno = error;
    if (error != 0) return 0;
    memset(&at, 0, sizeof at);
    memset(&ours, 0, sizeof ours);
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM, 0);
    out = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(listener, SOL_SOCKET, SO_EXCLUSIVEADDRUSE, (const char *)&on,
               sizeof on);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(listener, (struct sockaddr *)&at, &size) == 0 &&
        listen(listener, SOMAXCONN) == 0 &&
        connect(out, (struct sockaddr *)&at, sizeof at) == 0 &&
        getsockname(out, (struct sockaddr *)&ours, &size) == 0)
        for (;;) {
            size = sizeof theirs;
            in = accept(listener, (struct sockaddr *)&theirs, &size);
            if (in == INVALID_SOCKET ||
                (theirs.sin_port == ours.sin_port &&
                 theirs.sin_addr.s_addr == ours.sin_addr.s_addr))
                break;
            closesocket(in);
        }
    error = WSAGetLastError();
    closesocket(listener);
    if (in == INVALID_SOCKET) {
        closesocket(out);
        WSACleanup();
        errno = error;
        return 0;
    }
    setsockopt(out, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    fds[0] = (int)in;
    fds[1] = (int)out;
    dq_sys_set_modes(fds[0]);
    dq_sys_set_modes(fds[1]);
    return 1;
}

static void dq_sys_close_pipe(const int fds[2]) {
    closesocket((dq_sys_socket)fds[0]);
    closesocket((dq_sys_socket)fds[1]);
    WSACleanup();
}

static void dq_sys_drain_pipe(int fd) {
    char bytes[64];
    while (recv((dq_sys_socket)fd, bytes, sizeof bytes, 0) > 0) {
    }
}

static void dq_sys_write_pipe(int fd) {
    send((dq_sys_socket)fd, "w", 1, 0);
}

#else

/* --- POSIX --- */

typedef int dq_sys_socket;
#define DQ_SPIN_US 50 /* Linux' timer slack */

union dq_sys_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
    struct sockaddr_un path;
};

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

static int64_t dq_sys_pid(void) {
    return (int64_t)getpid();
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

static int dq_sys_receive(int fd, char *to, size_t size) {
    return (int)recv(fd, to, size, 0);
}

static int dq_sys_poll(struct pollfd *fds, size_t count, int ms) {
    return poll(fds, (nfds_t)count, ms);
}

/* poll counts whole milliseconds; the rest, less than one, is slept without
 * listening. Linux lets a poll be late by a thousandth of its time: it is asked
 * for that much less. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until) {
    int64_t left = until - dq_sys_now(), ms;
    do {
        ms = (left - left / 1000) / 1000;
        ms = ms > 3600000 ? 3600000 : ms > 0 ? ms : 0;
        if (poll(fds, (nfds_t)count, (int)ms) != 0) return 1;
        left = until - dq_sys_now();
    } while (left > 1000);
    if (left > 0) {
        struct timespec t;
        t.tv_sec = 0;
        t.tv_nsec = (long)left * 1000;
        if (nanosleep(&t, NULL) != 0) return 1;
    }
    return 0;
}

static const char *dq_sys_refuse_path(const char *path) {
    const struct sockaddr_un *to = NULL;
    return strlen(path) < sizeof to->sun_path ? NULL : "the path is too long";
}

static size_t dq_sys_parse_path(dq_sys_address *to, const char *path) {
    if (dq_sys_refuse_path(path)) return 0;
    to->path.sun_family = AF_UNIX;
    memcpy(to->path.sun_path, path, strlen(path) + 1);
    return sizeof to->path;
}

static int dq_sys_connect(const dq_sys_address *to, size_t size) {
    int fd = socket(to->any.sa_family, SOCK_STREAM, 0), saved, on = 1;
    if (fd < 0) return -1;
    dq_sys_set_modes(fd);
    if (to->any.sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, &to->any, (socklen_t)size) == 0 || errno == EINPROGRESS ||
        errno == EINTR)
        return fd;
    saved = errno;
    close(fd);
    errno = saved;
    return -1;
}

static int dq_sys_socket_error(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    return error;
}

static int dq_sys_open_pipe(int fds[2]) {
    if (pipe(fds) != 0) return 0;
    dq_sys_set_modes(fds[0]);
    dq_sys_set_modes(fds[1]);
    return 1;
}

static void dq_sys_close_pipe(const int fds[2]) {
    close(fds[0]);
    close(fds[1]);
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

#endif

/* --- SIGPIPE --- */

/* These stand around what may write to a lost connection: no SIGPIPE of that
 * may reach the program. failed: something went wrong in between. */
typedef struct dq_sys_signals dq_sys_signals;
static void dq_sys_block_sigpipe(dq_sys_signals *old);
static void dq_sys_unblock_sigpipe(const dq_sys_signals *old, int failed);

#if defined(DELAYQ_PORT) || defined(_WIN32) || defined(SO_NOSIGPIPE)

/* There is none, or dq_sys_set_modes has turned it off. */
struct dq_sys_signals {
    char none;
};

static void dq_sys_block_sigpipe(dq_sys_signals *old) {
    old->none = 0;
}

static void dq_sys_unblock_sigpipe(const dq_sys_signals *old, int failed) {
    (void)old;
    (void)failed;
}

#else

/* hiredis and OpenSSL write without MSG_NOSIGNAL. So SIGPIPE is blocked in this
 * thread, and removed where one was raised; but not the program's own, which
 * was blocked and pending before. */
struct dq_sys_signals {
    sigset_t mask;
    int pending;
};

/* Before glibc 2.32 pthread_sigmask is in -lpthread, which nobody has to link
 * with; there, and on OpenBSD, sigprocmask changes this thread's mask, too. */
#if defined(__OpenBSD__) || \
    (defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ < 32)
#define DQ_SIGMASK sigprocmask
#else
#define DQ_SIGMASK pthread_sigmask
#endif

/* Is one blocked and pending? */
static int dq_sys_sigpipe_waits(void) {
    sigset_t set;
    return sigpending(&set) == 0 && sigismember(&set, SIGPIPE) == 1;
}

static void dq_sys_block_sigpipe(dq_sys_signals *old) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    DQ_SIGMASK(SIG_BLOCK, &set, &old->mask);
    old->pending =
        sigismember(&old->mask, SIGPIPE) == 1 && dq_sys_sigpipe_waits();
}

/* Take the pending one. OpenBSD has nothing that is sure not to wait; nobody
 * else takes what this thread's write has raised. */
static void dq_sys_take_sigpipe(void) {
    sigset_t set;
#ifdef __OpenBSD__
    int number;
#else
    struct timespec none = {0, 0};
#endif
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
#ifdef __OpenBSD__
    if (dq_sys_sigpipe_waits()) sigwait(&set, &number);
#else
    while (sigtimedwait(&set, NULL, &none) < 0 && errno == EINTR) {
    }
#endif
}

static void dq_sys_unblock_sigpipe(const dq_sys_signals *old, int failed) {
    if (failed && !old->pending) {
        int saved = errno;
        dq_sys_take_sigpipe();
        errno = saved;
    }
    DQ_SIGMASK(SIG_SETMASK, &old->mask, NULL);
}

#endif

/* --- names --- */

#ifndef DELAYQ_PORT

static int dq_sys_resolve(const char *host, unsigned number, char address[64]) {
    struct addrinfo hints, *all = NULL, *a;
    unsigned n[2] = {0, 0};
    int found = 0, v6;
    memset(&hints, 0, sizeof hints);
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(host, NULL, &hints, &all) != 0) return 0;
    for (a = all; a; a = a->ai_next) n[a->ai_family == AF_INET6]++;
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

/* --- what is the same everywhere --- */

/* A random number below 65,536, for pauses. */
static unsigned dq_sys_random16(void) {
    unsigned char r[2] = {0, 0};
    dq_sys_random(r, 2);
    return (unsigned)r[0] << 8 | r[1];
}

/* Its socket. On Windows hiredis has a SOCKET, which is 64 bits wide there; but
 * it is a handle, and of these Windows uses 32 bits. */
static int dq_sys_fd(const redisContext *c) {
    return (int)c->fd;
}

/* Write what is in the buffer. *sent: the server has all of it. A context that
 * has failed, as by a want of memory for that, writes nothing. */
static int dq_sys_write(redisContext *c, int *sent) {
    dq_sys_signals old;
    int status;
    *sent = 0;
    if (c->err) return REDIS_ERR;
    dq_sys_block_sigpipe(&old);
    status = redisBufferWrite(c, sent);
    if (c->err == REDIS_ERR_OOM) *sent = 1; /* written, then no new buffer */
    dq_sys_unblock_sigpipe(&old, status != REDIS_OK);
    return status;
}

/* Under TLS a read may write, too. */
static int dq_sys_read_tls(redisContext *c) {
    dq_sys_signals old;
    int status;
    dq_sys_block_sigpipe(&old);
    status = redisBufferRead(c);
    dq_sys_unblock_sigpipe(&old, status != REDIS_OK);
    return status;
}

/* An entry for a poll, which waits for POLLIN or POLLOUT. */
static struct pollfd dq_sys_watch(int fd, int events) {
    struct pollfd p;
    p.fd = (dq_sys_socket)fd;
    p.events = (short)events;
    p.revents = 0;
    return p;
}

/* Sleep until a descriptor is ready or the clock says `until`. A sleeper is
 * woken up to DQ_SPIN_US late, so the last of it is spent awake. */
static void dq_sys_poll_until(struct pollfd *fds, size_t count, int64_t until) {
    if (dq_sys_sleep(fds, count, until - DQ_SPIN_US)) return;
    while (dq_sys_now() < until) {
    }
}

/* Read an address and its port, or a path, which has port 0. Returns its
 * length; 0: it is a name, or no path. */
static size_t dq_sys_parse_address(dq_sys_address *to, const char *text,
                                   int port) {
    memset(to, 0, sizeof *to);
    if (port == 0) return dq_sys_parse_path(to, text);
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

/* Is it connected to itself? That may happen where nobody listens on a port
 * that the system also gives to those who connect. */
static int dq_sys_is_own(int fd) {
    dq_sys_address a, b;
    socklen_t n = sizeof a, m = sizeof b;
    memset(&a, 0, sizeof a);
    memset(&b, 0, sizeof b);
    return getsockname((dq_sys_socket)fd, &a.any, &n) == 0 &&
           (a.any.sa_family == AF_INET || a.any.sa_family == AF_INET6) &&
           getpeername((dq_sys_socket)fd, &b.any, &m) == 0 && n == m &&
           memcmp(&a, &b, sizeof a) == 0;
}

/* How far is a connect? 1 connected, 0 not yet, -1 refused: errno says why. */
static int dq_sys_is_connected(int fd) {
    struct pollfd p = dq_sys_watch(fd, POLLOUT);
    if (dq_sys_poll(&p, 1, 0) <= 0) return 0;
    errno = dq_sys_socket_error(fd);
    if (errno == 0 && dq_sys_is_own(fd)) errno = ECONNREFUSED;
    return errno == 0 ? 1 : -1;
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
    int64_t d = base;
    while (failures-- > 1 && d < cap) d *= 2;
    if (d > cap) d = cap;
    return d / 2 + (int64_t)((double)(d / 2) * dq_sys_random16() / 65536);
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
 * on Windows. The formats are told apart by their exact length. No element
 * fits both lengths of L, nor both of k. But an old id can begin with 16 or 8,
 * and its payload have a fitting L, so what fits an old and a new format is
 * read as that of the handle's wire: as it was meant where all handles on the
 * queue, and Redisson, use that wire.
 *
 * An id of 16 bytes: 8 of order (microseconds, big-endian), 5 random of the
 * handle, 1 whose lower 6 bits count releases and the others are flags (0), 2
 * of attempt (big-endian). An attempt that is released doesn't count: the count
 * of releases then makes the next lease's id another one.
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
    int kind = n > 0 && (e[0] == 16 || e[0] == 8) ? e[0] : DQ_ELEM_OLD, i;
    for (i = 0; i < 2; i++) {
        int as = (i == 0) == (old_first != 0) ? DQ_ELEM_OLD : kind;
        *start = dq_elem_payload_start(e, n, big,
                                       as == DQ_ELEM_OLD ? 8 : 1 + (size_t)as);
        if (*start > 0) return as;
    }
    return -1;
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
    return kind == 16 ? e[15] << 8 | e[16] : 0;
}

/* The lower 11 bits of an old id: random, and no infinity or NaN. */
static int dq_elem_old_id_low(const delayq *q) {
    return (q->handle_id[5] & 7) << 8 | 0x20 | (q->handle_id[6] & 0x1f);
}

/* The order of the next id, where `count` are needed: what the server's clock
 * will show when a request that is sent now arrives, if that takes no longer
 * than the fastest one did. So it lies behind all offers that have returned,
 * and before those that begin when this one has. */
static uint64_t dq_elem_next_order(delayq *q, size_t count) {
    const delayq_conn *conn = q->conn;
    uint64_t order =
        (uint64_t)(dq_sys_now() + conn->clock_offset_us + conn->clock_error_us);
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

/* A ticket behind which a peek goes on, and no more: the element can't be
 * decoded, or its score is no due time, so it is named by its rank. */
static void dq_elem_rank_ticket(delayq_ticket *t, int64_t due_ms,
                                uint64_t rank) {
    unsigned char id[9] = {0xff}; /* no other has 9 bytes that begin so */
    dq_elem_put_uint(id + 1, 8, 1, rank);
    dq_elem_id_ticket(t, due_ms, id, sizeof id);
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
    int leave;        /* another server may do better */
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

/* What an error reply says: up to Redis 6 what a script ran into stands behind
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

/* Turn an error reply into a status and a text. What Redis repeats of a
 * command's arguments may hold a password, and is cut off; so is the script's
 * SHA1, which takes the room of the advice. */
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

#define DQ_BAD_REPLY "%s: the answer is not what delayq's script returns"

static delayq_status dq_err_bad_reply(delayq *q, const char *what) {
    return dq_err_set(q->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, what);
}

/* Something has failed, in q->err, after what a request of the same call may
 * have done: then that may have happened, whatever it was. */
static delayq_status dq_err_unanswered(delayq *q, const char *what,
                                       delayq_status status) {
    char then[160];
    if (status >= DELAYQ_OK || status == DELAYQ_ERR_PROTOCOL) return status;
    snprintf(then, sizeof then, "%.159s", q->err);
    if (!strstr(then, "may have happened")) /* said by the last one */
        dq_err_set(q->err, status,
                   "%s: sent, but no answer came: it may have happened; then: "
                   "%s",
                   what, then);
    return DELAYQ_ERR_UNKNOWN;
}

/* Elements beside which a handle must not write. */
enum { DQ_FOREIGN_OLD = 1, DQ_FOREIGN_NEW = 2 };

/* Why q must not write: what it has met. */
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
                      q->options.wire == DELAYQ_REDISSON_OLD
                          ? "; only ticks of this handle go on, which move "
                            "elements of every format"
                          : "");
}

/* Tell the program of a fault that a call rides out. */
static void dq_err_log(const delayq *q, delayq_status status,
                       const char *text) {
    if (q->options.log) q->options.log(q->options.user, status, text);
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
    if (!wrong && u->local) wrong = dq_sys_refuse_path(a.host);
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

/* A file can't be used: which one, and why? OpenSSL has no words for those that
 * can't be read. */
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

static const char *dq_tls_load(delayq_conn *conn, SSL_CTX *t) {
    const delayq_options *o = &conn->owner->options;
    SSL_CTX_set_min_proto_version(t, TLS1_2_VERSION);
    SSL_CTX_set_verify(t, SSL_VERIFY_PEER, NULL);
    if (!o->tls_ca) SSL_CTX_set_default_verify_paths(t);
    if (o->tls_ca && !SSL_CTX_load_verify_locations(t, o->tls_ca, NULL))
        return dq_tls_refuse(conn, "tls_ca", o->tls_ca);
    if (o->tls_cert && !SSL_CTX_use_certificate_chain_file(t, o->tls_cert))
        return dq_tls_refuse(conn, "tls_cert", o->tls_cert);
    if (o->tls_key &&
        !SSL_CTX_use_PrivateKey_file(t, o->tls_key, SSL_FILETYPE_PEM))
        return dq_tls_refuse(conn, "tls_key", o->tls_key);
    return NULL;
}

/* Load the files, which takes a while. NULL, or what is wrong with them. */
static const char *dq_tls_prepare(delayq_conn *conn) {
    const char *wrong;
    SSL_CTX *t;
    if (conn->tls) return NULL;
    ERR_clear_error();
    t = SSL_CTX_new(TLS_client_method());
    if (!t) {
        dq_err_set(conn->err, DELAYQ_ERR_ARG, "TLS: out of memory");
        return conn->err;
    }
    wrong = dq_tls_load(conn, t);
    if (wrong)
        SSL_CTX_free(t);
    else
        conn->tls = t;
    return wrong;
}

/* Prepare a connected socket for TLS. */
static delayq_status dq_tls_begin(delayq_conn *conn, delayq_socket *s,
                                  const char *host) {
    delayq_status status = DELAYQ_OK;
    dq_sys_signals old;
    SSL *ssl;
    if (dq_tls_prepare(conn)) return DELAYQ_ERR_ARG;
    ssl = SSL_new((SSL_CTX *)conn->tls);
    /* The certificate has to be the host's. */
    if (!ssl ||
        (!X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), host) &&
         !(SSL_set1_host(ssl, host) && SSL_set_tlsext_host_name(ssl, host)))) {
        SSL_free(ssl);
        return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
    }
    dq_sys_block_sigpipe(&old);
    if (redisInitiateSSL(s->c, ssl) != REDIS_OK) {
        status = dq_tls_fail(conn, DELAYQ_ERR_IO, host, ssl);
        SSL_free(ssl); /* hiredis owns it only after a success */
        ssl = NULL;
    }
    dq_sys_unblock_sigpipe(&old, status != DELAYQ_OK);
    s->ssl = ssl;
    return status;
}

/* Go on with its handshake: OK when it is done, EMPTY when it needs more time.
 */
static delayq_status dq_tls_step(delayq_conn *conn, delayq_socket *s,
                                 const char *where) {
    delayq_status status = DELAYQ_OK;
    dq_sys_signals old;
    int said;
    ERR_clear_error();
    dq_sys_block_sigpipe(&old);
    said = SSL_do_handshake((SSL *)s->ssl);
    if (said != 1) {
        int wants = SSL_get_error((SSL *)s->ssl, said);
        status = wants == SSL_ERROR_WANT_READ || wants == SSL_ERROR_WANT_WRITE
                     ? DELAYQ_EMPTY
                     : dq_tls_fail(conn, DELAYQ_ERR_IO, where, (SSL *)s->ssl);
    }
    dq_sys_unblock_sigpipe(&old, status < DELAYQ_OK);
    return status;
}

/* What its handshake waits for. */
static short dq_tls_events(const delayq_socket *s) {
    return SSL_want_write((const SSL *)s->ssl) ? POLLOUT : POLLIN;
}

static void dq_tls_end(delayq_conn *conn) {
    SSL_CTX_free((SSL_CTX *)conn->tls);
    conn->tls = NULL;
}

#else

static const char *dq_tls_prepare(delayq_conn *conn) {
    (void)conn;
    return "compiled without DELAYQ_TLS";
}

static delayq_status dq_tls_begin(delayq_conn *conn, delayq_socket *s,
                                  const char *host) {
    (void)s, (void)host;
    return dq_err_set(conn->err, DELAYQ_ERR_ARG, "%s", dq_tls_prepare(conn));
}

static delayq_status dq_tls_step(delayq_conn *conn, delayq_socket *s,
                                 const char *where) {
    (void)conn, (void)s, (void)where;
    return DELAYQ_ERR_ARG;
}

static short dq_tls_events(const delayq_socket *s) {
    (void)s;
    return POLLIN;
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

/* tally(field, n): add n to the queue's counters. One of these two begins each
 * script that counts: the second for a handle with options.counters, which
 * names the counters' key behind all others. What is counted has been done, so
 * a refusal (of HINCRBY, or for the key's type) is ignored. */
static const char dq_lua_no_tally[] = "local tally = nil\n";
static const char dq_lua_tally[] =
    "local counters = table.remove(KEYS)\n"
    "local function tally(field, n)\n"
    "  if n > 0 then redis.pcall('HINCRBY', counters, field, n) end\n"
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
 * KEYS     1 zset, then: the mirror (only where the wire has one), an outbox's
 *          highest number
 * ARGV     1 channel; of an outbox the number of the first; then pairs, 128 at
 *          most, of an outbox 1,000: when, element
 *          when: a delay in ms, or - and a due time; '': as the one before;
 *          with !T behind it, it is sent again, and has been due at T if the
 *          first sending was stored
 * returns  clock; due = delay + that time in ms, rounded up. Of an outbox how
 *          many were passed over, since their number is not above the highest.
 *          Then, of those that were sent again, pairs: its number (from 1), and
 *          the due time that stands, or -1 if it may have been delivered
 *          meanwhile */
/* The usual offer, made for speed: one message, a first sending, no mirror. */
static const char dq_lua_offer_usual[] =
    "local wait = not KEYS[2] and not ARGV[4] and tonumber(ARGV[2])\n"
    "if wait then\n"
    "  local zset, argv, call = KEYS[1], ARGV, redis.call\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local due = wait < 0 and -wait or (us + 999) / 1000 + wait\n"
    /* cuts a fraction off; faster than %.0f; a %d may have 32 bits */
    "  local text = string.format('%d%07d', due / 10000000, due % 10000000)\n"
    "  local added = call('ZADD', zset, 'NX', text, argv[3])\n"
    "  if redis.pcall('ZCOUNT', zset, '0', text) == 1 then\n"
    "    redis.pcall('PUBLISH', argv[1], text)\n"
    "  end\n"
    "  if tally then tally('offered', added) end\n"
    "  return {us}\n"
    "end\n";
/* read_when(when, base): the due time, and as text; and, if it is sent again,
 * whether the first sending may have been delivered. */
static const char dq_lua_when[] =
    "local function read_when(when, base)\n"
    "  local delay, after = tonumber(when), nil\n"
    "  if not delay then\n"
    "    when, after = string.match(when, '^(-?%d+)!(%d+)$')\n"
    "    delay, after = tonumber(when), base >= tonumber(after)\n"
    "  end\n"
    "  if delay < 0 then return -delay, string.sub(when, 2), after end\n"
    "  local due = base + delay\n"
    "  local text = string.format('%d%07d', due / 10000000, due % 10000000)\n"
    "  return due, text, after\n"
    "end\n";
static const char dq_lua_offer[] =
    "local argv, us, zset, mirror, mark = ARGV, clock(), unpack(KEYS)\n"
    "local base, reply = math.ceil(us / 1000), {us}\n"
    "local first, ties, at, text, skipped = nil, 0, nil, nil, 0\n"
    "local from, fresh, number = 2, 2, nil\n"
    "if #argv % 2 == 0 then\n"
    "  from, number = 3, tonumber(argv[2])\n"
    "  if not mark then mirror, mark = nil, mirror end\n"
    "  local highest = redis.call('GET', mark)\n"
    "  local over = math.max(0, (highest or 0) - number + 1)\n"
    "  over = math.min(#argv / 2 - 1, over)\n"
    "  fresh = from + 2 * over\n"
    "  redis.call('SET', mark, '', highest and 'NX' or 'XX')\n"
    "  reply[2] = over\n"
    "end\n"
    "if mirror then\n"
    /* refused like the ZADD that follows the RPUSH, and does nothing */
    "  redis.call('LLEN', mirror)\n"
    "  redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "end\n"
    /* what is to be stored stands at the beginning of the pairs then */
    "for i = from, #argv, 2 do\n"
    "  local when, delivered, stands = argv[i], nil, nil\n"
    "  if when ~= '' then\n"
    "    at, text, delivered = read_when(when, base)\n"
    "    if delivered ~= nil then\n"
    "      stands = redis.call('ZSCORE', zset, argv[i + 1])\n"
    "    end\n"
    "  end\n"
    "  if stands or delivered then\n"
    "    reply[#reply + 1] = i / 2\n"
    "    reply[#reply + 1] = stands and tonumber(stands) or -1\n"
    "    skipped = skipped + 2\n"
    "  elseif i < fresh then\n"
    "    skipped = skipped + 2\n"
    "  else\n"
    "    argv[i - skipped] = text\n"
    "    if skipped > 0 then argv[i - skipped + 1] = argv[i + 1] end\n"
    "    if at == first then ties = ties + 1\n"
    "    elseif not first or at < first then first, ties = at, 1 end\n"
    "  end\n"
    "end\n"
    "if not first then return reply end\n"
    "local last = #argv - skipped\n"
    "for i = from + 1, mirror and last or 0, 2 do\n"
    "  redis.call('RPUSH', mirror, argv[i])\n"
    "end\n"
    "local added = redis.call('ZADD', zset, 'NX', unpack(argv, from, last))\n"
    "if number then\n"
    "  number = string.format('%.0f', number + #argv / 2 - 2)\n"
    "  redis.call('SET', mark, number, 'PX', 86400000)\n"
    "end\n"
    "publish_if_head(zset, argv[1], first, ties)\n"
    "if tally then tally('offered', added) end\n"
    "return reply\n";

/* OFFER_KEYED
 * KEYS     1 zset, 2 the key's ticket, then: the mirror (only where the wire
 *          has one), an outbox's highest number
 * ARGV     1 channel, 2 when (as above), 3 its id in hex, 4 the key's life in
 *          ms, 5 '1': take the place of the first, 6 its number in an outbox,
 *          or 0, 7 element
 * returns  clock; 0: stored, 1: the key is taken, 2: sent again, and may have
 *          been delivered meanwhile, 3: passed over; due; the key's ticket */
static const char dq_lua_offer_keyed[] =
    "local zset, holder, mirror, mark = unpack(KEYS)\n"
    "local channel, when, id, ttl_ms, replace, number, e = unpack(ARGV)\n"
    "if number ~= '0' and not mark then mirror, mark = nil, mirror end\n"
    "local us = clock()\n"
    "local due, text, delivered = read_when(when, math.ceil(us / 1000))\n"
    /* its key may have ended, or be another's by now */
    "local stands = delivered ~= nil and redis.call('ZSCORE', zset, e)\n"
    "if stands then\n"
    "  local ticket = string.format('%.0f', stands) .. '-' .. id\n"
    "  return {us, 0, tonumber(stands), ticket}\n"
    "end\n"
    "local held = redis.call('GET', holder) or ''\n"
    "local held_due, held_id = string.match(held, '^(%d+)-(%x+)$')\n"
    "local highest = mark and redis.call('GET', mark)\n"
    "if highest and tonumber(highest) >= tonumber(number) then\n"
    "  return {us, 3, due, ''}\n"
    "end\n"
    "if held_id == id then return {us, 0, tonumber(held_due), held} end\n"
    "if delivered then return {us, 2, due, ''} end\n"
    "if held ~= '' and replace ~= '1' then return {us, 1, due, held} end\n"
    "local prefix, old\n"
    "if held_id then\n"
    "  prefix = string.gsub(held_id, '%x%x', function(digits)\n"
    "    return string.char(tonumber(digits, 16))\n"
    "  end)\n"
    "  if #prefix == 16 then prefix = '\\16' .. prefix end\n"
    "  old = find(zset, held_due, prefix)\n"
    "end\n"
    "redis.call('ZCOUNT', zset, 0, 0)\n"
    /* probes, each without an effect */
    "redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "local unless = held == '' and 'XX' or 'NX'\n"
    "redis.call('SET', holder, held, unless, 'PX', ttl_ms)\n"
    "if mark then redis.call('SET', mark, '', highest and 'NX' or 'XX') end\n"
    "if old then redis.call('ZREM', zset, 'delayq') end\n"
    "if mirror then\n"
    "  redis.call('LLEN', mirror)\n"
    "  if old then redis.call('LREM', mirror, 1, 'delayq') end\n"
    "  redis.call('RPUSH', mirror, e)\n"
    "  if old then redis.call('LREM', mirror, 1, old) end\n"
    "end\n"
    "redis.call('ZADD', zset, 'NX', text, e)\n"
    "local ticket = text .. '-' .. id\n"
    "redis.call('SET', holder, ticket, 'PX', ttl_ms)\n"
    "if mark then redis.call('SET', mark, number, 'PX', 86400000) end\n"
    "if old then redis.call('ZREM', zset, old) end\n"
    "publish_if_head(zset, channel, due, 1)\n"
    "if tally then\n"
    "  tally('offered', 1)\n"
    "  tally('canceled', old and 1 or 0)\n"
    "end\n"
    "return {us, 0, due, ticket}\n";

/* What TICK, TAKE and BROADCAST know and count while they run.
 * KEYS     1 zset, 2 ready (broadcast: stream), 3 retry (native) or mirror
 *          (Redisson), 4 dead
 * ARGV     1 wire: n, r, o, or b for broadcast; 2 limit: items to move; 3
 *          horizon: how far to look for the next due time, in ms; negative
 *          where something is known to be due
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
    "    dead_list = keys[4], wire = argv[1], native = argv[1] == 'n',\n"
    "    us = us, now = now, horizon = now + math.abs(argv[3]),\n"
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
    "    why = type(why) == 'table' and why.err or why\n"
    "    return {err = string.find(why, '^%u+ ') and why or 'ERR ' .. why}\n"
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
    "return attempt(run, move, tonumber(ARGV[2])) or finish_run(run)\n";

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
    "  local us, next, claim = reply[1], reply[2], argv[16]\n"
    "  local now = math.floor(us / 1000)\n"
    "  local soon = next < 0 and now + math.abs(argv[3]) or\n"
    "    math.ceil((us + next) / 1000)\n"
    "  if reply[4][1] > 0 then soon = now end\n" /* more lie ready */
    "  local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')\n"
    "  local since = (tonumber(last[2]) or 0) - 2e14\n"
    "  return {\n"
    "    set = waiters, id = argv[13], turns = argv[15], claim = claim,\n"
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
    "  if w.got or argv[14] ~= '1' then\n"
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
 * ARGV     1 wire, 2 limit, 3 horizon: see dq_lua_run; 4 how many; 5 'x': the
 *          retry list's turn; then, or nothing: 6 most attempts, or 0; 7 lease
 *          in ms, or 0; 8 due and 9 prefix of an element to acknowledge
 *          before, or ''; for a lease 10 order of a new id, 11 the rest of it
 *          (6 bytes; with an old wire a number below 2048), 12 channel; with a
 *          fifth key: 13 the handle's id, 14 '1': it waits if there is nothing,
 *          15 what the handles' channels begin with, 16 what it is by its own
 *          account: 'new' (since its subscriber is open), 'none', 'leader',
 *          'standby', 'check' (a standby that has found something overdue),
 *          'sleeper'; 17 its share, a number below 65536
 * returns  see dq_lua_run; for the due time - where it is unknown, r of a raw
 *          payload. A lease ends that many ms behind the clock, rounded up
 *
 * Straight from the zset where nothing lies ready. Where something does, what
 * is due goes behind it first, or pushes would starve it. In a Redisson fleet
 * what is left over is moved too, since Java waits for it.
 *
 * What has been acknowledged stays so, too, where the rest is refused. */
/* take_usual(call, zset, argv): the usual take, made for speed: a native queue,
 * nothing in its lists, one item to hand out or none.
 * Returns TAKE's reply; or nil, and has written nothing. */
static const char dq_lua_take_usual[] =
    "local function take_usual(call, zset, argv)\n"
    "  local ack, done = argv[8], nil\n"
    "  local most, lease = argv[6] or '0', argv[7] or '0'\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  if ack == '' then ack = nil end\n"
    /* the first two; of three where one of them may be what is acked */
    "  local found = argv[3] + 0 < 0 and\n"
    "    call('ZRANGE', zset, '0', ack and '2' or '1', 'WITHSCORES') or\n"
    "    call('ZRANGEBYSCORE', zset, '-inf', us / 1000 + argv[3],\n"
    "      'WITHSCORES', 'LIMIT', '0', ack and '3' or '2')\n"
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
    "  local handed_out, soon, next\n"
    "  if not e or due * 1000 > us then\n"
    "    if done then call('ZREM', zset, done) end\n"
    "    soon, due = due, ''\n"
    "  else\n"
    "    local length, tried = #e - 17 - struct.size('L'), 0\n"
    "    if due + 0 < 0 or length < 0 or string.byte(e) ~= 16 or\n"
    "      struct.unpack('L', e, 18) ~= length then\n"
    "      return nil\n"
    "    end\n"
    "    if lease ~= '0' or most ~= '0' then\n"
    "      local high, low = string.byte(e, 16, 17)\n"
    "      most, tried = tonumber(most), high * 256 + low\n"
    "      if most > 0 and tried >= most or tried == 65535 then\n"
    "        return nil\n"
    "      end\n"
    "    end\n"
    "    handed_out, soon = e, after\n"
    /* the ack is the first write, and proves the right to remove */
    "    if done then call('ZREM', zset, done) end\n"
    "    if lease ~= '0' then\n"
    "      local n, lease_end = tried + 1, math.ceil(us / 1000) + lease\n"
    "      handed_out = string.sub(e, 1, 15) ..\n"
    "        string.char(math.floor(n / 256), n % 256) .. string.sub(e, 18)\n"
    "      if not done then call('ZREMRANGEBYRANK', zset, '1', '0') end\n"
    "      local added = redis.pcall('ZADD', zset, lease_end, handed_out)\n"
    "      if type(added) == 'table' then\n"
    "        return not done and added or {us, 250000, 1, 0, ''}\n"
    "      end\n"
    "      if not after or after + 0 > lease_end then\n"
    "        soon = lease_end\n"
    "      end\n"
    "    end\n"
    "    local removed = redis.pcall('ZREMRANGEBYRANK', zset, '0', '0')\n"
    "    if type(removed) == 'table' then\n"
    "      if not done then return removed end\n"
    "      if lease ~= '0' then call('ZREM', zset, handed_out) end\n"
    "      return {us, 250000, 1, 0, ''}\n"
    "    end\n"
    /* the lease ends first */
    "    if soon and soon ~= after then\n"
    "      publish_if_head(zset, argv[12], soon, 1)\n"
    "    end\n"
    "  end\n"
    "  next = soon and soon * 1000 - us or -1\n"
    "  if soon and next < 0 then next = 0 end\n"
    "  if next > 1e13 then next = 1e13 end\n"
    "  return {us, next, done and 1 or 0, 0, due, handed_out}\n"
    "end\n"
    /* run before the rest of the script is even made, as in offer_usual */
    "local call, in_ready, in_retry, usual = redis.call, 0, 0, nil\n"
    "if KEYS[2] then\n"
    "  in_ready, in_retry = call('LLEN', KEYS[2]), call('LLEN', KEYS[3])\n"
    "end\n"
    "if in_ready + in_retry == 0 and ARGV[4] == '1' then\n"
    "  usual = take_usual(call, KEYS[1], ARGV)\n"
    "end\n"
    "if usual and tally and not usual.err then\n"
    "  tally('acked', usual[3])\n"
    "  tally('taken', usual[6] and 1 or 0)\n"
    "end\n"
    "if usual and (usual.err or not KEYS[5]) then return usual end\n";
/* take_many_usual(zset, argv): the same for many. It reads chunks as
 * in_chunks does, and removes them all at the end. */
static const char dq_lua_take_many_usual[] =
    "local function take_many_usual(zset, argv)\n"
    "  local byte, sub, unpacked = string.byte, string.sub, struct.unpack\n"
    "  local most, lease = tonumber(argv[6] or 0), tonumber(argv[7] or 0)\n"
    "  local time, n, bytes, size = call('TIME'), 0, 0, 1\n"
    "  local around = 17 + struct.size('L')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local due = call('ZCOUNT', zset, '-inf', us / 1000)\n"
    "  local want = math.min(due, argv[4])\n"
    "  local reply, dues, held, counts = {us, 0, 0, 0, ''}, {}, {}, {}\n"
    "  local lease_end = math.ceil(us / 1000) + lease\n"
    "  local text = string.format('%.0f', lease_end)\n"
    "  if want == 0 or want > 1000 then return nil end\n"
    "  repeat\n"
    "    local found = call('ZRANGE', zset, n, math.min(n + size, want) - 1,\n"
    "      'WITHSCORES')\n"
    "    for i = 1, #found, 2 do\n"
    "      local e = found[i]\n"
    "      local length = #e - around\n"
    "      if length < 0 or byte(e) ~= 16 or\n"
    "        unpacked('L', e, 18) ~= length then\n"
    "        return nil\n"
    "      end\n"
    "      n, bytes = n + 1, bytes + length + 89\n"
    "      dues[n], reply[n + 5] = found[i + 1], e\n"
    "      if lease > 0 or most > 0 then\n"
    "        local high, low = byte(e, 16, 17)\n"
    "        local tried = high * 256 + low\n"
    "        if most > 0 and tried >= most or tried == 65535 then\n"
    "          return nil\n"
    "        elseif lease > 0 then\n"
    "          local more = counts[tried] or string.char(\n"
    "            math.floor((tried + 1) / 256), (tried + 1) % 256)\n"
    "          counts[tried] = more\n"
    "          reply[n + 5] = sub(e, 1, 15) .. more .. sub(e, 18)\n"
    "          held[2 * n - 1], held[2 * n] = text, reply[n + 5]\n"
    "        end\n"
    "      end\n"
    "    end\n"
    "    local room = math.floor((" DQ_BUDGET " - bytes) * n / bytes)\n"
    "    size = math.min(128, 8 * size, math.max(1, room))\n"
    "  until n == want or bytes >= " DQ_BUDGET "\n"
    "  if byte(dues[1]) == 45 then return nil end\n"
    "  if lease > 0 then\n"
    "    call('ZREMRANGEBYRANK', zset, '1', '0')\n"
    "    local added = redis.pcall('ZADD', zset, unpack(held))\n"
    "    if type(added) == 'table' then return added end\n"
    "  end\n"
    "  local removed = redis.pcall('ZREMRANGEBYRANK', zset, '0', n - 1)\n"
    "  if type(removed) == 'table' then return removed end\n"
    "  if n == due then\n"
    "    local soon = call('ZRANGEBYSCORE', zset, '-inf',\n"
    "      us / 1000 + math.abs(argv[3]), 'WITHSCORES', 'LIMIT', '0', '1')[2]\n"
    "    if lease > 0 and (not soon or soon + 0 >= lease_end) then\n"
    "      soon = lease_end\n"
    "      publish_if_head(zset, argv[12], soon, n)\n"
    "    end\n"
    "    reply[2] = soon and\n"
    "      math.max(0, math.min(1e13, soon * 1000 - us)) or -1\n"
    "  end\n"
    "  reply[5] = table.concat(dues, ' ')\n"
    "  return reply\n"
    "end\n"
    "if in_ready + in_retry == 0 and ARGV[4] ~= '1' and\n"
    "  (ARGV[8] or '') == '' then\n"
    "  usual = take_many_usual(KEYS[1], ARGV)\n"
    "  if usual and tally and not usual.err then\n"
    "    tally('taken', #usual - 5)\n"
    "  end\n"
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
    "  local reply, lease_ms = run.reply, tonumber(argv[7] or 0)\n"
    "  run.retry_turn, run.most = argv[5] == 'x', tonumber(argv[6] or 0)\n"
    "  run.order, run.id_rest, run.held = tonumber(argv[10]), argv[11], {}\n"
    /* few bits of an old id are random: the server's own microsecond is no
     * other take's */
    "  if run.wire == 'o' then run.order = run.us end\n"
    "  if lease_ms > 0 then\n"
    "    run.lease_end = math.ceil(run.us / 1000) + lease_ms\n"
    "  end\n"
    "  run.mirror = open_mirror(run)\n"
    "  if (argv[8] or '') ~= '' then\n"
    "    run.acked = remove(run.zset, argv, 8, 9, {})[1]\n"
    "  end\n"
    "  local refusal = attempt(run, take_items, tonumber(argv[4]),\n"
    "    tonumber(argv[2]))\n"
    "  if refusal then return refusal end\n"
    "  if run.lease_end and run.safe > 0 then\n"
    /* Redisson sets its timer by the channel */
    "    publish_if_head(run.zset, argv[12], run.lease_end, run.safe)\n"
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
 * ARGV     1 wire, 2 limit, 3 horizon: see dq_lua_run; 4 how many; 5 cursor,
 *          '$': the stream's end; 6 how many entries the stream keeps; 7
 *          channel
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
    "  add_to_stream(run, tonumber(ARGV[2]), ARGV[6])\n"
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
    "local refusal = attempt(run, broadcast, tonumber(ARGV[4]), ARGV[5])\n"
    "if refusal then return refusal end\n"
    /* the others poll at once */
    "if run.moved > 0 then\n"
    "  redis.pcall('PUBLISH', ARGV[7], string.format('%.0f', run.now))\n"
    "end\n"
    "if tally then tally('taken', run.moved) end\n"
    "return finish_run(run)\n";

/* REMOVE, by ticket: acks, or a cancel.
 * KEYS     1 zset, 2 mirror (only of a cancel where the wire has one)
 * ARGV     pairs, 500 at most: due, prefix; then, of one that counts, what it
 *          counts
 * returns  clock, and of each 1 (done) or 0 (not there) */
static const char dq_lua_remove_main[] =
    "local field = tally and table.remove(ARGV)\n"
    "local reply, n = remove(KEYS[1], ARGV, 1, #ARGV, {(clock())}, KEYS[2])\n"
    "if tally and n then tally(field, n) end\n"
    "return reply\n";

/* CHANGE, by ticket: nack, extend, reschedule; or bury.
 * KEYS     1 zset, 2 dead (only of a bury)
 * ARGV     1 due, 2 prefix, 3 new due time, 4 channel, 5 '1': this attempt
 *          doesn't count, 6 '1': sent again, 7 delay, or -1: the due
 *          time counts in any case, 8 of one that counts '1': a nack
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
    /* counted as a release instead, or the next lease had the same ticket */
    "local function uncounted(e)\n"
    "  if not uncount then return e end\n"
    "  local n = string.byte(e, 15)\n"
    "  n = n % 64 < 63 and n + 1 or n - 63\n"
    "  e = string.sub(e, 1, 14) .. string.char(n) .. string.sub(e, 16)\n"
    "  return with_attempts(e, math.max(attempts(e) - 1, 0))\n"
    "end\n"
    "local e = find(zset, due, prefix)\n"
    "if not e then\n"
    "  if resent and not dead_list then\n"
    "    e = find(zset, ARGV[3], uncounted(prefix))\n"
    "  end\n"
    "  return {us, e and 1 or 0, new_due}\n"
    "end\n"
    "redis.call('ZREM', zset, 'delayq')\n"
    "if dead_list then\n"
    "  local letter = string.format('buried %.0f\\n', now) .. e\n"
    "  redis.call('RPUSH', dead_list, letter)\n"
    "  redis.call('ZREM', zset, e)\n"
    "  if tally then tally('died', 1) end\n"
    "  return {us, 1, 0}\n"
    "end\n"
    "local delay = tonumber(ARGV[7])\n"
    "local by_delay = math.ceil(us / 1000) + delay\n"
    "if delay >= 0 and\n"
    "  (new_due < by_delay or new_due > by_delay + 1000) then\n"
    "  new_due = by_delay\n"
    "end\n"
    "local again = uncounted(e)\n"
    "redis.call('ZADD', zset, new_due, again)\n"
    "if again ~= e then redis.call('ZREM', zset, e) end\n"
    "publish_if_head(zset, channel, new_due, 1)\n"
    "if tally and ARGV[8] == '1' then tally('nacked', 1) end\n"
    "return {us, 1, new_due}\n";

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

/* What a script does with elements: OFFER and TAKE write some, the replies of
 * TAKE, BROADCAST and PEEK hand some out. */
typedef enum dq_req_verb {
    DQ_NOTHING,
    DQ_OFFER,
    DQ_TAKE,
    DQ_BROADCAST,
    DQ_PEEK
} dq_req_verb;

/* A request points at its script, and there is no table of all: so a program
 * links only the Lua of the calls that it makes. `sha` is the SHA1 of the text,
 * by which EVALSHA names it: `make lua` writes it here, a test checks it. One
 * that counts has another, of its text with dq_lua_tally as first part. */
typedef struct dq_script {
    const char *name; /* of the file in build/lua */
    dq_req_verb verb;
    unsigned bit; /* in conn->loaded: this connection has loaded it; and */
    const char *sha, *counted_sha; /* that, 16 bits higher; or NULL */
    const char *const *parts;      /* up to NULL */
} dq_script;

#define DQ_SCRIPT(name, verb, bit, sha, counted_sha, ...)             \
    static const char *const dq_parts_##name[] = {__VA_ARGS__, NULL}; \
    static const dq_script dq_script_##name = {                       \
        #name, verb, 1u << bit, sha, counted_sha, dq_parts_##name}

#define DQ_LUA_RUN                                                            \
    dq_lua_clock, dq_lua_elements, dq_lua_foreign, dq_lua_chunks, dq_lua_run, \
        dq_lua_read_due, dq_lua_drain
#define DQ_LUA_MIRROR dq_lua_mirror_seek, dq_lua_mirror
#define DQ_LUA_WAITERS dq_lua_waiters_leave, dq_lua_waiters_stay
#define DQ_LUA_TAKE \
    dq_lua_move, dq_lua_remove, dq_lua_give, dq_lua_take_listed, dq_lua_take

/* Long fragments stand in the middle: hiredis' buffer, which doubles with what
 * is in it, then ends at little more than the text. */
DQ_SCRIPT(offer, DQ_OFFER, 0, "2d8c17717f818f74a0eb89592c2911756470e325",
          "68d340751aa48d1464bcd61cc32b06dfbcff66f7", dq_lua_no_tally,
          dq_lua_offer_usual, dq_lua_clock, dq_lua_publish, dq_lua_when,
          dq_lua_offer);
DQ_SCRIPT(offer_keyed, DQ_OFFER, 1, "dcdb92ebaac963134b4223bb24f77f36e60add1d",
          "e52bfa0eac0ba83fc739812b65e87946c4d9277f", dq_lua_no_tally,
          dq_lua_clock, dq_lua_publish, dq_lua_when, dq_lua_find,
          dq_lua_offer_keyed);
DQ_SCRIPT(tick, DQ_NOTHING, 2, "651cf5573fbdb69b63c66af4fc7466da393b58ae",
          "c307e2944abe4877134536e6ef93ffb0275f58ea", dq_lua_no_tally,
          DQ_LUA_RUN, dq_lua_no_mirror, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(tick_redisson, DQ_NOTHING, 3,
          "393c3df62a96a108a176f78a449da742848269b6",
          "d082835bd295388fdcbba8f5f8abff71501123cc", dq_lua_no_tally,
          DQ_LUA_RUN, DQ_LUA_MIRROR, dq_lua_move, dq_lua_tick);
DQ_SCRIPT(take, DQ_TAKE, 4, "83252435ef2fcc8e9ae4436af0b3fccd44aebe92",
          "1cb9b15799c72f193f93204eae659220956c276e", dq_lua_no_tally,
          dq_lua_publish, dq_lua_take_usual, dq_lua_take_many_usual,
          dq_lua_find, DQ_LUA_WAITERS, dq_lua_take_usual_waits, DQ_LUA_RUN,
          dq_lua_no_mirror, DQ_LUA_TAKE, dq_lua_take_native);
DQ_SCRIPT(take_redisson, DQ_TAKE, 5, "82e451338eeaa2cd3fc48623426f898e1f17f45c",
          "dd298a3a4c5142aad1906c533baf8121da3cd09d", dq_lua_no_tally,
          dq_lua_publish, DQ_LUA_WAITERS, DQ_LUA_RUN, DQ_LUA_MIRROR,
          dq_lua_find, DQ_LUA_TAKE, dq_lua_take_redisson);
DQ_SCRIPT(broadcast, DQ_BROADCAST, 6,
          "e27c4fa2820406e2733fd1cee561aa2bc3907b0b",
          "37e78a4a5fa708fcbd7f824f0461919cdf0c26ba", dq_lua_no_tally,
          DQ_LUA_RUN, dq_lua_broadcast);
DQ_SCRIPT(remove, DQ_NOTHING, 7, "d470f4c30eb5c26bdf40a13f7a2e5ddcf4133b49",
          "13dba760f87f70b96985ffc611cb0d6b6b3b4482", dq_lua_no_tally,
          dq_lua_clock, dq_lua_find, dq_lua_remove, dq_lua_remove_main);
DQ_SCRIPT(change, DQ_NOTHING, 8, "537eba84a0fa8fb2c6efed76a8fa0f34f8112c61",
          "a66ff1cba2a6c9e07b84805318f680ee0c6acf45", dq_lua_no_tally,
          dq_lua_clock, dq_lua_elements, dq_lua_publish, dq_lua_find,
          dq_lua_change);
DQ_SCRIPT(peek, DQ_PEEK, 9, "9eb3a1873d2b4e74018cfbc3f863d2ce2c8374f8", NULL,
          dq_lua_clock, dq_lua_find, dq_lua_chunks, dq_lua_peek);
DQ_SCRIPT(count, DQ_NOTHING, 10, "5dd494d6473e1956a89de34fa5ac739834a68fc1",
          NULL, dq_lua_clock, dq_lua_count);
DQ_SCRIPT(clear, DQ_NOTHING, 11, "a9ee1541de910170d35137af0ed32747da2988f5",
          NULL, dq_lua_clock, dq_lua_clear);
DQ_SCRIPT(dead, DQ_NOTHING, 12, "7fa90702d67402742d4aa2f81e82aaeaad7c819e",
          NULL, dq_lua_clock, dq_lua_elements, dq_lua_chunks, dq_lua_dead);

/* Run by EVAL, seldom. */
static const char *const dq_parts_probe[] = {
    dq_lua_clock, dq_lua_elements, dq_lua_foreign, dq_lua_probe, NULL};

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

#define DQ_RESP_ITEMS_MAX 250000u    /* in one reply; no script returns more */
#define DQ_RESP_BYTES_MAX (1u << 30) /* in its strings: a large payload, */
#define DQ_PAYLOAD_MAX (DQ_RESP_BYTES_MAX - (1 << 20)) /* and what is small */
#define DQ_RESP_LINE_MAX 60000 /* of an error's text, say */
#define DQ_RESP_BODY 'b'       /* a type: what follows the line of a string */

/* Look at what has come before hiredis does: for an array that would allocate
 * as much as the server claims, and walk through all of it when it frees it; a
 * length may overflow its arithmetic; and it looks for the end of a line from
 * the beginning each time. NULL, or what is wrong. Numbers that are none are
 * left to hiredis. */
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
                return "more than 1 GB in one answer";
            r->bytes += r->number;
            r->number += 2; /* with its line end */
            r->type = DQ_RESP_BODY;
            p++;
        } else if (r->type == '*' && r->number > 0) {
            if (r->depth == sizeof r->left / sizeof r->left[0])
                return "arrays nested too deep";
            if (r->number > DQ_RESP_ITEMS_MAX - r->items)
                return "more elements than any answer has";
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

/* What hiredis has no memory for is a fault of the context from then on, which
 * takes nothing more: it may have lost its buffer. */
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

/* An argument of len + more bytes: the first ones, which always fit the buffer;
 * the caller appends the others. */
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

/* An argument of any length: something small, then what is copied into the
 * buffer only if it fits. The last one of a request, if it is large, is not
 * copied: the socket writes it in slices. */
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

static void dq_resp_script(dq_resp_writer *o, const char *const *parts,
                           int counts) {
    const char *first = counts ? dq_lua_tally : parts[0];
    size_t len = strlen(first), i;
    for (i = 1; parts[i]; i++) len += strlen(parts[i]);
    dq_resp_arg(o, "", 0, len);
    dq_resp_flush(o);
    dq_resp_append(o, first, strlen(first));
    for (i = 1; parts[i]; i++) dq_resp_append(o, parts[i], strlen(parts[i]));
    dq_resp_append(o, "\r\n", 2);
}

/* A command of `count` words, which begins with these; the caller adds the
 * others. */
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

/* The wire, as scripts name it. */
static const char *dq_wire_letter(const delayq *q) {
    static const char *const letters[] = {"n", "r", "o"};
    return q->options.broadcast ? "b" : letters[q->options.wire];
}

/* A key or channel of the queue: prefix, then T, then what follows. Returns
 * its length. */
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
    for (i = 0; i < 5; i++) { /* each take has three: snprintf is slow */
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

/* The run of a script. */
typedef struct dq_req {
    delayq_exchange x;
    const dq_script *script;
    const char *what; /* the verb, for error texts; its counter goes by it */
    void (*writer)(dq_resp_writer *o, delayq *q, const struct dq_req *call);
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
    int uncounted;  /* not the counters, which lie on another node now */

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

    int stepwise;           /* an outbox's: it is sent again from there */
    struct dq_ring *ring;   /* whose first entries it holds, */
    struct dq_entry *entry; /* from this one on */
    uint64_t was_sent;      /* the ring's `sent`, before this sending */
    int mirror;             /* a cancel: the mirror, too */

    delayq_status status; /* out */
    redisReply *reply;    /* out: an array; the caller frees it */
    int tries;
} dq_req;

#define DQ_PIPELINE_MAX 8 /* most requests in one go */

/* While a slot moves, the counters may lie on the other node. Before Redis 7 an
 * ASK can mean that only they do: the same node is asked again, without them.
 */
static int dq_req_counts(const delayq *q, const dq_req *req) {
    return q->options.counters && req->script->counted_sha && !req->uncounted;
}

/* The last key of what counts; arguments follow. */
static void dq_resp_end_keys(dq_resp_writer *o, const delayq *q,
                             const dq_req *req) {
    if (dq_req_counts(q, req)) dq_resp_key(o, q, DQ_COUNTERS, "");
    o->keys = o->args;
}

/* Write a request's call of its script. How many keys and arguments that has
 * is known when its callback has run: what fits the buffer waits there for the
 * line with the counts; only for what doesn't, the callback runs again. On a
 * new connection the script is loaded in the same write; what came by EVAL
 * alone would be forgotten by Redis 7.4 after 500 others. Returns how many
 * replies come. */
static int dq_req_write(dq_resp_writer *o, delayq *q, const dq_req *req) {
    const dq_script *script = req->script;
    int counts = dq_req_counts(q, req);
    unsigned bit = counts ? script->bit << 16 : script->bit;
    int loads = req->asking || !(q->conn->loaded & bit), n;
    char call[120];
    if (loads) {
        dq_resp_command(o, 3, "SCRIPT LOAD");
        dq_resp_script(o, script->parts, counts);
        if (!req->asking) q->conn->loaded |= bit;
    }
    if (req->asking) dq_resp_command(o, 1, "ASKING");
    if (o->n > 0) dq_resp_flush(o);
    o->counting = 1;
    o->spilled = 0;
    o->keys = o->args = 0;
    req->writer(o, q, req);
    assert(o->keys > 0 && o->keys < 10);
    n = snprintf(call, sizeof call,
                 "*%lu\r\n$7\r\nEVALSHA\r\n$40\r\n%s\r\n$1\r\n%lu\r\n",
                 (unsigned long)(3 + o->args),
                 counts ? script->counted_sha : script->sha,
                 (unsigned long)o->keys);
    o->counting = 0;
    dq_resp_append(o, call, (size_t)n);
    if (o->spilled) {
        size_t keys = o->keys, args = o->args;
        o->n = o->keys = o->args = 0;
        req->writer(o, q, req);
        assert(o->keys == keys && o->args == args);
        (void)keys, (void)args; /* without asserts */
    }
    return 1 + loads + req->asking;
}

/*-----------------------------------------------------------------------------
 * MARK: - Schedule
 * >>schedule   when the server is asked next
 *
 * Owns next_poll_us: one function per event, and nobody else writes it but
 * section Waiters, which decides for those that wait beside others. The
 * relative time in a reply is counted from when its request was sent: at worst
 * the poll is some microseconds early and is repeated, once. Counted from the
 * reply it would be late by a round trip. A call that waits for a reply does
 * not read the subscriber before it has that; an outbox does, so a message that
 * comes while its take is under way counts beside the reply. Without a
 * connection nothing is polled; the first poll is when it is open.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_UNHEARD_POLL_US 250000 /* where nothing would announce an item */

/* When to try to connect again: the first time at once, then with a growing
 * pause between the beginnings of two attempts. */
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

/* How long an answer may take. A timeout shorter than the line is long would
 * let every request expire, after the server has run it: so it is twice the
 * round trip at least, as the clock's error tells it. */
static int64_t dq_sched_patience_us(const delayq_conn *conn, int ms) {
    int64_t twice = conn->known ? 2 * conn->clock_error_us : 0;
    return twice > ms * 1000LL ? twice : ms * 1000LL;
}

/* When a socket has to be looked at though it is not ready. */
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
    return end; /* what is under way is given up then, if nothing moves */
}

/* When a quiet subscriber is pinged, or has not answered that. */
static int64_t dq_sched_ping_us(const delayq_conn *conn) {
    if (conn->sub_pinged_us == 0) return conn->sub.moved_us + DQ_PING_US;
    return conn->sub_pinged_us + conn->owner->options.io_timeout_ms * 1000LL;
}

/* Does a standby wait to look whether what was pushed still lies there? */
static int dq_sched_looks(const delayq *q) {
    return q->waiter.push_us > 0 && q->conn->tracking != DELAYQ_TRACK_OFF &&
           q->setup.state == DELAYQ_EXCHANGE_NONE && q->conn->cmd.body_len == 0;
}

/* The moment at which q acts though nothing is heard; polling: also if that is
 * only a poll. Without a connection it is the next step of connecting. */
static int64_t dq_sched_next(const delayq *q, int polling) {
    const delayq_conn *conn = q->conn;
    int64_t next = dq_sched_socket(conn, &conn->cmd), sub;
    if (conn->cmd.state < DELAYQ_SOCKET_OPEN || !conn->known) return next;
    if (polling && q->next_poll_us < next && !q->asked) next = q->next_poll_us;
    if (dq_sched_looks(q) && q->waiter.push_us < next) next = q->waiter.push_us;
    if (q->outbox && q->send_us < next) next = q->send_us;
    sub = conn->sub.state < DELAYQ_SOCKET_OPEN
              ? dq_sched_socket(conn, &conn->sub)
              : dq_sched_ping_us(conn);
    if (conn->sub.state == DELAYQ_SOCKET_CLOSED) return next;
    return next < sub ? next : sub;
}

/* Poll no later than that, or than a pause ends. */
static void dq_sched_lower(delayq *q, int64_t when) {
    if (when < q->pause_us) when = q->pause_us;
    if (q->next_poll_us > when) q->next_poll_us = when;
}

/* Does something lie ready that may be asked for? */
static int dq_sched_has_ready(const delayq *q) {
    return q->ready > 0 && (!q->pause_us || dq_sys_now() >= q->pause_us);
}

/* What is known of the server's clock grows older: two clocks may drift apart
 * by 500 microseconds a second. */
static int64_t dq_sched_drift_us(const delayq_conn *conn, int64_t now) {
    return now > conn->clock_read_us ? (now - conn->clock_read_us) / 2000 : 0;
}

/* What the server's clock shows at a local moment, at most. */
static int64_t dq_sched_server_us(const delayq_conn *conn, int64_t local_us,
                                  int64_t now) {
    return local_us + conn->clock_offset_us + conn->clock_error_us +
           dq_sched_drift_us(conn, now);
}

/* The earliest local moment at which the server's clock can show due_ms. */
static int64_t dq_sched_local_us(const delayq *q, int64_t due_ms, int64_t now) {
    return due_ms * 1000 - dq_sched_server_us(q->conn, 0, now);
}

static int dq_sched_same_queue(const delayq *a, const delayq *b) {
    return a->name_len == b->name_len &&
           memcmp(a->name, b->name, a->name_len) == 0;
}

/* The server no longer tracks the list, or may not: nor by what was asked of it
 * before, and is answered later. */
static void dq_sched_untrack(delayq *q) {
    q->list_tracked = 0;
    if (q->tracks) q->tracks = 2;
}

/* --- events of the connections --- */

/* The command connection is closed, and client tracking ends with it. The next
 * poll is when it is open again. */
static void dq_sched_on_conn_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->list_tracked = 0;
        h->waiter.push_us = h->pause_us = 0;
    }
}

/* The command connection is open: what has happened meanwhile? */
static void dq_sched_on_conn_back(delayq_conn *conn, int64_t now) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->pause_us = 0;
        h->next_poll_us = now;
    }
}

/* The subscriber is closed; sub.retry_us is set. */
static void dq_sched_on_sub_lost(delayq_conn *conn) {
    delayq *h;
    for (h = conn->handles; h; h = h->next) {
        h->subscribed = 0;
        dq_sched_untrack(h);
        memset(&h->waiter, 0, sizeof h->waiter);
        dq_sched_lower(h, conn->sub.retry_us);
    }
}

/* A request was refused, or failed though a connection is there: pause. */
static void dq_sched_on_fault(delayq *q) {
    q->asked = 0;
    q->waiter.push_us = 0;
    if (!q->conn->cmd.c) return;
    q->next_poll_us = q->pause_us = dq_sys_now() + DQ_BACKOFF_US;
}

/* The program itself asks: no pause holds it back. */
static void dq_sched_on_take(delayq *q) {
    int64_t pause_us = q->pause_us;
    q->pause_us = 0;
    if (pause_us) dq_sched_lower(q, dq_sys_now());
}

/* --- events of the queue --- */

/* A transfer or take is sent, and its answer not waited for: that will say when
 * the next one is, unless what is heard meanwhile makes it sooner. */
static void dq_sched_on_sent(delayq *q) {
    q->asked = 1;
    q->pause_us = 0;
    q->next_poll_us = DQ_NEVER;
}

/* A transfer or take was answered: so long until the next item is due, so many
 * ready. That holds for every handle on the same queue and connection.
 * unheard: the next push would not be heard; taken: the list has changed.
 *
 * If an item is due within a millisecond, this poll came too early, and took
 * longer to get there than the next one will, since all are awake now: counted
 * from when it was sent, that one would be too early, too. */
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
        if (h != q && (h->options.broadcast || !dq_sched_same_queue(h, q)))
            continue;
        h->pause_us = 0;
        h->ready = ready < 0 ? 0 : ready;
        if (!h->asked || from_us + next_us < h->next_poll_us)
            h->next_poll_us = from_us + next_us;
        if (h->track_us > sent_us) dq_sched_lower(h, h->track_us);
        if (taken) dq_sched_untrack(h);
    }
    q->asked = 0;
}

/* The handle itself has stored or moved an item that is due then, as an answer
 * that was read then says. */
static void dq_sched_on_own_item(delayq *q, int64_t due_ms, int64_t read_us) {
    dq_sched_lower(q, dq_sched_local_us(q, due_ms, read_us));
}

/* When a message's item is due by our clock; 0: now. */
static int64_t dq_sched_message_us(const delayq *q, int64_t due_ms) {
    int64_t now = dq_sys_now();
    if (due_ms > DQ_MAX_DUE / 1000) return now + q->options.max_wait_ms * 1000;
    return due_ms > 0 ? dq_sched_local_us(q, due_ms, now) : now;
}

/* A message tells of an item that is due then. */
static void dq_sched_on_message(delayq *q, int64_t due_ms) {
    dq_sched_lower(q, dq_sched_message_us(q, due_ms));
}

/* A call of the handle has written the ready list; so many more lie there. The
 * server tells the others of that, but not this connection, and no longer
 * tracks the list for it. */
static void dq_sched_on_own_push(delayq *q, int64_t more) {
    delayq *h;
    for (h = q->conn->handles; h; h = h->next) {
        if (!dq_sched_same_queue(h, q)) continue;
        dq_sched_untrack(h);
        h->ready += more;
    }
}

/* The server was asked to track the list, and has refused it then. */
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
    q->will_wait = (timeout_ms < 0 || timeout_ms >= DQ_WAITERS_MS) &&
                   !q->options.broadcast;
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
 * that connects, and that decides when and where to; and the only one that
 * writes and reads, except that the subscriber reads its messages. Nothing
 * here waits: each function goes as far as it can, and is called again when
 * the socket is ready (dq_conn_watch) or its time is over. The causes of
 * failures stand in conn->err.
 *---------------------------------------------------------------------------*/

#define DQ_SLOW_US 100000 /* a clock is known worse than that */
#define DQ_HOPS 5  /* most redirections of a connect, resends of a request */
#define DQ_READS 4 /* of 16 KiB each, before somebody else's turn */

typedef enum dq_conn_purpose {
    DQ_CONN_CMD,
    DQ_CONN_SUB,
    DQ_CONN_ASK,
    DQ_CONN_SENTINEL /* in the place of cmd */
} dq_conn_purpose;

/* NULL, or what is wrong with it: of an open handle nothing is. */
static const char *dq_conn_parse_url(const delayq_conn *conn, dq_url *u) {
    const char *url = conn->owner->options.url;
    return dq_url_parse(url ? url : "redis://127.0.0.1:6379", u);
}

static delayq_status dq_conn_no_memory(delayq_conn *conn) {
    return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
}

/* An error reply to something that the connection itself has said. */
static delayq_status dq_conn_refused(delayq_conn *conn, const char *what,
                                     const redisReply *r) {
    return dq_err_public(dq_err_reply(conn->err, what, r));
}

/* --- exchanges --- */

static void dq_conn_free_replies(delayq_exchange *x) {
    while (x->got > 0) freeReplyObject(x->replies[--x->got]);
}

/* Close a socket for `why`, which conn->err explains. What was under way is
 * answered with that: it may have happened, unless the server can't have all
 * of it. An incomplete command does nothing, but those before it may have. */
static void dq_conn_close(delayq_conn *conn, delayq_socket *s,
                          delayq_status why) {
    delayq_exchange *x;
    delayq *h;
    for (x = s->first; x; x = x->next) {
        dq_conn_free_replies(x);
        x->state = DELAYQ_EXCHANGE_ANSWERED;
        x->alone = x == s->first && !x->next;
        x->status = why == DELAYQ_ERR_PROTOCOL  ? why
                    : x->written || x->next     ? DELAYQ_ERR_UNKNOWN
                    : why == DELAYQ_ERR_UNKNOWN ? DELAYQ_ERR_IO
                                                : why;
    }
    s->first = s->last = NULL;
    dq_conn_free_replies(&s->greeting);
    if (s->c) redisFree(s->c);
    s->c = NULL;
    s->ssl = NULL;
    if (s->state == DELAYQ_SOCKET_OPEN) s->unproven++;
    if (s->unproven > 1 && s->failures < s->unproven) s->failures = s->unproven;
    s->state = DELAYQ_SOCKET_CLOSED;
    s->unwritten = s->more = 0;
    s->body_len = 0;
    s->retry_us = dq_sched_next_attempt(conn->owner, s);
    if (s == &conn->sub) {
        conn->tracking = DELAYQ_TRACK_OFF;
        dq_sched_on_sub_lost(conn);
    } else if (s == &conn->cmd) {
        if (conn->tracking == DELAYQ_TRACK_ON)
            conn->tracking = DELAYQ_TRACK_ALLOWED;
        conn->failure = why == DELAYQ_ERR_UNKNOWN || why == DELAYQ_ERR_PROTOCOL
                            ? DELAYQ_ERR_IO
                            : dq_err_public(why);
        conn->loaded = 0;
        conn->known = conn->probed_again = 0;
        for (h = conn->handles; h; h = h->next) {
            dq_conn_free_replies(&h->setup);
            h->setup.state = DELAYQ_EXCHANGE_NONE;
        }
        dq_sched_on_conn_lost(conn);
    }
}

#define DQ_BAD_PROTOCOL "the server doesn't speak Redis' protocol: %s"

/* Why hiredis gave up on a socket. What was written there may have happened:
 * dq_conn_close sees to that. */
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
    if (!s->first)
        return dq_err_set(conn->err, DELAYQ_ERR_IO,
                          "the server has closed the connection");
    return dq_err_set(conn->err, DELAYQ_ERR_IO, "connection lost %s: %s",
                      s->first->written
                          ? "before the answer: it may have happened"
                          : "before sending: nothing has happened",
                      cause);
}

static delayq_status dq_conn_timeout(delayq_conn *conn,
                                     const delayq_socket *s) {
    int written = s->first && s->first->written;
    conn->timed_out = 1;
    return dq_err_set(conn->err,
                      written ? DELAYQ_ERR_UNKNOWN : DELAYQ_ERR_TIMEOUT, "%s",
                      written ? "no answer in time: it may have happened"
                              : "not sent in time: nothing has happened");
}

/* Write what is in the output buffer, then a slice of a large payload, as far
 * as that goes. */
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

/* The commands in the writer are an exchange from now on. That they can't be
 * written is found by the next pump, which sees what the server has said. */
static void dq_conn_submit(delayq_conn *conn, delayq_socket *s,
                           delayq_exchange *x, dq_resp_writer *o, int wants) {
    assert(wants > 0 && wants <= 5 && s->c);
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

/* The next reply belongs to the first that is under way. */
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
        /* A later request would take it for its own answer. */
        dq_conn_free_replies(x);
        x->status = DELAYQ_ERR_PROTOCOL;
    } else {
        freeReplyObject(r);
    }
    return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                      "the server says more than it was asked");
}

/* Write what waits to be written, read what is there. What nobody has asked for
 * is for `hear`; NULL: that is a fault. */
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
    return s == conn->ask ? &conn->redirect : &conn->at;
}

/* "Can't connect to host:port: why"; without a why it is errno's. */
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

/* The time to connect is over: how far has it come? */
static delayq_status dq_conn_late(delayq_conn *conn, const delayq_socket *s,
                                  const char *then) {
    const char *found = s->state == DELAYQ_SOCKET_RESOLVING
                            ? ": no address was found"
                        : s->state == DELAYQ_SOCKET_TLS ? ": TLS"
                                                        : "";
    char why[80];
    if (s->state >= DELAYQ_SOCKET_GREETING)
        return dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                          "connected, but no answer came in time%s", then);
    snprintf(why, sizeof why, " in time%s%s", found, then);
    return dq_conn_cant(conn, s, DELAYQ_ERR_TIMEOUT, why);
}

/* Which server is it? */
static unsigned dq_conn_hash_address(const delayq_address *a) {
    unsigned h = (unsigned)a->port;
    const char *p;
    for (p = a->host; *p; p++) h = h * 31 + (unsigned char)*p;
    return h;
}

/* The address of a host's name: 1; 0: ask again later; -1: there is none. A
 * handle with an outbox looks a name up when it is opened, and again after two
 * failed attempts, but not within 30 s. */
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
                              "the connect hook has left an answer unread");
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

/* What a login consists of: those of these that a socket needs, in this order.
 * HELLO, as a connect hook may have asked for RESP3, SETNAME and ID may be
 * refused. A sentinel may have a password or none; where it has one, it is the
 * URL's. */
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

/* Say the login. Nothing of it has an effect. */
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

/* The connection was lost before the login was answered. A server that refuses
 * a connection may say why before it closes it. */
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

/* Read the answers to the login. What may be refused can also be told that
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

/* Go on with connecting a socket. OK: it is open; EMPTY: it needs more time;
 * else it has failed, and is to be closed. */
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

/* Begin to connect a closed socket, to be open within so long. */
static delayq_status dq_conn_dial(delayq_conn *conn, delayq_socket *s,
                                  dq_conn_purpose purpose, int64_t within_us) {
    int64_t now = dq_sys_now();
    assert(!s->c && !s->first);
    s->number++;
    s->purpose = (unsigned char)purpose;
    s->state = DELAYQ_SOCKET_RESOLVING;
    s->begun_us = now;
    s->deadline_us = now + within_us;
    memset(&s->scan, 0, sizeof s->scan);
    return dq_conn_advance(conn, s);
}

/* delayq_fds tells of what is to be read. How long a program may sleep while a
 * socket waits to become writable: 10 ms, or a quarter of the time that it has
 * waited so far. */
static int64_t dq_conn_nap_us(const delayq_conn *conn, int64_t now) {
    const delayq_socket *both[2];
    int64_t nap = DQ_NEVER, us;
    int i;
    both[0] = &conn->cmd;
    both[1] = &conn->sub;
    for (i = 0; i < 2; i++) {
        const delayq_socket *s = both[i];
        if (s->state != DELAYQ_SOCKET_DIALING && !s->unwritten) continue;
        us = (now - (s->unwritten ? s->moved_us : s->begun_us)) / 4;
        if (us < 10000) us = 10000;
        if (us < nap) nap = us;
    }
    return nap;
}

/* What a socket waits for. */
static struct pollfd dq_conn_watch(const delayq_socket *s) {
    int events = s->state == DELAYQ_SOCKET_DIALING ? POLLOUT
                 : s->state == DELAYQ_SOCKET_TLS   ? dq_tls_events(s)
                 : s->unwritten                    ? POLLIN | POLLOUT
                                                   : POLLIN;
    return dq_sys_watch(dq_sys_fd(s->c), events);
}

/* --- the command connection --- */

/* The server's clock showed `us` at some moment between two of ours. Of two
 * such answers the one that came faster says more, until it is old, or was
 * refuted. */
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

/* What a sentinel has said of the master's address: to conn->at. */
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
                      "sentinel: the answer has no port");
}

/* Where the next attempt goes, to conn->at, and what for: to the node to which
 * a redirection has pointed, or the next host of the URL. Returns its share of
 * the time to connect. */
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

/* An attempt has come to nothing. 1: the next one may begin at once; 0: all
 * hosts have been tried, and there is a pause. */
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
    s->state = DELAYQ_SOCKET_RESOLVING; /* it was of no use: not `unproven` */
    if (!more) {
        s->failures++;
        conn->hosts_left = conn->hops = 0;
    }
    dq_conn_close(conn, s, why);
    if (more) s->retry_us = begun_us;
    return more;
}

/* Take the command connection as far as it goes without waiting. OK: it is
 * open; EMPTY: it is being connected; else why it is not, in conn->err, and
 * there is a pause until cmd.retry_us. */
static delayq_status dq_conn_step(delayq_conn *conn) {
    delayq_socket *s = &conn->cmd;
    delayq_status status = DELAYQ_OK;
    if (s->state >= DELAYQ_SOCKET_OPEN) {
        status = dq_conn_pump(conn, s, NULL);
        if (status == DELAYQ_OK && s->first &&
            dq_sys_now() >= dq_sched_socket(conn, s))
            status = dq_conn_timeout(conn, s);
        if (status == DELAYQ_OK) return status;
        dq_conn_close(conn, s, status);
        return DELAYQ_EMPTY; /* what was lost is judged before it goes on */
    }
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
                s->state = DELAYQ_SOCKET_CLOSED;
                dq_conn_free_replies(&s->greeting);
                redisFree(s->c);
                s->c = NULL;
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

/* Ask for the server's clock, its unsigned long, whether foreign elements lie
 * in q's queue, and whether this node serves its slot; and where a broadcast's
 * stream ends, if q begins there. */
static void dq_conn_send_probe(delayq *q) {
    delayq_conn *conn = q->conn;
    int begins = q->cursor[0] == '$' && q->options.broadcast;
    dq_resp_writer o;
    dq_resp_begin(&o, conn->cmd.c);
    dq_resp_command(&o, 6, "EVAL");
    dq_resp_script(&o, dq_parts_probe, 0);
    dq_resp_int(&o, 0);
    dq_resp_key(&o, q, DQ_ZSET, "");
    dq_resp_key(&o, q, DQ_MIRROR, "");
    dq_resp_text(&o, dq_wire_letter(q));
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
    q->tracks = 0;
    dq_conn_submit(conn, &conn->cmd, &q->setup, &o, begins ? 3 : 2);
}

/* The stream's last entry. A refusal is left to the first take. */
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
    const redisReply *probe = x->replies[0], *slot = x->replies[1], *value;
    int64_t n[2];
    /* EXISTS: only a cluster refuses it for the slot. Where an ACL forbids it,
     * the first script will tell. */
    if (slot->type == REDIS_REPLY_ERROR) {
        const dq_err_entry *e = dq_err_lookup(slot->str);
        if (e->status == DQ_MOVED)
            return dq_conn_parse_redirect(conn, slot->str);
        if (e->status == DELAYQ_ERR_ARG || e->leave)
            return dq_conn_refused(conn, "open", slot);
    }
    if (probe->type == REDIS_REPLY_ERROR)
        return dq_conn_refused(conn, "open", probe);
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
    if (x->got == 3) dq_conn_read_end(q, x->replies[2]);
    q->probed = 1;
    return DELAYQ_OK;
}

/* May q ask the server at all? One of the old wire may: it does not offer and
 * take beside foreign elements, but goes on to move them. */
static delayq_status dq_conn_may_use(delayq *q) {
    return q->foreign && q->options.wire != DELAYQ_REDISSON_OLD ? dq_err_wire(q)
                                                                : DELAYQ_OK;
}

/* The probe of q's queue is answered. A refusal of the first one on a
 * connection sends it to the next host; later ones leave it to the other
 * handles, unless the queue has moved or the answer is nonsense. */
static delayq_status dq_conn_on_probe(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_status status = dq_conn_read_probe(q);
    dq_conn_free_replies(&q->setup);
    q->setup.state = DELAYQ_EXCHANGE_NONE;
    if (status == DELAYQ_OK && !conn->known && !conn->probed_again &&
        conn->clock_error_us > DQ_SLOW_US) {
        conn->probed_again = 1; /* perhaps it was held up: ask once more */
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

/* See to an open connection on which q's queue is known. OK: it is there;
 * EMPTY: not yet; else why not. What asks the server begins here, but for what
 * asks another node, or on the way. */
static delayq_status dq_conn_ensure(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_socket *s = &conn->cmd;
    int outlived;
    if (dq_conn_may_use(q) != DELAYQ_OK) return DELAYQ_ERR_WIRE;
    if (s->state >= DELAYQ_SOCKET_OPEN && conn->known && q->probed && s->first)
        return DELAYQ_OK; /* an idle one is looked at before it is used: it may
                             be lost, or have a second answer to read, which
                             the next request would take for its own */
    /* An attempt whose time was over long before anybody looked says nothing of
     * now: another one may begin. */
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
        if (s->state < DELAYQ_SOCKET_OPEN || q->tracks ||
            q->setup.state != DELAYQ_EXCHANGE_ANSWERED)
            return DELAYQ_EMPTY;
        status = dq_conn_on_probe(q);
        if (status != DELAYQ_EMPTY) return status;
    }
}

/*-----------------------------------------------------------------------------
 * MARK: - Requests
 * >>requests   sending scripts, reading their replies, one retry policy
 *
 * Owns the way of a request from WAITING to SETTLED. dq_req_decide is the only
 * place that decides about sending one again. Nothing here waits.
 *---------------------------------------------------------------------------*/

/* Its connection was lost before the answer: conn->err says of the first one
 * under way whether that may have happened. */
static delayq_status dq_req_lost(delayq *q, const delayq_exchange *x) {
    int may = x->status == DELAYQ_ERR_UNKNOWN;
    if ((strstr(q->conn->err, "may have happened") != NULL) == may)
        return dq_err_set(q->err, x->status, "%s", q->conn->err);
    return dq_err_set(q->err, x->status, "the connection was lost %s",
                      may ? "before the answer: it may have happened"
                          : "before sending: nothing has happened");
}

/* All replies of a request are there, or its socket is lost: its status, and
 * what the answer says of the connection. That of another node, which ASK has
 * named, says nothing of ours. */
static void dq_req_answered(delayq *q, dq_req *req) {
    delayq_conn *conn = q->conn;
    delayq_exchange *x = &req->x;
    const redisReply *r = x->got > 0 ? x->replies[x->got - 1] : NULL;
    int refused = r && r->type == REDIS_REPLY_ERROR, leave = 0;
    int64_t us;
    delayq_status status = DELAYQ_OK;
    if (refused && dq_err_lookup(r->str)->status == DQ_NOSCRIPT &&
        x->wants > 1 && x->replies[0]->type == REDIS_REPLY_ERROR) {
        r = x->replies[0]; /* why it was not loaded */
        conn->loaded &= ~(req->script->bit * 0x10001u);
    }
    if (!r)
        status = dq_req_lost(q, x);
    else if (refused)
        status = dq_err_reply(q->err, req->what, r);
    else if (r->type != REDIS_REPLY_ARRAY || r->elements == 0)
        status = dq_err_bad_reply(q, req->what);
    if (r && !req->asking && conn->cmd.c && x->number == conn->cmd.number) {
        leave = refused && dq_err_lookup(r->str)->leave;
        conn->cmd.state = leave ? DELAYQ_SOCKET_OPEN : DELAYQ_SOCKET_PROVEN;
        conn->host += leave != 0; /* another server may do better */
        if (!leave) conn->cmd.unproven = 0;
        if (status == DQ_NOSCRIPT)
            conn->loaded &= ~(req->script->bit * 0x10001u);
        if (status == DELAYQ_OK && dq_resp_integers(r, &us, 1))
            dq_conn_set_clock(conn, us, x->sent_us, x->read_us);
        if (status == DQ_MOVED || status == DQ_ASK) {
            status = dq_conn_parse_redirect(conn, r->str);
            if (status == DELAYQ_ERR_REDIS)
                dq_err_set(q->err, status, "%s", conn->err);
        }
        if (status == DQ_MOVED || leave) {
            conn->redirected = status == DQ_MOVED;
            dq_err_set(conn->err, status, "%s", q->err);
            dq_conn_close(conn, &conn->cmd, status);
        }
    }
    req->status = status;
    if (status == DELAYQ_OK) req->reply = x->replies[--x->got];
    dq_conn_free_replies(x);
    req->asking = 0;
}

/* The retry policy. A request that may have run is sent again only where that
 * is provably harmless, and once; what is settled has its final status. */
static void dq_req_decide(delayq *q, dq_req *req) {
    const delayq_conn *conn = q->conn;
    delayq_status status = req->status;
    int again = 0;
    req->x.state = DELAYQ_EXCHANGE_SETTLED;
    if (status == DELAYQ_OK) return;
    if (req->no_retry) {
        int later = status == DQ_NOSCRIPT || status == DQ_MOVED;
        req->status = later ? DELAYQ_EMPTY : dq_err_public(status);
        return;
    }
    if (++req->tries <= DQ_HOPS) {
        if (status == DQ_NOSCRIPT || status == DQ_MOVED) {
            again = 1;
        } else if ((status == DQ_TRYAGAIN || status == DQ_ASK) &&
                   dq_req_counts(q, req)) {
            again = req->uncounted = 1; /* done, and not counted */
        } else if (status == DQ_ASK && !req->stepwise) {
            again = 1;
            req->asking = conn->cmd.c != NULL;
        } else if (status == DQ_TRYAGAIN && req->script->verb == DQ_TAKE &&
                   !req->zset_alone && q->options.wire == DELAYQ_NATIVE) {
            again = req->zset_alone = 1; /* one key lies on one node */
            req->as_waiter = 0;
        } else if (status == DELAYQ_ERR_AUTH && req->as_waiter) {
            again = 1; /* forbidden: wait as if alone */
            req->as_waiter = 0;
            dq_waiters_on_refusal(q);
        } else if (!req->resent && conn->cmd.failures == 0 &&
                   (!conn->cmd.c ||
                    (req->x.number > 0 && req->x.number != conn->cmd.number))) {
            req->resent = 1;
            req->is_resend = status == DELAYQ_ERR_UNKNOWN && req->idempotent;
            again = req->is_resend || status == DELAYQ_ERR_IO ||
                    status == DELAYQ_ERR_READONLY ||
                    status == DELAYQ_ERR_AGAIN ||
                    (status == DELAYQ_ERR_UNKNOWN && req->read_only);
        }
    }
    if (again) {
        req->x.state = DELAYQ_EXCHANGE_WAITING;
        return;
    }
    if (status == DQ_NOSCRIPT)
        dq_err_set(q->err, status, "the server forgets its scripts");
    if (status == DELAYQ_ERR_UNKNOWN && req->read_only)
        status = dq_err_set(q->err, DELAYQ_ERR_IO,
                            "%s: sent, but no answer came (or no memory for "
                            "it); it changes nothing",
                            req->what);
    if (req->is_resend) status = dq_err_unanswered(q, req->what, status);
    req->status = dq_err_public(status);
}

#define DQ_LOOK_US (10 * DQ_SECOND_US) /* offers look again so often */

/* The socket on which a request is to go, once that is open. The slot may be
 * on its way to another node, and the request's keys there already: it goes
 * there, on a connection of its own. */
static delayq_status dq_req_socket(delayq *q, const dq_req *req,
                                   delayq_socket **s) {
    delayq_conn *conn = q->conn;
    delayq_status status = DELAYQ_OK;
    *s = req->asking ? conn->ask : &conn->cmd;
    if (!req->asking) {
        dq_req_verb verb = req->script->verb;
        if (verb == DQ_OFFER && q->setup.state == DELAYQ_EXCHANGE_NONE &&
            dq_sys_now() - q->setup.read_us > DQ_LOOK_US)
            q->probed = 0; /* whoever only offers meets no foreign element */
        status = dq_conn_ensure(q);
        if (status == DELAYQ_OK && q->foreign &&
            (verb == DQ_OFFER || verb == DQ_TAKE))
            status = dq_err_wire(q);
        return status;
    }
    if ((*s)->state == DELAYQ_SOCKET_CLOSED)
        status = dq_conn_dial(conn, *s, DQ_CONN_ASK,
                              q->options.connect_timeout_ms * 1000LL);
    else if ((*s)->state < DELAYQ_SOCKET_OPEN)
        status = dq_conn_advance(conn, *s);
    if (status >= DELAYQ_OK) return status;
    dq_conn_close(conn, *s, status);
    return dq_err_set(q->err, status, "%s", conn->err);
}

DQ_APART static void dq_req_submit(delayq *q, dq_req *req, delayq_socket *s) {
    dq_resp_writer o;
    int n;
    dq_resp_begin(&o, s->c);
    n = dq_req_write(&o, q, req);
    dq_conn_submit(q->conn, s, &req->x, &o, n);
}

/* Send it, if its socket is open. */
static void dq_req_send(delayq *q, dq_req *req) {
    delayq_socket *s;
    delayq_status ready = dq_req_socket(q, req, &s);
    if (ready == DELAYQ_EMPTY || (ready == DELAYQ_OK && s->body_len > 0))
        return; /* nor while somebody else's payload is being written */
    if (ready != DELAYQ_OK) {
        req->status = ready;
        dq_req_decide(q, req);
        return;
    }
    dq_req_submit(q, req, s);
}

/* Settle those that are answered and send those that wait, as far as it goes
 * without waiting. Returns how many are not settled. */
static size_t dq_req_step(delayq *q, dq_req *reqs, size_t count) {
    size_t open, i;
    int again;
    do {
        open = 0;
        again = 0;
        for (i = 0; i < count; i++) {
            if (reqs[i].x.state != DELAYQ_EXCHANGE_ANSWERED) continue;
            dq_req_answered(q, &reqs[i]);
            dq_req_decide(q, &reqs[i]);
        }
        for (i = 0; i < count; i++) {
            if (reqs[i].x.state == DELAYQ_EXCHANGE_WAITING)
                dq_req_send(q, &reqs[i]);
            open += reqs[i].x.state != DELAYQ_EXCHANGE_SETTLED;
            again |= reqs[i].x.state == DELAYQ_EXCHANGE_ANSWERED;
        }
    } while (again);
    return open;
}

/* Their time is over. */
static void dq_req_expire(delayq *q, dq_req *reqs, size_t count) {
    delayq_conn *conn = q->conn;
    size_t i;
    for (i = 0; i < count; i++) {
        dq_req *req = &reqs[i];
        delayq_socket *s = req->asking ? conn->ask : &conn->cmd;
        if (req->x.state == DELAYQ_EXCHANGE_SENT)
            dq_conn_close(conn, s, dq_conn_timeout(conn, s));
        if (req->x.state == DELAYQ_EXCHANGE_ANSWERED) {
            dq_req_answered(q, req);
        } else if (req->x.state == DELAYQ_EXCHANGE_WAITING) {
            if (s->state >= DELAYQ_SOCKET_OPEN)
                dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                           "connected, but no time is left: nothing has "
                           "happened");
            else
                dq_conn_late(conn, s, "; the attempt goes on");
            req->status =
                dq_err_set(q->err, DELAYQ_ERR_TIMEOUT, "%s", conn->err);
        }
        if (req->x.state == DELAYQ_EXCHANGE_SETTLED) continue;
        req->tries = DQ_HOPS; /* not again */
        dq_req_decide(q, req);
    }
}

static void dq_req_begin(dq_req *req, const dq_script *script, const char *what,
                         void (*writer)(dq_resp_writer *, delayq *,
                                        const dq_req *)) {
    memset(req, 0, sizeof *req);
    req->x.state = DELAYQ_EXCHANGE_WAITING;
    req->script = script;
    req->what = what;
    req->writer = writer;
}

/* Its reply is none of ours. */
static delayq_status dq_req_reject(delayq *q, dq_req *req) {
    freeReplyObject(req->reply);
    req->reply = NULL;
    return dq_err_bad_reply(q, req->what);
}

/* Read the numbers that the reply of a settled request begins with. */
static delayq_status dq_req_numbers(delayq *q, dq_req *req, int64_t *n,
                                    size_t count) {
    memset(n, 0, count * sizeof *n);
    if (req->status != DELAYQ_OK) return req->status;
    if (dq_resp_integers(req->reply, n, count)) return DELAYQ_OK;
    return dq_req_reject(q, req);
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

/* Say what is in the writer; what comes is read like messages. */
static delayq_status dq_sub_say(delayq_conn *conn, dq_resp_writer *o) {
    dq_resp_flush(o);
    conn->sub.unwritten = 1;
    return dq_conn_write(conn, &conn->sub);
}

/* Ask for messages of some of a handle's channels, or no more. */
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
    if (dq_sub_say(conn, &o) != DELAYQ_OK)
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
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

/* The subscriber is of no use. */
static void dq_sub_fail(delayq_conn *conn, delayq_status why) {
    if (conn->sub.state < DELAYQ_SOCKET_OPEN) conn->sub.failures++;
    dq_conn_close(conn, &conn->sub, why);
    dq_err_log(conn->owner, dq_err_public(why), conn->err);
}

/* Something came: a message, the answer to a subscription or to a ping. A
 * refused subscription leaves a subscriber that hears less. */
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

/* Does it hear nothing at all? */
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
                                "listening: no answer in time");
    conn->sub_pinged_us = now;
    dq_resp_begin(&o, s->c);
    dq_resp_command(&o, 1, "PING");
    return dq_sub_say(conn, &o);
}

/* It is logged in: ask for what it is to hear. */
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
    /* The last one, so that tracking begins when all else has been heard. */
    dq_resp_begin(&o, s->c);
    dq_resp_command(&o, 2, "SUBSCRIBE " DQ_INVALIDATE);
    if (dq_sub_say(conn, &o) != DELAYQ_OK) dq_sub_fail(conn, DELAYQ_ERR_IO);
}

/* Empty the pipe and read both connections, at most once a millisecond; go on
 * with connecting the subscriber. Nobody else looks at cmd while nothing is
 * asked, and tracking ends with it. */
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

/* Begin to open the subscriber where cmd leads, unless that has failed too
 * lately. */
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

/* Ask to be told of the next push into N, and how many lie there already,
 * which were pushed before the server began to watch; unless it is told anyway,
 * or this is not the time to ask. */
static void dq_sub_track(delayq *q) {
    delayq_conn *conn = q->conn;
    const delayq_waiter *w = &q->waiter;
    int64_t now = dq_sys_now();
    dq_resp_writer o;
    int n = 2;
    assert(!q->list_tracked || conn->tracking == DELAYQ_TRACK_ON);
    if (q->list_tracked || q->options.broadcast || !conn->known || !q->probed ||
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
    q->tracks = 1;
    dq_conn_submit(conn, &conn->cmd, &q->setup, &o, n);
}

/* The answers to that, if they are there. An error that passes is no refusal:
 * it is asked again. */
static delayq_status dq_sub_on_track(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_exchange *x = &q->setup;
    const redisReply *length;
    delayq_status status = DELAYQ_OK;
    int i = 0;
    if (!q->tracks || x->state != DELAYQ_EXCHANGE_ANSWERED) return DELAYQ_OK;
    length = x->replies[x->wants - 1];
    while (i < x->wants && x->replies[i]->type != REDIS_REPLY_ERROR) i++;
    if (i < x->wants) {
        delayq_status why = dq_err_lookup(x->replies[i]->str)->status;
        if (i + 1 < x->wants && !dq_err_passing(why))
            conn->tracking = DELAYQ_TRACK_OFF; /* Redis 5, or an ACL */
        else if (why < DQ_NOSCRIPT) /* the next take follows a redirection */
            status = dq_err_reply(q->err, "wait", x->replies[i]);
        dq_sched_on_untracked(q, x->read_us);
    } else if (length->type != REDIS_REPLY_INTEGER) {
        status = dq_err_bad_reply(q, "wait");
    } else if (conn->tracking != DELAYQ_TRACK_OFF && q->tracks == 1) {
        conn->tracking = DELAYQ_TRACK_ON;
        dq_waiters_on_track(q, length->integer);
    }
    dq_conn_free_replies(x);
    x->state = DELAYQ_EXCHANGE_NONE;
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiting
 * >>waiting   the only place that waits
 *
 * Owns poll: for the answers to requests, and for items. Whatever takes time
 * goes on step by step, and is waited for here.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_CONNS 20

/* When a call that begins now shall end, reconnecting included. */
static int64_t dq_wait_limit(const delayq *q) {
    return dq_sys_now() + dq_sched_patience_us(q->conn, q->call_ms);
}

static int64_t dq_wait_deadline(int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return dq_sys_now() + timeout_ms * 1000;
}

/* Wait until what requests wait for can go on. 0: the time is over. A server
 * that sends byte by byte does not hold us for ever, but what came in time is
 * read though we may be late: *late counts that. */
static int dq_wait_conn(delayq_conn *conn, int64_t deadline, int *late) {
    delayq_socket *ask = conn->ask && conn->ask->c ? conn->ask : NULL;
    struct pollfd p[2];
    size_t n = 0;
    int64_t now = dq_sys_now(), until = deadline, next;
    if (now >= deadline && ++*late > 64) return 0;
    if (conn->cmd.c) p[n++] = dq_conn_watch(&conn->cmd);
    if (ask) p[n++] = dq_conn_watch(ask);
    next = dq_sched_socket(conn, &conn->cmd);
    if (next < until) until = next;
    if (ask && (next = dq_sched_socket(conn, ask)) < until) until = next;
    if (dq_sys_poll(p, n,
                    until > now ? (int)((until - now + 999) / 1000) : 0) <= 0 &&
        dq_sys_now() >= deadline)
        return 0;
    if (conn->cmd.state >= DELAYQ_SOCKET_OPEN) dq_conn_step(conn);
    if (ask && ask->state >= DELAYQ_SOCKET_OPEN) {
        delayq_status status = dq_conn_pump(conn, ask, NULL);
        if (status == DELAYQ_OK && dq_sys_now() >= dq_sched_socket(conn, ask))
            status = dq_conn_timeout(conn, ask);
        if (status != DELAYQ_OK) dq_conn_close(conn, ask, status);
    }
    return 1;
}

/* Have an open connection on which q's queue is known, as far as anybody knows
 * before a request looks at it. */
static delayq_status dq_wait_ensure(delayq *q, int64_t deadline) {
    const delayq_conn *conn = q->conn;
    int late = 0;
    if (conn->cmd.state >= DELAYQ_SOCKET_OPEN && conn->known && q->probed &&
        !q->foreign)
        return DELAYQ_OK;
    for (;;) {
        delayq_status status = dq_conn_ensure(q);
        if (status != DELAYQ_EMPTY) return status;
        if (!dq_wait_conn(q->conn, deadline, &late))
            return dq_err_set(
                q->err,
                dq_conn_late(q->conn, &conn->cmd, "; the attempt goes on"),
                "%s", conn->err);
    }
}

/* Run requests until each is settled; one may fail and the next one not. With
 * each MB that moves their time begins anew: a line may need longer for a large
 * payload. */
static void dq_wait_settle(delayq *q, dq_req *reqs, size_t count,
                           int64_t deadline) {
    delayq_conn *conn = q->conn;
    delayq_socket ask, *outer = conn->ask;
    unsigned moved = conn->moved;
    int late = 0;
    memset(&ask, 0, sizeof ask);
    conn->ask = &ask;
    while (dq_req_step(q, reqs, count) > 0) {
        int64_t over = deadline, end;
        size_t i;
        if (conn->moved - moved >= 1u << 20) {
            end = dq_wait_limit(q);
            moved = conn->moved;
            if (end > deadline) deadline = end;
        }
        if (dq_wait_conn(q->conn, deadline, &late)) continue;
        for (i = 0; i < count; i++) { /* what was sent late has its time, too */
            end = reqs[i].x.sent_us + dq_sched_patience_us(q->conn, 0);
            if (reqs[i].x.state == DELAYQ_EXCHANGE_SENT && end > deadline)
                deadline = end;
        }
        if (deadline > over) continue;
        dq_req_expire(q, reqs, count);
        break;
    }
    if (ask.c) dq_conn_close(conn, &ask, DELAYQ_ERR_IO);
    conn->ask = outer; /* NULL but within a hook of another call */
}

/* Run one request. After DELAYQ_OK the caller has its reply, which begins with
 * the numbers n. */
static delayq_status dq_wait_run(delayq *q, dq_req *req, int64_t deadline,
                                 int64_t *n, size_t count) {
    dq_wait_settle(q, req, 1, deadline);
    return dq_req_numbers(q, req, n, count);
}

/* Run one request of whose reply only the numbers count. */
static delayq_status dq_wait_ask(delayq *q, dq_req *req, int64_t *n,
                                 size_t count) {
    delayq_status status = dq_wait_run(q, req, dq_wait_limit(q), n, count);
    if (status == DELAYQ_OK) freeReplyObject(req->reply);
    return status;
}

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

/* Sleep until one of the queues wants to act or something is readable. Who was
 * woken since that was last asked does not sleep: the pipe may have been
 * emptied meanwhile. A command connection that nobody asks is readable only
 * when it dies. */
static void dq_wait_sleep(delayq *const *queues, size_t count, int64_t until,
                          int polling) {
    struct pollfd p[3 * DQ_MAX_CONNS];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq_conn *conn = queues[i]->conn;
        int64_t next = dq_sched_next(queues[i], polling);
        if (DQ_LOAD(&queues[i]->woken)) return;
        if (next < until) until = next;
        if (dq_wait_seen_conn(queues, i)) continue;
        p[n++] = dq_sys_watch(conn->pipe[0], POLLIN);
        if (conn->sub.c) p[n++] = dq_conn_watch(&conn->sub);
        if (conn->cmd.c) p[n++] = dq_conn_watch(&conn->cmd);
    }
    dq_sys_poll_until(p, n, until);
    for (i = 0; i < count; i++) queues[i]->conn->sub_read_us = 0;
}

/* Is there a pause before the next attempt to connect? The log has been told
 * why, and need not be each time that something else wakes a wait. */
static int dq_wait_is_paused(const delayq *q) {
    const delayq_socket *s = &q->conn->cmd;
    return s->state == DELAYQ_SOCKET_CLOSED && dq_sys_now() < s->retry_us;
}

/* A passing fault within a take or wait: tell the log, and don't spin. */
static void dq_wait_ride_out(delayq *q, delayq_status status) {
    dq_err_log(q, status, q->err);
    dq_sched_on_fault(q);
}

/*-----------------------------------------------------------------------------
 * MARK: - Taking
 * >>taking   transfers and takes
 *
 * Owns what a transfer and a take ask and what their replies mean: items,
 * tickets, the ack that goes along.
 *---------------------------------------------------------------------------*/

/* What the server's clock shows, at most, so long after a local moment. */
static int64_t dq_due_after(const delayq *q, int64_t local_us,
                            int64_t delay_ms) {
    int64_t us = dq_sched_server_us(q->conn, local_us, dq_sys_now());
    return (us + 999) / 1000 + delay_ms;
}

/* Two arguments: the due time and the prefix that a ticket names. */
static void dq_write_ticket(dq_resp_writer *o, const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n = dq_elem_ticket_prefix(text, key, &due_len);
    dq_resp_arg(o, text, due_len, 0);
    dq_resp_arg(o, key, n, 0);
}

/* --- transfer and take --- */

/* Three keys: the zset; the ready list or the stream; the retry list or the
 * mirror. */
static void dq_write_three_keys(dq_resp_writer *o, const delayq *q) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->options.broadcast)
        dq_resp_key(o, q, DQ_STREAM, "");
    else
        dq_resp_arg(o, q->name, q->name_len, 0);
    dq_resp_key(o, q, q->options.wire != DELAYQ_NATIVE ? DQ_MIRROR : DQ_RETRY,
                "");
}

/* What the scripts that move items have in common: all that a tick says. */
static void dq_write_run(dq_resp_writer *o, delayq *q, const dq_req *call) {
    int due =
        q->next_poll_us < q->conn->cmd.moved_us; /* the last reply said so */
    if (call->zset_alone) {
        dq_resp_key(o, q, DQ_ZSET, "");
    } else {
        dq_write_three_keys(o, q);
        dq_resp_key(o, q, DQ_DEAD, "");
        if (call->as_waiter) dq_resp_key(o, q, DQ_WAITERS, "");
    }
    dq_resp_end_keys(o, q, call);
    dq_resp_text(o, dq_wire_letter(q));
    dq_resp_int(o, q->options.batch);
    dq_resp_int(o, due ? -q->options.max_wait_ms : q->options.max_wait_ms);
}

static void dq_write_take(dq_resp_writer *o, delayq *q, const dq_req *call) {
    unsigned char id_rest[6] = {0};
    dq_write_run(o, q, call);
    dq_resp_int(o, (int64_t)call->max);
    dq_resp_text(o, q->retry_turn ? "x" : "r");
    if (q->options.lease_ms == 0 && q->options.max_attempts == 0 &&
        !call->ticket && !call->as_waiter)
        return;
    dq_resp_int(o, q->options.max_attempts);
    dq_resp_int(o, q->options.lease_ms);
    if (call->ticket) {
        dq_write_ticket(o, call->ticket);
    } else {
        dq_resp_text(o, "");
        dq_resp_text(o, "");
    }
    dq_resp_int(o, (int64_t)call->order);
    memcpy(id_rest, q->handle_id, 5);
    if (q->options.wire == DELAYQ_REDISSON_OLD)
        dq_resp_int(o, dq_elem_old_id_low(q));
    else
        dq_resp_arg(o, id_rest, sizeof id_rest, 0);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    if (!call->as_waiter) return;
    dq_resp_text(o, q->id);
    dq_resp_text(o, q->will_wait ? "1" : "0");
    dq_resp_key(o, q, DQ_TURN, "");
    dq_resp_text(o, dq_waiters_claim(q));
    /* which of many are standbys: the same in each script */
    dq_resp_int(o, q->handle_id[6] << 8 | q->handle_id[7]);
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
    /* a tick beside takes waits for the next of them */
    int takes = verb == DQ_TAKE || (verb == DQ_NOTHING && q->empty_takes);
    int unheard =
        takes && (q->conn->tracking == DELAYQ_TRACK_OFF || call->zset_alone);
    const redisReply *dues = r->element[DQ_AT_DUES];
    /* what comes from the list has no due time; what is taken straight from the
     * zset leaves the list as it is */
    int taken = n[DQ_AT_MOVED] > 0 ||
                (dues->type == REDIS_REPLY_STRING && dues->len > 0 &&
                 (*dues->str < '0' || *dues->str > '9'));
    q->counts.moved += (uint64_t)n[DQ_AT_MOVED];
    q->counts.died += (uint64_t)n[DQ_AT_DEAD];
    dq_sched_on_reply(q, &call->x, n[DQ_AT_NEXT], n[DQ_AT_READY], unheard,
                      taken);
    if (verb == DQ_TAKE)
        dq_waiters_on_reply(q, call->x.sent_us, n[DQ_AT_NEXT],
                            r->elements > DQ_AT_DUES + 1,
                            call->as_waiter ? n[DQ_AT_ROLE] : -1);
    if (verb == DQ_BROADCAST && r->elements > DQ_AT_DUES + 1) {
        cursor = r->element[DQ_AT_DUES + 1];
        if (cursor->type == REDIS_REPLY_STRING &&
            cursor->len < sizeof q->cursor)
            memcpy(q->cursor, cursor->str, cursor->len + 1);
    }
    if (n[DQ_AT_FOREIGN] > 0) q->foreign = (unsigned char)n[DQ_AT_FOREIGN];
    return n[DQ_AT_FOREIGN] > 0 ? dq_err_wire(q) : DELAYQ_OK;
}

/* Read the numbers with which the reply of a transfer or take begins. */
static delayq_status dq_take_numbers(delayq *q, dq_req *call, int64_t *n) {
    delayq_status status = dq_req_numbers(q, call, n, DQ_AT_READY);
    const redisReply *r = call->reply, *rest;
    size_t more = DQ_NUMBERS - DQ_AT_READY;
    if (status != DELAYQ_OK) return status;
    memset(n + DQ_AT_READY, 0, more * sizeof *n);
    rest = r->elements > DQ_AT_DUES ? r->element[DQ_AT_READY] : NULL;
    if (rest && (rest->type == REDIS_REPLY_INTEGER ||
                 dq_resp_integers(rest, n + DQ_AT_READY, more)))
        return DELAYQ_OK;
    return dq_req_reject(q, call);
}

static void dq_take_begin_transfer(const delayq *q, dq_req *call) {
    if (q->options.broadcast)
        dq_req_begin(call, &dq_script_broadcast, "tick", dq_write_broadcast);
    else if (q->options.wire == DELAYQ_NATIVE)
        dq_req_begin(call, &dq_script_tick, "tick", dq_write_run);
    else
        dq_req_begin(call, &dq_script_tick_redisson, "tick", dq_write_run);
    call->no_retry = 1;
}

/* A transfer is settled. */
static delayq_status dq_take_end_transfer(delayq *q, dq_req *call) {
    int64_t n[DQ_NUMBERS];
    delayq_status status = dq_take_numbers(q, call, n);
    if (status == DELAYQ_EMPTY) { /* the next does it */
        q->asked = 0;
        dq_sched_lower(q, dq_sys_now());
        return DELAYQ_OK;
    }
    if (status != DELAYQ_OK) {
        dq_sched_on_fault(q);
        return status;
    }
    status = dq_take_apply(q, call, n);
    freeReplyObject(call->reply);
    return status;
}

/* Run the transfer, one round trip. */
static delayq_status dq_take_transfer(delayq *q, int64_t deadline) {
    dq_req call;
    dq_take_begin_transfer(q, &call);
    dq_wait_settle(q, &call, 1, deadline);
    return dq_take_end_transfer(q, &call);
}

/* Goes through the items of a take's, broadcast's or peek's reply, which stays
 * with the handle, since they point into it. */
typedef struct dq_reader {
    dq_req_verb verb;
    int64_t us;      /* the server's clock */
    const char *due; /* the due times that are left, as text */
    size_t at;       /* number of the next element of the reply */
    uint64_t rank;   /* of a peek: the element's in the zset */
    redisReply *reply;
} dq_reader;

/* One item; its due time stands in the reader, as text. A peek also shows what
 * can't be decoded. */
static int dq_read_item(delayq *q, const dq_reader *reader, delayq_item *item,
                        redisReply *const *r) {
    dq_req_verb verb = reader->verb;
    const char *due = reader->due;
    const redisReply *cursor = verb == DQ_BROADCAST ? *r++ : NULL;
    const unsigned char *e = (const unsigned char *)r[0]->str;
    int peek = verb == DQ_PEEK, leased = !peek && q->options.lease_ms > 0;
    int odd = peek && *due == '-'; /* the score is no due time */
    int kind = -1, bucket = 0, known;
    size_t at = 0;
    due += odd;
    known = *due >= '0' && *due <= '9';
    if (r[0]->type != REDIS_REPLY_STRING || !*due || (peek && !known)) return 0;
    memset(item, 0, sizeof *item);
    if (cursor) {
        if (cursor->type != REDIS_REPLY_STRING ||
            cursor->len >= sizeof q->cursor)
            return 0;
        memcpy(item->ticket.text, cursor->str, cursor->len + 1);
    } else if (leased || *due != 'r') {
        kind = dq_elem_parse_of(q, e, r[0]->len, &at);
        if (kind < 0 && !peek) return 0;
    }
    if (known) item->due_ms = dq_num_due(due);
    if (peek && (kind < 0 || odd))
        dq_elem_rank_ticket(&item->ticket, item->due_ms, reader->rank);
    else if (leased || peek)
        dq_elem_ticket(&item->ticket,
                       leased ? (reader->us + 999) / 1000 + q->options.lease_ms
                              : item->due_ms,
                       e, kind);
    item->data = e + at;
    item->len = r[0]->len - at;
    item->attempt = dq_elem_attempt(e, kind) + (!peek && !leased);
    item->late_us = -1;
    if (peek) return 1;
    q->counts.taken++;
    q->counts.redelivered += item->attempt > 1;
    if (!known) return 1;
    item->late_us = reader->us - item->due_ms * 1000;
    if (item->late_us < 0) item->late_us = 0;
    while (bucket < 23 && item->late_us >= (int64_t)1 << bucket) bucket++;
    q->counts.lateness[bucket]++;
    return 1;
}

/* Begin to read: from now on the reply is the reader's. */
static delayq_status dq_read_begin(delayq *q, dq_req *call, int64_t us,
                                   dq_reader *reader) {
    const redisReply *r = call->reply;
    dq_req_verb verb = call->script->verb;
    size_t first = verb == DQ_PEEK ? 3 : DQ_AT_DUES + 1;
    size_t step = verb == DQ_BROADCAST ? 2 : 1;
    reader->reply = call->reply;
    call->reply = NULL;
    if (r->elements < first ||
        r->element[first - 1]->type != REDIS_REPLY_STRING)
        return dq_err_bad_reply(q, call->what);
    reader->verb = verb;
    reader->us = us;
    reader->rank = verb == DQ_PEEK ? (uint64_t)r->element[1]->integer : 0;
    reader->due = r->element[first - 1]->str;
    reader->at = verb == DQ_BROADCAST ? first + 1 : first;
    if (r->elements < reader->at || (r->elements - reader->at) % step != 0 ||
        (r->elements - reader->at) / step > call->max)
        return dq_err_bad_reply(q, call->what);
    return DELAYQ_OK;
}

/* The next items, max at most. If one is none, no other is to be believed. */
static delayq_status dq_read_items(delayq *q, dq_reader *reader,
                                   delayq_item *items, size_t max,
                                   size_t *count) {
    const redisReply *r = reader->reply;
    *count = 0;
    while (r && *count < max && reader->at < r->elements) {
        if (!dq_read_item(q, reader, items + *count, r->element + reader->at)) {
            *count = 0;
            return dq_err_bad_reply(q,
                                    reader->verb == DQ_PEEK ? "peek" : "take");
        }
        ++*count;
        reader->at += reader->verb == DQ_BROADCAST ? 2 : 1;
        reader->rank++;
        reader->due += strcspn(reader->due, " ");
        reader->due += *reader->due == ' ';
    }
    return *count > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

/* All items of a reply. */
static delayq_status dq_read_all(delayq *q, dq_req *call, delayq_item *items,
                                 size_t *count, int64_t us) {
    dq_reader reader;
    delayq_status status = dq_read_begin(q, call, us, &reader);
    q->reply = reader.reply;
    if (status != DELAYQ_OK) return status;
    return dq_read_items(q, &reader, items, call->max, count);
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
    int lost;            /* an answer was lost */
} dq_take_state;

/* A take of up to max items, behind the ack of a ticket, if any. */
static void dq_take_begin(delayq *q, dq_req *call, size_t max,
                          const char *ticket) {
    if (q->options.broadcast)
        dq_req_begin(call, &dq_script_broadcast, "take", dq_write_broadcast);
    else if (q->options.wire == DELAYQ_NATIVE)
        dq_req_begin(call, &dq_script_take, "take", dq_write_take);
    else
        dq_req_begin(call, &dq_script_take_redisson, "take", dq_write_take);
    call->as_waiter = dq_waiters_in_take(q);
    if (call->as_waiter) dq_waiters_on_take(q);
    call->max = max;
    call->ticket = ticket;
    if (q->options.lease_ms > 0) call->order = dq_elem_next_order(q, max + 1);
    q->retry_turn = !q->retry_turn;
}

/* One round trip: the ack in hand, then up to t->max items. EMPTY or OK, or
 * what went wrong. */
static delayq_status dq_take_once(delayq *q, dq_take_state *t) {
    int ack = t->ack.ticket.text[0] != '\0';
    delayq_status status, acked;
    int64_t n[DQ_NUMBERS];
    dq_req call;
    dq_take_begin(q, &call, t->max, ack ? t->ack.ticket.text : NULL);
    dq_wait_settle(q, &call, 1, dq_wait_limit(q));
    acked = status = dq_take_numbers(q, &call, n);
    if (status == DELAYQ_OK && ack && (n[DQ_AT_ACKED] | 1) != 1) {
        q->reply = call.reply;
        acked = status = dq_err_bad_reply(q, "take");
    } else if (status == DELAYQ_OK) {
        delayq_status applied, read;
        if (ack) acked = dq_ticket_status(q, &call, n[DQ_AT_ACKED]);
        q->counts.acked += ack && acked == DELAYQ_OK;
        applied = dq_take_apply(q, &call, n);
        read = dq_read_all(q, &call, t->items, &t->count, n[DQ_AT_US]);
        status = read == DELAYQ_EMPTY && applied != DELAYQ_OK ? applied : read;
    }
    if (ack) {
        if (t->lost && acked != DELAYQ_OK) acked = DELAYQ_ERR_UNKNOWN;
        t->acked = acked;
        if (status >= DELAYQ_OK || acked >= DELAYQ_OK)
            t->ack.ticket.text[0] = '\0'; /* it is settled */
    }
    t->lost |= status == DELAYQ_ERR_UNKNOWN;
    if (status < DELAYQ_OK) dq_sched_on_fault(q);
    return status;
}

/* What is the same for every step: the news of both connections. */
static delayq_status dq_take_news(delayq *q) {
    dq_sub_step(q->conn, dq_sys_now());
    return dq_sub_on_track(q);
}

/* See to it that the next item is heard of. EMPTY, or what is wrong. */
static delayq_status dq_take_listen(delayq *q) {
    delayq_status status = dq_sub_on_track(q); /* read with the take's answer */
    dq_sub_open(q);
    dq_sub_track(q);
    return status == DELAYQ_OK || dq_err_passing(status) ? DELAYQ_EMPTY
                                                         : status;
}

/* One step of a take: ask if there may be something; if there isn't, see to
 * it that the next item is heard of. */
static delayq_status dq_take_step(delayq *q, dq_take_state *t, int listen) {
    const delayq_conn *conn = q->conn;
    delayq_status status = dq_take_news(q);
    if (status != DELAYQ_OK && !dq_err_passing(status)) return status;
    status = DELAYQ_EMPTY;
    if (q->foreign) return dq_err_wire(q);
    if (!conn->known || conn->sub.state == DELAYQ_SOCKET_CLOSED ||
        dq_sched_has_ready(q) || dq_sys_now() >= q->next_poll_us ||
        t->ack.ticket.text[0])
        status = dq_take_once(q, t);
    dq_sub_follow_role(q);
    return status == DELAYQ_EMPTY && listen ? dq_take_listen(q) : status;
}

/* One step of a tick: connect, run the transfer if it is time; listen: ask to
 * be told of a push, if it isn't. */
static delayq_status dq_take_tick(delayq *q, int64_t deadline, int listen) {
    delayq_status status = dq_take_news(q);
    if (status == DELAYQ_OK) status = dq_wait_ensure(q, deadline);
    if (status != DELAYQ_OK) return status;
    dq_sub_open(q);
    if (dq_sys_now() >= q->next_poll_us) status = dq_take_transfer(q, deadline);
    if (status == DELAYQ_OK && listen && q->ready == 0 &&
        dq_sys_now() < q->next_poll_us)
        dq_sub_track(q);
    return status;
}

/* One turn of a wait. OK if something lies ready, else EMPTY. */
static delayq_status dq_take_turn(delayq *q) {
    delayq_status status = dq_take_tick(q, dq_wait_limit(q), !q->foreign);
    if (status == DELAYQ_OK && q->foreign) return dq_err_wire(q);
    if (status != DELAYQ_OK) return status;
    return dq_sched_has_ready(q) ? DELAYQ_OK : DELAYQ_EMPTY;
}

/*-----------------------------------------------------------------------------
 * MARK: - Outbox
 * >>outbox-inside   handles that never wait: what they have yet to send
 *
 * Owns the memory of options.outbox. Offers, and what concerns this handle's
 * own offers, lie in one ring; acks and the like in another, so that a full
 * server, which refuses offers, still gets the acks that make room. A ring is
 * first in, first out, with one request under way; neighbours of one kind
 * share it. What is sent stays in the ring until the server has confirmed it.
 *
 * An offer has a number in its ring. The script keeps the highest in a key of
 * this handle, passes over what is not above it, and says how many those were:
 * so resends store nothing twice, even after the item has been delivered.
 *
 * What writes offers, removals and changes stands here, since it writes those
 * of entries, too.
 *---------------------------------------------------------------------------*/

#define DQ_RING_ENTRIES 1000 /* most in one request, */
#define DQ_RING_BYTES 65536  /* which fits what a socket takes at once */
#define DQ_RING_ACKS 500
#define DQ_RING_LOSSES 8 /* connections that one entry alone may end */
#define DQ_OUTBOX_MIN 8192

typedef enum dq_entry_kind {
    DQ_ENTRY_NONE, /* the end of the ring's memory is unused */
    DQ_ENTRY_OFFER,
    DQ_ENTRY_KEYED,  /* an offer with a key */
    DQ_ENTRY_REMOVE, /* ack, cancel */
    DQ_ENTRY_CHANGE  /* nack, extend, bury, reschedule */
} dq_entry_kind;

/* Followed by the key, and the payload or the ticket; aligned to 8 bytes. */
typedef struct dq_entry {
    size_t size; /* of all of it */
    dq_entry_kind kind;
    unsigned char has_id, replace, less, bury, mirror;
    const char *what;   /* the verb, for error texts; its counter goes by it */
    int64_t begun_us;   /* when the call was made */
    int64_t delay_ms;   /* from then; */
    int64_t due_ms;     /* > 0: due then instead */
    int64_t planned_ms; /* due then, by the request that is under way */
    int64_t key_ttl_ms;
    size_t key_len, len;
    unsigned char id[16];
} dq_entry;

typedef struct dq_ring {
    unsigned char *data;
    size_t size, head, tail, used; /* bytes */
    uint64_t accepted, settled;    /* entries, since the open */
    uint64_t sent;                 /* up to this one they may have arrived */
    size_t limit;                  /* entries of the next request */
    unsigned failures;             /* in a row */
    unsigned losses;               /* of connections, with one entry alone */
    int suspect;                   /* its last request has lost one */
    int64_t retry_us;              /* send no sooner */
    uint64_t dated;                /* up to this one due times are reckoned, */
    unsigned dated_on;             /* by the clock of this connection; */
    size_t date_at;                /* there is the next one */
    int64_t call_us;      /* the last offer's call, by the server's clock */
    delayq_status status; /* why the last request failed, or OK */
    dq_req req;           /* under way, unless its state is NONE */
} dq_ring;

typedef struct dq_outbox {
    dq_ring offers, changes;
    /* What sends a ring: dq_ring_step, once a step has run, before which there
     * is no connection. So a program that only offers does not link it. */
    void (*sender)(delayq *q, dq_ring *ring);
    dq_req ask;            /* a transfer or take under way, as above */
    int taking;            /* it is a take */
    dq_reader reader;      /* of what it has brought */
    int64_t lease_end_us;  /* of that, by our clock */
    size_t want;           /* so many items the next take asks for, */
    size_t max;            /* at least these, if the program can hold them */
    size_t got;            /* of the last one */
    int takes;             /* since the last tick 1: the program has taken,
                              2: and got something */
    int lost;              /* the answer to a take was lost in this call */
    delayq_status news;    /* a take has failed: the next tick tells */
    delayq_status failure; /* the first one since a flush */
    uint64_t gone, duplicate, dropped, told_dropped;
    delayq_name names[3];
    int64_t log_us; /* when the log was told last, and of what */
    delayq_status logged;
} dq_outbox;

static dq_outbox *dq_outbox_of(const delayq *q) {
    return (dq_outbox *)q->outbox;
}

/* Numbers of its own, by which the queue knows the handle. 0: there are none,
 * and it keeps those that it has. */
static int dq_handle_identify(delayq *q) {
    unsigned char bytes[sizeof q->handle_id];
    if (!dq_sys_random(bytes, sizeof bytes)) return 0;
    memcpy(q->handle_id, bytes, sizeof bytes);
    q->id[0] = ':';
    dq_num_hex(q->id + 1, bytes, sizeof bytes);
    return 1;
}

/* --- the ring --- */

static unsigned char *dq_entry_key(dq_entry *e) {
    return (unsigned char *)(e + 1);
}

/* The payload, or a ticket's text. Behind a key stands a NUL. */
static unsigned char *dq_entry_data(dq_entry *e) {
    return dq_entry_key(e) + (e->key_len > 0 ? e->key_len + 1 : 0);
}

static dq_entry *dq_ring_at(const dq_ring *ring, size_t at) {
    return (dq_entry *)(void *)(ring->data + at);
}

/* The entry at a place or, where the end is unused, at the beginning. */
static dq_entry *dq_ring_entry(const dq_ring *ring, size_t at) {
    size_t end = ring->size - at;
    if (end < sizeof(dq_entry) || dq_ring_at(ring, at)->kind == DQ_ENTRY_NONE)
        at = 0;
    return dq_ring_at(ring, at);
}

static dq_entry *dq_ring_first(const dq_ring *ring) {
    return ring->accepted > ring->settled ? dq_ring_entry(ring, ring->head)
                                          : NULL;
}

/* The one behind e, which must not be the last. */
static dq_entry *dq_ring_next(const dq_ring *ring, const dq_entry *e) {
    size_t at = (size_t)((const unsigned char *)e - ring->data) + e->size;
    return dq_ring_entry(ring, at);
}

/* Room for one more; NULL: there is none. */
static dq_entry *dq_ring_add(dq_ring *ring, dq_entry_kind kind, size_t key_len,
                             size_t len) {
    size_t key = key_len > 0 ? key_len + 1 : 0, end;
    size_t size = (sizeof(dq_entry) + key + len + 7) & ~(size_t)7;
    dq_entry *e;
    if (ring->used == 0) ring->head = ring->tail = ring->date_at = 0;
    if (ring->used + size > ring->size) return NULL;
    end = ring->size - ring->tail;
    if (ring->tail >= ring->head && size > end) {
        if (size > ring->head) return NULL;
        if (end >= sizeof(dq_entry))
            dq_ring_at(ring, ring->tail)->kind = DQ_ENTRY_NONE;
        ring->used += end;
        ring->tail = 0;
    } else if (ring->tail < ring->head && size > ring->head - ring->tail) {
        return NULL;
    }
    e = dq_ring_at(ring, ring->tail);
    memset(e, 0, sizeof *e);
    e->size = size;
    e->kind = kind;
    e->key_len = key_len;
    e->len = len;
    e->begun_us = dq_sys_now();
    ring->tail += size;
    ring->used += size;
    ring->accepted++;
    return e;
}

/* The first n are done. */
static void dq_ring_pop(dq_ring *ring, size_t n) {
    for (; n > 0; n--) {
        dq_entry *e = dq_ring_first(ring);
        size_t at = (size_t)((unsigned char *)e - ring->data);
        if (at < ring->head) ring->used -= ring->size - ring->head;
        ring->used -= e->size;
        ring->head = at + e->size;
        ring->settled++;
    }
    if (ring->sent < ring->settled) ring->sent = ring->settled;
}

/* --- writing offers, removals, changes --- */

static void dq_ring_message(dq_entry *e, delayq_message *m) {
    memset(m, 0, sizeof *m);
    m->data = dq_entry_data(e);
    m->len = e->len;
    m->due_ms = e->planned_ms;
    memcpy(m->id, e->id, sizeof m->id);
    if (e->kind != DQ_ENTRY_KEYED) return;
    m->key = (const char *)dq_entry_key(e);
    m->key_ttl_ms = e->key_ttl_ms;
    m->replace = e->replace;
}

/* Give an offer an id and a due time, by what is known of the server's clock:
 * its delay counts from the call. Offers keep their order, though what is known
 * varies: one comes no earlier than the one before it, nor than by its former
 * date, behind which those before it may be stored. */
static void dq_ring_date(delayq *q, dq_ring *ring, dq_entry *e) {
    int64_t us = dq_sched_server_us(q->conn, e->begun_us, dq_sys_now());
    int64_t least = ring->call_us, former;
    if (e->has_id && e->due_ms == 0) {
        former = (e->planned_ms - e->delay_ms) * 1000;
        if (former > least) least = former;
    }
    if (us < least && us > least - DQ_SECOND_US) us = least;
    ring->call_us = us;
    e->planned_ms = e->due_ms > 0 ? e->due_ms : (us + 999) / 1000 + e->delay_ms;
    if (e->planned_ms > DQ_MAX_DUE) /* the clock was not known at the call */
        e->planned_ms = DQ_MAX_DUE;
    if (!e->has_id) dq_elem_next_id(q, e->id);
    e->has_id = 1;
    ring->dated++;
    ring->date_at = (size_t)((unsigned char *)e - ring->data) + e->size;
}

/* Do so with all that have none, or one by the clock of another connection; not
 * too many in one step. 1: there is none left. */
static int dq_ring_date_all(delayq *q, dq_ring *ring) {
    int left = 2 * DQ_RING_ENTRIES;
    if (ring->dated_on != q->conn->clock_number ||
        ring->dated < ring->settled) {
        ring->dated_on = q->conn->clock_number;
        if (ring->dated > ring->settled) ring->call_us = 0; /* of the last */
        ring->dated = ring->settled;
        ring->date_at = ring->head;
    }
    while (ring->dated < ring->accepted && left-- > 0)
        dq_ring_date(q, ring, dq_ring_entry(ring, ring->date_at));
    return ring->dated == ring->accepted;
}

/* When it is due, as the script explains; nothing where that is as before. What
 * is sent again is stored only if the first sending can't have been due yet,
 * neither by the server's clock, which may have been set back, nor by ours,
 * which may run at another speed: either is enough to make it unknown. */
static void dq_write_when(dq_resp_writer *o, const delayq_message *m,
                          const delayq_message *before, int again) {
    char when[64];
    size_t n = 0;
    again |= m->status == DELAYQ_ERR_UNKNOWN;
    if (!before || again || before->due_ms != m->due_ms ||
        before->delay_ms != m->delay_ms)
        n += dq_num_decimal(when, m->due_ms > 0 ? -m->due_ms : m->delay_ms);
    if (again) {
        when[n++] = '!';
        n += dq_num_decimal(
            when + n, dq_sys_now() < m->first_due_us ? m->first_due_ms : 0);
    }
    dq_resp_arg(o, when, n, 0);
}

static void dq_write_element(dq_resp_writer *o, const delayq *q,
                             const delayq_message *m, int last) {
    unsigned char head[DQ_ELEM_HEADER_MAX];
    size_t n = dq_elem_write_header(q, m->id, m->len, head);
    dq_resp_long_arg(o, head, n, m->data, m->len, last);
}

/* The messages are the caller's, or made of entries. */
static void dq_write_offer(dq_resp_writer *o, delayq *q, const dq_req *call) {
    delayq_message made[2];
    const delayq_message *m, *before = NULL;
    dq_entry *e = call->entry;
    size_t i;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->options.wire != DELAYQ_NATIVE) dq_resp_key(o, q, DQ_MIRROR, "");
    if (e) dq_resp_key(o, q, DQ_SENT, q->id);
    dq_resp_end_keys(o, q, call);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    if (e) dq_resp_int(o, (int64_t)call->order);
    for (i = 0; i < call->max; i++) {
        if (e && i > 0) e = dq_ring_next(call->ring, e);
        if (e) dq_ring_message(e, &made[i & 1]);
        m = e ? &made[i & 1] : call->messages + i;
        dq_write_when(o, m, before, call->is_resend);
        dq_write_element(o, q, m, i + 1 == call->max);
        before = m;
    }
}

static void dq_write_keyed(dq_resp_writer *o, delayq *q, const dq_req *call) {
    const delayq_message *m = call->messages;
    char rest[280], id[33];
    delayq_message made;
    if (call->entry) {
        dq_ring_message(call->entry, &made);
        m = &made;
    }
    dq_resp_key(o, q, DQ_ZSET, "");
    snprintf(rest, sizeof rest, ":%d:%s", (int)strlen(m->key), m->key);
    dq_resp_key(o, q, DQ_DEDUP, rest);
    if (q->options.wire != DELAYQ_NATIVE) dq_resp_key(o, q, DQ_MIRROR, "");
    if (call->entry) dq_resp_key(o, q, DQ_SENT, q->id);
    dq_resp_end_keys(o, q, call);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_write_when(o, m, NULL, call->is_resend);
    dq_num_hex(id, m->id, dq_elem_id_len(q));
    dq_resp_text(o, id);
    dq_resp_int(o, m->key_ttl_ms);
    dq_resp_text(o, m->replace ? "1" : "0");
    dq_resp_int(o, (int64_t)call->order); /* 0, or its number */
    dq_write_element(o, q, m, 1);
}

/* By tickets: of items to ack, of entries, or the one of a cancel. */
static void dq_write_remove(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_entry *e = call->entry;
    size_t i;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (call->mirror) dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_end_keys(o, q, call);
    for (i = 0; i < call->max; i++) {
        if (e && i > 0) e = dq_ring_next(call->ring, e);
        dq_write_ticket(o, e             ? (const char *)dq_entry_data(e)
                           : call->items ? call->items[i].ticket.text
                                         : call->ticket);
    }
    if (dq_req_counts(q, call))
        dq_resp_text(o, call->what[0] == 'a' ? "acked" : "canceled");
}

/* What a nack, extend, reschedule or bury says. */
static void dq_write_change(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (call->bury) dq_resp_key(o, q, DQ_DEAD, "");
    dq_resp_end_keys(o, q, call);
    dq_write_ticket(o, call->ticket);
    dq_resp_int(o, call->due_ms);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_text(o, call->less ? "1" : "0");
    dq_resp_text(o, call->is_resend ? "1" : "0");
    dq_resp_int(o, call->from);
    if (dq_req_counts(q, call))
        dq_resp_text(o, call->what[0] == 'n' ? "1" : "0");
}

/* Make a request of the first entries. */
static void dq_ring_plan(delayq *q, dq_ring *ring) {
    dq_req *req = &ring->req;
    dq_entry *e = dq_ring_first(ring), *first = e;
    size_t n = 0, bytes = 0, limit = ring->limit;
    size_t waiting = (size_t)(ring->accepted - ring->settled);
    dq_ring_date_all(q, ring);
    if (waiting > ring->dated - ring->settled)
        waiting = (size_t)(ring->dated - ring->settled);
    if (e->kind == DQ_ENTRY_OFFER) {
        dq_req_begin(req, &dq_script_offer, e->what, dq_write_offer);
    } else if (e->kind == DQ_ENTRY_KEYED) {
        dq_req_begin(req, &dq_script_offer_keyed, e->what, dq_write_keyed);
        limit = 1;
    } else if (e->kind == DQ_ENTRY_REMOVE) {
        dq_req_begin(req, &dq_script_remove, e->what, dq_write_remove);
        req->mirror = e->mirror;
        if (e->mirror) limit = 1;
        if (limit > DQ_RING_ACKS) limit = DQ_RING_ACKS;
    } else {
        dq_req_begin(req, &dq_script_change, e->what, dq_write_change);
        if (e->due_ms == 0)
            e->due_ms = dq_due_after(q, e->begun_us, e->delay_ms);
        req->ticket = (const char *)dq_entry_data(e);
        req->bury = e->bury;
        req->due_ms = e->due_ms;
        req->from = -1; /* the due time counts */
        req->less = e->less;
        limit = 1;
    }
    req->stepwise = req->idempotent = req->resent = 1;
    req->ring = ring;
    req->entry = first;
    req->order = ring->settled + 1;
    if (limit > waiting) limit = waiting;
    for (;;) {
        n++;
        bytes += sizeof *e + e->len;
        if (n >= limit) break;
        e = dq_ring_next(ring, e);
        if (e->kind != first->kind || e->what[0] != first->what[0] ||
            bytes + sizeof *e + e->len > DQ_RING_BYTES)
            break;
    }
    req->max = n;
}

/* --- what became of a request --- */

/* A fault of an outbox: the log hears of each kind, then once a second. */
static void dq_outbox_note(delayq *q, delayq_status status, const char *text) {
    dq_outbox *b = dq_outbox_of(q);
    int64_t now = dq_sys_now();
    if (b->failure == DELAYQ_OK) b->failure = status;
    if (status == b->logged && now - b->log_us < DQ_SECOND_US) return;
    b->logged = status;
    b->log_us = now;
    dq_err_log(q, status, text);
}

/* Somebody else uses this handle's numbers: a cloned machine. */
static void dq_ring_met_twin(delayq *q, dq_ring *ring) {
    dq_entry *e = dq_ring_first(ring);
    uint64_t i;
    for (i = ring->settled; i < ring->accepted; i++) {
        if (i > ring->settled) e = dq_ring_next(ring, e);
        e->has_id = 0;
    }
    ring->dated_on = 0;    /* due times and ids anew */
    dq_handle_identify(q); /* else it meets the twin again */
    dq_conn_close(q->conn, &q->conn->sub, DELAYQ_ERR_IO);
    ring->sent = ring->settled;
}

/* The reply to the first entries. OK: they are done. */
static delayq_status dq_ring_read(delayq *q, dq_ring *ring) {
    dq_req *req = &ring->req;
    dq_outbox *b = dq_outbox_of(q);
    dq_entry *e = dq_ring_first(ring);
    dq_entry_kind kind = e->kind;
    int64_t n[3];
    uint64_t again = req->was_sent - ring->settled; /* so many are resends */
    size_t i, want = kind == DQ_ENTRY_OFFER    ? 2
                     : kind == DQ_ENTRY_REMOVE ? 1
                                               : 3;
    delayq_status status = dq_req_numbers(q, req, n, want);
    int64_t over = kind == DQ_ENTRY_OFFER   ? n[1]
                   : kind == DQ_ENTRY_KEYED ? n[1] == 3
                                            : 0; /* were passed over */
    if (status != DELAYQ_OK) return status;
    if (kind == DQ_ENTRY_REMOVE && req->reply->elements != 1 + req->max)
        return dq_err_bad_reply(q, req->what);
    if (over > 0 && (uint64_t)over > again) {
        dq_ring_met_twin(q, ring);
        return dq_err_set(q->err, DELAYQ_ERR_AGAIN,
                          "offer: another machine uses this handle's numbers; "
                          "it takes new ones");
    }
    for (i = 0; i < req->max; i++) {
        int done = 1;
        if (i > 0) e = dq_ring_next(ring, e);
        if (kind == DQ_ENTRY_OFFER) {
            dq_sched_on_own_item(q, e->planned_ms, req->x.read_us);
            q->counts.offered++;
        } else if (kind == DQ_ENTRY_KEYED) {
            done = n[1] != 1;
            b->duplicate += !done;
            q->counts.offered += n[1] == 0;
            dq_sched_on_own_item(q, n[2], req->x.read_us);
            continue;
        } else if (kind == DQ_ENTRY_REMOVE) {
            const redisReply *r = req->reply->element[1 + i];
            done = r->type == REDIS_REPLY_INTEGER && r->integer == 1;
            done |= i < again; /* a lost answer may have said so */
            q->counts.acked += done && e->what[0] == 'a';
        } else {
            done = n[1] == 1 || i < again;
            q->counts.nacked += done && e->what[0] == 'n';
            q->counts.died += done && e->bury;
            if (done && !e->bury) dq_sched_on_own_item(q, n[2], req->x.read_us);
        }
        b->gone += !done;
    }
    return DELAYQ_OK;
}

/* The request of a ring is settled. Whatever has failed stays, and is sent
 * again; only what the server can't take has to go: what, sent alone, has ended
 * so many connections that had been logged in. */
static void dq_ring_settled(delayq *q, dq_ring *ring) {
    dq_req *req = &ring->req;
    dq_outbox *b = dq_outbox_of(q);
    int lost = req->x.number > 0 && (req->status == DELAYQ_ERR_UNKNOWN ||
                                     req->status == DELAYQ_ERR_IO);
    size_t n = req->max;
    delayq_status status = dq_ring_read(q, ring);
    if (req->reply) freeReplyObject(req->reply);
    req->x.state = DELAYQ_EXCHANGE_NONE;
    ring->status = status;
    if (status == DELAYQ_OK) {
        dq_ring_pop(ring, n);
        ring->failures = ring->losses = 0;
        ring->suspect = 0;
        ring->retry_us = 0;
        ring->limit = 2 * n > ring->limit ? 2 * ring->limit : ring->limit;
        if (ring->limit > DQ_RING_ENTRIES) ring->limit = DQ_RING_ENTRIES;
        return;
    }
    dq_outbox_note(q, status, q->err);
    if (status != DELAYQ_ERR_UNKNOWN && status != DELAYQ_ERR_PROTOCOL)
        ring->sent = req->was_sent; /* nothing has happened */
    if (!lost) {
        ring->retry_us =
            dq_sys_now() + dq_num_backoff(DQ_BACKOFF_US,
                                          q->options.reconnect_max_ms * 1000LL,
                                          ++ring->failures);
        return;
    }
    ring->retry_us = 0; /* the connection has its own pause */
    ring->limit = n > 1 ? n / 2 : 1;
    ring->suspect = 1;
    if (n > 1 || q->conn->timed_out)
        ring->losses = 0;
    else if (req->x.alone && ++ring->losses >= DQ_RING_LOSSES) {
        dq_err_set(q->err, status,
                   "%s of %lu bytes: dropped, since the server ends each "
                   "connection over which it is sent",
                   req->what, (unsigned long)dq_ring_first(ring)->len);
        dq_err_log(q, status, q->err);
        dq_ring_pop(ring, 1);
        b->dropped++;
        ring->losses = 0;
    }
}

/* Go on with a ring, as far as it goes. */
static void dq_ring_step(delayq *q, dq_ring *ring) {
    const dq_outbox *b = dq_outbox_of(q);
    dq_req *req = &ring->req;
    int round;
    for (round = 0; round < 2; round++) {
        if (req->x.state == DELAYQ_EXCHANGE_NONE) {
            if (ring->accepted == ring->settled ||
                dq_sys_now() < ring->retry_us || !q->conn->known || !q->probed)
                return;
            if (q->conn->cmd.first && (b->offers.suspect || b->changes.suspect))
                return; /* one by one, until it is known who is to blame */
            if (!q->conn->cmd.first) dq_conn_step(q->conn); /* is it alive? */
            if (!q->conn->known) return;
            dq_ring_plan(q, ring);
            req->was_sent = ring->sent;
            if (ring->sent < ring->settled + req->max)
                ring->sent = ring->settled + req->max;
        }
        if (dq_req_step(q, req, 1) > 0) return;
        dq_ring_settled(q, ring);
    }
}

/* --- takes --- */

static void dq_outbox_ask(delayq *q, int take) {
    dq_outbox *b = dq_outbox_of(q);
    if (take) {
        if (b->max > b->want)
            b->want = b->max;
        else if (b->takes > 1 && b->got >= b->want)
            b->want *= 2; /* all were taken before the next tick */
        if (b->want > (size_t)q->options.batch)
            b->want = (size_t)q->options.batch;
        b->max = 0;
        dq_take_begin(q, &b->ask, b->want, NULL);
    } else {
        dq_take_begin_transfer(q, &b->ask);
    }
    b->taking = take;
    b->ask.stepwise = 1;
    dq_sched_on_sent(q);
    dq_req_step(q, &b->ask, 1);
}

/* Are there items that were not handed out? */
static int dq_outbox_has_items(const delayq *q) {
    const dq_reader *reader = &dq_outbox_of(q)->reader;
    return reader->reply && reader->at < reader->reply->elements;
}

static void dq_outbox_free_items(delayq *q) {
    dq_reader *reader = &dq_outbox_of(q)->reader;
    if (reader->reply) freeReplyObject(reader->reply);
    reader->reply = NULL;
}

/* What was answered and not read, when the handle is closed. */
static void dq_outbox_free(delayq *q) {
    dq_outbox *b = dq_outbox_of(q);
    dq_outbox_free_items(q);
    dq_conn_free_replies(&b->offers.req.x);
    dq_conn_free_replies(&b->changes.req.x);
    dq_conn_free_replies(&b->ask.x);
}

/* Is a transfer or take answered? What it has brought is handed out later. */
static delayq_status dq_outbox_answered(delayq *q) {
    dq_outbox *b = dq_outbox_of(q);
    dq_req *req = &b->ask;
    delayq_status status;
    int64_t n[DQ_NUMBERS];
    if (req->x.state == DELAYQ_EXCHANGE_NONE || dq_req_step(q, req, 1) > 0)
        return DELAYQ_OK;
    req->x.state = DELAYQ_EXCHANGE_NONE;
    if (!b->taking) return dq_take_end_transfer(q, req);
    status = dq_take_numbers(q, req, n);
    if (status == DELAYQ_OK) {
        status = dq_take_apply(q, req, n);
        dq_outbox_free_items(q);
        b->lease_end_us = q->options.lease_ms > 0
                              ? req->x.sent_us + q->options.lease_ms * 1000
                              : DQ_NEVER;
        if (dq_read_begin(q, req, n[DQ_AT_US], &b->reader) != DELAYQ_OK) {
            dq_outbox_free_items(q);
            status = DELAYQ_ERR_PROTOCOL;
        }
        b->got = dq_outbox_has_items(q)
                     ? b->reader.reply->elements - b->reader.at
                     : 0;
    } else {
        b->lost |= status == DELAYQ_ERR_UNKNOWN;
        dq_sched_on_fault(q);
    }
    return status;
}

/* Hand out what an answer has brought. */
static delayq_status dq_outbox_hand_out(delayq *q, delayq_item *items,
                                        size_t max, size_t *count) {
    dq_outbox *b = dq_outbox_of(q);
    delayq_status status;
    if (!dq_outbox_has_items(q) || dq_sys_now() >= b->lease_end_us)
        dq_outbox_free_items(q); /* handed out; or somebody else's by now */
    status = dq_read_items(q, &b->reader, items, max, count);
    if (status < DELAYQ_OK) dq_outbox_free_items(q);
    return status;
}

/* --- the step --- */

/* When something is to be sent though nothing was heard. */
static int64_t dq_outbox_next(const dq_ring *ring) {
    if (ring->accepted == ring->settled ||
        ring->req.x.state != DELAYQ_EXCHANGE_NONE)
        return DQ_NEVER;
    return ring->retry_us;
}

/* Read what has come, send what waits. Never waits itself. */
static delayq_status dq_outbox_step(delayq *q) {
    dq_outbox *b = dq_outbox_of(q);
    delayq_conn *conn = q->conn;
    delayq_status status, asked;
    int64_t next;
    if (conn->cmd.first) conn->sub_read_us = 0;
    status = dq_take_news(q);
    if (status >= DELAYQ_OK) status = dq_conn_ensure(q);
    asked = dq_outbox_answered(q);
    if (asked < DELAYQ_OK) {
        dq_outbox_note(q, asked, q->err);
        if (status >= DELAYQ_OK) status = asked;
    }
    if (status >= DELAYQ_OK && b->news < DELAYQ_OK) status = b->news;
    b->news = DELAYQ_OK;
    b->sender = dq_ring_step;
    dq_ring_step(q, &b->changes);
    dq_ring_step(q, &b->offers);
    q->send_us = dq_outbox_next(&b->offers);
    next = dq_outbox_next(&b->changes);
    if (next < q->send_us) q->send_us = next;
    if (status < DELAYQ_OK) {
        dq_outbox_note(q, status, q->err);
        return status;
    }
    if (status == DELAYQ_OK) dq_sub_open(q);
    if (b->offers.status < DELAYQ_OK) return b->offers.status;
    return b->changes.status < DELAYQ_OK ? b->changes.status : DELAYQ_OK;
}

/* The step of a tick: the same, and what is due is moved or fetched. */
static delayq_status dq_outbox_tick(delayq *q) {
    dq_outbox *b = dq_outbox_of(q);
    int left = dq_outbox_has_items(q); /* were not taken since the last tick */
    delayq_status status = dq_outbox_step(q);
    if (q->conn->known && q->probed && dq_conn_may_use(q) == DELAYQ_OK &&
        b->ask.x.state == DELAYQ_EXCHANGE_NONE && !dq_outbox_has_items(q)) {
        if ((b->takes && dq_sched_has_ready(q)) ||
            dq_sys_now() >= q->next_poll_us)
            dq_outbox_ask(q, b->takes && !q->foreign);
        else if (b->takes)
            dq_sub_track(q);
    }
    if (b->takes && left && b->want > 1) b->want /= 2;
    b->takes = 0;
    return status;
}

/* Take without waiting: what is there; or ask, and there is nothing yet. */
static delayq_status dq_outbox_take(delayq *q, delayq_item *items, size_t max,
                                    size_t *count) {
    dq_outbox *b = dq_outbox_of(q);
    size_t most = (size_t)q->options.batch;
    delayq_status status;
    b->takes |= 1;
    if (b->ask.x.state != DELAYQ_EXCHANGE_NONE) {
        dq_conn_step(q->conn);
        status = dq_outbox_answered(q);
        if (status < DELAYQ_OK) {
            dq_outbox_note(q, status, q->err);
            b->news = status; /* a tick tells, too */
            return dq_err_passing(status) ? DELAYQ_EMPTY : status;
        }
    }
    status = dq_outbox_hand_out(q, items, max, count);
    if (status != DELAYQ_EMPTY) {
        b->takes |= 2;
        return status;
    }
    if (max > 1) b->max = max < most ? max : most;
    if (b->ask.x.state == DELAYQ_EXCHANGE_NONE && q->conn->known && q->probed &&
        !q->foreign &&
        (dq_sched_has_ready(q) || dq_sys_now() >= q->next_poll_us))
        dq_outbox_ask(q, 1);
    return q->foreign ? dq_err_wire(q) : DELAYQ_EMPTY;
}

/* One turn of a wait. OK if there is something to take, else EMPTY. */
static delayq_status dq_outbox_turn(delayq *q) {
    delayq_status status;
    dq_outbox_of(q)->takes |= 1;
    status = dq_outbox_tick(q);
    if (status < DELAYQ_OK) return status;
    return dq_outbox_has_items(q) ? DELAYQ_OK : DELAYQ_EMPTY;
}

/* --- what the verbs put in --- */

/* An entry of a handle with an outbox; NULL, and *status says why. */
static dq_entry *dq_outbox_add(delayq *q, dq_ring *ring, dq_entry_kind kind,
                               const char *what, size_t key_len, size_t len,
                               delayq_status *status) {
    dq_entry *e = NULL;
    size_t size = sizeof(dq_entry) + key_len + 1 + len;
    if (size > ring->size / 2 || len > ring->size)
        *status = dq_err_set(q->err, DELAYQ_ERR_ARG,
                             "%s: larger than half of its ring, which has %lu "
                             "bytes: enlarge options.outbox_size",
                             what, (unsigned long)ring->size);
    else if (!(e = dq_ring_add(ring, kind, key_len, len)))
        *status =
            dq_err_set(q->err, DELAYQ_ERR_FULL,
                       "%s: the outbox is full; nothing has happened", what);
    if (!e) return NULL;
    e->what = what;
    *status = DELAYQ_OK;
    return e;
}

/* Something was put in: send it now, if nothing is under way. */
static void dq_outbox_kick(delayq *q, dq_ring *ring) {
    const dq_outbox *b = dq_outbox_of(q);
    if (b->sender && ring->req.x.state == DELAYQ_EXCHANGE_NONE)
        b->sender(q, ring);
}

static delayq_status dq_outbox_offer(delayq *q, delayq_message *m,
                                     int want_ticket) {
    dq_ring *ring = &dq_outbox_of(q)->offers;
    size_t key_len = m->key ? strlen(m->key) : 0;
    dq_entry *e =
        dq_outbox_add(q, ring, m->key ? DQ_ENTRY_KEYED : DQ_ENTRY_OFFER,
                      "offer", key_len, m->len, &m->status);
    m->ticket.text[0] = '\0';
    if (!e) return m->status;
    e->delay_ms = m->delay_ms;
    e->due_ms = m->due_ms;
    e->key_ttl_ms = m->key_ttl_ms;
    e->replace = m->replace != 0;
    if (key_len > 0) memcpy(dq_entry_key(e), m->key, key_len + 1);
    if (m->len > 0) memcpy(dq_entry_data(e), m->data, m->len);
    if (q->conn->clock_number == 0 || !dq_ring_date_all(q, ring) ||
        !want_ticket)
        return DELAYQ_OK; /* no clock is known yet */
    if (e->due_ms == 0) e->due_ms = e->planned_ms;
    dq_elem_id_ticket(&m->ticket, e->due_ms, e->id, dq_elem_id_len(q));
    return DELAYQ_OK;
}

/* Was it this handle that offered the item of a ticket? Of an old id nobody
 * can tell: it is treated as if. */
static int dq_outbox_is_own(const delayq *q, const char *ticket) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len, n = dq_elem_ticket_prefix(ticket, key, &due_len);
    return n < 17 ? n == 8 : memcmp(key + 9, q->handle_id, 5) == 0;
}

/* An ack or cancel: remove. nack and so on: change. `due_ms`: out, the due time
 * to be, settled now; NULL: settled when it is sent. */
static delayq_status dq_outbox_change(delayq *q, const char *ticket,
                                      const char *what, dq_entry_kind kind,
                                      int own, int64_t delay_ms, int less,
                                      int64_t *due_ms) {
    dq_outbox *b = dq_outbox_of(q);
    dq_ring *ring =
        own && dq_outbox_is_own(q, ticket) ? &b->offers : &b->changes;
    delayq_status status;
    dq_entry *e;
    if (due_ms && q->conn->long_size == 0)
        return dq_err_set(q->err, DELAYQ_ERR_IO,
                          "%s: not connected yet, and the server's clock is "
                          "not known; nothing has happened",
                          what);
    e = dq_outbox_add(q, ring, kind, what, 0, strlen(ticket) + 1, &status);
    if (!e) return status;
    memcpy(dq_entry_data(e), ticket, strlen(ticket) + 1);
    e->delay_ms = delay_ms < 0 ? 0 : delay_ms;
    e->less = less != 0;
    e->bury = kind == DQ_ENTRY_CHANGE && delay_ms < 0;
    e->mirror =
        kind == DQ_ENTRY_REMOVE && own && q->options.wire != DELAYQ_NATIVE;
    if (due_ms) *due_ms = e->due_ms = dq_due_after(q, dq_sys_now(), delay_ms);
    dq_outbox_kick(q, ring);
    return DELAYQ_OK;
}

/* Is a request under way, which lies in the caller's memory? */
static int dq_outbox_is_asking(const delayq *q) {
    const dq_outbox *b = dq_outbox_of(q);
    return b && (b->offers.req.x.state == DELAYQ_EXCHANGE_SENT ||
                 b->changes.req.x.state == DELAYQ_EXCHANGE_SENT ||
                 b->ask.x.state == DELAYQ_EXCHANGE_SENT);
}

/* Lay out the caller's memory. NULL, or what is wrong with it. */
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
    b->offers.limit = b->changes.limit = DQ_RING_ENTRIES;
    b->want = 1;
    q->outbox = b;
    q->own.names = b->names;
    q->send_us = DQ_NEVER;
    return NULL;
}

/* The same without waiting, and with: until something comes, the timeout is
 * over, or delayq_wake was called. */
static delayq_status dq_outbox_take_within(delayq *q, delayq_item *items,
                                           size_t max, size_t *count,
                                           int64_t timeout_ms) {
    int64_t deadline = timeout_ms != 0 ? dq_wait_deadline(timeout_ms) : 0;
    delayq_status status;
    dq_outbox_of(q)->lost = 0;
    for (;;) {
        if (timeout_ms != 0 && dq_wait_consume_wake(q)) return DELAYQ_WOKEN;
        status = dq_outbox_take(q, items, max, count);
        if (status != DELAYQ_EMPTY || timeout_ms == 0) break;
        if (dq_sys_now() >= deadline) return status;
        status = dq_outbox_tick(q);
        if (status < DELAYQ_OK && !dq_err_passing(status)) break;
        if (!dq_outbox_has_items(q)) dq_wait_sleep(&q, 1, deadline, 1);
    }
    return dq_outbox_of(q)->lost ? dq_err_unanswered(q, "take", status)
                                 : status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Verbs
 * >>verbs   the functions of the API
 *
 * Own the checks of what callers hand in, the handle's counters, and what a
 * reply means to the caller.
 *---------------------------------------------------------------------------*/

/* Every verb that may ask the server begins here. wrong: NULL, or what is wrong
 * with its arguments. */
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
    if (owner->pid != dq_sys_pid())
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
    if ((unsigned)o->wire > DELAYQ_REDISSON_OLD)
        return "options.wire: none of the three";
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
    if (o->reconnect_max_ms == 0) o->reconnect_max_ms = 5000;
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
    if (ms < 1 || ms > 20 || seq < 1 || seq > 20 || after[ms + 1 + seq])
        return "options.broadcast_after: the ticket text of an item";
    memcpy(q->cursor, after, ms + seq + 2);
    return NULL;
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
    q->own.owner = q;
    q->conn = &q->own;
    wrong = dq_check_options(&q->options);
    if (!wrong) wrong = dq_check_cursor(q);
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
        q->err[0] = '\0'; /* a tick tells what goes wrong */
        return DELAYQ_OK;
    }
    deadline = dq_wait_limit(q);
    limit = dq_sys_now() + q->options.connect_timeout_ms * 1000LL;
    if (limit < deadline) deadline = limit; /* where io_timeout_ms is longer */
    status = dq_wait_ensure(q, deadline);
    if (status == DELAYQ_OK && q->foreign) status = dq_err_wire(q);
    if (status == DELAYQ_ERR_ARG) delayq_close(q);
    return status;
}

DELAYQ_API void delayq_close(delayq *q) {
    delayq_conn *conn;
    delayq **at, *h;
    if (!q || q->open != DQ_OPEN) return;
    dq_free_items(q);
    if (q->outbox) dq_outbox_free(q);
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
        if (q->setup.state == DELAYQ_EXCHANGE_SENT ||
            dq_outbox_is_asking(q)) /* its memory ends */
            dq_conn_close(conn, &conn->cmd,
                          dq_err_set(conn->err, DELAYQ_ERR_IO,
                                     "a handle was closed that had asked"));
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
    dq_conn_free_replies(&q->setup);
    dq_tls_end(conn);
    dq_sys_close_pipe(conn->pipe);
}

/* --- offers --- */

#define DQ_OFFER_MAX 128
#define DQ_OFFER_BYTES (256 * 1024)

/* A message that may have been stored stays so until the server answers. */
static void dq_message_set_status(delayq_message *m, delayq_status status) {
    if (status == DELAYQ_OK || m->status != DELAYQ_ERR_UNKNOWN)
        m->status = status;
}

/* It was sent again, and may have been delivered meanwhile: the call that has
 * sent it first doesn't know; whoever offers it again is told that nobody
 * does, which ends it. */
static delayq_status dq_message_set_late(delayq *q, delayq_message *m) {
    m->ticket.text[0] = '\0';
    if (m->status == DELAYQ_ERR_UNKNOWN) return m->status = DELAYQ_GONE;
    return m->status = dq_err_set(q->err, DELAYQ_ERR_UNKNOWN,
                                  "offer: sent twice, and due before it could "
                                  "be told whether the first arrived");
}

/* What became of messages without keys, which went in one script. Of those
 * that were sent again, pairs say more: number, and due time or -1. */
static delayq_status dq_apply_offer(delayq *q, dq_req *call) {
    delayq_message *m = call->messages;
    size_t i, at = 1, id_len = dq_elem_id_len(q);
    int64_t us;
    delayq_status status = dq_req_numbers(q, call, &us, 1), first = status;
    for (i = 0; status != DELAYQ_OK && i < call->max; i++)
        dq_message_set_status(m + i, status);
    for (i = 0; status == DELAYQ_OK && i < call->max; i++, m++) {
        int64_t due =
            m->due_ms > 0 ? m->due_ms : (us + 999) / 1000 + m->delay_ms;
        if (at + 1 < call->reply->elements) {
            redisReply *const *r = call->reply->element + at;
            if (r[0]->type == REDIS_REPLY_INTEGER &&
                r[1]->type == REDIS_REPLY_INTEGER &&
                r[0]->integer == (int64_t)i + 1) {
                due = r[1]->integer;
                at += 2;
            }
        }
        if (due < 0) {
            delayq_status late = dq_message_set_late(q, m);
            if (late < DELAYQ_OK) first = late;
            continue;
        }
        m->status = DELAYQ_OK;
        if (due > DQ_MAX_DUE) due = DQ_MAX_DUE; /* a server that lies */
        dq_elem_id_ticket(&m->ticket, due, m->id, id_len);
        dq_sched_on_own_item(q, due, call->x.read_us);
        q->counts.offered++;
    }
    if (status == DELAYQ_OK && at != call->reply->elements) {
        for (i = 0; i < call->max; i++)
            call->messages[i].status = DELAYQ_ERR_PROTOCOL;
        return dq_err_bad_reply(q, "offer");
    }
    return first;
}

/* What became of a message that has a key. */
static delayq_status dq_apply_keyed(delayq *q, dq_req *call) {
    delayq_message *m = call->messages;
    const redisReply *ticket;
    int64_t n[3];
    delayq_status status = dq_req_numbers(q, call, n, 3);
    if (status == DELAYQ_OK && n[1] == 2) return dq_message_set_late(q, m);
    dq_message_set_status(m, status);
    if (status != DELAYQ_OK) return status;
    ticket = call->reply->elements == 4 ? call->reply->element[3] : NULL;
    if (!ticket || ticket->type != REDIS_REPLY_STRING ||
        ticket->len >= sizeof m->ticket.text)
        return m->status = dq_err_bad_reply(q, "offer");
    memcpy(m->ticket.text, ticket->str, ticket->len + 1);
    if (n[1] != 0) return m->status = DELAYQ_DUPLICATE;
    q->counts.offered++;
    dq_sched_on_own_item(q, n[2], call->x.read_us);
    return DELAYQ_OK;
}

/* What is different of messages with a key. delayq_offer, which has none, does
 * not name that kind, so a program that calls no other does not link it. */
typedef struct dq_offer_kind {
    const dq_script *script;
    void (*writer)(dq_resp_writer *o, delayq *q, const dq_req *call);
    delayq_status (*apply)(delayq *q, dq_req *call);
} dq_offer_kind;
static const dq_offer_kind dq_offer_plain = {&dq_script_offer, dq_write_offer,
                                             dq_apply_offer};
static const dq_offer_kind dq_offer_keyed = {&dq_script_offer_keyed,
                                             dq_write_keyed, dq_apply_keyed};

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

/* Make requests of what goes in one go, and leave out what is bad: messages
 * without a key that stand side by side are one request. A message has a new
 * id, unless it keeps the one of a sending whose outcome is unknown. Returns
 * how many messages were looked at. */
static size_t dq_offer_plan(delayq *q, delayq_message *messages, size_t count,
                            const dq_offer_kind *keyed, dq_req *reqs, size_t *n,
                            int *bad) {
    int64_t now = dq_sys_now();
    int64_t now_ms =
        (now + q->conn->clock_offset_us - dq_sched_drift_us(q->conn, now)) /
        1000; /* at least */
    size_t at, bytes = 0, sum = 0;
    dq_req *req = NULL;
    *n = 0;
    *bad = 0;
    for (at = 0; at < count; at++) {
        delayq_message *m = &messages[at];
        const dq_offer_kind *kind;
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
        if (m->status != DELAYQ_ERR_UNKNOWN || m->first_due_ms <= 0) {
            m->status = DELAYQ_OK;
            m->first_due_ms = now_ms + m->delay_ms;
            m->first_due_us = now + m->delay_ms * 1000;
            if (m->due_ms > 0) {
                m->first_due_ms = m->due_ms;
                m->first_due_us = dq_sched_local_us(q, m->due_ms, now);
            }
            m->ticket.text[0] = '\0';
            dq_elem_next_id(q, m->id);
        }
        if (!joins) {
            req = &reqs[(*n)++];
            kind = m->key ? keyed : &dq_offer_plain;
            dq_req_begin(req, kind->script, "offer", kind->writer);
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

/* Into the outbox, as far as there is room. */
static delayq_status dq_outbox_offer_many(delayq *q, delayq_message *m,
                                          size_t count, int want_tickets) {
    int64_t now_ms = (dq_sys_now() + q->conn->clock_offset_us) / 1000;
    delayq_status first = DELAYQ_OK;
    size_t i;
    for (i = 0; i < count; i++) {
        const char *wrong = dq_offer_check(&m[i], now_ms);
        if (first == DELAYQ_ERR_FULL)
            m[i].status = first; /* in order: nothing overtakes */
        else if (wrong)
            m[i].status = dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
        else
            dq_outbox_offer(q, &m[i], want_tickets);
        if (first == DELAYQ_OK || m[i].status == DELAYQ_ERR_FULL)
            first = m[i].status;
    }
    dq_outbox_kick(q, &dq_outbox_of(q)->offers);
    return first;
}

static delayq_status dq_offer_all(delayq *q, delayq_message *messages,
                                  size_t count, const dq_offer_kind *keyed) {
    delayq_status first =
        dq_check(q, messages || count == 0 ? NULL : "messages is NULL");
    delayq_status rest; /* of those that are not sent */
    dq_req reqs[DQ_PIPELINE_MAX];
    int64_t deadline = 0;
    size_t at = 0, n, i;
    int bad;
    if (first == DELAYQ_OK && q->outbox)
        return dq_outbox_offer_many(q, messages, count, 1);
    if (first == DELAYQ_OK) {
        deadline = dq_wait_limit(q);
        first = dq_wait_ensure(q, deadline);
    }
    rest = first;
    /* As many in one go as fit, each go with its own deadline. */
    while (at < count && rest == DELAYQ_OK) {
        at +=
            dq_offer_plan(q, messages + at, count - at, keyed, reqs, &n, &bad);
        if (n > 0) dq_wait_settle(q, reqs, n, deadline);
        for (i = 0; i < n; i++) {
            const dq_offer_kind *kind =
                reqs[i].messages->key ? keyed : &dq_offer_plain;
            delayq_status status = kind->apply(q, &reqs[i]);
            if (reqs[i].reply) freeReplyObject(reqs[i].reply);
            if (status >= DELAYQ_OK) continue;
            if (first == DELAYQ_OK) first = status;
            if (status != DELAYQ_ERR_UNKNOWN || !q->conn->cmd.c) rest = status;
        }
        if (bad && first == DELAYQ_OK) first = DELAYQ_ERR_ARG;
        if (rest == DELAYQ_ERR_UNKNOWN || rest == DELAYQ_ERR_PROTOCOL)
            rest = DELAYQ_ERR_IO; /* the others were not sent */
        if (at < count) deadline = dq_wait_limit(q);
    }
    for (; messages && at < count; at++)
        dq_message_set_status(&messages[at], rest);
    return first;
}

DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count) {
    return dq_offer_all(q, messages, count, &dq_offer_keyed);
}

DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message) {
    delayq_status status = delayq_offer_many(q, message, 1);
    return status == DELAYQ_OK ? message->status : status;
}

DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms) {
    delayq_status status;
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = data;
    m.len = len;
    m.delay_ms = delay_ms;
    if (!q || !q->outbox) return dq_offer_all(q, &m, 1, NULL);
    status = dq_check(q, NULL);
    return status == DELAYQ_OK ? dq_outbox_offer_many(q, &m, 1, 0) : status;
}

/* --- ticks and takes --- */

/* Would a tick, or a take that does not wait, do no more than look at the
 * clock? Nothing is due, what comes next will be heard of, and the connections
 * were read within this millisecond. Asked before dq_check, whose look at the
 * process costs more than all of this: no socket is touched. */
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
    int idle = dq_is_idle(q);
    delayq_status status = idle ? DELAYQ_OK : dq_check(q, NULL);
    int64_t now, left, nap;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    /* A program whose last take was empty and did not wait will now sleep until
     * wait_ms is over or a descriptor is readable: ask to be told of a push, as
     * a take that waits does. */
    if (q->outbox)
        status = dq_outbox_tick(q);
    else if (!idle)
        status = dq_take_tick(q, dq_wait_limit(q), q->empty_takes);
    if (!wait_ms) return status;
    now = dq_sys_now();
    left = dq_sched_next(q, 1) - now;
    nap = dq_conn_nap_us(q->conn, now);
    left = ((left < nap ? left : nap) + 999) / 1000;
    if (q->empty_takes && dq_sched_has_ready(q))
        left = 0; /* it takes: there is something */
    if (q->outbox && (q->conn->cmd.more || dq_outbox_has_items(q))) left = 0;
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
    if (q->waiter.role < DELAYQ_WAITER_LEADER) return;
    memset(&t, 0, sizeof t);
    memcpy(err, q->err, sizeof err);
    dq_free_items(q);
    if (q->conn->cmd.c) dq_take_once(q, &t);
    dq_free_items(q);
    dq_waiters_on_leave(q);
    dq_sub_follow_role(q);
    memcpy(q->err, err, sizeof err);
}

/* Take until something comes, the timeout is over, or wake was called. */
static delayq_status dq_take(delayq *q, dq_take_state *t, int64_t timeout_ms) {
    int ack = t->ack.ticket.text[0] != '\0';
    int64_t deadline = timeout_ms != 0 ? dq_wait_deadline(timeout_ms) : 0;
    delayq_status status;
    dq_free_items(q);
    dq_sched_on_take(q);
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
        if (timeout_ms == 0 || dq_sys_now() >= deadline) break;
        dq_free_items(q);
        if (status != DELAYQ_EMPTY) dq_wait_ride_out(q, status);
        if (ack &&
            dq_wait_consume_wake(q)) { /* not settled: the fault counts */
            if (!t->ack.ticket.text[0]) status = DELAYQ_WOKEN;
            break;
        }
        if (q->ready == 0 || status != DELAYQ_EMPTY)
            dq_wait_sleep(&q, 1, deadline, 1);
    }
    /* What an answer that was lost had handed out is not forgotten. */
    if (t->lost) status = dq_err_unanswered(q, "take", status);
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
    dq_take_state t;
    if (count) *count = 0;
    if (!wrong && timeout_ms == 0 && dq_is_idle(q)) {
        dq_free_items(q);
        q->empty_takes = 1;
        return DELAYQ_EMPTY;
    }
    status = dq_check(q, wrong);
    if (status != DELAYQ_OK) return status;
    if (q->outbox)
        return dq_outbox_take_within(q, items, max, count, timeout_ms);
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

/* Remove elements by their tickets: one, a cancel; or those of items, acks.
 * What became of each item stands in its `acked`. Returns the first that is not
 * DELAYQ_OK. */
static delayq_status dq_remove(delayq *q, const char *what, const char *ticket,
                               delayq_item *items, size_t count) {
    delayq_status status, first = DELAYQ_OK;
    int64_t us;
    size_t i;
    dq_req call;
    dq_req_begin(&call, &dq_script_remove, what, dq_write_remove);
    call.idempotent = 1;
    call.ticket = ticket;
    call.mirror = ticket && q->options.wire != DELAYQ_NATIVE;
    call.items = items;
    call.max = count;
    status = dq_wait_run(q, &call, dq_wait_limit(q), &us, 1);
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

DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket) {
    delayq_status status =
        dq_check(q, dq_wrong_ticket(ticket ? ticket->text : NULL));
    if (status != DELAYQ_OK) return status;
    if (q->outbox)
        return dq_outbox_change(q, ticket->text, "cancel", DQ_ENTRY_REMOVE, 1,
                                0, 0, NULL);
    return dq_remove(q, "cancel", ticket->text, NULL, 1);
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
    for (i = 0; q && q->outbox && i < count && status == DELAYQ_OK; i++)
        first = status = items[i].acked = dq_outbox_change(
            q, items[i].ticket.text, "ack", DQ_ENTRY_REMOVE, 0, 0, 0, NULL);
    for (; i < count && status == DELAYQ_OK; i += n) {
        n = count - i < DQ_ACK_MAX ? count - i : DQ_ACK_MAX;
        status = dq_remove(q, "ack", NULL, items + i, n);
        if (first == DELAYQ_OK) first = status;
        if (status >= DELAYQ_OK ||
            (status == DELAYQ_ERR_UNKNOWN && q->conn->cmd.c))
            status = DELAYQ_OK; /* go on */
        else if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL)
            status = DELAYQ_ERR_IO; /* the rest was not sent */
    }
    for (; items && i < count; i++) items[i].acked = status;
    return first;
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
    dq_take_state t;
    if (!wrong && item->ticket.text[0])
        wrong = q && q->options.broadcast ? "a broadcast has nothing to ack"
                                          : dq_wrong_ticket(item->ticket.text);
    status = dq_check(q, wrong);
    if (status != DELAYQ_OK) {
        if (item) item->acked = status;
        return status;
    }
    if (q->outbox) {
        size_t count;
        if (item->ticket.text[0]) status = delayq_ack(q, item);
        if (status != DELAYQ_OK) return item->acked = status;
        memset(item, 0, sizeof *item);
        return dq_outbox_take_within(q, item, 1, &count, timeout_ms);
    }
    memset(&t, 0, sizeof t);
    t.ack = *item;
    t.ack.data = NULL; /* it ends here */
    t.ack.len = 0;
    t.items = item;
    t.max = 1;
    memset(item, 0, sizeof *item);
    status = dq_take(q, &t, timeout_ms);
    item->acked = t.acked;
    if (t.ack.ticket.text[0]) { /* not settled: still in hand */
        *item = t.ack;
        item->acked = t.acked != DELAYQ_OK ? t.acked : status; /* not sent */
    }
    return status;
}

/* Nack, extend, reschedule; bury if delay_ms is negative. The new due time is
 * absolute, so that sending it twice does no harm. *stands: as it is now. */
static delayq_status dq_change(delayq *q, const char *ticket, int64_t delay_ms,
                               int less, const char *what, int64_t *stands) {
    int64_t deadline = dq_wait_limit(q);
    delayq_status status;
    int64_t n[3];
    dq_req call;
    if (q->outbox)
        return dq_outbox_change(q, ticket, what, DQ_ENTRY_CHANGE,
                                strcmp(what, "reschedule") == 0, delay_ms, less,
                                stands);
    status = dq_wait_ensure(q, deadline); /* for its clock */
    if (status != DELAYQ_OK) return status;
    dq_req_begin(&call, &dq_script_change, what, dq_write_change);
    call.idempotent = 1;
    call.ticket = ticket;
    call.bury = delay_ms < 0;
    call.from = call.bury ? 0 : delay_ms;
    call.due_ms = dq_due_after(q, dq_sys_now(), call.from);
    call.less = less;
    status = dq_wait_run(q, &call, deadline, n, 3);
    if (status != DELAYQ_OK) return status;
    freeReplyObject(call.reply);
    if (n[1] != 1) return dq_ticket_status(q, &call, 0);
    if (stands) *stands = n[2];
    if (!call.bury) dq_sched_on_own_item(q, n[2], call.x.read_us);
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
    q->counts.nacked += status == DELAYQ_OK && !q->outbox;
    return status;
}

DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item) {
    const char *ticket = item ? item->ticket.text : NULL;
    delayq_status status = dq_check(q, dq_wrong_ticket(ticket));
    if (status == DELAYQ_OK) status = dq_change(q, ticket, -1, 0, "bury", NULL);
    if (status == DELAYQ_OK && !q->outbox) q->counts.died++;
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
    o->keys = o->args;
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
    int64_t n[2];
    dq_req call;
    if (count) *count = 0;
    if (status != DELAYQ_OK) return status;
    dq_free_items(q);
    dq_req_begin(&call, &dq_script_peek, "peek", dq_write_peek);
    call.read_only = 1;
    call.max = max < 100000 ? max : 100000;
    call.ticket = ticket;
    status = dq_wait_run(q, &call, dq_wait_limit(q), n, 2);
    if (status != DELAYQ_OK) return status;
    return dq_read_all(q, &call, items, count, n[0]);
}

#define DQ_COUNTS 12 /* numbers that a count's reply begins with */

static void dq_write_count(dq_resp_writer *o, delayq *q, const dq_req *call) {
    size_t i;
    dq_write_three_keys(o, q);
    dq_resp_key(o, q, DQ_DEAD, "");
    o->keys = o->args;
    dq_resp_text(o, dq_wire_letter(q));
    dq_resp_key(o, q, DQ_COUNTERS, "");
    for (i = 0; i < call->max; i++) dq_resp_int(o, call->times[i]);
}

DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts) {
    delayq_status status = dq_check(q, counts ? NULL : "counts is NULL");
    int64_t n[DQ_COUNTS];
    dq_req call;
    if (status != DELAYQ_OK) return status;
    *counts = q->counts;
    dq_req_begin(&call, &dq_script_count, "count", dq_write_count);
    call.read_only = 1;
    status = dq_wait_ask(q, &call, n, DQ_COUNTS);
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
    int64_t head[DQ_COUNTS];
    size_t i;
    dq_req call;
    if (status != DELAYQ_OK) return status;
    dq_req_begin(&call, &dq_script_count, "count", dq_write_count);
    call.read_only = 1;
    call.times = due_ms;
    call.max = n;
    status = dq_wait_run(q, &call, dq_wait_limit(q), head, DQ_COUNTS);
    if (status != DELAYQ_OK) return status;
    for (i = 0; i < n && call.reply->elements == n + DQ_COUNTS; i++) {
        const redisReply *r = call.reply->element[i + DQ_COUNTS];
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
    if (status == DELAYQ_OK) status = dq_wait_ask(q, call, n, 2);
    if (removed) *removed = status == DELAYQ_OK ? n[1] : 0;
    return status;
}

static void dq_write_clear(dq_resp_writer *o, delayq *q, const dq_req *call) {
    (void)call;
    dq_write_three_keys(o, q);
    o->keys = o->args;
    dq_resp_text(o, dq_wire_letter(q));
}

DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed) {
    delayq_status status;
    dq_req call;
    dq_req_begin(&call, &dq_script_clear, "clear", dq_write_clear);
    status = dq_run_removal(q, &call, NULL, removed);
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, 0);
    return status;
}

static void dq_write_dead(dq_resp_writer *o, delayq *q, const dq_req *call) {
    dq_resp_key(o, q, DQ_DEAD, "");
    if (strcmp(call->word, "redrive") == 0)
        dq_resp_arg(o, q->name, q->name_len, 0);
    o->keys = o->args;
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
    status = dq_wait_run(q, &call, dq_wait_limit(q), n, 2);
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
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, n);
    if (count) *count = (size_t)n;
    return status;
}

DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed) {
    dq_req call;
    dq_begin_dead(&call, "clear", 1);
    return dq_run_removal(q, &call, NULL, removed);
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
            status = queues[i]->outbox ? dq_outbox_turn(queues[i])
                                       : dq_take_turn(queues[i]);
            if (status < 0 && !dq_err_passing(status)) return status;
            if (status < 0 && !paused) dq_wait_ride_out(queues[i], status);
            if (status == DELAYQ_OK || all == DELAYQ_EMPTY) all = status;
        }
        if (all == DELAYQ_OK || timeout_ms == 0 || dq_sys_now() >= deadline)
            return all;
        dq_wait_sleep(queues, count, deadline, 1);
    }
}

DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms) {
    delayq_status status = dq_check(q, dq_wrong_timeout(timeout_ms));
    int64_t deadline = dq_wait_deadline(timeout_ms);
    dq_outbox *b;
    if (status == DELAYQ_OK && !q->outbox) status = dq_check(q, "no outbox");
    if (status != DELAYQ_OK) return status;
    b = dq_outbox_of(q);
    for (;;) {
        int empty;
        if (timeout_ms != 0 && dq_wait_consume_wake(q)) return DELAYQ_WOKEN;
        dq_outbox_step(q);
        empty = b->offers.accepted == b->offers.settled &&
                b->changes.accepted == b->changes.settled;
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
        dq_wait_sleep(&q, 1, deadline, 0);
    }
}

DELAYQ_API delayq_status delayq_outbox(const delayq *q,
                                       delayq_outbox_state *state) {
    const dq_outbox *b;
    if (!q || !state || q->open != DQ_OPEN || !q->outbox) return DELAYQ_ERR_ARG;
    b = dq_outbox_of(q);
    state->offers_accepted = b->offers.accepted;
    state->offers_settled = b->offers.settled;
    state->changes_accepted = b->changes.accepted;
    state->changes_settled = b->changes.settled;
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
