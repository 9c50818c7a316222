# `make board`: builds delayq, hiredis, lwIP and a program for a Cortex-M4
# (tests/device/board/), and runs them in qemu-system-arm. The program offers
# and takes over the emulated Ethernet. The server and a second client, `tool`,
# run on this system. tests/cross.sh sources this file, and starts the server.
#
# DELAYQ_LWIP_SOURCE   a folder with lwIP's `src`; by default apt downloads it
# shellcheck shell=sh

# Sets $lwip to the folder with lwIP's C source, from Debian's source package.
# apt gets its own sources.list, because a system's list rarely names source
# packages.
find_lwip_source() {
    lwip=${DELAYQ_LWIP_SOURCE:-$cache/lwip-source}
    [ -f "$lwip/src/include/lwip/init.h" ] || {
        mkdir -p "$dir/apt/lists/partial" "$dir/apt/archives/partial" "$lwip" &&
            echo "deb-src ${DELAYQ_MATRIX_MIRROR:-http://deb.debian.org/debian}" \
                "$(. /etc/os-release && echo "$VERSION_CODENAME") main" \
                >"$dir/apt/sources.list" &&
            apt_get update && (cd "$dir" && apt_get --download-only source lwip) &&
            tar -C "$lwip" --strip-components=1 -xf "$dir"/lwip_*.orig.tar.*
    } >"$dir/said" 2>&1 || {
        cat "$dir/said"
        give_up "lwIP's source can't be had: set DELAYQ_LWIP_SOURCE"
    }
    lwip=$lwip/src
    say_lwip "$lwip/include"
}
apt_get() {
    fetch apt-get -q -o APT::Sandbox::User=root -o Dir::State::Lists="$dir/apt/lists" \
        -o Dir::Etc::SourceList="$dir/apt/sources.list" \
        -o Dir::Etc::SourceParts=/dev/null -o Dir::Cache="$dir/apt" "$@"
}

