// SPDX-License-Identifier: GPL-2.0
/*
 * Lends what the file's splice_read puts into a pipe: pages of its page cache if it
 * has one, else pages read into. May wait.
 */
#include <linux/mm.h>
#include <linux/pipe_fs_i.h>
#include <linux/slab.h>
#include <linux/splice.h>

#include "lend.h"

/* A private pipe; the kernel offers none to modules. */
static struct pipe_inode_info *getbuf_pipe_make(u32 slots)
{
	struct pipe_inode_info *pipe = kzalloc(sizeof(*pipe), GFP_KERNEL_ACCOUNT);

	if (!pipe)
		return NULL;
	slots = roundup_pow_of_two(slots);
	pipe->bufs = kvcalloc(slots, sizeof(*pipe->bufs), GFP_KERNEL_ACCOUNT);
	if (!pipe->bufs) {
		kfree(pipe);
		return NULL;
	}
	mutex_init(&pipe->mutex);
	init_waitqueue_head(&pipe->rd_wait);
	init_waitqueue_head(&pipe->wr_wait);
	pipe->max_usage = slots;
	pipe->ring_size = slots;
	pipe->readers = 1;
	pipe->writers = 1;
	pipe->files = 1;
	return pipe;
}

void getbuf_pipe_free(struct pipe_inode_info *pipe)
{
	unsigned int tail;

	for (tail = pipe->tail; tail != pipe->head; tail++)
		pipe_buf_release(pipe, pipe_buf(pipe, tail));
	kvfree(pipe->bufs);
	kfree(pipe);
}

/* Adds the pipe's content, once it is there: fewer bytes if limits are used up. */
static int getbuf_pipe_add(struct getbuf_lend *lend, struct pipe_inode_info *pipe, u32 length)
{
	unsigned int tail;
	u32 done = 0;
	int ret = 0;

	for (tail = pipe->tail; tail != pipe->head && done < length; tail++) {
		struct pipe_buffer *buffer = pipe_buf(pipe, tail);
		u32 wanted = min(buffer->len, length - done);

		ret = pipe_buf_confirm(pipe, buffer);
		/* Truncated meanwhile: the end. */
		if (ret == -ENODATA)
			break;
		if (!ret)
			ret = getbuf_lend_add(lend, buffer->page, buffer->offset, wanted);
		if (ret < 0)
			break;
		done += ret;
		if (ret < wanted)
			break;
	}
	return done || ret == -ENODATA ? done : ret;
}

/*
 * Returns how many bytes it could lend, 0 at the end. Bytes in the pipe that are
 * not lent can be read again, since the file has positions.
 */
int getbuf_splice_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length)
{
	bool whole = S_ISREG(file_inode(file)->i_mode) || S_ISBLK(file_inode(file)->i_mode);
	u32 done = 0;
	ssize_t ret;

	lend->pipe = getbuf_pipe_make((length >> PAGE_SHIFT) + 2);
	if (!lend->pipe)
		return -ENOMEM;
	do {
		ret = vfs_splice_read(file, &position, lend->pipe, length - done, 0);
		if (ret <= 0)
			break;
		done += ret;
	} while (whole && done < length && !pipe_is_full(lend->pipe));
	if (!done)
		return ret;
	return getbuf_pipe_add(lend, lend->pipe, done);
}
