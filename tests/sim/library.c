/* The header under test. */
#define DELAYQ_IMPLEMENTATION
#include "sim.h"
