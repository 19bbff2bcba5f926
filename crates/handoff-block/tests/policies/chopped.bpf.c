// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* As plain, block by block. */
#include "blk_policy.h"

#define SHIFT 14

BLK_POLICY(ask, extent)
{
	__u64 left = (((ask->position >> SHIFT) + 1) << SHIFT) - ask->position;

	extent->file = 0;
	extent->offset = ask->position;
	extent->length = ask->length < left ? ask->length : left;
	return 0;
}
