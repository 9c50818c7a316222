/*
 * offer.c -- offer, for a single payload and for many lines; load.
 */
#include "tool.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BATCH 1000
/* a batch of JSON objects ends when their strings exceed this many bytes */
#define BATCH_BYTES (4 * 1024 * 1024)
#define FEED (256 * 1024)

static struct {
    int64_t stored, duplicate, unknown, begun_ms, shown_ms;
    int code; /* the worst exit code so far */
} offered;

static void worse(int code) {
    if (code == UNKNOWN || offered.code == DONE || offered.code == NOTHING)
        offered.code = code;
}

static void show_ticket(const delayq_message *m) {
    if (set.json)
        printf("{\"status\":\"%s\",\"ticket\":\"%s\"}\n",
               m->status != DELAYQ_OK ? "duplicate"
               : set.spool            ? "accepted"
                                      : "stored",
               m->ticket.text);
    /* a spool that was never connected gives no tickets */
    else if (m->ticket.text[0])
        printf("%s\n", m->ticket.text);
}

/* Show the progress on the terminal, at most five times a second. */
static void show_progress(int last) {
    char n[32], rate[32];
    int64_t now = clock_ms(), took = now - offered.begun_ms;
    const char *term = getenv("TERM");
    if (set.quiet || offered.begun_ms == 0 || !isatty(2) || !term ||
        strcmp(term, "dumb") == 0 || (!last && now - offered.shown_ms < 200))
        return;
    offered.shown_ms = now;
    fprintf(
        stderr, "\r%s stored, %s a second \033[K",
        commas(offered.stored, n, sizeof n),
        commas(took > 0 ? offered.stored * 1000 / took : 0, rate, sizeof rate));
    if (last) fputs("\r\033[K", stderr);
}

/* Returns 1 if the message must not be offered again. DELAYQ_GONE means that
 * the message was sent twice, and that the server may have stored and delivered
 * the first copy. */
static int settled(const delayq_message *m) {
    return m->status == DELAYQ_OK || m->status == DELAYQ_DUPLICATE ||
           m->status == DELAYQ_GONE;
}

/* Offer the messages that aren't settled, one contiguous run at a time.
 * Messages whose outcome is unknown keep their ids, so they are stored once. */
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

/* Offer all messages. Retry after transient faults, for the time of --retry. */
static delayq_status offer_patiently(delayq_message *m, size_t count) {
    int64_t until = clock_ms() + (set.retry_ms >= 0 ? set.retry_ms : 30000);
    int again = 0;
    for (;;) {
        delayq_status status = offer_rest(m, count, again);
        int full = set.spool && status == DELAYQ_ERR_FULL;
        heard(status);
        if (status >= 0 || !(full || passing(status))) return status;
        if (stops || clock_ms() >= until) return status;
        if (full) {
            spool_makes_room();
        } else {
            tell(NULL, status, delayq_errmsg(handles));
            wait_for(-1, 100);
        }
        again = 1;
    }
}

/* Offer a batch, and print the result. Returns 0 if an offer failed. */
static int offer_batch(delayq_message *m, size_t count, int show) {
    delayq_status status = offer_patiently(m, count);
    size_t i, refused = 0;
    for (i = 0; i < count; i++) {
        int gone = m[i].status == DELAYQ_GONE;
        if (gone) complain("it is unknown whether it was stored");
        if (settled(&m[i]) && !gone && show) show_ticket(&m[i]);
        if (set.key && m[i].status == DELAYQ_DUPLICATE && !set.quiet)
            complain("not stored: the key is taken until its time is over, "
                     "even if the first offer has been delivered; --replace "
                     "stores in any case");
        offered.stored += m[i].status == DELAYQ_OK;
        offered.duplicate += m[i].status == DELAYQ_DUPLICATE;
        offered.unknown += gone || m[i].status == DELAYQ_ERR_UNKNOWN ||
                           m[i].status == DELAYQ_ERR_PROTOCOL;
        refused += m[i].status < 0;
        worse(m[i].status == DELAYQ_OK ? offered.code
              : gone                   ? UNKNOWN
                                       : exit_code(m[i].status));
    }
    if (status < 0 && !stops) failed(handles, status);
    if (show) written(); /* report a failed write while errno has the reason */
    show_progress(0);
    return refused == 0;
}

