/*
 * The world of the simulator: one thread, one virtual clock, one source of
 * random numbers. The same seed gives the same run.
 *
 * A machine has an address, a clock and processes. A process is a coroutine
 * that runs the code under test unchanged, because the linker replaces its
 * system calls (sys.c). While a call waits, other processes run. A server is
 * not a process: the world calls its functions with the bytes that arrive.
 *
 * Times are int64_t microseconds of true time, unless a comment names a clock.
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
#define SIM_EPOCH_US (INT64_C(1700000000) * SIM_SECOND) /* when sim_now() = 0 */

/* Begin a new, empty world. Everything of the old one is freed. */
void sim_begin(uint64_t seed);
void sim_end(void);

int64_t sim_now(void);
void sim_at(int64_t us, void (*call)(void *arg), void *arg);
/* Run until until_us, or until sim_stop. Events at the same time run in the
 * order in which they were made. */
void sim_run(int64_t until_us);
void sim_stop(void);

/* Print a line of the story, with the time, if sim_tells is set. */
extern int sim_tells;
void sim_tell(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The story also shows the system calls of the process with this name. */
extern const char *sim_traced;

/* Returns the hash of all events so far: which bytes arrived where, and when.
 * Two runs of a seed end with the same hash, with or without a story. */
uint64_t sim_hash(void);
void sim_hash_add(const void *bytes, size_t len);

/* --- machines and processes ---------------------------------------------- */

typedef struct machine machine;
typedef struct process process;

machine *machine_new(const char *name, const char *address);
const char *machine_name(const machine *m);
/* Let getaddrinfo find the machine by another name, too. A world has only one
 * such name, so the last call decides which machine it names. */
void machine_alias(const char *name, const machine *m);

int64_t machine_realtime(const machine *m);        /* its CLOCK_REALTIME, us */
int64_t machine_monotonic(const machine *m);       /* its CLOCK_MONOTONIC, us */
void machine_set_clock(machine *m, int64_t by_us); /* CLOCK_REALTIME jumps */
void machine_drift(machine *m, int ppm);           /* both clocks, from now */

/* Freeze a machine. Its processes do not run, and arriving bytes wait. Other
 * machines do not notice this at once, since its kernel still runs: connects
 * succeed while the backlog has room, and writes until the buffers are full. */
void machine_freeze(machine *m);
void machine_thaw(machine *m);
/* Cut a machine's power. Its processes end, and its connections vanish without
 * a sign. Until machine_boot, connects to it get no answer. After the boot,
 * bytes for an unknown connection are answered by a reset. */
void machine_crash(machine *m);
void machine_boot(machine *m);

/* Start a process. Its main runs as a coroutine on a stack of 256 KB with a
 * guard page. If the process is killed, its allocations leak. */
process *process_start(machine *m, const char *name, void (*main)(void *arg),
                       void *arg);
/* Kill a process as kill -9 does. Its connections are closed, or reset if they
 * have unread bytes. An unblocked SIGPIPE has the same effect. */
void process_kill(process *p);
void process_freeze(process *p);
void process_thaw(process *p);
int process_ended(const process *p); /* returned or killed */
process *process_self(void);         /* NULL outside of all processes */
const char *process_name(const process *p);

/* Called in a process: */
void process_sleep(int64_t us);
/* Called if a process polls many times, and neither sleeps nor moves a byte. */
extern void (*process_spins)(const char *name);
void process_spend(int64_t us); /* compute, while other processes run */
/* Return the number of waits that have ended, and of system calls. Reading the
 * clock does not count as a call, but takes a microsecond, so that a loop that
 * only reads the clock can't stop the world. */
uint64_t process_steps(const process *p);
uint64_t process_calls(const process *p);
/* Returns the number of bytes that the process has read and written. */
uint64_t process_bytes(const process *p);
/* Returns how many of its connections have ended, or were closed by it. */
uint64_t process_ends(const process *p);

/* Return the number of blocks that hiredis has allocated for a process and not
 * freed (memory.c), and of the open descriptors of the process. */
size_t process_blocks(const process *p);
int process_files(const process *p);

/* Call `call` at once, as another thread of `p` would, for example delayq_wake.
 * Events and other processes use this. `call` must not wait. */
void process_call(process *p, void (*call)(void *arg), void *arg);
/* Call `call` before the n-th system call of the process from now (1: the next
 * one). The function runs outside of all processes, so it may kill or freeze
 * the process, or change the network, between two consecutive steps of the
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
    int64_t latency_us, jitter_us; /* a piece needs latency + (0 to jitter) */
    int stalled;                   /* 1: the line holds all bytes back;
                                      2, 3: only those of the connections
                                      with an even or an odd number */
    int pieces;                    /* percentage of the writes that are split
                                      into pieces, at any byte */
} route;

route *net_route(machine *from, machine *to); /* the caller may change it */
/* Deliver the bytes that were held back. Set route.stalled to 0 first. */
void net_heal(machine *a, machine *b);
/* End all connections between the two machines, most with a reset, some with a
 * FIN. A part of the bytes in flight, of random length, still arrives. */
void net_cut(machine *a, machine *b);
/* Like net_cut, except that only the end `told` gets a reset. The other end
 * keeps its connections until it sends something, which is answered by a reset.
 * If told is NULL, neither end gets a reset, and all bytes vanish until
 * net_tell_truth. If half is set, this hits only every second connection. */
void net_forget(machine *a, machine *b, machine *told, int half);
/* Reset both ends of each connection that one end has forgotten. */
void net_tell_truth(void);
/* The result of connects from one machine to another. */
typedef enum net_connects {
    NET_CONNECTS,
    NET_REFUSES,
    NET_SILENT /* no answer; pending connects go on when this ends */
} net_connects;
void net_connects_are(machine *from, machine *to, net_connects how);

/* --- servers ------------------------------------------------------------- */

typedef struct net_link net_link; /* the server's side of a connection */

typedef struct net_service {
    /* Returns the pointer that the other functions get as `session`. */
    void *(*accepted)(void *service, net_link *l);
    void (*received)(void *session, const char *bytes, size_t len);
    /* Called if the other side or the network has closed the connection. */
    void (*closed)(void *session);
} net_service;

/* Run a service on a port until net_close or a crash of the machine, which do
 * not call `closed`. The three functions of the service run outside of all
 * processes, so process_self returns NULL. */
void net_listen(machine *m, int port, const net_service *how, void *service);
void net_close(machine *m, int port); /* refuse connects, and close all links */
void link_write(net_link *l, const char *bytes, size_t len);
/* Close the link. Written bytes still arrive, and `closed` isn't called. */
void link_close(net_link *l);
machine *link_peer(const net_link *l);    /* the machine at the other end */
process *link_process(const net_link *l); /* the process at the other end */

#endif
