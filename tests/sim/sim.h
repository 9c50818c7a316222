/*
 * The simulator of delayq: a seed is a plan of actors and faults,
 * the actors use the header under test, and each event in the server is
 * compared with the replies that they got.
 *
 *     scenario.c   makes the plan of a seed, and lets the faults happen
 *     service.c    the server on the network
 *     actors.c     the programs that use delayq, and a model of Redisson's
 *     check.c      the invariants
 *     main.c       runs seeds, shrinks those that fail
 */
#ifndef SIM_H
#define SIM_H

#include "redis.h"
#include "world.h"
#ifndef SIM_API
#define SIM_API 3 /* today's; 1 and 2: that of 0.1 and 0.2 */
#endif
#if SIM_API == 1
#include "../old/0.1/delayq.h"
#elif SIM_API == 2
#include "../old/0.2/delayq.h"
#else
#include "../../delayq.h"
#endif
#ifdef DELAYQ_BROADCAST
#define SIM_BROADCAST(o) ((o).wire = DELAYQ_BROADCAST)
#else
#define SIM_BROADCAST(o) ((o).broadcast = 1)
#endif

#define MS INT64_C(1000)
#define PORT 6379
#define QUEUES 2
#define LONG_QUEUE QUEUES /* a LONG's: its items are not checked one by one */
#define MAX_ACTORS 64     /* one bit each in a word */
#define MAX_FAULTS 64

/* --- chance of its own: dropping an actor must not change the others ------ */

typedef struct chance {
    uint64_t state;
} chance;

uint64_t chance_next(chance *c);
int64_t chance_between(chance *c, int64_t low, int64_t high);
int chance_percent(chance *c, int percent);

/* --- the plan -------------------------------------------------------------*/

typedef enum actor_kind {
    PRODUCER,        /* offers, one call at a time */
    OUTBOX_PRODUCER, /* offers in frames, with an outbox */
    WORKER,          /* takes and waits */
    BATCH_WORKER,    /* take_many and ack_many */
    LOOP_WORKER,     /* take(0), tick, poll(fds) */
    OUTBOX_WORKER,   /* the same with an outbox, in frames */
    WAIT_WORKER,     /* delayq_wait for both queues */
    MOVER,           /* tick, poll(fds) */
    SHARER,          /* two handles on one connection: offers and takes */
    WATCHER,         /* peek, count, dead_peek */
    REDRIVER,        /* brings dead letters back */
    READER,          /* of a broadcast */
    PUSHER,          /* RPUSH into the ready list */
    JAVA,            /* Redisson: offers, transfers by its timer, BLPOP */
    PAUSER,          /* pauses and resumes */
    LONG             /* very many calls on one connection */
} actor_kind;

enum { HAND = 32 };

/* An item that was handed out, and is valid until the next take of its
 * handle. */
typedef struct in_hand {
    delayq *of;
    int id;
    const char *data;
    size_t len;
    uint64_t hash;
} in_hand;

