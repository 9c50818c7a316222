/*
 * The costs of each call: its round trips, the commands that its script runs,
 * and its system calls. The tests count them, and measure no times. If a number
 * grows, find out why before you change the table.
 */
#include "system.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static delayq q;
static delayq_item item, items[100];
static delayq_message m[100];

static void offer_1(void) {
    OK(&q, delayq_offer(&q, "x", 1, 60000));
}
static void offer_due(int64_t due_ms) { /* 0: due in a minute */
    int i;
    memset(m, 0, sizeof m);
    for (i = 0; i < 100; i++) {
        m[i].data = "x";
        m[i].len = 1;
        m[i].delay_ms = 60000;
        m[i].due_ms = due_ms;
    }
    OK(&q, delayq_offer_many(&q, m, 100));
}
static void offer_100(void) {
    offer_due(0);
}
static void due_100(void) {
    offer_due(1);
}
static void offer_keyed(void) {
    memset(m, 0, sizeof m[0]);
    m[0].data = "x";
    m[0].len = 1;
    m[0].delay_ms = 60000;
    m[0].key = "k";
    m[0].key_ttl_ms = 60000;
    OK(&q, delayq_offer_message(&q, m));
}
static void tick(void) {
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
}
static void tick_idle(void) {
    int i;
    for (i = 0; i < 1000; i++) OK(&q, delayq_tick(&q, NULL));
}
static void take_1(void) {
    OK(&q, delayq_take(&q, &item, 0));
}
static void take_idle(void) {
    int i;
    for (i = 0; i < 1000; i++)
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
}
static void take_100(void) {
    size_t n;
    OK(&q, delayq_take_many(&q, items, 100, &n, 0));
    CHECK_INT(n, 100);
}
/* Wait until the server tracks the ready list, and read all notifications. */
static void settle(void) {
    int i;
    poll_now(&q);
    for (i = 0; i < 4 || (can_track() && !q.list_tracked); i++) {
        q.conn->idle_read_us = 0;
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    }
}
static void ready_1(void) {
    ask("RPUSH jobs x");
    q.ready = 1;
}
static void lease_1(void) {
    due_100();
    take_1();
}
static void ack(void) {
    OK(&q, delayq_ack(&q, &item));
}
static void ack_take(void) {
    OK(&q, delayq_ack_take(&q, &item, 0));
}
static void lease_100(void) {
    due_100();
    take_100();
}
static void ack_100(void) {
    OK(&q, delayq_ack_many(&q, items, 100));
}
static void nack(void) {
    OK(&q, delayq_nack(&q, &item, 1000));
}
static void cancel(void) {
    OK(&q, delayq_cancel(&q, &m[0].ticket));
}
static void reschedule(void) {
    OK(&q, delayq_reschedule(&q, &m[0].ticket, 1000));
}
static void count(void) {
    delayq_counts c;
    OK(&q, delayq_count(&q, &c));
}
static void count_due(void) {
    static const int64_t due[3] = {1, 1000, 9007199254740991};
    int64_t counts[3];
    OK(&q, delayq_count_due(&q, due, 3, counts));
}
static void peek(void) {
    size_t n;
    OK(&q, delayq_peek(&q, items, 100, &n, NULL));
}
static void nothing(void) {
}

static const struct cost {
    const char *name;
    int lease_ms;
    void (*before)(void), (*call)(void);
    /* `commands` is an upper bound. It includes the commands in scripts. */
    int scripts, commands;
} costs[] = {
    {"offer", 0, nothing, offer_1, 1, 5},
    {"offer_many(100)", 0, nothing, offer_100, 1, 5},
    {"offer with a key", 0, nothing, offer_keyed, 1, 10},
    {"tick of 100", 0, due_100, tick, 1, 17},
    {"1,000 idle ticks", 0, offer_1, tick_idle, 0, 0},
    {"take", 0, due_100, take_1, 1, 5},
    {"take from the ready list", 0, ready_1, take_1, 1, 8},
    {"1,000 idle takes", 0, offer_1, take_idle, 0, 0},
    {"take_many(100)", 0, due_100, take_100, 1, 12},
    {"take with a lease", 60000, due_100, take_1, 1, 9},
    {"take_many(100) with a lease", 60000, due_100, take_100, 1, 20},
    {"ack", 60000, lease_1, ack, 1, 7},
    {"ack_take", 60000, lease_1, ack_take, 1, 15},
    {"ack_many(100)", 60000, lease_100, ack_100, 1, 6},
    {"nack", 60000, lease_1, nack, 1, 9},
    {"cancel among 100", 0, offer_100, cancel, 1, 13},
    {"reschedule among 100", 0, offer_100, reschedule, 1, 16},
    /* 24 of these 32 commands search for the due time, which is 60 s away */
    {"count", 0, offer_100, count, 1, 32},
    {"count_due of 3", 0, offer_100, count_due, 1, 35},
    {"peek of 100", 0, offer_100, peek, 1, 9},
};

