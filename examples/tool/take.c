/*
 * take.c -- take, take --exec, tick.
 */
#include "tool.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/*-----------------------------------------------------------------------------
 * MARK: - Take
 * >>take   printing due items
 *
 * Even without --lease an item is leased, for a minute, and acked when it has
 * been written. So an item that can't be written is delivered again.
 *---------------------------------------------------------------------------*/

#define PRINT_LEASE_MS 60000
#define PRINT_BATCH 100

static int hands_out; /* 1 with --lease: the reader of the output acks */

/* Take from the first queue that has an item, in the order of the command line.
 * Set *from to the number of this queue, or of the queue that failed. */
static delayq_status take_first(size_t *from, delayq_item *items, size_t max,
                                size_t *n, int64_t wait_ms) {
    int64_t until = clock_ms() + wait_ms;
    const delayq **all;
    delayq_status status;
    size_t i;
    *from = 0;
    *n = 0;
    if (handle_count == 1)
        return delayq_take_many(handles, items, max, n, wait_ms);
    all = (const delayq **)must(calloc(handle_count, sizeof *all));
    for (;;) {
        delayq_status failure = DELAYQ_EMPTY;
        int64_t left = wait_ms < 0 ? DELAYQ_FOREVER : until - clock_ms();
        for (i = 0; i < handle_count; i++) {
            all[i] = &handles[i];
            status = delayq_take_many(&handles[i], items, max, n, 0);
            if (status == DELAYQ_OK || (status < 0 && !passing(status))) {
                *from = i;
                free(all);
                return status;
            }
            if (status < 0) failure = status, *from = i;
        }
        status = failure;
        if (wait_ms == 0 || (left <= 0 && wait_ms > 0)) break;
        status = delayq_wait((delayq *const *)all, handle_count, left);
        if (status != DELAYQ_OK) break;
    }
    free(all);
    return status;
}

/* Call take_first(), then report how many items became dead letters. */
static delayq_status take_from(size_t *from, delayq_item *items, size_t max,
                               size_t *n, int64_t wait_ms) {
    uint64_t *died = (uint64_t *)must(calloc(handle_count, sizeof *died));
    delayq_status status;
    size_t i;
    for (i = 0; i < handle_count; i++) died[i] = deaths(&handles[i]);
    status = take_first(from, items, max, n, wait_ms);
    heard(status);
    for (i = 0; i < handle_count; i++) {
        uint64_t more = deaths(&handles[i]) - died[i];
        if (more > 0 && !set.quiet)
            complain("%s: %" PRIu64 " to the dead letters: `delayq dead` says "
                     "why",
                     queue_names[i], more);
    }
    free(died);
    return status;
}

static void show_json_item(const char *queue, const delayq_item *item) {
    fputs("{\"queue\":", stdout);
    json_text(queue);
    putchar(',');
    if (hands_out) printf("\"ticket\":\"%s\",", item->ticket.text);
    if (item->attempt > 0) printf("\"attempt\":%d,", item->attempt);
    if (item->due_ms > 0) printf("\"due_ms\":%" PRId64 ",", item->due_ms);
    if (item->late_us >= 0)
        printf("\"late_ms\":%.3f,", (double)item->late_us / 1000);
    json_payload(item->data, item->len);
    fputs("}\n", stdout);
}

static int show_item(const char *queue, const delayq_item *item) {
    if (set.json) {
        show_json_item(queue, item);
    } else {
        if (hands_out && handle_count > 1) printf("%s ", queue);
        if (hands_out) printf("%s ", item->ticket.text);
        if (item->len > 0) fwrite(item->data, 1, item->len, stdout);
        putchar(set.null ? '\0' : '\n');
    }
    return written();
}

/* Ack the written items. Retry until their leases end. After a lost reply,
 * DELAYQ_GONE most likely means that the first ack took effect. */
