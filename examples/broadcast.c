/*
 * broadcast -- every listener gets every item when it is due.
 *
 *     $ ./broadcast               (in several terminals)
 *     1700000000000-0 hello
 *     $ ./broadcast say 500 hello
 *     $ ./broadcast 1700000000000-0     continues after this item
 *     $ ./broadcast all                 begins with the oldest kept item
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
    int say = argc == 4 && strcmp(argv[1], "say") == 0;

    options.name = "news";
    options.url = getenv("DELAYQ_URL");
    options.wire = DELAYQ_BROADCAST;
    if (argc == 2)
        options.broadcast_after = strcmp(argv[1], "all") ? argv[1] : "";
    status = delayq_open(&q, &options);
    if (status == DELAYQ_OK && say)
        status = delayq_offer(&q, argv[3], strlen(argv[3]), atol(argv[2]));
    while (status == DELAYQ_OK && !say) {
        status = delayq_take(&q, &item, DELAYQ_FOREVER);
        if (status == DELAYQ_OK)
            printf("%s %.*s\n", item.ticket.text, (int)item.len,
                   (const char *)item.data);
        fflush(stdout);
    }
    if (status != DELAYQ_OK) fprintf(stderr, "%s\n", delayq_errmsg(&q));
    delayq_close(&q);
    return status != DELAYQ_OK;
}
