/*
 * The recipes. They are built unchanged, except for shorter times, and run on a
 * real server. They must do what their text says. tests/recipes.sh copies them
 * from README.md and examples/README.md into the files piece-*.h, which this
 * file includes.
 */
#define DELAYQ_IMPLEMENTATION
#include "../test.h"
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"

/* Definitions that the recipes need. */
static delayq q;
static delayq_item item;
static delayq_options options;

/* The recipes print items. Here the items are recorded in the list "seen", and
 * the list "late" says whether their lateness is known. */
static redisContext *told;
static int last; /* the process ends after this number of items */
static int took(int len, const char *data) {
    static int n;
    redisReply *r;
    if (!told) told = server_connect(&main_server);
    r = run(told, "RPUSH seen %b", data, (size_t)len);
    freeReplyObject(r);
    r = run(told, "RPUSH late %s", item.late_us >= 0 ? "known" : "unknown");
    freeReplyObject(r);
    if (++n == last) exit(0);
    return len;
}
#define printf(format, len, data) took(len, data)

static void options_as_given(const char *name) {
    options = options_for(&main_server, name);
}

static void add_outbox(void) {
    static char memory[8192];
    options.outbox = memory;
    options.outbox_size = sizeof memory;
}

static const char *seen(int i) {
    return ask("LINDEX seen %d", i);
}
#define UNTIL_SEEN(n) UNTIL(ask_int("LLEN seen") >= (n))

/* --- never wait: an outbox ----------------------------------------------- */

static void outbox(void){
#include "piece-outbox.h"
}

TEST(the_outbox_recipe_stores_its_offer_before_it_closes) {
    options_as_given("jobs");
    outbox();
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
}

/* --- a game loop --------------------------------------------------------- */

static int orcs; /* orcs that die in the next frames, one in each frame */
static int dice(void) {
    return orcs > 0 ? 60 * orcs-- : 1;
}

static void game_frame(void) {
#define rand dice
#include "piece-game.h"
#undef rand
}

/* Returns the number of commands that the server has received. */
static long long commands(void) {
    return atoll(strstr(ask("INFO stats"), "commands_processed:") + 19);
}

TEST(a_frame_of_the_game_loop_sends_nothing_while_nothing_is_due) {
    delayq other;
    long long before;
    int i;
    options_as_given("jobs");
    add_outbox();
    open_queue(&other, "jobs");
    OK(&q, delayq_open(&q, &options));
    OFFER(&other, "first", 0);
    UNTIL((game_frame(), ask_int("LLEN seen") == 1));
    for (i = 0; i < 100; i++, usleep(1000)) game_frame();
    before = commands();
    for (i = 0; i < 300; i++, usleep(1000)) game_frame();
    before = commands() - before;
    if (before > 5) FAIL("300 frames sent %lld commands", before);
    OFFER(&other, "soon", 50);
    UNTIL((game_frame(), ask_int("LLEN seen") == 2));
    ask("RPUSH jobs pushed");
    UNTIL((game_frame(), ask_int("LLEN seen") == 3));
    orcs = 1;
    UNTIL((game_frame(), ask_int("LLEN seen") == 4));
    CHECK_TEXT(seen(1), "soon");
    CHECK_TEXT(seen(2), "pushed");
    CHECK_TEXT(seen(3), "orc");
    delayq_close(&q);
    delayq_close(&other);
}

TEST(the_game_loop_takes_many_items_in_few_frames) {
    delayq other;
    delayq_message m[500];
    int i, frames = 0;
    memset(m, 0, sizeof m);
    for (i = 0; i < 500; i++) m[i].data = "x", m[i].len = 1;
    options_as_given("jobs");
    add_outbox();
    open_queue(&other, "jobs");
    OK(&q, delayq_open(&q, &options));
    OFFER(&other, "first", 0);
    UNTIL((game_frame(), ask_int("LLEN seen") == 1));
    OK(&other, delayq_offer_many(&other, m, 500));
    UNTIL((game_frame(), frames++, ask_int("LLEN seen") == 501));
    if (frames > 200) FAIL("%d frames for 500 items", frames);
    delayq_close(&q);
    delayq_close(&other);
}

