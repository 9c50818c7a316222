#!/bin/sh
# Run benches one after the other, and print the progress before each. Most of
# them use one private server; cluster and frame have servers of their own.
#
#     run.sh FOLDER bench...
folder=$1
shift
count=$#
begin=$(date +%s)
i=0
for bench; do
    i=$((i + 1))
    printf '%s--- %s, %d of %d, after %d s\n' "${blank-}" "$bench" $i $count \
        $(($(date +%s) - begin))
    blank='
'
    case $bench in
    frame) "$folder/$bench" ;;
    cluster) sh tests/with-cluster.sh "$folder/$bench" ;;
    *) sh tests/with-server.sh "$folder/$bench" ;;
    esac || exit 1
done
printf '\n--- all, after %d s\n' $(($(date +%s) - begin))
