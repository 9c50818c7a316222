/*
 * The network: connections between a process and a server, and their faults.
 * Each system call has the same result as on Linux.
 *
 * A connection has two directions. The bytes of each are cut into segments,
 * which arrive in order, each at its own time. If a segment can't pass, it is
 * parked, with all segments after it, until the obstacle is gone.
 */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "inner.h"

#define BACKLOG 511
#define SYN_PATIENCE_US (127 * SIM_SECOND)
#define UNREACHABLE_US (3 * SIM_SECOND)

typedef enum seg_kind {
    SEG_SYN,
    SEG_SYN_ACK,
    SEG_ACK, /* the third segment of the handshake */
    SEG_DATA,
    SEG_FIN,
    SEG_RST
} seg_kind;

typedef struct segment {
    int64_t at;
    size_t len;
    seg_kind kind;
    int passes; /* 1: it passes all obstacles */
} segment;

typedef struct direction {
    conn *conn;
    int to_server;
    segment *segments; /* a ring */
    size_t first, count, size;
    char *bytes; /* begin to arrived: unread; arrived to end: in flight */
    size_t begin, arrived, end, capacity;
    int64_t last_us;   /* time at which the last segment arrives */
    int64_t parked_us; /* time at which it was parked; -1: it isn't */
    event arrival;
} direction;

typedef enum end_state {
    END_NEW, /* of the client: SYN_SENT; of the server: no connection yet */
    END_OPEN,
    END_CLOSED, /* closed by its owner */
    END_RESET,  /* reset by the other side, or given up */
    END_GONE    /* the machine's power has failed */
} end_state;

typedef struct listener listener;

struct net_link {
    conn *conn;
    void *session;
    int waits, accepted; /* 1: it is in the backlog; 1: it was accepted */
    int over;            /* 1: `closed` was called, or must not be called */
};

struct conn {
    unsigned number;
    machine *machines[2]; /* the machines of the process and the server */
    process *process;
    listener *listener;
    struct sockaddr_in6 to;
    int port, local_port;
    end_state client, server;
    int client_fin, server_fin; /* 1: this end has got a FIN */
    int error;                  /* SO_ERROR */
    int severed;                /* 1: new bytes are answered by a reset */
    int swallowed;              /* 1: new bytes vanish */
    int doomed;                 /* 1: out of the list; freed after this event */
    size_t limit;               /* limit of bytes that the server hasn't read */
    direction to_server, to_client;
    event patience; /* makes the connect time out */
    net_link link;
    conn *before, *next;
};

struct listener {
    machine *machine;
    int port, open;
    net_service how;
    void *service;
    int waiting; /* connections that it hasn't accepted */
    listener *next;
};

static conn *conns, *last_conn;
static listener *listeners;
static unsigned conn_count;
static conn **doomed;
static size_t doomed_count, doomed_size;

/* --- routes -------------------------------------------------------------- */

static net_path *path_between(machine *from, machine *to) {
    if (to->index >= from->path_count) {
        int n = to->index + 8, i;
        from->paths = realloc(from->paths, (size_t)n * sizeof *from->paths);
        assert(from->paths);
        for (i = from->path_count; i < n; i++) from->paths[i] = NULL;
        from->path_count = n;
    }
    if (!from->paths[to->index]) {
        net_path *p = calloc(1, sizeof *p);
        assert(p);
        p->route.latency_us = from == to ? 20 : 100;
        p->route.jitter_us = from == to ? 10 : 100;
        from->paths[to->index] = p;
    }
    return from->paths[to->index];
}

route *net_route(machine *from, machine *to) {
    return &path_between(from, to)->route;
}

static net_path *path_of(const direction *d) {
    return path_between(d->conn->machines[!d->to_server],
                        d->conn->machines[d->to_server]);
}

/* --- segments ------------------------------------------------------------ */

static segment *segment_at(const direction *d, size_t i) {
    return &d->segments[(d->first + i) & (d->size - 1)];
}

