/* The commands on keys. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "redis_impl.h"

#define ARG(i) k->argv[i], k->lens[i]

static const char wrong_type[] =
    "-WRONGTYPE Operation against a key holding the wrong kind of value";
static const char not_an_integer[] = "value is not an integer or out of range";
static const char syntax_error[] = "syntax error";

static int is(const call *k, int i, const char *word) {
    return same_word(ARG(i), word);
}

static int int_arg(call *k, int i, int64_t *n) {
    if (to_int(ARG(i), n)) return 1;
    r_error(k, "%s", not_an_integer);
    return 0;
}

/* Look up the key in word i. If its type differs, reply so, and return 0. */
static int get(call *k, int i, char type, obj **o) {
    *o = key_find(k->r, ARG(i));
    if (!*o || (*o)->type == type) return 1;
    r_error(k, "%s", wrong_type);
    return 0;
}

static obj *make(call *k, int i, char type) {
    return key_make(k->r, ARG(i), type);
}

static void changed(call *k, int i) {
    key_changed(k, ARG(i));
}

static int64_t log2_of(size_t n) {
    int64_t bits = 1;
    while (n >>= 1) bits++;
    return bits;
}

/* Clip a range of indices as LRANGE does: set *start, and return the length. */
static int64_t clip(int64_t *start, int64_t end, int64_t len) {
    if (*start < 0) *start += len;
    if (end < 0) end += len;
    if (*start < 0) *start = 0;
    if (*start > end || *start >= len) return 0;
    if (end >= len) end = len - 1;
    return end - *start + 1;
}

/* --- keys ---------------------------------------------------------------- */

static void cmd_del(call *k) {
    int i, n = 0;
    for (i = 1; i < k->argc; i++) {
        if (!key_find(k->r, ARG(i))) continue;
        key_remove(k->r, ARG(i));
        changed(k, i);
        n++;
    }
    r_int(k, n);
}

static void cmd_exists(call *k) {
    int i, n = 0;
    for (i = 1; i < k->argc; i++) n += key_find(k->r, ARG(i)) != NULL;
    r_int(k, n);
}

static void cmd_type(call *k) {
    const obj *o = key_find(k->r, ARG(1));
    r_status(k, !o               ? "none"
                : o->type == 'z' ? "zset"
                : o->type == 'l' ? "list"
                : o->type == 's' ? "string"
                : o->type == 'h' ? "hash"
                : o->type == 'S' ? "set"
                                 : "stream");
}

static int64_t now_ms(call *k) {
    return k->r->command_ms;
}

static void expire(call *k, int64_t unit, int absolute) {
    int64_t at, now = now_ms(k);
    int i, nx = 0, xx = 0, gt = 0, lt = 0;
    obj *o;
    for (i = 3; i < k->argc; i++) {
        if (is(k, i, "NX"))
            nx = 1;
        else if (is(k, i, "XX"))
            xx = 1;
        else if (is(k, i, "GT"))
            gt = 1;
        else if (is(k, i, "LT"))
            lt = 1;
        else {
            r_error(k, "Unsupported option %s", k->argv[i]);
            return;
        }
    }
    if (nx && (xx || gt || lt)) {
        r_error(k, "NX and XX, GT or LT options at the same time are not "
                   "compatible");
        return;
    }
    if (gt && lt) {
        r_error(k, "GT and LT options at the same time are not compatible");
        return;
    }
    if (!int_arg(k, 2, &at)) return;
    if (at > INT64_MAX / unit || at < INT64_MIN / unit ||
        (!absolute && at * unit > INT64_MAX - now)) {
        r_error(k, "invalid expire time in '%s' command", k->cmd->full);
        return;
    }
    at = at * unit + (absolute ? 0 : now);
    o = key_find(k->r, ARG(1));
    if (!o || (nx && o->expires_ms >= 0) || (xx && o->expires_ms < 0) ||
        (gt && (o->expires_ms < 0 || at <= o->expires_ms)) ||
        (lt && o->expires_ms >= 0 && at >= o->expires_ms)) {
        r_int(k, 0);
        return;
    }
    if (at <= now && !k->r->faults.read_only)
        key_remove(k->r, ARG(1));
    else
        key_expires(k->r, o, at);
    changed(k, 1);
    r_int(k, 1);
}

static void cmd_expire(call *k) {
    expire(k, 1000, 0);
}
static void cmd_pexpire(call *k) {
    expire(k, 1, 0);
}
static void cmd_expireat(call *k) {
    expire(k, 1000, 1);
}
static void cmd_pexpireat(call *k) {
    expire(k, 1, 1);
}

static void ttl(call *k, int64_t unit, int absolute) {
    const obj *o = key_find(k->r, ARG(1));
    int64_t left;
    if (!o || o->expires_ms < 0) {
        r_int(k, o ? -1 : -2);
        return;
    }
    left = absolute ? o->expires_ms : o->expires_ms - now_ms(k);
    if (left < 0) left = 0;
    r_int(k, (left + unit / 2) / unit);
}

static void cmd_ttl(call *k) {
    ttl(k, 1000, 0);
}
static void cmd_pttl(call *k) {
    ttl(k, 1, 0);
}
static void cmd_expiretime(call *k) {
    ttl(k, 1000, 1);
}
static void cmd_pexpiretime(call *k) {
    ttl(k, 1, 1);
}

static void cmd_persist(call *k) {
    obj *o = key_find(k->r, ARG(1));
    int had = o && o->expires_ms >= 0;
    if (had) {
        o->expires_ms = -1;
        changed(k, 1);
    }
    r_int(k, had);
}

static void cmd_rename(call *k) {
    obj *o = key_find(k->r, ARG(1)), *copy;
    blob *name;
    if (!o) {
        r_error(k, "no such key");
        return;
    }
    if (k->lens[1] != k->lens[2] ||
        memcmp(k->argv[1], k->argv[2], k->lens[1]) != 0) {
        copy = obj_copy(o);
        if (key_find(k->r, ARG(2))) key_remove(k->r, ARG(2));
        key_remove(k->r, ARG(1));
        name = blob_new(ARG(2));
        map_put(&k->r->keys, name)->v.p = copy;
        blob_drop(name);
        if (copy->expires_ms >= 0) key_expires(k->r, copy, copy->expires_ms);
        changed(k, 1);
        changed(k, 2);
        if (copy->type == 'l') list_grew(k->r, ARG(2));
    }
    r_status(k, "OK");
}

static int by_key(const void *a, const void *b) {
    const blob *x = (*(map_slot *const *)a)->key;
    const blob *y = (*(map_slot *const *)b)->key;
    return blob_cmp(x, y->s, y->len);
}

/* Reply with the keys in sorted order. In Redis their order is random. */
static void keys_matching(call *k, const char *pattern, size_t len,
                          const char *type) {
    size_t i, n = 0, room = k->r->keys.room;
    map_slot **all = malloc((k->r->keys.used + 1) * sizeof *all);
    if (!all) abort();
    k->r->work += (int64_t)k->r->keys.used;
    for (i = 0; i < room; i++) {
        map_slot *at = &k->r->keys.slots[i];
        const obj *o = at->v.p;
        if (at->key && !key_is_expired(k->r, o) &&
            (!pattern || glob(pattern, len, at->key->s, at->key->len)))
            all[n++] = at;
    }
    (void)type;
    qsort(all, n, sizeof *all, by_key);
    r_array(k, (int64_t)n);
    for (i = 0; i < n; i++) r_blob(k, all[i]->key);
    free(all);
}

static void cmd_keys(call *k) {
    keys_matching(k, ARG(1), NULL);
}

