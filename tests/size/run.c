/*
 * run URL -- the maximum of the memory that is in use during the calls of
 * offer.c and loop.c. hiredis allocates all of it. The server doesn't have the
 * scripts yet. Fails above 16 KB.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <malloc.h>
#include <stdlib.h>

/* glibc's own names of the functions that this file replaces. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);

#define LIMIT 16384

static size_t used, most;

static void *count(void *p) {
    if (p) used += malloc_usable_size(p);
    if (used > most) most = used;
    return p;
}
void *malloc(size_t size) {
    return count(__libc_malloc(size));
}
void *calloc(size_t n, size_t size) {
    return count(__libc_calloc(n, size));
}
void *realloc(void *p, size_t size) {
    if (p) used -= malloc_usable_size(p);
    return count(__libc_realloc(p, size));
}
void free(void *p) {
    if (p) used -= malloc_usable_size(p);
    __libc_free(p);
}

static const char *url;
static int failed;

static void offer(void) {
    static delayq q;
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "size";
    o.url = url;
    failed |= delayq_open(&q, &o) || delayq_offer(&q, "x", 1, 0);
    delayq_close(&q);
}

static void loop(void) {
    static delayq q;
    delayq_item item;
    delayq_options o;
    memset(&o, 0, sizeof o);
    o.name = "size";
    o.url = url;
    failed |= delayq_open(&q, &o) || delayq_offer(&q, "x", 1, 0) ||
              delayq_tick(&q, NULL) || delayq_take(&q, &item, 10000) ||
              delayq_take(&q, &item, 50);
    delayq_close(&q);
}

/* Run a program, and print the maximum of the memory in use. */
static void measure(const char *name, void (*program)(void)) {
    size_t before = used;
    most = used;
    program();
    printf("%s: heap %lu\n", name, (unsigned long)(most - before));
    failed |= most - before > LIMIT;
}

int main(int argc, char **argv) {
    url = argc > 1 ? argv[1] : getenv("DELAYQ_URL");
    measure("offers", offer);
    measure("loop", loop);
    return failed;
}
