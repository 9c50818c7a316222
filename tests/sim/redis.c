/*
 * The model of the server: its clients with their requests and messages
 * (Pub/Sub, tracking, blocked pops), its faults and its images.
 */
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "redis_impl.h"

#define ARG(i) k->argv[i], k->lens[i]

const char oom_text[] =
    "-OOM command not allowed when used memory > 'maxmemory'.";
const char read_only_text[] =
    "-READONLY You can't write against a read only replica.";
const char misconf_text[] =
    "-MISCONF Redis is configured to save RDB snapshots, but it's currently "
    "unable to persist to disk. Commands that may modify the data set are "
    "disabled, because this instance is configured to report errors during "
    "writes if RDB snapshotting fails (stop-writes-on-bgsave-error option). "
    "Please check the Redis logs for details about the RDB error.";

static void *must(void *p) {
    if (!p) abort();
    return p;
}

static int is(const call *k, int i, const char *word) {
    return same_word(ARG(i), word);
}

int64_t redis_now_us(redis *r) {
    return r->hooks.now_us(r->hooks.arg);
}

/* --- keys ---------------------------------------------------------------- */

static void blobs_free(seq *s) {
    size_t i;
    for (i = 0; i < s->len; i++) blob_drop(*(blob **)seq_at(s, i));
    seq_free(s);
}

static size_t blob_place(const seq *s, const char *text, size_t len) {
    size_t i = 0;
    while (i < s->len && blob_cmp(*(blob **)seq_at(s, i), text, len) != 0) i++;
    return i;
}

static int blob_add(seq *s, const char *text, size_t len) {
    if (blob_place(s, text, len) < s->len) return 0;
    *(blob **)seq_insert(s, s->len, 1) = blob_new(text, len);
    return 1;
}

int key_is_expired(const redis *r, const obj *o) {
    return o->expires_ms >= 0 && r->command_ms > o->expires_ms;
}

static void send_invalidation(client *tracker, const blob *key) {
    client *to = client_of_id(tracker->r, tracker->redirect);
    buf *out;
    if (!to || to->channels.len + to->patterns.len == 0) return;
    out = say_to(to);
    buf_text(out, "*3\r\n$7\r\nmessage\r\n$20\r\n__redis__:invalidate\r\n");
    if (!key) {
        buf_text(out, "$-1\r\n");
        return;
    }
    buf_text(out, "*1\r\n$");
    buf_int(out, (int64_t)key->len);
    buf_text(out, "\r\n");
    buf_add(out, key->s, key->len);
    buf_text(out, "\r\n");
}

/* Tell the clients that watch or track the key that it has changed. */
static void key_signal(redis *r, const char *key, size_t len) {
    map_slot *at;
    client *c;
    seq *ids;
    size_t i;
    if (r->watching > 0)
        for (c = r->first; c; c = c->next)
            if (blob_place(&c->watched, key, len) < c->watched.len)
                c->dirty_watch = 1;
    at = map_find(&r->tracked, key, len);
    if (!at) return;
    ids = at->v.p;
    for (i = 0; i < ids->len; i++) {
        c = client_of_id(r, *(uint64_t *)seq_at(ids, i));
        if (!c || !c->tracking || (c->noloop && c == r->current)) continue;
        if (c == r->current)
            *(blob **)seq_insert(&r->late, r->late.len, 1) = blob_keep(at->key);
        else
            send_invalidation(c, at->key);
    }
    seq_free(ids);
    free(ids);
    map_remove(&r->tracked, at);
}

static void tracking_forget(redis *r) {
    size_t i;
    for (i = 0; i < r->tracked.room; i++) {
        seq *ids = r->tracked.slots[i].v.p;
        if (!r->tracked.slots[i].key) continue;
        seq_free(ids);
        free(ids);
    }
    map_free(&r->tracked);
}

void client_track(client *c, const char *key, size_t len) {
    map_slot *at = map_find(&c->r->tracked, key, len);
    seq *ids;
    size_t i;
    if (!at) {
        blob *name = blob_new(key, len);
        at = map_put(&c->r->tracked, name);
        blob_drop(name);
        at->v.p = must(calloc(1, sizeof *ids));
        ((seq *)at->v.p)->size = sizeof(uint64_t);
    }
    ids = at->v.p;
    for (i = 0; i < ids->len; i++)
        if (*(uint64_t *)seq_at(ids, i) == c->id) return;
    *(uint64_t *)seq_insert(ids, ids->len, 1) = c->id;
}

void key_changed(call *k, const char *key, size_t len) {
    k->changed = 1;
    key_signal(k->r, key, len);
}

void key_remove(redis *r, const char *key, size_t len) {
    map_slot *at = map_find(&r->keys, key, len);
    obj_free(at->v.p);
    map_remove(&r->keys, at);
}

obj *key_find(redis *r, const char *key, size_t len) {
    map_slot *at = map_find(&r->keys, key, len);
    obj *o = at ? at->v.p : NULL;
    if (!o || !key_is_expired(r, o)) return o;
    if (!r->faults.read_only) {
        blob *name = blob_keep(at->key);
        key_remove(r, key, len);
        key_signal(r, name->s, name->len);
        blob_drop(name);
    }
    return NULL;
}

obj *key_make(redis *r, const char *key, size_t len, char type) {
    blob *name;
    obj *o = obj_new(type);
    if (map_find(&r->keys, key, len)) key_remove(r, key, len);
    name = blob_new(key, len);
    map_put(&r->keys, name)->v.p = o;
    blob_drop(name);
    return o;
}

void key_drop_if_empty(redis *r, obj *o, const char *key, size_t len) {
    if (o->items.len == 0 && (o->type != 'x' || o->last.ms + o->last.seq == 0))
        key_remove(r, key, len);
}

void key_expires(redis *r, obj *o, int64_t at_ms) {
    o->expires_ms = at_ms;
    if (at_ms < r->next_expiry_ms) r->next_expiry_ms = at_ms;
}

static void keys_free(map *keys) {
    size_t i;
    for (i = 0; i < keys->room; i++)
        if (keys->slots[i].key) obj_free(keys->slots[i].v.p);
    map_free(keys);
}

void flush_all(call *k) {
    redis *r = k->r;
    client *c;
    if (r->keys.used > 0) k->changed = 1;
    for (c = r->first; c; c = c->next) {
        size_t i;
        for (i = 0; i < c->watched.len; i++) {
            const blob *key = *(blob **)seq_at(&c->watched, i);
            if (map_find(&r->keys, key->s, key->len)) c->dirty_watch = 1;
        }
        if (!c->tracking) continue;
        if (c == r->current)
            *(blob **)seq_insert(&r->late, r->late.len, 1) = NULL;
        else
            send_invalidation(c, NULL);
    }
    tracking_forget(r);
    keys_free(&r->keys);
}

/* --- what clients are sent ----------------------------------------------- */

static void pend(client *c) {
    if (c->pending) return;
    c->pending = 1;
    *(client **)seq_insert(&c->r->pending, c->r->pending.len, 1) = c;
}

