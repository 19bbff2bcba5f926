# In a guest with systemd: installs the packages in /root/packages, uses them, and purges them.
set -eu
. /root/shared.sh

all_files >/tmp/before
install /root/packages/handoff_*.deb /root/packages/libhandoff0_*.deb
handoff --version
handoff doctor >/tmp/doctor
grep -q io_uring /tmp/doctor
handoff cp /root/lifecycle.sh /tmp/copy
cmp /root/lifecycle.sh /tmp/copy
ldconfig -p | grep -q libhandoff.so.0

# By hand, and by its unit; both load the driver themselves.
rmmod ublk_drv 2>/dev/null || true
handoff blk add null --size 1m --id 7
[ -b /dev/ublkb7 ]
handoff blk del 7
make_device
systemctl start handoff-blk@data
cmp /root/image /dev/ublkb7
# Its device is not there any more when it has stopped, and not before nobody waits for it.
ended_well handoff-blk@data
[ ! -e /dev/ublkb7 ]
[ -z "$(handoff blk list)" ]

rm /root/image
purge handoff libhandoff0
all_files >/tmp/after
diff /tmp/before /tmp/after
echo purged
