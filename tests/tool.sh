# The helpers of tests/cli.sh and tests/cli_work.sh, which source this file from
# the tree's folder. It starts the script again on a private server.
# shellcheck shell=sh
case $1 in
/*) tool=$1 ;;
*) tool=$PWD/$1 ;;
esac
[ -x "$tool" ] || { echo "$tool is missing: run make cli" >&2; exit 1; }
if [ -z "$DELAYQ_CLI_SERVER" ]; then
    unset DELAYQ_URL
    DELAYQ_CLI_SERVER=1 exec sh tests/with-server.sh sh "$0" "$tool"
fi
. tests/lib.sh
children=
# shellcheck disable=SC2086
trap 'kill -9 $children 2>/dev/null; redis resume; rm -rf "$dir"' EXIT
out=$dir/ran # the commands of --exec write to it and to $out.SOMETHING
export TZ=UTC LC_ALL=C.UTF-8 out tool
socket=${DELAYQ_URL#unix://}
server=$(redis-cli -s "$socket" info server | tr -d '\r' |
    sed -n 's/^process_id://p')

redis() {
    case $1 in
    freeze) kill -STOP "$server" ;;
    resume) kill -CONT "$server" 2>/dev/null ;;
    *) redis-cli -s "$socket" "$@" ;;
    esac
}
# t ARGUMENT...: runs the tool. After an offer, waits until an item without a
# delay is due, since due times are rounded up to whole milliseconds.
t() {
    "$tool" "$@"
    ended=$?
    case $1 in offer | load) sleep 0.01 ;; esac
    return $ended
}
has_terminal() { script -qec true /dev/null </dev/null >/dev/null 2>&1; }
# is SENTENCE WANTED GOT
is() {
    if [ "$2" = "$3" ]; then ok; else
        bad "$1"
        printf '  wanted: %s\n  got:    %s\n' "$2" "$3"
    fi
}
# like SENTENCE PATTERN GOT: GOT must match the pattern, as with grep -x
like() {
    if printf '%s\n' "$3" | grep -q -x -e "$2"; then ok; else
        bad "$1"
        printf '  wanted: %s\n  got:    %s\n' "$2" "$3"
    fi
}
# ends SENTENCE CODE ARGUMENT...: the tool must end with CODE. Its output goes
# to $dir/out and $dir/err
ends() {
    sentence=$1 wanted=$2
    shift 2
    t "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    is "$sentence" "$wanted" $got
    [ $got -eq "$wanted" ] || sed 's/^/  /' "$dir/err"
}
# behind COMMAND...: runs the command in the background, with its pid in $child.
# Unlike other background commands of a script, it does not ignore SIGINT
if env --default-signal=INT true 2>/dev/null; then
    int="env --default-signal=INT" INT=INT
else
    int='' INT=TERM
fi
# shellcheck disable=SC2086
behind() {
    : >"$dir/behind" # remove the output of the last command
    : >"$dir/behind.err"
    $int "$tool" "$@" >"$dir/behind" 2>"$dir/behind.err" &
    child=$!
    children="$children $child"
}
# apart NAME COMMAND...: runs one more command in the background, with its pid
# in $apart and its output in $dir/NAME
# shellcheck disable=SC2086
apart() {
    name=$1
    shift
    $int "$tool" "$@" >"$dir/$name" 2>&1 &
    apart=$!
    children="$children $apart"
}
# left NAME: prints the numbers of pending, ready and dead items
left() {
    t count "$1" | awk '/^(pending|ready|dead)/ { printf "%s ", $2 }'
}
ticket='[0-9]\{1,16\}-[0-9a-f]\{32\}'
# json FIELD: prints this field of each line of JSON. perl comes with
# build-essential.
json() {
    perl -MJSON::PP -ne '
        BEGIN { $field = shift; binmode STDOUT, ":utf8" }
        $value = decode_json($_)->{$field};
        print ref $value ? encode_json($value) : $value, "\n"' "$1"
}
is_json() { perl -MJSON::PP -0777 -ne 'decode_json($_)' >/dev/null 2>&1; }
