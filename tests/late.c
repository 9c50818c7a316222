/*
 * Items that are later than options.max_late_ms go to the dead letters, in
 * order, without a round trip for each item. Ticks leave due items to takes.
 */
#include "outbox.h"

#define DEAD "delayq_dead:{jobs}"
#define MINUTE 60000
#define LATE (2 * MINUTE)
#define IN_TIME 10

static delayq q;

static void open_strict(delayq *to, int64_t lease_ms) {
    delayq_options o = options_for(&main_server, "jobs");
    o.lease_ms = lease_ms;
    o.max_late_ms = MINUTE;
    OK(to, delayq_open(to, &o));
}

/* Offer an item that has been due for `ms` milliseconds. */
static void overdue(const char *text, int64_t ms) {
    static delayq producer;
    delayq_message m = message(text, 0);
    if (!producer.open) open_queue(&producer, "jobs");
    m.due_ms = server_us(main_connection()) / 1000 - ms;
    OK(&producer, delayq_offer_message(&producer, &m));
}

static void taken(const delayq_item *item, const char *text, int known) {
    if (item->len != strlen(text) || memcmp(item->data, text, item->len) != 0)
        FAIL("took \"%.*s\", not \"%s\"", (int)item->len,
             (const char *)item->data, text);
    CHECK_INT(item->due_ms > 0, known);
    CHECK_INT(item->late_us >= 0, known);
    CHECK(item->late_us <= MINUTE * 1000LL);
}

/* Check that letter number `from` has this payload, reason and attempt. */
static void letter_is(size_t from, const char *text, const char *reason,
                      int attempt) {
    delayq_dead dead;
    size_t n;
    OK(&q, delayq_dead_peek(&q, &dead, 1, &n, from));
    CHECK_TEXT(dead.reason, reason);
    CHECK_TEXT(dead.why, "");
    CHECK_INT(dead.attempt, attempt);
    CHECK_INT(dead.len, strlen(text));
    CHECK(memcmp(dead.data, text, dead.len) == 0);
    CHECK(llabs(dead.dead_ms - server_us(main_connection()) / 1000) < MINUTE);
}

TEST(a_late_item_goes_to_the_dead_letters_and_the_next_is_taken) {
    int leases, how;
    delayq_item item;
    delayq_counts c;
    size_t n;
    for (leases = 0; leases < 2; leases++)
        for (how = 0; how < 3; how++) {
            ask("FLUSHALL");
            open_strict(&q, leases ? MINUTE : 0);
            overdue("a", LATE + 1);
            overdue("b", LATE);
            overdue("c", IN_TIME);
            overdue("d", 0);
            elapse(main_connection(), 1);
            memset(&item, 0, sizeof item);
            OK(&q, how == 0   ? delayq_take(&q, &item, 0)
                   : how == 1 ? delayq_take_many(&q, &item, 1, &n, MINUTE)
                              : delayq_ack_take(&q, &item, 0));
            taken(&item, "c", 1);
            CHECK(item.late_us >= IN_TIME * 1000);
            CHECK_INT(item.attempt, 1);
            if (leases) OK(&q, delayq_ack(&q, &item));
            OK(&q, delayq_take(&q, &item, 0));
            taken(&item, "d", 1);
            if (leases) OK(&q, delayq_ack(&q, &item));
            CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
            letter_is(0, "a", "late", 0);
            letter_is(1, "b", "late", 0);
            OK(&q, delayq_count(&q, &c));
            CHECK_INT(c.dead, 2);
            CHECK_INT(c.died, 2);
            CHECK_INT(c.taken, 2);
            CHECK_INT(c.pending + c.ready, 0);
            delayq_close(&q);
        }
}

/* Offer items near the limit. An item that is handed out was in time, to the
 * microsecond. A dead letter was late, to the millisecond. */
