/*
 * The runner. Its workers run in parallel, each with a private server. Each
 * test has a forked process and a time limit. The output of a test is shown if
 * it doesn't pass. The last line is "N passed, N failed, N skipped".
 *
 *     main [-j WORKERS] [-1] [-t N] [-l] [WORD...]
 *
 *     -j WORKERS   how many tests run at a time; default 6 per processor, or 4
 *                  with DELAYQ_TEST_BRIEF, at most 16
 *     -1           run no test again. Otherwise a test that fails among others
 *                  is run again, alone, up to twice. If it passes then, it is
 *                  reported as FLAKY, with the output of its first run, and
 *                  counts as passed. More than 5 such tests fail the run. After
 *                  more than 20 failures the run ends, and none is run again
 *     -t N         list the N tests that took the longest
 *     -l           only list the tests and their files
 *     WORD         run only tests with this word in their name or, if it ends
 *                  in .c, the tests of this file. !WORD excludes such tests
 *
 * DELAYQ_TEST_PROGRESS   if set, the progress is shown on stderr
 * DELAYQ_TEST_SLOW=N     multiplies time limits by N; default 3 under ASan
 * DELAYQ_TEST_BRIEF      if set, the tests do less: for valgrind, qemu
 * DELAYQ_TEST_FULL       if set, connections are cut at 7 times as many bytes,
 *                        in most tests at each byte
 * DELAYQ_TEST_SEED=N     seeds rand() in each test, and in the processes that
 *                        it spawns. The line of a failed test shows its seed
 * DELAYQ_TEST_SECONDS=N  sharing.c makes random calls for N seconds, default 5;
 *                        the processes of versions.c work for N, default 1
 * DELAYQ_TEST_LOCALE     LC_ALL of the servers
 * DELAYQ_TEST_LOG        a file for the logs of all servers
 * DELAYQ_TEST_SERVER     the servers' program, redis-server by default
 * DELAYQ_TEST_ROWS       a file for the rows of the table of faults
 * DELAYQ_TEST_HOSTED     the servers' profile in tests/hosted/profiles.h
 */
#include "test.h"
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdarg.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#define LIMIT_S 240 /* seconds; enough on a busy machine, too */
#define SKIPPED 77

long test_attempts_us, test_slack_us = 300000;
server main_server;
static struct test *first;
static char run_dir[64];
static redisContext *main_context;
static pid_t run_pid;

void test_register(struct test *t) {
    struct test **at = &first;
    while (*at && strcmp((*at)->name, t->name) < 0) at = &(*at)->next;
    t->next = *at;
    *at = t;
}

#ifdef __SANITIZE_ADDRESS__
#define SLOW 3
#else
#define SLOW 1
#endif

int test_slow(void) {
    const char *text = getenv("DELAYQ_TEST_SLOW");
    return text && atoi(text) > 0 ? atoi(text) : SLOW;
}

int test_brief(void) {
    return getenv("DELAYQ_TEST_BRIEF") != NULL;
}

int test_step(int full, int brief) {
    if (test_brief()) return brief;
    return full * (getenv("DELAYQ_TEST_FULL") ? 1 : 7);
}

void test_fail(const char *file, int line, const char *format, ...) {
    va_list args;
    printf("    %s:%d: ", file, line);
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    _exit(1);
}

void test_skip(const char *why) {
    printf("    skipped: %s\n", why);
    fflush(stdout);
    _exit(SKIPPED);
}

delayq_status honest(const delayq *q, delayq_status status, const char *call) {
    const char *why = falsehood(q, status);
    if (why)
        FAIL("%s (%s) %s: \"%s\"", call, delayq_strstatus(status), why,
             delayq_errmsg(q));
    return status;
}

long long now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000LL + t.tv_nsec / 1000;
}

void *shared(size_t size) {
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) FAIL("mmap: %s", strerror(errno));
    return p;
}

void report_row(const char *fault, const char *seen, const char *items,
                long long back_us) {
    const char *path = getenv("DELAYQ_TEST_ROWS");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f) return;
    fprintf(f, "| %s | %s | %s | ", fault, seen, items);
    if (back_us < 10000)
        fprintf(f, "%.1f ms |\n", (double)back_us / 1000);
    else
        fprintf(f, "%.2f s |\n", (double)back_us / 1e6);
    fclose(f);
}

