#!/bin/sh
# Static checks of the header: standards and warnings with gcc and clang, two
# translation units, DELAYQ_STATIC, reserved names, lines of 80 columns, its
# quick start. Ends in "N passed, N failed, N skipped".
#
#     tests/hygiene.sh [short]   short: the optimizer runs only once, for the
#                                header in C. This needs a third of the time
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"

printf '#define DELAYQ_IMPLEMENTATION\n#include "delayq.h"\n' >"$dir/one.c"
printf '#include "delayq.h"\nint main(void) { return delayq_errmsg(0)[0]; }\n' \
    >"$dir/two.c"
printf '#include <stdio.h>\n#include <hiredis/hiredis.h>\n' >"$dir/late.c"
cat "$dir/one.c" >>"$dir/late.c"
cat >"$dir/user.c" <<'END'
#define _GNU_SOURCE
#include <string.h>
#include "delayq.h"
int main(void) { return strcasestr("delayq", delayq_errmsg(0)) == NULL; }
END
cp "$dir/one.c" "$dir/one.cc"
cp "$dir/two.c" "$dir/two.cc"

# The optimizer's warnings don't depend on the standard, so the optimizer runs
# once for each compiler and language.
first=-O2
for pair in "gcc g++" "clang clang++"; do
    c=${pair% *} cxx=${pair#* }
    has "$c" "$cxx" || continue
    level=-O2
    [ "$1" != short ] || level=-O0
    check "$c -std=c99" "$c" -std=c99 ${first:-$level} $warn \
        -Wstrict-prototypes -I. \
        -c "$dir/one.c" -o "$dir/one.o"
    for std in c11 c17; do
        check "$c -std=$std" "$c" -std=$std -fsyntax-only $warn \
            -Wstrict-prototypes -I. "$dir/one.c"
    done
    check "$c -std=gnu99, included after system headers" "$c" -std=gnu99 \
        -fsyntax-only $warn -I. "$dir/late.c"
    # If an earlier header hides POSIX, as in a unity build, an error must say
    # what to do.
    if "$c" -std=c99 -I. -fsyntax-only "$dir/late.c" 2>"$dir/said"; then
        ok
    else
        check "$c -std=c99, included after system headers: it says what to do" \
            sh -c 'grep -m 1 error: "$1" | grep -q "in a file of its own"' - \
            "$dir/said"
    fi
    for define in _GNU_SOURCE "_POSIX_C_SOURCE 200809L"; do
        printf '#define %s\n' "$define" | cat - "$dir/late.c" >"$dir/unity.c"
        check "$c -std=c99, after system headers and $define" "$c" -std=c99 \
            -fsyntax-only $warn -I. "$dir/unity.c"
    done
    check "$c: a file that defines _GNU_SOURCE itself, beside delayq_impl.c" \
        "$c" -std=c99 $warn -I. "$dir/user.c" "$dir/one.o" -lhiredis \
        -o "$dir/user"
    first=
    check "$cxx -std=c++11" "$cxx" -std=c++11 $level $warn -I. \
        -c "$dir/one.cc" -o "$dir/one.oo"
    for std in c++14 c++17 c++20; do
        check "$cxx -std=$std" "$cxx" -std=$std -fsyntax-only $warn -I. \
            "$dir/one.cc"
    done
    check "$c: two translation units link" "$c" -std=c99 $warn -I. \
        "$dir/one.o" "$dir/two.c" -lhiredis -o "$dir/both"
    check "$c: and run" "$dir/both"
    check "$cxx uses what $c has compiled" "$cxx" -std=c++11 $warn -I. \
        "$dir/one.o" "$dir/two.cc" -lhiredis -o "$dir/mixed"
    check "$c -DDELAYQ_STATIC" "$c" -std=c99 -O0 $warn -DDELAYQ_STATIC -I. \
        -c "$dir/one.c" -o "$dir/static.o"
    check "$c -DDELAYQ_NO_LUA" "$c" -std=c99 $level $warn -DDELAYQ_NO_LUA -I. \
        -c "$dir/one.c" -o "$dir/no-lua.o"
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
    check "$c: the command-line tool" "$c" -std=c99 $level $warn -I. \
        examples/tool/*.c -lhiredis -o "$dir/tool"
done

# The version as text and as numbers must be the same.
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

# Upgrade a program for 0.2 as CHANGELOG.md says.
mkdir "$dir/0.2"
gzip -dc tests/old/0.2/delayq.h.gz >"$dir/0.2/delayq.h"
check "a program for 0.2 compiles with its header" cc -std=c99 -Wall -Werror \
    -I"$dir/0.2" -fsyntax-only tests/old/0.2/program.c
sed -e 's/delayq_bury(&q, &item)/delayq_bury(\&q, \&item, NULL)/' \
    -e 's/options\.broadcast = 1/options.wire = DELAYQ_BROADCAST/' \
    -e 's/int wire = /delayq_wire wire = /' \
    -e 's/"delayq\.h"/"..\/delayq.h"/' tests/old/0.2/program.c >"$dir/new.c"
check "and, with the changes of CHANGELOG.md, with the current one" cc -std=c99 \
    $warn -Itests -fsyntax-only "$dir/new.c"
sed 's/"delayq\.h"/"..\/delayq.h"/' tests/old/0.2/program.c >"$dir/old.c"
check "but not without them" sh -c '! "$@" 2>/dev/null' - cc -std=c99 \
    -Werror -Itests -fsyntax-only "$dir/old.c"

# What .github/STABILITY.md promises to programs for 0.3.
promised() { "$@" -Wall -Wextra -Werror -I. -o "$dir/promised" \
    tests/old/0.3/program.c -x none -lhiredis && "$dir/promised"; }
check "a program for 0.3 compiles as C" promised cc -std=c99
check "and as C++" promised c++ -std=c++11 -x c++
check "and with DELAYQ_STATIC" promised cc -std=c99 -DDELAYQ_STATIC
check "and with its port" promised cc -std=c99 \
    -DDELAYQ_PORT='"tests/old/0.3/port.h"'

# All other places that name the version must name this one.
version=$(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)
minor=${version%.*}
next=${minor%.*}.$((${minor#*.} + 1))
# says FILE TEXT: a line of the file must contain the text
says() { check "$1 is of $version: $2" grep -q -F -e "$2" "$1"; }
says delayq.h " * Version $version. "
says .github/CHANGELOG.md "## $version"
says .package/meson.build "version : '$version'"
says .package/delayq.wrap "revision = v$version"
says .package/vcpkg/delayq/vcpkg.json "\"version\": \"$version\""
says .package/debian/changelog "delayq ($version-"
says .package/README.md "find_package(delayq $minor REQUIRED)"
says tests/deb.sh "find_package(delayq $minor REQUIRED)"
says .package/README.md "GIT_TAG v$version"
says .package/README.md "version : ['>=$minor', '<$next']"
says .package/README.md "delayq/[>=$minor <$next]"
says .package/README.md "ask for \`$minor\`"
for manual in examples/delayq.1 examples/*/delayq.1; do
    [ ! -f "$manual" ] || says "$manual" ".Os delayq $version"
done

# Each mutation of `make mutations` must be applicable to this header.
if command -v perl >/dev/null; then
    check "each mutation can be applied" sh -c \
        'perl tests/sim/mutate.pl check tests/sim/mutations.txt <delayq.h'
fi

# Macros must have our prefixes, except those that replace hiredis' names by
# libvalkey's. No name may be reserved.
names=$(grep -v -i '^#define redis[_a-z]* valkey[_a-z]*$' delayq.h |
    sed -n 's/^#define \([A-Za-z_0-9]*\).*/\1/p' |
    grep -v -e '^DELAYQ_' -e '^DQ_' -e '^dq_' -e '^_DEFAULT_SOURCE$')
if [ -n "$names" ]; then bad "macros with a foreign name: $names"; else ok; fi
cc -x c -fpreprocessed -dD -E -P delayq.h >"$dir/bare" 2>/dev/null
names=$(sed 's/"[^"]*"//g' "$dir/bare" |
    grep -o -w -e '_[A-Z][A-Za-z_0-9]*' -e '[A-Za-z0-9]*__[A-Za-z_0-9]*' |
    sort -u | grep -v -x -e _GNU_SOURCE -e _DEFAULT_SOURCE \
    -e __STRICT_ANSI__ -e __GNUC__ -e '__GLIBC.*__' -e __cplusplus \
    -e __attribute__ -e _WIN32 -e _MSC_VER -e __OpenBSD__ -e '_WINSOCK.*_' \
    -e '__atomic_.*' -e '__ATOMIC_.*' -e __VA_ARGS__ -e _SC_NPROCESSORS_ONLN \
    -e __has_include -e __ANDROID__)
if [ -n "$names" ]; then bad "reserved names: $names"; else ok; fi

# The contents at the top of the header and its sections must agree.
sed -n '/^ \* Contents/,/^ \* >>/s/^ \*     \(>>[a-z-]*\) .*/\1/p' delayq.h |
    sort >"$dir/listed"
sed -n 's/^ \* \(>>[a-z-]*\) .*/\1/p' delayq.h | sort >"$dir/sections"
check "each tag of the contents is that of a section" \
    diff "$dir/listed" "$dir/sections"

twice=$(sed -n 's/.*DQ_MARK(\([a-z_]*\));.*/\1/p' delayq.h | sort | uniq -d)
if [ -n "$twice" ]; then bad "two marks have the name $twice"; else ok; fi

for file in delayq.h $(ls examples/*.c examples/*/*.c tests/*.[ch] \
    tests/*/*.[ch]); do
    long=$(awk 'length > 80 { print FILENAME ":" FNR }' "$file")
    if [ -n "$long" ]; then bad "over 80 columns: $long"; else ok; fi
    # clang-format makes such lines when it breaks a long line of a comment.
    glued=$(grep -n '^ \*[A-Za-z]' "$file" /dev/null)
    if [ -n "$glued" ]; then bad "a comment's line: $glued"; else ok; fi
done

# Extract the header's quick start from its comment.
sed -n '/^ \* >>start -- /,/^ \* The library has no thread/s/^ \*     \{0,1\}//p' \
    delayq.h | sed 's/  (.*)$//' >"$dir/start.c"
sed -e '1,/^ \*\//d' -e 's, /\*.*,,' examples/hello.c >"$dir/hello.c"
check "the header's quick start is examples/hello.c" \
    diff -B -Z "$dir/start.c" "$dir/hello.c"
check "the header's quick start compiles" cc -std=c99 $warn -I. "$dir/start.c" \
    -lhiredis -o "$dir/start"
# Every target of .PHONY must have its line in make help.
make -s help | cut -c 1-14 >"$dir/help"
for target in $(sed -n '/^\.PHONY:/,$p' Makefile | tr -d '\\' | cut -d: -f2); do
    if grep -q -w -e "$target" "$dir/help"; then ok; else
        bad "make help doesn't list $target"
    fi
done

# In a report of tests, the details of a failure must follow its line FAIL.
follows() { grep -a -A 1 "^FAIL $1" "$dir/report" | grep -q -e "$2"; }
cat >"$dir/failing.c" <<'END'
#define DELAYQ_IMPLEMENTATION
#include "test.h"
#include <stdlib.h>
TEST(a_failing_test) { FAIL("the reason"); }
TEST(an_aborted_test) { printf("no end of line"), fflush(stdout), abort(); }
TEST(a_test_that_fails_beside_others) {
    FILE *f = fopen(getenv("FAILED_ONCE"), "r");
    if (f) return;
    if (!fopen(getenv("FAILED_ONCE"), "w")) abort();
    FAIL("too busy");
}
#define MANY(n)                                 \
    TEST(one_of_many_##n##0) { FAIL("broken"); } \
    TEST(one_of_many_##n##1) { FAIL("broken"); } \
    TEST(one_of_many_##n##2) { FAIL("broken"); }
MANY(1) MANY(2) MANY(3) MANY(4) MANY(5) MANY(6) MANY(7)
END
if command -v "${DELAYQ_TEST_SERVER:-redis-server}" >/dev/null; then
    check "a program of tests compiles" cc -std=gnu99 -I. -Itests \
        "$dir/failing.c" tests/main.c -lhiredis -o "$dir/failing"
    FAILED_ONCE=$dir/once "$dir/failing" '!one_of_many' >"$dir/report" 2>&1
    check "a test's details follow its line FAIL" \
        follows a_failing_test "the reason"
    check "also those of one that ends in the middle of a line" \
        follows an_aborted_test "no end of line"
    check "which ends that line" grep -q -x "    ended by signal 6.*" \
        "$dir/report"
    DELAYQ_TEST_SEED=7 "$dir/failing" one_of_many >"$dir/report" 2>&1
    check "too many failures to run again still have their seeds" \
        [ "$(grep -c '^FAIL one_of_many.*seed 7)' "$dir/report")" = 21 ]
fi
cat >"$dir/failing.sh" <<'END'
. tests/lib.sh
check "a failing check" sh -c "echo the reason >&2; false"
echo noise >&2
summary
END
sh "$dir/failing.sh" >"$dir/report" 2>&1
check "so do those of a check in a shell suite" \
    follows "a failing check" "the reason"
sed -n '/^# run TITLE/,/^# made TARGET/p' tests/all.sh >"$dir/suite.sh"
# reports COMMAND...: runs the command as `make test` runs a suite
reports() {
    rm -f "$dir/counts" "$dir/fails" "$dir/flaky" "$dir/once"
    echo "$*" | cat "$dir/suite.sh" - >"$dir/reports.sh"
    (export FAILED_ONCE="$dir/once" && results=$dir && . "$dir/reports.sh") \
        >"$dir/report" 2>"$dir/said"
}
reports suite shell sh '"$dir/failing.sh"'
check "what a shell suite says on stderr stays in its place" \
    grep -q -x noise "$dir/report"
check "and is not printed before" [ ! -s "$dir/said" ]
check "the end has the reason of a failure" sh -c \
    'tr "\n" "|" <"$1" | grep -q -x -F "$2"' - "$dir/fails" \
    "FAIL shell: a failing check|    the reason|    noise|"
if [ -x "$dir/failing" ]; then
    reports suite busy '"$dir/failing"' '!an_aborted' '!one_of_many'
    check "a test that fails beside others is run again, alone" \
        [ "$(cat "$dir/counts")" = "1 1 0" ]
    check "and named with its first output if it passes" sh -c \
        'grep -A 1 "^FLAKY busy: a_test_that_fails_beside" "$1" |
        grep -q "too busy"' - "$dir/flaky"
    check "a test that fails alone, too, has failed" \
        follows a_failing_test "the reason"
fi
cat >"$dir/flaky.sh" <<'END'
. tests/lib.sh
check "the second time" sh -c '[ -f "$1" ] || { : >"$1"; false; }' - "$FAILED_ONCE"
summary
END
reports timed shell sh '"$dir/flaky.sh" && alone shell'
check "so is a shell suite" [ "$(cat "$dir/counts") $(wc -c <"$dir/fails")" = \
    "1 0 0 0" ]
check "and named" grep -q -x "FLAKY shell: the second time" "$dir/flaky"

summary
