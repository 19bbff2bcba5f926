/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * Handoff: zero-copy I/O on stock Linux kernels.
 *
 * A buffer is lent and comes back. You cut buffers from a region, begin sends, reads and writes with them, and
 * turn the driver; each turn tells by events what became of what you began.
 *
 * Handles are numbers. What was closed, what is of another kind, and what belongs to another thread is refused
 * with -EBADF, and handoff_error_text() says which. A buffer keeps its handle while it is on loan; calls that would
 * touch it are refused with -EBUSY until its event has come.
 *
 * What can't be told: reading or writing through a pointer that you kept. Don't touch a buffer's bytes between the
 * call that lends it and the event that gives it back, nor a span's after it was closed or lent.
 *
 * Threads: a handle works on the thread that made it. Use a driver for each thread. All of a thread's handles end
 * with it.
 *
 * Processes: a handle works in the process that made it. Fork before you make the first driver; a daemon forks first.
 * In a child of later, the parent's handles are refused with -EBADF, and nothing that the child does, its exit(3)
 * included, touches what is under way. It may make drivers of its own. The bytes of the parent's buffers are not in the
 * child's memory: don't touch them there. The child has copies of all descriptors until it ends or calls execve(2).
 *
 * Errors: functions return a negative error number, with a text in handoff_error_text(). After -ENOTRECOVERABLE
 * there is a fault in this library: please report it with the text.
 *
 * Ranges of values grow: skip kinds of events that you don't know. Structures of options begin with their size, so
 * programs that were built for an older version go on working.
 */


#ifndef HANDOFF_H
#define HANDOFF_H

#include <stddef.h>
#include <stdint.h>

/*
 Use io_uring where it can be had, else epoll and system calls.
 */
#define HANDOFF_RING_PREFER 0

/*
 Use io_uring, or fail.
 */
#define HANDOFF_RING_REQUIRE 1

/*
 Use epoll and system calls.
 */
#define HANDOFF_RING_AVOID 2

/*
 No engine: nothing was sent.
 */
#define HANDOFF_ENGINE_NONE 0

/*
 What costs least, found by trying.
 */
#define HANDOFF_ENGINE_AUTO 1

/*
 io_uring's zero-copy send.
 */
#define HANDOFF_ENGINE_URING_ZC 2

/*
 `MSG_ZEROCOPY`.
 */
#define HANDOFF_ENGINE_MSG_ZEROCOPY 3

/*
 A plain send, which copies.
 */
#define HANDOFF_ENGINE_COPY 4

/*
 Of routes: the kernel's own buffers, lent into the ring.
 */
#define HANDOFF_ENGINE_GET_BUF 5

/*
 Of routes: splice(2) through a pipe.
 */
#define HANDOFF_ENGINE_SPLICE 6

/*
 Of routes: through memory that is registered with the ring.
 */
#define HANDOFF_ENGINE_MEMORY 7

/*
 TLS that the kernel ciphers.
 */
#define HANDOFF_ENGINE_KERNEL_TLS 8

/*
 TLS that this process ciphers.
 */
#define HANDOFF_ENGINE_USER_TLS 9

/*
 The kernel took the bytes of a send, which may not be back yet. Told only if asked for.
 */
#define HANDOFF_EVENT_SENT 1

/*
 A send is over, and its buffer is back; or all sends of a group are. A span that was sent is gone.
 */
#define HANDOFF_EVENT_RETURNED 2

/*
 Bytes came: `handle` is a span.
 */
#define HANDOFF_EVENT_RECEIVED 3

/*
 Receiving ended: the peer has closed, or `error` says why. So did accepting, for `error`.
 */
#define HANDOFF_EVENT_ENDED 4

/*
 A read, a write, or a receive into a buffer is over, and its buffer is back.
 */
#define HANDOFF_EVENT_TRANSFERRED 5

/*
 A socket is connected, or `error` says why not.
 */
#define HANDOFF_EVENT_CONNECTED 6

/*
 A connection came: `handle` is a socket, which is yours to close. With an error there was no room for one, and
 accepting goes on when there is.
 */
#define HANDOFF_EVENT_ACCEPTED 7

/*
 A route has ended: all bytes went over, or `error` says why not.
 */
#define HANDOFF_EVENT_CARRIED 8

/*
 A file or directory is open: `handle` is it, and is yours to close. Or `error` says why not.
 */
#define HANDOFF_EVENT_OPENED 9

/*
 A call about a file or a name is over, or `error` says why not.
 */
#define HANDOFF_EVENT_CALLED 10

/*
 All bytes went without a copy.
 */
#define HANDOFF_OUTCOME_ZERO_COPY 1

/*
 All bytes were copied.
 */
#define HANDOFF_OUTCOME_COPIED 2

/*
 Some bytes were copied, and some not.
 */
#define HANDOFF_OUTCOME_MIXED 3

/*
 Of some bytes nobody reports it.
 */
#define HANDOFF_OUTCOME_UNKNOWN 4

/*
 All bytes were moved by a cipher's pass, and by no other.
 */
#define HANDOFF_OUTCOME_CIPHERED 5

/*
 The path stays beneath the directory where it begins, also by its symbolic links, and leads through no magic link.
 */
#define HANDOFF_OPEN_BENEATH 1

/*
 Only what is needed to read the bytes again, as by fdatasync(2).
 */
#define HANDOFF_SYNC_DATA 1

/*
 A range gets room, and a file that is shorter grows.
 */
#define HANDOFF_ALLOCATE_GROW 0

/*
 The same, and the file keeps its length.
 */
#define HANDOFF_ALLOCATE_KEEP_SIZE 1

/*
 Its bytes become zero, and its room goes.
 */
#define HANDOFF_ALLOCATE_PUNCH_HOLE 2

/*
 Its bytes become zero, and it has room; a file that is shorter grows.
 */
#define HANDOFF_ALLOCATE_ZERO 3

/*
 The same, and the file keeps its length.
 */
#define HANDOFF_ALLOCATE_ZERO_KEEP_SIZE 4

/*
 The kernel begins to write the range's changed pages.
 */
#define HANDOFF_WRITE_BACK_BEGIN 0

/*
 It has written them.
 */
#define HANDOFF_WRITE_BACK_FINISH 1

/*
 What has the new name loses it.
 */
#define HANDOFF_RENAME_REPLACE 0

/*
 If something has the new name, the call fails with `-EEXIST`.
 */
#define HANDOFF_RENAME_NO_REPLACE 1

