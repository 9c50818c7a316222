/*
 * Fuzz a server's replies to all functions, called in any order. There must be
 * no crash, no leak and no hang. Each status must be valid, each payload must
 * be readable, and each error text must be one line.
 *
 * This file simulates the server. Whenever delayq polls, the server reads the
 * request, checks that it is Redis' protocol, and replies from the input. The
 * file also simulates the clock, which advances mostly while delayq sleeps.
 *
 * The input is a program of bytes, most of which are printable:
 *
 *     2 bytes     options, see options_from and server_from
 *     then ops    a letter calls a function, see ops[]; a digit after it is its
 *                 argument; the values after these are the replies to its
 *                 requests; requests without a value get good replies
 *
 * Values:
 *
 *     sTEXT'      a bulk string
 *     hXYZ.       a bulk string of numbers, see number
 *     jXYZ.       such numbers as integers, elements of the array around them
 *     xKATEXT'    an element: kind K (n, j, o), attempt A, payload
 *     dKATEXT'    a dead letter: the same, with its first line
 *     iX          an integer
 *     eX          an error from a list
 *     yTEXT'      an error of this text
 *     +TEXT'      a status
 *     _ ~         nil; nil as an array
 *     ( ... )     an array
 *     c q v t w   the queue's channel, its name, the invalidation channel, the
 *                 handle's turn channel, the waiters'
 *     a k p       a 1 for each acked item, each an element of the array; a SHA;
 *                 the server's long
 *     rTEXT'      raw bytes
 *     $           nothing now; more comes at the next poll
 *     /           the connection ends
 */
#define _GNU_SOURCE
#include "fuzz.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* --- the world that delayq sees ------------------------------------------ */

static int64_t clock_us;
static int clock_reads; /* of the clock, during a call */

static int fuzz_clock(clockid_t id, struct timespec *t) {
    (void)id;
    CHECK(++clock_reads < 100000); /* a busy loop reads it without end */
    clock_us++;
    t->tv_sec = (time_t)(clock_us / 1000000);
    t->tv_nsec = (long)(clock_us % 1000000) * 1000;
    return 0;
}

static int fuzz_sleep(const struct timespec *t, struct timespec *left) {
    (void)left;
    clock_us += t->tv_sec * 1000000 + t->tv_nsec / 1000;
    return 0;
}

static int fuzz_poll(struct pollfd *fds, nfds_t count, int timeout_ms);

#define clock_gettime(id, t) fuzz_clock(id, t)
#define nanosleep(t, left) fuzz_sleep(t, left)
#define setsockopt(fd, level, name, value, size) ((void)(value), -1)
#define poll(fds, count, ms) fuzz_poll(fds, count, ms)
/* so that random bytes are the same in each run */
#define open(path, flags) open("/dev/zero", flags)

#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "../../delayq.h"

#undef poll
#undef open

/* --- the input ----------------------------------------------------------- */

static const unsigned char *at, *end;

static int next(void) {
    return at < end ? *at++ : -1;
}

static int next_if(int c) {
    if (at == end || *at != c) return 0;
    at++;
    return 1;
}

/* Returns the next digit, or `otherwise` if there is none. */
static int argument(int otherwise) {
    return at < end && *at >= '0' && *at <= '9' ? *at++ - '0' : otherwise;
}

static int at_value(void) {
    return at < end && *at && strchr("shjxdiey+_~(cqvtakpr$/", *at);
}

/* --- the state of one run ------------------------------------------------ */

#define SERVER_US 1700000000000000 /* how far the server's clock is ahead */
#define CONNECTIONS 4
#define ITEMS 3

struct connection {
    int fd, peer; /* the ends of delayq and of the server; -1: none */
    size_t have;
    char buf[131072]; /* the part of a request that has arrived */
};

static struct connection connections[CONNECTIONS];
static delayq queues[2]; /* the second handle shares the first one's sockets */
static delayq *q;
static delayq_item items[ITEMS];
static delayq_message messages[ITEMS];
static int refusals, faults, polls, acking, fuzz_login, fuzz_small;
static int long_size, long_big, apart, boxed;
static const char *good; /* a good reply to the request of the call in run_op */

static void hang_up(struct connection *c) {
    if (c->peer >= 0) close(c->peer);
    c->peer = -1;
}

static struct connection *connection_of(int fd) {
    int i;
    for (i = 0; i < CONNECTIONS; i++)
        if (connections[i].fd == fd && connections[i].peer >= 0)
            return &connections[i];
    return NULL;
}

/* --- values -------------------------------------------------------------- */

struct bytes {
    size_t n;
    char buf[65536];
};

