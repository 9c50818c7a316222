/*
 * queue.c -- signals, open queues, and commands that delayq.h has no call for.
 *
 * No other file looks into a handle. Between two calls of delayq.h, command()
 * sends Redis commands over the handle's connection. So these commands use the
 * handle's login, TLS, Sentinel or cluster.
 */
#define DELAYQ_IMPLEMENTATION
#include "tool.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*-----------------------------------------------------------------------------
 * MARK: - Signals
 * >>signals   Ctrl-C, children, a new window size
 *
 * A signal sets a flag, wakes all handles, and writes to a pipe, which ends a
 * wait_for().
 *---------------------------------------------------------------------------*/

delayq *handles;
size_t handle_count;
char **queue_names;
static int listed; /* 1: the names of the queues were found on the server */
volatile sig_atomic_t stops;
volatile sig_atomic_t suspended; /* 1: Ctrl-Z was pressed in watch */
static volatile sig_atomic_t stop_signal;
static int alarm_pipe[2];

void on_signal(int number) {
    int saved = errno;
    size_t i;
    if (number == SIGTSTP) suspended = 1;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
        stops++;
        stop_signal = number;
    }
    for (i = 0; i < handle_count; i++) delayq_wake(&handles[i]);
    if (write(alarm_pipe[1], "s", 1) < 0) {
        /* The pipe is full, so its readers wake anyway. */
    }
    errno = saved;
}

void catch_signal(int number, void (*how)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = how;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL); /* no SA_RESTART: reads end with EINTR */
}

/* Catch a stop signal, unless the program ignores it (nohup). */
void catch_stop(int number) {
    struct sigaction old;
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        catch_signal(number, on_signal);
}

void prepare_signals(void) {
    int i;
    if (pipe(alarm_pipe) != 0) {
        complain("no pipe: %s", strerror(errno));
        exit(BROKEN);
    }
    for (i = 0; i < 2; i++) {
        fcntl(alarm_pipe[i], F_SETFL, O_NONBLOCK);
        fcntl(alarm_pipe[i], F_SETFD, FD_CLOEXEC);
    }
    catch_signal(SIGPIPE, SIG_IGN); /* write() reports a closed pipe */
    catch_stop(SIGINT);
    catch_stop(SIGTERM);
    catch_stop(SIGHUP);
}

/* Sleep for `ms` milliseconds, but at most an hour, or until a signal comes or
 * fd is readable (-1: no descriptor). Returns 1 if fd is readable. */
int wait_for(int fd, int64_t ms) {
    struct pollfd p[2];
    char said[64];
    p[0].fd = alarm_pipe[0];
    p[1].fd = fd;
    p[0].events = p[1].events = POLLIN;
    p[0].revents = p[1].revents = 0;
    if (ms < 0) ms = 0;
    poll(p, fd < 0 ? 1 : 2, ms > 3600000 ? 3600000 : (int)ms);
    if (p[0].revents)
        while (read(alarm_pipe[0], said, sizeof said) > 0) continue;
    return fd >= 0 && p[1].revents != 0;
}

/* Returns the exit code of a command that a signal has stopped. */
int stopped(void) {
    return 128 + (int)stop_signal;
}

/*-----------------------------------------------------------------------------
 * MARK: - Faults
 * >>faults   exit codes, and messages on stderr
 *---------------------------------------------------------------------------*/

int exit_code(delayq_status status) {
    switch (status) {
    case DELAYQ_OK: return DONE;
    case DELAYQ_EMPTY:
    case DELAYQ_GONE:
    case DELAYQ_DUPLICATE:
    case DELAYQ_WOKEN: return NOTHING;
    case DELAYQ_ERR_ARG: return USAGE;
    case DELAYQ_ERR_IO:
    case DELAYQ_ERR_TIMEOUT:
    case DELAYQ_ERR_AGAIN: return UNREACHABLE;
    case DELAYQ_ERR_AUTH:
    case DELAYQ_ERR_REDIS:
    case DELAYQ_ERR_READONLY:
    case DELAYQ_ERR_FULL:
    case DELAYQ_ERR_WIRE:
    case DELAYQ_ERR_TYPE: return REFUSED;
    case DELAYQ_ERR_MEMORY: return BROKEN;
    case DELAYQ_ERR_PROTOCOL:
    case DELAYQ_ERR_UNKNOWN: break;
    }
    return UNKNOWN;
}

