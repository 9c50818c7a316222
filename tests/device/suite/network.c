/*
 * network.c -- the machine on which the tests use lwIP: its clock, random bytes
 * and Ethernet. libslirp is at the other end of the Ethernet, and connects the
 * program with Linux, as it does for qemu's guests.
 *
 * The tests are the same as on Linux. They open handles by unix:// or by
 * 127.0.0.1. The linker replaces their delayq_open by the function in this
 * file, which turns the URL of a unix socket into that of a TCP port. libslirp
 * forwards this port to the socket.
 */
#include "lwip/etharp.h"
#include "lwip/init.h"
#include "lwip/sockets.h"
#include "netif/ethernet.h"
#include "../../../delayq.h"
#include "../interface.h"
#include <errno.h>
#include <libslirp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

int64_t board_now_us(void);
int board_random(void *bytes, size_t len);
int network_connect(int fd, const struct sockaddr *to, socklen_t size);
delayq_status __real_delayq_open(delayq *q, const delayq_options *options);
delayq_status __wrap_delayq_open(delayq *q, const delayq_options *options);
size_t __real_delayq_fds(const delayq *q, int *fds, size_t max);
size_t __wrap_delayq_fds(const delayq *q, int *fds, size_t max);
int __real_poll(struct pollfd *fds, nfds_t count, int ms);
int __wrap_poll(struct pollfd *fds, nfds_t count, int ms);

int64_t board_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

int board_random(void *bytes, size_t len) {
    return getrandom(bytes, len, 0) == (ssize_t)len;
}

/* --- the cable ------------------------------------------------------------ */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for libslirp */
static Slirp *slirp;
static struct netif ethernet, loop;
static int
    pipes[2]; /* to wake run_slirp when its set of sockets has changed */

static struct in_addr address(const char *text) {
    struct in_addr a;
    a.s_addr = inet_addr(text);
    return a;
}

/* libslirp may write to a closed socket, which raises SIGPIPE. This can also
 * happen in the test's thread, when it sends through lwIP. The test must not
 * get the signal. */
static sigset_t broken_pipe;

static err_t to_slirp(struct netif *n, struct pbuf *p) {
    static const struct timespec no_time;
    sigset_t before;
    char frame[2048];
    u16_t len = pbuf_copy_partial(p, frame, sizeof frame, 0);
    (void)n;
    pthread_mutex_lock(&lock);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    slirp_input(slirp, (const uint8_t *)frame, len);
    sigtimedwait(&broken_pipe, NULL, &no_time);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_mutex_unlock(&lock);
    return write(pipes[1], "w", 1) == 1 ? ERR_OK : ERR_IF;
}

static ssize_t from_slirp(const void *frame, size_t len, void *unused) {
    struct pbuf *p = pbuf_alloc(PBUF_RAW, (u16_t)len, PBUF_RAM);
    (void)unused;
    if (!p) return -1;
    pbuf_take(p, frame, (u16_t)len);
    if (ethernet.input(p, &ethernet) != ERR_OK) pbuf_free(p);
    return (ssize_t)len;
}

static void on_error(const char *text, void *unused) {
    (void)unused;
    fprintf(stderr, "libslirp: %s\n", text);
}
static int64_t clock_ns(void *unused) {
    (void)unused;
    return board_now_us() * 1000;
}
/* Timers do nothing, since libslirp uses them only for IPv6. */
static void *timer_new(SlirpTimerCb call, void *argument, void *unused) {
    (void)call, (void)argument, (void)unused;
    return &slirp;
}
static void timer_free(void *timer, void *unused) {
    (void)timer, (void)unused;
}
static void timer_mod(void *timer, int64_t at_ms, void *unused) {
    (void)timer, (void)at_ms, (void)unused;
}
static void on_fd(int fd, void *unused) {
    (void)fd, (void)unused;
}
static void on_notify(void *unused) {
    (void)unused;
}
static const SlirpCb callbacks = {from_slirp, on_error,  clock_ns, timer_new,
                                  timer_free, timer_mod, on_fd,    on_fd,
                                  on_notify,  NULL,      NULL};

