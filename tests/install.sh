#!/bin/sh
# Builds and runs programs outside of this tree, in C and in C++, in each of the
# ways that .package/README.md names, except Debian's packages (tests/deb.sh): a
# copied header; `make install`, found by -I, pkg-config, CMake and Meson;
# FetchContent, add_subdirectory, a Meson wrap, Conan, vcpkg's port. Also tests
# `make uninstall`, and the versions that must be refused. The program is
# examples/hello.c with shorter times. Its build files are those of
# .package/README.md. Ends in "N passed, N failed, N skipped".
#
# VCPKG_ROOT   the folder of vcpkg; without it vcpkg's port is not tried
cd "$(dirname "$0")/.." || exit 1
if [ "$1" != on-a-server ]; then # a private server, even if DELAYQ_URL is set
    unset DELAYQ_URL
    exec sh tests/with-server.sh sh tests/install.sh on-a-server
fi
. tests/lib.sh
version=$(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)

# block HEADING LANGUAGE: prints the first block of a language below a heading
block() {
    awk -v heading="$1" -v fence="\`\`\`$2" '
        on && /^```$/ { exit }
        on { print; next }
        /^```/ { code = !code }
        !code && /^#/ { here = $0 == "## " heading }
        here && $0 == fence { on = 1; found = 1 }
        END { if (!found) print heading ": no block of " fence }
        ' .package/README.md
}
# new WAY LANGUAGE: makes a folder with nothing but app.c or app.cc, a program
# that soon ends by itself
new() {
    project=$dir/$1-$2
    mkdir -p "$project"
    sed -e 's/5000/5/' -e 's/DELAYQ_FOREVER/300/' examples/hello.c \
        >"$project/app.$2"
}
# as LANGUAGE: adapts the README's lines, which are for C, to the language
as() {
    case $1 in
    c) cat ;;
    cc) sed -e 's/^\(project(app\) C)/\1 CXX)/' -e "s/'c')/'cpp')/" \
        -e 's/app\.c/app.cc/' -e 's/\bcc -/c++ -/' -e 's/\bcc app/c++ app/' ;;
    esac
}
# runs SENTENCE PROGRAM: the program must print hello
runs() {
    if [ "$("$2" 2>"$dir/err")" = hello ]; then ok; else
        bad "$1: what was built doesn't run"
        "$2"
    fi
}
# built WAY LANGUAGE COMMAND...: runs the command in the project, then the
# program
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

# --- the sources, within a project ---------------------------------------------

# Make a git repository from this tree, with a tag for the release.
origin=$dir/origin
mkdir "$origin"
tar -c --exclude=./build --exclude=./.git . | tar -x -C "$origin"
(
    cd "$origin" && git init -q && git add -A &&
        git -c user.name=test -c user.email=test@localhost commit -q -m test &&
        git tag "v$version"
) || bad "no git repository could be made"
here() { sed "s|https://example.com/delayq.git|$origin|"; }
for lang in c cc; do
    if has cmake; then
        new fetched $lang
        block "CMake, FetchContent" cmake | as $lang | here \
            >"$project/CMakeLists.txt"
        built "FetchContent" $lang by_cmake
        new subdirectory $lang
        block "CMake, add_subdirectory" cmake | as $lang \
            >"$project/CMakeLists.txt"
        ln -s "$origin" "$project/delayq"
        built "add_subdirectory" $lang by_cmake
    fi
    if has meson ninja pkg-config; then
        new wrap $lang
        block "Meson, a wrap" meson | as $lang >"$project/meson.build"
        mkdir -p "$project/subprojects/packagefiles/delayq"
        here <.package/delayq.wrap >"$project/subprojects/delayq.wrap"
        cp .package/meson.build "$project/subprojects/packagefiles/delayq"
        built "a Meson wrap" $lang by_meson
        check "it is the wrap's header" \
            [ -f "$project/subprojects/delayq/delayq.h" ]
        sed -i "s/\['>=\([0-9.]*\)'.*\]/'<\1'/" "$project/meson.build"
        check "a Meson wrap refuses another minor version" sh -c \
            'cd "$1" && ! meson setup other' - "$project"
    fi
done

