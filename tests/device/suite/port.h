/* The device's port on Debian's liblwip, for the tests. network.c
 * redirects connects to Linux' loopback. */
#include "../linux/port.h"
#undef connect
#define connect(s, name, namelen) network_connect(s, name, namelen)
int network_connect(int fd, const struct sockaddr *to, socklen_t size);
