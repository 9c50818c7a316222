# hiredis' C source from the package `hiredis` of PyPI, for the suites that
# compile it for another system. Source this file after tests/lib.sh.
#
# DELAYQ_CROSS_CACHE     a folder for downloads
# DELAYQ_HIREDIS_SOURCE  a folder with `hiredis`; without it, it is downloaded
# shellcheck shell=sh
cache=${DELAYQ_CROSS_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/delayq-cross}
hiredis_version=3.5.0 # version of the package

say() { echo "$1: $2"; }

# give_up WHY: ends the suite with a skip
give_up() {
    skip "$1"
    summary
    exit
}
# pypi COMMAND...: runs pip, up to three times
pypi() { fetch python3 -m pip --disable-pip-version-check -q "$@"; }

# Sets $source to the parent folder of `hiredis`.
find_hiredis() {
    source=${DELAYQ_HIREDIS_SOURCE:-$cache/hiredis-$hiredis_version/vendor}
    [ -f "$source/hiredis/hiredis.c" ] || {
        mkdir -p "$cache" &&
            pypi download --no-deps --no-binary :all: \
                -d "$dir" "hiredis==$hiredis_version" &&
            tar -C "$cache" -xf "$dir/hiredis-$hiredis_version.tar.gz"
    } >"$dir/said" 2>&1 || {
        cat "$dir/said"
        give_up "hiredis' source can't be had: set DELAYQ_HIREDIS_SOURCE"
    }
    say hiredis "$(awk '/^#define HIREDIS_(MAJOR|MINOR|PATCH) / {
        printf "%s%s", dot, $3; dot = "." }' "$source/hiredis/hiredis.h")"
}
