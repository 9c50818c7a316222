/*
 * Tests of the world without delayq: hiredis uses a small service. Every
 * program that runs in the world is built like this one:
 *
 *     cc -std=gnu99 -D_GNU_SOURCE -O2 -o world_test tests/sim/world_test.c \
 *         tests/sim/world.c tests/sim/net.c tests/sim/sys.c \
 *         -l:libhiredis.a @tests/sim/wrap.txt
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>
#include "world.h"

static int passed, failures;

#define CHECK(true_) check((true_), #true_, __LINE__)

static void check(int is_true, const char *what, int line) {
    if (is_true)
        passed++;
    else
        failures++;
    if (!is_true) printf("line %d: not %s\n", line, what);
}

/* --- a service that answers each line PING ------------------------------- */

typedef struct session {
    net_link *link;
    char *line;
    size_t len;
} session;

static int accepted_count, closed_count, received_count;

static void *echo_accepted(void *service, net_link *l) {
    session *s = calloc(1, sizeof *s);
    (void)service;
    s->link = l;
    accepted_count++;
    return s;
}

static void echo_received(void *arg, const char *bytes, size_t len) {
    session *s = arg;
    size_t i;
    received_count++;
    for (i = 0; i < len; i++)
        if (bytes[i] == 'G') link_write(s->link, "+PONG\r\n", 7);
}

static void echo_closed(void *arg) {
    closed_count++;
    free(arg);
}

static const net_service echo = {echo_accepted, echo_received, echo_closed};

static machine *server, *here;

static void begin(uint64_t seed) {
    sim_begin(seed);
    server = machine_new("server", "10.0.0.1");
    here = machine_new("here", "10.0.0.2");
    net_listen(server, 6379, &echo, NULL);
    accepted_count = closed_count = received_count = 0;
}

/* --- what a process does at a socket ------------------------------------- */

static int pongs;
static int fd = -1;

/* Start a process. Tests CHECK in the process, or after its end. */
static process *start(const char *name, void (*main)(void *arg)) {
    return process_start(here, name, main, NULL);
}

static int begin_connect(const char *address, int port) {
    struct sockaddr_in to;
    int s = socket(AF_INET, SOCK_STREAM, 0);
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((unsigned short)port);
    inet_pton(AF_INET, address, &to.sin_addr);
    fcntl(s, F_SETFL, fcntl(s, F_GETFL) | O_NONBLOCK);
    CHECK(connect(s, (struct sockaddr *)&to, sizeof to) == -1);
    CHECK(errno == EINPROGRESS);
    return s;
}

static int revents(int s, int events, int timeout_ms) {
    struct pollfd p;
    p.fd = s;
    p.events = (short)events;
    p.revents = 0;
    return poll(&p, 1, timeout_ms) < 0 ? -1 : p.revents;
}

static int socket_error(int s) {
    int error = -1;
    socklen_t size = sizeof error;
    CHECK(getsockopt(s, SOL_SOCKET, SO_ERROR, &error, &size) == 0);
    return error;
}

static void connected(void) {
    fd = begin_connect("10.0.0.1", 6379);
    CHECK(revents(fd, POLLOUT, -1) == POLLOUT);
    CHECK(socket_error(fd) == 0);
}

/* Returns the result of read: a length, or -errno. */
static long reads(void) {
    char bytes[4096];
    long n = read(fd, bytes, sizeof bytes);
    return n < 0 ? -errno : n;
}

static long writes(const char *text) {
    long n = write(fd, text, strlen(text));
    return n < 0 ? -errno : n;
}

static int64_t monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SIM_SECOND + t.tv_nsec / 1000;
}

