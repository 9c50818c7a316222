/*
 * delayq -- a delay queue for the shell: offer, take, run commands, inspect.
 *
 *     $ delayq offer mails 1h30m "to: ada"
 *     1900005400000-00064404c1f1a3c05c9d2b7e1f000000
 *     $ delayq count mails --json
 *     {"queue":"mails","pending":1,"overdue":0,...}
 *     $ seq 1000000 | delayq offer numbers 5s -
 *     delayq: 1,000,000 stored
 *     $ delayq take mails --follow --exec 'sendmail -t'
 *     $ delayq watch mails numbers
 *
 * `delayq --help` lists the commands, `delayq COMMAND --help` says more, and
 * the manual page delayq(1) all. The server is DELAYQ_URL, or --url, or
 * redis://127.0.0.1:6379.
 *
 * Contents (search for the tag)
 *
 *     >>settings   what the command line says; exit codes
 *     >>text       numbers, JSON, payloads
 *     >>times      "1h30m" and "2026-11-21T15:00:00Z"
 *     >>signals    Ctrl-C, children, a new window size
 *     >>handle     opening a queue
 *     >>offer      from the command line, and a million lines
 *     >>take       printing due items
 *     >>exec       running a command for each item
 *     >>tick       moving due items
 *     >>tickets    ack, nack, extend, bury, cancel, reschedule
 *     >>inspect    peek, count, dead, redrive, clear
 *     >>watch      the live view
 *     >>commands   the tables of commands and options, help, main
 */
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "delayq.h"
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/*-----------------------------------------------------------------------------
 * MARK: - Settings
 * >>settings   what the command line says; exit codes
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
#define MAX_JOBS 64

typedef struct settings {
    const char *url, *tls_ca, *tls_cert, *tls_key;
    const char *exec, *key, *after;
    int64_t wire; /* a delayq_wire */
    int64_t count, attempt, from, jobs, max_attempts;
    int64_t wait_ms, lease_ms, key_ttl_ms, backoff_ms, backoff_max_ms;
    int64_t retry_ms, interval_ms, bury_on;
    int json, null, follow, replace, yes, once, quiet, tickets, release, dead;
    int stats, help, version;
} settings;

static settings set = {
    .count = -1,
    .wait_ms = -1,
    .jobs = 1,
    .retry_ms = -1,
    .bury_on = -1,
    .interval_ms = 1000,
};

static void complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("delayq: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
}

static int usage(const char *format, const char *what) {
    fputs("delayq: ", stderr);
    fprintf(stderr, format, what);
    fputs("\ndelayq: try 'delayq --help'\n", stderr);
    return USAGE;
}

static void *must(void *memory) {
    if (memory) return memory;
    complain("out of memory");
    exit(BROKEN);
}

static int exit_code(delayq_status status) {
    switch (status) {
    case DELAYQ_OK: return DONE;
    case DELAYQ_EMPTY:
    case DELAYQ_GONE:
    case DELAYQ_DUPLICATE:
    case DELAYQ_WOKEN: return NOTHING;
    case DELAYQ_ERR_ARG: return USAGE;
    case DELAYQ_ERR_IO:
    case DELAYQ_ERR_TIMEOUT:
    case DELAYQ_ERR_AGAIN: return UNREACHABLE;
    case DELAYQ_ERR_AUTH:
    case DELAYQ_ERR_REDIS:
    case DELAYQ_ERR_READONLY:
    case DELAYQ_ERR_FULL:
    case DELAYQ_ERR_WIRE:
    case DELAYQ_ERR_TYPE: return REFUSED;
    case DELAYQ_ERR_MEMORY: return BROKEN;
    case DELAYQ_ERR_PROTOCOL:
    case DELAYQ_ERR_UNKNOWN: break;
    }
    return UNKNOWN;
}

/* A fault that passes by itself: worth another try. */
static int passing(delayq_status status) {
    return status == DELAYQ_ERR_IO || status == DELAYQ_ERR_TIMEOUT ||
           status == DELAYQ_ERR_AGAIN || status == DELAYQ_ERR_READONLY ||
           status == DELAYQ_ERR_UNKNOWN;
}

/*-----------------------------------------------------------------------------
 * MARK: - Text
 * >>text   numbers, JSON, payloads
 *---------------------------------------------------------------------------*/

/* 1234567 as 1,234,567. */
static const char *commas(int64_t value, char *to, size_t size) {
    char digits[24];
    size_t n, i, k = 0;
    snprintf(digits, sizeof digits, "%" PRId64, value);
    n = strlen(digits);
    for (i = 0; i < n && k + 2 < size; i++) {
        if (i > 0 && (n - i) % 3 == 0 && digits[i - 1] != '-') to[k++] = ',';
        to[k++] = digits[i];
    }
    to[k] = '\0';
    return to;
}

