/* SPDX-License-Identifier: GPL-2.0 OR MIT OR Apache-2.0 */
/*
 * The life of a request from its arrival to its result: its pieces of I/O, and what becomes of their
 * results. Compiled for BPF and natively; the engines differ only in how requests, completions and
 * submissions travel.
 *
 * Contracts:
 * - at most BLK_PIECES pieces of a request are under way; when one ends, the next takes its slot;
 * - a piece that ends short goes on with the rest; one that makes no progress is an I/O error;
 * - the first error decides the request's result, and starts no further pieces;
 * - when a mirror's leg fails, it is taken out before any result is given that the leg does not have.
 *   The last leg is never taken out: its errors are the caller's. An error that says nothing about the
 *   leg is the caller's too, and takes no leg out;
 * - a leg without room is taken out if another leg has the request. If none has, or if all legs get
 *   their room from one file system, the error is the caller's;
 * - on a mirror with a record, a request that changes something has no pieces before the bits of its chunks are
 *   durable, and what a leg lacks is answered only when the others' records say durably that it is out. The
 *   request waits for the clerk meanwhile, which is told by a message, and answers in the request.
 */
#ifndef HANDOFF_BPF_BLK_REQUEST_H
#define HANDOFF_BPF_BLK_REQUEST_H

#include "blk_intent.h"
#include "blk_map.h"

#define BLK_PIECES 4
/* How often a piece is tried again if the kernel puts it off. */
#define BLK_TRIES 64

#define BLK_EINTR 4
#define BLK_EIO 5
#define BLK_E2BIG 7
#define BLK_EAGAIN 11
#define BLK_ENOMEM 12
#define BLK_EFAULT 14
#define BLK_ENODEV 19
#define BLK_EINVAL 22
#define BLK_ENOSPC 28
#define BLK_EOPNOTSUPP 95
#define BLK_EDQUOT 122
#define BLK_ECANCELED 125

/* The driver's description of a request (struct ublksrv_io_desc). */
struct blk_descriptor {
	__u32 op_flags;
	__u32 sectors;
	__u64 start_sector;
	__u64 address;
};

#define BLK_OP_MASK 0xff
#define BLK_FLAG_FUA (1U << 13)
#define BLK_FLAG_NOUNMAP (1U << 15)
/* Ours: the first result has been counted. */
#define BLK_FLAG_COUNTED (1U << 31)
/* Ours: its chunks count it as under way. */
#define BLK_FLAG_BEGUN (1U << 30)

/* A submission entry (struct io_uring_sqe), as far as it is used. */
struct blk_entry {
	__u8 opcode;
	__u8 flags;
	__u16 ioprio;
	__s32 fd;
	__u64 off;
	__u64 addr;
	__u32 len;
	__u32 op_flags;
	__u64 user_data;
	__u16 buf_index;
	__u16 personality;
	__u32 file_index;
	__u64 command[2];
};

#define BLK_OPCODE_FSYNC 3
#define BLK_OPCODE_READ_FIXED 4
#define BLK_OPCODE_WRITE_FIXED 5
#define BLK_OPCODE_POLL 6
#define BLK_OPCODE_FALLOCATE 17
#define BLK_OPCODE_READ 22
#define BLK_OPCODE_WRITE 23
#define BLK_OPCODE_MESSAGE 40
#define BLK_OPCODE_COMMAND 46
#define BLK_ENTRY_FIXED_FILE 1
#define BLK_ENTRY_ASYNC 0x10
#define BLK_ENTRY_SILENT 0x40
#define BLK_POLL_MANY 1
#define BLK_POLL_IN 1
/* Of a completion: more will follow. */
#define BLK_MORE 2
#define BLK_FSYNC_DATASYNC 1
#define BLK_RWF_DSYNC 2
#define BLK_KEEP_SIZE 1
#define BLK_PUNCH_HOLE 2
#define BLK_ZERO_RANGE 0x10
#define BLK_COMMAND_FETCH 0xc0107520
#define BLK_COMMAND_COMMIT_AND_FETCH 0xc0107521
/* Of disks: BLOCK_URING_CMD_DISCARD. */
#define BLK_COMMAND_DISCARD 0x1200

