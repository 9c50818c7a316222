/*
 * An outbox that survives the program. The next program that opens the memory
 * does each accepted op once, in order. If the image is damaged or has another
 * owner, open refuses it, and reports the reason. outbox_cut.c tests cut and
 * torn images, and outbox_kill.c tests killed programs.
 */
#include "outbox.h"
#include <sys/mman.h>
#include <sys/wait.h>

static delayq q;
static delayq_item items[3], one;

/* --- images --------------------------------------------------------------- */

static delayq_options keep_options(const char *url, void *memory, size_t size) {
    delayq_options o = options_for(&main_server, "jobs");
    if (url) o.url = url;
    o.outbox = memory;
    o.outbox_size = size;
    o.outbox_keep = DELAYQ_KEEP;
    o.reconnect_max_ms = 20;
    return o;
}

#define NOWHERE "unix:///nonexistent/delayq"

/* Open q on an image. `url` is NOWHERE, or NULL for the main server. */
static void open_image(const char *url, void *memory, int64_t lease_ms) {
    delayq_options o = keep_options(url, memory, BOX);
    o.lease_ms = lease_ms;
    OK(&q, delayq_open(&q, &o));
}

/* End the handle as a kill ends a program: no store of its close reaches the
 * image or the disk. Clear the last 2,048 bytes, which mark the image as in use
 * by this process, because the next program is another process. */
static int dying;
static void die(delayq *handle) {
    static char image[BOX];
    void *memory = handle->options.outbox;
    size_t size = handle->options.outbox_size;
    memcpy(image, memory, size);
    dying = 1;
    delayq_close(handle);
    dying = 0;
    memcpy(memory, image, size);
    memset((char *)memory + size - 2048, 0, 2048);
}

/* Make turns until the handle has connected and probed its queue. */
static void connect_to_server(delayq *handle) {
    UNTIL(turn(handle) == DELAYQ_OK && handle->probed);
}

/* Settle all ops, close q, and check that `items` items are then pending. */
#define SETTLE_AND_LEAVE(items)                   \
    do {                                          \
        SETTLE(&q);                               \
        delayq_close(&q);                         \
        CHECK_INT(ask_int("ZCARD " ZSET), items); \
    } while (0)

static const char *ready_item(int i) {
    return ask("LINDEX jobs %d", i);
}

static void move_due(void) {
    delayq mover;
    open_queue(&mover, "jobs");
    elapse(main_connection(), 1);
    poll_now(&mover);
    OK(&mover, delayq_tick(&mover, NULL));
    delayq_close(&mover);
}

static delayq_message keyed(const char *text, const char *key) {
    delayq_message m = message(text, 0);
    m.key = key;
    m.key_ttl_ms = 60000;
    return m;
}

/* --- accepted ops are done ------------------------------------------------ */

TEST(an_outbox_goes_on_with_the_ops_of_an_earlier_program) {
    char *image = (char *)shared(BOX);
    delayq_message m = keyed("b", "k");
    open_image(NOWHERE, image, 0);
    OFFER(&q, "a", 0);
    OK(&q, delayq_offer_message(&q, &m));
    OFFER(&q, "c", 0);
    OK(&q, delayq_cancel_key(&q, "other"));
    CHECK_INT(box(&q).offers_accepted, 4);
    die(&q);
    open_image(NULL, image, 0);
    CHECK_INT(box(&q).offers_accepted, 4);
    CHECK_INT(box(&q).offers_settled, 0);
    OFFER(&q, "d", 0);
    SETTLE(&q);
    CHECK_INT(box(&q).offers_settled, 5);
    CHECK_INT(ask_int("EXISTS delayq_once:{jobs}:1:k"), 1);
    delayq_close(&q);
    move_due();
    CHECK_INT(ask_int("LLEN jobs"), 4);
    CHECK_TEXT(ready_item(0), "a");
    CHECK_TEXT(ready_item(1), "b");
    CHECK_TEXT(ready_item(2), "c");
    CHECK_TEXT(ready_item(3), "d");
    open_image(NULL, image, 0); /* nothing is left in the image */
    CHECK_INT(box(&q).offers_settled, 5);
    SETTLE(&q);
    CHECK_INT(box(&q).offers_accepted, 5);
    delayq_close(&q);
    CHECK_INT(ask_int("LLEN jobs"), 4);
}

static int is_stopped(pid_t pid) {
    char path[64], state = 0;
    FILE *f;
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (!f) return 0;
    if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1) state = 0;
    fclose(f);
    return state == 'T';
}

