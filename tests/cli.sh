#!/bin/sh
# Tests of the command-line tool, on a private server: bad arguments, offers,
# takes, tables, failures. tests/cli_work.sh has the rest.
#     sh tests/cli.sh build/delayq
# Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/tool.sh || exit 1

# --- help and bad arguments ---

for command in "" offer load spool take tick ack nack extend bury cancel reschedule \
    peek dump count list dead redrive drop clear pause resume watch \
    load-scripts scripts completion; do
    # shellcheck disable=SC2086
    t $command --help >"$dir/help"
    is "help on '$command' ends with 0" 0 $?
    is "help on '$command' fits 80 columns" "" \
        "$(awk 'length > 80 { print }' "$dir/help")"
    wish "help on '$command' has more than 24 lines" \
        [ "$(wc -l <"$dir/help")" -le 24 ]
    [ -z "$command" ] && continue
    sed '/^.Sh OPTIONS/,$d' examples/tool/delayq.1 |
        grep -q "^.It Cm $command\( \|$\)"
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
is "a usage error is told on stderr" "0 usage:" \
    "$(wc -c <"$dir/out") $(cut -d' ' -f1 "$dir/err" | head -1)"
t --help >"$dir/help"
for code in 6 7 128+n; do
    grep -q "\(^\|[, ]\)$code " "$dir/help"
    is "help tells of exit code $code" 0 $?
done
is "help lists every command" "$(sed -n 's/^\.It Cm \([a-z-]*\).*/\1/p' \
    examples/tool/delayq.1 | sort -u | xargs)" \
    "$(sed -n -e 's/^  \([a-z-]*\), \([a-z]*\) .*/\1\n\2/p' \
        -e 's/^  \([a-z-]*\) NAME, \([a-z]*\) FILE .*/\1\n\2/p' \
        -e 's/^  \([a-z-]*\) .*/\1/p' "$dir/help" | sort -u | xargs)"
ends "an unknown command is usage" 2 bogus
ends "an unknown option is usage" 2 take q --bogus
ends "another command's option is usage" 2 count q --follow
ends "a missing value is usage" 2 take q --wait
ends "-n without a value is usage" 2 take q -n
is "which names the option" "delayq: -n: a value is missing" \
    "$(head -1 "$dir/err")"
ends "a long option may be cut short" 1 take q --foll --wai 0 --nul \
    --io-t 1m
ends "--replace without --key is usage" 2 offer q 1s x --replace
ends "a bad --retry-on is usage" 2 take q -x true --retry-on 75
for option in "--timeout 1s" "--retry-on 75=1s" "--bury-on 9" "--jobs 4" \
    "--count 0" "--lease 0"; do
    # shellcheck disable=SC2086
    ends "take $option alone is usage" 2 take q $option
    like "which names the option" "delayq: ${option%% *}.*" \
        "$(head -1 "$dir/err")"
done
ends "--retry-on of no exit code is usage" 2 take q -x true --retry-on 300=1s
ends "a value for a flag is usage" 2 take q --follow=1
ends "a missing argument is usage" 2 offer q
ends "too many arguments are usage" 2 peek q r
ends "a bad number is usage" 2 take q -n x
ends "a bad wire is usage" 2 take q --wire java
ends "a bad url is usage" 2 count q --url http://x
is "named as here, not as in C" 0 "$(grep -c 'options\.' "$dir/err")"
like "by its option" '.*--url.*' "$(cat "$dir/err")"
ends "TLS in a build without it is usage" 2 count q --url rediss://127.0.0.1:1 \
    --tls-ca /nonexistent
grep -q -e 'TLS needs.*libssl-dev' -e /nonexistent "$dir/err"
is "and says what that needs" 0 $?
ends "a bad name is usage" 2 count ""
ends "a bad ticket is usage" 2 cancel q 12
is "which says no more than that" "delayq: not a ticket: 12" \
    "$(head -1 "$dir/err")"
ends "key without its time is usage" 2 offer q 1s x --key k
ends "max-attempts beside Redisson is refused as usage" 2 take q --wire \
    redisson --max-attempts 3
for delay in 5 5x -5s '' s 1h30 1..5s @ @x 2026-13-01T00:00 2026-02-30T00:00 \
    2026-01-01 2026-01-01T25:00 2026-01-01T00:00+99:00 99999999999999999d \
    forever; do
    ends "no delay: '$delay'" 2 offer q -- "$delay" x
done
t offer q 0 x -q
for option in "--jobs 4" "--count 0" "--lease 0"; do
    # shellcheck disable=SC2086
    t take q $option >/dev/null 2>&1
done
is "and takes nothing" x "$(t take q)"
is "nothing was stored by all that" "0 0 0 " "$(left q)"