buf *say_to(client *c) {
    pend(c);
    return &c->out;
}

client *client_of_id(redis *r, uint64_t id) {
    client *c = id ? r->first : NULL;
    while (c && c->id != id) c = c->next;
    return c;
}

/* Returns 1 if the node of the command's client is a replica. */
int is_replica(const call *k) {
    return k->r->faults.read_only ||
           (k->c && k->c->node >= 0 && k->c->node != k->r->master);
}

void redis_set_master(redis *r, int node) {
    r->master = node;
    r->importing = -1;
}

void redis_set_importing(redis *r, int node) {
    r->importing = node;
}

void redis_set_cluster(redis *r, const char *const *addresses) {
    r->addresses = addresses;
}

void redis_set_sentinel(redis *r, const char *name, const char *host,
                        const char *port) {
    r->watches[0] = name;
    r->watches[1] = host;
    r->watches[2] = port;
}

void client_set_node(client *c, int node) {
    c->node = node;
}

static void untrack(client *c) {
    if (c->tracking) c->r->tracking--;
    c->tracking = 0;
}

static void listeners_remove(map *channels, client *c, const blob *name) {
    map_slot *at = map_find(channels, name->s, name->len);
    seq *clients = at->v.p;
    size_t i = 0;
    while (*(client **)seq_at(clients, i) != c) i++;
    seq_remove(clients, i, 1);
    if (clients->len > 0) return;
    seq_free(clients);
    free(clients);
    map_remove(channels, at);
}

static void queued_free(client *c) {
    size_t i;
    for (i = 0; i < c->queued.len; i++) blobs_free(seq_at(&c->queued, i));
    seq_free(&c->queued);
}

static void unwatch(client *c) {
    if (c->watched.len > 0) c->r->watching--;
    blobs_free(&c->watched);
    c->dirty_watch = 0;
}

static void unblock(client *c) {
    if (!c->blocked) return;
    c->blocked = 0;
    c->r->blocked--;
    blobs_free(&c->waits_for);
    *(client **)seq_insert(&c->r->resumed, c->r->resumed.len, 1) = c;
}

/* Remove the client from all lists and free it. */
static void client_free(client *c) {
    redis *r = c->r;
    size_t i;
    unblock(c);
    unwatch(c);
    untrack(c);
    queued_free(c);
    for (i = 0; i < c->channels.len; i++)
        listeners_remove(&r->channels, c, *(blob **)seq_at(&c->channels, i));
    for (i = 0; i < c->patterns.len; i++)
        listeners_remove(&r->patterns, c, *(blob **)seq_at(&c->patterns, i));
    blobs_free(&c->channels);
    blobs_free(&c->patterns);
    if (c->pending)
        for (i = 0; i < r->pending.len; i++) {
            client **at = seq_at(&r->pending, i);
            if (*at == c) *at = NULL;
        }
    for (i = 0; i < r->resumed.len; i++)
        if (*(client **)seq_at(&r->resumed, i) == c)
            seq_remove(&r->resumed, i--, 1);
    if (c->prev)
        c->prev->next = c->next;
    else
        r->first = c->next;
    if (c->next)
        c->next->prev = c->prev;
    else
        r->last = c->prev;
    if (r->flushing == c) r->flushing = NULL;
    if (r->current == c) r->current = NULL;
    r->clients--;
    blob_drop(c->name);
    buf_free(&c->in);
    buf_free(&c->out);
    free(c);
}

void client_close(client *c) {
    c->closing = 1;
    pend(c);
}

static void process(client *c);

/* Write all output. A nested call does nothing: `write` may feed clients, which
 * ends in another call of this, and the outer call writes their output, too. */
static void flush(redis *r) {
    client *c;
    size_t i;
    if (r->depth > 0) return;
    r->depth = 1;
    while (r->pending.len > 0 || r->resumed.len > 0) {
        while (r->resumed.len > 0) {
            c = *(client **)seq_at(&r->resumed, 0);
            seq_remove(&r->resumed, 0, 1);
            process(c);
        }
        for (i = 0; i < r->pending.len; i++) {
            buf out;
            c = *(client **)seq_at(&r->pending, i);
            if (!c) continue;
            c->pending = 0;
            *(client **)seq_at(&r->pending, i) = NULL;
            r->flushing = c;
            out = c->out;
            memset(&c->out, 0, sizeof c->out);
            if (out.len > 0) c->write(c->user, out.s, out.len);
            if (r->flushing == c && c->closing) {
                void (*close)(void *) = c->close;
                void *user = c->user;
                client_free(c);
                close(user);
            } else if (r->flushing == c && c->out.room == 0) {
                out.len = 0;
                c->out = out;
                out.s = NULL;
            }
            free(out.s);
        }
        r->flushing = NULL;
        seq_remove(&r->pending, 0, r->pending.len);
    }
    r->depth = 0;
}

static void head(buf *out, char type, int64_t n) {
    buf_add(out, &type, 1);
    buf_int(out, n);
    buf_add(out, "\r\n", 2);
}

static void bulk(buf *out, const char *s, size_t len) {
    head(out, '$', (int64_t)len);
    buf_add(out, s, len);
    buf_add(out, "\r\n", 2);
}

/* --- Pub/Sub ------------------------------------------------------------- */

/* Returns the index of the ] that ends the set, or 0 if c is not in the set. */
static size_t in_set(const char *p, size_t plen, char c) {
    int inverts = plen > 1 && p[1] == '^', found = 0;
    size_t i = inverts ? 2 : 1;
    for (; i < plen && p[i] != ']'; i++) {
        unsigned char low = (unsigned char)p[i], high = low;
        if (i + 2 < plen && p[i + 1] == '-') {
            i += 2;
            high = (unsigned char)p[i];
        }
        if ((unsigned char)c >= low && (unsigned char)c <= high) found = 1;
    }
    if (i == plen) i--; /* as in Redis if the ] is missing */
    return found == inverts ? 0 : i;
}

int glob(const char *p, size_t plen, const char *s, size_t slen) {
    for (; plen > 0; p++, plen--) {
        if (*p == '*') {
            for (;; s++, slen--) {
                if (glob(p + 1, plen - 1, s, slen)) return 1;
                if (slen == 0) return 0;
            }
        }
        if (slen == 0) return 0;
        if (*p == '[') {
            size_t end = in_set(p, plen, *s);
            if (end == 0) return 0;
            p += end, plen -= end;
            s++, slen--;
            continue;
        }
        if (*p == '\\' && plen > 1)
            p++, plen--;
        else if (*p == '?') {
            s++, slen--;
            continue;
        }
        if (*p != *s) return 0;
        s++, slen--;
    }
    return slen == 0;
}