static void put(struct bytes *b, const void *bytes, size_t n) {
    if (n > sizeof b->buf - b->n) return;
    if (n > 0) memcpy(b->buf + b->n, bytes, n);
    b->n += n;
}

static void put_line(struct bytes *b, char sign, const char *text) {
    put(b, &sign, 1);
    put(b, text, strlen(text));
    put(b, "\r\n", 2);
}

static void put_bulk(struct bytes *b, const void *bytes, size_t n) {
    char length[24];
    snprintf(length, sizeof length, "%zu", n);
    put_line(b, '$', length);
    put(b, bytes, n);
    put(b, "\r\n", 2);
}

/* Returns the bytes up to the next ', and their number in *n. */
static const unsigned char *text(size_t *n) {
    const unsigned char *from = at;
    while (at < end && *at != '\'') at++;
    *n = (size_t)(at - from);
    if (at < end) at++;
    return from;
}

/* Returns the number that a letter stands for. */
static const char *number(int c) {
    static char digits[48];
    long long us = SERVER_US + clock_us;
    switch (c) {
    case 'n': break; /* the current time in microseconds */
    case 'm': us = us / 1000; break;
    case 'f': us = us / 1000 + 60000; break;
    case '-': return "-1";
    case 'u': return "1000000";
    case 't': return "10000";
    case 'i': return "2147483648";
    case 'M': return "9007199254740991";
    case 'N': return "-9007199254740991";
    case 'X': return "9007199254740992";
    case 'B': return "100000000000000000000";
    case 'L': return "9223372036854775807";
    case 'S': return "-9223372036854775808";
    case 'w': return "word";
    case 'e': return "";
    default: us = c >= '0' && c <= '9' ? c - '0' : c; break;
    }
    snprintf(digits, sizeof digits, "%lld", us);
    return digits;
}

static void put_numbers(struct bytes *b) {
    char line[256];
    size_t n = 0;
    int c;
    while ((c = next()) >= 0 && c != '.' && n < sizeof line - 48)
        n += (size_t)snprintf(line + n, sizeof line - n, "%s%s", n ? " " : "",
                              number(c));
    put_bulk(b, line, n);
}

static size_t put_integers(struct bytes *b) {
    size_t n = 0;
    int c;
    while ((c = next()) >= 0 && c != '.') {
        put_line(b, ':', number(c));
        n++;
    }
    return n;
}

static void put_element(struct bytes *b, const char *before) {
    static const unsigned char id[17] = "\x10\0\6\x0a\x24\x18\x1e\x40\0abcde";
    static struct bytes e;
    int kind = next(), attempt = next();
    size_t n = 0;
    unsigned char length[8];
    const unsigned char *payload = text(&n);
    e.n = 0;
    put(&e, before, strlen(before));
    if (kind == 'o') {
        put(&e, id + 1, 8);
    } else {
        unsigned char k = kind == 'j' ? 8 : 16;
        unsigned char tries[2] = {attempt & 0x80 ? 0xff : 0, attempt & 15};
        put(&e, &k, 1);
        put(&e, id + 1, k == 8 ? 8 : 14);
        if (k == 16) put(&e, tries, 2);
    }
    dq_elem_put_uint(length, long_size, long_big, n);
    put(&e, length, (size_t)long_size);
    put(&e, payload, n);
    put_bulk(b, e.buf, e.n);
}

/* Put a text without CR, so that it is one line of the protocol. */
static void put_text_line(struct bytes *b, char sign) {
    size_t n, i;
    const unsigned char *from = text(&n);
    put(b, &sign, 1);
    for (i = 0; i < n; i++)
        put(b, from[i] == '\r' ? (const void *)"\n" : &from[i], 1);
    put(b, "\r\n", 2);
}

static void put_error(struct bytes *b) {
    static const char *const errors[] = {
        "NOSCRIPT No matching script. Please use EVAL.",
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "OOM command not allowed when used memory > 'maxmemory'.",
        "READONLY You can't write against a read only replica.",
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script.",
        "NOAUTH Authentication required.",
        "WRONGPASS invalid username-password pair or user is disabled.",
        "NOPERM this user has no permissions to run the 'evalsha' command",
        "ERR max number of clients reached",
        "ERR unknown command `CLIENT`, with args beginning with: `secret`, ",
        "ERR Error running script: @user_script: 7: -OOM command not allowed",
        "MISCONF Redis is configured to save RDB snapshots",
        "CLUSTERDOWN The cluster is down",
        "MOVED 1 127.0.0.1:7001",
        "",
    };
    unsigned c = (unsigned)next();
    put_line(b, '-', errors[c % (sizeof errors / sizeof errors[0])]);
}

static size_t put_ones(struct bytes *b) {
    int n = acking > 0 ? acking : 1, i;
    for (i = 0; i < n; i++) put_line(b, ':', "1");
    return (size_t)n;
}

