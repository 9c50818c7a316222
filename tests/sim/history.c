/*
 * The history of a run, for the judge of the rig (tests/rig/). It contains the
 * results that the actors got, with one file for each actor, in the format of
 * tests/rig/worker.c, and the final content of the server. It is written only
 * if all changes are made by delayq's handles, with calls that the judge knows.
 *
 * The judge knows less than check.c, since it sees no commands of the server.
 * If check.c finds no fault in a run, the judge must find none either.
 */
#include "sim.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *history_folder;

static FILE *files[MAX_ACTORS], *driver;
static int lives[MAX_ACTORS];
static long number;
/* For each actor: the calls without a result so far, each with its item. */
static struct intent {
    struct intent *next;
    const item *it;
    int64_t begun_us;
} * intents[MAX_ACTORS];

/* Returns 1 if a history can express all calls of this plan that change
 * items. */
static int is_judged(void) {
    int i;
    if (sim_plan.broadcast || sim_plan.max_late_ms || sim_plan.clears) return 0;
    for (i = 0; i < sim_plan.actor_count; i++) {
        actor_kind k = sim_plan.actors[i].kind;
        if (k == JAVA || k == PUSHER || k == REDRIVER) return 0;
    }
    return 1;
}

static FILE *open_file(const char *name) {
    char path[512];
    FILE *f;
    snprintf(path, sizeof path, "%s/%s.history", history_folder, name);
    f = fopen(path, "w");
    if (!f) perror(path), exit(2);
    return f;
}

static int64_t ahead_us; /* server's clock - true time, as last noted */

static void note_clock(void) {
    ahead_us = service_now_us() - sim_now();
    fprintf(driver, "k %" PRId64 " %" PRId64 " %" PRId64 "\n", sim_now(),
            sim_now(), ahead_us);
}

void history_begin(void) {
    if (!history_folder || !is_judged()) return;
    driver = open_file("driver");
    fprintf(driver, "h 0 driver driver sim - 0 0 0 0\n");
    /* An actor may use both queues. In the history they are one. */
    fprintf(driver, "Q jobs attempts=%d counted=0 ordered=0 keys=0\n",
            sim_plan.max_attempts);
    note_clock();
}

void history_clock_set(void) {
    if (driver) note_clock();
}

static FILE *file_of(const actor *a) {
    FILE *f = files[a->index];
    /* Note the offset of the server's clock again if it has changed. */
    if (service_now_us() - sim_now() != ahead_us) note_clock();
    if (!f) f = files[a->index] = open_file(a->name);
    if (lives[a->index] != a->life + 1) {
        lives[a->index] = a->life + 1;
        fprintf(f, "h %" PRId64 " today sim sim jobs %" PRId64 " %d %d 0\n",
                sim_now(), sim_plan.lease_ms, sim_plan.wire != DELAYQ_NATIVE,
                a->outbox != NULL);
    }
    return f;
}

/* The delay and the key are written at the end, since they are set later. */
void history_new_item(const actor *a, const item *it) {
    if (!driver) return;
    fprintf(file_of(a), "o %" PRId64 " o%d %d 0 - 0\n", sim_now(), it->id,
            it->id);
}

void history_offered(const actor *a, const item *it, delayq_status status) {
    if (!driver) return;
    fprintf(file_of(a), "r %" PRId64 " o%d %d -\n", sim_now(), it->id, status);
}

void history_intend(const actor *a, const item *it) {
    struct intent *i;
    if (!driver) return;
    i = (struct intent *)malloc(sizeof *i);
    i->next = intents[a->index];
    i->it = it;
    i->begun_us = sim_now();
    intents[a->index] = i;
}

void history_settled(const actor *a, const item *it, delayq_status status,
                     const char *verb) {
    struct intent **at = &intents[a->index], **oldest = NULL, *i;
    static const char *const verbs[] = {
        "ack", "bury", "cancel", "nack", "release", "extend", "reschedule"};
    static const char letters[] = "abcnnxs";
    size_t v;
    if (!driver) return;
    for (; *at; at = &(*at)->next)
        if ((*at)->it == it) oldest = at;
    if (!oldest) return;
    i = *oldest;
    *oldest = i->next;
    for (v = 0; v < 6 && strcmp(verb, verbs[v]) != 0; v++) continue;
    number++;
    fprintf(file_of(a), "%c %" PRId64 " %ld %d%s\nr %" PRId64 " %ld %d -\n",
            letters[v], i->begun_us, number, it->id,
            v == 6             ? " 0"
            : v == 3 || v == 4 ? " - -1"
                               : " - 0",
            sim_now(), number,
            /* 98: OK or GONE, since an outbox may report OK in both cases */
            a->outbox && status == DELAYQ_OK ? 98 : status);
    free(i);
}

void history_got(const actor *a, const item *it, const delayq_item *got) {
    if (!driver || !it) return;
    fprintf(file_of(a),
            "T %" PRId64 " %" PRId64 " %d %d %" PRId64 " %" PRId64 " %s 0\n",
            a->call_us, sim_now(), it->id, got->attempt, got->due_ms,
            got->late_us, got->ticket.text[0] ? got->ticket.text : "-");
}

void history_final(const char *state, int id, const char *element, size_t len) {
    const char *end = element ? (const char *)memchr(element, '\n', len) : NULL;
    int attempt = 0;
    char reason[24] = "-";
    if (!driver) return;
    if (end) {
        sscanf(element, "%23s", reason);
        if (end + 18 < element + len && end[1] == 16)
            attempt = (unsigned char)end[16] << 8 | (unsigned char)end[17];
    }
    fprintf(driver, "F jobs %s %d 0 %d %s\n", state, id, attempt, reason);
}

/* Write the facts that are known only at the end: the delay and key of each
 * item, whether a crash may have affected it, and requests without a result. */
void history_end(void) {
    int i;
    if (!driver) return;
    for (i = 0; i < check_item_count(); i++) {
        const item *it = check_item(i);
        char key[16] = "-";
        if (it->key) snprintf(key, sizeof key, "key%d", it->key);
        /* Due times are whole ms, so an item may be due up to 1 ms early. */
        fprintf(driver, "O jobs %d %" PRId64 " %s\n", it->id, it->delay_ms - 1,
                key);
        if (it->disturbed || it->lost) fprintf(driver, "D jobs %d\n", it->id);
    }
    for (i = 0; i < MAX_ACTORS; i++) {
        while (intents[i]) {
            struct intent *next = intents[i]->next;
            /* The kind of the request is not known, so write all kinds. */
            fprintf(files[i] ? files[i] : driver,
                    "a %" PRId64 " x %d -\nb %" PRId64 " x %d -\n"
                    "n %" PRId64 " x %d - -1\ns %" PRId64 " x %d 0\n",
                    intents[i]->begun_us, intents[i]->it->id,
                    intents[i]->begun_us, intents[i]->it->id,
                    intents[i]->begun_us, intents[i]->it->id,
                    intents[i]->begun_us, intents[i]->it->id);
            free(intents[i]);
            intents[i] = next;
        }
        if (files[i]) fclose(files[i]);
        files[i] = NULL;
        lives[i] = 0;
    }
    fclose(driver);
    driver = NULL;
}
