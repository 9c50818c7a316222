/*
 * hello -- the quick start: offer, take, done. With `demo` as argument it
 * offers a handful of items, some of them due earlier than what is already
 * waiting, and shows how late each one arrives.
 *
 *     $ DELAYQ_URL=redis://127.0.0.1:6379 ./hello
 *     offered, due in 1000 ms
 *     hello
 *
 *     $ make demo
 *     offered  breakfast  due in   400 ms
 *     offered  lunch      due in   800 ms
 *     offered  alarm      due in   100 ms
 *     ...
 *     arrived  alarm      late by 0.31 ms
 *     ...
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(delayq *q) {
    fprintf(stderr, "%s\n", delayq_errmsg(q));
    delayq_close(q);
    return 1;
}

static int demo(delayq *q) {
    static const struct {
        const char *text;
        int delay_ms;
    } offers[] = {{"breakfast", 400}, {"lunch", 800}, {"alarm", 100},
                  {"dinner", 1200},   {"snack", 600}, {"now", 0}};
    const size_t count = sizeof offers / sizeof offers[0];
    delayq_item item;
    size_t i;
    for (i = 0; i < count; i++) {
        if (delayq_offer(q, offers[i].text, strlen(offers[i].text),
                         offers[i].delay_ms) != DELAYQ_OK)
            return fail(q);
        printf("offered  %-9s  due in %5d ms\n", offers[i].text,
               offers[i].delay_ms);
    }
    for (i = 0; i < count; i++) {
        if (delayq_take(q, &item, 5000) != DELAYQ_OK) return fail(q);
        printf("arrived  %-9.*s  late by %.2f ms\n", (int)item.len,
               (const char *)item.data, (double)item.late_us / 1000);
    }
    return 0;
}

int main(int argc, char **argv) {
    static delayq q;
    delayq_options options = {0};
    delayq_item item;
    int status = 0;

    options.name = "hello";
    options.url = getenv("DELAYQ_URL"); /* NULL: redis://127.0.0.1:6379 */
    if (delayq_open(&q, &options) != DELAYQ_OK) return fail(&q);

    if (argc > 1 && strcmp(argv[1], "demo") == 0) {
        status = demo(&q);
    } else {
        if (delayq_offer(&q, "hello", 5, 1000) != DELAYQ_OK) return fail(&q);
        printf("offered, due in 1000 ms\n");
        if (delayq_take(&q, &item, 5000) != DELAYQ_OK) return fail(&q);
        printf("%.*s\n", (int)item.len, (const char *)item.data);
    }
    delayq_close(&q);
    return status;
}
