/* The length of libvalkey's strings, for which its public headers have no
 * function. The length precedes a byte that gives the length's own size. */
#ifndef TESTS_SDS_H
#define TESTS_SDS_H

#include <stdint.h>
#include <string.h>

static inline size_t sdslen(const char *s) {
    const int kind = s[-1] & 7, bytes = 1 << (kind - 1);
    uint64_t len = 0;
    if (kind == 0) return (unsigned char)s[-1] >> 3;
    memcpy(&len, s - 1 - 2 * bytes, (size_t)bytes); /* little-endian */
    return (size_t)len;
}

#endif
