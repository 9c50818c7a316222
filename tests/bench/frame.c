/*
 * frame -- a game with an outbox, which offers and takes 200 items a second. It
 * measures the wall time and the CPU time of a step and the lateness of items,
 * and counts lost and doubled items. The rows have round trips of 0 to 100 ms,
 * a server that is frozen, killed, restarted or unreachable, or a network that
 * drops all bytes. For comparison, two rows have no outbox.
 *
 *     frame [frames a second, default 200 [seconds a row, default 2]]
 *     frame rates
 *
 * After each step the loop spins for as much CPU time as the step has used. The
 * wall time of this spin ("empty") shows the delays of the machine itself. The
 * next table has the rates of offers with an outbox, with a kept outbox, and
 * without one, on one core and on all (`rates` prints only these). The last one
 * counts turns of a loop of tick and poll. The bench starts its own servers.
 */
#define _GNU_SOURCE
#include "bench.h"
#include <arpa/inet.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#define RATE 200    /* items a second, in each direction */
#define ITEMS 20000 /* the maximum number of items, in each direction */
#define FRAMES 100000

static char dir[64], server_path[128], proxy_path[128];
static pid_t server_pid;

/* Shared by the processes of a row. */
static struct shared {
    volatile int stop_peer, stop_game, drop, back;
    volatile int offered, answered; /* offered: the peer's last id, plus 1 */
    unsigned char maybe[ITEMS];     /* 1: the offer's outcome is unknown */
    int accepted, refused;          /* numbers of the game's offers */
    unsigned char taken[ITEMS];
    int early, gone, dropped;
    unsigned long long settled;
    int frames, lates;
    double wall[FRAMES], empty[FRAMES], cpu[FRAMES], late[ITEMS];
} * shared;

/* --- the server ---------------------------------------------------------- */

static pid_t child(void) {
    pid_t pid;
    fflush(stdout);
    pid = fork();
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    return pid;
}

static redisContext *reach(void) {
    redisContext *c = redisConnectUnix(server_path);
    redisReply *r;
    if (c && !c->err && (r = (redisReply *)redisCommand(c, "PING"))) {
        int fine = r->type == REDIS_REPLY_STATUS;
        freeReplyObject(r);
        if (fine) return c;
    }
    if (c) redisFree(c);
    return NULL;
}

/* Start the server. If `synced`, its confirmed writes survive a kill. */
static void start_server(int synced) {
    redisContext *c;
    server_pid = child();
    if (server_pid == 0) {
        char log[128];
        snprintf(log, sizeof log, "%s/log", dir);
        if (!freopen(log, "a", stdout) || dup2(1, 2) < 0) _exit(1);
        execlp("redis-server", "redis-server", "--port", "0", "--unixsocket",
               server_path, "--dir", dir, "--save", "", "--appendonly",
               synced ? "yes" : "no", "--appendfsync", "always", (char *)NULL);
        execlp("valkey-server", "valkey-server", "--port", "0", "--unixsocket",
               server_path, "--dir", dir, "--save", "", "--appendonly",
               synced ? "yes" : "no", "--appendfsync", "always", (char *)NULL);
        _exit(127);
    }
    while (!(c = reach())) {
        if (waitpid(server_pid, NULL, WNOHANG) == server_pid)
            die("redis-server doesn't start");
        usleep(5000);
    }
    redisFree(c);
}

static void end_server(void) {
    kill(server_pid, SIGKILL);
    waitpid(server_pid, NULL, 0);
}

static void empty_server(void) {
    redisContext *c = reach();
    if (!c) die("no server");
    do_command(c, "FLUSHALL");
    redisFree(c);
}

static const char *url_of(const char *path) {
    static char url[2][160];
    static int n;
    n = !n;
    snprintf(url[n], sizeof url[n], "unix://%s", path);
    return url[n];
}

/* --- a proxy that delays both directions --------------------------------- */

#define PAIRS 16
#define HELD_MAX (8 << 20)

struct chunk {
    struct chunk *next;
    int64_t due_us;
    size_t len, sent;
    char bytes[1];
};
struct flow {
    struct chunk *first, *last;
    size_t held;
};
struct pair {
    int fd[2];
    int hurt; /* 1: the proxy has dropped bytes of this connection */
    struct flow flow[2];
};

