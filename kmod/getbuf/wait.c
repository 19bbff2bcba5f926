// SPDX-License-Identifier: GPL-2.0
/*
 * GETs of a stream: one works, the others wait in order; without data the one that
 * works waits in front of them. Whoever takes a command off the list completes it,
 * or puts it back.
 */
#include <linux/cred.h>
#include <linux/net.h>
#include <linux/slab.h>
#include <net/sock.h>

#include "lend.h"

/* The command points to it; the list is empty while somebody works with it. */
struct getbuf_pending {
	struct list_head entry;
	struct io_uring_cmd *cmd;
	struct getbuf_bound *bound;	/* with a reference */
	const struct cred *cred;	/* whose request it is */
	u32 length;
	u32 slot;
};

static struct getbuf_pending *getbuf_pending_of(struct io_uring_cmd *cmd)
{
	return *io_uring_cmd_to_pdu(cmd, struct getbuf_pending *);
}

static void getbuf_resume(struct io_tw_req request, io_tw_token_t token);

/* Under the lock: lets the first in line work, if there is something for it. */
static void getbuf_next(struct getbuf_bound *bound)
{
	struct getbuf_pending *first;

	first = list_first_entry_or_null(&bound->pending, struct getbuf_pending, entry);
	if (bound->serving || !first || !getbuf_stream_ready(bound->sk))
		return;
	list_del_init(&first->entry);
	bound->serving = first->cmd;
	bound->stop = false;
	/* Not lazily: there may turn out to be nothing to complete. */
	io_uring_cmd_complete_in_task(bound->serving, getbuf_resume);
}

static void getbuf_done(struct getbuf_bound *bound)
{
	unsigned long flags;

	spin_lock_irqsave(&bound->lock, flags);
	bound->serving = NULL;
	getbuf_next(bound);
	spin_unlock_irqrestore(&bound->lock, flags);
}

/* Makes a command wait that was working, or is new. False if it is to end instead. */
static bool getbuf_park(struct getbuf_bound *bound, struct io_uring_cmd *cmd)
{
	struct getbuf_pending *pending = getbuf_pending_of(cmd);
	bool first = false, parked = false;
	unsigned long flags;

	spin_lock_irqsave(&bound->lock, flags);
	if (bound->serving == cmd) {
		bound->serving = NULL;
		first = true;
	}
	if (!bound->gone && !(first && bound->stop)) {
		list_add(&pending->entry, first ? &bound->pending : bound->pending.prev);
		parked = true;
	}
	getbuf_next(bound);
	spin_unlock_irqrestore(&bound->lock, flags);
	return parked;
}

static void getbuf_finish(struct io_uring_cmd *cmd, int ret, unsigned int issue_flags)
{
	struct getbuf_pending *pending = getbuf_pending_of(cmd);

	atomic64_dec(&pending->bound->context->waiting);
	/* Until then the ring may still ask getbuf_wait_exiting() to end it. */
	io_uring_cmd_done(cmd, ret, issue_flags);
	getbuf_bound_put(pending->bound);
	put_cred(pending->cred);
	kfree(pending);
}

static void getbuf_resume(struct io_tw_req request, io_tw_token_t token)
{
	struct io_uring_cmd *cmd = io_uring_cmd_from_tw(request);
	struct getbuf_pending *pending = getbuf_pending_of(cmd);
	struct getbuf_bound *bound = pending->bound;
	unsigned int issue_flags = IO_URING_CMD_TASK_WORK_ISSUE_FLAGS;
	int ret = -ECANCELED;

	if (!token.cancel && !READ_ONCE(bound->gone)) {
		scoped_with_creds(pending->cred)
			ret = getbuf_stream_take(bound, cmd, pending->length, pending->slot,
						 issue_flags);
	}
	if (ret == -EAGAIN) {
		if (getbuf_park(bound, cmd))
			return;
		ret = -ECANCELED;
	} else {
		getbuf_done(bound);
	}
	getbuf_finish(cmd, ret, issue_flags);
}

static void getbuf_canceled(struct io_tw_req request, io_tw_token_t token)
{
	getbuf_finish(io_uring_cmd_from_tw(request), -ECANCELED,
		      IO_URING_CMD_TASK_WORK_ISSUE_FLAGS);
}

