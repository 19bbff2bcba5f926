#!/bin/sh
# Builds the kernel module in the directory $2 for the kernel release $3 with the compiler and the
# headers of the tree $1, and puts what it makes into $4. Runs in mount and process namespaces of
# its own, so nothing that is mounted here outlives it.
set -eu
tree=$1
source=$2
release=$3
result=$4

mount --make-rprivate /
mount -t tmpfs build "$tree/build"
cp -R "$source/." "$tree/build/"
# objtool looks at /proc, the shell needs /dev/null.
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"
chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8 \
    make --no-print-directory -C "/usr/src/linux-headers-$release" M=/build CC=gcc-14 W=1 modules
# What debuggers would want is most of it.
chroot "$tree" /bin/sh -c 'strip --strip-debug /build/*.ko'
cp "$tree"/build/*.ko "$result/"
