/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What lease.bpf.c knows of a lease; handoff-nic writes it (src/redirect.rs has the same layout).
 */
#ifndef HANDOFF_BPF_LEASE_H
#define HANDOFF_BPF_LEASE_H

#define ADDRESSES 8

struct lease {
	/* Index of the card, and of the near end of the netkit pair. */
	__u32 card;
	__u32 pair;
	/* How many addresses there are. */
	__u32 count;
	/* IPv4 addresses as IPv6 writes them (::ffff:a.b.c.d). */
	__u8 addresses[ADDRESSES][16];
};

#endif
