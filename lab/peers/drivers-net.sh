#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: the kernel's tests of network drivers (tools/testing/selftests/drivers/net and net/hw) over a
# pair of kmod/wire. The arguments are the tests. Each of a test's cases counts.
. /root/peers/lib.sh
modprobe wire
modprobe tls 2>/dev/null
ip link set lo up
# Some tests take the interface down and want its addresses afterwards.
sysctl -q -w net.ipv6.conf.all.keep_addr_on_down=1
# Makes a new pair: tests leave theirs without addresses or down.
pair() {
	ip link del w0 2>/dev/null
	ip netns del far 2>/dev/null
	ip netns add far
	ip link add w0 numrxqueues 16 numtxqueues 16 type wire
	ip link set wire0 netns far
	ip -n far link set lo up
	ip addr add 10.79.0.1/24 dev w0
	ip addr add fd00:79::1/64 dev w0 nodad
	ip -n far addr add 10.79.0.2/24 dev wire0
	ip -n far addr add fd00:79::2/64 dev wire0 nodad
	ip link set w0 up
	ip -n far link set wire0 up
	# To what is behind the near end, by netkit.
	ip -n far route add fd00:80::/64 via fd00:79::1
}

# Leads each queue's interrupt to one of two processors, as RSS is measured, and leaves the others to RPS.
pin() {
	local queue=0 irq
	for irq in $(sed -n 's|^ *\([0-9]*\):.* w0-[^ ]*$|\1|p' /proc/interrupts); do
		echo $((queue++ % 2)) >"/proc/irq/$irq/smp_affinity_list"
	done
}

export NETIF=w0 LOCAL_V4=10.79.0.1 LOCAL_V6=fd00:79::1 REMOTE_V4=10.79.0.2 REMOTE_V6=fd00:79::2
export REMOTE_TYPE=netns REMOTE_ARGS=far LOCAL_PREFIX_V6=fd00:80::/64
cd /root/linux/tools/testing/selftests/drivers/net || exit 1
tests=("$@")
# kmod/wire/README.md says why not the others.
[ $# -gt 0 ] || tests=(gro.py hds.py napi_id.py napi_threaded.py ping.py queues.py ring_reconfig.py stats.py
	hw/csum.py hw/devmem.py hw/iou-zcrx.py hw/irq.py hw/nk_devmem.py hw/nk_netns.py hw/nk_qlease.py hw/ntuple.py
	hw/pp_alloc_fail.py hw/rss_api.py hw/rss_ctx.py hw/rss_drv.py hw/rss_flow_label.py hw/rss_input_xfrm.py
	hw/toeplitz.py hw/tso.py hw/userns_devmem.py hw/uso.py)
for test in "${tests[@]}"; do
	begin
	pair
	[ "$test" != hw/toeplitz.py ] || pin
	(cd "$(dirname "$test")" && timeout --kill-after=5 280 python3 "./$(basename "$test")") >"$out" 2>&1
	code=$?
	if ! grep -q '^\(not \)\?ok ' "$out"; then
		verdict fail "$test" "(exit code $code, no case)"
		continue
	fi
	# An expected failure is of what the card lacks, as a skip is.
	sed -n -e "/# \(SKIP\|XFAIL\)/{s|^ok [0-9]* \([^ ]*\).*# [A-Z]*|skip $test \1|p;d}" \
		-e "s|^ok [0-9]* \([^ ]*\).*|pass $test \1|p" \
		-e "s|^not ok [0-9]* \([^ ]*\).*|fail $test \1|p" "$out"
	# Why, as far as the framework's own lines say so.
	grep -e '^# Check failed' -e 'STDERR:' -e '^# Exception| [a-zA-Z_.]*Error' "$out" | head -n 25 | sed 's/^/    | /'
done
