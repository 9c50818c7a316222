#!/bin/sh
# `make libvalkey`: compiles the header with libvalkey in C99, also with TLS,
# and in C++11, and runs the tests with libvalkey instead of hiredis. Only the
# old versions of delayq in the tests use hiredis.
#
#     tests/libvalkey.sh [TEST]
#
# LIBVALKEY   a folder with libvalkey's sources; without it, a Python package
#             that contains version 0.5 is downloaded
#
# Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
. tests/lib.sh
trap 'rm -rf "$dir"' EXIT
out=build/libvalkey package=libvalkey-4.2.1
mkdir -p "$out" || exit 1
: "${CC:=cc}" "${CXX:=c++}"

: "${LIBVALKEY:=$out/$package/vendor/libvalkey}"
[ -f "$LIBVALKEY/src/valkey.c" ] || {
    fetch python3 -m pip --disable-pip-version-check -q download --no-deps \
        --no-binary :all: -d "$dir" "$(echo $package | sed 's/-/==/')" &&
        tar -C "$out" -xf "$dir/$package.tar.gz"
} >"$dir/said" 2>&1 || {
    cat "$dir/said"
    skip "libvalkey's sources can't be had: set LIBVALKEY"
    summary
    exit
}
objects=
for source in "$LIBVALKEY"/src/*.c; do
    part=$(basename "$source" .c)
    case $part in cluster | command | rdma | tls) continue ;; esac
    $CC -O1 -w -I"$LIBVALKEY/include" -I"$LIBVALKEY/include/valkey" \
        -I"$LIBVALKEY/src" -c "$source" -o "$out/$part.o" || exit 1
    objects="$objects $out/$part.o"
done

# clean SENTENCE COMPILER...: the header must compile without any output
clean() {
    sentence=$1
    shift
    "$@" -Wall -Wextra -DDELAYQ_LIBVALKEY -DDELAYQ_IMPLEMENTATION \
        -I"$LIBVALKEY/include" -c delayq.h -o "$out/header.o" \
        >"$dir/said" 2>&1 && [ ! -s "$dir/said" ]
    check "$sentence" [ $? -eq 0 ]
    cat "$dir/said"
}
clean "the header, C99" "$CC" -std=c99 -x c
clean "the header, C++11" "$CXX" -std=c++11 -x c++
[ ! -f /usr/include/openssl/ssl.h ] ||
    clean "the header, C99, TLS" "$CC" -std=c99 -x c -DDELAYQ_TLS

# The old versions need hiredis. Both libraries have functions of the same name,
# so hiredis' functions are hidden.
make -s build/old/0.1/delayq.h build/old/0.2/delayq.h || exit 1
for version in 0_1 0_2; do
    $CC -std=gnu99 -w -O1 -Ibuild -c "tests/old/peer_$version.c" \
        -o "$out/peer_$version.o" || exit 1
done
static=$($CC -print-file-name=libhiredis.a)
ld -r "$out"/peer_*.o "$static" -o "$out/old.o" &&
    objcopy -G peer_0_1 -G peer_0_2 "$out/old.o" || exit 1
# shellcheck disable=SC2086
$CC -std=gnu99 -Wall -Wextra -O1 -g -DDELAYQ_LIBVALKEY -Itests/libvalkey \
    -I"$LIBVALKEY/include" tests/*.c tests/hosted/hosted.c "$out/old.o" \
    $objects -lpthread -o "$out/test" || exit 1
"$out/test" ${1:+"$1"} >"$out/log"
LC_ALL=C grep -a -A 3 -e '^FAIL' -e '^FLAKY' "$out/log" |
    LC_ALL=C grep -a -v '^ok '
# shellcheck disable=SC2046
set -- $(tail -n 1 "$out/log")
passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
summary
