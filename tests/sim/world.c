/*
 * Chance, time, machines and processes. See world.h.
 */
#undef _FORTIFY_SOURCE /* its longjmp refuses to change stacks */
#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include "inner.h"

#if defined(__SANITIZE_ADDRESS__)
#define SIM_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SIM_ASAN 1
#endif
#endif
#ifdef SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

/* --- chance -------------------------------------------------------------- */

static uint64_t chance[4];

static uint64_t splitmix(uint64_t *x) {
    uint64_t z = *x += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

static uint64_t rotated(uint64_t x, int by) {
    return (x << by) | (x >> (64 - by));
}

/* xoshiro256** */
uint64_t sim_random(void) {
    uint64_t *s = chance, x = rotated(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotated(s[3], 45);
    return x;
}

int64_t sim_between(int64_t low, int64_t high) {
    uint64_t span = (uint64_t)high - (uint64_t)low + 1;
    if (low >= high) return low;
    return (int64_t)((uint64_t)low +
                     (span == 0 ? sim_random() : sim_random() % span));
}

int sim_chance(int percent) {
    if (percent <= 0) return 0;
    return sim_between(1, 100) <= percent;
}

/* --- time ---------------------------------------------------------------- */

typedef struct entry {
    int64_t at;
    uint64_t seq;
    event *event;
} entry;

/* Events of sim_at. Past events are reused. */
typedef struct call_event {
    event event;
    void (*call)(void *arg);
    void *arg;
    struct call_event *next;
} call_event;

#define MOST_AT_ONCE 1000000 /* more events at one time mean an endless loop */

static entry *heap; /* from index 1 */
static size_t heap_count, heap_size;
static uint64_t heap_seq;
static int64_t now, run_until;
static int stopped;
static call_event *free_calls;

static int entry_before(const entry *a, const entry *b) {
    return a->at < b->at || (a->at == b->at && a->seq < b->seq);
}

static void heap_put(size_t i, entry e) {
    heap[i] = e;
    e.event->place = i;
}

static void heap_up(size_t i, entry e) {
    for (; i > 1 && entry_before(&e, &heap[i / 2]); i /= 2)
        heap_put(i, heap[i / 2]);
    heap_put(i, e);
}

static void heap_down(size_t i, entry e) {
    for (;;) {
        size_t k = 2 * i;
        if (k > heap_count) break;
        if (k < heap_count && entry_before(&heap[k + 1], &heap[k])) k++;
        if (!entry_before(&heap[k], &e)) break;
        heap_put(i, heap[k]);
        i = k;
    }
    heap_put(i, e);
}

void event_cancel(event *e) {
    size_t i = e->place;
    entry last;
    if (i == 0) return;
    e->place = 0;
    last = heap[heap_count--];
    if (last.event == e) return;
    if (i > 1 && entry_before(&last, &heap[i / 2]))
        heap_up(i, last);
    else
        heap_down(i, last);
}

void event_set(event *e, int64_t at) {
    entry new;
    event_cancel(e);
    if (heap_count + 2 > heap_size) {
        heap_size = heap_size ? heap_size * 2 : 1024;
        heap = realloc(heap, heap_size * sizeof *heap);
        assert(heap);
    }
    new.at = at < now ? now : at;
    new.seq = heap_seq++;
    new.event = e;
    heap_up(++heap_count, new);
}

int64_t sim_now(void) {
    return now;
}

static void call_run(void *arg) {
    call_event *c = arg;
    void (*call)(void *) = c->call;
    void *given = c->arg;
    c->next = free_calls;
    free_calls = c;
    call(given);
}

void sim_at(int64_t us, void (*call)(void *arg), void *arg) {
    call_event *c = free_calls;
    if (c)
        free_calls = c->next;
    else
        c = calloc(1, sizeof *c);
    assert(c);
    c->call = call;
    c->arg = arg;
    c->event.call = call_run;
    c->event.arg = c;
    event_set(&c->event, us);
}

void sim_stop(void) {
    stopped = 1;
}

void sim_run(int64_t until_us) {
    unsigned same = 0;
    assert(!process_self());
    stopped = 0;
    run_until = until_us;
    while (!stopped && heap_count > 0 && heap[1].at <= until_us) {
        event *e = heap[1].event;
        if (heap[1].at > now) same = 0;
        now = heap[1].at;
        if (++same > MOST_AT_ONCE) {
            fprintf(stderr, "sim: time stands still at %lld us\n",
                    (long long)now);
            abort();
        }
        event_cancel(e);
        e->call(e->arg);
        net_reap();
    }
    if (!stopped && now < until_us) now = until_us;
}

/* --- the story and the hash ---------------------------------------------- */

int sim_tells;
static uint64_t hash;

static void hash_word(uint64_t word) {
    hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= hash >> 29;
}

void sim_hash_add(const void *bytes, size_t len) {
    const char *from = bytes;
    hash_word((uint64_t)now ^ ((uint64_t)len << 48));
    while (len > 0) {
        uint64_t word = 0;
        size_t n = len < 8 ? len : 8;
        memcpy(&word, from, n);
        hash_word(word);
        from += n;
        len -= n;
    }
}

uint64_t sim_hash(void) {
    return hash;
}

void sim_tell(const char *format, ...) {
    const process *p = process_self();
    char line[2000];
    va_list args;
    if (!sim_tells) return;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    printf("%5lld.%06lld s  ", (long long)(now / SIM_SECOND),
           (long long)(now % SIM_SECOND));
    if (p) printf("%s/%s: ", p->machine->name, p->name);
    printf("%s\n", line);
}

/* --- machines ------------------------------------------------------------ */

machine *sim_machines;
static machine **last_machine = &sim_machines;
static int machine_count;

machine *machine_new(const char *name, const char *address) {
    machine *m = calloc(1, sizeof *m);
    assert(m);
    snprintf(m->name, sizeof m->name, "%s", name);
    if (inet_pton(AF_INET, address, &m->v4) != 1) {
        m->is_v6 = 1;
        if (inet_pton(AF_INET6, address, &m->v6) != 1) {
            fprintf(stderr, "sim: %s is no address\n", address);
            abort();
        }
    }
    m->index = machine_count++;
    m->since_us = now;
    m->monotonic_us = sim_between(1000, 10000000) * SIM_SECOND +
                      sim_between(0, SIM_SECOND - 1);
    m->offset_us = SIM_EPOCH_US + now - m->monotonic_us;
    *last_machine = m;
    last_machine = &m->next;
    return m;
}

const char *machine_name(const machine *m) {
    return m->name;
}

int64_t machine_monotonic(const machine *m) {
    int64_t passed = now - m->since_us;
    return m->monotonic_us + passed + passed * m->ppm / 1000000;
}

int64_t machine_realtime(const machine *m) {
    return machine_monotonic(m) + m->offset_us;
}

int64_t machine_true_us(const machine *m, int64_t own_us) {
    if (m->ppm == 0 || own_us > INT64_MAX / 2000000) return own_us;
    return own_us * 1000000 / (1000000 + m->ppm) + 1;
}

void machine_set_clock(machine *m, int64_t by_us) {
    m->offset_us += by_us;
}

void machine_drift(machine *m, int ppm) {
    m->monotonic_us = machine_monotonic(m);
    m->since_us = now;
    m->ppm = ppm;
}

/* --- processes ----------------------------------------------------------- */

#ifdef SIM_ASAN
#define STACK_SIZE (1024 * 1024)
#else
#define STACK_SIZE (256 * 1024)
#endif
#define GUARD_SIZE 4096

typedef struct stack {
    char *memory; /* it begins with the guard page */
#ifdef SIM_ASAN
    ucontext_t where;
    void *fake;
#else
    jmp_buf where;
#endif
    struct stack *next;
} stack;

static stack *free_stacks; /* kept for the next world */
static stack scheduler;    /* the stack of the caller of sim_run */
static process *processes, **last_process = &processes;
static process *self;    /* the process in whose name code runs */
static process *running; /* the process on whose stack code runs */
static int process_count;

static stack *stack_new(void) {
    stack *s = free_stacks;
    if (s) {
        free_stacks = s->next;
        return s;
    }
    s = calloc(1, sizeof *s);
    assert(s);
    s->memory = mmap(NULL, GUARD_SIZE + STACK_SIZE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (s->memory == MAP_FAILED || mprotect(s->memory, GUARD_SIZE, PROT_NONE)) {
        perror("sim: a stack");
        abort();
    }
    return s;
}

static void stack_free(process *p) {
    if (!p->stack) return;
    p->stack->next = free_stacks;
    free_stacks = p->stack;
    p->stack = NULL;
}

static void process_enter(void);

/* Prepare a context that starts process_enter on the stack. */
static void stack_start(ucontext_t *where, stack *s) {
    getcontext(where);
    where->uc_stack.ss_sp = s->memory + GUARD_SIZE;
    where->uc_stack.ss_size = STACK_SIZE;
    where->uc_link = NULL;
    makecontext(where, process_enter, 0);
}

#ifdef SIM_ASAN
static const void *scheduler_bottom;
static size_t scheduler_size;

static void switch_to(process *p) {
    stack *s = p->stack;
    if (!p->started) stack_start(&s->where, s);
    p->started = 1;
    __sanitizer_start_switch_fiber(&scheduler.fake, s->memory + GUARD_SIZE,
                                   STACK_SIZE);
    swapcontext(&scheduler.where, &s->where);
    __sanitizer_finish_switch_fiber(scheduler.fake, NULL, NULL);
}

static void switch_back(stack *s, int ended) {
    __sanitizer_start_switch_fiber(ended ? NULL : &s->fake, scheduler_bottom,
                                   scheduler_size);
    swapcontext(&s->where, &scheduler.where);
    __sanitizer_finish_switch_fiber(s->fake, &scheduler_bottom,
                                    &scheduler_size);
}

static void switch_first(void) {
    __sanitizer_finish_switch_fiber(NULL, &scheduler_bottom, &scheduler_size);
}
#else
/* Unlike swapcontext, _setjmp makes no system call for the signal mask. */
static void switch_to(process *p) {
    if (_setjmp(scheduler.where) != 0) return;
    if (p->started) _longjmp(p->stack->where, 1);
    {
        static ucontext_t first;
        p->started = 1;
        stack_start(&first, p->stack);
        setcontext(&first);
    }
}

static void switch_back(stack *s, int ended) {
    if (ended || _setjmp(s->where) == 0) _longjmp(scheduler.where, 1);
}

static void switch_first(void) {
}
#endif

/* Run the scheduler until it resumes this process. */
static void give_way(void) {
    process *p = self;
    int saved = errno;
    assert(!p->borrowed && p == running);
    switch_back(p->stack, 0);
    errno = saved;
}

static void process_enter(void) {
    switch_first();
    self->main(self->arg);
    process_end(self, NULL);
    switch_back(self->stack, 1);
}

static int process_stands(const process *p) {
    return p->frozen || p->machine->frozen;
}

static void process_resume(void *arg) {
    process *p = arg;
    assert(!p->ended);
    if (process_stands(p)) {
        p->resume_due = 1;
        return;
    }
    self = running = p;
    switch_to(p);
    self = running = NULL;
    if (p->ended) stack_free(p);
}

process *process_start(machine *m, const char *name, void (*main)(void *arg),
                       void *arg) {
    process *p = calloc(1, sizeof *p);
    uint64_t seed = sim_random();
    assert(p && !m->down);
    p->machine = m;
    snprintf(p->name, sizeof p->name, "%s", name);
    p->pid = 1000 + process_count++;
    p->main = main;
    p->arg = arg;
    p->chance = splitmix(&seed);
    p->stack = stack_new();
    p->resume.call = process_resume;
    p->resume.arg = p;
    *last_process = p;
    last_process = &p->next;
    event_set(&p->resume, now);
    return p;
}

process *process_self(void) {
    return self;
}

const char *process_name(const process *p) {
    return p->name;
}

int process_ended(const process *p) {
    return p->ended;
}

uint64_t process_steps(const process *p) {
    return p->steps;
}

uint64_t process_bytes(const process *p) {
    return p->bytes;
}

uint64_t process_ends(const process *p) {
    return p->ends;
}

uint64_t process_calls(const process *p) {
    return p->calls;
}

/* End a process. If it is running, its stack is still in use: free it later. */
void process_end(process *p, const char *how) {
    if (p->ended) return;
    if (how) sim_tell("%s/%s is %s", p->machine->name, p->name, how);
    event_cancel(&p->resume);
    p->watched = NULL;
    sys_close_all(p);
    p->ended = 1;
    if (p != running) stack_free(p);
}

/* Leave the stack of the running process if the process was killed. */
static void leave_if_ended(void) {
    if (self && self->ended && self == running && !self->borrowed)
        switch_back(self->stack, 1);
}

void process_kill(process *p) {
    process_end(p, "killed");
    leave_if_ended();
}

void process_charge(int64_t us) {
    int64_t at = now + us;
    if (self->borrowed) return;
    leave_if_ended();
    if (!stopped && at <= run_until && (heap_count == 0 || heap[1].at > at)) {
        now = at;
        return;
    }
    event_set(&self->resume, at);
    give_way();
}

/* Stop the running process at once if it has frozen itself. */
static void stop_if_frozen(void) {
    if (!self || self->borrowed || !process_stands(self)) return;
    event_set(&self->resume, now);
    give_way();
}

void process_at_call(process *p, uint64_t n, void (*call)(void *arg),
                     void *arg) {
    p->trap_call = p->calls + n;
    p->trap = call;
    p->trap_arg = arg;
}

void process_called(int64_t us) {
    process *p = self;
    p->calls++;
    if (p->trap && p->calls >= p->trap_call && !p->borrowed) {
        void (*call)(void *) = p->trap;
        p->trap = NULL;
        self = NULL;
        call(p->trap_arg);
        self = p;
        leave_if_ended();
        stop_if_frozen();
    }
    process_charge(us);
}

void process_block(int64_t until_us) {
    if (self->borrowed) {
        fprintf(stderr, "sim: %s waits in a process_call\n", self->name);
        abort();
    }
    leave_if_ended();
    if (until_us != SIM_NEVER) event_set(&self->resume, until_us);
    give_way();
    self->steps++;
    self->idle_calls = 0;
}

void process_notice(process *p) {
    if (!p->watched || p->ended) return;
    if (!p->interrupted && sys_ready(p, p->watched, p->watched_count) == 0)
        return;
    p->watched = NULL; /* so that it is woken only once */
    event_set(&p->resume, now + sim_between(1, 30));
}

void process_signal(process *p) {
    p->interrupted = 1;
    process_notice(p);
}

void process_call(process *p, void (*call)(void *arg), void *arg) {
    process *before = self;
    int borrowed = p->borrowed;
    if (p->ended) return;
    self = p;
    p->borrowed = 1;
    call(arg);
    p->borrowed = borrowed;
    self = before;
    if (p->ended && p != running) stack_free(p);
}

process *process_aside(void) {
    process *before = self;
    self = NULL;
    return before;
}

void process_go_on(process *before) {
    self = before;
}

void process_sleep(int64_t us) {
    process_block(now + us);
}

void process_spend(int64_t us) {
    process_sleep(us);
}

static void go_on(process *p) {
    if (!p->resume_due || process_stands(p) || p->ended) return;
    p->resume_due = 0;
    event_set(&p->resume, now + sim_between(1, 100));
}

void process_freeze(process *p) {
    if (p->ended) return;
    sim_tell("%s/%s is frozen", p->machine->name, p->name);
    p->frozen = 1;
    stop_if_frozen();
}

void process_thaw(process *p) {
    if (!p->frozen) return;
    if (!p->ended) sim_tell("%s/%s goes on", p->machine->name, p->name);
    p->frozen = 0;
    go_on(p);
}

void machine_freeze(machine *m) {
    sim_tell("%s is frozen", m->name);
    m->frozen = 1;
    stop_if_frozen();
}

void machine_thaw(machine *m) {
    process *p;
    if (!m->frozen) return;
    sim_tell("%s goes on", m->name);
    m->frozen = 0;
    for (p = processes; p; p = p->next)
        if (p->machine == m) go_on(p);
    net_machine_thawed(m);
}

void machine_crash(machine *m) {
    process *p;
    if (m->down) return;
    sim_tell("%s crashes", m->name);
    m->down = 1;
    m->frozen = 0;
    net_machine_crashed(m);
    for (p = processes; p; p = p->next)
        if (p->machine == m) process_end(p, NULL);
    leave_if_ended();
}

void machine_boot(machine *m) {
    int64_t realtime = machine_realtime(m);
    if (!m->down) return;
    sim_tell("%s boots", m->name);
    m->down = 0;
    m->since_us = now;
    m->monotonic_us = sim_between(5, 30) * SIM_SECOND;
    m->offset_us = realtime - m->monotonic_us;
    net_machine_booted(m);
}

/* --- the world ----------------------------------------------------------- */

void sim_begin(uint64_t seed) {
    int i;
    sim_end();
    for (i = 0; i < 4; i++) chance[i] = splitmix(&seed);
    hash = sim_random();
    net_begin();
}

/* End the world. The heap is emptied first, since its events are parts of
 * objects that are freed. */
void sim_end(void) {
    process *p = processes, *next_process;
    machine *m = sim_machines, *next_machine;
    size_t i;
    assert(!self);
    for (i = 1; i <= heap_count; i++) {
        heap[i].event->place = 0;
        if (heap[i].event->call == call_run) free(heap[i].event->arg);
    }
    heap_count = 0;
    heap_seq = 0;
    now = 0;
    net_end();
    for (; p; p = next_process) {
        next_process = p->next;
        sys_free_all(p);
        if (memory_free_all) memory_free_all(p);
        stack_free(p);
        free(p);
    }
    for (; m; m = next_machine) {
        next_machine = m->next;
        while (m->path_count > 0) free(m->paths[--m->path_count]);
        free(m->paths);
        free(m);
    }
    processes = NULL;
    last_process = &processes;
    process_count = 0;
    sim_machines = NULL;
    last_machine = &sim_machines;
    machine_count = 0;
}
