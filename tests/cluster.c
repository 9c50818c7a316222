/*
 * A Redis Cluster of three masters and three replicas on loopback. The tests
 * cover redirections, a slot that moves while it is used, and a master that
 * dies.
 */
#define ATTEMPTS_US 1000000 /* as in a program; most tests set 1 us */
#include "outbox.h"
#include "test.h"
#include <signal.h>
#include <sys/wait.h>

#define NODES 6
#define ZSET "redisson_delay_queue_timeout:{jobs}"

static server nodes[NODES];
static int ports[NODES];
static redisContext *admin[NODES];

/* --- the cluster --------------------------------------------------------- */

/* Returns 1 if a cluster of this server has several databases, as with Valkey
 * 9. */
static int has_databases(void) {
    redisReply *r = run(main_connection(), "CONFIG GET cluster-databases");
    int has = r->elements == 2;
    freeReplyObject(r);
    return has;
}

static void node_arguments(int i, const char **argv) {
    static char port[16];
    int n = 0;
    snprintf(port, sizeof port, "%d", ports[i]);
    argv[n++] = "--port";
    argv[n++] = port;
    argv[n++] = "--bind";
    argv[n++] = "127.0.0.1";
    argv[n++] = "--cluster-enabled";
    argv[n++] = "yes";
    argv[n++] = "--cluster-node-timeout";
    argv[n++] = "3000"; /* below the default, so that nodes join soon */
    argv[n++] = "--appendonly";
    argv[n++] = "yes";
    if (has_databases()) argv[n++] = "--cluster-databases";
    if (has_databases()) argv[n++] = "16";
    argv[n] = NULL;
}

/* Returns 1 if every node's reply to the command contains the text. */
static int all_say(const char *command, const char *text) {
    int i, n = 0;
    for (i = 0; i < NODES; i++) {
        redisReply *r;
        if (!admin[i]) continue;
        r = run(admin[i], command);
        n += r->str && strstr(r->str, text) == NULL;
        freeReplyObject(r);
    }
    return n == 0;
}

static void start_cluster(void) {
    char command[512];
    int i, n;
    if (system("command -v redis-cli >/dev/null") != 0)
        test_skip("redis-cli is missing");
    n = snprintf(command, sizeof command, "redis-cli --cluster create");
    for (i = 0; i < NODES; i++) {
        const char *argv[16];
        ports[i] = free_port();
        node_arguments(i, argv);
        server_start(&nodes[i], argv);
        admin[i] = server_connect(&nodes[i]);
        n += snprintf(command + n, sizeof command - (size_t)n, " 127.0.0.1:%d",
                      ports[i]);
    }
    snprintf(command + n, sizeof command - (size_t)n,
             " --cluster-replicas 1 --cluster-yes >%s/create 2>&1",
             nodes[0].dir);
    if (system(command) != 0) FAIL("%s", command);
    UNTIL(all_say("CLUSTER INFO", "cluster_state:ok"));
    UNTIL(all_say("CLUSTER NODES", "slave"));
}

static void end_cluster(void) {
    int i;
    for (i = 0; i < NODES; i++) {
        if (admin[i]) redisFree(admin[i]);
        server_end(&nodes[i]);
    }
}

/* Returns the number of the node that has the key's slot. */
static int owner_of(const char *key) {
    int i, found = -1;
    for (i = 0; i < NODES && found < 0; i++) {
        redisReply *r;
        if (!admin[i]) continue;
        r = run(admin[i], "ROLE");
        if (strcmp(r->element[0]->str, "master") == 0) {
            redisReply *e = run(admin[i], "EXISTS %s", key);
            if (e->type == REDIS_REPLY_INTEGER) found = i;
            freeReplyObject(e);
        }
        freeReplyObject(r);
    }
    return found;
}

static int other_master(int than) {
    int i;
    for (i = 0; i < NODES; i++) {
        redisReply *r = run(admin[i], "ROLE");
        int master = strcmp(r->element[0]->str, "master") == 0;
        freeReplyObject(r);
        if (master && i != than) return i;
    }
    return -1;
}

