/* The Lua scripts: they load, and their pieces keep the limits of C and Lua. */
#include "lua/scripts.h"
#include "test.h"

TEST(every_script_loads_and_has_the_sha_that_the_header_says) {
    size_t i;
    for (i = 0; i < 2 * SCRIPTS; i++) {
        const dq_script *script = all_scripts[i / 2];
        const char *want = i % 2 ? script->counted_sha : script->sha, *sha;
        char *text = script_text(script, (int)i % 2);
        if (i % 2 == 1 && !want) { /* it counts nothing */
            free(text);
            continue;
        }
        sha = ask("SCRIPT LOAD %s", text);
        if (strlen(sha) != 40) FAIL("%s: %s", script->name, sha);
        if (want && strcmp(sha, want) != 0)
            FAIL("%s has another text: run make lua", script->name);
        free(text);
    }
}

/* C99 guarantees string literals of 4,095 bytes; more than 3,000 are more than
 * one idea. */
TEST(no_piece_of_a_script_is_longer_than_3000_bytes) {
    size_t i, k;
    for (i = 0; i < SCRIPTS; i++)
        for (k = 0; all_scripts[i]->parts[k]; k++)
            if (strlen(all_scripts[i]->parts[k]) > 3000)
                FAIL("part %zu of %s has %zu bytes", k, all_scripts[i]->name,
                     strlen(all_scripts[i]->parts[k]));
}

/* Each piece is a complete chunk of its own: it compiles alone. */
TEST(every_piece_of_a_script_is_a_complete_chunk) {
    size_t i, k;
    for (i = 0; i < SCRIPTS; i++)
        for (k = 0; all_scripts[i]->parts[k]; k++) {
            const char *sha = ask("SCRIPT LOAD %s", all_scripts[i]->parts[k]);
            if (strlen(sha) != 40)
                FAIL("part %zu of %s: %s", k, all_scripts[i]->name, sha);
        }
}

TEST(scripts_have_one_flag_bit_each) {
    unsigned seen = 0;
    size_t i;
    for (i = 0; i < SCRIPTS; i++) {
        CHECK(!(seen & all_scripts[i]->bit));
        CHECK(all_scripts[i]->bit < 1u << 16); /* those that count: above */
        seen |= all_scripts[i]->bit;
    }
}

TEST(a_native_queue_has_no_mirror_in_its_scripts) {
    size_t i;
    for (i = 0; i < SCRIPTS; i++) {
        char *text = script_text(all_scripts[i], 0);
        if (strstr(text, "sweep_mirror("))
            CHECK(strstr(all_scripts[i]->name, "redisson"));
        free(text);
    }
}

/* On a new connection each script's text is sent once. */
TEST(a_script_is_sent_once_per_connection) {
    delayq q;
    delayq_item item;
    const char *info;
    int i;
    open_queue(&q, "jobs");
    ask("SCRIPT FLUSH");
    ask("CONFIG RESETSTAT");
    for (i = 0; i < 3; i++) {
        OFFER(&q, "x", 0);
        usleep(1500);
        OK(&q, delayq_take(&q, &item, 0));
    }
    info = ask("INFO commandstats");
    CHECK_HAS(info, "cmdstat_evalsha:calls=6,");
    CHECK(!strstr(info, "cmdstat_eval:"));
    if (main_server.major >= 7) CHECK_HAS(info, "cmdstat_script|load:calls=2,");
    delayq_close(&q);
}
