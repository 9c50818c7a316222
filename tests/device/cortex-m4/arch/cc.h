/* newlib has struct timeval, fd_set and errno. */
#include <sys/time.h>
#define LWIP_TIMEVAL_PRIVATE 0
#define LWIP_ERRNO_STDINCLUDE 1