/* Of completions: the tag in the low half, then the slot, then what it was. */
#define BLK_DATA_COMMAND 0
#define BLK_DATA_PIECE 1
/* With the slot: a message to the clerk that it did not get, or the clerk has answered. */
#define BLK_DATA_CLERK 2
#define BLK_CLERK_MISSED 0
#define BLK_CLERK_ANSWERED 1
#define BLK_DATA(kind, slot, tag) ((__u64)(kind) << 32 | (__u64)(slot) << 16 | (tag))

struct blk_piece {
	/* The rest of it: in the file, and in the request's buffer. */
	__u64 offset;
	__u32 at;
	__u32 length;
	__u16 file;
	__u16 tries;
	/* A discard that is a command to the disk. */
	__u32 by_command;
};

/* For the bits of its chunks; for the record that says which legs are out. */
#define BLK_WAITS_BIT 1
#define BLK_WAITS_RECORD 2
/* The clerk has answered. */
#define BLK_WAITS_OVER 4

struct blk_request {
	__u64 position;
	/* On the monotonic clock. */
	__u64 began;
	__u32 length;
	/* Bytes of the present copy for which pieces have been made; for a flush, files. */
	__u32 handed;
	__u32 copy;
	/* While it waits, it is the clerk's. */
	__s32 error;
	__u32 op;
	__u32 flags;
	__u16 under_way;
	/* What it waits for. */
	__u16 waits;
	/* Legs of a mirror that had no room for it, by bit, and what the last of them said. */
	__u16 full;
	__u16 no_room;
	struct blk_piece pieces[BLK_PIECES];
};

/* Requests by the time from arrival to result: bucket n holds those of 2^n to 2^(n+1) ns. */
#define BLK_BUCKETS 40
#define BLK_OPS 6

enum blk_stage {
	/* From the arrival to the first result of a file. */
	BLK_FIRST_RESULT,
	/* From the arrival to the result of the whole. */
	BLK_RESULT,
	BLK_STAGES,
};

struct blk_statistics {
	__u64 requests[BLK_OPS];
	__u64 bytes[BLK_OPS];
	__u64 errors;
	/* Pieces, and those that had to continue after a short result. */
	__u64 pieces;
	__u64 continued;
	/* Turns of the loop: calls of the kernel, or of the program in the kernel. */
	__u64 turns;
	__u32 latency[BLK_STAGES][BLK_OPS][BLK_BUCKETS];
};

/* The request that took a leg out. */
struct blk_failure {
	/* On the monotonic clock; 0 if this queue did not take the leg out. */
	__u64 when;
	__u64 position;
	__u32 length;
	__u32 op;
	__s32 error;
	__u32 unused;
};

/* One for each queue. */
struct blk_queue {
	/* Commands that came back for good, because the device was stopped. */
	__u32 gone;
	/* The error of a refusal by the driver: a negative error number. */
	__s32 refused;
	/* Set by a program that ends its loop by itself. */
	__u32 over;
	__u32 unused;
	struct blk_statistics statistics;
	/* By leg. */
	struct blk_failure failures[BLK_FILES];
};

/* One page. */
#define BLK_MAP_SPACE 4096
#define BLK_QUEUE_SPACE 8192

/*
 * The memory of a queue's engine; the first page is the same for all queues of a device. Behind the requests of a
 * mirror with a record are its chunks, which are also the same for all.
 */
struct blk_region {
	union {
		struct blk_map map;
		__u8 map_space[BLK_MAP_SPACE];
	};
	union {
		struct blk_queue queue;
		__u8 queue_space[BLK_QUEUE_SPACE];
	};
	struct blk_request requests[];
};

_Static_assert(sizeof(struct blk_queue) <= BLK_QUEUE_SPACE, "the counters have room");
_Static_assert(sizeof(struct blk_entry) == 64, "as long as the kernel's");

