/*
 * watch.c -- the live view.
 *
 * For each refresh the server runs a delayq_count per queue. For the queue that
 * is shown below the table it also runs a delayq_count_due (a ZCOUNT per bar,
 * each O(log n)), peeks until it has 1,000 items (each reads 256 KiB at most),
 * and up to three LRANGEs of at most 60 items each. If the output is lines, the
 * server runs a delayq_count and a delayq_count_due per queue, and no more.
 *
 * The rates are averages over the last ten updates. NET/S is the growth of a
 * queue in items per second. An item that is offered and taken between two
 * updates does not change the growth. So OFFERED/S and TAKEN/S are shown only
 * if the programs of a queue keep counters (options.counters). The view
 * shows the lateness of the items that are still in the set. The lateness of a
 * taken item is known only to the program that took it (`take --stats`).
 */
#include "tool.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

/*-----------------------------------------------------------------------------
 * MARK: - Views
 * >>views   the counts of each queue
 *---------------------------------------------------------------------------*/

#define BARS 16
#define NEXT 1000
#define ROWS 60 /* the largest number of rows read from a list */
#define RELIST_MS 10000

/* The edges between the bars, in ms from now. If the screen has few lines,
 * the edges of the highest levels are left out. */
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
#define NOW 4 /* index of the edge "now"; the bars 0 to NOW are overdue */

/* The last values of a number, from which its growth is computed. */
#define SPAN 11
typedef struct growth {
    size_t count;
    int64_t ms[SPAN], value[SPAN];
} growth;

static void grow(growth *g, int64_t ms, int64_t value) {
    if (g->count == SPAN) {
        g->count--;
        memmove(g->ms, g->ms + 1, g->count * sizeof *g->ms);
        memmove(g->value, g->value + 1, g->count * sizeof *g->value);
    }
    g->ms[g->count] = ms;
    g->value[g->count++] = value;
}

/* Add a value of a counter. A deleted counter begins at 0 again. */
static void rise(growth *g, int64_t ms, uint64_t value) {
    if (g->count > 0 && (int64_t)value < g->value[g->count - 1]) g->count = 0;
    grow(g, ms, (int64_t)value);
}

/* Compute the growth per second over the last ten updates. Returns 0 if the
 * growth is not known yet. */
static int net(const growth *g, double *per_s) {
    size_t last = g->count - 1;
    if (g->count < 2 || g->ms[last] <= g->ms[0]) return 0;
    *per_s = (double)(g->value[last] - g->value[0]) * 1000 /
             (double)(g->ms[last] - g->ms[0]);
    return 1;
}

typedef struct view {
    const char *name;
    delayq_status status;
    char why[WHY]; /* the reason why the last poll failed */
    delayq_counts counts;
    int64_t bars[BARS];
    int has_bars;
    growth total, offered, taken;
} view;

static view *views;
static size_t selected;
static int64_t server_offset_ms; /* the server's clock minus this machine's */
/* the server's time at the last refresh */
static int64_t polled_ms;
/* time of the last list of queues, by clock_ms(); 0: the user names them */
static int64_t listed_ms;
static int counted; /* 1: at least one queue has counters */

/* Count the items in each bar of the histogram. */
static int count_bars(delayq *q, view *v) {
    int64_t due[BARS], counts[BARS];
    int i;
    for (i = 0; i < BARS - 1; i++) due[i] = v->counts.now_ms + edges[i].ms;
    due[i] = INT64_C(9007199254740991); /* all later items */
    v->status = delayq_count_due(q, due, BARS, counts);
    if (v->status != DELAYQ_OK) return 0;
    for (i = 0; i < BARS; i++)
        v->bars[i] = counts[i] - (i > 0 ? counts[i - 1] : 0);
    return 1;
}