static void put_long(struct bytes *b) {
    unsigned char one[8];
    dq_elem_put_uint(one, long_size, long_big, 1);
    put_bulk(b, one, (size_t)long_size);
}

static size_t put_value(struct bytes *b, int depth);

static void put_turn(struct bytes *b) {
    char channel[64];
    snprintf(channel, sizeof channel, DQ_TURN "{jobs}%s", q->id);
    put_bulk(b, channel, strlen(channel));
}

static void put_array(struct bytes *b, int depth) {
    size_t before = b->n, count = 0, n;
    char length[24];
    while (at < end && !next_if(')')) {
        if (!at_value()) break;
        count += put_value(b, depth + 1);
    }
    n = (size_t)snprintf(length, sizeof length, "*%zu\r\n", count);
    if (n > sizeof b->buf - b->n) return;
    memmove(b->buf + before + n, b->buf + before, b->n - before);
    memcpy(b->buf + before, length, n);
    b->n += n;
}

#define CHANNEL "redisson_delay_queue_channel:{jobs}"
#define WAITERS DQ_WAITERS "{jobs}"

/* Put the next value of the input. Returns how many array elements it has. */
static size_t put_value(struct bytes *b, int depth) {
    size_t n = 0;
    const unsigned char *from;
    switch (next()) {
    case 's':
        from = text(&n);
        put_bulk(b, from, n);
        break;
    case 'r':
        from = text(&n);
        put(b, from, n);
        break;
    case 'h': put_numbers(b); break;
    case 'j': return put_integers(b);
    case 'x': put_element(b, ""); break;
    case 'd': put_element(b, "buried 1700000000000 exit 7\n"); break;
    case 'i': put_line(b, ':', number(next())); break;
    case 'e': put_error(b); break;
    case 'y': put_text_line(b, '-'); break;
    case '+': put_text_line(b, '+'); break;
    case '_': put(b, "$-1\r\n", 5); break;
    case '~': put(b, "*-1\r\n", 5); break;
    case 'c': put_bulk(b, CHANNEL, strlen(CHANNEL)); break;
    case 'q': put_bulk(b, "jobs", 4); break;
    case 'v': put_bulk(b, DQ_INVALIDATE, strlen(DQ_INVALIDATE)); break;
    case 't': put_turn(b); break;
    case 'w': put_bulk(b, WAITERS, strlen(WAITERS)); break;
    case 'a': return put_ones(b);
    case 'k':
        put_bulk(b, "0123456789012345678901234567890123456789", 40);
        break;
    case 'p': put_long(b); break;
    case '(':
        if (depth < 9) put_array(b, depth);
        break;
    default: break; /* $ and / write nothing */
    }
    return 1;
}

