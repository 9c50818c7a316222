/* A program that offers, takes and ticks. */
#include "delayq.h"

static delayq q;
const delayq_options its_options = {0};
int program(void);

int program(void) {
    delayq_item item;
    int64_t wait_ms;
    if (delayq_open(&q, &its_options) != DELAYQ_OK) return 1;
    for (;;) {
        while (delayq_take(&q, &item, 0) == DELAYQ_OK)
            if (delayq_offer(&q, item.data, item.len, 5000) != DELAYQ_OK)
                return delayq_errmsg(&q)[0];
        if (delayq_tick(&q, &wait_ms) != DELAYQ_OK) break;
    }
    delayq_close(&q);
    return 0;
}
