/*
 * smoke -- checks the things that a system must supply: clock, timers, sockets,
 * the wake-up, error texts. `make windows` builds it for Windows, and runs it
 * with Wine. It also builds it for this system, as a comparison.
 *
 *     smoke URL
 *
 * The program can't freeze or restart the server itself. It prints "please
 * freeze", "please thaw", "please stop" or "please start". Then it waits for a
 * line from tests/cross.sh, which does that.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdlib.h>
#ifdef _WIN32
#include <process.h>
#else
#include <pthread.h>
#include <time.h>
#endif

#define ITEMS 200

static const char *url;
static int passed, failed;

static void check(int good, const char *sentence, const char *why) {
    printf("%s %s%s%s\n", good ? "ok  " : "FAIL", sentence, good ? "" : ": ",
           good ? "" : why);
    fflush(stdout);
    if (good)
        passed++;
    else
        failed++;
}

static double now_ms(void) {
    return (double)dq_sys_now() / 1e3;
}

static void sleep_ms(int ms) {
#ifdef _WIN32
    Sleep((DWORD)ms);
#else
    struct timespec t;
    t.tv_sec = ms / 1000;
    t.tv_nsec = ms % 1000 * 1000000L;
    nanosleep(&t, NULL);
#endif
}

static void please(const char *what) {
    char line[32];
    printf("please %s\n", what);
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) exit(2);
#ifdef DELAYQ_PORT
    bridge_obey(what);
#endif
}

static delayq_options options_of(const char *name) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.url = url;
    o.io_timeout_ms = 1000;
    o.max_wait_ms = 60000; /* so that no item is found by polling */
    return o;
}

static void must_open(delayq *q, const delayq_options *o) {
    if (delayq_open(q, o) == DELAYQ_OK) return;
    printf("FAIL open: %s\n", delayq_errmsg(q));
    exit(2);
}

/* --- another thread ------------------------------------------------------- */

static struct task {
    delayq *q;
    void (*what)(delayq *q);
    int after_ms;
} task;

static void run_task(void) {
    sleep_ms(task.after_ms);
    task.what(task.q);
}

#ifdef _WIN32
static HANDLE thread;
static unsigned __stdcall thread_main(void *unused) {
    (void)unused;
    run_task();
    return 0;
}
static void join_thread(void) {
    WaitForSingleObject(thread, INFINITE);
    CloseHandle(thread);
}
#else
static pthread_t thread;
static void *thread_main(void *unused) {
    (void)unused;
    run_task();
    return NULL;
}
static void join_thread(void) {
    pthread_join(thread, NULL);
}
#endif

static void in_thread(int after_ms, void (*what)(delayq *q), delayq *q) {
    task.q = q;
    task.what = what;
    task.after_ms = after_ms;
#ifdef _WIN32
    thread = (HANDLE)_beginthreadex(NULL, 0, thread_main, NULL, 0, NULL);
#else
    pthread_create(&thread, NULL, thread_main, NULL);
#endif
}

static void offer_one(delayq *unused) {
    static delayq q;
    delayq_options o = options_of("woken");
    (void)unused;
    must_open(&q, &o);
    delayq_offer(&q, "x", 1, 0);
    delayq_close(&q);
}

/* --- the checks ----------------------------------------------------------- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int poll_for(struct pollfd *fds, size_t count, int ms) {
    int64_t until = ms > 0 ? dq_sys_now() + ms * 1000 : 0;
    return dq_sys_sleep(fds, count, until);
}

/* Measure how late a sleep ends, without and with the spin that follows it. */
static void timers(void) {
    static double late[ITEMS], spun[ITEMS];
    int pipes[2], i, early = 0;
    double began = now_ms();
    check(poll_for(NULL, 0, 50) == 0 && now_ms() - began > 30,
          "a sleep beside no descriptor sleeps", "it doesn't");
    if (!dq_sys_open_pipe(pipes)) exit(2);
    for (i = 0; i < ITEMS; i++) {
        struct pollfd p = dq_sys_watch(pipes[0], POLLIN);
        int64_t until = dq_sys_now() + 1000 + i * 67;
        int ready = dq_sys_sleep(&p, 1, until - DQ_SPIN_US);
        spun[i] = (double)(dq_sys_now() - until + DQ_SPIN_US) / 1e3;
        dq_sys_poll_until(&p, 1, until);
        late[i] = (double)(dq_sys_now() - until) / 1e3;
        early += ready || spun[i] < -0.1 || late[i] < 0;
    }
    dq_sys_close_pipe(pipes);
    qsort(spun, ITEMS, sizeof spun[0], by_value);
    qsort(late, ITEMS, sizeof late[0], by_value);
    printf("a sleeper wakes so late, ms: median %.2f, of 100 one %.2f; "
           "with the spin %.2f, %.2f\n",
           spun[ITEMS / 2], spun[ITEMS - ITEMS / 100 - 1], late[ITEMS / 2],
           late[ITEMS - ITEMS / 100 - 1]);
    check(early == 0, "a timer never ends too early", "one does");
    check(late[ITEMS / 2] < 5, "half of the timers are less than 5 ms late",
          "they are not");
}

