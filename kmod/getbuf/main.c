// SPDX-License-Identifier: GPL-2.0
/* The module, the device, and its commands. */
#include <linux/anon_inodes.h>
#include <linux/fsnotify.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "lend.h"

#define GETBUF_FURTHER_SHIFT	8
#define GETBUF_GET_FLAGS	(GETBUF_NOWAIT | GETBUF_REPLACE | GETBUF_FURTHER(0xffU))

unsigned int getbuf_lends_max = 4096;
module_param_named(lends, getbuf_lends_max, uint, 0644);
MODULE_PARM_DESC(lends, "Lends that a user may have out");

unsigned long getbuf_bytes_max = SZ_256M;
module_param_named(bytes, getbuf_bytes_max, ulong, 0644);
MODULE_PARM_DESC(bytes, "Bytes that the lends of a user may keep in memory");

unsigned int getbuf_stream_age_max = 60000;
module_param_named(stream_age, getbuf_stream_age_max, uint, 0644);
MODULE_PARM_DESC(stream_age,
		 "Milliseconds after which received data that is not back stops further lends; 0: never");

unsigned int getbuf_file_age_max = 600000;
module_param_named(file_age, getbuf_file_age_max, uint, 0644);
MODULE_PARM_DESC(file_age,
		 "Milliseconds after which pages of a file that are not back stop further lends; 0: never");

/* The last reference to the context is gone. */
static int getbuf_pin_release(struct inode *inode, struct file *pin)
{
	struct getbuf_context *context = pin->private_data;

	getbuf_context_remove(context);
	getbuf_null_forget(context);
	getbuf_user_put(context->user);
	kfree(context);
	return 0;
}

static const struct file_operations getbuf_pin_operations = {
	.owner		= THIS_MODULE,
	.release	= getbuf_pin_release,
};

static int getbuf_open(struct inode *inode, struct file *file)
{
	struct getbuf_context *context = kzalloc(sizeof(*context), GFP_KERNEL_ACCOUNT);
	int err = -ENOMEM;
	unsigned int i;

	if (!context)
		return err;
	context->user = getbuf_user_get();
	if (!context->user)
		goto no_user;
	xa_init_flags(&context->bound, XA_FLAGS_ALLOC);
	spin_lock_init(&context->lock);
	for (i = 0; i < GETBUF_LISTS; i++)
		INIT_LIST_HEAD(&context->out[i]);
	context->pin = anon_inode_getfile("[getbuf]", &getbuf_pin_operations, context, 0);
	err = PTR_ERR_OR_ZERO(context->pin);
	if (err)
		goto no_pin;
	getbuf_context_add(context);
	file->private_data = context;
	return nonseekable_open(inode, file);

no_pin:
	getbuf_user_put(context->user);
no_user:
	kfree(context);
	return err;
}

static int getbuf_release(struct inode *inode, struct file *file)
{
	struct getbuf_context *context = file->private_data;

	getbuf_unbind_all(context);
	getbuf_close(context);
	return 0;
}

static long getbuf_ioctl(struct file *file, unsigned int request, unsigned long argument)
{
	struct getbuf_context *context = file->private_data;
	void __user *pointer = (void __user *)argument;

	switch (request) {
	case GETBUF_IOC_BIND:
		return getbuf_bind(context, pointer);
	case GETBUF_IOC_UNBIND:
		return getbuf_unbind(context, pointer);
	case GETBUF_IOC_QUERY:
		return getbuf_query(context, pointer);
	}
	return -ENOTTY;
}

/*
 * Lends bytes from the page cache, or, if some are missing, as the file gives them,
 * which may wait: EAGAIN if it must not.
 */
static int getbuf_file_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length,
			    u32 flags, unsigned int issue_flags)
{
	bool missing = true;
	int ret = -EAGAIN;

	if (getbuf_cache_suits(file))
		ret = getbuf_cache_fill(lend, file, position, length, &missing);
	if (!missing || (flags & GETBUF_NOWAIT))
		return ret;
	if (issue_flags & IO_URING_F_NONBLOCK)
		return -EAGAIN;
	getbuf_lend_empty(lend);
	lend->kind = GETBUF_OF_SPLICE;
	return getbuf_splice_fill(lend, file, position, length);
}

