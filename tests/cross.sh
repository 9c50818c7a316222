#!/bin/sh
# Compiles the header for other systems, with hiredis' C source from the package
# `hiredis` of PyPI:
#
#     tests/cross.sh windows   by MinGW-w64. wine then runs
#                              tests/windows/smoke.c and a game, with a Redis of
#                              this system
#     tests/cross.sh zig       by zig cc, of PyPI's `ziglang`: macOS, FreeBSD,
#                              NetBSD, OpenBSD. Nothing is run
#     tests/cross.sh device    for a Cortex-M4, newlib and lwIP, by Debian's
#                              gcc-arm-none-eabi. The smoke test runs here, on
#                              Debian's build of lwIP for this system
#     tests/cross.sh lwip      most tests of tests/, on that build of lwIP
#     tests/cross.sh board     for a board with a Cortex-M4 and lwIP, emulated by
#                              qemu-system-arm: tests/board.sh
#
# DELAYQ_CROSS_CACHE   a folder for downloads and for wine
# DELAYQ_LWIP          a folder with liblwip-dev and liblwip0 unpacked; without
#                      it, both are downloaded
# DELAYQ_SLIRP         a folder with libslirp-dev and libslirp0 unpacked;
#                      without it, both are downloaded
# DELAYQ_HIREDIS_SOURCE  a folder with hiredis' source in `hiredis`; without it,
#                      the source is downloaded
#
# If a compiler or wine is missing, what needs it is skipped. The programs go to
# build/windows, build/zig, build/cortex-m4, build/lwip and build/board. Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
. tests/hiredis.sh
zig_version=0.17.1
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wstrict-prototypes -Wvla"
parts="alloc async hiredis net read sds sockcompat"
server= game=
trap 'kill -CONT $server 2>/dev/null; kill $server $game 2>/dev/null
    rm -rf "$dir"' EXIT

# clean SENTENCE COMMAND...: the command must succeed without any output
clean() {
    sentence=$1
    shift
    if "$@" >"$dir/said" 2>&1 && [ ! -s "$dir/said" ]; then ok "$sentence"; else
        bad "$sentence"
        head -n 40 "$dir/said"
        return 1
    fi
}

