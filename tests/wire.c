/* The data in Redis: keys, bytes of an element, the channel, Redisson's
 * formats. */
#define DELAYQ_IMPLEMENTATION
#include "system.h"

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"

TEST(golden_bytes_of_the_old_format_with_a_length_of_four_bytes) {
    static const unsigned char golden[] = {0xe3, 0x8a, 0xdd, 0x7d, 0x94, 0x2e,
                                           0xc1, 0x43, 6,    0,    0,    0,
                                           '"',  '0',  '0',  '0',  '1',  '"'};
    unsigned char id[16] = {0}, head[DQ_ELEM_HEADER_MAX];
    double d = 2476180431764309577.0;
    uint64_t bits;
    delayq q;
    size_t at;
    memset(&q, 0, sizeof q);
    q.wire = DELAYQ_REDISSON_OLD;
    q.conn = &q.own;
    q.conn->long_size = 4;
    memcpy(&bits, &d, 8);
    dq_elem_put_uint(id, 8, 0, bits);
    CHECK_INT(dq_elem_write_header(&q, id, 6, head), 12);
    CHECK(memcmp(head, golden, 12) == 0);
    CHECK_INT(dq_elem_parse(golden, sizeof golden, 0, 1, &at), DQ_ELEM_OLD);
    CHECK_INT(at, 12);
}

TEST(golden_bytes_of_the_native_format) {
    unsigned char id[16], head[DQ_ELEM_HEADER_MAX], big[DQ_ELEM_HEADER_MAX];
    delayq q;
    memset(&q, 0, sizeof q);
    memcpy(id, "ABCDEFGHabcde\0\1\2", 16);
    q.wire = &dq_wire_native;
    q.conn = &q.own;
    q.conn->long_size = 8;
    CHECK_INT(dq_elem_write_header(&q, id, 5, head), 25);
    CHECK(memcmp(head,
                 "\x10"
                 "ABCDEFGHabcde\0\1\2"
                 "\5\0\0\0\0\0\0\0",
                 25) == 0);
    q.conn->long_big = 1;
    CHECK_INT(dq_elem_write_header(&q, id, 5, big), 25);
    CHECK(memcmp(big + 17, "\0\0\0\0\0\0\0\5", 8) == 0);
}

/* An old element looks like a new one if its id begins with the byte 16 and its
 * payload contains the right length. */
TEST(an_old_fleet_reads_its_own_format_first) {
    unsigned char e[64], payload[14] = "x--------tails";
    int how, big;
    size_t n, at;
    n = element(e, 0, 8,
                "\x10"
                "BCDEFGH",
                payload, sizeof payload);
    big = e[8] == 0;
    dq_elem_put_uint(payload + 1, 8, big, 5);
    memcpy(e + 16, payload, sizeof payload);
    /* with any other wire it is read as a new one */
    CHECK_INT(dq_elem_parse(e, n, big, 0, &at), 16);
    CHECK_INT(dq_elem_parse(e, n, big, 1, &at), DQ_ELEM_OLD);
    CHECK_INT(at, 16);
    /* how & 1: the item is leased; how & 2: a tick has moved it before */
    for (how = 0; how < 4; how++) {
        delayq q;
        delayq_item item;
        delayq_options o = options_for(&main_server, "jobs");
        ask("FLUSHALL");
        o.wire = DELAYQ_REDISSON_OLD;
        o.lease_ms = how & 1 ? 60000 : 0;
        OK(&q, delayq_open(&q, &o));
        ask("ZADD " ZSET " 1 %b", e, n);
        ask("RPUSH " MIRROR " %b", e, n);
        if (how & 2)
            UNTIL(delayq_tick(&q, NULL) == DELAYQ_OK &&
                  ask_int("LLEN jobs") == 1);
        q.next_poll_us = 0;
        OK(&q, delayq_take(&q, &item, 0));
        CHECK_INT(item.len, sizeof payload);
        CHECK(memcmp(item.data, payload, sizeof payload) == 0);
        if (how & 1) OK(&q, delayq_ack(&q, &item));
        CHECK_INT(ask_int("DBSIZE"), 0);
        delayq_close(&q);
    }
}