static int64_t mono_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static int unix_socket(const char *path, int listening) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0), done;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (listening) unlink(path);
    done = listening ? bind(fd, (struct sockaddr *)&a, sizeof a) == 0 &&
                           listen(fd, 64) == 0
                     : connect(fd, (struct sockaddr *)&a, sizeof a) == 0;
    if (done) {
        fcntl(fd, F_SETFL, O_NONBLOCK);
        return fd;
    }
    close(fd);
    return -1;
}

/* Receive bytes to pass on later. Returns 0 if the connection has ended. */
static int hold(struct pair *p, int d, int64_t delay_us) {
    static char bytes[65536];
    ssize_t n = read(p->fd[d], bytes, sizeof bytes);
    struct flow *f = &p->flow[d];
    struct chunk *c;
    if (n < 0 && errno == EAGAIN) return 1;
    if (n <= 0) return 0;
    if (shared->drop || p->hurt) {
        p->hurt = 1;
        return 1;
    }
    c = (struct chunk *)malloc(sizeof *c + (size_t)n);
    if (!c) die("out of memory");
    c->next = NULL;
    c->due_us = mono_us() + delay_us;
    c->len = (size_t)n;
    c->sent = 0;
    memcpy(c->bytes, bytes, (size_t)n);
    if (f->last)
        f->last->next = c;
    else
        f->first = c;
    f->last = c;
    f->held += c->len;
    return 1;
}

/* Pass on the bytes that are due. Set *blocked if the receiver's socket is
 * full. Returns 0 if the connection has ended. */
static int pass(struct pair *p, int d, int *blocked) {
    struct flow *f = &p->flow[d];
    int64_t now = mono_us();
    *blocked = 0;
    while (f->first && f->first->due_us <= now) {
        struct chunk *c = f->first;
        ssize_t n = write(p->fd[!d], c->bytes + c->sent, c->len - c->sent);
        if (n < 0 && errno == EAGAIN) {
            *blocked = 1;
            return 1;
        }
        if (n <= 0) return 0;
        c->sent += (size_t)n;
        f->held -= (size_t)n;
        if (c->sent < c->len) continue;
        f->first = c->next;
        if (!f->first) f->last = NULL;
        free(c);
    }
    return 1;
}

static void end_pair(struct pair *p) {
    int d;
    for (d = 0; d < 2; d++) {
        while (p->flow[d].first) {
            struct chunk *c = p->flow[d].first;
            p->flow[d].first = c->next;
            free(c);
        }
        close(p->fd[d]);
    }
}

static void run_proxy(int listener, int64_t delay_us) {
    static struct pair pairs[PAIRS];
    static struct pollfd p[1 + 2 * PAIRS];
    int n = 0, i, d;
    signal(SIGPIPE, SIG_IGN);
    for (;;) {
        int64_t next = mono_us() + 50000;
        struct timespec t = {0, 0};
        p[0].fd = n < PAIRS ? listener : -1;
        p[0].events = POLLIN;
        for (i = n - 1; i >= 0; i--) {
            int ends = pairs[i].hurt && !shared->drop;
            for (d = 0; d < 2 && !ends; d++) {
                int blocked;
                ends = !pass(&pairs[i], d, &blocked);
                p[1 + 2 * i + !d].events = blocked ? POLLOUT : 0;
            }
            if (!ends) continue;
            end_pair(&pairs[i]);
            pairs[i] = pairs[--n];
            i = n; /* restarts the loop over all pairs */
        }
        for (i = 0; i < 2 * n; i++) {
            struct flow *f = &pairs[i / 2].flow[i % 2];
            p[1 + i].fd = pairs[i / 2].fd[i % 2];
            if (f->held < HELD_MAX) p[1 + i].events |= POLLIN;
            if (f->first && f->first->due_us < next &&
                !(p[1 + (i ^ 1)].events & POLLOUT))
                next = f->first->due_us;
        }
        next -= mono_us();
        if (next > 0) t.tv_nsec = (long)next * 1000;
        ppoll(p, (nfds_t)(1 + 2 * n), &t, NULL);
        for (i = n - 1; i >= 0; i--)
            for (d = 0; d < 2; d++) {
                if (!(p[1 + 2 * i + d].revents & (POLLIN | POLLHUP | POLLERR)))
                    continue;
                if (hold(&pairs[i], d, delay_us)) continue;
                end_pair(&pairs[i]);
                pairs[i] = pairs[--n];
                break;
            }
        if (p[0].fd >= 0 && p[0].revents) {
            memset(&pairs[n], 0, sizeof pairs[n]);
            pairs[n].fd[0] = accept(listener, NULL, NULL);
            pairs[n].fd[1] = unix_socket(server_path, 0);
            fcntl(pairs[n].fd[0], F_SETFL, O_NONBLOCK);
            if (pairs[n].fd[1] < 0)
                close(pairs[n].fd[0]);
            else
                n++;
        }
    }
}

