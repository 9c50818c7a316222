/* The structures of the model: strings, arrays, hash tables, types of Redis. */
#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "redis_impl.h"

static void *must(void *p) {
    if (!p) abort();
    return p;
}

/* --- buffers, strings ---------------------------------------------------- */

void buf_room(buf *b, size_t more) {
    if (b->len + more <= b->room) return;
    b->room = (b->len + more) * 2 + 64;
    b->s = must(realloc(b->s, b->room));
}

void buf_add(buf *b, const void *bytes, size_t len) {
    buf_room(b, len);
    if (len > 0) memcpy(b->s + b->len, bytes, len);
    b->len += len;
}

void buf_text(buf *b, const char *text) {
    buf_add(b, text, strlen(text));
}

void buf_int(buf *b, int64_t n) {
    char text[24], *at = text + sizeof text;
    uint64_t u = n < 0 ? -(uint64_t)n : (uint64_t)n;
    do *--at = (char)('0' + u % 10);
    while (u /= 10);
    if (n < 0) *--at = '-';
    buf_add(b, at, (size_t)(text + sizeof text - at));
}

void buf_free(buf *b) {
    free(b->s);
    memset(b, 0, sizeof *b);
}

/* Returns a hash that is the same on every machine and in every run. */
uint32_t hash_of(const char *s, size_t len) {
    uint64_t h = 0x9e3779b97f4a7c15u ^ len, part;
    for (; len >= 8; s += 8, len -= 8) {
        memcpy(&part, s, 8);
        h = (h ^ part) * 0xff51afd7ed558ccdu;
        h ^= h >> 32;
    }
    part = 0;
    if (len > 0) memcpy(&part, s, len);
    h = (h ^ part) * 0xc4ceb9fe1a85ec53u;
    return (uint32_t)(h ^ h >> 29);
}

blob *blob_new(const char *s, size_t len) {
    blob *b = must(malloc(sizeof *b + len + 1));
    b->refs = 1;
    b->hash = hash_of(s, len);
    b->len = len;
    if (len > 0) memcpy(b->s, s, len);
    b->s[len] = 0;
    return b;
}

blob *blob_keep(blob *b) {
    b->refs++;
    return b;
}

void blob_drop(blob *b) {
    if (b && --b->refs == 0) free(b);
}

int blob_cmp(const blob *a, const char *s, size_t len) {
    int c = memcmp(a->s, s, a->len < len ? a->len : len);
    return c ? c : (a->len > len) - (a->len < len);
}

/* --- rows ---------------------------------------------------------------- */

void *seq_at(const seq *s, size_t i) {
    return s->room + (s->start + i) * s->size;
}

/* Make room for n more elements at one end. */
static void seq_grow(seq *s, size_t n, int front) {
    size_t cap = s->cap, start;
    char *room = s->room;
    if (cap < 2 * (s->len + n)) {
        cap = 3 * (s->len + n) + 4;
        room = must(malloc(cap * s->size));
    }
    start = (cap - s->len - n) / 2 + (front ? n : 0);
    if (s->len > 0)
        memmove(room + start * s->size, s->room + s->start * s->size,
                s->len * s->size);
    if (room != s->room) free(s->room);
    s->room = room;
    s->cap = cap;
    s->start = start;
}

void *seq_insert(seq *s, size_t at, size_t n) {
    int front = s->len > 0 && at < s->len / 2;
    if (front ? s->start < n : s->start + s->len + n > s->cap)
        seq_grow(s, n, front);
    if (front) {
        s->start -= n;
        memmove(seq_at(s, 0), seq_at(s, n), at * s->size);
    } else if (at < s->len) {
        memmove(seq_at(s, at + n), seq_at(s, at), (s->len - at) * s->size);
    }
    s->len += n;
    return seq_at(s, at);
}

void seq_remove(seq *s, size_t at, size_t n) {
    size_t behind = s->len - at - n;
    if (n == 0) return;
    if (at < behind) {
        if (at > 0) memmove(seq_at(s, n), seq_at(s, 0), at * s->size);
        s->start += n;
    } else if (behind > 0) {
        memmove(seq_at(s, at), seq_at(s, at + n), behind * s->size);
    }
    s->len -= n;
}

