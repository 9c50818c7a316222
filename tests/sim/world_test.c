/*
 * The world itself, without delayq: hiredis against a small service. Build it
 * as all that lives in this world is built:
 *
 *     cc -std=gnu99 -D_GNU_SOURCE -O2 -o world_test tests/sim/world_test.c \
 *         tests/sim/world.c tests/sim/net.c tests/sim/sys.c \
 *         -l:libhiredis.a @tests/sim/wrap.txt
 */
#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* --- */

static int pongs;

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

int main(int argc, char **argv) {
    sim_tells = argc > 1 && strcmp(argv[1], "-v") == 0;
    hiredis_gets_answers();
    printf("%d passed, %d failed\n", passed, failures);
    return failures != 0;
}