static delayq_status ack_written(delayq *q, delayq_item *items, size_t count) {
    int64_t until = clock_ms() + PRINT_LEASE_MS;
    int uncertain = 0;
    for (;;) {
        delayq_status status = delayq_ack_many(q, items, count);
        size_t i, gone = 0, left = 0;
        for (i = 0; i < count; i++) {
            gone += items[i].acked == DELAYQ_GONE;
            if (items[i].acked < 0) items[left++] = items[i];
        }
        if (gone && !uncertain)
            complain("written too slowly: an item is delivered again");
        if (status >= 0) return DELAYQ_OK;
        tell(NULL, status, delayq_errmsg(q));
        uncertain |= status == DELAYQ_ERR_UNKNOWN;
        count = left;
        if (!passing(status) || stops > 1 || clock_ms() > until) {
            complain("written but not acked: %d will be delivered again",
                     (int)count);
            return status;
        }
        wait_for(-1, 100);
    }
}

static void put_back(delayq *q, const delayq_item *items, size_t count) {
    while (count-- > 0) delayq_nack(q, items++, DELAYQ_RELEASE);
}

/* Write the items one by one. If the reader is slow, put the remaining items
 * back before their leases end. Add the number of written items to *shown. */
static int hand_out(size_t from, delayq_item *items, size_t count,
                    int64_t *shown) {
    int64_t until = clock_ms() + PRINT_LEASE_MS / 2;
    delayq *q = &handles[from];
    size_t n = 0;
    int good = 1, code = DONE;
    while (n < count && (n == 0 || clock_ms() < until)) {
        good = show_item(queue_names[from], &items[n]);
        if (!good) break;
        n++;
    }
    *shown += (int64_t)n;
    put_back(q, items + n, count - n);
    if (!hands_out && n > 0) code = exit_code(ack_written(q, items, n));
    return good ? code : broken();
}

/* Returns the time to wait for the next item, in ms. */
static int64_t patience(void) {
    if (set.wait_ms >= 0 && set.wait_ms != FOREVER) return set.wait_ms;
    return set.follow || set.wait_ms == FOREVER ? DELAYQ_FOREVER : 0;
}

/* Limit an endless take, since messages are printed only between takes. */
static int64_t one_wait(int64_t wait_ms) {
    if (wait_ms >= 0) return wait_ms;
    return away ? 1000 : 9000;
}

static int64_t take_most(void) {
    return set.count >= 0 ? set.count : set.follow ? INT64_MAX : 1;
}

/* Print the percentiles 50, 90 and 99 of the lateness. */
static void show_lateness(void) {
    static const int parts[] = {50, 90, 99};
    uint64_t lateness[24] = {0}, taken = 0, sum = 0, seen = 0;
    size_t i, k;
    for (k = 0; k < handle_count; k++) {
        delayq_counts counts;
        memset(&counts, 0, sizeof counts);
        /* a failure does not matter: the handle's own counts are set anyway */
        delayq_count(&handles[k], &counts);
        taken += counts.taken;
        for (i = 0; i < 24; i++) {
            lateness[i] += counts.lateness[i];
            sum += counts.lateness[i];
        }
    }
    fprintf(stderr, "delayq: %" PRIu64 " taken", taken);
    if (sum > 0) fputs("; late", stderr);
    for (i = k = 0; sum > 0 && i < 24; i++) {
        double ms = (double)(UINT64_C(1) << i) / 1000;
        seen += lateness[i];
        for (; k < 3 && seen * 100 >= sum * (uint64_t)parts[k]; k++)
            fprintf(stderr, i < 20 ? " p%d<%.3gms" : " p%d<%.3gs", parts[k],
                    i < 20 ? ms : ms / 1000);
    }
    fputc('\n', stderr);
}

