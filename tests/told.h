/*
 * A check of the text that delayq_errmsg returns after each call: none after
 * DELAYQ_OK, one after a failure. It says that nothing has happened, or that it
 * may have happened, only if the status says so, too.
 */
#ifndef TOLD_H
#define TOLD_H

/* Fails if the text is wrong. Returns the status. */
delayq_status honest(const delayq *q, delayq_status status, const char *call);

/* Returns what is wrong with the text, or NULL. */
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

/* Not in an old header, nor for recipes, whose arguments are copied as text. */
#if defined DELAYQ_BROADCAST && !defined UNTOLD
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
