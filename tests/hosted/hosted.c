/*
 * The proxy of hosted.h, a process with two threads for each connection. The
 * proxy passes on whole requests. It replaces a refused request by a script
 * that returns the profile's error, so that the replies keep their order.
 *
 * Some profiles refuse a command only within scripts. For these the proxy
 * writes Lua code, the prelude, in front of each script. A script with a
 * prelude has another SHA1, so the proxy also replaces the SHA1 in EVALSHA.
 */
#define _GNU_SOURCE
#include "../proxy.h"
#include "hosted.h"
#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>

static const struct profile *profile;
static struct hosted *seen;
static const char *target;
static char prelude[8192];

/* --- the prelude of each script ------------------------------------------ */

static void say(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void say(const char *format, ...) {
    size_t n = strlen(prelude);
    va_list args;
    va_start(args, format);
    vsnprintf(prelude + n, sizeof prelude - n, format, args);
    va_end(args);
    if (strlen(prelude) == sizeof prelude - 1) abort();
}

/* The prelude is one line, so that the script's own lines keep their
 * numbers. */
static void write_prelude(const struct profile *p) {
    const struct refusal *r;
    prelude[0] = '\0';
    if (!p->in_scripts[0].command && !p->undeclared && !p->lua54 &&
        !p->whole_ms)
        return;
    say("local redis = (function(real) "
        "local new, no, known = setmetatable({}, {__index = real}), {}, {} ");
    for (r = p->in_scripts; r->command; r++)
        say("no['%s'] = \"%s\" ", r->command, r->error);
    say("for _, k in ipairs(KEYS) do known[k] = true end "
        "local function refused(name, ...) name = string.upper(name) "
        "if no[name] then return no[name] end ");
    if (p->undeclared)
        say("if name ~= 'TIME' and name ~= 'PUBLISH' and name ~= 'PUBSUB' "
            "then local all = name == 'DEL' or name == 'UNLINK' or "
            "name == 'EXISTS' "
            "for i = 1, all and select('#', ...) or 1 do "
            "local k = tostring((select(i, ...))) "
            "if not known[k] then "
            "real.log(real.LOG_WARNING, 'undeclared: ' .. name .. ' ' .. k) "
            "return \"%s, key: \" .. k end end end ",
            p->undeclared);
    say("end ");
    say("local function answer(name, ...) ");
    if (p->whole_ms)
        say("if string.upper(name) == 'TIME' then local t = (...) "
            "t[2] = string.format('%%d', math.floor(t[2] / 1000) * 1000) "
            "return t end ");
    say("return ... end "
        "new.call = function(...) local e = refused(...) "
        "if e then error({err = e}) end "
        "return answer((...), real.call(...)) end "
        "new.pcall = function(...) local e = refused(...) "
        "if e then return {err = e} end "
        "return answer((...), real.pcall(...)) end "
        "return new end)(redis) ");
    if (p->lua54)
        say("local string = setmetatable({format = function(f, ...) "
            "local i = 0 "
            "for what in string.gmatch(string.gsub(f, '%%%%%%%%', ''), "
            "'%%%%[-+ #0-9.]*(%%a)') do i = i + 1 "
            "local v = select(i, ...) "
            "if string.find('dixXoc', what, 1, true) and tonumber(v) ~= "
            "math.floor(tonumber(v)) then error('bad argument #' .. (i + 1) "
            ".. \" to 'format' (number has no integer representation)\") end "
            "end return string.format(f, ...) end}, {__index = string}) ");
}

/* The SHA1s of each script: as the client has sent it, and with the prelude. */
static struct { char sent[41], wrapped[41]; } scripts[256];
static int script_count;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void keep_script(const char *sent, const char *wrapped) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < script_count && strcmp(scripts[i].sent, sent) != 0) i++;
    if (i == script_count && script_count < 256) {
        strcpy(scripts[i].sent, sent);
        strcpy(scripts[i].wrapped, wrapped);
        script_count++;
    }
    pthread_mutex_unlock(&lock);
}

/* --- requests ------------------------------------------------------------ */

#define WORDS 4 /* the proxy keeps this many of a request's first words */

struct request {
    const char *bytes;
    size_t len;
    long argc;
    const char *word[WORDS];
    size_t size[WORDS];
};

/* Returns 1 for a whole request, 0 for a part of one, -1 for any other
 * bytes. */
static int read_request(struct request *r, const char *bytes, size_t n) {
    size_t at;
    long i;
    const char *end = (const char *)memchr(bytes, '\n', n);
    if (n > 0 && *bytes != '*') return -1;
    if (!end) return 0;
    memset(r, 0, sizeof *r);
    r->bytes = bytes;
    r->argc = atol(bytes + 1);
    at = (size_t)(end - bytes) + 1;
    for (i = 0; i < r->argc; i++) {
        size_t size;
        end = at < n ? (const char *)memchr(bytes + at, '\n', n - at) : NULL;
        if (!end) return 0;
        if (bytes[at] != '$') return -1;
        size = (size_t)atol(bytes + at + 1);
        at = (size_t)(end - bytes) + 1;
        if (at + size + 2 > n) return 0;
        if (i < WORDS) r->word[i] = bytes + at;
        if (i < WORDS) r->size[i] = size;
        at += size + 2;
    }
    r->len = at;
    return 1;
}