static pid_t freeze_and_die(char *image, void (*work)(delayq *)) {
    pid_t pid = fork();
    int status;
    if (pid == 0) {
        open_image(NULL, image, 60000);
        connect_to_server(&q);
        /* Read all replies first. If the program died before that, its socket
         * would be reset, and the server would drop the later requests. */
        UNTIL(turn(&q) == DELAYQ_OK && !q.conn->cmd.first);
        kill(main_server.pid, SIGSTOP);
        UNTIL(is_stopped(main_server.pid));
        turn(&q);
        work(&q);
        turn(&q); /* sends the op, which gets no reply */
        turn(&q);
        kill(getpid(), SIGKILL);
    }
    waitpid(pid, &status, 0);
    kill(main_server.pid, SIGCONT);
    return pid;
}

static void offer_two(delayq *handle) {
    OFFER(handle, "a", 60000);
    OFFER(handle, "b", 60000);
}

TEST(an_offer_whose_program_has_died_before_the_reply_is_stored_once) {
    char *image = (char *)shared(BOX);
    open_image(NULL, image, 0);
    OFFER(&q, "first", 60000);
    SETTLE(&q);
    delayq_close(&q);
    freeze_and_die(image, offer_two);
    /* until the server has run the first of the two offers */
    UNTIL(ask_int("ZCARD " ZSET) == 2);
    open_image(NULL, image, 0);
    CHECK_INT(box(&q).offers_accepted - box(&q).offers_settled, 2);
    OFFER(&q, "c", 60000);
    SETTLE_AND_LEAVE(4);
}

static delayq_status last_status[2][16];
static uint64_t last_number[2];
static void on_settled(void *user, int changes, uint64_t number,
                       delayq_status status) {
    (void)user;
    CHECK(last_number[changes] == 0 || number == last_number[changes] + 1);
    last_number[changes] = number;
    last_status[changes][number % 16] = status;
}

static void ack_it(delayq *handle) {
    OK(handle, delayq_ack(handle, &one));
}

TEST(an_ack_whose_program_has_died_before_the_reply_is_done) {
    char *image = (char *)shared(BOX);
    delayq plain;
    delayq_options o;
    open_queue(&plain, "jobs");
    OFFER(&plain, "a", 0);
    o = options_for(&main_server, "jobs");
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_take(&q, &one, 5000));
    delayq_close(&q);
    freeze_and_die(image, ack_it);
    UNTIL(ask_int("ZCARD " ZSET) == 0);
    o = keep_options(NULL, image, BOX);
    o.settled = on_settled;
    OK(&q, delayq_open(&q, &o));
    SETTLE(&q);
    CHECK_INT(last_number[1], 1);
    /* the first program had sent the ack, and the server had run it */
    CHECK_INT(last_status[1][1], DELAYQ_OK);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
    delayq_close(&plain);
}

TEST(acks_and_nacks_survive_and_are_gone_if_the_lease_has_ended_meanwhile) {
    char *image = (char *)shared(BOX);
    delayq_options o = options_for(&main_server, "jobs");
    size_t n;
    int i;
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (i = 0; i < 3; i++) OFFER(&q, i == 0 ? "a" : i == 1 ? "b" : "c", 0);
    elapse(main_connection(), 1);
    OK(&q, delayq_take_many(&q, items, 3, &n, 5000));
    CHECK_INT(n, 3);
    delayq_close(&q);
    open_image(NOWHERE, image, 60000);
    OK(&q, delayq_ack(&q, &items[0]));
    OK(&q, delayq_nack(&q, &items[1], 3600000));
    OK(&q, delayq_bury(&q, &items[2], "no use"));
    OK(&q, delayq_ack(&q, &items[2])); /* the item will be gone */
    die(&q);
    o = keep_options(NULL, image, BOX);
    o.settled = on_settled;
    OK(&q, delayq_open(&q, &o));
    SETTLE(&q);
    CHECK_INT(last_number[1], 4);
    CHECK_INT(last_status[1][1], DELAYQ_OK);
    CHECK_INT(last_status[1][2], DELAYQ_OK);
    CHECK_INT(last_status[1][3], DELAYQ_OK);
    CHECK_INT(last_status[1][4], DELAYQ_GONE);
    CHECK_INT(box(&q).gone, 1);
    CHECK_INT(box(&q).changes_settled, 4);
    delayq_close(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
    CHECK(only_due(main_connection()) >
          server_us(main_connection()) / 1000 + 3000000);
    CHECK_INT(ask_int("LLEN delayq_dead:{jobs}"), 1);
    CHECK_HAS(ask("LINDEX delayq_dead:{jobs} 0"), " no use\n");
}

/* A handle gives fetched items back if their lease ends before the program has
 * taken them. The ops that give them back are counted in no life of the
 * program, neither while they wait nor after they are settled. */
TEST(what_a_handle_gives_back_by_itself_is_counted_in_no_life) {
    char *image = (char *)shared(BOX);
    int lease_ms = 200 * test_slow(), i;
    delayq_options o;
    size_t n;
    delayq plain;
    open_queue(&plain, "jobs");
    for (i = 0; i < 30; i++) OFFER(&plain, "x", 0);
    open_image(NULL, image, lease_ms);
    UNTIL(took(&q, &one));
    OK(&q, delayq_ack(&q, &one)); /* from now on q gives items back */
    SETTLE(&q);
    while (delayq_take_many(&q, items, 3, &n, 0) == DELAYQ_OK) continue;
    UNTIL((turn(&q), q.fetch.reply != NULL));
    usleep((useconds_t)(lease_ms + 50) * 1000);
    CHECK_STATUS(&q, delayq_take_many(&q, items, 3, &n, 0), DELAYQ_EMPTY);
    CHECK(box(&q).bytes > 0);
    CHECK_INT(box(&q).changes_accepted, 1);
    die(&q);
    for (i = 0; i < 3; i++) {
        open_image(i == 1 ? NULL : NOWHERE, image, lease_ms);
        CHECK_INT(box(&q).changes_accepted, 1);
        CHECK_INT(box(&q).changes_settled, 1);
        if (i == 0) CHECK(box(&q).bytes > 0);
        if (i == 1) UNTIL((turn(&q), box(&q).bytes == 0));
        die(&q);
    }
    o = keep_options(NULL, image, BOX);
    o.lease_ms = lease_ms;
    o.settled = on_settled;
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_ack(&q, &one));
    SETTLE(&q);
    CHECK_INT(last_number[1], 2);
    CHECK_INT(last_status[1][2], DELAYQ_GONE);
    delayq_close(&q);
    delayq_close(&plain);
}

