/*
 * run URL -- what offer.c's and loop.c's calls use at run time, hiredis and
 * libc included: the most that is allocated at once, and the deepest stack.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>

/* glibc calls these; what they stand in for has other names there, too. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *p, size_t size);
void __libc_free(void *p);

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

static void (*what)(void);
static unsigned char *base; /* of what is called */

static void *call(void *unused) {
    unsigned char here;
    base = &here;
    what();
    return unused;
}

/* Prints the most that was allocated and on the stack at any time. */
static void measure(const char *name, void (*of)(void)) {
    static unsigned char stack[1 << 18];
    unsigned char *at = stack;
    size_t before = used;
    pthread_attr_t attr;
    pthread_t thread;
    what = of;
    most = used;
    memset(stack, 0xa5, sizeof stack);
    pthread_attr_init(&attr);
    pthread_attr_setstack(&attr, stack, sizeof stack);
    pthread_create(&thread, &attr, call, NULL);
    pthread_join(thread, NULL);
    while (*at == 0xa5) at++;
    printf("%s: heap %lu, stack %lu\n", name, (unsigned long)(most - before),
           (unsigned long)(base - at));
}

int main(int argc, char **argv) {
    url = argc > 1 ? argv[1] : getenv("DELAYQ_URL");
    measure("offers", offer);
    measure("loop", loop);
    return failed;
}
