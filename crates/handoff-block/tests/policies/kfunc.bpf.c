// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/* Calls the loop's own function of the kernel, with a pointer that is no ring. */
#include "blk_policy.h"

extern int bpf_io_uring_submit_sqes(struct iou_ctx *ring, __u32 count) __ksym;

BLK_POLICY(ask, extent)
{
	return bpf_io_uring_submit_sqes((void *)ask, extent->length);
}
