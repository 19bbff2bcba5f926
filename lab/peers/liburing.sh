#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: tests of liburing of what this project uses, while our module getbuf hooks into the ring's
# tables. The arguments are the tests; 77 is their word for a skip.
. /root/peers/lib.sh
modprobe getbuf
modprobe ublk_drv
echo 8 >/proc/sys/vm/nr_hugepages
cd /root/liburing || exit 1
tests=("$@")
[ $# -gt 0 ] || tests=(*.t)
for test in "${tests[@]}"; do
	begin
	timeout --kill-after=5 600 "./$test" >"$out" 2>&1
	code=$?
	case $code in
	0) verdict pass "$test" ;;
	77) verdict skip "$test" ;;
	*) verdict fail "$test" "(exit code $code)" ;;
	esac
done
