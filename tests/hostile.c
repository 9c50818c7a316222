/*
 * Servers, proxies and hooks that misbehave: replies that claim to be huge,
 * endless replies, replies that come twice, a login that is cut short, RESP3.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#define _GNU_SOURCE
#include "proxy.h"
#include "test.h"
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

/* --- a server with one reply --------------------------------------------- */

#define SAYS_MAX 65536

struct evil {
    char path[108], url[120];
    int listener;
    int requests; /* answer this many commands with +OK first */
    int endless;  /* repeat `says` for ever */
    int hangs_up; /* close the connection instead of answering */
    size_t len;
    char says[SAYS_MAX];
};

static struct evil *evil;

static int commands_in(const char *bytes, ssize_t n) {
    int count = 0;
    ssize_t i;
    for (i = 0; i < n; i++)
        count += bytes[i] == '*' && (i == 0 || bytes[i - 1] == '\n');
    return count;
}

static void serve_one(int fd) {
    char bytes[65536];
    int left = evil->requests;
    ssize_t n;
    while ((n = read(fd, bytes, sizeof bytes)) > 0) {
        int k = commands_in(bytes, n);
        for (; k > 0 && left > 0; k--, left--)
            if (write(fd, "+OK\r\n", 5) != 5) _exit(0);
        if (k == 0) continue;
        if (evil->hangs_up) _exit(0);
        do
            if (write(fd, evil->says, evil->len) <= 0) _exit(0);
        while (evil->endless || --k > 0);
    }
    _exit(0);
}

static void serve_evil(void *unused) {
    (void)unused;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        int fd = accept(evil->listener, NULL, NULL);
        if (fd < 0) _exit(1);
        if (fork() == 0) serve_one(fd);
        close(fd);
    }
}

static void evil_start(void) {
    struct sockaddr_un a;
    evil = (struct evil *)shared(sizeof *evil);
    snprintf(evil->path, sizeof evil->path, "%.80s/evil%d", main_server.dir,
             (int)getpid());
    snprintf(evil->url, sizeof evil->url, "unix://%s", evil->path);
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    snprintf(a.sun_path, sizeof a.sun_path, "%s", evil->path);
    evil->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(bind(evil->listener, (struct sockaddr *)&a, sizeof a) == 0);
    CHECK(listen(evil->listener, 16) == 0);
    spawn(serve_evil, NULL);
}

static void evil_says(const char *bytes) {
    evil->len = strlen(bytes);
    CHECK(evil->len <= SAYS_MAX);
    memcpy(evil->says, bytes, evil->len);
}

static delayq_options evil_options(void) {
    delayq_options o = options_for(&main_server, "jobs");
    o.url = evil->url;
    o.connect_timeout_ms = o.io_timeout_ms = 500;
    return o;
}

/* --- replies that claim to be huge --------------------------------------- */

static long long cpu_us(const struct rusage *r) {
    return (r->ru_utime.tv_sec + r->ru_stime.tv_sec) * 1000000LL +
           r->ru_utime.tv_usec + r->ru_stime.tv_usec;
}

/* Check that a login with this reply fails with this text, with little work
 * and memory. Only the text "in time" may come from the timeout. */
static void refuse_soon(const char *says, const char *part) {
    delayq_options o = evil_options();
    struct rusage before, after;
    delayq_status status;
    char text[256];
    delayq q = {0};
    if (strcmp(part, "in time") != 0)
        o.connect_timeout_ms = o.io_timeout_ms = 20000 * test_slow();
    evil_says(says);
    getrusage(RUSAGE_SELF, &before);
    status = delayq_open(&q, &o);
    snprintf(text, sizeof text, "%s", delayq_errmsg(&q));
    delayq_close(&q);
    getrusage(RUSAGE_SELF, &after);
    CHECK(status < DELAYQ_OK);
    if (cpu_us(&after) - cpu_us(&before) > 2000000LL * test_slow())
        FAIL("%lld us of work for %.30s", cpu_us(&after) - cpu_us(&before),
             says);
    if (after.ru_maxrss - before.ru_maxrss > 300000) /* in KB */
        FAIL("%ld MB for %.30s", (after.ru_maxrss - before.ru_maxrss) / 1000,
             says);
    CHECK_HAS(text, part);
}

