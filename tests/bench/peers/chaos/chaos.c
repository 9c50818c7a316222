/*
 * chaos -- delay queues during faults. It measures the numbers of jobs that are
 * lost, delivered twice or early; the time from the end of a fault until the
 * queue works again; and its rate after that.
 *
 *     chaos DIR 'NAME|KIND|WORK|PRODUCE' ...
 *     chaos --self-test
 *
 * KIND is the server: redis, beanstalkd or nats (DIR/nats-server). WORK and
 * PRODUCE are shell commands, to which "ROLE PORT RECORDS JOBS RATE" is
 * appended. Each cell of the table
 * has a server, a producer with 4 threads, and WORKERS workers with 8 threads
 * each. These are separate processes.
 *
 *     both          connect and print "ready"
 *     the producer  reads the time of the start from stdin, in microseconds by
 *                   CLOCK_MONOTONIC. Offers job i at start + i / RATE, or as
 *                   soon as it can. Repeats a failed offer after 100 ms. Job i
 *                   is due 0.5 to 1.5 s after start + i / RATE. At the end it
 *                   records every 0.5 s how many jobs the queue still has
 *     a worker      records each job that it receives, works for 40 ms, records
 *                   it again and acks it
 *
 * check.h describes and judges the records. DIR contains settime.so, and gets
 * the log and the records of each cell. These environment variables are read:
 *
 *     RUNS=1         number of runs. If there are several, the table has ranges
 *     FAULTS         words: run only the faults whose names contain one of them
 *     PEERS          the same for peers
 *     LANES=2        number of cells whose load runs at the same time. Other
 *                    cells may wait for their last jobs meanwhile
 */
#define _GNU_SOURCE
#include "check.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define JOBS 5000
#define RATE 250
#define WORKERS 3
#define FAULT_AT_S 8
#define FAULT_S 5 /* length of a fault */
#define KILLS 5   /* number of killed workers */
/* not a whole second, since asynq's jobs are due at whole seconds */
#define KILL_US 900000
#define LOAD_S 22 /* length of the load; then the next cell begins */
#define DRAIN_S 170
/* a cell ends after this time without a job if none is left in the queue */
#define QUIET_S 2
#define AHEAD_S 10
/* a cell runs again if the rate before the fault is below this share of RATE */
#define SLOW 0.7
#define TRIES 2 /* the maximum number of tries, in case the machine is busy */
#define PEERS 8
#define RUNS 9

typedef enum {
    NO_FAULT,
    KILL_WORKERS,
    RESTART_EVERYSEC,
    RESTART_ALWAYS,
    KILL_CONNECTIONS,
    FREEZE,
    REFUSE,
    FILL_MEMORY,
    SERVER_AHEAD,
    WORKERS_AHEAD,
    SERVER_SET,
    FAULTS
} fault;

/* Cells run in this order, NO_FAULT last. Faults with long waits come first. */
static const struct {
    const char *name;
    int beanstalkd; /* 1: the fault can be tested with beanstalkd */
    int lasting;    /* 1: the fault never ends, so no rates are compared */
} faults[FAULTS] = {
    [NO_FAULT] = {"no fault", 1, 1},
    [KILL_WORKERS] = {"a worker is killed every 0.9 s, 5 times", 1, 0},
    [RESTART_EVERYSEC] = {"the server is killed and restarted, AOF everysec", 1,
                          0},
    [RESTART_ALWAYS] = {"the same, AOF always", 0, 0},
    [KILL_CONNECTIONS] = {"all connections are killed", 0, 0},
    [FREEZE] = {"the server is frozen for 5 s", 1, 0},
    [REFUSE] = {"the server refuses clients for 5 s", 0, 0},
    [FILL_MEMORY] = {"the server's memory is full for 5 s", 0, 0},
    [SERVER_AHEAD] = {"the server's clock is 10 s ahead", 1, 1},
    [WORKERS_AHEAD] = {"the workers' clocks are 10 s ahead", 1, 1},
    [SERVER_SET] = {"the server's clock is set forward by 10 s", 1, 0},
};

