/*
 * Compare the model of the server with a real redis-server. Both get the same
 * bytes on the same connections at the same time, and must send the same
 * replies and end with the same content. The bytes are random commands and
 * scripts, and the requests of delayq's handles (model_driver.c).
 *
 *     sim-model CLOCK.so   runs the first 120 sequences; CLOCK.so is
 *                          model_clock.c. These variables change that:
 *     SEED=n               runs only sequence n
 *     SECONDS=n            runs as many sequences as fit into n seconds
 *     DRIVEN=n             runs only the first n programs of delayq. Each
 *                          script must run LEAST times
 *
 * A sequence that differs is printed, cut down to the events that are needed.
 * Ends in "N passed, N failed, N skipped".
 */
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <lua.h>
#include "model.h"
#include "redis_impl.h"

#define CONNS 24
#define WORDS 24
#define BEGIN_US INT64_C(1700000000000000)

struct event;
static const struct event *doing;
static void print_event(const struct event *e);

static void die(const char *what) {
    perror(what);
    if (doing) print_event(doing);
    exit(2);
}

static int64_t real_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

/* --- chance -------------------------------------------------------------- */

static uint64_t chance_state;

static uint64_t chance(void) {
    uint64_t z = chance_state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

static int below(int n) {
    return (int)(chance() % (uint64_t)n);
}

/* --- events -------------------------------------------------------------- */

enum kind { CONNECT, CLOSE, SEND, CLOCK, FAULT };
enum { NO_FAULT, OOM, READ_ONLY, DENIED };

typedef struct event {
    enum kind kind;
    int who;   /* number of the connection */
    int64_t n; /* CLOCK: us to add; FAULT: kind of the fault */
    int argc;  /* SEND: number of words; 0: text has raw bytes */
    buf text;  /* raw bytes, or words, each with its length before it */
} event;

static void event_free(event *e) {
    buf_free(&e->text);
}

static void add_word(event *e, const char *s, size_t len) {
    buf_add(&e->text, &len, sizeof len);
    buf_add(&e->text, s, len);
    e->argc++;
}

static void print_bytes(const char *s, size_t len) {
    size_t i;
    putchar('"');
    for (i = 0; i < len && i < 600; i++) {
        unsigned char c = (unsigned char)s[i];
        if (c == '\n')
            fputs("\\n", stdout);
        else if (c == '\r')
            fputs("\\r", stdout);
        else if (c < ' ' || c > '~' || c == '"' || c == '\\')
            printf("\\x%02x", c);
        else
            putchar(c);
    }
    putchar('"');
    if (i < len) printf("... %zu bytes", len);
}

static void print_event(const event *e) {
    static const char *const kinds[] = {"connect", "close", "send", "clock",
                                        "fault"};
    size_t at = 0, len;
    int i;
    printf("    %s", kinds[e->kind]);
    if (e->kind == CLOCK || e->kind == FAULT)
        printf(" %lld", (long long)e->n);
    else
        printf(" %d", e->who);
    if (e->kind == SEND && e->argc == 0) {
        putchar(' ');
        print_bytes(e->text.s, e->text.len);
    }
    for (i = 0; i < e->argc; i++) {
        memcpy(&len, e->text.s + at, sizeof len);
        at += sizeof len;
        putchar(' ');
        print_bytes(e->text.s + at, len);
        at += len;
    }
    if (e->kind == FAULT && e->text.len > 0)
        printf(" %.*s", (int)e->text.len, e->text.s);
    putchar('\n');
}

/* --- the two servers ----------------------------------------------------- */

typedef struct conn {
    int fd; /* connection to the real server; -1: none */
    client *c;
    uint64_t id;
    buf real, model;
    int real_closed, model_closed;
} conn;

static char dir[64], socket_path[96];
static const char *clock_so;
static volatile int64_t *wall;
static const char *program = "redis-server";
static int other_version; /* 1: the program is not Redis 7.0 */
static int tracks_reads;  /* 1: it is Redis 7.2 or newer, or Valkey */
static pid_t server;
static redisContext *control;
static redis *model;
static conn conns[CONNS];
static char difference[65536];

static int64_t model_now(void *arg) {
    (void)arg;
    return *wall;
}

static void model_write(void *user, const char *bytes, size_t len) {
    buf_add(&((conn *)user)->model, bytes, len);
}

static void model_close(void *user) {
    conn *c = user;
    c->c = NULL;
    c->model_closed = 1;
}

static int dial(const char *path) {
    struct sockaddr_un to;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&to, 0, sizeof to);
    to.sun_family = AF_UNIX;
    snprintf(to.sun_path, sizeof to.sun_path, "%s", path);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0)
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

static redisReply *ask(const char *format, ...) {
    va_list args;
    redisReply *reply;
    va_start(args, format);
    reply = redisvCommand(control, format, args);
    va_end(args);
    if (!reply) die("the server is gone");
    return reply;
}

static void tell(const char *format, ...) {
    va_list args;
    redisReply *reply;
    va_start(args, format);
    reply = redisvCommand(control, format, args);
    va_end(args);
    if (!reply) die("the server is gone");
    if (reply->type == REDIS_REPLY_ERROR) {
        fprintf(stderr, "%s: %s\n", format, reply->str);
        exit(2);
    }
    freeReplyObject(reply);
}

static void server_end(void) {
    if (control) redisFree(control);
    control = NULL;
    if (server > 0) {
        kill(server, SIGKILL);
        waitpid(server, NULL, 0);
    }
    server = 0;
}

static void server_begin(void) {
    char clock_file[96];
    int i;
    server_end();
    unlink(socket_path);
    snprintf(clock_file, sizeof clock_file, "%s/clock", dir);
    server = fork();
    if (server == 0) {
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        dup2(null, 2);
        setenv("LD_PRELOAD", clock_so, 1);
        setenv("SIM_CLOCK", clock_file, 1);
        execlp(program, program, "--port", "0", "--unixsocket", socket_path,
               "--dir", dir, "--save", "", "--appendonly", "no",
               "--enable-debug-command", "yes", "--hash-max-listpack-value",
               "100000", (char *)NULL);
        _exit(127);
    }
    for (i = 0; i < 2000 && !control; i++) {
        int fd = dial(socket_path);
        if (fd >= 0) {
            close(fd);
            control = redisConnectUnix(socket_path);
        } else {
            usleep(2000);
        }
    }
    if (!control || control->err) die("redis-server does not answer");
    tell("DEBUG SET-ACTIVE-EXPIRE 0");
}

static void conn_end(conn *c) {
    if (c->fd >= 0) close(c->fd);
    if (c->c) redis_disconnect(c->c);
    buf_free(&c->real);
    buf_free(&c->model);
    memset(c, 0, sizeof *c);
    c->fd = -1;
}

static void pass_by(void) {
    redisReply *pong = ask("PING");
    freeReplyObject(pong);
}

static void no_faults(void) {
    redis_faults *f = redis_faults_of(model);
    if (f->read_only) tell("REPLICAOF NO ONE");
    if (f->out_of_memory) tell("CONFIG SET maxmemory 0");
    if (f->denied) tell("ACL SETUSER default +@all");
    free((void *)f->denied);
    memset(f, 0, sizeof *f);
}

