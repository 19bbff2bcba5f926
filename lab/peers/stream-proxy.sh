#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# nginx-tests of nginx's stream proxy, with `handoff relay` in its place (stream-proxy), by each engine that needs no
# module. The arguments are the tests.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
cd "$SUITE" || exit 1
tests=("$@")
[ $# -gt 0 ] || tests=(stream_proxy.t stream_proxy_half_close.t stream_proxy_next_upstream.t)

# Why a check asks for what a relay does not have, if it does.
not_applicable() {
	case $1 in
	'next on' | 'next tries') echo "a relay has one target" ;;
	'next down' | 'next down log') echo "a relay has one target, and no log of the targets that it tried" ;;
	esac
}

for test in "${tests[@]}"; do
	for engine in auto splice memory copy; do
		begin
		ENGINE=$engine TEST_NGINX_BINARY=$here/stream-proxy timeout --kill-after=5 240 prove -v "$test" >"$out" 2>&1
		code=$?
		before=0
		while read -r result number check; do
			check=${check#- } before=$((before + 1)) name="$test by $engine: $check"
			# Each file ends with two checks of what nginx writes into its log.
			case $check in 'no alerts' | 'no sanitizer errors') continue ;; esac
			why=$(not_applicable "$check")
			if [ -n "$why" ]; then
				echo "skip $name: $why"
			elif [ "$result" = ok ]; then
				verdict pass "$name"
			else
				verdict fail "$name"
			fi
		done < <(sed -n 's/^\(not ok\|ok\) \([0-9]*\)/\1 \2/p' "$out" | sed 's/^not ok/not-ok/')
		planned=$(sed -n 's/^1\.\.//p' "$out")
		[ "$before" = "${planned:-none}" ] || verdict fail "$test by $engine" "(exit code $code; checks: $before of ${planned:-none})"
	done
done
exit 0
