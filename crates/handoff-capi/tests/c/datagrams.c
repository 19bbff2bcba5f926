/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Datagrams with their senders. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define ROOM 100

struct address {
	struct sockaddr_storage name;
	socklen_t length;
};

/* A socket that is bound to loopback, and its address; -1 where the machine has no such family. */
static int bound(int family, struct address *address)
{
	struct sockaddr *name = (struct sockaddr *)&address->name;
	int fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);

	memset(address, 0, sizeof(*address));
	address->name.ss_family = (sa_family_t)family;
	address->length = sizeof(struct sockaddr_in6);
	if (family == AF_INET) {
		((struct sockaddr_in *)name)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
		address->length = sizeof(struct sockaddr_in);
	} else {
		((struct sockaddr_in6 *)name)->sin6_addr = in6addr_loopback;
	}
	if (fd < 0 || bind(fd, name, address->length)) {
		CHECK(family == AF_INET6);
		close(fd);
		return -1;
	}
	CHECK(getsockname(fd, name, &address->length) == 0);
	return fd;
}

static int is(const struct address *address, const struct sockaddr_storage *name, size_t length)
{
	return length == address->length && memcmp(name, &address->name, length) == 0;
}

/* Each is sent back to whom it came from; one that has no room is cut, and an empty one has a sender, too. */
static void echo(uint32_t ring, int family)
{
	const size_t lengths[] = { 5, 0, ROOM, ROOM + 1, 40000, 0, 7 };
	const size_t count = sizeof(lengths) / sizeof(*lengths);
	unsigned char bytes[40000], back[40000];
	struct address here, senders[2];
	int clients[2], server = bound(family, &here);
	/* There is an order only between those of one sender. */
	size_t next[2] = { 0, 1 };
	handoff_driver driver;
	handoff_region region;
	handoff_pool pool, with_senders;
	handoff_socket socket;
	handoff_receiver receiver;

	if (server < 0) {
		printf("SKIPPED: no IPv6\n");
		return;
	}
	driver = driver_with(ring);
	for (int client = 0; client < 2; client++)
		CHECK((clients[client] = bound(family, &senders[client])) >= 0);
	CHECK(handoff_socket_new(driver, server, &socket) == 0);
	CHECK(handoff_region_new(1 << 12, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, HANDOFF_DATAGRAM_HEAD + ROOM, &pool) == 0);
	CHECK(handoff_pool_with_senders(pool, &with_senders) == 0);
	CHECK(handoff_receive(socket, with_senders, 1, &receiver) == 0);
	for (size_t number = 0; number < count; number++) {
		memset(bytes, (int)number + 1, sizeof(bytes));
		CHECK(sendto(clients[number % 2], bytes, lengths[number], 0, (struct sockaddr *)&here.name,
			     here.length) == (ssize_t)lengths[number]);
	}

	for (size_t came = 0, returned = 0; came < count || returned < count;) {
		struct handoff_event event = next_event(driver);
		size_t number, length;
		struct handoff_send_options options;
		struct sockaddr_storage from;
		size_t from_length = sizeof(from), whole;
		const void *data;
		int sender;

		CHECK(event.error == 0);
		if (event.kind == HANDOFF_EVENT_RETURNED) {
			returned++;
			continue;
		}
		CHECK(event.kind == HANDOFF_EVENT_RECEIVED && event.user_data == 1);
		CHECK(handoff_span_sender(event.handle, &from, &from_length, &whole) == 0);
		sender = is(&senders[1], &from, from_length);
		CHECK(is(&senders[sender], &from, from_length) && next[sender] < count);
		number = next[sender];
		next[sender] += 2;
		length = lengths[number];
		CHECK(event.bytes == (length < ROOM ? length : ROOM) && whole == length);
		CHECK(handoff_span_data(event.handle, &data, NULL) == 0);
		for (size_t at = 0; at < event.bytes; at++)
			CHECK(((const unsigned char *)data)[at] == number + 1);
		memset(&options, 0, sizeof(options));
		options.size = sizeof(options);
		options.address = &from;
		options.address_length = from_length;
		CHECK(handoff_send(socket, event.handle, &options, 2, NULL) == 0);
		CHECK(handoff_span_sender(event.handle, &from, &from_length, NULL) == -EBADF);
		came++;
	}
	for (size_t number = 0; number < count; number++) {
		const size_t length = lengths[number] < ROOM ? lengths[number] : ROOM;

		/* What has returned may arrive a moment later. */
		await_readable(clients[number % 2]);
		CHECK(recv(clients[number % 2], back, sizeof(back), MSG_DONTWAIT) == (ssize_t)length);
		CHECK(length == 0 || (back[0] == number + 1 && back[length - 1] == number + 1));
	}
	CHECK(handoff_close(receiver) == 0);
	CHECK(handoff_close(with_senders) == 0);
	CHECK(handoff_close(pool) == 0);
	CHECK(handoff_close(socket) == 0);
	CHECK(handoff_close(driver) == 0);
	close(clients[0]);
	close(clients[1]);
}

