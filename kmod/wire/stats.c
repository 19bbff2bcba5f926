// SPDX-License-Identifier: GPL-2.0
/* Counters, as ethtool, ip and the netdev family show them. */
#include "wire.h"

struct wire_name {
	char name[ETH_GSTRING_LEN];
	size_t offset;
};

#define WIRE_OF_NIC(field) { #field, offsetof(struct wire_engine_counters, field) }
#define WIRE_OF_QUEUE(field) { #field, offsetof(struct wire_counters, field) }

static const struct wire_name wire_of_nic[] = {
	WIRE_OF_NIC(dma_bytes),
	WIRE_OF_NIC(dma_refused),
	WIRE_OF_NIC(too_long),
	WIRE_OF_NIC(malformed),
	WIRE_OF_NIC(by_rule),
	WIRE_OF_NIC(dropped_by_rule),
	WIRE_OF_NIC(fault_dropped),
	WIRE_OF_NIC(fault_reordered),
	WIRE_OF_NIC(fault_wrong_queue),
};

static const struct wire_name wire_of_queue[] = {
	WIRE_OF_QUEUE(rx_packets),
	WIRE_OF_QUEUE(rx_bytes),
	WIRE_OF_QUEUE(rx_split),
	WIRE_OF_QUEUE(rx_no_buffer),
	WIRE_OF_QUEUE(rx_no_completion),
	WIRE_OF_QUEUE(rx_alloc_fail),
	WIRE_OF_QUEUE(rx_skb_fail),
	WIRE_OF_QUEUE(rx_gro_packets),
	WIRE_OF_QUEUE(tx_packets),
	WIRE_OF_QUEUE(tx_bytes),
	WIRE_OF_QUEUE(tx_gso_packets),
	WIRE_OF_QUEUE(tx_discarded),
	WIRE_OF_QUEUE(tx_stopped),
};

static u64 wire_read(const void *counters, size_t offset)
{
	return READ_ONCE(*(const u64 *)(counters + offset));
}

int wire_get_sset_count(struct net_device *dev, int set)
{
	if (set != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return ARRAY_SIZE(wire_of_nic) + dev->real_num_rx_queues * ARRAY_SIZE(wire_of_queue);
}

void wire_get_strings(struct net_device *dev, u32 set, u8 *data)
{
	unsigned int queue, i;

	if (set != ETH_SS_STATS)
		return;
	for (i = 0; i < ARRAY_SIZE(wire_of_nic); i++)
		ethtool_puts(&data, wire_of_nic[i].name);
	for (queue = 0; queue < dev->real_num_rx_queues; queue++) {
		for (i = 0; i < ARRAY_SIZE(wire_of_queue); i++)
			ethtool_sprintf(&data, "queue%u_%s", queue, wire_of_queue[i].name);
	}
}

void wire_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct wire_nic *nic = netdev_priv(dev);
	unsigned int queue, i;

	for (i = 0; i < ARRAY_SIZE(wire_of_nic); i++)
		*data++ = wire_read(&nic->count, wire_of_nic[i].offset);
	for (queue = 0; queue < dev->real_num_rx_queues; queue++) {
		for (i = 0; i < ARRAY_SIZE(wire_of_queue); i++)
			*data++ = wire_read(&nic->queue[queue].count, wire_of_queue[i].offset);
	}
}

void wire_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats)
{
	struct wire_nic *nic = netdev_priv(dev);
	unsigned int queues = min(dev->num_rx_queues, dev->num_tx_queues);
	unsigned int i;

	/* Include queues that are not in use now. */
	for (i = 0; i < queues; i++) {
		struct wire_counters *count = &nic->queue[i].count;

		stats->rx_packets += READ_ONCE(count->rx_packets);
		stats->rx_bytes += READ_ONCE(count->rx_bytes);
		stats->rx_dropped += READ_ONCE(count->rx_skb_fail);
		stats->rx_missed_errors += READ_ONCE(count->rx_no_buffer) +
					   READ_ONCE(count->rx_no_completion);
		stats->tx_packets += READ_ONCE(count->tx_packets);
		stats->tx_bytes += READ_ONCE(count->tx_bytes);
		stats->tx_dropped += READ_ONCE(count->tx_discarded);
	}
	stats->rx_length_errors = READ_ONCE(nic->count.too_long);
	stats->rx_frame_errors = READ_ONCE(nic->count.malformed);
	stats->rx_errors = stats->rx_length_errors + stats->rx_frame_errors;
}

