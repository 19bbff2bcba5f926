/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The kernel's types, as far as our BPF programs use them.
 *
 * Every structure is a fragment: loading the object finds its members in the running kernel's type
 * information (BTF). So neither order nor offsets matter here, and one build needs no vmlinux.h of any
 * kernel. The registers are those of x86-64.
 */
#ifndef HANDOFF_BPF_KERNEL_H
#define HANDOFF_BPF_KERNEL_H

/* Keeps bpf_tracing.h to the kernel's names of registers, which are those below. */
#define __VMLINUX_H__

typedef unsigned char __u8;
typedef signed short __s16;
typedef unsigned short __u16;
typedef signed int __s32;
typedef unsigned int __u32;
typedef signed long long __s64;
typedef unsigned long long __u64;
typedef __u16 __be16;
typedef __u32 __be32;
typedef __u32 __wsum;
typedef _Bool bool;

#define NULL ((void *)0)
#define EEXIST 17
#define true 1
#define false 0

enum bpf_map_type {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_HASH = 5,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_STACK_TRACE = 7,
	BPF_MAP_TYPE_CGROUP_ARRAY = 8,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1,
};

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct pt_regs {
	unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di;
	unsigned long orig_ax, ip, cs, flags, sp, ss;
};

typedef struct {
	int counter;
} atomic_t;

struct signal_struct {
	atomic_t live;
};

/* A process's id in one PID namespace. */
struct upid {
	int nr;
};

/* Its ids in its own namespace, which is `level` below the first, and in all above it. */
struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct task_struct {
	unsigned int flags;
	int pid;
	int tgid;
	char comm[16];
	struct task_struct *real_parent;
	struct pid *thread_pid;
	struct signal_struct *signal;
};

struct seq_file;

struct bpf_iter_meta {
	struct seq_file *seq;
};

/* The argument of an iterator over tasks: one of them, or none at the end. */
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

enum iter_type {
	ITER_UBUF = 0,
	ITER_DISCARD = 6,
};

struct iov_iter {
	__u8 iter_type;
	unsigned long iov_offset;
	void *ubuf;
	unsigned long count;
};

struct inode {
	unsigned short i_mode;
};

struct file {
	struct inode *f_inode;
};

struct skb_frag {
	unsigned int len;
};

struct bio_vec {
	unsigned int bv_len;
};

struct sk_buff;

struct skb_shared_info {
	__u8 nr_frags;
	struct sk_buff *frag_list;
	struct skb_frag frags[1];
};

struct sk_buff {
	unsigned int len;
	unsigned int data_len;
	unsigned int tail;
	unsigned int end;
	unsigned char *head;
};

struct bvec_iter {
	unsigned int bi_size;
};

struct bio {
	struct bvec_iter bi_iter;
};

struct io_kiocb {
	struct file *file;
	__u8 opcode;
};

struct io_uring_cqe {
	__s32 res;
};

struct io_uring {
	__u32 head;
	__u32 tail;
};

struct io_rings {
	struct io_uring sq;
	struct io_uring cq;
	struct io_uring_cqe cqes[];
};

struct iou_loop_params {
	__u32 cq_wait_idx;
};

struct tcp_zerocopy_receive {
	__u32 length;
};

#pragma clang attribute pop

/* A ring in its loop; the kernel's has no members either, and wants it complete. */
struct iou_ctx {
};

/* Only passed on. */
struct sock;
struct page;
struct folio;
struct pipe_inode_info;
struct splice_pipe_desc;

/* The state of a bounded loop (bpf_for); the kernel knows the name and the size. */
struct bpf_iter_num {
	__u64 opaque[1];
} __attribute__((aligned(8)));

/* Not a fragment: user space makes one, member for member by name. */
struct io_uring_bpf_ops {
	int (*loop_step)(struct iou_ctx *ring, struct iou_loop_params *params);
	__u32 ring_fd;
};

#endif
