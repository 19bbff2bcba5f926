// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Has no mapping. */
#include "blk_policy.h"

int blk_polity(struct blk_ask *ask)
{
	return ask ? 0 : -1;
}
