#!/bin/sh
# `make test` and `make test-all`: run all suites, in three lanes at the same time,
# since most suites wait more than they compute. In a lane the suites run one after
# the other. Show the progress. At the end list the skipped tests with the reason,
# the tests that failed beside others and passed alone, the failed tests, and the
# sums. In CI a skipped test counts as a failure.
#
#     tests/all.sh [BUILD [test | all]]
#
# The suites marked with + run only with `all`:
#
#     tests      the tests under ASan and UBSan; calls that never wait; + each
#                allocation fails once; + the tests under valgrind, on servers with
#                a UTF-8 locale
#     programs   the command-line tool; + processes of 0.1 and of today's version on
#                one queue for a minute
#     sources    the recipes; examples/server; the demo; + programs with an
#                installed or copied header; monitoring; the simulator's parts;
#                the header; the documentation
#
# With `test` the examples are those in BUILD/o0, which are not optimized, and the
# suites with the argument `short` leave out some of their parts.
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
build=${1:-build} examples=${1:-build}/o0
long='' short=short
[ "$2" = all ] && long=1 short='' examples=$build
began=$(date +%s) lanes=
results=${3:-$dir} # of all lanes

missing() {
    echo "   skipped: $1"
    echo "$1" >>"$results/skips"
    echo "0 0 1" >>"$results/counts"
}
# suite TITLE COMMAND...: runs a suite. Failures are shown with all their bytes.
# grep needs -a, because a payload may make a text "binary".
suite() {
    title=$1
    shift
    echo "== $title"
    start=$(date +%s)
    case $* in
    *tests/valgrind.sh*) progress=1 ;;
    sh\ *.sh*) progress= ;; # its stderr belongs to the line before
    *) progress=1 ;;
    esac
    if [ -n "$progress" ]; then
        DELAYQ_TEST_PROGRESS=1 "$@" >"$dir/out"
    else
        "$@" >"$dir/out" 2>&1
    fi
    code=$?
    last=$(tail -n 1 "$dir/out")
    case $last in
    *passed,*failed,*skipped)
        LC_ALL=C grep -a -v -e '^ok  ' -e '^skip ' -e '^    skipped: ' \
            "$dir/out" | sed '$d'
        LC_ALL=C grep -a '^FAIL' "$dir/out" | sed "s|^FAIL|$title:|" \
            >>"$results/fails"
        LC_ALL=C grep -a '^alone' "$dir/out" | sed "s|^alone|$title:|" \
            >>"$results/alone"
        LC_ALL=C sed -n -e 's/^    skipped: \(.*\)/\1/p' \
            -e 's/^skip \([^(]*\)$/\1/p' "$dir/out" >>"$results/skips"
        # shellcheck disable=SC2086
        set -- $last
        echo "$1 $3 $5" >>"$results/counts"
        ;;
    *)
        cat "$dir/out"
        echo "FAIL ended with $code"
        echo "$title: ended with $code" >>"$results/fails"
        echo "0 1 0" >>"$results/counts"
        last="ended with $code"
        ;;
    esac
    echo "   $last ($(($(date +%s) - start)) s)"
}
# The demo on a server of its own: all six items arrive. (Its game's frames are
# checked with the recipes.)
demo() {
    if sh tests/with-server.sh "$examples/demo" >"$dir/demo" 2>&1 &&
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

# If a test fails beside others, it is run again, alone (-a). The tests wait for
# conditions, but on a busy machine a deadline may pass all the same.
tests_lane() {
    if [ -n "$server" ]; then
        suite "tests under ASan and UBSan" "$build/test-asan" -a
        suite "calls that never wait" "$build/test-nonblock" -a
    else
        missing "redis-server is not installed: nothing was tested on a server"
    fi
    [ -n "$server" ] && [ -n "$long" ] || return 0
    if [ -f "$(${CC:-cc} -print-file-name=libhiredis.a)" ]; then
        make -s B="$build" "$build/test-memory" >/dev/null
        suite "each allocation failing" "$build/test-memory" -a
    else
        missing "there is no libhiredis.a: no allocation was made to fail"
    fi
    locale= # the slowest suite: its servers have the locale
    if has_locale; then
        locale=DELAYQ_TEST_LOCALE=en_US.UTF-8
    else
        missing "there is no locale en_US: install locales"
    fi
    if command -v valgrind >/dev/null; then
        suite "tests under valgrind${locale:+, servers with LC_ALL=en_US.UTF-8}" \
            env LOCPATH="$PWD/$build" $locale \
            sh tests/valgrind.sh "$build/test-plain" -a
    else
        missing "valgrind is not installed"
        [ -z "$locale" ] || suite "tests, servers with LC_ALL=en_US.UTF-8" \
            env LOCPATH="$PWD/$build" $locale "$build/test-plain" -a
    fi
}
programs_lane() {
    [ -n "$server" ] || return 0
    suite "command-line tool" sh tests/cli.sh "$build/delayq-asan"
    [ -n "$long" ] || return 0
    suite "0.1 and today's on one queue for a minute" env \
        DELAYQ_TEST_SECONDS=60 "$build/test-plain" -a -j 3 a_crowd_of_both
}
examples() {
    [ -n "$server" ] || return 0
    suite "recipes" sh tests/recipes.sh "$examples"
    suite "examples/server" sh tests/server.sh "$build/delayq-asan"
    suite "demo" demo
    [ -n "$long" ] || return 0
    suite "installed or copied" sh tests/install.sh
}
# shellcheck disable=SC2086
sources_lane() {
    examples
    if [ -n "$server" ]; then
        suite "monitoring" sh tests/monitor.sh "$build/delayq-asan" $short
        if make -s B="$build" sim-programs >"$dir/made" 2>&1; then
            suite "the simulator's world" "$build/sim-world-test"
            suite "its network beside the kernel's" "$build/sim-kernel-test"
            suite "its server beside a real one" "$build/sim-model" \
                "$build/sim-clock.so"
        else
            missing "the simulator needs liblua5.1-0-dev and libhiredis.a"
        fi
    fi
    suite "header" sh tests/hygiene.sh $short
    suite "documentation" sh tests/docs.sh
}

if ! command -v redis-server && command -v valkey-server; then
    export DELAYQ_TEST_SERVER=valkey-server
fi >/dev/null
server=$(command -v "${DELAYQ_TEST_SERVER:-redis-server}")
if [ "$3" ]; then # another lane, a process of its own
    "$4_lane"
    exit
fi

: >"$dir/counts" >"$dir/skips" >"$dir/fails" >"$dir/alone"
echo "   (the lanes run at once; the output of the others follows that of the first)"
# Each lane has a session of its own, so that all its processes end with this
# script.
for lane in programs sources; do
    setsid sh tests/all.sh "$build" "${2:-test}" "$dir" $lane \
        >"$dir/lane-$lane" 2>&1 &
    lanes="$lanes $lane:$!"
done
trap 'for lane in $lanes; do kill -s TERM -- -"${lane#*:}" 2>/dev/null; done
    rm -rf "$dir"' EXIT
tests_lane
for lane in $lanes; do
    tail -n +1 -f --pid="${lane#*:}" "$dir/lane-${lane%:*}" &
    wait $! # a signal ends this wait, but not a command in the foreground
    wait "${lane#*:}" ||
        echo "the lane of the ${lane%:*}: ended with $?" >>"$dir/fails"
done

if [ -s "$dir/skips" ]; then
    echo "skipped:"
    sort "$dir/skips" | uniq -c | sed 's/^ *\([0-9]*\) /  \1 x /'
fi
if [ -s "$dir/alone" ]; then
    echo "failed beside others, passed alone (no failure, but worth a look):"
    sed 's/^/  /' "$dir/alone"
fi
if [ -s "$dir/fails" ]; then
    echo "failed:"
    sed 's/^/  /' "$dir/fails"
fi
# shellcheck disable=SC2046
set -- $(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' \
    "$dir/counts")
passed=$1 failed=$2 skipped=$3
[ -s "$dir/fails" ] && [ "$failed" -eq 0 ] && failed=1
echo "in $(($(date +%s) - began)) s:"
summary
