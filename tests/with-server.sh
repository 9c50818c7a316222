#!/bin/sh
# Run a command with DELAYQ_URL set to a private server. The server has a
# temporary folder and no persistence, and ends with the command.
# DELAYQ_SERVER_PID is the id of its process. If DELAYQ_URL is set already, that
# server is used, and DELAYQ_SERVER_PID is not set.
unset DELAYQ_SERVER_PID
[ -n "$DELAYQ_URL" ] && exec "$@"
server=$(command -v redis-server || command -v valkey-server) || {
    echo "redis-server is missing: install it, or set DELAYQ_URL" >&2
    exit 1
}
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
"$server" --port 0 --unixsocket "$dir/s" --dir "$dir" --save '' \
    --appendonly no >"$dir/log" 2>&1 &
pid=$!
trap 'kill $pid 2>/dev/null; wait $pid 2>/dev/null; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
i=0
while [ ! -S "$dir/s" ]; do # for a minute at most
    i=$((i + 1))
    [ $i -gt 3000 ] || ! kill -0 $pid 2>/dev/null &&
        { cat "$dir/log" >&2; exit 1; }
    sleep 0.02
done
DELAYQ_URL="unix://$dir/s" DELAYQ_SERVER_PID=$pid "$@"
