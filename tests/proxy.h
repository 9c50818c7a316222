/*
 * A proxy between a handle and a server, in a process of its own. Tests control
 * it through shared memory.
 */
#ifndef PROXY_H
#define PROXY_H

#include "test.h"

enum fault {
    PASS,
    CUT,     /* close the connection */
    STALL,   /* hold later bytes until let_go; the socket stays open */
    DELAY,   /* hold later bytes for delay_ms */
    DROP,    /* drop later bytes; the socket stays open */
    GARBAGE, /* replace later bytes by garbage */
    REPLAY,  /* send the rest of this read twice, in one write */
    /* drop a request, and answer each of its commands with `forged`; from the
     * server: send `forged` instead of the rest of this read */
    FORGE,
    COPY, /* pass the rest of this read, and send it again after let_go */
    /* hold later bytes until let_go, and pass them even if the sender has
     * closed its socket */
    LATE
};

struct proxy {
    volatile int fault;
    volatile int direction; /* 0: to the server, 1: from the server */
    /* the fault begins after this many more bytes; -1: never */
    volatile long at;
    /* number of connections to strike (FORGE: of requests) */
    volatile int times;
    /* strike only this connection, counted from 0; -1: any connection */
    volatile int only;
    volatile int delay_ms;
    volatile int let_go;  /* 1: release the held bytes */
    volatile int pace_us; /* pause after each 64 KiB, as on a slow line */
    char forged[256];
    /* close a connection at a command that contains this word; "": at none. If
     * `forged` is not "", keep it open, send `forged`, and drop later bytes */
    char word[32];

    volatile int connections; /* number of connections so far */
    volatile int pairs;       /* number of open connections */
    volatile long passed[2];
    volatile long kept; /* the number of bytes that are held */
    /* number of requests, and number of words of the longest request */
    volatile long requests, most_words;
};
extern struct proxy *proxy;

void proxy_start(const server *to);
void proxy_strike(enum fault what, int direction, long at, int times);
/* Strike no more connections. A connection that was struck keeps its fault. */
void proxy_calm(void);

/* Returns a socket that listens at `path` or is connected to it, or -1. */
int unix_socket(const char *path, int listening);
/* Write n bytes. Returns 0 if that fails. */
int put(int fd, const char *bytes, size_t n);

/* Returns the proxy's URL, for options.url. */
const char *proxy_url(void);
/* Connects to the proxy, for options.connect. */
redisContext *through_proxy(void *user, int timeout_ms);
/* Returns the number of a connection of this process, for proxy->only. */
int proxy_number(const redisContext *c);

#endif
