/*
 * inspect.c -- tickets; peek, count, list; dead letters; dump, clear, pause.
 */
#include "tool.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*-----------------------------------------------------------------------------
 * MARK: - Tickets
 * >>tickets   ack, nack, extend, bury, cancel, reschedule
 *---------------------------------------------------------------------------*/

/* Open the queue and put the ticket into an item. */
static int open_ticket(char **argv, delayq_item *item) {
    memset(item, 0, sizeof *item);
    item->attempt = set.attempt > 65535 ? 65535 : (int)set.attempt;
    snprintf(item->ticket.text, sizeof item->ticket.text, "%s", argv[1]);
    if (strlen(argv[1]) >= sizeof item->ticket.text ||
        !is_ticket(&item->ticket))
        return usage("not a ticket: %s", argv[1]);
    return open_one(argv[0], 0);
}

static const char lease_gone[] =
    "gone: its lease has ended, or it was acked, nacked or extended before "
    "(extend prints a new ticket)";
static const char offer_gone[] =
    "gone: it was due and has been moved or taken, or was canceled before";
static const char key_gone[] =
    "gone: its item was moved, taken, leased or rescheduled, or there is none; "
    "the key is free";

/* Print the outcome, and the new ticket if there is one. */
static int show_outcome(delayq_status status, const char *done,
                        const char *gone, const delayq_ticket *now) {
    if (status == DELAYQ_GONE && !set.quiet) complain("%s", gone);
    failed(handles, status);
    if (set.json) {
        printf("{\"status\":\"%s\"", status == DELAYQ_OK     ? done
                                     : status == DELAYQ_GONE ? "gone"
                                                             : "failed");
        if (status == DELAYQ_OK && now) printf(",\"ticket\":\"%s\"", now->text);
        puts("}");
    } else if (status == DELAYQ_OK && now && !set.quiet) {
        puts(now->text);
    }
    return exit_code(status);
}

int run_ack(int argc, char **argv) {
    delayq_item item;
    int code = open_ticket(argv, &item);
    (void)argc;
    if (code != DONE) return code;
    return show_outcome(delayq_ack(handles, &item), "acked", lease_gone, NULL);
}

/* Delete the key of a canceled item if it still belongs to that item. */
static int forget_key(const char *ticket) {
    static const char script[] =
        "local held = redis.call('GET', KEYS[1]) or ''\n"
        "if string.match(held, '%x+$') ~= ARGV[1] then return 0 end\n"
        "return redis.call('DEL', KEYS[1])\n";
    char key[1200], prefix[1600], why[WHY];
    const char *id = strchr(ticket, '-');
    text_of words[5];
    redisReply *r;
    int code = DONE;
    snprintf(prefix, sizeof prefix, "%s:%zu:%s",
             key_of(queue_names[0], "delayq_once:", key), strlen(set.key),
             set.key);
    words[0] = word("EVAL");
    words[1] = word(script);
    words[2] = word("1");
    words[3] = word(prefix);
    words[4] = word(id ? id + 1 : "");
    r = command(handles, words, 5, why);
    if (!r || r->type != REDIS_REPLY_INTEGER) {
        complain("canceled, but its key is kept: %s", why);
        code = command_code(why) == REFUSED ? REFUSED : UNKNOWN;
    } else if (r->integer == 0 && !set.quiet) {
        complain("canceled; it does not have this key");
    }
    if (r) freeReplyObject(r);
    return code;
}

int run_cancel(int argc, char **argv) {
    delayq_item item;
    delayq_status status;
    int code, forgot = DONE;
    if (set.key && (!*set.key || strlen(set.key) > 256))
        return usage("--key: 1 to 256 bytes");
    if (argc < 2 && !set.key)
        return usage("cancel: a TICKET or --key is missing");
    code = argc < 2 ? open_one(argv[0], 0) : open_ticket(argv, &item);
    if (code != DONE) return code;
    if (argc < 2)
        return show_outcome(delayq_cancel_key(handles, set.key), "canceled",
                            key_gone, NULL);
    status = delayq_cancel(handles, &item.ticket);
    if (status == DELAYQ_OK && set.key) forgot = forget_key(item.ticket.text);
    code = show_outcome(status, "canceled", offer_gone, NULL);
    return code != DONE ? code : forgot;
}

int run_bury(int argc, char **argv) {
    delayq_item item;
    int code = open_ticket(argv, &item);
    if (code != DONE) return code;
    return show_outcome(delayq_bury(handles, &item, argc > 2 ? argv[2] : NULL),
                        "buried", lease_gone, NULL);
}