/* Open q, wait until it knows the server's clock, and kill the server. */
static server own;
static void open_then_lose_server(char *image) {
    delayq_options o;
    server_start(&own, NULL);
    o = keep_options(own.url, image, BOX);
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    connect_to_server(&q);
    server_kill(&own, SIGKILL);
    UNTIL(turn(&q) == DELAYQ_ERR_IO);
}

TEST(a_due_time_stands_if_the_servers_clock_was_known_at_the_call) {
    char *image = (char *)shared(BOX);
    int64_t from, to, due;
    open_then_lose_server(image);
    from = server_us(main_connection()) / 1000;
    OFFER(&q, "a", 60000);
    to = server_us(main_connection()) / 1000 + 1;
    die(&q);
    usleep(50000);
    open_image(NULL, image, 0);
    SETTLE(&q);
    delayq_close(&q);
    due = only_due(main_connection()) - 60000;
    CHECK(due >= from);
    if (due > to + 40) /* 50 ms passed between the call and the resume */
        FAIL("due %lld ms after the call", (long long)(due - to));
    server_end(&own);
}

TEST(a_delay_counts_from_the_resume_if_no_clock_was_known) {
    char *image = (char *)shared(BOX);
    int64_t from;
    open_image(NOWHERE, image, 0);
    OFFER(&q, "a", 60000);
    die(&q);
    usleep(50000);
    from = server_us(main_connection()) / 1000;
    open_image(NULL, image, 0);
    SETTLE(&q);
    delayq_close(&q);
    CHECK(only_due(main_connection()) >= from + 60000);
}

TEST(an_offer_from_before_the_first_connect_stays_the_first_one) {
    const char *const replica[] = {"--replicaof", "127.0.0.1", "1", NULL};
    const char *const texts[] = {"a", "b", "c"};
    delayq_options o;
    redisContext *c;
    redisReply *r;
    unsigned known;
    int i;
    server_start(&own, replica);
    o = keep_options(own.url, shared(BOX), BOX);
    OK(&q, delayq_open(&q, &o));
    c = server_connect(&own);
    for (i = 0; i < 3; i++) {
        OFFER(&q, texts[i], 60000);
        UNTIL((turn(&q), q.conn->clock_number > 0));
        elapse(c, 2);
    }
    known = q.conn->clock_number;
    UNTIL((turn(&q), q.conn->clock_number > known)); /* all get new due times */
    freeReplyObject(run(c, "REPLICAOF NO ONE"));
    SETTLE(&q);
    r = run(c, "ZRANGE " ZSET " 0 -1");
    CHECK_INT(r->elements, 3);
    for (i = 0; i < 3; i++)
        CHECK(r->element[i]->str[r->element[i]->len - 1] == *texts[i]);
    freeReplyObject(r);
    redisFree(c);
    delayq_close(&q);
    server_end(&own);
}

