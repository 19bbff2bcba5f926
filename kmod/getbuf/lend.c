// SPDX-License-Identifier: GPL-2.0
/* A lend: made within limits, filled with segments, put into slots, given back. */
#include <linux/cred.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/sched/signal.h>
#include <linux/sched/user.h>
#include <linux/skbuff_ref.h>
#include <linux/slab.h>
#include <net/page_pool/helpers.h>

#include "lend.h"

static struct kmem_cache *getbuf_lend_cache;

static DEFINE_SPINLOCK(getbuf_contexts_lock);
static LIST_HEAD(getbuf_contexts);

int __init getbuf_lend_init(void)
{
	getbuf_lend_cache = KMEM_CACHE(getbuf_lend, SLAB_ACCOUNT);
	return getbuf_lend_cache ? 0 : -ENOMEM;
}

void getbuf_lend_exit(void)
{
	kmem_cache_destroy(getbuf_lend_cache);
}

void getbuf_context_add(struct getbuf_context *context)
{
	spin_lock(&getbuf_contexts_lock);
	list_add(&context->among, &getbuf_contexts);
	spin_unlock(&getbuf_contexts_lock);
}

void getbuf_context_remove(struct getbuf_context *context)
{
	spin_lock(&getbuf_contexts_lock);
	list_del(&context->among);
	spin_unlock(&getbuf_contexts_lock);
}

/* Of all contexts. */
u64 getbuf_lends_out(void)
{
	struct getbuf_context *context;
	u64 lends = 0;

	spin_lock(&getbuf_contexts_lock);
	list_for_each_entry(context, &getbuf_contexts, among)
		lends += READ_ONCE(context->lends);
	spin_unlock(&getbuf_contexts_lock);
	return lends;
}

/*
 * Under the lock: counts so many more lends, or as many as possible, and returns
 * the number; an error says why there can be none.
 */
int getbuf_enter(struct getbuf_context *context, u32 wanted)
{
	if (getbuf_user_overdue(context->user)) {
		context->count.over_age++;
		return -ETIME;
	}
	wanted = getbuf_count_up(&context->user->lends, 1, wanted, READ_ONCE(getbuf_lends_max));
	if (!wanted) {
		context->count.over_limit++;
		return -ENOBUFS;
	}
	context->lends += wanted;
	return wanted;
}

/* From here on no lend is made. */
void getbuf_close(struct getbuf_context *context)
{
	spin_lock(&context->lock);
	context->closed = true;
	getbuf_leave_unlock(context, 0);
}

static void getbuf_leave(struct getbuf_context *context)
{
	spin_lock(&context->lock);
	getbuf_leave_unlock(context, 1);
}

struct getbuf_lend *getbuf_lend_alloc(struct getbuf_context *context, enum getbuf_kind kind)
{
	struct getbuf_lend *lend = kmem_cache_zalloc(getbuf_lend_cache, GFP_KERNEL);

	if (!lend)
		return NULL;
	INIT_LIST_HEAD(&lend->entry);
	INIT_LIST_HEAD(&lend->aging);
	lend->context = context;
	lend->kind = kind;
	lend->handle[0].lend = lend;
	lend->handle[1].lend = lend;
	lend->room = ARRAY_SIZE(lend->first);
	lend->segment = lend->first;
	return lend;
}

void getbuf_lend_destroy(struct getbuf_lend *lend)
{
	if (lend->segment != lend->first)
		kvfree(lend->segment);
	free_uid(lend->payer);
	kmem_cache_free(getbuf_lend_cache, lend);
}

/*
 * A lend without segments. getbuf_lend_free() frees it; after getbuf_lend_publish()
 * it belongs to slots.
 */
struct getbuf_lend *getbuf_lend_make(struct getbuf_context *context, enum getbuf_kind kind)
{
	struct getbuf_lend *lend;
	int err;

	spin_lock(&context->lock);
	err = getbuf_enter(context, 1);
	spin_unlock(&context->lock);
	if (err < 0)
		return ERR_PTR(err);
	lend = getbuf_lend_alloc(context, kind);
	if (!lend) {
		getbuf_leave(context);
		return ERR_PTR(-ENOMEM);
	}
	/* Once and for all: what is charged to somebody goes back to them. */
	if (!capable(CAP_IPC_LOCK))
		lend->payer = get_uid(current_user());
	return lend;
}