typedef struct actor {
    int index;
    actor_kind kind;
    char name[24];
    uint64_t seed;
    chance chance;
    int dropped; /* by --drop */

    /* Fields of the plan: */
    int queue;
    int64_t gap_us;   /* between two offers, about */
    int64_t delay_ms; /* of an offer, at most */
    int64_t take_ms;  /* timeout of a take */
    int64_t work_us;  /* with an item */
    int64_t start_us; /* begins then */
    int machine;      /* number of its machine */
    int loses;        /* percent of the items it forgets */
    int large;        /* per mille of its payloads have up to 300 KB */
    int io_timeout_ms;
    int64_t max_wait_ms; /* 0: the default */

    /* Fields of the run: */
    machine *m;
    process *p;
    int life, life_then; /* how often it was started */
    int alive, frozen;   /* frozen: itself, or its machine */
    delayq *q, *q2;
    delayq *handles[2]; /* those that are open */
    int handle_count;
    void *outbox, *outbox2; /* the memory of q's, of q2's */
    void *image;            /* that of q's survives its lives; or NULL */
    int64_t drained_us[2];  /* when an offer, when a change was settled last */
    uint64_t turns;         /* of its loop, without a sleep */
    const char *call;       /* in a call of delayq, or NULL */
    int64_t call_us, call_bound_us;
    int64_t frozen_us, frozen_since_us; /* for so long so far */
    int failed_in_calm; /* calls that have failed long after the last fault */
    int64_t free_us;    /* has had nothing to do since; 0: it has */
    int64_t trouble_us; /* last told of a fault */
    int64_t outcome_us; /* last outcome of a call */
    /* counted, and as they were when the last window began */
    uint64_t logs, opens, connects, items, verbs, commands;
    uint64_t logs_then, opens_then, connects_then, items_then, verbs_then;
    uint64_t bytes_then;
    uint64_t steps_then, commands_then, idle_verbs_then, idle_connects_then;
    int idle_logs_in;
    int awake;        /* its handle is open */
    int wakes;        /* delayq_wake was called, and not yet told of */
    int64_t woken_us; /* its call was to end then */
    struct held *held;
    int held_count;
    in_hand hand[HAND];
    int hand_count;
    struct outbox_entry *offers, *changes; /* accepted, not yet settled */
    int offer_count, change_count;
    uint64_t offers_accepted, changes_accepted;
    uint64_t told_settled[2]; /* by the hook */
    unsigned replaces;        /* bits of the keys that it has replaced */
    unsigned cancels;         /* bits of the keys that it has cancelled */
    int cancelled;            /* items that delayq_cancel_key removed for it */
    uint64_t last_seen;       /* a reader's: place in the stream */
    int64_t elements, attempts, releases; /* counts of a LONG */
    void *more;                           /* JAVA's */
} actor;

typedef enum fault_kind {
    LATENCY,
    STALL,
    CUT,
    FORGET, /* one end forgets all connections */
    REFUSE,
    SILENT,
    FREEZE_SERVER,
    CRASH,    /* the server's process ends, and starts anew */
    POWER,    /* its machine does */
    FAILOVER, /* an older state, and READONLY for a while */
    LOADING,
    BUSY,
    MASTERDOWN,
    OOM,
    MISCONF,
    DENIED, /* ACL */
    SCRIPTS,
    FLUSH,
    KILL,        /* CLIENT KILL, once */
    KILL_LOOP,   /* again and again */
    KILL_PUBSUB, /* only those that are subscribed, again and again */
    MAX_CLIENTS,
    ACTOR_KILL,  /* and restart */
    ACTOR_CHURN, /* waiters are killed and started, many a second */
    ACTOR_FREEZE,
    ACTOR_WAKE, /* delayq_wake */
    ACTOR_CLOCK,
    SERVER_CLOCK,
    MOVE,   /* another machine is the master, and the name leads there */
    GARBLE, /* a reply is changed on its way */
    FAULT_KINDS
} fault_kind;

typedef struct fault {
    int index;
    fault_kind kind;
    int64_t at_us, lasts_us;
    int actor; /* or -1: all */
    int count; /* so many actors, beginning with this */
    int64_t amount;
    uint64_t seed;
    int dropped;
    int active;
    redis_image *image; /* what a crash will bring back, */
    int64_t image_us;   /* and from when */
} fault;

/* The weights of a seed: how often its programs do each thing. Before version 2
 * of the plan all seeds had the usual weights. */
typedef struct mix {
    int plain, message, many, change; /* a producer's next call: weights */
    int keyed, due, replace;          /* percent of the messages */
    int nack, backoff, release, bury, extend; /* percent of the items in hand */
    int cancel_key;               /* percent, where it is done at all */
    int reopen, flush, neighbour; /* percent */
    int ack_alone; /* percent of the items that ack_take does not ack */
    int size;      /* of most payloads, at most */
    int outbox_size;
    int poll_ms;
    actor_kind workers[5];
} mix;