TEST(a_ticket_of_an_earlier_life_cancels_and_reschedules) {
    char *image = (char *)shared(BOX);
    delayq_message m[3];
    int i;
    open_then_lose_server(image);
    for (i = 0; i < 3; i++) {
        m[i] = message(i == 0 ? "a" : i == 1 ? "b" : "c", 60000);
        OK(&q, delayq_offer_message(&q, &m[i]));
        CHECK(m[i].ticket.text[0] != '\0');
    }
    OK(&q, delayq_cancel(&q, &m[0].ticket));
    die(&q);
    open_image(NULL, image, 0);
    connect_to_server(&q);
    OK(&q, delayq_cancel(&q, &m[1].ticket));
    OK(&q, delayq_reschedule(&q, &m[2].ticket, 3600000));
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
    CHECK(only_due(main_connection()) >
          server_us(main_connection()) / 1000 + 3000000);
    server_end(&own);
}

/* Items that are due in the same millisecond are sorted by their ids. */
TEST(ids_stay_above_those_of_earlier_lives) {
    char *image = (char *)shared(BOX);
    delayq_message m;
    char before[52] = "";
    int life, i;
    for (life = 0; life < 5; life++) {
        open_image(NULL, image, 0);
        connect_to_server(&q);
        for (i = 0; i < 20; i++) {
            m = message("x", 0);
            m.due_ms = 4000000000000;
            OK(&q, delayq_offer_message(&q, &m));
            CHECK(strcmp(before, m.ticket.text) < 0);
            memcpy(before, m.ticket.text, sizeof before);
            if (i == 10) SETTLE(&q);
        }
        die(&q);
    }
    open_image(NULL, image, 0);
    SETTLE_AND_LEAVE(100);
}

/* The server's clock is ahead by one second in the first life, and not in the
 * second. Yet the ids and due times of the second life are higher. The image
 * contains the ops of the first life or, if `settles` is 1, only marks. */
static void go_on_with_a_slower_clock(int settles) {
    char *image = (char *)shared(BOX);
    delayq_message fixed[2], delayed[2];
    int life;
    server_start_with_clock(&own);
    server_set_clock(1);
    for (life = 0; life < 2; life++) {
        open_image(own.url, image, 0);
        connect_to_server(&q);
        fixed[life] = message("x", 0);
        fixed[life].due_ms = 4000000000000;
        delayed[life] = message("y", 60000);
        OK(&q, delayq_offer_message(&q, &fixed[life]));
        OK(&q, delayq_offer_message(&q, &delayed[life]));
        if (settles) SETTLE(&q);
        die(&q);
        server_set_clock(0);
    }
    CHECK(strcmp(fixed[0].ticket.text, fixed[1].ticket.text) < 0);
    CHECK(strcmp(delayed[0].ticket.text, delayed[1].ticket.text) < 0);
    server_end(&own);
}

TEST(ids_and_due_times_go_on_if_the_clock_was_ahead_in_an_earlier_life) {
    go_on_with_a_slower_clock(1);
    go_on_with_a_slower_clock(0);
}

/* --- two programs that use the same numbers ------------------------------- */

TEST(programs_with_copies_of_one_image_store_its_ops_once_and_their_own) {
    char *image = (char *)shared(BOX), *copy = (char *)shared(BOX);
    delayq twin;
    delayq_options o = keep_options(NULL, copy, BOX);
    open_image(NOWHERE, image, 0);
    OFFER(&q, "a", 60000);
    OFFER(&q, "b", 60000);
    die(&q);
    memcpy(copy, image, BOX);
    open_image(NULL, image, 0);
    OFFER(&q, "c", 60000);
    SETTLE(&q);
    OK(&twin, delayq_open(&twin, &o));
    OFFER(&twin, "d", 60000);
    OFFER(&twin, "e", 60000);
    SETTLE(&twin);
    CHECK_INT(box(&q).offers_settled, 3);
    CHECK_INT(box(&twin).offers_settled, 4);
    delayq_close(&q);
    delayq_close(&twin);
    CHECK_INT(ask_int("ZCARD " ZSET), 5);
}

/* A clone of the machine has used the handle's numbers. The handle draws new
 * numbers, and its program dies. The next program finds all offers and the new
 * numbers in the image. */
TEST(a_program_that_dies_after_it_has_met_a_clone_loses_no_offer) {
    char *image = (char *)shared(BOX), before[8];
    open_image(NULL, image, 0);
    connect_to_server(&q);
    OFFER(&q, "first", 60000);
    SETTLE(&q);
    USE_NUMBERS_AS_A_CLONE();
    memcpy(before, q.handle_id, sizeof before);
    offer_two(&q);
    UNTIL((turn(&q), memcmp(before, q.handle_id, sizeof before) != 0));
    OFFER(&q, "c", 60000); /* offers without a due time get one now */
    die(&q);
    open_image(NULL, image, 0);
    CHECK_INT(box(&q).offers_accepted, 4);
    SETTLE_AND_LEAVE(4);
}