# --- offer and take ---

ends "take of nothing ends with 1" 1 take q
ends "offer ends with 0" 0 offer q 0 hello
like "and prints the ticket" "$ticket" "$(cat "$dir/out")"
is "take prints the payload" hello "$(t take q)"
is "and acks it" "0 0 0 " "$(left q)"
t offer q 1h late --key k --key-ttl 1h -q
ends "what is not due is not taken" 1 take q
t cancel q --key k -q
t offer q 1500ms late -q
is "take --wait waits for it" late "$(t take q --wait 20s)"
ends "take --wait gives up" 1 take q --wait 50ms
t offer q 0 -q -- --dash
is "-- ends the options" --dash "$(t take q)"
job=
ends "an empty payload is refused" 2 offer q 0 "$job"
like "which names the option for it" 'delayq: .*empty.*--empty.*' \
    "$(head -1 "$dir/err")"
# shellcheck disable=SC2086
ends "so is an empty input, if the variable was not quoted" 2 offer q 0 $job \
    </dev/null
like "with the same words" 'delayq: .*empty.*--empty.*' "$(head -1 "$dir/err")"
ends "also with a key" 2 offer q 0 "$job" --key k0 --key-ttl 1h
is "nothing was stored" "0 0 0 " "$(left q)"
t offer q 0 '' --empty -q
is "--empty stores one" "$(printf '\n|')" "$(t take q; echo '|')"
t offer q 0 --empty -q </dev/null
is "also of an empty input" "$(printf '\n|')" "$(t take q; echo '|')"
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
for pair in 500ms:1 .5s:1 5s:5 2m:120 1h30m:5400 1.5h:5400 1d:86400 2w:1209600; do
    due=$(t offer times "${pair%:*}" x || echo 0)
    due=$((${due%%-*} / 1000 - now - ${pair#*:}))
    [ $due -ge -1 ] && [ $due -le 20 ]
    is "${pair%:*} is ${pair#*:} s" 0 $?
done
for pair in @1900000000=1900000000000 @1900000000.25=1900000000250 \
    2030-03-17T17:46:40Z=1900000000000 2030-03-17T18:46:40+01:00=1900000000000 \
    2030-03-17T12:16:40-0530=1900000000000 \
    2030-03-17T19:46:40+02=1900000000000 2030-03-17T17:46=1899999960000 \
    "2030-03-17 17:46:40.5=1900000000500" 2028-02-29T00:00Z=1835395200000; do
    due=$(t offer times "${pair%=*}" x)
    is "${pair%=*} is a time" "${pair#*=}" "${due%%-*}"
done
due=$(TZ=UTC-2 "$tool" offer times "2030-03-17 19:46:40" x)
is "a time without a zone is local" 1900000000000 "${due%%-*}"
t offer q 2001-01-01T00:00Z past -q
is "a time in the past is due at once" past "$(t take q)"

first=$(t offer q 1h one --key k --key-ttl 1h 2>"$dir/err")
ends "a second offer under a key ends with 1" 1 offer q 1h two --key k \
    --key-ttl 1h
is "and prints the first one's ticket" "$first" "$(cat "$dir/out")"
t offer q 0 three --key k --key-ttl 1h --replace -q
is "--replace takes its place" "three 0 0 0 " "$(t take q) $(left q)"
ends "its key outlives it" 1 offer q 0 four --key k --key-ttl 1h
like "which is explained" '.*not stored.*even if .* delivered; --replace.*' \
    "$(cat "$dir/err")"
first=$(t offer q 1h one --key c --key-ttl 1h)
ends "cancel with --key" 0 cancel q "$first" --key c
ends "forgets the key, too" 0 offer q 1h two --key c --key-ttl 1h
ends "cancel --key without a ticket" 0 cancel q --key c
ends "frees the key" 0 offer q 1h two --key c --key-ttl 1h
t cancel q "$(t peek q -n 0 --json | tail -1 | json ticket)" -q
ends "and does so if its item is gone" 1 cancel q --key c
like "which it says" '.*the key is free.*' "$(cat "$dir/err")"
ends "it is free" 0 offer q 1h two --key c --key-ttl 1h
is "cancel --key in JSON" canceled "$(t cancel q --key c --json | json status)"
ends "cancel without a ticket or a key is usage" 2 cancel q
ends "an empty key is usage" 2 cancel q --key ''
first=$(t offer q 1h one)
t offer q 1h one --key d --key-ttl 1h -q
ends "cancel with another's key" 0 cancel q "$first" --key d
like "says so" '.*does not have this key' "$(cat "$dir/err")"
ends "and leaves it" 1 offer q 1h two --key d --key-ttl 1h
t offer 'q?' 1h one --key c --key-ttl 1h -q
ends "clear" 0 clear 'q?' --yes
ends "forgets the keys of its queue" 0 offer 'q?' 1h two --key c --key-ttl 1h
ends "and of no other" 1 offer q 1h two --key d --key-ttl 1h
t clear 'q?' --yes -q
t clear q --yes -q

# --- tickets ---

a=$(t offer q 1h a)
ends "cancel" 0 cancel q "$a"
ends "what is cancelled is gone" 1 cancel q "$a"
a=$(t offer q 0 a)
t tick q --once -q
ends "what is ready can't be cancelled" 1 cancel q "$a"
like "for it has been moved" '.*moved or taken.*' "$(cat "$dir/err")"
t take q >/dev/null
a=$(t offer q 1h a)
b=$(t reschedule q "$a" 0)
like "reschedule prints the new ticket" "$ticket" "$b"
ends "the old one is gone" 1 reschedule q "$a" 0
read -r b payload <<END
$(t take q -w 20s --lease 1m)
END
is "take --lease prints ticket and payload" a "$payload"
ends "it is not acked" 1 take q
is "but leased" "1 0 0 " "$(left q)"
c=$b
b=$(t extend q "$b" 2m)
ends "the ticket from before is gone" 1 ack q "$c"
like "for it was extended" '.* or extended .*' "$(cat "$dir/err")"
ends "ack" 0 ack q "$b"
ends "what is acked is gone" 1 ack q "$b"
t offer q 0 n -q
b=$(t take q --lease 1m | cut -d' ' -f1)
ends "nack, to be delivered at once" 0 nack q "$b" 0
is "the second attempt" 2 "$(t take q -w 20s --lease 1m --json >"$dir/out"
    json attempt <"$dir/out")"
ends "nack --release" 0 nack q "$(json ticket <"$dir/out")" --release
is "does not count" 2 "$(t take q -w 20s --lease 1m --json >"$dir/out"
    json attempt <"$dir/out")"
ends "nack with a back-off" 0 nack q "$(json ticket <"$dir/out")" \
    --attempt 3 --backoff 1h --backoff-max 9h
due=$(t peek q --json | json due_ms)
[ $((due / 1000 - now)) -ge 7200 ]
is "which is doubled for each attempt" 0 $?
b=$(t peek q --json | json ticket)
t reschedule q "$b" 0 -q
b=$(t take q -w 20s --lease 1m | cut -d' ' -f1)
ends "bury, and say why" 0 bury q "$b" "no such user: \"n\""
is "to the dead letters" "0 0 1 " "$(left q)"
t dead q --json >"$dir/out"
is "dead shows why" 'buried no such user: "n" n' \
    "$(json reason <"$dir/out") $(json why <"$dir/out") $(json payload \
        <"$dir/out")"
like "and for people" '0  .* buried: no such user: "n"  3  n' "$(t dead q)"
ends "redrive" 0 redrive q
is "makes it ready" n "$(t take q)"
seq 5 | t offer q 0 - -q
t take q -n 5 -x 'exit 9' --bury-on 9 -q
printf 'undecodable 1900000000000\nrubbish' |
    redis -x rpush 'delayq_dead:{q}' >/dev/null
b=$(t dead q --json | sed -n 3p | json ticket)
c=$(t dead q --json | sed -n 4p | json ticket)
d=$(t dead q --json | sed -n 6p | json ticket)
ends "redrive of one dead letter" 0 redrive q "$b"
is "makes that ready, and no other" "3 0 0 5 " "$(t take q) $(left q)"
ends "drop of one" 0 drop q "$c"
is "removes that, and no other" "1 2 5 rubbish" \
    "$(t dead q --json | json payload | xargs)"
ends "what was dropped is gone" 1 drop q "$c"
ends "what can't be decoded can't be redriven" 4 redrive q "$d"
ends "but dropped" 0 drop q "$d"
b=$(t dead q --json | json ticket | head -2)
# shellcheck disable=SC2086
ends "several, of which one is missing" 1 drop q $b "$c"
is "leaves the others" 5 "$(t dead q --json | json payload)"
t clear q --dead --yes -q
ends "redrive of nothing ends with 1" 1 redrive q
ends "dead of nothing ends with 1" 1 dead q

# --- scripts ---

redis script flush >/dev/null
t scripts >"$dir/scripts"
is "scripts lists all scripts" "$(grep -c '^DQ_SCRIPT(' delayq.h)" \
    "$(grep -c '^[0-9.]*  [a-z_]*  *[0-9a-f]\{40\}$' "$dir/scripts")"
is "their version is the tool's" "$(t --version)" \
    "delayq $(cut -d' ' -f1 "$dir/scripts" | sort -u)"
is "scripts --json, too" "$(awk 'END { print $3 }' "$dir/scripts")" \
    "$(t scripts --json | tail -1 | json sha1)"
ends "load-scripts" 0 load-scripts "unix://$socket"
is "all of them are loaded" 0 "$(awk '{ print $3 }' "$dir/scripts" |
    xargs redis-cli -s "$socket" script exists | grep -c "^0" || :)"
