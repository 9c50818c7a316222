/*
 * TLS: rediss:// with a TLS server. The tests make the certificates. They need
 * hiredis >= 1.0 with its TLS part. `make tls` builds them.
 */
#define DELAYQ_TLS
#define DELAYQ_IMPLEMENTATION
#include "../outbox.h"
#include <sys/wait.h>

static server s;
static int port;
static char dir[112], ca[144], url[128];

static void shell(const char *format, const char *a, const char *b) {
    char command[1024];
    snprintf(command, sizeof command, format, dir, a, b);
    strncat(command, " >>log 2>&1", sizeof command - strlen(command) - 1);
    if (system(command) != 0) FAIL("%s: see %s/log", command, dir);
}

/* Make a certificate with the extension `what`, signed by the authority ca. */
static void certificate(const char *name, const char *what) {
    shell("cd %s && openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 "
          "-nodes -keyout %s.key -out request -subj /CN=%s",
          name, name);
    shell("cd %s && { echo '%s' >extensions%s; }", what, "");
    shell("cd %s && openssl x509 -req -in request -CA ca.crt -CAkey ca.key "
          "-CAcreateserial -extfile extensions -days 2 -out %s.crt",
          name, "");
}

static void authority(const char *name) {
    shell("cd %s && openssl req -x509 -newkey ec -pkeyopt "
          "ec_paramgen_curve:P-256 -nodes -keyout %s.key -out %s.crt -days 2 "
          "-subj /CN=authority",
          name, name);
}