static int getbuf_file_get(struct getbuf_bound *bound, struct io_uring_cmd *cmd,
			   const struct getbuf_get *request, u32 slot, unsigned int issue_flags)
{
	u32 length = min_t(u32, request->length, GETBUF_LEND_MAX);
	loff_t position = request->offset;
	struct getbuf_lend *lend;
	int ret, err;

	if (request->offset > (u64)(S64_MAX - length))
		return -EINVAL;
	ret = rw_verify_area(READ, bound->file, &position, length);
	if (ret < 0)
		return ret;
	lend = getbuf_lend_make(bound->context, GETBUF_OF_CACHE);
	if (IS_ERR(lend))
		return PTR_ERR(lend);
	lend->origin = get_file(bound->file);
	ret = getbuf_file_fill(lend, bound->file, position, length, request->flags, issue_flags);
	if (ret > 0) {
		err = getbuf_lend_publish(lend, cmd, ITER_SOURCE, slot, issue_flags);
		if (!err) {
			fsnotify_access(bound->file);
			return ret;
		}
		ret = err;
	}
	getbuf_lend_free(lend);
	return ret;
}

/*
 * The return value for io_uring. io_uring hands a command with EAGAIN to a worker,
 * which may wait; for a command that must not wait, or runs in that worker, EAGAIN
 * is the result.
 */
static int getbuf_answer(struct io_uring_cmd *cmd, int ret, u32 flags, unsigned int issue_flags)
{
	switch (ret) {
	case -EAGAIN:
		if ((issue_flags & IO_URING_F_NONBLOCK) && !(flags & GETBUF_NOWAIT))
			return ret;
		io_uring_cmd_done(cmd, ret, issue_flags);
		return -EIOCBQUEUED;
	case -ERESTARTSYS:
	case -ERESTARTNOINTR:
	case -ERESTARTNOHAND:
	case -ERESTART_RESTARTBLOCK:
		return -EINTR;
	}
	return ret;
}

/*
 * Lends into so many slots, as GETBUF_FURTHER says. An error only if nothing is
 * lent: the next GET meets the error again.
 */
static int getbuf_pieces_get(struct getbuf_bound *bound, struct io_uring_cmd *cmd,
			    struct getbuf_get *request, u32 slot, u32 slots,
			    unsigned int issue_flags)
{
	int ret, done = 0;

	do {
		ret = getbuf_file_get(bound, cmd, request, slot++, issue_flags);
		if (ret < 0)
			return done ? done : ret;
		done += ret;
		request->offset += ret;
	} while (ret == request->length && --slots);
	return done;
}

static int getbuf_do_get(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
			 unsigned int issue_flags)
{
	const struct getbuf_get *shared = io_uring_sqe_cmd(cmd->sqe, struct getbuf_get);
	struct getbuf_get request = {
		.offset	= READ_ONCE(shared->offset),
		.length	= READ_ONCE(shared->length),
		.source	= READ_ONCE(shared->source),
		.flags	= READ_ONCE(shared->flags),
	};
	u32 slots = 1 + (request.flags >> GETBUF_FURTHER_SHIFT);
	struct getbuf_bound *bound;
	int ret;

	if (!request.length || (request.flags & ~GETBUF_GET_FLAGS))
		return -EINVAL;
	if (request.flags & GETBUF_REPLACE) {
		ret = getbuf_null_vacate(context, cmd, slot, slots, issue_flags);
		if (ret)
			return ret;
	}
	if (request.source == GETBUF_NULL) {
		if (request.offset)
			return -ESPIPE;
		return getbuf_null_get(context, cmd, request.length, slot, slots, issue_flags);
	}
	bound = getbuf_bound_get(context, request.source, GETBUF_SOURCE);
	if (!bound)
		return -EBADF;
	if (!bound->sk)
		ret = getbuf_pieces_get(bound, cmd, &request, slot, slots, issue_flags);
	else if (request.offset || slots > 1)
		ret = -ESPIPE;
	else
		ret = getbuf_wait_get(bound, cmd, min_t(u32, request.length, GETBUF_LEND_MAX), slot,
				      request.flags, issue_flags);
	getbuf_bound_put(bound);
	return getbuf_answer(cmd, ret, request.flags, issue_flags);
}

static int getbuf_do_fresh(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
			   unsigned int issue_flags)
{
	const struct getbuf_fresh *shared = io_uring_sqe_cmd(cmd->sqe, struct getbuf_fresh);
	u32 length = READ_ONCE(shared->length), send_slot = READ_ONCE(shared->send_slot);

	if (!length || READ_ONCE(shared->flags) || READ_ONCE(shared->reserved))
		return -EINVAL;
	return getbuf_fresh(context, cmd, length, slot, send_slot, issue_flags);
}

