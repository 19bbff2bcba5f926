// SPDX-License-Identifier: GPL-2.0
/*
 * Starts, stops and exchanges one rx queue while the others run: this is how a
 * memory provider (io_uring, devmem) gets a queue. The NAPI stays through an
 * exchange; it also cleans the tx ring, which is still being filled.
 */
#include <linux/netdevice.h>
#include <net/page_pool/helpers.h>

#include "wire.h"

/* The queue's rx rings are in place and its NAPI is disabled. */
void wire_queue_start(struct wire_queue *queue)
{
	struct wire_engine *engine = wire_feeder(queue->nic);
	struct wire_rx *rx = queue->rx;

	page_pool_enable_direct_recycling(rx->head.pool, &queue->napi);
	page_pool_enable_direct_recycling(rx->data.pool, &queue->napi);
	napi_enable_locked(&queue->napi);
	mutex_lock(&engine->lock);
	queue->fed = rx;
	mutex_unlock(&engine->lock);
	/* Fills the rings, and handles what happened while NAPI was off. */
	local_bh_disable();
	napi_schedule(&queue->napi);
	local_bh_enable();
}

void wire_queue_stop(struct wire_queue *queue)
{
	struct wire_engine *engine = wire_feeder(queue->nic);

	mutex_lock(&engine->lock);
	queue->fed = NULL;
	mutex_unlock(&engine->lock);
	napi_disable_locked(&queue->napi);
	page_pool_disable_direct_recycling(queue->rx->head.pool);
	page_pool_disable_direct_recycling(queue->rx->data.pool);
}

struct wire_queue_memory {
	struct wire_rx *rx;
};

static int wire_queue_memory_alloc(struct net_device *dev, struct netdev_queue_config *config,
				   void *memory, int index)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_queue_memory *own = memory;
	struct wire_rx *rx;

	rx = wire_rx_alloc(nic, index, config->rx_page_size, nic->rx_ring);
	if (IS_ERR(rx))
		return PTR_ERR(rx);
	own->rx = rx;
	return 0;
}

static void wire_queue_memory_free(struct net_device *dev, void *memory)
{
	struct wire_queue_memory *own = memory;

	wire_rx_free(own->rx);
}

static int wire_queue_memory_start(struct net_device *dev, struct netdev_queue_config *config,
				   void *memory, int index)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_queue_memory *own = memory;

	nic->queue[index].rx = own->rx;
	wire_queue_start(&nic->queue[index]);
	return 0;
}

static int wire_queue_memory_stop(struct net_device *dev, void *memory, int index)
{
	struct wire_nic *nic = netdev_priv(dev);
	struct wire_queue_memory *own = memory;

	wire_queue_stop(&nic->queue[index]);
	own->rx = nic->queue[index].rx;
	return 0;
}

static void wire_default_config(struct net_device *dev, struct netdev_queue_config *config)
{
	config->rx_page_size = PAGE_SIZE;
}

static int wire_validate_config(struct net_device *dev, struct netdev_queue_config *config,
				struct netlink_ext_ack *extack)
{
	u32 size = config->rx_page_size;

	if (!is_power_of_2(size) || size < PAGE_SIZE || size > WIRE_CHUNK_MAX) {
		NL_SET_ERR_MSG_MOD(extack, "chunks are 4 KiB to 2 MiB, a power of two");
		return -EINVAL;
	}
	return 0;
}

const struct netdev_queue_mgmt_ops wire_queue_mgmt_ops = {
	.ndo_queue_mem_size	= sizeof(struct wire_queue_memory),
	.ndo_queue_mem_alloc	= wire_queue_memory_alloc,
	.ndo_queue_mem_free	= wire_queue_memory_free,
	.ndo_queue_start	= wire_queue_memory_start,
	.ndo_queue_stop		= wire_queue_memory_stop,
	.ndo_default_qcfg	= wire_default_config,
	.ndo_validate_qcfg	= wire_validate_config,
	.supported_params	= QCFG_RX_PAGE_SIZE,
};