is "load-scripts --json says how many" "$(wc -l <"$dir/scripts")" \
    "$(t load-scripts --json | json loaded)"
ends "load-scripts -q of a queue" 0 load-scripts jobs -q
is "says nothing" "" "$(cat "$dir/out" "$dir/err")"
ends "load-scripts without a server" 3 load-scripts redis://127.0.0.1:1

# --- pause ---

ends "resume of a queue that isn't paused" 0 resume stopped
t offer stopped 0 x -q
ends "pause" 0 pause stopped
is "says nothing" "" "$(cat "$dir/out" "$dir/err")"
ends "take then finds nothing" 1 take stopped
t tick stopped --once -q
is "nothing is moved" "1 0 0 " "$(left stopped)"
like "count shows it" 'paused   since 2.*' "$(t count stopped | tail -1)"
like "count --json, too" '1[0-9]*' "$(t count stopped --json | json paused_ms)"
like "list, too" 'stopped .* paused' "$(t list stopped | tail -1)"
like "watch, too" '.* dead 0 paused.*' "$(t watch stopped -n 1)"
is "Prometheus, too" "delayq_paused{queue=\"stopped\"} 1" \
    "$(t count stopped --prometheus | grep '^delayq_paused')"
t clear stopped --yes -q
is "a paused queue is listed while it is empty" stopped \
    "$(t list stopped --json | json queue)"