static void refresh(size_t i) {
    delayq *q = &handles[i];
    view *v = &views[i];
    v->has_bars = 0;
    v->status = delayq_count(q, &v->counts);
    if (v->status == DELAYQ_OK && i == selected) v->has_bars = count_bars(q, v);
    if (v->status != DELAYQ_OK) {
        shorten(reason(q), v->why, sizeof v->why);
        v->total.count = v->offered.count = v->taken.count = 0;
        return;
    }
    server_offset_ms = v->counts.now_ms - clock_ms();
    grow(&v->total, v->counts.now_ms,
         v->counts.pending + v->counts.ready + v->counts.dead);
    if (v->counts.total.offered + v->counts.total.taken == 0 &&
        v->offered.count == 0)
        return;
    rise(&v->offered, v->counts.now_ms, v->counts.total.offered);
    rise(&v->taken, v->counts.now_ms, v->counts.total.taken);
    counted = 1;
}

/*-----------------------------------------------------------------------------
 * MARK: - Panes
 * >>panes   the items of the queue that is shown below the table
 *
 * An element contains the number of its attempts, but not whether it is leased
 * or waits for its next attempt after a nack. So LEASED shows the items that
 * were handed out once, and RETRYING those that were handed out more often.
 *---------------------------------------------------------------------------*/

enum { SCHEDULED, LEASED, RETRYING, READY, DEAD, PANES };

typedef struct row {
    int64_t ms; /* the due time, or the time of death of a dead letter */
    int attempt;
    char reason[16];
    char ticket[52];
    char text[200];
} row;

typedef struct pane {
    const char *name;
    row *rows;
    size_t count, room;
    int64_t total;
    int complete; /* 1: the total is exact; 0: there may be more */
    growth grown;
} pane;

static pane panes[PANES] = {{.name = "SCHEDULED"},
                            {.name = "LEASED"},
                            {.name = "RETRYING"},
                            {.name = "READY"},
                            {.name = "DEAD"}};
static int enlarged = -1; /* the pane that is shown alone; -1: all panes */
static size_t seen_items; /* the number of items read from the set */
static size_t panes_of;   /* index of the queue that the panes show */

static row *add_row(pane *p, const void *data, size_t len) {
    row *r;
    if (p->count == p->room)
        p->rows = (row *)must(
            realloc(p->rows, (p->room = 2 * p->room + 64) * sizeof *p->rows));
    r = &p->rows[p->count++];
    memset(r, 0, sizeof *r);
    preview(data, len, r->text, sizeof r->text);
    return r;
}

static void read_pending(delayq *q) {
    static delayq_item items[NEXT / 2];
    delayq_ticket after;
    size_t n, i;
    memset(&after, 0, sizeof after);
    seen_items = 0;
    while (seen_items < NEXT &&
           delayq_peek(q, items, NEXT / 2, &n, &after) == DELAYQ_OK) {
        for (i = 0; i < n; i++) {
            int attempt = items[i].attempt;
            row *r = add_row(&panes[attempt > 1   ? RETRYING
                                    : attempt > 0 ? LEASED
                                                  : SCHEDULED],
                             items[i].data, items[i].len);
            r->ms = items[i].due_ms;
            r->attempt = attempt;
            snprintf(r->ticket, sizeof r->ticket, "%s", items[i].ticket.text);
        }
        seen_items += n;
        after = items[n - 1].ticket;
    }
}

/* Read the first items of a list, or the last dead letters. */
static void read_rows(delayq *q, pane *p, const char *key, int64_t from,
                      int is_element) {
    char why[WHY];
    size_t page = ROWS, i;
    redisReply *r = read_list(q, key, from, ROWS, &page, why);
    for (i = 0; r && i < r->elements; i++) {
        text_of raw;
        raw.data = r->element[i]->str;
        raw.len = r->element[i]->len;
        if (p == &panes[DEAD]) {
            dead_letter l;
            row *to;
            read_letter(q, raw, &l);
            to = add_row(p, l.payload.data, l.payload.len);
            to->ms = l.dead_ms;
            to->attempt = l.attempt;
            snprintf(to->reason, sizeof to->reason, "%s", l.reason);
            snprintf(to->ticket, sizeof to->ticket, "%s", l.ticket.text);
        } else {
            if (is_element) raw = payload_of(q, raw);
            add_row(p, raw.data, raw.len);
        }
    }
    if (r) freeReplyObject(r);
}

