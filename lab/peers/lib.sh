# SPDX-License-Identifier: MIT OR Apache-2.0
#
# What the guest's parts of scripts/peers share. Sourced.

out=/root/output
# Test directories lie on a disk of their own; the root disk is small.
if [ -e /dev/disk/by-id/virtio-scratch ] && ! mountpoint -q /mnt; then
	mkfs.ext4 -q /dev/disk/by-id/virtio-scratch
	mount /dev/disk/by-id/virtio-scratch /mnt
fi
export TMPDIR=/mnt
# Programs of the host, with their libraries, that the guest's userland lacks.
if [ -d /root/programs ]; then
	export PATH=$PATH:/root/programs/bin PYTHONPATH=/root/programs/python
fi
# There is no udev to wait for, and no log to write to.
for program in udevadm logger; do
	command -v $program >/dev/null && continue
	mkdir -p /usr/local/bin
	ln -s /bin/true /usr/local/bin/$program
done
. /root/peers/verdict.sh