/* What can't tell a sender says so, and writes nothing. */
static void misuse(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region, tight_region;
	handoff_pool pool, with_senders, tight, tight_senders, window, none;
	handoff_socket socket, stream;
	handoff_receiver receiver;
	struct handoff_event event;
	struct sockaddr_storage from, untouched;
	size_t length = sizeof(struct sockaddr_in) - 1, whole = 77;
	struct address here, sender;
	int ends[2], server = bound(AF_INET, &here), client = bound(AF_INET, &sender);

	connected(ends);
	CHECK(handoff_socket_new(driver, server, &socket) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &stream) == 0);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_pool_new(driver, region, 1024, &pool) == 0);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &tight_region) == 0);
	CHECK(handoff_pool_new(driver, tight_region, HANDOFF_DATAGRAM_HEAD, &tight) == 0);
	CHECK(handoff_window_new(driver, 1, 4096, &window) == 0);
	CHECK(handoff_pool_with_senders(pool, NULL) == -EINVAL);
	CHECK(handoff_pool_with_senders(socket, &none) == -EBADF);
	CHECK(handoff_pool_with_senders(window, &none) == -EINVAL);
	CHECK(handoff_pool_with_senders(pool, &with_senders) == 0);
	CHECK(handoff_pool_with_senders(with_senders, &none) == -EINVAL);
	CHECK(handoff_pool_with_senders(tight, &tight_senders) == 0);
	CHECK(handoff_receive(socket, tight_senders, 0, &receiver) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "larger") != NULL);
	CHECK(handoff_receive(stream, with_senders, 0, &receiver) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "UDP") != NULL);
	CHECK(handoff_receive_in_bulk(socket, with_senders, &receiver) == -EINVAL);
	CHECK(handoff_rx_queue_take(pool, 5, &none) == -EINVAL);
	CHECK(handoff_rx_queue_take(pool, 0, &none) == -EINVAL);
	CHECK(handoff_rx_queue_take(socket, 5, &none) == -EBADF);

	/* The place is checked before anything is written. */
	CHECK(handoff_receive(socket, with_senders, 0, &receiver) == 0);
	/* Its handles may go before what came by them. */
	CHECK(handoff_close(with_senders) == 0);
	CHECK(sendto(client, "abc", 3, 0, (struct sockaddr *)&here.name, here.length) == 3);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RECEIVED && event.bytes == 3);
	CHECK(handoff_close(receiver) == 0);
	memset(&from, 0x55, sizeof(from));
	untouched = from;
	CHECK(handoff_span_sender(event.handle, &from, &length, &whole) == -ENOSPC);
	CHECK(length == sizeof(struct sockaddr_in) - 1 && whole == 77);
	CHECK(memcmp(&from, &untouched, sizeof(from)) == 0);
	CHECK(handoff_span_sender(event.handle, NULL, &length, NULL) == -EINVAL);
	CHECK(handoff_span_sender(event.handle, &from, NULL, NULL) == -EINVAL);
	CHECK(handoff_span_sender(pool, &from, &length, NULL) == -EBADF);
	length = sizeof(struct sockaddr_in);
	CHECK(handoff_span_sender(event.handle, &from, &length, NULL) == 0);
	CHECK(is(&sender, &from, length));
	CHECK(handoff_close(event.handle) == 0);
	CHECK(handoff_span_sender(event.handle, &from, &length, NULL) == -EBADF);

	/* Received without. */
	CHECK(handoff_receive(socket, pool, 0, &receiver) == 0);
	CHECK(sendto(client, "abc", 3, 0, (struct sockaddr *)&here.name, here.length) == 3);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RECEIVED && event.bytes == 3);
	CHECK(handoff_span_sender(event.handle, &from, &length, NULL) == -ENODATA);
	CHECK(strstr(handoff_error_text(), "handoff_pool_with_senders") != NULL);
	CHECK(handoff_close(event.handle) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(receiver) == 0);
	close(client);
	close(ends[1]);
}

void datagram_cases(uint32_t ring)
{
	echo(ring, AF_INET);
	echo(ring, AF_INET6);
	misuse(ring);
}
