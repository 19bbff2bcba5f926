// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Has the map of chosen, with larger values. */
#include "blk_policy.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} choice SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} another SEC(".maps");

BLK_POLICY(ask, extent)
{
	__u32 key = 0;
	__u64 *file = bpf_map_lookup_elem(&choice, &key);

	if (!file || !bpf_map_lookup_elem(&another, &key))
		return -1;
	extent->file = *file;
	extent->offset = ask->position;
	extent->length = ask->length;
	return 0;
}
