/*
 * Sentinel: a master, a replica and three sentinels on loopback. The handle
 * asks the sentinels for the master, and asks again after a failover.
 */
#include "outbox.h"
#include "test.h"
#include <sys/prctl.h>
#include <sys/wait.h>

static server master, replica;
static pid_t sentinels[3];
static int master_port, replica_port, sentinel_ports[3];
static char url[256];

static void start_node(server *s, int port, int of, const char *password) {
    char text[16], master_text[16];
    const char *argv[20];
    int n = 0;
    snprintf(text, sizeof text, "%d", port);
    snprintf(master_text, sizeof master_text, "%d", of);
    argv[n++] = "--port";
    argv[n++] = text;
    argv[n++] = "--bind";
    argv[n++] = "127.0.0.1";
    if (password) {
        argv[n++] = "--requirepass";
        argv[n++] = password;
        argv[n++] = "--masterauth";
        argv[n++] = password;
    }
    if (of) {
        argv[n++] = "--replicaof";
        argv[n++] = "127.0.0.1";
        argv[n++] = master_text;
    }
    argv[n] = NULL;
    server_start(s, argv);
}

static int open_sentinels; /* 1: the sentinels have no password */

static void start_sentinel(int i, const char *password) {
    char path[160];
    FILE *f;
    sentinel_ports[i] = free_port();
    snprintf(path, sizeof path, "%s/sentinel%d.conf", master.dir, i);
    f = fopen(path, "w");
    CHECK(f != NULL);
    fprintf(f,
            "port %d\nbind 127.0.0.1\ndir %s\nlogfile %s/sentinel%d.log\n"
            "sentinel monitor service 127.0.0.1 %d 2\n"
            /* A busy machine may stall all processes. No replica is promoted if
             * its link was down for more than 10 times this period. */
            "sentinel down-after-milliseconds service 2000\n"
            "sentinel failover-timeout service 3000\n",
            sentinel_ports[i], master.dir, master.dir, i, master_port);
    if (password) fprintf(f, "sentinel auth-pass service %s\n", password);
    if (password && !open_sentinels) fprintf(f, "requirepass %s\n", password);
    fclose(f);
    fflush(stdout);
    sentinels[i] = fork();
    if (sentinels[i] == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (!freopen("/dev/null", "w", stdout)) _exit(1);
        execlp(server_program(), server_program(), path, "--sentinel", NULL);
        _exit(127);
    }
}

/* Returns the value that sentinel i has for a field of the service, or -1 if it
 * has none. */
static int sentinel_int(int i, const char *password, const char *field) {
    redisContext *c = redisConnect("127.0.0.1", sentinel_ports[i]);
    redisReply *r = NULL;
    int value = -1;
    size_t k;
    if (c && !c->err && password && !open_sentinels)
        freeReplyObject(redisCommand(c, "AUTH %s", password));
    if (c && !c->err)
        r = (redisReply *)redisCommand(c, "SENTINEL master service");
    for (k = 0; r && k + 1 < r->elements; k += 2)
        if (strcmp(r->element[k]->str, field) == 0)
            value = atoi(r->element[k + 1]->str);
    if (r) freeReplyObject(r);
    if (c) redisFree(c);
    return value;
}

static void start_service(const char *password) {
    int i;
    master_port = free_port();
    replica_port = free_port();
    start_node(&master, master_port, 0, password);
    start_node(&replica, replica_port, master_port, password);
    for (i = 0; i < 3; i++) start_sentinel(i, password);
    for (i = 0; i < 3; i++) {
        UNTIL(sentinel_int(i, password, "num-slaves") == 1);
        UNTIL(sentinel_int(i, password, "num-other-sentinels") == 2);
    }
    snprintf(url, sizeof url,
             "redis+sentinel://%s%s%s127.0.0.1:%d,127.0.0.1:%d,127.0.0.1:%d"
             "/service/0",
             password ? ":" : "", password ? password : "", password ? "@" : "",
             sentinel_ports[0], sentinel_ports[1], sentinel_ports[2]);
}

static void end_service(void) {
    int i;
    for (i = 0; i < 3; i++) {
        kill(sentinels[i], SIGKILL);
        waitpid(sentinels[i], NULL, 0);
    }
    server_end(&master);
    server_end(&replica);
}

static delayq_options service_options(void) {
    delayq_options o = options_for(&master, "jobs");
    o.url = url;
    return o;
}

/* Wait until the replica has all of the master's data. */
static void wait_for_replica(const char *password) {
    redisContext *c = server_connect(&master);
    redisReply *r;
    if (password) freeReplyObject(run(c, "AUTH %s", password));
    r = run(c, "SET written 1");
    freeReplyObject(r);
    r = run(c, "WAIT 1 20000");
    CHECK_INT(r->integer, 1);
    freeReplyObject(r);
    redisFree(c);
}

