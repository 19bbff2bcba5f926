#!/bin/sh
# Makes of the installed system in $1 one that boots in the guest without questions; disk.sh follows.
set -eu
root=$1

# There is no network. The settings that fetched the packages are this machine's own.
rm -f "$root/etc/apt/sources.list" "$root/etc/apt/apt.conf.d/99mmdebstrap"
: > "$root/etc/resolv.conf"
echo lab > "$root/etc/hostname"
printf '127.0.0.1 localhost lab\n::1 localhost\n' > "$root/etc/hosts"
# Without one, systemd would ask what the first boot asks.
echo lab | md5sum | cut -c -32 > "$root/etc/machine-id"
# The kernel's modules are a disk of their own, mounted there; dkms looks for the headers in it.
echo 'L /usr/lib/modules/%v/build - - - - /usr/src/linux-headers-%v' > "$root/etc/tmpfiles.d/headers.conf"
ln -sf /usr/lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
# What a guest has no use for, emulated, takes seconds to start.
for unit in getty.target e2scrub_reap.service systemd-logind.service systemd-pstore.service \
    apt-daily-upgrade.timer apt-daily.timer dpkg-db-backup.timer e2scrub_all.timer fstrim.timer \
    systemd-hwdb-update.service ldconfig.service systemd-journal-catalog-update.service; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
done
rm -rf "$root"/usr/share/doc/* "$root"/usr/share/info/* "$root"/usr/share/locale/* "$root"/usr/share/man/*
# It is up to date.
touch "$root/etc/.updated" "$root/var/.updated"