int publish(redis *r, const char *channel, size_t clen, const char *message,
            size_t mlen) {
    map_slot *at = map_find(&r->channels, channel, clen);
    int n = 0;
    size_t i, j;
    if (at) {
        const seq *clients = at->v.p;
        for (i = 0; i < clients->len; i++, n++) {
            buf *out = say_to(*(client **)seq_at(clients, i));
            buf_text(out, "*3\r\n$7\r\nmessage\r\n");
            bulk(out, channel, clen);
            bulk(out, message, mlen);
        }
    }
    for (i = 0; r->patterns.used > 0 && i < r->patterns.room; i++) {
        const blob *p = r->patterns.slots[i].key;
        const seq *clients = r->patterns.slots[i].v.p;
        if (!p || !glob(p->s, p->len, channel, clen)) continue;
        for (j = 0; j < clients->len; j++, n++) {
            buf *out = say_to(*(client **)seq_at(clients, j));
            buf_text(out, "*4\r\n$8\r\npmessage\r\n");
            bulk(out, p->s, p->len);
            bulk(out, channel, clen);
            bulk(out, message, mlen);
        }
    }
    r->work += n;
    return n;
}

void cmd_publish(call *k) {
    int n = publish(k->r, ARG(1), ARG(2));
    if (!k->in_script) k->changed = 1;
    r_int(k, n);
}

static void told(call *k, const char *what, const blob *channel) {
    client *c = k->c;
    head(k->to->out, '*', 3);
    bulk(k->to->out, what, strlen(what));
    if (channel)
        bulk(k->to->out, channel->s, channel->len);
    else
        buf_text(k->to->out, "$-1\r\n");
    head(k->to->out, ':', (int64_t)(c->channels.len + c->patterns.len));
}

void cmd_subscribe(call *k) {
    int pattern = (k->cmd->name[0] | 32) == 'p', i;
    client *c = k->c;
    seq *mine = pattern ? &c->patterns : &c->channels;
    map *all = pattern ? &c->r->patterns : &c->r->channels;
    for (i = 1; i < k->argc; i++) {
        blob *name = blob_new(ARG(i));
        if (blob_add(mine, ARG(i))) {
            map_slot *at = map_find(all, ARG(i));
            seq *clients;
            if (!at) {
                at = map_put(all, name);
                at->v.p = must(calloc(1, sizeof *clients));
                ((seq *)at->v.p)->size = sizeof(client *);
            }
            clients = at->v.p;
            *(client **)seq_insert(clients, clients->len, 1) = c;
        }
        told(k, k->cmd->name, name);
        blob_drop(name);
    }
}

void cmd_unsubscribe(call *k) {
    int pattern = (k->cmd->name[0] | 32) == 'p', i, n = k->argc - 1;
    client *c = k->c;
    seq *mine = pattern ? &c->patterns : &c->channels;
    map *all = pattern ? &c->r->patterns : &c->r->channels;
    if (n == 0) n = (int)mine->len;
    if (n == 0) told(k, k->cmd->name, NULL);
    for (i = 1; i <= n; i++) {
        blob *name = k->argc > 1 ? blob_new(ARG(i))
                                 : blob_keep(*(blob **)seq_at(mine, 0));
        size_t at = blob_place(mine, name->s, name->len);
        if (at < mine->len) {
            listeners_remove(all, c, name);
            blob_drop(*(blob **)seq_at(mine, at));
            seq_remove(mine, at, 1);
        }
        told(k, k->cmd->name, name);
        blob_drop(name);
    }
}

void cmd_pubsub(call *k) {
    redis *r = k->r;
    const char *what = strchr(k->cmd->full, '|') + 1;
    size_t i;
    int j;
    if (strcmp(what, "numpat") == 0) {
        r_int(k, (int64_t)r->patterns.used);
    } else if (strcmp(what, "numsub") == 0) {
        r_array(k, 2 * (k->argc - 2));
        for (j = 2; j < k->argc; j++) {
            const map_slot *at = map_find(&r->channels, ARG(j));
            r_bulk(k, ARG(j));
            r_int(k, at ? (int64_t)((seq *)at->v.p)->len : 0);
        }
    } else {
        int n = 0, pass;
        for (pass = 0; pass < 2; pass++) {
            if (pass) r_array(k, n);
            for (i = 0; i < r->channels.room; i++) {
                const blob *name = r->channels.slots[i].key;
                if (!name || (k->argc > 2 && !glob(ARG(2), name->s, name->len)))
                    continue;
                n++;
                if (pass) r_blob(k, name);
            }
        }
    }
}

/* --- CLIENT and the like ------------------------------------------------- */

static void tracking_on(call *k, int64_t redirect, int optin, int optout,
                        int noloop) {
    client *c = k->c;
    if (optin && optout) {
        r_error(k, "You can't specify both OPTIN mode and OPTOUT mode");
        return;
    }
    if ((optin && c->optout) || (optout && c->optin)) {
        r_error(k, "You can't switch OPTIN/OPTOUT mode before disabling "
                   "tracking for this client, and then re-enabling it with a "
                   "different mode.");
        return;
    }
    if (!c->tracking) k->r->tracking++;
    c->tracking = 1;
    c->redirect = (uint64_t)redirect;
    c->optin = optin != 0;
    c->optout = optout != 0;
    c->noloop = noloop != 0;
    r_status(k, "OK");
}

static void client_tracking(call *k) {
    int64_t redirect = 0;
    const client *to;
    int optin = 0, optout = 0, noloop = 0, i;
    for (i = 3; i < k->argc; i++) {
        if (is(k, i, "REDIRECT") && i + 1 < k->argc) {
            i++;
            if (redirect != 0) {
                r_error(k, "A client can only redirect to a single other "
                           "client");
                return;
            }
            if (!to_int(ARG(i), &redirect)) {
                r_error(k, "value is not an integer or out of range");
                return;
            }
            to = client_of_id(k->r, (uint64_t)redirect);
            if (!to || to->node != k->c->node) {
                r_error(k, "The client ID you want redirect to does not "
                           "exist");
                return;
            }
        } else if (is(k, i, "OPTIN")) {
            optin = 1;
        } else if (is(k, i, "OPTOUT")) {
            optout = 1;
        } else if (is(k, i, "NOLOOP")) {
            noloop = 1;
        } else { /* BCAST and PREFIX are not in the model */
            r_error(k, "syntax error");
            return;
        }
    }
    if (is(k, 2, "ON")) {
        tracking_on(k, redirect, optin, optout, noloop);
    } else if (is(k, 2, "OFF")) {
        untrack(k->c);
        k->c->optin = k->c->optout = k->c->noloop = k->c->caching = 0;
        r_status(k, "OK");
    } else {
        r_error(k, "syntax error");
    }
}

static void client_caching(call *k) {
    client *c = k->c;
    if (!c->tracking)
        r_error(k, "CLIENT CACHING can be called only when the client is in "
                   "tracking mode with OPTIN or OPTOUT mode enabled");
    else if (is(k, 2, "YES") && !c->optin)
        r_error(k, "CLIENT CACHING YES is only valid when tracking is enabled "
                   "in OPTIN mode.");
    else if (is(k, 2, "NO") && !c->optout)
        r_error(k, "CLIENT CACHING NO is only valid when tracking is enabled "
                   "in OPTOUT mode.");
    else if (!is(k, 2, "YES") && !is(k, 2, "NO"))
        r_error(k, "syntax error");
    else {
        c->caching = 1;
        r_status(k, "OK");
    }
}