/* --- servers ------------------------------------------------------------- */

static int is_free(int port) {
    struct sockaddr_in a;
    int fd = socket(AF_INET, SOCK_STREAM, 0), free;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_port = htons((unsigned short)port);
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    free = bind(fd, (struct sockaddr *)&a, sizeof a) == 0;
    close(fd);
    return free;
}

/* Reserve a port, so that no other test run uses it. Bind an abstract socket to
 * a name that contains the port's number, and leave it open, so that the name
 * stays in use. Returns 0 if the name is in use already. */
static int reserve(int port) {
    struct sockaddr_un a;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), n;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "delayq-port-%d", port);
    if (bind(fd, (struct sockaddr *)&a,
             (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 +
                         (size_t)n)) == 0)
        return 1;
    close(fd);
    return 0;
}

/* Returns a free port. This port, and the port 10,000 above it for a cluster's
 * bus, are below the ports that the system gives to clients. with-cluster.sh
 * uses other ports. */
int free_port(void) {
    static int next;
    if (next == 0) next = 11000 + getpid() * 37 % 9000;
    do {
        next = next < 19999 ? next + 1 : 11000;
    } while (!reserve(next) || !is_free(next) || !is_free(next + 10000));
    return next;
}

const char *silent_host(void) {
    static char url[64];
    struct sockaddr_in a;
    socklen_t size = sizeof a;
    struct pollfd oldest;
    int fd = socket(AF_INET, SOCK_STREAM, 0), i;
    memset(&a, 0, sizeof a);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(fd, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK(listen(fd, 0) == 0);
    CHECK(getsockname(fd, (struct sockaddr *)&a, &size) == 0);
    for (i = 0; i < 4; i++) {
        int client = socket(AF_INET, SOCK_STREAM, 0);
        fcntl(client, F_SETFL, O_NONBLOCK);
        connect(client, (struct sockaddr *)&a, sizeof a);
        if (i == 0) oldest.fd = client;
    }
    oldest.events = POLLOUT;
    UNTIL(poll(&oldest, 1, 0) == 1);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", ntohs(a.sin_port));
    return url;
}

const char *server_program(void) {
    const char *name = getenv("DELAYQ_TEST_SERVER");
    return name ? name : "redis-server";
}

int is_keydb(void) {
    return strstr(ask("INFO keydb"), "# KeyDB") != NULL;
}

/* tests/hosted/hosted.c defines these, if it is part of the program. */
__attribute__((weak)) void hosted_start(server *s) {
    (void)s;
}
__attribute__((weak)) const char *const *hosted_arguments(void) {
    return NULL;
}
__attribute__((weak)) int hosted_major(int major) {
    return major;
}
__attribute__((weak)) int server_can(const char *command) {
    (void)command;
    return 1;
}

int can_track(void) {
    return main_server.major >= 6 && server_can("CLIENT TRACKING");
}

void server_start_again(server *s, const char *const *arguments) {
    const char *const *more = hosted_arguments();
    const char *argv[40] = {"redis-server", "--port",  "0",
                            "--unixsocket", s->socket, "--dir",
                            s->dir,         "--save",  ""};
    int n = 9;
    long long end;
    redisReply *r;
    const char *at;
    redisContext *c;
    argv[0] = server_program();
    while (more && *more) argv[n++] = *more++;
    while (arguments && *arguments && n < 39) argv[n++] = *arguments++;
    s->pid = fork();
    if (s->pid == 0) {
        char path[128];
        const char *locale = getenv("DELAYQ_TEST_LOCALE");
        const char *log = getenv("DELAYQ_TEST_LOG");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        snprintf(path, sizeof path, "%s/log", s->dir);
        if (!freopen(log ? log : path, "a", stdout) || dup2(1, 2) < 0) _exit(1);
        if (locale) setenv("LC_ALL", locale, 1);
        execvp(argv[0], (char *const *)argv);
        _exit(127);
    }
    end = now_us() + 60000000LL * test_slow();
    for (;;) {
        int status;
        c = redisConnectUnix(s->socket);
        if (c && !c->err) break;
        if (c) redisFree(c);
        if (waitpid(s->pid, &status, WNOHANG) == s->pid || now_us() > end) {
            printf("%s doesn't start; see %s/log\n", argv[0], s->dir);
            exit(2);
        }
        usleep(5000);
    }
    r = (redisReply *)redisCommand(c, "INFO server");
    at = r && r->str ? strstr(r->str, "redis_version:") : NULL;
    s->major = s->minor = 0;
    if (at) sscanf(at + 14, "%d.%d", &s->major, &s->minor);
    s->major = hosted_major(s->major);
    if (r) freeReplyObject(r);
    redisFree(c);
}

/* Does nothing, for headers that have scripts in an older form. With today's
 * form tests/scripts.c replaces this function by one that loads them. */
__attribute__((weak)) void load_scripts(redisContext *c) {
    (void)c;
}

void server_start(server *s, const char *const *arguments) {
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "%s/XXXXXX", run_dir);
    if (!mkdtemp(s->dir)) FAIL("no folder %s: %s", s->dir, strerror(errno));
    snprintf(s->socket, sizeof s->socket, "%s/s", s->dir);
    snprintf(s->url, sizeof s->url, "unix://%s", s->socket);
    server_start_again(s, arguments);
    if (access(s->socket, F_OK) == 0) {
        redisContext *c;
        hosted_start(s);
        c = redisConnectUnix(s->url + strlen("unix://"));
        if (c && !c->err) load_scripts(c);
        if (c) redisFree(c);
    }
}

