// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * A sparse device: where each MiB lies is in a map, which user space edits while I/O runs. A place
 * is the number of a MiB of the first file, plus one; what has none is an I/O error. So is used
 *
 *	handoff blk set 0 places 7=1	the device's MiB 7 is the file's MiB 0
 */
#include "blk_policy.h"

#define SHIFT 20
#define PLACES 65536

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, PLACES);
	__type(key, __u32);
	__type(value, __u32);
} places SEC(".maps");

BLK_POLICY(ask, extent)
{
	__u32 number = ask->position >> SHIFT;
	__u64 within = ask->position & ((1ULL << SHIFT) - 1);
	__u64 left = (1ULL << SHIFT) - within;
	__u32 *place = bpf_map_lookup_elem(&places, &number);

	if (!place || !*place)
		return -1;
	extent->file = 0;
	extent->offset = ((__u64)(*place - 1) << SHIFT) + within;
	extent->length = ask->length < left ? ask->length : left;
	return 0;
}
