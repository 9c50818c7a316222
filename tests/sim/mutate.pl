#!/usr/bin/perl
# mutate.pl NUMBER MUTATIONS < delayq.h: the header with one breakage; its name
# on stderr. Exits with 3 where there is no such number, with 1 where what is to
# go is not there exactly once.
use strict;
use warnings;
my ($number, $file) = @ARGV;
open(my $in, '<', $file) or die "$file: $!\n";
my ($name, $old, $new, $here) = ('', '', '', 0);
while (<$in>) {
    if (/^== (\d+) (.*)/) { $here = $1 == $number; $name = $2 if $here; }
    elsif ($here && /^-(.*)/s) { $old .= $1; }
    elsif ($here && /^\+(.*)/s) { $new .= $1; }
}
exit 3 if $name eq '';
print STDERR "$name\n";
my $pattern = join('\s+', map { quotemeta } split(' ', $old));
my $text = do { local $/; <STDIN> };
my $found = () = $text =~ /$pattern/g;
$new =~ s/^\s+|\s+$//g;
if ($found != 1) {
    print STDERR "what is to go stands there $found times\n";
    exit 1;
}
$text =~ s/$pattern/$new/;
print $text;
