/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Pairs of software NICs joined by a wire.
 *
 * What is shared, and what keeps it whole:
 *
 * - A wire_cable belongs to both NICs of a pair and goes with the second. It has
 *   two engines, each a thread: engine[i] takes frames from the tx rings of the
 *   other NIC and puts them into the rx rings of NIC i.
 * - An engine works under its mutex, a limited number of frames at a time.
 *   Everything that it looks at changes only under the same mutex: whether an end
 *   is attached, the rx rings of each queue, rules and steering tables. So a change
 *   of rules or rings falls between two frames, never into one.
 * - Rings have one producer and one consumer. Positions run freely and are
 *   published with release, read with acquire.
 * - Lock order: RTNL, instance lock of the device, mutex of an engine. A thread
 *   never holds the mutexes of two engines, and an engine takes none of the other
 *   locks.
 */
#ifndef WIRE_H
#define WIRE_H

#include <linux/ethtool.h>
#include <linux/kref.h>
#include <linux/mutex.h>
#include <linux/netdevice.h>
#include <linux/smp.h>
#include <net/flow_dissector.h>
#include <net/netdev_queues.h>
#include <net/netmem.h>

#ifndef CONFIG_64BIT
#error "wire needs a 64-bit kernel: it counts in single words"
#endif

/* Bytes of a frame that travel in its completion: any TCP header fits. */
#define WIRE_HEADER		256
#define WIRE_QUEUES		8	/* unless numrxqueues and numtxqueues say */
#define WIRE_QUEUES_AT_FIRST	4
#define WIRE_QUEUES_MAX		64
#define WIRE_RING		256
#define WIRE_RING_MIN		16
#define WIRE_RING_MAX		4096
#define WIRE_CHUNK_MAX		SZ_2M
#define WIRE_INDIRECTION	128
#define WIRE_KEY		52
#define WIRE_CONTEXTS		8	/* RSS contexts, 0 is the default one */
#define WIRE_RULES		64
#define WIRE_SPLIT_ABOVE_MAX	1024

/* A buffer posted for receiving. */
struct wire_buffer {
	netmem_ref netmem;
	dma_addr_t dma;
};

/* A page pool and the ring of buffers posted from it. */
struct wire_buffers {
	struct page_pool *pool;
	struct wire_buffer *ring;
	u32 mask;
	u32 chunk;	/* bytes of a buffer */
	u32 posted;	/* written by NAPI */
	u32 done;	/* NAPI's own */

	u32 taken ____cacheline_aligned_in_smp;	/* the engine's own: the buffer */
	u32 used;	/* that it fills, and how much of that is full */
};

/* Bytes of a packet in the buffer at wire_buffers.done. */
struct wire_fragment {
	u32 offset;
	u32 length;
	bool last;	/* of this buffer: the next fragment is in the next one */
};

#define WIRE_VERIFIED	BIT(0)	/* checksum found right, or made, by the engine */
#define WIRE_SPLIT	BIT(1)	/* payload is in buffers that may be unreadable */
#define WIRE_HASH_L4	BIT(2)
#define WIRE_IPV6	BIT(3)

/* A packet that has arrived. */
struct wire_completion {
	u16 header;	/* bytes of data[] */
	u16 fragments;
	u16 flags;
	u16 segment;	/* payload of a segment of what the sender sent as one, or 0 */
	u16 checksum;	/* where the TCP header begins, if segment */
	u32 payload;
	u32 hash;
	u8 data[WIRE_HEADER];
	struct wire_fragment fragment[MAX_SKB_FRAGS];
};

/* Everything that receives for a queue; made and freed as a whole. */
struct wire_rx {
	struct wire_buffers head;	/* for what must be readable */
	struct wire_buffers data;	/* for payload of TCP, if headers are split off */
	struct wire_completion *completion;
	u32 mask;
	u32 read;	/* NAPI's own, but read by the engine */
	u32 written ____cacheline_aligned_in_smp;	/* by the engine */
};

/* A frame to be sent. */
struct wire_slot {
	struct sk_buff *skb;
	ktime_t queued;
};

