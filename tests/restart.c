/*
 * kill -9 of the server. A redis-server with appendfsync always is killed at
 * random moments and started again. Meanwhile producers offer (with keys and
 * without), reschedule and cancel, and workers lease, ack and die. Each process
 * records in shared memory the status that it got for each item. No item may be
 * lost.
 */
#include "test.h"
#include <sys/time.h>
#include <sys/wait.h>

#define ITEMS 200000
#define PRODUCERS 3
#define WORKERS 3
#define LEASE_MS 150

enum told { NO, YES, MAYBE };

struct notes {
    volatile int stop_producers, stop_workers, round;
    volatile int next; /* the next item's id */
    volatile int ok_in_round[PRODUCERS + WORKERS];
    /* of type enum told */
    volatile unsigned char offered[ITEMS], cancelled[ITEMS];
    /* number of acks that have succeeded, and that may have succeeded */
    volatile unsigned char acked[ITEMS], ack_maybe[ITEMS];
    /* the item may not come before this time */
    volatile int64_t due_ms[ITEMS];
    /* no other worker may get the item before this time */
    volatile int64_t lease_end_ms[ITEMS];
};
static struct notes *notes;
static server s;
static const char *const with[] = {"--appendonly", "yes", "--appendfsync",
                                   "always", NULL};

/* Returns the server's clock, which is this machine's. */
static int64_t now_ms(void) {
    struct timeval t;
    gettimeofday(&t, NULL);
    return t.tv_sec * (int64_t)1000 + t.tv_usec / 1000;
}

static void open_one(delayq *q, int number, int64_t lease_ms) {
    delayq_options o = options_for(&s, "jobs");
    o.lease_ms = lease_ms;
    while (delayq_open(q, &o) != DELAYQ_OK) {
        CHECK(delayq_errmsg(q)[0]);
        delayq_close(q);
        usleep(5000);
    }
    notes->ok_in_round[number] = notes->round;
}

/* Returns 1 if the call succeeded. Otherwise checks that its error may happen
 * while the server dies and restarts. */
static int passes(delayq *q, delayq_status status) {
    if (status >= DELAYQ_OK) return 1;
    if (status != DELAYQ_ERR_IO && status != DELAYQ_ERR_TIMEOUT &&
        status != DELAYQ_ERR_AGAIN && status != DELAYQ_ERR_UNKNOWN)
        FAIL("%d: %s", status, delayq_errmsg(q));
    return 0;
}

/* --- producers ----------------------------------------------------------- */

static int new_item(void) {
    int id = __atomic_fetch_add(&notes->next, 1, __ATOMIC_RELAXED);
    CHECK(id < ITEMS);
    return id;
}

static void offer_one(delayq *q, delayq_message *m, int id) {
    static char text[16];
    char key[16];
    int tries = 0;
    delayq_status status;
    memset(m, 0, sizeof *m);
    m->data = text;
    m->len = (size_t)snprintf(text, sizeof text, "%d", id);
    m->delay_ms = rand() % 150;
    snprintf(key, sizeof key, "key%d", id);
    if (id % 3 == 0) m->key = key, m->key_ttl_ms = 60000;
    notes->due_ms[id] = now_ms() + m->delay_ms;
    notes->offered[id] = MAYBE; /* until the call returns */
    do {
        delayq_offer_message(q, m);
        status = m->status;
        passes(q, status);
        if (status == DELAYQ_ERR_UNKNOWN) usleep(2000);
    } while (status == DELAYQ_ERR_UNKNOWN && id % 2 && tries++ < 300);
    CHECK(status != DELAYQ_DUPLICATE);
    if (status == DELAYQ_OK) notes->offered[id] = YES;
    if (status < 0 && status != DELAYQ_ERR_UNKNOWN) notes->offered[id] = NO;
    m->key = NULL;
}