/* The configuration of a queue's engine; constants to the verifier. */
struct blk_config {
	__u32 queue;
	__u32 depth;
	/* The depth rounded up to a power of two, less one. */
	__u32 tag_mask;
	__u32 sq_mask;
	__u32 cq_mask;
	/* For the loop in the kernel: bytes of its views. */
	__u32 rings_size;
	__u32 entries_size;
	__u32 region_size;
	/* Where the driver's descriptions are mapped. */
	__u64 descriptors;
	/* The engine's own buffers, consecutive; 0 if the requests' buffers are lent. */
	__u64 buffers;
	__u64 buffer_size;
	/* A mirror with a record: where in the region its chunks are, else 0; log2 of their bytes; their
	 * number, rounded up to a power of two, less one; the descriptor of the clerk's ring. */
	__u32 chunks_at;
	__u32 chunk_shift;
	__u32 chunk_mask;
	__s32 clerk;
};

/* Where submission entries go. */
struct blk_out {
	struct blk_entry *entries;
	__u32 tail;
};

BLK_INLINE struct blk_entry *blk_put(const volatile struct blk_config *config, struct blk_out *out)
{
	return &out->entries[out->tail++ & config->sq_mask];
}

BLK_INLINE void blk_clear(struct blk_entry *entry)
{
	entry->flags = BLK_ENTRY_FIXED_FILE;
	entry->ioprio = 0;
	entry->len = 0;
	entry->op_flags = 0;
	entry->buf_index = 0;
	entry->personality = 0;
	entry->file_index = 0;
	entry->command[0] = 0;
	entry->command[1] = 0;
}

/* Asks for a request, and first gives the result of the last one, if any. */
BLK_INLINE void blk_put_command(const volatile struct blk_config *config, struct blk_out *out,
				__u32 command, __u32 tag, __s32 result)
{
	struct blk_entry *entry = blk_put(config, out);

	blk_clear(entry);
	entry->opcode = BLK_OPCODE_COMMAND;
	entry->fd = 0;
	entry->off = command;
	/* Lent: the index that the request's buffer is registered under. */
	entry->addr = config->buffers ? 0 : tag;
	entry->user_data = BLK_DATA(BLK_DATA_COMMAND, 0, tag);
	entry->command[0] = (__u64)(__u32)result << 32 | (__u64)tag << 16 | (config->queue & 0xffff);
	entry->command[1] = config->buffers ? config->buffers + tag * config->buffer_size : 0;
}

/* Tells the clerk that a request waits. */
BLK_INLINE void blk_put_message(const volatile struct blk_config *config, struct blk_out *out,
				__u32 tag)
{
	struct blk_entry *entry = blk_put(config, out);

	blk_clear(entry);
	entry->opcode = BLK_OPCODE_MESSAGE;
	/* A ring cannot be in the table of another. */
	entry->flags = BLK_ENTRY_SILENT;
	entry->fd = config->clerk;
	entry->off = (__u64)config->queue << 16 | tag;
	entry->addr = 0;
	entry->user_data = BLK_DATA(BLK_DATA_CLERK, BLK_CLERK_MISSED, tag);
}

/* Listens to the clerk's answers from now on: its bell is behind the files in the table. */
BLK_INLINE void blk_put_listen(const volatile struct blk_config *config, struct blk_out *out)
{
	struct blk_entry *entry = blk_put(config, out);

	blk_clear(entry);
	entry->opcode = BLK_OPCODE_POLL;
	entry->fd = 1 + BLK_FILES;
	entry->off = 0;
	entry->addr = 0;
	entry->len = BLK_POLL_MANY;
	entry->op_flags = BLK_POLL_IN;
	entry->user_data = BLK_DATA(BLK_DATA_CLERK, BLK_CLERK_ANSWERED, 0);
}

