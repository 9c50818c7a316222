#!/bin/sh
# `make test` and `make test-all`: run suite after suite and show the progress;
# at the end list the skipped tests with the reason, the failed ones, and the
# sum. In CI a skipped test counts as a failure.
#
#     tests/all.sh [BUILD [test | all]]
#
# test   the tests under ASan and UBSan, in parallel; calls that never wait; the
#        demo, the command-line tool, the recipes, the hygiene of header and
#        README
# all    and the slow suites: processes of version 0.1 and of today's on one
#        queue for a minute, the tests on a server with a UTF-8 locale, under
#        valgrind, each allocation failing once, programs that are built against
#        an installed or copied header
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
build=${1:-build}
long=
[ "$2" = all ] && long=1
began=$(date +%s)
: >"$dir/skips"
: >"$dir/fails"

# add "N passed, N failed, N skipped"
add() {
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
missing() {
    echo "   skipped: $1"
    echo "$1" >>"$dir/skips"
    skipped=$((skipped + 1))
}
# suite TITLE COMMAND...: failures are shown with all their bytes; grep -a,
# because a payload may make a text "binary"
suite() {
    title=$1
    shift
    echo "== $title"
    start=$(date +%s)
    DELAYQ_TEST_PROGRESS=1 "$@" >"$dir/out"
    code=$?
    last=$(tail -n 1 "$dir/out")
    case $last in
    *passed,*failed,*skipped)
        LC_ALL=C grep -a -v -e '^ok  ' -e '^skip ' -e '^    skipped: ' \
            "$dir/out" | sed '$d'
        LC_ALL=C grep -a '^FAIL' "$dir/out" | sed "s|^FAIL|$title:|" \
            >>"$dir/fails"
        LC_ALL=C sed -n -e 's/^    skipped: \(.*\)/\1/p' \
            -e 's/^skip \([^(]*\)$/\1/p' "$dir/out" >>"$dir/skips"
        # shellcheck disable=SC2086
        add $last
        ;;
    *)
        cat "$dir/out"
        echo "FAIL ended with $code"
        echo "$title: ended with $code" >>"$dir/fails"
        failed=$((failed + 1))
        last="ended with $code"
        ;;
    esac
    echo "   $last ($(($(date +%s) - start)) s)"
}
# The demo on a server of its own: all six items arrive. (Its game's frames are
# checked with the recipes.)
demo() {
    if sh tests/with-server.sh "$build/demo" >"$dir/demo" 2>&1 &&
        [ "$(grep -c '^arrived' "$dir/demo")" -eq 6 ]; then
        echo "1 passed, 0 failed, 0 skipped"
    else
        echo "FAIL the demo doesn't show six items"
        cat "$dir/demo"
        echo "0 passed, 1 failed, 0 skipped"
    fi
}
has_locale() {
    [ -d "$build/en_US.UTF-8" ] || {
        [ -f /usr/share/i18n/locales/en_US ] &&
            localedef -i en_US -f UTF-8 "$build/en_US.UTF-8"
    } >/dev/null 2>&1
}

if ! command -v redis-server && command -v valkey-server; then
    export DELAYQ_TEST_SERVER=valkey-server
fi >/dev/null
if command -v "${DELAYQ_TEST_SERVER:-redis-server}" >/dev/null; then
    suite "tests under ASan and UBSan" "$build/test-asan"
    suite "calls that never wait" "$build/test-nonblock"
    suite "demo" demo
    suite "command-line tool" sh tests/cli.sh "$build/delayq-asan"
    suite "examples/server" sh tests/server.sh "$build/delayq-asan"
    [ ! -f tests/recipes.sh ] || suite "recipes" sh tests/recipes.sh "$build"
    if make -s B="$build" sim-programs >"$dir/out" 2>&1; then
        suite "the simulator's world" "$build/sim-world-test"
        suite "its network beside the kernel's" "$build/sim-kernel-test"
        suite "its server beside a real one" "$build/sim-model" \
            "$build/sim-clock.so"
    else
        missing "the simulator needs liblua5.1-0-dev and libhiredis.a"
    fi
else
    missing "redis-server is not installed: nothing was tested on a server"
    long=
fi
suite "header" sh tests/hygiene.sh
suite "documentation" sh tests/docs.sh
if [ -n "$long" ]; then
    suite "0.1 and today's on one queue for a minute" env \
        DELAYQ_TEST_SECONDS=60 "$build/test-plain" -j 3 a_crowd_of_both
    if has_locale; then
        suite "tests on a server with LC_ALL=en_US.UTF-8" env \
            LOCPATH="$PWD/$build" DELAYQ_TEST_LOCALE=en_US.UTF-8 \
            "$build/test-plain"
    else
        missing "there is no locale en_US: install locales"
    fi
    if command -v valgrind >/dev/null; then
        suite "tests under valgrind" sh tests/valgrind.sh "$build/test-plain"
    else
        missing "valgrind is not installed"
    fi
    if [ -f "$(${CC:-cc} -print-file-name=libhiredis.a)" ]; then
        make -s B="$build" "$build/test-memory" >/dev/null
        suite "each allocation failing" "$build/test-memory"
    else
        missing "there is no libhiredis.a: no allocation was made to fail"
    fi
    suite "installed or copied" sh tests/install.sh
fi

if [ -s "$dir/skips" ]; then
    echo "skipped:"
    sort "$dir/skips" | uniq -c | sed 's/^ *\([0-9]*\) /  \1 x /'
fi
if [ -s "$dir/fails" ]; then
    echo "failed:"
    sed 's/^/  /' "$dir/fails"
fi
echo "in $(($(date +%s) - began)) s:"
summary