/* The input. buf[from] to buf[to - 1] are read and not used yet. */
typedef struct feed {
    char *buf;
    size_t from, to, room;
    int ended;
} feed;

/* Wait for input, and read it. Returns 0 if the program is stopped or the input
 * can't be read. */
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

/* Find the next line. The last one may lack its newline. */
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

/* The unescaped strings of a batch of JSON objects. Until the batch is read,
 * `bytes` may move, so m[i].data and m[i].key are offsets plus 1. */
static struct {
    char *bytes;
    size_t len, room;
} store;
static int64_t line_number;

static const char *keep(const char *bytes, size_t len) {
    if (store.len + len + 1 > store.room)
        store.bytes = (char *)must(
            realloc(store.bytes, store.room = 2 * store.room + len + 1));
    memcpy(store.bytes + store.len, bytes, len);
    store.bytes[store.len + len] = '\0';
    store.len += len + 1;
    return (const char *)(store.len - len);
}

/* Returns 1 if dump, peek, dead or take print this field. In the input it is
 * ignored, and not reported as unknown. */
static int is_printed(const char *name) {
    static const char *const printed[] = {"queue",  "state",   "ticket",
                                          "number", "attempt", "reason",
                                          "why",    "dead_ms", "late_ms"};
    size_t i;
    for (i = 0; i < sizeof printed / sizeof printed[0]; i++)
        if (strcmp(name, printed[i]) == 0) return 1;
    return 0;
}

/* Put a field of an object into the message. Returns 1 if it is valid, 0 if its
 * value is invalid, or -1 if the field is unknown. */
static int json_message(json *j, const char *name, delayq_message *m) {
    int text = j->type == JSON_STRING, number = j->type == JSON_NUMBER;
    int64_t ms = j->number;
    if (strcmp(name, "payload") == 0 || strcmp(name, "payload_base64") == 0) {
        if (!text || (name[7] && !unbase64(j->text, &j->len))) return 0;
        m->data = keep(j->text, j->len);
        m->len = j->len;
    } else if (strcmp(name, "delay") == 0) {
        return text && read_delay(j->text, &m->delay_ms, &m->due_ms);
    } else if (strcmp(name, "delay_ms") == 0) {
        m->delay_ms = ms, m->due_ms = 0;
        return number && ms >= 0;
    } else if (strcmp(name, "due_ms") == 0) {
        m->due_ms = ms > 0 ? ms : 1;
        return number;
    } else if (strcmp(name, "key") == 0) {
        if (!text || strlen(j->text) != j->len) return 0;
        m->key = keep(j->text, j->len);
    } else if (strcmp(name, "key_ttl") == 0) {
        return text && read_duration(j->text, &m->key_ttl_ms);
    } else if (strcmp(name, "key_ttl_ms") == 0) {
        m->key_ttl_ms = ms;
        return number;
    } else if (strcmp(name, "replace") == 0) {
        m->replace = ms == 1;
        return j->type == JSON_OTHER;
    } else if (!is_printed(name)) {
        return -1;
    }
    return 1;
}

static int read_json(const char *line, size_t len, delayq_message *m) {
    static json j;
    char name[32];
    int more = -1, known;
    if (json_open(&j, line, len))
        while ((more = json_field(&j, name)) == 1) {
            known = json_message(&j, name, m);
            if (known == 1) continue;
            complain("line %" PRId64 ": %s: %s", line_number,
                     known < 0 ? "unknown field" : "this is not understood",
                     name);
            return 0;
        }
    if (more == 0 && m->data && !m->key == !m->key_ttl_ms) return 1;
    complain("line %" PRId64 ": %s", line_number,
             more != 0  ? "not a JSON object"
             : !m->data ? "there is no payload and no payload_base64"
                        : "key needs key_ttl, and key_ttl needs key");
    return 0;
}