TEST(a_reply_of_two_billion_elements_costs_neither_time_nor_memory) {
    evil_start();
    refuse_soon("*2147483647\r\n", "elements");
    refuse_soon("*1\r\n*2147483647\r\n", "elements");
    refuse_soon("*200000\r\n*200000\r\n", "elements");
}

TEST(replies_nested_deeper_than_any_answer_are_refused) {
    char says[SAYS_MAX];
    size_t i;
    evil_start();
    says[0] = '\0';
    for (i = 0; i < 10000; i++) memcpy(says + 4 * i, "*1\r\n", 5);
    refuse_soon(says, "nested");
}

TEST(a_string_that_claims_to_be_gigabytes_long_is_refused_at_once) {
    evil_start();
    refuse_soon("$2147483647\r\nabc", "1 GB");
    refuse_soon("$4294967290\r\nabc", "1 GB");
    /* a string of this length is allowed */
    refuse_soon("$500000000\r\nabc", "in time");
}

TEST(a_line_without_an_end_is_refused) {
    char says[SAYS_MAX];
    evil_start();
    memset(says, 'x', sizeof says - 1);
    says[0] = '+';
    says[sizeof says - 1] = '\0';
    evil->endless = 1;
    refuse_soon(says, "line");
}

/* Each call ends in time, whatever the server replies, once or endlessly. */
TEST(no_call_is_held_by_a_server_that_says_anything_at_all) {
    static const char *const says[] = {
        "+OK\r\n",
        "-ERR no\r\n",
        "-LOADING\r\n",
        ":1\r\n",
        "$-1\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n:0\r\n$8\r\n\1\1\1\1\1\1\1\1\r\n",
        "*3\r\n$7\r\nmessage\r\n$1\r\nx\r\n$1\r\ny\r\n",
        "$3\r\nabc",
        "*5\r\n",
        "\r\n",
        "\n",
        "-",
        "*1\r\n",
        "*9\r\n*9\r\n",
        ">2\r\n+x\r\n+y\r\n",
        "%1\r\n",
        "-MOVED 1 127.0.0.1:1\r\n",
        "-ASK 1 :1\r\n",
        "HTTP/1.1 400 Bad Request\r\n\r\n"};
    size_t i;
    int kind;
    evil_start();
    for (i = 0; i < sizeof says / sizeof says[0]; i++)
        for (kind = 0; kind < 4; kind++) {
            delayq_options o = evil_options();
            delayq_item item;
            long long start = now_us();
            delayq q = {0};
            evil->endless = kind & 1;
            /* the first two commands are answered with +OK */
            evil->requests = kind & 2;
            o.connect_timeout_ms = o.io_timeout_ms = 50;
            evil_says(says[i]);
            /* the open succeeds if the replies look like those to a login */
            delayq_open(&q, &o);
            delayq_offer(&q, "x", 1, 0);
            delayq_take(&q, &item, 20);
            delayq_tick(&q, NULL);
            delayq_close(&q);
            if (now_us() - start > 3000000LL * test_slow())
                FAIL("\"%s\", kind %d: %lld us", says[i], kind,
                     now_us() - start);
        }
}

/* The forged reply is to an offer, which may have been stored nevertheless. */
TEST(a_call_that_is_answered_with_a_huge_array_says_protocol) {
    static const char *const says[] = {"*500000000\r\n", "$2147483647\r\n",
                                       "*1\r\n*1\r\n*500000000\r\n"};
    size_t i;
    proxy_start(&main_server);
    for (i = 0; i < sizeof says / sizeof says[0]; i++) {
        delayq_options o = options_for(&main_server, "jobs");
        delayq q = {0};
        long long start;
        o.url = proxy_url();
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "x", 60000);
        snprintf(proxy->forged, sizeof proxy->forged, "%s", says[i]);
        proxy_strike(FORGE, 0, 0, 1);
        start = now_us();
        CHECK_STATUS(&q, delayq_offer(&q, "y", 1, 60000), DELAYQ_ERR_PROTOCOL);
        OFFER(&q, "z", 60000); /* this uses a new connection */
        delayq_close(&q);
        CHECK(now_us() - start < 4000000LL * test_slow());
    }
}