typedef struct {
    char name[32], kind[16], work[1024], produce[1024];
} peer;
static peer peers[PEERS];
static int peer_count;
static const char *dir;

static int64_t now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND + t.tv_nsec / 1000;
}

static void sleep_until(int64_t at_us) {
    struct timespec t;
    t.tv_sec = at_us / SECOND;
    t.tv_nsec = at_us % SECOND * 1000;
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL)) continue;
}

/* --- one cell: its processes --------------------------------------------- */

typedef struct {
    pid_t pid;
    int to, from;
} process;

static struct {
    const peer *of;
    fault fault;
    int port, log;
    char dir[256], records[300], clock[300];
    process server, producer, workers[WORKERS];
    redisContext *admin;
} cell;

static void end_process(process *p) {
    if (p->pid > 0) {
        kill(p->pid, SIGKILL);
        waitpid(p->pid, NULL, 0);
    }
    if (p->to > 0) close(p->to);
    if (p->from > 0) close(p->from);
    memset(p, 0, sizeof *p);
}

static void end_cell(void) {
    char command[300];
    int i;
    for (i = 0; i < WORKERS; i++) end_process(&cell.workers[i]);
    end_process(&cell.producer);
    end_process(&cell.server);
    snprintf(command, sizeof command, "rm -rf '%s'", cell.dir);
    if (cell.dir[0] && system(command)) perror(cell.dir);
}

__attribute__((noreturn)) static void die(const char *what) {
    fprintf(stderr, "FAIL %s, %s: %s\n", cell.of ? cell.of->name : "chaos",
            faults[cell.fault].name, what);
    if (cell.of) end_cell();
    exit(1);
}

/* Start a process. If clock is 1, set_clock() changes its wall clock. */
static process start(const char *command, int clock) {
    process p;
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC)) die("pipe");
    p.pid = fork();
    if (p.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(in[0], 0);
        dup2(out[1], 1);
        dup2(cell.log, 2);
        if (clock) {
            char library[300];
            snprintf(library, sizeof library, "%s/settime.so", dir);
            setenv("LD_PRELOAD", library, 1);
            setenv("SETTIME", cell.clock, 1);
        }
        execl("/bin/sh", "sh", "-c", command, (char *)NULL);
        _exit(127);
    }
    close(in[0]);
    close(out[1]);
    p.to = in[1];
    p.from = out[0];
    return p;
}

static process start_role(const char *role) {
    char command[2048];
    int works = strcmp(role, "work") == 0;
    snprintf(command, sizeof command, "exec %s %s %d %s %d %d",
             works ? cell.of->work : cell.of->produce, role, cell.port,
             cell.records, JOBS, RATE);
    return start(command, works && cell.fault == WORKERS_AHEAD);
}

static void await_ready(const process *p) {
    char text[64];
    struct pollfd f;
    f.fd = p->from;
    f.events = POLLIN;
    if (poll(&f, 1, 120000) != 1 || read(p->from, text, sizeof text) < 5 ||
        strncmp(text, "ready", 5) != 0)
        die("a process isn't ready");
}

static void set_clock(int64_t ahead_us) {
    int fd = open(cell.clock, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || pwrite(fd, &ahead_us, 8, 0) != 8) die(cell.clock);
    close(fd);
}

static int free_port(void) {
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr *)&a, sizeof a) ||
        getsockname(fd, (struct sockaddr *)&a, &size))
        die("no port");
    close(fd);
    return ntohs(a.sin_port);
}

static int is_kind(const char *kind) {
    return strcmp(cell.of->kind, kind) == 0;
}

static int server_answers(void) {
    redisReply *r;
    int good;
    if (cell.admin) redisFree(cell.admin);
    cell.admin = redisConnect("127.0.0.1", cell.port);
    if (!cell.admin || cell.admin->err) return 0;
    if (!is_kind("redis")) {
        redisFree(cell.admin);
        cell.admin = NULL;
        return 1;
    }
    r = redisCommand(cell.admin, "PING");
    good = r && r->type == REDIS_REPLY_STATUS;
    if (r) freeReplyObject(r);
    return good;
}

/* Write the configuration of nats-server. It is as by default, except that an
 * account is needed to limit the size of the files. */
