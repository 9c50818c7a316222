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
    STALL,   /* hold what follows, the socket stays open; until let_go */
    DELAY,   /* hold what follows for delay_ms */
    DROP,    /* drop what follows, the socket stays open */
    GARBAGE, /* replace what follows by garbage */
    REPLAY,  /* the rest of this read is sent twice, in one write */
    FORGE,   /* swallow a request, and answer `forged` to each command */
    COPY,    /* the rest of this read passes, and again after let_go */
    LATE     /* hold what follows until let_go, and pass it on then, though the
                sender has gone */
};

struct proxy {
    volatile int fault;
    volatile int direction; /* 0: to the server, 1: from it */
    volatile long at; /* the fault begins after so many more bytes; -1: never */
    volatile int times; /* for so many connections (FORGE: requests) */
    volatile int only;  /* only for this connection, counted from 0; -1: any */
    volatile int delay_ms;
    volatile int let_go;  /* release what was stalled */
    volatile int pace_us; /* a slow line: rest so long behind each 64 KiB */
    char forged[256];

    volatile int connections; /* so far */
    volatile int pairs;       /* of them open */
    volatile long passed[2];
    volatile long kept; /* so many bytes are held back */
};
extern struct proxy *proxy;

void proxy_start(const server *to);
void proxy_strike(enum fault what, int direction, long at, int times);
void proxy_calm(void); /* no further faults; connections with one keep it */

/* For options.url. */
const char *proxy_url(void);
/* For options.connect. */
redisContext *through_proxy(void *user, int timeout_ms);
/* For proxy->only: the number of a connection that this process has made. */
int proxy_number(const redisContext *c);

#endif
