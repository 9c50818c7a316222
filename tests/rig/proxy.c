/*
 * The network of the rig: a process between the programs and their servers. It
 * forwards each of its ports to a port of a server. Commands on its standard
 * input, one per line, change how the connections are treated. The proxy exits
 * at the end of its input.
 *
 *     proxy SEED LISTEN=TARGET...    ports on 127.0.0.1. LISTEN=TARGET,map:
 *                                    the same, and in replies each TARGET is
 *                                    replaced by its LISTEN
 *
 *     delay MS JITTER      each chunk of bytes is MS + 0 to JITTER late;
 *                          0 0 ends this
 *     slow BYTES           BYTES per second in each direction; 0 ends this
 *     cut PERCENT          close PERCENT of the connections
 *     bite BYTES PERCENT   the same, but each after fewer than BYTES more bytes
 *     half PERCENT D       drop all further bytes from the client (D is 0), to
 *                          it (1), or in both directions (2)
 *     forget PERCENT       close the server's end; the client is not told
 *     refuse ON            close new connections at once
 *     word WORD TIMES      close a connection if WORD comes from its client,
 *                          TIMES times; every second time only after WORD has
 *                          been passed on
 *     calm                 end all of this; forgotten and halved connections
 *                          stay as they are
 *     count                print "connections N, cuts N, ..."
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define LINKS 24
#define PAIRS 900
/* a direction that holds this number of bytes reads no further bytes */
#define MOST (1 << 20)

struct link {
    int port, target, fd, map;
};

struct chunk {
    struct chunk *next;
    int64_t at_us; /* send it at this time */
    size_t len, sent;
    char bytes[];
};

struct flow {
    struct chunk *first, *last;
    size_t held;
    int64_t free_us; /* the time at which a slow line is free again */
    int drops, ended;
};

struct pair {
    int fd[2]; /* [0]: to the client; [1]: to the server, -1: forgotten */
    struct flow from[2];
    long bite; /* the connection is cut after this many bytes; -1: never */
    int map;
};

static struct link links[LINKS];
static int link_count;
static struct pair *pairs[PAIRS];
static int pair_count;
static uint64_t seed;
static long delay_ms, jitter_ms, slow, word_times;
static int refuses;
static char word[32];
static struct {
    long connections, cuts, halves, forgotten, refused, words, delayed, bytes;
} counts;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * INT64_C(1000000) + t.tv_nsec / 1000;
}

static int below(int n) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return n > 0 ? (int)((seed >> 33) % (uint64_t)n) : 0;
}

static struct sockaddr_in address(int port) {
    struct sockaddr_in a;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return a;
}

static int open_socket(void) {
    int one = 1,
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    return fd;
}

static void end_pair(struct pair *p) {
    int d;
    for (d = 0; d < 2; d++) {
        if (p->fd[d] >= 0) close(p->fd[d]);
        p->fd[d] = -1;
        while (p->from[d].first) {
            struct chunk *c = p->from[d].first;
            p->from[d].first = c->next;
            free(c);
        }
        p->from[d].last = NULL;
    }
}

