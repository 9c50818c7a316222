/*
 * The system calls of the code under test, which the linker redirects to these
 * functions (wrap.txt). Outside of processes, and for descriptors of the real
 * process, the functions call the real system.
 */
#undef _FORTIFY_SOURCE
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
#include "inner.h"

#define PIPE_SIZE 65536
#define CALL_US 1 /* time that a system call takes */

typedef struct pipe_buffer {
    int readers, writers;
    size_t begin, end;
    char bytes[PIPE_SIZE];
} pipe_buffer;

/* --- descriptors --------------------------------------------------------- */

static int failed(int error) {
    errno = error;
    return -1;
}

const char *sim_traced;

/* Print a system call of the traced process. Returns the call's result. */
static long traced(const char *call, int fd, long result) {
    const process *p = process_self();
    int saved = errno;
    if (!sim_traced || !p || strcmp(sim_traced, p->name) != 0) return result;
    if (result < 0)
        sim_tell("%s(%d) = %s", call, fd, strerror(saved));
    else
        sim_tell("%s(%d) = %ld", call, fd, result);
    errno = saved;
    return result;
}

/* Print a system call that moves bytes, with the first of these bytes. */
static long traced_bytes(const char *call, int fd, const void *bytes, long n) {
    const process *p = process_self();
    const char *from = bytes;
    char text[161];
    int i, len = 0;
    if (n <= 0 || !sim_traced || !p || strcmp(sim_traced, p->name) != 0)
        return traced(call, fd, n);
    for (i = 0; i < n && i < (int)sizeof text - 1; i++)
        if (from[i] != '\r') text[len++] = from[i] < ' ' ? ' ' : from[i];
    sim_tell("%s(%d) = %ld: %.*s%s", call, fd, n, len, text,
             i < n ? "..." : "");
    return n;
}

static void trace_poll(const struct pollfd *fds, nfds_t count, int timeout) {
    nfds_t i;
    if (!sim_traced || strcmp(sim_traced, process_self()->name) != 0) return;
    for (i = 0; i < count; i++)
        if (fds[i].revents)
            sim_tell("poll of %d, %d ms: %s%s%s%s", fds[i].fd, timeout,
                     fds[i].revents & POLLIN ? " in" : "",
                     fds[i].revents & POLLOUT ? " out" : "",
                     fds[i].revents & POLLERR ? " error" : "",
                     fds[i].revents & POLLHUP ? " hup" : "");
}

static int is_ours(int fd) {
    return process_self() && fd >= SIM_FIRST_FD;
}

/* Begin a system call on a descriptor. Returns its file, or NULL with EBADF. */
static file *enter(int fd) {
    process *p = process_self();
    process_called(CALL_US);
    fd -= SIM_FIRST_FD;
    if (fd >= 0 && fd < p->file_count && p->files[fd].kind != FILE_NONE)
        return &p->files[fd];
    errno = EBADF;
    return NULL;
}

static int new_file(file_kind kind) {
    process *p = process_self();
    int i;
    for (i = 0; i < SIM_MAX_FILES; i++) {
        if (p->files[i].kind != FILE_NONE) continue;
        memset(&p->files[i], 0, sizeof p->files[i]);
        p->files[i].kind = kind;
        if (i >= p->file_count) p->file_count = i + 1;
        return SIM_FIRST_FD + i;
    }
    return failed(EMFILE);
}

static void release_pipe(process *p, file *f) {
    pipe_buffer *b = f->pipe;
    if (f->kind == FILE_PIPE_IN)
        b->readers--;
    else
        b->writers--;
    if (b->readers + b->writers == 0)
        free(b);
    else
        process_notice(p);
}

static void close_file(process *p, file *f) {
    file old = *f;
    f->kind = FILE_NONE;
    while (p->file_count > 0 && p->files[p->file_count - 1].kind == FILE_NONE)
        p->file_count--;
    if (old.pipe) release_pipe(p, &old);
    if (old.conn) conn_close(old.conn);
    p->ends += old.conn != NULL;
}

void sys_close_all(process *p) {
    int i;
    for (i = p->file_count - 1; i >= 0; i--)
        if (p->files[i].kind != FILE_NONE) close_file(p, &p->files[i]);
}

