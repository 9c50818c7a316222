#!/bin/sh
# `make deb-test`: builds the packages with `make deb` in a Debian that has the
# needed tools, and installs them in a bare Debian. There it builds and runs the
# quick start with the installed header, and tries the tool. Needs root and
# debootstrap.
#
#     tests/deb.sh [SUITE...]     default: bookworm trixie
#
# tests/debian.sh lists the settings. A suite's output also goes to
# build/bare/deb-SUITE.log. Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh && . tests/debian.sh || exit 1

builds() {
    inside "$1" "$2" <<'END'
apt-get update
apt-get install -y --no-install-recommends build-essential debhelper \
    libhiredis-dev libssl-dev lintian
cd /root/delayq
DEBEMAIL=tests@delayq.example make deb
END
}
installs() {
    inside "$1" "$2" <<'END'
set -x
apt-get update
apt-get install -y --no-install-recommends /root/debs/*.deb
[ -f /usr/share/man/man1/delayq.1.gz ] ||
    grep -q /usr/share/man /etc/dpkg/dpkg.cfg.d/*
apt-get install -y --no-install-recommends gcc libc6-dev pkg-config cmake make \
    redis-server
redis-server --port 0 --unixsocket /tmp/s --save '' --daemonize yes
export DELAYQ_URL=unix:///tmp/s
cd /tmp
sed -e s/5000/5/ -e s/DELAYQ_FOREVER/300/ \
    /usr/share/doc/libdelayq-dev/examples/hello.c >app.c
cc app.c -lhiredis -o app
[ "$(./app)" = hello ]
cc app.c $(pkg-config --cflags --libs delayq) -o app2
[ "$(./app2)" = hello ]
cat >CMakeLists.txt <<END_OF_CMAKE
cmake_minimum_required(VERSION 3.13)
project(app C)
find_package(delayq 0.3 REQUIRED)
add_executable(app app.c)
target_link_libraries(app delayq::delayq)
END_OF_CMAKE
cmake -S . -B b && cmake --build b
[ "$(b/app)" = hello ]
delayq --version
delayq offer jobs 0 "from the tool"
[ "$(delayq take --wait 5s jobs)" = "from the tool" ]
apt-get purge -y delayq libdelayq-dev
[ -z "$(find /usr /etc /var/lib/dpkg/info -name '*delayq*')" ]
END
}

# tries SUITE: builds, installs and tries the packages of a suite
tries() {
    bare=$dir/$1 builder=$dir/$1-builder log=$logs/deb-$1.log
    new_system "$1" "$bare" "$log" && cp -a "$bare" "$builder" || return
    if builds "$builder" "$log"; then
        ok "$1: make deb, lintian has nothing to say"
        mkdir "$bare/root/debs"
        cp "$builder"/root/delayq/build/deb/*.deb "$bare/root/debs"
        rm "$bare"/root/debs/*dbgsym*.deb
        rm -r "$bare/root/delayq"
        if installs "$bare" "$log"; then
            ok "$1: installed in a bare system, used, and purged"
        else
            bad "$1: the packages, installed in a bare system"
            tail -n 20 "$log"
        fi
    else
        bad "$1: make deb"
        tail -n 20 "$log"
    fi
    rm -rf --one-file-system "$bare" "$builder"
}

needs_systems
for suite in ${@:-bookworm trixie}; do
    tries "$suite"
done
summary