void seq_free(seq *s) {
    size_t size = s->size;
    free(s->room);
    memset(s, 0, sizeof *s);
    s->size = size;
}

/* --- hash tables --------------------------------------------------------- */

map_slot *map_find(const map *m, const char *s, size_t len) {
    uint32_t hash;
    size_t i;
    if (m->used == 0) return NULL;
    hash = hash_of(s, len);
    for (i = hash & (m->room - 1); m->slots[i].key;
         i = (i + 1) & (m->room - 1)) {
        const blob *key = m->slots[i].key;
        if (key->hash == hash && key->len == len &&
            (len == 0 || memcmp(key->s, s, len) == 0))
            return &m->slots[i];
    }
    return NULL;
}

static map_slot *map_free_slot(const map *m, uint32_t hash) {
    size_t i = hash & (m->room - 1);
    while (m->slots[i].key) i = (i + 1) & (m->room - 1);
    return &m->slots[i];
}

map_slot *map_put(map *m, blob *key) {
    map_slot *slot;
    if (m->room < 2 * (m->used + 1)) {
        map bigger = {NULL, m->room ? 2 * m->room : 8, m->used};
        size_t i;
        bigger.slots = must(calloc(bigger.room, sizeof *bigger.slots));
        for (i = 0; i < m->room; i++)
            if (m->slots[i].key)
                *map_free_slot(&bigger, m->slots[i].key->hash) = m->slots[i];
        free(m->slots);
        *m = bigger;
    }
    slot = map_free_slot(m, key->hash);
    slot->key = blob_keep(key);
    slot->v.p = NULL;
    m->used++;
    return slot;
}

void map_remove(map *m, map_slot *at) {
    size_t mask = m->room - 1, hole = (size_t)(at - m->slots), i = hole;
    blob_drop(at->key);
    at->key = NULL;
    m->used--;
    for (;;) {
        size_t home;
        i = (i + 1) & mask;
        if (!m->slots[i].key) return;
        home = m->slots[i].key->hash & mask;
        if (((i - home) & mask) < ((i - hole) & mask)) continue;
        m->slots[hole] = m->slots[i];
        m->slots[i].key = NULL;
        hole = i;
    }
}

void map_free(map *m) {
    size_t i;
    for (i = 0; i < m->room; i++) blob_drop(m->slots[i].key);
    free(m->slots);
    memset(m, 0, sizeof *m);
}

/* --- sorted sets --------------------------------------------------------- */

static const zitem *zset_item(const obj *z, size_t rank) {
    return seq_at(&z->items, rank);
}

size_t zset_lower(const obj *z, double score, int after) {
    size_t low = 0, high = z->items.len;
    while (low < high) {
        size_t at = (low + high) / 2;
        double there = zset_item(z, at)->score;
        if (there < score || (after && there == score))
            low = at + 1;
        else
            high = at;
    }
    return low;
}

size_t zset_rank(const obj *z, double score, const blob *e) {
    size_t low = 0, high = z->items.len;
    while (low < high) {
        size_t at = (low + high) / 2;
        const zitem *there = zset_item(z, at);
        if (there->score < score ||
            (there->score == score && blob_cmp(there->e, e->s, e->len) < 0))
            low = at + 1;
        else
            high = at;
    }
    return low;
}

map_slot *zset_find(const obj *z, const char *s, size_t len) {
    return map_find(&z->members, s, len);
}

void zset_add(obj *z, double score, const char *s, size_t len) {
    blob *e = blob_new(s, len);
    zitem *item = seq_insert(&z->items, zset_rank(z, score, e), 1);
    item->score = score + 0.0; /* no -0 */
    item->e = e;
    map_put(&z->members, e)->v.score = score + 0.0;
}

