/*
 * Servers that hang: a frozen process, lost packets, a host that accepts no
 * connection. A handle notices them within the documented time. In a loop with
 * io_timeout_ms = 5 no call waits longer than the maximum of 5 ms and twice the
 * measured round trip (under valgrind a few milliseconds more).
 *
 * The tests add up the timeouts of a call's polls, so that the result does not
 * depend on the speed of the machine.
 */
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#include "system.h"
#include <arpa/inet.h>
#include <net/if.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* Run one frame. A call may wait 1 ms more than documented, for rounding. */
static delayq_status frame(delayq *q, int kind) {
    delayq_item item;
    delayq_status status;
    long before = (long)(dq_sched_patience_us(q->conn, 5) / 1000), bound;
    over_ms = 0;
    status = kind == 0   ? delayq_take(q, &item, 0)
             : kind == 1 ? delayq_tick(q, NULL)
             : kind == 2 ? delayq_offer(q, "x", 1, 60000)
                         : delayq_wait(&q, 1, 0);
    bound = (long)(dq_sched_patience_us(q->conn, 5) / 1000);
    if (bound < before) bound = before;
    if (over_ms > bound + 1)
        FAIL("a call of kind %d waited %ld ms, not %ld", kind, over_ms, bound);
    return status;
}

TEST(a_frame_with_a_frozen_server_waits_no_longer_than_its_timeout) {
    int kind;
    for (kind = 0; kind < 4; kind++) {
        server s;
        delayq q;
        delayq_options o;
        int i, failed = 0;
        server_start(&s, NULL);
        o = options_for(&s, "jobs");
        o.io_timeout_ms = 5;
        delayq_open(&q, &o);
        UNTIL(frame(&q, kind) >= DELAYQ_OK);
        server_kill(&s, SIGSTOP);
        for (i = 0; i < 100; i++) {
            poll_now(&q); /* makes the next call send a request */
            failed += frame(&q, kind) < DELAYQ_OK;
            usleep(1000);
        }
        CHECK(failed > 0);
        server_kill(&s, SIGCONT);
        UNTIL(frame(&q, 2) == DELAYQ_OK);
        UNTIL(frame(&q, kind) >= DELAYQ_OK);
        delayq_close(&q);
        server_end(&s);
    }
}

TEST(a_frame_with_a_host_that_takes_no_connection_waits_no_longer) {
    const char *url = silent_host();
    int kind, i;
    for (kind = 0; kind < 4; kind++) {
        delayq q;
        delayq_options o;
        memset(&o, 0, sizeof o);
        o.name = "jobs";
        o.url = url;
        o.io_timeout_ms = 5;
        over_ms = 0;
        CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_TIMEOUT);
        CHECK(over_ms <= 6);
        CHECK_HAS(delayq_errmsg(&q), "127.0.0.1");
        for (i = 0; i < 100; i++) {
            CHECK(frame(&q, kind) < DELAYQ_OK);
            usleep(2000);
        }
        CHECK_HAS(delayq_errmsg(&q), "in time");
        delayq_close(&q);
    }
}

TEST(a_dead_first_host_leaves_time_for_the_second) {
    char text[16], url[96];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    server s;
    delayq q;
    delayq_options o;
    snprintf(text, sizeof text, "%d", free_port());
    server_start(&s, with);
    o = options_for(&s, "jobs");
    o.url = url;
    o.connect_timeout_ms = 400 * test_slow();
    snprintf(url, sizeof url, "%s,127.0.0.1:%s", silent_host(), text);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    delayq_close(&q);
    server_end(&s);
}

/* --- a waiting take ------------------------------------------------------ */

static volatile int *told; /* in shared memory: the number of logged faults */
static void count_log(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)text;
    if (status != DELAYQ_OK) ++*told; /* DELAYQ_OK: an event, not a fault */
}

/* Resume the server after two attempts have been logged. */
static void thaw(void *argument) {
    server *s = (server *)argument;
    UNTIL(*told >= 2);
    kill(s->pid, SIGCONT);
}

/* An attempt to connect goes on after the call that began it. If the attempt
 * has timed out before the next call, that call begins another one. */
TEST(a_call_does_not_fail_of_an_attempt_that_nobody_looked_after) {
    server s;
    delayq q = {0};
    delayq_options o;
    server_start(&s, NULL);
    o = options_for(&s, "q");
    o.connect_timeout_ms = 400;
    o.io_timeout_ms = 200;
    server_kill(&s, SIGSTOP);
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_TIMEOUT);
    usleep(600000);
    server_kill(&s, SIGCONT);
    OK(&q, delayq_offer(&q, "x", 1, 0));
    delayq_close(&q);
    server_end(&s);
}

