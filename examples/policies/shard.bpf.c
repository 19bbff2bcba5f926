// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Shard by hash: each MiB of the device lies on the file that a hash of its number chooses, at the
 * same offset as on the device, so the files are as large as the device, and sparse.
 */
#include "blk_policy.h"

#define SHIFT 20

BLK_POLICY(ask, extent)
{
	__u64 shard = ask->position >> SHIFT;
	__u64 left = ((shard + 1) << SHIFT) - ask->position;
	__u64 hash = shard * 0x9e3779b97f4a7c15ULL;

	if (!ask->files)
		return -1;
	extent->file = (hash >> 32) % ask->files;
	extent->offset = ask->position;
	extent->length = ask->length < left ? ask->length : left;
	return 0;
}
