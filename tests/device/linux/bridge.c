/*
 * bridge.c -- a board for tests/windows/smoke.c. It has a clock, random bytes,
 * and lwIP with no interface but its loopback. A listener on this loopback
 * forwards the bytes to the server, which has the same port on Linux' loopback.
 * So the program's own traffic goes through lwIP's sockets, TCP and IP.
 *
 * When the server is stopped, the listener is stopped, too, so that connects
 * are refused.
 */
#include "lwip/init.h"
#include "lwip/sockets.h"
#include "../interface.h"
#include <netinet/in.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

void bridge_start(const char *url);
void bridge_obey(const char *what);
int bridge_resolve(void *user, const char *host, char *address, size_t size);
int64_t board_now_us(void);
int board_random(void *bytes, size_t len);

int64_t board_now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int has_random = 1;

int board_random(void *bytes, size_t len) {
    return has_random && getrandom(bytes, len, 0) == (ssize_t)len;
}

/* Debian's liblwip has no DNS. */
int bridge_resolve(void *user, const char *host, char *address, size_t size) {
    (void)user;
    if (strcmp(host, "localhost") != 0) return -1;
    snprintf(address, size, "127.0.0.1");
    return 1;
}

/* the server's address on Linux' loopback, and the listener's on lwIP's */
static struct sockaddr_in at;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static sem_t changed; /* posted when the listener has begun or ended */
static volatile int stopped;

/* A connection. It has a thread for each direction. The thread that ends last
 * closes both sockets. */
typedef struct path {
    int device, server;
    int running;
} path;

static void leave(path *p) {
    int last;
    pthread_mutex_lock(&lock);
    last = --p->running == 0;
    pthread_mutex_unlock(&lock);
    if (!last) return;
    lwip_close(p->device);
    close(p->server);
    free(p);
}

static void *upstream(void *arg) {
    path *p = arg;
    char bytes[4096];
    ssize_t n;
    while ((n = lwip_recv(p->device, bytes, sizeof bytes, 0)) > 0)
        if (send(p->server, bytes, (size_t)n, MSG_NOSIGNAL) != n) break;
    shutdown(p->server, SHUT_RDWR);
    leave(p);
    return NULL;
}

static void *downstream(void *arg) {
    path *p = arg;
    char bytes[4096];
    ssize_t n;
    while ((n = recv(p->server, bytes, sizeof bytes, 0)) > 0)
        if (lwip_send(p->device, bytes, (size_t)n, 0) != n) break;
    lwip_shutdown(p->device, SHUT_WR);
    leave(p);
    return NULL;
}

static void spawn(void *(*what)(void *), void *arg) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, what, arg) != 0) abort();
    pthread_detach(thread);
}

static void pass_on(int device) {
    path *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->device = device;
    p->server = socket(AF_INET, SOCK_STREAM, 0);
    p->running = 2;
    connect(p->server, (struct sockaddr *)&at, sizeof at);
    spawn(upstream, p);
    spawn(downstream, p);
}

/* Two threads may not use one of lwIP's sockets at once, except for one receive
 * and one send. So the thread that listens also closes the listener. */
static void *serve(void *arg) {
    struct pollfd p = {0};
    int on = 1;
    (void)arg;
    p.fd = lwip_socket(AF_INET, SOCK_STREAM, 0);
    p.events = POLLIN;
    lwip_setsockopt(p.fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (lwip_bind(p.fd, (struct sockaddr *)&at, sizeof at) != 0 ||
        lwip_listen(p.fd, 16) != 0) {
        perror("lwip_listen");
        exit(2);
    }
    sem_post(&changed);
    while (!stopped)
        if (lwip_poll(&p, 1, 20) > 0) pass_on(lwip_accept(p.fd, NULL, NULL));
    lwip_close(p.fd);
    sem_post(&changed);
    return NULL;
}

void bridge_obey(const char *what) {
    if (strcmp(what, "stop") == 0)
        stopped = 1;
    else if (strcmp(what, "start") == 0)
        stopped = 0, spawn(serve, NULL);
    else
        has_random = strcmp(what, "lose random") != 0;
    if (strcmp(what, "stop") == 0 || strcmp(what, "start") == 0)
        sem_wait(&changed);
}

static void up(void *done) {
    static struct netif loop;
    if (!interface_up(&loop, "127.0.0.1", "255.0.0.0", "127.0.0.1", loop_init))
        abort();
    netif_set_default(&loop);
    sys_sem_signal(done);
}

void bridge_start(const char *url) {
    const char *port = strrchr(url, ':');
    sys_sem_t done;
    sys_sem_new(&done, 0);
    tcpip_init(up, &done);
    sys_sem_wait(&done);
    at.sin_family = AF_INET;
    at.sin_port = htons((unsigned short)atoi(port ? port + 1 : ""));
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    sem_init(&changed, 0, 0);
    bridge_obey("start");
}
