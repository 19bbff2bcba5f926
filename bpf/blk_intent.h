/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The write-intent bitmap of a mirror in memory: which chunks writes may go to. Compiled for BPF and natively.
 * All queues and the clerk, the thread of the server that writes the bitmap to the legs, share it.
 *
 * Contracts:
 * - a write goes to a chunk only between blk_intent_begin and blk_intent_end or blk_intent_keep, and
 *   blk_intent_begin succeeds only while the chunk's bit is durable on every leg in use;
 * - the counts only rise, so the clerk sees a write that begins and ends between two looks.
 */
#ifndef HANDOFF_BPF_BLK_INTENT_H
#define HANDOFF_BPF_BLK_INTENT_H

#include "blk.h"

/* In `begun`: the bit is durable on every leg in use. */
#define BLK_INTENT_SET (1ULL << 63)
/* In `begun`: the legs may differ there, until a start makes them equal. */
#define BLK_INTENT_KEPT (1ULL << 62)
/* The most chunks of a request: 32 times the bytes of a chunk that begin in its midst. */
#define BLK_INTENT_CHUNKS 33

struct blk_chunk {
	/* Writes that began, with the flags. */
	__u64 begun;
	/* Writes that ended. */
	__u64 ended;
};

/* All legs in use have what was written. */
BLK_STATIC int blk_intent_end(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	__u32 i;

	for (i = 0; i < BLK_INTENT_CHUNKS; i++) {
		if (i >= count)
			break;
		__sync_fetch_and_add(&chunks[(first + i) & mask].ended, 1);
	}
	return 0;
}

/*
 * Begins a write to `count` chunks from `first` on. False if their bits are not all set: then the clerk has to
 * set them first.
 */
BLK_STATIC bool blk_intent_begin(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	__u64 all = BLK_INTENT_SET;
	__u32 i;

	for (i = 0; i < BLK_INTENT_CHUNKS; i++) {
		if (i >= count)
			break;
		all &= __sync_fetch_and_add(&chunks[(first + i) & mask].begun, 1);
	}
	if (all)
		return true;
	blk_intent_end(chunks, mask, first, count);
	return false;
}

/* A write ended with an error for the caller, so the legs may differ. */
BLK_STATIC int blk_intent_keep(struct blk_chunk *chunks, __u32 mask, __u64 first, __u32 count)
{
	__u32 i;

	for (i = 0; i < BLK_INTENT_CHUNKS; i++) {
		if (i >= count)
			break;
		__sync_fetch_and_or(&chunks[(first + i) & mask].begun, BLK_INTENT_KEPT);
	}
	return blk_intent_end(chunks, mask, first, count);
}

#endif
