#!/bin/sh
# `make proof`: CBMC proves that code that reads untrusted bytes stays within
# them, that no arithmetic overflows, and that each loop ends. proof.h and
# proofs.txt describe the files. Each proof must also fail with a header that is
# broken on purpose. Ends in "N passed, N failed, N skipped".
#
#     run.sh [NAME...]      only these proofs; CBMC=program
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
CBMC=${CBMC:-cbmc}
command -v "$CBMC" >/dev/null || {
    skip "cbmc is not installed: Debian 13 has it, as has \`sh \
tests/debian-program.sh build/tools/cbmc trixie cbmc /usr/bin/cbmc\`"
    summary
    exit
}
cp -r tests/proof "$dir/" && mkdir "$dir/tests" && mv "$dir/proof" "$dir/tests/"

# proves FILE NAME ARGUMENT...: runs a proof with the header in $dir
proves() {
    source=$1 name=$2
    shift 2
    # shellcheck disable=SC2086
    (cd "$dir" && timeout 900 "$CBMC" "tests/proof/$source.c" \
        $HIREDIS_CFLAGS --function "proof_$name" --drop-unused-functions \
        --bounds-check --pointer-check --pointer-overflow-check \
        --signed-overflow-check --undefined-shift-check --div-by-zero-check \
        --unwinding-assertions --unwind "$@") >"$dir/said" 2>&1
    code=$?
}

for file in tests/proof/*.c; do
    source=$(basename "$file" .c)
    for name in $(sed -n 's/^void proof_\([a-z_0-9]*\)(void).*/\1/p' "$file"); do
        [ $# -eq 0 ] || case " $* " in *" $name "*) ;; *) continue ;; esac
        unwind=$(sed -n "s/^$name //p" tests/proof/proofs.txt)
        broken=$(sed -n "/^$name /{n;s/^- //p;}" tests/proof/proofs.txt)
        changed=$(sed -n "/^$name /{n;n;s/^= //p;}" tests/proof/proofs.txt)
        [ "$unwind" ] || { bad "proofs.txt has no $name"; continue; }
        began=$(date +%s)
        sed "$changed" delayq.h >"$dir/delayq.h"
        # shellcheck disable=SC2086
        proves "$source" "$name" $unwind
        if [ $code -eq 0 ]; then
            ok "$name: $(sed -n 's/^\*\* 0 of \([0-9]*\) failed.*/\1/p' \
                "$dir/said") checks, $(($(date +%s) - began)) s"
        else
            bad "$name"
            grep -E ': FAILURE|error|^VERIF' "$dir/said" | head -20
            continue
        fi
        mv "$dir/delayq.h" "$dir/whole"
        sed "$broken" "$dir/whole" >"$dir/delayq.h"
        if [ ! "$broken" ] || cmp -s "$dir/whole" "$dir/delayq.h"; then
            bad "$name: its BREAK changes nothing"
            continue
        fi
        # shellcheck disable=SC2086
        proves "$source" "$name" $unwind
        if [ $code -eq 10 ] && grep -q '^VERIFICATION FAILED' "$dir/said"; then
            ok
        else
            bad "$name does not notice that the header is broken"
        fi
    done
done
summary
