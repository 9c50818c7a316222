/*
 * A slow line, which passes on the bytes of unix sockets MS milliseconds after
 * they have come.
 *
 *     line LISTEN TO MS
 *
 * There is one process for each connection. All of them end with the first
 * process.
 */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct chunk {
    struct chunk *next;
    long long due_ms;
    size_t len;
    char bytes[16384];
};
struct flow {
    int from, to;
    struct chunk *first, *last;
};

static long long delay_ms;

static long long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Receive a chunk. Returns 0 if the connection has ended. */
static int receive(struct flow *f) {
    struct chunk *c = (struct chunk *)malloc(sizeof *c);
    ssize_t n = c ? read(f->from, c->bytes, sizeof c->bytes) : 0;
    if (n <= 0) return 0;
    c->len = (size_t)n;
    c->due_ms = now_ms() + delay_ms;
    c->next = NULL;
    if (f->first)
        f->last->next = c;
    else
        f->first = c;
    f->last = c;
    return 1;
}

/* Send the bytes that are due. Lower *wait_ms to the time until more bytes are
 * due. Returns 0 if the connection has ended. */
static int send_due(struct flow *f, int *wait_ms) {
    while (f->first) {
        struct chunk *c = f->first;
        long long left = c->due_ms - now_ms();
        size_t at = 0;
        if (left > 0) {
            if (*wait_ms < 0 || left < *wait_ms) *wait_ms = (int)left;
            return 1;
        }
        while (at < c->len) {
            ssize_t n = write(f->to, c->bytes + at, c->len - at);
            if (n <= 0) return 0;
            at += (size_t)n;
        }
        f->first = c->next;
        free(c);
    }
    return 1;
}

/* Serve a connection until one side ends it, or the first process has ended.
 * `alive` is a pipe whose other end only the first process has. */
static void serve(int client, int server, int alive) {
    struct flow flows[2] = {{client, server, NULL, NULL},
                            {server, client, NULL, NULL}};
    struct pollfd p[3];
    int i;
    for (;;) {
        int wait_ms = -1;
        for (i = 0; i < 2; i++)
            if (!send_due(&flows[i], &wait_ms)) return;
        for (i = 0; i < 3; i++) {
            p[i].fd = i == 2 ? alive : flows[i].from;
            p[i].events = POLLIN;
        }
        poll(p, 3, wait_ms);
        if (p[2].revents) return;
        for (i = 0; i < 2; i++)
            if (p[i].revents && !receive(&flows[i])) return;
    }
}

static struct sockaddr_un address(const char *path) {
    struct sockaddr_un a;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    return a;
}

int main(int argc, char **argv) {
    struct sockaddr_un here, there;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0), alive[2];
    if (argc != 4) return 2;
    here = address(argv[1]);
    there = address(argv[2]);
    delay_ms = atoll(argv[3]);
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    if (pipe(alive) != 0 ||
        bind(listener, (struct sockaddr *)&here, sizeof here) != 0 ||
        listen(listener, 16) != 0) {
        perror(argv[1]);
        return 1;
    }
    for (;;) {
        int client = accept(listener, NULL, NULL);
        if (client >= 0 && fork() == 0) {
            int server = socket(AF_UNIX, SOCK_STREAM, 0);
            close(alive[1]);
            close(listener);
            if (connect(server, (struct sockaddr *)&there, sizeof there) == 0)
                serve(client, server, alive[0]);
            _exit(0);
        }
        close(client);
    }
}
