#!/bin/sh
# Tests the files of examples/server as an operator uses them. A server is
# started by the command in compose.yaml with redis.conf and users.acl. A worker
# runs, and is stopped, restarted and killed, by the rules of its systemd unit.
# The service of the timer must offer its item once. Only paths and times are
# replaced. Ends in "N passed, N failed, N skipped".
#
#     tests/server.sh DELAYQ     the command-line tool
case $1 in
/*) tool=$1 ;;
*) tool=$PWD/$1 ;;
esac
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
[ -x "$tool" ] || { echo "$tool is missing: run make operate" >&2; exit 1; }
unset DELAYQ_URL
files=examples/server
server='' worker=''
trap 'end_all; rm -rf "$dir"' EXIT

# --- helpers ------------------------------------------------------------------

# is SENTENCE WANTED GOT
is() {
    if [ "$2" = "$3" ]; then ok; else
        bad "$1"
        printf '  wanted: %s\n  got:    %s\n' "$2" "$3"
    fi
}
# as USER [PASSWORD]: prints the URL for this user
as() { echo "unix://$1:${2:-secret}@$dir/s"; }
redis() { redis-cli -s "$dir/s" --user admin --pass secret --no-auth-warning \
    "$@"; }
# session: prints the pids of all processes that belong to the unit for systemd,
# including those in other sessions. Zombies have no environment, so they are
# not listed.
session() {
    grep -l -z -s -x -e "DELAYQ_TEST_UNIT=$dir" /proc/[0-9]*/environ |
        cut -d/ -f3
}
end_session() {
    for pid in $(session); do kill -KILL "$pid" 2>/dev/null; done
}
end_all() {
    [ -z "$worker" ] || end_session
    [ -z "$server" ] || kill -KILL "$server" 2>/dev/null
}

# --- the compose file ----------------------------------------------------------

# Prints the content of compose.yaml, with NAME VALUE on each line.
cat >"$dir/compose.py" <<'END'
import sys, yaml
redis = yaml.safe_load(open(sys.argv[1]))['services']['redis']
print('command', redis['command'])
for volume in redis['volumes']:
    print('volume', volume)
for port in redis['ports']:
    print('port', port)
memory = redis['mem_limit']
print('memory', int(memory[:-1]) << {'k': 10, 'm': 20, 'g': 30}[memory[-1]])
print('nofile', redis['ulimits']['nofile'])
END
python=
for p in python3 /usr/bin/python3; do
    [ -n "$python" ] || { "$p" -c 'import yaml' 2>/dev/null && python=$p; }
done
said() { sed -n "s/^$1 //p" "$dir/compose"; }

if docker compose version >/dev/null 2>&1; then
    check "docker compose reads the file" \
        docker compose -f $files/compose.yaml config -q
elif [ -n "$python" ]; then
    echo "     (docker compose is not installed: compose.yaml is only parsed)"
fi
if [ -n "$python" ]; then
    if "$python" "$dir/compose.py" $files/compose.yaml >"$dir/compose" \
        2>"$dir/.said"; then
        ok
    else
        bad "compose.yaml is YAML, and says what it should"
        cat "$dir/.said"
    fi
else
    skip "python3 with yaml is not installed: install python3-yaml"
    echo 'command redis-server /etc/redis/redis.conf --dir /data' \
        >"$dir/compose"
fi

# --- a server, started by the compose file's command ---------------------------

redis=$(command -v redis-server || command -v valkey-server)
[ -n "$redis" ] || { skip "redis-server is not installed"; summary; exit; }
case $("$redis" --version | sed 's/.* v=\([0-9]*\).*/\1/') in
[1-6]) skip "rights as of Redis 7"; summary; exit ;;
esac
has redis-cli ps setsid || { summary; exit; }

cp -R $files "$dir/etc" && mkdir "$dir/data"
sed -i "s|/etc/redis/|$dir/etc/|" "$dir/etc/redis.conf"
begin() {
    # shellcheck disable=SC2046
    set -- $(said command | sed -e "s|/etc/redis/|$dir/etc/|" \
        -e "s|/data|$dir/data|")
    shift
    descriptors=$(said nofile)
    (
        ulimit -S -n "${descriptors:-10240}" 2>/dev/null
        exec "$redis" "$@" --port 0 --unixsocket "$dir/s"
    ) >"$dir/log" 2>&1 &
    server=$!
}
up() { [ "$(redis ping)" = PONG ]; }
begin
soon "the server starts with redis.conf and users.acl" up || {
    cat "$dir/log"
    summary
    exit 1
}
setting() { redis config get "$1" | sed -n 2p; }
is "it writes an append-only file" "yes everysec" \
    "$(setting appendonly) $(setting appendfsync)"
