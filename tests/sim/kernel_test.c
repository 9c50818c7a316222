/*
 * Compare the simulator's sockets (world.h) with those of Linux. The same
 * random calls are made at both ends of a connection of the kernel and of a
 * simulated one. The results of the calls, and the bytes that reach the server,
 * must be equal.
 *
 *     cc -std=gnu99 -D_GNU_SOURCE -O2 -o kernel_test tests/sim/kernel_test.c \
 *         tests/sim/world.c tests/sim/net.c tests/sim/sys.c \
 *         @tests/sim/wrap.txt
 *     kernel_test [runs [seed]]
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "world.h"

typedef enum step {
    WRITE,
    READ,
    READ_3, /* reads at most 3 bytes */
    POLL,
    ERROR, /* SO_ERROR */
    CLOSE,
    SERVER_WRITE,
    SERVER_CLOSE,
    FREEZE, /* the server reads and accepts nothing */
    THAW
} step;

#define MOST_STEPS 16

static step steps[MOST_STEPS];
static int step_count, begins_frozen;

/* --- what happened ------------------------------------------------------- */

typedef struct record {
    char text[4000];
    size_t len;
} record;

static record kernels, ours, *current;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...) {
    va_list args;
    int n;
    va_start(args, format);
    n = vsnprintf(current->text + current->len,
                  sizeof current->text - current->len, format, args);
    va_end(args);
    current->len += (size_t)n;
}

static void begin_record(record *r) {
    current = r;
    r->len = 0;
    r->text[0] = '\0';
}

/* --- the client's end: the same code for both ---------------------------- */

static int client = -1;

static void client_connect(const char *address, int port) {
    struct sockaddr_in to;
    memset(&to, 0, sizeof to);
    to.sin_family = AF_INET;
    to.sin_port = htons((unsigned short)port);
    inet_pton(AF_INET, address, &to.sin_addr);
    client = socket(AF_INET, SOCK_STREAM, 0);
    fcntl(client, F_SETFL, O_NONBLOCK);
    connect(client, (struct sockaddr *)&to, sizeof to);
}

static void client_close(void) {
    if (client >= 0) close(client);
    client = -1;
}

static void client_step(step what) {
    char bytes[100];
    struct pollfd p;
    int error = 0;
    long n = 0;
    socklen_t size = sizeof error;
    if (client < 0) return;
    p.fd = client;
    p.events = POLLIN | POLLOUT;
    switch (what) {
    case WRITE: n = write(client, "PING\n", 5); break;
    case READ: n = read(client, bytes, sizeof bytes); break;
    case READ_3: n = read(client, bytes, 3); break;
    case POLL:
        poll(&p, 1, 0);
        note(" poll %x", (unsigned)p.revents);
        return;
    case ERROR:
        getsockopt(client, SOL_SOCKET, SO_ERROR, &error, &size);
        note(" error %d", error);
        return;
    case CLOSE:
        client_close();
        note(" close");
        return;
    default: return;
    }
    note(" %s %ld", what == WRITE ? "write" : "read", n);
    if (n < 0) note(" (%s)", strerror(errno));
}

/* --- the kernel's -------------------------------------------------------- */

static int listening, port, server = -1, accepted, frozen, nap_us;

static void kernel_listen(void) {
    struct sockaddr_in at;
    socklen_t size = sizeof at;
    listening = socket(AF_INET, SOCK_STREAM, 0);
    fcntl(listening, F_SETFL, O_NONBLOCK);
    if (listen(listening, 5) != 0 ||
        getsockname(listening, (struct sockaddr *)&at, &size) != 0) {
        perror("kernel_test");
        exit(1);
    }
    port = ntohs(at.sin_port);
}

/* Let the server read all bytes, and close if the client has closed. */
static void kernel_serve(void) {
    char bytes[1000];
    long n, all = 0;
    usleep((useconds_t)nap_us);
    if (frozen) return;
    if (!accepted) {
        server = accept(listening, NULL, NULL);
        if (server < 0) return;
        accepted = 1;
        fcntl(server, F_SETFL, O_NONBLOCK);
    }
    if (server < 0) return;
    while ((n = read(server, bytes, sizeof bytes)) > 0) all += n;
    if (all > 0) note(" [%ld come]", all);
    if (n < 0 && errno == EAGAIN) return;
    note(" [closed]");
    close(server);
    server = -1;
}

static void kernel_step(step what) {
    switch (what) {
    case SERVER_WRITE:
        if (server < 0 || frozen) return;
        note(" server writes");
        if (write(server, "+PONG\r\n", 7) != 7) note(" in vain");
        return;
    case SERVER_CLOSE:
        if (server < 0) return;
        note(" server closes");
        close(server);
        server = -1;
        return;
    case FREEZE: frozen = 1; return;
    case THAW: frozen = 0; return;
    default: client_step(what);
    }
}