/* What the engine knows about the frame at the front of a tx ring. */
struct wire_frame {
	struct sk_buff *skb;	/* NULL before it was looked at */
	struct flow_keys keys;
	u32 hash;
	u32 offset;	/* of the payload that has not left */
	u32 end;	/* of the last byte that travels */
	u16 header;	/* bytes of data[] */
	u16 network;	/* where IP's header begins in it */
	u16 transport;
	u16 segment;	/* bytes of payload in a packet, if it is several packets */
	u8 protocol;	/* whose header is the last; all the rest is payload; 0: unknown */
	bool hash_ports;
	bool verified;	/* its checksum, found right or still to be made */
	u8 data[WIRE_HEADER];
};

struct wire_tx {
	struct wire_slot *ring;
	u32 mask;
	u32 head ____cacheline_aligned_in_smp;	/* written by the sender */
	u32 sent ____cacheline_aligned_in_smp;	/* by the engine */
	struct wire_frame frame;
	u32 clean ____cacheline_aligned_in_smp;	/* by NAPI */
};

/* Counters have one writer each, which the comment names. */
struct wire_counters {
	u64 rx_packets;		/* NAPI */
	u64 rx_bytes;
	u64 rx_alloc_fail;
	u64 rx_skb_fail;
	u64 rx_gro_packets;
	u64 rx_gro_bytes;
	u64 rx_gro_wire_packets;
	u64 rx_no_buffer;	/* the engine that feeds */
	u64 rx_no_completion;
	u64 rx_split;
	u64 tx_packets;		/* NAPI; packets on the wire */
	u64 tx_bytes;
	u64 tx_gso_packets;	/* frames that the engine cuts into packets */
	u64 tx_gso_bytes;
	u64 tx_gso_wire_packets;
	u64 tx_gso_wire_bytes;
	u64 tx_discarded;	/* the engine that drains */
	u64 tx_stopped;		/* the sender */
};

/* Of the engine that feeds a NIC. */
struct wire_engine_counters {
	u64 dma_bytes;
	u64 dma_refused;
	u64 too_long;
	u64 malformed;
	u64 by_rule;
	u64 dropped_by_rule;
	u64 fault_dropped;
	u64 fault_reordered;
	u64 fault_wrong_queue;
};

struct wire_nic;

struct wire_queue {
	struct wire_nic *nic;
	struct napi_struct napi;
	unsigned int irq;
	char irq_name[IFNAMSIZ + 12];
	call_single_data_t raise;	/* of the interrupt, on another CPU */
	unsigned long raised;	/* bit 0: it is, and that CPU has not begun with it */
	struct wire_rx *rx;	/* for NAPI, while that is enabled */
	struct wire_rx *fed;	/* for the engine, under its mutex; NULL: none */
	struct wire_tx tx;
	struct wire_counters count;
};

/* Flows for which the fields of the hash can be chosen. */
enum wire_flow {
	WIRE_TCP4,
	WIRE_UDP4,
	WIRE_TCP6,
	WIRE_UDP6,
	WIRE_FLOWS,
};

struct wire_rule {
	bool used;
	struct ethtool_rx_flow_spec spec;
	u32 context;
};

/* Under the mutex of the engine that feeds the NIC. */
struct wire_steering {
	u8 key[WIRE_KEY];
	u32 fields[WIRE_FLOWS];	/* RXH_* */
	u32 table[WIRE_CONTEXTS][WIRE_INDIRECTION];
	struct wire_rule rule[WIRE_RULES];
};

/* Set by sysfs at any time, and read where they act. */
struct wire_faults {
	u32 drop;		/* of a million frames */
	u32 reorder;
	u32 wrong_queue;
	u32 alloc_fail;		/* of a million refills */
	u32 delay;		/* microseconds */
	u32 lossless;		/* 0 or 1 */
	u32 packing;
};

struct wire_engine {
	struct mutex lock;	/* while it works, and for what it works with: see above */
	struct wire_nic *from;	/* NULL while that end is down */
	struct wire_nic *to;
	struct task_struct *task;
	int kicked;
	bool stalled;	/* waits for room in a ring of "to" */
	/* NAPIs to wake after a batch. */
	DECLARE_BITMAP(filled, WIRE_QUEUES_MAX);
	DECLARE_BITMAP(drained, WIRE_QUEUES_MAX);
};

struct wire_cable {
	struct kref ref;
	bool plugged;	/* the engines run; under RTNL */
	struct wire_engine engine[2];
};