/* A distance in time: 950ms, 5.2s, 3m12s, 1h05m, 2d03h. */
static const char *distance(int64_t ms, char *to, size_t size) {
    int64_t s = ms / 1000;
    if (ms < 1000)
        snprintf(to, size, "%dms", (int)ms);
    else if (s < 60)
        snprintf(to, size, "%.1fs", (double)ms / 1000);
    else if (s < 3600)
        snprintf(to, size, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        snprintf(to, size, "%dh%02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        snprintf(to, size, "%" PRId64 "d%02dh", s / 86400,
                 (int)(s / 3600 % 24));
    return to;
}

/* The length of the UTF-8 character at s, of n bytes left; 0: none. */
static size_t utf8(const unsigned char *s, size_t n) {
    size_t len = s[0] < 0x80   ? 1
                 : s[0] < 0xc2 ? 0
                 : s[0] < 0xe0 ? 2
                 : s[0] < 0xf0 ? 3
                 : s[0] < 0xf5 ? 4
                               : 0;
    size_t i;
    if (len > n) return 0;
    for (i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
        (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
        return 0; /* too long a form, a surrogate, past the end */
    return len;
}

static int is_text(const unsigned char *s, size_t n) {
    size_t i, len;
    for (i = 0; i < n; i += len)
        if ((len = utf8(s + i, n - i)) == 0) return 0;
    return 1;
}

/* A byte of a JSON string; from 0x80 on as part of a character. */
static void json_byte(unsigned char c) {
    static const char plain[] = "\"\\\n\r\t", escaped[] = "\"\\nrt";
    const char *at = c ? strchr(plain, c) : NULL;
    if (at)
        printf("\\%c", escaped[at - plain]);
    else if (c < 0x20 || c == 0x7f)
        printf("\\u%04x", c);
    else
        putchar(c);
}

static void json_bytes(const void *bytes, size_t n) {
    const unsigned char *s = (const unsigned char *)bytes;
    putchar('"');
    while (n-- > 0) json_byte(*s++);
    putchar('"');
}

/* What is no UTF-8 shows its bytes from 0x80 on as if they were Latin-1. */
static void json_text(const char *s) {
    size_t n = strlen(s);
    if (is_text((const unsigned char *)s, n)) {
        json_bytes(s, n);
        return;
    }
    putchar('"');
    for (; *s; s++) {
        if ((unsigned char)*s >= 0x80)
            printf("\\u%04x", (unsigned char)*s);
        else
            json_byte((unsigned char)*s);
    }
    putchar('"');
}

static void base64(const unsigned char *s, size_t n) {
    static const char sign[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "abcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t i;
    for (i = 0; i < n; i += 3) {
        unsigned v = (unsigned)s[i] << 16;
        if (i + 1 < n) v |= (unsigned)s[i + 1] << 8;
        if (i + 2 < n) v |= s[i + 2];
        putchar(sign[v >> 18]);
        putchar(sign[v >> 12 & 63]);
        putchar(i + 1 < n ? sign[v >> 6 & 63] : '=');
        putchar(i + 2 < n ? sign[v & 63] : '=');
    }
}

/* "payload":"text" where it is UTF-8, else "payload_base64":"...". */
static void json_payload(const void *data, size_t n) {
    const unsigned char *s = (const unsigned char *)data;
    if (is_text(s, n)) {
        fputs("\"payload\":", stdout);
        json_bytes(s, n);
    } else {
        fputs("\"payload_base64\":\"", stdout);
        base64(s, n);
        putchar('"');
    }
}

/* A payload on one line, for people: control characters as '.'. */
static void preview(const void *data, size_t n, char *to, size_t size) {
    const unsigned char *s = (const unsigned char *)data;
    size_t i = 0, k = 0;
    while (i < n) {
        size_t len = utf8(s + i, n - i);
        if (k + (len > 0 ? len : 1) >= size) break;
        if (len == 0 || s[i] < 0x20 || s[i] == 0x7f ||
            (s[i] == 0xc2 && s[i + 1] < 0xa0)) {
            to[k++] = '.';
            i += len > 0 ? len : 1;
        } else {
            memcpy(to + k, s + i, len);
            k += len;
            i += len;
        }
    }
    to[k] = '\0';
}

/* Everything said so far has been written. */
static int written(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return 1;
    complain("can't write: %s", strerror(errno));
    return 0;
}

/*-----------------------------------------------------------------------------
 * MARK: - Times
 * >>times   "1h30m" and "2026-11-21T15:00:00Z"
 *---------------------------------------------------------------------------*/

#define MOST_MS INT64_C(1000000000000000) /* a few ten thousand years */

/* The length of the unit at s in ms, and behind it; 0: none. */
static double unit_ms(const char **s) {
    static const struct {
        const char *name;
        double ms;
    } units[] = {{"ms", 1},   {"s", 1e3},   {"m", 60e3},
                 {"h", 36e5}, {"d", 864e5}, {"w", 6048e5}};
    size_t i, len = strspn(*s, "abcdefghijklmnopqrstuvwxyz");
    for (i = 0; i < sizeof units / sizeof units[0]; i++) {
        if (len == strlen(units[i].name) && !strncmp(*s, units[i].name, len)) {
            *s += len;
            return units[i].ms;
        }
    }
    return 0;
}

/* "500ms", "1.5h", "1h30m", "0"; "forever". 1: understood. */
static int read_duration(const char *s, int64_t *ms) {
    double sum = 0;
    *ms = 0;
    if (strcmp(s, "0") == 0) return 1;
    if (strcmp(s, "forever") == 0) {
        *ms = FOREVER;
        return 1;
    }
    if (!*s) return 0;
    while (*s) {
        size_t len = strspn(s, "0123456789.");
        char number[32], *end;
        double value, unit;
        if (len == 0 || len >= sizeof number || !isdigit((unsigned char)*s))
            return 0;
        memcpy(number, s, len);
        number[len] = '\0';
        value = strtod(number, &end);
        s += len;
        unit = unit_ms(&s);
        if (*end || unit <= 0) return 0;
        sum += value * unit;
    }
    if (sum > (double)MOST_MS) return 0;
    *ms = (int64_t)(sum + 0.5);
    return 1;
}

/* n digits; -1: not so. */
static int digits(const char **s, int n) {
    int value = 0;
    while (n-- > 0) {
        if (!isdigit((unsigned char)**s)) return -1;
        value = value * 10 + *(*s)++ - '0';
    }
    return value;
}

static int sign(const char **s, const char *which) {
    return **s && strchr(which, **s) ? *(*s)++ : 0;
}

/* Days from 1970-01-01, by the Gregorian calendar. */
static int64_t days(int y, int m, int d) {
    int64_t year = m > 2 ? y : y - 1, era = year / 400, yoe = year % 400;
    int64_t doy = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* A fraction of a second at s: ".25" is 250. */
static int fraction(const char **s) {
    int ms = 0, unit = 100;
    if (!sign(s, ".")) return 0;
    for (; isdigit((unsigned char)**s); (*s)++, unit /= 10)
        ms += (**s - '0') * unit;
    return ms;
}

/* Seconds to add for "Z", "+01:00" or "-0530"; local time has none. */
static int zone(const char **s, int64_t *offset) {
    int plus = sign(s, "Zz+-"), h, m;
    *offset = 0;
    if (plus == 0) return 0;
    if (plus == 'Z' || plus == 'z') return 1;
    h = digits(s, 2);
    sign(s, ":");
    m = digits(s, 2);
    if (h < 0 || h > 23 || m < 0 || m > 59) return -1;
    *offset = (h * 60 + m) * (plus == '+' ? -60 : 60);
    return 1;
}

/* "2026-11-21T15:00[:00[.5]][Z|+01:00]", a blank for the T; without a zone
 * it is local time. 1: understood. */
static int read_date(const char *s, int64_t *ms) {
    int y = digits(&s, 4), mo, d, h, mi, sec = 0, part = 0, zoned;
    int64_t offset, seconds;
    if (y < 1970 || !sign(&s, "-")) return 0;
    mo = digits(&s, 2);
    if (!sign(&s, "-")) return 0;
    d = digits(&s, 2);
    if (!sign(&s, "Tt ")) return 0;
    h = digits(&s, 2);
    if (!sign(&s, ":")) return 0;
    mi = digits(&s, 2);
    if (sign(&s, ":")) {
        sec = digits(&s, 2);
        part = fraction(&s);
    }
    zoned = zone(&s, &offset);
    if (mo < 1 || mo > 12 || d < 1 || d > 31 || h < 0 || h > 23 || mi < 0 ||
        mi > 59 || sec < 0 || sec > 60 || zoned < 0 || *s)
        return 0;
    if (days(y, mo, d) >= days(y + mo / 12, mo % 12 + 1, 1)) return 0;
    if (zoned) {
        seconds = days(y, mo, d) * 86400 + h * 3600 + mi * 60 + sec + offset;
    } else {
        struct tm t;
        memset(&t, 0, sizeof t);
        t.tm_year = y - 1900, t.tm_mon = mo - 1, t.tm_mday = d;
        t.tm_hour = h, t.tm_min = mi, t.tm_sec = sec, t.tm_isdst = -1;
        seconds = (int64_t)mktime(&t);
        if (seconds < 0) return 0;
    }
    *ms = seconds * 1000 + part;
    return 1;
}

/* "@1900000000", "@1900000000.5". */
static int read_epoch(const char *s, int64_t *ms) {
    int64_t seconds = 0;
    size_t len = strspn(s, "0123456789");
    if (len < 1 || len > 12) return 0;
    while (len-- > 0) seconds = seconds * 10 + *s++ - '0';
    *ms = seconds * 1000 + fraction(&s);
    return *s == '\0';
}

/* A DELAY: *delay_ms from now, or at *due_ms where that is > 0. */
static int read_delay(const char *s, int64_t *delay_ms, int64_t *due_ms) {
    *delay_ms = *due_ms = 0;
    if (*s == '@' || (strlen(s) > 4 && s[4] == '-')) {
        if (!(*s == '@' ? read_epoch(s + 1, due_ms) : read_date(s, due_ms)))
            return 0;
        if (*due_ms < 1) *due_ms = 1;
        return 1;
    }
    return read_duration(s, delay_ms) && *delay_ms != FOREVER;
}

static const char not_a_delay[] =
    "not a delay: %s\ndelayq: write 500ms, 5s, 2m, 1h30m, 1d, @1900000000 or "
    "2026-11-21T15:00:00Z";

/* Local time, "2026-11-21 15:00:00". */
static const char *date(int64_t ms, char *to, size_t size) {
    time_t t = (time_t)(ms / 1000);
    struct tm *tm = localtime(&t);
    if (!tm || strftime(to, size, "%Y-%m-%d %H:%M:%S", tm) == 0)
        snprintf(to, size, "%" PRId64 "ms", ms);
    return to;
}

static int64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/*-----------------------------------------------------------------------------
 * MARK: - Signals
 * >>signals   Ctrl-C, children, a new window size
 *
 * A signal sets a flag, wakes the take that may be under way, and writes into
 * a pipe that every other wait polls.
 *---------------------------------------------------------------------------*/

static delayq *handles; /* the open queues, */
static size_t handle_count;
static volatile sig_atomic_t stops; /* how many stop signals came, */
static volatile sig_atomic_t stop_signal;
static volatile sig_atomic_t suspended; /* Ctrl-Z, seen by watch */
static int alarm_pipe[2];

static void on_signal(int number) {
    int saved = errno;
    size_t i;
    if (number == SIGTSTP) suspended = 1;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP) {
        stops++;
        stop_signal = number;
    }
    for (i = 0; i < handle_count; i++) delayq_wake(&handles[i]);
    if (write(alarm_pipe[1], "s", 1) < 0) {
        /* the pipe is full: its readers wake anyway */
    }
    errno = saved;
}

static void catch_signal(int number, void (*how)(int)) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = how;
    sigemptyset(&action.sa_mask);
    sigaction(number, &action, NULL); /* a blocked read ends with EINTR */
}

/* A signal that nohup has set to be ignored stays ignored. */
static void catch_stop(int number) {
    struct sigaction old;
    if (sigaction(number, NULL, &old) == 0 && old.sa_handler != SIG_IGN)
        catch_signal(number, on_signal);
}

static void prepare_signals(void) {
    int i;
    if (pipe(alarm_pipe) != 0) {
        complain("no pipe: %s", strerror(errno));
        exit(BROKEN);
    }
    for (i = 0; i < 2; i++) {
        fcntl(alarm_pipe[i], F_SETFL, O_NONBLOCK);
        fcntl(alarm_pipe[i], F_SETFD, FD_CLOEXEC);
    }
    catch_signal(SIGPIPE, SIG_IGN); /* a write says what happened */
    catch_stop(SIGINT);
    catch_stop(SIGTERM);
    catch_stop(SIGHUP);
}

/* Sleep until a signal, or fd (if it isn't -1) is readable, which is 1. */
static int wait_for(int fd, int64_t ms) {
    struct pollfd p[2];
    char said[64];
    p[0].fd = alarm_pipe[0];
    p[1].fd = fd;
    p[0].events = p[1].events = POLLIN;
    p[0].revents = p[1].revents = 0;
    if (ms < 0) ms = 0;
    poll(p, fd < 0 ? 1 : 2, ms > 3600000 ? 3600000 : (int)ms);
    if (p[0].revents)
        while (read(alarm_pipe[0], said, sizeof said) > 0) continue;
    return fd >= 0 && p[1].revents != 0;
}

/* The exit code of a command that a signal has stopped. */
static int stopped(void) {
    return 128 + (int)stop_signal;
}

/*-----------------------------------------------------------------------------
 * MARK: - Handle
 * >>handle   opening a queue
 *---------------------------------------------------------------------------*/

/* Print each fault that a call waits out, once. */
static void tell(void *user, delayq_status status, const char *text) {
    static char last[256];
    (void)user;
    (void)status;
    if (set.quiet || strcmp(text, last) == 0) return;
    snprintf(last, sizeof last, "%s", text);
    complain("%s; trying again", text);
}

static int io_timeout_ms; /* 0: the library's default */

static delayq_options options_for(const char *name) {
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = name;
    o.url = set.url;
    o.tls_ca = set.tls_ca;
    o.tls_cert = set.tls_cert;
    o.tls_key = set.tls_key;
    o.wire = (delayq_wire)set.wire;
    o.lease_ms = set.lease_ms;
    o.max_attempts = set.max_attempts > 65535 ? -1 : (int)set.max_attempts;
    o.backoff_ms = set.backoff_ms;
    o.backoff_max_ms = set.backoff_max_ms;
    o.io_timeout_ms = io_timeout_ms;
    o.log = tell;
    return o;
}

static delayq_status failed(const delayq *q, delayq_status status) {
    if (status < 0) complain("%s", delayq_errmsg(q));
    return status;
}

#define ONLY_TICKS 2

/* Open the queues; returns DONE or an exit code. With `patient` a server that
 * can't be reached yet is no failure; with ONLY_TICKS a refusal of the wire is
 * none: it may be of offers and takes only, and the ticks will tell. */
static int open_all(char **names, size_t count, int patient) {
    size_t i;
    delayq *all = (delayq *)must(calloc(count, sizeof *all));
    for (i = 0; i < count; i++) {
        delayq_options o = options_for(names[i]);
        delayq_status status = delayq_open(&all[i], &o);
        handles = all;
        handle_count = i + 1; /* from here on a signal wakes it */
        if (status == DELAYQ_OK) continue;
        if ((patient & 1) && passing(status)) {
            tell(NULL, status, delayq_errmsg(&all[i]));
            continue;
        }
        if ((patient & ONLY_TICKS) && status == DELAYQ_ERR_WIRE) continue;
        return exit_code(failed(&all[i], status));
    }
    return DONE;
}

static int open_one(char *name, int patient) {
    return open_all(&name, 1, patient);
}

static void close_all(void) {
    size_t i, count = handle_count;
    handle_count = 0;
    for (i = 0; i < count; i++) delayq_close(&handles[i]);
    free(handles);
    handles = NULL;
}

/* The server's clock, or ours if the server doesn't answer. */
static int64_t server_ms(delayq *q) {
    delayq_counts c;
    if (delayq_count(q, &c) == DELAYQ_OK) return c.now_ms;
    return (int64_t)time(NULL) * 1000;
}

/*-----------------------------------------------------------------------------
 * MARK: - Offer
 * >>offer   from the command line, and a million lines
 *---------------------------------------------------------------------------*/

#define BATCH 1000
#define FEED (256 * 1024)

static struct {
    int64_t stored, duplicate, unknown, begun_ms, shown_ms;
    int code; /* the worst so far */
} offered;

static void worse(int code) {
    if (code == UNKNOWN || offered.code == DONE || offered.code == NOTHING)
        offered.code = code;
}

static void show_ticket(const delayq_message *m) {
    if (set.json)
        printf("{\"status\":\"%s\",\"ticket\":\"%s\"}\n",
               m->status == DELAYQ_OK ? "stored" : "duplicate", m->ticket.text);
    else
        printf("%s\n", m->ticket.text);
}

/* On the terminal, five times a second. */
static void show_progress(int last) {
    char n[32], rate[32];
    int64_t now = clock_ms(), took = now - offered.begun_ms;
    if (set.quiet || offered.begun_ms == 0 || !isatty(2) ||
        (!last && now - offered.shown_ms < 200))
        return;
    offered.shown_ms = now;
    fprintf(
        stderr, "\r%s stored, %s a second \033[K",
        commas(offered.stored, n, sizeof n),
        commas(took > 0 ? offered.stored * 1000 / took : 0, rate, sizeof rate));
    if (last) fputs("\r\033[K", stderr);
}

/* Nothing is gained by offering it again. GONE: it was sent twice, and nobody
 * can tell whether the first sending was stored and delivered. */
static int settled(const delayq_message *m) {
    return m->status == DELAYQ_OK || m->status == DELAYQ_DUPLICATE ||
           m->status == DELAYQ_GONE;
}

/* Offer those that aren't settled, one contiguous run at a time. Messages of
 * unknown outcome keep their id, so they are stored once. */
static delayq_status offer_rest(delayq_message *m, size_t count, int again) {
    delayq_status all = DELAYQ_OK;
    size_t i = 0, end;
    while (i < count) {
        delayq_status status;
        if (again && settled(&m[i])) {
            i++;
            continue;
        }
        for (end = i + 1; end < count && !(again && settled(&m[end])); end++)
            continue;
        status = delayq_offer_many(handles, m + i, end - i);
        if (all == DELAYQ_OK || status < 0) all = status;
        i = end;
    }
    return all;
}

/* Offer all, and try again for --retry after a passing fault. */
static delayq_status offer_patiently(delayq_message *m, size_t count) {
    int64_t until = clock_ms() + (set.retry_ms >= 0 ? set.retry_ms : 30000);
    int again = 0;
    for (;;) {
        delayq_status status = offer_rest(m, count, again);
        if (status >= 0 || !passing(status)) return status;
        tell(NULL, status, delayq_errmsg(handles));
        if (stops || clock_ms() >= until) return status;
        wait_for(-1, 100);
        again = 1;
    }
}

/* Offer, and print the result. 0: the next batch would fail, too. */
static int offer_batch(delayq_message *m, size_t count, int show) {
    delayq_status status = offer_patiently(m, count);
    size_t i, refused = 0;
    for (i = 0; i < count; i++) {
        int gone = m[i].status == DELAYQ_GONE;
        if (gone) complain("it is unknown whether it was stored");
        if (settled(&m[i]) && !gone && show) show_ticket(&m[i]);
        offered.stored += m[i].status == DELAYQ_OK;
        offered.duplicate += m[i].status == DELAYQ_DUPLICATE;
        offered.unknown += gone || m[i].status == DELAYQ_ERR_UNKNOWN ||
                           m[i].status == DELAYQ_ERR_PROTOCOL;
        refused += m[i].status < 0;
        worse(m[i].status == DELAYQ_OK ? offered.code
              : gone                   ? UNKNOWN
                                       : exit_code(m[i].status));
    }
    if (status < 0 && !stops) complain("%s", delayq_errmsg(handles));
    show_progress(0);
    return refused == 0;
}

/* Input as it comes: [from, to) of buf is what has been read and not used. */
typedef struct feed {
    char *buf;
    size_t from, to, room;
    int ended;
} feed;

/* Wait for input and read it. 0: stopped or broken. */
static int feed_more(feed *f) {
    ssize_t n;
    if (f->from > 0) memmove(f->buf, f->buf + f->from, f->to - f->from);
    f->to -= f->from;
    f->from = 0;
    if (f->room - f->to < FEED) {
        f->room = 2 * f->room + FEED;
        f->buf = (char *)must(realloc(f->buf, f->room));
    }
    do {
        while (!stops && !wait_for(0, 3600000)) continue;
        if (stops) return 0;
        n = read(0, f->buf + f->to, f->room - f->to);
    } while (n < 0 && (errno == EINTR || errno == EAGAIN));
    if (n < 0) complain("can't read: %s", strerror(errno));
    if (n == 0) f->ended = 1;
    if (n > 0) f->to += (size_t)n;
    return n >= 0;
}

/* The next whole line, or what is left at the end. */
static int feed_line(feed *f, const char **line, size_t *len) {
    const char *at = f->buf + f->from;
    size_t left = f->to - f->from;
    const char *end =
        left > 0 ? (const char *)memchr(at, set.null ? 0 : '\n', left) : NULL;
    if (!end && (!f->ended || left == 0)) return 0;
    *line = at;
    *len = end ? (size_t)(end - at) : left;
    f->from += *len + (end != NULL);
    return 1;
}

/* Offer all complete lines that have been read. */
static int offer_lines(feed *f, delayq_message *m, int64_t delay_ms,
                       int64_t due_ms) {
    const char *line;
    size_t len, n;
    do {
        for (n = 0; n < BATCH && feed_line(f, &line, &len); n++) {
            memset(&m[n], 0, sizeof m[n]);
            m[n].data = line;
            m[n].len = len;
            m[n].delay_ms = delay_ms;
            m[n].due_ms = due_ms;
        }
        if (n > 0 && !offer_batch(m, n, set.tickets || set.json)) return 0;
        if (stops) return 0;
    } while (n == BATCH);
    return 1;
}

static void show_offered(int whole) {
    char n[32], d[32];
    if (set.quiet && whole) return;
    complain("%s stored%s%s%s%s", commas(offered.stored, n, sizeof n),
             whole ? "" : "; stopped before the end",
             offered.unknown ? "; it is unknown whether " : "",
             offered.unknown ? commas(offered.unknown, d, sizeof d) : "",
             offered.unknown ? " more are" : "");
}

static int offer_input(int64_t delay_ms, int64_t due_ms) {
    delayq_message *m = (delayq_message *)must(calloc(BATCH, sizeof *m));
    feed f;
    int good = 1;
    memset(&f, 0, sizeof f);
    offered.begun_ms = clock_ms();
    while (good && !f.ended) {
        if (!feed_more(&f)) {
            if (!stops) offered.code = BROKEN;
            break;
        }
        good = offer_lines(&f, m, delay_ms, due_ms);
    }
    show_progress(1);
    show_offered(good && f.ended);
    free(f.buf);
    free(m);
    return stops && !(good && f.ended) ? stopped() : offered.code;
}

/* All of the input as one payload. 0: stopped or broken. */
static int read_whole(feed *f) {
    if (isatty(0)) complain("reading the payload; end it with Ctrl-D");
    while (!f->ended)
        if (!feed_more(f)) return 0;
    return 1;
}

static int offer_one(const char *text, int64_t delay_ms, int64_t due_ms) {
    delayq_message m;
    feed f;
    memset(&m, 0, sizeof m);
    memset(&f, 0, sizeof f);
    if (!text && !read_whole(&f)) {
        free(f.buf);
        return stops ? stopped() : BROKEN;
    }
    m.data = text ? text : f.buf;
    m.len = text ? strlen(text) : f.to;
    m.delay_ms = delay_ms;
    m.due_ms = due_ms;
    m.key = set.key;
    m.key_ttl_ms = set.key_ttl_ms;
    m.replace = set.replace;
    offer_batch(&m, 1, !set.quiet);
    free(f.buf);
    return offered.code;
}

static int run_offer(int argc, char **argv) {
    const char *text = argc > 2 ? argv[2] : NULL;
    int lines = text && strcmp(text, "-") == 0, code;
    int64_t delay_ms, due_ms;
    if (!read_delay(argv[1], &delay_ms, &due_ms))
        return usage(not_a_delay, argv[1]);
    if (lines && set.key)
        return usage("--key %s is for one payload, not for lines", set.key);
    if (!set.key != !set.key_ttl_ms)
        return usage("--key and --key-ttl go together%s", "");
    if (!lines && set.retry_ms < 0) set.retry_ms = 3000;
    code = open_one(argv[0], lines);
    if (code != DONE) return code;
    return lines ? offer_input(delay_ms, due_ms)
                 : offer_one(text, delay_ms, due_ms);
}

/*-----------------------------------------------------------------------------
 * MARK: - Take
 * >>take   printing due items
 *
 * Even without --lease an item is leased, for a minute, and acked when it has
 * been written: an item that can't be written is delivered again.
 *---------------------------------------------------------------------------*/

#define PRINT_LEASE_MS 60000
#define PRINT_BATCH 100

static int hands_out; /* --lease: the reader of the output acks */

static void show_json_item(const delayq_item *item) {
    putchar('{');
    if (hands_out) printf("\"ticket\":\"%s\",", item->ticket.text);
    if (item->attempt > 0) printf("\"attempt\":%d,", item->attempt);
    if (item->due_ms > 0) printf("\"due_ms\":%" PRId64 ",", item->due_ms);
    if (item->late_us >= 0)
        printf("\"late_ms\":%.3f,", (double)item->late_us / 1000);
    json_payload(item->data, item->len);
    fputs("}\n", stdout);
}

static int show_item(const delayq_item *item) {
    if (set.json) {
        show_json_item(item);
    } else {
        if (hands_out) printf("%s ", item->ticket.text);
        if (item->len > 0) fwrite(item->data, 1, item->len, stdout);
        putchar(set.null ? '\0' : '\n');
    }
    return written();
}

/* Ack the written items until their leases end. DELAYQ_GONE after a lost reply
 * most likely means that the first ack was done. */
static delayq_status ack_written(delayq_item *items, size_t count) {
    int64_t until = clock_ms() + PRINT_LEASE_MS;
    int uncertain = 0;
    for (;;) {
        delayq_status status = delayq_ack_many(handles, items, count);
        size_t i, left = 0;
        if (status == DELAYQ_GONE && !uncertain)
            complain("written too slowly: an item will come again, or has");
        if (status >= 0) return DELAYQ_OK;
        tell(NULL, status, delayq_errmsg(handles));
        uncertain |= status == DELAYQ_ERR_UNKNOWN;
        for (i = 0; i < count; i++)
            if (items[i].acked < 0) items[left++] = items[i];
        count = left;
        if (!passing(status) || stops > 1 || clock_ms() > until) {
            complain("written but not acked: %d will come again", (int)count);
            return status;
        }
        wait_for(-1, 100);
    }
}

static void put_back(const delayq_item *items, size_t count) {
    while (count-- > 0) delayq_nack(handles, items++, DELAYQ_RELEASE);
}

/* Write the items one by one. If the reader is slow, the rest is put back
 * before its leases end. *shown: how many were written. */
static int hand_out(delayq_item *items, size_t count, int64_t *shown) {
    int64_t until = clock_ms() + PRINT_LEASE_MS / 2;
    size_t n = 0;
    int good = 1, code = DONE;
    while (n < count && (n == 0 || clock_ms() < until)) {
        good = show_item(&items[n]);
        if (!good) break;
        n++;
    }
    *shown += (int64_t)n;
    put_back(items + n, count - n);
    if (!hands_out && n > 0) code = exit_code(ack_written(items, n));
    return good ? code : BROKEN;
}

/* How long to wait for the next item. */
static int64_t patience(void) {
    if (set.wait_ms >= 0 && set.wait_ms != FOREVER) return set.wait_ms;
    return set.follow || set.wait_ms == FOREVER ? DELAYQ_FOREVER : 0;
}

static int64_t take_most(void) {
    return set.count >= 0 ? set.count : set.follow ? INT64_MAX : 1;
}

/* Percentiles of lateness: 50, 90 and 99 %. */
static void show_lateness(void) {
    static const int parts[] = {50, 90, 99};
    delayq_counts counts;
    uint64_t sum = 0, seen = 0;
    size_t i, k = 0;
    memset(&counts, 0, sizeof counts);
    delayq_count(handles, &counts); /* on failure, too: those of the handle */
    for (i = 0; i < 24; i++) sum += counts.lateness[i];
    fprintf(stderr, "delayq: %" PRIu64 " taken", counts.taken);
    if (sum > 0) fputs("; late", stderr);
    for (i = 0; sum > 0 && i < 24; i++) {
        double ms = (double)(UINT64_C(1) << i) / 1000;
        seen += counts.lateness[i];
        for (; k < 3 && seen * 100 >= sum * (uint64_t)parts[k]; k++)
            fprintf(stderr, i < 20 ? " p%d<%.3gms" : " p%d<%.3gs", parts[k],
                    i < 20 ? ms : ms / 1000);
    }
    fputc('\n', stderr);
}

static int take_and_print(void) {
    static delayq_item items[PRINT_BATCH];
    int64_t left = take_most(), shown = 0;
    int code = DONE;
    while (left > 0 && !stops && code == DONE) {
        int64_t before = shown;
        size_t n, max = left < PRINT_BATCH ? (size_t)left : PRINT_BATCH;
        delayq_status status =
            delayq_take_many(handles, items, max, &n, patience());
        if (status == DELAYQ_EMPTY) break;
        if (status == DELAYQ_OK)
            code = hand_out(items, n, &shown);
        else if (status < 0)
            code = exit_code(failed(handles, status));
        left -= shown - before;
    }
    if (code != DONE) return code;
    if (stops && !set.follow) return stopped();
    return shown > 0 || stops ? DONE : NOTHING;
}

/*-----------------------------------------------------------------------------
 * MARK: - Exec
 * >>exec   running a command for each item
 *
 * A job is an item and the process that works on it. Each round of the loop
 * acks the items of ended processes, extends the leases of the others, and
 *takes another item if fewer than --jobs run. The end of a process also ends
 *the take, by its signal.
 *
 * The commands have process groups of their own, so that Ctrl-C reaches only
 * this program: it takes no more items and waits for the commands. A second
 * Ctrl-C ends the commands and puts their items back.
 *---------------------------------------------------------------------------*/

typedef struct job {
    delayq_item item; /* without payload: that is the command's input */
    pid_t pid;        /* 0: it has ended */
    int busy, status; /* status: what wait() said */
    int released;     /* ended by us: this attempt doesn't count */
    int uncertain;    /* an ack whose answer was lost */
    int64_t renew_ms, retry_ms, give_up_ms;
} job;

static job jobs[MAX_JOBS];
static int job_count; /* busy ones */
static int64_t exec_failures;

/* The payload as an unnamed file; -1: no space. */
static int payload_file(const delayq_item *item) {
    FILE *file = tmpfile();
    int fd = -1;
    if (!file) return -1;
    if ((item->len == 0 ||
         fwrite(item->data, 1, item->len, file) == item->len) &&
        fflush(file) == 0 && lseek(fileno(file), 0, SEEK_SET) == 0)
        fd = dup(fileno(file));
    fclose(file);
    return fd;
}

static void set_number(const char *name, int64_t value, int known) {
    char text[32] = "";
    if (known) snprintf(text, sizeof text, "%" PRId64, value);
    setenv(name, text, 1);
}

/* In the child: its input is the payload, its environment describes the item.
 */
static void run_command(const char *name, const delayq_item *item, int fd) {
    setpgid(0, 0);
    catch_signal(SIGPIPE, SIG_DFL);
    catch_signal(SIGCHLD, SIG_DFL);
    if (dup2(fd, 0) < 0) _exit(127);
    if (fd != 0) close(fd);
    setenv("DELAYQ_NAME", name, 1);
    setenv("DELAYQ_TICKET", item->ticket.text, 1);
    set_number("DELAYQ_ATTEMPT", item->attempt, item->attempt > 0);
    set_number("DELAYQ_DUE_MS", item->due_ms, item->due_ms > 0);
    set_number("DELAYQ_LATE_MS", item->late_us / 1000, item->late_us >= 0);
    execl("/bin/sh", "sh", "-c", set.exec, (char *)NULL);
    _exit(127);
}

static int64_t renew_every(void) {
    return set.lease_ms / 3 > 0 ? set.lease_ms / 3 : 1;
}

/* Start the command for an item. 0: impossible; the item was put back. */
static int start_job(const char *name, const delayq_item *item) {
    int fd = payload_file(item), i = 0;
    pid_t pid = -1;
    fflush(stdout);
    if (fd >= 0) pid = fork();
    if (pid == 0) run_command(name, item, fd);
    if (pid < 0) complain("can't run a command: %s", strerror(errno));
    if (fd >= 0) close(fd);
    if (pid < 0) {
        put_back(item, 1);
        return 0;
    }
    setpgid(pid, pid); /* in parent and child: either may be first */
    while (jobs[i].busy) i++;
    memset(&jobs[i], 0, sizeof jobs[i]);
    jobs[i].item = *item;
    jobs[i].pid = pid;
    jobs[i].busy = 1;
    jobs[i].renew_ms = clock_ms() + renew_every();
    job_count++;
    return 1;
}

static void show_job(const job *j, const char *result) {
    int s = j->status;
    if (set.json) {
        printf("{\"ticket\":\"%s\",\"attempt\":%d,\"%s\":%d,\"result\":",
               j->item.ticket.text, j->item.attempt,
               WIFEXITED(s) ? "exit" : "signal",
               WIFEXITED(s) ? WEXITSTATUS(s) : WTERMSIG(s));
        printf("\"%s\"}\n", result);
        fflush(stdout);
    } else if (strcmp(result, "acked") != 0 && !set.quiet) {
        complain("%s: the command ended with %s%d: %s", j->item.ticket.text,
                 WIFEXITED(s) ? "" : "signal ",
                 WIFEXITED(s) ? WEXITSTATUS(s) : WTERMSIG(s), result);
    }
}

static void end_job(job *j, const char *result) {
    show_job(j, result);
    j->busy = 0;
    job_count--;
}

/* The command has ended: ack or nack its item; on failure try again later. */
static void settle_job(job *j) {
    int code = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : -1;
    const char *result;
    delayq_status status;
    if (code == 0) {
        result = "acked";
        status = delayq_ack(handles, &j->item);
    } else if (j->released) {
        result = "put back";
        status = delayq_nack(handles, &j->item, DELAYQ_RELEASE);
    } else if (code >= 0 && code == set.bury_on) {
        result = "buried";
        status = delayq_bury(handles, &j->item);
    } else {
        result = "nacked";
        status = delayq_nack(handles, &j->item, DELAYQ_BACKOFF);
    }
    if (status == DELAYQ_GONE && !j->uncertain) result = "lease was lost";
    if (status >= 0) {
        exec_failures += code != 0 && !j->released;
        end_job(j, result);
        return;
    }
    tell(NULL, status, delayq_errmsg(handles));
    j->uncertain |= status == DELAYQ_ERR_UNKNOWN;
    j->retry_ms = clock_ms() + 200;
    if (!passing(status) || stops > 1 || clock_ms() > j->give_up_ms)
        end_job(j, "the server was not reached; it may come again");
}

static void renew_job(job *j) {
    delayq_status status = delayq_extend(handles, &j->item, 0);
    if (status == DELAYQ_GONE)
        complain("%s: the lease was lost; it may run twice",
                 j->item.ticket.text);
    else if (status < 0)
        tell(NULL, status, delayq_errmsg(handles));
    j->renew_ms = status == DELAYQ_GONE ? INT64_MAX
                  : status < 0          ? clock_ms() + 200
                                        : clock_ms() + renew_every();
}

/* Signal all running commands to end; that attempt doesn't count. */
static void end_commands(int number) {
    int i;
    for (i = 0; i < MAX_JOBS; i++) {
        if (!jobs[i].busy || jobs[i].pid == 0) continue;
        jobs[i].released = 1;
        kill(-jobs[i].pid, number);
    }
}

/* Ack, extend or retry each job; returns when to call this again. */
static int64_t tend_jobs(void) {
    int64_t next = INT64_MAX;
    int i;
    for (i = 0; i < MAX_JOBS; i++) {
        job *j = &jobs[i];
        if (j->busy && j->pid && waitpid(j->pid, &j->status, WNOHANG) > 0) {
            j->pid = 0;
            j->give_up_ms = clock_ms() + set.lease_ms + 10000;
        }
        if (j->busy && j->pid == 0 && clock_ms() >= j->retry_ms) settle_job(j);
        if (j->busy && j->pid && clock_ms() >= j->renew_ms) renew_job(j);
        if (j->busy && j->pid && j->renew_ms < next) next = j->renew_ms;
        if (j->busy && !j->pid && j->retry_ms < next) next = j->retry_ms;
    }
    return next;
}

/* New stop signals: the first prints a line, later ones go to the commands. */
static void heed_stops(void) {
    static int heeded;
    if (stops == heeded) return;
    heeded = (int)stops;
    if (stops > 1)
        end_commands(stops > 2 ? SIGKILL : SIGTERM);
    else if (job_count > 0 && !set.quiet)
        complain("stopping; waiting for %d command%s (once more: ends %s)",
                 job_count, job_count > 1 ? "s" : "",
                 job_count > 1 ? "them" : "it");
}

/* Take an item and start its command. 0: take no more, for the reason *code. */
static int take_job(const char *name, int64_t idle_ms, int64_t next_ms,
                    int *code) {
    int64_t now = clock_ms(), wait = patience();
    delayq_status status;
    delayq_item item;
    if (wait > 0) wait = idle_ms + wait > now ? idle_ms + wait - now : 0;
    if (job_count > 0 && wait != 0 && (wait < 0 || now + wait > next_ms))
        wait = next_ms > now ? next_ms - now : 1;
    status = delayq_take(handles, &item, wait);
    if (status == DELAYQ_OK && stops) {
        put_back(&item, 1); /* it came together with the stop signal */
        return 0;
    }
    if (status == DELAYQ_OK) {
        if (start_job(name, &item)) return 1;
        *code = BROKEN;
        return 0;
    }
    if (status == DELAYQ_WOKEN) return 1;
    if (patience() < 0 || clock_ms() < idle_ms + patience()) {
        /* only this round is over */
        if (status == DELAYQ_EMPTY || passing(status)) return 1;
    }
    if (status == DELAYQ_EMPTY) return 0;
    *code = exit_code(failed(handles, status));
    return 0;
}

static int take_and_run(const char *name) {
    int64_t left = take_most(), idle_ms = clock_ms(), taken = 0;
    int more = 1, code = DONE;
    catch_signal(SIGCHLD, on_signal);
    for (;;) {
        int64_t next = tend_jobs();
        int before = job_count;
        heed_stops();
        more = more && !stops && taken < left;
        if (!more && job_count == 0) break;
        if (more && job_count < set.jobs) {
            more = take_job(name, idle_ms, next, &code);
            if (job_count > before) taken++, idle_ms = clock_ms();
        } else {
            wait_for(-1, next - clock_ms());
            idle_ms = clock_ms();
        }
    }
    if (code != DONE) return code;
    if (exec_failures > 0 && !set.follow) return FAILED;
    if (stops && !set.follow && taken < left) return stopped();
    return taken > 0 || stops ? DONE : NOTHING;
}

static int run_take(int argc, char **argv) {
    int code;
    (void)argc;
    hands_out = set.lease_ms > 0 && !set.exec;
    if (set.lease_ms == 0) set.lease_ms = PRINT_LEASE_MS;
    if (set.jobs < 1 || set.jobs > MAX_JOBS)
        return usage("--jobs: 1 to 64%s", "");
    if (set.exec && set.lease_ms < 100)
        return usage("--lease: 100ms or more with --exec%s", "");
    code = open_one(argv[0], patience() != 0);
    if (code == DONE)
        code = set.exec ? take_and_run(argv[0]) : take_and_print();
    if (set.stats && handle_count > 0) show_lateness();
    return code;
}

/*-----------------------------------------------------------------------------
 * MARK: - Tick
 * >>tick   moving due items
 *---------------------------------------------------------------------------*/

/* Sleep until the next tick of a queue. */
static void sleep_ticks(int64_t wait_ms) {
    size_t i, n = 0;
    struct pollfd *p =
        (struct pollfd *)must(calloc(3 * handle_count + 1, sizeof *p));
    for (i = 0; i < handle_count; i++) {
        int fds[3];
        size_t k, got = delayq_fds(&handles[i], fds, 3);
        for (k = 0; k < got; k++, n++) {
            p[n].fd = fds[k];
            p[n].events = POLLIN;
        }
    }
    if (!stops) poll(p, (nfds_t)n, (int)wait_ms);
    free(p);
}

/* A tick of each; returns how long to wait, or -1 with the failure. */
static int64_t tick_all(delayq_status *status) {
    int64_t least = 10000;
    size_t i;
    for (i = 0; i < handle_count; i++) {
        int64_t wait_ms;
        *status = delayq_tick(&handles[i], &wait_ms);
        if (*status < 0 && (set.once || !passing(*status))) {
            failed(&handles[i], *status);
            return -1;
        }
        if (*status < 0) tell(NULL, *status, delayq_errmsg(&handles[i]));
        if (wait_ms < least) least = wait_ms;
    }
    return least;
}

static uint64_t moved_so_far(void) {
    uint64_t sum = 0;
    size_t i;
    for (i = 0; i < handle_count; i++) {
        delayq_counts counts; /* the handle's are set on failure, too */
        memset(&counts, 0, sizeof counts);
        delayq_count(&handles[i], &counts);
        sum += counts.moved;
    }
    return sum;
}

static int run_tick(int argc, char **argv) {
    delayq_status status = DELAYQ_OK;
    int code = open_all(argv, (size_t)argc, ONLY_TICKS | !set.once);
    uint64_t moved;
    if (code != DONE) return code;
    while (!stops) {
        int64_t wait_ms = tick_all(&status);
        if (wait_ms < 0) return exit_code(status);
        if (wait_ms > 0 && set.once) break;
        sleep_ticks(wait_ms);
    }
    moved = moved_so_far();
    if (set.json)
        printf("{\"moved\":%" PRIu64 "}\n", moved);
    else if (!set.quiet)
        printf("%" PRIu64 " moved\n", moved);
    return moved > 0 || !set.once ? DONE : NOTHING;
}

/*-----------------------------------------------------------------------------
 * MARK: - Tickets
 * >>tickets   ack, nack, extend, bury, cancel, reschedule
 *---------------------------------------------------------------------------*/

/* Open the queue and put the ticket into an item. */
static int open_ticket(char **argv, delayq_item *item) {
    memset(item, 0, sizeof *item);
    item->attempt = set.attempt > 65535 ? 65535 : (int)set.attempt;
    snprintf(item->ticket.text, sizeof item->ticket.text, "%s", argv[1]);
    if (strlen(argv[1]) >= sizeof item->ticket.text)
        return usage("not a ticket: %s", argv[1]);
    return open_one(argv[0], 0);
}

/* Print the outcome, and the new ticket if there is one. */
static int show_outcome(delayq_status status, const char *word,
                        const delayq_ticket *now) {
    if (status == DELAYQ_GONE && !set.quiet)
        complain("gone: delivered, acked or cancelled before");
    failed(handles, status);
    if (set.json) {
        printf("{\"status\":\"%s\"", status == DELAYQ_OK     ? word
                                     : status == DELAYQ_GONE ? "gone"
                                                             : "failed");
        if (status == DELAYQ_OK && now) printf(",\"ticket\":\"%s\"", now->text);
        puts("}");
    } else if (status == DELAYQ_OK && now && !set.quiet) {
        puts(now->text);
    }
    return exit_code(status);
}

static int run_ack(int argc, char **argv) {
    delayq_item item;
    int code = open_ticket(argv, &item);
    (void)argc;
    if (code != DONE) return code;
    return show_outcome(delayq_ack(handles, &item), "acked", NULL);
}

static int run_cancel(int argc, char **argv) {
    delayq_item item;
    int code = open_ticket(argv, &item);
    (void)argc;
    if (code != DONE) return code;
    return show_outcome(delayq_cancel(handles, &item.ticket), "cancelled",
                        NULL);
}

static int run_bury(int argc, char **argv) {
    delayq_item item;
    int code = open_ticket(argv, &item);
    (void)argc;
    if (code != DONE) return code;
    return show_outcome(delayq_bury(handles, &item), "buried", NULL);
}

/* A DELAY as milliseconds from now, by the server's clock. */
static int64_t from_now(int64_t delay_ms, int64_t due_ms) {
    int64_t left = due_ms > 0 ? due_ms - server_ms(handles) : delay_ms;
    return left > 0 ? left : 0;
}

static int run_nack(int argc, char **argv) {
    int64_t delay_ms = 0, due_ms = 0;
    delayq_item item;
    int code;
    if (argc > 2 && !read_delay(argv[2], &delay_ms, &due_ms))
        return usage(not_a_delay, argv[2]);
    if (argc > 2 && set.release)
        return usage("--release goes without a DELAY%s", "");
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    delay_ms = set.release ? DELAYQ_RELEASE
               : argc > 2  ? from_now(delay_ms, due_ms)
                           : DELAYQ_BACKOFF;
    return show_outcome(delayq_nack(handles, &item, delay_ms), "nacked", NULL);
}

static int run_extend(int argc, char **argv) {
    delayq_item item;
    int64_t lease_ms;
    int code;
    (void)argc;
    if (!read_duration(argv[2], &lease_ms) || lease_ms == FOREVER)
        return usage("not a duration: %s", argv[2]);
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    return show_outcome(delayq_extend(handles, &item, lease_ms), "extended",
                        &item.ticket);
}

static int run_reschedule(int argc, char **argv) {
    int64_t delay_ms, due_ms;
    delayq_item item;
    delayq_status status;
    int code;
    (void)argc;
    if (!read_delay(argv[2], &delay_ms, &due_ms))
        return usage(not_a_delay, argv[2]);
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    status =
        delayq_reschedule(handles, &item.ticket, from_now(delay_ms, due_ms));
    return show_outcome(status, "rescheduled", &item.ticket);
}

/*-----------------------------------------------------------------------------
 * MARK: - Inspect
 * >>inspect   peek, count, dead, redrive, clear
 *---------------------------------------------------------------------------*/

#define PAGE 100

static void show_peeked(const delayq_item *item, int64_t now_ms) {
    char left[32], text[256];
    int64_t ms = item->due_ms - now_ms;
    if (set.json) {
        printf("{\"ticket\":\"%s\",\"due_ms\":%" PRId64 ",\"attempt\":%d,",
               item->ticket.text, item->due_ms, item->attempt);
        json_payload(item->data, item->len);
        fputs("}\n", stdout);
        return;
    }
    distance(ms < 0 ? -ms : ms, left, sizeof left);
    preview(item->data, item->len, text, sizeof text);
    printf("%s  %s%s  %d  %s\n", item->ticket.text, ms < 0 ? "-" : "+", left,
           item->attempt, text);
}

static int run_peek(int argc, char **argv) {
    static delayq_item items[PAGE];
    int64_t left = set.count > 0 ? set.count : set.count == 0 ? INT64_MAX : 10;
    int64_t shown = 0, now_ms;
    delayq_ticket after;
    int code = open_one(argv[0], 0);
    (void)argc;
    if (code != DONE) return code;
    memset(&after, 0, sizeof after);
    if (set.after) snprintf(after.text, sizeof after.text, "%s", set.after);
    now_ms = server_ms(handles);
    while (left > 0 && !stops) {
        size_t i, n, max = left < PAGE ? (size_t)left : PAGE;
        delayq_status status = delayq_peek(handles, items, max, &n, &after);
        if (status == DELAYQ_EMPTY) break;
        if (status != DELAYQ_OK) return exit_code(failed(handles, status));
        for (i = 0; i < n; i++) show_peeked(&items[i], now_ms);
        after = items[n - 1].ticket;
        shown += (int64_t)n;
        left -= (int64_t)n;
        if (!written()) return BROKEN;
    }
    return shown > 0 ? DONE : NOTHING;
}

static void show_counts(const char *name, const delayq_counts *c) {
    char text[64];
    if (set.json) {
        fputs("{\"queue\":", stdout);
        json_text(name);
        printf(",\"pending\":%" PRId64 ",\"overdue\":%" PRId64
               ",\"overdue_ms\":%" PRId64 ",\"ready\":%" PRId64
               ",\"dead\":%" PRId64 ",\"next_due_ms\":",
               c->pending, c->overdue, c->overdue_ms, c->ready, c->dead);
        if (c->next_due_ms > 0)
            printf("%" PRId64 "}\n", c->next_due_ms);
        else
            puts("null}");
        return;
    }
    printf("queue    %s\npending  %" PRId64 "\noverdue  %" PRId64, name,
           c->pending, c->overdue);
    if (c->overdue > 0)
        printf("  oldest %s", distance(c->overdue_ms, text, sizeof text));
    printf("\nready    %" PRId64 "\ndead     %" PRId64 "\n", c->ready, c->dead);
    if (c->next_due_ms > 0)
        printf("next     %s\n", date(c->next_due_ms, text, sizeof text));
}

static int run_count(int argc, char **argv) {
    size_t i;
    int code = open_all(argv, (size_t)argc, 0);
    if (code != DONE) return code;
    for (i = 0; i < handle_count; i++) {
        delayq_counts counts;
        delayq_status status = delayq_count(&handles[i], &counts);
        if (status != DELAYQ_OK) return exit_code(failed(&handles[i], status));
        if (i > 0 && !set.json) putchar('\n');
        show_counts(argv[i], &counts);
    }
    return DONE;
}

static void show_dead(const delayq_dead *d, int64_t number) {
    char text[256], when[64];
    if (set.json) {
        printf("{\"number\":%" PRId64 ",\"reason\":\"%s\",\"dead_ms\":%" PRId64
               ",\"attempt\":%d,",
               number, d->reason, d->dead_ms, d->attempt);
        json_payload(d->data, d->len);
        fputs("}\n", stdout);
        return;
    }
    preview(d->data, d->len, text, sizeof text);
    printf("%" PRId64 "  %s  %s  %d  %s\n", number,
           date(d->dead_ms, when, sizeof when), d->reason, d->attempt, text);
}

static int run_dead(int argc, char **argv) {
    static delayq_dead letters[PAGE];
    int64_t most = set.count > 0 ? set.count : set.count == 0 ? INT64_MAX : 10;
    int64_t shown = 0;
    int code = open_one(argv[0], 0);
    (void)argc;
    if (code != DONE) return code;
    while (shown < most && !stops) {
        size_t i, n, max = most - shown < PAGE ? (size_t)(most - shown) : PAGE;
        delayq_status status = delayq_dead_peek(handles, letters, max, &n,
                                                (size_t)(set.from + shown));
        if (status == DELAYQ_EMPTY) break;
        if (status != DELAYQ_OK) return exit_code(failed(handles, status));
        for (i = 0; i < n; i++) show_dead(&letters[i], set.from + shown++);
        if (!written()) return BROKEN;
    }
    return shown > 0 ? DONE : NOTHING;
}

/* Dead letters that can't be decoded move to the end. Stop after as many rounds
 * without success as there are pages: only such letters are left. */
static int run_redrive(int argc, char **argv) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX, done = 0, in_vain = 0;
    delayq_counts counts;
    delayq_status status;
    int code = open_one(argv[0], 0);
    (void)argc;
    if (code != DONE) return code;
    status = delayq_count(handles, &counts);
    while (status == DELAYQ_OK && done < left && !stops && done < counts.dead &&
           in_vain <= counts.dead / 1000) {
        size_t n, max = left - done < 1000 ? (size_t)(left - done) : 1000;
        status = delayq_dead_redrive(handles, max, &n);
        done += (int64_t)n;
        in_vain = n > 0 ? 0 : in_vain + 1;
    }
    failed(handles, status);
    if (set.json)
        printf("{\"redriven\":%" PRId64 "}\n", done);
    else if (!set.quiet)
        printf("%" PRId64 " made ready\n", done);
    if (status != DELAYQ_OK) return exit_code(status);
    return done > 0 ? DONE : NOTHING;
}

/* Ask on the terminal. 1: yes, 0: no, -1: there is no terminal. */
static int agreed(const char *name, const delayq_counts *c) {
    char answer[16], n[32];
    if (set.yes) return 1;
    if (!isatty(0) || !isatty(2)) return -1;
    fprintf(stderr, "Remove %s %s of the queue %s? [y/N] ",
            commas(set.dead ? c->dead : c->pending + c->ready, n, sizeof n),
            set.dead ? "dead letters" : "items", name);
    if (!fgets(answer, sizeof answer, stdin)) return 0;
    return answer[0] == 'y' || answer[0] == 'Y';
}

static int run_clear(int argc, char **argv) {
    delayq_counts counts;
    delayq_status status;
    int64_t removed = 0;
    int code = open_one(argv[0], 0), yes;
    (void)argc;
    if (code != DONE) return code;
    status = delayq_count(handles, &counts);
    if (status != DELAYQ_OK) return exit_code(failed(handles, status));
    yes = agreed(argv[0], &counts);
    if (yes < 0) return usage("clear asks on a terminal, or needs --yes%s", "");
    if (yes == 0) {
        complain("nothing was removed");
        return stops ? stopped() : NOTHING;
    }
    status = set.dead ? delayq_dead_clear(handles, &removed)
                      : delayq_clear(handles, &removed);
    failed(handles, status);
    if (set.json)
        printf("{\"removed\":%" PRId64 "}\n", removed);
    else if (!set.quiet)
        printf("%" PRId64 " removed\n", removed);
    return exit_code(status);
}

/*-----------------------------------------------------------------------------
 * MARK: - Watch
 * >>watch   the live view
 *
 * A refresh costs the server one delayq_count and a few ZCOUNTs per queue,
 * each O(log n); for the queue shown below the table also one ZCOUNT per bar
 * and a peek of at most 500 items or 256 KiB.
 *
 * Only the taker knows how late an item was taken (`take --stats`); this view
 * shows how late the items are that are still in the set. Rates are net,
 *computed from two counts: `in` is the growth of the items that are due later
 *than the next poll (offers, leases and back-offs, less acks and cancels),
 *`out` is `in` less the growth of all items. An item that is offered and
 *delivered between two polls is not seen.
 *---------------------------------------------------------------------------*/

#define BARS 16
#define NEXT 500

/* The edges between the bars, in ms from now. If the screen has fewer lines,
 * edges of a higher level are left out. */
static const struct {
    int64_t ms;
    int level;
    const char *text;
} edges[BARS - 1] = {
    {-3600000, 4, "1 h"}, {-60000, 3, "1 min"},  {-10000, 4, "10 s"},
    {-1000, 3, "1 s"},    {0, 1, "now"},         {1000, 3, "1 s"},
    {5000, 4, "5 s"},     {15000, 2, "15 s"},    {60000, 1, "1 min"},
    {300000, 4, "5 min"}, {900000, 3, "15 min"}, {3600000, 2, "1 h"},
    {21600000, 4, "6 h"}, {86400000, 1, "1 d"},  {604800000, 3, "7 d"}};
#define NOW 4 /* its number: the bars up to this one are overdue */

typedef struct view {
    const char *name;
    delayq_status status;
    char why[256]; /* why the last poll failed */
    delayq_counts counts;
    int64_t bars[BARS];
    int has_bars;
    int64_t asked_ms, far_ms, far, total; /* of the last poll, for the rates */
    int has_rate;
    double in, out;
} view;

static view *views;
static size_t selected;
static int64_t server_offset_ms;     /* the server's clock less ours */
static int64_t polled_ms;            /* time of the last poll, server's clock */
static delayq_item next_items[NEXT]; /* of the selected one */
static size_t next_count;

/* Count the items due later than the last poll's horizon and than this one's,
 * and on request for each bar. */
static int look_further(delayq *q, view *v, int bars, int64_t horizon,
                        int64_t far[2]) {
    int64_t due[3 + BARS], counts[3 + BARS], now = v->counts.now_ms;
    size_t n = 3;
    int i;
    due[0] = INT64_C(9007199254740991); /* all */
    due[1] = v->far_ms;
    due[2] = horizon;
    for (i = 0; bars && i < BARS - 1; i++) due[n++] = now + edges[i].ms;
    v->status = delayq_count_due(q, due, n, counts);
    if (v->status != DELAYQ_OK) return 0;
    far[0] = counts[0] - counts[1];
    far[1] = counts[0] - counts[2];
    for (i = 0; bars && i < BARS; i++)
        v->bars[i] = (i < BARS - 1 ? counts[3 + i] : counts[0]) -
                     (i > 0 ? counts[2 + i] : 0);
    return 1;
}

static void reckon_rates(view *v, int64_t far, int64_t total) {
    double s = (double)(clock_ms() - v->asked_ms) / 1000;
    double grown = (double)(total - v->total);
    double in = (double)(far - v->far), out;
    if (in < 0) in = 0;
    if (in < grown) in = grown; /* growth needs as many offers */
    out = in - grown;
    v->in = s > 0 ? in / s : 0;
    v->out = s > 0 ? out / s : 0;
}

static void refresh(size_t i) {
    delayq *q = &handles[i];
    view *v = &views[i];
    int had = v->has_rate;
    int64_t far[2], horizon, total;
    v->has_rate = v->has_bars = 0;
    v->status = delayq_count(q, &v->counts);
    if (v->status != DELAYQ_OK) {
        snprintf(v->why, sizeof v->why, "%s", delayq_errmsg(q));
        return;
    }
    server_offset_ms = v->counts.now_ms - clock_ms();
    horizon = v->counts.now_ms + set.interval_ms + 200;
    if (!look_further(q, v, i == selected, horizon, far)) {
        snprintf(v->why, sizeof v->why, "%s", delayq_errmsg(q));
        return;
    }
    v->has_bars = i == selected;
    total = v->counts.pending + v->counts.ready + v->counts.dead;
    if (had) reckon_rates(v, far[0], total);
    v->far_ms = horizon;
    v->far = far[1];
    v->total = total;
    v->has_rate = 1 + (had > 0);
    v->asked_ms = clock_ms();
}

static void refresh_all(int items) {
    size_t i;
    next_count = 0;
    for (i = 0; i < handle_count; i++) refresh(i);
    polled_ms = clock_ms() + server_offset_ms;
    if (items && views[selected].status == DELAYQ_OK)
        delayq_peek(&handles[selected], next_items, NEXT, &next_count, NULL);
}

/* --- plain lines, if the output is no terminal --- */

static void show_json_view(const view *v) {
    int i;
    fputs("{\"queue\":", stdout);
    json_text(v->name);
    printf(",\"time_ms\":%" PRId64, clock_ms() + server_offset_ms);
    if (v->status != DELAYQ_OK) {
        fputs(",\"error\":", stdout);
        json_text(v->why);
        puts("}");
        return;
    }
    printf(",\"pending\":%" PRId64 ",\"overdue\":%" PRId64
           ",\"overdue_ms\":%" PRId64 ",\"ready\":%" PRId64
           ",\"dead\":%" PRId64,
           v->counts.pending, v->counts.overdue, v->counts.overdue_ms,
           v->counts.ready, v->counts.dead);
    if (v->has_rate > 1) printf(",\"in\":%.1f,\"out\":%.1f", v->in, v->out);
    if (v->has_bars) fputs(",\"due\":[", stdout);
    for (i = 0; v->has_bars && i < BARS; i++) {
        printf("%s{", i > 0 ? "," : "");
        if (i < BARS - 1) printf("\"until_ms\":%" PRId64 ",", edges[i].ms);
        printf("\"count\":%" PRId64 "}", v->bars[i]);
    }
    puts(v->has_bars ? "]}" : "}");
}

static void show_plain_view(const view *v) {
    const delayq_counts *c = &v->counts;
    char now[64], oldest[32];
    date((int64_t)time(NULL) * 1000, now, sizeof now);
    if (v->status != DELAYQ_OK) {
        printf("%s %s error: %s\n", now, v->name, v->why);
        return;
    }
    printf("%s %s pending %" PRId64 " overdue %" PRId64
           " oldest %s ready %" PRId64 " dead %" PRId64,
           now, v->name, c->pending, c->overdue,
           distance(c->overdue_ms, oldest, sizeof oldest), c->ready, c->dead);
    if (v->has_rate > 1) printf(" in %.1f/s out %.1f/s", v->in, v->out);
    putchar('\n');
}

static int watch_plainly(void) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX;
    while (!stops && left-- > 0) {
        int64_t until = clock_ms() + set.interval_ms;
        size_t i;
        for (i = 0; i < handle_count; i++) {
            selected = i; /* all have bars, in JSON */
            refresh(i);
            if (set.json)
                show_json_view(&views[i]);
            else
                show_plain_view(&views[i]);
        }
        if (!written()) return BROKEN;
        while (left > 0 && !stops && clock_ms() < until)
            wait_for(-1, until - clock_ms());
    }
    return DONE;
}

/* --- the screen: a frame is put together and written at once --- */

static struct {
    char *text;
    size_t len, room;
    int rows, columns, row;
    int blocks; /* the locale is UTF-8: bars of blocks, else of # */
    int grey;   /* NO_COLOR is set */
} screen;

static void put_bytes(const char *s, size_t n) {
    if (screen.len + n > screen.room) {
        screen.room = 2 * screen.room + n;
        screen.text = (char *)must(realloc(screen.text, screen.room));
    }
    memcpy(screen.text + screen.len, s, n);
    screen.len += n;
}

static void put_text(const char *s) {
    put_bytes(s, strlen(s));
}

/* One line in a style ("1" bold, "7" inverse, "" none), cut at the screen's
 * edge; what lies below the last is left out. */
static void put_line(const char *style, const char *format, ...) {
    char line[2048], code[16];
    size_t i = 0;
    int column = 0;
    va_list args;
    if (screen.row >= screen.rows) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    put_text(screen.row++ > 0 ? "\r\n\033[K" : "\033[K");
    if (screen.grey && *style == '3') style = "1";
    snprintf(code, sizeof code, "\033[%sm", style);
    if (*style) put_text(code);
    while (line[i] && column < screen.columns) {
        size_t n = utf8((unsigned char *)line + i, strlen(line + i));
        if (n == 1 && (unsigned char)line[i] >= 0x20 && line[i] != 0x7f)
            put_bytes(line + i, 1);
        else if (n > 1 && screen.blocks)
            put_bytes(line + i, n);
        else
            put_text("?");
        i += n > 0 ? n : 1;
        column++;
    }
    if (style[0] == '7')
        for (; column < screen.columns; column++) put_text(" ");
    if (*style) put_text("\033[0m");
}

/* A bar of so many eighths of a column. */
static void draw_bar(int64_t eighths, char *to, size_t size) {
    static const char *const part[] = {"",       "\u258f", "\u258e", "\u258d",
                                       "\u258c", "\u258b", "\u258a", "\u2589"};
    size_t n = 0;
    for (; eighths >= 8 && n + 8 < size; eighths -= 8)
        n += (size_t)snprintf(to + n, size - n, "%s",
                              screen.blocks ? "\u2588" : "#");
    snprintf(to + n, size - n, "%s",
             screen.blocks           ? part[eighths & 7]
             : n == 0 && eighths > 0 ? "."
                                     : "");
}

/* What a bar is called: between the edges a and b. */
static void bar_label(int a, int b, char *to, size_t size) {
    if (b == NOW && a < 0)
        snprintf(to, size, "overdue");
    else if (b <= NOW)
        snprintf(to, size, "late %s %s", b == NOW ? "under" : "over",
                 b == NOW ? edges[a].text : edges[b].text);
    else if (a == NOW)
        snprintf(to, size, "in under %s", edges[b].text);
    else if (b == BARS - 1)
        snprintf(to, size, "in over %s", edges[a].text);
    else
        snprintf(to, size, "in %s - %s", edges[a].text, edges[b].text);
}

/* Which edges stay, so that no more than `rows` bars are drawn. Those of the
 * past only where something is overdue. */
static int choose_edges(const view *v, int rows, int chosen[BARS]) {
    int level, n = 0, i;
    for (level = 4; level >= 0; level--) {
        for (n = i = 0; i < BARS - 1; i++)
            if (edges[i].level <= level && (i >= NOW || v->counts.overdue > 0))
                chosen[n++] = i;
        if (n + 1 <= rows) break;
    }
    chosen[n] = BARS - 1;
    return n + 1;
}

/* The histogram. Returns the number of rows. */
static void draw_bars(const view *v, int rows) {
    int chosen[BARS], n = choose_edges(v, rows, chosen), i, k, from = 0;
    int64_t sums[BARS], most = 1;
    int width = screen.columns - 29;
    if (rows < 1) return;
    for (i = k = 0; i < n; i++)
        for (sums[i] = 0; k <= chosen[i]; k++) sums[i] += v->bars[k];
    for (i = 0; i < n; i++)
        if (sums[i] > most) most = sums[i];
    for (i = 0, from = -1; i < n; from = chosen[i], i++) {
        char label[40], count[32], bar[1800] = "";
        int64_t eighths =
            width > 0 ? (int64_t)((double)sums[i] * width * 8 / (double)most)
                      : 0;
        if (sums[i] > 0 && eighths < 1) eighths = 1;
        bar_label(from, chosen[i], label, sizeof label);
        if (width > 0) draw_bar(eighths, bar, sizeof bar);
        put_line(chosen[i] <= NOW && sums[i] > 0 ? "31" : "", "%-17s %9s %s",
                 label, commas(sums[i], count, sizeof count), bar);
    }
}

typedef struct column {
    const char *head;
    int width, need; /* shown where the screen has so many columns */
} column;

static const column columns[] = {
    {"PENDING", 11, 0}, {"OVERDUE", 9, 36}, {"OLDEST", 8, 62}, {"READY", 9, 28},
    {"DEAD", 8, 48},    {"IN/S", 9, 70},    {"OUT/S", 9, 79},
};
#define COLUMNS (sizeof columns / sizeof columns[0])

static void cell(const view *v, size_t which, char *to, size_t size) {
    const delayq_counts *c = &v->counts;
    snprintf(to, size, "-");
    switch (which) {
    case 0: commas(c->pending, to, size); break;
    case 1: commas(c->overdue, to, size); break;
    case 2:
        if (c->overdue > 0) distance(c->overdue_ms, to, size);
        break;
    case 3: commas(c->ready, to, size); break;
    case 4: commas(c->dead, to, size); break;
    case 5:
        if (v->has_rate > 1) snprintf(to, size, "%.1f", v->in);
        break;
    default:
        if (v->has_rate > 1) snprintf(to, size, "%.1f", v->out);
        break;
    }
}

/* A row of the table; of its head where v is NULL. */
static void draw_row(const view *v, const char *style) {
    char line[512], text[40];
    size_t i, n, used = 0, width;
    for (i = 0; i < COLUMNS; i++)
        if (screen.columns >= columns[i].need) used += (size_t)columns[i].width;
    width = (size_t)screen.columns > used ? (size_t)screen.columns - used : 0;
    if (width > 50) width = 50;
    if (width < 8) width = 8;
    preview(v ? v->name : "QUEUE", strlen(v ? v->name : "QUEUE"), line,
            width < sizeof line ? width : sizeof line);
    for (n = strlen(line); n < width; n++) line[n] = ' ';
    for (i = 0; i < COLUMNS; i++) {
        if (screen.columns < columns[i].need) continue;
        if (v)
            cell(v, i, text, sizeof text);
        else
            snprintf(text, sizeof text, "%s", columns[i].head);
        n += (size_t)snprintf(line + n, sizeof line - n, "%*s",
                              columns[i].width, text);
    }
    if (v && v->status != DELAYQ_OK)
        snprintf(line + width, sizeof line - width, "%s", v->why);
    put_line(v && v->status != DELAYQ_OK ? "31" : style, "%s", line);
}

/* How late a share of those that are overdue is, at most: by the bars. */
static const char *late_part(const view *v, int percent) {
    int64_t seen = 0;
    int i;
    for (i = NOW; i > 0; i--) {
        seen += v->bars[i];
        if (seen * 100 >= v->counts.overdue * percent) break;
    }
    return i > 0 ? edges[i - 1].text : "more";
}

/* What stands above the bars. */
static void draw_about(const view *v) {
    char left[32], text[128] = "nothing is pending";
    int64_t now = polled_ms;
    size_t i, seen = 0;
    for (i = 0; i < next_count; i++) seen += next_items[i].attempt > 0;
    if (v->counts.overdue > 0)
        snprintf(text, sizeof text, "overdue: oldest %s, half < %s, 99%% < %s",
                 distance(v->counts.overdue_ms, left, sizeof left),
                 late_part(v, 50), late_part(v, 99));
    else if (v->counts.next_due_ms > 0)
        snprintf(text, sizeof text, "next due in %s",
                 distance(v->counts.next_due_ms > now
                              ? v->counts.next_due_ms - now
                              : 0,
                          left, sizeof left));
    put_line("1", "%s", text);
    if (next_count > 0)
        put_line("", "leased or nacked: %d of the %s%d", (int)seen,
                 v->counts.pending > (int64_t)next_count ? "next " : "",
                 (int)next_count);
    else
        put_line("", "%s", "");
}

/* Where there is room: what is due next. */
static void draw_next(void) {
    size_t i;
    if (screen.rows - screen.row < 4 || next_count == 0) return;
    put_line("", "%s", "");
    put_line("7", "%10s %8s  %-49s %s", "DUE IN", "ATTEMPT",
             screen.columns >= 100 ? "TICKET" : "PAYLOAD",
             screen.columns >= 100 ? "PAYLOAD" : "");
    for (i = 0; i < next_count && screen.row < screen.rows; i++) {
        const delayq_item *item = &next_items[i];
        char left[32], text[400];
        int64_t ms = item->due_ms - polled_ms;
        distance(ms < 0 ? -ms : ms, left, sizeof left);
        preview(item->data, item->len, text, sizeof text);
        if (screen.columns >= 100)
            put_line(ms < 0 ? "31" : "", "%s%9s %8d  %-49s %s",
                     ms < 0 ? "-" : " ", left, item->attempt, item->ticket.text,
                     text);
        else
            put_line(ms < 0 ? "31" : "", "%s%9s %8d  %s", ms < 0 ? "-" : " ",
                     left, item->attempt, text);
    }
}

static void draw_head(void) {
    char now[64], every[32], line[200];
    int room = screen.columns;
    date((int64_t)time(NULL) * 1000, now, sizeof now);
    distance(set.interval_ms, every, sizeof every);
    snprintf(line, sizeof line, " delayq watch  every %s  %s  %s", every,
             now + (strlen(now) > 11 ? 11 : 0),
             handle_count > 1 ? "q quits, tab: next queue" : "q quits");
    if (room < 60) snprintf(line, sizeof line, " delayq  q quits");
    put_line("7", "%s", line);
}

static void draw(void) {
    const view *v = &views[selected];
    size_t i, fit, first = 0;
    screen.len = 0;
    screen.row = 0;
    put_text("\033[H");
    draw_head();
    draw_row(NULL, "1");
    /* half of the screen at most is the table's */
    fit = screen.rows > 10 ? (size_t)(screen.rows - 4) / 2 : 2;
    if (selected >= fit) first = selected - fit + 1;
    for (i = first; i < handle_count && i < first + fit; i++)
        draw_row(&views[i], i == selected && handle_count > 1 ? "7" : "");
    if (v->status == DELAYQ_OK) {
        put_line("", "%s", "");
        draw_about(v);
        if (v->has_bars) draw_bars(v, screen.rows - screen.row);
        draw_next();
    }
    if (screen.row < screen.rows) put_text("\r\n\033[J");
    for (i = 0; i < screen.len;) {
        ssize_t n = write(1, screen.text + i, screen.len - i);
        if (n < 0 && errno != EINTR) break;
        if (n > 0) i += (size_t)n;
    }
}

/* --- the terminal --- */

static struct termios cooked;
static int reads_keys;

static void screen_on(void) {
    reads_keys = isatty(0) && tcgetattr(0, &cooked) == 0;
    if (reads_keys) {
        struct termios raw = cooked;
        raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        raw.c_cc[VMIN] = 0;
        raw.c_cc[VTIME] = 0;
        tcsetattr(0, TCSADRAIN, &raw);
    }
    /* the other screen, no cursor, no wrapping */
    fputs("\033[?1049h\033[?25l\033[?7l\033[2J", stdout);
    fflush(stdout);
}

static void screen_off(void) {
    fputs("\033[0m\033[?7h\033[?25h\033[?1049l", stdout);
    fflush(stdout);
    if (reads_keys) tcsetattr(0, TCSADRAIN, &cooked);
}

static void measure(void) {
    struct winsize size;
    memset(&size, 0, sizeof size);
    screen.rows = 24;
    screen.columns = 80;
    if (ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_row && size.ws_col) {
        screen.rows = size.ws_row;
        screen.columns = size.ws_col;
    }
}

/* Ctrl-Z: give the terminal back, and stop until we are continued. */
static void suspend(void) {
    suspended = 0;
    screen_off();
    raise(SIGSTOP);
    screen_on();
}

/* Keys: 0 to quit, 1 where another queue was chosen, else -1. */
static int read_keys(void) {
    unsigned char keys[32];
    ssize_t i, n = read(0, keys, sizeof keys);
    int result = -1;
    if (n <= 0) reads_keys = 0; /* the terminal is gone */
    for (i = 0; i < n; i++) {
        int arrow = keys[i] == 033 && i + 2 < n ? keys[i + 2] : 0;
        if (arrow) i += 2;
        if (keys[i] == 'q' && !arrow) return 0;
        if (keys[i] == '\t' || keys[i] == 'j' || arrow == 'B') {
            selected = (selected + 1) % handle_count;
            result = 1;
        }
        if (keys[i] == 'k' || arrow == 'A' || arrow == 'Z') {
            selected = (selected + handle_count - 1) % handle_count;
            result = 1;
        }
    }
    return result;
}

static int watch_screen(void) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX;
    screen_on();
    while (!stops && left-- > 0) {
        int64_t until = clock_ms() + set.interval_ms;
        int key = -1;
        measure();
        refresh_all(1);
        draw();
        while (!stops && key < 0 && clock_ms() < until) {
            if (wait_for(reads_keys ? 0 : -1, until - clock_ms()))
                key = read_keys();
            if (suspended) suspend();
            measure(); /* a new size is drawn at once */
            if (key < 0) draw();
        }
        if (key == 0) break;
    }
    screen_off();
    free(screen.text);
    return DONE;
}

