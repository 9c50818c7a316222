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

/* Begin a new, empty world. Everything of the old one is freed. */
void sim_begin(uint64_t seed);
void sim_end(void);

int64_t sim_now(void);
void sim_at(int64_t us, void (*call)(void *arg), void *arg);
/* Run until then, or until sim_stop; events at the same time come in the order
 * in which they were made. */
void sim_run(int64_t until_us);
void sim_stop(void);

/* The story: lines with the time. They are printed if sim_tells is set. */
extern int sim_tells;
void sim_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The name of a process whose system calls the story shows, too. */
extern const char *sim_traced;

/* The hash of all events so far: which bytes came to whom, and when. Two runs
 * of a seed end with the same hash, with or without a story. */
uint64_t sim_hash(void);
void sim_hash_add(const void *bytes, size_t len);

/* --- machines and processes ---------------------------------------------- */

typedef struct machine machine;
typedef struct process process;

machine *machine_new(const char *name, const char *address);
const char *machine_name(const machine *m);
/* Another name by which getaddrinfo finds a machine. From now on it names this
 * one. There is one such name in a world. */
void machine_alias(const char *name, const machine *m);

int64_t machine_realtime(const machine *m);        /* its CLOCK_REALTIME, us */
int64_t machine_monotonic(const machine *m);       /* its CLOCK_MONOTONIC, us */
void machine_set_clock(machine *m, int64_t by_us); /* CLOCK_REALTIME jumps */
void machine_drift(machine *m, int ppm);           /* both clocks, from now */

/* Freeze a machine. Its processes do not run, and arriving bytes wait. Nobody
 * is told. The kernel goes on: connects succeed as long as the backlog has
 * room, and writes until the buffers are full. */
void machine_freeze(machine *m);
void machine_thaw(machine *m);
/* Cut a machine's power. Its processes end, and its connections vanish without
 * a sign. Until machine_boot, connects to it get no answer. After that, bytes
 * for an unknown connection are answered by a reset. */
void machine_crash(machine *m);
void machine_boot(machine *m);

/* Its main runs as a coroutine with 256 KB of stack, which ends at a guard
 * page. Its allocations are its own: if it is killed, they leak. */
process *process_start(machine *m, const char *name, void (*main)(void *arg),
                       void *arg);
/* kill -9. Its connections are closed; those with unread bytes are reset.
 * SIGPIPE also kills a process unless it is blocked. */
void process_kill(process *p);
void process_freeze(process *p);
void process_thaw(process *p);
int process_ended(const process *p); /* returned or killed */
process *process_self(void);         /* NULL outside of all */
const char *process_name(const process *p);

/* Called in a process: */
void process_sleep(int64_t us); /* by true time */
/* A process polls again and again, and neither sleeps nor moves a byte. */
extern void (*process_spins)(const char *name);
void process_spend(int64_t us); /* computing: others run meanwhile */
/* The numbers of waits that have ended, and of system calls. Reading the clock
 * also takes a microsecond, so that a loop that only reads it can't stop the
 * world; that does not count as a system call. */
uint64_t process_steps(const process *p);
uint64_t process_calls(const process *p);
/* The number of bytes that it has read and written. */
uint64_t process_bytes(const process *p);

/* The numbers of blocks that hiredis has allocated in a process's name and not
 * freed (memory.c), and of open descriptors. */
size_t process_blocks(const process *p);
int process_files(const process *p);

/* Call `call` at once, as another thread of the process would; it must not
 * wait. For delayq_wake, for example, from an event or from another process. */
void process_call(process *p, void (*call)(void *arg), void *arg);
/* Call `call` before the process' n-th system call from now (1: the next one).
 * The function runs outside of all processes: it may kill or freeze the
 * process, or change the network, between two neighbouring steps of the
 * process. There is one such function at a time; NULL removes it. */
void process_at_call(process *p, uint64_t n, void (*call)(void *arg),
                     void *arg);
/* Send a signal whose handler does nothing: the current wait of the process, or
 * its next one, ends with EINTR. */
void process_signal(process *p);

/* --- the network --------------------------------------------------------- */

/* The line from one machine to another. Each direction of a connection keeps
 * its bytes in order. */
typedef struct route {
    int64_t latency_us, jitter_us; /* of each piece: latency + 0 to jitter */
    int stalled;                   /* 1: the line holds all bytes back;
                                      2, 3: only those of the connections
                                      with an even or an odd number */
    int pieces;                    /* percent of the writes that are torn into
                                      pieces, at any byte */
} route;

route *net_route(machine *from, machine *to); /* change it as you like */
/* Deliver the bytes that were held back. Call this after setting route.stalled
 * to 0. */
void net_heal(machine *a, machine *b);
/* Reset all connections between the two. Before that, a part of any length of
 * the bytes in flight arrives. */
void net_cut(machine *a, machine *b);
/* The same, but only `told` learns of it. The other end keeps its connections
 * until it sends something, which is answered by a reset. If told is NULL
 * neither end learns of it, and all their bytes vanish until net_tell_truth.
 * half: only every second connection. */
void net_forget(machine *a, machine *b, machine *told, int half);
/* Connections that an end has forgotten are reset at both ends. */
void net_tell_truth(void);
/* How connects from a to b end, from now on. */
typedef enum net_connects {
    NET_CONNECTS,
    NET_REFUSES,
    NET_SILENT /* no answer; connects that have begun go on when this is over */
} net_connects;
void net_connects_are(machine *from, machine *to, net_connects how);

/* --- servers ------------------------------------------------------------- */

typedef struct net_link net_link; /* a connection's end at the server */

typedef struct net_service {
    /* Returns the pointer that the other functions get as `session`. */
    void *(*accepted)(void *service, net_link *l);
    void (*received)(void *session, const char *bytes, size_t len);
    /* closed by the other side or by the network */
    void (*closed)(void *session);
} net_service;

/* There is one service on one port, until net_close or a crash of the machine;
 * these do not call `closed`. The three functions run outside of all processes:
 * process_self is NULL. */
void net_listen(machine *m, int port, const net_service *how, void *service);
void net_close(machine *m, int port); /* connects are refused, links closed */
void link_write(net_link *l, const char *bytes, size_t len);
/* Close the link. Bytes that were written arrive; `closed` isn't called. */
void link_close(net_link *l);
machine *link_peer(const net_link *l);    /* the machine at the other end */
process *link_process(const net_link *l); /* whose connection it is */

#endif
