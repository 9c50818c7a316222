/*
 * delayq -- a delay queue for the shell: offer, take, run commands, inspect.
 *
 *     $ delayq offer mails 1h30m "to: ada"
 *     1900005400000-00064404c1f1a3c05c9d2b7e1f000000
 *     $ delayq count mails --json
 *     {"queue":"mails","pending":1,"overdue":0,...}
 *     $ seq 1000000 | delayq offer numbers 5s -
 *     delayq: 1,000,000 stored
 *     $ delayq take mails --follow --timeout 5m --exec 'sendmail -t'
 *     $ delayq watch
 *
 * `delayq --help` lists the commands, `delayq COMMAND --help` explains a
 * command, and the manual page delayq(1) explains everything. The URL of the
 * server is that of --url or else of DELAYQ_URL, and redis://127.0.0.1:6379 by
 * default. README.md has the line that builds the program.
 *
 * This file has the tables of commands and options. The command line, the help
 * and the completion use these tables, and a test compares the manual with the
 * help. tool.h lists the other files.
 */
#include "tool.h"
#include <ctype.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

settings set = {
    .count = -1,
    .wait_ms = -1,
    .jobs = 1,
    .retry_ms = -1,
    .lease_ms = -1,
    .bury_on = -1,
    .interval_ms = 1000,
    .kill_after_ms = 5000,
    .io_timeout_ms = -1,
    .connect_timeout_ms = -1,
};

static int run_completion(int argc, char **argv);

/*-----------------------------------------------------------------------------
 * MARK: - Tables
 * >>tables   the commands and the options
 *---------------------------------------------------------------------------*/

/* One bit for each command. `verbs` of an option has the bits of all commands
 * that accept the option. */
enum {
    OFFER = 1,
    LOAD = 2,
    TAKE = 4,
    TICK = 8,
    ACK = 16,
    NACK = 32,
    EXTEND = 64,
    BURY = 128,
    CANCEL = 256,
    RESCHEDULE = 512,
    PEEK = 1024,
    DUMP = 2048,
    COUNT = 4096,
    LIST = 8192,
    LETTERS = 16384,
    REDRIVE = 32768,
    DROP = 65536,
    CLEAR = 131072,
    WATCH = 262144,
    COMPLETION = 524288,
    PAUSE = 1048576,
    RESUME = 2097152,
    SPOOL = 4194304,
    LOAD_SCRIPTS = 8388608,
    SCRIPTS = 16777216,
    ALL = 33554431
};

typedef struct verb {
    int bit;
    const char *name, *arguments;
    int least, most; /* limits of the number of arguments */
    int (*run)(int argc, char **argv);
    const char *brief, *more;
} verb;

#define MANY 1000

