/*
 * hiredis_net.c -- replaces hiredis' net.c and async.c on lwIP, which lacks the
 * headers and calls that these files need. delayq connects the sockets itself,
 * and hands them to hiredis. So this file only reads, writes and closes them.
 * It is for hiredis 1.x.
 */
#include "lwip/sockets.h"

#include "async.h"
#include "hiredis.h"
#include "net.h"

#include <errno.h>

void __redisSetError(redisContext *c, int type, const char *text);

void redisNetClose(redisContext *c) {
    if (c->fd == REDIS_INVALID_FD) return;
    lwip_close(c->fd);
    c->fd = REDIS_INVALID_FD;
}

static ssize_t net_result(redisContext *c, ssize_t n) {
    if (n >= 0) return n;
    if (errno == EWOULDBLOCK || errno == EAGAIN) return 0;
    __redisSetError(c, REDIS_ERR_IO, "");
    return -1;
}

ssize_t redisNetRead(redisContext *c, char *to, size_t size) {
    ssize_t n = lwip_recv(c->fd, to, size, 0);
    if (n != 0) return net_result(c, n);
    __redisSetError(c, REDIS_ERR_EOF, "Server closed the connection");
    return -1;
}

ssize_t redisNetWrite(redisContext *c) {
    return net_result(c, lwip_send(c->fd, c->obuf, sdslen(c->obuf), 0));
}

/* hiredis refers to these functions, but delayq does not call them. */
static int unsupported(redisContext *c) {
    __redisSetError(c, REDIS_ERR_OTHER, "not on lwIP");
    return REDIS_ERR;
}
int redisContextConnectBindTcp(redisContext *c, const char *host, int port,
                               const struct timeval *timeout,
                               const char *from) {
    (void)host, (void)port, (void)timeout, (void)from;
    return unsupported(c);
}
int redisContextConnectUnix(redisContext *c, const char *path,
                            const struct timeval *timeout) {
    (void)path, (void)timeout;
    return unsupported(c);
}
int redisContextSetTimeout(redisContext *c, const struct timeval timeout) {
    (void)timeout;
    return unsupported(c);
}
int redisContextSetTcpUserTimeout(redisContext *c, unsigned timeout) {
    (void)timeout;
    return unsupported(c);
}
int redisKeepAlive(redisContext *c, int interval) {
    (void)interval;
    return unsupported(c);
}
int redisContextUpdateConnectTimeout(redisContext *c,
                                     const struct timeval *timeout);
int redisContextUpdateConnectTimeout(redisContext *c,
                                     const struct timeval *timeout) {
    return timeout ? unsupported(c) : REDIS_OK;
}
int redisContextUpdateCommandTimeout(redisContext *c,
                                     const struct timeval *timeout);
int redisContextUpdateCommandTimeout(redisContext *c,
                                     const struct timeval *timeout) {
    return timeout ? unsupported(c) : REDIS_OK;
}
void redisAsyncRead(redisAsyncContext *a) {
    (void)a;
}
void redisAsyncWrite(redisAsyncContext *a) {
    (void)a;
}
