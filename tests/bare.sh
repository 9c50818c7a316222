#!/bin/sh
# `make bare`: the first steps of a newcomer. Makes a bare Debian, copies the
# tree into it, and runs the commands below "Try it" in README.md: the line that
# installs packages and shows the demo, then the tests. Needs root and
# debootstrap.
#
#     tests/bare.sh [SUITE...]     default: bookworm trixie
#
# DELAYQ_BARE_CACHE    a folder for the downloaded packages
# DELAYQ_BARE_MIRROR   Debian's packages, by default the system's own mirror
#
# A suite's output also goes to build/bare/SUITE.log. Ends in
# "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
cache=${DELAYQ_BARE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/delayq-bare}
mirror=${DELAYQ_BARE_MIRROR:-$(cat /etc/apt/sources.list \
    /etc/apt/sources.list.d/* 2>/dev/null |
    grep -v '^#' | grep -o 'https\{0,1\}://[^ ]*/debian/\{0,1\}\( \|$\)' |
    head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}
logs=build/bare
mkdir -p "$cache" "$logs" || exit 1

# The two commands, as a newcomer in a container types them: without sudo,
# after apt-get update.
awk '/^## / { here = $0 == "## Try it" } here && /^    / { print }' README.md |
    sed 's/^ *\(sudo \)\{0,1\}//' >"$dir/commands"

# alone COMMAND...: in a mount and process namespace that ends with it
alone() {
    unshare --mount --pid --fork --kill-child "$@" &
    job=$!
    wait $job
}
job=
trap '[ -z "$job" ] || kill -KILL $job 2>/dev/null; rm -rf --one-file-system \
    "$dir"' EXIT

# tries SUITE: in a new system, which is removed afterwards
tries() {
    root=$dir/$1
    debootstrap --variant=minbase --cache-dir="$cache" "$1" "$root" "$mirror" \
        >"$logs/$1.log" 2>&1 || { tail -n 5 "$logs/$1.log"; return 1; }
    # an installed server must not start on this machine's port 6379
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    cp /etc/resolv.conf "$root/etc/" 2>/dev/null
    echo '127.0.0.1 localhost' >"$root/etc/hosts"
    mkdir "$root/root/delayq"
    tar -c --exclude=./build --exclude=./.git . | tar -x -C "$root/root/delayq"
    {
        echo 'cd /root/delayq && apt-get update'
        cat "$dir/commands"
    } >"$root/root/commands"
    # shellcheck disable=SC2016
    alone sh -ec '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs tmpfs "$1/tmp"
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            chroot "$1" sh -e /root/commands' sh "$root" >>"$logs/$1.log" 2>&1
    code=$?
    LC_ALL=C sed -n '/^== /,$p' "$logs/$1.log"
    rm -rf --one-file-system "$root"
    return $code
}

[ "$(id -u)" -eq 0 ] || { skip "it needs root"; summary; exit; }
has debootstrap unshare || { summary; exit; }
[ "$(grep -c . "$dir/commands")" -eq 2 ] ||
    { bad "there are not two commands below \"Try it\""; summary; exit; }
for suite in ${@:-bookworm trixie}; do
    echo "== a bare Debian: $suite"
    began=$(date +%s)
    if tries "$suite"; then ok; else bad "README's commands in $suite"; fi
    echo "   in $(($(date +%s) - began)) s"
done
summary
