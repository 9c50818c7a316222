/*
 * spool.c -- keeps offers in a file while the server can't be reached, and the
 * command spool, which sends them.
 *
 * The file begins with a page of text that names the queue. The rest is an
 * outbox, as >>outbox in delayq.h describes it. A program that uses the file
 * holds a lock on it.
 */
#include "tool.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEAD 4096
/* size of the outbox; the disk stores only the used pages of it */
#define BOX (16 * 1024 * 1024)
#define FIRST_LINE "delayq spool 1\n"

static struct {
    char *file; /* the mapped file */
    char name[520];
    char no_room[600]; /* the text that on_no_room() prints */
    int64_t duplicates, dropped;
} spool;

static int sync_spool(void *user, void *address, size_t size) {
    (void)user, (void)address, (void)size;
    return msync(spool.file, HEAD + BOX, MS_SYNC);
}

static void on_settled(void *user, int changes, uint64_t number,
                       delayq_status status) {
    (void)user, (void)changes, (void)number;
    spool.duplicates += status == DELAYQ_DUPLICATE;
    spool.dropped += status < 0;
}

void use_spool(delayq_options *o) {
    if (!spool.file) return;
    o->outbox = spool.file + HEAD;
    o->outbox_size = BOX;
    o->outbox_keep = DELAYQ_KEEP;
    o->outbox_sync = sync_spool;
    o->settled = on_settled;
}

/* Read the first page of the file. In a new file, write it first. */
static int read_head(const char *path, const char *name) {
    char *head = spool.file;
    size_t first = strlen(FIRST_LINE);
    long wire;
    char *end;
    if (name && !head[0]) { /* a new file; write its first line last */
        snprintf(head + first, HEAD - first, "%d\n%s\n", (int)set.wire, name);
        memcpy(head, FIRST_LINE, first);
    }
    head[HEAD - 1] = '\0';
    if (strncmp(head, FIRST_LINE, first) != 0)
        return usage("%s is no spool of this version", path);
    wire = strtol(head + first, &end, 10);
    snprintf(spool.name, sizeof spool.name, "%s", *end ? end + 1 : "");
    spool.name[strcspn(spool.name, "\n")] = '\0';
    if (name && (strcmp(name, spool.name) != 0 || wire != set.wire))
        return usage("%s is the spool of another queue or --wire: %s", path,
                     spool.name);
    if (wire >= 0 && wire < 3) set.wire = wire;
    return DONE;
}

/* Handle SIGBUS, which means that the disk has no room for a page of the spool.
 * The current offer is not accepted. */
static void on_no_room(int number) {
    (void)number;
    if (write(2, spool.no_room, strlen(spool.no_room)) < 0) {
        /* It does not matter if nobody reads the text. */
    }
    _exit(BROKEN);
}

/* Lock and map a spool. If `name` is NULL, the file names the queue. */
static int open_spool(const char *path, const char *name) {
    struct stat s;
    void *p;
    int fd = open(path, O_RDWR | (name ? O_CREAT : 0), 0600);
    if (fd < 0) return complain("%s: %s", path, strerror(errno)), BROKEN;
    snprintf(spool.no_room, sizeof spool.no_room,
             "delayq: %s: the disk is full, or can't be read; what was "
             "accepted before stays there\n",
             path);
    catch_signal(SIGBUS, on_no_room);
    catch_signal(SIGXFSZ, SIG_IGN); /* ftruncate then fails instead */
    fcntl(fd, F_SETFD, FD_CLOEXEC);
    while (flock(fd, LOCK_EX) != 0) { /* blocks while others use the spool */
        if (stops) return stopped();
        if (errno != EINTR)
            return complain("%s: %s", path, strerror(errno)), BROKEN;
    }
    if (fstat(fd, &s) != 0 ||
        (s.st_size == 0 && name && ftruncate(fd, HEAD + BOX) != 0))
        return complain("%s: %s", path, strerror(errno)), BROKEN;
    if (fstat(fd, &s) != 0 || s.st_size != HEAD + BOX)
        return usage("%s is no spool", path);
    p = mmap(NULL, HEAD + BOX, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED)
        return complain("%s: %s", path, strerror(errno)), BROKEN;
    spool.file = (char *)p; /* the lock is held until the process ends */
    return read_head(path, name);
}

static int64_t left(void) {
    delayq_outbox_state state;
    if (delayq_outbox(handles, &state) != DELAYQ_OK) return 0;
    return (int64_t)(state.offers_accepted - state.offers_settled);
}

/* Send the ops in the spool for at most `ms` milliseconds. Unless `patient`,
 * stop as soon as the connection fails. */
static delayq_status send_spool(int64_t ms, int patient) {
    int64_t until = clock_ms() + ms;
    delayq_status status;
    do {
        status = delayq_flush(handles, 50);
        heard(status);
        if (patient && status < 0 && status != DELAYQ_ERR_TIMEOUT)
            tell(NULL, status, delayq_errmsg(handles));
    } while (status != DELAYQ_OK && !stops && clock_ms() < until &&
             (patient ? passing(status) : status == DELAYQ_ERR_TIMEOUT));
    return status;
}

int spool_for(char *name) {
    int code = open_spool(set.spool, name);
    return code == DONE ? open_one(name, PATIENT) : code;
}

/* Send some ops of a full spool. */
void spool_makes_room(void) {
    send_spool(100, 0);
}

/* Try to send the accepted offers before the program ends. */
int spool_ends(int code) {
    char n[32];
    delayq_status status =
        send_spool(set.retry_ms >= 0 ? set.retry_ms : 3000, set.retry_ms > 0);
    if (left() > 0 && !set.quiet)
        complain("%s of the queue wait in %s%s%s: run `delayq spool %s`",
                 commas(left(), n, sizeof n), set.spool, status < 0 ? ": " : "",
                 status < 0 ? delayq_errmsg(handles) : "", set.spool);
    if (spool.duplicates > 0 && !set.quiet)
        complain("%s not stored: the key is taken",
                 commas(spool.duplicates, n, sizeof n));
    if (spool.dropped > 0) {
        failed(handles, status);
        return REFUSED;
    }
    return code == DONE && spool.duplicates > 0 ? NOTHING : code;
}

int run_spool(int argc, char **argv) {
    int64_t before;
    delayq_status status;
    char a[32], b[32];
    int code = open_spool(argv[0], NULL);
    (void)argc;
    if (code == DONE) code = open_one(spool.name, PATIENT);
    if (code != DONE) return code;
    before = left();
    status = send_spool(set.retry_ms >= 0 ? set.retry_ms : 30000, 1);
    if (set.json)
        printf("{\"queue\":"), json_text(spool.name),
            printf(",\"sent\":%" PRId64 ",\"left\":%" PRId64 "}\n",
                   before - left(), left());
    else if (!set.quiet)
        complain("%s sent, %s left", commas(before - left(), a, sizeof a),
                 commas(left(), b, sizeof b));
    if (!written()) return broken();
    if (stops) return stopped();
    return status == DELAYQ_OK ? DONE : exit_code(failed(handles, status));
}
