// SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0
/*
 * Counts the bytes that the kernel's CPU copies, and those that were moved through files and
 * sockets.
 *
 * Contracts:
 * - a byte that is copied once counts once: where one function copies by calling another, only the
 *   inner one is here (copy_page_to_iter calls _copy_to_iter, skb_copy calls skb_copy_bits), and a
 *   function that calls itself for the parts of a packet counts its own part;
 * - only copied bytes count: a program asks after the call where a function returns the number, and
 *   works it out at the entry where it can only watch (see Iterators);
 * - fills are not copies (iov_iter_zero), nor is what is skipped (ITER_DISCARD);
 * - if the running kernel lacks a function, its program is not loaded; user space tells which.
 */
#include "meter.h"

#include <bpf/bpf_tracing.h>

/* A bool parameter or result has eight valid bits: take it as __u8. */

#define PAGE_SIZE 4096
#define S_IFMT 0170000
#define S_IFSOCK 0140000
#define MSG_PEEK 2

static __always_inline bool is_socket(struct file *file)
{
	return (BPF_CORE_READ(file, f_inode, i_mode) & S_IFMT) == S_IFSOCK;
}

/* ---- Iterators ---- */

/*
 * lib/ is built without the tracer's hooks, and the kernel refuses perf's probes there too. That leaves
 * the processor's breakpoints, at the first instruction; there are four.
 */
struct bpf_perf_event_data {
	struct pt_regs regs;
	__u64 sample_period;
	__u64 addr;
};

/* The room in the iterator; nothing if it only skips. */
static __always_inline __u64 in_iter(struct iov_iter *iter, __u64 bytes)
{
	__u64 room = BPF_CORE_READ(iter, count);

	if (BPF_CORE_READ(iter, iter_type) == bpf_core_enum_value(enum iter_type, ITER_DISCARD))
		return 0;
	return bytes < room ? bytes : room;
}

