#!/bin/sh
# Static checks of the header and the documentation: standards and
# warnings with gcc and clang, two translation units, DELAYQ_STATIC, reserved
# names, lines of 80 columns, that every example in the documentation compiles,
# and that the README's first is examples/hello.c. Ends in
# "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

printf '#define DELAYQ_IMPLEMENTATION\n#include "delayq.h"\n' >"$dir/one.c"
printf '#include "delayq.h"\nint main(void) { return delayq_errmsg(0)[0]; }\n' \
    >"$dir/two.c"
printf '#include <stdio.h>\n#include <hiredis/hiredis.h>\n' >"$dir/late.c"
cat "$dir/one.c" >>"$dir/late.c"
cp "$dir/one.c" "$dir/one.cc"
cp "$dir/two.c" "$dir/two.cc"

for pair in "gcc g++" "clang clang++"; do
    c=${pair% *} cxx=${pair#* }
    has "$c" "$cxx" || continue
    for std in c99 c11 c17; do
        check "$c -std=$std" "$c" -std=$std -O2 $warn -Wstrict-prototypes -I. \
            -c "$dir/one.c" -o "$dir/one.o"
    done
    check "$c -std=gnu99, included after system headers" "$c" -std=gnu99 -O2 \
        $warn -I. -c "$dir/late.c" -o "$dir/late.o"
    for std in c++11 c++14 c++17 c++20; do
        check "$cxx -std=$std" "$cxx" -std=$std -O2 $warn -I. \
            -c "$dir/one.cc" -o "$dir/one.oo"
    done
    check "$c: two translation units link" "$c" -std=c99 $warn -I. \
        "$dir/one.o" "$dir/two.c" -lhiredis -o "$dir/both"
    check "$c: and run" "$dir/both"
    check "$cxx uses what $c has compiled" "$cxx" -std=c++11 $warn -I. \
        "$dir/one.o" "$dir/two.cc" -lhiredis -o "$dir/mixed"
    check "$c -DDELAYQ_STATIC" "$c" -std=c99 -O0 $warn -DDELAYQ_STATIC -I. \
        -c "$dir/one.c" -o "$dir/static.o"
    nm -g --defined-only "$dir/static.o" >"$dir/symbols"
    if [ -s "$dir/symbols" ]; then
        bad "DELAYQ_STATIC leaks symbols"
        cat "$dir/symbols"
    else ok; fi
    nm -g --defined-only "$dir/one.o" | grep -v ' delayq_' >"$dir/symbols"
    if [ -s "$dir/symbols" ]; then
        bad "symbols that don't begin with delayq_"
        cat "$dir/symbols"
    else ok; fi
    check "$c: the command-line tool" "$c" -std=c99 -O2 $warn -I. \
        examples/tool/*.c -lhiredis -o "$dir/tool"
done

# The version as text and as numbers.
cat "$dir/one.c" - >"$dir/version.c" <<'END'
int main(void) {
    char numbers[32];
    snprintf(numbers, sizeof numbers, "%d.%d.%d", DELAYQ_VERSION_MAJOR,
             DELAYQ_VERSION_MINOR, DELAYQ_VERSION_PATCH);
    return strcmp(numbers, DELAYQ_VERSION) != 0;
}
END
check "the version compiles as numbers" cc -I. "$dir/version.c" -lhiredis \
    -o "$dir/version"
check "the version's numbers are those of its text" "$dir/version"

# Names: macros and types of our own, none reserved.
names=$(sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' delayq.h |
    grep -v -e '^DELAYQ_' -e '^DQ_' -e '^_DEFAULT_SOURCE$')
if [ -n "$names" ]; then bad "macros with a foreign name: $names"; else ok; fi
cc -x c -fpreprocessed -dD -E -P delayq.h >"$dir/bare" 2>/dev/null
names=$(sed 's/"[^"]*"//g' "$dir/bare" |
    grep -o -w -e '_[A-Z][A-Za-z_0-9]*' -e '[A-Za-z0-9]*__[A-Za-z_0-9]*' |
    sort -u | grep -v -x -e _GNU_SOURCE -e _DEFAULT_SOURCE \
    -e __STRICT_ANSI__ -e __GNUC__ -e '__GLIBC.*__' -e __cplusplus \
    -e __attribute__ \
    -e '__atomic_.*' -e '__ATOMIC_.*' -e __VA_ARGS__)
if [ -n "$names" ]; then bad "reserved names: $names"; else ok; fi

# The contents at the top of the header and its sections agree.
sed -n '/^ \* Contents/,/^ \* >>/s/^ \*     \(>>[a-z-]*\) .*/\1/p' delayq.h |
    sort >"$dir/listed"
sed -n 's/^ \* \(>>[a-z-]*\) .*/\1/p' delayq.h | sort >"$dir/sections"
check "each tag of the contents is that of a section" \
    diff "$dir/listed" "$dir/sections"

for file in delayq.h $(ls examples/*.c examples/*/*.c tests/*.[ch] \
    tests/*/*.[ch]); do
    long=$(awk 'length > 80 { print FILENAME ":" FNR }' "$file")
    if [ -n "$long" ]; then bad "over 80 columns: $long"; else ok; fi
done

# The header's quick start, out of its comment.
sed -n '/^ \* >>start -- /,/^ \* There is no thread/s/^ \*     \{0,1\}//p' \
    delayq.h | sed 's/  (.*)$//' >"$dir/start.c"
sed -e '1,/^ \*\//d' -e 's, /\*.*,,' examples/hello.c >"$dir/hello.c"
check "the header's quick start is examples/hello.c" \
    diff -B -Z "$dir/start.c" "$dir/hello.c"
check "the header's quick start compiles" cc -std=c99 $warn -I. "$dir/start.c" \
    -lhiredis -o "$dir/start"
# The README's programs: every ```c block that has a main.
awk -v dir="$dir" '/^```c$/ { n++; on = 1; next } /^```$/ { on = 0 }
    on { print > (dir "/readme" n ".c") }' README.md
for file in "$dir"/readme*.c; do
    [ -f "$file" ] || { bad "no C in the README"; break; }
    if grep -q '<event2/' "$file" && ! echo '#include <event2/event.h>' |
        cc -E - >/dev/null 2>&1; then
        skip "libevent is not installed: install libevent-dev"
    elif grep -q 'main(' "$file"; then
        libs=-lhiredis
        ! grep -q '<event2/' "$file" || libs="$libs -levent_core"
        check "the README's program compiles" cc -std=c99 $warn -I. "$file" \
            $libs -o "$dir/readme"
    else
        printf '%s\n' '#define DELAYQ_IMPLEMENTATION' '#include "delayq.h"' \
            '#include <stdio.h>' '#include <string.h>' '#include <poll.h>' \
            '#include <time.h>' \
            'void piece(delayq q, delayq_options options, delayq_item item);' \
            'void piece(delayq q, delayq_options options, delayq_item item) {' \
            '(void)q; (void)options; (void)item;' >"$dir/piece.c"
        cat "$file" >>"$dir/piece.c"
        echo '}' >>"$dir/piece.c"
        check "a piece of the README compiles: $(head -1 "$file")" \
            cc -std=c99 -Wall -Werror -I. -c "$dir/piece.c" -o "$dir/piece.o"
    fi
done

# The README's first program is examples/hello.c.
block=$(awk '/^```c$/ { on = 1; next } on && /^```$/ { exit } on' README.md)
if [ "$block" = "$(sed '1,/^ \*\/$/d' examples/hello.c)" ]; then ok; else
    bad "the README's first program is not that of examples/hello.c"
fi

# Every delayq_ name in the documentation exists.
for name in $(grep -o -h -w -e 'delayq_[a-z_]*' -e 'DELAYQ_[A-Z_]*' README.md \
    examples/*.c examples/*/*.c examples/*/*.md | sort -u); do
    case $name in
    delayq_retry | delayq_dead | delayq_stream | DELAYQ_URL) ;;
    DELAYQ_NAME | DELAYQ_TICKET | DELAYQ_ATTEMPT) ;; # for commands
    DELAYQ_DUE_MS | DELAYQ_LATE_MS) ;;
    delayq_up | delayq_pending | delayq_overdue | delayq_overdue_seconds) ;;
    delayq_next_due_timestamp_seconds) ;; # metrics of the tool
    *) if grep -q -w -e "$name" delayq.h; then ok; else
        bad "$name is named, but not in delayq.h"
    fi ;;
    esac
done

# Every target of .PHONY has its line in make help.
make -s help | cut -c 1-14 >"$dir/help"
for target in $(sed -n '/^\.PHONY:/,$p' Makefile | tr -d '\\' | cut -d: -f2); do
    if grep -q -w -e "$target" "$dir/help"; then ok; else
        bad "make help doesn't list $target"
    fi
done

summary