/* Makes the entry of a piece; `buffer` is the request's own memory, 0 if it is lent. */
BLK_FUNCTION int blk_fill(struct blk_entry *entry BLK_ARGUMENT,
			  const struct blk_request *request BLK_ARGUMENT,
			  const struct blk_piece *piece BLK_ARGUMENT, __u64 user_data, __u64 buffer)
{
	blk_clear(entry);
	/* The first file is the device's own. */
	entry->fd = 1 + piece->file;
	entry->off = piece->offset;
	entry->user_data = user_data;
	switch (request->op) {
	case BLK_READ:
	case BLK_WRITE:
		entry->addr = buffer + piece->at;
		entry->len = piece->length;
		if (buffer) {
			entry->opcode = request->op == BLK_READ ? BLK_OPCODE_READ :
								  BLK_OPCODE_WRITE;
		} else {
			entry->opcode = request->op == BLK_READ ? BLK_OPCODE_READ_FIXED :
								  BLK_OPCODE_WRITE_FIXED;
			entry->buf_index = (__u16)user_data;
		}
		if (request->op == BLK_WRITE && (request->flags & BLK_FLAG_FUA))
			entry->op_flags = BLK_RWF_DSYNC;
		break;
	case BLK_FLUSH:
		entry->opcode = BLK_OPCODE_FSYNC;
		entry->off = 0;
		entry->addr = 0;
		entry->op_flags = BLK_FSYNC_DATASYNC;
		break;
	default:
		if (piece->by_command) {
			entry->opcode = BLK_OPCODE_COMMAND;
			/* By a worker: a disk that cannot say that it would wait (dm-thin) refuses it otherwise. */
			entry->flags |= BLK_ENTRY_ASYNC;
			entry->off = BLK_COMMAND_DISCARD;
			entry->addr = piece->offset;
			entry->command[0] = piece->length;
			break;
		}
		entry->opcode = BLK_OPCODE_FALLOCATE;
		entry->addr = piece->length;
		entry->len = BLK_KEEP_SIZE;
		if (request->op == BLK_WRITE_ZEROES && (request->flags & BLK_FLAG_NOUNMAP))
			entry->len |= BLK_ZERO_RANGE;
		else
			entry->len |= BLK_PUNCH_HOLE;
	}
	return 0;
}

BLK_INLINE void blk_put_piece(const volatile struct blk_config *config, struct blk_out *out,
			      struct blk_request *request, struct blk_piece *piece, __u32 tag,
			      __u32 slot)
{
	__u64 buffer = config->buffers ? config->buffers + tag * config->buffer_size : 0;

	blk_fill(blk_put(config, out), request, piece, BLK_DATA(BLK_DATA_PIECE, slot, tag), buffer);
}

static inline bool blk_next_flush(const struct blk_map *map, struct blk_request *request,
				  struct blk_piece *piece)
{
	__u32 i;

	for (i = 0; i < BLK_FILES; i++) {
		__u32 file = request->handed;

		if (file >= map->files)
			return false;
		request->handed = file + 1;
		if (!blk_is_out(map, file)) {
			piece->file = file;
			piece->offset = 0;
			piece->length = 0;
			return true;
		}
	}
	return false;
}

/* Makes the next piece of a request, if there is one. */
BLK_FUNCTION int blk_next(const struct blk_map *map BLK_ARGUMENT,
			  struct blk_request *request BLK_ARGUMENT,
			  struct blk_piece *piece BLK_ARGUMENT)
{
	__u32 copies = request->op == BLK_READ ? 1 : map->copies;
	struct blk_extent extent = {};
	struct blk_ask ask;
	__u32 i;

	piece->tries = 0;
	if (request->error)
		return false;
	if (request->op == BLK_FLUSH)
		return blk_next_flush(map, request, piece);
	if (request->handed >= request->length) {
		request->copy++;
		request->handed = 0;
	}
	for (i = 0; i < BLK_FILES; i++) {
		if (map->kind != BLK_MIRROR || request->op == BLK_READ || request->copy >= copies ||
		    !blk_is_out(map, request->copy))
			break;
		request->copy++;
		request->handed = 0;
	}
	if (request->copy >= copies)
		return false;
	ask.position = request->position + request->handed;
	ask.length = request->length - request->handed;
	ask.op = request->op;
	ask.copy = request->copy;
	ask.files = map->files;
	if (blk_locate(map, &ask, &extent)) {
		request->error = -BLK_EIO;
		return false;
	}
	piece->file = extent.file;
	piece->offset = extent.offset;
	piece->at = request->handed;
	piece->length = extent.length;
	piece->by_command = request->op == BLK_DISCARD &&
			    (map->by_command >> blk_index(extent.file) & 1);
	request->handed += extent.length;
	return true;
}