struct wire_nic {
	struct net_device *dev;
	struct wire_cable *cable;
	unsigned int side;	/* engine[side] feeds this NIC */
	struct net_device __rcu *peer;
	struct wire_queue *queue;	/* as many as there can be */
	struct irq_domain *irqs;
	u32 rx_ring;
	u32 tx_ring;

	/* For the engine that feeds, under its mutex. */
	bool split;
	u32 split_above;
	struct wire_steering steering;
	struct wire_engine_counters count;

	struct wire_faults fault;
};

static inline struct wire_engine *wire_feeder(struct wire_nic *nic)
{
	return &nic->cable->engine[nic->side];
}

static inline struct wire_engine *wire_drainer(struct wire_nic *nic)
{
	return &nic->cable->engine[!nic->side];
}

/* For counters and settings that others read meanwhile. */
#define wire_add(counter, by) WRITE_ONCE(counter, (counter) + (by))

/* main.c */
extern struct device *wire_parent;

/* netdev.c */
void wire_setup(struct net_device *dev);
int wire_rebuild(struct wire_nic *nic, unsigned int queues, u32 rx_ring, u32 tx_ring);

/* irq.c */
int wire_irq_make(struct wire_nic *nic, unsigned int queues);
void wire_irq_free(struct wire_nic *nic);
void wire_irq_raise(struct wire_queue *queue);

/* queue.c */
extern const struct netdev_queue_mgmt_ops wire_queue_mgmt_ops;
void wire_queue_start(struct wire_queue *queue);
void wire_queue_stop(struct wire_queue *queue);

/* buffers.c */
struct wire_rx *wire_rx_alloc(struct wire_nic *nic, unsigned int index, u32 chunk, u32 size);
void wire_rx_free(struct wire_rx *rx);
void wire_rx_refill(struct wire_queue *queue, struct wire_rx *rx);

/* tx.c */
netdev_tx_t wire_xmit(struct sk_buff *skb, struct net_device *dev);
netdev_features_t wire_features_check(struct sk_buff *skb, struct net_device *dev,
				      netdev_features_t features);
void wire_tx_clean(struct wire_queue *queue, int budget);
void wire_tx_purge(struct wire_queue *queue);

/* poll.c */
int wire_poll(struct napi_struct *napi, int budget);

/* engine.c */
struct wire_cable *wire_cable_make(void);
void wire_cable_unplug(struct wire_cable *cable);
void wire_cable_put(struct wire_cable *cable);
void wire_engine_kick(struct wire_engine *engine);

/* segment.c */
enum wire_sent {
	WIRE_DONE,	/* the frame has left, or is lost */
	WIRE_MORE,	/* a part of it has */
	WIRE_STALLED,	/* lossless, and there is no room */
};

void wire_frame_look(struct wire_engine *engine, struct wire_frame *frame, struct sk_buff *skb);
enum wire_sent wire_frame_send(struct wire_engine *engine, struct wire_frame *frame);

/* steer.c */
#define WIRE_NOWHERE	(-1)
#define WIRE_ALL_FIELDS	(RXH_IP_SRC | RXH_IP_DST | RXH_L4_B_0_1 | RXH_L4_B_2_3)
void wire_steering_init(struct wire_nic *nic, unsigned int queues);
void wire_steering_spread(struct wire_nic *nic, unsigned int queues);
u32 wire_flow_hash(const struct wire_steering *steering, const struct flow_keys *keys, bool *ports);
int wire_steer(struct wire_nic *nic, const struct flow_keys *keys, u32 hash);

/* ethtool.c */
extern const struct ethtool_ops wire_ethtool_ops;

/* classify.c */
u32 wire_get_rx_ring_count(struct net_device *dev);
int wire_get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations);
int wire_set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info);
bool wire_rules_fit(struct wire_nic *nic, unsigned int queues, unsigned int context,
		    const u32 *table);

/* fault.c */
extern const struct attribute_group wire_fault_group;
bool wire_fault_hits(const u32 *share);

/* stats.c */
extern const struct netdev_stat_ops wire_stat_ops;
void wire_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *stats);
int wire_get_sset_count(struct net_device *dev, int set);
void wire_get_strings(struct net_device *dev, u32 set, u8 *data);
void wire_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data);

#endif
