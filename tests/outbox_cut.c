/*
 * Images of an outbox after a kill or a power cut. Random programs run with the
 * library in this file, which records each store to the image. The tests then
 * make the image that a kill after each store would leave, with all stores up
 * to this one. They also make images that a power cut would leave, with pages
 * from before and after some stores. Each image is opened. An image after a
 * kill must contain exactly the ops that were accepted before the kill. An
 * image after a power cut must contain the ops up to the last whole one.
 */
static void *note_copy(void *to, const void *from, unsigned long n);
#define DQ_KEEP_COPY note_copy
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "outbox.h"

#define SIZE 8192
#define OPS 4000     /* limit of the ops in a run */
#define STORES 60000 /* limit of the stores in a run */
#define BYTES (4 << 20)

static unsigned char *image; /* the outbox of the random program */

/* --- the stores ----------------------------------------------------------- */

static struct store {
    /* position in the image, length, and position of the data in `bytes` */
    unsigned at, n, from;
} * stores;
static unsigned store_count, byte_count;
static unsigned char *bytes;
static int noting;

/* Copy n bytes, and record them as one or more stores of random lengths. */
static void *note_copy(void *to, const void *from, unsigned long n) {
    unsigned char *p = (unsigned char *)to;
    unsigned long done = 0, part;
    memcpy(to, from, n);
    while (noting && done < n) {
        part = 1 + (unsigned long)rand() % (n / 2 + 1);
        if (part > n - done || n <= 4) part = n - done;
        CHECK(store_count < STORES && byte_count + part <= BYTES);
        CHECK(p >= image && p + n <= image + SIZE);
        stores[store_count].at = (unsigned)(p + done - image);
        stores[store_count].n = (unsigned)part;
        stores[store_count++].from = byte_count;
        memcpy(bytes + byte_count, p + done, part);
        byte_count += (unsigned)part;
        done += part;
    }
    return to;
}

static void apply_store(unsigned char *to, unsigned i) {
    memcpy(to + stores[i].at, bytes + stores[i].from, stores[i].n);
}

/* --- the calls of the program --------------------------------------------- */

/* An accepted op. Its stores have the numbers `begun` to `ended` - 1. */
struct op {
    unsigned begun, ended, at, size; /* at, size: place in the image */
    uint32_t crc;
    unsigned char entry[1024];
};
static struct op *ops[2]; /* ops of each ring, indexed by number */
static unsigned op_count[2];

/* The number of settled ops in each ring after `stores` stores. */
static struct known { unsigned stores, settled[2]; } * known;
static unsigned known_count;

static delayq q;

static void note_state(void) {
    int i;
    known[known_count].stores = store_count;
    for (i = 0; i < 2; i++)
        known[known_count].settled[i] =
            (unsigned)dq_keep_ring(&q, i)->lane.settled;
    known_count++;
    CHECK(known_count < STORES);
}

/* Record the op of a call that has returned. */
static void note_call(unsigned begun, delayq_status status) {
    int i;
    if (status == DELAYQ_OK)
        for (i = 0; i < 2; i++) {
            dq_ring *ring = dq_keep_ring(&q, i);
            struct op *op = &ops[i][op_count[i] + 1];
            dq_entry *e;
            if (ring->lane.accepted == op_count[i]) continue;
            CHECK_INT(ring->lane.accepted, ++op_count[i]);
            CHECK(op_count[i] < OPS);
            op->begun = begun;
            op->ended = store_count;
            /* the op is the last entry */
            e = (dq_entry *)(void *)(image + 1024);
            if (i == 1) e = (dq_entry *)(void *)ring->data;
            while (e->number != op_count[i] || e->op.verb == NULL ||
                   e->crc != ring->last_crc)
                e = (dq_entry *)(void *)((char *)e + 8);
            op->size = e->size;
            op->at = (unsigned)((unsigned char *)e - image);
            op->crc = e->crc;
            CHECK(e->size <= sizeof op->entry);
            memcpy(op->entry, e, e->size);
        }
    else
        CHECK(status == DELAYQ_ERR_FULL || status == DELAYQ_ERR_IO);
    note_state();
}

