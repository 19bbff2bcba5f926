// SPDX-License-Identifier: GPL-2.0
/* The network device: set-up, up and down, and exchanging rings and queues as a whole. */
#include <linux/etherdevice.h>
#include <net/netdev_lock.h>

#include "wire.h"

/* The rings of a queue, without the queue. */
struct wire_rings {
	struct wire_rx *rx;
	struct wire_slot *tx;
	u32 tx_mask;
};

static int wire_rings_alloc(struct wire_nic *nic, unsigned int index, u32 rx_ring, u32 tx_ring,
			    struct wire_rings *rings)
{
	struct netdev_queue_config config;

	netdev_queue_config(nic->dev, index, &config);
	rings->rx = wire_rx_alloc(nic, index, config.rx_page_size, rx_ring);
	if (IS_ERR(rings->rx)) {
		int err = PTR_ERR(rings->rx);

		rings->rx = NULL;
		return err;
	}
	rings->tx = kvcalloc(tx_ring, sizeof(*rings->tx), GFP_KERNEL);
	rings->tx_mask = tx_ring - 1;
	return rings->tx ? 0 : -ENOMEM;
}

static void wire_rings_free(struct wire_rings *rings, unsigned int count)
{
	while (count--) {
		wire_rx_free(rings[count].rx);
		kvfree(rings[count].tx);
	}
	kfree(rings);
}

/* Rings for so many queues, with room for more; an error leaves nothing behind. */
static struct wire_rings *wire_rings_make(struct wire_nic *nic, unsigned int queues,
					  unsigned int room, u32 rx_ring, u32 tx_ring)
{
	struct wire_rings *rings = kcalloc(room, sizeof(*rings), GFP_KERNEL);
	unsigned int i;
	int err;

	if (!rings)
		return ERR_PTR(-ENOMEM);
	for (i = 0; i < queues; i++) {
		err = wire_rings_alloc(nic, i, rx_ring, tx_ring, &rings[i]);
		if (err) {
			wire_rings_free(rings, i + 1);
			return ERR_PTR(err);
		}
	}
	return rings;
}

/* Only while the queues stand still. */
static void wire_rings_swap(struct wire_nic *nic, struct wire_rings *rings, unsigned int count)
{
	while (count--) {
		struct wire_queue *queue = &nic->queue[count];

		swap(queue->rx, rings[count].rx);
		swap(queue->tx.ring, rings[count].tx);
		swap(queue->tx.mask, rings[count].tx_mask);
	}
}

static void wire_attach(struct wire_nic *nic, struct wire_nic *attached)
{
	struct wire_engine *engine = wire_drainer(nic);

	mutex_lock(&engine->lock);
	engine->from = attached;
	mutex_unlock(&engine->lock);
	engine = wire_feeder(nic);
	mutex_lock(&engine->lock);
	engine->to = attached;
	mutex_unlock(&engine->lock);
	wire_engine_kick(engine);
}

/* Starts queues whose rings are in place. */
static void wire_resume(struct wire_nic *nic, unsigned int queues)
{
	struct net_device *dev = nic->dev;
	unsigned int i;

	for (i = 0; i < queues; i++) {
		struct wire_queue *queue = &nic->queue[i];

		netif_napi_add_config_locked(dev, &queue->napi, wire_poll, i);
		netif_napi_set_irq_locked(&queue->napi, queue->irq);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, &queue->napi);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_TX, &queue->napi);
		wire_queue_start(queue);
	}
	wire_attach(nic, nic);
	netif_tx_wake_all_queues(dev);
}

/* Stops queues; their rings stay, and unsent frames are dropped. */
static void wire_halt(struct wire_nic *nic, unsigned int queues)
{
	struct net_device *dev = nic->dev;
	unsigned int i;

	wire_attach(nic, NULL);
	for (i = 0; i < queues; i++)
		wire_queue_stop(&nic->queue[i]);
	/* Only NAPI wakes a queue, so from here on they stay stopped. */
	netif_tx_disable(dev);
	for (i = 0; i < queues; i++) {
		struct wire_queue *queue = &nic->queue[i];

		wire_tx_purge(queue);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_RX, NULL);
		netif_queue_set_napi(dev, i, NETDEV_QUEUE_TYPE_TX, NULL);
		netif_napi_del_locked(&queue->napi);
	}
}

/*
 * Changes the number of queues or the rings, while up too. It makes everything new
 * before it frees anything old; an error leaves all as it was.
 */
int wire_rebuild(struct wire_nic *nic, unsigned int queues, u32 rx_ring, u32 tx_ring)
{
	struct net_device *dev = nic->dev;
	unsigned int before = dev->real_num_rx_queues;
	unsigned int room = max(queues, before);
	struct wire_rings *rings;
	int err = 0;

	if (!netif_running(dev)) {
		if (queues != before)
			err = netif_set_real_num_queues(dev, queues, queues);
		if (!err) {
			nic->rx_ring = rx_ring;
			nic->tx_ring = tx_ring;
		}
		return err;
	}
	rings = wire_rings_make(nic, queues, room, rx_ring, tx_ring);
	if (IS_ERR(rings))
		return PTR_ERR(rings);
	wire_halt(nic, before);
	if (queues != before)
		err = netif_set_real_num_queues(dev, queues, queues);
	if (err) {
		wire_resume(nic, before);
	} else {
		wire_rings_swap(nic, rings, room);
		nic->rx_ring = rx_ring;
		nic->tx_ring = tx_ring;
		wire_resume(nic, queues);
	}
	wire_rings_free(rings, room);
	return err;
}