# --- Conan: its hiredis is the system's, so that nothing is downloaded ---------

export CONAN_HOME="$dir/conan"
by_conan() {
    conan install . -nr -of b && cmake -S . -B b \
        -DCMAKE_TOOLCHAIN_FILE=conan_toolchain.cmake \
        -DCMAKE_BUILD_TYPE=Release && cmake --build b
}
if has conan cmake; then
    mkdir "$dir/hiredis"
    cat >"$dir/hiredis/conanfile.py" <<'END'
from conan import ConanFile


class Hiredis(ConanFile):
    name = "hiredis"
    version = "1.2.0"

    def package_info(self):
        self.cpp_info.system_libs = ["hiredis"]
        self.cpp_info.includedirs = []
END
    check "a profile" conan profile detect
    check "a hiredis" conan create "$dir/hiredis" -nr
    check "conan create" conan create .package/conan -nr
    check "it is this version" conan cache path "delayq/$version"
    for lang in c cc; do
        new conan $lang
        block "Conan 2" ini >"$project/conanfile.txt"
        block "Install it" cmake | as $lang >"$project/CMakeLists.txt"
        built "Conan" $lang by_conan
        sed -i 's/(delayq 0\.[0-9]*/(delayq 0.1/' "$project/CMakeLists.txt"
        check "Conan's find_package refuses another minor version" sh -c \
            'cd "$1" && ! cmake -S . -B b' - "$project"
    done
fi

# --- vcpkg, if VCPKG_ROOT is set, with the system's hiredis --------------------

if [ -n "$VCPKG_ROOT" ]; then
    mkdir -p "$dir/ports/hiredis"
    echo '{ "name": "hiredis", "version": "1.2.0" }' \
        >"$dir/ports/hiredis/vcpkg.json"
    echo 'set(VCPKG_POLICY_EMPTY_PACKAGE enabled)' \
        >"$dir/ports/hiredis/portfile.cmake"
    check "vcpkg install" env VCPKG_BINARY_SOURCES=clear \
        VCPKG_DISABLE_METRICS=1 "$VCPKG_ROOT/vcpkg" install delayq --classic \
        --overlay-ports="$origin/.package/vcpkg" \
        --overlay-ports="$dir/ports" --x-install-root="$dir/vcpkg"
    by_vcpkg() {
        by_cmake -DVCPKG_INSTALLED_DIR="$dir/vcpkg" -DVCPKG_MANIFEST_MODE=OFF \
            -DCMAKE_TOOLCHAIN_FILE="$VCPKG_ROOT/scripts/buildsystems/vcpkg.cmake"
    }
    for lang in c cc; do
        new vcpkg $lang
        block "Install it" cmake | as $lang >"$project/CMakeLists.txt"
        built "vcpkg" $lang by_vcpkg
    done
fi

# --- the tool's TLS --------------------------------------------------------------

# A compiler that records whether it was called for TLS.
cat >"$dir/cc" <<'END'
#!/bin/sh
case " $* " in *" -E "*) exit 1 ;; esac
while [ $# -gt 0 ]; do
    case $1 in
    -DDELAYQ_TLS) tls=with ;;
    -o) : >"$2" ;;
    esac
    shift
done
echo "${tls:-without}" >>"$0.log"
END
chmod +x "$dir/cc"
builds() { make -s CC="$dir/cc" B="$dir/b" "$dir/b/delayq" "$@"; }
check "the tool is built without TLS" builds TOOL_TLS=
check "and is up to date" builds TOOL_TLS=
check "libssl-dev comes" builds TOOL_TLS=yes
check "and it is up to date" builds TOOL_TLS=yes
check "it is built anew, with TLS" \
    [ "$(xargs <"$dir/cc.log")" = "without with" ]

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
        block "Install it" sh | grep pkg-config | as $lang >"$project/build.sh"
        built "pkg-config" $lang sh -e build.sh
    fi
    if has cmake; then
        new installed-cmake $lang
        block "Install it" cmake | as $lang >"$project/CMakeLists.txt"
        built "find_package" $lang by_cmake "-DCMAKE_PREFIX_PATH=$prefix"
    fi
    if has meson ninja pkg-config; then
        new installed-meson $lang
        block "Install it" meson | as $lang >"$project/meson.build"
        built "Meson's dependency()" $lang by_meson
    fi
