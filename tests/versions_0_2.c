/* The tests of tests/versions.c, with 0.2 as the old version. */
#define OLD peer_0_2
#define OLD_TEST(sentence) TEST(sentence##_with_0_2)
#include "versions.c"
