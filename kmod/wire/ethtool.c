// SPDX-License-Identifier: GPL-2.0
/* Settings: rings, header split, channels, RSS. */
#include <linux/ethtool_netlink.h>

#include "wire.h"

static void wire_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	strscpy(info->driver, "wire", sizeof(info->driver));
}

static int wire_get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *settings)
{
	settings->base.speed = SPEED_UNKNOWN;
	settings->base.duplex = DUPLEX_FULL;
	settings->base.port = PORT_OTHER;
	settings->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static void wire_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			       struct kernel_ethtool_ringparam *more,
			       struct netlink_ext_ack *extack)
{
	struct wire_nic *nic = netdev_priv(dev);

	ring->rx_max_pending = WIRE_RING_MAX;
	ring->tx_max_pending = WIRE_RING_MAX;
	ring->rx_pending = nic->rx_ring;
	ring->tx_pending = nic->tx_ring;
	more->tcp_data_split = nic->split ? ETHTOOL_TCP_DATA_SPLIT_ENABLED :
					    ETHTOOL_TCP_DATA_SPLIT_DISABLED;
	more->hds_thresh = nic->split_above;
	more->hds_thresh_max = WIRE_SPLIT_ABOVE_MAX;
}

static int wire_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			      struct kernel_ethtool_ringparam *more,
			      struct netlink_ext_ack *extack)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	u32 rx_ring, tx_ring;
	int err;

	if (ring->rx_mini_pending || ring->rx_jumbo_pending)
		return -EINVAL;
	if (ring->rx_pending < WIRE_RING_MIN || ring->tx_pending < WIRE_RING_MIN) {
		NL_SET_ERR_MSG_FMT_MOD(extack, "rings have at least %d entries", WIRE_RING_MIN);
		return -EINVAL;
	}
	rx_ring = roundup_pow_of_two(ring->rx_pending);
	tx_ring = roundup_pow_of_two(ring->tx_pending);
	if (rx_ring != nic->rx_ring || tx_ring != nic->tx_ring) {
		err = wire_rebuild(nic, dev->real_num_rx_queues, rx_ring, tx_ring);
		if (err)
			return err;
	}
	mutex_lock(&engine->lock);
	nic->split = more->tcp_data_split == ETHTOOL_TCP_DATA_SPLIT_ENABLED;
	nic->split_above = more->hds_thresh;
	mutex_unlock(&engine->lock);
	return 0;
}

static void wire_get_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	channels->max_combined = min(dev->num_rx_queues, dev->num_tx_queues);
	channels->combined_count = dev->real_num_rx_queues;
}

static int wire_set_channels(struct net_device *dev, struct ethtool_channels *channels)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	bool fit;
	int err;

	if (!channels->combined_count)
		return -EINVAL;
	/* Rules and tables stay as they are until this returns. */
	mutex_lock(&engine->lock);
	fit = wire_rules_fit(nic, channels->combined_count, 0, nic->steering.table[0]);
	mutex_unlock(&engine->lock);
	if (!fit)
		return -EINVAL;
	err = wire_rebuild(nic, channels->combined_count, nic->rx_ring, nic->tx_ring);
	if (err || netif_is_rxfh_configured(dev))
		return err;
	mutex_lock(&engine->lock);
	wire_steering_spread(nic, channels->combined_count);
	mutex_unlock(&engine->lock);
	return 0;
}

static u32 wire_get_rxfh_key_size(struct net_device *dev)
{
	return WIRE_KEY;
}

static u32 wire_get_rxfh_indir_size(struct net_device *dev)
{
	return WIRE_INDIRECTION;
}

static int wire_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);

	rxfh->hfunc = ETH_RSS_HASH_TOP;
	mutex_lock(&engine->lock);
	if (rxfh->indir)
		memcpy(rxfh->indir, nic->steering.table[0], sizeof(nic->steering.table[0]));
	if (rxfh->key)
		memcpy(rxfh->key, nic->steering.key, WIRE_KEY);
	mutex_unlock(&engine->lock);
	return 0;
}

static int wire_set_context(struct net_device *dev, const struct ethtool_rxfh_param *rxfh,
			    unsigned int context, const u32 *table,
			    struct netlink_ext_ack *extack)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	int err = 0;

	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE && rxfh->hfunc != ETH_RSS_HASH_TOP) {
		NL_SET_ERR_MSG_MOD(extack, "the hash is Toeplitz's");
		return -EOPNOTSUPP;
	}
	mutex_lock(&engine->lock);
	if (table && !wire_rules_fit(nic, dev->real_num_rx_queues, context, table)) {
		NL_SET_ERR_MSG_MOD(extack, "with it, a rule would name queues that there are not");
		err = -EINVAL;
	}
	if (!err && table)
		memcpy(nic->steering.table[context], table, sizeof(nic->steering.table[0]));
	if (!err && rxfh->key)
		memcpy(nic->steering.key, rxfh->key, WIRE_KEY);
	mutex_unlock(&engine->lock);
	return err;
}

