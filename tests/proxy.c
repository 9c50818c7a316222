#define _GNU_SOURCE
#include "proxy.h"
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define PAIRS 32

struct flow {
    enum fault fault; /* the fault that struck this flow */
    long long until;
    char *kept;
    size_t len;
    char kind; /* first byte of the current line, * or $; 0: not read yet */
    long number, skip;
};
struct pair {
    int fd[2]; /* the sockets to the client and to the server */
    int number;
    struct flow flow[2]; /* the bytes from the client and from the server */
};

struct proxy *proxy;
static char path[128];
static int listener;
static const server *target;

int unix_socket(const char *name, int listening) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", name);
    if (fd >= 0 &&
        (listening ? bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                         listen(fd, 128) == 0
                   : connect(fd, (struct sockaddr *)&a, sizeof a) == 0))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

int put(int fd, const char *bytes, size_t n) {
    while (n > 0) {
        ssize_t w = send(fd, bytes, n, MSG_NOSIGNAL);
        if (w < 0 && errno == EINTR) continue;
        if (w <= 0) return 0;
        bytes += w;
        n -= (size_t)w;
    }
    return 1;
}

/* Returns how many of n bytes pass unchanged. The fault applies to the rest.
 * The test may strike again as soon as it sees the new `times`. So `times` is
 * written last, and not at all if proxy_calm() was called meanwhile. */
static size_t clean(struct pair *p, int d, size_t n) {
    struct flow *f = &p->flow[d];
    int times = proxy->times;
    long at = proxy->at;
    if (f->fault != PASS) return 0;
    if (times <= 0 || proxy->direction != d || at < 0) return n;
    if (proxy->only >= 0 && proxy->only != p->number) return n;
    if ((long)n < at) {
        proxy->at = at - (long)n;
        return n;
    }
    f->fault = (enum fault)proxy->fault;
    f->until = now_us() + proxy->delay_ms * 1000LL;
    proxy->at = times > 1 ? 0 : -1;
    __sync_bool_compare_and_swap(&proxy->times, times, times - 1);
    return (size_t)at;
}

static int keep(struct flow *f, const char *bytes, size_t n) {
    f->kept = (char *)realloc(f->kept, f->len + n + 1);
    memcpy(f->kept + f->len, bytes, n);
    f->len += n;
    proxy->kept += (long)n;
    return 1;
}

/* Write n bytes that contain no digit, no letter and no character of the
 * protocol. They end in "\r\n", so that no reader waits for a line end. */
static int noise(int fd, size_t n) {
    static unsigned seed = 1;
    char bytes[65536];
    size_t i;
    for (i = 0; i < n; i++) bytes[i] = (char)(0xf0 + (seed++ * 7) % 16);
    if (n >= 2) memcpy(bytes + n - 2, "\r\n", 2);
    return put(fd, bytes, n);
}

/* Write a reply twice. Redis 5 sends it in parts, so read all of it first. */
static int twice(int from, int to, const char *bytes, size_t n) {
    static char whole[2 * 65536];
    struct pollfd p = {from, POLLIN, 0};
    memcpy(whole, bytes, n);
    while (poll(&p, 1, 10) == 1 && n < sizeof whole / 2) {
        ssize_t more = read(from, whole + n, sizeof whole / 2 - n);
        if (more <= 0) return 0;
        n += (size_t)more;
    }
    memcpy(whole + n, whole, n);
    return put(to, whole, 2 * n);
}

static int begins_array(const char *bytes, size_t n) {
    size_t i = 1;
    while (i < n && bytes[i] >= '0' && bytes[i] <= '9') i++;
    return bytes[0] == '*' && i > 1 && i < n && bytes[i] == '\r';
}

/* Answer each command. A line that begins like an array is a command, since
 * payloads and ids of the tests contain no arrays. */
static int forge(int fd, const char *bytes, size_t n) {
    size_t i, len = strlen(proxy->forged);
    for (i = 0; i < n; i++)
        if ((i == 0 || bytes[i - 1] == '\n') &&
            begins_array(bytes + i, n - i) && !put(fd, proxy->forged, len))
            return 0;
    return 1;
}

static int strike(struct pair *p, int d, const char *bytes, size_t n) {
    struct flow *f = &p->flow[d];
    enum fault what = f->fault;
    if (what == REPLAY || what == FORGE || what == COPY)
        f->fault = PASS; /* strike only this request */
    switch (what) {
    case CUT: return 0;
    case STALL:
    case LATE:
    case DELAY: return keep(f, bytes, n);
    case GARBAGE: return noise(p->fd[!d], n);
    case REPLAY: return twice(p->fd[d], p->fd[!d], bytes, n);
    case COPY: return put(p->fd[!d], bytes, n) && keep(f, bytes, n);
    case FORGE:
        if (d == 0) return forge(p->fd[0], bytes, n);
        return put(p->fd[0], proxy->forged, strlen(proxy->forged));
    default: return 1; /* DROP, or PASS with n = 0 */
    }
}

/* Count the requests, and the words of the longest request. */
static void count_words(struct flow *f, const char *bytes, size_t n) {
    size_t i;
    for (i = 0; i < n; i++) {
        if (f->skip > 0) {
            f->skip--;
        } else if (bytes[i] >= '0' && bytes[i] <= '9') {
            f->number = f->number * 10 + bytes[i] - '0';
        } else if (bytes[i] == '\n') {
            if (f->kind == '$') f->skip = f->number + 2;
            if (f->kind == '*') proxy->requests++;
            if (f->kind == '*' && f->number > proxy->most_words)
                proxy->most_words = f->number;
            f->kind = 0;
        } else if (bytes[i] != '\r') {
            f->kind = bytes[i];
            f->number = 0;
        }
    }
}