static const verb verbs[] = {
    {OFFER, "offer", "NAME DELAY [PAYLOAD|-]", 2, 3, run_offer,
     "store a payload; with -: each line of stdin",
     "DELAY is 500ms, 5s, 2m, 1h30m or 1d, or a time: @1900000000 (seconds),\n"
     "2026-11-21T15:00:00Z, or without the Z in local time. Without a PAYLOAD\n"
     "the whole input is the payload. Prints the ticket, for use with cancel.\n"
     "An empty payload is refused, except an empty line, or with --empty."},
    {LOAD, "load", "NAME", 1, 1, run_load,
     "store JSON objects from stdin, such as those of dump",
     "One per line: payload or payload_base64; delay (\"5s\"), delay_ms or\n"
     "due_ms, or due at once; key and key_ttl, replace. Fields that only\n"
     "other commands print are ignored. An unknown field ends load with 6."},
    {SPOOL, "spool", "FILE", 1, 1, run_spool,
     "send the offers that a spool keeps",
     "FILE is that of `offer --spool FILE`, and has the queue's name. Ends\n"
     "when all offers are sent, or after --retry (30s) with exit code 3.\n"
     "FILE then keeps the rest."},
    {TAKE, "take", "NAME...", 1, MANY, run_take,
     "print due items, or run a command for each",
     "Exit code 0 acks, others nack; descriptor 3: retry DELAY, bury [WHY], "
     "release."},
    {TICK, "tick", "NAME...", 1, MANY, run_tick,
     "move due items to the ready list",
     "Runs until Ctrl-C. Programs that take with delayq don't need it."},
    {ACK, "ack", "NAME TICKET", 2, 2, run_ack,
     "remove a leased item that is done",
     "The TICKET is the one that `take --lease` has printed."},
    {NACK, "nack", "NAME TICKET [DELAY]", 2, 3, run_nack,
     "deliver a leased item again",
     "Without a DELAY the item comes after a back-off, which doubles with\n"
     "each attempt (--attempt)."},
    {EXTEND, "extend", "NAME TICKET DURATION", 3, 3, run_extend,
     "change the end of a lease to DURATION from now",
     "Prints the new ticket."},
    {BURY, "bury", "NAME TICKET [WHY]", 2, 3, run_bury,
     "move a leased item to the dead letters",
     "WHY: a text of up to 200 bytes, which `dead` shows."},
    {CANCEL, "cancel", "NAME [TICKET]", 1, 2, run_cancel,
     "remove a pending item",
     "The key of its offer is kept, unless --key names it. With --key and no\n"
     "TICKET, removes the item of this key and frees the key. The key is\n"
     "freed even if the item is no longer pending (exit 1)."},
    {RESCHEDULE, "reschedule", "NAME TICKET DELAY", 3, 3, run_reschedule,
     "change when a pending item is due", "Prints the new ticket."},
    {PEEK, "peek", "NAME", 1, 1, run_peek, "list pending items",
     "Prints the ticket, the time until due, the attempts and the payload of\n"
     "pending and leased items: 10 of them, or -n."},
    {DUMP, "dump", "NAME", 1, 1, run_dump,
     "print pending and ready items as JSON, for load",
     "If an item is moved during the dump, it may be printed twice."},
    {COUNT, "count", "[NAME...]", 0, MANY, run_count,
     "count the items of these queues, or of all",
     "Without names, counts the queues that `list` finds: not a queue without\n"
     "counters that has only ready items that were never leased. Also prints\n"
     "the totals of all programs with --counters."},
    {LIST, "list", "[PATTERN]", 0, 1, run_list, "list the queues, with counts",
     "Scans all keys of the server (SCAN). A queue without counters is not\n"
     "found if it is empty, or has only ready items that were never leased."},
    {LETTERS, "dead", "NAME", 1, 1, run_dead, "list the dead letters",
     "Prints number, ticket, time of death, reason, attempts and payload of\n"
     "10 dead letters, or -n, the oldest first."},
    {REDRIVE, "redrive", "NAME [TICKET...]", 1, MANY, run_redrive,
     "make dead letters ready again",
     "Without a TICKET, all of them, or the -n oldest. `dead` prints tickets."},
    {DROP, "drop", "NAME TICKET...", 2, MANY, run_drop,
     "remove dead letters by their tickets", NULL},
    {CLEAR, "clear", "NAME", 1, 1, run_clear,
     "remove all but dead letters; asks first",
     "Removes the pending, leased and ready items, and the keys of offers.\n"
     "--dead: removes only the dead letters. --mirror: removes only elements\n"
     "of Redisson's list that are no longer pending, since Redisson would\n"
     "deliver them again. --mirror --all: removes the whole list (only if no\n"
     "Redisson is left)."},
    {PAUSE, "pause", "NAME", 1, 1, run_pause,
     "stop a queue on all machines, or resume it",
     "No program with delayq >= 0.3, on any machine, moves or takes items of\n"
     "the queue until `delayq resume NAME`. Offers and acks go on. A pause\n"
     "survives restarts. Redisson and older versions of delayq ignore it."},
    {RESUME, "resume", "NAME", 1, 1, run_resume,
     "resume a paused queue, and wake all waiting takes", NULL},
    {WATCH, "watch", "[NAME...]", 0, MANY, run_watch, "a live view, like top",
     "Without names all queues. NET/S: the growth of a queue in items per\n"
     "second. Keys: q quits; tab, arrows choose a queue; 1-5, 0 choose panes.\n"
     "Prints plain lines if the output is not a terminal."},
    {LOAD_SCRIPTS, "load-scripts", "[URL] [NAME...]", 0, MANY, run_load_scripts,
     "load scripts for devices without Lua; list them",
     "For programs that are built with DELAYQ_NO_LUA and this version. A\n"
     "server forgets the scripts when it restarts. On a cluster only the\n"
     "nodes of the named queues get them."},
    {SCRIPTS, "scripts", "", 0, 0, run_scripts,
     "list the version, name and SHA1 of each script",
     "Needs no server. EVALSHA names a script by its SHA1."},
    {COMPLETION, "completion", "bash|zsh|queues", 1, 1, run_completion,
     "print a script for the shell's completion",
     "bash: source <(delayq completion bash). zsh: write it to a file _delayq\n"
     "in a folder of $fpath. queues: prints the names for the completion."},
};

