/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* `bpf/blk_request.h` for the engines in user space; `life.rs` has the other side. */
#include "blk_request.h"

#include <linux/io_uring.h>
#include <linux/ublk_cmd.h>
#include <stddef.h>

_Static_assert(sizeof(struct blk_entry) == sizeof(struct io_uring_sqe), "a submission entry");
_Static_assert(offsetof(struct blk_entry, user_data) == offsetof(struct io_uring_sqe, user_data),
	       "its user data");
_Static_assert(offsetof(struct blk_entry, buf_index) == offsetof(struct io_uring_sqe, buf_index),
	       "its buffer index");
_Static_assert(sizeof(struct blk_descriptor) == sizeof(struct ublksrv_io_desc), "a description");
_Static_assert(BLK_OPCODE_COMMAND == IORING_OP_URING_CMD &&
		       BLK_OPCODE_READ_FIXED == IORING_OP_READ_FIXED &&
		       BLK_OPCODE_WRITE_FIXED == IORING_OP_WRITE_FIXED &&
		       BLK_OPCODE_READ == IORING_OP_READ && BLK_OPCODE_WRITE == IORING_OP_WRITE &&
		       BLK_OPCODE_FSYNC == IORING_OP_FSYNC &&
		       BLK_OPCODE_FALLOCATE == IORING_OP_FALLOCATE,
	       "the kernel's numbers");

int handoff_blk_arrived(const struct blk_config *config, struct blk_region *region, __u32 tag,
			const struct blk_descriptor *descriptor, __u64 now, struct blk_out *out,
			__s32 *result)
{
	return blk_arrived(config, region, tag, descriptor, now, out, result);
}

int handoff_blk_moved(const struct blk_config *config, struct blk_region *region, __u32 tag,
		      __u32 slot, __s32 moved, __u64 now, struct blk_out *out, __s32 *result)
{
	return blk_moved(config, region, tag, slot, moved, now, out, result);
}

void handoff_blk_put_command(const struct blk_config *config, struct blk_out *out, __u32 command,
			     __u32 tag, __s32 result)
{
	blk_put_command(config, out, command, tag, result);
}

int handoff_blk_locate(const struct blk_map *map, struct blk_ask *ask, struct blk_extent *extent)
{
	return blk_locate(map, ask, extent);
}

/* What both sides must agree on. */
const __u32 handoff_blk_sizes[6] = {
	sizeof(struct blk_map),
	sizeof(struct blk_config),
	sizeof(struct blk_queue),
	offsetof(struct blk_region, queue),
	offsetof(struct blk_region, requests),
	sizeof(struct blk_request),
};
