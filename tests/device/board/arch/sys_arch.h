/* lwIP's types for threads, semaphores and mailboxes, which use system.c. */
#ifndef ARCH_SYS_ARCH_H
#define ARCH_SYS_ARCH_H

typedef struct sys_sem {
    volatile int count;
    int exists;
} sys_sem_t;

#define MBOX_SIZE 32
typedef struct sys_mbox {
    sys_sem_t full, room;
    void *messages[MBOX_SIZE];
    int head, exists;
} sys_mbox_t;

typedef struct thread *sys_thread_t;
typedef int sys_prot_t;

#define sys_sem_valid(s) ((s)->exists)
#define sys_sem_set_invalid(s) ((s)->exists = 0)
#define sys_mbox_valid(m) ((m)->exists)
#define sys_mbox_set_invalid(m) ((m)->exists = 0)
#endif
