/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define BYTES 50000

static long mapped_pages(void)
{
	FILE *file = fopen("/proc/self/statm", "r");
	long pages;

	CHECK(file != NULL && fscanf(file, "%ld", &pages) == 1);
	fclose(file);
	return pages;
}

/* A span that nobody was told of goes with its driver, and the pool's memory with it. */
static void untold(uint32_t ring)
{
	long before = mapped_pages();
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_pool pool;
	handoff_socket socket;
	handoff_receiver receiver;
	int ends[2];

	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &socket) == 0);
	CHECK(handoff_region_new(256 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 1 << 16, &pool) == 0);
	CHECK(handoff_receive(socket, pool, 0, &receiver) == 0);
	CHECK(write(ends[1], "abc", 3) == 3);
	for (int turns = 0; turns < 5; turns++)
		CHECK(handoff_turn(driver, 10 * 1000 * 1000, NULL, 0) == 0);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(socket) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
	CHECK(mapped_pages() - before < (128 << 20) / 4096);
}

/* By each engine; the same buffer goes again as soon as it is back. */
static void sends(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	void *data;
	size_t length;
	int ends[2];

	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	if (ring != HANDOFF_RING_AVOID)
		CHECK(handoff_register(driver, region) == 0);
	CHECK(handoff_buffer_new(region, BYTES, &buffer) == 0);
	for (uint32_t engine = HANDOFF_ENGINE_AUTO; engine <= HANDOFF_ENGINE_COPY; engine++) {
		struct handoff_send_options options;
		struct handoff_event event;
		handoff_operation operation;

		if (handoff_socket_set_engine(sender, engine) == -EOPNOTSUPP)
			continue;
		CHECK(handoff_buffer_data(buffer, &data, &length) == 0);
		memset(data, (int)engine, length);
		memset(&options, 0, sizeof(options));
		options.size = sizeof(options);
		options.flags = HANDOFF_SEND_TELL_SENT;
		CHECK(handoff_send(sender, buffer, &options, 1000 + engine, &operation) == 0);

		/* On loan, it can't be had. */
		CHECK(handoff_buffer_data(buffer, &data, &length) == -EBUSY);
		CHECK(handoff_send(sender, buffer, NULL, 0, NULL) == -EBUSY);
		CHECK(handoff_buffer_set_length(buffer, 1) == -EBUSY);

		event = next_event(driver);
		CHECK(event.kind == HANDOFF_EVENT_SENT && event.error == 0);
		CHECK(event.user_data == 1000 + engine && event.bytes == BYTES);
		exactly(ends[1], (unsigned char)engine, BYTES);
		event = next_event(driver);
		CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.error == 0);
		CHECK(event.handle == buffer && event.bytes == BYTES && event.error_text == NULL);
		CHECK(event.engine != HANDOFF_ENGINE_NONE);
		CHECK(event.tally.zero_copy + event.tally.copied + event.tally.unknown == BYTES);
		CHECK(engine != HANDOFF_ENGINE_COPY || event.tally.copied == BYTES);
		CHECK(handoff_cancel(operation) == 0);
		CHECK(handoff_close(operation) == 0);
		CHECK(handoff_buffer_data(buffer, &data, &length) == 0);
	}
	CHECK(handoff_socket_set_engine(sender, 99) == -EINVAL);

	/* The peer goes: the send fails, and the buffer is back all the same. */
	CHECK(handoff_socket_set_engine(sender, HANDOFF_ENGINE_COPY) == 0);
	close(ends[1]);
	for (int error = 0; error == 0;) {
		struct handoff_event event;

		CHECK(handoff_send(sender, buffer, NULL, 5, NULL) == 0);
		event = next_event(driver);
		CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.handle == buffer);
		error = event.error;
		CHECK(error == 0 || (error < 0 && strlen(event.error_text) > 0));
	}
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
}

/* Datagrams with a header, to an address. */
static void datagrams(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_send_options options;
	struct sockaddr_in address;
	socklen_t address_length = sizeof(address);
	struct handoff_event event;
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	void *data;
	char place[64];
	int receiver = socket(AF_INET, SOCK_DGRAM, 0);

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(receiver, (struct sockaddr *)&address, address_length) == 0);
	CHECK(getsockname(receiver, (struct sockaddr *)&address, &address_length) == 0);
	CHECK(handoff_socket_new(driver, socket(AF_INET, SOCK_DGRAM, 0), &sender) == 0);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 5, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	memcpy(data, "bytes", 5);

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.header = "head";
	options.header_length = 4;
	options.address = &address;
	options.address_length = 3;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == -EINVAL);
	options.address_length = sizeof(address);
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.error == 0 && event.bytes == 9);
	CHECK(recv(receiver, place, sizeof(place), 0) == 9 && memcmp(place, "headbytes", 9) == 0);
	close(receiver);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
}