typedef enum kind { FLAG, NUMBER, DURATION, TEXT, WIRE, RETRY_ON } kind;

typedef struct flag {
    const char *name;
    char letter; /* the short option, or 0 */
    kind kind;
    size_t at; /* the offset of the value in `settings` */
    int verbs;
    const char *meta, *help;
} flag;

#define AT(field) offsetof(settings, field)

static const flag flags[] = {
    {"key", 0, TEXT, AT(key), OFFER | CANCEL, "KEY",
     "a second offer with this key stores nothing"},
    {"key-ttl", 0, DURATION, AT(key_ttl_ms), OFFER, "DURATION",
     "how long the key is remembered"},
    {"replace", 0, FLAG, AT(replace), OFFER, NULL,
     "store always; replace the first offer if pending"},
    {"empty", 0, FLAG, AT(empty), OFFER, NULL,
     "store the payload even if it is empty"},
    {"ndjson", 0, FLAG, AT(ndjson), OFFER, NULL,
     "read JSON lines as load does; DELAY is the default"},
    {"tickets", 't', FLAG, AT(tickets), OFFER | LOAD, NULL,
     "with -: print a ticket for each line"},
    {"spool", 0, TEXT, AT(spool), OFFER, "FILE",
     "keep the offer in FILE while the server is away"},
    {"retry", 0, DURATION, AT(retry_ms), OFFER | LOAD | SPOOL, "DURATION",
     "how long to retry if the server is lost"},
    {"null", '0', FLAG, AT(null), OFFER | TAKE, NULL,
     "payloads end with NUL instead of newline"},
    {"count", 'n', NUMBER, AT(count), TAKE | PEEK | LETTERS | REDRIVE | WATCH,
     "N", "the number of items; peek, dead: 0 for all"},
    {"follow", 'f', FLAG, AT(follow), TAKE, NULL,
     "until Ctrl-C, or no item for the time of --wait"},
    {"wait", 'w', DURATION, AT(wait_ms), TAKE, "DURATION",
     "how long to wait for an item, or forever"},
    {"lease", 'l', DURATION, AT(lease_ms), TAKE, "DURATION",
     "print the ticket; redeliver the item if not acked"},
    {"max-attempts", 0, NUMBER, AT(max_attempts), TAKE, "N",
     "after N attempts an item is a dead letter"},
    {"max-late", 0, DURATION, AT(max_late_ms), TAKE | REDRIVE, "DURATION",
     "items later than this become dead letters"},
    {"exec", 'x', TEXT, AT(exec), TAKE, "COMMAND",
     "run COMMAND (sh -c) with each item as its input"},
    {"jobs", 'j', NUMBER, AT(jobs), TAKE, "N",
     "run up to N commands at once (1)"},
    {"timeout", 0, DURATION, AT(timeout_ms), TAKE, "DURATION",
     "end the command after this time, and nack"},
    {"kill-after", 0, DURATION, AT(kill_after_ms), TAKE, "DURATION",
     "send SIGKILL this long after SIGTERM (5s)"},
    {"retry-on", 0, RETRY_ON, 0, TAKE, "CODE=DELAY",
     "retry in DELAY after this exit code; repeatable"},
    {"bury-on", 0, NUMBER, AT(bury_on), TAKE, "CODE",
     "after this exit code, make it a dead letter"},
    {"stats", 0, FLAG, AT(stats), TAKE, NULL,
     "at the end, print number and lateness of items"},
    {"backoff", 0, DURATION, AT(backoff_ms), TAKE | NACK, "DURATION",
     "pause after the first failure (1s); doubles"},
    {"backoff-max", 0, DURATION, AT(backoff_max_ms), TAKE | NACK, "DURATION",
     "the longest back-off (5m)"},
    {"attempt", 0, NUMBER, AT(attempt), NACK, "N",
     "the attempt number that take has printed"},
    {"release", 0, FLAG, AT(release), NACK, NULL,
     "deliver at once, and don't count the attempt"},
    {"counters", 0, FLAG, AT(counters),
     OFFER | LOAD | TAKE | TICK | ACK | NACK | BURY | CANCEL, NULL,
     "add to the totals that count and watch show"},
    {"once", 0, FLAG, AT(once), TICK, NULL, "end when no more items are due"},
    {"after", 0, TEXT, AT(after), PEEK, "TICKET", "begin after this item"},
    {"from", 0, NUMBER, AT(from), LETTERS, "N", "begin with number N (0)"},
    {"dead", 0, FLAG, AT(dead), CLEAR | DUMP, NULL, "only the dead letters"},
    {"mirror", 0, FLAG, AT(mirror), CLEAR, NULL,
     "only elements of Redisson's list, if not pending"},
    {"all", 0, FLAG, AT(all), CLEAR, NULL, "with --mirror: the whole list"},
    {"yes", 'y', FLAG, AT(yes), CLEAR, NULL, "don't ask"},
    {"prometheus", 0, FLAG, AT(prometheus), COUNT, NULL,
     "print Prometheus' text format"},
    {"interval", 'i', DURATION, AT(interval_ms), WATCH, "DURATION",
     "time between two updates (1s)"},
    {"json", 0, FLAG, AT(json), ALL, NULL, "one JSON object per line"},
    {"quiet", 'q', FLAG, AT(quiet), ALL, NULL,
     "print no tickets, progress, transient faults"},
    {"url", 'u', TEXT, AT(url), ALL, "URL",
     "the server (DELAYQ_URL, or redis://127.0.0.1:6379)"},
    {"wire", 0, WIRE, AT(wire), ALL, "WIRE",
     "native, redisson (>= 3.21.1) or redisson-old"},
    {"tls-ca", 0, TEXT, AT(tls_ca), ALL, "FILE", "certificates to trust"},
    {"tls-cert", 0, TEXT, AT(tls_cert), ALL, "FILE",
     "this program's certificate"},
    {"tls-key", 0, TEXT, AT(tls_key), ALL, "FILE", "its private key"},
    {"io-timeout", 0, DURATION, AT(io_timeout_ms), ALL, "DURATION",
     "how long a call may take (3s)"},
    {"connect-timeout", 0, DURATION, AT(connect_timeout_ms), ALL, "DURATION",
     "how long opening may take (2s, or --io-timeout)"},
    {"help", 'h', FLAG, AT(help), ALL, NULL, "print this text"},
    {"version", 'V', FLAG, AT(version), ALL, NULL, "print the version"},
};

