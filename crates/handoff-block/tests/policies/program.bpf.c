// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Brings a program of its own. */
#include "blk_policy.h"

BLK_POLICY(ask, extent)
{
	return -1;
}

SEC("raw_tp/sys_enter")
int program(void *context)
{
	return 0;
}