/* --- refusals ------------------------------------------------------------- */

static char *spare;

/* Check that the image is refused with these words, and is unchanged. */
static void refused(const delayq_options *o, const char *words) {
    delayq other;
    memcpy(spare, o->outbox, o->outbox_size);
    CHECK_STATUS(&other, delayq_open(&other, o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&other), words);
    CHECK(memcmp(spare, o->outbox, o->outbox_size) == 0);
}

static char *image_of_two(void) {
    char *image = (char *)shared(BOX);
    spare = (char *)shared(BOX);
    open_image(NOWHERE, image, 0);
    OFFER(&q, "a", 60000);
    OFFER(&q, "b", 60000);
    die(&q);
    return image;
}

TEST(the_image_of_another_queue_size_or_wire_is_refused) {
    char *image = image_of_two();
    delayq_options o = keep_options(NULL, image, BOX);
    o.name = "jobz";
    refused(&o, "holds the outbox of another queue");
    o = keep_options(NULL, image, BOX - 16);
    refused(&o, "another size");
    o = keep_options(NULL, image, BOX);
    o.wire = DELAYQ_REDISSON;
    refused(&o, "another options.wire");
    o = keep_options(NULL, image + 8, BOX - 8);
    refused(&o, "a multiple of 16");
    open_image(NULL, image, 0);
    SETTLE_AND_LEAVE(2);
}

/* Check that a second handle is refused. It would overwrite the state of the
 * first one, and calls of both handles would not return. */
static void refuse_while_used(void *image) {
    delayq_options o = keep_options(NULL, image, BOX);
    delayq second;
    int i;
    for (i = 0; i < 2; i++) {
        CHECK_INT(delayq_open(&second, &o), DELAYQ_ERR_ARG);
        CHECK_HAS(delayq_errmsg(&second), "in use by another handle");
        delayq_close(&second);
    }
}

static void refuse_second(void *image, void *same) {
    open_image(NULL, image, 0);
    refuse_while_used(same);
    OFFER(&q, "a", 60000);
    SETTLE(&q);
    delayq_close(&q);
    open_image(NULL, same, 0);
    CHECK_INT(box(&q).offers_settled, 1);
    delayq_close(&q);
}

TEST(a_second_handle_on_an_image_in_use_is_refused) {
    void *image = shared(BOX);
    refuse_second(image, image);
}

TEST(a_second_handle_on_another_mapping_of_the_file_is_refused) {
    FILE *f = tmpfile();
    void *maps[2];
    int i;
    CHECK(f && ftruncate(fileno(f), BOX) == 0);
    for (i = 0; i < 2; i++) {
        maps[i] =
            mmap(NULL, BOX, PROT_READ | PROT_WRITE, MAP_SHARED, fileno(f), 0);
        CHECK(maps[i] != MAP_FAILED);
    }
    refuse_second(maps[0], maps[1]);
    fclose(f);
}

TEST(what_is_no_image_or_another_versions_is_refused) {
    char *image = image_of_two();
    delayq_options o = keep_options(NULL, image, BOX);
    int i;
    for (i = 0; i < 2; i++) image[512 * i + 8] ^= 2; /* another version */
    refused(&o, "another version of delayq");
    for (i = 0; i < 2; i++) image[512 * i + 8] ^= 2;
    for (i = 0; i < 2; i++) { /* another byte order */
        char magic[8];
        int k;
        memcpy(magic, image + 512 * i, 8);
        for (k = 0; k < 8; k++) image[512 * i + k] = magic[7 - k];
        image[512 * i + 9] ^= 1;
    }
    refused(&o, "another byte order");
    memset(image, 0, BOX);
    memset(image, 'x', 600);
    refused(&o, "holds no outbox");
    memset(image, 0, BOX);
    image[300] = 1;
    refused(&o, "holds no outbox");
    memset(image, 0, BOX); /* a new file */
    open_image(NULL, image, 0);
    OFFER(&q, "c", 60000);
    SETTLE_AND_LEAVE(1);
}

TEST(one_damaged_mark_does_no_harm_and_two_are_refused) {
    int i;
    for (i = 0; i < 3; i++) {
        char *image = image_of_two();
        delayq_options o = keep_options(NULL, image, BOX);
        if (i != 1) memset(image + 20, 0x5a, 100);
        if (i != 0) memset(image + 512 + 20, 0x5a, 100);
        if (i == 2) {
            refused(&o, "is damaged");
            continue;
        }
        OK(&q, delayq_open(&q, &o));
        CHECK_INT(box(&q).offers_accepted, 2);
        SETTLE(&q);
        delayq_close(&q);
        CHECK_INT(ask_int("ZCARD " ZSET), 2 * (i + 1));
    }
}