static int says_utf8(void) {
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"}, *value;
    size_t i;
    for (i = 0; i < 3; i++) {
        value = getenv(names[i]);
        if (value && *value)
            return strstr(value, "UTF-8") || strstr(value, "utf8") ||
                   strstr(value, "UTF8") || strstr(value, "utf-8");
    }
    return 0;
}

static int run_watch(int argc, char **argv) {
    const char *term = getenv("TERM");
    size_t i;
    int code;
    if (set.interval_ms < 100) return usage("--interval: 100ms or more%s", "");
    set.quiet = 1; /* the view shows errors */
    io_timeout_ms = 1000;
    code = open_all(argv, (size_t)argc, 1);
    if (code != DONE) return code;
    views = (view *)must(calloc(handle_count, sizeof *views));
    for (i = 0; i < handle_count; i++) views[i].name = argv[i];
    if (set.json || !isatty(1) || !term || strcmp(term, "dumb") == 0) {
        code = watch_plainly();
    } else {
        screen.blocks = says_utf8();
        screen.grey = getenv("NO_COLOR") != NULL;
        catch_signal(SIGWINCH, on_signal);
        catch_stop(SIGTSTP);
        code = watch_screen();
    }
    free(views);
    return code;
}

/*-----------------------------------------------------------------------------
 * MARK: - Commands
 * >>commands   the tables of commands and options, help, main
 *---------------------------------------------------------------------------*/

