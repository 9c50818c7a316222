#!/bin/sh
# The second half of `make demo`: runs game_loop over a line with a round trip
# of 50 ms, and freezes the server of with-server.sh for two seconds. A user's
# own server is not frozen, so the game just runs.
#
#     sh tests/with-server.sh sh tests/frozen.sh BUILD
cd "$(dirname "$0")/.." || exit 1
build=${1:-build}
if [ -z "$DELAYQ_SERVER_PID" ]; then
    echo "(this server is not frozen: it is not one of this test's own)"
    exec "$build/game_loop" 3
fi
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
"$build/line" "$dir/line" "${DELAYQ_URL#unix://}" 25 &
line=$!
trap 'kill -CONT $DELAYQ_SERVER_PID; kill $line; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM
while [ ! -S "$dir/line" ]; do
    kill -0 $line 2>/dev/null || exit 1
    sleep 0.01
done
echo "a game, 60 frames a second, over a line with a round trip of 50 ms:"
DELAYQ_URL="unix://$dir/line" "$build/game_loop" 6 &
game=$!
sleep 2.1
echo "         the server is frozen ..."
kill -STOP "$DELAYQ_SERVER_PID"
sleep 2
kill -CONT "$DELAYQ_SERVER_PID"
echo "         ... and goes on"
wait $game
