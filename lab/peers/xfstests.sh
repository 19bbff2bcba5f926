#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: xfstests on devices of ours, over four disks. The arguments are a target (loop, mirror, or none for the
# disks themselves, to compare), a file system (xfs or ext4), and tests or groups as ./check takes them. Without any:
# the quick group on both file systems and both targets.
. /root/peers/lib.sh
disk() {
	echo "/dev/disk/by-id/virtio-$1"
}
for name in fsgqa fsgqa2 123456-fsgqa; do
	id=$((1000 + ${#name}))
	echo "$name:x:$id:$id::/:/bin/bash" >>/etc/passwd
	echo "$name:x:$id:" >>/etc/group
done
# The libraries that are missing here. Its own programs, such as e2fsck, want its own.
cp -n /root/programs/libs/*.so* /usr/lib/x86_64-linux-gnu/
# Ordinary users run programs, some of which lie here.
chmod 755 /root
for part in auth account password session; do
	echo "$part required pam_permit.so" >"/etc/pam.d/common-$part"
done
# The device mapper makes its nodes itself. Tests settle udev then, and expect links to devices, as it makes them.
export DM_DISABLE_UDEV=1
rm -f /usr/local/bin/udevadm
cat >/usr/local/bin/udevadm <<'END'
#!/bin/sh
for node in /dev/mapper/*; do
	[ -L "$node" ] || [ ! -b "$node" ] || ln -sf "../dm-$((0x$(stat -c %T "$node")))" "$node"
done
END
chmod +x /usr/local/bin/udevadm
export KCONFIG_PATH=/lib/modules/$(uname -r)/config
# Who logs in has a keyring for all programs of the session. keyctl has brought its libraries; what it starts has the
# guest's.
session=$(command -v keyctl >/dev/null && echo "keyctl session - env -u LD_LIBRARY_PATH")
modprobe -a ublk_drv loop
mkdir -p /mnt/test /mnt/scratch

run() {
	local target=$1 fs=$2 test=/dev/ublkb0 scratch=/dev/ublkb1
	shift 2
	case $target in
	none) test=$(readlink -f "$(disk a)") scratch=$(readlink -f "$(disk b)") ;;
	loop) handoff blk add loop "$(disk a)" --id 0 && handoff blk add loop "$(disk b)" --id 1 ;;
	mirror) handoff blk add mirror --no-record "$(disk a)" "$(disk c)" --id 0 && handoff blk add mirror --no-record "$(disk b)" "$(disk d)" --id 1 ;;
	esac || exit 1
	mkfs."$fs" $([ "$fs" = xfs ] && echo -f || echo -F) -q "$test" || exit 1
	cat >/root/xfstests/local.config <<-END
	export FSTYP=$fs TEST_DEV=$test TEST_DIR=/mnt/test SCRATCH_DEV=$scratch SCRATCH_MNT=/mnt/scratch
	END
	(cd /root/xfstests && $session ./check "$@") 2>&1 |
		sed -n -u -e 's/^\([a-z0-9]*\/[0-9]\{3\}\).* \[not run\] \(.*\)/skip \1 (\2)/p;t' \
			-e 's/^\([a-z0-9]*\/[0-9]\{3\}\).* \[expunged\].*/skip \1 (expunged)/p;t' \
			-e 's/^\([a-z0-9]*\/[0-9]\{3\}\).*\(- output mismatch\|\[failed\).*/fail \1/p;t' \
			-e 's/^\([a-z0-9]*\/[0-9]\{3\}\)  *.*[0-9]s$/pass \1/p;t' -e 's/^/    | /p' |
		sed -u "s/^\(pass\|fail\|skip\) /\1 $target $fs /"
	umount /mnt/test /mnt/scratch 2>/dev/null
	[ "$target" = none ] && return
	handoff blk show 0 | sed 's/^/    | /'
	handoff blk del 0 && handoff blk del 1
}

if [ $# -gt 0 ]; then
	run "$@"
else
	for fs in xfs ext4; do
		for target in loop mirror; do run "$target" "$fs" -g quick; done
	done
fi
exit 0
