#!/bin/sh
# Run a command with DELAYQ_URL set to a private Redis Cluster: three masters on
# loopback, in a temporary folder. They end with the command.
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
pids='' pid='' hosts=''
trap 'kill $pids $pid 2>/dev/null; wait $pids 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM

# start: starts a master on $port. Fails if this port or the port of the cluster
# bus is in use.
start() {
    mkdir -p "$dir/$i"
    redis-server --port $port --bind 127.0.0.1 --unixsocket "$dir/$i/s" \
        --dir "$dir/$i" --save '' --cluster-enabled yes >"$dir/$i/log" 2>&1 &
    pid=$!
    until redis-cli -s "$dir/$i/s" PING >/dev/null 2>&1; do
        kill -0 $pid 2>/dev/null || return 1
        sleep 0.05
    done
}

# The cluster bus uses port + 10,000. Both ports differ from those of
# free_port() in main.c, and from those that the system gives to clients (from
# 32,768 on).
port=$((20000 + $$ % 300)) failed=0
for i in 1 2 3; do
    until start; do
        failed=$((failed + 1)) port=$((port + 7))
        [ $failed -gt 100 ] && { cat "$dir"/*/log >&2; exit 1; }
    done
    pids="$pids $pid" hosts="$hosts 127.0.0.1:$port" port=$((port + 1))
done
redis-cli --cluster create $hosts --cluster-yes >"$dir/log" 2>&1 ||
    { cat "$dir/log" >&2; exit 1; }
for host in $hosts; do
    until redis-cli -p "${host#*:}" CLUSTER INFO |
        grep -q cluster_state:ok; do sleep 0.05; done
done
DELAYQ_URL="redis://$(echo $hosts | tr ' ' ',')" "$@"
