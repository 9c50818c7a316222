/*
 * The world of the simulator: one thread, one virtual clock, one source of
 * chance. The same seed gives the same run.
 *
 * A machine has an address, a clock and processes. A process is a coroutine
 * that runs the code under test, unchanged: the linker replaces its calls to
 * the system (sys.c), and those that wait give way to the world. A server is
 * no process; it is called with what arrives.
 *
 * Times are int64_t microseconds, true ones unless a comment says whose.
 */
#ifndef SIM_WORLD_H
#define SIM_WORLD_H

#include <stddef.h>
#include <stdint.h>

/* --- chance ---------------------------------------------------------------*/

uint64_t sim_random(void);
int64_t sim_between(int64_t low, int64_t high); /* both included */
int sim_chance(int percent);

/* --- time ---------------------------------------------------------------- */

#define SIM_SECOND INT64_C(1000000)
#define SIM_EPOCH_US (INT64_C(1700000000) * SIM_SECOND) /* when now is 0 */

/* A new world, empty: everything of the one before is freed. */
void sim_begin(uint64_t seed);
void sim_end(void);

int64_t sim_now(void);
void sim_at(int64_t us, void (*call)(void *arg), void *arg);
/* Run until then, or until sim_stop; events at the same time come in the order
 * in which they were made. */
void sim_run(int64_t until_us);
void sim_stop(void);

/* The story: a line with the time in it, printed if sim_tells is set. */
extern int sim_tells;
void sim_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The name of a process: the story has its calls of the system, too. */
extern const char *sim_traced;

/* The hash of all that happened so far: which bytes came to whom, and when. Two
 * runs of a seed end with the same, told as a story or not. */
uint64_t sim_hash(void);
void sim_hash_add(const void *bytes, size_t len);

/* --- machines and processes ---------------------------------------------- */

typedef struct machine machine;
typedef struct process process;

machine *machine_new(const char *name, const char *address);
const char *machine_name(const machine *m);

int64_t machine_realtime(const machine *m);        /* its CLOCK_REALTIME, us */
int64_t machine_monotonic(const machine *m);       /* its CLOCK_MONOTONIC, us */
void machine_set_clock(machine *m, int64_t by_us); /* CLOCK_REALTIME jumps */
void machine_drift(machine *m, int ppm);           /* both clocks, from now */

/* Frozen: no process of it runs, and what arrives waits; a server on it reads
 * nothing. Nobody is told: the kernel goes on, connects succeed as long as the
 * backlog has room, and writes until the buffers are full. */
void machine_freeze(machine *m);
void machine_thaw(machine *m);
/* The power fails: its processes end, its connections vanish without a word.
 * Until machine_boot connects to it are not answered; after that, bytes for a
 * connection that it no longer knows are answered by a reset. */
void machine_crash(machine *m);
void machine_boot(machine *m);

/* Its main runs as a coroutine, with 256 KB of stack, of which a guard page
 * ends. What it allocates is its own business; a killed one leaks it. */
process *process_start(machine *m, const char *name, void (*main)(void *arg),
                       void *arg);
/* kill -9: its connections are closed; those of which it has not read all are
 * reset. SIGPIPE kills, too, where it isn't blocked. */
void process_kill(process *p);
void process_freeze(process *p);
void process_thaw(process *p);
int process_ended(const process *p); /* returned or killed */
process *process_self(void);         /* NULL outside of all */
const char *process_name(const process *p);

/* Called in a process: */
void process_sleep(int64_t us); /* by true time */
void process_spend(int64_t us); /* computing: others run meanwhile */
/* Waits that ended; calls of the system. A loop that does nothing but ask for
 * the time costs time too, a microsecond per call, so that it can't stop the
 * world; that is no call of the system. */
uint64_t process_steps(const process *p);
uint64_t process_calls(const process *p);

/* Call this as another thread of the process would, at once; it must not wait.
 * From an event or from another process; for delayq_wake, for example. */
void process_call(process *p, void (*call)(void *arg), void *arg);
/* Before its n-th call of the system from now, 1 is the next, this is called,
 * by nobody: it may kill or freeze the process or do something to the network,
 * between two steps that the process takes one right after the other. One at a
 * time; NULL: none any more. */
void process_at_call(process *p, uint64_t n, void (*call)(void *arg),
                     void *arg);
/* A signal with a handler that does nothing: the wait in which it is, or its
 * next, ends with EINTR. */
void process_signal(process *p);

/* --- the network --------------------------------------------------------- */

/* What stands between two machines, in one direction. Each direction of a
 * connection keeps its bytes in order. */
typedef struct route {
    int64_t latency_us, jitter_us; /* of each piece: latency + 0 to jitter */
    int stalled;                   /* nothing passes; it arrives afterwards */
    int pieces;                    /* percent of the writes that are torn into
                                      pieces, at any byte */
} route;

route *net_route(machine *from, machine *to); /* change it as you like */
/* What was stalled goes on by itself when route.stalled is 0 again: call this
 * after clearing it. */
void net_heal(machine *a, machine *b);
/* All connections between the two are reset; of what is under way in either
 * direction a part of any length arrives before that. */
void net_cut(machine *a, machine *b);
/* The same, but only `told` learns of it; the other believes in them until it
 * sends something, which is answered by a reset. With told NULL neither does:
 * what they send vanishes, until net_tell_truth. half: every other one. */
void net_forget(machine *a, machine *b, machine *told, int half);
/* Connections that an end has forgotten are reset at both ends. */
void net_tell_truth(void);
/* How connects from a to b end, from now on. */
typedef enum net_connects {
    NET_CONNECTS,
    NET_REFUSES,
    NET_SILENT /* no answer; what was begun goes on when this is over */
} net_connects;
void net_connects_are(machine *from, machine *to, net_connects how);

/* --- servers ------------------------------------------------------------- */

typedef struct net_link net_link; /* a connection's end at the server */

typedef struct net_service {
    /* Returns what is handed to the others as `session`. */
    void *(*accepted)(void *service, net_link *l);
    void (*received)(void *session, const char *bytes, size_t len);
    void (*closed)(void *session); /* by the other side, or the network */
} net_service;

/* One port, one service, until net_close or a crash of the machine: these call
 * no `closed`. The three functions are called in nobody's name: process_self is
 * NULL. */
void net_listen(machine *m, int port, const net_service *how, void *service);
void net_close(machine *m, int port); /* connects are refused, links closed */
void link_write(net_link *l, const char *bytes, size_t len);
/* What was written arrives; `closed` isn't called. */
void link_close(net_link *l);
machine *link_peer(const net_link *l);    /* the machine at the other end */
process *link_process(const net_link *l); /* whose connection it is */

#endif
