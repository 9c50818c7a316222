#include "system.h"

volatile long polls, idle_polls, over_ms, clock_reads;
volatile int64_t waited_us, clock_ahead_us;
int clock_rate = 100, clock_skips;

int64_t clock_us(void) {
    static int64_t began_us;
    struct timespec t;
    int64_t us;
    clock_gettime(CLOCK_MONOTONIC, &t);
    us = (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    if (began_us == 0) began_us = us;
    return began_us + (us - began_us) * clock_rate / 100 + clock_ahead_us;
}

int test_clock_gettime(clockid_t id, struct timespec *t) {
    int64_t us = clock_us();
    if (id != CLOCK_MONOTONIC) return clock_gettime(id, t);
    clock_reads++;
    t->tv_sec = (time_t)(us / 1000000);
    t->tv_nsec = (long)(us % 1000000) * 1000;
    return 0;
}

int test_poll(struct pollfd *p, nfds_t n, int timeout_ms) {
    int64_t began_us = clock_us(), us;
    int ready = poll(p, n,
                     clock_skips && timeout_ms > clock_skips ? clock_skips
                                                             : timeout_ms);
    us = clock_us() - began_us;
    if (clock_skips && ready == 0 && us < timeout_ms * 1000LL) {
        clock_ahead_us += timeout_ms * 1000LL - us;
        us = timeout_ms * 1000LL;
    }
    if (timeout_ms >= 0 && us > timeout_ms * 1000LL) us = timeout_ms * 1000LL;
    polls++;
    waited_us += us;
    idle_polls += ready == 0 && timeout_ms == 0;
    if (ready == 0 && timeout_ms > 0) over_ms += timeout_ms;
    return ready;
}
