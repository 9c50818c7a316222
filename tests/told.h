/*
 * Checks the text that delayq_errmsg returns after each call: it is empty after
 * DELAYQ_OK, and not empty after a failure other than DELAYQ_ERR_ARG. If the
 * text says whether the call may have had an effect, that agrees with the
 * status.
 */
#ifndef TOLD_H
#define TOLD_H

/* Fail the test if the text of the call is wrong. Returns `status`. */
delayq_status honest(const delayq *q, delayq_status status, const char *call);

/* Returns the fault of the text, or NULL if there is none. */
__attribute__((unused)) static const char *falsehood(const delayq *q,
                                                     delayq_status status) {
    const char *text = delayq_errmsg(q);
    int may = status == DELAYQ_ERR_UNKNOWN || status == DELAYQ_ERR_PROTOCOL;
    if (status == DELAYQ_OK && *text) return "has not failed, and says why";
    if (status >= DELAYQ_OK || status == DELAYQ_ERR_ARG) return NULL;
    if (!*text) return "doesn't say why";
    return strstr(text, may ? "nothing has happened" : "may have happened")
               ? "may have happened, or not: its text says otherwise"
               : NULL;
}

/* Recipes don't use these macros, which evaluate `q` twice. Of the tests with
 * old headers only the simulator does. */
#if (defined DELAYQ_BROADCAST || (defined SIM_API && SIM_API == 2)) && \
    !defined UNTOLD
#define TOLD(q, call, ...) honest(q, call(q, __VA_ARGS__), #call)
#define delayq_open(q, ...) TOLD(q, delayq_open, __VA_ARGS__)
#define delayq_offer(q, ...) TOLD(q, delayq_offer, __VA_ARGS__)
#define delayq_offer_message(q, ...) TOLD(q, delayq_offer_message, __VA_ARGS__)
#define delayq_offer_many(q, ...) TOLD(q, delayq_offer_many, __VA_ARGS__)
#define delayq_tick(q, ...) TOLD(q, delayq_tick, __VA_ARGS__)
#define delayq_take(q, ...) TOLD(q, delayq_take, __VA_ARGS__)
#define delayq_take_many(q, ...) TOLD(q, delayq_take_many, __VA_ARGS__)
#define delayq_ack(q, ...) TOLD(q, delayq_ack, __VA_ARGS__)
#define delayq_ack_take(q, ...) TOLD(q, delayq_ack_take, __VA_ARGS__)
#define delayq_ack_many(q, ...) TOLD(q, delayq_ack_many, __VA_ARGS__)
#define delayq_nack(q, ...) TOLD(q, delayq_nack, __VA_ARGS__)
#define delayq_bury(q, ...) TOLD(q, delayq_bury, __VA_ARGS__)
#define delayq_extend(q, ...) TOLD(q, delayq_extend, __VA_ARGS__)
#define delayq_cancel(q, ...) TOLD(q, delayq_cancel, __VA_ARGS__)
#define delayq_cancel_key(q, ...) TOLD(q, delayq_cancel_key, __VA_ARGS__)
#define delayq_reschedule(q, ...) TOLD(q, delayq_reschedule, __VA_ARGS__)
#define delayq_peek(q, ...) TOLD(q, delayq_peek, __VA_ARGS__)
#define delayq_count(q, ...) TOLD(q, delayq_count, __VA_ARGS__)
#define delayq_count_due(q, ...) TOLD(q, delayq_count_due, __VA_ARGS__)
#define delayq_pause(q, ...) TOLD(q, delayq_pause, __VA_ARGS__)
#define delayq_clear(q, ...) TOLD(q, delayq_clear, __VA_ARGS__)
#define delayq_dead_peek(q, ...) TOLD(q, delayq_dead_peek, __VA_ARGS__)
#define delayq_dead_redrive(q, ...) TOLD(q, delayq_dead_redrive, __VA_ARGS__)
#define delayq_dead_clear(q, ...) TOLD(q, delayq_dead_clear, __VA_ARGS__)
#define delayq_flush(q, ...) TOLD(q, delayq_flush, __VA_ARGS__)
#endif

#endif
