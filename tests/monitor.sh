#!/bin/sh
# Tests monitoring as an operator sets it up. promtool runs unit tests of the
# alert rules in examples/server. Then a script uses some queues, and their
# metrics go through node_exporter to a Prometheus with these rules. There each
# query of the dashboard must get data. Ends in "N passed, N failed, N skipped".
#
#     tests/monitor.sh DELAYQ            the command-line tool
#     tests/monitor.sh DELAYQ short      without the test of the unit tests
#     tests/monitor.sh DELAYQ picture    let the queues work for four minutes, and
#                                        draw examples/server/dashboard.svg
case $1 in
/*) tool=$1 ;;
*) tool=$PWD/$1 ;;
esac
cd "$(dirname "$0")/.." || exit 1
if [ "$3" != on-a-server ]; then
    unset DELAYQ_URL
    exec sh tests/with-server.sh sh tests/monitor.sh "$tool" "${2:-check}" \
        on-a-server
fi
. tests/lib.sh
[ -x "$tool" ] || { echo "$tool is missing: run make operate" >&2; exit 1; }
mode=$2
files=examples/server
dashboard=$files/grafana-dashboard.json

# --- the rules --------------------------------------------------------------------

has promtool || { summary; exit; }
# unit_tests RULES
unit_tests() {
    sed "s|RULES|$1|" tests/monitor/rules.yml >"$dir/rules-test.yml"
    promtool test rules "$dir/rules-test.yml"
}
rules=$PWD/$files/prometheus-rules.yml
alerts=$(sed -n 's/^ *- alert: //p' "$rules")
runbook=$files/RUNBOOK.md
for alert in $alerts; do
    check "the runbook has a section for $alert" \
        grep -q "^## .*\<$alert\>" $runbook
done
check "promtool reads the rules" promtool check rules "$rules"
check "each alert fires in time, and none on a healthy queue" \
    unit_tests "$rules"
for alert in $alerts; do
    [ "$mode" != short ] || break
    sed "s/alert: $alert\$/alert: Other/" "$rules" >"$dir/other.yml"
    if unit_tests "$dir/other.yml" >"$dir/.said" 2>&1; then
        bad "the unit tests don't notice that $alert doesn't fire"
    else ok; fi
done

# --- queues at work -----------------------------------------------------------------

has prometheus prometheus-node-exporter python3 || { summary; exit; }
python=python3
[ ! -x /usr/bin/python3 ] || python=/usr/bin/python3 # starts sooner than pyenv's
# A started process ends when this script kills it by its pid, or removes the
# file "go" or "exports".
started=
trap 'rm -f "$dir/go" "$dir/exports"
    for pid in $started; do kill "$pid" 2>/dev/null; done
    wait 2>/dev/null; rm -rf "$dir"' EXIT
: >"$dir/go" >"$dir/exports"

# On a busy machine a call may need more time than the default timeout.
delayq() { "$tool" "$@" --io-timeout 60s; }

# Use three queues: jobs has offers, takes, retries, deaths and cancels, mails
# is paused, and thumbnails has ready items.
work() {
    turn=0
    while [ -f "$dir/go" ]; do
        turn=$((turn + 1))
        seq 3 | delayq offer jobs 1500ms - --counters -q
        [ $((turn % 3)) -ne 1 ] || delayq offer jobs 1s again --counters -q
        [ $((turn % 8)) -ne 1 ] || delayq offer jobs 1s bad --counters -q
        [ $((turn % 4)) -ne 1 ] || delayq cancel jobs \
            "$(delayq offer jobs 1h later --counters)" --counters -q
        delayq offer mails 3s mail -q
        if [ $((turn % 40)) -lt 19 ]; then
            seq 2 | delayq offer thumbnails 0 - --counters -q
            delayq tick thumbnails --once -q
        else
            delayq take thumbnails -n 2 --counters >/dev/null
        fi
        sleep 1
    done
}
cat >"$dir/handle" <<'END'
#!/bin/sh
read -r item
case $item in
bad) exit 3 ;;
again) [ "$DELAYQ_ATTEMPT" -gt 1 ] || exit 4 ;;
esac
END
chmod 755 "$dir/handle"
"$tool" pause mails -q
work >"$dir/work.log" 2>&1 &
started="$started $!"
"$tool" take jobs --follow --counters --lease 60s --retry-on 4=1s --bury-on 3 \
    --exec "$dir/handle" >"$dir/take.log" 2>&1 &
started="$started $!"

# Run the commands of the tool's README every second.
mkdir "$dir/prom"
sed -n '/^## Prometheus/,/^## /s/^    \([^#]\)/\1/p' examples/tool/README.md |
    sed "s|/var/lib/node_exporter|$dir/prom|" >"$dir/lines"
check "the tool's README has the lines that export" \
    [ "$(grep -c delayq "$dir/lines")" = 2 ]
exports() {
    while [ -f "$dir/exports" ]; do
        . "$dir/lines"
        sleep 1
    done
}
exports >"$dir/export.log" 2>&1 &
started="$started $!"

# --- Prometheus ---------------------------------------------------------------------

# Prints a free port below those that the system gives to clients, so that no
# client gets this port before the server uses it.
port() {
    "$python" -c 'import random, socket
while True:
    try:
        s = socket.socket()
        s.bind(("127.0.0.1", random.SystemRandom().randrange(31000, 32768)))
        break
    except OSError:
        pass
print(s.getsockname()[1])'
}
node=127.0.0.1:$(port)
prometheus-node-exporter --web.listen-address="$node" \
    --collector.disable-defaults --collector.textfile \
    --collector.textfile.directory="$dir/prom" >"$dir/node.log" 2>&1 &
started="$started $!"
cp "$rules" "$dir"
cat >"$dir/prometheus.yml" <<END
global: { scrape_interval: 1s, evaluation_interval: 1s }
rule_files: [prometheus-rules.yml]
scrape_configs:
  - job_name: node
    static_configs: [{ targets: ["$node"] }]
END
check "promtool reads the configuration" promtool check config \
    "$dir/prometheus.yml"
url=http://127.0.0.1:$(port)
prometheus --config.file="$dir/prometheus.yml" \
    --web.listen-address="${url#http://}" --storage.tsdb.path="$dir/data" \
    >"$dir/prometheus.log" 2>&1 &
started="$started $!"
queries() { "$python" tests/monitor/dashboard.py "$@"; }
# returns VALUES QUERY: the query must return VALUES; if not, prints its result
returns() {
    got=$(queries value "$url" "$2" 2>&1)
    [ "$got" = "$1" ] || { echo "$got" | tail -n 1; return 1; }
}
soon "Prometheus scrapes node_exporter" returns 1 up || {
    tail -n 5 "$dir/prometheus.log" "$dir/node.log" "$dir/export.log"
    summary
    exit 1
}

if [ "$mode" = picture ]; then
    sleep 240
    queries draw $dashboard "$url" 230 "$dir" || exit 1
    gnuplot "$dir/plot.gp" && cp "$dir/dashboard.svg" $files/
    exit
fi

# --- the dashboard --------------------------------------------------------------------

queries check $dashboard "$url" 120 >"$dir/queries" 2>&1
last=$(tail -n 1 "$dir/queries")
case $last in
*passed,*)
    sed '$d' "$dir/queries"
    # shellcheck disable=SC2086
    set -- $last
    passed=$((passed + $1)) failed=$((failed + $3))
    ;;
*) bad "the dashboard's queries"; cat "$dir/queries" ;;
esac
grep -h -v 'as usual after its start$' "$dir/work.log" \
    "$dir/export.log" >"$dir/unexpected"
check "the queues work, and the export, without a word" \
    sh -c '! cat "$1" | grep .' - "$dir/unexpected"
soon "the first dead letter fires its alert" returns 1 \
    'ALERTS{alertname="DelayqDeadLettersGrow",alertstate="firing",queue="jobs"}'

rm "$dir/go" # from now on nothing is offered
counted() {
    "$tool" count "$1" --json | sed "s/.*\"$2\":\([0-9]*\).*/\1/"
}
exported() { returns "$(counted "$1" "$2")" "delayq_$2{queue=\"$1\"}"; }
for queue in jobs mails thumbnails; do
    for name in pending overdue ready dead; do
        soon "Prometheus has the number that the tool counts: $name of $queue" \
            exported $queue $name
    done