void zset_move(obj *z, map_slot *at, double score) {
    blob *e = blob_keep(at->key);
    zitem *item;
    seq_remove(&z->items, zset_rank(z, at->v.score, e), 1);
    item = seq_insert(&z->items, zset_rank(z, score, e), 1);
    item->score = score + 0.0; /* no -0 */
    item->e = e;
    at->v.score = score + 0.0;
    blob_drop(e);
}

void zset_remove(obj *z, size_t rank, size_t n) {
    size_t i;
    for (i = rank; i < rank + n; i++) {
        blob *e = zset_item(z, i)->e;
        map_remove(&z->members, map_find(&z->members, e->s, e->len));
        blob_drop(e);
    }
    seq_remove(&z->items, rank, n);
}

/* --- streams ------------------------------------------------------------- */

/* Returns an element's size in a listpack. A node is full at 4096 bytes. */
static size_t packed_size(const char *s, size_t len) {
    int64_t n;
    size_t size;
    if (len <= 20 && to_int(s, len, &n)) {
        size = n >= 0 && n <= 127                 ? 1
               : n >= -4096 && n <= 4095          ? 2
               : n >= -32768 && n <= 32767        ? 3
               : n >= -8388608 && n <= 8388607    ? 4
               : n >= INT32_MIN && n <= INT32_MAX ? 5
                                                  : 9;
    } else {
        size = len + (len < 64 ? 1 : len < 4096 ? 2 : 5);
    }
    return size + (size <= 127        ? 1
                   : size < 16383     ? 2
                   : size < 2097151   ? 3
                   : size < 268435455 ? 4
                                      : 5);
}

static size_t packed_int(int64_t n) {
    char text[24];
    return packed_size(
        text, (size_t)snprintf(text, sizeof text, "%lld", (long long)n));
}

static stream_node *stream_node_at(const obj *x, size_t i) {
    return seq_at(&x->nodes, i);
}

static const stream_entry *stream_at(const obj *x, size_t i) {
    return seq_at(&x->items, i);
}

static void words_free(blob **words, size_t n) {
    while (n > 0) blob_drop(words[--n]);
    free(words);
}

static void node_free(stream_node *node) {
    words_free(node->fields, node->nmaster);
}

static stream_node *stream_new_node(obj *x, stream_id id, size_t n,
                                    const char **words, const size_t *lens) {
    stream_node *node = seq_insert(&x->nodes, x->nodes.len, 1);
    size_t i;
    memset(node, 0, sizeof *node);
    node->master = id;
    node->nmaster = n / 2;
    node->fields = must(malloc((n / 2 + 1) * sizeof *node->fields));
    node->bytes = 7 + 2 + 2 + packed_int((int64_t)node->nmaster) + 2;
    for (i = 0; i < n; i += 2) {
        node->fields[i / 2] = blob_new(words[i], lens[i]);
        node->bytes += packed_size(words[i], lens[i]);
    }
    return node;
}

void stream_add(obj *x, stream_id id, size_t n, const char **words,
                const size_t *lens) {
    stream_node *node = NULL;
    stream_entry *entry;
    size_t total = 0, i;
    int same;
    for (i = 0; i < n; i++) total += lens[i];
    if (x->nodes.len > 0) node = stream_node_at(x, x->nodes.len - 1);
    if (!node || node->bytes + total >= 4096 ||
        node->entries + node->deleted >= 100)
        node = stream_new_node(x, id, n, words, lens);
    same = node->nmaster == n / 2;
    for (i = 0; i < n && same; i += 2)
        same = node->fields[i / 2]->len == lens[i] &&
               memcmp(node->fields[i / 2]->s, words[i], lens[i]) == 0;
    node->bytes += 2 + packed_int((int64_t)(id.ms - node->master.ms)) +
                   packed_int((int64_t)(id.seq - node->master.seq));
    if (!same) node->bytes += packed_int((int64_t)(n / 2));
    for (i = same; i < n; i += 1 + (size_t)same)
        node->bytes += packed_size(words[i], lens[i]);
    node->bytes +=
        packed_int((int64_t)(n / 2) + 3 + (same ? 0 : 1 + (int64_t)n / 2));
    node->entries++;
    entry = seq_insert(&x->items, x->items.len, 1);
    entry->id = id;
    entry->n = n;
    entry->words = must(malloc((n + 1) * sizeof *entry->words));
    for (i = 0; i < n; i++) entry->words[i] = blob_new(words[i], lens[i]);
    x->last = id;
}