static void run_kernel(void) {
    int i;
    begin_record(&kernels);
    frozen = begins_frozen;
    accepted = 0;
    client_connect("127.0.0.1", port);
    kernel_serve();
    for (i = 0; i < step_count; i++) {
        kernel_step(steps[i]);
        kernel_serve();
        kernel_serve(); /* the first call may have caused more input */
    }
    frozen = 0;
    kernel_serve();
    client_close();
    kernel_serve();
    if (server >= 0) close(server);
    server = -1;
    while ((i = accept(listening, NULL, NULL)) >= 0) close(i);
}

/* --- ours ---------------------------------------------------------------- */

static machine *here, *there;
static net_link *link_;
static size_t came;

static void *our_accepted(void *service, net_link *l) {
    (void)service;
    link_ = l;
    return l;
}

static void our_received(void *session, const char *bytes, size_t len) {
    (void)session;
    (void)bytes;
    came += len;
}

static void note_what_came(void) {
    if (came > 0) note(" [%zu come]", came);
    came = 0;
}

static void our_closed(void *session) {
    (void)session;
    note_what_came();
    note(" [closed]");
    link_ = NULL;
}

static void our_serve(void) {
    process_sleep(5000);
    note_what_came();
}

static void our_step(step what) {
    switch (what) {
    case SERVER_WRITE:
        if (!link_ || frozen) return;
        note(" server writes");
        link_write(link_, "+PONG\r\n", 7);
        return;
    case SERVER_CLOSE:
        if (!link_) return;
        note(" server closes");
        link_close(link_);
        link_ = NULL;
        return;
    case FREEZE:
        frozen = 1;
        machine_freeze(there);
        return;
    case THAW:
        frozen = 0;
        machine_thaw(there);
        return;
    default: client_step(what);
    }
}

static void our_process(void *arg) {
    sigset_t set;
    int i;
    (void)arg;
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    frozen = 0;
    if (begins_frozen) our_step(FREEZE);
    client_connect("10.0.0.1", 6379);
    our_serve();
    for (i = 0; i < step_count; i++) {
        our_step(steps[i]);
        our_serve();
    }
    our_step(THAW);
    our_serve();
    client_close();
    our_serve();
}

static void run_ours(uint64_t seed) {
    static const net_service how = {our_accepted, our_received, our_closed};
    begin_record(&ours);
    link_ = NULL;
    came = 0;
    sim_begin(seed);
    there = machine_new("there", "10.0.0.1");
    here = machine_new("here", "10.0.0.2");
    net_listen(there, 6379, &how, NULL);
    process_start(here, "client", our_process, NULL);
    sim_run(10 * SIM_SECOND);
    sim_end();
}

/* --- */

static void choose_steps(uint64_t seed) {
    static const step often[] = {
        WRITE, WRITE,        WRITE,        READ,   READ,        READ_3,
        POLL,  POLL,         POLL,         ERROR,  CLOSE,       FREEZE,
        THAW,  SERVER_WRITE, SERVER_WRITE, FREEZE, SERVER_CLOSE};
    int i;
    sim_begin(seed);
    step_count = (int)sim_between(3, MOST_STEPS);
    begins_frozen = sim_chance(20);
    for (i = 0; i < step_count; i++)
        steps[i] = often[sim_between(0, sizeof often / sizeof *often - 1)];
    sim_end();
}

/* Returns 1 if both records are equal. The kernel needs real time, so after a
 * difference both runs are repeated with longer naps. */
static int is_same(uint64_t seed) {
    for (nap_us = 300; nap_us < 100000; nap_us *= 6) {
        run_kernel();
        run_ours(seed);
        if (strcmp(kernels.text, ours.text) == 0) return 1;
    }
    printf("seed %llu\n  Linux:%s\n  ours: %s\n", (unsigned long long)seed,
           kernels.text, ours.text);
    return 0;
}

int main(int argc, char **argv) {
    uint64_t runs = argc > 1 ? strtoull(argv[1], NULL, 10) : 500, i;
    uint64_t first = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    unsigned failures = 0;
    signal(SIGPIPE, SIG_IGN);
    kernel_listen();
    for (i = 0; i < runs; i++) {
        choose_steps(first + i);
        failures += !is_same(first + i);
    }
    printf("%llu passed, %u failed, 0 skipped\n",
           (unsigned long long)(runs - failures), failures);
    return failures != 0;
}
