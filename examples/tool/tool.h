/*
 * tool.h -- declarations that the files of the command-line tool share.
 *
 *     delayq.c    the tables of commands and options, help, completion, main
 *     text.c      numbers, columns, JSON, base64; delays and dates
 *     queue.c     signals; open queues; commands that delayq.h has no call for
 *     offer.c     offer, load
 *     spool.c     offer --spool, spool
 *     take.c      take, --exec, tick
 *     inspect.c   tickets, peek, count, list, dead letters, dump, clear, pause
 *     watch.c     the live view
 *
 * All files make one program. README.md has the line that builds it.
 */
#ifndef TOOL_H
#define TOOL_H

#ifdef __linux__ /* -std=c99 hides declarations only on Linux */
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

/* Exit codes. A code above 128 means that the signal with the number code - 128
 * stopped the program. */
enum {
    DONE = 0,
    NOTHING = 1,     /* the queue is empty, the item gone, or the key in use */
    USAGE = 2,       /* bad arguments */
    UNREACHABLE = 3, /* no server, or no reply in time */
    REFUSED = 4,     /* the server refused the request */
    UNKNOWN = 5,     /* the request may have taken effect */
    BROKEN = 6,      /* can't read the input or write the output */
    FAILED = 7       /* a command of --exec failed; its item was not acked */
};

#define FOREVER INT64_MAX /* a duration without end */
#define WIRE_NATIVE 0
#define MAX_RETRY_ON 16

/* The values of the options. */
typedef struct settings {
    const char *url, *tls_ca, *tls_cert, *tls_key;
    const char *exec, *key, *after, *spool;
    int64_t wire; /* index in the list native, redisson, redisson-old */
    int64_t count, attempt, from, jobs, max_attempts;
    int64_t wait_ms, lease_ms, key_ttl_ms, backoff_ms, backoff_max_ms;
    int64_t max_late_ms;
    int64_t retry_ms, interval_ms, bury_on, timeout_ms, kill_after_ms;
    int64_t io_timeout_ms, connect_timeout_ms; /* -1: the library's default */
    struct {
        int code;
        int64_t delay_ms;
    } retry_on[MAX_RETRY_ON];
    int retry_ons;
    int json, null, follow, replace, yes, once, quiet, tickets, release, dead;
    int mirror, all;
    int stats, ndjson, empty, prometheus, counters, help, version;
} settings;

extern settings set;

int run_offer(int argc, char **argv);
int run_load(int argc, char **argv);
int run_spool(int argc, char **argv);
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
int run_pause(int argc, char **argv);
int run_resume(int argc, char **argv);
int run_watch(int argc, char **argv);

/*-----------------------------------------------------------------------------
 * MARK: - text.c
 *---------------------------------------------------------------------------*/

/* These print a line on stderr. */
void complain(const char *format, ...) PRINTF;
int usage(const char *format, ...) PRINTF; /* returns USAGE */

void *must(void *memory); /* ends the program if `memory` is NULL */

/* Returns 1 if all output has been written. If not, broken() returns the exit
 * code. */
int written(void);
int broken(void);

const char *commas(int64_t value, char *to, size_t size);
const char *distance(int64_t ms, char *to, size_t size);
const char *date(int64_t ms, char *to, size_t size);

/* Returns the length of the UTF-8 character at s, or 0 if there is none. Reads
 * at most n bytes. */
size_t utf8(const unsigned char *s, size_t n);
/* Returns the width of a character: 0, 1 or 2 columns of the terminal, or -1 if
 * the terminal can't show it. */
int columns_of(const char *s, size_t n);
/* Returns the width of a text. An unprintable character counts as 1. */
int width_of(const char *s);
void use_locale(void);

/* Copy a text. If it does not fit, copy the words that fit, then " ...". */
void shorten(const char *text, char *to, size_t size);

/* Show a payload on one line, for people. Control characters become '.'. */
void preview(const void *data, size_t n, char *to, size_t size);

void json_text(const char *s);
void json_time(int64_t ms);
void json_payload(const void *data, size_t n);

