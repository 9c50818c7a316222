#!/bin/sh
# job.sh HISTORY: the command of `delayq take --exec` in the rig. It writes the
# taken item, and how its own run will end, into the history. The tool prints
# the result of the ack, nack or bury, and rig.py adds it to the history.
payload=$(head -c 60)
now=$(date +%s%6N)
id=$(printf '%s' "$payload" | sed -n 's/^<\([0-9a-f]*\) [0-9]*>.*/\1/p')
[ -n "$id" ] || {
    echo "! $now the tool hands out \"$payload\"" >>"$1"
    exit 1
}
id=$(printf %d "0x$id")
echo "T $now $now $id ${DELAYQ_ATTEMPT:-0} ${DELAYQ_DUE_MS:-0} 0" \
    "$DELAYQ_TICKET 0" >>"$1"
case $((${now%???} % 10)) in
0) what="n $(date +%s%6N) $DELAYQ_TICKET $id $DELAYQ_TICKET 0" code=1 ;;
1) what="b $(date +%s%6N) $DELAYQ_TICKET $id $DELAYQ_TICKET" code=9 ;;
*) what="a $(date +%s%6N) $DELAYQ_TICKET $id $DELAYQ_TICKET" code=0 ;;
esac
echo "$what" >>"$1"
exit $code
