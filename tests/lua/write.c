/* lua-write FOLDER -- write each script to FOLDER/NAME.lua. */
#include "scripts.h"

int main(int argc, char **argv) {
    size_t i;
    for (i = 0; argc == 2 && i < SCRIPTS; i++) {
        char path[1024], *text = script_text(all_scripts[i]);
        FILE *f;
        snprintf(path, sizeof path, "%s/%s.lua", argv[1], all_scripts[i]->name);
        f = fopen(path, "w");
        if (!f || fputs(text, f) < 0 || fclose(f) != 0) return 1;
        free(text);
    }
    return argc != 2;
}