is "it evicts nothing" noeviction "$(setting maxmemory-policy)"
is "it lets in nobody without a name" \
    "NOAUTH Authentication required." "$(redis-cli -s "$dir/s" ping)"
is "and all of the file" "admin default mover pauser producer taker watcher \
worker" \
    "$(redis acl users | sort | tr '\n' ' ' | sed 's/ $//')"
is "each line of redis.conf that sets something is known" "" \
    "$(sed -n 's/^\([a-z-]*\) .*/\1/p' $files/redis.conf | while read -r key; do
        [ -n "$(redis config get "$key")" ] || echo "$key"
    done)"
set -- $(sed -n 's/^# \(min-[a-z-]* [0-9]*\)$/\1/p' $files/redis.conf)
is "so are the two which are commented out" "4 OK" \
    "$# $(redis config set "$@")"
redis config set min-replicas-to-write 0 >/dev/null
if [ -n "$python" ]; then
    check "compose.yaml mounts the folder of these files" \
        grep -q '^volume .*:/etc/redis\(:ro\)*$' "$dir/compose"
    check "and keeps the data" grep -q '^volume .*data:/data$' "$dir/compose"
    is "its port is that of the server, on this machine only" \
        127.0.0.1:6379:6379 "$(said port)"
    check "its memory is twice maxmemory" \
        [ "$(said memory)" -ge $((2 * $(setting maxmemory))) ]
    check "its descriptors suffice for maxclients" \
        [ "$(said nofile)" -ge $(($(setting maxclients) + 32)) ]
    if [ "$(ulimit -H -n)" = unlimited ] ||
        [ "$(ulimit -H -n)" -ge "$(said nofile)" ]; then
        wanted=$(sed -n 's/^maxclients //p' $files/redis.conf)
        is "with them the server grants as many" "$wanted" \
            "$(setting maxclients)"
    fi
fi

# Use another name and password, as the README describes.
DELAYQ_URL=$(as producer) "$tool" offer jobs 0 one -q
is "the watcher counts" 1 "$(DELAYQ_URL=$(as watcher) "$tool" count jobs \
    --json | sed 's/.*"pending":\([0-9]*\).*/\1/')"
check "and sees" sh -c 'DELAYQ_URL=$1 "$2" peek jobs | grep -q one' - \
    "$(as watcher)" "$tool"
DELAYQ_URL=$(as watcher) "$tool" take jobs >"$dir/out" 2>&1
is "but takes nothing" 4 $?
line=$(sed -n 's/^    \(sed .*\) >.*/\1/p' $files/README.md)
(cd "$dir/etc" && eval "$line") >"$dir/mails.acl"
mv "$dir/mails.acl" "$dir/etc/users.acl"
# Keep the user admin, whom this test uses.
sed -i 's/^user admin.*/user admin on >secret ~* \&* +@all/' \
    "$dir/etc/users.acl"
is "an edited file is loaded" OK "$(redis acl load)"
DELAYQ_URL=$(as producer tops3cret) "$tool" offer mails 0 two -q
is "with another name and password" two \
    "$(DELAYQ_URL=$(as taker tops3cret) "$tool" take mails)"
cp $files/users.acl "$dir/etc"
redis acl load >/dev/null
kill -KILL $server
wait $server 2>/dev/null
begin
soon "after kill -9 it starts again" up
is "with what it had" "one" "$(DELAYQ_URL=$(as worker) "$tool" take jobs)"

# --- the units -----------------------------------------------------------------

mkdir "$dir/units" "$dir/lib"
for unit in $files/*.service $files/*.timer; do
    sed -e "s|/usr/local/bin/delayq|$tool|" \
        -e "s|/usr/local/lib/delayq|$dir/lib|" "$unit" \
        >"$dir/units/${unit##*/}"
done
if has systemd-analyze; then
    for unit in "$dir"/units/*; do
        check "systemd-analyze verify ${unit##*/}" \
            sh -c '! systemd-analyze verify "$1" 2>&1 | grep . || false' - \
            "$unit"
    done
    check "the timer's time is one" systemd-analyze calendar \
        "$(sed -n 's/^OnCalendar=//p' $files/delayq-report.timer)"
fi

# says UNIT KEY: prints the value of the key, as systemd reads it for jobs
says() {
    sed -n "s/^$2=//p" "$dir/units/$1" |
        sed -e 's/%i/jobs/g' -e 's/%%/%/g' -e 's/\$\$/$/g'
}
unit=delayq-worker@.service
sed -i -e 's/--lease 60s/--lease 2s/' "$dir/units/$unit"
is "the worker is restarted whatever happens" always "$(says $unit Restart)"
is "and only it gets SIGTERM" mixed "$(says $unit KillMode)"
check "with time for its commands" [ "$(says $unit TimeoutStopSec)" -ge 30 ]

