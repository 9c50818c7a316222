#!/bin/sh
# Checks of the documentation, which is all *.md of the tree. Every example must
# compile. Every link must lead to a file and a heading. Every name, target and
# file must exist. If a product is in the benches, the documents may name only
# the version that the benches use. The README is short, and its first program
# is examples/hello.c. Web links are checked only for their form. Ends in "N
# passed, N failed, N skipped".
cd "$(dirname "$0")/.." && . tests/lib.sh || exit 1
warn="-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Werror"
cc=${CC:-cc}
documents=$(find . -name '*.md' ! -path './build/*' ! -path './.git/*' \
    ! -path '*/node_modules/*' | sed 's|^\./||' | sort)

# --- links ---------------------------------------------------------------------

# links DOCUMENT...: prints a line for each link that leads nowhere, and at the
# end the number of good links. Anchors are made from headings in the same way
# as on the code hosts.
links() { perl -e '
    use strict; use File::Basename; use File::Spec;
    my ($good, %anchors) = (0);
    sub text { # the lines of a file, without code
        open(my $f, "<", $_[0]) or die "$_[0]: $!\n";
        my ($code, @lines) = 0;
        while (<$f>) {
            if (/^```/) { $code = !$code; $_ = "\n" }
            push @lines, $code || /^    / ? "\n" : $_;
        }
        return @lines;
    }
    sub anchors {
        my ($path) = @_;
        return $anchors{$path} if $anchors{$path};
        my (%seen, %all);
        for (grep { /^#+ / } text($path)) {
            s/^#+ +//; s/\s+$//; s/\[([^\]]*)\]\([^)]*\)/$1/g;
            $_ = lc; s/[^\w\- ]//g; s/ /-/g;
            my $n = $seen{$_}++;
            $all{$n ? "$_-$n" : $_} = 1;
        }
        return $anchors{$path} = \%all;
    }
    for my $doc (@ARGV) {
        my $all = join("", text($doc));
        $all =~ s/`[^`]*`/x/g;
        while ($all =~ /\]\(([^)]*)\)/g) {
            my $to = $1;
            if ($to =~ /^[a-z]+:/) {
                $to =~ m{^https?://[\w.-]+\.[a-z]+(:\d+)?(/\S*)?$} ? $good++ :
                    print "$doc: $to is no address\n";
                next;
            }
            my ($file, $anchor) = $to =~ /^([^#]*)(?:#(.*))?$/;
            my $path = $file eq "" ? $doc : dirname($doc) . "/$file";
            if (! -e $path) { print "$doc: no file $to\n" }
            elsif (defined $anchor && (-d $path || $path !~ /\.md$/ ||
                !anchors($path)->{$anchor})) { print "$doc: no heading $to\n" }
            else { $good++ }
        }
    }
    print "$good\n"' "$@"; }

# links() must find broken links.
mkdir "$dir/web"
printf '# A b_c, `d`!\n\n## Same\n\n## Same\n\n```\n[x](in-code)\n```\n' \
    >"$dir/web/good.md"
cat >"$dir/web/bad.md" <<'END'
[1](good.md) [2](good.md#a-b_c-d) [3](good.md#same-1) [4](https://redis.io/x)
[5](.) `[no](link)` ![6](good.md)
[broken
over lines](gone.md) [b](good.md#same-2) [c](#nothing) [d](http:/redis.io)
END
if [ "$(links "$dir/web/bad.md" | sed 's|.*/web/||' | tr '\n' ';')" = "bad.md: \
no file gone.md;bad.md: no heading good.md#same-2;bad.md: no heading #nothing;\
bad.md: http:/redis.io is no address;6;" ]; then ok; else
    bad "the test finds links that lead nowhere"
    links "$dir/web/bad.md"
fi

links $documents >"$dir/links"
sed '$d' "$dir/links" >"$dir/broken"
while read -r line; do bad "$line"; done <"$dir/broken"
passed=$((passed + $(tail -n 1 "$dir/links")))

# --- examples ------------------------------------------------------------------

# Extract each block to $dir/blocks/DOCUMENT-NUMBER.LANGUAGE. A ```c block is a
# whole program if it has a main, otherwise a piece of one. Shell blocks are
# only parsed.
mkdir "$dir/blocks"
for document in $documents; do
    awk -v to="$dir/blocks/$(echo "$document" | tr / -)" '
        on && /^```$/ { on = 0; close(file); next }
        on { print > file }
        /^```(c|sh)$/ { on = 1; n++; file = to "-" n "." substr($0, 4) }
        ' "$document"
done
# An example must include all headers that it uses. So these copies of hiredis'
# headers lack <stdlib.h>, as do the headers of newer versions of hiredis.
mkdir "$dir/include"
cp -R "$(echo '#include <hiredis/hiredis.h>' | $cc -E - |
    sed -n 's|^# 1 "\(.*/hiredis\)/hiredis\.h".*|\1|p' | head -n 1)" "$dir/include"
sed -i '/^#include <stdlib\.h>/s/stdlib/stddef/' "$dir"/include/hiredis/*.h
check "hiredis' headers include no others for the examples" \
    test -f "$dir/include/hiredis/hiredis.h"
programs=0
for file in "$dir"/blocks/*.c; do
    where=${file##*/}
    if grep -q '<event2/' "$file" && ! echo '#include <event2/event.h>' |
        $cc -E - >/dev/null 2>&1; then
        skip "libevent is not installed: install libevent-dev"
    elif grep -q 'main(' "$file"; then
        libs=-lhiredis
        ! grep -q '<event2/' "$file" || libs="$libs -levent_core"
        check "the program compiles: $where" $cc -std=c99 $warn -I. \
            -isystem "$dir/include" "$file" $libs -o "$dir/program"
        programs=$((programs + 1))
    else
        printf '%s\n' '#include "delayq.h"' '#include <stdio.h>' \
            '#include <stdlib.h>' '#include <string.h>' '#include <poll.h>' \
            '#include <time.h>' '#include <unistd.h>' \
            'void piece(delayq q, delayq_options options, delayq_item item);' \
            'void piece(delayq q, delayq_options options, delayq_item item) {' \
            '(void)q; (void)options; (void)item;' >"$dir/piece.c"
        cat "$file" >>"$dir/piece.c"
        echo '}' >>"$dir/piece.c"
        check "the piece compiles: $where" \
            $cc -std=c99 -Wall -Werror -I. -isystem "$dir/include" -c "$dir/piece.c" \
            -o "$dir/piece.o"
    fi
done
check "there are programs among the examples" [ $programs -ge 1 ]
for file in "$dir"/blocks/*.sh; do
    check "the shell can read ${file##*/}" sh -n "$file"
done

# --- the README ----------------------------------------------------------------

wish "README.md has more than 250 lines" [ "$(wc -l <README.md)" -le 250 ]
block=$(awk '/^```c$/ { on = 1; next } on && /^```$/ { exit } on' README.md)
if [ "$block" = "$(sed '1,/^ \*\/$/d' examples/hello.c)" ]; then ok; else
    bad "the README's first program is not that of examples/hello.c"
fi

# --- names ---------------------------------------------------------------------

# in backticks, a name of four or more words with _ is the name of a test
cat tests/*.c tests/*/*.c | tr -c 'a-z0-9_' '\n' | sort -u >"$dir/words"
unknown=$(grep -o '`[a-z0-9]*_[a-z0-9]*_[a-z0-9]*_[a-z0-9_]*`' tests/README.md |
    tr -d '`' | sort -u | comm -23 - "$dir/words")
check "the tests that tests/README.md names exist, not: $unknown" \
    [ -z "$unknown" ]

# shellcheck disable=SC2086
for name in $(grep -o -h -w -e 'delayq_[a-z_]*' -e 'DELAYQ_[A-Z_]*' $documents \
    examples/*.c examples/*/*.c | sort -u); do
    case $name in
    delayq_) ;; # the name of a package
    delayq_retry | delayq_dead | delayq_sent | delayq_stream | DELAYQ_URL) ;;
    delayq_counters | delayq_offered_total | delayq_taken_total) ;;
    delayq_acked_total | delayq_nacked_total | delayq_died_total) ;;
    delayq_canceled_total) ;;
    DELAYQ_NAME | DELAYQ_TICKET | DELAYQ_ATTEMPT) ;; # the tool's variables
    DELAYQ_DUE_MS | DELAYQ_LATE_MS) ;;
    DELAYQ_TEST_KILLS | DELAYQ_TEST_SECONDS | DELAYQ_TEST_SEED) ;; # variables of the tests
    delayq_up | delayq_pending | delayq_ready | delayq_overdue) ;;
    delayq_overdue_seconds | delayq_next_due_timestamp_seconds) ;; # metrics
    *) if grep -q -w -e "$name" delayq.h; then ok; else
        bad "$name is named, but not in delayq.h"
    fi ;;
    esac