static void cmd_scan(call *k) {
    const char *pattern = NULL;
    size_t len = 0;
    int i;
    for (i = 2; i + 1 < k->argc; i += 2)
        if (is(k, i, "MATCH")) pattern = k->argv[i + 1], len = k->lens[i + 1];
    r_array(k, 2);
    r_bulk(k, "0", 1);
    keys_matching(k, pattern, len, NULL);
}

static void cmd_dbsize(call *k) {
    r_int(k, (int64_t)k->r->keys.used);
}

static void cmd_flush(call *k) {
    if (k->argc > 2 ||
        (k->argc == 2 && !is(k, 1, "ASYNC") && !is(k, 1, "SYNC"))) {
        r_error(k, "%s", syntax_error);
        return;
    }
    flush_all(k);
    r_status(k, "OK");
}

/* --- strings ------------------------------------------------------------- */

static void set_text(call *k, int i, const char *s, size_t len) {
    obj *o = key_find(k->r, ARG(i));
    if (o && o->type == 's') {
        blob_drop(o->text);
    } else {
        if (o) key_remove(k->r, ARG(i));
        o = make(k, i, 's');
    }
    o->text = blob_new(s, len);
    o->expires_ms = -1;
    changed(k, i);
}

static void reply_text(call *k, const obj *o) {
    if (!o)
        r_null(k);
    else
        r_blob(k, o->text);
}

static void cmd_get(call *k) {
    obj *o;
    if (get(k, 1, 's', &o)) reply_text(k, o);
}

static void cmd_set(call *k) {
    int i, nx = 0, xx = 0, keep = 0, old = 0, timed = 0, absolute = 0;
    int64_t unit = 1, at = 0, before;
    blob *was = NULL;
    obj *o;
    for (i = 3; i < k->argc; i++) {
        int more = i + 1 < k->argc;
        if (is(k, i, "NX") && !xx)
            nx = 1;
        else if (is(k, i, "XX") && !nx)
            xx = 1;
        else if (is(k, i, "GET"))
            old = 1;
        else if (is(k, i, "KEEPTTL") && !timed)
            keep = 1;
        else if (more && !timed && !keep &&
                 (is(k, i, "EX") || is(k, i, "PX") || is(k, i, "EXAT") ||
                  is(k, i, "PXAT"))) {
            timed = ++i;
            unit = (k->argv[i - 1][0] | 32) == 'e' ? 1000 : 1;
            absolute = k->lens[i - 1] == 4;
        } else {
            r_error(k, "%s", syntax_error);
            return;
        }
    }
    if (timed) {
        if (!int_arg(k, timed, &at)) return;
        if (at <= 0 || (unit > 1 && at > INT64_MAX / 1000) ||
            (!absolute && at * unit > INT64_MAX - now_ms(k))) {
            r_error(k, "invalid expire time in '%s' command", "set");
            return;
        }
        at = at * unit + (absolute ? 0 : now_ms(k));
    }
    o = key_find(k->r, ARG(1));
    if (old && o) {
        if (o->type != 's') {
            r_error(k, "%s", wrong_type);
            return;
        }
        was = blob_keep(o->text);
    }
    if ((nx && o) || (xx && !o)) {
        if (was)
            r_blob(k, was);
        else
            r_null(k);
        blob_drop(was);
        return;
    }
    before = o ? o->expires_ms : -1;
    set_text(k, 1, ARG(2));
    o = key_find(k->r, ARG(1));
    if (keep) o->expires_ms = before;
    if (timed) key_expires(k->r, o, at);
    if (!old)
        r_status(k, "OK");
    else if (was)
        r_blob(k, was);
    else
        r_null(k);
    blob_drop(was);
}

static void cmd_setnx(call *k) {
    int there = key_find(k->r, ARG(1)) != NULL;
    if (!there) set_text(k, 1, ARG(2));
    r_int(k, !there);
}

static void setex(call *k, int64_t unit) {
    int64_t at;
    if (!int_arg(k, 2, &at)) return;
    if (at <= 0 || at > INT64_MAX / unit || at * unit > INT64_MAX - now_ms(k)) {
        r_error(k, "invalid expire time in '%s' command", k->cmd->full);
        return;
    }
    set_text(k, 1, ARG(3));
    key_expires(k->r, key_find(k->r, ARG(1)), now_ms(k) + at * unit);
    r_status(k, "OK");
}

static void cmd_setex(call *k) {
    setex(k, 1000);
}
static void cmd_psetex(call *k) {
    setex(k, 1);
}

static void cmd_mget(call *k) {
    int i;
    r_array(k, k->argc - 1);
    for (i = 1; i < k->argc; i++) {
        const obj *o = key_find(k->r, ARG(i));
        reply_text(k, o && o->type == 's' ? o : NULL);
    }
}

static void cmd_strlen(call *k) {
    obj *o;
    if (get(k, 1, 's', &o)) r_int(k, o ? (int64_t)o->text->len : 0);
}

static void add_to(call *k, int64_t by) {
    int64_t n = 0, expires = -1;
    char text[24];
    obj *o;
    if (!get(k, 1, 's', &o)) return;
    if (o && !to_int(o->text->s, o->text->len, &n)) {
        r_error(k, "%s", not_an_integer);
        return;
    }
    if ((by > 0 && n > INT64_MAX - by) || (by < 0 && n < INT64_MIN - by)) {
        r_error(k, "increment or decrement would overflow");
        return;
    }
    if (o) expires = o->expires_ms;
    n += by;
    set_text(k, 1, text,
             (size_t)snprintf(text, sizeof text, "%lld", (long long)n));
    ((obj *)key_find(k->r, ARG(1)))->expires_ms = expires;
    r_int(k, n);
}

static void cmd_incr(call *k) {
    add_to(k, 1);
}
static void cmd_decr(call *k) {
    add_to(k, -1);
}
static void cmd_incrby(call *k) {
    int64_t by;
    if (int_arg(k, 2, &by)) add_to(k, by);
}

/* --- lists --------------------------------------------------------------- */

static blob **list_at(const obj *l, size_t i) {
    return seq_at(&l->items, i);
}

static void push(call *k, int right, int only_there) {
    obj *o;
    int i;
    if (!get(k, 1, 'l', &o)) return;
    if (!o && only_there) {
        r_int(k, 0);
        return;
    }
    if (!o) o = make(k, 1, 'l');
    for (i = 2; i < k->argc; i++) {
        blob *e = blob_new(ARG(i));
        k->r->work += (int64_t)(k->lens[i] >> 10);
        *(blob **)seq_insert(&o->items, right ? o->items.len : 0, 1) = e;
    }
    r_int(k, (int64_t)o->items.len);
    changed(k, 1);
    list_grew(k->r, ARG(1));
}

static void cmd_lpush(call *k) {
    push(k, 0, 0);
}
static void cmd_rpush(call *k) {
    push(k, 1, 0);
}
static void cmd_lpushx(call *k) {
    push(k, 0, 1);
}
static void cmd_rpushx(call *k) {
    push(k, 1, 1);
}

static void list_cut(obj *l, size_t at, size_t n) {
    size_t i;
    for (i = at; i < at + n; i++) blob_drop(*list_at(l, i));
    seq_remove(&l->items, at, n);
}

static void pop(call *k, int right) {
    int64_t n = 1, i;
    obj *o;
    if (k->argc > 3) {
        r_error(k, "wrong number of arguments for '%s' command", k->cmd->full);
        return;
    }
    if (k->argc == 3 && (!to_int(ARG(2), &n) || n < 0)) {
        r_error(k, "value is out of range, must be positive");
        return;
    }
    if (!get(k, 1, 'l', &o)) return;
    if (!o) {
        if (k->argc == 3)
            r_null_array(k);
        else
            r_null(k);
        return;
    }
    if (n > (int64_t)o->items.len) n = (int64_t)o->items.len;
    if (k->argc == 3) r_array(k, n);
    for (i = 0; i < n; i++) {
        size_t at = right ? o->items.len - 1 : 0;
        r_blob(k, *list_at(o, at));
        list_cut(o, at, 1);
    }
    if (n == 0) return;
    key_drop_if_empty(k->r, o, ARG(1));
    changed(k, 1);
}