/* Returns 1 if a fault is transient, so that another attempt may succeed. */
int passing(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}

/* Replace the library's words with those of the command line: options.tls_ca
 * becomes --tls-ca, wire = DELAYQ_REDISSON_OLD becomes --wire redisson-old. */
static const char *in_our_words(const char *text, char to[512]) {
    const char *url = getenv("DELAYQ_URL");
    const char *const words[][2] = {
        {"options.name", "the queue's name"},
        {"options.io_timeout_ms", "--io-timeout"},
        {"options.connect_timeout_ms", "--connect-timeout"},
        {"options.url", set.url && set.url == url ? "DELAYQ_URL" : "--url"},
        {"DELAYQ_TLS defined before delayq.h",
         "a delayq that was built where hiredis >= 1.0 and libssl-dev are "
         "installed"},
        {"wire = DELAYQ_REDISSON_OLD", "--wire redisson-old"},
        {"wire = DELAYQ_REDISSON", "--wire redisson"},
        {"DELAYQ_NATIVE", "--wire native"}};
    const size_t count = sizeof words / sizeof words[0];
    size_t n = 0, i;
    while (*text && n + 32 < 512) {
        for (i = 0; i < count; i++)
            if (strncmp(text, words[i][0], strlen(words[i][0])) == 0) break;
        if (i < count) {
            if (n + strlen(words[i][1]) + 32 >= 512) break;
            n += (size_t)snprintf(to + n, 512 - n, "%s", words[i][1]);
            text += strlen(words[i][0]);
        } else if (strncmp(text, "options.", 8) == 0) {
            to[n++] = '-', to[n++] = '-';
            for (text += 8; isalnum((unsigned char)*text) || *text == '_';
                 text++)
                if (n + 32 < 512) to[n++] = *text == '_' ? '-' : *text;
        } else {
            to[n++] = *text++;
        }
    }
    to[n] = '\0';
    return to;
}

/* Returns the error text without the part that promises another attempt, since
 * this program makes none. */
const char *reason(const delayq *q) {
    static const char *const promises[] = {"; the next attempt is in ",
                                           "; the attempt goes on"};
    static char text[512];
    size_t i;
    in_our_words(delayq_errmsg(q), text);
    for (i = 0; i < 2; i++) {
        char *at = strstr(text, promises[i]);
        if (at) *at = '\0';
    }
    return text;
}

/* 1: a transient fault was reported, and no reply has come since */
int away;
/* 1: this command goes on while the server is away (PATIENT) */
static int runs_on;

/* Print an event if runs_on; print "connected" only after a reported fault. */
static void tell_event(const char *text) {
    char words[512];
    int connected = strncmp(text, "connected", 9) == 0;
    if (!runs_on || (connected && !away)) return;
    complain("%s", in_our_words(text, words));
    if (connected) away = 0;
}

/* Print a fault that does not end a call. If texts differ only in their numbers
 * ("next attempt in 4800 ms"), print at most one of them a minute. */
void tell(void *user, delayq_status status, const char *text) {
    static struct {
        char text[256];
        int64_t told_ms;
    } last[4];
    static size_t next;
    char shape[256], words[512];
    int64_t now = clock_ms();
    size_t i, n = 0;
    (void)user;
    if (set.quiet) return;
    if (status == DELAYQ_OK) {
        tell_event(text);
        return;
    }
    for (i = 0; text[i] && n + 1 < sizeof shape; i++)
        if (!isdigit((unsigned char)text[i])) shape[n++] = text[i];
    shape[n] = '\0';
    for (i = 0; i < 4; i++) {
        if (strcmp(last[i].text, shape) != 0) continue;
        if (now - last[i].told_ms < 60000) return;
        break;
    }
    if (i == 4) i = next++ % 4;
    memcpy(last[i].text, shape, n + 1);
    last[i].told_ms = now;
    complain("%s; trying again", in_our_words(text, words));
    away = passing(status);
}