static void kill_client(client *c, const client *by) {
    if (c != by) c->out.len = 0;
    client_close(c);
}

static void client_kill(call *k) {
    int64_t id = 0;
    int i, type = 0, me = 0, n = 0;
    client *c;
    if (k->argc == 3) {
        r_error(k, "No such client");
        return;
    }
    for (i = 2; i < k->argc; i += 2) {
        if (i + 1 < k->argc && is(k, i, "ID")) {
            if (!to_int(ARG(i + 1), &id) || id < 1) {
                r_error(k, "client-id should be greater than 0");
                return;
            }
        } else if (i + 1 < k->argc && is(k, i, "TYPE")) {
            type = is(k, i + 1, "PUBSUB")   ? 'p'
                   : is(k, i + 1, "NORMAL") ? 'n'
                                            : 'x';
            if (type == 'x') {
                r_error(k, "Unknown client type '%s'", k->argv[i + 1]);
                return;
            }
        } else if (i + 1 < k->argc && is(k, i, "SKIPME")) {
            me = is(k, i + 1, "NO");
        } else {
            r_error(k, "syntax error");
            return;
        }
    }
    for (c = k->r->first; c; c = c->next) {
        int subscribed = c->channels.len + c->patterns.len > 0;
        if ((id && c->id != (uint64_t)id) || (c == k->c && !me) ||
            (type && (type == 'p') != subscribed) || c->closing)
            continue;
        kill_client(c, k->c);
        n++;
    }
    r_int(k, n);
}

static void client_unblock(call *k) {
    int64_t id;
    client *c;
    if (!to_int(ARG(2), &id)) {
        r_error(k, "value is not an integer or out of range");
        return;
    }
    c = client_of_id(k->r, (uint64_t)id);
    if (!c || !c->blocked) {
        r_int(k, 0);
        return;
    }
    if (k->argc > 3 && is(k, 3, "ERROR"))
        buf_text(say_to(c),
                 "-UNBLOCKED client unblocked via CLIENT UNBLOCK\r\n");
    else
        buf_text(say_to(c), "*-1\r\n");
    unblock(c);
    r_int(k, 1);
}

void cmd_client(call *k) {
    const char *what = strchr(k->cmd->full, '|') + 1;
    client *c = k->c;
    size_t i;
    if (!c) {
        r_error(k, "nobody is no client");
        return;
    }
    if (strcmp(what, "id") == 0) {
        r_int(k, (int64_t)c->id);
    } else if (strcmp(what, "setname") == 0) {
        for (i = 0; i < k->lens[2]; i++)
            if (k->argv[2][i] < '!' || k->argv[2][i] > '~') {
                r_error(k, "Client names cannot contain spaces, newlines or "
                           "special characters.");
                return;
            }
        blob_drop(c->name);
        c->name = k->lens[2] ? blob_new(ARG(2)) : NULL;
        r_status(k, "OK");
    } else if (strcmp(what, "getname") == 0) {
        if (c->name)
            r_blob(k, c->name);
        else
            r_null(k);
    } else if (strcmp(what, "getredir") == 0) {
        r_int(k, c->tracking ? (int64_t)c->redirect : -1);
    } else if (strcmp(what, "tracking") == 0) {
        client_tracking(k);
    } else if (strcmp(what, "caching") == 0) {
        client_caching(k);
    } else if (strcmp(what, "kill") == 0) {
        client_kill(k);
    } else {
        client_unblock(k);
    }
}

void cmd_auth(call *k) {
    const redis *r = k->r;
    int at = k->argc - 1;
    if (k->argc > 3) {
        r_error(k, "syntax error");
    } else if (k->argc == 2 && !r->password) {
        r_error(k, "AUTH <password> called without any password configured "
                   "for the default user. Are you sure your configuration is "
                   "correct?");
    } else if ((k->argc == 3 && !is(k, 1, "default")) ||
               (r->password && blob_cmp(r->password, ARG(at)) != 0)) {
        r_error(k, "-WRONGPASS invalid username-password pair or user is "
                   "disabled.");
    } else {
        k->c->authed = 1;
        r_status(k, "OK");
    }
}

void cmd_hello(call *k) {
    static const char *const words[] = {
        "server", "redis", "version",    "7.0.15", "proto",  NULL,      "id",
        NULL,     "mode",  "standalone", "role",   "master", "modules", NULL};
    int i;
    if (k->argc > 1 && !is(k, 1, "2")) {
        r_error(k, "-NOPROTO unsupported protocol version");
        return;
    }
    if (!k->c->authed) {
        r_error(k, "-NOAUTH HELLO must be called with the client already "
                   "authenticated, otherwise the HELLO AUTH <user> <pass> "
                   "option can be used to authenticate the client and select "
                   "the RESP protocol version at the same time");
        return;
    }
    r_array(k, 14);
    for (i = 0; i < 14; i++) {
        if (i == 11 && is_replica(k))
            r_bulk(k, "replica", 7);
        else if (words[i])
            r_bulk(k, words[i], strlen(words[i]));
        else if (i == 13)
            r_array(k, 0);
        else
            r_int(k, i == 5 ? 2 : (int64_t)k->c->id);
    }
}

void cmd_quit(call *k) {
    r_status(k, "OK");
    client_close(k->c);
}

void cmd_ping(call *k) {
    if (k->argc > 2) {
        r_error(k, "wrong number of arguments for 'ping' command");
    } else if (k->c && k->c->channels.len + k->c->patterns.len > 0) {
        r_array(k, 2);
        r_bulk(k, "pong", 4);
        if (k->argc == 2)
            r_bulk(k, ARG(1));
        else
            r_bulk(k, "", 0);
    } else if (k->argc == 2) {
        r_bulk(k, ARG(1));
    } else {
        r_status(k, "PONG");
    }
}

void cmd_info(call *k) {
    char text[400];
    r_bulk(k, text,
           (size_t)snprintf(text, sizeof text,
                            "# Server\r\nredis_version:7.0.15\r\n"
                            "redis_mode:standalone\r\n\r\n"
                            "# Clients\r\nconnected_clients:%d\r\n"
                            "blocked_clients:%d\r\ntracking_clients:%d\r\n\r\n"
                            "# Memory\r\nmaxmemory:%d\r\n"
                            "maxmemory_policy:%s\r\n\r\n"
                            "# Replication\r\nrole:%s\r\n",
                            k->r->clients, k->r->blocked, k->r->tracking,
                            k->r->policy ? 1 << 30 : 0,
                            k->r->policy ? k->r->policy : "noeviction",
                            is_replica(k) ? "slave" : "master"));
}