static void change_one(delayq *q, delayq_message *m, int id) {
    int64_t old = notes->due_ms[id], due;
    delayq_status status;
    if (id % 7 == 0) {
        notes->cancelled[id] = MAYBE;
        status = delayq_cancel(q, &m->ticket);
        passes(q, status);
        if (status == DELAYQ_OK) notes->cancelled[id] = YES;
        if (status != DELAYQ_OK && status != DELAYQ_ERR_UNKNOWN)
            notes->cancelled[id] = NO;
    } else if (id % 7 == 1) {
        due = now_ms() + 100;
        if (due < old) notes->due_ms[id] = due;
        status = delayq_reschedule(q, &m->ticket, 100);
        passes(q, status);
        if (status == DELAYQ_OK) notes->due_ms[id] = due;
    }
}

static void produce(void *argument) {
    int number = *(int *)argument, round, id;
    delayq_message m;
    delayq q;
    open_one(&q, number, 0);
    while (!notes->stop_producers) {
        round = notes->round;
        id = new_item();
        offer_one(&q, &m, id);
        if (m.status == DELAYQ_OK) notes->ok_in_round[number] = round;
        if (m.status == DELAYQ_OK) change_one(&q, &m, id);
        usleep(1000);
    }
    delayq_close(&q);
}

/* --- workers ------------------------------------------------------------- */

/* Check an item that a take returned. Until `sure_until` no other worker may
 * get this item. Returns its id. */
static int seen(const delayq_item *item, int64_t sure_until) {
    int64_t now = now_ms(), leased_ms;
    char text[16] = "";
    int id, acked;
    CHECK(item->len > 0 && item->len < sizeof text);
    memcpy(text, item->data, item->len);
    id = atoi(text);
    if (now < notes->due_ms[id] || now < item->due_ms)
        FAIL("item %d is %lld ms early", id,
             (long long)(notes->due_ms[id] - now));
    leased_ms = notes->lease_end_ms[id] - now;
    acked = notes->acked[id];
    /* skip the checks if another worker may have the item by now */
    if (now_ms() >= sure_until) return id;
    if (leased_ms > 0)
        FAIL("item %d is leased for %lld ms more", id, (long long)leased_ms);
    if (acked) FAIL("item %d comes after its ack", id);
    return id;
}

static void note_ack(delayq *q, int id, delayq_status acked) {
    passes(q, acked);
    if (acked == DELAYQ_ERR_UNKNOWN)
        __atomic_fetch_add(&notes->ack_maybe[id], 1, __ATOMIC_RELAXED);
    if (acked == DELAYQ_OK &&
        __atomic_fetch_add(&notes->acked[id], 1, __ATOMIC_RELAXED) > 0)
        FAIL("item %d is acked twice", id);
}

/* Ack the held item and take the next one. Sometimes die. */
static void toil(void *argument) {
    int number = *(int *)argument, round, id = -1, last;
    delayq_item item;
    delayq_status status;
    delayq q;
    int64_t before;
    open_one(&q, number, LEASE_MS);
    memset(&item, 0, sizeof item);
    while (!notes->stop_workers) {
        round = notes->round;
        last = id;
        before = now_ms();
        status = delayq_ack_take(&q, &item, 50);
        if (last >= 0) note_ack(&q, last, item.acked);
        id = -1;
        if (passes(&q, status)) notes->ok_in_round[number] = round;
        if (status != DELAYQ_OK) {
            memset(&item, 0, sizeof item); /* the item will come again */
            continue;
        }
        id = seen(&item, before + LEASE_MS);
        if (item.attempt > 0) notes->lease_end_ms[id] = before + LEASE_MS;
        if (rand() % 150 == 0) kill(getpid(), SIGKILL);
    }
    delayq_close(&q);
}

/* --- the run ------------------------------------------------------------- */

static int numbers[PRODUCERS + WORKERS];
static pid_t pids[PRODUCERS + WORKERS];
static int died;

/* Start a new worker in the place of each dead one. */
static void replace_dead(void) {
    int status, i;
    pid_t pid;
    for (i = PRODUCERS; i < PRODUCERS + WORKERS; i++) {
        pid = waitpid(pids[i], &status, WNOHANG);
        if (pid != pids[i]) continue;
        if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
            FAIL("a worker ended with %x", status);
        died++;
        pids[i] = spawn(toil, &numbers[i]);
    }
}

