#!/bin/sh
# Tests the recipes. Each is taken from README.md or examples/README.md, built,
# and run on a private server, and must do what its text says. Only times, a URL
# and a declaration are replaced. Also tests the errors of the quick start, and
# the examples that belong to a recipe. Ends in "N passed, N failed, N skipped".
#
#     tests/recipes.sh [BUILD [WORD]]    WORD: selects tests of the recipes
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
build=${1:-build} word=$2
unset DELAYQ_URL
server=
trap '[ -n "$server" ] && kill -9 $server 2>/dev/null; rm -rf "$dir"' EXIT
warn="-Wall -Wextra -Wpedantic"
san="-fsanitize=address,undefined -fno-sanitize-recover=undefined"

# show FILE: prints the file, indented, below a failure
show() { sed 's/^/    /' "$1"; }
# piece NAME HEADING [SED...]: extracts the first C block below a heading of
# $from, and applies the replacements
piece() {
    awk -v heading="$2" '
        on && /^```$/ { exit }
        on { print; next }
        /^```/ { code = !code }
        !code && sub(/^###* /, "") { here = $0 == heading }
        here && $0 == "```c" { on = 1 }' "$from" >"$dir/$1"
    [ -s "$dir/$1" ] || bad "$from has no C below $2"
    name=$1
    shift 2
    for change; do
        sed "$change" "$dir/$name" >"$dir/changed"
        cmp -s "$dir/$name" "$dir/changed" && bad "$name: nothing for $change"
        mv "$dir/changed" "$dir/$name"
    done
    mv "$dir/$name" "$dir/piece-$name.h"
}

# add TITLE: adds the counts that a test program has written to $dir/out
add() {
    tail -1 "$dir/out" | grep -q 'passed.*skipped$' || {
        bad "$1: the tests did not come to an end"
        echo "0 passed, 0 failed, 0 skipped" >>"$dir/out"
    }
    sed '$d' "$dir/out"
    # shellcheck disable=SC2046
    set -- $(tail -1 "$dir/out")
    passed=$((passed + $1)) failed=$((failed + $3)) skipped=$((skipped + $5))
}

# --- the recipes, tested by tests/recipes/recipes.c ----------------------------

from=README.md
piece game "A game loop"
piece pool "A pool of worker processes" 's/\b30000\b/1000/'
piece java "A Java service on the other side" 's/\b5000\b/600000/'
from=examples/README.md
piece device "A device that sleeps between ticks"
piece outbox "Never wait: an outbox"
piece cron "A tool like cron" 's/\b60000\b/2000/g' 's/\b10000\b/200/' \
    's/\b20000\b/3000/'
piece cluster "A cluster" 's/\b5000\b/50/' \
    's/"redis:.*"/getenv("RECIPES_CLUSTER")/'
piece priorities "Two priorities" \
    's/^static delayq urgent;/& open_as(\&urgent, "urgent");/'
piece unanswered "An offer without an answer"
piece unique "Unique until it is done"
piece more "Tickets, keys, times, batches"

cc=${CC:-cc}
if $cc -std=gnu99 $warn -Wno-unused-parameter $san -O0 -g1 $CPPFLAGS $CFLAGS \
    $HIREDIS_CFLAGS -DUNTOLD -I"$dir" tests/recipes/recipes.c tests/main.c \
    $LDFLAGS ${HIREDIS_LIBS:--lhiredis} -lpthread -o "$dir/recipes" &&
    $cc -std=gnu99 $warn -O0 -g0 $CPPFLAGS $CFLAGS $HIREDIS_CFLAGS -I"$dir" \
        tests/recipes/cron.c $LDFLAGS ${HIREDIS_LIBS:--lhiredis} \
        -o "$dir/cron" &&
    $cc -shared -fPIC -O1 tests/preload/settime.c -o "$dir/clock.so"; then
    export RECIPES_CRON="$dir/cron" RECIPES_CLOCK="$dir/clock.so"
    cat >"$dir/run.sh" <<'END'
export RECIPES_CLUSTER=$DELAYQ_URL
unset DELAYQ_URL
exec "$@"
END
    if command -v redis-cli >/dev/null; then
        sh tests/with-cluster.sh sh "$dir/run.sh" "$dir/recipes" $word
    else
        "$dir/recipes" $word
    fi >"$dir/out" 2>&1
    add recipes
else
    bad "the recipes don't compile"
fi

# --- the recipe for libevent, tested by tests/recipes/libevent.c ---------------

if echo '#include <event2/event_struct.h>' | $cc -E - >/dev/null 2>&1; then
    piece libevent "Somebody else's event loop"
    if $cc -std=gnu99 $warn $san -O0 -g1 $CPPFLAGS $CFLAGS $HIREDIS_CFLAGS \
        -DUNTOLD -I. -I"$dir" tests/recipes/libevent.c tests/main.c $LDFLAGS \
        ${HIREDIS_LIBS:--lhiredis} -levent_core -lpthread -o "$dir/libevent"; then
        "$dir/libevent" $word >"$dir/out" 2>&1
        add "the recipe for libevent"
    else
        bad "the recipe for libevent doesn't compile"
    fi
else
    skip "libevent is not installed: install libevent-dev"
fi

# --- errors of the quick start -----------------------------------------------

# start [OPTION...]: starts a server that can be killed
start() {
    redis=$(command -v redis-server || command -v valkey-server) || return 1
    "$redis" --port 0 --unixsocket "$dir/s" --dir "$dir" --save '' "$@" \
        >"$dir/log" 2>&1 &
    server=$!
    await test -S "$dir/s"
}
# stop: ends the server with kill -9
stop() {
    kill -9 $server
    wait $server 2>/dev/null
    rm -f "$dir/s"
    server=
}
# await COMMAND...: waits until the command succeeds, for a minute at most
await() {
    tries=0
    until "$@" 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -gt 1200 ] && return 1
        sleep 0.05
    done
}
cli() { redis-cli -s "$dir/s" "$@" >/dev/null; }
offered() {
    [ "$(redis-cli -s "$dir/s" zcard 'redisson_delay_queue_timeout:{jobs}')" \
        = 1 ]
}
hello() { timeout 60 "$build/hello" >"$dir/said" 2>"$dir/told"; }

