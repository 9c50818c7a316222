/*
 * A proxy between a handle and a server. It is a process of its own. Tests tell
 * it through shared memory what to do with the bytes.
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
    /* swallow a request, and answer each of its commands with `forged` */
    FORGE,
    COPY, /* pass the rest of this read, and send it again after let_go */
    /* hold later bytes until let_go, and pass them even if the sender has
     * gone */
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
    volatile int pace_us; /* a slow line: the pause after each 64 KiB */
    char forged[256];
    /* close a connection at a command with this word; "": none. With `forged`
     * the end has not arrived yet: answer the command, and drop later bytes */
    char word[32];

    volatile int connections; /* how many so far */
    volatile int pairs;       /* how many are open */
    volatile long passed[2];
    volatile long kept; /* the number of bytes that are held */
    /* the requests, and the words of the longest one */
    volatile long requests, most_words;
};
extern struct proxy *proxy;

void proxy_start(const server *to);
void proxy_strike(enum fault what, int direction, long at, int times);
/* strike no more; a connection that was struck keeps its fault */
void proxy_calm(void);

/* A socket that listens or is connected. Returns -1 if that fails. */
int unix_socket(const char *path, int listening);
/* Returns 0 if not all bytes could be written. */
int put(int fd, const char *bytes, size_t n);

/* For options.url. */
const char *proxy_url(void);
/* For options.connect. */
redisContext *through_proxy(void *user, int timeout_ms);
/* For proxy->only: the number of a connection that this process has made. */
int proxy_number(const redisContext *c);

#endif