static void cmd_lpop(call *k) {
    pop(k, 0);
}
static void cmd_rpop(call *k) {
    pop(k, 1);
}

static void move(call *k, int from_right, int to_right) {
    obj *from, *to;
    blob *e;
    if (!get(k, 1, 'l', &from)) return;
    if (!from) {
        r_null(k);
        return;
    }
    if (!get(k, 2, 'l', &to)) return;
    if (!to) to = make(k, 2, 'l');
    e = blob_keep(*list_at(from, from_right ? from->items.len - 1 : 0));
    list_cut(from, from_right ? from->items.len - 1 : 0, 1);
    *(blob **)seq_insert(&to->items, to_right ? to->items.len : 0, 1) =
        blob_keep(e);
    list_grew(k->r, ARG(2));
    key_drop_if_empty(k->r, from, ARG(1));
    changed(k, 2);
    changed(k, 1);
    r_blob(k, e);
    blob_drop(e);
}

static void cmd_rpoplpush(call *k) {
    move(k, 1, 0);
}

static void cmd_lmove(call *k) {
    int i, right[2];
    for (i = 3; i < 5; i++) {
        right[i - 3] = is(k, i, "RIGHT");
        if (!right[i - 3] && !is(k, i, "LEFT")) {
            r_error(k, "%s", syntax_error);
            return;
        }
    }
    move(k, right[0], right[1]);
}

static void block(call *k, int right) {
    double seconds;
    int i, last = k->argc - 1;
    if (!to_double(ARG(last), &seconds) || seconds * 1000 > 9e18) {
        r_error(k, "timeout is not a float or out of range");
        return;
    }
    if (seconds < 0) {
        r_error(k, "timeout is negative");
        return;
    }
    for (i = 1; i < last; i++) {
        obj *o = key_find(k->r, ARG(i));
        size_t at;
        if (!o) continue;
        if (o->type != 'l') {
            r_error(k, "%s", wrong_type);
            return;
        }
        r_array(k, 2);
        r_bulk(k, ARG(i));
        at = right ? o->items.len - 1 : 0;
        r_blob(k, *list_at(o, at));
        list_cut(o, at, 1);
        key_drop_if_empty(k->r, o, ARG(i));
        changed(k, i);
        return;
    }
    if (k->in_script || k->in_exec || !k->c) {
        r_null_array(k);
        return;
    }
    client_block(k, right,
                 seconds > 0 ? k->r->command_ms * 1000 +
                                   (int64_t)ceil(seconds * 1000) * 1000
                             : 0);
}

static void cmd_blpop(call *k) {
    block(k, 0);
}
static void cmd_brpop(call *k) {
    block(k, 1);
}

static void cmd_llen(call *k) {
    obj *o;
    if (get(k, 1, 'l', &o)) r_int(k, o ? (int64_t)o->items.len : 0);
}

/* Returns the work of reaching index `at`: Redis walks from the nearer end. */
static int64_t walk(const obj *l, int64_t at) {
    int64_t back = (int64_t)l->items.len - 1 - at;
    return (at < back ? at : back) / 64;
}

static void cmd_lindex(call *k) {
    int64_t at;
    obj *o;
    if (!get(k, 1, 'l', &o)) return;
    if (!o) {
        r_null(k);
        return;
    }
    if (!int_arg(k, 2, &at)) return;
    if (at < 0) at += (int64_t)o->items.len;
    if (at < 0 || at >= (int64_t)o->items.len) {
        r_null(k);
        return;
    }
    k->r->work += walk(o, at);
    r_blob(k, *list_at(o, (size_t)at));
}

static void cmd_lrange(call *k) {
    int64_t start, end, n, i;
    obj *o;
    if (!int_arg(k, 2, &start) || !int_arg(k, 3, &end)) return;
    if (!get(k, 1, 'l', &o)) return;
    n = o ? clip(&start, end, (int64_t)o->items.len) : 0;
    r_array(k, n);
    if (n > 0) k->r->work += walk(o, start);
    for (i = 0; i < n; i++) r_blob(k, *list_at(o, (size_t)(start + i)));
}

static void cmd_ltrim(call *k) {
    int64_t start, end, n, len;
    obj *o;
    if (!int_arg(k, 2, &start) || !int_arg(k, 3, &end)) return;
    if (!get(k, 1, 'l', &o)) return;
    if (o) {
        len = (int64_t)o->items.len;
        n = clip(&start, end, len);
        if (n == 0) start = len;
        k->r->work += (len - n) / 16;
        list_cut(o, (size_t)(start + n), (size_t)(len - start - n));
        list_cut(o, 0, (size_t)start);
        key_drop_if_empty(k->r, o, ARG(1));
        changed(k, 1);
    }
    r_status(k, "OK");
}

static void cmd_lrem(call *k) {
    int64_t count, most, gone = 0;
    size_t i = 0, step;
    obj *o;
    if (!int_arg(k, 2, &count)) return;
    if (!get(k, 1, 'l', &o)) return;
    most = count >= 0 ? count : count == INT64_MIN ? 0 : -count;
    for (step = 0; o && step < o->items.len && (most == 0 || gone < most);) {
        i = count < 0 ? o->items.len - 1 - step : step;
        k->r->work++;
        if (blob_cmp(*list_at(o, i), ARG(3)) == 0) {
            list_cut(o, i, 1);
            gone++;
        } else {
            step++;
        }
    }
    if (gone > 0) {
        key_drop_if_empty(k->r, o, ARG(1));
        changed(k, 1);
    }
    r_int(k, gone);
}

static void cmd_lset(call *k) {
    int64_t at;
    obj *o = key_find(k->r, ARG(1));
    blob **there;
    if (!o) {
        r_error(k, "no such key");
        return;
    }
    if (!get(k, 1, 'l', &o) || !int_arg(k, 2, &at)) return;
    if (at < 0) at += (int64_t)o->items.len;
    if (at < 0 || at >= (int64_t)o->items.len) {
        r_error(k, "index out of range");
        return;
    }
    k->r->work += walk(o, at);
    there = list_at(o, (size_t)at);
    blob_drop(*there);
    *there = blob_new(ARG(3));
    r_status(k, "OK");
    changed(k, 1);
}

static void cmd_linsert(call *k) {
    int after = is(k, 2, "AFTER");
    size_t i;
    obj *o;
    if (!after && !is(k, 2, "BEFORE")) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (!get(k, 1, 'l', &o)) return;
    for (i = 0; o && i < o->items.len; i++) {
        k->r->work++;
        if (blob_cmp(*list_at(o, i), ARG(3)) != 0) continue;
        *(blob **)seq_insert(&o->items, i + (size_t)after, 1) =
            blob_new(ARG(4));
        changed(k, 1);
        r_int(k, (int64_t)o->items.len);
        return;
    }
    r_int(k, o ? -1 : 0);
}

static void cmd_lpos(call *k) {
    size_t i;
    obj *o;
    if (k->argc > 3) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (!get(k, 1, 'l', &o)) return;
    for (i = 0; o && i < o->items.len; i++) {
        k->r->work++;
        if (blob_cmp(*list_at(o, i), ARG(2)) != 0) continue;
        r_int(k, (int64_t)i);
        return;
    }
    r_null(k);
}

/* --- sorted sets --------------------------------------------------------- */

static const zitem *zset_at(const obj *z, size_t rank) {
    return seq_at(&z->items, rank);
}

