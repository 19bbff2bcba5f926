#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: LTP's tests of file systems and of asynchronous and direct I/O, on a device of ours over a disk. The
# arguments are a target (loop, mirror, or none for the disk itself, to compare), a file system (xfs or ext4), and tests
# as FILE of LTP's runtest, or FILE:NAME. Without any: all of fs and ltp-aiodio, on both file systems.
. /root/peers/lib.sh
modprobe -a ublk_drv loop
export LTPROOT=/root/ltp LD_LIBRARY_PATH=/root/programs/libs
export PATH=$PATH:$LTPROOT/testcases/bin LTP_COLORIZE_OUTPUT=0 LTP_TIMEOUT_MUL=10 KCONFIG_PATH=/lib/modules/$(uname -r)/config
disk() {
	echo "/dev/disk/by-id/virtio-$1"
}
mkdir -p /mnt/device

# one FILE NAME COMMAND: 32 is their word for a test that cannot run here.
one() {
	local name="$1 $2 $target $fs" code
	begin
	export TMPDIR=/mnt/device/$2
	mkdir -p "$TMPDIR"
	(cd "$TMPDIR" && timeout --kill-after=5 600 bash -c "$3") >"$out" 2>&1
	code=$?
	rm -rf "$TMPDIR"
	case $code in
	0) verdict pass "$name" ;;
	32) verdict skip "$name" "$(grep -m 1 -o 'TCONF.*' "$out")" ;;
	*) verdict fail "$name" "(exit code $code)" ;;
	esac
}

run() {
	target=$1 fs=$2
	shift 2
	# Some tests make file systems in a file on the device: of this kind alone.
	export LTP_SINGLE_FS_TYPE=$fs
	local device=/dev/ublkb0 part file only name command
	case $target in
	none) device=$(readlink -f "$(disk a)") ;;
	loop) handoff blk add loop "$(disk a)" --id 0 --queues 2 ;;
	mirror) handoff blk add mirror --no-record "$(disk a)" "$(disk b)" --id 0 --queues 2 ;;
	esac >"$out" 2>&1 || { verdict fail "$target"; exit 1; }
	mkfs."$fs" $([ "$fs" = xfs ] && echo -f || echo -F) -q $device && mount $device /mnt/device || exit 1
	for part in "$@"; do
		file=${part%%:*} only=${part#"$file"}
		while read -r name command; do
			case $name in '' | '#'*) continue ;; esac
			[ -z "$only" ] || [ "$only" = ":$name" ] || continue
			one "$file" "$name" "$command" </dev/null
		done <"$LTPROOT/runtest/$file"
	done
	umount /mnt/device
	begin
	# What is left of the file system is whole.
	case $fs in
	xfs) xfs_repair -n $device ;;
	ext4) e2fsck -fn $device ;;
	esac >"$out" 2>&1 && verdict pass "whole $target $fs" || verdict fail "whole $target $fs"
	[ "$target" = none ] || handoff blk del 0
}

if [ $# -gt 0 ]; then
	run "$@"
else
	for fs in ext4 xfs; do run loop $fs fs ltp-aiodio.part{1..4}; done
fi
exit 0