# The worker's command. It records each item when it begins and when it is done.
# Until a file "fast" exists, the item "slow" lasts too long for the unit.
cat >"$dir/lib/jobs" <<END
#!/bin/sh
read -r item
echo "\$item" >>"$dir/begun"
case \$item in
slow*) [ -f "$dir/fast" ] || sleep 600 ;;
*) sleep 0.3 ;;
esac
echo "\$item" >>"$dir/done"
END
chmod 755 "$dir/lib/jobs"
: >"$dir/begun"
: >"$dir/done"
lines() { grep -c . "$1"; }
at_least() { [ "$(lines "$1")" -ge "$2" ]; }
# start and stop SECONDS do what systemd does. A stop uses KillMode=mixed and
# TimeoutStopSec=SECONDS, and ends all processes after the main one has ended.
start() {
    # shellcheck disable=SC2046
    DELAYQ_TEST_UNIT=$dir DELAYQ_URL=$(as worker) setsid $(says $unit ExecStart) \
        >>"$dir/journal" 2>&1 &
    worker=$!
}
alive() {
    [ -d "/proc/$worker" ] &&
        ! grep -q -s '^State:.Z' "/proc/$worker/status"
}
nothing() { [ -z "$(session)" ]; }
stop() {
    kill -TERM $worker
    tries=$(($1 * 20))
    while alive && [ $tries -gt 0 ]; do
        sleep 0.05
        tries=$((tries - 1))
    done
    end_session
    wait $worker 2>/dev/null
    code=$?
    soon "nothing of it is left" nothing
    worker=
}
seq 40 | DELAYQ_URL=$(as producer) "$tool" offer jobs 0 - -q
start
soon "the worker works" at_least "$dir/done" 4
stop 60
is "SIGTERM to the worker ends it with 0" 0 "$code"
is "after the commands that it had begun" "$(sort "$dir/begun")" \
    "$(sort "$dir/done")"
check "and it has begun no more" [ "$(lines "$dir/begun")" -lt 40 ]

start
soon "started again it goes on" at_least "$dir/done" 12
end_session # as if the worker or the machine crashed
wait $worker 2>/dev/null
DELAYQ_URL=$(as producer) "$tool" offer jobs 0 slow -q
start
soon "after kill -9 it goes on, too" at_least "$dir/done" 40
soon "to what is too slow" grep -q slow "$dir/begun"
stop 2
is "it is killed when TimeoutStopSec is over" 137 "$code"
touch "$dir/fast"
start
soon "what was killed comes again" grep -q slow "$dir/done"
soon "and so does all else" [ "$(sort -u "$dir/done" | wc -l)" = 41 ]
stop 60
{
    seq 40
    echo slow
} | sort >"$dir/wanted"
is "nothing is lost" "$(cat "$dir/wanted")" "$(sort -u "$dir/done")"
check "and only what was killed ran twice" \
    [ "$(sort "$dir/begun" | uniq -d | wc -l)" -le 5 ]
is "the queue is empty" "0 0 0" "$(DELAYQ_URL=$(as watcher) "$tool" count jobs |
    awk '/^(pending|ready|dead)/ { printf "%s%s", sep, $2; sep = " " }')"

# --- cron ----------------------------------------------------------------------

for unit in delayq-worker@.service delayq-report.service \
    delayq-scripts.service; do
    file=$(says $unit EnvironmentFile)
    check "$unit tells to hide its password from others" \
        grep -q -x "#     chmod 600 $file" "$files/$unit"
done
unit=delayq-scripts.service
says $unit ExecStart >"$dir/scripts.sh"
check "the unit loads the scripts with the rights of a producer" \
    env DELAYQ_URL="$(as producer)" sh "$dir/scripts.sh"
unit=delayq-report.service
says $unit ExecStart >"$dir/report.sh"
for machine in 1 2; do
    DELAYQ_URL=$(as producer) sh "$dir/report.sh" >"$dir/out" 2>&1
    code=$?
    case " $(says $unit SuccessExitStatus) 0 " in
    *" $code "*) ok ;;
    *) bad "the timer's service ends with $code on machine $machine"
       cat "$dir/out" ;;
    esac
done
is "of two machines one hands in the report" "report $(date -u +%F)" \
    "$(DELAYQ_URL=$(as watcher) "$tool" peek jobs --json |
        sed 's/.*"payload":"\([^"]*\)".*/\1/')"
is "due at the time that the timer names" \
    "$(($(date -u -d "$(date -u +%F) 03:00" +%s) * 1000))" \
    "$(DELAYQ_URL=$(as watcher) "$tool" peek jobs --json |
        sed 's/.*"due_ms":\([0-9]*\).*/\1/')"

summary
