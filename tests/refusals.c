/*
 * A call that the server refuses changes nothing. This holds for each command
 * that an ACL may forbid, for each key that may have a wrong type, and for each
 * script of each wire. Each call is tested many times, first with each command
 * of the scripts forbidden in turn, then with each key of another type. The
 * queue has work for every script. If a call succeeds nevertheless, it must not
 * have lost anything.
 *
 * This file uses public names only, so that it compiles with older headers.
 */
#include "test.h"
#include <ctype.h>

#define ZSET "redisson_delay_queue_timeout:{jobs}"
#define MIRROR "redisson_delay_queue:{jobs}"
#define RETRY "delayq_retry:{jobs}"
#define DEAD "delayq_dead:{jobs}"
#define STREAM "delayq_stream:{jobs}"
#define FIRST "delayq_once:{jobs}:5:first"
#define OTHER "delayq_once:{jobs}:5:other"
#define DUE_MS 1000000000000LL   /* long ago */
#define LATER_MS 4000000000000LL /* far ahead */

/* --- the queue ----------------------------------------------------------- */

static const struct mode {
    const char *name;
    delayq_wire wire;
    int lease_ms, max_attempts, broadcast;
    int pending; /* additional pending items, at the head of the mirror */
} modes[] = {
    {"native", DELAYQ_NATIVE, 0, 0, 0, 0},
    {"native with attempts", DELAYQ_NATIVE, 0, 2, 0, 0},
    {"native with leases", DELAYQ_NATIVE, 60000, 2, 0, 0},
    {"Redisson", DELAYQ_REDISSON, 0, 0, 0, 0},
    {"Redisson with leases", DELAYQ_REDISSON, 60000, 0, 0, 0},
    {"Redisson with leases, a long mirror", DELAYQ_REDISSON, 60000, 0, 0, 1001},
    {"old Redisson", DELAYQ_REDISSON_OLD, 0, 0, 0, 0},
    {"old Redisson with leases", DELAYQ_REDISSON_OLD, 60000, 0, 0, 0},
    {"broadcast", DELAYQ_NATIVE, 0, 0, 1, 0}};
static const struct mode *mode;

/* Whether there are ready lists, an undecodable first item, or no due items. */
enum layout { LISTS, NO_LISTS, POISON_FIRST, LAYOUTS, NOTHING_DUE };

static delayq q;
static delayq_ticket leased, pending; /* tickets of two items */
static int ids;                       /* the number of items in the queue */
static int leased_id, pending_id, replaced_id;
static long long epoch_us; /* the time in the first element's id */

/* Make an element whose payload is the next number. Returns its length. */
static size_t next_element(unsigned char *e, int kind, int attempts) {
    unsigned char id[16];
    char payload[16];
    unsigned long long us = (unsigned long long)(epoch_us + ids * 10);
    int i;
    if (kind == 0) us = us << 11 | 0x21;
    for (i = 0; i < 8; i++) id[i] = (unsigned char)(us >> (56 - 8 * i));
    memcpy(id + 8, "HOSTS\0\0", 8);
    id[15] = (unsigned char)attempts;
    snprintf(payload, sizeof payload, "id:%05d", ids++);
    return element(e, kind, 8, (const char *)id, payload, 8);
}

/* Add an element to the set and, if `in_mirror` is 1, to the mirror. */
static void put(unsigned char *e, size_t n, long long due, int in_mirror) {
    ask("ZADD " ZSET " %lld %b", due, e, n);
    if (mode->wire != DELAYQ_NATIVE && in_mirror)
        ask("RPUSH " MIRROR " %b", e, n);
}

static void ticket_of(delayq_ticket *t, long long due, const unsigned char *e,
                      int kind) {
    size_t at = (size_t)snprintf(t->text, sizeof t->text, "%lld-", due);
    size_t i, from = kind == 16, n = kind == 0 ? 8 : 16;
    for (i = 0; i < n; i++, at += 2)
        snprintf(t->text + at, sizeof t->text - at, "%02x", e[from + i]);
}

