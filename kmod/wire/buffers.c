// SPDX-License-Identifier: GPL-2.0
/* Page pools, and the rings through which their buffers go to the engine. */
#include <linux/netdevice.h>
#include <net/page_pool/helpers.h>

#include "wire.h"

static int wire_buffers_init(struct wire_buffers *buffers, struct wire_nic *nic,
			     unsigned int index, u32 chunk, u32 size, unsigned int flags)
{
	struct page_pool_params params = {
		.order		= get_order(chunk),
		.pool_size	= size,
		.nid		= NUMA_NO_NODE,
		.dev		= wire_parent,
		.dma_dir	= DMA_FROM_DEVICE,
		.max_len	= chunk,
		.netdev		= nic->dev,
		.queue_idx	= index,
		.flags		= PP_FLAG_DMA_MAP | PP_FLAG_DMA_SYNC_DEV | flags,
	};
	struct page_pool *pool;

	buffers->ring = kvcalloc(size, sizeof(*buffers->ring), GFP_KERNEL);
	if (!buffers->ring)
		return -ENOMEM;
	buffers->mask = size - 1;
	buffers->chunk = chunk;
	pool = page_pool_create(&params);
	if (IS_ERR(pool))
		return PTR_ERR(pool);
	buffers->pool = pool;
	return 0;
}

/* Only while neither NAPI nor the engine uses it. */
static void wire_buffers_free(struct wire_buffers *buffers)
{
	for (; buffers->done != buffers->posted; buffers->done++)
		page_pool_put_full_netmem(buffers->pool,
					  buffers->ring[buffers->done & buffers->mask].netmem,
					  false);
	page_pool_destroy(buffers->pool);
	kvfree(buffers->ring);
}

/* Returns whether the pool had enough buffers. */
static bool wire_buffers_refill(struct wire_buffers *buffers)
{
	u32 posted = buffers->posted;

	while (posted - buffers->done <= buffers->mask) {
		struct wire_buffer *buffer = &buffers->ring[posted & buffers->mask];

		buffer->netmem = page_pool_dev_alloc_netmems(buffers->pool);
		if (!buffer->netmem)
			break;
		buffer->dma = page_pool_get_dma_addr_netmem(buffer->netmem);
		posted++;
	}
	/* The buffer's fields first: the engine may take it at once. */
	smp_store_release(&buffers->posted, posted);
	return posted - buffers->done > buffers->mask;
}

void wire_rx_refill(struct wire_queue *queue, struct wire_rx *rx)
{
	bool full = false;

	if (!wire_fault_hits(&queue->nic->fault.alloc_fail)) {
		full = wire_buffers_refill(&rx->head);
		full &= wire_buffers_refill(&rx->data);
	}
	if (!full)
		wire_add(queue->count.rx_alloc_fail, 1);
}

struct wire_rx *wire_rx_alloc(struct wire_nic *nic, unsigned int index, u32 chunk, u32 size)
{
	struct wire_rx *rx = kzalloc(sizeof(*rx), GFP_KERNEL);
	int err = -ENOMEM;

	if (!rx)
		return ERR_PTR(-ENOMEM);
	rx->completion = kvcalloc(size, sizeof(*rx->completion), GFP_KERNEL);
	if (!rx->completion)
		goto failed;
	rx->mask = size - 1;
	err = wire_buffers_init(&rx->head, nic, index, PAGE_SIZE, size, 0);
	if (err)
		goto failed;
	err = wire_buffers_init(&rx->data, nic, index, chunk, size,
				PP_FLAG_ALLOW_UNREADABLE_NETMEM);
	if (err)
		goto failed;
	return rx;

failed:
	wire_rx_free(rx);
	return ERR_PTR(err);
}

void wire_rx_free(struct wire_rx *rx)
{
	if (!rx)
		return;
	wire_buffers_free(&rx->head);
	wire_buffers_free(&rx->data);
	kvfree(rx->completion);
	kfree(rx);
}
