/*
 * Count the functions of delayq.h that an offer and a take enter, by means of
 * the compiler's -finstrument-functions. The count shows how much code a reader
 * has to follow. `make calls` builds and runs this program.
 */
#define DELAYQ_IMPLEMENTATION
#include "delayq.h"
#include <stdlib.h>

#define UNCOUNTED __attribute__((no_instrument_function))

static unsigned long entered;

UNCOUNTED void __cyg_profile_func_enter(void *function, void *caller);
UNCOUNTED void __cyg_profile_func_exit(void *function, void *caller);

void __cyg_profile_func_enter(void *function, void *caller) {
    (void)function, (void)caller;
    entered++;
}

void __cyg_profile_func_exit(void *function, void *caller) {
    (void)function, (void)caller;
}

UNCOUNTED static void check(delayq *q, delayq_status status) {
    if (status == DELAYQ_OK) return;
    fprintf(stderr, "%s\n", delayq_errmsg(q));
    exit(1);
}

/* Print the counts of the second round only. By then the scripts are loaded,
 * and the subscriber is open. */
UNCOUNTED int main(void) {
    static delayq q;
    delayq_options options;
    delayq_item item;
    unsigned long offer = 0, take = 0;
    int i;
    memset(&options, 0, sizeof options);
    options.name = "calls";
    options.url = getenv("DELAYQ_URL");
    check(&q, delayq_open(&q, &options));
    check(&q, delayq_clear(&q, NULL));
    for (i = 0; i < 2; i++) {
        entered = 0;
        check(&q, delayq_offer(&q, "hello", 5, 0));
        offer = entered;
        usleep(5000); /* the item is due by now */
        entered = 0;
        check(&q, delayq_take(&q, &item, 1000));
        take = entered;
    }
    delayq_close(&q);
    printf("functions entered by an offer: %lu\n", offer);
    printf("functions entered by a take with an item due: %lu\n", take);
    return 0;
}
