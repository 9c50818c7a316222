/*
 * The recipe for libevent, a whole program, runs unchanged in a process of its
 * own. Items that are offered elsewhere reach it promptly, its loop does not
 * turn more often than necessary, and it survives servers that freeze or
 * restart.
 */
#define DELAYQ_IMPLEMENTATION
#include "../test.h"
#include <event2/event.h>
#include <event2/event_struct.h>
#include <sys/wait.h>

/* The progress of the program, in shared memory. */
static struct {
    volatile long turns;
    volatile int items;
    char last[64];
} * told;

static void took(const char *format, int len, const char *data) {
    (void)format;
    snprintf(told->last, sizeof told->last, "%.*s", len, data);
    told->items++;
}
static delayq_status counted_tick(delayq *q, int64_t *wait_ms) {
    told->turns++;
    return delayq_tick(q, wait_ms);
}

#define printf took
#define delayq_tick counted_tick
#define main recipe_main
#include "piece-libevent.h"
#undef printf
#undef delayq_tick
#undef main

static void program(void *url) {
    setenv("DELAYQ_URL", (const char *)url, 1);
    exit(recipe_main());
}

static pid_t start_program(server *s) {
    told = shared(sizeof *told);
    return spawn(program, s->url);
}

static void end_program(pid_t pid) {
    int status;
    /* the program must still be running */
    CHECK_INT(waitpid(pid, &status, WNOHANG), 0);
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void open_on(delayq *other, const server *s) {
    delayq_options o = options_for(s, "jobs");
    OK(other, delayq_open(other, &o));
}

/* Check that the program's next item is `text`, and that it comes long before
 * the loop would poll by itself. */
static void arrives(int items, const char *text) {
    long long began = now_us();
    UNTIL(told->items == items);
    CHECK_TEXT(told->last, text);
    began = now_us() - began;
    if (began > 3000000LL * test_slow())
        FAIL("\"%s\" took %lld us", text, began);
}

/* Returns the number of turns in a second in which nothing happens. */
static long idle_turns(void) {
    long before = told->turns;
    usleep(1000000);
    return told->turns - before;
}

TEST(the_event_loop_gets_promptly_what_is_offered_elsewhere) {
    delayq other;
    redisContext *c = main_connection();
    pid_t pid = start_program(&main_server);
    int n = 0, round;
    open_on(&other, &main_server);
    OFFER(&other, "long after", 3600000);
    OFFER(&other, "first", 0);
    arrives(++n, "first");
    for (round = 0; round < 3; round++) {
        usleep(50000);
        OFFER(&other, "at once", 0);
        arrives(++n, "at once");
        OFFER(&other, "soon", 100);
        arrives(++n, "soon");
        if (main_server.major < 6) continue;
        usleep(50000);
        freeReplyObject(run(c, "RPUSH jobs pushed"));
        arrives(++n, "pushed");
    }
    delayq_close(&other);
    end_program(pid);
}

TEST(the_event_loop_does_not_spin) {
    delayq other;
    pid_t pid = start_program(&main_server);
    long before;
    int i;
    open_on(&other, &main_server);
    OFFER(&other, "first", 0);
    arrives(1, "first");
    usleep(200000);
    if ((before = idle_turns()) > 5) FAIL("%ld turns of an idle loop", before);
    before = told->turns;
    for (i = 0; i < 20; i++) {
        OFFER(&other, "due", 10);
        arrives(2 + i, "due");
    }
    before = told->turns - before;
    if (before > 20 * 20) FAIL("%ld turns for 20 items", before);
    delayq_close(&other);
    end_program(pid);
}

TEST(the_event_loop_survives_a_restart_of_the_server) {
    delayq other;
    server s;
    pid_t pid;
    long turns;
    int round;
    server_start(&s, NULL);
    pid = start_program(&s);
    for (round = 0; round < 3; round++) {
        open_on(&other, &s);
        OFFER(&other, "again", 0);
        /* the item comes after at most 5 s */
        UNTIL(told->items == 2 * round + 1);
        OFFER(&other, "and on", 50);
        arrives(2 * round + 2, "and on");
        delayq_close(&other);
        server_kill(&s, SIGKILL);
        turns = idle_turns();
        if (turns > 200) FAIL("%ld turns in a second without a server", turns);
        server_start_again(&s, NULL);
    }
    end_program(pid);
    server_end(&s);
}

TEST(the_event_loop_survives_a_frozen_server) {
    delayq other;
    server s;
    pid_t pid;
    long turns;
    server_start(&s, NULL);
    pid = start_program(&s);
    open_on(&other, &s);
    OFFER(&other, "first", 0);
    arrives(1, "first");
    OFFER(&other, "due meanwhile", 100);
    server_kill(&s, SIGSTOP);
    turns = idle_turns();
    turns += idle_turns();
    if (turns > 400) FAIL("%ld turns in two seconds", turns);
    server_kill(&s, SIGCONT);
    UNTIL(told->items == 2);
    OFFER(&other, "last", 0);
    arrives(3, "last");
    delayq_close(&other);
    end_program(pid);
    server_end(&s);
}