/* Which commands an option is for. */
enum {
    OFFER = 1,
    TAKE = 2,
    TICK = 4,
    ACK = 8,
    NACK = 16,
    EXTEND = 32,
    BURY = 64,
    CANCEL = 128,
    RESCHEDULE = 256,
    PEEK = 512,
    COUNT = 1024,
    DEAD = 2048,
    REDRIVE = 4096,
    CLEAR = 8192,
    WATCH = 16384,
    ALL = 32767
};

typedef struct command {
    int bit;
    const char *name, *arguments;
    int least, most; /* arguments */
    int (*run)(int argc, char **argv);
    const char *brief, *more;
} command;

#define MANY 1000

static const command commands[] = {
    {OFFER, "offer", "NAME DELAY [PAYLOAD|-]", 2, 3, run_offer,
     "hand in a payload; -: one a line from stdin",
     "DELAY is 500ms, 5s, 2m, 1h30m or 1d, or a time: @1900000000 (seconds),\n"
     "2026-11-21T15:00:00Z, or without the Z in local time. Without a PAYLOAD\n"
     "all of the input is one. Prints the ticket, which cancel takes."},
    {TAKE, "take", "NAME", 1, 1, run_take,
     "print due items, or run a command for each",
     "Prints one due item, -n items, or all that come (-f), and acks what is\n"
     "written. With --lease it doesn't ack, and prints the ticket and a blank\n"
     "before the payload. With --exec it runs a command for each item, with\n"
     "DELAYQ_TICKET, _NAME, _ATTEMPT, _DUE_MS, _LATE_MS in its environment.\n"
     "Exit code 0 acks, others nack. The lease (60s) is extended meanwhile."},
    {TICK, "tick", "NAME...", 1, MANY, run_tick,
     "move due items, for others to take",
     "Runs until Ctrl-C. Programs that take with delayq don't need it."},
    {ACK, "ack", "NAME TICKET", 2, 2, run_ack, "done with a leased item",
     "Removes an item that `take --lease` handed out."},
    {NACK, "nack", "NAME TICKET [DELAY]", 2, 3, run_nack,
     "not done: deliver a leased item again",
     "Without a DELAY: a back-off that doubles with --attempt."},
    {EXTEND, "extend", "NAME TICKET DURATION", 3, 3, run_extend,
     "change the end of a lease to DURATION from now",
     "Prints the new ticket."},
    {BURY, "bury", "NAME TICKET", 2, 2, run_bury,
     "move a leased item to the dead letters", NULL},
    {CANCEL, "cancel", "NAME TICKET", 2, 2, run_cancel, "remove a pending item",
     NULL},
    {RESCHEDULE, "reschedule", "NAME TICKET DELAY", 3, 3, run_reschedule,
     "change when a pending item is due", "Prints the new ticket."},
    {PEEK, "peek", "NAME", 1, 1, run_peek, "list pending items",
     "Prints ticket, due time from now, attempts so far, and payload; leased\n"
     "items are among them. 10 of them, or -n."},
    {COUNT, "count", "NAME...", 1, MANY, run_count, "count the items", NULL},
    {DEAD, "dead", "NAME", 1, 1, run_dead, "list the dead letters",
     "Prints number, time of death, reason, attempts, and payload; the oldest\n"
     "first. 10 of them, or -n."},
    {REDRIVE, "redrive", "NAME", 1, 1, run_redrive,
     "make dead letters ready again", "All of them, or the -n oldest."},
    {CLEAR, "clear", "NAME", 1, 1, run_clear, "remove everything; asks first",
     "Removes the pending, leased and ready items; with --dead instead the\n"
     "dead letters."},
    {WATCH, "watch", "NAME...", 1, MANY, run_watch, "a live view, like top",
     "In: items put off to later (offers, leases, back-offs, less acks) per\n"
     "second. Out: items that left. Keys: q, tab, arrows. Prints plain lines\n"
     "if the output is no terminal."},
};