/* Makes room for more segments. It grows with what is lent, not with what is asked for. */
static int getbuf_lend_grow(struct getbuf_lend *lend)
{
	u32 room = 4 * lend->room;
	struct bio_vec *segment;

	if (room > GETBUF_SEGMENTS_MAX)
		return -ENOBUFS;
	segment = kvmalloc_array(room, sizeof(*segment), GFP_KERNEL_ACCOUNT);
	if (!segment)
		return -ENOMEM;
	memcpy(segment, lend->segment, lend->segments * sizeof(*segment));
	if (lend->segment != lend->first)
		kvfree(lend->segment);
	lend->segment = segment;
	lend->room = room;
	return 0;
}

/*
 * A lend holds pages of packets that recycle as packets hold them: the NIC's pool
 * gets the pages back with the last of these references. With another kind of
 * reference the pool would let go of the pages, and make new ones. Such a reference
 * keeps a page in the pool, which is how the pool learns that the reference is
 * dropped.
 */
static void getbuf_lend_hold(struct getbuf_lend *lend, struct folio *folio)
{
	if (lend->recycles && page_pool_page_is_pp(&folio->page))
		page_pool_ref_page(&folio->page);
	else
		folio_get(folio);
}

static void getbuf_lend_release(struct getbuf_lend *lend, struct folio *folio)
{
	if (lend->recycles && napi_pp_put_page(page_to_netmem(&folio->page)))
		return;
	folio_put(folio);
}

/* Drops the segments and their origin; the context still counts their bytes. */
static void getbuf_lend_drop(struct getbuf_lend *lend)
{
	struct folio *folio, *last = NULL;
	u32 i;

	for (i = 0; i < lend->segments; i++) {
		folio = page_folio(lend->segment[i].bv_page);
		if (folio != last) {
			if (last)
				getbuf_lend_release(lend, last);
			last = folio;
		}
	}
	if (last)
		getbuf_lend_release(lend, last);
	if (lend->pipe)
		getbuf_pipe_free(lend->pipe);
	if (lend->copy)
		put_page(lend->copy);
}

/* Under the lock. */
static void getbuf_uncharge(struct getbuf_lend *lend, unsigned long pages)
{
	struct getbuf_context *context = lend->context;

	context->pages -= pages;
	atomic_long_sub(pages, &context->user->pages);
	if (lend->payer)
		atomic_long_sub(pages, &lend->payer->locked_vm);
	lend->charged -= pages;
}

/* Empties a lend, to fill it anew. */
void getbuf_lend_empty(struct getbuf_lend *lend)
{
	struct getbuf_context *context = lend->context;

	getbuf_lend_drop(lend);
	spin_lock(&context->lock);
	getbuf_uncharge(lend, lend->charged);
	spin_unlock(&context->lock);
	lend->reserved = 0;
	lend->pipe = NULL;
	lend->copy = NULL;
	lend->recycles = false;
	lend->segments = 0;
	lend->bytes = 0;
	lend->copied = 0;
}

static enum getbuf_list getbuf_list_of(const struct getbuf_lend *lend)
{
	switch (lend->kind) {
	case GETBUF_OF_STREAM:
		return GETBUF_STREAMS;
	case GETBUF_OF_FRESH:
		return GETBUF_NEW;
	default:
		return GETBUF_FILES;
	}
}

static void getbuf_lend_end(struct getbuf_lend *lend, bool returned)
{
	struct getbuf_context *context = lend->context;
	struct file *origin = lend->origin;

	getbuf_lend_drop(lend);
	getbuf_user_lends_no_more(context->user, lend, getbuf_list_of(lend));
	spin_lock(&context->lock);
	list_del(&lend->entry);
	getbuf_uncharge(lend, lend->charged);
	context->count.returned += returned;
	spin_unlock(&context->lock);
	getbuf_lend_destroy(lend);
	if (origin)
		fput(origin);
	getbuf_leave(context);
}

/* For a lend that is in no slot. */
void getbuf_lend_free(struct getbuf_lend *lend)
{
	getbuf_lend_end(lend, false);
}