/* Send the next value of the input to delayq. */
static void say_value(struct connection *c) {
    static struct bytes b;
    int last = *at == '/';
    ssize_t done;
    b.n = 0;
    put_value(&b, 0);
    done = send(c->peer, b.buf, b.n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (last || done != (ssize_t)b.n) hang_up(c);
}

/* Send a value that is not from the input. */
static void say(struct connection *c, const char *value) {
    const unsigned char *at_then = at, *end_then = end;
    at = (const unsigned char *)value;
    end = at + strlen(value);
    say_value(c);
    at = at_then;
    end = end_then;
}

/* --- the server ---------------------------------------------------------- */

struct command {
    char name[64]; /* the first word; with CLIENT and SCRIPT the first two */
    size_t words;
    /* the script that the command runs; NULL if note_word() doesn't list it */
    const dq_script *script;
};

/* The good replies to requests that delayq sends by itself. PROBE is the script
 * of a new connection. Depending on the options, the replies to the requests of
 * the login, or to the other requests, come from the input instead. */
static const struct {
    const char *name, *answer;
    int login;
} own_requests[] = {
    {"AUTH", "+OK'", 1},
    {"SELECT", "+OK'", 1},
    {"CLIENT SETNAME", "+OK'", 1},
    {"PROBE", "(jn0.p)", 1},
    {"EXISTS", "i0", 1},
    {"CLIENT ID", "i5", 1},
    {"SUBSCRIBE", "(ssubscribe'ci1)", 1},
    {"UNSUBSCRIBE", "(sunsubscribe'ci1)", 1},
    {"PING", "(spong's')", 0},
    {"SCRIPT LOAD", "k", 0},
    {"CLIENT TRACKING", "+OK'", 0},
    {"CLIENT CACHING", "+OK'", 0},
    {"LLEN", "i0", 0},
};

#define NOTHING "(jn-0.i0s's0-0')" /* the reply if nothing is due */

static const char *script_answer(const struct command *k) {
    if (good[0] != 'O') return good;
    if (k->script == &dq_script_offer) return "(jn00.)";
    if (k->script == &dq_script_tickets) return "(jn1.)";
    if (k->script != &dq_script_offer_keyed) return NOTHING;
    return "(jn0m.s1700000000000-00112233445566778899aabbccddeeff')";
}

static void reply_to(struct connection *c, const struct command *k) {
    const char *answer = script_answer(k);
    int fuzzed = 1;
    size_t i;
    for (i = 0; i < sizeof own_requests / sizeof own_requests[0]; i++) {
        if (strcmp(own_requests[i].name,
                   k->script == &dq_script_probe ? "PROBE" : k->name) != 0)
            continue;
        answer = own_requests[i].answer;
        fuzzed = own_requests[i].login ? fuzz_login : fuzz_small;
    }
    if (fuzzed && at_value())
        say_value(c);
    else
        say(c, answer);
}

/* Read a header such as "*3\r\n" or "$5\r\n". Sets *value to its number.
 * Returns the address of the next byte, or NULL if the header is incomplete. */
static const char *header(const char *p, const char *stop, char sign,
                          size_t *value) {
    *value = 0;
    if (p == stop) return NULL;
    CHECK(*p == sign);
    for (p++; p < stop && *p >= '0' && *p <= '9'; p++)
        *value = *value * 10 + (size_t)(*p - '0');
    if (stop - p < 2) return NULL;
    CHECK(p[0] == '\r' && p[1] == '\n' && p[-1] != sign);
    return p + 2;
}

static void note_word(struct command *k, size_t i, const char *p, size_t n) {
    int pair = strcmp(k->name, "CLIENT") == 0 || strcmp(k->name, "SCRIPT") == 0;
    if (i == 0 || (i == 1 && pair)) {
        size_t have = strlen(k->name);
        CHECK(n > 0 && n < 20);
        if (i == 1) k->name[have++] = ' ';
        memcpy(k->name + have, p, n);
        k->name[have + n] = '\0';
    }
    if (i == 1 && n == 40 && strcmp(k->name, "EVALSHA") == 0) {
        static const dq_script *const scripts[] = {
            &dq_script_probe, &dq_script_offer, &dq_script_offer_keyed,
            &dq_script_tickets};
        size_t s;
        for (s = 0; s < sizeof scripts / sizeof scripts[0]; s++)
            if (memcmp(p, scripts[s]->sha, 40) == 0) k->script = scripts[s];
    }
}

/* Returns the length of the first command in c->buf, or 0 if it is partial. */
static size_t first_command(const struct connection *c, struct command *k) {
    const char *p = c->buf, *stop = c->buf + c->have;
    size_t i, n;
    memset(k, 0, sizeof *k);
    p = header(p, stop, '*', &k->words);
    if (!p) return 0;
    CHECK(k->words > 0);
    for (i = 0; i < k->words; i++) {
        p = header(p, stop, '$', &n);
        if (!p || (size_t)(stop - p) < n + 2) return 0;
        CHECK(p[n] == '\r' && p[n + 1] == '\n');
        note_word(k, i, p, n);
        p += n + 2;
    }
    return (size_t)(p - c->buf);
}

/* Read the bytes that delayq has written, and answer each command. */
static void serve(struct connection *c) {
    struct command k;
    ssize_t n =
        recv(c->peer, c->buf + c->have, sizeof c->buf - c->have, MSG_DONTWAIT);
    size_t used;
    if (n <= 0) return;
    c->have += (size_t)n;
    CHECK(c->have < sizeof c->buf);
    while (c->peer >= 0 && (used = first_command(c, &k)) > 0) {
        c->have -= used;
        memmove(c->buf, c->buf + used, c->have);
        reply_to(c, &k);
    }
}

static void serve_all(void) {
    int i;
    for (i = 0; i < CONNECTIONS; i++)
        if (connections[i].peer >= 0) serve(&connections[i]);
}

/* While delayq sleeps, send messages if the input has ! and a value. */
static int speak(const struct pollfd *fds, nfds_t count) {
    nfds_t i;
    if (at + 1 >= end || *at != '!') return 0;
    at++;
    for (i = count; i-- > 0 && at_value();) {
        struct connection *c = connection_of(fds[i].fd);
        if (c) say_value(c);
    }
    return 1;
}

static int fuzz_poll(struct pollfd *fds, nfds_t count, int timeout_ms) {
    nfds_t i;
    int n;
    CHECK(++polls < 100000);
    if (at == end || polls > 300) { /* ends calls that wait without a limit */
        delayq_wake(&queues[0]);
        delayq_wake(&queues[1]);
    }
    for (i = 0; i < count; i++) {
        struct connection *c = connection_of(fds[i].fd);
        if (c) serve(c);
    }
    n = poll(fds, count, 0);
    if (n == 0 && timeout_ms > 0) {
        int rest = at_value(); /* the input has the rest of a reply */
        int spoken = !rest && speak(fds, count);
        for (i = 0; rest && i < count; i++) {
            struct connection *c = connection_of(fds[i].fd);
            if (!c || !at_value()) continue;
            say_value(c);
            spoken = 1;
        }
        if (!spoken) clock_us += timeout_ms * 1000LL;
        n = poll(fds, count, 0);
    }
    return n;
}

/* The connect hook. It gives delayq one end of a socket pair. */
static redisContext *dial(void *user, int timeout_ms) {
    struct connection *c = connections;
    int fds[2], i;
    CHECK(user == queues && timeout_ms > 0);
    if (refusals > 0) {
        refusals--;
        return refusals & 1 ? redisConnectUnix("/nowhere") : NULL;
    }
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    for (i = 0; i < CONNECTIONS; i++) {
        if (connections[i].fd == fds[0]) hang_up(&connections[i]);
        if (connections[i].peer < 0) c = &connections[i];
    }
    hang_up(c); /* delayq has at most two connections, so c is old */
    c->fd = fds[0];
    c->peer = fds[1];
    c->have = 0;
    return redisConnectFd(fds[0]);
}

/* --- what has to hold ---------------------------------------------------- */

static void check_line(const char *line, size_t size) {
    CHECK(memchr(line, 0, size));
    CHECK(!strpbrk(line, "\r\n"));
}

static void told(void *user, delayq_status status, const char *line) {
    CHECK(user == queues && status <= DELAYQ_OK);
    CHECK(strcmp(delayq_strstatus(status), "unknown status") != 0);
    check_line(line, sizeof q->err);
    if (++faults > 20) delayq_wake(q);
}

static void check_status(delayq_status status) {
    CHECK(strcmp(delayq_strstatus(status), "unknown status") != 0);
    check_line(delayq_errmsg(q), sizeof q->err);
    CHECK(memchr(q->cursor, 0, sizeof q->cursor));
    if (status < 0) CHECK(delayq_errmsg(q)[0]);
}

static void check_bytes(const void *data, size_t len) {
    static volatile unsigned char sum;
    const unsigned char *p = (const unsigned char *)data;
    CHECK(p || len == 0);
    while (len-- > 0) sum = (unsigned char)(sum + *p++);
}

static void check_items(delayq_status status, size_t count, size_t max) {
    size_t i;
    check_status(status);
    CHECK(count <= max && (status == DELAYQ_OK) == (count > 0));
    for (i = 0; i < count; i++) {
        check_bytes(items[i].data, items[i].len);
        CHECK(memchr(items[i].ticket.text, 0, sizeof items[i].ticket.text));
        CHECK(items[i].attempt >= 0 && items[i].late_us >= -1);
    }
}

/* --- the functions ------------------------------------------------------- */

static const int64_t times[] = {
    0, 1, 50, 1000, 20000, 10, 3600, DQ_MAX_DUE / 4, DELAYQ_FOREVER, -2};

static int64_t time_argument(int otherwise) {
    return times[argument(otherwise)];
}

/* If the item has no valid ticket, give it one. */
static void give_ticket(delayq_ticket *t) {
    if (!dq_elem_is_ticket(t->text))
        snprintf(t->text, sizeof t->text,
                 "1700000000000-00060b1c2d3e4f50a1a2a3a4a5000002");
}

/* Check that a call ends within its timeout and 6 I/O and connect timeouts. */
static void check_time(int64_t begin, int64_t timeout_ms) {
    int64_t trips =
        6 * (q->options.io_timeout_ms + q->options.connect_timeout_ms);
    if (timeout_ms < 0) return;
    CHECK(clock_us - begin <= (timeout_ms + trips) * 1000);
}

static void do_offer(void) {
    int64_t delay = time_argument(0);
    check_status(delayq_offer(q, "payload", 7, delay));
}

static void offer_them(void) {
    delayq_status s = delayq_offer_many(q, messages, ITEMS);
    int i, bad = 0;
    check_status(s);
    for (i = 0; i < ITEMS; i++) {
        check_status(messages[i].status);
        CHECK(memchr(messages[i].ticket.text, 0, sizeof(delayq_ticket)));
        bad += messages[i].status < 0;
    }
    CHECK((s < 0) == (bad > 0));
}

static void do_offer_many(void) {
    int i, how = argument(0);
    memset(messages, 0, sizeof messages);
    for (i = 0; i < ITEMS; i++) {
        messages[i].data = &"abc"[i];
        messages[i].len = 1;
        messages[i].delay_ms = how & 1 ? 0 : 60000;
        messages[i].key = (how & 2) && i != 1 ? "key" : NULL;
        messages[i].key_ttl_ms = 1000;
        messages[i].replace = how & 4;
        messages[i].due_ms = how == 9 ? DQ_MAX_DUE - 2000 : 0;
    }
    offer_them();
}

static void do_tick(void) {
    int64_t wait = -1;
    if (argument(0)) q->next_poll_us = 0;
    check_status(delayq_tick(q, &wait));
    CHECK(wait >= 0 && wait <= q->options.max_wait_ms);
}

static void do_take(void) {
    int64_t timeout = time_argument(0), begin = clock_us;
    delayq_status s = delayq_take(q, &items[0], timeout);
    check_items(s, s == DELAYQ_OK, 1);
    check_time(begin, timeout);
}

static void do_take_many(void) {
    int64_t timeout = time_argument(0), begin = clock_us;
    size_t count = 9;
    delayq_status s = delayq_take_many(q, items, ITEMS, &count, timeout);
    check_items(s, count, ITEMS);
    check_time(begin, timeout);
}

static void do_ack(void) {
    acking = 1;
    if (!argument(0)) give_ticket(&items[0].ticket);
    check_status(delayq_ack(q, &items[0]));
}

static void do_ack_many(void) {
    delayq_status s;
    int i, bad = 0;
    for (i = 0; i < ITEMS; i++) give_ticket(&items[i].ticket);
    acking = ITEMS;
    s = delayq_ack_many(q, items, ITEMS);
    check_status(s);
    for (i = 0; i < ITEMS; i++) {
        check_status(items[i].acked);
        bad += items[i].acked < 0;
    }
    CHECK((s < 0) == (bad > 0));
}

static void do_ack_take(void) {
    int64_t timeout = time_argument(0), begin = clock_us;
    delayq_status s;
    acking = 1;
    give_ticket(&items[0].ticket);
    s = delayq_ack_take(q, &items[0], timeout);
    check_items(s, s == DELAYQ_OK, 1);
    check_status(items[0].acked);
    check_time(begin, timeout);
    /* The ticket is kept until the outcome is known. */
    if (s == DELAYQ_EMPTY || s == DELAYQ_WOKEN) CHECK(!items[0].ticket.text[0]);
    if (s < 0 && items[0].acked >= 0) CHECK(!items[0].ticket.text[0]);
}

static void do_nack(void) {
    int64_t delay = time_argument(0);
    give_ticket(&items[0].ticket);
    check_status(delayq_nack(q, &items[0], delay));
}

static void do_extend(void) {
    int64_t lease = time_argument(3);
    give_ticket(&items[0].ticket);
    check_status(delayq_extend(q, &items[0], lease));
    CHECK(memchr(items[0].ticket.text, 0, sizeof(delayq_ticket)));
}

static void do_bury(void) {
    static char long_text[300];
    const char *const whys[] = {NULL, "", "exit 7", " \n\x7f\xc3\xa9",
                                long_text};
    memset(long_text, 0x80, sizeof long_text - 1); /* this is not UTF-8 */
    give_ticket(&items[0].ticket);
    check_status(delayq_bury(q, &items[0], whys[argument(0) % 5]));
}

static void do_cancel(void) {
    acking = 1;
    give_ticket(&messages[0].ticket);
    check_status(delayq_cancel(q, &messages[0].ticket));
}

static void do_cancel_key(void) {
    check_status(delayq_cancel_key(q, "key"));
}

static void do_pause(void) {
    check_status(delayq_pause(q, argument(0)));
}

static void do_reschedule(void) {
    int64_t delay = time_argument(0);
    give_ticket(&messages[0].ticket);
    check_status(delayq_reschedule(q, &messages[0].ticket, delay));
    CHECK(memchr(messages[0].ticket.text, 0, sizeof(delayq_ticket)));
}

static void do_peek(void) {
    size_t count = 9;
    delayq_ticket *after = argument(0) ? &items[0].ticket : NULL;
    delayq_status s;
    if (after) give_ticket(after);
    s = delayq_peek(q, items, ITEMS, &count, after);
    check_items(s, count, ITEMS);
}

static void do_count(void) {
    delayq_counts counts;
    check_status(delayq_count(q, &counts));
}

static void do_clear(void) {
    int64_t removed = 0;
    check_status(delayq_clear(q, argument(0) ? NULL : &removed));
}

static void do_dead_peek(void) {
    delayq_dead letters[ITEMS];
    size_t count = 9, i;
    delayq_status s = delayq_dead_peek(q, letters, ITEMS, &count, 0);
    check_status(s);
    CHECK(count <= ITEMS && (s == DELAYQ_OK) == (count > 0));
    for (i = 0; i < count; i++) {
        check_bytes(letters[i].data, letters[i].len);
        CHECK(memchr(letters[i].reason, 0, sizeof letters[i].reason));
        check_bytes(letters[i].why, strlen(letters[i].why) + 1);
    }
}

static void do_redrive(void) {
    size_t count = 9;
    check_status(delayq_dead_redrive(q, 2, &count));
}

static void do_dead_clear(void) {
    int64_t removed;
    check_status(delayq_dead_clear(q, &removed));
}

static void do_wait(void) {
    delayq *const both[2] = {&queues[0], &queues[1]};
    int64_t timeout = time_argument(0);
    size_t count = queues[1].open == DQ_OPEN ? 2 : 1;
    delayq_status s = delayq_wait(both, count, timeout);
    CHECK(strcmp(delayq_strstatus(s), "unknown status") != 0);
}

static void do_wake(void) {
    delayq_wake(q);
}

static void do_flush(void) {
    int64_t timeout = time_argument(2);
    delayq_status s = delayq_flush(q, timeout);
    CHECK(strcmp(delayq_strstatus(s), "unknown status") != 0);
}

/* Check that the outbox has not settled more ops than it has accepted. */
static void do_outbox(void) {
    delayq_outbox_state state;
    if (delayq_outbox(q, &state) != DELAYQ_OK) return;
    CHECK(state.offers_settled <= state.offers_accepted);
    CHECK(state.changes_settled <= state.changes_accepted);
    CHECK(state.bytes <= state.size);
}

static void do_swap(void) {
    q = q == &queues[0] && queues[1].open ? &queues[1] : &queues[0];
}

static void do_idle(void) {
    clock_us += (times[argument(3) % 6] + 1) * 1000;
}

/* Send bytes that are no reply to a request. The argument is 1 for the command
 * socket, 0 for the subscriber. */
static void do_speak(void) {
    redisContext *c =
        argument(0) ? queues[0].conn->cmd.c : queues[0].conn->sub.c;
    struct connection *to = c ? connection_of(c->fd) : NULL;
    if (to && at_value()) say_value(to);
}

static void do_cut(void) {
    redisContext *c =
        argument(1) ? queues[0].conn->cmd.c : queues[0].conn->sub.c;
    struct connection *to = c ? connection_of(c->fd) : NULL;
    if (to) hang_up(to);
}

static void do_refuse(void) {
    refusals = argument(1);
}

static void do_fds(void) {
    int fds[3];
    size_t n = delayq_fds(q, fds, 3);
    CHECK(n <= 3);
    while (n-- > 0) CHECK(fds[n] >= 0);
}

#define CHANGED "(jnf.)"

static const struct {
    char letter;
    void (*run)(void);
    const char *good, *cast; /* a good reply; a good reply in a broadcast */
} ops[] = {
    /* F repeats the offers of M unchanged, in case their outcome is unknown. */
    {'O', do_offer, "O", NULL},
    {'M', do_offer_many, "O", NULL},
    {'F', offer_them, "O", NULL},
    {'T', do_tick, NOTHING, NULL},
    {'G', do_take, "(jn-0.i0hm.xn1hello')", "(jn-0.i0hm.s1-1's1-1'shello')"},
    {'H', do_take_many, "(jn-0.i0s5 - -'xn1hello'xj0x'xo0y')",
     "(jn-0.(j00000.)hmm.s1-2's1-1'shello's1-2's')"},
    {'A', do_ack, "(jn.a)", NULL},
    {'B', do_ack_many, "(jn.a)", NULL},
    {'C', do_ack_take, "(jn-1.i0hm.xn1hello')", NULL},
    {'N', do_nack, CHANGED, NULL},
    {'X', do_extend, CHANGED, NULL},
    {'U', do_bury, "(jn1.)", NULL},
    {'K', do_cancel, "(jn.a)", NULL},
    {'c', do_cancel_key, "(jn00.s')", NULL},
    {'p', do_pause, "(jn.)", NULL},
    {'R', do_reschedule, CHANGED, NULL},
    {'P', do_peek, "(jn.hm.xn1pending')", NULL},
    {'Q', do_count, "(jn2110m0000000.)", NULL},
    {'L', do_clear, "(jn3.)", NULL},
    {'D', do_dead_peek, "(jn1.dn1dead')", NULL},
    {'V', do_redrive, "(jn2.)", NULL},
    {'Z', do_dead_clear, "(jn1.)", NULL},
    {'W', do_wait, NOTHING, NULL},
    {'w', do_wake, NOTHING, NULL},
    {'S', do_swap, NOTHING, NULL},
    {'I', do_idle, NOTHING, NULL},
    {'E', do_speak, NOTHING, NULL},
    {'Y', do_cut, NOTHING, NULL},
    {'J', do_refuse, NOTHING, NULL},
    {'f', do_fds, NOTHING, NULL},
    {'l', do_flush, "O", NULL},
    {'b', do_outbox, NOTHING, NULL},
};

static void run_op(int letter) {
    size_t i;
    clock_reads = polls = faults = acking = 0;
    for (i = 0; i < sizeof ops / sizeof ops[0]; i++) {
        if (ops[i].letter != letter) continue;
        good = queues[0].options.wire == DELAYQ_BROADCAST && ops[i].cast
                   ? ops[i].cast
                   : ops[i].good;
        ops[i].run();
        serve_all(); /* since calls don't poll if there is an outbox */
    }
}

/* hiredis allocates as many elements as a reply announces, so ASan must allow
 * large allocations. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=64:"
           "quarantine_size_mb=16";
}

/* --- one run ------------------------------------------------------------- */

/* Options selected by the first byte. The lower 2 bits: the wire; 4: a lease;
 * 8: broadcast; 16: a second handle; 32 and 64: the URL; 128: the replies to
 * the login come from the input. */
static void options_from(delayq_options *o, int how) {
    static const char *const urls[] = {NULL, "redis://u:secret@h/1",
                                       "unix://:secret@/s"};
    static const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                        DELAYQ_REDISSON_OLD};
    memset(o, 0, sizeof *o);
    o->name = "jobs";
    o->wire = wires[(how & 3) % 3];
    o->lease_ms = how & 4 ? 60000 : 0;
    o->max_attempts = o->wire == DELAYQ_NATIVE && (how & 4) ? 5 : 0;
    if ((how & 15) == 8 || (how & 15) == 11) o->wire = DELAYQ_BROADCAST;
    o->broadcast_after = o->wire == DELAYQ_BROADCAST && (how & 3) ? "" : NULL;
    o->url = urls[(how >> 5 & 3) % 3];
    o->connect = dial;
    o->log = told;
    o->user = queues;
    fuzz_login = how >> 7 & 1;
}

