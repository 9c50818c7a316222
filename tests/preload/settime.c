/*
 * A wall clock that a test can set. LD_PRELOAD loads it into redis-server. The
 * file $SETTIME contains an int64_t, the microseconds that are added to the
 * real time. (libfaketime does not work with Redis' allocator.)
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset_us(void) {
    static volatile int64_t *at;
    if (!at) {
        const char *name = getenv("SETTIME");
        int fd = name ? open(name, O_RDONLY) : -1;
        void *map =
            fd < 0 ? MAP_FAILED : mmap(NULL, 8, PROT_READ, MAP_SHARED, fd, 0);
        if (fd >= 0) close(fd);
        if (map == MAP_FAILED) return 0;
        at = (volatile int64_t *)map;
    }
    return *at;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    long result = syscall(SYS_clock_gettime, id, t);
    int64_t us;
    if (result != 0 || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return (int)result;
    us = t->tv_sec * (int64_t)1000000 + t->tv_nsec / 1000 + offset_us();
    t->tv_sec = us / 1000000;
    t->tv_nsec = us % 1000000 * 1000 + t->tv_nsec % 1000;
    return 0;
}

int gettimeofday(struct timeval *tv, void *zone) {
    struct timespec t;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &t);
    tv->tv_sec = t.tv_sec;
    tv->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *to) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (to) *to = t.tv_sec;
    return t.tv_sec;
}
