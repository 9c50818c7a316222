/*
 * tool.h -- what the files of the command-line tool share.
 *
 *     delayq.c    the tables of commands and options, help, completion, main
 *     text.c      numbers, columns, JSON, base64; delays and dates
 *     queue.c     signals; open queues; what delayq.h has no call for
 *     offer.c     offer, load
 *     take.c      take, --exec, tick
 *     inspect.c   tickets, peek, count, list, dead letters, dump, clear
 *     watch.c     the live view
 *
 * All of it is one program: README.md has the line that builds it.
 */
#ifndef TOOL_H
#define TOOL_H

#ifdef __linux__ /* elsewhere -std=c99 hides nothing */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700 /* wcwidth */
#endif
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE 1 /* delayq.h, SIGWINCH */
#endif
#endif

#include "delayq.h"
#ifdef DELAYQ_HIREDIS
#include DELAYQ_HIREDIS
#else
#include <hiredis/hiredis.h>
#endif
#include <inttypes.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#if defined(__GNUC__)
#define PRINTF __attribute__((format(printf, 1, 2)))
#else
#define PRINTF
#endif

/*-----------------------------------------------------------------------------
 * MARK: - delayq.c
 *---------------------------------------------------------------------------*/

/* Exit codes; above 128: stopped by signal code - 128. */
enum {
    DONE = 0,
    NOTHING = 1,     /* empty, gone, the key is taken */
    USAGE = 2,       /* bad arguments */
    UNREACHABLE = 3, /* no server, or not in time */
    REFUSED = 4,     /* the server said no */
    UNKNOWN = 5,     /* it may have happened */
    BROKEN = 6,      /* input can't be read or output not be written */
    FAILED = 7       /* a command of --exec failed; its item comes again */
};

#define FOREVER INT64_MAX /* as a duration */
#define WIRE_NATIVE 0
#define MAX_RETRY_ON 16

/* What the options say. */
typedef struct settings {
    const char *url, *tls_ca, *tls_cert, *tls_key;
    const char *exec, *key, *after;
    int64_t wire; /* its place in --wire native, redisson, redisson-old */
    int64_t count, attempt, from, jobs, max_attempts;
    int64_t wait_ms, lease_ms, key_ttl_ms, backoff_ms, backoff_max_ms;
    int64_t retry_ms, interval_ms, bury_on, timeout_ms, kill_after_ms;
    struct {
        int code;
        int64_t delay_ms;
    } retry_on[MAX_RETRY_ON];
    int retry_ons;
    int json, null, follow, replace, yes, once, quiet, tickets, release, dead;
    int stats, ndjson, prometheus, counters, help, version;
} settings;

extern settings set;

int run_offer(int argc, char **argv);
int run_load(int argc, char **argv);
int run_take(int argc, char **argv);
int run_tick(int argc, char **argv);
int run_ack(int argc, char **argv);
int run_nack(int argc, char **argv);
int run_extend(int argc, char **argv);
int run_bury(int argc, char **argv);
int run_cancel(int argc, char **argv);
int run_reschedule(int argc, char **argv);
int run_peek(int argc, char **argv);
int run_count(int argc, char **argv);
int run_list(int argc, char **argv);
int run_dead(int argc, char **argv);
int run_redrive(int argc, char **argv);
int run_drop(int argc, char **argv);
int run_dump(int argc, char **argv);
int run_clear(int argc, char **argv);
int run_watch(int argc, char **argv);

/*-----------------------------------------------------------------------------
 * MARK: - text.c
 *---------------------------------------------------------------------------*/

/* Lines on stderr. */
void complain(const char *format, ...) PRINTF;
int usage(const char *format, ...) PRINTF; /* returns USAGE */

void *must(void *memory); /* ends the program where there is none */

/* Has everything been written? If not, broken() is the exit code. */
int written(void);
int broken(void);

const char *commas(int64_t value, char *to, size_t size);
const char *distance(int64_t ms, char *to, size_t size);
const char *date(int64_t ms, char *to, size_t size);

