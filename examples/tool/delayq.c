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
 * `delayq --help` lists the commands, `delayq COMMAND --help` says more, and
 * the manual page delayq(1) all. The server is DELAYQ_URL, or --url, or
 * redis://127.0.0.1:6379. README.md has the line that builds it.
 *
 * This file has the tables of commands and options: the command line, help and
 * completion are made from them, and a test compares the manual with them.
 * tool.h says what the other files are.
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
};

static int run_completion(int argc, char **argv);

/*-----------------------------------------------------------------------------
 * MARK: - Tables
 * >>tables   the commands and the options
 *---------------------------------------------------------------------------*/

/* Which commands an option is for. */
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
    ALL = 1048575
};

typedef struct verb {
    int bit;
    const char *name, *arguments;
    int least, most; /* arguments */
    int (*run)(int argc, char **argv);
    const char *brief, *more;
} verb;

#define MANY 1000

static const verb verbs[] = {
    {OFFER, "offer", "NAME DELAY [PAYLOAD|-]", 2, 3, run_offer,
     "hand in a payload; -: one a line from stdin",
     "DELAY is 500ms, 5s, 2m, 1h30m or 1d, or a time: @1900000000 (seconds),\n"
     "2026-11-21T15:00:00Z, or without the Z in local time. Without a PAYLOAD\n"
     "all of the input is one. Prints the ticket, which cancel takes."},
    {LOAD, "load", "NAME", 1, 1, run_load,
     "hand in JSON objects from stdin, as dump prints",
     "One a line: payload or payload_base64; delay (\"5s\"), delay_ms, due_ms\n"
     "(else it is due at once); key and key_ttl, replace. Others are ignored."},
    {TAKE, "take", "NAME...", 1, MANY, run_take,
     "print due items, or run a command for each",
     "Of several queues the first goes first. With --exec exit code 0 acks,\n"
     "others nack; or a line on descriptor 3: retry DELAY, bury, release. Set\n"
     "are DELAYQ_NAME, _TICKET, _ATTEMPT, _DUE_MS, _LATE_MS."},
    {TICK, "tick", "NAME...", 1, MANY, run_tick,
     "move due items, for others to take",
     "Runs until Ctrl-C. Programs that take with delayq don't need it."},
    {ACK, "ack", "NAME TICKET", 2, 2, run_ack, "done with a leased item",
     "Removes an item that `take --lease` handed out."},
    {NACK, "nack", "NAME TICKET [DELAY]", 2, 3, run_nack,
     "not done: deliver a leased item again",
     "Without a DELAY: a back-off that doubles with --attempt."},
    {EXTEND, "extend", "NAME TICKET DURATION", 3, 3, run_extend,
     "change the end of a lease to DURATION from now",
     "Prints the new ticket."},
    {BURY, "bury", "NAME TICKET", 2, 2, run_bury,
     "move a leased item to the dead letters", NULL},
    {CANCEL, "cancel", "NAME TICKET", 2, 2, run_cancel, "remove a pending item",
     "A key that it was offered with is kept, unless it is named."},
    {RESCHEDULE, "reschedule", "NAME TICKET DELAY", 3, 3, run_reschedule,
     "change when a pending item is due", "Prints the new ticket."},
    {PEEK, "peek", "NAME", 1, 1, run_peek, "list pending items",
     "Prints ticket, due time from now, attempts so far, and payload; leased\n"
     "items are among them. 10 of them, or -n."},
    {DUMP, "dump", "NAME", 1, 1, run_dump,
     "print pending and ready items as JSON, for load",
     "An item that moves on meanwhile may be printed twice."},
    {COUNT, "count", "[NAME...]", 0, MANY, run_count,
     "count the items; without names of all queues",
     "And what was done by all who count it, with --counters in the tool."},
    {LIST, "list", "[PATTERN]", 0, 1, run_list, "list the queues, with counts",
     "Looks through all keys of the server (SCAN). Unless it has counters, it\n"
     "doesn't find a queue that is empty, or has nothing but ready items that\n"
     "were never leased."},
    {LETTERS, "dead", "NAME", 1, 1, run_dead, "list the dead letters",
     "Prints number, ticket, time of death, reason, attempts, and payload;\n"
     "the oldest first. 10 of them, or -n."},
    {REDRIVE, "redrive", "NAME [TICKET...]", 1, MANY, run_redrive,
     "make dead letters ready again",
     "Those whose tickets `dead` has printed; else all, or the -n oldest."},
    {DROP, "drop", "NAME TICKET...", 2, MANY, run_drop,
     "remove dead letters by their tickets", NULL},
    {CLEAR, "clear", "NAME", 1, 1, run_clear,
     "remove all but dead letters; asks first",
     "Removes the pending, leased and ready items, and the keys of offers;\n"
     "with --dead instead the dead letters."},
    {WATCH, "watch", "[NAME...]", 0, MANY, run_watch, "a live view, like top",
     "Without names of all queues. NET/S: by how many items a queue grows per\n"
     "second. Keys: q; tab, arrows: the queue; 1-5, 0: the pane. Prints plain\n"
     "lines if the output is no terminal."},
    {COMPLETION, "completion", "bash|zsh|queues", 1, 1, run_completion,
     "print a script for the shell's completion",
     "bash: source <(delayq completion bash). zsh: write it into a file\n"
     "_delayq in a folder of $fpath. queues: the names that they complete."},
};

