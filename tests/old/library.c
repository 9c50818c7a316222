/* The library of the old version whose header DELAYQ_HEADER names. */
#define DELAYQ_IMPLEMENTATION
#include "system.h"
