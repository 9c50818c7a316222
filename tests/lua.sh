#!/bin/sh
# lua.sh write|check DIR -- writes the scripts to files.
#
# write: composes delayq.h's scripts as DIR/lua/NAME.lua and writes the SHA1 of
# each into delayq.h, for EVALSHA. check: writes only the files, runs luacheck
# on each of them, and checks the SHA1s. It also checks that tests/lua/scripts.h
# has all scripts. Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
what=$1 dir=${2:-build}
passed=0 failed=0 skipped=0
ok() { passed=$((passed + 1)); }
bad() { failed=$((failed + 1)); echo "FAIL $1"; }
skip() { skipped=$((skipped + 1)); echo "skip $1"; }

mkdir -p "$dir/lua" || exit 1
rm -f "$dir"/lua/*.lua
${CC:-cc} -std=gnu99 -w $HIREDIS_CFLAGS -I. tests/lua/write.c \
    ${HIREDIS_LIBS:--lhiredis} -o "$dir/lua-write" &&
    "$dir/lua-write" "$dir/lua" || exit 1

for script in "$dir"/lua/*.lua; do
    name=$(basename "$script" .lua)
    sha=$(sha1sum <"$script" | cut -d' ' -f1)
    if grep -q "\"$sha\"" delayq.h; then
        ok
    elif [ "$what" = write ]; then
        # Find the first SHA1 after the script's name.
        awk -v name="$name" -v sha="$sha" '
            BEGIN { for (i = 0; i < 40; i++) hex = hex "[0-9a-f]" }
            index($0, "DQ_SCRIPT(" name ",") { on = 1 }
            on && match($0, "\"" hex "\"") {
                $0 = substr($0, 1, RSTART) sha substr($0, RSTART + 41)
                on = 0
            }
            { print }' delayq.h >"$dir/delayq.h.new" &&
            cat "$dir/delayq.h.new" >delayq.h
        rm -f "$dir/delayq.h.new"
        echo "$name: $sha"
    else
        bad "the text of $name has changed, but not its SHA1: run make lua"
    fi
done
[ "$what" = write ] && exit 0

count=$(grep -c '^DQ_SCRIPT(' delayq.h)
files=$(ls "$dir"/lua/*.lua | wc -l)
if [ "$count" -eq "$files" ]; then ok; else
    bad "delayq.h has $count scripts, tests/lua/scripts.h $files"
fi

if command -v luacheck >/dev/null; then
    for script in "$dir"/lua/*.lua; do
        if luacheck --no-config --no-color --quiet --std lua51 \
            --ignore 211/split 211/attempts 211/with_attempts 211/cost 431/held 431/argv 431/us 431/zset --globals redis KEYS ARGV struct --max-line-length 75 \
            "$script" >"$dir/lua/out" 2>&1; then ok; else
            bad "luacheck $script"
            cat "$dir/lua/out"
        fi
    done
    rm -f "$dir/lua/out"
else
    skip "luacheck is missing (Debian: lua-check)"
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