TEST(elements_of_every_format_are_delivered_intact) {
    static const int ids[] = {16, 8, 0}, longs[] = {8, 4};
    static const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                        DELAYQ_REDISSON_OLD};
    static const char *const payloads[] = {"", "x", "\"0001\"",
                                           "sixteen bytes!!!"};
    size_t i, j, k;
    int direct;
    for (direct = 0; direct < 2; direct++)
        for (i = 0; i < 3; i++)
            for (j = 0; j < 2; j++)
                for (k = 0; k < 4; k++) {
                    unsigned char e[64];
                    delayq q;
                    int64_t wait;
                    size_t len = strlen(payloads[k]), n;
                    n = element(e, ids[i], longs[j], "\x9dZ*o8?fw..5Az\0\0\0",
                                payloads[k], len);
                    open_wire(&q, "jobs", wires[i]);
                    ask("ZADD " ZSET " 1 %b", e, n);
                    if (i > 0) ask("RPUSH " MIRROR " %b", e, n);
                    if (!direct)
                        UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK &&
                              ask_int("LLEN jobs") == 1);
                    take_is(&q, payloads[k]);
                    CHECK_INT(ask_int("DBSIZE"), 0);
                    delayq_close(&q);
                }
}

TEST(an_element_in_the_set_has_the_bytes_of_its_wire) {
    delayq q;
    open_queue(&q, "jobs");
    OFFER(&q, "hello", 60000);
    CHECK_INT(ask_int("EVAL %s 1 " ZSET,
                      "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
                      "local id, v = struct.unpack('Bc0Lc0', e)\n"
                      "return #e == 22 + #struct.pack('L', 1) and #id == 16\n"
                      "  and v == 'hello' and 1"),
              1);
    CHECK_INT(ask_int("EXISTS " MIRROR), 0);
    delayq_close(&q);
    ask("FLUSHALL");
    open_wire(&q, "jobs", DELAYQ_REDISSON);
    OFFER(&q, "hello", 60000);
    CHECK_INT(
        ask_int("EVAL %s 2 " ZSET " " MIRROR,
                "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
                "local id, v = struct.unpack('Bc0Lc0', e)\n"
                "return #e == 22 + #struct.pack('L', 1) and v == 'hello'\n"
                "  and redis.call('LINDEX', KEYS[2], 0) == e and 1"),
        1);
    delayq_close(&q);
    ask("FLUSHALL");
    open_wire(&q, "jobs", DELAYQ_REDISSON_OLD);
    OFFER(&q, "hello", 60000);
    CHECK_INT(ask_int("EVAL %s 2 " ZSET " " MIRROR,
                      "local e = redis.call('ZRANGE', KEYS[1], 0, 0)[1]\n"
                      "local id, v = struct.unpack('dLc0', e)\n"
                      "return #e == 13 + #struct.pack('L', 1) and id > 0\n"
                      "  and v == 'hello' and\n"
                      "  redis.call('LINDEX', KEYS[2], 0) == e and 1"),
              1);
    delayq_close(&q);
}

/* Write to `to` the commands of scripts that MONITOR shows before `upto`. */
static void monitored(redisContext *m, const char *upto, char *to,
                      size_t size) {
    size_t n = 0;
    for (;;) {
        void *r;
        const char *line;
        if (redisGetReply(m, &r) != REDIS_OK) FAIL("MONITOR: %s", m->errstr);
        line = ((redisReply *)r)->str;
        if (strstr(line, upto)) {
            freeReplyObject(r);
            return;
        }
        if (strstr(line, " lua]"))
            n += (size_t)snprintf(to + n, size - n, "%s\n", strstr(line, "] "));
        freeReplyObject(r);
    }
}