static delayq_options options_of(const char *url, void *memory) {
    delayq_options o = options_for(&main_server, "jobs");
    if (url) o.url = url;
    o.outbox = memory;
    o.outbox_size = SIZE;
    o.outbox_keep = DELAYQ_KEEP;
    o.lease_ms = 60000;
    o.reconnect_max_ms = 20;
    return o;
}

static void random_call(void) {
    static char payload[400];
    static delayq_ticket ticket; /* ticket of the last offer that has one */
    unsigned begun = store_count;
    delayq_item item;
    delayq_message m;
    delayq_status status = DELAYQ_OK;
    memset(&item, 0, sizeof item);
    snprintf(payload, sizeof payload, "%u", op_count[0]);
    snprintf(item.ticket.text, sizeof item.ticket.text,
             "%d-00000000000000010203040506%06x", 1700000000 + rand() % 1000,
             0x010001 + rand() % 64);
    memset(&m, 0, sizeof m);
    m.data = payload;
    m.len = (size_t)(rand() % 300 + 5);
    m.delay_ms = 3600000;
    switch (rand() % 12) {
    case 0:
    case 1:
    case 2: status = delayq_offer(&q, m.data, m.len, 3600000); break;
    case 3:
    case 4:
        /* Without `replace` an offer whose key exists changes nothing. But it
         * would be stored if an old image sent it after a cancel of the key. */
        m.replace = 1;
        m.key = rand() % 2 ? "k" : "other";
        m.key_ttl_ms = 60000; /* fall through */
    case 5:
        status = delayq_offer_message(&q, &m);
        if (status == DELAYQ_OK) ticket = m.ticket;
        break;
    case 6:
        if (ticket.text[0]) status = delayq_cancel(&q, &ticket);
        if (status == DELAYQ_OK) ticket.text[0] = '\0';
        break;
    case 7:
        if (ticket.text[0]) status = delayq_reschedule(&q, &ticket, 7200000);
        break;
    case 8: status = delayq_cancel_key(&q, "k"); break;
    case 9: status = delayq_ack(&q, &item); break;
    case 10: status = delayq_nack(&q, &item, 5000); break;
    case 11: status = delayq_bury(&q, &item, "why"); break;
    }
    note_call(begun, status);
}

/* Close the handle, but leave the image as it was. Clear its last 2,048 bytes,
 * which mark it as in use, because the next program is another process. */
static void die(delayq *handle) {
    static unsigned char before[SIZE];
    char *memory = (char *)handle->options.outbox;
    memcpy(before, memory, SIZE);
    delayq_close(handle);
    memcpy(memory, before, SIZE);
    memset(memory + SIZE - 2048, 0, 2048);
}

/* Run a random program that dies and resumes. At its end all ops are done. */
static void run_program(int calls) {
    delayq_options o = options_of(NULL, image);
    int i;
    memset(image, 0, SIZE);
    store_count = byte_count = known_count = op_count[0] = op_count[1] = 0;
    noting = 1;
    OK(&q, delayq_open(&q, &o));
    note_state();
    for (i = 0; i < calls; i++) {
        random_call();
        if (rand() % 3 == 0) turn(&q);
        if (rand() % 8 == 0) usleep(200);
        if (rand() % 8 == 0) SETTLE(&q); /* an empty ring is reset */
        note_state();
        if (rand() % 60 > 0) continue;
        die(&q);
        OK(&q, delayq_open(&q, &o));
        note_state();
    }
    SETTLE(&q);
    note_state();
    die(&q);
    noting = 0;
}

/* --- the content of an image ---------------------------------------------- */

static unsigned char *resumed; /* the image that is opened */