/* After a reported fault, report the first call that gets a reply. */
void heard(delayq_status status) {
    if (!away || status < 0 || status == DELAYQ_WOKEN) return;
    away = 0;
    complain("the server answers again");
}

/* Report a failure. If the fault is permanent, name the queue, unless it is the
 * only one on the command line. */
delayq_status failed(const delayq *q, delayq_status status) {
    size_t i = 0;
    while (i < handle_count && q != &handles[i]) i++;
    if (status < 0 && !passing(status) && i < handle_count &&
        (handle_count > 1 || listed))
        complain("%s: %s", queue_names[i], reason(q));
    else if (status < 0)
        complain("%s%s", reason(q),
                 status == DELAYQ_ERR_TIMEOUT && set.io_timeout_ms < 0
                     ? "; --io-timeout gives it more time"
                     : "");
    return status;
}

/*-----------------------------------------------------------------------------
 * MARK: - Handles
 * >>handles   opening queues
 *---------------------------------------------------------------------------*/

static delayq_options options_for(const char *name, delayq *share) {
    static const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                        DELAYQ_REDISSON_OLD};
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.wire = wires[set.wire];
    o.lease_ms = set.lease_ms > 0 ? set.lease_ms : 0;
    o.max_attempts = set.max_attempts > 65535 ? -1 : (int)set.max_attempts;
    o.max_late_ms = set.max_late_ms;
    o.backoff_ms = set.backoff_ms;
    o.backoff_max_ms = set.backoff_max_ms;
    o.counters = set.counters;
    o.log = tell;
    o.share = share;
    use_spool(&o);
    if (share) return o; /* the other options are those of the connection */
    o.url = set.url;
    o.tls_ca = set.tls_ca;
    o.tls_cert = set.tls_cert;
    o.tls_key = set.tls_key;
    o.io_timeout_ms = set.io_timeout_ms > 0 ? (int)set.io_timeout_ms : 0;
    o.connect_timeout_ms = set.connect_timeout_ms > 0
                               ? (int)set.connect_timeout_ms
                               : o.io_timeout_ms;
    return o;
}

/* Open a queue over the connection of the first queue. On a cluster, where a
 * connection serves one slot, the queue may need a connection of its own. */
static delayq_status open_handle(size_t i, const char *name) {
    delayq_options o = options_for(name, i > 0 ? &handles[0] : NULL);
    delayq_status status = delayq_open(&handles[i], &o);
    if (i == 0 || status != DELAYQ_ERR_ARG) return status;
    o = options_for(name, NULL);
    return delayq_open(&handles[i], &o);
}

int open_all(char **which, size_t count, int how) {
    size_t i;
    handles = (delayq *)must(calloc(count, sizeof *handles));
    queue_names = which;
    runs_on = (how & PATIENT) != 0;
    for (i = 0; i < count; i++) {
        delayq_status status = open_handle(i, which[i]);
        handle_count = i + 1; /* from now on a signal wakes this handle */
        if (status == DELAYQ_OK) continue;
        if ((how & PATIENT) && passing(status)) {
            tell(NULL, status, delayq_errmsg(&handles[i]));
            continue;
        }
        if ((how & ONLY_TICKS) && status == DELAYQ_ERR_WIRE) continue;
        if ((how & ANYHOW) && !passing(status)) continue;
        return exit_code(failed(&handles[i], status));
    }
    return DONE;
}

int open_one(char *name, int how) {
    static char *one[1];
    one[0] = name;
    return open_all(one, 1, how);
}

