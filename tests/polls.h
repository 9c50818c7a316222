/* delayq compiled into a test file, with a poll() that counts. Include it
 * first. */
#ifndef POLLS_H
#define POLLS_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1
#endif
#include <poll.h>

static volatile long polls;      /* all, */
static volatile long idle_polls; /* that neither slept nor found anything, */
static volatile long waited_ms;  /* and the sum of timeouts that were over */

static int counting_poll(struct pollfd *p, nfds_t n, int timeout) {
    int ready = poll(p, n, timeout);
    polls++;
    if (ready == 0 && timeout > 0) waited_ms += timeout;
    idle_polls += ready == 0 && timeout == 0;
    return ready;
}

#define poll counting_poll
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#include "test.h"
#undef poll

#endif
