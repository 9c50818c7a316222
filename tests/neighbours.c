/*
 * What others have written into the keys of a queue, by mistake or by malice,
 * neither ends a call's progress nor holds it up.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "test.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"

static delayq q;

/* --- peek ---------------------------------------------------------------- */

/* Page through, so many a page; how often each item was shown goes to seen,
 * by the last letter of its payload. */
static void page_through(size_t page, int seen[128]) {
    delayq_item items[8];
    delayq_ticket after;
    size_t n, i;
    int pages = 0;
    memset(&after, 0, sizeof after);
    memset(seen, 0, 128 * sizeof *seen);
    while (delayq_peek(&q, items, page, &n, &after) == DELAYQ_OK) {
        for (i = 0; i < n; i++) {
            const char *data = (const char *)items[i].data;
            seen[data[items[i].len - 1] & 127]++;
        }
        after = items[n - 1].ticket;
        if (++pages > 100) FAIL("still paging after 100 pages");
    }
}

/* Among good items one that has this score, and is or is not an element. */
static void is_shown_once(const char *score, int decodable) {
    unsigned char e[64];
    size_t n, page;
    int seen[128], i;
    ask("FLUSHALL");
    for (i = 0; i < 6; i++) {
        char payload = (char)('a' + i);
        n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\0", &payload, 1);
        e[8] = (unsigned char)i;
        ask("ZADD " ZSET " %d %b", 5000 + i / 2, e, n);
    }
    n = element(e, 16, 8, "NBCDEFGHIJKLM\0\0\0", "z", 1);
    if (!decodable) e[1] = 8, e[17] = 99;
    ask("ZADD " ZSET " %s %b", score, e, n);
    if (!decodable) ask("ZADD " ZSET " %s y", score);
    for (page = 1; page < 8; page++) {
        page_through(page, seen);
        for (i = 'a'; i <= 'f'; i++)
            if (seen[i] != 1)
                FAIL("score %s: a good item is shown %d times by pages of %zu",
                     score, seen[i], page);
        if (seen['z'] != 1 || seen['y'] != !decodable)
            FAIL("score %s: shown %d times by pages of %zu", score, seen['z'],
                 page);
    }
}

TEST(paging_by_peek_ends_and_shows_each_element_once) {
    static const char *const scores[] = {"5001",  "5001.5", "5000.4", "-5",
                                         "-0",    "-inf",   "+inf",   "1e20",
                                         "1e300", "5e-324", "-0.5",   "-1e300"};
    size_t i;
    open_queue(&q, "jobs");
    for (i = 0; i < sizeof scores / sizeof *scores; i++) {
        is_shown_once(scores[i], 1);
        is_shown_once(scores[i], 0);
    }
    delayq_close(&q);
}

/* Elements that begin alike are a forgery; the end is what matters. */
TEST(paging_by_peek_ends_where_elements_have_the_same_id) {
    unsigned char e[64];
    size_t page;
    int seen[128], i;
    open_queue(&q, "jobs");
    for (i = 0; i < 9; i++) {
        char payload[9] = "twins   ";
        size_t n;
        payload[i] = 't';
        n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\0", payload, 9);
        ask("ZADD " ZSET " 5000 %b", e, n);
    }
    for (page = 1; page < 8; page++) page_through(page, seen);
    delayq_close(&q);
}
