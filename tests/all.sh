#!/bin/sh
# `make test` and `make test-all`: run all suites, in six lanes at the same
# time, since most suites wait more than they compute. In a lane the suites run
# one after the other. The output ends with a summary: the skipped tests with
# the reasons, the flaky and the failed tests with their first lines, the time
# of each suite, and the sums. In CI a skipped test fails the run.
#
#     tests/all.sh [BUILD [test | all]]
#
# The suites marked with + run only with `all`:
#
#     tests      the tests under ASan and UBSan; calls that never wait; each
#                allocation fails once; + the tests under valgrind, on servers with
#                a UTF-8 locale
#     tool       the command-line tool, first half
#     programs   the tool, second half; + processes of 0.1 and of today's version
#                on one queue for a minute
#     simulator  300 seeds; the cost of calls; its parts; the fuzzers' corpus
#     examples   the recipes; examples/server; the demo; + programs with an
#                installed or copied header; + monitoring
#     sources    the header; the documentation; the size of code, heap and stack
#
# If a suite that depends on time fails while others run, it is run again at the
# end, alone, up to twice. If it then passes, it is FLAKY. tests/main.c does the
# same with a test. BUILD/flaky.txt lists the flaky suites and tests, too.
#
# With `test` the suites use the examples in BUILD/o0, which are not optimized,
# and suites with the argument `short` leave out some of their parts. ASan
# looks for leaks only with `all` and in CI, since this takes a fifth of the
# processor time.
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
build=${1:-build} examples=${1:-build}/o0
long='' short=short
[ "$2" = all ] && long=1 short='' examples=$build
began=$(date +%s) lanes=
results=${3:-$dir} # a folder for the results of all lanes

missing() {
    echo "   skipped: $1"
    echo "$1" >>"$results/skips"
    echo "0 0 1" >>"$results/counts"
}
# run TITLE COMMAND...: runs a suite, and prints all lines except those of
# passed or skipped tests. Stores its output in $dir/out, the last line in
# $last, and its duration in seconds in $took. grep needs -a, because a payload may make a text
# "binary".
run() {
    echo "== $1"
    shift
    start=$(date +%s)
    case $* in
    sh\ *tests/valgrind.sh* | env\ *) progress=1 ;;
    sh\ *.sh*) progress= ;; # its stderr follows the line that it explains
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
        ;;
    *)
        cat "$dir/out"
        last="0 passed, 1 failed, 0 skipped"
        tail -n 12 "$dir/out" | sed 's/^/    /' >"$dir/tail"
        { echo "FAIL it ended with $code" && cat "$dir/tail"; } >"$dir/out"
        ;;
    esac
    took=$(($(date +%s) - start))
    echo "   $last ($took s)"
}
# told WORD PREFIX: prints each line that begins with WORD, with PREFIX inserted
# after WORD, and up to 12 following lines, which explain it
told() {
    LC_ALL=C awk -v word="$1" -v prefix="$2" '
        index($0, word " ") == 1 {
            print word " " prefix substr($0, length(word) + 2)
            left = 12
            next
        }
        /^(ok  |skip |again |FAIL |FLAKY |== )/ || / passed, .* skipped$/ {
            left = 0
        }
        left-- > 0 { print (/^ / ? "" : "    ") substr($0, 1, 300) }'
}
# record TITLE: records the results of the suite that was run last
record() {
    told FAIL "$1: " <"$dir/out" >>"$results/fails"
    told FLAKY "$1: " <"$dir/out" >>"$results/flaky"
    sed -n 's/^WARN /  /p' "$dir/out" >>"$results/warnings"
    LC_ALL=C sed -n -e 's/^    skipped: \(.*\)/\1/p' \
        -e 's/^skip \([^(]*\)$/\1/p' "$dir/out" >>"$results/skips"
    printf '%5d s  %-34s %s\n' "$took" "$1" "$last" >>"$results/times"
    # shellcheck disable=SC2086
    set -- $last
    echo "$1 $3 $5" >>"$results/counts"
}
# suite TITLE COMMAND...: runs a suite, and records its results
suite() {
    run "$@"
    record "$1"
}
# timed TITLE COMMAND...: like suite, for a suite that depends on time. If the
# suite fails, it is run again at the end.
timed() {
    run "$@"
    case $last in
    *" 0 failed,"*) record "$1" ;;
    *)
        told FAIL "$1: " <"$dir/out" >"$results/first-$1"
        echo "$*" >"$results/again-$1"
        ;;
    esac
}
# alone TITLE: runs a failed suite again, alone, up to twice
alone() {
    title=$1
    words=$(cat "$dir/again-$title")
    for try in 1 2; do
        # shellcheck disable=SC2086
        run "$title, alone" ${words#"$title"}
        case $last in *" 0 failed,"*) break ;; esac
    done
    case $last in
    *" 0 failed,"*)
        sed "s/^FAIL /FLAKY /" "$dir/first-$title" >>"$dir/flaky"
        ;;
    esac
    record "$title"
}
# made TARGET...: makes the targets. If one doesn't compile, that is a failure.
made() {
    make -s B="$build" "$@" >"$dir/made" 2>&1 && return
    echo "== make $*"
    cat "$dir/made"
    { echo "FAIL it doesn't compile" && grep -a -A 2 -e ': error' -e ' \*\*\* ' \
        "$dir/made" | sed 's/^/    /'; } >"$dir/out"
    last="0 passed, 1 failed, 0 skipped" took=0
    record "make $*"
    return 1
}
# Run the demo on a private server. All six items must arrive. (tests/recipes.sh
# checks the frames of its game.)
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

