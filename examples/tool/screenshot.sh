#!/bin/sh
# Write watch.svg, a picture of `delayq watch` with three queues of demo data,
# on a private server and a terminal of 100 columns and 34 lines.
#
#     make build/delayq && sh examples/tool/screenshot.sh [BUILD [FILE]]
#
# Needs script (util-linux) and perl.
cd "$(dirname "$0")/../.." || exit 1
build=${1:-build}
svg=${2:-examples/tool/watch.svg}
if [ "$3" != on-a-server ]; then
    unset DELAYQ_URL
    exec sh tests/with-server.sh sh "$0" "$build" "$svg" on-a-server
fi
t() { "$build/delayq" "$@"; }

# --- demo data -----------------------------------------------------------------

mail() { # mail DELAY NUMBER...
    delay=$1
    shift
    for n; do
        t offer mails "$delay" "{\"to\":\"user$n@example.org\",\"invoice\":$n}" -q
    done
}
for n in 1 2 3 4 5; do
    t offer mails 0 "{\"to\":\"bounce$n@example.org\"}" -q
done
t take mails -n 3 --exec 'exit 65' --bury-on 65 -q
t take mails -n 2 --exec 'exit 1' --backoff 40s -q
mail 0 4001
t take mails --exec 'exit 1' --backoff 50ms -q
t take mails --wait 2s --exec 'exit 1' --backoff 90s -q
mail 0 4002 4003 4004 4005
t take mails -n 3 --lease 1m >/dev/null
seq 5000 5007 | sed 's/.*/{"to":"user&@example.org","invoice":&}/' |
    t offer mails 0 - -q
t tick mails --once -q
for delay in 4s 9s 30s 3m 8m 40m 3h 12h 2d; do
    seq 1 $((${#delay} * ${#delay} * 37)) |
        sed "s/.*/{\"to\":\"user&@example.org\",\"in\":\"$delay\"}/" |
        t offer mails $delay - -q
done
seq 1 1200 | sed 's/^/thumbnail /' | t offer thumbnails 20s - -q
seq 1 40 | t offer 'Überweisungen' 6h - -q

# --- the terminal --------------------------------------------------------------

out=$(mktemp) || exit 1
trap 'rm -f "$out"' EXIT
{ # while `watch` runs, the queue grows a little
    sleep 1.2
    seq 1 12 | sed 's/.*/{"to":"new&@example.org"}/' | t offer mails 15m - -q
} &
LC_ALL=C.UTF-8 TERM=xterm script -qec "stty cols 100 rows 34
    '$build/delayq' watch mails thumbnails 'Überweisungen' -n 3 -i 1s" \
    /dev/null </dev/null >"$out"
wait

perl -CSDA - "$out" >"$svg" <<'PERL'
use strict;
use warnings;
local $/;
open my $file, '<:utf8', $ARGV[0] or die;
my $all = <$file>;
$all =~ s/\r//g;
my @frames = split /\e\[H/, $all; # the last complete frame is used
my $frame = $frames[-1];
$frame =~ s/\e\[J.*//s;
$frame =~ s/\e\[\?[0-9]*[hl].*//s;
my ($columns, $rows, $w, $h) = (100, 34, 7.83, 17);
my $width = sprintf '%.0f', $columns * $w + 24;
my $height = $rows * $h + 24;
print qq{<svg xmlns="http://www.w3.org/2000/svg" width="$width" },
    qq{height="$height" viewBox="0 0 $width $height">\n},
    qq{<title>delayq watch</title>\n},
    qq{<rect width="100%" height="100%" rx="8" fill="#14181f"/>\n},
    qq{<g font-family="ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',},
    qq{monospace" font-size="13" fill="#d5dae3">\n};
sub columns { # returns the columns of a character
    my $c = ord $_[0];
    return $c >= 0x1100 && ($c < 0x1160 || ($c >= 0x2e80 && $c < 0xa4d0) ||
        ($c >= 0xac00 && $c < 0xd7a4) || ($c >= 0xff00 && $c < 0xff61)) ? 2 : 1;
}
my $y = 12;
for my $line (split /\n/, $frame) {
    my ($x, $style) = (0, '');
    for my $part (split /(\e\[[0-9;]*[mK])/, $line) {
        if ($part =~ /^\e\[([0-9]*)m/) { $style = $1; next }
        next if $part eq '' || $part =~ /^\e/;
        my $cells = 0;
        $cells += columns($_) for split //, $part;
        my $fill = $style eq '7' ? '#14181f' : $style eq '31' ? '#ff7b72'
            : $style eq '1' ? '#ffffff' : '';
        my $left = 12 + $x * $w;
        if ($style eq '7') {
            printf qq{<rect x="%.2f" y="%d" width="%.2f" height="%d" },
                $left, $y, $cells * $w, $h;
            print qq{fill="#aeb9c9"/>\n};
        }
        # draw bars as rectangles, since some fonts leave gaps between blocks
        while ($part =~ /([\x{2588}-\x{258f}]+)/g) {
            my ($bar, $before) = ($1, substr $part, 0, $-[0]);
            my ($at, $eighths) = (0, 0);
            $at += columns($_) for split //, $before;
            $eighths += 0x2590 - ord for split //, $bar;
            printf qq{<rect x="%.2f" y="%d" width="%.2f" height="%d" },
                $left + $at * $w, $y + 3, $eighths * $w / 8, $h - 6;
            printf qq{fill="%s"/>\n}, $style eq '31' ? '#ff7b72' : '#58a6ff';
        }
        (my $rest = $part) =~ s/[\x{2588}-\x{258f}]/ /g;
        $x += $cells;
        # give each text between blanks its own position, whatever the font
        for my $text (split /(\s{2,}|^\s+|\s+$)/, $rest) {
            my $used = 0;
            $used += columns($_) for split //, $text;
            my $at = $left;
            $left += $used * $w;
            next if $text =~ /^\s*$/;
            $text =~ s/&/&amp;/g;
            $text =~ s/</&lt;/g;
            $text =~ s/>/&gt;/g;
            printf qq{<text x="%.2f" y="%.1f" textLength="%.2f" }.
                qq{lengthAdjust="spacingAndGlyphs"%s%s>%s</text>\n}, $at,
                $y + $h - 4.5, $used * $w, $fill ? qq{ fill="$fill"} : '',
                $style eq '1' || $style eq '7' ? ' font-weight="600"' : '',
                $text;
        }
    }
    $y += $h;
}
print "</g>\n</svg>\n";
PERL
[ -s "$svg" ] && grep -q SCHEDULED "$svg" && echo "$svg"
