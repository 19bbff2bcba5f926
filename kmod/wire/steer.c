// SPDX-License-Identifier: GPL-2.0
/* Which queue a packet goes to: rules first, else the flow's hash (RSS). */
#include <linux/unaligned.h>

#include "wire.h"

void wire_steering_spread(struct wire_nic *nic, unsigned int queues)
{
	unsigned int i;

	for (i = 0; i < WIRE_INDIRECTION; i++)
		nic->steering.table[0][i] = ethtool_rxfh_indir_default(i, queues);
}

void wire_steering_init(struct wire_nic *nic, unsigned int queues)
{
	unsigned int i;

	netdev_rss_key_fill(nic->steering.key, WIRE_KEY);
	for (i = 0; i < WIRE_FLOWS; i++)
		nic->steering.fields[i] = WIRE_ALL_FIELDS;
	wire_steering_spread(nic, queues);
}

/* One part of the Toeplitz hash: each set bit adds the 32 bits of the key that begin there. */
static u32 wire_toeplitz(const u8 *key, unsigned int *at, const void *data, unsigned int length)
{
	const u8 *bytes = data;
	u32 hash = 0;
	unsigned int i, bit;

	for (i = 0; i < length; i++, (*at)++) {
		u64 window = (u64)get_unaligned_be32(key + *at) << 8 | key[*at + 4];

		for (bit = 0; bit < 8; bit++) {
			if (bytes[i] & BIT(7 - bit))
				hash ^= (u32)(window >> (8 - bit));
		}
	}
	return hash;
}

/* The input of a flow's hash: with its ports, if they can be seen. */
static u32 wire_flow_fields(const struct wire_steering *steering, const struct flow_keys *keys)
{
	bool v6 = keys->control.addr_type == FLOW_DISSECTOR_KEY_IPV6_ADDRS;

	switch (keys->basic.ip_proto) {
	case IPPROTO_TCP:
		return steering->fields[v6 ? WIRE_TCP6 : WIRE_TCP4];
	case IPPROTO_UDP:
		return steering->fields[v6 ? WIRE_UDP6 : WIRE_UDP4];
	}
	return WIRE_ALL_FIELDS;
}

/* Also returns whether ports are in it. */
u32 wire_flow_hash(const struct wire_steering *steering, const struct flow_keys *keys, bool *ports)
{
	u32 fields = wire_flow_fields(steering, keys);
	const struct flow_dissector_key_ports *port = &keys->ports;
	const u8 *key = steering->key;
	const void *src, *dst;
	unsigned int at = 0, length;
	__be32 label = htonl(keys->tags.flow_label);
	u32 hash = 0;

	/* The hash of the last byte uses four bytes of the key behind it. */
	BUILD_BUG_ON(sizeof(keys->addrs.v6addrs) + sizeof(*port) + sizeof(label) + 4 > WIRE_KEY);
	*ports = false;
	switch (keys->control.addr_type) {
	case FLOW_DISSECTOR_KEY_IPV4_ADDRS:
		src = &keys->addrs.v4addrs.src;
		dst = &keys->addrs.v4addrs.dst;
		length = sizeof(keys->addrs.v4addrs.src);
		break;
	case FLOW_DISSECTOR_KEY_IPV6_ADDRS:
		src = &keys->addrs.v6addrs.src;
		dst = &keys->addrs.v6addrs.dst;
		length = sizeof(keys->addrs.v6addrs.src);
		break;
	default:
		return 0;
	}
	if (fields & RXH_IP_SRC)
		hash ^= wire_toeplitz(key, &at, src, length);
	if (fields & RXH_IP_DST)
		hash ^= wire_toeplitz(key, &at, dst, length);
	if (port->ports && fields & RXH_L4_B_0_1)
		hash ^= wire_toeplitz(key, &at, &port->src, sizeof(port->src));
	if (port->ports && fields & RXH_L4_B_2_3)
		hash ^= wire_toeplitz(key, &at, &port->dst, sizeof(port->dst));
	if (fields & RXH_IP6_FL)
		hash ^= wire_toeplitz(key, &at, &label, sizeof(label));
	*ports = port->ports && fields & (RXH_L4_B_0_1 | RXH_L4_B_2_3);
	return hash;
}

