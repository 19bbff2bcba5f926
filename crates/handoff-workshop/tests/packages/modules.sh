# In a guest with systemd and dkms: the packages of modules are built for the guest's kernel, upgraded and purged.
set -eu
. /root/shared.sh

built() {
    for module in getbuf wire; do
        [ "$(modinfo --field filename $module)" = "/lib/modules/$(uname -r)/updates/dkms/$module.ko${1-}" ]
    done
    modprobe getbuf
    grep -q getbuf /proc/misc
    # Nobody makes the kernel load what is for tests.
    ! ip link add w0 type wire 2>/dev/null || exit 1
    [ ! -e /sys/module/wire ]
    modprobe wire
    ip link add w0 type wire
    ip link del w0
    rmmod getbuf wire
}
all_files >/tmp/before
# Each by itself.
install /root/packages/handoff-dkms_*.deb
[ "$(dkms status | wc -l)" = 1 ]
! modinfo wire >/dev/null 2>&1 || exit 1
install /root/packages/handoff-wire-dkms_*.deb
dkms status
# Debian's kernels have their modules packed; how dkms leaves ours is its choice.
ending=$(ls /usr/lib/modules/*/updates/dkms | sed -n 's/^wire.ko//p')
built "$ending"
install /root/newer/handoff-dkms_*.deb /root/newer/handoff-wire-dkms_*.deb
[ "$(dkms status | wc -l)" = 2 ]
for name in handoff handoff-wire; do
    dkms status | grep "^$name/99.0.0,.*installed"
done
built "$ending"
purge handoff-dkms handoff-wire-dkms
all_files >/tmp/after
diff /tmp/before /tmp/after
echo purged
