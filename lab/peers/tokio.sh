#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tokio's own tests of sockets, on `handoff::tokio`, with a ring and without. The arguments are names of tests, if not all.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
cd "$WORK" || exit 1
for ring in with without; do
	begin
	[ $ring = with ] || export WITHOUT_RING=1
	timeout --kill-after=5 600 cargo test --quiet --no-fail-fast -- --format pretty "$@" >"$out" 2>&1
	code=$?
	# cargo names the program before its tests, and a panic's words come after them.
	while read -r _ name _ result; do
		case $result in
		ok) verdict pass "$name, $ring a ring" ;;
		*) verdict fail "$name, $ring a ring" ;;
		esac
	done < <(grep -E '^test [^ ]+ \.\.\. ' "$out")
	[ $code -eq 0 ] || verdict fail "all of it, $ring a ring" "(exit code $code)"
done
while IFS=$'\t' read -r name why; do
	case $name in
	'#'*) ;;
	*' *')
		tests=$(grep -c '^ *#\[tokio::test\|^#\[test\]' "$SUITE/tokio/tests/${name% *}.rs")
		echo "skip ${name% *}: its $tests tests: $why"
		;;
	*) [ "$why" = - ] || echo "skip $name: $why" ;;
	esac
done <"$WORK/left-out"
exit 0