static void cmd_zadd(call *k) {
    int i = 2, nx = 0, xx = 0, gt = 0, lt = 0, ch = 0, incr = 0, n;
    int added = 0, updated = 0, done = 0;
    double score = 0;
    obj *o;
    for (; i < k->argc; i++) {
        if (is(k, i, "NX"))
            nx = 1;
        else if (is(k, i, "XX"))
            xx = 1;
        else if (is(k, i, "GT"))
            gt = 1;
        else if (is(k, i, "LT"))
            lt = 1;
        else if (is(k, i, "CH"))
            ch = 1;
        else if (is(k, i, "INCR"))
            incr = 1;
        else
            break;
    }
    if (k->cmd->name[1] == 'i') incr = 1; /* ZINCRBY */
    n = k->argc - i;
    if (n % 2 || n == 0) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (nx && xx) {
        r_error(k, "XX and NX options at the same time are not compatible");
        return;
    }
    if ((gt && nx) || (lt && nx) || (gt && lt)) {
        r_error(k, "GT, LT, and/or NX options at the same time are not "
                   "compatible");
        return;
    }
    if (incr && n > 2) {
        r_error(k, "INCR option supports a single increment-element pair");
        return;
    }
    for (n = i; n < k->argc; n += 2) {
        if (to_double(ARG(n), &score)) continue;
        r_error(k, "value is not a valid float");
        return;
    }
    if (!get(k, 1, 'z', &o)) return;
    if (!o && !xx) o = make(k, 1, 'z');
    for (; o && i < k->argc; i += 2) {
        map_slot *at = zset_find(o, ARG(i + 1));
        to_double(ARG(i), &score);
        k->r->work += log2_of(o->items.len) + (int64_t)(k->lens[i + 1] >> 10);
        if (at ? nx : xx) continue;
        if (!at) {
            zset_add(o, score, ARG(i + 1));
            added++;
            done++;
            continue;
        }
        if (incr) score += at->v.score;
        if (isnan(score)) {
            r_error(k, "resulting score is not a number (NaN)");
            return;
        }
        if ((lt && score >= at->v.score) || (gt && score <= at->v.score))
            continue;
        done++;
        if (score == at->v.score) continue;
        zset_move(o, at, score);
        updated++;
    }
    if (!incr)
        r_int(k, ch ? added + updated : added);
    else if (done)
        r_double(k, score);
    else
        r_null(k);
    if (added || updated) changed(k, 1);
}

static void cmd_zincrby(call *k) {
    cmd_zadd(k);
}

static void cmd_zrem(call *k) {
    int i, gone = 0;
    obj *o;
    if (!get(k, 1, 'z', &o)) return;
    for (i = 2; o && i < k->argc && o->items.len > 0; i++) {
        map_slot *at = zset_find(o, ARG(i));
        k->r->work += log2_of(o->items.len);
        if (!at) continue;
        zset_remove(o, zset_rank(o, at->v.score, at->key), 1);
        gone++;
    }
    if (gone) {
        key_drop_if_empty(k->r, o, ARG(1));
        changed(k, 1);
    }
    r_int(k, gone);
}

static void cmd_zcard(call *k) {
    obj *o;
    if (get(k, 1, 'z', &o)) r_int(k, o ? (int64_t)o->items.len : 0);
}

static void cmd_zscore(call *k) {
    map_slot *at;
    obj *o;
    if (!get(k, 1, 'z', &o)) return;
    at = o ? zset_find(o, ARG(2)) : NULL;
    if (at)
        r_double(k, at->v.score);
    else
        r_null(k);
}

static void rank(call *k, int reverse) {
    map_slot *at;
    obj *o;
    size_t there;
    if (!get(k, 1, 'z', &o)) return;
    at = o ? zset_find(o, ARG(2)) : NULL;
    if (!at) {
        r_null(k);
        return;
    }
    k->r->work += log2_of(o->items.len);
    there = zset_rank(o, at->v.score, at->key);
    r_int(k, (int64_t)(reverse ? o->items.len - 1 - there : there));
}

static void cmd_zrank(call *k) {
    rank(k, 0);
}
static void cmd_zrevrank(call *k) {
    rank(k, 1);
}

typedef struct limits {
    double min, max;
    int without_min, without_max;
} limits;

static int limit_arg(const char *s, double *d, int *without) {
    char *end;
    *without = s[0] == '(';
    *d = strtod(s + *without, &end);
    return *end == 0 && !isnan(*d);
}

static int limits_args(call *k, int min, int max, limits *l) {
    char low[512], high[512];
    snprintf(low, sizeof low, "%.*s", (int)k->lens[min], k->argv[min]);
    snprintf(high, sizeof high, "%.*s", (int)k->lens[max], k->argv[max]);
    if (limit_arg(low, &l->min, &l->without_min) &&
        limit_arg(high, &l->max, &l->without_max))
        return 1;
    r_error(k, "min or max is not a float");
    return 0;
}

/* Returns the number of elements in the limits. The first has rank *first. */
static size_t within(call *k, const obj *z, const limits *l, size_t *first) {
    size_t end = zset_lower(z, l->max, !l->without_max);
    *first = zset_lower(z, l->min, l->without_min);
    k->r->work += 2 * log2_of(z->items.len);
    return *first < end ? end - *first : 0;
}

static void cmd_zcount(call *k) {
    limits l;
    size_t first;
    obj *o;
    if (!limits_args(k, 2, 3, &l)) return;
    if (get(k, 1, 'z', &o)) r_int(k, o ? (int64_t)within(k, o, &l, &first) : 0);
}

static void zset_reply(call *k, const obj *z, int64_t at, int64_t n, int step,
                       int scores) {
    r_array(k, scores ? 2 * n : n);
    for (; n > 0; n--, at += step) {
        const zitem *item = zset_at(z, (size_t)at);
        r_blob(k, item->e);
        if (scores) r_double(k, item->score);
    }
}

static void range(call *k, int by_score, int reverse, int options) {
    int64_t offset = 0, limit = -1, start = 0, end = 0, n;
    int i, scores = 0, limited = 0;
    size_t first = 0;
    limits l;
    obj *o;
    for (i = 4; i < k->argc; i++) {
        if (is(k, i, "WITHSCORES")) {
            scores = 1;
        } else if (is(k, i, "LIMIT") && i + 2 < k->argc) {
            if (!int_arg(k, i + 1, &offset) || !int_arg(k, i + 2, &limit))
                return;
            i += 2;
            limited = 1;
        } else if (options && is(k, i, "BYSCORE")) {
            by_score = 1;
        } else if (options && is(k, i, "REV")) {
            reverse = 1;
        } else {
            r_error(k, "%s", syntax_error);
            return;
        }
    }
    if (limited && limit != -1 && !by_score) {
        r_error(k, "syntax error, LIMIT is only supported in combination with "
                   "either BYSCORE or BYLEX");
        return;
    }
    if (by_score ? !limits_args(k, reverse ? 3 : 2, reverse ? 2 : 3, &l)
                 : !int_arg(k, 2, &start) || !int_arg(k, 3, &end))
        return;
    if (!get(k, 1, 'z', &o)) return;
    if (!o) {
        r_array(k, 0);
        return;
    }
    if (!by_score) {
        n = clip(&start, end, (int64_t)o->items.len);
        k->r->work += log2_of(o->items.len);
        if (reverse) start = (int64_t)o->items.len - 1 - start;
        zset_reply(k, o, start, n, reverse ? -1 : 1, scores);
        return;
    }
    n = (int64_t)within(k, o, &l, &first);
    start = reverse ? (int64_t)first + n - 1 : (int64_t)first;
    if (offset < 0 || offset > n) offset = n;
    n -= offset;
    if (limit >= 0 && limit < n) n = limit;
    zset_reply(k, o, reverse ? start - offset : start + offset, n,
               reverse ? -1 : 1, scores);
}

