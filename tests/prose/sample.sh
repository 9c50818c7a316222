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

# The paragraph that is being read, and the line at which it begins.
my ($part, $file, $begin, $text) = (0, '', 0, '');

sub more {
    $begin = $. if $text eq '';
    $text .= " $_[0]";
}

sub end_paragraph {
    add($part, $file, $begin, $text) if $text ne '';
    $text = '';
}

# Calls read_line for each line of $file. The line is in $_.
sub each_line {
    my ($read_line) = @_;
    open my $f, '<', $file or die "$file: $!\n";
    while (<$f>) {
        chomp;
        $read_line->();
    }
    end_paragraph();
}

# Adds the comments of a C file, except indented paragraphs (tables, code).
sub comments {
    my $inside = 0;
    each_line(sub {
        my $s = $_;
        if (!$inside) {
            return unless m{^[^"]*?/\*(.*)}; # no "/*" in a string
            ($inside, $s) = (1, " * $1");
        }
        my $ends = $s =~ s{\*/.*}{};
        $s =~ s/^\s*\*? ?//;
        # "name -- purpose" and rulers are no sentences
        if ($s =~ /^\s*$/ || $s =~ /^[-=]{3}/ || $s =~ /^ {3,}/ ||
            $s =~ / {3,}\S/) {
            end_paragraph();
        } else {
            more($s);
        }
        if ($ends) {
            $inside = 0;
            end_paragraph();
        }
        $part = 1 if $file eq 'delayq.h' && /You can stop reading here/;
    });
}

sub markdown {
    my $code = 0;
    each_line(sub {
        $code = !$code if /^\s*```/;
        if ($code || /^\s*$/ || /^\s*```/ || /^    / || /^[#|<]/ ||
            /^\s*([-*]|\d+\.) /) {
            end_paragraph();
            return if $code || /^\s*$/ || /^\s*```/ || /^    / || /^</;
            s/^#+ //;
            if (/^\|/) { # the cells of a table
                return if /^\|[-| :]+$/;
                add($part, $file, $., $_) for split /(?<!\\)\|/;
                return;
            }
            s/^\s*([-*]|\d+\.) //;
        }
        more($_);
    });
}

# Adds the comments of a shell script.
sub script {
    each_line(sub {
        if (/^\s*# ?(?! {3})(?!!)(\S.*)/) {
            more($1);
        } else {
            end_paragraph();
        }
    });
}

# Adds the paragraphs of a manual page.
sub manual {
    my $code = 0;
    each_line(sub {
        if (/^\.(Sh|Ss|Pp|It|Bl|El|Bd|Ed|D[dt1l]|Os|Nd)\b/) {
            $code = 1 if /^\.Bd/;
            $code = 0 if /^\.(Ed|Sh)/;
            end_paragraph();
        } elsif (!$code && !/^\.\\"/) {
            s/^\.Nm\b/delayq/;
            s/^\.[A-Z][a-z]\b//;
            s/\b(Ar|Cm|Em|Ev|Fl|Li|Nm|Ns|Op|Oo|Oc|Pa|Sy|Xr)\b *//g;
            s/ ([.,;:)])$/$1/;
            s/\\[-&]//g;
            more($_);
        }
    });
}

for (split /\n/, `git ls-files`) {
    $file = $_;
    next if $file =~ m{^tests/old/};
    my $for_users = $file =~ /\.(md|1)$/;
    next unless $file eq 'delayq.h' || $for_users || $file =~ m{^(tests|examples)/};
    $part = $file eq 'delayq.h' ? 0 : $for_users ? 2 : 3;
    markdown() if $file =~ /\.md$/;
    manual() if $file =~ /\.1$/;
    comments() if $file =~ /\.[ch]$/;
    script() if $file =~ /\.sh$/;
}
for my $i (0 .. 3) {
    my ($name, @all) = @{$parts[$i]};
    my %by = map { md5_hex("$seed $_") => $_ } @all;
    my @drawn = grep { defined } (map { $by{$_} } sort keys %by)[0 .. $counts[$i] - 1];
    print "\n# $name: ", scalar @drawn, ' of ', scalar @all, "\n\n";
    print "$_\n" for @drawn;
}
EOF