enum { WATCHED_MAX = 256 };
static struct pollfd watched[WATCHED_MAX];
static int watched_count;

/* Each flag of libslirp, and the flag of poll with the same meaning. */
static const int flags[5][2] = {{SLIRP_POLL_IN, POLLIN},
                                {SLIRP_POLL_OUT, POLLOUT},
                                {SLIRP_POLL_PRI, POLLPRI},
                                {SLIRP_POLL_ERR, POLLERR},
                                {SLIRP_POLL_HUP, POLLHUP}};

static int add_watched(int fd, int events, void *unused) {
    struct pollfd *p = &watched[watched_count];
    int i;
    (void)unused;
    if (watched_count == WATCHED_MAX) abort();
    p->fd = fd;
    p->events = 0;
    for (i = 0; i < 3; i++)
        if (events & flags[i][0]) p->events |= (short)flags[i][1];
    return watched_count++;
}

static int events_of(int at, void *unused) {
    int i, events = 0;
    (void)unused;
    for (i = 0; i < 5; i++)
        if (watched[at].revents & flags[i][1]) events |= flags[i][0];
    return events;
}

static void *run_slirp(void *unused) {
    (void)unused;
    for (;;) {
        char bytes[256];
        uint32_t ms = 1000;
        watched_count = 0;
        add_watched(pipes[0], SLIRP_POLL_IN, NULL);
        pthread_mutex_lock(&lock);
        slirp_pollfds_fill(slirp, &ms, add_watched, NULL);
        pthread_mutex_unlock(&lock);
        if (__real_poll(watched, (nfds_t)watched_count, (int)ms) < 0) continue;
        if (watched[0].revents && read(pipes[0], bytes, sizeof bytes) < 0)
            abort();
        pthread_mutex_lock(&lock);
        slirp_pollfds_poll(slirp, 0, events_of, NULL);
        pthread_mutex_unlock(&lock);
    }
    return NULL;
}

/* --- lwIP ----------------------------------------------------------------- */

static err_t ethernet_init(struct netif *n) {
    n->name[0] = 'e', n->name[1] = 'n';
    n->hwaddr_len = 6;
    memcpy(n->hwaddr, "\x52\x54\x00\x12\x34\x56", 6);
    n->mtu = 1500;
    n->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    n->output = etharp_output;
    n->linkoutput = to_slirp;
    return ERR_OK;
}

static void up(void *done) {
    if (!interface_up(&loop, "127.0.0.1", "255.0.0.0", "10.0.2.2", loop_init) ||
        !interface_up(&ethernet, "10.0.2.15", "255.255.255.0", "10.0.2.2",
                      ethernet_init))
        abort();
    netif_set_default(&ethernet);
    sys_sem_signal(done);
}

/* lwIP's threads don't exist in a forked child. */
static int is_child;
static void in_child(void) {
    is_child = 1;
}

static void start(void) {
    SlirpConfig config;
    sigset_t before;
    pthread_t thread;
    sys_sem_t done;
    memset(&config, 0, sizeof config);
    config.version = 1;
    config.in_enabled = 1;
    config.vnetwork = address("10.0.2.0");
    config.vnetmask = address("255.255.255.0");
    config.vhost = address("10.0.2.2");
    config.vdhcp_start = address("10.0.2.15");
    config.vnameserver = address("10.0.2.3");
    sigemptyset(&broken_pipe);
    sigaddset(&broken_pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &broken_pipe, &before);
    slirp = slirp_new(&config, &callbacks, NULL);
    if (!slirp || pipe(pipes) != 0 ||
        pthread_create(&thread, NULL, run_slirp, NULL) != 0)
        abort();
    sys_sem_new(&done, 0);
    tcpip_init(up, &done);
    sys_sem_wait(&done);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_atfork(NULL, NULL, in_child);
}