/* --- replies that come twice --------------------------------------------- */

/* The handle reads a reply. Then a copy of the reply arrives, and then the
 * handle sends the next request, which the server refuses. */
TEST(a_second_answer_that_comes_later_is_not_believed_by_the_next_call) {
    delayq_options o = options_for(&main_server, "jobs");
    redisContext *c = main_connection();
    delayq q = {0};
    delayq_status status;
    int i;
    proxy_start(&main_server);
    o.url = proxy_url();
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 3; i++) OFFER(&q, "x", 60000);
    proxy_strike(COPY, 1, 0, 1);
    OFFER(&q, "y", 60000);
    freeReplyObject(run(c, "DEL redisson_delay_queue_timeout:{jobs}"));
    freeReplyObject(run(c, "SET redisson_delay_queue_timeout:{jobs} s"));
    UNTIL(proxy->kept > 0);
    proxy->let_go = 1;
    UNTIL(proxy->kept == 0); /* until the copy is in the handle's socket */
    status = delayq_offer(&q, "z", 1, 60000);
    CHECK_STATUS(&q, status, DELAYQ_ERR_TYPE);
    freeReplyObject(run(c, "DEL redisson_delay_queue_timeout:{jobs}"));
    OFFER(&q, "z", 60000);
    delayq_close(&q);
}

/* --- logins -------------------------------------------------------------- */

/* A proxy that knows only data commands closes the connection at the first
 * command of any other kind. */
TEST(the_error_of_a_login_that_is_cut_short_names_the_command) {
    delayq_options o;
    delayq q = {0};
    char url[200];
    evil_start();
    o = evil_options();
    /* long, so that only the closed connection ends the call */
    o.connect_timeout_ms = 20000 * test_slow();
    evil->hangs_up = 1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "CLIENT SETNAME");
    delayq_close(&q);
    snprintf(url, sizeof url, "unix://:pw@%s?db=3", evil->path);
    o.url = url;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "AUTH");
    delayq_close(&q);
    evil->requests = 1;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "SELECT");
    delayq_close(&q);
}

/* Redis 5 sends these replies to a handle without a password if a password was
 * set meanwhile. */
TEST(a_protocol_error_for_want_of_a_password_is_err_auth) {
    static const char *const says[] = {
        "-ERR Protocol error: unauthenticated multibulk length\r\n",
        "-ERR Protocol error: unauthenticated bulk length\r\n"};
    int i;
    proxy_start(&main_server);
    for (i = 0; i < 2; i++) {
        delayq_options o = options_for(&main_server, "jobs");
        delayq q = {0};
        o.url = proxy_url();
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "x", 60000);
        snprintf(proxy->forged, sizeof proxy->forged, "%s", says[i]);
        proxy_strike(FORGE, 0, 0, 1);
        CHECK_STATUS(&q, delayq_offer(&q, "y", 1, 60000), DELAYQ_ERR_AUTH);
        delayq_close(&q);
    }
}

TEST(a_user_at_a_server_without_users_is_err_auth_and_told_why) {
    delayq_options o;
    delayq q = {0};
    char url[200];
    evil_start();
    o = evil_options();
    snprintf(url, sizeof url, "unix://me:pw@%s", evil->path);
    o.url = url;
    evil_says("-ERR wrong number of arguments for 'auth' command\r\n");
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
    CHECK_HAS(delayq_errmsg(&q), "Redis 6");
    CHECK(!strstr(delayq_errmsg(&q), "pw"));
    delayq_close(&q);
}

/* --- connect hooks ------------------------------------------------------- */