/* Forget the panes' growth if another queue is shown, or after a failure. */
static void forget_panes(void) {
    int i;
    for (i = 0; i < PANES; i++) panes[i].grown.count = 0;
    panes_of = selected;
}

static void total_panes(const delayq_counts *c) {
    int all = (int64_t)seen_items >= c->pending, i;
    int64_t out = (int64_t)(panes[LEASED].count + panes[RETRYING].count);
    for (i = 0; i < PANES; i++) {
        panes[i].total = (int64_t)panes[i].count;
        panes[i].complete = all || i >= READY;
    }
    panes[SCHEDULED].total = c->pending > out ? c->pending - out : 0;
    panes[READY].total = c->ready;
    panes[DEAD].total = c->dead;
    if (panes_of != selected) forget_panes();
    for (i = 0; i < PANES; i++) {
        if (panes[i].complete)
            grow(&panes[i].grown, c->now_ms, panes[i].total);
        else
            panes[i].grown.count = 0;
    }
}

static void read_panes(void) {
    delayq *q = &handles[selected];
    const delayq_counts *c = &views[selected].counts;
    char key[1200];
    int i;
    for (i = 0; i < PANES; i++) panes[i].count = 0;
    read_pending(q);
    if (c->ready > 0) {
        read_rows(q, &panes[READY], views[selected].name, 0, 0);
        if (set.wire == WIRE_NATIVE)
            read_rows(q, &panes[READY],
                      key_of(views[selected].name, "delayq_retry:", key), 0, 1);
    }
    if (c->dead > 0)
        read_rows(q, &panes[DEAD],
                  key_of(views[selected].name, "delayq_dead:", key),
                  c->dead > ROWS ? c->dead - ROWS : 0, 1);
    total_panes(c);
}

static void refresh_all(void) {
    int64_t began_ms = clock_ms();
    size_t i;
    for (i = 0; i < handle_count && !stops; i++) {
        const view *before = i > 0 ? &views[i - 1] : NULL;
        if (before && passing(before->status) && clock_ms() - began_ms > 500) {
            /* The server does not answer, so don't wait for it again for each
             * queue. */
            views[i].status = before->status;
            memcpy(views[i].why, before->why, sizeof before->why);
            views[i].has_bars = 0;
            views[i].total.count = views[i].offered.count = 0;
            views[i].taken.count = 0;
        } else {
            refresh(i);
        }
    }
    polled_ms = clock_ms() + server_offset_ms;
    if (views[selected].status == DELAYQ_OK)
        read_panes();
    else
        forget_panes();
}

/* If no queue was named, look for new queues every RELIST_MS. */
static void list_anew(void) {
    char **found, *chosen;
    size_t count, i;
    int code;
    if (listed_ms == 0 || clock_ms() - listed_ms < RELIST_MS) return;
    listed_ms = clock_ms();
    found = find_queues(NULL, &count, &code);
    if (!found) return; /* try again later */
    for (i = 0; i < count && i < handle_count; i++)
        if (strcmp(found[i], queue_names[i]) != 0) break;
    if (i == count && i == handle_count) {
        for (i = 0; i < count; i++) free(found[i]);
        free(found);
        return;
    }
    chosen = queue_names[selected];
    close_all();
    open_all(found, count, PATIENT | ANYHOW);
    free(views);
    views = (view *)must(calloc(handle_count, sizeof *views));
    for (selected = i = 0; i < handle_count; i++) {
        views[i].name = queue_names[i];
        if (strcmp(chosen, queue_names[i]) == 0) selected = i;
    }
    forget_panes();
}

/*-----------------------------------------------------------------------------
 * MARK: - Lines
 * >>lines   if the output is no terminal
 *---------------------------------------------------------------------------*/