int open_or_list(int argc, char **argv, int how) {
    size_t count = (size_t)argc;
    int code;
    if (argc > 0) return open_all(argv, count, how);
    argv = find_queues(NULL, &count, &code);
    if (!argv) return code;
    return open_all(argv, count, how | ANYHOW);
}

void close_all(void) {
    size_t i = handle_count;
    handle_count = 0;
    /* close the handles that share a connection before its owner */
    while (i-- > 0) delayq_close(&handles[i]);
    free(handles);
    handles = NULL;
}

/*-----------------------------------------------------------------------------
 * MARK: - Scripts
 * >>scripts   load-scripts, scripts
 *---------------------------------------------------------------------------*/

int run_load_scripts(int argc, char **argv) {
    static char any[] = "delayq", *names[] = {any};
    size_t count, i, n = 0;
    int code;
    if (argc > 0 && strstr(argv[0], "://")) {
        set.url = *argv++;
        argc--;
    }
    count = argc > 0 ? (size_t)argc : 1;
    code = open_all(argc > 0 ? argv : names, count, 0);
    for (i = 0; code == DONE && i < count; i++)
        code = exit_code(failed(&handles[i], delayq_load_scripts(&handles[i])));
    while (dq_scripts[n]) n++;
    if (code != DONE || set.quiet) return code;
    printf(set.json ? "{\"loaded\":%d,\"version\":\"%s\"}\n"
                    : "%d scripts of delayq %s are loaded\n",
           (int)n, DELAYQ_VERSION);
    return DONE;
}

int run_scripts(int argc, char **argv) {
    const dq_script *const *script;
    (void)argc, (void)argv;
    for (script = dq_scripts; *script; script++)
        printf(set.json ? "{\"version\":\"%s\",\"name\":\"%s\",\"sha1\":\"%s\"}"
                          "\n"
                        : "%s  %-13s  %s\n",
               DELAYQ_VERSION, (*script)->name, (*script)->sha);
    return DONE;
}

/* Returns the server's time, or this machine's if the server doesn't answer. */
int64_t server_ms(delayq *q) {
    delayq_counts c;
    if (delayq_count(q, &c) == DELAYQ_OK) return c.now_ms;
    return (int64_t)time(NULL) * 1000;
}

/*-----------------------------------------------------------------------------
 * MARK: - Commands
 * >>commands   commands that delayq.h has no function for
 *---------------------------------------------------------------------------*/

text_of word(const char *text) {
    text_of w;
    w.data = text;
    w.len = strlen(text);
    return w;
}

const char *key_of(const char *name, const char *prefix, char to[1200]) {
    int tagged = strchr(name, '{') != NULL;
    snprintf(to, 1200, tagged ? "%s%s" : "%s{%s}", prefix, name);
    return to;
}

/* Returns 1 if the handle is logged in, even if the server has refused a
 * request about the queue. */
static int is_connected(const delayq *q) {
    return q->conn && q->conn->cmd.c &&
           q->conn->cmd.state >= DELAYQ_SOCKET_OPEN;
}

static const char says[] = "the server says: ";

static void server_says(const char *text, char why[WHY]) {
    const size_t n = strlen(says);
    memcpy(why, says, n);
    shorten(text, why + n, WHY - n);
}

static redisReply *lost(delayq *q, char why[WHY], const char *text) {
    shorten(text, why, WHY);
    /* End the connection, so that the late reply is not read as the reply to
     * another request. */
    shutdown(q->conn->cmd.c->fd, SHUT_RDWR);
    return NULL;
}

