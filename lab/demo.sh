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
