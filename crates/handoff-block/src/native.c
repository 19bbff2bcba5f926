/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * `bpf/blk_request.h` for the engines in user space, and what libbpf says; `request.rs` and `libbpf_log.rs` have
 * the other sides.
 */
#include "blk_request.h"

#include <linux/io_uring.h>
#include <linux/ublk_cmd.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

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
_Static_assert(BLK_OPCODE_MESSAGE == IORING_OP_MSG_RING && BLK_OPCODE_POLL == IORING_OP_POLL_ADD &&
		       BLK_ENTRY_SILENT == IOSQE_CQE_SKIP_SUCCESS &&
		       BLK_POLL_MANY == IORING_POLL_ADD_MULTI && BLK_MORE == IORING_CQE_F_MORE,
	       "of messages and polls, too");

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

int handoff_blk_answered(const struct blk_config *config, struct blk_region *region, __u32 tag,
			 __u64 now, struct blk_out *out, __s32 *result)
{
	return blk_answered(config, region, tag, now, out, result);
}

void handoff_blk_missed(const struct blk_config *config, struct blk_region *region, __u32 tag,
			__s32 why)
{
	blk_missed(config, region, tag, why);
}

void handoff_blk_put_listen(const struct blk_config *config, struct blk_out *out)
{
	blk_put_listen(config, out);
}

int handoff_blk_intent_begin(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	return blk_intent_begin(chunks, mask, first, count);
}

void handoff_blk_intent_end(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	blk_intent_end(chunks, mask, first, count);
}

void handoff_blk_intent_keep(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	blk_intent_keep(chunks, mask, first, count);
}

int handoff_blk_is_legs(__s32 error)
{
	return blk_is_legs(error);
}

int handoff_blk_take_out(struct blk_map *map, struct blk_queue *queue, __u32 legs,
			 const struct blk_failure *noted)
{
	return blk_take_out(map, queue, legs, noted);
}

int handoff_blk_locate(const struct blk_map *map, struct blk_ask *ask, struct blk_extent *extent)
{
	return blk_locate(map, ask, extent);
}

/* What both sides must agree on. */
const __u32 handoff_blk_sizes[7] = {
	sizeof(struct blk_map),
	sizeof(struct blk_config),
	sizeof(struct blk_queue),
	offsetof(struct blk_region, queue),
	offsetof(struct blk_region, requests),
	sizeof(struct blk_request),
	offsetof(struct blk_request, waits),
};

/* Of libbpf, whose header is not at hand; its levels are an enum. */
typedef int (*print_function)(int level, const char *format, va_list arguments);
print_function libbpf_set_print(print_function function);

static void (*told)(int level, const char *text, size_t len);

/* libbpf's texts are formatted here: they contain names from objects, with any bytes in them. */
static int print(int level, const char *format, va_list arguments)
{
	va_list again;
	int len;
	char *text;

	va_copy(again, arguments);
	len = vsnprintf(NULL, 0, format, again);
	va_end(again);
	text = len < 0 ? NULL : malloc((size_t)len + 1);
	if (text) {
		vsnprintf(text, (size_t)len + 1, format, arguments);
		told(level, text, (size_t)len);
	}
	free(text);
	return 0;
}

void handoff_blk_listen(void (*log)(int level, const char *text, size_t len))
{
	__atomic_store_n(&told, log, __ATOMIC_RELAXED);
	libbpf_set_print(print);
}
