/*
 * Read any bytes as a URL. There must be no crash. An accepted URL must set
 * fields that are terminated and in range. The error text of a refused URL must
 * be a constant, so that it never contains a password.
 */
#define DELAYQ_IMPLEMENTATION
#define DELAYQ_STATIC
#include "../../delayq.h"
#include "fuzz.h"

#define TERMINATED(field) (memchr(field, 0, sizeof(field)) != NULL)

static int within(const char *text, const void *begin, size_t size) {
    uintptr_t at = (uintptr_t)text, from = (uintptr_t)begin;
    return at >= from && at < from + size;
}

static void check_fields(const dq_url *u, const char *url, size_t size) {
    delayq_address a;
    unsigned i;
    CHECK(u->count >= 1 && u->count <= DQ_HOSTS_MAX);
    CHECK(within(u->hosts, url, size));
    CHECK(within(u->hosts + u->hosts_len, url, size + 1));
    /* one host more, so that the first one comes again */
    for (i = 0; i <= u->count; i++) {
        CHECK(dq_url_host(u, i, &a) == NULL);
        CHECK(TERMINATED(a.host) && a.host[0]);
        CHECK(u->local ? a.port == 0 : a.port > 0 && a.port <= 65535);
    }
    CHECK(TERMINATED(u->user) && TERMINATED(u->password));
    CHECK(TERMINATED(u->service) && !u->service[0] == !u->sentinel);
    CHECK(u->db >= 0 && u->db <= 1000000);
    CHECK(u->login || (!u->user[0] && !u->password[0]));
}

/* Check that all inputs together have at most 64 error texts. If so, the texts
 * are constants, and none contains a part of an input. */
static void check_sentence(const char *text) {
    static char *seen[64];
    size_t i;
    CHECK(text[0] && strlen(text) < 200 && !strpbrk(text, "\r\n"));
    for (i = 0; i < 64 && seen[i]; i++)
        if (strcmp(seen[i], text) == 0) return;
    CHECK(i < 64);
    seen[i] = strdup(text);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    char *url = (char *)malloc(size + 1);
    const char *wrong;
    dq_url u;
    CHECK(url);
    if (size > 0) memcpy(url, data, size);
    url[size] = '\0';
    memset(&u, 0xa5, sizeof u);
    wrong = dq_url_parse(url, &u);
    if (!wrong) {
        check_fields(&u, url, size + 1);
    } else {
        CHECK(!within(wrong, url, size + 1) && !within(wrong, &u, sizeof u));
        check_sentence(wrong);
    }
    free(url);
    return 0;
}
