/*
 * A client of beanstalkd, as a peer of bench-chaos. It sends put, reserve and
 * delete. It also reconnects after a failure, since the protocol leaves this to
 * clients. Delays are whole seconds, rounded up.
 */
#include "chaos_peer.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/socket.h>

#define TTR "30" /* the lease, in seconds */

static struct { FILE *in, *out; } lines[WORKERS];
static int server_port;

static void hang_up(int thread) {
    if (lines[thread].in) fclose(lines[thread].in);
    if (lines[thread].out) fclose(lines[thread].out);
    lines[thread].in = lines[thread].out = NULL;
}

static int dial(int thread) {
    struct sockaddr_in a;
    int fd, on = 1;
    if (lines[thread].in) return 1;
    fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((uint16_t)server_port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) {
        if (fd >= 0) close(fd);
        return 0;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    lines[thread].in = fdopen(fd, "r");
    lines[thread].out = fdopen(dup(fd), "w");
    if (lines[thread].in && lines[thread].out) return 1;
    hang_up(thread);
    return 0;
}

/* Read one line of reply. Returns 1 if it begins with `want`. If the connection
 * is lost, close it. After any other reply the connection stays open. */
static int reply(int thread, const char *want, char line[128]) {
    fflush(lines[thread].out);
    if (!fgets(line, 128, lines[thread].in)) {
        hang_up(thread);
        return 0;
    }
    return strncmp(line, want, strlen(want)) == 0;
}

static int peer_open(int thread, int port, int works) {
    (void)works;
    server_port = port;
    return dial(thread);
}

static int peer_offer(int thread, int id, const char *payload,
                      int64_t delay_us) {
    char line[128];
    (void)id;
    if (!dial(thread)) return 0;
    fprintf(lines[thread].out, "put 0 %lld " TTR " %d\r\n%.*s\r\n",
            (long long)(delay_us + 999999) / 1000000, PAYLOAD, PAYLOAD,
            payload);
    return reply(thread, "INSERTED ", line);
}

static void peer_work(int thread) {
    char line[128], payload[PAYLOAD + 2];
    for (;;) {
        long long id;
        if (!dial(thread)) {
            sleep_until(now_us() + RETRY_US);
            continue;
        }
        fprintf(lines[thread].out, "reserve\r\n");
        if (!reply(thread, "RESERVED ", line) ||
            sscanf(line, "RESERVED %lld", &id) != 1)
            continue;
        if (fread(payload, 1, sizeof payload, lines[thread].in) !=
            sizeof payload) {
            hang_up(thread);
            continue;
        }
        handle(payload, PAYLOAD);
        /* can be repeated, since a ready job can be deleted, too */
        do {
            while (!dial(thread)) sleep_until(now_us() + RETRY_US);
            fprintf(lines[thread].out, "delete %lld\r\n", id);
            reply(thread, "DELETED", line);
        } while (!lines[thread].in);
    }
}

static int peer_left(int *left, int *dead) {
    char line[128];
    int n, size;
    *left = *dead = 0;
    if (!dial(0)) return 0;
    fprintf(lines[0].out, "stats-tube default\r\n");
    if (!reply(0, "OK ", line) || sscanf(line, "OK %d", &size) != 1) return 0;
    for (size += 2; size > 0; size -= (int)strlen(line)) {
        if (!fgets(line, sizeof line, lines[0].in)) {
            hang_up(0);
            return 0;
        }
        if (sscanf(line, "current-jobs-buried: %d", &n) == 1)
            *dead = n;
        else if (sscanf(line, "current-jobs-ready: %d", &n) == 1 ||
                 sscanf(line, "current-jobs-reserved: %d", &n) == 1 ||
                 sscanf(line, "current-jobs-delayed: %d", &n) == 1)
            *left += n;
    }
    return 1;
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    return chaos_main(argc, argv);
}
