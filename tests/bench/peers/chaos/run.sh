#!/bin/sh
# run.sh BUILD: delayq, Redisson, BullMQ, asynq, beanstalkd and NATS during faults.
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
# Instead they are built with a time.Now that adds the number in the file $SETTIME,
# as the library does.
mkdir "$dir/go"
cat >"$dir/go/ahead.go" <<END
package time

import (
	"syscall"
	"unsafe"
)

var ahead = func() *int64 {
	name, _ := syscall.Getenv("SETTIME")
	fd, err := syscall.Open(name, syscall.O_RDONLY, 0)
	if err != nil {
		return new(int64)
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		return new(int64)
	}
	return (*int64)(unsafe.Pointer(&page[0]))
}()
END
go_time=$(go env GOROOT 2>/dev/null)/src/time
sed '/^func Now() Time {/,/^}/s|^\tsec, nsec, mono := .*|&\n\tsec += *ahead / 1000000|' \
    "$go_time/time.go" >"$dir/go/time.go"
cat >"$dir/go/overlay.json" <<END
{"Replace": {"$go_time/time.go": "$dir/go/time.go",
             "$go_time/ahead.go": "$dir/go/ahead.go"}}
END
# fetch_go_ahead NAME SOURCE... PROGRAM
fetch_go_ahead() {
    grep -q 'sec += \*ahead' "$dir/go/time.go" &&
        fetch_go "$@" -overlay "$dir/go/overlay.json"
}
if fetch_go_ahead asynq 'chaos/asynq.go chaos/peer.go' "$build/chaos-asynq"; then
    c=$build/chaos-asynq
    set -- "$@" "$peer|redis|$c|$c"
    versions="$versions, asynq $(go_version "$c" github.com/hibiken/asynq)"
    versions="$versions ($(go env GOVERSION))"
fi
if fetch_go_ahead NATS $nats_server "$dir/nats-server" &&
    fetch_go_ahead NATS 'chaos/nats.go chaos/peer.go' "$build/chaos-nats"; then
    c=$build/chaos-nats
    set -- "$@" "$peer|nats|$c|$c"
    versions="$versions, NATS $(go_version "$dir/nats-server" $nats_server)"
    versions="$versions (nats.go $(go_version "$c" github.com/nats-io/nats.go))"
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