done
if has pkg-config; then
    check "pkg-config tells the version" \
        [ "$(pkg-config --modversion delayq)" = "$version" ]
fi

# wants VERSION [PREFIX]: CMake must find a suitable version.
wants() {
    mkdir -p "$dir/wants"
    printf '%s\n' 'cmake_minimum_required(VERSION 3.13)' 'project(app C)' \
        "find_package(delayq $1 REQUIRED)" >"$dir/wants/CMakeLists.txt"
    cmake -S "$dir/wants" -B "$dir/wants/b" -U delayq_DIR \
        "-DCMAKE_PREFIX_PATH=${2:-$prefix}"
}
refuses() { ! wants "$@"; }
major=${version%%.*} minor=${version#*.}
minor=${minor%%.*}
if command -v cmake >/dev/null; then
    check "CMake: any version" wants ""
    check "CMake: its own version" wants "$version EXACT"
    check "CMake: its minor version" wants "$major.$minor"
    check "CMake: refuses a higher patch" refuses "$major.$minor.99"
    check "CMake: refuses the next minor" refuses "$major.$((minor + 1))"
    check "CMake: refuses the minor before, while the major is 0" \
        refuses "$major.$((minor - 1))"
    check "CMake: refuses the major alone, while that is 0" refuses "$major"
    check "CMake: refuses another major" refuses "$((major + 1)).0"
    check "CMake: a range" wants "$major.$((minor - 1))...$major.99"
    check "CMake: a range to below the next minor" \
        wants "$major.$minor...<$major.$((minor + 1))"
    check "CMake: refuses a range below" \
        refuses "$major.$((minor - 1))...<$major.$minor"
    check "CMake: refuses a range above" refuses "$major.90...$major.99"
    # Later versions, each on a line: VERSION REFUSED ACCEPTED...
    later=$dir/later
    mkdir -p "$later/share/cmake/delayq"
    cp .package/delayq-config.cmake "$later/share/cmake/delayq"
    while read -r installed refused accepted; do
        sed "s/@VERSION@/$installed/" .package/delayq-config-version.cmake.in \
            >"$later/share/cmake/delayq/delayq-config-version.cmake"
        check "CMake: refuses $installed where $refused is wanted" \
            refuses "$refused" "$later"
        for wanted in $accepted; do
            check "CMake: takes $installed where $wanted is wanted" \
                wants "$wanted" "$later"
        done
    done <<'END'
0.3.1 0.2 0.3 0.3.0 0.3.1
1.4.2 0.2 1 1.0 1.4 1.4.2
1.4.2 1.5 0.9...<2
1.4.2 2.0 1.4.2
END
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

# --- as packagers install it: DESTDIR, here with a blank in it -----------------

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

# --- the quick start, unchanged -----------------------------------------------

new start c
cp examples/hello.c "$project/app.c"
cp delayq.h "$project"
line=$(grep '^cc app\.c ' README.md)
check "the README has the line that builds it" [ -n "$line" ]
check "the quick start builds" sh -c 'cd "$1" && eval "$2"' - "$project" "$line"
# The program's output is line buffered, so that all of it is seen before the
# program is killed.
begun=$(date +%s%N)
stdbuf -oL "$project/app" >"$dir/said" 2>"$dir/told" &
app=$!
pushed=$(sed -n 's/^redis-cli \(rpush [^#]*\).*/\1/p' README.md)
says() { [ "$(cat "$dir/said")" = "$1" ] || ! cat "$dir/said" "$dir/told"; }
soon "it prints what is due" says hello
check "and not before" [ $(($(date +%s%N) - begun)) -ge 5000000000 ]
if has redis-cli; then
    redis-cli -s "${DELAYQ_URL#unix://}" $pushed >/dev/null
    soon "and what is pushed by redis-cli" says "$(printf 'hello\nworld')"
fi
kill $app 2>/dev/null
wait $app 2>/dev/null
check "its log says only where it is connected" sh -c \
    '[ "$(wc -l <"$1")" = 1 ] && grep -q "^connected to " "$1" ||
    ! cat "$1"' - "$dir/told"

summary
