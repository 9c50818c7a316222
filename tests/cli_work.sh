#!/bin/sh
# Tests of the command-line tool, on a private server: commands that take runs,
# rights, watch, completion, a spool, what stays. tests/cli.sh has the rest.
#     sh tests/cli_work.sh build/delayq
# Ends in "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/tool.sh || exit 1

# --- take --exec ---

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
like "as the take that meets it says" 'delayq: q: 1 to the dead letters.*' \
    "$(cat "$dir/err")"
is "to the dead letters" "0 0 1 " "$(left q)"
t clear q --dead --yes -q
t offer q @1700000000 stale -q
t offer q 0 fresh -q
is "take --max-late takes what is in time" fresh \
    "$(t take q --max-late 1h 2>"$dir/err")"
like "and says what isn't" 'delayq: q: 1 to the dead letters.*' \
    "$(cat "$dir/err")"
is "which is a dead letter" "late stale" \
    "$(t dead q --json | json reason) $(t dead q --json | json payload)"
ends "it can be redriven" 0 redrive q --max-late 1h
is "and is due now" "1 0 0 " "$(left q)"
is "and not late" stale "$(t take q --max-late 1h)"
ends "but not by its ticket" 2 redrive q 1-00 --max-late 1h
ends "--max-late beside Redisson is usage" 2 take q --wire redisson \
    --max-late 1s
t offer q 0 hopeless -q
ends "--bury-on" 7 take q -x 'exit 65' --bury-on 65
is "gives up" "0 0 1 " "$(left q)"
is "with the exit code as the cause" "exit 65" "$(t dead q --json | json why)"
like "which dead shows" '0  .* buried: exit 65  1  hopeless' "$(t dead q)"
t clear q --dead --yes -q
ends "nothing to run a command for ends with 1" 1 take q -x true
seq 3 | t offer q 0 - -q
ends "a command that isn't there" 6 take q -f -x /no/such/command \
    --backoff 1h --json
is "ends the worker, one item nacked" "nacked 3 0 0 " \
    "$(json result <"$dir/out") $(left q)"
grep -q 'not find a command.*--retry-on 127' "$dir/err"
is "which says why" 0 $?
: >"$dir/not-executable"
ends "or can't be executed" 6 take q -n 1 -x "$dir/not-executable" --backoff 1h
ends "unless that code has a meaning" 7 take q -x 'exit 127' --retry-on 127=1h
t clear q --yes -q

stopper='touch "$out.on"; until [ -f "$out.go" ]; do sleep 0.05; done'
t offer q 0 long -q
behind take q -x "$stopper" --lease 3s
soon "it begins" test -f "$out.on"
lease_end() { t list q --json | json next_due_ms; }
first=$(lease_end)
extended() { [ "$(lease_end)" -gt "$first" ]; }
soon "the lease of a long command is extended" extended
ends "so no other take gets the item" 1 take q
touch "$out.go"
wait $child
is "and acked at its end" "0 0 0 0 " "$? $(left q)"

seq 4 | t offer q 0 - -q
behind take q -n 4 -j 4 -x 'read -r n; touch "$out.$n"
    until [ -f "$out.1$out.2" ] || { [ -f "$out.1" ] && [ -f "$out.2" ] &&
    [ -f "$out.3" ] && [ -f "$out.4" ]; }; do sleep 0.05; done'
wait $child
is "-j 4 runs four at once" "0 0 0 0 " "$? $(left q)"

# --- several queues, and what a command may report ---

t offer two 0 second -q
t offer one 0 first -q
is "take of two queues: the first goes first" "first second" \
    "$(t take one two -n 2 | xargs)"
t offer one 0 x -q
is "and says which" "one" "$(t take two one --json | json queue)"
t offer two 300ms late -q
is "it waits for both" late "$(t take one two --wait 20s)"
ends "and gives up" 1 take one two --wait 50ms
t offer two 0 x -q
read -r name b payload <<END
$(t take one two --lease 1m)
END
is "with --lease the name is printed, too" "two x" "$name $payload"
ends "for the ack" 0 ack two "$b"
seq 3 | t offer one 0 - -q
seq 3 | t offer two 0 - -q
ends "--exec of two queues" 0 take one two -n 6 -j 3 -x true
is "acks in both" "0 0 0 0 0 0 " "$(left one)$(left two)"

t offer q 0 x -q
ends "--retry-on: an exit code" 7 take q -x 'exit 75' --retry-on 69=1s \
    --retry-on 75=2h --json
