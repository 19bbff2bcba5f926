#!/bin/sh
# Makes of the extracted packages in $1 the guest's root file system; disk.sh follows.
#
# No maintainer script has run (they are most of the time that an installation takes, and nearly
# all of them concern services, users and documentation). What the guest needs of their work is
# made here.
set -eu
root=$1

cp "$root/usr/share/base-passwd/passwd.master" "$root/etc/passwd"
cp "$root/usr/share/base-passwd/group.master" "$root/etc/group"
cp "$root/usr/share/libc-bin/nsswitch.conf" "$root/etc/nsswitch.conf"
echo "lab" > "$root/etc/hostname"
printf '127.0.0.1 localhost lab\n::1 localhost\n' > "$root/etc/hosts"
: > "$root/etc/resolv.conf"
: > "$root/etc/fstab"
ln -sf gawk "$root/usr/bin/awk"
ldconfig -r "$root"

rm -rf "$root/usr/share/doc" "$root/usr/share/info" "$root/usr/share/lintian" \
    "$root/usr/share/locale" "$root/usr/share/man" "$root/usr/share/bug" \
    "$root/var/cache" "$root/var/lib/apt" "$root/var/lib/dpkg" "$root/boot"
# stress-ng is linked to what finds drivers for graphics; the drivers are a third of the image.
rm -f "$root"/usr/lib/*/libLLVM* "$root"/usr/lib/*/libgallium*
mkdir -p "$root/mnt" "$root/media" "$root/srv" "$root/home" "$root/usr/lib/modules" "$root/opt/handoff/bin" "$root/opt/handoff/modules" \
    "$root/var/cache"