t offer stopped 0 x -q
t take stopped --wait 20s >"$dir/taken" &
is "pause in JSON" paused "$(t pause stopped --json | json status)"
ends "resume" 0 resume stopped
wait $!
is "wakes a take" x "$(cat "$dir/taken")"
is "count shows no pause" "" "$(t count stopped --json | json paused_ms)"
is "nor does Prometheus" "delayq_paused{queue=\"stopped\"} 0" \
    "$(t count stopped --prometheus | grep '^delayq_paused')"
ends "pause without a server ends with 3" 3 pause stopped \
    --url unix:///nonexistent

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
for queue in 'a"b\c' 'tag{x}' élan; do
    ends "a queue may have any name: $queue" 0 offer "$queue" 1h x
done
is "list finds the queues" 'a"b\c q tag{x} times élan' "$(t list --json |
    json queue | xargs -d '\n')"
is "by a pattern" "q" "$(t list '?' --json | json queue)"
ends "list of none ends with 1" 1 list 'x*'
is "count without names counts them" 5 "$(t count --json | wc -l)"
is "watch shows them" 5 "$(t watch -n 1 | wc -l)"
is "list aligns names that aren't ASCII" 1 "$(t list |
    perl -CS -ne '$w{length($_)}++; END { print scalar keys %w }')"
evil=$(printf 'e\033]0;owned\007\033[31m\nvil\302\233m')
masked='e.]0;owned..[31m.vil.m'
t offer "$evil" 1h x -q
redis set 'redisson_delay_queue_timeout:{bad'"$evil"'}' x >/dev/null
redis rpush 'delayq_dead:{deadly}' "$(printf 'b\033["m 1900000000000\nx')" \
    >/dev/null
controls() { LC_ALL=C grep -a -c '[[:cntrl:]]' "$1"; }
for line in count list "watch -n 1" "completion queues" "dead deadly" \
    "dead deadly --json" "dump deadly --dead" "count --json" \
    "watch -n 1 --json"; do
    # shellcheck disable=SC2086
    t $line >"$dir/out" 2>"$dir/err"
    is "$line prints no control character of a name" "0 0" \
        "$(controls "$dir/out") $(controls "$dir/err")"
done
is "count shows a name on one line" 1 \
    "$(t count 2>/dev/null | grep -c -x -F "queue    $masked")"
is "watch, too" 1 "$(t watch -n 1 2>/dev/null | grep -c -F " $masked pending")"
ends "a queue that can't be counted" 4 count
is "is told on one line" 1 "$(grep -c -F "delayq: bad$masked: " "$dir/err")"
ends "a delay of several lines is usage" 2 offer q "$evil" x
is "and told on one" "delayq: not a delay: $masked" "$(head -1 "$dir/err")"
ends "a command of several lines is usage" 2 "$evil"
is "and told on one" "delayq: no such command: $masked" "$(head -1 "$dir/err")"
is "completion passes over such a name, and has the others" "0 1" \
    "$(t completion queues >"$dir/out"
    grep -c -e owned -e vil "$dir/out") $(grep -c -x élan "$dir/out")"