/*
 * Whether an error is the leg's own. A fault of the request, or of the server's resources, says nothing
 * about the leg: otherwise one bad request of anybody would end a mirror.
 */
static inline bool blk_is_legs(__s32 error)
{
	switch (-error) {
	case BLK_EINTR:
	case BLK_E2BIG:
	case BLK_EAGAIN:
	case BLK_ENOMEM:
	case BLK_EFAULT:
	case BLK_EINVAL:
	case BLK_EOPNOTSUPP:
	case BLK_ECANCELED:
		return false;
	default:
		return true;
	}
}

/*
 * Takes legs of a mirror out, and notes for which request. False if none would be left: queues that take
 * out the last two at the same time must not both be told that another is left.
 */
static inline bool blk_take_out(struct blk_map *map, struct blk_queue *queue, __u32 legs,
				const struct blk_failure *noted)
{
	__u32 all = (1U << (map->files & 31)) - 1, failed = 0, i;

	/* Legs only go out, so others can come first only so often. */
	for (i = 0; i < BLK_FILES; i++) {
		failed = *(volatile __u32 *)&map->failed;
		if ((failed & legs) == legs)
			return true;
		if ((failed | legs) == all)
			return false;
		if (__sync_val_compare_and_swap(&map->failed, failed, failed | legs) == failed)
			break;
	}
	if (i == BLK_FILES)
		return false;
	for (i = 0; i < BLK_FILES; i++)
		if ((legs & ~failed) >> i & 1)
			queue->failures[i] = *noted;
	return true;
}

/*
 * All legs have answered, and some had no room. They are out if others have the request; if none has, no
 * leg has bytes that the others lack.
 */
BLK_FUNCTION int blk_settle(struct blk_map *map BLK_ARGUMENT, struct blk_queue *queue BLK_ARGUMENT,
			    struct blk_request *request BLK_ARGUMENT)
{
	struct blk_failure noted = {
		.when = request->began,
		.position = request->position,
		.length = request->length,
		.op = request->op,
		.error = -(__s32)request->no_room,
	};

	if (!request->error && !blk_take_out(map, queue, request->full, &noted))
		request->error = noted.error;
	return 0;
}

/* Whether to try the piece again, with the rest of it. */
BLK_FUNCTION int blk_again(struct blk_map *map BLK_ARGUMENT, struct blk_queue *queue BLK_ARGUMENT,
			   struct blk_request *request BLK_ARGUMENT,
			   struct blk_piece *piece BLK_ARGUMENT, __s32 result)
{
	bool no_room = result == -BLK_ENOSPC || result == -BLK_EDQUOT;
	bool legs;

	if ((result == -BLK_EAGAIN || result == -BLK_EINTR) && piece->tries < BLK_TRIES) {
		piece->tries++;
		return true;
	}
	if (result >= 0 && request->op > BLK_WRITE)
		return false;
	if (result > 0 && (__u32)result <= piece->length) {
		piece->offset += (__u32)result;
		piece->at += (__u32)result;
		piece->length -= (__u32)result;
		piece->tries = 0;
		if (!piece->length)
			return false;
		queue->statistics.continued++;
		return true;
	}
	if (map->kind == BLK_MIRROR && no_room && request->op != BLK_READ) {
		/* What a flush did not save is gone from this leg alone. */
		if (!map->one_store || request->op == BLK_FLUSH) {
			request->full |= 1U << blk_index(piece->file);
			request->no_room = (__u16)-result;
		} else if (!request->error) {
			request->error = result;
		}
		return false;
	}
	legs = blk_is_legs(result);
	/* No progress: the file ends here. A fault in our own request is not the caller's either, and a
	 * device that is gone is not ours. */
	if (result >= 0 || result == -BLK_EINVAL || result == -BLK_ENODEV)
		result = -BLK_EIO;
	if (map->kind == BLK_MIRROR && legs) {
		struct blk_failure noted = {
			.when = request->began,
			.position = request->position + piece->at,
			.length = piece->length,
			.op = request->op,
			.error = result,
		};

		if (blk_take_out(map, queue, 1U << blk_index(piece->file), &noted)) {
			if (request->op != BLK_READ)
				return false;
			piece->file = blk_healthy_leg(map, piece->file);
			return piece->file < BLK_FILES;
		}
	}
	if (!request->error)
		request->error = result;
	return false;
}

