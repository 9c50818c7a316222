#!/bin/sh
# Tests of the command-line tool: sh tests/cli.sh build/delayq. Runs on a
# private server. Ends in "N passed, N failed, N skipped".
case $1 in
/*) tool=$1 ;;
*) tool=$PWD/$1 ;;
esac
cd "$(dirname "$0")/.." || exit 1
[ -x "$tool" ] || { echo "$tool is missing: run make cli" >&2; exit 1; }
if [ -z "$DELAYQ_CLI_SERVER" ]; then
    unset DELAYQ_URL
    DELAYQ_CLI_SERVER=1 exec sh tests/with-server.sh sh "$0" "$tool"
fi
. tests/lib.sh
children=
# shellcheck disable=SC2086
trap 'kill -9 $children 2>/dev/null; redis resume; rm -rf "$dir"' EXIT
export TZ=UTC LC_ALL=C.UTF-8
socket=${DELAYQ_URL#unix://}
server=$(redis-cli -s "$socket" info server | tr -d '\r' |
    sed -n 's/^process_id://p')

# --- helpers ---

redis() {
    case $1 in
    freeze) kill -STOP "$server" ;;
    resume) kill -CONT "$server" 2>/dev/null ;;
    *) redis-cli -s "$socket" "$@" ;;
    esac
}
t() { "$tool" "$@"; }
has_terminal() { script -qec true /dev/null </dev/null >/dev/null 2>&1; }
# is SENTENCE WANTED GOT
is() {
    if [ "$2" = "$3" ]; then ok; else
        bad "$1"
        printf '  wanted: %s\n  got:    %s\n' "$2" "$3"
    fi
}
# like SENTENCE PATTERN GOT: by grep -x
like() {
    if printf '%s\n' "$3" | grep -q -x -e "$2"; then ok; else
        bad "$1"
        printf '  wanted: %s\n  got:    %s\n' "$2" "$3"
    fi
}
# ends SENTENCE CODE ARGUMENT...: the tool's output is left in out and err
ends() {
    sentence=$1 wanted=$2
    shift 2
    t "$@" >"$dir/out" 2>"$dir/err"
    got=$?
    [ $got -eq "$wanted" ] || cat "$dir/err"
    is "$sentence" "$wanted" $got
}
# behind COMMAND...: in the background, pid in $child; SIGINT is not ignored
if env --default-signal=INT true 2>/dev/null; then
    int="env --default-signal=INT" INT=INT
else
    int='' INT=TERM
fi
# shellcheck disable=SC2086
behind() {
    $int "$tool" "$@" >"$dir/behind" 2>"$dir/behind.err" &
    child=$!
    children="$children $child"
}
# left NAME: pending, ready and dead
left() {
    t count "$1" | awk '/^(pending|ready|dead)/ { printf "%s ", $2 }'
}
ticket='[0-9]\{1,16\}-[0-9a-f]\{32\}'
# json FIELD: of each line of JSON. perl comes with build-essential.
json() {
    perl -MJSON::PP -ne '
        BEGIN { $field = shift; binmode STDOUT, ":utf8" }
        $value = decode_json($_)->{$field};
        print ref $value ? encode_json($value) : $value, "\n"' "$1"
}
is_json() { perl -MJSON::PP -0777 -ne 'decode_json($_)' >/dev/null 2>&1; }

# --- help and bad arguments ---

for command in "" offer take tick ack nack extend bury cancel reschedule peek \
    count dead redrive clear watch; do
    # shellcheck disable=SC2086
    t $command --help >"$dir/help"
    is "help on '$command' ends with 0" 0 $?
    is "help on '$command' fits 80x24" "" \
        "$(awk 'length > 80 { print } END { if (NR > 24) print NR }' \
            "$dir/help")"
    [ -z "$command" ] && continue
    grep -q "^.It Cm $command " examples/tool/delayq.1
    is "the manual has $command" 0 $?
    grep -o -e ' --[a-z-]*' "$dir/help" >>"$dir/options"
done
for option in $(sort -u "$dir/options"); do
    grep -q -e "^.It Fl.* -${option#--}\( \|$\)" examples/tool/delayq.1
    is "the manual has $option" 0 $?
done
for option in $(grep '^.It Fl' examples/tool/delayq.1 |
    grep -o -e ' -[a-z][a-z-]*' | sed 's/ -/--/' | sort -u); do
    case $option in --help | --version) continue ;; esac
    grep -q -w -e "$option" "$dir/options"
    is "the manual's $option exists" 0 $?
done
is "--version is the header's" \
    "delayq $(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)" \
    "$(t --version)"
if has mandoc; then
    is "mandoc finds no fault" "" "$(mandoc -Tlint -Wwarning examples/tool/delayq.1)"
fi

ends "no command is usage" 2
ends "an unknown command is usage" 2 bogus
ends "an unknown option is usage" 2 take q --bogus
ends "another command's option is usage" 2 count q --follow
ends "a missing value is usage" 2 take q --wait
ends "a value for a flag is usage" 2 take q --follow=1
ends "a missing argument is usage" 2 offer q
ends "too many arguments are usage" 2 peek q r
ends "a bad number is usage" 2 take q -n x
ends "a bad wire is usage" 2 take q --wire java
ends "a bad url is usage" 2 count q --url http://x
ends "a bad name is usage" 2 count ""
ends "a bad ticket is usage" 2 cancel q 12
ends "key without its time is usage" 2 offer q 1s x --key k
ends "max-attempts beside Redisson is refused as usage" 2 take q --wire \
    redisson --max-attempts 3
for delay in 5 5x -5s '' s 1h30 1..5s @ @x 2026-13-01T00:00 2026-02-30T00:00 \
    2026-01-01 2026-01-01T25:00 2026-01-01T00:00+99:00 99999999999999999d \
    forever; do
    ends "no delay: '$delay'" 2 offer q -- "$delay" x
done
is "nothing was stored by all that" "0 0 0 " "$(left q)"

# --- offer and take ---

ends "take of nothing ends with 1" 1 take q
ends "offer ends with 0" 0 offer q 0 hello
like "and prints the ticket" "$ticket" "$(cat "$dir/out")"
is "take prints the payload" hello "$(t take q)"
is "and acks it" "0 0 0 " "$(left q)"
t offer q 1500ms late -q
ends "what is not due is not taken" 1 take q
is "take --wait waits for it" late "$(t take q --wait 20s)"
ends "take --wait gives up" 1 take q --wait 50ms
t offer q 0 -q -- --dash
is "-- ends the options" --dash "$(t take q)"
t offer q 0 '' -q
is "an empty payload is one" "$(printf '\n|')" "$(t take q; echo '|')"
printf 'a\0b\nc\377' >"$dir/bytes"
t offer q 0 -q <"$dir/bytes"
t take q -0 >"$dir/taken"
printf '\0' >>"$dir/bytes"
is "a payload of any bytes comes back" "$(cksum <"$dir/bytes")" \
    "$(cksum <"$dir/taken")"
printf '1\n2\0003\0' | t offer q 0 - -0 -q
is "-0 reads and writes NUL" "$(printf '1\n2\0003\0' | cksum)" \
    "$(t take q -0 -n 9 | cksum)"
printf 'one\n\ntwo' | t offer q 0 - --tickets >"$dir/out" 2>/dev/null
is "a ticket for each line, the last without a newline" 3 \
    "$(grep -c -x "$ticket" "$dir/out")"
is "take -n 2 takes two" "$(printf 'one\n\n|')" "$(t take q -n 2; echo '|')"
is "and the third is there" two "$(t take q)"

now=$(date +%s)
for pair in 500ms:1 5s:5 2m:120 1h30m:5400 1.5h:5400 1d:86400 2w:1209600; do
    due=$(t offer times "${pair%:*}" x)
    due=$((${due%%-*} / 1000 - now - ${pair#*:}))
    [ $due -ge -1 ] && [ $due -le 20 ]
    is "${pair%:*} is ${pair#*:} s" 0 $?
done
for pair in @1900000000=1900000000000 @1900000000.25=1900000000250 \
    2030-03-17T17:46:40Z=1900000000000 2030-03-17T18:46:40+01:00=1900000000000 \
    2030-03-17T12:16:40-0530=1900000000000 2030-03-17T17:46=1899999960000 \
    "2030-03-17 17:46:40.5=1900000000500" 2028-02-29T00:00Z=1835395200000; do
    due=$(t offer times "${pair%=*}" x)
    is "${pair%=*} is a time" "${pair#*=}" "${due%%-*}"
done
due=$(TZ=UTC-2 "$tool" offer times "2030-03-17 19:46:40" x)
is "a time without a zone is local" 1900000000000 "${due%%-*}"
t offer q 2001-01-01T00:00Z past -q
is "a time in the past is due at once" past "$(t take q)"

first=$(t offer q 1h one --key k --key-ttl 1h)
ends "a second offer under a key ends with 1" 1 offer q 1h two --key k \
    --key-ttl 1h
is "and prints the first one's ticket" "$first" "$(cat "$dir/out")"
t offer q 0 three --key k --key-ttl 1h --replace -q
is "--replace takes its place" "three 0 0 0 " "$(t take q) $(left q)"

# --- tickets ---

a=$(t offer q 1h a)
ends "cancel" 0 cancel q "$a"
ends "what is cancelled is gone" 1 cancel q "$a"
a=$(t offer q 1h a)
b=$(t reschedule q "$a" 0)
like "reschedule prints the new ticket" "$ticket" "$b"
ends "the old one is gone" 1 reschedule q "$a" 0
read -r b payload <<END
$(t take q --lease 1m)
END
is "take --lease prints ticket and payload" a "$payload"
ends "it is not acked" 1 take q
is "but leased" "1 0 0 " "$(left q)"
b=$(t extend q "$b" 2m)
ends "ack" 0 ack q "$b"
ends "what is acked is gone" 1 ack q "$b"
t offer q 0 n -q
b=$(t take q --lease 1m | cut -d' ' -f1)
ends "nack, to be delivered at once" 0 nack q "$b" 0
is "the second attempt" 2 "$(t take q --lease 1m --json >"$dir/out"
    json attempt <"$dir/out")"
ends "nack --release" 0 nack q "$(json ticket <"$dir/out")" --release
is "does not count" 2 "$(t take q --lease 1m --json >"$dir/out"
    json attempt <"$dir/out")"
ends "nack with a back-off" 0 nack q "$(json ticket <"$dir/out")" \
    --attempt 3 --backoff 1h --backoff-max 9h
due=$(t peek q --json | json due_ms)
[ $((due / 1000 - now)) -ge 7200 ]
is "which is doubled for each attempt" 0 $?
b=$(t peek q --json | json ticket)
t reschedule q "$b" 0 -q
b=$(t take q --lease 1m | cut -d' ' -f1)
ends "bury" 0 bury q "$b"
is "to the dead letters" "0 0 1 " "$(left q)"
t dead q --json >"$dir/out"
is "dead shows why" "buried n" \
    "$(json reason <"$dir/out") $(json payload <"$dir/out")"
like "and for people" '0  .* buried  3  n' "$(t dead q)"
ends "redrive" 0 redrive q
is "makes it ready" n "$(t take q)"
ends "redrive of nothing ends with 1" 1 redrive q
ends "dead of nothing ends with 1" 1 dead q

# --- peek, count, dead, clear ---

ends "peek of nothing ends with 1" 1 peek q
seq 25 | t offer q 1h - -q
is "peek shows ten" 10 "$(t peek q | wc -l)"
is "peek -n 0 shows all" 25 "$(t peek q -n 0 | wc -l)"
is "peek --after goes on" 11 \
    "$(t peek q -n 1 --json --after "$(t peek q --json | tail -1 |
        json ticket)" | json payload)"
like "count" 'queue    q pending  25 overdue  0 ready    0 dead     0 next .*' \
    "$(t count q | tr '\n' ' ')"
is "count of two queues" 2 "$(t count q r --json | wc -l)"
ends "clear asks, and where nobody is there it refuses" 2 clear q </dev/null
is "it has removed nothing" "25 0 0 " "$(left q)"
if has_terminal; then
    echo n | script -qec "$tool clear q" /dev/null >"$dir/out"
    is "clear on a terminal, no" "1 25 0 0 " "$? $(left q)"
    grep -q "Remove 25 items of the queue q?" "$dir/out"
    is "it asks how many" 0 $?
    echo y | script -qec "$tool clear q" /dev/null >"$dir/out"
    is "clear on a terminal, yes" "0 0 0 0 " "$? $(left q)"
else
    skip "no script, or no /dev/pts: nobody was asked"
fi
t offer q 1h x -q
is "clear --yes" "1 removed" "$(t clear q --yes)"

printf 'q"b\\s\n\t\033\177 \303\244 \342\202\254 \360\237\230\200/' >"$dir/utf8"
t offer q 0 -q <"$dir/utf8"
t take q --json >"$dir/out"
is "JSON is one line" 1 "$(wc -l <"$dir/out")"
is "and gives the text back" "$(cat "$dir/utf8")" "$(json payload <"$dir/out")"
for bytes in '\377\000\001' '\300\200' '\355\240\200' '\364\220\200\200' \
    'a\342\202'; do
    # shellcheck disable=SC2059
    printf "$bytes" >"$dir/bytes"
    t offer q 0 -q <"$dir/bytes"
    is "what is no UTF-8 comes as base64: $bytes" \
        "$(base64 <"$dir/bytes")" "$(t take q --json | json payload_base64)"
done
id=$(t offer 'n"a\me' 1h x)
is "a name is escaped, too" 'n"a\me' "$(t count 'n"a\me' --json | json queue)"
for line in "offer q 1h x" "offer q 1h y --key j --key-ttl 1m" \
    "offer q 1h y --key j --key-ttl 1m" "peek q" "count q r" "dead q" \
    "take q" "cancel q $id" "reschedule q $id 1s" "tick q --once" "redrive q" \
    "clear q --yes" "watch q r -n 2 -i 100ms" "take q --exec true"; do
    # shellcheck disable=SC2086
    t $line --json >"$dir/out" 2>/dev/null
    is "JSON of: $line" "" "$(while read -r json; do
        printf '%s' "$json" | is_json || echo "$json"
    done <"$dir/out")"
done

# --- many lines ---

seq 100000 >"$dir/many"
ends "100,000 lines" 0 offer many 0 - <"$dir/many"
is "it says how many" "delayq: 100,000 stored" "$(cat "$dir/err")"
is "all are there" "100000 0 0 " "$(left many)"
is "and come back in their order" "$(cksum <"$dir/many")" \
    "$(t take many -n 100000 | cksum)"
is "none is left" "0 0 0 " "$(left many)"
(while :; do
    redis client kill type normal >/dev/null 2>&1
    sleep 0.01
done) &
killer=$!
children="$children $killer"
t offer many 1h - -q <"$dir/many"
code=$?
kill $killer
wait $killer 2>/dev/null
is "100,000 lines while connections are killed: each stored once" \
    "0 100000 0 0 " "$code $(left many)"
t clear many --yes -q

mkfifo "$dir/fifo"
(seq 10; exec sleep 30) >"$dir/fifo" &
children="$children $!"
# shellcheck disable=SC2086
$int "$tool" offer many 1h - <"$dir/fifo" >"$dir/out" 2>"$dir/err" &
child=$!
children="$children $child"
pending() { [ "$(left "$1")" = "$2" ]; }
soon "lines that come slowly are offered as they come" pending many "10 0 0 "
kill -$INT $child
wait $child
is "Ctrl-C ends an offer" 0 $(($? - 128 - $(kill -l $INT 2>/dev/null || echo 2)))
is "which says how far it came" "delayq: 10 stored; stopped before the end" \
    "$(cat "$dir/err")"

# --- failures ---

ends "no server ends with 3" 3 count q --url redis://127.0.0.1:1
ends "and a take that waits with 3, too" 3 take q --wait 200ms -q \
    --url unix:///nonexistent
ends "and an offer of lines" 3 offer q 1s - -q --retry 200ms \
    --url unix:///nonexistent <"$dir/many"
ends "a wrong password ends with 4" 4 count q \
    --url "unix://:secret@$socket"
grep -q secret "$dir/err"
is "and is not shown" 1 $?
redis set wrong x >/dev/null
ends "a key of a wrong type ends with 4" 4 take wrong
redis config set maxmemory 1 >/dev/null
ends "a full server ends with 4" 4 offer q 1s x
redis config set maxmemory 0 >/dev/null
"$tool" offer unknown 1h - --retry 0 <"$dir/fifo" >"$dir/out" 2>"$dir/err" &
child=$!
children="$children $child"
exec 3>"$dir/fifo"
soon "an offer is connected" \
    sh -c "redis-cli -s '$socket' client list | grep -q name=delayq"
redis freeze
echo line >&3
wait $child
is "no answer ends with 5" 5 $?
exec 3>&-
redis resume
like "and says so" '.*; it is unknown whether 1 more are' \
    "$(tail -1 "$dir/err")"
t offer q 0 precious -q
t take q >&- 2>/dev/null
is "a closed stdout ends with 6" 6 $?
is "and the item is still there" precious "$(t take q)"
seq 3 | t offer q 0 - -q
t take q -n 3 >/dev/full 2>/dev/null
is "so does a full disk" 6 $?
is "and they are still there" "1 2 3" "$(t take q -n 3 | sort | xargs)"
t offer q 0 x <&- >&- 2>&-
is "all three closed" 6 $?
is "it was stored all the same" x "$(t take q)"

# --- take --exec ---

out=$dir/ran
export out
t offer q 0 'a job' -q
ends "a command that ends with 0" 0 take q --exec \
    'cat >"$out"; env | grep ^DELAYQ_ >>"$out"'
is "acks" "0 0 0 " "$(left q)"
is "its input is the payload" "a job" "$(head -c 5 "$out")"
for name in NAME=q "TICKET=$ticket" ATTEMPT=1 'DUE_MS=[0-9]\{13\}' \
    'LATE_MS=[0-9]*'; do
    grep -q -x -e "\(a job\)\{0,1\}DELAYQ_$name" "$out"
    is "its environment has $name" 0 $?
done
head -c 1000000 /dev/urandom >"$dir/large"
t offer q 0 -q <"$dir/large"
ends "a payload of a megabyte" 0 take q -x 'cksum >"$out"'
is "arrives whole" "$(cksum <"$dir/large")" "$(cat "$out")"
t offer q 0 -q <"$dir/large"
ends "or isn't read" 0 take q -x true
t offer q 0 bad -q
ends "a command that fails ends with 7" 7 take q -x 'exit 3' --backoff 10ms
ends "and comes again" 7 take q -x 'kill -9 $$' --backoff 10ms --wait 20s
ends "until its attempts are used up" 1 take q -x true --max-attempts 2 \
    --wait 300ms
is "to the dead letters" "0 0 1 " "$(left q)"
t clear q --dead --yes -q
t offer q 0 hopeless -q
ends "--bury-on" 7 take q -x 'exit 65' --bury-on 65
is "gives up" "0 0 1 " "$(left q)"
t clear q --dead --yes -q
ends "nothing to run a command for ends with 1" 1 take q -x true

t offer q 0 long -q
behind take q -x 'touch "$out.on"; sleep 2' --lease 600ms
soon "it begins" test -f "$out.on"
ends "the lease of a long command is extended" 1 take q --wait 1500ms
wait $child
is "and acked at its end" "0 0 0 0 " "$? $(left q)"

seq 4 | t offer q 0 - -q
behind take q -n 4 -j 4 -x 'read -r n; touch "$out.$n"
    until [ -f "$out.1$out.2" ] || { [ -f "$out.1" ] && [ -f "$out.2" ] &&
    [ -f "$out.3" ] && [ -f "$out.4" ]; }; do sleep 0.05; done'
wait $child
is "-j 4 runs four at once" "0 0 0 0 " "$? $(left q)"

stopper='touch "$out.on"; until [ -f "$out.go" ]; do sleep 0.05; done'
t offer q 0 stop -q
rm -f "$out".*
behind take q -f -x "$stopper"
soon "a command runs" test -f "$out.on"
kill -$INT $child
soon "Ctrl-C waits for it" grep -q stopping "$dir/behind.err"
touch "$out.go"
wait $child
is "and then ends with 0, the item acked" "0 0 0 0 " "$? $(left q)"

t offer q 0 stop -q
rm -f "$out".*
behind take q -f -x "$stopper" --json
soon "a command runs" test -f "$out.on"
kill -$INT $child
soon "one Ctrl-C" grep -q stopping "$dir/behind.err"
kill -$INT $child
wait $child
is "two of them end the command" "0 put back" \
    "$? $(json result <"$dir/behind")"
t take q --json --lease 1m --wait 20s >"$dir/out"
is "its item is back at once, and the attempt not counted" "stop 1" \
    "$(json payload <"$dir/out") $(json attempt <"$dir/out")"
t ack q "$(json ticket <"$dir/out")"

t offer q 0 orphan -q
rm -f "$out".*
behind take q -f -x "$stopper" --lease 400ms
soon "a command runs" test -f "$out.on"
kill -9 $child
wait $child 2>/dev/null
t take q --json --wait 20s >"$dir/out"
touch "$out.go"
is "kill -9 of the runner: the item comes again" "orphan 2" \
    "$(json payload <"$dir/out") $(json attempt <"$dir/out")"

behind take q -f
seq 5 | t offer q 100ms - -q
lines() { [ "$(wc -l <"$1")" -eq "$2" ]; }
soon "take --follow takes what comes" lines "$dir/behind" 5
kill -$INT $child
wait $child
is "and ends with 0" "0 0 0 0 " "$? $(left q)"
behind take q -w forever
soon "it waits" sh -c "redis-cli -s '$socket' client list | grep -q 'sub=[1-9]'"
kill -TERM $child
wait $child
is "a take that waits and is stopped ends with 143" 143 $?
seq 100 | t offer q 0 - -q
t take q -f --stats --wait 100ms >/dev/null 2>"$dir/err"
like "--stats tells the lateness" \
    'delayq: 100 taken; late p50<.*s p90<.*s p99<.*s' "$(cat "$dir/err")"

# --- tick ---

ends "tick --once with nothing due ends with 1" 1 tick q --once
seq 3 | t offer q 0 - -q
is "tick --once moves" "3 moved" "$(t tick q --once)"
is "to the ready list" 3 "$(redis llen q)"
t clear q --yes -q
behind tick q r
t offer r 200ms x -q
moved() { [ "$(redis llen "$1")" = "$2" ]; }
soon "tick goes on moving" moved r 1
kill -$INT $child
wait $child
is "until Ctrl-C" "0 1 moved" "$? $(cat "$dir/behind")"
is "take r" x "$(t take r)"

# --- --wire ---

t offer java 1h x --wire redisson -q
is "--wire redisson writes the mirror" 1 \
    "$(redis llen 'redisson_delay_queue:{java}')"
t offer old 0 x --wire redisson-old -q
ends "an older fleet is not disturbed" 4 take old
is "but served with its wire" x "$(t take old --wire redisson-old)"

# --- watch ---

seq 30 | t offer view 10m - -q
t offer view 0 x -q
like "watch prints plain lines" \
    '[0-9: -]* view pending 31 overdue 1 oldest .* ready 0 dead 0' \
    "$(t watch view -n 1)"
is "one a look and queue" 6 "$(t watch view q -n 3 -i 100ms | wc -l)"
behind watch view -i 100ms
soon "it begins" grep -q pending "$dir/behind"
redis freeze
soon "it says when the server is away" grep -q error "$dir/behind"
redis resume
: >"$dir/behind"
soon "and goes on" grep -q 'pending 31' "$dir/behind"
kill -$INT $child
wait $child
is "Ctrl-C ends it with 0" 0 $?
is "JSON has the bars, which add up" 31 "$(t watch view -n 1 --json |
    json due | perl -MJSON::PP -ne '
        $sum += $_->{count} for @{decode_json($_)}; print $sum')"
if has_terminal; then
    for size in 80x24 40x12 200x50; do
        TERM=xterm script -qec "stty cols ${size%x*} rows ${size#*x}
            '$tool' watch view q -n 2 -i 100ms" /dev/null </dev/null \
            >"$dir/screen"
        is "watch at $size" 0 $?
        LC_ALL=C sed -e 's/\r//g' -e 's/\x1b\[H/\n/g' \
            -e 's/\x1b[^a-zA-Z]*[a-zA-Z]//g' -e 's/\xe2\x96./#/g' \
            <"$dir/screen" >"$dir/plain"
        grep -q '^view  ' "$dir/plain"
        is "at $size it shows the queue" 0 $?
        is "at $size no line is longer" "" \
            "$(awk -v w="${size%x*}" 'length > w' "$dir/plain")"
        tail -c 40 "$dir/screen" | grep -q '\[?25h.*\[?1049l'
        is "at $size the terminal is given back" 0 $?
    done
else
    skip "no script, or no /dev/pts: the live view"
fi
t clear view --yes -q

summary