static pid_t start_proxy(int rtt_ms) {
    int listener = unix_socket(proxy_path, 1);
    pid_t pid;
    if (listener < 0) die("no proxy");
    pid = child();
    if (pid == 0) run_proxy(listener, rtt_ms * 500);
    close(listener);
    return pid;
}

/* --- the other process --------------------------------------------------- */

static delayq_options options_of(const char *name, const char *path) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.url = url_of(path);
    return o;
}

/* Offer RATE items a second. Each contains its number and the call's time. */
static void run_peer(void) {
    static delayq q;
    delayq_options o = options_of("in", server_path);
    int64_t begin = mono_us();
    int id;
    while (delayq_open(&q, &o) != DELAYQ_OK) delayq_close(&q);
    for (id = 0; !shared->stop_peer && id < ITEMS; id++) {
        int64_t wait = begin + (int64_t)id * 1000000 / RATE - mono_us();
        delayq_message m;
        char text[64];
        int tries = 0;
        if (wait > 0) usleep((useconds_t)wait);
        memset(&m, 0, sizeof m);
        m.data = text;
        m.len = (size_t)snprintf(text, sizeof text, "%d %lld", id,
                                 (long long)wall_us());
        shared->maybe[id] = 1;
        shared->offered = id + 1;
        while (delayq_offer_message(&q, &m) != DELAYQ_OK && tries++ < 3000) {
            if (m.status == DELAYQ_ERR_UNKNOWN && tries > 5) break;
            usleep(2000);
        }
        if (m.status == DELAYQ_OK) shared->maybe[id] = 0;
    }
    delayq_close(&q);
    _exit(0);
}

/* --- the game ------------------------------------------------------------ */

static delayq out, in;
static int boxed = 1; /* 1: the handles have an outbox */
static unsigned char memory[2][1 << 20];

static int64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static void note_item(const delayq_item *item) {
    char text[64];
    char *after;
    int id;
    snprintf(text, sizeof text, "%.*s", (int)item->len,
             (const char *)item->data);
    id = (int)strtol(text, &after, 10);
    if (id < 0 || id >= ITEMS || shared->lates == ITEMS) die(text);
    if (shared->taken[id]++ == 0)
        shared->late[shared->lates++] =
            (double)(wall_us() - strtoll(after, NULL, 10)) / 1000;
}

static void step(int due) {
    delayq_item item;
    char text[16];
    int n;
    delayq_tick(&out, NULL);
    delayq_tick(&in, NULL);
    for (n = 0; n < 200 && delayq_take(&in, &item, 0) == DELAYQ_OK; n++) {
        note_item(&item);
        delayq_ack(&in, &item);
    }
    while (shared->accepted < due) {
        int len = snprintf(text, sizeof text, "%d", shared->accepted);
        if (delayq_offer(&out, text, (size_t)len, 0) != DELAYQ_OK) {
            shared->refused++;
            break;
        }
        shared->accepted++;
    }
}

/* Run frames. A step gets the number of items that should be offered by now. */
static void run_frames(void (*a_step)(int due), int fps, double for_s) {
    int64_t begin, end, next, wall, cpu, used;
    struct timespec t;
    int n;
    /* so that these pages are mapped now, and not during a step */
    memset(shared->wall, 0, sizeof shared->wall);
    memset(shared->empty, 0, sizeof shared->empty);
    memset(shared->cpu, 0, sizeof shared->cpu);
    memset(shared->late, 0, sizeof shared->late);
    begin = next = wall = mono_us();
    end = begin + (int64_t)(for_s * 1e6);
    for (n = 0; n < FRAMES && wall < end; n++) {
        cpu = cpu_ns();
        a_step((int)((wall - begin) * RATE / 1000000));
        used = cpu_ns() - cpu;
        shared->wall[n] = (double)(mono_us() - wall) / 1000;
        shared->cpu[n] = (double)used / 1e6;
        wall = mono_us();
        cpu = cpu_ns();
        while (cpu_ns() - cpu < used) {
        }
        shared->empty[n] = (double)(mono_us() - wall) / 1000;
        while (next <= mono_us()) next += 1000000 / fps;
        t.tv_sec = next / 1000000;
        t.tv_nsec = next % 1000000 * 1000;
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL);
        wall = mono_us();
    }
    shared->frames = n;
}

