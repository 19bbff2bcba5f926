/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * Where the bytes of a block device are: the part of the block engines for authors of mappings.
 *
 * A request covers a range of the device. It is cut into extents; each is one piece of one file. For
 * the rest of the range, a mapping says where its first bytes are.
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
 * A function that the verifier checks once, by itself, and not at every call: it has at most five
 * arguments, and touches only what they point to.
 */
#ifdef __bpf__
#define BLK_FUNCTION __attribute__((noinline))
#define BLK_ARGUMENT __attribute__((btf_decl_tag("arg:nonnull")))
#else
#define BLK_FUNCTION static inline
#define BLK_ARGUMENT
#endif
#define BLK_INLINE static inline __attribute__((always_inline))
/* A function that the verifier checks at every call, with all that it knows of the arguments there. */
#ifdef __bpf__
#define BLK_STATIC static __attribute__((noinline))
#else
#define BLK_STATIC static inline
#endif

/* What another thread writes, and then all that it wrote before. */
#ifdef __bpf__
#define BLK_LOAD(place) (*(const volatile typeof(*(place)) *)(place))
#else
#define BLK_LOAD(place) __atomic_load_n(place, __ATOMIC_ACQUIRE)
#endif

/* The most files of a device. */
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

/* The question to a mapping: where are the first of these bytes? */
struct blk_ask {
	/* On the device, in bytes. Position and length are multiples of the block size. */
	__u64 position;
	__u32 length;
	/* enum blk_op, except for a flush, which goes to every file. */
	__u32 op;
	/* If a device keeps copies, a write goes to several places: which one, from 0. */
	__u32 copy;
	/* The number of files. */
	__u32 files;
};

/* The mapping's answer. */
struct blk_extent {
	/* In the file, in bytes; a multiple of the block size. */
	__u64 offset;
	/* How many bytes are there in one piece: at least a block, at most what was asked for. */
	__u32 length;
	/* The file's number, from 0. */
	__u32 file;
};

#endif