/* These resolve page faults, so only a bad address ends them early. */
#define COPIES_BY_ITER(function)                                                                   \
	SEC("perf_event")                                                                          \
	int at_##function(struct bpf_perf_event_data *ctx)                                         \
	{                                                                                          \
		struct iov_iter *iter = (void *)PT_REGS_PARM3(&ctx->regs);                         \
                                                                                                   \
		copied(ctx, PLACE_##function, in_iter(iter, PT_REGS_PARM2(&ctx->regs)));           \
		return 0;                                                                          \
	}

COPIES_BY_ITER(_copy_to_iter)
COPIES_BY_ITER(_copy_from_iter)
COPIES_BY_ITER(_copy_from_iter_nocache)

/* As many pages as one call copies: the largest folio of the page cache is larger, but nearly all
 * calls are not. */
#define PAGES_LOOKED_AT 512

/*
 * How much of the source memory is present. With page faults off, a copy ends at the first missing
 * page; the caller then faults it in and calls again for the rest, which must not count twice. A read
 * by us meets the same pages.
 */
static __always_inline __u64 until_absent(struct iov_iter *iter, __u64 bytes)
{
	__u64 begin, at;
	__u32 page;
	__u8 byte;

	if (BPF_CORE_READ(iter, iter_type) != bpf_core_enum_value(enum iter_type, ITER_UBUF))
		return bytes;
	begin = (__u64)BPF_CORE_READ(iter, ubuf) + BPF_CORE_READ(iter, iov_offset);
	at = begin;
	for (page = 0; page < PAGES_LOOKED_AT && at < begin + bytes; page++) {
		if (bpf_probe_read_user(&byte, sizeof(byte), (void *)at))
			return at - begin;
		at = (at & ~(PAGE_SIZE - 1ull)) + PAGE_SIZE;
	}
	return bytes;
}

#define COPIES_BY_ITER_ATOMIC(function)                                                            \
	SEC("perf_event")                                                                          \
	int at_##function(struct bpf_perf_event_data *ctx)                                         \
	{                                                                                          \
		struct iov_iter *iter = (void *)PT_REGS_PARM4(&ctx->regs);                         \
		__u64 bytes = in_iter(iter, PT_REGS_PARM3(&ctx->regs));                            \
                                                                                                   \
		copied(ctx, PLACE_##function, until_absent(iter, bytes));                          \
		return 0;                                                                          \
	}

/* The second is the first's name before folios. */
COPIES_BY_ITER_ATOMIC(copy_folio_from_iter_atomic)
COPIES_BY_ITER_ATOMIC(copy_page_from_iter_atomic)

SEC("fexit/csum_and_copy_from_iter_full")
int BPF_PROG(at_csum_and_copy_from_iter_full, void *address, unsigned long bytes, __wsum *sum,
	     struct iov_iter *iter, __u8 all)
{
	if (all)
		copied(ctx, PLACE_csum_and_copy_from_iter_full, bytes);
	return 0;
}

SEC("fexit/csum_and_copy_to_iter")
int BPF_PROG(at_csum_and_copy_to_iter, void *address, unsigned long bytes, void *sum,
	     struct iov_iter *iter, unsigned long result)
{
	copied(ctx, PLACE_csum_and_copy_to_iter, result);
	return 0;
}

/* ---- Pages ---- */

SEC("fexit/copy_mc_to_kernel")
int BPF_PROG(at_copy_mc_to_kernel, void *to, void *from, unsigned int bytes, unsigned long left)
{
	copied(ctx, PLACE_copy_mc_to_kernel, bytes - left);
	return 0;
}

SEC("fexit/copy_mc_to_user")
int BPF_PROG(at_copy_mc_to_user, void *to, void *from, unsigned int bytes, unsigned long left)
{
	copied(ctx, PLACE_copy_mc_to_user, bytes - left);
	return 0;
}

/* ---- Packets ---- */

static __always_inline struct skb_shared_info *shared_info(struct sk_buff *skb)
{
	return (void *)(BPF_CORE_READ(skb, head) + BPF_CORE_READ(skb, end));
}

static __always_inline __u32 bytes_in_head(struct sk_buff *skb)
{
	return BPF_CORE_READ(skb, len) - BPF_CORE_READ(skb, data_len);
}

/* The length of one fragment; before 6.7 the type was that of block requests. */
static __always_inline __u32 fragment_length(struct skb_shared_info *shared, __u32 index)
{
	void *first = (void *)shared + bpf_core_field_offset(struct skb_shared_info, frags);
	__u32 length = 0;

	if (bpf_core_type_exists(struct skb_frag))
		bpf_probe_read_kernel(&length, sizeof(length),
				      first + index * bpf_core_type_size(struct skb_frag) +
					      bpf_core_field_offset(struct skb_frag, len));
	else
		bpf_probe_read_kernel(&length, sizeof(length),
				      first + index * bpf_core_type_size(struct bio_vec) +
					      bpf_core_field_offset(struct bio_vec, bv_len));
	return length;
}

/* The most that a kernel can be built with. */
#define FRAGMENTS_AT_MOST 45

/* Without the packets in its frag_list. */
static __always_inline __u32 bytes_in_frags(struct sk_buff *skb)
{
	struct skb_shared_info *shared = shared_info(skb);
	__u32 bytes = 0, count, i;

	if (!BPF_CORE_READ(shared, frag_list))
		return BPF_CORE_READ(skb, data_len);
	count = BPF_CORE_READ(shared, nr_frags);
	for (i = 0; i < FRAGMENTS_AT_MOST && i < count; i++)
		bytes += fragment_length(shared, i);
	return bytes;
}

/* How much of a range the function handled itself, without the calls of itself. */
static __always_inline __u64 own_part(struct sk_buff *skb, __s64 offset, __s64 bytes)
{
	__s64 end = offset + bytes, own_end;

	if (!BPF_CORE_READ(shared_info(skb), frag_list))
		return bytes;
	own_end = bytes_in_head(skb) + bytes_in_frags(skb);
	if (end > own_end)
		end = own_end;
	return end > offset ? end - offset : 0;
}

SEC("fexit/skb_copy_bits")
int BPF_PROG(at_skb_copy_bits, struct sk_buff *skb, int offset, void *to, int bytes, int error)
{
	if (!error)
		copied(ctx, PLACE_skb_copy_bits, own_part(skb, offset, bytes));
	return 0;
}

SEC("fexit/skb_store_bits")
int BPF_PROG(at_skb_store_bits, struct sk_buff *skb, int offset, void *from, int bytes, int error)
{
	if (!error)
		copied(ctx, PLACE_skb_store_bits, own_part(skb, offset, bytes));
	return 0;
}

SEC("fexit/skb_copy_and_csum_bits")
int BPF_PROG(at_skb_copy_and_csum_bits, struct sk_buff *skb, int offset, void *to, int bytes)
{
	copied(ctx, PLACE_skb_copy_and_csum_bits, own_part(skb, offset, bytes));
	return 0;
}

/* Its callers: pskb_copy, retransmission. Fragments are shared, the head is copied. */
SEC("fexit/__pskb_copy_fclone")
int BPF_PROG(at___pskb_copy_fclone, struct sk_buff *skb, int headroom, __u32 gfp, bool fclone,
	     struct sk_buff *copy)
{
	if (copy)
		copied(ctx, PLACE___pskb_copy_fclone, bytes_in_head(skb));
	return 0;
}

/* Everything from the start of the head to its tail, which has moved by the new headroom. */
SEC("fexit/pskb_expand_head")
int BPF_PROG(at_pskb_expand_head, struct sk_buff *skb, int headroom, int tailroom, __u32 gfp,
	     int error)
{
	if (!error)
		copied(ctx, PLACE_pskb_expand_head, BPF_CORE_READ(skb, tail) - headroom);
	return 0;
}

/* The kernel replaces lent memory by a copy here: the work of skb_orphan_frags and its kin. */
SEC("fexit/skb_copy_ubufs")
int BPF_PROG(at_skb_copy_ubufs, struct sk_buff *skb, __u32 gfp, int error)
{
	if (!error)
		copied(ctx, PLACE_skb_copy_ubufs, bytes_in_frags(skb));
	return 0;
}

/* Splicing out of a socket copies a head that is not made of pages into some. Counted at the entry,
 * because the function counts both values down. */
SEC("fentry/__splice_segment")
int BPF_PROG(at___splice_segment, struct page *page, unsigned int page_offset,
	     unsigned int in_segment, unsigned int *offset, unsigned int *wanted,
	     struct splice_pipe_desc *pipe_pages, __u8 linear)
{
	__u32 skip = 0, bytes = 0;

	if (!linear)
		return 0;
	bpf_probe_read_kernel(&skip, sizeof(skip), offset);
	bpf_probe_read_kernel(&bytes, sizeof(bytes), wanted);
	if (skip >= in_segment)
		return 0;
	if (bytes > in_segment - skip)
		bytes = in_segment - skip;
	copied(ctx, PLACE___splice_segment, bytes);
	return 0;
}

SEC("fexit/__xsk_rcv")
int BPF_PROG(at___xsk_rcv, void *xs, void *xdp, __u32 bytes, int error)
{
	if (!error)
		copied(ctx, PLACE___xsk_rcv, bytes);
	return 0;
}

SEC("fexit/io_zcrx_copy_chunk")
int BPF_PROG(at_io_zcrx_copy_chunk, void *request, void *queue, struct page *page,
	     unsigned int offset, unsigned long bytes, long result)
{
	if (result > 0)
		copied(ctx, PLACE_io_zcrx_copy_chunk, result);
	return 0;
}

/* ---- Devices and block requests ---- */

SEC("fexit/swiotlb_bounce")
int BPF_PROG(at_swiotlb_bounce, void *device, __u64 address, unsigned long bytes)
{
	copied(ctx, PLACE_swiotlb_bounce, bytes);
	return 0;
}

SEC("fexit/bio_copy_data")
int BPF_PROG(at_bio_copy_data, struct bio *to, struct bio *from)
{
	__u32 source = BPF_CORE_READ(from, bi_iter.bi_size);
	__u32 room = BPF_CORE_READ(to, bi_iter.bi_size);

	copied(ctx, PLACE_bio_copy_data, source < room ? source : room);
	return 0;
}

/* Without a value it only skips. */
SEC("fexit/fuse_copy_do")
int BPF_PROG(at_fuse_copy_do, void *state, void **value, unsigned int *size, int result)
{
	if (value && result > 0)
		copied(ctx, PLACE_fuse_copy_do, result);
	return 0;
}

/* ---- In user space ---- */

/* memcpy, memmove and mempcpy of the C library, at the variants for this processor. */
SEC("uprobe")
int in_libc(struct pt_regs *ctx)
{
	__u64 bytes = PT_REGS_PARM3(ctx);

	if (bytes && counted())
		add_total(IN_LIBC, bytes);
	return 0;
}

/* ---- What is moved ---- */

SEC("tp_btf/sock_send_length")
int BPF_PROG(moved_sock_send_length, struct sock *sk, int result, int flags)
{
	moved(result);
	return 0;
}

SEC("tp_btf/sock_recv_length")
int BPF_PROG(moved_sock_recv_length, struct sock *sk, int result, int flags)
{
	if (!(flags & MSG_PEEK))
		moved(result);
	return 0;
}

/* Sockets report by themselves, also when they are read and written as files. */
#define MOVES(function)                                                                            \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(moved_##function, struct file *file, void *buffer, unsigned long count,       \
		     void *position, long result)                                                  \
	{                                                                                          \
		if (result > 0 && !is_socket(file))                                                \
			moved(result);                                                             \
		return 0;                                                                          \
	}

MOVES(vfs_read)
MOVES(vfs_write)

#define MOVES_VECTORS(function)                                                                    \
	SEC("fexit/" #function)                                                                    \
	int BPF_PROG(moved_##function, struct file *file, void *vectors, unsigned long count,      \
		     void *position, int flags, long result)                                       \
	{                                                                                          \
		if (result > 0 && !is_socket(file))                                                \
			moved(result);                                                             \
		return 0;                                                                          \
	}

MOVES_VECTORS(vfs_readv)
MOVES_VECTORS(vfs_writev)

/* splice and sendfile: the file or socket that pages come from, and the file that they go to. If they
 * go to a socket, that is a send. */
SEC("fexit/do_splice_read")
int BPF_PROG(moved_do_splice_read, struct file *in, void *position, struct pipe_inode_info *pipe,
	     unsigned long count, unsigned int flags, long result)
{
	moved(result);
	return 0;
}

SEC("fexit/iter_file_splice_write")
int BPF_PROG(moved_iter_file_splice_write, struct pipe_inode_info *pipe, struct file *out,
	     void *position, unsigned long count, unsigned int flags, long result)
{
	moved(result);
	return 0;
}

SEC("fexit/tcp_zerocopy_receive")
int BPF_PROG(moved_tcp_zerocopy_receive, struct sock *sk, struct tcp_zerocopy_receive *receive,
	     void *stamps, int error)
{
	if (!error)
		moved(BPF_CORE_READ(receive, length));
	return 0;
}

SEC("fexit/io_zcrx_recv_skb")
int BPF_PROG(moved_io_zcrx_recv_skb, void *descriptor, struct sk_buff *skb, unsigned int offset,
	     unsigned long count, int result)
{
	moved(result);
	return 0;
}

/* The numbers are part of the system-call interface. */
static __always_inline bool reads_or_writes_file(__u8 opcode)
{
	switch (opcode) {
	case 1: /* READV */
	case 2: /* WRITEV */
	case 4: /* READ_FIXED */
	case 5: /* WRITE_FIXED */
	case 22: /* READ */
	case 23: /* WRITE */
	case 49: /* READ_MULTISHOT */
	case 60: /* READV_FIXED */
	case 61: /* WRITEV_FIXED */
		return true;
	default:
		return false;
	}
}

/* These three arguments exist since 6.13; user space leaves the program out on other kernels. */
SEC("tp_btf/io_uring_complete")
int BPF_PROG(moved_io_uring_complete, void *ring, struct io_kiocb *request,
	     struct io_uring_cqe *completion)
{
	__s32 result = BPF_CORE_READ(completion, res);

	if (result > 0 && request && reads_or_writes_file(BPF_CORE_READ(request, opcode)) &&
	    !is_socket(BPF_CORE_READ(request, file)))
		moved(result);
	return 0;
}

/* ---- The process tree ---- */

/* By the process ids of the reader's PID namespace. */
static __always_inline __u32 number_for_reader(struct task_struct *task)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	struct pid *pid = BPF_CORE_READ(task, thread_pid);
	__u32 level = BPF_CORE_READ(reader, thread_pid, level), number = 0;

	bpf_probe_read_kernel(&number, sizeof(number),
			      (void *)pid + bpf_core_field_offset(struct pid, numbers) +
				      level * bpf_core_type_size(struct upid) +
				      bpf_core_field_offset(struct upid, nr));
	return number;
}

/* For user space, which knows processes by the ids of its own PID namespace. The iterator shows it the
 * processes in that namespace, and in the namespaces below. */
SEC("iter/task")
int list_processes(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct process process = {};

	if (!task)
		return 0;
	process.id = BPF_CORE_READ(task, tgid);
	/* Another of its threads. */
	if (BPF_CORE_READ(task, pid) != process.id)
		return 0;
	process.parent = BPF_CORE_READ(task, real_parent, tgid);
	process.number = number_for_reader(task);
	bpf_seq_write(ctx->meta->seq, &process, sizeof(process));
	return 0;
}

SEC("tp_btf/sched_process_fork")
int BPF_PROG(follow_fork, struct task_struct *parent, struct task_struct *child)
{
	__u32 from = BPF_CORE_READ(parent, tgid), to = BPF_CORE_READ(child, tgid);
	__u32 member = MEMBER;

	/* The same process: a thread. */
	if (from != to && bpf_map_lookup_elem(&tree, &from))
		bpf_map_update_elem(&tree, &to, &member, BPF_ANY);
	return 0;
}

SEC("tp_btf/sched_process_exit")
int BPF_PROG(follow_exit, struct task_struct *task)
{
	__u32 process = BPF_CORE_READ(task, tgid);

	/* Its last thread: the id may be reused. */
	if (BPF_CORE_READ(task, signal, live.counter) == 0)
		bpf_map_delete_elem(&tree, &process);
	return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