/* The entry after the damaged one is whole. It must not become valid again when
 * a new entry replaces the damaged one. */
TEST(an_entry_behind_a_damaged_one_never_comes_back) {
    char *image = image_of_two();
    size_t each;
    open_image(NOWHERE, image, 0);
    OFFER(&q, "c", 60000);
    each = box(&q).bytes / 3;
    die(&q);
    image[1024 + 2 * each - 8] = 'x'; /* damages b */
    open_image(NOWHERE, image, 0);
    CHECK_INT(box(&q).offers_accepted, 1);
    OFFER(&q, "d", 60000);
    die(&q);
    open_image(NULL, image, 0);
    CHECK_INT(box(&q).offers_accepted, 2);
    SETTLE_AND_LEAVE(2);
}

TEST(options_of_a_kept_outbox_without_one_are_refused) {
    delayq_options o = options_for(&main_server, "jobs");
    o.outbox_keep = DELAYQ_KEEP;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), "outbox_keep");
}

TEST(a_forked_child_leaves_a_kept_outbox_alone) {
    char *image = (char *)shared(BOX);
    pid_t pid;
    spare = (char *)shared(BOX);
    open_image(NOWHERE, image, 0);
    OFFER(&q, "a", 60000);
    memcpy(spare, image, BOX - 2048);
    fflush(stdout);
    pid = fork();
    if (pid == 0) {
        CHECK_STATUS(&q, delayq_offer(&q, "b", 1, 0), DELAYQ_ERR_ARG);
        delayq_close(&q);
        _exit(0);
    }
    join(pid);
    CHECK(memcmp(spare, image, BOX - 2048) == 0);
    refuse_while_used(image);
    delayq_close(&q);
}

/* --- outbox_sync ---------------------------------------------------------- */

/* The disk. It contains the bytes that the last sync has written. */
static char *disk;
static size_t disk_size = BOX;
static int syncs, sync_fails;
static int sync_to_disk(void *user, void *address, size_t size) {
    (void)user;
    CHECK_INT(size, disk_size);
    if (dying) return -1;
    syncs++;
    if (sync_fails) return -1;
    memcpy(disk, address, size - 2048); /* without the mark of the process */
    return 0;
}

static delayq_options disk_options(const char *url, void *image) {
    delayq_options o = keep_options(url, image, BOX);
    o.outbox_sync = sync_to_disk;
    disk = (char *)shared(BOX);
    return o;
}

TEST(nothing_is_sent_before_it_is_synced_and_each_tick_syncs_once_at_most) {
    char *image = (char *)shared(BOX);
    delayq_options o = disk_options(NULL, image);
    int before, i;
    OK(&q, delayq_open(&q, &o));
    connect_to_server(&q);
    sync_fails = 1;
    for (i = 0; i < 10; i++) OFFER(&q, "a", 60000);
    UNTIL(turn(&q) == DELAYQ_ERR_IO);
    CHECK_HAS(delayq_errmsg(&q), "outbox_sync has failed");
    before = syncs;
    for (i = 0; i < 1000; i++) turn(&q);
    CHECK(syncs < before + 500); /* a failed sync is not retried at once */
    CHECK_INT(ask_int("ZCARD " ZSET), 0);
    sync_fails = 0;
    while (!settled(&q)) {
        before = syncs;
        turn(&q);
        CHECK(syncs <= before + 1);
        usleep(200);
    }
    CHECK_INT(ask_int("ZCARD " ZSET), 10);
    CHECK_INT(turn(&q), DELAYQ_OK);
    turn(&q);
    before = syncs;
    /* nothing changes, so there is no sync */
    for (i = 0; i < 100; i++) turn(&q);
    CHECK_INT(syncs, before);
    delayq_close(&q);
}

/* A power cut leaves the bytes that the last sync has written. Ops that were
 * sent had been synced, so they are stored once. The program has received no
 * result for any later op. */
TEST(a_power_cut_loses_only_what_was_not_synced) {
    char *image = (char *)shared(BOX);
    int round, i, n = 0, lost = 0, accepted;
    srand(3);
    for (round = 0; round < 40; round++) {
        delayq_options o = disk_options(NULL, image);
        OK(&q, delayq_open(&q, &o));
        accepted = (int)box(&q).offers_accepted;
        connect_to_server(&q);
        for (i = rand() % 20; i > 0; i--) {
            char text[16];
            snprintf(text, sizeof text, "%d", n++);
            OFFER(&q, text, 3600000);
            accepted++;
            if (rand() % 3 == 0) turn(&q);
        }
        if (rand() % 2) usleep(500);
        if (rand() % 2) turn(&q);
        die(&q);
        image = (char *)shared(BOX);
        memcpy(image, disk, BOX);
        o = keep_options(NULL, image, BOX);
        OK(&q, delayq_open(&q, &o));
        lost += accepted - (int)box(&q).offers_accepted;
        die(&q);
    }
    open_image(NULL, image, 0);
    SETTLE(&q);
    CHECK_INT(box(&q).offers_settled, n - lost);
    delayq_close(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), n - lost);
    CHECK(lost > 0 && lost < n);
}

