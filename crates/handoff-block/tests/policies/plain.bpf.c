// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* The device is the first file. */
#include "blk_policy.h"

BLK_POLICY(ask, extent)
{
	extent->file = 0;
	extent->offset = ask->position;
	extent->length = ask->length;
	return 0;
}
