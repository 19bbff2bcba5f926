// SPDX-License-Identifier: GPL-2.0
/* Limits and counts. */
#include <linux/uaccess.h>

#include "lend.h"

static u64 getbuf_oldest(struct list_head *lends)
{
	struct getbuf_lend *lend = list_first_entry_or_null(lends, struct getbuf_lend, entry);

	return lend ? jiffies_to_msecs(jiffies - lend->since) : 0;
}

int getbuf_query(struct getbuf_context *context, struct getbuf_query __user *argument)
{
	struct getbuf_counters *count = &context->count;
	struct getbuf_query query = {};
	u32 flags;

	if (get_user(flags, &argument->flags))
		return -EFAULT;
	if (flags)
		return -EINVAL;
	query.sources_max = GETBUF_SOURCES_MAX;
	query.lend_bytes_max = GETBUF_LEND_MAX;
	query.lends_max = READ_ONCE(getbuf_lends_max);
	query.bytes_max = READ_ONCE(getbuf_bytes_max);
	query.stream_age_max = READ_ONCE(getbuf_stream_age_max);
	query.bound = atomic_read(&context->bound_count);

	spin_lock(&context->lock);
	query.lends = context->lends;
	query.bytes = context->bytes;
	query.oldest_stream = getbuf_oldest(&context->streams);
	query.oldest = max(query.oldest_stream, getbuf_oldest(&context->kept));
	spin_unlock(&context->lock);
	query.waiting = atomic64_read(&count->waiting);
	query.module_lends = atomic64_read(&getbuf_lends_out);

	query.lent = atomic64_read(&count->lent);
	query.returned = atomic64_read(&count->returned);
	query.lent_bytes = atomic64_read(&count->lent_bytes);
	query.from_null = atomic64_read(&count->from[GETBUF_OF_NULL]);
	query.from_cache = atomic64_read(&count->from[GETBUF_OF_CACHE]);
	query.from_splice = atomic64_read(&count->from[GETBUF_OF_SPLICE]);
	query.from_stream = atomic64_read(&count->from[GETBUF_OF_STREAM]);
	query.fresh = atomic64_read(&count->from[GETBUF_OF_FRESH]);
	query.copied_bytes = atomic64_read(&count->copied_bytes);
	query.sent_bytes = atomic64_read(&count->sent_bytes);
	query.over_limit = atomic64_read(&count->over_limit);
	query.over_memlock = atomic64_read(&count->over_memlock);
	query.over_age = atomic64_read(&count->over_age);
	return copy_to_user(argument, &query, sizeof(query)) ? -EFAULT : 0;
}
