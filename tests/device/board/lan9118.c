/*
 * lan9118.c -- lwIP's driver of the SMSC LAN9118, the Ethernet of the board. A
 * thread reads frames from its FIFO; an interrupt wakes the thread.
 */
#include "board.h"
#include "lwip/etharp.h"
#include "lwip/tcpip.h"
#include "netif/ethernet.h"
#include <string.h>

#define LAN(offset) BOARD_REGISTER(0x40200000 + (offset))
#define RX_DATA LAN(0x00)
#define TX_DATA LAN(0x20)
#define RX_STATUS LAN(0x40)
#define TX_STATUS LAN(0x48)
#define IRQ_CFG LAN(0x54)
#define INT_STATUS LAN(0x58)
#define INT_ENABLE LAN(0x5c)
#define BYTE_TEST LAN(0x64)
#define FIFO_INT LAN(0x68)
#define TX_CFG LAN(0x70)
#define HW_CFG LAN(0x74)
#define RX_CONTROL LAN(0x78)
#define RX_FIFO LAN(0x7c)
#define TX_FIFO LAN(0x80)
#define MAC_COMMAND LAN(0xa4)
#define MAC_DATA LAN(0xa8)

enum { MAC_CONTROL = 1, MAC_ADDRESS_HIGH = 2, MAC_ADDRESS_LOW = 3 };
enum { RECEIVED = 1 << 3 };                    /* INT_STATUS, INT_ENABLE */
enum { MAC_SENDS = 1 << 3, MAC_RECEIVES = 4 }; /* MAC_CONTROL */
enum { FRAME_MAX = 1536 };

static sys_sem_t arrivals;

static void mac_wait(void) {
    while (MAC_COMMAND >> 31) {
    }
}
static uint32_t mac_read(uint32_t what) {
    MAC_COMMAND = 0xc0000000 | what;
    mac_wait();
    return MAC_DATA;
}
static void mac_write(uint32_t what, uint32_t value) {
    MAC_DATA = value;
    MAC_COMMAND = 0x80000000 | what;
    mac_wait();
}

/* Send one frame, in a single buffer. Command A has the length of the buffer,
 * and two bits, which mark the first and the last buffer of a frame. Command B
 * has the length of the frame. */
static err_t send_frame(struct netif *n, struct pbuf *p) {
    static uint32_t frame[FRAME_MAX / 4];
    u16_t len = pbuf_copy_partial(p, frame, sizeof frame, 0);
    unsigned i, words = (len + 3u) / 4;
    (void)n;
    while (TX_FIFO >> 16 & 0xff) (void)TX_STATUS; /* drops old statuses */
    if (len != p->tot_len || (TX_FIFO & 0xffff) < 4 * words + 8) return ERR_MEM;
    TX_DATA = 1u << 13 | 1u << 12 | len;
    TX_DATA = len;
    for (i = 0; i < words; i++) TX_DATA = frame[i];
    return ERR_OK;
}

/* Returns the next frame of the FIFO, or NULL if the frame is damaged or there
 * is no room for it. The length in its status includes 4 bytes of checksum. */
static struct pbuf *receive_frame(void) {
    static uint32_t frame[FRAME_MAX / 4];
    uint32_t status = RX_STATUS;
    unsigned i, len = status >> 16 & 0x3fff, words = (len + 3) / 4;
    struct pbuf *p = NULL;
    for (i = 0; i < words; i++) {
        uint32_t word = RX_DATA;
        if (i < FRAME_MAX / 4) frame[i] = word;
    }
    if (status >> 15 & 1 || len <= 4 || len > FRAME_MAX) return NULL;
    p = pbuf_alloc(PBUF_RAW, (u16_t)(len - 4), PBUF_POOL);
    if (p) pbuf_take(p, frame, (u16_t)(len - 4));
    return p;
}

/* Wake the thread, and disable the interrupt until it has emptied the FIFO. */
void lan9118_interrupt(void) {
    INT_ENABLE = 0;
    system_give(&arrivals);
}

static void receive(void *netif) {
    struct netif *n = netif;
    for (;;) {
        sys_arch_sem_wait(&arrivals, 0);
        /* clear the bit before the reads: a frame during them sets it again */
        INT_STATUS = RECEIVED;
        while (RX_FIFO >> 16 & 0xff) {
            struct pbuf *p = receive_frame();
            if (p && n->input(p, n) != ERR_OK) pbuf_free(p);
            system_yield(); /* lets lwIP's thread read the frame */
        }
        INT_ENABLE = RECEIVED;
    }
}

err_t lan9118_init(struct netif *n) {
    uint32_t low, high;
    if (BYTE_TEST != 0x87654321) return ERR_IF;
    HW_CFG = 1; /* reset */
    while (HW_CFG & 1) {
    }
    HW_CFG = 1u << 20 | 5u << 16; /* a required bit; 5 KB for sending */
    low = mac_read(MAC_ADDRESS_LOW);
    high = mac_read(MAC_ADDRESS_HIGH);
    n->name[0] = 'e', n->name[1] = 'n';
    n->hwaddr_len = 6;
    memcpy(n->hwaddr, &low, 4);
    memcpy(n->hwaddr + 4, &high, 2);
    n->mtu = 1500;
    n->flags = NETIF_FLAG_BROADCAST | NETIF_FLAG_ETHARP | NETIF_FLAG_ETHERNET;
    n->output = etharp_output;
    n->linkoutput = send_frame;
    mac_write(MAC_CONTROL, MAC_SENDS | MAC_RECEIVES);
    TX_CFG = 2; /* on */
    sys_sem_new(&arrivals, 0);
    sys_thread_new("receive", receive, n, 2048, 0);
    FIFO_INT = 0;                    /* an interrupt for each frame */
    IRQ_CFG = 1u << 8 | 1u << 4 | 1; /* on, active high, push-pull */
    INT_STATUS = ~0u;
    INT_ENABLE = RECEIVED;
    board_interrupt(BOARD_ETHERNET, 1);
    return ERR_OK;
}
