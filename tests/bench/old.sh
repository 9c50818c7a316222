#!/bin/sh
# old.sh BUILD COMMIT: runs the bench `scripts` with the delayq.h of COMMIT and
# with the current one, in turns on one server. Prints the medians of both and
# of their ratios, and the spread of the ratios.
cd "$(dirname "$0")/../.." || exit 1
build=$1 old=$2 dir=$1/old
mkdir -p "$dir/tests/bench" || exit 1
git show "$old:delayq.h" >"$dir/delayq.h" || exit 1
git show "$old:tests/bench/bench.h" >"$dir/tests/bench/bench.h" || exit 1
cp tests/bench/scripts.c "$dir/tests/bench/"
${CC:-cc} -O2 -std=gnu99 -w "$dir/tests/bench/scripts.c" \
    ${HIREDIS_LIBS:--lhiredis} -o "$dir/scripts" || exit 1
sh tests/with-server.sh sh -c "for i in \$(seq \"\${ROUNDS:-9}\"); do
    echo old \$($dir/scripts); echo new \$($build/scripts); done" |
    tee "$dir/rows" | sed 's/^/    /'
awk '
function sort(v, n,    i, j, t) {
    for (i = 2; i <= n; i++)
        for (j = i; j > 1 && v[j] < v[j - 1]; j--) {
            t = v[j]; v[j] = v[j - 1]; v[j - 1] = t
        }
}
function median(which, k,    i, v) {
    for (i = 1; i <= rows[which]; i++) v[i] = us[which, i, k]
    sort(v, rows[which])
    return v[int((rows[which] + 1) / 2)]
}
{
    n = ++rows[$1]
    for (i = 2; i <= NF; i++) {
        split($i, pair, "=")
        name[i] = pair[1]
        us[$1, n, i] = pair[2] + 0
    }
    columns = NF
}
END {
    n = rows["new"]
    print "us of script: medians of both, and of the ratios of turns that"
    print "follow each other; a quarter of these is below low, one above high"
    printf "%-24s%8s%8s%8s%8s%8s\n", "", "old", "new", "ratio", "low", "high"
    for (k = 2; k <= columns; k++) {
        for (i = 1; i <= n; i++) v[i] = us["new", i, k] / us["old", i, k]
        sort(v, n)
        printf "%-24s%8.1f%8.1f%8.2f%8.2f%8.2f\n", name[k],
               median("old", k), median("new", k), v[int((n + 1) / 2)],
               v[int((n + 3) / 4)], v[int((3 * n + 3) / 4)]
    }
}' "$dir/rows"