TEST(a_waiting_take_waits_out_a_frozen_server) {
    server s;
    delayq q;
    delayq_item item;
    delayq_options o;
    pid_t child;
    server_start(&s, NULL);
    o = options_for(&s, "jobs");
    told = (volatile int *)shared(sizeof *told);
    o.log = count_log;
    /* short, because the resumed server may lease items to a closed
     * connection */
    o.lease_ms = 500;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 100);
    q.options.io_timeout_ms = 50 * test_slow();
    q.options.connect_timeout_ms = 50 * test_slow();
    server_kill(&s, SIGSTOP);
    child = spawn(thaw, &s);
    OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
    CHECK(*told >= 2);
    delayq_close(&q);
    join(child);
    server_end(&s);
}

/* After a success the handle again reconnects at once if the connection is
 * lost. */
TEST(attempts_that_have_failed_do_not_count_after_one_that_has_not) {
    server s;
    delayq q;
    delayq_options o;
    int64_t wait;
    server_start(&s, NULL);
    o = options_for(&s, "jobs");
    o.reconnect_max_ms = 200;
    OK(&q, delayq_open(&q, &o));
    server_kill(&s, SIGKILL);
    UNTIL((delayq_tick(&q, &wait), q.conn->cmd.failures >= 3));
    server_start_again(&s, NULL);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK);
    CHECK_INT(q.conn->cmd.failures, 0);
    delayq_close(&q);
    server_end(&s);
}

/* --- packets that get lost ----------------------------------------------- */

static void set_loopback(int up) {
    struct ifreq r;
    int fd = socket(AF_INET, SOCK_DGRAM, 0);
    memset(&r, 0, sizeof r);
    memcpy(r.ifr_name, "lo", 3);
    CHECK(ioctl(fd, SIOCGIFFLAGS, &r) == 0);
    r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    CHECK(ioctl(fd, SIOCSIFFLAGS, &r) == 0);
    close(fd);
}

TEST(lost_packets_cost_the_timeout_and_no_item) {
    char text[16], url[96];
    const char *with[] = {"--port", text, "--bind", "127.0.0.1", NULL};
    server s;
    delayq q;
    delayq_item item;
    delayq_options o;
    delayq_message m;
    delayq_status status;
    long long since;
    int i, n = 0;
    if (unshare(CLONE_NEWNET) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWNET))
        test_skip("no network namespace of its own");
    set_loopback(1);
    snprintf(text, sizeof text, "%d", free_port());
    server_start(&s, with);
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.url = url;
    o.io_timeout_ms = 20000 * test_slow();
    o.connect_timeout_ms = 2000 * test_slow();
    o.lease_ms = 60000;
    snprintf(url, sizeof url, "redis://127.0.0.1:%s", text);
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    for (i = 0; i < 2; i++) {
        memset(&m, 0, sizeof m);
        m.data = "x";
        m.len = 1;
        /* The system goes on sending the first offer. It must arrive before the
         * item is delivered. */
        m.delay_ms = 500 * test_slow();
        set_loopback(0);
        q.options.io_timeout_ms = q.options.connect_timeout_ms = 100;
        status = delayq_offer_message(&q, &m);
        CHECK(status < DELAYQ_OK);
        CHECK(status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_IO ||
              status == DELAYQ_ERR_TIMEOUT);
        status = delayq_take(&q, &item, 50);
        CHECK(status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT);
        set_loopback(1);
        q.options.io_timeout_ms = o.io_timeout_ms;
        q.options.connect_timeout_ms = o.connect_timeout_ms;
        since = now_us();
        /* The same message is offered again. It is stored once, even if the
         * first offer had arrived. */
        UNTIL(delayq_offer_message(&q, &m) == DELAYQ_OK);
        report_row("packets lost for a while",
                   "`ERR_UNKNOWN`, then `ERR_TIMEOUT`",
                   "offered again, stored once", now_us() - since);
        while (delayq_take(&q, &item, 5000 * test_slow()) == DELAYQ_OK) {
            n++;
            OK(&q, delayq_ack(&q, &item));
            if (n == i + 1) break;
        }
        CHECK_INT(n, i + 1);
        CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    }
    delayq_close(&q);
    server_end(&s);
}
