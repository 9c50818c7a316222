/*
 * With an outbox no call of a frame (open, tick, take with timeout 0, offer,
 * ack ..., close) makes a system call that can wait, whatever the server does.
 *
 * This program defines its own versions of the functions of libc that can wait.
 * The linker binds hiredis' shared library to them, too. While the guard is up
 * they note each call that can wait: poll and the like with a timeout, any
 * sleep, any look-up of a name, and reading, writing or connecting on a
 * blocking socket or pipe.
 */
#define DELAYQ_IMPLEMENTATION
#include "../test.h"
#include "../outbox.h"
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <time.h>

#ifndef RTLD_NEXT /* _GNU_SOURCE would also change the types for sockaddr */
#define RTLD_NEXT ((void *)-1L)
#endif

/* --- the guard ----------------------------------------------------------- */

static int up;             /* 1: the guard is up */
static long looked;        /* the number of calls that the guard has seen */
static char waited[128];   /* the first call that can wait, or "" */
static const char *within; /* the current call of delayq */

static void note(const char *function, long value) {
    if (up && !waited[0])
        snprintf(waited, sizeof waited, "%s(%ld)", function, value);
}

/* Note the call if it can wait because fd is a blocking socket or pipe. */
static void check_fd(const char *function, int fd, int flags) {
    struct stat s;
    if (!up) return;
    looked++;
    if (flags & MSG_DONTWAIT) return;
    if (fstat(fd, &s) != 0 || !(S_ISSOCK(s.st_mode) || S_ISFIFO(s.st_mode)))
        return;
    if (!(fcntl(fd, F_GETFL) & O_NONBLOCK)) note(function, fd);
}

/* Replace a function of libc by one that runs the check, then the original. */
#define GUARD(type, name, parameters, arguments, check)      \
    type name parameters {                                   \
        static type(*real) parameters;                       \
        void *found = real ? NULL : dlsym(RTLD_NEXT, #name); \
        if (!real) memcpy(&real, &found, sizeof real);       \
        check;                                               \
        return real arguments;                               \
    }

GUARD(int, poll, (struct pollfd * p, nfds_t n, int ms), (p, n, ms),
      if (ms != 0) note("poll", ms))
GUARD(int, ppoll,
      (struct pollfd * p, nfds_t n, const struct timespec *t,
       const sigset_t *mask),
      (p, n, t, mask), if (!t || t->tv_sec || t->tv_nsec) note("ppoll", 0))
GUARD(int, select, (int n, fd_set *r, fd_set *w, fd_set *e, struct timeval *t),
      (n, r, w, e, t), if (!t || t->tv_sec || t->tv_usec) note("select", n))
GUARD(int, epoll_wait, (int fd, struct epoll_event *e, int n, int ms),
      (fd, e, n, ms), if (ms != 0) note("epoll_wait", ms))
GUARD(int, nanosleep, (const struct timespec *t, struct timespec *left),
      (t, left), note("nanosleep", t->tv_nsec))
GUARD(int, clock_nanosleep,
      (clockid_t id, int flags, const struct timespec *t,
       struct timespec *left),
      (id, flags, t, left), note("clock_nanosleep", t->tv_nsec))
GUARD(int, usleep, (useconds_t us), (us), note("usleep", us))
GUARD(unsigned, sleep, (unsigned s), (s), note("sleep", s))
GUARD(int, getaddrinfo,
      (const char *host, const char *port, const struct addrinfo *hints,
       struct addrinfo **list),
      (host, port, hints, list), note("getaddrinfo", 0))
GUARD(struct hostent *, gethostbyname, (const char *host), (host),
      note("gethostbyname", 0))
GUARD(int, connect, (int fd, const struct sockaddr *to, socklen_t len),
      (fd, to, len), check_fd("connect", fd, 0))
GUARD(ssize_t, read, (int fd, void *to, size_t n), (fd, to, n),
      check_fd("read", fd, 0))
GUARD(ssize_t, readv, (int fd, const struct iovec *to, int n), (fd, to, n),
      check_fd("readv", fd, 0))
GUARD(ssize_t, recv, (int fd, void *to, size_t n, int flags),
      (fd, to, n, flags), check_fd("recv", fd, flags))
GUARD(ssize_t, recvfrom,
      (int fd, void *to, size_t n, int flags, struct sockaddr *from,
       socklen_t *len),
      (fd, to, n, flags, from, len), check_fd("recvfrom", fd, flags))
GUARD(ssize_t, recvmsg, (int fd, struct msghdr *to, int flags), (fd, to, flags),
      check_fd("recvmsg", fd, flags))
GUARD(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n),
      check_fd("write", fd, 0))