BLK_INLINE __u32 blk_bucket(__u64 time)
{
	__u32 bucket = 0, step;

	for (step = 32; step; step >>= 1)
		if (time >> step) {
			time >>= step;
			bucket += step;
		}
	return bucket;
}

BLK_FUNCTION int blk_count(struct blk_queue *queue BLK_ARGUMENT,
			   const struct blk_request *request BLK_ARGUMENT, __u32 stage, __u64 now)
{
	__u32 bucket = blk_bucket(now - request->began), op = request->op;

	if (stage < BLK_STAGES && op < BLK_OPS && bucket < BLK_BUCKETS)
		queue->statistics.latency[stage][op][bucket]++;
	return 0;
}

/* The result of a request without any pieces under way. */
BLK_FUNCTION int blk_finish(struct blk_queue *queue BLK_ARGUMENT,
			    const struct blk_request *request BLK_ARGUMENT, __u64 now)
{
	__u32 op = request->op;

	blk_count(queue, request, BLK_RESULT, now);
	if (request->error) {
		queue->statistics.errors++;
		return request->error;
	}
	if (op < BLK_OPS) {
		queue->statistics.requests[op]++;
		queue->statistics.bytes[op] += request->length;
	}
	return op <= BLK_WRITE ? request->length : 0;
}

/* The answer to an engine: give a result, or pieces are under way. */
#define BLK_UNDER_WAY 0
#define BLK_FINISHED 1

BLK_INLINE struct blk_chunk *blk_chunks(const volatile struct blk_config *config,
					struct blk_region *region)
{
	return (struct blk_chunk *)((__u8 *)region + config->chunks_at);
}

BLK_INLINE __u64 blk_first_chunk(const volatile struct blk_config *config,
				 const struct blk_request *request)
{
	return request->position >> (config->chunk_shift & 63);
}

BLK_INLINE __u32 blk_count_chunks(const volatile struct blk_config *config,
				  const struct blk_request *request)
{
	__u64 last = request->position + request->length - 1;

	return (last >> (config->chunk_shift & 63)) - blk_first_chunk(config, request) + 1;
}

/* Has the clerk look at a request. */
BLK_INLINE int blk_wait(const volatile struct blk_config *config, struct blk_request *request,
			__u32 tag, __u32 what, struct blk_out *out)
{
	request->waits = what;
	blk_put_message(config, out, tag);
	return BLK_UNDER_WAY;
}

/* No pieces of a request are under way any more: its result, unless the others' records lack a leg that is out. */
BLK_INLINE int blk_answer(const volatile struct blk_config *config, struct blk_region *region,
			  __u32 tag, __u64 now, struct blk_out *out, __s32 *result)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];

	if (config->chunks_at && request->op != BLK_READ) {
		if (!request->error && blk_is_unrecorded(&region->map))
			return blk_wait(config, request, tag, BLK_WAITS_RECORD, out);
		if (request->flags & BLK_FLAG_BEGUN) {
			struct blk_chunk *chunks = blk_chunks(config, region);
			__u64 first = blk_first_chunk(config, request);
			__u32 count = blk_count_chunks(config, request);

			if (request->error)
				blk_intent_keep(chunks, config->chunk_mask, first, count);
			else
				blk_intent_end(chunks, config->chunk_mask, first, count);
		}
	}
	*result = blk_finish(&region->queue, request, now);
	return BLK_FINISHED;
}

