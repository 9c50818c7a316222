#!/bin/sh
# `make matrix`: runs the tests on other systems and machines. Each row has a
# Debian in a cache folder, so nothing is installed on this system. Two rows may
# share a Debian. For another machine the client is cross compiled and run by
# qemu-user. The rows windows, zig, device, lwip and board are those of
# tests/cross.sh. They run on this system, and need neither root nor a Debian in
# the cache folder.
#
#     tests/matrix.sh [ROW...]     default: all rows
#
# DELAYQ_MATRIX_CACHE   a folder for the chroots; if it is removed, they are
#                       made again
# DELAYQ_MATRIX_MIRROR  the URL of a mirror of Debian's packages
#
# A row's output goes to build/matrix/ROW.log. If a row can't run, this is
# reported, and the row counts as skipped. Ends in "N passed, N failed, N
# skipped".
cd "$(dirname "$0")/.." || exit 1
cache=${DELAYQ_MATRIX_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/delayq-matrix}
mirror=${DELAYQ_MATRIX_MIRROR:-http://deb.debian.org/debian}
logs=build/matrix
rows="deb11 deb12 deb13 deb13-valkey i386 arm64 armhf s390x s390x-server musl
    windows zig device lwip board"

# settings ROW: sets the row's system, compiler and packages
settings() {
    row=$1 suite=bookworm arch=amd64 chroot=$1 foreign='' musl='' slow=1
    cc=gcc cxx=g++ qemu='' server=redis-server
    packages=make,redis-server
    case $row in
    deb11) suite=bullseye ;;
    deb12) ;;
    deb13 | deb13-valkey)
        suite=trixie chroot=deb13 # the hiredis of this suite has TLS
        packages=$packages,valkey-server,libssl-dev,openssl
        [ "$row" = deb13 ] || server=valkey-server
        ;;
    i386) arch=i386 ;;
    arm64) other arm64 aarch64-linux-gnu aarch64 ;;
    armhf) other armhf arm-linux-gnueabihf arm ;;
    s390x | s390x-server) # big-endian; in the second row also the server
        chroot=s390x
        other s390x s390x-linux-gnu s390x
        [ "$row" = s390x ] || server=redis-s390x slow=5
        ;;
    musl)
        musl=/opt/musl cc=musl-gcc cxx=''
        packages=$packages,gcc,libc6-dev,musl-tools,dpkg-dev
        ;;
    windows | zig | device | lwip | board) chroot='' ;; # by tests/cross.sh
    *) return 1 ;;
    esac
    [ "$cc" != gcc ] || packages=$packages,gcc,g++,libc6-dev,libhiredis-dev
}
# other ARCH TRIPLET QEMU: sets compiler, packages and QEMU for another machine
other() {
    foreign=$1 cc=$2-gcc cxx=$2-g++ qemu=qemu-$3
    packages=$packages,qemu-user,gcc-$2,g++-$2
}

# --- inside a chroot ---------------------------------------------------------

# Install the packages that debootstrap can't install.
prepare() {
    export DEBIAN_FRONTEND=noninteractive
    if [ -n "$foreign" ]; then
        dpkg --add-architecture "$foreign" && apt-get -q update &&
            install "libhiredis-dev:$foreign" || return
        [ "$foreign" != s390x ] || foreign_server
    elif [ -n "$musl" ]; then
        musl_hiredis
    fi
}
install() { apt-get -q -y --no-install-recommends install "$@"; }
# apt would replace the native server with that of the other machine. So unpack
# the other machine's server into a folder of its own.
foreign_server() {
    mkdir -p /opt/redis && cd /opt/redis &&
        apt-get -q -o APT::Sandbox::User=root download "redis-tools:$foreign" &&
        dpkg -x redis-tools_*.deb . &&
        install $(dpkg -f redis-tools_*.deb Depends | tr , '\n' |
            sed -n "s/^ *\(lib[^ ]*\).*/\1:$foreign/p") || return
    printf '#!/bin/sh\nexec %s -0 redis-server %s "$@"\n' "$qemu" \
        /opt/redis/usr/bin/redis-check-rdb >"/usr/local/bin/redis-$foreign"
    chmod 755 "/usr/local/bin/redis-$foreign"
}
musl_hiredis() {
    echo "deb-src $mirror $suite main" >/etc/apt/sources.list.d/source.list
    mkdir -p "$musl" && cd "$musl" && apt-get -q update &&
        apt-get -q -o APT::Sandbox::User=root source hiredis &&
        mv hiredis-*/ hiredis && make -C hiredis static CC="$cc"
}

