# Bare systems (Debian, Ubuntu), for tests/bare.sh and tests/deb.sh, which source this
# file after tests/lib.sh. Needs root and debootstrap.
#
# DELAYQ_BARE_CACHE    a folder for the downloaded packages
# DELAYQ_BARE_SYSTEMS  a folder for the systems that debootstrap has made; later
#                      runs copy them
# DELAYQ_BARE_MIRROR   a mirror of Debian's packages, by default this system's
# shellcheck shell=sh
cache=${DELAYQ_BARE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/delayq-bare}
mirror=${DELAYQ_BARE_MIRROR:-$(cat /etc/apt/sources.list \
    /etc/apt/sources.list.d/* 2>/dev/null |
    grep -v '^#' | grep -o 'https\{0,1\}://[^ ]*/debian/\{0,1\}\( \|$\)' |
    head -n 1)}
mirror=${mirror:-http://deb.debian.org/debian}
ubuntu=http://archive.ubuntu.com/ubuntu
# the package with this archive's keys, and the SHA256 of the keys
ring_package=pool/main/u/ubuntu-keyring/ubuntu-keyring_2023.11.28.1_all.deb
keys=80a36b0a6de2f69f49d2df75ef473ccde121e9e190b9ea01d20a4f63778d5c31
logs=build/bare
mkdir -p "$cache" "$logs" || exit 1

# Ends the suite with the reason if this machine can't make such systems.
needs_systems() {
    [ "$(id -u)" -eq 0 ] || { skip "it needs root"; summary; exit; }
    has debootstrap unshare || { summary; exit; }
}

# alone COMMAND...: runs the command in a mount and PID namespace, which ends
# with the command
alone() {
    unshare --mount --pid --fork --kill-child "$@" &
    job=$!
    wait $job
}
job=
trap '[ -z "$job" ] || kill -KILL $job 2>/dev/null; rm -rf --one-file-system \
    "$dir"' EXIT

# make_system SUITE ROOT: makes a minimal system with debootstrap
make_system() {
    case $1 in
    jammy | noble)
        ring=$cache/ubuntu.gpg
        echo "$keys  $ring" | sha256sum -c --quiet ||
            { fetch wget -q -O "$ring.deb" "$ubuntu/$ring_package" &&
                dpkg-deb --fsys-tarfile "$ring.deb" |
                tar -xO ./usr/share/keyrings/ubuntu-archive-keyring.gpg >"$ring" &&
                echo "$keys  $ring" | sha256sum -c --quiet; } || return
        set -- "$@" "$ubuntu" gutsy # Debian 12 has no script for noble
        fetch debootstrap --variant=minbase --cache-dir="$cache" \
            --components=main,universe --keyring="$ring" "$@"
        ;;
    *)
        fetch debootstrap --variant=minbase --cache-dir="$cache" "$@" "$mirror"
        ;;
    esac
}

# new_system SUITE ROOT LOG: makes a system that has this tree in /root/delayq
new_system() {
    made=${DELAYQ_BARE_SYSTEMS:+$DELAYQ_BARE_SYSTEMS/$1}
    if [ -d "$made" ]; then
        cp -a "$made" "$2" || return
        : >"$3"
    else
        make_system "$1" "$2" >"$3" 2>&1 || {
            tail -n 5 "$3"
            skip "the suite $1 can't be had"
            return 75
        }
        [ -z "$made" ] || {
            mkdir -p "${made%/*}" && cp -a "$2" "$made.new" &&
                mv "$made.new" "$made"
        } || return
    fi
    # An installed server must not start and use port 6379 of this machine.
    printf '#!/bin/sh\nexit 101\n' >"$2/usr/sbin/policy-rc.d"
    chmod 755 "$2/usr/sbin/policy-rc.d"
    echo 'Acquire::Retries "3";' >"$2/etc/apt/apt.conf.d/80-retries"
    cp /etc/resolv.conf "$2/etc/" 2>/dev/null
    echo '127.0.0.1 localhost' >"$2/etc/hosts"
    mkdir "$2/root/delayq"
    tar -c --exclude=./build --exclude=./.git . | tar -x -C "$2/root/delayq"
}

# inside ROOT LOG: reads commands from standard input, and runs them in the
# system. When they have ended, all processes that they started are killed.
inside() {
    cat >"$1/root/commands"
    # shellcheck disable=SC2016
    alone sh -ec '
        mount --make-rprivate /
        mount -t proc proc "$1/proc"
        mount --rbind /dev "$1/dev"
        mount -t tmpfs tmpfs "$1/tmp"
        exec env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            HOME=/root LC_ALL=C DEBIAN_FRONTEND=noninteractive \
            chroot "$1" sh -e /root/commands' sh "$1" </dev/null >>"$2" 2>&1
}
