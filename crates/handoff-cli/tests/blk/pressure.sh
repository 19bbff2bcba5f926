# A guest that is short of memory, with a file system on a device of one engine and swap on another's. Pages
# get dirty faster than they are written, hogs are put out, and the OOM killer takes one. When memory is short,
# the servers are killed: both, then that of the swap, then that of the file system.
# The devices are made of whole disks: a file system below would wait for memory as any other.
set -e
rounds=$3
file_system=$4
modprobe ublk_drv
mkdir -p /mnt/d
handoff blk add loop /dev/disk/by-id/virtio-one --engine "$1" --id 1
handoff blk add loop /dev/disk/by-id/virtio-two --engine "$2" --id 2
"mkfs.$file_system" -q /dev/ublkb1
mount /dev/ublkb1 /mnt/d
mkswap -q /dev/ublkb2
swapon /dev/ublkb2
dd if=/dev/urandom of=/mnt/d/random bs=1M count=60 status=none
cksum < /mnt/d/random > /run/sum
server() { handoff blk show "$1" | sed -n 's/^server *process //p'; }
for round in $(seq "$rounds"); do
	one=$(server 1)
	two=$(server 2)
	dd if=/dev/zero of=/mnt/d/dirty bs=1M count=150 status=none &
	dirty=$!
	(head -c 60M /dev/zero | tail > /dev/null) &
	(head -c 60M /dev/zero | tail > /dev/null) &
	tail /dev/zero &
	hog=$!
	# Until a quarter of the swap is taken.
	while kill -0 $hog && read -r _ free _ < <(grep SwapFree /proc/meminfo) && [ "$free" -gt 98000 ]; do
		sleep 0.1
	done
	case $((round % 3)) in
	0) kill -9 "$one" ;;
	1) kill -9 "$one" "$two" ;;
	2) kill -9 "$two" ;;
	esac
	wait $dirty
	if wait $hog; then echo "the hog was not killed"; exit 1; fi
	wait
	cmp -n 150M /mnt/d/dirty /dev/zero
	rm /mnt/d/dirty
	echo "round $round: $(cut -d ' ' -f 1 /proc/uptime) s"
done
sync
echo 3 > /proc/sys/vm/drop_caches
cksum < /mnt/d/random | cmp - /run/sum
swapoff /dev/ublkb2
umount /mnt/d
case $file_system in
ext4) fsck.ext4 -fn /dev/ublkb1 ;;
xfs) xfs_repair -n /dev/ublkb1 ;;
esac
grep -q 'was killed by signal 9' /run/handoff/blk/*.log
handoff blk del --all
echo went on
