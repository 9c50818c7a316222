/* lwIP's options on a small device: sockets are macros; there is no IPv6. */
#ifndef LWIPOPTS_H
#define LWIPOPTS_H
#define NO_SYS 0
#define LWIP_SOCKET 1
#ifndef LWIP_COMPAT_SOCKETS
#define LWIP_COMPAT_SOCKETS 1
#endif
#define LWIP_POSIX_SOCKETS_IO_NAMES 1
#define LWIP_NETIF_LOOPBACK 1
#define LWIP_HAVE_LOOPIF 1
#ifndef LWIP_IPV6
#define LWIP_IPV6 0
#endif
#ifndef LWIP_DNS
#define LWIP_DNS 1
#endif
#define MEM_ALIGNMENT 4
#endif