static void run_game(const char *path, int fps, double for_s) {
    delayq_options o = options_of("out", path), p = options_of("in", path);
    delayq_outbox_state state;
    if (boxed) {
        o.outbox = memory[0];
        p.outbox = memory[1];
        o.outbox_size = p.outbox_size = sizeof memory[0];
    }
    p.lease_ms = 20000;
    if (delayq_open(&out, &o) != DELAYQ_OK) die(delayq_errmsg(&out));
    if (delayq_open(&in, &p) != DELAYQ_OK) die(delayq_errmsg(&in));
    run_frames(step, fps, for_s);
    shared->stop_peer = 1;
    while (!shared->back) usleep(1000); /* until the server works again */
    shared->settled = (unsigned long long)shared->accepted;
    if (boxed) {
        if (delayq_flush(&out, 20000) != DELAYQ_OK)
            printf("flush: %s\n", delayq_errmsg(&out));
        if (delayq_flush(&in, 20000) != DELAYQ_OK)
            printf("flush: %s\n", delayq_errmsg(&in));
        delayq_outbox(&out, &state);
        shared->settled = state.offers_settled;
        shared->dropped = (int)state.dropped;
        delayq_outbox(&in, &state);
        shared->gone = (int)state.gone;
        shared->dropped += (int)state.dropped;
    }
    delayq_close(&out);
    delayq_close(&in);
    fflush(stdout);
    _exit(0);
}

/* --- a row --------------------------------------------------------------- */

/* Count in seen[] each item that is left in the queue, leased ones included. */
static void look_at(const char *name, unsigned char *seen) {
    static const char script[] =
        "local out = redis.call('LRANGE', ARGV[1], 0, -1)\n"
        "local function add(es)\n"
        "  for _, e in ipairs(es) do\n"
        "    out[#out + 1] = string.sub(e, 18 + struct.size('L'))\n"
        "  end\n"
        "end\n"
        "add(redis.call('LRANGE', 'delayq_retry:{' .. ARGV[1] .. '}', 0, -1))\n"
        "add(redis.call('ZRANGE',\n"
        "  'redisson_delay_queue_timeout:{' .. ARGV[1] .. '}', 0, -1))\n"
        "return out\n";
    redisContext *c = reach();
    redisReply *r;
    size_t i;
    if (!c) die("no server");
    redisAppendCommand(c, "EVAL %s 0 %s", script, name);
    r = reply(c);
    for (i = 0; i < r->elements; i++) {
        int id = atoi(r->element[i]->str);
        if (id >= 0 && id < ITEMS) seen[id]++;
    }
    freeReplyObject(r);
    redisFree(c);
}

static double permille(const double *v, int n, int part) {
    static double sorted[FRAMES];
    int i = (int)((int64_t)n * part / 1000);
    if (n == 0) return 0;
    memcpy(sorted, v, (size_t)n * sizeof *v);
    median(sorted, n);
    return sorted[i < n ? i : n - 1];
}

enum event { NOTHING, FREEZE, KILL, RESTART, DROP, NOWHERE };

static void print_steps(const char *title) {
    int i, n = shared->frames, worst = 0;
    for (i = 0; i < n; i++)
        if (shared->wall[i] > shared->wall[worst]) worst = i;
    printf("%-22s%8.2f%8.2f |%8.2f%8.2f |%8.2f%8.2f |", title,
           permille(shared->wall, n, 1000), permille(shared->wall, n, 990),
           permille(shared->empty, n, 1000), permille(shared->empty, n, 990),
           shared->cpu[worst], permille(shared->cpu, n, 1000));
}

