// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Has a mapping of another form. */
#include "blk_policy.h"

int blk_policy(struct blk_ask *ask)
{
	return ask ? 0 : -1;
}
