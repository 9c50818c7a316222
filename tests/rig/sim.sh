#!/bin/sh
# sim.sh SIM SEEDS: lets the rig's judge read the histories of the simulator for
# seeds 1 to SEEDS (tests/sim/history.c says which seeds have a history). Ends
# in "N passed, N failed, N skipped".
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
seed=0
while [ $seed -lt "$2" ]; do
    seed=$((seed + 1))
    mkdir "$dir/$seed"
    if ! "$1" --quiet --history "$dir/$seed" --seed $seed >"$dir/said"; then
        bad "seed $seed, by the simulator's own checker"
        cat "$dir/said"
    elif [ -f "$dir/$seed/driver.history" ]; then
        check "seed $seed" python3 tests/rig/judge.py "$dir/$seed"
    fi
    rm -r "${dir:?}/$seed"
done
summary