static void print_items(int rtt_ms) {
    static unsigned char out_left[ITEMS], in_left[ITEMS];
    int i, lost = 0, twice = 0;
    memset(out_left, 0, sizeof out_left);
    memset(in_left, 0, sizeof in_left);
    look_at("out", out_left);
    look_at("in", in_left);
    for (i = 0; i < shared->accepted; i++) {
        lost += out_left[i] == 0;
        twice += out_left[i] > 1;
    }
    for (i = 0; i < shared->offered; i++) {
        lost += shared->taken[i] + in_left[i] == 0 && !shared->maybe[i];
        twice += shared->taken[i] + in_left[i] > 1;
    }
    printf("%8.1f%8.1f |%6d%6d%6d |%6llu of %d\n",
           permille(shared->late, shared->lates, 500) - rtt_ms,
           permille(shared->late, shared->lates, 1000) - rtt_ms, shared->lates,
           lost, twice, shared->settled, shared->accepted);
    if (shared->refused || shared->dropped || shared->gone)
        printf("%22s%d refused for lack of room, %d dropped, %d gone\n", "",
               shared->refused, shared->dropped, shared->gone);
    fflush(stdout);
}

/* Measure and print a row. The event begins after a quarter of the time, and
 * ends after three quarters. */
static void row(const char *title, int rtt_ms, enum event what, int fps,
                double for_s) {
    int through = rtt_ms > 0 || what == DROP;
    pid_t proxy = 0, peer, game;
    memset(shared, 0, sizeof *shared);
    start_server(what == KILL || what == RESTART);
    empty_server();
    if (through) proxy = start_proxy(rtt_ms);
    peer = child();
    if (peer == 0) run_peer();
    game = child();
    if (game == 0) run_game(through ? proxy_path : server_path, fps, for_s);
    usleep((useconds_t)(for_s / 4 * 1e6));
    if (what == FREEZE) kill(server_pid, SIGSTOP);
    if (what == KILL || what == RESTART) end_server();
    shared->drop = what == DROP;
    usleep((useconds_t)(for_s / 2 * 1e6));
    if (what == FREEZE) kill(server_pid, SIGCONT);
    if (what == RESTART) start_server(1);
    shared->drop = 0;
    while (!shared->stop_peer) {
        if (waitpid(game, NULL, WNOHANG) == game) die("the game has ended");
        usleep(10000);
    }
    if (what == KILL) start_server(1);
    waitpid(peer, NULL, 0);
    shared->back = 1;
    waitpid(game, NULL, 0);
    print_steps(title);
    print_items(rtt_ms);
    if (proxy) {
        kill(proxy, SIGKILL);
        waitpid(proxy, NULL, 0);
    }
    end_server();
}

/* The step for a host that does not exist. Its offers stay in the outbox. */
static void step_nowhere(int due) {
    delayq_item item;
    delayq_tick(&out, NULL);
    delayq_take(&out, &item, 0);
    while (shared->accepted < due) {
        if (delayq_offer(&out, "x", 1, 0) != DELAYQ_OK) break;
        shared->accepted++;
    }
}

static void nowhere(int fps, double for_s) {
    pid_t game;
    memset(shared, 0, sizeof *shared);
    game = child();
    if (game == 0) {
        delayq_options o = options_of("out", server_path);
        o.url = "redis://10.255.255.1";
        o.outbox = memory[0];
        o.outbox_size = sizeof memory[0];
        if (delayq_open(&out, &o) != DELAYQ_OK) die(delayq_errmsg(&out));
        run_frames(step_nowhere, fps, for_s);
        delayq_close(&out);
        _exit(0);
    }
    waitpid(game, NULL, 0);
    print_steps("10.255.255.1");
    printf("\n");
}

/* --- rates --------------------------------------------------------------- */

#define ROUNDS 5
#define RATE_S 0.3

/* Sleep until the outbox may have room again, as a program would. */
static void sleep_until_ready(delayq *q) {
    struct pollfd p[3];
    int fds[3];
    int64_t wait_ms;
    size_t n, i;
    delayq_tick(q, &wait_ms);
    n = delayq_fds(q, fds, 3);
    for (i = 0; i < n; i++) p[i] = dq_sys_watch(fds[i], POLLIN);
    poll(p, (nfds_t)n, (int)wait_ms);
}

enum { NO_BOX, BOX, KEPT_BOX };

/* Returns the CPU time of this process plus that of the server in ns, or 0 if
 * the time is not known. */
static double both_cpu_ns(void) {
    char path[64];
    double server_ns = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/schedstat", (int)server_pid);
    f = fopen(path, "r");
    if (!f || fscanf(f, "%lf", &server_ns) != 1) server_ns = 0;
    if (f) fclose(f);
    return server_ns > 0 ? server_ns + (double)cpu_ns() : 0;
}

/* Returns the number of single offers a second. Sets *ns to the CPU time of one
 * offer. A kept outbox is in shared memory, like a mapped file. */
