/*
 * The simulator of delayq. A seed determines a plan of actors and faults. The
 * actors use the header under test. Each change in the server is compared with
 * the results that the actors got.
 *
 *     scenario.c   makes the plan of a seed, and causes the faults
 *     service.c    the server on the network
 *     actors.c     the programs that use delayq, and a model of Redisson
 *     check.c      the invariants
 *     main.c       runs seeds, shrinks those that fail
 */
#ifndef SIM_H
#define SIM_H

#include "redis.h"
#include "world.h"
#ifndef SIM_API
#define SIM_API 3 /* the current API; 1 and 2 are those of 0.1 and 0.2 */
#endif
#if SIM_API == 1
#include "old/0.1/delayq.h"
#elif SIM_API == 2
#include "old/0.2/delayq.h"
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
#define LONG_QUEUE QUEUES /* queue of a LONG actor; its items are unchecked */
#define MAX_ACTORS 64     /* a uint64_t has one bit for each actor */
#define MAX_FAULTS 64

/* --- chance: dropping one actor must not change the others' numbers ------- */

typedef struct chance {
    uint64_t state;
} chance;

uint64_t chance_next(chance *c);
int64_t chance_between(chance *c, int64_t low, int64_t high);
int chance_percent(chance *c, int percent);

/* --- the plan -------------------------------------------------------------*/

typedef enum actor_kind {
    PRODUCER,        /* offers, one call at a time */
    OUTBOX_PRODUCER, /* offers in frames of 16 ms, with an outbox */
    WORKER,          /* take and ack_take with a timeout; ack */
    BATCH_WORKER,    /* take_many and ack_many */
    LOOP_WORKER,     /* take(0), tick, poll(fds) */
    OUTBOX_WORKER,   /* take(0), tick and offers with an outbox */
    WAIT_WORKER,     /* delayq_wait for both queues */
    MOVER,           /* tick, poll(fds) */
    SHARER,          /* two handles on one connection: offers and takes */
    WATCHER,         /* peek, count, dead_peek */
    REDRIVER,        /* redrives dead letters */
    READER,          /* reads a broadcast */
    PUSHER,          /* RPUSH into the ready list */
    JAVA,            /* Redisson: offers, transfers by its timer, BLPOP */
    PAUSER,          /* pauses and resumes its queue */
    LONG,            /* very many calls on one connection */
    STRANGER         /* is refused, since it has the wrong wire */
} actor_kind;

enum { HAND = 32 };

/* An item that was handed out. It is valid until its handle's next call that
 * takes, peeks or closes. */
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
    int dropped; /* 1: it does not take part in the run (see --drop) */

    /* Fields of the plan: */
    int queue;
    int64_t gap_us;   /* typical time between two offers */
    int64_t delay_ms; /* longest delay of an offer */
    int64_t take_ms;  /* timeout of a take */
    int64_t work_us;  /* typical time of the work on an item */
    int64_t start_us; /* time at which it starts */
    int machine;      /* number of its machine */
    int loses;        /* percentage of its items that it never acks */
    int large;        /* per mille of its payloads that have up to 300 KB */
    int io_timeout_ms;
    int64_t max_wait_ms; /* 0: the default */

    /* Fields of the run: */
    machine *m;
    process *p;
    int life;      /* how often this process has started */
    int life_then; /* `life` at the beginning of the current window */
    int alive, frozen;
    delayq *q, *q2;
    delayq *handles[2]; /* its open handles */
    int handle_count;
    void *outbox, *outbox2; /* memory of the outboxes of q and q2 */
    void *image;            /* an image that survives its process, or NULL */
    int64_t drained_us[2];  /* times of the last settled offer and change */
    uint64_t turns;         /* turns of its loop that did not sleep */
    /* at the beginning of the call */
    uint64_t ran_then, refused_then, ends_then;
    const char *call;       /* name of the delayq call that runs, or NULL */
    const char *last_call;
    int64_t call_us, call_bound_us;
    /* how long it was frozen in this call; time of its last freeze or thaw */
    int64_t frozen_us, frozen_since_us;
    int failed_in_calm; /* calls that failed long after the last fault */
    int64_t free_us;    /* start of its idle time; 0: it is not idle */
    int64_t trouble_us; /* time of the last failure that it noticed */
    int64_t outcome_us; /* time at which its last call returned */
    /* Counters; ..._then is the value at the beginning of a window. */
    uint64_t ran, refused; /* scripts */
    uint64_t logs, opens, connects, items, verbs, commands;
    uint64_t logs_then, opens_then, connects_then, items_then, verbs_then;
    uint64_t bytes_then;
    uint64_t steps_then, commands_then, idle_verbs_then, idle_connects_then;
    int idle_logs_in;
    int awake;        /* 1: its handle is open */
    delayq_status opened; /* the result of its last delayq_open */
    int wakes;        /* calls of delayq_wake that have not ended a call yet */
    int64_t woken_us; /* time of a wake that must end its call; 0: none */
    struct held *held;
    int held_count;
    in_hand hand[HAND];
    int hand_count;
    struct outbox_entry *offers, *changes; /* accepted ops, not yet settled */
    int offer_count, change_count;
    uint64_t offers_accepted, changes_accepted;
    uint64_t told_settled[2]; /* settled offers and changes, as reported */
    uint64_t drops;           /* dropped ops, as reported */
    /* An item whose lease ended before a take handed it out, or -1; then the
     * time, and the lines in the log when the item was leased. */
    int unseen;
    int64_t unseen_us;
    uint64_t unseen_logs;
    unsigned replaces;        /* bits of the keys that it has replaced */
    unsigned cancels;         /* bits of the keys that it has cancelled */
    int cancelled;            /* items that delayq_cancel_key removed for it */
    uint64_t last_seen;       /* not used */
    int64_t elements, attempts, releases; /* counters of a LONG actor */
    void *more;                           /* a JAVA actor's struct java */
} actor;

