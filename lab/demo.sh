#!/bin/sh
# What `handoff lab demo` runs in the guest.
set -eu

title() {
    printf '\n== %s\n' "$*"
}

title "A guest with Debian's own kernel, nothing added"
uname -srv
# Drivers of mechanisms that many machines lack; the kernel brings them as modules.
for module in dummy ublk_drv rds_tcp; do
    modprobe "$module" && echo "loaded $module"
done

title "What works there: handoff doctor"
handoff doctor

title "The copy meter, on a copy between two files in memory: handoff meter -- dd"
dd if=/dev/urandom of=/tmp/from bs=1M count=16 status=none
handoff meter -- dd if=/tmp/from of=/tmp/to bs=64k status=none

title "A block device of two disks, its loop a BPF program in the kernel: handoff blk add linear"
handoff blk add linear /dev/disk/by-id/virtio-half-1 /dev/disk/by-id/virtio-half-2
device=/dev/ublkb0
mkfs.ext4 -q "$device"
mkdir /tmp/tree
mount "$device" /tmp/tree

title "A tree of files onto it: handoff meter -- cp"
tree=/usr/lib/modules/$(uname -r)/kernel/fs
handoff meter -- cp -a "$tree" /tmp/tree/copy | sed -n 1,6p

title "The tree read back from the disks and compared, and what the server copies meanwhile"
umount /tmp/tree
mount "$device" /tmp/tree
(cd "$tree" && find . -type f -exec sha256sum {} + > /tmp/sums)
handoff blk show 0 --witness 2s > /tmp/show &
rounds=0
while kill -0 $! 2> /dev/null; do
    # Else the second round would not reach the device.
    echo 3 > /proc/sys/vm/drop_caches
    (cd /tmp/tree/copy && sha256sum --check --quiet /tmp/sums)
    rounds=$((rounds + 1))
done
wait $!
echo "$(wc -l < /tmp/sums) files the same, $(du -sm "$tree" | cut -f1) MiB, read $rounds times"
# Without the histograms.
grep -v '^    ' /tmp/show
grep -q '^engine  *bpf$' /tmp/show
umount /tmp/tree
handoff blk del 0
