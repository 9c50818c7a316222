/*
 * lwip.h -- delayq on lwIP's sockets: what >>system in delayq.h asks a port
 * for.
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #define DELAYQ_PORT "lwip.h"
 *     #include "delayq.h"
 *
 * The board supplies two functions, see below. README.md beside this says what
 * lwipopts.h needs.
 */
#include "lwip/netdb.h"
#include "lwip/sockets.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Microseconds since any moment, never backwards; not wrapping, in 64 bits. */
int64_t board_now_us(void);

/* Random bytes of a hardware source: 1. 0: there are none, and delayq_open
 * refuses. Numbers that the next board draws, too, make its items and its
 * leases look like this one's. */
int board_random(void *bytes, size_t len);
#ifdef __cplusplus
}
#endif

typedef int dq_sys_socket;
/* A sleeper wakes with a tick of the system, milliseconds apart: too long to
 * be spent awake. */
#define DQ_SPIN_US 0

#if !LWIP_IPV6
struct sockaddr_in6 {
    u8_t sin6_len;
    sa_family_t sin6_family;
    in_port_t sin6_port;
    u8_t sin6_addr[16];
};
#endif

union dq_sys_address {
    struct sockaddr any;
    struct sockaddr_in v4;
    struct sockaddr_in6 v6;
};

static int64_t dq_sys_now(void) {
    return board_now_us();
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    return board_random(bytes, len);
}

static int64_t dq_sys_pid(void) {
    return 0;
}

/* strerror of newlib has 4 KB of texts. */
static const char *dq_sys_strerror(int code, char room[40]) {
    switch (code) {
    case ECONNREFUSED: return "Connection refused";
    case ECONNRESET: return "Connection reset by peer";
    case ECONNABORTED: return "Connection aborted";
    case ETIMEDOUT: return "Connection timed out";
    case EHOSTUNREACH: return "No route to host";
    case ENFILE: return "Too many open sockets";
    case ENOBUFS: return "No buffer space";
    }
    snprintf(room, 40, "error %d", code);
    return room;
}

static void dq_sys_set_modes(int fd) {
    int on = 1;
    ioctlsocket(fd, FIONBIO, &on);
}

static void dq_sys_close(int fd) {
    closesocket(fd);
}

static int dq_sys_receive(int fd, char *to, size_t size) {
    return (int)recv(fd, to, size, 0);
}

static int dq_sys_poll(struct pollfd *fds, size_t count, int ms) {
    return poll(count > 0 ? fds : NULL, (nfds_t)count, ms);
}

static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until) {
    int64_t ms = (until - dq_sys_now() + 999) / 1000;
    int n = ms > 3600000 ? 3600000 : ms > 0 ? (int)ms : 0;
    return dq_sys_poll(fds, count, n) != 0 || dq_sys_now() < until;
}

static const char *dq_sys_refuse_path(const char *path) {
    (void)path;
    return "unix:// can't be used on lwIP";
}

static size_t dq_sys_parse_path(dq_sys_address *to, const char *path) {
    (void)to;
    (void)path;
    return 0;
}

/* lwIP tells of one address. */
static int dq_sys_resolve(const char *host, unsigned number, char address[64]) {
    int found = 0;
#if LWIP_DNS
    struct addrinfo *a = NULL;
    if (lwip_getaddrinfo(host, NULL, NULL, &a) != 0) return 0;
#if LWIP_IPV6
    if (a->ai_family == AF_INET6)
        found =
            inet_ntop(AF_INET6, &((struct sockaddr_in6 *)a->ai_addr)->sin6_addr,
                      address, 64) != NULL;
#endif
    if (a->ai_family == AF_INET)
        found =
            inet_ntop(AF_INET, &((struct sockaddr_in *)a->ai_addr)->sin_addr,
                      address, 64) != NULL;
    lwip_freeaddrinfo(a);
#else
    (void)host, (void)address;
#endif
    (void)number;
    return found;
}

static int dq_sys_connect(const dq_sys_address *to, size_t size) {
    int fd = socket(to->any.sa_family, SOCK_STREAM, 0), saved, on = 1;
    if (fd < 0) return -1;
    dq_sys_set_modes(fd);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, &to->any, (socklen_t)size) == 0 || errno == EINPROGRESS)
        return fd;
    saved = errno;
    closesocket(fd);
    errno = saved;
    return -1;
}

/* To lwIP a connection that is refused is one that was reset. */
static int dq_sys_socket_error(int fd) {
    int error = 0;
    socklen_t size = sizeof error;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) return errno;
    return error == ECONNRESET ? ECONNREFUSED : error;
}

/* A datagram socket that is connected to itself, over lwIP's loopback: nobody
 * else can write to it. */
static int dq_sys_open_pipe(int fds[2]) {
    struct sockaddr_in own;
    socklen_t size = sizeof own;
    int fd = socket(AF_INET, SOCK_DGRAM, 0), saved;
    if (fd < 0) return 0;
    memset(&own, 0, sizeof own);
    own.sin_family = AF_INET;
    own.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&own, sizeof own) == 0 &&
        getsockname(fd, (struct sockaddr *)&own, &size) == 0 &&
        connect(fd, (struct sockaddr *)&own, sizeof own) == 0) {
        dq_sys_set_modes(fd);
        fds[0] = fds[1] = fd;
        return 1;
    }
    saved = errno;
    closesocket(fd);
    errno = saved;
    return 0;
}

static void dq_sys_close_pipe(const int fds[2]) {
    closesocket(fds[0]);
}

static void dq_sys_drain_pipe(int fd) {
    char byte;
    while (recv(fd, &byte, 1, 0) > 0) {
    }
}

static void dq_sys_write_pipe(int fd) {
    send(fd, "w", 1, 0);
}
