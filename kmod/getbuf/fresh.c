// SPDX-License-Identifier: GPL-2.0
/* New, zeroed pages in two slots: one to fill them through, one to send them from. */
#include <linux/mm.h>

#include "lend.h"

/* As many pages at once as there are, up to a piece. */
static struct page *getbuf_fresh_pages(u32 wanted, u32 piece, u32 *bytes)
{
	const gfp_t flags = GFP_KERNEL_ACCOUNT | __GFP_ZERO;
	unsigned int order = get_order(min(wanted, piece));
	struct page *page;

	if (PAGE_SIZE << order > PAGE_ALIGN(wanted))
		order--;
	if (order) {
		*bytes = min_t(u32, wanted, PAGE_SIZE << order);
		page = alloc_pages(flags | __GFP_COMP | __GFP_NORETRY | __GFP_NOWARN, order);
		if (page)
			return page;
	}
	*bytes = min_t(u32, wanted, PAGE_SIZE);
	return alloc_page(flags);
}

/* Adds new pages, which are charged already, to a lend that has none. */
int getbuf_fresh_fill(struct getbuf_lend *lend, u32 length, u32 piece)
{
	while (lend->bytes < length) {
		struct page *page;
		u32 bytes;
		int ret;

		page = getbuf_fresh_pages(length - lend->bytes, piece, &bytes);
		if (!page)
			return -ENOMEM;
		ret = getbuf_lend_add(lend, page, 0, bytes);
		put_page(page);
		if (ret < 0)
			return ret;
	}
	return 0;
}

int getbuf_fresh(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 length, u32 slot,
		 u32 send_slot, unsigned int issue_flags)
{
	struct getbuf_handle *send;
	struct getbuf_lend *lend;
	unsigned long pages;
	long err;

	length = min_t(u32, length, GETBUF_LEND_MAX);
	pages = DIV_ROUND_UP(length, PAGE_SIZE);
	lend = getbuf_lend_make(context, GETBUF_OF_FRESH);
	if (IS_ERR(lend))
		return PTR_ERR(lend);
	send = &lend->handle[1];
	err = getbuf_lend_reserve(lend, pages, pages);
	if (err > 0)
		err = getbuf_fresh_fill(lend, length, GETBUF_SEGMENT_MAX);
	if (!err)
		err = getbuf_lend_publish(lend, cmd, ITER_DEST, slot, issue_flags);
	if (err) {
		getbuf_lend_free(lend);
		return err;
	}
	/* We hold this handle until it is in a slot, so the lend stays. */
	err = getbuf_slot_fill(send, cmd, ITER_SOURCE, send_slot, issue_flags);
	if (err) {
		getbuf_slot_clear(cmd, slot, issue_flags);
		getbuf_handle_returned(send);
		return err;
	}
	return length;
}