/*
 What has the new name gets the old one.
 */
#define HANDOFF_RENAME_EXCHANGE 2

/*
 Ordinary pages.
 */
#define HANDOFF_PAGES_BASE 0

/*
 Huge pages, where the machine has some free; else ordinary ones.
 */
#define HANDOFF_PAGES_HUGE 1

/*
 It can't be done here: `reason` says why.
 */
#define HANDOFF_NO 0

/*
 It works here: it was tried, or the kernel says so.
 */
#define HANDOFF_YES 1

/*
 Not known: `reason` has what kept from trying.
 */
#define HANDOFF_UNKNOWN 2

/*
 Receive until the buffer is full.
 */
#define HANDOFF_RECEIVE_ALL 1

/*
 Bytes of each chunk that a pool with senders sets aside.
 */
#define HANDOFF_DATAGRAM_HEAD 64

/*
 Tell when the kernel took the bytes, too: with `HANDOFF_EVENT_SENT`.
 */
#define HANDOFF_SEND_TELL_SENT 1

/*
 Another send follows at once on the stream: the kernel may keep the end of this one for a packet with that.
 */
#define HANDOFF_SEND_MORE 2

/*
 The most bytes of a header.
 */
#define HANDOFF_MAX_HEADER 64

/*
 `nodelay` is given.
 */
#define HANDOFF_OPTION_NODELAY (1 << 0)

/*
 `linger` is given.
 */
#define HANDOFF_OPTION_LINGER (1 << 1)

/*
 `keepalive` is given.
 */
#define HANDOFF_OPTION_KEEPALIVE (1 << 2)

/*
 `keepalive_idle` is given.
 */
#define HANDOFF_OPTION_KEEPALIVE_IDLE (1 << 3)

/*
 `keepalive_interval` is given.
 */
#define HANDOFF_OPTION_KEEPALIVE_INTERVAL (1 << 4)

/*
 `keepalive_count` is given.
 */
#define HANDOFF_OPTION_KEEPALIVE_COUNT (1 << 5)

/*
 `user_timeout_ms` is given.
 */
#define HANDOFF_OPTION_USER_TIMEOUT (1 << 6)

/*
 `send_buffer` is given.
 */
#define HANDOFF_OPTION_SEND_BUFFER (1 << 7)

/*
 `receive_buffer` is given.
 */
#define HANDOFF_OPTION_RECEIVE_BUFFER (1 << 8)

/*
 `busy_poll_us` is given.
 */
#define HANDOFF_OPTION_BUSY_POLL (1 << 9)

/*
 `priority` is given.
 */
#define HANDOFF_OPTION_PRIORITY (1 << 10)

/*
 `mark` is given.
 */
#define HANDOFF_OPTION_MARK (1 << 11)

/*
 `device` is given.
 */
#define HANDOFF_OPTION_DEVICE (1 << 12)

/*
 `bind` and `bind_length` are given.
 */
#define HANDOFF_OPTION_BIND (1 << 13)

/*
 `reuse_port` is given.
 */
#define HANDOFF_OPTION_REUSE_PORT (1 << 14)

/*
 `backlog` is given.
 */
#define HANDOFF_OPTION_BACKLOG (1 << 15)

/*
 Room for the name of a device, with the zero byte at its end.
 */
#define HANDOFF_DEVICE_NAME 16

/*
 How to make a driver. Fill with zeroes, set `size`, and then what differs from the default; 0 is the
 default everywhere.
 */
typedef struct handoff_driver_options {
  /*
   `sizeof(struct handoff_driver_options)`.
   */
  uint32_t size;
  /*
   One of `HANDOFF_RING_...`.
   */
  uint32_t ring;
  /*
   Entries of the submission queue.
   */
  uint32_t entries;
  /*
   The most operations under way at once.
   */
  uint32_t in_flight;
  /*
   Places for registered buffers.
   */
  uint32_t registered_buffers;
  /*
   Places for registered files.
   */
  uint32_t registered_files;
  /*
   1: rx queues of network cards may be bound.
   */
  uint32_t zero_copy_receive;
  /*
   Places of the completion queue, at least.
   */
  uint32_t completions;
  /*
   How long the peer of a connection whose socket is closed may take next to nothing (less than 1 KiB a second) of
   what was sent, in milliseconds: then the connection is reset. The default is 60000; 1 resets at once.
   */
  uint32_t linger_ms;
  /*
   The most sends that nobody waits for. A peer, told apart by its address, may have a quarter. The default is 4096.
   */
  uint32_t unclaimed_loans;
  /*
   A thread of the kernel takes the requests, so that submitting them needs no call: for so many milliseconds after the
   last request it looks for others, and uses a processor meanwhile. 0: no such thread. With `HANDOFF_RING_REQUIRE`
   the driver fails if the kernel makes none; else `handoff_driver_sq_poll` says so.
   */
  uint32_t sq_poll_idle_ms;
  /*
   The number of that thread's processor and 1; 0: any.
   */
  uint32_t sq_poll_cpu;
  /*
   1: of `zero_copy_receive`, only completions of received bytes have 32 bytes, where the kernel can do that.
   */
  uint32_t mixed_completions;
  /*
   The most pipes that routes splice through at once. The default is as many as the process may have.
   */
  uint32_t pipes;
} handoff_driver_options;

/*
 Something of the library. 0 is none.
 */
typedef uint64_t handoff_handle;

/*
 A driver: one io_uring, or epoll and system calls, and all that belongs to it.
 */
typedef handoff_handle handoff_driver;

/*
 What became of sends that nobody waited for.
 */
typedef struct handoff_loan_stats {
  /*
   How many of them are under way or on loan now.
   */
  uint64_t unclaimed;
  /*
   How many were on loan for longer than `linger_ms`, on datagram sockets and on streams whose sockets were open:
   nothing ends them but the kernel, or `handoff_abort`.
   */
  uint64_t overdue;
  /*
   Connections of closed sockets that were reset, because `unclaimed_loans` was used up or their peers took next to
   nothing.
   */
  uint64_t reset;
} handoff_loan_stats;

/*
 What became of bytes.
 */
typedef struct handoff_tally {
  /*
   Bytes that went without a copy.
   */
  uint64_t zero_copy;
  /*
   Bytes that were copied.
   */
  uint64_t copied;
  /*
   Bytes that a cipher's pass moved, and nothing else.
   */
  uint64_t ciphered;
  /*
   Bytes of which nobody reports it.
   */
  uint64_t unknown;
} handoff_tally;

