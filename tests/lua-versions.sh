#!/bin/sh
# lua-versions.sh DIR VERSION... -- test the scripts in several versions of Lua.
#
# Redis runs scripts in Lua 5.1, Kvrocks in LuaJIT, Dragonfly and Garnet in 5.4.
# DIR/sim-model-VERSION is the model, the simulator's server, built with this
# version of Lua. Handles of all kinds use a real redis-server. The model
# receives the same requests. It must give the same replies, and at the end it
# must hold the same keys. With Lua 5.4 some runs convert arguments and replies
# to and from Lua numbers as Redis does, others as Garnet or Dragonfly does. A
# number with a fraction in a reply is refused. Ends in "N passed, N failed, N skipped".
dir=$1
shift
passed=0 failed=0
for version in "$@"; do
    DRIVEN=240 LEAST=1000 "$dir/sim-model-$version" "$dir/sim-clock.so" \
        >"$dir/lua-$version.out" 2>&1 &
done
wait
for version in "$@"; do
    counts=$(tail -n 1 "$dir/lua-$version.out")
    case $counts in
    *" passed, 0 failed, 0 skipped")
        passed=$((passed + 1))
        echo "ok   Lua $version: $(grep -a 'scripts, the rarest' \
            "$dir/lua-$version.out" | tr -s ' ')"
        ;;
    *)
        failed=$((failed + 1))
        echo "FAIL Lua $version"
        cut -c 1-2000 "$dir/lua-$version.out"
        ;;
    esac
done
echo "$passed passed, $failed failed, 0 skipped"
[ $failed -eq 0 ]
