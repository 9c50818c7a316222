/* Shared by the fuzzers: CHECK, and a function that copies an input. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                               \
    do {                                                               \
        if (!(condition)) {                                            \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, \
                    #condition);                                       \
            abort();                                                   \
        }                                                              \
    } while (0)

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* Returns a copy of exactly this size, so that reads past its end are found. */
static inline void *copy(const void *data, size_t size) {
    void *to = malloc(size ? size : 1);
    CHECK(to);
    if (size > 0) memcpy(to, data, size);
    return to;
}

#endif
