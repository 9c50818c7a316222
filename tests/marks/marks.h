/* Defines delayq.h's marks. `make marks` includes this before each C file. */
#ifndef MARKS_H
#define MARKS_H

void marks_reach(const char *name); /* see marks.c */

#define DQ_MARK(name)           \
    do {                        \
        static int reached;     \
        if (!reached) {         \
            reached = 1;        \
            marks_reach(#name); \
        }                       \
    } while (0)

#endif