void sys_free_all(process *p) {
    int i;
    for (i = 0; i < p->file_count; i++) p->files[i].conn = NULL;
    p->watched = NULL;
    sys_close_all(p);
}

int process_files(const process *p) {
    int i, n = 0;
    for (i = 0; i < p->file_count; i++) n += p->files[i].kind != FILE_NONE;
    return n;
}

/* --- waiting ------------------------------------------------------------- */

static int file_events(const file *f) {
    const pipe_buffer *b = f->pipe;
    int events = 0;
    switch (f->kind) {
    case FILE_SOCKET: return f->conn ? conn_events(f->conn) : POLLOUT | POLLHUP;
    case FILE_PIPE_IN:
        if (b->end > b->begin) events |= POLLIN;
        if (b->writers == 0) events |= POLLHUP;
        return events;
    case FILE_PIPE_OUT:
        if (PIPE_SIZE - (b->end - b->begin) >= 4096) events |= POLLOUT;
        if (b->readers == 0) events |= POLLERR;
        return events;
    default: return POLLIN | POLLOUT;
    }
}

int sys_ready(process *p, struct pollfd *fds, nfds_t count) {
    int n = 0;
    nfds_t i;
    for (i = 0; i < count; i++) {
        int fd = fds[i].fd - SIM_FIRST_FD, events;
        fds[i].revents = 0;
        if (fds[i].fd < 0) continue;
        if (fd < 0 || fd >= p->file_count || p->files[fd].kind == FILE_NONE)
            events = POLLNVAL;
        else
            events = file_events(&p->files[fd]) &
                     (fds[i].events | POLLERR | POLLHUP);
        fds[i].revents = (short)events;
        n += events != 0;
    }
    return n;
}

/* Returns the lateness of a timer: up to 50 us in Linux, and a little for the
 * scheduler. */
static int64_t lateness(void) {
    return sim_between(1, 60);
}

/* Wait for descriptors. Returns how many are ready, 0 after a timeout, or -1
 * after a signal. */
static int wait_ready(struct pollfd *fds, nfds_t count, int64_t timeout_us) {
    process *p = process_self();
    int64_t deadline = SIM_NEVER, until = SIM_NEVER;
    int n = sys_ready(p, fds, count);
    if (n > 0 || timeout_us == 0) return n;
    if (timeout_us > 0) {
        deadline = sim_now() + machine_true_us(p->machine, timeout_us);
        until = deadline + lateness();
    }
    for (;;) {
        p->watched = fds;
        p->watched_count = count;
        if (p->interrupted)
            p->watched = NULL;
        else
            process_block(until);
        p->watched = NULL;
        n = sys_ready(p, fds, count);
        if (n == 0 && p->interrupted) n = failed(EINTR);
        p->interrupted = 0;
        if (n != 0 || sim_now() >= deadline) return n;
    }
}

/* Wait for a descriptor in a blocking call. Returns 0, or -1 with errno after a
 * timeout or a signal. */
static int wait_for(int fd, int events, int64_t timeout_us) {
    struct pollfd p;
    int n;
    p.fd = fd;
    p.events = (short)events;
    n = wait_ready(&p, 1, timeout_us > 0 ? timeout_us : -1);
    return n > 0 ? 0 : n == 0 ? failed(EAGAIN) : -1;
}

/* Limit of polls and of reads without input in a row. A correct handle polls
 * many times in a row, during the last 50 us of a sleep. */
#define IDLE_CALLS 400
void (*process_spins)(const char *name);

static void idles(process *p) {
    if (++p->idle_calls > IDLE_CALLS && process_spins) process_spins(p->name);
}

int __real_poll(struct pollfd *fds, nfds_t count, int timeout);

int __wrap_poll(struct pollfd *fds, nfds_t count, int timeout) {
    process *p = process_self();
    int n;
    if (!p) return __real_poll(fds, count, timeout);
    assert(count <= SIM_MAX_FILES);
    process_called(CALL_US);
    n = wait_ready(fds, count, timeout < 0 ? -1 : timeout * INT64_C(1000));
    idles(p);
    trace_poll(fds, count, timeout);
    return n > 0 ? n : (int)traced("poll", timeout, n);
}

