#!/bin/sh
# `make test`: the same tests under ASan and UBSan, on a server with a UTF-8
# locale, and under valgrind; failing allocations; the demo, the command-line
# tool, programs against what is installed or copied, and hygiene. What is
# missing is said and skipped, and counts as a failure in CI.
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
out=$(mktemp "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
trap 'rm -f "$out"' EXIT
total="0 0 0"

# add "N passed, N failed, N skipped"
add() {
    total=$(echo "$total $1" | awk '{ print $1 + $4, $2 + $6, $3 + $8 }')
}
missing() {
    echo "skipped: $1"
    add "0 passed, 0 failed, 1 skipped"
}
# suite TITLE COMMAND...: shows what is not ok, adds up its last line
suite() {
    echo "== $1"
    shift
    "$@" >"$out" 2>&1
    code=$?
    last=$(tail -1 "$out")
    case $last in
    *passed*failed*skipped*)
        grep -v -e '^ok  ' "$out"
        add "$last"
        ;;
    *)
        cat "$out"
        echo "FAIL ended with $code"
        add "0 passed, 1 failed, 0 skipped"
        ;;
    esac
}
demo() {
    sh tests/with-server.sh "$build/demo" >"$out.demo" 2>&1 &&
        [ "$(grep -c '^arrived' "$out.demo")" -eq 6 ] &&
        echo "1 passed, 0 failed, 0 skipped" ||
        { cat "$out.demo"; echo "0 passed, 1 failed, 0 skipped"; }
    rm -f "$out.demo"
}

if ! command -v redis-server && command -v valkey-server; then
    export DELAYQ_TEST_SERVER=valkey-server
fi >/dev/null
if command -v "${DELAYQ_TEST_SERVER:-redis-server}" >/dev/null; then
    suite "tests under ASan and UBSan" "$build/test-asan"
    if [ -f /usr/share/i18n/locales/en_US ] &&
        localedef -i en_US -f UTF-8 "$build/en_US.UTF-8" >/dev/null 2>&1 ||
        [ -d "$build/en_US.UTF-8" ]; then
        suite "the same on a server with LC_ALL=en_US.UTF-8" env \
            LOCPATH="$PWD/$build" DELAYQ_TEST_LOCALE=en_US.UTF-8 \
            "$build/test-asan"
    else
        missing "no locale en_US: install the package locales"
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
        missing "no libhiredis.a: no allocation was made to fail"
    fi
    suite "the demo" demo
    suite "the command-line tool, under ASan and UBSan" sh tests/cli.sh \
        "$build/delayq-asan"
    suite "installed, or copied" sh tests/install.sh
else
    missing "redis-server is not installed: nothing was tested"
fi
suite "hygiene" sh tests/hygiene.sh

set -- $total
echo "$1 passed, $2 failed, $3 skipped"
[ "$2" -eq 0 ] && { [ -z "$CI" ] || [ "$3" -eq 0 ]; }