static void accept_one(const struct link *l) {
    struct sockaddr_in to = address(l->target);
    int one = 1, fd = accept4(l->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    struct pair *p;
    if (fd < 0) return;
    if (refuses || pair_count == PAIRS) {
        counts.refused++;
        close(fd);
        return;
    }
    p = (struct pair *)calloc(1, sizeof *p);
    if (!p) exit(1);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    p->fd[0] = fd;
    p->fd[1] = open_socket();
    p->bite = -1;
    p->map = l->map;
    if (connect(p->fd[1], (struct sockaddr *)&to, sizeof to) != 0 &&
        errno != EINPROGRESS) {
        end_pair(p);
        free(p);
        return;
    }
    counts.connections++;
    pairs[pair_count++] = p;
}

/* Replace the servers' ports in a Sentinel's reply by those of the proxy. */
static void map_ports(char *bytes, size_t len) {
    int i;
    for (i = 0; i < link_count; i++) {
        char real[24], ours[24];
        char *at = bytes;
        size_t n = (size_t)snprintf(real, sizeof real, "$5\r\n%d\r\n",
                                    links[i].target);
        snprintf(ours, sizeof ours, "$5\r\n%d\r\n", links[i].port);
        if (links[i].map) continue;
        while ((at = (char *)memmem(at, len - (size_t)(at - bytes), real, n))) {
            memcpy(at, ours, n);
            at += n;
        }
    }
}

static void hold(struct flow *f, const char *bytes, size_t len) {
    struct chunk *c = (struct chunk *)malloc(sizeof *c + len);
    int64_t now = now_us(), late;
    if (!c) exit(1);
    late = delay_ms * 1000 + (jitter_ms ? below((int)jitter_ms * 1000) : 0);
    if (late) counts.delayed++;
    c->next = NULL;
    c->len = len;
    c->sent = 0;
    c->at_us = now + late;
    if (slow) {
        if (f->free_us < now) f->free_us = now;
        f->free_us += (int64_t)len * 1000000 / slow;
        if (c->at_us < f->free_us) c->at_us = f->free_us;
    }
    if (f->last && c->at_us < f->last->at_us) c->at_us = f->last->at_us;
    memcpy(c->bytes, bytes, len);
    if (f->last)
        f->last->next = c;
    else
        f->first = c;
    f->last = c;
    f->held += len;
}

/* Send the bytes that are due. Returns 0 if the connection has ended. */
static int let_go(struct pair *p, int d, int64_t now) {
    struct flow *f = &p->from[d];
    while (f->first && f->first->at_us <= now) {
        struct chunk *c = f->first;
        ssize_t n;
        if (p->fd[!d] < 0) {
            n = (ssize_t)(c->len - c->sent); /* the receiver is gone */
        } else {
            n = send(p->fd[!d], c->bytes + c->sent, c->len - c->sent,
                     MSG_NOSIGNAL);
        }
        if (n < 0) return errno == EAGAIN || errno == EINTR;
        c->sent += (size_t)n;
        f->held -= (size_t)n;
        counts.bytes += n;
        if (c->sent < c->len) return 1;
        f->first = c->next;
        if (!f->first) f->last = NULL;
        free(c);
    }
    return 1;
}

/* Receive bytes. Returns 0 if the connection has ended. */
static int receive(struct pair *p, int d) {
    static char bytes[65536];
    struct flow *f = &p->from[d];
    ssize_t n = read(p->fd[d], bytes, sizeof bytes);
    if (n < 0) return errno == EAGAIN || errno == EINTR;
    if (n == 0) return 0;
    if (f->drops) return 1;
    if (p->bite >= 0) {
        if (n >= p->bite) {
            n = p->bite;
            if (n > 0) hold(f, bytes, (size_t)n);
            counts.cuts++;
            let_go(p, d, now_us() + 1000000000);
            return 0;
        }
        p->bite -= n;
    }
    if (d == 0 && word_times > 0 &&
        memmem(bytes, (size_t)n, word, strlen(word))) {
        counts.words++;
        if (word_times-- % 2) return 0;
        hold(f, bytes, (size_t)n); /* the server gets it; its reply is lost */
        let_go(p, d, now_us() + 1000000000);
        return 0;
    }
    if (d == 1 && p->map) map_ports(bytes, (size_t)n);
    hold(f, bytes, (size_t)n);
    return 1;
}

/* --- what the rig says ---------------------------------------------------- */

static void command(const char *line) {
    char verb[16] = "", text[32] = "";
    long a = 0, b = 0;
    int i;
    sscanf(line, "%15s %ld %ld", verb, &a, &b);
    if (strcmp(verb, "delay") == 0) {
        delay_ms = a;
        jitter_ms = b;
    } else if (strcmp(verb, "slow") == 0) {
        slow = a;
    } else if (strcmp(verb, "refuse") == 0) {
        refuses = a != 0;
    } else if (strcmp(verb, "word") == 0) {
        if (sscanf(line, "%*s %31s %ld", text, &word_times) != 2)
            word_times = 0;
        memcpy(word, text, sizeof word);
    } else if (strcmp(verb, "calm") == 0) {
        delay_ms = jitter_ms = slow = word_times = 0;
        refuses = 0;
        for (i = 0; i < pair_count; i++) pairs[i]->bite = -1;
    } else if (strcmp(verb, "count") == 0) {
        printf("connections %ld, cuts %ld, halves %ld, forgotten %ld, refused "
               "%ld, words %ld, delayed %ld, bytes %ld\n",
               counts.connections, counts.cuts, counts.halves, counts.forgotten,
               counts.refused, counts.words, counts.delayed, counts.bytes);
        fflush(stdout);
    } else {
        for (i = pair_count - 1; i >= 0; i--) {
            struct pair *p = pairs[i];
            if (strcmp(verb, "bite") == 0) {
                if (below(100) < b) p->bite = below((int)a);
            } else if (below(100) >= a) {
                continue;
            } else if (strcmp(verb, "cut") == 0) {
                counts.cuts++;
                end_pair(p);
                free(p);
                pairs[i] = pairs[--pair_count];
            } else if (strcmp(verb, "half") == 0) {
                counts.halves++;
                if (b != 1) p->from[0].drops = 1;
                if (b != 0) p->from[1].drops = 1;
            } else if (strcmp(verb, "forget") == 0 && p->fd[1] >= 0) {
                counts.forgotten++;
                close(p->fd[1]);
                p->fd[1] = -1;
                p->from[0].drops = 1;
            }
        }
    }
}

/* Read and run commands. If the input has ended, exit. */
static void obey(void) {
    static char line[256];
    static size_t len;
    char c;
    ssize_t n;
    while ((n = read(0, &c, 1)) == 1) {
        if (c != '\n' && len < sizeof line - 1) {
            line[len++] = c;
            continue;
        }
        line[len] = '\0';
        len = 0;
        command(line);
    }
    if (n == 0) exit(0);
}

int main(int argc, char **argv) {
    static struct pollfd p[1 + LINKS + 2 * PAIRS];
    int i, d;
    signal(SIGPIPE, SIG_IGN);
    fcntl(0, F_SETFL, fcntl(0, F_GETFL) | O_NONBLOCK);
    seed = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
    for (i = 2; i < argc && link_count < LINKS; i++) {
        struct link *l = &links[link_count++];
        struct sockaddr_in a;
        if (sscanf(argv[i], "%d=%d", &l->port, &l->target) != 2) return 2;
        l->map = strstr(argv[i], ",map") != NULL;
        a = address(l->port);
        l->fd = open_socket();
        if (bind(l->fd, (struct sockaddr *)&a, sizeof a) != 0 ||
            listen(l->fd, 256) != 0) {
            perror(argv[i]);
            return 1;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        int64_t now = now_us(), next = now + 1000000;
        struct timespec t;
        int n = 0;
        p[n].fd = 0;
        p[n++].events = POLLIN;
        for (i = 0; i < link_count; i++) {
            p[n].fd = links[i].fd;
            p[n++].events = POLLIN;
        }
        for (i = 0; i < pair_count; i++)
            for (d = 0; d < 2; d++, n++) {
                const struct flow *in = &pairs[i]->from[d],
                                  *out = &pairs[i]->from[!d];
                p[n].fd = pairs[i]->fd[d];
                p[n].events = in->held < MOST ? POLLIN : 0;
                if (out->first && out->first->at_us <= now)
                    p[n].events |= POLLOUT;
                else if (out->first && out->first->at_us < next)
                    next = out->first->at_us;
            }
        t.tv_sec = (next - now) / 1000000;
        t.tv_nsec = (next - now) % 1000000 * 1000;
        ppoll(p, (nfds_t)n, &t, NULL);
        now = now_us();
        for (i = pair_count - 1; i >= 0; i--) {
            const struct pollfd *at = &p[1 + link_count + 2 * i];
            struct pair *pair = pairs[i];
            int alive = 1;
            for (d = 0; d < 2 && alive; d++) {
                if (pair->fd[d] >= 0 &&
                    at[d].revents & (POLLIN | POLLHUP | POLLERR) &&
                    (at[d].events & POLLIN || at[d].revents & ~POLLIN))
                    alive = receive(pair, d);
                if (alive) alive = let_go(pair, d, now);
            }
            if (alive) continue;
            end_pair(pair);
            free(pair);
            pairs[i] = pairs[--pair_count];
        }
        for (i = 0; i < link_count; i++)
            if (p[1 + i].revents) accept_one(&links[i]);
        if (p[0].revents) obey();
    }
}
