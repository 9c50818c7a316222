#!/bin/bash
# `make nightly`: runs `make test-all`, and most of the checks that it leaves
# out. Needs root on a Debian 12 or Ubuntu, and the network.
#
#     tests/nightly.sh [ROW...]     default: all rows
#
# After a failure the other rows still run. Each row has a time limit and a log,
# build/nightly/ROW.log. If no row is named, a row that has passed on the same
# sources is not run again. So a run after an interrupted one skips the rows
# that have passed. If rows are named, the row `setup` also runs, before them.
# The result of a row is one of
#
#     ok       it passed
#     FAIL     it failed; the last lines of its log follow the table
#     HUNG     it exceeded its time limit
#     ENV      it did not run: a download failed three times
#     done     it passed before on the same sources
#
# The output ends with a table. The exit code is 1 if a row is FAIL or HUNG,
# otherwise 75 if a row is ENV.
cd "$(dirname "$0")/.." || exit 1
logs=build/nightly
mkdir -p $logs || exit 1
unset MAKEFLAGS MAKELEVEL MFLAGS
export CI=true DELAYQ_BARE_SYSTEMS=$PWD/build/bare/systems
export PATH=$PWD/build/tools:$PATH

# the rows: name, limit in minutes, command
rows="
setup     20 bash tests/packages.sh all
test-all  60 env DELAYQ_TEST_FULL=1 make test-all
plain     20 make quick
bare      60 make bare
deb-test  30 make deb-test
sim       40 make sim SEEDS=3000
sim-ubsan 20 make sim-ubsan
lua       20 make lua-versions
proof     40 make proof
models    30 make models
fuzz      15 make fuzz FUZZ_SECONDS=60
old       30 make old
hosted    30 make hosted
libvalkey 30 make libvalkey
size      15 make size
rig       20 make rig SECONDS=120
chaos     10 make chaos-test
deb13     40 make matrix ROWS=deb13
windows   20 make matrix ROWS=windows
device    20 make matrix ROWS=device
lwip      20 make matrix ROWS=lwip
board     20 make matrix ROWS=board
interop   30 make interop
soak      30 make soak SECONDS=20
stress    60 make stress
"
tree=$(git ls-files -z -co --exclude-standard | xargs -0 sha1sum 2>/dev/null |
    sha1sum | cut -d ' ' -f 1)

for name; do
    grep -q "^$name " <<<"$rows" || { echo "there is no row $name" >&2; exit 2; }
done
named=${*:-}
table='' failed=0 unfetched=0
while read -r name minutes command; do
    [ "$name" ] || continue
    case " $named " in "  " | *" $name "*) ;; *) [ "$name" = setup ] || continue ;; esac
    log=$logs/$name.log began=$SECONDS
    if [ ! "$named" ] && [ "$(cat $logs/$name.ok 2>/dev/null)" = "$tree" ]; then
        ended='done'
    else
        echo "=== $name: $command"
        # shellcheck disable=SC2086
        timeout -k 20 $((minutes * 60)) $command >"$log" 2>&1 </dev/null
        code=$?
        tail -n 1 "$log"
        case $code in
        0) ended=ok && echo "$tree" >$logs/$name.ok ;;
        124 | 137) ended=HUNG ;;
        75) ended=ENV ;;
        *)
            ended=FAIL
            grep -a -q "^skip .* can't be had" "$log" &&
                ! grep -a -q '^FAIL ' "$log" && ended=ENV
            ;;
        esac
        case $ended in
        FAIL | HUNG) failed=$((failed + 1)) lost="$lost $name" ;;
        ENV) unfetched=$((unfetched + 1)) lost="$lost $name" ;;
        esac
    fi
    table+=$(printf '%-10s %-5s %5d s  %s' "$name" $ended \
        $((SECONDS - began)) "$(tail -n 1 "$log" | cut -c 1-60)")$'\n'
done <<<"$rows"
for name in $lost; do
    echo "=== the end of $logs/$name.log"
    LC_ALL=C sed -n '/^failed:$/,$p' "$logs/$name.log" | head -n 60
    tail -n 40 "$logs/$name.log"
done
echo "=== rows"
printf %s "$table"
[ $failed -eq 0 ] || exit 1
[ $unfetched -eq 0 ] || exit 75
