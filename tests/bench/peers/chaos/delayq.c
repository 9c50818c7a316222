/*
 * delayq as a peer of bench-chaos, with delivery at least once. Each thread has
 * its own handle. A job has a key, so that an offer can be repeated if its
 * reply was lost. A message with DELAYQ_ERR_UNKNOWN is offered again unchanged,
 * as the contract of delayq_offer_message requires.
 */
#define DELAYQ_IMPLEMENTATION
#include "../../../../delayq.h"
#include "chaos_peer.h"

static delayq handles[WORKERS];
static delayq_message messages[OFFERERS];

static void tell(void *user, delayq_status status, const char *text) {
    (void)user;
    fprintf(stderr, "%lld %s: %s\n", (long long)now_us(),
            delayq_strstatus(status), text);
}

static int peer_open(int thread, int port, int works) {
    static char url[64];
    delayq_options options;
    delayq_status status;
    (void)works;
    memset(&options, 0, sizeof options);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", port);
    options.name = "chaos";
    options.url = url;
    options.lease_ms = 30000;
    options.log = tell;
    status = delayq_open(&handles[thread], &options);
    if (status == DELAYQ_OK) return 1;
    tell(NULL, status, delayq_errmsg(&handles[thread]));
    delayq_close(&handles[thread]);
    return 0;
}

static int peer_offer(int thread, int id, const char *payload,
                      int64_t delay_us) {
    delayq_message *m = &messages[thread];
    char key[16];
    delayq_status status;
    snprintf(key, sizeof key, "%d", id);
    if (m->status != DELAYQ_ERR_UNKNOWN) {
        memset(m, 0, sizeof *m);
        m->data = payload;
        m->len = PAYLOAD;
        m->delay_ms = (delay_us + 999) / 1000;
        m->key_ttl_ms = 3600000;
    }
    m->key = key;
    status = delayq_offer_message(&handles[thread], m);
    m->key = NULL;
    if (status < 0) tell(NULL, status, delayq_errmsg(&handles[thread]));
    return status == DELAYQ_OK || status == DELAYQ_DUPLICATE;
}

static void peer_work(int thread) {
    delayq *q = &handles[thread];
    delayq_item item;
    memset(&item, 0, sizeof item);
    for (;;) {
        delayq_status status = delayq_ack_take(q, &item, DELAYQ_FOREVER);
        if (status == DELAYQ_OK) {
            handle((const char *)item.data, item.len);
        } else if (status < 0) { /* the next call tries the ack again */
            tell(NULL, status, delayq_errmsg(q));
            sleep_until(now_us() + RETRY_US);
        }
    }
}

static int peer_left(int *left, int *dead) {
    delayq_counts n;
    if (delayq_count(&handles[0], &n) != DELAYQ_OK) return 0;
    *left = (int)(n.pending + n.ready);
    *dead = (int)n.dead;
    return 1;
}

int main(int argc, char **argv) {
    return chaos_main(argc, argv);
}