void server_kill(server *s, int sig) {
    if (s->pid > 0) {
        kill(s->pid, sig);
        if (sig == SIGKILL || sig == SIGTERM) {
            waitpid(s->pid, NULL, 0);
            s->pid = 0;
        }
    }
}

void server_end(server *s) {
    server_kill(s, SIGKILL);
}

redisContext *server_connect(const server *s) {
    redisContext *c = redisConnectUnix(s->socket);
    if (!c || c->err) FAIL("can't connect to %s", s->socket);
    return c;
}

redisReply *run(redisContext *c, const char *format, ...) {
    va_list args;
    redisReply *r;
    va_start(args, format);
    r = (redisReply *)redisvCommand(c, format, args);
    va_end(args);
    if (!r) FAIL("%s: %s", format, c->errstr);
    return r;
}

redisContext *main_connection(void) {
    if (!main_context) main_context = server_connect(&main_server);
    return main_context;
}

long long ask_int(const char *format, ...) {
    va_list args;
    redisReply *r;
    long long value;
    va_start(args, format);
    r = (redisReply *)redisvCommand(main_connection(), format, args);
    va_end(args);
    if (!r) FAIL("%s: no reply", format);
    if (r->type == REDIS_REPLY_ERROR) FAIL("%s: %s", format, r->str);
    value = r->type == REDIS_REPLY_STRING ? atoll(r->str) : r->integer;
    freeReplyObject(r);
    return value;
}

const char *ask(const char *format, ...) {
    static char *text;
    va_list args;
    redisReply *r;
    va_start(args, format);
    r = (redisReply *)redisvCommand(main_connection(), format, args);
    va_end(args);
    if (!r) FAIL("%s: no reply", format);
    free(text);
    text = strdup(r->str ? r->str : r->type == REDIS_REPLY_NIL ? "(nil)" : "");
    freeReplyObject(r);
    return text;
}

long long server_us(redisContext *c) {
    redisReply *r = run(c, "TIME");
    long long us = atoll(r->element[0]->str) * 1000000;
    us += atoll(r->element[1]->str);
    freeReplyObject(r);
    return us;
}

int scripts_run(redisContext *c) {
    redisReply *r = run(c, "INFO commandstats");
    const char *at = strstr(r->str, "cmdstat_evalsha:calls=");
    int n = at ? atoi(strchr(at, '=') + 1) : 0;
    freeReplyObject(r);
    return n;
}

