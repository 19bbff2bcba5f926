// SPDX-License-Identifier: GPL-2.0
/* Limits and counts. */
#include <linux/cred.h>
#include <linux/uaccess.h>

#include "lend.h"

static u64 getbuf_oldest(struct list_head *lends)
{
	struct getbuf_lend *lend = list_first_entry_or_null(lends, struct getbuf_lend, entry);

	return lend ? getbuf_age(lend->since) : 0;
}

/*
 * What others have out is not this task's business: it is told what this open file
 * has, what the user has if it is the user, and everything if it is root.
 */
static void getbuf_query_others(struct getbuf_context *context, struct getbuf_query *query)
{
	struct getbuf_user *user = context->user;
	bool root = ns_capable_noaudit(&init_user_ns, CAP_SYS_ADMIN);

	query->user_lends = query->lends;
	query->user_bytes = query->bytes;
	query->user_bound = query->bound;
	query->user_oldest_stream = query->oldest_stream;
	query->user_oldest_file = query->oldest_file;
	if (root || uid_eq(current_uid(), user->uid)) {
		query->user_lends = atomic_long_read(&user->lends);
		query->user_bytes = (u64)atomic_long_read(&user->pages) << PAGE_SHIFT;
		query->user_bound = atomic_read(&user->bound);
		query->user_oldest_stream = getbuf_age(READ_ONCE(user->since[GETBUF_STREAMS]));
		query->user_oldest_file = getbuf_age(READ_ONCE(user->since[GETBUF_FILES]));
	}
	query->module_lends = root ? getbuf_lends_out() : query->user_lends;
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
	query.bytes = (u64)context->pages << PAGE_SHIFT;
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
	query.file_age_max = READ_ONCE(getbuf_file_age_max);
	getbuf_query_others(context, &query);
	return copy_to_user(argument, &query, sizeof(query)) ? -EFAULT : 0;
}