static bool wire_same_v4(const struct ethtool_tcpip4_spec *want,
			 const struct ethtool_tcpip4_spec *mask, const struct flow_keys *keys)
{
	return !((want->ip4src ^ keys->addrs.v4addrs.src) & mask->ip4src) &&
	       !((want->ip4dst ^ keys->addrs.v4addrs.dst) & mask->ip4dst) &&
	       !((want->psrc ^ keys->ports.src) & mask->psrc) &&
	       !((want->pdst ^ keys->ports.dst) & mask->pdst);
}

static bool wire_same_v6(const struct ethtool_tcpip6_spec *want,
			 const struct ethtool_tcpip6_spec *mask, const struct flow_keys *keys)
{
	const __be32 *src = keys->addrs.v6addrs.src.s6_addr32;
	const __be32 *dst = keys->addrs.v6addrs.dst.s6_addr32;
	unsigned int i;

	for (i = 0; i < 4; i++) {
		if ((want->ip6src[i] ^ src[i]) & mask->ip6src[i] ||
		    (want->ip6dst[i] ^ dst[i]) & mask->ip6dst[i])
			return false;
	}
	return !((want->psrc ^ keys->ports.src) & mask->psrc) &&
	       !((want->pdst ^ keys->ports.dst) & mask->pdst);
}

static bool wire_rule_fits(const struct ethtool_rx_flow_spec *spec, const struct flow_keys *keys)
{
	u16 addresses = keys->control.addr_type;
	u8 protocol = keys->basic.ip_proto;

	switch (spec->flow_type & ~FLOW_RSS) {
	case TCP_V4_FLOW:
		return addresses == FLOW_DISSECTOR_KEY_IPV4_ADDRS && protocol == IPPROTO_TCP &&
		       wire_same_v4(&spec->h_u.tcp_ip4_spec, &spec->m_u.tcp_ip4_spec, keys);
	case UDP_V4_FLOW:
		return addresses == FLOW_DISSECTOR_KEY_IPV4_ADDRS && protocol == IPPROTO_UDP &&
		       wire_same_v4(&spec->h_u.udp_ip4_spec, &spec->m_u.udp_ip4_spec, keys);
	case TCP_V6_FLOW:
		return addresses == FLOW_DISSECTOR_KEY_IPV6_ADDRS && protocol == IPPROTO_TCP &&
		       wire_same_v6(&spec->h_u.tcp_ip6_spec, &spec->m_u.tcp_ip6_spec, keys);
	case UDP_V6_FLOW:
		return addresses == FLOW_DISSECTOR_KEY_IPV6_ADDRS && protocol == IPPROTO_UDP &&
		       wire_same_v6(&spec->h_u.udp_ip6_spec, &spec->m_u.udp_ip6_spec, keys);
	}
	return false;
}

/* Under the mutex of the engine that feeds the NIC. */
int wire_steer(struct wire_nic *nic, const struct flow_keys *keys, u32 hash)
{
	struct wire_steering *steering = &nic->steering;
	unsigned int queues = nic->dev->real_num_rx_queues;
	unsigned int i, index = steering->table[0][hash % WIRE_INDIRECTION];

	for (i = 0; i < WIRE_RULES && nic->dev->features & NETIF_F_NTUPLE; i++) {
		struct wire_rule *rule = &steering->rule[i];

		if (!rule->used || !wire_rule_fits(&rule->spec, keys))
			continue;
		wire_add(nic->count.by_rule, 1);
		if (rule->spec.ring_cookie == RX_CLS_FLOW_DISC) {
			wire_add(nic->count.dropped_by_rule, 1);
			return WIRE_NOWHERE;
		}
		index = rule->spec.ring_cookie;
		if (rule->spec.flow_type & FLOW_RSS)
			index += steering->table[rule->context][hash % WIRE_INDIRECTION];
		break;
	}
	if (wire_fault_hits(&nic->fault.wrong_queue)) {
		wire_add(nic->count.fault_wrong_queue, 1);
		index = (index + 1) % queues;
	}
	/* While the number of channels shrinks, the table may still name a queue that has gone. */
	return index < queues ? index : WIRE_NOWHERE;
}
