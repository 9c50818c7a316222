#!/bin/sh
# run.sh BUILD: delayq compared with Redisson, BullMQ, asynq, beanstalkd and
# NATS. fetch.sh fetches them into BUILD/peers/. All peers on Redis use the same
# private redis-server, on loopback, without persistence. beanstalkd and NATS
# have their own servers. All servers run on one core. The script runs for about
# ten minutes, not counting the downloads, and then stops all processes that it
# has started.
cd "$(dirname "$0")/../../.." || exit 1
build=$PWD/$1/peers
here=$PWD/tests/bench/peers
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
pids=''
trap 'kill $pids 2>/dev/null; wait $pids 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

. "$here/fetch.sh"
free_port() {
    port=$((${port:-$((11000 + $$ % 20000))} + 1))
    while redis-cli -p $port PING 2>&1 | grep -qv refused; do
        port=$((port + 1))
    done
}
# until_true COMMAND...: waits until the command succeeds, for at most 5 s
until_true() {
    i=0
    until "$@" >/dev/null 2>&1; do
        i=$((i + 1))
        [ $i -gt 100 ] && { cat "$dir/log" >&2; exit 1; }
        sleep 0.05
    done
}

command -v redis-server >/dev/null || { echo "redis-server is missing"; exit 1; }
pin=''
command -v taskset >/dev/null && pin='taskset -c 0'
free_port
redis=$port
$pin redis-server --port $redis --bind 127.0.0.1 --dir "$dir" --save '' \
    --appendonly no >"$dir/log" 2>&1 &
server=$!
pids=$server
until_true redis-cli -p $redis PING

# The arguments of the program peers: NAME|PROMISE|LIFE|LATE|SERVER|COMMAND
url=redis://127.0.0.1:$redis
c="exec $build/delayq $url"
set -- "sleep, PING|-|0|1|$server|$c floor" \
    "delayq, lease|at least|1|1|$server|$c at-least-once" \
    "delayq|at most|1|1|$server|$c at-most-once" \
    "the protocol|at most|1|0|$server|$c protocol"

if fetch_redisson RedissonPeer.java; then
    set -- "$@" "$peer|at most|1|1|$server|exec java -cp '$cp' RedissonPeer \
        $url $v 2>$dir/redisson.log"
fi
if fetch_bullmq; then
    set -- "$@" "$peer|at least|1|1|$server|NODE_PATH=$build/bullmq/node_modules \
        exec node $here/bullmq.js $redis 2>$dir/bullmq.log"
fi
if fetch_go asynq 'asynq.go peer.go' "$build/asynq"; then
    set -- "$@" "$peer|at least|1|1|$server|exec $build/asynq \
        127.0.0.1:$redis 2>$dir/asynq.log"
fi

peer=beanstalkd
if have beanstalkd; then
    free_port
    $pin beanstalkd -l 127.0.0.1 -p $port >"$dir/beanstalkd.log" 2>&1 &
    own=$!
    pids="$pids $own"
    sleep 0.5
    c="exec $build/beanstalkd $(beanstalkd -v | cut -d' ' -f2) $port"
    set -- "$@" "$peer|at least|1|1|$own|$c"
fi

if fetch_go NATS $nats_server "$build/nats-server" &&
    fetch_go NATS 'nats.go peer.go' "$build/nats"; then
    free_port
    $pin "$build/nats-server" -a 127.0.0.1 -p $port -js -sd "$dir/nats" \
        >"$dir/nats.log" 2>&1 &
    own=$!
    pids="$pids $own"
    sleep 0.5
    c="exec $build/nats nats://127.0.0.1:$port"
    c="$c $(go_version "$build/nats-server" $nats_server)"
    set -- "$@" "$peer|at least|1|1|$own|$c"
fi

timeout --foreground 900 "$build/peers" "$@" &
pids="$pids $!"
wait $! || { cat "$dir"/*.log >&2; exit 1; }
redis-server --version | sed 's/ sha.*//'