GUARD(ssize_t, writev, (int fd, const struct iovec *from, int n), (fd, from, n),
      check_fd("writev", fd, 0))
GUARD(ssize_t, send, (int fd, const void *from, size_t n, int flags),
      (fd, from, n, flags), check_fd("send", fd, flags))
GUARD(ssize_t, sendto,
      (int fd, const void *from, size_t n, int flags, const struct sockaddr *to,
       socklen_t len),
      (fd, from, n, flags, to, len), check_fd("sendto", fd, flags))
GUARD(ssize_t, sendmsg, (int fd, const struct msghdr *from, int flags),
      (fd, from, flags), check_fd("sendmsg", fd, flags))

static void raise_guard(const char *call) {
    within = call;
    waited[0] = '\0';
    up = 1;
}
static void lower_guard(void) {
    up = 0;
    if (waited[0]) FAIL("%s waits in %s", within, waited);
}

/* Returns the status of a call, and fails if the call waited. */
static delayq_status lowered(delayq_status status) {
    lower_guard();
    return status;
}
#define FRAME(call) (raise_guard(#call), lowered(call))

/* --- frames -------------------------------------------------------------- */

static delayq q;
static char big[100 * 1024];

static void on_log(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)status;
    CHECK(text[0]);
}

static delayq_options frame_options(const server *s, size_t size) {
    delayq_options o = box_options(s, size);
    o.lease_ms = 60000;
    o.log = on_log;
    o.io_timeout_ms = 30;
    return o;
}

/* One frame of a game. It takes all items that have come, and offers some. */
static void frame(int number) {
    delayq_item item;
    delayq_message m[3];
    delayq_status status;
    int64_t wait_ms;
    int fds[8], i;
    FRAME(delayq_tick(&q, &wait_ms));
    while ((status = FRAME(delayq_take(&q, &item, 0))) == DELAYQ_OK) {
        switch (number++ % 5) {
        case 0: FRAME(delayq_nack(&q, &item, 20)); break;
        case 1: FRAME(delayq_extend(&q, &item, 50000)); break;
        case 2: FRAME(delayq_bury(&q, &item, NULL)); break;
        case 3: FRAME(delayq_ack_take(&q, &item, 0)); break;
        default: break;
        }
        if (item.ticket.text[0]) FRAME(delayq_ack(&q, &item));
    }
    CHECK(status == DELAYQ_EMPTY || status < DELAYQ_OK);
    FRAME(delayq_offer(&q, "x", 1, number % 20));
    if (number % 7 == 0) FRAME(delayq_offer(&q, big, sizeof big, 5));
    memset(m, 0, sizeof m);
    for (i = 0; i < 3; i++) {
        m[i].data = "y";
        m[i].len = 1;
        m[i].delay_ms = i ? 5 : 60000;
        m[i].key = i ? "key" : NULL;
        m[i].key_ttl_ms = 10;
    }
    FRAME(delayq_offer_many(&q, m, 3));
    if (number % 3 == 0) FRAME(delayq_cancel_key(&q, "key"));
    if (m[0].status == DELAYQ_OK && m[0].ticket.text[0]) {
        if (number % 2) FRAME(delayq_reschedule(&q, &m[0].ticket, 50000));
        FRAME(delayq_cancel(&q, &m[0].ticket));
    }
    raise_guard("delayq_fds");
    CHECK(delayq_fds(&q, fds, 8) <= 8);
    lower_guard();
}

static void frames(int n) {
    while (n-- > 0) {
        frame(n);
        usleep(300);
    }
}

static void close_guarded(void) {
    raise_guard("delayq_close");
    delayq_close(&q);
    lower_guard();
}