TEST(the_seeds_trace_of_offer_and_transfer) {
    static char trace[16384];
    redisContext *m = server_connect(&main_server);
    delayq q;
    int64_t wait;
    if (!server_can("PUBLISH")) test_skip("scripts can't publish");
    open_wire(&q, "zlyx", DELAYQ_REDISSON_OLD);
    OK(&q, delayq_tick(&q, &wait));
    OK(&q, delayq_tick(&q, &wait));
    freeReplyObject(run(m, "MONITOR"));
    OFFER(&q, "'0001'", 1); /* no ", as Valkey's MONITOR doesn't escape it */
    ask("ECHO mark-one");
    monitored(m, "mark-one", trace, sizeof trace);
    CHECK_HAS(trace, "\"ZADD\" \"redisson_delay_queue_timeout:{zlyx}\" \"NX\"");
    CHECK_HAS(trace, "\"RPUSH\" \"redisson_delay_queue:{zlyx}\"");
    CHECK_HAS(trace, q.conn->long_big         ? "\\x00\\x06'0001'\""
                     : q.conn->long_size == 4 ? "\\x06\\x00\\x00\\x00'0001'\""
                                              : "\\x06\\x00\\x00\\x00\\x00\\x00"
                                                "\\x00\\x00'0001'\"");
    CHECK_HAS(trace,
              "\"ZCOUNT\" \"redisson_delay_queue_timeout:{zlyx}\" \"0\"");
    CHECK_HAS(trace, "\"PUBLISH\" \"redisson_delay_queue_channel:{zlyx}\" \"1");
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK && ask_int("LLEN zlyx") == 1);
    ask("ECHO mark-two");
    monitored(m, "mark-two", trace, sizeof trace);
    CHECK_HAS(trace, "\"RPUSH\" \"zlyx\" \"'0001'\"");
    /* Of equal elements, only the first leaves the mirror, as with LREM 1. */
    CHECK_HAS(trace, "\"LTRIM\" \"redisson_delay_queue:{zlyx}\" \"1\" \"-1\"");
    CHECK_HAS(trace, "\"ZREMRANGEBYRANK\" "
                     "\"redisson_delay_queue_timeout:{zlyx}\" \"0\" \"0\"");
    CHECK_INT(ask_int("DBSIZE"), 1);
    redisFree(m);
    delayq_close(&q);
}

TEST(a_name_with_a_tag_uses_it_as_redisson_does) {
    delayq q;
    open_wire(&q, "jobs:{eu}", DELAYQ_REDISSON);
    OFFER(&q, "x", 60000);
    CHECK_INT(ask_int("EXISTS redisson_delay_queue_timeout:jobs:{eu} "
                      "redisson_delay_queue:jobs:{eu}"),
              2);
    CHECK_INT(ask_int("DBSIZE"), 2);
    delayq_close(&q);
}

TEST(only_an_offer_that_becomes_the_head_is_published) {
    redisContext *c = server_connect(&main_server);
    delayq q;
    void *r;
    char first[32], last[32];
    if (!server_can("PUBLISH")) test_skip("scripts can't publish");
    freeReplyObject(run(c, "SUBSCRIBE redisson_delay_queue_channel:{jobs}"));
    open_queue(&q, "jobs");
    OFFER(&q, "a", 60000);
    snprintf(first, sizeof first, "%s",
             ask("EVAL %s 1 " ZSET,
                 "return redis.call('ZRANGE', KEYS[1], 0, 0, "
                 "'WITHSCORES')[2]"));
    OFFER(&q, "b", 70000);
    OFFER(&q, "c", 30000);
    snprintf(last, sizeof last, "%s",
             ask("EVAL %s 1 " ZSET,
                 "return redis.call('ZRANGE', KEYS[1], 0, 0, "
                 "'WITHSCORES')[2]"));
    CHECK_INT(redisGetReply(c, &r), REDIS_OK);
    CHECK_TEXT(((redisReply *)r)->element[2]->str, first);
    freeReplyObject(r);
    CHECK_INT(redisGetReply(c, &r), REDIS_OK);
    CHECK_TEXT(((redisReply *)r)->element[2]->str, last);
    freeReplyObject(r);
    redisFree(c);
    delayq_close(&q);
}