typedef enum kind { FLAG, NUMBER, DURATION, TEXT, WIRE } kind;

typedef struct option {
    const char *name;
    char letter; /* 0: none */
    kind kind;
    size_t at; /* in settings */
    int commands;
    const char *meta, *help;
} option;

#define AT(field) offsetof(settings, field)

static const option options[] = {
    {"key", 0, TEXT, AT(key), OFFER, "KEY",
     "a second offer with KEY stores nothing (exit 1)"},
    {"key-ttl", 0, DURATION, AT(key_ttl_ms), OFFER, "DURATION",
     "how long the key is remembered"},
    {"replace", 0, FLAG, AT(replace), OFFER, NULL,
     "replace the first offer, if it is still pending"},
    {"tickets", 't', FLAG, AT(tickets), OFFER, NULL,
     "print a ticket per line, too, with -"},
    {"retry", 0, DURATION, AT(retry_ms), OFFER, "DURATION",
     "how long to try again if the server is lost"},
    {"null", '0', FLAG, AT(null), OFFER | TAKE, NULL,
     "NUL instead of newline ends a payload"},
    {"count", 'n', NUMBER, AT(count), TAKE | PEEK | DEAD | REDRIVE | WATCH, "N",
     "how many; peek, dead: 0 for all"},
    {"follow", 'f', FLAG, AT(follow), TAKE, NULL,
     "go on until Ctrl-C, or for --wait without an item"},
    {"wait", 'w', DURATION, AT(wait_ms), TAKE, "DURATION",
     "how long to wait for an item, or forever"},
    {"lease", 'l', DURATION, AT(lease_ms), TAKE, "DURATION",
     "unless acked within that it is delivered again"},
    {"max-attempts", 0, NUMBER, AT(max_attempts), TAKE, "N",
     "after N attempts to the dead letters"},
    {"exec", 'x', TEXT, AT(exec), TAKE, "COMMAND",
     "run it for each item, by sh -c"},
    {"jobs", 'j', NUMBER, AT(jobs), TAKE, "N",
     "run up to N commands at once (1)"},
    {"bury-on", 0, NUMBER, AT(bury_on), TAKE, "CODE",
     "this exit code sends the item to the dead letters"},
    {"stats", 0, FLAG, AT(stats), TAKE, NULL,
     "print at the end how many were taken, how late"},
    {"backoff", 0, DURATION, AT(backoff_ms), TAKE | NACK, "DURATION",
     "after the first failure (1s), doubled for each"},
    {"backoff-max", 0, DURATION, AT(backoff_max_ms), TAKE | NACK, "DURATION",
     "the longest back-off (5m)"},
    {"attempt", 0, NUMBER, AT(attempt), NACK, "N",
     "the attempt that take has printed"},
    {"release", 0, FLAG, AT(release), NACK, NULL,
     "deliver at once, don't count this attempt"},
    {"once", 0, FLAG, AT(once), TICK, NULL, "end when nothing more is due"},
    {"after", 0, TEXT, AT(after), PEEK, "TICKET", "begin behind this item"},
    {"from", 0, NUMBER, AT(from), DEAD, "N", "begin with number N (0)"},
    {"dead", 0, FLAG, AT(dead), CLEAR, NULL, "remove only the dead letters"},
    {"yes", 'y', FLAG, AT(yes), CLEAR, NULL, "don't ask"},
    {"interval", 'i', DURATION, AT(interval_ms), WATCH, "DURATION",
     "between two updates (1s)"},
    {"json", 0, FLAG, AT(json), ALL, NULL, "one JSON object per line"},
    {"quiet", 'q', FLAG, AT(quiet), ALL, NULL, "say less"},
    {"url", 'u', TEXT, AT(url), ALL, "URL",
     "the server; else DELAYQ_URL, else redis://127.0.0.1:6379"},
    {"wire", 0, WIRE, AT(wire), ALL, "FLEET",
     "native, redisson (>= 3.21.1) or redisson-old"},
    {"tls-ca", 0, TEXT, AT(tls_ca), ALL, "FILE", "certificates to trust"},
    {"tls-cert", 0, TEXT, AT(tls_cert), ALL, "FILE", "our certificate"},
    {"tls-key", 0, TEXT, AT(tls_key), ALL, "FILE", "and its key"},
    {"help", 'h', FLAG, AT(help), ALL, NULL, "this text"},
    {"version", 'V', FLAG, AT(version), ALL, NULL, "the version"},
};

