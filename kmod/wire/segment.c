// SPDX-License-Identifier: GPL-2.0
/*
 * A frame on its way: looked at once, cut into packets, each steered to a queue and
 * written into the buffers posted there.
 */
#include <linux/dma-direct.h>
#include <linux/if_vlan.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/memory_hotplug.h>
#include <linux/tcp.h>
#include <linux/udp.h>
#include <net/checksum.h>
#include <net/ip.h>
#include <net/ip6_checksum.h>

#include "wire.h"

/*
 * Writes to the address that a buffer is mapped to, as a device would, and sums up.
 * The address came from the owner of the buffer, so check that it is memory.
 */
static int wire_write(dma_addr_t to, const u8 *from, u32 length, u32 at, __wsum *sum)
{
	while (length) {
		phys_addr_t address = dma_to_phys(wire_parent, to);
		struct page *page = pfn_to_online_page(PHYS_PFN(address));
		u32 part = min_t(u32, length, PAGE_SIZE - offset_in_page(address));
		__wsum of_part;

		if (!page)
			return -EFAULT;
		of_part = csum_partial_copy_nocheck(from, page_address(page) +
						    offset_in_page(address), part);
		*sum = csum_block_add(*sum, of_part, at);
		to += part;
		from += part;
		at += part;
		length -= part;
	}
	return 0;
}

/* Adds the bytes written to the current buffer to the packet's fragments. */
static void wire_note(struct wire_buffers *buffers, struct wire_completion *completion, u32 length)
{
	struct wire_fragment *fragment = NULL;

	if (completion->fragments)
		fragment = &completion->fragment[completion->fragments - 1];
	if (!fragment || fragment->last) {
		fragment = &completion->fragment[completion->fragments++];
		fragment->offset = buffers->used;
		fragment->length = 0;
		fragment->last = false;
	}
	fragment->length += length;
	buffers->used += length;
	if (buffers->used == buffers->chunk) {
		fragment->last = true;
		buffers->taken++;
		buffers->used = 0;
	}
}

/*
 * Bytes of a frame from this one on, which the kernel may be unable to read. Finds
 * them as a device does: by their DMA addresses. Returns how many there are in one
 * piece, 0 if there is no memory.
 */
static u32 wire_peek(struct sk_buff *skb, u32 at, const u8 **data)
{
	u32 start = skb_headlen(skb);
	unsigned int i;

	if (at < start) {
		*data = skb->data + at;
		return start - at;
	}
	for (i = 0; i < skb_shinfo(skb)->nr_frags; i++) {
		const skb_frag_t *frag = &skb_shinfo(skb)->frags[i];
		u32 end = start + skb_frag_size(frag);
		phys_addr_t address;
		struct page *page;

		if (at < end) {
			if (!skb_frag_is_net_iov(frag)) {
				*data = skb_frag_address(frag) + at - start;
				return end - at;
			}
			/* Memory of a provider is mapped already. */
			address = dma_to_phys(wire_parent,
					      skb_frag_dma_map(wire_parent, frag, at - start));
			page = pfn_to_online_page(PHYS_PFN(address));
			if (!page)
				return 0;
			*data = page_address(page) + offset_in_page(address);
			return min_t(u32, end - at, PAGE_SIZE - offset_in_page(address));
		}
		start = end;
	}
	return 0;
}

/* The next bytes of a frame, which is read from this byte on. */
static u32 wire_read(struct sk_buff *skb, struct skb_seq_state *state, u32 from, u32 at,
		     const u8 **data)
{
	if (skb_frags_readable(skb))
		return skb_seq_read(at, data, state);
	return wire_peek(skb, from + at, data);
}

static int wire_place_bytes(struct wire_buffers *buffers, struct sk_buff *skb, u32 from, u32 length,
			    struct wire_completion *completion, __wsum *sum)
{
	struct skb_seq_state state;
	const u8 *data;
	u32 at = 0;
	int err = 0;

	skb_prepare_seq_read(skb, from, from + length, &state);
	while (at < length && !err) {
		u32 block = min(wire_read(skb, &state, from, at, &data), length - at);

		if (!block)
			err = -EFAULT;
		while (block && !err) {
			struct wire_buffer *buffer = &buffers->ring[buffers->taken & buffers->mask];
			u32 part = min(block, buffers->chunk - buffers->used);

			err = wire_write(buffer->dma + buffers->used, data, part, at, sum);
			if (!err)
				wire_note(buffers, completion, part);
			data += part;
			at += part;
			block -= part;
		}
	}
	skb_abort_seq_read(&state);
	return err;
}