#define VERBS (sizeof verbs / sizeof verbs[0])
#define FLAGS (sizeof flags / sizeof flags[0])

/*-----------------------------------------------------------------------------
 * MARK: - Help
 * >>help   the output of --help, at most 24 lines of 80 columns
 *---------------------------------------------------------------------------*/

static void show_help(FILE *to) {
    size_t i;
    fputs("usage: delayq COMMAND [OPTION...] NAME [ARGUMENT...]; COMMAND "
          "--help says more\n",
          to);
    for (i = 0; i < VERBS; i++) {
        char what[64];
        /* these are shown with load, redrive, pause and load-scripts */
        if (verbs[i].bit & (SPOOL | DROP | RESUME | SCRIPTS)) continue;
        snprintf(what, sizeof what, "%s%s %s", verbs[i].name,
                 verbs[i].bit == PAUSE          ? ", resume"
                 : verbs[i].bit == LOAD         ? ", spool"
                 : verbs[i].bit == REDRIVE      ? ", drop"
                 : verbs[i].bit == LOAD_SCRIPTS ? ", scripts"
                                                : "",
                 verbs[i].bit == LOAD           ? "NAME, FILE"
                 : verbs[i].bit == REDRIVE      ? "NAME TICKET..."
                 : verbs[i].bit == LOAD_SCRIPTS ? ""
                                                : verbs[i].arguments);
        fprintf(to, "  %-28s %s\n", what,
                verbs[i].bit == LOAD ? "store what dump prints, or send a spool"
                : verbs[i].bit == REDRIVE
                    ? "make dead letters ready again, or remove them"
                    : verbs[i].brief);
    }
    fputs("Server: --url or DELAYQ_URL. Exit: 0 done, 1 nothing, 2 usage, "
          "3 no server,\n4 refused, 5 unknown, 6 can't read or write, 7 --exec "
          "failed, 128+n signal n.\n",
          to);
}

