/*
 * Elements, tickets and dead letters with any bytes, from any program.
 */
#include "proof.h"

/* CBMC has no definitions of these functions. */
void *memchr(const void *bytes, int c, size_t n) {
    const char *at = (const char *)bytes;
    for (; n > 0; n--, at++)
        if (*at == (char)c) return (void *)(uintptr_t)at;
    return NULL;
}
/* This version is sufficient, since the formats used here contain no %. */
int snprintf(char *to, size_t size, const char *format, ...) {
    size_t n = 0;
    for (; format[n]; n++)
        if (n + 1 < size) to[n] = format[n];
    to[n + 1 < size ? n : size - 1] = '\0';
    return (int)n;
}
size_t strspn(const char *text, const char *of) {
    size_t n = 0;
    while (text[n] && strchr(of, text[n])) n++;
    return n;
}
size_t strcspn(const char *text, const char *of) {
    size_t n = 0;
    while (text[n] && !strchr(of, text[n])) n++;
    return n;
}

/* Read any bytes, up to the length of the largest element, as an element. */
void proof_parse(void) {
    size_t n = nondet_size(), start;
    unsigned char *e;
    int kind;
    ASSUME(n <= DQ_PAYLOAD_MAX + DQ_ELEM_HEADER_MAX);
    e = any_bytes(n);
    kind = dq_elem_parse(e, n, nondet_int(), nondet_int(), &start);
    PROVE(kind == -1 || kind == DQ_ELEM_OLD || kind == 8 || kind == 16);
    PROVE(start <= n);
    PROVE(kind >= 0 ? start >= (size_t)kind + 4 : start == 0);
    dq_elem_attempt(e, kind);
}

/* Prove that a handle reads an element as it has written it. */
void proof_written(void) {
    const delayq *q = any_handle();
    unsigned char id[16], header[DQ_ELEM_HEADER_MAX], *e;
    size_t len = nondet_size(), n, start, i;
    int kind;
    ASSUME(len <= 64);
    for (i = 0; i < sizeof id; i++) id[i] = nondet_byte();
    n = dq_elem_write_header(q, id, len, header);
    PROVE(n <= sizeof header);
    e = any_bytes(n + len);
    memcpy(e, header, n);
    kind = dq_elem_parse_of(q, e, n + len, &start);
    PROVE(kind == (q->wire->old_first ? DQ_ELEM_OLD : 16));
    PROVE(start == n);
}

/* Read any 52 bytes as a ticket, which may lack its NUL. */
void proof_ticket(void) {
    delayq_ticket *t = (delayq_ticket *)any_bytes(sizeof *t);
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len, n;
    if (!dq_elem_is_ticket(t->text)) return;
    n = dq_elem_ticket_prefix(t->text, key, &due_len);
    PROVE(n == 8 || n == 9 || n == 17);
    PROVE(due_len >= 1 && due_len <= 16);
}

/* Prove that an element's ticket is read as the element's first bytes. */
void proof_ticket_written(void) {
    int kinds[3] = {DQ_ELEM_OLD, 8, 16}, which = nondet_int(), kind;
    unsigned char e[DQ_ELEM_PREFIX_MAX], key[DQ_ELEM_PREFIX_MAX];
    int64_t due_ms = nondet_int64();
    size_t due_len, n, i;
    delayq_ticket t;
    ASSUME(which >= 0 && which < 3);
    ASSUME(due_ms >= 0 && due_ms <= DQ_MAX_DUE);
    kind = kinds[which];
    for (i = 0; i < sizeof e; i++) e[i] = nondet_byte();
    if (kind) e[0] = (unsigned char)kind;
    dq_elem_ticket(&t, due_ms, e, kind);
    n = dq_elem_ticket_prefix(t.text, key, &due_len);
    PROVE(n == (kind == DQ_ELEM_OLD ? 8u : (size_t)kind + 1));
    for (i = 0; i < n; i++) PROVE(key[i] == e[i]);
}

void proof_due(void) {
    int64_t due_ms = dq_num_due(any_text(30));
    PROVE(due_ms >= 0 && due_ms <= DQ_MAX_DUE);
}

void proof_decimal(void) {
    char *to = (char *)any_bytes(20);
    size_t n = dq_num_decimal(to, nondet_int64());
    PROVE(n >= 1 && n <= 20);
}

/* Read one element of a reply to a peek. */
void proof_peek_item(void) {
    redisReply r;
    delayq_item item;
    size_t n = nondet_size();
    ASSUME(n <= 28);
    r.str = any_text(n + 1);
    r.len = n;
    r.type = nondet_int();
    if (!dq_peek_item(any_handle(), &item, &r, any_text(4), nondet_int() & 3))
        return;
    PROVE((const char *)item.data >= r.str);
    PROVE((const char *)item.data + item.len == r.str + n);
    PROVE(memchr(item.ticket.text, 0, sizeof item.ticket.text));
}

/* Read a dead letter. Its reason, its time and its text precede the element. */
void proof_dead_letter(void) {
    redisReply r;
    delayq_dead d;
    size_t n = nondet_size();
    ASSUME(n <= 28);
    r.str = any_text(n + 1);
    r.len = n;
    r.type = REDIS_REPLY_STRING;
    PROVE(dq_dead_letter(any_handle(), &d, &r) == 1);
    PROVE((const char *)d.data >= r.str);
    PROVE((const char *)d.data + d.len == r.str + n);
    PROVE(memchr(d.reason, 0, sizeof d.reason));
}