static int progress(uint64_t *seen) {
    delayq_outbox_state s = box(&q);
    frame((int)*seen);
    return s.offers_settled > *seen + 20 && s.changes_settled > 0;
}

/* --- the guard itself ---------------------------------------------------- */

TEST(the_guard_sees_a_handle_that_waits) {
    delayq_options o = options_for(&main_server, "jobs");
    long before = looked;
    OK(&q, delayq_open(&q, &o));
    raise_guard("delayq_offer");
    OK(&q, delayq_offer(&q, "x", 1, 60000));
    up = 0;
    CHECK_HAS(waited, "poll");
    CHECK(looked > before); /* hiredis' reads and writes are seen, too */
    delayq_close(&q);
}

TEST(the_guard_sees_blocking_sockets_and_look_ups) {
    struct addrinfo *list = NULL;
    int fds[2];
    char byte = 'x';
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, fds) == 0);
    raise_guard("send");
    CHECK(send(fds[0], &byte, 1, 0) == 1);
    up = 0;
    CHECK_HAS(waited, "send");
    raise_guard("recv");
    CHECK(recv(fds[1], &byte, 1, MSG_DONTWAIT) == 1);
    lower_guard();
    fcntl(fds[0], F_SETFL, O_NONBLOCK);
    raise_guard("write");
    CHECK(write(fds[0], &byte, 1) == 1);
    lower_guard();
    raise_guard("getaddrinfo");
    if (getaddrinfo("127.0.0.1", NULL, NULL, &list) == 0) freeaddrinfo(list);
    up = 0;
    CHECK_HAS(waited, "getaddrinfo");
    close(fds[0]);
    close(fds[1]);
}

/* --- what the server does ------------------------------------------------ */

TEST(no_call_of_a_frame_waits_while_all_is_well) {
    delayq_options o = frame_options(&main_server, 1 << 20);
    uint64_t seen = 0;
    o.io_timeout_ms = 20000;
    OK(&q, FRAME(delayq_open(&q, &o)));
    UNTIL(progress(&seen));
    seen = box(&q).offers_settled;
    UNTIL(progress(&seen));
    close_guarded();
}

TEST(no_call_of_a_frame_waits_for_a_frozen_server) {
    server s;
    delayq_options o;
    uint64_t seen = 0;
    server_start(&s, NULL);
    o = frame_options(&s, 8 << 20);
    OK(&q, FRAME(delayq_open(&q, &o)));
    UNTIL(progress(&seen));
    server_kill(&s, SIGSTOP);
    frames(300); /* fills the socket's buffer and the outbox */
    CHECK(box(&q).bytes > 1 << 20);
    server_kill(&s, SIGCONT);
    seen = box(&q).offers_settled;
    UNTIL(progress(&seen));
    close_guarded();
    server_kill(&s, SIGSTOP);
    /* Now the server is frozen before the handle connects. */
    OK(&q, FRAME(delayq_open(&q, &o)));
    frames(100);
    close_guarded();
    server_end(&s);
}

TEST(no_call_of_a_frame_waits_for_a_server_that_dies_and_restarts) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    server s;
    delayq_options o;
    uint64_t seen = 0;
    int i;
    snprintf(text, sizeof text, "%d", free_port());
    server_start(&s, with);
    o = frame_options(&s, 1 << 20);
    snprintf(url, sizeof url, "redis://127.0.0.1:%s", text);
    o.url = url;
    OK(&q, FRAME(delayq_open(&q, &o)));
    for (i = 0; i < 2; i++) {
        seen = box(&q).offers_settled;
        UNTIL(progress(&seen));
        server_kill(&s, SIGKILL);
        frames(100);
        server_start_again(&s, with);
    }
    seen = box(&q).offers_settled;
    UNTIL(progress(&seen));
    close_guarded();
    server_end(&s);
}

TEST(no_call_of_a_frame_waits_for_a_host_that_does_not_answer) {
    delayq_options o = frame_options(&main_server, 1 << 20);
    o.url = silent_host();
    o.connect_timeout_ms = 30;
    OK(&q, FRAME(delayq_open(&q, &o)));
    frames(300);
    CHECK_INT(box(&q).offers_settled, 0);
    close_guarded();
}