static int word_is(const struct request *r, int i, const char *text, size_t n) {
    return r->word[i] && r->size[i] == n &&
           strncasecmp(r->word[i], text, n) == 0;
}

/* Returns 1 if the request begins with these one or two words. */
static int begins(const struct request *r, const char *command) {
    const char *space = strchr(command, ' ');
    size_t n = space ? (size_t)(space - command) : strlen(command);
    return word_is(r, 0, command, n) &&
           (!space || word_is(r, 1, space + 1, strlen(space + 1)));
}

/* Make the server reply with an error. */
static int refuse(int fd, const char *error) {
    static const char script[] = "return redis.error_reply(ARGV[1])";
    char text[600];
    int n = snprintf(text, sizeof text,
                     "*4\r\n$4\r\nEVAL\r\n$%zu\r\n%s\r\n$1\r\n0\r\n$%zu\r\n"
                     "%s\r\n",
                     sizeof script - 1, script, strlen(error), error);
    return put(fd, text, (size_t)n);
}

/* Make the server compute the SHA1 of a text. Returns 0 if that fails. */
static int sha1(const char *text, size_t n, char hex[41]) {
    redisContext *c = redisConnectUnix(target);
    redisReply *r = NULL;
    int done;
    if (c && !c->err)
        r = (redisReply *)redisCommand(
            c, "EVAL %s 0 %b", "return redis.sha1hex(ARGV[1])", text, n);
    done = r && r->type == REDIS_REPLY_STRING && r->len == 40;
    if (done) memcpy(hex, r->str, 41);
    if (r) freeReplyObject(r);
    if (c) redisFree(c);
    return done;
}

/* Pass on an EVAL or SCRIPT LOAD. Put the prelude before its script, word i. */
static int pass_script(int fd, const struct request *r, int i) {
    size_t n = strlen(prelude), size = n + r->size[i];
    size_t before = (size_t)(r->word[i] - r->bytes), after;
    char *text = (char *)malloc(size + 1), sent[41], wrapped[41], length[32];
    int done;
    memcpy(text, prelude, n);
    memcpy(text + n, r->word[i], r->size[i]);
    done = sha1(r->word[i], r->size[i], sent) && sha1(text, size, wrapped);
    if (done) keep_script(sent, wrapped);
    /* also replace the length, which precedes the word */
    while (r->bytes[before - 1] != '$') before--;
    after = (size_t)(r->word[i] - r->bytes) + r->size[i];
    snprintf(length, sizeof length, "%zu\r\n", size);
    done = done && put(fd, r->bytes, before) &&
           put(fd, length, strlen(length)) && put(fd, text, size) &&
           put(fd, r->bytes + after, r->len - after);
    free(text);
    return done;
}

static int pass_sha(int fd, const struct request *r, int may_forget) {
    static int calls;
    size_t before = (size_t)(r->word[1] - r->bytes);
    const char *sha = NULL;
    int i;
    if (r->size[1] != 40) return put(fd, r->bytes, r->len);
    pthread_mutex_lock(&lock);
    for (i = 0; i < script_count; i++)
        if (memcmp(scripts[i].sent, r->word[1], 40) == 0)
            sha = scripts[i].wrapped;
    pthread_mutex_unlock(&lock);
    if (may_forget && profile->forgets > 0 &&
        __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST) % profile->forgets == 0)
        sha = NULL;
    if (!sha) sha = "ffffffffffffffffffffffffffffffffffffffff";
    return put(fd, r->bytes, before) && put(fd, sha, 40) &&
           put(fd, r->bytes + before + 40, r->len - before - 40);
}

/* Write the request's name, like "CLIENT ID" or "EVALSHA". */
static void name_request(const struct request *r, char *name, size_t size) {
    int two = begins(r, "CLIENT") || begins(r, "SCRIPT") || begins(r, "CONFIG");
    snprintf(name, size, "%.*s%s%.*s", (int)r->size[0], r->word[0],
             two ? " " : "", two ? (int)r->size[1] : 0, two ? r->word[1] : "");
}

static void keep_name(const char *name) {
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < 32 && seen->names[i][0] && strcmp(seen->names[i], name) != 0)
        i++;
    if (i < 32) strcpy(seen->names[i], name);
    pthread_mutex_unlock(&lock);
}

/* Pass on a request. Returns 0 if the connection ends. */
static int pass_request(int fd, const struct request *r, int *loaded) {
    const struct refusal *x;
    int by_text = begins(r, "EVAL"), by_sha = begins(r, "EVALSHA");
    int load = begins(r, "SCRIPT LOAD"), was_loaded = *loaded;
    char name[24];
    name_request(r, name, sizeof name);
    keep_name(name);
    if (strcmp(name, seen->closes_at) == 0) return 0;
    __atomic_add_fetch(&seen->commands, 1, __ATOMIC_SEQ_CST);
    *loaded = load;
    for (x = profile->refused; x->command; x++)
        if (begins(r, x->command)) return x->error && refuse(fd, x->error);
    if (profile->most_args > 0 && r->argc > profile->most_args)
        return refuse(fd, profile->too_many);
    if (profile->no_keys && (by_text || by_sha) && word_is(r, 2, "0", 1))
        return refuse(fd, profile->no_keys);
    if (!prelude[0] && profile->forgets == 0) return put(fd, r->bytes, r->len);
    if (by_text || load) return pass_script(fd, r, by_text ? 1 : 2);
    if (by_sha) return pass_sha(fd, r, !was_loaded);
    return put(fd, r->bytes, r->len);
}

