/*
 * sim [--seeds N] [--first N] [--seconds S]     run many seeds, 20 per process
 *     --seed N [--quiet | --loud]               run one seed, and print a story
 *     --shrink N                                find the parts that it needs
 *     --drop a1,f2   --only INVARIANT,...   --faults KIND,...
 *     --known FILE     first run these seeds, which have failed once
 *     --plan VERSION   the version of the plans, listed in README.md
 *     --virtual SECONDS   the virtual length of each run
 *     --stop N         end after N failed seeds
 *     --again N        run every N-th seed twice (default 50; 0: none)
 *     --trace ACTOR    also print the system calls of an actor
 *     --history FOLDER   write histories for the judge of the rig
 *
 * Exits with 0 if all invariants held, 1 if not, 2 after a usage error.
 */
#include "sim.h"
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define BATCH 20
#define PATIENCE 120 /* limit of CPU seconds for a seed, which needs about 1 */

typedef struct result {
    uint64_t seed;
    int64_t virtual_us, when;
    uint64_t hash;
    char failed[64], text[512];
} result;

static struct shared {
    uint64_t seed; /* the seed that runs */
    int64_t now;
} * shared;

static const char *binary = "build/sim";
static int64_t run_seconds; /* virtual length of a run; 0: that of its plan */
static unsigned only_kinds; /* 0: any */
static int only_calm;       /* 1: only seeds without a fault */

static double real_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Limit the CPU time of a seed, not its elapsed time, which is longer on a busy
 * machine. */
static void be_patient(int seconds) {
    struct itimerval t;
    memset(&t, 0, sizeof t);
    t.it_value.tv_sec = seconds;
    setitimer(ITIMER_PROF, &t, NULL);
}

static result run_here(uint64_t seed, const char *drop) {
    result r;
    memset(&r, 0, sizeof r);
    r.seed = seed;
    shared->seed = seed;
    be_patient(PATIENCE);
    sim_run_seed(seed, run_seconds, drop);
    be_patient(0);
    r.virtual_us = check_failed[0] ? check_when : sim_plan.end_us;
    r.when = check_when;
    r.hash = sim_last_hash;
    memcpy(r.failed, check_failed, sizeof r.failed);
    memcpy(r.text, check_text, sizeof r.text);
    return r;
}

static void write_all(int fd, const void *bytes, size_t len) {
    const char *at = (const char *)bytes;
    while (len > 0) {
        ssize_t n = write(fd, at, len);
        if (n <= 0) _exit(3);
        at += n;
        len -= (size_t)n;
    }
}

static int read_all(int fd, void *bytes, size_t len) {
    char *at = (char *)bytes;
    while (len > 0) {
        ssize_t n = read(fd, at, len);
        if (n <= 0) return 0;
        at += n;
        len -= (size_t)n;
    }
    return 1;
}

/* Run seeds in a process of their own, since it may crash, and leaks the memory
 * of killed actors. Returns the number of results. A crash is one, too. */
