#!/bin/sh
# Run a command with DELAYQ_URL set to a private Redis Cluster: three masters on
# loopback, in a temporary folder. They end with the command.
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
pids='' hosts=''
trap 'kill $pids 2>/dev/null; wait $pids 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
port=$((11000 + $$ % 20000))
for i in 1 2 3; do
    until ! redis-cli -p $port PING >/dev/null 2>&1 &&
        ! redis-cli -p $((port + 10000)) PING >/dev/null 2>&1; do
        port=$((port + 1))
    done
    mkdir "$dir/$i"
    redis-server --port $port --bind 127.0.0.1 --dir "$dir/$i" --save '' \
        --cluster-enabled yes >"$dir/$i/log" 2>&1 &
    pids="$pids $!" hosts="$hosts 127.0.0.1:$port" port=$((port + 1))
done
for host in $hosts; do
    i=0
    until redis-cli -p "${host#*:}" PING >/dev/null 2>&1; do
        i=$((i + 1))
        [ $i -gt 100 ] && { cat "$dir"/*/log >&2; exit 1; }
        sleep 0.05
    done
done
redis-cli --cluster create $hosts --cluster-yes >"$dir/log" 2>&1 ||
    { cat "$dir/log" >&2; exit 1; }
for host in $hosts; do
    until redis-cli -p "${host#*:}" CLUSTER INFO |
        grep -q cluster_state:ok; do sleep 0.05; done
done
DELAYQ_URL="redis://$(echo $hosts | tr ' ' ',')" "$@"
