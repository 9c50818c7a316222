/* All scripts, for tests that check each of them. delayq.h has no such table.
 * tests/lua.sh checks that no script is missing here. */
#ifndef SCRIPTS_H
#define SCRIPTS_H

#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "../../delayq.h"
#include <stdio.h>
#include <stdlib.h>

static const dq_script *const all_scripts[] = {
    &dq_script_offer,         &dq_script_offer_keyed, &dq_script_tick,
    &dq_script_tick_redisson, &dq_script_take,        &dq_script_take_redisson,
    &dq_script_broadcast,     &dq_script_tickets,     &dq_script_peek,
    &dq_script_count,         &dq_script_clear,       &dq_script_dead,
    &dq_script_probe,         &dq_script_pause,       &dq_script_mixed};
#define SCRIPTS (sizeof all_scripts / sizeof all_scripts[0])

/* Returns a script's text, which the caller frees. */
static inline char *script_text(const dq_script *script) {
    size_t len = 0, i;
    char *text;
    for (i = 0; script->parts[i]; i++) len += strlen(script->parts[i]);
    text = (char *)calloc(1, len + 1);
    if (!text) abort();
    for (i = 0; script->parts[i]; i++) strcat(text, script->parts[i]);
    return text;
}

#endif
