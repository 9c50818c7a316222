/* lwIP as a small device has it: the sockets are macros, no IPv6. */
#define NO_SYS 0
#define LWIP_SOCKET 1
#define LWIP_COMPAT_SOCKETS 1
#define LWIP_POSIX_SOCKETS_IO_NAMES 1
#define LWIP_HAVE_LOOPIF 1
#define LWIP_NETIF_LOOPBACK 1
#define LWIP_DNS 1
#define LWIP_IPV6 0
#define MEM_ALIGNMENT 4