TEST(no_frame_of_the_game_loop_waits_for_a_frozen_server) {
    server s;
    long long end, longest = 0;
    server_start(&s, NULL);
    options_as_given("jobs");
    options.url = s.url;
    add_outbox();
    OK(&q, delayq_open(&q, &options));
    orcs = 1;
    UNTIL((game_frame(), ask_int("LLEN seen") == 1));
    server_kill(&s, SIGSTOP);
    orcs = 10;
    for (end = now_us() + 1000000; now_us() < end; usleep(16000)) {
        long long began = now_us();
        game_frame();
        if (now_us() - began > longest) longest = now_us() - began;
    }
    server_kill(&s, SIGCONT);
    /* A frame that waits for a reply would last for io_timeout_ms, 3 s. */
    if (longest > 2000000) FAIL("a frame took %lld us", longest);
    UNTIL((game_frame(), ask_int("LLEN seen") == 11));
    delayq_close(&q);
    server_end(&s);
}

/* --- a device that sleeps between ticks ---------------------------------- */

static void device_turn(void) {
#include "piece-device.h"
}

/* Run a loop that polls by itself only once an hour. */
static void device(void *with_outbox) {
    options_as_given("jobs");
    options.max_wait_ms = 3600000;
    if (with_outbox) add_outbox();
    OK(&q, delayq_open(&q, &options));
    told = server_connect(&main_server);
    for (;;) {
        freeReplyObject(run(told, "INCR rounds"));
        device_turn();
    }
}

/* Wait until the loop has nothing to do, and most likely sleeps. */
static void let_it_sleep(void) {
    long long rounds;
    do {
        rounds = ask_int("GET rounds");
        usleep(50000);
    } while (ask_int("GET rounds") != rounds);
}

static void push(const char *text, int count) {
    let_it_sleep();
    ask("RPUSH jobs %s", text);
    UNTIL_SEEN(count);
    CHECK_TEXT(seen(count - 1), text);
}

static void notices_each_push(void *with_outbox) {
    delayq other;
    pid_t child;
    int round, n = 0;
    if (main_server.major < 6) test_skip("before Redis 6 pushes aren't told");
    ask("SET rounds 0");
    open_queue(&other, "jobs");
    child = spawn(device, with_outbox);
    UNTIL(ask_int("GET rounds") > 0);
    let_it_sleep();
    for (round = 0; round < 3; round++) {
        let_it_sleep();
        OFFER(&other, "at once", 0);
        n++;
        UNTIL_SEEN(n);
        push("pushed", ++n);
        push("and again", ++n);
        let_it_sleep();
        OFFER(&other, "moved", 0); /* another handle moves this item */
        usleep(1500);
        while (ask_int("LLEN seen") == n) OK(&other, delayq_tick(&other, NULL));
        push("behind it", n += 2);
        let_it_sleep();
        OFFER(&other, "later", 30);
        n++;
        UNTIL_SEEN(n);
        push("behind that", ++n);
    }
    /* If the server sends nothing, the loop pings it after 10 s, and would then
     * find a push that it was not notified of. */
    if (strstr(ask("INFO commandstats"), "cmdstat_ping:"))
        FAIL("a push was not seen before the next ping");
    let_it_sleep();
    /* Each item takes two or three rounds, not hundreds. */
    if (ask_int("GET rounds") > 10 * n)
        FAIL("%lld rounds for %d items", ask_int("GET rounds"), n);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    delayq_close(&other);
}

TEST(the_device_loop_notices_each_push_at_once) {
    notices_each_push(NULL);
}

TEST(the_device_loop_with_an_outbox_notices_each_push_at_once) {
    notices_each_push(&q);
}

static void knows_how_late(void *with_outbox) {
    delayq other;
    pid_t child;
    int i;
    ask("SET rounds 0");
    open_queue(&other, "jobs");
    child = spawn(device, with_outbox);
    UNTIL(ask_int("GET rounds") > 0);
    let_it_sleep();
    for (i = 0; i < 20; i++) {
        OFFER(&other, "due", 10);
        UNTIL_SEEN(i + 1);
    }
    /* The lateness is unknown if the tick has moved the item. */
    if (ask_int("EVAL %s 0",
                "local n = 0\n"
                "for _, t in ipairs(redis.call('LRANGE', 'late', 0, -1)) do\n"
                "  if t == 'known' then n = n + 1 end\n"
                "end\n"
                "return n") < 10)
        FAIL("of most items it is unknown how late they are");
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    delayq_close(&other);
}