is "the reason of a dead letter is JSON, whatever it is" b...m \
    "$(t dead deadly --json | json reason)"
t clear "$evil" --yes -q
t clear deadly --dead --yes -q
redis del 'redisson_delay_queue_timeout:{bad'"$evil"'}' >/dev/null
t count q 'a"b\c' --prometheus >"$dir/out"
is "count --prometheus: a gauge per queue" "1 25" \
    "$(sed -n -e 's/^delayq_up{queue="q"} //p' \
        -e 's/^delayq_pending{queue="q"} //p' "$dir/out" | xargs)"
is "its names are escaped" 1 "$(grep -c -F \
    'delayq_pending{queue="a\"b\\c"} 1' "$dir/out")"
is "each metric is described once" "8 8" "$(grep -c '^# HELP' "$dir/out") \
$(grep '^# TYPE' "$dir/out" | sort -u | wc -l)"
is "each line is one" "" "$(grep -v -e '^# \(HELP\|TYPE\) delayq_[a-z_]* ' \
    -e '^delayq_[a-z_]*{queue="\([^"\]\|\\.\)*"} [0-9.e+]*$' "$dir/out")"
is "without counters there are none" 0 "$(grep -c _total "$dir/out")"
t offer counted 0 x --counters -q
t offer counted 0 x -q
t take counted -n 2 --counters -q >/dev/null
t count q counted --prometheus >"$dir/out"
is "what --counters has counted" "6 1 2 0" "$(grep -c 'TYPE.*counter' "$dir/out") \
$(sed -n -e 's/^delayq_offered_total{queue="counted"} //p' \
    -e 's/^delayq_taken_total{queue="counted"} //p' \
    -e 's/^delayq_died_total{queue="counted"} //p' "$dir/out" | xargs)"
is "of the others nothing" 0 "$(grep -c 'total{queue="q"}' "$dir/out")"
is "each line is one of Prometheus' format" "" "$(grep -v \
    -e '^# \(HELP\|TYPE\) delayq_[a-z_]* ' \
    -e '^delayq_[a-z_]*{queue="[a-z]*"} [0-9.e+]*$' "$dir/out")"
is "in JSON, too" "1 2" "$(t count counted --json |
    perl -MJSON::PP -ne '$m = decode_json($_); print "$m->{offered} $m->{taken}"')"
like "and for people" 'counted  offered 1  taken 2  acked .*' \
    "$(t count counted | grep counted..offered)"
is "a counted queue is listed while it is empty" counted \
    "$(t list counted --json | json queue)"
redis del 'delayq_counters:{counted}' >/dev/null
redis set wrong x >/dev/null
ends "of a queue that can't be counted" 4 count wrong q --prometheus
is "it tells that, and of the others" "0 1" \
    "$(sed -n 's/^delayq_up{.*} //p' "$dir/out" | xargs)"
redis del wrong >/dev/null
redis set 'redisson_delay_queue_timeout:{Wrong}' x >/dev/null
ends "list of queues, of which the first can't be counted" 4 list
is "has its head, and the others" "QUEUE a\"b\\c" \
    "$(awk 'NR < 3 { print $1 }' "$dir/out" | xargs -d '\n')"
like "and names it" 'delayq: Wrong: .*' "$(cat "$dir/err")"
ends "so does count" 4 count
like "without names" 'delayq: Wrong: .*' "$(cat "$dir/err")"
ends "and with two" 4 count q Wrong
like "names it" 'delayq: Wrong: .*' "$(cat "$dir/err")"
redis del 'redisson_delay_queue_timeout:{Wrong}' >/dev/null
ends "count --prometheus without a server" 3 count --prometheus \
    --url unix:///nonexistent
is "tells that it is down, also where no queue was named" "delayq_up 0" \
    "$(grep '^delayq_' "$dir/out")"
ends "count --prometheus of two queues without a server" 3 count q r \
    --prometheus --url unix:///nonexistent
is "tells it of both" 'delayq_up{queue="q"} 0 delayq_up{queue="r"} 0' \
    "$(grep '^delayq_' "$dir/out" | xargs -d '\n')"
for queue in 'a"b\c' 'tag{x}' élan times; do t clear "$queue" --yes -q; done