/* A statistic of the netdev family, and a counter that is part of it. */
struct wire_stat {
	size_t stat;
	size_t counter;
};

#define WIRE_RX(stat, counter) { offsetof(struct netdev_queue_stats_rx, stat), \
				 offsetof(struct wire_counters, counter) }
#define WIRE_TX(stat, counter) { offsetof(struct netdev_queue_stats_tx, stat), \
				 offsetof(struct wire_counters, counter) }

static const struct wire_stat wire_rx_stats[] = {
	WIRE_RX(packets, rx_packets),
	WIRE_RX(bytes, rx_bytes),
	WIRE_RX(alloc_fail, rx_alloc_fail),
	WIRE_RX(alloc_fail, rx_skb_fail),
	WIRE_RX(hw_drops, rx_no_buffer),
	WIRE_RX(hw_drops, rx_no_completion),
	WIRE_RX(hw_drop_overruns, rx_no_buffer),
	WIRE_RX(hw_drop_overruns, rx_no_completion),
	WIRE_RX(hw_gro_packets, rx_gro_packets),
	WIRE_RX(hw_gro_bytes, rx_gro_bytes),
	WIRE_RX(hw_gro_wire_packets, rx_gro_wire_packets),
};

static const struct wire_stat wire_tx_stats[] = {
	WIRE_TX(packets, tx_packets),
	WIRE_TX(bytes, tx_bytes),
	WIRE_TX(hw_drops, tx_discarded),
	WIRE_TX(hw_gso_packets, tx_gso_packets),
	WIRE_TX(hw_gso_bytes, tx_gso_bytes),
	WIRE_TX(hw_gso_wire_packets, tx_gso_wire_packets),
	WIRE_TX(hw_gso_wire_bytes, tx_gso_wire_bytes),
	WIRE_TX(stop, tx_stopped),
};

/* Sums of queues from first up to but not with end. The others of its statistics stay unset. */
static void wire_sum(struct wire_nic *nic, unsigned int first, unsigned int end, void *stats,
		     const struct wire_stat *of, size_t number)
{
	unsigned int queue;
	size_t i;

	for (i = 0; i < number; i++)
		*(u64 *)(stats + of[i].stat) = 0;
	for (queue = first; queue < end; queue++) {
		for (i = 0; i < number; i++)
			*(u64 *)(stats + of[i].stat) += wire_read(&nic->queue[queue].count,
								  of[i].counter);
	}
}

static void wire_queue_stats_rx(struct net_device *dev, int index,
				struct netdev_queue_stats_rx *stats)
{
	wire_sum(netdev_priv(dev), index, index + 1, stats, wire_rx_stats,
		 ARRAY_SIZE(wire_rx_stats));
}

static void wire_queue_stats_tx(struct net_device *dev, int index,
				struct netdev_queue_stats_tx *stats)
{
	wire_sum(netdev_priv(dev), index, index + 1, stats, wire_tx_stats,
		 ARRAY_SIZE(wire_tx_stats));
}

/* The counts of queues that are not in use now. Of the whole device only these are told. */
static void wire_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
			    struct netdev_queue_stats_tx *tx)
{
	unsigned int queues = min(dev->num_rx_queues, dev->num_tx_queues);

	wire_sum(netdev_priv(dev), dev->real_num_rx_queues, queues, rx, wire_rx_stats,
		 ARRAY_SIZE(wire_rx_stats));
	wire_sum(netdev_priv(dev), dev->real_num_rx_queues, queues, tx, wire_tx_stats,
		 ARRAY_SIZE(wire_tx_stats));
}

const struct netdev_stat_ops wire_stat_ops = {
	.get_queue_stats_rx	= wire_queue_stats_rx,
	.get_queue_stats_tx	= wire_queue_stats_tx,
	.get_base_stats		= wire_base_stats,
};
