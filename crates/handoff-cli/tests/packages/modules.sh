# In a guest with systemd and dkms: the package of modules is built for the guest's kernel, upgraded and purged.
set -eu
. /root/shared.sh

built() {
    for module in getbuf wire; do
        [ "$(modinfo --field filename $module)" = "/lib/modules/$(uname -r)/updates/dkms/$module.ko${1-}" ]
        modprobe $module
    done
    grep -q getbuf /proc/misc
    ip link add w0 type wire
    ip link del w0
    rmmod getbuf wire
}
all_files >/tmp/before
install /root/packages/handoff-dkms_*.deb
dkms status
# Debian's kernels have their modules packed; how dkms leaves ours is its choice.
ending=$(ls /usr/lib/modules/*/updates/dkms | sed -n 's/^wire.ko//p')
built "$ending"
install /root/newer/handoff-dkms_*.deb
[ "$(dkms status | wc -l)" = 1 ]
dkms status | grep '^handoff/99.0.0,.*installed'
built "$ending"
purge handoff-dkms
all_files >/tmp/after
diff /tmp/before /tmp/after
echo purged
