// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Calls a function of the kernel from a second section, in bytes, as no compiler would write it; the test
 * gives that the name of the first, and what joins objects makes one of both.
 */
#include "blk_policy.h"

asm(".section .tex2,\"ax\",@progbits\n"
    ".balign 8\n"
    ".byte 0x85, 0x20, 0, 0, 1, 0, 0, 0\n"
    ".byte 0x95, 0, 0, 0, 0, 0, 0, 0\n"
    ".text\n");

BLK_POLICY(ask, extent)
{
	return -1;
}
