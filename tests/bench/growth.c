/*
 * growth -- what the transfer of an item costs the server, by how many are
 * pending: with delayq on a native queue, with delayq and Redisson's mirror,
 * and with the published protocol. Items of 100 bytes, due in the order of
 * their offers or at random. Microseconds in scripts, by INFO commandstats: the
 * median of the transfers of 100, and the longest in ms.
 *
 *     growth [most pending, default 1000000]
 */
#include "bench.h"

#define BATCH 100
#define MOST 60 /* transfers measured */

enum kind { NATIVE, MIRRORED, PUBLISHED };

static redisContext *c;
static delayq q;
static char *sha;
static struct spread us[4][2][3]; /* 10^3 .. 10^6, order, kind */

/* How many of n are due: few, if one transfer takes a second. */
static int due_of(enum kind kind, int n, int shuffled) {
    if (kind != NATIVE && shuffled && n >= 1000000) return 1 * BATCH;
    if (kind != NATIVE && shuffled && n >= 100000) return 3 * BATCH;
    return n >= 10000 ? 20 * BATCH : n / 2;
}

/* Fill the queue and move the due items; adds samples: microseconds an item. */
static int measure(enum kind kind, int n, int shuffled, double *sample) {
    int due = due_of(kind, n, shuffled), left = due, count = 0;
    int64_t *times = due_times(n, due, shuffled);
    do_command(c, "FLUSHALL");
    if (kind != PUBLISHED) {
        open_bench(&q, kind == NATIVE ? DELAYQ_NATIVE : DELAYQ_REDISSON, 0);
        tick_now(&q);
        store(&q, times, n, 100);
    } else {
        store_published(c, times, n, 100);
    }
    free(times);
    do_command(c, "CONFIG RESETSTAT");
    while (left > 0) {
        double before = script_us(c);
        int moved = BATCH;
        if (kind == PUBLISHED)
            transfer_published(c, sha, BATCH);
        else
            moved = tick_now(&q);
        if (moved < 1) die("nothing moves");
        sample[count++] = (script_us(c) - before) / moved;
        left -= moved;
    }
    delayq_close(&q);
    return count;
}

/* One row: all kinds alternately, in more rounds if they are cheap. */
static void row(int k, int n, int shuffled, FILE *data) {
    double sample[3][3 * MOST];
    int count[3] = {0, 0, 0}, kind, round;
    struct spread *s = us[k][shuffled];
    for (round = 0; round < (n > 100000 ? 1 : 3); round++)
        for (kind = NATIVE; kind <= PUBLISHED; kind++)
            count[kind] += measure((enum kind)kind, n, shuffled,
                                   sample[kind] + count[kind]);
    printf("%-9d%-7s", n, shuffled ? "random" : "same");
    for (kind = NATIVE; kind <= PUBLISHED; kind++) {
        s[kind] = spread_of(sample[kind], count[kind]);
        printf(" |%9.2f%9.2f", s[kind].middle, s[kind].most * BATCH / 1000);
    }
    printf(" |%7.1f%7.1f\n", s[PUBLISHED].middle / s[NATIVE].middle,
           s[PUBLISHED].middle / s[MIRRORED].middle);
    if (data)
        fprintf(data, "%d %d %.3f %.3f %.3f\n", n, shuffled, s[NATIVE].middle,
                s[MIRRORED].middle, s[PUBLISHED].middle);
}

static void goal(const char *what, double value, const char *bound) {
    printf("%-58s%9.2f%10s\n", what, value, bound);
}

static void goals(int rows) {
    double worst = 0, grown = 0;
    int k, shuffled;
    for (shuffled = 0; shuffled < 2; shuffled++) {
        double ratio = us[rows - 1][shuffled][NATIVE].middle /
                       us[0][shuffled][NATIVE].middle;
        if (ratio > grown) grown = ratio;
        for (k = 0; k < rows; k++)
            if (us[k][shuffled][NATIVE].middle > worst)
                worst = us[k][shuffled][NATIVE].middle;
    }
    printf("%-58s%9s%10s\n", "", "", "goal");
    goal("native, us an item, at most", worst, "<= 2.5");
    goal("native, the most pending over 1,000", grown, "<= 2.5");
    if (rows < 3) return;
    goal("published over native, 100,000 at random",
         us[2][1][PUBLISHED].middle / us[2][1][NATIVE].middle, ">= 150");
    goal("published over mirror, 100,000 at random",
         us[2][1][PUBLISHED].middle / us[2][1][MIRRORED].middle, ">= 12");
}

int main(int argc, char **argv) {
    int most = argc > 1 ? atoi(argv[1]) : 1000000, n, k, shuffled;
    FILE *data = data_file("growth.dat");
    c = bare();
    sha = load(c, published_transfer);
    printf("%-16s |%9s%9s |%9s%9s |%9s%9s |%7s%7s\n", "transfer", "native us",
           "most ms", "mirror us", "most ms", "publ. us", "most ms", "native",
           "mirror");
    printf("%-9s%-7s |%9s%9s |%9s%9s |%9s%9s |%7s%7s\n", "pending", "order",
           "an item", "of 100", "an item", "of 100", "an item", "of 100",
           "times", "times");
    for (n = 1000, k = 0; n <= most && k < 4; n *= 10, k++)
        for (shuffled = 0; shuffled < 2; shuffled++) row(k, n, shuffled, data);
    goals(k);
    if (data) fclose(data);
    do_command(c, "FLUSHALL");
    return 0;
}
