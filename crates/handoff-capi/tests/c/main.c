/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

void connected(int ends[2])
{
	struct sockaddr_in address;
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(listener >= 0);
	CHECK(bind(listener, (struct sockaddr *)&address, length) == 0);
	CHECK(listen(listener, 1) == 0);
	CHECK(getsockname(listener, (struct sockaddr *)&address, &length) == 0);
	ends[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	CHECK(connect(ends[0], (struct sockaddr *)&address, length) == 0);
	ends[1] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	CHECK(ends[1] >= 0);
	close(listener);
}

void await_readable(int fd)
{
	struct pollfd ready = { fd, POLLIN, 0 };

	CHECK(poll(&ready, 1, 10 * 1000) == 1);
}

struct handoff_event next_event(handoff_driver driver)
{
	struct handoff_event event;
	int told = 0;

	while (told == 0) {
		told = handoff_turn(driver, 10LL * 1000 * 1000 * 1000, &event, 1);
		CHECK(told >= 0);
	}
	return event;
}

handoff_driver driver_with(uint32_t ring)
{
	struct handoff_driver_options options;
	handoff_driver driver;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.ring = ring;
	CHECK(handoff_driver_new(&options, &driver) == 0);
	return driver;
}

void exactly(int fd, unsigned char byte, size_t count)
{
	unsigned char place[4096];

	while (count > 0) {
		ssize_t got = read(fd, place, count < sizeof(place) ? count : sizeof(place));

		CHECK(got > 0);
		for (ssize_t at = 0; at < got; at++)
			CHECK(place[at] == byte);
		count -= (size_t)got;
	}
}

int main(void)
{
	CHECK(strlen(handoff_version()) > 0);
	memory_cases();
	frozen_cases(HANDOFF_RING_PREFER);
	frozen_cases(HANDOFF_RING_AVOID);
	misuse_cases();
	socket_cases(HANDOFF_RING_PREFER);
	socket_cases(HANDOFF_RING_AVOID);
	datagram_cases(HANDOFF_RING_PREFER);
	datagram_cases(HANDOFF_RING_AVOID);
	group_cases(HANDOFF_RING_PREFER);
	group_cases(HANDOFF_RING_AVOID);
	connection_cases(HANDOFF_RING_PREFER);
	connection_cases(HANDOFF_RING_AVOID);
	visit_cases(HANDOFF_RING_PREFER);
	visit_cases(HANDOFF_RING_AVOID);
	into_cases(HANDOFF_RING_PREFER);
	into_cases(HANDOFF_RING_AVOID);
	file_cases(HANDOFF_RING_PREFER);
	storage_cases(HANDOFF_RING_PREFER);
	file_cases(HANDOFF_RING_AVOID);
	storage_cases(HANDOFF_RING_AVOID);
	option_cases(HANDOFF_RING_PREFER);
	option_cases(HANDOFF_RING_AVOID);
	route_cases(HANDOFF_RING_PREFER);
	route_cases(HANDOFF_RING_AVOID);
	unix_cases(HANDOFF_RING_PREFER);
	unix_cases(HANDOFF_RING_AVOID);
	lane_cases();
	fork_cases(HANDOFF_RING_PREFER);
	fork_cases(HANDOFF_RING_AVOID);
	return 0;
}