/*
 What became of an operation.
 */
typedef struct handoff_event {
  /*
   One of `HANDOFF_EVENT_...`.
   */
  uint32_t kind;
  /*
   0, or a negative error number.
   */
  int32_t error;
  /*
   What the operation was begun with.
   */
  uint64_t user_data;
  /*
   The buffer, span, socket, file or directory that it is about, or 0.
   */
  handoff_handle handle;
  /*
   Bytes that were done, also where it failed.
   */
  uint64_t bytes;
  /*
   What became of the bytes, with `HANDOFF_EVENT_RETURNED`; with `HANDOFF_EVENT_ENDED`, of all that were received;
   with `HANDOFF_EVENT_CARRIED`, on their way into the sink.
   */
  struct handoff_tally tally;
  /*
   What became of the bytes on their way out of the source, with `HANDOFF_EVENT_CARRIED`.
   */
  struct handoff_tally taken;
  /*
   One of `HANDOFF_ENGINE_...`, with `HANDOFF_EVENT_RETURNED` and `HANDOFF_EVENT_CARRIED`; 0 where sends of a
   group differ.
   */
  uint32_t engine;
  /*
   Always 0.
   */
  uint32_t reserved;
  /*
   The error in words, valid until the driver's next turn; NULL if there is none. Of a route it also says why
   better engines than `engine` did not serve.
   */
  const char *error_text;
} handoff_event;

/*
 A file, pipe or block device that a driver works on.
 */
typedef handoff_handle handoff_file;

/*
 A piece of a region.
 */
typedef handoff_handle handoff_buffer;

/*
 Something under way that can be cancelled.
 */
typedef handoff_handle handoff_operation;

/*
 A directory that a driver works on, where paths begin.
 */
typedef handoff_handle handoff_directory;

/*
 What the kernel knows of a file.
 */
typedef struct handoff_metadata {
  /*
   Bytes of the file.
   */
  uint64_t length;
  /*
   Bytes that it takes on its device.
   */
  uint64_t allocated;
  /*
   The number of the file on its device.
   */
  uint64_t inode;
  /*
   Major and minor number of the device.
   */
  uint32_t device_major;
  /*
   See above.
   */
  uint32_t device_minor;
  /*
   Kind and permissions, as `st_mode`.
   */
  uint32_t mode;
  /*
   How many names it has.
   */
  uint32_t links;
  /*
   The owner.
   */
  uint32_t user;
  /*
   The owner's group.
   */
  uint32_t group;
  /*
   What addresses and lengths of memory are aligned to for direct reads and writes, in bytes; 0 if nobody says.
   */
  uint32_t memory_alignment;
  /*
   The same for offsets in the file.
   */
  uint32_t block_alignment;
} handoff_metadata;

/*
 Sends that are told of together.
 */
typedef handoff_handle handoff_group;

/*
 A socket that a driver works on.
 */
typedef handoff_handle handoff_socket;

/*
 Memory that buffers are cut from.
 */
typedef handoff_handle handoff_region;

/*
 A way to send in bulk.
 */
typedef handoff_handle handoff_lane;

/*
 Accepting that is under way.
 */
typedef handoff_handle handoff_listener;

/*
 Bytes that nobody writes, which many operations hold at once.
 */
typedef handoff_handle handoff_frozen;

/*
 Whether a mechanism works on this machine, for this user. The texts are valid during the callback; those that
 say nothing are NULL.
 */
typedef struct handoff_capability {
  /*
   Its name.
   */
  const char *mechanism;
  /*
   One of `HANDOFF_NO`, `HANDOFF_YES`, `HANDOFF_UNKNOWN`.
   */
  uint32_t state;
  /*
   Why not, or what is limited.
   */
  const char *reason;
  /*
   What would help.
   */
  const char *remedy;
} handoff_capability;

/*
 What receiving draws on: a pool of chunks, a window of mapped pages, or an rx queue of a network card.
 */
typedef handoff_handle handoff_pool;

/*
 Receiving that is under way.
 */
typedef handoff_handle handoff_receiver;

/*
 Received bytes.
 */
typedef handoff_handle handoff_span;

/*
 From where to where. Fill with zeroes, set `size`, `source` and `sink`, and then what differs from the default.
 */
typedef struct handoff_route_options {
  /*
   `sizeof(struct handoff_route_options)`.
   */
  uint32_t size;
  /*
   The only engine that may serve: `HANDOFF_ENGINE_GET_BUF`, `..._SPLICE`, `..._MEMORY` or `..._COPY`. 0: the best
   that works, for a stream to a socket after its first small pieces, which are copied.
   */
  uint32_t engine;
  /*
   A file, or a socket, whose stream is carried to its end.
   */
  handoff_handle source;
  /*
   Where in a file to begin. `UINT64_MAX`: it is a pipe, or begins at its own position, and is carried to its end.
   */
  uint64_t source_offset;
  /*
   How many bytes of a file at most; 0: all that follow.
   */
  uint64_t source_length;
  /*
   What a stream is received by, where an engine receives it. 0: memory of the route's own. With an rx queue its
   spans come before all other engines.
   */
  handoff_pool pool;
  /*
   A socket, or a file, which was not opened for appending.
   */
  handoff_handle sink;
  /*
   Where in a file to begin. `UINT64_MAX`: it is a pipe, or begins at its own position.
   */
  uint64_t sink_offset;
} handoff_route_options;

/*
 How to send. Fill with zeroes, set `size`, and then what differs from the default.
 */
typedef struct handoff_send_options {
  /*
   `sizeof(struct handoff_send_options)`.
   */
  uint32_t size;
  /*
   Of `HANDOFF_SEND_...`.
   */
  uint32_t flags;
  /*
   Bytes that go before the payload, and are copied when the call is made; at most `HANDOFF_MAX_HEADER`.
   */
  const void *header;
  /*
   How many they are.
   */
  size_t header_length;
  /*
   Where a datagram goes: a `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_un`. NULL on a socket that is connected.
   */
  const void *address;
  /*
   The size of the address.
   */
  size_t address_length;
  /*
   A group of the socket's driver that the send joins: the group tells of it then, and the send itself tells nothing.
   */
  handoff_group group;
  /*
   Send the bytes as UDP datagrams of so many each; the last may be shorter. 0: as one.
   */
  uint32_t segment;
  /*
   Always 0.
   */
  uint32_t reserved;
  /*
   Descriptors that go with the message, on a Unix socket. They are duplicated when the call is made, and stay yours.
   */
  const int *descriptors;
  /*
   How many they are, at most 253.
   */
  size_t descriptor_count;
} handoff_send_options;

