#!/bin/sh
# Builds the sanitizer kernel in the tree $1 from the source package that is in it, with the
# configuration fragment $2, and puts kernel, configuration and modules into $3. Runs in mount and
# process namespaces of its own.
set -eu
tree=$1
fragment=$2
result=$3

mount --make-rprivate /
cp "$fragment" "$tree/build/fragment"
mount -t proc proc "$tree/proc"
mount --rbind /dev "$tree/dev"

inside() {
    chroot "$tree" /usr/bin/env -i PATH=/usr/sbin:/usr/bin LC_ALL=C.UTF-8 HOME=/build \
        KBUILD_BUILD_USER=handoff KBUILD_BUILD_HOST=lab sh -euc "$1"
}

echo "unpacking the source"
inside 'cd /build && tar -xf /usr/src/linux-source-*.tar.xz --strip-components=1'
inside 'cd /build && make CC=gcc-14 HOSTCC=gcc-14 KCONFIG_ALLCONFIG=fragment allnoconfig'
# What the fragment asks for and the kernel does not know, or cannot have, must not go unnoticed.
inside 'cd /build && grep "^CONFIG_" fragment | while read -r line; do
    grep -qxF "$line" .config || { echo "not in the configuration: $line" >&2; exit 1; }
done'
inside 'cd /build && make CC=gcc-14 HOSTCC=gcc-14 -j"$(nproc)" bzImage modules'
inside 'cd /build && make CC=gcc-14 HOSTCC=gcc-14 INSTALL_MOD_PATH=/build/out INSTALL_MOD_STRIP=1 \
    DEPMOD=true modules_install && rm -f out/lib/modules/*/build'

release=$(cat "$tree/build/include/config/kernel.release")
# What building modules for this kernel needs, where the headers of Debian's own kernels would be.
inside "cd /build && make CC=gcc-14 HOSTCC=gcc-14 run-command \
    KBUILD_RUN_COMMAND='\$(srctree)/scripts/package/install-extmod-build \
    /usr/src/linux-headers-$release'"
echo "$release" | tr -d '\n' > "$result/release"
cp "$tree/build/arch/x86/boot/bzImage" "$result/vmlinuz"
cp "$tree/build/.config" "$result/config"
mv "$tree/build/out/lib/modules" "$result/modules"
rm -rf "$tree/build" "$tree"/usr/src/linux-source-*
mkdir "$tree/build"
