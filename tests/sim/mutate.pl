#!/usr/bin/perl
# mutate.pl NUMBER MUTATIONS < delayq.h: prints the header with one mutation,
# and the mutation's name on stderr. Exits with 3 if no mutation has this
# number, and with 1 if the header does not contain the lines to remove exactly
# once.
# mutate.pl check MUTATIONS < delayq.h: checks that each mutation can be
# applied. Ends in "N passed, N failed, N skipped".
use strict;
use warnings;
my ($number, $file) = @ARGV;
open(my $in, '<', $file) or die "$file: $!\n";
my (%name, %old, %new, @numbers, $here);
while (<$in>) {
    if (/^== (\d+) (.*)/) {
        die "two mutations have the number $1\n" if defined $name{$1};
        $here = $1;
        push @numbers, $here;
        ($name{$here}, $old{$here}, $new{$here}) = ($2, '', '');
    }
    elsif ($here && /^-(.*)/s) { $old{$here} .= $1; }
    elsif ($here && /^\+(.*)/s) { $new{$here} .= $1; }
}
my $text = do { local $/; <STDIN> };
$text =~ s/^ *DQ_MARK\([a-z_]+\);\n//mg; # marks may be between the lines
$text =~ s/^ *if \([^\n]*\) DQ_MARK\([a-z_]+\);\n//mg;

# Returns a pattern for the lines to remove, and the number of its matches.
sub find {
    my $pattern = join('\s+', map { quotemeta } split(' ', $old{$_[0]}));
    my $found = () = $text =~ /$pattern/g;
    return ($pattern, $pattern eq '' ? 0 : $found);
}

if ($number eq 'check') {
    my $failed = 0;
    for my $n (@numbers) {
        my ($pattern, $found) = find($n);
        next if $found == 1;
        print "FAIL mutation $n, $name{$n}: what is to go stands there $found",
            " times\n";
        $failed++;
    }
    print @numbers - $failed, " passed, $failed failed, 0 skipped\n";
    exit($failed > 0);
}
exit 3 if !defined $name{$number};
print STDERR "$name{$number}\n";
my ($pattern, $found) = find($number);
if ($found != 1) {
    print STDERR "what is to go stands there $found times\n";
    exit 1;
}
$new{$number} =~ s/^\s+|\s+$//g;
$text =~ s/$pattern/$new{$number}/;
print $text;
