#!/bin/sh
# `make marks`: checks that the simulator, the tests and the fuzzers together
# reach each mark in delayq.h. Prints the marks that the simulator does not
# reach, and those that only one of the three reaches.
#
#     run.sh BUILD SEEDS FUZZ_SECONDS
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
build=$1 seeds=$2 fuzz=$3
LC_ALL=C
export LC_ALL
sed -n 's/.*DQ_MARK(\([a-z_]*\));.*/\1/p' delayq.h | sort >"$dir/all"
count=$(grep -c . "$dir/all")

# reached WHO COMMAND...: records the marks that a command reaches
reached() {
    who=$1
    shift
    : >"$dir/now"
    DELAYQ_MARKS=$dir/now "$@" >"$build/$who.out" 2>&1 ||
        bad "$who: see $build/$who.out"
    sort -u "$dir/now" | comm -12 - "$dir/all" >"$build/$who.txt"
    n=$(grep -c . "$build/$who.txt")
    echo "$who: $n of $count marks, $((100 * n / count)) %"
}

reached simulator "$build/sim" --known tests/sim/seeds.txt --seeds "$seeds"
reached tests "$build/test-plain" -j 2
: >"$build/fuzzers.txt"
if [ -x "$build/fuzz-reply" ]; then
    reached fuzzers sh tests/fuzz/run.sh "$fuzz" "$build"
else
    skip "the fuzzers need clang"
fi
sort -u "$build/tests.txt" "$build/fuzzers.txt" >"$dir/others"
comm -23 "$dir/all" "$build/simulator.txt" >"$dir/not"
echo "The simulator does not reach:" $(comm -12 "$dir/not" "$dir/others")
cd "$build" && for who in simulator tests fuzzers; do
    echo "Only reached by the $who:" $(sort simulator.txt tests.txt \
        fuzzers.txt | uniq -u | comm -12 - $who.txt)
done
for name in $(comm -23 "$dir/not" "$dir/others"); do
    bad "nobody reaches $name"
done
ok
summary