static delayq_options cluster_options(const char *name, int node, char *url) {
    delayq_options o = options_for(&nodes[node], name);
    sprintf(url, "redis://127.0.0.1:%d", ports[node]);
    o.url = url;
    return o;
}

/* --- what is tested ------------------------------------------------------ */

static char connected_to[300];
static int connects;
static void keep_connected(void *unused, delayq_status status,
                           const char *text) {
    (void)unused;
    if (status != DELAYQ_OK || strncmp(text, "connected to ", 13) != 0) return;
    connects++;
    snprintf(connected_to, sizeof connected_to, "%s", text);
}

/* The log has one line for each open, which names the node of the queue. */
TEST(a_cluster_queue_is_found_from_every_node) {
    int i;
    start_cluster();
    for (i = 0; i < NODES; i++) {
        static const char *const names[] = {"jobs", "a{b}c", "{x}{y}", "q3"};
        int k;
        for (k = 0; k < 4; k++) {
            delayq q;
            delayq_item item;
            delayq_counts c;
            char url[64], node[64];
            int owner;
            delayq_options o = cluster_options(names[k], i, url);
            if (has_databases()) strcat(url, "/3");
            owner = owner_of(names[k]);
            connects = 0;
            o.log = keep_connected;
            OK(&q, delayq_open(&q, &o));
            snprintf(node, sizeof node, "connected to 127.0.0.1:%d after ",
                     ports[owner]);
            CHECK_INT(connects, 1);
            if (strncmp(connected_to, node, strlen(node)) != 0 ||
                !strstr(connected_to, "redirected") != (owner == i))
                FAIL("from node %d to %d: %s", i, owner, connected_to);
            OFFER(&q, "x", 20);
            OK(&q, delayq_take(&q, &item, 20000)); /* this also subscribes */
            OFFER(&q, "y", 60000);
            OK(&q, delayq_count(&q, &c));
            CHECK_INT(c.pending, 1);
            CHECK_INT(c.ready, 0);
            OK(&q, delayq_clear(&q, NULL));
            CHECK_INT(connects, 1);
            delayq_close(&q);
        }
    }
    end_cluster();
}

TEST(a_name_that_lies_in_two_slots_is_refused_on_a_cluster_only) {
    static const char *const names[] = {"a{b", "x{", "{}x", "a}b"};
    size_t i;
    if (is_keydb()) test_skip("KeyDB accepts an EXISTS of two slots");
    start_cluster();
    for (i = 0; i < 4; i++) {
        delayq q;
        char url[64];
        delayq_options o = cluster_options(names[i], (int)i, url);
        CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
        CHECK_HAS(delayq_errmsg(&q), "{tag}");
        CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_ARG);
        open_queue(&q, names[i]);
        OFFER(&q, "x", 0);
        elapse(main_connection(), 1);
        take_is(&q, "x");
        delayq_close(&q);
    }
    end_cluster();
}

TEST(on_a_cluster_a_connection_is_shared_within_a_slot) {
    delayq a, b;
    delayq_item item;
    char url[64];
    delayq_options o, shared;
    if (is_keydb()) test_skip("KeyDB accepts an EXISTS of two slots");
    start_cluster();
    o = cluster_options("one{t}", 0, url);
    OK(&a, delayq_open(&a, &o));
    memset(&shared, 0, sizeof shared);
    shared.share = &a;
    shared.name = "two{t}";
    OK(&b, delayq_open(&b, &shared));
    OFFER(&b, "x", 10);
    OK(&b, delayq_take(&b, &item, 20000));
    delayq_close(&b);
    shared.name = "two{other}";
    CHECK_STATUS(&b, delayq_open(&b, &shared), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&b), "shared");
    OFFER(&a, "still there", 10);
    delayq_close(&a);
    end_cluster();
}

/* --- a slot that moves --------------------------------------------------- */

struct migration {
    int from, to, slot;
    char from_id[64], to_id[64];
};

static void node_id(int node, char *id) {
    redisReply *r = run(admin[node], "CLUSTER MYID");
    snprintf(id, 64, "%s", r->str);
    freeReplyObject(r);
}