int subscribers(redisContext *c, const char *channel) {
    redisReply *r = run(c, "PUBSUB NUMSUB %s", channel);
    long long n = r->element[1]->integer;
    freeReplyObject(r);
    if (n > 1000000) { /* Valkey 9.1.2 may return garbage: count */
        const char *at;
        r = run(c, "CLIENT LIST TYPE pubsub");
        for (n = 0, at = r->str; (at = strstr(at, "id=")) != NULL; at++) n++;
        freeReplyObject(r);
    }
    return (int)n;
}

void elapse(redisContext *c, int ms) {
    long long end = server_us(c) / 1000 + ms;
    while (server_us(c) / 1000 < end) usleep(200);
}

static volatile int64_t *server_clock; /* microseconds added to the real time */

static server *clocked; /* the server whose clock is set */

/* Valkey 9.1 sees the new time a few ms later, so wait until it does. */
void server_set_clock(int seconds) {
    redisContext *c;
    struct timespec t;
    *server_clock = seconds * (int64_t)1000000;
    if (!clocked) return;
    c = server_connect(clocked);
    do {
        clock_gettime(CLOCK_REALTIME, &t);
    } while (llabs(server_us(c) / 1000000 - t.tv_sec - seconds) > 2);
    redisFree(c);
}

static const char *clock_file(void) {
    static char name[128];
    int fd;
    snprintf(name, sizeof name, "%s/clock%d", main_server.dir, (int)getpid());
    fd = open(name, O_RDWR | O_CREAT, 0600);
    if (fd < 0 || ftruncate(fd, 8) != 0) FAIL("can't write %s", name);
    server_clock = (volatile int64_t *)mmap(NULL, 8, PROT_READ | PROT_WRITE,
                                            MAP_SHARED, fd, 0);
    CHECK(server_clock != MAP_FAILED);
    close(fd);
    return name;
}

/* Start a server with a preloaded library that sets its clock. */
void server_start_with_clock(server *s) {
    char command[300], library[128];
    redisContext *c;
    long long real = server_us(main_connection());
    const char *file = clock_file(), *set = getenv("LD_PRELOAD");
    char *before = set ? strdup(set) : NULL; /* set by valgrind */
    snprintf(library, sizeof library, "%s/settime%d.so", main_server.dir,
             (int)getpid());
    snprintf(command, sizeof command,
             "cc -shared -fPIC -O1 -o %s tests/preload/settime.c", library);
    if (system(command) != 0) test_skip("no cc, or not Linux");
    clocked = NULL;
    server_set_clock(7200);
    setenv("SETTIME", file, 1);
    setenv("LD_PRELOAD", library, 1);
    server_start(s, NULL);
    if (before) setenv("LD_PRELOAD", before, 1);
    if (!before) unsetenv("LD_PRELOAD");
    free(before);
    c = server_connect(s);
    if (server_us(c) - real < 7000000000)
        test_skip("the server's clock is fixed");
    redisFree(c);
    clocked = s;
    server_set_clock(0);
}

void acl_user(const char *user, const char *rights) {
    char command[400];
    snprintf(command, sizeof command, "ACL SETUSER %s reset on >pw %s", user,
             rights);
    CHECK_TEXT(ask(command), "OK");
    ask("ACL SETUSER %s &*", user); /* Redis 6.0 has no rights to channels */
}

delayq_options options_with_rights(const char *rights) {
    static char url[200];
    delayq_options o = options_for(&main_server, "jobs");
    if (main_server.major < 6) test_skip("no ACL before Redis 6");
    acl_user("half", rights);
    snprintf(url, sizeof url, "unix://half:pw@%s", main_server.socket);
    o.url = url;
    return o;
}

