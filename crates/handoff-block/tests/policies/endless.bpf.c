// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Does not end. */
#include "blk_policy.h"

BLK_POLICY(ask, extent)
{
	volatile __u64 *length = (void *)&extent->offset;

	while (*length != 1)
		*length += ask->position;
	return 0;
}
