#!/bin/sh
# The table of faults in tests/README.md, with the header of 0.1: each test that
# it names must fail there, unless the table says "passes". Those that fail "at
# times" get up to ten runs. Ends in "N passed, N failed, N skipped", where
# passed means: as the table says.
cd "$(dirname "$0")/.." || exit 1
program=$1

# one test: "ok" or "FAIL", its name, what was seen
if [ $# -eq 3 ]; then
    name=$2 want=$3 seen=passes runs=1 out=$program.$2.out
    [ "$want" = fails-at-times ] && runs=10
    while [ $runs -gt 0 ] && [ $seen = passes ]; do
        "$program" -j 1 "$name" >"$out" 2>&1 || seen=fails
        runs=$((runs - 1))
    done
    LC_ALL=C grep -a -q '^0 passed, 0 failed' "$out" && seen=missing
    rm -f "$out"
    [ $seen = "${want%-at-times}" ] && echo "ok   $name: $seen" ||
        echo "FAIL $name: $seen, where the table says $want"
    exit
fi

sed -n -E 's/^\| .* \| `([a-z0-9_]*)` \| (passes|fails|fails at times) \|$/\1 \2/p' \
    tests/README.md | sed 's/fails at times/fails-at-times/' |
    xargs -P 4 -L 1 sh tests/old.sh "$program" | tee "$program.seen"
passed=$(grep -c '^ok' "$program.seen")
failed=$(grep -c '^FAIL' "$program.seen")
echo "$passed passed, $failed failed, 0 skipped"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
