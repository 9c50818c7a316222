/*
 * A client of beanstalkd, as a peer.
 *
 *     beanstalkd VERSION PORT
 *
 * beanstalkd has no bulk commands, so a batch of 100 is 100 commands in one
 * write. Delays are whole seconds. `open` rounds them up, so a job that is
 * offered at its arrival has a delay of 1 s.
 */
#include "peer.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#define TTR "30"    /* the lease, in seconds */
#define CONSUMERS 8 /* the threads of `open`, each with a connection */

/* the connection of `offer` and `take` */
static FILE *in, *out;
static FILE *open_in, *open_out; /* the connection for the offers of `open` */
static int port;

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

/* Read one line of the reply. It must begin with `want`. */
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

static void offer_due(int i, int n) {
    char line[64];
    int k;
    if (!open_in) dial(&open_in, &open_out);
    for (k = 0; k < n; k++) {
        int64_t ahead_us = due_us[i + k] - clock_us(CLOCK_REALTIME);
        if (ahead_us < 0) ahead_us = 0;
        put(open_out, i + k, (ahead_us + 999999) / 1000000);
    }
    fflush(open_out);
    for (k = 0; k < n; k++) expect(open_in, "INSERTED ", line);
}

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int wanted, got;

static int note_one(const char *payload) {
    int more;
    pthread_mutex_lock(&mutex);
    note(payload, PAYLOAD, wanted);
    more = ++got < wanted;
    pthread_mutex_unlock(&mutex);
    return more;
}

/* Consume jobs on a connection of its own. The delete of a job and the next
 * reserve are sent in one write. */
static void *consume_some(void *done) {
    FILE *from, *to;
    char line[64], payload[PAYLOAD + 2];
    int more = 1;
    dial(&from, &to);
    fputs("reserve-with-timeout 1\r\n", to);
    while (more) {
        long long id;
        fflush(to);
        if (!fgets(line, sizeof line, from)) die("connection lost");
        if (strncmp(line, "DELETED", 7) == 0) continue;
        if (strncmp(line, "TIMED_OUT", 9) == 0) {
            pthread_mutex_lock(&mutex);
            more = got < wanted;
            pthread_mutex_unlock(&mutex);
            if (more) fputs("reserve-with-timeout 1\r\n", to);
            continue;
        }
        if (sscanf(line, "RESERVED %lld 100", &id) != 1 ||
            fread(payload, 1, sizeof payload, from) != sizeof payload)
            die(line);
        more = note_one(payload);
        fprintf(to, "delete %lld\r\n", id);
        if (more) fputs("reserve-with-timeout 1\r\n", to);
    }
    fflush(to);
    fclose(to);
    fclose(from);
    return done;
}

static void consume(int count) {
    pthread_t threads[CONSUMERS];
    int i;
    wanted = count;
    got = 0;
    for (i = 0; i < CONSUMERS; i++)
        if (pthread_create(&threads[i], NULL, consume_some, NULL))
            die("no thread");
    for (i = 0; i < CONSUMERS; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char **argv) {
    char about[200];
    if (argc != 3) die("usage: beanstalkd VERSION PORT");
    port = atoi(argv[2]);
    due_any_us = 1;
    dial(&in, &out);
    snprintf(about, sizeof about,
             "beanstalkd %s: no binlog; delays in whole seconds; "
             "batch 100: so many commands in one write; open: 8 consumers",
             argv[1]);
    serve(about);
    return 0;
}
