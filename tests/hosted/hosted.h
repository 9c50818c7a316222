/*
 * A server as a provider runs it: a real one behind a proxy that refuses
 * commands by a profile (profiles.h). The library connects to the proxy
 * (server.url), the tests to the server itself (server.socket).
 */
#ifndef HOSTED_H
#define HOSTED_H

#include "../test.h"
#include "profiles.h"

/* The proxy's counters and settings, in memory that is shared with it. */
struct hosted {
    /* Counted by the proxy: */
    volatile int commands; /* of the clients, including refused ones */
    volatile int connections;
    /* names of the commands, each once: "CLIENT ID", "LLEN" */
    char names[32][24];
    /* Set by a test: */
    /* the proxy closes a connection at this command; "": none */
    char closes_at[24];
};

/* Put the proxy before a server if DELAYQ_TEST_HOSTED names a profile. */
void hosted_start(server *s);
/* Put the proxy before a server that has been started, and set its url. */
struct hosted *hosted_behind(server *s, const struct profile *p);
const struct profile *hosted_profile(const char *name);

#endif