static int take_and_print(void) {
    static delayq_item items[PRINT_BATCH];
    int64_t left = take_most(), shown = 0;
    int code = DONE;
    while (left > 0 && !stops && code == DONE) {
        int64_t before = shown;
        size_t from, n, max = left < PRINT_BATCH ? (size_t)left : PRINT_BATCH;
        delayq_status status =
            take_from(&from, items, max, &n, one_wait(patience()));
        if (patience() < 0 && (status == DELAYQ_EMPTY || passing(status)))
            continue;
        if (status == DELAYQ_EMPTY) break;
        if (status == DELAYQ_OK)
            code = hand_out(from, items, n, &shown);
        else if (status < 0)
            code = exit_code(failed(&handles[from], status));
        left -= shown - before;
    }
    if (code != DONE) return code;
    if (stops && !set.follow) return stopped();
    return shown > 0 || stops ? DONE : NOTHING;
}

/*-----------------------------------------------------------------------------
 * MARK: - Jobs
 * >>jobs   running a command for each item
 *
 * A job is an item and the session of processes that works on it. Each round of
 * the loop acks, nacks or buries the items of ended jobs, extends the leases of
 * running jobs, and takes another item if fewer than --jobs jobs run. If a
 * process ends during a take, its SIGCHLD ends the take.
 *
 * Each command has a session of its own. So Ctrl-C reaches only this program,
 * which takes no more items and waits for the commands. Also, no command can
 * wait for input from the terminal for ever, with its lease extended all the
 * time. A second Ctrl-C, or --timeout, ends all processes of a session, even
 * those in another process group (timeout(1) makes one). Only then is the item
 * put back or nacked, since otherwise two commands could work on it at once.
 *---------------------------------------------------------------------------*/

#define MAX_JOBS 64
/* After a signal has ended a command, wait this many milliseconds for the same
 * signal to reach this program. */
#define DOUBT_MS 400

typedef enum job_state {
    IDLE,
    RUNNING,
    LINGERING, /* its command has ended, other processes still run */
    ENDED      /* its item must be acked, nacked or buried */
} job_state;

typedef struct job {
    job_state state;
    size_t from;      /* number of the item's queue */
    delayq_item item; /* without its payload, which the command reads */
    pid_t pid;        /* the process of the command, which leads a session */
    int status;       /* the status from waitpid() */
    int said_fd;      /* a file with the text from descriptor 3 */
    int stopping;     /* 1: this program has sent the command a signal */
    int released;     /* 1: this program stops, so the attempt doesn't count */
    int timed_out;    /* 1: --timeout has ended the command */
    int doubted;      /* 1: the wait of DOUBT_MS has begun */
    int uncertain;    /* 1: the reply to its ack, nack or bury was lost */
    /* times of the next action of each kind, by clock_ms() */
    int64_t renew_ms, timeout_ms, kill_ms, retry_ms, give_up_ms;
    const char *result; /* its first letter is unique */
    int64_t delay_ms; /* delay of a nack */
    char why[256];    /* text of a bury, or "" */
} job;

static job jobs[MAX_JOBS];
static int job_count; /* the number of jobs that are not IDLE */
static int64_t exec_failures;
static int not_run; /* 1: sh could not find or run a command */

/* Write data to a file without a name. Returns its descriptor, or -1. */
static int unnamed_file(const void *data, size_t len) {
    FILE *file = tmpfile();
    int fd = -1;
    if (!file) return -1;
    if ((len == 0 || fwrite(data, 1, len, file) == len) && fflush(file) == 0 &&
        lseek(fileno(file), 0, SEEK_SET) == 0)
        fd = fcntl(fileno(file), F_DUPFD_CLOEXEC, 10);
    fclose(file);
    return fd;
}

static void set_number(const char *name, int64_t value, int known) {
    char text[32] = "";
    if (known) snprintf(text, sizeof text, "%" PRId64, value);
    setenv(name, text, 1);
}

/* Run the command in the child. Its input is the payload, and its environment
 * describes the item. */