/* Show the options of a command, except those that all commands have. If `bit`
 * is ALL, show the options that all commands have. */
static void each_flag(int bit, void (*show)(const flag *f)) {
    size_t i;
    for (i = 0; i < FLAGS; i++)
        if (bit == ALL ? flags[i].verbs == ALL
                       : flags[i].verbs != ALL && flags[i].verbs & bit)
            show(&flags[i]);
}

static void help_flag(const flag *f) {
    char text[40], letter[8] = "    ";
    if (f->letter) snprintf(letter, sizeof letter, "-%c, ", f->letter);
    snprintf(text, sizeof text, "%s--%s%s%s", letter, f->name,
             f->meta ? " " : "", f->meta ? f->meta : "");
    printf("  %-26s %s\n", text, f->help);
}

static void show_verb_help(const verb *v) {
    printf("usage: delayq %s [OPTION...] %s\n\n%c%s.\n", v->name, v->arguments,
           toupper((unsigned char)v->brief[0]), v->brief + 1);
    if (v->more) puts(v->more);
    putchar('\n');
    each_flag(v->bit, help_flag);
    puts("All: --json --quiet --url URL --wire WIRE --tls-ca --tls-cert "
         "--tls-key FILE\n"
         "     --io-timeout --connect-timeout DURATION");
}

/*-----------------------------------------------------------------------------
 * MARK: - Completion
 * >>completion   for bash and zsh
 *---------------------------------------------------------------------------*/

static void bash_flag(const flag *f) {
    printf(" --%s", f->name);
    if (f->letter) printf(" -%c", f->letter);
}

static void bash_value(const flag *f) {
    const char *words = f->kind == WIRE ? "-W 'native redisson redisson-old'"
                        : f->meta && strcmp(f->meta, "FILE") == 0    ? "-f"
                        : f->meta && strcmp(f->meta, "COMMAND") == 0 ? "-c"
                        : f->kind != FLAG                            ? "-W ''"
                                                                     : NULL;
    if (!words) return;
    printf("    --%s", f->name);
    if (f->letter) printf(" | -%c", f->letter);
    printf(") COMPREPLY=($(compgen %s -- \"$word\")); return ;;\n", words);
}

static void bash_completion(void) {
    size_t i;
    fputs("# bash completion for delayq, by `delayq completion bash`\n"
          "_delayq() {\n"
          "    local word=${COMP_WORDS[COMP_CWORD]} verb= i words\n"
          "    local all='",
          stdout);
    each_flag(ALL, bash_flag);
    puts("'\n"
         "    COMPREPLY=()\n"
         "    for ((i = 1; i < COMP_CWORD; i++)); do\n"
         "        case ${COMP_WORDS[i]} in\n"
         "        -u | --url | --wire | --tls-* | --*-timeout) ((i++)) ;;\n"
         "        -*) ;;\n"
         "        *) verb=${COMP_WORDS[i]}; break ;;\n"
         "        esac\n"
         "    done\n"
         "    case ${COMP_WORDS[COMP_CWORD - 1]} in");
    for (i = 0; i < FLAGS; i++) bash_value(&flags[i]);
    puts("    esac\n"
         "    case $verb in");
    for (i = 0; i < VERBS; i++) {
        printf("    %s) words=\"", verbs[i].name);
        each_flag(verbs[i].bit, bash_flag);
        puts("$all\" ;;");
    }
    fputs("    *) words=\"", stdout);
    for (i = 0; i < VERBS; i++) printf(" %s", verbs[i].name);
    puts("\" ;;\n"
         "    esac\n"
         "    if [[ $verb == completion ]]; then\n"
         "        words='bash zsh'\n"
         "    elif [[ -n $verb && $word != -* ]]; then\n"
         "        words=$(\"${COMP_WORDS[0]}\" completion queues 2>/dev/null)\n"
         "    fi\n"
         "    local IFS=$' \\t\\n'\n"
         "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
         "}\n"
         "complete -F _delayq delayq");
}

