# SPDX-License-Identifier: MIT OR Apache-2.0
#
# How the parts of scripts/peers tell results: a line for each test. $out is a file with what the test printed. Sourced.

begin() {
	: >"$out"
}

# Tells how one test ended; of one that did not pass, the end of what it printed.
verdict() {
	echo "$1 $2 ${3:-}"
	[ "$1" = pass ] || tail -n 15 "$out" | sed 's/^/    | /'
}
