# In a guest without systemd: installs the packages in /root/packages, uses them, installs them again and purges them.
set -eu
mkdir -p /var/lib/dpkg/info /var/lib/dpkg/updates /var/lib/dpkg/triggers /var/log
: >/var/lib/dpkg/status
: >/var/log/dpkg.log
all() { find / -xdev -path /var/lib/dpkg -prune -o -path /tmp -prune -o -print | sort; }
use() {
    handoff --version
    handoff doctor >/dev/null
    handoff cp /root/install.sh /tmp/copy
    cmp /root/install.sh /tmp/copy
    rm /tmp/copy
    [ ! -e /dev/ublk-control ] || [ "$1" = again ]
    # It loads the driver itself.
    handoff blk add null --size 1m --id 7
    [ -b /dev/ublkb7 ]
    handoff blk del 7
    # The other program's package is beside it.
    handoff bench --help >/dev/null
    # As a trigger of the C library's package does.
    ldconfig
    ldconfig -p | grep libhandoff.so.0
}
packages=$(ls /root/packages/handoff_*.deb /root/packages/handoff-workshop_*.deb /root/packages/libhandoff0_*.deb)
ldconfig
all >/tmp/before
# The guest's own packages have left no record.
dpkg --force-depends,unsafe-io --install $packages
use once
dpkg --force-depends,unsafe-io --install $packages
use again
dpkg --purge --force-depends handoff handoff-workshop libhandoff0
ldconfig
all >/tmp/after
diff /tmp/before /tmp/after
echo purged