/* Print a text, escaped for the form '...[...]' of zsh's _arguments. */
static void zsh_text(const char *s) {
    for (; *s; s++) {
        if (*s == '\'')
            fputs("'\\''", stdout);
        else if (strchr("[]:\\", *s))
            printf("\\%c", *s);
        else
            putchar(*s);
    }
}

static void zsh_flag(const flag *f) {
    int more = f->kind == RETRY_ON;
    printf("        %s'", more ? "'*'" : "");
    if (f->letter)
        printf("(-%c --%s)'{-%c,--%s}'", f->letter, f->name, f->letter,
               f->name);
    else
        printf("--%s", f->name);
    putchar('[');
    zsh_text(f->help);
    putchar(']');
    if (f->kind == WIRE)
        fputs(":fleet:(native redisson redisson-old)", stdout);
    else if (f->meta && strcmp(f->meta, "FILE") == 0)
        fputs(":file:_files", stdout);
    else if (f->meta && strcmp(f->meta, "COMMAND") == 0)
        fputs(":command:_command_names -e", stdout);
    else if (f->meta)
        printf(":%s:", f->meta);
    puts("'");
}

static void zsh_completion(void) {
    size_t i;
    puts("#compdef delayq\n"
         "# zsh completion for delayq, by `delayq completion zsh`\n"
         "_delayq_queues() {\n"
         "    local -a queues\n"
         "    queues=(${(f)\"$(_call_program queues $program completion "
         "queues 2>/dev/null)\"})\n"
         "    compadd -a queues\n"
         "}\n"
         "_delayq() {\n"
         "    local curcontext=$curcontext state line program=$words[1]\n"
         "    local -a verbs options all\n"
         "    verbs=(");
    for (i = 0; i < VERBS; i++) {
        printf("        '%s:", verbs[i].name);
        zsh_text(verbs[i].brief);
        puts("'");
    }
    puts("    )\n"
         "    all=(");
    each_flag(ALL, zsh_flag);
    puts("    )\n"
         "    _arguments -C '1: :->verb' '*:: :->rest'\n"
         "    if [[ $state == verb ]]; then\n"
         "        _describe command verbs\n"
         "        return\n"
         "    fi\n"
         "    case $line[1] in");
    for (i = 0; i < VERBS; i++) {
        printf("    %s) options=(\n", verbs[i].name);
        each_flag(verbs[i].bit, zsh_flag);
        puts("    ) ;;");
    }
    puts("    esac\n"
         "    case $line[1] in\n"
         "    completion) _arguments $options $all '1:shell:(bash zsh)' ;;\n"
         "    *) _arguments $options $all '*:queue:_delayq_queues' ;;\n"
         "    esac\n"
         "}\n"
         "_delayq \"$@\"");
}

static int run_completion(int argc, char **argv) {
    (void)argc;
    if (strcmp(argv[0], "bash") == 0) {
        bash_completion();
    } else if (strcmp(argv[0], "zsh") == 0) {
        zsh_completion();
    } else if (strcmp(argv[0], "queues") == 0) {
        size_t count, i;
        int code;
        char **found;
        set.io_timeout_ms = 1000; /* a user waits for the completion */
        set.quiet = 1;
        found = find_queues(NULL, &count, &code);
        for (i = 0; found && i < count; i++) {
            char name[600]; /* control characters must not reach a terminal */
            preview(found[i], strlen(found[i]), name, sizeof name);
            if (strcmp(name, found[i]) == 0) puts(name);
            free(found[i]);
        }
        free(found);
        return code;
    } else {
        return usage("completion: bash, zsh or queues");
    }
    return DONE;
}