/* --- the tests' addresses ------------------------------------------------- */

/* Connect to 10.0.2.2 instead of 127.0.0.1, since libslirp forwards 10.0.2.2 to
 * Linux' loopback. */
int network_connect(int fd, const struct sockaddr *to, socklen_t size) {
    struct sockaddr_in a;
    int type = 0;
    socklen_t len = sizeof type;
    memcpy(&a, to, size < sizeof a ? size : sizeof a);
    lwip_getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &len);
    if (type == SOCK_STREAM && a.sin_family == AF_INET &&
        a.sin_addr.s_addr == htonl(INADDR_LOOPBACK))
        a.sin_addr = address("10.0.2.2");
    return lwip_connect(fd, type == SOCK_STREAM ? (struct sockaddr *)&a : to,
                        size);
}

static int resolve(void *user, const char *host, char *text, size_t size) {
    (void)user;
    if (strcmp(host, "localhost") != 0) return -1;
    snprintf(text, size, "127.0.0.1");
    return 1;
}

/* Returns the port that libslirp forwards to a unix socket. */
static int port_of(const char *path) {
    static char *paths[64];
    static int count;
    struct in_addr at = address("10.0.2.100");
    int i;
    for (i = 0; i < count; i++)
        if (strcmp(paths[i], path) == 0) return 1000 + i;
    if (count == 64) abort();
    paths[count] = strdup(path);
    pthread_mutex_lock(&lock);
    if (slirp_add_unix(slirp, path, &at, 1000 + count) != 0) abort();
    pthread_mutex_unlock(&lock);
    return 1000 + count++;
}

/* Returns the URL to use in place of unix://[user:pw@]/path[?db=N]. */
static const char *url_of(const char *url) {
    const char *rest = url + strlen("unix://"), *path, *db;
    char own[128], *text;
    if (!url || strncmp(url, "unix://", 7) != 0) return url;
    path = strchr(rest, '/');
    if (!path) return url;
    db = strstr(path, "?db=");
    snprintf(own, sizeof own, "%.*s", (int)(db ? db - path : 127), path);
    text = malloc(512); /* never freed, since the handle needs it */
    if (!text) abort();
    snprintf(text, 512, "redis://%.*s10.0.2.100:%d%s%s", (int)(path - rest),
             rest, port_of(own), db ? "/" : "", db ? db + 4 : "");
    return text;
}

static void skip(const char *why) {
    printf("    skipped: %s\n", why);
    fflush(stdout);
    _exit(77);
}

delayq_status __wrap_delayq_open(delayq *q, const delayq_options *options) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    delayq_options o;
    pthread_once(&once, start);
    if (!options) return __real_delayq_open(q, options);
    o = *options;
    if (o.connect) skip("options.connect connects a socket of Linux");
    if (is_child) skip("a child process has no lwIP");
    o.url = url_of(o.url);
    if (!o.resolve && !o.share) o.resolve = resolve;
    return __real_delayq_open(q, &o);
}

/* A test passes lwIP's descriptors to poll, so they must differ from Linux'. */
enum { LWIP_FDS = 1000000 };
size_t __wrap_delayq_fds(const delayq *q, int *fds, size_t max) {
    size_t n = __real_delayq_fds(q, fds, max), i;
    for (i = 0; i < n; i++) fds[i] += LWIP_FDS;
    return n;
}
int __wrap_poll(struct pollfd *fds, nfds_t count, int ms) {
    nfds_t i;
    int n;
    if (count == 0 || fds[0].fd < LWIP_FDS) return __real_poll(fds, count, ms);
    for (i = 0; i < count; i++) fds[i].fd -= LWIP_FDS;
    n = lwip_poll(fds, count, ms);
    for (i = 0; i < count; i++) fds[i].fd += LWIP_FDS;
    return n;
}
