/*
 * Shared declarations of the model of the server. redis.c has the protocol and
 * the clients, redis_cmd.c the commands, redis_data.c the structures below,
 * redis_lua.c the scripts, and redis_reply.c the replies.
 */
#ifndef SIM_REDIS_IMPL_H
#define SIM_REDIS_IMPL_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include "redis.h"

struct lua_State;

/* --- structures ---------------------------------------------------------- */

typedef struct buf {
    char *s;
    size_t len, room;
} buf;
void buf_add(buf *b, const void *bytes, size_t len);
void buf_text(buf *b, const char *text);
void buf_int(buf *b, int64_t n);
void buf_room(buf *b, size_t more);
void buf_free(buf *b);

/* An immutable string. */
typedef struct blob {
    uint32_t refs, hash;
    size_t len;
    char s[];
} blob;
blob *blob_new(const char *s, size_t len);
blob *blob_keep(blob *b);
void blob_drop(blob *b);
int blob_cmp(const blob *a, const char *s, size_t len);
uint32_t hash_of(const char *s, size_t len);

/* An array of elements of one size, with room at both ends. */
typedef struct seq {
    char *room;
    size_t start, len, cap, size;
} seq;
void *seq_at(const seq *s, size_t i);
void *seq_insert(seq *s, size_t at, size_t n); /* n elements, not yet set */
void seq_remove(seq *s, size_t at, size_t n);
void seq_free(seq *s);

/* A hash table. */
typedef struct map_slot {
    blob *key; /* NULL: the slot is free */
    union {
        double score;
        void *p;
    } v;
} map_slot;
typedef struct map {
    map_slot *slots;
    size_t room, used;
} map;
map_slot *map_find(const map *m, const char *s, size_t len);
map_slot *map_put(map *m, blob *key); /* key must be new; the map keeps it */
void map_remove(map *m, map_slot *at);
void map_free(map *m);

typedef struct zitem {
    double score;
    blob *e;
} zitem;

typedef struct stream_id {
    uint64_t ms, seq;
} stream_id;
typedef struct stream_entry {
    stream_id id;
    size_t n;
    blob **words; /* field, value, field, value ... */
} stream_entry;
/* The entries are grouped in nodes. MAXLEN ~ removes only whole nodes. */
typedef struct stream_node {
    size_t entries, deleted, bytes, nmaster;
    stream_id master;
    blob **fields;
} stream_node;

typedef struct obj {
    char type;          /* z, l, s, h, S or x */
    int64_t expires_ms; /* -1: never */
    blob *text;         /* s */
    seq items;          /* l: blob*; z: zitem; h, S: pairs of blob*;
                           x: stream_entry */
    map members;        /* z */
    seq nodes;          /* x */
    stream_id last;     /* x */
} obj;
obj *obj_new(char type);
obj *obj_copy(const obj *o);
void obj_free(obj *o);

size_t zset_lower(const obj *z, double score, int after); /* first >= or > */
size_t zset_rank(const obj *z, double score, const blob *e);
map_slot *zset_find(const obj *z, const char *s, size_t len);
void zset_add(obj *z, double score, const char *s, size_t len);
void zset_move(obj *z, map_slot *at, double score);
void zset_remove(obj *z, size_t rank, size_t n);

void stream_add(obj *x, stream_id id, size_t n, const char **words,
                const size_t *lens);
size_t stream_trim(obj *x, size_t maxlen, int approx);
int stream_cmp(stream_id a, stream_id b);
size_t stream_lower(const obj *x, stream_id id);

/* --- numbers ------------------------------------------------------------- */

int to_int(const char *s, size_t len, int64_t *n); /* like Redis: no "+1" */
int to_double(const char *s, size_t len, double *d);
size_t double_text(double d, char out[48]);
int same_word(const char *s, size_t len, const char *word); /* any case */
void sha1_hex(const char *s, size_t len, char out[41]);

/* --- replies ------------------------------------------------------------- */

/* The destination of a command's reply: it becomes bytes for a client, or a
 * value on the stack of Lua. */
typedef struct reply {
    struct lua_State *lua;
    buf *out;
    int depth, failed;
    struct {
        int64_t n, at;
    } open[8];
} reply;

/* --- commands ------------------------------------------------------------ */

enum {
    CMD_WRITE = 1,
    CMD_READ = 2,
    CMD_DENYOOM = 4,
    CMD_NOSCRIPT = 8,
    CMD_LOADING = 16,
    CMD_STALE = 32,
    CMD_NOAUTH = 64,
    CMD_BUSY = 128,
    CMD_MAYREPL = 256,
    CMD_PUBSUB = 512 /* allowed to subscribers */
};

typedef struct call call;
typedef struct command {
    const char *name, *full; /* full: "client|id" */
    int arity, flags, first, last, step;
    void (*run)(call *k);
} command;

struct call {
    redis *r;
    client *c; /* the client that runs it or its script, or NULL */
    const command *cmd;
    int argc;
    const char **argv;
    const size_t *lens;
    reply *to;
    int in_script, in_exec;
    int changed;
};

const command *command_find(int argc, const char **argv, const size_t *lens,
                            int *only_container);