if [ -z "$word" ] && command -v redis-cli >/dev/null && start; then
    export DELAYQ_URL="unix://$dir/s"
    for key in jobs 'redisson_delay_queue_timeout:{jobs}'; do
        cli set "$key" x
        hello
        check "the quick start fails where a key has the wrong type" [ $? -eq 1 ]
        check "and says so" grep -q "$key\|WRONGTYPE\|type" "$dir/told"
        cli flushall
    done
    timeout 60 "$build/hello" >"$dir/said" 2>"$dir/told" &
    pid=$!
    await offered # the program is in its take now, or soon
    stop
    check "it says that the server is gone" await test -s "$dir/told"
    kill $pid 2>/dev/null
    hello
    check "it fails where there is no server" [ $? -eq 1 ]
    check "and says where it has looked" grep -q "$dir/s" "$dir/told"
    unset DELAYQ_URL
elif [ -z "$word" ]; then
    skip "the quick start's failures: redis-cli or redis-server is missing"
fi

# --- the examples of these recipes --------------------------------------------

# sent N: checks that device_loop has sent each of N readings
sent() {
    check "device_loop sends each of its $1 readings" \
        grep -q "^sent $1 of $1 readings" "$dir/said"
    check "and each of $1 is there" [ "$(sed -n 's/^due: \(.*\),.*/\1/p' \
        "$dir/said" | sort -u | wc -l)" -eq "$1" ]
}
polls() { sed -n 's/^sent .* polled \([0-9]*\) times$/\1/p' "$dir/said"; }

