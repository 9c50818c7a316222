/*
 * handles -- the server's cost of connected programs: of opening and closing a
 * handle, compared with a bare connection that sends a PING; of keeping a
 * handle that only offers or that waits; and of notifying a hundred waiting
 * handles of an item that is due before all others. The figures are the
 * server's CPU time in microseconds, and its memory as shown by INFO.
 */
#include "bench.h"

#define HANDLES 100
#define OFFERS 300

static redisContext *c;
static delayq q, handle[HANDLES];

static void row(const char *title, const char *more_than, double *v) {
    print_row(title, more_than, "us", spread_of(v, LAPS), "");
}

static void open_one(int i) {
    delayq_options o = {0};
    o.name = "bench";
    o.url = getenv("DELAYQ_URL");
    if (delayq_open(&handle[i], &o) != DELAYQ_OK)
        die(delayq_errmsg(&handle[i]));
}

/* Returns the server's microseconds for an offer. With a negative step each
 * item is due before all others, with a positive step after all others. */
static double offer_us(int step) {
    double before;
    int i;
    empty_bench(c, &q);
    before = server_us(c);
    for (i = 0; i < OFFERS; i++)
        if (delayq_offer(&q, "x", 1, 90000000 + i * step) != DELAYQ_OK)
            die(delayq_errmsg(&q));
    return (server_us(c) - before) / OFFERS;
}

/* Returns the server's memory for each handle in KiB, after the server has
 * shrunk idle buffers. `before` is its used memory without handles. */
static double idle_kib(double before) {
    sleep(8);
    return (info(c, "memory", "used_memory:") - before) / HANDLES / 1024;
}

static void listen_all(void) {
    int i;
    for (i = 0; i < HANDLES; i++) {
        while (!handle[i].subscribed) /* needs one or two ticks */
            if (delayq_tick(&handle[i], NULL) != DELAYQ_OK)
                die(delayq_errmsg(&handle[i]));
    }
}

static double open_close_us(void) {
    double before = server_us(c);
    int i;
    for (i = 0; i < HANDLES; i++) open_one(i), delayq_close(&handle[i]);
    return (server_us(c) - before) / HANDLES;
}

static double connect_us(void) {
    double before = server_us(c);
    int i;
    for (i = 0; i < HANDLES; i++) {
        redisContext *b = bare();
        do_command(b, "PING");
        redisFree(b);
    }
    return (server_us(c) - before) / HANDLES;
}

static void memory(void) {
    double before = info(c, "memory", "used_memory:"), offers;
    int i;
    for (i = 0; i < HANDLES; i++) open_one(i);
    offers = idle_kib(before);
    listen_all();
    printf("memory, idle: of one that only offers %.1f KiB, of one that ticks, "
           "takes or waits %.1f KiB\n",
           offers, idle_kib(before));
    for (i = 0; i < HANDLES; i++) delayq_close(&handle[i]);
}

int main(void) {
    double opened[LAPS], over[LAPS], head[LAPS], heard[LAPS];
    int lap, i;
    c = bare();
    open_bench(&q, DELAYQ_NATIVE, 0);
    memory();
    for (lap = -1; lap < LAPS; lap++) {
        double us[2], offer[2], first;
        for (i = 0; i < 2; i++)
            us[(i ^ lap) & 1] = (i ^ lap) & 1 ? connect_us() : open_close_us();
        for (i = 0; i < 2; i++)
            offer[(i ^ lap) & 1] = offer_us((i ^ lap) & 1 ? 10000 : -10000);
        for (i = 0; i < HANDLES; i++) open_one(i);
        listen_all();
        first = offer_us(-10000);
        for (i = 0; i < HANDLES; i++) delayq_close(&handle[i]);
        if (lap < 0) continue;
        opened[lap] = us[0];
        over[lap] = us[0] / us[1];
        head[lap] = offer[0] - offer[1];
        heard[lap] = (first - offer[0]) / HANDLES;
    }
    print_head("server's CPU", "over that of");
    print_row("open and close", "connect, PING, close", "",
              spread_of(over, LAPS), "");
    row("the same", "", opened);
    row("earliest offer", "above a late one", head);
    row("each who hears it", "", heard);
    do_command(c, "FLUSHALL");
    delayq_close(&q);
    return 0;
}