/* Offer until there is no room. Returns the number of all accepted offers. */
static int fill(void) {
    static const char text[2000];
    while (delayq_offer(&q, text, sizeof text, 60000) == DELAYQ_OK) continue;
    return (int)box(&q).offers_accepted;
}

/* After a power cut the disk may have all stores to the rings since the last
 * sync, and none to the marks. The old marks still refer to ops that have been
 * settled, so the space of these ops is used again only after a sync. The ring
 * has more ops than fit into a request, so some are synced and not sent. */
TEST(no_power_cut_loses_synced_ops_whose_neighbours_are_overwritten) {
    enum { SIZE = 256 * 1024 };
    char *image = (char *)shared(SIZE), *torn = (char *)shared(SIZE);
    delayq_options o = keep_options(NULL, image, SIZE), p;
    delayq next;
    int round, overwritten = 0;
    disk = (char *)shared(SIZE);
    disk_size = SIZE;
    o.outbox_sync = sync_to_disk;
    OK(&q, delayq_open(&q, &o));
    connect_to_server(&q);
    for (round = 0; round < 20; round++) {
        uint64_t before = box(&q).offers_settled;
        int synced_ops = fill(), last_sync = syncs;
        UNTIL((turn(&q), syncs > last_sync));
        while (box(&q).offers_settled == before) turn(&q);
        overwritten += fill() > synced_ops;
        memcpy(torn, disk, 1024);
        memcpy(torn + 1024, image + 1024, SIZE - 1024 - 2048);
        memset(torn + SIZE - 2048, 0, 2048);
        p = keep_options(NOWHERE, torn, SIZE);
        OK(&next, delayq_open(&next, &p));
        if ((int)box(&next).offers_accepted < synced_ops)
            FAIL("of %d synced ops there are %d", synced_ops,
                 (int)box(&next).offers_accepted);
        delayq_close(&next);
    }
    SETTLE(&q);
    delayq_close(&q);
    disk_size = BOX;
    CHECK(overwritten > 0);
}

/* The image on the disk contains the op, and does not mark it as sent. */
TEST(a_nack_that_was_done_before_a_power_cut_is_not_reported_as_gone) {
    char *image = (char *)shared(BOX), *old = (char *)shared(BOX);
    delayq_options o = disk_options(NULL, image);
    delayq plain;
    open_queue(&plain, "jobs");
    OFFER(&plain, "a", 0);
    delayq_close(&plain);
    o.lease_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    connect_to_server(&q);
    UNTIL(took(&q, &one));
    OK(&q, delayq_nack(&q, &one, 60000));
    memcpy(old, image, BOX - 2048);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    die(&q);
    open_image(NULL, old, 60000);
    CHECK_INT(box(&q).changes_accepted - box(&q).changes_settled, 1);
    SETTLE(&q);
    CHECK_INT(box(&q).gone, 0);
    delayq_close(&q);
    CHECK_INT(ask_int("ZCARD " ZSET), 1);
}

TEST(a_close_syncs_what_the_last_step_has_not) {
    char *image = (char *)shared(BOX);
    delayq_options o = disk_options(NOWHERE, image);
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "a", 60000);
    delayq_close(&q);
    memset(disk + BOX - 2048, 0, 2048);
    open_image(NULL, disk, 0);
    CHECK_INT(box(&q).offers_accepted, 1);
    SETTLE(&q);
    delayq_close(&q);
}

/* Some pages have reached the disk since the last sync, others have not. The
 * outbox is small, so that its space is used again all the time. */
