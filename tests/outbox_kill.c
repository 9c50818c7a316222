/*
 * Programs are killed by kill -9 at random moments. The next program goes on
 * with the outbox in a mapped file. The server, whose AOF is always synced, is
 * killed, too. A program notes each accepted op in a second mapped file before
 * its next call. Each noted op must be done exactly once, in order. Besides, at
 * most one op per life may be done that was accepted and not yet noted.
 *
 * DELAYQ_TEST_KILLS=2000 sets the number of kills. The default is 60.
 */
#include "outbox.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define LIVES 3000
#define MOST 300 /* limit of the offers in one life */
#define ITEMS 4000

/* The content of the second file. */
static struct notes {
    int offers[LIVES]; /* number of noted offers in each life */
    /* for each item of the queue `in`: 2 once its call has begun, 1 once the
     * call has returned DELAYQ_OK */
    unsigned char acked[ITEMS];
    unsigned char nacked[ITEMS];
    volatile int acks, nacks; /* number of calls that have returned OK */
} * notes;

static server aof;

static void *map_file(const char *name, size_t size) {
    char path[160];
    int fd;
    void *p;
    snprintf(path, sizeof path, "%s/%s", aof.dir, name);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    CHECK(fd >= 0 && ftruncate(fd, (off_t)size) == 0);
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    close(fd);
    return p;
}

static delayq_options kept(const char *name, const char *file) {
    delayq_options o = options_for(&aof, name);
    o.outbox = map_file(file, BOX);
    o.outbox_size = BOX;
    o.outbox_keep = DELAYQ_KEEP;
    o.reconnect_max_ms = 20;
    o.lease_ms = 3600000;
    return o;
}

/* Offer to one queue, and ack or nack items of another, until somebody kills
 * this process. Items with even numbers are acked. */
static void live(int life) {
    static delayq out, in;
    delayq_options o = kept("out", "out.image"), p = kept("in", "in.image");
    delayq_item item;
    delayq_message m;
    char text[64];
    int n = 0, number;
    OK(&out, delayq_open(&out, &o));
    OK(&in, delayq_open(&in, &p));
    srand((unsigned)life);
    for (;;) {
        delayq_status status;
        snprintf(text, sizeof text, "%04d %04d%*s", life, n, rand() % 30, "");
        if (n < MOST && rand() % 2) {
            status = delayq_offer(&out, text, strlen(text), 3600000);
        } else {
            m = message(text, 3600000);
            status = n < MOST ? delayq_offer_message(&out, &m) : DELAYQ_EMPTY;
        }
        if (status == DELAYQ_OK) notes->offers[life] = ++n;
        if (rand() % 3 == 0) delayq_tick(&out, NULL);
        if (delayq_take(&in, &item, 0) == DELAYQ_OK) {
            number = atoi((const char *)item.data);
            if (number % 2) {
                notes->nacked[number] = 2;
                status = delayq_nack(&in, &item, 7200000);
                if (status == DELAYQ_OK) notes->nacked[number] = 1;
                notes->nacks += status == DELAYQ_OK;
            } else {
                notes->acked[number] = 2;
                status = delayq_ack(&in, &item);
                if (status == DELAYQ_OK) notes->acked[number] = 1;
                notes->acks += status == DELAYQ_OK;
            }
            CHECK(status == DELAYQ_OK || status == DELAYQ_ERR_FULL);
        }
        delayq_tick(&in, NULL);
        if (rand() % 16 == 0) usleep((useconds_t)rand() % 300);
    }
}

static pid_t start_life(int life) {
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid == 0) live(life);
    return pid;
}

static void restart_server(const char *const *synced) {
    server_kill(&aof, SIGKILL);
    usleep((useconds_t)(rand() % 20000));
    server_start_again(&aof, synced);
}

/* Read all pending payloads, in order. Dead letters are not pending items. */
static size_t read_pending(const char *name, char (*to)[64], int64_t *due_ms) {
    delayq q;
    static delayq_item page[1000];
    delayq_options o = options_for(&aof, name);
    delayq_ticket after = {""};
    size_t n, all = 0, i;
    OK(&q, delayq_open(&q, &o));
    for (;;) {
        delayq_status status = delayq_peek(&q, page, 1000, &n, &after);
        if (status == DELAYQ_EMPTY) break;
        OK(&q, status);
        for (i = 0; i < n; i++) {
            CHECK(page[i].len < 64);
            memcpy(to[all], page[i].data, page[i].len);
            to[all][page[i].len] = '\0';
            if (due_ms) due_ms[all] = page[i].due_ms;
            all++;
        }
        after = page[n - 1].ticket;
    }
    delayq_close(&q);
    return all;
}