/*-----------------------------------------------------------------------------
 * MARK: - Options
 * >>options   reading the command line
 *---------------------------------------------------------------------------*/

static int read_number(const char *s, int64_t *number) {
    size_t len = strlen(s);
    if (len < 1 || len > 15 || strspn(s, "0123456789") != len) return 0;
    *number = strtoll(s, NULL, 10);
    return 1;
}

static int read_wire(const char *s, int64_t *wire) {
    static const char *const wires[] = {"native", "redisson", "redisson-old"};
    for (*wire = 0; *wire < 3; ++*wire)
        if (strcmp(s, wires[*wire]) == 0) return 1;
    return 0;
}

/* Read a value of --retry-on such as "75=10m". Returns 1 if it is valid. */
static int read_retry_on(const char *s) {
    const char *at = strchr(s, '=');
    int64_t code, delay_ms;
    char number[8];
    if (!at || (size_t)(at - s) >= sizeof number ||
        set.retry_ons == MAX_RETRY_ON)
        return 0;
    memcpy(number, s, (size_t)(at - s));
    number[at - s] = '\0';
    if (!read_number(number, &code) || code < 1 || code > 255 ||
        !read_duration(at + 1, &delay_ms) || delay_ms == FOREVER)
        return 0;
    set.retry_on[set.retry_ons].code = (int)code;
    set.retry_on[set.retry_ons++].delay_ms = delay_ms;
    return 1;
}

/* Set an option to a value. Returns 1 if the value is valid. */
static int set_flag(const flag *f, const char *value) {
    void *at = (char *)&set + f->at;
    switch (f->kind) {
    case FLAG: *(int *)at = 1; return 1;
    case NUMBER: return read_number(value, (int64_t *)at);
    case DURATION:
        return read_duration(value, (int64_t *)at) &&
               (*(int64_t *)at != FOREVER || strcmp(f->name, "wait") == 0);
    case TEXT: *(const char **)at = value; return 1;
    case WIRE: return read_wire(value, (int64_t *)at);
    case RETRY_ON: return read_retry_on(value);
    }
    return 0;
}

#define FIRST_FLAG 1000 /* getopt_long's result for flags[0] */

/* Returns the option for a result of getopt_long. */
static const flag *flag_of(int c) {
    size_t i;
    if (c >= FIRST_FLAG && c < FIRST_FLAG + (int)FLAGS)
        return &flags[c - FIRST_FLAG];
    for (i = 0; i < FLAGS; i++)
        if (c > 0 && flags[i].letter == c) return &flags[i];
    return NULL;
}

/* Report why getopt_long has refused an option. Returns USAGE. */
static int bad_option(const verb *v, int c, char **argv) {
    const flag *f = flag_of(optopt);
    const char *name = v ? v->name : "delayq";
    char letter[3] = "-?";
    letter[1] = (char)optopt;
    if (c == ':' && optopt >= FIRST_FLAG)
        return usage("--%s: a value is missing", f->name);
    if (c == ':') return usage("%s: a value is missing", letter);
    if (optopt >= FIRST_FLAG) return usage("--%s takes no value", f->name);
    if (optopt > 0 && optopt < 256)
        return usage("%s has no option %s", name, letter);
    return usage("%s has no option %s", name, argv[optind - 1]);
}

/* Read the options into `set`, and move the other words to the end. `v` is NULL
 * for the options before the command. Returns the index of the first other
 * word, or -1 after a reported fault. */
