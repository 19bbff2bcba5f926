/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The header for the author of a block device's mapping: one function, which the loop in the kernel
 * calls for each extent.
 *
 *	#include "blk_policy.h"
 *
 *	BLK_POLICY(ask, extent)
 *	{
 *		extent->file = 0;
 *		extent->offset = ask->position;
 *		extent->length = ask->length;
 *		return 0;
 *	}
 *
 * builds with
 *
 *	clang -g -O2 -target bpf -mcpu=v3 -I DIRECTORY-OF-THIS-FILE -c my.bpf.c -o my.bpf.o
 *
 * and becomes a device with `handoff blk add policy FILES --policy my.bpf.o`.
 *
 * - The answer is 0 and an extent of at most the `length` bytes asked for; the loop asks again for the
 *   rest. `ask` points to a copy. A negative answer is an I/O error for the caller, and so is an extent
 *   that lies beyond its file or between blocks.
 * - You may define maps (SEC(".maps")): all queues share them, `handoff blk set` changes them while I/O
 *   runs, and they keep their contents when another server takes over, or another policy that has them
 *   too. Global variables are each queue's own, and start anew.
 * - Programs, kernel functions (kfuncs), and anything declared but not defined are refused; helpers
 *   that any program may call are allowed.
 */
#ifndef HANDOFF_BPF_BLK_POLICY_H
#define HANDOFF_BPF_BLK_POLICY_H

#include "blk.h"

#include <bpf/bpf_helpers.h>

#define BLK_POLICY(ask, extent)                                                                    \
	int blk_policy(struct blk_ask *ask BLK_ARGUMENT, struct blk_extent *extent BLK_ARGUMENT)

#endif
