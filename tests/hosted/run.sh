#!/bin/sh
# `make hosted PROFILES="NAME..."`: the core of the tests (offers, takes,
# leases, waiters, outboxes, faults, reconnects) on servers that behave as those
# of providers do (profiles.h); then the cost of a handle that only waits.
#
#     tests/hosted/run.sh TESTS [PROFILE...]
#
# These tests are left out:
# - tests of the server's limits (a long request, a server that has ended),
#   since a proxy does not have them
# - tests of users with fewer rights, since they don't go through the proxy
# - tests of an outbox that fetches ahead, since this depends on the round trip
# - tests of a lone consumer's commands, which the cost below includes
# - tests of version 0.1, and long tests
# - with elasticache-serverless and dragonfly, tests of counters and of a mirror,
#   since delayq does not use undeclared keys there
# A few tests run first. If more than half of them fail, the other tests of the
# profile are not run. All output goes to build/hosted/. Ends in
# "N passed, N failed, N skipped".
cd "$(dirname "$0")/../.." || exit 1
tests=$1
shift
logs=build/hosted
mkdir -p "$logs" || exit 1
# shellcheck disable=SC2046
[ $# -gt 0 ] || set -- $(sed -n 's/^{\.name = "\(.*\)", \.core = 1,.*/\1/p' \
    tests/hosted/profiles.h)
few=tickets.c
core="delivery.c leases.c waiting.c waiters.c tickets.c statuses.c counters.c
      tests/errors.c hearing.c tests/outbox.c restart.c mixed.c wire.c mirror.c
      lost_its_scripts loss_of_either is_loading
      twice_is_not a_delay_within_the_timeout one_way_connection
      pipelined_offers any_sequence_of_calls waits_out_a_frozen_server
      an_offer_in_an_outbox_survives_a_cut a_fetch_that_is_cut
      ten_thousand_offers attempts_that_have_failed
      !is_gone_is_reported !never_takes_is_dropped
      !frozen_server_fills !that_slows_down !of_many_waiters
      !without_the_right !without_tracking
      !handles_of_0_1 !after_a_drop
      !a_loop_needs_one_round !a_loop_that_acks_later !a_lone_consumer_pays"
all_passed=0 all_failed=0 all_skipped=0

# run LOG ARGUMENT...: runs the tests; sets passed, failed and skipped
run() {
    log=$1
    shift
    "$tests" "$@" >"$log" 2>&1
    # shellcheck disable=SC2046
    set -- $(tail -n 1 "$log")
    case "$2$4$6" in
    passed,failed,skipped) passed=$1 failed=$3 skipped=$5 ;;
    *) passed=0 failed=1 skipped=0 ;;
    esac
}
count() {
    all_passed=$((all_passed + passed)) all_failed=$((all_failed + failed))
    all_skipped=$((all_skipped + skipped))
}
# told LOG LINES: prints the failed tests, each with LINES lines. grep needs -a,
# because the log contains payloads.
told() {
    LC_ALL=C grep -a -A "$2" -e '^FAIL' -e '^FLAKY' "$1" |
        LC_ALL=C grep -a -v -e '^ok ' -e '^skip ' -e '^--' | cut -c 1-300 |
        sed -n -e '1,40p' -e "41s|.*|    ... and more in $1|p"
}

# profile NAME: runs the tests with this profile, prints the failed ones, and
# writes how many passed, failed and were skipped to NAME.counts
profile() {
    profile=$1 all_passed=0 all_failed=0 all_skipped=0
    export DELAYQ_TEST_HOSTED="$profile" \
        DELAYQ_TEST_LOG="$PWD/$logs/$profile.servers"
    rm -f "$DELAYQ_TEST_LOG"
    began=$(date +%s)
    run "$logs/$profile.log" $few
    case $profile in # no counters, no mirror (>>keys); one forgets scripts
    elasticache-serverless | dragonfly)
        without='!counters !counted !counts_ !and_counts !option_count
                 !mirror_alone !is_no_duplicate' ;;
    *) without= ;;
    esac
    if [ "$failed" -le "$passed" ]; then
        # shellcheck disable=SC2086
        run "$logs/$profile.log" -j 16 $core $without
    fi
    count
    # A script that uses an undeclared key by pcall is found only in the log.
    LC_ALL=C sed -n 's/.*\(undeclared: [A-Z]* [a-z_]*\).*/    \1/p' \
        "$DELAYQ_TEST_LOG" | grep -v -e ' delayq_counters$' \
        -e ' L[A-Z]* redisson_delay_queue$' | sort -u >"$logs/$profile.undeclared"
    [ ! -s "$logs/$profile.undeclared" ] ||
        failed=$((failed + 1)) all_failed=$((all_failed + 1))
    printf '%-24s %4d passed, %d failed, %d skipped (%d s)\n' "$profile" \
        "$passed" "$failed" "$skipped" $(($(date +%s) - began))
    told "$logs/$profile.log" 2
    cat "$logs/$profile.undeclared"
    echo "$all_passed $all_failed $all_skipped" >"$logs/$profile.counts"
}

# Three profiles run at a time, since most tests wait.
finish() {
    wait
    for name in $running; do
        cat "$logs/$name.out"
        # shellcheck disable=SC2046
        set -- $(cat "$logs/$name.counts" 2>/dev/null)
        passed=${1:-0} failed=${2:-1} skipped=${3:-0}
        count
    done
    running=
}
running=
for name; do
    rm -f "$logs/$name.counts"
    (profile "$name") >"$logs/$name.out" 2>&1 &
    running="$running $name"
    case $running in
    " "*" "*" "*) finish ;;
    esac
done
finish

unset DELAYQ_TEST_HOSTED DELAYQ_TEST_LOG
rm -f "$logs/cost"
export DELAYQ_TEST_ROWS="$logs/cost"
run "$logs/tests.log" -j 16 tests/hosted.c
count
echo "a handle that waits: requests an hour, then how many ms late an offer by"
echo "another handle comes, and a push by another program:"
sort "$logs/cost"
told "$logs/tests.log" 40
echo "$all_passed passed, $all_failed failed, $all_skipped skipped"
[ $all_failed -eq 0 ] && [ $all_passed -gt 0 ]