redisReply *command(delayq *q, const text_of *words, size_t count,
                    char why[WHY]) {
    const char *argv[16];
    size_t lens[16], i;
    int64_t most_ms = set.io_timeout_ms > 0 ? set.io_timeout_ms : 3000;
    int64_t until = clock_ms() + most_ms;
    int done = 0, wants = POLLOUT;
    redisContext *c;
    delayq_counts counts;
    void *reply = NULL;
    if (!is_connected(q)) delayq_count(q, &counts); /* this connects */
    if (!is_connected(q)) {
        shorten(reason(q), why, WHY);
        return NULL;
    }
    c = q->conn->cmd.c;
    for (i = 0; i < count && i < 16; i++) {
        argv[i] = (const char *)words[i].data;
        lens[i] = words[i].len;
    }
    redisAppendCommandArgv(c, (int)i, argv, lens);
    for (;;) {
        struct pollfd p;
        int64_t left = until - clock_ms();
        p.fd = c->fd;
        p.events = (short)wants;
        p.revents = 0;
        if (left <= 0) return lost(q, why, "no answer in time");
        if (poll(&p, 1, (int)left) < 1) continue;
        if (!done && redisBufferWrite(c, &done) != REDIS_OK)
            return lost(q, why, c->errstr);
        wants = done ? POLLIN : POLLIN | POLLOUT;
        if (!(p.revents & ~POLLOUT)) continue;
        if (redisBufferRead(c) != REDIS_OK ||
            redisGetReplyFromReader(c, &reply) != REDIS_OK)
            return lost(q, why, c->errstr);
        if (reply) break;
        until = clock_ms() + most_ms;
    }
    *why = '\0';
    if (((redisReply *)reply)->type == REDIS_REPLY_ERROR)
        server_says(((redisReply *)reply)->str, why);
    return (redisReply *)reply;
}

int command_code(const char why[WHY]) {
    const size_t n = strlen(says);
    return strncmp(why, says, n) == 0 ? REFUSED : UNREACHABLE;
}

uint64_t deaths(const delayq *q) {
    return q->counts.died;
}

int is_ticket(const delayq_ticket *ticket) {
    return dq_elem_is_ticket(ticket->text);
}

/* Returns the payload of an element, or all bytes if it is not an element. */
text_of payload_of(const delayq *q, text_of element) {
    size_t start;
    dq_elem_parse_of(q, (const unsigned char *)element.data, element.len,
                     &start);
    element.data = (const char *)element.data + start;
    element.len -= start;
    return element;
}

/* Read a dead letter: "reason time why\n", then the element. Its ticket is the
 * time of death and the element's id, or a hash if it is undecodable. */
void read_letter(const delayq *q, text_of raw, dead_letter *l) {
    const char *text = (const char *)raw.data;
    const char *end = (const char *)memchr(text, '\n', raw.len);
    char *after_time;
    uint64_t hash = UINT64_C(14695981039346656037);
    size_t reason = strcspn(text, " \n"), start, i;
    text_of element = raw;
    int kind;
    memset(l, 0, sizeof *l);
    l->raw = raw;
    snprintf(l->reason, sizeof l->reason, "undecodable");
    if (end && reason < sizeof l->reason && text[reason] == ' ') {
        for (i = 0; i < reason; i++) /* a reason is printed unescaped */
            l->reason[i] = text[i] >= 'a' && text[i] <= 'z' ? text[i] : '.';
        l->reason[reason] = '\0';
        l->dead_ms = strtoll(text + reason, &after_time, 10);
        if (*after_time == ' ' && after_time < end)
            preview(after_time + 1, (size_t)(end - after_time - 1), l->why,
                    sizeof l->why);
        element.data = end + 1;
        element.len = raw.len - (size_t)(end + 1 - text);
    }
    kind = dq_elem_parse_of(q, (const unsigned char *)element.data, element.len,
                            &start);
    l->attempt = dq_elem_attempt((const unsigned char *)element.data, kind);
    l->payload = payload_of(q, element);
    l->decodable = kind >= 0;
    if (l->decodable) {
        dq_elem_ticket(&l->ticket, l->dead_ms,
                       (const unsigned char *)element.data, kind);
        return;
    }
    for (i = 0; i < raw.len; i++)
        hash = (hash ^ (unsigned char)text[i]) * UINT64_C(1099511628211);
    snprintf(l->ticket.text, sizeof l->ticket.text, "%" PRId64 "-%016" PRIx64,
             l->dead_ms, hash);
}

