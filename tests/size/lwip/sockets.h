/* Linux' sockets under lwIP's names. `make size` uses this to compile the port
 * of examples/device with the Linux compiler. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define LWIP_IPV6 1
#define LWIP_DNS 1
#define closesocket close
#define ioctlsocket ioctl
#define lwip_freeaddrinfo freeaddrinfo
#define lwip_getaddrinfo getaddrinfo