#define COMMANDS (sizeof commands / sizeof commands[0])
#define OPTIONS (sizeof options / sizeof options[0])

static void show_help(void) {
    size_t i;
    puts("usage: delayq COMMAND [OPTION...] NAME [ARGUMENT...]\n");
    for (i = 0; i < COMMANDS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s %s", commands[i].name,
                 commands[i].arguments);
        printf("  %-29s %s\n", what, commands[i].brief);
    }
    puts("\nDELAY is 500ms, 5s, 2m, 1h30m, 1d, @1900000000 or "
         "2026-11-21T15:00:00Z. The\nserver is --url URL or DELAYQ_URL. Exit "
         "codes: 0 done, 1 nothing there, 2 usage,\n3 no server, 4 refused, "
         "5 unknown. `delayq COMMAND --help` says more.");
}

static void show_command_help(const command *c) {
    size_t i;
    printf("usage: delayq %s [OPTION...] %s\n\n%c%s.\n", c->name, c->arguments,
           toupper((unsigned char)c->brief[0]), c->brief + 1);
    if (c->more) puts(c->more);
    putchar('\n');
    for (i = 0; i < OPTIONS; i++) {
        const option *o = &options[i];
        char text[40], letter[8] = "    ";
        if (!(o->commands & c->bit) || o->commands == ALL) continue;
        if (o->letter) snprintf(letter, sizeof letter, "-%c, ", o->letter);
        snprintf(text, sizeof text, "%s--%s%s%s", letter, o->name,
                 o->meta ? " " : "", o->meta ? o->meta : "");
        printf("  %-26s %s\n", text, o->help);
    }
    puts("\nFor all commands: --json, -q --quiet, -u --url URL, --tls-ca FILE, "
         "--tls-cert\nFILE, --tls-key FILE, --wire "
         "native|redisson|redisson-old (the fleet it is in).");
}