typedef struct plan {
    uint64_t seed;
    mix mix;
    int queues;
    delayq_wire wire;
    int broadcast;
    int64_t lease_ms;
    int max_attempts;
    int64_t max_late_ms;
    int64_t backoff_ms, backoff_max_ms;
    int batch;
    int counters;     /* all handles count */
    int cancels;      /* 1: producers cancel keys */
    int clears;       /* 1: watchers clear their queue now and then */
    int meddles;      /* percent: how often a program calls something
                         else before its next take */
    int cancels_others; /* percent: how often a worker cancels an offer of
                           another program */
    int by_name;      /* the URL has the server's name, else its address */
    int tracks_reads; /* the server tracks keys as Redis 7.2 does */
    int evicts;       /* INFO: 1: of all keys; 2: of volatile keys */
    int hosts;        /* the URL has both servers; the second never listens */
    int reconnect_max_ms;
    int64_t latency_us, jitter_us;
    int pieces;
    int64_t faults_until_us, offers_until_us, end_us;
    int actor_count, fault_count, machine_count;
    actor actors[MAX_ACTORS];
    fault faults[MAX_FAULTS];
    machine *machines[MAX_ACTORS];
    unsigned kinds; /* bits of the kinds of fault */
} plan;

extern plan sim_plan;
/* Which choices a seed makes: see README.md. */
extern int plan_version;
extern machine *sim_server;
extern redis *sim_redis;

void plan_make(uint64_t seed, int64_t seconds);
void plan_tell(void);
const char *fault_name(fault_kind kind);
const char *actor_kind_name(actor_kind kind);
/* The slowest round trip that the network has now, without a fault. */
int64_t plan_round_trip_us(void);

/* --- the run ------------------------------------------------------------- */

/* Returns 0, or 1: something did not hold; check_failed says what. */
int sim_run_seed(uint64_t seed, int64_t seconds, const char *drop);
extern uint64_t sim_last_hash; /* of that run */

/* faults */
void faults_begin(void);
int faults_quiet(void);              /* none is active */
int64_t faults_connections_us(void); /* the last that touched connections
                                        ended then */
int64_t faults_other_us(void);
uint64_t faults_kills(void); /* how often all clients were killed since it was
                                asked last, in this or the last second */

/* --- the server ---------------------------------------------------------- */

void service_begin(void);
void service_end(void);
void service_open(void);   /* listen */
void service_shut(void);   /* connections are closed, connects refused */
void service_forget(void); /* the machine has crashed */
/* Another machine is the server from now on, with the same content. */
typedef enum service_end_of {
    OLD_CLOSES,  /* the former one: its connections are closed, */
    OLD_CRASHES, /* it is silent, */
    OLD_FOLLOWS  /* it goes on as a replica */
} service_end_of;
void service_move(service_end_of how);
machine *service_node(int i); /* NULL behind the last */
void service_freeze(int on);
int64_t service_now_us(void); /* by the server's clock */
actor *service_actor(client *by);
void service_kill(redis_clients which);
void service_garble(uint64_t how); /* the next reply of the server */
int service_is_open(void);         /* it is neither shut nor frozen */

/* --- actors -------------------------------------------------------------- */

void actor_start(actor *a);
void actor_kill(actor *a);
void actor_freeze(actor *a, int on);
void actor_wake(actor *a);
void actors_leave(void); /* they close their handles; checks for leaks */
void actors_end(void);
void java_lost(void); /* the server has dropped all clients */
int actor_takes(const actor *a);
int actor_can_take(const char *call); /* in it */

/* --- what must hold ------------------------------------------------------ */

typedef struct place {
    int set, ready, retry, dead, stream;
    int late; /* of the dead: by max_late_ms */
    int64_t score;
    uint64_t hash; /* of the element in the set or the retry list */
} place;