static void expect_ok(redisReply *r) {
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s", r->str);
    freeReplyObject(r);
}

static int moved_slot(void) {
    redisReply *r = run(admin[0], "CLUSTER KEYSLOT jobs");
    int slot = (int)r->integer;
    freeReplyObject(r);
    return slot;
}

/* Give a child process its own connection to a node. The inherited connection
 * belongs to the parent, so free only its memory. */
static void connect_again(int node) {
    if (admin[node]) redisFreeKeepFd(admin[node]);
    admin[node] = server_connect(&nodes[node]);
}

static void begin_migration(struct migration *m) {
    m->from = owner_of(ZSET);
    m->to = other_master(m->from);
    m->slot = moved_slot();
    node_id(m->from, m->from_id);
    node_id(m->to, m->to_id);
    expect_ok(run(admin[m->to], "CLUSTER SETSLOT %d IMPORTING %s", m->slot,
                  m->from_id));
    expect_ok(run(admin[m->from], "CLUSTER SETSLOT %d MIGRATING %s", m->slot,
                  m->to_id));
}

/* Move one key. Returns 0 if there was none to move. */
static int migrate_key(const struct migration *m) {
    redisReply *keys =
        run(admin[m->from], "CLUSTER GETKEYSINSLOT %d 1", m->slot);
    int any = keys->elements > 0;
    if (any)
        expect_ok(run(admin[m->from], "MIGRATE 127.0.0.1 %d %s 0 5000",
                      ports[m->to], keys->element[0]->str));
    freeReplyObject(keys);
    return any;
}

static void migrate_all(const struct migration *m) {
    while (migrate_key(m)) {
    }
}

static void end_migration(const struct migration *m) {
    migrate_all(m);
    expect_ok(
        run(admin[m->to], "CLUSTER SETSLOT %d NODE %s", m->slot, m->to_id));
    expect_ok(
        run(admin[m->from], "CLUSTER SETSLOT %d NODE %s", m->slot, m->to_id));
}

static int has_command(const char *name) {
    redisReply *r = run(admin[0], "COMMAND INFO %s", name);
    int has = r->elements == 1 && r->element[0]->type == REDIS_REPLY_ARRAY;
    freeReplyObject(r);
    return has;
}

/* Move the slot with one command if the server has it (Valkey 9, Redis 8.4),
 * otherwise key by key. */
static void migrate_at_once(struct migration *m) {
    node_id(m->from, m->from_id);
    node_id(m->to, m->to_id);
    if (has_command("cluster|migrateslots")) {
        expect_ok(run(admin[m->from],
                      "CLUSTER MIGRATESLOTS SLOTSRANGE %d %d NODE %s", m->slot,
                      m->slot, m->to_id));
        return;
    }
    if (has_command("cluster|migration")) {
        redisReply *task = run(admin[m->to], "CLUSTER MIGRATION IMPORT %d %d",
                               m->slot, m->slot);
        if (task->type != REDIS_REPLY_STRING) FAIL("%s", task->str);
        freeReplyObject(task);
        return;
    }
    expect_ok(run(admin[m->to], "CLUSTER SETSLOT %d IMPORTING %s", m->slot,
                  m->from_id));
    expect_ok(run(admin[m->from], "CLUSTER SETSLOT %d MIGRATING %s", m->slot,
                  m->to_id));
    end_migration(m);
}

/* [0]: the number of finished moves; [1]: 1 if no other move may begin */
static volatile int *moves;

/* Move the slot from node to node, key by key. */
static void move_to_and_fro(void *unused) {
    struct migration m;
    int i;
    (void)unused;
    for (i = 0; i < NODES; i++) connect_again(i);
    while (!moves[1]) {
        begin_migration(&m);
        usleep(20000);
        /* a slot's new node may lack the scripts */
        if (*moves % 3 == 0) expect_ok(run(admin[m.to], "SCRIPT FLUSH"));
        while (migrate_key(&m)) usleep(5000);
        usleep(20000);
        end_migration(&m);
        ++*moves;
        usleep(200000);
    }
}