static double rate(int with_box, double *ns) {
    static delayq q;
    static const char payload[100];
    static const size_t size = 4 << 20;
    void *box = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    delayq_options o = options_of("bench", server_path);
    double begin, took;
    int n = 0;
    if (box == MAP_FAILED) die("out of memory");
    if (with_box) {
        o.outbox = box;
        o.outbox_size = size;
    }
    if (with_box == KEPT_BOX) o.outbox_keep = DELAYQ_KEEP;
    empty_server();
    if (delayq_open(&q, &o) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (delayq_offer(&q, "x", 1, 3600000) != DELAYQ_OK) die(delayq_errmsg(&q));
    if (with_box && delayq_flush(&q, 5000) != DELAYQ_OK) die(delayq_errmsg(&q));
    *ns = both_cpu_ns();
    begin = seconds();
    while (n % 100 || seconds() - begin < RATE_S) {
        delayq_status status =
            delayq_offer(&q, payload, sizeof payload, 3600000);
        if (status == DELAYQ_OK)
            n++;
        else if (with_box && status == DELAYQ_ERR_FULL)
            sleep_until_ready(&q);
        else
            die(delayq_errmsg(&q));
    }
    if (with_box && delayq_flush(&q, 20000) != DELAYQ_OK)
        die(delayq_errmsg(&q));
    took = seconds() - begin;
    *ns = (both_cpu_ns() - *ns) / n;
    delayq_close(&q);
    munmap(box, size);
    return n / took;
}

static void pin(int one_core) {
    cpu_set_t set;
    size_t i;
    CPU_ZERO(&set);
    for (i = 0; i < (one_core ? 1 : 64); i++) CPU_SET(i, &set);
    sched_setaffinity(0, sizeof set, &set);
    sched_setaffinity(server_pid, sizeof set, &set);
}

static void rates(void) {
    double v[2][3][ROUNDS], ns[2][3][ROUNDS], ratio[2][ROUNDS], more[2][ROUNDS];
    int round, one, box;
    start_server(0);
    for (round = 0; round < ROUNDS; round++)
        for (one = 0; one < 2; one++) {
            pin(one);
            for (box = NO_BOX; box <= KEPT_BOX; box++)
                v[one][box][round] = rate(box, &ns[one][box][round]);
            ratio[one][round] = v[one][BOX][round] / v[one][NO_BOX][round];
            more[one][round] = ns[one][KEPT_BOX][round] / ns[one][BOX][round];
        }
    pin(0);
    end_server();
    printf("\n");
    print_head("offers a second", "over that of");
    for (one = 0; one < 2; one++)
        print_row(one ? "" : "with an outbox", one ? "" : "without",
                  one ? "one core" : "", spread_of(ratio[one], ROUNDS), "");
    printf("%.0f, on one core %.0f a second\n", median(v[0][BOX], ROUNDS),
           median(v[1][BOX], ROUNDS));
    print_head("CPU of an offer", "over that of");
    for (one = 0; one < 2; one++)
        print_row(one ? "" : "kept outbox", one ? "" : "not kept",
                  one ? "one core" : "", spread_of(more[one], ROUNDS),
                  one ? "<= 1.3" : "");
    printf("%.2f us, on one core %.2f, server included\n",
           median(ns[0][BOX], ROUNDS) / 1000,
           median(ns[1][BOX], ROUNDS) / 1000);
}

/* --- turns of a loop ----------------------------------------------------- */

#define TURNS_S 3.0

static int lines;
static void count_line(void *user, delayq_status status, const char *text) {
    (void)user;
    (void)status;
    (void)text;
    lines++;
}

/* Returns the URL of a listener whose backlog is full. */
static const char *silent_host(void) {
    static char url[64];
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), i;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) != 0 || listen(fd, 0) != 0 ||
        getsockname(fd, (struct sockaddr *)&a, &size) != 0)
        die("no listener");
    for (i = 0; i < 4; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(client, F_SETFL, O_NONBLOCK);
        connect(client, (struct sockaddr *)&a, sizeof a);
    }
    usleep(10000);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", ntohs(a.sin_port));
    return url;
}

