/* The functions that the parts of the board share. */
#ifndef BOARD_H
#define BOARD_H
#include "lwip/netif.h"
#include "lwip/sys.h"
#include <stddef.h>
#include <stdint.h>

#define BOARD_REGISTER(address) (*(volatile uint32_t *)(uintptr_t)(address))

/* board.c: the processor, the clock, the serial line */
int64_t board_now_us(void);
int board_random(void *bytes, size_t len);
void board_lose_random(int lost); /* if 1, board_random fails from now on */
void board_exit(int code);
void board_interrupt(int number, int on);
/* Both return the largest number of bytes in use at any time so far. */
unsigned board_stack_used(void);
unsigned board_heap_used(void);
enum { BOARD_SERIAL = 0, BOARD_ETHERNET = 13 }; /* numbers of interrupts */

/* system.c: threads. A thread runs until it waits. */
void system_init(void);
void system_yield(void);        /* lets the other threads run first */
void system_give(sys_sem_t *s); /* interrupts may call only this function */

/* lan9118.c: the Ethernet */
err_t lan9118_init(struct netif *n);
void lan9118_interrupt(void);
#endif
