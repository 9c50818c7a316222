#!/bin/sh
# Run a test program under valgrind: any error, and any definite or indirect
# leak, fails its test.
exec env DELAYQ_TEST_BRIEF=1 DELAYQ_TEST_SLOW="${DELAYQ_TEST_SLOW:-10}" valgrind -q \
    --leak-check=full --show-leak-kinds=definite,indirect \
    --errors-for-leak-kinds=definite,indirect --error-exitcode=99 \
    --child-silent-after-fork=no --trace-children=no "$@"
