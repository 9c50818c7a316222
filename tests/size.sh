#!/bin/sh
# `make size`: what the library adds to a program at -Os, without hiredis and
# libc. Code, with the scripts, of three programs whose linker drops what they
# don't refer to (-ffunction-sections, --gc-sections): one that only offers, one
# that offers, takes and ticks (tests/size/), and one that calls everything.
# RAM per handle, and the deepest stack of any public function. For this machine
# and, if its cross compiler is installed, for ARM. The Cortex-M4 row is code
# for that core (Thumb-2, VFPv4 of single precision) by the Linux compiler; that
# of `make device`, with newlib and lwIP, has the same size within 1 %.
#
# Fails if an object refers to an allocator: the library allocates nothing.
cd "$(dirname "$0")/.." || exit 1
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
printf '#define DELAYQ_IMPLEMENTATION\n#include "delayq.h"\n%s\n%s\n' \
    'char handle[sizeof(delayq)]; char item[sizeof(delayq_item)];' \
    'char options[sizeof(delayq_options)];' >"$dir/one.c"
cp tests/size/offer.c tests/size/loop.c "$dir"
{
    printf '#include "delayq.h"\nint program(void);\n%s\n' \
        'void (*volatile every[])(void) = {'
    sed -n 's/^DELAYQ_API.*[ *]\(delayq_[a-z_]*\)(.*/(void (*)(void))\1,/p' \
        delayq.h | sort -u
    printf '};\nint program(void) { return every[0] != 0; }\n'
} >"$dir/all.c"
# The longest path through gcc's call graph.
deepest() {
    awk '
    function depth(f,    i, d, most) {
        if (f in seen) return 0
        if (f in known) return known[f]
        seen[f] = 1
        for (i = 1; i <= calls[f]; i++) {
            d = depth(callee[f, i])
            if (d > most) most = d
        }
        delete seen[f]
        return known[f] = own[f] + most
    }
    /^node:/ {
        split($0, q, "\"")
        if (match(q[4], /[0-9]+ bytes/))
            own[q[2]] = substr(q[4], RSTART) + 0
    }
    /^edge:/ { split($0, q, "\""); callee[q[2], ++calls[q[2]]] = q[4] }
    END {
        for (f in own)
            if (f ~ /^delayq_/ && depth(f) > most) { most = depth(f); who = f }
        printf "%d %s", most, who
    }' "$1"
}
# row NAME COMPILER FLAGS...
row() {
    name=$1 cc=$2
    shift 2
    command -v "$cc" >/dev/null || return
    set -- -std=c99 -Os -fno-pie -ffunction-sections -fdata-sections -I. \
        $HIREDIS_CFLAGS "$@"
    "$cc" "$@" -fcallgraph-info=su -c "$dir/one.c" -o "$dir/one.o" \
        2>"$dir/err" || { echo "$name: $(head -1 "$dir/err")"; return; }
    for program in offer loop all; do
        "$cc" "$@" -c "$dir/$program.c" -o "$dir/part.o" &&
            "$cc" -nostdlib -r -Wl,--gc-sections,-e,program "$dir/part.o" \
                "$dir/one.o" -o "$dir/$program.o" || failed=1
    done
    heap=$(nm -u "$dir/one.o" | awk '{ print $2 }' | grep -x \
        -e '[a-z_]*alloc' -e 'free' -e 'str[n]*dup' -e 'v*asprintf' \
        -e 'hi_.*' -e 'sds.*' -e '_Zn.*' | tr '\n' ' ')
    [ -z "$heap" ] || { echo "$name: allocates by $heap"; failed=1; }
    code() { size "$dir/$1.o" | awk 'NR == 2 { print $1 + $2 }'; }
    of() { nm -S "$dir/one.o" | awk -v n="$1" '$4 == n { print $2 }'; }
    ram=$(printf '%d' "0x$(of handle)")
    opt=$(printf '%d' "0x$(of options)")
    item=$(printf '%d' "0x$(of item)")
    printf '%-13s%7d%7d%11d%8d%9d%6d%7d %s\n' "$name" "$(code offer)" \
        "$(code loop)" "$(code all)" "$ram" "$opt" "$item" \
        $(deepest "$dir/one.ci")
}
failed=0
printf '%-13s%7s%7s%11s%8s%9s%6s%7s %s\n' bytes offers loop everything handle \
    options item stack in
row "$(uname -m)" "${CC:-cc}"
row "armv7, ARM" arm-linux-gnueabihf-gcc -march=armv7-a+fp -marm
row "armv7, Thumb" arm-linux-gnueabihf-gcc -march=armv7-a+fp -mthumb
cortex="-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mthumb"
row Cortex-M4 arm-linux-gnueabihf-gcc $cortex
row aarch64 aarch64-linux-gnu-gcc
"${CC:-cc}" -std=gnu99 -Os -I. $HIREDIS_CFLAGS tests/size/run.c \
    ${HIREDIS_LIBS:--lhiredis} -lpthread -o "$dir/run" &&
    echo "at run time, here, with hiredis and libc:" &&
    sh tests/with-server.sh "$dir/run" || failed=1
[ $failed -eq 0 ] && echo 'allocators that any of them refers to: none'
exit $failed
