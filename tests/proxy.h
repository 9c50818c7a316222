/*
 * A proxy between a handle and a server, a process of its own that is told
 * through shared memory what to do with the bytes.
 */
#ifndef PROXY_H
#define PROXY_H

#include "test.h"

enum fault {
    PASS,
    CUT,     /* close the connection */
    STALL,   /* keep what follows, the socket stays open; until let_go */
    DELAY,   /* keep what follows for delay_ms */
    DROP,    /* what follows vanishes, the socket stays open */
    GARBAGE, /* what follows becomes noise */
    REPLAY,  /* the rest of this read is sent twice, in one write */
    FORGE    /* a request is swallowed, and `forged` answered to each command */
};

struct proxy {
    volatile int fault;
    volatile int direction; /* 0: to the server, 1: from it */
    volatile long at;       /* strike after so many more bytes; -1: never */
    volatile int times;     /* on so many connections (FORGE: requests) */
    volatile int only;      /* on this connection, counted from 0; -1: any */
    volatile int delay_ms;
    volatile int let_go; /* what was stalled goes on */
    char forged[128];

    volatile int connections; /* so far */
    volatile long passed[2];
    volatile long kept; /* so many bytes are held back */
};
extern struct proxy *proxy;

void proxy_start(const server *to);
void proxy_strike(enum fault what, int direction, long at, int times);
void proxy_calm(void); /* strike no more; who was struck stays so */

/* For options.connect. */
redisContext *through_proxy(void *user, int timeout_ms);
/* For proxy->only: the number of a connection that this process has made. */
int proxy_number(const redisContext *c);

#endif