ends "clear asks, and where nobody is there it refuses" 2 clear q </dev/null
is "it has removed nothing" "25 0 0 " "$(left q)"
if has_terminal; then
    echo n | script -qec "$tool clear q" /dev/null >"$dir/out"
    is "clear on a terminal, no" "1 25 0 0 " "$? $(left q)"
    grep -q "Remove 25 items of the queue q?" "$dir/out"
    is "it asks how many" 0 $?
    echo y | script -qec "$tool clear q" /dev/null >"$dir/out"
    is "clear on a terminal, yes" "0 0 0 0 " "$? $(left q)"
    t offer q 1h x -q
    script -qec "$tool peek q" /dev/null </dev/null >"$dir/out"
    is "a terminal sees what the columns of peek are" "TICKET PAYLOAD x" \
        "$(tr -d '\r' <"$dir/out" |
            awk 'NR == 1 { printf "%s ", $1 } { printf "%s ", $NF }' | xargs)"
    is "a pipe only the items" 1 "$(t peek q | wc -l)"
else
    skip "no script, or no /dev/pts: nobody was asked"
fi
t clear q --yes -q
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
printf '%s\n' '{"payload":"a\u00e9\ud83d\ude00\n\/","delay":"1h"}' '' \
    '{"state":[1,{"payload":"}"}],"payload_base64":"/wAB","due_ms":1900000000000}' \
    ' { "key" : "j1", "key_ttl":"1h", "payload" : "k", "delay_ms" : 5 } ' \
    '{"payload":"dup","key":"j1","key_ttl_ms":60000,"late_ms":null}' \
    '{"payload":"rep","key":"j2","key_ttl":"1h","replace":true,"delay":"2h"}' \
    '{"payload":""}' >"$dir/ndjson"
ends "offer --ndjson, in which a key is taken" 1 offer nd 3h --ndjson \
    <"$dir/ndjson"
is "it says how many were stored" "delayq: 5 stored" "$(cat "$dir/err")"
sleep 0.01
is "what is due at once is" k "$(t take nd --wait 9s)"
t peek nd --json >"$dir/out"
is "each payload is what it says" "$(printf 'aé😀\n/') ,rep" \
    "$(sed -n 1p "$dir/out" | json payload) \
$(sed -n 2,3p "$dir/out" | json payload | sort | paste -s -d,)"
is "binary ones, too" /wAB "$(sed -n 4p "$dir/out" | json payload_base64)"
is "and due when it says" 1900000000000 "$(sed -n 4p "$dir/out" | json due_ms)"
printf '%s\n' '{"payload":"one"}' '{"payload":2}' '{"payload":"three"}' \
    >"$dir/ndjson"
ends "load stops at what it doesn't understand" 6 load nd <"$dir/ndjson"
is "says where" "delayq: line 2: this is not understood: payload" \
    "$(head -1 "$dir/err")"
is "and how far it came" "delayq: 1 stored; stopped before the end" \
    "$(tail -1 "$dir/err")"
printf '%s\n' '{"payload":"one"}' '{"payload":"two","dealy":"30d"}' \
    '{"payload":"three"}' >"$dir/ndjson"
for command in "load typo" "offer typo 0 --ndjson"; do
    # shellcheck disable=SC2086
    ends "${command%% *} stops at an unknown field" 6 $command <"$dir/ndjson"
    is "says which, and where" "delayq: line 2: unknown field: dealy" \
        "$(head -1 "$dir/err")"
    is "and stores nothing of the line" "one 0 0 0 " \
        "$(t take typo -n 9) $(left typo)"
done
printf '{"payload":"x","%s":"1h"}\n' "$(printf '%040d' 0)" >"$dir/ndjson"
ends "a field with a long name is unknown, too" 6 load typo <"$dir/ndjson"
for field in '"delay\u0000":"1h"' '"\u001b[31m":1'; do
    printf '{"payload":"x",%s}\n' "$field" | t load typo >"$dir/err" 2>&1
    is "and one with control characters: $field" 6 $?
    is "which aren't printed" 0 "$(controls "$dir/err")"
done
t offer typo 0 n -q
t take typo --lease 1m --json | tee "$dir/printed" | json ticket >"$dir/ticket"
t bury typo "$(cat "$dir/ticket")"
t offer typo 1h p -q
t offer typo 0 r -q
{
    t peek typo --json
    t dead typo --json
    t dump typo
    t dump typo --dead
    t take typo --json
} >>"$dir/printed"
ends "load knows the fields that peek, dead, dump and take print" 0 \
    load typo2 <"$dir/printed"
is "all of them" "$(wc -l <"$dir/printed")" "$(t peek typo2 -n 0 | wc -l)"
t clear typo --yes -q
t clear typo --dead --yes -q
t clear typo2 --yes -q
for bad in '[]' '{' '{"payload":"x"' '{"payload":"x"}}' '{"due_ms":1}' \
    '{"payload":"\ud800"}' '{"payload_base64":"a"}' '{"payload":"x","key":"k"}' \
    '{"payload":"x","delay":"5"}' '{"payload":"x' null '{"delay_ms":1e99}'; do
    printf '%s\n' "$bad" | t load nd >/dev/null 2>&1
    is "no message: $bad" 6 $?
