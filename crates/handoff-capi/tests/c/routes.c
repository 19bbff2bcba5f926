/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define BYTES 300000

static int file_of(unsigned char byte, size_t length, int flags)
{
	char path[] = "/tmp/handoff-route-XXXXXX", name[64];
	int fd = mkstemp(path), again;
	void *bytes = malloc(length + 1);

	memset(bytes, byte, length);
	CHECK(fd >= 0 && write(fd, bytes, length) == (ssize_t)length);
	free(bytes);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	again = open(name, O_RDWR | flags);
	CHECK(again >= 0 && unlink(path) == 0);
	close(fd);
	return again;
}

static struct handoff_route_options between(handoff_handle source, handoff_handle sink)
{
	struct handoff_route_options options;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.source = source;
	options.sink = sink;
	return options;
}

/* Reads what comes while the route is under way. */
static struct handoff_event carried(handoff_driver driver, int fd, unsigned char byte, size_t count)
{
	struct handoff_event event;
	unsigned char place[65536];
	int told = 0;

	while (told == 0 || count > 0) {
		ssize_t got = recv(fd, place, sizeof(place), MSG_DONTWAIT);

		for (ssize_t at = 0; at < got; at++)
			CHECK(place[at] == byte);
		CHECK(got <= (ssize_t)count);
		count -= got > 0 ? (size_t)got : 0;
		if (told == 0)
			told = handoff_turn(driver, 1000 * 1000, &event, 1);
		CHECK(told >= 0);
	}
	CHECK(event.kind == HANDOFF_EVENT_CARRIED);
	return event;
}

static void all_ways(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_route_options options;
	struct handoff_event event;
	handoff_file file, sink;
	handoff_socket sender, receiver;
	handoff_region region;
	handoff_pool pool;
	unsigned char place[8];
	int ends[2], back[2], copy, fd = file_of(3, BYTES, 0);

	connected(ends);
	CHECK(handoff_file_new(driver, fd, &file) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);

	/* A file to a socket, by the best engine, and by each. */
	options = between(file, sender);
	CHECK(handoff_route(&options, 1, NULL) == 0);
	event = carried(driver, ends[1], 3, BYTES);
	CHECK(event.user_data == 1 && event.error == 0 && event.bytes == BYTES);
	CHECK(event.engine >= HANDOFF_ENGINE_COPY && event.engine <= HANDOFF_ENGINE_MEMORY);
	CHECK(event.tally.zero_copy + event.tally.copied + event.tally.unknown == BYTES);
	CHECK(event.taken.zero_copy + event.taken.copied + event.taken.unknown == BYTES);
	/* The engine that lends the kernel's buffers needs a module, which a test's machine may lack. */
	CHECK(event.engine == HANDOFF_ENGINE_GET_BUF || strstr(event.error_text, "get-buf") != NULL);
	for (uint32_t engine = HANDOFF_ENGINE_COPY; engine <= HANDOFF_ENGINE_MEMORY; engine++) {
		options.engine = engine;
		options.source_offset = 100;
		options.source_length = 1000;
		CHECK(handoff_route(&options, 2, NULL) == 0);
		if (engine == HANDOFF_ENGINE_GET_BUF ||
		    (engine == HANDOFF_ENGINE_MEMORY && ring == HANDOFF_RING_AVOID)) {
			event = next_event(driver);
			if (event.error) {
				CHECK(event.bytes == 0 && strlen(event.error_text) > 0);
				continue;
			}
			exactly(ends[1], 3, 1000);
		} else {
			event = carried(driver, ends[1], 3, 1000);
		}
		CHECK(event.error == 0 && event.engine == engine && event.bytes == 1000);
	}
	CHECK(handoff_outcome(&event.tally) > 0);

	/* A stream to a file, to its end, by way of a pool of ours. */
	connected(back);
	CHECK(handoff_socket_new(driver, back[0], &receiver) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 1 << 16, &pool) == 0);
	copy = file_of(0, 10, 0);
	CHECK(handoff_file_new(driver, dup(copy), &sink) == 0);
	options = between(receiver, sink);
	options.sink_offset = 2;
	options.pool = pool;
	options.engine = HANDOFF_ENGINE_COPY;
	CHECK(write(back[1], "stream", 6) == 6);
	CHECK(shutdown(back[1], SHUT_WR) == 0);
	CHECK(handoff_route(&options, 3, NULL) == 0);
	event = next_event(driver);
	CHECK(event.error == 0 && event.bytes == 6 && event.engine == HANDOFF_ENGINE_COPY);
	CHECK(pread(copy, place, 8, 0) == 8 && memcmp(place, "\0\0stream", 8) == 0);
	CHECK(event.taken.copied == 6);

	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(sink) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(driver) == 0);
	close(copy);
	close(ends[1]);
	close(back[1]);
}

/* In a loop of one's own, nothing but the driver's descriptor says when to turn. */
static void in_own_loop(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_route_options options;
	struct handoff_event event;
	struct pollfd readable;
	handoff_socket from;
	handoff_file file;
	int in[2], copy = file_of(0, 0, 0);
	void *bytes = malloc(BYTES);

	connected(in);
	CHECK(handoff_socket_new(driver, in[0], &from) == 0);
	CHECK(handoff_file_new(driver, dup(copy), &file) == 0);
	memset(bytes, 9, BYTES);
	CHECK(send(in[1], bytes, BYTES, 0) == BYTES);
	CHECK(shutdown(in[1], SHUT_WR) == 0);
	free(bytes);
	options = between(from, file);
	options.engine = HANDOFF_ENGINE_COPY;
	CHECK(handoff_route(&options, 1, NULL) == 0);
	memset(&readable, 0, sizeof(readable));
	readable.fd = handoff_driver_fd(driver);
	readable.events = POLLIN;
	for (int told; (told = handoff_turn(driver, 0, &event, 1)) != 1;) {
		CHECK(told == 0);
		CHECK(poll(&readable, 1, 10000) == 1);
	}
	CHECK(event.kind == HANDOFF_EVENT_CARRIED && event.error == 0 && event.bytes == BYTES);
	CHECK(lseek(copy, 0, SEEK_END) == BYTES);
	CHECK(handoff_close(from) == 0);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(driver) == 0);
	close(copy);
	close(in[1]);
}

