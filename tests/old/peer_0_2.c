/* The table of version 0.2, with all of its library inside. */
#define DELAYQ_STATIC
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_HEADER "old/0.2/delayq.h"
#define PEER peer_0_2
#include "../peer.c"
