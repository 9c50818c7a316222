/*
 * A model of the server. It has the commands that the scripts of delayq and of
 * Redisson use, with the replies of Redis 7.0, and runs the scripts in
 * liblua5.1. model.c compares it with a real redis-server.
 *
 * The model has no sockets and no clock. The caller passes it the bytes of
 * requests, gets the bytes of replies, and supplies the time.
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
    /* Called with the words of each command that has changed something or is
     * part of a script. `by` is its client (see client_user), or NULL for
     * redis_command. If a blocked client gets an element, the words are BLPOP
     * or BRPOP, the key and the element. */
    void (*executed)(void *arg, client *by, int argc, const char **argv,
                     const size_t *lens);
    /* Called after each request of a client, with the request's cost. */
    void (*answered)(void *arg, client *by, const char *command, int calls,
                     int64_t work);
} redis_hooks;
/* `work` counts 1 for each command, element of a reply and KB of payload, and
 * for each entry that Redis visits in an LREM, or in a LINDEX or LRANGE that is
 * far from an end. A ZRANGE by rank adds the logarithm of the size. */

redis *redis_new(const redis_hooks *hooks);
/* If a connection with tracking runs a script that reads, Redis 7.0 tracks all
 * keys that the EVAL names. Redis 7.2, Redis 8 and Valkey track only the keys
 * that the script reads. After this call the model does so, too. */
void redis_tracks_reads(redis *r);
/* From now on INFO reports this eviction policy. The server evicts no key. */
void redis_set_policy(redis *r, const char *policy);
void redis_free(redis *r);

/* --- clients ------------------------------------------------------------- */

/* If there are too many clients, calls `write` and `close`; returns NULL. */
client *redis_connect(redis *r,
                      void (*write)(void *user, const char *bytes, size_t len),
                      void (*close)(void *user), void *user);
/* Pass bytes of a client to the server. This may call `write` of any client
 * (PUBLISH, tracking), and `close`, after which that client is freed. */
void redis_feed(client *c, const char *bytes, size_t len);
void redis_disconnect(client *c); /* free it without calling its functions */
void *client_user(const client *c);
/* The server may have several nodes with the same content: one master, and its
 * replicas. A client is connected to node 0 unless client_set_node names
 * another node. Node -1 is always the master. */
void redis_set_master(redis *r, int node);
void client_set_node(client *c, int node);
/* Make the server a cluster, whose nodes have these addresses ("host:port"). A
 * replica then redirects all commands with keys to the master. */
void redis_set_cluster(redis *r, const char *const *addresses);
/* The slot of all keys moves from the master to this node (-1: to none). Until
 * redis_set_master no key moves: the master asks clients to try elsewhere or
 * again if they use keys that do not exist. */
void redis_set_importing(redis *r, int node);
/* Make the server a sentinel, which watches a master at this host and port. */
void redis_set_sentinel(redis *r, const char *name, const char *host,
                        const char *port);

/* Returns the time at which redis_tick must be called, because a blocked client
 * times out or a key expires, or INT64_MAX. Any call may change this time. */
int64_t redis_next_us(const redis *r);
void redis_tick(redis *r); /* may call `write` of any client */

/* --- faults -------------------------------------------------------------- */

typedef struct redis_faults {
    const char *error;  /* the error reply to some commands: LOADING, BUSY and
                           MASTERDOWN to those that Redis refuses in this state,
                           CLUSTERDOWN to those with keys, another error to all
                           except AUTH, HELLO, CLIENT and PING */
    int out_of_memory;  /* 1: maxmemory is reached, with noeviction; 2: the same
                           in Redis 8.6, which also refuses SUBSCRIBE */
    int read_only;      /* 1: the server is a replica, as in a failover */
    int no_persistence; /* 1: the server refuses writes with MISCONF */
    int max_clients;    /* 0: no limit */
    const char *denied; /* denied by an ACL: " zadd client|tracking " */
    int closes;         /* 1: a denied command closes the connection, as in
                           some proxies; 2: it does so after an error reply */
    int no_scripts;     /* 1: a SCRIPT FLUSH before every second request */
    int longest_bulk;   /* proto-max-bulk-len; 0: 512 MB */
} redis_faults;
redis_faults *redis_faults_of(redis *r);

/* The clients that redis_kill_clients kills. It calls their `close`. */
typedef enum redis_clients {
    ALL_CLIENTS,
    SUBSCRIBED,
    UNSUBSCRIBED
} redis_clients;
void redis_kill_clients(redis *r, redis_clients which);

/* --- the data ------------------------------------------------------------- */

/* An image contains all keys, like a file on a disk. redis_restart drops all
 * scripts, drops all clients without calling `close`, and replaces the keys by
 * those of the image (NULL: no keys). An image can be used several times. */
typedef struct redis_image redis_image;
redis_image *redis_save(const redis *r);
void redis_image_free(redis_image *image);
void redis_restart(redis *r, const redis_image *image);

/* Call `each` for every key, sorted by name, or for every element of a key in
 * its order, with the score in a zset. An entry of a stream is one text. */
void redis_each_key(redis *r,
                    void (*each)(void *arg, const char *key, size_t len,
                                 char type),
                    void *arg); /* type: z, l, s, h, S (set), x (stream) */
void redis_each(redis *r, const char *key, size_t len,
                void (*each)(void *arg, const char *element, size_t len,
                             double score),
                void *arg);
/* Run a command without a client and without faults. Returns the bytes of the
 * reply, which are valid until the next call. */
const char *redis_command(redis *r, size_t *len, int argc, const char **argv,
                          const size_t *lens);

#endif