is "puts off for so long" 7200000 "$(json retry_ms <"$dir/out")"
due=$(($(t peek q --json | json due_ms) / 1000 - $(date +%s)))
[ $due -gt 7100 ] && [ $due -le 7201 ]
is "as its due time shows" 0 $?
t clear q --yes -q
t offer q 0 x -q
ends "descriptor 3: retry" 7 take q --json -x 'echo retry 1h >&3
    echo retry 3h >&3'
is "the last line counts, whatever the exit code" "nacked 10800000" \
    "$(json result <"$dir/out") $(json retry_ms <"$dir/out")"
t clear q --yes -q
t offer q 0 x -q
ends "at a time" 7 take q -x 'echo retry @1900000000 >&3'
[ $(($(t peek q --json | json due_ms) / 100000)) -eq 19000000 ]
is "that it says" 0 $?
t clear q --yes -q
t offer q 0 x -q
t take q --json -x 'echo release >&3; exit 1' >"$dir/out"
is "descriptor 3: release" released "$(json result <"$dir/out")"
t take q --wait 9s --json -x 'echo bury >&3' >"$dir/out"
is "descriptor 3: bury, and the attempt was not counted" "buried 1" \
    "$(json result <"$dir/out") $(json attempt <"$dir/out")"
t offer q 0 x -q
ends "and say why" 7 take q -x 'echo bury in a hurry >&3'
is "in a text" "in a hurry" "$(t dead q --json --from 1 | json why)"
t clear q --dead --yes -q
t offer q 0 x -q
ends "of many words" 7 take q -x 'printf "bury %0300d\n" 0 >&3'
is "whose first 200 bytes are kept" 200 \
    "$(t dead q --json | json why | tr -d '\n' | wc -c)"
t clear q --dead --yes -q
t offer q 0 x -q
ends "what isn't understood" 0 take q -x 'echo hello >&3'
like "is told, and the exit code counts" '.*descriptor 3.*hello' \
    "$(cat "$dir/err")"
seq 2 | t offer q 0 - -q
t take q -n 2 --json -x 'echo noise' >"$dir/out" 2>"$dir/err"
is "with --json what commands print is kept apart" "2 2" \
    "$(json result <"$dir/out" | grep -c acked) $(grep -c noise "$dir/err")"

# --- what ends a command ---

gone() { ! kill -0 "$(cat "$1")" 2>/dev/null; }
deep='timeout 60 sh -c '\''echo $$ >"$out.pid"; exec sleep 60'\''; true'
rm -f "$out".*
t offer q 0 slow -q
ends "--timeout" 7 take q --timeout 300ms --backoff 1h --json -x "$deep"
is "nacks" "true nacked" "$(json timed_out <"$dir/out") $(json result <"$dir/out")"
soon "and nothing of the command is left" gone "$out.pid"
t clear q --yes -q
t offer q 0 deaf -q
ends "--kill-after" 7 take q --timeout 200ms --kill-after 200ms --backoff 1h \
    -x 'trap "" TERM; (while :; do sleep 0.1; done); sleep 60'
like "kills what does not hear" '.*--timeout.*signal 9.*' "$(cat "$dir/err")"
t clear q --yes -q
# begins SENTENCE COMMAND: starts a worker whose command writes its pid
begins() {
    t offer q 0 stop -q
    rm -f "$out".*
    behind take q -f --json -x "$2"
    soon "$1" test -s "$out.pid"
}
twice() { # two Ctrl-C
    kill -$INT $child
    soon "one Ctrl-C" grep -q stopping "$dir/behind.err"
    kill -$INT $child
}
begins "a command that has a process group of its own" "$deep"
twice
wait $child
code=$?
gone "$out.pid"
is "two of them end it before its item is put back" "0 0 released" \
    "$? $code $(json result <"$dir/behind")"
t clear q --yes -q
begins "a command runs" 'echo $$ >"$out.pid"; sleep 60'
kill -TERM "$(cat "$out.pid")" # systemd, too, signals each process
kill -TERM $child
wait $child
is "what the stop signal itself has ended is put back" released \
    "$(json result <"$dir/behind")"
is "and the attempt not counted" 1 \
    "$(t take q --json --wait 9s --lease 9s | json attempt)"
t clear q --yes -q
t offer q 0 killed -q
ends "what another signal ends is nacked" 7 take q -x 'kill $$' --backoff 1h
t clear q --yes -q
begins "a command that has stopped itself" \
    'echo $$ >"$out.pid"; kill -STOP $$; sleep 60'