static void fill(enum layout layout) {
    int kind = mode->wire == DELAYQ_REDISSON_OLD ? 0 : 16, i;
    int native = mode->wire == DELAYQ_NATIVE && !mode->broadcast;
    unsigned char e[64];
    size_t n;
    ask("FLUSHALL");
    ids = 0;
    epoch_us = server_us(main_connection()) - 60000000;
    for (i = 0; i < mode->pending; i++) {
        n = next_element(e, kind, 0);
        put(e, n, LATER_MS + 1000 + i, 1);
    }
    for (i = 0; i < 14 && layout != NOTHING_DUE; i++) {
        int undecodable = layout == POISON_FIRST ? i == 0 : i % 7 == 5;
        int foreign = mode->wire == DELAYQ_REDISSON && i % 7 == 3;
        int attempts = native && !undecodable && i % 7 > 3 ? i % 7 - 3 : 0;
        n = next_element(e, foreign ? 8 : kind, foreign ? 0 : attempts);
        if (undecodable) e[n - 9] = 99; /* damages the length of the payload */
        put(e, n, DUE_MS + i / 3, 1);
    }
    pending_id = ids;
    n = next_element(e, kind, 0);
    put(e, n, LATER_MS, 1);
    ticket_of(&pending, LATER_MS, e, kind);
    leased_id = ids;
    n = next_element(e, kind, kind == 16);
    put(e, n, LATER_MS + 1, 0);
    ticket_of(&leased, LATER_MS + 1, e, kind);
    replaced_id = ids;
    n = next_element(e, kind, 0);
    put(e, n, LATER_MS + 2, 1);
    {
        delayq_ticket t;
        ticket_of(&t, LATER_MS + 2, e, kind);
        ask("SET " FIRST " %s", t.text);
    }
    for (i = 0; i < 12; i++) {
        char letter[96];
        size_t head = (size_t)snprintf(letter, sizeof letter, "buried 5\n");
        n = next_element(e, kind, 0);
        if (i % 5 == 2) e[n - 9] = 99;
        memcpy(letter + head, e, n);
        ask("RPUSH " DEAD " %b", letter, head + n);
    }
    if (mode->broadcast)
        ask("XADD " STREAM " * due %lld payload id:%05d", DUE_MS, ids++);
    if (layout != LISTS || mode->broadcast) return;
    for (i = 0; i < 3; i++) {
        ask("RPUSH jobs id:%05d", ids++);
        if (!native) continue;
        n = next_element(e, kind, i + 1);
        if (i == 1) e[n - 9] = 99;
        ask("RPUSH " RETRY " %b", e, n);
    }
}

/* A copy of all keys. It is restored before each fault. */
static redisReply *copied, *copies[16]; /* the keys, and the DUMP of each */

static void forget_copy(void) {
    size_t i;
    for (i = 0; copied && i < copied->elements; i++) freeReplyObject(copies[i]);
    if (copied) freeReplyObject(copied);
    copied = NULL;
}

static void keep_copy(void) {
    size_t i;
    forget_copy();
    copied = run(main_connection(), "KEYS *");
    CHECK(copied->elements <= 16);
    for (i = 0; i < copied->elements; i++)
        copies[i] = run(main_connection(), "DUMP %s", copied->element[i]->str);
}

static void put_back(void) {
    size_t i;
    ask("FLUSHALL");
    for (i = 0; i < copied->elements; i++)
        freeReplyObject(run(main_connection(), "RESTORE %s 0 %b",
                            copied->element[i]->str, copies[i]->str,
                            copies[i]->len));
}

/* --- the places of items ------------------------------------------------- */

/* Count the ids, without strstr, which under ASan reads all text each time. */
static void count_ids(const char *text, const char *end, int *counts) {
    for (; (text = strchr(text, 'i')) && text < end; text++) {
        int id = 99999;
        if (text[1] == 'd' && text[2] == ':' && isdigit((unsigned char)text[3]))
            id = atoi(text + 3);
        if (id < ids) counts[id]++;
    }
}

/* Count how often each item occurs in the queue's keys, without the mirror. */
static void find_ids(const char *contents_of_all, int *counts) {
    const char *mirror = strstr(contents_of_all, "list " MIRROR "\n"), *end;
    memset(counts, 0, (size_t)ids * sizeof *counts);
    end = contents_of_all + strlen(contents_of_all);
    count_ids(contents_of_all, mirror ? mirror : end, counts);
    if (!mirror) return;
    mirror = strchr(mirror, '\n');
    while (mirror[1] == ' ') mirror = strchr(mirror + 1, '\n');
    count_ids(mirror, end, counts);
}

