#!/bin/sh
# `make bare`: the first steps of a newcomer. Makes a bare system, copies the
# tree into it, and runs the commands below "Try it" in README.md: first the
# line that installs packages and shows the demo, then the line that runs the
# tests. Needs root and debootstrap.
#
#     tests/bare.sh [SUITE...]     default: bookworm trixie noble (Ubuntu 24.04)
#
# tests/debian.sh lists the settings. A suite's output also goes to
# build/bare/SUITE.log. The last line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh && . tests/debian.sh || exit 1

# Use the commands as a newcomer in a container types them: without sudo, and
# after apt-get update.
echo 'cd /root/delayq && apt-get update' >"$dir/commands"
awk '/^## / { here = $0 == "## Try it" } here && /^    / { print }' README.md |
    sed 's/^ *\(sudo \)\{0,1\}//' |
    while read -r command; do
        echo 'began=$(date +%s)'
        echo "$command"
        echo 'echo "== $(($(date +%s) - began)) s"'
    done >>"$dir/commands"

# tries SUITE: runs the commands in a new system, and removes the system
tries() {
    root=$dir/$1 log=$logs/$1.log
    new_system "$1" "$root" "$log" || return
    inside "$root" "$log" <"$dir/commands"
    code=$?
    if grep -q '^== ' "$log"; then
        LC_ALL=C sed -n '/^== /,$p' "$log"
    elif grep -q '^E: \(Failed to fetch\|Unable to fetch\)' "$log"; then
        skip "the packages of $1 can't be had"
        code=75
    elif [ $code -ne 0 ]; then
        tail -n 40 "$log"
    fi
    rm -rf --one-file-system "$root"
    return $code
}

needs_systems
[ "$(grep -c "^began" "$dir/commands")" -eq 2 ] ||
    { bad "there are not two commands below \"Try it\""; summary; exit; }
for suite in ${@:-bookworm trixie noble}; do
    echo "== a bare system: $suite"
    began=$(date +%s)
    tries "$suite"
    case $? in
    0) ok ;;
    75) ;; # skipped
    *) bad "README's commands in $suite" ;;
    esac
    echo "   in $(($(date +%s) - began)) s"
done
summary