static void run_command(const job *j, int input) {
    setsid();
    catch_signal(SIGPIPE, SIG_DFL);
    catch_signal(SIGCHLD, SIG_DFL);
    if (dup2(input, 0) < 0 || dup2(j->said_fd, 3) < 0) _exit(127);
    if (set.json) dup2(2, 1); /* stdout is reserved for JSON */
    setenv("DELAYQ_NAME", queue_names[j->from], 1);
    setenv("DELAYQ_TICKET", j->item.ticket.text, 1);
    set_number("DELAYQ_ATTEMPT", j->item.attempt, j->item.attempt > 0);
    set_number("DELAYQ_DUE_MS", j->item.due_ms, j->item.due_ms > 0);
    set_number("DELAYQ_LATE_MS", j->item.late_us / 1000, j->item.late_us >= 0);
    execl("/bin/sh", "sh", "-c", set.exec, (char *)NULL);
    _exit(127);
}

/* Send a signal to all processes of a session. Returns their number. Signal 0
 * only counts them. Without a /proc like that of Linux, send the signal to the
 * process group of the first process. */
static int signal_session(pid_t session, int number) {
    DIR *proc = opendir("/proc");
    struct dirent *entry;
    int count = 0, linux_proc = 0;
    while (proc && (entry = readdir(proc)) != NULL) {
        char path[300], text[512], *at;
        long in_session = 0;
        char state = 'Z';
        FILE *file;
        if (!isdigit((unsigned char)*entry->d_name)) continue;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        file = fopen(path, "r");
        if (!file) continue;
        linux_proc = 1;
        at = fgets(text, sizeof text, file) ? strrchr(text, ')') : NULL;
        fclose(file);
        if (!at || sscanf(at + 1, " %c %*d %*d %ld", &state, &in_session) != 2)
            continue;
        if (in_session != (long)session || state == 'Z') continue;
        count++;
        if (number) kill((pid_t)atol(entry->d_name), number);
    }
    if (proc) closedir(proc);
    if (linux_proc) return count;
    return kill(-session, number) == 0;
}

static void stop_job(job *j, int number) {
    j->stopping = 1;
    signal_session(j->pid, number);
    /* a new child may not have called setsid() yet */
    if (j->state == RUNNING) kill(j->pid, number);
    if (number == SIGTERM) signal_session(j->pid, SIGCONT);
}

static int64_t renew_every(void) {
    return set.lease_ms / 3 > 0 ? set.lease_ms / 3 : 1;
}

/* Start the command for an item. On failure, put the item back and return 0. */
static int start_job(size_t from, const delayq_item *item) {
    int input = unnamed_file(item->data, item->len), i = 0;
    int64_t now = clock_ms();
    job *j;
    while (jobs[i].state != IDLE) i++;
    j = &jobs[i];
    memset(j, 0, sizeof *j);
    j->from = from;
    j->item = *item;
    j->said_fd = unnamed_file(NULL, 0);
    if (j->said_fd >= 0) fcntl(j->said_fd, F_SETFL, O_APPEND);
    fflush(stdout);
    j->pid = input >= 0 && j->said_fd >= 0 ? fork() : -1;
    if (j->pid == 0) run_command(j, input);
    if (j->pid < 0) complain("can't run a command: %s", strerror(errno));
    if (input >= 0) close(input);
    if (j->pid < 0) {
        if (j->said_fd >= 0) close(j->said_fd);
        put_back(&handles[from], item, 1);
        return 0;
    }
    j->state = RUNNING;
    j->renew_ms = now + renew_every();
    j->timeout_ms = set.timeout_ms > 0 ? now + set.timeout_ms : INT64_MAX;
    j->kill_ms = INT64_MAX;
    job_count++;
    return 1;
}