/* Empty both servers. With `anew` the real server is started again, so that it
 * gives its clients the same ids as the last time. */
static void begin(int anew) {
    redis_hooks hooks = {NULL, model_now, NULL, NULL};
    int i;
    for (i = 0; i < CONNS; i++) conn_end(&conns[i]);
    *wall = BEGIN_US;
    if (model) {
        no_faults();
        redis_free(model);
    }
    model = redis_new(&hooks);
    if (tracks_reads) redis_tracks_reads(model);
    if (anew) server_begin();
    tell("FLUSHALL");
    tell("SCRIPT FLUSH");
    pass_by();
}

/* Wait until the real server has run all requests and written all replies. It
 * reads 16 KB in a round, and writes its replies before the next round. */
static void settle(size_t sent) {
    size_t rounds = 2 + sent / 8192;
    while (rounds-- > 0) pass_by();
}

/* Remove line numbers: Lua 5.4 and 5.1 report different ones for long calls. */
static buf without_lines(const buf *b) {
    static const char mark[] = "on @user_script:";
    const char *s = b->s, *end = b->s + b->len, *at;
    buf to = {NULL, 0, 0};
    while (b->len > 0 && (at = memmem(s, (size_t)(end - s), mark, 16))) {
        buf_add(&to, s, (size_t)(at - s) + 16);
        for (s = at + 16; s < end && *s >= '0' && *s <= '9'; s++) continue;
    }
    buf_add(&to, s, (size_t)(end - s));
    return to;
}

/* Remove the differences between Redis 7.0, which is the model, and other
 * versions: the text of an error after its first word, the last digits of a
 * number with a fraction or an exponent, and lengths, which depend on these.
 * leave_out removes the other differences. */
static buf of_any_version(const buf *b, const char *separators) {
    const char *s = b->s, *end = b->s + b->len;
    buf to = {NULL, 0, 0};
    while (s < end) {
        const char *at = s;
        char word[64], *rest = word;
        size_t len;
        double value = 0;
        while (at < end && !strchr(separators, *at)) at++;
        len = (size_t)(at - s);
        snprintf(word, sizeof word, "%.*s", (int)len, s);
        if (len > 0 && len < sizeof word) value = strtod(word, &rest);
        if (strncmp(word, "-ACL failure in script", 22) == 0)
            buf_text(&to, "-ERR"); /* as in 7.0; delayq knows both texts */
        else if (len > 0 && *s == '-' && len > 1 && s[1] >= 'A' && s[1] <= 'Z')
            buf_add(&to, s, strcspn(word, " "));
        else if (strncmp(word, "ERR ", 4) == 0) /* a script caught the error */
            buf_text(&to, "ERR");
        else if (len > 1 && *s == '$')
            buf_text(&to, "$");
        else if (rest != word && !*rest) {
            snprintf(word, sizeof word, "%.15g", value);
            buf_text(&to, word);
        } else {
            buf_add(&to, s, len);
        }
        s = at;
        if (s < end) buf_add(&to, s++, 1);
    }
    return to;
}

static int same_bytes(const buf *a, const buf *b) {
    if (a->len != b->len || (a->len > 0 && memcmp(a->s, b->s, a->len) != 0)) {
        buf x, y;
        int same;
        if (other_version) {
            x = of_any_version(a, "\r\n");
            y = of_any_version(b, "\r\n");
            same = x.len == y.len && memcmp(x.s, y.s, x.len) == 0;
            buf_free(&x);
            buf_free(&y);
            return same;
        }
        if (LUA_VERSION_NUM == 501) return 0;
        x = without_lines(a);
        y = without_lines(b);
        same = x.len == y.len && memcmp(x.s, y.s, x.len) == 0;
        buf_free(&x);
        buf_free(&y);
        return same;
    }
    return 1;
}

