/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Options of sockets, before and while they are connected, and of drivers. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static struct handoff_socket_options none(void)
{
	struct handoff_socket_options options;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	return options;
}

static struct sockaddr_in loopback(uint32_t host)
{
	struct sockaddr_in address;

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK + host);
	return address;
}

/* A port of a listener of our own, which nobody else listens at. */
static int free_port(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int on = 1;

	*address = loopback(0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) == 0);
	CHECK(bind(fd, (struct sockaddr *)address, length) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
	return fd;
}

static int number(handoff_socket it, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof(value);

	CHECK(getsockopt(handoff_socket_fd(it), level, name, &value, &length) == 0);
	return value;
}

static void connections_have_them(handoff_driver driver)
{
	struct handoff_socket_options options = none(), told = none();
	struct sockaddr_in address, from = loopback(1), seen;
	socklen_t length = sizeof(seen);
	handoff_listener listener;
	handoff_socket client = 0, server = 0;
	int held = free_port(&address);

	options.given = HANDOFF_OPTION_BACKLOG | HANDOFF_OPTION_KEEPALIVE_IDLE;
	options.backlog = 7;
	options.keepalive_idle = 77;
	CHECK(handoff_listen_at(driver, &address, sizeof(address), &options, 5, &listener) == 0);
	options = none();
	options.given = HANDOFF_OPTION_NODELAY | HANDOFF_OPTION_BIND | HANDOFF_OPTION_LINGER |
			HANDOFF_OPTION_USER_TIMEOUT | HANDOFF_OPTION_SEND_BUFFER;
	options.nodelay = 1;
	options.bind = &from;
	options.bind_length = sizeof(from);
	options.linger = 3;
	options.user_timeout_ms = 20000;
	options.send_buffer = 100000;
	CHECK(handoff_connect_with(driver, &address, sizeof(address), &options, 6, NULL) == 0);
	while (!client || !server) {
		struct handoff_event event = next_event(driver);

		CHECK(event.error == 0 && event.handle != 0);
		if (event.kind == HANDOFF_EVENT_ACCEPTED) {
			CHECK(event.user_data == 5);
			server = event.handle;
		} else {
			CHECK(event.kind == HANDOFF_EVENT_CONNECTED && event.user_data == 6);
			client = event.handle;
		}
	}
	CHECK(getsockname(handoff_socket_fd(client), (struct sockaddr *)&seen, &length) == 0);
	CHECK(seen.sin_addr.s_addr == from.sin_addr.s_addr && seen.sin_port != 0);
	CHECK(number(client, IPPROTO_TCP, TCP_NODELAY) == 1);
	CHECK(number(client, IPPROTO_TCP, TCP_USER_TIMEOUT) == 20000);
	CHECK(number(server, IPPROTO_TCP, TCP_KEEPIDLE) == 77);

	CHECK(handoff_socket_get_options(client, &told) == 0);
	CHECK(told.size == sizeof(told));
	CHECK(told.given & HANDOFF_OPTION_NODELAY && told.nodelay == 1);
	CHECK(told.given & HANDOFF_OPTION_LINGER && told.linger == 3);
	CHECK(told.given & HANDOFF_OPTION_USER_TIMEOUT && told.user_timeout_ms == 20000);
	CHECK(told.given & HANDOFF_OPTION_SEND_BUFFER && told.send_buffer == 200000);
	CHECK(told.given & HANDOFF_OPTION_DEVICE && told.device[0] == 0);
	CHECK(!(told.given & (HANDOFF_OPTION_BIND | HANDOFF_OPTION_BACKLOG)));

	/* A struct of before some options were added. */
	told = none();
	told.size = offsetof(struct handoff_socket_options, keepalive) + 2;
	CHECK(handoff_socket_get_options(client, &told) == 0);
	CHECK(told.given == (HANDOFF_OPTION_NODELAY | HANDOFF_OPTION_LINGER));
	CHECK(told.nodelay == 1 && told.linger == 3 && told.send_buffer == 0);
	told = none();

	options = none();
	options.given = HANDOFF_OPTION_LINGER | HANDOFF_OPTION_KEEPALIVE | HANDOFF_OPTION_PRIORITY;
	options.linger = -1;
	options.keepalive = 1;
	options.priority = 5;
	CHECK(handoff_socket_set_options(client, &options) == 0);
	CHECK(handoff_socket_get_options(client, &told) == 0);
	CHECK(told.linger == -1 && told.keepalive == 1 && told.priority == 5 && told.nodelay == 1);

	CHECK(handoff_close(listener) == 0);
	CHECK(handoff_close(client) == 0);
	CHECK(handoff_close(server) == 0);
	close(held);
	/* The kernel lets go of what was closed. */
	while (handoff_driver_in_flight(driver) > 0)
		CHECK(handoff_turn(driver, 1000 * 1000, NULL, 0) == 0);
}