/*
 Options of a socket. Fill with zeroes, set `size`, and then what you want and its bit in `given`; the rest stays as it
 is.
 */
typedef struct handoff_socket_options {
  /*
   `sizeof(struct handoff_socket_options)`.
   */
  uint32_t size;
  /*
   Which of the others are given: `HANDOFF_OPTION_...`.
   */
  uint32_t given;
  /*
   1: TCP sends small segments at once.
   */
  uint32_t nodelay;
  /*
   How long close(2) waits for the peer to take what was sent, in seconds; -1: it does not wait. 0 resets the
   connection.
   */
  int32_t linger;
  /*
   1: TCP asks an idle peer if it is still there. Any of the next three switches it on.
   */
  uint32_t keepalive;
  /*
   How long a connection is idle before the first question, in seconds.
   */
  uint32_t keepalive_idle;
  /*
   The time between questions, in seconds.
   */
  uint32_t keepalive_interval;
  /*
   After so many questions without an answer the connection is broken.
   */
  uint32_t keepalive_count;
  /*
   After so many milliseconds without an acknowledgement the connection is broken; 0: as the system has it.
   */
  uint32_t user_timeout_ms;
  /*
   Bytes of the send buffer. The kernel doubles them, and tells the double.
   */
  uint32_t send_buffer;
  /*
   Bytes of the receive buffer, in the same way.
   */
  uint32_t receive_buffer;
  /*
   How long a receive that finds nothing polls the device, in microseconds.
   */
  uint32_t busy_poll_us;
  /*
   Priority of the packets.
   */
  uint32_t priority;
  /*
   Mark of the packets, for routing and filters.
   */
  uint32_t mark;
  /*
   1: several listeners share the address. For `handoff_listen_at`.
   */
  uint32_t reuse_port;
  /*
   The most connections that wait to be accepted. For `handoff_listen_at`.
   */
  uint32_t backlog;
  /*
   The only device that packets come and go by; empty: any.
   */
  char device[HANDOFF_DEVICE_NAME];
  /*
   The address to connect from: a `struct sockaddr_in` or `sockaddr_in6`. With port 0 the kernel chooses the port when
   it knows the peer. For `handoff_connect_with`.
   */
  const void *bind;
  /*
   The size of that address.
   */
  size_t bind_length;
} handoff_socket_options;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 What the last call of this thread that failed failed of, and what to do about it.

 The text is valid until the next call of this thread that fails. It is empty before the first.
 */
const char *handoff_error_text(void);

/*
 The version of the library, such as "0.1.0".
 */
const char *handoff_version(void);

/*
 Makes a driver for this thread. `options` may be NULL.

 Returns 0, or a negative error number.

 Requires: `options` is NULL or points to as many bytes as its `size` says; `driver` can be written.
 */
int handoff_driver_new(const struct handoff_driver_options *options, handoff_driver *driver);

/*
 A descriptor that is readable when `handoff_turn` has something to do: for epoll and other loops. Then turn the
 driver until it returns 0. The descriptor does not become readable by calls of yours: turn the driver after those,
 too, before you wait. It stays the driver's: don't close it.

 Returns the descriptor, or a negative error number.
 */
int handoff_driver_fd(handoff_driver driver);

/*
 The descriptor of a driver's ring, for what io_uring can do and this library does not, such as registering things of your
 own. The library submits and takes completions by it, on the driver's thread: do neither, and leave alone what it has
 registered (tables of buffers and files, an eventfd, groups of provided buffers from 0 on). Don't close it.

 Returns the descriptor, or a negative error number: `-EOPNOTSUPP` where the driver has no ring.
 */
int handoff_driver_ring_fd(handoff_driver driver);

/*
 Whether a thread of the kernel takes the driver's requests, as `sq_poll_idle_ms` asks for.

 Returns 1 if one does, 0 if none was asked for, and `-EOPNOTSUPP` if the kernel makes none; `handoff_error_text` says why.
 */
int handoff_driver_sq_poll(handoff_driver driver);

/*
 How many calls of io_uring_enter(2) a driver has made to submit requests, and to wait; 0 without a ring.

 Returns 0, or a negative error number.

 Requires: `calls` can be written.
 */
int handoff_driver_ring_calls(handoff_driver driver,
                              uint64_t *calls);

/*
 Operations under way: buffers on loan included.

 Returns the number, or a negative error number.
 */
int handoff_driver_in_flight(handoff_driver driver);

/*
 What became of sends that nobody waited for.

 Returns 0, or a negative error number.

 Requires: `stats` can be written.
 */
int handoff_driver_loans(handoff_driver driver, struct handoff_loan_stats *stats);

/*
 Submits what was begun, waits, and tells what became of it.

 `timeout_ns`: 0 does not wait; a positive number waits for so many nanoseconds at most; a negative one waits
 until something happens, and not at all if nothing is under way. A signal ends the wait.

 Returns how many events were written to `events`, at most `max`; what did not fit comes with the next call,
 which does not wait then. 0 is no error: lanes tell nothing here, see `handoff_lane_take`.

 Requires: `events` points to room for `max` events, or `max` is 0.
 */
int handoff_turn(handoff_driver driver,
                 int64_t timeout_ns,
                 struct handoff_event *events,
                 uint32_t max);

/*
 The verdict over bytes.

 Returns one of `HANDOFF_OUTCOME_...`, or a negative error number.

 Requires: `tally` is NULL or can be read.
 */
int handoff_outcome(const struct handoff_tally *tally);

/*
 Attaches a file, pipe or block device to a driver, which closes `fd` from then on, also if this fails.

 Returns 0, or a negative error number.

 Requires: `fd` belongs to the caller; `file` can be written.
 */
int handoff_file_new(handoff_driver driver,
                     int fd,
                     handoff_file *file);

