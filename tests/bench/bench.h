/*
 * Shared by the benches: clocks, medians, a bare connection, prepared queues,
 * and as a reference the published protocol of Redisson <= 3.21.0.
 *
 * To be the same on another day, a figure must be the ratio of delayq's cost to
 * that of a yardstick, measured in turns with it: see "comparing" below.
 *
 * If DELAYQ_BENCH_DATA names a folder, the benches write the data for `make
 * charts` into it.
 */
#ifndef BENCH_H
#define BENCH_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE 1 /* for sched_setaffinity */
#endif
#define DELAYQ_IMPLEMENTATION
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>
#ifdef __linux__
#include <dirent.h>
#include <sched.h>
#endif

#define ZSET "redisson_delay_queue_timeout:{bench}"
#define MIRROR "redisson_delay_queue:{bench}"
#define CHANNEL "redisson_delay_queue_channel:{bench}"
/* some benches don't use all functions */
#define BENCH __attribute__((unused)) static

BENCH double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

BENCH int64_t wall_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

BENCH int by_size(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

BENCH double median(double *v, int n) {
    qsort(v, (size_t)n, sizeof *v, by_size);
    return v[n / 2];
}

/* The median of n figures, and their spread. */
struct spread {
    double middle, least, most;
    double low, high; /* quartiles: half of the figures are between them */
};

BENCH struct spread spread_of(double *v, int n) {
    struct spread s;
    s.middle = median(v, n);
    s.least = v[0];
    s.most = v[n - 1];
    s.low = v[n / 4];
    s.high = v[n - 1 - n / 4];
    return s;
}

static void die(const char *what) {
    fprintf(stderr, "bench: %s\n", what);
    exit(1);
}

/* Open a chart's data file. Returns NULL if DELAYQ_BENCH_DATA is not set. */
BENCH FILE *data_file(const char *name) {
    const char *folder = getenv("DELAYQ_BENCH_DATA");
    char path[1024];
    FILE *f;
    if (!folder) return NULL;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    f = fopen(path, "w");
    if (!f) die(path);
    return f;
}

/* Returns a plain hiredis connection to the server that DELAYQ_URL names. */
BENCH redisContext *bare(void) {
    const char *url = getenv("DELAYQ_URL");
    redisContext *c;
    char host[256];
    if (url && strncmp(url, "unix://", 7) == 0) {
        c = redisConnectUnix(url + 7);
    } else {
        const char *p = url ? strstr(url, "://") + 3 : "127.0.0.1";
        const char *port = strchr(p, ':');
        snprintf(host, sizeof host, "%.*s", (int)strcspn(p, ":/"), p);
        c = redisConnect(host, port ? atoi(port + 1) : 6379);
    }
    if (!c || c->err) die("no connection: set DELAYQ_URL, or run make bench");
    return c;
}

BENCH redisReply *reply(redisContext *c) {
    redisReply *r = NULL;
    if (redisGetReply(c, (void **)&r) != REDIS_OK) die("connection lost");
    if (r->type == REDIS_REPLY_ERROR) die(r->str);
    return r;
}

BENCH void do_command(redisContext *c, const char *text) {
    redisAppendCommand(c, text);
    freeReplyObject(reply(c));
}

/* Load a script. Returns its SHA1, which the caller frees. */
BENCH char *load(redisContext *c, const char *script) {
    redisReply *r;
    char *sha;
    redisAppendCommand(c, "SCRIPT LOAD %s", script);
    r = reply(c);
    sha = strdup(r->str);
    freeReplyObject(r);
    return sha;
}

/* Returns the value of a field, such as "used_memory:", in a section of
 * INFO. */
BENCH double info(redisContext *c, const char *section, const char *field) {
    redisReply *r;
    const char *at;
    double value = 0;
    redisAppendCommand(c, "INFO %s", section);
    r = reply(c);
    at = strstr(r->str, field);
    if (at) value = atof(at + strlen(field));
    freeReplyObject(r);
    return value;
}

/* Returns the CPU time in microseconds that a process has used, or a negative
 * number if the time is not known. */
BENCH double cpu_of(pid_t pid) {
    clockid_t clock = CLOCK_PROCESS_CPUTIME_ID;
    struct timespec t;
#ifdef __APPLE__ /* macOS shows a process only its own clock */
    if (pid != getpid()) return -1;
#else
    if (clock_getcpuclockid(pid, &clock) != 0) return -1;
#endif
    if (clock_gettime(clock, &t) != 0) return -1;
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

/* Returns the server's CPU time in microseconds. If tests/with-server.sh has
 * not started the server, the figure is that of INFO cpu: the time of the main
 * thread, or before Redis 6.2 of all threads. */
BENCH double server_us(redisContext *c) {
    const char *pid = getenv("DELAYQ_SERVER_PID");
    double s = pid ? cpu_of(atoi(pid)) : -1;
    if (s >= 0) return s;
    s = info(c, "cpu", "used_cpu_sys_main_thread:") +
        info(c, "cpu", "used_cpu_user_main_thread:");
    if (s == 0)
        s = info(c, "cpu", "used_cpu_sys:") + info(c, "cpu", "used_cpu_user:");
    return s * 1e6;
}

/* Returns the sum of the CPU times of this program and the server. Other work
 * on the machine makes both wait, but hardly changes their CPU time. If both
 * share one core, the sum determines the rate. */
BENCH double both_us(redisContext *c) {
    return cpu_of(getpid()) + server_us(c);
}

/* Returns the microseconds that scripts have cost the server since CONFIG
 * RESETSTAT. */
BENCH double script_us(redisContext *c) {
    redisReply *r;
    const char *at;
    double us = 0;
    redisAppendCommand(c, "INFO commandstats");
    r = reply(c);
    at = strstr(r->str, "cmdstat_evalsha:");
    if (at) us = atof(strstr(at, "usec=") + 5);
    freeReplyObject(r);
    return us;
}

/* Make the server write an append-only file, without syncs and rewrites. */
BENCH void aof_on(redisContext *c) {
    do_command(c, "CONFIG SET auto-aof-rewrite-percentage 0");
    do_command(c, "CONFIG SET appendfsync no");
    do_command(c, "CONFIG SET appendonly yes");
    while (info(c, "persistence", "aof_rewrite_in_progress:") != 0 ||
           info(c, "persistence", "aof_rewrite_scheduled:") != 0)
        usleep(10000);
}

/* Returns the length of the append-only file in bytes. Repeats INFO until two
 * replies agree, since one reply may lack data that is just being written. */
BENCH double aof_bytes(redisContext *c) {
    double now = -1, last;
    do {
        last = now;
        now = info(c, "persistence", "aof_current_size:") +
              info(c, "persistence", "aof_buffer_length:");
    } while (now != last);
    return now;
}

/* A script with the minimum that an offer must do. KEYS 1: the zset. ARGV 1:
 * the delay in ms; 2: the element; 3: the channel. */
BENCH const char bare_offer[] =
    "local t = redis.call('TIME')\n"
    "local due = string.format('%.0f', t[1] * 1000 +\n"
    "  math.ceil(t[2] / 1000) + ARGV[1])\n"
    "redis.call('ZADD', KEYS[1], 'NX', due, ARGV[2])\n"
    "if redis.call('ZCOUNT', KEYS[1], 0, due) == 1 then\n"
    "  redis.call('PUBLISH', ARGV[3], due)\n"
    "end\n"
    "return {due}\n";

/*
 * The two scripts of the published protocol, rewritten. An element is an id as
 * a double, a length and a payload. The mirror is a list with the elements in
 * the order of the offers.
 *
 * offer     KEYS 1 zset, 2 mirror, 3 channel; ARGV 1 due, 2 id, 3 payload
 * transfer  KEYS 1 ready, 2 zset, 3 mirror; ARGV 1 now, 2 limit
 */
BENCH const char published_offer[] =
    "local e = struct.pack('dLc0', tonumber(ARGV[2]), #ARGV[3], ARGV[3])\n"
    "redis.call('ZADD', KEYS[1], ARGV[1], e)\n"
    "redis.call('RPUSH', KEYS[2], e)\n"
    "if redis.call('ZRANGE', KEYS[1], 0, 0)[1] == e then\n"
    "  redis.call('PUBLISH', KEYS[3], ARGV[1])\n"
    "end\n";
BENCH const char published_transfer[] =
    "local es = redis.call('ZRANGEBYSCORE', KEYS[2], 0, ARGV[1], 'LIMIT', 0,\n"
    "  ARGV[2])\n"
    "for _, e in ipairs(es) do\n"
    "  local id, v = struct.unpack('dLc0', e)\n"
    "  redis.call('RPUSH', KEYS[1], v)\n"
    "  redis.call('LREM', KEYS[3], 1, e)\n"
    "end\n"
    "if #es > 0 then redis.call('ZREM', KEYS[2], unpack(es)) end\n"
    "return redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]\n";

/* --- comparing ----------------------------------------------------------- */

/*
 * Other work on the machine can double a measured cost from one second to the
 * next. So each lap measures delayq and the yardstick right after each other,
 * in reverse order in every second lap, and notes their ratio. The laps of all
 * rows of a table alternate, so that a bad minute affects all rows. A row
 * prints the median of the ratios, their quartiles, and a verdict on the goal:
 *
 *     met, missed   the median is further from the goal than the quartiles are
 *                   from each other
 *     unclear       it is closer, so another day may have the opposite result
 *
 * A bench either defines a table of rows, and calls compare():
 *
 *     static const struct row rows[] = {
 *         {"take", "bare script", ">= 0.85", fill, d_take, fill, y_take, 1}};
 *     compare("rate of", rows, 1, seconds);
 *
 * or runs its own laps, and calls print_head(), and then print_row() with
 * spread_of(ratios, LAPS).
 */
#define LAPS 20
#define ROWS_MAX 24 /* the maximum number of rows in a table */

/* Where the processes of a bench run: on any core, or all on one core (only
 * with the server of tests/with-server.sh). */
enum where { FREE, ONE_CORE, WHERES };

/* Move this process and its server to one core, or let both run on any core.
 * Returns 0 if that can't be done. */
BENCH int put(enum where where) {
#ifdef __linux__
    static cpu_set_t all;
    const char *pid = getenv("DELAYQ_SERVER_PID");
    cpu_set_t set;
    char path[64];
    struct dirent *task;
    DIR *tasks;
    size_t cpu = 0;
    if (CPU_COUNT(&all) == 0) sched_getaffinity(0, sizeof all, &all);
    set = all;
    if (where == ONE_CORE) {
        while (!CPU_ISSET(cpu, &all)) cpu++;
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
    }
    snprintf(path, sizeof path, "/proc/%s/task", pid ? pid : "none");
    tasks = opendir(path);
    if (!tasks) return where == FREE;
    while ((task = readdir(tasks)) != NULL)
        if (atoi(task->d_name) > 0)
            sched_setaffinity(atoi(task->d_name), sizeof set, &set);
    closedir(tasks);
    return sched_setaffinity(0, sizeof set, &set) == 0;
#else
    return where == FREE;
#endif
}

/* Print the progress of a bench on a terminal. */
BENCH void progress(int done, int of) {
    if (!isatty(2)) return;
    fprintf(stderr, done < of ? "\r%d of %d " : "\r\033[K", done, of);
}

/* Returns the verdict on a goal such as ">= 0.85", or "" if the goal is "". */
BENCH const char *verdict(const struct spread *s, const char *goal) {
    int most = strncmp(goal, "<= ", 3) == 0;
    double wanted, over;
    if (strlen(goal) < 4) return "";
    wanted = atof(goal + 3);
    over = most ? wanted - s->middle : s->middle - wanted;
    if (s->high - s->low > (over < 0 ? -over : over)) return "unclear";
    return over >= 0 ? "met" : "missed";
}

BENCH void print_head(const char *title, const char *yardstick) {
    printf("%-17s%-22s%-10s%6s%14s%9s\n", title, yardstick, "", "ratio",
           "quartiles", "goal");
}

BENCH void print_row(const char *title, const char *yardstick,
                     const char *where, struct spread s, const char *goal) {
    int digits = s.middle < 10 ? 2 : s.middle < 100 ? 1 : 0;
    char quartiles[40];
    snprintf(quartiles, sizeof quartiles, "%.*f..%.*f", digits, s.low, digits,
             s.high);
    printf("%-17s%-22s%-10s%6.*f%14s%9s %s\n", title, yardstick, where, digits,
           s.middle, quartiles, goal, verdict(&s, goal));
    fflush(stdout);
}

struct row {
    const char *title, *yardstick;
    const char *goal; /* ">= 2": a ratio of rates; "<= 2": a ratio of costs */
    void (*before)(void), (*ours)(void); /* `before` is not measured */
    void (*before_yard)(void), (*yard)(void);
    double scale; /* the yardstick handles 1 / scale of the items */
};

/* Returns the cost of run(), measured by seconds() or a meter of CPU time. */
BENCH double cost(void (*before)(void), void (*run)(void),
                  double (*meter)(void)) {
    double begin;
    before();
    begin = meter();
    run();
    return meter() - begin;
}

/* Returns the ratio of one lap. If `turned`, the yardstick runs first. */
BENCH double lap(const struct row *r, int turned, double (*meter)(void)) {
    double ours = 0, yard;
    if (!turned) ours = cost(r->before, r->ours, meter);
    yard = cost(r->before_yard, r->yard, meter) * r->scale;
    if (turned) ours = cost(r->before, r->ours, meter);
    return strncmp(r->goal, "<=", 2) == 0 ? ours / yard : yard / ours;
}

/* Measure and print a table, first on any core, and then on one core. */
BENCH void compare(const char *title, const struct row *rows, size_t n,
                   double (*meter)(void)) {
    static const char *const names[] = {"", "one core"};
    static double ratios[ROWS_MAX][WHERES][LAPS];
    int i, where, wheres = WHERES;
    size_t k;
    if (n > ROWS_MAX) die("too many rows");
    for (i = -1; i < LAPS; i++) { /* the first lap does not count */
        progress(i + 1, LAPS);
        for (where = 0; where < wheres; where++) {
            if (!put((enum where)where)) {
                wheres = where;
                break;
            }
            /* lets the handle learn whether to stay awake for a reply */
            cost(rows[0].before, rows[0].ours, meter);
            for (k = 0; k < n; k++) {
                double ratio = lap(&rows[k], i & 1, meter);
                if (i >= 0) ratios[k][where][i] = ratio;
            }
        }
    }
    put(FREE);
    progress(1, 1);
    print_head(title, "over that of");
    for (k = 0; k < n; k++)
        for (where = 0; where < wheres; where++)
            print_row(where == 0 ? rows[k].title : "",
                      where == 0 ? rows[k].yardstick : "", names[where],
                      spread_of(ratios[k][where], LAPS), rows[k].goal);
}

/* --- prepared queues ----------------------------------------------------- */

#define STORE_MAX 1024 /* the largest payload, in bytes */
#define PAST_MS 1600000000000LL
#define FAR_MS 4000000000000LL

/* Open a handle, and tick until it is connected and has loaded its scripts. */
BENCH void open_queue(delayq *q, const char *name, delayq_wire wire,
                      int64_t lease_ms) {
    delayq_options o;
    int64_t wait_ms = 0;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.url = getenv("DELAYQ_URL");
    o.wire = wire;
    o.lease_ms = lease_ms;
    if (delayq_open(q, &o) != DELAYQ_OK) die(delayq_errmsg(q));
    while (wait_ms == 0)
        if (delayq_tick(q, &wait_ms) != DELAYQ_OK) die(delayq_errmsg(q));
}

BENCH void open_bench(delayq *q, delayq_wire wire, int64_t lease_ms) {
    open_queue(q, "bench", wire, lease_ms);
}

/* Returns the due times of n items in the order of their offers. Of the items,
 * `due` are due now, and the others in the far future. If `shuffled`, the due
 * times are in random order. */
BENCH int64_t *due_times(int n, int due, int shuffled) {
    int64_t *ms = (int64_t *)malloc((size_t)n * sizeof *ms);
    int i;
    if (!ms) die("out of memory");
    for (i = 0; i < n; i++) ms[i] = (i < due ? PAST_MS : FAR_MS) + i;
    for (i = n - 1; shuffled && i > 0; i--) {
        int k = (int)(((unsigned)rand() * 32768u + (unsigned)rand()) %
                      (unsigned)(i + 1));
        int64_t t = ms[i];
        ms[i] = ms[k];
        ms[k] = t;
    }
    return ms;
}

/* Offer n payloads of len bytes. */
BENCH void store(delayq *q, const int64_t *due_ms, int n, size_t len) {
    static delayq_message m[300];
    static char payload[STORE_MAX];
    int i, k, count;
    memset(payload, 'x', len);
    for (i = 0; i < n; i += count) {
        count = n - i < 300 ? n - i : 300;
        memset(m, 0, sizeof m[0] * (size_t)count);
        for (k = 0; k < count; k++) {
            m[k].data = payload;
            m[k].len = len;
            m[k].due_ms = due_ms[i + k];
        }
        if (delayq_offer_many(q, m, (size_t)count) != DELAYQ_OK)
            die(delayq_errmsg(q));
    }
}

/* Store n payloads of len bytes in the published layout, with one ZADD and one
 * RPUSH for every 300 items. */
BENCH void store_published(redisContext *c, const char *name,
                           const int64_t *due_ms, int n, size_t len) {
    static char e[300][16 + STORE_MAX], score[300][24], zset[100], mirror[100];
    static const char *add[602], *push[302];
    static size_t add_len[602], push_len[302];
    int i, k, count;
    snprintf(zset, sizeof zset, "redisson_delay_queue_timeout:{%s}", name);
    snprintf(mirror, sizeof mirror, "redisson_delay_queue:{%s}", name);
    add[0] = "ZADD", add_len[0] = 4, add[1] = zset, add_len[1] = strlen(zset);
    push[0] = "RPUSH", push_len[0] = 5;
    push[1] = mirror, push_len[1] = strlen(mirror);
    for (i = 0; i < n; i += count) {
        count = n - i < 300 ? n - i : 300;
        for (k = 0; k < count; k++) {
            double id = i + k + 1;
            memcpy(e[k], &id, 8);
            dq_elem_put_uint((unsigned char *)e[k] + 8, 8, 0, len);
            memset(e[k] + 16, 'x', len);
            snprintf(score[k], sizeof score[k], "%lld",
                     (long long)due_ms[i + k]);
            add[2 + 2 * k] = score[k], add_len[2 + 2 * k] = strlen(score[k]);
            add[3 + 2 * k] = push[2 + k] = e[k];
            add_len[3 + 2 * k] = push_len[2 + k] = 16 + len;
        }
        redisAppendCommandArgv(c, 2 + 2 * count, add, add_len);
        redisAppendCommandArgv(c, 2 + count, push, push_len);
        freeReplyObject(reply(c));
        freeReplyObject(reply(c));
    }
}

/* Run the published transfer once, for up to `batch` items. */
BENCH void transfer_published(redisContext *c, const char *name,
                              const char *sha, int batch) {
    redisAppendCommand(c,
                       "EVALSHA %s 3 %s redisson_delay_queue_timeout:{%s} "
                       "redisson_delay_queue:{%s} %lld %d",
                       sha, name, name, name, PAST_MS + 100000000000LL, batch);
    freeReplyObject(reply(c));
}

/* Run a tick that always polls the server. Returns the number of items that it
 * moved. */
BENCH int tick_now(delayq *q) {
    uint64_t moved = q->counts.moved;
    q->next_poll_us = 0;
    if (delayq_tick(q, NULL) != DELAYQ_OK) die(delayq_errmsg(q));
    return (int)(q->counts.moved - moved);
}

/* Empty the server, and make the next call of the handle poll it. */
BENCH void empty_bench(redisContext *c, delayq *q) {
    do_command(c, "FLUSHALL");
    q->ready = 0;
    q->next_poll_us = 0;
}

#endif