static segment *push(direction *d, seg_kind kind, size_t len) {
    const route *r = &path_of(d)->route;
    segment *s;
    static segment nowhere;
    if (d->conn->doomed) return &nowhere;
    if (d->count == d->size) {
        size_t size = d->size ? d->size * 2 : 8, i;
        segment *more = malloc(size * sizeof *more);
        assert(more);
        for (i = 0; i < d->count; i++) more[i] = *segment_at(d, i);
        free(d->segments);
        d->segments = more;
        d->first = 0;
        d->size = size;
    }
    s = segment_at(d, d->count++);
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->len = len;
    s->at = sim_now() + r->latency_us;
    if (r->jitter_us > 0) s->at += sim_between(0, r->jitter_us);
    if (s->at < d->last_us) s->at = d->last_us;
    d->last_us = s->at;
    if (d->count == 1 && d->parked_us < 0) event_set(&d->arrival, s->at);
    return s;
}

static void append(direction *d, const char *bytes, size_t len) {
    if (d->begin == d->end) d->begin = d->arrived = d->end = 0;
    if (d->end + len > d->capacity && d->begin > 0) {
        memmove(d->bytes, d->bytes + d->begin, d->end - d->begin);
        d->arrived -= d->begin;
        d->end -= d->begin;
        d->begin = 0;
    }
    if (d->end + len > d->capacity) {
        d->capacity = d->capacity * 2 > d->end + len ? d->capacity * 2
                                                     : d->end + len + 512;
        d->bytes = realloc(d->bytes, d->capacity);
        assert(d->bytes);
    }
    memcpy(d->bytes + d->end, bytes, len);
    d->end += len;
}

/* Send bytes. The route may split them into pieces. */
static void send_bytes(direction *d, const char *bytes, size_t len) {
    int tears = sim_chance(path_of(d)->route.pieces);
    append(d, bytes, len);
    while (tears && len > 1 && sim_chance(70)) {
        size_t n = (size_t)sim_between(1, (int64_t)len - 1);
        if (sim_chance(30)) n = 1;
        push(d, SEG_DATA, n);
        len -= n;
    }
    push(d, SEG_DATA, len);
}

/* Lose the bytes that have not arrived, except the first `keep`. */
static void lose_from(direction *d, size_t keep) {
    size_t i, n = 0;
    for (i = 0; i < d->count; i++) {
        segment *s = segment_at(d, i);
        if (s->kind != SEG_DATA || n >= keep) break;
        if (n + s->len > keep) s->len = keep - n;
        n += s->len;
    }
    d->count = i;
    d->end = d->arrived + n;
    if (d->count == 0) event_cancel(&d->arrival);
}

static void lose_some(direction *d) {
    size_t i, all = 0;
    for (i = 0; i < d->count; i++) all += segment_at(d, i)->len;
    lose_from(d, (size_t)sim_between(0, (int64_t)all));
}

static void arrive(void *arg);

static void set_direction(direction *d, conn *c, int to_server) {
    d->conn = c;
    d->to_server = to_server;
    d->parked_us = -1;
    d->arrival.call = arrive;
    d->arrival.arg = d;
}

/* Let parked segments try again, since their obstacle may be gone. The longer
 * they were parked, the longer this may take (1 s at most). */
static void unpark(direction *d) {
    int64_t waited = sim_now() - d->parked_us, most = waited;
    if (d->parked_us < 0) return;
    d->parked_us = -1;
    if (most > SIM_SECOND) most = SIM_SECOND;
    if (d->count > 0) event_set(&d->arrival, sim_now() + sim_between(0, most));
}

/* --- the life of a connection -------------------------------------------- */

static void doom(conn *c) {
    int client = c->client == END_CLOSED || c->client == END_GONE;
    if (c->doomed || !client) return;
    if (!c->link.over && c->server != END_NEW) return;
    c->doomed = 1;
    if (c->before)
        c->before->next = c->next;
    else
        conns = c->next;
    if (c->next)
        c->next->before = c->before;
    else
        last_conn = c->before;
    event_cancel(&c->to_server.arrival);
    event_cancel(&c->to_client.arrival);
    event_cancel(&c->patience);
    c->to_server.count = c->to_client.count = 0;
    c->client = c->server = END_GONE;
    if (doomed_count == doomed_size) {
        doomed_size = doomed_size * 2 + 64;
        doomed = realloc(doomed, doomed_size * sizeof *doomed);
        assert(doomed);
    }
    doomed[doomed_count++] = c;
}

