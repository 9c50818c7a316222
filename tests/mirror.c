/*
 * Redisson's mirror list. For any ids and any order of removal, the list
 * becomes what it would be if an LREM had removed each element. The number of
 * commands that the removal needs is limited.
 */
#include "test.h"

#define MANY 1500
#define MIRROR "redisson_delay_queue:{jobs}"
#define ZSET "redisson_delay_queue_timeout:{jobs}"

typedef struct entry {
    unsigned char bytes[64];
    size_t len;
    long long due;
} entry;

static entry all[MANY];
static redisContext *c;
static delayq q;

/* Make an element that was offered at `us` microseconds. If `java`, its id is
 * like those of Redisson. */
static void make_entry(entry *e, int64_t us, int i, int java) {
    char id[16], payload[24];
    int k, n = snprintf(payload, sizeof payload, "item %d", i);
    int old = q.options.wire == DELAYQ_REDISSON_OLD;
    uint64_t order = (uint64_t)us << (old ? 11 : 0);
    for (k = 0; k < 8; k++) id[k] = (char)(order >> (56 - 8 * k));
    for (; k < 16; k++) id[k] = (char)(k < 10 ? i >> 8 * (k - 8) : 0);
    if (java)
        for (k = 0; k < 8; k++) id[k] = (char)(rand() % 256);
    if (java && old) id[7] = 0x3f; /* a double between 0 and 1 */
    e->len = element(e->bytes,
                     old    ? 0
                     : java ? 8
                            : 16,
                     q.conn->long_size, id, payload, (size_t)n);
}

static void put(entry *e, long long due) {
    e->due = due;
    redisAppendCommand(c, "RPUSH " MIRROR " %b", e->bytes, e->len);
    redisAppendCommand(c, "ZADD " ZSET " %lld %b", due, e->bytes, e->len);
}

static void read_replies(int n) {
    void *r;
    while (n-- > 0) {
        CHECK(redisGetReply(c, &r) == REDIS_OK);
        CHECK(((redisReply *)r)->type != REDIS_REPLY_ERROR);
        freeReplyObject(r);
    }
}

/* Store MANY elements that were offered within some minutes by hosts whose
 * clocks differ slightly, `javas` percent of them by Java. They are due in
 * random order, and most are due already. */
static void fill(int javas, int disorder) {
    int64_t us = now_us() + q.conn->clock_offset_us - 600000000;
    int i;
    for (i = 0; i < MANY; i++) {
        us += rand() % 2 ? 1 + rand() % 50 : rand() % 500000;
        make_entry(&all[i], us + rand() % (1 + disorder), i,
                   rand() % 100 < javas);
        put(&all[i], rand() % 10 == 0 ? 1900000000000 : 1 + rand() % 5000);
    }
    read_replies(2 * MANY);
}

/* Check that the mirror contains those elements of the zset that are not
 * leased, in the order of their offers. */
static void check_mirror(void) {
    redisReply *r;
    size_t at = 0;
    int i;
    for (i = 0; i < MANY; i++)
        redisAppendCommand(c, "ZSCORE " ZSET " %b", all[i].bytes, all[i].len);
    r = run(main_connection(), "LRANGE " MIRROR " 0 -1");
    for (i = 0; i < MANY; i++) {
        redisReply *score;
        CHECK(redisGetReply(c, (void **)&score) == REDIS_OK);
        if (score->type == REDIS_REPLY_STRING &&
            atoll(score->str) == all[i].due) {
            CHECK(at < r->elements);
            CHECK_INT(r->element[at]->len, all[i].len);
            CHECK(memcmp(r->element[at]->str, all[i].bytes, all[i].len) == 0);
            at++;
        }
        freeReplyObject(score);
    }
    CHECK_INT(r->elements, at);
    freeReplyObject(r);
}

static void empties(delayq_wire wire, int javas, int disorder) {
    delayq_options o = options_for(&main_server, "jobs");
    static delayq_item items[400];
    size_t n;
    ask("FLUSHALL");
    c = server_connect(&main_server);
    o.wire = wire;
    o.batch = 50 + rand() % 400;
    o.lease_ms = rand() % 2 ? 3600000 : 0;
    OK(&q, delayq_open(&q, &o));
    fill(javas, disorder);
    check_mirror();
    while (ask_int("ZCOUNT " ZSET " 0 5000") > 0) {
        poll_now(&q);
        if (rand() % 2)
            OK(&q, delayq_tick(&q, NULL));
        else
            OK(&q,
               delayq_take_many(&q, items, 1 + (size_t)(rand() % 400), &n, 0));
        check_mirror();
    }
    delayq_close(&q);
    redisFree(c);
}

