/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Buffers lent into rings.
 *
 * What is shared, and what keeps it whole:
 *
 * - A getbuf_context belongs to an open file of the device and to every lend made
 *   through it. It hangs on a file of its own, "pin", which is dropped when the
 *   open file is closed and no lend is out: that frees the context, and releases
 *   the module outside the module's own text.
 * - A getbuf_lend belongs to one GET until it is registered, and then to its slots.
 *   Each slot has a getbuf_handle, which io_uring gives back when the slot was
 *   cleared and the last request is done: in process context, with the ring's
 *   uring_lock held. The last handle ends the lend.
 * - A getbuf_bound is a file under an id. The table holds a reference, and so does
 *   each command that works with it.
 * - What a lend keeps in memory is charged before it is read, allocated or held, in
 *   pages, and what is not lent in the end is given back when the lend is published.
 * - Lock order: uring_lock, socket lock, context->lock or user->lock. A wait queue's
 *   lock comes before bound->lock, which is the innermost and is taken with
 *   interrupts off.
 *   Never hold a lock of the module or a socket lock while calling io_uring to fill
 *   or clear a slot: in a worker that takes uring_lock.
 */
#ifndef LEND_H
#define LEND_H

#include <linux/bio.h>
#include <linux/blk-mq.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/io_uring/cmd.h>
#include <linux/skbuff.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#include "getbuf.h"

#ifndef CONFIG_64BIT
#error "getbuf needs a 64-bit kernel: it counts in single words"
#endif

#define GETBUF_LEND_MAX		SZ_4M
/*
 * Bytes of one segment. SEND_ZC charges a socket with a whole segment for each part
 * of it that it sends.
 */
#define GETBUF_SEGMENT_MAX	SZ_32K
#define GETBUF_SEGMENTS_MAX	4096
#define GETBUF_SOURCES_MAX	4096

enum getbuf_kind {
	GETBUF_OF_NULL,
	GETBUF_OF_CACHE,
	GETBUF_OF_SPLICE,
	GETBUF_OF_STREAM,
	GETBUF_OF_FRESH,
	GETBUF_KINDS
};

/* See struct getbuf_query. */
struct getbuf_counters {
	u64 lent;
	u64 returned;
	u64 lent_bytes;
	u64 copied_bytes;
	u64 over_limit;
	u64 over_memlock;
	u64 over_age;
	u64 from[GETBUF_KINDS];
};

/* Lends that are out, the oldest first; those of the null page are in no list. */
enum getbuf_list {
	GETBUF_FILES,
	GETBUF_STREAMS,
	GETBUF_AGING,		/* so many lists contain lends that may become too old */
	GETBUF_NEW = GETBUF_AGING,
	GETBUF_LISTS
};

/* A user who opened the device, and what is out through all of that user's open files. */
struct getbuf_user {
	struct list_head among;
	kuid_t uid;
	u32 contexts;
	atomic_t bound;
	atomic_long_t lends;
	atomic_long_t pages;

	spinlock_t lock;
	/* Under the lock: */
	struct list_head out[GETBUF_AGING];
	/* When the first of these was lent, in jiffies; 0: none. Read without the lock. */
	unsigned long since[GETBUF_AGING];
};

struct getbuf_context {
	struct file *pin;
	struct getbuf_user *user;
	struct xarray bound;
	atomic_t bound_count;
	atomic64_t waiting;		/* see struct getbuf_query */
	atomic64_t sent_bytes;
	struct list_head among;		/* the contexts of the module */

	spinlock_t lock;
	/* Under the lock: */
	bool closed;
	u32 lends;
	u32 ready_count;
	unsigned long pages;
	struct getbuf_counters count;
	struct list_head out[GETBUF_LISTS];
	struct getbuf_lend *ready;	/* lends of the null page to use again */

	/* The task that is clearing slots, and what came back to it meanwhile; its own. */
	struct task_struct *clearing;
	struct getbuf_lend *cleared, *cleared_last;
	u32 cleared_count;
};

