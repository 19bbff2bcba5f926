// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Writes behind its answer. */
#include "blk_policy.h"

BLK_POLICY(ask, extent)
{
	extent[1].offset = ask->position;
	return 0;
}