/* The length of the UTF-8 character at s, of n bytes left; 0: none. */
size_t utf8(const unsigned char *s, size_t n);
/* How many columns of a terminal it takes: 0, 1 or 2; -1: it can't show it. */
int columns_of(const char *s, size_t n);
/* Of a text. */
int width_of(const char *s);
void use_locale(void);

/* A payload on one line, for people: control characters as '.'. */
void preview(const void *data, size_t n, char *to, size_t size);

void json_text(const char *s);
void json_payload(const void *data, size_t n);

/* A JSON object on one line, read field by field. */
typedef struct json {
    const char *at, *end;
    char *text; /* the last string, unescaped, */
    size_t len; /* of so many bytes */
    size_t room;
    int64_t number; /* of JSON_OTHER: 1 is true */
    enum { JSON_STRING, JSON_NUMBER, JSON_OTHER } type;
} json;
/* 1: *name and a value, in j; 0: the end of the object; -1: it is none. */
int json_open(json *j, const char *line, size_t len);
int json_field(json *j, char name[32]);
int unbase64(char *text, size_t *len);

int read_duration(const char *s, int64_t *ms);
/* A DELAY: *delay_ms from now, or at *due_ms where that is > 0. */
int read_delay(const char *s, int64_t *delay_ms, int64_t *due_ms);
extern const char not_a_delay[];
int64_t clock_ms(void);

/*-----------------------------------------------------------------------------
 * MARK: - queue.c
 *---------------------------------------------------------------------------*/

extern volatile sig_atomic_t stops; /* how many stop signals came */
extern volatile sig_atomic_t suspended;

void prepare_signals(void);
void catch_signal(int number, void (*how)(int));
void catch_stop(int number);
void on_signal(int number);
int wait_for(int fd, int64_t ms);
int stopped(void);

extern delayq *handles; /* the open queues */
extern size_t handle_count;
extern char **queue_names;
extern int io_timeout_ms; /* 0: the library's default */

int exit_code(delayq_status status);
int passing(delayq_status status);
void tell(void *user, delayq_status status, const char *text);
void heard(delayq_status status); /* what a call has returned */
extern int away; /* a fault was told, and nothing was heard since */
/* The library's text, with the names that the command line has. */
const char *reason(const delayq *q);
delayq_status failed(const delayq *q, delayq_status status);

#define PATIENT 1    /* a server that can't be reached yet is no failure */
#define ONLY_TICKS 2 /* nor is a refusal of the wire: the ticks will tell */
#define ANYHOW 4     /* nor is what is wrong with one queue: its calls tell */

/* Open the queues; returns DONE or an exit code. */
int open_all(char **which, size_t count, int how);
int open_one(char *name, int how);
/* Those that are named, or else all that the server has. */
int open_or_list(int argc, char **argv, int how);
void close_all(void);
int64_t server_ms(delayq *q);

/* The names of all queues on the server, sorted; NULL: see *code. */
char **find_queues(const char *pattern, size_t *count, int *code);

/* A command to the server about a queue, which delayq.h has no function for;
 * NULL or an error reply, and then `why` has it. */
typedef struct text_of {
    const void *data;
    size_t len;
} text_of;
redisReply *command(delayq *q, const text_of *words, size_t count,
                    char why[256]);
/* And the exit code for that. */
int command_code(const char why[256]);
text_of word(const char *text);

/* How many items this handle's calls have sent to the dead letters. */
uint64_t deaths(const delayq *q);

int is_ticket(const delayq_ticket *ticket);
text_of payload_of(const delayq *q, text_of element);

/* A dead letter, and the ticket that names it. */
typedef struct dead_letter {
    text_of raw, payload;
    char reason[16];
    int attempt, decodable;
    int64_t dead_ms;
    delayq_ticket ticket;
} dead_letter;
void read_letter(const delayq *q, text_of raw, dead_letter *l);

redisReply *read_list(delayq *q, const char *key, int64_t from, int64_t most,
                      size_t *page, char why[256]);

/* The key of a queue that begins with "delayq_dead:" and the like. */
const char *key_of(const char *name, const char *prefix, char to[1200]);

#endif
