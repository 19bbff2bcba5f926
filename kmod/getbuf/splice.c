// SPDX-License-Identifier: GPL-2.0
/*
 * Lends what a file gives when it is asked: the pages of its page cache that its
 * splice_read puts into a pipe, or new pages that it reads into. May wait, so all
 * that it may keep meanwhile is charged before.
 */
#include <linux/mm.h>
#include <linux/pipe_fs_i.h>
#include <linux/slab.h>
#include <linux/splice.h>

#include "lend.h"

/* A private pipe for so many pages; the kernel offers none to modules. */
static struct pipe_inode_info *getbuf_pipe_make(u32 slots)
{
	struct pipe_inode_info *pipe = kzalloc(sizeof(*pipe), GFP_KERNEL_ACCOUNT);
	u32 ring_size = roundup_pow_of_two(slots);

	if (!pipe)
		return NULL;
	pipe->bufs = kvcalloc(ring_size, sizeof(*pipe->bufs), GFP_KERNEL_ACCOUNT);
	if (!pipe->bufs) {
		kfree(pipe);
		return NULL;
	}
	mutex_init(&pipe->mutex);
	init_waitqueue_head(&pipe->rd_wait);
	init_waitqueue_head(&pipe->wr_wait);
	pipe->max_usage = slots;
	pipe->ring_size = ring_size;
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

/*
 * Adds the pipe's content, once it is there, fewer bytes if limits are used up, and
 * releases what it could not add.
 */
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
		if (ret < wanted) {
			tail++;
			break;
		}
	}
	while (pipe->head != tail)
		pipe_buf_release(pipe, pipe_buf(pipe, --pipe->head));
	return done || ret == -ENODATA ? done : ret;
}

/* Whether to ask again after fewer bytes than wanted: a file of another kind might wait. */
static bool getbuf_gives_all(struct file *file)
{
	umode_t mode = file_inode(file)->i_mode;

	return S_ISREG(mode) || S_ISBLK(mode);
}

static int getbuf_splice_by_pipe(struct getbuf_lend *lend, struct file *file, loff_t position,
				 u32 length)
{
	u32 done = 0;
	ssize_t ret;

	lend->pipe = getbuf_pipe_make(lend->reserved);
	if (!lend->pipe)
		return -ENOMEM;
	do {
		ret = vfs_splice_read(file, &position, lend->pipe, length - done, 0);
		if (ret <= 0)
			break;
		done += ret;
	} while (getbuf_gives_all(file) && done < length && !pipe_is_full(lend->pipe));
	if (!done)
		return ret;
	return getbuf_pipe_add(lend, lend->pipe, done);
}

/* Whether splice_read would read into new pages, which it would charge to nobody. */
static bool getbuf_reads(struct file *file)
{
	return file->f_op->read_iter &&
	       ((file->f_flags & O_DIRECT) || IS_DAX(file->f_mapping->host) ||
		file->f_op->splice_read == copy_splice_read);
}

/* Does what copy_splice_read() does, with pages that the memory cgroup is charged for. */
static int getbuf_splice_by_read(struct getbuf_lend *lend, struct file *file, loff_t position,
				 u32 length)
{
	bool often_less = file->f_op->splice_read == copy_splice_read;
	struct iov_iter into;
	struct kiocb kiocb;
	u32 done = 0;
	ssize_t ret;

	/* What is not filled goes back, from files such as those in /proc page by page. */
	ret = getbuf_fresh_fill(lend, length, often_less ? PAGE_SIZE : GETBUF_SEGMENT_MAX);
	if (ret)
		return ret;
	iov_iter_bvec(&into, ITER_DEST, lend->segment, lend->segments, length);
	init_sync_kiocb(&kiocb, file);
	kiocb.ki_pos = position;
	do {
		ret = file->f_op->read_iter(&kiocb, &into);
		if (ret <= 0)
			break;
		done += ret;
	} while (getbuf_gives_all(file) && done < length);
	if (!done)
		return ret;
	getbuf_lend_trim(lend, done);
	return done;
}

/*
 * Returns how many bytes it could lend, 0 at the end. Bytes that it read and does
 * not lend can be read again, since the file has positions.
 */
int getbuf_splice_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length)
{
	u32 first = offset_in_page(position);
	long pages;

	pages = getbuf_lend_reserve(lend, 1, DIV_ROUND_UP(first + length, PAGE_SIZE));
	if (pages < 0)
		return pages;
	length = min_t(u32, length, pages * PAGE_SIZE - first);
	if (getbuf_reads(file))
		return getbuf_splice_by_read(lend, file, position, length);
	return getbuf_splice_by_pipe(lend, file, position, length);
}
