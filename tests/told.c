/*
 * The status of a call and the text of delayq_errmsg have the same cause. After
 * a call that has not failed the text is empty. (Every test checks a part of
 * this after each call: see honest() in main.c.)
 */
#include "outbox.h"
#include "proxy.h"

static delayq q;
static delayq_item item;

static void open_proxied(size_t box_size) {
    delayq_options o = options_for(&main_server, "jobs");
    proxy_start(&main_server);
    if (box_size) o = box_options(&main_server, box_size);
    o.url = proxy_url();
    o.lease_ms = 60000;
    o.io_timeout_ms = 1000 * test_slow();
    OK(&q, delayq_open(&q, &o));
    if (box_size) UNTIL((turn(&q), q.conn->known));
}

/* Answer the next `times` requests with this error. */
static void refuse(const char *error, int times) {
    snprintf(proxy->forged, sizeof proxy->forged, "-%s\r\n", error);
    proxy_strike(FORGE, 0, 0, times);
}

static void says(const char *text) {
    if (!strstr(delayq_errmsg(&q), text))
        FAIL("\"%s\", not \"... %s ...\"", delayq_errmsg(&q), text);
}

/* --- takes --------------------------------------------------------------- */

TEST(a_take_whose_every_request_has_failed_is_not_empty) {
    delayq *queues[1] = {&q};
    open_proxied(0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    refuse("LOADING forged", 1 << 30);
    poll_now(&q);
    CHECK_STATUS(&q, delayq_take(&q, &item, 300), DELAYQ_ERR_AGAIN);
    says("LOADING forged");
    poll_now(&q);
    CHECK_STATUS(&q, delayq_wait(queues, 1, 300), DELAYQ_ERR_AGAIN);
    says("LOADING forged");
    proxy_calm();
    CHECK_STATUS(&q, delayq_take(&q, &item, 300 * test_slow()), DELAYQ_EMPTY);
    says("");
    CHECK_STATUS(&q, delayq_wait(queues, 1, 50), DELAYQ_EMPTY);
    delayq_close(&q);
}

TEST(a_take_or_wait_whose_server_is_gone_is_not_empty) {
    delayq *queues[1] = {&q};
    server own;
    delayq_options o;
    server_start(&own, NULL);
    o = options_for(&own, "jobs");
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    server_kill(&own, SIGKILL);
    CHECK(delayq_wait(queues, 1, 200) < DELAYQ_OK && *delayq_errmsg(&q));
    CHECK(delayq_take(&q, &item, 200) < DELAYQ_OK);
    delayq_close(&q);
    o.url = silent_host();
    o.connect_timeout_ms = 200; /* the wait ends during an attempt to connect */
    CHECK(delayq_open(&q, &o) < DELAYQ_OK);
    CHECK(delayq_wait(queues, 1, 700) < DELAYQ_OK);
    delayq_close(&q);
}

/* One of two queues fails. The other has an item, so the wait succeeds. */
TEST(a_wait_that_is_done_says_nothing) {
    static delayq other;
    delayq *queues[2] = {&q, &other};
    delayq_options o = options_for(&main_server, "other");
    open_proxied(0);
    OK(&other, delayq_open(&other, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    refuse("LOADING forged", 1 << 30);
    UNTIL((poll_now(&q), delayq_wait(queues, 2, 50) == DELAYQ_ERR_AGAIN));
    ask("RPUSH other x");
    poll_now(&q);
    UNTIL(delayq_wait(queues, 2, 1000) == DELAYQ_OK);
    CHECK(!*delayq_errmsg(&q) && !*delayq_errmsg(&other));
    proxy_calm();
    delayq_close(&other);
    delayq_close(&q);
}

/* A take that gets an item has not failed, even if one of its requests has. */
TEST(a_take_that_gets_an_item_after_a_failure_says_nothing) {
    open_proxied(0);
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    refuse("LOADING forged", 1);
    ask("RPUSH jobs x");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(proxy->times, 0);
    CHECK(!*delayq_errmsg(&q));
    delayq_close(&q);
}

/* --- one call, several requests ------------------------------------------ */

/* Connect through the proxy. Before a reconnect, flush the scripts, and remove
 * all pending items, as if they had been taken. */
static redisContext *connect_late(void *user, int timeout_ms) {
    if (proxy->connections > 0) {
        usleep(20000);
        ask("DEL " ZSET);
        ask("SCRIPT FLUSH");
    }
    return through_proxy(user, timeout_ms);
}

/* The reply to the first request is lost. When this request is sent again, its
 * item is gone. The second request has to load its script, and succeeds. */
TEST(the_text_of_many_offers_is_that_of_the_first_failure) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_message m[2];
    proxy_start(&main_server);
    o.url = NULL;
    o.connect = connect_late;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "loads the script", 60000);
    memset(m, 0, sizeof m);
    m[0].data = m[1].data = "x";
    m[0].len = m[1].len = 1;
    m[1].delay_ms = m[1].key_ttl_ms = 60000;
    m[1].key = "key";
    proxy_strike(CUT, 1, 0, 1);
    CHECK_STATUS(&q, delayq_offer_many(&q, m, 2), DELAYQ_ERR_UNKNOWN);
    CHECK_INT(m[0].status, DELAYQ_ERR_UNKNOWN);
    CHECK_INT(m[1].status, DELAYQ_OK);
    says("sent twice");
    delayq_close(&q);
}

/* The first request finds items gone. The reply to the second one is lost. */
TEST(a_failure_of_many_acks_is_not_hidden_by_an_item_that_is_gone) {
    static delayq_item items[501];
    delayq_item last;
    int i;
    open_proxied(0);
    OFFER(&q, "first", 0);
    OFFER(&q, "last", 0);
    OK(&q, delayq_take(&q, &items[0], 20000));
    OK(&q, delayq_take(&q, &last, 20000));
    for (i = 1; i < 500; i++) items[i].ticket = items[0].ticket;
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 500), DELAYQ_GONE);
    items[500] = last;
    /* 500 replies of ":0" behind the array's length and the server's clock */
    proxy->only = proxy_number(q.conn->cmd.c);
    proxy_strike(CUT, 1, 6 + 19 + 500 * 4 + 1, 1);
    CHECK_STATUS(&q, delayq_ack_many(&q, items, 501), DELAYQ_ERR_UNKNOWN);
    says("sent twice");
    CHECK_INT(items[499].acked, DELAYQ_GONE);
    CHECK_INT(items[500].acked, DELAYQ_ERR_UNKNOWN);
    delayq_close(&q);
}