void cmd_sentinel(call *k) {
    const char *const *watches = k->r->watches;
    if (!watches[0]) {
        r_error(k, "unknown command 'SENTINEL', with args beginning with: ");
    } else if (k->lens[2] != strlen(watches[0]) ||
               memcmp(k->argv[2], watches[0], k->lens[2]) != 0) {
        r_null_array(k);
    } else {
        r_array(k, 2);
        r_bulk(k, watches[1], strlen(watches[1]));
        r_bulk(k, watches[2], strlen(watches[2]));
    }
}

void cmd_config(call *k) {
    redis *r = k->r;
    int i;
    if (strcmp(k->cmd->full, "config|get") == 0) {
        r_array(k, 0);
        return;
    }
    for (i = 2; i + 1 < k->argc; i += 2)
        if (is(k, i, "requirepass")) {
            blob_drop(r->password);
            r->password = k->lens[i + 1] ? blob_new(ARG(i + 1)) : NULL;
        }
    r_status(k, "OK");
}

/* --- MULTI --------------------------------------------------------------- */

static void end_multi(client *c) {
    queued_free(c);
    unwatch(c);
    c->multi = c->dirty_exec = 0;
    c->queued_flags = 0;
}

void cmd_multi(call *k) {
    if (k->c->multi) {
        r_error(k, "MULTI calls can not be nested");
        return;
    }
    k->c->multi = 1;
    r_status(k, "OK");
}

void cmd_discard(call *k) {
    if (!k->c->multi) {
        r_error(k, "DISCARD without MULTI");
        return;
    }
    end_multi(k->c);
    r_status(k, "OK");
}

void cmd_watch(call *k) {
    client *c = k->c;
    int i, had = c->watched.len > 0;
    if (k->cmd->name[0] == 'u') {
        unwatch(c);
    } else if (c->multi) {
        r_error(k, "WATCH inside MULTI is not allowed");
        return;
    }
    for (i = 1; i < k->argc; i++) {
        key_find(k->r, ARG(i));
        blob_add(&c->watched, ARG(i));
    }
    if (!had && c->watched.len > 0) k->r->watching++;
    r_status(k, "OK");
}

static void enqueue(call *k) {
    client *c = k->c;
    seq *words = seq_insert(&c->queued, c->queued.len, 1);
    int i;
    memset(words, 0, sizeof *words);
    words->size = sizeof(blob *);
    seq_insert(words, 0, (size_t)k->argc);
    for (i = 0; i < k->argc; i++)
        *(blob **)seq_at(words, (size_t)i) = blob_new(ARG(i));
    c->queued_flags |= k->cmd->flags;
    r_status(k, "QUEUED");
}

void cmd_exec(call *k) {
    client *c = k->c;
    seq queued;
    size_t i;
    int j, container;
    if (!c->multi) {
        r_error(k, "EXEC without MULTI");
        return;
    }
    if (c->dirty_exec) {
        r_error(k, "-EXECABORT Transaction discarded because of previous "
                   "errors.");
        end_multi(c);
        return;
    }
    if (c->dirty_watch) {
        r_null_array(k);
        end_multi(c);
        return;
    }
    queued = c->queued;
    memset(&c->queued, 0, sizeof c->queued);
    c->queued.size = sizeof(seq);
    unwatch(c);
    r_array(k, (int64_t)queued.len);
    for (i = 0; i < queued.len; i++) {
        seq *words = seq_at(&queued, i);
        const char **argv = must(malloc(words->len * sizeof *argv));
        size_t *lens = must(malloc(words->len * sizeof *lens));
        reply to = {NULL, k->to->out, 0, 0, {{0, 0}}};
        call one = {k->r, c, NULL, (int)words->len, argv, lens, &to, 0, 1, 0};
        for (j = 0; j < one.argc; j++) {
            const blob *word = *(blob **)seq_at(words, (size_t)j);
            argv[j] = word->s;
            lens[j] = word->len;
        }
        one.cmd = command_find(one.argc, argv, lens, &container);
        k->r->work++;
        k->r->calls++;
        call_run(&one);
        free(argv);
        free(lens);
        blobs_free(words);
    }
    seq_free(&queued);
    end_multi(c);
}

/* --- requests ------------------------------------------------------------ */

static int has_word(const char *words, const char *word) {
    size_t len = strlen(word);
    const char *at = words;
    while ((at = strstr(at, word)) != NULL) {
        if ((at == words || at[-1] == ' ') && (at[len] == ' ' || !at[len]))
            return 1;
        at += len;
    }
    return 0;
}

int acl_denies(const redis_faults *f, const command *cmd) {
    return f->denied &&
           (has_word(f->denied, cmd->full) || has_word(f->denied, cmd->name));
}

const char *refusal_of(const command *cmd, const redis_faults *f) {
    static const char *const spared[] = {"auth", "hello", "client", "ping"};
    size_t i;
    if (!f->error) return NULL;
    if (strncmp(f->error, "LOADING", 7) == 0)
        return cmd->flags & CMD_LOADING ? NULL : f->error;
    if (strncmp(f->error, "BUSY", 4) == 0)
        return cmd->flags & CMD_BUSY ? NULL : f->error;
    if (strncmp(f->error, "MASTERDOWN", 10) == 0)
        return cmd->flags & CMD_STALE ? NULL : f->error;
    if (strncmp(f->error, "CLUSTERDOWN", 11) == 0)
        return cmd->first > 0 || cmd->run == cmd_eval ? f->error : NULL;
    for (i = 0; i < sizeof spared / sizeof *spared; i++)
        if (strcmp(cmd->name, spared[i]) == 0) return NULL;
    return f->error;
}

/* Track the keys of a reading command for its client. If a script has called
 * the command, Redis 7.0 tracks all keys of the script instead. */
static void track_keys(call *k) {
    const command *cmd = k->cmd;
    client *c = k->c;
    int i, last;
    if (!c || !c->tracking || !(cmd->flags & CMD_READ) ||
        cmd->run == cmd_eval || (c->optin && !c->caching) ||
        (c->optout && c->caching))
        return;
    if (k->in_script && !k->r->tracks_reads) {
        lua_track_keys();
        return;
    }
    if (cmd->first == 0) return;
    last = cmd->last < 0 ? k->argc + cmd->last : cmd->last;
    for (i = cmd->first; i <= last && i < k->argc; i += cmd->step)
        client_track(c, ARG(i));
}

void call_run(call *k) {
    redis *r = k->r;
    k->changed = 0;
    k->cmd->run(k);
    track_keys(k);
    if (r->hooks.executed && (k->changed || (k->in_script && !k->to->failed)))
        r->hooks.executed(r->hooks.arg, k->c, k->argc, k->argv, k->lens);
}

void list_grew(redis *r, const char *key, size_t len) {
    if (r->blocked > 0) blob_add(&r->ready, key, len);
}

void client_block(call *k, int from_right, int64_t deadline_us) {
    client *c = k->c;
    int i;
    for (i = 1; i < k->argc - 1; i++) blob_add(&c->waits_for, ARG(i));
    c->blocked = 1;
    c->from_right = from_right != 0;
    c->deadline_us = deadline_us;
    c->blocked_order = ++k->r->blocks;
    k->r->blocked++;
}

