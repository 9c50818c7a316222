/* The table of version 0.1, with all of its library inside. */
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_HEADER "old/0.1/delayq.h"
#define PEER peer_0_1
#include "../peer.c"
