// SPDX-License-Identifier: GPL-2.0
/*
 * Sends from a lent buffer as sendfile(2) does, by references to its pages.
 *
 * A packet keeps these until it is acknowledged (TCP), or has left the machine or
 * been read here (UDP), whatever becomes of the lend. So no page is reused
 * meanwhile; a page pool lets go of a page that has such a reference when the lend
 * comes back. The content of a page may change, as with sendfile(2).
 */
#include <linux/net.h>
#include <linux/socket.h>
#include <linux/uio.h>

#include "lend.h"

int getbuf_send(struct getbuf_context *context, struct io_uring_cmd *cmd,
		const struct getbuf_send *request, u32 slot, unsigned int issue_flags)
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
	/*
	 * The slot may contain any buffer: the user's memory, or that of a block
	 * request which a driver has lent, could be reused before it leaves.
	 */
	ret = -EOPNOTSUPP;
	if (!getbuf_has_lent(context, cmd, slot, request->offset, &message.msg_iter))
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