/* Compare each entry with the op of its number, from the last settled op on. */
static void check_entries(const delayq *r, int i) {
    dq_ring *ring = dq_keep_ring(r, i);
    dq_cursor c;
    dq_cursor_begin(&c, &ring->lane, SIZE_MAX);
    while (dq_cursor_next(&c)) {
        unsigned number = (unsigned)(ring->lane.settled + c.number + 1);
        const struct op *op = &ops[i][number];
        dq_entry made;
        CHECK(number <= op_count[i]);
        memcpy(&made, op->entry, sizeof made);
        CHECK_INT(c.entry->number, number);
        CHECK_INT(c.entry->crc, made.crc);
        CHECK_INT(c.op->len, made.op.len);
        CHECK_INT(c.op->verb->code, made.op.code);
        CHECK(memcmp(c.entry + 1, op->entry + sizeof made,
                     made.size - sizeof made - 7) == 0 ||
              made.size < sizeof made + 7);
    }
}

/* Open `resumed`. Returns 0 if this image is refused. */
static int resume(delayq *r) {
    delayq_options o = options_of("unix:///nonexistent/delayq", resumed);
    delayq_status status;
    int i;
    for (i = SIZE - 2048; i < SIZE; i++) resumed[i] = (unsigned char)rand();
    status = delayq_open(r, &o);
    if (status == DELAYQ_ERR_ARG) return 0;
    OK(r, status);
    for (i = 0; i < 2; i++) check_entries(r, i);
    return 1;
}

/* Open the image after `count` stores, and compare it with the ops that were
 * accepted and settled by then. */
static void check_prefix(unsigned count) {
    unsigned k = 0, least, most;
    delayq r;
    int i;
    if (!resume(&r)) FAIL("after %u stores: %s", count, delayq_errmsg(&r));
    while (k + 1 < known_count && known[k + 1].stores <= count) k++;
    for (i = 0; i < 2; i++) {
        dq_ring *ring = dq_keep_ring(&r, i);
        for (least = op_count[i]; least > 0; least--)
            if (ops[i][least].ended <= count) break;
        for (most = least; most < op_count[i]; most++)
            if (ops[i][most + 1].begun >= count) break;
        if (ring->lane.accepted < least || ring->lane.accepted > most)
            FAIL("after %u stores ring %d has %u ops, not %u to %u", count, i,
                 (unsigned)ring->lane.accepted, least, most);
        least = known[k].stores <= count ? known[k].settled[i] : 0;
        most = k + 1 < known_count ? known[k + 1].settled[i] : op_count[i];
        if (ring->lane.settled < least || ring->lane.settled > most)
            FAIL("after %u stores ring %d has settled %u, not %u to %u", count,
                 i, (unsigned)ring->lane.settled, least, most);
    }
    delayq_close(&r);
}

/* If the newer mark of an image is damaged, the image still contains the same
 * ops, and perhaps some more that were settled. */
static void check_damaged(const unsigned char *prefix, unsigned count) {
    uint64_t accepted[2];
    dq_mark mark[2];
    delayq r;
    int i;
    memcpy(resumed, prefix, SIZE);
    for (i = 0; i < 2; i++) {
        memcpy(&mark[i], prefix + 512 * i, sizeof mark[i]);
        if (mark[i].crc != dq_keep_mark_crc(&mark[i])) return;
    }
    CHECK(resume(&r));
    for (i = 0; i < 2; i++) accepted[i] = dq_keep_ring(&r, i)->lane.accepted;
    delayq_close(&r);
    memcpy(resumed, prefix, SIZE);
    i = mark[1].generation > mark[0].generation;
    resumed[512 * i + 40] ^= 1;
    CHECK(resume(&r));
    for (i = 0; i < 2; i++)
        if (dq_keep_ring(&r, i)->lane.accepted != accepted[i])
            FAIL("after %u stores the older mark leads to %u ops, not %u",
                 count, (unsigned)dq_keep_ring(&r, i)->lane.accepted,
                 (unsigned)accepted[i]);
    delayq_close(&r);
}

/* Send the ops of an old image again. They have all been done, so this must
 * change nothing in Redis. */