TEST(a_power_cut_that_tears_pages_loses_nothing_that_was_synced) {
    static unsigned char synced[4000], there[4000], done[4000];
    static delayq_item pending[1000];
    delayq_ticket after = {""};
    char *image = (char *)shared(BOX);
    int round, i, n = 0, from = 0;
    size_t count;
    delayq_options o;
    srand(5);
    for (round = 0; round < 60; round++) {
        o = disk_options(NULL, image);
        o.outbox_size = disk_size = 8192;
        OK(&q, delayq_open(&q, &o));
        connect_to_server(&q);
        for (i = 30 + rand() % 30; i > 0; i--) {
            char text[80];
            int before = syncs;
            snprintf(text, sizeof text, "%d%70s", n, "");
            if (delayq_offer(&q, text, (size_t)(10 + rand() % 60), 3600000) ==
                DELAYQ_OK)
                done[n++] = 1;
            else
                usleep(300);
            if (rand() % 2) turn(&q);
            if (syncs > before) /* all ops so far are on the disk */
                for (; from < n; from++) synced[from] = 1;
        }
        die(&q);
        for (i = 0; i < 8192; i += 512)
            memcpy(image + i, (rand() % 2 ? disk : image) + i, 512);
        from = n;
    }
    o = keep_options(NULL, image, 8192);
    OK(&q, delayq_open(&q, &o));
    SETTLE(&q);
    delayq_close(&q);
    o = options_for(&main_server, "jobs");
    OK(&q, delayq_open(&q, &o));
    for (;;) {
        delayq_status status = delayq_peek(&q, pending, 1000, &count, &after);
        if (status == DELAYQ_EMPTY) break;
        OK(&q, status);
        for (i = 0; i < (int)count; i++) {
            int number = atoi((const char *)pending[i].data);
            CHECK(number >= 0 && number < n && done[number]);
            CHECK_INT(there[number]++, 0);
        }
        after = pending[count - 1].ticket;
    }
    delayq_close(&q);
    for (i = 0, from = 0; i < n; i++) {
        if (synced[i] && !there[i])
            FAIL("of %d ops number %d is not there", n, i);
        from += synced[i];
    }
    CHECK(from > 50);
    disk_size = BOX;
}

TEST(a_full_outbox_with_a_sync_has_room_again_after_ticks) {
    char *image = (char *)shared(BOX);
    delayq_options o = disk_options(NULL, image);
    char text[1000] = "x";
    int n = 0;
    o.outbox_size = BOX;
    OK(&q, delayq_open(&q, &o));
    while (n < 300) n += offered(&q, text, sizeof text, 60000);
    SETTLE_AND_LEAVE(300);
}

/* --- images of earlier versions ------------------------------------------- */

/* tests/images/ has images that earlier versions have written on little-endian
 * machines of 64 bits. This version does the ops in them. If DELAYQ_TEST_IMAGE
 * names a file, the test writes an image to that file instead. */
static void write_golden(delayq *handle) {
    delayq_message m = keyed("keyed", "k");
    delayq_item item;
    memset(&item, 0, sizeof item);
    OFFER(handle, "plain", 60000);
    OK(handle, delayq_offer_message(handle, &m));
    m = message("absolute", 0);
    m.due_ms = 4000000000000;
    OK(handle, delayq_offer_message(handle, &m));
    OK(handle, delayq_cancel_key(handle, "other"));
    strcpy(item.ticket.text, "1700000000000-0006423b1f2a3c05c1d2e3f4a5000001");
    OK(handle, delayq_ack(handle, &item));
    OK(handle, delayq_nack(handle, &item, 5000));
    OK(handle, delayq_nack(handle, &item, DELAYQ_RELEASE));
    OK(handle, delayq_bury(handle, &item, "why"));
    strcpy(item.ticket.text, "1700000000001-0006423b1f2a3c05c1d2e3f4a5000001");
    {
        delayq_ticket ticket = item.ticket;
        OK(handle, delayq_cancel(handle, &ticket));
    }
}

TEST(images_of_earlier_versions_are_resumed) {
    static const char *const names[] = {"tests/images/0.3"};
    const uint16_t low = 1;
    const char *to = getenv("DELAYQ_TEST_IMAGE");
    size_t i;
    if (sizeof(void *) != 8 || *(const char *)&low != 1)
        test_skip("the images are of little-endian machines of 64 bits");
    for (i = 0; i < sizeof names / sizeof names[0]; i++) {
        char *image = (char *)shared(8192);
        delayq_options o = keep_options(NULL, image, 8192);
        FILE *f = fopen(names[i], "rb");
        if (to) {
            o.url = NOWHERE;
            OK(&q, delayq_open(&q, &o));
            write_golden(&q);
            die(&q);
            f = fopen(to, "wb");
            CHECK(f && fwrite(image, 1, 8192, f) == 8192);
            fclose(f);
            return;
        }
        if (!f) test_skip("run it in the root of the source tree");
        CHECK(fread(image, 1, 8192, f) == 8192);
        fclose(f);
        OK(&q, delayq_open(&q, &o));
        CHECK_INT(box(&q).offers_accepted, 4);
        CHECK_INT(box(&q).changes_accepted, 5);
        SETTLE(&q);
        CHECK_INT(box(&q).gone, 6);
        delayq_close(&q);
        CHECK_INT(ask_int("ZCARD " ZSET) + ask_int("LLEN jobs"), 3);
        CHECK_INT(ask_int("EXISTS delayq_once:{jobs}:1:k"), 1);
        CHECK_INT(ask_int("ZCOUNT " ZSET " 4000000000000 4000000000000"), 1);
        ask("FLUSHALL");
    }
}