/*
 * Under the lock, which it drops: counts so many lends less. Their memory must be
 * gone already or belong to the context, since the context, and the module, may go
 * with this.
 */
static inline void getbuf_leave_unlock(struct getbuf_context *context, u32 lends)
{
	bool last;

	context->lends -= lends;
	atomic_long_sub(lends, &context->user->lends);
	last = context->closed && !context->lends;
	spin_unlock(&context->lock);
	if (last)
		fput(context->pin);
}

struct getbuf_lend;

/* The content of a ring's slot. */
struct getbuf_handle {
	struct getbuf_lend *lend;
	void *ring;		/* what the ring is known by; its table may be cloned */
	u32 slot;
#ifndef GETBUF_REGISTERS_SEGMENTS
	struct request request;
	struct bio bio;
#endif
};

struct getbuf_lend {
	struct getbuf_context *context;
	struct list_head entry;		/* among those of the context */
	struct list_head aging;		/* among those of the user */
	struct getbuf_lend *next;	/* among those of the null page that are ready */
	unsigned long since;		/* jiffies */
	enum getbuf_kind kind;
	refcount_t handles;
	u32 bytes;
	u32 copied;
	unsigned long charged;		/* in pages */
	unsigned long reserved;		/* of these: for folios to come */
	struct user_struct *payer;	/* whose locked memory it is, or NULL */
	struct file *origin;		/* or NULL */
	struct pipe_inode_info *pipe;	/* or NULL */
	struct page *copy;		/* what was copied last, or NULL */
	u32 copy_used;
	bool recycles;			/* see getbuf_lend_hold() */
	/* Consecutive segments of one folio hold one reference to it. */
	u32 segments;
	u32 room;
	struct bio_vec *segment;
	struct bio_vec first[4];
	struct getbuf_handle handle[2];
};

/* A file under an id. */
struct getbuf_bound {
	refcount_t refs;
	struct getbuf_context *context;
	struct file *file;
	u32 use;
	struct sock *sk;	/* of a TCP socket that is a source, or NULL */

	/* GETs of a stream are served one at a time, in order. */
	spinlock_t lock;
	struct list_head pending;
	struct io_uring_cmd *serving;	/* NULL: nobody is at work on the stream */
	bool stop;			/* the one being served has been canceled */
	bool gone;			/* unbound */
	struct wait_queue_entry wait;
};

/* main.c */
extern unsigned int getbuf_lends_max;
extern unsigned long getbuf_bytes_max;
extern unsigned int getbuf_stream_age_max;
extern unsigned int getbuf_file_age_max;

/* user.c */
struct getbuf_user *getbuf_user_get(void);
void getbuf_user_put(struct getbuf_user *user);
unsigned long getbuf_count_up(atomic_long_t *count, unsigned long least, unsigned long wanted,
			      unsigned long max);
void getbuf_user_lends(struct getbuf_user *user, struct getbuf_lend *lend, enum getbuf_list list);
void getbuf_user_lends_no_more(struct getbuf_user *user, struct getbuf_lend *lend,
			       enum getbuf_list list);
u64 getbuf_age(unsigned long since);
bool getbuf_user_overdue(struct getbuf_user *user);

/* bind.c */
int getbuf_bind(struct getbuf_context *context, struct getbuf_bind __user *argument);
int getbuf_unbind(struct getbuf_context *context, struct getbuf_unbind __user *argument);
void getbuf_unbind_all(struct getbuf_context *context);
struct getbuf_bound *getbuf_bound_get(struct getbuf_context *context, u32 id, u32 use);
void getbuf_bound_put(struct getbuf_bound *bound);