if [ -z "$word" ]; then
    sh tests/with-server.sh timeout 60 "$build/device_loop" >"$dir/said" 2>&1
    sent 3
    check "and does not spin: $(polls) polls" [ "$(polls)" -lt 40 ]

    # An outage: the server is killed by kill -9 and started again. It loses
    # nothing that it has confirmed.
    if start --appendonly yes --appendfsync always; then
        DELAYQ_URL="unix://$dir/s" timeout 60 stdbuf -oL "$build/device_loop" \
            40 >"$dir/said" 2>&1 &
        pid=$!
        await grep -q '^due: reading 5,' "$dir/said"
        stop
        await grep -q '^reading 25:' "$dir/said"
        start --appendonly yes --appendfsync always
        wait $pid
        sent 40
        full=$(sed -n 's/^reading 2[0-5]:.*outbox \([0-9]*\) of.*/\1/p' \
            "$dir/said" | sort -n | tail -1)
        check "its outbox fills in an outage: ${full:-?} bytes" \
            [ "${full:-0}" -gt 300 ]
        check "and it does not spin: $(polls) polls" [ "$(polls)" -lt 1000 ]
        stop
        rm -rf "$dir"/appendonly* "$dir/said" # $dir/said has a reading 3
        DELAYQ_URL="unix://$dir/s" stdbuf -oL "$build/device_loop" 3 "$dir/box" \
            >"$dir/said" 2>&1 & # with a file and without a server; it is killed
        pid=$!
        await grep -q '^reading 3:' "$dir/said"
        kill -9 $pid
        start
        for again in 1 2 3; do # on a busy machine the flush may time out
            DELAYQ_URL="unix://$dir/s" timeout 60 "$build/device_loop" 0 \
                "$dir/box" >>"$dir/said" 2>&1
            kept=$(redis-cli -s "$dir/s" zcard \
                'redisson_delay_queue_timeout:{device}')
            ready=$(redis-cli -s "$dir/s" llen device) # some may be due by now
            taken=$(grep -c '^due: ' "$dir/said")
            [ $((kept + ready + taken)) -eq 3 ] && break
        done
        check "device_loop goes on with the readings of its file" \
            [ $((kept + ready + taken)) -eq 3 ]
        stop
        DELAYQ_URL="unix://$dir/s" timeout 60 "$build/device_loop" \
            >"$dir/said" 2>&1 & # the device starts before the server
        pid=$!
        sleep 1
        start
        wait $pid
        sent 3
        stop
    else
        skip "device_loop in an outage: redis-server is missing"
    fi

    # A fleet: the device measures before the gateway has loaded the scripts.
    sh tests/with-server.sh sh -c 'timeout 60 "$1/device/sensor" 3 >"$2" & pid=$!
        i=0
        until grep -q "^sensor: open: the server lacks" "$2" || [ $i -gt 1200 ]; do
            i=$((i + 1)); sleep 0.05
        done
        timeout 60 "$1/device/gateway" 3 >"$3" 2>&1; wait $pid' \
        - "$build" "$dir/sensor" "$dir/gateway"
    check "sensor.c tells what to run" grep -q 'delayq load-scripts' "$dir/sensor"
    check "and sends all it has kept" grep -q '^sensor: sent 3' "$dir/sensor"
    check "gateway.c takes the readings in their order" [ "$(sed -n \
        's/^gateway: \([0-9]*\) degrees$/\1/p' "$dir/gateway" | xargs)" \
        = "20 21 22" ]

    sh tests/with-server.sh sh tests/frozen.sh "$build" >"$dir/said" 2>&1
    check "game_loop comes to its end" grep -q '^[0-9]* died' "$dir/said"
    # An orc whose lease ends while the machine stalls comes back twice.
    lost=$(sed -n 's/^\([0-9]*\) died, \([0-9]*\) came back.*/\1 - \2/p' \
        "$dir/said")
    check "and all that died are back: $lost" [ "$((${lost:-99}))" -le 0 ]
    longest=$(sed -n 's/.*frames took \([0-9]*\).*/\1/p' "$dir/said")
    # The server is frozen for 2 s. A frame that waited for a reply would last
    # for most of this time.
    check "no frame waits for the frozen server: ${longest:-?} ms" \
        [ "${longest:-9999}" -lt 1500 ]
    sh tests/with-server.sh sh -c 'stdbuf -oL "$1" 3 >"$2" 2>&1 & pid=$!
        i=0
        until [ "$(grep -c "^job.*done" "$2")" -eq 3 ] || [ $i -gt 1200 ]; do
            sleep 0.05
            i=$((i + 1))
        done
        kill -INT $pid
        wait $pid' - "$build/worker" "$dir/said"
    check "worker does its jobs and stops cleanly" \
        grep -q '^stopping; 3 done$' "$dir/said"
fi

summary
