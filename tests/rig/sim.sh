#!/bin/sh
# sim.sh SIM SEEDS: lets the rig's judge read the histories of the simulator for
# seeds 1 to SEEDS (tests/sim/history.c says which seeds have a history), and
# for seeds whose histories were once wrong. Ends in "N passed, N failed, N
# skipped".
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
sim=$1 seeds=$2

judge() { # SEED [OPTION...]
    mkdir "$dir/$1"
    if ! "$sim" --quiet --history "$dir/$1" --seed "$@" >"$dir/said"; then
        bad "seed $1, by the simulator's own checker"
        cat "$dir/said"
    elif [ -f "$dir/$1/driver.history" ]; then
        check "seed $*" python3 tests/rig/judge.py "$dir/$1"
    fi
    rm -r "${dir:?}/$1"
}

# The end of a nack in an outbox was missing if no rule could check its result.
judge 247 --plan 7
seed=0
while [ $seed -lt "$seeds" ]; do
    seed=$((seed + 1))
    judge $seed
done
summary