static void conn_free(conn *c) {
    free(c->to_server.segments);
    free(c->to_client.segments);
    free(c->to_server.bytes);
    free(c->to_client.bytes);
    free(c);
}

void net_reap(void) {
    while (doomed_count > 0) conn_free(doomed[--doomed_count]);
}

static void tell(const conn *c, const char *what) {
    sim_hash_add(&c->number, sizeof c->number);
    sim_hash_add(what, strlen(what));
    if (!sim_tells) return;
    sim_tell("connection %u of %s/%s to %s:%d %s", c->number,
             c->machines[0]->name, process_name(c->process),
             c->machines[1] ? c->machines[1]->name : "?", c->port, what);
}

/* --- the server's end ---------------------------------------------------- */

static void not_waiting(conn *c) {
    c->listener->waiting -= c->link.waits;
    c->link.waits = 0;
}

/* End the connection at the server's side, with the state `how`. */
static void server_ends(conn *c, end_state how) {
    not_waiting(c);
    c->link.over = 1;
    c->server = how;
    doom(c);
}

/* Pass the server all that its kernel has received, unless it is frozen. */
static void serve(conn *c) {
    direction *d = &c->to_server;
    listener *l = c->listener;
    process *before;
    if (c->machines[1]->frozen) return;
    before = process_aside();
    if (!c->link.over && c->link.waits) {
        not_waiting(c);
        c->link.accepted = 1;
        c->link.session = l->how.accepted(l->service, &c->link);
    }
    if (!c->link.over && c->link.accepted && d->arrived > d->begin) {
        size_t begin = d->begin, len = d->arrived - begin;
        d->begin = d->arrived;
        sim_hash_add(d->bytes + begin, len);
        l->how.received(c->link.session, d->bytes + begin, len);
        if (c->client == END_OPEN) process_notice(c->process);
    }
    if (!c->link.over && (c->server == END_RESET || c->server_fin)) {
        c->link.over = 1;
        l->how.closed(c->link.session);
        if (c->server == END_OPEN) {
            c->server = END_CLOSED;
            if (c->client != END_RESET && !c->severed)
                push(&c->to_client, SEG_FIN, 0);
        }
        doom(c);
    }
    process_go_on(before);
}

void link_write(net_link *l, const char *bytes, size_t len) {
    conn *c = l->conn;
    if (len == 0 || l->over || c->server != END_OPEN) return;
    if (c->swallowed) return;
    if (c->severed) {
        push(&c->to_server, SEG_RST, 0);
        return;
    }
    sim_hash_add(bytes, len);
    send_bytes(&c->to_client, bytes, len);
}

/* Close the server's end as the kernel does: with a FIN, or with a reset if
 * bytes were not read or the connection was not accepted. */
static void server_closes(conn *c) {
    const direction *d = &c->to_server;
    if (c->server == END_OPEN && !c->severed && !c->swallowed)
        push(&c->to_client,
             d->arrived > d->begin || c->link.waits ? SEG_RST : SEG_FIN, 0);
    server_ends(c, END_CLOSED);
}

void link_close(net_link *l) {
    if (l->over) return;
    tell(l->conn, "is closed by the server");
    server_closes(l->conn);
}

machine *link_peer(const net_link *l) {
    return l->conn->machines[0];
}

process *link_process(const net_link *l) {
    return l->conn->process;
}

static listener *find_listener(const machine *m, int port) {
    listener *l;
    for (l = listeners; l; l = l->next)
        if (l->open && l->machine == m && l->port == port) return l;
    return NULL;
}

void net_listen(machine *m, int port, const net_service *how, void *service) {
    listener *l = calloc(1, sizeof *l);
    assert(l && !find_listener(m, port));
    l->machine = m;
    l->port = port;
    l->open = 1;
    l->how = *how;
    l->service = service;
    l->next = listeners;
    listeners = l;
}

