# bash completion for delayq, by `delayq completion bash`
_delayq() {
    local word=${COMP_WORDS[COMP_CWORD]} verb= i words
    local all=' --json --quiet -q --url -u --wire --tls-ca --tls-cert --tls-key --io-timeout --connect-timeout --help -h --version -V'
    COMPREPLY=()
    for ((i = 1; i < COMP_CWORD; i++)); do
        case ${COMP_WORDS[i]} in
        -u | --url | --wire | --tls-* | --*-timeout) ((i++)) ;;
        -*) ;;
        *) verb=${COMP_WORDS[i]}; break ;;
        esac
    done
    case ${COMP_WORDS[COMP_CWORD - 1]} in
    --key) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --key-ttl) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --spool) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --retry) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --count | -n) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --wait | -w) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --lease | -l) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --max-attempts) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --max-late) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --exec | -x) COMPREPLY=($(compgen -c -- "$word")); return ;;
    --jobs | -j) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --timeout) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --kill-after) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --retry-on) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --bury-on) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --backoff) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --backoff-max) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --attempt) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --after) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --from) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --interval | -i) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --url | -u) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --wire) COMPREPLY=($(compgen -W 'native redisson redisson-old' -- "$word")); return ;;
    --tls-ca) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --tls-cert) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --tls-key) COMPREPLY=($(compgen -f -- "$word")); return ;;
    --io-timeout) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    --connect-timeout) COMPREPLY=($(compgen -W '' -- "$word")); return ;;
    esac
    case $verb in
    offer) words=" --key --key-ttl --replace --empty --ndjson --tickets -t --spool --retry --null -0 --counters$all" ;;
    load) words=" --tickets -t --retry --counters$all" ;;
    spool) words=" --retry$all" ;;
    take) words=" --null -0 --count -n --follow -f --wait -w --lease -l --max-attempts --max-late --exec -x --jobs -j --timeout --kill-after --retry-on --bury-on --stats --backoff --backoff-max --counters$all" ;;
    tick) words=" --counters --once$all" ;;
    ack) words=" --counters$all" ;;
    nack) words=" --backoff --backoff-max --attempt --release --counters$all" ;;
    extend) words="$all" ;;
    bury) words=" --counters$all" ;;
    cancel) words=" --key --counters$all" ;;
    reschedule) words="$all" ;;
    peek) words=" --count -n --after$all" ;;
    dump) words=" --dead$all" ;;
    count) words=" --prometheus$all" ;;
    list) words="$all" ;;
    dead) words=" --count -n --from$all" ;;
    redrive) words=" --count -n --max-late$all" ;;
    drop) words="$all" ;;
    clear) words=" --dead --mirror --all --yes -y$all" ;;
    pause) words="$all" ;;
    resume) words="$all" ;;
    watch) words=" --count -n --interval -i$all" ;;
    load-scripts) words="$all" ;;
    scripts) words="$all" ;;
    completion) words="$all" ;;
    *) words=" offer load spool take tick ack nack extend bury cancel reschedule peek dump count list dead redrive drop clear pause resume watch load-scripts scripts completion" ;;
    esac
    if [[ $verb == completion ]]; then
        words='bash zsh'
    elif [[ -n $verb && $word != -* ]]; then
        words=$("${COMP_WORDS[0]}" completion queues 2>/dev/null)
    fi
    local IFS=$' \t\n'
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -F _delayq delayq