void r_int(call *k, int64_t n);
void r_bulk(call *k, const char *s, size_t len);
void r_blob(call *k, const blob *b);
void r_null(call *k);
void r_null_array(call *k);
void r_array(call *k, int64_t n);
void r_status(call *k, const char *s);
void r_error(call *k, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void r_double(call *k, double d);

/* --- the server ---------------------------------------------------------- */

struct redis {
    redis_hooks hooks;
    redis_faults faults;
    map keys;     /* obj* */
    map scripts;  /* SHA1s of the scripts that are loaded */
    map channels; /* seq* of client* */
    map patterns;
    map tracked; /* seq* of client ids */
    client *first, *last, *current;
    uint64_t next_id;
    int clients, tracking, watching, blocked, depth;
    int tracks_reads;   /* redis_tracks_reads */
    const char *policy; /* set by redis_set_policy, or NULL */
    seq pending;        /* client*: clients with output */
    seq resumed;        /* client*: unblocked clients with unread input */
    seq ready;          /* blob*: lists with an element for a blocked client */
    seq late;           /* blob*: keys to invalidate after the reply, or NULL
                           for all keys */
    int64_t next_expiry_ms, command_ms;
    buf scratch, error; /* error: text of the last r_error, a C string */
    blob *password;
    client *flushing;
    uint64_t blocks;
    int master, importing;        /* nodes; importing: -1 if none */
    const char *const *addresses; /* of the cluster's nodes, or NULL */
    const char *watches[3];       /* a sentinel's master: name, host, port */
    int lua_running, calls, dirty_script, oom_at_start, read_only_script,
        script_stale, flip;
    int64_t work;
};

struct client {
    redis *r;
    client *prev, *next;
    uint64_t id, redirect;
    int node;
    void (*write)(void *user, const char *bytes, size_t len);
    void (*close)(void *user);
    void *user;
    buf in, out;
    size_t in_at;
    unsigned closing : 1, pending : 1, authed : 1, multi : 1, dirty_exec : 1,
        dirty_watch : 1, tracking : 1, optin : 1, optout : 1, noloop : 1,
        caching : 1, blocked : 1, from_right : 1;
    seq channels, patterns; /* blob* */
    seq queued;             /* seqs of blob* */
    int queued_flags;       /* flags of the queued commands */
    seq watched;            /* blob* */
    seq waits_for;          /* blob* */
    int64_t deadline_us;    /* end of its blocking command; 0: none */
    uint64_t blocked_order;
    blob *name;
};

int64_t redis_now_us(redis *r);
int is_replica(const call *k);
obj *key_find(redis *r, const char *key, size_t len); /* if not expired */
obj *key_make(redis *r, const char *key, size_t len, char type);
void key_remove(redis *r, const char *key, size_t len);
void key_drop_if_empty(redis *r, obj *o, const char *key, size_t len);
void key_expires(redis *r, obj *o, int64_t at_ms);
/* Note that a command has changed the key. */
void key_changed(call *k, const char *key, size_t len);
void list_grew(redis *r, const char *key, size_t len);
void flush_all(call *k);
int publish(redis *r, const char *channel, size_t clen, const char *message,
            size_t mlen);
int glob(const char *p, size_t plen, const char *s, size_t slen);

/* Add output for a client. It is sent when the command has run. */
void say(client *c, const void *bytes, size_t len);
buf *say_to(client *c);
void client_close(client *c);
void client_track(client *c, const char *key, size_t len);
client *client_of_id(redis *r, uint64_t id);
void client_block(call *k, int from_right, int64_t deadline_us);

/* Run k's command, which must be known and allowed. */
void call_run(call *k);
const char *refusal_of(const command *cmd, const redis_faults *f);
int acl_denies(const redis_faults *f, const command *cmd);
extern const char oom_text[], read_only_text[], misconf_text[];

void cmd_eval(call *k);
void cmd_script(call *k);
void lua_forget(redis *r);
void lua_track_keys(void); /* track all keys of the script that runs */

/* How numbers pass between commands and a script in Lua 5.4. */
enum {
    LUA_LIKE_REDIS,
    LUA_LIKE_GARNET,   /* a float as an argument has 14 digits */
    LUA_LIKE_DRAGONFLY /* scores and times are numbers, not strings */
};
extern int lua_like;
void lua_imitate(int like);
int64_t lua_runs(const char sha[41]); /* how often a script has run */

void cmd_multi(call *k);
void cmd_exec(call *k);
void cmd_discard(call *k);
void cmd_watch(call *k);
void cmd_client(call *k);
void cmd_subscribe(call *k);
void cmd_unsubscribe(call *k);
void cmd_pubsub(call *k);
void cmd_publish(call *k);
void cmd_auth(call *k);
void cmd_hello(call *k);
void cmd_quit(call *k);
void cmd_ping(call *k);
void cmd_info(call *k);
void cmd_config(call *k);
void cmd_sentinel(call *k);

int key_is_expired(const redis *r, const obj *o);

/* Set the id of the next client. Only model.c uses this. */
void redis_set_next_id(redis *r, uint64_t id);

#endif