const char *contents(redisContext *c) {
    static char *text;
    redisReply *r =
        run(c, "EVAL %s 0",
            "local ks, out = redis.call('KEYS', '*'), {}\n"
            "local hex = setmetatable({}, {__index = function(t, c)\n"
            "  t[c] = string.format('\\\\x%02x', string.byte(c))\n"
            "  return t[c]\n"
            "end})\n"
            "table.sort(ks)\n"
            "for _, k in ipairs(ks) do\n"
            "  local t, v = redis.call('TYPE', k).ok, nil\n"
            "  if t == 'list' then v = redis.call('LRANGE', k, 0, -1) end\n"
            "  if t == 'zset' then\n"
            "    v = redis.call('ZRANGE', k, 0, -1, 'WITHSCORES')\n"
            "  end\n"
            "  if t == 'string' then v = {redis.call('GET', k)} end\n"
            "  if t == 'stream' then\n"
            "    v = redis.call('XRANGE', k, '-', '+')\n"
            "    for i, entry in ipairs(v) do\n"
            "      v[i] = entry[1] .. ' ' .. table.concat(entry[2], ' ')\n"
            "    end\n"
            "  end\n"
            "  out[#out + 1] = t .. ' ' .. k .. '\\n'\n"
            "  for _, e in ipairs(v or {}) do\n"
            "    out[#out + 1] = '  ' .. string.gsub(e, '[^%w%p ]', hex) ..\n"
            "      '\\n'\n"
            "  end\n"
            "end\n"
            "return table.concat(out)\n");
    if (r->type != REDIS_REPLY_STRING) FAIL("contents: %s", r->str);
    free(text);
    text = strdup(r->str);
    freeReplyObject(r);
    return text;
}

/* --- queues -------------------------------------------------------------- */

delayq_options options_for(const server *s, const char *name) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.url = s->url;
    o.name = name;
    o.io_timeout_ms = 20000 * test_slow(); /* long enough for a slow machine */
    return o;
}

void open_wire(delayq *q, const char *name, delayq_wire wire) {
    delayq_options o = options_for(&main_server, name);
    o.wire = wire;
    OK(q, delayq_open(q, &o));
}

void open_queue(delayq *q, const char *name) {
    open_wire(q, name, DELAYQ_NATIVE);
}

delayq_message message(const char *text, int64_t delay_ms) {
    delayq_message m;
    memset(&m, 0, sizeof m);
    m.data = text;
    m.len = strlen(text);
    m.delay_ms = delay_ms;
    return m;
}

void look_again(delayq *q) {
#ifdef DELAYQ_CONSTANT /* since 0.3 */
    q->probe_us = 0;
#elif defined DELAYQ_VERSION_MAJOR
    q->setup.read_us -= 11000000;
#else /* 0.1 never repeats the check for foreign elements */
    (void)q;
#endif
}

void poll_now(delayq *q) {
#ifdef DELAYQ_VERSION_MAJOR
    q->next_poll_us = 0;
#else /* 0.1 has another field */
    q->wake_us = 0;
#endif
}

void forget_ready(delayq *q) {
    q->ready = 0;
}

void take_is(delayq *q, const char *payload) {
    delayq_item item;
    OK(q, delayq_take(q, &item, 0));
    if (item.len != strlen(payload) || memcmp(item.data, payload, item.len))
        FAIL("took \"%.*s\", not \"%s\"", (int)item.len,
             (const char *)item.data, payload);
}

/* Returns 1 if the server is big-endian. */
static int server_big(void) {
    return ask_int("EVAL %s 0",
                   "local first = string.byte(struct.pack('L', 1), 1)\n"
                   "return first == 0 and 1 or 0") == 1;
}

size_t element(unsigned char *to, int id_len, int long_size, const char *id,
               const void *payload, size_t len) {
    size_t n = 0;
    int i, big = server_big();
    if (id_len != 0) to[n++] = (unsigned char)id_len;
    memcpy(to + n, id, id_len ? (size_t)id_len : 8);
    n += id_len ? (size_t)id_len : 8;
    for (i = 0; i < long_size; i++)
        to[n++] =
            (unsigned char)((uint64_t)len >> 8 * (big ? long_size - 1 - i : i));
    memcpy(to + n, payload, len);
    return n + len;
}

static unsigned seed, spawned;

pid_t spawn(void (*body)(void *), void *argument) {
    pid_t pid;
    fflush(stdout);
    spawned++;
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        /* free only the memory of the parent's connection */
        if (main_context) redisFreeKeepFd(main_context);
        main_context = NULL;
        srand(seed + spawned);
        body(argument);
        fflush(stdout);
        _exit(0);
    }
    return pid;
}

void join(pid_t pid) {
    int status;
    if (waitpid(pid, &status, 0) != pid) FAIL("waitpid: %s", strerror(errno));
    if (WIFEXITED(status) && WEXITSTATUS(status) == SKIPPED) _exit(SKIPPED);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        FAIL("a child process failed (status %x)", status);
}