/* Return a connection whose server answers in RESP3 from now on. */
static redisContext *resp3_hook(void *user, int timeout_ms) {
    redisContext *c = redisConnectUnix(main_server.socket);
    char bytes[4096];
    (void)user, (void)timeout_ms;
    if (!c || c->err) return c;
    CHECK(write(c->fd, "*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n", 22) == 22);
    /* read the reply here, since hiredis 0.14 can't parse it */
    CHECK(read(c->fd, bytes, sizeof bytes) > 0);
    return c;
}

static void be_pushed(void *unused) {
    redisContext *c = server_connect(&main_server);
    (void)unused;
    usleep(300000);
    freeReplyObject(run(c, "LPUSH jobs hello"));
    redisFree(c);
}

static int hook_logs;
static void count_hook_log(void *user, delayq_status status, const char *text) {
    (void)user;
    printf("    log: %s\n", text);
    hook_logs += status != DELAYQ_OK; /* events are not faults */
}

TEST(a_hook_that_has_asked_for_resp3_gets_its_subscriber) {
    delayq_options o = options_for(&main_server, "jobs");
    delayq_item item;
    delayq q = {0};
    pid_t pid;
    if (main_server.major < 6) test_skip("needs Redis 6");
    o.connect = resp3_hook;
    o.log = count_hook_log;
    o.max_wait_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "a", 1);
    OK(&q, delayq_take(&q, &item, 5000));
    pid = spawn(be_pushed, NULL);
    OK(&q, delayq_take(&q, &item, 20000));
    join(pid);
    CHECK_INT(hook_logs, 0);
    delayq_close(&q);
}

/* --- signals ------------------------------------------------------------- */

static redisContext *plain_hook(void *user, int timeout_ms) {
    redisContext *c = redisConnectUnix(main_server.socket);
    (void)user, (void)timeout_ms;
    return c;
}

static int sigpipe_is_pending(void) {
    sigset_t set;
    sigpending(&set);
    return sigismember(&set, SIGPIPE);
}

#ifdef DELAYQ_VERSION_MAJOR
#define COMMANDS(q) (q)->conn->cmd.c
#else /* 0.1 */
#define COMMANDS(q) (q)->link.cmd
#endif

/* Each write on a half-closed connection raises SIGPIPE. */
static void offer_into_a_broken_pipe(delayq *q, size_t len) {
    static char large[100000];
    OFFER(q, "x", 60000);
    shutdown(COMMANDS(q)->fd, SHUT_WR);
    delayq_offer(q, large, len, 60000);
    UNTIL(delayq_offer(q, large, len, 60000) == DELAYQ_OK);
}

/* delayq itself writes small requests, hiredis writes large ones, and OpenSSL
 * perhaps those on a hook's socket. */
static void keep_a_sigpipe_pending(int with_hook, size_t len) {
    delayq_options o = options_for(&main_server, "jobs");
    sigset_t set;
    delayq q = {0};
    if (with_hook) o.connect = plain_hook;
    OK(&q, delayq_open(&q, &o));
    offer_into_a_broken_pipe(&q, len); /* the program survives */
    sigemptyset(&set);
    sigaddset(&set, SIGPIPE);
    sigprocmask(SIG_BLOCK, &set, NULL);
    offer_into_a_broken_pipe(&q, len);
    CHECK(!sigpipe_is_pending());
    raise(SIGPIPE);
    CHECK(sigpipe_is_pending());
    offer_into_a_broken_pipe(&q, len);
    CHECK(sigpipe_is_pending());
    delayq_close(&q);
}

TEST(a_sigpipe_that_the_program_keeps_pending_stays_so_and_none_is_added) {
    keep_a_sigpipe_pending(0, 1);
}

TEST(nor_is_one_added_by_a_large_request) {
    keep_a_sigpipe_pending(0, 100000);
}

TEST(nor_is_one_added_on_a_socket_of_a_connect_hook) {
    keep_a_sigpipe_pending(1, 1);
}
