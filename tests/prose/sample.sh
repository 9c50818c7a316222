#!/bin/sh
# sample.sh SEED [COUNTS]: draw sentences at random from everything that people
# read. Somebody who has not written them then judges which of them are hard to
# understand at the first reading. COUNTS are the numbers of sentences from the
# header's public part, its implementation, the documents, and the comments of
# tests and examples, by default "40 60 70 30". A comment without a full stop is
# a sentence, too. Code and the tables in comments are left out. The same seed
# and text give the same sentences.
cd "$(dirname "$0")/../.." || exit 1
exec perl - "${1:?a seed is missing}" ${2:-40 60 70 30} <<'EOF'
use strict;
use warnings;
use Digest::MD5 'md5_hex';
my ($seed, @counts) = @ARGV;
my @parts = (['public header'], ['implementation'], ['documents'],
             ['tests and examples']);

# add PART FILE LINE TEXT: adds the sentences of a paragraph
sub add {
    my ($part, $file, $line, $text) = @_;
    $text =~ s/\s+/ /g;
    $text =~ s/^ | $//g;
    for my $s (split /(?<=[.!?:])["`)]? (?=["`(]?[A-Z])/, $text) {
        my @words = $s =~ /[A-Za-z]{2,}/g;
        push @{$parts[$part]}, "$file:$line: $s" if @words >= 5;
    }
}

# Adds the comments of a C file, except indented paragraphs (tables, code).
sub comments {
    my ($file, $part_of) = @_;
    open my $f, '<', $file or die "$file: $!\n";
    my ($inside, $text, $begin, $part, $lua) = (0, '', 0, 0, 0);
    my $flush = sub {
        add($part_of->($begin), $file, $begin, $text) if $text ne '';
        $text = '';
    };
    while (<$f>) {
        my $s;
        if ($inside) {
            $s = $_;
        } elsif (m{/\*(.*)}s) {
            my $code = substr($_, 0, index($_, '/*'));
            next if $code =~ /"/; # in a string
            ($inside, $s) = (1, " * $1");
        } else {
            next;
        }
        my $ends = $s =~ s{\*/.*}{}s;
        chomp $s;
        $s =~ s/^\s*\*? ?//;
        # "name -- purpose" and rulers are no sentences
        if ($s =~ /^\s*$/ || $s =~ /^[-=]{3}/ || $s =~ /^ {3,}/ ||
            $s =~ / {3,}\S/) {
            $flush->();
        } else {
            $begin = $. if $text eq '';
            $text .= " $s";
        }
        if ($ends) {
            $inside = 0;
            $flush->();
        }
    }
}

sub markdown {
    my ($file) = @_;
    open my $f, '<', $file or die "$file: $!\n";
    my ($code, $text, $begin) = (0, '', 0);
    while (<$f>) {
        chomp;
        $code = !$code if /^\s*```/;
        if ($code || /^\s*$/ || /^\s*```/ || /^    / || /^[#|<]/ ||
            /^\s*([-*]|\d+\.) /) {
            add(2, $file, $begin, $text) if $text ne '';
            $text = '';
            next if $code || /^\s*$/ || /^\s*```/ || /^    / || /^</;
            s/^#+ //;
            if (/^\|/) { # the cells of a table
                next if /^\|[-| :]+$/;
                add(2, $file, $., $_) for split /(?<!\\)\|/;
                next;
            }
            s/^\s*([-*]|\d+\.) //;
        }
        $begin = $. if $text eq '';
        $text .= " $_";
    }
    add(2, $file, $begin, $text) if $text ne '';
}

# Adds the comments of a shell script.
sub script {
    my ($file) = @_;
    open my $f, '<', $file or die "$file: $!\n";
    my ($text, $begin) = ('', 0);
    while (<$f>) {
        if (/^\s*# ?(?! {3})(?!!)(\S.*)/) {
            $begin = $. if $text eq '';
            $text .= " $1";
        } else {
            add(3, $file, $begin, $text) if $text ne '';
            $text = '';
        }
    }
}

# Adds the paragraphs of a manual page.
sub manual {
    my ($file) = @_;
    open my $f, '<', $file or die "$file: $!\n";
    my ($code, $text, $begin) = (0, '', 0);
    while (<$f>) {
        chomp;
        if (/^\.(Sh|Ss|Pp|It|Bl|El|Bd|Ed|D[dt1l]|Os|Nd)\b/) {
            $code = 1 if /^\.Bd/;
            $code = 0 if /^\.(Ed|Sh)/;
            add(2, $file, $begin, $text) if $text ne '';
            $text = '';
        } elsif (!$code && !/^\.\\"/) {
            s/^\.Nm\b/delayq/;
            s/^\.[A-Z][a-z]\b//;
            s/\b(Ar|Cm|Em|Ev|Fl|Li|Nm|Ns|Op|Oo|Oc|Pa|Sy|Xr)\b *//g;
            s/ ([.,;:)])$/$1/;
            s/\\[-&]//g;
            $begin = $. if $text eq '';
            $text .= " $_";
        }
    }
    add(2, $file, $begin, $text) if $text ne '';
}

my $public = 0;
open my $h, '<', 'delayq.h' or die;
while (<$h>) { $public = $. if /You can stop reading here/ }
comments('delayq.h', sub { $_[0] <= $public ? 0 : 1 });
for my $file (split /\n/, `git ls-files`) {
    next if $file =~ m{^tests/old/};
    markdown($file) if $file =~ /\.md$/;
    manual($file) if $file =~ /\.1$/;
    comments($file, sub { 3 }) if $file =~ m{^(tests|examples)/.*\.[ch]$};
    script($file) if $file =~ m{^(tests|examples)/.*\.sh$};
}
for my $i (0 .. 3) {
    my ($name, @all) = @{$parts[$i]};
    my %by = map { md5_hex("$seed $_") => $_ } @all;
    my @drawn = grep { defined } (map { $by{$_} } sort keys %by)[0 .. $counts[$i] - 1];
    print "\n# $name: ", scalar @drawn, ' of ', scalar @all, "\n\n";
    print "$_\n" for @drawn;
}
EOF