TEST(the_device_loop_knows_how_late_what_it_takes_is) {
    knows_how_late(NULL);
}

TEST(the_device_loop_with_an_outbox_knows_how_late_what_it_takes_is) {
    knows_how_late(&q);
}

/* --- a tool like cron ---------------------------------------------------- */

#define MINUTE 2000 /* ms of a short minute, as in recipes.sh */

/* Start a machine, tests/recipes/cron.c, whose clock is ahead_s seconds
 * ahead. */
static pid_t machine(const char *name, long long ahead_s) {
    char file[140];
    int64_t us = ahead_s * 1000000;
    pid_t pid;
    FILE *f;
    snprintf(file, sizeof file, "%s/clock-%s", main_server.dir, name);
    f = fopen(file, "wb");
    if (!f || fwrite(&us, sizeof us, 1, f) != 1 || fclose(f) != 0)
        FAIL("can't write %s", file);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        setenv("DELAYQ_URL", main_server.url, 1);
        setenv("SETTIME", file, 1);
        setenv("LD_PRELOAD", getenv("RECIPES_CLOCK"), 1);
        execl(getenv("RECIPES_CRON"), "cron", name, (char *)NULL);
        _exit(127);
    }
    UNTIL(ask_int("EXISTS ahead:%s", name) == 1);
    return pid;
}

/* Returns the number of minutes that were stored, are over, and were run.
 * Returns 0 if one of them was not run, -1 if one was run twice, -2 if one was
 * run and had not been stored. */
static const char judge[] =
    "local runs, stored, n = {}, {}, 0\n"
    "local t = redis.call('TIME')\n"
    "local now = t[1] * 1000 + t[2] / 1000\n"
    "for _, m in ipairs(redis.call('LRANGE', 'runs', 0, -1)) do\n"
    "  if runs[m] then return -1 end\n"
    "  runs[m] = 1\n"
    "end\n"
    "for _, ms in ipairs(redis.call('LRANGE', 'rounds', 0, -1)) do\n"
    "  local m = (math.floor(ms / ARGV[1]) + 1) * ARGV[1]\n"
    "  stored[string.format('report-%.0f', m)] = m\n"
    "end\n"
    "for m, ms in pairs(stored) do\n"
    "  if ms < now then\n"
    "    if not runs[m] then return 0 end\n"
    "    n = n + 1\n"
    "  end\n"
    "end\n"
    "for m in pairs(runs) do if not stored[m] then return -2 end end\n"
    "return n\n";

TEST(cron_runs_each_minute_once_by_the_servers_clock_though_a_machine_dies) {
    pid_t fast, slow, dies;
    long long n = 0;
    char lost[64];
    fast = machine("fast", 90);
    slow = machine("slow", 0);
    CHECK(ask_int("GET ahead:fast") - ask_int("GET ahead:slow") > 85);
    kill(fast, SIGSTOP); /* so that the third machine takes the run */
    kill(slow, SIGSTOP);
    dies = machine("dies", -90);
    CHECK(waitpid(dies, NULL, 0) == dies);
    kill(fast, SIGCONT);
    kill(slow, SIGCONT);
    snprintf(lost, sizeof lost, "%s", ask("GET lost"));
    CHECK_HAS(lost, "report-");
    UNTIL((n = ask_int("EVAL %s 0 %d", judge, MINUTE)) < 0 || n >= 5);
    if (n == -1) FAIL("a minute was run twice");
    if (n == -2) FAIL("a minute was run that was not stored");
    /* Another machine did the dead machine's run, as a second attempt. */
    CHECK_INT(ask_int("HGET attempts %s", lost), 2);
    kill(fast, SIGKILL);
    kill(slow, SIGKILL);
    waitpid(fast, NULL, 0);
    waitpid(slow, NULL, 0);
}

/* --- a pool of worker processes ------------------------------------------ */

static pid_t pool[8];
static int pooled;