void net_close(machine *m, int port) {
    listener *l = find_listener(m, port);
    conn *c, *next;
    if (!l) return;
    sim_tell("the server at %s:%d is gone", m->name, port);
    l->open = 0;
    for (c = conns; c; c = next) {
        next = c->next;
        if (c->listener == l && c->server != END_NEW && !c->link.over)
            server_closes(c);
    }
}

/* --- arrivals ------------------------------------------------------------ */

static void client_resets(conn *c, int error) {
    c->client = END_RESET;
    c->error = error;
    event_cancel(&c->patience);
    process_notice(c->process);
}

static void give_up(void *arg) {
    conn *c = arg;
    tell(c, "is given up");
    client_resets(c, c->machines[1] ? ETIMEDOUT : EHOSTUNREACH);
    lose_from(&c->to_server, 0);
}

/* Returns 1 if an obstacle holds the segment. */
static int is_held(const direction *d, const segment *s) {
    const conn *c = d->conn;
    const machine *to = c->machines[d->to_server];
    const net_path *p;
    const listener *l;
    if (s->passes) return 0;
    p = path_of(d);
    if (to->down || c->swallowed || p->route.stalled == 1) return 1;
    if (p->route.stalled > 1 && p->route.stalled - 2 == (int)(c->number % 2))
        return 1;
    if (s->kind != SEG_SYN) return 0;
    if (p->connects == NET_SILENT) return 1;
    l = find_listener(to, c->port);
    return l && l->waiting >= BACKLOG;
}

static void arrive_at_server(conn *c, const segment *s) {
    if (s->kind == SEG_SYN) {
        net_path *p = path_of(&c->to_server);
        c->listener = find_listener(c->machines[1], c->port);
        if (!c->listener || p->connects == NET_REFUSES) {
            push(&c->to_client, SEG_RST, 0);
            return;
        }
        push(&c->to_client, SEG_SYN_ACK, 0);
        return;
    }
    if (s->kind == SEG_ACK && c->server == END_NEW) {
        if (!c->listener->open) {
            push(&c->to_client, SEG_RST, 0);
            c->server = END_CLOSED;
            c->link.over = 1;
            return;
        }
        c->server = END_OPEN;
        c->listener->waiting++;
        c->link.waits = 1;
    }
    if (c->server != END_OPEN || c->link.over) {
        if (s->kind == SEG_DATA) {
            c->to_server.begin = c->to_server.arrived;
            push(&c->to_client, SEG_RST, 0);
        }
        if (s->kind == SEG_FIN && c->server != END_CLOSED)
            push(&c->to_client, SEG_RST, 0);
        return;
    }
    if (s->kind == SEG_FIN) c->server_fin = 1;
    if (s->kind == SEG_RST) {
        c->server = END_RESET;
    }
    serve(c);
}

static void arrive_at_client(conn *c, const segment *s) {
    direction *d = &c->to_client;
    if (c->client == END_CLOSED || c->client == END_GONE) {
        d->begin = d->arrived;
        if (s->kind == SEG_DATA || c->client == END_GONE)
            if (s->kind != SEG_RST) push(&c->to_server, SEG_RST, 0);
        return;
    }
    if (c->client == END_RESET) {
        d->begin = d->arrived;
        if (s->kind != SEG_RST) push(&c->to_server, SEG_RST, 0);
        return;
    }
    if (s->kind == SEG_SYN_ACK) {
        c->client = END_OPEN;
        event_cancel(&c->patience);
        push(&c->to_server, SEG_ACK, 0);
        tell(c, "is made");
    }
    if (s->kind == SEG_RST) {
        tell(c, c->client == END_NEW ? "is refused" : "is reset");
        client_resets(c, c->client == END_NEW ? ECONNREFUSED
                         : c->client_fin      ? EPIPE
                                              : ECONNRESET);
        return;
    }
    if (s->kind == SEG_FIN) {
        tell(c, "is at its end");
        c->client_fin = 1;
    }
    if (s->kind == SEG_DATA)
        sim_hash_add(d->bytes + d->arrived - s->len, s->len);
    process_notice(c->process);
}

