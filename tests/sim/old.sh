#!/bin/sh
# old.sh BINARY [SECONDS]: faults that the header of 0.1 had, and which invariant
# shows each, in runs with that kind of fault alone: a table of seeds and
# seconds. Fails if one of them is not found within SECONDS (600).
binary=$1 seconds=${2:-600} missing=0
row() { # what, kinds of fault, invariants
    begun=$(date +%s)
    found=$("$binary" --faults "$2" --only "$3" --seconds "$seconds" \
        --stop 1 --again 0 2>/dev/null |
        sed -n 's/^FAIL \([^ ]*\) seed \([0-9]*\) at [0-9.]* s: /\1|\2|/p' |
        head -1)
    [ "$found" ] || missing=$((missing + 1))
    printf '%s|%s|%s|%s\n' "$1" "$2" "${found:--|-|not found}" \
        "$(($(date +%s) - begun))" |
        awk -F'|' '{printf "%s\n    faults: %s; invariant: %s; seed %s; found" \
            " after %s s\n    %s\n", $1, $2, $3, $4, $6, $5}'
}
row 'busy loops while the server is frozen' freeze-server steps,logs
row 'dead or frozen waiters delay an item' actor-kill,actor-freeze liveness
row 'one BUSY makes a consumer poll for good' busy idle
row 'the set of waiters grows, a script walks through it' actor-churn \
    work,waiters
row 'FLUSHALL while many wait' flushall liveness
row 'CLIENT KILL: reconnects without a pause' kill-pubsub connects
[ "$missing" -eq 0 ]