typedef struct item {
    int id, queue, owner, life, key;
    size_t len;
    int64_t delay_ms;
    int64_t offered_us;  /* the call began, */
    int64_t offered_ms;  /* by the server's clock */
    unsigned clock_sets; /* of the server's clock before */
    int by_outbox;
    int plain;    /* by delayq_offer */
    int attempts; /* leases since it was stored or lay dead */

    /* The item in the server: */
    place now, was;
    int touched;
    int stored;
    int64_t stored_us; /* the last time */
    uint64_t stored_seq;
    int64_t due_ms;        /* its first */
    int64_t due_true_us;   /* when the score now will have come, */
    int64_t due_former_us; /* and the one before it */
    int64_t ready_us;      /* when it came into a list; 0: it isn't in one */
    int64_t overdue_us;    /* seen to be due since then; 0: it isn't */
    int first_out;         /* was handed out, or left otherwise */
    int moved;             /* left the set, or its element changed */
    int handed, maybe, hand_actor, hand_life;
    int64_t hand_us;
    uint64_t hand_hash;
    int lost;         /* by the server, which has forgotten it */
    int disturbed;    /* by a crash: what was told of it before may be wrong */
    int hasty;        /* a Redisson whose clock is fast has moved it early */
    uint64_t intents; /* actors that may change it now, */
    uint64_t changed; /* have since they meant to, */
    uint64_t removed; /* the same, and it has left */
    uint64_t unknown; /* or may have, or still will */

    /* The results that the actors got: */
    int got;
    int forbidden; /* it must not be stored */
    int acked, cancelled;
    int64_t ended_us; /* when it was acked or cancelled */
} item;

extern char check_failed[64]; /* the invariant, or "" */
extern char check_text[512];
extern int64_t check_when;
extern const char *check_only; /* names, separated by commas; NULL: all */

void check_begin(void);
void check_end_of_run(void);
void check_free(void);
void check_fail(const char *invariant, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns 1 if the queue has so many items that producers should wait. */
int check_crowded(int queue);
item *check_new_item(actor *a, int queue, size_t len, int64_t delay_ms);
item *check_item(int id);
int check_item_count(void);
size_t check_payload(const item *it, char *bytes); /* writes it */
item *check_find(const void *bytes, size_t len);   /* by a payload's bytes */

/* An actor is about to change an item; then it got the result of the call. */
void check_intend(actor *a, item *it);
void check_settled(actor *a, item *it, delayq_status status, const char *verb);
void check_offered(actor *a, item *it, delayq_status status);
void check_key_cancelled(actor *a, int items, delayq_status status);
void check_paused(actor *a, int on, delayq_status status);
/* Before a delayq_clear, and after it with the number of removed items. */
void check_clears(actor *a);
void check_cleared(actor *a, delayq_status status, int64_t removed);
void check_got(actor *a, const delayq_item *item, int leases);
void check_ticket(actor *a, const char *text);
/* From now on the simulator's own commands, by redis_command, count as this
 * actor's. */
void check_act_as(actor *a);
void check_crash(int64_t since_us); /* the server has forgotten what it stored
                                      * since then */
void check_clock_set(void);
void check_woke(void); /* a waiter was killed, frozen or thawed */
void check_drains(actor *a, const char *verb, int64_t since_us);
void check_status(actor *a, const char *verb, delayq_status status);
void check_connected(actor *a);

/* --- the history for the judge of the rig --------------------------------- */

extern const char *history_folder; /* --history; NULL: none is written */
void history_begin(void);
void history_clock_set(void);
void history_new_item(const actor *a, const item *it);
void history_offered(const actor *a, const item *it, delayq_status status);
void history_intend(const actor *a, const item *it);
void history_settled(const actor *a, const item *it, delayq_status status,
                     const char *verb);
void history_got(const actor *a, const item *it, const delayq_item *got);
/* element: of a dead letter */
void history_final(const char *state, int id, const char *element, size_t len);
void history_end(void);

/* redis_hooks */
void check_executed(void *arg, client *by, int argc, const char **argv,
                    const size_t *lens);
void check_answered(void *arg, client *by, const char *command, int calls,
                    int64_t work);

#define TELL(...)                             \
    do {                                      \
        if (sim_tells) sim_tell(__VA_ARGS__); \
    } while (0)

static inline uint64_t bit_of(const actor *a) {
    return UINT64_C(1) << a->index;
}

#endif