typedef enum fault_kind {
    LATENCY,
    STALL,
    CUT,
    FORGET, /* one or both ends forget connections */
    REFUSE,
    SILENT,
    FREEZE_SERVER,
    CRASH,    /* the server's process ends, and is started again */
    POWER,    /* the server's machine loses its power, and boots */
    FAILOVER, /* the server is READONLY, then gets an older state */
    LOADING,
    BUSY,
    MASTERDOWN,
    OOM,
    MISCONF,
    DENIED, /* an ACL denies a command */
    SCRIPTS,
    FLUSH,
    KILL,        /* CLIENT KILL, once */
    KILL_LOOP,   /* CLIENT KILL again and again */
    KILL_PUBSUB, /* CLIENT KILL of the subscribers, again and again */
    MAX_CLIENTS,
    ACTOR_KILL,  /* actors are killed, and restarted when the fault ends */
    ACTOR_CHURN, /* many times a second a WORKER is killed and restarted */
    ACTOR_FREEZE,
    ACTOR_WAKE, /* delayq_wake */
    ACTOR_CLOCK,
    SERVER_CLOCK,
    MOVE,   /* another machine is master; later the handles can find it */
    GARBLE, /* a reply is changed on its way */
    LIMIT,  /* the server closes connections that send a long payload */
    FAULT_KINDS
} fault_kind;

typedef struct fault {
    int index;
    fault_kind kind;
    int64_t at_us, lasts_us;
    int actor; /* number of the first actor that it hits; -1: all */
    int count; /* number of actors that a fault of actors hits */
    int64_t amount;
    uint64_t seed;
    int dropped;
    int active;
    int slot_moves;     /* 1: a MOVE that moves a cluster's slot */
    redis_image *image; /* the state to which a crash returns the server */
    int64_t image_us;   /* time at which the image was saved */
} fault;

/* How often the programs of a seed do each thing. Before version 2 of the plan
 * these values were the same in all seeds. */
typedef struct mix {
    int plain, message, many, change; /* weights of a producer's next call */
    int keyed, due, replace;          /* percentages of the messages */
    int nack, backoff, release, bury, extend; /* percentages of taken items */
    int cancel_key;               /* percentage of calls, if plan.cancels */
    int reopen, flush, neighbour; /* percentages of takes, turns, programs */
    int ack_alone; /* percentage of items acked by ack, not by ack_take */
    int size;      /* largest size of a usual payload, in bytes */
    int outbox_size;
    int poll_ms;
    actor_kind workers[5];
} mix;

