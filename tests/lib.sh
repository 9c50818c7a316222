# Functions that the shell suites share. A suite begins with
#
#     cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
#
# and ends with the line `summary`. Its scratch folder is $dir. The functions
# use the variables sentence, wanted, lacking and tries.
# shellcheck shell=sh
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
trap 'rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
passed=0 failed=0 skipped=0

# ok [SENTENCE], bad SENTENCE, skip REASON: count a check
ok() { passed=$((passed + 1)) && [ -z "$1" ] || echo "ok   $1"; }
bad() { failed=$((failed + 1)); echo "FAIL $1"; }
skip() { skipped=$((skipped + 1)); echo "skip $1"; }

# check SENTENCE COMMAND...: the command must succeed; shows its output if it
# fails
check() {
    sentence=$1
    shift
    if "$@" >"$dir/.said" 2>&1; then ok; else bad "$sentence"; cat "$dir/.said"; fi
}

# wish SENTENCE COMMAND...: prints a warning if the command fails
wish() {
    sentence=$1
    shift
    "$@" >/dev/null 2>&1 || echo "WARN $sentence"
}

# soon SENTENCE COMMAND...: the command must succeed within a minute
soon() {
    sentence=$1 tries=1200
    shift
    until "$@" >"$dir/.said" 2>&1; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || { bad "$sentence"; cat "$dir/.said"; return 1; }
        sleep 0.05
    done
    ok
}

# has TOOL...: succeeds if all are installed. A missing tool is reported once as
# a skip.
lacking=
has() {
    for wanted; do
        command -v "$wanted" >/dev/null && continue
        case $lacking in
        *" $wanted "*) ;;
        *) skip "$wanted is not installed" ;;
        esac
        lacking="$lacking $wanted "
        return 1
    done
}

# fetch COMMAND...: tries a download up to three times. If all tries fail, the
# caller skips the suite, with a reason that ends in "can't be had"
fetch() {
    for pause in 5 20; do
        "$@" && return
        sleep $pause
    done
    "$@"
}

# Prints the suite's last line, and returns its exit status. In CI nothing may
# be skipped.
summary() {
    echo "$passed passed, $failed failed, $skipped skipped"
    [ "$failed" -eq 0 ] && { [ -z "$CI" ] || [ "$skipped" -eq 0 ]; }
}
