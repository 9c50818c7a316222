/*
 * Handles that share a connection, and one with a connection of its own. A
 * program calls all their functions at random, while connections are cut and
 * stall. No item in hand changes, each accepted item arrives, no call spins.
 *
 * DELAYQ_TEST_SECONDS  duration in seconds; the default is 5
 */
#include "system.h"
#include "proxy.h"

#define BOX (64 * 1024)
#define MOST (1 << 22) /* limit of the number of offers */
#define OPEN 200       /* limit of the offers that are not yet acked */
#define IDLE 400       /* limit of the turns per second with nothing to do */

static struct {
    const char *name;
    int shares, outbox; /* shares: it uses the connection of handle 0 */
    delayq q;
    delayq_item item; /* the item in hand, unless its data is NULL */
} handles[] = {{.name = "a"},
               {.name = "b", .shares = 1, .outbox = 1},
               {.name = "a", .shares = 1},
               {.name = "b", .shares = 1},
               {.name = "a", .outbox = 1}};
enum { HANDLES = sizeof handles / sizeof *handles };
static char boxes[HANDLES][BOX];

static unsigned char *accepted, *acked; /* MOST of each */
static unsigned offers;
static int unacked; /* number of accepted offers that are not acked */
static long long found; /* number of calls that had something to do */

static unsigned number_of(const delayq_item *item) {
    unsigned n;
    CHECK(item->len >= sizeof n);
    memcpy(&n, item->data, sizeof n);
    return n;
}

static size_t payload_of(unsigned n, unsigned char *to) {
    size_t i, len = sizeof n + n * 7919 % 2000;
    memcpy(to, &n, sizeof n);
    for (i = sizeof n; i < len; i++) to[i] = (unsigned char)(n * 31 + i);
    return len;
}

static void check_item(const delayq_item *item) {
    unsigned char payload[2100];
    size_t len = payload_of(number_of(item), payload);
    CHECK_INT(item->len, len);
    if (memcmp(item->data, payload, len) != 0)
        FAIL("item %u is another one", number_of(item));
}

static void check_items(void) {
    int i;
    for (i = 0; i < HANDLES; i++)
        if (handles[i].item.data) check_item(&handles[i].item);
}

/* Note an ack, even if its reply was lost, since the item may be gone. */
static void note_ack(unsigned n, delayq_status status) {
    CHECK(n < offers);
    if (status != DELAYQ_OK && status != DELAYQ_ERR_UNKNOWN) return;
    if (accepted[n] && !acked[n]) unacked--;
    acked[n] = 1;
    found++;
}

static void offer(int i) {
    unsigned char payload[2100];
    size_t len = payload_of(offers, payload);
    CHECK(offers < MOST);
    if (delayq_offer(&handles[i].q, payload, len, rand() % 200) == DELAYQ_OK) {
        accepted[offers] = 1;
        unacked++;
        found++;
    }
    offers++;
}

/* Take an item. If one was in hand, it is forgotten, and its lease will end. */
static void take(int i, int64_t timeout_ms) {
    delayq_status status =
        delayq_take(&handles[i].q, &handles[i].item, timeout_ms);
    if (status != DELAYQ_OK) handles[i].item.data = NULL;
    found += status == DELAYQ_OK;
}

static void take_many(int i) {
    delayq_item items[3];
    size_t n, k;
    handles[i].item.data = NULL;
    if (delayq_take_many(&handles[i].q, items, 3, &n, 0) != DELAYQ_OK) return;
    for (k = 0; k < n; k++) check_item(&items[k]);
    delayq_ack_many(&handles[i].q, items, n);
    for (k = 0; k < n; k++) note_ack(number_of(&items[k]), items[k].acked);
    found++;
}

/* Settle the item in hand, if there is one. */
static void settle(int i, int how) {
    delayq *q = &handles[i].q;
    delayq_item *item = &handles[i].item;
    unsigned n;
    if (!item->data) return;
    n = number_of(item);
    if (how == 0) {
        if (delayq_extend(q, item, 400 * test_slow()) == DELAYQ_GONE)
            item->data = NULL;
    } else if (how == 1) {
        if (delayq_nack(q, item, rand() % 30 - 2) >= 0) item->data = NULL;
    } else if (how == 2) {
        delayq_status status = delayq_ack_take(q, item, rand() % 20);
        note_ack(n, item->acked);
        if (status != DELAYQ_OK) item->data = NULL;
    } else {
        delayq_status status = delayq_ack(q, item);
        note_ack(n, status);
        if (status >= 0) item->data = NULL;
    }
}

static void wait_for_some(void) {
    delayq *some[HANDLES];
    size_t n = 0;
    int i;
    for (i = 0; i < HANDLES; i++)
        if (rand() % 2) some[n++] = &handles[i].q;
    if (n > 0) delayq_wait(some, n, 1 + rand() % 30);
}

