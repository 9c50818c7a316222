/*
 * example -- the C side of a queue that is shared with Java. Example.java is
 * the Java side. Each item is taken once, by either side.
 *
 *     $ ./example "hello from C"
 *     offered: hello from C        (due in two seconds)
 *     $ ./example
 *     took: hello from Java        (or what C has offered; it waits for it)
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static delayq q;
    delayq_options options = {0};
    delayq_item item;
    delayq_status status;

    options.name = "jobs";
    options.url = getenv("DELAYQ_URL"); /* NULL: redis://127.0.0.1:6379 */
    /* for Redisson up to 3.21.0: DELAYQ_REDISSON_OLD */
    options.wire = DELAYQ_REDISSON;
    status = delayq_open(&q, &options);
    if (status == DELAYQ_OK && argc > 1) {
        status = delayq_offer(&q, argv[1], strlen(argv[1]), 2000);
        if (status == DELAYQ_OK) printf("offered: %s\n", argv[1]);
    } else if (status == DELAYQ_OK) {
        status = delayq_take(&q, &item, DELAYQ_FOREVER);
        if (status == DELAYQ_OK)
            printf("took: %.*s\n", (int)item.len, (const char *)item.data);
    }
    if (status != DELAYQ_OK) fprintf(stderr, "%s\n", delayq_errmsg(&q));
    delayq_close(&q);
    return status != DELAYQ_OK;
}
