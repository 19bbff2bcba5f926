// SPDX-License-Identifier: GPL-2.0
/* NAPI: makes packets of completions, posts buffers again, frees sent frames. */
#include <linux/etherdevice.h>
#include <linux/tcp.h>
#include <net/gro.h>
#include <net/page_pool/helpers.h>

#include "wire.h"

/*
 * Moves the completion's fragments into the packet, or drops them if there is no
 * packet. Each fragment holds a reference of its own; the last one of a buffer
 * takes over ours.
 */
static void wire_take_fragments(struct wire_buffers *buffers, struct wire_completion *completion,
				struct sk_buff *skb)
{
	unsigned int i;

	for (i = 0; i < completion->fragments; i++) {
		struct wire_fragment *fragment = &completion->fragment[i];
		netmem_ref netmem = buffers->ring[buffers->done & buffers->mask].netmem;
		/* The part of the buffer that nobody else can use counts too. */
		u32 end = fragment->last ? buffers->chunk : fragment->offset + fragment->length;

		if (!skb) {
			if (fragment->last)
				page_pool_put_full_netmem(buffers->pool, netmem, true);
		} else {
			page_pool_dma_sync_netmem_for_cpu(buffers->pool, netmem, fragment->offset,
							  fragment->length);
			if (!fragment->last)
				page_pool_ref_netmem(netmem);
			skb_add_rx_frag_netmem(skb, i, netmem, fragment->offset, fragment->length,
					       end - fragment->offset);
		}
		if (fragment->last)
			buffers->done++;
	}
}

/* A frame that the sender sent as one and nobody has cut: what GRO would make of it. */
static void wire_mark_whole(struct wire_queue *queue, struct wire_completion *completion,
			    struct sk_buff *skb)
{
	struct skb_shared_info *shared = skb_shinfo(skb);

	shared->gso_size = completion->segment;
	shared->gso_segs = DIV_ROUND_UP(completion->payload, completion->segment);
	shared->gso_type = completion->flags & WIRE_IPV6 ? SKB_GSO_TCPV6 : SKB_GSO_TCPV4;
	/* The header's checksum field still has the sender's sum of the pseudo header. */
	skb->ip_summed = CHECKSUM_PARTIAL;
	skb->csum_start = skb_headroom(skb) + completion->checksum;
	skb->csum_offset = offsetof(struct tcphdr, check);
	wire_add(queue->count.rx_gro_packets, 1);
	wire_add(queue->count.rx_gro_bytes, completion->payload);
	wire_add(queue->count.rx_gro_wire_packets, shared->gso_segs);
}

static void wire_receive(struct wire_queue *queue, struct wire_completion *completion)
{
	bool split = completion->flags & WIRE_SPLIT;
	struct wire_buffers *buffers = split ? &queue->rx->data : &queue->rx->head;
	struct net_device *dev = queue->nic->dev;
	/* GRO mostly keeps only a segment's fragments, and the rest serves the next segment. */
	bool reuse = split && completion->header <= GRO_MAX_HEAD;
	struct sk_buff *skb = reuse ? napi_get_frags(&queue->napi) :
				      napi_alloc_skb(&queue->napi, completion->header);

	if (likely(skb)) {
		/* A reused packet may have had fragments of another memory. */
		skb->unreadable = false;
		skb_put_data(skb, completion->data, completion->header);
	}
	wire_take_fragments(buffers, completion, skb);
	if (unlikely(!skb)) {
		wire_add(queue->count.rx_skb_fail, 1);
		return;
	}
	skb->ip_summed = CHECKSUM_NONE;
	skb_mark_for_recycle(skb);
	skb_record_rx_queue(skb, queue - queue->nic->queue);
	if (dev->features & NETIF_F_RXHASH)
		skb_set_hash(skb, completion->hash, completion->flags & WIRE_HASH_L4 ?
			     PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3);
	if (completion->segment)
		wire_mark_whole(queue, completion, skb);
	else if (completion->flags & WIRE_VERIFIED)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	wire_add(queue->count.rx_packets, 1);
	wire_add(queue->count.rx_bytes, skb->len);
	if (reuse) {
		napi_gro_frags(&queue->napi);
	} else {
		skb->protocol = eth_type_trans(skb, dev);
		napi_gro_receive(&queue->napi, skb);
	}
}

int wire_poll(struct napi_struct *napi, int budget)
{
	struct wire_queue *queue = container_of(napi, struct wire_queue, napi);
	struct wire_engine *feeder = wire_feeder(queue->nic);
	struct wire_rx *rx = queue->rx;
	u32 written = smp_load_acquire(&rx->written); /* pairs with wire_deliver() */
	u32 read = rx->read;
	int work = 0;

	wire_tx_clean(queue, budget);
	for (; read != written && work < budget; work++, read++)
		wire_receive(queue, &rx->completion[read & rx->mask]);
	/* The engine may write where we have read. */
	smp_store_release(&rx->read, read);
	if (likely(budget)) {
		wire_rx_refill(queue, rx);
		if (READ_ONCE(feeder->stalled))
			wire_engine_kick(feeder);
	}
	if (work < budget)
		napi_complete_done(napi, work);
	return work;
}