static void call_any(void) {
    int i = rand() % HANDLES, how = rand() % 16;
    long before = polls;
    if (how < 5 && unacked < OPEN)
        offer(i);
    else if (how < 7)
        take(i, 0);
    else if (how == 7)
        take(i, 1 + rand() % 30);
    else if (how == 8)
        take_many(i);
    else if (how == 9)
        wait_for_some();
    else if (how == 10)
        delayq_flush(&handles[i].q, rand() % 20);
    else if (how == 11)
        delayq_tick(&handles[i].q, NULL);
    else
        settle(i, how - 12);
    if (polls - before > 1000)
        FAIL("call %d polls %ld times", how, polls - before);
    check_items();
}

/* Take, tick and sleep, like a program that has nothing else to do. */
static void turn(void) {
    struct pollfd p[3 * HANDLES];
    int fds[3], i;
    int64_t least = 20, wait_ms;
    size_t n = 0, k, end;
    for (i = 0; i < HANDLES; i++) {
        do {
            take(i, 0);
            check_items();
            settle(i, 3);
        } while (handles[i].item.data && rand() % 4);
    }
    for (i = 0; i < HANDLES; i++) {
        delayq_tick(&handles[i].q, &wait_ms);
        check_items();
        if (wait_ms < least) least = wait_ms;
        end = delayq_fds(&handles[i].q, fds, 3);
        for (k = 0; k < end; k++) {
            p[n].fd = fds[k];
            p[n++].events = POLLIN;
        }
    }
    poll(p, (nfds_t)n, (int)least);
}

static void do_harm(void) {
    int how = rand() % 4;
    proxy->let_go = 1; /* releases the bytes that a stall has held */
    if (how == 0) proxy_strike(CUT, rand() % 2, rand() % 5000, 1);
    if (how == 1) ask("CLIENT KILL TYPE pubsub");
    if (how == 2) proxy->let_go = 0, proxy_strike(STALL, rand() % 2, 0, 1);
    if (how == 3) proxy_calm();
}

static void open_all(void) {
    int i;
    for (i = 0; i < HANDLES; i++) {
        delayq_options o = options_for(&main_server, handles[i].name);
        o.lease_ms = 400 * test_slow();
        o.backoff_ms = 2;
        o.backoff_max_ms = 20;
        if (handles[i].outbox) {
            o.outbox = boxes[i];
            o.outbox_size = BOX;
        }
        if (handles[i].shares) {
            o.url = NULL;
            o.io_timeout_ms = o.connect_timeout_ms = 0;
            o.share = &handles[0].q;
        } else {
            o.url = proxy_url();
            o.io_timeout_ms = 200 * test_slow();
            o.reconnect_max_ms = 20;
        }
        OK(&handles[i].q, delayq_open(&handles[i].q, &o));
    }
}

LONG_TEST(handles_on_one_line_lose_nothing_and_spin_in_no_call) {
    const char *text = getenv("DELAYQ_TEST_SECONDS");
    int seconds = text ? atoi(text) : 5, i;
    long long end = now_us() + seconds * 1000000LL, harm_us = 0, began_us;
    long long idle_us = 0, idle = 0, before, longest = 0;
    if (text) alarm((unsigned)seconds + 300);
    accepted = SHARED(unsigned char, MOST);
    acked = SHARED(unsigned char, MOST);
    proxy_start(&main_server);
    open_all();
    while (now_us() < end) {
        if (now_us() > harm_us) {
            harm_us = now_us() + rand() % 400000;
            do_harm();
        }
        for (i = rand() % 20; i > 0; i--) call_any();
        for (i = rand() % 4; i > 0; i--) {
            before = found;
            began_us = now_us();
            turn();
            idle = found == before ? idle + 1 : 0;
            idle_us = found == before ? idle_us + now_us() - began_us : 0;
            if (idle > longest) longest = idle;
            if (idle > IDLE && idle > idle_us * IDLE / 1000000)
                FAIL("%lld turns in %lld us found nothing to do", idle,
                     idle_us);
        }
    }
    proxy_calm();
    proxy->let_go = 1;
    for (end = now_us() + 60000000LL * test_slow(); unacked > 0; turn())
        if (now_us() > end) FAIL("%d items never came", unacked);
    printf("    %u offers, %ld polls, at most %lld idle turns\n", offers, polls,
           longest);
    for (i = HANDLES - 1; i >= 0; i--) {
        delayq_outbox_state state;
        if (handles[i].outbox) {
            OK(&handles[i].q, delayq_outbox(&handles[i].q, &state));
            CHECK_INT(state.dropped, 0);
        }
        delayq_close(&handles[i].q);
    }
}