TEST(the_limit_is_exact) {
    int leases, i, got = 0, died = 0;
    delayq_item item;
    delayq_dead dead;
    size_t n, from = 0;
    for (leases = 0; leases < 2; leases++) {
        open_strict(&q, leases ? MINUTE : 0);
        for (i = 0; i < 100; i++) {
            char due[32];
            snprintf(due, sizeof due, "%lld",
                     server_us(main_connection()) / 1000 - MINUTE + i % 3);
            overdue(due, MINUTE - i % 3);
            poll_now(&q);
            if (delayq_take(&q, &item, 0) != DELAYQ_OK) continue;
            CHECK(item.due_ms > 0);
            CHECK(item.late_us >= 0 && item.late_us <= MINUTE * 1000LL);
            got++;
        }
        delayq_close(&q);
    }
    open_strict(&q, 0);
    while (delayq_dead_peek(&q, &dead, 1, &n, from++) == DELAYQ_OK) {
        CHECK_TEXT(dead.reason, "late");
        CHECK(dead.dead_ms - atoll((const char *)dead.data) >= MINUTE);
        died++;
    }
    CHECK_INT(got + died, 200);
    printf("    %d in time, %d late\n", got, died);
    delayq_close(&q);
}

TEST(thousands_of_late_items_cost_few_requests_and_keep_their_order) {
    int leases, many, i, before;
    for (leases = 0; leases < 2; leases++)
        for (many = 1; many <= 100; many += 99) {
            static delayq_item items[100];
            delayq_dead dead[100];
            size_t n, from;
            ask("FLUSHALL");
            open_strict(&q, leases ? MINUTE : 0);
            ask("EVAL %s 1 " ZSET,
                "local now = redis.call('TIME')[1] * 1000 - 200000\n"
                "for i = 1, 5000 do\n"
                "  local text = string.format('%06d', i)\n"
                "  local id = string.rep('\\0', 9) .. '\\0' .. text\n"
                "  redis.call('ZADD', KEYS[1], now + i, '\\16' ..\n"
                "    string.sub(id, 1, 2) .. text .. string.rep('\\0', 8) ..\n"
                "    struct.pack('L', 6) .. text)\n"
                "end\n");
            CHECK_INT(ask_int("ZCARD " ZSET), 5000);
            overdue("good", IN_TIME);
            before = scripts_run(main_connection());
            OK(&q, delayq_take_many(&q, items, (size_t)many, &n, MINUTE));
            CHECK_INT(n, 1);
            taken(&items[0], "good", 1);
            i = scripts_run(main_connection()) - before;
            if (i > 9) FAIL("%d requests", i);
            CHECK_INT(ask_int("LLEN " DEAD), 5000);
            CHECK_INT(ask_int("ZCARD " ZSET), leases);
            for (from = 0; from < 5000; from += n) {
                size_t k;
                OK(&q, delayq_dead_peek(&q, dead, 100, &n, from));
                for (k = 0; k < n; k++)
                    CHECK_INT(atoi((const char *)dead[k].data), from + k + 1);
            }
            delayq_close(&q);
        }
}