/*
 * Puts a part of the frame into buffers. With packing, the next packet continues
 * where this one ends. An error leaves the buffers as they were.
 */
static int wire_place(struct wire_buffers *buffers, bool packing, struct sk_buff *skb, u32 from,
		      u32 length, struct wire_completion *completion, __wsum *sum)
{
	u32 taken = buffers->taken, used = buffers->used;
	int err = wire_place_bytes(buffers, skb, from, length, completion, sum);

	if (err) {
		buffers->taken = taken;
		buffers->used = used;
		return err;
	}
	if (!packing && buffers->used) {
		completion->fragment[completion->fragments - 1].last = true;
		buffers->taken++;
		buffers->used = 0;
	}
	return 0;
}

static bool wire_has_room(struct wire_buffers *buffers, u32 length)
{
	u32 posted = smp_load_acquire(&buffers->posted); /* pairs with the refill */

	return (u64)(posted - buffers->taken) * buffers->chunk >= (u64)buffers->used + length;
}

static bool wire_tcp_sum_is_right(struct wire_frame *frame)
{
	u32 length = frame->end - frame->transport;
	__wsum sum = skb_checksum(frame->skb, frame->transport, length, 0);

	if (frame->keys.basic.n_proto == htons(ETH_P_IP))
		return !csum_tcpudp_magic(frame->keys.addrs.v4addrs.src,
					  frame->keys.addrs.v4addrs.dst, length, IPPROTO_TCP, sum);
	return !csum_ipv6_magic(&frame->keys.addrs.v6addrs.src, &frame->keys.addrs.v6addrs.dst,
				length, IPPROTO_TCP, sum);
}

/* Where the IP header begins, behind those of Ethernet and VLAN, or 0; whoever made the frame. */
static u32 wire_find_network(struct wire_frame *frame)
{
	__be16 protocol = ((struct ethhdr *)frame->data)->h_proto;
	u32 at = ETH_HLEN;

	while (eth_type_vlan(protocol) && at + VLAN_HLEN <= frame->header) {
		protocol = ((struct vlan_hdr *)&frame->data[at])->h_vlan_encapsulated_proto;
		at += VLAN_HLEN;
	}
	return protocol == frame->keys.basic.n_proto ? at : 0;
}

/* Bytes of the transport header at this place, or 0 if it is incomplete or useless. */
static u32 wire_transport_header(struct wire_frame *frame, u32 transport)
{
	struct tcphdr *tcp = (void *)&frame->data[transport];

	switch (frame->keys.basic.ip_proto) {
	case IPPROTO_TCP:
		if (transport + sizeof(*tcp) > frame->header || tcp->doff * 4 < sizeof(*tcp))
			return 0;
		return tcp->doff * 4;
	case IPPROTO_UDP:
		/* A single datagram needs no cut, and its headers are not split off. */
		return frame->segment ? sizeof(struct udphdr) : 0;
	}
	return 0;
}

static u16 wire_sum_offset(u8 protocol)
{
	return protocol == IPPROTO_TCP ? offsetof(struct tcphdr, check) :
					 offsetof(struct udphdr, check);
}

/* Finds the end of the headers of TCP, or of UDP that is to be cut; ignores other protocols. */
static void wire_look_for_transport(struct wire_frame *frame)
{
	struct flow_keys *keys = &frame->keys;
	u8 protocol = keys->basic.ip_proto;
	u32 network = wire_find_network(frame), end;
	u32 transport = keys->control.thoff;
	u32 header;

	if (keys->control.flags & FLOW_DIS_IS_FRAGMENT)
		return;
	/* Frames written by hand may name any two bytes as the checksum. */
	if (frame->skb->ip_summed == CHECKSUM_PARTIAL &&
	    (skb_checksum_start_offset(frame->skb) != transport ||
	     frame->skb->csum_offset != wire_sum_offset(protocol)))
		return;
	if (!network || network + sizeof(struct iphdr) > transport)
		return;
	header = wire_transport_header(frame, transport);
	if (!header)
		return;
	header += transport;
	if (keys->basic.n_proto == htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)&frame->data[network];

		end = network + ntohs(ip->tot_len);
	} else {
		struct ipv6hdr *ip = (void *)&frame->data[network];

		end = network + sizeof(*ip) + ntohs(ip->payload_len);
	}
	if (header > frame->header || header > end || end > frame->end)
		return;
	frame->protocol = protocol;
	frame->network = network;
	frame->transport = transport;
	frame->header = header;
	/* Leave out the padding of a short frame. */
	frame->end = end;
	if (!frame->verified && protocol == IPPROTO_TCP)
		frame->verified = wire_tcp_sum_is_right(frame);
}

