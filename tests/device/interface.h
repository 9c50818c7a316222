/*
 * interface.h -- functions for lwIP's network interfaces, shared by the three
 * programs in these folders.
 */
#ifndef INTERFACE_H
#define INTERFACE_H

#include "lwip/netif.h"
#include "lwip/tcpip.h"

/* loop_init is the init function of lwIP's loopback interface. */
static inline err_t loop_output(struct netif *n, struct pbuf *p,
                                const ip4_addr_t *to) {
    (void)to;
    return netif_loop_output(n, p);
}
static inline err_t loop_init(struct netif *n) {
    n->name[0] = 'l', n->name[1] = 'o';
    n->mtu = 1500;
    n->output = loop_output;
    return ERR_OK;
}

/* Add an interface, and bring it up. Call this function in lwIP's thread.
 * Returns 0 if init has failed. */
static inline int interface_up(struct netif *n, const char *own,
                               const char *mask, const char *gateway,
                               netif_init_fn init) {
    ip4_addr_t a, m, g;
    ip4addr_aton(own, &a);
    ip4addr_aton(mask, &m);
    ip4addr_aton(gateway, &g);
    if (!netif_add(n, &a, &m, &g, NULL, init, tcpip_input)) return 0;
    netif_set_up(n);
    netif_set_link_up(n);
    return 1;
}

#endif