static int read_number(const char *s, int64_t *number) {
    size_t len = strlen(s);
    if (len < 1 || len > 15 || strspn(s, "0123456789") != len) return 0;
    *number = strtoll(s, NULL, 10);
    return 1;
}

static int read_wire(const char *s, int64_t *wire) {
    static const char *const names[] = {"native", "redisson", "redisson-old"};
    for (*wire = 0; *wire < 3; ++*wire)
        if (strcmp(s, names[*wire]) == 0) return 1;
    return 0;
}

/* 1: the option has its value. */
static int set_option(const option *o, const char *value) {
    void *at = (char *)&set + o->at;
    int good = 1;
    switch (o->kind) {
    case FLAG: *(int *)at = 1; break;
    case NUMBER: good = read_number(value, (int64_t *)at); break;
    case DURATION:
        good = read_duration(value, (int64_t *)at) &&
               (*(int64_t *)at != FOREVER || strcmp(o->name, "wait") == 0);
        break;
    case TEXT: *(const char **)at = value; break;
    case WIRE: good = read_wire(value, (int64_t *)at); break;
    }
    if (!good) fprintf(stderr, "delayq: --%s: not %s\n", o->name, value);
    return good;
}

/* An option by its name, which may be followed by '=', or its letter. */
static const option *find_option(const char *name, size_t len) {
    size_t i;
    for (i = 0; i < OPTIONS; i++)
        if (len == 0 ? options[i].letter == *name
                     : strlen(options[i].name) == len &&
                           memcmp(options[i].name, name, len) == 0)
            return &options[i];
    return NULL;
}

