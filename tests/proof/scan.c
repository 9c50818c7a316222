/*
 * The scan of a reply before hiredis reads it. The reply has any bytes, in
 * pieces of any length. proof_scan begins in any state that the invariant
 * allows, and shows that the invariant holds again after a piece. So it holds
 * after any number of pieces. A long piece is equivalent to several short ones.
 */
#include "proof.h"

/* CBMC's own memchr would add a loop to each call. */
void *memchr(const void *bytes, int c, size_t n) {
    const char *at = (const char *)bytes;
    size_t i;
    __CPROVER_assert(n == 5 || n == 10, "only the lists of first bytes");
    for (i = 0; i < 5; i++)
        if (at[i] == (char)c) return (void *)(uintptr_t)&at[i];
    if (n == 5) return NULL;
    for (; i < 10; i++)
        if (at[i] == (char)c) return (void *)(uintptr_t)&at[i];
    return NULL;
}

static int holds(const delayq_reply_scan *r) {
    unsigned i;
    if (r->depth > 4 || r->items > DQ_RESP_ITEMS_MAX ||
        r->bytes > DQ_RESP_BYTES_MAX || r->line > DQ_RESP_LINE_MAX)
        return 0;
    for (i = 0; i < 4; i++)
        if (i < r->depth && r->left[i] == 0) return 0;
    if (r->type == DQ_RESP_BODY)
        return r->number >= 1 && r->number <= DQ_RESP_BYTES_MAX + 2;
    return r->type == 0 || r->type == '+' || r->type == '-' || r->type == ':' ||
           r->type == '$' || r->type == '*';
}

static delayq_reply_scan *any_scan(void) {
    delayq_reply_scan *r = (delayq_reply_scan *)any_bytes(sizeof *r);
    ASSUME(holds(r));
    return r;
}

void proof_scan(void) {
    delayq_reply_scan *r = any_scan();
    size_t n = nondet_size();
    const char *fault;
    ASSUME(n <= 3);
    fault = dq_resp_scan(r, (const char *)any_bytes(n), n);
    if (!fault) PROVE(holds(r));
}

/* Within the bytes of a string, the scan needs one step for each piece. */
void proof_body(void) {
    delayq_reply_scan *r = any_scan();
    size_t n = nondet_size(), before;
    ASSUME(r->type == DQ_RESP_BODY);
    before = r->number;
    ASSUME(n >= 1 && n < before);
    PROVE(!dq_resp_scan(r, (const char *)any_bytes(n), n));
    PROVE(r->number == before - n && holds(r));
}
