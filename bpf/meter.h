/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The maps of the meter's programs: what they count, and for whom.
 */
#ifndef HANDOFF_BPF_METER_H
#define HANDOFF_BPF_METER_H

#include "kernel.h"

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#define PF_KTHREAD 0x00200000

/* The functions at which copies are counted, with their numbers. */
#define PLACES(PLACE)                                                                              \
	PLACE(_copy_to_iter)                                                                       \
	PLACE(_copy_from_iter)                                                                     \
	PLACE(_copy_from_iter_nocache)                                                             \
	PLACE(copy_folio_from_iter_atomic)                                                         \
	PLACE(copy_page_from_iter_atomic)                                                          \
	PLACE(csum_and_copy_from_iter_full)                                                        \
	PLACE(csum_and_copy_to_iter)                                                               \
	PLACE(copy_mc_to_kernel)                                                                   \
	PLACE(copy_mc_to_user)                                                                     \
	PLACE(skb_copy_bits)                                                                       \
	PLACE(skb_store_bits)                                                                      \
	PLACE(skb_copy_and_csum_bits)                                                              \
	PLACE(__pskb_copy_fclone)                                                                  \
	PLACE(pskb_expand_head)                                                                    \
	PLACE(skb_copy_ubufs)                                                                      \
	PLACE(__splice_segment)                                                                    \
	PLACE(__xsk_rcv)                                                                           \
	PLACE(io_zcrx_copy_chunk)                                                                  \
	PLACE(swiotlb_bounce)                                                                      \
	PLACE(bio_copy_data)                                                                       \
	PLACE(fuse_copy_do)

#define AS_NUMBER(function) PLACE_##function,
#define AS_NAME(function) [PLACE_##function] = #function,

enum place {
	PLACES(AS_NUMBER)
	PLACES_OF_COPIES,
	/* Not copies by the kernel for a process: what was moved, and so on. */
	MOVED = PLACES_OF_COPIES,
	/* Nobody knows for whom. */
	UNATTRIBUTED,
	/* By the C library, in user space. */
	IN_LIBC,
	PLACES_IN_ALL,
};

/* Read by user space from the object, so that the numbers are defined once. */
const volatile char place_names[PLACES_OF_COPIES][32] SEC(".rodata.names") = { PLACES(AS_NAME) };

enum whose {
	EVERYBODY,
	/* The processes in `tree`. */
	TREE,
	/* The processes in the group in `cgroup`, and in those below it. */
	CGROUP,
};

/* Written by user space before the object is loaded. */
struct config {
	/* enum whose */
	__u8 whose;
	/* Tell call paths apart. */
	bool paths;
};

const volatile struct config config SEC(".rodata.config") = {};

struct counter {
	__u64 bytes;
	__u64 calls;
};

/* Set in a path's place: by a kernel thread, nobody knows for whom. */
#define NOBODYS 0x80000000

struct path {
	/* enum place, and perhaps NOBODYS. */
	__u32 place;
	/* Key in `stacks`, or negative. */
	__s32 stack;
};

/* Exact, whatever happens to the call paths. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, PLACES_IN_ALL);
	__type(key, __u32);
	__type(value, struct counter);
} totals SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(max_entries, 4096);
	__type(key, struct path);
	__type(value, struct counter);
} paths SEC(".maps");

#define STACK_DEPTH 32

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 16384);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, STACK_DEPTH * sizeof(__u64));
} stacks SEC(".maps");

enum membership {
	MEMBER = 1,
	/* Not counted itself, but the processes that it starts are members. */
	PARENT = 2,
};

/* A process, as user space reads it. */
struct process {
	/* The kernel's id, independent of PID namespaces: the id in `tree`. */
	__u32 id;
	/* The id of its parent, original or new. */
	__u32 parent;
	/* The reader's id: its number in the reader's PID namespace. */
	__u32 number;
};

/* The kernel's id of a process to enum membership. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, __u32);
} tree SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_ARRAY);
	__uint(max_entries, 1);
	__uint(key_size, sizeof(__u32));
	__uint(value_size, sizeof(__u32));
} cgroup SEC(".maps");

/* Atomic, because a program on the same processor may interrupt another. */
static __always_inline void add(struct counter *counter, __u64 bytes)
{
	__sync_fetch_and_add(&counter->bytes, bytes);
	__sync_fetch_and_add(&counter->calls, 1);
}

static __always_inline void add_total(__u32 place, __u64 bytes)
{
	struct counter *total = bpf_map_lookup_elem(&totals, &place);

	if (total)
		add(total, bytes);
}

/* Whether to count for the running process. */
static __always_inline bool counted(void)
{
	__u32 process = bpf_get_current_pid_tgid() >> 32;
	__u32 *membership;

	if (config.whose == EVERYBODY)
		return true;
	if (config.whose == CGROUP)
		return bpf_current_task_under_cgroup(&cgroup, 0) == 1;
	membership = bpf_map_lookup_elem(&tree, &process);
	return membership && *membership == MEMBER;
}

static __always_inline bool in_kernel_thread(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();

	return BPF_CORE_READ(task, flags) & PF_KTHREAD;
}

#define BEGINS(name, with) (bpf_strncmp(name, sizeof(with) - 1, with) == 0)

/*
 * The kernel threads that keep memory in order. They move pages for nobody, so their copies are not
 * even unattributed.
 */
static __always_inline bool keeping_house(void)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	char name[sizeof(task->comm)] = {};

	bpf_probe_read_kernel(name, sizeof(name), task->comm);
	return BEGINS(name, "khugepaged") || BEGINS(name, "kcompactd") || BEGINS(name, "ksmd") ||
	       BEGINS(name, "kswapd");
}

/*
 * A stack has one place in the map, by its hash; if another stack is there, it gets none. Without the
 * first frames, which are our own program and its caller, it hashes to other places.
 */
static __always_inline __s32 stack(void *ctx)
{
	__s32 id = bpf_get_stackid(ctx, &stacks, 0);

	if (id == -EEXIST)
		id = bpf_get_stackid(ctx, &stacks, 1);
	if (id == -EEXIST)
		id = bpf_get_stackid(ctx, &stacks, 2);
	return id;
}

static __always_inline void copied(void *ctx, __u32 place, __u64 bytes)
{
	struct path path = { .place = place };
	struct counter *counter;

	if (!bytes)
		return;
	if (counted()) {
		add_total(place, bytes);
	} else {
		/* Kernel threads and the idle task work for others; nobody knows for whom. */
		if (!in_kernel_thread() || keeping_house())
			return;
		add_total(UNATTRIBUTED, bytes);
		path.place |= NOBODYS;
	}
	if (!config.paths)
		return;
	path.stack = stack(ctx);
	counter = bpf_map_lookup_elem(&paths, &path);
	if (!counter) {
		struct counter none = {};

		bpf_map_update_elem(&paths, &path, &none, BPF_NOEXIST);
		counter = bpf_map_lookup_elem(&paths, &path);
	}
	if (counter)
		add(counter, bytes);
}

static __always_inline void moved(__s64 bytes)
{
	if (bytes > 0 && counted())
		add_total(MOVED, bytes);
}

#endif
