/* A port for 0.3 (DELAYQ_PORT): the functions that it supplies, and no others.
 * It must compile with later versions, too. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define DQ_SPIN_US 0
#define DQ_REFUSED ECONNREFUSED

static int64_t dq_sys_now(void) {
    static int64_t now;
    return now += 1000;
}

static int dq_sys_random(unsigned char *bytes, size_t len) {
    memset(bytes, 1, len);
    return 1;
}

static const char *dq_sys_strerror(int code, char room[DQ_TEXT_SIZE]) {
    room[0] = '\0';
    return code ? "no" : room;
}

static void dq_sys_set_modes(int fd) {
    (void)fd;
}

static void dq_sys_close(int fd) {
    close(fd);
}

static int dq_sys_sleep(struct pollfd *fds, size_t count, int64_t until_us) {
    return poll(fds, (nfds_t)count, until_us > 0);
}

static int dq_sys_resolve(const char *host, unsigned number, char address[64]) {
    (void)host, (void)number;
    address[0] = '\0';
    return 0;
}