static void show_job(const job *j) {
    int s = j->status, code = WIFEXITED(s) ? WEXITSTATUS(s) : WTERMSIG(s);
    char delay[32] = "";
    const char *text = *j->result == 'r'   ? "put back"
                       : *j->result == 'l' ? "its lease was lost"
                       : *j->result == 'u'
                           ? "it is not settled; it may be delivered again"
                           : j->result;
    if (set.json) {
        fputs("{\"queue\":", stdout);
        json_text(queue_names[j->from]);
        printf(",\"ticket\":\"%s\",\"attempt\":%d,\"%s\":%d,",
               j->item.ticket.text, j->item.attempt,
               WIFEXITED(s) ? "exit" : "signal", code);
        if (j->timed_out) fputs("\"timed_out\":true,", stdout);
        if (j->delay_ms >= 0 && strcmp(j->result, "nacked") == 0)
            printf("\"retry_ms\":%" PRId64 ",", j->delay_ms);
        printf("\"result\":\"%s\"}\n", j->result);
        fflush(stdout);
    } else if (strcmp(j->result, "acked") != 0 && !set.quiet) {
        if (j->delay_ms >= 0 && strcmp(j->result, "nacked") == 0)
            distance(j->delay_ms, delay, sizeof delay);
        complain("%s: %s %s%d: %s%s%s", j->item.ticket.text,
                 j->timed_out ? "--timeout: the command was ended with"
                              : "the command ended with",
                 WIFEXITED(s) ? "" : "signal ", code, text,
                 *delay ? ", again in " : "", delay);
    }
}

static void end_job(job *j) {
    show_job(j);
    close(j->said_fd);
    j->state = IDLE;
    job_count--;
}

/* Read the last line that the command has written to descriptor 3, without the
 * newline. The line is "" if there is none. */
static void read_said(const job *j, char *line, size_t size) {
    off_t end = lseek(j->said_fd, 0, SEEK_END);
    off_t from = end > (off_t)size - 1 ? end - (off_t)size + 1 : 0;
    ssize_t n = pread(j->said_fd, line, size - 1, from);
    char *last;
    if (n < 0) n = 0;
    while (n > 0 && isspace((unsigned char)line[n - 1])) n--;
    line[n] = '\0';
    last = strrchr(line, '\n');
    if (last) memmove(line, last + 1, strlen(last));
}

/* Choose the result for the item of an ended command. Returns 0 if a signal has
 * ended it, and the caller must wait to learn if this program gets it, too. */
static int judge_job(job *j) {
    int code = WIFEXITED(j->status) ? WEXITSTATUS(j->status) : -1, i;
    int number = code > 128 ? code - 128 : code < 0 ? WTERMSIG(j->status) : 0;
    int by_stop = number == SIGTERM || number == SIGINT || number == SIGHUP;
    int64_t delay_ms, due_ms;
    char said[4096];
    j->delay_ms = DELAYQ_BACKOFF;
    read_said(j, said, sizeof said);
    if (by_stop && !j->stopping && !stops && !j->doubted) {
        j->doubted = 1;
        j->retry_ms = clock_ms() + DOUBT_MS;
        return 0;
    }
    if (by_stop && stops && !j->timed_out) j->released = 1;
    j->result = "nacked";
    if (j->timed_out) {
        /* After a timeout the text from descriptor 3 does not matter. */
    } else if (strncmp(said, "retry ", 6) == 0 &&
               read_delay(said + 6, &delay_ms, &due_ms)) {
        if (due_ms > 0) delay_ms = due_ms - server_ms(&handles[j->from]);
        j->delay_ms = delay_ms > 0 ? delay_ms : 0;
    } else if (strcmp(said, "bury") == 0 || strncmp(said, "bury ", 5) == 0) {
        j->result = "buried";
        snprintf(j->why, sizeof j->why, "%.255s", said[4] ? said + 5 : "");
    } else if (strcmp(said, "release") == 0 || (j->released && code != 0)) {
        j->result = "released";
        j->delay_ms = DELAYQ_RELEASE;
    } else {
        if (*said)
            complain("%s: descriptor 3: this is not retry DELAY, bury [WHY] or "
                     "release: %.200s",
                     j->item.ticket.text, said);
        if (code == 0) j->result = "acked";
        if (code >= 0 && code == set.bury_on) {
            j->result = "buried";
            snprintf(j->why, sizeof j->why, "exit %d", code);
        }
        for (i = 0; i < set.retry_ons; i++)
            if (code == set.retry_on[i].code)
                j->delay_ms = set.retry_on[i].delay_ms;
        /* A typo in --exec must not use up the attempts of all items. */
        if ((code == 126 || code == 127) && strcmp(j->result, "nacked") == 0 &&
            j->delay_ms == DELAYQ_BACKOFF) {
            if (!not_run)
                complain("exit code %d: sh %s a command; taking stops, unless "
                         "--retry-on %d=DELAY is given",
                         code, code == 127 ? "did not find" : "can't run",
                         code);
            not_run = 1;
        }
    }
    return 1;
}