/* Returns the number of mirror entries that are not pending or occur twice. */
static long long stale_in_mirror(void) {
    return ask_int("EVAL %s 2 " ZSET " " MIRROR,
                   "if redis.call('TYPE', KEYS[2]).ok ~= 'list' or\n"
                   "  redis.call('TYPE', KEYS[1]).ok == 'string' then\n"
                   "  return 0\n"
                   "end\n"
                   "local seen, n = {}, 0\n"
                   "for _, e in ipairs(redis.call('LRANGE', KEYS[2], 0, -1)) "
                   "do\n"
                   "  if seen[e] or not redis.call('ZSCORE', KEYS[1], e) then\n"
                   "    n = n + 1\n"
                   "  end\n"
                   "  seen[e] = true\n"
                   "end\n"
                   "return n\n");
}

/* --- the calls ----------------------------------------------------------- */

static delayq_item got[20];
static size_t got_count;
static delayq_status acked;

static delayq_item lent(void) {
    delayq_item item;
    memset(&item, 0, sizeof item);
    item.ticket = leased;
    return item;
}

static delayq_status offer_messages(size_t count, const char *key,
                                    int replace) {
    delayq_message m[3];
    delayq_status status;
    size_t i;
    memset(m, 0, sizeof m);
    for (i = 0; i < count; i++) {
        m[i].data = "new";
        m[i].len = 3;
        m[i].delay_ms = 60000;
        m[i].key = key;
        m[i].key_ttl_ms = key ? 60000 : 0;
        m[i].replace = replace;
    }
    status = delayq_offer_many(&q, m, count);
    return status == DELAYQ_OK ? m[0].status : status;
}
static delayq_status offer_one(void) {
    return delayq_offer(&q, "new", 3, 60000);
}
static delayq_status offer_three(void) {
    return offer_messages(3, NULL, 0);
}
static delayq_status offer_keyed(void) {
    return offer_messages(1, "other", 0);
}
static delayq_status offer_replacing(void) {
    return offer_messages(1, "first", 1);
}
static delayq_status tick(void) {
    return delayq_tick(&q, NULL);
}
static delayq_status take_one(void) {
    delayq_status status = delayq_take(&q, got, 0);
    got_count = status == DELAYQ_OK;
    return status;
}
static delayq_status take_twenty(void) {
    return delayq_take_many(&q, got, 20, &got_count, 0);
}
static delayq_status ack_take(void) {
    delayq_status status;
    got[0] = lent();
    status = delayq_ack_take(&q, got, 0);
    acked = got[0].acked;
    got_count = status == DELAYQ_OK;
    return status;
}
static delayq_status ack(void) {
    delayq_item item = lent();
    return delayq_ack(&q, &item);
}
static delayq_status ack_many(void) {
    delayq_item items[3];
    items[0] = items[1] = items[2] = lent();
    return delayq_ack_many(&q, items, 3);
}
static delayq_status nack_now(void) {
    delayq_item item = lent();
    return delayq_nack(&q, &item, 0);
}
static delayq_status release(void) {
    delayq_item item = lent();
    return delayq_nack(&q, &item, DELAYQ_RELEASE);
}
static delayq_status extend(void) {
    delayq_item item = lent();
    return delayq_extend(&q, &item, 90000);
}
static delayq_status bury(void) {
    delayq_item item = lent();
    return BURY(&q, &item);
}
static delayq_status cancel(void) {
    return delayq_cancel(&q, &pending);
}
#ifdef DELAYQ_BROADCAST
static delayq_status cancel_key(void) {
    return delayq_cancel_key(&q, "first");
}
#endif
static delayq_status reschedule(void) {
    delayq_ticket t = pending;
    return delayq_reschedule(&q, &t, 5000);
}
static delayq_status redrive(void) {
    size_t n;
    return delayq_dead_redrive(&q, 100, &n);
}
static delayq_status clear(void) {
    return delayq_clear(&q, NULL);
}
static delayq_status clear_dead(void) {
    return delayq_dead_clear(&q, NULL);
}