/* Measure the lateness of items by the client's clock. The due time counts from
 * before the offer, so the lateness includes the round trip of the offer. */
static void lateness(void) {
    static delayq q;
    static double late[ITEMS];
    delayq_options o = options_of("late");
    int i, early = 0;
    must_open(&q, &o);
    for (i = 0; i < ITEMS; i++) {
        delayq_item item;
        int delay_ms = 2 + i % 20;
        double began = now_ms();
        if (delayq_offer(&q, "x", 1, delay_ms) != DELAYQ_OK ||
            delayq_take(&q, &item, 5000) != DELAYQ_OK) {
            check(0, "an item comes when it is due", delayq_errmsg(&q));
            return;
        }
        late[i] = now_ms() - began - delay_ms;
        early += late[i] < 0;
    }
    delayq_close(&q);
    qsort(late, ITEMS, sizeof late[0], by_value);
    printf("lateness, ms, with the round trip of the offer: "
           "median %.2f, of 100 one %.2f, most %.2f\n",
           late[ITEMS / 2], late[ITEMS - ITEMS / 100 - 1], late[ITEMS - 1]);
    check(early == 0, "no item comes early", "one does");
    check(late[ITEMS / 2] < 15, "half of the items are less than 15 ms late",
          "they are not");
}

static void wakes(void) {
    static delayq q;
    delayq_options o = options_of("woken");
    delayq_status status;
    delayq_item item;
    struct pollfd p[3];
    int fds[3], n, i;
    double began;
    must_open(&q, &o);

    in_thread(300, delayq_wake, &q);
    began = now_ms();
    status = delayq_take(&q, &item, 20000);
    printf("woken after %.0f ms\n", now_ms() - began);
    check(status == DELAYQ_WOKEN, "a wake-up ends a take",
          delayq_strstatus(status));
    check(now_ms() - began < 5000, "at once", "it comes late");
    join_thread();

    in_thread(300, offer_one, NULL);
    began = now_ms();
    status = delayq_take(&q, &item, 20000);
    check(status == DELAYQ_OK, "a take gets what another handle offers",
          delayq_strstatus(status));
    check(now_ms() - began < 5000, "which it hears of", "it was not told");
    join_thread();

    n = (int)delayq_fds(&q, fds, 3);
    for (i = 0; i < n; i++) p[i] = dq_sys_watch(fds[i], POLLIN);
    check(n >= 1 && poll_for(p, (size_t)n, 0) == 0,
          "no descriptor is readable while nothing happens", "one is");
    in_thread(100, delayq_wake, &q);
#ifdef _WIN32
    check(WSAPoll(p, (ULONG)n, 5000) > 0, "a wake-up makes one readable",
          "it doesn't");
#else
    check(poll(p, (nfds_t)n, 5000) > 0, "a wake-up makes one readable",
          "it doesn't");
#endif
    join_thread();
    began = now_ms();
    status = delayq_take(&q, &item, 20000);
    check(status == DELAYQ_WOKEN && now_ms() - began < 5000,
          "and ends the next take", delayq_strstatus(status));
    delayq_tick(&q, NULL);
    for (i = 0; i < 1000; i++) delayq_wake(&q);
    check(1, "a thousand wake-ups don't block", "");
    delayq_close(&q);
}

/* Returns the CPU time of this process, in ms. */
static double cpu_ms(void) {
#ifdef _WIN32
    FILETIME begun, ended, kernel, user;
    GetProcessTimes(GetCurrentProcess(), &begun, &ended, &kernel, &user);
    return ((double)kernel.dwLowDateTime + (double)user.dwLowDateTime) / 1e4;
#else
    return (double)clock() * 1e3 / (double)CLOCKS_PER_SEC;
#endif
}

static void idles(void) {
    static delayq q;
    delayq_options o = options_of("idle");
    delayq_item item;
    double began;
    must_open(&q, &o);
    delayq_take(&q, &item, 500); /* this opens the subscriber */
    began = cpu_ms();
    delayq_take(&q, &item, 2000);
    printf("CPU of a wait of 2 s: %.0f ms\n", cpu_ms() - began);
    check(cpu_ms() - began < 300, "a wait sleeps", "it spins");
    delayq_close(&q);
}

