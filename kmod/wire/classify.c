// SPDX-License-Identifier: GPL-2.0
/* Steering rules (ntuple): adding, removing and listing them. */
#include "wire.h"

u32 wire_get_rx_ring_count(struct net_device *dev)
{
	return dev->real_num_rx_queues;
}

/* Called with the mutex of the engine that feeds the NIC, as the two below. */
static int wire_rule_get(struct wire_nic *nic, struct ethtool_rxnfc *info)
{
	u32 location = info->fs.location;
	struct wire_rule *rule;

	if (location >= WIRE_RULES || !nic->steering.rule[location].used)
		return -ENOENT;
	rule = &nic->steering.rule[location];
	info->fs = rule->spec;
	info->rss_context = rule->context;
	info->data = WIRE_RULES;
	return 0;
}

static int wire_rule_list(struct wire_nic *nic, struct ethtool_rxnfc *info, u32 *locations)
{
	u32 i, count = 0;

	for (i = 0; i < WIRE_RULES; i++) {
		if (!nic->steering.rule[i].used)
			continue;
		if (locations) {
			if (count == info->rule_cnt)
				return -EMSGSIZE;
			locations[count] = i;
		}
		count++;
	}
	info->rule_cnt = count;
	info->data = WIRE_RULES;
	if (!locations)
		info->data |= RX_CLS_LOC_SPECIAL;
	return 0;
}

static bool wire_same_match(const struct ethtool_rx_flow_spec *a,
			    const struct ethtool_rx_flow_spec *b)
{
	return !((a->flow_type ^ b->flow_type) & ~FLOW_RSS) &&
	       !memcmp(&a->h_u, &b->h_u, sizeof(a->h_u)) &&
	       !memcmp(&a->m_u, &b->m_u, sizeof(a->m_u)) &&
	       !memcmp(&a->h_ext, &b->h_ext, sizeof(a->h_ext)) &&
	       !memcmp(&a->m_ext, &b->m_ext, sizeof(a->m_ext));
}

/*
 * Where a rule goes that names no place: in place of one for the same packets, as a
 * second could never match, else to the first that is free.
 */
static u32 wire_rule_place(const struct wire_steering *steering,
			   const struct ethtool_rx_flow_spec *spec)
{
	u32 place, free = WIRE_RULES;

	for (place = WIRE_RULES; place-- > 0;) {
		if (!steering->rule[place].used)
			free = place;
		else if (wire_same_match(&steering->rule[place].spec, spec))
			return place;
	}
	return free;
}

static int wire_rule_insert(struct wire_nic *nic, struct ethtool_rxnfc *info)
{
	u32 location = info->fs.location;

	if (location == RX_CLS_LOC_ANY || location == RX_CLS_LOC_FIRST) {
		location = wire_rule_place(&nic->steering, &info->fs);
		if (location == WIRE_RULES)
			return -ENOSPC;
	}
	if (location >= WIRE_RULES)
		return -EINVAL;
	info->fs.location = location;
	nic->steering.rule[location] = (struct wire_rule) {
		.used		= true,
		.spec		= info->fs,
		.context	= info->fs.flow_type & FLOW_RSS ? info->rss_context : 0,
	};
	return 0;
}

/* The last queue of a context's rule with this table: the rule's number is added to the table's. */
static u64 wire_rule_last(const struct ethtool_rx_flow_spec *spec, const u32 *table)
{
	u32 last = 0;
	unsigned int i;

	for (i = 0; i < WIRE_INDIRECTION; i++)
		last = max(last, table[i]);
	return spec->ring_cookie + last;
}

/*
 * With the mutex of the engine that feeds the NIC: whether the rules for contexts
 * would still name existing queues if there were so many, and if one context had
 * this table. The kernel itself checks other rules, and tables.
 */
bool wire_rules_fit(struct wire_nic *nic, unsigned int queues, unsigned int context,
		    const u32 *table)
{
	struct wire_steering *steering = &nic->steering;
	unsigned int i;

	for (i = 0; i < WIRE_RULES; i++) {
		struct wire_rule *rule = &steering->rule[i];
		const u32 *its = rule->context == context ? table : steering->table[rule->context];

		if (rule->used && rule->spec.flow_type & FLOW_RSS &&
		    wire_rule_last(&rule->spec, its) >= queues)
			return false;
	}
	return true;
}

/* Whether we can match everything that a rule asks for, and it sends somewhere. */
static int wire_rule_check(struct wire_nic *nic, const struct ethtool_rxnfc *info)
{
	const struct ethtool_rx_flow_spec *spec = &info->fs;
	bool context = spec->flow_type & FLOW_RSS;
	unsigned int queues = nic->dev->real_num_rx_queues;

	if (spec->flow_type & (FLOW_EXT | FLOW_MAC_EXT))
		return -EOPNOTSUPP;
	switch (spec->flow_type & ~FLOW_RSS) {
	case TCP_V4_FLOW:
	case UDP_V4_FLOW:
		if (spec->m_u.tcp_ip4_spec.tos)
			return -EOPNOTSUPP;
		break;
	case TCP_V6_FLOW:
	case UDP_V6_FLOW:
		if (spec->m_u.tcp_ip6_spec.tclass)
			return -EOPNOTSUPP;
		break;
	default:
		return -EOPNOTSUPP;
	}
	if (context && info->rss_context >= WIRE_CONTEXTS)
		return -EINVAL;
	if (spec->ring_cookie == RX_CLS_FLOW_DISC)
		return context ? -EINVAL : 0;
	if (spec->ring_cookie >= queues)
		return -EINVAL;
	if (context && wire_rule_last(spec, nic->steering.table[info->rss_context]) >= queues)
		return -EINVAL;
	return 0;
}

int wire_get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	int err = -EOPNOTSUPP;

	mutex_lock(&engine->lock);
	switch (info->cmd) {
	case ETHTOOL_GRXCLSRLCNT:
		err = wire_rule_list(nic, info, NULL);
		break;
	case ETHTOOL_GRXCLSRLALL:
		err = wire_rule_list(nic, info, locations);
		break;
	case ETHTOOL_GRXCLSRULE:
		err = wire_rule_get(nic, info);
		break;
	}
	mutex_unlock(&engine->lock);
	return err;
}

int wire_set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	int err = -EOPNOTSUPP;

	mutex_lock(&engine->lock);
	switch (info->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		err = wire_rule_check(nic, info);
		if (!err)
			err = wire_rule_insert(nic, info);
		break;
	case ETHTOOL_SRXCLSRLDEL:
		err = -ENOENT;
		if (info->fs.location < WIRE_RULES &&
		    nic->steering.rule[info->fs.location].used) {
			nic->steering.rule[info->fs.location].used = false;
			err = 0;
		}
		break;
	}
	mutex_unlock(&engine->lock);
	return err;
}