static void configure_nats(int refuses, int is_full) {
    char path[300];
    FILE *f;
    snprintf(path, sizeof path, "%s/nats.conf", cell.dir);
    f = fopen(path, "w");
    if (!f) die(path);
    fprintf(f,
            "listen: \"127.0.0.1:%d\"\n"
            "jetstream: {store_dir: \"%s\", sync_interval: \"%s\"}\n"
            "accounts: {A: {jetstream: {max_file: %s}, users: [{user: a}]}}\n"
            "no_auth_user: a\n",
            cell.port, cell.dir, cell.fault == RESTART_ALWAYS ? "always" : "2m",
            is_full ? "1" : "1G");
    if (refuses) fprintf(f, "max_connections: 0\n");
    fclose(f);
}

/* Reload the configuration. The server then closes the connections that are
 * too many. */
static void reconfigure_nats(int refuses, int is_full) {
    configure_nats(refuses, is_full);
    kill(cell.server.pid, SIGHUP);
}

static void start_server(void) {
    char command[1024];
    int clock = cell.fault == SERVER_AHEAD || cell.fault == SERVER_SET;
    int64_t limit = now_us() + 20 * SECOND;
    if (is_kind("redis"))
        snprintf(command, sizeof command,
                 "exec redis-server --port %d --bind 127.0.0.1 --dir %s "
                 "--save '' --appendonly yes --appendfsync %s >&2",
                 cell.port, cell.dir,
                 cell.fault == RESTART_ALWAYS ? "always" : "everysec");
    else if (is_kind("nats")) {
        configure_nats(0, 0);
        snprintf(command, sizeof command,
                 "exec %s/nats-server -c %s/nats.conf", dir, cell.dir);
    } else
        snprintf(command, sizeof command,
                 "exec beanstalkd -l 127.0.0.1 -p %d -b %s -f0", cell.port,
                 cell.dir);
    cell.server = start(command, clock);
    while (!server_answers()) {
        if (now_us() > limit) die("the server doesn't answer");
        usleep(20000);
    }
}

static void ask(const char *command) {
    redisReply *r = redisCommand(cell.admin, command);
    if (!r || r->type == REDIS_REPLY_ERROR) die(r ? r->str : command);
    freeReplyObject(r);
}

/* --- one cell: its fault ------------------------------------------------- */

static void limit_clients(int refuses) {
    if (is_kind("nats"))
        reconfigure_nats(refuses, 0);
    else
        ask(refuses ? "CONFIG SET maxclients 1" : "CONFIG SET maxclients 10000");
}

static void limit_memory(int is_full) {
    if (is_kind("nats"))
        reconfigure_nats(0, is_full);
    else
        ask(is_full ? "CONFIG SET maxmemory 1" : "CONFIG SET maxmemory 0");
}

static void kill_connections(void) {
    if (is_kind("nats")) {
        limit_clients(1); /* closes all, a few ms after the signal */
        usleep(100000);
        limit_clients(0);
        return;
    }
    ask("CLIENT KILL TYPE normal SKIPME yes");
    ask("CLIENT KILL TYPE pubsub");
}

static void kill_workers(int64_t begin) {
    int i;
    for (i = 0; i < KILLS; i++) {
        sleep_until(begin + i * KILL_US);
        end_process(&cell.workers[i % WORKERS]);
        cell.workers[i % WORKERS] = start_role("work");
    }
}

/* Cause the fault. Returns the time at which it ended. */
static int64_t do_fault(int64_t begin) {
    sleep_until(begin);
    switch (cell.fault) {
    case KILL_WORKERS:
        kill_workers(begin);
        return begin + (KILLS - 1) * KILL_US;
    case RESTART_EVERYSEC:
    case RESTART_ALWAYS:
        end_process(&cell.server);
        sleep_until(begin + SECOND);
        start_server();
        return now_us();
    case KILL_CONNECTIONS: kill_connections(); return now_us();
    case FREEZE:
        kill(cell.server.pid, SIGSTOP);
        sleep_until(begin + FAULT_S * SECOND);
        kill(cell.server.pid, SIGCONT);
        return now_us();
    case REFUSE:
        limit_clients(1);
        if (is_kind("redis")) kill_connections();
        sleep_until(begin + FAULT_S * SECOND);
        limit_clients(0);
        return now_us();
    case FILL_MEMORY:
        limit_memory(1);
        sleep_until(begin + FAULT_S * SECOND);
        limit_memory(0);
        return now_us();
    case SERVER_SET: set_clock((int64_t)AHEAD_S * SECOND); return now_us();
    default: return begin;
    }
}

