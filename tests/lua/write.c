/* lua-write FOLDER -- write each script to FOLDER/NAME.lua, and what counts
 * also to FOLDER/NAME_counted.lua. */
#include "scripts.h"

int main(int argc, char **argv) {
    size_t i;
    for (i = 0; argc == 2 && i < 2 * SCRIPTS; i++) {
        const dq_script *script = all_scripts[i / 2];
        int counts = (int)i % 2;
        char path[1024], *text;
        FILE *f;
        if (counts && !script->counted_sha) continue;
        text = script_text(script, counts);
        snprintf(path, sizeof path, "%s/%s%s.lua", argv[1], script->name,
                 counts ? "_counted" : "");
        f = fopen(path, "w");
        if (!f || fputs(text, f) < 0 || fclose(f) != 0) return 1;
        free(text);
    }
    return argc != 2;
}