size_t stream_trim(obj *x, size_t maxlen, int approx) {
    size_t before = x->items.len, gone = 0, i;
    while (before - gone > maxlen && x->nodes.len > 0) {
        stream_node *node = stream_node_at(x, 0);
        if (approx && gone + node->entries > 10000) break;
        if (before - gone - node->entries >= maxlen) {
            gone += node->entries;
            node_free(node);
            seq_remove(&x->nodes, 0, 1);
        } else if (approx) {
            break;
        } else {
            size_t more = before - gone - maxlen;
            node->entries -= more;
            node->deleted += more;
            gone += more;
        }
    }
    for (i = 0; i < gone; i++)
        words_free(stream_at(x, i)->words, stream_at(x, i)->n);
    seq_remove(&x->items, 0, gone);
    return gone;
}

int stream_cmp(stream_id a, stream_id b) {
    if (a.ms != b.ms) return a.ms < b.ms ? -1 : 1;
    return (a.seq > b.seq) - (a.seq < b.seq);
}

size_t stream_lower(const obj *x, stream_id id) {
    size_t low = 0, high = x->items.len;
    while (low < high) {
        size_t at = (low + high) / 2;
        if (stream_cmp(stream_at(x, at)->id, id) < 0)
            low = at + 1;
        else
            high = at;
    }
    return low;
}

/* --- objects ------------------------------------------------------------- */

obj *obj_new(char type) {
    obj *o = must(calloc(1, sizeof *o));
    o->type = type;
    o->expires_ms = -1;
    o->items.size = type == 'z'   ? sizeof(zitem)
                    : type == 'x' ? sizeof(stream_entry)
                    : type == 'l' ? sizeof(blob *)
                                  : 2 * sizeof(blob *);
    o->nodes.size = sizeof(stream_node);
    return o;
}

void obj_free(obj *o) {
    size_t i;
    blob_drop(o->text);
    for (i = 0; i < o->items.len; i++) {
        void *at = seq_at(&o->items, i);
        if (o->type == 'z')
            blob_drop(((zitem *)at)->e);
        else if (o->type == 'x')
            words_free(((stream_entry *)at)->words, ((stream_entry *)at)->n);
        else
            blob_drop(*(blob **)at);
        if (o->type == 'h' || o->type == 'S') blob_drop(((blob **)at)[1]);
    }
    for (i = 0; i < o->nodes.len; i++) node_free(stream_node_at(o, i));
    seq_free(&o->items);
    seq_free(&o->nodes);
    map_free(&o->members);
    free(o);
}

static blob **words_copy(blob **words, size_t n) {
    blob **copy = must(malloc((n + 1) * sizeof *copy));
    size_t i;
    for (i = 0; i < n; i++) copy[i] = blob_keep(words[i]);
    return copy;
}

obj *obj_copy(const obj *o) {
    obj *copy = obj_new(o->type);
    size_t i;
    copy->expires_ms = o->expires_ms;
    copy->last = o->last;
    if (o->text) copy->text = blob_keep(o->text);
    if (o->items.len > 0) {
        seq_insert(&copy->items, 0, o->items.len);
        memcpy(seq_at(&copy->items, 0), seq_at(&o->items, 0),
               o->items.len * o->items.size);
    }
    for (i = 0; i < o->items.len; i++) {
        void *at = seq_at(&copy->items, i);
        if (o->type == 'z') {
            zitem *item = at;
            map_put(&copy->members, blob_keep(item->e))->v.score = item->score;
        } else if (o->type == 'x') {
            stream_entry *entry = at;
            entry->words = words_copy(entry->words, entry->n);
        } else {
            blob_keep(*(blob **)at);
            if (o->type != 'l' && ((blob **)at)[1]) blob_keep(((blob **)at)[1]);
        }
    }
    for (i = 0; i < o->nodes.len; i++) {
        stream_node *node = seq_insert(&copy->nodes, i, 1);
        *node = *stream_node_at(o, i);
        node->fields = words_copy(node->fields, node->nmaster);
    }
    return copy;
}