static int wire_open(struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	unsigned int queues = dev->real_num_rx_queues;
	struct net_device *peer = rtnl_dereference(nic->peer);
	struct wire_rings *rings;

	rings = wire_rings_make(nic, queues, queues, nic->rx_ring, nic->tx_ring);
	if (IS_ERR(rings))
		return PTR_ERR(rings);
	wire_rings_swap(nic, rings, queues);
	wire_rings_free(rings, queues);
	wire_resume(nic, queues);
	if (peer && netif_running(peer)) {
		netif_carrier_on(dev);
		netif_carrier_on(peer);
	}
	return 0;
}

static int wire_stop(struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(nic->peer);
	unsigned int i;

	netif_carrier_off(dev);
	if (peer)
		netif_carrier_off(peer);
	wire_halt(nic, dev->real_num_rx_queues);
	for (i = 0; i < dev->real_num_rx_queues; i++) {
		struct wire_queue *queue = &nic->queue[i];

		wire_rx_free(queue->rx);
		kvfree(queue->tx.ring);
		queue->rx = NULL;
		queue->tx.ring = NULL;
	}
	return 0;
}

static int wire_init_device(struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	unsigned int queues = min(dev->num_rx_queues, dev->num_tx_queues);
	unsigned int at_first, i;
	int err;

	if (queues > WIRE_QUEUES_MAX)
		return -EINVAL;
	at_first = min(queues, WIRE_QUEUES_AT_FIRST);
	err = netif_set_real_num_queues(dev, at_first, at_first);
	if (err)
		return err;
	nic->dev = dev;
	nic->queue = kvcalloc(queues, sizeof(*nic->queue), GFP_KERNEL);
	if (!nic->queue)
		return -ENOMEM;
	for (i = 0; i < queues; i++)
		nic->queue[i].nic = nic;
	err = wire_irq_make(nic, queues);
	if (err) {
		kvfree(nic->queue);
		return err;
	}
	nic->rx_ring = WIRE_RING;
	nic->tx_ring = WIRE_RING;
	kref_get(&nic->cable->ref);
	wire_steering_init(nic, at_first);
	netdev_lockdep_set_classes(dev);
	return 0;
}

static void wire_uninit_device(struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);

	wire_cable_put(nic->cable);
	wire_irq_free(nic);
	kvfree(nic->queue);
}

static int wire_get_iflink(const struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct net_device *peer;
	int index;

	rcu_read_lock();
	peer = rcu_dereference(nic->peer);
	index = peer ? READ_ONCE(peer->ifindex) : 0;
	rcu_read_unlock();
	return index;
}

static const struct net_device_ops wire_netdev_ops = {
	.ndo_init		= wire_init_device,
	.ndo_uninit		= wire_uninit_device,
	.ndo_open		= wire_open,
	.ndo_stop		= wire_stop,
	.ndo_start_xmit		= wire_xmit,
	.ndo_features_check	= wire_features_check,
	.ndo_get_stats64	= wire_get_stats64,
	.ndo_get_iflink		= wire_get_iflink,
	.ndo_set_mac_address	= eth_mac_addr,
	.ndo_validate_addr	= eth_validate_addr,
};

void wire_setup(struct net_device *dev)
{
	static const netdev_features_t always = NETIF_F_HIGHDMA | NETIF_F_RXCSUM;
	static const netdev_features_t switchable =
		NETIF_F_SG | NETIF_F_HW_CSUM | NETIF_F_TSO | NETIF_F_TSO6 | NETIF_F_TSO_ECN |
		NETIF_F_GSO_UDP_L4 | NETIF_F_RXHASH | NETIF_F_NTUPLE;

	ether_setup(dev);
	dev->netdev_ops = &wire_netdev_ops;
	dev->ethtool_ops = &wire_ethtool_ops;
	dev->queue_mgmt_ops = &wire_queue_mgmt_ops;
	dev->stat_ops = &wire_stat_ops;
	dev->sysfs_groups[0] = &wire_fault_group;
	dev->priv_flags |= IFF_LIVE_ADDR_CHANGE;
	dev->max_mtu = ETH_MAX_MTU;
	dev->netmem_tx = NETMEM_TX_DMA;
	dev->needs_free_netdev = true;
	dev->features = always | switchable;
	/* Checksums are always checked: the stack can't where payload is unreadable. */
	dev->hw_features = switchable | NETIF_F_GRO_HW;
	dev->vlan_features = dev->features & ~NETIF_F_NTUPLE;
	SET_NETDEV_DEV(dev, wire_parent);
}
