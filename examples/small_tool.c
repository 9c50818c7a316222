/*
 * small_tool -- offer from the command line, and exit.
 *
 *     $ ./small_tool jobs 1500 "send the report"
 *     $ echo $?
 *     0
 *     $ ./small_tool jobs soon x
 *     usage: small_tool NAME DELAY_MS PAYLOAD
 *
 * Exit codes: 0 stored, 1 not stored, 2 bad arguments, 3 maybe stored.
 */
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "delayq.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv) {
    static delayq q;
    delayq_options options = {0};
    delayq_status status;
    char *end = NULL;
    long long delay_ms = argc == 4 ? strtoll(argv[2], &end, 10) : -1;

    if (argc != 4 || *argv[2] == '\0' || *end != '\0') {
        fprintf(stderr, "usage: small_tool NAME DELAY_MS PAYLOAD\n");
        return 2;
    }
    options.name = argv[1];
    options.url = getenv("DELAYQ_URL");
    status = delayq_open(&q, &options);
    if (status == DELAYQ_OK)
        status = delayq_offer(&q, argv[3], strlen(argv[3]), delay_ms);
    if (status != DELAYQ_OK)
        fprintf(stderr, "small_tool: %s\n", delayq_errmsg(&q));
    delayq_close(&q);
    if (status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL) return 3;
    return status == DELAYQ_OK ? 0 : 1;
}