/* Begins a request: makes its first pieces, unless it has to wait for the bits of its chunks. */
BLK_INLINE int blk_begin(const volatile struct blk_config *config, struct blk_region *region,
			 __u32 tag, __u64 now, struct blk_out *out, __s32 *result)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];
	__u32 slot;

	if (config->chunks_at && !request->error && request->op != BLK_READ &&
	    request->op != BLK_FLUSH) {
		__u32 count = blk_count_chunks(config, request);

		/* We did not announce longer ones. */
		if (count > BLK_INTENT_CHUNKS)
			request->error = -BLK_EIO;
		else if (!blk_intent_begin(blk_chunks(config, region), config->chunk_mask,
					   blk_first_chunk(config, request), count))
			return blk_wait(config, request, tag, BLK_WAITS_BIT, out);
		else
			request->flags |= BLK_FLAG_BEGUN;
	}
	if (region->map.kind != BLK_NULL || request->op == BLK_READ)
		for (slot = 0; slot < BLK_PIECES; slot++) {
			struct blk_piece *piece = &request->pieces[slot];

			if (!blk_next(&region->map, request, piece))
				break;
			request->under_way++;
			region->queue.statistics.pieces++;
			blk_put_piece(config, out, request, piece, tag, slot);
		}
	if (request->under_way)
		return BLK_UNDER_WAY;
	/* No file is left to take it. */
	if (region->map.kind != BLK_NULL && !request->error)
		request->error = -BLK_EIO;
	return blk_answer(config, region, tag, now, out, result);
}

/* A request has arrived. */
BLK_INLINE int blk_arrived(const volatile struct blk_config *config, struct blk_region *region,
			      __u32 tag, const struct blk_descriptor *descriptor, __u64 now,
			      struct blk_out *out, __s32 *result)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];

	request->op = descriptor->op_flags & BLK_OP_MASK;
	request->flags = descriptor->op_flags & ~(BLK_FLAG_COUNTED | BLK_FLAG_BEGUN);
	request->position = descriptor->start_sector << 9;
	request->length = request->op == BLK_FLUSH ? 0 : descriptor->sectors << 9;
	request->began = now;
	request->handed = 0;
	request->copy = 0;
	request->error = 0;
	request->full = 0;
	request->under_way = 0;
	request->waits = 0;
	/* We did not announce other operations, so none is asked for; a mistake must not pass for a
	 * discard. */
	if (request->op > BLK_WRITE_ZEROES || request->op == BLK_WRITE_SAME)
		request->error = -BLK_EOPNOTSUPP;
	return blk_begin(config, region, tag, now, out, result);
}

/* Goes on with a request, if it waited and the clerk has answered it. */
BLK_INLINE int blk_answered(const volatile struct blk_config *config, struct blk_region *region,
			    __u32 tag, __u64 now, struct blk_out *out, __s32 *result)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];
	__u32 waits = BLK_LOAD(&request->waits);

	if (!(waits & BLK_WAITS_OVER))
		return BLK_UNDER_WAY;
	request->waits = 0;
	if (waits & BLK_WAITS_RECORD || request->error)
		return blk_answer(config, region, tag, now, out, result);
	return blk_begin(config, region, tag, now, out, result);
}

/* The clerk did not get the message that a request waits. */
BLK_INLINE void blk_missed(const volatile struct blk_config *config, struct blk_region *region,
			   __u32 tag, __s32 why)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];

	if (!request->error)
		request->error = why;
	request->waits |= BLK_WAITS_OVER;
}

/* A piece has ended. */
BLK_INLINE int blk_moved(const volatile struct blk_config *config, struct blk_region *region,
			    __u32 tag, __u32 slot, __s32 moved, __u64 now, struct blk_out *out,
			    __s32 *result)
{
	struct blk_request *request = &region->requests[tag & config->tag_mask];
	struct blk_piece *piece = &request->pieces[slot & (BLK_PIECES - 1)];
	int more = blk_again(&region->map, &region->queue, request, piece, moved);

	if (!(request->flags & BLK_FLAG_COUNTED)) {
		request->flags |= BLK_FLAG_COUNTED;
		blk_count(&region->queue, request, BLK_FIRST_RESULT, now);
	}
	if (!more) {
		more = blk_next(&region->map, request, piece);
		if (more)
			region->queue.statistics.pieces++;
	}
	if (more) {
		blk_put_piece(config, out, request, piece, tag, slot);
		return BLK_UNDER_WAY;
	}
	if (--request->under_way)
		return BLK_UNDER_WAY;
	if (request->full)
		blk_settle(&region->map, &region->queue, request);
	return blk_answer(config, region, tag, now, out, result);
}

#endif
