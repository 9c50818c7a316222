#!/bin/sh
# Programs outside of this tree: `make install` into a temporary folder; a
# program is built against it and run, in C and in C++, by -I, pkg-config, CMake
# and Meson; the same with a copy of delayq.h; and `make uninstall`. The program
# and the lines that build it are taken from README.md. Ends in "N passed, N
# failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
if [ "$1" != on-a-server ]; then # a private one, even where DELAYQ_URL is set
    unset DELAYQ_URL
    exec sh tests/with-server.sh sh tests/install.sh on-a-server
fi
. tests/lib.sh
version=$(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)

# block HEADING LANGUAGE: the README's first block of a language below a heading
block() {
    awk -v heading="$1" -v fence="\`\`\`$2" '
        on && /^```$/ { exit }
        on { print; next }
        /^```/ { code = !code }
        !code && /^#/ { here = $0 ~ heading "$" }
        here && $0 == fence { on = 1 }' README.md
}
# new WAY LANGUAGE: a folder with only app.c or app.cc in it, a program that
# ends soon by itself
new() {
    project=$dir/$1-$2
    mkdir -p "$project"
    block Start c | sed -e 's/5000/5/' -e 's/DELAYQ_FOREVER/300/' \
        >"$project/app.$2"
}
# as LANGUAGE: translates the README's lines, which are for C
as() {
    case $1 in
    c) cat ;;
    cc) sed -e 's/^\(project(app\) C)/\1 CXX)/' -e "s/'c')/'cpp')/" \
        -e 's/app\.c/app.cc/' -e 's/\bcc -/c++ -/' -e 's/\bcc app/c++ app/' ;;
    esac
}
# runs SENTENCE PROGRAM
runs() {
    if [ "$("$2" 2>"$dir/err")" = hello ]; then ok; else
        bad "$1: what was built doesn't run"
        "$2"
    fi
}
# built WAY LANGUAGE COMMAND...: runs it in the project, then the program
built() {
    sentence="$1, $2"
    shift 2
    if (cd "$project" && "$@") >"$dir/out" 2>&1; then
        runs "$sentence" "$(find "$project" -name app -type f)"
    else
        bad "$sentence: it doesn't build"
        cat "$dir/out"
    fi
}
by_cmake() { cmake -S . -B b "$@" && cmake --build b; }
by_meson() { meson setup b && meson compile -C b; }

# --- one file, copied --------------------------------------------------------

for lang in c cc; do
    new make $lang
    cp delayq.h "$project"
    block "Copy one file" make | as $lang >"$project/Makefile"
    built "copied, make" $lang make -s
    if has cmake; then
        new cmake $lang
        cp delayq.h "$project"
        block "Copy one file" cmake | as $lang >"$project/CMakeLists.txt"
        built "copied, CMake" $lang by_cmake
    fi
    if has meson ninja pkg-config; then
        new meson $lang
        cp delayq.h "$project"
        block "Copy one file" meson | as $lang >"$project/meson.build"
        built "copied, Meson" $lang by_meson
    fi
done

# --- installed ---------------------------------------------------------------

prefix="$dir/prefix"
check "make install" make -s install PREFIX="$prefix"
export PKG_CONFIG_PATH="$prefix/share/pkgconfig"
for lang in c cc; do
    compiler=$([ $lang = c ] && echo cc || echo c++)
    new installed $lang
    built "-I" $lang "$compiler" app.$lang -I"$prefix/include" -lhiredis -o app
    if has pkg-config; then
        new installed-pc $lang
        block "Or install it" sh | grep pkg-config | as $lang >"$project/build.sh"
        built "pkg-config" $lang sh -e build.sh
    fi
    if has cmake; then
        new installed-cmake $lang
        block "Or install it" cmake | as $lang >"$project/CMakeLists.txt"
        built "find_package" $lang by_cmake "-DCMAKE_PREFIX_PATH=$prefix"
    fi
    if has meson ninja pkg-config; then
        new installed-meson $lang
        block "Or install it" meson | as $lang >"$project/meson.build"
        built "Meson's dependency()" $lang by_meson
    fi
done
if has pkg-config; then
    check "pkg-config tells the version" \
        [ "$(pkg-config --modversion delayq)" = "$version" ]
fi

# wants VERSION: does CMake find a suitable version?
wants() {
    mkdir -p "$dir/wants"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' \
        "find_package(delayq $1 REQUIRED)" >"$dir/wants/CMakeLists.txt"
    cmake -S "$dir/wants" -B "$dir/wants/b" "-DCMAKE_PREFIX_PATH=$prefix"
}
refuses() { ! wants "$1"; }
if command -v cmake >/dev/null; then
    check "CMake: its own version" wants "$version EXACT"
    check "CMake: a lower version" wants "${version%%.*}.0.1"
    check "CMake: refuses a higher one" refuses "${version%%.*}.99"
    check "CMake: refuses another major" refuses "$((${version%%.*} + 1)).0"
fi

if [ -f examples/tool/delayq.c ]; then
    check "the installed tool runs" "$prefix/bin/delayq" --version
    check "without symbols" [ -z "$(nm "$prefix/bin/delayq" 2>/dev/null)" ]
    check "its manual is there" [ -f "$prefix/share/man/man1/delayq.1" ]
    check "its completion for bash is there" [ -f \
        "$prefix/share/bash-completion/completions/delayq" ]
    check "and for zsh" [ -f "$prefix/share/zsh/site-functions/_delayq" ]
fi
check "make uninstall" make -s uninstall PREFIX="$prefix"
check "leaves nothing" [ -z "$(find "$prefix" ! -type d -o -name '*delayq*')" ]

# --- a package's: DESTDIR, with a blank in it ---------------------------------

root="$dir/a root"
files="usr/include/delayq.h usr/share/pkgconfig/delayq.pc
    usr/share/cmake/delayq/delayq-config.cmake"
umask 077
check "make install with DESTDIR" make -s install DESTDIR="$root" PREFIX=/usr
umask 022
for file in $files; do
    check "$file is there, for all to read" \
        [ -n "$(find "$root/$file" -perm 644)" ]
done
check "no file names DESTDIR" sh -c '! grep -r "a root" "$1"' - "$root"
check "make uninstall with DESTDIR" make -s uninstall DESTDIR="$root" \
    PREFIX=/usr
check "leaves nothing there" \
    [ -z "$(find "$root" ! -type d -o -name '*delayq*')" ]
check "nothing was written into the tree" [ -z "$(find . -name 'delayq.pc')" ]

# --- the quick start, as it stands --------------------------------------------

new start c
block Start c >"$project/app.c"
cp delayq.h "$project"
line=$(block Start sh | grep '^cc ')
check "the quick start has its line" [ -n "$line" ]
check "the quick start builds" sh -c 'cd "$1" && eval "$2"' - "$project" "$line"
# Line buffered, so that its output is seen before it is killed.
begun=$(date +%s%N)
stdbuf -oL "$project/app" >"$dir/said" 2>&1 &
app=$!
pushed=$(block Start sh | sed -n 's/^redis-cli \([^#]*\).*/\1/p')
says() { [ "$(cat "$dir/said")" = "$1" ]; }
soon "it prints what is due" says hello
check "and not before" [ $(($(date +%s%N) - begun)) -ge 5000000000 ]
if has redis-cli; then
    redis-cli -s "${DELAYQ_URL#unix://}" $pushed >/dev/null
    soon "and what is pushed by redis-cli" says "$(printf 'hello\nworld')"
fi
kill $app 2>/dev/null
wait $app 2>/dev/null

summary
