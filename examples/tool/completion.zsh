#compdef delayq
# zsh completion for delayq, by `delayq completion zsh`
_delayq_queues() {
    local -a queues
    queues=(${(f)"$(_call_program queues $program completion queues 2>/dev/null)"})
    compadd -a queues
}
_delayq() {
    local curcontext=$curcontext state line program=$words[1]
    local -a verbs options all
    verbs=(
        'offer:hand in a payload; -\: one a line from stdin'
        'load:hand in JSON objects from stdin, as dump prints'
        'take:print due items, or run a command for each'
        'tick:move due items, for others to take'
        'ack:done with a leased item'
        'nack:not done\: deliver a leased item again'
        'extend:change the end of a lease to DURATION from now'
        'bury:move a leased item to the dead letters'
        'cancel:remove a pending item'
        'reschedule:change when a pending item is due'
        'peek:list pending items'
        'dump:print pending and ready items as JSON, for load'
        'count:count the items; without names of all queues'
        'list:list the queues, with counts'
        'dead:list the dead letters'
        'redrive:make dead letters ready again'
        'drop:remove dead letters by their tickets'
        'clear:remove all but dead letters; asks first'
        'watch:a live view, like top'
        'completion:print a script for the shell'\''s completion'
    )
    all=(
        '--json[one JSON object per line]'
        '(-q --quiet)'{-q,--quiet}'[say less]'
        '(-u --url)'{-u,--url}'[the server; else DELAYQ_URL, else redis\://127.0.0.1\:6379]:URL:'
        '--wire[native, redisson (>= 3.21.1) or redisson-old]:fleet:(native redisson redisson-old)'
        '--tls-ca[certificates to trust]:file:_files'
        '--tls-cert[our certificate]:file:_files'
        '--tls-key[and its key]:file:_files'
        '(-h --help)'{-h,--help}'[this text]'
        '(-V --version)'{-V,--version}'[the version]'
    )
    _arguments -C '1: :->verb' '*:: :->rest'
    if [[ $state == verb ]]; then
        _describe command verbs
        return
    fi
    case $line[1] in
    offer) options=(
        '--key[another offer with KEY stores nothing (exit 1)]:KEY:'
        '--key-ttl[how long the key is remembered]:DURATION:'
        '--replace[replace the first offer, or store it if it is gone]'
        '--ndjson[an object per line, see load; DELAY if it has none]'
        '(-t --tickets)'{-t,--tickets}'[print a ticket per line, too, with -]'
        '--retry[how long to try again if the server is lost]:DURATION:'
        '(-0 --null)'{-0,--null}'[NUL instead of newline ends a payload]'
        '--counters[count in Redis what this does, see count]'
    ) ;;
    load) options=(
        '(-t --tickets)'{-t,--tickets}'[print a ticket per line, too, with -]'
        '--retry[how long to try again if the server is lost]:DURATION:'
        '--counters[count in Redis what this does, see count]'
    ) ;;
    take) options=(
        '(-0 --null)'{-0,--null}'[NUL instead of newline ends a payload]'
        '(-n --count)'{-n,--count}'[how many; peek, dead\: 0 for all]:N:'
        '(-f --follow)'{-f,--follow}'[go on until Ctrl-C, or for --wait without an item]'
        '(-w --wait)'{-w,--wait}'[how long to wait for an item, or forever]:DURATION:'
        '(-l --lease)'{-l,--lease}'[print the ticket, too; unacked it comes again]:DURATION:'
        '--max-attempts[after N attempts to the dead letters]:N:'
        '(-x --exec)'{-x,--exec}'[run it for each item, by sh -c; its input]:command:_command_names -e'
        '(-j --jobs)'{-j,--jobs}'[run up to N commands at once (1)]:N:'
        '--timeout[then SIGTERM ends the command; nacked]:DURATION:'
        '--kill-after[and so much later SIGKILL (5s)]:DURATION:'
        '*''--retry-on[that exit code\: again in DELAY; may be repeated]:CODE=DELAY:'
        '--bury-on[that exit code\: to the dead letters]:CODE:'
        '--stats[print at the end how many were taken, how late]'
        '--backoff[after the first failure (1s), doubled for each]:DURATION:'
        '--backoff-max[the longest back-off (5m)]:DURATION:'
        '--counters[count in Redis what this does, see count]'
    ) ;;
    tick) options=(
        '--counters[count in Redis what this does, see count]'
        '--once[end when nothing more is due]'
    ) ;;
    ack) options=(
        '--counters[count in Redis what this does, see count]'
    ) ;;
    nack) options=(
        '--backoff[after the first failure (1s), doubled for each]:DURATION:'
        '--backoff-max[the longest back-off (5m)]:DURATION:'
        '--attempt[the attempt that take has printed]:N:'
        '--release[deliver at once, don'\''t count this attempt]'
        '--counters[count in Redis what this does, see count]'
    ) ;;
    extend) options=(
    ) ;;
    bury) options=(
        '--counters[count in Redis what this does, see count]'
    ) ;;
    cancel) options=(
        '--key[another offer with KEY stores nothing (exit 1)]:KEY:'
        '--counters[count in Redis what this does, see count]'
    ) ;;
    reschedule) options=(
    ) ;;
    peek) options=(
        '(-n --count)'{-n,--count}'[how many; peek, dead\: 0 for all]:N:'
        '--after[begin behind this item]:TICKET:'
    ) ;;
    dump) options=(
        '--dead[only the dead letters]'
    ) ;;
    count) options=(
        '--prometheus[in Prometheus'\'' text format]'
    ) ;;
    list) options=(
    ) ;;
    dead) options=(
        '(-n --count)'{-n,--count}'[how many; peek, dead\: 0 for all]:N:'
        '--from[begin with number N (0)]:N:'
    ) ;;
    redrive) options=(
        '(-n --count)'{-n,--count}'[how many; peek, dead\: 0 for all]:N:'
    ) ;;
    drop) options=(
    ) ;;
    clear) options=(
        '--dead[only the dead letters]'
        '(-y --yes)'{-y,--yes}'[don'\''t ask]'
    ) ;;
    watch) options=(
        '(-n --count)'{-n,--count}'[how many; peek, dead\: 0 for all]:N:'
        '(-i --interval)'{-i,--interval}'[between two updates (1s)]:DURATION:'
    ) ;;
    completion) options=(
    ) ;;
    esac
    case $line[1] in
    completion) _arguments $options $all '1:shell:(bash zsh)' ;;
    *) _arguments $options $all '*:queue:_delayq_queues' ;;
    esac
}
_delayq "$@"