int __real_nanosleep(const struct timespec *t, struct timespec *left);

int __wrap_nanosleep(const struct timespec *t, struct timespec *left) {
    process *p = process_self();
    int64_t us;
    int n;
    if (!p) return __real_nanosleep(t, left);
    if (t->tv_sec < 0 || t->tv_nsec < 0 || t->tv_nsec > 999999999)
        return failed(EINVAL);
    us = t->tv_sec * SIM_SECOND + (t->tv_nsec + 999) / 1000;
    process_called(CALL_US);
    if (us == 0) return 0;
    n = (int)traced("nanosleep", (int)us, wait_ready(NULL, 0, us));
    if (n < 0 && left) memset(left, 0, sizeof *left);
    return n;
}

int __real_usleep(useconds_t us);

int __wrap_usleep(useconds_t us) {
    struct timespec t;
    if (!process_self()) return __real_usleep(us);
    t.tv_sec = (time_t)(us / 1000000);
    t.tv_nsec = (long)(us % 1000000) * 1000;
    return __wrap_nanosleep(&t, NULL);
}

/* --- time ---------------------------------------------------------------- */

int __real_clock_gettime(clockid_t clock, struct timespec *t);

/* Reading the clock takes time, so a loop that only reads the clock can end. */
int __wrap_clock_gettime(clockid_t clock, struct timespec *t) {
    process *p = process_self();
    int64_t us;
    if (!p) {
        if (!sim_machines) return __real_clock_gettime(clock, t);
        fprintf(stderr, "sim: the real time is asked for within a world\n");
        abort();
    }
    process_charge(1);
    us = clock == CLOCK_REALTIME ? machine_realtime(p->machine)
                                 : machine_monotonic(p->machine);
    t->tv_sec = us / SIM_SECOND;
    t->tv_nsec = us % SIM_SECOND * 1000;
    return 0;
}

int __real_gettimeofday(struct timeval *t, void *zone);