static void start(const char *which, const char *clients) {
    static char number[16], cert[160], key[160];
    const char *with[] = {"--tls-port",
                          number,
                          "--tls-cert-file",
                          cert,
                          "--tls-key-file",
                          key,
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          clients,
                          "--bind",
                          "127.0.0.1",
                          NULL};
    if (!dir[0]) {
        snprintf(dir, sizeof dir, "%s/tls%d", main_server.dir, (int)getpid());
        snprintf(ca, sizeof ca, "%s/ca.crt", dir);
        shell("mkdir -p %s && cd %s%s", dir, "");
        authority("ca");
        authority("stranger");
        certificate("server", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        certificate("other", "subjectAltName=DNS:other.example");
        certificate("client", "keyUsage=digitalSignature");
    }
    port = free_port();
    snprintf(number, sizeof number, "%d", port);
    snprintf(cert, sizeof cert, "%s/%s.crt", dir, which);
    snprintf(key, sizeof key, "%s/%s.key", dir, which);
    server_start(&s, with);
}

static delayq_options tls_options(const char *host) {
    delayq_options o = options_for(&s, "jobs");
    snprintf(url, sizeof url, "rediss://%s:%d", host, port);
    o.url = url;
    o.tls_ca = ca;
    return o;
}

TEST(a_queue_over_tls_offers_takes_and_is_notified) {
    static const char *const hosts[] = {"localhost", "127.0.0.1"};
    int i;
    start("server", "no");
    for (i = 0; i < 2; i++) {
        delayq q, other;
        delayq_item item;
        delayq_options o = tls_options(hosts[i]);
        pid_t child;
        o.lease_ms = 60000;
        OK(&q, delayq_open(&q, &o));
        OFFER(&q, "x", 30);
        OK(&q, delayq_take(&q, &item, 20000));
        OK(&q, delayq_ack(&q, &item));
        UNTIL(delayq_take(&q, &item, 20) == DELAYQ_EMPTY && q.conn->sub.c &&
              q.conn->tracking != DELAYQ_TRACK_OFF);
        fflush(stdout);
        child = fork();
        /* The child closes the parent's handle, which has no effect. */
        if (child == 0) {
            delayq_close(&q);
            OK(&other, delayq_open(&other, &o));
            OFFER(&other, "y", 50);
            delayq_close(&other);
            _exit(0);
        }
        OK(&q, delayq_take(&q, &item, 20000));
        OK(&q, delayq_ack(&q, &item));
        join(child);
        delayq_close(&q);
    }
    server_end(&s);
}

TEST(large_and_many_payloads_pass_through_tls_unchanged) {
    static char big[3000000];
    static delayq_message m[500];
    delayq q;
    delayq_item item;
    delayq_options o;
    size_t i;
    start("server", "no");
    o = tls_options("localhost");
    for (i = 0; i < sizeof big; i++) big[i] = (char)(i * 31 + i / 977);
    OK(&q, delayq_open(&q, &o));
    OK(&q, delayq_offer(&q, big, sizeof big, 0));
    OK(&q, delayq_take(&q, &item, 20000));
    CHECK_INT(item.len, sizeof big);
    CHECK(memcmp(item.data, big, sizeof big) == 0);
    for (i = 0; i < 500; i++) {
        m[i].data = big + i;
        m[i].len = 1000;
        m[i].delay_ms = 1;
    }
    OK(&q, delayq_offer_many(&q, m, 500));
    for (i = 0; i < 500; i++) {
        OK(&q, delayq_take(&q, &item, 20000));
        CHECK(item.len == 1000 && memcmp(item.data, big + i, 1000) == 0);
    }
    delayq_close(&q);
    server_end(&s);
}

/* The last bytes of a reply may be in OpenSSL's own buffer. Then the socket
 * does not report them, and a handle that waited for the socket would stall for
 * io_timeout_ms. */
TEST(the_end_of_a_reply_is_read_though_the_socket_is_empty) {
    static char big[300000];
    delayq_options o;
    delayq_item item;
    size_t len;
    delayq q;
    start("server", "no");
    o = tls_options("localhost");
    o.io_timeout_ms = 60000;
    OK(&q, delayq_open(&q, &o));
    for (len = 50000; len < sizeof big; len += 2500) {
        OK(&q, delayq_offer(&q, big, len, 0));
        OK(&q, delayq_take(&q, &item, 5000 * test_slow()));
        CHECK_INT(item.len, len);
    }
    delayq_close(&q);
    server_end(&s);
}

TEST(a_certificate_that_is_not_trusted_is_refused) {
    char stranger[160];
    delayq q;
    delayq_options o;
    start("server", "no");
    o = tls_options("localhost");
    snprintf(stranger, sizeof stranger, "%s/stranger.crt", dir);
    o.tls_ca = stranger;
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
    CHECK_HAS(delayq_errmsg(&q), "TLS");
    CHECK_HAS(delayq_errmsg(&q), "certificate");
    CHECK_STATUS(&q, delayq_offer(&q, "x", 1, 0), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    o.tls_ca = NULL; /* the system doesn't trust our authority */
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
    delayq_close(&q);
    o.tls_ca = "/no/such/file";
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    delayq_close(&q);
    server_end(&s);
}

static void file_is_refused(const delayq_options *o, const char *option,
                            const char *file, const char *why) {
    delayq q;
    CHECK_STATUS(&q, delayq_open(&q, o), DELAYQ_ERR_ARG);
    CHECK_HAS(delayq_errmsg(&q), option);
    CHECK_HAS(delayq_errmsg(&q), file);
    CHECK_HAS(delayq_errmsg(&q), why);
    delayq_close(&q);
}

TEST(a_tls_file_that_cannot_be_used_is_named_with_the_cause) {
    char cert[160], key[160];
    delayq_options o;
    start("server", "no");
    o = tls_options("localhost");
    o.tls_ca = "/no/such/file";
    file_is_refused(&o, "tls_ca", "/no/such/file", "No such file");
    o.tls_ca = "/etc/passwd"; /* this file has no certificate */
    file_is_refused(&o, "tls_ca", "/etc/passwd", "certificate");
    o.tls_ca = ca;
    snprintf(cert, sizeof cert, "%s/client.crt", dir);
    snprintf(key, sizeof key, "%s/server.key", dir);
    o.tls_cert = cert;
    o.tls_key = "/no/key";
    file_is_refused(&o, "tls_key", "/no/key", "No such file");
    o.tls_key = key; /* this is the key of another certificate */
    file_is_refused(&o, "tls_key", key, "mismatch");
    o.tls_cert = "/etc";
    file_is_refused(&o, "tls_cert", "/etc", "");
    server_end(&s);
}

TEST(a_certificate_of_another_host_is_refused) {
    static const char *const hosts[] = {"localhost", "127.0.0.1"};
    int i;
    start("other", "no");
    for (i = 0; i < 2; i++) {
        delayq q;
        delayq_options o = tls_options(hosts[i]);
        CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_AUTH);
        CHECK_HAS(delayq_errmsg(&q), "mismatch");
        delayq_close(&q);
    }
    server_end(&s);
}

TEST(a_server_that_requires_client_certificates_gets_one) {
    char cert[160], key[160];
    delayq q;
    delayq_options o;
    start("server", "yes");
    o = tls_options("localhost");
    CHECK(delayq_open(&q, &o) < DELAYQ_OK);
    CHECK(delayq_offer(&q, "x", 1, 0) < DELAYQ_OK);
    delayq_close(&q);
    snprintf(cert, sizeof cert, "%s/client.crt", dir);
    snprintf(key, sizeof key, "%s/client.key", dir);
    o.tls_cert = cert;
    /* the certificate's key is missing */
    CHECK_STATUS(&q, delayq_open(&q, &o), DELAYQ_ERR_ARG);
    o.tls_key = key;
    OK(&q, delayq_open(&q, &o));
    OFFER(&q, "x", 0);
    delayq_close(&q);
    server_end(&s);
}

TEST(tls_where_there_is_none_and_none_where_there_is_tls_fail_clearly) {
    char number[16], plain[64];
    const char *with[] = {"--port", number, "--bind", "127.0.0.1", NULL};
    delayq q;
    delayq_options o;
    start("server", "no");
    o = tls_options("localhost");
    o.url = plain;
    snprintf(plain, sizeof plain, "redis://127.0.0.1:%d", port);
    CHECK(delayq_open(&q, &o) < DELAYQ_OK);
    CHECK(delayq_offer(&q, "x", 1, 0) < DELAYQ_OK);
    delayq_close(&q);
    server_end(&s);
    port = free_port();
    snprintf(number, sizeof number, "%d", port);
    server_start(&s, with);
    o = tls_options("127.0.0.1");
    o.connect_timeout_ms = 300;
    CHECK(delayq_open(&q, &o) < DELAYQ_OK);
    CHECK_HAS(delayq_errmsg(&q), "TLS");
    delayq_close(&q);
    server_end(&s);
}

TEST(a_tls_server_that_restarts_or_freezes_is_found_again) {
    char number[16], cert[160], key[160];
    const char *with[] = {"--tls-port",
                          number,
                          "--tls-cert-file",
                          cert,
                          "--tls-key-file",
                          key,
                          "--bind",
                          "127.0.0.1",
                          "--tls-ca-cert-file",
                          ca,
                          "--tls-auth-clients",
                          "no",
                          NULL};
    delayq q;
    delayq_item item;
    delayq_options o;
    start("server", "no");
    snprintf(number, sizeof number, "%d", port);
    snprintf(cert, sizeof cert, "%s/server.crt", dir);
    snprintf(key, sizeof key, "%s/server.key", dir);
    o = tls_options("localhost");
    o.io_timeout_ms = 200 * test_slow();
    OK(&q, delayq_open(&q, &o));
    CHECK_STATUS(&q, delayq_take(&q, &item, 20), DELAYQ_EMPTY);
    server_kill(&s, SIGKILL);
    CHECK(delayq_offer(&q, "x", 1, 0) < DELAYQ_OK);
    server_start_again(&s, with);
    UNTIL(delayq_offer(&q, "x", 1, 0) == DELAYQ_OK);
    OK(&q, delayq_take(&q, &item, 20000));
    /* A freeze can also come in the middle of a handshake. */
    server_kill(&s, SIGSTOP);
    CHECK(delayq_offer(&q, "x", 1, 0) < DELAYQ_OK);
    CHECK(delayq_take(&q, &item, 300) < DELAYQ_OK);
    server_kill(&s, SIGCONT);
    UNTIL(delayq_offer(&q, "y", 1, 0) == DELAYQ_OK);
    OK(&q, delayq_take(&q, &item, 20000));
    delayq_close(&q);
    server_end(&s);
}

/* Connections are killed, a server is frozen, and payloads are large. No call
 * may block, and each item must arrive. */
TEST(an_outbox_over_tls_settles_whatever_happens) {
    enum { SMALL = 2000, SIZE = 1 << 20 };
    static char big[300000];
    static unsigned char seen[SMALL], seen_big[5];
    delayq q, waiter;
    delayq_options o, shared_by;
    delayq_item item;
    redisContext *c;
    int offers = 0, taken = 0, bigs = 0, turns = 0;
    long long longest = 0, frozen_us = 0;
    size_t i;
    start("server", "no");
    c = server_connect(&s);
    o = tls_options("localhost");
    o.outbox = box_memory(SIZE);
    o.outbox_size = SIZE;
    o.io_timeout_ms = 200 * test_slow();
    o.reconnect_max_ms = 20;
    o.lease_ms = 2000 * test_slow();
    for (i = 0; i < sizeof big; i++) big[i] = (char)(i * 31 + i / 977);
    big[0] = 'b';
    OK(&q, delayq_open(&q, &o));
    memset(&shared_by, 0, sizeof shared_by);
    shared_by.name = "more";
    shared_by.share = &q;
    UNTIL(delayq_open(&waiter, &shared_by) == DELAYQ_OK ||
          (delayq_close(&waiter), turn(&q), 0));
    while (taken < SMALL || bigs < 4) {
        long long began = now_us();
        if (offers < SMALL) {
            char text[16];
            snprintf(text, sizeof text, "%d", offers);
            offers += offered(&q, text, strlen(text), 0);
            if (offers % 500 == 0) {
                big[1] = (char)(offers / 500);
                while (!offered(&q, big, sizeof big, 0)) {
                }
            }
        }
        if (took(&q, &item)) {
            if (item.len == sizeof big) {
                int number = ((const char *)item.data)[1];
                CHECK(number >= 0 && number <= 4);
                bigs += seen_big[number]++ == 0;
                big[1] = (char)number;
                CHECK(memcmp(item.data, big, sizeof big) == 0);
            } else {
                int id = atoi(item.data);
                CHECK(id >= 0 && id < SMALL);
                taken += seen[id]++ == 0;
            }
            while (!changed(&q, delayq_ack(&q, &item))) {
            }
        }
        if (now_us() - began > longest) longest = now_us() - began;
        if (++turns % 700 == 0 && frozen_us == 0)
            freeReplyObject(run(c, "CLIENT KILL TYPE normal SKIPME yes"));
        if (turns == 1500) {
            server_kill(&s, SIGSTOP);
            frozen_us = now_us();
        }
        if (frozen_us > 0 && now_us() - frozen_us > 500000 * test_slow()) {
            server_kill(&s, SIGCONT);
            frozen_us = 0;
        }
        if (turns % 100 == 0 && frozen_us == 0)
            delayq_offer(&waiter, "w", 1, 0); /* this call may fail */
        if (turns % 10 == 0 || frozen_us > 0) usleep(1000);
    }
    SETTLE(&q);
    CHECK_INT(box(&q).dropped, 0);
    printf("    %d turns, the longest call took %lld us\n", turns, longest);
    CHECK(longest < 150000 * test_slow());
    delayq_close(&waiter);
    delayq_close(&q);
    redisFree(c);
    server_end(&s);
}

/* --- what a server sees of the handshake --------------------------------- */

struct handshake {
    int port, highest; /* highest: the server's newest version of TLS */
    char name[64];     /* the host name that the client sends; "-": none */
    int done;          /* the number of completed handshakes */
};

static void serve_handshakes(void *argument) {
    struct handshake *h = (struct handshake *)argument;
    struct sockaddr_in at;
    char file[160];
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    SSL_CTX *t = SSL_CTX_new(TLS_server_method());
    memset(&at, 0, sizeof at);
    at.sin_family = AF_INET;
    at.sin_port = htons((uint16_t)h->port);
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    CHECK(bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    CHECK(listen(fd, 5) == 0);
    SSL_CTX_set_security_level(t, 0);
    SSL_CTX_set_min_proto_version(t, TLS1_VERSION);
    SSL_CTX_set_max_proto_version(t, h->highest);
    snprintf(file, sizeof file, "%s/server.crt", dir);
    CHECK(SSL_CTX_use_certificate_chain_file(t, file) == 1);
    snprintf(file, sizeof file, "%s/server.key", dir);
    CHECK(SSL_CTX_use_PrivateKey_file(t, file, SSL_FILETYPE_PEM) == 1);
    for (;;) {
        int client = accept(fd, NULL, NULL);
        SSL *ssl = SSL_new(t);
        const char *name;
        SSL_set_fd(ssl, client);
        if (SSL_accept(ssl) == 1) {
            name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name);
            snprintf(h->name, sizeof h->name, "%s", name ? name : "-");
            h->done++;
        }
        SSL_free(ssl);
        close(client);
    }
}

static struct handshake *start_handshakes(int highest, pid_t *child) {
    struct handshake *h = (struct handshake *)shared(sizeof *h);
    start("server", "no"); /* this makes the certificates */
    server_end(&s);
    h->port = free_port();
    h->highest = highest;
    *child = spawn(serve_handshakes, h);
    return h;
}

static delayq_status shake_hands(const struct handshake *h, const char *host,
                                 char why[256]) {
    delayq q;
    delayq_options o = tls_options(host);
    delayq_status status;
    snprintf(url, sizeof url, "rediss://%s:%d", host, h->port);
    status = delayq_open(&q, &o);
    snprintf(why, 256, "%s", delayq_errmsg(&q));
    delayq_close(&q);
    return status;
}

TEST(a_server_sees_the_name_that_the_url_has) {
    pid_t child;
    char why[256];
    struct handshake *h = start_handshakes(TLS1_3_VERSION, &child);
    UNTIL((shake_hands(h, "localhost", why), h->done > 0));
    CHECK_TEXT(h->name, "localhost");
    shake_hands(h, "127.0.0.1", why);
    CHECK_TEXT(h->name, "-"); /* an address is not sent as a name */
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

/* TLS 1.1 is refused even if OpenSSL's configuration allows it. */
TEST(a_server_that_speaks_only_tls_1_1_is_refused) {
    pid_t child;
    char why[256] = "", file[160];
    struct handshake *h = start_handshakes(TLS1_1_VERSION, &child);
    FILE *f;
    snprintf(file, sizeof file, "%s/openssl.cnf", dir);
    f = fopen(file, "w");
    CHECK(f != NULL);
    fprintf(f, "openssl_conf = a\n[a]\nssl_conf = b\n[b]\nsystem_default = c\n"
               "[c]\nMinProtocol = TLSv1\nCipherString = ALL:@SECLEVEL=0\n");
    fclose(f);
    setenv("OPENSSL_CONF", file, 1);
    UNTIL(shake_hands(h, "localhost", why) < 0 && strstr(why, "TLS"));
    CHECK_INT(h->done, 0);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}
