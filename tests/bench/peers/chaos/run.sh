#!/bin/sh
# run.sh BUILD: delayq, Redisson, BullMQ, asynq and beanstalkd during faults.
# chaos.c describes the bench and its variables (RUNS, FAULTS, PEERS, LANES).
# ../fetch.sh fetches the peers. One run takes less than 15 minutes, without the
# time for fetching. The logs and the records stay in BUILD/peers/chaos.
cd "$(dirname "$0")/../../../.." || exit 1
build=$PWD/$1/peers
here=$PWD/tests/bench/peers
dir=$build/chaos
rm -rf "$dir"
mkdir -p "$dir"
. "$here/fetch.sh"

command -v redis-server >/dev/null || { echo "redis-server is missing"; exit 1; }
"$build/chaos-run" --self-test || exit 1
cc -shared -fPIC -O1 -o "$dir/settime.so" tests/preload/settime.c || exit 1

c=$build/chaos-delayq
set -- "delayq|redis|$c|$c"
versions="delayq $(sed -n 's/^#define DELAYQ_VERSION "\(.*\)"/\1/p' delayq.h)"

if fetch_redisson chaos/RedissonChaos.java; then
    # There are many processes. With these options they need less memory, and
    # start faster.
    c="java -Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1 -cp '$cp' \
RedissonChaos"
    set -- "$@" "$peer|redis|$c|$c"
    versions="$versions, Redisson $v (Java $(java -version 2>&1 |
        sed -n '1s/.*"\(.*\)".*/\1/p'))"
fi
if fetch_bullmq; then
    NODE_PATH=$build/bullmq/node_modules
    export NODE_PATH
    c="node $here/chaos/bullmq.js"
    set -- "$@" "$peer|redis|$c|$c"
    versions="$versions, BullMQ $(node -p 'require("bullmq/package").version')"
    versions="$versions (node $(node -p process.versions.node))"
fi

# Go programs read the clock without libc, so a preloaded library has no effect.
# Instead asynq's program is built with a time.Now that can be ahead.
mkdir "$dir/go"
cat >"$dir/go/ahead.go" <<END
package time

import "syscall"

var secondsAhead = func() (n int64) {
	text, _ := syscall.Getenv("GO_CLOCK_AHEAD_S")
	for _, c := range []byte(text) {
		n = n*10 + int64(c-'0')
	}
	return
}()
END
time_go=$(go env GOROOT 2>/dev/null)/src/time
sed '/^func Now() Time {/,/^}/s/^\tsec, nsec, mono := .*/&\n\tsec += secondsAhead/' \
    "$time_go/time.go" >"$dir/go/time.go"
cat >"$dir/go/overlay.json" <<END
{"Replace": {"$time_go/time.go": "$dir/go/time.go",
             "$time_go/ahead.go": "$dir/go/ahead.go"}}
END
if fetch_asynq chaos/asynq.go "$build/chaos-asynq" \
    -overlay "$dir/go/overlay.json" &&
    grep -q 'sec += secondsAhead' "$dir/go/time.go"; then
    c=$build/chaos-asynq
    set -- "$@" "$peer|redis|$c|$c"
    versions="$versions, asynq $(go version -m "$build/chaos-asynq" |
        sed -n 's|.*hibiken/asynq\tv\([^\t]*\).*|\1|p') ($(go env GOVERSION))"
fi
peer=beanstalkd
if have beanstalkd; then
    c=$build/chaos-beanstalkd
    set -- "$@" "$peer|beanstalkd|$c|$c"
    versions="$versions, $(beanstalkd -v)"
fi

"$build/chaos-run" "$dir" "$@" || exit 1
echo
echo "$versions; $(redis-server --version | sed 's/ sha.*//')"
date -u '+%F %H:%M UTC'
