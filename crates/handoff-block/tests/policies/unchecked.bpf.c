// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Takes what a map may not have. */
#include "blk_policy.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4);
	__type(key, __u64);
	__type(value, __u64);
} numbers SEC(".maps");

BLK_POLICY(ask, extent)
{
	__u64 *number = bpf_map_lookup_elem(&numbers, &ask->position);

	extent->offset = *number;
	return 0;
}
