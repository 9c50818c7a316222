/* lwIP's options on the board: those that examples/device/README.md requires,
 * and room for the sockets of three handles. */
#ifndef BOARD_LWIPOPTS_H
#define BOARD_LWIPOPTS_H
#include "../cortex-m4/lwipopts.h"

#define LWIP_SOCKET_POLL 1
#define MEMP_NUM_NETCONN 12
#define MEMP_NUM_TCP_PCB 12
#define MEMP_NUM_UDP_PCB 4
#define MEM_SIZE 16384
#define TCP_MSS 1460
#define TCP_WND (4 * TCP_MSS)
#define TCP_SND_BUF (4 * TCP_MSS)

#define TCPIP_THREAD_STACKSIZE 3072
#define TCPIP_MBOX_SIZE 32
#define DEFAULT_TCP_RECVMBOX_SIZE 32
#define DEFAULT_UDP_RECVMBOX_SIZE 32
#define DEFAULT_ACCEPTMBOX_SIZE 32

/* Only one thread runs at a time, until it waits, and interrupts don't call
 * lwIP. */
#define SYS_LIGHTWEIGHT_PROT 0
#define LWIP_COMPAT_MUTEX 1 /* mutexes are semaphores */
#define LWIP_COMPAT_MUTEX_ALLOWED 1

#define LWIP_RAND() board_rand()
unsigned board_rand(void);
#endif