/* Run the ops that are left in both images. */
static void finish(void) {
    delayq q;
    delayq_options o = kept("out", "out.image");
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
    o = kept("in", "in.image");
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_flush(&q, 20000));
    CHECK_INT(box(&q).dropped, 0);
    delayq_close(&q);
}

/* Check that the pending items are the noted offers of each life, in order, and
 * at most one more offer per life. */
static void check_offers(int lives) {
    char(*pending)[64] = (char(*)[64])shared(LIVES * MOST / 4 * 64);
    size_t n = read_pending("out", pending, NULL), i;
    static int next[LIVES];
    int life, number, last = 0;
    for (i = 0; i < n; i++) {
        CHECK(sscanf(pending[i], "%d %d", &life, &number) == 2);
        CHECK(life >= last && life < lives);
        if (number != next[life])
            FAIL("of life %d number %d comes, not %d", life, number,
                 next[life]);
        next[life]++;
        last = life;
    }
    for (life = 0; life < lives; life++)
        if (next[life] != notes->offers[life] &&
            next[life] != notes->offers[life] + 1)
            FAIL("of life %d there are %d of %d offers", life, next[life],
                 notes->offers[life]);
    printf("    %d lives, %d offers", lives, (int)n);
}

/* Check that each acked item is gone, and that each nacked item is due at the
 * right time. All other items must still be in the queue. */
static void check_changes(int64_t now_ms) {
    static char pending[ITEMS][64];
    static int64_t due_ms[ITEMS];
    static unsigned char there[ITEMS];
    size_t n = read_pending("in", pending, due_ms), i;
    int number, acked = 0, nacked = 0, k;
    redisContext *c = server_connect(&aof);
    redisReply *r = run(c, "LRANGE in 0 -1");
    for (k = 0; k < (int)r->elements; k++) {
        number = atoi(r->element[k]->str);
        CHECK_INT(there[number]++, 0);
    }
    freeReplyObject(r);
    redisFree(c);
    for (i = 0; i < n; i++) {
        number = atoi(pending[i]);
        CHECK_INT(there[number]++, 0);
        if (notes->nacked[number] == 1)
            CHECK(due_ms[i] > now_ms + 5400000);
        else if (notes->nacked[number] == 0)
            CHECK(due_ms[i] < now_ms + 5400000);
    }
    for (number = 0; number < ITEMS; number++) {
        if (notes->acked[number] == 1) CHECK_INT(there[number], 0);
        if (notes->acked[number] == 0) CHECK_INT(there[number], 1);
        acked += notes->acked[number] > 0;
        nacked += notes->nacked[number] > 0;
    }
    printf(", %d acks, %d nacks\n", acked, nacked);
    CHECK(acked > 0 && nacked > 0);
}

LONG_TEST(
    programs_with_a_kept_outbox_are_killed_and_no_op_is_lost_or_done_twice) {
    static const char *const synced[] = {"--appendonly", "yes", "--appendfsync",
                                         "always", NULL};
    const char *text = getenv("DELAYQ_TEST_KILLS");
    int kills = text ? atoi(text) : 60, life, i, status;
    delayq feeder;
    delayq_options o;
    int64_t now_ms;
    redisContext *c;
    if (kills > LIVES) kills = LIVES;
    server_start(&aof, synced);
    notes = (struct notes *)map_file("notes", sizeof *notes);
    o = options_for(&aof, "in");
    OK(&feeder, delayq_open(&feeder, &o));
    for (i = 0; i < ITEMS; i++) {
        char number[12];
        snprintf(number, sizeof number, "%d", i);
        OFFER(&feeder, number, 0);
    }
    delayq_close(&feeder);
    c = server_connect(&aof);
    now_ms = server_us(c) / 1000;
    redisFree(c);
    for (life = 0; life < kills; life++) {
        pid_t pid = start_life(life);
        usleep((useconds_t)(rand() % (rand() % 4 == 0 ? 40000 : 8000)));
        if (life == 0) UNTIL(notes->acks > 0 && notes->nacks > 0);
        if (life % 15 == 14) restart_server(synced);
        if (waitpid(pid, &status, WNOHANG) == pid) FAIL("a life has failed");
        kill(pid, SIGKILL);
        waitpid(pid, &status, 0);
    }
    finish();
    check_offers(kills);
    check_changes(now_ms);
    server_end(&aof);
}
