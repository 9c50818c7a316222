#!/bin/sh
# debian-program.sh FILE SUITE PACKAGE PROGRAM: makes FILE a script that runs
# PROGRAM from the PACKAGE of another Debian, with the libraries of that Debian.
# The packages are downloaded to a folder beside FILE, and nothing else on the
# system is changed. For example
#
#     sh tests/debian-program.sh build/tools/cbmc trixie cbmc /usr/bin/cbmc
#     sh tests/debian-program.sh build/tools/redis-8 trixie redis-server \
#         /usr/bin/redis-server
set -e
[ $# -eq 4 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2; }
file=$1 suite=$2 package=$3 program=$4
mkdir -p "$(dirname "$file")"
dir=$(realpath "$(dirname "$file")")/$suite-$package
[ ! -x "$file" ] || [ ! -d "$dir/root" ] || exit 0
mirror=${DELAYQ_BARE_MIRROR:-http://deb.debian.org/debian}
mkdir -p "$dir/lists/partial" "$dir/cache/archives/partial" "$dir/root"
echo "deb $mirror $suite main" >"$dir/sources"
: >"$dir/status" # no package is installed, so apt downloads all of them
apt() {
    apt-get -qq -o Dir::Etc::sourcelist="$dir/sources" \
        -o Dir::Etc::sourceparts=- -o Dir::Etc::parts=- \
        -o Dir::State::lists="$dir/lists" -o Dir::State::status="$dir/status" \
        -o Dir::Cache="$dir/cache" -o APT::Sandbox::User=root \
        -o APT::Install-Recommends=0 -o Debug::NoLocking=1 "$@"
}
apt update
apt install -y --download-only "$package" >/dev/null
for deb in "$dir/cache/archives"/*.deb; do
    case $deb in
    */gcc* | */cpp* | */perl* | */binutils*) continue ;;
    esac
    dpkg-deb -x "$deb" "$dir/root"
done
rm -rf "$dir/lists" "$dir/cache"
loader=$(find "$dir/root" -name 'ld-linux*.so.?' | head -1)
libs=$(find "$dir/root" -name '*.so.*' -printf '%h\n' | sort -u | paste -sd:)
[ -e "$dir/root$program" ] || { echo "$package has no $program" >&2; exit 1; }
cat >"$file" <<END
#!/bin/sh
exec "$loader" --library-path "$libs" "$dir/root$program" "\$@"
END
chmod 755 "$file"
"$file" --version