twice
soon "ends, too" gone "$out.pid"
kill -9 "$(cat "$out.pid")" 2>/dev/null
wait $child
t clear q --yes -q
t offer q 0 deaf -q
rm -f "$out".*
behind take q -f --json --kill-after 300ms -x 'trap "" TERM
    echo $$ >"$out.pid"; while :; do sleep 0.1; done'
soon "a command that ignores SIGTERM" test -s "$out.pid"
kill -TERM $child
soon "one SIGTERM waits for it" grep -q stopping "$dir/behind.err"
kill -TERM $child
soon "the second kills it after --kill-after" gone "$out.pid"
kill -9 "$(cat "$out.pid")" 2>/dev/null
wait $child
is "and its item is put back" "0 9 released 1 0 0 " "$? $(
    json signal <"$dir/behind") $(json result <"$dir/behind") $(left q)"
is "with the attempt not counted" 1 \
    "$(t take q --json --wait 9s --lease 9s | json attempt)"
t clear q --yes -q
t offer q 0 deaf -q
rm -f "$out".*
behind take q -f --kill-after 1h -x 'trap "" TERM
    echo $$ >"$out.pid"; while :; do sleep 0.1; done'
soon "again" test -s "$out.pid"
for line in stopping ending; do
    kill -TERM $child
    soon "a signal is heard" grep -q $line "$dir/behind.err"
done
gone "$out.pid"
is "before --kill-after it lives" 1 $?
kill -TERM $child
soon "the third SIGTERM kills at once" gone "$out.pid"
kill -9 "$(cat "$out.pid")" 2>/dev/null
wait $child
t clear q --yes -q
if has_terminal; then
    t offer q 0 ask -q
    timeout 20 script -qec "$tool take q --backoff 1h -x 'read -r x </dev/tty'" \
        /dev/null >/dev/null </dev/null
    is "a command that asks the terminal fails, and does not hang" 7 $?
    t clear q --yes -q
fi
behind take q -f --url "unix://$dir/later2"
soon "a worker waits for its server" grep -q "trying again" "$dir/behind.err"
ln -s "$socket" "$dir/later2"
soon "and says when it is there" \
    grep -q "connected to .*later2 after" "$dir/behind.err"
kill -TERM $child
wait $child

# --- what ends a worker ---

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
is "two of them end the command" "0 released" \
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

clients() { redis client list | grep -c name=delayq; }
# shellcheck disable=SC2046
behind tick $(seq -f many%g 100)
t offer many77 500ms x -q
soon "tick of 100 queues moves" moved many77 1
[ "$(clients)" -le 3 ]
is "on two connections" 0 $?
kill -$INT $child
wait $child
t clear many77 --yes -q

# --- rights ---

