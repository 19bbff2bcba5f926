#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: rds-ping of rds-tools, over the kernel's RDS, against our engine at the other end of a cable.
# rds-stress is not run: both of its ends are programs of its own on sockets of the kernel. The kernel's module holds
# port 16385 in every namespace, so the engine listens at another, to which a filter leads.
. /root/peers/lib.sh
for module in rds rds_tcp sch_ingress cls_flower act_pedit act_csum; do modprobe "$module"; done
near="ip netns exec near" far="ip netns exec far"
ip netns add near
ip netns add far
ip link add v0 netns near type veth peer name v1 netns far
ip -n near addr add 10.78.0.1/24 dev v0
ip -n far addr add 10.78.0.2/24 dev v1
for end in near far; do ip -n $end link set lo up; done
ip -n near link set v0 up
ip -n far link set v1 up
# shellcheck disable=SC2086
lead() {
	$far tc qdisc add dev v1 clsact
	$far tc filter add dev v1 ingress protocol ip flower ip_proto tcp dst_port 16385 \
		action pedit ex munge tcp dport set 17000 pipe action csum ip and tcp
	$far tc filter add dev v1 egress protocol ip flower ip_proto tcp src_port 17000 \
		action pedit ex munge tcp sport set 16385 pipe action csum ip and tcp
}

begin
lead >"$out" 2>&1
$far handoff rds stress 10.78.0.2 --engine own --listen-port 17000 >>"$out" 2>&1 &
ours=$!
timeout 60 sh -c 'until grep -q answering "$1"; do sleep 0.1; done' sh "$out"
for size in 10 200; do
	name="rds-ping -c $size, our engine answers"
	if $near timeout 120 rds-ping -c "$size" -i 100ms 10.78.0.2 >>"$out" 2>&1; then
		verdict pass "$name"
	else
		verdict fail "$name" "(exit code $?)"
	fi
done
kill "$ours"
wait "$ours"
exit 0
