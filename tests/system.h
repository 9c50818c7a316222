/* Replacements for system calls of delayq. They let a test set the clock, count
 * the polls, and shorten the waits. wire.c compiles delayq with them for all
 * test files. A file that compiles a delayq of its own (DELAYQ_STATIC) gets
 * them if it includes this file first. */
#ifndef SYSTEM_H
#define SYSTEM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <poll.h>
#include <stdint.h>
#include <time.h>

extern volatile long polls;        /* number of all polls */
extern volatile long idle_polls;   /* polls that neither slept nor found data */
extern volatile long over_ms;      /* sum of the timeouts that have run out */
extern volatile int64_t waited_us; /* time in all polls; each counts at most its
                                    * timeout */

/* The clock of the handles. It runs at `clock_rate` percent of the real speed,
 * and `clock_ahead_us` is added to it. */
extern int clock_rate;
extern volatile int64_t clock_ahead_us;
int64_t clock_us(void);
extern volatile long clock_reads; /* by the handles */

/* If this is not 0, a poll waits at most this many real ms, and then the clock
 * skips the rest of the timeout. With 20, a minute without any reply takes a
 * real second. */
extern int clock_skips;

int test_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int test_clock_gettime(clockid_t id, struct timespec *t);

#define poll test_poll
#define clock_gettime test_clock_gettime
#include "test.h"
#undef poll
#undef clock_gettime

#endif