done
t take nd >/dev/null
printf 'binary\0\377' | t offer nd 0 -q
t offer nd 0 again -q
t tick nd --once -q
t take nd -x 'exit 1' --backoff 1ms -q
t take nd --lease 1h --wait 9s -q >/dev/null
sleep 0.05
t tick nd --once -q
t dump nd >"$dir/dump"
t load nd2 -q <"$dir/dump"
t dump nd2 >"$dir/dump2"
payloads() {
    perl -MJSON::PP -ne 'BEGIN { binmode STDOUT, ":utf8" }
        $m = decode_json($_);
        print $m->{payload} // $m->{payload_base64}, "\n"' "$1" | sort | cksum
}
is "dump and load keep the payloads" "$(payloads "$dir/dump") 6" \
    "$(payloads "$dir/dump2") $(wc -l <"$dir/dump2")"
is "and the due times" "1900000000000 1900000000000" \
    "$(json due_ms <"$dir/dump" | grep 1900000000000) \
$(json due_ms <"$dir/dump2" | grep 1900000000000)"
ends "dump of nothing ends with 1" 1 dump nothing
t clear nd --yes -q
t clear nd2 --yes -q
id=$(t offer 'n"a\me' 1h x)
is "a name is escaped, too" 'n"a\me' "$(t count 'n"a\me' --json | json queue)"
for line in "offer q 1h x" "offer q 1h y --key j --key-ttl 1m" \
    "offer q 1h y --key j --key-ttl 1m" "peek q" "count q r" "dead q" \
    "take q" "cancel q $id" "reschedule q $id 1s" "tick q --once" "redrive q" \
    "list" "dump q" "drop q 1-2" "clear q --yes" "watch q r -n 2 -i 100ms" \
    "take q --exec true"; do
    # shellcheck disable=SC2086
    t $line --json >"$dir/out" 2>/dev/null
    is "JSON of: $line" "" "$(while read -r json; do
        printf '%s' "$json" | is_json || echo "$json"
    done <"$dir/out")"
done

# --- many lines ---

seq 20000 >"$dir/many"
ends "20,000 lines" 0 offer many 0 - <"$dir/many"
is "it says how many" "delayq: 20,000 stored" "$(cat "$dir/err")"
is "all are there" "20000 0 0 " "$(left many)"
is "and come back in their order" "$(cksum <"$dir/many")" \
    "$(t take many -n 20000 | cksum)"