/* EAGAIN only for a command that must not wait. */
int getbuf_wait_get(struct getbuf_bound *bound, struct io_uring_cmd *cmd, u32 length, u32 slot,
		    u32 flags, unsigned int issue_flags)
{
	struct getbuf_pending *pending = NULL;
	int ret = -EAGAIN;
	bool mine;

	spin_lock_irq(&bound->lock);
	mine = !bound->serving && list_empty(&bound->pending);
	if (mine) {
		bound->serving = cmd;
		bound->stop = false;
	}
	spin_unlock_irq(&bound->lock);
	if (mine)
		ret = getbuf_stream_take(bound, cmd, length, slot, issue_flags);
	if (ret == -EAGAIN && !(flags & GETBUF_NOWAIT)) {
		pending = kzalloc(sizeof(*pending), GFP_KERNEL_ACCOUNT);
		if (!pending)
			ret = -ENOMEM;
	}
	if (!pending) {
		if (mine)
			getbuf_done(bound);
		return ret;
	}

	*io_uring_cmd_to_pdu(cmd, struct getbuf_pending *) = pending;
	INIT_LIST_HEAD(&pending->entry);
	refcount_inc(&bound->refs);
	pending->cmd = cmd;
	pending->bound = bound;
	pending->cred = get_current_cred();
	pending->length = length;
	pending->slot = slot;
	atomic64_inc(&bound->context->waiting);
	io_uring_cmd_mark_cancelable(cmd, issue_flags);
	if (!getbuf_park(bound, cmd))
		getbuf_finish(cmd, -ECANCELED, issue_flags);
	return -EIOCBQUEUED;
}

/* The socket's state has changed. */
int getbuf_wait_wake(struct wait_queue_entry *wait, unsigned int mode, int sync, void *key)
{
	struct getbuf_bound *bound = container_of(wait, struct getbuf_bound, wait);
	__poll_t what = key_to_poll(key);
	unsigned long flags;

	if (what && !(what & (EPOLLIN | EPOLLRDNORM | EPOLLRDHUP | EPOLLHUP | EPOLLERR)))
		return 0;
	spin_lock_irqsave(&bound->lock, flags);
	getbuf_next(bound);
	spin_unlock_irqrestore(&bound->lock, flags);
	return 0;
}

/* The file is unbound: its waiting commands wait no longer. */
void getbuf_wait_end(struct getbuf_bound *bound)
{
	struct getbuf_pending *pending, *next;
	unsigned long flags;

	spin_lock_irqsave(&bound->lock, flags);
	WRITE_ONCE(bound->gone, true);
	list_for_each_entry_safe(pending, next, &bound->pending, entry) {
		list_del_init(&pending->entry);
		io_uring_cmd_complete_in_task(pending->cmd, getbuf_canceled);
	}
	spin_unlock_irqrestore(&bound->lock, flags);
}

/* The ring or its task goes. io_uring tries a command that is working again. */
void getbuf_wait_exiting(struct io_uring_cmd *cmd, unsigned int issue_flags)
{
	struct getbuf_pending *pending = getbuf_pending_of(cmd);
	struct getbuf_bound *bound = pending->bound;
	unsigned long flags;
	bool mine;

	spin_lock_irqsave(&bound->lock, flags);
	mine = !list_empty(&pending->entry);
	list_del_init(&pending->entry);
	spin_unlock_irqrestore(&bound->lock, flags);
	if (mine)
		getbuf_finish(cmd, -ECANCELED, issue_flags);
}

static bool getbuf_meant(struct io_uring_cmd *cmd, struct io_uring_cmd *by, u64 user_data, bool all)
{
	return io_uring_cmd_ctx_handle(cmd) == io_uring_cmd_ctx_handle(by) &&
	       (all || cmd_to_io_kiocb(cmd)->cqe.user_data == user_data);
}

static void getbuf_cancel_in(struct getbuf_bound *bound, struct io_uring_cmd *by, u64 user_data,
			     bool all, int *canceled, int *at_work)
{
	struct getbuf_pending *pending, *next;
	unsigned long flags;

	spin_lock_irqsave(&bound->lock, flags);
	list_for_each_entry_safe(pending, next, &bound->pending, entry) {
		struct io_uring_cmd *cmd = pending->cmd;

		if (!getbuf_meant(cmd, by, user_data, all))
			continue;
		list_del_init(&pending->entry);
		io_uring_cmd_complete_in_task(cmd, getbuf_canceled);
		++*canceled;
	}
	if (bound->serving && getbuf_meant(bound->serving, by, user_data, all)) {
		bound->stop = true;
		++*at_work;
	}
	spin_unlock_irqrestore(&bound->lock, flags);
}

int getbuf_wait_cancel(struct getbuf_context *context, struct io_uring_cmd *cmd, u64 user_data,
		       bool all)
{
	int canceled = 0, at_work = 0;
	struct getbuf_bound *bound;
	unsigned long id;

	xa_lock(&context->bound);
	xa_for_each(&context->bound, id, bound) {
		if (bound->sk)
			getbuf_cancel_in(bound, cmd, user_data, all, &canceled, &at_work);
	}
	xa_unlock(&context->bound);
	if (canceled)
		return canceled;
	return at_work ? -EALREADY : -ENOENT;
}
