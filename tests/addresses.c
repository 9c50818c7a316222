/* Addresses that look right, but lead to another program. */
#define _GNU_SOURCE
#include "test.h"
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

/* If nobody listens on a port, and the system gives that port to the client's
 * own socket, the client is connected to itself. */
static redisContext *connect_to_itself(void *user, int ms) {
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    (void)user;
    (void)ms;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &size) == 0);
    CHECK(connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return redisConnectFd(fd);
}

TEST(a_socket_that_is_connected_to_itself_is_a_refused_connection) {
    delayq_options o;
    delayq q;
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.connect = connect_to_itself;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "refused");
    delayq_close(&q);
}

/* The kernel's limit is 107 bytes. The first 107 bytes of a longer path may be
 * the path of another socket, whose owner would then get the password. */
TEST(a_unix_path_that_is_too_long_reaches_no_other_socket) {
    struct sockaddr_un near;
    char url[300];
    delayq q;
    delayq_options o;
    size_t len;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);
    memset(&near, 0, sizeof near);
    near.sun_family = AF_UNIX;
    snprintf(near.sun_path, sizeof near.sun_path, "/tmp/delayq-%d-",
             (int)getpid());
    len = strlen(near.sun_path);
    memset(near.sun_path + len, 'x', sizeof near.sun_path - 1 - len);
    CHECK(bind(fd, (struct sockaddr *)&near, sizeof near) == 0);
    CHECK(listen(fd, 4) == 0);
    snprintf(url, sizeof url, "unix://:secret@%sy", near.sun_path);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = url;
    o.connect_timeout_ms = 100;
    CHECK(delayq_open(&q, &o) < DELAYQ_OK);
    unlink(near.sun_path);
    CHECK(accept(fd, NULL, NULL) < 0);
    CHECK_HAS(delayq_errmsg(&q), "the path is too long");
    CHECK(delayq_offer(&q, "x", 1, 0) < DELAYQ_OK);
    delayq_close(&q);
    close(fd);
}