static pid_t begin_moves(void) {
    moves = (volatile int *)shared(2 * sizeof *moves);
    return spawn(move_to_and_fro, NULL);
}

/* End the moves after the current one. A half-moved slot makes calls fail. */
static void end_moves(pid_t mover) {
    moves[1] = 1;
    join(mover);
}

#define MOVES 12

/* Call most functions. No call may fail. */
static void use_it(delayq *q, const delayq_options *o) {
    delayq_item item;
    delayq_message m;
    delayq_counts c;
    delayq late;
    int i;
    for (i = 0; i < 3; i++) OFFER(q, "x", 0);
    OK(q, delayq_take(q, &item, 20000));
    OK(q, delayq_extend(q, &item, 30000));
    OK(q, delayq_ack(q, &item));
    OK(q, delayq_take(q, &item, 20000));
    OK(q, delayq_nack(q, &item, 0));
    OK(q, delayq_take(q, &item, 20000));
    OK(q, delayq_ack_take(q, &item, 20000));
    OK(q, item.acked);
    OK(q, delayq_ack(q, &item));
    CHECK_STATUS(q, delayq_take(q, &item, 0), DELAYQ_EMPTY);
    CHECK_STATUS(q, delayq_take(q, &item, 20), DELAYQ_EMPTY);
    OK(q, delayq_tick(q, NULL));
    memset(&m, 0, sizeof m);
    m.data = "y";
    m.len = 1;
    m.delay_ms = 60000;
    OK(q, delayq_offer_message(q, &m));
    OK(q, delayq_reschedule(q, &m.ticket, 50000));
    OK(q, delayq_cancel(q, &m.ticket));
    m.key = "k";
    m.key_ttl_ms = 60000;
    OK(q, delayq_offer_message(q, &m));
    OK(q, delayq_cancel_key(q, "k"));
    OK(q, delayq_pause(q, 1));
    OK(q, delayq_pause(q, 0));
    OK(q, delayq_count(q, &c));
    CHECK_INT(c.pending, 5);
    CHECK_INT(c.ready + c.dead, 0);
    OK(&late, delayq_open(&late, o));
    OFFER(&late, "z", 0);
    OK(&late, delayq_take(&late, &item, 20000));
    OK(&late, delayq_ack(&late, &item));
    delayq_close(&late);
}

static void go_on_while_their_slot_is_moved(int counters) {
    delayq q;
    char url[64];
    delayq_options o;
    delayq_item item;
    delayq_counts c;
    pid_t mover;
    int i, rounds = 0;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    o.lease_ms = 60000;
    o.counters = counters;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 5; i++) OFFER(&q, "pending", 3600000);
    mover = begin_moves();
    do {
        use_it(&q, &o);
        rounds++;
    } while (*moves < MOVES);
    end_moves(mover);
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 5);
    printf("    %d rounds, %d moves, %d connections\n", rounds, *moves,
           (int)q.counts.reconnects);
    /* some work is not counted, since the counters may be on the other node */
    if (counters) CHECK(c.total.offered >= 5);
    delayq_close(&q);
    end_cluster();
}

TEST(no_call_fails_while_its_slot_moves_to_and_fro) {
    go_on_while_their_slot_is_moved(0);
}

TEST(no_call_that_counts_fails_while_its_slot_moves_to_and_fro) {
    go_on_while_their_slot_is_moved(1);
}

