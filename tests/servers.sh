#!/bin/sh
# `make servers SERVERS="PROGRAM..."`: runs the tests on each server, a Redis,
# Valkey or KeyDB of any version, from a package or built from its sources:
#
#     tests/servers.sh TESTS PROGRAM...
#
# For each server this prints a line with its version and the counts of its
# tests. Then it lists the tests that failed, that passed only alone, and that
# were skipped, with the reason. All output goes to build/servers/. Ends in "N
# passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
tests=$1
shift
logs=build/servers
mkdir -p "$logs" || exit 1
all_passed=0 all_failed=0 all_skipped=0

for program; do
    # "Redis server v=7.0.15 sha=..." becomes "Redis 7.0.15".
    version=$("$program" --version |
        sed -n 's/^\([A-Za-z]*\) server v=\([^ ]*\).*/\1 \2/p')
    if [ -z "$version" ]; then
        echo "$program: no server"
        all_failed=$((all_failed + 1))
        continue
    fi
    log=$logs/$(echo "$version" | tr ' ' -).log
    export DELAYQ_TEST_SERVER="$program"
    "$tests" >"$log"
    # shellcheck disable=SC2046
    set -- $(tail -n 1 "$log")
    case "$2$4$6" in
    passed,failed,skipped) passed=$1 failed=$3 skipped=$5 ;;
    *)
        echo "$version: no result, see $log"
        all_failed=$((all_failed + 1))
        continue
        ;;
    esac
    LC_ALL=C sed -n 's/^    skipped: //p' "$log" | sort | uniq -c |
        sed 's/^ *\([0-9]*\) /    \1 skipped: /' >"$log.skips"
    LC_ALL=C grep -a -A 3 '^FAIL' "$log" |
        LC_ALL=C grep -a -v '^ok ' >"$log.told"
    LC_ALL=C sed -n 's/^FLAKY \([a-z0-9_]*\) .*/    FLAKY \1/p' "$log" \
        >>"$log.told"
    printf '%-16s %4d passed, %d failed, %d skipped\n' "$version" "$passed" \
        "$failed" "$skipped"
    cat "$log.told" "$log.skips"
    rm -f "$log.told" "$log.skips"
    all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    all_skipped=$((all_skipped + skipped))
done
echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
[ $all_failed -eq 0 ] && [ $all_passed -gt 0 ]
