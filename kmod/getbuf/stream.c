// SPDX-License-Identifier: GPL-2.0
/*
 * Lends what a TCP socket has received. It looks at bytes, lends them, and only
 * then takes them from the stream: bytes that cannot be lent stay in it. The lend
 * has references to pages, and none to packets or the socket.
 */
#include <linux/mm.h>
#include <linux/net.h>
#include <net/inet_connection_sock.h>
#include <net/tcp.h>

#include "lend.h"

/* Deeper than the stack nests lists of fragments. */
#define GETBUF_NESTED_MAX	4

/* With a ULP (TLS), a psock (BPF) or a kernel owner the bytes are not as they arrived. */
int getbuf_stream_suits(struct sock *sk)
{
	if (!sk_is_tcp(sk))
		return -EOPNOTSUPP;
	if (inet_csk(sk)->icsk_ulp_ops || rcu_access_pointer(sk->sk_user_data))
		return -EOPNOTSUPP;
	if (sk->sk_state == TCP_LISTEN)
		return -EOPNOTSUPP;
	return 0;
}

/* Whether looking at the socket would find data, its end, or an error. */
bool getbuf_stream_ready(struct sock *sk)
{
	return !skb_queue_empty_lockless(&sk->sk_receive_queue) || READ_ONCE(sk->sk_err) ||
	       (READ_ONCE(sk->sk_shutdown) & RCV_SHUTDOWN) || sock_flag(sk, SOCK_DONE) ||
	       sk->sk_state == TCP_CLOSE;
}

/* Bytes without a page of their own: consecutive in pages of ours. */
static int getbuf_stream_copy(struct getbuf_lend *lend, const void *data, u32 length)
{
	u32 done = 0;
	int ret = 0;

	while (done < length) {
		u32 piece;

		if (!lend->copy || lend->copy_used == PAGE_SIZE) {
			struct page *page;

			if (!lend->reserved) {
				ret = getbuf_lend_reserve(lend, 1, 1);
				if (ret < 0)
					break;
			}
			page = alloc_page(GFP_KERNEL_ACCOUNT);
			ret = -ENOMEM;
			if (!page)
				break;
			if (lend->copy)
				put_page(lend->copy);
			lend->copy = page;
			lend->copy_used = 0;
		}
		piece = min_t(u32, length - done, PAGE_SIZE - lend->copy_used);
		memcpy(page_address(lend->copy) + lend->copy_used, data + done, piece);
		ret = getbuf_lend_add(lend, lend->copy, lend->copy_used, piece);
		if (ret < 0) {
			/* The lend keeps no page that it does not lend. */
			if (!lend->copy_used) {
				put_page(lend->copy);
				lend->copy = NULL;
			}
			break;
		}
		lend->copy_used += ret;
		lend->copied += ret;
		done += ret;
	}
	return done ? done : ret;
}

static int getbuf_stream_linear(struct getbuf_lend *lend, struct sk_buff *skb, u32 offset,
				u32 length)
{
	void *data = skb->data + offset;

	if (skb->head_frag)
		return getbuf_lend_add(lend, virt_to_page(data), offset_in_page(data), length);
	return getbuf_stream_copy(lend, data, length);
}

/*
 * Adds bytes of a packet. Returns how many: fewer if room or limits are used up; an
 * error if none were added.
 */
static int getbuf_stream_add(struct getbuf_lend *lend, struct sk_buff *skb, u32 offset, u32 length,
			     unsigned int nested)
{
	u32 done = 0, end = skb_headlen(skb);
	struct sk_buff *part;
	int ret = 0, i;

	/* Memory of a device, or memory that a user has lent for sending. */
	if (!skb_frags_readable(skb) || skb_zcopy(skb) || nested > GETBUF_NESTED_MAX)
		return -EOPNOTSUPP;
	/* All of a lend is held in one way: a page of the other kind starts the next lend. */
	if (lend->segments && lend->recycles != skb->pp_recycle)
		return -ENOBUFS;
	lend->recycles = skb->pp_recycle;

	for (i = -1; i < skb_shinfo(skb)->nr_frags && done < length; i++) {
		skb_frag_t *frag = i < 0 ? NULL : &skb_shinfo(skb)->frags[i];
		u32 size = frag ? skb_frag_size(frag) : end, piece;

		if (offset >= size) {
			offset -= size;
			continue;
		}
		piece = min(size - offset, length - done);
		if (frag)
			ret = getbuf_lend_add(lend, skb_frag_page(frag),
					      skb_frag_off(frag) + offset, piece);
		else
			ret = getbuf_stream_linear(lend, skb, offset, piece);
		if (ret < 0)
			return done ? done : ret;
		done += ret;
		if (ret < piece)
			return done;
		offset = 0;
	}
	skb_walk_frags(skb, part) {
		u32 piece;

		if (done == length)
			break;
		if (offset >= part->len) {
			offset -= part->len;
			continue;
		}
		piece = min(part->len - offset, length - done);
		ret = getbuf_stream_add(lend, part, offset, piece, nested + 1);
		if (ret < 0)
			return done ? done : ret;
		done += ret;
		if (ret < piece)
			return done;
		offset = 0;
	}
	return done;
}

