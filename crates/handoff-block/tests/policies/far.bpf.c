// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Answers with what no device has: by the place asked for, each way once. */
#include "blk_policy.h"

BLK_POLICY(ask, extent)
{
	extent->file = 0;
	extent->offset = ask->position;
	extent->length = ask->length;
	switch (ask->position >> 16) {
	case 1:
		extent->file = ask->files;
		break;
	case 2:
		extent->file = 0xffffffff;
		break;
	case 3:
		extent->length = 0;
		break;
	case 4:
		extent->length = ask->length + 512;
		break;
	case 5:
		extent->offset = ~0ULL - 511;
		break;
	case 6:
		extent->offset = 1ULL << 40;
		break;
	case 7:
		extent->offset += 1;
		break;
	case 8:
		return -5;
	case 9:
		ask->length += 4096;
		extent->length = ask->length;
		break;
	}
	return 0;
}