TEST(ticks_leave_due_items_to_takes) {
    delayq_item item;
    int64_t wait_ms;
    int i, before;
    open_strict(&q, 0);
    overdue("a", IN_TIME);
    overdue("b", LATE);
    overdue("c", -MINUTE);
    elapse(main_connection(), 1);
    poll_now(&q);
    OK(&q, delayq_tick(&q, &wait_ms));
    CHECK_INT(ask_int("LLEN jobs"), 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 3);
    CHECK_INT(ask_int("LLEN " DEAD), 0);
    CHECK_INT(q.ready, 2);
    /* A handle that only ticks sleeps until the next due time. */
    UNTIL((delayq_tick(&q, &wait_ms), wait_ms > 0));
    before = scripts_run(main_connection());
    for (i = 0; i < 100; i++) OK(&q, delayq_tick(&q, &wait_ms));
    CHECK(scripts_run(main_connection()) - before < 5);
    OK(&q, delayq_take(&q, &item, 0));
    taken(&item, "a", 1);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    letter_is(0, "b", "late", 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

TEST(a_loop_and_a_wait_learn_the_due_times) {
    delayq_item item;
    delayq *both[1] = {&q};
    int round;
    for (round = 0; round < 20; round++) {
        ask("FLUSHALL");
        open_strict(&q, round % 2 ? MINUTE : 0);
        overdue("soon", -20);
        if (round < 10) {
            for (;;) { /* a loop; the other rounds call delayq_wait */
                int64_t wait_ms;
                struct pollfd p[3];
                int fds[3];
                size_t i, n;
                if (delayq_take(&q, &item, 0) == DELAYQ_OK) break;
                OK(&q, delayq_tick(&q, &wait_ms));
                n = delayq_fds(&q, fds, 3);
                for (i = 0; i < n; i++) {
                    p[i].fd = fds[i];
                    p[i].events = POLLIN;
                }
                poll(p, (nfds_t)n, (int)wait_ms);
            }
        } else {
            OK(&q, delayq_wait(both, 1, 20000));
            CHECK_INT(ask_int("LLEN jobs"), 0);
            OK(&q, delayq_take(&q, &item, 0));
        }
        taken(&item, "soon", 1);
        delayq_close(&q);
    }
}

TEST(what_others_push_is_never_late_and_starves_nothing) {
    delayq_item item;
    int i, pushed = 0, due = 0;
    open_strict(&q, MINUTE);
    for (i = 0; i < 40; i++) ask("RPUSH jobs pushed");
    overdue("late", LATE);
    for (i = 0; i < 40; i++) overdue("due", IN_TIME);
    for (i = 0; i < 40; i++) {
        OK(&q, delayq_take(&q, &item, 0));
        if (item.len == 6) {
            taken(&item, "pushed", 0);
            pushed++;
        } else {
            taken(&item, "due", 1);
            due++;
        }
        OK(&q, delayq_ack(&q, &item));
    }
    CHECK_INT(pushed, 20); /* the two kinds alternate */
    CHECK_INT(due, 20);
    letter_is(0, "late", "late", 0);
    { /* one request takes both pushed and due items */
        static delayq_item items[50];
        size_t n;
        OK(&q, delayq_take_many(&q, items, 30, &n, 0));
        CHECK_INT(n, 30);
        for (i = 0, due = 0; i < 30; i++) due += items[i].due_ms > 0;
        CHECK(due == 20 || due == 10);
    }
    delayq_close(&q);
}

/* Set the due times of all elements. */
static void all_due(long long due_ms) {
    ask("EVAL %s 1 " ZSET " %lld",
        "for _, e in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do\n"
        "  redis.call('ZADD', KEYS[1], ARGV[1], e)\n"
        "end",
        due_ms);
}

TEST(a_retry_is_late_from_the_end_of_its_lease) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    long long now = server_us(main_connection()) / 1000;
    o.lease_ms = MINUTE;
    o.max_late_ms = MINUTE;
    o.max_attempts = 2;
    OK(&q, delayq_open(&q, &o));
    overdue("x", IN_TIME);
    OK(&q, delayq_take(&q, &item, 0));
    all_due(now - 30000); /* as if the lease had just ended */
    poll_now(&q);
    OK(&q, delayq_take(&q, &item, 0));
    CHECK_INT(item.attempt, 2);
    taken(&item, "x", 1);
    /* The item is both too late and out of attempts. The reason is "late". */
    all_due(now - LATE);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    letter_is(0, "x", "late", 2);
    /* a redriven item counts as never handed out */
    OK(&q, delayq_dead_redrive(&q, 1, NULL));
    OK(&q, delayq_take(&q, &item, 0));
    CHECK_INT(item.attempt, 1);
    taken(&item, "x", 1);
    delayq_close(&q);
}

TEST(a_redriven_item_is_due_again_and_not_late_at_once) {
    delayq_item item;
    delayq_counts c;
    delayq other;
    size_t n;
    int leases;
    for (leases = 0; leases < 2; leases++) {
        ask("FLUSHALL");
        open_strict(&q, leases ? MINUTE : 0);
        open_strict(&other, 0);
        CHECK_STATUS(&other, delayq_take(&other, &item, 0), DELAYQ_EMPTY);
        overdue("x", LATE);
        overdue("y", LATE - 1);
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        ask("RPUSH " DEAD " %s", "undecodable 5\nrubbish");
        OK(&q, delayq_dead_redrive(&q, 10, &n));
        CHECK_INT(n, 2);
        CHECK_INT(ask_int("LLEN " DEAD), 1);
        OK(&q, delayq_count(&q, &c));
        CHECK_INT(c.pending, 2);
        CHECK_INT(c.overdue, 2);
        CHECK_INT(c.ready, 0);
        OK(&q, delayq_take(&q, &item, 0));
        taken(&item, "x", 1);
        CHECK_INT(item.attempt, 1);
        if (leases) OK(&q, delayq_ack(&q, &item));
        OK(&other, delayq_take(&other, &item, 20000));
        taken(&item, "y", 1);
        /* A handle without max_late_ms redrives an item to the ready list,
         * without a due time. */
        delayq_close(&other);
        open_queue(&other, "jobs");
        overdue("z", LATE);
        poll_now(&q);
        CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
        OK(&other, delayq_dead_redrive(&other, 10, &n));
        CHECK_INT(ask_int("LLEN jobs"), 1);
        forget_ready(&q);
        poll_now(&q);
        OK(&q, delayq_take(&q, &item, 0));
        taken(&item, "z", 0);
        delayq_close(&other);
        delayq_close(&q);
    }
}

/* Wait in a take for an item that another handle redrives. */
static void wait_for_redriven(void *argument) {
    delayq_item item;
    (void)argument;
    open_strict(&q, 0);
    OK(&q, delayq_take(&q, &item, 20000));
    taken(&item, "x", 1);
    delayq_close(&q);
}

TEST(a_redrive_wakes_a_take_that_waits) {
    delayq_item item;
    delayq other;
    pid_t pid;
    size_t n;
    open_strict(&other, 0);
    overdue("x", LATE);
    CHECK_STATUS(&other, delayq_take(&other, &item, 0), DELAYQ_EMPTY);
    pid = spawn(wait_for_redriven, NULL);
    UNTIL(subscribers(main_connection(),
                      "redisson_delay_queue_channel:{jobs}") > 0);
    OK(&other, delayq_dead_redrive(&other, 1, &n));
    join(pid);
    delayq_close(&other);
}

TEST(late_items_are_counted_in_the_totals) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    delayq_counts c;
    int i;
    o.max_late_ms = MINUTE;
    o.counters = 1;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 70; i++) overdue("x", LATE);
    overdue("y", IN_TIME);
    OK(&q, delayq_take(&q, &item, 0));
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.total.died, 70);
    CHECK_INT(c.total.taken, 1);
    CHECK_INT(c.died, 70);
    delayq_close(&q);
}