/* Read up to `most` elements of a list from number `from` on, fewer if they are
 * large. *page limits their number: set it to 0 before the first call, and each
 * call adapts it to the sizes. Returns a reply, which the caller frees, or NULL
 * after a failure, with the reason in `why`. */
redisReply *read_list(delayq *q, const char *key, int64_t from, int64_t most,
                      size_t *page, char why[WHY]) {
    text_of words[4];
    char first[24], last[24];
    size_t bytes = 0, i;
    redisReply *r;
    if (*page == 0) *page = 8;
    if (most > (int64_t)*page) most = (int64_t)*page;
    snprintf(first, sizeof first, "%" PRId64, from);
    snprintf(last, sizeof last, "%" PRId64, from + most - 1);
    words[0] = word("LRANGE");
    words[1] = word(key);
    words[2] = word(first);
    words[3] = word(last);
    r = command(q, words, 4, why);
    if (!r || r->type != REDIS_REPLY_ARRAY) {
        if (r) freeReplyObject(r);
        return NULL;
    }
    for (i = 0; i < r->elements; i++) bytes += r->element[i]->len;
    if (r->elements > 0) *page = 1 + 262144 / (1 + bytes / r->elements);
    if (*page > 500) *page = 500;
    return r;
}

/* Send a command of two or three words, or a SCAN with cursor b and pattern c.
 * Returns NULL after a failure, which is reported if `code` is not NULL. */
static redisReply *ask(delayq *q, const char *a, const char *b, const char *c,
                       int *code) {
    text_of words[7];
    redisReply *reply;
    char why[WHY];
    size_t n = 0;
    words[n++] = word(a);
    words[n++] = word(b);
    if (c) words[n++] = word(c);
    if (strcmp(a, "SCAN") == 0) {
        words[2] = word("MATCH");
        words[3] = word(c);
        words[4] = word("COUNT");
        words[5] = word("1000");
        n = 6;
    }
    reply = command(q, words, n, why);
    if (reply && reply->type != REDIS_REPLY_ERROR) return reply;
    if (code) {
        *code = command_code(why);
        complain("%s: %s", a, why);
    }
    if (reply) freeReplyObject(reply);
    return NULL;
}

/*-----------------------------------------------------------------------------
 * MARK: - List
 * >>list   the queues on a server
 *
 * A queue is found if it has a key with one of these prefixes. So a queue
 * without counters is not found while it is empty, or has only ready items that
 * were never leased, since the name of their list has no prefix.
 *---------------------------------------------------------------------------*/

static const char *const prefixes[] = {"redisson_delay_queue_timeout:",
                                       "delayq_retry:",
                                       "delayq_dead:",
                                       "delayq_waiters:",
                                       "delayq_stream:",
                                       "delayq_paused:",
                                       "delayq_counters:"};

typedef struct found {
    char **name;
    size_t count, room;
} found;

static void add_queue(found *f, const char *key, size_t len,
                      const char *pattern) {
    size_t i, n;
    for (i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        const char *tag = key + strlen(prefixes[i]);
        char *name;
        n = strlen(prefixes[i]);
        if (len <= n || memcmp(key, prefixes[i], n) != 0) continue;
        if (memchr(key, 0, len)) return; /* an argument can't contain a NUL */
        n = len - n;
        name = (char *)must(calloc(n + 1, 1));
        if (n > 2 && tag[0] == '{' && tag[n - 1] == '}' &&
            !memchr(tag + 1, '{', n - 1))
            memcpy(name, tag + 1, n - 2);
        else
            memcpy(name, tag, n);
        if (pattern && fnmatch(pattern, name, 0) != 0) {
            free(name);
            return;
        }
        if (f->count == f->room)
            f->name = (char **)must(realloc(
                f->name, (f->room = 2 * f->room + 64) * sizeof *f->name));
        f->name[f->count++] = name;
        return;
    }
}

