/*
 * stack URL -- the deepest stack of every public function, with hiredis and
 * libc. The stack below a call is painted before the call, and searched
 * afterwards. Each function is called on several kinds of handle, with the
 * longest name. The connection is good, or the server has just lost the scripts
 * and closed it, or the queue's keys have a wrong type.
 *
 * Prints the deepest of these stacks. Fails if it needs more than 8 KB, or if
 * more than half of the calls fail. tests/size.sh checks that no function is
 * missing. Link it statically, since a dynamic linker would add its own stack.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdlib.h>

#define LIMIT 8192
#define AREA (1 << 16)

static delayq q;
static redisContext *control;
static unsigned char *painted, *base;
static size_t deepest, calls, succeeded;
static const char *deepest_name = "";
static int failed;

/* Paint the stack below the caller's frame. */
static __attribute__((noinline)) void paint(void) {
    volatile unsigned char *at;
    base = (unsigned char *)__builtin_frame_address(0);
    painted = base - AREA;
    for (at = painted; at < base - 256; at++) *at = 0xa5;
}

static void note(const char *name) {
    const unsigned char *at = painted;
    size_t depth;
    while (*at == 0xa5) at++;
    depth = (size_t)(base - at);
    calls++;
    if (depth > LIMIT) {
        printf("%s: %lu bytes of stack\n", name, (unsigned long)depth);
        failed = 1;
    }
    if (depth <= deepest) return;
    deepest = depth;
    deepest_name = name;
}

/* Make a call, and measure its stack. */
#define CALL(call)                    \
    do {                              \
        prepare(o->name, way);        \
        paint();                      \
        if ((call) == 0) succeeded++; \
        note(#call);                  \
    } while (0)

static void command(const char *format, const char *argument) {
    redisReply *r = (redisReply *)redisCommand(control, format, argument);
    if (r) freeReplyObject(r);
}

enum { GOOD, LOST, WRONG };

/* Create the conditions of a call: GOOD, LOST or WRONG. */
static void prepare(const char *name, int way) {
    if (way == LOST) {
        command("SCRIPT FLUSH%s", "");
        command("CLIENT KILL TYPE normal%s", "");
        command("CLIENT KILL TYPE pubsub%s", "");
        if (!q.conn) return;
        memset(q.conn->cmd.closed_us, 0, sizeof q.conn->cmd.closed_us);
        q.conn->cmd.retry_us = q.conn->sub.retry_us = 0; /* no back-off */
    } else if (way == WRONG) {
        command("SET %s x", name);
        command("SET redisson_delay_queue_timeout:{%s} x", name);
        command("SET delayq_dead:{%s} x", name);
    }
}

static void tell(void *user, delayq_status status, const char *text) {
    (void)user, (void)status, (void)text;
}

static void call_all(const delayq_options *o, int way) {
    static delayq_item items[4];
    static delayq_dead letters[2];
    static delayq_ticket ticket;
    delayq_message messages[3];
    delayq_outbox_state state;
    delayq_counts counts;
    delayq *queues[1];
    int64_t number = 0, due[2] = {1, 2}, found[2];
    size_t count = 0;
    int fds[8];
    queues[0] = &q;
    memset(messages, 0, sizeof messages);
    messages[0].data = messages[1].data = messages[2].data = "x";
    messages[0].len = messages[1].len = messages[2].len = 1;
    messages[1].key = "key";
    messages[1].key_ttl_ms = 1;
    messages[2].delay_ms = 100000;
    command("FLUSHALL%s", "");
    CALL(delayq_open(&q, o));
    CALL(delayq_offer(&q, "x", 1, 0));
    CALL(delayq_offer_message(&q, &messages[1]));
    CALL(delayq_offer_many(&q, messages, 3));
    ticket = messages[2].ticket;
    CALL(delayq_tick(&q, &number));
    CALL(delayq_wait(queues, 1, 50));
    CALL(delayq_take(&q, &items[0], 50));
    CALL(delayq_extend(&q, &items[0], 30000));
    CALL(delayq_nack(&q, &items[0], 0));
    CALL(delayq_take_many(&q, items, 2, &count, 50));
    CALL(delayq_ack(&q, &items[0]));
    CALL(delayq_offer_many(&q, messages, 3));
    CALL(delayq_take_many(&q, items, 4, &count, 50));
    CALL(delayq_ack_many(&q, items, count ? count : 1));
    CALL(delayq_offer_many(&q, messages, 2));
    CALL(delayq_take(&q, &items[0], 50));
    CALL(delayq_bury(&q, &items[0], "no reason"));
    CALL(delayq_take(&q, &items[0], 50));
    CALL(delayq_ack_take(&q, &items[0], 50));
    CALL(delayq_reschedule(&q, &ticket, 200000));
    CALL(delayq_cancel(&q, &ticket));
    CALL(delayq_cancel_key(&q, "key"));
    CALL(delayq_peek(&q, items, 4, &count, NULL));
    CALL(delayq_count(&q, &counts));
    CALL(delayq_count_due(&q, due, 2, found));
    CALL(delayq_dead_peek(&q, letters, 2, &count, 0));
    CALL(delayq_dead_redrive(&q, 1, &count));
    CALL(delayq_dead_clear(&q, &number));
    CALL(delayq_pause(&q, 1));
    CALL(delayq_pause(&q, 0));
    CALL(delayq_load_scripts(&q));
    CALL(delayq_fds(&q, fds, 8) == 0);
    CALL(delayq_outbox(&q, &state));
    CALL(delayq_errmsg(&q) == NULL);
    CALL(delayq_strstatus(DELAYQ_OK) == NULL);
    CALL((delayq_wake(&q), 0));
    CALL(delayq_flush(&q, 1000));
    CALL(delayq_clear(&q, &number));
    CALL((delayq_close(&q), 0));
}

int main(int argc, char **argv) {
    static char memory[1 << 16], name[513];
    const char *url = argc > 1 ? argv[1] : getenv("DELAYQ_URL");
    const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON,
                                 DELAYQ_BROADCAST};
    delayq_options o;
    int kind, way;
    if (!url || strncmp(url, "unix://", 7) != 0) return 2;
    control = redisConnectUnix(url + 7);
    command("CLIENT SETNAME control%s", "");
    memset(name, 'n', sizeof name - 1);
    for (kind = 0; kind < 6; kind++)
        for (way = GOOD; way <= WRONG; way++) {
            memset(&o, 0, sizeof o);
            o.name = name;
            o.url = url;
            o.log = tell;
            o.wire = wires[kind % 3];
            o.lease_ms = kind % 3 == 2 ? 0 : 30000;
            o.counters = kind == 0;
            if (kind >= 3) {
                o.outbox = memory;
                o.outbox_size = sizeof memory;
            }
            call_all(&o, way);
        }
    redisFree(control);
    printf("stack, every function: at most %lu bytes, in %.*s\n",
           (unsigned long)deepest, (int)strcspn(deepest_name, "("),
           deepest_name);
    if (succeeded < calls / 2) {
        printf("only %lu of %lu calls succeeded\n", (unsigned long)succeeded,
               (unsigned long)calls);
        failed = 1;
    }
    return failed;
}