/* The sentinels have a password, too. */
LONG_TEST(a_master_that_dies_under_sentinel_is_replaced_and_nothing_is_lost) {
    delayq q;
    delayq_item item;
    delayq_options o;
    long long killed;
    int i;
    start_service("secret");
    o = service_options();
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 1), DELAYQ_EMPTY);
    for (i = 0; i < 30; i++) OFFER(&q, "x", 100);
    wait_for_replica("secret");
    server_kill(&master, SIGKILL);
    killed = now_us();
    for (i = 0; i < 30; i++) {
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        if (i == 0)
            report_row("master under Sentinel killed (down after 2 s)",
                       "`ERR_IO`; a waiting take goes on",
                       "those on the replica", now_us() - killed);
        OK(&q, delayq_ack(&q, &item));
    }
    OFFER(&q, "after", 10);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK_INT(item.len, 5);
    delayq_close(&q);
    end_service();
}

/* By default sentinels have no password. */
TEST(sentinels_without_a_password_tell_of_a_master_that_has_one) {
    delayq q;
    delayq_options o;
    open_sentinels = 1;
    start_service("secret");
    o = service_options();
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 100);
    delayq_close(&q);
    end_service();
}

/* Each accepted op reaches the new master. */
TEST(an_outbox_follows_a_failover) {
    delayq q;
    delayq_options o;
    redisContext *c;
    int tries = 0, i;
    start_service(NULL);
    o = box_options(&master, BOX);
    o.url = url;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "before", 0);
    SETTLE(&q);
    wait_for_replica(NULL);
    c = redisConnect("127.0.0.1", sentinel_ports[1]);
    UNTIL((tries++ % 3000 == 0
               ? freeReplyObject(run(c, "SENTINEL FAILOVER service"))
               : (void)0,
           turn(&q), sentinel_int(0, NULL, "port") == replica_port));
    redisFree(c);
    /* the sentinels would do this some seconds later */
    c = server_connect(&master);
    freeReplyObject(run(c, "REPLICAOF 127.0.0.1 %d", replica_port));
    redisFree(c);
    for (i = 0; i < 100; i++) OFFER(&q, "after", 0);
    for (i = 0; i < 101;) {
        delayq_item item;
        i += took(&q, &item);
        if (i == 0) usleep(1000);
    }
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    end_service();
}

TEST(sentinels_without_an_answer_are_an_error) {
    delayq q;
    delayq_options o;
    char bad[256];
    start_service(NULL);
    o = service_options();
    o.url = bad;
    snprintf(bad, sizeof bad, "redis+sentinel://127.0.0.1:%d/unknown",
             sentinel_ports[0]);
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "knows no unknown");
    delayq_close(&q);
    /* Sentinels that are dead are skipped. */
    snprintf(bad, sizeof bad,
             "redis+sentinel://127.0.0.1:%d,127.0.0.1:%d/service", free_port(),
             sentinel_ports[2]);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    delayq_close(&q);
    /* This server is not a sentinel. */
    snprintf(bad, sizeof bad, "redis+sentinel://127.0.0.1:%d/service",
             master_port);
    CHECK(delayq_open(&q, &o) < 0);
    CHECK_HAS(delayq_errmsg(&q), "sentinel");
    delayq_close(&q);
    end_service();
}

/* Make `was` a replica of `is`, which becomes the master at this port. */
static void change_roles(const server *was, const server *is, int port) {
    redisContext *c = server_connect(is);
    freeReplyObject(run(c, "REPLICAOF NO ONE"));
    redisFree(c);
    c = server_connect(was);
    freeReplyObject(run(c, "REPLICAOF 127.0.0.1 %d", port));
    redisFree(c);
}

TEST(a_replica_among_several_hosts_is_skipped) {
    static delayq_message many[500];
    int i;
    delayq q;
    delayq_item item;
    delayq_options o;
    char hosts[128];
    master_port = free_port();
    replica_port = free_port();
    start_node(&master, master_port, 0, NULL);
    start_node(&replica, replica_port, master_port, NULL);
    o = options_for(&master, "jobs");
    o.url = hosts;
    snprintf(hosts, sizeof hosts, "redis://127.0.0.1:%d,127.0.0.1:%d",
             replica_port, master_port);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 10);
    OK(&q, delayq_take(&q, &item, 20000));
    delayq_close(&q);
    /* The old master refuses several scripts of a pipeline. The handle changes
     * to the other host only once. */
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 60000);
    change_roles(&master, &replica, replica_port);
    memset(many, 0, sizeof many);
    for (i = 0; i < 500; i++) many[i].delay_ms = 60000;
    OK(&q, delayq_offer_many(&q, many, 500));
    delayq_close(&q);
    change_roles(&replica, &master, master_port);
    /* If only a replica is left, the call returns an error, changes nothing,
     * and makes few connections. */
    snprintf(hosts, sizeof hosts, "redis://127.0.0.1:%d", replica_port);
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_READONLY);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_READONLY);
    CHECK_HAS(delayq_errmsg(&q), "READONLY");
    CHECK_STATUS(&q, delayq_take(&q, &item, 30), DELAYQ_ERR_READONLY);
    delayq_close(&q);
    server_end(&replica);
    server_end(&master);
}