/*
 * Charges so many pages for folios that are added next, or as many as the limits
 * allow. Returns how many; an error if that is fewer than "least".
 */
long getbuf_lend_reserve(struct getbuf_lend *lend, unsigned long least, unsigned long wanted)
{
	struct getbuf_context *context = lend->context;
	unsigned long kept, pages;

	kept = getbuf_count_up(&context->user->pages, least, wanted,
			       READ_ONCE(getbuf_bytes_max) >> PAGE_SHIFT);
	pages = kept;
	if (kept && lend->payer) {
		pages = getbuf_count_up(&lend->payer->locked_vm, least, kept,
					rlimit(RLIMIT_MEMLOCK) >> PAGE_SHIFT);
		if (pages < kept)
			atomic_long_sub(kept - pages, &context->user->pages);
	}
	spin_lock(&context->lock);
	context->pages += pages;
	context->count.over_limit += !kept;
	context->count.over_memlock += kept && !pages;
	spin_unlock(&context->lock);
	lend->charged += pages;
	lend->reserved += pages;
	if (!kept)
		return -ENOBUFS;
	return pages ? pages : -ENOMEM;
}

/* Charges a whole folio, since the lend keeps all of it in memory. */
static int getbuf_lend_charge(struct getbuf_lend *lend, struct folio *folio)
{
	unsigned long pages = folio_nr_pages(folio);
	long ret;

	if (lend->reserved < pages) {
		unsigned long missing = pages - lend->reserved;

		ret = getbuf_lend_reserve(lend, missing, missing);
		if (ret < 0)
			return ret;
	}
	lend->reserved -= pages;
	return 0;
}

static int getbuf_lend_add_piece(struct getbuf_lend *lend, struct folio *folio, struct page *page,
				 u32 offset, u32 length)
{
	struct bio_vec *last = lend->segments ? &lend->segment[lend->segments - 1] : NULL;
	bool held = last && page_folio(last->bv_page) == folio;
	int err;

	if (held && bvec_phys(last) + last->bv_len == page_to_phys(page) + offset &&
	    last->bv_len + length <= GETBUF_SEGMENT_MAX) {
		last->bv_len += length;
		return 0;
	}
	if (lend->segments == lend->room) {
		err = getbuf_lend_grow(lend);
		if (err)
			return err;
	}
	if (!held) {
		err = getbuf_lend_charge(lend, folio);
		if (err)
			return err;
		getbuf_lend_hold(lend, folio);
	}
	bvec_set_page(&lend->segment[lend->segments++], page, length, offset);
	return 0;
}

/*
 * Adds bytes to which the caller holds a reference, all in one folio, and takes a
 * reference for the lend. Returns how many were added: fewer if room or limits are
 * used up; an error if none were added.
 */
int getbuf_lend_add(struct getbuf_lend *lend, struct page *page, size_t offset, size_t length)
{
	struct folio *folio = page_folio(page);
	size_t added = 0;
	int err = 0;

	page += offset >> PAGE_SHIFT;
	offset &= ~PAGE_MASK;
	if (!sendpage_ok(page))
		return -EOPNOTSUPP;
	if (folio_contain_hwpoisoned_page(folio))
		return -EIO;
	length = min(length, (size_t)GETBUF_LEND_MAX - lend->bytes);
	while (added < length) {
		size_t at = offset + added;
		u32 piece = min(length - added, (size_t)GETBUF_SEGMENT_MAX);

		err = getbuf_lend_add_piece(lend, folio, page + (at >> PAGE_SHIFT),
					    at & ~PAGE_MASK, piece);
		if (err)
			break;
		lend->bytes += piece;
		added += piece;
	}
	return added ? added : err;
}

/* Drops all but so many bytes from the beginning on. */
void getbuf_lend_trim(struct getbuf_lend *lend, u32 bytes)
{
	while (lend->bytes > bytes) {
		struct bio_vec *last = &lend->segment[lend->segments - 1];
		struct folio *folio = page_folio(last->bv_page);
		u32 surplus = min(last->bv_len, lend->bytes - bytes);

		lend->bytes -= surplus;
		last->bv_len -= surplus;
		if (last->bv_len)
			break;
		lend->segments--;
		if (!lend->segments || page_folio(last[-1].bv_page) != folio) {
			lend->reserved += folio_nr_pages(folio);
			getbuf_lend_release(lend, folio);
		}
	}
}