/* --- numbers ------------------------------------------------------------- */

int to_int(const char *s, size_t len, int64_t *n) {
    uint64_t u = 0, most = INT64_MAX;
    size_t i = 0;
    int minus = len > 1 && s[0] == '-';
    if (len == 1 && s[0] == '0') {
        *n = 0;
        return 1;
    }
    i = (size_t)minus;
    most += (uint64_t)minus;
    if (i >= len || s[i] < '1' || s[i] > '9') return 0;
    for (; i < len; i++) {
        unsigned digit = (unsigned)(s[i] - '0');
        if (digit > 9 || u > (most - digit) / 10) return 0;
        u = u * 10 + digit;
    }
    *n = minus ? (int64_t)-u : (int64_t)u;
    return 1;
}

int to_double(const char *s, size_t len, double *d) {
    char text[512], *end;
    if (len == 0 || len >= sizeof text || isspace((unsigned char)s[0]))
        return 0;
    memcpy(text, s, len);
    text[len] = 0;
    errno = 0;
    *d = strtod(text, &end);
    if (end != text + len || isnan(*d)) return 0;
    return errno != ERANGE ||
           (*d != HUGE_VAL && *d != -HUGE_VAL && fpclassify(*d) != FP_ZERO);
}

size_t double_text(double d, char out[48]) {
    if (d > -1e15 && d < 1e15 && d == (double)(int64_t)d &&
        !(d == 0 && signbit(d))) {
        char *at = out + 40;
        int64_t n = (int64_t)d;
        uint64_t u = n < 0 ? -(uint64_t)n : (uint64_t)n;
        size_t len;
        do *--at = (char)('0' + u % 10);
        while (u /= 10);
        if (n < 0) *--at = '-';
        len = (size_t)(out + 40 - at);
        memmove(out, at, len);
        out[len] = 0;
        return len;
    }
    return (size_t)snprintf(out, 48, "%.17g", d);
}

int same_word(const char *s, size_t len, const char *word) {
    return strlen(word) == len && strncasecmp(s, word, len) == 0;
}

/* SHA-1, from FIPS 180. */
static uint32_t rol(uint32_t x, int n) {
    return x << n | x >> (32 - n);
}

static void sha1_block(uint32_t h[5], const unsigned char *p) {
    uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
    int i;
    for (i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 |
               (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (; i < 80; i++)
        w[i] = rol(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    for (i = 0; i < 80; i++) {
        uint32_t f = i < 20   ? ((b & c) | (~b & d)) + 0x5a827999
                     : i < 40 ? (b ^ c ^ d) + 0x6ed9eba1
                     : i < 60 ? ((b & c) | (b & d) | (c & d)) + 0x8f1bbcdc
                              : (b ^ c ^ d) + 0xca62c1d6;
        uint32_t t = rol(a, 5) + f + e + w[i];
        e = d;
        d = c;
        c = rol(b, 30);
        b = a;
        a = t;
    }
    h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
}

void sha1_hex(const char *s, size_t len, char out[41]) {
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476,
                     0xc3d2e1f0};
    unsigned char end[128] = {0};
    size_t left = len % 64, ends = left < 56 ? 64 : 128, i;
    uint64_t bits = (uint64_t)len * 8;
    for (i = 0; i + 64 <= len; i += 64)
        sha1_block(h, (const unsigned char *)s + i);
    if (left > 0) memcpy(end, s + i, left);
    end[left] = 0x80;
    for (i = 0; i < 8; i++) end[ends - 1 - i] = (unsigned char)(bits >> 8 * i);
    for (i = 0; i < ends; i += 64) sha1_block(h, end + i);
    for (i = 0; i < 5; i++) snprintf(out + 8 * i, 9, "%08x", (unsigned)h[i]);
}
