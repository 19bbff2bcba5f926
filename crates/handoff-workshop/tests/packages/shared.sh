# What the scripts for a guest with systemd share.
export DEBIAN_FRONTEND=noninteractive
# Its output is for people only when it fails.
quietly() {
    "$@" >/tmp/quiet 2>&1 || {
        echo "failed: $*"
        cat /tmp/quiet
        cat /var/lib/dkms/handoff*/*/build/make.log 2>/dev/null || true
        journalctl --no-pager --lines=40 | grep handoff
        exit 1
    }
}
# The guest has no lists of packages, so nothing else is there to be fetched.
install() { quietly apt-get --yes --allow-downgrades -o DPkg::Options::=--force-unsafe-io install "$@"; }
purge() { quietly apt-get --yes purge "$@"; }
# All that packages could leave, without what the package manager, systemd and the kernel record of their own.
all_files() {
    {
        find / -xdev \( -path /tmp -o -path /root -o -path /var/lib/dpkg -o -path /var/lib/apt -o -path /var/lib/systemd \
            -o -path /var/cache -o -path /var/log \) -prune -o -print
        find /run \( -path /run/systemd -o -path /run/udev -o -path /run/log \) -prune -o -print
        find /usr/lib/modules ! -name 'modules.*'
        lsmod | awk '$1 == "getbuf" || $1 == "wire" { print "module", $1 }'
        systemctl list-unit-files --no-legend 'handoff*'
        systemctl list-units --all --no-legend 'handoff*'
    } | sort
}
# A block device with random bytes, by the unit handoff-blk@data.
make_device() {
    head -c 1M /dev/urandom >/root/image
    echo "ARGUMENTS=loop /root/image --id 7" >/etc/handoff/blk.d/data.conf
}
# Stops units, each of which has to end as it should.
ended_well() {
    quietly systemctl stop "$@"
    for unit; do
        state=$(systemctl is-failed "$unit" || true)
        [ "$state" = inactive ] || { echo "$unit: $state"; quietly false; }
    done
}
# Waits until a command succeeds.
until_true() {
    for _ in $(seq 300); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    echo "never: $*"
    quietly false
}