static client *first_waiter(redis *r, const blob *key) {
    client *c, *first = NULL;
    for (c = r->first; c; c = c->next)
        if (c->blocked && (!first || c->blocked_order < first->blocked_order) &&
            blob_place(&c->waits_for, key->s, key->len) < c->waits_for.len)
            first = c;
    return first;
}

/* Pass elements of lists to the clients that are blocked on these lists. */
static void serve_blocked(redis *r) {
    while (r->ready.len > 0) {
        blob *key = *(blob **)seq_at(&r->ready, 0);
        client *c;
        seq_remove(&r->ready, 0, 1);
        while ((c = first_waiter(r, key)) != NULL) {
            obj *o = key_find(r, key->s, key->len);
            const char *words[3] = {c->from_right ? "BRPOP" : "BLPOP", key->s,
                                    NULL};
            size_t at, lens[3] = {5, key->len, 0};
            blob *e;
            buf *out;
            if (!o || o->type != 'l') break;
            at = c->from_right ? o->items.len - 1 : 0;
            e = *(blob **)seq_at(&o->items, at);
            seq_remove(&o->items, at, 1);
            out = say_to(c);
            head(out, '*', 2);
            bulk(out, key->s, key->len);
            bulk(out, e->s, e->len);
            key_drop_if_empty(r, o, key->s, key->len);
            words[2] = e->s;
            lens[2] = e->len;
            if (r->hooks.executed)
                r->hooks.executed(r->hooks.arg, c, 3, words, lens);
            blob_drop(e);
            unblock(c);
        }
        blob_drop(key);
    }
}

static void protocol_error(client *c, const char *why) {
    buf *out = say_to(c);
    buf_text(out, "-ERR Protocol error: ");
    buf_text(out, why);
    buf_text(out, "\r\n");
    client_close(c);
}

/* In a cluster, send the client of a command with keys to another node, or let
 * it try again. Returns 1 if it did so. */
static int redirected(call *k) {
    redis *r = k->r;
    int at = k->cmd->first, last = k->cmd->last, i, missing = 0;
    int64_t n = 0;
    if (!r->addresses || k->c->node < 0) return 0;
    if (k->cmd->run == cmd_eval && to_int(ARG(2), &n)) {
        at = 3;
        last = 2 + (int)n;
    }
    if (last < 0) last += k->argc;
    if (at == 0 || last < at || last >= k->argc) return 0;
    for (i = at; i <= last; i++) missing += key_find(r, ARG(i)) == NULL;
    if (k->c->node != r->master) {
        r_error(k, "-MOVED 3999 %s", r->addresses[r->master]);
    } else if (r->importing < 0 || missing == 0) {
        return 0;
    } else if (missing > last - at) {
        r_error(k, "-ASK 3999 %s", r->addresses[r->importing]);
    } else {
        r_error(k, "-TRYAGAIN Multiple keys request during rehashing of slot");
    }
    return 1;
}

/* If the command must not run, reply with an error or close, and return 1. */
static int refused(call *k, int container) {
    redis *r = k->r;
    const command *cmd = k->cmd;
    client *c = k->c;
    const char *why;
    int flags;
    if (!cmd) {
        char args[256] = "";
        size_t len = 0;
        int i;
        for (i = 1; i < k->argc && len < 128; i++) {
            snprintf(args + len, sizeof args - len, "'%.*s' ",
                     (int)(k->lens[i] < 128 - len ? k->lens[i] : 128 - len),
                     k->argv[i]);
            len = strlen(args);
        }
        r_error(k, "unknown command '%.*s', with args beginning with: %s",
                (int)(k->lens[0] < 128 ? k->lens[0] : 128), k->argv[0], args);
        return 1;
    }
    if (container && k->argc > 1) {
        char name[32];
        size_t i;
        snprintf(name, sizeof name, "%s", cmd->name);
        for (i = 0; name[i]; i++)
            name[i] = (char)toupper((unsigned char)name[i]);
        r_error(k, "unknown subcommand '%.*s'. Try %s HELP.",
                (int)(k->lens[1] < 128 ? k->lens[1] : 128), k->argv[1], name);
        return 1;
    }
    if (container ||
        (cmd->arity > 0 ? k->argc != cmd->arity : k->argc < -cmd->arity)) {
        r_error(k, "wrong number of arguments for '%s' command",
                container ? cmd->name : cmd->full);
        return 1;
    }
    if (!c) return 0;
    if (!c->authed && !(cmd->flags & CMD_NOAUTH)) {
        r_error(k, "-NOAUTH Authentication required.");
        return 1;
    }
    if (!(cmd->flags & CMD_NOAUTH) && acl_denies(&r->faults, cmd)) {
        if (r->faults.closes == 2) protocol_error(c, "not allowed");
        if (r->faults.closes) {
            client_close(c);
            return 1;
        }
        r_error(k,
                "-NOPERM this user has no permissions to run the '%s' "
                "command",
                cmd->full);
        return 1;
    }
    if (redirected(k)) return 1;
    flags = cmd->flags | (cmd->run == cmd_exec ? c->queued_flags : 0);
    if (c->multi && cmd->run != cmd_exec && cmd->run != cmd_discard &&
        cmd->run != cmd_quit)
        flags |= CMD_DENYOOM;
    if (cmd->run == cmd_subscribe && r->faults.out_of_memory == 2)
        flags |= CMD_DENYOOM;
    why = r->faults.out_of_memory && flags & CMD_DENYOOM ? oom_text
          : r->faults.no_persistence &&
                  (flags & CMD_WRITE || cmd->run == cmd_ping)
              ? misconf_text
          : is_replica(k) && flags & CMD_WRITE ? read_only_text
                                               : NULL;
    if (why) {
        r_error(k, "%s", why);
        return 1;
    }
    if (c->channels.len + c->patterns.len > 0 && !(cmd->flags & CMD_PUBSUB)) {
        r_error(k,
                "Can't execute '%s': only (P|S)SUBSCRIBE / "
                "(P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in "
                "this context",
                cmd->full);
        return 1;
    }
    why = refusal_of(cmd, &r->faults);
    if (why) r_error(k, "-%s", why);
    return why != NULL;
}

static void late_invalidations(redis *r, client *c) {
    while (r->late.len > 0) {
        blob *key = *(blob **)seq_at(&r->late, 0);
        seq_remove(&r->late, 0, 1);
        if (c) send_invalidation(c, key);
        blob_drop(key);
    }
}

