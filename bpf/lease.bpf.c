// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Carries packets between a card and a netkit device in another network namespace, which has leased
 * queues of the card: the lease by itself delivers nothing.
 *
 * Contracts:
 * - handoff_arrive takes what arrives at the card for an address of the lease, and nothing else;
 * - handoff_leave lets out what comes from an address of the lease, and drops the rest, so whoever is
 *   behind the netkit device cannot send in the name of others;
 * - neither takes a packet of a VLAN: VLANs are networks of their own, with their own addresses;
 * - neither reads payload, which the CPU may not see.
 */
#include "kernel.h"
#include "lease.h"

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* As linux/pkt_cls.h and linux/bpf.h have them. */
#define TCX_NEXT -1
#define TCX_DROP 2

/* As linux/if_packet.h has it: for the interface's own hardware address. */
#define PACKET_HOST 0

#define ETH_HLEN 14
#define ETH_P_IP 0x0800
#define ETH_P_IPV6 0x86dd

/* Offsets within the headers. */
#define IPV4_SOURCE 12
#define IPV4_DESTINATION 16
#define IPV6_SOURCE 8
#define IPV6_DESTINATION 24

/* A fragment, as those of kernel.h are. */
struct __sk_buff {
	__u32 pkt_type;
	__u32 protocol;
	__u32 vlan_present;
} __attribute__((preserve_access_index));

const volatile struct lease lease SEC(".rodata.lease") = {};

static __always_inline bool is_leased(struct __sk_buff *skb, __u32 v4, __u32 v6)
{
	__u64 address[2] = {};
	int i;

	if (skb->vlan_present)
		return false;
	switch (skb->protocol) {
	case bpf_htons(ETH_P_IP):
		address[1] = bpf_htonl(0xffff);
		if (bpf_skb_load_bytes(skb, ETH_HLEN + v4, (__u8 *)address + 12, 4))
			return false;
		break;
	case bpf_htons(ETH_P_IPV6):
		if (bpf_skb_load_bytes(skb, ETH_HLEN + v6, address, 16))
			return false;
		/* In a header of IPv6, ::ffff:a.b.c.d is not the IPv4 address. */
		if (!address[0] && (__u32)address[1] == bpf_htonl(0xffff))
			return false;
		break;
	default:
		return false;
	}
	for (i = 0; i < ADDRESSES && i < lease.count; i++) {
		const volatile __u32 *wanted = (const volatile __u32 *)lease.addresses[i];
		const __u32 *there = (const __u32 *)address;

		if (wanted[0] == there[0] && wanted[1] == there[1] && wanted[2] == there[2] &&
		    wanted[3] == there[3])
			return true;
	}
	return false;
}

/* At the card's ingress. */
SEC("tcx/ingress")
int handoff_arrive(struct __sk_buff *skb)
{
	/* A promiscuous card also sees what is for other hosts. */
	if (skb->pkt_type != PACKET_HOST || !is_leased(skb, IPV4_DESTINATION, IPV6_DESTINATION))
		return TCX_NEXT;
	return bpf_redirect_peer(lease.pair, 0);
}

/* At the ingress of the near end of the pair. */
SEC("tcx/ingress")
int handoff_leave(struct __sk_buff *skb)
{
	if (!is_leased(skb, IPV4_SOURCE, IPV6_SOURCE))
		return TCX_DROP;
	return bpf_redirect_neigh(lease.card, NULL, 0, 0);
}

char _license[] SEC("license") = "Dual MIT/GPL";