/* --- calls that may have happened ---------------------------------------- */

TEST(after_a_reply_that_came_twice_an_offer_may_have_happened) {
    open_proxied(0);
    OFFER(&q, "loads the script", 60000);
    proxy_strike(REPLAY, 1, 0, 1);
    UNTIL(delayq_offer(&q, "x", 1, 60000) == DELAYQ_ERR_PROTOCOL);
    says("may have happened");
    delayq_close(&q);
}

/* --- outboxes ------------------------------------------------------------ */

TEST(a_tick_tells_of_its_ring_though_another_call_has_failed_meanwhile) {
    open_proxied(8192); /* small, so that the proxy reads a request at once */
    refuse("BUSY forged", 1 << 30);
    OFFER(&q, "x", 0);
    UNTIL(turn(&q) == DELAYQ_ERR_AGAIN);
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, -1), DELAYQ_ERR_ARG);
    UNTIL(turn(&q) == DELAYQ_ERR_AGAIN);
    says("BUSY forged");
    while (delayq_offer(&q, "x", 1, 0) == DELAYQ_OK) continue;
    says("outbox is full");
    UNTIL(turn(&q) == DELAYQ_ERR_AGAIN);
    says("BUSY forged");
    proxy_calm();
    SETTLE(&q);
    OK(&q, turn(&q));
    says("");
    delayq_close(&q);
}

TEST(a_flush_does_not_return_the_failure_of_a_take) {
    open_proxied(BOX);
    CHECK_STATUS(&q, delayq_take(&q, &item, 50), DELAYQ_EMPTY);
    refuse("BUSY forged", 1);
    poll_now(&q);
    UNTIL(delayq_take(&q, &item, 0) == DELAYQ_ERR_AGAIN ||
          turn(&q) == DELAYQ_ERR_AGAIN);
    UNTIL(turn(&q) == DELAYQ_OK &&
          q.fetch.lane.x.state == DELAYQ_EXCHANGE_NONE);
    proxy_strike(STALL, 1, 0, 1 << 30);
    OFFER(&q, "x", 0);
    CHECK_STATUS(&q, delayq_flush(&q, 20), DELAYQ_ERR_TIMEOUT);
    says("not all ops are settled");
    proxy->let_go = 1;
    proxy_calm();
    OK(&q, delayq_flush(&q, 20000));
    delayq_close(&q);
}