static void show_json_view(const view *v) {
    double per_s;
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
           ",\"dead\":%" PRId64 ",\"paused_ms\":",
           v->counts.pending, v->counts.overdue, v->counts.overdue_ms,
           v->counts.ready, v->counts.dead);
    json_time(v->counts.paused);
    if (net(&v->total, &per_s)) printf(",\"net_per_s\":%.1f", per_s);
    if (net(&v->offered, &per_s)) printf(",\"offered_per_s\":%.1f", per_s);
    if (net(&v->taken, &per_s)) printf(",\"taken_per_s\":%.1f", per_s);
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
    char now[64], oldest[32], name[600], why[WHY];
    double per_s;
    preview(v->name, strlen(v->name), name, sizeof name);
    date((int64_t)time(NULL) * 1000, now, sizeof now);
    if (v->status != DELAYQ_OK) {
        preview(v->why, strlen(v->why), why, sizeof why);
        printf("%s %s error: %s\n", now, name, why);
        return;
    }
    printf("%s %s pending %" PRId64 " overdue %" PRId64
           " oldest %s ready %" PRId64 " dead %" PRId64,
           now, name, c->pending, c->overdue,
           distance(c->overdue_ms, oldest, sizeof oldest), c->ready, c->dead);
    if (c->paused > 0) fputs(" paused", stdout);
    if (net(&v->total, &per_s)) printf(" net %+.1f/s", per_s);
    if (net(&v->offered, &per_s)) printf(" offered %.1f/s", per_s);
    if (net(&v->taken, &per_s)) printf(" taken %.1f/s", per_s);
    putchar('\n');
}

static int watch_plainly(void) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX;
    while (!stops && left-- > 0) {
        int64_t until = clock_ms() + set.interval_ms;
        size_t i;
        list_anew();
        for (i = 0; i < handle_count && !stops; i++) {
            selected = i; /* so that all queues have bars in JSON */
            refresh(i);
            if (set.json)
                show_json_view(&views[i]);
            else
                show_plain_view(&views[i]);
        }
        if (!written()) return broken();
        while (left > 0 && !stops && clock_ms() < until)
            wait_for(-1, until - clock_ms());
    }
    return DONE;
}

/*-----------------------------------------------------------------------------
 * MARK: - Screen
 * >>screen   a frame is composed in memory and written at once
 *---------------------------------------------------------------------------*/