/* The queue has elements of the old format. Open or a take reports them, and
 * leaves them unchanged. */
TEST(a_handle_that_is_not_old_writes_nothing_into_an_old_fleet) {
    unsigned char e[64];
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    size_t n = element(e, 0, 8, "\x81\xe9}\xf4\x10\"\xb1\xc3", "java", 4);
    char before[512];
    int64_t wait;
    delayq_item item;
    delayq_wire wire;
    EACH_WIRE(wire, 0, 1) {
        o.wire = wire;
        ask("FLUSHALL");
        ask("ZADD " ZSET " 1 %b", e, n);
        snprintf(before, sizeof before, "%s", contents(main_connection()));
        CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_WIRE);
        CHECK_HAS(delayq_errmsg(&q), "wire = DELAYQ_REDISSON_OLD");
        CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_WIRE);
        CHECK_STATUS(&q, delayq_tick(&q, &wait), DELAYQ_ERR_WIRE);
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_WIRE);
        CHECK_TEXT(contents(main_connection()), before);
        delayq_close(&q);

        ask("FLUSHALL"); /* old elements come after the open and a good one */
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "good", 0);
        elapse(main_connection(), 1);
        ask("ZADD " ZSET " 99999 later");
        ask("ZADD " ZSET " 2 %b", e, n);
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_WIRE);
        CHECK_INT(ask_int("ZCARD " ZSET), 3);
        CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_WIRE);
        delayq_close(&q);
    }
    o.wire = DELAYQ_REDISSON_OLD;
    OK(&q, delayq_open(&q, &o));
    take_is(&q, "java");
    delayq_close(&q);
}

TEST(an_old_mirror_alone_identifies_an_old_fleet) {
    unsigned char e[64];
    delayq q;
    delayq_options o = options_for(&main_server, "jobs");
    size_t n = element(e, 0, 8, "\x81\xe9}\xf4\x10\"\xb1\xc3", "java", 4);
    ask("RPUSH " MIRROR " %b", e, n);
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_WIRE);
    delayq_close(&q);
}

TEST(an_id_rises_strictly_and_keeps_the_order_of_offers) {
    delayq q;
    unsigned char a[16], b[16];
    int i;
    open_queue(&q, "jobs");
    dq_elem_next_id(&q, a);
    for (i = 0; i < 10000; i++) {
        dq_elem_next_id(&q, b);
        CHECK(memcmp(a, b, 16) < 0);
        memcpy(a, b, 16);
    }
    delayq_close(&q);
}

TEST(an_old_id_is_a_finite_double_that_differs_between_handles) {
    delayq q, other;
    unsigned char a[16], b[16], c[16];
    double d;
    open_wire(&q, "jobs", DELAYQ_REDISSON_OLD);
    memset(&other, 0, sizeof other);
    dq_elem_next_id(&q, a);
    other = q;
    other.conn = &other.own;
    other.handle_id[6] ^= 1;
    dq_elem_next_id(&q, b);
    CHECK(memcmp(a, b, 8) < 0);
    other.last_order = q.last_order - 1;
    other.conn->clock_offset_us = 0; /* both ids are made in one microsecond */
    dq_elem_next_id(&other, c);
    CHECK(memcmp(b, c, 8) != 0);
    CHECK(memcmp(b, c, 7) == 0);
    memcpy(&d, a, 8);
    CHECK(d - d == 0.0);
    delayq_close(&q);
}

TEST(a_server_under_a_utf8_locale_really_collates_so) {
    if (!getenv("DELAYQ_TEST_LOCALE")) return; /* a run without a locale */
    CHECK_INT(ask_int("EVAL %s 0", "return 'a' < 'B' and 1 or 0"), 1);
}