/* lend.c */
int __init getbuf_lend_init(void);
void getbuf_lend_exit(void);
void getbuf_context_add(struct getbuf_context *context);
void getbuf_context_remove(struct getbuf_context *context);
u64 getbuf_lends_out(void);
int getbuf_enter(struct getbuf_context *context, u32 wanted);
void getbuf_close(struct getbuf_context *context);
struct getbuf_lend *getbuf_lend_alloc(struct getbuf_context *context, enum getbuf_kind kind);
void getbuf_lend_destroy(struct getbuf_lend *lend);
struct getbuf_lend *getbuf_lend_make(struct getbuf_context *context, enum getbuf_kind kind);
void getbuf_lend_free(struct getbuf_lend *lend);
void getbuf_lend_empty(struct getbuf_lend *lend);
long getbuf_lend_reserve(struct getbuf_lend *lend, unsigned long least, unsigned long wanted);
int getbuf_lend_add(struct getbuf_lend *lend, struct page *page, size_t offset, size_t length);
void getbuf_lend_trim(struct getbuf_lend *lend, u32 bytes);
int getbuf_lend_publish(struct getbuf_lend *lend, struct io_uring_cmd *cmd, unsigned int direction,
			u32 slot, unsigned int issue_flags);
void getbuf_handle_returned(struct getbuf_handle *handle);
bool getbuf_has_lent(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
		     u64 offset, const struct iov_iter *part);

/* slot.c */
int getbuf_slot_fill(struct getbuf_handle *handle, struct io_uring_cmd *cmd,
		     unsigned int direction, u32 slot, unsigned int issue_flags);

static inline int getbuf_slot_clear(struct io_uring_cmd *cmd, u32 slot, unsigned int issue_flags)
{
#ifdef GETBUF_REGISTERS_SEGMENTS
	return io_buffer_unregister(cmd, slot, issue_flags);
#else
	return io_buffer_unregister_bvec(cmd, slot, issue_flags);
#endif
}

/* null.c */
int __init getbuf_null_init(void);
void getbuf_null_exit(void);
bool getbuf_null_is(const struct page *page);
int getbuf_null_get(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 length, u32 slot,
		    u32 slots, unsigned int issue_flags);
void getbuf_null_returned(struct getbuf_lend *lend);
int getbuf_null_vacate(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 slot,
		       u32 slots, unsigned int issue_flags);
void getbuf_null_forget(struct getbuf_context *context);

/* cache.c */
bool getbuf_cache_suits(struct file *file);
int getbuf_cache_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length,
		      bool *missing);

/* splice.c */
int getbuf_splice_fill(struct getbuf_lend *lend, struct file *file, loff_t position, u32 length);
void getbuf_pipe_free(struct pipe_inode_info *pipe);

/* fresh.c */
int getbuf_fresh_fill(struct getbuf_lend *lend, u32 length, u32 piece);
int getbuf_fresh(struct getbuf_context *context, struct io_uring_cmd *cmd, u32 length, u32 slot,
		 u32 send_slot, unsigned int issue_flags);

/* stream.c */
int getbuf_stream_suits(struct sock *sk);
bool getbuf_stream_ready(struct sock *sk);
int getbuf_stream_take(struct getbuf_bound *bound, struct io_uring_cmd *cmd, u32 length, u32 slot,
		       unsigned int issue_flags);

/* wait.c */
int getbuf_wait_get(struct getbuf_bound *bound, struct io_uring_cmd *cmd, u32 length, u32 slot,
		    u32 flags, unsigned int issue_flags);
int getbuf_wait_wake(struct wait_queue_entry *wait, unsigned int mode, int sync, void *key);
void getbuf_wait_end(struct getbuf_bound *bound);
void getbuf_wait_exiting(struct io_uring_cmd *cmd, unsigned int issue_flags);
int getbuf_wait_cancel(struct getbuf_context *context, struct io_uring_cmd *cmd, u64 user_data,
		       bool all);

/* send.c */
int getbuf_send(struct getbuf_context *context, struct io_uring_cmd *cmd,
		const struct getbuf_send *request, u32 slot, unsigned int issue_flags);

/* query.c */
int getbuf_query(struct getbuf_context *context, struct getbuf_query __user *argument);

#endif