static void block_sigpipe(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

static void sleep_ms(int ms) {
    process_sleep(ms * 1000);
}

/* --- the simple case ----------------------------------------------------- */

static void pings(void *arg) {
    int n = *(int *)arg;
    redisContext *c = redisConnect("10.0.0.1", 6379);
    CHECK(c && !c->err);
    while (n-- > 0) {
        redisReply *r = redisCommand(c, "PING");
        if (r && strcmp(r->str, "PONG") == 0) pongs++;
        freeReplyObject(r);
    }
    redisFree(c);
}

static void hiredis_gets_answers(void) {
    int n = 1000;
    begin(1);
    pongs = 0;
    process_start(here, "a", pings, &n);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1000);
    CHECK(accepted_count == 1);
    CHECK(closed_count == 1);
    sim_end();
}

static void pings_by_name(void *arg) {
    redisContext *c = redisConnectNonBlock("server", 6379);
    int done = 0;
    void *reply = NULL;
    (void)arg;
    CHECK(c && !c->err);
    CHECK(revents(c->fd, POLLOUT, 1000) == POLLOUT);
    redisAppendCommand(c, "PING");
    CHECK(redisBufferWrite(c, &done) == REDIS_OK && done);
    CHECK(redisBufferRead(c) == REDIS_OK); /* no bytes yet */
    CHECK(redisGetReplyFromReader(c, &reply) == REDIS_OK && !reply);
    CHECK(revents(c->fd, POLLIN, 1000) == POLLIN);
    CHECK(redisBufferRead(c) == REDIS_OK);
    CHECK(redisGetReplyFromReader(c, &reply) == REDIS_OK && reply);
    pongs += reply != NULL;
    freeReplyObject(reply);
    redisFree(c);
}