/* Returns a DELAY in milliseconds from now, by the server's clock. */
static int64_t from_now(int64_t delay_ms, int64_t due_ms) {
    int64_t left = due_ms > 0 ? due_ms - server_ms(handles) : delay_ms;
    return left > 0 ? left : 0;
}

int run_nack(int argc, char **argv) {
    int64_t delay_ms = 0, due_ms = 0;
    delayq_item item;
    int code;
    if (argc > 2 && !read_delay(argv[2], &delay_ms, &due_ms))
        return bad_delay(argv[2]);
    if (argc > 2 && set.release) return usage("--release goes without a DELAY");
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    delay_ms = set.release ? DELAYQ_RELEASE
               : argc > 2  ? from_now(delay_ms, due_ms)
                           : DELAYQ_BACKOFF;
    return show_outcome(delayq_nack(handles, &item, delay_ms), "nacked",
                        lease_gone, NULL);
}

int run_extend(int argc, char **argv) {
    delayq_item item;
    int64_t lease_ms;
    int code;
    (void)argc;
    if (!read_duration(argv[2], &lease_ms) || lease_ms == FOREVER ||
        lease_ms == 0)
        return usage("not a duration: %s", argv[2]);
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    return show_outcome(delayq_extend(handles, &item, lease_ms), "extended",
                        lease_gone, &item.ticket);
}

int run_reschedule(int argc, char **argv) {
    int64_t delay_ms, due_ms;
    delayq_item item;
    delayq_status status;
    int code;
    (void)argc;
    if (!read_delay(argv[2], &delay_ms, &due_ms)) return bad_delay(argv[2]);
    code = open_ticket(argv, &item);
    if (code != DONE) return code;
    status =
        delayq_reschedule(handles, &item.ticket, from_now(delay_ms, due_ms));
    return show_outcome(status, "rescheduled", offer_gone, &item.ticket);
}

/*-----------------------------------------------------------------------------
 * MARK: - Peek
 * >>peek   pending items; dump
 *---------------------------------------------------------------------------*/

#define PAGE 100

/* Call show() for up to `most` pending items. Returns their number, or -1 after
 * a failure, with the exit code in *code. */
static int64_t each_pending(int64_t most, void (*show)(const delayq_item *),
                            int *code) {
    static delayq_item items[PAGE];
    int64_t shown = 0;
    delayq_ticket after;
    memset(&after, 0, sizeof after);
    if (set.after) snprintf(after.text, sizeof after.text, "%s", set.after);
    while (shown < most && !stops) {
        size_t i, n, max = most - shown < PAGE ? (size_t)(most - shown) : PAGE;
        delayq_status status = delayq_peek(handles, items, max, &n, &after);
        if (status == DELAYQ_EMPTY) break;
        if (status != DELAYQ_OK) {
            *code = exit_code(failed(handles, status));
            return -1;
        }
        for (i = 0; i < n; i++) show(&items[i]);
        after = items[n - 1].ticket;
        shown += (int64_t)n;
        if (!written()) {
            *code = broken();
            return -1;
        }
    }
    return shown;
}

static int64_t peeked_ms; /* the server's time at the peek */
static int headed;        /* 1: the columns have a head (on a terminal) */

static void show_head(const char *head) {
    if (!headed && isatty(1)) puts(head);
    headed = isatty(1);
}

static void show_peeked(const delayq_item *item) {
    char left[32], text[256];
    int64_t ms = item->due_ms - peeked_ms;
    if (set.json) {
        printf("{\"ticket\":\"%s\",\"due_ms\":%" PRId64 ",\"attempt\":%d,",
               item->ticket.text, item->due_ms, item->attempt);
        json_payload(item->data, item->len);
        fputs("}\n", stdout);
        return;
    }
    show_head("TICKET                                          DUE IN     "
              "ATTEMPTS  PAYLOAD");
    distance(ms < 0 ? -ms : ms, left, sizeof left);
    preview(item->data, item->len, text, sizeof text);
    printf("%s  %s%-*s  %*d  %s\n", item->ticket.text, ms < 0 ? "-" : "+",
           headed ? 8 : 0, left, headed ? 8 : 0, item->attempt, text);
}

/* Returns the limit of items: the number of -n (0: no limit), or ten. */
static int64_t at_most(void) {
    return set.count > 0 ? set.count : set.count == 0 ? INT64_MAX : 10;
}