static void leases(void) {
    static delayq q;
    delayq_options o = options_of("lease");
    delayq_item item;
    o.lease_ms = 200;
    must_open(&q, &o);
    check(delayq_offer(&q, "job", 3, 0) == DELAYQ_OK &&
              delayq_take(&q, &item, 5000) == DELAYQ_OK && item.attempt == 1,
          "a lease", delayq_errmsg(&q));
    check(delayq_take(&q, &item, 5000) == DELAYQ_OK && item.attempt == 2,
          "that is over delivers again", delayq_errmsg(&q));
    check(delayq_ack(&q, &item) == DELAYQ_OK, "an ack", delayq_errmsg(&q));
    check(delayq_take(&q, &item, 400) == DELAYQ_EMPTY, "ends that",
          delayq_errmsg(&q));
    delayq_close(&q);
}

/* A game with frames of 1/60 s. In each frame it offers, takes and ticks. */
static delayq game;
static int offered, back;
static unsigned char seen[1000];
static double longest;

static void take_all(void) {
    delayq_item item;
    while (delayq_take(&game, &item, 0) == DELAYQ_OK) {
        int number = atoi((const char *)item.data);
        back += !seen[number];
        seen[number] = 1;
        delayq_ack(&game, &item);
    }
}

static void frames(int count) {
    while (count-- > 0) {
        double began = now_ms(), spent;
        char number[16];
        int len = snprintf(number, sizeof number, "%d", offered) + 1;
        take_all();
        if (delayq_offer(&game, number, (size_t)len, 100) == DELAYQ_OK)
            offered++;
        delayq_tick(&game, NULL);
        spent = now_ms() - began;
        if (spent > longest) longest = spent;
        if (spent < 16) sleep_ms(16 - (int)spent);
    }
}

static void tell_frames(const char *when, double limit) {
    printf("longest frame %s: %.2f ms\n", when, longest);
    check(longest < limit, "no frame waits", "one did");
    longest = 0;
}

static void outbox(void) {
    static char memory[65536];
    delayq_options o = options_of("game");
    delayq_status status;
    double until;
    /* If the server stops, fetched items come again after this time. */
    o.lease_ms = 3000;
    o.outbox = memory;
    o.outbox_size = sizeof memory;
    must_open(&game, &o);
    frames(60);
    tell_frames("beside a server that answers", 500);
    check(back > 0, "items come back", "none did");
    please("freeze");
    frames(120);
    tell_frames("beside a frozen server", 500);
    please("thaw");
    status = delayq_flush(&game, 20000);
    check(status == DELAYQ_OK, "a flush settles what the outbox holds",
          delayq_errmsg(&game));
    please("stop");
    frames(60);
    tell_frames("beside a stopped server", 500);
    please("start");
    status = delayq_flush(&game, 20000);
    check(status == DELAYQ_OK, "and after a restart", delayq_errmsg(&game));
    for (until = now_ms() + 20000; back < offered && now_ms() < until;) {
        take_all();
        delayq_tick(&game, NULL);
        sleep_ms(5);
    }
    printf("%d offered, %d taken\n", offered, back);
    check(offered == back, "all that was offered comes back", "it doesn't");
    delayq_close(&game);
}

static void faults(void) {
    static delayq q;
    delayq_options o = options_of("faults");
    delayq_item item;
    delayq_status status;
    double began;
    must_open(&q, &o);
    delayq_take(&q, &item, 0);
    please("freeze");
    began = now_ms();
    status = delayq_offer(&q, "x", 1, 0);
    check(status == DELAYQ_ERR_UNKNOWN,
          "an offer to a frozen server is unknown", delayq_strstatus(status));
    check(now_ms() - began > 900 && now_ms() - began < 5000,
          "after io_timeout_ms", "it is not");
    please("thaw");
    sleep_ms(200);
    while (delayq_take(&q, &item, 300) == DELAYQ_OK) {
    }
    please("stop");
    sleep_ms(200);
    began = now_ms();
    do status = delayq_offer(&q, "x", 1, 0);
    while (!strstr(delayq_errmsg(&q), "refused") && now_ms() - began < 20000);
    check(status == DELAYQ_ERR_IO && strstr(delayq_errmsg(&q), "refused"),
          "a stopped server refuses", delayq_errmsg(&q));
    printf("%s\n", delayq_errmsg(&q));
    please("start");
    began = now_ms();
    do status = delayq_offer(&q, "y", 1, 0);
    while (status != DELAYQ_OK && now_ms() - began < 20000);
    check(status == DELAYQ_OK, "a restarted one accepts", delayq_errmsg(&q));
    status = delayq_take(&q, &item, 5000);
    check(status == DELAYQ_OK && item.len == 1, "and delivers",
          delayq_errmsg(&q));
    delayq_close(&q);
}