/*
 Begins to read a file into a buffer, as much as its length, from `offset`; a pipe from -1.

 The buffer is on loan until `HANDOFF_EVENT_TRANSFERRED`. Fewer bytes than its length is the end of the file.
 `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in any case.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_read(handoff_file file,
                 handoff_buffer buffer,
                 int64_t offset,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 As `handoff_read`, with `flags` of preadv2(2), such as `RWF_NOWAIT`. With flags, `offset` is not -1.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_read_with(handoff_file file,
                      handoff_buffer buffer,
                      int64_t offset,
                      int flags,
                      uint64_t user_data,
                      handoff_operation *operation);

/*
 Begins to write a buffer, a frozen one, or a span that was received, to a file at `offset`; to a pipe at -1.

 The payload is on loan until `HANDOFF_EVENT_TRANSFERRED`; a span is gone then, and its handle is at once. A frozen
 buffer can be lent again meanwhile. `operation` is as for `handoff_read`.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_write(handoff_file file,
                  handoff_handle payload,
                  int64_t offset,
                  uint64_t user_data,
                  handoff_operation *operation);

/*
 As `handoff_write`, with `flags` of pwritev2(2): `RWF_DSYNC`, `RWF_SYNC`, `RWF_APPEND`, `RWF_NOWAIT`, `RWF_HIPRI`,
 `RWF_ATOMIC`. With flags, `offset` is not -1.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_write_with(handoff_file file,
                       handoff_handle payload,
                       int64_t offset,
                       int flags,
                       uint64_t user_data,
                       handoff_operation *operation);

/*
 Begins to open a file, by a path that begins at `directory`; 0 is the process's working directory. `flags` and `mode`
 are those of open(2); with `O_DIRECTORY` a directory is opened, for calls by names. `how` is 0 or
 `HANDOFF_OPEN_BENEATH`. `HANDOFF_EVENT_OPENED` has the file's or directory's handle.

 `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in any case.

 Returns 0, or a negative error number.

 Requires: `path` is a string; `operation` is NULL or can be written.
 */