int __wrap_gettimeofday(struct timeval *t, void *zone) {
    struct timespec now;
    if (!process_self()) return __real_gettimeofday(t, zone);
    __wrap_clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t __real_time(time_t *t);

time_t __wrap_time(time_t *t) {
    struct timespec now;
    if (!process_self()) return __real_time(t);
    __wrap_clock_gettime(CLOCK_REALTIME, &now);
    if (t) *t = now.tv_sec;
    return now.tv_sec;
}

/* --- reading and writing ------------------------------------------------- */

static ssize_t read_random(char *to, size_t len) {
    process *p = process_self();
    size_t i;
    for (i = 0; i < len; i++) {
        p->chance = p->chance * UINT64_C(6364136223846793005) +
                    UINT64_C(1442695040888963407);
        to[i] = (char)(p->chance >> 56);
    }
    return (ssize_t)len;
}

static ssize_t read_pipe(pipe_buffer *b, char *to, size_t len) {
    size_t n = b->end - b->begin;
    if (n == 0) return b->writers > 0 ? -EAGAIN : 0;
    if (n > len) n = len;
    memcpy(to, b->bytes + b->begin, n);
    b->begin += n;
    if (b->begin == b->end) b->begin = b->end = 0;
    process_notice(process_self());
    return (ssize_t)n;
}

static ssize_t write_pipe(pipe_buffer *b, const char *from, size_t len) {
    size_t n = PIPE_SIZE - (b->end - b->begin);
    if (b->readers == 0) return -EPIPE;
    if (n == 0 || (n < len && len <= 4096)) return -EAGAIN;
    if (n > len) n = len;
    memmove(b->bytes, b->bytes + b->begin, b->end - b->begin);
    b->end -= b->begin;
    b->begin = 0;
    memcpy(b->bytes + b->end, from, n);
    b->end += n;
    process_notice(process_self());
    return (ssize_t)n;
}

static ssize_t read_file(file *f, void *to, size_t len, int peek) {
    switch (f->kind) {
    case FILE_RANDOM: return read_random(to, len);
    case FILE_PIPE_IN: return read_pipe(f->pipe, to, len);
    case FILE_SOCKET:
        if (!f->conn) return -ENOTCONN;
        return conn_read(f->conn, to, len, peek);
    default: return -EBADF;
    }
}

static ssize_t write_file(file *f, const void *from, size_t len) {
    if (f->kind == FILE_PIPE_OUT) return write_pipe(f->pipe, from, len);
    if (f->kind != FILE_SOCKET) return -EBADF;
    return f->conn ? conn_write(f->conn, from, len) : -EPIPE;
}

static ssize_t do_read(int fd, void *to, size_t len, int flags) {
    file *f = enter(fd);
    if (!f) return -1;
    for (;;) {
        ssize_t n = read_file(f, to, len, flags & MSG_PEEK);
        if (n > 0 && f->kind != FILE_RANDOM) process_self()->idle_calls = 0;
        if (n > 0) process_self()->bytes += (size_t)n;
        process_self()->ends += n <= 0 && n != -EAGAIN;
        if (n >= 0) return n;
        if (n == -EAGAIN) idles(process_self());
        if (n != -EAGAIN || f->nonblocking || flags & MSG_DONTWAIT)
            return failed((int)-n);
        if (wait_for(fd, POLLIN, f->receive_us) != 0) return -1;
    }
}

static void raise_sigpipe(void) {
    process *p = process_self();
    if (!p->sigpipe_blocked) {
        sim_tell("SIGPIPE");
        process_kill(p);
    }
    p->sigpipe_pending = 1;
}

static ssize_t do_write(int fd, const void *from, size_t len, int flags) {
    file *f = enter(fd);
    size_t done = 0;
    if (!f) return -1;
    for (;;) {
        ssize_t n = write_file(f, (const char *)from + done, len - done);
        int waits = !f->nonblocking && !(flags & MSG_DONTWAIT);
        if (n > 0) process_self()->idle_calls = 0;
        if (n > 0) process_self()->bytes += (size_t)n;
        if (n >= 0) done += (size_t)n;
        process_self()->ends += n < 0 && n != -EAGAIN;
        if (n >= 0 && (done == len || !waits)) return (ssize_t)done;
        if (n < 0 && done > 0 && (n != -EAGAIN || !waits)) return (ssize_t)done;
        if (n == -EPIPE && !(flags & MSG_NOSIGNAL)) raise_sigpipe();
        if (n < 0 && (n != -EAGAIN || !waits)) return failed((int)-n);
        if (wait_for(fd, POLLOUT, f->send_us) != 0)
            return done > 0 ? (ssize_t)done : -1;
    }
}

ssize_t __real_read(int fd, void *to, size_t len);
ssize_t __real_recv(int fd, void *to, size_t len, int flags);
ssize_t __real_write(int fd, const void *from, size_t len);
ssize_t __real_send(int fd, const void *from, size_t len, int flags);

ssize_t __wrap_read(int fd, void *to, size_t len) {
    if (!is_ours(fd)) return __real_read(fd, to, len);
    return traced_bytes("read", fd, to, do_read(fd, to, len, 0));
}

ssize_t __wrap_recv(int fd, void *to, size_t len, int flags) {
    if (!is_ours(fd)) return __real_recv(fd, to, len, flags);
    return traced_bytes("recv", fd, to, do_read(fd, to, len, flags));
}

ssize_t __wrap_write(int fd, const void *from, size_t len) {
    if (!is_ours(fd)) return __real_write(fd, from, len);
    return traced_bytes("write", fd, from, do_write(fd, from, len, 0));
}

ssize_t __wrap_send(int fd, const void *from, size_t len, int flags) {
    if (!is_ours(fd)) return __real_send(fd, from, len, flags);
    return traced_bytes("send", fd, from, do_write(fd, from, len, flags));
}

/* --- descriptors come and go --------------------------------------------- */

int __real_open(const char *path, int flags, ...);

int __wrap_open(const char *path, int flags, ...) {
    va_list args;
    int mode;
    va_start(args, flags);
    mode = flags & O_CREAT ? va_arg(args, int) : 0;
    va_end(args);
    if (!process_self()) return __real_open(path, flags, mode);
    if (strcmp(path, "/dev/urandom") != 0 && strcmp(path, "/dev/random") != 0)
        return __real_open(path, flags, mode);
    process_called(CALL_US);
    return new_file(FILE_RANDOM);
}

int __real_close(int fd);

int __wrap_close(int fd) {
    file *f;
    if (!is_ours(fd)) return __real_close(fd);
    f = enter(fd);
    if (!f) return -1;
    close_file(process_self(), f);
    return (int)traced("close", fd, 0);
}

int __real_pipe(int fds[2]);

int __wrap_pipe(int fds[2]) {
    process *p = process_self();
    pipe_buffer *b;
    int in, out;
    if (!p) return __real_pipe(fds);
    process_called(CALL_US);
    in = new_file(FILE_PIPE_IN);
    if (in < 0) return -1;
    out = new_file(FILE_PIPE_OUT);
    if (out < 0) {
        p->files[in - SIM_FIRST_FD].kind = FILE_NONE;
        return -1;
    }
    b = malloc(sizeof *b);
    assert(b);
    b->readers = b->writers = 1;
    b->begin = b->end = 0;
    p->files[in - SIM_FIRST_FD].pipe = p->files[out - SIM_FIRST_FD].pipe = b;
    fds[0] = in;
    fds[1] = out;
    return 0;
}

int __real_socket(int family, int type, int protocol);

int __wrap_socket(int family, int type, int protocol) {
    int fd;
    if (!process_self()) return __real_socket(family, type, protocol);
    process_called(CALL_US);
    if ((type & 0xf) != SOCK_STREAM) return failed(EPROTONOSUPPORT);
    fd = new_file(FILE_SOCKET);
    if (fd >= 0 && type & SOCK_NONBLOCK)
        process_self()->files[fd - SIM_FIRST_FD].nonblocking = 1;
    return fd;
}

int __real_bind(int fd, const struct sockaddr *to, socklen_t len);

int __wrap_bind(int fd, const struct sockaddr *to, socklen_t len) {
    if (!is_ours(fd)) return __real_bind(fd, to, len);
    return enter(fd) ? 0 : -1;
}

int __real_connect(int fd, const struct sockaddr *to, socklen_t len);

int __wrap_connect(int fd, const struct sockaddr *to, socklen_t len) {
    file *f;
    int error;
    if (!is_ours(fd)) return __real_connect(fd, to, len);
    f = enter(fd);
    if (!f) return -1;
    if (f->kind != FILE_SOCKET) return failed(ENOTSOCK);
    if (!f->conn) {
        error = conn_open(process_self(), to, len, &f->conn);
        if (error != 0) return failed(error);
        if (f->nonblocking)
            return (int)traced("connect", fd, failed(EINPROGRESS));
    } else if (conn_connecting(f->conn)) {
        if (f->nonblocking) return failed(EALREADY);
    }
    if (conn_connecting(f->conn) && wait_for(fd, POLLOUT, f->send_us) != 0)
        return failed(errno == EAGAIN ? EINPROGRESS : errno);
    if (conn_connected(f->conn)) {
        if (f->connected) return failed(EISCONN);
        f->connected = 1;
        return 0;
    }
    if (f->connected) return failed(EISCONN);
    error = conn_take_error(f->conn);
    conn_close(f->conn); /* the socket can then connect again */
    f->conn = NULL;
    return failed(error != 0 ? error : ECONNABORTED);
}

int __real_shutdown(int fd, int how);

/* The code under test never calls shutdown. */
int __wrap_shutdown(int fd, int how) {
    return is_ours(fd) ? failed(ENOSYS) : __real_shutdown(fd, how);
}

/* --- what can be set ----------------------------------------------------- */

int __real_fcntl(int fd, int command, ...);

int __wrap_fcntl(int fd, int command, ...) {
    va_list args;
    void *arg;
    file *f;
    va_start(args, command);
    arg = va_arg(args, void *);
    va_end(args);
    if (!is_ours(fd)) return __real_fcntl(fd, command, arg);
    f = enter(fd);
    if (!f) return -1;
    switch (command) {
    case F_GETFL:
        return (f->kind == FILE_SOCKET     ? O_RDWR
                : f->kind == FILE_PIPE_OUT ? O_WRONLY
                                           : O_RDONLY) |
               (f->nonblocking ? O_NONBLOCK : 0);
    case F_SETFL:
        f->nonblocking = ((int)(intptr_t)arg & O_NONBLOCK) != 0;
        return 0;
    case F_GETFD: return f->closes_on_exec ? FD_CLOEXEC : 0;
    case F_SETFD: f->closes_on_exec = (int)(intptr_t)arg; return 0;
    default: return failed(EINVAL);
    }
}

int __real_ioctl(int fd, unsigned long request, ...);

int __wrap_ioctl(int fd, unsigned long request, ...) {
    va_list args;
    void *arg;
    file *f;
    va_start(args, request);
    arg = va_arg(args, void *);
    va_end(args);
    if (!is_ours(fd)) return __real_ioctl(fd, request, arg);
    f = enter(fd);
    if (!f) return -1;
    if (request == FIONBIO) {
        f->nonblocking = *(const int *)arg != 0;
    } else if (request == FIONREAD) {
        *(int *)arg = f->conn   ? (int)conn_unread(f->conn)
                      : f->pipe ? (int)(f->pipe->end - f->pipe->begin)
                                : 0;
    } else {
        return failed(ENOTTY);
    }
    return 0;
}

int __real_getsockopt(int fd, int level, int name, void *value,
                      socklen_t *size);

int __wrap_getsockopt(int fd, int level, int name, void *value,
                      socklen_t *size) {
    file *f;
    int n = 0;
    if (!is_ours(fd)) return __real_getsockopt(fd, level, name, value, size);
    f = enter(fd);
    if (!f) return -1;
    if (f->kind != FILE_SOCKET) return failed(ENOTSOCK);
    if (level == SOL_SOCKET && name == SO_ERROR && f->conn)
        n = conn_take_error(f->conn);
    if (level == SOL_SOCKET && name == SO_TYPE) n = SOCK_STREAM;
    if (*size > sizeof n) *size = sizeof n;
    memcpy(value, &n, *size);
    return 0;
}

int __real_setsockopt(int fd, int level, int name, const void *value,
                      socklen_t size);

int __wrap_setsockopt(int fd, int level, int name, const void *value,
                      socklen_t size) {
    file *f;
    if (!is_ours(fd)) return __real_setsockopt(fd, level, name, value, size);
    f = enter(fd);
    if (!f) return -1;
    if (f->kind != FILE_SOCKET) return failed(ENOTSOCK);
    if (level == SOL_SOCKET && (name == SO_RCVTIMEO || name == SO_SNDTIMEO)) {
        struct timeval t;
        int64_t us;
        if (size < sizeof t) return failed(EINVAL);
        memcpy(&t, value, sizeof t);
        us = t.tv_sec * SIM_SECOND + t.tv_usec;
        *(name == SO_RCVTIMEO ? &f->receive_us : &f->send_us) = us;
    }
    return 0;
}

static int name_of(int fd, int peer, struct sockaddr *to, socklen_t *len) {
    file *f = enter(fd);
    struct sockaddr_storage all;
    socklen_t size;
    if (!f) return -1;
    if (f->kind != FILE_SOCKET) return failed(ENOTSOCK);
    if (!f->conn || (peer && !conn_connected(f->conn))) return failed(ENOTCONN);
    conn_name(f->conn, peer, &all, &size);
    memcpy(to, &all, *len < size ? *len : size);
    *len = size;
    return 0;
}

int __real_getpeername(int fd, struct sockaddr *to, socklen_t *len);
int __real_getsockname(int fd, struct sockaddr *to, socklen_t *len);

int __wrap_getpeername(int fd, struct sockaddr *to, socklen_t *len) {
    return is_ours(fd) ? name_of(fd, 1, to, len)
                       : __real_getpeername(fd, to, len);
}

int __wrap_getsockname(int fd, struct sockaddr *to, socklen_t *len) {
    return is_ours(fd) ? name_of(fd, 0, to, len)
                       : __real_getsockname(fd, to, len);
}

/* --- names --------------------------------------------------------------- */

static const char *alias;
static const machine *alias_of;

void machine_alias(const char *name, const machine *m) {
    alias = name;
    alias_of = m;
}

/* Returns a machine's address by its name or alias, or `host` if none fits. */
static const char *machine_address(const char *host, char *text) {
    const machine *m;
    for (m = sim_machines; m; m = m->next) {
        if (strcmp(m->name, host) != 0 &&
            !(m == alias_of && strcmp(alias, host) == 0))
            continue;
        return m->is_v6 ? inet_ntop(AF_INET6, &m->v6, text, INET6_ADDRSTRLEN)
                        : inet_ntop(AF_INET, &m->v4, text, INET6_ADDRSTRLEN);
    }
    return host;
}

int __real_getaddrinfo(const char *host, const char *service,
                       const struct addrinfo *hints, struct addrinfo **all);

int __wrap_getaddrinfo(const char *host, const char *service,
                       const struct addrinfo *hints, struct addrinfo **all) {
    struct addrinfo how;
    char text[INET6_ADDRSTRLEN];
    int failed;
    if (!process_self() || !host)
        return __real_getaddrinfo(host, service, hints, all);
    process_called(CALL_US);
    if (hints)
        how = *hints;
    else
        memset(&how, 0, sizeof how);
    how.ai_flags |= AI_NUMERICHOST | AI_NUMERICSERV;
    failed =
        __real_getaddrinfo(machine_address(host, text), service, &how, all);
    process_self()->block_count += failed == 0;
    return failed;
}

void __real_freeaddrinfo(struct addrinfo *all);

void __wrap_freeaddrinfo(struct addrinfo *all) {
    if (process_self()) process_self()->block_count--;
    __real_freeaddrinfo(all);
}

/* --- the process itself -------------------------------------------------- */

pid_t __real_getpid(void);

pid_t __wrap_getpid(void) {
    const process *p = process_self();
    return p ? p->pid : __real_getpid();
}

/* The world's machines have two processors. */
long __real_sysconf(int name);

long __wrap_sysconf(int name) {
    if (!process_self()) return __real_sysconf(name);
    assert(name == _SC_NPROCESSORS_ONLN);
    return 2;
}

int __real_sched_yield(void);

int __wrap_sched_yield(void) {
    if (!process_self()) return __real_sched_yield();
    process_called(CALL_US);
    return 0;
}

/* Change the signal mask of the process. Only SIGPIPE has a bit in it. */
static int set_mask(int how, const sigset_t *set, sigset_t *old) {
    process *p = process_self();
    int is_in;
    if (old) {
        sigemptyset(old);
        if (p->sigpipe_blocked) sigaddset(old, SIGPIPE);
    }
    if (!set) return 0;
    is_in = sigismember(set, SIGPIPE) == 1;
    if (how == SIG_SETMASK)
        p->sigpipe_blocked = is_in;
    else if (is_in)
        p->sigpipe_blocked = how == SIG_BLOCK;
    if (p->sigpipe_pending && !p->sigpipe_blocked) raise_sigpipe();
    return 0;
}

int __real_pthread_sigmask(int how, const sigset_t *set, sigset_t *old);
int __real_sigprocmask(int how, const sigset_t *set, sigset_t *old);

int __wrap_pthread_sigmask(int how, const sigset_t *set, sigset_t *old) {
    return process_self() ? set_mask(how, set, old)
                          : __real_pthread_sigmask(how, set, old);
}

int __wrap_sigprocmask(int how, const sigset_t *set, sigset_t *old) {
    return process_self() ? set_mask(how, set, old)
                          : __real_sigprocmask(how, set, old);
}

int __real_sigpending(sigset_t *set);

int __wrap_sigpending(sigset_t *set) {
    if (!process_self()) return __real_sigpending(set);
    sigemptyset(set);
    if (process_self()->sigpipe_pending) sigaddset(set, SIGPIPE);
    return 0;
}

int __real_sigtimedwait(const sigset_t *set, siginfo_t *info,
                        const struct timespec *timeout);

int __wrap_sigtimedwait(const sigset_t *set, siginfo_t *info,
                        const struct timespec *timeout) {
    process *p = process_self();
    if (!p) return __real_sigtimedwait(set, info, timeout);
    if (!p->sigpipe_pending || sigismember(set, SIGPIPE) != 1)
        return failed(EAGAIN);
    p->sigpipe_pending = 0;
    if (info) memset(info, 0, sizeof *info);
    return SIGPIPE;
}