static void check_resend(void) {
    char *before = strdup(contents(main_connection()));
    delayq_options o = options_of(NULL, resumed);
    OK(&q, delayq_open(&q, &o));
    SETTLE(&q);
    delayq_close(&q);
    CHECK_TEXT(contents(main_connection()), before);
    free(before);
}

/* Returns the number of random programs to run. */
static int runs(int usual) {
    const char *text = getenv("DELAYQ_TEST_RUNS");
    return text ? atoi(text) : usual;
}

static void prepare(void) {
    image = SHARED(unsigned char, SIZE);
    resumed = SHARED(unsigned char, SIZE);
    stores = SHARED(struct store, STORES);
    bytes = SHARED(unsigned char, BYTES);
    ops[0] = SHARED(struct op, OPS + 1);
    ops[1] = SHARED(struct op, OPS + 1);
    known = SHARED(struct known, STORES);
}

LONG_TEST(an_outbox_that_is_cut_at_any_store_holds_what_was_accepted) {
    static unsigned char prefix[SIZE];
    unsigned done;
    int run;
    prepare();
    for (run = 0; run < runs(50 / test_step(1, 7)); run++) {
        srand((unsigned)run);
        ask("FLUSHALL");
        run_program(60);
        memset(prefix, 0, SIZE);
        for (done = 0; done <= store_count; done++) {
            if (done > 0) apply_store(prefix, done - 1);
            memcpy(resumed, prefix, SIZE);
            check_prefix(done);
            check_damaged(prefix, done);
            if (rand() % 500 > 0) continue;
            memcpy(resumed, prefix, SIZE);
            check_resend();
        }
    }
}

/* Returns 1 if the image contains the whole entry of an op. */
static int is_whole(const struct op *op) {
    dq_entry made;
    size_t n = offsetof(dq_entry, op) + offsetof(dq_op, has_id);
    memcpy(&made, op->entry, sizeof made);
    return memcmp(resumed + op->at, op->entry, n) == 0 &&
           memcmp(resumed + op->at + sizeof made, op->entry + sizeof made,
                  op->size - sizeof made) == 0;
}

TEST(an_outbox_whose_pages_are_torn_holds_whole_ops_up_to_the_last) {
    static unsigned char old[SIZE], new[SIZE];
    static const int pages[] = {512, 4096};
    int run, i, k, refused = 0, tries = 0, lost = 0;
    prepare();
    for (run = 0; run < runs(20); run++) {
        srand((unsigned)run);
        ask("FLUSHALL");
        run_program(60);
        for (i = 0; i < 400; i++) {
            unsigned from = (unsigned)rand() % (store_count + 1), to, n;
            int page = pages[i % 2];
            delayq r;
            to = from + (unsigned)rand() % (store_count - from + 1);
            if (i % 4 > 1 && to > from + 40) to = from + 40;
            memset(old, 0, SIZE);
            for (n = 0; n < from; n++) apply_store(old, n);
            memcpy(new, old, SIZE);
            for (; n < to; n++) apply_store(new, n);
            for (k = 0; k < SIZE; k += page)
                memcpy(resumed + k, (rand() % 2 ? old : new) + k, (size_t)page);
            tries++;
            if (!resume(&r)) {
                CHECK_HAS(delayq_errmsg(&r), "is damaged");
                /* one mark is half written, and the other is too old */
                refused++;
                continue;
            }
            for (k = 0; k < 2; k++) {
                dq_ring *ring = dq_keep_ring(&r, k);
                unsigned next = (unsigned)ring->lane.accepted + 1;
                lost += next <= op_count[k] && ops[k][next].ended <= to;
                if (next > 1 && next <= op_count[k] &&
                    ring->lane.settled < ring->lane.accepted &&
                    ops[k][next].ended <= to && is_whole(&ops[k][next]))
                    FAIL("op %u of ring %d is whole, and missing", next, k);
            }
            delayq_close(&r);
        }
    }
    CHECK(refused * 50 < tries);
    CHECK(lost > 0 && lost < tries);
}