static void refused(handoff_driver driver)
{
	struct handoff_socket_options options = none();
	struct sockaddr_in address = loopback(0);
	handoff_socket it;
	handoff_listener listener;

	CHECK(handoff_socket_new(driver, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), &it) == 0);
	options.size = 0;
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	CHECK(handoff_socket_get_options(it, &options) == -EINVAL);
	CHECK(handoff_socket_get_options(it, NULL) == -EINVAL);
	options = none();
	options.given = 1u << 30;
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "HANDOFF_OPTION_") != NULL);
	options.given = HANDOFF_OPTION_NODELAY;
	options.nodelay = 2;
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	options.given = HANDOFF_OPTION_LINGER;
	options.linger = -2;
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	options.given = HANDOFF_OPTION_BACKLOG;
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	CHECK(handoff_connect_with(driver, &address, sizeof(address), &options, 1, NULL) == -EINVAL);
	options.given = HANDOFF_OPTION_BIND;
	CHECK(handoff_connect_with(driver, &address, sizeof(address), &options, 1, NULL) == -EINVAL);
	options.bind = &address;
	options.bind_length = sizeof(address);
	CHECK(handoff_listen_at(driver, &address, sizeof(address), &options, 1, &listener) == -EINVAL);
	options.given = HANDOFF_OPTION_DEVICE;
	memset(options.device, 'x', sizeof(options.device));
	CHECK(handoff_socket_set_options(it, &options) == -EINVAL);
	options.device[5] = 0;
	CHECK(handoff_socket_set_options(it, &options) < 0);
	CHECK(strstr(handoff_error_text(), "SO_BINDTODEVICE") != NULL);
	CHECK(handoff_connect_with(driver, NULL, 0, NULL, 1, NULL) == -EINVAL);
	CHECK(handoff_connect_with(driver, &address, 3, NULL, 1, NULL) == -EINVAL);
	CHECK(handoff_socket_set_options(driver, &options) == -EBADF);
	CHECK(handoff_close(it) == 0);
}

static void drivers_have_them(void)
{
	struct handoff_driver_options options;
	handoff_driver driver;
	uint64_t calls;
	int polls;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.sq_poll_cpu = 1;
	CHECK(handoff_driver_new(&options, &driver) == -EINVAL);
	options.sq_poll_cpu = 0;
	options.sq_poll_idle_ms = 1;
	options.ring = HANDOFF_RING_AVOID;
	CHECK(handoff_driver_new(&options, &driver) == -EINVAL);
	options.ring = HANDOFF_RING_PREFER;
	options.pipes = 3;
	CHECK(handoff_driver_new(&options, &driver) == 0);
	polls = handoff_driver_sq_poll(driver);
	CHECK(polls == 1 || (polls == -EOPNOTSUPP && handoff_error_text()[0] != 0));
	connections_have_them(driver);
	CHECK(handoff_driver_ring_calls(driver, &calls) == 0);
	CHECK(handoff_driver_ring_calls(driver, NULL) == -EINVAL);
	CHECK(handoff_close(driver) == 0);
	/* What a processor is not, is said. */
	options.sq_poll_cpu = 1 << 20;
	CHECK(handoff_driver_new(&options, &driver) == 0);
	CHECK(handoff_driver_sq_poll(driver) == -EOPNOTSUPP);
	CHECK(handoff_close(driver) == 0);
}

void option_cases(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);

	CHECK(handoff_driver_sq_poll(driver) == 0);
	connections_have_them(driver);
	refused(driver);
	CHECK(handoff_driver_in_flight(driver) == 0);
	CHECK(handoff_close(driver) == 0);
	if (ring == HANDOFF_RING_PREFER)
		drivers_have_them();
}