enum who { ANY, LEASE, NO_BROADCAST };
static const struct verb {
    const char *name;
    delayq_status (*call)(void);
    enum who who;
    /* the call moves due items, so it is tried with each layout */
    int moves;
    const int *may_go; /* the item that the call removes */
    int clears;
} verbs[] = {{"offer", offer_one, ANY, 0, NULL, 0},
             {"offer of three", offer_three, ANY, 0, NULL, 0},
             {"offer with a key", offer_keyed, ANY, 0, NULL, 0},
             {"replace", offer_replacing, ANY, 0, &replaced_id, 0},
             {"tick", tick, ANY, 1, NULL, 0},
             {"take", take_one, ANY, 1, NULL, 0},
             {"take of twenty", take_twenty, ANY, 1, NULL, 0},
             {"ack and take", ack_take, LEASE, 1, &leased_id, 0},
             {"ack", ack, LEASE, 0, &leased_id, 0},
             {"acks", ack_many, LEASE, 0, &leased_id, 0},
             {"nack", nack_now, LEASE, 0, NULL, 0},
             {"release", release, LEASE, 0, NULL, 0},
             {"extend", extend, LEASE, 0, NULL, 0},
             {"bury", bury, LEASE, 0, NULL, 0},
             {"cancel", cancel, ANY, 0, &pending_id, 0},
#ifdef DELAYQ_BROADCAST /* 0.1 can't cancel by key */
             {"cancel of a key", cancel_key, ANY, 0, &replaced_id, 0},
#endif
             {"reschedule", reschedule, ANY, 0, NULL, 0},
             {"redrive", redrive, NO_BROADCAST, 0, NULL, 0},
             {"clear", clear, ANY, 0, NULL, 1},
             {"clear of the dead letters", clear_dead, ANY, 0, NULL, 1}};
#define COUNT(a) (sizeof(a) / sizeof *(a))

static int applies(const struct verb *v, enum layout layout) {
    if (layout != LISTS && !v->moves) return 0;
    if (mode->pending > 0 && (layout != NO_LISTS || !v->moves)) return 0;
    if (v->who == LEASE) return mode->lease_ms > 0;
    return v->who == ANY || !mode->broadcast;
}

/* --- the faults ---------------------------------------------------------- */

/* The commands in the header's scripts: each name that follows call('. */
static char commands[64][24];
static size_t command_count;

static void read_commands(void) {
    FILE *f = fopen("tests/" DELAYQ_HEADER, "r");
    char line[400];
    if (!f) FAIL("no header: run the tests from the project's root");
    while (fgets(line, sizeof line, f)) {
        const char *at = line;
        while ((at = strstr(at, "call('"))) {
            size_t n = strspn(at += 6, "ABCDEFGHIJKLMNOPQRSTUVWXYZ"), i = 0;
            if (n < 3 || n > 20 || at[n] != '\'') continue;
            while (i < command_count && (strlen(commands[i]) != n ||
                                         strncmp(commands[i], at, n) != 0))
                i++;
            if (i < command_count) continue;
            CHECK(command_count < COUNT(commands));
            memcpy(commands[command_count++], at, n);
        }
    }
    fclose(f);
    CHECK(command_count > 20);
}

static const char *const keys[] = {"jobs", ZSET,   MIRROR, RETRY,
                                   DEAD,   STREAM, FIRST,  OTHER};