static int wire_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
			 struct netlink_ext_ack *extack)
{
	return wire_set_context(dev, rxfh, 0, rxfh->indir, extack);
}

static int wire_create_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			       const struct ethtool_rxfh_param *rxfh,
			       struct netlink_ext_ack *extack)
{
	u32 *table = ethtool_rxfh_context_indir(context);
	unsigned int i;

	context->hfunc = ETH_RSS_HASH_TOP;
	if (!rxfh->indir) {
		for (i = 0; i < WIRE_INDIRECTION; i++)
			table[i] = ethtool_rxfh_indir_default(i, dev->real_num_rx_queues);
	}
	return wire_set_context(dev, rxfh, rxfh->rss_context, rxfh->indir ?: table, extack);
}

static int wire_modify_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			       const struct ethtool_rxfh_param *rxfh,
			       struct netlink_ext_ack *extack)
{
	return wire_set_context(dev, rxfh, rxfh->rss_context, rxfh->indir, extack);
}

static int wire_remove_context(struct net_device *dev, struct ethtool_rxfh_context *context,
			       u32 id, struct netlink_ext_ack *extack)
{
	/* Its table is read only for rules that name it. */
	return 0;
}

/* The flow whose hash fields can be chosen, or -1. */
static int wire_flow_of(u32 flow_type)
{
	switch (flow_type) {
	case TCP_V4_FLOW:
		return WIRE_TCP4;
	case UDP_V4_FLOW:
		return WIRE_UDP4;
	case TCP_V6_FLOW:
		return WIRE_TCP6;
	case UDP_V6_FLOW:
		return WIRE_UDP6;
	}
	return -1;
}

static int wire_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	int flow = wire_flow_of(fields->flow_type);

	fields->data = 0;
	if (flow >= 0) {
		mutex_lock(&engine->lock);
		fields->data = nic->steering.fields[flow];
		mutex_unlock(&engine->lock);
	} else if (fields->flow_type == IPV4_FLOW || fields->flow_type == IPV6_FLOW) {
		fields->data = RXH_IP_SRC | RXH_IP_DST;
	}
	return 0;
}

static int wire_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
				struct netlink_ext_ack *extack)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_engine *engine = wire_feeder(nic);
	int flow = wire_flow_of(fields->flow_type);
	u32 can = WIRE_ALL_FIELDS;

	if (flow < 0) {
		NL_SET_ERR_MSG_MOD(extack, "fields are chosen for TCP and UDP only");
		return -EOPNOTSUPP;
	}
	if (flow == WIRE_TCP6 || flow == WIRE_UDP6)
		can |= RXH_IP6_FL;
	if (fields->data & ~can) {
		NL_SET_ERR_MSG_MOD(extack, "the hash is made of addresses, ports and IPv6's label");
		return -EINVAL;
	}
	mutex_lock(&engine->lock);
	nic->steering.fields[flow] = fields->data;
	mutex_unlock(&engine->lock);
	return 0;
}

const struct ethtool_ops wire_ethtool_ops = {
	.supported_ring_params	= ETHTOOL_RING_USE_TCP_DATA_SPLIT | ETHTOOL_RING_USE_HDS_THRS,
	.rxfh_indir_space	= WIRE_INDIRECTION,
	.rxfh_key_space		= WIRE_KEY,
	.rxfh_max_num_contexts	= WIRE_CONTEXTS,
	.cap_rss_rxnfc_adds	= true,
	/* The queueing disciplines of other queues come and go only under RTNL. */
	.op_needs_rtnl		= ETHTOOL_OP_NEEDS_RTNL_SCHANNELS,
	.get_drvinfo		= wire_get_drvinfo,
	.get_link		= ethtool_op_get_link,
	.get_link_ksettings	= wire_get_link_ksettings,
	.get_ts_info		= ethtool_op_get_ts_info,
	.get_ringparam		= wire_get_ringparam,
	.set_ringparam		= wire_set_ringparam,
	.get_channels		= wire_get_channels,
	.set_channels		= wire_set_channels,
	.get_rx_ring_count	= wire_get_rx_ring_count,
	.get_rxnfc		= wire_get_rxnfc,
	.set_rxnfc		= wire_set_rxnfc,
	.get_rxfh_key_size	= wire_get_rxfh_key_size,
	.get_rxfh_indir_size	= wire_get_rxfh_indir_size,
	.get_rxfh		= wire_get_rxfh,
	.set_rxfh		= wire_set_rxfh,
	.get_rxfh_fields	= wire_get_rxfh_fields,
	.set_rxfh_fields	= wire_set_rxfh_fields,
	.create_rxfh_context	= wire_create_context,
	.modify_rxfh_context	= wire_modify_context,
	.remove_rxfh_context	= wire_remove_context,
	.get_sset_count		= wire_get_sset_count,
	.get_strings		= wire_get_strings,
	.get_ethtool_stats	= wire_get_ethtool_stats,
};