# build OUT [LIBRARY...]: builds hiredis, the examples, and the header in C99
# and C++11, with $cc and $cxx, in the folder OUT
build() {
    out=$1
    shift
    rm -rf "$out" && mkdir -p "$out/hiredis" || exit 1
    for part in $parts; do
        $cc -O1 -c "$source/hiredis/$part.c" -o "$out/hiredis/$part.o" \
            >"$dir/said" 2>&1 || { bad "hiredis: $part.c"; cat "$dir/said"; }
    done
    printf '#define DELAYQ_IMPLEMENTATION\n#include "delayq.h"\n' \
        >"$out/delayq_impl.c"
    for std in $cs; do
        clean "$row: the header in $std" $cc -std=$std -O1 $warn -I. \
            -isystem "$source" -c "$out/delayq_impl.c" -o "$out/impl.o"
    done
    cp "$out/delayq_impl.c" "$out/delayq_impl.cc"
    for std in $cxxs; do
        clean "$row: the header in $std" $cxx -std=$std -O1 -Wall -Wextra \
            -Wpedantic -Wshadow -Wconversion -I. -isystem "$source" \
            -c "$out/delayq_impl.cc" -o "$out/impl.oo"
    done
    for example in $examples; do
        clean "$row: $example" $cc -std=c99 -O0 $warn -I. -isystem "$source" \
            "examples/$example.c" "$out"/hiredis/*.o "$@" \
            -o "$out/$example$exe"
    done
}

# --- Windows -------------------------------------------------------------------

start_server() {
    redis-server --port $port --bind 127.0.0.1 --dir "$dir" --save '' \
        --appendonly yes >>"$dir/redis.log" 2>&1 &
    server=$!
    for try in $(seq 300); do # for a minute
        redis-cli -p $port ping 2>/dev/null | grep -q PONG && return
        kill -0 $server 2>/dev/null || return 1
        sleep 0.2
    done
    return 1
}
find_server() {
    for port in 27411 28533 29657 31771; do start_server && return; done
    server=
    return 1
}
# obey REQUEST: does what the smoke test requests
obey() {
    case $1 in
    freeze) kill -STOP $server ;;
    thaw) kill -CONT $server ;;
    stop) kill $server && wait $server ;;
    kill) kill -KILL $server && wait $server 2>/dev/null ;;
    start) start_server ;;
    esac
}
# smoke TITLE COMMAND...: runs the smoke test, and obeys its requests
smoke() {
    title=$1
    shift
    rm -f "$dir/in" "$dir/out"
    mkfifo "$dir/in" "$dir/out" || exit 1
    echo "--- smoke test, $title"
    timeout 180 "$@" "redis://127.0.0.1:$port" <"$dir/in" >"$dir/out" \
        2>"$dir/err" &
    game=$!
    exec 3>"$dir/in" 4<"$dir/out"
    last=
    while read -r line <&4; do
        line=${line%"$cr"}
        last=$line
        case $line in
        please*)
            obey "${line#please }"
            echo done >&3
            continue
            ;;
        ok*) passed=$((passed + 1)) ;;
        FAIL*) failed=$((failed + 1)) ;;
        esac
        echo "$line"
    done
    exec 3>&- 4<&-
    wait $game
    code=$?
    game=
    case $last in
    *passed,*failed,*skipped) ;;
    *) bad "the smoke test, $title, ended with $code" && cat "$dir/err" ;;
    esac
}
# Run the game, and freeze the server for two seconds. All orcs must come back.
play() {
    title=$1
    shift
    echo "--- game_loop, $title"
    DELAYQ_URL="redis://127.0.0.1:$port" timeout 60 "$@" 6 >"$dir/game" 2>&1 &
    game=$!
    sleep 3
    kill -STOP $server
    sleep 2
    kill -CONT $server
    wait $game
    game=
    tr -d '\r' <"$dir/game"
    if tail -n 1 "$dir/game" | grep -q '^18 died, 18 came back'; then ok; else
        bad "game_loop, $title: not all orcs came back"
    fi
}
on_windows() {
    row=windows cc=x86_64-w64-mingw32-gcc cxx=x86_64-w64-mingw32-g++ exe=.exe
    cs="c99 c17" cxxs="c++11 c++20"
    examples="hello game_loop worker broadcast small_tool demo"
    command -v $cc >/dev/null || give_up "$cc is not installed"
    command -v $cxx >/dev/null || give_up "$cxx is not installed"
    say compiler "mingw $($cc -dumpversion | cut -d- -f1)"
    find_hiredis
    libraries="-static -lws2_32 -lbcrypt -lwinpthread"
    build build/windows $libraries
    clean "windows: the smoke test" $cc -std=c99 -O2 $warn -I. \
        -isystem "$source" tests/windows/smoke.c build/windows/hiredis/*.o \
        $libraries -o build/windows/smoke.exe
    # Debian's wine64 alone does not put its program into a folder of PATH.
    wine=$(command -v wine || command -v wine64 ||
        command -v /usr/lib/wine/wine64) ||
        { say server - && skip "wine is not installed: nothing was run"; return; }
    command -v redis-server >/dev/null || give_up "redis-server is not installed"
    find_server || give_up "no port for a server"
    say server "$(redis-cli -p $port info server |
        sed -n 's/^redis_version:\([0-9.]*\).*/redis \1/p')"
    say wine "$("$wine" --version 2>/dev/null)"
    export WINEPREFIX="$cache/wine" WINEDEBUG=-all
    timeout 300 "$wine" wineboot -i >"$dir/said" 2>&1
    cr=$(printf '\r')
    ${CC:-cc} -std=gnu99 -O2 $CPPFLAGS $HIREDIS_CFLAGS -I. \
        tests/windows/smoke.c ${HIREDIS_LIBS:--lhiredis} -lpthread \
        -o build/windows/smoke && ${CC:-cc} -std=c99 -O2 $CPPFLAGS \
        $HIREDIS_CFLAGS -I. examples/game_loop.c ${HIREDIS_LIBS:--lhiredis} \
        -o build/windows/game_loop && {
        smoke native build/windows/smoke
        play native build/windows/game_loop
    }
    smoke wine "$wine" build/windows/smoke.exe
    play wine "$wine" build/windows/game_loop.exe
}

# --- macOS and the BSDs --------------------------------------------------------

