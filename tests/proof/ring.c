/*
 * The ring of an outbox. Ops of any length are added and removed in the order
 * of steps[], and each is read back as it was added.
 */
#include "proof.h"

enum { SIZE = 400 };
static const char steps[] = "aapapapp"; /* a: add an op; p: remove one */

/* Check the ranges of a copy. The bytes of keys and payloads are not copied. */
void *memcpy(void *to, const void *from, size_t n) {
    PROVE(__CPROVER_w_ok(to, n));
    PROVE(__CPROVER_r_ok(from, n));
    if (n == sizeof(dq_entry)) *(dq_entry *)to = *(const dq_entry *)from;
    return to;
}

/* Check the invariants of a ring. */
static void check_ring(const dq_ring *ring) {
    PROVE(ring->used <= ring->size);
    PROVE(ring->head <= ring->size && ring->tail <= ring->size);
    PROVE(ring->head % 8 == 0 && ring->tail % 8 == 0);
}

void proof_ring(void) {
    static dq_ring ring;
    static const dq_verb verb;
    static char payload[64], key[8];
    size_t numbers[sizeof steps], lens[sizeof steps], first = 0, added = 0;
    int i;
    static uint64_t memory[SIZE / 8];
    ring.size = SIZE;
    ring.data = (unsigned char *)memory;
    for (i = 0; steps[i]; i++) {
        if (steps[i] == 'a') {
            dq_op op, *copy;
            memset(&op, 0, sizeof op);
            op.verb = &verb;
            op.len = nondet_size();
            op.key_len = nondet_size();
            ASSUME(op.len <= sizeof payload && op.key_len < sizeof key);
            op.data = payload;
            op.key = key;
            op.delay_ms = i;
            copy = dq_ring_add(&ring, &op);
            if (copy) {
                PROVE(copy->len == op.len && copy->delay_ms == i);
                PROVE((const unsigned char *)copy->data >= ring.data);
                PROVE((const unsigned char *)copy->data + op.len <=
                      ring.data + ring.size);
                lens[added] = op.len;
                numbers[added++] = (size_t)i;
            }
        } else if (first < added) {
            const dq_entry *e = dq_ring_entry(&ring, ring.head);
            PROVE(e->op.len == lens[first]);
            PROVE(e->op.delay_ms == (int64_t)numbers[first]);
            first++;
            dq_ring_pop(&ring);
        }
        check_ring(&ring);
    }
}
