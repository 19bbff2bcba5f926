// SPDX-License-Identifier: GPL-2.0
/*
 * The null source: one page of zeros, as often as wanted. Its lends are used
 * again, so that what a lend costs by itself can be measured.
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

void getbuf_null_exit(void)
{
	/* Whoever was sent it may hold it still. */
	put_page(getbuf_null_page);
}

int getbuf_null_get(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 length, u32 slot,
		    unsigned int issue_flags)
{
	struct getbuf_lend *lend;
	int err;

	length = min_t(u32, length, PAGE_SIZE);
	lend = getbuf_lend_make(context, GETBUF_OF_NULL, 1);
	if (IS_ERR(lend))
		return PTR_ERR(lend);
	bvec_set_page(&lend->segment[0], getbuf_null_page, length, 0);
	lend->segments = 1;
	lend->bytes = length;
	err = getbuf_lend_publish(lend, cmd, ITER_SOURCE, slot, issue_flags);
	if (err) {
		getbuf_lend_free(lend);
		return err;
	}
	return length;
}

/* Keeps a lend of the null page for its next use, if it is one and there is room. */
bool getbuf_null_keep(struct getbuf_lend *lend)
{
	struct getbuf_context *context = lend->context;
	bool keep;

	if (lend->kind != GETBUF_OF_NULL)
		return false;
	spin_lock(&context->lock);
	keep = context->ready_count < GETBUF_READY_MAX;
	if (keep) {
		list_add(&lend->entry, &context->ready);
		context->ready_count++;
	}
	spin_unlock(&context->lock);
	return keep;
}
