/* The device's port on Debian's liblwip. That library names its functions for
 * sockets only lwip_..., so this file defines the macros that are missing in
 * lwip/sockets.h. */
#include "lwip/sockets.h"
#define accept(s, addr, addrlen) lwip_accept(s, addr, addrlen)
#define bind(s, name, namelen) lwip_bind(s, name, namelen)
#define shutdown(s, how) lwip_shutdown(s, how)
#define getpeername(s, name, namelen) lwip_getpeername(s, name, namelen)
#define getsockname(s, name, namelen) lwip_getsockname(s, name, namelen)
#define setsockopt(s, level, opt, val, len) \
    lwip_setsockopt(s, level, opt, val, len)
#define getsockopt(s, level, opt, val, len) \
    lwip_getsockopt(s, level, opt, val, len)
#define closesocket(s) lwip_close(s)
#define connect(s, name, namelen) lwip_connect(s, name, namelen)
#define listen(s, backlog) lwip_listen(s, backlog)
#define recv(s, mem, len, flags) lwip_recv(s, mem, len, flags)
#define send(s, data, size, flags) lwip_send(s, data, size, flags)
#define socket(domain, type, protocol) lwip_socket(domain, type, protocol)
#define poll(fds, nfds, timeout) lwip_poll(fds, nfds, timeout)
#define ioctlsocket(s, cmd, argp) lwip_ioctl(s, cmd, argp)
#define inet_ntop(af, src, dst, size) lwip_inet_ntop(af, src, dst, size)
#define inet_pton(af, src, dst) lwip_inet_pton(af, src, dst)
#define read(s, mem, len) lwip_read(s, mem, len)
#define write(s, data, len) lwip_write(s, data, len)
#define close(s) lwip_close(s)
#define fcntl(s, cmd, val) lwip_fcntl(s, cmd, val)
#define ioctl(s, cmd, argp) lwip_ioctl(s, cmd, argp)
#include "../../../examples/device/lwip.h"

/* The functions of bridge.c that the smoke test calls. */
void bridge_start(const char *url);
void bridge_obey(const char *what);
int bridge_resolve(void *user, const char *host, char *address, size_t size);
