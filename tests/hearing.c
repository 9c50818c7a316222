/*
 * A handle is notified of a push into the ready list, whatever happened to the
 * server's tracking of the list before. The handle, or one that shares its
 * connection, may have written the list, or the server may have been busy.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "proxy.h"

#define DEAD "delayq_dead:{jobs}"

static delayq worker, boss;
static delayq_item item;

/* Returns 1 if the server tracks a key for some client. The take may read an
 * error that the proxy sent before. */
static int tracked(void) {
    const char *info = ask("INFO stats");
    const char *at = strstr(info, "tracking_total_keys:");
    if (delayq_take(&worker, &item, 20) == DELAYQ_OK) FAIL("an item came");
    return at && atoi(at + 20) > 0;
}

/* Open a worker, and another handle on its connection. The worker polls once a
 * minute, so it depends on notifications. */
static void open_both(void) {
    delayq_options o = options_for(&main_server, "jobs");
    if (!can_track()) test_skip("the server tracks no keys");
    o.max_wait_ms = 60000;
    OK(&worker, delayq_open(&worker, &o));
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.share = &worker;
    o.max_wait_ms = 60000;
    OK(&boss, delayq_open(&boss, &o));
    UNTIL(tracked());
}

static void close_both(void) {
    delayq_close(&boss);
    delayq_close(&worker);
}

static void bury_one(void) {
    unsigned char e[64];
    size_t n = element(e, 16, 8, "ABCDEFGHIJKLM\0\0\2", "buried", 6);
    char letter[96] = "buried 5\n";
    memcpy(letter + 9, e, n);
    ask("RPUSH " DEAD " %b", letter, n + 9);
}

static void redrive_one(delayq *q) {
    size_t n;
    bury_one();
    OK(q, delayq_dead_redrive(q, 10, &n));
    CHECK_INT(n, 1);
}

/* Check that the worker gets the item within some seconds, although its next
 * poll is a minute away. (A take of 10 s or longer would send a request at
 * once, to enter the waiters.) */
static void is_taken_soon(void) {
    int i;
    for (i = 0; i < 4 * test_slow(); i++)
        if (delayq_take(&worker, &item, 2000) == DELAYQ_OK) return;
    FAIL("not noticed");
}

static void push_is_heard(void) {
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 20), DELAYQ_EMPTY);
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 20), DELAYQ_EMPTY);
    ask("RPUSH jobs pushed");
    is_taken_soon();
}

TEST(what_a_handle_redrives_another_on_its_connection_takes_at_once) {
    open_both();
    redrive_one(&boss);
    is_taken_soon();
    close_both();
}

static int server_tracks(void) {
    const char *at = strstr(ask("INFO stats"), "tracking_total_keys:");
    return at && atoi(at + 20) > 0;
}

/* The list changes while the reply to the tracking request is still unread. */
TEST(a_push_that_another_handle_takes_hides_no_later_push) {
    open_both();
    ask("RPUSH jobs x");
    ask("DEL jobs");
    do {
        usleep(5000);
        CHECK_STATUS(&worker, delayq_take(&worker, &item, 0), DELAYQ_EMPTY);
        usleep(5000);
    } while (!server_tracks());
    ask("RPUSH jobs x");
    ask("DEL jobs");
    usleep(5000);
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 0), DELAYQ_EMPTY);
    push_is_heard();
    close_both();
}

TEST(a_push_after_a_redrive_on_the_same_connection_is_heard) {
    open_both();
    redrive_one(&boss);
    ask("DEL jobs"); /* another program took the item first */
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 0), DELAYQ_EMPTY);
    push_is_heard();
    close_both();
}

TEST(a_push_after_a_handles_own_redrive_is_heard) {
    open_both();
    redrive_one(&worker);
    ask("DEL jobs");
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 0), DELAYQ_EMPTY);
    push_is_heard();
    close_both();
}

/* --- a transient error --------------------------------------------------- */

/* Make the worker request tracking again, and let the proxy answer this request
 * with `error`, `times` times. */
static void fails_to_track(const char *error, int times) {
    ask("RPUSH jobs x");
    UNTIL(delayq_take(&worker, &item, 0) == DELAYQ_OK);
    CHECK_STATUS(&worker, delayq_take(&worker, &item, 0), DELAYQ_EMPTY);
    snprintf(proxy->forged, sizeof proxy->forged, "-%s\r\n", error);
    proxy_strike(FORGE, 0, 0, times);
}

static void open_through_proxy(void) {
    delayq_options o = options_for(&main_server, "jobs");
    if (!can_track()) test_skip("the server tracks no keys");
    proxy_start(&main_server);
    o.url = proxy_url();
    o.max_wait_ms = 60000;
    OK(&worker, delayq_open(&worker, &o));
    UNTIL(tracked());
}

TEST(after_a_passing_error_pushes_are_heard_again) {
    static const char *const errors[] = {
        "BUSY Redis is busy running a script.",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down"};
    size_t i;
    open_through_proxy();
    for (i = 0; i < 3; i++) {
        fails_to_track(errors[i], 1);
        UNTIL((delayq_take(&worker, &item, 20), proxy->times == 0));
        UNTIL(tracked());
        push_is_heard();
    }
    delayq_close(&worker);
}

TEST(after_a_passing_error_pushes_are_heard_though_another_handle_asks) {
    delayq_options o;
    open_through_proxy();
    memset(&o, 0, sizeof o);
    o.name = "jobs";
    o.share = &worker;
    o.max_wait_ms = 60000;
    OK(&boss, delayq_open(&boss, &o));
    fails_to_track("BUSY Redis is busy running a script.", 1);
    UNTIL((delayq_take(&worker, &item, 0), proxy->times == 0));
    usleep(5000);
    delayq_take(&worker, &item, 0); /* reads the error */
    poll_now(&boss);
    CHECK_STATUS(&boss, delayq_take(&boss, &item, 0), DELAYQ_EMPTY);
    ask("RPUSH jobs pushed");
    /* the worker is notified even of the first push after the error */
    OK(&worker, delayq_take(&worker, &item, 9000));
    close_both();
}

TEST(a_take_does_not_spin_while_the_server_is_busy) {
    int asked;
    open_through_proxy();
    fails_to_track("BUSY Redis is busy running a script.", 1 << 30);
    delayq_take(&worker, &item, 1000);
    asked = (1 << 30) - proxy->times;
    if (asked < 1 || asked > 50) FAIL("asked %d times in a second", asked);
    proxy_calm();
    UNTIL(tracked());
    delayq_close(&worker);
}
