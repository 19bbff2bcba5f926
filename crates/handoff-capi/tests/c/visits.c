/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Receiving in bulk: a visitor sees what came. */
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define BYTES 200000

struct seen {
	size_t bytes;
	handoff_receiver receiver;
	int calls, result_within, closes;
};

static void look(const void *data, size_t length, void *context)
{
	struct seen *seen = (struct seen *)context;
	const unsigned char *bytes = (const unsigned char *)data;

	CHECK(length > 0);
	for (size_t at = 0; at < length; at++)
		CHECK(bytes[at] == (unsigned char)((seen->bytes + at) % 251));
	seen->bytes += length;
	seen->calls++;
	if (seen->receiver)
		seen->result_within = handoff_visit(seen->receiver, look, context);
	if (seen->closes)
		CHECK(handoff_close(seen->receiver) == 0);
}

/* Visits until so many bytes were seen in all. */
static void visit_until(handoff_driver driver, handoff_receiver receiver, struct seen *seen, size_t bytes)
{
	for (int turns = 0; seen->bytes < bytes; turns++) {
		CHECK(turns < 10000);
		CHECK(handoff_turn(driver, 100 * 1000 * 1000, NULL, 0) == 0);
		CHECK(handoff_visit(receiver, look, seen) == 1);
	}
}

static void all_bytes(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_pool pool;
	handoff_socket socket;
	handoff_receiver receiver;
	struct seen seen;
	unsigned char *bytes = (unsigned char *)malloc(BYTES);
	int ends[2], more = 1;

	connected(ends);
	memset(&seen, 0, sizeof(seen));
	CHECK(handoff_socket_new(driver, ends[0], &socket) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 4096, &pool) == 0);
	CHECK(handoff_receive_in_bulk(socket, pool, &receiver) == 0);
	CHECK(handoff_visit(receiver, look, &seen) == 1 && seen.calls == 0);
	for (size_t at = 0; at < BYTES; at++)
		bytes[at] = (unsigned char)(at % 251);
	/* More than the pool has: chunks go back as the visitor returns. */
	for (size_t sent = 0; sent < BYTES;) {
		ssize_t part = send(ends[1], bytes + sent, BYTES - sent, MSG_DONTWAIT);

		CHECK(part > 0 || errno == EAGAIN);
		sent += part > 0 ? (size_t)part : 0;
		CHECK(handoff_turn(driver, 1000 * 1000, NULL, 0) == 0);
		CHECK(handoff_visit(receiver, look, &seen) == 1);
	}
	visit_until(driver, receiver, &seen, BYTES);
	CHECK(seen.bytes == BYTES && seen.calls > 1);
	CHECK(shutdown(ends[1], SHUT_WR) == 0);
	for (int turns = 0; more; turns++) {
		CHECK(turns < 1000);
		CHECK(handoff_turn(driver, 10 * 1000 * 1000, NULL, 0) == 0);
		more = handoff_visit(receiver, look, &seen);
		CHECK(more == 0 || more == 1);
	}
	CHECK(handoff_visit(receiver, look, &seen) == 0);
	free(bytes);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(socket) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
}

static int datagram_socket(void)
{
	return socket(AF_INET, SOCK_DGRAM, 0);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region, buffers;
	handoff_buffer buffer;
	handoff_pool pool, window;
	handoff_socket socket, datagrams;
	handoff_receiver receiver, second;
	struct seen seen;
	int ends[2];

	connected(ends);
	memset(&seen, 0, sizeof(seen));
	CHECK(handoff_socket_new(driver, ends[0], &socket) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &buffers) == 0);
	CHECK(handoff_buffer_new(buffers, 10, &buffer) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 4096, &pool) == 0);
	CHECK(handoff_receive_in_bulk(socket, pool, NULL) == -EINVAL);
	CHECK(handoff_receive_in_bulk(pool, pool, &receiver) == -EBADF);
	CHECK(handoff_window_new(driver, 2, 8192, &window) == 0);
	CHECK(handoff_socket_new(driver, datagram_socket(), &datagrams) == 0);
	CHECK(handoff_receive_in_bulk(datagrams, window, &receiver) == -EINVAL);
	CHECK(handoff_close(datagrams) == 0);
	CHECK(handoff_close(window) == 0);
	CHECK(handoff_receive(socket, pool, 0, &receiver) == 0);
	CHECK(handoff_visit(receiver, look, &seen) == -EBADF);
	CHECK(strstr(handoff_error_text(), "in bulk is wanted") != NULL);
	CHECK(handoff_receive_in_bulk(socket, pool, &second) == -EINVAL);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_receive_in_bulk(socket, pool, &receiver) == 0);
	CHECK(handoff_receive_in_bulk(socket, pool, &second) == -EINVAL);
	CHECK(handoff_receive_into(socket, buffer, 0, 0, 0, NULL) == -EINVAL);
	CHECK(handoff_visit(receiver, NULL, NULL) == -EINVAL);
	CHECK(handoff_visit(driver, look, &seen) == -EBADF);

	/* A visitor that visits its own receiver, and one that closes it. */
	seen.receiver = receiver;
	CHECK(write(ends[1], "\0\1", 2) == 2);
	visit_until(driver, receiver, &seen, 2);
	CHECK(seen.result_within == -EBUSY);
	seen.closes = 1;
	CHECK(write(ends[1], "\2\3", 2) == 2);
	visit_until(driver, receiver, &seen, 4);
	CHECK(handoff_visit(receiver, look, &seen) == -EBADF);

	/* The driver's handle goes first. */
	CHECK(handoff_receive_in_bulk(socket, pool, &receiver) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(socket) == 0);
	CHECK(handoff_visit(receiver, look, &seen) == 1);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(buffers) == 0);
	close(ends[1]);
}

void visit_cases(uint32_t ring)
{
	all_bytes(ring);
	misused(ring);
}
