# In a guest with systemd, with the disks `data` and `images` that outlive it: file systems on block devices, with data
# that nobody has synced, when the machine is restarted or switched off ($1). The next guest looks what is there.
set -eu
. /root/shared.sh
modprobe loop
data=/dev/disk/by-id/virtio-data
images=/dev/disk/by-id/virtio-images
install /root/packages/handoff_*.deb
mkdir -p /data /images /hand /upper /session
# One device of a disk, which fstab mounts; one of a file on another mount, which somebody mounts by hand; and one with
# a loop device on it, which systemd detaches last of all. The fourth is made in somebody's session, without a unit.
echo "ARGUMENTS=loop $data --id 7" >/etc/handoff/blk.d/data.conf
echo "ARGUMENTS=loop /images/image --id=8" >/etc/handoff/blk.d/hand.conf
echo "ARGUMENTS=loop /images/lower --id 9" >/etc/handoff/blk.d/lower.conf
cat >>/etc/fstab <<END
$images /images ext4 nofail 0 2
/dev/ublkb7 /data ext4 nofail,noauto,x-systemd.requires=handoff-blk@data.service 0 2
END

in_session() { quietly systemd-run --quiet --scope --slice=user.slice handoff blk add loop /images/session --id 10; }

look() {
    mount "$images" /images
    quietly systemctl start handoff-blk@data handoff-blk@hand handoff-blk@lower
    losetup /dev/loop7 /dev/ublkb9
    in_session
    for node in /dev/ublkb7 /dev/ublkb8 /dev/loop7 /dev/ublkb10; do
        # It was unmounted, so there is no journal to be replayed.
        ! dumpe2fs -h $node 2>&1 | grep needs_recovery || exit 1
        quietly fsck.ext4 -f -n $node
    done
    mount /dev/ublkb7 /data
    mount /dev/ublkb8 /hand
    mount /dev/loop7 /upper
    mount /dev/ublkb10 /session
    for place in /data /hand /upper /session; do
        (cd $place && quietly sha256sum --check sums)
    done
    umount /data /hand /upper /session
    losetup --detach /dev/loop7
    quietly systemctl stop handoff-blk@data handoff-blk@hand handoff-blk@lower
    until_true handoff blk del 10
    umount /images
}
write() {
    head -c 20M /dev/urandom >$1/random
    seq 100000 >$1/numbers
    (cd $1 && sha256sum random numbers >sums)
}

case $1 in
begin)
    quietly mkfs.ext4 -q -F $images
    mount $images /images
    truncate -s 56M /images/image
    truncate -s 56M /images/lower
    truncate -s 56M /images/session
    quietly systemctl start handoff-blk@data handoff-blk@hand handoff-blk@lower
    in_session
    quietly mkfs.ext4 -q /dev/ublkb7
    quietly mkfs.ext4 -q /dev/ublkb8
    quietly mkfs.ext4 -q /dev/ublkb9
    quietly mkfs.ext4 -q /dev/ublkb10
    until_true handoff blk del 10
    quietly systemctl stop handoff-blk@data handoff-blk@hand handoff-blk@lower
    umount /images
    ;;
*) look ;;
esac
systemctl daemon-reload
# What must be there before, and what ends before.
ordered() { systemctl show --value --property "$2" "$1" | tr ' ' '\n' | grep -qxF "$3" || { echo "$1: not $2 $3"; exit 1; }; }
ordered handoff-blk@hand After images.mount
ordered handoff-blk@hand Requires images.mount
systemctl show --value --property After handoff-blk@data | grep -q 'dev-disk-by.*virtio.*data\.device'
ordered handoff-blk@data Before blockdev@dev-ublkb7.target
ordered data.mount After handoff-blk@data.service
ordered data.mount Requires handoff-blk@data.service

quietly systemctl start images.mount data.mount handoff-blk@hand handoff-blk@lower
mount /dev/ublkb8 /hand
losetup /dev/loop7 /dev/ublkb9
mount /dev/loop7 /upper
in_session
mount /dev/ublkb10 /session
ordered hand.mount After blockdev@dev-ublkb8.target
write /data
write /hand
write /upper
write /session
case $1 in
begin)
    # In use, the package stays.
    ! apt-get --yes remove handoff >/tmp/removed 2>&1 || exit 1
    grep -q '/dev/ublkb7 is in use: mounted at /data' /tmp/removed || { cat /tmp/removed; exit 1; }
    dpkg --status handoff | grep -q '^Status: install ok installed'
    # Stopped while it is mounted by hand: it says who uses it, and serves on.
    systemctl stop --no-block handoff-blk@hand
    until_true sh -c "systemctl show --value --property StatusText handoff-blk@hand | grep -q 'free: mounted at /hand'"
    dd if=/dev/ublkb8 of=/dev/null bs=4k count=1 iflag=direct status=none
    umount /hand
    until_true sh -c '[ "$(systemctl is-active handoff-blk@hand)" = inactive ]'
    quietly systemctl start handoff-blk@hand
    mount /dev/ublkb8 /hand
    (cd /hand && quietly sha256sum --check sums)
    write /hand
    # By its fstab line, the other is unmounted first.
    quietly systemctl restart handoff-blk@data
    quietly systemctl start data.mount
    (cd /data && quietly sha256sum --check sums)
    write /data
    next=reboot
    ;;
again) next=poweroff ;;
*)
    umount /data /hand /upper /session
    until_true handoff blk del 10
    losetup --detach /dev/loop7
    quietly systemctl stop handoff-blk@data handoff-blk@hand handoff-blk@lower
    echo whole
    exit 0
    ;;
esac
echo "$next"
systemctl $next
# The guest goes meanwhile.
sleep 600
