/*
 * system.c -- a minimal system with threads, for lwIP. A thread runs until it
 * waits for a semaphore. While all threads wait, the processor sleeps until the
 * next interrupt.
 */
#include "board.h"
#include "lwip/tcpip.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 6, FOREVER = 0 };

struct thread {
    uint32_t *stack; /* has the saved registers while the thread waits */
    void (*run)(void *argument);
    void *argument;
    const sys_sem_t *wanted; /* the semaphore that it waits for, or NULL */
    int64_t until;           /* the time in us at which the wait ends */
    int exists;
};
static struct thread threads[THREADS], *current;

void system_init(void) {
    current = &threads[0]; /* main, which runs already */
    current->exists = 1;
}

static int is_ready(const struct thread *t) {
    return t->exists && ((t->wanted && t->wanted->count > 0) ||
                         (t->until != FOREVER && board_now_us() >= t->until));
}

/* Returns the next ready thread, or NULL. The current thread comes last. */
static struct thread *next_ready(void) {
    int i, own = (int)(current - threads);
    for (i = 1; i <= THREADS; i++)
        if (is_ready(&threads[(own + i) % THREADS]))
            return &threads[(own + i) % THREADS];
    return NULL;
}

/* Save the registers on the stack *from, and continue on the stack `to`. */
__attribute__((naked)) static void swap(uint32_t **from, uint32_t *to) {
    (void)from, (void)to;
    __asm volatile("push {r3-r11, lr}\n vpush {s16-s31}\n str sp, [r0]\n"
                   "mov sp, r1\n vpop {s16-s31}\n pop {r3-r11, pc}");
}

/* Interrupts are masked from the search for a ready thread to the sleep.
 * Otherwise an interrupt between them could make a thread ready, and the
 * processor would sleep nevertheless. A masked interrupt ends the sleep. */
static struct thread *sleep_until_ready(void) {
    struct thread *next;
    while (!(next = next_ready())) {
        __asm volatile("cpsid i" : : : "memory");
        if (!next_ready()) __asm volatile("dsb\n wfi");
        __asm volatile("cpsie i\n isb" : : : "memory");
    }
    return next;
}

static void wait_for(const sys_sem_t *wanted, int64_t until) {
    struct thread *own = current, *next;
    int code = errno;
    own->wanted = wanted;
    own->until = until;
    next = sleep_until_ready();
    if (next == own) return;
    current = next;
    swap(&own->stack, next->stack);
    errno = code;
}

void system_yield(void) {
    wait_for(NULL, 1);
}

/* --- lwIP's functions ----------------------------------------------------- */

static void thread_begins(void) {
    current->run(current->argument);
    for (;;) wait_for(NULL, FOREVER);
}

/* Give the thread a stack as `swap` expects it: 16 registers of the FPU, r3 to
 * r11, and the address at which to continue. */
sys_thread_t sys_thread_new(const char *name, lwip_thread_fn run,
                            void *argument, int bytes, int priority) {
    struct thread *t = threads;
    uint32_t *top;
    (void)name, (void)priority;
    while (t->exists)
        if (++t == threads + THREADS) abort();
    top = calloc(1, (size_t)bytes);
    if (!top) abort();
    top += (size_t)bytes / 8 * 2;
    *--top = (uint32_t)thread_begins;
    t->stack = top - 9 - 16;
    t->run = run;
    t->argument = argument;
    t->until = 1; /* a past time, so the thread is ready */
    t->exists = 1;
    return t;
}

void sys_init(void) {
}

u32_t sys_now(void) {
    return (u32_t)(board_now_us() / 1000);
}

void system_give(sys_sem_t *s) {
    s->count++;
}

err_t sys_sem_new(sys_sem_t *s, u8_t count) {
    s->count = count;
    s->exists = 1;
    return ERR_OK;
}
void sys_sem_free(sys_sem_t *s) {
    s->exists = 0;
}

/* Interrupts are masked, since one may call system_give at any time. */
static void change(sys_sem_t *s, int by) {
    __asm volatile("cpsid i" : : : "memory");
    s->count += by;
    __asm volatile("cpsie i" : : : "memory");
}
void sys_sem_signal(sys_sem_t *s) {
    change(s, 1);
}

/* Wait for ms milliseconds at most or, if ms is 0, without a limit. */
u32_t sys_arch_sem_wait(sys_sem_t *s, u32_t ms) {
    int64_t began = board_now_us();
    if (s->count == 0)
        wait_for(s, ms > 0 ? began + (int64_t)ms * 1000 : FOREVER);
    if (s->count == 0) return SYS_ARCH_TIMEOUT;
    change(s, -1);
    return (u32_t)((board_now_us() - began) / 1000);
}

/* The semaphore `full` counts the messages of a box, `room` the free entries.
 * lwipopts.h sets all sizes to MBOX_SIZE. */
err_t sys_mbox_new(sys_mbox_t *box, int size) {
    if (size > MBOX_SIZE) return ERR_MEM;
    sys_sem_new(&box->full, 0);
    sys_sem_new(&box->room, MBOX_SIZE);
    box->head = 0;
    box->exists = 1;
    return ERR_OK;
}
void sys_mbox_free(sys_mbox_t *box) {
    box->exists = 0;
}
void sys_mbox_post(sys_mbox_t *box, void *message) {
    sys_arch_sem_wait(&box->room, 0);
    box->messages[(box->head + box->full.count) % MBOX_SIZE] = message;
    sys_sem_signal(&box->full);
}
err_t sys_mbox_trypost(sys_mbox_t *box, void *message) {
    if (box->room.count == 0) return ERR_MEM;
    sys_mbox_post(box, message);
    return ERR_OK;
}
u32_t sys_arch_mbox_fetch(sys_mbox_t *box, void **message, u32_t ms) {
    u32_t waited = sys_arch_sem_wait(&box->full, ms);
    if (waited == SYS_ARCH_TIMEOUT) return waited;
    if (message) *message = box->messages[box->head];
    box->head = (box->head + 1) % MBOX_SIZE;
    sys_sem_signal(&box->room);
    return waited;
}
u32_t sys_arch_mbox_tryfetch(sys_mbox_t *box, void **message) {
    if (box->full.count == 0) return SYS_MBOX_EMPTY;
    return sys_arch_mbox_fetch(box, message, 0);
}