/* --- the run ------------------------------------------------------------- */

#define JOBS_MAX 64

#define TESTS_MAX 1024

/* Shared by the workers. */
static struct {
    int next, done, passed, failed, skipped, flaky, again_count;
    int again[TESTS_MAX]; /* the tests to run again, alone */
    long long us[TESTS_MAX]; /* the time that each test took */
    unsigned seed[TESTS_MAX]; /* the seed of each test that has not passed */
} * run_state;

static const struct test *chosen[TESTS_MAX]; /* the tests of this run */
static int chosen_count, runs_again = 1, slowest;

/* If more tests fail than this, the load is not the cause, so the run ends. */
#define AGAIN_MAX 20
#define ALONE_MAX 3 /* if this many fail even alone, the others are not tried */
#define FLAKY_MAX 5 /* if more tests pass only alone, the run fails */
#define ALONE 2     /* how often a test is run alone, at most */

static void tidy(void) {
    char command[96];
    if (getpid() != run_pid) return;
    snprintf(command, sizeof command, "rm -rf %s", run_dir);
    if (run_dir[0] && system(command) != 0)
        printf("left behind: %s\n", run_dir);
}

static void on_signal(int sig) {
    (void)sig;
    exit(1);
}

static int ends_a_line(int output) {
    char last = '\n';
    off_t size = lseek(output, 0, SEEK_END);
    if (size > 0 && pread(output, &last, 1, size - 1) != 1) return 0;
    return last == '\n';
}

/* Print the stack of a test that hangs (ASan only), and end the test. */
static void on_hang(int sig) {
    signal(sig, SIG_DFL);
    alarm(30);
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_print_stack_trace();
#endif
    raise(sig);
}

/* Run a test in a process of its own, with its output in the file `output`. */
static int run_test(const struct test *t, int output) {
    const char *given = getenv("DELAYQ_TEST_SEED");
    int status;
    pid_t pid;
    ask("FLUSHALL");
    /* an earlier test may have flushed the scripts */
    load_scripts(main_connection());
    ask("CONFIG RESETSTAT");
    seed = (unsigned)(given ? atoi(given) : now_us() % 1000000);
    if (ftruncate(output, 0) != 0 || lseek(output, 0, SEEK_SET) != 0) exit(2);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        signal(SIGALRM, on_hang);
        alarm((unsigned)(LIMIT_S * (test_brief() ? 2 : 1)));
        dup2(output, 1);
        dup2(output, 2);
        /* no output is lost if a signal ends the test */
        setvbuf(stdout, NULL, _IOLBF, 0);
        /* The inherited connection is the parent's, so free only its memory. */
        redisFreeKeepFd(main_context);
        main_context = NULL;
        srand(seed);
        test_attempts_us = t->attempts_us;
        t->run();
        if (main_context) redisFree(main_context);
        exit(0);
    }
    waitpid(pid, &status, 0);
    /* a test may have made the server close the connection */
    redisFree(main_context);
    main_context = NULL;
    if (WIFSIGNALED(status)) {
        dprintf(output, "%s    ended by signal %d%s\n",
                ends_a_line(output) ? "" : "\n", WTERMSIG(status),
                WTERMSIG(status) == SIGALRM ? ": it takes too long" : "");
        return 1;
    }
    return WEXITSTATUS(status);
}

/* Set `path` to the file with the output of a test's first run. */
static void first_output(char *path, size_t size, int i) {
    snprintf(path, size, "%s/first%d", run_dir, i);
}

/* Append a file to `text`, which has `n` bytes. Returns the new length. */
static size_t append(char *text, size_t n, size_t size, int from) {
    ssize_t more = pread(from, text + n, size - n - 1, 0);
    if (more > 0) n += (size_t)more;
    if (text[n - 1] != '\n') text[n++] = '\n';
    return n;
}

/* Print a test's verdict and its output in one write, so that the lines of
 * parallel tests don't mix. Drop the output of a passed test. Keep the output
 * of a test that is run again in a file, and print it after the last run. */