TEST(a_loop_with_an_outbox_takes_nothing_late) {
    delayq_options o = box_options(&main_server, BOX);
    delayq_item item;
    int i, got = 0;
    o.max_late_ms = MINUTE;
    o.lease_ms = MINUTE;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 20; i++) overdue(i % 2 ? "late" : "x", i % 2 ? LATE : 5);
    while (got < 10) {
        if (delayq_take(&q, &item, 0) == DELAYQ_OK) {
            taken(&item, "x", 1);
            OK(&q, delayq_ack(&q, &item));
            got++;
        } else {
            OK(&q, turn(&q));
        }
    }
    SETTLE(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    CHECK_INT(ask_int("LLEN jobs"), 0);
    CHECK_INT(ask_int("LLEN " DEAD), 10);
    CHECK_INT(q.counts.died, 10);
    delayq_close(&q);
}

TEST(what_cannot_be_decoded_is_no_obstacle_to_late_items) {
    delayq_item item;
    open_strict(&q, 0);
    overdue("a", LATE + 2);
    ask("ZADD " ZSET " 1 poison");
    ask("ZADD " ZSET " -5 never");
    overdue("b", LATE);
    overdue("c", IN_TIME);
    OK(&q, delayq_take(&q, &item, 0));
    taken(&item, "c", 1);
    letter_is(0, "poison", "undecodable", 0);
    letter_is(1, "a", "late", 0);
    letter_is(2, "b", "late", 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

TEST(a_full_server_still_gives_late_items_up) {
    delayq_item item;
    open_strict(&q, MINUTE);
    overdue("a", LATE);
    overdue("b", IN_TIME);
    ask("CONFIG SET maxmemory 1");
    OK(&q, delayq_take(&q, &item, 0));
    taken(&item, "b", 1);
    OK(&q, delayq_ack(&q, &item));
    ask("CONFIG SET maxmemory 0");
    letter_is(0, "a", "late", 0);
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

/* If the dead letters can't be written, the items stay where they are. */
TEST(a_refused_letter_loses_no_late_item) {
    delayq_item item;
    int i;
    open_strict(&q, 0);
    ask("SET " DEAD " string");
    for (i = 0; i < 30; i++) overdue("late", LATE);
    overdue("b", IN_TIME);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_ERR_TYPE);
    CHECK_INT(ask_int("ZCARD " ZSET), 31);
    ask("DEL " DEAD);
    poll_now(&q);
    q.not_before_us = 0;
    OK(&q, delayq_take(&q, &item, 20000));
    taken(&item, "b", 1);
    CHECK_INT(ask_int("LLEN " DEAD), 30);
    delayq_close(&q);
}

TEST(what_becomes_late_in_a_pause_is_given_up_after_it) {
    delayq_item item;
    int64_t wait_ms;
    open_strict(&q, 0);
    OK(&q, delayq_pause(&q, 1));
    overdue("late", LATE);
    overdue("b", IN_TIME);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    poll_now(&q);
    UNTIL((delayq_tick(&q, &wait_ms), wait_ms > 0));
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    CHECK_INT(ask_int("LLEN " DEAD), 0);
    OK(&q, delayq_pause(&q, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    taken(&item, "b", 1);
    letter_is(0, "late", "late", 0);
    delayq_close(&q);
}

TEST(waiting_handles_share_the_work_and_take_nothing_late) {
    delayq_item item;
    pid_t pids[3];
    int i;
    for (i = 0; i < 3; i++) pids[i] = spawn(wait_for_redriven, NULL);
    UNTIL(ask_int("ZCARD delayq_waiters:{jobs}") == 3);
    for (i = 0; i < 3; i++) {
        overdue("late", LATE);
        overdue("x", IN_TIME);
    }
    for (i = 0; i < 3; i++) join(pids[i]);
    open_strict(&q, 0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 0), DELAYQ_EMPTY);
    CHECK_INT(ask_int("LLEN " DEAD), 3);
    delayq_close(&q);
}

TEST(max_late_ms_is_for_native_queues) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_wire wire;
    o.max_late_ms = 1;
    EACH_WIRE(wire, 1, 2) {
        o.wire = wire;
        CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
        CHECK_HAS(delayq_errmsg(&q), "max_late_ms: not with a Redisson wire");
    }
    o.wire = DELAYQ_BROADCAST;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "or a broadcast");
    o.wire = DELAYQ_NATIVE;
    o.max_late_ms = -1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "max_late_ms is negative");
    o.max_late_ms = 1;
    OK(&q, delayq_open(&q, &o));
    delayq_close(&q);
}

