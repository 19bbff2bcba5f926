#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: golang.org/x/net's tests of a connection, through `handoff relay` by each engine. The arguments are the
# engines.
. /root/peers/lib.sh
modprobe getbuf
begin
engines=$*
timeout --kill-after=5 600 relay.test -test.v -test.run "TestRelay/^(${engines// /|})" >"$out" 2>&1
code=$?
# Of what Go prints, the tests below an engine's two ends.
grep -o -E -e '--- (PASS|FAIL|SKIP): TestRelay/[^ ]+' "$out" | while read -r _ result name; do
	name=${name#TestRelay/}
	case $result:$name in
	PASS:*/*/* | FAIL:*/*/*) echo "$(echo "${result%:}" | tr A-Z a-z) $name" ;;
	SKIP:*) echo "skip $name $(sed -n "/=== RUN   TestRelay\/$name\$/,/^===/s/^ *relay_test.go:[0-9]*: //p" "$out")" ;;
	FAIL:*) verdict fail "$name" ;;
	esac
done
[ $code -eq 0 ] || verdict fail "all of it" "(exit code $code)"
exit 0
