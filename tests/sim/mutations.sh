#!/bin/sh
# mutations.sh [NUMBER...]: breaks delayq.h in a copy of the project, in each of
# the ways of mutations.txt, and shows what notices: a minute of the simulator
# (SECONDS), or else the tests (`make quick`). Some hours for all. Ends in
# "N caught, N slipped through". `make mutations MUTATIONS="1 2 3"`.
cd "$(dirname "$0")/../.." || exit 1
here=$PWD
copy=$(mktemp -d "${TMPDIR:-/tmp}/delayq-mutations-XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
trap 'exit 1' INT TERM
cp -r delayq.h Makefile README.md LICENSE tests examples .clang-format \
    .package "$copy" || exit 1
cd "$copy" || exit 1
caught=0 slipped=0 which=
[ $# -gt 0 ] || set -- $(sed -n 's/^== \([0-9]*\) .*/\1/p' \
    tests/sim/mutations.txt)
for n in "$@"; do
    name=$(perl tests/sim/mutate.pl "$n" tests/sim/mutations.txt \
        <"$here/delayq.h" 2>&1 >delayq.h) || {
        echo "$n: $name"
        exit 1
    }
    make -s lua >/dev/null 2>&1 # a changed script has another SHA1
    if ! make -s sim SECONDS="${SECONDS_EACH:-60}" >out 2>&1; then
        by="sim: $(sed -n 's/^FAIL //p' out | head -1)"
    elif ! make -s quick >out 2>&1; then
        by="tests: $(sed -n 's/^FAIL \([a-z_0-9]*\).*/\1/p' out |
            head -3 | tr '\n' ' ')"
    else
        by=
    fi
    if [ "$by" ]; then caught=$((caught + 1)); else
        slipped=$((slipped + 1))
        by="NOBODY"
    fi
    printf '%2d %s\n     %s\n' "$n" "$name" "$by"
done
echo "$caught caught, $slipped slipped through"
[ "$slipped" -eq 0 ]
