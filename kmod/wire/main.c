// SPDX-License-Identifier: GPL-2.0
/* The module, and pairs: making and removing them over rtnetlink. */
#include <linux/capability.h>
#include <linux/cc_platform.h>
#include <linux/dma-map-ops.h>
#include <linux/etherdevice.h>
#include <linux/module.h>
#include <linux/platform_device.h>
#include <net/rtnetlink.h>

#include "wire.h"
#include "wire_link.h"

/*
 * The device for which buffers are mapped. Memory providers need a device that can
 * do DMA, and netkit needs one to tell a NIC from a virtual device.
 */
struct device *wire_parent;
static struct platform_device *wire_platform;

static void wire_join(struct net_device *dev, struct net_device *peer)
{
	struct wire_nic *nic = netdev_priv(dev);

	rcu_assign_pointer(nic->peer, peer);
}

static void wire_prepare(struct net_device *dev, struct wire_cable *cable, unsigned int side)
{
	struct wire_nic *nic = netdev_priv(dev);

	nic->cable = cable;
	nic->side = side;
}

static int wire_newlink(struct net_device *dev, struct rtnl_newlink_params *params,
			struct netlink_ext_ack *extack)
{
	struct nlattr *peer_attributes[IFLA_MAX + 1], **attributes = params->tb;
	unsigned char assigned = NET_NAME_ENUM;
	struct ifinfomsg *message = NULL;
	char name[IFNAMSIZ] = "wire%d";
	struct wire_cable *cable;
	struct net_device *peer;
	int err;

	/* Nobody is charged for threads and rings. */
	if (!capable(CAP_NET_ADMIN)) {
		NL_SET_ERR_MSG_MOD(extack, "CAP_NET_ADMIN of a namespace is not enough");
		return -EPERM;
	}
	if (params->data && params->data[WIRE_INFO_PEER]) {
		struct nlattr *attribute = params->data[WIRE_INFO_PEER];

		err = rtnl_nla_parse_ifinfomsg(peer_attributes, attribute, extack);
		if (err < 0)
			return err;
		message = nla_data(attribute);
		attributes = peer_attributes;
		if (attributes[IFLA_IFNAME]) {
			nla_strscpy(name, attributes[IFLA_IFNAME], IFNAMSIZ);
			assigned = NET_NAME_USER;
		}
	}

	cable = wire_cable_make();
	if (IS_ERR(cable)) {
		NL_SET_ERR_MSG_MOD(extack, "no thread for the engine");
		return PTR_ERR(cable);
	}
	peer = rtnl_create_link(rtnl_newlink_peer_net(params), name, assigned,
				dev->rtnl_link_ops, attributes, extack);
	if (IS_ERR(peer)) {
		err = PTR_ERR(peer);
		goto no_peer;
	}
	if (!message || !attributes[IFLA_ADDRESS])
		eth_hw_addr_random(peer);
	if (message && dev->ifindex)
		peer->ifindex = message->ifi_index;
	if (!params->tb[IFLA_ADDRESS])
		eth_hw_addr_random(dev);
	wire_prepare(peer, cable, 1);
	wire_prepare(dev, cable, 0);

	err = register_netdevice(peer);
	if (err < 0) {
		free_netdev(peer);
		goto no_peer;
	}
	netif_carrier_off(peer);
	err = rtnl_configure_link(peer, NULL, 0, NULL);
	if (err < 0)
		goto peer_registered;
	err = register_netdevice(dev);
	if (err < 0)
		goto peer_registered;
	netif_carrier_off(dev);

	wire_join(dev, peer);
	wire_join(peer, dev);
	/* Each NIC has taken a reference of its own. */
	wire_cable_put(cable);
	return 0;

peer_registered:
	unregister_netdevice(peer);
no_peer:
	wire_cable_unplug(cable);
	wire_cable_put(cable);
	return err;
}

static void wire_dellink(struct net_device *dev, struct list_head *head)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(nic->peer);

	/*
	 * Both go together, and neither may look at the other from here on: either
	 * may be freed first.
	 */
	wire_cable_unplug(nic->cable);
	RCU_INIT_POINTER(nic->peer, NULL);
	unregister_netdevice_queue(dev, head);
	if (peer) {
		nic = netdev_priv(peer);
		RCU_INIT_POINTER(nic->peer, NULL);
		unregister_netdevice_queue(peer, head);
	}
}

static struct net *wire_get_link_net(const struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct net_device *peer = rtnl_dereference(nic->peer);

	return peer ? dev_net(peer) : dev_net(dev);
}

static int wire_validate(struct nlattr *tb[], struct nlattr *data[],
			 struct netlink_ext_ack *extack)
{
	if (tb[IFLA_ADDRESS]) {
		if (nla_len(tb[IFLA_ADDRESS]) != ETH_ALEN)
			return -EINVAL;
		if (!is_valid_ether_addr(nla_data(tb[IFLA_ADDRESS])))
			return -EADDRNOTAVAIL;
	}
	return 0;
}

static unsigned int wire_get_num_queues(void)
{
	return WIRE_QUEUES;
}

static const struct nla_policy wire_policy[WIRE_INFO_MAX + 1] = {
	[WIRE_INFO_PEER] = { .len = sizeof(struct ifinfomsg) },
};

static struct rtnl_link_ops wire_link_ops = {
	.kind			= "wire",
	.priv_size		= sizeof(struct wire_nic),
	.setup			= wire_setup,
	.validate		= wire_validate,
	.newlink		= wire_newlink,
	.dellink		= wire_dellink,
	.policy			= wire_policy,
	.peer_type		= WIRE_INFO_PEER,
	.maxtype		= WIRE_INFO_MAX,
	.get_link_net		= wire_get_link_net,
	.get_num_tx_queues	= wire_get_num_queues,
	.get_num_rx_queues	= wire_get_num_queues,
};

static int __init wire_init(void)
{
	int err;

	/* The engine writes through the linear map, which would be the wrong view. */
	if (cc_platform_has(CC_ATTR_MEM_ENCRYPT)) {
		pr_err("wire: memory is encrypted; the simulated DMA can't write to it\n");
		return -EOPNOTSUPP;
	}
	wire_platform = platform_device_register_simple("wire", PLATFORM_DEVID_NONE, NULL, 0);
	if (IS_ERR(wire_platform))
		return PTR_ERR(wire_platform);
	wire_parent = &wire_platform->dev;
	err = dma_coerce_mask_and_coherent(wire_parent, DMA_BIT_MASK(64));
	if (!err && (get_dma_ops(wire_parent) || device_iommu_mapped(wire_parent)))
		err = -EOPNOTSUPP;
	if (err) {
		pr_err("wire: DMA addresses are not those of memory on this machine (%d)\n", err);
		goto no_dma;
	}
	err = rtnl_link_register(&wire_link_ops);
	if (err)
		goto no_dma;
	return 0;

no_dma:
	platform_device_unregister(wire_platform);
	return err;
}

static void __exit wire_exit(void)
{
	rtnl_link_unregister(&wire_link_ops);
	platform_device_unregister(wire_platform);
}

module_init(wire_init);
module_exit(wire_exit);

MODULE_DESCRIPTION("Pairs of software NICs with simulated DMA, for tests of zero-copy receive");
MODULE_LICENSE("GPL");
/*
 * No MODULE_ALIAS_RTNL_LINK: by it whoever has a user namespace would make the
 * kernel load a device that is for tests.
 */
