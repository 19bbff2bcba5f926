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
	query.oldest_stream = getbuf_oldest(&context->out[GETBUF_STREAMS]);
	query.oldest_file = getbuf_oldest(&context->out[GETBUF_FILES]);
	query.oldest = max3(query.oldest_stream, query.oldest_file,
			    getbuf_oldest(&context->out[GETBUF_NEW]));
	query.lent = count->lent;
	query.returned = count->returned;
	query.lent_bytes = count->lent_bytes;
	query.from_null = count->from[GETBUF_OF_NULL];
	query.from_cache = count->from[GETBUF_OF_CACHE];
	query.from_splice = count->from[GETBUF_OF_SPLICE];
	query.from_stream = count->from[GETBUF_OF_STREAM];
	query.fresh = count->from[GETBUF_OF_FRESH];
	query.copied_bytes = count->copied_bytes;
	query.over_limit = count->over_limit;
	query.over_memlock = count->over_memlock;
	query.over_age = count->over_age;
	spin_unlock(&context->lock);
	query.waiting = atomic64_read(&context->waiting);
	query.sent_bytes = atomic64_read(&context->sent_bytes);
	query.module_lends = getbuf_lends_out();
	query.file_age_max = READ_ONCE(getbuf_file_age_max);
	query.user_lends = atomic_read(&context->user->lends);
	query.user_bytes = atomic64_read(&context->user->bytes);
	query.user_bound = atomic_read(&context->user->bound);
	return copy_to_user(argument, &query, sizeof(query)) ? -EFAULT : 0;
}
