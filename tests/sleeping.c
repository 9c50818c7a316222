/*
 * How a wait sleeps. The clock and the system calls are the test's own.
 */
#include <poll.h>
#include <time.h>

static long long clock_us; /* advances only while the handle sleeps */

static int late_poll(struct pollfd *fds, nfds_t count, int ms) {
    (void)fds, (void)count;
    clock_us += ms * 1000LL + ms; /* as late as it may be on Linux */
    return 0;
}
static int exact_nanosleep(const struct timespec *t, struct timespec *left) {
    (void)left;
    clock_us += t->tv_nsec / 1000;
    return 0;
}
static int read_clock(clockid_t id, struct timespec *t) {
    (void)id;
    t->tv_sec = (time_t)(clock_us / 1000000);
    t->tv_nsec = (long)(clock_us % 1000000) * 1000;
    return 0;
}

#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#define poll late_poll
#define nanosleep exact_nanosleep
#define clock_gettime read_clock
#include "../delayq.h"
#undef poll
#undef nanosleep
#undef clock_gettime
#include "test.h"

TEST(a_poll_that_is_a_thousandth_late_makes_no_wait_late) {
    static const long long waits_us[] = {
        0, 1, 999, 1001, 20000, 999999, 3000500, 10000000, 86400000000};
    size_t i;
    for (i = 0; i < sizeof waits_us / sizeof waits_us[0]; i++) {
        clock_us = 5;
        CHECK_INT(dq_sys_sleep(NULL, 0, 5 + waits_us[i]), 0);
        CHECK_INT(clock_us, 5 + waits_us[i]);
    }
}
