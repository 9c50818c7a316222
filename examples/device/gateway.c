/*
 * gateway -- the one program of a fleet that has the Lua: it loads the scripts
 * for the devices (sensor.c, which shows the output of both), and takes their
 * readings. It loads the scripts every minute, since a server that restarts
 * forgets them. That sends 110 KB, and changes nothing if they are there.
 *
 * The argument: how many readings to take, endlessly unless given.
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