int run_peek(int argc, char **argv) {
    int64_t shown;
    delayq_ticket after;
    int code;
    (void)argc;
    if (set.after) {
        snprintf(after.text, sizeof after.text, "%s", set.after);
        if (strlen(set.after) >= sizeof after.text || !is_ticket(&after))
            return usage("not a ticket: %s", set.after);
    }
    code = open_one(argv[0], 0);
    if (code != DONE) return code;
    peeked_ms = server_ms(handles);
    shown = each_pending(at_most(), show_peeked, &code);
    return shown < 0 ? code : shown > 0 ? DONE : NOTHING;
}

static void dump_head(const char *state) {
    fputs("{\"queue\":", stdout);
    json_text(queue_names[0]);
    printf(",\"state\":\"%s\",", state);
}

static void dump_pending(const delayq_item *item) {
    dump_head("pending");
    printf("\"ticket\":\"%s\",\"due_ms\":%" PRId64 ",\"attempt\":%d,",
           item->ticket.text, item->due_ms, item->attempt);
    json_payload(item->data, item->len);
    fputs("}\n", stdout);
}

static void dump_ready(text_of item, int is_element) {
    dump_head("ready");
    if (is_element) item = payload_of(handles, item);
    json_payload(item.data, item.len);
    fputs("}\n", stdout);
}

static void json_death(const dead_letter *l) {
    printf("\"reason\":\"%s\",\"why\":", l->reason);
    json_text(l->why);
    printf(",\"dead_ms\":%" PRId64 ",\"attempt\":%d,", l->dead_ms, l->attempt);
}

static void dump_dead(text_of raw, int is_element) {
    dead_letter l;
    (void)is_element;
    read_letter(handles, raw, &l);
    dump_head("dead");
    printf("\"ticket\":\"%s\",", l.ticket.text);
    json_death(&l);
    json_payload(l.payload.data, l.payload.len);
    fputs("}\n", stdout);
}

/* Call show() for up to `most` entries of a list, from number `from` on, the
 * oldest first. Returns the same as each_pending(). */
static int64_t each_listed(const char *key, int64_t from, int64_t most,
                           void (*show)(text_of, int), int is_element,
                           int *code) {
    int64_t shown = 0;
    size_t page = 0, i, n = 1;
    char why[WHY];
    while (n > 0 && shown < most && !stops) {
        redisReply *r =
            read_list(handles, key, from + shown, most - shown, &page, why);
        if (!r) {
            complain("%s", why);
            *code = command_code(why);
            return -1;
        }
        n = r->elements;
        for (i = 0; i < n; i++) {
            text_of item;
            item.data = r->element[i]->str;
            item.len = r->element[i]->len;
            show(item, is_element);
        }
        shown += (int64_t)n;
        freeReplyObject(r);
        if (!written()) {
            *code = broken();
            return -1;
        }
    }
    return shown;
}

/* Print the pending items, then the ready ones. An item that becomes ready
 * meanwhile is printed twice; in the other order it could be missed. */
int run_dump(int argc, char **argv) {
    char key[1200];
    int64_t n, shown = 0;
    int code = open_one(argv[0], 0);
    (void)argc;
    if (code != DONE) return code;
    if (set.dead) {
        shown = each_listed(key_of(argv[0], "delayq_dead:", key), 0, INT64_MAX,
                            dump_dead, 1, &code);
        return shown < 0 ? code : shown > 0 ? DONE : NOTHING;
    }
    shown = each_pending(INT64_MAX, dump_pending, &code);
    if (shown < 0) return code;
    n = each_listed(argv[0], 0, INT64_MAX, dump_ready, 0, &code);
    if (n < 0) return code;
    shown += n;
    n = set.wire == WIRE_NATIVE
            ? each_listed(key_of(argv[0], "delayq_retry:", key), 0, INT64_MAX,
                          dump_ready, 1, &code)
            : 0;
    if (n < 0) return code;
    if (stops) return stopped();
    return shown + n > 0 ? DONE : NOTHING;
}

/*-----------------------------------------------------------------------------
 * MARK: - Count
 * >>count   count, list, for people, JSON and Prometheus
 *---------------------------------------------------------------------------*/

#define TOTALS 6
static const char *const total_names[TOTALS] = {"offered", "taken", "acked",
                                                "nacked",  "died",  "canceled"};

/* Copy the totals of the handles with counters. Returns 0 if all are 0. */
static int read_totals(const delayq_counts *c, double to[TOTALS]) {
    to[0] = (double)c->total.offered;
    to[1] = (double)c->total.taken;
    to[2] = (double)c->total.acked;
    to[3] = (double)c->total.nacked;
    to[4] = (double)c->total.died;
    to[5] = (double)c->total.canceled;
    return to[0] + to[1] + to[2] + to[3] + to[4] + to[5] > 0;
}

