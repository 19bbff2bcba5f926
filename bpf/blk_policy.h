/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * What the author of a block device's mapping includes: one function, called for each extent from
 * the loop in the kernel.
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
 * - The answer is 0 and an extent of `length` bytes, not more than asked for; the loop asks again
 *   for the rest. What `ask` points to is a copy. A negative answer is an I/O error for the caller,
 *   and so is an extent that lies beyond its file or between blocks.
 * - Maps may be defined (SEC(".maps")): they are one for all queues, keep their contents when a
 *   server is followed by another or a policy by one that has them too, and `handoff blk set` changes
 *   them while I/O runs. Global variables are each queue's own, and begin anew.
 * - Programs, functions of the kernel (kfuncs), and anything that is declared but not defined are
 *   refused; helpers that any program may call are allowed.
 */
#ifndef HANDOFF_BPF_BLK_POLICY_H
#define HANDOFF_BPF_BLK_POLICY_H

#include "blk.h"

#include <bpf/bpf_helpers.h>

#define BLK_POLICY(ask, extent)                                                                    \
	int blk_policy(struct blk_ask *ask BLK_ARGUMENT, struct blk_extent *extent BLK_ARGUMENT)

#endif