static int all_go_on(void) {
    int i;
    replace_dead();
    for (i = 0; i < PRODUCERS + WORKERS; i++)
        if (notes->ok_in_round[i] < notes->round) return 0;
    return 1;
}

/* Kill and restart the server several times. Each handle must work again. */
static void live_through(int restarts) {
    long long slowest = 0;
    int i;
    for (i = 0; i < restarts; i++) {
        long long from;
        usleep((useconds_t)(20000 + rand() % 300000));
        replace_dead();
        server_kill(&s, SIGKILL);
        usleep((useconds_t)(rand() % 100000));
        server_start_again(&s, with);
        from = now_us();
        notes->round++;
        UNTIL(all_go_on());
        if (now_us() - from > slowest) slowest = now_us() - from;
    }
    report_row("server killed by kill -9 eight times, every write synced",
               "`ERR_IO`, `_TIMEOUT`, `_AGAIN` or `_UNKNOWN`",
               "nothing lost, nothing acked twice", slowest);
}

static void stop(void) {
    int i;
    notes->stop_producers = 1;
    for (i = 0; i < PRODUCERS; i++) join(pids[i]);
    replace_dead();
    notes->stop_workers = 1;
    for (i = PRODUCERS; i < PRODUCERS + WORKERS; i++) {
        int status;
        waitpid(pids[i], &status, 0);
        if (status != 0 && !(WIFSIGNALED(status) && WTERMSIG(status) == 9))
            FAIL("a worker ended with %x", status);
    }
}

/* Take the remaining items, each exactly once. Returns how many there were. */
static int drain(unsigned char *left) {
    delayq_item item;
    delayq_counts c;
    delayq q;
    int n = 0, id;
    open_one(&q, 0, 0);
    for (;;) {
        OK(&q, delayq_count(&q, &c));
        if (c.pending + c.ready == 0) break;
        if (delayq_take(&q, &item, 1000) != DELAYQ_OK) continue;
        id = seen(&item, INT64_MAX);
        if (left[id]++) FAIL("item %d is there twice", id);
        n++;
    }
    CHECK_INT(c.dead, 0);
    delayq_close(&q);
    return n;
}

static void account(int id, int left) {
    int acked = notes->acked[id], gone = notes->cancelled[id];
    int maybe = notes->ack_maybe[id] > 0 || gone == MAYBE;
    if (acked > 1 || acked + left + (gone == YES) > 1)
        FAIL("item %d: acked %d times, %d left, cancelled %d", id, acked, left,
             gone);
    if (notes->offered[id] == YES && acked + left + (gone == YES) == 0 &&
        !maybe)
        FAIL("item %d is lost", id);
    if (notes->offered[id] == NO && acked + left > 0)
        FAIL("item %d was never offered", id);
}

TEST(kill_9_of_the_server_loses_nothing_and_doubles_nothing) {
    static unsigned char left[ITEMS];
    int i, offered = 0, unknown = 0, acked = 0, lost_acks = 0, cancelled = 0, n;
    notes = (struct notes *)shared(sizeof *notes);
    server_start(&s, with);
    for (i = 0; i < PRODUCERS + WORKERS; i++) {
        numbers[i] = i;
        pids[i] = spawn(i < PRODUCERS ? produce : toil, &numbers[i]);
    }
    live_through(test_brief() ? 4 : 8);
    stop();
    n = drain(left);
    for (i = 0; i < notes->next; i++) {
        account(i, left[i]);
        offered += notes->offered[i] == YES;
        unknown += notes->offered[i] == MAYBE;
        acked += notes->acked[i];
        lost_acks += notes->ack_maybe[i] > 0 && !notes->acked[i] && !left[i];
        cancelled += notes->cancelled[i] == YES;
    }
    printf("    %d offered, %d unknown, %d cancelled, %d acked, %d unknown, %d "
           "left; %d workers died\n",
           offered, unknown, cancelled, acked, lost_acks, n, died);
    CHECK(acked + n + cancelled <= offered + unknown);
    CHECK(acked > 0 && offered > 0);
    server_end(&s);
}
