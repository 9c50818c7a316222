# Fetches the peers into $build from Maven, npm and the Go proxy; the package
# beanstalkd has to be installed. Prints the peers that are missing, and skips
# them. run.sh and chaos/run.sh source this file, and set $build, $here, $dir.

# have TOOL...: succeeds, or prints the first missing tool and fails
have() {
    for tool; do
        command -v "$tool" >/dev/null || {
            echo "skipped $peer: $tool is missing"
            return 1
        }
    done
}
# fetch COMMAND...: runs the command; if it fails, prints the reason
fetch() {
    timeout 300 "$@" >"$dir/out" 2>&1 || {
        echo "skipped $peer: $(grep -i -m1 -e error -e fail -e cannot \
            "$dir/out" || echo "$1 gave up")" | cut -c1-200
        return 1
    }
}
# fetch_redisson SOURCE: sets $cp, the classpath, and $v, the version
fetch_redisson() {
    peer=Redisson
    rm -rf "$build/redisson"
    have java javac mvn && fetch mvn -q -B -f "$here/pom.xml" \
        dependency:copy-dependencies -DoutputDirectory="$build/redisson" &&
        fetch javac -nowarn -cp "$build/redisson/*" -d "$build/redisson" \
            "$here/$1" || return 1
    cp=$build/redisson:$build/redisson/*
    v=$(basename "$build"/redisson/redisson-*.jar .jar)
    v=${v#redisson-}
}
fetch_bullmq() {
    peer=BullMQ
    mkdir -p "$build/bullmq"
    cp "$here/package.json" "$here/package-lock.json" "$build/bullmq/"
    have node npm &&
        fetch npm --prefix "$build/bullmq" ci --ignore-scripts --no-audit
}
# fetch_go NAME SOURCE PROGRAM [FLAG...]: builds PROGRAM from SOURCE, files of this
# folder or a package
fetch_go() {
    peer=$1
    source=$2
    program=$3
    shift 3
    # shellcheck disable=SC2086
    have go && fetch go build -C "$here" "$@" -o "$program" $source
}
nats_server=github.com/nats-io/nats-server/v2
# go_version PROGRAM MODULE: the version of a module in a program
go_version() {
    go version -m "$1" | awk -v m="$2" '$2 == m && $3 { print substr($3, 2); exit }'
}