done
# the options, make targets and source files in the documents must exist
# shellcheck disable=SC2086
for name in $(grep -o -h 'options\.[a-z_]*' $documents | sort -u); do
    check "$name is an option" grep -q "[ *]${name#options.}[;)]" delayq.h
done
# shellcheck disable=SC2086
for target in $(grep -o -h '`make [a-z-]*' $documents | sed 's/.* //' |
    sort -u); do
    check "make $target exists" grep -q "^[a-z -]*\b$target\b[a-z -]*:" Makefile
done
find . -path ./build -prune -o -name '*.[ch]' -print >"$dir/sources"
# shellcheck disable=SC2086
for file in $(grep -o -h '`[a-z_/]*[a-z]\.[ch]`' $documents | tr -d '`' |
    grep -v -x -e 'app\.c' -e 'delayq_impl\.c' | sort -u); do
    check "$file exists" grep -q "/$file\$" "$dir/sources"
done

# peer PRODUCT VERSION: the documents may name only the benches' version
peer() {
    # shellcheck disable=SC2086
    seen=$(grep -o -h "$1 [0-9][0-9.]*[0-9]" $documents | sort -u |
        sed 's/.* //' | tr '\n' ' ')
    check "$1 is named in one version: $seen" [ "$seen" = "$2 " ]
}
peers=tests/bench/peers
peer BullMQ "$(sed -n 's/.*"bullmq": "\(.*\)".*/\1/p' $peers/package.json)"
peer asynq "$(sed -n 's/.*hibiken\/asynq v//p' $peers/go.mod)"
peer NATS "$(sed -n 's/.*nats-server\/v2 v\([0-9.]*\).*/\1/p' $peers/go.mod)"
peer Sidekiq 8.1.7
peer beanstalkd 1.12

summary
