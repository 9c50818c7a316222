#!/bin/sh
# old.sh PROGRAM VERSION... -- checks the tables of faults in tests/README.md
# with the headers of these versions. The test program with such a header has
# the name PROGRAM followed by the version. Each test in a version's table must
# fail in this program, unless the table says "passes". If the table says "at
# times", the test gets up to ten runs. A test counts as passed if its result is
# that of the table. Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
program=$1

# For one test: prints "ok" or "FAIL", its name, and its result.
if [ "$2" = -t ]; then
    name=$3 want=$4 seen=passes runs=1 out=$program.$3.out once=-1
    [ "$want" = fails-at-times ] && runs=10
    [ "$want" = passes ] && once= # a failed test may run again
    while [ $runs -gt 0 ] && [ $seen = passes ]; do
        # shellcheck disable=SC2086
        "$program" $once -j 1 "$name" >"$out" 2>&1 || seen=fails
        runs=$((runs - 1))
    done
    LC_ALL=C grep -a -q '^0 passed, 0 failed' "$out" && seen=missing
    [ -x "$program" ] || seen=missing
    rm -f "$out"
    [ $seen = "${want%-at-times}" ] && echo "ok   $name: $seen" ||
        echo "FAIL $name: $seen, where the table says $want"
    exit
fi

shift
passed=0 failed=0
for version in "$@"; do
    old=$program$version
    echo "--- with the header of $version"
    sed -n "/^## Faults of version $version/,/^## Faults of version/p" \
        tests/README.md |
        sed -n -E 's/^\| .* \| `([a-z0-9_]*)` \| (passes|fails|fails at times) \|$/\1 \2/p' |
        sed 's/fails at times/fails-at-times/' |
        xargs -P 4 -L 1 sh tests/old.sh "$old" -t | tee "$old.seen"
    ok=$(grep -c '^ok' "$old.seen")
    [ "$ok" -gt 0 ] || failed=$((failed + 1))
    passed=$((passed + ok))
    failed=$((failed + $(grep -c '^FAIL' "$old.seen")))
done
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ]