static struct {
    char *text;
    size_t len, room;
    int rows, columns, row;
    int blocks; /* 1: bars are made of blocks; 0: of # */
    int grey;   /* 1: NO_COLOR is set */
    int lost;   /* 1: the terminal can't be written to */
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

/* Copy a text to `width` columns. Unprintable characters become '?', and blanks
 * fill the rest. Returns the number of bytes. */
static size_t fit(const char *s, int width, char *to, size_t size) {
    size_t k = 0, n;
    for (; *s; s += n) {
        int columns;
        n = utf8((const unsigned char *)s, strlen(s));
        columns = n > 0 ? columns_of(s, n) : -1;
        if (n == 0) n = 1;
        if (width < (columns < 0 ? 1 : columns) || k + n + 1 > size) break;
        width -= columns < 0 ? 1 : columns;
        if (columns < 0) {
            to[k++] = '?';
        } else {
            memcpy(to + k, s, n);
            k += n;
        }
    }
    for (; width > 0 && k + 1 < size; width--) to[k++] = ' ';
    to[k] = '\0';
    return k;
}

/* Print one line in a style ("1" bold, "7" inverse, "" none), cut at the
 * screen's edge. Lines below the screen are left out. */
static void put_line(const char *style, const char *format, ...) {
    char line[2048], cut[4096], code[16];
    size_t n;
    va_list args;
    if (screen.row >= screen.rows) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    put_text(screen.row++ > 0 ? "\r\n\033[K" : "\033[K");
    if (screen.grey && *style == '3') style = "1";
    snprintf(code, sizeof code, "\033[%sm", style);
    if (*style) put_text(code);
    n = fit(line, screen.columns < 2000 ? screen.columns : 2000, cut,
            sizeof cut);
    while (*style != '7' && n > 0 && cut[n - 1] == ' ') n--;
    put_bytes(cut, n);
    if (*style) put_text("\033[0m");
}

/* Draw a bar of this many eighths of a column. */
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

/* Write the title of a bar between the edges a and b. */
static void bar_label(int a, int b, char *to, size_t size) {
    if (a < 0 && b == BARS - 1)
        snprintf(to, size, "all");
    else if (b == NOW && a < 0)
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

/* Choose the edges so that at most `rows` bars are drawn. Edges in the past
 * are chosen only if something is overdue. */
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

static void draw_bars(const view *v, int rows) {
    int chosen[BARS], n = choose_edges(v, rows, chosen), i, k, from;
    int64_t sums[BARS], most = 1;
    int width = screen.columns - 29;
    if (rows < 1) return;
    if (width > 500) width = 500;
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
    int width, need; /* need: show it on screens of at least this width */
} column;

static const column columns[] = {
    {"PENDING", 11, 0},    {"OVERDUE", 9, 36}, {"OLDEST", 8, 62},
    {"READY", 9, 28},      {"DEAD", 8, 48},    {"NET/S", 9, 70},
    {"OFFERED/S", 11, 90}, {"TAKEN/S", 9, 90}, /* only with counters */
};
#define COLUMNS (sizeof columns / sizeof columns[0])

static int is_shown(size_t which) {
    return screen.columns >= columns[which].need && (which < 6 || counted);
}

static void cell(const view *v, size_t which, char *to, size_t size) {
    const delayq_counts *c = &v->counts;
    double per_s;
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
        if (net(&v->total, &per_s)) snprintf(to, size, "%+.1f", per_s);
        break;
    default:
        if (net(which == 6 ? &v->offered : &v->taken, &per_s))
            snprintf(to, size, "%.1f", per_s);
    }
}

/* Draw a row of the table, or its head if v is NULL. */
static void draw_row(const view *v, const char *style) {
    char line[900], text[40];
    size_t i, n;
    int used = 0, width;
    for (i = 0; i < COLUMNS; i++)
        if (is_shown(i)) used += columns[i].width;
    width = screen.columns - used;
    if (width > 50) width = 50;
    if (width < 8) width = 8;
    n = fit(v ? v->name : "QUEUE", width - 1, line, 400);
    line[n++] = ' ';
    line[n] = '\0';
    if (v && v->status != DELAYQ_OK) {
        put_line("31", "%s%s", line, v->why);
        return;
    }
    for (i = 0; i < COLUMNS; i++) {
        if (!is_shown(i)) continue;
        if (v)
            cell(v, i, text, sizeof text);
        else
            snprintf(text, sizeof text, "%s", columns[i].head);
        n += (size_t)snprintf(line + n, sizeof line - n, "%*s",
                              columns[i].width, text);
    }
    if (v && v->counts.paused > 0)
        snprintf(line + n, sizeof line - n, "  paused");
    put_line(style, "%s", line);
}

/* Returns the lowest edge, as text, such that `percent` % of the overdue items
 * are less late. */
static const char *late_part(const view *v, int percent) {
    int64_t seen = 0;
    int i;
    for (i = NOW; i > 0; i--) {
        seen += v->bars[i];
        if (seen * 100 >= v->counts.overdue * percent) break;
    }
    return i > 0 ? edges[i - 1].text : "more";
}

/* Draw the lines above the bars. */
static void draw_about(const view *v) {
    char left[32];
    if (v->counts.paused > 0)
        put_line("31", "paused for %s: nothing is moved or taken",
                 distance(polled_ms > v->counts.paused
                              ? polled_ms - v->counts.paused
                              : 0,
                          left, sizeof left));
    else if (v->counts.overdue > 0)
        put_line("1", "overdue: oldest %s, half < %s, 99%% < %s",
                 distance(v->counts.overdue_ms, left, sizeof left),
                 late_part(v, 50), late_part(v, 99));
    else if (v->counts.next_due_ms > 0)
        put_line("1", "next due in %s",
                 distance(v->counts.next_due_ms > polled_ms
                              ? v->counts.next_due_ms - polled_ms
                              : 0,
                          left, sizeof left));
    else
        put_line("1", "nothing is pending");
}

static void draw_title(const pane *p, int number) {
    static const char *const explained[PANES] = {
        "due in", "handed out once: lease, or pause before a retry, ends in",
        "handed out more often; next in", "may be taken now",
        "the newest first: died ago"};
    const char *more = p->complete ? ""
                       : number == SCHEDULED
                           ? (screen.blocks ? "\u2264" : "<=")
                           : (screen.blocks ? "\u2265" : ">=");
    char text[32], count[40], rate[32] = "";
    size_t n = (size_t)snprintf(count, sizeof count, "%s", more);
    double per_s;
    if (net(&p->grown, &per_s) && per_s != 0)
        snprintf(rate, sizeof rate, "%+.1f/s", per_s);
    commas(p->total, text, sizeof text);
    fit(text, 9 - width_of(more), count + n, sizeof count - n);
    put_line("7", " %d %-10s %s %9s  %s", number + 1, p->name, count, rate,
             screen.columns >= 60 ? explained[number] : "");
}

static void draw_item(const pane *p, const row *r) {
    char when[32], ticket[64] = "";
    int64_t ms = r->ms - polled_ms;
    if (p == &panes[READY]) {
        put_line("", "   %s", r->text);
        return;
    }
    distance(ms < 0 ? -ms : ms, when, sizeof when);
    if (screen.columns >= 110)
        snprintf(ticket, sizeof ticket, "%-49s ", r->ticket);
    if (p == &panes[DEAD])
        put_line("", "  %9s  %-11s %5d  %s%s", when, r->reason, r->attempt,
                 ticket, r->text);
    else
        put_line(ms < 0 ? "31" : "", "  %s%8s %5d  %s%s", ms < 0 ? "-" : " ",
                 when, r->attempt, ticket, r->text);
}

static void draw_pane(int number, int rows) {
    const pane *p = &panes[number];
    size_t i;
    draw_title(p, number);
    for (i = 0; i < p->count && (int)i < rows; i++)
        draw_item(p, &p->rows[number == DEAD ? p->count - 1 - i : i]);
}

/* Draw the panes, each with a title. Give the remaining lines to the panes in
 * turn, until no pane needs more. */
static void draw_panes(void) {
    int left = screen.rows - screen.row - PANES, rows[PANES] = {0}, i, more = 1;
    if (enlarged >= 0) {
        draw_pane(enlarged, screen.rows);
        return;
    }
    if (left < 0) return;
    while (left > 0 && more)
        for (more = i = 0; i < PANES; i++)
            if ((size_t)rows[i] < panes[i].count && left > 0)
                rows[i]++, left--, more = 1;
    for (i = 0; i < PANES; i++) draw_pane(i, rows[i]);
}

static void draw_head(void) {
    char now[64], every[32], line[200], others[48] = "";
    int room = screen.columns;
    if (handle_count > 1)
        snprintf(others, sizeof others, ", tab: %zu of %zu", selected + 1,
                 handle_count);
    date((int64_t)time(NULL) * 1000, now, sizeof now);
    distance(set.interval_ms, every, sizeof every);
    snprintf(line, sizeof line, " delayq watch  every %s  %s  q quits%s%s",
             every, now + (strlen(now) > 11 ? 11 : 0), others,
             enlarged < 0 ? ", 1-5: one pane" : ", 0: all panes");
    if (room < 70) snprintf(line, sizeof line, " delayq  q quits%s", others);
    put_line("7", "%s", line);
}

static void draw(void) {
    const view *v = &views[selected];
    size_t i, fitting, first = 0;
    screen.len = 0;
    screen.row = 0;
    put_text("\033[H");
    draw_head();
    draw_row(NULL, "1");
    /* The table fills at most a third of the screen. */
    fitting = screen.rows > 12 ? (size_t)(screen.rows - 3) / 3 : 2;
    if (selected >= fitting) first = selected - fitting + 1;
    for (i = first; i < handle_count && i < first + fitting; i++)
        draw_row(&views[i], i == selected && handle_count > 1 ? "7" : "");
    if (v->status == DELAYQ_OK) {
        int left = screen.rows - screen.row - 2, bars;
        put_line("", "%s", "");
        draw_about(v);
        bars = left < PANES + 2 ? left : (left - PANES) / 2;
        if (v->has_bars && enlarged < 0) draw_bars(v, bars);
        if (left >= PANES + 2 || enlarged >= 0) draw_panes();
    }
    if (screen.row < screen.rows) put_text("\r\n\033[J");
    for (i = 0; i < screen.len && !screen.lost;) {
        ssize_t n = write(1, screen.text + i, screen.len - i);
        if (n < 0 && errno != EINTR && errno != EAGAIN) screen.lost = 1;
        if (n > 0) i += (size_t)n;
    }
}

/*-----------------------------------------------------------------------------
 * MARK: - Terminal
 * >>terminal   its mode, size and keys
 *---------------------------------------------------------------------------*/

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
    /* Use the alternate screen, without cursor and wrapping. */
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

/* After Ctrl-Z, restore the terminal, and stop until SIGCONT comes. */
static void suspend(void) {
    suspended = 0;
    screen_off();
    raise(SIGSTOP);
    screen_on();
}

/* Handle the pressed keys. Returns 0 to quit, 1 to refresh, 2 to draw again, or
 * -1 to do nothing. */
static int read_keys(void) {
    unsigned char keys[32];
    ssize_t i, n = read(0, keys, sizeof keys);
    int result = -1;
    if (n <= 0) reads_keys = 0; /* the terminal is closed */
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
        if (!arrow && keys[i] >= '0' && keys[i] <= '0' + PANES) {
            enlarged = keys[i] - '1';
            if (result < 0) result = 2;
        }
    }
    return result;
}