/*
 * Puts the lend into a slot. From here on it belongs to the slot and may be gone at
 * once; after an error it still belongs to the caller. A lend of new pages is
 * published by its first slot; getbuf_fresh() puts it into the second.
 */
int getbuf_lend_publish(struct getbuf_lend *lend, struct io_uring_cmd *cmd, unsigned int direction,
			u32 slot, unsigned int issue_flags)
{
	struct getbuf_context *context = lend->context;
	struct getbuf_counters *count = &context->count;
	enum getbuf_list list = getbuf_list_of(lend);
	u32 bytes = lend->bytes, copied = lend->copied;
	enum getbuf_kind kind = lend->kind;
	int err;

	refcount_set(&lend->handles, kind == GETBUF_OF_FRESH ? 2 : 1);
	lend->since = jiffies;
	getbuf_user_lends(context->user, lend, list);
	spin_lock(&context->lock);
	/* What is not lent in the end. */
	if (lend->reserved) {
		getbuf_uncharge(lend, lend->reserved);
		lend->reserved = 0;
	}
	list_add_tail(&lend->entry, &context->out[list]);
	count->lent++;
	count->from[kind]++;
	count->lent_bytes += bytes;
	count->copied_bytes += copied;
	spin_unlock(&context->lock);

	err = getbuf_slot_fill(&lend->handle[0], cmd, direction, slot, issue_flags);
	if (err) {
		spin_lock(&context->lock);
		list_del_init(&lend->entry);
		count->lent--;
		count->from[kind]--;
		count->lent_bytes -= bytes;
		count->copied_bytes -= copied;
		spin_unlock(&context->lock);
	}
	return err;
}

/* A slot was cleared and its last request is done. */
void getbuf_handle_returned(struct getbuf_handle *handle)
{
	struct getbuf_lend *lend = handle->lend;

	if (lend->kind == GETBUF_OF_NULL)
		getbuf_null_returned(lend);
	else if (refcount_dec_and_test(&lend->handles))
		getbuf_lend_end(lend, true);
}

/* Whether a part of a registered buffer is this part of the lend. */
static bool getbuf_lend_is(const struct getbuf_lend *lend, u64 offset, const struct iov_iter *part)
{
	const struct bio_vec *ours = lend->segment, *end = ours + lend->segments;
	const struct bio_vec *theirs = part->bvec;
	size_t left = iov_iter_count(part);

	for (; ours < end && offset >= ours->bv_len; ours++)
		offset -= ours->bv_len;
	if (offset != part->iov_offset)
		return false;
	for (; left; ours++, theirs++, offset = 0) {
		if (ours == end || ours->bv_page != theirs->bv_page ||
		    ours->bv_offset != theirs->bv_offset || ours->bv_len != theirs->bv_len)
			return false;
		left -= min_t(size_t, left, ours->bv_len - offset);
	}
	return true;
}

static bool getbuf_is_among(struct list_head *lends, void *ring, u32 slot, u64 offset,
			    const struct iov_iter *part)
{
	struct getbuf_lend *lend;
	unsigned int i;

	list_for_each_entry(lend, lends, entry) {
		for (i = 0; i < ARRAY_SIZE(lend->handle); i++) {
			struct getbuf_handle *handle = &lend->handle[i];

			if (READ_ONCE(handle->ring) == ring && READ_ONCE(handle->slot) == slot &&
			    getbuf_lend_is(lend, offset, part))
				return true;
		}
	}
	return false;
}

/*
 * Whether this context has lent this part of the slot's buffer. If our lend has
 * been replaced while it is in use, its pages show that.
 */
bool getbuf_has_lent(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
		     u64 offset, const struct iov_iter *part)
{
	void *ring = io_uring_cmd_ctx_handle(cmd);
	unsigned int i;
	bool has;

	/* Its lends are in no list. */
	if (getbuf_null_is(part->bvec->bv_page))
		return true;
	spin_lock(&context->lock);
	for (i = 0, has = false; i < GETBUF_LISTS && !has; i++)
		has = getbuf_is_among(&context->out[i], ring, slot, offset, part);
	spin_unlock(&context->lock);
	return has;
}