# say NAME VALUE: prints a line for the table
say() { echo "$1: $2"; }
# check SENTENCE COMMAND...: the command must succeed
check() {
    sentence=$1
    shift
    if "$@"; then
        echo "ok   $sentence" && passed=1
    else
        echo "FAIL $sentence" && failed=1
    fi
}
# Build as C and as C++11, then run the tests.
inside() {
    passed=0 failed=0 flags='' libs=-lhiredis
    headers=/usr/include/hiredis
    [ -z "$musl" ] || headers=$musl/hiredis flags=-I$musl \
        libs=$headers/libhiredis.a
    say compiler "${cc##*-} $("$cc" -dumpfullversion)"
    say hiredis "$(awk '/^#define HIREDIS_(MAJOR|MINOR|PATCH) / {
        printf "%s%s", dot, $3; dot = "." }' "$headers/hiredis.h")"
    say server "$("$server" --version | sed 's/ server v=\([^ ]*\).*/ \1/')"
    printf '#define DELAYQ_IMPLEMENTATION\n#include "delayq.h"\n' >one.cc
    [ -z "$cxx" ] || check "compiles as C++11" "$cxx" -std=c++11 -Wall \
        -Wextra -Wpedantic -Werror -I. -c one.cc -o one.o
    make -s -j2 CC="$cc" HIREDIS_CFLAGS="$flags" HIREDIS_LIBS="$libs" \
        build/test-plain || {
        echo "FAIL builds"
        echo "$passed passed, $((failed + 1)) failed, 0 skipped"
        return
    }
    skipped=0
    tests build/test-plain
    if [ -f /usr/include/openssl/ssl.h ]; then
        make -s CC="$cc" SAN= build/test-tls && tests build/test-tls ||
            failed=$((failed + 1))
    fi
    echo "$passed passed, $failed failed, $skipped skipped"
}
# tests PROGRAM...: runs a test program, shows its output, and adds the counts
# in its last line to those of the row
tests() {
    [ "$slow" -eq 1 ] || export DELAYQ_TEST_BRIEF=1
    DELAYQ_TEST_SERVER=$server DELAYQ_TEST_SLOW=$slow $qemu "$@" \
        >tests.out 2>&1
    code=$?
    last=$(tail -n 1 tests.out)
    case $last in
    *passed,*failed,*skipped)
        sed '$d' tests.out
        set -- $last
        passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
        ;;
    *)
        cat tests.out
        echo "FAIL $1 ended with $code"
        failed=$((failed + 1))
        ;;
    esac
}

# --- outside -----------------------------------------------------------------

# alone SECONDS COMMAND...: runs the command in a mount and PID namespace, which
# the kernel removes when the command has ended for any reason. An interrupt of
# this script ends the command. After a kill -9 of this script, the command runs
# until its time limit at most.
alone() {
    unshare --mount --pid --fork --kill-child timeout -s KILL "$@" &
    job=$!
    wait $job
    code=$?
    job=
    return $code
}
trap 'exit 1' INT TERM HUP
trap '[ -z "$job" ] || kill -KILL $job' EXIT

# within SECONDS MODE ROW: runs this script in the row's chroot, on a copy of
# the sources in the namespace's /tmp, which is removed with the namespace.
within() {
    limit=$1
    shift
    alone "$limit" sh -ec '
        root=$1
        shift
        mount -t proc proc "$root/proc"
        mount --bind /dev "$root/dev"
        mount -t tmpfs tmpfs "$root/tmp"
        mkdir "$root/tmp/delayq"
        cp -R Makefile delayq.h examples tests "$root/tmp/delayq"
        exec env -i PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LC_ALL=C DELAYQ_MATRIX_MIRROR="$mirror" \
            chroot "$root" sh /tmp/delayq/tests/matrix.sh "$@"
    ' sh "$root" "$@"
}
# Make the row's chroot. If it is unfinished or has other packages, it is made
# again.
make_chroot() {
    root=$cache/$chroot
    made="$suite $arch $packages $foreign $musl"
    [ "$(cat "$root/made-of" 2>/dev/null)" = "$made" ] && return
    rm -rf "$root" && mkdir -p "$cache" || return
    fetch alone 900 debootstrap --arch="$arch" --variant=minbase \
        --include="$packages" "$suite" "$root" "$mirror" || return
    rm -f "$root"/var/cache/apt/archives/*.deb
    echo '127.0.0.1 localhost' >>"$root/etc/hosts"
    within 600 --prepare "$row" || return
    echo "$made" >"$root/made-of"
}

fetch() { # three tries
    "$@" || { rm -rf "$root" && sleep 5 && "$@"; } ||
        { rm -rf "$root" && sleep 20 && "$@"; }
}
field() { sed -n "s/^$1: //p" "$log" | head -n 1; }
line() { printf '%-13s %-11s %-8s %-13s %s\n' "$@"; }
skip() {
    skipped=$((skipped + 1))
    line "$row" - - - "skipped: $1"
}
run_row() {
    log=$logs/$row.log
    if [ -z "$chroot" ]; then
        timeout 1200 sh tests/cross.sh "$row" >"$log" 2>&1
    elif make_chroot >"$log" 2>&1; then
        within 900 --inside "$row" >"$log" 2>&1
    else
        skip "a chroot, see $log, can't be had"
        return
    fi
    code=$?
    last=$(tail -n 1 "$log")
    case $last in
    *passed,*failed,*skipped) ;;
    *)
        echo "FAIL $row ended with $code, see $log"
        last="0 passed, 1 failed, 0 skipped"
        ;;
    esac
    grep -A 3 '^FAIL' "$log" | grep -v '^ok '
    line "$row" "$(field compiler)" "$(field hiredis)" "$(field server)" "$last"
    set -- $last
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}
missing() {
    [ "$(id -u)" -eq 0 ] || { echo "needs root"; return; }
    [ "$(uname -m)" = x86_64 ] || { echo "needs an x86-64 machine"; return; }
    for tool in debootstrap unshare; do
        command -v $tool >/dev/null || { echo "$tool is missing"; return; }
    done
    unshare --mount --pid --fork true 2>/dev/null ||
        echo "unshare isn't permitted here"
}

case $1 in
--prepare | --inside)
    settings "$2" && "${1#--}"
    exit
    ;;
esac
export mirror
passed=0 failed=0 skipped=0
mkdir -p "$logs" || exit 1
for row in ${@:-$rows}; do
    settings "$row" || { echo "no row $row; there are: $rows"; exit 1; }
done
lack=$(missing)
line row compiler hiredis server tests
for row in ${@:-$rows}; do
    settings "$row"
    if [ -n "$lack" ] && [ -n "$chroot" ]; then skip "$lack"; else run_row; fi
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && { [ -z "$CI" ] || [ $skipped -eq 0 ]; }
