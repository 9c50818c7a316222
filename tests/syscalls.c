/* The number of system calls of an offer and of a take. The other costs of a
 * call are in tests/sim/cost.txt. */
#include "system.h"
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static delayq q;
static delayq_item item;
static delayq_message m;

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
    memset(&m, 0, sizeof m);
    m.data = "x";
    m.len = 1;
    m.due_ms = 1;
    for (i = -1; i < ROUNDS; i++) {
        if (i == 0 && (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0 ||
                       raise(SIGSTOP) != 0))
            _exit(1);
        OK(&q, delayq_offer_message(&q, &m));
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
    if (test_brief()) return; /* valgrind makes more */
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