int handoff_open(handoff_driver driver,
                 handoff_directory directory,
                 const char *path,
                 int flags,
                 uint32_t mode,
                 uint32_t how,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 Begins to put a file or directory on its device (fsync(2)). `how` is 0 or `HANDOFF_SYNC_DATA`; a directory knows 0 only.
 `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_sync(handoff_handle file,
                 uint32_t how,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 Begins to give a range of a file room, or to take its bytes (fallocate(2)). `how` is one of `HANDOFF_ALLOCATE_...`.
 `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_allocate(handoff_file file,
                     uint64_t offset,
                     uint64_t length,
                     uint32_t how,
                     uint64_t user_data,
                     handoff_operation *operation);

/*
 Begins to write changed pages of a range back (sync_file_range(2)); `length` 0 means up to the end. `how` is one of
 `HANDOFF_WRITE_BACK_...`. This is no sync: nothing is safe on the device by it. `HANDOFF_EVENT_CALLED` tells the end.
 `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_write_back(handoff_file file,
                       uint64_t offset,
                       uint64_t length,
                       uint32_t how,
                       uint64_t user_data,
                       handoff_operation *operation);

/*
 Begins to tell the kernel what you will do with a range (posix_fadvise(2)); `length` 0 means up to the end. `advice` is
 one of `POSIX_FADV_...`. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_advise(handoff_file file,
                   uint64_t offset,
                   uint64_t length,
                   int advice,
                   uint64_t user_data,
                   handoff_operation *operation);

/*
 Begins to give an open file a name, which must be free: one of `O_TMPFILE`, or another. The path begins at `directory`;
 0 is the process's working directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `path` is a string; `operation` is NULL or can be written.
 */
int handoff_link(handoff_file file,
                 handoff_directory directory,
                 const char *path,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 Begins to cut a file to a length, or to lengthen it by a hole (ftruncate(2)). `HANDOFF_EVENT_CALLED` tells the end.
 `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_truncate(handoff_file file,
                     uint64_t length,
                     uint64_t user_data,
                     handoff_operation *operation);

/*
 Begins to ask what the kernel knows of a file (statx(2)). With `HANDOFF_EVENT_CALLED`, whose `bytes` are the file's
 length, `handoff_take_metadata` gives the rest by the operation's handle. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `operation` is NULL or can be written.
 */
int handoff_stat(handoff_file file,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 As `handoff_stat`, of what has a name: the path begins at `directory`; 0 is the process's working directory. `flags` is
 0, or `AT_SYMLINK_NOFOLLOW` to ask about a symbolic link itself.

 Returns 0, or a negative error number.

 Requires: `path` is a string; `operation` is NULL or can be written.
 */
int handoff_stat_at(handoff_driver driver,
                    handoff_directory directory,
                    const char *path,
                    int flags,
                    uint64_t user_data,
                    handoff_operation *operation);

/*
 What `handoff_stat` was told, once its event has come.

 Returns 0, or a negative error number.

 Requires: `metadata` can be written.
 */
int handoff_take_metadata(handoff_operation operation, struct handoff_metadata *metadata);

/*
 Begins to rename a file or directory, in one step. The paths begin at the directories, of which 0 is the process's
 working directory. `how` is one of `HANDOFF_RENAME_...`. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for
 `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `from` and `to` are strings; `operation` is NULL or can be written.
 */
int handoff_rename(handoff_driver driver,
                   handoff_directory from_directory,
                   const char *from,
                   handoff_directory to_directory,
                   const char *to,
                   uint32_t how,
                   uint64_t user_data,
                   handoff_operation *operation);

/*
 Begins to make a directory, with the permissions of `mode` that the process's umask leaves. The path begins at
 `directory`; 0 is the process's working directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for
 `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `path` is a string; `operation` is NULL or can be written.
 */
int handoff_mkdir(handoff_driver driver,
                  handoff_directory directory,
                  const char *path,
                  uint32_t mode,
                  uint64_t user_data,
                  handoff_operation *operation);

/*
 Begins to remove a name, by a path that begins at `directory`; 0 is the process's working directory. `flags` is 0, or
 `AT_REMOVEDIR` for an empty directory. `HANDOFF_EVENT_CALLED` tells the end. `operation` is as for `handoff_open`.

 Returns 0, or a negative error number.

 Requires: `path` is a string; `operation` is NULL or can be written.
 */
int handoff_unlink(handoff_driver driver,
                   handoff_directory directory,
                   const char *path,
                   int flags,
                   uint64_t user_data,
                   handoff_operation *operation);

/*
 Makes a group: sends that join it (`group` of `struct handoff_send_options`) are told of by one event.

 Returns 0, or a negative error number.

 Requires: `group` can be written.
 */
int handoff_group_new(handoff_driver driver,
                      handoff_group *group);

/*
 Has one `HANDOFF_EVENT_RETURNED` tell when all sends that have joined a group are over: with the sum of their bytes
 and of what became of these, and with the error of the first that failed. Their buffers stay on loan until then.
 Sends that join later are told of by the next flush. A group that is closed tells nothing of the rest.

 Returns how many sends they are, or a negative error number.
 */
int handoff_group_flush(handoff_group group,
                        uint64_t user_data);

/*
 Ends a handle, of whatever kind.

 What is under way goes on: a socket's sends go out, and a buffer on loan is freed when it comes back. A
 driver goes when its handle and those of its sockets, files, lanes, groups and receivers in bulk are closed;
 what is under way then is cancelled, and buffers on loan are freed.

 Returns 0, or `-EBADF`.
 */
int handoff_close(handoff_handle handle);

/*
 Opens a lane of a socket for at most `capacity` buffers of `region` at a time. See the library's `Lane` for what
 a lane is; a stream that has one takes no other sends.

 Returns 0, or a negative error number.

 Requires: `lane` can be written.
 */
int handoff_lane_new(handoff_socket socket,
                     handoff_region region,
                     size_t capacity,
                     handoff_lane *lane);

/*
 Lends buffers to a lane, to be sent in this order with the driver's next turn.

 Returns how many were lent, the first of them: fewer than `count` when the lane is full, or when it can't have the
 next, which is not lent then. If that is the first, it returns a negative error number: `-EAGAIN` when the lane is
 full.

 Requires: `buffers` points to `count` handles, or `count` is 0.
 */
int handoff_lane_push(handoff_lane lane,
                      const handoff_buffer *buffers,
                      uint32_t count,
                      uint64_t user_data);

/*
 Takes back what returned, in the order in which it was pushed: an event of `HANDOFF_EVENT_RETURNED` for each
 buffer. `error_text` is NULL here: `handoff_error_text` has the text of the first that failed, from
 which the others mostly follow.

 Returns how many were written to `events`, at most `max`.

 Requires: `events` points to room for `max` events, or `max` is 0.
 */
int handoff_lane_take(handoff_lane lane,
                      struct handoff_event *events,
                      uint32_t max);

/*
 Buffers that were pushed and not taken back.

 Returns the number, or a negative error number.
 */
int handoff_lane_length(handoff_lane lane);

/*
 Attaches a listening socket, of TCP or Unix, to a driver, which closes `fd` from then on, also if this fails, and begins to accept:
 `HANDOFF_EVENT_ACCEPTED` for each connection. If you take few events, connections wait in the kernel's queue. Closing
 the listener ends that, and so does closing the driver.

 Returns 0, or a negative error number.

 Requires: `fd` belongs to the caller; `listener` can be written.
 */
int handoff_listen(handoff_driver driver,
                   int fd,
                   uint64_t user_data,
                   handoff_listener *listener);

/*
 Makes a region of `length` bytes, in whole pages. `pages` is one of `HANDOFF_PAGES_...`.

 Returns 0, or a negative error number.

 Requires: `region` can be written.
 */
int handoff_region_new(size_t length, uint32_t pages, handoff_region *region);

/*
 Registers a region with a driver: its pages are pinned once, instead of at each send. A region that is not
 registered serves too.

 Returns 0, or a negative error number: `-ENOMEM` at the limit on locked memory, `-EOPNOTSUPP` without a ring.
 */
int handoff_register(handoff_driver driver,
                     handoff_region region);

/*
 Takes a region out of a driver's table. What is under way is not disturbed.

 Returns 0, or a negative error number.
 */
int handoff_unregister(handoff_driver driver, handoff_region region);

/*
 Cuts a buffer of `length` bytes from what is left of a region. Close it to free the handle; the region's bytes
 are handed out once.

 Returns 0, or a negative error number: `-ENOSPC` when the region has not so much left.

 Requires: `buffer` can be written.
 */
int handoff_buffer_new(handoff_region region,
                       size_t length,
                       handoff_buffer *buffer);

/*
 Where a buffer's bytes are, and how many. Don't touch them while the buffer is on loan.

 Returns 0, or a negative error number: `-EBUSY` while it is on loan.

 Requires: `data` and `length` can be written; `length` may be NULL.
 */
int handoff_buffer_data(handoff_buffer buffer, void **data, size_t *length);

/*
 Makes a buffer shorter, or as long as it was cut again.

 Returns 0, or a negative error number: `-EINVAL` past the length that it was cut with.
 */
int handoff_buffer_set_length(handoff_buffer buffer, size_t length);

/*
 Cuts a buffer in two: it keeps what is behind the first `at` bytes, which `front` is.

 Returns 0, or a negative error number.

 Requires: `front` can be written.
 */
int handoff_buffer_split(handoff_buffer buffer, size_t at, handoff_buffer *front);

/*
 Ends the writing of a buffer, so that many operations can hold it at once. The buffer's handle ends.

 Returns 0, or a negative error number; the buffer is as before then.

 Requires: `frozen` can be written.
 */
int handoff_freeze(handoff_buffer buffer,
                   handoff_frozen *frozen);

/*
 Where a frozen buffer's bytes are, and how many: to be read only, as long as the handle is open.

 Returns 0, or a negative error number.

 Requires: `data` and `length` can be written; `length` may be NULL.
 */
int handoff_frozen_data(handoff_frozen frozen, const void **data, size_t *length);

/*
 Makes a handle for a part of a frozen buffer, or for the whole again. It shares the bytes, is lent like the
 whole, and keeps the whole frozen.

 Returns 0, or a negative error number: `-EINVAL` past the end.

 Requires: `part` can be written.
 */
int handoff_frozen_part(handoff_frozen frozen,
                        size_t at,
                        size_t length,
                        handoff_frozen *part);

/*
 Makes a frozen buffer one that can be written again: the whole that was frozen, also where this is a part of it.
 The handle ends.

 Returns 0, or a negative error number: `-EBUSY` while there are other handles of it, or it is on loan. The handle
 stays then.

 Requires: `buffer` can be written.
 */
int handoff_unfreeze(handoff_frozen frozen,
                     handoff_buffer *buffer);

/*
 Asks for an operation to end early: it ends with `-ECANCELED`, or as it would have if this comes too late. On a
 stream, a send that stopped midway breaks the stream.

 Returns 0, also where the operation is over, or `-EBADF`.
 */
int handoff_cancel(handoff_operation operation);

/*
 Tries each mechanism, and calls `tell` for each.

 Returns 0, or a negative error number.

 Requires: `tell` can be called with `context`, and does not leave by `longjmp` or an exception.
 */
int handoff_probe(void (*tell)(const struct handoff_capability *capability, void *context),
                  void *context);

/*
 Makes a region a pool of chunks of `chunk` bytes to receive into. No buffer may have been cut from the region.
 The region's handle ends, also if this fails.

 Returns 0, or a negative error number.

 Requires: `pool` can be written.
 */
int handoff_pool_new(handoff_driver driver,
                     handoff_region region,
                     size_t chunk,
                     handoff_pool *pool);

/*
 Makes another handle for a pool of chunks, by which UDP sockets receive datagrams with their senders:
 `handoff_span_sender` tells who sent one. Each chunk has `HANDOFF_DATAGRAM_HEAD` bytes less for the datagram then.
 Both handles share the chunks, and may be used side by side.

 Returns 0, or a negative error number.

 Requires: `with_senders` can be written.
 */
int handoff_pool_with_senders(handoff_pool pool,
                              handoff_pool *with_senders);

/*
 Reserves address space for received pages of TCP sockets, which the kernel maps there: `places` of `place` bytes
 each, whole pages.

 A page that came over loopback or veth, also from another container, may be one that its sender can still write. So
 the bytes of a span may change while you look: copy what you check before you check it, or receive into a pool of
 chunks.

 Returns 0, or a negative error number.

 Requires: `pool` can be written.
 */
int handoff_window_new(handoff_driver driver,
                       size_t places,
                       size_t place,
                       handoff_pool *pool);

/*
 Binds an rx queue of a network card, with the region as the memory that it receives into. The region's handle
 ends, also if this fails. The driver must have been made with `zero_copy_receive`.

 Returns 0, or a negative error number: `-EOPNOTSUPP` with the reason and what to do.

 Requires: `interface` is a string; `pool` can be written.
 */
int handoff_rx_queue_new(handoff_driver driver,
                         handoff_region region,
                         const char *interface,
                         uint32_t queue,
                         handoff_pool *pool);

/*
 Makes another handle for an rx queue, by which a receiver gets `bytes` bytes and no more: it ends behind them as at
 the end of a stream, and later bytes stay in the socket for the next receiver.

 Returns 0, or a negative error number: `-EINVAL` for 0 bytes, and for a handle that `handoff_rx_queue_new` did not
 make.

 Requires: `begin` can be written.
 */
int handoff_rx_queue_take(handoff_pool queue,
                          uint32_t bytes,
                          handoff_pool *begin);

/*
 Begins to receive on a socket: `HANDOFF_EVENT_RECEIVED` for each span that comes, then one
 `HANDOFF_EVENT_ENDED`. Closing the receiver ends it too, without an event; so does closing the driver.

 Spans take chunks of the pool until they are closed; with none left, receiving waits.

 Returns 0, or a negative error number: `-EINVAL` where the socket is received on already.

 Requires: `receiver` can be written.
 */
int handoff_receive(handoff_socket socket,
                    handoff_pool pool,
                    uint64_t user_data,
                    handoff_receiver *receiver);

/*
 Begins to receive on a socket as `handoff_receive` does, but without events: after a turn of the driver,
 `handoff_visit` shows what came. That costs less for each span. Closing the receiver ends it.

 Returns 0, or a negative error number: `-EINVAL` where the socket is received on already, and with a pool with
 senders, of which a visitor is not told.

 Requires: `receiver` can be written.
 */
int handoff_receive_in_bulk(handoff_socket socket,
                            handoff_pool pool,
                            handoff_receiver *receiver);

/*
 Calls `visitor` for each span that came to a receiver in bulk, in order: with its bytes, which are there to be read
 until the visitor returns. Their chunk goes back then.

 Returns 1 while more may come, 0 when the peer has closed, or the negative error number that receiving ended with,
 once, and 0 from then on. `-EBUSY` within a visit of the same receiver.

 Requires: `visitor` can be called with `context`, and does not leave by `longjmp` or an exception.
 */
int handoff_visit(handoff_receiver receiver,
                  void (*visitor)(const void *data, size_t length, void *context),
                  void *context);

/*
 Begins to receive into a buffer, behind its first `at` bytes, which stay as they are: what there is, up to the
 buffer's length. The kernel copies each byte once.

 `flags`: with `HANDOFF_RECEIVE_ALL`, until the buffer is full. The buffer is on loan until
 `HANDOFF_EVENT_TRANSFERRED` tells how many bytes came: none at the end of a stream. `operation` may be NULL; else
 it is a handle for `handoff_cancel`, which is to be closed in any case: cancelled, it tells how many came, and
 the stream goes on behind them.

 Returns 0, or a negative error number: `-EINVAL` where the socket is received on already. Nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_receive_into(handoff_socket socket,
                         handoff_buffer buffer,
                         size_t at,
                         uint32_t flags,
                         uint64_t user_data,
                         handoff_operation *operation);

/*
 Where the bytes of a span are, and how many: to be read only, until the span is closed or sent. Those of a span of
 `handoff_window_new` may change meanwhile.

 Returns 0, or a negative error number.

 Requires: `data` and `length` can be written; `length` may be NULL.
 */
int handoff_span_data(handoff_span span,
                      const void **data,
                      size_t *length);

/*
 Who sent the datagram that a span is of: a `struct sockaddr_in` or `sockaddr_in6`.

 `address_length` says how many bytes `address` has room for, and then how many the address takes; a
 `struct sockaddr_storage` has room for both kinds. `datagram_length` may be NULL; else it gets the bytes of the
 datagram as it was sent: more than the span has where the chunk had no room for all.

 Returns 0, or a negative error number: `-ENODATA` for a span that was not received by a pool of
 `handoff_pool_with_senders`, `-ENOSPC` where the address has no room. Nothing is written then.

 Requires: `address` has as much room as `address_length` says; that and `datagram_length` can be written.
 */
int handoff_span_sender(handoff_span span,
                        void *address,
                        size_t *address_length,
                        size_t *datagram_length);

/*
 Begins to carry all bytes of a source to a sink, by the best engine that works. `HANDOFF_EVENT_CARRIED` tells the end.
 Send and receive nothing there meanwhile. `operation` may be NULL; else it is a handle for `handoff_cancel`: bytes that
 were on the way then may arrive or not, and those that were taken from a stream are gone.

 Returns 0, or a negative error number.

 Requires: `options` points to as many bytes as its `size` says; `operation` is NULL or can be written.
 */
int handoff_route(const struct handoff_route_options *options,
                  uint64_t user_data,
                  handoff_operation *operation);

/*
 Attaches a socket to a driver, which closes `fd` from then on, also if this fails.

 Returns 0, or a negative error number.

 Requires: `fd` belongs to the caller; `socket` can be written.
 */
int handoff_socket_new(handoff_driver driver, int fd, handoff_socket *socket);

/*
 Says by which engine a socket is to send: one of `HANDOFF_ENGINE_...`.

 Returns 0, or a negative error number: `-EOPNOTSUPP` with the reason where that is not possible.
 */
int handoff_socket_set_engine(handoff_socket socket, uint32_t engine);

/*
 Begins to send a buffer, a frozen one, or a span that was received.

 The payload is on loan until `HANDOFF_EVENT_RETURNED` tells that it is back; a span is gone then, and its
 handle is at once. A frozen buffer can be lent again meanwhile, on any socket of this thread.

 `options` may be NULL. `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to be closed in
 any case.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `options` is NULL or points to as many bytes as its `size` says, and so do header and address; `operation`
 is NULL or can be written.
 */
int handoff_send(handoff_socket socket,
                 handoff_handle payload,
                 const struct handoff_send_options *options,
                 uint64_t user_data,
                 handoff_operation *operation);

/*
 Begins to connect a socket that is attached: `HANDOFF_EVENT_CONNECTED` tells the end. `address` is a
 `struct sockaddr_in`, `sockaddr_in6` or `sockaddr_un`. `operation` may be NULL; else it is a handle for `handoff_cancel`, which is to
 be closed in any case.

 Returns 0, or a negative error number.

 Requires: `address` is `address_length` bytes long; `operation` is NULL or can be written.
 */
int handoff_connect(handoff_socket socket,
                    const void *address,
                    size_t address_length,
                    uint64_t user_data,
                    handoff_operation *operation);

/*
 Ends a connection at once: its peer gets a reset, and bytes that it has not taken are lost. Sends and receives under way
 fail, and lent buffers come back with the next turns, however long the peer would have kept them. Does nothing to
 datagram sockets. The socket stays to be closed.

 Returns 0, or a negative error number.
 */
int handoff_abort(handoff_socket socket);

/*
 The descriptor of a socket, for getpeername(2), shutdown(2), options and the like. It stays the socket's: don't close
 it, and neither send nor receive by it.

 Returns the descriptor, or a negative error number.
 */
int handoff_socket_fd(handoff_socket socket);

/*
 Sets options of a socket that is attached, before `handoff_connect` or at any time. Where the kernel refuses one, others
 may be set. `bind`, `reuse_port` and `backlog` are refused: they are for the calls below.

 Returns 0, or a negative error number.

 Requires: `options` points to as many bytes as its `size` says.
 */
int handoff_socket_set_options(handoff_socket socket,
                               const struct handoff_socket_options *options);

/*
 Tells the options that a socket has: `given` has the bits of those that its kind and the struct have. Set `size` before. An address to
 connect from, `reuse_port` and `backlog` are not told.

 Returns 0, or a negative error number.

 Requires: `options` can be written, as many bytes as its `size` says.
 */
int handoff_socket_get_options(handoff_socket socket,
                               struct handoff_socket_options *options);

/*
 Begins to connect to an address by TCP, with options that are set before the first packet. `options` may be NULL.
 `HANDOFF_EVENT_CONNECTED` tells the end, with the new socket's handle. `address` is a `struct sockaddr_in` or
 `sockaddr_in6`. `operation` is as for `handoff_connect`.

 Returns 0, or a negative error number.

 Requires: `address` is `address_length` bytes long; `options` is NULL or points to as many bytes as its `size` says; `operation` is
 NULL or can be written.
 */
int handoff_connect_with(handoff_driver driver,
                         const void *address,
                         size_t address_length,
                         const struct handoff_socket_options *options,
                         uint64_t user_data,
                         handoff_operation *operation);

/*
 Listens for TCP connections at an address, with options that are set before, and begins to accept as `handoff_listen`
 does. The connections have the options, too, except the priority. `options` may be NULL. `address` is a `struct
 sockaddr_in` or `sockaddr_in6`.

 Returns 0, or a negative error number.

 Requires: `address` is `address_length` bytes long; `options` is NULL or points to as many bytes as its `size` says; `listener` can
 be written.
 */
int handoff_listen_at(handoff_driver driver,
                      const void *address,
                      size_t address_length,
                      const struct handoff_socket_options *options,
                      uint64_t user_data,
                      handoff_listener *listener);

/*
 Listens at a name and begins to accept, as `handoff_listen` does. `address` is a `struct sockaddr_un`; one that ends
 behind its family has the kernel choose an abstract name. `type` is `SOCK_STREAM` or `SOCK_SEQPACKET`. The file of a
 path is removed when the listener is closed; a file that is there already is replaced if it is a socket that nobody has
 open, else the call fails with `-EADDRINUSE`.

 Returns 0, or a negative error number.

 Requires: `address` is `address_length` bytes long; `listener` can be written.
 */
int handoff_listen_unix(handoff_driver driver,
                        const void *address,
                        size_t address_length,
                        int type,
                        uint64_t user_data,
                        handoff_listener *listener);

/*
 Receives what there is on a Unix socket into a buffer, with at most so many descriptors that came with it:
 `HANDOFF_EVENT_TRANSFERRED` tells that the buffer is back. Then `handoff_take_descriptors` gives the descriptors. If
 there are more, all are closed, and the event's error is `-EMSGSIZE`. With 0 the kernel closes what comes, untold.

 `operation` may be NULL if no descriptors are wanted; else it is a handle for `handoff_cancel` and
 `handoff_take_descriptors`, which is to be closed in any case.

 Returns 0, or a negative error number; nothing was lent then.

 Requires: `operation` is NULL or can be written.
 */
int handoff_receive_message(handoff_socket socket,
                            handoff_buffer buffer,
                            size_t descriptors,
                            uint64_t user_data,
                            handoff_operation *operation);

/*
 Takes the descriptors that came with a message, in their order, once its event was told. They are yours to close, and
 are closed on exec. Those that you don't take are closed with the operation's handle.

 Returns how many were written to `descriptors`, at most `max`, or a negative error number.

 Requires: `descriptors` points to room for `max` numbers.
 */
int handoff_take_descriptors(handoff_operation operation,
                             int *descriptors,
                             size_t max);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HANDOFF_H */
