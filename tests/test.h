/* Shared by all tests: test names that register themselves, checks that print
 * both values, private servers, and shorthands for queues. */
#ifndef TEST_H
#define TEST_H

#ifndef DELAYQ_HEADER /* tests/old.sh sets this to an old header */
#define DELAYQ_HEADER "../delayq.h"
#endif
/* A socket is connected at most three times in this many microseconds. The time
 * is short because the tests close many connections. A file can set it. */
#ifndef ATTEMPTS_US
#define ATTEMPTS_US 1
#endif
extern long test_attempts_us, test_slack_us; /* values for the current test */
#ifndef DQ_ATTEMPTS_US
#define DQ_ATTEMPTS_US test_attempts_us
#define DQ_SLACK_US test_slack_us
#endif
#include DELAYQ_HEADER
#include <hiredis/hiredis.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

/* --- sentences and checks ------------------------------------------------ */

struct test {
    const char *name, *file;
    void (*run)(void);
    int is_long;
    long attempts_us;
    struct test *next;
};
void test_register(struct test *t);

#define TEST(sentence) TEST_(sentence, 0)
/* A test that needs several seconds even if it runs alone. The runner starts
 * such tests first, so that it does not have to wait for them at the end. */
#define LONG_TEST(sentence) TEST_(sentence, 1)
#define TEST_(sentence, is_long)                                         \
    static void sentence(void);                                          \
    static struct test sentence##_test = {#sentence, __FILE__, sentence, \
                                          is_long, ATTEMPTS_US, NULL};   \
    __attribute__((constructor)) static void sentence##_register(void) { \
        test_register(&sentence##_test);                                 \
    }                                                                    \
    static void sentence(void)

void test_fail(const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4), noreturn));
void test_skip(const char *why) __attribute__((noreturn));

