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

	mutex_lock(&getbuf_users_lock);
	list_for_each_entry(user, &getbuf_users, among) {
		if (uid_eq(user->uid, current_uid()))
			goto found;
	}
	user = kzalloc(sizeof(*user), GFP_KERNEL_ACCOUNT);
	if (!user)
		goto out;
	user->uid = current_uid();
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

/* Counts so many more lends, or as many as possible, and returns the number. */
u32 getbuf_user_enter(struct getbuf_user *user, u32 wanted, u32 max)
{
	int lends = atomic_read(&user->lends);

	do {
		if ((u32)lends >= max)
			return 0;
		wanted = min(wanted, max - lends);
	} while (!atomic_try_cmpxchg(&user->lends, &lends, lends + wanted));
	return wanted;
}

/* Counts kept memory, unless it is too much. */
bool getbuf_user_keep(struct getbuf_user *user, u64 bytes, u64 max)
{
	s64 kept = atomic64_read(&user->bytes);

	do {
		if (kept + bytes > max)
			return false;
	} while (!atomic64_try_cmpxchg(&user->bytes, &kept, kept + bytes));
	return true;
}
