// SPDX-License-Identifier: GPL-2.0
/*
 * Slots of a ring's table of registered buffers. Kernels differ in what they
 * register: bare segments, or the segments of a block request. For the latter we
 * make up a request. io_uring reads its direction, its length and its chain of
 * bios, and gives its address back.
 */
#include "lend.h"

/* For getbuf_has_lent(). */
static void getbuf_slot_note(struct getbuf_handle *handle, struct io_uring_cmd *cmd, u32 slot)
{
	WRITE_ONCE(handle->slot, slot);
	WRITE_ONCE(handle->ring, io_uring_cmd_ctx_handle(cmd));
}

#ifdef GETBUF_REGISTERS_SEGMENTS

static void getbuf_slot_cleared(void *handle)
{
	getbuf_handle_returned(handle);
}

int getbuf_slot_fill(struct getbuf_handle *handle, struct io_uring_cmd *cmd,
		     unsigned int direction, u32 slot, unsigned int issue_flags)
{
	struct getbuf_lend *lend = handle->lend;

	getbuf_slot_note(handle, cmd, slot);
	return io_buffer_register_bvec(cmd, lend->segment, lend->segments, getbuf_slot_cleared,
				       handle, direction == ITER_SOURCE ? IO_BUF_SOURCE : IO_BUF_DEST,
				       slot, issue_flags);
}

#else

static void getbuf_slot_cleared(void *request)
{
	getbuf_handle_returned(container_of(request, struct getbuf_handle, request));
}

int getbuf_slot_fill(struct getbuf_handle *handle, struct io_uring_cmd *cmd,
		     unsigned int direction, u32 slot, unsigned int issue_flags)
{
	struct getbuf_lend *lend = handle->lend;
	struct request *request = &handle->request;
	struct bio *bio = &handle->bio;

	getbuf_slot_note(handle, cmd, slot);
	/* The segments are copied: nobody looks at them or the bio later. */
	bio->bi_io_vec = lend->segment;
	bio->bi_vcnt = lend->segments;
	bio->bi_iter.bi_size = lend->bytes;
	request->cmd_flags = direction == ITER_SOURCE ? REQ_OP_WRITE : REQ_OP_READ;
	request->nr_phys_segments = lend->segments;
	request->__data_len = lend->bytes;
	request->bio = bio;
	return io_buffer_register_bvec(cmd, request, getbuf_slot_cleared, slot, issue_flags);
}

#endif