static void arrive(void *arg) {
    direction *d = arg;
    conn *c = d->conn;
    while (d->count > 0 && segment_at(d, 0)->at <= sim_now()) {
        segment s = *segment_at(d, 0);
        if (is_held(d, &s)) {
            d->parked_us = sim_now();
            return;
        }
        d->first++;
        d->count--;
        d->arrived += s.len;
        if (d->to_server)
            arrive_at_server(c, &s);
        else
            arrive_at_client(c, &s);
    }
    if (d->count > 0) event_set(&d->arrival, segment_at(d, 0)->at);
}

/* --- the process' end ---------------------------------------------------- */

static machine *find_machine(process *p, const struct sockaddr *to,
                             socklen_t len, int *port) {
    machine *m;
    if (to->sa_family == AF_INET && len >= sizeof(struct sockaddr_in)) {
        struct sockaddr_in a;
        memcpy(&a, to, sizeof a);
        *port = ntohs(a.sin_port);
        if (ntohl(a.sin_addr.s_addr) >> 24 == 127) return p->machine;
        for (m = sim_machines; m; m = m->next)
            if (!m->is_v6 && m->v4.s_addr == a.sin_addr.s_addr) return m;
    } else if (to->sa_family == AF_INET6 &&
               len >= sizeof(struct sockaddr_in6)) {
        struct sockaddr_in6 a;
        memcpy(&a, to, sizeof a);
        *port = ntohs(a.sin6_port);
        if (IN6_IS_ADDR_LOOPBACK(&a.sin6_addr)) return p->machine;
        for (m = sim_machines; m; m = m->next)
            if (m->is_v6 && memcmp(&m->v6, &a.sin6_addr, sizeof m->v6) == 0)
                return m;
    }
    return NULL;
}

int conn_open(process *p, const struct sockaddr *to, socklen_t len,
              conn **out) {
    conn *c;
    int port = 0;
    machine *m = find_machine(p, to, len, &port);
    if (to->sa_family != AF_INET && to->sa_family != AF_INET6) return ENOENT;
    c = calloc(1, sizeof *c);
    assert(c);
    c->number = ++conn_count;
    c->local_port = 32768 + (int)(conn_count % 28000);
    c->port = port;
    c->process = p;
    c->machines[0] = p->machine;
    c->machines[1] = m;
    memcpy(&c->to, to, len < sizeof c->to ? len : sizeof c->to);
    c->link.conn = c;
    c->limit = (size_t)(sim_chance(20) ? sim_between(4000, 16000)
                                       : sim_between(64000, 200000));
    set_direction(&c->to_server, c, 1);
    set_direction(&c->to_client, c, 0);
    c->patience.call = give_up;
    c->patience.arg = c;
    c->before = last_conn;
    if (last_conn)
        last_conn->next = c;
    else
        conns = c;
    last_conn = c;
    event_set(&c->patience, sim_now() + (m ? SYN_PATIENCE_US : UNREACHABLE_US));
    if (m) push(&c->to_server, SEG_SYN, 0);
    *out = c;
    return 0;
}

int conn_connecting(const conn *c) {
    return c->client == END_NEW;
}

int conn_connected(const conn *c) {
    return c->client == END_OPEN;
}

size_t conn_unread(const conn *c) {
    return c->to_client.arrived - c->to_client.begin;
}

int conn_take_error(conn *c) {
    int error = c->error;
    c->error = 0;
    return error;
}

static size_t room(const conn *c) {
    size_t used = c->to_server.end - c->to_server.begin;
    return used < c->limit ? c->limit - used : 0;
}

/* Returns the poll events of the client's socket, like tcp_poll in Linux. */
int conn_events(const conn *c) {
    int events = 0;
    if (c->error) events |= POLLERR;
    if (c->client == END_NEW) return events;
    if (c->client == END_RESET)
        return events | POLLHUP | POLLIN | POLLRDHUP | POLLOUT;
    if (c->client_fin) events |= POLLIN | POLLRDHUP;
    if (conn_unread(c) > 0) events |= POLLIN;
    if (room(c) >= c->limit / 3) events |= POLLOUT;
    return events;
}

