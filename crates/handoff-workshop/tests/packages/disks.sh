# In a guest with systemd, udev and LVM: what is on the disks behind a device is found on the device only.
set -eu
. /root/shared.sh

install /root/packages/handoff_*.deb
udevadm verify /usr/lib/udev/rules.d/61-handoff-blk.rules
cat >/etc/lvm/lvmlocal.conf <<END
devices {
	external_device_info_source = "udev"
	fw_raid_component_detection = 1
}
END
for number in 1 2; do
    truncate --size 64M /root/disk-$number
    losetup /dev/loop$number /root/disk-$number
done
settled() { udevadm settle --timeout 60; }
property() { udevadm info --query property --property "$2" --value "$1"; }

handoff blk add mirror --no-record /dev/loop1 /dev/loop2 --id 8
settled
quietly pvcreate /dev/ublkb8
quietly vgcreate group /dev/ublkb8
quietly lvcreate --name volume --extents 50%FREE group
settled
# Each reads all disks that LVM may see.
pvs --noheadings --options pv_name >/tmp/found 2>/tmp/said
[ "$(tr -d ' ' </tmp/found)" = /dev/ublkb8 ]
[ ! -s /tmp/said ] || { cat /tmp/said; exit 1; }
for disk in loop1 loop2; do
    [ "$(property /dev/$disk ID_FS_TYPE)" = handoff_blk_raid_member ]
done
quietly vgremove --yes group
quietly pvremove /dev/ublkb8

# No name leads to a disk for what is on the device; by its own names it stays.
quietly mkfs.ext4 -q -L twin /dev/ublkb8
for disk in loop1 loop2; do
    udevadm trigger --settle --action change /dev/$disk
    ! readlink -f /dev/disk/by-label/twin | grep $disk || exit 1
    [ -b /dev/$disk ]
done

# When the device is gone, the disks are what they were.
handoff blk del 8
settled
[ "$(property /dev/loop1 ID_FS_TYPE)" = ext4 ]
case "$(readlink -f /dev/disk/by-label/twin)" in /dev/loop[12]) ;; *) exit 1 ;; esac
losetup --detach-all
rm /root/disk-1 /root/disk-2 /etc/lvm/lvmlocal.conf
purge handoff
[ ! -e /usr/lib/udev/rules.d/61-handoff-blk.rules ]
echo purged
