/*
 * Shared by the proofs. CBMC checks each function proof_... in this folder for
 * every value of its inputs at once. proofs.txt lists them.
 */
#ifndef PROOF_H
#define PROOF_H

#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "../../delayq.h"

#define ASSUME(true_) __CPROVER_assume(true_)
#define PROVE(true_) __CPROVER_assert((true_), #true_)

/* These return any value, since CBMC has no definitions of the functions. */
int nondet_int(void);
unsigned char nondet_byte(void);
unsigned nondet_unsigned(void);
int64_t nondet_int64(void);
uint64_t nondet_uint64(void);
size_t nondet_size(void);

/* Returns memory of exactly n bytes with any values. */
static unsigned char *any_bytes(size_t n) {
    unsigned char *bytes = (unsigned char *)malloc(n);
    ASSUME(bytes);
    return bytes;
}

/* Returns a text in memory of n bytes, with any content. The last byte is NUL,
 * and others may be, too. */
static char *any_text(size_t n) {
    char *text = (char *)any_bytes(n);
    text[n - 1] = '\0';
    return text;
}

/* Returns a handle on a server of any kind, with any wire. */
static delayq *any_handle(void) {
    static delayq q;
    static delayq_conn conn;
    static struct delayq_wire_kind wire;
    wire.old_first = nondet_int() & 1;
    wire.id_len = wire.old_first ? 8 : 16;
    conn.long_size = nondet_int() & 1 ? 8 : 4;
    conn.long_big = nondet_int() & 1;
    q.conn = &conn;
    q.wire = &wire;
    return &q;
}

#endif
