/*
 * The server on the network. It has one thread, which handles the requests in
 * the order of their arrival, and needs a little time for each.
 */
#include "sim.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SERVICE_US 15 /* time of a request, apart from its work */
#define WORK_NS 300   /* time of one unit of its work */

typedef struct session session;
struct session {
    actor *a; /* must be the first field: see service_actor */
    net_link *l;
    client *c; /* NULL: the server has forgotten it */
    int node;
    int life;
    session *next; /* in the list of all sessions of this run */
};

typedef struct arrival {
    session *from;
    size_t len;
    struct arrival *next;
    char bytes[];
} arrival;

#define NODES 2
#define SENTINEL NODES /* index in nodes[] */

redis *sim_redis;
static redis *sentinel; /* NULL: there is none */
machine *sim_server;
static machine *nodes[NODES + 1];
static int listening[NODES];
static int master;
static session *sessions;
static arrival *first, *last;
static int serving, frozen, open_now;
static int64_t cost_us;

int64_t service_now_us(void) {
    return machine_realtime(sim_server);
}

static int64_t now_us(void *arg) {
    (void)arg;
    return service_now_us();
}

actor *service_actor(client *by) {
    return by ? *(actor **)client_user(by) : NULL;
}

static void answered(void *arg, client *by, const char *command, int calls,
                     int64_t work) {
    cost_us += SERVICE_US + work * WORK_NS / 1000;
    check_answered(arg, by, command, calls, work);
}

/* Print bytes of a connection, for --loud. */
static void tell_bytes(const session *s, const char *way, const char *bytes,
                       size_t len) {
    char text[600];
    size_t i, n = 0;
    if (sim_tells < 2) return;
    for (i = 0; i < len && n < 500; i++) {
        unsigned char c = (unsigned char)bytes[i];
        if (c == '\r') continue;
        text[n++] = (char)(c == '\n' ? ' ' : c < 32 || c > 126 ? '.' : c);
    }
    text[n] = '\0';
    sim_tell("    %s %s %zu: %s", s->a ? s->a->name : "?", way, len, text);
}

static int garbles; /* 1: the next reply is changed */
static uint64_t garble;

void service_garble(uint64_t how) {
    garbles = 1;
    garble = how;
}

/* Send a reply in a changed form, which `garble` chooses. */
static void write_garbled(session *s, const char *bytes, size_t len) {
    char short_reply[64];
    const char *const instead[] = {"HTTP/1.1 400 Bad Request\r\n\r\n",
                                          "%1\r\n+a\r\n+b\r\n", "+OK\r\n",
                                          short_reply};
    static const char *const more[] = {"+OK\r\n", ":5\r\n", "*0\r\n"};
    snprintf(short_reply, sizeof short_reply, "*2\r\n:%lld\r\n$-1\r\n",
             (long long)service_now_us());
    TELL("%s: a reply is garbled", s->a ? s->a->name : "?");
    faults_disconnect();
    if (garble % 2 == 0) {
        const char *text = instead[garble / 2 % (plan_version < 7 ? 2 : 4)];
        link_write(s->l, text, strlen(text));
    } else { /* the reply twice, or followed by another one */
        const char *text = more[garble / 2 % 3];
        char *both = (char *)malloc(2 * len + 8);
        size_t n = len;
        memcpy(both, bytes, len);
        if (garble / 6 % 2 && plan_version < 7)
            memcpy(both + n, bytes, len), n += len;
        else
            memcpy(both + n, text, strlen(text)), n += strlen(text);
        link_write(s->l, both, n);
        free(both);
    }
}

static void client_write(void *user, const char *bytes, size_t len) {
    session *s = (session *)user;
    tell_bytes(s, "<-", bytes, len);
    if (!s->l) return;
    if (garbles && s->a && len > 0) {
        garbles = 0;
        write_garbled(s, bytes, len);
    } else {
        link_write(s->l, bytes, len);
    }
}

static void client_close(void *user) {
    session *s = (session *)user;
    net_link *l = s->l;
    s->l = NULL;
    s->c = NULL;
    if (l) link_close(l);
}

static void *accepted(void *service, net_link *l) {
    session *s = (session *)calloc(1, sizeof *s);
    int i;
    s->node = (int)((machine **)service - nodes);
    s->l = l;
    s->next = sessions;
    sessions = s;
    for (i = 0; i < sim_plan.actor_count; i++)
        if (sim_plan.actors[i].p && sim_plan.actors[i].p == link_process(l))
            s->a = &sim_plan.actors[i];
    if (s->a && s->node != SENTINEL) check_connected(s->a);
    s->c = redis_connect(s->node == SENTINEL ? sentinel : sim_redis,
                         client_write, client_close, s);
    if (s->c) client_set_node(s->c, s->node);
    return s;
}

static void serve(void *arg);

static void serve_later(void) {
    if (serving || frozen || !first) return;
    serving = 1;
    sim_at(sim_now() + (cost_us > 0 ? cost_us : SERVICE_US), serve, NULL);
    cost_us = 0;
}

static void serve(void *arg) {
    arrival *a = first;
    (void)arg;
    serving = 0;
    if (frozen || !a) return;
    first = a->next;
    if (!first) last = NULL;
    tell_bytes(a->from, "->", a->bytes, a->len);
    if (a->from->c) redis_feed(a->from->c, a->bytes, a->len);
    free(a);
    serve_later();
}