static pid_t forked(void) {
    pid_t pid = fork();
    if (pid == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
    pool[pooled++] = pid;
    return pid;
}

/* Take an item. Kill the process at the first attempt of the item "deadly". */
static delayq_status worked(delayq *w, delayq_item *i, int64_t timeout_ms) {
    delayq_status status = delayq_ack_take(w, i, timeout_ms);
    if (status != DELAYQ_OK) return status;
    if (i->len == 6 && i->attempt == 1) kill(getpid(), SIGKILL);
    took((int)i->len, (const char *)i->data);
    return status;
}

static void start_pool(void){
#define fork forked
#define delayq_ack_take worked
#include "piece-pool.h"
#undef fork
#undef delayq_ack_take
}

TEST(items_that_a_worker_does_not_ack_come_again_or_become_dead_letters) {
    delayq other;
    delayq_dead dead;
    delayq_counts counts;
    size_t n;
    int i;
    options_as_given("jobs");
    options.backoff_ms = 20;
    start_pool();
    CHECK_INT(pooled, 8);
    open_queue(&other, "jobs");
    OFFER(&other, "deadly", 0);
    OFFER(&other, "", 0); /* the payload "" means "cannot do it now" */
    for (i = 0; i < 20; i++) OFFER(&other, "job", 0);
    UNTIL((delayq_count(&other, &counts) == DELAYQ_OK &&
           counts.pending + counts.ready == 0 && counts.dead == 1));
    OK(&other, delayq_dead_peek(&other, &dead, 1, &n, 0));
    CHECK_TEXT(dead.reason, "attempts");
    CHECK_INT(dead.attempt, 5);
    /* 20 jobs, "deadly" once, and "" at 5 attempts */
    CHECK_INT(ask_int("LLEN seen"), 20 + 1 + 5);
    n = 0;
    for (i = 0; i < 8; i++) n += waitpid(pool[i], NULL, WNOHANG) == pool[i];
    CHECK_INT(n, 1); /* one worker has killed itself */
    for (i = 0; i < 8; i++) kill(pool[i], SIGKILL);
    while (wait(NULL) > 0) {
    }
    delayq_close(&other);
}

/* --- a Java service on the other side ------------------------------------ */

static void java_c(void){
#include "piece-java.h"
}

/* The C part, with the bytes that Redisson writes and reads. `make interop`
 * uses the real Redisson. */
TEST(the_c_part_beside_java_writes_and_takes_redissons_bytes) {
    unsigned char want[64], hello[64];
    size_t n, hello_len;
    redisReply *r;
    long long due;
    options_as_given("");
    java_c();
    n = element(want, 16, 8, "0123456789abcdef", "hello", 5);
    r = run(main_connection(), "ZRANGE " ZSET " 0 -1");
    CHECK_INT(r->elements, 1);
    CHECK_INT(r->element[0]->len, n);
    CHECK(memcmp(r->element[0]->str, want, 1) == 0);
    CHECK(memcmp(r->element[0]->str + 17, want + 17, n - 17) == 0);
    due = atoll(ask("ZSCORE " ZSET " %b", r->element[0]->str, n));
    CHECK(due > 1600000000000);
    CHECK_INT(ask_int("LREM " MIRROR " 1 %b", r->element[0]->str, n), 1);
    ask("RPUSH " MIRROR " %b", r->element[0]->str, n);
    CHECK(n <= sizeof hello);
    memcpy(hello, r->element[0]->str, n);
    hello_len = n;
    freeReplyObject(r);
    /* Store Java's offer in Redisson's bytes, and then a moved item, which is a
     * bare payload. */
    n = element(want, 8, 8, "01234567", "world", 5);
    ask("ZADD " ZSET " 5 %b", want, n);
    ask("RPUSH " MIRROR " %b", want, n);
    ask("PUBLISH redisson_delay_queue_channel:{jobs} 5");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK(item.len == 5 && memcmp(item.data, "world", 5) == 0);
    ask("RPUSH jobs moved");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK(item.len == 5 && memcmp(item.data, "moved", 5) == 0);
    CHECK_INT(ask_int("LLEN " MIRROR), 1);
    ask("ZADD " ZSET " XX 5 %b", hello, hello_len);
    ask("PUBLISH redisson_delay_queue_channel:{jobs} 5");
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK(item.len == 5 && memcmp(item.data, "hello", 5) == 0);
    CHECK_INT(ask_int("LLEN " MIRROR), 0);
    delayq_close(&q);
}

/* --- a cluster ----------------------------------------------------------- */

static void cluster(void *unused) {
    (void)unused;
#include "piece-cluster.h"
}

TEST(the_shards_of_a_cluster_lie_on_several_nodes_and_all_are_taken_from) {
    static delayq one[8];
    const char *url = getenv("RECIPES_CLUSTER");
    int i, k, nodes = 0;
    pid_t child;
    if (!url) test_skip("no cluster: redis-cli is missing, or RECIPES_CLUSTER");
    memset(&options, 0, sizeof options);
    options.io_timeout_ms = 3000;
    last = 9; /* "hello", and one item from each of 8 queues */
    child = spawn(cluster, NULL);
    for (i = 0; i < 8; i++) {
        char name[32];
        delayq_options o = options;
        snprintf(name, sizeof name, "jobs{%d}", i);
        o.url = url;
        o.name = name;
        OK(&one[i], delayq_open(&one[i], &o));
        OFFER(&one[i], name, 20);
        for (k = 0; k < i; k++)
            if (one[k].conn->at.port == one[i].conn->at.port) break;
        nodes += k == i;
    }
    join(child);
    if (nodes < 2) FAIL("all 8 lie on one node");
    for (i = 0; i < 8; i++) delayq_close(&one[i]);
}

/* --- two priorities ------------------------------------------------------ */

static void open_as(delayq *handle, const char *name) {
    options_as_given(name);
    OK(handle, delayq_open(handle, &options));
}

static void priorities(void *unused) {
    (void)unused;
    open_as(&q, "jobs");
#include "piece-priorities.h"
}

TEST(urgent_items_are_taken_first) {
    delayq urgent, jobs;
    pid_t child;
    int i;
    open_queue(&jobs, "jobs");
    open_queue(&urgent, "urgent");
    for (i = 0; i < 5; i++) OFFER(&jobs, "job", 0);
    for (i = 0; i < 5; i++) OFFER(&urgent, "urgent", 0);
    last = 12;
    child = spawn(priorities, NULL);
    UNTIL_SEEN(10);
    for (i = 0; i < 10; i++) CHECK_TEXT(seen(i), i < 5 ? "urgent" : "job");
    OFFER(&jobs, "one more", 20); /* the loop waits for both queues */
    UNTIL_SEEN(11);
    OFFER(&urgent, "another", 20);
    join(child);
    CHECK_TEXT(seen(10), "one more");
    CHECK_TEXT(seen(11), "another");
    delayq_close(&jobs);
    delayq_close(&urgent);
}

/* --- an offer without an answer ------------------------------------------ */

static void thaw_later(void *unused) {
    (void)unused;
    usleep(2500000);
    server_kill(&main_server, SIGCONT);
}

TEST(an_offer_that_gets_no_answer_is_offered_again_and_stored_once) {
    pid_t pid;
    options_as_given("jobs");
    options.io_timeout_ms = 1000;
    OK(&q, delayq_open(&q, &options));
    server_kill(&main_server, SIGSTOP);
    pid = spawn(thaw_later, NULL);
    {
#include "piece-unanswered.h"
        OK(&q, m.status);
    }
    join(pid);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    delayq_close(&q);
}

/* --- unique until it is done --------------------------------------------- */

TEST(an_item_is_stored_again_once_the_recipe_has_done_it) {
    int i;
    options_as_given("jobs");
    options.lease_ms = 60000;
    OK(&q, delayq_open(&q, &options));
    for (i = 0; i < 3; i++) {
#include "piece-unique.h"
        OK(&q, m.status);
        CHECK_INT(ask_int("EXISTS delayq_once:{jobs}:6:user42"), 0);
    }
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    delayq_close(&q);
}

/* --- more: tickets, keys, times, batches --------------------------------- */

TEST(tickets_keys_times_and_batches_do_what_the_comments_say) {
    delayq_item found[3];
    size_t n;
    int i;
    open_as(&q, "jobs");
    for (i = 0; i < 2; i++) {
#include "piece-more.h"
        OK(&q, m[0].status);
        CHECK_INT(m[1].status, i == 0 ? DELAYQ_OK : DELAYQ_DUPLICATE);
        CHECK_STATUS(&q, delayq_cancel(&q, &m[0].ticket), DELAYQ_GONE);
        OK(&q, delayq_peek(&q, found, 3, &n, NULL));
        CHECK_INT(n, 1); /* "a" was cancelled, and "b" is stored once */
        CHECK_INT(found[0].due_ms, 1900000000000);
        CHECK(found[0].len == 1 && memcmp(found[0].data, "b", 1) == 0);
    }
    delayq_close(&q);
}