/* The server's clock is set forward and back by an hour. By that clock no item
 * is early or handed out late, and none is lost. */
TEST(a_clock_that_jumps_makes_items_late_and_loses_none) {
    static server s;
    delayq_options o;
    delayq_item item;
    delayq_counts c;
    redisContext *other;
    size_t n;
    server_start_with_clock(&s);
    other = server_connect(&s);
    o = options_for(&s, "jobs");
    o.max_late_ms = MINUTE;
    o.max_wait_ms = 200;
    o.lease_ms = 600 * 1000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "leased", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    OFFER(&q, "in half an hour", 1800000);
    OFFER(&q, "in an hour", 3600000);
    OFFER(&q, "in two hours", 7200000);
    server_set_clock(3610);
    { /* the leased item is late, too, since its lease ended long ago */
        delayq_item next;
        OK(&q, delayq_take(&q, &next, 20000));
        CHECK_INT(next.len, strlen("in an hour"));
        CHECK(next.late_us >= 0 && next.late_us <= MINUTE * 1000LL);
        OK(&q, delayq_ack(&q, &next));
        CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_GONE);
    }
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.dead, 2);
    CHECK_INT(c.pending, 1);
    /* The server's clock is an hour ahead, and so are these due times. */
    OK(&q, delayq_dead_redrive(&q, 10, &n));
    CHECK_INT(n, 2);
    server_set_clock(0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 400), DELAYQ_EMPTY);
    server_set_clock(-3600);
    CHECK_STATUS(&q, delayq_take(&q, &item, 400), DELAYQ_EMPTY);
    OFFER(&q, "now", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.len, 3);
    OK(&q, delayq_ack(&q, &item));
    server_set_clock(3620);
    for (n = 0; n < 2; n++) {
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK(item.late_us >= 0 && item.late_us <= MINUTE * 1000LL);
        OK(&q, delayq_ack(&q, &item));
    }
    OK(&q, delayq_count(&q, &c));
    CHECK_INT(c.dead, 0);
    CHECK_INT(c.pending, 1);
    delayq_close(&q);
    redisFree(other);
    server_end(&s);
}
