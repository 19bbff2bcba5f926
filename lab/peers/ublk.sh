#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: the kernel's tests of ublk (tools/testing/selftests/ublk), with our devices in place of kublk's.
# Each prints one line: pass, fail or skip, and its name. The arguments are the tests; all of them if none.
cd /root/ublk || exit 1
. /root/peers/lib.sh
install -m 755 /root/peers/kublk ./kublk

# Why a test cannot pass here, if it cannot.
not_ours() {
	case $1 in
	test_generic_03.sh) echo "(it expects kublk's own limits)" && return ;;
	esac
	if grep -q 'is in use by another device' "$out"; then
		echo "(two devices on one file are refused)"
	else
		grep -o -m 1 'handoff blk has no .*' "$out" | sed 's/.*/(&)/' | grep .
	fi
}

# What a test found missing before it began.
missing() {
	grep -m 1 -i 'require' "$out" | sed 's/.*/(&)/'
}

tests=("$@")
[ $# -gt 0 ] || tests=(test_*.sh)
for test in "${tests[@]}"; do
	case $test in test_common.sh) continue ;; esac
	begin
	timeout --kill-after=5 240 bash "./$test" >"$out" 2>&1
	code=$?
	./kublk del -a >>"$out" 2>&1
	case $code in
	0) verdict pass "$test" ;;
	4) verdict skip "$test" "$(missing)" ;;
	*) if why=$(not_ours "$test"); then verdict skip "$test" "$why"; else verdict fail "$test"; fi ;;
	esac
done