static int read_flags(const verb *v, int argc, char **argv) {
    struct option longs[FLAGS + 1];
    char shorts[3 * FLAGS + 4];
    size_t i, n = 0, k = 0;
    int c;
    if (!v) shorts[k++] = '+'; /* stop at the command */
    shorts[k++] = ':';
    for (i = 0; i < FLAGS; i++) {
        if (v ? !(flags[i].verbs & v->bit) : flags[i].verbs != ALL) continue;
        longs[n].name = flags[i].name;
        longs[n].has_arg = flags[i].kind != FLAG;
        longs[n].flag = NULL;
        longs[n++].val = FIRST_FLAG + (int)i;
        if (flags[i].letter) shorts[k++] = flags[i].letter;
        if (flags[i].letter && flags[i].kind != FLAG) shorts[k++] = ':';
    }
    memset(&longs[n], 0, sizeof longs[n]);
    shorts[k] = '\0';
    opterr = 0;
#ifdef __GLIBC__
    optind = 0;
#else
    optind = 1;
#if defined(__APPLE__) || defined(__FreeBSD__) || defined(__NetBSD__) || \
    defined(__OpenBSD__) || defined(__DragonFly__)
    optreset = 1;
#endif
#endif
    while ((c = getopt_long(argc, argv, shorts, longs, NULL)) != -1) {
        const flag *f = flag_of(c);
        if (c == '?' || c == ':' || !f) {
            bad_option(v, c, argv);
            return -1;
        }
        if (set_flag(f, optarg)) continue;
        if (c >= FIRST_FLAG)
            usage("--%s %s: not a %s", f->name, optarg, f->meta);
        else
            usage("-%c %s: not a %s", c, optarg, f->meta);
        return -1;
    }
    return optind;
}

/*-----------------------------------------------------------------------------
 * MARK: - Main
 * >>main   from the command line to an exit code
 *---------------------------------------------------------------------------*/

static const verb *find_verb(const char *name) {
    size_t i;
    for (i = 0; i < VERBS; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

/* Open the descriptors 0, 1 and 2 if they are closed. Otherwise a socket could
 * get one of these numbers, and the program's output would be sent to it. */
static void keep_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd < 3);
    if (fd >= 0) close(fd);
}

/* Returns 1 if the library accepts the time limits. */
static int good_limits(void) {
    const char *wrong =
        set.io_timeout_ms == 0 || set.io_timeout_ms > 3600000 ? "--io-timeout"
        : set.connect_timeout_ms == 0 || set.connect_timeout_ms > 3600000
            ? "--connect-timeout"
            : NULL;
    if (wrong) usage("%s: 1ms to 1h", wrong);
    return wrong == NULL;
}

static int run(const verb *v, int argc, char **argv) {
    int first = read_flags(v, argc, argv), n = argc - first, code = DONE;
    if (first < 0) return USAGE;
    if (set.version) {
        puts("delayq " DELAYQ_VERSION);
    } else if (set.help) {
        show_verb_help(v);
    } else if (n < v->least) {
        return usage("%s: an argument is missing: %s", v->name, v->arguments);
    } else if (n > v->most) {
        return usage("%s: too many arguments: %s", v->name, v->arguments);
    } else if (!good_limits()) {
        return USAGE;
    } else {
        code = v->run(n, argv + first);
        close_all();
        /* If an offer is stored and its ticket can't be printed, this is not a
         * failure, because a script that retries would store the offer
         * twice. */
        if (v->bit & (OFFER | LOAD)) return code;
    }
    return written() || code == BROKEN ? code : broken();
}

int main(int argc, char **argv) {
    const verb *v;
    int i;
    keep_standard_files();
    prepare_signals();
    use_locale();
    set.url = getenv("DELAYQ_URL");
    if (set.url && !*set.url) set.url = NULL;
    /* options that all commands have may precede the command */
    i = read_flags(NULL, argc, argv);
    if (i < 0) return USAGE;
    if (i < argc && strcmp(argv[i], "help") == 0) set.help = 1, i++;
    if (i == argc) {
        if (set.version)
            puts("delayq " DELAYQ_VERSION);
        else
            show_help(set.help ? stdout : stderr);
        if (!set.version && !set.help) return USAGE;
        return written() ? DONE : broken();
    }
    v = find_verb(argv[i]);
    if (!v) return usage("no such command: %s", argv[i]);
    return run(v, argc - i, argv + i);
}
