/* The library of version 0.1. */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