TEST(moved_items_leave_the_mirror_and_its_order_is_kept) {
    static const struct {
        int javas, disorder;
    } fleets[] = {{0, 0}, {0, 300}, {0, 20000000}, {30, 300}, {100, 0}};
    int i;
    for (i = 0; i < 5; i++) {
        empties(DELAYQ_REDISSON, fleets[i].javas, fleets[i].disorder);
        empties(DELAYQ_REDISSON_OLD, fleets[i].javas, fleets[i].disorder);
    }
}

static int calls_of(const char *command) {
    char name[64];
    const char *at = ask("INFO commandstats");
    snprintf(name, sizeof name, "cmdstat_%s:calls=", command);
    at = strstr(at, name);
    return at ? atoi(at + strlen(name)) : 0;
}

static void open_redisson(void) {
    delayq_options o = options_for(&main_server, "jobs");
    c = server_connect(&main_server);
    o.wire = DELAYQ_REDISSON;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_tick(&q, NULL)); /* loads the script, opens the subscriber */
    OK(&q, delayq_tick(&q, NULL));
}

TEST(own_elements_are_found_in_the_mirror_without_a_scan) {
    open_redisson();
    fill(0, 300);
    ask("CONFIG RESETSTAT");
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
    CHECK_INT(ask_int("LLEN jobs"), 100);
    CHECK_INT(calls_of("evalsha"), 1);
    CHECK_INT(calls_of("lrem"), 2); /* to test the right, and to remove all */
    CHECK(calls_of("lindex") < 100 * 12);
    delayq_close(&q);
    redisFree(c);
}

TEST(the_head_of_the_mirror_is_read_once_for_all_behind_it) {
    int i;
    open_redisson();
    ask("RPUSH " MIRROR " large-head");
    for (i = 0; i < 100; i++) {
        make_entry(&all[i], now_us(), i, 0);
        put(&all[i], 1 + rand() % 2000);
    }
    read_replies(200);
    ask("CONFIG RESETSTAT");
    poll_now(&q);
    OK(&q, delayq_tick(&q, NULL));
    CHECK_INT(ask_int("LLEN jobs"), 100);
    CHECK_INT(ask_int("LLEN " MIRROR), 1);
    CHECK(calls_of("lindex") <= 2);
    delayq_close(&q);
    redisFree(c);
}

TEST(foreign_elements_are_moved_few_at_a_time_out_of_a_long_mirror) {
    int64_t wait;
    int i;
    open_redisson();
    for (i = 0; i < 40000; i++) redisAppendCommand(c, "RPUSH " MIRROR " other");
    read_replies(40000);
    for (i = 0; i < 20; i++) {
        make_entry(&all[i], 0, i, 1);
        put(&all[i], 1 + rand() % 5000);
    }
    read_replies(40);
    poll_now(&q);
    OK(&q, delayq_tick(&q, &wait));
    CHECK_INT(wait, 0); /* more items are due already */
    CHECK_INT(ask_int("LLEN jobs"), 3);
    CHECK_INT(ask_int("LLEN " MIRROR), 40017);
    while (ask_int("LLEN jobs") < 20) OK(&q, delayq_tick(&q, &wait));
    CHECK_INT(ask_int("LLEN " MIRROR), 40000);
    delayq_close(&q);
    redisFree(c);
}

/* The script does not read a large element at the head of the mirror, but
 * removes it by LREM. The elements around it are removed by their positions. */
TEST(large_elements_leave_the_mirror_with_the_small_ones_around_them) {
    static char large[100000];
    int wire, take;
    for (wire = 1; wire <= 2; wire++)
        for (take = 0; take < 2; take++) {
            int i, left = 0;
            ask("FLUSHALL");
            open_wire(&q, "jobs", WIRE(wire));
            for (i = 0; i < 30; i++)
                OK(&q, delayq_offer(&q, large, i % 3 ? 10 : sizeof large,
                                    i % 5 ? 0 : 60000));
            for (i = 0; i < 30; i++) left += i % 5 == 0;
            elapse(main_connection(), 2);
            while (ask_int("ZCARD " ZSET) > left) {
                delayq_item item;
                poll_now(&q);
                if (take)
                    OK(&q, delayq_take(&q, &item, 0));
                else
                    OK(&q, delayq_tick(&q, NULL));
            }
            CHECK_INT(ask_int("LLEN " MIRROR), left);
            delayq_close(&q);
        }
}
