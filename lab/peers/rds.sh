#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: rds-ping and rds-stress of rds-tools, over the kernel's RDS, against our engine at the other end of a
# cable. One end of rds-stress has sockets of our engine instead of the kernel's. The kernel's module holds port 16385 in
# every namespace, so our engine listens at another, to which a filter leads. Each pair of engines has a network of its
# own, since the kernel connects again and again where it once did.
#
# The arguments are what runs: `ping`, `stress`, and `reset` or `reset=SECONDS`, which is rds-stress for so long at each
# pair of engines, while rds-stress --reset ends their connections from either end in turn. Linux has no such option, but
# rds-sockets.c has.
. /root/peers/lib.sh
[ $# -gt 0 ] || set -- ping stress reset
for module in rds rds_tcp tcp_diag sch_ingress cls_flower act_pedit act_csum; do modprobe "$module"; done
near="ip netns exec near" far="ip netns exec far"
ip netns add near
ip netns add far
ip link add v0 netns near type veth peer name v1 netns far
for net in 0 1 2; do
	ip -n near addr add 10.78.$net.1/24 dev v0
	ip -n far addr add 10.78.$net.2/24 dev v1
done
for end in near far; do ip -n $end link set lo up; done
ip -n near link set v0 up
ip -n far link set v1 up
# A message is a packet between rds-stress and the gateway.
sysctl -q -w net.core.wmem_max=8388608 net.core.rmem_max=8388608

# lead NAMESPACE INTERFACE ADDRESS: to our engine there, which listens at port 17000.
lead() {
	local tc="ip netns exec $1 tc"
	$tc qdisc add dev "$2" clsact
	$tc filter add dev "$2" ingress protocol ip flower dst_ip "$3" ip_proto tcp dst_port 16385 \
		action pedit ex munge tcp dport set 17000 pipe action csum ip and tcp
	$tc filter add dev "$2" egress protocol ip flower src_ip "$3" ip_proto tcp src_port 17000 \
		action pedit ex munge tcp sport set 16385 pipe action csum ip and tcp
}

begin
lead far v1 10.78.0.2 >"$out" 2>&1
lead near v0 10.78.1.1 >>"$out" 2>&1

pings() {
	$far handoff rds stress 10.78.0.2 --engine own --listen-port 17000 >>"$out" 2>&1 &
	local ours=$! size name
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
}

# One end of rds-stress waits, at the far side, the other begins and says what is sent. Each checks what it receives, byte
# by byte (-v), and ends with an error if anything is lost, doubled, damaged or out of order.
#
# stress NAME NET BEGINS WAITS OPTION...: the last octet but one of the addresses, and what each end runs with.
stress() {
	local name=$1 net=10.78.$2 begins=$3 waits=$4 code=0 rates
	shift 4
	begin
	# shellcheck disable=SC2086
	$far $waits timeout $((seconds + 110)) rds-stress -r "$net.2" -p 4000 >"$out.waits" 2>&1 &
	local waiting=$!
	timeout 60 sh -c 'until ss -N far -Hltn sport = :4000 | grep -q .; do sleep 0.1; done'
	# shellcheck disable=SC2086
	$near $begins timeout $((seconds + 110)) rds-stress -r "$net.1" -s "$net.2" -p 4000 -T "$seconds" -v "$@" \
		>"$out.begins" 2>&1 || code=$?
	wait "$waiting" || code=$?
	cat "$out.waits" "$out.begins" >"$out"
	# Of each end, the requests that it sent and received in a second.
	rates=$(sed -n '/(average)/s/^ *[0-9]* *\([0-9]*\) *\([0-9]*\).*/\1 and \2/p' "$out" | paste -s -d ';')
	if [ "$code" -eq 0 ] && [ "$(echo "$rates" | tr ';' '\n' | grep -c '^[1-9][0-9]* and [1-9]')" -eq 2 ]; then
		verdict pass "$name" "(requests a second: $rates)"
	else
		verdict fail "$name" "(exit code $code; requests a second: $rates)"
	fi
}

# stresses NAME NET BEGINS WAITS
stresses() {
	local seconds=10
	stress "rds-stress, $1" "$2" "$3" "$4" -q 256 -a 256
	stress "rds-stress, $1, 4 tasks, depth 8" "$2" "$3" "$4" -t 4 -d 8 -q 8192 -a 256
	stress "rds-stress, $1, 1 MiB" "$2" "$3" "$4" -d 2 -q 1048576 -a 256
}

# resets NAME NET BEGINS WAITS: how many connections were ended is printed.
resets() {
	local net=10.78.$2 seconds=$reset turn=0 resetting ended
	: >"$out.resets"
	(
		while sleep 1; do
			turn=$((turn + 1))
			# shellcheck disable=SC2086
			if [ $((turn % 2)) -eq 0 ]; then
				$near ${3:-env LD_PRELOAD=$preload} rds-stress --reset -r "$net.1" -s "$net.2" -p 5000
			else
				$far ${4:-env LD_PRELOAD=$preload} rds-stress --reset -r "$net.2" -s "$net.1" -p 5000
			fi
		done >>"$out.resets" 2>&1
	) &
	resetting=$!
	stress "rds-stress --reset, $1, 4 tasks, depth 8" "$2" "$3" "$4" -t 4 -d 8 -q 8192 -a 256
	kill "$resetting"
	wait "$resetting"
	ended=$(grep -c "$net" "$out.resets")
	echo "    | connections ended: $ended"
	if [ "$ended" -eq 0 ]; then
		cp "$out.resets" "$out"
		verdict fail "rds-stress --reset, $1: no connection was ended"
	fi
}

# engine NAMESPACE ADDRESS:PORT: our engine for the programs of that end, while the rest runs.
engine() {
	local namespace=$1 at=$2 gateway
	shift 2
	rm -f /root/gateway.socket
	ip netns exec "$namespace" gateway "$at" /root/gateway.socket >"$out.gateway" 2>&1 &
	gateway=$!
	timeout 60 sh -c 'until [ -S /root/gateway.socket ]; do sleep 0.1; done'
	"$@"
	if ! kill "$gateway" 2>/dev/null || [ -s "$out.gateway" ]; then
		cp "$out.gateway" "$out"
		verdict fail "$at: the gateway ended or complained"
	fi
	wait "$gateway"
}
preload=/root/preload/rds-sockets.so
by_engine="env RDS_GATEWAY=/root/gateway.socket LD_PRELOAD=$preload"

# pairs OF: at each pair of engines.
pairs() {
	engine far 10.78.0.2:17000 "$1" "our engine waits, takes connections" 0 "" "$by_engine"
	engine near 10.78.1.1:17000 "$1" "our engine begins, connects" 1 "$by_engine" ""
	"$1" "the kernel at both ends" 2 "" ""
}

for part in "$@"; do
	case $part in
	ping) pings ;;
	stress) pairs stresses ;;
	reset | reset=*)
		reset=${part#reset}
		reset=${reset#=}
		: "${reset:=20}"
		pairs resets
		;;
	esac
done
exit 0