static void addresses(void) {
    static delayq q;
    delayq_options o = options_of("addresses");
    delayq_status status;
    char name[64], room[DQ_TEXT_SIZE], other[DQ_TEXT_SIZE];
    int pipes[2], i;
    double began = now_ms();
    const char *port = strrchr(url, ':');
    snprintf(name, sizeof name, "redis://localhost%s", port ? port : "");
    o.url = name;
#ifdef DELAYQ_PORT
    o.resolve = bridge_resolve;
#endif
    status = delayq_open(&q, &o);
    check(status == DELAYQ_OK, "a host's name is looked up", delayq_errmsg(&q));
    delayq_close(&q);
    o.url = "redis://127.0.0.1:1";
    status = delayq_open(&q, &o);
    check(status == DELAYQ_ERR_IO && strstr(delayq_errmsg(&q), "refused"),
          "nobody listens there", delayq_errmsg(&q));
    printf("%s\n", delayq_errmsg(&q));
    delayq_close(&q);
#ifdef _WIN32
    o.url = "unix:///tmp/s";
    status = delayq_open(&q, &o);
    check(status == DELAYQ_ERR_ARG && strstr(delayq_errmsg(&q), "unix://"),
          "unix:// is refused", delayq_errmsg(&q));
    printf("%s\n", delayq_errmsg(&q));
    WSASetLastError(WSAECONNRESET); /* hiredis turns it into ECONNRESET */
    check(strcmp(dq_sys_strerror(WSAECONNRESET, room),
                 dq_sys_strerror(ECONNRESET, other)) == 0 &&
              strstr(room, "reset"),
          "Winsock's codes and those of C have the same words", room);
    for (i = WSABASEERR + 1; i < WSABASEERR + 110; i++) {
        size_t n = strlen(dq_sys_strerror(i, room));
        if (n < 4 || strchr(" .\n", room[n - 1]) || strchr(room, '\n')) break;
    }
    check(i == WSABASEERR + 110, "a message is one line without a full stop",
          room);
    check(strstr(dq_sys_strerror(10999, room), "10999") != NULL,
          "others have their number", room);
#endif
    (void)room, (void)other;
    if (dq_sys_open_pipe(pipes)) {
        struct pollfd p = dq_sys_watch(pipes[0], POLLIN);
#ifndef DQ_POSIX
        struct sockaddr own;
        socklen_t size = sizeof own;
        dq_sys_socket stranger = socket(AF_INET, SOCK_DGRAM, 0);
        getsockname((dq_sys_socket)pipes[0], &own, &size);
        check(connect(stranger, &own, size) == 0 &&
                  send(stranger, "s", 1, 0) == 1 && poll_for(&p, 1, 100) == 0,
              "the wake-up ignores the datagram of a stranger", "it doesn't");
        dq_sys_close((int)stranger);
#endif
        dq_sys_write_pipe(pipes[1]);
        dq_sys_write_pipe(pipes[1]);
        check(poll_for(&p, 1, 2000) == 1, "the wake-up wakes", "it doesn't");
        dq_sys_drain_pipe(pipes[0]);
        check(poll_for(&p, 1, 0) == 0, "and is drained", "it isn't");
        dq_sys_close_pipe(pipes);
    }
    for (i = 0; i < 200 && dq_sys_open_pipe(pipes); i++)
        dq_sys_close_pipe(pipes);
    check(i == 200, "the wake-up is opened 200 times", "it isn't");
    printf("in %.0f ms\n", now_ms() - began);
}

static void ids(void) {
    unsigned char a[16], b[16];
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    dq_sys_random(a, sizeof a);
    dq_sys_random(b, sizeof b);
    check(memcmp(a, b, 16) != 0 && a[0] + a[5] + a[10] + a[15] != 0,
          "random bytes are random", "they are not");
#ifdef DELAYQ_PORT
    {
        static delayq q;
        delayq_options o = options_of("ids");
        delayq_status status;
        bridge_obey("lose random");
        status = delayq_open(&q, &o);
        check(status == DELAYQ_ERR_ARG && strstr(delayq_errmsg(&q), "random"),
              "a board without random bytes is refused", delayq_errmsg(&q));
        printf("%s\n", delayq_errmsg(&q));
        bridge_obey("find random");
    }
#endif
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    url = argv[1];
#ifdef DELAYQ_PORT
    bridge_start(url);
#endif
    ids();
    addresses();
    timers();
    lateness();
    wakes();
    idles();
    leases();
    faults();
    outbox();
    printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    return failed > 0;
}