typedef enum kind { FLAG, NUMBER, DURATION, TEXT, WIRE, RETRY_ON } kind;

typedef struct flag {
    const char *name;
    char letter; /* 0: none */
    kind kind;
    size_t at; /* in settings */
    int verbs;
    const char *meta, *help;
} flag;

#define AT(field) offsetof(settings, field)

static const flag flags[] = {
    {"key", 0, TEXT, AT(key), OFFER | CANCEL, "KEY",
     "another offer with KEY stores nothing (exit 1)"},
    {"key-ttl", 0, DURATION, AT(key_ttl_ms), OFFER, "DURATION",
     "how long the key is remembered"},
    {"replace", 0, FLAG, AT(replace), OFFER, NULL,
     "replace the first offer, or store it if it is gone"},
    {"ndjson", 0, FLAG, AT(ndjson), OFFER, NULL,
     "an object per line, see load; DELAY if it has none"},
    {"tickets", 't', FLAG, AT(tickets), OFFER | LOAD, NULL,
     "print a ticket per line, too, with -"},
    {"retry", 0, DURATION, AT(retry_ms), OFFER | LOAD, "DURATION",
     "how long to try again if the server is lost"},
    {"null", '0', FLAG, AT(null), OFFER | TAKE, NULL,
     "NUL instead of newline ends a payload"},
    {"count", 'n', NUMBER, AT(count), TAKE | PEEK | LETTERS | REDRIVE | WATCH,
     "N", "how many; peek, dead: 0 for all"},
    {"follow", 'f', FLAG, AT(follow), TAKE, NULL,
     "go on until Ctrl-C, or for --wait without an item"},
    {"wait", 'w', DURATION, AT(wait_ms), TAKE, "DURATION",
     "how long to wait for an item, or forever"},
    {"lease", 'l', DURATION, AT(lease_ms), TAKE, "DURATION",
     "print the ticket, too; unacked it comes again"},
    {"max-attempts", 0, NUMBER, AT(max_attempts), TAKE, "N",
     "after N attempts to the dead letters"},
    {"exec", 'x', TEXT, AT(exec), TAKE, "COMMAND",
     "run it for each item, by sh -c; its input"},
    {"jobs", 'j', NUMBER, AT(jobs), TAKE, "N",
     "run up to N commands at once (1)"},
    {"timeout", 0, DURATION, AT(timeout_ms), TAKE, "DURATION",
     "then SIGTERM ends the command; nacked"},
    {"kill-after", 0, DURATION, AT(kill_after_ms), TAKE, "DURATION",
     "and so much later SIGKILL (5s)"},
    {"retry-on", 0, RETRY_ON, 0, TAKE, "CODE=DELAY",
     "that exit code: again in DELAY; may be repeated"},
    {"bury-on", 0, NUMBER, AT(bury_on), TAKE, "CODE",
     "that exit code: to the dead letters"},
    {"stats", 0, FLAG, AT(stats), TAKE, NULL,
     "print at the end how many were taken, how late"},
    {"backoff", 0, DURATION, AT(backoff_ms), TAKE | NACK, "DURATION",
     "after the first failure (1s), doubled for each"},
    {"backoff-max", 0, DURATION, AT(backoff_max_ms), TAKE | NACK, "DURATION",
     "the longest back-off (5m)"},
    {"attempt", 0, NUMBER, AT(attempt), NACK, "N",
     "the attempt that take has printed"},
    {"release", 0, FLAG, AT(release), NACK, NULL,
     "deliver at once, don't count this attempt"},
    {"counters", 0, FLAG, AT(counters),
     OFFER | LOAD | TAKE | TICK | ACK | NACK | BURY | CANCEL, NULL,
     "count in Redis what this does, see count"},
    {"once", 0, FLAG, AT(once), TICK, NULL, "end when nothing more is due"},
    {"after", 0, TEXT, AT(after), PEEK, "TICKET", "begin behind this item"},
    {"from", 0, NUMBER, AT(from), LETTERS, "N", "begin with number N (0)"},
    {"dead", 0, FLAG, AT(dead), CLEAR | DUMP, NULL, "only the dead letters"},
    {"yes", 'y', FLAG, AT(yes), CLEAR, NULL, "don't ask"},
    {"prometheus", 0, FLAG, AT(prometheus), COUNT, NULL,
     "in Prometheus' text format"},
    {"interval", 'i', DURATION, AT(interval_ms), WATCH, "DURATION",
     "between two updates (1s)"},
    {"json", 0, FLAG, AT(json), ALL, NULL, "one JSON object per line"},
    {"quiet", 'q', FLAG, AT(quiet), ALL, NULL, "say less"},
    {"url", 'u', TEXT, AT(url), ALL, "URL",
     "the server; else DELAYQ_URL, else redis://127.0.0.1:6379"},
    {"wire", 0, WIRE, AT(wire), ALL, "FLEET",
     "native, redisson (>= 3.21.1) or redisson-old"},
    {"tls-ca", 0, TEXT, AT(tls_ca), ALL, "FILE", "certificates to trust"},
    {"tls-cert", 0, TEXT, AT(tls_cert), ALL, "FILE", "our certificate"},
    {"tls-key", 0, TEXT, AT(tls_key), ALL, "FILE", "and its key"},
    {"help", 'h', FLAG, AT(help), ALL, NULL, "this text"},
    {"version", 'V', FLAG, AT(version), ALL, NULL, "the version"},
};

