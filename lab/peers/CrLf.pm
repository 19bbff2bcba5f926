# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Put before nginx's tests: the lines of their requests end by CR and LF. Many end by LF alone there, which nginx takes,
# and Handoff refuses (RFC 9112, 2.2: a server may do either).
package CrLf;

use strict;
use warnings;

use Test::Nginx;

my $start = \&Test::Nginx::http_start;

no warnings 'redefine';

*Test::Nginx::http_start = sub ($;%) {
	my ($request, %extra) = @_;
	$request =~ s/(?<!\x0d)\x0a/\x0d\x0a/g;
	return $start->($request, %extra);
};

1;