/* All keys are on the new node, but the slot does not arrive there. */
TEST(a_slot_that_does_not_arrive_ends_calls_in_time) {
    struct migration m;
    delayq q, late;
    char url[64];
    delayq_options o;
    delayq_item item, second;
    delayq_counts c;
    delayq_wire wire;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    o.lease_ms = 60000;
    o.io_timeout_ms = o.connect_timeout_ms = 300 * test_slow();
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "a", 0);
    OFFER(&q, "b", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    begin_migration(&m);
    migrate_all(&m);
    CHECK_STATUS(&q, delayq_offer(&q, "c", 1, 0), DELAYQ_ERR_AGAIN);
    CHECK(strstr(delayq_errmsg(&q), "slot moves"));
    CHECK(strstr(delayq_errmsg(&q), "nothing has happened"));
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_ERR_AGAIN);
    CHECK_STATUS(&q, delayq_take(&q, &second, 0), DELAYQ_ERR_AGAIN);
    CHECK_STATUS(&q, delayq_pause(&q, 1), DELAYQ_ERR_AGAIN);
    CHECK_STATUS(&q, delayq_ack_take(&q, &item, 50), DELAYQ_ERR_AGAIN);
    CHECK_STATUS(&q, item.acked, DELAYQ_ERR_AGAIN); /* can be acked later */
    EACH_WIRE(wire, 0, 2) { /* open works though the keys have moved */
        o.wire = wire;
        OK(&late, delayq_open(&late, &o));
        delayq_close(&late);
    }
    end_migration(&m);
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending, 2);
    OK(&q, delayq_ack_take(&q, &item, 20000));
    CHECK_INT(item.acked, DELAYQ_OK);
    CHECK(item.len == 1 && memcmp(item.data, "b", 1) == 0);
    OK(&q, delayq_ack(&q, &item));
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.pending + c.ready + c.dead, 0);
    delayq_close(&q);
    end_cluster();
}

/* Start a cluster, and open a handle whose calls time out soon. */
static delayq_options open_hastily(delayq *q, char *url) {
    delayq_options o;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    o.io_timeout_ms = o.connect_timeout_ms = 200 * test_slow();
    OK(q, delayq_open(q, &o));
    return o;
}

/* The slot arrives after a call's time limit, but within the take's timeout. */
TEST(a_take_waits_until_its_slot_has_arrived) {
    struct migration m;
    delayq q;
    char url[64];
    delayq_item item;
    pid_t child;
    open_hastily(&q, url);
    OFFER(&q, "x", 0);
    begin_migration(&m);
    migrate_all(&m);
    fflush(stdout);
    child = fork();
    if (child == 0) {
        usleep(1000000 * (useconds_t)test_slow());
        connect_again(m.from);
        connect_again(m.to);
        end_migration(&m);
        _exit(0);
    }
    OK(&q, delayq_take(&q, &item, 60000));
    join(child);
    delayq_close(&q);
    end_cluster();
}

/* The keys move one by one. Neither handle, `q` or `late`, may get an item. */
TEST(a_paused_queue_stays_so_while_its_slot_is_moved) {
    struct migration m;
    delayq q, late;
    delayq *both[2] = {&q, &late};
    char url[64];
    delayq_options o;
    delayq_item item;
    delayq_counts c;
    int i;
    o = open_hastily(&q, url);
    for (i = 0; i < 4; i++) OFFER(&q, "x", 0);
    OK(&q, delayq_pause(&q, 1));
    begin_migration(&m);
    OK(&late, delayq_open(&late, &o));
    do {
        for (i = 0; i < 2; i++) {
            poll_now(both[i]);
            CHECK(delayq_take(both[i], &item, 0) != DELAYQ_OK);
            delayq_offer(both[i], "x", 1, 0); /* it may fail */
        }
    } while (migrate_key(&m));
    end_migration(&m);
    for (i = 0; i < 2; i++) {
        poll_now(both[i]);
        CHECK_STATUS(both[i], delayq_take(both[i], &item, 50), DELAYQ_EMPTY);
    }
    UNTIL(delayq_count(&q, &c) == DELAYQ_OK);
    CHECK(c.pending >= 4);
    OK(&late, delayq_pause(&late, 0));
    for (i = 0; i < (int)c.pending; i++) OK(&q, delayq_take(&q, &item, 20000));
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    delayq_close(&q);
    delayq_close(&late);
    end_cluster();
}

TEST(a_waiting_take_notices_an_offer_after_its_slot_has_moved) {
    struct migration m;
    delayq q, other;
    char url[64], other_url[64];
    delayq_options o;
    delayq_item item;
    pid_t child;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    begin_migration(&m);
    end_migration(&m);
    fflush(stdout);
    child = fork();
    if (child == 0) { /* the taker's subscriber is connected to the old node */
        usleep(100000);
        o = cluster_options("jobs", m.to, other_url);
        OK(&other, delayq_open(&other, &o));
        OFFER(&other, "x", 50);
        _exit(0);
    }
    OK(&q, delayq_take(&q, &item, 20000));
    join(child);
    delayq_close(&q);
    end_cluster();
}

