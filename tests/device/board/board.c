/*
 * board.c -- start, clock, random bytes, serial line and the functions that
 * newlib calls, for an MPS2 board with a Cortex-M4 (AN386). qemu-system-arm
 * emulates this board as mps2-an386.
 */
#include "board.h"
#include <string.h>

/* --- start ---------------------------------------------------------------- */

#define SYSTICK_CTRL BOARD_REGISTER(0xe000e010)
#define SYSTICK_LOAD BOARD_REGISTER(0xe000e014)
#define SYSTICK_VALUE BOARD_REGISTER(0xe000e018)
#define INTERRUPT_ENABLE BOARD_REGISTER(0xe000e100)
#define INTERRUPT_DISABLE BOARD_REGISTER(0xe000e180)
#define COPROCESSORS BOARD_REGISTER(0xe000ed88)
enum { CLOCK_HZ = 25000000, UNUSED = 0xa5 };

/* board.ld */
extern char board_data[], board_data_end[], board_data_flash[];
extern char board_bss[], board_bss_end[];
extern char board_heap[], board_stack[], board_top[];

int main(void);
void board_reset(void);
static void serial_init(void);

void board_reset(void) {
    char *own = __builtin_frame_address(0);
    COPROCESSORS |= 0xf << 20; /* the FPU */
    __asm volatile("dsb\n isb");
    memcpy(board_data, board_data_flash, (size_t)(board_data_end - board_data));
    memset(board_bss, 0, (size_t)(board_bss_end - board_bss));
    memset(board_stack, UNUSED, (size_t)(own - 256 - board_stack));
    SYSTICK_LOAD = CLOCK_HZ / 1000 - 1;
    SYSTICK_VALUE = 0;
    SYSTICK_CTRL = 7; /* on, with interrupts, driven by the processor's clock */
    serial_init();
    system_init();
    board_exit(main());
}

void board_interrupt(int number, int on) {
    if (on)
        INTERRUPT_ENABLE = 1u << number;
    else
        INTERRUPT_DISABLE = 1u << number;
}

unsigned board_stack_used(void) {
    const char *p = board_stack;
    while (p < board_top && *p == (char)UNUSED) p++;
    return (unsigned)(board_top - p);
}

/* --- the emulator --------------------------------------------------------- */