/* One that never waits leaves turns to the others, and to whoever cancels it; a loop of one's own is told to go on. */
static void long_one(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_route_options options;
	struct handoff_event event;
	handoff_operation operation;
	handoff_file from, to;
	struct pollfd readable;
	int source = file_of(0, 0, 0);

	CHECK(ftruncate(source, 1 << 30) == 0);
	CHECK(handoff_file_new(driver, source, &from) == 0);
	CHECK(handoff_file_new(driver, file_of(0, 0, 0), &to) == 0);
	memset(&readable, 0, sizeof(readable));
	readable.fd = handoff_driver_fd(driver);
	readable.events = POLLIN;
	options = between(from, to);
	options.engine = HANDOFF_ENGINE_COPY;
	CHECK(handoff_route(&options, 1, &operation) == 0);
	CHECK(handoff_turn(driver, 0, &event, 1) == 0);
	CHECK(poll(&readable, 1, 10000) == 1);
	CHECK(handoff_turn(driver, -1, &event, 1) == 0);
	CHECK(handoff_cancel(operation) == 0);
	event = next_event(driver);
	CHECK(event.error == -ECANCELED && event.bytes < 1 << 30);
	CHECK(event.bytes > 0 || ring != HANDOFF_RING_AVOID);
	CHECK(handoff_close(operation) == 0);
	CHECK(handoff_close(from) == 0);
	CHECK(handoff_close(to) == 0);
	CHECK(handoff_close(driver) == 0);
}

/* From one connection to another, until that is enough. */
static void cancelled(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_route_options options;
	struct handoff_event event;
	handoff_operation operation;
	handoff_socket from, to;
	int in[2], out[2];

	connected(in);
	connected(out);
	CHECK(handoff_socket_new(driver, in[0], &from) == 0);
	CHECK(handoff_socket_new(driver, out[0], &to) == 0);
	options = between(from, to);
	CHECK(write(in[1], "\5\5\5\5", 4) == 4);
	CHECK(handoff_route(&options, 1, &operation) == 0);
	for (char place[4]; recv(out[1], place, 4, MSG_DONTWAIT) != 4;)
		CHECK(handoff_turn(driver, 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_turn(driver, 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_cancel(operation) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_CARRIED && event.error == -ECANCELED);
	CHECK(event.bytes == 4);
	CHECK(handoff_cancel(operation) == 0 && handoff_close(operation) == 0);

	/* Another, which is under way when everything goes. */
	CHECK(handoff_route(&options, 2, NULL) == 0);
	CHECK(handoff_turn(driver, 0, &event, 1) == 0);
	CHECK(handoff_close(from) == 0);
	CHECK(handoff_close(to) == 0);
	CHECK(handoff_close(driver) == 0);
	close(in[1]);
	close(out[1]);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring), other = driver_with(ring);
	struct handoff_route_options options;
	handoff_operation operation;
	handoff_file file, appending;
	handoff_socket sender, foreign;
	handoff_region region;
	handoff_pool pool;
	struct handoff_event event;
	int ends[2], others[2];

	connected(ends);
	connected(others);
	CHECK(handoff_file_new(driver, file_of(3, 100, 0), &file) == 0);
	CHECK(handoff_file_new(driver, file_of(3, 100, O_APPEND), &appending) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_socket_new(other, others[0], &foreign) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 4096, &pool) == 0);

	CHECK(handoff_route(NULL, 0, NULL) == -EINVAL);
	options = between(file, sender);
	options.size = 0;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	options = between(file, 0);
	CHECK(handoff_route(&options, 0, &operation) == -EBADF);
	options = between(driver, sender);
	CHECK(handoff_route(&options, 0, NULL) == -EBADF);
	CHECK(strstr(handoff_error_text(), "neither a file nor a socket") != NULL);
	options = between(file, foreign);
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "different drivers") != NULL);
	options = between(file, sender);
	options.engine = HANDOFF_ENGINE_URING_ZC;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	options = between(file, sender);
	options.pool = pool;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	options = between(sender, file);
	options.pool = file;
	CHECK(handoff_route(&options, 0, NULL) == -EBADF);
	options = between(sender, file);
	options.source_length = 1;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	options = between(file, sender);
	options.sink_offset = 1;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);
	options = between(file, sender);
	options.source_offset = 2;
	options.source_length = UINT64_MAX;
	CHECK(handoff_route(&options, 0, NULL) == -EINVAL);

	/* What only the attempt tells. */
	options = between(file, appending);
	CHECK(handoff_route(&options, 4, NULL) == 0);
	event = next_event(driver);
	CHECK(event.user_data == 4 && event.error == -EINVAL && strstr(event.error_text, "O_APPEND"));
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(appending) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(foreign) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(other) == 0);
	close(ends[1]);
	close(others[1]);
}

void route_cases(uint32_t ring)
{
	all_ways(ring);
	in_own_loop(ring);
	long_one(ring);
	cancelled(ring);
	misused(ring);
}
