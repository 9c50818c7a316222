/*
 * gateway -- the only program of a fleet that contains the Lua scripts. It
 * loads them into the server, and takes the readings of the devices; sensor.c
 * shows the output. It loads the scripts every minute, since a restart of the
 * server loses them. Each time it sends 110 KB, which has no effect if the
 * server still has the scripts.
 *
 * The argument is the number of readings to take (default: no limit).
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void tell(void *user, delayq_status status, const char *text) {
    (void)user;
    if (status != DELAYQ_OK) fprintf(stderr, "gateway: %s\n", text);
}

int main(int argc, char **argv) {
    static delayq q;
    delayq_options options = {0};
    delayq_item item;
    delayq_status status = DELAYQ_OK, last = DELAYQ_EMPTY;
    time_t next = 0;
    long most = argc > 1 ? atol(argv[1]) : -1, n = 0;
    options.name = "readings";
    options.url = getenv("DELAYQ_URL");
    options.lease_ms = 30000;
    options.log = tell;
    setvbuf(stdout, NULL, _IOLBF, 0);
    status = delayq_open(&q, &options);
    if (status == DELAYQ_ERR_ARG) {
        fprintf(stderr, "gateway: %s\n", delayq_errmsg(&q));
        return 1;
    }
    while (n != most) {
        if (time(NULL) >= next) {
            status = delayq_load_scripts(&q);
            if (status != last)
                printf("gateway: %s\n", status == DELAYQ_OK
                                            ? "the scripts are loaded"
                                            : delayq_errmsg(&q));
            last = status;
            next = time(NULL) + (status == DELAYQ_OK ? 60 : 1);
        }
        if (delayq_take(&q, &item, 1000) != DELAYQ_OK) continue;
        printf("gateway: %.*s\n", (int)item.len, (const char *)item.data);
        delayq_ack(&q, &item);
        n++;
    }
    delayq_close(&q);
    return 0;
}