static int watch_screen(void) {
    int64_t left = set.count > 0 ? set.count : INT64_MAX;
    int i;
    screen_on();
    while (!stops && !screen.lost && left-- > 0) {
        int64_t until = clock_ms() + set.interval_ms;
        int key = -1;
        list_anew();
        measure();
        refresh_all();
        draw();
        while (!stops && !screen.lost && key != 0 && key != 1 &&
               clock_ms() < until) {
            if (wait_for(reads_keys ? 0 : -1, until - clock_ms()))
                key = read_keys();
            if (suspended) suspend();
            measure(); /* so that a new size is drawn at once */
            if (key != 0 && key != 1) draw();
        }
        if (key == 0) break;
    }
    screen_off();
    free(screen.text);
    for (i = 0; i < PANES; i++) free(panes[i].rows);
    return screen.lost ? BROKEN : DONE;
}

int run_watch(int argc, char **argv) {
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    size_t i;
    int code;
    if (set.interval_ms < 100) return usage("--interval: 100ms or more");
    if (set.io_timeout_ms < 0) set.io_timeout_ms = 1000;
    code = open_or_list(argc, argv, PATIENT);
    set.quiet = 1; /* the view shows errors */
    listed_ms = argc > 0 ? 0 : clock_ms();
    /* used until the server's clock is known */
    server_offset_ms = (int64_t)time(NULL) * 1000 - clock_ms();
    if (code != DONE) return code;
    views = (view *)must(calloc(handle_count, sizeof *views));
    for (i = 0; i < handle_count; i++) views[i].name = queue_names[i];
    if (set.json || !isatty(1) || !term || strcmp(term, "dumb") == 0) {
        code = watch_plainly();
    } else {
        screen.blocks = columns_of("\u2588", strlen("\u2588")) == 1;
        screen.grey = no_color && *no_color;
        catch_signal(SIGWINCH, on_signal);
        catch_stop(SIGTSTP);
        code = watch_screen();
    }
    free(views);
    return code;
}
