/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/*
 * Buffers of the kernel, lent into the table of registered buffers of a ring:
 * ioctls and io_uring commands (IORING_OP_URING_CMD) of /dev/getbuf.
 *
 * A command's structure is in sqe->cmd, its slot in sqe->buf_index, with
 * IORING_URING_CMD_FIXED in sqe->uring_cmd_flags. Reserved fields and flags without
 * a name here must be 0, or the command is refused with EINVAL.
 */
#ifndef GETBUF_H
#define GETBUF_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define GETBUF_MAGIC		0xE7

/* What a file is bound for. */
#define GETBUF_SOURCE		(1U << 0)	/* GET lends from it */
#define GETBUF_TARGET		(1U << 1)	/* SEND sends to it; sockets only */

struct getbuf_bind {
	__s32 fd;
	__u32 use;		/* GETBUF_SOURCE, GETBUF_TARGET */
	__u32 flags;
	__u32 id;		/* out: what commands call the file */
	__u64 reserved[2];
};

struct getbuf_unbind {
	__u32 id;
	__u32 reserved;
};

/*
 * Counts of this open file, unless noted. The limits hold for a user, the one who
 * opened the device. Only this user and root are told what the user has out through
 * other open files, and only root what all users have.
 */
struct getbuf_query {
	__u32 flags;
	__u32 sources_max;
	__u32 lend_bytes_max;	/* of one lend; a longer GET gets less */
	__u32 lends_max;
	__u64 bytes_max;	/* of all lends together, in whole folios */
	__u32 stream_age_max;	/* ms; 0: any */
	__u32 bound;

	__u64 lends;		/* out now */
	__u64 bytes;		/* of these, in whole folios */
	__u64 oldest;		/* ms, among those that keep memory */
	__u64 oldest_stream;	/* ms, among lends of received data */
	__u64 waiting;		/* GETs that wait for data */
	__u64 module_lends;	/* out now, of all users: for root; else user_lends */

	/* Since the file was opened. */
	__u64 lent;		/* lends that entered a ring */
	__u64 returned;		/* lends that came back, whole */
	__u64 lent_bytes;
	__u64 from_null;
	__u64 from_cache;	/* found in the page cache */
	__u64 from_splice;	/* given by the file: into a pipe or new pages */
	__u64 from_stream;
	__u64 fresh;
	__u64 copied_bytes;	/* of lent_bytes, what could not be lent where it was */
	__u64 sent_bytes;
	__u64 over_limit;	/* refused: ENOBUFS */
	__u64 over_memlock;	/* refused: ENOMEM */
	__u64 over_age;		/* refused: ETIME */
	__u64 file_age_max;	/* ms; 0: any */
	__u64 oldest_file;	/* ms, among lends of files */
	__u64 user_lends;	/* out now, of all that the user has open */
	__u64 user_bytes;	/* of these */
	__u64 user_bound;
	__u64 user_oldest_stream;	/* ms, as above: what the limits of age look at */
	__u64 user_oldest_file;
	__u64 reserved[1];
};

#define GETBUF_IOC_BIND		_IOWR(GETBUF_MAGIC, 0x00, struct getbuf_bind)
#define GETBUF_IOC_UNBIND	_IOW(GETBUF_MAGIC, 0x01, struct getbuf_unbind)
#define GETBUF_IOC_QUERY	_IOWR(GETBUF_MAGIC, 0x02, struct getbuf_query)

/* A source without a binding: a page of zeros, over and over. */
#define GETBUF_NULL		0xFFFF

/* Flags of commands. */
#define GETBUF_NOWAIT		(1U << 0)	/* EAGAIN instead of waiting */
#define GETBUF_MORE		(1U << 1)	/* SEND: as MSG_MORE */
#define GETBUF_REPLACE		(1U << 2)	/* GET: clears the slots first */
/* GET: also fills so many following slots, at most 255; not from streams. */
#define GETBUF_FURTHER(slots)	((slots) << 8)

/*
 * Lends from a source into the empty slot, for reading only. Result: bytes lent,
 * which may be fewer than asked for; 0 at the end of the file or stream, with
 * nothing lent.
 *
 * With GETBUF_REPLACE the slot may contain a lent buffer; it is cleared as by PUT,
 * whatever becomes of the rest. With GETBUF_FURTHER each slot gets a lend of this
 * length, with the bytes that follow those of the slot before. The first lend that
 * is shorter, or impossible, is the last one; the result is the sum.
 */
struct getbuf_get {
	__u64 offset;		/* 0 where the source has no positions */
	__u32 length;
	__u16 source;		/* an id, or GETBUF_NULL */
	__u16 flags;		/* GETBUF_NOWAIT, GETBUF_REPLACE, GETBUF_FURTHER */
};

/*
 * Lends new, zeroed pages into two empty slots: requests fill them through the
 * command's slot and send or write them from the other. It is one lend, which ends
 * when both slots are clear. Result: length.
 */
struct getbuf_fresh {
	__u32 length;
	__u16 send_slot;
	__u16 flags;		/* none */
	__u64 reserved;
};

/*
 * Clears the slot. The buffer goes back when the last request that uses it is done.
 * The kernel's own IORING_REGISTER_BUFFERS_UPDATE with an empty iovec does the
 * same.
 */
struct getbuf_put {
	__u64 reserved[2];
};

#define GETBUF_CANCEL_ALL	(1U << 0)	/* every GET of this ring that waits */

/*
 * Ends a GET of the same ring, through the same open file, that waits for data: it
 * completes with ECANCELED.
 * Result: how many; ENOENT if there is none, EALREADY if it is about to complete,
 * or to be canceled.
 */
struct getbuf_cancel {
	__u64 user_data;
	__u32 flags;		/* GETBUF_CANCEL_ALL */
	__u32 reserved;
};

/*
 * Sends from the buffer in the slot as sendfile(2) does: the socket takes
 * references to pages, and nobody tells when it has dropped them. So the user's own
 * memory is refused (EOPNOTSUPP). Result: bytes taken, which may be fewer.
 */
struct getbuf_send {
	__u64 offset;		/* into the buffer */
	__u32 length;
	__u16 target;		/* an id */
	__u16 flags;		/* GETBUF_MORE, GETBUF_NOWAIT */
};

#define GETBUF_CMD_GET		_IOR(GETBUF_MAGIC, 0x10, struct getbuf_get)
#define GETBUF_CMD_FRESH	_IOR(GETBUF_MAGIC, 0x11, struct getbuf_fresh)
#define GETBUF_CMD_PUT		_IOR(GETBUF_MAGIC, 0x12, struct getbuf_put)
#define GETBUF_CMD_CANCEL	_IOR(GETBUF_MAGIC, 0x13, struct getbuf_cancel)
#define GETBUF_CMD_SEND		_IOR(GETBUF_MAGIC, 0x14, struct getbuf_send)

#endif