is "none is left" "0 0 0 " "$(left many)"
t offer many 1h - -q <"$dir/many"
t dump many >"$dir/dump"
is "dump has 20,000" 20000 "$(wc -l <"$dir/dump")"
t load many2 -q <"$dir/dump"
is "and load" "20000 0 0 " "$(left many2)"
for line in "141 dump many" "141 peek many -n 0" "0 offer many3 1h - -t -q"; do
    # shellcheck disable=SC2086
    { t ${line#* } <"$dir/many" 2>"$dir/err"; echo $? >"$dir/code"; } |
        head -1 >/dev/null
    is "${line#* } | head ends with ${line%% *}" "${line%% *} " \
        "$(cat "$dir/code") $(cat "$dir/err")"
done
is "for all lines are stored" "20000 0 0 " "$(left many3)"
t clear many3 --yes -q
t clear many --yes -q
t clear many2 --yes -q
: >"$dir/killing"
(while [ -f "$dir/killing" ]; do
    redis client kill type normal >/dev/null 2>&1
    sleep 0.01
done) &
killer=$!
children="$children $killer"
t offer many 1h - -q <"$dir/many"
code=$?
rm "$dir/killing" # so that the loop ends after its last kill
wait $killer
is "20,000 lines while connections are killed: each stored once" \
    "0 20000 0 0 " "$code $(left many)"
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
for line in "take q" "offer q 1h x --retry 0" "list"; do
    # shellcheck disable=SC2086
    ends "$line without a server" 3 $line --url unix:///nonexistent
    grep -q -e 'attempt' -e 'trying again' "$dir/err"
    is "promises no other attempt" 1 $?
done
redis freeze
ends "nor does one that is frozen" 3 take q
redis resume
grep -q 'attempt' "$dir/err"
is "make it promise one" 1 $?
grep -q -e '--io-timeout' "$dir/err"
is "it names the option that allows more time" 0 $?
redis freeze
# gives_up ARG...: the tool must give up within a second. One of ten tries
# suffices, since the machine may be busy
gives_up() {
    for try in 1 2 3 4 5 6 7 8 9 10; do
        began=$(date +%s)
        t "$@" >/dev/null 2>&1
        [ $(($(date +%s) - began)) -le 1 ] && return
    done
    return 1
}
for line in "count q" "take q" "list" "clear q --yes"; do
    # shellcheck disable=SC2086
    ends "$line --io-timeout 200ms" 3 $line --io-timeout 200ms
    # shellcheck disable=SC2086
    gives_up $line --io-timeout 200ms
    is "gives up after that time" 0 $?
done
ends "--connect-timeout is for the open alone" 3 count q --io-timeout 1h \
    --connect-timeout 200ms
gives_up count q --io-timeout 1h --connect-timeout 200ms
is "which gives up after that time" 0 $?
apart lost take q -f --url unix:///nonexistent
behind count q --io-timeout 1m
sleep 4
redis resume
wait $child
is "--io-timeout 1m outlasts a server that is away for 4 s" "0 0" \
    "$? $(sed -n 's/^pending *//p' "$dir/behind")"
kill -TERM $apart
wait $apart
is "a lost server is told once, not at each attempt" 1 "$(wc -l <"$dir/lost")"
for option in "--io-timeout 0" "--io-timeout 2h" "--connect-timeout 0" \
    "--connect-timeout forever"; do
    # shellcheck disable=SC2086
    ends "$option is usage" 2 count q $option
    like "which names the option" "delayq: ${option%% *}.*" \
        "$(head -1 "$dir/err")"
done
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
behind offer patient 1h x --retry 60s --url "unix://$dir/later"
soon "an offer without a server tries again" \
    grep -q "trying again" "$dir/behind.err"
ln -s "$socket" "$dir/later"
wait $child
is "until it is there" "0 1 0 0 " "$? $(left patient)"
grep -q "connected to .*later after" "$dir/behind.err"
is "and says that it is" 0 $?
redis freeze
behind offer patient 1h y --retry 60s
soon "an offer to a server that is frozen, too" \
    grep -q "trying again" "$dir/behind.err"
redis resume
wait $child
is "until it goes on" "0 2 0 0 " "$? $(left patient)"
t clear patient --yes -q
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
is "an offer with all three closed ends with 0" 0 $?
is "since it was stored" x "$(t take q)"
t offer q 1h x >/dev/full 2>"$dir/err"
is "an offer whose ticket goes to a full disk ends with 0" "0 1 0 0 " "$? $(left q)"
like "which says so" 'delayq: .*stored.*its ticket is .*' \
    "$(tail -1 "$dir/err")"
ends "and what the ticket is" 0 cancel q \
    "$(sed -n 's/.*its ticket is //p' "$dir/err")"
t offer q 0 x --key full --key-ttl 1h >/dev/full 2>"$dir/err"
t offer q 0 y --key full --key-ttl 1h >/dev/full 2>"$dir/err"
is "one whose key is taken ends with 1" "1 0" \
    "$? $(grep -c 'its ticket is' "$dir/err")"
is "and stores nothing" x "$(t take q -n 9)"
seq 3 | t offer q 0 - -t >/dev/full 2>"$dir/err"
is "an offer of lines ends with 0, too" "0 0" "$? $(left q | grep -c -v '^3 ')"
grep -q 'stored.*tickets' "$dir/err"
is "and says so" 0 $?
is "they are there" "1 2 3" "$(t take q -n 9 | xargs)"
t offer --help >/dev/full 2>/dev/null
is "help to a full disk ends with 6" 6 $?

if has perl; then
    # a proxy that answers LRANGE with a long error
    cat >"$dir/wordy.pl" <<'END'
use IO::Socket::UNIX;
use IO::Select;
my ($here, $there) = @ARGV;
my $listener = IO::Socket::UNIX->new(Local => $here, Listen => 9);
$SIG{CHLD} = 'IGNORE';
while (my $client = $listener->accept) {
    next if fork;
    my $server = IO::Socket::UNIX->new(Peer => $there);
    my $both = IO::Select->new($client, $server);
    while (1) {
        for my $from ($both->can_read) {
            sysread($from, my $bytes, 65536) or exit;
            my $to = $from == $client ? $server : $client;
            if ($from == $client && $bytes =~ /LRANGE/) {
                $to = $client;
                $bytes = "-ERR" . " sentence" x 300 . "\r\n";
            }
            syswrite($to, $bytes);
        }
    }
}
END
    perl "$dir/wordy.pl" "$dir/wordy" "$socket" &
    children="$children $!"
    soon "a server with much to say" test -S "$dir/wordy"
    ends "its refusal" 4 dead q --url "unix://$dir/wordy"
    like "is cut at the end of a word" \
        'delayq: the server says: ERR\( sentence\)* \.\.\.' "$(cat "$dir/err")"
fi

summary