static void request(client *c, int argc, const char **argv,
                    const size_t *lens) {
    redis *r = c->r;
    reply to = {NULL, say_to(c), 0, 0, {{0, 0}}};
    call k = {r, c, NULL, argc, argv, lens, &to, 0, 0, 0};
    int container;
    size_t said;
    r->current = c;
    r->calls = 0;
    r->work = 1;
    r->command_ms = redis_now_us(r) / 1000;
    if (r->faults.no_scripts && ++r->flip % 2) lua_forget(r);
    k.cmd = command_find(argc, argv, lens, &container);
    said = to.out->len;
    if (refused(&k, container)) {
        if (c->multi) c->dirty_exec = 1;
        if (k.cmd && k.cmd->run == cmd_exec) {
            char why[512];
            snprintf(why, sizeof why, "%s",
                     r->error.s +
                         (strncmp(r->error.s, "-ERR ", 5) == 0 ? 5 : 1));
            to.out->len = said;
            r_error(&k, "-EXECABORT Transaction discarded because of: %s", why);
            end_multi(c);
        }
    } else if (c->multi && k.cmd->run != cmd_exec &&
               k.cmd->run != cmd_discard && k.cmd->run != cmd_multi &&
               strcmp(k.cmd->name, "watch") != 0 && k.cmd->run != cmd_quit) {
        enqueue(&k);
    } else {
        r->calls = k.cmd->run == cmd_exec || k.cmd->run == cmd_eval ? 0 : 1;
        call_run(&k);
    }
    late_invalidations(r, c);
    if (!c->multi && !(k.cmd && k.cmd->run == cmd_client)) c->caching = 0;
    serve_blocked(r);
    if (r->hooks.answered)
        r->hooks.answered(r->hooks.arg, c, k.cmd ? k.cmd->full : "?", r->calls,
                          r->work);
    r->current = NULL;
}

/* Returns the end of the line at `at`, or NULL if it has not arrived yet. */
static const char *line_end(const client *c, size_t at) {
    const char *s = c->in.s + at, *end = memchr(s, '\r', c->in.len - at);
    return end && end + 1 < c->in.s + c->in.len ? end : NULL;
}

/* Parse the next request. Returns the number of its words, 0 if the request is
 * incomplete, or -1 if it was empty or malformed. */
static int parse(client *c, const char ***argv, size_t **lens) {
    static const char **words;
    static size_t *sizes;
    static int64_t room;
    size_t at = c->in_at;
    const char *end;
    int64_t n, i, len, longest = c->r->faults.longest_bulk;
    if (longest == 0) longest = 512 * 1024 * 1024;
    if (at >= c->in.len) return 0;
    if (c->in.s[at] != '*') { /* a line of words */
        end = memchr(c->in.s + at, '\n', c->in.len - at);
        if (!end) return 0;
        c->in_at = (size_t)(end - c->in.s) + 1;
        if (room < 64) {
            room = 64;
            words = must(realloc(words, 64 * sizeof *words));
            sizes = must(realloc(sizes, 64 * sizeof *sizes));
        }
        for (n = 0; n < 64;) {
            const char *s = c->in.s + at;
            while (s < end && isspace((unsigned char)*s)) s++;
            if (s == end) break;
            words[n] = s;
            while (s < end && !isspace((unsigned char)*s)) s++;
            sizes[n] = (size_t)(s - words[n]);
            at = (size_t)(s - c->in.s);
            n++;
        }
        *argv = words;
        *lens = sizes;
        return n > 0 ? (int)n : -1;
    }
    end = line_end(c, at);
    if (!end) return 0;
    if (!to_int(c->in.s + at + 1, (size_t)(end - c->in.s) - at - 1, &n) ||
        n > INT32_MAX) {
        protocol_error(c, "invalid multibulk length");
        return -1;
    }
    if (n > 10 && !c->authed) {
        protocol_error(c, "unauthenticated multibulk length");
        return -1;
    }
    at = (size_t)(end - c->in.s) + 2;
    if (n <= 0) {
        c->in_at = at;
        return -1;
    }
    if (n > room) {
        room = 2 * n;
        words = must(realloc(words, (size_t)room * sizeof *words));
        sizes = must(realloc(sizes, (size_t)room * sizeof *sizes));
    }
    for (i = 0; i < n; i++) {
        if (at >= c->in.len) return 0;
        end = line_end(c, at);
        if (!end) return 0;
        if (c->in.s[at] != '$') {
            char why[] = "expected '$', got ' '";
            why[sizeof why - 3] = c->in.s[at];
            protocol_error(c, why);
            return -1;
        }
        if (!to_int(c->in.s + at + 1, (size_t)(end - c->in.s) - at - 1, &len) ||
            len < 0 || len > longest) {
            protocol_error(c, "invalid bulk length");
            return -1;
        }
        at = (size_t)(end - c->in.s) + 2;
        if (c->in.len - at < (size_t)len + 2) return 0;
        words[i] = c->in.s + at;
        sizes[i] = (size_t)len;
        at += (size_t)len + 2;
    }
    c->in_at = at;
    *argv = words;
    *lens = sizes;
    return (int)n;
}

static void process(client *c) {
    const char **argv;
    size_t *lens;
    int n;
    while (!c->blocked && !c->closing && (n = parse(c, &argv, &lens)) != 0)
        if (n > 0) request(c, n, argv, lens);
    if (c->in_at == c->in.len) c->in_at = c->in.len = 0;
    if (c->in_at > 65536) {
        memmove(c->in.s, c->in.s + c->in_at, c->in.len - c->in_at);
        c->in.len -= c->in_at;
        c->in_at = 0;
    }
}

void redis_feed(client *c, const char *bytes, size_t len) {
    redis *r = c->r;
    if (c->closing) return;
    buf_add(&c->in, bytes, len);
    process(c);
    flush(r);
}

/* --- the whole ----------------------------------------------------------- */

redis *redis_new(const redis_hooks *hooks) {
    redis *r = must(calloc(1, sizeof *r));
    r->hooks = *hooks;
    r->next_id = 3;
    r->next_expiry_ms = INT64_MAX;
    r->importing = -1;
    r->pending.size = r->resumed.size = sizeof(client *);
    r->ready.size = r->late.size = sizeof(blob *);
    return r;
}

static void forget_all(redis *r) {
    while (r->first) client_free(r->first);
    seq_free(&r->pending);
    blobs_free(&r->ready);
    blobs_free(&r->late);
    tracking_forget(r);
    keys_free(&r->keys);
    lua_forget(r);
    map_free(&r->channels);
    map_free(&r->patterns);
    seq_free(&r->resumed);
}

void redis_set_policy(redis *r, const char *policy) {
    r->policy = policy;
}

void redis_tracks_reads(redis *r) {
    r->tracks_reads = 1;
}

void redis_free(redis *r) {
    if (!r) return;
    forget_all(r);
    buf_free(&r->scratch);
    buf_free(&r->error);
    blob_drop(r->password);
    free(r);
}

client *redis_connect(redis *r,
                      void (*write)(void *user, const char *bytes, size_t len),
                      void (*close)(void *user), void *user) {
    static const char full[] = "-ERR max number of clients reached\r\n";
    client *c;
    if (r->faults.max_clients > 0 && r->clients >= r->faults.max_clients) {
        write(user, full, sizeof full - 1);
        close(user);
        return NULL;
    }
    c = must(calloc(1, sizeof *c));
    c->r = r;
    c->id = r->next_id++;
    c->write = write;
    c->close = close;
    c->user = user;
    c->authed = !r->password;
    c->channels.size = c->patterns.size = c->watched.size = c->waits_for.size =
        sizeof(blob *);
    c->queued.size = sizeof(seq);
    c->prev = r->last;
    if (r->last)
        r->last->next = c;
    else
        r->first = c;
    r->last = c;
    r->clients++;
    return c;
}

