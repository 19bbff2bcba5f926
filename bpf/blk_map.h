/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The built-in mappings, compiled for BPF and natively, so that all engines use the same.
 *
 * Every answer is checked before use: a mapping cannot reach beyond its files.
 */
#ifndef HANDOFF_BPF_BLK_MAP_H
#define HANDOFF_BPF_BLK_MAP_H

#include "blk.h"

enum blk_kind {
	/* Only reads go anywhere: to a file that has zeroes without end. */
	BLK_NULL,
	BLK_LINEAR,
	BLK_STRIPE,
	BLK_MIRROR,
	BLK_POLICY,
};

/*
 * One for each device, shared by its queues and by successive servers. Written before the device
 * starts, except `failed` and `recorded`.
 */
struct blk_map {
	__u32 kind;
	__u32 files;
	/* How many places each write goes to. */
	__u32 copies;
	/* Log2 of a stripe's bytes; for a mirror, of those of the region that is read from one leg. */
	__u32 chunk_shift;
	__u32 block_size;
	/* Mirror: legs that are out, for good, by bit. One word, so that queues that take legs out at the
	 * same time see each other's. */
	__u32 failed;
	/* Usable bytes of each file. */
	__u64 size[BLK_FILES];
	/* Linear: where on the device each file ends. */
	__u64 end[BLK_FILES];
	/* Mirror: whether all legs are files of one file system, which is full for all of them. */
	__u32 one_store;
	/* Disks that give ranges back by the block layer's command, by bit. */
	__u32 by_command;
	/* Mirror with a record: legs that are out, as the records of all others say durably, by bit. The
	 * clerk writes it. */
	__u32 recorded;
	__u32 unused;
};

#ifdef __bpf__
/* The user's policy; see blk_policy.h. */
int blk_policy(struct blk_ask *ask, struct blk_extent *extent);
#else
static inline int blk_policy(struct blk_ask *ask, struct blk_extent *extent)
{
	(void)ask;
	(void)extent;
	return -1;
}
#endif

BLK_INLINE __u32 blk_index(__u32 file)
{
	return file & (BLK_FILES - 1);
}

static inline int blk_locate_linear(const struct blk_map *map, const struct blk_ask *ask,
				    struct blk_extent *extent)
{
	__u64 start = 0;
	__u32 file;

	for (file = 0; file < BLK_FILES; file++) {
		__u64 end = map->end[file];

		if (file >= map->files)
			return -1;
		if (ask->position < end) {
			extent->file = file;
			extent->offset = ask->position - start;
			extent->length = ask->length;
			if (extent->length > end - ask->position)
				extent->length = end - ask->position;
			return 0;
		}
		start = end;
	}
	return -1;
}

static inline int blk_locate_stripe(const struct blk_map *map, const struct blk_ask *ask,
				    struct blk_extent *extent)
{
	__u32 shift = map->chunk_shift & 63;
	__u64 chunk = ask->position >> shift;
	__u64 within = ask->position - (chunk << shift);
	__u64 left = (1ULL << shift) - within;

	if (!map->files)
		return -1;
	extent->file = chunk % map->files;
	extent->offset = ((chunk / map->files) << shift) + within;
	extent->length = ask->length < left ? ask->length : left;
	return 0;
}

/* Whether a mirror's leg is out. */
static inline bool blk_is_out(const struct blk_map *map, __u32 leg)
{
	return map->failed >> blk_index(leg) & 1;
}

/* Whether a mirror's leg is out that the records of the others count as in. */
static inline bool blk_is_unrecorded(const struct blk_map *map)
{
	return BLK_LOAD(&map->failed) & ~BLK_LOAD(&map->recorded);
}

/* The first healthy leg from this one on, with wrap-around; BLK_FILES if there is none. */
BLK_FUNCTION int blk_healthy_leg(const struct blk_map *map BLK_ARGUMENT, __u32 leg)
{
	__u32 i;

	for (i = 0; i < BLK_FILES; i++) {
		__u32 candidate;

		if (i >= map->files)
			break;
		candidate = blk_index((leg + i) % map->files);
		if (!blk_is_out(map, candidate))
			return candidate;
	}
	return BLK_FILES;
}

static inline int blk_locate_mirror(const struct blk_map *map, const struct blk_ask *ask,
				    struct blk_extent *extent)
{
	__u32 shift = map->chunk_shift & 63, region;
	__u64 left;

	if (!map->files)
		return -1;
	extent->file = ask->copy;
	extent->offset = ask->position;
	extent->length = ask->length;
	if (ask->op != BLK_READ)
		return 0;
	/* The place of a byte alone says which leg it is read from, however long the request is. */
	region = (ask->position >> shift) % map->files;
	extent->file = (__u32)blk_healthy_leg(map, region);
	left = (1ULL << shift) - (ask->position & ((1ULL << shift) - 1));
	/* The last leg has all regions. */
	if (ask->length > left && (__u32)blk_healthy_leg(map, extent->file + 1) != extent->file)
		extent->length = left;
	return 0;
}

/* 0, or negative if the device has no such bytes. */
BLK_FUNCTION int blk_locate(const struct blk_map *map BLK_ARGUMENT,
			    const struct blk_ask *ask BLK_ARGUMENT,
			    struct blk_extent *extent BLK_ARGUMENT)
{
	struct blk_ask asked;
	__u64 end;
	int result;

	switch (map->kind) {
	case BLK_NULL:
		extent->file = 0;
		extent->offset = 0;
		extent->length = ask->length;
		result = 0;
		break;
	case BLK_LINEAR:
		result = blk_locate_linear(map, ask, extent);
		break;
	case BLK_STRIPE:
		result = blk_locate_stripe(map, ask, extent);
		break;
	case BLK_MIRROR:
		result = blk_locate_mirror(map, ask, extent);
		break;
	case BLK_POLICY:
		/* The policy may write there; its answer is checked against what was asked. */
		asked = *ask;
		result = blk_policy(&asked, extent);
		break;
	default:
		result = -1;
	}
	if (result < 0)
		return -1;
	end = extent->offset + extent->length;
	if (extent->file >= map->files || extent->file >= BLK_FILES || !extent->length ||
	    extent->length > ask->length || end < extent->offset ||
	    end > map->size[blk_index(extent->file)] ||
	    ((extent->offset | extent->length) & (map->block_size - 1)))
		return -1;
	return 0;
}

#endif
