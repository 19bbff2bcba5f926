#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# HAProxy's tests of splicing, with `handoff relay` in its place (splice-relay), by each engine that needs no module. The
# arguments are the tests.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
tests=("$@")
[ $# -gt 0 ] || tests=(http_splicing http_splicing_chunk http_bodyless_spliced_response)
for test in "${tests[@]}"; do
	begin
	test=${test%.vtc}
	if grep -q '^ *http-request ' "$SUITE/reg-tests/http-messaging/$test.vtc"; then
		verdict skip "$test" "a relay reads no HTTP: HAProxy makes GET of the client's HEAD here, and drops the bodies"
		continue
	fi
	for engine in auto splice memory copy; do
		begin
		if "$here/splice-relay" "$engine" <"$SUITE/reg-tests/http-messaging/$test.vtc" >"$out.vtc" &&
			timeout --kill-after=5 120 varnishtest -t 60 "$out.vtc" >"$out" 2>&1; then
			verdict pass "$test by $engine"
		else
			verdict fail "$test by $engine"
		fi
	done
done
rm -f "$out.vtc"
exit 0