find_zig() {
    zig=$(command -v zig) && return
    zig=$cache/zig-$zig_version/ziglang/zig
    [ -x "$zig" ] || pypi install --target "$cache/zig-$zig_version" \
        "ziglang==$zig_version" >"$dir/said" 2>&1 || {
        cat "$dir/said"
        give_up "zig is not installed, and can't be had"
    }
}
by_zig() {
    find_zig
    say compiler "zig $("$zig" version)"
    find_hiredis
    say server -
    cs=c99 cxxs=c++11 exe=
    export ZIG_GLOBAL_CACHE_DIR="$cache/zig-cache"
    export ZIG_LOCAL_CACHE_DIR="$cache/zig-cache"
    for row in x86_64-macos aarch64-macos x86_64-freebsd x86_64-netbsd \
        x86_64-openbsd; do
        cc="$zig cc -target $row" cxx="$zig c++ -target $row"
        examples="hello game_loop worker"
        case $row in *freebsd | *netbsd) # the others have no posix_fallocate
            examples="$examples device_loop" ;;
        esac
        build "build/zig/$row"
        clean "$row: the tool" $cc -std=c99 -O0 $warn -I. -isystem "$source" \
            examples/tool/*.c "build/zig/$row"/hiredis/*.o \
            -o "build/zig/$row/delayq"
    done
}

# --- lwIP ----------------------------------------------------------------------

# unpack FOLDER HEADER PACKAGE...: unpacks the packages into the folder, unless
# the folder has the header
unpack() {
    folder=$1 header=$2
    shift 2
    [ -f "$folder/usr/include/$header" ] || {
        (cd "$dir" && fetch apt-get -q -o APT::Sandbox::User=root download "$@") &&
            for package; do
                dpkg -x "$dir/$package"_*.deb "$folder" || return
            done
    } >"$dir/said" 2>&1 || { cat "$dir/said" && return 1; }
}
# Sets $lwip to the folder that contains usr/include/lwip.
find_lwip() {
    lwip=${DELAYQ_LWIP:-$cache/lwip}
    unpack "$lwip" lwip/lwip/sockets.h liblwip-dev liblwip0 ||
        give_up "lwIP can't be had: set DELAYQ_LWIP"
    library=$(find "$lwip" -name 'liblwip.so.0')
    say_lwip "$lwip/usr/include/lwip"
}
# say_lwip FOLDER: prints the version of lwIP's headers in the folder
say_lwip() {
    say lwip "$(sed -n 's/^.*LWIP_VERSION_\(MAJOR\|MINOR\|REVISION\) *\([0-9]*\).*/\2/p' \
        "$1/lwip/init.h" | head -n 3 | paste -s -d .)"
}
# lacks_lwip_only COMMAND...: the linker must find everything except lwIP and
# two functions of the board
lacks_lwip_only() {
    "$@" 2>&1 | sed -n "s/.*undefined reference to \`\(.*\)'/\1/p" |
        sort -u >"$dir/lacks"
    ! grep -v -e '^lwip_' "$dir/lacks" >"$dir/board" || :
    [ "$(tr '\n' ' ' <"$dir/board")" = "board_now_us board_random " ] ||
        { cat "$dir/board" && false; }
}
on_device() {
    row=Cortex-M4 cc="arm-none-eabi-gcc -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 \
        -mfloat-abi=hard -mthumb -ffunction-sections -fdata-sections"
    out=build/cortex-m4
    command -v ${cc%% *} >/dev/null || give_up "${cc%% *} is not installed"
    say compiler "gcc $(${cc%% *} -dumpversion)"
    find_hiredis
    find_lwip
    rm -rf $out && mkdir -p $out || exit 1
    board="-Itests/device/cortex-m4 -isystem $lwip/usr/include/lwip \
        -isystem $source"
    for part in hiredis read sds alloc; do
        clean "hiredis: $part.c" $cc -std=gnu99 -Os -DSSIZE_MAX=INT_MAX \
            -c "$source/hiredis/$part.c" -o $out/$part.o
    done
    clean "$row: hiredis_net.c" $cc -std=c99 -Os $warn $board \
        -isystem "$source/hiredis" -c examples/device/hiredis_net.c \
        -o $out/hiredis_net.o
    printf '#define DELAYQ_IMPLEMENTATION\n#define DELAYQ_PORT "%s"\n%s\n' \
        examples/device/lwip.h '#include "delayq.h"' >$out/delayq_impl.c
    # Compile with lwIP's sockets as macros, then as functions, then with IPv6
    # and without DNS.
    for config in "" -DLWIP_COMPAT_SOCKETS=2 "-DLWIP_IPV6=1 -DLWIP_DNS=0"; do
        for std in c99 c17; do
            clean "$row: the header in $std $config" $cc -std=$std -Os $warn \
                $config -I. $board -c $out/delayq_impl.c -o $out/impl.o
        done
    done
    cp $out/delayq_impl.c $out/delayq_impl.cc
    cxx="arm-none-eabi-g++ ${cc#* }"
    clean "$row: the header in c++11" $cxx -std=c++11 -Os -Wall -Wextra \
        -Wpedantic -Wshadow -Wconversion -I. $board -c $out/delayq_impl.cc \
        -o $out/impl.oo
    clean "$row: the header in c99" $cc -std=c99 -Os $warn -I. $board \
        -c $out/delayq_impl.c -o $out/impl.o
    clean "$row: a program" $cc -std=c99 -Os $warn -I. \
        -c tests/size/loop.c -o $out/loop.o
    $cc -nostdlib -r -Wl,--gc-sections,-e,program $out/*.o -o "$dir/flash" &&
        $cc -nostdlib -r -Wl,--gc-sections,-e,program $out/impl.o $out/loop.o \
            -o "$dir/own" &&
        arm-none-eabi-size "$dir/own" "$dir/flash" | awk '
            NR == 2 { own = $1 + $2 }
            NR == 3 { print "flash of a program that offers, takes and ticks: " \
                "delayq " own ", hiredis " $1 + $2 - own }'
    check "$row: a program lacks lwIP and two functions of the board" \
        lacks_lwip_only $cc --specs=nano.specs --specs=nosys.specs \
        -nostartfiles -Wl,--gc-sections,-e,program $out/*.o -o $out/program

    command -v redis-server >/dev/null || give_up "redis-server is not installed"
    find_server || give_up "no port for a server"
    say server "$(redis-cli -p $port info server |
        sed -n 's/^redis_version:\([0-9.]*\).*/redis \1/p')"
    here="-O2 -isystem $lwip/usr/include/lwip -isystem $source"
    for part in hiredis read sds alloc; do
        ${CC:-cc} -O2 -w -c "$source/hiredis/$part.c" -o "$dir/$part.o"
    done
    clean "the board" ${CC:-cc} -std=gnu99 $here -isystem "$source/hiredis" \
        -Wall -Wextra -I. -DDELAYQ_PORT='"tests/device/linux/port.h"' \
        tests/windows/smoke.c tests/device/linux/bridge.c \
        examples/device/hiredis_net.c "$dir"/*.o "$library" -lpthread \
        -Wl,-rpath,"$(cd "${library%/*}" && pwd)" -o $out/smoke || return
    smoke lwIP $out/smoke
}
# Run the tests on this system, with a delayq that uses lwIP. The tests' own
# connections use the sockets and the hiredis of Linux. So no function of lwIP's
# hiredis may be visible outside of $out/suite.o.
on_lwip() {
    out=build/lwip
    find_hiredis
    find_lwip
    command -v redis-server >/dev/null || give_up "redis-server is not installed"
    say compiler "gcc $(${CC:-cc} -dumpversion)"
    say server "$(redis-server --version | sed 's/.* v=\([^ ]*\).*/redis \1/')"
    slirp=${DELAYQ_SLIRP:-$cache/slirp}
    unpack "$slirp" slirp/libslirp.h libslirp-dev libslirp0 ||
        give_up "libslirp can't be had: set DELAYQ_SLIRP"
    rm -rf $out && mkdir -p $out || exit 1
    here="-O1 -g -isystem $lwip/usr/include/lwip -isystem $source"
    for part in hiredis read sds alloc; do
        ${CC:-cc} -O1 -w -c "$source/hiredis/$part.c" -o "$dir/$part.o"
    done
    printf '#define DELAYQ_IMPLEMENTATION\n#define DELAYQ_PORT "%s"\n%s\n' \
        tests/device/suite/port.h '#include "delayq.h"' >$out/suite.c
    ${CC:-cc} -std=gnu99 $here -isystem "$source/hiredis" -I. -c \
        examples/device/hiredis_net.c -o "$dir/hiredis_net.o" &&
        ${CC:-cc} -std=gnu99 $here -Wall -Wextra -I. -DDQ_ATTEMPTS_US=1 \
            -DDQ_SLACK_US=2000000 \
            -c $out/suite.c -o "$dir/suite.o" &&
        ld -r "$dir"/*.o -o $out/suite.o &&
        objcopy -w --keep-global-symbol='delayq_*' $out/suite.o &&
        make -s -j2 build/test-plain || { bad "the tests are built" && return; }
    objects=$(find build/plain -name '*.o' ! -name wire.o)
    clean "the tests on lwIP are linked" ${CC:-cc} -std=gnu99 $here -Wall \
        -Wextra -isystem "$slirp/usr/include/slirp" -I. \
        tests/device/suite/network.c $objects $out/suite.o "$library" \
        "$(find "$slirp" -name libslirp.so.0)" ${HIREDIS_LIBS:--lhiredis} \
        -lpthread -Wl,--wrap=delayq_open,--wrap=delayq_fds,--wrap=poll \
        -Wl,-rpath,"$(cd "${library%/*}" && pwd)" -o $out/tests || return
    $out/tests $(sed -n 's/^\([a-z][^ ]*\).*/!\1/p' \
        tests/device/suite/left-out) >"$dir/tests" 2>&1
    grep -a -v '^ok ' "$dir/tests" | sed '$d'
    set -- $(tail -n 1 "$dir/tests")
    case $* in
    *passed,*failed,*skipped)
        passed=$((passed + $1)) failed=$((failed + $3))
        echo "the tests on lwIP: $*"
        ;;
    *) bad "the tests on lwIP have ended: $*" ;;
    esac
}

case $1 in
device) on_device ;;
lwip) on_lwip ;;
board) . tests/board.sh && on_board ;;
windows) on_windows ;;
zig) by_zig ;;
*) echo "usage: tests/cross.sh windows|zig|device|lwip|board" >&2 && exit 2 ;;
esac
summary