static void show_json_counts(const char *name, const delayq_counts *c) {
    double totals[TOTALS];
    int i;
    fputs("{\"queue\":", stdout);
    json_text(name);
    printf(",\"pending\":%" PRId64 ",\"overdue\":%" PRId64
           ",\"overdue_ms\":%" PRId64 ",\"ready\":%" PRId64 ",\"dead\":%" PRId64
           ",\"next_due_ms\":",
           c->pending, c->overdue, c->overdue_ms, c->ready, c->dead);
    json_time(c->next_due_ms);
    fputs(",\"paused_ms\":", stdout);
    json_time(c->paused);
    if (read_totals(c, totals))
        for (i = 0; i < TOTALS; i++)
            printf(",\"%s\":%.0f", total_names[i], totals[i]);
    puts("}");
}

static void show_counts(const char *name, const delayq_counts *c) {
    double totals[TOTALS];
    char text[64], shown[600];
    int i;
    preview(name, strlen(name), shown, sizeof shown);
    printf("queue    %s\npending  %" PRId64 "\noverdue  %" PRId64, shown,
           c->pending, c->overdue);
    if (c->overdue > 0)
        printf("  oldest %s", distance(c->overdue_ms, text, sizeof text));
    printf("\nready    %" PRId64 "\ndead     %" PRId64 "\n", c->ready, c->dead);
    if (c->next_due_ms > 0)
        printf("next     %s\n", date(c->next_due_ms, text, sizeof text));
    if (c->paused > 0)
        printf("paused   since %s\n", date(c->paused, text, sizeof text));
    if (!read_totals(c, totals)) return;
    printf("counted");
    for (i = 0; i < TOTALS; i++)
        printf("  %s %s", total_names[i],
               commas((int64_t)totals[i], text, sizeof text));
    putchar('\n');
}

/* Print the name of a queue as the value of a label of Prometheus. */
static void show_label(const char *name) {
    while (*name) {
        size_t n = utf8((const unsigned char *)name, strlen(name));
        if (n == 0)
            fputs("\xef\xbf\xbd", stdout); /* U+FFFD for an invalid byte */
        else if (*name == '\n')
            fputs("\\n", stdout);
        else if (*name == '"' || *name == '\\')
            printf("\\%c", *name);
        else
            fwrite(name, 1, n, stdout);
        name += n > 0 ? n : 1;
    }
}

/* Print the metrics in Prometheus' text format. delayq_up is 0 if a queue can't
 * be counted, or if listing the queues failed with `code`. */
static int show_metrics(int code) {
    static const struct {
        const char *name, *help;
    } metrics[] = {
        {"up", "Whether the queue could be counted."},
        {"pending", "Items that are scheduled, leased or wait for a retry."},
        {"overdue", "Items that are due and not yet moved or taken."},
        {"overdue_seconds", "How long the oldest of them has been due."},
        {"ready", "Items in the ready lists."},
        {"dead", "Dead letters."},
        {"next_due_timestamp_seconds", "When the next item is due."},
        {"paused", "Whether the queue is paused."}};
    static const char *const total_helps[TOTALS] = {
        "offered",  "handed out", "acknowledged",
        "put back", "given up",   "canceled or replaced"};
    delayq_counts *counts =
        (delayq_counts *)must(calloc(handle_count + 1, sizeof *counts));
    int *up = (int *)must(calloc(handle_count + 1, sizeof *up));
    size_t i, k;
    for (i = 0; i < handle_count; i++) {
        delayq_status status = delayq_count(&handles[i], &counts[i]);
        up[i] = status == DELAYQ_OK;
        if (status != DELAYQ_OK) code = exit_code(failed(&handles[i], status));
    }
    for (k = 0; k < sizeof metrics / sizeof metrics[0]; k++) {
        printf("# HELP delayq_%s %s\n# TYPE delayq_%s gauge\n", metrics[k].name,
               metrics[k].help, metrics[k].name);
        if (k == 0 && handle_count == 0 && code != NOTHING) puts("delayq_up 0");
        for (i = 0; i < handle_count; i++) {
            const delayq_counts *c = &counts[i];
            double values[8];
            values[0] = up[i];
            values[1] = (double)c->pending;
            values[2] = (double)c->overdue;
            values[3] = (double)c->overdue_ms / 1000;
            values[4] = (double)c->ready;
            values[5] = (double)c->dead;
            values[6] = (double)c->next_due_ms / 1000;
            values[7] = c->paused > 0;
            if ((k > 0 && !up[i]) || (k == 6 && c->next_due_ms == 0)) continue;
            printf("delayq_%s{queue=\"", metrics[k].name);
            show_label(queue_names[i]);
            printf("\"} %.15g\n", values[k]);
        }
    }
    for (k = 0; k < TOTALS; k++) {
        int described = 0;
        for (i = 0; i < handle_count; i++) {
            double totals[TOTALS];
            if (!up[i] || !read_totals(&counts[i], totals)) continue;
            if (!described++)
                printf("# HELP delayq_%s_total Items that were %s, by all that "
                       "count.\n# TYPE delayq_%s_total counter\n",
                       total_names[k], total_helps[k], total_names[k]);
            printf("delayq_%s_total{queue=\"", total_names[k]);
            show_label(queue_names[i]);
            printf("\"} %.15g\n", totals[k]);
        }
    }
    free(counts);
    free(up);
    return code;
}

