#!/bin/sh
# The interop tests with four versions of Redisson: 3.13.1; 3.20.0, which also
# has the old format; 3.21.1, the first with the new format; and the newest.
# Maven fetches them into build/redisson/. Ends in "N passed, N failed, N
# skipped".
cd "$(dirname "$0")/../.." && . tests/lib.sh || exit 1
program=$1
build=$(dirname "$program")/redisson

has java javac mvn || { summary; exit; }

# version VERSION old|new [MAVEN ARGUMENT...]: runs the tests with this version
version() {
    v=$1 wire=$2
    shift 2
    jars="$PWD/$build/$v"
    [ -f "$jars/redisson-$v.jar" ] || fetch mvn -q -B -f tests/interop/pom.xml \
        -Dredisson.version="$v" "$@" dependency:copy-dependencies \
        -DoutputDirectory="$jars" >"$build.log" 2>&1 || {
        cat "$build.log"
        skip "Redisson $v from Maven can't be had"
        return
    }
    javac -nowarn -cp "$jars/*" -d "$jars" tests/interop/Peer.java \
        examples/redisson/Example.java >"$build.log" 2>&1 || {
        cat "$build.log"
        failed=$((failed + 1))
        return
    }
    echo "-- Redisson $v"
    DELAYQ_TEST_SLOW=3 \
        DELAYQ_REDISSON_CP="$jars:$jars/*" DELAYQ_REDISSON_WIRE=$wire \
        DELAYQ_REDISSON_EXAMPLE="$PWD/${build}/example" \
        DELAYQ_REDISSON_TOOL="$PWD/${build%/*}/delayq" \
        "$program" -j 3 $ONLY >"$build.out" 2>&1 # each test has a JVM
    cat "$build.out"
    set -- $(tail -1 "$build.out" | sed 's/[^0-9 ]//g')
    passed=$((passed + ${1:-0}))
    failed=$((failed + ${2:-1}))
    skipped=$((skipped + ${3:-0}))
}

mkdir -p "$build"
version 3.13.1 old
version 3.20.0 old
version 3.21.1 new
version 4.7.0 new -Dslf4j.version=2.0.17 -Pjackson
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && { [ -z "$CI" ] || [ $skipped -eq 0 ]; }
