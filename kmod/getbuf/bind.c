// SPDX-License-Identifier: GPL-2.0
/*
 * Files under ids. A command cannot look into the ring's table of registered files,
 * so a file is bound here first, once, and checked.
 */
#include <linux/file.h>
#include <linux/net.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <net/sock.h>

#include "lend.h"

/*
 * Among sockets, only TCP can lend. An AF_UNIX socket, for one, could hold this
 * very device in its queue, and nobody would ever find the circle.
 */
static int getbuf_may_be_source(struct file *file, struct sock *sk)
{
	if (!(file->f_mode & FMODE_READ))
		return -EBADF;
	if (sk)
		return getbuf_stream_suits(sk);
	/* Pipes, directories, rings and the like, and this device. */
	if (!file->f_op->splice_read)
		return -EINVAL;
	/* A lend that fails would lose bytes that can be read only once. */
	if (!(file->f_mode & FMODE_PREAD))
		return -ESPIPE;
	return 0;
}

static int getbuf_may_be_target(struct file *file, struct sock *sk)
{
	if (!sk)
		return -ENOTSOCK;
	if (!(file->f_mode & FMODE_WRITE))
		return -EBADF;
	if (!sk_is_tcp(sk) && !sk_is_udp(sk))
		return -EOPNOTSUPP;
	return 0;
}

static int getbuf_may_bind(struct file *file, u32 use)
{
	struct socket *sock = sock_from_file(file);
	struct sock *sk = sock ? sock->sk : NULL;
	int err = 0;

	if (use & GETBUF_SOURCE)
		err = getbuf_may_be_source(file, sk);
	if (!err && (use & GETBUF_TARGET))
		err = getbuf_may_be_target(file, sk);
	return err;
}

static struct getbuf_bound *getbuf_bound_make(struct getbuf_context *context, struct file *file,
					      u32 use)
{
	struct getbuf_bound *bound = kzalloc(sizeof(*bound), GFP_KERNEL_ACCOUNT);
	struct socket *sock = sock_from_file(file);

	if (!bound)
		return NULL;
	refcount_set(&bound->refs, 1);
	bound->context = context;
	bound->file = get_file(file);
	bound->use = use;
	spin_lock_init(&bound->lock);
	INIT_LIST_HEAD(&bound->pending);
	if (sock && (use & GETBUF_SOURCE)) {
		bound->sk = sock->sk;
		init_waitqueue_func_entry(&bound->wait, getbuf_wait_wake);
		add_wait_queue(&sock->wq.wait, &bound->wait);
	}
	return bound;
}

void getbuf_bound_put(struct getbuf_bound *bound)
{
	if (!refcount_dec_and_test(&bound->refs))
		return;
	if (bound->sk)
		remove_wait_queue(&sock_from_file(bound->file)->wq.wait, &bound->wait);
	fput(bound->file);
	kfree(bound);
}

/*
 * Counts one more. The limit for a process is that of its own open files; the limit
 * for a user is that of files in flight, which a process can have without having
 * them open.
 */
static bool getbuf_bound_count(struct getbuf_context *context)
{
	unsigned long max = rlimit(RLIMIT_NOFILE);
	bool few = atomic_inc_return(&context->user->bound) <= max;

	return atomic_inc_return(&context->bound_count) <= max &&
	       (few || capable(CAP_SYS_RESOURCE));
}

static void getbuf_bound_uncount(struct getbuf_context *context)
{
	atomic_dec(&context->user->bound);
	atomic_dec(&context->bound_count);
}

static int getbuf_insert(struct getbuf_context *context, struct file *file, u32 use, u32 *id)
{
	struct getbuf_bound *bound;
	int err;

	err = getbuf_may_bind(file, use);
	if (err)
		return err;
	err = -EMFILE;
	if (!getbuf_bound_count(context))
		goto uncount;
	bound = getbuf_bound_make(context, file, use);
	err = -ENOMEM;
	if (!bound)
		goto uncount;
	err = xa_alloc(&context->bound, id, bound, XA_LIMIT(0, GETBUF_SOURCES_MAX - 1),
		       GFP_KERNEL_ACCOUNT);
	if (!err)
		return 0;
	if (err == -EBUSY)
		err = -EMFILE;
	getbuf_bound_put(bound);
uncount:
	getbuf_bound_uncount(context);
	return err;
}

int getbuf_bind(struct getbuf_context *context, struct getbuf_bind __user *argument)
{
	struct getbuf_bind bind;
	struct file *file;
	int err;

	if (copy_from_user(&bind, argument, sizeof(bind)))
		return -EFAULT;
	if (!bind.use || (bind.use & ~(GETBUF_SOURCE | GETBUF_TARGET)) || bind.flags || bind.id ||
	    bind.reserved[0] || bind.reserved[1])
		return -EINVAL;
	file = fget(bind.fd);
	if (!file)
		return -EBADF;
	err = getbuf_insert(context, file, bind.use, &bind.id);
	fput(file);
	if (err)
		return err;
	/* If this fails, the file stays bound until the device is closed. */
	return copy_to_user(argument, &bind, sizeof(bind)) ? -EFAULT : 0;
}

static void getbuf_bound_end(struct getbuf_bound *bound)
{
	getbuf_bound_uncount(bound->context);
	getbuf_wait_end(bound);
	getbuf_bound_put(bound);
}

int getbuf_unbind(struct getbuf_context *context, struct getbuf_unbind __user *argument)
{
	struct getbuf_unbind unbind;
	struct getbuf_bound *bound;

	if (copy_from_user(&unbind, argument, sizeof(unbind)))
		return -EFAULT;
	if (unbind.reserved)
		return -EINVAL;
	bound = xa_erase(&context->bound, unbind.id);
	if (!bound)
		return -ENOENT;
	getbuf_bound_end(bound);
	return 0;
}

/* When the device is closed: no command is running then. */
void getbuf_unbind_all(struct getbuf_context *context)
{
	struct getbuf_bound *bound;
	unsigned long id;

	xa_for_each(&context->bound, id, bound) {
		xa_erase(&context->bound, id);
		getbuf_bound_end(bound);
	}
	xa_destroy(&context->bound);
}

/* The file under an id, if it was bound for this use, with a reference; or NULL. */
struct getbuf_bound *getbuf_bound_get(struct getbuf_context *context, u32 id, u32 use)
{
	struct getbuf_bound *bound;

	xa_lock(&context->bound);
	bound = xa_load(&context->bound, id);
	if (bound && (bound->use & use))
		refcount_inc(&bound->refs);
	else
		bound = NULL;
	xa_unlock(&context->bound);
	return bound;
}
