#!/bin/sh
# `make deb`: the Debian packages libdelayq-dev (the header) and delayq (the
# tool), from .package/debian. Needs build-essential, debhelper, libhiredis-dev
# and libssl-dev; checks the packages with lintian where that is installed.
#
#     .package/deb.sh [BUILD]     they come into BUILD/deb/, default build/deb/
#
# DEBFULLNAME, DEBEMAIL   the maintainer; default: delayq and git's user.email
set -e
cd "$(dirname "$0")/.."
version=$(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)
out=${1:-build}/deb
name=${DEBFULLNAME:-delayq}
email=${DEBEMAIL:-$(git config user.email 2>/dev/null || echo "$USER@$(hostname)")}
for tool in dpkg-buildpackage dh; do
    command -v $tool >/dev/null || {
        echo "make deb needs $tool: apt-get install build-essential debhelper" >&2
        exit 1
    }
done

rm -rf "$out"
tree=$out/delayq-$version
mkdir -p "$tree"
tar -c --exclude=./build --exclude=./.git . | tar -x -C "$tree"
cp -R .package/debian "$tree"
sed -i "s/@MAINTAINER@/$name <$email>/" "$tree/debian/control" \
    "$tree/debian/changelog"
(cd "$tree" && env -u MAKEFLAGS -u MFLAGS -u MAKEOVERRIDES \
    dpkg-buildpackage -us -uc -b) >"$out/log" 2>&1 || {
    tail -n 30 "$out/log" >&2
    exit 1
}
rm -rf "$tree"
if command -v lintian >/dev/null; then
    # what Debian wants of a first upload and of the builder's address
    unwanted=initial-upload-closes-no-bugs,bogus-mail-host
    unwanted=$unwanted,bogus-mail-host-in-debian-changelog
    lintian --allow-root --fail-on error,warning --suppress-tags "$unwanted" \
        "$out"/*.changes
fi
ls "$out"/*.deb
