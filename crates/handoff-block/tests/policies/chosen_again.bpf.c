// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* As chosen, in other code. */
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

	extent->file = 0;
	if (file && *file)
		extent->file = *file;
	extent->length = ask->length < 8192 ? ask->length : 8192;
	extent->offset = ask->position;
	return 0;
}