/* Ack, nack or bury the item of an ended command. If that fails, retry
 * later. */
static void settle_job(job *j) {
    delayq *q = &handles[j->from];
    delayq_status status;
    if (!j->result && !judge_job(j)) return;
    status = *j->result == 'a'   ? delayq_ack(q, &j->item)
             : *j->result == 'b' ? delayq_bury(q, &j->item, j->why)
                                 : delayq_nack(q, &j->item, j->delay_ms);
    heard(status);
    if (status >= 0) {
        exec_failures += *j->result == 'n' || *j->result == 'b';
        if (status == DELAYQ_GONE && !j->uncertain)
            j->result = "lost";
        end_job(j);
        return;
    }
    tell(NULL, status, delayq_errmsg(q));
    j->uncertain |= status == DELAYQ_ERR_UNKNOWN;
    j->retry_ms = clock_ms() + 200;
    if (!passing(status) || stops > 1 || clock_ms() > j->give_up_ms) {
        j->result = "unsettled";
        end_job(j);
    }
}

static void renew_job(job *j) {
    delayq *q = &handles[j->from];
    delayq_status status = delayq_extend(q, &j->item, 0);
    heard(status);
    if (status == DELAYQ_GONE)
        complain("%s: the lease was lost; it may run twice",
                 j->item.ticket.text);
    else if (status < 0)
        tell(NULL, status, delayq_errmsg(q));
    j->renew_ms = status == DELAYQ_GONE ? INT64_MAX
                  : status < 0          ? clock_ms() + 200
                                        : clock_ms() + renew_every();
}