static void cmd_zrange(call *k) {
    range(k, 0, 0, 1);
}
static void cmd_zrevrange(call *k) {
    range(k, 0, 1, 0);
}
static void cmd_zrangebyscore(call *k) {
    range(k, 1, 0, 0);
}
static void cmd_zrevrangebyscore(call *k) {
    range(k, 1, 1, 0);
}

/* Redis scans a small set by rank, and a large one in the random order of a
 * hash table. The model visits every n-th element of a large set. */
static void cmd_zscan(call *k) {
    const char *pattern = NULL;
    size_t len = 0, n, i, step;
    int64_t count = 10, cursor, found = 0;
    char text[24];
    obj *o;
    int at, pass;
    if (!int_arg(k, 2, &cursor) || !get(k, 1, 'z', &o)) return;
    for (at = 3; o && at + 1 < k->argc; at += 2) {
        if (is(k, at, "MATCH")) {
            pattern = k->argv[at + 1];
            len = k->lens[at + 1];
        } else if (!is(k, at, "COUNT") || !int_arg(k, at + 1, &count) ||
                   count < 1) {
            r_error(k, "%s", syntax_error);
            return;
        }
    }
    n = o ? o->items.len : 0;
    step = n > 128 && n > (size_t)count ? n / (size_t)count : 1;
    for (pass = 0; pass < 2; pass++) {
        if (pass == 1) {
            r_array(k, 2);
            r_bulk(k, "0", 1);
            r_array(k, 2 * found);
        }
        for (i = 0; i < n; i += step) {
            const zitem *item = zset_at(o, i);
            if (pattern && !glob(pattern, len, item->e->s, item->e->len))
                continue;
            found++;
            if (pass == 0) continue;
            r_blob(k, item->e);
            if (fabs(item->score) < 9e18 && item->score == floor(item->score))
                r_bulk(k, text,
                       (size_t)snprintf(text, sizeof text, "%.0f",
                                        item->score));
            else
                r_double(k, item->score);
        }
        k->r->work += (int64_t)(n / step);
    }
}

static void remove_range(call *k, obj *o, size_t first, size_t n) {
    if (n > 0) {
        k->r->work += (int64_t)n + log2_of(o->items.len);
        zset_remove(o, first, n);
        key_drop_if_empty(k->r, o, ARG(1));
        changed(k, 1);
    }
    r_int(k, (int64_t)n);
}

static void cmd_zremrangebyrank(call *k) {
    int64_t start, end, n;
    obj *o;
    if (!int_arg(k, 2, &start) || !int_arg(k, 3, &end)) return;
    if (!get(k, 1, 'z', &o)) return;
    n = o ? clip(&start, end, (int64_t)o->items.len) : 0;
    remove_range(k, o, (size_t)start, (size_t)n);
}

static void cmd_zremrangebyscore(call *k) {
    limits l;
    size_t first = 0, n;
    obj *o;
    if (!limits_args(k, 2, 3, &l)) return;
    if (!get(k, 1, 'z', &o)) return;
    n = o ? within(k, o, &l, &first) : 0;
    remove_range(k, o, first, n);
}

static void zpop(call *k, int max) {
    int64_t n = 1;
    obj *o;
    if (k->argc > 3) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (k->argc == 3 && (!to_int(ARG(2), &n) || n < 0)) {
        r_error(k, "value is out of range, must be positive");
        return;
    }
    if (!get(k, 1, 'z', &o)) return;
    if (!o || n == 0) {
        r_array(k, 0);
        return;
    }
    if (n > (int64_t)o->items.len) n = (int64_t)o->items.len;
    zset_reply(k, o, max ? (int64_t)o->items.len - 1 : 0, n, max ? -1 : 1, 1);
    zset_remove(o, max ? o->items.len - (size_t)n : 0, (size_t)n);
    key_drop_if_empty(k->r, o, ARG(1));
    changed(k, 1);
}

static void cmd_zpopmin(call *k) {
    zpop(k, 0);
}
static void cmd_zpopmax(call *k) {
    zpop(k, 1);
}

/* --- hashes and sets, small ones ----------------------------------------- */

static size_t pair_find(const obj *o, const char *s, size_t len) {
    size_t i = 0;
    while (i < o->items.len &&
           blob_cmp(*(blob **)seq_at(&o->items, i), s, len) != 0)
        i++;
    return i;
}

static void cmd_hset(call *k) {
    int i, added = 0;
    obj *o;
    if (k->argc % 2) {
        r_error(k, "wrong number of arguments for '%s' command", k->cmd->full);
        return;
    }
    if (!get(k, 1, 'h', &o)) return;
    if (!o) o = make(k, 1, 'h');
    for (i = 2; i < k->argc; i += 2) {
        size_t at = pair_find(o, ARG(i));
        blob **pair;
        if (at == o->items.len) {
            pair = seq_insert(&o->items, at, 1);
            pair[0] = blob_new(ARG(i));
            added++;
        } else {
            pair = seq_at(&o->items, at);
            blob_drop(pair[1]);
        }
        pair[1] = blob_new(ARG(i + 1));
    }
    changed(k, 1);
    r_int(k, added);
}

static void cmd_hget(call *k) {
    size_t at;
    obj *o;
    if (!get(k, 1, 'h', &o)) return;
    at = o ? pair_find(o, ARG(2)) : 0;
    if (!o || at == o->items.len)
        r_null(k);
    else
        r_blob(k, ((blob **)seq_at(&o->items, at))[1]);
}

static void cmd_hmget(call *k) {
    int i;
    obj *o;
    if (!get(k, 1, 'h', &o)) return;
    r_array(k, k->argc - 2);
    for (i = 2; i < k->argc; i++) {
        size_t at = o ? pair_find(o, ARG(i)) : 0;
        if (!o || at == o->items.len)
            r_null(k);
        else
            r_blob(k, ((blob **)seq_at(&o->items, at))[1]);
    }
}

static void cmd_hincrby(call *k) {
    int64_t by, n = 0;
    char text[24];
    size_t at;
    blob **pair;
    obj *o;
    if (!int_arg(k, 3, &by) || !get(k, 1, 'h', &o)) return;
    at = o ? pair_find(o, ARG(2)) : 0;
    pair = o && at < o->items.len ? seq_at(&o->items, at) : NULL;
    if (pair && !to_int(pair[1]->s, pair[1]->len, &n)) {
        r_error(k, "hash value is not an integer");
        return;
    }
    if ((by > 0 && n > INT64_MAX - by) || (by < 0 && n < INT64_MIN - by)) {
        r_error(k, "increment or decrement would overflow");
        return;
    }
    if (!o) o = make(k, 1, 'h');
    if (pair) {
        blob_drop(pair[1]);
    } else {
        pair = seq_insert(&o->items, at, 1);
        pair[0] = blob_new(ARG(2));
    }
    n += by;
    pair[1] = blob_new(
        text, (size_t)snprintf(text, sizeof text, "%lld", (long long)n));
    changed(k, 1);
    r_int(k, n);
}

static void all_pairs(call *k, char type) {
    size_t i;
    obj *o;
    if (!get(k, 1, type, &o)) return;
    r_array(k, !o ? 0 : (int64_t)o->items.len * (type == 'h' ? 2 : 1));
    for (i = 0; o && i < o->items.len; i++) {
        blob **pair = seq_at(&o->items, i);
        r_blob(k, pair[0]);
        if (type == 'h') r_blob(k, pair[1]);
    }
}

static void cmd_hgetall(call *k) {
    all_pairs(k, 'h');
}
static void cmd_smembers(call *k) {
    all_pairs(k, 'S');
}

static void pairs_len(call *k, char type) {
    obj *o;
    if (get(k, 1, type, &o)) r_int(k, o ? (int64_t)o->items.len : 0);
}

static void cmd_hlen(call *k) {
    pairs_len(k, 'h');
}
static void cmd_scard(call *k) {
    pairs_len(k, 'S');
}