/* Semihosting: a call that the emulator carries out. */
enum { HOST_OPEN = 1, HOST_READ = 6, HOST_EXIT = 0x20 };
static int host(int call, uintptr_t a, uintptr_t b, uintptr_t c) {
    uintptr_t arguments[3];
    register int r0 __asm("r0") = call;
    register uintptr_t *r1 __asm("r1") = arguments;
    arguments[0] = a;
    arguments[1] = b;
    arguments[2] = c;
    __asm volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

void board_exit(int code) {
    host(HOST_EXIT, 0x20026, (uintptr_t)code, 0); /* reason: a normal exit */
    for (;;) {
    }
}

/* Random bytes come from the host, since the board has no source of them. */
static int no_random;
void board_lose_random(int lost) {
    no_random = lost;
}
int board_random(void *bytes, size_t len) {
    static const char name[] = "/dev/urandom";
    static int file = -1;
    if (file < 0)
        file = host(HOST_OPEN, (uintptr_t)name, 1 /* "rb" */, sizeof name - 1);
    return !no_random && file >= 0 && /* HOST_READ returns 0 if all is read */
           host(HOST_READ, (uintptr_t)file, (uintptr_t)bytes, len) == 0;
}
unsigned board_rand(void) {
    unsigned n = 0;
    board_random(&n, sizeof n);
    return n;
}

/* --- the clock ------------------------------------------------------------ */

#define COUNTER BOARD_REGISTER(0x40028018)
#define COUNTER_PRESCALE BOARD_REGISTER(0x4002801c)

/* The counter wraps after 71 minutes. This function is called more often than
 * that, since the timer's interrupt ends each sleep of the processor. */
int64_t board_now_us(void) {
    static uint32_t last;
    static int64_t now;
    uint32_t count;
    COUNTER_PRESCALE = CLOCK_HZ / 1000000 - 1;
    count = COUNTER;
    now += count - last;
    last = count;
    return now;
}

/* --- the serial line ------------------------------------------------------ */

#define SERIAL_DATA BOARD_REGISTER(0x40004000)
#define SERIAL_STATE BOARD_REGISTER(0x40004004)
#define SERIAL_CTRL BOARD_REGISTER(0x40004008)
#define SERIAL_INTERRUPT BOARD_REGISTER(0x4000400c)
#define SERIAL_DIVIDER BOARD_REGISTER(0x40004010)
enum { OUT_FULL = 1, IN_FULL = 2 };               /* SERIAL_STATE */
enum { SENDS = 1, RECEIVES = 2, INTERRUPTS = 8 }; /* SERIAL_CTRL */

static char received[256];
static unsigned received_end;
static sys_sem_t receipts;

static void serial_init(void) {
    sys_sem_new(&receipts, 0);
    SERIAL_DIVIDER = CLOCK_HZ / 115200;
    SERIAL_CTRL = SENDS | RECEIVES | INTERRUPTS;
    board_interrupt(BOARD_SERIAL, 1);
}

static void serial_interrupt(void) {
    SERIAL_INTERRUPT = RECEIVES;
    while (SERIAL_STATE & IN_FULL) {
        received[received_end++ % sizeof received] = (char)SERIAL_DATA;
        system_give(&receipts);
    }
}

static char serial_read(void) {
    static unsigned begin;
    sys_arch_sem_wait(&receipts, 0);
    return received[begin++ % sizeof received];
}

static void serial_write(char c) {
    while (SERIAL_STATE & OUT_FULL) {
    }
    SERIAL_DATA = (uint8_t)c;
}

/* --- interrupts ----------------------------------------------------------- */

/* Nothing to do: the interrupt itself has ended the processor's sleep. */
static void tick_interrupt(void) {
}

/* Report a fault. The processor has pushed eight registers, of which the
 * seventh is the address of the interrupted instruction. */
__attribute__((used)) static void report_fault(const uint32_t *pushed) {
    const char *text = "FAIL fault of the processor at ";
    int bit;
    while (*text) serial_write(*text++);
    for (bit = 28; bit >= 0; bit -= 4)
        serial_write("0123456789abcdef"[pushed[6] >> bit & 15]);
    serial_write('\n');
    board_exit(3);
}
__attribute__((naked)) static void fault(void) {
    __asm volatile("mov r0, sp\n b report_fault");
}

__attribute__((section(".vectors"), used)) static const struct {
    char *stack;
    void (*handlers[16 + 32])(void); /* [0] is called at the reset */
} vectors = {
    board_top,
    {board_reset, fault, fault, fault, fault, fault, [14] = tick_interrupt,
     [15 + BOARD_SERIAL] = serial_interrupt,
     [15 + BOARD_ETHERNET] = lan9118_interrupt},
};

/* --- newlib --------------------------------------------------------------- */

void *_sbrk(ptrdiff_t bytes);
int _write(int file, const char *bytes, int len);
int _read(int file, char *bytes, int size);
void _exit(int code);

static char *heap_end = board_heap;

void *_sbrk(ptrdiff_t bytes) {
    char *old = heap_end;
    if (bytes > board_stack - heap_end) return (void *)-1;
    heap_end += bytes;
    return old;
}
unsigned board_heap_used(void) {
    return (unsigned)(heap_end - board_heap);
}

int _write(int file, const char *bytes, int len) {
    int i;
    (void)file;
    for (i = 0; i < len; i++) serial_write(bytes[i]);
    return len;
}

/* Read until the end of a line, at most `size` bytes. */
int _read(int file, char *bytes, int size) {
    int n = 0;
    (void)file;
    while (n < size) {
        bytes[n] = serial_read();
        if (bytes[n++] == '\n') break;
    }
    return n;
}

void _exit(int code) {
    board_exit(code);
    for (;;) {
    }
}