/* --- an outbox while its slot is moved ------------------------------------ */

#define TRAFFIC 4000
static unsigned char acked[TRAFFIC];
static int offered_n, acked_n, again;

/* For `ms` milliseconds, offer (if `offering`), take and ack in a loop. */
static void traffic(delayq *q, int ms, int offering) {
    long long end = now_us() + ms * 1000LL;
    while (now_us() < end) {
        char text[16];
        delayq_item got[8];
        size_t n, i;
        snprintf(text, sizeof text, "%d", offered_n);
        if (offering && offered_n < TRAFFIC &&
            offered(q, text, strlen(text), offered_n % 3))
            offered_n++;
        if (delayq_take_many(q, got, 8, &n, 0) != DELAYQ_OK) n = 0;
        for (i = 0; i < n; i++) {
            char payload[16];
            int id;
            snprintf(payload, sizeof payload, "%.*s", (int)got[i].len,
                     (const char *)got[i].data);
            id = atoi(payload);
            CHECK(id >= 0 && id < offered_n);
            OK(q, delayq_ack(q, &got[i]));
            if (acked[id]++)
                again++;
            else
                acked_n++;
        }
        OK(q, turn(q));
        usleep(1000);
    }
}

/* No turn may fail, and no item may be stored or delivered twice. A redirected
 * request must not make the result of the request after it unknown. */
TEST(an_outbox_goes_on_while_its_slot_moves_to_and_fro) {
    struct migration m;
    delayq q;
    char url[64];
    delayq_options o;
    long long end;
    pid_t mover;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    o.outbox = box_memory(BOX);
    o.outbox_size = BOX;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    UNTIL(turn(&q) == DELAYQ_OK && q.conn->known);
    mover = begin_moves();
    while (*moves < MOVES) traffic(&q, 50, 1);
    end_moves(mover);
    m.from = owner_of(ZSET);
    m.to = other_master(m.from);
    m.slot = moved_slot();
    migrate_at_once(&m);
    traffic(&q, 1000, 1);
    UNTIL(owner_of(ZSET) == m.to);
    end = now_us() + 20000000LL * test_slow();
    while (acked_n < offered_n) {
        if (now_us() > end)
            FAIL("%d of %d are acked: %s", acked_n, offered_n,
                 delayq_errmsg(&q));
        traffic(&q, 50, 0);
    }
    SETTLE(&q);
    traffic(&q, 100, 0);
    printf("    %d offered, %d moves, %d connections\n", offered_n, *moves,
           (int)q.counts.reconnects);
    CHECK(offered_n > 100);
    CHECK_INT(acked_n, offered_n);
    CHECK_INT(again, 0);
    CHECK_INT(box(&q).gone, 0);
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    end_cluster();
}

/* Until the slot arrives, the outbox keeps its ops, and ticks report why. */
TEST(an_outbox_keeps_its_ops_until_its_slot_has_arrived) {
    struct migration m;
    delayq q;
    char url[64];
    delayq_options o;
    delayq_status status;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    o.outbox = box_memory(BOX);
    o.outbox_size = BOX;
    o.io_timeout_ms = o.connect_timeout_ms = 300 * test_slow();
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "a", 60000);
    SETTLE(&q);
    begin_migration(&m);
    migrate_all(&m);
    OFFER(&q, "b", 60000);
    UNTIL((status = turn(&q)) != DELAYQ_OK);
    CHECK_STATUS(&q, status, DELAYQ_ERR_AGAIN);
    CHECK(strstr(delayq_errmsg(&q), "slot moves"));
    CHECK_INT(box(&q).offers_settled, 1);
    end_migration(&m);
    SETTLE(&q);
    OK(&q, turn(&q));
    delayq_close(&q);
    end_cluster();
}

/* --- a master that dies -------------------------------------------------- */