/* What comes is sent back as it is, from where it was received. */
static void echo(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_pool pool;
	handoff_socket server;
	handoff_receiver receiver, second;
	unsigned char bytes[3000];
	size_t back = 0;
	int ends[2], ended = 0;

	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &server) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 4096, &pool) == 0);
	CHECK(handoff_close(region) == -EBADF);
	CHECK(handoff_receive(server, pool, 3, &receiver) == 0);
	CHECK(handoff_receive(server, pool, 3, &second) < 0);
	/* Ended and begun anew. */
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_receive(server, pool, 4, &receiver) == 0);

	memset(bytes, 9, sizeof(bytes));
	CHECK(write(ends[1], bytes, sizeof(bytes)) == sizeof(bytes));
	while (!ended) {
		struct handoff_event event = next_event(driver);
		const void *data;
		size_t length;

		CHECK(event.error == 0);
		switch (event.kind) {
		case HANDOFF_EVENT_RECEIVED:
			CHECK(event.user_data == 4);
			CHECK(handoff_span_data(event.handle, &data, &length) == 0);
			CHECK(length == event.bytes && *(const unsigned char *)data == 9);
			CHECK(handoff_send(server, event.handle, NULL, 6, NULL) == 0);
			CHECK(handoff_close(event.handle) == -EBADF);
			break;
		case HANDOFF_EVENT_RETURNED:
			CHECK(event.user_data == 6 && event.handle == 0);
			back += event.bytes;
			if (back == sizeof(bytes)) {
				exactly(ends[1], 9, back);
				CHECK(shutdown(ends[1], SHUT_WR) == 0);
			}
			break;
		case HANDOFF_EVENT_ENDED:
			CHECK(event.user_data == 4);
			ended = 1;
			break;
		default:
			CHECK(!"another event");
		}
	}
	close(ends[1]);
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(server) == 0);
	CHECK(handoff_close(driver) == 0);
}

/* A buffer may be closed while it is on loan, and a driver while sends are out. */
static void abandoned(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_socket sender;
	int ends[2];

	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	for (int number = 0; number < 8; number++) {
		handoff_buffer buffer;

		CHECK(handoff_buffer_new(region, 1 << 17, &buffer) == 0);
		CHECK(handoff_send(sender, buffer, NULL, 0, NULL) == 0);
		CHECK(handoff_turn(driver, 0, NULL, 0) == 0);
		CHECK(handoff_close(buffer) == 0);
	}
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(sender) == 0);
	close(ends[1]);
}

/* A peer that takes nothing keeps a buffer until the connection is reset. */
static void aborted(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	struct handoff_event event;
	char bytes[4096];
	void *data;
	ssize_t got;
	int ends[2];

	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_region_new(32 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 32 << 20, &buffer) == 0);
	CHECK(handoff_send(sender, buffer, NULL, 3, NULL) == 0);
	for (int turns = 0; turns < 5; turns++)
		CHECK(handoff_turn(driver, 10 * 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_abort(buffer) == -EBADF);
	CHECK(handoff_abort(sender) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.user_data == 3);
	CHECK(event.error == -ECONNRESET || event.error == -EPIPE);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	CHECK(handoff_driver_in_flight(driver) == 0);
	do
		got = read(ends[1], bytes, sizeof(bytes));
	while (got > 0);
	CHECK(got < 0 && errno == ECONNRESET);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
}

/* A closed socket's connection is reset when its peer has taken nothing for its time. */
static void lingers(uint32_t ring)
{
	struct handoff_driver_options options;
	struct handoff_loan_stats stats;
	struct handoff_event event;
	handoff_driver driver;
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	int ends[2];

	for (uint32_t linger_ms = 1; linger_ms <= 100; linger_ms += 99) {
		memset(&options, 0, sizeof(options));
		options.size = sizeof(options);
		options.ring = ring;
		options.linger_ms = linger_ms;
		options.unclaimed_loans = 16;
		CHECK(handoff_driver_new(&options, &driver) == 0);
		connected(ends);
		CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
		CHECK(handoff_region_new(32 << 20, HANDOFF_PAGES_BASE, &region) == 0);
		CHECK(handoff_buffer_new(region, 32 << 20, &buffer) == 0);
		CHECK(handoff_send(sender, buffer, NULL, 3, NULL) == 0);
		CHECK(handoff_turn(driver, 0, &event, 1) == 0);
		CHECK(handoff_close(sender) == 0);
		event = next_event(driver);
		CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.user_data == 3);
		CHECK(event.error == -ECONNRESET || event.error == -EPIPE);
		CHECK(handoff_driver_loans(driver, NULL) == -EINVAL);
		CHECK(handoff_driver_loans(buffer, &stats) == -EBADF);
		CHECK(handoff_driver_loans(driver, &stats) == 0);
		CHECK(stats.unclaimed == 0 && stats.overdue == 0 && stats.reset == (linger_ms > 1));
		CHECK(handoff_close(buffer) == 0);
		CHECK(handoff_close(region) == 0);
		CHECK(handoff_close(driver) == 0);
		close(ends[1]);
	}
}

void socket_cases(uint32_t ring)
{
	aborted(ring);
	lingers(ring);
	sends(ring);
	datagrams(ring);
	echo(ring);
	abandoned(ring);
	untold(ring);
}
