/*
 * demo -- offers six items, some of which are due before items that were
 * offered earlier, and shows how late each item arrives.
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

int main(void) {
    static delayq q;
    static const struct {
        const char *text;
        int delay_ms;
    } offers[] = {{"breakfast", 400}, {"lunch", 800}, {"alarm", 100},
                  {"dinner", 1200},   {"snack", 600}, {"now", 0}};
    const size_t count = sizeof offers / sizeof offers[0];
    delayq_options options = {0};
    delayq_item item;
    size_t i;

    options.name = "demo";
    options.url = getenv("DELAYQ_URL");
    if (delayq_open(&q, &options) != DELAYQ_OK) return fail(&q);
    for (i = 0; i < count; i++) {
        if (delayq_offer(&q, offers[i].text, strlen(offers[i].text),
                         offers[i].delay_ms) != DELAYQ_OK)
            return fail(&q);
        printf("offered  %-9s  due in %5d ms\n", offers[i].text,
               offers[i].delay_ms);
    }
    for (i = 0; i < count; i++) {
        if (delayq_take(&q, &item, 5000) != DELAYQ_OK) return fail(&q);
        printf("arrived  %-9.*s  late by %.2f ms\n", (int)item.len,
               (const char *)item.data, (double)item.late_us / 1000);
    }
    delayq_close(&q);
    return 0;
}
