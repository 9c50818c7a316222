/* A program that only offers. */
#include "delayq.h"

static delayq q;
const delayq_options its_options = {0};
int program(void);

int program(void) {
    if (delayq_open(&q, &its_options) != DELAYQ_OK) return 1;
    if (delayq_offer(&q, "x", 1, 5000) != DELAYQ_OK)
        return delayq_errmsg(&q)[0];
    delayq_close(&q);
    return 0;
}