static void tell(int i, const char *verdict, int output) {
    static char text[131072];
    const struct test *t = chosen[i];
    char path[96];
    int kept, is_ok = strcmp(verdict, "ok  ") == 0;
    int is_again = strcmp(verdict, "again") == 0;
    double s = (double)run_state->us[i] / 1e6;
    size_t n = (size_t)snprintf(text, 512, "%s %s (%s, %.1f s", verdict,
                                t->name, t->file, s);
    if (!is_ok)
        n += (size_t)snprintf(text + n, 32, ", seed %u", run_state->seed[i]);
    n += (size_t)snprintf(text + n, 8, ")\n");
    first_output(path, sizeof path, i);
    if (is_again) {
        size_t len = append(text, n, sizeof text, output) - n;
        kept = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (kept < 0 || write(kept, text + n, len) != (ssize_t)len) exit(2);
        close(kept);
    } else if (!is_ok) {
        kept = open(path, O_RDONLY | O_CLOEXEC);
        if (kept >= 0) {
            n = append(text, n, sizeof text / 2, kept);
            close(kept);
        }
        if (strcmp(verdict, "FLAKY") != 0)
            n = append(text, n, sizeof text, output);
    }
    if (write(1, text, n) != (ssize_t)n) exit(2);
}

/* Show the progress on stderr: on a terminal in one line that is overwritten,
 * otherwise in a line for each quarter. */
static void tell_progress(int done) {
    int quarter = chosen_count / 4 + 1;
    if (!getenv("DELAYQ_TEST_PROGRESS")) return;
    if (isatty(2))
        dprintf(2, "\r   %d of %d%s", done, chosen_count,
                done == chosen_count ? "\r\033[K" : "");
    else if (done % quarter == 0 && done < chosen_count)
        dprintf(2, "   %d of %d\n", done, chosen_count);
}

/* Returns the number of the next test to run, or -1 if there is none. */
static int next_test(int alone) {
    int i;
    if (!alone && run_state->again_count > AGAIN_MAX) return -1;
    i = __atomic_fetch_add(&run_state->next, 1, __ATOMIC_SEQ_CST);
    if (i >= (alone ? run_state->again_count : chosen_count)) return -1;
    return alone ? run_state->again[i] : i;
}

static void count(int *counter) {
    __atomic_fetch_add(counter, 1, __ATOMIC_SEQ_CST);
}

/* Run a test, then print and count its result. */
static void run_counted(int i, int alone, int output) {
    long long begin = now_us();
    int status, n, tries = alone ? ALONE : 1;
    if (alone && run_state->failed >= ALONE_MAX) {
        tell(i, "FAIL", -1);
        count(&run_state->failed);
        return;
    }
    do {
        status = run_test(chosen[i], output);
        if (status != 0) run_state->seed[i] = seed;
        if (status != 0 && status != SKIPPED) {
            /* The test may have left the server frozen, or with a password. */
            server_end(&main_server);
            server_start(&main_server, NULL);
            main_connection();
        }
    } while (status != 0 && status != SKIPPED && --tries > 0);
    run_state->us[i] = now_us() - begin;
    if (status == 0) {
        tell(i, alone ? "FLAKY" : "ok  ", output);
        count(&run_state->passed);
        if (alone) count(&run_state->flaky);
    } else if (status == SKIPPED) {
        tell(i, "skip", output);
        count(&run_state->skipped);
    } else if (runs_again) {
        tell(i, "again", output);
        n = __atomic_fetch_add(&run_state->again_count, 1, __ATOMIC_SEQ_CST);
        run_state->again[n] = i;
    } else {
        tell(i, "FAIL", output);
        count(&run_state->failed);
    }
}

/* Run tests as one of the workers. Each worker has a server of its own. */
static void work(int number, int alone) {
    char path[128];
    int i, output;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    server_start(&main_server, NULL);
    main_connection();
    snprintf(path, sizeof path, "%s/output%d", run_dir, number);
    output = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_APPEND, 0600);
    if (output < 0) exit(2);
    while ((i = next_test(alone)) >= 0) {
        run_counted(i, alone, output);
        tell_progress(
            __atomic_add_fetch(&run_state->done, 1, __ATOMIC_SEQ_CST));
    }
    server_end(&main_server);
}

