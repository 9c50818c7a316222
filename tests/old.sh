#!/bin/sh
# The table of faults in tests/README.md, with the header of 0.1: each test that
# it names must fail there, unless the table says "passes". Those that fail "at
# times" get up to ten runs. Ends in "N passed, N failed, N skipped", where
# passed means: as the table says.
cd "$(dirname "$0")/.." || exit 1
program=$1
passed=0 failed=0
tests=$(sed -n 's/^| .* | `\([a-z0-9_]*\)` | \([a-z ]*\) |$/\1:\2/p' \
    tests/README.md | tr ' ' '-')
for entry in $tests; do
    name=${entry%%:*} want=${entry##*:}
    runs=1
    [ "$want" = fails-at-times ] && runs=10
    seen=passes
    while [ $runs -gt 0 ] && [ $seen = passes ]; do
        "$program" -j 1 "$name" >"$program.out" 2>&1 || seen=fails
        runs=$((runs - 1))
    done
    if LC_ALL=C grep -a -q '^0 passed, 0 failed' "$program.out"; then
        seen=missing
    fi
    if [ "$seen" = "${want%-at-times}" ]; then
        passed=$((passed + 1))
        echo "ok   $name: $seen"
    else
        failed=$((failed + 1))
        echo "FAIL $name: $seen, where the table says $want"
    fi
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