int run_count(int argc, char **argv) {
    size_t i;
    int code = open_or_list(argc, argv, set.prometheus ? PATIENT | ANYHOW : 0);
    if (set.prometheus) return show_metrics(code);
    if (code != DONE) return code;
    for (i = 0; i < handle_count; i++) {
        delayq_counts counts;
        delayq_status status = delayq_count(&handles[i], &counts);
        if (status != DELAYQ_OK) {
            code = exit_code(failed(&handles[i], status));
            if (passing(status)) break;
            continue;
        }
        if (i > 0 && !set.json) putchar('\n');
        if (set.json)
            show_json_counts(queue_names[i], &counts);
        else
            show_counts(queue_names[i], &counts);
        if (!written()) return broken();
    }
    return code;
}

int run_list(int argc, char **argv) {
    size_t count, i;
    int code, width = 5, shown = 0;
    char **found = find_queues(argc > 0 ? argv[0] : NULL, &count, &code);
    if (!found) return code;
    code = open_all(found, count, ANYHOW);
    if (code != DONE) return code;
    for (i = 0; i < count; i++)
        if (width_of(found[i]) > width && width_of(found[i]) <= 40)
            width = width_of(found[i]);
    for (i = 0; i < count && !stops; i++) {
        char name[600], late[32];
        delayq_counts c;
        delayq_status status = delayq_count(&handles[i], &c);
        if (status != DELAYQ_OK) { /* for example, a key has a wrong type */
            code = exit_code(failed(&handles[i], status));
            if (passing(status)) break;
            continue;
        }
        if (set.json) {
            show_json_counts(found[i], &c);
        } else {
            if (!shown++)
                printf("%-*s  %10s  %9s  %8s  %9s  %7s\n", width, "QUEUE",
                       "PENDING", "OVERDUE", "OLDEST", "READY", "DEAD");
            preview(found[i], strlen(found[i]), name, sizeof name);
            printf("%s%*s  %10" PRId64 "  %9" PRId64 "  %8s  %9" PRId64
                   "  %7" PRId64 "%s\n",
                   name, width > width_of(name) ? width - width_of(name) : 0,
                   "", c.pending, c.overdue,
                   c.overdue > 0 ? distance(c.overdue_ms, late, sizeof late)
                                 : "-",
                   c.ready, c.dead, c.paused > 0 ? "  paused" : "");
        }
        if (!written()) return broken();
    }
    return code;
}

/*-----------------------------------------------------------------------------
 * MARK: - Dead letters
 * >>dead   dead, redrive, drop
 *---------------------------------------------------------------------------*/

static int64_t dead_number;

static void show_dead(text_of raw, int is_element) {
    dead_letter l;
    char text[256], when[64], reason[sizeof l.reason + 2 + sizeof l.why];
    int64_t number = dead_number++;
    (void)is_element;
    read_letter(handles, raw, &l);
    if (set.json) {
        printf("{\"number\":%" PRId64 ",\"ticket\":\"%s\",", number,
               l.ticket.text);
        json_death(&l);
        json_payload(l.payload.data, l.payload.len);
        fputs("}\n", stdout);
        return;
    }
    show_head("NUMBER  TICKET                                          TIME"
              "                 REASON       ATTEMPTS  PAYLOAD");
    preview(l.payload.data, l.payload.len, text, sizeof text);
    snprintf(reason, sizeof reason, "%s%s%s", l.reason, *l.why ? ": " : "",
             l.why);
    printf("%*" PRId64 "  %s  %s  %*s  %*d  %s\n", headed ? 6 : 0, number,
           l.ticket.text, date(l.dead_ms, when, sizeof when), headed ? -11 : 0,
           reason, headed ? 8 : 0, l.attempt, text);
}