/* Options selected by the second byte. 1: a server of 32 bits; 2: a big-endian
 * server; 8: the replies to SCRIPT LOAD and the like come from the input, too;
 * 16: the second handle has another queue, and the first handle is closed
 * first; 32: the first handle has an outbox; 128: the second handle has one. */
static void server_from(int how) {
    boxed = (how >> 5 & 1) | (how >> 6 & 2);
    apart = how >> 4 & 1;
    long_size = how & 1 ? 4 : 8;
    long_big = how >> 1 & 1;
    fuzz_small = how >> 3 & 1;
}

/* The memory of the outboxes. They have the smallest size that is allowed. */
static void *boxes[2];

static void add_outbox(delayq_options *o, int number) {
    if (!(boxed >> number & 1)) return;
    boxes[number] = malloc(8192);
    CHECK(boxes[number]);
    memset(boxes[number], 0xa5, 8192);
    o->outbox = boxes[number];
    o->outbox_size = 8192;
}

static void close_handle(int number) {
    delayq_close(&queues[number]);
    free(boxes[number]);
    boxes[number] = NULL;
}

static void open_second(void) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = apart ? "more" : "jobs";
    o.wire = queues[0].options.wire;
    o.share = &queues[0];
    o.log = told;
    o.user = queues;
    add_outbox(&o, 1);
    q = &queues[1];
    check_status(delayq_open(q, &o));
    q = &queues[0];
}

static void begin_run(void) {
    int i;
    clock_us = 1000000000;
    refusals = clock_reads = polls = faults = acking = 0;
    good = NOTHING;
    memset(queues, 0, sizeof queues);
    memset(items, 0, sizeof items);
    memset(messages, 0, sizeof messages);
    for (i = 0; i < CONNECTIONS; i++)
        connections[i].fd = connections[i].peer = -1;
    q = &queues[0];
}

static void end_run(void) {
    int i;
    close_handle(!apart);
    if (!queues[apart].conn)
        check_status(delayq_offer(q = queues + 1, "", 0, 0));
    close_handle(apart);
    for (i = 0; i < CONNECTIONS; i++) hang_up(&connections[i]);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    delayq_options o;
    int how, c;
    if (size < 2) return 0;
    begin_run();
    at = data;
    end = data + size;
    how = next();
    options_from(&o, how);
    server_from(next());
    add_outbox(&o, 0);
    check_status(delayq_open(q, &o));
    if (how & 16 && o.wire != DELAYQ_BROADCAST) open_second();
    while ((c = next()) >= 0) run_op(c);
    end_run();
    return 0;
}