static int has_word(const struct test *t, const char *word) {
    size_t n = strlen(word);
    int file = n > 2 && strcmp(word + n - 2, ".c") == 0;
    return strstr(file ? t->file : t->name, word) != NULL;
}

/* Returns 1 if the words choose this test. */
static int is_wanted(const struct test *t, char **words) {
    int wanted = !*words || **words == '!';
    for (; *words; words++) {
        if (**words == '!' && has_word(t, *words + 1)) return 0;
        if (has_word(t, *words)) wanted = 1;
    }
    return wanted;
}

static int parse_arguments(int argc, char **argv) {
    int list = 0, c, later;
    int jobs = (test_brief() ? 4 : 6) * (int)sysconf(_SC_NPROCESSORS_ONLN);
    const struct test *t;
    if (jobs > 16) jobs = 16;
    while ((c = getopt(argc, argv, "j:1t:l")) != -1) {
        if (c == 'j')
            jobs = atoi(optarg);
        else if (c == '1')
            runs_again = 0;
        else if (c == 't')
            slowest = atoi(optarg);
        else if (c == 'l')
            list = 1;
        else
            exit(2);
    }
    for (later = 0; later < 2; later++) {
        for (t = first; t; t = t->next) {
            if (t->is_long == later || !is_wanted(t, argv + optind)) continue;
            if (list) printf("%s %s\n", t->file, t->name);
            if (chosen_count < TESTS_MAX) chosen[chosen_count++] = t;
        }
    }
    if (list) exit(0);
    if (jobs > chosen_count) jobs = chosen_count;
    return jobs < 1 ? 1 : jobs > JOBS_MAX ? JOBS_MAX : jobs;
}

static void work_all(int jobs, int alone) {
    int i, status;
    pid_t pid;
    run_state->next = 0;
    fflush(stdout);
    for (i = 0; i < jobs; i++) {
        if (fork() != 0) continue;
        work(i, alone);
        exit(0);
    }
    while ((pid = wait(&status)) > 0)
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            printf("FAIL worker %d ended early (status %x)\n", (int)pid,
                   (unsigned)status);
}

static int by_time(const void *a, const void *b) {
    long long x = run_state->us[*(const int *)a];
    long long y = run_state->us[*(const int *)b];
    return (x < y) - (x > y);
}

static void tell_slowest(void) {
    int order[TESTS_MAX], i;
    for (i = 0; i < chosen_count; i++) order[i] = i;
    qsort(order, (size_t)chosen_count, sizeof *order, by_time);
    for (i = 0; i < slowest && i < chosen_count; i++)
        printf("%6.1f s  %s (%s)\n", (double)run_state->us[order[i]] / 1e6,
               chosen[order[i]]->name, chosen[order[i]]->file);
}

int main(int argc, char **argv) {
    int jobs = parse_arguments(argc, argv), lost, i;
    run_pid = getpid();
    run_state = mmap(NULL, sizeof *run_state, PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    snprintf(run_dir, sizeof run_dir, "/tmp/delayq-test-XXXXXX");
    if (run_state == MAP_FAILED || !mkdtemp(run_dir)) return 2;
    atexit(tidy);
    signal(SIGTERM, on_signal);
    signal(SIGINT, on_signal);
    work_all(jobs, 0);
    runs_again = 0;
    if (run_state->again_count > AGAIN_MAX) {
        for (i = 0; i < run_state->again_count; i++)
            tell(run_state->again[i], "FAIL", -1);
        printf("FAIL more than %d tests: the others were not run\n",
               AGAIN_MAX);
        run_state->failed += run_state->again_count;
    } else if (run_state->again_count > 0) {
        run_state->done -= run_state->again_count;
        work_all(1, 1);
    }
    if (run_state->flaky > FLAKY_MAX) {
        printf("FAIL %d tests passed only alone: more than %d fail the run\n",
               run_state->flaky, FLAKY_MAX);
        run_state->failed++;
    }
    tell_slowest();
    /* tests whose workers ended early count as failed */
    lost = chosen_count - run_state->done;
    printf("%d passed, %d failed, %d skipped\n", run_state->passed,
           run_state->failed + lost, run_state->skipped);
    return run_state->failed + lost > 0 || chosen_count == 0;
}
