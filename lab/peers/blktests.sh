#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: the ublk group of blktests, with our devices in place of miniublk's. The arguments are the tests.
. /root/peers/lib.sh
cd /root/blktests || exit 1
install -m 755 /root/peers/kublk src/miniublk
tests=("$@")
[ $# -gt 0 ] || tests=(ublk/001 ublk/002 ublk/003 ublk/004 ublk/005 ublk/006)
for test in "${tests[@]}"; do
	begin
	timeout --kill-after=5 240 ./check "$test" >"$out" 2>&1
	code=$?
	src/miniublk del -a >>"$out" 2>&1
	if grep -q 'not run' "$out"; then
		verdict skip "$test"
	elif [ $code = 0 ]; then
		verdict pass "$test"
	else
		verdict fail "$test"
	fi
done
