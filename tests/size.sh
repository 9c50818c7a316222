#!/bin/sh
# `make size`: prints what the library adds to a program at -Os, without hiredis
# and libc. It measures the code, with the scripts, of three programs: one only
# offers, one offers, takes and ticks (tests/size/), and one calls everything.
# Their linker drops unused functions (-ffunction-sections, --gc-sections).
# Further columns are the RAM per handle, and the deepest stack of any public
# function in the compiler's call graph. All this is printed for this machine
# and, if its cross compiler is installed, for ARM. The compiler for ARM Linux
# makes the code for the Cortex-M4 (Thumb-2, VFPv4 of single precision), with
# the port of examples/device.
#
# At the end it prints the memory that calls use at run time, including hiredis
# and libc: the heap (tests/size/run.c), and the stack of every public function
# (tests/size/stack.c). Both are measured for this machine, and the stack also
# for Thumb-2 code for ARM, if qemu-arm is installed.
#
# The rows of the Cortex-M4 are compiled with NDEBUG, the second one also with
# DELAYQ_NO_LUA. The table in examples/device/README.md has their limits, which
# hold for gcc 12. With the argument `short`, for `make test`, only these rows and,
# on this machine, the heap and the stack at -Os are measured.
#
# Fails if a program of these rows is larger than its limit, if a program
# without Lua contains Lua, if an object refers to an allocator (the library
# allocates nothing), if calls need more than 16 KB of heap, or if a call needs
# more than 8 KB of stack.
cd "$(dirname "$0")/.." && . tests/lib.sh && . tests/hiredis.sh || exit 1
short=$1 arm=arm-linux-gnueabihf-gcc levels="-Os -O2"
[ -z "$short" ] || levels=-Os
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
# deepest FILE: prints the deepest stack in gcc's call graph, and its function
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
# row NAME COMPILER FLAGS...: measures and prints a row
row() {
    name=$1 cc=$2
    shift 2
    command -v "$cc" >/dev/null || return 1
    set -- -std=c99 -Os -fno-pie -ffunction-sections -fdata-sections -I. \
        $HIREDIS_CFLAGS "$@"
    "$cc" "$@" -fcallgraph-info=su -c "$dir/one.c" -o "$dir/one.o" \
        2>"$dir/err" || { bad "$name: $(head -1 "$dir/err")"; return 1; }
    for program in offer loop all; do
        "$cc" "$@" -c "$dir/$program.c" -o "$dir/part.o" &&
            "$cc" -nostdlib -r -Wl,--gc-sections,-e,program "$dir/part.o" \
                "$dir/one.o" -o "$dir/$program.o" || bad "$name: $program"
    done
    heap=$(nm -u "$dir/one.o" | awk '{ print $2 }' | grep -x \
        -e '[a-z_]*alloc' -e 'free' -e 'str[n]*dup' -e 'v*asprintf' \
        -e 'hi_.*' -e 'sds.*' -e '_Zn.*' | tr '\n' ' ')
    if [ -z "$heap" ]; then ok; else bad "$name: allocates by $heap"; fi
    code() { size "$dir/$1.o" | awk 'NR == 2 { print $1 + $2 }'; }
    of() { nm -S "$dir/one.o" | awk -v n="$1" '$4 == n { print $2 }'; }
    ram=$(printf '%d' "0x$(of handle)")
    opt=$(printf '%d' "0x$(of options)")
    item=$(printf '%d' "0x$(of item)")
    printf '%-13s%7d%7d%11d%8d%9d%6d%7d %s\n' "$name" "$(code offer)" \
        "$(code loop)" "$(code all)" "$ram" "$opt" "$item" \
        $(deepest "$dir/one.ci") | tee -a "$dir/rows"
}
printf '%-13s%7s%7s%11s%8s%9s%6s%7s %s\n' bytes offers loop everything handle \
    options item stack in
