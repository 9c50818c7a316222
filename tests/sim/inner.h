/*
 * Declarations that only world.c, net.c and sys.c share.
 */
#ifndef SIM_INNER_H
#define SIM_INNER_H

#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include "world.h"

#define SIM_NEVER INT64_MAX

/* --- events -------------------------------------------------------------- */

/* An event that is embedded in its owner. It can be moved and cancelled. */
typedef struct event {
    void (*call)(void *arg);
    void *arg;
    size_t place; /* its index in the heap, from 1; 0: it is not in the heap */
} event;

/* Schedule the event, or move it to another time. */
void event_set(event *e, int64_t at);
void event_cancel(event *e);

/* --- machines ------------------------------------------------------------ */

typedef struct net_path { /* the line from one machine to another */
    route route;
    net_connects connects;
    /* These fields are not used. */
    int64_t silent_us, stalled_us;
} net_path;

struct machine {
    char name[64];
    int index, frozen, down;
    struct in_addr v4;
    struct in6_addr v6;
    int is_v6;
    int ppm;
    int64_t since_us;     /* true time at which the drift was set */
    int64_t monotonic_us; /* its CLOCK_MONOTONIC at since_us */
    int64_t offset_us;    /* CLOCK_REALTIME - CLOCK_MONOTONIC */
    net_path **paths;     /* the paths to other machines, by index */
    int path_count;
    machine *next;
};

extern machine *sim_machines; /* in the order in which they were made */

/* Returns the true time in which the machine's clock advances by own_us. */
int64_t machine_true_us(const machine *m, int64_t own_us);

/* --- processes ----------------------------------------------------------- */

struct conn;
struct pipe_buffer;

typedef enum file_kind {
    FILE_NONE,
    FILE_SOCKET,
    FILE_PIPE_IN,  /* the end that is read */
    FILE_PIPE_OUT, /* the end that is written */
    FILE_RANDOM
} file_kind;

typedef struct file {
    file_kind kind;
    int nonblocking, closes_on_exec;
    int connected;               /* connect has succeeded */
    int64_t receive_us, send_us; /* SO_RCVTIMEO, SO_SNDTIMEO; 0: none */
    struct conn *conn;           /* NULL: connect wasn't called yet */
    struct pipe_buffer *pipe;
} file;

#define SIM_FIRST_FD 1000 /* lower descriptors belong to the real process */
#define SIM_MAX_FILES 200

struct process {
    machine *machine;
    char name[64];
    int pid;
    void (*main)(void *arg);
    void *arg;
    struct stack *stack;
    event resume;
    int started, ended, frozen, resume_due;
    int borrowed;           /* 1: process_call runs a function for it */
    int interrupted;        /* 1: a signal ends its next wait with EINTR */
    struct pollfd *watched; /* it sleeps until one of these is ready */
    nfds_t watched_count;
    uint64_t steps, calls, bytes, ends, chance;
    int idle_calls; /* polls and reads since it last slept or moved a byte */
    uint64_t trap_call; /* number of the system call before which trap runs */
    void (*trap)(void *arg);
    void *trap_arg;
    int sigpipe_blocked, sigpipe_pending;
    file files[SIM_MAX_FILES];
    int file_count;       /* the files from this index on are free */
    struct block *blocks; /* its blocks of memory: see memory.c */
    size_t block_count;
    process *next;
};

/* Make a system call last `us`. Other processes may run before it returns. */
void process_charge(int64_t us);
void process_called(int64_t us); /* process_charge, and count the call */
/* Let the running process sleep until until_us, or until it is woken. */
void process_block(int64_t until_us);
/* Wake the process if one of its watched files is ready. */
void process_notice(process *p);
void process_end(process *p, const char *how);
/* Leave the running process to call a server's functions, and return to it. */
process *process_aside(void);
void process_go_on(process *before);

/* sys.c: Set each revents as poll does. Returns the number that are not 0. */
int sys_ready(process *p, struct pollfd *fds, nfds_t count);
void sys_close_all(process *p);
void sys_free_all(process *p); /* close all files, but no connection */
/* memory.c: Free the blocks of hiredis. NULL in a program without memory.c. */
void memory_free_all(process *p) __attribute__((weak));

/* --- net.c: connections, from the side of a process ---------------------- */

typedef struct conn conn;

/* Returns 0 or an errno. */
int conn_open(process *p, const struct sockaddr *to, socklen_t len, conn **out);
void conn_close(conn *c);
int conn_events(const conn *c);
int conn_take_error(conn *c); /* SO_ERROR */
int conn_connecting(const conn *c);
int conn_connected(const conn *c);
size_t conn_unread(const conn *c);
/* Return the number of bytes, 0 at the end of the stream, or -errno. */
long conn_read(conn *c, void *to, size_t len, int peek);
long conn_write(conn *c, const void *bytes, size_t len);
void conn_name(const conn *c, int peer, struct sockaddr_storage *to,
               socklen_t *len);

void net_begin(void);
void net_end(void);
void net_reap(void); /* free the connections that nobody uses any more */
void net_machine_thawed(machine *m);
void net_machine_crashed(machine *m);
void net_machine_booted(machine *m);

#endif
