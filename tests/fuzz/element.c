/*
 * Fuzz the bytes of an element and the text of a ticket. Reads must stay within
 * the input, and delayq must read its own bytes as it has written them.
 *
 * The input has a byte of options (1: a big-endian server, 2: one of 32 bits,
 * 4: an old Redisson), 16 bytes of id, 8 bytes of due time, and bytes to read.
 */
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "../../delayq.h"
#include "fuzz.h"

#define HEAD 25

/* Read any bytes as an element. */
static void check_split(const unsigned char *data, size_t size, int big,
                        int old_first) {
    unsigned char *e = (unsigned char *)copy(data, size);
    size_t at = 0;
    int kind = dq_elem_parse(e, size, big, old_first, &at);
    CHECK(kind == 16 || kind == 8 || kind == DQ_ELEM_OLD || kind == -1);
    if (kind >= 0) CHECK(at >= (size_t)kind + 4 && at <= size);
    free(e);
}

/* Check that an element of delayq's own is split at the end of its header. */
static void check_head(const delayq *q, const unsigned char *id,
                       const unsigned char *payload, size_t len) {
    int old = q->wire->old_first;
    unsigned char head[DQ_ELEM_HEADER_MAX], *e;
    size_t n = dq_elem_write_header(q, id, len, head), at = 0;
    CHECK(n <= sizeof head);
    e = (unsigned char *)malloc(n + len);
    CHECK(e);
    memcpy(e, head, n);
    if (len > 0) memcpy(e + n, payload, len);
    CHECK(dq_elem_parse(e, n + len, q->conn->long_big, old, &at) ==
          (old ? DQ_ELEM_OLD : 16));
    CHECK(at == n);
    free(e);
}

/* Check that the key made from a ticket's text makes the same text again. */
static void check_same_text(const char *text, const unsigned char *key,
                            size_t n, size_t due_len) {
    int kind = n == 17 ? 16 : n == 9 ? 8 : DQ_ELEM_OLD;
    delayq_ticket again;
    dq_elem_ticket(&again, dq_num_due(text), key, kind);
    if (text[0] == '0' && due_len > 1) return;
    if (dq_num_due(text) > DQ_MAX_DUE - 1000) return;
    CHECK(strcasecmp(again.text, text) == 0);
}

/* Check that the key made from an element's ticket is the element's start. */
static void check_ticket(int64_t due_ms, const unsigned char *e, int kind) {
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n;
    delayq_ticket t;
    memset(&t, 0xa5, sizeof t);
    dq_elem_ticket(&t, due_ms, e, kind);
    CHECK(memchr(t.text, 0, sizeof t.text));
    CHECK(dq_elem_is_ticket(t.text));
    n = dq_elem_ticket_prefix(t.text, key, &due_len);
    CHECK(n == (kind == 16 ? 17u : kind == 8 ? 9u : 8u));
    CHECK(memcmp(key, e, n) == 0);
    CHECK(dq_num_due(t.text) == due_ms && t.text[due_len] == '-');
    check_same_text(t.text, key, n, due_len);
}

/* Read any bytes as a ticket without a terminating NUL. */
static void check_text(const unsigned char *data, size_t size) {
    delayq_ticket *t = (delayq_ticket *)malloc(sizeof *t);
    unsigned char key[DQ_ELEM_PREFIX_MAX];
    size_t due_len = 0, n;
    CHECK(t);
    memset(t, 0, sizeof *t);
    memcpy(t, data, size < sizeof *t ? size : sizeof *t);
    if (dq_elem_is_ticket(t->text)) {
        n = dq_elem_ticket_prefix(t->text, key, &due_len);
        CHECK(n == 17 || n == 9 || n == 8);
        CHECK(due_len >= 1 && due_len <= 16 && t->text[due_len] == '-');
        if (n == 17) CHECK(key[0] == 16);
        check_same_text(t->text, key, n, due_len);
    }
    free(t);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    static delayq q;
    unsigned char e[HEAD];
    int64_t due;
    if (size < HEAD) return 0;
    q.conn = &q.own;
    q.conn->long_big = data[0] & 1;
    q.conn->long_size = data[0] & 2 ? 4 : 8;
    q.wire = data[0] & 4 ? DELAYQ_REDISSON_OLD : &dq_wire_native;
    due = (int64_t)(dq_elem_get_uint(data + 17, 8, 0) & (uint64_t)DQ_MAX_DUE);
    /* the latest due time that an offer may have */
    if (due > DQ_MAX_DUE - 1000) due = DQ_MAX_DUE - 1000;
    check_split(data + HEAD, size - HEAD, q.conn->long_big, data[0] >> 2 & 1);
    check_text(data + HEAD, size - HEAD);
    check_head(&q, data + 1, data + HEAD, size - HEAD);
    e[0] = 16;
    memcpy(e + 1, data + 1, 16);
    check_ticket(due, e, 16);
    check_ticket(due, e, 8);
    check_ticket(due, data + 1, DQ_ELEM_OLD);
    return 0;
}
