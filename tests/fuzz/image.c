/*
 * Fuzz the image of a kept outbox. A handle opens, uses and closes it, twice.
 * There must be no crash or hang, and an image that is refused must not change.
 *
 * The first byte of the input has option bits. With 1 or 2, the marks and
 * entries get correct CRCs and numbers, so that their contents are accepted.
 * With 2, the input has only the rings, and the marks are those of a new image.
 * With 2 and 4, the second ring begins in the middle of the input. Bits 8 and
 * 16 choose the wire. The other bytes are the image or the rings.
 *
 * The server, the clock and the functions are in reply.c.
 */
#define LLVMFuzzerTestOneInput reply_input
#include "reply.c"
#undef LLVMFuzzerTestOneInput

#define SIZE 8192
#define RINGS (SIZE - DQ_KEEP_RINGS - DQ_KEEP_STATE)

static unsigned char *image;

/* Give the entries of a ring correct numbers, sizes and CRCs, up to the first
 * entry that does not fit. */
static void seal_ring(unsigned char *data, size_t size, size_t from,
                      uint64_t number, uint32_t crc) {
    while (from + sizeof(dq_entry) <= size) {
        dq_entry *e = (dq_entry *)(void *)(data + from);
        e->number = ++number;
        e->op.len %= 400;
        e->op.key_len %= 300;
        e->op.id_settled %= 3;
        e->size = (uint32_t)dq_ring_entry_size(&e->op);
        if (e->size > size - from) break;
        if (e->op.key_len > 0) ((char *)(e + 1))[e->op.key_len] = '\0';
        crc = e->crc = dq_keep_entry_crc(e, crc);
        from += e->size;
    }
}

/* Returns a number for a mark. If n is near the limit of these numbers, it is
 * reduced, so that the next mark of the image does not reach the limit. */
static uint64_t in_use(uint64_t n) {
    return n < DQ_KEEP_NUMBER && n > DQ_KEEP_NUMBER - SIZE ? n - SIZE : n;
}

static void seal(const delayq *with) {
    dq_mark ours, *m = (dq_mark *)(void *)image;
    int i, k;
    dq_keep_describe(with, &ours);
    for (i = 0; i < 2; i++) {
        m = (dq_mark *)(void *)(image + i * DQ_KEEP_SLOT);
        m->magic = ours.magic;
        m->version = ours.version;
        m->entry_size = ours.entry_size;
        m->word = ours.word;
        m->wire = ours.wire;
        m->size = ours.size;
        m->name_len = ours.name_len;
        m->name_crc = ours.name_crc;
        for (k = 0; k < 2; k++) {
            m->ring[k].size = ours.ring[k].size;
            m->ring[k].head %= ours.ring[k].size + 1;
            m->ring[k].head &= ~(uint64_t)7;
            m->ring[k].settled = in_use(m->ring[k].settled);
        }
        m->generation = in_use(m->generation);
        m->crc = dq_keep_mark_crc(m);
    }
    for (k = 0; k < 2; k++)
        seal_ring(image + DQ_KEEP_RINGS + (k ? ours.ring[0].size : 0),
                  (size_t)ours.ring[k].size, (size_t)m->ring[k].head,
                  m->ring[k].settled, m->ring[k].crc);
}

static void use(const delayq_options *o) {
    static unsigned char before[SIZE];
    delayq_status status;
    const char *some = "OMTlbANUKcRTlbT";
    begin_run();
    server_from(0);
    memcpy(before, image, SIZE);
    status = delayq_open(q, o);
    check_status(status);
    if (status == DELAYQ_ERR_ARG) {
        CHECK(memcmp(before, image, SIZE) == 0);
        return;
    }
    run_op('b');
    run_op('T');
    run_op('I');
    run_op('l');
    while (*some) run_op(*some++);
    delayq_close(q);
    /* the first open has made the image valid */
    CHECK(delayq_open(q, o) == DELAYQ_OK);
    run_op('b');
    delayq_close(q);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    delayq_options o;
    int how = size > 0 ? data[0] : 0, i;
    size_t first;
    if (size < 1) return 0;
    data++, size--;
    begin_run();
    options_from(&o, 4 | (how >> 3 & 3));
    image = (unsigned char *)malloc(SIZE); /* its address is aligned to 16 */
    CHECK(image);
    memset(image, 0, SIZE);
    o.outbox = image;
    o.outbox_size = SIZE;
    o.outbox_keep = DELAYQ_KEEP;
    q->options = o;
    q->wire = o.wire ? o.wire : &dq_wire_native;
    if (how & 2) {
        first = how & 4 ? size / 2 : size;
        if (first > RINGS / 4 * 3) first = RINGS / 4 * 3;
        size -= first;
        if (size > RINGS / 4) size = RINGS / 4;
        memcpy(image + DQ_KEEP_RINGS, data, first);
        memcpy(image + DQ_KEEP_RINGS + (RINGS / 4 * 3 & ~15), data + first,
               size);
    } else {
        memcpy(image, data, size < SIZE ? size : SIZE);
    }
    if (how & 3) seal(q);
    use(&o);
    for (i = 0; i < CONNECTIONS; i++) hang_up(&connections[i]);
    free(image);
    return 0;
}