void redis_disconnect(client *c) {
    client_free(c);
}

void *client_user(const client *c) {
    return c->user;
}

void redis_set_next_id(redis *r, uint64_t id) {
    r->next_id = id;
}

int64_t redis_next_us(const redis *r) {
    int64_t next = INT64_MAX;
    const client *c;
    if (r->next_expiry_ms < INT64_MAX / 1000 - 1)
        next = (r->next_expiry_ms + 1) * 1000;
    for (c = r->blocked > 0 ? r->first : NULL; c; c = c->next)
        if (c->blocked && c->deadline_us && c->deadline_us < next)
            next = c->deadline_us + 1000;
    return next;
}

static void expire_keys(redis *r) {
    size_t i;
    if (r->next_expiry_ms >= r->command_ms || r->faults.read_only) return;
    r->next_expiry_ms = INT64_MAX;
    for (i = 0; i < r->keys.room; i++) {
        blob *key = r->keys.slots[i].key;
        const obj *o = r->keys.slots[i].v.p;
        if (!key || o->expires_ms < 0) continue;
        if (key_is_expired(r, o)) {
            blob_keep(key);
            key_find(r, key->s, key->len);
            blob_drop(key);
            i--; /* another key may have moved to this slot */
        } else if (o->expires_ms < r->next_expiry_ms) {
            r->next_expiry_ms = o->expires_ms;
        }
    }
}

void redis_tick(redis *r) {
    int64_t now = redis_now_us(r);
    client *c;
    r->command_ms = now / 1000;
    expire_keys(r);
    for (c = r->blocked > 0 ? r->first : NULL; c; c = c->next)
        if (c->blocked && c->deadline_us &&
            c->deadline_us / 1000 < r->command_ms) {
            buf_text(say_to(c), "*-1\r\n");
            unblock(c);
        }
    flush(r);
}

redis_faults *redis_faults_of(redis *r) {
    return &r->faults;
}

void redis_kill_clients(redis *r, redis_clients which) {
    client *c;
    for (c = r->first; c; c = c->next) {
        int subscribed = c->channels.len + c->patterns.len > 0;
        if (!c->closing && which != (subscribed ? UNSUBSCRIBED : SUBSCRIBED))
            kill_client(c, NULL);
    }
    flush(r);
}

struct redis_image {
    map keys;
};

static void keys_copy(map *to, const map *from) {
    size_t i;
    for (i = 0; i < from->room; i++)
        if (from->slots[i].key)
            map_put(to, from->slots[i].key)->v.p = obj_copy(from->slots[i].v.p);
}

redis_image *redis_save(const redis *r) {
    redis_image *image = must(calloc(1, sizeof *image));
    keys_copy(&image->keys, &r->keys);
    return image;
}

void redis_image_free(redis_image *image) {
    if (!image) return;
    keys_free(&image->keys);
    free(image);
}

void redis_restart(redis *r, const redis_image *image) {
    forget_all(r);
    r->pending.size = r->resumed.size = sizeof(client *);
    r->ready.size = r->late.size = sizeof(blob *);
    r->next_id = 3;
    r->next_expiry_ms = 0; /* the next tick computes it */
    if (image) keys_copy(&r->keys, &image->keys);
}

static int by_name(const void *a, const void *b) {
    const blob *x = (*(map_slot *const *)a)->key;
    const blob *y = (*(map_slot *const *)b)->key;
    return blob_cmp(x, y->s, y->len);
}

void redis_each_key(redis *r,
                    void (*each)(void *arg, const char *key, size_t len,
                                 char type),
                    void *arg) {
    size_t n = 0, i;
    map_slot **all = must(malloc((r->keys.used + 1) * sizeof *all));
    r->command_ms = redis_now_us(r) / 1000;
    for (i = 0; i < r->keys.room; i++)
        if (r->keys.slots[i].key && !key_is_expired(r, r->keys.slots[i].v.p))
            all[n++] = &r->keys.slots[i];
    qsort(all, n, sizeof *all, by_name);
    for (i = 0; i < n; i++)
        each(arg, all[i]->key->s, all[i]->key->len, ((obj *)all[i]->v.p)->type);
    free(all);
}

void redis_each(redis *r, const char *key, size_t len,
                void (*each)(void *arg, const char *element, size_t len,
                             double score),
                void *arg) {
    const map_slot *at = map_find(&r->keys, key, len);
    const obj *o = at ? at->v.p : NULL;
    buf text = {NULL, 0, 0};
    size_t i, j;
    r->command_ms = redis_now_us(r) / 1000;
    if (!o || key_is_expired(r, o)) return;
    if (o->text) each(arg, o->text->s, o->text->len, 0);
    for (i = 0; i < o->items.len; i++) {
        const void *item = seq_at(&o->items, i);
        const blob *const *pair = item;
        if (o->type == 'z') {
            const zitem *z = item;
            each(arg, z->e->s, z->e->len, z->score);
        } else if (o->type == 'x') {
            const stream_entry *e = item;
            text.len = 0;
            buf_int(&text, (int64_t)e->id.ms);
            buf_add(&text, "-", 1);
            buf_int(&text, (int64_t)e->id.seq);
            for (j = 0; j < e->n; j++) {
                buf_add(&text, " ", 1);
                buf_add(&text, e->words[j]->s, e->words[j]->len);
            }
            each(arg, text.s, text.len, 0);
        } else {
            each(arg, pair[0]->s, pair[0]->len, 0);
            if (o->type == 'h') each(arg, pair[1]->s, pair[1]->len, 0);
        }
    }
    buf_free(&text);
}

const char *redis_command(redis *r, size_t *len, int argc, const char **argv,
                          const size_t *lens) {
    reply to = {NULL, &r->scratch, 0, 0, {{0, 0}}};
    call k = {r, NULL, NULL, argc, argv, lens, &to, 0, 0, 0};
    redis_faults faults = r->faults;
    client *current = r->current;
    int container;
    memset(&r->faults, 0, sizeof r->faults);
    r->current = NULL;
    r->scratch.len = 0;
    r->command_ms = redis_now_us(r) / 1000;
    k.cmd = command_find(argc, argv, lens, &container);
    if (!refused(&k, container)) {
        if (k.cmd->flags & CMD_NOSCRIPT && k.cmd->run != cmd_eval &&
            k.cmd->run != cmd_script && k.cmd->run != cmd_config)
            r_error(&k, "nobody is no client");
        else
            call_run(&k);
        serve_blocked(r);
    }
    r->faults = faults;
    r->current = current;
    flush(r);
    *len = r->scratch.len;
    return r->scratch.s;
}
