#!/bin/sh
# What `handoff lab demo` runs in the guest.
set -eu

title() {
    printf '\n== %s\n' "$*"
}

title "A guest with Debian's own kernel, nothing added"
uname -srv
# Drivers of mechanisms that many machines lack; the kernel brings them as modules.
for module in dummy ublk_drv rds_tcp; do
    modprobe "$module" && echo "loaded $module"
done

title "What works there: handoff doctor"
handoff doctor

title "The copy meter, on a copy between two files in memory: handoff meter -- dd"
dd if=/dev/urandom of=/tmp/from bs=1M count=16 status=none
handoff meter -- dd if=/tmp/from of=/tmp/to bs=64k status=none