/* An argument that begins with '-': "--url=X", "--url X", "-uX", "-u X",
 * "-f0". Returns how many arguments it took; 0: wrong. */
static int read_option(const command *c, int left, char **argv) {
    const char *arg = argv[0], *value;
    int is_long = arg[1] == '-';
    const char *name = arg + 1 + is_long;
    for (;;) {
        size_t len = is_long ? strcspn(name, "=") : 0;
        const option *o = find_option(name, len);
        const char *rest = is_long ? name + len : name + 1;
        if (!o || (o->commands & c->bit) != (c->bit & ALL)) {
            usage("no such option here: %s", arg);
            return 0;
        }
        if (o->kind == FLAG) {
            if (is_long && *rest) break;
            set_option(o, NULL);
            if (is_long || !*rest) return 1;
            name = rest;
            continue;
        }
        value = *rest ? rest + is_long : left > 1 ? argv[1] : NULL;
        if (!value) break;
        return set_option(o, value) ? *rest ? 1 : 2 : 0;
    }
    usage("%s: it takes a value, or none", arg);
    return 0;
}

static const command *find_command(const char *name) {
    size_t i;
    for (i = 0; i < COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* Sort the command line: options into `set`, the rest to the front. Returns
 * how many arguments there are, or -1. */
static int read_arguments(const command *c, int argc, char **argv) {
    int i = 0, n = 0, step;
    while (i < argc) {
        if (strcmp(argv[i], "--") == 0) {
            for (i++; i < argc; i++) argv[n++] = argv[i];
        } else if (argv[i][0] == '-' && argv[i][1]) {
            step = read_option(c, argc - i, argv + i);
            if (step == 0) return -1;
            i += step;
        } else {
            argv[n++] = argv[i++];
        }
    }
    return n;
}

/* If 0, 1 or 2 were closed, our next socket would get that number and receive
 * what is printed. */
static void keep_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd < 3);
    if (fd >= 0) close(fd);
}

static int show(void (*text)(void)) {
    text();
    return written() ? DONE : BROKEN;
}

static void show_version(void) {
    puts("delayq " DELAYQ_VERSION);
}

static int run(const command *c, int argc, char **argv) {
    int n = read_arguments(c, argc, argv), code;
    if (n < 0) return USAGE;
    if (set.version || set.help) {
        if (set.version) return show(show_version);
        show_command_help(c);
        return written() ? DONE : BROKEN;
    }
    if (n < c->least || n > c->most)
        return usage(n < c->least ? "%s: an argument is missing"
                                  : "%s: too many arguments",
                     c->name);
    prepare_signals();
    code = c->run(n, argv);
    close_all();
    if (code != BROKEN && !written()) code = BROKEN;
    return code;
}

int main(int argc, char **argv) {
    static const command any = {-1, "", "", 0, 0, NULL, "", NULL};
    const command *c;
    int i = 1, step;
    keep_standard_files();
    set.url = getenv("DELAYQ_URL");
    if (set.url && !*set.url) set.url = NULL;
    while (i < argc && argv[i][0] == '-') { /* those for all may come first */
        step = read_option(&any, argc - i, argv + i);
        if (step == 0) return USAGE;
        i += step;
    }
    if (set.version) return show(show_version);
    if (i < argc && strcmp(argv[i], "help") == 0) set.help = 1, i++;
    if (i == argc) {
        show(show_help);
        return set.help ? DONE : USAGE;
    }
    c = find_command(argv[i]);
    if (!c) return usage("no such command: %s", argv[i]);
    return run(c, argc - i - 1, argv + i + 1);
}