static int told;
static void count_log(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)text;
    if (status != DELAYQ_OK) told++; /* DELAYQ_OK: an event, not a fault */
}

/* in shared memory: late[0] is the number of items, late[i] the lateness of the
 * i-th item in us */
static volatile int64_t *late;

static void wait_for_ever(void *node) {
    delayq q;
    delayq_item item;
    char url[64];
    delayq_options o = cluster_options("jobs", (int)(long)node, url);
    o.max_wait_ms = 3600000;
    OK(&q, delayq_open(&q, &o));
    for (;;) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        late[late[0] + 1] = item.late_us;
        late[0]++; /* no race: one handle takes at a time */
    }
}

/* On a cluster, too, the waiters' messages reach all of them. */
TEST(on_a_cluster_waiters_replace_a_leader_that_hangs) {
    delayq p;
    char url[64];
    delayq_options o;
    pid_t waiters[3];
    int i, owner;
    start_cluster();
    late = (volatile int64_t *)shared(100 * sizeof *late);
    for (i = 0; i < 3; i++) waiters[i] = spawn(wait_for_ever, (void *)(long)i);
    owner = owner_of("jobs");
    for (i = 0; i < 3;) {
        redisReply *r = run(admin[owner], "ZCARD delayq_waiters:{jobs}");
        i = (int)r->integer;
        freeReplyObject(r);
        usleep(10000);
    }
    o = cluster_options("jobs", 1, url);
    OK(&p, delayq_open(&p, &o));
    for (i = 1; i <= 9; i++) {
        if (i > 3) kill(waiters[i % 3], SIGSTOP);
        OFFER(&p, "x", 50);
        UNTIL(late[0] == i);
        if (late[i] > 1000000LL * test_slow())
            FAIL("item %d is %lld us late", i, (long long)late[i]);
        if (i > 3) kill(waiters[i % 3], SIGCONT);
        usleep(50000);
    }
    for (i = 0; i < 3; i++) kill(waiters[i], SIGKILL);
    delayq_close(&p);
    end_cluster();
}

LONG_TEST(a_cluster_master_that_dies_is_replaced_and_nothing_is_lost) {
    delayq q, p;
    char url[128];
    delayq_options o;
    delayq_item item;
    redisReply *r;
    long long killed;
    int owner, i;
    start_cluster();
    o = cluster_options("jobs", 0, url);
    sprintf(url, "redis://127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d", ports[0],
            ports[1], ports[2]);
    o.log = count_log;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&p, delayq_open(&p, &o));
    for (i = 0; i < 50; i++) OFFER(&p, "x", 100);
    owner = owner_of(ZSET);
    /* A failover loses data that the replica lacks. Wait until it has all. */
    r = run(admin[owner], "EVAL %s 1 %s", "return redis.call('ZCARD', KEYS[1])",
            ZSET);
    CHECK_INT(r->integer, 50);
    freeReplyObject(r);
    r = run(admin[owner], "WAIT 1 20000");
    CHECK_INT(r->integer, 1);
    freeReplyObject(r);
    /* not set earlier, since a node that starts may be silent for a second */
    for (i = 0; i < NODES; i++)
        expect_ok(run(admin[i], "CONFIG SET cluster-node-timeout 1000"));
    redisFree(admin[owner]);
    admin[owner] = NULL;
    server_kill(&nodes[owner], SIGKILL);
    killed = now_us();
    for (i = 0; i < 50; i++) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        if (i == 0)
            report_row("master of a cluster killed (node timeout 1 s)",
                       "`ERR_IO`, `ERR_AGAIN`; a waiting take goes on",
                       "those on the replica", now_us() - killed);
        OK(&q, delayq_ack(&q, &item));
    }
    CHECK(told > 0);
    UNTIL(delayq_offer(&p, "after", 5, 0) == DELAYQ_OK);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK_INT(item.len, 5);
    OK(&q, delayq_ack(&q, &item));
    CHECK_STATUS(&q, delayq_take(&q, &item, 10), DELAYQ_EMPTY);
    delayq_close(&q);
    delayq_close(&p);
    end_cluster();
}
