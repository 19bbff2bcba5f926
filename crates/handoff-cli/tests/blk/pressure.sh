# A guest that is short of memory, with a file system and swap on devices of one engine: pages get dirty
# faster than they are written, hogs are put out, the OOM killer takes one, and a server is killed meanwhile.
# The devices are made of whole disks: a file system below would wait for memory as any other.
set -e
engine=$1
modprobe ublk_drv
mkdir -p /mnt/d
handoff blk add loop /dev/disk/by-id/virtio-one --engine "$engine" --id 1
handoff blk add loop /dev/disk/by-id/virtio-two --engine "$engine" --id 2
mkfs.ext4 -q /dev/ublkb1
mount /dev/ublkb1 /mnt/d
mkswap -q /dev/ublkb2
swapon /dev/ublkb2
dd if=/dev/urandom of=/mnt/d/random bs=1M count=60 status=none
cksum < /mnt/d/random > /run/sum
dd if=/dev/zero of=/mnt/d/dirty bs=1M count=150 status=none &
dirty=$!
(head -c 100M /dev/zero | tail > /dev/null) &
(head -c 100M /dev/zero | tail > /dev/null) &
tail /dev/zero &
hog=$!
kill -9 "$(pgrep -f 'blk serve' | head -n 1)"
wait $dirty
if wait $hog; then echo "the hog was not killed"; exit 1; fi
wait
sync
echo 3 > /proc/sys/vm/drop_caches
cksum < /mnt/d/random | cmp - /run/sum
cmp -n 150M /mnt/d/dirty /dev/zero
swapoff /dev/ublkb2
umount /mnt/d
fsck.ext4 -fn /dev/ublkb1
grep -q 'was killed by signal 9' /run/handoff/blk/*.log
handoff blk del --all
echo went on
