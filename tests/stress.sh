#!/bin/sh
# Runs `make test` N times (default 1) while `stress-ng --cpu 4` runs. A flaky
# test counts as a failure here. Ends in "N passed, N failed, N skipped".
#
#     tests/stress.sh [N]
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
stress=
trap 'kill $stress 2>/dev/null; rm -rf "$dir"' EXIT
has stress-ng || { summary; exit; }
stress-ng --cpu 4 >/dev/null 2>&1 &
stress=$!
run=0
while [ $run -lt "${1:-1}" ]; do
    run=$((run + 1))
    if make test >"$dir/run" 2>&1; then ok; else
        bad "run $run"
    fi
    sed -n '/^== the end/,$p' "$dir/run"
    if [ -s build/flaky.txt ]; then bad "run $run: flaky tests"; else ok; fi
done
summary