static int scan(delayq *q, found *f, const char *pattern) {
    char cursor[24] = "0";
    int code = DONE;
    do {
        redisReply *r = ask(q, "SCAN", cursor, "*delay*q*:*", &code);
        size_t i;
        if (!r) return code;
        if (r->type != REDIS_REPLY_ARRAY || r->elements != 2) {
            freeReplyObject(r);
            return UNKNOWN;
        }
        for (i = 0; i < r->element[1]->elements; i++)
            add_queue(f, r->element[1]->element[i]->str,
                      r->element[1]->element[i]->len, pattern);
        snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
        freeReplyObject(r);
    } while (strcmp(cursor, "0") != 0 && !stops);
    return stops ? stopped() : DONE;
}

/* Scan the node that has the slot of the queue `name`. It does not matter if
 * the server refuses this queue. */
static int scan_by(const char *name, found *f, const char *pattern) {
    delayq q;
    delayq_options o = options_for(name, NULL);
    delayq_status status;
    int code;
    memset(&q, 0, sizeof q);
    status = delayq_open(&q, &o);
    code =
        is_connected(&q) ? scan(&q, f, pattern) : exit_code(failed(&q, status));
    delayq_close(&q);
    return code;
}

/* On a cluster, scan each node, over a handle for a queue in one of its slots.
 * Returns 0 if the server is not a cluster. */
static int scan_cluster(delayq *q, found *f, const char *pattern, int *code) {
    redisReply *slots = ask(q, "CLUSTER", "SLOTS", NULL, NULL);
    size_t left = slots ? slots->elements : 0, i, k, number;
    char *seen = (char *)must(calloc(left + 1, 1));
    for (number = 0; left > 0 && *code == DONE && number < 100000; number++) {
        char name[40];
        redisReply *slot;
        snprintf(name, sizeof name, "delayq-list{%zu}", number);
        slot = ask(q, "CLUSTER", "KEYSLOT", name, code);
        if (!slot) break;
        for (i = 0; i < slots->elements; i++) {
            const redisReply *range = slots->element[i], *node;
            if (range->elements < 3 ||
                slot->integer < range->element[0]->integer ||
                slot->integer > range->element[1]->integer || seen[i])
                continue;
            node = range->element[2];
            *code = scan_by(name, f, pattern);
            /* mark all slots of this node */
            for (k = 0; k < slots->elements; k++) {
                const redisReply *other = slots->element[k]->element[2];
                if (seen[k] ||
                    other->element[1]->integer != node->element[1]->integer ||
                    strcmp(other->element[0]->str, node->element[0]->str) != 0)
                    continue;
                seen[k] = 1;
                left--;
            }
        }
        freeReplyObject(slot);
    }
    free(seen);
    if (slots) freeReplyObject(slots);
    return slots && number > 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

char **find_queues(const char *pattern, size_t *count, int *code) {
    delayq q;
    delayq_options o = options_for("delayq-list", NULL);
    delayq_status status;
    found f;
    size_t i, n = 0;
    memset(&f, 0, sizeof f);
    memset(&q, 0, sizeof q);
    *code = DONE;
    listed = 1;
    status = delayq_open(&q, &o);
    if (!is_connected(&q))
        *code = exit_code(failed(&q, status));
    else if (!scan_cluster(&q, &f, pattern, code))
        *code = scan(&q, &f, pattern);
    delayq_close(&q);
    if (*code == DONE && f.count == 0) {
        if (!set.quiet && !set.json) complain("no queue was found");
        *code = NOTHING;
    }
    if (*code != DONE) {
        while (f.count > 0) free(f.name[--f.count]);
        free(f.name);
        return NULL;
    }
    qsort(f.name, f.count, sizeof *f.name, by_name);
    for (i = 0; i < f.count; i++) {
        if (n > 0 && strcmp(f.name[n - 1], f.name[i]) == 0)
            free(f.name[i]);
        else
            f.name[n++] = f.name[i];
    }
    *count = n;
    return f.name;
}
