#!/bin/sh
# C and Java offer and take for SECONDS with each of several versions of
# Redisson. Meanwhile both are killed by kill -9, and the server is restarted
# from its AOF. At the end each confirmed item must have come, none early, none
# twice, and no key may be left. Java has no leases, so each kill or restart may
# lose one item that its consumer had popped.
#
#     tests/interop/soak.sh BUILD SECONDS [VERSION...]
#
# The server is stopped by SHUTDOWN. A Redis 7.0 that is killed in the middle of
# a write keeps the beginning of a MULTI in its AOF, and runs that part at the
# restart after the next, so items would come twice.
cd "$(dirname "$0")/../.." || exit 1
build=$PWD/$1 seconds=$2
shift 2
[ $# -gt 0 ] || set -- 3.13.1 3.20.0 3.21.1 3.45.1 4.7.0
dir=$(mktemp -d "${TMPDIR:-/tmp}/delayq-XXXXXX") || exit 1
failed=0 server=
trap 'for i in 1 2 3 4 5 6 7; do finish $i; done
    [ -z "$server" ] || kill -9 $server; rm -rf "$dir"' EXIT
trap 'exit 1' INT TERM HUP
port=$((31000 + $$ % 1700)) # no other test uses these ports
url=redis://127.0.0.1:$port
cli() { redis-cli -p $port "$@" 2>/dev/null; }
now() { date +%s%3N; }
# roll N: prints a random number below N
roll() { echo $(($(od -An -N2 -tu2 /dev/urandom) % $1)); }

serve() {
    redis-server --port $port --bind 127.0.0.1 --save '' --appendonly yes \
        --appendfsync always --dir "$dir/data" >>"$dir/server" 2>&1 &
    server=$!
    until [ "$(cli ping)" = PONG ]; do sleep 0.05; done
}

# begin SLOT: (re)starts a process. 1, 2: Java; 3, 4: C offers; 5-7: C takes
begin() {
    born=$((born + 1))
    case $1 in
    1 | 2) java -Xshare:auto -XX:TieredStopAtLevel=1 -cp "$jars:$jars/*" \
        Soak $url "$dir/$born.log" ${born}000000 "$end" >/dev/null 2>&1 & ;;
    3 | 4) "$build/soak" produce $url $wire "$dir/$born.log" ${born}000000 \
        "$end" >/dev/null 2>&1 & ;;
    *) "$build/soak" work $url $wire "$dir/$born.log" >/dev/null 2>&1 & ;;
    esac
    eval "slot$1=$!"
}

# finish SLOT: kills the slot's process with kill -9
finish() {
    eval "pid=\$slot$1 slot$1="
    [ -n "$pid" ] || return 0
    kill -9 "$pid" 2>/dev/null
    wait "$pid" 2>/dev/null
}

soak() {
    v=$1 wire=new born=0 kills=0 javas=0 restarts=0
    case $v in 3.1?.* | 3.20.* | 3.21.0) wire=old ;; esac
    jars=$build/redisson/$v
    set --
    case $v in 4.*) set -- -Dslf4j.version=2.0.17 ;; esac
    [ -f "$jars/redisson-$v.jar" ] || mvn -q -B -f tests/interop/pom.xml \
        -Dredisson.version="$v" "$@" dependency:copy-dependencies \
        -DoutputDirectory="$jars" || return 1
    javac -nowarn -cp "$jars/*" -d "$jars" tests/interop/Soak.java 2>/dev/null ||
        return 1
    rm -rf "$dir/data" "$dir"/*.log
    mkdir "$dir/data"
    serve
    end=$(($(now) + seconds * 1000))
    for i in 1 2 3 4 5 6 7; do begin $i; done
    while [ "$(now)" -lt $end ]; do
        sleep 0.$((1 + $(roll 8)))
        case $(roll 20) in
        0 | 1) i=$((1 + $(roll 2))) javas=$((javas + 1)) ;;
        2) cli shutdown nosave
           wait $server
           serve
           restarts=$((restarts + 1))
           continue ;;
        *) i=$((3 + $(roll 5))) kills=$((kills + 1)) ;;
        esac
        finish $i
        begin $i
    done
    tries=0
    until [ "$(cli exists soak redisson_delay_queue_timeout:{soak})" = 0 ] ||
        [ $tries -gt 600 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    sleep 1
    for i in 1 2 3 4 5 6 7; do finish $i; done
    tries=0 # some keys may last for a moment
    until [ "$(cli dbsize)" = 0 ] || [ $tries -gt 300 ]; do
        tries=$((tries + 1))
        sleep 0.1
    done
    left=$(cli keys '*' | grep . | tr '\n' ' ')
    cli shutdown nosave
    wait $server
    server=
    cat "$dir"/*.log | awk -v v="$v" -v most=$((2 * restarts + javas + 2)) \
        -v left="$left" -v did="killed: C $kills, Java $javas times; server restarted $restarts times" '
        $1 == "o" { due[$2] = $3; offered++ }
        $1 == "O" { sure[$2] = 1; confirmed++ }
        $1 == "J" { java++ }
        $1 == "T" { c++ }
        $1 == "J" || $1 == "A" { final[$2]++ }
        $1 == "a" { maybe[$2]++ }
        $1 == "A" || $1 == "G" { maybe[$2]-- }
        $1 == "J" || $1 == "T" {
            if (!($2 in first) || $3 < first[$2]) first[$2] = $3 }
        END {
            for (i in sure)
                if (!final[i] && maybe[i] <= 0) lost++
            for (i in final)
                if (final[i] > 1) twice++
            for (i in first) {
                if (!(i in due)) strange++
                else if (first[i] < due[i]) early++
            }
            printf "%s: %d offered, %d confirmed; C took %d, Java %d; %s\n" \
                "    lost %d (of %d that Java may lose), twice %d, early %d," \
                " strange %d, keys left: %s\n", v, offered, confirmed, c,
                java, did, lost, most, twice, early, strange,
                left == "" ? "none" : left
            exit lost > most || twice || early || strange || left != "" ||
                !c || !java
        }'
}

for tool in java javac mvn redis-server redis-cli; do
    command -v $tool >/dev/null || { echo "skipped: $tool is missing"; exit 1; }
done
for version; do
    soak "$version" || { echo "FAIL $version"; failed=1; }
done
exit $failed
