// SPDX-License-Identifier: GPL-2.0
/*
 * The null source: one page of zeros, as often as wanted. Its lends are reused, so
 * that one can measure the cost of a lend itself.
 */
#include <linux/mm.h>

#include "lend.h"

#define GETBUF_READY_MAX	256

static struct page *getbuf_null_page;

int __init getbuf_null_init(void)
{
	getbuf_null_page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	return getbuf_null_page ? 0 : -ENOMEM;
}

bool getbuf_null_is(const struct page *page)
{
	return page == getbuf_null_page;
}

void getbuf_null_exit(void)
{
	/* Somebody to whom it was sent may still hold it. */
	put_page(getbuf_null_page);
}

/*
 * Counts so many lends, or as many as possible, and takes as many of them as are
 * ready. They keep no memory, so they are in no list while they are out.
 */
static int getbuf_null_take(struct getbuf_context *context, u32 wanted, u32 length,
			    struct getbuf_lend **ready)
{
	struct getbuf_counters *count = &context->count;
	struct getbuf_lend **end = &context->ready;
	int lends, i;

	spin_lock(&context->lock);
	lends = getbuf_enter(context, wanted);
	for (i = 0; i < lends && *end; i++)
		end = &(*end)->next;
	*ready = NULL;
	if (i) {
		*ready = context->ready;
		context->ready = *end;
		*end = NULL;
		context->ready_count -= i;
	}
	if (lends > 0) {
		count->lent += lends;
		count->from[GETBUF_OF_NULL] += lends;
		count->lent_bytes += lends * length;
	}
	spin_unlock(&context->lock);
	return lends;
}

static struct getbuf_lend *getbuf_null_make(struct getbuf_context *context)
{
	struct getbuf_lend *lend = getbuf_lend_alloc(context, GETBUF_OF_NULL);

	if (lend) {
		bvec_set_page(&lend->segment[0], getbuf_null_page, 0, 0);
		lend->segments = 1;
	}
	return lend;
}

/* Under the lock: keeps one ready for the next time. */
static void getbuf_null_keep(struct getbuf_context *context, struct getbuf_lend *lend)
{
	lend->next = context->ready;
	context->ready = lend;
	context->ready_count++;
}

/* Undoes the taking of so many, of which these are left. */
static void getbuf_null_untake(struct getbuf_context *context, u32 lends, u32 length,
			       struct getbuf_lend *left)
{
	struct getbuf_counters *count = &context->count;
	struct getbuf_lend *next;

	spin_lock(&context->lock);
	for (; left; left = next) {
		next = left->next;
		getbuf_null_keep(context, left);
	}
	count->lent -= lends;
	count->from[GETBUF_OF_NULL] -= lends;
	count->lent_bytes -= lends * length;
	getbuf_leave_unlock(context, lends);
}

/* Lends into so many slots, as GETBUF_FURTHER says. */
int getbuf_null_get(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 length, u32 slot,
		    u32 slots, unsigned int issue_flags)
{
	u32 piece = min_t(u32, length, PAGE_SIZE);
	struct getbuf_lend *ready, *lend;
	int taken, done, err = 0;

	taken = getbuf_null_take(context, piece == length ? slots : 1, piece, &ready);
	for (done = 0; done < taken; done++) {
		lend = ready ? ready : getbuf_null_make(context);
		err = -ENOMEM;
		if (!lend)
			break;
		ready = lend->next;
		lend->segment[0].bv_len = piece;
		lend->bytes = piece;
		err = getbuf_slot_fill(&lend->handle[0], cmd, ITER_SOURCE, slot + done,
				       issue_flags);
		if (err) {
			lend->next = ready;
			ready = lend;
			break;
		}
	}
	if (done < taken)
		getbuf_null_untake(context, taken - done, piece, ready);
	if (taken < 0)
		return taken;
	return done ? done * piece : err;
}

void getbuf_null_returned(struct getbuf_lend *lend)
{
	struct getbuf_context *context = lend->context;
	bool keep;

	/* No other task sets it to this task. */
	if (READ_ONCE(context->clearing) == current) {
		if (!context->cleared)
			context->cleared_last = lend;
		lend->next = context->cleared;
		context->cleared = lend;
		context->cleared_count++;
		return;
	}
	keep = READ_ONCE(context->ready_count) < GETBUF_READY_MAX;
	if (!keep)
		getbuf_lend_destroy(lend);
	spin_lock(&context->lock);
	if (keep)
		getbuf_null_keep(context, lend);
	context->count.returned++;
	getbuf_leave_unlock(context, 1);
}

/* Takes back at once the lends that came back while slots were cleared. */
static void getbuf_null_gather(struct getbuf_context *context)
{
	struct getbuf_lend *first = context->cleared, *last = context->cleared_last;
	u32 lends = context->cleared_count;

	context->cleared = NULL;
	context->cleared_count = 0;
	smp_store_release(&context->clearing, NULL);
	if (!lends)
		return;
	spin_lock(&context->lock);
	last->next = context->ready;
	context->ready = first;
	context->ready_count += lends;
	context->count.returned += lends;
	getbuf_leave_unlock(context, lends);
}

/*
 * Clears the lent buffers in so many slots. Memory of the user stays: EBUSY. One
 * task at a time collects the null page's lends that come back meanwhile, and takes
 * them back together, under one lock.
 */
int getbuf_null_vacate(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
		       u32 slots, unsigned int issue_flags)
{
	bool gather = slots > 1 && !cmpxchg_acquire(&context->clearing, NULL, current);
	int err = 0;

	for (; slots && err != -EBUSY; slots--, slot++)
		err = getbuf_slot_clear(cmd, slot, issue_flags);
	if (gather)
		getbuf_null_gather(context);
	return err == -EBUSY ? err : 0;
}

/* Drops the ready lends. */
void getbuf_null_forget(struct getbuf_context *context)
{
	struct getbuf_lend *lend, *next;

	for (lend = context->ready; lend; lend = next) {
		next = lend->next;
		getbuf_lend_destroy(lend);
	}
}
