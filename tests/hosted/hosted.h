/*
 * A server as a hosting provider runs it. It is a real server with a proxy that
 * refuses commands according to a profile (profiles.h). The library connects to
 * the proxy (server.url), the tests to the server itself (server.socket).
 */
#ifndef HOSTED_H
#define HOSTED_H

#include "../test.h"
#include "profiles.h"

/* The proxy's counters and settings, in memory that is shared with it. */
struct hosted {
    /* Counted by the proxy: */
    volatile int commands; /* clients' commands, including refused ones */
    volatile int connections;
    /* the names of all clients' commands, each once: "CLIENT ID", "LLEN" */
    char names[32][24];
    /* Set by a test: */
    /* the proxy closes a connection at this command; "": none */
    char closes_at[24];
};

/* Start a proxy for the server if DELAYQ_TEST_HOSTED names a profile. */
void hosted_start(server *s);
/* Start a proxy for a server that has been started, and set s->url. */
struct hosted *hosted_behind(server *s, const struct profile *p);
const struct profile *hosted_profile(const char *name);

#endif