int run_dead(int argc, char **argv) {
    char key[1200];
    int64_t shown;
    int code = open_one(argv[0], 0);
    (void)argc;
    if (code != DONE) return code;
    dead_number = set.from;
    shown = each_listed(key_of(argv[0], "delayq_dead:", key), set.from,
                        at_most(), show_dead, 1, &code);
    return shown < 0 ? code : shown > 0 ? DONE : NOTHING;
}

/* Redrive the oldest letters, 1,000 at a time. Letters that can't be decoded
 * move to the end of the list. If one pass through the whole list redrives
 * none, only such letters are left, so stop. */
static delayq_status redrive_oldest(int64_t *done) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX, in_vain = 0;
    delayq_counts counts;
    delayq_status status = delayq_count(handles, &counts);
    while (status == DELAYQ_OK && *done < left && !stops &&
           *done < counts.dead && in_vain <= counts.dead / 1000) {
        size_t n, max = left - *done < 1000 ? (size_t)(left - *done) : 1000;
        status = delayq_dead_redrive(handles, max, &n);
        *done += (int64_t)n;
        in_vain = n > 0 ? 0 : in_vain + 1;
    }
    return status;
}

/* Remove a letter and, if `redrive`, make it ready. The library has no call for
 * a single letter. If the server refuses the command, the letter stays. Returns
 * 1 if the letter was there, 0 if it was not, or -1 after a failure. */
static int settle_letter(const char *name, const char *key,
                         const dead_letter *l, int redrive, char why[WHY]) {
    static const char script[] =
        "redis.call('RPUSH', KEYS[2], ARGV[2])\n"
        "local n = redis.pcall('LREM', KEYS[1], 1, ARGV[1])\n"
        "if n ~= 1 then redis.call('RPOP', KEYS[2]) end\n"
        "return n\n";
    text_of words[7];
    redisReply *r;
    int done;
    words[0] = word(redrive ? "EVAL" : "LREM");
    words[1] = word(redrive ? script : key);
    words[2] = word(redrive ? "2" : "1");
    words[3] = redrive ? word(key) : l->raw;
    words[4] = word(name);
    words[5] = l->raw;
    words[6] = l->payload;
    r = command(handles, words, redrive ? 7 : 4, why);
    done = r && r->type == REDIS_REPLY_INTEGER ? (int)r->integer : -1;
    if (r) freeReplyObject(r);
    return done;
}

/* Redrive or drop the letters with these tickets. */
static int settle_letters(const char *name, char **tickets, int count,
                          int redrive, int64_t *done) {
    char key[1200], why[WHY] = "";
    int64_t from = 0;
    size_t page = 0, i, n = 1;
    int code = DONE, k;
    key_of(name, "delayq_dead:", key);
    while (n > 0 && *done < count && code == DONE && !stops) {
        redisReply *r = read_list(handles, key, from, 500, &page, why);
        if (!r) {
            complain("%s", why);
            return command_code(why);
        }
        n = r->elements;
        from += (int64_t)n;
        for (i = 0; i < n && code == DONE; i++) {
            text_of raw;
            dead_letter l;
            int settled;
            raw.data = r->element[i]->str;
            raw.len = r->element[i]->len;
            read_letter(handles, raw, &l);
            for (k = 0; k < count && strcmp(tickets[k], l.ticket.text) != 0;)
                k++;
            if (k == count) continue;
            if (redrive && !l.decodable) {
                complain("%s: it can't be decoded, only dropped",
                         l.ticket.text);
                code = REFUSED;
                break;
            }
            settled = settle_letter(name, key, &l, redrive, why);
            if (settled < 0) {
                complain("%s: %s", l.ticket.text, why);
                code = command_code(why) == REFUSED ? REFUSED : UNKNOWN;
            }
            if (settled == 1) {
                ++*done;
                from--;
            }
        }
        freeReplyObject(r);
    }
    if (code == DONE && *done < count && !set.quiet)
        complain("not among the dead letters: %d of %d", (int)(count - *done),
                 count);
    return code;
}

int run_redrive(int argc, char **argv) {
    delayq_status status = DELAYQ_OK;
    int64_t done = 0;
    int code;
    if (argc > 1 && (set.count >= 0 || set.max_late_ms > 0))
        return usage(set.count >= 0 ? "redrive: tickets, or -n of the oldest"
                                    : "redrive: tickets, or --max-late");
    code = open_one(argv[0], 0);
    if (code != DONE) return code;
    if (argc > 1)
        code = settle_letters(argv[0], argv + 1, argc - 1, 1, &done);
    else
        status = redrive_oldest(&done);
    failed(handles, status);
    if (status != DELAYQ_OK) code = exit_code(status);
    if (done == 0 && code > NOTHING) return code;
    if (set.json)
        printf("{\"redriven\":%" PRId64 "}\n", done);
    else if (!set.quiet)
        printf("%" PRId64 " made ready\n", done);
    if (code == DONE && done < argc - 1) code = NOTHING;
    return code != DONE || done > 0 ? code : NOTHING;
}