static void turns(const char *title, int with_box, enum event what) {
    static delayq q;
    delayq_options o = options_of("bench", server_path);
    double begin, end, cpu;
    int n = 0, i, count, fds[8];
    struct pollfd p[8];
    int64_t wait_ms = 0, left_ms;
    start_server(0);
    if (what == NOWHERE) o.url = silent_host();
    if (with_box) {
        o.outbox = memory[0];
        o.outbox_size = sizeof memory[0];
    }
    o.log = count_line;
    lines = 0;
    delayq_open(&q, &o);
    if (what != NOWHERE) {
        end = seconds() + 0.3;
        while (seconds() < end) {
            delayq_tick(&q, &wait_ms);
            usleep(1000);
        }
    }
    if (what == FREEZE) kill(server_pid, SIGSTOP);
    if (what == KILL) end_server();
    if (with_box && what != NOTHING) delayq_offer(&q, "x", 1, 0);
    lines = 0;
    cpu = (double)cpu_ns();
    begin = seconds();
    while (seconds() - begin < TURNS_S) {
        delayq_tick(&q, &wait_ms);
        count = (int)delayq_fds(&q, fds, 8);
        for (i = 0; i < count; i++) p[i] = dq_sys_watch(fds[i], POLLIN);
        left_ms = (int64_t)((begin + TURNS_S - seconds()) * 1000) + 1;
        if (left_ms < 0) left_ms = 0;
        poll(p, (nfds_t)count, (int)(wait_ms < left_ms ? wait_ms : left_ms));
        /* does not count the last turn, whose wait was cut off */
        n += seconds() - begin < TURNS_S;
    }
    end = seconds() - begin;
    cpu = ((double)cpu_ns() - cpu) / 1e6;
    printf("%-14s%-10s%10.1f%10.1f%12.2f%9s\n", title,
           with_box ? "outbox" : "blocking", n / end, lines / end, cpu / end,
           "20, 1");
    fflush(stdout);
    delayq_close(&q);
    if (what != KILL) end_server();
}

int main(int argc, char **argv) {
    static const int rtts[] = {0, 2, 10, 50, 100};
    int fps = argc > 1 ? atoi(argv[1]) : 200, with_box;
    double for_s = argc > 2 ? atof(argv[2]) : 2;
    size_t i;
    int only_rates = argc > 1 && strcmp(argv[1], "rates") == 0;
    if (only_rates) fps = 1;
    if (fps < 1 || for_s < 1 || fps * for_s > FRAMES ||
        RATE * for_s > ITEMS / 2)
        die("frame [frames a second [seconds a row]]");
    snprintf(dir, sizeof dir, "/tmp/delayq-XXXXXX");
    if (!mkdtemp(dir)) die("no folder in /tmp");
    snprintf(server_path, sizeof server_path, "%s/s", dir);
    snprintf(proxy_path, sizeof proxy_path, "%s/p", dir);
    shared = (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) die("out of memory");
    if (only_rates) rates();
    if (only_rates) goto done;
    printf("%d frames/s, %d items/s each way, %g s a row; times in ms\n", fps,
           RATE, for_s);
    printf("%-22s%8s%8s |%8s%8s |%8s%8s |%8s%8s |%6s%6s%6s |%12s\n", "a step",
           "longest", "p99", "empty", "p99", "its CPU", "most", "late p50",
           "most", "taken", "lost", "twice", "settled");
    for (i = 0; i < sizeof rtts / sizeof rtts[0]; i++) {
        char title[32];
        snprintf(title, sizeof title, "round trip %d ms", rtts[i]);
        row(title, rtts[i], NOTHING, fps, for_s);
    }
    row("frozen", 0, FREEZE, fps, for_s);
    row("killed", 0, KILL, fps, for_s);
    row("killed and restarted", 0, RESTART, fps, for_s);
    row("all bytes dropped", 2, DROP, fps, for_s);
    nowhere(fps, for_s);
    boxed = 0;
    row("10 ms, no outbox", 10, NOTHING, fps, for_s);
    row("frozen, no outbox", 0, FREEZE, fps, for_s);
    rates();
    printf("\n%-14s%-10s%10s%10s%12s%9s\n", "tick and poll", "", "turns/s",
           "lines/s", "CPU, ms/s", "goal");
    for (with_box = 0; with_box < 2; with_box++) {
        turns("idle", with_box, NOTHING);
        turns("frozen", with_box, FREEZE);
        turns("stopped", with_box, KILL);
        turns("unreachable", with_box, NOWHERE);
    }
done : {
    char command[96];
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (system(command) != 0) die("left a folder in /tmp");
}
    return 0;
}