static int64_t sooner(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* Send a signal to all running commands, whose attempts then don't count.
 * SIGTERM is followed by SIGKILL after the time of --kill-after. */
static void end_commands(int number) {
    int64_t kill_ms = clock_ms() + set.kill_after_ms;
    int i;
    for (i = 0; i < MAX_JOBS; i++) {
        if (jobs[i].state != RUNNING && jobs[i].state != LINGERING) continue;
        jobs[i].released = !jobs[i].timed_out;
        if (number == SIGTERM)
            jobs[i].kill_ms = sooner(jobs[i].kill_ms, kill_ms);
        stop_job(&jobs[i], number);
    }
}

/* Note the end of a job's processes, send them the signals that are due (for
 * --timeout and --kill-after), and extend the lease. */
static void tend_processes(job *j) {
    int64_t now = clock_ms();
    if (j->state == RUNNING && waitpid(j->pid, &j->status, WNOHANG) > 0)
        j->state = j->stopping ? LINGERING : ENDED;
    if (j->state == LINGERING && signal_session(j->pid, 0) == 0)
        j->state = ENDED;
    if (j->state == ENDED) {
        j->give_up_ms = now + set.lease_ms + 10000;
        return;
    }
    if (now >= j->timeout_ms) {
        j->timed_out = !j->released;
        j->timeout_ms = INT64_MAX;
        j->kill_ms = now + set.kill_after_ms;
        stop_job(j, SIGTERM);
    }
    if (now >= j->kill_ms) {
        j->kill_ms = INT64_MAX;
        stop_job(j, SIGKILL);
    }
    if (now >= j->renew_ms) renew_job(j);
}

/* Do the due actions of all jobs. Returns the time of the next action. */
static int64_t tend_jobs(void) {
    int64_t next = INT64_MAX;
    int i;
    for (i = 0; i < MAX_JOBS; i++) {
        job *j = &jobs[i];
        if (j->state == RUNNING || j->state == LINGERING) tend_processes(j);
        if (j->state == ENDED && clock_ms() >= j->retry_ms) settle_job(j);
        if (j->state == RUNNING || j->state == LINGERING)
            next = sooner(
                next, sooner(j->renew_ms, sooner(j->timeout_ms, j->kill_ms)));
        if (j->state == LINGERING) next = sooner(next, clock_ms() + 50);
        if (j->state == ENDED) next = sooner(next, j->retry_ms);
    }
    return next;
}

/* React to a new stop signal. At the first one, print a line. At the second
 * one, send SIGTERM to the commands and, after --kill-after, SIGKILL. At the
 * third one, send SIGKILL. Returns 1 if the commands were sent a signal. */
static int heed_stops(void) {
    static int heeded;
    const char *s = job_count > 1 ? "s" : "";
    char left[32];
    if (stops == heeded) return 0;
    heeded = (int)stops;
    if (job_count > 0 && !set.quiet && stops == 1)
        complain("stopping; waiting for %d command%s (once more: ends %s)",
                 job_count, s, job_count > 1 ? "them" : "it");
    if (job_count > 0 && !set.quiet && stops == 2)
        complain("ending %d command%s; SIGKILL in %s (once more: at once)",
                 job_count, s, distance(set.kill_after_ms, left, sizeof left));
    if (stops > 1) end_commands(stops > 2 ? SIGKILL : SIGTERM);
    return stops > 1;
}

/* Take an item and start its command. Returns 0 if no more items are to be
 * taken, after a failure with the exit code in *code. */
static int take_job(int64_t idle_ms, int64_t next_ms, int *code) {
    int64_t now = clock_ms(), wait = one_wait(patience());
    delayq_status status;
    delayq_item item;
    size_t from, n;
    if (patience() > 0) wait = idle_ms + wait > now ? idle_ms + wait - now : 0;
    if (job_count > 0 && wait != 0 && now + wait > next_ms)
        wait = next_ms > now ? next_ms - now : 1;
    status = take_from(&from, &item, 1, &n, wait);
    if (status == DELAYQ_OK && stops) {
        /* the item came together with the stop signal */
        put_back(&handles[from], &item, 1);
        return 0;
    }
    if (status == DELAYQ_OK) {
        if (start_job(from, &item)) return 1;
        *code = BROKEN;
        return 0;
    }
    if (status == DELAYQ_WOKEN) return 1;
    if (patience() < 0 || clock_ms() < idle_ms + patience()) {
        /* wait on if there was no item, or after a transient fault */
        if (status == DELAYQ_EMPTY || passing(status)) return 1;
    }
    if (status == DELAYQ_EMPTY) return 0;
    *code = exit_code(failed(&handles[from], status));
    return 0;
}

static int take_and_run(void) {
    int64_t left = take_most(), idle_ms = clock_ms(), taken = 0;
    int more = 1, code = DONE;
    catch_signal(SIGCHLD, on_signal);
    for (;;) {
        int64_t next = tend_jobs();
        int before = job_count;
        if (heed_stops()) continue; /* SIGKILL may be due sooner now */
        more = more && !stops && !not_run && taken < left;
        if (!more && job_count == 0) break;
        if (more && job_count < set.jobs) {
            more = take_job(idle_ms, next, &code);
            if (job_count > before) taken++, idle_ms = clock_ms();
        } else {
            wait_for(-1, next - clock_ms());
            idle_ms = clock_ms();
        }
    }
    if (code != DONE || not_run) return code != DONE ? code : BROKEN;
    if (exec_failures > 0 && !set.follow) return FAILED;
    if (stops && !set.follow && taken < left) return stopped();
    return taken > 0 || stops ? DONE : NOTHING;
}

int run_take(int argc, char **argv) {
    int code;
    hands_out = set.lease_ms > 0 && !set.exec;
    if (set.count == 0) return usage("--count: 1 or more");
    if (set.lease_ms == 0) return usage("--lease: more than 0");
    if (set.lease_ms < 0) set.lease_ms = PRINT_LEASE_MS;
    if (set.jobs < 1 || set.jobs > MAX_JOBS) return usage("--jobs: 1 to 64");
    if (set.exec && set.lease_ms < 100)
        return usage("--lease: 100ms or more with --exec");
    if (!set.exec && (set.timeout_ms > 0 || set.retry_ons > 0 || set.jobs > 1 ||
                      set.bury_on >= 0))
        return usage("%s needs --exec", set.timeout_ms > 0  ? "--timeout"
                                        : set.retry_ons > 0 ? "--retry-on"
                                        : set.jobs > 1      ? "--jobs"
                                                            : "--bury-on");
    code = open_all(argv, (size_t)argc, patience() != 0 ? PATIENT : 0);
    if (code == DONE) code = set.exec ? take_and_run() : take_and_print();
    if (set.stats && handle_count > 0) show_lateness();
    return code;
}

/*-----------------------------------------------------------------------------
 * MARK: - Tick
 * >>tick   moving due items
 *---------------------------------------------------------------------------*/

/* Sleep for wait_ms, or until a handle has input or is woken. */
static void sleep_ticks(int64_t wait_ms) {
    size_t i, n = 0;
    struct pollfd *p =
        (struct pollfd *)must(calloc(3 * handle_count + 1, sizeof *p));
    for (i = 0; i < handle_count; i++) {
        int fds[3];
        size_t k, got = delayq_fds(&handles[i], fds, 3);
        for (k = 0; k < got; k++, n++) {
            p[n].fd = fds[k];
            p[n].events = POLLIN;
        }
    }
    if (!stops) poll(p, (nfds_t)n, (int)wait_ms);
    free(p);
}

/* Tick each queue. Returns the time until the next tick in ms, or -1 after a
 * failure, with its status in *status. */
static int64_t tick_all(delayq_status *status) {
    int64_t least = 10000;
    size_t i;
    for (i = 0; i < handle_count; i++) {
        int64_t wait_ms;
        *status = delayq_tick(&handles[i], &wait_ms);
        heard(*status);
        if (*status < 0 && (set.once || !passing(*status))) {
            failed(&handles[i], *status);
            return -1;
        }
        if (*status < 0) tell(NULL, *status, delayq_errmsg(&handles[i]));
        if (wait_ms < least) least = wait_ms;
    }
    return least;
}

static uint64_t moved_so_far(void) {
    uint64_t sum = 0;
    size_t i;
    for (i = 0; i < handle_count; i++) {
        /* if delayq_count fails, these are the counts of the handle alone */
        delayq_counts counts;
        memset(&counts, 0, sizeof counts);
        delayq_count(&handles[i], &counts);
        sum += counts.moved;
    }
    return sum;
}

int run_tick(int argc, char **argv) {
    delayq_status status = DELAYQ_OK;
    int code =
        open_all(argv, (size_t)argc, ONLY_TICKS | (set.once ? 0 : PATIENT));
    uint64_t moved;
    if (code != DONE) return code;
    while (!stops) {
        int64_t wait_ms = tick_all(&status);
        if (wait_ms < 0) return exit_code(status);
        if (wait_ms > 0 && set.once) break;
        sleep_ticks(wait_ms);
    }
    moved = moved_so_far();
    if (set.json)
        printf("{\"moved\":%" PRIu64 "}\n", moved);
    else if (!set.quiet)
        printf("%" PRIu64 " moved\n", moved);
    return moved > 0 || !set.once ? DONE : NOTHING;
}
