/*
 * A model of the server: what the scripts of delayq and of Redisson use, with
 * the answers that Redis 7.0 gives. The scripts themselves run, in liblua5.1.
 * model.c checks it against a real redis-server.
 *
 * It knows no sockets and no time: bytes are handed to it, it hands out bytes,
 * and asks a function for the time.
 */
#ifndef SIM_REDIS_H
#define SIM_REDIS_H

#include <stddef.h>
#include <stdint.h>

typedef struct redis redis;
typedef struct client client;

typedef struct redis_hooks {
    void *arg;
    int64_t (*now_us)(void *arg); /* since the epoch */
    /* Called after each command that changed something or was one of a script,
     * with its words; `by` is the client, whose user is client_user, or NULL
     * for redis_command. What a blocked client is given is told as BLPOP (or
     * BRPOP) with the key and the element. */
    void (*executed)(void *arg, client *by, int argc, const char **argv,
                     const size_t *lens);
    /* Called after each request that a client sent: what it cost. */
    void (*answered)(void *arg, client *by, const char *command, int calls,
                     int64_t work);
} redis_hooks;
/* `work` counts what Redis touches: one per command, element of a reply, entry
 * that is walked over (LREM, LINDEX, LRANGE far from an end, ZRANGE by rank:
 * the logarithm), and per KB of payload. */

redis *redis_new(const redis_hooks *hooks);
/* If a connection with tracking runs a script that reads, Redis 7.0 tracks all
 * keys that the EVAL names. Redis 7.2, Redis 8 and Valkey track only the keys
 * that the script reads. After this call the server does that, too. */
void redis_tracks_reads(redis *r);
/* From now on INFO reports this eviction policy. The server evicts no key. */
void redis_set_policy(redis *r, const char *policy);
void redis_free(redis *r);

/* --- clients ------------------------------------------------------------- */

client *redis_connect(redis *r,
                      void (*write)(void *user, const char *bytes, size_t len),
                      void (*close)(void *user), void *user);
/* NULL: too many clients; write and close have been called. */
/* May call write, of any client (PUBLISH, tracking), and close, after which
 * the client is freed. */
void redis_feed(client *c, const char *bytes, size_t len);
void redis_disconnect(client *c); /* it is gone; calls nothing */
void *client_user(const client *c);
/* The server may be several nodes with the same content, of which one is the
 * master and the others are its replicas. Clients connect to node 0 unless the
 * caller says otherwise; -1 is always the master. */
void redis_set_master(redis *r, int node);
void client_set_node(client *c, int node);

/* When redis_tick has something to do: a blocked client's timeout, a key that
 * expires; INT64_MAX: nothing. Ask again after each of the calls here. */
int64_t redis_next_us(const redis *r);
void redis_tick(redis *r); /* may call write, of any client */

/* --- faults -------------------------------------------------------------- */

typedef struct redis_faults {
    const char *error;  /* the reply to some commands. "LOADING ...", "BUSY
                           ...", "MASTERDOWN ...": to those that Redis then
                           refuses; "CLUSTERDOWN ...": to those with keys;
                           another error: to all except AUTH, HELLO, CLIENT
                           and PING */
    int out_of_memory;  /* as at maxmemory with noeviction; 2: since Redis 8.6,
                           which also refuses SUBSCRIBE then */
    int read_only;      /* a replica */
    int no_persistence; /* MISCONF */
    int max_clients;    /* 0: no limit */
    const char *denied; /* ACL: words of commands, " zadd client|tracking " */
    int closes;         /* 1: it closes the connection at these, as some proxies
                           do at what they don't know; 2: it says so before */
    int no_scripts;     /* SCRIPT FLUSH at each request, one of two */
} redis_faults;
redis_faults *redis_faults_of(redis *r);

/* CLIENT KILL: all, or only those that are subscribed, or are not. Calls close.
 */
typedef enum redis_clients {
    ALL_CLIENTS,
    SUBSCRIBED,
    UNSUBSCRIBED
} redis_clients;
void redis_kill_clients(redis *r, redis_clients which);

/* --- the data ------------------------------------------------------------- */

/* What a file on the disk would hold; redis_restart drops all clients without
 * calling their close, the scripts and the subscriptions, and takes the keys
 * from the image (NULL: none is left). An image can be used many times. */
typedef struct redis_image redis_image;
redis_image *redis_save(const redis *r);
void redis_image_free(redis_image *image);
void redis_restart(redis *r, const redis_image *image);

/* A failover: the clients are told READONLY or dropped by the caller. */

/* Every key, sorted; and every element of one: a zset's with its score, in its
 * order; a list's in its order; a string; a stream's entries as one text. */
void redis_each_key(redis *r,
                    void (*each)(void *arg, const char *key, size_t len,
                                 char type),
                    void *arg); /* type: z, l, s, h, S (set), x (stream) */
void redis_each(redis *r, const char *key, size_t len,
                void (*each)(void *arg, const char *element, size_t len,
                             double score),
                void *arg);
/* A command as from redis-cli, by nobody, past all faults; the reply's bytes,
 * as sent, which live until the next call. */
const char *redis_command(redis *r, size_t *len, int argc, const char **argv,
                          const size_t *lens);

#endif
