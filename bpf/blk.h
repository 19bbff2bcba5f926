/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Where the bytes of a block device lie: the part of the block engines that a target's author sees.
 *
 * A request covers a range of the device. It is taken apart into extents, each of which lies in one
 * piece in one file. A mapping answers, for the range that is left, where its first bytes are.
 */
#ifndef HANDOFF_BPF_BLK_H
#define HANDOFF_BPF_BLK_H

#ifdef __bpf__
#include "kernel.h"
#else
#include <linux/types.h>
#include <stdbool.h>
#endif

/*
 * A function that the verifier looks at once, by itself, instead of at every call: its arguments are
 * five at most, and where they point to is all that it may touch.
 */
#ifdef __bpf__
#define BLK_FUNCTION __attribute__((noinline))
#define BLK_ARGUMENT __attribute__((btf_decl_tag("arg:nonnull")))
#else
#define BLK_FUNCTION static inline
#define BLK_ARGUMENT
#endif
#define BLK_INLINE static inline __attribute__((always_inline))

/* The most files that a device is made of. */
#define BLK_FILES 16

/* The numbers are the driver's. */
enum blk_op {
	BLK_READ = 0,
	BLK_WRITE = 1,
	BLK_FLUSH = 2,
	BLK_DISCARD = 3,
	/* Never announced. */
	BLK_WRITE_SAME = 4,
	BLK_WRITE_ZEROES = 5,
};

/* What a mapping is asked: where are the first of these bytes? */
struct blk_ask {
	/* On the device, in bytes. Position and length are multiples of the block size. */
	__u64 position;
	__u32 length;
	/* enum blk_op, except for a flush, which goes to every file. */
	__u32 op;
	/* What is written goes to several places where a device keeps copies: which, from 0. */
	__u32 copy;
	/* How many files there are. */
	__u32 files;
};

/* Its answer. */
struct blk_extent {
	/* In the file, in bytes; a multiple of the block size. */
	__u64 offset;
	/* As many as lie there in one piece: at least a block, at most what was asked for. */
	__u32 length;
	/* From 0. */
	__u32 file;
};

#endif
