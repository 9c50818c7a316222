#!/bin/sh
# old.sh BINARY [SECONDS]: search for known faults of the headers 0.1 and 0.2.
# For each fault, print the invariant that fails, the seed, and the seconds that
# the search took. A run simulates only the failures that bring out the fault.
# BINARY0.1 and BINARY0.2 are the simulators with these headers.
# Fails if one of the faults is not found within SECONDS (default 600).
programs=$1 seconds=${2:-600} missing=0
row() { # title, kinds of faults, invariants, version of the plan
    begun=$(date +%s)
    found=$("$programs$version" --faults "$2" --only "$3" --plan "$4" \
        --seconds "$seconds" --stop 1 --again 0 2>/dev/null |
        sed -n 's/^FAIL \([^ ]*\) seed \([0-9]*\) at [0-9.]* s: /\1|\2|/p' |
        head -1)
    [ "$found" ] || missing=$((missing + 1))
    printf '%s|%s|%s|%s\n' "$1" "$2" "${found:--|-|not found}" \
        "$(($(date +%s) - begun))" |
        awk -F'|' '{printf "%s\n    faults: %s; invariant: %s; seed %s; found" \
            " after %s s\n    %s\n", $1, $2, $3, $4, $6, $5}'
}
version=0.1
echo "--- with the header of $version"
row 'busy loops while the server is frozen' freeze-server steps,logs 0
row 'dead or frozen waiters delay an item' actor-kill,actor-freeze liveness 0
row 'one BUSY makes a consumer poll for good' busy idle 0
row 'the set of waiters grows, a script walks through it' actor-churn \
    work,waiters 0
row 'FLUSHALL while many wait' flushall liveness 0
row 'CLIENT KILL: reconnects without a pause' kill-pubsub connects 0
version=0.2
echo "--- with the header of $version"
lost=cut,freeze-server,crash,forget,stall
row 'a lost connection with offers and acks in flight: a busy loop' $lost \
    steps 2
row 'after a lost connection an outbox stands still' $lost outbox 2
row 'closed at CLIENT TRACKING: reconnects without a pause' denied connects 2
row 'a slow line: no push is heard, and the log blames an ACL' none logs 5
row 'an outbox settles one nack per round trip' none rate 9
row 'with a Redisson wire a later attempt counts as the first' none attempts 9
[ "$missing" -eq 0 ]