/* How the handles find the master. */
typedef enum finding {
    BY_ADDRESS,
    BY_NAME, /* its host name, which resolves to another machine after a MOVE */
    BY_SENTINEL,
    BY_CLUSTER /* a node, which redirects them */
} finding;

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
    int counters;       /* 1: all handles have options.counters */
    int cancels;        /* 1: producers cancel keys */
    int clears;         /* 1: watchers sometimes clear their queue */
    int meddles;        /* percentage of taken items after which a program calls
                           another function before its next take */
    int cancels_others; /* percentage of taken items after which a worker
                           cancels an offer of another program */
    finding finds;
    int tracks_reads;   /* 1: the server tracks keys as Redis 7.2 does */
    int evicts;         /* policy in INFO: 1 allkeys-lru, 2 volatile-ttl */
    int hosts;          /* 1: the URL also has a server that never listens */
    int silent;         /* servers in the URL that never reply */
    int waits;          /* 1: workers with an outbox also call delayq_wait */
    int repeats;        /* percentage of nacks and acks that are repeated */
    int reopens;        /* per mille of the turns of a program after which it
                           opens its second handle again */
    int takes;          /* most takes in a row of a worker with an outbox that
                           may wait */
    int bursts;         /* most items of a burst of offers; 0: no bursts */
    int64_t frame_us;   /* time of a frame of a program with an outbox */
    int reconnect_max_ms;
    int64_t latency_us, jitter_us;
    int pieces;
    int64_t faults_until_us, offers_until_us, end_us;
    int actor_count, fault_count, machine_count;
    actor actors[MAX_ACTORS];
    fault faults[MAX_FAULTS];
    machine *machines[MAX_ACTORS];
    unsigned kinds; /* bits: the kinds of its faults */
} plan;

extern plan sim_plan;
/* The version of the plans (--plan): see README.md. */
extern int plan_version;
extern machine *sim_server;
extern redis *sim_redis;

void plan_make(uint64_t seed, int64_t seconds);
void plan_tell(void);
const char *fault_name(fault_kind kind);
const char *actor_kind_name(actor_kind kind);
/* Returns the longest time of a round trip without a fault. */
int64_t plan_round_trip_us(void);
int64_t plan_search_us(void);
int plan_has_large(void); /* returns 1 if an actor offers large payloads */
int plan_has(actor_kind kind); /* returns the number of such actors */

/* --- the run ------------------------------------------------------------- */

/* Returns 1 if an invariant failed (check_failed names it), 0 otherwise. */
int sim_run_seed(uint64_t seed, int64_t seconds, const char *drop);
extern uint64_t sim_last_hash; /* hash of the last run */

/* faults */
void faults_begin(void);
void faults_disconnect(void); /* a connection ends now */
int faults_quiet(void); /* returns 1 unless the server or a line has a fault */
/* Returns the end of the last fault that affected connections. */
int64_t faults_connections_us(void);
int64_t faults_other_us(void); /* returns the end of the last other fault */
/* Returns how often KILL_LOOP struck in the current and the previous second. */
uint64_t faults_kills(void);

/* --- the server ---------------------------------------------------------- */

void service_begin(void);
void service_end(void);
void service_open(void);   /* listen */
void service_shut(void);   /* close all connections, and refuse new ones */
void service_forget(void); /* service_shut, after machine_crash */
typedef enum service_end_of {
    OLD_CLOSES,  /* the former server closes its connections */
    OLD_CRASHES, /* the former server falls silent */
    OLD_FOLLOWS  /* the former server goes on as a replica */
} service_end_of;
/* Make another machine the server. It has the same content. */
void service_move(service_end_of how);
void service_migrate(void); /* the cluster's slot begins to move */
/* After a move: let the name, the sentinel or the cluster's nodes say where the
 * master is. */
void service_name_master(void);
machine *service_node(int i); /* returns NULL if i is too large */
void service_freeze(int on);
int64_t service_now_us(void); /* returns the time of the server's clock */
actor *service_actor(client *by);
void service_kill(redis_clients which);
void service_garble(uint64_t how); /* change the server's next reply */
int service_is_open(void); /* returns 1 if it is neither shut nor frozen */

/* --- actors -------------------------------------------------------------- */

void actor_start(actor *a);
void actor_kill(actor *a);
void actor_freeze(actor *a, int on);
void actor_wake(actor *a);
void actors_leave(void); /* close all handles, and check for leaks */
void actors_end(void);
void java_lost(void); /* reconnect after the server has dropped all clients */
int actor_takes(const actor *a);
int actor_can_take(const char *call); /* returns 1 if `call` may take items */

/* --- what must hold ------------------------------------------------------ */

typedef struct place {
    int set, ready, retry, dead, stream;
    int late; /* dead letters whose reason is "late" */
    int64_t score;
    uint64_t hash; /* hash of its element in the set or the retry list */
} place;