static void wire_read_header(struct sk_buff *skb, u8 *to, u32 length)
{
	struct skb_seq_state state;
	const u8 *data;
	u32 at = 0;

	skb_prepare_seq_read(skb, 0, length, &state);
	while (at < length) {
		u32 block = min(wire_read(skb, &state, 0, at, &data), length - at);

		if (!block)
			break;
		memcpy(to + at, data, block);
		at += block;
	}
	skb_abort_seq_read(&state);
}

void wire_frame_look(struct wire_engine *engine, struct wire_frame *frame, struct sk_buff *skb)
{
	struct wire_nic *to = engine->to;

	frame->skb = skb;
	frame->offset = 0;
	frame->end = skb->len;
	frame->header = min_t(u32, skb->len, WIRE_HEADER);
	frame->segment = skb_is_gso(skb) ? skb_shinfo(skb)->gso_size : 0;
	frame->protocol = 0;
	frame->verified = skb->ip_summed == CHECKSUM_PARTIAL;
	wire_read_header(skb, frame->data, frame->header);
	memset(&frame->keys, 0, sizeof(frame->keys));
	/* Nobody looks into encapsulated packets: they may be cut anywhere. */
	__skb_flow_dissect(dev_net(to->dev), NULL, &flow_keys_dissector, &frame->keys, frame->data,
			   ((struct ethhdr *)frame->data)->h_proto, ETH_HLEN, frame->header,
			   FLOW_DISSECTOR_F_STOP_AT_ENCAP);
	frame->hash = wire_flow_hash(&to->steering, &frame->keys, &frame->hash_ports);
	wire_look_for_transport(frame);
}

static void wire_cut_tcp(struct wire_frame *frame, struct tcphdr *tcp, __sum16 sum, bool last)
{
	tcp->check = sum;
	tcp->seq = htonl(ntohl(tcp->seq) + frame->offset);
	if (frame->offset)
		tcp->cwr = 0;
	if (!last) {
		tcp->fin = 0;
		tcp->psh = 0;
	}
}

/* Makes one segment's header from that of all, with the sum of the pseudo header in it. */
static void wire_cut_header(struct wire_frame *frame, u8 *data, u32 length, bool last)
{
	struct udphdr *udp = (void *)&data[frame->transport];
	u32 all = frame->header - frame->transport + length;
	__sum16 sum;

	if (frame->keys.basic.n_proto == htons(ETH_P_IP)) {
		struct iphdr *ip = (void *)&data[frame->network];

		ip->tot_len = htons(frame->header - frame->network + length);
		if (!(skb_shinfo(frame->skb)->gso_type & SKB_GSO_TCP_FIXEDID))
			ip->id = htons(ntohs(ip->id) + frame->offset / frame->segment);
		ip_send_check(ip);
		sum = ~csum_tcpudp_magic(ip->saddr, ip->daddr, all, frame->protocol, 0);
	} else {
		struct ipv6hdr *ip = (void *)&data[frame->network];

		ip->payload_len = htons(frame->header - frame->network - sizeof(*ip) + length);
		sum = ~csum_ipv6_magic(&ip->saddr, &ip->daddr, all, frame->protocol, 0);
	}
	if (frame->protocol == IPPROTO_TCP) {
		wire_cut_tcp(frame, (void *)udp, sum, last);
	} else {
		udp->len = htons(all);
		udp->check = sum;
	}
}

/* Computes the checksum that the sender left to the hardware. */
static void wire_finish_sum(struct wire_frame *frame, struct wire_completion *completion,
			    __wsum payload)
{
	u32 start = skb_checksum_start_offset(frame->skb);
	u8 *field = &completion->data[start + frame->skb->csum_offset];
	__wsum sum = csum_partial(&completion->data[start], completion->header - start, 0);

	sum = csum_block_add(sum, payload, completion->header - start);
	/* Zero would mean that there is no checksum. */
	put_unaligned((__force u16)(csum_fold(sum) ?: CSUM_MANGLED_0), (u16 *)field);
}

