/*
 * How a wait sleeps, tested with a simulated clock and simulated system calls.
 */
#include <poll.h>
#include <time.h>
#include <unistd.h>

static long long clock_us; /* advances only in poll and nanosleep */
static long long reply_us; /* time at which a descriptor becomes ready */
static long processors, looks;

static int late_poll(struct pollfd *fds, nfds_t count, int ms) {
    (void)fds;
    clock_us += ms * 1000LL + ms; /* Linux may be late by 1 us for each ms */
    if (ms > 0 || count == 0) return 0;
    looks++;
    clock_us++;
    return clock_us > reply_us;
}
static long count_processors(int name) {
    return name == _SC_NPROCESSORS_ONLN ? processors : -1;
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
#define sysconf count_processors
#include "../delayq.h"
#undef poll
#undef nanosleep
#undef clock_gettime
#undef sysconf
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

/* --- a call that waits awake for its reply ------------------------------- */

static delayq q;
static delayq_exchange request;

static void begin_waits(void) {
    memset(&q, 0, sizeof q);
    q.conn = &q.own;
    q.own.known = 1;
    q.own.trip_us = 60;
    q.own.cmd.first = &request;
    processors = 2;
    looks = 0;
}

/* Wait for a reply that comes after `us`. Returns 1 if the wait gets it. */
static int wait_awake(int us) {
    struct pollfd p;
    q.own.now_us = clock_us;
    reply_us = clock_us + us;
    return dq_wait_awake(&q, &p, 1);
}

/* Wait `waits` times. Returns 1 if no wait has polled for the reply. */
static int sleeps_at_once(int waits) {
    looks = 0;
    while (waits-- > 0) wait_awake(0);
    return looks == 0;
}

TEST(a_call_is_awake_for_100_us_and_not_after_it_has_failed) {
    int i;
    begin_waits();
    for (i = 0; i < 100; i++) CHECK(wait_awake(95));
    for (i = 0; i < 4; i++) { /* four late replies are tolerated */
        looks = 0;
        CHECK(!wait_awake(120));
        CHECK(looks > 95 && looks <= 101);
    }
    CHECK(!wait_awake(95)); /* from now on each wait sleeps at once */
    CHECK(sleeps_at_once(90));
    CHECK(!sleeps_at_once(20));
}

TEST(a_call_whose_trial_fails_is_awake_once_in_a_hundred_waits) {
    int i;
    begin_waits();
    for (i = 0; i < 1000; i++) wait_awake(120);
    CHECK(looks > 9 * 95 && looks <= 11 * 101);
}

TEST(a_call_is_not_awake_where_it_does_not_pay) {
    begin_waits();
    CHECK(!sleeps_at_once(1));
    q.own.trip_us = 201; /* a far server */
    CHECK(sleeps_at_once(3000));
    begin_waits();
    q.own.known = 0; /* a handle that connects */
    CHECK(sleeps_at_once(3000));
    begin_waits();
    q.own.cmd.first = NULL;
    CHECK(sleeps_at_once(3000));
    begin_waits();
    q.outbox = (struct dq_outbox *)&q; /* only compared with NULL */
    CHECK(sleeps_at_once(3000));
    begin_waits();
    processors = 1;
    CHECK(sleeps_at_once(3000));
}