# role NAME FILE...: gives the user NAME the rights that the files list for the
# queue jobs
role() {
    user=$1
    shift
    # shellcheck disable=SC2046
    redis acl setuser "$user" reset $(cat "$@" 2>/dev/null |
        grep -e "^ACL SETUSER $user " -e "^user $user " | head -1 |
        sed -e 's/^ACL SETUSER [a-z]* //' -e 's/^user [a-z]* //' \
            -e 's/>[^ ]*/>secret/' -e 's/#[0-9a-f]*/>secret/') >/dev/null
}
# as USER ARGUMENT...: the tool, run as this user, must succeed
as() {
    user=$1
    shift
    ends "a $user may $*" 0 "$@" --url "unix://$user:secret@$socket"
}
if redis acl whoami 2>/dev/null | grep -q default; then
    seq 9 | t offer jobs 0 - -q
    t tick jobs --once -q
    t take jobs -n 6 -x 'exit 9' --bury-on 9 -q
    seq 9 | t offer jobs 1h - -q
    role watcher README.md examples/server/*
    for line in "count jobs" "watch jobs -n 1" "peek jobs" "dead jobs" \
        "dump jobs" "count jobs --prometheus"; do
        # shellcheck disable=SC2086
        as watcher $line
    done
    role operator examples/tool/README.md
    for line in "list jobs" "count jobs" "dead jobs" "dump jobs --dead" \
        "redrive jobs $(t dead jobs -n 1 --json | json ticket)" \
        "drop jobs $(t dead jobs --from 1 -n 1 --json | json ticket)" \
        "redrive jobs -n 2" "clear jobs --dead --yes" \
        "cancel jobs $(t offer jobs 1h x --key a --key-ttl 1h) --key a" \
        "pause jobs" "resume jobs" "clear jobs --yes"; do
        # shellcheck disable=SC2086
        as operator $line
    done
    redis acl setuser operator -unlink -lrem -rpush >/dev/null
    redis rpush 'delayq_dead:{jobs}' 'buried 1900000000000
x' >/dev/null
    b=$(t dead jobs --json | json ticket)
    for line in "clear jobs --yes" "clear jobs --dead --yes" "redrive jobs" \
        "redrive jobs $b" "drop jobs $b" "clear jobs --yes --json"; do
        # shellcheck disable=SC2086
        ends "$line without the rights" 4 $line \
            --url "unix://operator:secret@$socket"
        is "tells nothing but the reason" "" "$(cat "$dir/out")"
    done
    t clear jobs --dead --yes -q
    redis acl deluser watcher operator >/dev/null
    t clear jobs --yes -q
else
    skip "the server has no ACLs: nobody's rights"
fi

# --- --wire ---

t offer java 1h x --wire redisson -q
is "--wire redisson writes the mirror" 1 \
    "$(redis llen 'redisson_delay_queue:{java}')"

# --- clear --mirror ---

mirror='redisson_delay_queue:{java}'
zset='redisson_delay_queue_timeout:{java}'
t clear java --wire redisson --yes -q
seq 2500 | t offer java 1h - --wire redisson -q
redis zremrangebyrank "$zset" 0 9 >/dev/null
redis zremrangebyrank "$zset" 1500 1599 >/dev/null
redis zremrangebyrank "$zset" -5 -1 >/dev/null
ends "a native handle refuses a queue with a mirror" 4 offer java 0 x
grep -q 'delayq clear --mirror --all' "$dir/err"
is "and says how to remove it" 0 $?
ends "clear --mirror asks, too" 2 clear java --mirror </dev/null
ends "--all alone is refused" 2 clear java --all --yes
ends "so is --mirror with --dead" 2 clear java --mirror --dead --yes
is "nothing was removed" "2500 2385" \
    "$(redis llen "$mirror") $(redis zcard "$zset")"
before=$(redis lrange "$mirror" 10 10 | cksum)
is "clear --mirror removes what is not pending" "115 removed" \
    "$(t clear java --mirror --yes)"
is "and nothing else, in the same order" "2385 2385 $before" \
    "$(redis llen "$mirror") $(redis zcard "$zset") $(redis lrange "$mirror" \
        0 0 | cksum)"
is "again: nothing" '{"removed":0}' "$(t clear java --mirror --yes --json)"
ends "it is still a queue of Redisson's" 4 offer java 0 x
is "clear --mirror --all" "2385 removed" "$(t clear java --mirror --all --yes)"
is "leaves what is pending" "0 2385" \
    "$(redis llen "$mirror") $(redis zcard "$zset")"
ends "and native handles work" 0 offer java 0 x -q
redis set "$mirror" x >/dev/null
ends "a key of another type is refused" 4 clear java --mirror --yes
redis del "$mirror" >/dev/null
t clear java --yes -q

t offer old 0 x --wire redisson-old -q
ends "an older fleet is not disturbed" 4 take old
is "but served with its wire" x "$(t take old --wire redisson-old)"

# --- watch ---

seq 30 | t offer view 10m - -q
t offer view 0 x -q
# `watch` looks for new queues every ten seconds; meanwhile other checks run
apart all watch -i 200ms
soon "watch of all queues begins" grep -q ' view pending' "$dir/all"
t offer newcomer 1h x -q
like "watch prints plain lines" \
    '[0-9: -]* view pending 31 overdue 1 oldest .* ready 0 dead 0' \
    "$(t watch view -n 1)"
is "one a look and queue" 6 "$(t watch view q -n 3 -i 100ms | wc -l)"
t watch view -n 1 --json --url unix:///nonexistent >"$dir/out" 2>/dev/null
[ $(($(json time_ms <"$dir/out") / 1000 - $(date +%s))) -ge -60 ]
is "without a server the time is ours" 0 $?
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
t offer net 1h x -q
behind watch net -i 200ms --json
(while :; do
    redis lpush net pushed
    t take net -q
    t take net -q
done) >/dev/null 2>&1 &
killer=$!
children="$children $killer"
soon "it goes on" sh -c "[ \$(wc -l <'$dir/behind') -ge 6 ]"
kill $killer
wait $killer 2>/dev/null
kill -$INT $child
wait $child
is "no rate is made up of what is pushed and taken at once" "0 0" \
    "$(sed 1d "$dir/behind" | perl -MJSON::PP -ne '$m = decode_json($_);
        $made++ if exists $m->{offered_per_s} || exists $m->{taken_per_s};
        $sum += $m->{net_per_s}; $n++;
        END { printf "%d %d\n", $made, abs($sum / $n) > 4 }')"
soon "watch of all queues finds a new one" \
    grep -q ' newcomer pending 1 ' "$dir/all"
kill -$INT $apart
wait $apart
t clear newcomer --yes -q
t clear net --yes -q
t offer net 1h x --counters -q
behind watch net -i 100ms --json
(while :; do t offer net 0 x --counters -q; t take net --counters -q; done) \
    >/dev/null 2>&1 &
killer=$!
children="$children $killer"
soon "of a queue with counters it shows what comes and what goes" \
    grep -q '"offered_per_s":[1-9].*"taken_per_s":[1-9]' "$dir/behind"
kill $killer
wait $killer 2>/dev/null
kill -$INT $child
wait $child
if has_terminal; then
    TERM=xterm script -qec "stty cols 100 rows 24
        '$tool' watch net view -n 2 -i 100ms" /dev/null >"$dir/out" </dev/null
    is "on a wide screen in columns" 1 \
        "$(grep -c 'NET/S  OFFERED/S  TAKEN/S' "$dir/out" | sed 's/[2-9]/1/')"
fi
t clear net --yes -q
redis del 'delayq_counters:{net}' >/dev/null
is "JSON has the bars, which add up" 31 "$(t watch view -n 1 --json |
    json due | perl -MJSON::PP -ne '
        $sum += $_->{count} for @{decode_json($_)}; print $sum')"
if has_terminal; then
    for n in 1 2 3 4 5; do t offer w$n 0 x -q; done
    for size in 80x24 40x12 200x50 80x6 80x7 80x8 80x9 40x12+ 80x13+ 20x3 8x2; do
        others=q
        case $size in *+) others="w1 w2 w3 w4 w5" ;; esac
        size=${size%+}
        TERM=xterm script -qec "stty cols ${size%x*} rows ${size#*x}
            '$tool' watch view $others -n 2 -i 100ms" /dev/null </dev/null \
            >"$dir/screen"
        is "watch at $size" 0 $?
        LC_ALL=C sed -e 's/\r//g' -e 's/\x1b\[H/\n/g' \
            -e 's/\x1b[^a-zA-Z]*[a-zA-Z]//g' -e 's/\xe2\x96./#/g' \
            <"$dir/screen" >"$dir/plain"
        grep -q -a '(null)' "$dir/screen"
        is "at $size nothing is (null)" 1 $?
        [ "${size#*x}" -lt 3 ] || grep -q '^view  ' "$dir/plain"
        is "at $size it shows the queue" 0 $?
        is "at $size no line is longer" "" \
            "$(awk -v w="${size%x*}" 'length > w' "$dir/plain")"
        tail -c 40 "$dir/screen" | grep -q '\[?25h.*\[?1049l'
        is "at $size the terminal is given back" 0 $?
    done
    for n in 1 2 3 4 5; do t clear w$n --yes -q; done
    # panes [VARIABLE=VALUE]: writes the screen of `watch panes`, 100x40, to
    # $dir/screen, and its text to $dir/plain
    panes() {
        TERM=xterm script -qec "stty cols 100 rows 40
            $* '$tool' watch panes größe -n 2 -i 300ms" /dev/null \
            </dev/null >"$dir/screen"
        LC_ALL=C sed -e 's/\r//g' -e 's/\x1b\[H/\n/g' \
            -e 's/\x1b[^a-zA-Z]*[a-zA-Z]//g' <"$dir/screen" >"$dir/plain"
    }
    t offer panes 0 dead-one -q
    t take panes -x 'exit 9' --bury-on 9 -q
    t offer panes 0 retrying-one -q
    t take panes -x 'exit 9' --backoff 5ms -q
    t take panes --wait 20s --lease 1h >/dev/null
    t offer panes 0 leased-one -q
    t take panes --lease 1h >/dev/null
    redis lpush panes ready-one >/dev/null
    t offer panes 2h scheduled-one -q
    t offer größe 1h x -q
    panes
    sed -n '/ SCHEDULED /h; / SCHEDULED /!H; $ { x; p; }' "$dir/plain" |
        grep -o -E '[0-9] (SCHEDULED|LEASED|RETRYING|READY|DEAD) +[0-9]+|[a-z]+-one' |
        tr -s ' \n' ' ' >"$dir/seen"
    is "watch has a pane for each state" "1 SCHEDULED 1 scheduled-one 2 LEASED 1 \
leased-one 3 RETRYING 1 retrying-one 4 READY 1 ready-one 5 DEAD 1 dead-one " \
        "$(cat "$dir/seen")"
    is "a name that isn't ASCII is aligned" "$(grep '^panes ' "$dir/plain" |
        tail -1 | wc -m)" "$(grep '^größe ' "$dir/plain" | tail -1 | wc -m)"
    t offer panes 0 late -q
    panes NO_COLOR=
    grep -q "$(printf '\033\\[31m')" "$dir/screen"
    is "an empty NO_COLOR is none" 0 $?
    panes NO_COLOR=1
    grep -q "$(printf '\033\\[31m')" "$dir/screen"
    is "another is" 1 $?
    panes TERM=dumb
    grep -q "$(printf '\033')" "$dir/screen"
    is "a terminal that can do nothing gets plain lines" 1 $?
    t clear panes --yes -q
    t clear panes --dead --yes -q
    t clear größe --yes -q
else
    skip "no script, or no /dev/pts: the live view"
fi
t clear view --yes -q

# --- completion ---

for shell in bash zsh; do
    t completion $shell >"$dir/out"
    cmp -s "$dir/out" examples/tool/completion.$shell
    is "completion.$shell is up to date: make completion" 0 $?
    command -v $shell >/dev/null || continue # zsh is rarely installed
    $shell -n "$dir/out"
    is "$shell can read it" 0 $?
done
if has bash; then
    t offer jobs 1h x -q
    cat >"$dir/complete" <<'END'
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_delayq
echo "${COMPREPLY[@]}"
END
    completes() {
        sentence=$1 wanted=$2
        shift 2
        is "$sentence" "$wanted" "$(bash "$dir/complete" \
            examples/tool/completion.bash "$tool" "$@")"
    }
    completes "bash: a command" "reschedule redrive resume" re
    completes "bash: a command behind an option" watch -u x wa
    completes "bash: an option of the command" "--jobs --json" take q --j
    completes "bash: no other command's" "" count q --jo
    completes "bash: a queue" jobs take jo
    completes "bash: a wire" "redisson redisson-old" take --wire r
    t clear jobs --yes -q
fi

# --- a spool ---

away=unix:///nonexistent/delayq
ends "an offer waits in its spool while the server is away" 0 \
    offer spooled 1h one --spool "$dir/spool" --url $away
like "and that is told" ".*1 of the queue wait in $dir/spool: .*" \
    "$(cat "$dir/err")"
printf 'two\nthree\n' |
    t offer spooled 1h - --spool "$dir/spool" --url $away 2>"$dir/err"
is "so do lines" 0 $?
like "and they are counted" ".* 2 accepted" "$(cat "$dir/err")"
ends "a spool goes on waiting" 3 spool "$dir/spool" --url $away --retry 100ms
is "nothing is stored yet" "0 0 0 " "$(left spooled)"
ends "it can't be the spool of another queue" 2 \
    offer other 1h x --spool "$dir/spool"
ends "or of another wire" 2 \
    offer spooled 1h x --spool "$dir/spool" --wire redisson
ends "with the server all of it is sent" 0 spool "$dir/spool"
like "and counted" ".* 3 sent, 0 left" "$(cat "$dir/err")"
is "everything is stored once" "3 0 0 " "$(left spooled)"
is "in its order" "one two three" \
    "$(t peek spooled --json | json payload | xargs)"
is "an empty spool has nothing to send" \
    '{"queue":"spooled","sent":0,"left":0}' "$(t spool "$dir/spool" --json)"
ends "an offer with a spool and a server is stored at once" 0 \
    offer spooled 1h four --spool "$dir/spool"
is "it needs no second command" "4 0 0 " "$(left spooled)"
ends "a duplicate is told" 0 offer spooled 1h five --spool "$dir/spool" \
    --key k --key-ttl 1h
ends "by the exit code" 1 offer spooled 1h six --spool "$dir/spool" \
    --key k --key-ttl 1h
echo 'no spool' >"$dir/text"
ends "another file is no spool" 2 offer spooled 1h x --spool "$dir/text"
is "and stays as it is" "no spool" "$(cat "$dir/text")"
ends "a missing file is no spool" 6 spool "$dir/missing"
spooling=
for i in 1 2 3 4 5; do
    t offer spooled 1h "at once $i" --spool "$dir/spool2" --url $away -q &
    spooling="$spooling $!"
done
wait $spooling
t spool "$dir/spool2" -q
is "programs that use a spool at once wait for each other" "10 0 0 " \
    "$(left spooled)"
seq 2000 | "$tool" offer spooled 1h - --spool "$dir/spool3" --url $away -q &
child=$!
sleep 0.05
kill -9 $child 2>/dev/null
wait $child 2>/dev/null
t spool "$dir/spool3" -q 2>/dev/null || true
is "a killed program leaves its first lines" "" \
    "$(t peek spooled -n 0 --json | json payload | sed 1,10d | awk '
        $0 != NR')"
t clear spooled --yes -q
(
    ulimit -f 100
    t offer spooled 1h x --spool "$dir/spool4" --url $away 2>"$dir/err"
)
is "a spool that may not become so large is refused" 6 $?
like "and that is told" ".*spool4: File too large" "$(cat "$dir/err")"
t offer spooled 1h x --spool "$dir/spool5" --url $away -q
behind spool "$dir/spool5" --url $away --retry 20s
until grep -q 'trying again' "$dir/behind.err"; do sleep 0.02; done
kill -BUS $child # the system sends SIGBUS if the disk is full
wait $child 2>/dev/null
is "a full disk is no crash" 6 $?
like "it is told" ".*spool5: the disk is full.*" \
    "$(tail -n 1 "$dir/behind.err")"
ends "what was accepted before is sent" 0 spool "$dir/spool5"
is "once" "1 0 0 " "$(left spooled)"
t clear spooled --yes -q

# --- what .github/STABILITY.md promises ---

# shape SENTENCE FIELDS ARGUMENT...: each line of the output with --json must
# have these fields, in any order. The last line is in $dir/out.
shape() {
    sentence=$1 wanted=$2
    shift 2
    t "$@" --json 2>/dev/null | perl -MJSON::PP -ne '
        $line = decode_json($_);
        print STDERR; print join(" ", sort keys %$line), "\n"' \
        >"$dir/fields" 2>"$dir/lines"
    tail -n 1 "$dir/lines" >"$dir/out"
    is "the fields of $sentence" "$(printf '%s\n' "$wanted" | xargs -n 1 |
        LC_ALL=C sort | xargs)" "$(sort -u "$dir/fields")"
    for field in $wanted; do
        sed -n '/^.Sh JSON/,/^.Sh WATCHING/p' examples/tool/delayq.1 |
            grep -q -w "$field" || bad "the manual does not name $field"
    done
}
# words FIELD WORD...: the field of the last line must have one of these values
words() {
    got=$(json "$1" <"$dir/out")
    shift
    case " $* " in *" $got "*) ok ;; *) bad "the word $got" ;; esac
}
while read -r command options; do
    t "$command" --help >"$dir/help"
    for option in $options; do
        grep -q -e " $option\([ ,]\|$\)" "$dir/help" ||
            bad "$command has no option $option, which 0.3 had"
    done
    ok
done <tests/old/0.3/options
t clear kept --yes -q
shape offer "status ticket" offer kept 1h x --key k --key-ttl 1h
words status stored
shape "an offer whose key is in use" "status ticket" offer kept 1h x --key k --key-ttl 1h
words status duplicate
shape "peek" "ticket due_ms attempt payload" peek kept
shape "dump" "queue state ticket due_ms attempt payload" dump kept
words state pending
shape reschedule "status ticket" reschedule kept "$(json ticket <"$dir/out")" 2h
words status rescheduled
kept=$(json ticket <"$dir/out")
shape cancel "status" cancel kept "$kept"
words status canceled
shape "a second cancel" "status" cancel kept "$kept"
words status gone
printf '\377' | t offer kept 0 -q
shape "take" "queue attempt due_ms late_ms payload_base64" take kept
t offer kept 0 x -q
shape "take --lease" "queue ticket attempt due_ms late_ms payload" \
    take kept --lease 1m
shape extend "status ticket" extend kept "$(json ticket <"$dir/out")" 1m
words status extended
shape nack "status" nack kept "$(json ticket <"$dir/out")" --release
words status nacked
shape "take --exec" "queue ticket attempt exit result" take kept -x :
words result acked
t offer kept 0 x -q
shape "a command that a signal ends" \
    "queue ticket attempt signal retry_ms result" \
    take kept -x 'echo retry 0 >&3; kill -9 $$'
words result nacked
shape "--timeout" "queue ticket attempt signal timed_out result" take kept \
    -w 20s --timeout 50ms --backoff 1ms -x 'exec sleep 60'
shape "release" "queue ticket attempt exit result" take kept -w 20s \
    -x 'echo release >&3'
words result released
shape "a command that outlives its lease" "queue ticket attempt exit result" \
    take kept -w 20s -x '"$tool" clear kept --yes -q'
words result lost
t offer kept 0 x -q
shape bury "status" bury kept "$(t take kept --lease 1m --json | json ticket)" no
words status buried
shape dead "number ticket reason why dead_ms attempt payload" dead kept
shape "dump --dead" "queue state ticket reason why dead_ms attempt payload" \
    dump kept --dead
words state dead
shape redrive redriven redrive kept
shape "dump of ready items" "queue state payload" dump kept
words state ready
shape clear removed clear kept --yes
t offer kept 0 x -q
t take kept -x 'echo bury >&3' -q
shape drop dropped drop kept "$(t dead kept --json | json ticket)"
shape pause status pause kept
words status paused
shape resume status resume kept
words status resumed
counts="queue pending overdue overdue_ms ready dead next_due_ms paused_ms"
totals="offered taken acked nacked died canceled"
shape count "$counts" count kept
t offer kept 0 x --counters -q
shape "count with counters" "$counts $totals" count kept
shape list "$counts $totals" list kept
shape watch "queue time_ms pending overdue overdue_ms ready dead paused_ms due" \
    watch kept -n 1
shape tick moved tick kept --once
shape scripts "version name sha1" scripts
shape load-scripts "loaded version" load-scripts
shape "an offer to a spool" "status ticket" offer kept 0 x --spool "$dir/kept"
words status accepted stored
shape spool "queue sent left" spool "$dir/kept"
is "the names of the metrics" "acked_total canceled_total dead died_total \
nacked_total next_due_timestamp_seconds offered_total overdue overdue_seconds \
paused pending ready taken_total up" "$(t offer kept 1h x -q
    t count kept --prometheus |
        sed -n 's/^delayq_\([a-z_]*\){queue="kept"} [0-9.e+]*$/\1/p' |
        LC_ALL=C sort | xargs)"
t clear kept --yes -q
redis del 'delayq_counters:{kept}' >/dev/null

# --- from another system: the command lines of examples/README.md ---

# moves HEADING N: runs the N-th shell block below the heading
moves() {
    awk -v heading="### $1" -v n="$2" '
        /^###* / { here = $0 == heading }
        /^```/ { on = here && $0 == "```sh" && ++number == n; next }
        on' examples/README.md >"$dir/move.sh"
    [ -s "$dir/move.sh" ] || bad "examples/README.md has no commands: $1, $2"
    (cd "$dir" && PATH="$dir/bin:$PATH" sh -e move.sh) >"$dir/out" 2>"$dir/err" ||
        { bad "the commands fail: $1, $2" && cat "$dir/err"; }
}
pending() { t peek "$1" --json | jq -c '[.due_ms, .payload]' | tr '\n' ' '; }
if redis-cli --help 2>&1 | grep -q -e '--json' && has jq; then
    mkdir "$dir/bin"
    ln -s "$tool" "$dir/bin/delayq"
    printf '#!/bin/sh\nexec %s -s %s "$@"\n' "$(command -v redis-cli)" \
        "$socket" >"$dir/bin/redis-cli"
    chmod +x "$dir/bin/redis-cli"
    redis zadd timers 1900000000.25 'one
two' 1900000001 '{"a": 1}' >/dev/null
    moves "From a sorted set of your own" 1
    is "a sorted set is copied with its times and payloads" \
        '[1900000000250,"one\ntwo"] [1900000001000,"{\"a\": 1}"] ' \
        "$(pending timers)"
    is "and then removed" 0 "$(redis exists timers-old)"
    t offer jobs @1900000000 x --wire redisson -q
    moves "From Redisson's RDelayedQueue" 1
    is "a queue of Redisson is rewritten" '[1900000000000,"x"] ' \
        "$(pending jobs)"
    redis rpush celery '{"body": "W10=", "headers": {"task": "tasks.mail",
        "eta": "2030-03-17T17:46:40.5+00:00"}}' >/dev/null
    moves "With Celery or Sidekiq" 2
    redis zadd schedule 1900000001 '{"class": "MailJob", "args": [1]}' \
        1900000002 '{"class": "OtherJob", "args": []}' >/dev/null
    moves "With Celery or Sidekiq" 3
    is "tasks of Celery and Sidekiq are copied" \
        '[1900000000500,"[]"] [1900000001000,"[1]"] ' "$(pending mails)"
    redis del celery schedule >/dev/null
    for queue in timers jobs mails; do t clear $queue --yes -q; done
fi

summary
