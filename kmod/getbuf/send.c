// SPDX-License-Identifier: GPL-2.0
/* Sends from a registered buffer as sendfile(2) does, by references to its pages. */
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/socket.h>
#include <linux/uio.h>

#include "lend.h"

/*
 * The slot may have anybody's buffer. Of pages of a slab no reference can be taken.
 * What processes have as their own memory could be used for something else by the
 * time it leaves, and nobody tells when: that of the user, or of one whose block
 * request a driver has lent.
 */
static bool getbuf_sendable(const struct iov_iter *iter)
{
	size_t left = iov_iter_count(iter), skip = iter->iov_offset;
	const struct bio_vec *segment = iter->bvec;

	for (; left; segment++, skip = 0) {
		size_t piece = min(segment->bv_len - skip, left);
		size_t offset = segment->bv_offset + skip;
		struct page *page = segment->bv_page + (offset >> PAGE_SHIFT);
		struct page *last = segment->bv_page + ((offset + piece - 1) >> PAGE_SHIFT);

		for (; page <= last; page++) {
			if (!sendpage_ok(page) || PageAnon(page))
				return false;
		}
		left -= piece;
	}
	return true;
}

int getbuf_send(struct getbuf_context *context, struct io_uring_cmd *cmd,
		const struct getbuf_send *request, unsigned int issue_flags)
{
	struct msghdr message = { .msg_flags = MSG_SPLICE_PAGES | MSG_NOSIGNAL };
	u32 length = min_t(u32, request->length, GETBUF_LEND_MAX);
	struct getbuf_bound *bound;
	loff_t position = 0;
	int ret;

	bound = getbuf_bound_get(context, request->target, GETBUF_TARGET);
	if (!bound)
		return -EBADF;
	ret = rw_verify_area(WRITE, bound->file, &position, length);
	if (ret < 0)
		goto out;
	ret = io_uring_cmd_import_fixed(request->offset, length, ITER_SOURCE, &message.msg_iter, cmd,
					issue_flags);
	if (ret < 0)
		goto out;
	ret = -EOPNOTSUPP;
	if (!getbuf_sendable(&message.msg_iter))
		goto out;
	if (request->flags & GETBUF_MORE)
		message.msg_flags |= MSG_MORE;
	if ((issue_flags & IO_URING_F_NONBLOCK) || (request->flags & GETBUF_NOWAIT) ||
	    (bound->file->f_flags & O_NONBLOCK))
		message.msg_flags |= MSG_DONTWAIT;
	ret = sock_sendmsg(sock_from_file(bound->file), &message);
	if (ret > 0)
		atomic64_add(ret, &context->sent_bytes);
out:
	getbuf_bound_put(bound);
	return ret;
}