static int run_batch(const uint64_t *seeds, int count, const char *drop,
                     result *results) {
    int ends[2], i, n = 0, status;
    pid_t pid;
    fflush(NULL);
    if (pipe(ends) != 0) exit(3);
    pid = fork();
    if (pid < 0) exit(3);
    if (pid == 0) {
        close(ends[0]);
        for (i = 0; i < count; i++) {
            result r = run_here(seeds[i], drop);
            write_all(ends[1], &r, sizeof r);
        }
        _exit(0);
    }
    close(ends[1]);
    while (n < count && read_all(ends[0], &results[n], sizeof results[n])) n++;
    close(ends[0]);
    waitpid(pid, &status, 0);
    if (n < count) {
        result *r = &results[n++];
        memset(r, 0, sizeof *r);
        r->seed = shared->seed;
        if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPROF)
            snprintf(r->failed, sizeof r->failed, "hangs");
        else
            snprintf(r->failed, sizeof r->failed, "crashes");
        snprintf(r->text, sizeof r->text, "%s %d",
                 WIFSIGNALED(status) ? "signal" : "exit",
                 WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
    return n;
}

static void tell_failure(const result *r, const char *drop) {
    printf("FAIL %s seed %llu at %.3f s: %s\n", r->failed,
           (unsigned long long)r->seed, (double)r->when / 1e6, r->text);
    printf("    replay: %s --plan %d --seed %llu%s%s\n", binary, plan_version,
           (unsigned long long)r->seed, drop && *drop ? " --drop " : "",
           drop && *drop ? drop : "");
    fflush(stdout);
}

/* --- shrinking ----------------------------------------------------------- */

static int still_fails(uint64_t seed, const char *drop, const char *invariant) {
    result r;
    return run_batch(&seed, 1, drop, &r) == 1 &&
           strcmp(r.failed, invariant) == 0;
}

static int shrink(uint64_t seed, const char *given) {
    static char drop[2048], tried[2048];
    char invariant[64];
    result r;
    int i, round, actors, faults, before;
    snprintf(drop, sizeof drop, "%s", given ? given : "");
    run_batch(&seed, 1, drop, &r);
    if (!r.failed[0]) {
        printf("seed %llu does not fail\n", (unsigned long long)seed);
        return 0;
    }
    memcpy(invariant, r.failed, sizeof invariant);
    plan_make(seed, run_seconds);
    actors = sim_plan.actor_count;
    faults = sim_plan.fault_count;
    for (round = 0; round < 3; round++) {
        before = (int)strlen(drop);
        for (i = actors + faults - 1; i >= 0; i--) {
            char what[16], have[2060];
            snprintf(what, sizeof what, "%c%d", i < actors ? 'a' : 'f',
                     i < actors ? i : i - actors);
            snprintf(have, sizeof have, ",%s,", drop);
            {
                char look[32];
                snprintf(look, sizeof look, ",%s,", what);
                if (strstr(have, look)) continue;
            }
            if (strlen(drop) + sizeof what + 1 > sizeof tried) continue;
            memcpy(tried, drop, sizeof tried);
            if (drop[0]) strcat(tried, ",");
            strcat(tried, what);
            if (still_fails(seed, tried, invariant))
                memcpy(drop, tried, sizeof drop);
        }
        if ((int)strlen(drop) == before) break;
    }
    run_batch(&seed, 1, drop, &r);
    tell_failure(&r, drop);
    printf("%d:%llu %s # %s\n", plan_version, (unsigned long long)seed,
           drop[0] ? drop : "-", r.failed);
    return 1;
}

/* --- many ---------------------------------------------------------------- */

static struct tally {
    uint64_t seeds, failed;
    double virtual_s;
    struct {
        char name[64];
        int count;
    } of[32];
} tally;

static void count(const result *r, const char *drop) {
    int i;
    tally.seeds++;
    tally.virtual_s += (double)r->virtual_us / 1e6;
    if (!r->failed[0]) return;
    tally.failed++;
    for (i = 0; i < 31 && tally.of[i].count; i++)
        if (strcmp(tally.of[i].name, r->failed) == 0) break;
    memcpy(tally.of[i].name, r->failed, sizeof tally.of[i].name);
    tally.of[i].count++;
    if (tally.of[i].count <= 5) tell_failure(r, drop);
}

static void known(const char *path) {
    char line[2048];
    FILE *f = fopen(path, "r");
    if (!f) return;
    while (fgets(line, sizeof line, f)) {
        char *end, *drop, *words;
        uint64_t seed = strtoull(line, &end, 10);
        int newest = plan_version;
        result r;
        if (end == line || line[0] == '#') continue;
        if (*end == ':') {
            plan_version = (int)seed;
            seed = strtoull(end + 1, &end, 10);
        }
        words = strchr(end, '#');
        if (words) *words = '\0';
        drop = strtok(end, " \t\n");
        if (drop && strcmp(drop, "-") == 0) drop = NULL;
        run_batch(&seed, 1, drop, &r);
        count(&r, drop);
        plan_version = newest;
    }
    fclose(f);
}

static int wanted(uint64_t seed) {
    if (!only_kinds && !only_calm) return 1;
    plan_make(seed, run_seconds);
    if (only_calm) return !sim_plan.kinds;
    return sim_plan.kinds && !(sim_plan.kinds & ~only_kinds);
}

static int usage(void) {
    fprintf(
        stderr,
        "usage: sim [--seeds N] [--first N] [--seconds S]\n"
        "           [--seed N [--quiet | --loud]] [--shrink N] [--drop a1,f2]\n"
        "           [--only INVARIANT,...] [--faults KIND,...]\n"
        "           [--known FILE] [--virtual SECONDS] [--stop N]\n"
        "           [--trace ACTOR] [--history FOLDER] [--plan VERSION]\n");
    return 2;
}

static unsigned kinds_of(const char *names) {
    unsigned bits = 0;
    int k;
    for (k = 0; k < FAULT_KINDS; k++) {
        const char *name = fault_name((fault_kind)k), *at;
        size_t n = strlen(name);
        for (at = names; (at = strstr(at, name)) != NULL; at += n)
            if ((at == names || at[-1] == ',') && (!at[n] || at[n] == ','))
                bits |= 1u << k;
    }
    return bits;
}

static int run_many(uint64_t first, uint64_t seeds, double seconds,
                    const char *drop, uint64_t stop, int again_every) {
    double begun = real_now(), told = begun, took;
    uint64_t next = first, done = 0;
    int i;
    while (done < seeds && real_now() - begun < seconds &&
           tally.failed < stop) {
        uint64_t of[BATCH];
        result r[BATCH];
        int n = 0, got;
        while (n < BATCH && done + (uint64_t)n < seeds) {
            while (!wanted(next)) next++;
            of[n++] = next++;
        }
        got = run_batch(of, n, drop, r);
        for (i = 0; i < got; i++) {
            result other;
            count(&r[i], drop);
            if (!again_every || of[i] % (unsigned)again_every) continue;
            if (!r[i].hash) continue;
            run_batch(&of[i], 1, drop, &other);
            if (other.hash == r[i].hash) continue;
            snprintf(other.failed, sizeof other.failed, "chance");
            snprintf(other.text, sizeof other.text,
                     "two runs have the hashes %016llx and %016llx",
                     (unsigned long long)r[i].hash,
                     (unsigned long long)other.hash);
            count(&other, drop);
        }
        done += (uint64_t)got;
        if (got < n) next = of[got]; /* go on after a seed that crashed */
        if (real_now() - told > 10) {
            told = real_now();
            fprintf(stderr, "%llu seeds, %.1f virtual hours, %llu failed\n",
                    (unsigned long long)tally.seeds, tally.virtual_s / 3600,
                    (unsigned long long)tally.failed);
        }
    }
    took = real_now() - begun;
    for (i = 0; tally.of[i].count; i++)
        printf("%6d  %s\n", tally.of[i].count, tally.of[i].name);
    printf("%llu seeds, %.1f virtual hours in %.1f s: %.1f seeds and %.2f "
           "hours per second; %llu failed\n",
           (unsigned long long)tally.seeds, tally.virtual_s / 3600, took,
           (double)tally.seeds / took, tally.virtual_s / 3600 / took,
           (unsigned long long)tally.failed);
    return tally.failed != 0;
}

int main(int argc, char **argv) {
    uint64_t first = 1, seeds = UINT64_MAX, stop = UINT64_MAX;
    int one = 0, quiet = 0, loud = 0, shrinks = 0, again_every = 50, i;
    double seconds = 1e18;
    const char *drop = NULL, *file = NULL;
    binary = argv[0];
    shared = (struct shared *)mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    for (i = 1; i < argc; i++) {
        const char *o = argv[i], *v = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(o, "--quiet") == 0) {
            quiet = 1;
            continue;
        }
        if (strcmp(o, "--loud") == 0) {
            loud = 1;
            continue;
        }
        if (!v) return usage();
        i++;
        if (strcmp(o, "--seed") == 0)
            one = 1, first = strtoull(v, NULL, 10);
        else if (strcmp(o, "--shrink") == 0)
            shrinks = 1, first = strtoull(v, NULL, 10);
        else if (strcmp(o, "--seeds") == 0)
            seeds = strtoull(v, NULL, 10);
        else if (strcmp(o, "--first") == 0)
            first = strtoull(v, NULL, 10);
        else if (strcmp(o, "--seconds") == 0)
            seconds = atof(v);
        else if (strcmp(o, "--virtual") == 0)
            run_seconds = atoll(v);
        else if (strcmp(o, "--drop") == 0)
            drop = v;
        else if (strcmp(o, "--only") == 0)
            check_only = v;
        else if (strcmp(o, "--faults") == 0)
            only_kinds = kinds_of(v), only_calm = strcmp(v, "none") == 0;
        else if (strcmp(o, "--known") == 0)
            file = v;
        else if (strcmp(o, "--trace") == 0)
            sim_traced = v;
        else if (strcmp(o, "--history") == 0)
            history_folder = v;
        else if (strcmp(o, "--stop") == 0)
            stop = strtoull(v, NULL, 10);
        else if (strcmp(o, "--plan") == 0)
            plan_version = atoi(v);
        else if (strcmp(o, "--again") == 0)
            again_every = atoi(v);
        else
            return usage();
    }
    if (shrinks) return shrink(first, drop);
    if (one) {
        result r;
        sim_tells = quiet ? 0 : loud ? 2 : 1;
        r = run_here(first, drop);
        if (r.failed[0])
            tell_failure(&r, drop);
        else
            printf("seed %llu: all held; %.1f s, hash %016llx\n",
                   (unsigned long long)first, (double)r.virtual_us / 1e6,
                   (unsigned long long)r.hash);
        return r.failed[0] != '\0';
    }
    if (file) known(file);
    return run_many(first, seeds, seconds, drop, stop, again_every);
}