static void wire_describe(struct wire_frame *frame, struct wire_completion *completion,
			  u32 length, bool split, bool whole)
{
	completion->header = frame->header;
	completion->fragments = 0;
	completion->flags = 0;
	completion->segment = whole ? frame->segment : 0;
	completion->checksum = frame->transport;
	completion->payload = length;
	completion->hash = frame->hash;
	if (frame->verified)
		completion->flags |= WIRE_VERIFIED;
	if (split)
		completion->flags |= WIRE_SPLIT;
	if (frame->hash_ports)
		completion->flags |= WIRE_HASH_L4;
	if (frame->keys.basic.n_proto == htons(ETH_P_IPV6))
		completion->flags |= WIRE_IPV6;
	memcpy(completion->data, frame->data, frame->header);
}

/*
 * Delivers a packet, with so many bytes behind the header, to a queue. Returns
 * false if there is no room and it is worth waiting for it.
 */
static bool wire_deliver(struct wire_engine *engine, struct wire_frame *frame, unsigned int index,
			 u32 length, bool whole)
{
	struct wire_nic *to = engine->to;
	struct wire_queue *queue = &to->queue[index];
	bool lossless = READ_ONCE(to->fault.lossless);
	struct wire_rx *rx = queue->fed;
	struct wire_completion *completion;
	struct wire_buffers *buffers;
	__wsum payload = 0;
	bool split, packing;
	u32 written;

	/* A packet whose payload may be unreadable must not need a look into it. */
	split = to->split && frame->protocol == IPPROTO_TCP && frame->verified && length > to->split_above;
	/* NAPI must run in any case: to take the packet, or to make room. */
	__set_bit(index, engine->filled);
	if (!rx)
		goto no_buffer;
	written = rx->written;
	/* Pairs with wire_poll(), which has read what we overwrite. */
	if (written - smp_load_acquire(&rx->read) > rx->mask) {
		if (!lossless)
			wire_add(queue->count.rx_no_completion, 1);
		return !lossless;
	}
	buffers = split ? &rx->data : &rx->head;
	packing = split && READ_ONCE(to->fault.packing);
	if (!wire_has_room(buffers, length))
		goto no_buffer;
	completion = &rx->completion[written & rx->mask];
	wire_describe(frame, completion, length, split, whole);
	if (frame->segment && !whole)
		wire_cut_header(frame, completion->data, length,
				frame->header + frame->offset + length == frame->end);
	if (DIV_ROUND_UP(buffers->used + length, buffers->chunk) > MAX_SKB_FRAGS ||
	    wire_place(buffers, packing, frame->skb, frame->header + frame->offset, length,
		       completion, &payload)) {
		wire_add(to->count.dma_refused, 1);
		return true;
	}
	if (frame->skb->ip_summed == CHECKSUM_PARTIAL && !whole)
		wire_finish_sum(frame, completion, payload);
	wire_add(to->count.dma_bytes, frame->header + length);
	if (split)
		wire_add(queue->count.rx_split, 1);
	/* All of the packet is there before NAPI may look. */
	smp_store_release(&rx->written, written + 1);
	return true;

no_buffer:
	if (!lossless)
		wire_add(queue->count.rx_no_buffer, 1);
	return !lossless;
}

enum wire_sent wire_frame_send(struct wire_engine *engine, struct wire_frame *frame)
{
	struct wire_nic *to = engine->to;
	u32 rest = frame->end - frame->header - frame->offset;
	bool whole = frame->segment && frame->protocol == IPPROTO_TCP &&
		     to->dev->features & NETIF_F_GRO_HW;
	u32 length = frame->segment && !whole ? min_t(u32, rest, frame->segment) : rest;
	u32 packet = frame->header + (whole ? min_t(u32, rest, frame->segment) : length);
	int index;

	/* We offer to cut only TCP and UDP, and only with a header that we can see. */
	if (frame->segment && !frame->protocol) {
		wire_add(to->count.malformed, 1);
		return WIRE_DONE;
	}
	if (packet > READ_ONCE(to->dev->mtu) + VLAN_ETH_HLEN) {
		wire_add(to->count.too_long, 1);
		return WIRE_DONE;
	}
	if (wire_fault_hits(&to->fault.drop)) {
		wire_add(to->count.fault_dropped, 1);
	} else {
		index = wire_steer(to, &frame->keys, frame->hash);
		if (index != WIRE_NOWHERE &&
		    !wire_deliver(engine, frame, index, length, whole))
			return WIRE_STALLED;
	}
	frame->offset += length;
	return length == rest ? WIRE_DONE : WIRE_MORE;
}
