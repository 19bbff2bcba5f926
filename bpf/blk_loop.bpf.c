// SPDX-License-Identifier: GPL-2.0
/*
 * The loop of one queue of a block device, in the kernel: io_uring calls it whenever there are
 * completions, and it submits what follows from them. User space enters the ring once.
 *
 * Contracts:
 * - it runs in the task that entered the ring, under the ring's lock, so a step has the queues and the
 *   region to itself, except the mirror's lists of failed legs, its chunks, and requests that wait for the
 *   clerk;
 * - entries that could not be submitted stay queued, and the next step submits them;
 * - it ends the loop when the last command has come back for good, and says so in the region; so a loop
 *   that ended can be told from one that was detached.
 *
 * Minimum kernel: one with io_uring_bpf_ops, tried on 7.2; CAP_SYS_ADMIN, or CAP_BPF and
 * CAP_PERFMON. The ring has IORING_SETUP_DEFER_TASKRUN and IORING_SETUP_NO_SQARRAY.
 */
#include "blk_request.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_tracing.h>

/* Completions in one step; if more are left, the next step comes at once. */
#define COMPLETIONS 64

enum region {
	REGION_OURS,
	REGION_RINGS,
	REGION_ENTRIES,
};

enum step {
	STEP_CONTINUE,
	STEP_STOP,
};

struct completion {
	__u64 user_data;
	__s32 result;
	__u32 flags;
};

/* Written by user space before the object is loaded. */
const volatile struct blk_config config SEC(".rodata.config") = {};

extern __u8 *bpf_io_uring_get_region(struct iou_ctx *ring, __u32 region,
				     const __u64 rdwr_buf_size) __ksym;
extern int bpf_io_uring_submit_sqes(struct iou_ctx *ring, __u32 count) __ksym;

/* Stands in for the policy of a device without one: no such bytes. */
__weak __noinline int blk_policy(struct blk_ask *ask, struct blk_extent *extent)
{
	if (!ask || !extent)
		return -1;
	return -1;
}

static __always_inline void take_command(struct blk_region *region, struct completion *completion,
					 __u64 now, struct blk_out *out)
{
	__u32 tag = completion->user_data & config.tag_mask;
	struct blk_descriptor descriptor;
	const void *source = (void *)(config.descriptors + tag * sizeof(descriptor));
	__s32 result;

	if (completion->result) {
		region->queue.gone++;
		if (completion->result != -BLK_ENODEV)
			region->queue.refused = completion->result;
		return;
	}
	if (bpf_copy_from_user(&descriptor, sizeof(descriptor), source))
		blk_put_command(&config, out, BLK_COMMAND_COMMIT_AND_FETCH, tag, -BLK_EIO);
	else if (blk_arrived(&config, region, tag, &descriptor, now, out, &result) == BLK_FINISHED)
		blk_put_command(&config, out, BLK_COMMAND_COMMIT_AND_FETCH, tag, result);
}

static __always_inline void take_piece(struct blk_region *region, struct completion *completion,
				       __u64 now, struct blk_out *out)
{
	__u32 tag = completion->user_data & config.tag_mask;
	__u32 slot = completion->user_data >> 16 & (BLK_PIECES - 1);
	__s32 result;

	if (blk_moved(&config, region, tag, slot, completion->result, now, out, &result) ==
	    BLK_FINISHED)
		blk_put_command(&config, out, BLK_COMMAND_COMMIT_AND_FETCH, tag, result);
}

static __always_inline void take_clerk(struct blk_region *region, struct completion *completion,
				       __u64 now, struct blk_out *out)
{
	__u32 slot = completion->user_data >> 16 & 0xffff;
	__u32 tag;

	if (slot == BLK_CLERK_MISSED)
		blk_missed(&config, region, completion->user_data & config.tag_mask,
			   completion->result);
	else if (!(completion->flags & BLK_MORE) && completion->result >= 0)
		blk_put_listen(&config, out);
	bpf_for(tag, 0, config.depth) {
		__s32 result;

		if (blk_answered(&config, region, tag, now, out, &result) == BLK_FINISHED)
			blk_put_command(&config, out, BLK_COMMAND_COMMIT_AND_FETCH, tag, result);
	}
}

SEC("struct_ops.s/loop_step")
int BPF_PROG(loop_step, struct iou_ctx *ring, struct iou_loop_params *params)
{
	struct blk_region *region = (void *)bpf_io_uring_get_region(ring, REGION_OURS,
								    config.region_size);
	struct io_rings *rings = (void *)bpf_io_uring_get_region(ring, REGION_RINGS,
								 config.rings_size);
	struct blk_entry *entries = (void *)bpf_io_uring_get_region(ring, REGION_ENTRIES,
								    config.entries_size);
	struct completion *completions;
	__u32 head, tail, queued;
	struct blk_out out;
	__u64 now;
	int i;

	if (!region || !rings || !entries)
		return STEP_STOP;
	completions = (void *)rings + bpf_core_field_offset(struct io_rings, cqes);
	now = bpf_ktime_get_ns();
	head = rings->cq.head;
	tail = rings->cq.tail;
	out.entries = entries;
	out.tail = rings->sq.tail;
	region->queue.statistics.turns++;
	bpf_for(i, 0, COMPLETIONS) {
		struct completion completion;

		if (head == tail)
			break;
		completion = completions[head & config.cq_mask];
		head++;
		if (completion.user_data >> 32 == BLK_DATA_COMMAND)
			take_command(region, &completion, now, &out);
		else if (!config.chunks_at || completion.user_data >> 32 == BLK_DATA_PIECE)
			take_piece(region, &completion, now, &out);
		else
			take_clerk(region, &completion, now, &out);
	}
	rings->cq.head = head;
	rings->sq.tail = out.tail;
	queued = out.tail - rings->sq.head;
	if (queued)
		bpf_io_uring_submit_sqes(ring, queued);
	/* A queue cannot go on without a command that was refused. */
	if (region->queue.gone >= config.depth || region->queue.refused) {
		region->queue.over = 1;
		return STEP_STOP;
	}
	/* A completion that is there already, or an entry still queued, brings the next step. */
	params->cq_wait_idx = rings->sq.head == out.tail ? head + 1 : head;
	return STEP_CONTINUE;
}

SEC(".struct_ops.link")
struct io_uring_bpf_ops loop = {
	.loop_step = (void *)loop_step,
};

char LICENSE[] SEC("license") = "GPL";