build_board() {
    out=build/board
    own=tests/device/board
    cc="arm-none-eabi-gcc -mcpu=cortex-m4 -mfpu=fpv4-sp-d16 -mfloat-abi=hard \
        -mthumb -ffunction-sections -fdata-sections --specs=nano.specs \
        --specs=nosys.specs"
    include="-I. -I$own -Itests/device/cortex-m4 -isystem $lwip/include \
        -isystem $source"
    rm -rf $out && mkdir -p $out || exit 1
    for file in "$lwip"/core/*.c "$lwip"/core/ipv4/*.c "$lwip"/api/*.c \
        "$lwip"/netif/ethernet.c; do
        $cc -Os -w $include -c "$file" -o "$out/lwip-$(basename "$file" .c).o"
    done
    for part in hiredis read sds alloc; do
        $cc -std=gnu99 -Os -w -DSSIZE_MAX=INT_MAX \
            -c "$source/hiredis/$part.c" -o $out/$part.o
    done
    $cc -std=c99 -Os $warn $include -isystem "$source/hiredis" \
        -c examples/device/hiredis_net.c -o $out/hiredis_net.o
    printf '#define DELAYQ_IMPLEMENTATION\n#define DELAYQ_PORT "%s"\n%s\n' \
        examples/device/lwip.h '#include "delayq.h"' >$out/delayq_impl.c
    clean "the header" $cc -std=c99 -Os $warn $include -c $out/delayq_impl.c \
        -o $out/delayq_impl.o
    for file in "$own"/*.c; do
        clean "$file" $cc -std=gnu99 -Os $warn $include -c "$file" \
            -o "$out/$(basename "$file" .c).o"
    done
    clean "the board's program is linked" $cc -nostartfiles -Wl,--gc-sections \
        -T $own/board.ld $out/*.o -o $out/program
}

# --- the board and the server ----------------------------------------------------

# tell COMMAND...: sends the board a command; hear: reads its answer into $line
tell() { echo "$*" >&3; }
hear() {
    read -r line <&4 && return
    bad "$1: the board has ended"
    cat "$dir/err"
    summary
    exit 1
}
# answers SENTENCE PATTERN COMMAND...: the answer to the command must match
answers() {
    title=$1 wanted=$2
    shift 2
    tell "$@"
    is_answer "$title" "$wanted"
}
# is_answer SENTENCE PATTERN: the answer to the last command must match
is_answer() {
    hear "$1"
    case $line in
    $2) ok "$1" ;;
    *) bad "$1: not \"$2\": $line" ;;
    esac
}
# answers_soon SENTENCE PATTERN COMMAND...: repeats the command until its answer
# matches
answers_soon() {
    title=$1 wanted=$2 tries=400
    shift 2
    while [ $((tries -= 1)) -gt 0 ]; do
        tell "$@"
        hear "$title"
        case $line in
        $wanted) ok "$title" && return ;;
        esac
        sleep 0.05
    done
    bad "$title: not \"$wanted\": $line"
}
redis() { redis-cli -p $port "$@"; }
tool() { build/delayq "$@" --quiet --url "redis://127.0.0.1:$port"; }
pending() { redis zcard "redisson_delay_queue_timeout:{$1}"; }
ready() { redis llen "$1"; }
# shows SENTENCE WANTED COMMAND...: a command on this system must print WANTED
shows() {
    title=$1 wanted=$2
    shift 2
    said=$("$@" 2>&1)
    if [ "$said" = "$wanted" ]; then ok "$title"; else
        bad "$title: not \"$wanted\": $said"
    fi
}
# promptly SENTENCE PATTERN FUNCTION: the function starts a take, and causes an
# event that ends it. The answer has to come within 3 s, since a poll or ping
# would end the take after 10 s without the event. As the machine may be busy,
# one prompt answer in five tries suffices.
promptly() {
    for try in 1 2 3 4 5; do
        began=$(date +%s)
        $3
        hear "$1"
        took=$(($(date +%s) - began))
        case $line in
        $2) ;;
        *) bad "$1: not \"$2\": $line" && return ;;
        esac
        [ $took -gt 3 ] || { ok "$1" && return; }
    done
    bad "$1: it takes $took s"
}
# waits H: starts a take of handle H, and lets the take begin to wait
waits() {
    tell take "$1" 60000
    soon "the board listens" listens
    sleep 0.3
}
listens() { [ "$(redis client list type pubsub | grep -c .)" -ge 1 ]; }

start_board() {
    mkfifo "$dir/in" "$dir/out" || exit 1
    timeout 180 qemu-system-arm -M mps2-an386 -kernel build/board/program \
        -nic user,ipv6=off -display none -monitor none -serial stdio \
        -semihosting-config enable=on,target=native \
        <"$dir/in" >"$dir/out" 2>"$dir/err" &
    game=$!
    exec 3>"$dir/in" 4<"$dir/out"
    is_answer "the board comes up" "the board is up"
}
end_board() {
    tell exit 7
    wait $game
    code=$?
    game=
    exec 3>&- 4<&-
    if [ $code -eq 7 ]; then ok "the board ends when it is told to"; else
        bad "the board ended with $code" && cat "$dir/err"
    fi
}

# --- the test --------------------------------------------------------------------

offers() {
    answers "a handle opens" done open 0 $url jobs 0 0
    shows "the server is empty" 0 redis dbsize
    answers "the board offers" done offer 0 from-the-board 0
    shows "the server has the item" 1 pending jobs
    shows "another client takes it" from-the-board tool take jobs
    shows "it is gone" 0 pending jobs
    answers "the board offers an item for later" done offer 0 later 3600000
    answers "it is not taken before" "nothing to take" take 0 0
    shows "it stays" 1 pending jobs
    tool clear --yes jobs >/dev/null
}
takes() {
    tool offer jobs 0 from-a-client >/dev/null
    answers "the board takes what another client offers" \
        "attempt 1 of from-a-client, done" take 0 20000
    shows "the server has it no more" 0 pending jobs
    redis lpush jobs pushed >/dev/null
    answers "the board takes what is pushed" "attempt ? of pushed, done" \
        take 0 20000
    shows "that is gone, too" 0 ready jobs
}
leases() {
    answers "a handle with a lease opens" done open 1 $url work 60000 0
    tool offer work 0 job >/dev/null
    answers "the board leases an item" "attempt 1 of job, done" take 1 20000
    shows "the server keeps it" 1 pending work
    shows "another client can't take it" "" tool take work
    answers "a nack" done nack 1 0
    answers "delivers it again" "attempt 2 of job, done" take 1 20000
    answers "an ack" done ack 1
    shows "ends that" 0 pending work
    answers "a second ack does nothing" "it is no longer there" ack 1
    answers "a handle with a short lease opens" done open 1 $url short 200 0
    answers "an offer of its own" done offer 1 job 0
    answers "is leased" "attempt 1 of job, done" take 1 20000
    answers "and again, without an ack" "attempt 2 of job, done" take 1 20000
    answers "until it is acked" done ack 1
    shows "the server has nothing left" 0 pending short
}
wakes() {
    promptly "an offer of another client wakes a take" \
        "attempt 1 of news, done" by_offer
    promptly "so does one that is due later" "attempt 1 of soon, done" by_delay
    promptly "and a push" "attempt ? of pushed, done" by_push
    promptly "and another thread" "woken by delayq_wake" by_thread
    shows "nothing is left" 0 pending jobs
}
by_offer() { waits 0 && tool offer jobs 0 news >/dev/null; }
by_delay() { waits 0 && tool offer jobs 300ms soon >/dev/null; }
by_push() { waits 0 && redis lpush jobs pushed >/dev/null; }
by_thread() {
    answers "a thread is about to wake the handle" done wake 0 300
    tell take 0 60000
}
freezes() {
    answers "a handle with an outbox opens" done open 2 $url boxed 0 1
    answers "it connects" done flush 2 20000
    # If handle 0 had been silent for 10 s, its offer below would first probe.
    answers "the other handle offers" done offer 0 warm 0
    obey freeze
    answers "a handle without an outbox does not know" \
        "no reply; it may have happened*" offer 0 unknown 0
    for i in 1 2 3; do
        answers "an outbox accepts, beside a frozen server" done \
            offer 2 frozen-$i 0
    done
    obey thaw
    answers_soon "the outbox is settled when the server goes on" done \
        flush 2 20000
    shows "each item is there once, in order" "frozen-1
frozen-2
frozen-3" tool take -n 9 boxed
    answers_soon "the other handle offers again" done offer 0 thawed 0
    soon "and the server has it" holds jobs thawed
    tool clear --yes jobs >/dev/null
}
holds() {
    redis zrange "redisson_delay_queue_timeout:{$1}" 0 -1 | grep -q "$2"
}
stops() {
    waits 1
    obey kill
    check "the server starts again" obey start
    soon "it is connected again after the server was killed" listens
    tool offer short 0 restarted >/dev/null
    is_answer "and hears of an offer" "attempt 1 of restarted, done"
    answers "that is acked" done ack 1

    answers "an item before the server is killed" done offer 2 kept 0
    answers "is stored" done flush 2 20000
    obey kill
    for i in 1 2 3; do
        answers "an outbox accepts, without a server" done offer 2 killed-$i 0
    done
    answers_soon "a handle without one is refused" \
        "no connection; nothing has happened: *Connection refused*" \
        offer 0 refused 0
    check "the server starts again" obey start
    answers_soon "the outbox is settled on the new server" done flush 2 20000
    answers_soon "the other handle offers again" done offer 0 after 0
    shows "each item is there once, in order" "kept
killed-1
killed-2
killed-3" tool take -n 9 boxed
    shows "a refused offer has not happened" after tool take -n 9 jobs
}
closes() {
    for i in 0 1 2; do answers "a handle closes" done close $i; done
    soon "the server has no connection of the board" gone
    shows "nothing is left of the items" "" tool list
}
gone() { [ "$(redis client list | grep -c .)" -eq 1 ]; }

on_board() {
    command -v arm-none-eabi-gcc >/dev/null ||
        give_up "arm-none-eabi-gcc is not installed"
    command -v qemu-system-arm >/dev/null ||
        give_up "qemu-system-arm is not installed"
    command -v redis-server >/dev/null || give_up "redis-server is not installed"
    say compiler "gcc $(arm-none-eabi-gcc -dumpversion)"
    find_hiredis
    find_lwip_source
    make -s build/delayq || exit 1
    build_board || return
    find_server || give_up "no port for a server"
    say server "$(redis info server |
        sed -n 's/^redis_version:\([0-9.]*\).*/redis \1/p')"
    say qemu "$(qemu-system-arm --version | sed -n 's/.*version \([0-9.]*\).*/\1/p')"
    url=redis://10.0.2.2:$port # this system, as the guest sees it
    start_board
    offers
    takes
    leases
    wakes
    freezes
    stops
    closes
    answers "it tells what it has used" "stack *" used
    echo "most bytes of the main thread's stack, and of the heap: $line"
    end_board
}