/* A JSON object on one line, which is read field by field. */
typedef struct json {
    const char *at, *end;
    char *text; /* the last string that was read, unescaped */
    size_t len; /* the length of the text in bytes */
    size_t room;
    int64_t number; /* JSON_NUMBER: its value; JSON_OTHER: 1 if true, else 0 */
    enum { JSON_STRING, JSON_NUMBER, JSON_OTHER } type;
} json;
int json_open(json *j, const char *line, size_t len);
/* Read a field into `name` and j. Returns 1 after a field, 0 at the end of the
 * object, or -1 if the line is not an object. */
int json_field(json *j, char name[32]);
int unbase64(char *text, size_t *len);

int read_duration(const char *s, int64_t *ms);
/* Read a DELAY. A date sets *due_ms, a duration *delay_ms; the other gets 0. */
int read_delay(const char *s, int64_t *delay_ms, int64_t *due_ms);
int bad_delay(const char *s); /* reports the bad text; returns USAGE */
int64_t clock_ms(void);

/*-----------------------------------------------------------------------------
 * MARK: - spool.c
 *---------------------------------------------------------------------------*/

/* Open the spool of offer --spool, and its queue. Returns an exit code. */
int spool_for(char *name);
void spool_makes_room(void);
/* Send the spool. Returns the exit code; `code` is that of the offers. */
int spool_ends(int code);
/* If a spool is open, make it the outbox in these options. */
void use_spool(delayq_options *o);

/*-----------------------------------------------------------------------------
 * MARK: - queue.c
 *---------------------------------------------------------------------------*/

extern volatile sig_atomic_t stops; /* the number of stop signals so far */
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

int exit_code(delayq_status status);
int passing(delayq_status status);
void tell(void *user, delayq_status status, const char *text);
void heard(delayq_status status); /* reports the first reply after a fault */
extern int away; /* 1: no reply has come since a reported fault */
/* Returns the library's error text in the words of the command line. */
const char *reason(const delayq *q);
delayq_status failed(const delayq *q, delayq_status status);

#define PATIENT 1    /* go on if the server can't be reached yet */
#define ONLY_TICKS 2 /* go on if the wire is refused, since ticks report it */
#define ANYHOW 4     /* go on if a queue has a fault, which its calls report */

/* Open the queues. Returns DONE or another exit code. */
int open_all(char **which, size_t count, int how);
int open_one(char *name, int how);
/* Open the named queues or, if none is named, all queues of the server. */
int open_or_list(int argc, char **argv, int how);
void close_all(void);
int run_load_scripts(int argc, char **argv);
int run_scripts(int argc, char **argv);
int64_t server_ms(delayq *q);

/* Returns the sorted names of the server's queues that match `pattern` (NULL
 * for all). Returns NULL after a failure, with the exit code in *code. */
char **find_queues(const char *pattern, size_t *count, int *code);

#define WHY 1024 /* size of a buffer for an error text, in bytes */

/* Send a command for which delayq.h has no function. After a failure, returns
 * NULL or an error reply, with the text in `why`. */
typedef struct text_of {
    const void *data;
    size_t len;
} text_of;
redisReply *command(delayq *q, const text_of *words, size_t count,
                    char why[WHY]);
/* Returns the exit code for the error text of a command. */
int command_code(const char why[WHY]);
text_of word(const char *text);

/* Returns the number of items that this handle has made dead letters. */
uint64_t deaths(const delayq *q);

int is_ticket(const delayq_ticket *ticket);
text_of payload_of(const delayq *q, text_of element);

/* A dead letter, and the ticket that names it. */
typedef struct dead_letter {
    text_of raw, payload;
    char reason[16], why[256];
    int attempt, decodable;
    int64_t dead_ms;
    delayq_ticket ticket;
} dead_letter;
void read_letter(const delayq *q, text_of raw, dead_letter *l);

redisReply *read_list(delayq *q, const char *key, int64_t from, int64_t most,
                      size_t *page, char why[WHY]);

/* Returns the key of a queue with a prefix, such as "delayq_dead:". */
const char *key_of(const char *name, const char *prefix, char to[1200]);

#endif
