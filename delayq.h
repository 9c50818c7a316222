/*
 * delayq.h -- a distributed delay queue for C programs, on Redis or Valkey.
 *
 * Version 0.3.0. One file, C99 (and C++11), needs hiredis. Licence: MIT, at
 * the end.
 *
 * Add one file, delayq_impl.c, with these two lines and nothing else. A system
 * header above them might hide declarations that the library needs.
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #include "delayq.h"
 *
 * All other files just #include "delayq.h". If the program is a single file, it
 * may begin with these two lines, but its own feature macros (_GNU_SOURCE) come
 * before them. Link with -lhiredis; on Windows also with ws2_32 and bcrypt.
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
 * The implementation has its own list, after >>functions.
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
 *         options.log = tell;        (events; faults that a take survives)
 *         if (delayq_open(&q, &options) == DELAYQ_OK &&
 *             delayq_offer(&q, "hello", 5, 5000) == DELAYQ_OK)  (due in 5 s)
 *             while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
 *                 printf("%.*s\n", (int)item.len, (const char *)item.data);
 *         fprintf(stderr, "%s\n", delayq_errmsg(&q));  (why a call has failed)
 *         delayq_close(&q);
 *         return 1;
 *     }
 *
 * The library has no thread and no event loop. A take moves the due items
 * itself, so a consumer needs no other program. A program with a loop of its
 * own calls delayq_take(&q, &item, 0) in each turn. While no item is due, most
 * of these calls send no request. A program that only moves items, for others
 * to take, calls delayq_tick(&q, &wait_ms), and repeats this after wait_ms.
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
 *                        nack, or the   |    up, or it is too late, or it
 *                        lease runs out v    can't be decoded
 *                                     dead ---redrive---> ready
 *
 * Pending items are kept in a sorted set, ordered by due time, and ready items
 * in a list. A tick runs the transfer, which moves due items from the set to
 * the list. If the list is empty, a take gets due items straight from the set.
 * Otherwise it first runs the transfer.
 *
 * A take with a lease puts the item back into the set, with its attempt count
 * raised by one. The item is due again at the end of the lease. An ack removes
 * it from the set; a nack or an extend changes its due time. So if a consumer
 * crashes, its items fall due again by themselves.
 *
 * >>promises -- the guarantees, and their limits
 *
 *                    lease_ms = 0                lease_ms > 0
 *     delivery       at most once: a take        at least once: handlers
 *                    removes the item            must be idempotent
 *     crash          the items that a consumer   delivered again after the
 *                    had taken are gone          lease
 *     a lost reply   the items in it are gone    delivered again after the
 *     to a take                                  lease
 *     order          by due time, then offer     the same; redelivered items
 *                                                alternate with the others
 *     early          never by the server's clock. Measured from the offer, an
 *                    item is early only if somebody sets this clock forward,
 *                    or if a failover leads to a server whose clock is ahead
 *
 * A reply is lost if the connection ends, or if the server stalls for longer
 * than io_timeout_ms. A waiting take then goes on, and may return a later item.
 *
 * Each transfer and each take is one script. If the server refuses it (a
 * replica, a command that the ACL forbids, a key of another type), the items
 * stay where they are. If it is refused after it has moved some items, the call
 * succeeds with these items, and the next call returns the error. A full server
 * still accepts ticks, takes, acks, nacks and extends.
 *
 * Except in a broadcast, items are lost only in these cases:
 *
 *     without a lease, a consumer crashes, the reply to a take is lost, or a
 *     handle with an outbox is closed while it keeps fetched items
 *     an outbox drops an offer, or has unsent offers at a power cut (see
 *     >>outbox) or, if it is not kept, when the program crashes or closes it
 *     Redis loses data: in a crash (see its persistence settings), in a
 *     failover (its replication is asynchronous), or by an allkeys-* policy
 *
 * If the server restarts from an older state, items that were taken or acked
 * since then are delivered again, even without a lease.
 *
 * If Redisson, too, moves items of the queue, three guarantees are weaker. If
 * Java clocks are ahead, the one furthest ahead decides when a lease ends. If
 * Java moves an item, its count of attempts is lost (the next `attempt` is 0,
 * or 1 with DELAYQ_NATIVE), so max_attempts can't be used with a Redisson wire.
 * If a lease has ended, Java may get the item, without a lease.
 *
 * With options.max_late_ms a take hands out no item that is late by more than
 * this time. Such an item goes to the dead letters with the reason "late", and
 * delayq_counts.died counts it. A redrive makes it due at once. The server
 * measures the lateness when it hands the item out, so the lateness excludes
 * the time until the reply comes, and the time for which an outbox keeps a
 * fetched item. If an item is delivered again, its lateness counts from the end
 * of its lease, or of its nack's delay. Only takes find late items. If nobody
 * takes from the queue, its late items stay pending.
 *
 * Items in the ready list have no due time. They are never late, and takes get
 * them alternately with the other items. They were pushed by other programs, or
 * moved there by Redisson, a handle without max_late_ms, or an older version.
 * So set the option on all handles of the queue; then no tick moves an item. If
 * somebody sets the server's clock forward, even leased items may become late.
 *
 * >>keys -- the data in Redis
 *
 * For a queue named N, T is N itself if N contains a '{', else {N}:
 *
 *     N                               list   ready payloads, oldest first
 *     redisson_delay_queue_timeout:T  zset   pending and leased elements, by
 *                                            due time in ms
 *     redisson_delay_queue:T          list   Redisson's mirror: the pending
 *                                            elements in the order of their
 *                                            offers; only with a Redisson wire
 *     redisson_delay_queue_channel:T  channel  reports the earliest due time
 *     delayq_retry:T                  list   elements ready again, with a count
 *                                            of attempts (DELAYQ_NATIVE only)
 *     delayq_dead:T                   list   "reason time\n" or "reason time
 *                                            why\n", then the element
 *     delayq_once:T:LEN:KEY           string with a TTL: the ticket of the
 *                                            item offered under KEY, of LEN
 *                                            bytes. A server with a volatile-*
 *                                            policy may evict the key
 *     delayq_sent:T:HANDLE            string with a TTL of a day: the highest
 *                                            stored offer number of an outbox.
 *                                            If it is evicted, an offer may be
 *                                            stored twice after a lost reply
 *     delayq_waiters:T                zset   handles that wait in a take; also
 *                                            a channel that wakes all of them
 *     delayq_turn:T:HANDLE            channel  tells this handle to lead
 *     delayq_stream:T                 stream of a broadcast's items, trimmed
 *     delayq_paused:T                 string: the time in ms since which the
 *                                     queue has been paused
 *     delayq_counters:T               hash   totals of handles with
 *                                            options.counters
 *
 * The first four are the keys and the channel of Redisson's RDelayedQueue over
 * an RBlockingQueue, in the same format, so Java programs can offer to and take
 * from the same queue. options.wire names the version of Redisson. All handles
 * of a queue use the same wire. If Redisson finds an element that it can't
 * read, its transfers stop for good. So a handle that finds an element of
 * another version of Redisson returns DELAYQ_ERR_WIRE. So does a handle without
 * a Redisson wire if the queue has a mirror. It would not remove taken items
 * from the mirror, and Redisson would deliver them again. A handle checks about
 * 16 elements of the set when it is opened, and at an offer if the last check
 * is over 10 s old. Takes and ticks check the elements that they move. Ticks,
 * and takes with a wire other than DELAYQ_NATIVE, also check the next one if it
 * is due within max_wait_ms. A handle may overlook others, and can't notice a
 * Redisson program that has not offered yet. If a queue contains elements of
 * two formats, let one handle with DELAYQ_REDISSON_OLD tick until the wrong
 * ones are gone. Its ticks turn elements of every format into ready payloads.
 *
 * Handles with options.counters count their work in the scripts that do it, so
 * a request that is sent again after a lost reply counts once. delayq_count
 * returns the totals. They don't include the work of Redisson and of handles
 * without the option, and some of the work while the queue's slot moves. A
 * redrive and a clear change no counter. Each counter that a call changes
 * costs the server about 1.5 us, and 85 bytes in the append-only file. The
 * counters stay until somebody deletes their key. Nothing is counted on servers
 * that refuse undeclared keys in scripts (Dragonfly, ElastiCache Serverless).
 *
 * The data in Redis outlives the programs. Versions of delayq with the same
 * first number can work on one queue at the same time. Each moves, takes and
 * acks the items of the others, and accepts their tickets and keys.
 * Programs can be upgraded one by one, and rolled back, while the queue is in
 * use. New versions add their own keys, or bits that older ones ignore. A
 * change that older versions can't handle raises the first number, and the new
 * version refuses their queues with an explanatory text.
 *
 * >>time -- clocks, waiting, order
 *
 * Only the server's clock counts, so a device without a clock, or with a wrong
 * one, can offer and take. Due times are whole milliseconds since the epoch,
 * rounded up. If somebody sets the server's clock forward, items become due
 * earlier. A handle notices this at its next poll, after max_wait_ms at most.
 *
 * The handle waits in poll(), so no command blocks on the server. The system
 * may end a sleep late, so the handle ends its sleep 50 us (Windows: 600)
 * early, and busy-waits for the rest. Without an outbox, except on Windows, a
 * call also busy-waits for the first 100 us after a request, if there are two
 * processors and replies usually come in that time.
 *
 * A handle that waits or ticks opens a second socket, the subscriber. On it the
 * server reports a new earliest due time, and payloads that anybody pushes into
 * N. The handle also polls, that is, sends a take or transfer, at least every
 * max_wait_ms. Many hosted servers refuse to report pushes. The log reports the
 * refusal once, and the handle asks again every 60 s. Even then, items offered
 * through delayq are on time, and for payloads that others push into N the
 * handle polls more often: see options.poll_ms.
 *
 * Handles that wait in a take for 10 s or longer on one queue share the work
 * (not in a broadcast). One of them, the leader, polls as soon as an item is
 * due or pushed. About 16 others, the standbys, poll if the leader has not done
 * so 0.3 to 0.6 s later. The rest, the sleepers, are woken if several items are
 * due at once, if no standby is left to replace the leader, or if the leader
 * has failed. So if a hundred handles wait, only a few wake for an item. A
 * handle that waits alone sends no additional request.
 *
 * If waiting programs die or freeze, one item is delayed, once, by 1 s at most.
 * The exception: if more than 16 handles wait, and the leader and all standbys
 * fail at once, a sleeper finds the item at its next poll, within max_wait_ms.
 *
 * The items that one handle offers for the same millisecond come in the order
 * of the offers. So do those of two handles if one offer begins after the other
 * has returned. The exception: two such offers may swap places if the time
 * between them is shorter than the variation of a handle's round trips, or than
 * the drift of its clock since its last request.
 *
 * If idle Redisson consumers wait on the queue, the server serves their BLPOP
 * first. There is no fairness between them and the consumers of delayq.
 *
 * >>servers -- one server, Sentinel, a cluster, TLS
 *
 * If the URL names several hosts, the handle tries them in turn, each for its
 * share of connect_timeout_ms, and skips replicas and dead nodes. With
 * redis+sentinel:// it asks the sentinels for the master at each connect.
 *
 * On a cluster the URL needs only one host, since the handle follows
 * redirections. All keys of a queue must be in one slot, so a name must contain
 * no '{' or '}', or one complete, non-empty {tag}; other names are refused on a
 * cluster. While the queue's slot moves to another node, the cluster refuses
 * requests (TRYAGAIN, ASK). The handle repeats them within the call's time
 * limit. If the slot has not arrived by then, calls return DELAYQ_ERR_AGAIN,
 * takes that wait go on waiting, and an outbox keeps its ops.
 *
 * Since a queue is in one slot, one node does all its work. To spread a busy
 * queue, open several, "jobs{0}", "jobs{1}" ..., offer to them in turn, and
 * wait for all of them with delayq_wait.
 *
 * With rediss:// the server's certificate must be valid and name the host.
 *
 * >>threads -- blocking, threads, signals, fork
 *
 * A program may open any number of handles. Only the process that opened a
 * handle may use it, and only one thread at a time. The exception is
 * delayq_wake, which any thread or signal handler may call. The library changes
 * no signal disposition, and a lost connection raises no SIGPIPE. Each connect
 * looks up paths and host names again, after a chroot in the new root.
 *
 * Except for delayq_open, a call that sends a request blocks for io_timeout_ms
 * (3 s) at most, with all reconnects, or for connect_timeout_ms if that is
 * given and longer. A take or wait adds its own timeout. The limit begins again
 * with each MB of payload, and with each further request of the call. A request
 * that is sent shortly before the limit gets two measured round trips, and two
 * more if its script must be loaded. If connecting needs more time, the next
 * call continues it. The look-up of the host name (getaddrinfo) has no time
 * limit. To avoid it, put an IP address into the URL, or set options.resolve.
 *
 * If a connection dies silently (frozen server, lost network), the next request
 * notices it after io_timeout_ms, and the subscriber 10 s later at most.
 *
 * >>outbox -- handles that never wait
 *
 * An outbox is for code that must not wait, such as the frame of a game, the
 * superloop of a device, or a callback of an event loop. With options.outbox a
 * handle waits for the server only in calls with a timeout other than 0, and in
 * those that need a reply: peek, count, count_due, dead letters, clear, pause,
 * load_scripts. The other calls do this:
 *
 *     open     checks the options, loads the tls_ files, begins to connect, and
 *              returns DELAYQ_OK. If the connection fails, a tick returns why
 *     tick     makes one step, which writes and reads about 64 KiB at most.
 *              Call it once a frame, or when wait_ms is over or a descriptor is
 *              readable. It returns the fault that stops the outbox
 *     take     hands out an item of a reply that has arrived. If there is none,
 *              it returns DELAYQ_EMPTY and, if an item may be due, sends a
 *              request. The item comes a round trip later. The lease begins
 *              with the request. Take until DELAYQ_EMPTY, then tick
 *     offer, ack, nack, extend, bury, cancel, cancel_key, reschedule
 *              copy the op into the outbox and return DELAYQ_OK: the op is
 *              accepted. Without room they do nothing and return
 *              DELAYQ_ERR_FULL. An op that can't fit at all: DELAYQ_ERR_ARG
 *
 * Three quarters of the memory are the ring of the offers, which also contains
 * cancels of keys, and cancels and reschedules of the handle's own offers. The
 * rest is the ring of the changes: acks and all other ops. So a full server,
 * which refuses offers, still gets the acks that make room. An op can fill at
 * most half of its ring. The ops of each ring run in the order of the calls.
 * Changes run before each later take, unless the server refuses them. If
 * nothing of the ring is in flight, the call sends its op at once. But in a
 * loop that takes, the changes are sent by the next take or tick.
 *
 * An accepted op stays until the server has confirmed it, despite lost
 * connections, wrong passwords, missing rights, or a full or read-only server.
 * It is dropped only if the server has closed 8 working connections in a row,
 * each after the op was sent alone. The log reports a dropped op, and
 * delayq_outbox counts it. options.settled gets the result of each op.
 *
 * Offers are numbered, and the queue remembers for a day the highest number
 * that it has stored for each handle. So an offer is stored once, even if it is
 * sent again after a lost reply. If Redis forgets this number (a failover, a
 * restart without synced AOF), or after a day without a connection, the offer
 * is stored at least once. A delay counts from the call. If the call returns a
 * ticket (offer_message, offer_many), it fixes the due time by the handle's
 * estimate of the server's clock. After a failover to a server whose clock is
 * ahead, the item is early by the difference. Before the first connection the
 * ticket is "", and extend and reschedule return DELAYQ_ERR_IO.
 *
 * Without outbox_keep, the contents of the outbox are lost if the program
 * crashes or closes the handle. So call delayq_flush before a close. Fetched
 * items that no take has handed out are lost, too, unless they are leased. If
 * the lease of such an item ends, the log reports it. If the handle was ever
 * used for an ack or another change, this attempt does not count.
 *
 * With options.outbox_keep the memory is an image that survives the program: a
 * mapped file, FRAM, battery-backed RAM. An op is accepted as soon as the call
 * has made its last write to this memory. At a close, ops that are not settled
 * stay in the image, and the next open goes on with them, in their order. For a
 * new image, fill the first 1,024 bytes with zeros. These ops survive:
 *
 *     memory                        the program dies    the power is cut
 *     a mapped file                 all accepted ops    see below
 *     the same, outbox_sync msync   all accepted ops    what was synced
 *     FRAM, battery-backed RAM      all accepted ops    all accepted ops; with
 *                                                       a cache: what
 *                                                       outbox_sync has flushed
 *
 * With outbox_sync no op is sent before it is synced. So offers are sent by the
 * next tick, not by the call, and after a power cut the file still contains all
 * sent ops. Without outbox_sync, it then contains only the data that the system
 * happened to have written. The image ends at its last whole entry, and settled
 * ops may be sent again.
 *
 * If the next open connects within a day after the last offer was stored, each
 * offer is stored once, even if its reply was lost. After that day, or if the
 * server has lost its data or was replaced, an offer whose reply was lost may
 * be stored twice. If a lease has ended and its item was moved or taken
 * meanwhile, the result of its ack or other change is DELAYQ_GONE. The call
 * fixes the due time of an offer, nack or reschedule if the server's clock is
 * known. Otherwise, if the program dies before the op is sent, its delay counts
 * from the next open at the latest. The numbers of delayq_outbox and
 * options.settled go on after a restart. If the program dies after a report to
 * options.settled and before the next write to the image, the report recurs.
 *
 * Open returns DELAYQ_ERR_ARG with the reason, and leaves the memory unchanged,
 * if the image is damaged, in use by another handle of the same process, or
 * made for another queue, wire, size, kind of machine (byte order, size of a
 * pointer) or format version. The image begins with two 160-byte headers
 * (marks), at 0 and 512, which are written in turn. The entries of the offers
 * begin at 1,024, and those of the changes follow. The last 2,048 bytes are not
 * part of the image. Marks and entries have CRCs (see >>keep). Later versions
 * read or refuse this format. Only one handle may use an image at a time, so
 * lock the file against other programs (see the recipe). If programs open
 * copies of one image, each op in it, and each op added to a copy, runs once.
 *
 * >>errors -- errors and retries
 *
 * A status of 0 means done. After a positive status nothing went wrong, but
 * there was nothing to return or to change. A negative status is a failure.
 * After DELAYQ_ERR_UNKNOWN and DELAYQ_ERR_PROTOCOL the call may have taken
 * effect. After any other failure it has not, with two exceptions: calls that
 * do several things, and DELAYQ_ERR_WIRE (see >>functions). delayq_errmsg tells
 * the reason. If a call that changes something loses a reply, tries again, and
 * then fails, the status is DELAYQ_ERR_UNKNOWN or DELAYQ_ERR_PROTOCOL.
 *
 * If a server or a proxy sends a reply without a request, the handle closes the
 * connection before it writes the next request. It can't notice one such case:
 * a second copy of a reply that comes between the next request and its reply.
 *
 * A handle reconnects by itself: at once after a loss, and after each failed
 * attempt with a longer pause, up to reconnect_max_ms. During the pause calls
 * without a timeout fail at once. A socket makes at most three attempts in a
 * second, each at all hosts. Only DELAYQ_ERR_WIRE and a fork need a new open.
 *
 * >>limits -- limits
 *
 * Names have 1 to 512 bytes. Payloads may contain any bytes, up to the server's
 * limit (512 MB by default) and at most 1 GB. Due times are below 2^53 ms.
 *
 * A reply with more than 250,000 elements or more than 1 GB is refused as soon
 * as the server announces it. A smaller reply needs memory for the elements
 * that are announced, a pointer each, and for the bytes that have arrived.
 *
 * A script moves or takes at most options.batch items (take_many: `max`; late
 * items: about 700), and stops after 256 KiB of payload, so it blocks the
 * server for about 2 ms. A payload of more than 256 KiB is moved alone. But if
 * it follows small ones, up to 128 such payloads may be moved together. An
 * outbox's request has at most 1,000 offers, or 300 mixed ops, and takes 3 ms.
 * A payload of 1 to 64 MB takes this many ms per MB (GET, SET in Lua: 2 to 3):
 *
 *     offer, take          2 to 5     ack, nack, extend     3 to 6
 *     take with a lease    7 to 13    tick that moves it    4 to 8
 *
 * A take or tick needs twice as long if the next item is just as large, because
 * the script also reads that item to learn its due time. If the server's
 * machine is idle, the default options suffice for an item of 60 MB. For larger
 * items, or at a load of ten times the number of cores, raise io_timeout_ms and
 * connect_timeout_ms, since no bytes are transferred while the script runs.
 *
 * With a Redisson wire, a tick, take or cancel scans the mirror unless its
 * items are the first, a replace or cancel_key twice. A scan takes a few ms per
 * 100,000 items. Items of C share a scan, but each item of Java needs its own.
 *
 * The handle is plain memory of less than 4 KB. A call needs less than 7 KB of
 * stack on x86-64 and on ARM, hiredis and libc included, and more under TLS, in
 * getaddrinfo, and in your hooks. The library allocates nothing; hiredis does.
 *
 * >>macros -- option macros
 *
 *     DELAYQ_IMPLEMENTATION   define it in exactly one .c or .cc file
 *     DELAYQ_STATIC           makes all functions static, local to that file
 *     DELAYQ_TLS              allows rediss:// URLs. Needs hiredis >= 1.0 and
 *                             OpenSSL: -lhiredis_ssl -lssl -lcrypto
 *     DELAYQ_HIREDIS          the header to include for hiredis,
 *                             <hiredis/hiredis.h> unless defined
 *     DELAYQ_LIBVALKEY        uses libvalkey >= 0.5 instead of hiredis. Link
 *                             with -lvalkey, for TLS also -lvalkey_tls. Define
 *                             it in every file, because it renames redisContext
 *     DELAYQ_PORT             a file with the functions that >>system needs,
 *                             for a device with neither Windows nor POSIX
 *     DELAYQ_NO_LUA           for a device: leaves out the Lua, two fifths of
 *                             the code. Another program must load the scripts:
 *                             see delayq_load_scripts
 */

#ifndef DELAYQ_H
#define DELAYQ_H

#if defined(DELAYQ_IMPLEMENTATION) && defined(__STRICT_ANSI__) && \
    !defined(_GNU_SOURCE) && !defined(_DEFAULT_SOURCE)
#define _DEFAULT_SOURCE 1 /* -std=c99 hides POSIX otherwise */
#endif

#include <stddef.h>
#include <stdint.h>

#define DELAYQ_VERSION "0.3.0"
#define DELAYQ_VERSION_MAJOR 0
#define DELAYQ_VERSION_MINOR 3
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

#ifdef DELAYQ_LIBVALKEY
#define redisContext valkeyContext
#define redisReply valkeyReply
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

    /* Nothing went wrong, but there was nothing to return or to change. */
    DELAYQ_EMPTY = 1,     /* nothing to take within the timeout */
    DELAYQ_GONE = 2,      /* the item is no longer there: no item was changed */
    DELAYQ_DUPLICATE = 3, /* the key is in use: nothing was stored */
    DELAYQ_WOKEN = 4,     /* delayq_wake was called */

    /* Failures. The call has had no effect (two exceptions: see >>errors). */
    DELAYQ_ERR_ARG = -1,      /* a bad argument or option */
    DELAYQ_ERR_IO = -2,       /* no connection; the handle will reconnect */
    DELAYQ_ERR_TIMEOUT = -3,  /* not connected in time, or not sent in time */
    DELAYQ_ERR_AUTH = -4,     /* wrong password, no permission (ACL), or a
                                 certificate that isn't trusted */
    DELAYQ_ERR_REDIS = -5,    /* any other error reply from the server */
    DELAYQ_ERR_READONLY = -7, /* a replica, or a server that can't write now */
    DELAYQ_ERR_FULL = -8,     /* the server has reached maxmemory, or the outbox
                                 is full: the op was refused */
    DELAYQ_ERR_WIRE = -9,     /* the queue has data of Redisson that needs
                                 the options.wire named in the error text */
    DELAYQ_ERR_AGAIN = -11,   /* the server is loading, failing over or busy:
                                 try later */
    DELAYQ_ERR_TYPE = -12,    /* one of the queue's keys has a wrong type */
    DELAYQ_ERR_MEMORY = -13,  /* this program has no memory left */

    /* Failures. The call may have taken effect. */
    DELAYQ_ERR_PROTOCOL = -6, /* the server's reply is invalid */
    DELAYQ_ERR_UNKNOWN = -10  /* the request was sent, but no reply came */
} delayq_status;

/*-----------------------------------------------------------------------------
 * MARK: - Types
 * >>types   options, the item, the handle
 *---------------------------------------------------------------------------*/

#define DELAYQ_FOREVER (-1) /* a timeout: wait without a limit */
#define DELAYQ_BACKOFF (-1) /* in a nack: exponential delay, with jitter */
#define DELAYQ_RELEASE (-2) /* in a nack: no delay; the attempt doesn't count */

/* The wire: which programs share a queue. All handles must use the same one:
 *
 *     DELAYQ_NATIVE         C programs; the default, 0. Redisson >= 3.21.1 can
 *                           move and take the items. It must not offer any, and
 *                           its size(), contains() and similar methods don't
 *                           see the items that C has offered
 *     DELAYQ_REDISSON       C programs and Redisson >= 3.21.1
 *     DELAYQ_REDISSON_OLD   C programs and Redisson <= 3.21.0
 *     DELAYQ_BROADCAST      C programs; each handle gets each item. No leases
 *
 * A program links only the code of the wires that it names. */
typedef const struct delayq_wire_kind *delayq_wire;
#define DELAYQ_NATIVE ((delayq_wire)0)
#define DELAYQ_REDISSON (&delayq_wire_redisson)
#define DELAYQ_REDISSON_OLD (&delayq_wire_redisson_old)
#define DELAYQ_BROADCAST (&delayq_wire_broadcast)

/* For options.outbox_keep: see >>outbox. A program that names DELAYQ_KEEP links
 * the code of all ops that an image can contain. */
typedef const struct delayq_keep_kind *delayq_keep;
#define DELAYQ_KEEP (&delayq_keep_image)

typedef struct delayq delayq;

/* In every field except name, zero means the default. The strings and hooks
 * must outlive the handle, except name, which is copied. */
typedef struct delayq_options {
    const char *name; /* required: the queue, 1 to 512 bytes */
    const char *url;  /* the server; default redis://127.0.0.1:6379. The forms:
                         redis://[user[:password]@]host[:port][,...][/db]
                         redis+sentinel://[...@]host[:port][,...]/service[/db]
                         rediss://... or rediss+sentinel://... for TLS
                         unix://[...@]/path[?db=N]
                         If there are several hosts (nodes of a cluster, or
                         sentinels), they are tried in turn. In user, password,
                         service and path, %XX encodes a byte */
    delayq_wire wire; /* default DELAYQ_NATIVE */

    /* Leases, attempts, and late items. */
    int64_t lease_ms;       /* a taken item that is not acked in this time is
                               delivered again. Default 0: there is no lease,
                               and a take removes the item */
    int max_attempts;       /* an item that has been handed out this many times
                               goes to the dead letters at its next take; up to
                               65,535. Default 0: no limit. Not with a Redisson
                               wire */
    int64_t max_late_ms;    /* an item that is late by more than this becomes a
                               dead letter, and is not handed out. Default 0: no
                               limit. Set it on all handles of the queue: see
                               >>promises. Only with DELAYQ_NATIVE */
    int64_t backoff_ms;     /* DELAYQ_BACKOFF's delay after the first attempt,
                               doubled for each further one; default 1,000 */
    int64_t backoff_max_ms; /* the longest back-off; default 300,000 */

    /* With DELAYQ_BROADCAST. */
    const char *broadcast_after; /* NULL: read items that come after the open;
                                    "": read all items that are kept; an item's
                                    ticket text: read the items after it */
    int64_t broadcast_keep;      /* the stream keeps about this many items;
                                    default 10,000 */

    int batch;              /* the most items that one tick moves: 1 to 1,000;
                               default 100 */
    int64_t max_wait_ms;    /* the longest wait_ms that a tick returns, and the
                               longest time between two polls; default 10,000 */
    int64_t poll_ms;        /* the time between two polls for payloads that
                               others push into N (see >>keys), if the server
                               reports no pushes. Default: 250 after a poll that
                               found one; empty polls double it, up to 4,000 */
    int connect_timeout_ms; /* the time limit of each step of connecting: the
                               socket, TLS, the login, the first request; up to
                               four times as long after timeouts. Default 2,000.
                               If it is set above io_timeout_ms, a call may last
                               for connect_timeout_ms */
    int io_timeout_ms;      /* the time limit of a call that sends a request;
                               with an outbox, the longest time in which no byte
                               is sent or received; default 3,000. The limit is
                               never below two measured round trips */

    int reconnect_max_ms; /* the longest time between two attempts to connect;
                             default 5,000 */
    int counters; /* 1: count the work of this handle in Redis, for the totals
                     of delayq_count: see >>keys */

    /* A handle that never waits: see >>outbox. */
    void *outbox;            /* your memory, which must outlive the handle.
                                Without outbox_keep its old contents are lost */
    size_t outbox_size;      /* the size of `outbox` in bytes, at least 8,192 */
    delayq_keep outbox_keep; /* DELAYQ_KEEP: for memory that survives the
                                program (a mapped file), aligned to 16 bytes.
                                Open goes on with its ops. Default NULL */
    /* Only with outbox_keep; may be NULL. Writes the `size` bytes at `address`
     * to storage that survives a power cut (msync). Returns 0, or another value
     * after a failure; the hook is then called again later. Open calls it
     * twice. If the memory has changed, ticks, takes and close call it once. A
     * call that waits, such as a flush, then calls it each time it wakes up.
     * An op is not sent before it is written. */
    int (*outbox_sync)(void *user, void *address, size_t size);
    /* Called once for each op of the outbox that is done or dropped. `changes`
     * is 0 for the ring of the offers, and 1 for the ring of the changes (acks
     * and the like). The ops of each ring are reported in their order. `number`
     * counts them from 1, as delayq_outbox does. `status` is DELAYQ_OK,
     * DELAYQ_DUPLICATE, DELAYQ_GONE, or the reason why the op was dropped. If a
     * reply was lost, DELAYQ_OK may also mean DELAYQ_DUPLICATE or DELAYQ_GONE,
     * since it can't be known whether the op was done or came too late. The
     * hook is called by tick, flush, and calls that wait or take, never by an
     * offer, an ack or the like. It may call only delayq_wake on this handle
     * and on those that share its connection. */
    void (*settled)(void *user, int changes, uint64_t number,
                    delayq_status status);
    /* Writes the address of `host`, a host in the URL, as text. Returns 1 if it
     * is known, 0 if it is not known yet (the hook is called again), -1 if
     * there is none. Default: getaddrinfo, which may block. */
    int (*resolve)(void *user, const char *host, char *address, size_t size);

    /* Files for rediss://. */
    const char *tls_ca;   /* certificates to trust; default the system's */
    const char *tls_cert; /* this program's certificate and chain, or NULL */
    const char *tls_key;  /* the key of tls_cert, or NULL */

    /* Returns a connected context without unread replies, or NULL after a
     * failure. Used instead of the URL's host or path, for TLS of your own,
     * proxies and tests. The URL's user, password and db still apply. The
     * handle frees the context, and switches it to RESP2. */
    struct redisContext *(*connect)(void *user, int timeout_ms);
    /* Called during a call for each fault that does not end the call, at most
     * once a second for the same status. Called with DELAYQ_OK for four events:
     * the handle is connected (to which server, after how many ms, and whether
     * a cluster has redirected it); the server lacks the scripts; the server
     * may evict a queue's keys; pushes by others are found only by polling. An
     * event is reported at most once per connection, and not twice in 10 s.
     * `text` is one line without a newline and lives until the hook returns.
     * The hook may call only delayq_wake on this handle and on those that share
     * its connection. */
    void (*log)(void *user, delayq_status status, const char *text);
    void *user; /* the first argument of all hooks */

    /* The owner of the connections that this handle uses: an open handle, whose
     * url, connect, resolve, timeouts and tls_ files apply: leave them 0 here.
     * Use it in the same thread, without `share`, and close it last. */
    delayq *share;
} delayq_options;

/* Identifies a pending or leased item. Each offer, lease, extend, nack and
 * reschedule makes a new ticket. A ticket is valid until the item gets another
 * one, or is moved, taken or removed. It is a text that may be printed, stored
 * and compared: the due time, a dash, and the id in hex. "" is no ticket. */
typedef struct delayq_ticket {
    char text[52];
} delayq_ticket;

/* The argument of delayq_offer_message and delayq_offer_many. */
typedef struct delayq_message {
    const void *data; /* the payload, any bytes; not used after the call */
    size_t len;
    int64_t delay_ms; /* the delay until the item is due, >= 0 */
    int64_t due_ms;   /* > 0: the due time instead of a delay, in ms since the
                         epoch by the server's clock; a past time means now */

    const char *key;    /* NULL, or a name of 1 to 256 bytes: a second offer
                           under it returns DELAYQ_DUPLICATE */
    int64_t key_ttl_ms; /* with a key: how long the key is kept, > 0 */
    int replace;        /* 1: replace the item that has the key, if that item
                           is still pending */

    delayq_status status; /* out: the result. While it is DELAYQ_ERR_UNKNOWN,
                             offer the same struct again, unchanged: the item
                             is stored once at most */
    delayq_ticket ticket; /* out: the ticket of this item, or of the item that
                             has the key */
    /* Private: the id, and the earliest time at which the item may have been
     * due, in ms by the server's clock and in us by this machine's. */
    unsigned char id[16];
    int64_t first_due_ms;
    int64_t first_due_us;
} delayq_message;

/* The result of a take or peek. The handle owns the payload, and keeps it
 * until its next take, ack_take, peek or dead_peek, or its close. */
typedef struct delayq_item {
    const void *data;
    size_t len;
    int attempt;     /* how many times it was handed out, this take included. 0
                        if unknown, that is, with DELAYQ_REDISSON_OLD and a
                        lease, or after the ready list of a Redisson wire, which
                        keeps no count. In a peek 0 also means never */
    int64_t due_ms;  /* when it was due, by the server's clock; 0: unknown, for
                        an item of a list, since lists keep no due times */
    int64_t late_us; /* how long after due_ms it was taken, in microseconds by
                        the server's clock; -1 if due_ms is 0, or in a peek */
    delayq_ticket ticket; /* for ack, nack, extend, bury; "" without a lease. In
                             a broadcast, the item's id in the stream. In a
                             peek, for cancel and reschedule */
    delayq_status acked;  /* out: the ack's status in ack_take and ack_many */
} delayq_item;

/* A dead letter of delayq_dead_peek. data and why live as long as a payload. */
typedef struct delayq_dead {
    const void *data; /* the payload; if undecodable, the whole element */
    size_t len;
    char reason[16]; /* "attempts", "buried", "late" or "undecodable"; another
                        program may have written any text */
    int attempt;     /* how many times it was handed out; 0: never or unknown */
    int64_t dead_ms; /* when it became a dead letter, by the server's clock */
    const char *why; /* the text that was given to delayq_bury, or "" */
} delayq_dead;

/* The result of delayq_count, in three blocks: the state of the queue, the work
 * of this handle since its open, and the work of all handles. */
typedef struct delayq_counts {
    int64_t pending;     /* items in the set, leased ones included */
    int64_t overdue;     /* items in the set that are due */
    int64_t overdue_ms;  /* the lateness of the earliest item; 0: none is due */
    int64_t ready;       /* items in the lists; in a broadcast always 0 */
    int64_t dead;        /* dead letters */
    int64_t next_due_ms; /* the earliest due time; 0: nothing is pending */
    int64_t now_ms;      /* the server's clock */
    int64_t paused;      /* the time in ms at which the queue was paused, by the
                            server's clock; 0: it is not paused */

    uint64_t offered, moved, taken, acked, nacked;
    uint64_t redelivered; /* items taken with an attempt above 1 */
    uint64_t died;        /* items sent to the dead letters */
    uint64_t reconnects;
    uint64_t lateness[24]; /* [n]: items taken less than 2^n us late, but at
                              least 2^(n-1) us. The last entry also counts all
                              later items */

    /* The work of all handles with options.counters: see >>keys. All 0 if no
     * handle had this option, or if an ACL hides the key delayq_counters:T. */
    struct {
        uint64_t offered; /* items stored, without duplicates */
        uint64_t taken;   /* items handed out, redeliveries included; in a
                             broadcast, items put into the stream */
        uint64_t acked, nacked;
        uint64_t died;     /* items sent to the dead letters */
        uint64_t canceled; /* items canceled or replaced */
    } total;
} delayq_counts;

/* The result of delayq_outbox. Each open starts all counts at 0, except that
 * with outbox_keep the numbers of accepted and settled ops go on. `offers` are
 * the offers, the cancels of keys, and the cancels and reschedules of this
 * handle's own offers; `changes` are acks and the like. Each kind is settled in
 * order: the n-th op is settled once ..._settled >= n. */
typedef struct delayq_outbox_state {
    uint64_t offers_accepted, offers_settled;
    uint64_t changes_accepted, changes_settled;
    uint64_t gone;      /* ops whose item was no longer there, except ops whose
                           reply was lost */
    uint64_t duplicate; /* offers whose key was in use, except offers whose
                           reply was lost */
    uint64_t dropped;   /* ops that were dropped: see >>outbox */
    size_t bytes, size; /* memory for ops, in bytes: the used part, the total */
    int connected; /* 1: the server has answered over the current connection;
                      >>threads says when a silent server is noticed */
} delayq_outbox_state;

/* From here to >>functions: the private content of a handle. It is declared
 * here so that your program can allocate a handle. */

typedef struct delayq_address {
    char host[256]; /* a host, or the path of a unix socket */
    int port;       /* 0 for a unix socket */
} delayq_address;

/* An exchange consists of commands written together, and of their replies. */
typedef enum delayq_exchange_state {
    DELAYQ_EXCHANGE_NONE,
    DELAYQ_EXCHANGE_WAITING, /* its commands have not been written yet */
    DELAYQ_EXCHANGE_SENT,    /* not all replies have come yet */
    DELAYQ_EXCHANGE_ANSWERED /* all replies have come, or the socket is lost */
} delayq_exchange_state;

typedef struct delayq_exchange {
    struct delayq_exchange *next; /* the next exchange on the same socket */
    delayq_exchange_state state;
    delayq_status status;     /* OK, or the reason why replies are missing */
    unsigned char wants, got; /* the numbers of replies expected and received */
    unsigned number;          /* the socket's `number` when this was sent; 0:
                                 not sent */
    unsigned char written;    /* the server may have received all commands */
    unsigned char blame;      /* after a close by the server: 2 if only this
                                 was in flight, or got "Protocol error" from
                                 the server; 1: the first of several; else 0 */
    struct redisReply *replies[5]; /* the first `got` are valid */
    int64_t sent_us, read_us; /* when it was sent; when its replies were read */
} delayq_exchange;

typedef enum delayq_socket_state {
    DELAYQ_SOCKET_CLOSED,
    DELAYQ_SOCKET_RESOLVING, /* the address of its host is being looked up */
    DELAYQ_SOCKET_DIALING,   /* it is being connected */
    DELAYQ_SOCKET_TLS,       /* the TLS handshake is in progress */
    DELAYQ_SOCKET_GREETING,  /* its login is sent */
    DELAYQ_SOCKET_OPEN,      /* it is logged in */
    DELAYQ_SOCKET_PROVEN     /* a useful reply has come, or sub is 1 s old */
} delayq_socket_state;

/* The position in a reply that is being read. */
typedef struct delayq_reply_scan {
    char type;           /* the current element's type; 0: not yet read */
    char last;           /* the previous byte of the current line */
    unsigned short line; /* the length of the current line so far */
    unsigned number;     /* the number in the line; in a string, the bytes still
                            to come */
    unsigned bytes;      /* the bytes of all strings in the reply so far */
    unsigned items;      /* the elements of all arrays in the reply so far */
    unsigned depth;      /* the number of nested arrays that are incomplete */
    unsigned left[4];    /* the elements to come in each incomplete array */
} delayq_reply_scan;

/* Invariants: c is NULL if the state is CLOSED or RESOLVING; first and last are
 * both NULL or both not NULL; body_len > 0 only while c is not NULL. */
typedef struct delayq_socket {
    struct redisContext *c;
    void *ssl; /* c's SSL; hiredis owns it */
    delayq_socket_state state;
    unsigned number;         /* counts the attempts to connect it */
    unsigned char purpose;   /* a dq_conn_purpose */
    unsigned char unwritten; /* c's output buffer, or `body`, is not empty */
    unsigned char more;      /* there may be more to read */
    unsigned char unproven;  /* connections in a row lost before PROVEN */
    unsigned char timeouts;  /* attempts that have timed out, up to 4 */
    unsigned failures;       /* failed attempts in a row */
    int64_t retry_us;        /* the earliest time of the next attempt */
    int64_t begun_us;        /* when this attempt began */
    int64_t dial_us;         /* how long the socket took to connect */
    int64_t step_us;         /* the time limit of each step of connecting */
    int64_t deadline_us;     /* when the current step times out */
    int64_t closed_us[2];    /* when it was closed the last two times */
    int64_t active_us;       /* when bytes were last read or written */
    delayq_reply_scan scan;
    const char *body; /* a payload or script, to be written after c's buffer */
    size_t body_len;  /* the bytes of `body` that are not written yet */
    const char *const *parts;      /* the script's later parts, then NULL */
    delayq_exchange *first, *last; /* the exchanges in flight, oldest first */
    delayq_exchange greeting;      /* the login */
    unsigned char login[8];        /* the steps of the login, DQ_LOGIN_... */
} delayq_socket;

/* Client tracking: the server reports pushes. Without it, polls find them. */
typedef enum delayq_track_state {
    DELAYQ_TRACK_OFF,     /* sub isn't ready, or tracking was refused */
    DELAYQ_TRACK_ALLOWED, /* sub is ready; cmd has not turned tracking on */
    DELAYQ_TRACK_ON       /* cmd has turned tracking on, with REDIRECT to sub */
} delayq_track_state;

/* A host's name, and the address that was found for it. */
typedef struct delayq_name {
    unsigned hash;    /* a hash of the name */
    int64_t found_us; /* when the address was looked up; 0: never */
    char text[46];    /* the address */
} delayq_name;

/* A connection: two sockets to one server, or to one node of a cluster. */
typedef struct delayq_conn {
    delayq *owner;   /* the handle whose options say where to connect */
    delayq *handles; /* all handles that use this connection */

    unsigned char redirected; /* 1: `at` is the target of a redirection */
    unsigned char left;       /* 1: the last server could not do the work (a
                                 replica, for example), so its name may have
                                 another address by now */
    unsigned char hops;       /* redirections in a row while connecting */
    unsigned char timed_out;  /* 1: the last fault was a timeout */
    unsigned host;            /* the index of the URL's host to try next */
    unsigned hosts_left;      /* hosts to try before a back-off */
    delayq_name *names;       /* an outbox's cache of three names, or NULL */
    delayq_status failure;    /* the status of requests during a back-off */
    delayq_status leaving;    /* a failure or DQ_MOVED, for which cmd will be
                                 closed as soon as all replies are read */

    /* The server. */
    unsigned char known;   /* 1: the server has answered a probe on cmd */
    unsigned clock_number; /* goes up by 1 when `known` becomes 1 */
    /* At the local time clock_read_us, the server's clock minus the local clock
     * was at least clock_offset_us, and at most clock_error_us more. */
    int64_t clock_offset_us;
    int64_t clock_error_us;
    int64_t clock_read_us;
    int64_t trip_us; /* the shortest measured round trip of this connection */
    int awake;       /* see dq_wait_awake */
    unsigned char long_size, long_big; /* the server's unsigned long: the size
                                          in bytes; 1 if it is big-endian */
    int64_t now_us; /* the local clock, read when a call begins, after each
                       sleep, when a request is sent, and when bytes come */

    /* NULL until a take, tick or wait opens the subscriber, so that a program
     * that only offers does not link the subscriber's functions. */
    const struct dq_subscriber *subscriber;
    delayq_track_state tracking;
    int64_t sub_id;             /* the CLIENT ID of sub */
    int64_t idle_read_us;       /* when idle sockets were last read */
    int64_t sub_pinged_us;      /* when the pending ping was sent, or 0 */
    unsigned sub_pending;       /* subscriptions without a reply so far */
    delayq_status sub_refused;  /* < OK: why a subscription was refused */
    unsigned char track_losses; /* a score; each connection that ends at
                                   tracking adds 1, or 2 if nothing else was in
                                   flight; an unknown sub_id adds 2 */
    unsigned char name_losses;  /* connections that have ended at SETNAME; after
                                   2 of them SETNAME is not sent */
    int64_t track_retry_us;     /* when to try tracking again after a refusal;
                                   or 0 */

    /* Events that were reported to the log. */
    unsigned char unheard_told; /* 1: the server does not report pushes */
    unsigned char policy_read;  /* 1: INFO was sent for the eviction policy */
    unsigned char followed;     /* 1: MOVED has named the node of cmd */
    int64_t lost_us, known_us;  /* when `known` last became 0, and 1 */
    int64_t known_told_us;      /* when "connected" was last reported */
    int64_t scripts_told_us;    /* when missing scripts were last reported */

    unsigned traffic; /* bytes of large payloads, scripts and replies so far */

    void *tls;         /* the SSL_CTX */
    int pipe[2];       /* delayq_wake writes to it, which ends a sleep */
    delayq_socket cmd; /* the socket for requests and their replies */
    delayq_socket sub; /* the subscriber */

    char err[256];     /* the cause of the last failure */
    delayq_address at; /* the address of cmd, or of its next attempt */
} delayq_conn;

struct dq_entry;

/* A lane sends ops in order, with at most one request in flight. The ops are in
 * a ring of the outbox, or in an array of the caller. A bare lane has one op,
 * which is only a verb and, for some verbs, its arguments in `query`.
 *
 * Invariants: settled + n <= accepted while a request is in flight; the first
 * `unsure` ops after `settled` may have run. */
typedef struct delayq_lane {
    struct delayq_lane *next;       /* the next lane of the same handle */
    delayq_exchange x;              /* the request; NONE: there is no request */
    const struct dq_policy *policy; /* how requests are planned and retried */
    const struct dq_verb *verb;     /* the verb of the request */
    unsigned char key;              /* DQ_KEY_...: the request's second key */
    size_t n;                       /* the number of ops in the request */
    size_t from, from_at;           /* the first op of a mixed request's current
                                       part: its number in the request, and its
                                       position in the ring; else 0 */
    delayq_status status;           /* the status of the last request */
    char *why;                      /* the text of `status` after a failure */
    struct redisReply *reply;       /* the reply, for a bare lane's caller */
    delayq_status result;           /* the first failure, else DELAYQ_GONE */
    char *err;                      /* receives the text of `result`; or NULL */
    int64_t due_ms;                 /* due time of the op settled or accepted
                                       last, for the ticket of a single op */

    /* The ops are in one of these four, except in a bare lane. */
    struct dq_ring *ring;
    delayq_message *messages;
    delayq_item *items;
    struct dq_op *ops;
    /* array_verb is the verb of items, of messages without a key, and of a bare
     * lane; keyed_verb is the verb of messages with a key. */
    const struct dq_verb *array_verb, *keyed_verb;
    const struct dq_query *query; /* the arguments of a bare verb, or NULL */
    int64_t begun_us; /* the time of the call, or of a ring's last sending */
    uint64_t accepted, settled;   /* counts of ops; equal if none is left */

    /* The ops that may have run, and the retries. */
    uint64_t unsure;         /* the number of ops that may have run */
    uint64_t was_unsure;     /* the value of `unsure` before the last sending */
    unsigned char resends;   /* 1: an op of this request may have run before */
    unsigned char resent;    /* 1: a socket was lost, and the request was sent
                                again; once at most */
    unsigned tries;          /* sendings of this request that have failed */
    unsigned char uploads;   /* 1: the next sending loads the script */
    unsigned char as_waiter; /* 1: a take passes the waiters' key */
    unsigned char failures;  /* failures in a row, of a ring or of probes */
    unsigned char losses;    /* sockets in a row that the server has closed
                                while the first op, sent alone, was in flight */
    size_t limit;            /* the most ops of a ring's next request */
    int64_t retry_us;        /* the earliest time of the next sending */
    int64_t suspect_us;      /* until then other lanes yield to this one, since
                                its last request has lost a socket; or 0 */
    int64_t trial_us;        /* how long the next connection has to live before
                                the request is sent again */
    int64_t moving_us;       /* when the server began to refuse requests because
                                the slot moves; or 0 */
} delayq_lane;

/* The handle's take or transfer, and its reply. */
typedef struct delayq_fetch {
    delayq_lane lane;           /* a bare lane */
    const struct dq_verb *take; /* the take verb, NULL before a take or wait */
    unsigned char takes;        /* 1: it is a take, 0: it is a transfer */
    unsigned char acks;         /* 1: it is a take with an ack */
    unsigned char overdue;      /* 1: an item was likely due when it was sent */
    size_t max;                 /* the most items that it requests */
    uint64_t order;             /* order (see >>elements) of its first lease */
    delayq_ticket ack;          /* the ticket to ack with the take, or "" */
    delayq_status acked;        /* the status of that ack */
    unsigned char lost;         /* 1: this call has lost a take's reply */

    struct redisReply *reply; /* a reply with items to hand out, or NULL */
    size_t at;                /* the index of the next element to hand out */
    size_t step;              /* elements per item: 2 in a broadcast, else 1 */
    const char *due;          /* the due times of the items left, as text */
    int64_t us;               /* the server's clock in the reply */
    int64_t lease_end_us;     /* the local time when the items' leases end */

    /* Gives back a fetched item that was not taken in time. NULL before the
     * first op on a ticket, so programs without such ops do not link it. */
    void (*release)(delayq *q, const char *ticket);

    /* The takes of a loop. */
    size_t want;              /* items that the next take requests */
    size_t got;               /* items that the last take has got */
    unsigned char taken;      /* 1: there was a take since the last tick */
    unsigned char short_naps; /* how many more ticks limit wait_ms */
    delayq_status failure;    /* a failure that the next tick or take returns */
    char why[256];            /* the text of `failure` */
} delayq_fetch;

/* The role of a handle among those that wait in a take on its queue. The reply
 * to a take contains the value minus 1 (0: NONE), and never means NEW. */
typedef enum delayq_waiter_role {
    DELAYQ_WAITER_NEW,     /* it has had no role since the subscriber was
                              opened */
    DELAYQ_WAITER_NONE,    /* it is not one of the waiters */
    DELAYQ_WAITER_ALONE,   /* it was the only waiter at its last take */
    DELAYQ_WAITER_LEADER,  /* it acts when something is due or pushed */
    DELAYQ_WAITER_STANDBY, /* it acts if the leader is 0.3 to 0.6 s late */
    DELAYQ_WAITER_SLEEPER  /* it acts on a message, or after max_wait_ms */
} delayq_waiter_role;

/* All 0 while the subscriber is closed. Times are local, 0 means never.
 * Invariant: push_us is 0 unless the role is STANDBY. */
typedef struct delayq_waiter {
    delayq_waiter_role role;
    int64_t lead_us;  /* when it was last told to lead */
    int64_t enter_us; /* when it was told to enter the waiters again; 0 once a
                         later take has been answered */
    int64_t push_us;  /* a standby: when to send LLEN after a push */
    int64_t due_us;   /* a standby: when the next item is due; 0: unknown */
    int64_t take_us;  /* a standby: the latest time of its next take */
} delayq_waiter;

/* {0} is a closed handle. An open handle must not be copied or moved. */
struct delayq {
    unsigned open;       /* DQ_OPEN while the handle is open */
    int call_ms;         /* the time limit of a call that sends a request */
    int64_t pid;         /* the process that opened the handle */
    delayq_wire wire;    /* never NULL */
    delayq_conn *conn;   /* `own`, or that of options.share; NULL once its owner
                            is closed */
    delayq *next;        /* the next handle on the same connection */
    uint64_t last_order; /* the order (see >>elements) in the last id made */
    unsigned char handle_id[8]; /* random bytes */
    char id[18];                /* ":" and handle_id in hex */

    int64_t probe_us; /* an offer after this time repeats the probe */

    int64_t log_us;  /* when the last fault was reported to the log */
    unsigned logged; /* the faults of that second: bit -status of each status */
    unsigned told;   /* the number of the failed attempt that was reported */

    delayq_lane *lanes;       /* its setup, fetch, outbox and call lanes */
    struct dq_outbox *outbox; /* the state in options.outbox, or NULL */

    /* The schedule. */
    int64_t next_poll_us;      /* the latest time of the next poll */
    int64_t not_before_us;     /* after a failure: no poll before this time,
                                  even if messages come; or 0 */
    int64_t track_us;          /* no request for tracking before this time */
    int64_t ready;             /* items that are ready, by the last reply */
    unsigned char poll_sent;   /* 1: a transfer or take is in flight */
    unsigned char quiet_polls; /* polls in a row without a push, if pushes are
                                  not reported; at most DQ_QUIET_POLLS */

    /* While the subscriber is closed, the first three of these are 0. */
    unsigned char sub_sent;     /* DQ_CHANNEL_... bits: requested channels */
    unsigned char subscribed;   /* DQ_CHANNEL_... bits: confirmed channels */
    unsigned char list_tracked; /* 1: the next push into N is reported, and
                                   conn->tracking is DELAYQ_TRACK_ON */
    unsigned char track_stale;  /* 1: a tracking reply in flight is outdated */

    unsigned char will_wait; /* 1: it is in a take of 10 s or longer */
    delayq_waiter waiter;

    unsigned char looked; /* 1: the last takes were empty, and at least one of
                             them did not wait; 2: the last take did not wait,
                             and got an item */
    unsigned char retry_turn; /* 1: the last take began with the retry list */
    unsigned char probed;     /* 1: a probe of this queue was answered */
    unsigned char keyless;    /* 1: the probe declares no keys, because the
                                 server has refused them */
    unsigned char foreign;    /* the DQ_FOREIGN_... found in the queue, or 0 */
    volatile int woken;       /* 1: delayq_wake was called */
    struct redisReply *reply; /* the results of the last take, peek or dead_peek
                                 point into `reply` or fetch.reply. Only the
                                 next such call, or close, frees `reply` */
    delayq_options options;
    delayq_lane setup; /* a bare lane for the probe of the queue and for
                          tracking. It has an op until the queue is probed */
    delayq_fetch fetch;
    delayq_counts counts;
    size_t name_len;
    unsigned char has_tag; /* 1: the name contains a {, so keys add no {} */
    char name[513];
    char cursor[44]; /* in a broadcast: the last stream entry that was read */
    char err[256];   /* why the last call has failed */
    delayq_conn own; /* its own connection, unless options.share is given */
};

/* A wire, and its properties. */
struct delayq_wire_kind {
    char letter[2];          /* the wire's name in scripts */
    unsigned char id_len;    /* the length of the ids that its handles write */
    unsigned char old_first; /* 1: try the format of Redisson <= 3.21.0 first */
    unsigned char mirror;    /* 1: pending elements are also in a list */
    unsigned char stream;    /* 1: due items go into a stream */
    const char *third_key;   /* the prefix of KEYS[3] of a tick or take */
    const struct dq_verb *take, *tick; /* NULL: the verbs of DELAYQ_NATIVE */
};

/* The functions of a kept outbox (see >>keep), and the verbs it may hold. */
struct delayq_keep_kind {
    const struct dq_verb *const *verbs; /* indexed by the verbs' codes */
    const char *(*check)(delayq *q);
    const char *(*resume)(delayq *q);
    void (*seal)(struct dq_ring *ring, struct dq_entry *entry);
    void (*mark)(delayq *q);
    void (*step)(delayq *q);
    void (*leave)(delayq *q);
};

#ifndef DELAYQ_STATIC
#define DELAYQ_CONSTANT extern const struct
#define DELAYQ_CONSTANTS_BEGIN
#define DELAYQ_CONSTANTS_END
#elif !defined(__cplusplus)
#define DELAYQ_CONSTANT DELAYQ_API const struct
#define DELAYQ_CONSTANTS_BEGIN
#define DELAYQ_CONSTANTS_END
#else /* C++ has no forward declaration of a static constant */
#define DELAYQ_CONSTANT extern const struct
#define DELAYQ_CONSTANTS_BEGIN namespace {
#define DELAYQ_CONSTANTS_END }
#endif
DELAYQ_CONSTANTS_BEGIN
DELAYQ_CONSTANT delayq_wire_kind delayq_wire_redisson;
DELAYQ_CONSTANT delayq_wire_kind delayq_wire_redisson_old;
DELAYQ_CONSTANT delayq_wire_kind delayq_wire_broadcast;
DELAYQ_CONSTANT delayq_keep_kind delayq_keep_image;
DELAYQ_CONSTANTS_END

/*-----------------------------------------------------------------------------
 * MARK: - Functions
 * >>functions   in the order in which you meet them
 *---------------------------------------------------------------------------*/

/* Unless its contract says otherwise, a function that sends a request
 *
 *     blocks      for one round trip; if the connection turns out to be lost,
 *                 for a connect and another round trip. >>threads has the
 *                 limits
 *     costs       one script, O(log n) for n pending items
 *     keeps       nothing of its arguments
 *     returns     DELAYQ_OK or "any server failure", that is, one of these:
 *
 *     DELAYQ_ERR_IO, _TIMEOUT, _AUTH, _REDIS, _READONLY, _AGAIN, _TYPE,
 *     _MEMORY    nothing was changed
 *     DELAYQ_ERR_WIRE   items that are due before the foreign element may have
 *                been moved, and an item may have been acked (see its `acked`).
 *                Nothing else was changed. Until the handle is reopened, all
 *                requests fail; with DELAYQ_REDISSON_OLD only offers and takes
 *                fail, and ticks still work. An outbox still accepts ops
 *     DELAYQ_ERR_UNKNOWN, _PROTOCOL   the call may have taken effect
 *     DELAYQ_ERR_ARG    the handle or its options.share is closed, or it was
 *                opened before a fork(), or its name or tls_ files turn out to
 *                be bad when it connects; nothing was changed
 *
 * With an outbox these do not block: open, offer, ack, nack, extend, bury,
 * cancel, cancel_key, reschedule, tick, take with timeout 0. See >>outbox. */

/*
 * delayq_open -- open a handle on a queue, and connect.
 *
 *   q         a closed or zeroed handle, in the caller's storage
 *   options   copied; of the strings in it, only the name is copied
 *
 * Returns     DELAYQ_OK        open and connected
 *             DELAYQ_ERR_ARG   a bad option, a tls_ file that can't be used,
 *                              an outbox_sync that fails, no random bytes, or
 *                              on a cluster a name whose keys are in two slots
 *                              or not in share's slot. The handle is closed
 *             DELAYQ_ERR_WIRE  the handle is open, but its calls will return
 *                              this: see >>keys
 *             any server failure: the handle is open and connects when it is
 *                              used. If it gets no pipe (_MEMORY), it is closed
 * Blocks      for each step of connecting up to connect_timeout_ms or, if that
 *             is not given, up to the shorter of 2 s and io_timeout_ms
 * Redis       AUTH, SELECT, CLIENT SETNAME, EXISTS, 1 script; for options.log
 *             INFO; with a connect hook HELLO; in a broadcast XREVRANGE
 *
 * delayq_errmsg and delayq_close can be called after every result.
 */
DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options);

/* delayq_close -- close a handle; does nothing to a zeroed or closed one. The
 * payloads of its items are freed. The data in Redis stays. Never blocks, but
 * calls options.outbox_sync if the memory has changed since its last call. */
DELAYQ_API void delayq_close(delayq *q);

/*
 * delayq_offer -- store a payload, to be delivered after delay_ms.
 *
 *   data       the payload; may contain NUL bytes
 *   len        its length in bytes, 0 allowed
 *   delay_ms   milliseconds, >= 0; 0 = due at once
 *
 * Returns      DELAYQ_OK           stored (with an outbox: accepted)
 *              DELAYQ_ERR_ARG      a negative delay, a due time past 2^53 ms,
 *                                  NULL data with len > 0, or len above 1 GB
 *              DELAYQ_ERR_FULL     the server's memory, or the outbox, is full;
 *                                  not stored
 *              any server failure
 *
 * If the reply is lost, the offer is sent again under the same id if there is
 * time, so that it is stored once. If the item is not there, and may have
 * become due meanwhile (by the server's clock or this machine's), the second
 * request stores nothing. It can't be known then whether the item was stored
 * and delivered, so the status is DELAYQ_ERR_UNKNOWN. A second copy is stored
 * only in two cases: between the requests somebody sets the server's clock
 * forward and back again, cancels or clears the item, or makes it due earlier;
 * or the first request arrives after the second one's item was delivered.
 */
DELAYQ_API delayq_status delayq_offer(delayq *q, const void *data, size_t len,
                                      int64_t delay_ms);

/*
 * delayq_offer_message -- store a payload, maybe with a key; get its ticket.
 *
 *   message    see delayq_message; status and ticket are set in it
 *
 * Returns      as delayq_offer, and
 *              DELAYQ_OK          stored; the ticket is the item's
 *              DELAYQ_DUPLICATE   the key is in use, nothing was stored; the
 *                                 ticket is that of the item which has the key
 *              DELAYQ_GONE        only if the message's status was
 *                                 DELAYQ_ERR_UNKNOWN. The item has become due
 *                                 since, and is not there: it was delivered, or
 *                                 never stored. This call has stored nothing
 *
 * To retry after DELAYQ_ERR_UNKNOWN, pass the same message, unchanged, until
 * its status is another one. The item is stored at most once, except in the two
 * cases under delayq_offer. If you would rather have it twice than never, offer
 * the message once more after DELAYQ_GONE. That offer stores a new item.
 *
 * message->status is set to the returned status, with one exception: once it is
 * DELAYQ_ERR_UNKNOWN, a failed retry does not change it.
 */
DELAYQ_API delayq_status delayq_offer_message(delayq *q,
                                              delayq_message *message);

/*
 * delayq_offer_many -- store many payloads, each with its time, key and status.
 *
 *   messages   see delayq_message; status and ticket are set in each
 *   count      the number of messages, 0 allowed
 *
 * Returns      DELAYQ_OK        each status is DELAYQ_OK, _DUPLICATE or _GONE
 *              DELAYQ_ERR_ARG   some messages are bad; the others are stored
 *              else the first failure; each message has its own status
 * Blocks       for a round trip per script
 * Redis        one script for up to 1,000 messages (200 if some have keys) or
 *              256 KiB. Messages with a delay_ms and messages with a due_ms
 *              are sent by separate scripts
 *
 * After a failure, offer only those messages again whose own status is a
 * failure, since the others would be stored twice. See delayq_offer_message for
 * _UNKNOWN. After _PROTOCOL the message may be stored, otherwise it is not.
 */
DELAYQ_API delayq_status delayq_offer_many(delayq *q, delayq_message *messages,
                                           size_t count);

/*
 * delayq_tick -- move the due items to the ready list; for your own loop.
 *
 *   wait_ms    out, always set, may be NULL: call again after this many ms, or
 *              sooner if one of delayq_fds is readable. 0: more work is
 *              pending, so call again now. At most max_wait_ms. After a
 *              failure: the time until the next attempt, in ms
 *
 * A program that also takes should first take, with timeout 0, until
 * DELAYQ_EMPTY, and then tick, right before it sleeps. After such takes a tick
 * also asks the server to report the next push. With options.max_late_ms a tick
 * moves nothing to the ready list. Due items stay in the set until a take.
 *
 * Returns      DELAYQ_OK, or any server failure (a transfer loses no item; the
 *              next tick tries again). With an outbox also _FULL of an offer
 * Blocks       for connecting and one transfer. It does not wait for the
 *              subscriber, nor for pushes. While nothing is due it only reads
 *              the clock and, at most once a millisecond, its sockets
 * Redis        1 script, O(log n) per item moved, at most options.batch; with
 *              a Redisson wire O(n), see >>limits
 */
DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms);

/*
 * delayq_take -- get the next item; also moves the due items.
 *
 *   item         out; see delayq_item for how long its payload lives
 *   timeout_ms   0: don't wait; > 0: the longest wait; DELAYQ_FOREVER
 *
 * Returns      DELAYQ_OK       an item
 *              DELAYQ_EMPTY    none within the timeout
 *              DELAYQ_WOKEN    delayq_wake was called; only if timeout_ms is
 *                              not 0
 *              any server failure. After _UNKNOWN or _PROTOCOL an item that
 *              the server had handed out is lost; with a lease it comes again
 * Blocks       for timeout_ms and a round trip. If a take of 10 s or longer
 *              gets no item while other handles wait, a second round trip
 *              reports its end to them. With timeout 0: a round trip; none
 *              while nothing is due and the subscriber is open (the second
 *              empty take in a row opens it)
 * Redis        1 script; 0.2 commands a second while it waits (see poll_ms)
 *
 * Transient faults (_IO, _TIMEOUT, _AGAIN, _READONLY, _UNKNOWN) don't end a
 * take that waits. It reports them to options.log, and tries again until the
 * timeout. If the last try fails, too, the take returns its fault, or _UNKNOWN
 * if any try lost a reply. All other faults end a take at once. If a take loses
 * an item without a lease, but returns no failure, only the log reports it.
 *
 * With options.max_late_ms one script moves at most about 700 small late items
 * to the dead letters. If there are more, a take that waits goes on at once,
 * and one with timeout 0 returns DELAYQ_EMPTY: call again.
 */
DELAYQ_API delayq_status delayq_take(delayq *q, delayq_item *item,
                                     int64_t timeout_ms);

/* delayq_take_many -- get up to max items, 1 to 10,000, in one round trip.
 * Otherwise as delayq_take. It waits only for the first item. It may return
 * fewer items than are ready, since a script stops after 256 KiB. count: out,
 * the number of items. */
DELAYQ_API delayq_status delayq_take_many(delayq *q, delayq_item *items,
                                          size_t max, size_t *count,
                                          int64_t timeout_ms);

/*
 * delayq_ack -- confirm that a leased item is done, and remove it.
 *
 * Returns      DELAYQ_OK     removed
 *              DELAYQ_GONE   the lease ended and the item was moved or taken
 *                            again, or an ack, nack, extend, cancel or the like
 *                            has ended the ticket; nothing was changed
 *              DELAYQ_ERR_ARG  an item without a lease, or of a broadcast
 *              any server failure; DELAYQ_ERR_UNKNOWN also if a reply was lost
 *              and the item is no longer there
 *
 * An item whose lease has ended can still be acked until somebody moves or
 * takes it. The same holds for nack, extend and bury.
 */
DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item);

/* delayq_ack_many -- ack `count` items, up to 500 in a round trip, and set
 * `acked` in each. Returns DELAYQ_OK if all were acked, else the first failure,
 * else DELAYQ_GONE. After a failure other than a lost reply no ack is sent. */
DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count);

/*
 * delayq_ack_take -- ack an item and take the next one in one round trip.
 *
 *   item   in: the item to ack (its ticket is enough), or a zeroed item to take
 *          without an ack. out: the next item, and in `acked` the ack's status
 *
 * Returns the status of the take, as delayq_take. `acked` is the status of the
 * ack: DELAYQ_OK, DELAYQ_GONE, DELAYQ_ERR_UNKNOWN (its reply was lost), or the
 * failure that prevented the ack. After DELAYQ_EMPTY and DELAYQ_WOKEN the
 * ack is done. If the ack isn't done, *item keeps its ticket, but not its
 * payload: call again. If an outbox doesn't accept the ack, there is no take.
 */
DELAYQ_API delayq_status delayq_ack_take(delayq *q, delayq_item *item,
                                         int64_t timeout_ms);

/*
 * delayq_nack -- report that a leased item is not done: it is delivered again.
 *
 *   delay_ms   >= 0: deliver it after this many ms
 *              DELAYQ_BACKOFF: after backoff_ms, doubled for each further
 *              attempt, up to backoff_max_ms; half of the delay is random
 *              DELAYQ_RELEASE: at once, and the attempt does not count (for
 *              an item on which the program has not begun to work)
 *
 * Otherwise as delayq_ack. The delivery may be up to a round trip late. A nack
 * ends the ticket: a later nack or ack of the item returns DELAYQ_GONE. If the
 * attempt is unknown, the back-off does not grow.
 */
DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms);

/* delayq_extend -- make a lease end lease_ms from now (0: options.lease_ms).
 * Puts the new ticket into the item. Otherwise as delayq_ack. */
DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms);

/* delayq_bury -- give up a leased item: it becomes a dead letter with the
 * reason "buried". why: NULL, or a text for delayq_dead.why, which is copied.
 * At most 200 bytes of it are kept, in whole characters if it is UTF-8; control
 * characters in it become spaces. Otherwise as delayq_ack. */
DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item,
                                     const char *why);

/* delayq_cancel -- remove an offered item that was not moved or taken yet.
 * Returns DELAYQ_OK if it will never be delivered, DELAYQ_GONE if it was moved,
 * taken, rescheduled, replaced or removed before, DELAYQ_ERR_ARG if *ticket is
 * not a ticket, or any server failure, as delayq_ack. O(n) with a mirror. */
DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket);

/*
 * delayq_cancel_key -- remove the item that was offered under a key, if it is
 * still pending, and free the key: the next offer under it is stored.
 *
 *   key    1 to 256 bytes
 *
 * Returns    DELAYQ_OK          the item will never be delivered
 *            DELAYQ_GONE        the item was moved, taken or canceled before,
 *                               or the key was free already. The key is free
 *                               now
 *            DELAYQ_ERR_UNKNOWN the reply was lost, so the cancel may have
 *                               happened. The request is not sent again, since
 *                               it could cancel an item that somebody else has
 *                               offered under the key meanwhile
 *            any other server failure, as delayq_cancel
 * Redis      1 script, O(log n); O(n) with a mirror
 *
 * To refuse a second item with the key until the first one is done, call this
 * after each ack that returned DELAYQ_OK, and set key_ttl_ms longer than the
 * life of any item. The key holds the ticket of the item's offer. An item that
 * is leased, or was rescheduled, nacked or released, has another ticket. Such
 * an item stays as it is, the key is freed, and the status is DELAYQ_GONE.
 *
 * With an outbox the cancel is an op in the ring of the offers. It is sent
 * after the ops before it, and takes effect once.
 */
DELAYQ_API delayq_status delayq_cancel_key(delayq *q, const char *key);

/* delayq_reschedule -- make a pending item due delay_ms (>= 0) from now.
 * Sets *ticket to the new ticket. Afterwards delayq_message.replace no longer
 * finds the item. So if it has a key, offer it again with replace instead.
 * Otherwise as delayq_cancel, but O(log n) even with a mirror. */
DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms);

/*
 * delayq_peek -- return pending items, leased ones among them, in the order of
 * their due times, and change nothing.
 *
 *   items, max   room for max items
 *   count        out: the number of items. There may be more: a script stops
 *                after 256 KiB. For the next page, pass the last item's ticket
 *   after        NULL or "": from the start; else the items after this one,
 *                even if it is no longer there. If an element can't be decoded,
 *                or its score is not a due time, its ticket is a position in
 *                the set. Such a ticket is valid only for the next page, and
 *                items that are moved between the two pages may shift it
 *
 * Returns      DELAYQ_OK, DELAYQ_EMPTY (none), or any server failure
 * Redis        1 script, O(log n) + O(max)
 */
DELAYQ_API delayq_status delayq_peek(delayq *q, delayq_item *items, size_t max,
                                     size_t *count, const delayq_ticket *after);

/* delayq_count -- count the items of the queue, and the work of this handle.
 * The handle's own counters are set even after a failure. 1 script, which reads
 * no payload. The earliest due time needs up to 75 look-ups, O(log n) each. */
DELAYQ_API delayq_status delayq_count(delayq *q, delayq_counts *counts);

/* delayq_count_due -- for a histogram: counts[i] = the number of pending items
 * that are due at due_ms[i] (ms since 1970) or before. n: 1 to 1,000, else
 * DELAYQ_ERR_ARG. O(n log p) for p pending items. */
DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts);

/*
 * delayq_pause -- stop the queue for all handles on all machines, or resume it.
 *
 *   on    1: pause, 0: resume
 *
 * While a queue is paused, no handle moves its items or takes from it. Pauses,
 * transfers and takes are atomic scripts, so no request gets an item once the
 * server has run the pause. A take ends with DELAYQ_EMPTY at its timeout, and a
 * tick moves nothing. Neither polls more often than on an empty queue. Items
 * that a handle has fetched before the pause are handed out, since they are
 * taken already. All other calls, such as offers, acks and cancels, work as
 * usual. If a lease ends, its item stays pending. With options.max_late_ms,
 * items that become too late during the pause become dead letters after it. A
 * resume wakes all handles that wait, on all machines.
 *
 * A pause lasts until somebody resumes the queue, even if the programs end, or
 * the server is restarted and keeps its data. A second pause changes nothing. A
 * second resume only wakes the handles. delayq_clear does not end a pause.
 * delayq_counts.paused is the time at which the pause began.
 *
 * Redisson and handles older than 0.3 ignore a pause: they still move and take.
 *
 * Returns    DELAYQ_OK         the queue is paused, or resumed
 *            DELAYQ_ERR_AUTH   also if the ACL forbids the key delayq_paused:T
 *            any server failure
 * Blocks     for one round trip, also if the handle has an outbox
 * Redis      1 script, O(1)
 */
DELAYQ_API delayq_status delayq_pause(delayq *q, int on);

/*
 * delayq_load_scripts -- load all scripts of this version into the server, for
 * programs that are built with DELAYQ_NO_LUA.
 *
 * Other programs load each script when it is needed. Programs without Lua can
 * only call scripts (EVALSHA). While a script is missing on the server, calls
 * that need it return DELAYQ_ERR_AGAIN with an explanation, and a take waits
 * for the script until its timeout. An outbox keeps all its ops meanwhile, and
 * sends them once the scripts are loaded.
 *
 * A server forgets its scripts when it restarts, at SCRIPT FLUSH, and at a
 * failover: from Redis 7 on, replicas don't get them. So call this at each
 * start of the server, or every minute: if the scripts are there, a call
 * changes nothing. On a cluster it loads them into the node that has q's queue.
 *
 * Each version has scripts of its own: load those of the version with which the
 * devices are built. One server can hold the scripts of several versions.
 *
 * Returns    DELAYQ_OK       all are loaded
 *            DELAYQ_ERR_ARG  this program itself is built with DELAYQ_NO_LUA
 *            any server failure; then some of them may be loaded
 * Blocks     for a round trip per script, also if the handle has an outbox
 * Redis      SCRIPT LOAD of each script, 110 KB in all
 */
DELAYQ_API delayq_status delayq_load_scripts(delayq *q);

/* delayq_clear -- remove all pending, leased and ready items, and the stream of
 * a broadcast. The dead letters and the keys of offers stay. removed: out, the
 * number of removed items; may be NULL. O(1) for the server's main thread. */
DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed);

/* delayq_dead_peek -- get up to max dead letters, the oldest first, beginning
 * with number `from` (0 is the oldest). Returns DELAYQ_OK, DELAYQ_EMPTY or any
 * server failure. O(from + max). It stops after 256 KiB, so more may exist. */
DELAYQ_API delayq_status delayq_dead_peek(delayq *q, delayq_dead *letters,
                                          size_t max, size_t *count,
                                          size_t from);

/* delayq_dead_redrive -- make up to max dead letters ready, the oldest first,
 * as if they had never been handed out. Letters that can't be decoded go to the
 * end of the dead letters. With options.max_late_ms the others become pending
 * items that are due now. `count`: out, the number of redriven letters; may be
 * NULL. A call stops after 256 KiB. In a broadcast: DELAYQ_ERR_ARG. */
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
 * Returns      DELAYQ_OK       a queue has items: take from each with timeout 0
 *              DELAYQ_EMPTY    nothing within the timeout
 *              DELAYQ_WOKEN    delayq_wake was called on one of them
 *              any server failure; transient ones don't end it, as in a take
 * Blocks       for timeout_ms; with timeout 0 for a connect and a round trip of
 *              all queues in parallel. A silent server delays no other queue
 * Redis        for each queue as in delayq_tick
 *
 * While a queue has a ready item, delayq_wait returns at once, so take it
 * before the next call. If the take fails, its queue is ignored for 0.1 s.
 */
DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms);

/* delayq_wake -- end at once the take, wait or flush on q, or else the next one
 * with a timeout; and a poll() of your own on delayq_fds. Any thread or signal
 * handler may call it while q is open. */
DELAYQ_API void delayq_wake(delayq *q);

/*
 * delayq_flush -- wait until everything in the outbox is settled.
 *
 * Returns      DELAYQ_OK           the outbox is empty, and nothing was dropped
 *                                  since the last flush
 *              DELAYQ_WOKEN        delayq_wake was called, maybe before
 *              DELAYQ_ERR_TIMEOUT  the outbox isn't empty yet, and nothing has
 *                                  failed
 *              DELAYQ_ERR_ARG      no outbox, or the handle isn't open
 *              else the failure of the last op that was dropped since the last
 *                                  flush; else, if the outbox isn't empty, the
 *                                  failure of the connection or of the next op
 * Blocks       for timeout_ms, as in delayq_take
 */
DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms);

/* delayq_outbox -- get the state of the outbox. Sends nothing.
 * Returns DELAYQ_OK, or DELAYQ_ERR_ARG if there is no outbox. */
DELAYQ_API delayq_status delayq_outbox(const delayq *q,
                                       delayq_outbox_state *state);

/*
 * delayq_fds -- the descriptors to poll() for reading until the next tick.
 *
 *   fds, max    room for max descriptors; 3 are enough
 *
 * Returns the number of stored descriptors. They change at a reconnect, so call
 * this before each poll(). If one is readable, call delayq_tick, or delayq_take
 * with timeout 0. You need not poll for writing, since wait_ms is short while
 * output is pending. On Windows `fds` are SOCKETs whose values fit into an int,
 * for select or WSAPoll. Don't use WSAEventSelect on them: a call that sleeps
 * cancels it.
 */
DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max);

/* delayq_errmsg -- why the last call on q has failed, in one line; "" if it has
 * not failed. Never contains a password. Lives until the next call on q. */
DELAYQ_API const char *delayq_errmsg(const delayq *q);

/* delayq_strstatus -- return a status in words, as a constant string. */
DELAYQ_API const char *delayq_strstatus(delayq_status status);

#ifdef __cplusplus
}
#endif

#endif /* DELAYQ_H */

/*=============================================================================
 * You can stop reading here. The implementation follows.
 *
 * An API call makes operations (ops), such as an ack. A lane holds ops, and
 * sends them in order, with at most one request in flight. dq_decide decides
 * about all retries, except those of probes. Only dq_sleep sleeps.
 *
 * Contents, from the ground up. Each section uses only the sections above it:
 *
 *     >>system         the functions of a port: clock, random bytes, sockets
 *     >>numbers        numbers in decimal and hex, back-off
 *     >>elements       the bytes of an element
 *     >>errors-inside  statuses, error texts
 *     >>url            the URL
 *     >>tls            TLS
 *     >>scripts        the Lua that runs in the server
 *     >>protocol       writing requests, reading replies
 *     >>schedule       the time of the next poll
 *     >>waiters        which of the handles that wait on a queue acts
 *     >>connections    dialing, login, probe, redirections, back-off
 *     >>ops            the operations (ops) of API calls; an outbox's rings
 *     >>lanes          ops in order, with one request in flight; retries
 *     >>keep           the image of an outbox that survives the program
 *     >>subscriber     the socket for messages from the server
 *     >>waiting        dq_step, which moves all lanes, and dq_sleep
 *     >>taking         transfers and takes
 *     >>handles        open and close; dq_do; ticks, takes, waits
 *     >>offers         offers
 *     >>tickets        acks, cancels, and other ops on one item
 *     >>queries        peek, count, pause, clear, dead letters
 *
 * The path of one request, an ack:
 *
 *     delayq_ack_many    checks the arguments; makes a lane with these acks
 *     dq_do              Without an outbox, dq_wait_run adds the lane to the
 *                        handle, steps and sleeps until all ops are settled.
 *                        With one, dq_outbox_accept copies each op to a ring,
 *                        which has a lane of its own, and `acked` becomes OK
 *     dq_step            reads the sockets (dq_conn_pump) and steps all lanes
 *     dq_lane_step       moves a lane, with these functions:
 *       dq_lane_connect    connects, logs in and probes, one step at a time
 *                          (dq_lane_ensure)
 *       dq_lane_plan       selects the first ops that can share a request
 *       dq_lane_write      writes the request: verb->writer, dq_conn_submit
 *       dq_lane_read       turns the reply into a status; verb->reader reads
 *                          the reply and settles the ops
 *       dq_decide          decides whether the request is done or sent again,
 *                          and whether its ops are kept, dropped or failed
 *     dq_op_settle       counts the op, and sets `acked` or, for an op of a
 *                        ring, calls options.settled (dq_ring_settle)
 *     dq_sleep           sleeps until dq_wait_next's time, or until input comes
 *
 * The path of a take is the same from dq_lane_step on. Its lane is
 * q->fetch.lane. dq_fetch_send makes the op of the take, dq_read_fetch keeps
 * the reply, and dq_fetch_hand_out hands out the items in the reply.
 *
 * The sections that own the state:
 *
 *     conn->cmd, at, host, err, clock_...   Connections; sub until its login
 *     conn->known        Lanes sets it and clock_number, Connections clears it
 *     conn->now_us       the local time, read when a call begins, by dq_sleep,
 *                        dq_conn_submit, dq_conn_read, and after slow work
 *     conn->sub, sub_..., tracking   Subscriber; dq_conn_close ends tracking
 *     q->setup           Lanes; Subscriber requests tracking with this lane
 *     q->next_poll_us, not_before_us, poll_sent, ready, quiet_polls
 *                        Schedule and Waiters; a loss clears not_before_us
 *     q->sub_sent        Subscriber
 *     q->subscribed, list_tracked, waiter, will_wait    Waiters
 *     q->lanes           Lanes; Handles and Waiting add lanes to this list
 *     q->fetch           Taking
 *     q->outbox          Ops, Keep, Handles
 *     q->woken           Waiting; the only field that any thread may set
 *
 * Where to look for:
 *
 *     MOVED              dq_conn_parse_redirect sets conn->at. It is called by
 *                        dq_lane_learn and, for a probe, by dq_probe_parse. If
 *                        conn->redirected is set, dq_conn_step connects there.
 *                        dq_decide_refused lets the request be sent again
 *     ASK, TRYAGAIN      dq_decide_moving; an ASK is not followed
 *     a resend after a lost reply    dq_decide. For rings it calls
 *                        dq_decide_ring, for other lanes dq_decide_resend,
 *                        which uses the verb's flags. dq_conn_close decides
 *                        which requests may have run; see lane->unsure
 *     the next poll      q->next_poll_us, which dq_sched_on_reply sets. Each
 *                        other event has a dq_sched_on_... or, for waiters, a
 *                        dq_waiters_on_.... dq_take_is_due, dq_tick_fetch and
 *                        dq_wait_next get the time from dq_wait_fetch_us
 *     a lane that doesn't go on    dq_blocked returns what it waits for
 *     an undecodable element    when it is due, the scripts' split() returns
 *                        nil, and drain_chunk (for a list, take_listed) makes
 *                        it a dead letter. In C dq_elem_parse returns -1. Then
 *                        a take refuses the reply, and a peek shows all bytes
 *     an argument of a script    its writer (dq_write_...), and the list above
 *                        the script; then run `make lua`
 *     a rare branch      a DQ_MARK; `make marks` checks that the tests reach it
 *     a new option       delayq_options; dq_check_options (range, default)
 *     a new error of the server    dq_err_table
 *     a new verb         write its script; then its writer, reader, constant in
 *                        Offers, Tickets or Queries
 *===========================================================================*/

#if defined(DELAYQ_IMPLEMENTATION) && !defined(DELAYQ_IMPLEMENTED)
#define DELAYQ_IMPLEMENTED

/*-----------------------------------------------------------------------------
 * MARK: - System
 * >>system   clock, random bytes, sockets, the wake-up pipe, SIGPIPE
 *
 * Owns everything that differs between operating systems. In other sections no
 * #if depends on the system. This section first declares the functions that
 * each system supplies, and defines them for Windows and POSIX. A port defines
 * them in its own file. The rest of the section uses these functions.
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
#define DQ_TEXT_SIZE 256 /* bytes for the text of an errno */
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
#if defined(__has_include) && !defined(__ANDROID__) /* no getrandom before 9 */
#if __has_include(<sys/random.h>)
#include <sys/random.h>
#endif
#endif
#ifndef CLOCK_MONOTONIC
#error "a system header came first and hides POSIX: compile \
DELAYQ_IMPLEMENTATION in a file of its own, with nothing before it"
#endif
#endif

#ifdef DELAYQ_LIBVALKEY /* a fork of hiredis, with other names */
#include <valkey/valkey.h>
#ifdef DELAYQ_TLS
#include <valkey/tls.h>
#endif
#define redisReader valkeyReader
#define redisAppendFormattedCommand valkeyAppendFormattedCommand
#define redisBufferWrite valkeyBufferWrite
#define redisConnectFd valkeyConnectFd
#define redisFree valkeyFree
#define redisGetReplyFromReader valkeyGetReplyFromReader
#define redisInitiateSSL valkeyInitiateTLS
#define redisReaderFeed valkeyReaderFeed
#define REDIS_BLOCK VALKEY_BLOCK
#define REDIS_ERR VALKEY_ERR
#define REDIS_ERR_IO VALKEY_ERR_IO
#define REDIS_ERR_OOM VALKEY_ERR_OOM
#define REDIS_ERR_PROTOCOL VALKEY_ERR_PROTOCOL
#define REDIS_OK VALKEY_OK
#define REDIS_REPLY_ARRAY VALKEY_REPLY_ARRAY
#define REDIS_REPLY_ERROR VALKEY_REPLY_ERROR
#define REDIS_REPLY_INTEGER VALKEY_REPLY_INTEGER
#define REDIS_REPLY_STRING VALKEY_REPLY_STRING
#elif defined(DELAYQ_HIREDIS)
#include DELAYQ_HIREDIS
#else
#include <hiredis/hiredis.h>
#endif

#ifdef DELAYQ_TLS
#ifndef DELAYQ_LIBVALKEY
#include <hiredis/hiredis_ssl.h>
#endif
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

/* Prevents inlining. The large buffers of an inlined function would stay on the
 * stack while its caller calls other functions. Inlined 64-bit arithmetic would
 * need much code on a small processor. */
#if defined(__GNUC__)
#define DQ_APART __attribute__((noinline))
#else
#define DQ_APART
#endif

/* Names a retry, a recovery or a rare branch. `make marks` checks that the
 * tests reach each mark. */
#ifndef DQ_MARK
#define DQ_MARK(name) ((void)0)
#endif

#ifndef DQ_TEXT_SIZE
#define DQ_TEXT_SIZE 40
#endif
#define DQ_OPEN 0x64713031u
#define DQ_NEVER INT64_MAX
#define DQ_SECOND_US 1000000

/* --- the functions that each system supplies --- */

/* DELAYQ_PORT names a file with the port to another system, for example
 * examples/device/lwip.h. The port file defines the functions below. It also
 * supplies these parts of POSIX, with their constants:
 *
 *     struct pollfd, POLLIN, POLLOUT; socklen_t, struct sockaddr, sockaddr_in,
 *     sockaddr_in6; socket, bind, connect, getsockname, getpeername,
 *     getsockopt, setsockopt, send, recv; inet_pton, htons, htonl
 *
 * It also defines DQ_SPIN_US, the length in us of the busy-wait that ends each
 * sleep, since dq_sys_sleep may be late. If the SO_ERROR of a refused connect
 * is not ECONNREFUSED, the file defines this number as DQ_REFUSED. */
struct pollfd;

/* Returns a monotonic clock in us. Only differences of its readings matter. */
static int64_t dq_sys_now(void);

/* Fill `bytes` with random bytes. Ids contain them, so no two programs may get
 * the same bytes. Returns 0 if this fails; delayq_open then fails, too. */
static int dq_sys_random(unsigned char *bytes, size_t len);

/* Returns the text of an errno. The function may write this text to `room`. */
static const char *dq_sys_strerror(int code, char room[DQ_TEXT_SIZE]);

/* Make a new socket non-blocking and close-on-exec, and keep it from raising
 * SIGPIPE, as far as the system supports this. */
static void dq_sys_set_modes(int fd);

/* Close a socket that no redisContext owns, or an end of the wake-up pipe. */
static void dq_sys_close(int fd);

/* Sleep until one of up to 60 descriptors is ready for its POLLIN or POLLOUT,
 * or the local clock reaches until_us. If until_us is 0, return at once. A
 * socket whose connect has failed is ready for POLLOUT. Returns > 0 if a
 * descriptor is ready, 0 if until_us is reached, < 0 if it ended early. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us);

/* Write one of the n addresses of `host` to `address`, as text. Its index in
 * the list of these addresses, which begins with IPv4, is `number` % n. May
 * block on a name server. Returns 0 if the name has no address. */
static int dq_sys_resolve(const char *host, unsigned number, char address[64]);

#ifdef DELAYQ_PORT
#include DELAYQ_PORT
#endif

#ifdef DQ_WINDOWS

/* --- Windows 10 and later; link with ws2_32 and bcrypt --- */

typedef SOCKET dq_sys_socket;
#define DQ_ERRNO WSAGetLastError()
#define DQ_CONNECTING WSAEWOULDBLOCK
#define DQ_REFUSED WSAECONNREFUSED
#define DQ_HIGH_RESOLUTION 2 /* a timer flag that old headers lack */
#define DQ_SPIN_US 600 /* a timer with this flag may end 500 us late */
#define dq_sys_end() WSACleanup()
#ifdef _MSC_VER
#pragma comment(lib, "ws2_32")
#pragma comment(lib, "bcrypt")
#define DQ_LOAD(p) InterlockedOr((volatile LONG *)(p), 0)
#define DQ_STORE(p, v) InterlockedExchange((volatile LONG *)(p), v)
#define DQ_FENCE() MemoryBarrier()
#endif

static int dq_sys_begin(void) {
    WSADATA data;
    errno = WSAStartup(MAKEWORD(2, 2), &data);
    return errno == 0;
}

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

/* Write the system's message, without the final full stop. A `code` below
 * WSABASEERR is an errno: ECONNREFUSED from dq_sys_is_connected, or one that
 * hiredis has made from the last Winsock error. */
static const char *dq_sys_strerror(int code, char room[DQ_TEXT_SIZE]) {
    DWORD n;
    if (code < WSABASEERR)
        code = code == ECONNREFUSED ? WSAECONNREFUSED : WSAGetLastError();
    n = FormatMessageA(FORMAT_MESSAGE_FROM_SYSTEM |
                           FORMAT_MESSAGE_IGNORE_INSERTS |
                           FORMAT_MESSAGE_MAX_WIDTH_MASK,
                       NULL, (DWORD)code, 0, room, DQ_TEXT_SIZE, NULL);
    while (n > 0 && strchr(" .\r\n", room[n - 1])) n--;
    if (n == 0)
        snprintf(room, DQ_TEXT_SIZE, "Windows Sockets error %d", code);
    else
        room[n] = '\0';
    return room;
}

static void dq_sys_set_modes(int fd) {
    const int exclusive = 1; /* no other socket may bind the same port */
    u_long on = 1;
    ioctlsocket((SOCKET)fd, (long)FIONBIO, &on);
    setsockopt((SOCKET)fd, SOL_SOCKET, SO_EXCLUSIVEADDRUSE,
               (const char *)&exclusive, sizeof exclusive);
    SetHandleInformation((HANDLE)(SOCKET)fd, HANDLE_FLAG_INHERIT, 0);
}

static void dq_sys_close(int fd) {
    closesocket((SOCKET)fd);
}

/* Sleep until a socket has an event or a timer expires. The timeouts of select,
 * WSAPoll and Sleep end at an interrupt of the system clock, up to 15.6 ms
 * late. Since Windows 10 version 1803 a waitable timer is more exact. For
 * events from before the sleep, select is used, since WSAPoll does not report a
 * failed connect before Windows 10 version 2004. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us) {
    HANDLE wakers[2]; /* the event of all sockets, the timer */
    WSANETWORKEVENTS old;
    LARGE_INTEGER due; /* in units of 100 ns; below 0: relative to now */
    fd_set in, out, failed;
    struct timeval none = {0, 0};
    size_t i;
    int ready;
    wakers[0] = CreateEventW(NULL, TRUE, FALSE, NULL);
    wakers[1] = CreateWaitableTimerExW(NULL, NULL, DQ_HIGH_RESOLUTION,
                                       TIMER_ALL_ACCESS);
    if (!wakers[1])
        wakers[1] = CreateWaitableTimerExW(NULL, NULL, 0, TIMER_ALL_ACCESS);
    FD_ZERO(&in);
    FD_ZERO(&out);
    FD_ZERO(&failed);
    for (i = 0; i < count; i++) {
        int reads = (fds[i].events & POLLIN) != 0;
        int writes = (fds[i].events & POLLOUT) != 0;
        if (reads) FD_SET(fds[i].fd, &in);
        if (writes) FD_SET(fds[i].fd, &out);
        FD_SET(fds[i].fd, &failed);
        WSAEventSelect(fds[i].fd, wakers[0],
                       FD_CLOSE | (reads ? FD_READ : 0) |
                           (writes ? FD_CONNECT | FD_WRITE : 0));
        WSAEnumNetworkEvents(fds[i].fd, NULL, &old);
    }
    ResetEvent(wakers[0]);
    ready = count > 0 ? select(0, &in, &out, &failed, &none) : 0;
    due.QuadPart = (dq_sys_now() - until_us) * 10;
    if (due.QuadPart < -3600 * 10LL * DQ_SECOND_US)
        due.QuadPart = -3600 * 10LL * DQ_SECOND_US;
    if (ready == 0 && due.QuadPart < 0) {
        SetWaitableTimer(wakers[1], &due, 0, NULL, NULL, FALSE);
        ready = WaitForMultipleObjects(2, wakers, FALSE, INFINITE) !=
                WAIT_OBJECT_0 + 1;
    }
    for (i = 0; i < count; i++) WSAEventSelect(fds[i].fd, NULL, 0);
    CloseHandle(wakers[0]);
    CloseHandle(wakers[1]);
    return ready;
}

#endif
#ifdef DQ_POSIX

/* --- POSIX --- */

#define DQ_SPIN_US 50 /* the timer slack of Linux */

static int64_t dq_sys_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * DQ_SECOND_US + t.tv_nsec / 1000;
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    int fd = open("/dev/urandom", O_RDONLY);
    ssize_t got = fd < 0 ? 0 : read(fd, bytes, len);
    if (fd >= 0) close(fd);
#ifdef GRND_NONBLOCK
    if (fd < 0) got = getrandom(bytes, len, GRND_NONBLOCK); /* a chroot */
#endif
    return got == (ssize_t)len;
}

static const char *dq_sys_strerror(int code, char room[DQ_TEXT_SIZE]) {
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

/* The timeout of poll is in whole milliseconds. nanosleep sleeps for the rest,
 * at most 1 ms, without watching the descriptors. Linux may end a poll late by
 * a thousandth of its timeout, so the timeout is shortened by a thousandth. */
static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us) {
    int64_t left_us = until_us - dq_sys_now(), ms;
    struct timespec rest;
    int ready;
    do {
        ms = (left_us - left_us / 1000) / 1000;
        ms = ms > 3600000 ? 3600000 : ms > 0 ? ms : 0;
        ready = poll(fds, (nfds_t)count, (int)ms);
        if (ready != 0) return ready;
        left_us = until_us - dq_sys_now();
    } while (left_us > 1000);
    rest.tv_sec = 0;
    rest.tv_nsec = (long)left_us * 1000;
    return left_us > 0 ? nanosleep(&rest, NULL) : 0;
}

#endif

#ifndef DELAYQ_PORT

static int dq_sys_resolve(const char *host, unsigned number, char address[64]) {
    struct addrinfo hints, *all = NULL, *a;
    unsigned n[2] = {0, 0}; /* counts of IPv4 and of IPv6 addresses */
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

/* --- types and macros that differ between systems --- */

/* For all systems except Windows: the type of a socket, macros that start and
 * end the use of sockets, the last socket error, and the errors of a pending
 * and of a refused connect. */
#ifndef DQ_WINDOWS
typedef int dq_sys_socket;
#define dq_sys_begin() 1
#define dq_sys_end() ((void)0)
#define DQ_ERRNO errno
#define DQ_CONNECTING EINPROGRESS
#ifndef DQ_REFUSED
#define DQ_REFUSED ECONNREFUSED
#endif
#endif

typedef union dq_sys_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
#ifdef DQ_POSIX
    struct sockaddr_un path;
#endif
} dq_sys_address;

/* Load and store an int that another thread or a signal handler may change.
 * DQ_FENCE completes all earlier stores before any later store begins. */
#if defined(__GNUC__)
#define DQ_LOAD(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
#define DQ_STORE(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
#define DQ_FENCE() __atomic_thread_fence(__ATOMIC_RELEASE)
#elif !defined(DQ_LOAD)
#define DQ_LOAD(p) (*(p))
#define DQ_STORE(p, v) (*(p) = (v))
static void dq_sys_nothing(void) {
}
static void (*volatile dq_sys_fence)(void) = dq_sys_nothing;
#define DQ_FENCE() dq_sys_fence() /* a compiler can't inline this call */
#endif

/* --- fork, unix sockets and pipes, or their substitutes --- */

/* dq_sys_pid returns a number that differs between a process and its fork.
 * dq_sys_refuse_path returns NULL, or why no unix socket can have this path.
 *
 * dq_sys_open_pipe opens the non-blocking wake-up pipe. delayq_wake, perhaps in
 * a signal handler, writes to fds[1], and dq_sleep polls fds[0].
 * dq_sys_open_pipe returns 0 with errno if it fails. It also starts Winsock,
 * and dq_sys_close_pipe ends Winsock. So a handle uses sockets only between
 * these two calls. */
static void dq_sys_close_pipe(const int fds[2]) {
    dq_sys_close(fds[0]);
    if (fds[1] != fds[0]) dq_sys_close(fds[1]);
    dq_sys_end();
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

/* Open a datagram socket on the loopback interface, and connect it to itself,
 * so that it receives nothing from other sockets. */
static int dq_sys_open_pipe(int fds[2]) {
    dq_sys_address own;
    socklen_t size = sizeof own.v4;
    dq_sys_socket s;
    int error;
    if (!dq_sys_begin()) return 0;
    s = socket(AF_INET, SOCK_DGRAM, 0);
    fds[0] = fds[1] = (int)s;
    if (fds[0] >= 0) dq_sys_set_modes(fds[0]);
    memset(&own, 0, sizeof own);
    own.v4.sin_family = AF_INET;
    own.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fds[0] >= 0 && bind(s, &own.any, size) == 0 &&
        getsockname(s, &own.any, &size) == 0 && connect(s, &own.any, size) == 0)
        return 1;
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

/* Call dq_sys_block_sigpipe before, and dq_sys_unblock_sigpipe after, each call
 * of hiredis or OpenSSL that may write to a lost connection. Then the program
 * gets no SIGPIPE. `failed` is 1 if the call failed: it may have raised one. */
#if !defined(DQ_POSIX) || defined(SO_NOSIGPIPE)

/* The system has no SIGPIPE, or dq_sys_set_modes has disabled it. */
typedef char dq_sys_signals;
#define dq_sys_block_sigpipe(signals) ((void)(signals))
#define dq_sys_unblock_sigpipe(signals, failed) ((void)(failed))

#else

/* hiredis and OpenSSL write without MSG_NOSIGNAL. So SIGPIPE is blocked in this
 * thread during a write, and a SIGPIPE that the write has raised is removed. A
 * SIGPIPE that was already pending stays pending. (sigprocmask changes only the
 * thread's mask on Linux, OpenBSD and illumos, the systems without
 * SO_NOSIGPIPE. pthread_sigmask would need -lpthread before glibc 2.32.) */
typedef struct dq_sys_signals {
    sigset_t sigpipe, mask; /* only SIGPIPE; the thread's former mask */
    int pending;            /* a SIGPIPE was pending before the write */
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
#ifdef __OpenBSD__ /* no sigtimedwait; sigwait returns at once: it is pending */
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

/* Returns the socket of a context. On Windows hiredis stores a 64-bit SOCKET,
 * but Windows uses only 32 bits of any handle. */
static int dq_sys_fd(const redisContext *c) {
    return (int)c->fd;
}

/* Write as much of the output buffer as the socket accepts. *sent becomes 1 if
 * all of it was written. A context that has already failed writes nothing. If
 * the system has MSG_NOSIGNAL, and there is no TLS, send() writes a small
 * request with one system call, not three. hiredis writes large ones, and frees
 * its buffer. libvalkey writes all, since it hides the length of its buffer. */
static int dq_sys_write(redisContext *c, int tls, int *sent) {
    dq_sys_signals signals;
    int status;
    *sent = 0;
    if (c->err) return REDIS_ERR;
#if defined(DQ_POSIX) && defined(MSG_NOSIGNAL) && !defined(DELAYQ_LIBVALKEY)
    if (!tls && sdslen(c->obuf) <= 4096) {
        size_t len = sdslen(c->obuf);
        ssize_t n = send(c->fd, c->obuf, len, MSG_NOSIGNAL);
        if (n >= 0) { /* else redisBufferWrite reports the error */
            memmove(c->obuf, c->obuf + n, len - (size_t)n + 1);
            sdssetlen(c->obuf, len - (size_t)n);
            *sent = n == (ssize_t)len;
            return REDIS_OK;
        }
    }
#else
    (void)tls;
#endif
    dq_sys_block_sigpipe(&signals);
    status = redisBufferWrite(c, sent);
    if (c->err == REDIS_ERR_OOM) *sent = 1; /* hiredis failed after the write */
    dq_sys_unblock_sigpipe(&signals, status != REDIS_OK);
    return status;
}

/* Read the pending input without blocking. Returns its length, 0 if there is
 * none, below 0 if the context has failed. Under TLS a read may also write, and
 * so raise SIGPIPE. (redisBufferRead would need 16 KB of stack.) */
static int dq_sys_read(redisContext *c, int tls, char *to, size_t size) {
    dq_sys_signals signals;
    int n;
    if (c->err && tls) return -1; /* without TLS, a read may still work */
    if (tls) dq_sys_block_sigpipe(&signals);
#if defined(HIREDIS_MAJOR) && HIREDIS_MAJOR < 1 /* no c->funcs yet */
    n = (int)recv(c->fd, to, size, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
        n = 0;
    } else if (n <= 0) {
        c->err = n < 0 ? REDIS_ERR_IO : REDIS_ERR_EOF;
        snprintf(c->errstr, sizeof c->errstr, "Server closed the connection");
        n = -1;
    }
#else
    n = (int)(c->funcs->read)(c, to, size); /* lwIP defines a macro read() */
#endif
    if (tls) dq_sys_unblock_sigpipe(&signals, n < 0);
    return n;
}

/* --- time --- */

/* A call busy-waits for its reply for at most this many us before it sleeps. A
 * virtual machine needs about 100 us to wake two processors. */
#if defined(DQ_POSIX) && defined(_SC_NPROCESSORS_ONLN)
#define DQ_AWAKE_US 100
#define dq_sys_processors() sysconf(_SC_NPROCESSORS_ONLN)
#else
#define DQ_AWAKE_US 0
#define dq_sys_processors() 1
#endif

/* Returns a random number below 65,536, for back-offs and other delays. */
static unsigned dq_sys_random16(void) {
    unsigned char r[2] = {0, 0};
    dq_sys_random(r, 2);
    return (unsigned)r[0] << 8 | r[1];
}

/* Returns an entry for dq_sys_sleep. `events` is POLLIN, POLLOUT, or both. */
static struct pollfd dq_sys_watch(int fd, int events) {
    struct pollfd p;
    assert(fd >= 0 && events != 0);
    p.fd = (dq_sys_socket)fd;
    p.events = (short)events;
    p.revents = 0;
    return p;
}

/* Sleep until a descriptor is ready, a signal comes, or the local clock reaches
 * until_us. Busy-wait for the last DQ_SPIN_US, as dq_sys_sleep may be late. */
static void dq_sys_poll_until(struct pollfd *fds, size_t count,
                              int64_t until_us) {
    assert(count <= 60);
    if (dq_sys_sleep(fds, count, until_us - DQ_SPIN_US)) return;
    while (dq_sys_now() < until_us) {
    }
}

/* --- addresses and connects --- */

/* Parse an IP address or, if `port` is 0, the path of a unix socket. Returns
 * the size of the address, or 0 if `text` is the name of a host. */
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

/* Begin to connect a new socket. Returns it, or -1 with errno if this fails. */
static int dq_sys_connect(const dq_sys_address *to, size_t size) {
    dq_sys_socket s = socket(to->any.sa_family, SOCK_STREAM, 0);
    int fd = (int)s, on = 1, error;
    errno = DQ_ERRNO;
    if (fd < 0) return -1;
    dq_sys_set_modes(fd);
    /* A unix socket lacks this option, and does not need it. */
    setsockopt(s, IPPROTO_TCP, TCP_NODELAY, (const char *)&on, sizeof on);
    if (connect(s, &to->any, (socklen_t)size) == 0) return fd;
    error = DQ_ERRNO;
    if (error == DQ_CONNECTING || error == EINTR) return fd;
    dq_sys_close(fd);
    errno = error;
    return -1;
}

/* Set *to to the IP address to which a socket is connected. Returns the size of
 * the address, or 0 if it is unknown, for example for a unix socket. */
static size_t dq_sys_peer(int fd, dq_sys_address *to) {
    socklen_t n = sizeof *to;
    memset(to, 0, sizeof *to);
    if (getpeername((dq_sys_socket)fd, &to->any, &n) != 0) return 0;
    return to->any.sa_family == AF_INET || to->any.sa_family == AF_INET6
               ? (size_t)n
               : 0;
}

/* Returns 1 if a connect has succeeded, 0 if it is in progress, -1 with errno
 * if it has failed. A socket may have connected to itself, if nobody listens on
 * a port of the ephemeral range. This counts as a failure. */
static int dq_sys_is_connected(int fd) {
    dq_sys_socket s = (dq_sys_socket)fd;
    struct pollfd p = dq_sys_watch(fd, POLLOUT);
    int error = 0;
    socklen_t size = sizeof error, n = sizeof(dq_sys_address);
    dq_sys_address own, peer;
    if (dq_sys_sleep(&p, 1, 0) <= 0) return 0;
    if (getsockopt(s, SOL_SOCKET, SO_ERROR, (char *)&error, &size) != 0)
        error = DQ_ERRNO;
    memset(&own, 0, sizeof own);
    if (error == 0 && getsockname(s, &own.any, &n) == 0 &&
        dq_sys_peer(fd, &peer) == (size_t)n &&
        memcmp(&own, &peer, sizeof own) == 0)
        error = DQ_REFUSED;
    errno = error == DQ_REFUSED ? ECONNREFUSED : error;
    return error == 0 ? 1 : -1;
}

/* Read input without blocking. Returns its length, <= 0 if there is none. */
static int dq_sys_receive(int fd, char *to, unsigned short size) {
    return (int)recv((dq_sys_socket)fd, to, size, 0);
}

/*-----------------------------------------------------------------------------
 * MARK: - Numbers
 * >>numbers   numbers in decimal and hex, back-off
 *
 * Owns the limit of due times. It has no state.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_DUE 9007199254740991 /* ms since the epoch: 2^53 - 1 */

/* Write a number in decimal, without a NUL. Returns its length, at most 20. */
static size_t dq_num_decimal(char *to, int64_t value) {
    char text[20], *end = text + sizeof text, *at = end;
    uint64_t v = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--at = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    if (value < 0) *--at = '-';
    assert(at >= text);
    memcpy(to, at, (size_t)(end - at));
    return (size_t)(end - at);
}

/* Returns the number with which a text begins, but at most DQ_MAX_DUE. */
static int64_t dq_num_due(const char *p) {
    int64_t value = 0;
    for (; *p >= '0' && *p <= '9'; p++)
        value = value < DQ_MAX_DUE / 10 ? value * 10 + (*p - '0') : DQ_MAX_DUE;
    return value;
}

/* Returns the number with which a text begins. Returns -1 if the number does
 * not have exactly `len` digits, or is above `max`. */
static int dq_num_small(const char *text, size_t len, int max) {
    int64_t value = dq_num_due(text);
    if (len == 0 || strspn(text, "0123456789") != len) return -1;
    return value <= max ? (int)value : -1;
}

/* Write bytes as hex digits, then a NUL. Returns a pointer to the NUL. */
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

/* Returns the time until the next attempt, in the unit of `base` and `cap`. It
 * is `base`, doubled for each failure after the first, but at most `cap`. Half
 * of it is random, so that many programs don't retry at the same moment. */
static int64_t dq_num_backoff(int64_t base, int64_t cap, unsigned failures) {
    int64_t d = base;
    assert(base > 0 && cap > 0 && cap <= DQ_MAX_DUE);
    while (failures-- > 1 && d < cap) d *= 2;
    if (d > cap) d = cap;
    return d / 2 + (int64_t)((double)(d / 2) * dq_sys_random16() / 65536);
}

/*-----------------------------------------------------------------------------
 * MARK: - Elements
 * >>elements   the bytes of an element, an id, a ticket
 *
 * Owns the layout of elements, ids and tickets. The scripts, section Keep,
 * dq_write_take (for the ids of leases) and dq_outbox_is_own (for the bytes of
 * the handle) also read or write some bytes of ids.
 *
 *     native, Redisson >= 3.21.1   u8 k, id of k bytes, L, payload
 *     Redisson <= 3.21.0           id of 8 bytes (a double), L, payload
 *
 * k is 16 if delayq wrote the element, 8 if Redisson did. L is the payload's
 * length as the server's unsigned long: 8 bytes, or 4 on 32-bit servers and on
 * Windows. An element fits a format if L equals the number of bytes that follow
 * it. No element fits both sizes of L, or both values of k. However, an element
 * with an old id that begins with 16 or 8 may fit both formats. It is decoded
 * in the format of the handle's wire. That is correct as long as all handles on
 * the queue, and Redisson, use the same wire.
 *
 * An id of 16 bytes consists of
 *
 *     8 bytes   the order: the server's clock in us, big-endian
 *     5 bytes   random, the same in all ids of a handle
 *     1 byte    lower 6 bits: the number of releases; upper 2: flags, now 0
 *     2 bytes   the attempt, big-endian
 *
 * A release lowers the attempt by 1, so the next lease has the same attempt as
 * the last lease. The number of releases makes their ids differ.
 *---------------------------------------------------------------------------*/

#define DQ_ELEM_HEADER_MAX 25
#define DQ_ELEM_PREFIX_MAX 17
#define DQ_ELEM_OLD 0 /* kind of the older layout; other kinds are numbers k */

static void dq_elem_put_uint(unsigned char *to, int size, int big,
                             uint64_t value) {
    int i;
    for (i = 0; i < size; i++, value >>= 8)
        to[big ? size - 1 - i : i] = (unsigned char)value;
}

static uint64_t dq_elem_get_uint(const unsigned char *from, int size, int big) {
    uint64_t value = 0;
    int i;
    for (i = 0; i < size; i++)
        value = value << 8 | from[big ? i : size - 1 - i];
    return value;
}

/* Returns by how many bits the order is shifted to the left in an id. */
static int dq_elem_order_shift(const delayq *q) {
    return q->wire->old_first ? 11 : 0;
}

/* Write the header for a payload of `len` bytes. Returns the header's size. */
static size_t dq_elem_write_header(const delayq *q, const unsigned char id[16],
                                   size_t len, unsigned char *to) {
    const delayq_conn *conn = q->conn;
    size_t n = 0, id_len = q->wire->id_len;
    assert(conn->long_size == 8 || (conn->long_size == 4 && len >> 31 == 0));
    if (id_len == 16) to[n++] = 16;
    memcpy(to + n, id, id_len);
    n += id_len;
    dq_elem_put_uint(to + n, conn->long_size, conn->long_big, len);
    return n + conn->long_size;
}

/* Returns the kind of an element of n bytes, and sets *start to the offset of
 * its payload. If the element can't be decoded, returns -1 and sets *start to
 * 0. If old_first is 1, an element that fits both formats counts as old. */
static int dq_elem_parse(const unsigned char *e, size_t n, int big,
                         int old_first, size_t *start) {
    int k = n > 0 && (e[0] == 16 || e[0] == 8) ? e[0] : DQ_ELEM_OLD, i;
    for (i = 0; i < 4; i++) { /* two formats, and two sizes of L for each */
        int kind = (i < 2) == (old_first != 0) ? DQ_ELEM_OLD : k;
        size_t at = kind == DQ_ELEM_OLD ? 8 : 1 + (size_t)kind;
        int size = i % 2 == 0 ? 8 : 4;
        *start = at + (size_t)size;
        if (n >= *start && dq_elem_get_uint(e + at, size, big) == n - *start)
            return kind;
    }
    DQ_MARK(undecodable);
    *start = 0;
    return -1;
}

/* Parse an element with the byte order and the wire of this handle. */
static int dq_elem_parse_of(const delayq *q, const unsigned char *e, size_t n,
                            size_t *start) {
    return dq_elem_parse(e, n, q->conn->long_big, q->wire->old_first, start);
}

/* Returns the attempt in an element, or 0 if its id has less than 16 bytes. The
 * first 17 bytes of the element are enough. */
static int dq_elem_attempt(const unsigned char *e, int kind) {
    return kind == 16 ? e[15] << 8 | e[16] : 0;
}

/* Returns the lower 11 bits of the 8-byte ids of q's offers. Bits 7 to 5
 * are 001, so that the id, read as a double, is neither infinite nor NaN. The
 * other bits are random. */
static int dq_elem_old_id_low(const delayq *q) {
    return (q->handle_id[5] & 7) << 8 | 0x20 | (q->handle_id[6] & 0x1f);
}

/* Reserve `count` orders and return the first: the server's time, in us, at
 * which a request sent now would arrive, if it travelled as fast as the fastest
 * one so far. So, except for the error of this estimate, it is above the orders
 * of all offers that have returned, and below those of all later offers. */
static uint64_t dq_elem_next_order(delayq *q, size_t count) {
    const delayq_conn *conn = q->conn;
    uint64_t order =
        (uint64_t)(conn->now_us + conn->clock_offset_us + conn->clock_error_us);
    assert(count > 0);
    if (order <= q->last_order) order = q->last_order + 1;
    q->last_order = order + count - 1;
    return order;
}

/* Make the id of the next offer. Redis sorts elements with the same due time by
 * their bytes, so each id is greater, byte by byte, than the last one. */
static void dq_elem_next_id(delayq *q, unsigned char id[16]) {
    uint64_t order = dq_elem_next_order(q, 1) << dq_elem_order_shift(q);
    if (q->wire->old_first) order |= (uint64_t)dq_elem_old_id_low(q);
    dq_elem_put_uint(id, 8, 1, order);
    memcpy(id + 8, q->handle_id, 5);
    memset(id + 13, 0, 3);
}

static void dq_elem_id_ticket(delayq_ticket *t, int64_t due_ms,
                              const unsigned char *id, size_t id_len) {
    size_t n = dq_num_decimal(t->text, due_ms);
    assert(n + 1 + 2 * id_len < sizeof t->text);
    t->text[n++] = '-';
    dq_num_hex(t->text + n, id, id_len);
}

/* Write the ticket of an element. If the kind is 8, the ticket contains k
 * before the id, since the 8 bytes alone would look like an old id. */
static void dq_elem_ticket(delayq_ticket *t, int64_t due_ms,
                           const unsigned char *e, int kind) {
    size_t id_len = kind == 16 ? 16 : kind == 8 ? 9 : 8;
    dq_elem_id_ticket(t, due_ms, e + (kind == 16), id_len);
}

/* Write the ticket of an element that can't be decoded, or whose score is no
 * due time. The ticket contains the rank, and can only continue a peek. */
static void dq_elem_rank_ticket(delayq_ticket *t, int64_t due_ms,
                                uint64_t rank) {
    unsigned char id[9] = {0xff}; /* other ids of 9 bytes begin with 8 */
    dq_elem_put_uint(id + 1, 8, 1, rank);
    dq_elem_id_ticket(t, due_ms, id, sizeof id);
}

/* Write the first bytes of a ticket's element to `key`, and the length of the
 * due time in `text` to *due_len. Returns the number of bytes in `key`, or 0 if
 * `text` is no ticket. */
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

static void dq_elem_set_ticket_due(delayq_ticket *t, int64_t due_ms) {
    char id[sizeof t->text];
    snprintf(id, sizeof id, "%s", strchr(t->text, '-'));
    memcpy(t->text + dq_num_decimal(t->text, due_ms), id, strlen(id) + 1);
}

/* Returns 1 if a ticket's text is well-formed and ends in a NUL, else 0. */
static int dq_elem_is_ticket(const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t len;
    return memchr(text, 0, sizeof(delayq_ticket)) &&
           dq_elem_ticket_prefix(text, key, &len) > 0;
}

/*-----------------------------------------------------------------------------
 * MARK: - Errors
 * >>errors-inside   statuses, the table of server errors, error texts
 *
 * Owns the error texts of handles and connections, and the table that gives
 * each error of a server its status. The text of a connection contains only the
 * cause. That of a handle may add the consequence, or the next step.
 *---------------------------------------------------------------------------*/

/* Internal statuses: nothing has happened, and the request has to be sent
 * again. dq_err_public turns these statuses into DELAYQ_ERR_AGAIN before a
 * caller sees them. (In C++ a delayq_status can't hold a number above 15.) */
#define DQ_NOSCRIPT ((delayq_status)12) /* first the script must be loaded */
#define DQ_MOVED ((delayq_status)13)    /* another node has the queue's slot */
#define DQ_MOVING ((delayq_status)14)   /* the slot moves to another node: the
                                           reply is ASK or TRYAGAIN */
#define DQ_TWIN ((delayq_status)15)     /* a clone has used a ring's numbers */

static delayq_status dq_err_public(delayq_status status) {
    return status < DQ_NOSCRIPT ? status : DELAYQ_ERR_AGAIN;
}

/* Set the error text of a handle or a connection. Control characters, which a
 * server may have sent, become spaces. Returns `status`. */
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

/* Advice that is appended to the texts of some server errors. */
enum {
    DQ_HINT_NONE,
    DQ_HINT_SLOT,
    DQ_HINT_TYPE,
    DQ_HINT_USER,
    DQ_HINT_LUA,
    DQ_HINT_CHECKED,
    DQ_HINT_UNDECLARED
};
static const char *const dq_err_hints[] = {
    "",
    "; on a cluster a name has no { or }, or one whole {tag}, the same for "
    "all on a shared connection",
    "; a key of this queue is used for something else",
    "; users need Redis 6, before there is only a password",
    "; delayq needs a server that runs Lua scripts: another plan, Garnet "
    "with --lua, Valkey with its Lua module",
    "; set script_check_enable to 0 for this server",
    "; start Dragonfly with --default_lua_flags=allow-undeclared-keys"};

/* The meaning of an error reply that begins with `code`, or with "ERR " and
 * `code`. The other fields are bytes, to save flash. */
typedef struct dq_err_entry {
    const char *code;
    signed char status;
    unsigned char leave; /* why the reply ends the connection, or 0 */
#define DQ_LEAVE 1       /* another server may be able to run the request */
#define DQ_ENDED 2       /* after this reply the server ends the connection */
    unsigned char hint;
} dq_err_entry;

static const dq_err_entry dq_err_table[] = {
    {"NOSCRIPT", DQ_NOSCRIPT, 0, 0},
    {"MOVED ", DQ_MOVED, 0, 0},
    {"ASK ", DQ_MOVING, 0, 0},
    {"TRYAGAIN", DQ_MOVING, 0, 0},
    {"TWIN", DQ_TWIN, 0, 0},
    {"CROSSSLOT", DELAYQ_ERR_ARG, 0, DQ_HINT_SLOT},
    {"WRONGTYPE", DELAYQ_ERR_TYPE, 0, DQ_HINT_TYPE},
    {"OOM", DELAYQ_ERR_FULL, 0, 0},
    {"READONLY", DELAYQ_ERR_READONLY, DQ_LEAVE, 0},
    {"MISCONF", DELAYQ_ERR_READONLY, 0, 0},
    {"NOREPLICAS", DELAYQ_ERR_READONLY, 0, 0},
    {"LOADING", DELAYQ_ERR_AGAIN, 0, 0},
    {"MASTERDOWN", DELAYQ_ERR_AGAIN, DQ_LEAVE, 0},
    {"CLUSTERDOWN", DELAYQ_ERR_AGAIN, DQ_LEAVE, 0},
    {"UNBLOCKED", DELAYQ_ERR_AGAIN, 0, 0},
    {"BUSY", DELAYQ_ERR_AGAIN, 0, 0},
    {"max number of clients", DELAYQ_ERR_AGAIN, 0, 0},
    {"NOAUTH", DELAYQ_ERR_AUTH, 0, 0},
    {"WRONGPASS", DELAYQ_ERR_AUTH, 0, 0},
    {"NOPERM", DELAYQ_ERR_AUTH, 0, 0},
    {"DENIED", DELAYQ_ERR_AUTH, 0, 0},
    {"invalid password", DELAYQ_ERR_AUTH, 0, 0},
    {"Client sent AUTH", DELAYQ_ERR_AUTH, 0, 0},
    {"AUTH", DELAYQ_ERR_AUTH, 0, 0},
    {"wrong number of arguments for 'auth'", DELAYQ_ERR_AUTH, 0, DQ_HINT_USER},
    {"Protocol error: unauth", DELAYQ_ERR_AUTH, 0, 0},
    {"Protocol error", DELAYQ_ERR_REDIS, DQ_ENDED, 0},
    {"ACL failure", DELAYQ_ERR_AUTH, 0, 0},
    {"The user executing", DELAYQ_ERR_AUTH, 0, 0},
    {"unknown command", DELAYQ_ERR_REDIS, 0, DQ_HINT_LUA},
    {"Could not find scripting", DELAYQ_ERR_REDIS, 0, DQ_HINT_LUA},
    {"This instance has Lua", DELAYQ_ERR_REDIS, 0, DQ_HINT_LUA},
    {"bad lua script", DELAYQ_ERR_REDIS, 0, DQ_HINT_CHECKED},
    {"script tried accessing undeclared key", DELAYQ_ERR_REDIS, 0,
     DQ_HINT_UNDECLARED},
    {"", DELAYQ_ERR_REDIS, 0, 0}};

/* Returns the part of an error reply that states the cause. If a command in a
 * script has failed, Redis 6 and older put this before the cause: "ERR Error
 * running script (call to ...): @user_script:7: @user_script: 7: -". */
static const char *dq_err_cause(const char *text) {
    static const char place[] = "@user_script:";
    const char *at;
    while ((at = strstr(text, place)) != NULL) {
        at = strstr(at + sizeof place - 1, ": ");
        if (!at) break; /* Redis 7 puts the place after the cause */
        text = at + 2;
    }
    return *text == '-' ? text + 1 : text;
}

static const dq_err_entry *dq_err_lookup(const char *text) {
    const dq_err_entry *e = dq_err_table;
    text = dq_err_cause(text);
    if (strncmp(text, "ERR ", 4) == 0) text += 4;
    while (strncmp(text, e->code, strlen(e->code)) != 0) e++;
    return e;
}

/* Turn an error reply into a status and a text. Redis' text may repeat the
 * command's arguments, which may contain a password, and the script's SHA1,
 * which would leave less room for the advice. The new text omits both. */
static delayq_status dq_err_reply(char *err, const char *what,
                                  const redisReply *r) {
    const char *text = dq_err_cause(r->str);
    const char *cut = strstr(text, " script: ");
    const dq_err_entry *e = dq_err_lookup(text);
    int len;
    if (cut && strspn(cut + 9, "0123456789abcdef") != 40 &&
        strncmp(cut + 9, "on @user_script", 15) != 0) /* Valkey 9.1 */
        cut = NULL;
    if (!cut) cut = strstr(text, ", with args");
    len = (int)(cut ? (size_t)(cut - text) : strlen(text));
    if (len > 120) /* cut at a space, if possible */
        for (len = 120; len > 80 && text[len] != ' '; len--) {
        }
    while (len > 0 && text[len - 1] == ' ') len--; /* Redis 5 appends spaces */
    return dq_err_set(err, (delayq_status)e->status,
                      "%s: the server says: %.*s%s", what, len, text,
                      dq_err_hints[e->hint]);
}

#define DQ_BAD_REPLY "%s: the reply is not what delayq's script returns"

static delayq_status dq_err_bad_reply(char err[256], const char *what) {
    return dq_err_set(err, DELAYQ_ERR_PROTOCOL, DQ_BAD_REPLY, what);
}

#define DQ_NOTHING "; nothing has happened"

static delayq_status dq_err_moving(char err[256], const char *what) {
    return dq_err_set(err, DELAYQ_ERR_AGAIN,
                      "%s: not in time, since the queue's slot moves to "
                      "another node of the cluster (TRYAGAIN, ASK)" DQ_NOTHING,
                      what);
}

/* Copy `text`, which may be `err` itself, to `err`. Returns `status`. */
static delayq_status dq_err_with(char err[256], delayq_status status,
                                 const char text[256]) {
    memmove(err, text, 256);
    return status;
}

/* Set the error text of a request that has lost its connection or timed out.
 * The text states the cause and, depending on `status`, whether the request
 * may have taken effect. */
static delayq_status dq_err_lost(char err[256], delayq_status status,
                                 const char *cause) {
    int may = status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL;
    return dq_err_set(err, status, "%.160s%s", cause,
                      may ? "; the request was sent, so it may have happened"
                          : DQ_NOTHING);
}

/* Adjust the failure of a call that has lost the reply to an earlier request,
 * which may have run. If `status` means that nothing has happened, return
 * DELAYQ_ERR_UNKNOWN, and name both faults in `err`. Else return `status`. */
static delayq_status dq_err_after_loss(char err[256], const char *what,
                                       delayq_status status) {
    const char *end = strstr(err, DQ_NOTHING);
    int len = end && end - err < 160 ? (int)(end - err) : 159;
    char then[160];
    if (status >= DELAYQ_OK || status == DELAYQ_ERR_PROTOCOL ||
        status == DELAYQ_ERR_UNKNOWN)
        return status;
    snprintf(then, sizeof then, "%.*s", len, err);
    return dq_err_set(
        err, DELAYQ_ERR_UNKNOWN,
        "%s: sent, but no reply came: it may have happened; then: "
        "%s",
        what, then);
}

/* Foreign elements. A handle that finds them sends no more requests or, with
 * the old wire, no offers and takes. Without a Redisson wire this also applies
 * to a mirror, since Redisson would deliver taken items from it again. */
enum { DQ_FOREIGN_OLD = 1, DQ_FOREIGN_NEW = 2, DQ_FOREIGN_MIRROR = 3 };

/* Set the text that names the foreign elements in q's queue, and the remedy. */
static delayq_status dq_err_wire(const delayq *q, char err[256]) {
    const char *why =
        q->foreign == DQ_FOREIGN_MIRROR
            ? "has a mirror, which only Redisson and handles with a Redisson "
              "wire keep: open it with their wire, or, if there are none left, "
              "run delayq clear --mirror --all"
        : q->foreign == DQ_FOREIGN_OLD
            ? "holds elements of Redisson <= 3.21.0, which can't read this "
              "handle's elements: open it with wire = DELAYQ_REDISSON_OLD"
            : "holds elements of Redisson >= 3.21.1: open it with wire = "
              "DELAYQ_REDISSON";
    DQ_MARK(foreign_element);
    return dq_err_set(err, DELAYQ_ERR_WIRE, "queue %.64s %s%s", q->name, why,
                      q->foreign == DQ_FOREIGN_NEW && q->wire->old_first
                          ? "; this handle's ticks still work, and move "
                            "elements of every format"
                          : "");
}

static void dq_err_log(const delayq *q, delayq_status status,
                       const char *text) {
    if (q->options.log) q->options.log(q->options.user, status, text);
}

/* Report a fault that may recur, unless one with the same status was reported
 * since the last second without a report. */
static void dq_err_log_again(delayq *q, delayq_status status,
                             const char *text) {
    int64_t now = dq_sys_now();
    unsigned bit = 1u << -status;
    assert(status < DELAYQ_OK);
    if (now - q->log_us >= DQ_SECOND_US) q->logged = 0;
    if (q->logged & bit) return;
    q->logged |= bit;
    q->log_us = now;
    dq_err_log(q, status, text);
}

/* Returns 1 if `status` is a transient failure: a retry may succeed. */
static int dq_err_is_transient(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}
/*-----------------------------------------------------------------------------
 * MARK: - URL
 * >>url   the URL of options.url
 *
 * Owns the grammar of URLs. An error text is a constant that repeats no part of
 * the URL, since the URL may contain a password.
 *---------------------------------------------------------------------------*/

#define DQ_HOSTS_MAX 64

typedef struct dq_url {
    const char *hosts; /* this part of the URL: host[:port][,...], or the path
                          of a unix socket */
    size_t hosts_len;
    unsigned count; /* the number of hosts */
    int local, sentinel, tls, login, db;
    char user[256], password[512], service[256];
} dq_url;

/* Copy a text, and decode each %XX in it. Returns 0 if the result has more than
 * size - 1 bytes, or if the text has a malformed %XX or a %00. */
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

/* Parse "host", "host:port", "[host]" or "[host]:port"; `port` is the default.
 * Returns NULL, or the fault. */
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

/* Parse the host with index `number` % u->count. Returns NULL, or the fault. */
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

/* Parse redis://, rediss://, redis+sentinel://, rediss+sentinel:// or unix://.
 * Returns the rest of the URL, or NULL if it begins with none of them. */
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

/* Parse /service, /db or ?db=N after the hosts. Returns NULL, or the fault. */
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

/* Parse a URL. *u keeps pointers into `url`. Returns NULL, or the fault. */
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
 * Owns the SSL_CTX of a connection. This section performs the handshake, since
 * hiredis' functions check neither the name of the host nor a deadline.
 *---------------------------------------------------------------------------*/

#ifdef DELAYQ_TLS

/* Set the error text to OpenSSL's text for the last failure. Returns `status`,
 * or DELAYQ_ERR_AUTH if the certificate was refused. */
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

/* Returns why a file named in the options can't be used. If it can't be opened,
 * errno gives the reason, since OpenSSL has no text for this. */
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

/* Make the connection's SSL_CTX, unless it has one. This reads files, so it may
 * take a while. Returns NULL, or the fault. */
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

/* Prepare a connected socket for the handshake, which will fail unless the
 * certificate is valid for `host`. */
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
        s->ssl = ssl; /* hiredis owns it now */
    } else {
        status = dq_tls_fail(conn, DELAYQ_ERR_IO, host, ssl);
        SSL_free(ssl);
    }
    dq_sys_unblock_sigpipe(&signals, status != DELAYQ_OK);
    return status;
}

/* Continue the handshake. Returns DELAYQ_OK if it is complete, DELAYQ_EMPTY if
 * it needs more time, else the failure. */
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

/* Returns the event for which the handshake waits: POLLIN or POLLOUT. */
static short dq_tls_events(const delayq_socket *s) {
    return SSL_want_write((const SSL *)s->ssl) ? POLLOUT : POLLIN;
}

static void dq_tls_end(delayq_conn *conn) {
    SSL_CTX_free((SSL_CTX *)conn->tls);
    conn->tls = NULL;
}

#else

/* Without DELAYQ_TLS delayq starts no TLS: dq_url_parse refuses rediss://. */
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
 * A script is a list of fragments, each a complete Lua chunk. Most of them
 * define functions, and the last one calls these. The usual offer or take comes
 * first, before the functions that only other cases need. `make lua` writes
 * each script to build/lua/NAME.lua, whose line numbers appear in errors.
 *
 * A script that moves items works in four steps, so that a refused script
 * changes nothing:
 *   1. Read the keys, also those to be written. A wrong type ends the script.
 *   2. Try a removal without an effect, of an empty range or of 'delayq', which
 *      is never an element. A missing permission ends the script here. After
 *      this write the server accepts others even if its memory is full.
 *   3. Add.
 *   4. Remove.
 * Each chunk repeats the steps (see attempt); drain() does step 2 only once.
 *
 * A script can't measure its run time, because the clock stands still during a
 * script in Redis 7.2 and later. So TICK, TAKE, BROADCAST, PEEK and DEAD count
 * bytes, and read chunks that grow to 64 elements (the usual take: 128), until
 * they have enough elements or DQ_BUDGET bytes. No script compares strings with
 * <, which depends on the server's locale. Numbers become text by
 * string.format, as `..` writes only 14 digits. redis.call writes 17 digits.
 *
 * Some servers run Lua 5.4, in which `/` returns a float. A float is no integer
 * in a reply, and may keep only 14 digits in an argument. In Lua 5.4 %d rejects
 * fractions, and tonumber('inf') is nil. Scores may be numbers.
 *
 * A reply is an array that begins with the server's clock in microseconds.
 * Numbers in it are integers, due times in TAKE, BROADCAST and PEEK a text.
 *---------------------------------------------------------------------------*/

#ifndef DELAYQ_NO_LUA

#define DQ_BUDGET "262144" /* a script stops reading after this many bytes */

/* clock(): return the server's clock in us, and the same rounded down to ms. */
static const char dq_lua_clock[] = "local function clock()\n"
                                   "  local time = redis.call('TIME')\n"
                                   "  local us = time[1] * 1000000 + time[2]\n"
                                   "  return us, math.floor(us / 1000)\n"
                                   "end\n";

/* tally(field, n): add n to a field of the queue's counters, the hash ARGV[1].
 * `tally` is false if ARGV[1] is empty. A refusal of HINCRBY is ignored, since
 * the counted work is already done. */
static const char dq_lua_tally[] =
    "local tally = ARGV[1] ~= '' and function(field, n)\n"
    "  if n > 0 then redis.pcall('HINCRBY', ARGV[1], field, n) end\n"
    "end\n";

/* refusal(why): turn an error that pcall has caught into an error reply. */
static const char dq_lua_refusal[] =
    "local function refusal(why)\n"
    "  why = type(why) == 'table' and why.err or why\n"
    "  return {err = string.find(why, '^%u+ ') and why or 'ERR ' .. why}\n"
    "end\n";

/* split(e, old_first), like dq_elem_parse in C: return the kind of an element
 * and the index of its payload, or nil if it can't be decoded. attempts(e) and
 * with_attempts(e, n) read and set the attempts of elements of kind 16. */
static const char dq_lua_elements[] =
    "local function payload_start(e, at)\n"
    "  local rest = #e - at + 1\n"
    /* compare packed bytes, as a 32-bit server unpacks only the lower half */
    "  local size = rest >= 8 and struct.pack('I8', rest - 8)\n"
    "  if size == string.sub(e, at, at + 7) then return at + 8 end\n"
    "  size = rest >= 4 and struct.pack('I4', rest - 4)\n"
    "  if size == string.sub(e, at, at + 3) then return at + 4 end\n"
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

/* foreign(e, wire): return the reason (DQ_FOREIGN_...) why a handle of this
 * wire must not write to a queue that contains e, or 0; then the values of
 * split(). Elements of kind 8 are written only by Redisson, those of kind 0
 * only by Redisson and by handles with DELAYQ_REDISSON_OLD. */
static const char dq_lua_foreign[] =
    "local function foreign(e, wire)\n"
    "  local kind, start = split(e, wire == 'o')\n"
    "  local why = kind == 0 and wire ~= 'o' and 1 or\n"
    "    kind == 8 and wire ~= 'r' and 2 or 0\n"
    "  return why, kind, start\n"
    "end\n";

/* PROBE: look for elements of other wires. It is sent by each new handle, on
 * each new connection, and at an offer if the last check is over 10 s old.
 * KEYS     1 zset; 2 mirror, if the wire has one (an ACL may forbid it to other
 *          handles). No keys if these were refused (ACL, a moving slot)
 * ARGV     1 zset, 2 mirror, 3 wire
 * returns  clock
 *          why the queue is refused: foreign() of the first foreign element, 3
 *          for a mirror that the wire does not have, or 0
 *          the number 1, as the bytes of the server's unsigned long
 * ZSCAN visits about 16 elements, anywhere in the zset, and returns only those
 * whose first byte may be that of a foreign element. So the others, which may
 * be large, are not copied, except that Redis before 7.2 copies each once.
 * Elements with a score below 0 are ignored, as Redisson never reads them. */
static const char dq_lua_probe[] =
    "local zset, mirror, wire = unpack(ARGV)\n"
    "local others = wire == 'r' and '[^\\8\\16]*' or\n"
    "  wire == 'o' and '\\8*' or '[^\\16]*'\n"
    "local found = redis.pcall('ZSCAN', zset, 0, 'MATCH', others,\n"
    "  'COUNT', 16)[2] or {}\n"
    "local why = 0\n"
    "for i = 1, #found, 2 do\n"
    /* an element whose score is negative or infinite is never due */
    "  local due = tonumber(found[i + 1])\n"
    "  if why == 0 and due and due >= 0 and due < 2 ^ 53 then\n"
    "    why = foreign(found[i], wire)\n"
    "  end\n"
    "end\n"
    "if why == 0 and wire ~= 'r' and wire ~= 'o' and\n"
    "  (tonumber(redis.pcall('LLEN', mirror)) or 0) > 0 then why = 3 end\n"
    "return {clock(), why, struct.pack('L', 1)}\n";

/* find(zset, due, prefix): find the element that has the score `due` and begins
 * with `prefix`. Return the element, or nil if it is not there, and the rank
 * that it has or would have. First check the first element with this score,
 * which is usually the right one, and then bisect the others. */
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

/* remove(zset, argv, from, to, reply, mirror): remove from the zset, and from
 * the mirror unless it is nil, the elements named by the pairs (due, prefix) in
 * argv[from .. to]. Append 1 (removed) or 0 (not there) to `reply` for each
 * pair. Return `reply` and the number of removed elements (nil instead of 0).
 * For several pairs, read all elements of one due time with one command, unless
 * they are more than twice as many as the pairs. */
static const char dq_lua_remove[] =
    "local function remove(zset, argv, from, to, reply, mirror)\n"
    "  local found, named, n, most = {}, {}, 0, to - from + 1\n"
    "  local page, page_due, length, size, rank\n"
    "  local pages, at, gone = 0, #reply, nil\n"
    "  for i = from, to, 2 do\n"
    "    local due, prefix, e = argv[i], argv[i + 1]\n"
    "    if most > 2 and (due ~= page_due or #prefix ~= length) then\n"
    "      page, page_due, length, pages = nil, due, #prefix, pages + 1\n"
    "      size = redis.call('ZCOUNT', zset, due, due)\n"
    "      if size <= most then\n"
    "        local all = redis.call('ZRANGEBYSCORE', zset, due, due)\n"
    "        page = {}\n"
    "        for k = 1, #all do\n"
    "          page[string.sub(all[k], 1, length)] = all[k]\n"
    "        end\n"
    "      end\n"
    "    end\n"
    "    if page then e = page[prefix]\n"
    "    else e, rank = find(zset, due, prefix) end\n"
    "    at = at + 1\n"
    "    if e and not named[e] then\n"
    "      n, reply[at] = n + 1, 1\n"
    "      found[n], named[e] = e, true\n"
    "    else reply[at] = 0 end\n"
    "  end\n"
    "  for i = 1, mirror and n or 0 do\n"
    "    redis.call('ZREM', zset, 'delayq')\n"
    "    redis.call('LREM', mirror, 1, found[i])\n"
    "  end\n"
    "  if n == 0 then return reply end\n"
    "  if pages == 1 and page and n == size then\n"
    "    rank = redis.call('ZCOUNT', zset, '-inf', '(' .. page_due)\n"
    "  elseif most > 2 then rank = nil end\n"
    "  if rank and not mirror and (most > 2 or #found[1] >= 65536) then\n"
    /* replicas get this instead of a long ZREM; an ACL may forbid it */
    "    gone = redis.pcall('ZREMRANGEBYRANK', zset, rank, rank + n - 1)\n"
    "  end\n"
    "  if type(gone) ~= 'number' then\n"
    "    gone = redis.call('ZREM', zset, unpack(found))\n"
    "  end\n"
    "  return reply, gone\n"
    "end\n";

/* publish_if_head(key, channel, due, ties): publish `due` if the new elements,
 * `ties` in number, are the only ones due by then. It counts the elements,
 * because reading the first one might copy a large one. If an ACL forbids a
 * command, other handles learn the due time at their next poll. */
static const char dq_lua_publish[] =
    "local function publish_if_head(key, channel, due, ties)\n"
    "  local text = string.format('%.0f', due)\n"
    "  if redis.pcall('ZCOUNT', key, '0', text) == ties then\n"
    "    redis.pcall('PUBLISH', channel, text)\n"
    "  end\n"
    "end\n";

/* OFFER
 * KEYS     1 zset; the mirror, if the wire has one; for an outbox, the key with
 *          the highest number that it has stored
 * ARGV     1 counters, 2 channel
 *          3 'delay' or 'due': the kind of the times below, in ms. If a single
 *            offer is sent again, '@' and the time from which it may have been
 *            due are appended. An outbox, whose times are due times, sends the
 *            number of the first offer instead. If it has sent offers before,
 *            a space and the number of the last one of these are appended
 *          then up to 1,000 pairs: time, element
 * returns  clock; from a usual offer nothing else
 *          the number of offers skipped because they were stored before
 *          0; for an offer that was sent again its due time, or -1 if it was
 *          not stored because it may have been delivered meanwhile */
/* The usual offer, made fast: one element; no resend, mirror or outbox. */
static const char dq_lua_offer_usual[] =
    "local zset, argv, call, form = KEYS[1], ARGV, redis.call, ARGV[3]\n"
    "if (form == 'delay' or form == 'due') and not (argv[6] or KEYS[2]) then\n"
    "  local time = call('TIME')\n"
    "  local us = time[1] * 1000000 + time[2]\n"
    "  local due = argv[4]\n"
    "  if form == 'delay' then\n"
    "    due = (us - us % -1000) / 1000 + due\n"
    /* faster than %.0f; two parts, since %d may be limited to 32 bits */
    "    local low = due % 10000000\n"
    "    due = string.format('%d%07d', (due - low) / 10000000, low)\n"
    "  end\n"
    "  local added = call('ZADD', zset, 'NX', due, argv[5])\n"
    "  if redis.pcall('ZCOUNT', zset, '0', due) == 1 then\n"
    "    redis.pcall('PUBLISH', argv[2], due)\n"
    "  end\n"
    "  if tally then tally('offered', added) end\n"
    "  return {us}\n"
    "end\n";
/* begin_offers(keys, holders, sent): return `at`, the state of a request of
 * offers. The last `holders` keys contain tickets. `sent` is ARGV[3]. at.mark
 * is the key that contains the highest number which the outbox has stored. If
 * this outbox has not sent that number, return nil, and the error `twin`.
 * due_of(at, time): return the due time of an offer, and the same as text.
 * count_up(at, n): write the number of the request's n-th op to at.mark. */
static const char dq_lua_offers[] =
    "local function due_of(at, time)\n"
    "  if not at.delays then return tonumber(time), time end\n"
    "  local due = at.base + time\n"
    "  local low = due % 10000000\n"
    "  return due, string.format('%d%07d', (due - low) / 10000000, low)\n"
    "end\n"
    "local function begin_offers(keys, holders, sent)\n"
    "  local us, others, number = clock(), #keys - holders, tonumber(sent)\n"
    "  local most = number and number - 1\n"
    "  if not number then\n"
    "    number, most = string.match(sent, '^(%d+) (%d+)$')\n"
    "  end\n"
    "  local mark = number and keys[others] or nil\n"
    "  local highest = mark and redis.call('GET', mark)\n"
    "  if highest and tonumber(highest) > tonumber(most) then\n"
    "    return nil, {err = 'TWIN a clone of this handle uses its numbers'}\n"
    "  end\n"
    "  return {\n"
    "    us = us, base = math.ceil(us / 1000), zset = keys[1],\n"
    "    mirror = others > (mark and 2 or 1) and keys[2] or nil,\n"
    "    mark = mark, highest = highest, number = number,\n"
    "    others = others,\n"
    "    delays = string.sub(sent, 1, 5) == 'delay',\n"
    "    again = tonumber(string.match(sent, '@(%d+)$'))\n"
    "  }\n"
    "end\n"
    "local function count_up(at, n)\n"
    "  if not at.mark then return end\n"
    "  at.highest = string.format('%.0f', at.number + n - 1)\n"
    "  redis.call('SET', at.mark, at.highest, 'PX', 86400000)\n"
    "end\n";
static const char dq_lua_offer[] =
    "local at, twin = begin_offers(KEYS, 0, form)\n"
    "if twin then return twin end\n"
    "local us, mirror, skipped, n = at.us, at.mirror, 0, (#argv - 3) / 2\n"
    "if at.mark then\n"
    "  skipped = (at.highest or 0) - at.number + 1\n"
    "  skipped = math.floor(math.min(n, math.max(0, skipped)))\n"
    "  redis.call('SET', at.mark, '', at.highest and 'NX' or 'XX')\n"
    "end\n"
    "if mirror then\n"
    /* this ZADD has no effect. If the server would refuse the ZADD after the
     * RPUSH, it refuses this one before anything has changed */
    "  redis.call('LLEN', mirror)\n"
    "  redis.call('ZADD', zset, 'XX', 'INCR', 0, '')\n"
    "end\n"
    "local from, first, ties, last, due, text = 4 + 2 * skipped, nil, 0, nil\n"
    "for i = from, #argv, 2 do\n"
    "  if argv[i] ~= last then\n"
    "    last = argv[i]\n"
    "    due, text = due_of(at, last)\n"
    "  end\n"
    "  argv[i] = text\n"
    "  if due == first then ties = ties + 1\n"
    "  elseif not first or due < first then first, ties = due, 1 end\n"
    "end\n"
    "if at.again then\n"
    "  local stands = redis.call('ZSCORE', zset, argv[5])\n"
    "  if stands then return {us, 0, tonumber(stands)} end\n"
    "  if at.base >= at.again then return {us, 0, -1} end\n"
    "end\n"
    "if not first then return {us, skipped, 0} end\n"
    "for i = from + 1, mirror and #argv or 0, 2 do\n"
    "  redis.call('RPUSH', mirror, argv[i])\n"
    "end\n"
    "local added = redis.call('ZADD', zset, 'NX', unpack(argv, from))\n"
    "count_up(at, n)\n"
    "publish_if_head(zset, argv[2], first, ties)\n"
    "if tally then tally('offered', added) end\n"
    "return {us, skipped, at.again and first or 0}\n";

/* held(ticket): return the due time and the hex id in the ticket of a key, and
 * the prefix of the element that the ticket names; nil if it is malformed. */
static const char dq_lua_held[] =
    "local function held(ticket)\n"
    "  local due, id = string.match(ticket or '', '^(%d+)-(%x+)$')\n"
    "  if not due then return nil end\n"
    "  local prefix = string.gsub(id, '%x%x', function(digits)\n"
    "    return string.char(tonumber(digits, 16))\n"
    "  end)\n"
    "  if #prefix == 16 then prefix = '\\16' .. prefix end\n"
    "  return due, id, prefix\n"
    "end\n";

/* OFFER_KEYED: offers with and without a key, and cancels of keys. A cancel is
 * not idempotent: a second run may cancel a later item with the same key.
 * KEYS     those of OFFER; then for each op with a key its holder, the Redis
 *          key that contains the ticket
 * ARGV     1 to 3 as in OFFER; 4 the number of holders; then for each offer
 *          time, id in hex, TTL of the holder in ms ('' without a key),
 *          'replace' or '', element; for each cancel only 'cancel'
 * returns  clock; then for each op:
 *          outcome: 0 stored or canceled
 *                   1 the key is taken
 *                   2 not stored, as it may have been delivered meanwhile
 *                   3 skipped, as this op of the outbox has already run
 *                   4 the item to cancel is no longer there
 *          due time; ticket: the offer's, or the one in the holder, or ''
 *          If an op is refused, the reply ends before that op. If the first op
 *          is refused, the reply is the error
 * The ops are executed in order. In each op, the reads and the writes without
 * an effect precede the first real write. */
static const char dq_lua_offer_keyed[] =
    "local function offer_keyed(KEYS, ARGV)\n"
    "  local at, twin = begin_offers(KEYS, ARGV[4], ARGV[3])\n"
    "  if twin then return twin end\n"
    "  local zset, mirror = KEYS[1], at.mirror\n"
    "  local next_key, next_arg = at.others, 5\n"
    "  local function run(n)\n"
    "    local time, id, ttl_ms, replace, e = unpack(ARGV, next_arg,\n"
    "      next_arg + 4)\n"
    "    local adds, holder, due, text = time ~= 'cancel', nil, 0, nil\n"
    "    next_arg = next_arg + (adds and 5 or 1)\n"
    "    if adds then due, text = due_of(at, time) end\n"
    "    if not adds or ttl_ms ~= '' then\n"
    "      next_key = next_key + 1\n"
    "      holder = KEYS[next_key]\n"
    "    end\n"
    /* a resend searches for the element: another offer may have the key now */
    "    local stands = at.again and redis.call('ZSCORE', zset, e)\n"
    "    if stands then\n"
    "      text = string.format('%.0f', stands)\n"
    "      return 0, tonumber(stands), text .. '-' .. id\n"
    "    end\n"
    "    if at.mark and tonumber(at.highest or 0) >= at.number + n - 1 then\n"
    "      return 3, due, ''\n"
    "    end\n"
    "    local before = holder and redis.call('GET', holder) or ''\n"
    "    local held_due, held_id, prefix = held(before)\n"
    "    if adds then\n"
    "      if held_id == id then return 0, tonumber(held_due), before end\n"
    "      if at.again and at.base >= at.again then return 2, due, '' end\n"
    "      if before ~= '' and replace == '' then return 1, due, before end\n"
    "    end\n"
    /* `old`: the item to be replaced or canceled, if it is still pending */
    "    local old = held_due and find(zset, held_due, prefix)\n"
    "    local ticket = adds and text .. '-' .. id\n"
    "    if adds then redis.call('ZADD', zset, 'XX', 'INCR', 0, '') end\n"
    "    if old or not adds then redis.call('ZREM', zset, 'delayq') end\n"
    "    if old and mirror then redis.call('LREM', mirror, 1, 'delayq') end\n"
    "    if at.mark then\n"
    "      redis.call('SET', at.mark, '', at.highest and 'NX' or 'XX')\n"
    "    end\n"
    "    if not adds then redis.call('DEL', holder)\n"
    "    elseif holder then\n"
    "      redis.call('SET', holder, before, before == '' and 'XX' or 'NX',\n"
    "        'PX', ttl_ms)\n"
    "    end\n"
    "    if adds and mirror then redis.call('RPUSH', mirror, e) end\n"
    "    if old and mirror then redis.call('LREM', mirror, 1, old) end\n"
    "    if adds then redis.call('ZADD', zset, 'NX', text, e) end\n"
    "    if ticket and holder then\n"
    "      redis.call('SET', holder, ticket, 'PX', ttl_ms)\n"
    "    end\n"
    "    count_up(at, n)\n"
    "    if old then redis.call('ZREM', zset, old) end\n"
    "    if tally and old then tally('canceled', 1) end\n"
    "    if not adds then return old and 0 or 4, 0, '' end\n"
    "    if tally then tally('offered', 1) end\n"
    "    publish_if_head(zset, ARGV[2], due, 1)\n"
    "    return 0, due, ticket\n"
    "  end\n"
    "  local reply = {at.us}\n"
    "  while ARGV[next_arg] do\n"
    "    local fine, outcome, due, ticket = pcall(run, (#reply + 2) / 3)\n"
    "    if not fine then return reply[2] and reply or refusal(outcome) end\n"
    "    reply[#reply + 1], reply[#reply + 2] = outcome, due\n"
    "    reply[#reply + 1] = ticket\n"
    "  end\n"
    "  return reply\n"
    "end\n";

/* The common parts of TICK, TAKE and BROADCAST: arguments, counts, reply.
 * KEYS     1 zset; 2 ready, or the stream of a broadcast; 3 retry, or the
 *          mirror of a Redisson wire; 4 dead; 5 the pause
 * ARGV     1 counters; 2 wire: n native, r Redisson, o the old one, b broadcast
 *          3 limit: the number of items to move; 0 leaves due items to takes
 *          4 horizon in ms from now: elements due after it are not read. A
 *            minus sign before it means that an item is probably due; then the
 *            usual take ignores the horizon
 * returns  clock
 *          us until the next item is due; -1 if none is due within the horizon,
 *          or if `foreign` is not 0
 *          1 if the element to acknowledge was there, else 0
 *          an array: ready, moved, dead, foreign, role among the waiters; or 0
 *          if all of these are 0
 *          the due times of the elements, in one text
 *          the elements that are handed out
 * If the queue is paused, nothing is moved or handed out, and the reply reports
 * nothing ready or due, so no handle polls at once. run.ready and run.other
 * are the lengths of KEYS[2] and KEYS[3]. run.dues collects the due times for
 * finish_run(). If a command is refused, the first run.safe elements remain.
 *
 * attempt(run, f, ...): call f(run, ...). If the server refuses a command
 * before anything was done, return the error, which the script then returns.
 * After a later refusal return nil. Then the reply reports the work that was
 * done, and the next script returns the refusal.
 * read_due(run, count): read up to count + 1 elements within the horizon, with
 * their scores. Return them, and how many are due by run.due_by, at most count.
 * Set run.soon to the first score that is not yet due, or nil, and run.all to
 * true if no other element is due. The horizon avoids copying large elements
 * that are due much later. */
static const char dq_lua_run[] =
    "local function begin_run(ready, other, paused)\n"
    "  local us, now = clock()\n"
    "  if paused then ready, other = 0, 0 end\n"
    "  return {\n"
    "    zset = KEYS[1], ready_list = KEYS[2], other_list = KEYS[3],\n"
    "    dead_list = KEYS[4], wire = ARGV[2], native = ARGV[2] == 'n',\n"
    "    us = us, now = now, due_by = now, horizon = now + math.abs(ARGV[4]),\n"
    "    ready = ready, other = other, bytes = 0, from_rank = 0,\n"
    "    paused = paused, all = paused,\n"
    "    moved = 0, dead = 0, foreign = 0,\n"
    "    dues = {}, safe = 0, reply = {us, 0, 0, 0, ''}\n"
    "  }\n"
    "end\n"
    "local function finish_run(run)\n"
    "  local reply, soon, next, ready = run.reply, run.soon, 0, run.ready\n"
    "  if run.foreign > 0 or run.all and not soon then next = -1\n"
    "  elseif run.all then\n"
    "    next = math.floor(math.max(0, math.min(1e13, soon * 1000 - run.us)))\n"
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
    /* the reply omits elements that are still in their keys; poll in 250 ms */
    "  for i = #dues, run.safe + 1, -1 do\n"
    "    dues[i], reply[i + 5] = nil, nil\n"
    "  end\n"
    "  run.all, run.soon = true, (run.us + 250000) / 1000\n"
    "end\n"
    "local function dead_letter(run, reason, e)\n"
    "  return reason .. string.format(' %.0f\\n', run.now) .. e\n"
    "end\n"
    "local function read_due(run, count)\n"
    "  local found, from\n"
    "  repeat\n"
    "    from = run.from_rank\n"
    "    found = redis.call('ZRANGEBYSCORE', run.zset, '-inf', run.horizon,\n"
    "      'WITHSCORES', 'LIMIT', from, count + 1)\n"
    /* an element with a score below 0 is never due */
    "    if from == 0 and string.byte(found[2] or '') == 45 then\n"
    "      run.from_rank = redis.call('ZCOUNT', run.zset, '-inf', '(0')\n"
    "    end\n"
    "  until from == run.from_rank\n"
    "  local due = #found / 2\n"
    "  run.soon = nil\n"
    "  while due > 0 and tonumber(found[2 * due]) > run.due_by do\n"
    "    run.soon = tonumber(found[2 * due])\n"
    "    due = due - 1\n"
    "  end\n"
    "  run.all = due <= count\n"
    "  return found, math.min(due, count)\n"
    "end\n";

/* present: how many of the two lists and the pause exist; usually 0. */
static const char dq_lua_present[] =
    "local keys = KEYS\n"
    "local present = redis.call('EXISTS', keys[2], keys[3], keys[5])\n";
/* Get the lengths of the lists, and whether the queue is paused. If so, more
 * keys exist than non-empty lists, since Redis deletes empty lists. */
static const char dq_lua_lengths[] =
    "local in_ready = present > 0 and redis.call('LLEN', keys[2]) or 0\n"
    "local in_other = present > 0 and redis.call('LLEN', keys[3]) or 0\n"
    "local stopped = present > math.min(in_ready, 1) + math.min(in_other, 1)\n";

/* in_chunks(run, max, chunk, ...): call chunk(run, count, ...) until it has
 * got `max` elements, no more are left, or run.bytes reaches DQ_BUDGET. The
 * first count is 1 (0 if max is 0). Later ones grow to 64, within the budget.
 * chunk returns how many elements it has got, their bytes, and whether more may
 * be left. cost(e): #e + 64 bytes, since small elements need time, too. */
static const char dq_lua_chunks[] =
    "local function cost(e) return #e + 64 end\n"
    "local function in_chunks(run, max, chunk, ...)\n"
    "  local got, asked, size = 0, 0, 1\n"
    "  repeat\n"
    "    local count = math.min(size, max - got)\n"
    "    local n, bytes, more = chunk(run, count, ...)\n"
    "    got, asked, run.bytes = got + n, asked + count, run.bytes + bytes\n"
    /* room: how many elements of the average size still fit the budget */
    "    local room = (" DQ_BUDGET " - run.bytes) * asked / (run.bytes + 1)\n"
    "    size = math.min(64, 8 * size, math.max(1, math.floor(room)))\n"
    "  until not more or got >= max or run.bytes >= " DQ_BUDGET "\n"
    "end\n";

/* drain(run, max, keep, add): remove up to `max` due elements from the zset,
 * not counting dead letters. A foreign element ends it. An undecodable element
 * becomes a dead letter. keep(run, due, e, kind, start) is called for each
 * other one. keep returns nil, or the reason why e becomes a dead letter; its
 * second result is true if e stays in the zset. After each chunk add(run)
 * stores what keep has collected. When drain ends or fails, the elements that
 * have left the zset are also removed from run.mirror, of a Redisson wire. */
static const char dq_lua_drain[] =
    "local long = struct.size('L')\n"
    "local function drain_chunk(run, want, keep, add)\n"
    "  local mirror, wire, found, due = run.mirror, run.wire,\n"
    "    read_due(run, want)\n"
    "  local bad, bad_at, read, stay, bytes = {}, {}, 0, 0, 0\n"
    "  local byte, unpacked = string.byte, struct.unpack\n"
    "  for i = 1, math.min(#found, 2 * due + 2), 2 do\n"
    "    local e, reason, stays = found[i]\n"
    "    local kind, start, length = 16, 18 + long, #e - 17 - long\n"
    /* the usual element doesn't need foreign() */
    "    if wire == 'o' or length < 0 or byte(e) ~= 16 or\n"
    "      unpacked('L', e, 18) ~= length then\n"
    "      local why\n"
    "      why, kind, start = foreign(e, wire)\n"
    "      if why > 0 and not run.any_format then run.foreign = why break end\n"
    "    end\n"
    /* the element after the due ones is only checked for its wire */
    "    if i > 2 * due then break end\n"
    "    if mirror and not mirror.locate(e, kind) then\n"
    "      run.all = false\n"
    "      break\n"
    "    end\n"
    "    if not kind then reason = 'undecodable'\n"
    "    else reason, stays = keep(run, found[i + 1], e, kind, start) end\n"
    "    if reason then\n"
    "      bad[#bad + 1] = dead_letter(run, reason, e)\n"
    "      bad_at[#bad] = read\n"
    "    end\n"
    "    if stays then stay = stay + 1 end\n"
    "    read, bytes = read + 1, bytes + #e + 64\n"
    "  end\n"
    "  if read == 0 then return 0, 0, false end\n"
    /* check the permissions to write, but only once */
    "  if (add or #bad > 0 or mirror) and not run.probed then\n"
    "    redis.call('ZREMRANGEBYRANK', run.zset, 1, 0)\n"
    "    if run.lease_end then\n"
    "      redis.call('ZADD', run.zset, 'XX', 'INCR', 0, '')\n"
    "    end\n"
    "    run.probed = true\n"
    "  end\n"
    "  if mirror then mirror.probe() end\n"
    /* move dead letters first, since the server may refuse the other writes */
    "  if #bad > 0 then redis.call('RPUSH', run.dead_list, unpack(bad)) end\n"
    "  local from, left = run.from_rank, read - stay\n"
    "  if #bad > 0 and #bad < read then\n"
    "    for i = #bad, 1, -1 do\n"
    "      local rank = from + bad_at[i]\n"
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
    "  run.safe = #run.dues\n"
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
    /* error() will add this prefix again */
    "  if type(why) == 'string' then why = string.gsub(why, '^ERR ', '') end\n"
    "  error(why, 0)\n"
    "end\n";

/* move(run, max): move due elements from the zset to the lists. */
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

/* The mirror of a Redisson fleet is a list in the order of the offers. An
 * element is found there in one of three ways:
 *
 *     head   It is the first that is left, as always if all delays are equal.
 *     seek   In a list of over 1,000 elements, search by the time in its id.
 *     walk   Otherwise LREM finds it. (The ids of Java contain no time.)
 *
 * seek(m, e) narrows the range of indices from a to b. The times increase along
 * the list, except that offers of several hosts may overtake each other. The
 * next index is at least sqrt(b - a) away from a and b, so that both ends soon
 * move. It is where the line from (a, at_a) to (b, at_b) reaches the time of e:
 *
 *     at_b                                    *
 *     time  . . . . . . . . . *
 *     at_a  *
 *           a                 at              b
 *
 * If two steps in a row have not halved the range, the next index is its
 * middle. Once the range has at most 25 elements, they are read. If e is not
 * there, 32 more on each side are read, and then 256.
 *
 * open_mirror(run) returns an object with four functions:
 *     locate  finds an element; returns false if 100,000 steps are used up
 *     probe   checks the permission to write
 *     left    notes that the located elements have left the zset
 *     sweep   removes these elements from the mirror: the first ones by one
 *             LTRIM; those that seek found, by setting each to a mark (LSET)
 *             and one LREM of the marks; the others, by an LREM each */
static const char dq_lua_mirror_seek[] =
    /* return the time in the id of e, in us since the epoch, or nil */
    "local function offered_at(m, e)\n"
    "  local high, low, us\n"
    "  if m.run.wire == 'o' and #e > 8 then\n"
    "    high, low = struct.unpack('>I4I4', e)\n"
    "    us = high * 2097152 + math.floor(low / 2048)\n"
    "  elseif string.byte(e) == 16 and #e > 17 then\n"
    "    high, low = struct.unpack('>I4I4', e, 2)\n"
    "    us = high * 4294967296 + low\n"
    "  end\n"
    /* if us is off by more than about 30 years, the id contains no time */
    "  if us and math.abs(us - m.run.us) < 1e15 then return us end\n"
    "end\n"
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
    /* skip up to 8 elements whose ids contain no time */
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
    /* an element that has been leased is not in the mirror */
    "    if kind == 16 and attempts(e) > 0 then return true end\n"
    "    if m.work >= 100000 then return false end\n"
    "    local at\n"
    /* don't read a large element: LREM compares it in place */
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
    /* the LSET writes the element that is already there */
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
    /* LREM begins at the end from which it reaches all marks sooner */
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
static const char dq_lua_no_mirror[] = "local function open_mirror() end\n";

/* TICK: see dq_lua_run. If the limit is 0, `ready` includes the due items. */
static const char dq_lua_tick[] =
    "local run = begin_run(in_ready, in_other, stopped)\n"
    "if run.paused then return finish_run(run) end\n"
    "if ARGV[3] == '0' then\n"
    "  local next = redis.call('ZRANGEBYSCORE', run.zset,\n"
    "    string.format('(%.0f', run.now), run.horizon, 'WITHSCORES',\n"
    "    'LIMIT', 0, 1)\n"
    "  run.ready = run.ready + redis.call('ZCOUNT', run.zset, 0, run.now)\n"
    "  run.all, run.soon = true, tonumber(next[2])\n"
    "  return finish_run(run)\n"
    "end\n"
    "run.mirror = open_mirror(run)\n"
    /* a tick with this wire writes only payloads, so it may move all formats */
    "run.any_format = run.wire == 'o'\n"
    "return attempt(run, move, tonumber(ARGV[3])) or finish_run(run)\n";

/* A lease adds the element to the zset again, due at the end of the lease, and
 * with one attempt more. With DELAYQ_REDISSON_OLD it is of the old kind, which
 * counts no attempts, since an old Redisson's transfers stop at any other kind.
 *
 * give(run, due, e, kind, start): hand out an element, or a raw payload, which
 * has no kind. With a lease, keep the new element in run.held until commit(run)
 * adds it to the zset. Return the same values as `keep` of drain().
 * take_listed(run, count): hand out items from both lists alternately. */
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
    "  if kind == 16 and (run.lease_end or run.most > 0) then\n"
    "    n = attempts(e)\n"
    "    if run.most > 0 and n >= run.most then return 'attempts' end\n"
    "  end\n"
    "  if run.lease_end then\n"
    "    if kind == 16 and run.wire ~= 'o' then\n"
    "      again = with_attempts(e, math.min(n + 1, 65535))\n"
    /* this kind has no attempts: a new id makes the lease's ticket unique */
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
    "    if length == 0 or count == 0 then return {} end\n"
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
    "      give(run, 'r', e)\n"
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

/* give_role(reply, waiters, argv): add the handle to the waiters, or remove it
 * if its take has got an item or it stops waiting. The reply contains the role:
 * 0 none, 1 alone, 2 leader, 3 standby, 4 sleeper (see section Waiters).
 *
 * The sorted set contains standbys, then sleepers, then the leader. The score
 * is the time in ms at which the handle got its role, plus 1e14 for a sleeper
 * or 2e14 for the leader. The channel on which all waiters are notified has
 * the name of the set's key. The set expires after a day, and a FLUSHALL may
 * delete it. It is then created again.
 *
 * hand_over(w) makes the first live waiter the leader. If this take has got k
 * items, and n more are due or ready, it notifies n / k waiters, at least one.
 * The notified handles leave the set, except for the new leader.
 *
 * A handle counts as dead if nobody is subscribed to its channel. A leader that
 * has led for over 250 ms counts as frozen if another handle gets an item late.
 * This other handle then deletes the set, and all live handles enter again.
 *
 * No step visits more than 64 handles. If the first 64 are all dead, the set is
 * deleted, and all waiters are notified. */
static const char dq_lua_waiters_leave[] =
    "local function read_waiters(reply, waiters, argv)\n"
    "  local us, next, claim = reply[1], reply[2], argv[18]\n"
    "  local now = math.floor(us / 1000)\n"
    "  local soon = next < 0 and now + math.abs(argv[4]) or\n"
    "    math.ceil((us + next) / 1000)\n"
    "  local more = reply[4][1] + (next == 0 and\n"
    "    redis.call('ZCOUNT', KEYS[1], '-inf', now) or 0)\n"
    "  if more > 0 then soon = now end\n"
    "  local last = redis.call('ZRANGE', waiters, -1, -1, 'WITHSCORES')\n"
    "  local since = (tonumber(last[2]) or 0) - 2e14\n"
    "  return {\n"
    "    set = waiters, id = argv[15], turns = argv[17], claim = claim,\n"
    "    now = now, got = reply[5] ~= '', any = last[1] ~= nil,\n"
    "    due = tonumber(string.match(reply[5], '%S*')),\n"
    "    leader = since >= 0 and last[1] or nil, since = since,\n"
    "    soon = string.format('%.0f', math.min(soon, 1e15)),\n"
    /* assume that other takes get as many items as this one */
    "    calls = reply[6] and math.max(1, more / (#reply - 5)) or 1,\n"
    "    follows = claim == 'standby' or claim == 'check' or\n"
    "      claim == 'sleeper'\n"
    "  }\n"
    "end\n"
    /* limited, since Valkey 9.1.2 may return a number that is far too large */
    "local function subscribers(channel)\n"
    "  return math.min(1000, redis.call('PUBSUB', 'NUMSUB', channel)[2])\n"
    "end\n"
    "local function call_all(w)\n"
    "  redis.call('UNLINK', w.set)\n"
    "  redis.call('PUBLISH', w.set, subscribers(w.set))\n"
    "end\n"
    "local function hand_over(w)\n"
    "  local others = redis.call('ZRANGE', w.set, 0, 63)\n"
    "  local n, heard, leader = 0, 0\n"
    "  while n < #others and heard < w.calls do\n"
    "    n = n + 1\n"
    "    if redis.call('PUBLISH', w.turns .. others[n],\n"
    "      leader and 0 or w.soon) > 0 then\n"
    "      heard, leader = heard + 1, leader or others[n]\n"
    "    end\n"
    "  end\n"
    "  if n > 1 or others[1] ~= leader then\n"
    "    redis.call('ZREM', w.set, unpack(others, 1, n))\n"
    "  end\n"
    "  if leader then\n"
    "    redis.call('ZADD', w.set, 200000000000000 + w.now, leader)\n"
    "  elseif n == 64 then call_all(w) end\n"
    "end\n"
    "local function leave_waiters(w)\n"
    "  if w.any then redis.call('ZREM', w.set, w.id) end\n"
    "  if w.leader == w.id then return hand_over(w) end\n"
    /* a pushed item has no due time; standbys and sleepers count it as late */
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
    /* the handle keeps its score unless its role has changed */
    "  local same = w.follows and standby == (w.claim ~= 'sleeper')\n"
    "  local score = w.now + (standby and 0 or 100000000000000)\n"
    "  if size < 1024 then\n"
    "    redis.call('ZADD', w.set, same and 'NX' or 'CH', score, w.id)\n"
    "  end\n"
    "  if w.claim == 'check' then redis.pcall('PUBLISH', channel, w.soon) end\n"
    "  return standby and 3 or 4\n"
    "end\n"
    "local function lead(w, n)\n"
    "  if w.leader == w.id then return 2 end\n"
    "  if w.leader then redis.call('ZREM', w.set, w.leader) end\n"
    "  redis.call('ZADD', w.set, 200000000000000 + w.now, w.id)\n"
    "  redis.call('PEXPIRE', w.set, 86400000)\n"
    /* tell all waiters if the set was lost, or if one may act as if alone */
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
    "    return follow(w, n, argv[19], argv[13])\n"
    "  end\n"
    "  return lead(w, n)\n"
    "end\n"
    "local function give_role(reply, waiters, argv)\n"
    "  if reply[4] == 0 then reply[4] = {0, 0, 0, 0} end\n"
    "  local fine, role = pcall(role_among_waiters, reply, waiters, argv)\n"
    /* if an ACL or the key's type forbids it, the handle waits as if alone */
    "  if not fine then redis.pcall('ZREM', waiters, argv[15]) end\n"
    "  reply[4][5] = fine and role or 1\n"
    "  return reply\n"
    "end\n";

/* TAKE
 * KEYS     1 to 5: see dq_lua_run
 *          6  the waiters, if the handle is or becomes one of them
 * ARGV     1 to 4: see dq_lua_run; 7 to 19 may be missing
 *          5  how many items to hand out
 *          6  'retry' or 'ready': the list whose turn it is
 *          7  most attempts, or 0
 *          8  lease in ms, counted from the clock rounded up to ms; or 0
 *          9  due time of an element to acknowledge first, or ''; 10 its prefix
 *          11 order of the first new id, if there is a lease
 *          12 rest of a new id: 6 bytes, or a number below 2048 for an old wire
 *          13 channel; 14 most lateness in ms, or 0
 *          15 the handle's id (15 to 19 only with a sixth key)
 *          16 '1' if the handle waits for an item
 *          17 the beginning of the names of the handles' own channels
 *          18 the role that the handle claims: 'new' (its subscriber was just
 *             opened), 'none', 'leader', 'standby', 'check' (a standby if an
 *             item may be overdue), 'sleeper'
 *          19 a number of the handle, < 65536, by which standbys are selected
 * returns  see dq_lua_run. A due time is '-' if unknown, 'r' for a raw payload
 *
 * If nothing is ready, the script hands out due items from the zset. Otherwise
 * it first appends due items to the lists, so that pushed items can't starve
 * them. In a Redisson fleet the remaining due items are moved, too, since Java
 * waits for them. A take with a limit on lateness first makes late items dead
 * letters. It moves no items to the lists, where they would have no due times.
 * Such takes begin alternately with the zset and the lists. An acknowledged
 * item stays removed even if a later command is refused. */
/* The usual take, from a native queue whose lists are empty, is optimized for
 * speed. In any other case it changes nothing, except for an acknowledgement,
 * and sets `usual` to nil. In that case the general take, which follows, does
 * the work. The functions of the general take are defined only then.
 *
 * This script first acknowledges an element, and reads chunks that grow like
 * those of in_chunks(). It also reads the element after each chunk, to learn
 * when the next item is due. The results are:
 *     usual      the reply of TAKE
 *     acked      1; 0: the element to acknowledge was not there; nil: not tried
 *     taken      the number of elements in the reply
 *     nearest    the score of the next element
 *     lease_end  the end of a lease as a number; `ends` is the same as text
 *     leases     the arguments of ZADD, if several items may be handed out */
static const char dq_lua_take_read[] =
    "local argv, zset, call = ARGV, keys[1], redis.call\n"
    "local wanted, taken, us = argv[5] + 0, 0, nil\n"
    "local usual, acked, nearest, lease_end, ends, leases\n"
    "if present == 0 and wanted <= 1000 then\n"
    "  local byte, unpacked, time = string.byte, struct.unpack, call('TIME')\n"
    "  us = time[1] * 1000000 + time[2]\n"
    "  usual = {us, -1, 0, 0, '', nil}\n" /* nil reserves room for an item */
    "  local dues, bytes, size = wanted > 1 and {}, 0, 1\n"
    "  local most, late, sub, char\n"
    "  if argv[7] then\n"
    "    sub, char = string.sub, string.char\n"
    "    late = argv[14] ~= '0' and argv[14]\n"
    "    most = argv[7] ~= '0' and argv[7] + 0\n"
    "    if argv[8] ~= '0' then\n"
    "      lease_end = (us - us % -1000) / 1000 + argv[8]\n"
    "      most, leases = most or 65535, dues and {}\n"
    /* faster than %.0f; two parts, since %d may be limited to 32 bits */
    "      local low = lease_end % 10000000\n"
    "      ends = string.format('%d%07d', (lease_end - low) / 10000000, low)\n"
    "    end\n"
    "    if argv[9] ~= '' then\n"
    "      local e = call('ZRANGEBYSCORE', zset, argv[9], argv[9],\n"
    "        'LIMIT', '0', '1')[1]\n"
    "      if e and sub(e, 1, #argv[10]) ~= argv[10] then usual = nil\n"
    "      else\n"
    "        acked = e and call('ZREM', zset, e) or 0\n"
    "        usual[3] = acked\n"
    "      end\n"
    "    end\n"
    "  end\n"
    /* the first arguments are texts, since Redis converts numbers slowly */
    "  local known, from, to, count = argv[4] + 0 < 0, '0', '1', '2'\n"
    "  while usual do\n"
    "    local found = known and\n"
    "      redis.pcall('ZRANGE', zset, from, to, 'WITHSCORES') or\n"
    "      redis.pcall('ZRANGEBYSCORE', zset, '-inf', us / 1000 + argv[4],\n"
    "        'WITHSCORES', 'LIMIT', from, count)\n"
    "    local last = #found\n" /* index of the last (later: last due) score */
    "    nearest = nil\n"
    "    if last == 0 and not found.err then break end\n"
    "    if last == 0 or byte(found[2]) == 45 or found[last] == 'inf' or\n"
    "      late and (found[2] + late) * 1000 < us then usual = nil break end\n"
    "    while last > 0 and found[last] * 1000 > us do last = last - 2 end\n"
    "    if last > 2 * size then last = 2 * size end\n"
    "    nearest = found[last + 2]\n"
    "    for i = 2, last, 2 do\n"
    "      local e = found[i - 1]\n"
    "      if #e < 25 or byte(e) ~= 16 then usual = nil break end\n"
    "      local length, start = unpacked('L', e, 18)\n"
    "      if start + length ~= #e + 1 then usual = nil break end\n"
    "      taken = taken + 1\n"
    "      if most then\n"
    "        local high, low = byte(e, 16, 17)\n"
    "        high = high * 256 + low\n"
    "        if low == 255 or high >= most then usual = nil break end\n"
    "        e = ends and sub(e, 1, 16) .. char(low + 1) .. sub(e, 18) or e\n"
    "      end\n"
    "      usual[taken + 5] = e\n"
    "      if dues then\n"
    "        dues[taken], bytes = found[i], bytes + #e + 64\n"
    "        if leases then\n"
    "          leases[2 * taken - 1], leases[2 * taken] = ends, e\n"
    "        end\n"
    "      else usual[5] = found[i] .. '' end\n"
    "    end\n"
    "    if taken == wanted or not usual or last < 2 * size or\n"
    "      bytes >= " DQ_BUDGET " then break end\n"
    "    local room = math.floor((" DQ_BUDGET " - bytes) * taken / bytes)\n"
    "    size = math.min(128, 8 * size, math.max(1, room), wanted - taken)\n"
    "    from, to, count = taken, taken + size, size + 1\n"
    "  end\n"
    "  if usual and dues then usual[5] = table.concat(dues, ' ') end\n"
    "end\n";
/* The second part writes leases, removes elements, and completes the reply. */
static const char dq_lua_take_usual[] =
    "if usual and taken > 0 then\n"
    "  local write, refused = acked == 1 and redis.pcall or call, false\n"
    "  if ends then\n"
    /* if writes are refused, end here; a successful ack shows they are not */
    "    if acked ~= 1 then call('ZREMRANGEBYRANK', zset, '1', '0') end\n"
    "    local added = leases and write('ZADD', zset, unpack(leases)) or\n"
    "      write('ZADD', zset, ends, usual[6])\n"
    "    refused = added ~= taken and type(added) == 'table'\n"
    "  end\n"
    "  if not refused and taken ~= write('ZREMRANGEBYRANK', zset, '0',\n"
    "    taken == 1 and '0' or taken - 1) then\n"
    "    refused = true\n"
    "    for i = 6, ends and #usual or 0 do call('ZREM', zset, usual[i]) end\n"
    "  end\n"
    "  if refused then usual = nil\n"
    "  elseif ends and (not nearest or nearest + 0 >= lease_end) then\n"
    /* no item is due before the lease ends: publish the lease's end */
    "    nearest = lease_end\n"
    "    if redis.pcall('ZCOUNT', zset, '0', ends) == taken then\n"
    "      redis.pcall('PUBLISH', argv[13], ends)\n"
    "    end\n"
    "  end\n"
    "end\n"
    "if usual then\n"
    "  if nearest then\n"
    "    local wait = nearest * 1000 - us\n"
    "    if wait > 1e13 then wait = 1e13 end\n"
    "    usual[2] = wait > 0 and math.floor(wait) or 0\n"
    "  end\n"
    "  if tally then\n"
    "    tally('acked', usual[3])\n"
    "    tally('taken', taken)\n"
    "  end\n"
    "  if not keys[6] then return usual end\n"
    "end\n";
static const char dq_lua_take[] =
    "local function take_due(run, max)\n"
    "  drain(run, max, give, run.lease_end and commit)\n"
    "end\n"
    "local function take_in_time(run, max, most_late)\n"
    "  local lists_first = run.retry_turn\n"
    "  run.due_by = math.ceil(run.us / 1000) - most_late - 1\n"
    "  drain(run, 1000, function()\n"
    "    run.bytes = run.bytes + 256\n" /* at most about 700 items per script */
    "    return 'late'\n"
    "  end)\n"
    "  run.due_by = run.now\n"
    "  if lists_first then in_chunks(run, max, take_listed) end\n"
    "  take_due(run, max - #run.dues)\n"
    "  if #run.dues < max and run.foreign == 0 then\n"
    "    in_chunks(run, max - #run.dues, take_listed)\n"
    "  end\n"
    "end\n"
    "local function take_items(run, max, limit, most_late)\n"
    "  if most_late > 0 then return take_in_time(run, max, most_late) end\n"
    "  local direct = run.ready == 0 and (run.other == 0 or not run.native)\n"
    "  if direct then\n"
    "    take_due(run, max)\n"
    "    if run.native or run.all then return end\n"
    "  end\n"
    "  move(run, limit)\n"
    "  if not direct and run.foreign == 0 then\n"
    "    in_chunks(run, max, take_listed)\n"
    "  end\n"
    "end\n"
    "local run = begin_run(in_ready, in_other, stopped)\n"
    "run.retry_turn, run.most = ARGV[6] == 'retry', tonumber(ARGV[7] or 0)\n"
    "run.order, run.id_rest, run.held = tonumber(ARGV[11]), ARGV[12], {}\n"
    /* an old id has few random bits, so its order is the server's time in us,
     * which differs in each take (by the given us if the clock counts ms) */
    "if run.wire == 'o' then\n"
    "  local finer = run.us % 1000 == 0 and run.order or 0\n"
    "  run.order = run.us + finer % 1000\n"
    "end\n"
    "if (ARGV[8] or '0') ~= '0' then\n"
    "  run.lease_end = math.ceil(run.us / 1000) + ARGV[8]\n"
    "end\n"
    "run.mirror, run.acked = open_mirror(run), acked\n"
    "if not acked and (ARGV[9] or '') ~= '' then\n"
    "  run.acked = remove(run.zset, ARGV, 9, 10, {})[1]\n"
    "end\n"
    "local failed = not run.paused and attempt(run, take_items,\n"
    "  tonumber(ARGV[5]), tonumber(ARGV[3]), tonumber(ARGV[14] or 0))\n"
    "if failed then return failed end\n"
    "if run.lease_end and run.safe > 0 then\n"
    /* Redisson sets its timer when it receives a message on the channel */
    "  publish_if_head(run.zset, ARGV[13], run.lease_end, run.safe)\n"
    "  run.soon = math.min(run.soon or run.lease_end, run.lease_end)\n"
    "end\n"
    "run.reply[3] = run.acked or 0\n"
    "if tally then\n"
    "  tally('acked', run.reply[3])\n"
    "  tally('taken', #run.dues)\n"
    "end\n"
    "local reply = finish_run(run)\n"
    "return KEYS[6] and give_role(reply, KEYS[6], ARGV) or reply\n";

/* BROADCAST: move due items to the stream, and read entries after the cursor.
 * KEYS     see dq_lua_run
 * ARGV     1 to 4: see dq_lua_run
 *          5 how many entries to read; 6 cursor, or '$' for the stream's end
 *          7 how many entries the stream keeps; 8 channel
 * returns  see dq_lua_run. Instead of elements: the new cursor, then for each
 *          entry its id and payload. An unknown due time is '-' */
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
    "    run.moved = run.moved + math.floor(#entries / 2)\n"
    "    entries = {}\n"
    "  end)\n"
    "end\n"
    "local function read_stream(stream, cursor, count)\n"
    "  local ms, seq = string.match(cursor, '^(%d+)-(%d+)$')\n"
    "  if #seq < 16 then\n"
    "    local after = ms .. string.format('-%.0f', seq + 1)\n"
    "    return redis.call('XRANGE', stream, after, '+', 'COUNT', count)\n"
    "  end\n"
    /* a double can't hold seq + 1: read the cursor's entry, too, and drop it */
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
    "  if run.paused then return end\n"
    "  add_to_stream(run, tonumber(ARGV[3]), ARGV[7])\n"
    "  if max > 0 then\n"
    "    in_chunks({bytes = 0}, max, function(_, count)\n"
    "      local entries, bytes = read_stream(stream, cursor, count), 0\n"
    "      for _, entry in ipairs(entries) do\n"
    /* other programs may have added entries of any form to the stream */
    "        local due, payload = tonumber(entry[2][2]), entry[2][4] or ''\n"
    "        due = due and due >= 0 and due < 2 ^ 53 and\n"
    "          string.format('%.0f', due) or '-'\n"
    "        run.dues[#run.dues + 1] = due\n"
    "        cursor, bytes = entry[1], bytes + cost(payload)\n"
    "        reply[#reply + 1], reply[#reply + 2] = cursor, payload\n"
    "      end\n"
    "      run.safe = #run.dues\n"
    "      return #entries, bytes, #entries > 0\n"
    "    end)\n"
    "  end\n"
    "  reply[6] = cursor\n"
    "  run.ready = read_stream(stream, cursor, 1)[1] and 1 or 0\n"
    "end\n"
    "local run = begin_run(redis.call('XLEN', KEYS[2]),\n"
    "  redis.call('LLEN', KEYS[3]), redis.call('EXISTS', KEYS[5]) == 1)\n"
    "local failed = attempt(run, broadcast, tonumber(ARGV[5]), ARGV[6])\n"
    "if failed then return failed end\n"
    /* the message makes other readers poll at once */
    "if run.moved > 0 then\n"
    "  redis.pcall('PUBLISH', ARGV[8], string.format('%.0f', run.now))\n"
    "end\n"
    "if tally then tally('taken', run.moved) end\n"
    "return finish_run(run)\n";

/* TICKETS: acks, cancels, nacks, releases, unfetches (releases of items that no
 * take has handed out), extends, reschedules, buries.
 * KEYS     1 zset; 2 the dead letters of a bury, or the mirror of a cancel
 * ARGV     1 counters, 2 channel, 3 'again' for a resend, else ''
 *          then for each run of tickets with one verb: the verb, how many, and
 *          for each ticket its due time and prefix; for a bury also the reason,
 *          or ''; for a verb that sets a due time also the new one, and the
 *          delay in ms, or ''
 * returns  clock; for each ticket 0 if its item is not there, 1 if the item was
 *          removed, else its new due time. Refusals: see OFFER_KEYED
 * The handle computes the new due time, so that a resend finds the result of
 * the first sending. If the delay is given, the script uses now + delay instead
 * if this is later, or if it is over 1 s earlier, after a clock was set. */
static const char dq_lua_tickets[] =
    "local function tickets(KEYS, ARGV)\n"
    "  local argv, zset, second, us, now = ARGV, KEYS[1], KEYS[2], clock()\n"
    "  local reply, safe, proven, done = {us}, 1, false, nil\n"
    "  local fields = {ack = 'acked', cancel = 'canceled', nack = 'nacked',\n"
    "    release = 'nacked', bury = 'died'}\n"
    "  local function changed(verb, e, prefix)\n"
    "    local back = verb == 'release' or verb == 'unfetch'\n"
    "    if not back or #prefix ~= 17 then return e end\n"
    /* the id counts releases, so that the next lease has a different ticket */
    "    local n = string.byte(e, 15)\n"
    "    n = n % 64 < 63 and n + 1 or n - 63\n"
    "    e = string.sub(e, 1, 14) .. string.char(n) .. string.sub(e, 16)\n"
    "    return with_attempts(e, math.max(attempts(e) - 1, 0))\n"
    "  end\n"
    "  local function bury(due, prefix, why)\n"
    "    local e = find(zset, due, prefix)\n"
    "    if not e then return 0 end\n"
    "    proven = proven or redis.call('ZREM', zset, 'delayq')\n"
    "    local line = string.format('buried %.0f', now)\n"
    "    if why ~= '' then line = line .. ' ' .. why end\n"
    "    redis.call('RPUSH', second, line .. '\\n' .. e)\n"
    "    redis.call('ZREM', zset, e)\n"
    "    return 1\n"
    "  end\n"
    "  local function retime(verb, due, prefix, new_due, delay)\n"
    "    local e, at = find(zset, due, prefix), tonumber(new_due)\n"
    "    if not e and argv[3] ~= '' then\n"
    "      e = find(zset, new_due, changed(verb, prefix, prefix))\n"
    "      return e and at or 0, true\n"
    "    end\n"
    "    if not e then return 0 end\n"
    "    local by_delay = delay ~= '' and math.ceil(us / 1000) + delay\n"
    "    if by_delay and (at < by_delay or at > by_delay + 1000) then\n"
    "      at = by_delay\n"
    "    end\n"
    "    proven = proven or redis.call('ZREM', zset, 'delayq')\n"
    "    local again = changed(verb, e, prefix)\n"
    "    redis.call('ZADD', zset, at, again)\n"
    "    if again ~= e then redis.call('ZREM', zset, e) end\n"
    "    publish_if_head(zset, argv[2], at, 1)\n"
    "    return at\n"
    "  end\n"
    /* after a refusal only the first `safe` values of the reply are valid */
    "  local function run(verb, from, n, width)\n"
    "    if width == 2 then\n"
    "      local mirror = verb == 'cancel' and second or nil\n"
    "      local _, gone =\n"
    "        remove(zset, argv, from, from + 2 * n - 1, reply, mirror)\n"
    "      done, safe = gone or 0, #reply\n"
    "      return\n"
    "    end\n"
    "    for i = from, from + width * (n - 1), width do\n"
    "      local due, before\n"
    "      if verb == 'bury' then due = bury(unpack(argv, i, i + 2))\n"
    "      else due, before = retime(verb, unpack(argv, i, i + 3)) end\n"
    "      safe = safe + 1\n"
    "      reply[safe] = due\n"
    "      if due > 0 and not before then done = done + 1 end\n"
    "    end\n"
    "  end\n"
    "  if second then redis.call('LLEN', second) end\n"
    "  local at = 4\n"
    "  while argv[at] do\n"
    "    local verb, n = argv[at], tonumber(argv[at + 1])\n"
    "    local short = verb == 'ack' or verb == 'cancel'\n"
    "    local width = short and 2 or verb == 'bury' and 3 or 4\n"
    "    done = 0\n"
    "    local fine, why = pcall(run, verb, at + 2, n, width)\n"
    "    if tally and fields[verb] then tally(fields[verb], done) end\n"
    "    if not fine and safe == 1 then return refusal(why) end\n"
    "    if not fine then return {unpack(reply, 1, safe)} end\n"
    "    at = at + 2 + width * n\n"
    "  end\n"
    "  return reply\n"
    "end\n";

/* MIXED: offers, and cancels and reschedules of offers, in the order of an
 * outbox. Each part is a request for OFFER_KEYED or TICKETS.
 * KEYS     the keys of all parts
 * ARGV     1 counters; then for each part: its KEYS; its ARGV; and a text with
 *          the script's name, the numbers of these KEYS and ARGV, and the
 *          length of the complete reply
 * returns  clock; the reply to each part. The script stops after a part that is
 *          refused or incomplete. If the first part is refused, the script
 *          returns its error */
static const char dq_lua_mixed[] =
    "local scripts = {offer_keyed = offer_keyed, tickets = tickets}\n"
    "local parts, at, reply = {}, #ARGV, {(clock())}\n"
    "while at > 1 do\n"
    "  local name, keys, args, whole = string.match(ARGV[at],\n"
    "    '^(%S+) (%d+) (%d+) (%d+)$')\n"
    "  args = at - args\n"
    "  keys = args - keys\n"
    "  parts[#parts + 1] = {name, keys, args, at - 1, tonumber(whole)}\n"
    "  at = keys - 1\n"
    "end\n"
    "for i = #parts, 1, -1 do\n"
    "  local name, keys, args, last, whole = unpack(parts[i])\n"
    "  local part = scripts[name]({unpack(ARGV, keys, args - 1)},\n"
    "    {unpack(ARGV, args, last)})\n"
    "  if part.err then return #reply > 1 and reply or part end\n"
    "  reply[#reply + 1] = part\n"
    "  if #part < whole then return reply end\n"
    "end\n"
    "return reply\n";

/* PEEK
 * KEYS     1 zset
 * ARGV     1 how many elements; 2 the due time and 3 the prefix of the last
 *          element seen, or both missing
 * returns  clock; the rank of the first element; the due times in one text (if
 *          a score is no due time: '-' and a due time near it); the elements */
static const char dq_lua_peek[] =
    "local zset, max, reply, dues = KEYS[1], tonumber(ARGV[1]), {}, {}\n"
    "local due, prefix, rank, _ = ARGV[2], ARGV[3], 0, nil\n"
    "if due and string.byte(prefix) == 255 then\n"
    "  rank = math.floor(struct.unpack('>I4', prefix, 6)) + 1\n"
    "elseif due then\n"
    /* begin after all elements with this prefix, so that none is shown twice */
    "  _, rank = find(zset, due, prefix .. string.rep('\\255', 9))\n"
    "end\n"
    "reply[1], reply[2] = clock(), rank\n"
    "in_chunks({bytes = 0}, max, function(_, count)\n"
    "  local last, bytes = rank + count - 1, 0\n"
    "  local found = redis.call('ZRANGE', zset, rank, last, 'WITHSCORES')\n"
    "  for i = 1, #found, 2 do\n"
    "    local score = tonumber(found[i + 1]) or\n"
    "      found[i + 1] == 'inf' and 1e300 or -1\n"
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
 * KEYS     see dq_lua_run
 * ARGV     1 wire; 2 counters (not in KEYS, since an ACL may forbid this key);
 *          then due times
 * returns  clock, pending, overdue, ready, dead; the earliest due time, or -1
 *          if there is none; the six counters; time of the pause, or 0;
 *          for each of the given due times, the number of items due by then */
static const char dq_lua_count[] =
    "local zset, wire, ready, us, now = KEYS[1], ARGV[1], 0, clock()\n"
    "if wire ~= 'b' then ready = redis.call('LLEN', KEYS[2]) end\n"
    "if wire == 'n' then ready = ready + redis.call('LLEN', KEYS[3]) end\n"
    /* bisect, since ZRANGE would copy the first element, which may be large */
    "local function due(ms) return redis.call('ZCOUNT', zset, 0, ms) > 0 end\n"
    "local first, below, step = due('9007199254740991') and now or -1, -1, 16\n"
    "while first >= 0 and not due(first) do\n"
    "  below, first, step = first, first + step, 8 * step\n"
    "end\n"
    "while first - below > 1 do\n"
    "  local middle = below + math.floor((first - below) / 2)\n"
    "  if due(middle) then first = middle else below = middle end\n"
    "end\n"
    "local reply = {us, redis.call('ZCARD', zset),\n"
    "  redis.call('ZCOUNT', zset, 0, now), ready,\n"
    "  redis.call('LLEN', KEYS[4]), math.floor(first)}\n"
    "local totals = redis.pcall('HMGET', ARGV[2], 'offered', 'taken',\n"
    "  'acked', 'nacked', 'died', 'canceled')\n"
    "for i = 1, 6 do\n"
    "  local n = tonumber(totals[i] or 0) or 0\n"
    "  reply[6 + i] = math.max(0, math.floor(math.min(n, 2 ^ 53 - 1)))\n"
    "end\n"
    /* another program may have set the key to any value, of any type */
    "local since = redis.pcall('GET', KEYS[5])\n"
    "local why = since and since.err\n"
    "if why and not string.find(why, 'WRONGTYPE') then return since end\n"
    "since = since and math.max(1, tonumber(since) or 1) or 0\n"
    "reply[13] = math.floor(math.min(since, 2 ^ 53 - 1))\n"
    "for i = 3, #ARGV do\n"
    "  reply[11 + i] = redis.call('ZCOUNT', zset, 0, ARGV[i])\n"
    "end\n"
    "return reply\n";

/* PAUSE: 'pause' sets the pause to the current time if it is not set. 'resume'
 * deletes the pause, and notifies all waiting handles, which then poll.
 * KEYS     1 the pause; 2 zset, so that a cluster refuses the script while the
 *          slot moves, since a take on the other node would not see the pause
 * ARGV     1 'pause' or 'resume'; 2 the queue's channel; 3 the waiters'
 *          channel: its message is the time in ms within which they poll
 * returns  clock. If an ACL forbids PUBLISH, the next poll notices a resume */
static const char dq_lua_pause[] =
    "local us, now = clock()\n"
    "local text = string.format('%.0f', now)\n"
    "if ARGV[1] == 'pause' then\n"
    /* after this write command Redis no longer checks its memory limit */
    "  redis.call('ZREM', KEYS[2], 'delayq')\n"
    "  redis.call('SET', KEYS[1], text, 'NX')\n"
    "else\n"
    "  redis.call('DEL', KEYS[1])\n"
    "  local waiting = redis.pcall('PUBSUB', 'NUMSUB', ARGV[3])[2] or 100\n"
    "  redis.pcall('PUBLISH', ARGV[2], text)\n"
    "  redis.pcall('PUBLISH', ARGV[3], waiting)\n"
    "end\n"
    "return {us}\n";

/* CLEAR
 * KEYS     1 zset, 2 ready or stream, 3 retry or mirror
 * ARGV     1 wire, 2 mirror
 * returns  clock; the number of removed items, or -1 if nothing was removed
 *          because there is a mirror that the wire does not have */
static const char dq_lua_clear[] =
    "local wire, us, n = ARGV[1], clock(), redis.call('ZCARD', KEYS[1])\n"
    "local mirror = wire ~= 'r' and wire ~= 'o' and\n"
    "  redis.pcall('LLEN', ARGV[2])\n"
    "if type(mirror) == 'number' and mirror > 0 then return {us, -1} end\n"
    "n = n + redis.call(wire == 'b' and 'XLEN' or 'LLEN', KEYS[2])\n"
    "if wire == 'n' then n = n + redis.call('LLEN', KEYS[3]) end\n"
    "redis.call('UNLINK', unpack(KEYS))\n"
    "return {us, n}\n";

/* DEAD: read, redrive or clear dead letters. A redrive adds payloads to the
 * ready list or, with options.max_late_ms, elements that are due now to the
 * zset. It moves letters that it can't redrive to the end of the dead letters.
 * KEYS     1 dead; for a redrive 2 ready or zset
 * ARGV     1 'peek', 'redrive' or 'clear'; 2 how many; 3 index of the first;
 *          4 wire; 5 channel, if a redrive adds to the zset
 * returns  clock; the number of letters handled; for a peek the letters */
static const char dq_lua_dead[] =
    "local dead_list, to, old_first = KEYS[1], KEYS[2], ARGV[4] == 'o'\n"
    "local channel, us, now = ARGV[5], clock()\n"
    "local from, length = tonumber(ARGV[3]), redis.call('LLEN', dead_list)\n"
    "local max, reply = math.min(tonumber(ARGV[2]), length), {us, 0}\n"
    "if ARGV[1] == 'clear' then\n"
    "  redis.call('UNLINK', dead_list)\n"
    "  return {us, length}\n"
    "end\n"
    "if to then redis.call(channel and 'ZCARD' or 'LLEN', to) end\n"
    "if max == 0 then return reply end\n"
    "in_chunks({bytes = 0}, max, function(_, count)\n"
    "  local last, alive, bad, bytes = from + count - 1, {}, {}, 0\n"
    "  local letters = redis.call('LRANGE', dead_list, from, last)\n"
    "  for _, letter in ipairs(letters) do\n"
    "    local line_end = string.find(letter, '\\n', 1, true) or #letter\n"
    "    local e = string.sub(letter, line_end + 1)\n"
    "    local kind, start = split(e, old_first)\n"
    "    if not to then reply[#reply + 1] = letter\n"
    "    elseif channel and kind == 16 then\n"
    "      alive[#alive + 1], alive[#alive + 2] = now, with_attempts(e, 0)\n"
    "    elseif kind and not channel then\n"
    "      alive[#alive + 1] = string.sub(e, start)\n"
    "    else bad[#bad + 1] = letter end\n"
    "    bytes = bytes + cost(letter)\n"
    "  end\n"
    "  reply[2] = reply[2] + #letters - #bad\n"
    "  if not to then from = from + #letters\n"
    "  elseif #letters > 0 then\n"
    "    redis.call('LTRIM', dead_list, 0, -1)\n"
    "    if #alive > 0 then\n"
    "      redis.call(channel and 'ZADD' or 'RPUSH', to, unpack(alive))\n"
    "    end\n"
    "    if #bad > 0 then redis.call('RPUSH', dead_list, unpack(bad)) end\n"
    "    redis.call('LTRIM', dead_list, #letters, -1)\n"
    "  end\n"
    "  return #letters, bytes, #letters > 0\n"
    "end)\n"
    "if channel and reply[2] > 0 then\n"
    "  redis.pcall('PUBLISH', channel, string.format('%.0f', now))\n"
    "end\n"
    "return reply\n";

#endif /* DELAYQ_NO_LUA */

/* A verb points to its script. Only delayq_load_scripts has a table of all
 * scripts, so a program links only the Lua of the functions that it calls.
 * `sha` is the SHA1 of the whole text, for EVALSHA. `make lua` writes it, and a
 * test checks it. `name` and `sha` are arrays, because a compiler stores string
 * literals together, and a linker that needs one of them keeps all. */
typedef struct dq_script {
    char name[15]; /* name of the file in build/lua, without .lua */
    char sha[41];
    const char *const *parts; /* fragments, then NULL; without Lua: NULL */
} dq_script;

#ifdef DELAYQ_NO_LUA
#define DQ_HAS_LUA 0
#define DQ_SCRIPT(name, sha, ...) \
    static const dq_script dq_script_##name = {#name, sha, NULL}
#define DQ_NO_SCRIPTS                                             \
    "the server lacks the scripts of delayq " DELAYQ_VERSION      \
    ", and this program has none: run `delayq load-scripts`, or " \
    "call delayq_load_scripts in a program that has them"
#else
#define DQ_HAS_LUA 1
#define DQ_SCRIPT(name, sha, ...)                                     \
    static const char *const dq_parts_##name[] = {__VA_ARGS__, NULL}; \
    static const dq_script dq_script_##name = {#name, sha, dq_parts_##name}
#define DQ_NO_SCRIPTS "the server forgets its scripts"
#endif

#define DQ_LUA_RUN                                                 \
    dq_lua_clock, dq_lua_refusal, dq_lua_elements, dq_lua_foreign, \
        dq_lua_chunks, dq_lua_run, dq_lua_drain
#define DQ_LUA_MIRROR dq_lua_mirror_seek, dq_lua_mirror
#define DQ_LUA_WAITERS dq_lua_waiters_leave, dq_lua_waiters_stay
#define DQ_LUA_TAKE \
    dq_lua_move, dq_lua_remove, dq_lua_give, dq_lua_take_listed, dq_lua_take

#define DQ_LUA_KEYED                                                        \
    dq_lua_tally, dq_lua_clock, dq_lua_refusal, dq_lua_find, dq_lua_offers, \
        dq_lua_publish, dq_lua_held, dq_lua_offer_keyed

DQ_SCRIPT(offer, "b4a0f19ced15720aea6d808e351521ed866e52de", dq_lua_tally,
          dq_lua_offer_usual, dq_lua_clock, dq_lua_publish, dq_lua_offers,
          dq_lua_offer);
DQ_SCRIPT(offer_keyed, "b5852815f6bc656c02b9595ce0a5924aeb3f89b1", DQ_LUA_KEYED,
          "return offer_keyed(KEYS, ARGV)\n");
DQ_SCRIPT(tick, "5f42d3b5017dd08123c29d465eb8dd8ad7abc4ff", dq_lua_tally,
          DQ_LUA_RUN, dq_lua_no_mirror, dq_lua_move, dq_lua_present,
          dq_lua_lengths, dq_lua_tick);
DQ_SCRIPT(tick_redisson, "1f8fa1b96340df1a61a0f41c48f66ead77a5ea1f",
          dq_lua_tally, DQ_LUA_RUN, DQ_LUA_MIRROR, dq_lua_move, dq_lua_present,
          dq_lua_lengths, dq_lua_tick);
DQ_SCRIPT(take, "26326a9984b018851a53be42c0c44734caae7536", dq_lua_tally,
          dq_lua_present, dq_lua_take_read, dq_lua_take_usual, dq_lua_publish,
          dq_lua_find, DQ_LUA_WAITERS,
          "if usual then return give_role(usual, KEYS[6], ARGV) end\n",
          DQ_LUA_RUN, dq_lua_no_mirror, dq_lua_lengths, DQ_LUA_TAKE);
DQ_SCRIPT(take_redisson, "9e3950194088d467304accc570eeae6351837919",
          dq_lua_tally, dq_lua_publish, DQ_LUA_WAITERS, DQ_LUA_RUN,
          DQ_LUA_MIRROR, dq_lua_find, dq_lua_present, dq_lua_lengths,
          "local acked = nil\n", DQ_LUA_TAKE);
DQ_SCRIPT(broadcast, "65e1971e9d1c56c474aed53d5fd7302e48c608e8", dq_lua_tally,
          DQ_LUA_RUN, dq_lua_broadcast);
DQ_SCRIPT(tickets, "d253bd8789e637c6184b87ae5fc55083676f76fc", dq_lua_tally,
          dq_lua_clock, dq_lua_refusal, dq_lua_find, dq_lua_publish,
          dq_lua_elements, dq_lua_remove, dq_lua_tickets,
          "return tickets(KEYS, ARGV)\n");
DQ_SCRIPT(mixed, "1964f6197c5af085f94f38acf18f882853a353b7", DQ_LUA_KEYED,
          dq_lua_elements, dq_lua_remove, dq_lua_tickets, dq_lua_mixed);
DQ_SCRIPT(peek, "f1ee02fdbaa183d0835a1e1c7c0fbdbea2db5ccc", dq_lua_clock,
          dq_lua_find, dq_lua_chunks, dq_lua_peek);
DQ_SCRIPT(count, "7ce9fdf8ed424b9072981294e374cb6ac1e35755", dq_lua_clock,
          dq_lua_count);
DQ_SCRIPT(pause, "adf6b5bd9bbb156e418ffc3e279c2d28362b1219", dq_lua_clock,
          dq_lua_pause);
DQ_SCRIPT(clear, "dde8a0396d79ea8fad66751c7a750cdd7ef2e255", dq_lua_clock,
          dq_lua_clear);
DQ_SCRIPT(dead, "c43ffe1df2b7ea44d27db7b8b714d0c13c72de83", dq_lua_clock,
          dq_lua_elements, dq_lua_chunks, dq_lua_dead);
DQ_SCRIPT(probe, "79317a0522a05156f88b6536bbd195a868adb00a", dq_lua_clock,
          dq_lua_elements, dq_lua_foreign, dq_lua_probe);

/*-----------------------------------------------------------------------------
 * MARK: - Protocol
 * >>protocol   writing requests, reading replies
 *
 * A command is written into a small buffer, which is then copied into the
 * output buffer of hiredis. Larger payloads and scripts do not pass through the
 * small buffer. No array of arguments is made.
 *---------------------------------------------------------------------------*/

/* The reply to a tick, take or broadcast begins with these numbers. The numbers
 * from READY on are one nested array, or a plain 0 if all of them are 0. The
 * due times follow this array, as a string. */
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

/* Read the first n integers of an array. Returns 0 if the reply has another
 * form, if one is over 2^53, or if the first (a clock or count) is negative. */
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

static void dq_resp_free(redisReply **r) {
    if (*r) freeReplyObject(*r);
    *r = NULL;
}

#define DQ_RESP_ITEMS_MAX 250000u    /* a reply with more elements is refused */
#define DQ_RESP_BYTES_MAX (1u << 30) /* most bytes of all strings in a reply */
#define DQ_PAYLOAD_MAX (DQ_RESP_BYTES_MAX - (1 << 20)) /* 1 MB for other text */
#define DQ_RESP_LINE_MAX 60000 /* most bytes of a line, such as an error */
#define DQ_RESP_BODY 'b'       /* scan.type while a string's bytes arrive */

/* Check the next n bytes of a reply before hiredis parses them. hiredis
 * allocates an array of any length that the server claims, and walks through
 * all of it to free it. A large length may overflow its arithmetic. Each time
 * bytes of a line arrive, hiredis searches the whole line for its end. Only
 * malformed numbers are left to hiredis. Returns NULL, or the fault. */
static const char *dq_resp_scan(delayq_reply_scan *r, const char *p, size_t n) {
    const char *end = p + n;
    while (p < end) {
        int complete = 0; /* 1: an element has ended, not only its header */
        if (r->type == 0) {
            if (memchr("_#,(!=%~>|", *p, 10))
                return "a reply in RESP3, although RESP2 was chosen";
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
                r->type = '+'; /* nil has no bytes after its line */
            else if (*p >= '0' && *p <= '9' && r->number != UINT_MAX)
                r->number = r->number < DQ_RESP_BYTES_MAX / 5
                                ? r->number * 10 + (unsigned)(*p - '0')
                                : UINT_MAX;
            r->last = *p++;
        } else if (r->type == '$') {
            if (r->number > DQ_RESP_BYTES_MAX - r->bytes)
                return "more than 1 GB in one reply";
            r->bytes += r->number;
            r->number += 2; /* for the \r\n after the string */
            r->type = DQ_RESP_BODY;
            p++;
        } else if (r->type == '*' && r->number > 0) {
            if (r->depth == sizeof r->left / sizeof r->left[0])
                return "arrays nested too deep";
            if (r->number > DQ_RESP_ITEMS_MAX - r->items)
                return "more than 250,000 elements in one reply";
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

#define DQ_RESP_SMALL 1024  /* longest argument except scripts and payloads */
#define DQ_RESP_SLICE 65536 /* most bytes of `body` in one dq_conn_write */
#define DQ_RESP_CALL 80     /* most bytes of EVALSHA, a SHA1 and two numbers */

typedef struct dq_resp_writer {
    redisContext *c;
    int counting; /* 1: only count; bytes that don't fit into buf are dropped */
    int spilled;  /* 1: while counting, some bytes did not fit into buf */
    size_t args, keys;        /* the number of arguments so far; how many of
                                 them are keys, which come first */
    int commands;             /* commands so far; each has one reply */
    const char *body;         /* a text to write after buf; not copied */
    size_t body_len;          /* the length of `body` in bytes */
    const char *const *parts; /* texts to write after `body`, up to a NULL */
    size_t n;                 /* bytes in buf */
    char buf[2048];
} dq_resp_writer;

static void dq_resp_begin(dq_resp_writer *o, redisContext *c) {
    o->c = c;
    o->n = o->keys = o->args = o->body_len = 0;
    o->parts = NULL;
    o->counting = o->spilled = o->commands = 0;
}

/* Append bytes to the output buffer of hiredis. If there is no memory for them,
 * the context records this failure, and no more bytes are appended. */
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

/* If the next `args` arguments need not be written, count them and return 1. */
static int dq_resp_skip(dq_resp_writer *o, size_t args) {
    if (o->counting && o->spilled) o->args += args;
    return o->counting && o->spilled;
}

/* Write the first `len` bytes of an argument of len + more bytes. They always
 * fit into the buffer. The caller appends the other bytes. */
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

/* Write an argument of any length, which consists of a small head and the data.
 * If the argument is large and the last one of a request, the data is not
 * copied, and the socket writes it in slices. */
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

/* Begin a command of `count` words with `words`. The caller writes the rest. */
static void dq_resp_command(dq_resp_writer *o, size_t count,
                            const char *words) {
    dq_resp_flush(o);
    o->commands++;
    o->buf[0] = '*';
    o->n = 3 + dq_num_decimal(o->buf + 1, (int64_t)count);
    memcpy(o->buf + o->n - 2, "\r\n", 2);
    while (*words) {
        size_t len = strcspn(words, " ");
        dq_resp_arg(o, words, len, 0);
        words += len + (words[len] == ' ');
    }
}

/* Write a key or channel of the queue: prefix, T (see >>keys), rest. A take
 * writes at least four of these, so snprintf would be slow. */
static void dq_resp_key(dq_resp_writer *o, const delayq *q, const char *prefix,
                        const char *rest) {
    size_t n = strlen(prefix), more = strlen(rest), brace = q->has_tag ? 0 : 1;
    char *to;
    assert(n + q->name_len + more + 2 <= DQ_RESP_SMALL);
    dq_resp_arg(o, prefix, n, q->name_len + 2 * brace + more);
    to = o->buf + o->n;
    if (brace) *to++ = '{';
    memcpy(to, q->name, q->name_len);
    to += q->name_len;
    if (brace) *to++ = '}';
    memcpy(to, rest, more);
    memcpy(to + more, "\r\n", 2);
    o->n = (size_t)(to - o->buf) + more + 2;
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
#define DQ_WAITERS "delayq_waiters:" /* also the waiters' channel */
#define DQ_TURN "delayq_turn:"
#define DQ_PAUSED "delayq_paused:"
#define DQ_INVALIDATE "__redis__:invalidate"
/* Record that all keys of a script are written, and write its first argument:
 * the key of the counters, or '' if options.counters is 0. */
static void dq_resp_end_keys(dq_resp_writer *o, const delayq *q) {
    o->keys = o->args;
    if (q->options.counters)
        dq_resp_key(o, q, DQ_COUNTERS, "");
    else
        dq_resp_text(o, "");
}

/* A command has at most this many words, since some hosted servers allow only
 * 3,999. The field `most` of each verb keeps its requests within this limit. */
#define DQ_MOST_ARGS 3900

/* Writes a script's keys and arguments or, with DQ_RAW, whole commands. */
typedef void dq_resp_args(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane);

/* Write SCRIPT LOAD. The socket writes the script part by part. */
static void dq_resp_upload(dq_resp_writer *o, const dq_script *script) {
    size_t len = 0, i;
    assert(DQ_HAS_LUA && script->parts);
    DQ_MARK(script_uploaded);
    for (i = 0; script->parts[i]; i++) len += strlen(script->parts[i]);
    dq_resp_command(o, 3, "SCRIPT LOAD");
    dq_resp_arg(o, "", 0, len);
    o->body = script->parts[0];
    o->body_len = strlen(o->body);
    o->parts = script->parts + 1;
}

/* Write the call of a script. The numbers of keys and arguments are known only
 * after `args` has run, so room is left in the buffer for the words before the
 * keys. If the arguments don't fit into the buffer, `args` runs again. */
static void dq_resp_call(dq_resp_writer *o, delayq *q, const dq_script *script,
                         dq_resp_args *args, const delayq_lane *lane) {
    size_t end, keys, total;
    dq_resp_flush(o);
    o->counting = 1;
    o->spilled = 0;
    o->keys = o->args = 0;
    o->n = DQ_RESP_CALL;
    args(o, q, lane);
    end = o->n, keys = o->keys, total = o->args;
    assert(keys <= total && 3 + total <= DQ_MOST_ARGS);
    o->counting = 0;
    o->n = 0;
    dq_resp_command(o, 3 + total, "EVALSHA");
    dq_resp_text(o, script->sha);
    dq_resp_int(o, (int64_t)keys);
    assert(o->n <= DQ_RESP_CALL);
    if (!o->spilled) {
        memmove(o->buf + o->n, o->buf + DQ_RESP_CALL, end - DQ_RESP_CALL);
        o->n += end - DQ_RESP_CALL;
        return;
    }
    DQ_MARK(request_spills);
    o->keys = o->args = 0;
    args(o, q, lane);
    assert(o->keys == keys && o->args == total);
}

/*-----------------------------------------------------------------------------
 * MARK: - Schedule
 * >>schedule   the time of the next poll
 *
 * Owns next_poll_us, the time of the next poll (a transfer or take), with one
 * function for each event. Section Waiters also sets this time, for handles
 * that wait together with others.
 *
 * A reply contains the time until the next item is due. The handle counts this
 * time from the sending of the request. So the next poll is usually in time, or
 * some microseconds early and then repeated. If the time counted from the
 * reply, the poll would be a round trip late. If a message announces a due time
 * during a take, the handle polls at this time or the reply's, the earlier one.
 * Without a connection it does not poll. It polls as soon as it is connected.
 *---------------------------------------------------------------------------*/

#define DQ_BACKOFF_US 100000
#define DQ_MOVING_US 10000 /* shortest pause while a slot moves */
#ifndef DQ_ATTEMPTS_US /* tests define these two */
#define DQ_ATTEMPTS_US DQ_SECOND_US /* a socket begins three attempts at most */
#define DQ_SLACK_US 300000 /* a standby's delay: from this to twice this time */
#endif
#define DQ_PING_US (10 * DQ_SECOND_US)
#define DQ_YIELD_US DQ_SECOND_US /* longest yield: see dq_lane_yield_us */
#define DQ_POLL_MS 250   /* time between polls if pushes are not reported */
#define DQ_QUIET_POLLS 4 /* most doublings of DQ_POLL_MS while no push comes */
#define DQ_SHORT_NAPS 12 /* while items are ready, the first 12 ticks after a
                            take limit wait_ms: to 0 at first, to 2 s at last */

enum {
    DQ_CHANNEL_QUEUE = 1,   /* announces when the next item is due */
    DQ_CHANNEL_WAITERS = 2, /* tells all waiting handles to send a take */
    DQ_CHANNEL_OWN = 4,     /* tells this handle to lead, or to send a take */
    DQ_CHANNELS_OF_WAITERS = DQ_CHANNEL_WAITERS | DQ_CHANNEL_OWN
};

static int64_t dq_sched_backoff_us(const delayq *q, unsigned failures) {
    return dq_num_backoff(DQ_BACKOFF_US, q->options.reconnect_max_ms * 1000LL,
                          failures);
}

/* Returns the time limit of a reply, in us: `ms` milliseconds, but at least two
 * round trips. Otherwise, if a round trip took longer than `ms`, every request
 * would time out although the server runs it. */
DQ_APART static int64_t dq_sched_patience_us(const delayq_conn *conn, int ms) {
    int64_t twice = conn->known ? 2 * conn->trip_us : 0;
    return twice > ms * 1000LL ? twice : ms * 1000LL;
}

/* Returns the time at which a socket needs a step even if it is not ready. */
static int64_t dq_sched_socket(const delayq_conn *conn,
                               const delayq_socket *s) {
    int64_t end;
    if (s->state == DELAYQ_SOCKET_CLOSED) return s->retry_us;
    if (s->state == DELAYQ_SOCKET_RESOLVING) return conn->now_us + 10000;
    if (s->state < DELAYQ_SOCKET_OPEN) return s->deadline_us;
    if (!s->first) return DQ_NEVER;
    end = s->active_us +
          dq_sched_patience_us(conn, conn->owner->options.io_timeout_ms);
    if (s == &conn->cmd && !conn->known && s->deadline_us < end)
        return s->deadline_us; /* the probe is part of connecting */
    return end; /* if no byte is sent or read by then, the exchanges fail */
}

/* Returns the time at which a quiet subscriber is pinged or, if it was pinged,
 * the time at which the reply to the ping is overdue. */
static int64_t dq_sched_ping_us(const delayq_conn *conn) {
    if (conn->sub_pinged_us == 0) return conn->sub.active_us + DQ_PING_US;
    return conn->sub_pinged_us +
           dq_sched_patience_us(conn, conn->owner->options.io_timeout_ms);
}

/* Returns the time between two polls, in us, of a handle that gets no messages
 * about due times, or no reports of pushes. If only the reports are missing and
 * options.poll_ms is 0, the time grows while no push is found, since perhaps
 * nobody pushes, and many hosted servers charge for each command. */
DQ_APART static int64_t dq_sched_unheard_us(const delayq *q) {
    int64_t most_ms = q->options.max_wait_ms, poll_ms = q->options.poll_ms;
    if (poll_ms == 0)
        poll_ms = (int64_t)DQ_POLL_MS
                  << (q->subscribed & DQ_CHANNEL_QUEUE ? q->quiet_polls : 0);
    return (poll_ms < most_ms ? poll_ms : most_ms) * 1000;
}

/* Poll no later than `when`, but not before a back-off is over. */
static void dq_sched_lower(delayq *q, int64_t when) {
    if (when < q->not_before_us) when = q->not_before_us;
    if (q->next_poll_us > when) q->next_poll_us = when;
}

/* Returns 1 if items are ready and no back-off forbids a take. */
static int dq_sched_has_ready(const delayq *q) {
    return q->ready > 0 &&
           (!q->not_before_us || q->conn->now_us >= q->not_before_us);
}

/* Returns the possible drift, in us, between the server's clock and the local
 * one since the server's clock was read: 500 us per second. */
DQ_APART static int64_t dq_sched_drift_us(const delayq_conn *conn,
                                          int64_t now) {
    return now > conn->clock_read_us ? (now - conn->clock_read_us) / 2000 : 0;
}

/* Returns how far, in us, the server's clock can be ahead of the local one. */
DQ_APART static int64_t dq_sched_ahead_us(const delayq_conn *conn) {
    return conn->clock_offset_us + conn->clock_error_us +
           dq_sched_drift_us(conn, conn->now_us);
}

/* Returns the latest time, in us, that the server's clock can have shown at
 * local_us. Returns at least 1, since a due time of 0 would mean "none". (The
 * estimate is negative if the server's clock began at 1970 after local_us.) */
static int64_t dq_sched_server_us(const delayq_conn *conn, int64_t local_us) {
    int64_t us = local_us + dq_sched_ahead_us(conn);
    return us > 0 ? us : 1;
}

static int dq_sched_same_queue(const delayq *a, const delayq *b) {
    return a->name_len == b->name_len &&
           memcmp(a->name, b->name, a->name_len) == 0;
}

/* Record that the server may no longer track the ready list. If a reply to a
 * tracking request is in flight, it is out of date. */
static void dq_sched_untrack(delayq *q) {
    q->list_tracked = 0;
    q->track_stale = 1;
}

/* --- events of the connections --- */

/* Poll at once, since the first probe on the command socket was answered. */
static void dq_sched_on_conn_back(delayq_conn *conn) {
    delayq *h;
    delayq_lane *lane;
    int64_t now = conn->now_us;
    assert(conn->known && conn->cmd.state >= DELAYQ_SOCKET_OPEN);
    for (h = conn->handles; h; h = h->next) {
        h->not_before_us = 0;
        h->next_poll_us = now;
        for (lane = h->lanes; lane; lane = lane->next)
            if (lane->suspect_us > 0) {
                DQ_MARK(suspect_on_trial);
                lane->retry_us = now + lane->trial_us;
                lane->suspect_us = lane->retry_us + DQ_YIELD_US;
            }
    }
}

/* Poll when the subscriber, which was closed, may be opened again. */
static void dq_sched_on_sub_lost(delayq_conn *conn) {
    delayq *h;
    assert(!conn->sub.c && conn->tracking == DELAYQ_TRACK_OFF);
    DQ_MARK(subscriber_lost);
    for (h = conn->handles; h; h = h->next) {
        h->sub_sent = h->subscribed = 0;
        dq_sched_untrack(h);
        memset(&h->waiter, 0, sizeof h->waiter);
        dq_sched_lower(h, conn->sub.retry_us);
    }
}

/* Back off after a failed transfer or take, unless the connection is lost,
 * since connecting has its own back-off. */
static void dq_sched_on_fault(delayq *q) {
    q->poll_sent = 0;
    q->waiter.push_us = 0;
    if (!q->conn->cmd.c) return;
    DQ_MARK(fetch_backs_off);
    q->next_poll_us = q->not_before_us = q->conn->now_us + DQ_BACKOFF_US;
}

/* --- events of the queue --- */

/* Record that a transfer or take was sent. Its reply will give the time of the
 * next poll, unless a message before the reply has an earlier time. */
static void dq_sched_on_sent(delayq *q) {
    assert(!q->poll_sent);
    q->poll_sent = 1;
    q->not_before_us = 0;
    q->next_poll_us = DQ_NEVER;
}

/* Set the next poll of every handle on the same queue and connection by the
 * reply to a transfer or take. In a broadcast, set only that of q.
 *     next_us   the time in us until the next item is due; < 0: there is none
 *     ready     the number of items in the lists
 *     unheard   1: the next push will not be reported
 *     taken     1: the list has changed, perhaps because others have pushed
 *
 * If an item is due within a millisecond, this poll was probably too early. The
 * next request will reach the server sooner, since both processes are awake. So
 * the time until the next poll counts from the middle of this round trip, not
 * from its start. Otherwise the next poll would be too early, too. */
static void dq_sched_on_reply(delayq *q, const delayq_exchange *x,
                              int64_t next_us, int64_t ready, int unheard,
                              int taken) {
    const delayq_conn *conn = q->conn;
    int64_t cap = q->options.max_wait_ms * 1000;
    int64_t sent_us = x->sent_us, from_us = sent_us;
    delayq *h;
    if (taken || !unheard) q->quiet_polls = 0;
    if (unheard || !(q->subscribed & DQ_CHANNEL_QUEUE))
        cap = dq_sched_unheard_us(q);
    if (unheard && q->quiet_polls < DQ_QUIET_POLLS) q->quiet_polls++;
    if (next_us < 0 || next_us > cap) next_us = cap;
    if (next_us < 1000) from_us += (x->read_us - sent_us) / 2;
    for (h = conn->handles; h; h = h->next) {
        if (h != q && (h->wire->stream || !dq_sched_same_queue(h, q))) continue;
        h->not_before_us = 0;
        h->ready = ready < 0 ? 0 : ready;
        if (!h->poll_sent || from_us + next_us < h->next_poll_us)
            h->next_poll_us = from_us + next_us;
        if (h->track_us > sent_us) dq_sched_lower(h, h->track_us);
        if (conn->sub.retry_us > sent_us) /* a poll opens sub again */
            dq_sched_lower(h, conn->sub.retry_us);
        if (taken) dq_sched_untrack(h);
    }
    q->poll_sent = 0;
}

/* Convert due_ms to the earliest possible local time in us; 0 means now. */
static int64_t dq_sched_message_us(const delayq *q, int64_t due_ms) {
    int64_t now = q->conn->now_us;
    if (due_ms > DQ_MAX_DUE / 1000) return now + q->options.max_wait_ms * 1000;
    return due_ms > 0 ? due_ms * 1000 - dq_sched_ahead_us(q->conn) : now;
}

/* Poll no later than due_ms (0: now). It is a due time that a message has
 * announced, or that an op of this handle has set. */
static void dq_sched_on_message(delayq *q, int64_t due_ms) {
    dq_sched_lower(q, dq_sched_message_us(q, due_ms));
}

/* Record that a call has redriven `more` items, or has cleared the ready list.
 * The server reports this to other connections only, and stops tracking. */
static void dq_sched_on_own_push(delayq *q, int64_t more) {
    delayq *h;
    DQ_MARK(own_push);
    for (h = q->conn->handles; h; h = h->next) {
        if (!dq_sched_same_queue(h, q)) continue;
        dq_sched_untrack(h);
        h->ready += more;
    }
}

/* After a failed request for tracking: poll DQ_POLL_MS after read_us, and don't
 * retry before. */
static void dq_sched_on_untracked(delayq *q, int64_t read_us) {
    delayq *h;
    DQ_MARK(untracked);
    if (q->conn->tracking == DELAYQ_TRACK_OFF) /* for all handles */
        for (h = q->conn->handles; h; h = h->next) dq_sched_untrack(h);
    q->track_us = read_us + DQ_POLL_MS * 1000;
    dq_sched_lower(q, q->track_us);
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiters
 * >>waiters   which of the handles that wait on a queue acts
 *
 * If many handles wait in a take on one queue, few of them should wake for an
 * item. So the take script (give_role in its Lua) gives each handle a role:
 *
 *     alone     Nobody else waits. The handle acts at once if an item is due or
 *               pushed. Its takes don't pass the waiters' key, to save work.
 *     leader    It acts at once, too. If it gets an item or stops waiting, its
 *               script names the next leader: the standby that has waited
 *               longest or, without a standby, a sleeper. If it gets an item
 *               and more are due, the script wakes more waiters.
 *     standby   About 16 of the others. They receive the messages that the
 *               leader receives, and act 0.3 to 0.6 s later. If the item is
 *               still there, the leader is dead or frozen, and the script tells
 *               all to enter. Otherwise the script tells the other standbys the
 *               next due time, for which they then wait.
 *     sleeper   All others. They receive only messages on their own channel and
 *               on the waiters' channel, and send a take every max_wait_ms.
 *     none      The handle has just begun to wait, waits for less than 10 s,
 *               or an ACL forbids the waiters' key. It acts at once. "New" is
 *               the same, before the first role.
 *
 * The consequence of each event, by role:
 *
 *     event             none, alone   leader      standby          sleeper
 *
 *     due time on the   act then      act then    act 0.3 to       (is not
 *     queue's channel                             0.6 s later      subscribed)
 *     push reported     act           act         count the list   -
 *                                                 0.3 to 0.6 s
 *                                                 later (LLEN)
 *     own channel:      lead after a  act then    lead, act then   lead, act
 *     "lead, due ..."   take that is                               then
 *                       in flight
 *     own channel: 0    enter         enter       enter            enter
 *     waiters' channel  enter         enter       enter            enter
 *     reply to a take   adopt the role in it, unless a message is newer
 *
 * A due time on the queue's channel is that of the earliest item, so it
 * replaces the due time that a standby has stored. "Enter" means to send a
 * take, whose reply has a new role; after a message on the waiters' channel,
 * this is done within a second.
 *
 * The roles only save work. A handle acts by the role that it got last. If two
 * handles lead, both act, and the next script gives one a new role. If no
 * handle leads, a standby acts late. Its script makes it the leader or, if it
 * has got an item, tells all to enter. If there is no standby either, the
 * script of a sleeper does this.
 *
 * Owns q->waiter and will_wait, which other sections only reset to 0.
 *---------------------------------------------------------------------------*/

#define DQ_WAITERS_MS 10000 /* shortest timeout of a take that gets a role */

/* Returns 1 if the handle's next take passes the waiters' key to the script. */
static int dq_waiters_in_take(const delayq *q) {
    const int both = DQ_CHANNELS_OF_WAITERS;
    return q->waiter.role >= DELAYQ_WAITER_LEADER || /* in the waiters' set */
           (q->will_wait && q->waiter.role <= DELAYQ_WAITER_NONE &&
            (q->subscribed & both) == both);
}

/* Returns the role that the handle claims to have, for the script. */
static const char *dq_waiters_claim(const delayq *q) {
    const delayq_waiter *w = &q->waiter;
    if (w->role == DELAYQ_WAITER_NEW) return "new";
    if (w->enter_us > 0) return "none";
    switch (w->role) {
    case DELAYQ_WAITER_LEADER: return "leader";
    case DELAYQ_WAITER_SLEEPER: return "sleeper";
    case DELAYQ_WAITER_STANDBY:
        return q->ready > 0 || q->conn->tracking == DELAYQ_TRACK_OFF ||
                       (w->due_us > 0 && w->due_us <= q->conn->now_us)
                   ? "check"
                   : "standby";
    default: return "none";
    }
}

/* Returns how much later than the leader a standby acts, in us. */
static int64_t dq_waiters_slack(void) {
    return DQ_SLACK_US + (int64_t)dq_sys_random16() * DQ_SLACK_US / 65536;
}

/* Returns the time by which a leader must poll. It is earlier if no message
 * would announce an item. */
static int64_t dq_waiters_latest(const delayq *q) {
    int heard = q->conn->tracking != DELAYQ_TRACK_OFF &&
                (q->subscribed & DQ_CHANNEL_QUEUE);
    return q->conn->now_us +
           (heard ? q->options.max_wait_ms * 1000 : dq_sched_unheard_us(q));
}

/* Set the next poll of a standby, for an item that is due at due_us. */
static void dq_waiters_stand_by(delayq *q, int64_t due_us) {
    int64_t now = q->conn->now_us, latest = dq_waiters_latest(q);
    assert(q->waiter.role == DELAYQ_WAITER_STANDBY);
    if (due_us > latest) due_us = latest; /* when the leader polls */
    if (due_us < now) due_us = now;
    due_us += dq_waiters_slack();
    if (due_us > q->waiter.take_us) due_us = q->waiter.take_us;
    if (q->waiter.enter_us > 0)
        dq_sched_lower(q, due_us); /* the handle may enter before that */
    else
        q->next_poll_us = due_us;
}

/* --- events, as in the table above --- */

/* Record that a take begins. If `waits` is 1, end the handle's back-off. If
 * timeout_ms is long enough, the handle can get a role, except in a broadcast.
 * If it can, but has none (as after an item), it sends the take at once. */
static void dq_waiters_on_take(delayq *q, int64_t timeout_ms, int waits) {
    if (waits && q->not_before_us) {
        q->not_before_us = 0;
        dq_sched_lower(q, q->conn->now_us);
    }
    q->will_wait =
        (timeout_ms < 0 || timeout_ms >= DQ_WAITERS_MS) && !q->wire->stream;
    if (!q->will_wait) q->waiter.enter_us = 0;
    if (q->waiter.role <= DELAYQ_WAITER_NONE && dq_waiters_in_take(q))
        dq_sched_lower(q, q->conn->now_us);
}

/* Set the role and the next poll by the reply to a take that was sent at
 * sent_us. The next item is due in next_us us (-1: none). `got` is 1 if the
 * take has got an item. `given` is the number of the role in the reply, or -1
 * if the take did not pass the waiters' key. */
static void dq_waiters_on_reply(delayq *q, int64_t sent_us, int64_t next_us,
                                int got, int64_t given) {
    const int both = DQ_CHANNELS_OF_WAITERS;
    delayq_waiter *w = &q->waiter;
    delayq_waiter_role before = w->role;
    int64_t cap = q->options.max_wait_ms * 1000;
    if (given > 0 && (q->subscribed & both) != both)
        given = 0; /* the subscriber was lost meanwhile */
    if (given > 0 && given < DELAYQ_WAITER_SLEEPER)
        w->role = (delayq_waiter_role)(given + 1);
    else if ((given == 0 && w->role > DELAYQ_WAITER_NONE) ||
             (got && w->role >= DELAYQ_WAITER_LEADER))
        w->role = DELAYQ_WAITER_NONE;
    /* A message that came after the take was sent is newer than the reply. */
    if (given >= 0 && w->enter_us < sent_us) w->enter_us = 0;
    if (w->enter_us > 0 && w->role == DELAYQ_WAITER_ALONE)
        w->role = DELAYQ_WAITER_NONE;
    if (w->lead_us >= sent_us && w->role > DELAYQ_WAITER_LEADER)
        w->role = DELAYQ_WAITER_LEADER; /* at worst two handles lead */
    switch (w->role) {
    case DELAYQ_WAITER_STANDBY:
        DQ_MARK(becomes_standby);
        w->take_us = sent_us + cap;
        w->due_us = q->next_poll_us; /* from the reply, or a later message */
        if (next_us < 0 && w->due_us >= w->take_us) w->due_us = 0;
        dq_waiters_stand_by(q, w->due_us == 0 ? w->take_us : w->due_us);
        break;
    case DELAYQ_WAITER_SLEEPER:
        DQ_MARK(becomes_sleeper);
        if (before != DELAYQ_WAITER_SLEEPER) /* first poll: a random time */
            cap = cap / 65536 * dq_sys_random16();
        q->next_poll_us = sent_us + cap;
        break;
    default: break; /* dq_sched_on_reply has set the next poll */
    }
    if (w->role != DELAYQ_WAITER_STANDBY) w->push_us = 0;
    if (w->enter_us > 0 && dq_waiters_in_take(q))
        dq_sched_lower(q, q->conn->now_us);
    assert(w->enter_us == 0 || w->role != DELAYQ_WAITER_ALONE);
}

/* Handle a message on the queue's channel: the next item is due at due_ms, or
 * now if due_ms is 0. If a take is in flight, the message can only make the
 * next poll earlier, since the reply may change the role. */
static void dq_waiters_on_message(delayq *q, int64_t due_ms) {
    delayq_waiter *w = &q->waiter;
    switch (w->role) {
    case DELAYQ_WAITER_SLEEPER: return;
    case DELAYQ_WAITER_STANDBY:
        if (q->poll_sent) break;
        DQ_MARK(standby_defers_due);
        w->due_us = dq_sched_message_us(q, due_ms);
        dq_waiters_stand_by(q, w->due_us);
        return;
    default: break;
    }
    dq_sched_on_message(q, due_ms);
}

/* Record a subscription or, if `on` is 0, its end. For the queue's channel, act
 * as if an item were due now, since messages before or after it are missed. */
static void dq_waiters_on_channel(delayq *q, int channel, int on) {
    q->subscribed =
        (unsigned char)((q->subscribed & ~channel) | (on ? channel : 0));
    if (channel == DQ_CHANNEL_QUEUE)
        dq_waiters_on_message(q, 0);
    else if (q->waiter.role <= DELAYQ_WAITER_NONE && dq_waiters_in_take(q))
        dq_sched_lower(q, q->conn->now_us);
}

/* Handle the report that the list has changed, which ends its tracking. */
static void dq_waiters_on_push(delayq *q) {
    delayq_waiter *w = &q->waiter;
    int64_t now = q->conn->now_us;
    assert(w->push_us == 0 || w->role == DELAYQ_WAITER_STANDBY);
    dq_sched_untrack(q);
    switch (w->role) {
    case DELAYQ_WAITER_SLEEPER: break;
    case DELAYQ_WAITER_STANDBY: /* an LLEN in flight may miss this push */
        DQ_MARK(standby_defers_push);
        if (w->push_us <= now) w->push_us = now + dq_waiters_slack();
        break;
    default: dq_sched_lower(q, now);
    }
}

/* Record that the server will report the next push into the list. `ready` items
 * are in the list already; a standby leaves these to the leader at first. */
static void dq_waiters_on_track(delayq *q, int64_t ready) {
    delayq_waiter *w = &q->waiter;
    assert(q->conn->tracking == DELAYQ_TRACK_ON && ready >= 0);
    q->list_tracked = 1;
    if (w->role == DELAYQ_WAITER_STANDBY && w->push_us == 0 && ready > 0) {
        DQ_MARK(standby_leaves_to_leader);
        dq_waiters_on_push(q);
        return;
    }
    w->push_us = 0;
    if (ready > 0) q->ready = ready;
}

/* Handle a message on the handle's own channel: the handle leads, and the next
 * item is due at due_ms. The message may come before the reply that makes the
 * handle one of the waiters. If the handle has no role and no take in flight,
 * the message has no effect, because the handle soon sends a take. */
static void dq_waiters_on_promotion(delayq *q, int64_t due_ms) {
    delayq_waiter *w = &q->waiter;
    w->lead_us = q->conn->now_us;
    if (q->poll_sent) DQ_MARK(promoted_while_asking);
    q->quiet_polls = 0; /* the leader got an item, perhaps a pushed one */
    if (q->poll_sent) dq_sched_on_message(q, due_ms);
    if (w->role < DELAYQ_WAITER_LEADER) return;
    DQ_MARK(promoted);
    w->role = DELAYQ_WAITER_LEADER;
    w->push_us = 0;
    if (!q->poll_sent) q->next_poll_us = dq_sched_message_us(q, due_ms);
    dq_sched_lower(q, dq_waiters_latest(q));
    if (w->enter_us > 0) dq_sched_lower(q, w->lead_us);
}

/* Handle a message on the waiters' channel: each of `count` waiting handles
 * enters again at a random time within `count` ms, 1 s at most. A `count` of 0
 * comes on the handle's own channel, and the handle enters at once. */
static void dq_waiters_on_call(delayq *q, int64_t count) {
    delayq_waiter *w = &q->waiter;
    if (w->role == DELAYQ_WAITER_ALONE) w->role = DELAYQ_WAITER_NONE;
    if (!q->will_wait) return; /* it enters when it waits again */
    DQ_MARK(waiters_called);
    w->enter_us = q->conn->now_us;
    if (count > 1000) count = 1000;
    count = count * 1000 * (int64_t)dq_sys_random16() / 65536;
    dq_sched_lower(q, w->enter_us + count);
}

/* Record that the handle has left the waiters, or tried to. If `refused` is
 * 1, an ACL forbids the waiters' key, and the handle waits as if it were alone
 * until the subscriber is opened again. */
static void dq_waiters_on_leave(delayq *q, int refused) {
    delayq_waiter *w = &q->waiter;
    if (w->role >= DELAYQ_WAITER_LEADER) q->next_poll_us = q->conn->now_us;
    if (w->role > DELAYQ_WAITER_NONE) w->role = DELAYQ_WAITER_NONE;
    w->push_us = 0;
    if (refused) DQ_MARK(waiters_refused);
    if (refused) q->subscribed &= (unsigned char)~DQ_CHANNEL_OWN;
}
/*-----------------------------------------------------------------------------
 * MARK: - Connections
 * >>connections   dialing, login, probe, sentinels, redirections, back-off
 *
 * Owns the sockets of a delayq_conn. Only this section connects, writes and
 * reads, except for the TLS handshake. It decides when and where to connect
 * cmd; section Subscriber decides when to open the subscriber, and gets its
 * messages. No function here waits for a socket. Each function does as much as
 * it can, and is called again when the socket is ready (dq_conn_watch) or at
 * its time limit. conn->err contains the cause of a failure.
 *---------------------------------------------------------------------------*/

#define DQ_PROBE_US (10 * DQ_SECOND_US) /* age at which offers repeat a probe */
#define DQ_NEWS_US (10 * DQ_SECOND_US) /* time between equal events in a log */
#define DQ_HOPS 5 /* most redirections per connect; see dq_decide for resends */
#define DQ_READ_SIZE 2048               /* most bytes in one read */
#define DQ_READS (65536 / DQ_READ_SIZE) /* most reads of a socket in a row */
#define DQ_TRACK_LOSSES 4 /* conn->track_losses at which tracking is given up */

typedef enum dq_conn_purpose {
    DQ_CONN_CMD,
    DQ_CONN_SUB,
    DQ_CONN_SENTINEL /* conn->cmd is connected to a sentinel */
} dq_conn_purpose;

/* Parse the owner's URL. Returns NULL, or the fault. The URL of an open handle
 * has no fault. */
static const char *dq_conn_parse_url(const delayq_conn *conn, dq_url *u) {
    const char *url = conn->owner->options.url;
    return dq_url_parse(url ? url : "redis://127.0.0.1:6379", u);
}

/* Set conn->err after a command of the connection itself was refused. */
static delayq_status dq_conn_refused(delayq_conn *conn, const char *what,
                                     const redisReply *r) {
    return dq_err_public(dq_err_reply(conn->err, what, r));
}

/* --- exchanges --- */

static void dq_conn_free_replies(delayq_exchange *x) {
    while (x->got > 0) freeReplyObject(x->replies[--x->got]);
}

static void dq_conn_hang_up(delayq_socket *s) {
    if (s->c) redisFree(s->c);
    s->c = NULL;
    s->ssl = NULL;
    s->state = DELAYQ_SOCKET_CLOSED;
    s->unwritten = s->more = 0;
    s->body_len = 0;
}

/* Write the target of the sockets: "host:port", a path, or the connect hook. */
static void dq_conn_where(const delayq_conn *conn, char text[100]) {
    const delayq_address *a = &conn->at;
    if (conn->owner->options.connect)
        snprintf(text, 100, "the connect hook");
    else if (a->port)
        snprintf(text, 100, "%.80s:%d", a->host, a->port);
    else
        snprintf(text, 100, "%.80s", a->host);
}

/* Report an event to the log, once per connection and at most every 10 s.
 * told_us selects the event: &conn->known_told_us for "connected",
 * &conn->scripts_told_us for "the server does not have the scripts". */
static void dq_conn_tell(delayq_conn *conn, int64_t *told_us) {
    char text[sizeof conn->err], where[100];
    int64_t now;
    if (*told_us > 0 && *told_us >= conn->cmd.begun_us) return;
    now = conn->now_us;
    if (*told_us > 0 && now < *told_us + DQ_NEWS_US) return;
    *told_us = now;
    dq_conn_where(conn, where);
    if (told_us == &conn->known_told_us)
        dq_err_set(text, DELAYQ_OK, "connected to %s after %ld ms%s", where,
                   (long)((conn->known_us - conn->lost_us) / 1000),
                   conn->followed ? ", where the cluster has redirected it"
                                  : "");
    else
        dq_err_set(text, DELAYQ_OK,
                   "the server does not have the scripts, as usual after its "
                   "start");
    dq_err_log(conn->owner, DELAYQ_OK, text);
}

/* Give up tracking until retry_us, since the server does not report pushes, and
 * report `cause` to the log once. */
static void dq_conn_give_up_track(delayq_conn *conn, int64_t retry_us,
                                  const char *cause) {
    const delayq *q = conn->owner;
    char text[sizeof q->err];
    conn->tracking = DELAYQ_TRACK_OFF;
    conn->track_retry_us = retry_us;
    if (conn->unheard_told) return;
    DQ_MARK(pushes_unheard);
    conn->unheard_told = 1;
    dq_err_set(text, DELAYQ_OK,
               "payloads that others push into a queue are found by polling "
               "every %ld%s ms (options.poll_ms), since the server does not "
               "report them: %s",
               q->options.poll_ms > 0 ? (long)q->options.poll_ms : DQ_POLL_MS,
               q->options.poll_ms > 0 ? "" : " to 4,000", cause);
    dq_err_log(q, DELAYQ_OK, text);
}

/* Reset the state that ends with the command socket, such as client tracking. A
 * lane without a request has not caused the loss, so its `losses` become 0. */
static void dq_conn_cmd_lost(delayq_conn *conn) {
    delayq_lane *lane;
    delayq *h;
    if (conn->tracking == DELAYQ_TRACK_ON)
        conn->tracking = DELAYQ_TRACK_ALLOWED;
    if (conn->known) conn->lost_us = conn->now_us;
    for (h = conn->handles; h; h = h->next) {
        h->list_tracked = 0;
        h->waiter.push_us = h->not_before_us = 0;
        for (lane = h->lanes; lane && conn->known; lane = lane->next)
            if (lane->x.state == DELAYQ_EXCHANGE_NONE) lane->losses = 0;
        h->setup.retry_us = 0;
    }
    conn->known = 0;
}

/* Close a socket with the status `why`, whose text is conn->err. The exchanges
 * in flight on the socket end. The server does not run an incomplete command,
 * but may have run the commands before it. */
static void dq_conn_close(delayq_conn *conn, delayq_socket *s,
                          delayq_status why) {
    delayq_exchange *x;
    int64_t now = conn->now_us;
    assert(why < DELAYQ_OK || why >= DQ_NOSCRIPT);
    if (s->first) DQ_MARK(exchanges_lost);
    for (x = s->first; x; x = x->next) {
        dq_conn_free_replies(x);
        x->state = DELAYQ_EXCHANGE_ANSWERED;
        x->blame = x != s->first || why != DELAYQ_ERR_IO || conn->timed_out ? 0
                   : x->next                                                ? 1
                                                                            : 2;
        x->status = why != DELAYQ_ERR_PROTOCOL && (x->written || x->next)
                        ? DELAYQ_ERR_UNKNOWN
                        : why;
    }
    s->first = s->last = NULL;
    dq_conn_free_replies(&s->greeting);
    dq_conn_hang_up(s);
    /* The first attempt is at once. Then the time between the beginnings of two
     * attempts grows. In a second at most three begin, except at next hosts. */
    s->retry_us = now;
    if (s->failures > 0) DQ_MARK(connecting_backs_off);
    if (s->failures > 0)
        s->retry_us =
            s->begun_us + dq_sched_backoff_us(conn->owner, s->failures);
    if (s->closed_us[1] > 0 && s->retry_us < s->closed_us[1] + DQ_ATTEMPTS_US)
        s->retry_us = s->closed_us[1] + DQ_ATTEMPTS_US;
    if (s->retry_us < now) s->retry_us = now;
    s->closed_us[1] = s->closed_us[0];
    s->closed_us[0] = now;
    if (s == &conn->sub) {
        conn->tracking = DELAYQ_TRACK_OFF;
        dq_sched_on_sub_lost(conn);
    } else if (s == &conn->cmd) {
        conn->leaving = DELAYQ_OK;
        conn->failure =
            why == DELAYQ_ERR_PROTOCOL ? DELAYQ_ERR_IO : dq_err_public(why);
        dq_conn_cmd_lost(conn);
    }
}

/* Close a socket that is lost, or whose server refuses to work. If neither this
 * connection nor the one before it has had a useful reply after its login, the
 * next attempt is postponed. */
static void dq_conn_lose(delayq_conn *conn, delayq_socket *s,
                         delayq_status why) {
    if (s->state == DELAYQ_SOCKET_OPEN) s->unproven++;
    if (s->unproven > 1) DQ_MARK(useless_connections);
    if (s->unproven > 1 && s->failures < s->unproven) s->failures = s->unproven;
    dq_conn_close(conn, s, why);
}

#define DQ_BAD_PROTOCOL "the server doesn't speak Redis' protocol: %s"

/* Set conn->err for a hiredis context that has failed. Returns the status. */
static delayq_status dq_conn_fault(delayq_conn *conn, const delayq_socket *s) {
    const redisContext *c = s->c;
    const char *cause = c->errstr[0] ? c->errstr : "the connection is lost";
    char room[DQ_TEXT_SIZE];
    DQ_MARK(socket_fault);
    conn->timed_out = 0;
    if (c->err == REDIS_ERR_IO && errno != 0)
        cause = dq_sys_strerror(errno, room);
    if (c->err == REDIS_ERR_OOM)
        return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
    if (c->err == REDIS_ERR_PROTOCOL)
        return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_PROTOCOL,
                          c->errstr);
    if (!s->first) cause = "the server has closed the connection";
    return dq_err_set(conn->err, DELAYQ_ERR_IO, "%s%s",
                      s->first ? "connection lost: " : "", cause);
}

/* Set conn->err for an open socket whose exchanges have timed out. Returns the
 * status with which the caller closes the socket. */
static delayq_status dq_conn_timeout(delayq_conn *conn,
                                     const delayq_socket *s) {
    int written = s->first && s->first->written;
    if (written) DQ_MARK(no_reply_in_time);
    if (!written) DQ_MARK(not_sent_in_time);
    conn->timed_out = 1;
    return dq_err_set(conn->err, written ? DELAYQ_ERR_IO : DELAYQ_ERR_TIMEOUT,
                      written ? "no reply in time" : "not sent in time");
}

/* Returns 1 if a socket may use TLS, by itself or through a connect hook. */
static int dq_conn_tls(const delayq_conn *conn, const delayq_socket *s) {
    return s->ssl || conn->owner->options.connect;
}

/* Write the output buffer, then a slice of a large payload or of a script,
 * without waiting. After a partial write of the buffer errno is 0. */
static delayq_status dq_conn_write(delayq_conn *conn, delayq_socket *s) {
    delayq_exchange *x;
    size_t slice = DQ_RESP_SLICE;
    int tls = dq_conn_tls(conn, s), done, status;
    errno = 0;
    status = dq_sys_write(s->c, tls, &done);
    if (!done) DQ_MARK(partial_write);
    while (status == REDIS_OK && done && s->body_len > 0 && slice > 0) {
        size_t n = s->body_len < slice ? s->body_len : slice;
        DQ_MARK(payload_slice);
        redisAppendFormattedCommand(s->c, s->body, n);
        s->body += n;
        s->body_len -= n;
        slice -= n;
        conn->traffic += (unsigned)n;
        if (s->body_len == 0 && s->parts && *s->parts) {
            s->body = *s->parts++;
            s->body_len = strlen(s->body);
        }
        if (s->body_len == 0) redisAppendFormattedCommand(s->c, "\r\n", 2);
        status = dq_sys_write(s->c, tls, &done);
    }
    if (done && s->body_len == 0) s->unwritten = 0;
    for (x = s->first; x && (done || errno == 0); x = x->next) {
        if (x->written) continue;
        x->written = !s->unwritten;
        x->sent_us = conn->now_us;
        if (x == s->first) s->active_us = conn->now_us;
    }
    return status == REDIS_OK ? DELAYQ_OK : dq_conn_fault(conn, s);
}

/* Send the commands in the writer as an exchange, or as the rest of the
 * exchange that was submitted last. If the write fails, the next pump reports
 * this, after it has read the input that came before. */
static void dq_conn_submit(delayq_conn *conn, delayq_socket *s,
                           delayq_exchange *x, dq_resp_writer *o) {
    if (x->state != DELAYQ_EXCHANGE_SENT) {
        assert(x->got == 0);
        x->next = NULL;
        x->state = DELAYQ_EXCHANGE_SENT;
        x->status = DELAYQ_OK;
        x->blame = 0;
        x->number = s->number;
        x->wants = 0;
        x->sent_us = conn->now_us = dq_sys_now();
        if (s->first)
            s->last->next = x;
        else
            s->first = x, s->active_us = x->sent_us;
        s->last = x;
    }
    assert(s->last == x && s->c && s->body_len == 0);
    assert(o->commands > 0 && x->wants + o->commands <= 5);
    dq_resp_flush(o);
    x->wants = (unsigned char)(x->wants + o->commands);
    x->written = 0;
    s->unwritten = 1;
    s->body = o->body;
    s->body_len = o->body_len;
    s->parts = o->parts;
    dq_conn_write(conn, s);
}

/* Pass a reply to the first exchange in flight. */
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
        x->read_us = s->active_us;
        if (conn->known && x->read_us - x->sent_us < conn->trip_us)
            conn->trip_us = x->read_us - x->sent_us;
        if (s->first || reader->pos >= reader->len) return DELAYQ_OK;
        DQ_MARK(too_many_replies);
        /* A later request would mistake the rest of the input for its reply. */
        dq_conn_free_replies(x);
        x->status = DELAYQ_ERR_PROTOCOL;
    } else {
        DQ_MARK(unasked_reply);
        freeReplyObject(r);
    }
    return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                      "the server has sent a reply without a command");
}

/* Read the pending input that fits into the buffer, check it, and pass it to
 * hiredis' reader. Returns the number of bytes, 0 if there are none, below 0 if
 * the context has failed. Sets *wrong to the fault in the input, or NULL. */
DQ_APART static int dq_conn_read(delayq_conn *conn, delayq_socket *s,
                                 const char **wrong) {
    char bytes[DQ_READ_SIZE];
    int n;
    errno = 0;
    n = dq_sys_read(s->c, dq_conn_tls(conn, s), bytes, sizeof bytes);
    *wrong = n > 0 ? dq_resp_scan(&s->scan, bytes, (size_t)n) : NULL;
    if (n <= 0 || *wrong) return n;
    redisReaderFeed(s->c->reader, bytes, (size_t)n); /* dq_conn_pump reports
                                                        a failure */
    s->active_us = conn->now_us = dq_sys_now();
    conn->traffic += (unsigned)n;
    return n;
}

/* Write the pending output and read the pending input. Without TLS the input is
 * read even if this write or an earlier one has failed, because the server may
 * have sent the reason why it ends the connection. A reply that no exchange
 * awaits goes to `hear`. If `hear` is NULL, such a reply is a fault. */
static delayq_status dq_conn_pump(delayq_conn *conn, delayq_socket *s,
                                  void (*hear)(delayq_conn *,
                                               const redisReply *)) {
    delayq_status written = s->unwritten ? dq_conn_write(conn, s)
                            : s->c->err  ? dq_conn_fault(conn, s)
                                         : DELAYQ_OK;
    delayq_status status = DELAYQ_OK;
    int reads;
    s->more = 0;
    for (reads = 0; reads < DQ_READS && status == DELAYQ_OK; reads++) {
        const char *wrong;
        void *r = NULL;
        int n = dq_conn_read(conn, s, &wrong);
        if (n < 0) return dq_conn_fault(conn, s);
        if (n == 0) return written;
        if (wrong) DQ_MARK(not_the_protocol);
        if (wrong)
            return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL, DQ_BAD_PROTOCOL,
                              wrong);
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
        if (!s->first && !hear && s->state >= DELAYQ_SOCKET_OPEN) break;
    }
    s->more = reads == DQ_READS;
    return status == DELAYQ_OK ? written : status;
}

/* --- connecting a socket --- */

/* Begin the next step of connecting a socket. Each step has a time limit of its
 * own, since each needs a round trip. */
static void dq_conn_enter(const delayq_conn *conn, delayq_socket *s,
                          delayq_socket_state state) {
    assert(state > s->state);
    s->state = state;
    s->deadline_us = conn->now_us + s->step_us;
}

/* Set conn->err to "can't connect to host:port" with the reason `why`, or with
 * the text of errno if `why` is NULL. */
static delayq_status dq_conn_cant(delayq_conn *conn, delayq_status status,
                                  const char *why) {
    const char *colon = why ? "" : ": ";
    char where[100], room[DQ_TEXT_SIZE];
    DQ_MARK(cannot_connect);
    if (!why) why = dq_sys_strerror(errno, room);
    dq_conn_where(conn, where);
    return dq_err_set(conn->err, status, "can't connect to %s%s%s", where,
                      colon, why);
}

/* Set conn->err for a socket that didn't open in time. `then` ends the text. */
static delayq_status dq_conn_late(delayq_conn *conn, const delayq_socket *s,
                                  const char *then) {
    const char *found = s->state == DELAYQ_SOCKET_RESOLVING
                            ? ": no address was found"
                        : s->state == DELAYQ_SOCKET_TLS ? ": TLS"
                                                        : "";
    char why[80];
    DQ_MARK(connecting_is_late);
    if (s->state >= DELAYQ_SOCKET_GREETING)
        return dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                          "connected, but no reply came in time%s", then);
    snprintf(why, sizeof why, " in time%s%s", found, then);
    return dq_conn_cant(conn, DELAYQ_ERR_TIMEOUT, why);
}

/* Find the address of a host's name. Returns
 *      1   the address was written to `address`
 *      0   the address is not known yet: call again later
 *     -1   the name has no address
 * A handle with an outbox stores the address. It looks the name up again after
 * two failed attempts, or if the server could not do the work (a replica, for
 * example), but at most every 30 s. */
static int dq_conn_resolve(delayq_conn *conn, const delayq_socket *s,
                           const char *host, char address[64]) {
    const delayq_options *o = &conn->owner->options;
    delayq_name *name = NULL;
    int64_t now = conn->now_us;
    unsigned hash = 0, i;
    const char *p;
    int found;
    for (p = host; *p; p++) hash = hash * 31 + (unsigned char)*p;
    for (i = 0; conn->names && i < 3 && (!name || name->hash != hash); i++)
        if (!name || conn->names[i].hash == hash ||
            conn->names[i].found_us < name->found_us)
            name = &conn->names[i];
    if (name && name->hash == hash && name->found_us > 0 &&
        ((s->failures < 2 && !conn->left) ||
         now - name->found_us < 30 * DQ_SECOND_US)) {
        DQ_MARK(name_remembered);
        memcpy(address, name->text, sizeof name->text);
        return 1;
    }
    found = o->resolve ? o->resolve(o->user, host, address, 64)
                       : dq_sys_resolve(host, s->failures, address);
    conn->now_us = dq_sys_now(); /* the look-up may have waited */
    if (found > 0 && name && strlen(address) < sizeof name->text) {
        name->hash = hash;
        name->found_us = now;
        conn->left = 0;
        memcpy(name->text, address, sizeof name->text);
    }
    return found > 0 ? 1 : o->resolve ? found : -1;
}

/* Find the address of conn->at or, for the subscriber, of cmd, and begin to
 * connect to it. If there is a connect hook, call the hook instead. */
static delayq_status dq_conn_begin(delayq_conn *conn, delayq_socket *s) {
    const delayq_options *o = &conn->owner->options;
    const delayq_address *a = &conn->at;
    if (o->connect) {
        int64_t left = (s->deadline_us - conn->now_us + 999) / 1000;
        /* in parentheses, since lwIP has a macro named connect */
        s->c = (o->connect)(o->user, left > 1 ? (int)left : 1);
        conn->now_us = dq_sys_now(); /* the hook may have waited */
        if (!s->c)
            return dq_err_set(conn->err, DELAYQ_ERR_IO,
                              "the connect hook returned NULL");
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
        size_t size = 0;
        int fd;
        if (s == &conn->sub && conn->cmd.c) /* a name's address may change */
            size = dq_sys_peer(dq_sys_fd(conn->cmd.c), &to);
        if (size == 0) size = dq_sys_parse_address(&to, a->host, a->port);
        if (size == 0 && a->port != 0) {
            int found = dq_conn_resolve(conn, s, a->host, address);
            if (found == 0) return DELAYQ_EMPTY;
            if (found > 0) size = dq_sys_parse_address(&to, address, a->port);
        }
        if (size == 0)
            return dq_conn_cant(conn, DELAYQ_ERR_IO,
                                ": the name has no address");
        fd = dq_sys_connect(&to, size);
        if (fd < 0) return dq_conn_cant(conn, DELAYQ_ERR_IO, NULL);
        s->c = redisConnectFd((dq_sys_socket)fd);
        if (!s->c) {
            dq_sys_close(fd);
            return dq_err_set(conn->err, DELAYQ_ERR_MEMORY, "out of memory");
        }
    }
    s->c->flags &= ~REDIS_BLOCK;
    dq_conn_enter(conn, s, DELAYQ_SOCKET_DIALING);
    return DELAYQ_EMPTY;
}

/* The steps of a login, in order. No socket needs all. A login succeeds even if
 * the server refuses HELLO (sent in case a connect hook has chosen RESP3),
 * SETNAME or ID, or if a sentinel without a password refuses AUTH. */
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

/* Send the login, which changes nothing on the server. */
DQ_APART static void dq_conn_greet(delayq_conn *conn, delayq_socket *s) {
    static const size_t counts[] = {2, 2, 3, 2, 3, 2};
    int sentinel = s->purpose == DQ_CONN_SENTINEL, step;
    char needs[DQ_LOGIN_STEPS];
    dq_resp_writer o;
    dq_url u;
    dq_conn_parse_url(conn, &u);
    needs[DQ_LOGIN_AUTH] = (char)u.login;
    needs[DQ_LOGIN_SELECT] = !sentinel && u.db > 0;
    needs[DQ_LOGIN_SENTINEL] = (char)sentinel;
    needs[DQ_LOGIN_HELLO] = conn->owner->options.connect != NULL;
    needs[DQ_LOGIN_SETNAME] = !sentinel && conn->name_losses < 2;
    needs[DQ_LOGIN_ID] =
        s->purpose == DQ_CONN_SUB || !(needs[DQ_LOGIN_SETNAME] || sentinel);
    dq_resp_begin(&o, s->c);
    for (step = 0; step < DQ_LOGIN_STEPS; step++) {
        if (!needs[step]) continue;
        s->login[o.commands] = (unsigned char)step;
        dq_resp_command(&o, counts[step] + (step == DQ_LOGIN_AUTH && u.user[0]),
                        dq_conn_words[step]);
        if (step == DQ_LOGIN_AUTH && u.user[0]) dq_resp_text(&o, u.user);
        if (step == DQ_LOGIN_AUTH) dq_resp_text(&o, u.password);
        if (step == DQ_LOGIN_SENTINEL) dq_resp_text(&o, u.service);
        if (step == DQ_LOGIN_SELECT) dq_resp_int(&o, u.db);
    }
    s->login[o.commands] = DQ_LOGIN_STEPS;
    dq_conn_enter(conn, s, DELAYQ_SOCKET_GREETING);
    dq_conn_submit(conn, s, &s->greeting, &o);
}

/* Read the replies to the login. Returns OK if the socket is open, EMPTY if
 * replies are missing, else the failure. A transient error, such as too many
 * clients, is a failure at any step. A server that refuses a connection may
 * send the reason before it closes the connection. Some proxies close the
 * connection at a command that they don't know. */
static delayq_status dq_conn_read_greeting(delayq_conn *conn,
                                           delayq_socket *s) {
    const delayq_exchange *x = &s->greeting;
    delayq_status status = DELAYQ_OK;
    char said[160];
    redisReply refusal;
    int i, n;
    if (x->state == DELAYQ_EXCHANGE_SENT) status = dq_conn_pump(conn, s, NULL);
    if (status != DELAYQ_OK && status != DELAYQ_ERR_IO) return status;
    if (status == DELAYQ_ERR_IO) {
        if (x->got > 0 && x->replies[x->got - 1]->type == REDIS_REPLY_ERROR)
            return dq_conn_refused(conn, "login", x->replies[x->got - 1]);
        n = dq_sys_receive(dq_sys_fd(s->c), said, sizeof said - 1);
        DQ_MARK(closed_at_login);
        if (s->login[x->got] == DQ_LOGIN_SETNAME && conn->name_losses < 2)
            conn->name_losses++;
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
    if (x->state == DELAYQ_EXCHANGE_SENT) return DELAYQ_EMPTY;
    for (i = 0; i < x->wants; i++) {
        if (x->replies[i]->type != REDIS_REPLY_ERROR) continue;
        if (s->purpose == DQ_CONN_SENTINEL && i + 1 < x->wants &&
            x->replies[i + 1]->type != REDIS_REPLY_ERROR)
            continue; /* only AUTH failed: this Sentinel needs no password */
        if (s->login[i] <= DQ_LOGIN_SELECT ||
            dq_err_lookup(x->replies[i]->str)->status == DELAYQ_ERR_AGAIN)
            return dq_conn_refused(conn, "login", x->replies[i]);
    }
    dq_conn_enter(conn, s, DELAYQ_SOCKET_OPEN);
    return DELAYQ_OK;
}

/* Continue to connect a socket. Returns OK if the socket is open, EMPTY if it
 * needs more time, else a failure, on which the caller closes the socket. */
static delayq_status dq_conn_advance(delayq_conn *conn, delayq_socket *s) {
    delayq_status status = DELAYQ_EMPTY;
    if (s->state == DELAYQ_SOCKET_RESOLVING) status = dq_conn_begin(conn, s);
    if (s->state == DELAYQ_SOCKET_DIALING) {
        int done = dq_sys_is_connected(dq_sys_fd(s->c));
        if (done < 0) {
            status = dq_conn_cant(conn, DELAYQ_ERR_IO, NULL);
        } else if (done > 0) {
            int tls = dq_conn_wants_tls(conn);
            s->dial_us = conn->now_us - s->begun_us;
            if (s->step_us < 2 * s->dial_us) s->step_us = 2 * s->dial_us;
            if (tls) status = dq_tls_begin(conn, s, conn->at.host);
            if (status == DELAYQ_OK) dq_conn_enter(conn, s, DELAYQ_SOCKET_TLS);
            if (!tls) dq_conn_greet(conn, s);
        }
    }
    if (s->state == DELAYQ_SOCKET_TLS) {
        status = dq_tls_step(conn, s, conn->at.host);
        if (status == DELAYQ_OK) dq_conn_greet(conn, s);
    }
    if (s->state == DELAYQ_SOCKET_GREETING)
        status = dq_conn_read_greeting(conn, s);
    if (status != DELAYQ_EMPTY || conn->now_us < s->deadline_us) return status;
    if (s->timeouts < 4) s->timeouts++;
    return dq_conn_late(conn, s, "");
}

/* Begin to connect a closed socket to one of `hosts` hosts. The time limit of
 * each step is connect_timeout_ms divided by `hosts`. It is doubled after two
 * attempts that have timed out, and quadrupled after four, since the network
 * may be slow. The limit is at least two round trips of the last connection
 * and, after the first step, at least twice the time of that step. */
static delayq_status dq_conn_dial(delayq_conn *conn, delayq_socket *s,
                                  dq_conn_purpose purpose, unsigned hosts) {
    int64_t now = conn->now_us;
    int64_t least_us = 2 * conn->trip_us; /* of the last connection */
    int64_t step_us = conn->owner->options.connect_timeout_ms * 1000LL / hosts;
    assert(!s->c && !s->first);
    if (s->timeouts >= 2) DQ_MARK(more_time_to_connect);
    step_us *= s->timeouts < 2 ? 1 : s->timeouts < 4 ? 2 : 4;
    s->step_us = step_us > least_us ? step_us : least_us;
    s->number++;
    s->purpose = (unsigned char)purpose;
    s->state = DELAYQ_SOCKET_RESOLVING;
    s->begun_us = now;
    s->deadline_us = now + s->step_us;
    s->greeting.state = DELAYQ_EXCHANGE_NONE;
    memset(&s->scan, 0, sizeof s->scan);
    return dq_conn_advance(conn, s);
}

/* Returns how long, in us, a program that polls delayq_fds may sleep.
 * delayq_fds returns sockets for reading only. So if a socket waits until it is
 * writable, the program may sleep for a quarter of the time that the socket has
 * waited so far, but at least for 10 ms. */
static int64_t dq_conn_nap_us(const delayq_conn *conn, int64_t now) {
    int64_t nap = DQ_NEVER, us;
    int i;
    for (i = 0; i < 2; i++) {
        const delayq_socket *s = i ? &conn->sub : &conn->cmd;
        if (s->state != DELAYQ_SOCKET_DIALING && !s->unwritten) continue;
        us = (now - (s->unwritten ? s->active_us : s->begun_us)) / 4;
        if (us < nap) nap = us;
    }
    return nap < 10000 ? 10000 : nap;
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

/* Record that the server's clock showed `us` between sent_us and read_us. Keep
 * the former reading instead if it agrees with the new one and is more exact,
 * that is, if its round trip plus twice the drift since then is shorter. */
static void dq_conn_set_clock(delayq_conn *conn, int64_t us, int64_t sent_us,
                              int64_t read_us) {
    int64_t drift = dq_sched_drift_us(conn, read_us);
    int64_t low = conn->clock_offset_us - drift;
    int64_t high = conn->clock_offset_us + conn->clock_error_us + drift;
    int64_t trip = read_us - sent_us;
    int agrees = us - read_us <= high && us - sent_us >= low;
    if (!conn->known) /* the program may have read the reply late */
        conn->trip_us = trip < conn->cmd.step_us ? trip : conn->cmd.step_us;
    if (conn->clock_number > 0 && agrees && trip > high - low) return;
    conn->clock_offset_us = us - read_us;
    conn->clock_error_us = trip;
    conn->clock_read_us = read_us;
}

/* Read the address in "MOVED slot host:port" into conn->at. If the host is
 * missing, it is that of the node that has replied. */
static delayq_status dq_conn_parse_redirect(delayq_conn *conn,
                                            const char *text) {
    const char *p = strrchr(text, ' '), *colon = strrchr(text, ':');
    size_t len = p && colon > p ? (size_t)(colon - p - 1) : 0;
    int port = colon ? dq_num_small(colon + 1, strlen(colon + 1), 65535) : -1;
    delayq_address *to = &conn->at;
    if (conn->owner->options.connect)
        return dq_err_set(conn->err, DELAYQ_ERR_REDIS,
                          "the connect hook leads to another node of the "
                          "cluster than the queue's: %.60s",
                          text);
    if (port < 1 || len >= sizeof to->host)
        return dq_err_set(conn->err, DELAYQ_ERR_REDIS, "the server says: %.60s",
                          text);
    DQ_MARK(redirected);
    if (len > 0 && p[1] != '?') {
        memcpy(to->host, p + 1, len);
        to->host[len] = '\0';
    }
    to->port = port;
    return (delayq_status)dq_err_lookup(text)->status;
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
    DQ_MARK(sentinel_names_master);
    memcpy(a->host, host->str, host->len + 1);
    a->port = dq_num_small(port->str, port->len, 65535);
    if (a->port >= 1) return DELAYQ_OK;
    return dq_err_set(conn->err, DELAYQ_ERR_PROTOCOL,
                      "sentinel: the reply has no port");
}

/* Set conn->at to the target of the next attempt: the next host of the URL,
 * which may be a sentinel. After a redirection conn->at already has the target.
 * Returns the number of hosts in the URL. */
DQ_APART static unsigned dq_conn_choose(delayq_conn *conn,
                                        dq_conn_purpose *purpose) {
    dq_url u;
    dq_conn_parse_url(conn, &u);
    *purpose = DQ_CONN_CMD;
    conn->followed = 0;
    if (conn->hosts_left == 0) conn->hosts_left = u.count + conn->redirected;
    if (conn->redirected) {
        conn->redirected = 0;
        conn->followed = 1;
    } else if (!conn->owner->options.connect) {
        dq_url_host(&u, conn->host, &conn->at);
        if (u.sentinel) *purpose = DQ_CONN_SENTINEL;
    }
    return u.count;
}

/* Close cmd after a failed attempt to connect. Returns 1 if the next attempt
 * may begin at once, 0 if no host is left, or another one would not help. */
static int dq_conn_attempt_failed(delayq_conn *conn, delayq_status why) {
    delayq_socket *s = &conn->cmd;
    int64_t begun_us = s->begun_us;
    int more;
    assert(why < DELAYQ_OK || why == DQ_MOVED);
    if (why == DQ_MOVED && ++conn->hops > DQ_HOPS)
        why = dq_err_set(conn->err, DELAYQ_ERR_AGAIN,
                         "the cluster's nodes redirect to each other");
    conn->redirected = why == DQ_MOVED;
    more = why == DQ_MOVED;
    if (!more) {
        conn->host++;
        conn->hosts_left -= conn->hosts_left > 0;
        more = conn->hosts_left > 0 && why != DELAYQ_ERR_ARG &&
               why != DELAYQ_ERR_AUTH && why != DELAYQ_ERR_MEMORY;
    }
    if (!more) {
        DQ_MARK(all_hosts_failed);
        s->failures++;
        conn->hosts_left = conn->hops = 0;
    }
    if (more) DQ_MARK(next_host_at_once);
    dq_conn_close(conn, s, why);
    if (more) s->retry_us = begun_us;
    return more;
}

/* Pump cmd, which is open. Returns OK, or EMPTY if cmd had to be closed. Then
 * the lanes must decide about lost requests before cmd is connected again. */
static delayq_status dq_conn_pump_open(delayq_conn *conn) {
    delayq_socket *s = &conn->cmd;
    delayq_status status = dq_conn_pump(conn, s, NULL);
    if (status == DELAYQ_OK && s->first &&
        conn->now_us >= dq_sched_socket(conn, s))
        status = dq_conn_timeout(conn, s);
    if (status == DELAYQ_OK && !s->first) status = conn->leaving;
    if (status == DELAYQ_OK) return status;
    dq_conn_lose(conn, s, status);
    return DELAYQ_EMPTY;
}

/* Returns 1 if the subscriber is connected to the server of cmd. */
DQ_APART static int dq_conn_sub_is_beside(const delayq_conn *conn) {
    dq_sys_address cmd, sub; /* both are 0 for a unix socket */
    dq_sys_peer(dq_sys_fd(conn->cmd.c), &cmd);
    dq_sys_peer(dq_sys_fd(conn->sub.c), &sub);
    return memcmp(&cmd, &sub, sizeof cmd) == 0;
}

/* Continue to connect the command socket, without waiting. Returns
 *     OK      it is open
 *     EMPTY   it is being connected, or was closed just now
 *     else    the status of conn->err; the next attempt is at cmd.retry_us */
static delayq_status dq_conn_step(delayq_conn *conn) {
    delayq_socket *s = &conn->cmd;
    delayq_status status = DELAYQ_OK;
    dq_conn_purpose purpose;
    unsigned hosts;
    if (s->state >= DELAYQ_SOCKET_OPEN) return dq_conn_pump_open(conn);
    for (;;) {
        if (s->state != DELAYQ_SOCKET_CLOSED) {
            status = dq_conn_advance(conn, s);
        } else {
            if (conn->now_us < s->retry_us) return conn->failure;
            hosts = dq_conn_choose(conn, &purpose);
            status = dq_conn_dial(conn, s, purpose, hosts);
        }
        if (status == DELAYQ_OK && s->purpose == DQ_CONN_SENTINEL) {
            status = dq_conn_read_sentinel(conn);
            if (status == DELAYQ_OK) {
                dq_conn_free_replies(&s->greeting);
                dq_conn_hang_up(s);
                status = dq_conn_dial(conn, s, DQ_CONN_CMD, 1);
            }
        }
        if (status == DELAYQ_EMPTY) return status;
        if (status == DELAYQ_OK) break;
        if (!dq_conn_attempt_failed(conn, status)) return status;
    }
    dq_conn_free_replies(&s->greeting);
    if (conn->sub.c && !conn->owner->options.connect &&
        !dq_conn_sub_is_beside(conn))
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
    return DELAYQ_OK;
}
/*-----------------------------------------------------------------------------
 * MARK: - Ops
 * >>ops   the operations (ops) of API calls; an outbox's rings
 *
 * Owns the memory of options.outbox, and the cursor, which walks through the
 * ops of a lane in a ring or in an array of the caller.
 *
 * An outbox has two rings, each first in, first out. An op stays in its ring
 * until the server has confirmed it, or until the op is dropped. One ring has
 * offers, cancels of keys, and cancels and reschedules of this handle's own
 * offers. The other has all other ops, such as acks. So a server whose memory
 * is full, and which refuses offers, still gets the acks that free memory.
 *
 * Each op has a number in its ring. The scripts of offers and of cancels of
 * keys store the highest number for a day in a key of this handle, skip the ops
 * whose number is not higher, and report the skipped ops. So a resend within a
 * day stores nothing twice, even if the item has been delivered meanwhile.
 *---------------------------------------------------------------------------*/

/* The properties of a verb. */
enum {
    DQ_IDEMPOTENT = 1, /* two runs of the script have the effect of one */
    DQ_READ_ONLY = 2,  /* the script changes nothing */
    DQ_OFFERS = 4,     /* the request contains offers */
    DQ_TAKES = 8,      /* the script hands out elements */
    DQ_RETIMES = 16,   /* the op gives an item a new due time */
    DQ_RENAMES = 32,   /* the call returns the item's new ticket */
    DQ_OF_OFFERS = 64, /* this handle may have offered the op's item */
    DQ_UNCOUNTED = 128, /* the op is the library's own, not that of a call */
    DQ_RAW = 256 /* The writer writes whole commands. The reader returns the
                    status of all replies in lane->x; there are none if the
                    socket was lost. */
};

/* A verb is a kind of op, for example an ack. It is a constant to which the ops
 * point. A program links only the scripts of the verbs that it uses. */
typedef struct dq_verb {
    char name[13]; /* the name in error texts; an array, as in dq_script */
    char word[11]; /* its name in an argument of its script, or "" */
    const dq_script *script;
    dq_resp_args *writer; /* NULL: the request only loads the script */
    /* Reads the reply to a request and, if the script can send such a reply,
     * settles the request's ops. NULL: the caller reads the reply. */
    delayq_status (*reader)(delayq *q, delayq_lane *lane);
    size_t most;        /* the most ops in one request; see DQ_MOST_ARGS */
    size_t counter;     /* offset in delayq_counts of its counter; 0: none */
    int flags;          /* DQ_IDEMPOTENT and so on */
    unsigned char key;  /* DQ_KEY_...: the second key of a request; ops whose
                           second keys differ share no request */
    unsigned char code; /* permanent code in kept entries; 0: never kept */
    /* The verb of a request that mixes this op with offers, or NULL. */
    const struct dq_verb *mixed;
    /* Called for a failed request. Returns 1 if it was refused and now has
     * another form, else 0. NULL: there is one form only. */
    int (*reform)(delayq *q, delayq_lane *lane);
    /* Called after the lane's only op has failed with lane->status; or NULL. */
    void (*fail)(delayq *q, delayq_lane *lane);
} dq_verb;

/* Define dq_verb_ID with the script dq_script_SCRIPT and the other fields. */
#define DQ_VERB(id, name, word, script, ...)                              \
    static const dq_verb dq_verb_##id = {name, word, &dq_script_##script, \
                                         __VA_ARGS__}

enum { DQ_KEY_NONE, DQ_KEY_DEAD, DQ_KEY_MIRROR };

#define DQ_CODES 11 /* the highest code of a verb */

typedef struct dq_op {
    /* A kept entry's CRC covers the fields before `id` and, if id_settled is
     * not 0, also `id`. */
    uint32_t len; /* the number of bytes in `data` */
    uint16_t key_len;
    unsigned char code; /* the code of the verb */
    unsigned char replace;
    int64_t key_ttl_ms;
    int64_t delay_ms;         /* counts from begun_us */
    int64_t due_ms;           /* > 0: an absolute time instead of delay_ms */
    unsigned char life[3];    /* handle_id[5..7] of the handle that accepted the
                                 op. These bytes identify a life: see >>keep */
    unsigned char id_settled; /* 1: the call has fixed `id`; 2: also due_ms,
                                 which was computed from delay_ms */
    unsigned char id[16];
    /* An open of a kept image sets all fields below again. */
    unsigned char has_id;
    unsigned char stands; /* 1: a resume has fixed planned_ms for good */
    unsigned char resend; /* 1: this message may have been stored before */
    const dq_verb *verb;
    const char *data;   /* the payload of an offer, or the text of a ticket and
                           a NUL; a bury adds `why` and a NUL */
    const char *key;    /* the key of an offer or cancel_key, or NULL */
    int64_t begun_us;   /* the local time of the call */
    int64_t planned_ms; /* > 0: the due time, set when an outbox dates an offer,
                           or when another op's first request is planned */
} dq_op;

/* The arguments of the verb of a bare lane. */
typedef struct dq_query {
    size_t max;           /* the most items or letters; the length of `times` */
    int64_t from;         /* the index of the first dead letter */
    const char *ticket;   /* a peek continues after this ticket; or NULL */
    const int64_t *times; /* the due times given to delayq_count_due */
} dq_query;

/* An op in a ring, followed by its key with a NUL, and by its data; aligned to
 * 8 bytes. If the end of the memory is unused and has room for an entry, an
 * entry without a verb marks it. */
typedef struct dq_entry {
    uint32_t crc;  /* in a kept ring, the CRC of the previous entry continued
                      over this entry */
    uint32_t size; /* the bytes of the entry, with key and data */
    uint64_t number; /* the op's number in its ring */
    dq_op op;
} dq_entry;

/* A place in a ring, and the number of bytes from this place to the head. */
typedef struct dq_place {
    size_t at, bytes;
} dq_place;

/* Invariants: used <= size; head and tail are offsets of entries; all offers up
 * to the number `dated` have a due time and an id. */
typedef struct dq_ring {
    delayq_lane lane;
    unsigned char *data;
    size_t size, head, tail, used; /* bytes */
    /* The bytes from freed[0] to the head can't be used again yet. In a kept
     * ring, freed[2] is the head in the newer mark, and freed[1] the head in
     * the older one. With outbox_sync, freed[0] is the freed[1] of the last
     * sync; otherwise it equals freed[1]. */
    dq_place freed[3];
    delayq_keep keep;              /* options.outbox_keep, or NULL */
    uint32_t last_crc, popped_crc; /* the CRC of the last entry, and that of the
                                      last settled entry */
    uint64_t resumed;      /* number of the last op accepted before the open */
    uint64_t synced;       /* ops up to this number may be sent */
    uint64_t told;         /* the number of ops reported to options.settled */
    uint64_t dated;        /* offers up to this number have a due time */
    unsigned dated_on;     /* conn->clock_number when offers were last dated */
    size_t date_at;        /* position of the next op without a due time */
    int64_t call_us;       /* server time at the last dated offer's call */
    int64_t call_error_us; /* the possible error of call_us */
    char why[256];         /* the error text of lane.status */
} dq_ring;

typedef struct dq_outbox {
    dq_ring offers, changes;
    uint64_t gone, duplicate, dropped, told_dropped;
    delayq_status drop; /* the status of the last dropped op */
    uint64_t own_accepted, own_settled; /* DQ_UNCOUNTED ops in `changes` */
    delayq_name names[3];
} dq_outbox;

/* Set handle_id, which identifies this handle in Redis, to random bytes.
 * Returns 0, and keeps the former handle_id, if there are no random bytes. */
static int dq_handle_identify(delayq *q) {
    unsigned char bytes[sizeof q->handle_id];
    if (!dq_sys_random(bytes, sizeof bytes)) return 0;
    memcpy(q->handle_id, bytes, sizeof bytes);
    q->id[0] = ':';
    dq_num_hex(q->id + 1, bytes, sizeof bytes);
    return 1;
}

/* Returns the latest time, in ms, that the server's clock can show when
 * delay_ms have passed since the local time local_us. */
static int64_t dq_due_after(const delayq *q, int64_t local_us,
                            int64_t delay_ms) {
    return (dq_sched_server_us(q->conn, local_us) + 999) / 1000 + delay_ms;
}

/* --- the ring --- */

static dq_entry *dq_ring_at(const dq_ring *ring, size_t at) {
    return (dq_entry *)(void *)(ring->data + at);
}

/* Returns the entry at `at`, or the first one if the memory is unused there. */
static dq_entry *dq_ring_entry(const dq_ring *ring, size_t at) {
    size_t end = ring->size - at;
    assert(at <= ring->size);
    if (end < sizeof(dq_entry) || !dq_ring_at(ring, at)->op.verb) at = 0;
    return dq_ring_at(ring, at);
}

/* Returns the place after an entry. */
static size_t dq_ring_behind(const dq_ring *ring, const dq_entry *e) {
    return (size_t)((const unsigned char *)e - ring->data) + e->size;
}

#ifndef DQ_KEEP_COPY
#define DQ_KEEP_COPY memcpy /* copies the bytes that the next open reads */
#endif

/* Returns the size of an op's entry, in bytes. */
static size_t dq_ring_entry_size(const dq_op *op) {
    size_t key = op->key_len > 0 ? op->key_len + (size_t)1 : 0;
    return (sizeof(dq_entry) + key + op->len + 7) & ~(size_t)7;
}

/* Copy an op into the ring. Returns the copy, or NULL if there is no room. */
static dq_op *dq_ring_add(dq_ring *ring, const dq_op *op) {
    size_t key = op->key_len > 0 ? op->key_len + (size_t)1 : 0, end;
    size_t size = dq_ring_entry_size(op), base = ring->freed[0].at;
    size_t held = ring->used + ring->freed[0].bytes;
    char *to;
    dq_entry *e, made;
    if (held == 0) base = ring->head = ring->tail = ring->date_at = 0;
    if (held + size > ring->size) return NULL;
    end = ring->size - ring->tail;
    if (ring->tail >= base && size > end) {
        if (size > base) return NULL;
        if (end >= sizeof(dq_entry))
            dq_ring_at(ring, ring->tail)->op.verb = NULL;
        DQ_MARK(ring_wraps);
        ring->used += end;
        ring->tail = 0;
    } else if (ring->tail < base && size > base - ring->tail) {
        return NULL;
    }
    e = dq_ring_at(ring, ring->tail);
    to = (char *)(e + 1);
    made.crc = 0;
    made.size = (uint32_t)size;
    made.number = ring->lane.accepted + 1;
    made.op = *op;
    made.op.code = op->verb->code;
    made.op.data = to + key;
    if (key > 0) made.op.key = to;
    DQ_KEEP_COPY(e, &made, sizeof made);
    if (key > 0) DQ_KEEP_COPY(to, op->key, key);
    if (op->len > 0) DQ_KEEP_COPY(to + key, op->data, op->len);
    if (ring->keep) ring->keep->seal(ring, e);
    if (held == 0) memset(ring->freed, 0, sizeof ring->freed);
    ring->tail += size;
    ring->used += size;
    ring->lane.accepted++;
    assert(ring->used <= ring->size && ring->tail <= ring->size);
    return &e->op;
}

/* Remove the first entry. */
static void dq_ring_pop(dq_ring *ring) {
    dq_entry *e = dq_ring_entry(ring, ring->head);
    size_t at = (size_t)((unsigned char *)e - ring->data), before = ring->used;
    int i;
    assert(e->op.verb && e->size <= ring->used);
    assert(ring->lane.settled < ring->lane.accepted);
    if (at < ring->head) ring->used -= ring->size - ring->head;
    ring->used -= e->size;
    ring->head = at + e->size;
    ring->popped_crc = e->crc;
    ring->lane.settled++;
    for (i = 0; ring->keep && i < 3; i++)
        ring->freed[i].bytes += before - ring->used;
    if (!ring->keep) ring->freed[0].at = ring->head;
}

/* Give an offer an id and a due time. Its delay counts from the estimated
 * server time of the call. In one ring the estimates never decrease, unless a
 * clock was set or the server has changed. Nor does the due time of an offer
 * that is dated again, since offers before it may be stored with theirs. */
static void dq_ring_date(delayq *q, dq_ring *ring, dq_op *op) {
    int64_t us = dq_sched_server_us(q->conn, op->begun_us);
    int64_t least = ring->call_us, error = q->conn->clock_error_us, former;
    if (op->has_id && op->due_ms == 0) {
        DQ_MARK(offer_dated_again);
        former = (op->planned_ms - op->delay_ms) * 1000;
        if (former > least) least = former;
    }
    if (!op->has_id) dq_elem_next_id(q, op->id);
    op->has_id = 1;
    if (op->stands) return;
    if (op->id_settled > 1) { /* the call used an older clock reading */
        int64_t ahead = (op->due_ms - op->delay_ms) * 1000 - us;
        if (ahead > error &&
            ahead < 4000LL * q->conn->owner->options.io_timeout_ms)
            error = ahead;
        if (ahead > 0 && ahead <= error) us += ahead;
    }
    if (us < least && us > least - DQ_SECOND_US - ring->call_error_us)
        us = least;
    else
        ring->call_error_us = error;
    ring->call_us = us;
    op->planned_ms =
        op->due_ms > 0 ? op->due_ms : (us + 999) / 1000 + op->delay_ms;
    if (op->planned_ms > DQ_MAX_DUE) /* the call could not check this */
        op->planned_ms = DQ_MAX_DUE;
}

/* Among the next 2,000 ops, set the due time of each offer that has none, or
 * one from an earlier connection. Returns how many ops may be sent. */
static uint64_t dq_ring_date_all(delayq *q, dq_ring *ring) {
    delayq_lane *lane = &ring->lane;
    int left = 2000;
    if (ring->dated_on != q->conn->clock_number ||
        ring->dated < lane->settled) {
        ring->dated_on = q->conn->clock_number;
        if (ring->dated > lane->settled) { /* call_us is by another clock */
            DQ_MARK(dated_by_another_clock);
            ring->call_us = 0;
        }
        ring->dated = lane->settled;
        ring->date_at = ring->head;
    }
    while (ring->dated < lane->accepted && left-- > 0) {
        dq_entry *e = dq_ring_entry(ring, ring->date_at);
        if (e->op.verb->flags & DQ_OFFERS) dq_ring_date(q, ring, &e->op);
        ring->dated++;
        ring->date_at = dq_ring_behind(ring, e);
    }
    return (ring->dated < ring->synced ? ring->dated : ring->synced) -
           lane->settled;
}

/* Replace handle_id, since another handle uses it, as on a cloned machine. Give
 * new ids to all offers, except those whose id is stored in a kept ring. */
static void dq_ring_meet_twin(delayq *q, dq_ring *ring) {
    size_t at = ring->head;
    uint64_t i;
    DQ_MARK(twin_met);
    for (i = ring->lane.settled; i < ring->lane.accepted; i++) {
        dq_entry *e = dq_ring_entry(ring, at);
        e->op.has_id = ring->keep && e->op.id_settled > 0;
        at = dq_ring_behind(ring, e);
    }
    ring->dated_on = 0;
    dq_handle_identify(q);
    if (q->conn->sub.c) dq_conn_close(q->conn, &q->conn->sub, DELAYQ_ERR_IO);
    ring->lane.unsure = ring->lane.was_unsure = 0;
    if (ring->keep) ring->keep->mark(q);
}

/* --- the ops of a lane --- */

/* A walk through the unsettled ops of a lane. */
typedef struct dq_cursor {
    const delayq_lane *lane;
    size_t end;    /* the walk ends before the op with this number */
    size_t number; /* the number of the current op, from 0 */
    size_t i;      /* the index of the current op in the caller's array */
    dq_entry *entry;
    dq_op *op;      /* the current op; NULL before the first, after the last */
    delayq_message *message; /* the caller's message for this op, or NULL */
    int64_t due_ms; /* the due time of the op; 0: it has only a delay */
    dq_op made;     /* the current op, made from an element of an array */
} dq_cursor;

/* Begin a walk that ends before op number `end`, or after the last op. */
static void dq_cursor_begin(dq_cursor *c, const delayq_lane *lane, size_t end) {
    c->lane = lane;
    c->end = end;
    c->op = NULL;
    c->message = NULL;
}

/* Returns the earliest time, in ms, that the server's clock can show now. */
static int64_t dq_due_least(const delayq_conn *conn) {
    int64_t now = conn->now_us;
    return (now + conn->clock_offset_us - dq_sched_drift_us(conn, now)) / 1000;
}

/* Give a message an id, and note the earliest time at which it may be due. */
static void dq_message_date(delayq *q, delayq_message *m) {
    int64_t now = q->conn->now_us;
    m->first_due_ms = dq_due_least(q->conn) + m->delay_ms;
    m->first_due_us = now + m->delay_ms * 1000;
    if (m->due_ms > 0) {
        m->first_due_ms = m->due_ms;
        m->first_due_us = m->due_ms * 1000 - dq_sched_ahead_us(q->conn);
    }
    m->ticket.text[0] = '\0';
    dq_elem_next_id(q, m->id);
}

/* Returns the first index >= i of the caller's array whose message is an op,
 * that is, was not refused with DELAYQ_ERR_ARG. */
static uint64_t dq_lane_op_at(const delayq_lane *lane, uint64_t i) {
    while (lane->messages && i < lane->accepted &&
           lane->messages[i].status == DELAYQ_ERR_ARG)
        i++;
    return i;
}

/* Move to the next or first op. Returns the op, or NULL after the last one. */
static dq_op *dq_cursor_next(dq_cursor *c) {
    const delayq_lane *lane = c->lane;
    int first = !c->op;
    dq_op *op;
    c->number = first ? lane->from : c->number + 1;
    c->op = NULL;
    if (c->number >= c->end) return NULL;
    if (lane->ring) {
        if (c->number >= lane->accepted - lane->settled) return NULL;
        c->entry = dq_ring_entry(lane->ring,
                                 !first ? dq_ring_behind(lane->ring, c->entry)
                                 : lane->from > 0 ? lane->from_at
                                                  : lane->ring->head);
        c->op = op = &c->entry->op;
        c->due_ms = op->verb->flags & DQ_OFFERS ? op->planned_ms : op->due_ms;
        return op;
    }
    c->i = (size_t)dq_lane_op_at(lane, first ? lane->settled : c->i + 1);
    if (c->i >= lane->accepted) return NULL;
    c->op = op = lane->ops ? lane->ops + c->i : &c->made;
    if (!lane->ops) {
        memset(op, 0, sizeof *op);
        op->verb = lane->array_verb;
    }
    if (lane->messages) {
        const delayq_message *m = c->message = &lane->messages[c->i];
        op->resend = c->number < lane->unsure ||
                     (m->status == DELAYQ_ERR_UNKNOWN && m->first_due_ms > 0);
        if (m->key) op->verb = lane->keyed_verb;
        op->data = (const char *)m->data;
        op->len = (uint32_t)m->len;
        op->key = m->key;
        op->key_len = (uint16_t)(m->key ? strlen(m->key) : 0);
        op->key_ttl_ms = m->key_ttl_ms;
        op->replace = m->replace != 0;
        op->begun_us = lane->begun_us;
        op->delay_ms = m->delay_ms;
        op->due_ms = m->due_ms;
        memcpy(op->id, m->id, sizeof op->id);
    }
    if (lane->items) op->data = lane->items[c->i].ticket.text;
    if (lane->items) op->len = (uint32_t)strlen(op->data) + 1;
    c->due_ms = op->due_ms;
    return op;
}

/* Let new cursors begin at op number `from` of a ring's request. `from` is 0,
 * or at least lane->from. */
static void dq_lane_seek(delayq_lane *lane, size_t from) {
    dq_cursor c;
    dq_cursor_begin(&c, lane, from + 1);
    while (from > 0 && dq_cursor_next(&c) && c.number < from) continue;
    if (from > 0)
        lane->from_at = (size_t)((unsigned char *)c.entry - lane->ring->data);
    lane->from = from;
}

/* Returns the number, in its ring, of the op at which new cursors begin. */
static int64_t dq_lane_number(const delayq_lane *lane) {
    return (int64_t)(lane->settled + lane->from + 1);
}
/*-----------------------------------------------------------------------------
 * MARK: - Lanes
 * >>lanes   ops in order, with one request in flight; the retry policy
 *
 * Owns the path of an op from its lane to its status. The path has four phases:
 * plan (choose neighbouring ops that can share a request), write, read, settle.
 * dq_lane_step moves a lane through them. Only dq_blocked, with the help of
 * dq_blocked_request, says why a lane waits. Only dq_decide decides whether a
 * request is sent again, but new ops repeat probes. dq_op_settle counts the ops
 * that were done, except an ack that a take has sent. No function here waits.
 *
 * A handle has a setup lane (for the probe of its queue, and for tracking), a
 * fetch lane (for a take or transfer), a lane for each ring of its outbox and,
 * during a call, the lane of this call, which is on the stack.
 *---------------------------------------------------------------------------*/

/* How the requests of a lane are planned, and how a failure is handled. */
typedef struct dq_policy {
    size_t bytes;    /* the most bytes of a request, unless one op has more */
    unsigned losses; /* 0: ops fail with their request, after one resend if
                        that is harmless. > 0: a failed op stays in its ring.
                        It is dropped after this many logged-in connections
                        were lost in a row while it was sent alone. */
    int background;  /* 1: with an outbox, the lane yields to other lanes, and
                        its failures go to the log */
} dq_policy;

#define DQ_RING_LIMIT 1000 /* the most ops in a request */
static const dq_policy dq_policy_call = {256 * 1024, 0, 0};
static const dq_policy dq_policy_fetch = {0, 0, 1};
static const dq_policy dq_policy_ring = {65536, 8, 1}; /* fits socket buffers */

/* Begin a lane with `count` ops. */
static void dq_lane_begin(const delayq *q, delayq_lane *lane,
                          const dq_policy *policy, const dq_verb *verb,
                          size_t count) {
    memset(lane, 0, sizeof *lane);
    lane->policy = policy;
    lane->array_verb = lane->verb = verb;
    lane->accepted = count;
    lane->limit = DQ_RING_LIMIT;
    lane->begun_us = q->conn->now_us;
}

/* Returns 1 if there is no connection because an attempt has failed, and this
 * failure is in q's log already. Otherwise the caller reports it. */
static int dq_lane_has_told(delayq *q) {
    const delayq_socket *s = &q->conn->cmd;
    unsigned told = q->told;
    if (s->state != DELAYQ_SOCKET_CLOSED) return 0;
    q->told = s->number;
    return told == s->number;
}

/* Report a failure to the log if the handle has an outbox. */
static void dq_lane_note(delayq *q, delayq_status status, const char *text) {
    if (q->outbox && !dq_lane_has_told(q)) dq_err_log_again(q, status, text);
}

/* --- what a lane waits for --- */

/* Returns the time until which a ring's lane or the fetch lane has to yield:
 *     0          it need not yield
 *     DQ_NEVER   it yields until acks are sent, or until a reply has come
 *
 * The fetch yields to unsent acks, because it would get an item again if the
 * item's lease ended before the ack was sent. The lanes of rings and fetches
 * yield to a suspect, a lane whose request may have caused the loss of sockets,
 * so that this request is sent alone. Otherwise the fetches of handles with an
 * outbox could keep the socket busy for ever, and the cause would stay unknown.
 * If the suspect's handle is not used, or its request is refused, the others
 * yield for a second at most. */
static int64_t dq_lane_yield_us(const delayq *q, const delayq_lane *lane) {
    const delayq_lane *s;
    const delayq *h;
    int64_t now;
    if (!q->outbox) return 0;
    now = q->conn->now_us;
    s = &q->outbox->changes.lane;
    if (lane == &q->fetch.lane && now >= s->retry_us &&
        s->settled + s->n < s->accepted)
        return DQ_NEVER;
    for (h = q->conn->handles; h; h = h->next)
        for (s = h->lanes; s; s = s->next) {
            int sent = s->x.state == DELAYQ_EXCHANGE_SENT;
            if (s->suspect_us == 0 ||
                (!sent && (s->settled == s->accepted || now < s->retry_us ||
                           now >= s->suspect_us)))
                continue;
            if (s == lane && !q->conn->cmd.first) return 0;
            return sent ? DQ_NEVER : s->suspect_us;
        }
    return 0;
}

/* The reason why a lane, or a request without a lane, has to wait. */
typedef enum dq_block {
    DQ_BLOCK_NONE,    /* it need not wait */
    DQ_BLOCK_PROGRAM, /* the lane has no ops */
    DQ_BLOCK_REPLY,   /* the lane's request is in flight */
    DQ_BLOCK_SYNC,    /* the next step has to call outbox_sync first */
    DQ_BLOCK_LANE,    /* it yields to another lane: see dq_lane_yield_us */
    DQ_BLOCK_PAUSE,   /* the pause after a failure is not over */
    DQ_BLOCK_SOCKET,  /* the connection is not ready for this request */
    DQ_BLOCK_PROBE,   /* the probe of the queue is not done */
    DQ_BLOCK_PAYLOAD  /* a large request before it is still being written */
} dq_block;

/* Returns why the connection, the probe or another lane makes a lane's next
 * request wait. Sets *until to the time at which the wait ends by itself, or to
 * DQ_NEVER. To plan a request for tracking, callers pass the fetch lane. */
static dq_block dq_blocked_request(const delayq *q, const delayq_lane *lane,
                                   int64_t *until) {
    const delayq_conn *conn = q->conn;
    int probes = lane == &q->setup && !(q->probed && conn->known);
    *until = DQ_NEVER;
    if (conn->cmd.purpose != DQ_CONN_CMD || conn->leaving ||
        conn->cmd.state <
            (probes ? DELAYQ_SOCKET_GREETING : DELAYQ_SOCKET_OPEN) ||
        !(probes || conn->known))
        return DQ_BLOCK_SOCKET;
    if (!q->probed && !probes) return DQ_BLOCK_PROBE;
    if (conn->cmd.body_len > 0) return DQ_BLOCK_PAYLOAD;
    *until = lane->policy->background ? dq_lane_yield_us(q, lane) : 0;
    return *until > conn->now_us ? DQ_BLOCK_LANE : DQ_BLOCK_NONE;
}

/* Returns the verb of a lane's request or, if it has none, of its next op. */
static const dq_verb *dq_lane_verb(const delayq_lane *lane) {
    if (lane->x.state != DELAYQ_EXCHANGE_NONE) return lane->verb;
    return lane->ring ? dq_ring_entry(lane->ring, lane->ring->head)->op.verb
                      : lane->array_verb;
}

/* Returns 1 if a lane's offers wait for a probe, since the last one is old or
 * was slow. A handle that only offers finds foreign elements only by probes. */
static int dq_lane_probes(const delayq *q, const delayq_lane *lane) {
    return (dq_lane_verb(lane)->flags & DQ_OFFERS) &&
           q->conn->now_us > q->probe_us;
}

/* Returns the reason why a lane has to wait. The result decides whether
 * dq_lane_step acts, and when dq_wait_next lets the handle wake up. */
static dq_block dq_blocked(const delayq *q, const delayq_lane *lane,
                           int64_t *until) {
    dq_block block;
    *until = lane->x.state == DELAYQ_EXCHANGE_ANSWERED ? 0 : DQ_NEVER;
    if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) return DQ_BLOCK_NONE;
    if (lane->x.state == DELAYQ_EXCHANGE_SENT) return DQ_BLOCK_REPLY;
    if (lane->settled == lane->accepted) return DQ_BLOCK_PROGRAM;
    *until = lane->retry_us;
    if (lane->x.state == DELAYQ_EXCHANGE_NONE && *until > q->conn->now_us)
        return DQ_BLOCK_PAUSE;
    if (lane->ring && lane->ring->synced <= lane->settled) return DQ_BLOCK_SYNC;
    block = dq_blocked_request(q, lane, until);
    if (block != DQ_BLOCK_NONE || !dq_lane_probes(q, lane) ||
        q->setup.settled == q->setup.accepted)
        return block;
    *until = DQ_NEVER;
    return DQ_BLOCK_PROBE;
}

/* --- plan --- */

/* Returns 1 if a lane's planned request already has an op with op's key. */
static int dq_lane_has_key(const delayq_lane *lane, const dq_op *op) {
    dq_cursor c;
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c))
        if (c.op->key_len == op->key_len &&
            memcmp(c.op->key, op->key, op->key_len) == 0)
            return 1;
    return 0;
}

/* Returns the life of the first op of a ring's lane. */
static const unsigned char *dq_lane_life(const delayq_lane *lane) {
    return dq_ring_entry(lane->ring, lane->ring->head)->op.life;
}

/* Returns the verb that a lane's request has if the current op of `c` joins it,
 * or NULL if this op can't share the request. */
static const dq_verb *dq_lane_join(const delayq *q, const delayq_lane *lane,
                                   int by_due, const dq_cursor *c) {
    const dq_op *op = c->op;
    const dq_verb *verb = lane->verb, *own = op->verb;
    int offers = own->flags & DQ_OFFERS;
    if (own->key && lane->key && own->key != lane->key) return NULL;
    if (op->resend) return NULL; /* a resend is sent alone */
    if (lane->ring && memcmp(op->life, dq_lane_life(lane), 3) != 0) return NULL;
    if (offers && !lane->ring && /* a ring's numbers suffice against copies */
        ((c->due_ms > 0) != by_due || (op->key && dq_lane_has_key(lane, op))))
        return NULL;
    if (own->script == verb->script && offers == (verb->flags & DQ_OFFERS))
        return verb;
    if (verb == own->mixed) return verb;
    if (offers && (verb->flags & DQ_OFFERS))
        return op->key && !verb->mixed ? own : verb; /* it fits all offers */
    return q->foreign ? NULL : offers ? verb->mixed : own->mixed;
}

/* Plan the next request of a lane: the first ops that can share one. */
static void dq_lane_plan(delayq *q, delayq_lane *lane) {
    size_t most = lane->limit, bytes = 0;
    uint64_t left = lane->accepted - lane->settled;
    const dq_verb *verb;
    const dq_op *op;
    dq_cursor c;
    int by_due;
    assert(lane->from == 0);
    lane->n = 0;
    lane->key = DQ_KEY_NONE;
    lane->tries = 0;
    lane->resent = 0;
    lane->x.number = 0;
    lane->x.state = DELAYQ_EXCHANGE_WAITING;
    if (lane->ring) left = dq_ring_date_all(q, lane->ring);
    if (left < most) most = (size_t)left;
    dq_cursor_begin(&c, lane, SIZE_MAX);
    op = dq_cursor_next(&c);
    assert(op && most > 0);
    by_due = c.due_ms > 0;
    lane->verb = op->verb;
    lane->uploads = !op->verb->writer;
    if (op->verb->most < most) most = op->verb->most;
    lane->resends = op->resend || lane->unsure > 0 ||
                    (lane->ring && lane->settled < lane->ring->resumed);
    if (op->resend) DQ_MARK(unknown_offer_goes_alone);
    if (op->resend) most = 1;
    for (;;) {
        if (c.message && !op->resend) dq_message_date(q, c.message);
        if ((op->verb->flags & DQ_RETIMES) && op->planned_ms == 0)
            c.op->planned_ms =
                op->due_ms > 0 ? op->due_ms
                               : dq_due_after(q, op->begun_us, op->delay_ms);
        if (op->verb->key) lane->key = op->verb->key;
        lane->n++;
        bytes += sizeof(dq_entry) + op->len;
        if (lane->n >= most) break;
        op = dq_cursor_next(&c);
        if (!op || bytes + sizeof(dq_entry) + op->len > lane->policy->bytes)
            break;
        verb = dq_lane_join(q, lane, by_due, &c);
        if (!verb) break;
        if (op->verb->most < most) most = op->verb->most;
        if (verb->most < most) most = verb->most;
        if (lane->n >= most) break;
        lane->verb = verb;
    }
}

/* --- the probe --- */

static void dq_lane_step(delayq *q, delayq_lane *lane);

static void dq_write_probe_call(dq_resp_writer *o, delayq *q,
                                const delayq_lane *lane) {
    (void)lane;
    if (!q->keyless) {
        dq_resp_key(o, q, DQ_ZSET, "");
        if (q->wire->mirror) dq_resp_key(o, q, DQ_MIRROR, "");
        o->keys = o->args;
    }
    dq_resp_key(o, q, DQ_ZSET, "");
    dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_text(o, q->wire->letter);
}

/* Write the commands of a probe. EXISTS checks that this node serves the
 * queue's slot. XREVRANGE finds the end of a broadcast's stream if q begins
 * there. For the log, INFO is sent once, to learn which keys may be evicted. */
static void dq_write_probe(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    dq_resp_command(o, 4, "EXISTS");
    dq_resp_arg(o, q->name, q->name_len, 0);
    dq_resp_key(o, q, DQ_ZSET, "");
    dq_resp_key(o, conn->owner, DQ_ZSET, "");
    if (q->cursor[0] == '$') {
        dq_resp_command(o, 6, "XREVRANGE");
        dq_resp_key(o, q, DQ_STREAM, "");
        dq_resp_text(o, "+");
        dq_resp_text(o, "-");
        dq_resp_text(o, "COUNT");
        dq_resp_int(o, 1);
    }
    if (conn->owner->options.log && !conn->policy_read) {
        conn->policy_read = 1; /* send INFO once, even if the socket is lost */
        dq_resp_command(o, 2, "INFO");
        dq_resp_text(o, "memory");
    }
    dq_resp_call(o, q, &dq_script_probe, dq_write_probe_call, lane);
}

/* Report to the log if the server may evict keys that a queue needs. It is no
 * fault if the server refuses to show its policy. */
static void dq_probe_policy(const delayq *owner, const redisReply *r) {
    const char *info = r->type == REDIS_REPLY_STRING ? r->str : "";
    const char *limit = strstr(info, "maxmemory:");
    const char *policy = strstr(info, "maxmemory_policy:");
    char text[sizeof owner->err];
    int all;
    if (!limit || limit[10] == '0' || !policy) return;
    policy += 17;
    all = strncmp(policy, "allkeys", 7) == 0;
    if (!all && strncmp(policy, "volatile", 8) != 0) return;
    DQ_MARK(server_evicts);
    dq_err_set(text, DELAYQ_OK,
               "the server's maxmemory-policy, %.*s, may evict %s: set it to "
               "noeviction",
               (int)strcspn(policy, "\r\n"), policy,
               all ? "whole queues" : "the keys that prevent duplicates");
    dq_err_log(owner, DELAYQ_OK, text);
}

/* Set the cursor of a broadcast's handle to the stream's last entry. If
 * XREVRANGE was refused, leave the cursor; the first tick or take will fail. */
static void dq_probe_cursor(delayq *q, const redisReply *r) {
    const redisReply *id = NULL;
    if (r->type != REDIS_REPLY_ARRAY) return;
    if (r->elements == 0)
        memcpy(q->cursor, "0-0", 4);
    else if (r->element[0]->type == REDIS_REPLY_ARRAY &&
             r->element[0]->elements > 0)
        id = r->element[0]->element[0];
    if (id && id->type == REDIS_REPLY_STRING && id->len < sizeof q->cursor)
        memcpy(q->cursor, id->str, id->len + 1);
}

/* Read the replies to q's probe: the server's clock, the size and byte order of
 * its unsigned long, and whether q's queue has foreign elements. Returns their
 * status, and sets conn->err if it is a failure. */
static delayq_status dq_probe_parse(delayq *q, const delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    const delayq_exchange *x = &lane->x;
    const redisReply *slot = x->replies[0], *probe = x->replies[x->got - 1];
    const redisReply *value;
    delayq_status status;
    int64_t n[2];
    int at = lane->uploads; /* the first reply is that of SCRIPT LOAD */
    if (at > 0 && slot->type == REDIS_REPLY_ERROR)
        return dq_conn_refused(conn, "open", slot);
    /* Ignore all errors except MOVED, CROSSSLOT, and those that end the
     * connection. An ACL may forbid EXISTS; scripts that need it will fail. */
    slot = x->replies[at++];
    if (slot->type == REDIS_REPLY_ERROR) {
        const dq_err_entry *e = dq_err_lookup(slot->str);
        if (e->status == DQ_MOVED)
            return dq_conn_parse_redirect(conn, slot->str);
        if (e->status == DELAYQ_ERR_ARG || e->leave)
            return dq_conn_refused(conn, "open", slot);
    }
    if (q->cursor[0] == '$') at++;
    if (x->got > at + 1) dq_probe_policy(conn->owner, x->replies[at]);
    if (probe->type == REDIS_REPLY_ERROR) {
        status = dq_err_reply(conn->err, "open", probe);
        if (status == DQ_MOVED) return dq_conn_parse_redirect(conn, probe->str);
        return status;
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
    if (q->cursor[0] == '$') dq_probe_cursor(q, x->replies[lane->uploads + 1]);
    return DELAYQ_OK;
}

/* Read the replies to q's probe; there are none if its socket was lost. Returns
 * OK if the probe is done or will be sent again, else a failure. If the queue
 * and the connection were probed before, the probe only looks for foreign
 * elements, and a refusal is ignored. */
static delayq_status dq_read_probe(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    int again = conn->known && q->probed;
    delayq_status status = DELAYQ_OK;
    if (lane->x.got > 0) {
        status = dq_probe_parse(q, lane);
        q->probe_us = conn->now_us + DQ_PROBE_US;
        if (status == DQ_NOSCRIPT && !lane->uploads)
            dq_conn_tell(conn, &conn->scripts_told_us);
        if (status == DQ_NOSCRIPT) return status;
        if (again && status != DELAYQ_OK) DQ_MARK(look_refused);
        if (again) return status == DELAYQ_ERR_PROTOCOL ? status : DELAYQ_OK;
        if (!q->keyless &&
            (status == DQ_MOVING || status == DELAYQ_ERR_AUTH)) {
            DQ_MARK(probe_without_keys);
            q->keyless = 1;
        } else if (status == DQ_MOVED) {
            DQ_MARK(probe_is_redirected);
            if (!dq_conn_attempt_failed(conn, status))
                return dq_err_public(status);
        } else if (status != DELAYQ_OK) {
            return status;
        } else {
            q->probed = 1;
            q->keyless = 0;
            if (conn->known) return DELAYQ_OK;
            conn->known = 1;
            conn->known_us = conn->now_us;
            conn->clock_number++;
            conn->cmd.failures = conn->cmd.timeouts = 0;
            conn->hosts_left = conn->hops = 0;
            /* after a delayed reply, offers wait for a better clock reading */
            if (q->outbox && conn->clock_error_us > DQ_BACKOFF_US &&
                conn->clock_error_us > 2 * conn->cmd.dial_us)
                q->probe_us = 0;
            dq_sched_on_conn_back(conn);
            dq_conn_tell(conn, &conn->known_told_us);
            return DELAYQ_OK;
        }
        DQ_MARK(probe_again);
    }
    if (!again) lane->accepted++;
    return DELAYQ_OK;
}

/* Handle a refused probe. After the first probe on a connection, try the next
 * host. After a later one, keep the connection for the other handles, unless
 * the reply is malformed. */
static void dq_probe_fail(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    if (!q->probed) lane->accepted++;
    if (!conn->cmd.c) return;
    if (!conn->known || lane->status == DELAYQ_ERR_PROTOCOL) {
        DQ_MARK(probe_ends_connection);
        if (dq_conn_attempt_failed(conn, lane->status))
            lane->result = DELAYQ_OK; /* the next host may succeed */
        return;
    }
    DQ_MARK(probe_refused);
    if (lane->failures > 0) /* the second probe is sent at once */
        lane->retry_us = conn->now_us + dq_sched_backoff_us(q, lane->failures);
    if (lane->failures < 60) lane->failures++;
}

DQ_VERB(probe, "open", "", probe, dq_write_probe, dq_read_probe, 1, 0,
        DQ_READ_ONLY | DQ_RAW, DQ_KEY_NONE, 0, NULL, NULL, dq_probe_fail);

/* Start the verb probe or track in the setup lane, which must be empty. */
static void dq_lane_setup(delayq *q, const dq_verb *verb) {
    delayq_lane *lane = &q->setup;
    assert(lane->settled == lane->accepted);
    lane->array_verb = verb;
    lane->accepted++;
    dq_lane_step(q, lane);
}

/* Returns 1 if a handle must send no requests, because its queue has foreign
 * elements. With the old wire, only offers and takes are forbidden, and
 * dq_lane_connect refuses them. */
static int dq_lane_refuses(const delayq *q) {
    return q->foreign && !q->wire->old_first;
}

/* Set the error text of a request that has to wait until until_us: the cause in
 * conn->err, and the remaining time. Returns status. */
static delayq_status dq_lane_postpone(const delayq *q, char err[256],
                                      delayq_status status, int64_t until_us) {
    return dq_err_set(err, status, "%s; the next attempt is in %d ms",
                      q->conn->err,
                      (int)((until_us - q->conn->now_us + 999) / 1000));
}

/* Continue to connect and to probe q's queue, without waiting. Returns OK if
 * both are done, EMPTY if they need more time, else a failure, with its text in
 * err. It is called before each request, except those of the setup lane. */
static delayq_status dq_lane_ensure(delayq *q, char err[256]) {
    delayq_conn *conn = q->conn;
    delayq_socket *s = &conn->cmd;
    delayq_lane *probe = &q->setup;
    int outlived;
    if (dq_lane_refuses(q)) return dq_err_wire(q, err);
    if (conn->leaving != DELAYQ_OK && s->first) return DELAYQ_EMPTY;
    /* Read an idle socket before it is used, unless dq_step has just done this.
     * The socket may be lost, or a reply without a request may have come, which
     * the next request would accept as its own. */
    if (s->state >= DELAYQ_SOCKET_OPEN && conn->known && q->probed &&
        (s->first || conn->idle_read_us == conn->now_us))
        return DELAYQ_OK;
    /* If an attempt timed out long before this call, its failure says nothing
     * about the server now, so another attempt may begin. */
    outlived = s->state > DELAYQ_SOCKET_CLOSED &&
               s->state < DELAYQ_SOCKET_OPEN &&
               conn->now_us - s->deadline_us > DQ_BACKOFF_US;
    for (;;) {
        delayq_status status = probe->result;
        probe->result = DELAYQ_OK;
        if (status < DELAYQ_OK)
            return dq_err_with(err, status, conn->err);
        status = dq_conn_step(conn);
        if (status < DELAYQ_OK) {
            if (conn->redirected) return DELAYQ_EMPTY; /* try there next */
            if (!outlived || conn->now_us < s->retry_us)
                return dq_lane_postpone(q, err, conn->failure, s->retry_us);
            DQ_MARK(attempt_outlived);
            outlived = 0;
            continue;
        }
        if (status == DELAYQ_OK && conn->known && q->probed)
            return dq_lane_refuses(q) ? dq_err_wire(q, err) : DELAYQ_OK;
        if (probe->status < DELAYQ_OK && conn->now_us < probe->retry_us) {
            if (q->outbox)
                return dq_lane_postpone(q, err, probe->status,
                                        probe->retry_us);
            probe->retry_us = 0; /* without an outbox, each call probes */
        }
        dq_lane_step(q, probe);
        if (probe->result < DELAYQ_OK || s->state == DELAYQ_SOCKET_CLOSED ||
            (conn->known && q->probed))
            continue;
        if (probe->settled == probe->accepted)
            dq_lane_setup(q, &dq_verb_probe);
        return DELAYQ_EMPTY;
    }
}

/* --- write --- */

/* Continue to connect for a lane's request, without waiting. Returns OK if it
 * can be sent, EMPTY if not yet, else a failure, with its text in lane->why. */
static delayq_status dq_lane_connect(delayq *q, const delayq_lane *lane) {
    delayq_status status = dq_lane_ensure(q, lane->why);
    if (status != DELAYQ_OK) return status;
    if (q->foreign && (lane->verb->flags & (DQ_OFFERS | DQ_TAKES)))
        return dq_err_wire(q, lane->why);
    if (!dq_lane_probes(q, lane)) return DELAYQ_OK;
    if (q->setup.settled == q->setup.accepted)
        dq_lane_setup(q, &dq_verb_probe);
    return DELAYQ_EMPTY;
}

/* Write a lane's request. If its script must be loaded, EVALSHA follows SCRIPT
 * LOAD at once, so that a flush of the scripts between the two is unlikely. If
 * the socket can't accept the whole script at once, EVALSHA is sent after the
 * reply to SCRIPT LOAD. */
DQ_APART static void dq_lane_write(delayq *q, delayq_lane *lane) {
    delayq_socket *s = &q->conn->cmd;
    int loads = DQ_HAS_LUA && lane->uploads;
    const dq_verb *verb = lane->verb;
    dq_resp_writer o;
    if (lane->ring) lane->begun_us = q->conn->now_us;
    if (!q->conn->known) /* each probe is a step of connecting */
        s->deadline_us = q->conn->now_us + s->step_us;
    dq_resp_begin(&o, s->c);
    if (loads) {
        dq_resp_upload(&o, verb->script);
        dq_conn_submit(q->conn, s, &lane->x, &o);
        if (s->body_len > 0 || !verb->writer) return;
        dq_resp_begin(&o, s->c);
    }
    if (verb->flags & DQ_RAW)
        verb->writer(&o, q, lane);
    else
        dq_resp_call(&o, q, verb->script, verb->writer, lane);
    lane->was_unsure = lane->unsure;
    if (lane->unsure < lane->n) lane->unsure = lane->n;
    if (lane->ring && lane->ring->keep) lane->ring->keep->mark(q);
    dq_conn_submit(q->conn, s, &lane->x, &o);
}

/* --- read --- */

/* Update the connection after a reply on cmd: the server's clock, whether the
 * socket is useful, the target of a redirection. Returns the lane's status. */
static delayq_status dq_lane_learn(delayq *q, const delayq_lane *lane,
                                   const redisReply *r, delayq_status status) {
    delayq_conn *conn = q->conn;
    int error = r->type == REDIS_REPLY_ERROR;
    int leave = error ? dq_err_lookup(r->str)->leave : 0;
    unsigned other = leave == DQ_LEAVE;
    int64_t us;
    conn->cmd.state = other ? DELAYQ_SOCKET_OPEN : DELAYQ_SOCKET_PROVEN;
    conn->host += other;
    if (other) conn->left = 1;
    if (!other) conn->cmd.unproven = 0;
    if (status == DELAYQ_OK) /* an earlier report may have been held back */
        dq_conn_tell(conn, &conn->known_told_us);
    if (status == DQ_NOSCRIPT && !lane->uploads)
        dq_conn_tell(conn, &conn->scripts_told_us);
    if (status == DELAYQ_OK && dq_resp_integers(r, &us, 1))
        dq_conn_set_clock(conn, us, lane->x.sent_us, lane->x.read_us);
    if (status == DQ_MOVED) {
        status = dq_conn_parse_redirect(conn, r->str);
        if (status == DELAYQ_ERR_REDIS)
            dq_err_with(lane->why, status, conn->err);
    }
    if (status == DQ_MOVED || leave) {
        DQ_MARK(server_left);
        conn->redirected = status == DQ_MOVED;
        dq_err_with(conn->err, status, lane->why);
        /* the later requests in flight get the same reply, or none; they must
         * not be blamed for the loss */
        conn->leaving = leave == DQ_ENDED ? DELAYQ_ERR_AGAIN : status;
        if (conn->cmd.first) DQ_MARK(leaves_later);
        if (!conn->cmd.first || leave == DQ_ENDED)
            dq_conn_lose(conn, &conn->cmd, conn->leaving);
    }
    return status;
}

/* Returns 1 if the socket over which a lane's request was sent is open. */
static int dq_lane_has_socket(const delayq *q, const delayq_lane *lane) {
    return q->conn->cmd.c && lane->x.number == q->conn->cmd.number;
}

/* Set the error of a reply that the lane's script can't have sent. Close its
 * connection, since the next replies may be wrong, too. */
static delayq_status dq_lane_reject(delayq *q, delayq_lane *lane) {
    DQ_MARK(reply_is_not_ours);
    lane->x.status = dq_err_bad_reply(lane->why, lane->verb->name);
    if (dq_lane_has_socket(q, lane))
        dq_conn_lose(q->conn, &q->conn->cmd,
                     dq_err_with(q->conn->err, lane->x.status, lane->why));
    return lane->x.status;
}

/* Read the replies to a lane's request; after a lost socket there may be none.
 * Set the lane's status and error text, and have the verb read the reply. */
static void dq_lane_read(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    delayq_exchange *x = &lane->x;
    const dq_verb *verb = lane->verb;
    const redisReply *r = x->got > 0 ? x->replies[x->got - 1] : NULL;
    int loads = lane->uploads && x->wants == 1; /* SCRIPT LOAD was sent alone */
    delayq_status status = x->status;
    assert(x->state == DELAYQ_EXCHANGE_ANSWERED && !lane->reply);
    if (verb->flags & DQ_RAW) {
        if (!dq_lane_has_socket(q, lane)) dq_conn_free_replies(x);
        loads = loads && x->got > 0 && r->type != REDIS_REPLY_ERROR;
        lane->status = loads ? DQ_NOSCRIPT : verb->reader(q, lane);
        dq_conn_free_replies(x);
        return;
    }
    if (r && lane->uploads && r->type == REDIS_REPLY_ERROR &&
        x->replies[0]->type == REDIS_REPLY_ERROR)
        r = x->replies[0]; /* the cause is that the script was not loaded */
    if (!r) {
        if (loads && status == DELAYQ_ERR_UNKNOWN) status = DELAYQ_ERR_IO;
        dq_err_lost(lane->why, status, conn->err);
    } else if (r->type == REDIS_REPLY_ERROR) {
        DQ_MARK(request_refused);
        status = dq_err_reply(lane->why, verb->name, r);
        if (dq_err_lookup(r->str)->leave == DQ_ENDED) x->blame = 2;
        if (x->blame) DQ_MARK(ended_with_a_reply);
    } else if (loads) {
        status = verb->writer ? DQ_NOSCRIPT : DELAYQ_OK; /* EVALSHA is next */
    } else if (r->type != REDIS_REPLY_ARRAY || r->elements == 0) {
        status = dq_lane_reject(q, lane);
    }
    if (r && dq_lane_has_socket(q, lane))
        status = dq_lane_learn(q, lane, x->replies[x->got - 1], status);
    if (status == DELAYQ_OK) lane->reply = x->replies[--x->got];
    dq_conn_free_replies(x);
    if (status != DQ_NOSCRIPT) lane->uploads = !verb->writer;
    x->status = lane->status = status;
    if (status == DELAYQ_OK && verb->reader) {
        lane->status = verb->reader(q, lane); /* may set x->status */
        dq_resp_free(&lane->reply);
    }
    if (x->status != DELAYQ_ERR_UNKNOWN && x->status != DELAYQ_ERR_PROTOCOL)
        lane->unsure = lane->was_unsure; /* its outcome is known */
}

/* --- settle --- */

/* Count and report an op of a ring that is done or was dropped. */
static void dq_ring_settle(delayq *q, dq_ring *ring, const dq_verb *verb,
                           delayq_status status) {
    dq_outbox *b = q->outbox;
    if (verb->flags & DQ_UNCOUNTED) {
        b->own_settled++;
        return;
    }
    b->gone += status == DELAYQ_GONE;
    b->duplicate += status == DELAYQ_DUPLICATE;
    b->dropped += status < DELAYQ_OK;
    if (status < DELAYQ_OK) b->drop = status;
    ring->told++;
    if (q->options.settled)
        q->options.settled(q->options.user, ring == &b->changes, ring->told,
                           status);
}

/* Give an op its final status: count the op, report the status to the caller,
 * and, if the status is OK, pass a due_ms above 0 to the schedule. */
static void dq_op_settle(delayq *q, delayq_lane *lane, const dq_cursor *c,
                         delayq_status status, int64_t due_ms) {
    size_t counter = c->op->verb->counter;
    assert(status != DELAYQ_EMPTY && status < DQ_NOSCRIPT);
    if (status == DELAYQ_OK && counter > 0)
        ++*(uint64_t *)(void *)((char *)&q->counts + counter);
    if (status == DELAYQ_OK && due_ms > 0) {
        lane->due_ms = due_ms;
        dq_sched_on_message(q, due_ms);
    }
    if (lane->ring) dq_ring_settle(q, lane->ring, c->op->verb, status);
    if (lane->items) lane->items[c->i].acked = status;
    if (c->message) { /* a failure does not replace DELAYQ_ERR_UNKNOWN */
        if (status >= DELAYQ_OK || c->message->status != DELAYQ_ERR_UNKNOWN)
            c->message->status = status;
        if (status > DELAYQ_OK) return;
    }
    if (lane->result < DELAYQ_OK || status == DELAYQ_OK) return;
    lane->result = status;
    if (status < DELAYQ_OK && lane->err)
        dq_err_with(lane->err, status, lane->why);
}

/* Remove the first n ops, now settled, and the refused messages after them. */
static void dq_lane_pop(delayq *q, delayq_lane *lane, size_t n) {
    dq_ring *ring = lane->ring;
    assert(n > 0);
    lane->unsure -= lane->unsure < n ? lane->unsure : n;
    for (; n > 0; n--)
        if (ring)
            dq_ring_pop(ring);
        else
            lane->settled = dq_lane_op_at(lane, lane->settled) + 1;
    lane->settled = dq_lane_op_at(lane, lane->settled);
    if (ring && ring->keep) ring->keep->mark(q);
}

/* Fail the n ops of a request with the lane's status. All later ops fail, too,
 * unless the status is DELAYQ_ERR_UNKNOWN and cmd has a socket again. */
static void dq_lane_fail(delayq *q, delayq_lane *lane, size_t n) {
    delayq_status status = lane->status, rest = status;
    int goes_on = n > 0 && status == DELAYQ_ERR_UNKNOWN && q->conn->cmd.c;
    dq_cursor c;
    if (goes_on) DQ_MARK(call_goes_on);
    if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL)
        rest = DELAYQ_ERR_IO; /* the later ops were not sent */
    dq_cursor_begin(&c, lane, goes_on ? n : SIZE_MAX);
    while (dq_cursor_next(&c))
        dq_op_settle(q, lane, &c,
                     c.number < n              ? status
                     : c.number < lane->unsure ? DELAYQ_ERR_UNKNOWN
                                               : rest,
                     0);
    if (goes_on)
        dq_lane_pop(q, lane, n);
    else
        lane->settled = lane->accepted, lane->unsure = 0;
    if (lane->verb->fail) lane->verb->fail(q, lane);
}

/* --- decide --- */

typedef enum dq_verdict {
    DQ_DONE,   /* the ops of the request are settled */
    DQ_RESEND, /* send the request again at once */
    DQ_PAUSE,  /* send the ops again at lane->retry_us; this is no failure */
    DQ_KEEP,   /* after a failure, send the ops again at lane->retry_us */
    DQ_DROP,   /* drop the request's only op, which ends every connection */
    DQ_FAIL    /* the ops of the request fail with lane->status */
} dq_verdict;

/* If a refused request, which has not run, may succeed on another node, with
 * its script loaded, or in another form: prepare this attempt, and return 1. */
static int dq_decide_refused(delayq *q, delayq_lane *lane) {
    if (lane->status == DQ_MOVED) return 1; /* cmd connects to that node */
    if (lane->status == DQ_TWIN && lane->ring &&
        lane->ring == &q->outbox->offers)
        dq_ring_meet_twin(q, lane->ring);
    if (lane->status != DQ_NOSCRIPT)
        return lane->verb->reform && lane->verb->reform(q, lane);
    if (!DQ_HAS_LUA || !lane->verb->writer) return 0;
    lane->uploads = !lane->uploads; /* load it, or call it again */
    return 1;
}

/* Begin a pause, since the server has refused a request while the queue's slot
 * moves to another node, and return 1. Return 0, without a pause, if three
 * quarters of a call's time limit are over since the first such refusal. */
static int dq_decide_moving(delayq *q, delayq_lane *lane) {
    int64_t now = q->conn->now_us, pause_us;
    int64_t most_us = dq_sched_patience_us(q->conn, q->call_ms) / 4 * 3;
    if (lane->moving_us == 0) lane->moving_us = now;
    pause_us = (now - lane->moving_us) / 4;
    if (pause_us < DQ_MOVING_US) pause_us = DQ_MOVING_US;
    if (pause_us > DQ_BACKOFF_US) pause_us = DQ_BACKOFF_US;
    if (now + pause_us - lane->moving_us >= most_us) {
        dq_err_moving(lane->why, lane->verb->name);
        return 0;
    }
    DQ_MARK(slot_moves);
    lane->retry_us = now + pause_us;
    lane->status = DELAYQ_OK;
    return 1;
}

/* Returns 1 if a failed request of a call or fetch is sent again, because its
 * socket was lost and a resend does no harm. There is one resend at most. */
static int dq_decide_resend(const delayq *q, delayq_lane *lane) {
    const delayq_conn *conn = q->conn;
    int flags = lane->verb->flags;
    int lost = !conn->cmd.c ||
               (lane->x.number > 0 && lane->x.number != conn->cmd.number);
    if (lane->resent || !lost || conn->cmd.failures > 0) return 0;
    DQ_MARK(socket_lost_at_request);
    lane->resent = 1;
    if (lane->status == DELAYQ_ERR_UNKNOWN && (flags & DQ_IDEMPOTENT)) {
        DQ_MARK(may_run_twice);
        lane->resends = 1;
        return 1;
    }
    return lane->status == DELAYQ_ERR_IO ||
           lane->status == DELAYQ_ERR_READONLY ||
           lane->status == DELAYQ_ERR_AGAIN ||
           (lane->status == DELAYQ_ERR_UNKNOWN && (flags & DQ_READ_ONLY));
}

/* Decide about a failed request of a ring. After each lost socket the next
 * request has half as many ops, until it has only one. If the server closes the
 * socket t us after this op was sent, the next connection has to last for
 * 4 t us (at most 1 s) before the op is sent again. After policy->losses such
 * losses in a row the op is dropped, since it is probably their cause. */
static dq_verdict dq_decide_ring(delayq *q, delayq_lane *lane) {
    int lost = lane->x.number > 0 &&
               (lane->status == DELAYQ_ERR_UNKNOWN ||
                lane->status == DELAYQ_ERR_IO || lane->x.blame > 0);
    int64_t now = q->conn->now_us;
    if (!lost) {
        DQ_MARK(outbox_backs_off);
        if (lane->failures < 60) lane->failures++;
        lane->retry_us = now + dq_sched_backoff_us(q, lane->failures);
        return DQ_KEEP;
    }
    lane->retry_us = lane->trial_us = 0; /* connecting has its own back-off */
    DQ_MARK(outbox_request_lost);
    lane->limit = lane->n > 1 ? lane->n / 2 : 1;
    lane->suspect_us = now + DQ_YIELD_US;
    if (lane->n > 1 || q->conn->timed_out)
        lane->losses = 0;
    else if (lane->x.blame > 1 && ++lane->losses >= lane->policy->losses)
        return DQ_DROP;
    if (lane->losses > 0) lane->trial_us = 4 * (now - lane->begun_us);
    if (lane->losses > 0) DQ_MARK(op_under_suspicion);
    if (lane->trial_us > DQ_YIELD_US) lane->trial_us = DQ_YIELD_US;
    return DQ_KEEP;
}

/* Decide about a request that got a reply, lost its socket, or was not sent.
 * Except for a probe, only this function decides whether to send it again. */
static dq_verdict dq_decide(delayq *q, delayq_lane *lane) {
    assert(lane->policy && lane->status != DELAYQ_EMPTY);
    if (lane->status == DELAYQ_OK) return DQ_DONE;
    if (lane->status == DQ_MOVING && dq_decide_moving(q, lane)) return DQ_PAUSE;
    /* more tries, since scripts may be flushed between a load and EVALSHA */
    if (lane->tries++ < (lane->status == DQ_NOSCRIPT ? 4 * DQ_HOPS : DQ_HOPS)) {
        if (dq_decide_refused(q, lane)) return DQ_RESEND;
        if (!lane->policy->losses && dq_decide_resend(q, lane))
            return DQ_RESEND;
    }
    if (lane->status == DQ_NOSCRIPT) DQ_MARK(scripts_forgotten);
    if (lane->status == DQ_NOSCRIPT)
        dq_err_set(lane->why, lane->status, "%s: %s", lane->verb->name,
                   DQ_NO_SCRIPTS);
    return lane->policy->losses ? dq_decide_ring(q, lane) : DQ_FAIL;
}

/* --- the step --- */

/* End a lane's request, and apply the verdict of dq_decide to its ops. */
static void dq_lane_end(delayq *q, delayq_lane *lane) {
    dq_verdict verdict = dq_decide(q, lane);
    size_t n = lane->n;
    dq_cursor c;
    assert(lane->x.state != DELAYQ_EXCHANGE_SENT && lane->x.got == 0);
    assert(verdict != DQ_DROP || n == 1);
    lane->x.state = DELAYQ_EXCHANGE_NONE;
    if (verdict == DQ_RESEND) {
        int apart = lane->messages && n > 1 && lane->unsure > 0;
        if (!apart) DQ_MARK(request_sent_again);
        if (apart) DQ_MARK(offers_sent_one_by_one);
        if (n > 0 && !apart) lane->x.state = DELAYQ_EXCHANGE_WAITING;
        if (apart) lane->n = 0; /* plan again: one message per request */
        return;
    }
    lane->n = 0;
    if (verdict == DQ_PAUSE) return;
    if (verdict == DQ_DONE) {
        dq_lane_pop(q, lane, n);
        lane->failures = lane->losses = 0;
        lane->retry_us = lane->suspect_us = lane->moving_us = 0;
        if (2 * n > lane->limit) lane->limit *= 2;
        if (lane->limit > DQ_RING_LIMIT) lane->limit = DQ_RING_LIMIT;
        return;
    }
    if (lane->status == DELAYQ_ERR_UNKNOWN &&
        (lane->verb->flags & DQ_READ_ONLY))
        lane->status =
            dq_err_set(lane->why, DELAYQ_ERR_IO,
                       "%s: no reply came, or there is no memory for it; it "
                       "changes nothing",
                       lane->verb->name);
    if (lane->unsure > 0 && verdict == DQ_FAIL &&
        !(lane->verb->flags & DQ_READ_ONLY))
        lane->status =
            dq_err_after_loss(lane->why, lane->verb->name, lane->status);
    lane->status = dq_err_public(lane->status);
    if (lane->policy->background) dq_lane_note(q, lane->status, lane->why);
    if (verdict == DQ_FAIL) DQ_MARK(request_failed);
    if (verdict == DQ_FAIL) lane->retry_us = lane->moving_us = 0;
    if (verdict == DQ_FAIL) dq_lane_fail(q, lane, n);
    if (verdict != DQ_DROP) return;
    DQ_MARK(op_dropped);
    dq_cursor_begin(&c, lane, 1);
    dq_err_set(lane->why, lane->status,
               "%s of %lu bytes: dropped, since the server ends each "
               "connection over which it is sent",
               lane->verb->name, (unsigned long)dq_cursor_next(&c)->len);
    dq_err_log(q, lane->status, lane->why);
    dq_op_settle(q, lane, &c, lane->status, 0);
    dq_lane_pop(q, lane, 1);
    lane->losses = 0;
    lane->status = DELAYQ_OK;
}

/* Move a lane on as far as possible without waiting. */
static void dq_lane_step(delayq *q, delayq_lane *lane) {
    int setup = lane == &q->setup;
    while (lane->settled < lane->accepted &&
           lane->x.state != DELAYQ_EXCHANGE_SENT) {
        int plans = lane->x.state == DELAYQ_EXCHANGE_NONE;
        delayq_status ready;
        dq_block block;
        int64_t until;
        if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) {
            dq_lane_read(q, lane);
            dq_lane_end(q, lane);
            continue;
        }
        block = dq_blocked(q, lane, &until);
        if (block == DQ_BLOCK_PAYLOAD) DQ_MARK(waits_for_payload);
        /* a ring's lane does not connect: ticks, takes, flushes do */
        if (block && (lane->ring || block < DQ_BLOCK_PAUSE)) return;
        lane->verb = dq_lane_verb(lane);
        ready = setup ? DELAYQ_OK : dq_lane_connect(q, lane);
        if (ready == DELAYQ_EMPTY) return;
        if (ready != DELAYQ_OK) {
            lane->status = ready;
            lane->x.number = 0; /* nothing was sent this time */
            dq_lane_end(q, lane);
            continue;
        }
        if (block && dq_blocked(q, lane, &until)) return;
        if (plans) dq_lane_plan(q, lane);
        dq_lane_write(q, lane);
    }
}
/*-----------------------------------------------------------------------------
 * MARK: - Keep
 * >>keep   the image of an outbox that survives the program
 *
 * Owns the image, the bytes that one program leaves in an outbox's memory for
 * the next program. Only programs that name DELAYQ_KEEP link this section.
 *
 *     0       a mark         1024             the two rings, offers first
 *     512     a mark         last 2048 bytes  no part of the image
 *
 * A mark contains the owner of the image and, for each ring, the number of the
 * last settled op and the place of the next one. Two marks are written in turn,
 * so that one is always whole. All numbers have the machine's byte order.
 *
 * An op is accepted once its CRC is stored, after the rest of its entry. The
 * CRC also covers the previous entry. So an old entry, from an earlier lap or,
 * after a power cut, from an earlier life (see below), is never mistaken for a
 * new one. A ring ends before the first entry with a wrong number or CRC.
 *
 * Space is used again only after both marks show that its ops are settled and,
 * with outbox_sync, after the next sync. So the older mark and its entries stay
 * whole, even if only some of the later stores reach the memory.
 *
 * Each open of an image begins a life, and draws 3 random bytes. They are in
 * the entries that the life adds, and in the name of the key delayq_sent, which
 * contains the life's highest number. If a power cut has removed the end of the
 * image, or if the image was copied, two lives may give the same number to two
 * offers. The 3 bytes keep the script from skipping such an offer as a resend.
 *---------------------------------------------------------------------------*/

#define DQ_KEEP_MAGIC 0x656771796c6e6174u
/* the version of the format, and of the codes of verbs */
#define DQ_KEEP_VERSION 1
/* bytes for a mark: a sector, so that a damaged sector damages only one mark */
#define DQ_KEEP_SLOT 512
#define DQ_KEEP_RINGS 1024
#define DQ_KEEP_STATE 2048
#define DQ_KEEP_NUMBER ((uint64_t)1 << 53) /* op numbers are lower */
#define DQ_KEEP_ZEROS \
    "; if its ops are of no use, fill its first 1,024 bytes with zeros"

/* A random number of this process, drawn when it opens its first image; 0
 * before. An image in use contains it, so that a second handle is refused, even
 * with another mapping of the file. An image that an earlier process has not
 * closed contains another number. */
static volatile int dq_keep_run;

/* A mark. It has no padding. */
typedef struct dq_mark {
    uint64_t magic; /* stored last when an image is created */
    uint32_t version;
    uint16_t entry_size;  /* the size of an entry without key and data */
    unsigned char word;   /* sizeof(void *) */
    char wire;            /* the letter of the wire */
    uint64_t size;        /* options.outbox_size */
    uint64_t generation;  /* higher in the newer mark than in the older one */
    uint64_t last_order;  /* the order in the last id; the next one is higher */
    int64_t call_us;      /* the server's time at the last dated offer's call */
    uint64_t own_settled; /* settled ops of DQ_UNCOUNTED verbs */
    uint32_t name_len, name_crc;
    unsigned char handle_id[8]; /* the next life keeps the first 5 bytes */
    struct {
        uint64_t size, head; /* bytes */
        uint64_t settled;    /* the number of the last settled op */
        uint64_t sent;       /* the number of the last op that may have run */
        uint32_t crc;        /* the CRC of the last settled op's entry */
        uint32_t zero;
    } ring[2];
    uint32_t zero;
    uint32_t crc; /* the CRC of all fields above except `magic` */
} dq_mark;

/* The state of an open image, in the last 2,048 bytes of the memory. */
typedef struct dq_image {
    dq_outbox outbox;
    dq_mark mark;     /* a copy of the newer mark */
    int64_t pid;      /* the process that uses the image */
    int run;          /* dq_keep_run of this process; 0: closed */
    int unsynced;     /* the memory has changed since the last outbox_sync */
    int64_t retry_us; /* > 0: when to call outbox_sync again after a failure */
} dq_image;

/* A row of `added`: all XORs of the values for the 4 bits of a half byte. */
#define DQ_CRC_ROW(a, b, c, d)                                                 \
    {                                                                          \
        0, a, b, (a) ^ (b), c, (a) ^ (c), (b) ^ (c), (a) ^ (b) ^ (c), d,       \
            (a) ^ (d), (b) ^ (d), (a) ^ (b) ^ (d), (c) ^ (d), (a) ^ (c) ^ (d), \
            (b) ^ (c) ^ (d), (a) ^ (b) ^ (c) ^ (d)                             \
    }

/* Returns the CRC-32 (that of zlib) after n more bytes. `crc` is the CRC of the
 * bytes before them, 0 if there are none. */
static uint32_t dq_keep_crc(uint32_t crc, const void *bytes, size_t n) {
    /* added[k][v]: the change of the CRC if half byte k of 4 bytes is v */
    static const uint32_t added[8][16] = {
        DQ_CRC_ROW(0xb8bc6765, 0xaa09c88b, 0x8f629757, 0xc5b428ef),
        DQ_CRC_ROW(0x5019579f, 0xa032af3e, 0x9b14583d, 0xed59b63b),
        DQ_CRC_ROW(0x01c26a37, 0x0384d46e, 0x0709a8dc, 0x0e1351b8),
        DQ_CRC_ROW(0x1c26a370, 0x384d46e0, 0x709a8dc0, 0xe1351b80),
        DQ_CRC_ROW(0x191b3141, 0x32366282, 0x646cc504, 0xc8d98a08),
        DQ_CRC_ROW(0x4ac21251, 0x958424a2, 0xf0794f05, 0x3b83984b),
        DQ_CRC_ROW(0x77073096, 0xee0e612c, 0x076dc419, 0x0edb8832),
        DQ_CRC_ROW(0x1db71064, 0x3b6e20c8, 0x76dc4190, 0xedb88320)};
    const unsigned char *p = (const unsigned char *)bytes;
    crc = ~crc;
    for (; n >= 4; n -= 4, p += 4) {
        uint32_t x = crc ^ ((uint32_t)p[0] | (uint32_t)p[1] << 8 |
                            (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
        crc = added[0][x & 15] ^ added[1][x >> 4 & 15] ^ added[2][x >> 8 & 15] ^
              added[3][x >> 12 & 15] ^ added[4][x >> 16 & 15] ^
              added[5][x >> 20 & 15] ^ added[6][x >> 24 & 15] ^
              added[7][x >> 28];
    }
    for (; n > 0; n--, p++) {
        uint32_t x = (crc ^ *p) & 255;
        crc = crc >> 8 ^ added[6][x & 15] ^ added[7][x >> 4];
    }
    return ~crc;
}

/* Returns the CRC of an entry that follows one with the CRC `before`. */
static uint32_t dq_keep_entry_crc(const dq_entry *e, uint32_t before) {
    size_t n = e->op.id_settled ? offsetof(dq_op, id) + sizeof e->op.id
                                : offsetof(dq_op, id);
    size_t key = e->op.key_len > 0 ? e->op.key_len + (size_t)1 : 0;
    n += offsetof(dq_entry, op) - offsetof(dq_entry, size);
    return dq_keep_crc(dq_keep_crc(before, &e->size, n), e + 1,
                       key + e->op.len);
}

/* Make a complete entry valid: store its CRC. */
static void dq_keep_seal(dq_ring *ring, dq_entry *e) {
    uint32_t crc = dq_keep_entry_crc(e, ring->last_crc);
    DQ_FENCE();
    DQ_KEEP_COPY(&e->crc, &crc, sizeof crc);
    DQ_FENCE();
    ring->last_crc = crc;
}

/* --- marks --- */

static dq_image *dq_keep_image(const delayq *q) {
    return (dq_image *)(void *)q->outbox;
}

static dq_ring *dq_keep_ring(const delayq *q, int i) {
    return i == 0 ? &q->outbox->offers : &q->outbox->changes;
}

/* Make the mark of a new image. */
static void dq_keep_describe(const delayq *q, dq_mark *m) {
    const delayq_options *o = &q->options;
    size_t room = o->outbox_size - DQ_KEEP_RINGS - DQ_KEEP_STATE;
    memset(m, 0, sizeof *m);
    m->magic = DQ_KEEP_MAGIC;
    m->version = DQ_KEEP_VERSION;
    m->entry_size = sizeof(dq_entry);
    m->word = sizeof(void *);
    m->wire = q->wire->letter[0];
    m->size = o->outbox_size;
    m->name_len = (uint32_t)strlen(o->name);
    m->name_crc = dq_keep_crc(0, o->name, m->name_len);
    m->ring[0].size = room / 4 * 3 & ~(size_t)15;
    m->ring[1].size = (room - m->ring[0].size) & ~(size_t)15;
}

static uint32_t dq_keep_mark_crc(const dq_mark *m) {
    return dq_keep_crc(0, &m->version,
                       offsetof(dq_mark, crc) - offsetof(dq_mark, version));
}

/* Write the next mark over the older one. */
static void dq_keep_mark(delayq *q) {
    dq_mark *m = &dq_keep_image(q)->mark;
    unsigned char *to = (unsigned char *)q->options.outbox;
    size_t end = offsetof(dq_mark, crc);
    int i;
    m->generation++;
    m->last_order = q->last_order;
    m->call_us = q->outbox->offers.call_us;
    m->own_settled = q->outbox->own_settled;
    memcpy(m->handle_id, q->handle_id, 5);
    for (i = 0; i < 2; i++) {
        dq_ring *ring = dq_keep_ring(q, i);
        m->ring[i].head = ring->head;
        m->ring[i].settled = ring->lane.settled;
        m->ring[i].sent = ring->lane.settled + ring->lane.unsure;
        m->ring[i].crc = ring->popped_crc;
        ring->freed[1] = ring->freed[2];
        ring->freed[2].at = ring->head;
        ring->freed[2].bytes = 0;
        if (!q->options.outbox_sync) ring->freed[0] = ring->freed[1];
    }
    m->crc = dq_keep_mark_crc(m);
    to += m->generation % 2 * DQ_KEEP_SLOT;
    DQ_KEEP_COPY(to + sizeof m->magic, (char *)m + sizeof m->magic,
                 end - sizeof m->magic);
    DQ_FENCE();
    DQ_KEEP_COPY(to + end, &m->crc, sizeof m->crc);
    DQ_FENCE();
    if (memcmp(to, &m->magic, sizeof m->magic) != 0) /* a new image */
        DQ_KEEP_COPY(to, &m->magic, sizeof m->magic);
    DQ_FENCE();
    dq_keep_image(q)->unsynced = 1;
}

/* --- outbox_sync --- */

/* Call outbox_sync, if there is one. Returns 0 if it has failed, else 1. */
static int dq_keep_sync(delayq *q) {
    const delayq_options *o = &q->options;
    int i;
    if (o->outbox_sync && o->outbox_sync(o->user, o->outbox, o->outbox_size))
        return 0;
    for (i = 0; i < 2; i++) {
        dq_ring *ring = dq_keep_ring(q, i);
        ring->freed[0] = ring->freed[1];
        ring->synced = o->outbox_sync ? ring->lane.accepted : UINT64_MAX;
    }
    dq_keep_image(q)->unsynced = 0;
    return 1;
}

/* Sync the changes since the last sync. Each step of a handle calls this. */
static void dq_keep_step(delayq *q) {
    dq_image *image = dq_keep_image(q);
    int64_t now, failed = image->retry_us;
    int i;
    if (!q->options.outbox_sync) return;
    for (i = 0; i < 2; i++)
        if (dq_keep_ring(q, i)->synced < dq_keep_ring(q, i)->lane.accepted)
            image->unsynced = 1;
    if (!image->unsynced) return;
    now = dq_sys_now();
    if (now < failed) return;
    image->retry_us = 0;
    if (!dq_keep_sync(q)) image->retry_us = now + dq_sched_backoff_us(q, 1);
    for (i = 0; i < 2 && (failed || image->retry_us); i++) {
        delayq_lane *lane = &dq_keep_ring(q, i)->lane;
        lane->status = DELAYQ_OK;
        if (image->retry_us == 0) continue;
        lane->status = dq_err_set(
            lane->why, DELAYQ_ERR_IO,
            "options.outbox_sync has failed: ops that it has not written are "
            "not sent");
        dq_err_log_again(q, lane->status, lane->why);
        if (lane->retry_us < image->retry_us) lane->retry_us = image->retry_us;
    }
}

/* Release the image when its handle is closed, but not in a forked child. */
static void dq_keep_leave(delayq *q) {
    if (q->pid != dq_sys_pid()) return;
    dq_keep_step(q);
    dq_keep_image(q)->run = 0;
}

/* --- the resume --- */

/* Returns the fault of a mark, or NULL. `ours` is the mark of a new image. */
static const char *dq_keep_fault(const dq_mark *m, const dq_mark *ours) {
    int i, whole = m->crc == dq_keep_mark_crc(m);
    if (m->magic != ours->magic && !whole)
        return "holds no outbox, or that of a machine with another byte order";
    if (m->version != ours->version)
        return "holds an outbox of another version of delayq: flush it there";
    if (!whole) return "is damaged: none of its marks is whole";
    if (m->word != ours->word || m->entry_size != ours->entry_size)
        return "holds an outbox of another kind of machine: flush it there";
    if (m->size != ours->size)
        return "holds an outbox of another size: give the outbox_size with "
               "which it was made";
    if (m->name_len != ours->name_len || m->name_crc != ours->name_crc)
        return "holds the outbox of another queue";
    if (m->wire != ours->wire)
        return "holds an outbox of another options.wire: flush it with that";
    for (i = 0; i < 2; i++) /* only a forged mark fails here */
        if (m->ring[i].size != ours->ring[i].size ||
            m->ring[i].head > m->ring[i].size || m->ring[i].head % 8 != 0 ||
            m->ring[i].settled >= DQ_KEEP_NUMBER ||
            m->ring[i].sent >= DQ_KEEP_NUMBER || m->generation == 0 ||
            m->generation >= DQ_KEEP_NUMBER ||
            m->own_settled > m->ring[1].settled || m->call_us < 0 ||
            m->call_us > DQ_MAX_DUE * 1000)
            return "is damaged";
    return NULL;
}

/* Set m to the newer mark in the caller's memory or, if it has none, to that of
 * a new image. Returns NULL, or the reason why the memory can't be used. */
static const char *dq_keep_find(const delayq *q, dq_mark *m) {
    const unsigned char *slot = (const unsigned char *)q->options.outbox;
    const char *wrong = NULL, *fault;
    dq_mark ours, found;
    size_t i, n;
    dq_keep_describe(q, &ours);
    *m = ours;
    for (i = 0; i < 2; i++, slot += DQ_KEEP_SLOT) {
        memcpy(&found, slot, sizeof found);
        fault = dq_keep_fault(&found, &ours);
        /* a mark without a magic is new, or was not written completely */
        n = found.magic == 0 ? sizeof found : 0;
        while (n < DQ_KEEP_SLOT && !slot[n]) n++;
        if (fault && found.magic == 0 && n == DQ_KEEP_SLOT) continue;
        if (fault) wrong = fault;
        if (!fault && found.generation > m->generation) *m = found;
    }
    m->magic = ours.magic;
    return m->generation > 0 ? NULL : wrong;
}

/* Check the caller's memory without changing the image. Returns the fault; or
 * sets q->outbox and returns NULL. */
static const char *dq_keep_check(delayq *q) {
    const delayq_options *o = &q->options;
    size_t at = (o->outbox_size - DQ_KEEP_STATE + 15) & ~(size_t)15;
    dq_image *image = (dq_image *)(void *)((unsigned char *)o->outbox + at);
    const char *wrong;
    dq_mark m;
    typedef char check[sizeof(dq_image) <= DQ_KEEP_STATE - 16 ? 1 : -1];
    (void)sizeof(check);
    if ((uintptr_t)o->outbox % 16 != 0)
        return "outbox: with outbox_keep its address is a multiple of 16";
    if (image->run != 0 && image->run == DQ_LOAD(&dq_keep_run) &&
        image->pid == dq_sys_pid())
        return "outbox is in use by another handle of this program, or "
               "a copy of one in use";
    wrong = dq_keep_find(q, &m);
    if (wrong) {
        dq_err_set(q->own.err, DELAYQ_ERR_ARG, "outbox %s%s", wrong,
                   DQ_KEEP_ZEROS);
        return q->own.err;
    }
    memset(image, 0, sizeof *image);
    image->mark = m;
    q->outbox = &image->outbox;
    return NULL;
}

/* Returns 1 if a call can have made this op, whose key and data begin at
 * `text`. The CRC of the entry is right, so only forged entries fail here. */
static int dq_keep_is_sane(const delayq *q, const dq_ring *ring,
                           const dq_op *op, const dq_verb *verb,
                           const char *text) {
    int in_offers = ring == &q->outbox->offers, of_ticket = *verb->word != '\0';
    int keyed = !of_ticket && op->code != 1;
    unsigned char prefix[DQ_ELEM_PREFIX_MAX];
    size_t n, due_len;
    if (keyed != (op->key_len > 0) || op->len > DQ_PAYLOAD_MAX ||
        (uint64_t)(op->delay_ms | op->due_ms | op->key_ttl_ms) > DQ_MAX_DUE)
        return 0;
    if (!of_ticket)
        return in_offers && op->key_len <= 256 &&
               (!keyed || strlen(text) == op->key_len);
    if ((in_offers && !(verb->flags & DQ_OF_OFFERS)) || op->len == 0 ||
        text[op->len - 1] != '\0')
        return 0;
    n = strlen(text) + 1;
    if (verb->key == DQ_KEY_DEAD && n < op->len) /* the `why` of a bury */
        n += strlen(text + n) + 1;
    else if (verb->key == DQ_KEY_DEAD)
        return 0;
    return n == op->len && dq_elem_ticket_prefix(text, prefix, &due_len) > 0;
}

/* Returns the entry at `at` if it is the next one of the ring and fits before
 * `end`, else NULL. Sets the fields that the image does not preserve. */
static dq_entry *dq_keep_next(delayq *q, dq_ring *ring, size_t at, size_t end) {
    dq_entry *e = dq_ring_at(ring, at);
    const dq_verb *verb;
    dq_op *op;
    uint64_t order;
    if (at > end || end - at < sizeof *e) return NULL;
    op = &e->op;
    if (e->number != ring->lane.accepted + 1 || e->size > end - at ||
        e->size < sizeof *e || op->len > e->size ||
        e->size != dq_ring_entry_size(op) || op->code == 0 ||
        op->code > DQ_CODES || op->id_settled > 2 ||
        e->crc != dq_keep_entry_crc(e, ring->last_crc))
        return NULL;
    verb = ring->keep->verbs[op->code];
    if (op->key_len > 0 && ((char *)(e + 1))[op->key_len] != '\0') return NULL;
    if (!dq_keep_is_sane(q, ring, op, verb, (char *)(e + 1))) return NULL;
    op->verb = verb;
    op->key = op->key_len > 0 ? (char *)(e + 1) : NULL;
    op->data = (char *)(e + 1) + (op->key ? op->key_len + 1 : 0);
    op->has_id = op->id_settled > 0;
    op->stands = op->resend = 0;
    op->begun_us = dq_sys_now();
    op->planned_ms = 0;
    order = dq_elem_get_uint(op->id, 8, 1) >> dq_elem_order_shift(q);
    if (op->id_settled && order > q->last_order) q->last_order = order;
    return e;
}

/* Date each offer that was accepted before the server's clock was known, if the
 * call of a later offer has computed a due time from a delay. The delay of the
 * earlier offer counts from that call. Its id is lower than the later id. */
static void dq_keep_date(delayq *q, const dq_ring *ring) {
    int shift = dq_elem_order_shift(q);
    dq_cursor dated, c;
    dq_cursor_begin(&dated, &ring->lane, SIZE_MAX);
    dq_cursor_begin(&c, &ring->lane, SIZE_MAX);
    while (dq_cursor_next(&dated)) {
        const dq_op *k = dated.op;
        uint64_t id = dq_elem_get_uint(k->id, 8, 1);
        if (k->id_settled < 2) continue;
        while (dq_cursor_next(&c) && c.number < dated.number) {
            uint64_t ahead = (uint64_t)(dated.number - c.number) << shift;
            if (c.op->id_settled || !(c.op->verb->flags & DQ_OFFERS) ||
                ahead >= id)
                continue;
            memcpy(c.op->id, k->id, sizeof k->id);
            dq_elem_put_uint(c.op->id, 8, 1, id - ahead);
            c.op->has_id = c.op->stands = 1;
            c.op->planned_ms = c.op->due_ms;
            if (c.op->due_ms == 0)
                c.op->planned_ms = k->due_ms - k->delay_ms + c.op->delay_ms;
        }
    }
}

/* Find the entries of ring number i, beginning at the head that m contains. */
static void dq_keep_walk(delayq *q, dq_ring *ring, const dq_mark *m, int i) {
    delayq_lane *lane = &ring->lane;
    size_t end = ring->size;
    dq_entry *e;
    lane->settled = lane->accepted = m->ring[i].settled;
    ring->head = ring->tail = (size_t)m->ring[i].head;
    ring->last_crc = ring->popped_crc = m->ring[i].crc;
    for (;;) {
        e = dq_keep_next(q, ring, ring->tail, end);
        if (!e && end == ring->size && ring->tail > 0) { /* a new lap begins */
            if (ring->used > 0) end = ring->head;
            e = dq_keep_next(q, ring, 0, end);
            if (e && ring->used == 0) ring->head = ring->tail = 0;
            if (e && ring->used > 0) {
                if (ring->size - ring->tail >= sizeof *e)
                    dq_ring_at(ring, ring->tail)->op.verb = NULL;
                ring->used += ring->size - ring->tail;
                ring->tail = 0;
            }
        }
        if (!e) break;
        lane->accepted++;
        ring->used += e->size;
        ring->tail += e->size;
        ring->last_crc = e->crc;
        if (e->op.verb->flags & DQ_UNCOUNTED) q->outbox->own_accepted++;
    }
    if (m->ring[i].sent > lane->settled)
        lane->unsure = m->ring[i].sent - lane->settled;
    if (lane->unsure > lane->accepted - lane->settled)
        lane->unsure = lane->accepted - lane->settled;
    ring->resumed = lane->accepted;
    dq_keep_date(q, ring);
    ring->dated = ring->told = lane->settled;
    ring->date_at = ring->head;
}

/* Fill the empty rings with the ops of an earlier program's image, or begin a
 * new image. Returns NULL, or the fault. */
static const char *dq_keep_resume(delayq *q) {
    dq_image *image = dq_keep_image(q);
    const dq_mark m = image->mark;
    int run = DQ_LOAD(&dq_keep_run), i;
    if (run == 0) {
        memcpy(&run, q->handle_id, sizeof run); /* random bytes */
        if (run == 0) run = 1;
        DQ_STORE(&dq_keep_run, run);
    }
    image->run = run;
    image->pid = q->pid;
    if (m.generation > 0) {
        q->last_order = m.last_order;
        memcpy(q->handle_id, m.handle_id, 5);
        dq_num_hex(q->id + 1, q->handle_id, sizeof q->handle_id);
        q->outbox->offers.call_us = m.call_us;
        q->outbox->own_settled = q->outbox->own_accepted = m.own_settled;
        for (i = 0; i < 2; i++) dq_keep_walk(q, dq_keep_ring(q, i), &m, i);
        q->outbox->changes.told -= m.own_settled;
    }
    for (i = 0; i < 2; i++) { /* both marks, one after the other */
        dq_keep_mark(q);
        if (!dq_keep_sync(q))
            return "options.outbox_sync has failed: the outbox is unchanged";
    }
    return NULL;
}
/*-----------------------------------------------------------------------------
 * MARK: - Subscriber
 * >>subscriber   the socket for messages from the server
 *
 * Owns conn->sub, the subscriber, once it is logged in, and reads its messages:
 * those on the channels of the handles, and reports of pushes into N, which the
 * server sends by client tracking. Nothing depends on the subscriber, since a
 * handle without it polls. Failures of the subscriber are reported to the log.
 *---------------------------------------------------------------------------*/

static const char *const dq_sub_prefixes[] = {DQ_CHANNEL, DQ_WAITERS, DQ_TURN};

/* Pass a message, or the reply to a subscription, to one handle. */
static void dq_sub_dispatch(delayq *q, const char *kind,
                            const redisReply *channel, const redisReply *text) {
    int message = strcmp(kind, "message") == 0;
    int on = strcmp(kind, "unsubscribe") != 0;
    int64_t number =
        dq_num_due(text->type == REDIS_REPLY_STRING ? text->str : "");
    size_t i, n, more, brace = q->has_tag ? 0 : 1;
    int bit;
    if (strcmp(channel->str, DQ_INVALIDATE) == 0) {
        /* `text` contains the keys that have changed. Nil means all keys. */
        int ours = text->type != REDIS_REPLY_ARRAY;
        for (i = 0; message && !ours && i < text->elements; i++)
            ours = text->element[i]->type == REDIS_REPLY_STRING &&
                   text->element[i]->len == q->name_len &&
                   memcmp(text->element[i]->str, q->name, q->name_len) == 0;
        if (message && ours) dq_waiters_on_push(q);
        return;
    }
    for (bit = DQ_CHANNEL_QUEUE, i = 0; i < 3; i++, bit *= 2) {
        n = strlen(dq_sub_prefixes[i]); /* dq_resp_key adds T to the prefix */
        more = bit == DQ_CHANNEL_OWN ? strlen(q->id) : 0;
        if (channel->len != n + q->name_len + 2 * brace + more ||
            memcmp(channel->str, dq_sub_prefixes[i], n) != 0 ||
            memcmp(channel->str + n + brace, q->name, q->name_len) != 0 ||
            memcmp(channel->str + channel->len - more, q->id, more) != 0)
            continue;
        if (!message)
            dq_waiters_on_channel(q, bit, on);
        else if (bit == DQ_CHANNEL_QUEUE)
            dq_waiters_on_message(q, number);
        else if (bit == DQ_CHANNEL_WAITERS || number == 0)
            dq_waiters_on_call(q, number);
        else
            dq_waiters_on_promotion(q, number);
    }
}

/* The functions that other sections call through conn->subscriber. A program
 * without takes, ticks and waits does not link them. */
typedef struct dq_subscriber {
    void (*step)(delayq_conn *conn);
    void (*track)(delayq *q);
    void (*follow)(delayq *q, int leaves);
} dq_subscriber;

/* Send the commands in the writer. dq_sub_receive reads their replies. */
static delayq_status dq_sub_send(delayq_conn *conn, dq_resp_writer *o) {
    dq_resp_flush(o);
    conn->sub.unwritten = 1;
    return dq_conn_write(conn, &conn->sub);
}

/* Subscribe to the channels that q's role among the waiters needs, or to none
 * if `leaves` is 1. Unsubscribe from the others, unless another handle on the
 * connection needs them. */
static void dq_sub_follow(delayq *q, int leaves) {
    delayq_conn *conn = q->conn;
    int wanted = q->waiter.role == DELAYQ_WAITER_SLEEPER ? 0 : DQ_CHANNEL_QUEUE;
    int before = q->sub_sent, written = 0, bit;
    dq_resp_writer o;
    if (q->will_wait || (q->sub_sent & DQ_CHANNEL_OWN))
        wanted |= DQ_CHANNELS_OF_WAITERS;
    if (leaves) DQ_MARK(sharer_leaves);
    if (leaves) wanted = 0;
    if (conn->sub.state < DELAYQ_SOCKET_OPEN || wanted == before) return;
    q->sub_sent = (unsigned char)wanted;
    dq_resp_begin(&o, conn->sub.c);
    for (bit = DQ_CHANNEL_QUEUE; bit <= DQ_CHANNEL_OWN; bit *= 2) {
        const delayq *h = conn->handles;
        if ((wanted & bit) == (before & bit)) continue;
        while (h && (h == q || !(h->sub_sent & bit) ||
                     !dq_sched_same_queue(h, q)))
            h = h->next;
        if (h && !(wanted & bit) && bit != DQ_CHANNEL_OWN) continue;
        dq_resp_command(&o, 2, wanted & bit ? "SUBSCRIBE" : "UNSUBSCRIBE");
        dq_resp_key(&o, q, dq_sub_prefixes[bit / 2],
                    bit == DQ_CHANNEL_OWN ? q->id : "");
        conn->sub_pending += (wanted & bit) != 0;
        written = 1;
    }
    if (written && dq_sub_send(conn, &o) != DELAYQ_OK)
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
}

/* Close the subscriber after the failure `why`, and report it to the log. */
static void dq_sub_fail(delayq_conn *conn, delayq_status why) {
    DQ_MARK(subscriber_fails);
    if (conn->sub.state < DELAYQ_SOCKET_OPEN) conn->sub.failures++;
    dq_conn_lose(conn, &conn->sub, why);
    dq_err_log_again(conn->owner, dq_err_public(why), conn->err);
}

/* Returns 1 if a refused subscription may succeed later. For example, Redis
 * 8.6 and later refuse subscriptions while the server's memory is full. */
static int dq_sub_again(delayq_status refused) {
    return dq_err_is_transient(refused) || refused == DELAYQ_ERR_FULL;
}

/* Read a message, or the reply to a subscription or ping. If the server refuses
 * a subscription for good, the subscriber keeps its other channels. */
static void dq_sub_receive(delayq_conn *conn, const redisReply *r) {
    delayq *h = conn->handles;
    int replies = r->type == REDIS_REPLY_ERROR ||
                  (r->type == REDIS_REPLY_ARRAY && r->elements == 3 &&
                   r->element[0]->len == 9); /* "subscribe" */
    conn->sub_pinged_us = 0;
    if (replies && conn->sub_pending > 0) conn->sub_pending--;
    if (r->type == REDIS_REPLY_ERROR) {
        DQ_MARK(subscription_refused);
        conn->sub_refused = dq_conn_refused(conn, "listening", r);
        if (!dq_sub_again(conn->sub_refused)) /* else dq_sub_step closes sub */
            dq_err_log_again(conn->owner, conn->sub_refused, conn->err);
    }
    if (r->type != REDIS_REPLY_ARRAY || r->elements != 3 ||
        r->element[0]->type != REDIS_REPLY_STRING ||
        r->element[1]->type != REDIS_REPLY_STRING)
        return;
    if (strcmp(r->element[1]->str, DQ_INVALIDATE) == 0 &&
        strcmp(r->element[0]->str, "subscribe") == 0 && conn->sub_id > 0) {
        conn->tracking = DELAYQ_TRACK_ALLOWED;
        conn->track_retry_us = 0;
    }
    for (; h; h = h->next)
        dq_sub_dispatch(h, r->element[0]->str, r->element[1], r->element[2]);
}

/* After the subscriber's login, subscribe to the channels of all handles. */
static void dq_sub_opened(delayq_conn *conn) {
    delayq_socket *s = &conn->sub;
    redisReply **r = s->greeting.replies;
    const redisReply *id = r[s->greeting.wants - 1];
    dq_resp_writer o;
    delayq *h;
    assert(s->state == DELAYQ_SOCKET_OPEN && s->greeting.got > 0);
    conn->sub_id = id->type == REDIS_REPLY_INTEGER ? id->integer : 0;
    if (conn->sub_id == 0)
        dq_conn_give_up_track(conn, DQ_NEVER,
                              id->type == REDIS_REPLY_ERROR ? id->str
                                                            : "no CLIENT ID");
    dq_conn_free_replies(&s->greeting);
    conn->track_retry_us = 0;
    conn->track_losses = 0;
    conn->sub_refused = DELAYQ_OK;
    conn->sub_pending = 1; /* for DQ_INVALIDATE, below */
    s->active_us = conn->now_us;
    conn->sub_pinged_us = s->active_us;
    for (h = conn->handles; h && s->c; h = h->next) dq_sub_follow(h, 0);
    if (!s->c) return;
    /* sent last, since tracking may begin when this one is confirmed */
    dq_resp_begin(&o, s->c);
    dq_resp_command(&o, 2, "SUBSCRIBE " DQ_INVALIDATE);
    if (dq_sub_send(conn, &o) != DELAYQ_OK) dq_sub_fail(conn, DELAYQ_ERR_IO);
}

/* Returns the time at which q next asks the server to report pushes, or
 * DQ_NEVER if q needs no report, or has to wait for an event first. */
static int64_t dq_sub_track_us(const delayq *q) {
    int64_t when = q->waiter.push_us, until;
    if (q->list_tracked || q->setup.settled < q->setup.accepted ||
        q->conn->tracking == DELAYQ_TRACK_OFF ||
        q->waiter.role == DELAYQ_WAITER_SLEEPER)
        return DQ_NEVER;
    if (when < q->track_us) when = q->track_us;
    dq_blocked_request(q, &q->fetch.lane, &until);
    return until > when ? until : when;
}

static void dq_write_track(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    const delayq_conn *conn = q->conn;
    (void)lane;
    if (conn->tracking != DELAYQ_TRACK_ON) {
        dq_resp_command(o, 7, "CLIENT TRACKING ON REDIRECT");
        dq_resp_int(o, conn->sub_id);
        dq_resp_text(o, "OPTIN");
        dq_resp_text(o, "NOLOOP");
    }
    dq_resp_command(o, 3, "CLIENT CACHING YES");
    dq_resp_command(o, 2, "LLEN");
    dq_resp_arg(o, q->name, q->name_len, 0);
}

#define DQ_TRACK_AGAIN_US (60 * DQ_SECOND_US) /* from a refusal to a retry */

/* Read the replies to tracking. After a refusal, try again in 60 s. After an
 * error that may pass, or a refusal of LLEN, try again sooner, and store it in
 * q->fetch.failure, so that the next tick or take can return it. */
static delayq_status dq_read_track(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    const delayq_exchange *x = &lane->x;
    const redisReply *length;
    int i = 0;
    if (x->got == 0) {
        /* If a server or proxy closes four connections in a row at tracking, or
         * two if nothing else was in flight, give up until sub is reopened. */
        if (x->status != DELAYQ_OK && x->blame &&
            (conn->track_losses += x->blame) >= DQ_TRACK_LOSSES) {
            DQ_MARK(tracking_ends_connections);
            dq_conn_give_up_track(
                conn, DQ_NEVER, "it closes the connection at CLIENT TRACKING");
        }
        return DELAYQ_OK;
    }
    length = x->replies[x->got - 1];
    while (i < x->got && x->replies[i]->type != REDIS_REPLY_ERROR) i++;
    if (i < x->got) {
        delayq_status why =
            (delayq_status)dq_err_lookup(x->replies[i]->str)->status;
        int refused =
            i + 1 < x->got && !dq_err_is_transient(dq_err_public(why));
        /* `lost`: the server doesn't know the client that REDIRECT names. The
         * subscriber was lost, and the handle will notice this soon, or has
         * already replaced it. If the error comes twice, a proxy leads to
         * several servers, which don't know each other's clients. */
        int lost = strstr(x->replies[i]->str, "redirect") != NULL;
        if (lost && q->track_stale) {
            DQ_MARK(redirect_to_former_subscriber);
        } else if (lost && (conn->track_losses += 2) < DQ_TRACK_LOSSES) {
            conn->tracking = DELAYQ_TRACK_OFF;
            DQ_MARK(redirect_to_lost_subscriber);
            conn->track_retry_us = x->read_us + DQ_SECOND_US;
        } else if (refused) {
            DQ_MARK(tracking_refused);
            dq_conn_give_up_track(conn, x->read_us + DQ_TRACK_AGAIN_US,
                                  x->replies[i]->str);
        } else if (why < DQ_NOSCRIPT) { /* the next take handles MOVED */
            DQ_MARK(tracking_disturbed);
            q->fetch.failure =
                dq_err_reply(q->fetch.why, "wait", x->replies[i]);
        }
        dq_sched_on_untracked(q, x->read_us);
    } else if (length->type != REDIS_REPLY_INTEGER) {
        q->fetch.failure = dq_err_bad_reply(q->fetch.why, "wait");
    } else if (conn->tracking != DELAYQ_TRACK_OFF && !q->track_stale) {
        conn->tracking = DELAYQ_TRACK_ON;
        conn->track_losses = conn->unheard_told = 0;
        dq_waiters_on_track(q, length->integer);
    }
    return DELAYQ_OK;
}

static const dq_verb dq_verb_track = {
    "wait", "", NULL, dq_write_track,
    dq_read_track, 1, 0, DQ_READ_ONLY | DQ_RAW,
    DQ_KEY_NONE, 0, NULL, NULL, NULL};

/* If it is time, ask the server to report the next push into N, and read the
 * length of N, which reveals earlier pushes. */
static void dq_sub_track(delayq *q) {
    assert(!q->list_tracked || q->conn->tracking == DELAYQ_TRACK_ON);
    if (dq_sub_track_us(q) > q->conn->now_us) return;
    q->track_stale = 0;
    dq_lane_setup(q, &dq_verb_track);
    assert(q->setup.x.state == DELAYQ_EXCHANGE_SENT);
}

/* Continue to connect the subscriber. If it is open, read its messages, and
 * ping it after a time without input. */
static void dq_sub_step(delayq_conn *conn) {
    int64_t now = conn->now_us;
    const int heard = DQ_CHANNEL_QUEUE | DQ_CHANNEL_OWN;
    delayq_socket *s = &conn->sub;
    const delayq *h = conn->handles;
    delayq_status status;
    dq_resp_writer o;
    if (s->state == DELAYQ_SOCKET_CLOSED) return;
    if (s->state < DELAYQ_SOCKET_OPEN) {
        status = dq_conn_advance(conn, s);
        if (status < DELAYQ_OK) dq_sub_fail(conn, status);
        if (status == DELAYQ_OK) dq_sub_opened(conn);
        return;
    }
    status = dq_conn_pump(conn, s, dq_sub_receive);
    if (status == DELAYQ_OK && dq_sub_again(conn->sub_refused)) {
        DQ_MARK(subscription_refused_for_now);
        status = conn->sub_refused; /* close sub now, and open it again later */
    }
    if (status == DELAYQ_OK && s->state == DELAYQ_SOCKET_OPEN &&
        conn->sub_pending == 0) {
        while (h && !(h->subscribed & heard)) h = h->next;
        if (!h && conn->sub_refused < DELAYQ_OK &&
            conn->tracking == DELAYQ_TRACK_OFF) {
            /* close sub, and open it again later, since an ACL may change */
            DQ_MARK(subscriber_deaf);
            status = dq_err_set(conn->err, conn->sub_refused,
                                "the server refuses all subscriptions");
        } else if (now - s->begun_us > DQ_SECOND_US) {
            s->state = DELAYQ_SOCKET_PROVEN;
            s->failures = s->unproven = s->timeouts = 0;
        }
    }
    if (status == DELAYQ_OK && now >= dq_sched_ping_us(conn)) {
        if (conn->sub_pinged_us > 0) {
            DQ_MARK(subscriber_silent);
            status = dq_err_set(conn->err, DELAYQ_ERR_TIMEOUT,
                                "the subscriber got no reply in time");
        } else {
            DQ_MARK(subscriber_pinged);
            conn->sub_pinged_us = now;
            dq_resp_begin(&o, s->c);
            dq_resp_command(&o, 1, "PING");
            status = dq_sub_send(conn, &o);
        }
    }
    if (status != DELAYQ_OK) {
        dq_sub_fail(conn, status);
    } else if (conn->track_retry_us > 0 && now >= conn->track_retry_us) {
        DQ_MARK(tracking_tried_again);
        assert(conn->tracking == DELAYQ_TRACK_OFF);
        conn->tracking = DELAYQ_TRACK_ALLOWED; /* an ACL may have changed */
        conn->track_retry_us = 0;
    }
}

static const dq_subscriber dq_subscriber_functions = {
    dq_sub_step, dq_sub_track, dq_sub_follow};

/* Begin to connect a closed subscriber to the server of cmd, unless a back-off
 * forbids it. */
static void dq_sub_open(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_status status;
    conn->subscriber = &dq_subscriber_functions;
    if (conn->sub.state != DELAYQ_SOCKET_CLOSED || !conn->known ||
        conn->now_us < conn->sub.retry_us)
        return;
    status = dq_conn_dial(conn, &conn->sub, DQ_CONN_SUB, 1);
    if (status < DELAYQ_OK) dq_sub_fail(conn, status);
    if (status == DELAYQ_OK) dq_sub_opened(conn);
}

/*-----------------------------------------------------------------------------
 * MARK: - Waiting
 * >>waiting   the step of a handle, and the sleep
 *
 * dq_step drives the sockets and all lanes of a handle; dq_sleep is the only
 * function that sleeps. A blocking call repeats both until its work is done or
 * its time is over.
 *---------------------------------------------------------------------------*/

#define DQ_MAX_CONNS 20
#define DQ_IDLE_READ_US 1000 /* the least time between reads of idle sockets */

/* Without waiting, read the input, settle the ops whose replies have come, and
 * send the pending requests. */
static void dq_step(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_lane *lane;
    int64_t now = conn->now_us;
    int idle = now - conn->idle_read_us >= DQ_IDLE_READ_US;
    if (idle) conn->idle_read_us = now;
    if (idle) dq_sys_drain_pipe(conn->pipe[0]);
    if (idle && conn->subscriber) conn->subscriber->step(conn);
    if ((idle || conn->cmd.first) && conn->cmd.state >= DELAYQ_SOCKET_OPEN)
        dq_conn_pump_open(conn);
    if (q->outbox && q->outbox->offers.keep) q->outbox->offers.keep->step(q);
    for (lane = q->lanes; lane; lane = lane->next)
        if (lane->settled < lane->accepted) dq_lane_step(q, lane);
    if (q->waiter.push_us > 0) conn->subscriber->track(q); /* checks the time */
}

/* The events that end a sleep, besides due steps of sockets and lanes. */
typedef enum dq_sleep_for {
    DQ_FOR_REPLY, /* a reply */
    DQ_FOR_FLUSH, /* a reply, delayq_wake, or a message to the subscriber */
    DQ_FOR_ITEMS, /* those of DQ_FOR_FLUSH, and the time of the next transfer */
    DQ_FOR_TAKES  /* those of DQ_FOR_FLUSH, and the time of the next take */
} dq_sleep_for;

/* Returns 1 if q's take or transfer is not settled, or if some of its items are
 * not handed out yet. */
static int dq_fetch_is_busy(const delayq *q) {
    return q->fetch.lane.settled < q->fetch.lane.accepted || q->fetch.reply;
}

/* Returns the time of the next transfer or take, or DQ_NEVER if none is needed,
 * or if an event has to come first. */
static int64_t dq_wait_fetch_us(const delayq *q, dq_sleep_for what) {
    int64_t when = q->next_poll_us, until;
    if (what < DQ_FOR_ITEMS || dq_fetch_is_busy(q)) return DQ_NEVER;
    if (what == DQ_FOR_TAKES && q->ready > 0 && when > q->not_before_us)
        when = q->not_before_us;
    dq_blocked_request(q, &q->fetch.lane, &until);
    return until > when ? until : when;
}

/* Returns the time at which a sleep of q ends unless a socket is ready earlier.
 * Without a connection this is the time of the next step of cmd or of a lane.
 * Invariant: if the time has come, the next dq_step or the next action of the
 * caller changes something, so that a loop can't spin. */
static int64_t dq_wait_next(const delayq *q, dq_sleep_for what) {
    const delayq_conn *conn = q->conn;
    const delayq_lane *lane;
    int64_t next = dq_sched_socket(conn, &conn->cmd), other;
    /* with TLS, input may be left in a buffer, which poll() does not see */
    if (conn->cmd.more || conn->sub.more) return 0;
    for (lane = q->lanes; lane; lane = lane->next) {
        if (lane->settled == lane->accepted) continue;
        dq_blocked(q, lane, &other);
        if (other < next) next = other;
    }
    if (conn->cmd.state < DELAYQ_SOCKET_OPEN || !conn->known) return next;
    other = dq_wait_fetch_us(q, what);
    if (other < next) next = other;
    other = q->waiter.push_us > 0 ? dq_sub_track_us(q) : DQ_NEVER;
    if (other < next) next = other;
    if (conn->sub.state == DELAYQ_SOCKET_CLOSED) return next;
    other = conn->sub.state < DELAYQ_SOCKET_OPEN
                ? dq_sched_socket(conn, &conn->sub)
                : dq_sched_ping_us(conn);
    /* dq_step does not read an idle socket before this time */
    if (other < conn->idle_read_us + DQ_IDLE_READ_US)
        other = conn->idle_read_us + DQ_IDLE_READ_US;
    return other < next ? other : next;
}

/* Returns 1 if a queue before queues[i] uses the same connection. */
static int dq_wait_seen_conn(delayq *const *queues, size_t i) {
    size_t k;
    for (k = 0; k < i; k++)
        if (queues[k]->conn == queues[i]->conn) return 1;
    return 0;
}

/* Busy-wait up to DQ_AWAKE_US for a reply, since a near server replies before
 * the system could wake this process. Returns 1 if there is input. conn->awake
 * is the score of such waits. A success adds 1, up to 32. A failure subtracts 8
 * or, if the score is below 9, begins a pause of up to 100 waits, since the
 * server may need this processor. */
static int dq_wait_awake(const delayq *q, struct pollfd *p, size_t n) {
    delayq_conn *conn = q->conn;
    int64_t end = conn->now_us + DQ_AWAKE_US;
    int found = 0;
    if (DQ_AWAKE_US == 0 || q->outbox || !conn->known || !conn->cmd.first ||
        conn->trip_us > 2 * DQ_AWAKE_US || conn->awake++ < 0)
        return 0;
    if (conn->awake == 1 && dq_sys_processors() < 2) end = 0;
    while (!found && dq_sys_now() < end) found = dq_sys_sleep(p, n, 0) > 0;
    if (!found) DQ_MARK(awake_in_vain);
    if (!found) conn->awake -= conn->awake > 9 ? 9 : 101;
    if (conn->awake > 32) conn->awake = 32;
    return found;
}

/* Sleep until one of the queues can go on, or until `until`. If delayq_wake was
 * called before, sleep only for a reply, as the pipe may have been emptied. */
static void dq_sleep(delayq *const *queues, size_t count, int64_t until,
                     dq_sleep_for what) {
    struct pollfd p[3 * DQ_MAX_CONNS];
    size_t n = 0, i;
    for (i = 0; i < count; i++) {
        delayq_conn *conn = queues[i]->conn;
        int64_t next = dq_wait_next(queues[i], what);
        if (what != DQ_FOR_REPLY && DQ_LOAD(&queues[i]->woken)) return;
        if (next < until) until = next;
        if (i > 0 && dq_wait_seen_conn(queues, i)) continue;
        if (what != DQ_FOR_REPLY) p[n++] = dq_sys_watch(conn->pipe[0], POLLIN);
        if (what != DQ_FOR_REPLY && conn->sub.c)
            p[n++] = dq_conn_watch(&conn->sub);
        if (conn->cmd.c) p[n++] = dq_conn_watch(&conn->cmd);
    }
    assert(n <= sizeof p / sizeof p[0]);
    if (what != DQ_FOR_REPLY || !dq_wait_awake(queues[0], p, n))
        dq_sys_poll_until(p, n, until);
    until = dq_sys_now();
    for (i = 0; i < count; i++) {
        queues[i]->conn->now_us = until;
        if (what != DQ_FOR_REPLY) queues[i]->conn->idle_read_us = 0;
    }
}

/* Returns the local time at which a call that begins now has to end. */
static int64_t dq_wait_limit(const delayq *q) {
    return q->conn->now_us + dq_sched_patience_us(q->conn, q->call_ms);
}

static int64_t dq_wait_deadline(const delayq *q, int64_t timeout_ms) {
    if (timeout_ms < 0 || timeout_ms > DQ_MAX_DUE / 1000) return DQ_NEVER;
    return q->conn->now_us + timeout_ms * 1000;
}

/* Give up a lane's request, since the call that waits for it has timed out. */
static void dq_wait_expire(delayq *q, delayq_lane *lane) {
    delayq_conn *conn = q->conn;
    delayq_socket *s = &conn->cmd;
    DQ_MARK(call_expires);
    lane->tries = DQ_HOPS; /* the request is not sent again */
    if (lane->x.state == DELAYQ_EXCHANGE_SENT)
        dq_conn_lose(conn, s, dq_conn_timeout(conn, s));
    if (lane->x.state == DELAYQ_EXCHANGE_ANSWERED) {
        dq_lane_read(q, lane);
        lane->status = dq_err_public(lane->status);
    } else if (lane->moving_us > 0) {
        lane->status = dq_err_moving(lane->why, lane->verb->name);
    } else {
        DQ_MARK(expires_unsent);
        if (s->state >= DELAYQ_SOCKET_OPEN)
            lane->status =
                dq_err_set(lane->why, DELAYQ_ERR_TIMEOUT,
                           "connected, but no time is left" DQ_NOTHING);
        else
            lane->status = dq_err_with(
                lane->why, dq_conn_late(conn, s, "; the attempt goes on"),
                conn->err);
    }
    dq_lane_end(q, lane);
    if (lane->x.state == DELAYQ_EXCHANGE_NONE && lane->settled < lane->accepted)
        dq_lane_fail(q, lane, 0); /* the other ops were not sent */
}

/* Step and sleep until a lane is settled, at most until the deadline. The
 * deadline is set again, to dq_wait_limit, when ops are settled, and with each
 * MB that is read or written, since a large payload may need longer on a slow
 * line. A request that was sent shortly before the deadline gets two round
 * trips. After the deadline pending input is still read, but at most 64 times,
 * so that a server that sends byte by byte can't block the call for ever. */
static void dq_wait_lane(delayq *q, delayq_lane *lane, int64_t deadline) {
    unsigned traffic = q->conn->traffic;
    uint64_t settled = lane->settled;
    int late = 0;
    while (lane->settled < lane->accepted) {
        const delayq_socket *s = &q->conn->cmd;
        int64_t now = q->conn->now_us, end = 0;
        if (lane->settled != settled ||
            q->conn->traffic - traffic >= 1u << 20) {
            settled = lane->settled;
            traffic = q->conn->traffic;
            DQ_MARK(call_has_more_time);
            end = dq_wait_limit(q);
        } else if (now >= deadline && lane->x.state == DELAYQ_EXCHANGE_SENT) {
            end = lane->x.sent_us + dq_sched_patience_us(q->conn, 0);
        }
        if (end > deadline) deadline = end;
        if (now >= deadline) {
            struct pollfd p;
            if (s->c) p = dq_conn_watch(s);
            if (!s->c || (!s->more && dq_sys_sleep(&p, 1, 0) <= 0) ||
                ++late > 64) {
                dq_wait_expire(q, lane);
                return;
            }
        }
        dq_sleep(&q, 1, deadline, DQ_FOR_REPLY);
        dq_step(q);
    }
}

/* Run a call's lane to its end. Returns its result, whose text is q->err. */
static delayq_status dq_wait_run(delayq *q, delayq_lane *lane) {
    char why[256];
    lane->why = why;
    lane->err = q->err;
    lane->next = q->lanes;
    q->lanes = lane;
    dq_lane_step(q, lane);
    dq_wait_lane(q, lane, dq_wait_limit(q));
    assert(q->lanes == lane && lane->x.state != DELAYQ_EXCHANGE_SENT);
    q->lanes = lane->next;
    return lane->result;
}

/* Returns the status of a call that timed out before it sent its request. */
static delayq_status dq_wait_late(delayq *q) {
    delayq_conn *conn = q->conn;
    delayq_status status =
        dq_conn_late(conn, &conn->cmd, "; the attempt goes on");
    return dq_err_with(q->err, status, conn->err);
}

/* Wait until the deadline for an open connection on which q's queue has been
 * probed. If step_us > 0, each step of connecting that succeeds sets the
 * deadline to step_us after its end, unless an earlier attempt came as far. So
 * silent hosts share the time of one step. */
static delayq_status dq_wait_connected(delayq *q, int64_t deadline,
                                       int64_t step_us) {
    const delayq_conn *conn = q->conn;
    int most = 0;
    for (;;) {
        delayq_status status = dq_lane_ensure(q, q->err);
        int steps = 16 * conn->hops + (int)conn->cmd.state +
                    8 * (conn->cmd.purpose != DQ_CONN_SENTINEL);
        if (status != DELAYQ_EMPTY) return status;
        if (step_us > 0 && steps > most) {
            most = steps;
            deadline = conn->now_us + step_us;
        }
        if (conn->now_us >= deadline) return dq_wait_late(q);
        dq_sleep(&q, 1, deadline, DQ_FOR_REPLY);
        dq_step(q);
    }
}

/* Returns 1 if delayq_wake was called since the last call of this function. */
static int dq_wait_consume_wake(delayq *q) {
    if (!DQ_LOAD(&q->woken)) return 0;
    DQ_STORE(&q->woken, 0);
    return 1;
}

/* Returns 1 if q's last transfer or take has failed, or no server is known. */
static int dq_wait_fails(const delayq *q) {
    return !q->conn->known || q->fetch.lane.status < DELAYQ_OK;
}

/* Report a transient fault of a take or wait to the log, and back off. */
static void dq_wait_ride_out(delayq *q, delayq_status status) {
    if (dq_lane_has_told(q)) return;
    DQ_MARK(fault_ridden_out);
    dq_err_log_again(q, status, q->err);
    dq_sched_on_fault(q);
}
/*-----------------------------------------------------------------------------
 * MARK: - Taking
 * >>taking   transfers and takes
 *
 * Owns q->fetch, the one transfer or take of a handle, with the items of its
 * reply, and interprets the replies. All calls use q->fetch in the same way.
 * Calls that must not wait leave the reply to a later call.
 *---------------------------------------------------------------------------*/

/* --- write --- */

/* Write the two parts of a ticket: the due time, and the element's prefix. */
static void dq_write_ticket(dq_resp_writer *o, const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n = dq_elem_ticket_prefix(text, key, &due_len);
    dq_resp_arg(o, text, due_len, 0);
    dq_resp_arg(o, key, n, 0);
}

/* Write three keys: the zset; the ready list or the stream; the retry list or
 * the mirror. */
static void dq_write_three_keys(dq_resp_writer *o, const delayq *q) {
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->wire->stream)
        dq_resp_key(o, q, DQ_STREAM, "");
    else
        dq_resp_arg(o, q->name, q->name_len, 0);
    dq_resp_key(o, q, q->wire->third_key, "");
}

/* Write the keys and arguments of a transfer. A take adds more arguments. */
static void dq_write_transfer(dq_resp_writer *o, delayq *q,
                              const delayq_lane *lane) {
    int64_t horizon_ms = q->options.max_wait_ms; /* negated if overdue */
    dq_write_three_keys(o, q);
    dq_resp_key(o, q, DQ_DEAD, "");
    dq_resp_key(o, q, DQ_PAUSED, "");
    if (lane->as_waiter) dq_resp_key(o, q, DQ_WAITERS, "");
    dq_resp_end_keys(o, q);
    dq_resp_text(o, q->wire->letter);
    dq_resp_int(o, q->options.max_late_ms > 0 ? 0 : q->options.batch);
    dq_resp_int(o, q->fetch.overdue ? -horizon_ms : horizon_ms);
}

static void dq_write_take(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    const delayq_fetch *f = &q->fetch;
    unsigned char id_rest[6] = {0};
    dq_write_transfer(o, q, lane);
    dq_resp_int(o, (int64_t)f->max);
    dq_resp_text(o, q->retry_turn ? "retry" : "ready");
    if (q->options.lease_ms == 0 && q->options.max_attempts == 0 && !f->acks &&
        q->options.max_late_ms == 0 && !lane->as_waiter)
        return;
    dq_resp_int(o, q->options.max_attempts);
    dq_resp_int(o, q->options.lease_ms);
    if (f->acks) {
        dq_write_ticket(o, f->ack.text);
    } else {
        dq_resp_text(o, "");
        dq_resp_text(o, "");
    }
    dq_resp_int(o, (int64_t)f->order);
    memcpy(id_rest, q->handle_id, 5);
    /* The script makes a lease's new id from the order and this rest. With the
     * old wire it uses its own time instead of the order. There bit 0x80 makes
     * the id differ from an offer's of the same microsecond. */
    if (q->wire->old_first)
        dq_resp_int(o, dq_elem_old_id_low(q) | 0x80);
    else
        dq_resp_arg(o, id_rest, sizeof id_rest, 0);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_int(o, q->options.max_late_ms);
    if (!lane->as_waiter) return;
    dq_resp_text(o, q->id);
    dq_resp_text(o, q->will_wait ? "1" : "0");
    dq_resp_key(o, q, DQ_TURN, "");
    dq_resp_text(o, dq_waiters_claim(q));
    /* a constant of this handle, by which the script chooses the standbys */
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

/* Pass the numbers of a reply to the schedule and the waiters. */
static void dq_fetch_apply(delayq *q, const delayq_lane *lane,
                           const int64_t *n) {
    const redisReply *dues = lane->reply->element[DQ_AT_DUES];
    int takes = q->fetch.takes;
    int empty = lane->reply->elements <= DQ_AT_DUES + 1;
    /* pushes concern a tick only if the program takes without waiting */
    int unheard = (takes || q->looked) && !q->wire->stream &&
                  q->conn->tracking == DELAYQ_TRACK_OFF;
    /* The list has changed if items were moved into it, or if one was taken
     * from it. For such an item `dues` has 'r' instead of a due time. */
    int taken = n[DQ_AT_MOVED] > 0 || strchr(dues->str, 'r') != NULL;
    q->counts.moved += (uint64_t)n[DQ_AT_MOVED];
    q->counts.died += (uint64_t)n[DQ_AT_DEAD];
    dq_sched_on_reply(q, &lane->x, n[DQ_AT_NEXT], n[DQ_AT_READY], unheard,
                      taken);
    if (takes)
        dq_waiters_on_reply(q, lane->x.sent_us, n[DQ_AT_NEXT], !empty,
                            lane->as_waiter ? n[DQ_AT_ROLE] : -1);
    if (n[DQ_AT_FOREIGN] > 0) q->foreign = (unsigned char)n[DQ_AT_FOREIGN];
}

/* Keep the items of a reply for dq_fetch_hand_out. Returns 0 if there are more
 * than requested, or if the reply in a broadcast has another form. */
static int dq_fetch_keep(delayq *q, delayq_lane *lane, int64_t us) {
    delayq_fetch *f = &q->fetch;
    redisReply *r = lane->reply;
    size_t stream = q->wire->stream;
    f->step = 1 + stream;
    f->at = DQ_AT_DUES + f->step;
    f->us = us;
    f->due = r->element[DQ_AT_DUES]->str;
    if (r->elements < f->at || (r->elements - f->at) % f->step != 0) return 0;
    f->got = (r->elements - f->at) / f->step;
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
    if (f->got == 0) return 1;
    f->reply = r;
    lane->reply = NULL;
    return 1;
}

/* Returns the status of a ticket's op. `done` is 1 if its item was there. */
static delayq_status dq_ticket_status(const delayq_lane *lane, int done) {
    if (done) return DELAYQ_OK;
    if (!lane->resends) return DELAYQ_GONE;
    DQ_MARK(ticket_outcome_unknown);
    return dq_err_set(lane->why, DELAYQ_ERR_UNKNOWN,
                      "%s: sent twice, and the item is no longer there: it was "
                      "done, or the lease had ended",
                      lane->verb->name);
}

/* Read the reply to a transfer or take. */
static delayq_status dq_read_fetch(delayq *q, delayq_lane *lane) {
    delayq_fetch *f = &q->fetch;
    int64_t n[DQ_NUMBERS];
    const redisReply *r = lane->reply, *rest;
    int fine;
    assert(!f->reply && (!f->acks || f->ack.text[0]));
    memset(n, 0, sizeof n);
    fine = r->elements > DQ_AT_DUES && dq_resp_integers(r, n, DQ_AT_READY) &&
           r->element[DQ_AT_DUES]->type == REDIS_REPLY_STRING &&
           (n[DQ_AT_ACKED] & ~1) == 0;
    rest = fine ? r->element[DQ_AT_READY] : NULL;
    if (fine && rest->type != REDIS_REPLY_INTEGER)
        fine =
            dq_resp_integers(rest, n + DQ_AT_READY, DQ_NUMBERS - DQ_AT_READY);
    if (fine) {
        dq_fetch_apply(q, lane, n);
        if (f->acks) {
            f->acked = dq_ticket_status(lane, n[DQ_AT_ACKED] != 0);
            if (f->lost && f->acked != DELAYQ_OK)
                f->acked = DELAYQ_ERR_UNKNOWN;
            q->counts.acked += f->acked == DELAYQ_OK;
            f->ack.text[0] = '\0';
        }
        fine = dq_fetch_keep(q, lane, n[DQ_AT_US]);
    }
    if (!fine) return dq_lane_reject(q, lane);
    if (n[DQ_AT_FOREIGN] > 0 && f->got == 0)
        f->failure = dq_err_wire(q, f->why);
    return DELAYQ_OK;
}

/* Record the failure of a take or transfer, and back off. */
static void dq_fetch_fail(delayq *q, delayq_lane *lane) {
    delayq_fetch *f = &q->fetch;
    delayq_status status = lane->status;
    DQ_MARK(fetch_failed);
    if (f->acks) f->acked = f->lost ? DELAYQ_ERR_UNKNOWN : status;
    f->lost |= f->takes && status == DELAYQ_ERR_UNKNOWN;
    f->failure = status;
    assert(status < DELAYQ_OK);
    dq_sched_on_fault(q);
}

/* Returns 1 if an ACL forbids the waiters' key, so that the take is sent again
 * without this key. The handle then waits as if it were alone. */
static int dq_fetch_reform(delayq *q, delayq_lane *lane) {
    if (lane->status != DELAYQ_ERR_AUTH || !lane->as_waiter) return 0;
    lane->as_waiter = 0;
    dq_waiters_on_leave(q, 1);
    return 1;
}

/* --- the verbs of takes, and the wires --- */

#if defined(DELAYQ_STATIC) && !defined(__cplusplus)
#define DQ_CONSTANT static const struct
#else
#define DQ_CONSTANT const struct
#endif

static const struct delayq_wire_kind dq_wire_native = {
    "n", 16, 0, 0, 0, DQ_RETRY, NULL, NULL};

#define DQ_FETCH_VERB(id, name, script, write, flags)                \
    DQ_VERB(id, name, "", script, write, dq_read_fetch, 1, 0, flags, \
            DQ_KEY_NONE, 0, NULL, dq_fetch_reform, dq_fetch_fail)
DQ_FETCH_VERB(take, "take", take, dq_write_take, DQ_TAKES);
DQ_FETCH_VERB(tick, "tick", tick, dq_write_transfer, 0);
DQ_FETCH_VERB(take_redisson, "take", take_redisson, dq_write_take, DQ_TAKES);
DQ_FETCH_VERB(tick_redisson, "tick", tick_redisson, dq_write_transfer, 0);
DQ_FETCH_VERB(take_stream, "take", broadcast, dq_write_broadcast, DQ_TAKES);
DQ_FETCH_VERB(tick_stream, "tick", broadcast, dq_write_broadcast, 0);

DELAYQ_CONSTANTS_BEGIN
DQ_CONSTANT delayq_wire_kind delayq_wire_redisson = {
    "r", 16, 0, 1, 0, DQ_MIRROR, &dq_verb_take_redisson, &dq_verb_tick_redisson,
};
DQ_CONSTANT delayq_wire_kind delayq_wire_redisson_old = {
    "o", 8, 1, 1, 0, DQ_MIRROR, &dq_verb_take_redisson, &dq_verb_tick_redisson};
DQ_CONSTANT delayq_wire_kind delayq_wire_broadcast = {
    "b", 16, 0, 0, 1, DQ_RETRY, &dq_verb_take_stream, &dq_verb_tick_stream};
DELAYQ_CONSTANTS_END

/* Returns the verb that moves the due items of q's queue. */
static const dq_verb *dq_transfer_verb(const delayq *q) {
    return q->wire->tick ? q->wire->tick : &dq_verb_tick;
}

static const dq_verb *dq_take_verb(const delayq *q) {
    return q->wire->take ? q->wire->take : &dq_verb_take;
}

/* --- items --- */

/* Returns 1 if fetched items were not handed out yet. */
static int dq_fetch_has_items(const delayq *q) {
    return q->fetch.reply != NULL;
}

/* Read an item of a broadcast: its position in the stream, and its payload. */
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
    if (raw && q->wire->mirror) item->attempt = 0; /* the list has no counts */
    return 1;
}

/* Hand out up to max items, and record how late each is. If one is malformed,
 * hand out none, and drop the rest of the reply. */
static delayq_status dq_fetch_hand_out(delayq *q, delayq_item *items,
                                       size_t max, size_t *count) {
    delayq_fetch *f = &q->fetch;
    *count = 0;
    while (*count < max && dq_fetch_has_items(q)) {
        delayq_item *item = &items[*count];
        redisReply *const *r = f->reply->element + f->at;
        int fine;
        memset(item, 0, sizeof *item);
        if (*f->due >= '0' && *f->due <= '9') item->due_ms = dq_num_due(f->due);
        fine = f->step > 1 ? dq_item_of_stream(item, r)
                           : dq_item_of_element(q, item, r[0], *f->due == 'r');
        if (!fine || !*f->due) {
            DQ_MARK(item_malformed);
            memset(items, 0, (*count + 1) * sizeof *items);
            *count = 0;
            dq_resp_free(&q->fetch.reply);
            return dq_err_bad_reply(q->err, "take");
        }
        q->counts.taken++;
        q->counts.redelivered += item->attempt > 1;
        item->late_us = item->due_ms > 0 ? f->us - item->due_ms * 1000 : -1;
        if (item->due_ms > 0) {
            int bucket = 0;
            if (item->late_us < 0) item->late_us = 0;
            while (bucket < 23 && item->late_us >= (int64_t)1 << bucket)
                bucket++;
            q->counts.lateness[bucket]++;
        }
        ++*count;
        f->at += f->step;
        f->due += strcspn(f->due, " ");
        f->due += *f->due == ' ';
        if (f->at == f->reply->elements) {
            assert(!q->reply); /* dq_take has freed q->reply */
            q->reply = f->reply;
            f->reply = NULL;
        }
    }
    return *count > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

/* Give back the fetched items whose lease has ended before they were handed
 * out, so that these attempts don't count, and report this to the log. Other
 * handles may have the items by now. */
static void dq_fetch_expire(delayq *q) {
    delayq_fetch *f = &q->fetch;
    delayq_item item;
    char text[256];
    int n = 0;
    for (; f->at < f->reply->elements; f->at++, n++)
        if (f->release &&
            dq_item_of_element(q, &item, f->reply->element[f->at], 0))
            f->release(q, item.ticket.text);
    DQ_MARK(fetched_too_early);
    dq_resp_free(&q->fetch.reply);
    dq_err_set(
        text, DELAYQ_ERR_TIMEOUT,
        "take: %d fetched items were not taken before their lease ended: "
        "take more often, or raise options.lease_ms",
        n);
    dq_err_log(q, DELAYQ_ERR_TIMEOUT, text);
}

/* --- transfer and take --- */

/* Send a transfer or take. */
static void dq_fetch_send(delayq *q, const dq_verb *verb, size_t max) {
    delayq_fetch *f = &q->fetch;
    delayq_lane *lane = &f->lane;
    assert(lane->settled == lane->accepted && !f->reply);
    f->takes = (verb->flags & DQ_TAKES) != 0;
    f->acks = f->takes && f->ack.text[0] != '\0';
    f->max = max;
    f->failure = DELAYQ_OK;
    lane->array_verb = verb;
    lane->as_waiter = f->takes && dq_waiters_in_take(q);
    if (q->options.lease_ms > 0) f->order = dq_elem_next_order(q, max + 1);
    if (f->takes) q->retry_turn = !q->retry_turn;
    lane->accepted++;
    f->overdue = q->next_poll_us < q->conn->cmd.active_us;
    dq_sched_on_sent(q);
    dq_lane_step(q, lane);
}

/* Let a loop's takes request `want` items or more, but at most a batch. */
static void dq_fetch_want(delayq *q, size_t want) {
    size_t batch = (size_t)q->options.batch;
    if (want > batch) want = batch;
    if (q->fetch.want < want) q->fetch.want = want;
}

/* Returns 1 if a take should be sent, because there may be an item, an ack has
 * to be sent, or a call that waits has to connect. */
static int dq_take_is_due(const delayq *q, int waits) {
    const delayq_conn *conn = q->conn;
    if (dq_fetch_is_busy(q)) return 0;
    if (q->fetch.ack.text[0]) return 1;
    if (waits && (!conn->known || !q->probed ||
                  conn->sub.state == DELAYQ_SOCKET_CLOSED))
        return 1;
    return dq_wait_fetch_us(q, DQ_FOR_TAKES) <= conn->now_us;
}

/* Do one step of a call that takes: send a take if it is due, and hand out the
 * items of its reply. If there are none and `listens` is 1, ask the server to
 * report new items. */
static delayq_status dq_take_step(delayq *q, delayq_item *items, size_t max,
                                  size_t *count, int waits, int listens) {
    delayq_fetch *f = &q->fetch;
    int64_t limit = dq_wait_limit(q);
    delayq_status status;
    *count = 0;
    if (!dq_fetch_has_items(q)) dq_step(q);
    if (q->conn->now_us >= f->lease_end_us && dq_fetch_has_items(q))
        dq_fetch_expire(q);
    if (q->foreign && !dq_fetch_has_items(q)) return dq_err_wire(q, q->err);
    /* a tick or wait may have left a request in flight */
    if (waits) dq_wait_lane(q, &f->lane, limit);
    if (!waits) dq_fetch_want(q, max);
    if (dq_take_is_due(q, waits))
        dq_fetch_send(q, f->take, waits ? max : f->want);
    if (waits) dq_wait_lane(q, &f->lane, limit);
    dq_sub_follow(q, 0);
    status = f->failure; /* if the call doesn't wait, a tick returns it too */
    if (waits) f->failure = DELAYQ_OK;
    if (status < DELAYQ_OK && (waits || !dq_err_is_transient(status)) &&
        !dq_fetch_has_items(q))
        return dq_err_with(q->err, status, f->why);
    status = dq_fetch_hand_out(q, items, max, count);
    if (!waits && status == DELAYQ_OK && !dq_fetch_has_items(q) &&
        f->got >= f->want)
        dq_fetch_want(q, 2 * f->want); /* all were taken, so request more */
    if (status != DELAYQ_EMPTY || !listens) return status;
    dq_sub_open(q);
    dq_sub_track(q);
    return DELAYQ_EMPTY;
}

/* If the next poll is due, move the due items. With an outbox, fetch them
 * instead if the caller is delayq_wait, or after a take without a timeout. If
 * the poll is not due and `listens` is 1, ask the server to report pushes. */
static void dq_tick_fetch(delayq *q, int listens) {
    delayq_fetch *f = &q->fetch;
    int ahead = q->outbox && f->taken && !q->foreign;
    if (dq_lane_refuses(q)) return;
    if (dq_wait_fetch_us(q, ahead ? DQ_FOR_TAKES : DQ_FOR_ITEMS) <=
        q->conn->now_us)
        dq_fetch_send(q, ahead ? f->take : dq_transfer_verb(q),
                      ahead ? f->want : 0);
    else if (listens && !dq_fetch_is_busy(q) && (ahead || q->ready == 0))
        dq_sub_track(q);
}

/* Connect, step all lanes, and move the due items. If `waits` is 1, wait for
 * the connection and the transfer. Returns OK, EMPTY if the connection needs
 * more time, or the failure of the connection or the transfer. */
static delayq_status dq_turn(delayq *q, int listens, int waits) {
    delayq_fetch *f = &q->fetch;
    int64_t deadline = dq_wait_limit(q);
    int left = dq_fetch_has_items(q); /* items not taken since the last turn */
    delayq_status ready =
        waits ? dq_wait_connected(q, deadline, 0) : dq_lane_ensure(q, q->err);
    delayq_status status = DELAYQ_OK;
    if (ready < DELAYQ_OK) dq_lane_note(q, ready, q->err);
    dq_step(q);
    if (ready == DELAYQ_OK && (f->failure == DELAYQ_OK || !waits)) {
        dq_sub_open(q);
        /* with ready items, delayq_wait leaves the transfer to the take */
        if (waits || q->outbox || !dq_sched_has_ready(q))
            dq_tick_fetch(q, listens);
        if (waits && f->lane.settled < f->lane.accepted) {
            dq_wait_lane(q, &f->lane, deadline);
            if (listens && f->failure == DELAYQ_OK && q->ready == 0 &&
                q->conn->now_us < q->next_poll_us)
                dq_sub_track(q);
        }
    }
    if (f->taken && left) DQ_MARK(fetches_fewer);
    if (f->taken && left && f->want > 1) f->want /= 2;
    f->taken = 0;
    if (ready < DELAYQ_OK) return ready;
    if (f->failure < DELAYQ_OK) {
        status = dq_err_with(q->err, f->failure, f->why);
        f->failure = DELAYQ_OK;
    }
    return status < DELAYQ_OK ? status : ready;
}

/* Returns OK, or the failure of a ring's last request or outbox_sync. */
static delayq_status dq_outbox_failure(delayq *q) {
    const delayq_lane *lane;
    for (lane = q->lanes; lane; lane = lane->next)
        if (lane->ring && lane->status < DELAYQ_OK)
            return dq_err_with(q->err, lane->status, lane->why);
    return DELAYQ_OK;
}

/* Do one turn of delayq_wait, without waiting. Returns OK if there is something
 * to take, EMPTY if not, or a failure. Failures of the ops in an outbox are
 * left to the next tick. */
static delayq_status dq_wait_turn(delayq *q) {
    delayq_status status;
    int any;
    if (q->outbox) q->fetch.taken = 1;
    status = dq_turn(q, !q->foreign, 0);
    if (status < DELAYQ_OK) return status;
    if (q->foreign) return dq_err_wire(q, q->err);
    any = q->outbox ? dq_fetch_has_items(q) : dq_sched_has_ready(q);
    return any ? DELAYQ_OK : DELAYQ_EMPTY;
}
/*-----------------------------------------------------------------------------
 * MARK: - Handles
 * >>handles   open and close; the path of an op; ticks, takes, waits
 *
 * Owns the options, the layout of the outbox's memory, and the check of handles
 * at the start of a call. A call such as an offer or ack checks its arguments,
 * makes ops, and lets dq_do put the ops into the outbox or send them.
 *---------------------------------------------------------------------------*/

/* --- checks --- */

/* Check the handle at the start of each call that may send a request, and read
 * the clock. `wrong` is NULL, or the fault of the call's arguments. */
static delayq_status dq_check(delayq *q, const char *wrong) {
    if (!q) return DELAYQ_ERR_ARG;
    if (q->open != DQ_OPEN)
        wrong = "the handle is closed";
    else if (!q->conn)
        wrong = "the handle whose connection this one shares is closed";
    else if (q->pid != dq_sys_pid())
        wrong = "the handle was opened before a fork(): open one of your own";
    q->err[0] = '\0';
    if (wrong) return dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
    q->conn->now_us = dq_sys_now();
    return DELAYQ_OK;
}

static int dq_is_stream(const delayq *q) {
    return q && q->open == DQ_OPEN && q->wire->stream;
}

static const char *dq_wrong_timeout(int64_t timeout_ms) {
    return timeout_ms < DELAYQ_FOREVER ? "timeout_ms is below -1" : NULL;
}

/* --- accepting and running ops --- */

/* Returns 1 if this handle may have offered the item of a ticket. An id of 8
 * bytes does not name the handle, so the result is 1. */
static int dq_outbox_is_own(const delayq *q, const char *ticket) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len, n = dq_elem_ticket_prefix(ticket, key, &due_len);
    return n < 17 ? n == 8 : memcmp(key + 9, q->handle_id, 5) == 0;
}

/* Put an op of a call's lane into its ring. If the caller wants the ticket, or
 * the ring is kept, fix the due time now, if the server's clock is known. */
static delayq_status dq_outbox_accept(delayq *q, delayq_lane *lane,
                                      const dq_cursor *c, int wants_ticket) {
    dq_op *op = c->op, *added;
    const char *name = op->verb->name;
    int flags = op->verb->flags, dates = 0;
    dq_ring *ring = &q->outbox->changes;
    if (flags & DQ_OFFERS ||
        ((flags & DQ_OF_OFFERS) && (op->key || dq_outbox_is_own(q, op->data))))
        ring = &q->outbox->offers;
    if ((flags & DQ_RENAMES) && q->conn->long_size == 0)
        return dq_err_set(q->err, DELAYQ_ERR_IO,
                          "%s: not connected yet, and the server's clock is "
                          "not known; nothing has happened",
                          name);
    memcpy(op->life, q->handle_id + 5, sizeof op->life);
    if (q->conn->clock_number > 0 && (flags & DQ_OFFERS) &&
        (wants_ticket || ring->keep)) {
        dq_ring_date_all(q, ring);
        dates = ring->dated == ring->lane.accepted;
        if (dates) dq_ring_date(q, ring, op);
        op->id_settled = (unsigned char)(dates + (dates && op->due_ms == 0));
        if (op->id_settled > 1) op->due_ms = op->planned_ms;
    }
    if ((flags & DQ_RENAMES) ||
        (ring->keep && op->due_ms == 0 && !dates && q->conn->clock_number > 0))
        op->due_ms = dq_due_after(q, op->begun_us, op->delay_ms);
    lane->due_ms = op->due_ms;
    if (op->len > ring->size || dq_ring_entry_size(op) > ring->size / 2)
        return dq_err_set(q->err, DELAYQ_ERR_ARG,
                          "%s: larger than half of its ring, which has %lu "
                          "bytes: enlarge options.outbox_size",
                          name, (unsigned long)ring->size);
    added = dq_ring_add(ring, op);
    if (!added && ring->freed[0].bytes > 0) {
        ring->keep->mark(q); /* which frees the space of settled ops */
        added = dq_ring_add(ring, op);
    }
    if (!added) {
        DQ_MARK(outbox_full);
        return dq_err_set(q->err, DELAYQ_ERR_FULL,
                          "%s: the outbox is full; nothing has happened", name);
    }
    q->outbox->own_accepted += (flags & DQ_UNCOUNTED) != 0;
    ring->dated += (uint64_t)dates;
    if (dates) ring->date_at = ring->tail;
    if (dates && wants_ticket)
        dq_elem_id_ticket(&c->message->ticket, op->due_ms, op->id,
                          q->wire->id_len);
    return DELAYQ_OK;
}

/* Do the ops of a call's lane. Without an outbox, run the lane to its end. With
 * an outbox, add the ops to it in order while there is room, and send them if
 * nothing is in flight. A loop's acks are left to its next take or tick. If the
 * first ack were sent at once, the rest would have to wait for its reply. */
static delayq_status dq_do(delayq *q, delayq_lane *lane, int wants_tickets) {
    dq_outbox *b = q->outbox;
    delayq_status stop = DELAYQ_OK; /* < OK: the status of all later ops */
    dq_cursor c;
    if (!b) return dq_wait_run(q, lane);
    dq_cursor_begin(&c, lane, SIZE_MAX);
    while (dq_cursor_next(&c)) {
        delayq_status status = stop;
        if (stop == DELAYQ_OK)
            status = dq_outbox_accept(q, lane, &c, wants_tickets);
        if (status == DELAYQ_ERR_FULL || !c.message) stop = status;
        if (c.message) c.message->status = status;
        if (lane->items) lane->items[c.i].acked = status;
        if (status != DELAYQ_OK && lane->result != DELAYQ_ERR_FULL &&
            (lane->result == DELAYQ_OK || status == DELAYQ_ERR_FULL))
            lane->result = status;
    }
    if (b->changes.lane.x.state == DELAYQ_EXCHANGE_NONE && !q->fetch.taken)
        dq_lane_step(q, &b->changes.lane);
    if (b->offers.lane.x.state == DELAYQ_EXCHANGE_NONE)
        dq_lane_step(q, &b->offers.lane);
    return lane->result;
}

/* --- open and close --- */

/* Check a number among the options, and replace 0 with its default, `usual`. */
#define DQ_RANGE(field, most, usual, text)                     \
    if (o->field < 0 || o->field > (most)) return #field text; \
    if (o->field == 0) o->field = (usual)
#define DQ_TOO_LONG " is negative or too long"

/* Check the options, set defaults and call_ms. Returns NULL, or the fault. */
static const char *dq_check_options(delayq *q) {
    delayq_options *o = &q->options;
    int mirror = q->wire->mirror, stream = q->wire->stream;
    size_t len = o->name ? strlen(o->name) : 0;
    const delayq *owner = o->share;
    if (len < 1 || len > 512) return "name: 1 to 512 bytes";
    if (!o->tls_cert != !o->tls_key)
        return "tls_cert and tls_key: both or none";
    if (owner && (owner->open != DQ_OPEN || owner->conn != &owner->own))
        return "share: not an open handle with a connection of its own";
    if (owner && owner->pid != dq_sys_pid())
        return "share: opened before a fork()";
    if (owner && (o->url || o->connect || o->resolve || o->connect_timeout_ms ||
                  o->io_timeout_ms || o->tls_ca || o->tls_cert))
        return "share: no url, tls, connect, resolve, timeouts";
    if (owner) o->connect_timeout_ms = owner->options.connect_timeout_ms;
    if (owner) o->io_timeout_ms = owner->options.io_timeout_ms;
    DQ_RANGE(batch, 1000, 100, ": up to 1,000");
    DQ_RANGE(max_wait_ms, 86400000, 10000, ": up to a day");
    DQ_RANGE(poll_ms, 86400000, 0, ": up to a day");
    DQ_RANGE(io_timeout_ms, 3600000, 3000, ": up to an hour");
    q->call_ms = o->io_timeout_ms;
    if (o->connect_timeout_ms > q->call_ms) q->call_ms = o->connect_timeout_ms;
    if (owner) q->call_ms = owner->call_ms;
    DQ_RANGE(connect_timeout_ms, 3600000, 2000, ": up to an hour");
    DQ_RANGE(reconnect_max_ms, 3600000, 5000, ": up to an hour");
    DQ_RANGE(lease_ms, DQ_MAX_DUE / 4, 0, DQ_TOO_LONG);
    DQ_RANGE(max_attempts, 65535, 0, ": up to 65,535");
    DQ_RANGE(max_late_ms, DQ_MAX_DUE / 4, 0, DQ_TOO_LONG);
    DQ_RANGE(backoff_ms, DQ_MAX_DUE, 1000, DQ_TOO_LONG);
    DQ_RANGE(backoff_max_ms, DQ_MAX_DUE / 4, 300000, DQ_TOO_LONG);
    DQ_RANGE(broadcast_keep, DQ_MAX_DUE, 10000, " is negative or too large");
    if (o->max_attempts > 0 && mirror)
        return "max_attempts: not with a Redisson wire, since attempts "
               "restart whenever Redisson moves an item";
    if (o->max_late_ms > 0 && (mirror || stream))
        return "max_late_ms: not with a Redisson wire or a broadcast, "
               "which move items before they are taken";
    if (o->lease_ms > 0 && stream) return "wire: DELAYQ_BROADCAST has no lease";
    return NULL;
}

/* Set the position at which a broadcast's reader begins. A broadcast has no
 * list to track. Returns NULL, or the fault. */
static const char *dq_check_cursor(delayq *q) {
    const char *after = q->options.broadcast_after;
    if (q->wire->stream) q->track_us = DQ_NEVER;
    if (!after) {
        after = q->wire->stream ? "$" : "";
    } else if (!*after) {
        after = "0-0";
    } else {
        size_t ms = strspn(after, "0123456789");
        size_t seq =
            after[ms] == '-' ? strspn(after + ms + 1, "0123456789") : 0;
        if (ms < 1 || ms > 20 || seq < 1 || seq > 20 || after[ms + 1 + seq])
            return "broadcast_after: the ticket text of an item";
    }
    memcpy(q->cursor, after, strlen(after) + 1);
    return NULL;
}

static void dq_outbox_add_ring(delayq *q, dq_ring *ring, unsigned char *data,
                               size_t size) {
    ring->data = data;
    ring->size = size;
    ring->keep = q->options.outbox_keep;
    ring->synced = UINT64_MAX;
    dq_lane_begin(q, &ring->lane, &dq_policy_ring, NULL, 0);
    ring->lane.ring = ring;
    ring->lane.why = ring->why;
}

#define DQ_OUTBOX_MIN 8192

/* Lay out the outbox in the caller's memory. Returns NULL, or the fault. */
static const char *dq_outbox_init(delayq *q) {
    const delayq_options *o = &q->options;
    unsigned char *p = (unsigned char *)o->outbox, *end;
    const char *wrong = NULL;
    dq_outbox *b;
    size_t room;
    if (!o->outbox && (o->outbox_size > 0 || o->outbox_keep))
        return "outbox_size and outbox_keep: without outbox";
    if (o->outbox_sync && !o->outbox_keep)
        return "outbox_sync: without outbox_keep";
    if (!o->outbox) return NULL;
    if (o->outbox_size < DQ_OUTBOX_MIN)
        return "outbox_size: at least 8,192 bytes";
    end = p + o->outbox_size;
    if (o->outbox_keep) wrong = o->outbox_keep->check(q);
    if (wrong) return wrong;
    if (o->outbox_keep) {
        b = q->outbox;
        end -= DQ_KEEP_STATE;
        p += DQ_KEEP_RINGS;
    } else {
        p += (16 - ((uintptr_t)p & 15)) & 15;
        b = (dq_outbox *)(void *)p;
        p += (sizeof *b + 15) & ~(size_t)15;
        memset(b, 0, sizeof *b);
    }
    room = (size_t)(end - p);
    b->offers.size = room / 4 * 3 & ~(size_t)15;
    dq_outbox_add_ring(q, &b->changes, p + b->offers.size,
                       (room - b->offers.size) & ~(size_t)15);
    dq_outbox_add_ring(q, &b->offers, p, b->offers.size);
    q->fetch.lane.next = &b->changes.lane;
    b->changes.lane.next = &b->offers.lane;
    q->outbox = b;
    q->own.names = b->names;
    return NULL;
}

DELAYQ_API delayq_status delayq_open(delayq *q, const delayq_options *options) {
    delayq_status status;
    const char *wrong, *field = "";
    int64_t step_us;
    char room[DQ_TEXT_SIZE];
    dq_url u;
    if (!q) return DELAYQ_ERR_ARG;
    memset(q, 0, sizeof *q);
    if (!options) return dq_err_set(q->err, DELAYQ_ERR_ARG, "options is NULL");
    q->options = *options;
    q->wire = options->wire ? options->wire : &dq_wire_native;
    q->own.owner = q;
    q->conn = &q->own;
    wrong = dq_check_options(q);
    if (!wrong) wrong = dq_check_cursor(q);
    q->fetch.want = 1;
    dq_lane_begin(q, &q->fetch.lane, &dq_policy_fetch, NULL, 0);
    dq_lane_begin(q, &q->setup, &dq_policy_call, &dq_verb_probe, 1);
    q->fetch.lane.why = q->fetch.why;
    q->setup.next = &q->fetch.lane;
    q->lanes = &q->setup;
    if (!wrong) wrong = dq_outbox_init(q);
    if (!wrong && q->options.share) q->conn = q->options.share->conn;
    q->setup.why = q->conn->err;
    if (!wrong) {
        wrong = dq_conn_parse_url(q->conn, &u);
        if (wrong) field = "url: ";
    }
    if (wrong)
        return dq_err_set(q->err, DELAYQ_ERR_ARG, "options.%s%s", field, wrong);
    q->own.lost_us = q->conn->now_us = dq_sys_now();
    if (!q->options.share && !dq_sys_open_pipe(q->own.pipe))
        return dq_err_set(q->err, DELAYQ_ERR_MEMORY, "no pipe: %s",
                          dq_sys_strerror(errno, room));
    q->name_len = strlen(q->options.name);
    memcpy(q->name, q->options.name, q->name_len + 1);
    q->has_tag = strchr(q->name, '{') != NULL;
    q->options.name = NULL; /* the handle has a copy */
    q->open = DQ_OPEN;
    q->pid = dq_sys_pid();
    q->next = q->conn->handles;
    q->conn->handles = q;
    if (!dq_handle_identify(q))
        wrong = "the system gives no random bytes: two machines would make the "
                "same ids";
    if (!wrong && q->options.outbox_keep)
        wrong = q->options.outbox_keep->resume(q);
    if (q->conn->subscriber) q->conn->subscriber->follow(q, 0);
    if (!wrong && q->outbox && u.tls && q->conn == &q->own)
        wrong = dq_tls_prepare(q->conn);
    if (wrong) {
        delayq_close(q);
        return dq_err_set(q->err, DELAYQ_ERR_ARG, "%s", wrong);
    }
    if (q->outbox) {
        dq_lane_ensure(q, q->err);
        q->err[0] = '\0'; /* a tick returns failures */
        return DELAYQ_OK;
    }
    step_us = dq_sched_patience_us(q->conn, q->call_ms);
    if (step_us > q->options.connect_timeout_ms * 1000LL)
        step_us = q->options.connect_timeout_ms * 1000LL;
    status = dq_wait_connected(q, q->conn->now_us + step_us, step_us);
    if (status == DELAYQ_OK && q->foreign) status = dq_err_wire(q, q->err);
    if (status == DELAYQ_ERR_ARG) delayq_close(q);
    return status;
}

DELAYQ_API void delayq_close(delayq *q) {
    delayq_conn *conn;
    delayq_lane *lane;
    delayq **at, *h;
    int in_flight = 0;
    if (!q || q->open != DQ_OPEN) return;
    if (q->outbox && q->outbox->offers.keep) q->outbox->offers.keep->leave(q);
    dq_resp_free(&q->reply);
    dq_resp_free(&q->fetch.reply);
    for (lane = q->lanes; lane; lane = lane->next) {
        dq_conn_free_replies(&lane->x);
        in_flight |= lane->x.state == DELAYQ_EXCHANGE_SENT;
    }
    q->open = 0;
    conn = q->conn;
    if (conn == &q->own) {
        for (h = conn->handles; h; h = h->next) {
            h->conn = NULL; /* the caller may free q after this */
            h->options.share = NULL;
        }
        conn->handles = NULL;
        dq_conn_close(conn, &conn->cmd, DELAYQ_ERR_IO);
        dq_conn_close(conn, &conn->sub, DELAYQ_ERR_IO);
        dq_tls_end(conn);
        dq_sys_close_pipe(conn->pipe);
    } else if (conn) {
        for (at = &conn->handles; *at != q;) at = &(*at)->next;
        *at = q->next;
        if (q->pid == dq_sys_pid() && conn->subscriber)
            conn->subscriber->follow(q, 1);
        if (in_flight) { /* cmd points to an exchange in q's memory */
            DQ_MARK(closed_in_flight);
            conn->now_us = dq_sys_now();
            dq_err_set(conn->err, DELAYQ_ERR_IO,
                       "a handle was closed while its request was in flight");
            dq_conn_close(conn, &conn->cmd, DELAYQ_ERR_IO);
        }
    }
}

/* --- ticks and takes --- */

/* Returns 1 if a tick, or a take with timeout 0, only has to read the clock:
 * no poll is due, no tracking has to be requested, and the sockets were read
 * less than 1 ms ago. It runs before dq_check, whose check of the process
 * id alone costs more than this whole function. */
static int dq_is_idle(delayq *q) {
    delayq_conn *conn = q && q->open == DQ_OPEN ? q->conn : NULL;
    int64_t now;
    if (!conn || !conn->known || !q->probed || q->foreign || q->outbox ||
        q->ready > 0 || q->not_before_us || dq_fetch_is_busy(q) ||
        conn->cmd.state < DELAYQ_SOCKET_OPEN ||
        conn->sub.state == DELAYQ_SOCKET_CLOSED ||
        (q->looked && !q->list_tracked &&
         conn->tracking != DELAYQ_TRACK_OFF))
        return 0;
    q->err[0] = '\0';
    now = conn->now_us = dq_sys_now();
    return now < q->next_poll_us && now - conn->idle_read_us < DQ_IDLE_READ_US;
}

DELAYQ_API delayq_status delayq_tick(delayq *q, int64_t *wait_ms) {
    int idle = dq_is_idle(q);
    delayq_status status = idle ? DELAYQ_OK : dq_check(q, NULL);
    int64_t now, left, nap;
    if (wait_ms) *wait_ms = 1000;
    if (status != DELAYQ_OK) return status;
    /* After a take that did not wait, the program will probably sleep until
     * wait_ms is over or a descriptor is readable. So ask for reports of
     * pushes, as a take that waits does. */
    if (!idle) status = dq_turn(q, q->looked, !q->outbox);
    if (status >= DELAYQ_OK && !idle) status = dq_outbox_failure(q);
    if (!wait_ms) return status;
    now = q->conn->now_us;
    left = dq_wait_next(q, DQ_FOR_ITEMS) - now;
    nap = dq_conn_nap_us(q->conn, now);
    left = ((left < nap ? left : nap) + 999) / 1000;
    if (q->fetch.short_naps > 0 &&
        (dq_fetch_has_items(q) ||
         (!q->outbox && status == DELAYQ_OK && dq_sched_has_ready(q)))) {
        /* the limit of wait_ms doubles with each tick since the last take */
        int64_t most = (1 << (DQ_SHORT_NAPS - q->fetch.short_naps--)) - 1;
        if (most < left) left = most;
    }
    if (status == DELAYQ_ERR_ARG || status == DELAYQ_ERR_WIRE ||
        left > q->options.max_wait_ms)
        left = q->options.max_wait_ms;
    *wait_ms = left < 0 ? 0 : left;
    return status;
}

/* Leave the waiters by a take of 0 items. Its errors are ignored, since the
 * other waiters recover by timeout. */
static void dq_take_leave(delayq *q) {
    q->will_wait = 0;
    if (q->waiter.role < DELAYQ_WAITER_LEADER) return;
    DQ_MARK(leaves_waiters);
    if (q->conn->cmd.c && !dq_fetch_is_busy(q)) {
        dq_fetch_send(q, q->fetch.take, 0);
        dq_wait_lane(q, &q->fetch.lane, dq_wait_limit(q));
        q->fetch.failure = DELAYQ_OK;
    }
    dq_waiters_on_leave(q, 0);
    dq_sub_follow(q, 0);
}

/* Repeat the steps of a take until an item, a lasting fault, the timeout or
 * delayq_wake ends it. A wake ends it only after its ack, if any, was sent. */
static delayq_status dq_take(delayq *q, delayq_item *items, size_t max,
                             size_t *count, int64_t timeout_ms) {
    delayq_fetch *f = &q->fetch;
    int acks = f->ack.text[0] != '\0', waits = timeout_ms != 0 || !q->outbox;
    int64_t deadline = timeout_ms != 0 ? dq_wait_deadline(q, timeout_ms) : 0;
    delayq_status status, failure = DELAYQ_OK;
    dq_resp_free(&q->reply);
    f->take = dq_take_verb(q);
    if (!waits || !q->outbox) f->taken = 1; /* a loop of takes */
    f->short_naps = DQ_SHORT_NAPS;
    f->lost = 0;
    dq_waiters_on_take(q, timeout_ms, waits);
    for (;;) {
        if (timeout_ms != 0 && !f->ack.text[0] && dq_wait_consume_wake(q)) {
            status = DELAYQ_WOKEN;
            break;
        }
        status = dq_take_step(q, items, max, count, waits,
                              timeout_ms != 0 || q->looked == 1);
        if (status < DELAYQ_OK) failure = status;
        if (status == DELAYQ_EMPTY)
            q->looked = timeout_ms == 0 || q->looked == 1;
        else
            q->looked = status == DELAYQ_OK && timeout_ms == 0 ? 2 : 0;
        if (status != DELAYQ_EMPTY && !dq_err_is_transient(status)) break;
        if (timeout_ms == 0 || q->conn->now_us >= deadline) break;
        if (status != DELAYQ_EMPTY) dq_wait_ride_out(q, status);
        if (acks &&
            dq_wait_consume_wake(q)) { /* if the ack is not settled, the
                                          call returns the fault */
            DQ_MARK(woken_after_ack);
            if (!f->ack.text[0]) status = DELAYQ_WOKEN;
            break;
        }
        dq_sleep(&q, 1, deadline, DQ_FOR_TAKES);
    }
    /* after a failure, only a success can show that the queue is empty */
    if (status == DELAYQ_EMPTY && failure < DELAYQ_OK && dq_wait_fails(q))
        status = failure;
    if (status >= DELAYQ_OK) q->err[0] = '\0';
    /* the lost reply may have contained items, so a failure is UNKNOWN */
    if (f->lost) DQ_MARK(take_lost_a_reply);
    if (f->lost) status = dq_err_after_loss(q->err, "take", status);
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
        dq_resp_free(&q->reply);
        q->fetch.taken = 1;
        q->looked = 1;
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

/* --- waits, the outbox, the rest --- */

/* Returns 1 if a handle without an outbox is connecting or transferring. */
static int dq_wait_has_begun(const delayq *q) {
    const delayq_lane *lane = &q->fetch.lane;
    if (q->outbox) return 0;
    if (lane->settled < lane->accepted) return 1;
    return q->conn->cmd.state != DELAYQ_SOCKET_CLOSED &&
           (!q->conn->known || !q->probed);
}

DELAYQ_API delayq_status delayq_wait(delayq *const *queues, size_t count,
                                     int64_t timeout_ms) {
    delayq_status all, failure = DELAYQ_OK; /* all: OK if a queue has an item */
    delayq *fails = NULL; /* the last handle with a failure */
    int64_t deadline = 0;
    size_t i, conns = 0;
    if (!queues || count < 1) return DELAYQ_ERR_ARG;
    for (i = 0; i < count; i++) {
        delayq *q = queues[i];
        delayq_status status = dq_check(q, dq_wrong_timeout(timeout_ms));
        if (status != DELAYQ_OK) return status;
        conns += !dq_wait_seen_conn(queues, i);
        if (conns > DQ_MAX_CONNS)
            return dq_check(q, "wait: more than 20 connections");
        if (deadline < dq_wait_limit(q)) deadline = dq_wait_limit(q);
    }
    if (timeout_ms != 0) deadline = dq_wait_deadline(queues[0], timeout_ms);
    for (;;) {
        delayq *begun = NULL; /* a handle that connects or transfers */
        all = DELAYQ_EMPTY;
        for (i = 0; i < count; i++) {
            delayq_status status;
            queues[i]->conn->now_us = dq_sys_now(); /* a turn may take long */
            if (timeout_ms != 0 && dq_wait_consume_wake(queues[i]))
                return DELAYQ_WOKEN;
            queues[i]->fetch.take = dq_take_verb(queues[i]);
            status = dq_wait_turn(queues[i]);
            if (status < 0) fails = queues[i], failure = status;
            if (status < 0 && !dq_err_is_transient(status)) return status;
            if (status < 0) dq_wait_ride_out(queues[i], status);
            if (status == DELAYQ_OK || all == DELAYQ_EMPTY) all = status;
            if (timeout_ms == 0 && dq_wait_has_begun(queues[i]))
                begun = queues[i];
        }
        if (all == DELAYQ_OK || (timeout_ms == 0 && !begun)) break;
        if (dq_sys_now() >= deadline) {
            if (all == DELAYQ_EMPTY && begun) return dq_wait_late(begun);
            break;
        }
        dq_sleep(queues, count, deadline, begun ? DQ_FOR_REPLY : DQ_FOR_ITEMS);
    }
    if (all == DELAYQ_EMPTY && fails && dq_wait_fails(fails)) return failure;
    for (i = 0; all >= DELAYQ_OK && i < count; i++) queues[i]->err[0] = '\0';
    return all;
}

/* Returns the result of a flush. `empty` is 1 if the outbox is empty. `ready`
 * is the status of the connection, whose text is in q->err. */
static delayq_status dq_flush_result(delayq *q, int empty,
                                     delayq_status ready) {
    dq_outbox *b = q->outbox;
    uint64_t dropped = b->dropped - b->told_dropped;
    delayq_status status;
    b->told_dropped = b->dropped;
    if (!empty) DQ_MARK(flush_cut_short);
    if (dropped > 0)
        return dq_err_set(q->err, b->drop,
                          "flush: dropped ops: %lu; the server ends each "
                          "connection over which they are sent",
                          (unsigned long)dropped);
    if (empty) q->err[0] = '\0';
    if (empty || ready < DELAYQ_OK) return empty ? DELAYQ_OK : ready;
    status = dq_outbox_failure(q);
    if (status < DELAYQ_OK) return status;
    return dq_err_set(q->err, DELAYQ_ERR_TIMEOUT,
                      "flush: not all ops are settled");
}

DELAYQ_API delayq_status delayq_flush(delayq *q, int64_t timeout_ms) {
    delayq_status status = dq_check(q, dq_wrong_timeout(timeout_ms));
    int64_t deadline;
    dq_outbox *b;
    if (status == DELAYQ_OK && !q->outbox) status = dq_check(q, "no outbox");
    if (status != DELAYQ_OK) return status;
    b = q->outbox;
    deadline = dq_wait_deadline(q, timeout_ms);
    for (;;) {
        int empty;
        if (timeout_ms != 0 && dq_wait_consume_wake(q)) return DELAYQ_WOKEN;
        status = dq_lane_ensure(q, q->err);
        if (status < DELAYQ_OK) dq_lane_note(q, status, q->err);
        dq_step(q);
        empty = b->offers.lane.settled == b->offers.lane.accepted &&
                b->changes.lane.settled == b->changes.lane.accepted;
        if (empty || q->conn->now_us >= deadline) {
            status = dq_flush_result(q, empty, status);
            if (b->offers.keep) b->offers.keep->step(q);
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
    state->changes_accepted = b->changes.lane.accepted - b->own_accepted;
    state->changes_settled = b->changes.lane.settled - b->own_settled;
    state->gone = b->gone;
    state->duplicate = b->duplicate;
    state->dropped = b->dropped;
    state->bytes = b->offers.used + b->changes.used;
    state->size = b->offers.size + b->changes.size;
    state->connected = q->conn && q->conn->known;
    return DELAYQ_OK;
}

DELAYQ_API void delayq_wake(delayq *q) {
    int saved = errno;
    if (!q || q->open != DQ_OPEN || !q->conn) return;
    if (q->pid != dq_sys_pid()) return; /* the pipe is the parent's */
    DQ_STORE(&q->woken, 1);
    /* If the pipe is full, the write fails, but the handle wakes up anyway. */
    dq_sys_write_pipe(q->conn->pipe[1]);
    errno = saved;
}

DELAYQ_API size_t delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = 0;
    if (!q || q->open != DQ_OPEN || !q->conn || !fds) return 0;
    q->conn->idle_read_us = 0; /* the next step must read the input that woke
                                  the poll */
    if (n < max) fds[n++] = q->conn->pipe[0];
    if (n < max && q->conn->sub.c) fds[n++] = dq_sys_fd(q->conn->sub.c);
    if (n < max && q->conn->cmd.c) fds[n++] = dq_sys_fd(q->conn->cmd.c);
    return n;
}

DELAYQ_API const char *delayq_errmsg(const delayq *q) {
    return q ? q->err : "";
}

DELAYQ_API const char *delayq_strstatus(delayq_status status) {
    static const char words[] = /* in the order of the statuses */
        "out of memory\0"
        "a key of the queue has a wrong type\0"
        "the server is busy or starting\0"
        "no reply; it may have happened\0"
        "the queue has elements of another Redisson\0"
        "the server's memory, or the outbox, is full\0"
        "the server accepts no writes now\0"
        "the server's reply is invalid\0"
        "the server replied with an error\0"
        "wrong password or no permission\0"
        "not in time; nothing has happened\0"
        "no connection; nothing has happened\0"
        "bad argument\0"
        "done\0"
        "nothing to take\0"
        "it is no longer there\0"
        "the key is taken\0"
        "woken by delayq_wake";
    const char *text = words;
    int i = DELAYQ_ERR_MEMORY;
    if (status < DELAYQ_ERR_MEMORY || status > DELAYQ_WOKEN)
        return "unknown status";
    while (i++ < status) text += strlen(text) + 1;
    return text;
}

/*-----------------------------------------------------------------------------
 * MARK: - Offers
 * >>offers   offers
 *
 * Owns the verbs of offers, with and without a key, and the verb of an outbox's
 * requests in which offers are mixed with other ops.
 *---------------------------------------------------------------------------*/

/* --- the verbs of offers --- */

/* Write a number if it is given, else "". */
static void dq_write_given(dq_resp_writer *o, int given, int64_t value) {
    if (given)
        dq_resp_int(o, value);
    else
        dq_resp_text(o, "");
}

/* Write ARGV[1] to ARGV[3] of OFFER. In a resend, ARGV[3] ends with the
 * earliest time by the server's clock at which the item may have been due, or 0
 * if it may be due by the local clock. The item is not stored again if it may
 * be due by either clock. Both clocks are checked, since the server's may have
 * been set back, and the local one may run at another speed. */
static void dq_write_offer_head(dq_resp_writer *o, delayq *q,
                                const delayq_lane *lane) {
    char form[40] = "delay@";
    size_t n = 5;
    dq_cursor c;
    dq_cursor_begin(&c, lane, lane->n);
    dq_cursor_next(&c);
    dq_resp_end_keys(o, q);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    if (c.due_ms > 0) n = 3, memcpy(form, "due@", 4);
    if (c.message && lane->resends) {
        int sooner = q->conn->now_us < c.message->first_due_us;
        n += 1 + dq_num_decimal(form + n + 1,
                                sooner ? c.message->first_due_ms : 0);
    }
    if (lane->ring) {
        int64_t sent = lane->settled < lane->ring->resumed
                           ? DQ_MAX_DUE /* perhaps more than the image knows */
                           : (int64_t)(lane->settled + lane->unsure);
        n = dq_num_decimal(form, dq_lane_number(lane));
        form[n] = ' ';
        if (sent >= dq_lane_number(lane))
            n += 1 + dq_num_decimal(form + n + 1, sent);
    }
    dq_resp_arg(o, form, n, 0);
}

/* Write the first keys of a request with offers: the zset, and the mirror if
 * the wire has one. An outbox adds the key with its highest stored number. The
 * name of this key ends with the 3 bytes of the life that accepted the ops. */
static void dq_write_offer_keys(dq_resp_writer *o, const delayq *q,
                                const delayq_lane *lane) {
    char id[sizeof q->id];
    dq_resp_key(o, q, DQ_ZSET, "");
    if (q->wire->mirror) dq_resp_key(o, q, DQ_MIRROR, "");
    if (!lane->ring) return;
    memcpy(id, q->id, sizeof id);
    dq_num_hex(id + 11, dq_lane_life(lane), 3);
    dq_resp_key(o, q, DQ_SENT, id);
}

/* Write the time of an offer: its due time or its delay, in ms. */
static void dq_write_time(dq_resp_writer *o, const dq_cursor *c) {
    dq_resp_int(o, c->due_ms > 0 ? c->due_ms : c->op->delay_ms);
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
    dq_write_offer_keys(o, q, lane);
    dq_write_offer_head(o, q, lane);
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c)) {
        if (dq_resp_skip(o, 2 * (lane->n - c.number))) break;
        dq_write_time(o, &c);
        dq_write_element(o, q, c.op, c.number + 1 == lane->n);
    }
}

/* Write the Redis keys of a request in which some ops have a key: first the
 * keys of an offer, then the holders (the Redis keys with the tickets). Returns
 * the number of holders. */
static int dq_write_holders(dq_resp_writer *o, const delayq *q,
                            const delayq_lane *lane) {
    char rest[280];
    int keys = 0;
    dq_cursor c;
    dq_write_offer_keys(o, q, lane);
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c)) {
        if (!c.op->key) continue;
        snprintf(rest, sizeof rest, ":%d:%.256s", (int)c.op->key_len,
                 c.op->key);
        dq_resp_key(o, q, DQ_DEDUP, rest);
        keys++;
    }
    return keys;
}

static void dq_write_keyed(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    int keys = dq_write_holders(o, q, lane);
    char id[33];
    dq_cursor c;
    dq_write_offer_head(o, q, lane);
    dq_resp_int(o, keys);
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c)) {
        if (!(c.op->verb->flags & DQ_OFFERS)) {
            dq_resp_text(o, "cancel");
            continue;
        }
        dq_write_time(o, &c);
        dq_num_hex(id, c.op->id, q->wire->id_len);
        dq_resp_text(o, id);
        dq_write_given(o, c.op->key != NULL, c.op->key_ttl_ms);
        dq_resp_text(o, c.op->replace ? "replace" : "");
        dq_write_element(o, q, c.op, c.number + 1 == lane->n);
    }
}

/* Settle a message that was sent again, and may have been delivered before. If
 * this call sent it both times, the result is UNKNOWN. After an earlier UNKNOWN
 * it is GONE, since the outcome can't be known any more. */
static void dq_offer_settle_late(delayq *q, delayq_lane *lane,
                                 const dq_cursor *c) {
    delayq_status status = DELAYQ_GONE;
    c->message->ticket.text[0] = '\0';
    if (c->message->status != DELAYQ_ERR_UNKNOWN)
        status = dq_err_set(lane->why, DELAYQ_ERR_UNKNOWN,
                            "offer: sent twice, and due before the server "
                            "could be asked whether the first one arrived");
    if (status == DELAYQ_GONE) DQ_MARK(offer_outcome_lost);
    if (status != DELAYQ_GONE) DQ_MARK(offer_due_before_resend);
    dq_op_settle(q, lane, c, status, 0);
}

static delayq_status dq_read_offer(delayq *q, delayq_lane *lane) {
    int64_t n[3] = {0, 0, 0};
    size_t count = lane->reply->elements;
    dq_cursor c;
    int resent = lane->messages && lane->resends;
    if ((count != 3 && (count != 1 || resent)) ||
        !dq_resp_integers(lane->reply, n, count))
        return dq_lane_reject(q, lane);
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c)) {
        int64_t due = c.due_ms;
        if (due == 0) due = (n[0] + 999) / 1000 + c.op->delay_ms;
        if (resent) due = n[2];
        if (due > DQ_MAX_DUE) due = DQ_MAX_DUE; /* with a wrong server clock */
        if (resent && due < 0) {
            dq_offer_settle_late(q, lane, &c);
            continue;
        }
        if (c.message)
            dq_elem_id_ticket(&c.message->ticket, due, c.op->id,
                              q->wire->id_len);
        dq_op_settle(q, lane, &c, DELAYQ_OK, due);
    }
    return DELAYQ_OK;
}

/* Settle an op by its values in the reply to a request of several ops:
 *
 *     an offer   its outcome, its due time, and its ticket or its key's ticket
 *     a key      its outcome, and two unused values. A skipped cancel
 *                counts as done, since its result was in a lost reply
 *     a ticket   0 if the item is not there, 1 if it was removed, or its new
 *                due time. If an outbox sends the ticket again, 0 means done,
 *                too, since a lost reply may have confirmed it */
static void dq_settle(delayq *q, delayq_lane *lane, const dq_cursor *c,
                      redisReply *const *values) {
    const dq_verb *verb = c->op->verb;
    int64_t n = values[0]->integer, due = 0;
    delayq_status status = DELAYQ_OK;
    if (verb->flags & DQ_OFFERS) {
        if (n == 2 && c->message) {
            dq_offer_settle_late(q, lane, c);
            return;
        }
        due = values[1]->integer;
        if (n == 1) status = DELAYQ_DUPLICATE;
        if (c->message)
            memcpy(c->message->ticket.text, values[2]->str, values[2]->len + 1);
    } else if (c->op->key) {
        if (n == 4) status = DELAYQ_GONE;
    } else {
        int done = n > 0 || (lane->ring && c->number < lane->was_unsure);
        if (verb->flags & DQ_RETIMES) due = n;
        if (!done)
            status = lane->ring ? DELAYQ_GONE : dq_ticket_status(lane, 0);
    }
    dq_op_settle(q, lane, c, status, due < DQ_MAX_DUE ? due : DQ_MAX_DUE);
}

/* Read the reply to a request of several ops: the clock, then one integer for
 * each ticket, or two integers and a ticket's text for each offer or key. If
 * the server has refused an op, the reply ends before that op, and the request
 * is cut there, too. */
static delayq_status dq_read_ops(delayq *q, delayq_lane *lane) {
    const redisReply *r = lane->reply;
    int64_t us;
    size_t width, n, i;
    dq_cursor c;
    int fine;
    dq_cursor_begin(&c, lane, lane->n);
    width = *dq_cursor_next(&c)->verb->word ? 1 : 3; /* 3: offers or keys */
    n = (r->elements - 1) / width;
    fine = dq_resp_integers(r, &us, 1) && n > 0 &&
           r->elements == 1 + n * width && n <= lane->n - lane->from;
    for (i = 1; fine && i < r->elements; i++) {
        const redisReply *e = r->element[i];
        size_t at = (i - 1) % width;
        if (at == 2)
            fine =
                e->type == REDIS_REPLY_STRING && e->len < sizeof(delayq_ticket);
        else
            fine = e->type == REDIS_REPLY_INTEGER && e->integer >= 0;
    }
    if (fine) lane->n = lane->from + n;
    dq_cursor_begin(&c, lane, lane->n);
    while (fine && dq_cursor_next(&c))
        dq_settle(q, lane, &c,
                  r->element + 1 + width * (c.number - lane->from));
    return fine ? DELAYQ_OK : dq_lane_reject(q, lane);
}

DQ_VERB(offer, "offer", "", offer, dq_write_offer, dq_read_offer, 1000,
        offsetof(delayq_counts, offered), DQ_IDEMPOTENT | DQ_OFFERS,
        DQ_KEY_NONE, 1, NULL, NULL, NULL);
DQ_VERB(keyed, "offer", "", offer_keyed, dq_write_keyed, dq_read_ops, 200,
        offsetof(delayq_counts, offered), DQ_IDEMPOTENT | DQ_OFFERS,
        DQ_KEY_NONE, 2, NULL, NULL, NULL);

/* --- the verb of mixed requests --- */

/* Go to the next part of a mixed request of `end` ops: the consecutive ops with
 * the same script, from op number lane->n on. Returns the verb of the part. */
static const dq_verb *dq_lane_next_part(delayq_lane *lane, size_t end) {
    const dq_verb *verb = NULL;
    dq_cursor c;
    dq_lane_seek(lane, lane->n);
    dq_cursor_begin(&c, lane, end);
    while (dq_cursor_next(&c)) {
        const dq_verb *own =
            c.op->verb->flags & DQ_OFFERS ? &dq_verb_keyed : c.op->verb;
        if (verb && own->script != verb->script) break;
        verb = own;
        lane->n++;
    }
    return verb;
}

static void dq_write_mixed(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    delayq_lane part = *lane;
    char form[64];
    size_t keys;
    dq_write_holders(o, q, lane);
    dq_resp_end_keys(o, q);
    keys = o->keys;
    part.n = 0;
    while (part.n < lane->n) {
        size_t at = o->args;
        const dq_verb *verb = dq_lane_next_part(&part, lane->n);
        verb->writer(o, q, &part);
        snprintf(form, sizeof form, "%s %d %d %d", verb->script->name,
                 (int)(o->keys - at), (int)(o->args - o->keys),
                 1 + (verb->script == dq_verb_keyed.script ? 3 : 1) *
                         (int)(part.n - part.from));
        dq_resp_text(o, form);
    }
    o->keys = keys;
}

/* Have the verb of each part read the part's reply. If a reply can't be read,
 * the request is cut before this part. Only the earlier parts are settled. */
static delayq_status dq_read_mixed(delayq *q, delayq_lane *lane) {
    redisReply *whole = lane->reply;
    delayq_status status = DELAYQ_OK;
    size_t end = lane->n, i;
    lane->n = 0;
    for (i = 1; i < whole->elements && lane->n < end; i++) {
        const dq_verb *verb = dq_lane_next_part(lane, end);
        size_t from = lane->from, last = lane->n;
        lane->reply = whole->element[i];
        status = lane->reply->type == REDIS_REPLY_ARRAY
                     ? verb->reader(q, lane)
                     : dq_lane_reject(q, lane);
        if (status != DELAYQ_OK) lane->n = from;
        if (lane->n < last) DQ_MARK(mixed_request_cut);
        if (lane->n < last) break;
    }
    lane->reply = whole;
    dq_lane_seek(lane, 0);
    if (lane->n > 0) return DELAYQ_OK;
    return status == DELAYQ_OK ? dq_lane_reject(q, lane) : status;
}

DQ_VERB(mixed, "outbox", "", mixed, dq_write_mixed, dq_read_mixed, 300, 0,
        DQ_OFFERS, DQ_KEY_NONE, 0, &dq_verb_mixed, NULL, NULL);

/* --- offers --- */

static const char *dq_offer_check(const delayq_message *m, int64_t now_ms) {
    size_t klen = m->key ? strlen(m->key) : 0;
    if (!m->data && m->len > 0) return "data is NULL";
    if (m->len > DQ_PAYLOAD_MAX) return "the payload has more than 1 GB";
    if (m->delay_ms < 0) return "delay_ms is negative";
    if (m->due_ms < 0) return "due_ms is negative";
    if (m->delay_ms > DQ_MAX_DUE - 1000 - now_ms)
        return "delay_ms: due past 2^53 ms";
    if (m->due_ms > DQ_MAX_DUE) return "due_ms is past 2^53 ms";
    if (m->key && (klen < 1 || klen > 256)) return "key: 1 to 256 bytes";
    if (m->key && m->key_ttl_ms <= 0) return "a key needs a key_ttl_ms above 0";
    if (m->key && m->key_ttl_ms > DQ_MAX_DUE / 4) return "key_ttl_ms: too long";
    return NULL;
}

/* Offer messages. `keyed` is the verb of messages with a key. delayq_offer
 * passes NULL, so that delayq_offer does not link that verb. */
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
    dq_lane_begin(q, &lane, &dq_policy_call, &dq_verb_offer, count);
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

/*-----------------------------------------------------------------------------
 * MARK: - Tickets
 * >>tickets   acks, cancels, and other ops on one item
 *
 * Owns the verbs of tickets, and the codes of all verbs in a kept outbox.
 *---------------------------------------------------------------------------*/

/* Returns the attempt in a ticket, or -1 if its id has no room for one. */
static int dq_ticket_attempt(const char *text) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len, n = dq_elem_ticket_prefix(text, key, &due_len);
    return n == 17 ? dq_elem_attempt(key, 16) : -1;
}

static const char *dq_wrong_ticket(const char *text) {
    if (!text) return "no item or ticket";
    if (dq_elem_is_ticket(text)) return NULL;
    return "not a ticket; an item that was taken without a lease, or from a "
           "broadcast, has none";
}

/* Check the ticket of an item that was taken. Returns NULL, or the fault. A
 * ticket with attempt 0 is that of an offer. */
static const char *dq_wrong_item(const delayq_item *item) {
    const char *text = item ? item->ticket.text : NULL;
    int whole = text && memchr(text, 0, sizeof(delayq_ticket));
    int attempt = whole ? dq_ticket_attempt(text) : -1;
    if (attempt != 0) return attempt < 0 ? dq_wrong_ticket(text) : NULL;
    return "the ticket is that of an offer, not of an item that was taken: "
           "cancel or reschedule it";
}

/* --- the verbs of tickets --- */

/* Write the ops in runs of one verb: the verb, the number of ops, then each
 * ticket's due time and prefix. A bury adds its reason. An op that sets a due
 * time adds this time and, without an outbox, the delay to check it against. */
static void dq_write_tickets(dq_resp_writer *o, delayq *q,
                             const delayq_lane *lane) {
    const dq_verb *verb = NULL;
    dq_cursor c, ahead;
    dq_resp_key(o, q, DQ_ZSET, "");
    if (lane->key == DQ_KEY_DEAD) dq_resp_key(o, q, DQ_DEAD, "");
    if (lane->key == DQ_KEY_MIRROR && q->wire->mirror)
        dq_resp_key(o, q, DQ_MIRROR, "");
    dq_resp_end_keys(o, q);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_text(o, lane->resends ? "again" : "");
    dq_cursor_begin(&c, lane, lane->n);
    while (dq_cursor_next(&c)) {
        if (c.op->verb != verb) {
            ahead = c;
            verb = c.op->verb;
            while (dq_cursor_next(&ahead) && ahead.op->verb == verb) continue;
            dq_resp_text(o, verb->word);
            dq_resp_int(o, (int64_t)(ahead.number - c.number));
        }
        if (!dq_resp_skip(o, 2)) dq_write_ticket(o, c.op->data);
        if (verb->key == DQ_KEY_DEAD)
            dq_resp_text(o, c.op->data + strlen(c.op->data) + 1);
        if (!(verb->flags & DQ_RETIMES)) continue;
        dq_resp_int(o, c.op->planned_ms);
        dq_write_given(o, !lane->ring, c.op->delay_ms);
    }
}

#define DQ_TICKET_VERB(id, name, word, counter, flags, key, code, mixed)     \
    DQ_VERB(id, name, word, tickets, dq_write_tickets, dq_read_ops,          \
            (flags)&DQ_RETIMES || (key) == DQ_KEY_DEAD ? 200 : 500, counter, \
            DQ_IDEMPOTENT | (flags), key, code, mixed, NULL, NULL)
DQ_TICKET_VERB(ack, "ack", "ack", offsetof(delayq_counts, acked), 0,
               DQ_KEY_NONE, 6, NULL);
DQ_TICKET_VERB(cancel, "cancel", "cancel", 0, DQ_OF_OFFERS, DQ_KEY_MIRROR, 3,
               &dq_verb_mixed);
DQ_TICKET_VERB(nack, "nack", "nack", offsetof(delayq_counts, nacked),
               DQ_RETIMES, DQ_KEY_NONE, 7, NULL);
DQ_TICKET_VERB(release, "nack", "release", offsetof(delayq_counts, nacked),
               DQ_RETIMES, DQ_KEY_NONE, 8, NULL);
DQ_TICKET_VERB(unfetch, "release", "unfetch", 0, DQ_RETIMES | DQ_UNCOUNTED,
               DQ_KEY_NONE, 9, NULL);
DQ_TICKET_VERB(extend, "extend", "extend", 0, DQ_RETIMES | DQ_RENAMES,
               DQ_KEY_NONE, 10, NULL);
DQ_TICKET_VERB(reschedule, "reschedule", "reschedule", 0,
               DQ_RETIMES | DQ_RENAMES | DQ_OF_OFFERS, DQ_KEY_NONE, 4,
               &dq_verb_mixed);
DQ_TICKET_VERB(bury, "bury", "bury", offsetof(delayq_counts, died), 0,
               DQ_KEY_DEAD, 11, NULL);

/* cancel_key is not idempotent: see OFFER_KEYED. */
DQ_VERB(cancel_key, "cancel", "", offer_keyed, dq_write_keyed, dq_read_ops, 200,
        0, DQ_OF_OFFERS, DQ_KEY_NONE, 5, &dq_verb_mixed, NULL, NULL);

/* --- ops on a ticket --- */

/* Do one op. Returns its status. If `ticket` isn't NULL, sets its due time. */
static delayq_status dq_do_op(delayq *q, dq_op *op, delayq_ticket *ticket) {
    delayq_lane lane;
    dq_lane_begin(q, &lane, &dq_policy_call, op->verb, 1);
    op->begun_us = lane.begun_us;
    lane.ops = op;
    dq_do(q, &lane, 0);
    if (lane.result == DELAYQ_OK && ticket)
        dq_elem_set_ticket_due(ticket, lane.due_ms);
    return lane.result;
}

static void dq_release(delayq *q, const char *ticket);

/* Do one op on a ticket that was checked before. For a bury, the reason follows
 * the ticket's NUL. If `renewed` isn't NULL, sets the due time of *renewed. */
static delayq_status dq_do_ticket(delayq *q, const dq_verb *verb,
                                  const char *ticket, int64_t delay_ms,
                                  delayq_ticket *renewed) {
    dq_op op;
    q->fetch.release = dq_release;
    memset(&op, 0, sizeof op);
    op.verb = verb;
    op.data = ticket;
    op.len = (uint32_t)strlen(ticket) + 1;
    if (verb->key == DQ_KEY_DEAD)
        op.len += (uint32_t)strlen(ticket + op.len) + 1;
    op.delay_ms = delay_ms;
    return dq_do_op(q, &op, renewed);
}

static void dq_release(delayq *q, const char *ticket) {
    dq_do_ticket(q, &dq_verb_unfetch, ticket, 0, NULL);
}

DELAYQ_API delayq_status delayq_cancel(delayq *q, const delayq_ticket *ticket) {
    const char *wrong = dq_wrong_ticket(ticket ? ticket->text : NULL);
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    return dq_do_ticket(q, &dq_verb_cancel, ticket->text, 0, NULL);
}

DELAYQ_API delayq_status delayq_cancel_key(delayq *q, const char *key) {
    size_t len = key ? strlen(key) : 0;
    const char *wrong = len < 1 || len > 256 ? "key: 1 to 256 bytes" : NULL;
    dq_op op;
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    memset(&op, 0, sizeof op);
    op.verb = &dq_verb_cancel_key;
    op.data = "";
    op.key = key;
    op.key_len = (uint16_t)len;
    return dq_do_op(q, &op, NULL);
}

DELAYQ_API delayq_status delayq_ack_many(delayq *q, delayq_item *items,
                                         size_t count) {
    const char *wrong = !items && count > 0 ? "items is NULL"
                        : dq_is_stream(q)   ? "items of a broadcast need no ack"
                                            : NULL;
    delayq_status status;
    delayq_lane lane;
    size_t i;
    for (i = 0; !wrong && i < count; i++) wrong = dq_wrong_item(&items[i]);
    status = dq_check(q, wrong);
    for (i = 0; items && i < count; i++) items[i].acked = status;
    if (status != DELAYQ_OK || count == 0) return status;
    q->fetch.release = dq_release;
    dq_lane_begin(q, &lane, &dq_policy_call, &dq_verb_ack, count);
    lane.items = items;
    return dq_do(q, &lane, 0);
}

DELAYQ_API delayq_status delayq_ack(delayq *q, const delayq_item *item) {
    delayq_item one; /* a copy, in which `acked` is set */
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
        wrong = dq_is_stream(q) ? "items of a broadcast need no ack"
                                : dq_wrong_item(item);
    status = dq_check(q, wrong);
    if (status == DELAYQ_OK && q->outbox && item->ticket.text[0])
        status = delayq_ack(q, item);
    if (status != DELAYQ_OK) {
        if (item) item->acked = status;
        return status;
    }
    acked = *item;
    acked.data = NULL; /* the take frees the payload */
    acked.len = 0;
    memset(item, 0, sizeof *item);
    if (!q->outbox) q->fetch.ack = acked.ticket;
    q->fetch.acked = DELAYQ_OK;
    status = dq_take(q, item, 1, &count, timeout_ms);
    item->acked = q->fetch.acked;
    if (q->fetch.ack.text[0]) { /* the ack is not settled */
        *item = acked;
        item->acked = q->fetch.acked != DELAYQ_OK ? q->fetch.acked : status;
        q->fetch.ack.text[0] = '\0';
    }
    return status;
}

DELAYQ_API delayq_status delayq_nack(delayq *q, const delayq_item *item,
                                     int64_t delay_ms) {
    const char *wrong = dq_wrong_item(item);
    const dq_verb *verb = &dq_verb_nack;
    if (!wrong && (delay_ms < DELAYQ_RELEASE || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms: not negative, DELAYQ_BACKOFF or DELAYQ_RELEASE";
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    if (delay_ms == DELAYQ_BACKOFF) {
        int attempt = item->attempt;
        if (attempt <= 0) attempt = dq_ticket_attempt(item->ticket.text);
        if (attempt > 60) attempt = 60;
        delay_ms =
            dq_num_backoff(q->options.backoff_ms, q->options.backoff_max_ms,
                           attempt < 1 ? 1 : (unsigned)attempt);
    } else if (delay_ms == DELAYQ_RELEASE) {
        verb = &dq_verb_release;
        delay_ms = 0;
    }
    return dq_do_ticket(q, verb, item->ticket.text, delay_ms, NULL);
}

#define DQ_WHY_MAX 200

DELAYQ_API delayq_status delayq_bury(delayq *q, const delayq_item *item,
                                     const char *why) {
    char text[sizeof item->ticket.text + DQ_WHY_MAX + 1], *to;
    size_t i, n = why ? strlen(why) : 0;
    if (dq_check(q, dq_wrong_item(item)) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    i = strlen(item->ticket.text) + 1;
    memcpy(text, item->ticket.text, i);
    to = text + i;
    /* keep whole characters, and replace control characters with spaces */
    if (n > DQ_WHY_MAX)
        for (n = DQ_WHY_MAX; n > 0 && (why[n] & 0xc0) == 0x80;) n--;
    for (i = 0; i < n; i++)
        to[i] = (unsigned char)why[i] < ' ' || why[i] == 0x7f ? ' ' : why[i];
    to[n] = '\0';
    return dq_do_ticket(q, &dq_verb_bury, text, 0, NULL);
}

DELAYQ_API delayq_status delayq_extend(delayq *q, delayq_item *item,
                                       int64_t lease_ms) {
    const char *wrong = dq_wrong_item(item);
    if (q && lease_ms == 0) lease_ms = q->options.lease_ms;
    if (!wrong && lease_ms <= 0)
        wrong = "lease_ms: above 0, or 0 if options.lease_ms is given";
    if (!wrong && lease_ms > DQ_MAX_DUE / 4) wrong = "lease_ms is too long";
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    return dq_do_ticket(q, &dq_verb_extend, item->ticket.text, lease_ms,
                        &item->ticket);
}

DELAYQ_API delayq_status delayq_reschedule(delayq *q, delayq_ticket *ticket,
                                           int64_t delay_ms) {
    const char *wrong = dq_wrong_ticket(ticket ? ticket->text : NULL);
    if (!wrong && (delay_ms < 0 || delay_ms > DQ_MAX_DUE / 4))
        wrong = "delay_ms is negative or too long";
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    return dq_do_ticket(q, &dq_verb_reschedule, ticket->text, delay_ms, ticket);
}

/* --- the verbs in an outbox that survives --- */

#define DQ_V(id) &dq_verb_##id
static const dq_verb *const dq_keep_verbs[DQ_CODES + 1] = {
    NULL,          DQ_V(offer),      DQ_V(keyed),
    DQ_V(cancel),  DQ_V(reschedule), DQ_V(cancel_key),
    DQ_V(ack),     DQ_V(nack),       DQ_V(release),
    DQ_V(unfetch), DQ_V(extend),     DQ_V(bury)};

DELAYQ_CONSTANTS_BEGIN
DQ_CONSTANT delayq_keep_kind delayq_keep_image = {
    dq_keep_verbs, dq_keep_check, dq_keep_resume, dq_keep_seal,
    dq_keep_mark,  dq_keep_step,  dq_keep_leave};
DELAYQ_CONSTANTS_END

/*-----------------------------------------------------------------------------
 * MARK: - Queries
 * >>queries   peek, count, pause, clear, dead letters
 *
 * Owns the verbs of these calls. Their lanes are bare, and use no outbox.
 *---------------------------------------------------------------------------*/

#define DQ_QUERY_VERB(id, name, word, script, write, flags)                   \
    DQ_VERB(id, name, word, script, write, NULL, 1, 0, flags, DQ_KEY_NONE, 0, \
            NULL, NULL, NULL)

/* Run a bare verb. After DELAYQ_OK, n contains the first `count` numbers of the
 * reply and, unless `reply` is NULL, *reply is the reply. */
static delayq_status dq_query_run(delayq *q, const dq_verb *verb,
                                  const dq_query *query, int64_t *n,
                                  size_t count, redisReply **reply) {
    delayq_status status;
    delayq_lane lane;
    memset(n, 0, count * sizeof *n);
    dq_lane_begin(q, &lane, &dq_policy_call, verb, 1);
    lane.query = query;
    status = dq_wait_run(q, &lane);
    if (status == DELAYQ_OK && !dq_resp_integers(lane.reply, n, count))
        status = dq_err_bad_reply(q->err, verb->name);
    else if (status == DELAYQ_OK && reply)
        *reply = lane.reply, lane.reply = NULL;
    dq_resp_free(&lane.reply);
    return status;
}

static void dq_write_peek(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    dq_resp_key(o, q, DQ_ZSET, "");
    o->keys = o->args;
    dq_resp_int(o, (int64_t)lane->query->max);
    if (lane->query->ticket) dq_write_ticket(o, lane->query->ticket);
}
DQ_QUERY_VERB(peek, "peek", "", peek, dq_write_peek, DQ_READ_ONLY);

/* Read one item of a peek. If an element can't be decoded, or its score is no
 * due time, its ticket contains its rank. Returns 0 if it is malformed. */
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
    dq_query query = {max < 100000 ? max : 100000, 0, NULL, NULL};
    const char *due, *wrong = NULL;
    delayq_status status;
    redisReply *r;
    int64_t n[2];
    size_t i;
    if (count) *count = 0;
    if (after && after->text[0]) query.ticket = after->text;
    if (query.ticket && !dq_elem_is_ticket(query.ticket))
        wrong = "after: no ticket";
    if (!items || !count || max == 0)
        wrong = "items or count is NULL, or max is 0";
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    dq_resp_free(&q->reply);
    status = dq_query_run(q, &dq_verb_peek, &query, n, 2, &r);
    if (status != DELAYQ_OK) return status;
    q->reply = r;
    if (r->elements < 3 || r->element[2]->type != REDIS_REPLY_STRING ||
        r->elements - 3 > query.max)
        return dq_err_bad_reply(q->err, "peek");
    due = r->element[2]->str;
    for (i = 0; i + 3 < r->elements; i++) {
        if (!dq_peek_item(q, &items[i], r->element[i + 3], due,
                          (uint64_t)n[1] + i))
            return dq_err_bad_reply(q->err, "peek");
        due += strcspn(due, " ");
        due += *due == ' ';
    }
    *count = i;
    return i > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

#define DQ_COUNTS 13 /* the numbers at the beginning of a count's reply */

static void dq_write_count(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    size_t i;
    dq_write_three_keys(o, q);
    dq_resp_key(o, q, DQ_DEAD, "");
    dq_resp_key(o, q, DQ_PAUSED, "");
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
    if (status != DELAYQ_OK) return status;
    *counts = q->counts;
    status = dq_query_run(q, &dq_verb_count, &query, n, DQ_COUNTS, NULL);
    if (status != DELAYQ_OK) return status;
    counts->now_ms = n[0] / 1000;
    counts->pending = n[1];
    counts->overdue = n[2];
    counts->ready = n[3];
    counts->dead = n[4];
    counts->next_due_ms = n[5] < 0 ? 0 : n[5];
    if (n[2] > 0 && counts->now_ms > n[5])
        counts->overdue_ms = counts->now_ms - n[5];
    memcpy(&counts->total, n + 6, sizeof counts->total); /* in this order */
    counts->paused = n[12];
    return DELAYQ_OK;
}

DELAYQ_API delayq_status delayq_count_due(delayq *q, const int64_t *due_ms,
                                          size_t n, int64_t *counts) {
    const char *wrong = !due_ms || !counts  ? "due_ms or counts is NULL"
                        : n < 1 || n > 1000 ? "n: 1 to 1,000"
                                            : NULL;
    delayq_status status = dq_check(q, wrong);
    dq_query query = {n, 0, NULL, due_ms};
    int64_t head[DQ_COUNTS];
    redisReply *r, **e;
    size_t i;
    if (status == DELAYQ_OK)
        status = dq_query_run(q, &dq_verb_count, &query, head, DQ_COUNTS, &r);
    if (status != DELAYQ_OK) return status;
    e = r->element + DQ_COUNTS;
    for (i = 0; i < n && r->elements == n + DQ_COUNTS; i++) {
        if (e[i]->type != REDIS_REPLY_INTEGER) break;
        counts[i] = e[i]->integer;
    }
    freeReplyObject(r);
    return i == n ? DELAYQ_OK : dq_err_bad_reply(q->err, "count");
}

/* Run a verb that removes items or dead letters. *removed gets their number. */
static delayq_status dq_query_removal(delayq *q, const dq_verb *verb,
                                      size_t max, const char *wrong,
                                      int64_t *removed) {
    delayq_status status = dq_check(q, wrong);
    dq_query query = {max, 0, NULL, NULL};
    int64_t n[2];
    if (status == DELAYQ_OK) status = dq_query_run(q, verb, &query, n, 2, NULL);
    if (removed) *removed = status == DELAYQ_OK ? n[1] : 0;
    return status;
}

static void dq_write_pause(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    dq_resp_key(o, q, DQ_PAUSED, "");
    dq_resp_key(o, q, DQ_ZSET, "");
    o->keys = o->args;
    dq_resp_text(o, lane->verb->word);
    dq_resp_key(o, q, DQ_CHANNEL, "");
    dq_resp_key(o, q, DQ_WAITERS, "");
}
DQ_QUERY_VERB(pause, "pause", "pause", pause, dq_write_pause, DQ_IDEMPOTENT);
DQ_QUERY_VERB(resume, "resume", "resume", pause, dq_write_pause, DQ_IDEMPOTENT);

DELAYQ_API delayq_status delayq_pause(delayq *q, int on) {
    const dq_verb *verb = on ? &dq_verb_pause : &dq_verb_resume;
    delayq_status status = dq_check(q, NULL);
    int64_t us;
    if (status == DELAYQ_OK) status = dq_query_run(q, verb, NULL, &us, 1, NULL);
    if (status == DELAYQ_OK && !on) dq_sched_on_message(q, 0);
    return status;
}

#ifndef DELAYQ_NO_LUA

#define DQ_FIVE_SCRIPTS(a, b, c, d, e)                              \
    &dq_script_##a, &dq_script_##b, &dq_script_##c, &dq_script_##d, \
        &dq_script_##e
static const dq_script *const dq_scripts[] = {
    DQ_FIVE_SCRIPTS(offer, offer_keyed, tickets, mixed, broadcast),
    DQ_FIVE_SCRIPTS(tick, tick_redisson, take, take_redisson, probe),
    DQ_FIVE_SCRIPTS(peek, count, pause, clear, dead), NULL};

DELAYQ_API delayq_status delayq_load_scripts(delayq *q) {
    delayq_status status = dq_check(q, NULL);
    const dq_script *const *script;
    for (script = dq_scripts; status == DELAYQ_OK && *script; script++) {
        dq_verb load = {
            "load scripts", "",          *script, NULL, NULL, 1,   0,
            DQ_READ_ONLY,   DQ_KEY_NONE, 0,       NULL, NULL, NULL};
        const char *sha;
        delayq_lane lane;
        dq_lane_begin(q, &lane, &dq_policy_call, &load, 1);
        status = dq_wait_run(q, &lane);
        sha = status == DELAYQ_OK ? lane.reply->str : NULL;
        if (status == DELAYQ_OK && (!sha || strcmp(sha, load.script->sha) != 0))
            status = dq_err_bad_reply(q->err, load.name);
        dq_resp_free(&lane.reply);
    }
    return status;
}

#else

DELAYQ_API delayq_status delayq_load_scripts(delayq *q) {
    return dq_check(q, "this program is built with DELAYQ_NO_LUA");
}

#endif

static void dq_write_clear(dq_resp_writer *o, delayq *q,
                           const delayq_lane *lane) {
    (void)lane;
    dq_write_three_keys(o, q);
    o->keys = o->args;
    dq_resp_text(o, q->wire->letter);
    dq_resp_key(o, q, DQ_MIRROR, "");
}
DQ_QUERY_VERB(clear, "clear", "", clear, dq_write_clear, 0);

DELAYQ_API delayq_status delayq_clear(delayq *q, int64_t *removed) {
    int64_t n;
    delayq_status status = dq_query_removal(q, &dq_verb_clear, 0, NULL, &n);
    if (n < 0) {
        q->foreign = DQ_FOREIGN_MIRROR;
        status = dq_err_wire(q, q->err);
    }
    if (removed) *removed = n < 0 ? 0 : n;
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, 0);
    return status;
}

#define DQ_DEAD_MAX 1000000 /* the most letters of a peek or redrive */

static void dq_write_dead(dq_resp_writer *o, delayq *q,
                          const delayq_lane *lane) {
    const char *word = lane->verb->word;
    size_t max = lane->query->max;
    int redrives = strcmp(word, "redrive") == 0;
    int late = q->options.max_late_ms > 0;
    dq_resp_key(o, q, DQ_DEAD, "");
    if (redrives && late)
        dq_resp_key(o, q, DQ_ZSET, "");
    else if (redrives)
        dq_resp_arg(o, q->name, q->name_len, 0);
    o->keys = o->args;
    dq_resp_text(o, word);
    dq_resp_int(o, (int64_t)(max < DQ_DEAD_MAX ? max : DQ_DEAD_MAX));
    dq_resp_int(o, lane->query->from);
    dq_resp_text(o, q->wire->letter);
    if (redrives && late) dq_resp_key(o, q, DQ_CHANNEL, "");
}
DQ_QUERY_VERB(dead_peek, "dead letters", "peek", dead, dq_write_dead,
              DQ_READ_ONLY);
DQ_QUERY_VERB(dead_redrive, "dead letters", "redrive", dead, dq_write_dead, 0);
DQ_QUERY_VERB(dead_clear, "dead letters", "clear", dead, dq_write_dead, 0);

/* Read a dead letter: "reason time\n" or "reason time why\n", then the element.
 * A letter with another beginning is returned whole, as undecodable. */
static int dq_dead_letter(const delayq *q, delayq_dead *d, redisReply *r) {
    size_t reason, line, why, at = 0;
    const unsigned char *e = (const unsigned char *)r->str;
    int kind;
    memset(d, 0, sizeof *d);
    if (r->type != REDIS_REPLY_STRING) return 0;
    d->data = r->str;
    d->len = r->len;
    d->why = "";
    snprintf(d->reason, sizeof d->reason, "undecodable");
    reason = strcspn(r->str, " \n");
    line = strcspn(r->str, "\n");
    if (reason >= sizeof d->reason || line <= reason || line >= r->len)
        return 1;
    memcpy(d->reason, r->str, reason);
    d->reason[reason] = '\0';
    d->dead_ms = dq_num_due(r->str + reason + 1);
    why = reason + 1 + strspn(r->str + reason + 1, "0123456789");
    if (r->str[why] == ' ') d->why = r->str + why + 1;
    r->str[line] = '\0';
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
    const char *wrong = !letters || !count || max == 0
                            ? "letters or count is NULL, or max is 0"
                            : NULL;
    dq_query query = {max, 0, NULL, NULL};
    delayq_status status;
    redisReply *r;
    int64_t n[2];
    size_t i;
    if (count) *count = 0;
    if (dq_check(q, wrong) != DELAYQ_OK) return DELAYQ_ERR_ARG;
    dq_resp_free(&q->reply);
    query.from = from < INT32_MAX ? (int64_t)from : INT32_MAX;
    status = dq_query_run(q, &dq_verb_dead_peek, &query, n, 2, &r);
    if (status != DELAYQ_OK) return status;
    q->reply = r;
    for (i = 0; i + 2 < r->elements; i++)
        if (i == max || !dq_dead_letter(q, &letters[i], r->element[i + 2]))
            return dq_err_bad_reply(q->err, "dead letters");
    *count = i;
    return i > 0 ? DELAYQ_OK : DELAYQ_EMPTY;
}

DELAYQ_API delayq_status delayq_dead_redrive(delayq *q, size_t max,
                                             size_t *count) {
    const char *wrong =
        dq_is_stream(q) ? "a broadcast's dead letters can't be redriven" : NULL;
    int64_t n;
    delayq_status status =
        dq_query_removal(q, &dq_verb_dead_redrive, max, wrong, &n);
    if (status == DELAYQ_OK) dq_sched_on_own_push(q, n);
    if (count) *count = (size_t)n;
    return status;
}

DELAYQ_API delayq_status delayq_dead_clear(delayq *q, int64_t *removed) {
    return dq_query_removal(q, &dq_verb_dead_clear, 1, NULL, removed);
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