static int compare(void) {
    int i, differ = 0;
    for (i = 0; i < CONNS && !differ; i++) {
        conn *c = &conns[i];
        if (c->fd < 0) continue;
        for (;;) {
            char bytes[65536];
            ssize_t n = recv(c->fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (n > 0)
                buf_add(&c->real, bytes, (size_t)n);
            else {
                if (n == 0 || errno != EAGAIN) c->real_closed = 1;
                break;
            }
        }
        if (same_bytes(&c->real, &c->model) &&
            c->real_closed == c->model_closed)
            continue;
        differ = 1;
        snprintf(difference, sizeof difference,
                 "connection %d\n  Redis: %.*s%s\n  model: %.*s%s", i,
                 (int)(c->real.len < 20000 ? c->real.len : 20000),
                 c->real.s ? c->real.s : "", c->real_closed ? " closed" : "",
                 (int)(c->model.len < 20000 ? c->model.len : 20000),
                 c->model.s ? c->model.s : "",
                 c->model_closed ? " closed" : "");
    }
    return differ;
}

static void send_all(int fd, const char *s, size_t len) {
    while (len > 0) {
        ssize_t n = send(fd, s, len, MSG_NOSIGNAL);
        if (n <= 0) return;
        s += n;
        len -= (size_t)n;
    }
}

/* Add the bytes of a command to `out`. "@3" means the id of connection 3. */
static void spell(const event *e, buf *out) {
    size_t at = 0, len;
    int i;
    if (e->argc == 0) {
        buf_add(out, e->text.s, e->text.len);
        return;
    }
    buf_text(out, "*");
    buf_int(out, e->argc);
    buf_text(out, "\r\n");
    for (i = 0; i < e->argc; i++) {
        const char *word;
        char id[24];
        memcpy(&len, e->text.s + at, sizeof len);
        word = e->text.s + at + sizeof len;
        at += sizeof len + len;
        if (len == 2 && word[0] == '@' && word[1] >= '0' && word[1] <= '9') {
            len = (size_t)snprintf(id, sizeof id, "%llu",
                                   (unsigned long long)conns[word[1] - '0'].id);
            word = id;
        }
        buf_text(out, "$");
        buf_int(out, (int64_t)len);
        buf_text(out, "\r\n");
        buf_add(out, word, len);
        buf_text(out, "\r\n");
    }
}

static void set_fault(const event *e) {
    redis_faults *f = redis_faults_of(model);
    char *denied, word[64];
    no_faults();
    if (e->n == OOM) {
        tell("CONFIG SET maxmemory 1");
        f->out_of_memory = 1;
    } else if (e->n == READ_ONLY && model->blocked == 0) {
        tell("REPLICAOF 127.0.0.1 1");
        f->read_only = 1;
    } else if (e->n == DENIED) {
        snprintf(word, sizeof word, "-%.*s", (int)e->text.len, e->text.s);
        tell("ACL SETUSER default %s", word);
        denied = calloc(1, e->text.len + 1);
        memcpy(denied, e->text.s, e->text.len);
        f->denied = denied;
    }
}

static uint64_t ask_id(int fd) {
    char text[32] = "";
    send_all(fd, "*2\r\n$6\r\nCLIENT\r\n$2\r\nID\r\n", 24);
    if (read(fd, text, sizeof text - 1) <= 0) die("CLIENT ID");
    return strtoull(text + 1, NULL, 10);
}

/* Apply the event to both servers. Returns nonzero if their replies, which are
 * then in `conns`, differ. */
static int apply(const event *e) {
    conn *c = &conns[e->who];
    buf bytes = {NULL, 0, 0};
    size_t sent = 0;
    int i;
    doing = e;
    for (i = 0; i < CONNS; i++) conns[i].real.len = conns[i].model.len = 0;
    switch (e->kind) {
    case CONNECT:
        conn_end(c);
        c->fd = dial(socket_path);
        if (c->fd < 0) die("connect");
        c->id = ask_id(c->fd);
        redis_set_next_id(model, c->id);
        c->c = redis_connect(model, model_write, model_close, c);
        break;
    case CLOSE: conn_end(c); break;
    case SEND:
        if (c->fd < 0 || c->real_closed) return 0;
        spell(e, &bytes);
        send_all(c->fd, bytes.s, bytes.len);
        sent = bytes.len;
        if (c->c) redis_feed(c->c, bytes.s, bytes.len);
        buf_free(&bytes);
        break;
    case CLOCK:
        *wall += e->n;
        model->next_expiry_ms = INT64_MAX; /* expire keys when they are used */
        redis_tick(model);
        break;
    case FAULT: set_fault(e); break;
    }
    settle(sent);
    for (i = 0; i < 40 && compare(); i++) {
        int j = 0, behind = 0; /* 1: a real reply is incomplete */
        for (; j < CONNS; j++) behind |= conns[j].real.len < conns[j].model.len;
        if (!behind) break;
        pass_by();
    }
    return compare();
}

/* --- the contents of the servers ----------------------------------------- */

static void print_reply(buf *out, const redisReply *r, int sorted);

static int by_text(const void *a, const void *b) {
    const redisReply *x = *(redisReply *const *)a, *y = *(redisReply *const *)b;
    size_t len = x->len < y->len ? x->len : y->len;
    int c = memcmp(x->str, y->str, len);
    return c ? c : (x->len > y->len) - (x->len < y->len);
}

static void print_reply(buf *out, const redisReply *r, int sorted) {
    size_t i;
    switch (r->type) {
    case REDIS_REPLY_INTEGER: buf_int(out, r->integer); break;
    case REDIS_REPLY_ARRAY:
        if (sorted && r->elements > 0)
            qsort(r->element, r->elements, sizeof *r->element, by_text);
        buf_text(out, "[");
        for (i = 0; i < r->elements; i++) {
            print_reply(out, r->element[i], 0);
            buf_text(out, ",");
        }
        buf_text(out, "]");
        break;
    case REDIS_REPLY_NIL: buf_text(out, "nil"); break;
    default: buf_add(out, r->str, r->len);
    }
}

static redisReply *ask_model(int argc, const char **argv, const size_t *lens) {
    redisReader *reader = redisReaderCreate();
    void *reply = NULL;
    size_t len;
    const char *bytes = redis_command(model, &len, argc, argv, lens);
    redisReaderFeed(reader, bytes, len);
    redisReaderGetReply(reader, &reply);
    redisReaderFree(reader);
    if (!reply) die("no reply of the model");
    return reply;
}

/* Run a command on both servers. Returns the real reply, or NULL if the replies
 * differ. */
static redisReply *same(int argc, const char **argv, const size_t *lens,
                        int sorted) {
    redisReply *real = redisCommandArgv(control, argc, argv, lens);
    redisReply *theirs = ask_model(argc, argv, lens);
    buf a = {NULL, 0, 0}, b = {NULL, 0, 0};
    int differ;
    if (!real) die("the server is gone");
    print_reply(&a, real, sorted);
    print_reply(&b, theirs, sorted);
    differ = a.len != b.len || (a.len > 0 && memcmp(a.s, b.s, a.len) != 0);
    if (differ && other_version) {
        buf x = of_any_version(&a, "[],"), y = of_any_version(&b, "[],");
        differ = x.len != y.len || (x.len > 0 && memcmp(x.s, y.s, x.len) != 0);
        buf_free(&x);
        buf_free(&y);
    }
    if (differ) {
        snprintf(difference, sizeof difference,
                 "%s %.*s\n  Redis: %.*s\n  model: %.*s", argv[0],
                 argc > 1 ? (int)lens[1] : 0, argc > 1 ? argv[1] : "",
                 (int)(a.len < 20000 ? a.len : 20000), a.s ? a.s : "",
                 (int)(b.len < 20000 ? b.len : 20000), b.s ? b.s : "");
        freeReplyObject(real);
        real = NULL;
    }
    freeReplyObject(theirs);
    buf_free(&a);
    buf_free(&b);
    return real;
}

static int same_key(const char *key, size_t len) {
    static const char *const reads[][2] = {
        {"string", "GET"},   {"list", "LRANGE"},  {"zset", "ZRANGE"},
        {"set", "SMEMBERS"}, {"hash", "HGETALL"}, {"stream", "XRANGE"}};
    const char *words[] = {"TYPE", key, "0", "-1", "WITHSCORES"};
    size_t lens[] = {4, len, 1, 2, 10}, i;
    redisReply *r = same(2, words, lens, 0);
    char type[16];
    int argc = 2;
    if (!r) return 0;
    snprintf(type, sizeof type, "%s", r->str);
    freeReplyObject(r);
    words[0] = "PTTL";
    if (!(r = same(2, words, lens, 0))) return 0;
    freeReplyObject(r);
    for (i = 0; i < 6 && strcmp(type, reads[i][0]) != 0; i++) continue;
    if (i == 6) return 1;
    words[0] = reads[i][1];
    lens[0] = strlen(words[0]);
    if (i == 1) argc = 4;
    if (i == 2) argc = 5;
    if (i == 5) {
        words[2] = "-";
        words[3] = "+";
        lens[3] = 1;
        argc = 4;
    }
    if (!(r = same(argc, words, lens, i == 3))) return 0;
    freeReplyObject(r);
    return 1;
}

static int same_contents(void) {
    const char *words[] = {"KEYS", "*"};
    size_t lens[] = {4, 1}, i;
    redisReply *r;
    int fine = 1;
    no_faults();
    if (!(r = same(2, words, lens, 1))) return 0;
    for (i = 0; i < r->elements && fine; i++)
        fine = same_key(r->element[i]->str, r->element[i]->len);
    freeReplyObject(r);
    return fine;
}

/* --- sequences ----------------------------------------------------------- */

/* Run the events. If the servers differ, returns nonzero, and sets *at to the
 * event's index, or to `count` if only the final contents differ. */
static int replay(const event *events, int count, int anew, int *at) {
    begin(anew);
    for (*at = 0; *at < count; ++*at)
        if (apply(&events[*at])) return 1;
    return !same_contents();
}

/* Print only the events that are needed to reproduce the difference. */
static void shrink(const event *all, int count, int anew) {
    int64_t end = real_us() + 20000000;
    int at, size, i, j, n;
    event *events = malloc((size_t)count * sizeof *events);
    memcpy(events, all, (size_t)count * sizeof *events);
    if (!replay(events, count, anew, &at)) {
        printf("  %s\n  it does not happen again\n", difference);
        free(events);
        return;
    }
    if (at < count) count = at + 1;
    for (size = count / 2; size >= 1; size = size > 1 ? size / 2 : 0) {
        for (i = count - size; i >= 0 && real_us() < end; i -= size) {
            event *fewer = malloc((size_t)count * sizeof *fewer);
            for (n = j = 0; j < count; j++)
                if (j < i || j >= i + size) fewer[n++] = events[j];
            if (replay(fewer, n, anew, &at)) {
                memcpy(events, fewer, (size_t)n * sizeof *fewer);
                count = n;
            }
            free(fewer);
        }
    }
    replay(events, count, anew, &at);
    for (i = 0; i < count; i++) print_event(&events[i]);
    printf("  %s\n", difference);
    free(events);
}

static event *events;
static int count, room;

static event *new_event(enum kind kind, int who) {
    event *e;
    if (count == room) {
        room = 2 * room + 64;
        events = realloc(events, (size_t)room * sizeof *events);
        if (!events) die("memory");
    }
    e = &events[count++];
    memset(e, 0, sizeof *e);
    e->kind = kind;
    e->who = who;
    return e;
}

static void forget_events(void) {
    while (count > 0) event_free(&events[--count]);
}

/* --- random commands ----------------------------------------------------- */

/* Commands with these placeholders:
 *     K and a type   a key of that type (K*: of any type)
 *     E, S, R        an element; a score; a limit of scores
 *     I, N, T        an index; a small number; a time
 *     C, D, @        a channel; an id in a stream; the id of a client
 * A + at the end repeats the last word a few times, ++ the last two words. */
static const char *const commands[] = {
    "GET Ks",
    "SET Ks E",
    "SET Ks E PX T",
    "SET Ks E NX",
    "SET Ks E XX EX N",
    "SET Ks E XX",
    "SET Ks N",
    "SET Ks E PX T NX",
    "SET Ks E GET",
    "SET Ks E KEEPTTL",
    "SET Ks E NX XX",
    "SET Ks E PXAT 1700000000500",
    "SETNX Ks E",
    "SETEX Ks N E",
    "PSETEX Ks T E",
    "MGET Ks K*",
    "STRLEN Ks",
    "INCR Ks",
    "DECR Ks",
    "INCRBY Ks I",
    "DEL K* +",
    "UNLINK K*",
    "DEL K*",
    "EXISTS K* +",
    "TYPE K*",
    "EXPIRE K* N",
    "PEXPIRE K* T",
    "PEXPIRE K* T NX",
    "PEXPIRE K* T GT",
    "PEXPIRE K* T LT",
    "PEXPIRE K* T XX",
    "TTL K*",
    "PTTL K*",
    "PEXPIREAT K* 1700000000700",
    "EXPIRETIME K*",
    "PERSIST K*",
    "RENAME K* K*",
    "FLUSHALL",
    "FLUSHDB ASYNC",
    "DBSIZE",
    "LPUSH Kl E +",
    "RPUSH Kl E +",
    "RPUSH Kl E",
    "RPUSH Kl E",
    "LPUSHX Kl E",
    "RPUSHX Kl E",
    "LPOP Kl",
    "RPOP Kl",
    "LPOP Kl N",
    "RPOP Kl I",
    "RPOPLPUSH Kl Kl",
    "LMOVE Kl Kl LEFT RIGHT",
    "LMOVE Kl Kl RIGHT RIGHT",
    "LLEN Kl",
    "LINDEX Kl I",
    "LRANGE Kl I I",
    "LRANGE Kl 0 -1",
    "LTRIM Kl I I",
    "LTRIM Kl 0 -1",
    "LREM Kl I E",
    "LREM Kl 1 E",
    "LSET Kl I E",
    "LINSERT Kl BEFORE E E",
    "LINSERT Kl AFTER E E",
    "LPOS Kl E",
    "BLPOP Kl N",
    "BLPOP Kl Kl 0.2",
    "BRPOP Kl 1",
    "BLPOP Kl 0",
    "ZADD Kz S E",
    "ZADD Kz S E",
    "ZADD Kz S E ++",
    "ZADD Kz NX S E",
    "ZADD Kz XX S E",
    "ZADD Kz XX INCR 0 E",
    "ZADD Kz GT S E",
    "ZADD Kz LT S E ++",
    "ZADD Kz CH S E ++",
    "ZADD Kz INCR S E",
    "ZADD Kz NX XX S E",
    "ZADD Kz GT NX S E",
    "ZADD Kz XX GT CH S E",
    "ZINCRBY Kz S E",
    "ZREM Kz E +",
    "ZREM Kz E",
    "ZCARD Kz",
    "ZSCORE Kz E",
    "ZRANK Kz E",
    "ZREVRANK Kz E",
    "ZCOUNT Kz R R",
    "ZRANGE Kz I I",
    "ZRANGE Kz I I WITHSCORES",
    "ZRANGE Kz 0 -1 WITHSCORES",
    "ZRANGE Kz I I REV",
    "ZRANGE Kz R R BYSCORE",
    "ZRANGE Kz R R BYSCORE REV LIMIT N N WITHSCORES",
    "ZRANGE Kz I I LIMIT 0 1",
    "ZSCAN Kz 0 MATCH [^!-~]* COUNT 100",
    "ZSCAN Kz 0 MATCH [w-z]?y COUNT 100",
    "ZSCAN Kz 0 COUNT 0",
    "ZREVRANGE Kz I I",
    "ZRANGEBYSCORE Kz R R",
    "ZRANGEBYSCORE Kz -inf R WITHSCORES LIMIT N N",
    "ZRANGEBYSCORE Kz R R LIMIT I I",
    "ZREVRANGEBYSCORE Kz R R WITHSCORES",
    "ZREMRANGEBYRANK Kz I I",
    "ZREMRANGEBYRANK Kz 1 0",
    "ZREMRANGEBYSCORE Kz R R",
    "ZPOPMIN Kz",
    "ZPOPMAX Kz N",
    "HSET Kh E E",
    "HSET Kh E E ++",
    "HSET Kh E I",
    "HGET Kh E",
    "HMGET Kh E E",
    "HINCRBY Kh E I",
    "HGETALL Kh",
    "HLEN Kh",
    "HDEL Kh E +",
    "SADD KS E +",
    "SREM KS E",
    "SCARD KS",
    "SISMEMBER KS E",
    "XADD Kx * E E",
    "XADD Kx * due E payload E",
    "XADD Kx MAXLEN ~ N * due N payload E",
    "XADD Kx MAXLEN N * E E ++",
    "XADD Kx D E E",
    "XADD Kx NOMKSTREAM * E E",
    "XLEN Kx",
    "XRANGE Kx - +",
    "XRANGE Kx D + COUNT N",
    "XRANGE Kx (D D",
    "XREVRANGE Kx + - COUNT N",
    "XREVRANGE Kx D D",
    "XTRIM Kx MAXLEN N",
    "XTRIM Kx MAXLEN ~ N",
    "TIME",
    "ECHO E",
    "PING",
    "PING E",
    "SELECT 0",
    "PUBLISH C E",
    "PUBLISH C E",
    "PUBSUB NUMSUB C C",
    "PUBSUB NUMPAT",
    "SUBSCRIBE C",
    "SUBSCRIBE C C",
    "SUBSCRIBE __redis__:invalidate",
    "UNSUBSCRIBE C",
    "UNSUBSCRIBE C",
    "PSUBSCRIBE c*",
    "PUNSUBSCRIBE c*",
    "CLIENT ID",
    "CLIENT SETNAME E",
    "CLIENT GETNAME",
    "CLIENT GETREDIR",
    "CLIENT TRACKING ON REDIRECT @ OPTIN NOLOOP",
    "CLIENT TRACKING ON REDIRECT @ OPTIN",
    "CLIENT TRACKING ON REDIRECT @",
    "CLIENT TRACKING ON REDIRECT @ NOLOOP",
    "CLIENT TRACKING OFF",
    "CLIENT TRACKING ON OPTOUT",
    "CLIENT TRACKING ON REDIRECT 99999",
    "CLIENT CACHING YES",
    "CLIENT CACHING YES",
    "CLIENT CACHING NO",
    "CLIENT KILL ID @",
    "CLIENT KILL TYPE pubsub",
    "CLIENT UNBLOCK @",
    "CLIENT UNBLOCK @ ERROR",
    "CLIENT",
    "CLIENT NONE",
    "CLIENT CACHING",
    "MULTI",
    "EXEC",
    "EXEC",
    "DISCARD",
    "WATCH K*",
    "UNWATCH",
    "HELLO 2",
    "AUTH E",
    "SCRIPT EXISTS E E",
    "SCRIPT FLUSH",
    "NONE E E",
    "GET",
    "ZADD Kz",
    "EVALSHA E 0",
    "EVAL E 0",
    "EVAL return N",
    "QUIT",
    "SET Ks",
    "CONFIG",
    "PUBSUB",
    "SCRIPT LOAD 'return'",
    "EVALSHA 0000 0"};

static const char *const elements[] = {"a",
                                       "b",
                                       "c",
                                       "",
                                       "1",
                                       "17",
                                       "-3",
                                       "x y",
                                       "0",
                                       "99",
                                       "hello",
                                       "1700000000000",
                                       "a\r\nb",
                                       "'\"\\",
                                       "007",
                                       "2147483648",
                                       "12345678901234567890"};
/* No -0: Redis shows it as 0 or -0, depending on how the set is stored. */
static const char *const scores[] = {"0",
                                     "1",
                                     "2",
                                     "3",
                                     "7",
                                     "1.5",
                                     "-1",
                                     "inf",
                                     "-inf",
                                     "1700000000000",
                                     "1e20",
                                     "nan",
                                     "abc",
                                     "",
                                     "0.1",
                                     "+5",
                                     "0x10",
                                     "1e-3",
                                     "3.0",
                                     "9007199254740993",
                                     " 1",
                                     "1e400",
                                     "123456789012345678"};
static const char *const limits_[] = {"-inf",
                                      "+inf",
                                      "inf",
                                      "(0",
                                      "0",
                                      "(1",
                                      "1",
                                      "2",
                                      "(2",
                                      "3",
                                      "1.5",
                                      "-1",
                                      "(-inf",
                                      "abc",
                                      "(",
                                      "1700000000000",
                                      "(1700000000000",
                                      "nan",
                                      ""};
static const char *const indices[] = {"0",
                                      "1",
                                      "2",
                                      "3",
                                      "5",
                                      "-1",
                                      "-2",
                                      "-3",
                                      "-6",
                                      "100",
                                      "-100",
                                      "abc",
                                      "",
                                      "9223372036854775807",
                                      "-9223372036854775808",
                                      "9223372036854775808",
                                      "01",
                                      "1.0"};
static const char *const ids[] = {"1700000000000-1",
                                  "1700000000000",
                                  "0-0",
                                  "0-1",
                                  "5-5",
                                  "5",
                                  "-",
                                  "+",
                                  "5-*",
                                  "1700000000500-3",
                                  "abc",
                                  "1-",
                                  "18446744073709551615-18446744073709551615"};

#define PICK(a) ((a)[below((int)(sizeof(a) / sizeof *(a)))])

/* Each sequence prefers a few of the commands, and most sequences a few of the
 * elements, so that the commands affect the same data. */
static const char *favourites[24];
static int few_elements;
static int with_faults; /* 1: faults, but no transactions, since the model does
                           not know which of two causes an EXEC reports */

static const char *some_command(void) {
    for (;;) {
        const char *line = below(4) ? PICK(favourites) : PICK(commands);
        if (!with_faults || strcmp(line, "MULTI") != 0) return line;
    }
}

static void add_text(event *e, const char *s) {
    add_word(e, s, strlen(s));
}

static void add_key(event *e, char type) {
    static const char types[] = "slzhSx";
    char name[3] = {0};
    if (type == '*' || below(20) == 0) type = types[below(6)];
    name[0] = type;
    name[1] = (char)(below(3) ? '1' : '2');
    add_text(e, name);
}

static void add_element(event *e) {
    static char big[6000];
    int what = few_elements && below(8) ? 12 : below(24);
    size_t len;
    if (what == 0) {
        for (len = 0; len < sizeof big; len++)
            big[len] = (char)('a' + len % 26);
        add_word(e, big, (size_t)below(below(4) ? 100 : 6000));
    } else if (what == 1) {
        add_word(e, "\0\1\xff", 3);
    } else if (what < 8) {
        char name[8];
        snprintf(name, sizeof name, "e%d", below(30));
        add_text(e, name);
    } else {
        add_text(e, what < 16 ? elements[below(few_elements ? 4 : 8)]
                              : PICK(elements));
    }
}

static void add_token(event *e, const char *t, size_t len) {
    char text[24];
    if (len == 2 && t[0] == 'K')
        add_key(e, t[1]);
    else if (len != 1 && !(len == 2 && t[0] == '('))
        add_word(e, t, len);
    else if (t[0] == 'E')
        add_element(e);
    else if (t[0] == 'S')
        add_text(e, below(3) ? scores[below(8)] : PICK(scores));
    else if (t[0] == 'R')
        add_text(e, below(3) ? limits_[below(8)] : PICK(limits_));
    else if (t[0] == 'I')
        add_text(e, below(3) ? indices[below(9)] : PICK(indices));
    else if (t[0] == 'D')
        add_text(e, PICK(ids));
    else if (t[0] == 'N' || t[0] == 'T') {
        snprintf(text, sizeof text, "%d",
                 t[0] == 'N' ? below(4) : below(50) * 20 - 10);
        add_text(e, text);
    } else if (t[0] == 'C') {
        snprintf(text, sizeof text, "c%d", below(3));
        add_text(e, text);
    } else if (t[0] == '@') {
        snprintf(text, sizeof text, "@%d", below(6));
        add_text(e, text);
    } else if (t[0] == '(') {
        snprintf(text, sizeof text, "(%s", PICK(ids));
        add_text(e, text);
    } else {
        add_word(e, t, len);
    }
}

static void add_tokens(event *e, const char *line) {
    const char *last[2] = {NULL, NULL};
    size_t lens[2] = {0, 0};
    while (*line) {
        size_t len = strcspn(line, " ");
        if (line[0] == '+' && (len == 1 || line[1] == '+') && !line[len] &&
            strncmp(line - 2, "- ", 2) != 0 && last[1]) {
            int times = below(4);
            while (times-- > 0) {
                if (len == 2) add_token(e, last[0], lens[0]);
                add_token(e, last[1], lens[1]);
            }
        } else {
            add_token(e, line, len);
            last[0] = last[1];
            lens[0] = lens[1];
            last[1] = line;
            lens[1] = len;
        }
        line += len;
        while (*line == ' ') line++;
    }
}

/* Scripts that run the command in their arguments. */
static const char *const wrappers[] = {
    "return redis.call(unpack(ARGV))",
    "return redis.pcall(unpack(ARGV))",
    "local r = redis.pcall(unpack(ARGV))\nreturn {type(r), r}",
    "local ok, e = pcall(redis.call, unpack(ARGV))\n"
    "if ok then return e end return {tostring(ok), type(e), e.err or e}",
    "local function f()\n return redis.call(unpack(ARGV))\nend\n\nlocal r = f()"
    " return {1, r, 2}",
    "local r = redis.call(unpack(ARGV)) redis.call('PUBLISH', 'c1', 'done')"
    " return r",
    "redis.call('DEL', 's2')\nreturn redis.call(unpack(ARGV))",
    "redis.call('INCRBY', 's2', 1)\nreturn redis.call(unpack(ARGV))",
    "local ok, e = pcall(redis.call, unpack(ARGV)) if ok then return e end "
    "error(e)",
    "local ok, e = pcall(redis.call, unpack(ARGV)) if type(e) == 'table' then "
    "return e end return tostring(e)",
};

/* Other scripts, each with the words for its keys and arguments. */
static const char *const scripts[][2] = {
    {"return {1, 2.9, -3.9, 'a', true, false, {1, {2}}, nil, 5}", "0"},
    {"return ARGV", "0 E E E"},
    {"return KEYS", "2 K* K* E"},
    {"return {ok = ARGV[1]}", "0 E"},
    {"return {err = ARGV[1]}", "0 E"},
    {"return redis.error_reply(ARGV[1])", "0 E"},
    {"return redis.status_reply(ARGV[1])", "0 E"},
    {"return {redis.error_reply('X y'), redis.status_reply('fine')}", "0"},
    {"return redis.sha1hex(ARGV[1])", "0 E"},
    {"error(ARGV[1])", "0 E"},
    {"error({err = ARGV[1]})", "0 E"},
    {"error()", "0"},
    {"local t = nil\nreturn t.x", "0"},
    {"return nothing", "0"},
    {"nothing = 1", "0"},
    {"return 'a' .. nil", "0"},
    {"return #KEYS + #ARGV", "1 K* E"},
    {"return tonumber(ARGV[1]) or 'none'", "0 S"},
    {"return tostring(tonumber(ARGV[1]))", "0 S"},
    {"return 1e15", "0"},
    {"return 2^53", "0"},
    {"return -2^63", "0"},
    {"return string.format('%.0f %d %5s %q', 1e15, 17, 'a', 'b')", "0"},
    {"return redis.call()", "0"},
    {"return redis.pcall()", "0"},
    {"return redis.call('GET', {})", "0"},
    {"return redis.call('GET', nil)", "0"},
    {"return redis.call('ZADD', KEYS[1], 1.5, 7)", "1 Kz"},
    {"return redis.call('ZADD', KEYS[1], 2^60, 0.1)", "1 Kz"},
    {"return redis.call('SET', KEYS[1], 10 / 4)", "1 Ks"},
    {"return redis.call('BLPOP', KEYS[1], 1)", "1 Kl"},
    {"return redis.call('EVAL', 'return 1', 0)", "0"},
    {"return redis.replicate_commands()", "0"},
    {"return redis.log(redis.LOG_NOTICE, 'x')", "0"},
    {"return {pcall(struct.unpack, ARGV[1], ARGV[2])}", "0 E E"},
    {"local t = {} for i = 1, 7000 do t[i] = 'x' end "
     "return redis.call('RPUSH', KEYS[1], unpack(t))",
     "1 Kl"},
    {"local t = {} for i = 1, 9000 do t[i] = 'x' end "
     "return redis.call('RPUSH', KEYS[1], unpack(t))",
     "1 Kl"},
    {"return string.rep('x', 100000)", "0"},
    {"local a = redis.call('TIME') return a[1] * 1000000 + a[2]", "0"},
    {"local s = struct.pack('dLc0', tonumber(ARGV[1]), string.len(ARGV[2]),"
     " ARGV[2]) redis.call('ZADD', KEYS[1], ARGV[3], s)"
     " redis.call('RPUSH', KEYS[2], s) local v = redis.call('ZRANGE', KEYS[1],"
     " 0, 0) if v[1] == s then redis.call('PUBLISH', 'c1', ARGV[3]) end",
     "2 Kz Kl S E S"},
    {"local value = struct.pack('Bc0Lc0', string.len(ARGV[2]), ARGV[2],"
     " string.len(ARGV[3]), ARGV[3]);redis.call('zadd', KEYS[2], ARGV[1],"
     " value);redis.call('rpush', KEYS[3], value);local v ="
     " redis.call('zrange', KEYS[2], 0, 0); if v[1] == value then"
     " redis.call('publish', KEYS[4], ARGV[1]); end;",
     "4 Kl Kz Kl C S E E"},
    {"local expiredValues = redis.call('zrangebyscore', KEYS[2], 0, ARGV[1],"
     " 'limit', 0, ARGV[2]); if #expiredValues > 0 then for i, v in"
     " ipairs(expiredValues) do local randomId, value ="
     " struct.unpack('Bc0Lc0', v);redis.call('rpush', KEYS[1],"
     " value);redis.call('lrem', KEYS[3], 1, v);end; redis.call('zrem',"
     " KEYS[2], unpack(expiredValues));end; local v = redis.call('zrange',"
     " KEYS[2], 0, 0, 'WITHSCORES'); if v[1] ~= nil then return v[2]; end"
     " return nil;",
     "3 Kl Kz Kl S 100"},
    {"return {redis.call('XADD', KEYS[1], 'MAXLEN', '~', 3, '*', 'due', 1,"
     " 'payload', ARGV[1]), redis.call('XLEN', KEYS[1])}",
     "1 Kx E"},
    {"for i = 1, 250 do redis.call('XADD', KEYS[1], 'MAXLEN', '~', ARGV[1],"
     " '*', 'due', i, 'payload', ARGV[2]) end return redis.call('XLEN',"
     " KEYS[1])",
     "1 Kx N E"},
    {"for i = 1, 120 do redis.call('XADD', KEYS[1], 'MAXLEN', '~', 1, '*',"
     " 'due', i, 'payload', string.rep('x', (i * 37 + #ARGV[1]) % 500)) end"
     " return redis.call('XLEN', KEYS[1])",
     "1 Kx E"},
    {"for i = 1, 40 do redis.call('ZADD', KEYS[1], i % 7, 'm' .. i) end"
     " return redis.call('ZREMRANGEBYRANK', KEYS[1], ARGV[1], ARGV[2])",
     "1 Kz I I"},
    {"return {struct.size(ARGV[1])}", "0 E"},
};

/* Add a script that uses struct with a random format. */
static void add_struct(event *e) {
    static const char *const parts[] = {
        "b",  "B",  "h",  "H",  "i", "I",  "l",   "L",  "I1", "I2",
        "I4", "I8", "i3", "i8", "f", "d",  "s",   "c3", "x",  ">",
        "<",  "!",  "!4", " ",  "T", "c0", "I33", "z"};
    char format[64] = "", script[400];
    int n = 1 + below(5), i;
    for (i = 0; i < n; i++) strcat(format, PICK(parts));
    snprintf(script, sizeof script,
             below(2) ? "local ok, s = pcall(struct.pack, '%s', 1, 200, -3, "
                        "'abcdef', 70000, 'xyz', 2.5) return s"
                      : "local t = {pcall(struct.unpack, '%s', ARGV[1])} for "
                        "i, v in ipairs(t) do t[i] = tostring(v) end return t",
             format);
    add_text(e, "EVAL");
    add_text(e, script);
    add_text(e, "0");
    add_word(e, "\3\2\1\xff\0\0\0\0abcdefgh\xf0zyx\0ghi", 24);
}

static void add_command(int who) {
    event *e = new_event(SEND, who), inner;
    size_t at = 0, len;
    int i, what = below(100);
    memset(&inner, 0, sizeof inner);
    if (what < 60) {
        add_tokens(e, some_command());
        return;
    }
    if (what < 64) {
        add_struct(e);
        return;
    }
    if (what < 76) {
        const char *const *script = PICK(scripts);
        add_text(e, below(20) ? "EVAL" : "EVAL_RO");
        add_text(e, script[0]);
        add_tokens(e, script[1]);
        return;
    }
    add_text(e, below(20) ? "EVAL" : "EVAL_RO");
    add_text(e, PICK(wrappers));
    add_text(e, "0");
    add_tokens(&inner, some_command());
    for (i = 0; i < inner.argc; i++) {
        memcpy(&len, inner.text.s + at, sizeof len);
        add_word(e, inner.text.s + at + sizeof len, len);
        at += sizeof len + len;
    }
    event_free(&inner);
}

/* Returns 1 if the last event may block its connection. */
static int last_may_wait(void) {
    const event *e = &events[count - 1];
    return e->argc > 0 && e->text.len > sizeof(size_t) + 5 &&
           (memcmp(e->text.s + sizeof(size_t), "BLPOP", 5) == 0 ||
            memcmp(e->text.s + sizeof(size_t), "BRPOP", 5) == 0);
}

static int has_text(const event *e, const char *word) {
    return memmem(e->text.s, e->text.len, word, strlen(word)) != NULL;
}

/* Replace a command by PING if another version than 7.0 runs it differently:
 *     a blocking command in a script returns nil (7.0 refuses it)
 *     HELLO names the server, its version and its modules
 *     FLUSHALL and FLUSHDB of 8.0 reply later, from another thread
 *     LREM refuses the smallest number as a count, and LSET accepts the largest
 *     one as an index
 *     a range by score with a negative offset is not empty
 *     SET with a PXAT or EXAT in the past removes the key
 *     Redis 8 accepts no hexadecimal number as a score
 *     Valkey 8 accepts bytes above 126 in the name of a client */
static void leave_out(event *e) {
    int script = has_text(e, "EVAL") || has_text(e, "eval");
    int blocks = has_text(e, "BLPOP") || has_text(e, "BRPOP");
    int flushes = has_text(e, "FLUSHALL") || has_text(e, "FLUSHDB");
    int numbers = has_text(e, "922337203685477580") &&
                  (has_text(e, "LREM") || has_text(e, "LSET"));
    int offset = has_text(e, "BYSCORE") && has_text(e, "LIMIT");
    int expires = has_text(e, "PXAT") || has_text(e, "EXAT");
    int names = has_text(e, "SETNAME") && has_text(e, "\xff");
    if (!(script && blocks) && !flushes && !numbers && !offset && !expires &&
        !names && !has_text(e, "HELLO") && !has_text(e, "0x10"))
        return;
    e->text.len = 0;
    e->argc = 0;
    add_word(e, "PING", 4);
}

static void make_events(uint64_t seed) {
    static const char *const words[] = {"zadd",           "client|tracking",
                                        "ltrim",          "publish",
                                        "lpush",          "get",
                                        "eval",           "zrange",
                                        "client|caching", "script|load"};
    int waits[6] = {0}; /* us for which a connection may be blocked. It sends
                           nothing in this time, since at the timeout the
                           timers of Redis decide which keys have expired */
    int i;
    chance_state = seed * 7919 + 1;
    forget_events();
    for (i = 0; i < 24; i++) favourites[i] = PICK(commands);
    few_elements = below(3) > 0;
    with_faults = below(2);
    for (i = 0; i < 6; i++) new_event(CONNECT, i);
    for (i = 4; i < 6; i++) { /* connections 0 to 3 run most commands */
        event *e = new_event(SEND, i);
        add_text(e, "SUBSCRIBE");
        add_text(e, below(3) ? "__redis__:invalidate" : "c1");
        add_text(e, "c2");
    }
    for (i = 0; i < 250; i++) {
        int what = below(100), who = below(20) ? below(4) : below(6);
        if (what < 4) {
            event *e = new_event(CLOCK, 0);
            e->n = below(4) ? below(2000) : below(900000);
            for (who = 0; who < 6; who++) waits[who] -= (int)e->n;
        } else if (what < 5) {
            new_event(CONNECT, who);
            waits[who] = 0;
        } else if (what < 8) {
            event *e;
            if (!with_faults) continue;
            e = new_event(FAULT, 0);
            e->n = below(3) ? NO_FAULT : 1 + below(3);
            if (e->n == DENIED) buf_text(&e->text, PICK(words));
        } else if (waits[who] <= 0) {
            add_command(who);
            if (other_version) leave_out(&events[count - 1]);
            waits[who] = last_may_wait() ? 1500000 : 0;
        }
    }
}

/* --- delayq's own requests ----------------------------------------------- */

/* Run a program of model_driver.c. Pass its bytes to both servers, and the real
 * replies back to it, and record all this as events. In some sequences the
 * clock shows whole ms, as in scripts of Dragonfly; or replies are lost, so
 * that the program sends requests again; or the servers refuse commands. */
static int drive(unsigned seed) {
    static const char *const refused_words[] = {
        "zadd",   "zrem",          "zremrangebyrank",
        "ltrim",  "rpush",         "lset",
        "lrem",   "set",           "publish",
        "zcount", "pubsub|numsub", "hincrby"};
    const int64_t unit = seed / 18 % 2 ? 1000 : 1;
    const int loses = seed % 7 == 6, refuses = seed % 11 == 5;
    char path[96], url[112];
    struct sockaddr_un at;
    struct pollfd fds[CONNS + 1];
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int ends[CONNS], i, lost, differ = 0;
    int64_t before;
    pid_t child;
    lua_imitate((int)(seed / 6 % 3));
    forget_events();
    begin(1);
    snprintf(path, sizeof path, "%s/relay", dir);
    snprintf(url, sizeof url, "unix://%s", path);
    unlink(path);
    memset(&at, 0, sizeof at);
    at.sun_family = AF_UNIX;
    snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
    if (bind(listener, (struct sockaddr *)&at, sizeof at) != 0 ||
        listen(listener, 20) != 0)
        die("relay");
    for (i = 0; i < CONNS; i++) ends[i] = -1;
    child = fork();
    if (child == 0) {
        alarm(60);
        model_drive(url, seed);
        _exit(0);
    }
    before = real_us();
    while (!differ) {
        int n = 0, of[CONNS + 1], j;
        int64_t now;
        fds[n].fd = listener;
        fds[n].events = POLLIN;
        of[n++] = -1;
        for (i = 0; i < CONNS; i++) {
            if (ends[i] < 0) continue;
            fds[n].fd = ends[i];
            fds[n].events = POLLIN;
            of[n++] = i;
        }
        if (poll(fds, (nfds_t)n, 20) == 0 &&
            waitpid(child, NULL, WNOHANG) == child) {
            child = 0;
            break;
        }
        for (j = 0; j < n && !differ; j++) {
            static char bytes[65536];
            ssize_t got;
            event *e;
            if (!fds[j].revents) continue;
            now = before + (real_us() - before) / unit * unit;
            new_event(CLOCK, 0)->n = now - before;
            before = now;
            differ = apply(&events[count - 1]);
            if (differ) break;
            if (of[j] < 0) {
                for (i = 0; i < CONNS && ends[i] >= 0; i++) continue;
                if (i == CONNS) die("too many connections");
                ends[i] = accept(listener, NULL, NULL);
                new_event(CONNECT, i);
            } else if ((got = read(fds[j].fd, bytes, sizeof bytes)) <= 0) {
                i = of[j];
                close(ends[i]);
                ends[i] = -1;
                new_event(CLOSE, i);
            } else {
                if (refuses && below(20) == 0) {
                    e = new_event(FAULT, 0);
                    e->n = below(2) ? NO_FAULT : 1 + below(3);
                    if (e->n == DENIED) buf_text(&e->text, PICK(refused_words));
                    differ = apply(e);
                    if (differ) break;
                }
                e = new_event(SEND, of[j]);
                buf_add(&e->text, bytes, (size_t)got);
            }
            differ = apply(&events[count - 1]);
            lost = loses && below(100) == 0 ? of[j] : -1;
            for (i = 0; i < CONNS; i++)
                if (ends[i] >= 0 && i != lost && conns[i].real.len > 0)
                    send_all(ends[i], conns[i].real.s, conns[i].real.len);
            if (lost < 0 || ends[lost] < 0 || differ) continue;
            close(ends[lost]);
            ends[lost] = -1;
            new_event(CLOSE, lost);
            differ = apply(&events[count - 1]);
        }
    }
    if (child > 0) {
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    for (i = 0; i < CONNS; i++)
        if (ends[i] >= 0) close(ends[i]);
    close(listener);
    return differ || !same_contents();
}

/* --- main ---------------------------------------------------------------- */

static int passed, failed;

/* Print how often the scripts ran. Each must have run `least` times or more. */
static void report_scripts(int64_t least) {
    const char *name, *sha, *rarest = "";
    int64_t all = 0, fewest = INT64_MAX;
    size_t i;
    for (i = 0; (name = model_script(i, &sha)); i++) {
        int64_t n = lua_runs(sha);
        all += n;
        if (n < fewest) rarest = name, fewest = n;
    }
    printf("    %lld scripts, the rarest %s: %lld times\n", (long long)all,
           rarest, (long long)fewest);
    if (fewest >= least) return;
    failed++;
    printf("FAIL each is to run at least %lld times\n", (long long)least);
}

static void report(const char *what, uint64_t seed, int differ, int anew) {
    if (!differ) {
        passed++;
        return;
    }
    failed++;
    printf("FAIL %s, SEED=%llu; the shortest that differs:\n", what,
           (unsigned long long)seed);
    shrink(events, count, anew);
    fflush(stdout);
    begin(1);
}

int main(int argc, char **argv) {
    const char *only = getenv("SEED"), *seconds = getenv("SECONDS");
    int64_t end = real_us() + (seconds ? atoi(seconds) : 0) * INT64_C(1000000);
    char name[1100];
    FILE *version;
    uint64_t seed = only ? strtoull(only, NULL, 10) : 1;
    uint64_t driven =
        getenv("DRIVEN") ? strtoull(getenv("DRIVEN"), NULL, 10) : 0;
    uint64_t last = driven ? driven : 120;
    int fd, i, at, major, minor;
    if (argc < 2 || !(clock_so = realpath(argv[1], NULL))) {
        fprintf(stderr, "usage: %s CLOCK.so\n", argv[0]);
        return 2;
    }
    if (getenv("MODEL_SERVER")) program = getenv("MODEL_SERVER");
    snprintf(name, sizeof name, "%s --version", program);
    version = popen(name, "r");
    if (!version || !fgets(name, sizeof name, version)) name[0] = '\0';
    if (!version || pclose(version) != 0) {
        printf("skip %s is missing\n0 passed, 0 failed, 1 skipped\n", program);
        return 0;
    }
    other_version = !strstr(name, "Redis server v=7.0.");
    if (sscanf(name, "%*s server v=%d.%d", &major, &minor) == 2)
        tracks_reads = major * 100 + minor >= 702;
    if (other_version) printf("%s", name);
    signal(SIGPIPE, SIG_IGN);
    snprintf(dir, sizeof dir, "/tmp/sim-model-XXXXXX");
    if (!mkdtemp(dir)) die("mkdtemp");
    snprintf(socket_path, sizeof socket_path, "%s/s", dir);
    snprintf(name, sizeof name, "%s/clock", dir);
    fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, 8) != 0) die(name);
    wall = mmap(NULL, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (wall == MAP_FAILED) die("mmap");
    for (i = 0; i < CONNS; i++) conns[i].fd = -1;
    begin(1);
    for (; failed < 3; seed++) {
        if (driven) {
            report("delayq", seed, drive((unsigned)seed), 1);
        } else if (seed % 8 || only) {
            make_events(seed);
            report("commands", seed, replay(events, count, 0, &at), 0);
        } else {
            report("delayq", seed, drive((unsigned)seed / 8), 1);
        }
        if (seconds && !driven ? real_us() > end : seed >= last) break;
        if (only) break;
    }
    if (driven && !only) report_scripts(atoi(getenv("LEAST")));
    forget_events();
    free(events);
    for (i = 0; i < CONNS; i++) conn_end(&conns[i]);
    no_faults();
    redis_free(model);
    server_end();
    snprintf(name, sizeof name, "rm -rf %s", dir);
    if (system(name) != 0) return 2;
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