static void remove_pairs(call *k, char type) {
    int i, gone = 0;
    obj *o;
    if (!get(k, 1, type, &o)) return;
    for (i = 2; o && i < k->argc; i++) {
        size_t at = pair_find(o, ARG(i));
        blob **pair;
        if (at == o->items.len) continue;
        pair = seq_at(&o->items, at);
        blob_drop(pair[0]);
        blob_drop(pair[1]);
        seq_remove(&o->items, at, 1);
        gone++;
    }
    if (gone) {
        key_drop_if_empty(k->r, o, ARG(1));
        changed(k, 1);
    }
    r_int(k, gone);
}

static void cmd_hdel(call *k) {
    remove_pairs(k, 'h');
}
static void cmd_srem(call *k) {
    remove_pairs(k, 'S');
}

static void cmd_sadd(call *k) {
    int i, added = 0;
    obj *o;
    if (!get(k, 1, 'S', &o)) return;
    if (!o) o = make(k, 1, 'S');
    for (i = 2; i < k->argc; i++) {
        blob **pair;
        if (pair_find(o, ARG(i)) < o->items.len) continue;
        pair = seq_insert(&o->items, o->items.len, 1);
        pair[0] = blob_new(ARG(i));
        pair[1] = NULL;
        added++;
    }
    if (added) changed(k, 1);
    r_int(k, added);
}

static void cmd_sismember(call *k) {
    obj *o;
    if (get(k, 1, 'S', &o)) r_int(k, o && pair_find(o, ARG(2)) < o->items.len);
}

/* --- streams ------------------------------------------------------------- */

static const char bad_id[] =
    "Invalid stream ID specified as stream command argument";

static int to_u64(const char *s, size_t len, uint64_t *n) {
    uint64_t u = 0;
    size_t i;
    if (len == 0 || len > 20 || (len > 1 && s[0] == '0')) return 0;
    for (i = 0; i < len; i++) {
        unsigned digit = (unsigned)(s[i] - '0');
        if (digit > 9 || u > (UINT64_MAX - digit) / 10) return 0;
        u = u * 10 + digit;
    }
    *n = u;
    return 1;
}

/* Parse an id: ms, ms-seq, or in a range also - or +. If the id has no seq, its
 * seq is `missing`. */
static int id_arg(const char *s, size_t len, int range, uint64_t missing,
                  stream_id *id) {
    const char *dash = memchr(s, '-', len);
    size_t ms = dash ? (size_t)(dash - s) : len;
    if (range && len == 1 && (s[0] == '-' || s[0] == '+')) {
        id->ms = id->seq = s[0] == '-' ? 0 : UINT64_MAX;
        return 1;
    }
    id->seq = missing;
    return to_u64(s, ms, &id->ms) &&
           (!dash || to_u64(dash + 1, len - ms - 1, &id->seq));
}

static void id_reply(call *k, stream_id id) {
    char text[48];
    r_bulk(k, text,
           (size_t)snprintf(text, sizeof text, "%llu-%llu",
                            (unsigned long long)id.ms,
                            (unsigned long long)id.seq));
}

static int trim_args(call *k, int *i, int64_t *maxlen, int *approx) {
    int at = *i + 1;
    *approx = at < k->argc && is(k, at, "~");
    if (*approx || (at < k->argc && is(k, at, "="))) at++;
    if (at >= k->argc) {
        r_error(k, "%s", syntax_error);
        return 0;
    }
    if (!int_arg(k, at, maxlen)) return 0;
    if (*maxlen < 0) {
        r_error(k, "The MAXLEN argument must be >= 0.");
        return 0;
    }
    *i = at;
    return 1;
}

static void cmd_xadd(call *k) {
    int64_t maxlen = -1;
    int i = 2, make_none = 0, approx = 0, seq_too = 1;
    stream_id id = {0, 0};
    obj *o;
    for (; i < k->argc; i++) {
        if (is(k, i, "NOMKSTREAM"))
            make_none = 1;
        else if (is(k, i, "MAXLEN") && i + 1 < k->argc) {
            if (!trim_args(k, &i, &maxlen, &approx)) return;
        } else
            break;
    }
    if (i < k->argc && !is(k, i, "*")) {
        const char *s = k->argv[i];
        size_t len = k->lens[i];
        if (len > 2 && memcmp(s + len - 2, "-*", 2) == 0) {
            seq_too = 0;
            len -= 2;
        }
        if (!id_arg(s, len, 0, 0, &id)) {
            r_error(k, "%s", bad_id);
            return;
        }
    }
    if (k->argc - i - 1 < 2 || (k->argc - i - 1) % 2) {
        r_error(k, "wrong number of arguments for 'xadd' command");
        return;
    }
    if (!is(k, i, "*") && seq_too && id.ms == 0 && id.seq == 0) {
        r_error(k, "The ID specified in XADD must be greater than 0-0");
        return;
    }
    if (!get(k, 1, 'x', &o)) return;
    if (!o && make_none) {
        r_null(k);
        return;
    }
    if (!o) o = make(k, 1, 'x');
    if (o->last.ms == UINT64_MAX && o->last.seq == UINT64_MAX) {
        r_error(k, "The stream has exhausted the last possible ID, unable to "
                   "add more items");
        return;
    }
    if (is(k, i, "*")) {
        id.ms = (uint64_t)now_ms(k);
        if (id.ms <= o->last.ms) {
            id.ms = o->last.ms;
            id.seq = o->last.seq + 1;
        }
    } else if (!seq_too && id.ms == o->last.ms) {
        id.seq = o->last.seq + 1;
    }
    if (stream_cmp(id, o->last) <= 0) {
        key_drop_if_empty(k->r, o, ARG(1));
        r_error(k, "The ID specified in XADD is equal or smaller than the "
                   "target stream top item");
        return;
    }
    stream_add(o, id, (size_t)(k->argc - i - 1), k->argv + i + 1,
               k->lens + i + 1);
    id_reply(k, id);
    changed(k, 1);
    if (maxlen >= 0)
        k->r->work += (int64_t)stream_trim(o, (size_t)maxlen, approx);
}

static void cmd_xlen(call *k) {
    obj *o;
    if (get(k, 1, 'x', &o)) r_int(k, o ? (int64_t)o->items.len : 0);
}

static void xrange(call *k, int reverse) {
    stream_id low, high;
    int64_t count = -1, n = 0, i;
    int from = reverse ? 3 : 2, to = reverse ? 2 : 3, j;
    size_t first = 0, end;
    obj *o;
    int without[2];
    for (j = 0; j < 2; j++) {
        int at = j ? to : from;
        const char *s = k->argv[at];
        size_t len = k->lens[at];
        without[j] = len > 1 && s[0] == '(';
        if (!id_arg(s + without[j], len - (size_t)without[j], !without[j],
                    j ? UINT64_MAX : 0, j ? &high : &low)) {
            r_error(k, "%s", bad_id);
            return;
        }
    }
    if (without[0] && ++low.seq == 0) low.ms++;
    if (without[1] && high.seq-- == 0) high.ms--;
    for (j = 4; j < k->argc; j++) {
        if (!is(k, j, "COUNT") || j + 1 >= k->argc) {
            r_error(k, "%s", syntax_error);
            return;
        }
        if (!int_arg(k, ++j, &count)) return;
        if (count < 0) count = 0;
    }
    if (!get(k, 1, 'x', &o)) return;
    if (o && count == 0) {
        r_null_array(k);
        return;
    }
    if (o) {
        first = stream_lower(o, low);
        end = stream_lower(o, high);
        if (end < o->items.len &&
            stream_cmp(((stream_entry *)seq_at(&o->items, end))->id, high) == 0)
            end++;
        n = first < end ? (int64_t)(end - first) : 0;
        if (count >= 0 && count < n) {
            if (reverse) first += (size_t)(n - count);
            n = count;
        }
    }
    r_array(k, n);
    for (i = 0; i < n; i++) {
        const stream_entry *entry =
            seq_at(&o->items, first + (size_t)(reverse ? n - 1 - i : i));
        size_t w;
        r_array(k, 2);
        id_reply(k, entry->id);
        r_array(k, (int64_t)entry->n);
        for (w = 0; w < entry->n; w++) r_blob(k, entry->words[w]);
    }
}