/* See tcp_recvmsg: bytes that arrived before a reset can still be read. */
long conn_read(conn *c, void *to, size_t len, int peek) {
    direction *d = &c->to_client;
    size_t n = conn_unread(c);
    if (c->client == END_NEW) return -EAGAIN;
    if (n > 0) {
        if (n > len) n = len;
        memcpy(to, d->bytes + d->begin, n);
        if (!peek) d->begin += n;
        return (long)n;
    }
    if (c->client_fin) return 0;
    if (c->error) return -conn_take_error(c);
    return c->client == END_RESET ? 0 : -EAGAIN;
}

/* See tcp_sendmsg. */
long conn_write(conn *c, const void *bytes, size_t len) {
    size_t n = room(c);
    if (c->error) return -conn_take_error(c);
    if (c->client == END_RESET) return -EPIPE;
    if (c->client == END_NEW) return -EAGAIN;
    if (len == 0) return 0;
    if (c->severed && !c->swallowed) {
        push(&c->to_client, SEG_RST, 0);
        return (long)len;
    }
    if (n == 0) return -EAGAIN;
    if (n > len) n = len;
    if (c->swallowed) {
        append(&c->to_server, bytes, n);
        return (long)n;
    }
    send_bytes(&c->to_server, bytes, n);
    return (long)n;
}

void conn_close(conn *c) {
    direction *d = &c->to_server;
    if (c->client == END_GONE) return; /* its machine has lost its power */
    event_cancel(&c->patience);
    if (c->client == END_OPEN && !c->severed) {
        if (conn_unread(c) == 0) {
            push(d, SEG_FIN, 0);
        } else {
            /* After a reset the kernel does not send parked bytes again. */
            if (d->parked_us >= 0) lose_from(d, 0);
            push(d, SEG_RST, 0);
        }
    }
    c->client = END_CLOSED;
    if (c->server == END_NEW && d->count > 0 &&
        segment_at(d, 0)->kind != SEG_SYN)
        return; /* the segments in flight must still arrive */
    doom(c);
}

void conn_name(const conn *c, int peer, struct sockaddr_storage *to,
               socklen_t *len) {
    struct sockaddr_in *v4 = (struct sockaddr_in *)to;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)to;
    memset(to, 0, sizeof *to);
    if (c->to.sin6_family == AF_INET) {
        *len = sizeof *v4;
        memcpy(to, &c->to, sizeof *v4);
        if (peer) return;
        v4->sin_addr = c->machines[0]->v4;
        v4->sin_port = htons((unsigned short)c->local_port);
    } else {
        *len = sizeof *v6;
        memcpy(to, &c->to, sizeof *v6);
        if (peer) return;
        v6->sin6_addr = c->machines[0]->v6;
        v6->sin6_port = htons((unsigned short)c->local_port);
    }
}

/* --- faults -------------------------------------------------------------- */

static int is_between(const conn *c, const machine *a, const machine *b) {
    return (c->machines[0] == a && c->machines[1] == b) ||
           (c->machines[0] == b && c->machines[1] == a);
}

static int touches(const conn *c, const machine *m) {
    return c->machines[0] == m || c->machines[1] == m;
}

void net_heal(machine *a, machine *b) {
    conn *c;
    for (c = conns; c; c = c->next) {
        if (!is_between(c, a, b)) continue;
        unpark(&c->to_server);
        unpark(&c->to_client);
    }
}

void net_connects_are(machine *from, machine *to, net_connects how) {
    conn *c;
    path_between(from, to)->connects = how;
    for (c = conns; c; c = c->next)
        if (c->machines[0] == from && c->machines[1] == to)
            unpark(&c->to_server);
}

/* Send a FIN or a reset that passes all obstacles. */
static void push_end(direction *d, seg_kind kind) {
    push(d, kind, 0)->passes = 1;
    d->parked_us = -1;
    if (d->count > 0) event_set(&d->arrival, segment_at(d, 0)->at);
}

static void all_pass(direction *d) {
    size_t i;
    for (i = 0; i < d->count; i++) segment_at(d, i)->passes = 1;
}

