/*
 * hello -- the quick start of README.md: offers an item, takes items, prints
 * them, and reports a failure.
 *
 *     $ ./hello
 *     hello                   (after five seconds; it then waits for more)
 *     world                   (redis-cli rpush jobs world; Ctrl-C ends it)
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>

static void tell(void *user, delayq_status status, const char *text) {
    (void)user, (void)status;
    fprintf(stderr, "%s\n", text);
}

int main(void) {
    static delayq q;
    delayq_options options = {0};
    delayq_item item;

    options.name = "jobs";
    options.url = getenv("DELAYQ_URL"); /* NULL: redis://127.0.0.1:6379 */
    options.log = tell; /* events, and faults that a take survives */
    if (delayq_open(&q, &options) == DELAYQ_OK &&
        delayq_offer(&q, "hello", 5, 5000) == DELAYQ_OK) /* due in 5 s */
        while (delayq_take(&q, &item, DELAYQ_FOREVER) == DELAYQ_OK)
            printf("%.*s\n", (int)item.len, (const char *)item.data);
    fprintf(stderr, "%s\n", delayq_errmsg(&q)); /* why a call has failed */
    delayq_close(&q);
    return 1;
}