/* Adds what is in the queue, under the socket lock. */
static int getbuf_stream_look(struct getbuf_lend *lend, struct sock *sk, u32 length)
{
	struct tcp_sock *tcp = tcp_sk(sk);
	u32 sequence = tcp->copied_seq, offset, done = 0;
	struct sk_buff *skb;
	int ret = 0;

	/* Up to the urgent byte, which is not part of the stream. */
	if (unlikely(tcp->urg_data) && !before(tcp->urg_seq, sequence))
		length = min(length, tcp->urg_seq - sequence);
	skb = tcp_recv_skb(sk, sequence, &offset);
	if (!skb)
		return 0;
	skb_queue_walk_from(&sk->sk_receive_queue, skb) {
		u32 piece;

		if (done == length)
			break;
		offset = sequence + done - TCP_SKB_CB(skb)->seq;
		/* Retransmitted, together with what follows. */
		if (offset >= skb->len) {
			if (TCP_SKB_CB(skb)->tcp_flags & TCPHDR_FIN)
				break;
			continue;
		}
		piece = min(skb->len - offset, length - done);
		ret = getbuf_stream_add(lend, skb, offset, piece, 0);
		if (ret < 0)
			break;
		done += ret;
		if (ret < piece)
			break;
	}
	return done ? done : ret;
}

/* What finding nothing means: 0 for the end. */
static int getbuf_stream_nothing(struct sock *sk)
{
	if (sock_flag(sk, SOCK_DONE))
		return 0;
	if (sk->sk_err)
		return sock_error(sk);
	if (sk->sk_shutdown & RCV_SHUTDOWN)
		return 0;
	if (sk->sk_state == TCP_CLOSE)
		return -ENOTCONN;
	/* Urgent data first: waiting for more would not end. */
	if (!skb_queue_empty(&sk->sk_receive_queue))
		return -EBADMSG;
	return -EAGAIN;
}

/*
 * Lends what has arrived; EAGAIN if nothing has. One GET at a time for each bound
 * file; if somebody else reads the socket meanwhile, the lend is taken back.
 */
int getbuf_stream_take(struct getbuf_bound *bound, struct io_uring_cmd *cmd, u32 length, u32 slot,
		       unsigned int issue_flags)
{
	struct sock *sk = bound->sk;
	struct getbuf_lend *lend;
	loff_t position = 0;
	u32 sequence;
	int ret, err;

	if (!getbuf_stream_ready(sk))
		return -EAGAIN;
	ret = rw_verify_area(READ, bound->file, &position, length);
	if (ret < 0)
		return ret;
	lend = getbuf_lend_make(bound->context, GETBUF_OF_STREAM);
	if (IS_ERR(lend))
		return PTR_ERR(lend);

	lock_sock(sk);
	sequence = tcp_sk(sk)->copied_seq;
	ret = getbuf_stream_suits(sk);
	if (!ret)
		ret = getbuf_stream_look(lend, sk, length);
	if (!ret)
		ret = getbuf_stream_nothing(sk);
	release_sock(sk);
	if (ret <= 0)
		goto no_lend;

	err = getbuf_lend_publish(lend, cmd, ITER_SOURCE, slot, issue_flags);
	if (err) {
		ret = err;
		goto no_lend;
	}
	lock_sock(sk);
	/* Compare more than the bytes: a ULP or psock attached meanwhile owns the stream. */
	err = getbuf_stream_suits(sk);
	if (!err && tcp_sk(sk)->copied_seq != sequence)
		err = -EBUSY;
	if (!err)
		tcp_read_done(sk, ret);
	release_sock(sk);
	if (err) {
		getbuf_slot_clear(cmd, slot, issue_flags);
		return err;
	}
	return ret;

no_lend:
	getbuf_lend_free(lend);
	return ret;
}