int run_drop(int argc, char **argv) {
    int64_t done = 0;
    int code = open_one(argv[0], 0);
    if (code != DONE) return code;
    code = settle_letters(argv[0], argv + 1, argc - 1, 0, &done);
    if (done == 0 && code > NOTHING) return code;
    if (set.json)
        printf("{\"dropped\":%" PRId64 "}\n", done);
    else if (!set.quiet)
        printf("%" PRId64 " dropped\n", done);
    return code == DONE && done < argc - 1 ? NOTHING : code;
}

/*-----------------------------------------------------------------------------
 * MARK: - Clear
 * >>clear   asks first
 *---------------------------------------------------------------------------*/

/* Ask on the terminal. Returns 1 for yes, 0 for no, -1 without a terminal. */
static int agreed(const char *name, int64_t count, const char *what) {
    char answer[16], n[32], shown[600];
    if (set.yes) return 1;
    if (!isatty(0) || !isatty(2)) return -1;
    preview(name, strlen(name), shown, sizeof shown);
    fprintf(stderr, "Remove %s %s of the queue %s? [y/N] ",
            commas(count, n, sizeof n), what, shown);
    if (!fgets(answer, sizeof answer, stdin)) return 0;
    return answer[0] == 'y' || answer[0] == 'Y';
}

/* Report that nothing is removed. Returns the exit code. */
static int refused_to_clear(int answer) {
    if (answer < 0) return usage("clear asks on a terminal, or needs --yes");
    complain("nothing was removed");
    return stops ? stopped() : NOTHING;
}

static int tell_removed(int64_t removed, int code) {
    if (set.json)
        printf("{\"removed\":%" PRId64 "}\n", removed);
    else if (!set.quiet)
        printf("%" PRId64 " removed\n", removed);
    return code;
}

/* Delete the keys of all offers. Otherwise new offers with these keys would not
 * be stored. */
static void forget_keys(const char *name) {
    char key[1200], match[2500], cursor[24] = "0", why[WHY];
    const char *from = key_of(name, "delayq_once:", key);
    size_t n = 0, i;
    for (; *from; from++) {
        if (strchr("*?[]\\", *from)) match[n++] = '\\';
        match[n++] = *from;
    }
    match[n++] = ':';
    match[n++] = '*';
    match[n] = '\0';
    do {
        text_of words[6];
        redisReply *r, *keys;
        words[0] = word("SCAN");
        words[1] = word(cursor);
        words[2] = word("MATCH");
        words[3] = word(match);
        words[4] = word("COUNT");
        words[5] = word("1000");
        r = command(handles, words, 6, why);
        if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2) {
            if (r) freeReplyObject(r);
            complain("the keys of offers are kept: %s", why);
            return;
        }
        snprintf(cursor, sizeof cursor, "%s", r->element[0]->str);
        keys = r->element[1];
        for (i = 0; i < keys->elements; i++) {
            redisReply *removed;
            words[0] = word("UNLINK");
            words[1].data = keys->element[i]->str;
            words[1].len = keys->element[i]->len;
            removed = command(handles, words, 2, why);
            if (!removed || removed->type != REDIS_REPLY_INTEGER) {
                complain("keys of offers are kept: %s", why);
                snprintf(cursor, sizeof cursor, "0");
                i = keys->elements - 1;
            }
            if (removed) freeReplyObject(removed);
        }
        freeReplyObject(r);
    } while (strcmp(cursor, "0") != 0 && !stops);
}

/* Clear a part of Redisson's mirror. If an element is in the mirror and not in
 * the zset, a program without a mirror has delivered or removed it, and
 * Redisson's poll() would deliver it again. A call checks at most 1,000
 * elements, and needs O(n) for n elements in the mirror.
 * returns  the number of removed elements; the number of checked elements */
