#!/bin/sh
# `make models`: spin shows, for all orders of the steps, that the protocols of
# outboxes and of waiters keep their promises within the bounds of models.txt.
# Each model must also fail if it is broken on purpose. Ends in "N passed,
# N failed, N skipped".
#
#     run.sh [MODEL]      only the runs of this model
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
has spin && has cc || { summary; exit; }

for model in tests/models/*.pml; do
    for name in $(grep -ow 'dq_[a-z_]*\|delayq_[a-z_]*' "$model" | sort -u); do
        grep -q -w -e "$name" delayq.h ||
            bad "$model names $name, which is not in delayq.h"
    done
done
ok

# explores MODEL DEFINITION...: visits all states; succeeds if no rule is broken
explores() {
    source=$PWD/tests/models/$1.pml
    shift
    (cd "$dir" && rm -f -- *.trail && spin -a "$@" "$source" &&
        cc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=8000 -DVECTORSZ=4096 -o pan \
            pan.c && timeout 900 ./pan -m100000 -w25) >"$dir/said" 2>&1 &&
        grep -q 'errors: 0' "$dir/said" &&
        ! grep -q -i 'not completed\|too small\|out of memory' "$dir/said"
}

while read -r mark model definitions; do
    case $mark in
    hold | fail) ;;
    *) continue ;;
    esac
    [ $# -eq 0 ] || [ "$1" = "$model" ] || continue
    began=$(date +%s)
    # shellcheck disable=SC2086
    explores "$model" $definitions
    code=$?
    case $mark in
    hold)
        if [ $code -eq 0 ]; then
            states=$(sed -n 's/^ *\([0-9]*\) states, stored.*/\1/p' "$dir/said")
            ok "$model $definitions: $states states, $(($(date +%s) - began)) s"
        else
            bad "$model $definitions"
            tail -n 20 "$dir/said"
            # shellcheck disable=SC2086
            (cd "$dir" && spin -t -k ./*.trail $definitions \
                "$source" | head -n 60)
        fi
        ;;
    fail)
        if grep -q 'assertion violated' "$dir/said"; then
            ok
        else
            bad "$model $definitions does not notice its fault"
        fi
        ;;
    esac
done <tests/models/models.txt
summary
