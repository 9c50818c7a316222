#!/bin/sh
# Run each fuzzer of `make fuzz` for SECONDS, on a copy of its corpus. If
# SECONDS is 0, the fuzzers only read the corpus. An input that crashes a fuzzer
# is kept in the build folder. Ends in "N passed, N failed, N skipped".
#
#     run.sh [SECONDS [BUILD]]
seconds=${1:-30}
build=$(realpath "${2:-build}")
cd "$(dirname "$0")" || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0 skipped=0

for name in url element reply image; do
    fuzzer=$build/fuzz-$name
    if [ ! -x "$fuzzer" ]; then
        echo "skip $name: no $fuzzer; install clang and libclang-rt-dev"
        skipped=$((skipped + 1))
        continue
    fi
    cp -r "corpus/$name" "$dir/$name"
    longest=1200
    [ $name = image ] && longest=6200
    limit=-max_total_time=$seconds
    [ "$seconds" -gt 0 ] || limit=-runs=0
    if "$fuzzer" "$dir/$name" "$limit" -max_len=$longest \
        -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
        -dict="$name.dict" -artifact_prefix="$build/crash-$name-" \
        >"$dir/out" 2>&1; then
        passed=$((passed + 1))
        echo "ok   $name ($(sed -n 's/.*number_of_executed_units: *//p' \
            "$dir/out") runs)"
    else
        failed=$((failed + 1))
        echo "FAIL $name"
        grep -v -e '^#[0-9]*[[:space:]]' -e '^###' "$dir/out" | tail -60
    fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ]
