// SPDX-License-Identifier: GPL-2.0
/*
 * The tx ring: the sender fills it, the engine reads it, NAPI cleans it. A frame is
 * freed only after the engine has read its last byte, so lent memory comes back no
 * earlier than from hardware.
 */
#include <linux/etherdevice.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "wire.h"

/* The room at which a stopped queue is woken. */
#define WIRE_TX_WAKE(tx) (((tx)->mask + 1) / 4)

static u32 wire_tx_room(struct wire_tx *tx)
{
	return tx->mask + 1 - (READ_ONCE(tx->head) - READ_ONCE(tx->clean));
}

netdev_tx_t wire_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct wire_nic *nic = netdev_priv(dev);
	unsigned int index = skb_get_queue_mapping(skb);
	struct netdev_queue *txq = netdev_get_tx_queue(dev, index);
	struct wire_queue *queue = &nic->queue[index];
	struct wire_tx *tx = &queue->tx;
	struct wire_slot *slot;
	bool kick;

	/* Packet sockets without a qdisc may have chosen it before there were fewer queues. */
	if (unlikely(!tx->ring)) {
		dev_kfree_skb_any(skb);
		dev_core_stats_tx_dropped_inc(dev);
		return NETDEV_TX_OK;
	}
	if (unlikely(!wire_tx_room(tx))) {
		netif_tx_stop_queue(txq);
		return NETDEV_TX_BUSY;
	}
	slot = &tx->ring[tx->head & tx->mask];
	slot->skb = skb;
	slot->queued = ktime_get();
	skb_tx_timestamp(skb);
	kick = __netdev_tx_sent_queue(txq, skb->len, netdev_xmit_more());
	/* The slot first: the engine may look at it at once. */
	smp_store_release(&tx->head, tx->head + 1);
	if (!netif_txq_maybe_stop(txq, wire_tx_room(tx), 1, WIRE_TX_WAKE(tx))) {
		wire_add(queue->count.tx_stopped, 1);
		kick = true;
	}
	if (kick)
		wire_engine_kick(wire_drainer(nic));
	return NETDEV_TX_OK;
}

/* Bytes of a frame that is to be cut, up to the end of its last header. */
static u32 wire_all_headers(struct sk_buff *skb)
{
	if (skb_shinfo(skb)->gso_type & SKB_GSO_UDP_L4)
		return skb_transport_offset(skb) + sizeof(struct udphdr);
	return skb_tcp_all_headers(skb);
}

netdev_features_t wire_features_check(struct sk_buff *skb, struct net_device *dev,
				      netdev_features_t features)
{
	/* The engine writes only into the bytes that travel in the completion. */
	if (skb_is_gso(skb) && wire_all_headers(skb) > WIRE_HEADER)
		features &= ~NETIF_F_GSO_MASK;
	if (skb->ip_summed == CHECKSUM_PARTIAL &&
	    skb_checksum_start_offset(skb) + skb->csum_offset + sizeof(__sum16) > WIRE_HEADER)
		features &= ~(NETIF_F_CSUM_MASK | NETIF_F_GSO_MASK);
	return features;
}

static void wire_tx_count(struct wire_counters *count, struct sk_buff *skb)
{
	u32 packets = 1, bytes = skb->len;

	if (skb_is_gso(skb)) {
		u32 headers = wire_all_headers(skb);

		packets = DIV_ROUND_UP(skb->len - headers, skb_shinfo(skb)->gso_size);
		bytes += (packets - 1) * headers;
		wire_add(count->tx_gso_packets, 1);
		wire_add(count->tx_gso_bytes, skb->len);
		wire_add(count->tx_gso_wire_packets, packets);
		wire_add(count->tx_gso_wire_bytes, bytes);
	}
	wire_add(count->tx_packets, packets);
	wire_add(count->tx_bytes, bytes);
}

void wire_tx_clean(struct wire_queue *queue, int budget)
{
	struct net_device *dev = queue->nic->dev;
	struct wire_tx *tx = &queue->tx;
	struct netdev_queue *txq = netdev_get_tx_queue(dev, queue - queue->nic->queue);
	u32 sent = smp_load_acquire(&tx->sent); /* pairs with wire_drain() */
	unsigned int frames = 0, bytes = 0;
	u32 clean = tx->clean;

	for (; clean != sent; clean++) {
		struct sk_buff *skb = tx->ring[clean & tx->mask].skb;

		frames++;
		bytes += skb->len;
		wire_tx_count(&queue->count, skb);
		napi_consume_skb(skb, budget);
	}
	/* The slots were read before the sender may fill them again. */
	smp_store_release(&tx->clean, clean);
	if (!frames)
		return;
	netif_txq_completed_wake(txq, frames, bytes, wire_tx_room(tx), WIRE_TX_WAKE(tx));
}

/* Only while sender, engine and NAPI are kept away. */
void wire_tx_purge(struct wire_queue *queue)
{
	struct wire_tx *tx = &queue->tx;

	for (; tx->clean != tx->head; tx->clean++)
		dev_kfree_skb(tx->ring[tx->clean & tx->mask].skb);
	tx->head = 0;
	tx->sent = 0;
	tx->clean = 0;
	tx->frame.skb = NULL;
	netdev_tx_reset_queue(netdev_get_tx_queue(queue->nic->dev, queue - queue->nic->queue));
}