static void received(void *of, const char *bytes, size_t len) {
    session *s = (session *)of;
    arrival *a;
    if (!s->c) return;
    if (s->node == SENTINEL) {
        redis_feed(s->c, bytes, len);
        return;
    }
    a = (arrival *)malloc(sizeof *a + len);
    a->from = s;
    a->len = len;
    a->next = NULL;
    memcpy(a->bytes, bytes, len);
    if (last)
        last->next = a;
    else
        first = a;
    last = a;
    serve_later();
}

static void closed(void *of) {
    session *s = (session *)of;
    client *c = s->c;
    s->l = NULL;
    s->c = NULL;
    if (c) redis_disconnect(c);
}

static const net_service how = {accepted, received, closed};
static const char *const hosts[] = {"10.0.0.1", "10.0.0.2"};
static const char *const addresses[] = {"10.0.0.1:6379", "10.0.0.2:6379"};

static void forget_arrivals(void) {
    while (first) {
        arrival *next = first->next;
        free(first);
        first = next;
    }
    last = NULL;
}

void service_begin(void) {
    static redis_hooks hooks;
    hooks.arg = NULL;
    hooks.now_us = now_us;
    hooks.executed = check_executed;
    hooks.answered = answered;
    sessions = NULL;
    first = last = NULL;
    serving = frozen = open_now = garbles = 0;
    cost_us = 0;
    nodes[0] = sim_server = machine_new("server", "10.0.0.1");
    nodes[1] = machine_new("server-2", "10.0.0.2");
    master = listening[0] = listening[1] = 0;
    machine_alias("redis", sim_server);
    sim_redis = redis_new(&hooks);
    if (sim_plan.finds == BY_CLUSTER) redis_set_cluster(sim_redis, addresses);
    if (sim_plan.finds == BY_SENTINEL) {
        static redis_hooks quiet;
        quiet.now_us = now_us;
        sentinel = redis_new(&quiet);
        nodes[SENTINEL] = machine_new("sentinel", "10.0.0.3");
        net_listen(nodes[SENTINEL], 26379, &how, &nodes[SENTINEL]);
        service_name_master();
    }
    if (sim_plan.tracks_reads) redis_tracks_reads(sim_redis);
    if (sim_plan.evicts)
        redis_set_policy(sim_redis,
                         sim_plan.evicts == 1 ? "allkeys-lru" : "volatile-ttl");
    service_open();
}

void service_end(void) {
    forget_arrivals();
    redis_free(sim_redis);
    redis_free(sentinel);
    sim_redis = sentinel = NULL;
    while (sessions) {
        session *next = sessions->next;
        free(sessions);
        sessions = next;
    }
}

static void open_node(int node) {
    if (!listening[node]) net_listen(nodes[node], PORT, &how, &nodes[node]);
    listening[node] = 1;
}

void service_open(void) {
    int i;
    for (i = 0; i < NODES; i++)
        if (i == master || sim_plan.finds == BY_CLUSTER) open_node(i);
    open_now = 1;
}

/* Forget all sessions. redis_restart drops their clients silently. */
static void forget_sessions(void) {
    session *s;
    for (s = sessions; s; s = s->next) {
        if (s->node == SENTINEL) continue;
        s->l = NULL;
        s->c = NULL;
    }
    forget_arrivals();
    cost_us = 0;
}

static void close_node(int node) {
    if (listening[node]) net_close(nodes[node], PORT);
    listening[node] = 0;
}

void service_shut(void) {
    int i;
    forget_sessions();
    for (i = 0; i < NODES; i++) close_node(i);
    open_now = 0;
}

void service_forget(void) {
    listening[master] = 0;
    service_shut();
}

static void forget_clients(int node) {
    session *s;
    for (s = sessions; s; s = s->next) {
        client *c = s->c;
        if (s->node != node || !c) continue;
        s->c = NULL;
        s->l = NULL;
        redis_disconnect(c);
    }
}

machine *service_node(int i) {
    return i < NODES + (sentinel != NULL) ? nodes[i] : NULL;
}

void service_migrate(void) {
    redis_set_importing(sim_redis, (master + 1) % NODES);
}

void service_name_master(void) {
    machine_alias("redis", sim_server);
    if (sentinel)
        redis_set_sentinel(sentinel, "master", hosts[master], "6379");
    if (sim_plan.finds == BY_CLUSTER) {
        machine_boot(nodes[(master + 1) % NODES]);
        open_node((master + 1) % NODES);
    }
}

void service_move(service_end_of how) {
    if (how != OLD_FOLLOWS) forget_clients(master);
    if (how == OLD_CLOSES) close_node(master);
    if (how == OLD_CRASHES) listening[master] = 0;
    if (how == OLD_CRASHES) machine_crash(sim_server);
    master = (master + 1) % NODES;
    sim_server = nodes[master];
    machine_boot(sim_server);
    redis_set_master(sim_redis, master);
    service_open();
}

void service_freeze(int on) {
    if (frozen == on) return;
    frozen = on;
    if (on) {
        machine_freeze(sim_server);
    } else {
        machine_thaw(sim_server);
        serve_later();
    }
}

void service_kill(redis_clients which) {
    redis_kill_clients(sim_redis, which);
}

int service_is_open(void) {
    return open_now && !frozen;
}