static const char clear_mirror[] =
    "local from, seen, removed = tonumber(ARGV[1]), 0, 0\n"
    "if ARGV[2] == 'all' then\n"
    "  seen = math.min(1000, redis.call('LLEN', KEYS[1]))\n"
    "  redis.call('LTRIM', KEYS[1], seen, -1)\n"
    "  return {seen, seen}\n"
    "end\n"
    "local part = redis.call('LRANGE', KEYS[1], from, from + 999)\n"
    "for i, element in ipairs(part) do\n"
    "  if not redis.call('ZSCORE', KEYS[2], element) then\n"
    "    redis.call('LSET', KEYS[1], from + i - 1, 'delayq: removed')\n"
    "    removed = removed + 1\n"
    "  end\n"
    "end\n"
    "if removed > 0 then\n"
    "  redis.call('LREM', KEYS[1], 0, 'delayq: removed')\n"
    "end\n"
    "return {removed, #part}\n";

/* Walk through the whole mirror again and again until a walk removes nothing,
 * since other programs may change the mirror meanwhile. Returns the exit
 * code. */
static int run_clear_mirror(const char *name, int64_t *removed, char why[WHY]) {
    int64_t from = 0, before = 0;
    char keys[2][1200], at[24];
    text_of words[7];
    words[0] = word("EVAL");
    words[1] = word(clear_mirror);
    words[2] = word("2");
    words[3] = word(key_of(name, "redisson_delay_queue:", keys[0]));
    words[4] = word(key_of(name, "redisson_delay_queue_timeout:", keys[1]));
    words[5] = word(at);
    words[6] = word(set.all ? "all" : "stale");
    while (!stops) {
        redisReply *r;
        int64_t n, seen;
        snprintf(at, sizeof at, "%" PRId64, from);
        words[5] = word(at);
        r = command(handles, words, 7, why);
        if (!r || r->type != REDIS_REPLY_ARRAY || r->elements != 2) {
            if (r) freeReplyObject(r);
            return command_code(why);
        }
        n = r->element[0]->integer;
        seen = r->element[1]->integer;
        freeReplyObject(r);
        *removed += n;
        from += seen - n;
        if (seen > 0) continue;
        if (*removed == before) return DONE;
        before = *removed;
        from = 0;
    }
    return stopped();
}

static int clear_the_mirror(const char *name) {
    char key[1200], why[WHY] = "";
    text_of words[2];
    redisReply *r;
    int64_t removed = 0;
    int yes, code;
    words[0] = word("LLEN");
    words[1] = word(key_of(name, "redisson_delay_queue:", key));
    r = command(handles, words, 2, why);
    if (!r || r->type != REDIS_REPLY_INTEGER) {
        if (r) freeReplyObject(r);
        complain("%s", why);
        return command_code(why);
    }
    yes = agreed(name, r->integer,
                 set.all ? "elements of Redisson's mirror"
                         : "elements at most of Redisson's mirror");
    freeReplyObject(r);
    if (yes < 1) return refused_to_clear(yes);
    code = run_clear_mirror(name, &removed, why);
    if (*why) complain("%s", why);
    return *why && removed == 0 ? code : tell_removed(removed, code);
}

int run_clear(int argc, char **argv) {
    delayq_counts counts;
    delayq_status status;
    int64_t removed = 0;
    int code, yes;
    (void)argc;
    if (set.all && !set.mirror) return usage("--all needs --mirror");
    if (set.dead && set.mirror) return usage("either --dead or --mirror");
    code = open_one(argv[0], set.mirror ? ANYHOW : 0);
    if (code != DONE) return code;
    if (set.mirror) return clear_the_mirror(argv[0]);
    status = delayq_count(handles, &counts);
    if (status != DELAYQ_OK) return exit_code(failed(handles, status));
    yes = set.dead ? agreed(argv[0], counts.dead, "dead letters")
                   : agreed(argv[0], counts.pending + counts.ready, "items");
    if (yes < 1) return refused_to_clear(yes);
    status = set.dead ? delayq_dead_clear(handles, &removed)
                      : delayq_clear(handles, &removed);
    failed(handles, status);
    if (status == DELAYQ_OK && !set.dead) forget_keys(argv[0]);
    if (status < 0 && removed == 0) return exit_code(status);
    return tell_removed(removed, exit_code(status));
}

/*-----------------------------------------------------------------------------
 * MARK: - Pause
 * >>pause   pause, resume
 *---------------------------------------------------------------------------*/

static int pause_queue(char *name, int on) {
    int code = open_one(name, 0);
    if (code != DONE) return code;
    return show_outcome(delayq_pause(handles, on), on ? "paused" : "resumed",
                        NULL, NULL);
}

int run_pause(int argc, char **argv) {
    (void)argc;
    return pause_queue(argv[0], 1);
}

int run_resume(int argc, char **argv) {
    (void)argc;
    return pause_queue(argv[0], 0);
}