#define FAIL(...) test_fail(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(condition)                                  \
    do {                                                  \
        if (!(condition)) FAIL("not so: %s", #condition); \
    } while (0)
#define CHECK_INT(got, want)                                      \
    do {                                                          \
        long long g_ = (long long)(got), w_ = (long long)(want);  \
        if (g_ != w_) FAIL("%s is %lld, not %lld", #got, g_, w_); \
    } while (0)
#define CHECK_TEXT(got, want)                               \
    do {                                                    \
        const char *g_ = (got), *w_ = (want);               \
        if (strcmp(g_, w_) != 0)                            \
            FAIL("%s is \"%s\", not \"%s\"", #got, g_, w_); \
    } while (0)
#define CHECK_HAS(text, part)                                           \
    do {                                                                \
        const char *t_ = (text), *p_ = (part);                          \
        if (!strstr(t_, p_)) FAIL("\"%s\" doesn't say \"%s\"", t_, p_); \
    } while (0)
/* Compare the status of a call. If it is wrong, print the handle's text. */
#define CHECK_STATUS(q, call, want)                                            \
    do {                                                                       \
        delayq_status s_ = (call);                                             \
        if (s_ != (want))                                                      \
            FAIL("%s is %d (%s), not %d: %s", #call, s_, delayq_strstatus(s_), \
                 want, delayq_errmsg(q));                                      \
    } while (0)
#define OK(q, call) CHECK_STATUS(q, call, DELAYQ_OK)

#include "told.h"

long long now_us(void);
/* Wait until the condition is true. Fails after 20 s (later under valgrind). */
#define UNTIL(condition)                                                  \
    do {                                                                  \
        long long end_ = now_us() + 20000000LL * test_slow();             \
        while (!(condition)) {                                            \
            if (now_us() > end_) FAIL("never came true: %s", #condition); \
            usleep(1000);                                                 \
        }                                                                 \
    } while (0)
int test_slow(void);  /* time factor: 1, or more under ASan and valgrind */
int test_brief(void); /* 1: tests should do less (under valgrind, qemu) */
/* Returns the number of bytes from one cut of a connection to the next: `full`
 * in a full run, 7 * full by default, or `brief` if test_brief() is 1. */
int test_step(int full, int brief);
/* Returns zeroed memory that is shared with all processes that this one forks.
 * Tests use it for large arrays, since LSan would scan a static array at the
 * end of each process. */
void *shared(size_t size);
#define SHARED(type, n) ((type *)shared((n) * sizeof(type)))

/* Add a row to the table of faults in tests/README.md, which `make faults`
 * prints. */
void report_row(const char *fault, const char *seen, const char *items,
                long long back_us);

/* --- servers ------------------------------------------------------------- */

typedef struct server {
    pid_t pid;
    char dir[96], url[128], socket[112];
    int major, minor; /* version */
} server;

/* Start a private server, and load the scripts into it. So a reply that a test
 * loses is the reply of a script, not NOSCRIPT. `arguments` are those of
 * redis-server, with NULL at the end. */
void server_start(server *s, const char *const *arguments);
void load_scripts(redisContext *c);
void server_start_again(server *s, const char *const *arguments);
void server_kill(server *s, int sig);
/* Start a server whose clock can be set. Skips the test if there is no cc, or
 * if the system is not Linux. */
void server_start_with_clock(server *s);
/* Set the clock of that server to the real time plus `seconds`. Any process of
 * the test may call this. */
void server_set_clock(int seconds);
void server_end(server *s);
redisContext *server_connect(const server *s);
const char *server_program(void);
int is_keydb(void); /* Returns 1 if the main server is KeyDB. */
/* Returns 1 if the main server accepts CLIENT TRACKING, which reports pushes to
 * a handle. */
int can_track(void);
/* Returns 1 if the provider's profile (tests/hosted/) allows this command, also
 * in scripts, or if there is no profile. "TIME" also requires that the server's
 * time has microseconds, and "EVALSHA" that the server keeps its scripts. */
int server_can(const char *command);
/* Returns a free loopback port. The port 10,000 above it is free, too, for the
 * bus of a cluster. */
int free_port(void);
/* Returns the URL of a host that accepts no connection, because the backlog of
 * its listener is full. The listener stays open until the process ends. */
const char *silent_host(void);

/* The server of this worker process. It is emptied before each test. */
extern server main_server;

/* Run one command on a connection. Fails the test on an I/O error. */
redisReply *run(redisContext *c, const char *format, ...);
/* Run one command on the main server. Returns its reply, a number or a text. */
long long ask_int(const char *format, ...);
const char *ask(const char *format, ...); /* valid until the next call */
/* Returns the server's clock in microseconds since the epoch. */
long long server_us(redisContext *c);
/* Return the number of scripts that the server has run with EVALSHA, and the
 * number of connections that are subscribed to a channel. */
int scripts_run(redisContext *c);
int subscribers(redisContext *c, const char *channel);
/* Wait until the server's clock has advanced by `ms` whole milliseconds. After
 * 1 ms, items that were offered without a delay are due. */
void elapse(redisContext *c, int ms);
/* Returns all data of a server as one text. */
const char *contents(redisContext *c);
redisContext *main_connection(void);
/* Create a user of the main server with password pw, these rights, and all
 * channels. */
void acl_user(const char *user, const char *rights);
/* Create the user "half" with these rights. Returns this user's options for the
 * queue "jobs". Skips the test if the server is older than Redis 6. */
delayq_options options_with_rights(const char *rights);

/* --- queues -------------------------------------------------------------- */

/* The numbers of the wires: 0 is native, 1 is Redisson, 2 is the old Redisson.
 * In an old header the wires are an enum, and broadcast is another option. */
#define WIRES 3
#ifdef DELAYQ_BROADCAST
#define WIRE(n)                       \
    ((n) == 2   ? DELAYQ_REDISSON_OLD \
     : (n) == 1 ? DELAYQ_REDISSON     \
                : DELAYQ_NATIVE)
#define SET_BROADCAST(o) ((o).wire = DELAYQ_BROADCAST)
#define NOT_BROADCAST(o) ((o).wire = DELAYQ_NATIVE)
#define SET_POLL_MS(o, ms) ((o).poll_ms = (ms))
#else
#define WIRE(n) ((delayq_wire)(n))
#define SET_BROADCAST(o) ((o).broadcast = 1)
#define NOT_BROADCAST(o) ((o).broadcast = 0)
#define SET_POLL_MS(o, ms) ((void)0) /* old headers poll every 250 ms */
#endif
#define WIRE_NUMBER(w) \
    ((w) == DELAYQ_REDISSON_OLD ? 2 : (w) == DELAYQ_REDISSON ? 1 : 0)
/* In an old header delayq_bury has no text argument. */
#ifdef DELAYQ_BROADCAST
#define BURY(q, item) delayq_bury(q, item, NULL)
#else
#define BURY(q, item) delayq_bury(q, item)
#endif
/* A loop over the wires from number `first` to number `last`. */
#define EACH_WIRE(w, first, last)                                        \
    for (int w##_n = (first); w##_n <= (last) && ((w) = WIRE(w##_n), 1); \
         w##_n++)

delayq_options options_for(const server *s, const char *name);
void open_queue(delayq *q, const char *name); /* on the main server */
void open_wire(delayq *q, const char *name, delayq_wire wire);
delayq_message message(const char *text, int64_t delay_ms);
/* Make the next call poll the server, even if nothing is known to be due. */
void poll_now(delayq *q);
/* Make the next offer look for foreign elements. */
void look_again(delayq *q);
/* Make the handle assume that the ready list is empty. */
void forget_ready(delayq *q);
/* Take one item with timeout 0 and compare its payload. */
void take_is(delayq *q, const char *payload);
#define OFFER(q, text, delay) OK(q, delayq_offer(q, text, strlen(text), delay))

/* Make an element by hand, in any format. Returns its length. */
size_t element(unsigned char *to, int id_len, int long_size, const char *id,
               const void *payload, size_t len);

#ifdef DELAYQ_VERSION_MAJOR /* not 0.1 */
/* Take once. With an outbox also tick, and sleep for 5 ms; without one wait for
 * 0.1 s. Static, since it calls the delayq of the file that includes it. */
__attribute__((unused)) static void take_once(delayq *q, int has_box) {
    delayq_item item;
    delayq_take(q, &item, has_box ? 0 : 100);
    if (!has_box) return;
    delayq_tick(q, NULL);
    usleep(5000);
}
#endif

pid_t spawn(void (*body)(void *), void *argument);
void join(pid_t pid); /* fails the test if the child failed */

#endif
