/*
 * program.c -- the board's program: delayq's functions as commands. It reads
 * commands from the serial line, one per line, and answers each with one line.
 * tests/board.sh sends the commands, and checks the server between them. H is
 * the number of a handle.
 *
 *     open H URL NAME LEASE_MS OUTBOX    OUTBOX: 1 or 0
 *     offer H TEXT DELAY_MS              take H TIMEOUT_MS
 *     ack H                              nack H DELAY_MS
 *     tick H                             flush H TIMEOUT_MS
 *     wake H AFTER_MS                    close H
 *     used                               exit CODE
 *
 * The answer is the status in words; to "used", the peak of stack and heap. For
 * a taken item, its attempt and text precede the status. After a failure, the
 * error text follows the status. The answer to "wake" comes at once, and
 * another thread wakes the handle later.
 */
#include "board.h"
#include "delayq.h"
#include "../interface.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HANDLES = 3, OUTBOX = 8192 };

typedef struct handle {
    delayq q;
    delayq_item item; /* the last taken item */
    char outbox[OUTBOX];
    char name[64], url[64];
} handle;

int main(void);

/* --- the network ---------------------------------------------------------- */

/* Use the addresses of guest and host in qemu's user network. */
static void network_up(void *done) {
    static struct netif ethernet;
    if (!interface_up(&ethernet, "10.0.2.15", "255.255.255.0", "10.0.2.2",
                      lan9118_init)) {
        printf("FAIL no Ethernet\n");
        exit(2);
    }
    netif_set_default(&ethernet);
    sys_sem_signal(done);
}

/* --- another thread ------------------------------------------------------- */

static struct {
    sys_sem_t begin, never;
    delayq *q;
    u32_t after_ms;
} waker;

static void wake_handles(void *unused) {
    (void)unused;
    for (;;) {
        sys_arch_sem_wait(&waker.begin, 0);
        sys_arch_sem_wait(&waker.never, waker.after_ms);
        delayq_wake(waker.q);
    }
}

/* --- commands ------------------------------------------------------------- */

static char *words[6]; /* the words of a command; missing words are "" */

static int64_t number(int word) {
    return strtol(words[word], NULL, 10);
}

static delayq_status open_handle(handle *h) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    snprintf(h->url, sizeof h->url, "%s", words[2]);
    snprintf(h->name, sizeof h->name, "%s", words[3]);
    o.url = h->url;
    o.name = h->name;
    o.lease_ms = number(4);
    o.io_timeout_ms = 1000;
    o.reconnect_max_ms = 500;
    o.max_wait_ms = 600000; /* longer than the test, so no poll finds an item */
    if (number(5)) {
        o.outbox = h->outbox;
        o.outbox_size = sizeof h->outbox;
    }
    return delayq_open(&h->q, &o);
}

static delayq_status take(handle *h) {
    delayq_status status = delayq_take(&h->q, &h->item, number(2));
    if (status == DELAYQ_OK)
        printf("attempt %d of %.*s, ", h->item.attempt, (int)h->item.len,
               (const char *)h->item.data);
    return status;
}

static delayq_status wake_later(handle *h) {
    waker.q = &h->q;
    waker.after_ms = (u32_t)number(2);
    sys_sem_signal(&waker.begin);
    return DELAYQ_OK;
}

static delayq_status obey(handle *h) {
    const char *c = words[0];
    delayq *q = &h->q;
    if (strcmp(c, "open") == 0) return open_handle(h);
    if (strcmp(c, "take") == 0) return take(h);
    if (strcmp(c, "wake") == 0) return wake_later(h);
    if (strcmp(c, "offer") == 0)
        return delayq_offer(q, words[2], strlen(words[2]), number(3));
    if (strcmp(c, "ack") == 0) return delayq_ack(q, &h->item);
    if (strcmp(c, "nack") == 0) return delayq_nack(q, &h->item, number(2));
    if (strcmp(c, "tick") == 0) return delayq_tick(q, NULL);
    if (strcmp(c, "flush") == 0) return delayq_flush(q, number(2));
    if (strcmp(c, "close") == 0) {
        delayq_close(q);
        return DELAYQ_OK;
    }
    printf("no such command, ");
    return DELAYQ_ERR_ARG;
}

static void answer(const char *line) {
    static handle handles[HANDLES];
    static char copy[200];
    handle *h;
    delayq_status status;
    int i;
    snprintf(copy, sizeof copy, "%s", line);
    for (i = 0; i < 6; i++) {
        words[i] = strtok(i ? NULL : copy, " \n");
        if (!words[i]) words[i] = "";
    }
    if (strcmp(words[0], "exit") == 0) exit((int)number(1));
    if (strcmp(words[0], "used") == 0) {
        printf("stack %u, heap %u\n", board_stack_used(), board_heap_used());
        return;
    }
    h = &handles[(unsigned)number(1) % HANDLES];
    status = obey(h);
    printf("%s%s%s\n", delayq_strstatus(status), status < 0 ? ": " : "",
           status < 0 ? delayq_errmsg(&h->q) : "");
}

int main(void) {
    static char line[200];
    sys_sem_t up;
    sys_sem_new(&up, 0);
    sys_sem_new(&waker.begin, 0);
    sys_sem_new(&waker.never, 0);
    tcpip_init(network_up, &up);
    sys_arch_sem_wait(&up, 0);
    sys_thread_new("waker", wake_handles, NULL, 4096, 0);
    printf("the board is up\n");
    while (fgets(line, sizeof line, stdin)) answer(line);
    return 2;
}