/* Read at most one batch of messages from the lines in the buffer. */
static size_t read_batch(feed *f, delayq_message *m, int64_t delay_ms,
                         int64_t due_ms, int *good) {
    const char *line;
    size_t len, n = 0, i;
    store.len = 0;
    while (n < BATCH && store.len < BATCH_BYTES && feed_line(f, &line, &len)) {
        line_number++;
        if (set.ndjson && (len == 0 || (len == 1 && *line == '\r'))) continue;
        memset(&m[n], 0, sizeof m[n]);
        m[n].delay_ms = delay_ms;
        m[n].due_ms = due_ms;
        if (set.ndjson && !read_json(line, len, &m[n])) {
            worse(BROKEN);
            *good = 0;
            break;
        }
        if (!set.ndjson) m[n].data = line, m[n].len = len;
        n++;
    }
    for (i = 0; set.ndjson && i < n; i++) {
        m[i].data = store.bytes + (size_t)m[i].data - 1;
        if (m[i].key) m[i].key = store.bytes + (size_t)m[i].key - 1;
    }
    return n;
}

/* Offer all complete lines in the buffer. */
static int offer_lines(feed *f, delayq_message *m, int64_t delay_ms,
                       int64_t due_ms) {
    int good = 1;
    size_t n;
    do {
        n = read_batch(f, m, delay_ms, due_ms, &good);
        if (n > 0 && !offer_batch(m, n, set.tickets || set.json)) return 0;
        if (stops || !good) return 0;
    } while (n > 0);
    return 1;
}

/* Returns 1 if output could not be written, except if its reader has closed the
 * pipe, as `head` does. */
static int unwritten(void) {
    return !written() && broken() == BROKEN;
}

static void show_offered(int whole) {
    char n[32], d[32];
    if (set.quiet && whole) return;
    complain("%s %s%s%s%s%s", commas(offered.stored, n, sizeof n),
             set.spool ? "accepted" : "stored",
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
    if (unwritten() && offered.stored > 0)
        complain("they are stored, only their tickets are lost; don't offer "
                 "them again");
    free(f.buf);
    free(store.bytes);
    free(m);
    return stops && !(good && f.ended) ? stopped() : offered.code;
}

/* Read all of the input as one payload. Returns 0 if the program is stopped or
 * the input can't be read. */
static int read_whole(feed *f) {
    if (isatty(0)) complain("reading the payload; end it with Ctrl-D");
    while (!f->ended)
        if (!feed_more(f)) return 0;
    return 1;
}

/* Refuse an empty payload, which most likely is a script's empty variable. */
static int empty_payload(void) {
    return usage("the payload is empty; --empty stores an empty one");
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
    if (!text && f.to == 0 && !set.empty) {
        free(f.buf);
        return empty_payload();
    }
    m.data = text ? text : f.buf;
    m.len = text ? strlen(text) : f.to;
    m.delay_ms = delay_ms;
    m.due_ms = due_ms;
    m.key = set.key;
    m.key_ttl_ms = set.key_ttl_ms;
    m.replace = set.replace;
    offer_batch(&m, 1, !set.quiet);
    if (unwritten() && m.status == DELAYQ_OK)
        complain("it is stored, don't offer it again; its ticket is %s",
                 m.ticket.text);
    free(f.buf);
    return offered.code;
}

int run_offer(int argc, char **argv) {
    const char *text = argc > 2 ? argv[2] : NULL;
    int lines = set.ndjson || (text && strcmp(text, "-") == 0), code;
    int64_t delay_ms, due_ms;
    if (!read_delay(argv[1], &delay_ms, &due_ms)) return bad_delay(argv[1]);
    if (set.ndjson && text && strcmp(text, "-") != 0)
        return usage("--ndjson reads the payloads from the input");
    if (lines && (set.key || set.replace))
        return usage("%s is for one payload, not for lines",
                     set.key ? "--key" : "--replace");
    if (text && !*text && !set.empty) return empty_payload();
    if (!set.key != !set.key_ttl_ms)
        return usage("--key and --key-ttl go together");
    if (set.replace && !set.key) return usage("--replace needs --key");
    if (!lines && !set.spool && set.retry_ms < 0) set.retry_ms = 3000;
    code = set.spool
               ? spool_for(argv[0])
               : open_one(argv[0], lines || set.retry_ms > 0 ? PATIENT : 0);
    if (code != DONE) return code;
    code = lines ? offer_input(delay_ms, due_ms)
                 : offer_one(text, delay_ms, due_ms);
    return set.spool ? spool_ends(code) : code;
}

int run_load(int argc, char **argv) {
    int code = open_one(argv[0], PATIENT);
    (void)argc;
    set.ndjson = 1;
    return code == DONE ? offer_input(0, 0) : code;
}