static void cmd_xrange(call *k) {
    xrange(k, 0);
}
static void cmd_xrevrange(call *k) {
    xrange(k, 1);
}

static void cmd_xtrim(call *k) {
    int64_t maxlen = 0;
    int i = 2, approx = 0;
    size_t n;
    obj *o;
    if (!is(k, i, "MAXLEN")) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (!trim_args(k, &i, &maxlen, &approx)) return;
    if (i + 1 < k->argc) {
        r_error(k, "%s", syntax_error);
        return;
    }
    if (!get(k, 1, 'x', &o)) return;
    n = o ? stream_trim(o, (size_t)maxlen, approx) : 0;
    if (n > 0) changed(k, 1);
    r_int(k, (int64_t)n);
}

/* --- the rest ------------------------------------------------------------ */

static void cmd_time(call *k) {
    int64_t us = redis_now_us(k->r);
    char text[24];
    r_array(k, 2);
    if (k->to->lua && lua_like == LUA_LIKE_DRAGONFLY) {
        r_int(k, us / 1000000);
        r_int(k, us % 1000000);
        return;
    }
    r_bulk(
        k, text,
        (size_t)snprintf(text, sizeof text, "%lld", (long long)(us / 1000000)));
    r_bulk(
        k, text,
        (size_t)snprintf(text, sizeof text, "%lld", (long long)(us % 1000000)));
}

static void cmd_echo(call *k) {
    r_bulk(k, ARG(1));
}

static void cmd_select(call *k) {
    int64_t db;
    if (!to_int(ARG(1), &db) || db < INT32_MIN || db > INT32_MAX)
        r_error(k, "value is not an integer or out of range");
    else if (db < 0 || db > 15)
        r_error(k, "DB index is out of range");
    else
        r_status(k, "OK");
}

#define W CMD_WRITE
#define R CMD_READ
#define M CMD_DENYOOM
#define N CMD_NOSCRIPT
#define L CMD_LOADING
#define S CMD_STALE
#define FREE (CMD_NOSCRIPT | CMD_LOADING | CMD_STALE)