TEST(no_call_of_a_frame_waits_where_nothing_listens) {
    static const char *const urls[] = {
        "redis://127.0.0.1:1,127.0.0.1:2", "unix:///nowhere/at/all",
        "redis://[::1]:1", "redis+sentinel://127.0.0.1:1,127.0.0.1:2/service"};
    size_t i;
    for (i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        delayq_options o = frame_options(&main_server, BOX);
        o.url = urls[i];
        OK(&q, FRAME(delayq_open(&q, &o)));
        frames(100);
        close_guarded();
    }
}

TEST(no_call_of_a_frame_waits_for_a_server_that_refuses_it) {
    server s;
    delayq_options o;
    uint64_t seen = 0;
    redisContext *c;
    const char *const with[] = {"--requirepass", "secret", NULL};
    char url[160];
    server_start(&s, with);
    o = frame_options(&s, 1 << 20);
    snprintf(url, sizeof url, "unix://:wrong@%s", s.socket);
    o.url = url;
    OK(&q, FRAME(delayq_open(&q, &o)));
    frames(100);
    CHECK_INT(box(&q).offers_settled, 0);
    close_guarded();
    snprintf(url, sizeof url, "unix://:secret@%s", s.socket);
    OK(&q, FRAME(delayq_open(&q, &o)));
    UNTIL(progress(&seen));
    c = server_connect(&s);
    freeReplyObject(run(c, "AUTH secret"));
    freeReplyObject(run(c, "CONFIG SET maxmemory 1"));
    frames(100);
    freeReplyObject(run(c, "CONFIG SET maxmemory 0"));
    freeReplyObject(run(c, "REPLICAOF 127.0.0.1 1"));
    frames(100);
    freeReplyObject(run(c, "REPLICAOF NO ONE"));
    seen = box(&q).offers_settled;
    UNTIL(progress(&seen));
    redisFree(c);
    close_guarded();
    server_end(&s);
}

/* --- names --------------------------------------------------------------- */

static int found; /* the result of the look-up */
static int resolve(void *user, const char *host, char *address, size_t size) {
    (void)user;
    (void)host;
    if (found > 0) snprintf(address, size, "127.0.0.1");
    return found;
}

TEST(no_call_of_a_frame_waits_for_a_name_that_the_caller_looks_up) {
    char text[16], url[64];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    server s;
    delayq_options o;
    uint64_t seen = 0;
    snprintf(text, sizeof text, "%d", free_port());
    server_start(&s, with);
    o = frame_options(&s, 1 << 20);
    snprintf(url, sizeof url, "redis://queue.test:%s", text);
    o.url = url;
    o.resolve = resolve;
    OK(&q, FRAME(delayq_open(&q, &o)));
    frames(50);
    found = -1;
    frames(50);
    CHECK_INT(box(&q).offers_settled, 0);
    found = 1;
    UNTIL(progress(&seen));
    close_guarded();
    server_end(&s);
}

/* --- a shared connection ------------------------------------------------- */

TEST(no_call_of_a_frame_waits_on_a_shared_connection) {
    server s;
    delayq owner;
    delayq_options o;
    uint64_t seen = 0;
    server_start(&s, NULL);
    o = frame_options(&s, BOX);
    OK(&owner, FRAME(delayq_open(&owner, &o)));
    o = frame_options(&s, 1 << 20);
    o.name = "others";
    o.url = NULL;
    o.io_timeout_ms = o.reconnect_max_ms = 0;
    o.share = &owner;
    OK(&q, FRAME(delayq_open(&q, &o)));
    UNTIL((FRAME(delayq_tick(&owner, NULL)), progress(&seen)));
    server_kill(&s, SIGSTOP);
    for (seen = 0; seen < 100; seen++) {
        FRAME(delayq_tick(&owner, NULL));
        FRAME(delayq_offer(&owner, "x", 1, 0));
        frame((int)seen);
        usleep(300);
    }
    close_guarded();
    raise_guard("delayq_close");
    delayq_close(&owner);
    lower_guard();
    server_end(&s);
}