done

# --- the runbook ----------------------------------------------------------------------

# Run its commands in their order. A command may find nothing to do (1).
mkdir "$dir/bin"
ln -s "$tool" "$dir/bin/delayq"
cat >"$dir/bin/redis-cli" <<END
#!/bin/sh
exec $(command -v redis-cli || command -v valkey-cli) \
    -e -s "${DELAYQ_URL#unix://}" "\$@"
END
chmod 755 "$dir/bin/redis-cli"
follow() { PATH=$dir/bin:$PATH sh -c "$1" || [ $? = 1 ]; }
sed -n -e 's/^    \(.*--dead\) .*/    \1 --yes/' -e 's/^    //p' $runbook \
    >"$dir/commands" # a clear without --yes asks on a terminal
"$tool" pause jobs -q
soon "a pause of jobs is exported" returns 1 'delayq_paused{queue="jobs"}'
while read -r line; do
    check "a command of the runbook runs: $line" follow "$line"
done <"$dir/commands"
soon "the runbook has ended the pause" returns 0 'delayq_paused{queue="jobs"}'

kill "$DELAYQ_SERVER_PID"
soon "if the server is gone, no queue is up" returns 0 delayq_up
soon "and its alert is pending" returns 1 \
    'ALERTS{alertname="DelayqDown",alertstate="pending"}'
rm "$dir/exports"

summary