typedef struct item {
    int id, queue, owner, life, key;
    size_t len;
    int64_t delay_ms;
    int64_t offered_us;  /* time at which its offer began */
    int64_t offered_ms;  /* that time by the server's clock */
    unsigned clock_sets; /* how often the server's clock had been set then */
    int by_outbox;
    int plain;    /* 1: it was offered by delayq_offer */
    int attempts; /* leases since it was stored or became a dead letter */
    int told_attempt; /* the last attempt that a program was told */

    /* The item in the server: */
    place now, was;
    int touched;
    int stored;
    int64_t stored_us; /* time at which it was last stored */
    uint64_t stored_seq;
    int64_t due_ms;        /* its first due time, or 0 */
    int64_t due_true_us;   /* true time at which it is due */
    int64_t due_former_us; /* true time at which it was due before a change */
    int64_t ready_us;      /* time of its move to a list; 0: not in a list */
    int64_t overdue_us;    /* when it became overdue; 0: it is not overdue */
    int first_out;         /* 1: it was handed out or removed */
    int moved;             /* number of its moves and changes */
    int handed, maybe, hand_actor, hand_life;
    int64_t hand_us;
    uint64_t hand_hash, hand_logs;
    int hand_got; /* `got` when it was handed out */
    int popped;   /* 1: it was passed to a client that was blocked */
    int lost;         /* 1: the server has lost it */
    int disturbed;    /* 1: earlier results may not hold now (a crash) */
    int hasty;        /* 1: a Redisson with a fast clock has moved it early */
    uint64_t intents; /* bits: actors that may change it now */
    uint64_t changed; /* bits: actors whose call has changed it */
    uint64_t removed; /* bits: actors whose call has removed it */
    uint64_t unknown; /* bits: actors whose call has an unknown outcome */

    /* The results that the actors got: */
    int got;
    int forbidden; /* 1: it must not be stored */
    int acked, cancelled;
    int64_t ended_us; /* time at which it was acked or cancelled */
} item;

extern char check_failed[64]; /* the failed invariant, or "" */
extern char check_text[512];
extern int64_t check_when;
extern const char *check_only; /* invariants to check: "a,b"; NULL: all */

void check_begin(void);
void check_end_of_run(void);
void check_free(void);
void check_fail(const char *invariant, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Returns 1 if the queue has so many items that producers should pause. */
int check_crowded(int queue);
item *check_new_item(actor *a, int queue, size_t len, int64_t delay_ms);
item *check_item(int id);
int check_item_count(void);
size_t check_payload(const item *it, char *bytes); /* write the payload */
item *check_find(const void *bytes, size_t len);   /* find a payload's item */

/* Call check_intend before a call that changes an item, and, with the result,
 * the function below for this kind of call after it. */
void check_intend(actor *a, item *it);
void check_settled(actor *a, item *it, delayq_status status, const char *verb);
/* The same if it is not known whether the call has changed the item. */
void check_left(actor *a, item *it, const char *verb);
void check_offered(actor *a, item *it, delayq_status status);
/* Check an op that an outbox has dropped: an offer, if `verb` is NULL. */
void check_dropped(actor *a, const item *it, const char *verb);
void check_key_cancelled(actor *a, int items, delayq_status status);
void check_paused(actor *a, int on, delayq_status status);
/* Call check_clears before delayq_clear, and check_cleared after it. */
void check_clears(actor *a);
void check_cleared(actor *a, delayq_status status, int64_t removed);
void check_got(actor *a, const delayq_item *item, int leases);
void check_ticket(actor *a, const char *text);
/* From now on commands by redis_command count as commands of this actor. */
void check_act_as(actor *a);
/* Call this if the server has lost everything that it stored since since_us. */
void check_crash(int64_t since_us);
void check_clock_set(void);
void check_woke(void); /* call this if a waiter was killed, frozen or thawed */
void check_drains(actor *a, const char *verb, int64_t since_us);
/* Check an op that is not settled: `ahead` ops were accepted before it, and not
 * settled, at at_us. */
void check_rate(actor *a, const char *verb, int64_t at_us, int ahead);
int64_t check_mirror_empty_us(int queue); /* the last time at which it was */
void check_status(actor *a, const char *verb, delayq_status status);
void check_unknown(const actor *a, delayq_status status);
void check_connected(actor *a);

/* --- the history for the judge of the rig --------------------------------- */

extern const char *history_folder; /* --history; NULL: write no history */
void history_begin(void);
void history_clock_set(void);
void history_new_item(const actor *a, const item *it);
void history_offered(const actor *a, const item *it, delayq_status status);
void history_intend(const actor *a, const item *it);
void history_settled(const actor *a, const item *it, delayq_status status,
                     const char *verb);
void history_got(const actor *a, const item *it, const delayq_item *got);
/* `element` is that of a dead letter, or NULL. */
void history_final(const char *state, int id, const char *element, size_t len);
void history_end(void);

/* The hooks of the server: see redis_hooks. */
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
