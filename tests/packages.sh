#!/bin/bash
# Installs the missing Debian packages that the tests need. If none is missing,
# it needs no network. Downloads are tried three times. If a download fails, the
# exit code is 75.
#
#     tests/packages.sh [all]     all: also for `make nightly`
set -o pipefail
export DEBIAN_FRONTEND=noninteractive
sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
packages="build-essential libhiredis-dev redis-server valgrind clang locales mandoc
    libevent-dev liblua5.1-0-dev pkg-config python3-yaml systemd procps perl
    gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"
nightly="default-jdk-headless maven faketime debootstrap liblua5.4-dev
    libluajit-5.1-dev cmake meson ninja-build jq git python3-venv python3-pip
    gcc-mingw-w64-x86-64-posix g++-mingw-w64-x86-64-posix wine64
    gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-user qemu-system-arm
    stress-ng prometheus prometheus-node-exporter spin"
[ "$1" != all ] || packages="$packages $nightly"

# tries COMMAND...: runs the command up to three times
tries() {
    for pause in 5 20; do
        "$@" && return
        sleep $pause
    done
    "$@" || { echo "skip the packages can't be had"; exit 75; }
}
lacking() {
    for package; do
        dpkg-query -W -f '${Status}\n' "$package" 2>/dev/null |
            grep -q ' installed$' || echo "$package"
    done
}
# Succeeds if libFuzzer is installed. The name of its package contains clang's
# version.
runtime() {
    echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
        clang -fsanitize=fuzzer -x c - -o /dev/null 2>/dev/null
}
# shellcheck disable=SC2086,SC2046
set -- $(lacking $packages)
if [ $# -gt 0 ] || ! runtime; then
    # An installed server must not start, since its port may be in use.
    policy=/usr/sbin/policy-rc.d
    [ -e $policy ] || {
        printf '#!/bin/sh\nexit 101\n' | $sudo tee $policy >/dev/null
        $sudo chmod 755 $policy
        trap '$sudo rm -f $policy' EXIT
    }
    tries $sudo apt-get update -qq
    [ $# -eq 0 ] || tries $sudo apt-get install -y -qq --no-install-recommends "$@" \
        >/dev/null
    runtime || tries $sudo apt-get install -y -qq "libclang-rt-$(apt-cache depends \
        clang | sed -n 's/.*: clang-//p')-dev" >/dev/null
fi
[ "${packages%"$nightly"}" != "$packages" ] || exit 0
tries sh tests/debian-program.sh build/tools/cbmc trixie cbmc /usr/bin/cbmc
[ -x build/tools/conan ] || { # Debian 12 has no such package
    python3 -m venv build/venv && tries build/venv/bin/pip install -q conan &&
        mkdir -p build/tools && ln -sf ../venv/bin/conan build/tools/conan
}