/* Count all commands since CONFIG RESETSTAT, and the scripts (EVALSHA) among
 * them. */
static void counted(int *commands, int *scripts) {
    const char *at = ask("INFO commandstats");
    *commands = *scripts = 0;
    while ((at = strstr(at, "cmdstat_")) != NULL) {
        int calls = atoi(strstr(at, "calls=") + 6);
        at += 8;
        if (strncmp(at, "info:", 5) == 0 || strncmp(at, "config", 6) == 0)
            continue;
        if (strncmp(at, "evalsha:", 8) == 0) *scripts += calls;
        *commands += calls;
    }
}

TEST(no_call_runs_more_commands_than_its_row_says) {
    size_t i;
    int wrong = 0;
    for (i = 0; i < sizeof costs / sizeof costs[0]; i++) {
        const struct cost *c = &costs[i];
        delayq_options o = options_for(&main_server, "jobs");
        int round, commands = 0, scripts = 0;
        if (c->call == take_idle && !can_track()) continue; /* takes poll */
        o.lease_ms = c->lease_ms;
        OK(&q, delayq_open(&q, &o));
        UNTIL((tick(), q.subscribed));
        /* the first round loads scripts */
        for (round = 0; round < 2; round++) {
            ask("FLUSHDB");
            forget_ready(&q);
            OK(&q, delayq_tick(&q, NULL));
            if (c->call == take_idle || c->call == tick_idle) {
                c->before();
                tick();
                settle();
            } else {
                c->before();
                poll_now(&q);
            }
            ask("CONFIG RESETSTAT");
            c->call();
            counted(&commands, &scripts);
        }
        if (scripts != c->scripts || commands > c->commands) {
            printf("    %s: %d scripts, not %d; %d commands, at most %d\n",
                   c->name, scripts, c->scripts, commands, c->commands);
            wrong++;
        }
        delayq_close(&q);
    }
    CHECK_INT(wrong, 0);
}

/* --- system calls --------------------------------------------------------- */

#define ROUNDS 20
#ifdef DELAYQ_LIBVALKEY
#define MOST 7 /* 2 more block SIGPIPE, since libvalkey makes the writes */
#else
#define MOST 5
#endif

/* Offer and take. A getppid() marks the end of each call. */
static void be_traced(void) {
    int i;
    clock_rate = 1;
    open_queue(&q, "jobs");
    memset(m, 0, sizeof m[0]);
    m[0].data = "x";
    m[0].len = 1;
    m[0].due_ms = 1;
    for (i = -1; i < ROUNDS; i++) {
        if (i == 0 && (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 ||
                       raise(SIGSTOP) != 0))
            _exit(1);
        OK(&q, delayq_offer_message(&q, m));
        getppid();
        OK(&q, delayq_take(&q, &item, 0));
        getppid();
    }
    _exit(0);
}

/* Returns the number of system calls that a process makes before its next
 * getppid, without the polls that do not sleep. */
static int count_to_getppid(pid_t pid) {
    struct __ptrace_syscall_info info;
    int status, n = 0;
    for (;;) {
        CHECK(ptrace(PTRACE_SYSCALL, pid, NULL, NULL) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status)) FAIL("the traced process has ended");
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) continue;
        CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) > 0);
        if (info.op != PTRACE_SYSCALL_INFO_ENTRY) continue;
        if (info.entry.nr == SYS_getppid) return n;
        n += info.entry.nr != SYS_poll || (int)info.entry.args[2] != 0;
    }
}

/* The five calls recognize a fork, look for a surplus reply, write, sleep, and
 * read. Once in a millisecond delayq also empties the pipe of delayq_wake. The
 * handle's clock runs slowly, so that this is rare even on a busy machine. */
TEST(an_offer_and_a_take_make_five_system_calls) {
    pid_t pid;
    int i, status, offers = 0, takes = 0;
    if (test_brief()) test_skip("valgrind makes more");
    pid = fork();
    if (pid == 0) be_traced();
    CHECK(waitpid(pid, &status, WUNTRACED) == pid);
    if (!WIFSTOPPED(status)) test_skip("a process may not be traced");
    CHECK(ptrace(PTRACE_SETOPTIONS, pid, NULL,
                 PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) == 0);
    for (i = 0; i < ROUNDS; i++) {
        int offer = count_to_getppid(pid), take = count_to_getppid(pid);
        printf("    an offer %d, a take %d\n", offer, take);
        offers += offer <= MOST;
        takes += take <= MOST;
    }
    CHECK(offers > ROUNDS / 2 && takes > ROUNDS / 2);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
}