/* --- connections --------------------------------------------------------- */

struct pair {
    int fd[2]; /* [0]: to the client; [1]: to the server */
    int ended; /* the number of its two threads that have ended */
};

static void leave(struct pair *p) {
    if (__atomic_add_fetch(&p->ended, 1, __ATOMIC_SEQ_CST) < 2) return;
    close(p->fd[0]);
    close(p->fd[1]);
    free(p);
}

static void *to_server(void *argument) {
    struct pair *p = (struct pair *)argument;
    size_t n = 0, room = 65536;
    char *bytes = (char *)malloc(room);
    int loaded = 0, whole = 1;
    while (whole >= 0) {
        struct request r;
        ssize_t got;
        size_t done = 0;
        if (n == room) bytes = (char *)realloc(bytes, room *= 2);
        got = recv(p->fd[0], bytes + n, room - n, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        n += (size_t)got;
        while (done < n &&
               (whole = read_request(&r, bytes + done, n - done)) > 0) {
            if (!pass_request(p->fd[1], &r, &loaded)) whole = -1;
            if (whole < 0) break;
            done += r.len;
        }
        memmove(bytes, bytes + done, n - done);
        n -= done;
    }
    free(bytes);
    /* The server sends its last replies, and then closes the connection. */
    shutdown(p->fd[1], SHUT_WR);
    leave(p);
    return NULL;
}

static void *to_client(void *argument) {
    struct pair *p = (struct pair *)argument;
    char bytes[65536];
    for (;;) {
        ssize_t got = recv(p->fd[1], bytes, sizeof bytes, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0 || !put(p->fd[0], bytes, (size_t)got)) break;
    }
    shutdown(p->fd[0], SHUT_RDWR);
    shutdown(p->fd[1], SHUT_RDWR);
    leave(p);
    return NULL;
}

static void serve(int listener) {
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setdetachstate(&small, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&small, 256 * 1024);
    for (;;) {
        struct pair *p = (struct pair *)calloc(1, sizeof *p);
        pthread_t t;
        p->fd[0] = accept(listener, NULL, NULL);
        if (p->fd[0] < 0) _exit(1);
        seen->connections++;
        p->fd[1] = unix_socket(target, 0);
        if (p->fd[1] < 0) { /* the server has ended */
            close(p->fd[0]);
            free(p);
        } else if (pthread_create(&t, &small, to_server, p) != 0 ||
                   pthread_create(&t, &small, to_client, p) != 0) {
            _exit(1);
        }
    }
}

struct hosted *hosted_behind(server *s, const struct profile *p) {
    char path[sizeof s->dir + 16];
    int listener, fd;
    snprintf(path, sizeof path, "%s/h%d", s->dir, (int)getpid());
    listener = unix_socket(path, 1);
    if (listener < 0) FAIL("%s: %s", path, strerror(errno));
    seen = (struct hosted *)shared(sizeof *seen);
    profile = p;
    target = s->socket;
    snprintf(s->url, sizeof s->url, "unix://%s", path);
    write_prelude(p);
    fflush(NULL);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (fd = 3; fd < 1024; fd++)
            if (fd != listener) close(fd);
        serve(listener);
    }
    close(listener);
    return seen;
}

/* --- for main.c ---------------------------------------------------------- */

const struct profile *hosted_profile(const char *name) {
    int i;
    for (i = 0; i < PROFILES; i++)
        if (strcmp(profiles[i].name, name) == 0) return &profiles[i];
    FAIL("no profile is called %s", name);
}

static const struct profile *chosen(void) {
    const char *name = getenv("DELAYQ_TEST_HOSTED");
    return name && *name ? hosted_profile(name) : NULL;
}

void hosted_start(server *s) {
    const struct profile *p = chosen();
    if (p) hosted_behind(s, p);
}

const char *const *hosted_arguments(void) {
    const struct profile *p = chosen();
    return p ? p->server : NULL;
}

int hosted_major(int major) {
    const struct profile *p = chosen();
    return p && p->major > 0 ? p->major : major;
}

static int refuses(const struct refusal *r, const char *command) {
    while (r->command && strncmp(command, r->command, strlen(r->command)) != 0)
        r++;
    return r->command != NULL;
}

int server_can(const char *command) {
    const struct profile *p = chosen();
    if (!p) return 1;
    if (strcmp(command, "TIME") == 0) return !p->whole_ms;
    if (strcmp(command, "EVALSHA") == 0 && p->forgets > 0) return 0;
    return !refuses(p->refused, command) && !refuses(p->in_scripts, command);
}
