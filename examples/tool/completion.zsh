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
        'offer:store a payload; with -\: each line of stdin'
        'load:store JSON objects from stdin, such as those of dump'
        'spool:send the offers that a spool keeps'
        'take:print due items, or run a command for each'
        'tick:move due items to the ready list'
        'ack:remove a leased item that is done'
        'nack:deliver a leased item again'
        'extend:change the end of a lease to DURATION from now'
        'bury:move a leased item to the dead letters'
        'cancel:remove a pending item'
        'reschedule:change when a pending item is due'
        'peek:list pending items'
        'dump:print pending and ready items as JSON, for load'
        'count:count the items of these queues, or of all'
        'list:list the queues, with counts'
        'dead:list the dead letters'
        'redrive:make dead letters ready again'
        'drop:remove dead letters by their tickets'
        'clear:remove all but dead letters; asks first'
        'pause:stop a queue on all machines, or resume it'
        'resume:resume a paused queue, and wake all waiting takes'
        'watch:a live view, like top'
        'load-scripts:load scripts for devices without Lua; list them'
        'scripts:list the version, name and SHA1 of each script'
        'completion:print a script for the shell'\''s completion'
    )
    all=(
        '--json[one JSON object per line]'
        '(-q --quiet)'{-q,--quiet}'[print no tickets, progress, transient faults]'
        '(-u --url)'{-u,--url}'[the server (DELAYQ_URL, or redis\://127.0.0.1\:6379)]:URL:'
        '--wire[native, redisson (>= 3.21.1) or redisson-old]:fleet:(native redisson redisson-old)'
        '--tls-ca[certificates to trust]:file:_files'
        '--tls-cert[this program'\''s certificate]:file:_files'
        '--tls-key[its private key]:file:_files'
        '--io-timeout[how long a call may take (3s)]:DURATION:'
        '--connect-timeout[how long opening may take (2s, or --io-timeout)]:DURATION:'
        '(-h --help)'{-h,--help}'[print this text]'
        '(-V --version)'{-V,--version}'[print the version]'
    )
    _arguments -C '1: :->verb' '*:: :->rest'
    if [[ $state == verb ]]; then
        _describe command verbs
        return
    fi
    case $line[1] in
    offer) options=(
        '--key[a second offer with this key stores nothing]:KEY:'
        '--key-ttl[how long the key is remembered]:DURATION:'
        '--replace[store always; replace the first offer if pending]'
        '--empty[store the payload even if it is empty]'
        '--ndjson[read JSON lines as load does; DELAY is the default]'
        '(-t --tickets)'{-t,--tickets}'[with -\: print a ticket for each line]'
        '--spool[keep the offer in FILE while the server is away]:file:_files'
        '--retry[how long to retry if the server is lost]:DURATION:'
        '(-0 --null)'{-0,--null}'[payloads end with NUL instead of newline]'
        '--counters[add to the totals that count and watch show]'
    ) ;;
    load) options=(
        '(-t --tickets)'{-t,--tickets}'[with -\: print a ticket for each line]'
        '--retry[how long to retry if the server is lost]:DURATION:'
        '--counters[add to the totals that count and watch show]'
    ) ;;
    spool) options=(
        '--retry[how long to retry if the server is lost]:DURATION:'
    ) ;;
    take) options=(
        '(-0 --null)'{-0,--null}'[payloads end with NUL instead of newline]'
        '(-n --count)'{-n,--count}'[the number of items; peek, dead\: 0 for all]:N:'
        '(-f --follow)'{-f,--follow}'[until Ctrl-C, or no item for the time of --wait]'
        '(-w --wait)'{-w,--wait}'[how long to wait for an item, or forever]:DURATION:'
        '(-l --lease)'{-l,--lease}'[print the ticket; redeliver the item if not acked]:DURATION:'
        '--max-attempts[after N attempts an item is a dead letter]:N:'
        '--max-late[items later than this become dead letters]:DURATION:'
        '(-x --exec)'{-x,--exec}'[run COMMAND (sh -c) with each item as its input]:command:_command_names -e'
        '(-j --jobs)'{-j,--jobs}'[run up to N commands at once (1)]:N:'
        '--timeout[end the command after this time, and nack]:DURATION:'
        '--kill-after[send SIGKILL this long after SIGTERM (5s)]:DURATION:'
        '*''--retry-on[retry in DELAY after this exit code; repeatable]:CODE=DELAY:'
        '--bury-on[after this exit code, make it a dead letter]:CODE:'
        '--stats[at the end, print number and lateness of items]'
        '--backoff[pause after the first failure (1s); doubles]:DURATION:'
        '--backoff-max[the longest back-off (5m)]:DURATION:'
        '--counters[add to the totals that count and watch show]'
    ) ;;
    tick) options=(
        '--counters[add to the totals that count and watch show]'
        '--once[end when no more items are due]'
    ) ;;
    ack) options=(
        '--counters[add to the totals that count and watch show]'
    ) ;;
    nack) options=(
        '--backoff[pause after the first failure (1s); doubles]:DURATION:'
        '--backoff-max[the longest back-off (5m)]:DURATION:'
        '--attempt[the attempt number that take has printed]:N:'
        '--release[deliver at once, and don'\''t count the attempt]'
        '--counters[add to the totals that count and watch show]'
    ) ;;
    extend) options=(
    ) ;;
    bury) options=(
        '--counters[add to the totals that count and watch show]'
    ) ;;
    cancel) options=(
        '--key[a second offer with this key stores nothing]:KEY:'
        '--counters[add to the totals that count and watch show]'
    ) ;;
    reschedule) options=(
    ) ;;
    peek) options=(
        '(-n --count)'{-n,--count}'[the number of items; peek, dead\: 0 for all]:N:'
        '--after[begin after this item]:TICKET:'
    ) ;;
    dump) options=(
        '--dead[only the dead letters]'
    ) ;;
    count) options=(
        '--prometheus[print Prometheus'\'' text format]'
    ) ;;
    list) options=(
    ) ;;
    dead) options=(
        '(-n --count)'{-n,--count}'[the number of items; peek, dead\: 0 for all]:N:'
        '--from[begin with number N (0)]:N:'
    ) ;;
    redrive) options=(
        '(-n --count)'{-n,--count}'[the number of items; peek, dead\: 0 for all]:N:'
        '--max-late[items later than this become dead letters]:DURATION:'
    ) ;;
    drop) options=(
    ) ;;
    clear) options=(
        '--dead[only the dead letters]'
        '--mirror[only elements of Redisson'\''s list, if not pending]'
        '--all[with --mirror\: the whole list]'
        '(-y --yes)'{-y,--yes}'[don'\''t ask]'
    ) ;;
    pause) options=(
    ) ;;
    resume) options=(
    ) ;;
    watch) options=(
        '(-n --count)'{-n,--count}'[the number of items; peek, dead\: 0 for all]:N:'
        '(-i --interval)'{-i,--interval}'[time between two updates (1s)]:DURATION:'
    ) ;;
    load-scripts) options=(
    ) ;;
    scripts) options=(
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