static int getbuf_do_put(struct io_uring_cmd *cmd, u32 slot, unsigned int issue_flags)
{
	const struct getbuf_put *shared = io_uring_sqe_cmd(cmd->sqe, struct getbuf_put);

	if (READ_ONCE(shared->reserved[0]) || READ_ONCE(shared->reserved[1]))
		return -EINVAL;
	return getbuf_slot_clear(cmd, slot, issue_flags);
}

static int getbuf_do_cancel(struct getbuf_context *context, struct io_uring_cmd *cmd)
{
	const struct getbuf_cancel *shared = io_uring_sqe_cmd(cmd->sqe, struct getbuf_cancel);
	u64 user_data = READ_ONCE(shared->user_data);
	u32 flags = READ_ONCE(shared->flags);

	if ((flags & ~GETBUF_CANCEL_ALL) || READ_ONCE(shared->reserved))
		return -EINVAL;
	return getbuf_wait_cancel(context, cmd, user_data, flags & GETBUF_CANCEL_ALL);
}

static int getbuf_do_send(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
			  unsigned int issue_flags)
{
	const struct getbuf_send *shared = io_uring_sqe_cmd(cmd->sqe, struct getbuf_send);
	struct getbuf_send request = {
		.offset	= READ_ONCE(shared->offset),
		.length	= READ_ONCE(shared->length),
		.target	= READ_ONCE(shared->target),
		.flags	= READ_ONCE(shared->flags),
	};

	if (!request.length || (request.flags & ~(GETBUF_NOWAIT | GETBUF_MORE)))
		return -EINVAL;
	return getbuf_answer(cmd, getbuf_send(context, cmd, &request, slot, issue_flags),
			     request.flags, issue_flags);
}

static int getbuf_uring_cmd(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct getbuf_context *context = cmd->file->private_data;
	bool has_slot = cmd->flags & IORING_URING_CMD_FIXED;
	u32 slot;

	/* A waiting command has no sqe any more: the ring may have been resized. */
	if (issue_flags & IO_URING_F_CANCEL) {
		getbuf_wait_exiting(cmd, issue_flags);
		return 0;
	}
	slot = READ_ONCE(cmd->sqe->buf_index);
	if (cmd->flags & IORING_URING_CMD_MULTISHOT)
		return -EINVAL;
	if (cmd->cmd_op == GETBUF_CMD_CANCEL)
		return has_slot ? -EINVAL : getbuf_do_cancel(context, cmd);
	if (!has_slot)
		return -EINVAL;
	switch (cmd->cmd_op) {
	case GETBUF_CMD_GET:
		return getbuf_do_get(context, cmd, slot, issue_flags);
	case GETBUF_CMD_FRESH:
		return getbuf_do_fresh(context, cmd, slot, issue_flags);
	case GETBUF_CMD_PUT:
		return getbuf_do_put(cmd, slot, issue_flags);
	case GETBUF_CMD_SEND:
		return getbuf_do_send(context, cmd, slot, issue_flags);
	}
	return -EOPNOTSUPP;
}

static const struct file_operations getbuf_operations = {
	.owner		= THIS_MODULE,
	.open		= getbuf_open,
	.release	= getbuf_release,
	.unlocked_ioctl	= getbuf_ioctl,
	.compat_ioctl	= compat_ptr_ioctl,
	.uring_cmd	= getbuf_uring_cmd,
};

static struct miscdevice getbuf_device = {
	.minor	= MISC_DYNAMIC_MINOR,
	.name	= "getbuf",
	.fops	= &getbuf_operations,
	.mode	= 0600,
};

static int __init getbuf_init(void)
{
	int err;

	err = getbuf_lend_init();
	if (err)
		return err;
	err = getbuf_null_init();
	if (err)
		goto no_page;
	err = misc_register(&getbuf_device);
	if (err)
		goto no_device;
	return 0;

no_device:
	getbuf_null_exit();
no_page:
	getbuf_lend_exit();
	return err;
}

static void __exit getbuf_exit(void)
{
	misc_deregister(&getbuf_device);
	getbuf_null_exit();
	getbuf_lend_exit();
}

module_init(getbuf_init);
module_exit(getbuf_exit);

MODULE_DESCRIPTION("Lends buffers of the kernel into io_uring's table of registered buffers");
MODULE_LICENSE("GPL");
MODULE_ALIAS("devname:getbuf");
