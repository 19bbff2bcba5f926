// SPDX-License-Identifier: GPL-2.0
/*
 * Users: a user who opened the device many times may have out as much as one who
 * opened it once. The user is the one who opened it, whoever it is passed to.
 */
#include <linux/cred.h>
#include <linux/slab.h>

#include "lend.h"

static DEFINE_MUTEX(getbuf_users_lock);
static LIST_HEAD(getbuf_users);

/* This task's user, with a reference; NULL without memory. */
struct getbuf_user *getbuf_user_get(void)
{
	struct getbuf_user *user;
	unsigned int i;

	mutex_lock(&getbuf_users_lock);
	list_for_each_entry(user, &getbuf_users, among) {
		if (uid_eq(user->uid, current_uid()))
			goto found;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		goto out;
	user->uid = current_uid();
	spin_lock_init(&user->lock);
	for (i = 0; i < GETBUF_AGING; i++)
		INIT_LIST_HEAD(&user->out[i]);
	list_add(&user->among, &getbuf_users);
found:
	user->contexts++;
out:
	mutex_unlock(&getbuf_users_lock);
	return user;
}

void getbuf_user_put(struct getbuf_user *user)
{
	mutex_lock(&getbuf_users_lock);
	if (!--user->contexts) {
		list_del(&user->among);
		kfree(user);
	}
	mutex_unlock(&getbuf_users_lock);
}

/*
 * Adds so many to a count, or as many as its limit allows; none if that is fewer
 * than "least". Returns how many.
 */
unsigned long getbuf_count_up(atomic_long_t *count, unsigned long least, unsigned long wanted,
			      unsigned long max)
{
	unsigned long some;
	long now = atomic_long_read(count);

	do {
		some = min(wanted, max - min(max, (unsigned long)now));
		if (some < least)
			return 0;
	} while (!atomic_long_try_cmpxchg(count, &now, now + some));
	return some;
}

/* Under the lock. */
static void getbuf_user_note(struct getbuf_user *user, enum getbuf_list list)
{
	struct getbuf_lend *oldest =
		list_first_entry_or_null(&user->out[list], struct getbuf_lend, aging);

	WRITE_ONCE(user->since[list], oldest ? oldest->since : 0);
}

/* Its age counts from here on. */
void getbuf_user_lends(struct getbuf_user *user, struct getbuf_lend *lend, enum getbuf_list list)
{
	if (list >= GETBUF_AGING)
		return;
	spin_lock(&user->lock);
	list_add_tail(&lend->aging, &user->out[list]);
	getbuf_user_note(user, list);
	spin_unlock(&user->lock);
}

void getbuf_user_lends_no_more(struct getbuf_user *user, struct getbuf_lend *lend,
			       enum getbuf_list list)
{
	/* New pages, or never published. */
	if (list_empty(&lend->aging))
		return;
	spin_lock(&user->lock);
	list_del_init(&lend->aging);
	getbuf_user_note(user, list);
	spin_unlock(&user->lock);
}

/* In ms. */
u64 getbuf_age(unsigned long since)
{
	return since ? jiffies_to_msecs(jiffies - since) : 0;
}

static bool getbuf_older(unsigned long since, unsigned int limit)
{
	return limit && since && time_after(jiffies, since + msecs_to_jiffies(limit));
}

/* Whether a NIC, a sender or a file has missed something for too long. */
bool getbuf_user_overdue(struct getbuf_user *user)
{
	return getbuf_older(READ_ONCE(user->since[GETBUF_STREAMS]),
			    READ_ONCE(getbuf_stream_age_max)) ||
	       getbuf_older(READ_ONCE(user->since[GETBUF_FILES]), READ_ONCE(getbuf_file_age_max));
}