static verdict judge(int64_t begin, int64_t end) {
    FILE *records = fopen(cell.records, "r");
    verdict v;
    if (!records) die(cell.records);
    v = check(records, faults[cell.fault].lasting ? 0 : begin, end, RATE);
    fclose(records);
    return v;
}

/* Run a cell. Write 'L' to `out` when the load is over, and the verdict when
 * the cell ends. */
static void run_cell(const peer *of, fault f, int out) {
    int64_t begin, load_end, fault_end;
    char go[32], log[300];
    verdict v;
    int i;
    cell.of = of;
    cell.fault = f;
    cell.port = free_port();
    snprintf(log, sizeof log, "%s/%s-%d.log", dir, of->name, f);
    cell.log =
        open(log, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
    snprintf(cell.dir, sizeof cell.dir, "%s/cell-XXXXXX", dir);
    if (cell.log < 0 || !mkdtemp(cell.dir)) die("no directory");
    snprintf(cell.records, sizeof cell.records, "%s/%s-%d.records", dir,
             of->name, f);
    unlink(cell.records);
    snprintf(cell.clock, sizeof cell.clock, "%s/clock", cell.dir);
    set_clock(f == SERVER_SET ? 0 : (int64_t)AHEAD_S * SECOND);
    start_server();
    for (i = 0; i < WORKERS; i++) cell.workers[i] = start_role("work");
    for (i = 0; i < WORKERS; i++) await_ready(&cell.workers[i]);
    cell.producer = start_role("produce");
    await_ready(&cell.producer);
    begin = now_us() + SECOND / 2;
    load_end = begin + LOAD_S * SECOND;
    snprintf(go, sizeof go, "%lld\n", (long long)begin);
    if (write(cell.producer.to, go, strlen(go)) < 0) die("the producer ended");
    begin += FAULT_AT_S * SECOND;
    fault_end = do_fault(begin);
    sleep_until(load_end);
    if (write(out, "L", 1) != 1) exit(1);
    for (;;) {
        v = judge(begin, fault_end);
        if (v.empties > 1 && now_us() > v.quiet_from + QUIET_S * SECOND) break;
        if (now_us() > load_end + DRAIN_S * SECOND) break;
        sleep_until(now_us() + 2 * SECOND);
    }
    if (write(out, &v, sizeof v) != sizeof v) exit(1);
    end_cell();
    exit(0);
}

/* --- the table ----------------------------------------------------------- */

static struct {
    verdict v[RUNS];
    int n, tries, again; /* n: number of verdicts; tries, again: in this run */
} table[FAULTS][PEERS];

static void print_ints(const char *what, const int *v, int n) {
    int i, least = v[0], most = v[0];
    for (i = 1; i < n; i++) {
        if (v[i] < least) least = v[i];
        if (v[i] > most) most = v[i];
    }
    if (most == 0) return;
    if (least != most) printf(" %d to", least);
    printf(" %d %s;", most, what);
}

static void print_numbers(const char *what, const double *v, int n) {
    double least = v[0], most = v[0];
    int i;
    for (i = 1; i < n; i++) {
        if (v[i] < least) least = v[i];
        if (v[i] > most) most = v[i];
    }
    if (least < 0 && most < 0)
        printf("never");
    else if (least < 0)
        printf("%.1f%s or never", most, what);
    else if (most - least < 0.1)
        printf("%.1f%s", most, what);
    else
        printf("%.1f to %.1f%s", least, most, what);
}

/* Print a cell: the defects, if there are any; then the time until the queue
 * worked again, and the ratio of the rates. */
static void print_cell(fault f, int p) {
    static const char *const what[] = {"not accepted", "lost", "twice",
                                       "early",        "left", "given up",
                                       "strange"};
    int counts[7][RUNS], i, k, all = 0, n = table[f][p].n;
    double again[RUNS], ratio[RUNS], early = 0;
    for (i = 0; i < n; i++) {
        const verdict *v = &table[f][p].v[i];
        counts[0][i] = JOBS - v->accepted;
        counts[1][i] = v->lost;
        counts[2][i] = v->twice;
        counts[3][i] = v->early;
        counts[4][i] = v->left > 0 ? v->left : 0;
        counts[5][i] = v->dead > 0 ? v->dead : 0;
        counts[6][i] = v->strange;
        for (k = 0; k < 7; k++) all += counts[k][i];
        again[i] = v->again_s;
        ratio[i] = v->ratio;
        if (v->early_s > early) early = v->early_s;
    }
    for (k = 0; k < 7; k++) print_ints(what[k], counts[k], n);
    if (early > 0) printf(" by up to %.1f s;", early);
    if (all == 0) printf(" each once;");
    if (faults[f].lasting) return;
    printf(" ");
    print_numbers(" s", again, n);
    printf("; ");
    print_numbers("", ratio, n);
}

/* Print the time until the last job, which may wait for a lease to end. */
static void print_last(fault f, int p) {
    double last[RUNS];
    int i;
    for (i = 0; i < table[f][p].n; i++) last[i] = table[f][p].v[i].last_s;
    printf(" ");
    print_numbers(" s", last, table[f][p].n);
}

static void print_table(const char *head, int lasting_too,
                        void (*print)(fault f, int p)) {
    int f, p;
    printf("\n| %s |", head);
    for (p = 0; p < peer_count; p++) printf(" %s |", peers[p].name);
    printf("\n|---|");
    for (p = 0; p < peer_count; p++) printf("---|");
    for (f = 0; f < FAULTS; f++) {
        int any = 0;
        for (p = 0; p < peer_count; p++) any += table[f][p].n;
        if (!any || (faults[f].lasting && !lasting_too)) continue;
        printf("\n| %s |", faults[f].name);
        for (p = 0; p < peer_count; p++) {
            if (table[f][p].n) print((fault)f, p);
            printf(" |");
        }
    }
    printf("\n");
    fflush(stdout);
}

/* --- all cells ----------------------------------------------------------- */

/* Returns 1 if the environment variable is not set, or if one of its words is
 * part of the name. */
static int wanted(const char *variable, const char *name) {
    const char *words = getenv(variable);
    char copy[512], *word, *rest = copy;
    if (!words || !*words) return 1;
    snprintf(copy, sizeof copy, "%s", words);
    while ((word = strtok_r(rest, " ", &rest)))
        if (strstr(name, word)) return 1;
    return 0;
}

typedef struct {
    pid_t pid;
    int from, loads, f, p;
} running;

static running all_running[FAULTS * PEERS];
static int running_count, loading;

static void begin_cell(int f, int p) {
    running *r = &all_running[running_count++];
    int out[2];
    if (pipe2(out, O_CLOEXEC)) die("pipe");
    r->pid = fork();
    if (r->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        close(out[0]);
        run_cell(&peers[p], (fault)f, out[1]);
    }
    close(out[1]);
    r->from = out[0];
    r->loads = 1;
    r->f = f;
    r->p = p;
    loading++;
}

static void keep(int f, int p, const verdict *v) {
    table[f][p].tries++;
    table[f][p].again = !faults[f].lasting && v->before < SLOW * RATE &&
                        table[f][p].tries < TRIES;
    if (table[f][p].again)
        printf("  (slow before the fault: will run again)\n");
    else
        table[f][p].v[table[f][p].n++] = *v;
}

static void read_cell(int i) {
    running *r = &all_running[i];
    verdict v;
    char note;
    if (r->loads && read(r->from, &note, 1) == 1) {
        r->loads = 0;
        loading--;
        return;
    }
    if (!r->loads && read(r->from, &v, sizeof v) == sizeof v) {
        printf("%s, %s: accepted %d, lost %d, twice %d, early %d (%.2f s), "
               "before %.0f/s, again %.2f s, ratio %.2f, last %.1f s, left %d, "
               "dead %d\n",
               peers[r->p].name, faults[r->f].name, v.accepted, v.lost, v.twice,
               v.early, v.early_s, v.before, v.again_s, v.ratio, v.last_s,
               v.left, v.dead);
        keep(r->f, r->p, &v);
        fflush(stdout);
    }
    loading -= r->loads;
    close(r->from);
    waitpid(r->pid, NULL, 0);
    all_running[i] = all_running[--running_count];
}

static void await_cell(void) {
    struct pollfd f[FAULTS * PEERS];
    int i;
    for (i = 0; i < running_count; i++) {
        f[i].fd = all_running[i].from;
        f[i].events = POLLIN;
    }
    if (poll(f, (nfds_t)running_count, -1) < 1) return;
    for (i = running_count - 1; i >= 0; i--)
        if (f[i].revents) read_cell(i);
}

static int is_wanted(int f, int p) {
    return wanted("FAULTS", faults[f].name) && wanted("PEERS", peers[p].name) &&
           (strcmp(peers[p].kind, "beanstalkd") != 0 || faults[f].beanstalkd);
}

/* Run all cells. Those with "no fault" come last, because they are the
 * shortest: after a fault a cell may last until the leases have ended. */
static void run_all(int lanes) {
    int f, p, again = 1;
    for (f = 0; f < FAULTS; f++)
        for (p = 0; p < peer_count; p++) {
            table[f][p].tries = 0;
            table[f][p].again = is_wanted(f, p);
        }
    while (again) {
        again = 0;
        for (f = 1; f <= FAULTS; f++)
            for (p = 0; p < peer_count; p++) {
                if (!table[f % FAULTS][p].again) continue;
                again = 1;
                table[f % FAULTS][p].again = 0;
                while (loading >= lanes) await_cell();
                begin_cell(f % FAULTS, p);
            }
        while (running_count) await_cell();
    }
}

/* --- the self-test of the checker ---------------------------------------- */

static int failed;

static void expect(const char *what, double got, double want) {
    if (got > want - 1e-6 && got < want + 1e-6) return;
    printf("FAIL %s: got %g, expected %g\n", what, got, want);
    failed++;
}

static void done(FILE *f, int64_t from, int count, int apart) {
    static int id;
    for (; count > 0; count--, from += apart)
        fprintf(f, "E %d 0 %lld\n", id++ % MOST_JOBS, (long long)from);
}

/* Test the rates with 100 jobs a second, and a fault of 1 s after 5 s. */
static void self_test_rates(int64_t zero) {
    FILE *f = tmpfile();
    verdict v;
    if (!f) exit(1);
    done(f, zero, 500, SECOND / 100);
    v = check(f, zero + 5 * SECOND, zero + 6 * SECOND, 100);
    expect("stopped: again_s", v.again_s, -1);
    expect("stopped: ratio", v.ratio, -1);
    done(f, zero + 6 * SECOND, 50, SECOND / 10); /* 10 a second for 5 s */
    v = check(f, zero + 5 * SECOND, zero + 6 * SECOND, 100);
    expect("slow: again_s", v.again_s, -1);
    done(f, zero + 11 * SECOND, 500, SECOND / 100); /* 100 a second again */
    v = check(f, zero + 5 * SECOND, zero + 6 * SECOND, 100);
    expect("again: again_s", v.again_s, 4.8); /* 182 of 200 jobs in 2 s */
    expect("again: ratio", v.ratio, 282 / 300.0);
    expect("again: last_s", v.last_s, 9.99);
    v = check(f, zero + 5 * SECOND, zero + 6 * SECOND, 50);
    expect("a backlog before: before", v.before, 50);
    expect("a backlog before: ratio", v.ratio, 192 / 150.0);
    fclose(f);
}

/* Test the checker with 100 jobs a second for 20 s, due at once. From second 5
 * to 8 no job is handled. Then the backlog is handled at 200 a second. */
static int self_test(void) {
    FILE *f = tmpfile();
    int64_t zero = 1000 * SECOND, late = 0;
    verdict v;
    int i;
    if (!f) return 1;
    for (i = 0; i < 2000; i++) {
        int64_t due = zero + i * 10000, at = due;
        if (at >= zero + 5 * SECOND) {
            if (at < zero + 8 * SECOND || late > at) {
                if (!late) late = zero + 8 * SECOND;
                at = late;
                late += 5000;
            }
        }
        fprintf(f, "O %d %lld %lld\n", i, (long long)due, (long long)due);
        if (i == 100) continue;         /* lost */
        if (i == 200) at -= 2 * SECOND; /* early */
        if (i == 350) at -= 1000;       /* not early, within EARLY_US */
        fprintf(f, "B %d %lld %lld\n", i, (long long)due, (long long)at);
        if (i == 400) continue; /* lost, since its handling never ends */
        /* not twice: the first worker dies, and another one begins */
        if (i == 500)
            fprintf(f, "B %d %lld %lld\n", i, (long long)due, (long long)at);
        fprintf(f, "E %d %lld %lld\n", i, (long long)due, (long long)at);
        /* both jobs count once as "twice", although job 601 ends three times */
        if (i == 600 || i == 601)
            fprintf(f, "E %d %lld %lld\n", i, (long long)due, (long long)at);
        if (i == 601)
            fprintf(f, "E %d %lld %lld\n", i, (long long)due, (long long)at);
    }
    fprintf(f, "B 2500 0 0\n"); /* never offered: not accepted, not lost */
    fprintf(f, "O 7 0 0\n");    /* a repeated offer is one job */
    fprintf(f, "L 0 1 0\nL 3 1 0\nL 0 1 0\nB 2500 0 5\nL 0 1 0\nL 0 1 0\n");
    fprintf(f, "rubbish\nX 8 0 0\n");
    v = check(f, zero + 5 * SECOND, zero + 7 * SECOND, 100);
    expect("accepted", v.accepted, 2000);
    expect("lost", v.lost, 2);
    expect("twice", v.twice, 2);
    expect("early", v.early, 1);
    expect("early_s", v.early_s, 2);
    /* 300 jobs in 3 s, without job 200 (early) and job 400 (lost) */
    expect("before", v.before, 298 / 3.0);
    expect("again_s", v.again_s, 1); /* from second 7 to 8 */
    /* 200 a second, and the 3 additional records of jobs 600 and 601 */
    expect("ratio", v.ratio * v.before * 3, 603);
    expect("left", v.left, 0);
    expect("dead", v.dead, 1);
    expect("empties", v.empties, 2);
    expect("quiet_from", (double)v.quiet_from, 5);
    expect("strange", v.strange, 2);
    fprintf(f, "L 3 1 0\n");
    v = check(f, 0, 0, 100);
    expect("one more count: empties", v.empties, 0);
    expect("without a fault: again_s", v.again_s, -1);
    expect("without a fault: lost", v.lost, 2);
    fclose(f);
    self_test_rates(zero);
    printf("%d passed, %d failed, 0 skipped\n", 24 - failed, failed);
    return failed > 0;
}

/* ------------------------------------------------------------------------- */

static int number(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

int main(int argc, char **argv) {
    int i, runs = number("RUNS", 1);
    signal(SIGPIPE, SIG_IGN);
    if (argc == 2 && strcmp(argv[1], "--self-test") == 0) return self_test();
    if (argc < 3 || argc > PEERS + 2 || runs < 1 || runs > RUNS)
        die("what is asked?");
    dir = argv[1];
    for (i = 2; i < argc; i++) {
        peer *p = &peers[peer_count++];
        if (sscanf(argv[i], "%31[^|]|%15[^|]|%1023[^|]|%1023[^\n]", p->name,
                   p->kind, p->work, p->produce) != 4)
            die(argv[i]);
    }
    for (i = 0; i < runs; i++) {
        int64_t begin = now_us();
        run_all(number("LANES", 2));
        printf("run %d of %d took %.0f s\n", i + 1, runs,
               (double)(now_us() - begin) / SECOND);
        fflush(stdout);
    }
    print_table("fault", 1, print_cell);
    print_table("from the fault's end until the last job", 0, print_last);
    return 0;
}