static const command commands[] = {
    {"get", "get", 2, R, 1, 1, 1, cmd_get},
    {"set", "set", -3, W | M, 1, 1, 1, cmd_set},
    {"setnx", "setnx", 3, W | M, 1, 1, 1, cmd_setnx},
    {"setex", "setex", 4, W | M, 1, 1, 1, cmd_setex},
    {"psetex", "psetex", 4, W | M, 1, 1, 1, cmd_psetex},
    {"mget", "mget", -2, R, 1, -1, 1, cmd_mget},
    {"strlen", "strlen", 2, R, 1, 1, 1, cmd_strlen},
    {"incr", "incr", 2, W | M, 1, 1, 1, cmd_incr},
    {"decr", "decr", 2, W | M, 1, 1, 1, cmd_decr},
    {"incrby", "incrby", 3, W | M, 1, 1, 1, cmd_incrby},
    {"del", "del", -2, W, 1, -1, 1, cmd_del},
    {"unlink", "unlink", -2, W, 1, -1, 1, cmd_del},
    {"exists", "exists", -2, R, 1, -1, 1, cmd_exists},
    {"type", "type", 2, R, 1, 1, 1, cmd_type},
    {"expire", "expire", -3, W, 1, 1, 1, cmd_expire},
    {"pexpire", "pexpire", -3, W, 1, 1, 1, cmd_pexpire},
    {"expireat", "expireat", -3, W, 1, 1, 1, cmd_expireat},
    {"pexpireat", "pexpireat", -3, W, 1, 1, 1, cmd_pexpireat},
    {"ttl", "ttl", 2, R, 1, 1, 1, cmd_ttl},
    {"pttl", "pttl", 2, R, 1, 1, 1, cmd_pttl},
    {"expiretime", "expiretime", 2, R, 1, 1, 1, cmd_expiretime},
    {"pexpiretime", "pexpiretime", 2, R, 1, 1, 1, cmd_pexpiretime},
    {"persist", "persist", 2, W, 1, 1, 1, cmd_persist},
    {"rename", "rename", 3, W, 1, 2, 1, cmd_rename},
    {"keys", "keys", 2, R, 0, 0, 0, cmd_keys},
    {"scan", "scan", -2, R, 0, 0, 0, cmd_scan},
    {"dbsize", "dbsize", 1, R, 0, 0, 0, cmd_dbsize},
    {"flushall", "flushall", -1, W, 0, 0, 0, cmd_flush},
    {"flushdb", "flushdb", -1, W, 0, 0, 0, cmd_flush},
    {"lpush", "lpush", -3, W | M, 1, 1, 1, cmd_lpush},
    {"rpush", "rpush", -3, W | M, 1, 1, 1, cmd_rpush},
    {"lpushx", "lpushx", -3, W | M, 1, 1, 1, cmd_lpushx},
    {"rpushx", "rpushx", -3, W | M, 1, 1, 1, cmd_rpushx},
    {"lpop", "lpop", -2, W, 1, 1, 1, cmd_lpop},
    {"rpop", "rpop", -2, W, 1, 1, 1, cmd_rpop},
    {"rpoplpush", "rpoplpush", 3, W | M, 1, 2, 1, cmd_rpoplpush},
    {"lmove", "lmove", 5, W | M, 1, 2, 1, cmd_lmove},
    {"blpop", "blpop", -3, W | N, 1, -2, 1, cmd_blpop},
    {"brpop", "brpop", -3, W | N, 1, -2, 1, cmd_brpop},
    {"llen", "llen", 2, R, 1, 1, 1, cmd_llen},
    {"lindex", "lindex", 3, R, 1, 1, 1, cmd_lindex},
    {"lrange", "lrange", 4, R, 1, 1, 1, cmd_lrange},
    {"ltrim", "ltrim", 4, W, 1, 1, 1, cmd_ltrim},
    {"lrem", "lrem", 4, W, 1, 1, 1, cmd_lrem},
    {"lset", "lset", 4, W | M, 1, 1, 1, cmd_lset},
    {"linsert", "linsert", 5, W | M, 1, 1, 1, cmd_linsert},
    {"lpos", "lpos", -3, R, 1, 1, 1, cmd_lpos},
    {"zadd", "zadd", -4, W | M, 1, 1, 1, cmd_zadd},
    {"zincrby", "zincrby", 4, W | M, 1, 1, 1, cmd_zincrby},
    {"zrem", "zrem", -3, W, 1, 1, 1, cmd_zrem},
    {"zcard", "zcard", 2, R, 1, 1, 1, cmd_zcard},
    {"zscore", "zscore", 3, R, 1, 1, 1, cmd_zscore},
    {"zrank", "zrank", 3, R, 1, 1, 1, cmd_zrank},
    {"zrevrank", "zrevrank", 3, R, 1, 1, 1, cmd_zrevrank},
    {"zcount", "zcount", 4, R, 1, 1, 1, cmd_zcount},
    {"zrange", "zrange", -4, R, 1, 1, 1, cmd_zrange},
    {"zscan", "zscan", -3, R, 1, 1, 1, cmd_zscan},
    {"zrevrange", "zrevrange", -4, R, 1, 1, 1, cmd_zrevrange},
    {"zrangebyscore", "zrangebyscore", -4, R, 1, 1, 1, cmd_zrangebyscore},
    {"zrevrangebyscore", "zrevrangebyscore", -4, R, 1, 1, 1,
     cmd_zrevrangebyscore},
    {"zremrangebyrank", "zremrangebyrank", 4, W, 1, 1, 1, cmd_zremrangebyrank},
    {"zremrangebyscore", "zremrangebyscore", 4, W, 1, 1, 1,
     cmd_zremrangebyscore},
    {"zpopmin", "zpopmin", -2, W, 1, 1, 1, cmd_zpopmin},
    {"zpopmax", "zpopmax", -2, W, 1, 1, 1, cmd_zpopmax},
    {"hset", "hset", -4, W | M, 1, 1, 1, cmd_hset},
    {"hget", "hget", 3, R, 1, 1, 1, cmd_hget},
    {"hmget", "hmget", -3, R, 1, 1, 1, cmd_hmget},
    {"hincrby", "hincrby", 4, W | M, 1, 1, 1, cmd_hincrby},
    {"hgetall", "hgetall", 2, R, 1, 1, 1, cmd_hgetall},
    {"hlen", "hlen", 2, R, 1, 1, 1, cmd_hlen},
    {"hdel", "hdel", -3, W, 1, 1, 1, cmd_hdel},
    {"sadd", "sadd", -3, W | M, 1, 1, 1, cmd_sadd},
    {"srem", "srem", -3, W, 1, 1, 1, cmd_srem},
    {"scard", "scard", 2, R, 1, 1, 1, cmd_scard},
    {"sismember", "sismember", 3, R, 1, 1, 1, cmd_sismember},
    {"smembers", "smembers", 2, R, 1, 1, 1, cmd_smembers},
    {"xadd", "xadd", -5, W | M, 1, 1, 1, cmd_xadd},
    {"xlen", "xlen", 2, R, 1, 1, 1, cmd_xlen},
    {"xrange", "xrange", -4, R, 1, 1, 1, cmd_xrange},
    {"xrevrange", "xrevrange", -4, R, 1, 1, 1, cmd_xrevrange},
    {"xtrim", "xtrim", -4, W, 1, 1, 1, cmd_xtrim},
    {"time", "time", 1, L | S, 0, 0, 0, cmd_time},
    {"echo", "echo", 2, L | S, 0, 0, 0, cmd_echo},
    {"select", "select", 2, L | S, 0, 0, 0, cmd_select},
    {"ping", "ping", -1, CMD_PUBSUB, 0, 0, 0, cmd_ping},
    {"quit", "quit", -1, FREE | CMD_NOAUTH | CMD_BUSY | CMD_PUBSUB, 0, 0, 0,
     cmd_quit},
    {"auth", "auth", -2, FREE | CMD_NOAUTH | CMD_BUSY, 0, 0, 0, cmd_auth},
    {"hello", "hello", -1, FREE | CMD_NOAUTH | CMD_BUSY, 0, 0, 0, cmd_hello},
    {"info", "info", -1, L | S, 0, 0, 0, cmd_info},
    {"eval", "eval", -3, N | S | CMD_MAYREPL, 0, 0, 0, cmd_eval},
    {"evalsha", "evalsha", -3, N | S | CMD_MAYREPL, 0, 0, 0, cmd_eval},
    {"eval_ro", "eval_ro", -3, N | S | R, 0, 0, 0, cmd_eval},
    {"evalsha_ro", "evalsha_ro", -3, N | S | R, 0, 0, 0, cmd_eval},
    {"multi", "multi", 1, FREE | CMD_BUSY, 0, 0, 0, cmd_multi},
    {"exec", "exec", 1, FREE, 0, 0, 0, cmd_exec},
    {"discard", "discard", 1, FREE | CMD_BUSY, 0, 0, 0, cmd_discard},
    {"watch", "watch", -2, FREE | CMD_BUSY, 1, -1, 1, cmd_watch},
    {"unwatch", "unwatch", 1, FREE | CMD_BUSY, 0, 0, 0, cmd_watch},
    {"publish", "publish", 3, L | S | CMD_MAYREPL, 0, 0, 0, cmd_publish},
    {"subscribe", "subscribe", -2, FREE | CMD_PUBSUB, 0, 0, 0, cmd_subscribe},
    {"psubscribe", "psubscribe", -2, FREE | CMD_PUBSUB, 0, 0, 0, cmd_subscribe},
    {"unsubscribe", "unsubscribe", -1, FREE | CMD_PUBSUB, 0, 0, 0,
     cmd_unsubscribe},
    {"punsubscribe", "punsubscribe", -1, FREE | CMD_PUBSUB, 0, 0, 0,
     cmd_unsubscribe},
    {"pubsub", "pubsub|numsub", -2, L | S, 0, 0, 0, cmd_pubsub},
    {"pubsub", "pubsub|channels", -2, L | S, 0, 0, 0, cmd_pubsub},
    {"pubsub", "pubsub|numpat", 2, L | S, 0, 0, 0, cmd_pubsub},
    {"client", "client|id", 2, FREE, 0, 0, 0, cmd_client},
    {"client", "client|setname", 3, FREE, 0, 0, 0, cmd_client},
    {"client", "client|getname", 2, FREE, 0, 0, 0, cmd_client},
    {"client", "client|getredir", 2, FREE, 0, 0, 0, cmd_client},
    {"client", "client|tracking", -3, FREE, 0, 0, 0, cmd_client},
    {"client", "client|caching", 3, FREE, 0, 0, 0, cmd_client},
    {"client", "client|kill", -3, FREE, 0, 0, 0, cmd_client},
    {"client", "client|unblock", -3, FREE, 0, 0, 0, cmd_client},
    {"script", "script|load", 3, N | S, 0, 0, 0, cmd_script},
    {"script", "script|exists", -3, N, 0, 0, 0, cmd_script},
    {"script", "script|flush", -2, N, 0, 0, 0, cmd_script},
    {"config", "config|get", -3, FREE, 0, 0, 0, cmd_config},
    {"sentinel", "sentinel|get-master-addr-by-name", 3, FREE, 0, 0, 0,
     cmd_sentinel},
    {"config", "config|set", -4, FREE, 0, 0, 0, cmd_config},
};

#undef W
#undef R
#undef M
#undef N
#undef L
#undef S
#undef FREE

/* A hash table of the commands by their first word. It is filled only once. */
static const command *table[1024];

static uint32_t word_hash(const char *s, size_t len) {
    uint32_t h = 5381;
    while (len-- > 0) h = h * 33 + (unsigned char)(*s++ | 32);
    return h;
}

const command *command_find(int argc, const char **argv, const size_t *lens,
                            int *only_container) {
    static int filled;
    size_t i, n = sizeof commands / sizeof *commands;
    const command *cmd;
    *only_container = 0;
    if (!filled) {
        for (i = 0; i < n; i++) {
            const char *name = commands[i].name;
            size_t at = word_hash(name, strlen(name)) % 1024;
            while (table[at] && strcmp(table[at]->name, name) != 0)
                at = (at + 1) % 1024;
            if (!table[at]) table[at] = &commands[i];
        }
        filled = 1;
    }
    i = word_hash(argv[0], lens[0]) % 1024;
    while (table[i] && !same_word(argv[0], lens[0], table[i]->name))
        i = (i + 1) % 1024;
    cmd = table[i];
    if (!cmd || !strchr(cmd->full, '|')) return cmd;
    *only_container = 1;
    if (argc < 2) return cmd;
    for (; cmd < commands + n && strcmp(cmd->name, table[i]->name) == 0; cmd++)
        if (same_word(argv[1], lens[1], strchr(cmd->full, '|') + 1)) {
            *only_container = 0;
            return cmd;
        }
    return table[i];
}