[ "$short" ] || {
    row "$(uname -m)" "${CC:-cc}"
    row aarch64 aarch64-linux-gnu-gcc
    row "armv7, ARM" $arm -march=armv7-a+fp -marm
    row "armv7, Thumb" $arm -march=armv7-a+fp -mthumb
}
cortex="-mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mthumb -Itests/size
    -DDELAYQ_PORT=\"examples/device/lwip.h\" -DNDEBUG"
# limited NAME TITLE FLAGS...: measures a row, and compares it with the limits in
# the table
limited() {
    name=$1 title=$2
    shift 2
    row "$name" $arm $cortex "$@" || return
    limits=$(sed -n "s/^| $title | \([0-9,]*\) | \([0-9,]*\) | \([0-9,]*\) | \([0-9,]*\) .*/\1 \2 \3 \4/p" \
        examples/device/README.md | tr -d ,)
    # shellcheck disable=SC2046,SC2086
    set -- $(tail -n 1 "$dir/rows" | cut -c 14-46) $limits
    if [ $# -eq 8 ] && [ "$1" -le "$5" ] && [ "$2" -le "$6" ] &&
        [ "$3" -le "$7" ] && [ "$4" -le "$8" ]; then
        ok
    else
        bad "$name: larger than the limits of examples/device/README.md: $limits"
    fi
}
if has $arm; then
    case $($arm -dumpversion) in
    12*)
        limited Cortex-M4 "with Lua"
        limited M4-no-Lua "without Lua" -DDELAYQ_NO_LUA
        if grep -q 'redis\.call' "$dir/all.o"; then
            bad "a program with DELAYQ_NO_LUA contains Lua"
        else
            ok
        fi
        ;;
    *) skip "the limits of the code's size hold for gcc 12, not for this $arm" ;;
    esac
fi
"${CC:-cc}" -std=gnu99 -Os -I. $HIREDIS_CFLAGS tests/size/run.c \
    ${HIREDIS_LIBS:--lhiredis} -o "$dir/run" &&
    echo "at run time, with hiredis and libc:" &&
    sh tests/with-server.sh "$dir/run" && ok || bad "the heap at run time"

# tests/size/stack.c must call every public function.
sed -n 's/^DELAYQ_API.*[ *]\(delayq_[a-z_]*\)(.*/\1/p' delayq.h | sort -u |
    while read -r function; do
        grep -q "CALL(.*$function(" tests/size/stack.c || echo "$function"
    done >"$dir/missing"
[ ! -s "$dir/missing" ] ||
    bad "tests/size/stack.c lacks $(tr '\n' ' ' <"$dir/missing")"
# stack NAME RUNNER COMPILER...: measures the stack
stack() {
    name=$1 runner=$2
    shift 2
    for level in $levels; do
        # The linker warns about getaddrinfo, which this program does not call.
        "$@" -std=gnu99 $level -static -I. tests/size/stack.c $parts -lpthread \
            -o "$dir/stack" 2>"$dir/err" || {
            bad "$name, $level: the stack's program does not compile"
            cat "$dir/err"
            return
        }
        printf '%s, %s, ' "$name" $level
        sh tests/with-server.sh $runner "$dir/stack" && ok ||
            bad "the stack, $name, $level"
    done
}
parts=${HIREDIS_STATIC:--l:libhiredis.a}
has_archive() { [ -f "$("${CC:-cc}" -print-file-name="$1")" ]; }
if has_archive libc.a && { [ "$HIREDIS_STATIC" ] || has_archive libhiredis.a; }; then
    stack "$(uname -m)" "" "${CC:-cc}" $HIREDIS_CFLAGS
else
    skip "libc.a or libhiredis.a is missing: the stack was not measured"
fi
if [ -z "$short" ] && has $arm qemu-arm; then
    thumb="$arm -march=armv7-a+fp -mthumb"
    find_hiredis
    parts=
    for part in alloc async hiredis net read sds; do
        $thumb -Os -w -c "$source/hiredis/$part.c" -o "$dir/$part.part.o" ||
            bad "hiredis' $part.c"
        parts="$parts $dir/$part.part.o"
    done
    stack "armv7, Thumb" qemu-arm $thumb -isystem "$source"
fi
summary
