#!/bin/sh
# mutations.sh [NUMBER...]: apply each mutation of mutations.txt to a copy of
# delayq.h, and print what notices it: one of 600 seeds of the simulator, or, if
# none does, tests that fail again when they run alone. All mutations need some
# hours. Ends in "N caught, N slipped through".
# `make mutations MUTATIONS="1 2 3"` runs this.
cd "$(dirname "$0")/../.." || exit 1
here=$PWD
copy=$(mktemp -d "${TMPDIR:-/tmp}/delayq-mutations-XXXXXX") || exit 1
trap 'rm -rf "$copy"' EXIT
trap 'exit 1' INT TERM
cp -r delayq.h Makefile README.md LICENSE tests examples .clang-format \
    .package "$copy" || exit 1
cd "$copy" || exit 1
caught=0 slipped=0 code=0
known=' 7 10 35 90 ' # sim/README.md says why nothing notices these
[ $# -gt 0 ] || set -- $(sed -n 's/^== \([0-9]*\) .*/\1/p' \
    tests/sim/mutations.txt)
for n in "$@"; do
    name=$(perl tests/sim/mutate.pl "$n" tests/sim/mutations.txt \
        <"$here/delayq.h" 2>&1 >delayq.h) || {
        echo "$n: $name"
        exit 1
    }
    make -s lua >/dev/null 2>&1 # a changed script has another SHA1
    by=
    make -s build/sim build/test-plain >out 2>&1 || {
        echo "$n $name: it does not compile"
        exit 1
    }
    if ! build/sim --known tests/sim/seeds.txt --seeds 600 \
        --stop 1 >out 2>&1; then
        by="sim: $(sed -n 's/^FAIL //p' out | head -1)"
    fi
    if [ ! "$by" ] && ! build/test-plain >out 2>&1; then
        by="tests: $(sed -n 's/^FAIL \([a-z_0-9]*\) .*/\1/p' out |
            head -3 | tr '\n' ' ')"
    fi
    case "$by/$known" in
    /*" $n "*) slipped=$((slipped + 1)) by="nobody, as README.md says" ;;
    /*) slipped=$((slipped + 1)) code=1 by="NOBODY" ;;
    *) caught=$((caught + 1)) ;;
    esac
    printf '%2d %s\n     %s\n' "$n" "$name" "$by"
done
echo "$caught caught, $slipped slipped through"
exit $code
