/*
 * A client of beanstalkd, as a peer.
 *
 *     beanstalkd VERSION PORT round-up | whole-seconds
 *
 * beanstalkd has no bulk commands; a batch of 100 is so many commands in one
 * write. Delays are whole seconds: `late` rounds them up; or else it offers
 * each job 1 s before it is due, which shows what its timer can do.
 */
#include "peer.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define TTR "30" /* the lease, in seconds */

static FILE *in, *out; /* the consumer's, and where jobs are offered */
static FILE *late_in, *late_out;
static int whole, port;

static void dial(FILE **from, FILE **to) {
    struct sockaddr_in a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    *from = fdopen(fd, "r");
    *to = fdopen(dup(fd), "w");
    if (!*from || !*to) die("fdopen");
    setvbuf(*from, NULL, _IOFBF, 65536);
    setvbuf(*to, NULL, _IOFBF, 65536);
}

/* Read one line of the reply, which begins with `want`. */
static void expect(FILE *from, const char *want, char line[64]) {
    if (!fgets(line, 64, from)) die("connection lost");
    if (strncmp(line, want, strlen(want)) != 0) die(line);
}

static void put(FILE *to, int i, int64_t delay_s) {
    char payload[PAYLOAD];
    fill(payload, i);
    fprintf(to, "put 0 %lld " TTR " %d\r\n%.*s\r\n", (long long)delay_s,
            PAYLOAD, PAYLOAD, payload);
}

/* --- a job's life -------------------------------------------------------- */

static void offer(int batch, int count, int delay_ms) {
    char line[64];
    int i, k;
    for (i = 0; i < count; i += batch) {
        for (k = 0; k < batch; k++) put(out, i + k, delay_ms / 1000);
        fflush(out);
        for (k = 0; k < batch; k++) expect(in, "INSERTED ", line);
    }
}

static void reserve(int batch, int count, int64_t *ids) {
    char line[64], payload[PAYLOAD + 2];
    int k;
    for (k = 0; k < batch; k++) fputs("reserve-with-timeout 10\r\n", out);
    fflush(out);
    for (k = 0; k < batch; k++) {
        long long id;
        expect(in, "RESERVED ", line);
        if (sscanf(line, "RESERVED %lld 100", &id) != 1 ||
            fread(payload, 1, sizeof payload, in) != sizeof payload)
            die(line);
        note(payload, PAYLOAD, count);
        ids[k] = id;
    }
}

static void remove_all(int batch, const int64_t *ids) {
    char line[64];
    int k;
    for (k = 0; k < batch; k++)
        fprintf(out, "delete %lld\r\n", (long long)ids[k]);
    fflush(out);
    for (k = 0; k < batch; k++) expect(in, "DELETED", line);
}

static void take(int batch, int count) {
    int64_t ids[100];
    int i;
    for (i = 0; i < count; i += batch) {
        reserve(batch, count, ids);
        remove_all(batch, ids);
    }
}

/* --- lateness ------------------------------------------------------------ */

/* A due time that beanstalkd can keep: 1 s after the offer. */
static void one_second_before(int64_t *due) {
    struct timespec t;
    t.tv_sec = *due / 1000000 - 1;
    t.tv_nsec = *due % 1000000 * 1000;
    clock_nanosleep(CLOCK_REALTIME, TIMER_ABSTIME, &t, NULL);
    *due = clock_us(CLOCK_REALTIME) + 1000000;
}

static void offer_due(int i) {
    char line[64];
    int64_t ahead_us;
    if (!late_in) dial(&late_in, &late_out);
    if (whole) one_second_before(&due_us[i]);
    ahead_us = due_us[i] - clock_us(CLOCK_REALTIME);
    put(late_out, i, (ahead_us + 999999) / 1000000);
    fflush(late_out);
    expect(late_in, "INSERTED ", line);
}

static void late(int count) {
    take(1, count);
}

int main(int argc, char **argv) {
    char about[200];
    if (argc != 4) die("usage: beanstalkd VERSION PORT MODE");
    port = atoi(argv[2]);
    whole = strcmp(argv[3], "whole-seconds") == 0;
    in_order = whole;
    dial(&in, &out);
    snprintf(about, sizeof about, "beanstalkd %s%s", argv[1],
             whole ? ", each job offered 1 s before it is due"
                   : ": no binlog; delays in whole seconds, rounded up; "
                     "batch 100: so many commands in one write");
    serve(about);
    return 0;
}