#define VERBS (sizeof verbs / sizeof verbs[0])
#define FLAGS (sizeof flags / sizeof flags[0])

/*-----------------------------------------------------------------------------
 * MARK: - Help
 * >>help   what --help prints, on 24 lines of 80 columns
 *---------------------------------------------------------------------------*/

static void show_help(FILE *to) {
    size_t i;
    fputs("usage: delayq COMMAND [OPTION...] NAME [ARGUMENT...]\n", to);
    for (i = 0; i < VERBS; i++) {
        char what[64];
        snprintf(what, sizeof what, "%s %s", verbs[i].name, verbs[i].arguments);
        fprintf(to, "  %-28s %s\n", what, verbs[i].brief);
    }
    fputs("`delayq COMMAND --help` says more. The server is --url URL or "
          "DELAYQ_URL.\nExit codes: 0 done, 1 nothing there, 2 usage, 3 no "
          "server, 4 refused, 5 unknown,\n6 can't read, write or run, 7 a "
          "command of --exec failed, 128+n by signal n.\n",
          to);
}

/* The options of a command that not all have; with ALL those that all have. */
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
    puts("All: --json --quiet --url URL --wire FLEET --tls-ca --tls-cert "
         "--tls-key FILE");
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
         "        -u | --url | --wire | --tls-*) ((i++)) ;;\n"
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

/* A text within '...[...]' of _arguments. */
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
        io_timeout_ms = 1000; /* somebody waits for it */
        set.quiet = 1;
        found = find_queues(NULL, &count, &code);
        for (i = 0; found && i < count; i++) puts(found[i]);
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

/* "75=10m" */
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

/* 1: the option has its value. */
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

#define FIRST_FLAG 1000 /* the value of the first long option */

/* An option by what getopt_long returns for it. */
static const flag *flag_of(int c) {
    size_t i;
    if (c >= FIRST_FLAG && c < FIRST_FLAG + (int)FLAGS)
        return &flags[c - FIRST_FLAG];
    for (i = 0; i < FLAGS; i++)
        if (c > 0 && flags[i].letter == c) return &flags[i];
    return NULL;
}

/* Why getopt_long has refused an option. */
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

/* Sort the command line: options into `set`, the rest to the end. v: NULL for
 * what stands before the command. Returns the index of the rest, or -1. */
static int read_flags(const verb *v, int argc, char **argv) {
    struct option longs[FLAGS + 1];
    char shorts[3 * FLAGS + 4];
    size_t i, n = 0, k = 0;
    int c;
    if (!v) shorts[k++] = '+'; /* the command ends them */
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

/* If 0, 1 or 2 were closed, our next socket would get that number and receive
 * what is printed. */
static void keep_standard_files(void) {
    int fd;
    do fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd < 3);
    if (fd >= 0) close(fd);
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
    } else {
        code = v->run(n, argv + first);
        close_all();
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
    i = read_flags(NULL, argc, argv); /* those for all may come first */
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
