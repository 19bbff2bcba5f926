// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Split by region: the first GiB of the device, where a file system keeps what it reads most, lies
 * on the first file (a fast disk), all else on the second.
 */
#include "blk_policy.h"

#define BOUNDARY (1ULL << 30)

BLK_POLICY(ask, extent)
{
	__u64 left = BOUNDARY - ask->position;

	extent->length = ask->length;
	if (ask->position >= BOUNDARY) {
		extent->file = 1;
		extent->offset = ask->position - BOUNDARY;
		return 0;
	}
	extent->file = 0;
	extent->offset = ask->position;
	if (extent->length > left)
		extent->length = left;
	return 0;
}
