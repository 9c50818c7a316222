/* Broadcast: every handle gets every item, in order, also after a restart. */
#include "test.h"

static delayq_status open_cast(delayq *q, const char *after) {
    delayq_options o = options_for(&main_server, "news");
    SET_BROADCAST(o);
    o.broadcast_after = after;
    return delayq_open(q, &o);
}

TEST(every_listener_gets_every_item_in_order) {
    delayq a, b, producer;
    delayq *all[2];
    int seen[2] = {0, 0}, i, rounds = 0;
    OK(&a, open_cast(&a, NULL));
    OK(&b, open_cast(&b, NULL));
    OK(&producer, open_cast(&producer, NULL));
    all[0] = &a;
    all[1] = &b;
    for (i = 0; i < 1000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        OFFER(&producer, text, i / 20);
    }
    while (seen[0] + seen[1] < 2000 && rounds++ < 20000) {
        for (i = 0; i < 2; i++) {
            delayq_item item;
            char text[16];
            if (delayq_take(all[i], &item, 5) != DELAYQ_OK) continue;
            snprintf(text, sizeof text, "%d", seen[i]++);
            if (item.len != strlen(text) ||
                memcmp(item.data, text, item.len) != 0)
                FAIL("listener %d: \"%.*s\", not %s", i, (int)item.len,
                     (const char *)item.data, text);
            CHECK(item.due_ms > 0 && item.late_us >= 0);
        }
    }
    CHECK_INT(seen[0], 1000);
    CHECK_INT(seen[1], 1000);
    CHECK_INT(ask_int("XLEN delayq_stream:{news}"), 1000);
    CHECK_INT(ask_int("ZCARD redisson_delay_queue_timeout:{news}"), 0);
    delayq_close(&a);
    delayq_close(&b);
    delayq_close(&producer);
}

/* Listen until killed, and write each payload and its ticket to the pipe. */
struct listener {
    int pipe[2];
};
static void listen_and_tell(void *argument) {
    struct listener *w = (struct listener *)argument;
    delayq q;
    delayq_item item;
    OK(&q, open_cast(&q, ""));
    for (;;) {
        char line[80];
        OK(&q, delayq_take(&q, &item, DELAYQ_FOREVER));
        memset(line, 0, sizeof line);
        snprintf(line, sizeof line, "%.*s %s", (int)item.len,
                 (const char *)item.data, item.ticket.text);
        if (write(w->pipe[1], line, sizeof line) != (ssize_t)sizeof line)
            _exit(1);
    }
}

TEST(a_listener_killed_in_the_middle_goes_on_from_its_last_id) {
    struct listener w;
    delayq producer, q;
    delayq_item item;
    char line[80], last[64] = "";
    int i, seen = 0;
    pid_t child;
    OK(&producer, open_cast(&producer, NULL));
    for (i = 0; i < 1000; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        OFFER(&producer, text, 0);
    }
    CHECK(pipe(w.pipe) == 0);
    child = spawn(listen_and_tell, &w);
    close(w.pipe[1]);
    while (read(w.pipe[0], line, sizeof line) == (ssize_t)sizeof line) {
        if (seen == 400) kill(child, SIGKILL);
        CHECK_INT(atoi(line), seen);
        snprintf(last, sizeof last, "%s", strchr(line, ' ') + 1);
        seen++;
    }
    close(w.pipe[0]);
    CHECK(seen > 400 && seen <= 1000);
    OK(&q, open_cast(&q, last));
    while (delayq_take(&q, &item, 50) == DELAYQ_OK) {
        char text[16];
        snprintf(text, sizeof text, "%d", seen++);
        CHECK(item.len == strlen(text) &&
              memcmp(item.data, text, item.len) == 0);
    }
    CHECK_INT(seen, 1000);
    delayq_close(&q);
    delayq_close(&producer);
}

TEST(a_new_listener_gets_only_new_items_by_default) {
    delayq producer, fresh, all;
    delayq_item item;
    OK(&producer, open_cast(&producer, NULL));
    OFFER(&producer, "old", 0);
    OK(&producer, delayq_take(&producer, &item, 20000));
    OK(&fresh, open_cast(&fresh, NULL));
    OK(&all, open_cast(&all, ""));
    OFFER(&producer, "new", 0);
    OK(&fresh, delayq_take(&fresh, &item, 20000));
    CHECK(memcmp(item.data, "new", 3) == 0);
    OK(&all, delayq_take(&all, &item, 20000));
    CHECK(memcmp(item.data, "old", 3) == 0);
    OK(&all, delayq_take(&all, &item, 20000));
    CHECK(memcmp(item.data, "new", 3) == 0);
    delayq_close(&producer);
    delayq_close(&fresh);
    delayq_close(&all);
}

TEST(a_broadcast_has_no_leases_and_keeps_about_its_limit) {
    delayq q;
    delayq_item item;
    delayq_options o = options_for(&main_server, "news");
    int i;
    SET_BROADCAST(o);
    o.broadcast_keep = 100;
    o.broadcast_after = "not an id";
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o.broadcast_after = NULL;
    o.lease_ms = 1000;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o.lease_ms = 0;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 1000; i++) OFFER(&q, "x", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_STATUS(&q, delayq_ack(&q, &item), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_nack(&q, &item, 0), DELAYQ_ERR_ARG);
    CHECK_STATUS(&q, delayq_dead_redrive(&q, 1, NULL), DELAYQ_ERR_ARG);
    while (delayq_take(&q, &item, 20) == DELAYQ_OK) {
    }
    CHECK(ask_int("XLEN delayq_stream:{news}") <= 300);
    ask("ZADD redisson_delay_queue_timeout:{news} 1 poison");
    OFFER(&q, "good", 0);
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(ask_int("LLEN delayq_dead:{news}"), 1);
    OK(&q, delayq_clear(&q, NULL));
    CHECK_INT(ask_int("DBSIZE"), 1);
    delayq_close(&q);
}

TEST(a_wait_and_a_loop_of_tick_and_take_receive_a_broadcast) {
    delayq producer, q;
    delayq *one = &q;
    delayq_item item;
    int64_t wait;
    OK(&producer, open_cast(&producer, NULL));
    OK(&q, open_cast(&q, NULL));
    OFFER(&producer, "first", 10);
    OK(&q, delayq_wait(&one, 1, 9000));
    OK(&q, delayq_take(&q, &item, 0));
    CHECK_STATUS(&q, delayq_wait(&one, 1, 20), DELAYQ_EMPTY);
    OFFER(&producer, "second", 10);
    UNTIL(delayq_tick(&q, &wait) == DELAYQ_OK &&
          delayq_take(&q, &item, 0) == DELAYQ_OK);
    delayq_close(&q);
    delayq_close(&producer);
}
