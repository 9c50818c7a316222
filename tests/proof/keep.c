/*
 * The image of an outbox, whose marks and entries may have any bytes, even if
 * somebody has forged them. run.sh removes the checksum from delayq.h. Here the
 * checksum may have any value, so the proofs don't rely on it.
 */
#include <stddef.h>
#include <stdint.h>
uint32_t dq_keep_crc(uint32_t crc, const void *bytes, size_t n);
#include "proof.h"

uint32_t nondet_uint32(void);

uint32_t dq_keep_crc(uint32_t crc, const void *bytes, size_t n) {
    (void)crc;
    PROVE(__CPROVER_r_ok(bytes, n));
    return nondet_uint32();
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    (void)clock;
    t->tv_sec = nondet_unsigned() & 0x7fffffff;
    t->tv_nsec = 0;
    return 0;
}

enum { ROOM = sizeof(dq_entry) + 64 };

/* Read the next entry of a ring, which may have any bytes. */
void proof_entry(void) {
    static dq_outbox outbox;
    delayq *q = any_handle();
    dq_ring *ring = nondet_int() & 1 ? &outbox.offers : &outbox.changes;
    static uint64_t memory[(ROOM + 7) / 8];
    size_t at = nondet_size(), end = nondet_size(), i;
    const dq_entry *e;
    q->outbox = &outbox;
    for (i = 0; i < sizeof memory / 8; i++) memory[i] = nondet_uint64();
    ring->data = (unsigned char *)memory;
    ring->size = sizeof memory;
    ring->keep = &delayq_keep_image;
    ring->lane.accepted = nondet_uint64();
    ASSUME(ring->lane.accepted < DQ_KEEP_NUMBER);
    ASSUME(at <= ring->size && at % 8 == 0 && end <= ring->size);
    e = dq_keep_next(q, ring, at, end);
    if (!e) return;
    PROVE((const unsigned char *)e == ring->data + at);
    PROVE(e->size >= sizeof *e && e->size <= end - at);
    PROVE(__CPROVER_r_ok(e->op.data, e->op.len));
    PROVE(!e->op.key || e->op.key[e->op.key_len] == '\0');
    PROVE(e->op.verb);
}

/* Read the two marks. */
void proof_mark(void) {
    delayq *q = any_handle();
    dq_mark m;
    int i;
    q->options.outbox = any_bytes(2 * DQ_KEEP_SLOT);
    q->options.outbox_size = 8192;
    q->options.name = q->name;
    if (dq_keep_find(q, &m)) return;
    for (i = 0; i < 2; i++)
        PROVE(m.ring[i].head <= m.ring[i].size && m.ring[i].head % 8 == 0);
}