static int client_lives(const conn *c) {
    return c->client == END_NEW || c->client == END_OPEN;
}

static int server_lives(const conn *c) {
    return c->server == END_OPEN && !c->link.over;
}

static void cut(conn *c) {
    seg_kind kind = sim_chance(25) && c->client != END_NEW ? SEG_FIN : SEG_RST;
    lose_some(&c->to_server);
    lose_some(&c->to_client);
    all_pass(&c->to_server);
    all_pass(&c->to_client);
    c->severed = 1;
    if (server_lives(c) || c->server == END_NEW) push_end(&c->to_server, kind);
    if (client_lives(c)) push_end(&c->to_client, kind);
    tell(c, "is cut");
}

void net_cut(machine *a, machine *b) {
    conn *c;
    for (c = conns; c; c = c->next)
        if (is_between(c, a, b) && !c->severed) cut(c);
}

void net_forget(machine *a, machine *b, machine *told, int half) {
    conn *c;
    for (c = conns; c; c = c->next) {
        if (half && c->number & 1) continue;
        if (!is_between(c, a, b) || c->severed) continue;
        if (c->client == END_NEW || c->server != END_OPEN) continue;
        lose_some(&c->to_server);
        lose_some(&c->to_client);
        all_pass(&c->to_server);
        all_pass(&c->to_client);
        c->severed = 1;
        c->swallowed = !told;
        if (told == c->machines[0] && client_lives(c))
            push_end(&c->to_client, SEG_RST);
        else if (told == c->machines[1] && server_lives(c))
            push_end(&c->to_server, SEG_RST);
        tell(c, "is forgotten");
    }
}

void net_tell_truth(void) {
    conn *c;
    for (c = conns; c; c = c->next) {
        if (!c->severed && c->client != END_GONE && c->server != END_GONE &&
            c->client != END_RESET)
            continue;
        c->swallowed = 0;
        lose_from(&c->to_server, 0);
        lose_from(&c->to_client, 0);
        if (client_lives(c)) push_end(&c->to_client, SEG_RST);
        if (server_lives(c)) push_end(&c->to_server, SEG_RST);
    }
}

/* --- machines ------------------------------------------------------------ */

/* Lose bytes of a crashed sender: all if they are parked, else some of them. */
static void lose_in_flight(direction *d) {
    if (d->parked_us >= 0)
        lose_from(d, 0);
    else
        lose_some(d);
}

void net_machine_thawed(machine *m) {
    conn *c, *next;
    for (c = conns; c; c = next) {
        next = c->next;
        if (c->machines[1] != m) continue;
        if (c->server != END_NEW) serve(c);
        unpark(&c->to_server); /* the backlog has room now */
    }
}

void net_machine_crashed(machine *m) {
    conn *c, *next;
    listener *l;
    for (l = listeners; l; l = l->next)
        if (l->machine == m) l->open = 0;
    for (c = conns; c; c = next) {
        next = c->next;
        if (!touches(c, m)) continue;
        if (c->machines[0] == m) {
            lose_in_flight(&c->to_server);
            c->client = END_GONE;
            event_cancel(&c->patience);
        }
        if (c->machines[1] == m) {
            lose_in_flight(&c->to_client);
            if (c->server != END_NEW) server_ends(c, END_GONE);
            /* the client sends its SYN again until a reply comes */
            if (c->client == END_NEW && c->to_server.count == 0)
                push(&c->to_server, SEG_SYN, 0);
        }
        doom(c);
    }
}

void net_machine_booted(machine *m) {
    conn *c;
    for (c = conns; c; c = c->next) {
        if (!touches(c, m)) continue;
        unpark(&c->to_server);
        unpark(&c->to_client);
    }
}

/* --- the world ----------------------------------------------------------- */

void net_begin(void) {
    conn_count = 0;
}

void net_end(void) {
    conn *c = conns;
    listener *l = listeners;
    net_reap();
    while (c) {
        conn *next = c->next;
        conn_free(c);
        c = next;
    }
    while (l) {
        listener *next = l->next;
        free(l);
        l = next;
    }
    conns = last_conn = NULL;
    listeners = NULL;
}
