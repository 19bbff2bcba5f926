/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Receiving into buffers. */
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define LENGTH 100

static void appended(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket receiver;
	handoff_operation operation;
	struct handoff_event event;
	void *data;
	size_t length;
	int ends[2];

	connected(ends);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	if (ring != HANDOFF_RING_AVOID)
		CHECK(handoff_register(driver, region) == 0);
	CHECK(handoff_buffer_new(region, LENGTH, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	memcpy(data, "head!", 5);
	CHECK(handoff_socket_new(driver, ends[0], &receiver) == 0);

	/* What there is, behind what was there. */
	CHECK(write(ends[1], "and body", 8) == 8);
	CHECK(handoff_receive_into(receiver, buffer, 5, 0, 1, NULL) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == -EBUSY);
	CHECK(handoff_receive_into(receiver, buffer, 5, 0, 1, NULL) == -EBUSY);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.user_data == 1);
	CHECK(event.error == 0 && event.handle == buffer && event.bytes == 8);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == LENGTH);
	CHECK(memcmp(data, "head!and body", 13) == 0);

	/* Until it is full, in two parts. */
	CHECK(handoff_receive_into(receiver, buffer, 90, HANDOFF_RECEIVE_ALL, 2, NULL) == 0);
	CHECK(write(ends[1], "1234", 4) == 4);
	CHECK(handoff_turn(driver, 20 * 1000 * 1000, &event, 1) == 0);
	CHECK(write(ends[1], "567890", 6) == 6);
	event = next_event(driver);
	CHECK(event.error == 0 && event.bytes == 10);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == LENGTH);
	CHECK(memcmp((char *)data + 90, "1234567890", 10) == 0);
	CHECK(memcmp(data, "head!and body", 13) == 0);

	/* Cancelled midway, it says how far it came; the stream goes on behind. */
	CHECK(write(ends[1], "abc", 3) == 3);
	await_readable(ends[0]);
	CHECK(handoff_receive_into(receiver, buffer, 0, HANDOFF_RECEIVE_ALL, 3, &operation) == 0);
	CHECK(handoff_turn(driver, 20 * 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_cancel(operation) == 0);
	CHECK(handoff_close(operation) == 0);
	event = next_event(driver);
	CHECK(event.error == -ECANCELED && event.bytes == 3 && event.handle == buffer);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0 && memcmp(data, "abcd!", 5) == 0);
	CHECK(write(ends[1], "def", 3) == 3);
	CHECK(handoff_receive_into(receiver, buffer, 3, 0, 4, NULL) == 0);
	CHECK(next_event(driver).bytes == 3);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0 && memcmp(data, "abcdef", 6) == 0);

	/* The stream ends too early, and has ended. */
	CHECK(write(ends[1], "xyz", 3) == 3);
	CHECK(shutdown(ends[1], SHUT_WR) == 0);
	CHECK(handoff_receive_into(receiver, buffer, 1, HANDOFF_RECEIVE_ALL, 5, NULL) == 0);
	event = next_event(driver);
	CHECK(event.error == -ENODATA && event.bytes == 3 && event.error_text != NULL);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0 && memcmp(data, "axyz", 4) == 0);
	CHECK(handoff_receive_into(receiver, buffer, 0, 0, 6, NULL) == 0);
	event = next_event(driver);
	CHECK(event.error == 0 && event.bytes == 0);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region, chunks;
	handoff_buffer buffer;
	handoff_frozen frozen;
	handoff_socket stream, datagrams;
	handoff_pool pool;
	handoff_receiver receiver;
	handoff_operation operation;
	void *data;
	size_t length;
	int ends[2], pair[2];

	connected(ends);
	CHECK(socketpair(AF_UNIX, SOCK_DGRAM, 0, pair) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, LENGTH, &buffer) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &stream) == 0);
	CHECK(handoff_receive_into(stream, buffer, LENGTH, 0, 0, &operation) == -EINVAL);
	CHECK(handoff_receive_into(stream, buffer, SIZE_MAX, 0, 0, NULL) == -EINVAL);
	CHECK(handoff_receive_into(stream, buffer, 0, 2, 0, NULL) == -EINVAL);
	CHECK(handoff_receive_into(buffer, buffer, 0, 0, 0, NULL) == -EBADF);
	CHECK(handoff_receive_into(stream, stream, 0, 0, 0, NULL) == -EBADF);

	/* Received on already: the buffer is whole again. */
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &chunks) == 0);
	CHECK(handoff_pool_new(driver, chunks, 4096, &pool) == 0);
	CHECK(handoff_receive(stream, pool, 0, NULL) == -EINVAL);
	CHECK(handoff_receive(stream, pool, 0, &receiver) == 0);
	CHECK(handoff_receive_into(stream, buffer, 40, 0, 0, NULL) == -EINVAL);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == LENGTH);
	CHECK(handoff_close(receiver) == 0);

	/* A datagram has an end of its own. */
	if (handoff_socket_new(driver, pair[0], &datagrams) == 0) {
		CHECK(handoff_receive_into(datagrams, buffer, 0, HANDOFF_RECEIVE_ALL, 0, NULL) == -EINVAL);
		CHECK(handoff_close(datagrams) == 0);
	}
	CHECK(handoff_freeze(buffer, &frozen) == 0);
	CHECK(handoff_receive_into(stream, frozen, 0, 0, 0, NULL) == -EBADF);
	CHECK(handoff_unfreeze(frozen, &buffer) == 0);

	/* Everything goes while it is under way. */
	CHECK(handoff_receive_into(stream, buffer, 10, 0, 0, &operation) == 0);
	CHECK(handoff_turn(driver, 0, NULL, 0) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(stream) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_cancel(operation) == 0);
	CHECK(handoff_close(operation) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(region) == 0);
	close(ends[1]);
	close(pair[1]);
}

void into_cases(uint32_t ring)
{
	appended(ring);
	misused(ring);
}