static void hiredis_connects_to_a_name(void) {
    begin(2);
    pongs = 0;
    start("a", pings_by_name);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

/* --- connects ------------------------------------------------------------ */

static void is_refused(void *arg) {
    (void)arg;
    fd = begin_connect("10.0.0.1", 1);
    CHECK(revents(fd, POLLOUT, 0) == 0);
    CHECK(revents(fd, POLLOUT | POLLIN, -1) ==
          (POLLOUT | POLLIN | POLLERR | POLLHUP));
    CHECK(socket_error(fd) == ECONNREFUSED);
    CHECK(socket_error(fd) == 0);
    CHECK(revents(fd, POLLOUT | POLLIN, -1) == (POLLOUT | POLLIN | POLLHUP));
    CHECK(reads() == 0);
    block_sigpipe();
    CHECK(writes("PING\n") == -EPIPE);
    CHECK(close(fd) == 0);
    CHECK(close(fd) == -1 && errno == EBADF);
    pongs++;
}

static void a_connect_is_refused(void) {
    begin(3);
    pongs = 0;
    start("a", is_refused);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

static void gets_no_answer(void *arg) {
    int64_t then = monotonic();
    (void)arg;
    fd = begin_connect("10.0.0.1", 6379);
    CHECK(revents(fd, POLLOUT, 2000) == 0);
    CHECK(monotonic() - then >= 2000000 && monotonic() - then < 2001000);
    CHECK(writes("PING\n") == -EAGAIN);
    CHECK(reads() == -EAGAIN);
    CHECK(revents(fd, POLLOUT, -1) != 0);
    pongs = socket_error(fd);
    close(fd);
}

static void a_silent_connect_ends_after_two_minutes(void) {
    begin(4);
    pongs = -1;
    net_connects_are(here, server, NET_SILENT);
    start("a", gets_no_answer);
    sim_run(126 * SIM_SECOND);
    CHECK(pongs == -1);
    sim_run(128 * SIM_SECOND);
    CHECK(pongs == ETIMEDOUT);
    sim_end();
}

static void hears_again(void *arg) {
    (void)arg;
    net_connects_are(here, server, NET_CONNECTS);
}

static void a_silent_connect_goes_on(void) {
    begin(5);
    pongs = -1;
    net_connects_are(here, server, NET_SILENT);
    start("a", gets_no_answer);
    sim_at(20 * SIM_SECOND, hears_again, NULL);
    sim_run(30 * SIM_SECOND);
    CHECK(pongs == 0);
    CHECK(accepted_count == 1);
    sim_end();
}

static void a_crashed_machine_does_not_answer(void) {
    begin(6);
    pongs = -1;
    machine_crash(server);
    start("a", gets_no_answer);
    sim_run(30 * SIM_SECOND);
    CHECK(pongs == -1);
    machine_boot(server); /* nobody listens */
    sim_run(40 * SIM_SECOND);
    CHECK(pongs == ECONNREFUSED);
    sim_end();
}

/* --- the other side closes ----------------------------------------------- */

static void reads_the_end(void *arg) {
    (void)arg;
    connected();
    CHECK(writes("PING\n") == 5);
    sleep_ms(100); /* so that the answer arrives before the FIN */
    net_close(server, 6379);
    sleep_ms(100);
    CHECK(revents(fd, POLLIN | POLLOUT, 0) == (POLLIN | POLLOUT));
    CHECK(reads() == 7);
    CHECK(reads() == 0);
    CHECK(reads() == 0);
    CHECK(writes("PING\n") == 5); /* the other side answers with a reset */
    sleep_ms(100);
    CHECK(revents(fd, POLLIN | POLLOUT, 0) ==
          (POLLIN | POLLOUT | POLLERR | POLLHUP));
    CHECK(reads() == 0);
    block_sigpipe();
    CHECK(writes("PING\n") == -EPIPE);
    CHECK(writes("PING\n") == -EPIPE);
    pongs++;
}

static void a_server_that_ends_is_an_end(void) {
    begin(7);
    pongs = 0;
    start("a", reads_the_end);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    CHECK(closed_count == 0);
    sim_end();
}

static void is_reset(void *arg) {
    (void)arg;
    connected();
    CHECK(writes("PING\n") == 5);
    sleep_ms(100);
    machine_crash(server);
    machine_boot(server);
    CHECK(writes("PING\n") == 5);
    sleep_ms(3000);
    CHECK(revents(fd, POLLIN | POLLOUT, 0) ==
          (POLLIN | POLLOUT | POLLERR | POLLHUP));
    CHECK(reads() == 7);
    CHECK(reads() == -ECONNRESET);
    CHECK(reads() == 0);
    CHECK(revents(fd, POLLIN | POLLOUT, 0) == (POLLIN | POLLOUT | POLLHUP));
    block_sigpipe();
    CHECK(writes("PING\n") == -EPIPE);
    pongs++;
}

static void a_booted_machine_resets(void) {
    begin(8);
    pongs = 0;
    start("a", is_reset);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

static void writes_into_a_reset(void *arg) {
    (void)arg;
    connected();
    machine_crash(server);
    machine_boot(server);
    CHECK(writes("PING\n") == 5);
    sleep_ms(3000);
    CHECK(writes("PING\n") == -ECONNRESET);
    pongs++;
    CHECK(writes("PING\n") == -EPIPE); /* SIGPIPE is not blocked */
    pongs++;
}

static void sigpipe_kills(void) {
    process *p;
    begin(9);
    pongs = 0;
    p = start("a", writes_into_a_reset);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    CHECK(process_ended(p));
    sim_end();
}

static void a_blocked_sigpipe_can_be_taken(void *arg) {
    struct timespec none = {0, 0};
    sigset_t set, old;
    (void)arg;
    connected();
    net_close(server, 6379);
    sleep_ms(10);
    writes("PING\n");
    sleep_ms(10);
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set, &old);
    CHECK(sigismember(&old, SIGPIPE) == 0);
    CHECK(writes("PING\n") == -EPIPE);
    CHECK(sigtimedwait(&set, NULL, &none) == SIGPIPE);
    CHECK(sigtimedwait(&set, NULL, &none) == -1 && errno == EAGAIN);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pongs++;
}

static void sigpipe_is_as_in_linux(void) {
    begin(10);
    pongs = 0;
    start("a", a_blocked_sigpipe_can_be_taken);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

/* --- processes that are killed ------------------------------------------- */

static void writes_and_sleeps(void *arg) {
    (void)arg;
    connected();
    writes("PING\n");
    if (arg) reads();
    sleep_ms(1000000);
    CHECK(0);
}

static void a_killed_process_closes(void) {
    process *p;
    begin(11);
    p = start("a", writes_and_sleeps);
    sim_run(SIM_SECOND);
    CHECK(received_count == 1);
    CHECK(closed_count == 0);
    process_kill(p);
    CHECK(process_ended(p));
    sim_run(2 * SIM_SECOND);
    CHECK(closed_count == 1);
    sim_end();
}

static void what_was_written_arrives(void) {
    process *p;
    begin(12);
    net_route(here, server)->latency_us = SIM_SECOND;
    p = start("a", writes_and_sleeps);
    sim_run(SIM_SECOND * 3 / 2);
    CHECK(received_count == 0);
    process_kill(p);
    sim_run(5 * SIM_SECOND);
    CHECK(received_count == 1);
    CHECK(closed_count == 1);
    sim_end();
}

static void kills_itself(void *arg) {
    connected();
    process_kill(process_self());
    (void)arg;
    CHECK(0);
}

static void one_can_kill_oneself(void) {
    int i;
    begin(13);
    for (i = 0; i < 50; i++) start("a", kills_itself);
    sim_run(5 * SIM_SECOND);
    CHECK(closed_count == 50);
    sim_end();
}

/* --- frozen -------------------------------------------------------------- */

static void waits_for_pong(void *arg) {
    int64_t then;
    (void)arg;
    connected();
    CHECK(writes("PING\n") == 5);
    then = sim_now();
    CHECK(revents(fd, POLLIN, -1) == POLLIN);
    pongs = (int)((sim_now() - then) / SIM_SECOND);
}

/* A frozen machine's kernel still runs, so connects succeed. */
static void a_frozen_server_has_a_backlog(void) {
    begin(14);
    pongs = -1;
    machine_freeze(server);
    start("a", waits_for_pong);
    sim_run(5 * SIM_SECOND);
    CHECK(accepted_count == 0);
    machine_thaw(server);
    sim_run(6 * SIM_SECOND);
    CHECK(accepted_count == 1);
    CHECK(pongs == 4);
    sim_end();
}

static void fills_the_buffer(void *arg) {
    static char many[70000];
    long n, all = 0;
    (void)arg;
    memset(many, 'G', sizeof many);
    connected();
    while ((n = write(fd, many, sizeof many)) > 0) {
        all += n;
        sleep_ms(10);
    }
    CHECK(n == -1 && errno == EAGAIN);
    CHECK(all >= 4000 && all <= 200000);
    CHECK(revents(fd, POLLOUT, 1000) == 0);
    machine_thaw(server);
    CHECK(revents(fd, POLLOUT, 1000) == POLLOUT);
    pongs = (int)all;
    while (all > 0) {
        revents(fd, POLLIN, -1);
        n = read(fd, many, sizeof many);
        if (n <= 0) break;
        all -= n / 7;
        CHECK(n % 7 == 0);
    }
    CHECK(all == 0);
}

static void a_frozen_server_makes_writers_wait(void) {
    begin(15);
    pongs = 0;
    start("a", fills_the_buffer);
    machine_freeze(server);
    sim_run(20 * SIM_SECOND);
    CHECK(pongs > 0);
    sim_end();
}

static void counts(void *arg) {
    for (;;) {
        struct timespec t = {0, 10000000};
        nanosleep(&t, NULL);
        ++*(int *)arg;
    }
}

static void a_frozen_process_stands(void) {
    process *p;
    int n = 0;
    begin(16);
    p = process_start(here, "a", counts, &n);
    sim_run(SIM_SECOND);
    CHECK(n >= 98 && n <= 100);
    n = 0;
    process_freeze(p);
    sim_run(2 * SIM_SECOND);
    CHECK(n == 0);
    process_thaw(p);
    sim_run(3 * SIM_SECOND);
    CHECK(n >= 98 && n <= 101);
    sim_end();
}

/* --- faults of the network ----------------------------------------------- */

static void sees_a_cut(void *arg) {
    (void)arg;
    connected();
    net_cut(here, server);
    CHECK(revents(fd, POLLIN, 1000) != 0);
    pongs = (int)reads();
}

static void a_cut_ends_both(void) {
    int i, ends = 0, resets = 0;
    for (i = 0; i < 100; i++) {
        begin(100 + (uint64_t)i);
        pongs = 1;
        start("a", sees_a_cut);
        sim_run(10 * SIM_SECOND);
        CHECK(accepted_count == closed_count);
        ends += pongs == 0;
        resets += pongs == -ECONNRESET;
        sim_end();
    }
    CHECK(ends + resets == 100);
    CHECK(ends > 10 && resets > 50);
}

static machine *told;

static void is_forgotten(void *arg) {
    int64_t then;
    (void)arg;
    connected();
    sleep_ms(10);
    net_forget(here, server, told, 0);
    then = sim_now();
    if (told == here) {
        CHECK(revents(fd, POLLIN, 1000) != 0);
        CHECK(reads() == -ECONNRESET);
    } else {
        CHECK(revents(fd, POLLIN, 5000) == 0);
        CHECK(sim_now() - then >= 5 * SIM_SECOND);
        CHECK(writes("PING\n") == 5);
        pongs = revents(fd, POLLIN, 5000);
    }
    if (pongs == 0) CHECK(revents(fd, POLLIN, -1) != 0);
    if (told != here) CHECK(reads() == -ECONNRESET);
    pongs = 100;
}

static void a_half_open_connection_shows_when_it_is_used(void) {
    int i;
    for (i = 0; i < 3; i++) {
        begin(17);
        pongs = -1;
        told = i == 0 ? here : i == 1 ? server : NULL;
        start("a", is_forgotten);
        sim_run(20 * SIM_SECOND);
        CHECK(pongs == (told ? 100 : 0));
        CHECK(closed_count == (told == server));
        net_tell_truth();
        sim_run(30 * SIM_SECOND);
        CHECK(pongs == 100);
        CHECK(closed_count == accepted_count);
        CHECK(received_count == 0);
        sim_end();
    }
}

static void heal(void *arg) {
    (void)arg;
    net_route(server, here)->stalled = 0;
    net_heal(here, server);
}

static void a_stalled_route_delivers_later(void) {
    begin(18);
    pongs = -1;
    start("a", waits_for_pong);
    sim_run(400);
    net_route(server, here)->stalled = 1;
    sim_at(7 * SIM_SECOND, heal, NULL);
    sim_run(SIM_SECOND * 6);
    CHECK(received_count == 1);
    CHECK(pongs == -1);
    sim_run(SIM_SECOND * 10);
    CHECK(pongs == 6 || pongs == 7);
    sim_end();
}

static void tears_keep_the_order(void) {
    int n = 300;
    begin(19);
    pongs = 0;
    net_route(here, server)->pieces = net_route(server, here)->pieces = 100;
    process_start(here, "a", pings, &n);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 300);
    CHECK(received_count > 600);
    sim_end();
}

/* If the PONG is still in flight at the boot, it is answered by a reset. */
static void a_crashed_client_is_known_when_it_is_told(int64_t when) {
    begin(20);
    start("a", writes_and_sleeps);
    net_route(here, server)->latency_us = SIM_SECOND / 10;
    net_route(server, here)->latency_us = when;
    sim_run(350000);
    CHECK(received_count == 1);
    machine_crash(here);
    sim_run(2 * SIM_SECOND);
    CHECK(closed_count == 0);
    machine_boot(here);
    sim_run(5 * SIM_SECOND);
    CHECK(closed_count == (when > 1000));
    net_tell_truth();
    sim_run(6 * SIM_SECOND);
    CHECK(closed_count == 1);
    sim_end();
}

/* --- clocks, pipes, chance ----------------------------------------------- */

static void looks_at_clocks(void *arg) {
    struct timespec t, u;
    int64_t m = monotonic(), then = sim_now();
    int i = 0;
    (void)arg;
    clock_gettime(CLOCK_REALTIME, &t);
    CHECK(t.tv_sec == SIM_EPOCH_US / SIM_SECOND);
    machine_set_clock(here, -100 * SIM_SECOND);
    clock_gettime(CLOCK_REALTIME, &u);
    CHECK(u.tv_sec == t.tv_sec - 100);
    machine_drift(here, 100000); /* a tenth too fast */
    process_sleep(10 * SIM_SECOND);
    m = monotonic() - m;
    CHECK(m > 10999000 && m < 11001000);
    then = sim_now();
    CHECK(poll(NULL, 0, 1100) == 0);
    CHECK(sim_now() - then >= 1000000 && sim_now() - then < 1000200);
    m = monotonic() + 80;
    while (monotonic() < m) i++;
    CHECK(i >= 60 && i <= 81);
    pongs++;
}

static void clocks_jump_and_drift(void) {
    begin(21);
    pongs = 0;
    start("a", looks_at_clocks);
    sim_run(20 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

static int ends[2];

static void waits_at_a_pipe(void *arg) {
    char bytes[10];
    (void)arg;
    CHECK(pipe(ends) == 0);
    CHECK(revents(ends[0], POLLIN, 100) == 0);
    CHECK(write(ends[1], "w", 1) == 1);
    CHECK(revents(ends[0], POLLIN, 100) == POLLIN);
    CHECK(read(ends[0], bytes, sizeof bytes) == 1);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    CHECK(read(ends[0], bytes, sizeof bytes) == -1 && errno == EAGAIN);
    CHECK(revents(ends[0], POLLIN, -1) == POLLIN);
    pongs = (int)(sim_now() / SIM_SECOND);
    CHECK(revents(-1, POLLIN, -1) == -1 && errno == EINTR);
    close(ends[1]);
    CHECK(revents(ends[0], POLLIN, -1) == (POLLIN | POLLHUP));
    CHECK(read(ends[0], bytes, sizeof bytes) == 1);
    CHECK(read(ends[0], bytes, sizeof bytes) == 0);
    pongs++;
}

static void wakes(void *arg) {
    (void)arg;
    CHECK(write(ends[1], "w", 1) == 1);
}

static void another_thread_can_write_to_a_pipe(void) {
    process *p;
    begin(22);
    pongs = 0;
    p = start("a", waits_at_a_pipe);
    sim_run(20 * SIM_SECOND);
    process_call(p, wakes, NULL);
    sim_run(21 * SIM_SECOND);
    CHECK(pongs == 20);
    process_signal(p);
    sim_run(22 * SIM_SECOND);
    CHECK(pongs == 21);
    sim_end();
}

static void spins(void *arg) {
    (void)arg;
    for (;;) monotonic();
}

static void who_asks_for_the_time_does_not_stop_it(void) {
    int n = 10;
    process *p;
    begin(23);
    pongs = 0;
    p = start("a", spins);
    process_start(here, "b", pings, &n);
    sim_run(SIM_SECOND);
    CHECK(pongs == 10);
    CHECK(sim_now() == SIM_SECOND);
    CHECK(process_calls(p) == 0);
    sim_end();
}

/* --- processes that are killed by their own calls ------------------------ */

static void *kills_accepted(void *service, net_link *l) {
    process_kill(link_process(l));
    return echo_accepted(service, l);
}

static const net_service killer = {kills_accepted, echo_received, echo_closed};

static void thaws_its_killer(void *arg) {
    (void)arg;
    fd = begin_connect("10.0.0.1", 1000);
    revents(fd, POLLOUT, -1);
    sleep_ms(10);
    machine_thaw(server); /* the server accepts, and kills this process */
    pongs++;
    writes("PING\n");
    CHECK(0);
}

static void a_server_may_kill_who_runs(void) {
    process *p;
    begin(24);
    pongs = 0;
    net_listen(server, 1000, &killer, NULL);
    machine_freeze(server);
    p = start("a", thaws_its_killer);
    sim_run(SIM_SECOND);
    CHECK(pongs == 1);
    CHECK(process_ended(p));
    CHECK(accepted_count == 1);
    CHECK(closed_count == 1);
    sim_end();
}

static void crashes(void *arg) {
    (void)arg;
    connected();
    machine_crash(here);
    CHECK(0);
}

static void one_can_crash_ones_machine(void) {
    process *p;
    begin(25);
    p = start("a", crashes);
    sim_run(SIM_SECOND);
    CHECK(process_ended(p));
    CHECK(closed_count == 0);
    sim_end();
}

/* Make blocking calls, as hiredis' connect and 0.1 do. */
static void reads_with_a_timeout(void *arg) {
    redisContext *c = redisConnect("10.0.0.1", 6379);
    struct timeval t = {2, 0};
    int64_t then;
    int on = 1;
    (void)arg;
    fd = c->fd;
    CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) == 0);
    then = sim_now();
    CHECK(reads() == -EAGAIN);
    CHECK(sim_now() - then >= 2000000 && sim_now() - then < 2001000);
    ioctl(fd, FIONBIO, &on);
    CHECK(reads() == -EAGAIN);
    CHECK(sim_now() - then < 2001000);
    on = 0;
    ioctl(fd, FIONBIO, &on);
    CHECK(writes("PING\n") == 5);
    CHECK(reads() == 7);
    CHECK(writes("PING\n") == 5);
    sleep_ms(10);
    CHECK(ioctl(fd, FIONREAD, &on) == 0 && on == 7);
    CHECK(recv(fd, &on, 4, MSG_PEEK) == 4);
    CHECK(reads() == 7);
    CHECK(recv(fd, &on, 4, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    redisFree(c);
    pongs++;
}

static void a_read_blocks(void) {
    begin(26);
    pongs = 0;
    start("a", reads_with_a_timeout);
    sim_run(10 * SIM_SECOND);
    CHECK(pongs == 1);
    sim_end();
}

static void freezes_it(void *arg) {
    CHECK(!process_self());
    pongs = received_count;
    process_freeze(*(process **)arg);
}

static void kills_it(void *arg) {
    process_kill(*(process **)arg);
}

static void writes_twice(void *arg) {
    process **p = arg;
    connected();
    process_at_call(*p, 2, freezes_it, p);
    writes("PING\n");
    writes("PING\n");
    process_at_call(*p, 1, kills_it, p);
    writes("PING\n");
    CHECK(0);
}

static void faults_can_hit_any_call(void) {
    process *p;
    begin(27);
    pongs = -1;
    p = process_start(here, "a", writes_twice, &p);
    sim_run(SIM_SECOND);
    CHECK(pongs == 0);
    CHECK(received_count == 1);
    CHECK(!process_ended(p));
    process_thaw(p);
    sim_run(2 * SIM_SECOND);
    CHECK(received_count == 2);
    CHECK(process_ended(p));
    sim_end();
}

/* Send PINGs while faults strike. Runs of a seed must have the same hash. */
static void pings_in_vain(void *arg) {
    (void)arg;
    block_sigpipe();
    for (;;) {
        redisContext *c = redisConnect("10.0.0.1", 6379);
        struct timeval t = {0, 300000};
        while (c && !c->err) {
            redisReply *r;
            redisSetTimeout(c, t);
            r = redisCommand(c, "PING");
            freeReplyObject(r);
            sleep_ms((int)sim_between(0, 20));
        }
        redisFree(c);
        sleep_ms(100);
    }
}

static int faults_count;

static void one_fault(void *arg) {
    route *r = net_route(sim_chance(50) ? here : server, here);
    (void)arg;
    faults_count++;
    switch (sim_between(0, 9)) {
    case 0: net_cut(here, server); break;
    case 1: net_forget(here, server, here, 0); break;
    case 2: net_forget(here, server, server, 0); break;
    case 3: net_forget(here, server, NULL, 0); break;
    case 4: net_tell_truth(); break;
    case 5:
        r->stalled = !r->stalled;
        net_heal(here, server);
        break;
    case 6: machine_freeze(server); break;
    case 7: machine_thaw(server); break;
    case 8:
        machine_crash(server);
        machine_boot(server);
        net_listen(server, 6379, &echo, NULL);
        break;
    case 9:
        net_connects_are(here, server, (net_connects)sim_between(0, 2));
        break;
    }
    sim_at(sim_now() + sim_between(1, SIM_SECOND), one_fault, NULL);
}

static uint64_t storm(uint64_t seed, double *events) {
    uint64_t hash;
    process *p[10];
    int i;
    begin(seed);
    net_route(here, server)->pieces = 30;
    net_route(server, here)->pieces = 30;
    for (i = 0; i < 10; i++) p[i] = start("a", pings_in_vain);
    sim_at(1, one_fault, NULL);
    sim_run(60 * SIM_SECOND);
    for (i = 0; i < 10; i++) *events += (double)process_steps(p[i]);
    hash = sim_hash();
    sim_end();
    return hash;
}

static void a_seed_gives_the_same_run(void) {
    double events = 0;
    uint64_t i;
    for (i = 1; i < 20; i++) CHECK(storm(i, &events) == storm(i, &events));
    CHECK(storm(1, &events) != storm(2, &events));
    CHECK(events > 1000);
}

/* Measure the speed of the world, with ten processes that write and read. */
static void measure(void) {
    struct timespec a, b;
    process *p[10];
    double s, steps = 0;
    int i;
    clock_gettime(CLOCK_MONOTONIC, &a);
    begin(1);
    for (i = 0; i < 10; i++) p[i] = start("a", pings_in_vain);
    sim_run(3600 * SIM_SECOND);
    for (i = 0; i < 10; i++) steps += (double)process_steps(p[i]);
    s = received_count;
    sim_end();
    clock_gettime(CLOCK_MONOTONIC, &b);
    {
        double took = (double)(b.tv_sec - a.tv_sec) +
                      (double)(b.tv_nsec - a.tv_nsec) / 1e9;
        printf("an hour took %.2f s; %.0f requests and %.0f waits per second\n",
               took, s / took, steps / took);
    }
}

int main(int argc, char **argv) {
    sim_tells = argc > 1 && strcmp(argv[1], "-v") == 0;
    if (argc > 1 && strcmp(argv[1], "measure") == 0) {
        measure();
        return 0;
    }
    hiredis_gets_answers();
    hiredis_connects_to_a_name();
    a_connect_is_refused();
    a_silent_connect_ends_after_two_minutes();
    a_silent_connect_goes_on();
    a_crashed_machine_does_not_answer();
    a_server_that_ends_is_an_end();
    a_booted_machine_resets();
    sigpipe_kills();
    sigpipe_is_as_in_linux();
    a_killed_process_closes();
    what_was_written_arrives();
    one_can_kill_oneself();
    a_frozen_server_has_a_backlog();
    a_frozen_server_makes_writers_wait();
    a_frozen_process_stands();
    a_cut_ends_both();
    a_half_open_connection_shows_when_it_is_used();
    a_stalled_route_delivers_later();
    tears_keep_the_order();
    a_crashed_client_is_known_when_it_is_told(100);
    a_crashed_client_is_known_when_it_is_told(SIM_SECOND / 10);
    clocks_jump_and_drift();
    another_thread_can_write_to_a_pipe();
    who_asks_for_the_time_does_not_stop_it();
    a_server_may_kill_who_runs();
    one_can_crash_ones_machine();
    a_read_blocks();
    faults_can_hit_any_call();
    a_seed_gives_the_same_run();
    printf("%d passed, %d failed, 0 skipped\n", passed, failures);
    return failures != 0;
}