tests_lane() {
    if [ -n "$server" ]; then
        suite "tests under ASan and UBSan" "$build/test-asan"
        suite "calls that never wait" "$build/test-nonblock" -1
    else
        missing "redis-server is not installed: nothing was tested on a server"
    fi
    [ -n "$server" ] || return 0
    if [ -f "$(${CC:-cc} -print-file-name=libhiredis.a)" ]; then
        ! made "$build/test-memory" ||
            suite "each allocation failing" "$build/test-memory" -1
    else
        missing "there is no libhiredis.a: no allocation was made to fail"
    fi
    [ -n "$long" ] || return 0
    locale= # the servers of the slowest suite use the locale
    if has_locale; then
        locale=DELAYQ_TEST_LOCALE=en_US.UTF-8
    else
        missing "there is no locale en_US: install locales"
    fi
    if command -v valgrind >/dev/null; then
        suite "tests under valgrind${locale:+, in UTF-8}" \
            env LOCPATH="$PWD/$build" $locale \
            sh tests/valgrind.sh "$build/test-plain"
    else
        missing "valgrind is not installed"
        [ -z "$locale" ] || suite "tests, servers in UTF-8" \
            env LOCPATH="$PWD/$build" $locale "$build/test-plain"
    fi
}
tool_lane() {
    [ -z "$server" ] ||
        timed "command-line tool" sh tests/cli.sh "$build/delayq-asan"
}
programs_lane() {
    [ -z "$server" ] ||
        timed "tool, second half" sh tests/cli_work.sh "$build/delayq-asan"
    [ -n "$server" ] && [ -n "$long" ] || return 0
    suite "0.1 and today's on one queue" env DELAYQ_TEST_SECONDS=60 \
        "$build/test-plain" -j 3 a_crowd_of_both
}
simulator_lane() {
    simulator
    if echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer -x c - -o "$dir/fuzzer" >/dev/null 2>&1; then
        ! made fuzz-programs ||
            suite "corpus of the fuzzers" sh tests/fuzz/run.sh 0 "$build/o0"
    else
        missing "clang has no libFuzzer: install clang and libclang-rt-dev; no fuzzer's corpus was read"
    fi
}
# The simulator is deterministic on all machines, so no failed suite is rerun.
simulator() {
    for archive in libhiredis.a liblua5.1.a; do
        [ -f "$(${CC:-cc} -print-file-name=$archive)" ] || {
            missing "there is no $archive: nothing was simulated"
            return
        }
    done
    ! made "$build/sim" || suite "the simulator, 300 seeds" seeds 300
    ! made "$build/sim-cost" || suite "commands, bytes, round trips" cost
    ! made sim-programs || {
        suite "the simulator's world" "$build/sim-world-test"
        suite "its network beside the kernel's" "$build/sim-kernel-test"
        [ -z "$server" ] || suite "its server beside a real one" \
            "$build/sim-model" "$build/sim-clock.so"
    }
}
cost() {
    "$build/sim-cost" tests/sim/cost.txt >"$dir/cost"
    code=$?
    grep '^FAIL' "$dir/cost"
    tail -n 1 "$dir/cost"
    return $code
}
# seeds N: runs the simulator's known seeds and the first N seeds, as a suite
seeds() {
    "$build/sim" --known tests/sim/seeds.txt --seeds "$1" >"$dir/seeds"
    code=$?
    cat "$dir/seeds"
    sed -n '$s/^\([0-9]*\) seeds.* \([0-9]*\) failed$/\1 \2/p' "$dir/seeds" |
        awk '{ print $1 - $2 " passed, " $2 " failed, 0 skipped" }'
    return $code
}
examples_lane() {
    if [ -n "$server" ]; then
        timed "recipes" sh tests/recipes.sh "$examples"
        timed "files for operators" sh tests/server.sh "$build/delayq-asan"
        timed "demo" demo
    fi
    if [ -n "$server" ] && [ -n "$long" ]; then
        timed "installed or copied" sh tests/install.sh
        timed "monitoring" sh tests/monitor.sh "$build/delayq-asan" $short
    fi
}
sources_lane() {
    # shellcheck disable=SC2086
    suite "header" sh tests/hygiene.sh $short
    suite "documentation" sh tests/docs.sh
    [ -z "$server" ] || suite "code, heap and stack" sh tests/size.sh short
}

