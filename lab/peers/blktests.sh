#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: of blktests the group ublk, with our devices in place of miniublk's, and those tests of the group block
# that take a device, each on devices of ours over two disks. The arguments are the tests.
. /root/peers/lib.sh
cd /root/blktests || exit 1
install -m 755 /root/peers/kublk src/miniublk
tests=("$@")
[ $# -gt 0 ] || tests=(ublk/00{1..6} block/00{3,4,5,7,8} block/01{1,2,9} block/036 block/04{1,2,3})
disk() {
	echo "/dev/disk/by-id/virtio-$1"
}

# judge NAME TEST OPTION...: one test, by ./check.
judge() {
	local name=$1 code
	shift
	begin
	timeout --kill-after=5 240 ./check "$@" >"$out" 2>&1
	code=$?
	if grep -q 'not run' "$out"; then
		verdict skip "$name" "$(sed -n '/not run/,$s/^    \(.*\)/(\1)/p' "$out" | head -n 1)"
	elif [ $code = 0 ]; then
		verdict pass "$name"
	else
		verdict fail "$name"
	fi
}

# on_devices TEST: on a device of each kind.
on_devices() {
	local target engine files
	for target in loop mirror; do
		for engine in bpf user-auto user-copy; do
			files=("$(disk a)")
			[ $target = loop ] || files+=("$(disk b)" --no-record)
			begin
			if ! handoff blk add $target "${files[@]}" --id 0 --queues 2 --engine $engine >"$out" 2>&1; then
				verdict fail "$1 $target $engine: no device"
				continue
			fi
			echo "TEST_DEVS=(/dev/ublkb0) TIMEOUT=10" >config
			judge "$1 $target $engine" -d "$1"
			handoff blk del 0 >"$out" 2>&1 || verdict fail "$1 $target $engine: the device stays"
		done
	done
	rm -f config
}

for test in "${tests[@]}"; do
	case $test in
	block/*) on_devices "$test" ;;
	*)
		judge "$test" "$test"
		src/miniublk del -a >"$out" 2>&1
		;;
	esac
done
exit 0
