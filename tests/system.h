/* The system calls of delayq in the tests: its clock can be set, its polls are
 * counted, and its waits can be cut short. wire.c compiles delayq with them for
 * all files. A file that compiles a delayq of its own (DELAYQ_STATIC) gets
 * them, too, if it includes this first. */
#ifndef SYSTEM_H
#define SYSTEM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <poll.h>
#include <stdint.h>
#include <time.h>

extern volatile long polls;        /* all, */
extern volatile long idle_polls;   /* that neither slept nor found anything, */
extern volatile long over_ms;      /* the sum of timeouts that were over, */
extern volatile int64_t waited_us; /* and the time that all have slept, each at
                                    * most its timeout */

/* The handles' clock: it runs at `clock_rate` hundredths of the real speed, and
 * is ahead by `clock_ahead_us`. */
extern int clock_rate;
extern volatile int64_t clock_ahead_us;
int64_t clock_us(void);

/* If not 0: when nothing has happened for so many real ms, the clock skips the
 * rest of a poll. With 20 a minute without any reply takes a second. */
extern int clock_skips;

int test_poll(struct pollfd *p, nfds_t n, int timeout_ms);
int test_clock_gettime(clockid_t id, struct timespec *t);

#define poll test_poll
#define clock_gettime test_clock_gettime
#include "test.h"
#undef poll
#undef clock_gettime

#endif