/* Read bytes and pass them on. Returns 0 if the connection has ended. */
static int pass(struct pair *p, int d) {
    char bytes[65536];
    ssize_t n = read(p->fd[d], bytes, sizeof bytes);
    size_t good;
    if (n <= 0) return 0;
    if (d == 0 && proxy->word[0] && p->flow[0].fault == PASS &&
        memmem(bytes, (size_t)n, proxy->word, strlen(proxy->word))) {
        p->flow[0].fault = DROP;
        return proxy->forged[0] != '\0' &&
               put(p->fd[0], proxy->forged, strlen(proxy->forged));
    }
    if (d == 0) count_words(&p->flow[0], bytes, (size_t)n);
    if (proxy->pace_us > 0)
        usleep((unsigned)(proxy->pace_us * (double)n / sizeof bytes));
    good = clean(p, d, (size_t)n);
    proxy->passed[d] += (long)good;
    return put(p->fd[!d], bytes, good) &&
           strike(p, d, bytes + good, (size_t)n - good);
}

static int is_held(const struct flow *f) {
    return f->fault == STALL || f->fault == LATE || f->fault == DELAY;
}

/* Release the held bytes if it is time. Returns 1 if they are still held. */
static int let_go(struct pair *p, int d) {
    struct flow *f = &p->flow[d];
    int copy = f->fault == PASS && f->len > 0;
    if (copy && !proxy->let_go) return 0;
    if (!is_held(f) && !copy) return 0;
    if (f->fault == DELAY ? now_us() < f->until : !proxy->let_go) return 1;
    f->fault = PASS;
    put(p->fd[!d], f->kept, f->len);
    proxy->kept -= (long)f->len;
    f->len = 0;
    return 0;
}

static void end(struct pair *p) {
    int d;
    for (d = 0; d < 2; d++) {
        proxy->kept -= (long)p->flow[d].len;
        free(p->flow[d].kept);
        close(p->fd[d]);
    }
}

static int is_late(const struct pair *p) {
    return p->flow[0].fault == LATE || p->flow[1].fault == LATE;
}

static void run_proxy(void *unused) {
    static struct pair pairs[PAIRS];
    struct pollfd p[1 + 2 * PAIRS];
    int n = 0, i, d;
    (void)unused;
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int held = 0;
        p[0].fd = listener;
        p[0].events = POLLIN;
        for (i = 0; i < 2 * n; i++) {
            int holds = let_go(&pairs[i / 2], i % 2);
            p[1 + i].fd = pairs[i / 2].fd[i % 2];
            p[1 + i].events = holds ? 0 : POLLIN;
            /* poll() reports a hang-up even without events, so it must skip a
             * LATE pair, which ignores hang-ups */
            if (is_late(&pairs[i / 2])) p[1 + i].fd = -1;
            held |= holds || pairs[i / 2].flow[i % 2].len > 0;
        }
        poll(p, (nfds_t)(1 + 2 * n), held ? 1 : -1);
        for (i = n - 1; i >= 0; i--)
            for (d = 0; d < 2; d++) {
                if (!p[1 + 2 * i + d].revents) continue;
                if (!is_held(&pairs[i].flow[d]) && pass(&pairs[i], d)) continue;
                end(&pairs[i]);
                pairs[i] = pairs[--n];
                break;
            }
        if (p[0].revents && n < PAIRS) {
            memset(&pairs[n], 0, sizeof pairs[n]);
            pairs[n].fd[0] = accept(listener, NULL, NULL);
            pairs[n].fd[1] = unix_socket(target->url + 7, 0);
            if (pairs[n].fd[1] < 0)
                FAIL("%s: %s", target->url, strerror(errno));
            pairs[n].number = proxy->connections++;
            n++;
        }
        proxy->pairs = n;
    }
}

void proxy_start(const server *to) {
    proxy = (struct proxy *)mmap(NULL, sizeof *proxy, PROT_READ | PROT_WRITE,
                                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(proxy != MAP_FAILED);
    proxy->at = proxy->only = -1;
    snprintf(path, sizeof path, "%s/proxy%d", to->dir, (int)getpid());
    listener = unix_socket(path, 1);
    if (listener < 0) FAIL("%s: %s", path, strerror(errno));
    target = to;
    spawn(run_proxy, NULL);
    close(listener);
}

void proxy_strike(enum fault what, int direction, long at, int times) {
    proxy->fault = what;
    proxy->direction = direction;
    proxy->at = at;
    proxy->times = times; /* set last, because it activates the fault */
}

void proxy_calm(void) {
    proxy->times = 0;
    proxy->at = -1;
    proxy->only = -1;
}

const char *proxy_url(void) {
    static char url[140];
    snprintf(url, sizeof url, "unix://%s", path);
    return url;
}

static int numbers[1024]; /* indexed by descriptor */

/* Note the connection's number. The proxy accepts connections in order. */
redisContext *through_proxy(void *user, int timeout_ms) {
    static int next;
    redisContext *c = redisConnectUnix(path);
    (void)user;
    (void)timeout_ms;
    if (!c || c->err) return c;
    CHECK(c->fd < 1024);
    numbers[c->fd] = next++;
    return c;
}

int proxy_number(const redisContext *c) {
    return numbers[c->fd];
}