static int complaints;
static void complain(const struct verb *v, const char *fault,
                     const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void complain(const struct verb *v, const char *fault,
                     const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (complaints++ < 200) {
        printf("    %s, %s, %s: ", mode->name, v->name, fault);
        vprintf(format, args);
        printf(": %.80s\n", delayq_errmsg(&q));
    }
    va_end(args);
}

/* Make one call during a fault. If it fails, it must have changed nothing.
 * Otherwise no item may be lost or occur twice. */
static void check_call(const struct verb *v, const char *fault) {
    static int before[2000], after[2000];
    char *was = strdup(contents(main_connection()));
    int i, lost = 0, twice = 0, gone;
    delayq_status status;
    size_t k;
    poll_now(&q);
    got_count = 0;
    acked = DELAYQ_ERR_ARG;
    status = v->call();
    if (status < DELAYQ_OK) {
        if (status != DELAYQ_ERR_AUTH && status != DELAYQ_ERR_TYPE)
            complain(v, fault, "unclear, %d", status);
        if (strcmp(contents(main_connection()), was) != 0)
            complain(v, fault, "refused with %d after a change", status);
        if (acked >= DELAYQ_OK)
            complain(v, fault, "refused with %d, but acked", status);
    } else if (!v->clears) {
        gone = v->may_go ? *v->may_go : -1;
        find_ids(was, before);
        find_ids(contents(main_connection()), after);
        for (k = 0; k < got_count && mode->lease_ms == 0 && !mode->broadcast;
             k++)
            count_ids((const char *)got[k].data,
                      (const char *)got[k].data + got[k].len, after);
        for (i = 0; i < ids; i++) {
            lost += before[i] > after[i] && i != gone;
            twice += before[i] < after[i];
        }
        if (lost + twice > 0)
            complain(v, fault, "%d items lost, %d twice, with status %d", lost,
                     twice, status);
    }
    if (stale_in_mirror() > 0) complain(v, fault, "the mirror is wrong");
    free(was);
}

/* Make several calls. If the server refuses a later part of a call, the earlier
 * parts stay done, and the refusal hits the next calls. */
static void check_calls(const struct verb *v, const char *fault) {
    int i;
    for (i = 0; i < (v->moves && mode->pending == 0 ? 3 : 1); i++)
        check_call(v, fault);
}

static void allow_all(void) {
    acl_user("u", "~* +@all");
}

static void try_all_commands(const struct verb *v) {
    size_t i;
    char fault[48];
    for (i = 0; i < command_count; i++) {
        put_back();
        ask("ACL SETUSER u -%s", commands[i]);
        snprintf(fault, sizeof fault, "%s forbidden", commands[i]);
        check_calls(v, fault);
        ask("ACL SETUSER u +%s", commands[i]);
    }
}

static void try_all_keys(const struct verb *v) {
    char fault[96];
    size_t i;
    for (i = 0; i < COUNT(keys); i++) {
        put_back();
        ask("DEL %s", keys[i]);
        ask(strncmp(keys[i], "delayq_once", 11) == 0 ? "RPUSH %s other"
                                                     : "SET %s other",
            keys[i]);
        snprintf(fault, sizeof fault, "%s of a wrong type", keys[i]);
        check_calls(v, fault);
    }
}

static void try_all_verbs(delayq_wire wire, int broadcast,
                          void (*with)(const struct verb *)) {
    char url[160];
    delayq_options o;
    size_t k;
    int layout;
    if (main_server.major < 6) test_skip("no ACL before Redis 6");
    read_commands();
    allow_all();
    snprintf(url, sizeof url, "unix://u:pw@%s", main_server.socket);
    for (mode = modes; mode < modes + COUNT(modes); mode++) {
        if (mode->wire != wire || mode->broadcast != broadcast) continue;
        ask("FLUSHALL");
        o = options_for(&main_server, "jobs");
        o.url = url;
        o.wire = mode->wire;
        o.lease_ms = mode->lease_ms;
        o.max_attempts = mode->max_attempts;
        if (mode->broadcast) SET_BROADCAST(o);
        if (mode->broadcast) o.broadcast_after = "";
#ifdef DELAYQ_VERSION_MAJOR
        /* every other mode uses counters */
        o.counters = (mode - modes) % 2 == 0;
#endif
        OK(&q, delayq_open(&q, &o));
        for (layout = 0; layout < LAYOUTS; layout++) {
            fill((enum layout)layout);
            keep_copy();
            for (k = 0; k < COUNT(verbs); k++)
                if (applies(&verbs[k], (enum layout)layout)) with(&verbs[k]);
        }
        delayq_close(&q);
    }
    forget_copy();
    if (complaints > 0) FAIL("%d faults", complaints);
}

LONG_TEST(a_forbidden_command_leaves_everything_where_it_was) {
    try_all_verbs(DELAYQ_NATIVE, 0, try_all_commands);
}
LONG_TEST(a_forbidden_command_leaves_everything_where_it_was_beside_redisson) {
    try_all_verbs(DELAYQ_REDISSON, 0, try_all_commands);
}
TEST(a_forbidden_command_leaves_everything_where_it_was_beside_old_redisson) {
    try_all_verbs(DELAYQ_REDISSON_OLD, 0, try_all_commands);
}
TEST(a_forbidden_command_leaves_everything_where_it_was_in_a_broadcast) {
    try_all_verbs(DELAYQ_NATIVE, 1, try_all_commands);
}
TEST(a_key_of_a_wrong_type_leaves_everything_where_it_was) {
    try_all_verbs(DELAYQ_NATIVE, 0, try_all_keys);
}
TEST(a_key_of_a_wrong_type_leaves_everything_where_it_was_beside_redisson) {
    try_all_verbs(DELAYQ_REDISSON, 0, try_all_keys);
}
TEST(a_key_of_a_wrong_type_leaves_everything_where_it_was_beside_old_redisson) {
    try_all_verbs(DELAYQ_REDISSON_OLD, 0, try_all_keys);
}
TEST(a_key_of_a_wrong_type_leaves_everything_where_it_was_in_a_broadcast) {
    try_all_verbs(DELAYQ_NATIVE, 1, try_all_keys);
}

#ifdef DELAYQ_VERSION_MAJOR /* 0.1 had no outbox */

static void outbox_offer(void) {
    OK(&q, delayq_offer(&q, "new", 3, 60000));
}
static void outbox_offer_keyed(void) {
    OK(&q, offer_messages(1, "other", 0));
}
static void outbox_replace(void) {
    OK(&q, offer_messages(1, "first", 1));
}

static int outbox_is_settled(void) {
    delayq_outbox_state state;
    OK(&q, delayq_outbox(&q, &state));
    return state.offers_accepted == state.offers_settled;
}

TEST(an_outbox_keeps_what_is_refused_and_stores_it_once) {
    static void (*const calls[])(void) = {outbox_offer, outbox_offer_keyed,
                                          outbox_replace};
    static const delayq_wire wires[] = {DELAYQ_NATIVE, DELAYQ_REDISSON};
    static char memory[65536];
    char url[160];
    delayq_options o;
    size_t w, i, k;
    if (main_server.major < 6) test_skip("no ACL before Redis 6");
    read_commands();
    allow_all();
    snprintf(url, sizeof url, "unix://u:pw@%s", main_server.socket);
    for (w = 0; w < COUNT(wires); w++) {
        mode = &modes[w == 0 ? 0 : 3];
        fill(NOTHING_DUE);
        keep_copy();
        o = options_for(&main_server, "jobs");
        o.url = url;
        o.wire = wires[w];
        o.outbox = memory;
        o.outbox_size = sizeof memory;
        OK(&q, delayq_open(&q, &o));
        for (k = 0; k < COUNT(calls); k++)
            for (i = 0; i < command_count; i++) {
                long long pending_before;
                char *was;
                put_back();
                pending_before = ask_int("ZCARD " ZSET);
                was = strdup(contents(main_connection()));
                ask("ACL SETUSER u -%s", commands[i]);
                calls[k]();
                UNTIL(delayq_tick(&q, NULL) < DELAYQ_OK || outbox_is_settled());
                /* only the transfer was refused, or nothing has changed */
                UNTIL(strcmp(contents(main_connection()), was) == 0 ||
                      (delayq_tick(&q, NULL), outbox_is_settled()));
                ask("ACL SETUSER u +%s", commands[i]);
                OK(&q, delayq_flush(&q, 20000));
                CHECK_INT(ask_int("ZCARD " ZSET),
                          pending_before + (calls[k] != outbox_replace));
                CHECK_INT(stale_in_mirror(), 0);
                free(was);
            }
        delayq_close(&q);
    }
    forget_copy();
}

#endif

TEST(what_a_refusal_has_left_undone_is_told_by_the_next_call) {
    delayq_status status = DELAYQ_OK;
    char *stuck;
    int i;
    open_queue(&q, "jobs");
    OFFER(&q, "first", 0);
    ask("ZADD " ZSET " %lld poison", LATER_MS);
    elapse(main_connection(), 1);
    ask("ZINCRBY " ZSET " %lld poison",
        server_us(main_connection()) / 1000 - LATER_MS);
    OFFER(&q, "last", 0);
    ask("SET " DEAD " other");
    elapse(main_connection(), 1);
    for (i = 0; i < 5 && status == DELAYQ_OK; i++) {
        poll_now(&q);
        status = delayq_tick(&q, NULL);
    }
    CHECK_INT(status, DELAYQ_ERR_TYPE);
    CHECK_INT(ask_int("LLEN jobs"), 1);
    CHECK_INT(ask_int("ZCARD " ZSET), 2);
    stuck = strdup(contents(main_connection()));
    for (i = 0; i < 3; i++) {
        poll_now(&q);
        CHECK_STATUS(&q, delayq_tick(&q, NULL), DELAYQ_ERR_TYPE);
        CHECK_TEXT(contents(main_connection()), stuck);
    }
    free(stuck);
    ask("DEL " DEAD);
    UNTIL((poll_now(&q),
           delayq_tick(&q, NULL) == DELAYQ_OK && ask_int("LLEN jobs") == 2));
    CHECK_INT(ask_int("LLEN " DEAD), 1);
    delayq_close(&q);
}
