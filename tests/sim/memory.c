/*
 * The memory of hiredis. The Makefile links a copy of hiredis (sim-hiredis.a)
 * that calls the functions of this file instead of malloc, free and the like. A
 * block belongs to the process that allocated it. Blocks that a program still
 * owns after it has closed all its handles are leaks. The blocks of a killed
 * process are freed with the world.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include "inner.h"

typedef struct block {
    process *owner; /* NULL: allocated outside of all processes */
    struct block *next, *before;
    size_t len;
} block; /* 32 bytes, so the memory after it is aligned */

void *library_malloc(size_t len);
void *library_calloc(size_t count, size_t len);
void *library_realloc(void *old, size_t len);
char *library_strdup(const char *text);
void library_free(void *of);

void *library_malloc(size_t len) {
    process *p = process_self();
    block *b = (block *)malloc(sizeof *b + len);
    assert(b);
    b->owner = p;
    b->len = len;
    b->before = NULL;
    b->next = p ? p->blocks : NULL;
    if (b->next) b->next->before = b;
    if (p) p->blocks = b, p->block_count++;
    return b + 1;
}

void *library_calloc(size_t count, size_t len) {
    void *got;
    assert(len == 0 || count <= (size_t)-1 / 2 / len);
    got = library_malloc(count * len);
    memset(got, 0, count * len);
    return got;
}

void library_free(void *of) {
    block *b;
    process *p;
    if (!of) return;
    b = (block *)of - 1;
    p = b->owner;
    if (b->before)
        b->before->next = b->next;
    else if (p)
        p->blocks = b->next;
    if (b->next) b->next->before = b->before;
    if (p) p->block_count--;
    memset(of, 0xdb, b->len); /* so that a read after the free is noticed */
    free(b);
}

void *library_realloc(void *old, size_t len) {
    void *got = library_malloc(len);
    if (!old) return got;
    size_t had = ((block *)old - 1)->len;
    memcpy(got, old, had < len ? had : len);
    library_free(old);
    return got;
}

char *library_strdup(const char *text) {
    size_t len = strlen(text) + 1;
    return (char *)memcpy(library_malloc(len), text, len);
}

size_t process_blocks(const process *p) {
    return p->block_count;
}

void memory_free_all(process *p) {
    while (p->blocks) library_free(p->blocks + 1);
}