if ! command -v redis-server && command -v valkey-server; then
    export DELAYQ_TEST_SERVER=valkey-server
fi >/dev/null
server=$(command -v "${DELAYQ_TEST_SERVER:-redis-server}")
if [ "$3" ]; then # this process is another lane
    "$4_lane"
    exit
fi

[ -n "$long$CI" ] || export ASAN_OPTIONS="detect_leaks=0:$ASAN_OPTIONS"
for file in counts skips fails flaky times warnings; do : >"$dir/$file"; done
echo "   (the lanes run at once; the output of the others follows that of the first)"
# Each lane has a session of its own, so that all its processes end with this
# script.
for lane in tool programs simulator examples sources; do
    setsid sh tests/all.sh "$build" "${2:-test}" "$dir" $lane \
        >"$dir/lane-$lane" 2>&1 &
    lanes="$lanes $lane:$!"
done
trap 'for lane in $lanes; do kill -s TERM -- -"${lane#*:}" 2>/dev/null; done
    rm -rf "$dir"' EXIT
tests_lane
for lane in $lanes; do
    tail -n +1 -f --pid="${lane#*:}" "$dir/lane-${lane%:*}" &
    wait $! # a signal ends `wait`, but not a command in the foreground
    wait "${lane#*:}" ||
        echo "FAIL the lane of the ${lane%:*}: it ended with $?" >>"$dir/fails"
done
for file in "$dir"/again-*; do
    [ ! -f "$file" ] || alone "${file#*/again-}"
done

echo "== the end"
cat "$dir/times"
if [ -s "$dir/skips" ]; then
    echo "skipped:"
    sort "$dir/skips" | uniq -c | sed 's/^ *\([0-9]*\) /  \1 x /'
fi
if [ -s "$dir/warnings" ]; then
    echo "warnings:"
    cat "$dir/warnings"
fi
cp "$dir/flaky" "$build/flaky.txt"
if [ -s "$dir/flaky" ]; then
    echo "failed beside others, passed alone (no failure, but worth a look):"
    cat "$dir/flaky"
fi
if [ -s "$dir/fails" ]; then
    echo "failed:"
    cat "$dir/fails"
fi
# shellcheck disable=SC2046
set -- $(awk '{ p += $1; f += $2; s += $3 } END { print p + 0, f + 0, s + 0 }' \
    "$dir/counts")
passed=$1 failed=$2 skipped=$3
[ -s "$dir/fails" ] && [ "$failed" -eq 0 ] && failed=1
[ "$failed" -gt 0 ] || [ -z "$CI" ] || [ "$skipped" -eq 0 ] ||
    echo "FAIL in CI nothing may be skipped: install what is missing"
echo "in $(($(date +%s) - began)) s:"
summary
