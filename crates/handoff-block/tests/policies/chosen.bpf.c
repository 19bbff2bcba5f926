// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The device is the file that a map says, the first at first. */
#include "blk_policy.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} choice SEC(".maps");

BLK_POLICY(ask, extent)
{
	__u32 key = 0;
	__u32 *file = bpf_map_lookup_elem(&choice, &key);

	if (!file)
		return -1;
	extent->file = *file;
	extent->offset = ask->position;
	extent->length = ask->length;
	return 0;
}
