/*
 * lwip.h -- delayq on lwIP's sockets: the functions that >>system in delayq.h
 * expects from a port.
 *
 *     #define DELAYQ_IMPLEMENTATION
 *     #define DELAYQ_PORT "lwip.h"
 *     #include "delayq.h"
 *
 * The board supplies the two functions below. README.md in this folder lists
 * the settings of lwipopts.h.
 */
#include "lwip/netdb.h"
#include "lwip/sockets.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Returns microseconds since any fixed moment. Never decreases or wraps. */
int64_t board_now_us(void);

/* Fill `bytes` from a hardware source. Returns 1, or 0 if the source has none,
 * which makes delayq_open fail. If two boards get the same bytes, their items
 * and leases get the same ids. */
int board_random(void *bytes, size_t len);
#ifdef __cplusplus
}
#endif

/* Don't stay awake for the last part of a sleep. A sleep ends at a tick of the
 * system, maybe milliseconds late, and staying awake so long costs too much. */
#define DQ_SPIN_US 0

/* lwIP reports a refused connect as a reset connection. */
#define DQ_REFUSED ECONNRESET

#if !LWIP_IPV6
struct sockaddr_in6 {
    u8_t sin6_len;
    sa_family_t sin6_family;
    in_port_t sin6_port;
    u8_t sin6_addr[16];
};
#endif

static int64_t dq_sys_now(void) {
    return board_now_us();
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    return board_random(bytes, len);
}

/* newlib's strerror would add 4 KB of texts. */
static const char *dq_sys_strerror(int code, char room[DQ_TEXT_SIZE]) {
    switch (code) {
    case ECONNREFUSED: return "Connection refused";
    case ECONNRESET: return "Connection reset by peer";
    case ECONNABORTED: return "Connection aborted";
    case ETIMEDOUT: return "Connection timed out";
    case EHOSTUNREACH: return "No route to host";
    case ENFILE: return "Too many open sockets";
    case ENOBUFS: return "No buffer space";
    }
    snprintf(room, DQ_TEXT_SIZE, "error %d", code);
    return room;
}

static void dq_sys_set_modes(int fd) {
    int on = 1;
    ioctlsocket(fd, FIONBIO, &on);
}

static void dq_sys_close(int fd) {
    closesocket(fd);
}

static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until) {
    int64_t ms = (until - dq_sys_now() + 999) / 1000;
    int n = ms > 3600000 ? 3600000 : ms > 0 ? (int)ms : 0;
    int ready = poll(count > 0 ? fds : NULL, (nfds_t)count, n);
    return ready != 0 ? ready : dq_sys_now() < until ? -1 : 0;
}

/* lwIP returns one address only, so `number` has no effect. */
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
