/*
 * text.c -- texts that the tool reads and writes: see tool.h.
 */
#include "tool.h"
#include <ctype.h>
#include <errno.h>
#include <locale.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

/* Print a line on stderr. The line may contain names, payloads and the server's
 * texts, so control characters are shown as '.'. */
static void say(const char *format, va_list args) {
    char text[4096], line[4096];
    vsnprintf(text, sizeof text, format, args);
    preview(text, strlen(text), line, sizeof line);
    fprintf(stderr, "delayq: %s\n", line);
}

void complain(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
}

int usage(const char *format, ...) {
    va_list args;
    va_start(args, format);
    say(format, args);
    va_end(args);
    complain("try 'delayq --help'");
    return USAGE;
}

void *must(void *memory) {
    if (memory) return memory;
    complain("out of memory");
    exit(BROKEN);
}

/*-----------------------------------------------------------------------------
 * MARK: - Text
 * >>text   numbers, JSON, payloads
 *---------------------------------------------------------------------------*/

/* Returns 1234567 as 1,234,567. */
const char *commas(int64_t value, char *to, size_t size) {
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

/* Returns a duration as text: 950ms, 5.2s, 3m12s, 1h05m, 2d03h. */
const char *distance(int64_t ms, char *to, size_t size) {
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

size_t utf8(const unsigned char *s, size_t n) {
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
        return 0; /* not the shortest form, a surrogate, or above U+10FFFF */
    return len;
}

static int is_text(const unsigned char *s, size_t n) {
    size_t i, len;
    for (i = 0; i < n; i += len)
        if ((len = utf8(s + i, n - i)) == 0) return 0;
    return 1;
}

/* Print a byte of a JSON string. Bytes from 0x80 on are parts of characters. */
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

/* Print a text as a JSON string. If it is not UTF-8, it is read as Latin-1. */
void json_text(const char *s) {
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

/* Print a time, or null if it is 0. */
void json_time(int64_t ms) {
    if (ms > 0)
        printf("%" PRId64, ms);
    else
        fputs("null", stdout);
}

/* Print "payload":"..." if the data is UTF-8, else "payload_base64":"...". */
void json_payload(const void *data, size_t n) {
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

void preview(const void *data, size_t n, char *to, size_t size) {
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

void shorten(const char *text, char *to, size_t size) {
    size_t n = strlen(text);
    if (n < size) {
        memcpy(to, text, n + 1);
        return;
    }
    n = size - sizeof " ...";
    while (n > 0 && text[n] != ' ') n--;
    if (n == 0) n = size - sizeof " ...";
    memcpy(to, text, n);
    memcpy(to + n, " ...", sizeof " ...");
}

/* The errno of the first failed write, or 0. */
static int write_error;

int written(void) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return 1;
    if (!write_error) {
        write_error = errno ? errno : EIO;
        if (write_error != EPIPE) /* `| head` closes its pipe early */
            complain("can't write: %s", strerror(write_error));
    }
    return 0;
}

/* Returns the exit code for output that could not be written. After EPIPE this
 * is the exit code of a program that SIGPIPE has ended. */
int broken(void) {
    return write_error == EPIPE ? 128 + SIGPIPE : BROKEN;
}

/*-----------------------------------------------------------------------------
 * MARK: - Columns
 * >>columns   how wide a text is on a terminal
 *---------------------------------------------------------------------------*/

static int shows_utf8;

/* Use the locale that the environment names. If it is not installed, and its
 * character set is UTF-8, use C.UTF-8. */
void use_locale(void) {
    const char *names[] = {"LC_ALL", "LC_CTYPE", "LANG"}, *value = NULL;
    size_t i;
    for (i = 0; i < 3 && (!value || !*value); i++) value = getenv(names[i]);
    shows_utf8 = value && (strstr(value, "UTF-8") || strstr(value, "utf8") ||
                           strstr(value, "UTF8") || strstr(value, "utf-8"));
    if (!setlocale(LC_CTYPE, "") && shows_utf8) setlocale(LC_CTYPE, "C.UTF-8");
}

int columns_of(const char *s, size_t n) {
    wchar_t wide;
    mbstate_t state;
    if (n == 1) return (unsigned char)*s < 0x20 || *s == 0x7f ? -1 : 1;
    memset(&state, 0, sizeof state);
    if (!shows_utf8 || mbrtowc(&wide, s, n, &state) != n) return -1;
    return wcwidth(wide);
}

int width_of(const char *s) {
    int width = 0;
    while (*s) {
        size_t n = utf8((const unsigned char *)s, strlen(s));
        int columns = n > 0 ? columns_of(s, n) : -1;
        width += columns < 0 ? 1 : columns; /* shown as '?' */
        s += n > 0 ? n : 1;
    }
    return width;
}

/*-----------------------------------------------------------------------------
 * MARK: - JSON
 * >>json   reading an object, field by field
 *---------------------------------------------------------------------------*/

static void json_blank(json *j) {
    while (j->at < j->end && memchr(" \t\r\n", *j->at, 4)) j->at++;
}

/* Skip blanks, and then c. Returns 0 if the next character is not c. */
static int json_is(json *j, char c) {
    json_blank(j);
    if (j->at == j->end || *j->at != c) return 0;
    j->at++;
    return 1;
}

static int json_hex(json *j) {
    int value = 0, i;
    if (j->end - j->at < 4) return -1;
    for (i = 0; i < 4; i++) {
        static const char signs[] = "0123456789abcdef";
        const char *at = strchr(signs, tolower((unsigned char)*j->at++));
        if (!at || !*at) return -1;
        value = value * 16 + (int)(at - signs);
    }
    return value;
}

static void json_put(json *j, int c) {
    if (j->len + 5 > j->room)
        j->text = (char *)must(realloc(j->text, j->room = 2 * j->room + 64));
    if (c < 0x80) {
        j->text[j->len++] = (char)c;
    } else if (c < 0x800) {
        j->text[j->len++] = (char)(0xc0 | c >> 6);
    } else if (c < 0x10000) {
        j->text[j->len++] = (char)(0xe0 | c >> 12);
        j->text[j->len++] = (char)(0x80 | (c >> 6 & 63));
    } else {
        j->text[j->len++] = (char)(0xf0 | c >> 18);
        j->text[j->len++] = (char)(0x80 | (c >> 12 & 63));
        j->text[j->len++] = (char)(0x80 | (c >> 6 & 63));
    }
    if (c >= 0x80) j->text[j->len++] = (char)(0x80 | (c & 63));
}

/* Decode the escape sequence after a backslash. */
static int json_escape(json *j) {
    static const char named[] = "bfnrt\"\\/", is[] = "\b\f\n\r\t\"\\/";
    const char *at;
    int c, low;
    if (j->at == j->end) return 0;
    if (*j->at != 'u') {
        at = (const char *)memchr(named, *j->at++, sizeof named - 1);
        if (at) json_put(j, is[at - named]);
        return at != NULL;
    }
    j->at++;
    c = json_hex(j);
    /* the other half of the surrogate pair must follow */
    if (c >= 0xd800 && c < 0xdc00) {
        if (j->end - j->at < 6 || j->at[0] != '\\' || j->at[1] != 'u') return 0;
        j->at += 2;
        low = json_hex(j);
        if (low < 0xdc00 || low > 0xdfff) return 0;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c < 0xe000) {
        return 0;
    }
    if (c >= 0) json_put(j, c);
    return c >= 0;
}

/* Read a string whose opening quote has been read. */
static int json_string(json *j) {
    j->len = 0;
    j->type = JSON_STRING;
    while (j->at < j->end) {
        unsigned char c = (unsigned char)*j->at++;
        if (c == '"') {
            json_put(j, 0); /* so that it is also a C string */
            j->len--;
            return 1;
        }
        if (c < 0x20) return 0;
        if (c == '\\') {
            if (!json_escape(j)) return 0;
        } else {
            json_put(j, 0);
            j->text[j->len - 1] = (char)c;
        }
    }
    return 0;
}

static int json_number(json *j) {
    char text[32], *end;
    double value;
    size_t n = 0;
    while (j->at < j->end && n + 1 < sizeof text &&
           memchr("+-.0123456789eE", *j->at, 15))
        text[n++] = *j->at++;
    text[n] = '\0';
    value = strtod(text, &end);
    j->type = JSON_NUMBER;
    if (n == 0 || *end || !(value > -9e18 && value < 9e18)) return 0;
    j->number = strpbrk(text, ".eE") ? (int64_t)value : strtoll(text, NULL, 10);
    return 1;
}

/* Skip true, false, null, an object or an array. */
static int json_other(json *j) {
    int depth = 0;
    j->number = *j->at == 't';
    while (j->at < j->end) {
        char c = *j->at;
        if (depth == 0 && (c == ',' || c == '}' || c == ']')) break;
        j->at++;
        if (c == '"' && !json_string(j)) return 0;
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
    }
    j->type = JSON_OTHER;
    return depth == 0;
}

int json_open(json *j, const char *line, size_t len) {
    j->at = line;
    j->end = line + len;
    return json_is(j, '{');
}

/* Read "name": value, after a '{' or another value. */
int json_field(json *j, char name[32]) {
    json_is(j, ',');
    if (json_is(j, '}')) {
        json_blank(j);
        return j->at == j->end ? 0 : -1;
    }
    if (!json_is(j, '"') || !json_string(j)) return -1;
    snprintf(name, 32, "%s", strlen(j->text) == j->len ? j->text : "with NUL");
    if (!json_is(j, ':')) return -1;
    json_blank(j);
    if (j->at == j->end) return -1;
    if (*j->at == '"') {
        j->at++;
        return json_string(j) ? 1 : -1;
    }
    if (*j->at == '-' || isdigit((unsigned char)*j->at))
        return json_number(j) ? 1 : -1;
    return json_other(j) ? 1 : -1;
}

/* Decode base64 in place. Returns 0 if the text is not base64. */
int unbase64(char *text, size_t *len) {
    static const char sign[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                               "abcdefghijklmnopqrstuvwxyz0123456789+/";
    unsigned value = 0;
    size_t i, n = 0, bits = 0, end = *len;
    while (end > 0 && text[end - 1] == '=') end--;
    if (end % 4 == 1 || *len - end > 2) return 0;
    for (i = 0; i < end; i++) {
        const char *at = text[i] ? strchr(sign, text[i]) : NULL;
        if (!at) return 0;
        value = (value << 6 | (unsigned)(at - sign)) & 0xffff;
        bits += 6;
        if (bits >= 8) text[n++] = (char)(value >> (bits -= 8) & 255);
    }
    *len = n;
    return 1;
}

/*-----------------------------------------------------------------------------
 * MARK: - Times
 * >>times   "1h30m" and "2026-11-21T15:00:00Z"
 *---------------------------------------------------------------------------*/

#define MOST_MS INT64_C(1000000000000000) /* about 30,000 years */

/* Read a unit. Returns its length in ms, or 0 if there is no unit. */
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

/* Read "500ms", "1.5h", ".5s", "1h30m", "0" or "forever". Returns 1 if the text
 * is a duration. */
int read_duration(const char *s, int64_t *ms) {
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
        if (len >= sizeof number || strspn(s, ".") == len) return 0;
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

/* Read a number of n digits. Returns -1 if there are fewer digits. */
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

/* Returns the days since 1970-01-01, by the Gregorian calendar. */
static int64_t days(int y, int m, int d) {
    int64_t year = m > 2 ? y : y - 1, era = year / 400, yoe = year % 400;
    int64_t doy = (153 * (m > 2 ? m - 3 : m + 9) + 2) / 5 + d - 1;
    return era * 146097 + yoe * 365 + yoe / 4 - yoe / 100 + doy - 719468;
}

/* Read a fraction of a second. Returns it in ms: ".25" is 250. */
static int fraction(const char **s) {
    int ms = 0, unit = 100;
    if (!sign(s, ".")) return 0;
    for (; isdigit((unsigned char)**s); (*s)++, unit /= 10)
        ms += (**s - '0') * unit;
    return ms;
}

/* Read a time zone, "Z", "+01:00", "-0530" or "+01". *offset is UTC minus its
 * time in s. Returns 1 if there is a zone, 0 if not, or -1 if it is invalid. */
static int zone(const char **s, int64_t *offset) {
    int plus = sign(s, "Zz+-"), h, m;
    *offset = 0;
    if (plus == 0) return 0;
    if (plus == 'Z' || plus == 'z') return 1;
    h = digits(s, 2);
    m = sign(s, ":") || **s ? digits(s, 2) : 0;
    if (h < 0 || h > 23 || m < 0 || m > 59) return -1;
    *offset = (h * 60 + m) * (plus == '+' ? -60 : 60);
    return 1;
}

/* Read "2026-11-21T15:00[:00[.5]][Z|+01:00]", with a T or a blank. Without a
 * zone the date is in local time. Returns 1 if the text is a date. */
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

/* Read the part of "@1900000000" or "@1900000000.5" after the "@". */
static int read_epoch(const char *s, int64_t *ms) {
    int64_t seconds = 0;
    size_t len = strspn(s, "0123456789");
    if (len < 1 || len > 12) return 0;
    while (len-- > 0) seconds = seconds * 10 + *s++ - '0';
    *ms = seconds * 1000 + fraction(&s);
    return *s == '\0';
}

int read_delay(const char *s, int64_t *delay_ms, int64_t *due_ms) {
    *delay_ms = *due_ms = 0;
    if (*s == '@' || (strlen(s) > 4 && s[4] == '-')) {
        if (!(*s == '@' ? read_epoch(s + 1, due_ms) : read_date(s, due_ms)))
            return 0;
        if (*due_ms < 1) *due_ms = 1;
        return 1;
    }
    return read_duration(s, delay_ms) && *delay_ms != FOREVER;
}

int bad_delay(const char *s) {
    complain("not a delay: %s", s);
    return usage("write 500ms, 5s, 2m, 1h30m, 1d, @1900000000 or "
                 "2026-11-21T15:00:00Z");
}

/* Returns a time as local time, such as "2026-11-21 15:00:00". */
const char *date(int64_t ms, char *to, size_t size) {
    time_t t = (time_t)(ms / 1000);
    struct tm *tm = localtime(&t);
    if (!tm || strftime(to, size, "%Y-%m-%d %H:%M:%S", tm) == 0)
        snprintf(to, size, "%" PRId64 "ms", ms);
    return to;
}

int64_t clock_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}
