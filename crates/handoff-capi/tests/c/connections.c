/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

static int bound(struct sockaddr_in *address)
{
	socklen_t length = sizeof(*address);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(address, 0, sizeof(*address));
	address->sin_family = AF_INET;
	address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(fd, (struct sockaddr *)address, length) == 0);
	CHECK(getsockname(fd, (struct sockaddr *)address, &length) == 0);
	return fd;
}

static handoff_socket unconnected(handoff_driver driver)
{
	handoff_socket it;

	CHECK(handoff_socket_new(driver, socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), &it) == 0);
	return it;
}

static void both_ends(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct sockaddr_in address, peer;
	socklen_t length = sizeof(peer);
	handoff_listener listener;
	handoff_socket client = unconnected(driver), server = 0;
	handoff_region region;
	handoff_buffer buffer;
	void *data;
	int fd = bound(&address), is_connected = 0;

	CHECK(listen(fd, 8) == 0);
	CHECK(handoff_listen(driver, fd, 5, &listener) == 0);
	CHECK(handoff_connect(client, &address, sizeof(address), 6, NULL) == 0);
	while (!server || !is_connected) {
		struct handoff_event event = next_event(driver);

		CHECK(event.error == 0);
		if (event.kind == HANDOFF_EVENT_ACCEPTED) {
			CHECK(event.user_data == 5);
			server = event.handle;
		} else {
			CHECK(event.kind == HANDOFF_EVENT_CONNECTED);
			CHECK(event.user_data == 6 && event.handle == client);
			is_connected = 1;
		}
	}
	CHECK(getpeername(handoff_socket_fd(client), (struct sockaddr *)&peer, &length) == 0);
	CHECK(peer.sin_port == address.sin_port);

	/* What was accepted is a socket like any other. */
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 100, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	memset(data, 6, 100);
	CHECK(handoff_send(server, buffer, NULL, 7, NULL) == 0);
	CHECK(next_event(driver).bytes == 100);
	exactly(handoff_socket_fd(client), 6, 100);

	/* Without its listener, the port is closed. */
	CHECK(handoff_close(listener) == 0);
	CHECK(handoff_turn(driver, 0, NULL, 0) == 0);
	CHECK(handoff_close(client) == 0);
	CHECK(handoff_socket_fd(client) == -EBADF);
	CHECK(handoff_close(server) == 0);
	for (int error = 0; error == 0;) {
		struct handoff_event event;

		client = unconnected(driver);
		CHECK(handoff_connect(client, &address, sizeof(address), 8, NULL) == 0);
		event = next_event(driver);
		CHECK(event.kind == HANDOFF_EVENT_CONNECTED && event.handle == client);
		error = event.error;
		CHECK(error == 0 || error == -ECONNREFUSED || error == -ECONNRESET);
		CHECK(error == 0 || strlen(event.error_text) > 0);
		CHECK(handoff_close(client) == 0);
	}
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
}

/* The listener has no room, so the connection does not come about. */
static void cancelled(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct sockaddr_in address;
	handoff_operation operation;
	handoff_socket client = unconnected(driver);
	struct handoff_event event;
	int fd = bound(&address), fillers[3];

	CHECK(listen(fd, 0) == 0);
	for (int number = 0; number < 3; number++) {
		fillers[number] = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
		connect(fillers[number], (struct sockaddr *)&address, sizeof(address));
	}
	/* With one in its queue it is full. */
	await_readable(fd);
	CHECK(handoff_connect(client, &address, sizeof(address), 1, &operation) == 0);
	CHECK(handoff_turn(driver, 50 * 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_cancel(operation) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_CONNECTED && event.error == -ECANCELED);
	CHECK(handoff_cancel(operation) == 0);
	CHECK(handoff_close(operation) == 0);
	CHECK(handoff_cancel(operation) == -EBADF);
	CHECK(handoff_close(client) == 0);
	CHECK(handoff_close(driver) == 0);
	close(fd);
	for (int number = 0; number < 3; number++)
		close(fillers[number]);
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	CHECK(directory);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* As long as no events are taken, most of a crowd stays in the kernel's queue. */
static void crowd(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct sockaddr_in address;
	handoff_listener listener;
	int fd = bound(&address), clients[300], before;
	const int count = sizeof(clients) / sizeof(clients[0]);

	CHECK(listen(fd, count) == 0);
	CHECK(handoff_listen(driver, fd, 5, &listener) == 0);
	before = descriptors() + count;
	for (int number = 0; number < count; number++) {
		clients[number] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
		CHECK(connect(clients[number], (struct sockaddr *)&address, sizeof(address)) == 0);
		CHECK(handoff_turn(driver, 1000 * 1000, NULL, 0) == 0);
	}
	CHECK(descriptors() > before && descriptors() < before + count / 2);
	for (int number = 0; number < count; number++) {
		struct handoff_event event = next_event(driver);

		CHECK(event.kind == HANDOFF_EVENT_ACCEPTED && event.error == 0);
		CHECK(handoff_close(event.handle) == 0);
		CHECK(close(clients[number]) == 0);
	}
	CHECK(handoff_close(listener) == 0);
	CHECK(handoff_close(driver) == 0);
}

/* A connection that nobody was told of is closed with its driver. */
static void untold(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct timeval timeout = { 10, 0 };
	struct sockaddr_in address;
	handoff_listener listener;
	int fd = bound(&address), client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	char place;

	CHECK(listen(fd, 8) == 0);
	CHECK(handoff_listen(driver, fd, 5, &listener) == 0);
	CHECK(connect(client, (struct sockaddr *)&address, sizeof(address)) == 0);
	for (int turns = 0; turns < 5; turns++)
		CHECK(handoff_turn(driver, 10 * 1000 * 1000, NULL, 0) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(listener) == 0);
	CHECK(setsockopt(client, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout)) == 0);
	CHECK(recv(client, &place, 1, 0) == 0 || errno == ECONNRESET);
	close(client);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct sockaddr_in address;
	struct sockaddr_in6 six;
	struct sockaddr_un elsewhere;
	handoff_socket client = unconnected(driver);
	handoff_listener listener;
	handoff_operation operation;
	int fd = bound(&address), pipes[2];

	memset(&elsewhere, 0, sizeof(elsewhere));
	elsewhere.sun_family = AF_UNIX;
	CHECK(handoff_connect(client, NULL, 0, 0, &operation) == -EINVAL);
	CHECK(handoff_connect(client, &address, 3, 0, NULL) == -EINVAL);
	memset(&six, 0, sizeof(six));
	six.sin6_family = AF_INET6;
	CHECK(handoff_connect(client, &six, sizeof(address), 0, NULL) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "sockaddr_in6") != NULL);
	CHECK(handoff_connect(client, &elsewhere, sizeof(elsewhere), 0, NULL) == -EINVAL);
	CHECK(handoff_connect(driver, &address, sizeof(address), 0, NULL) == -EBADF);
	CHECK(handoff_socket_fd(driver) == -EBADF);

	/* What is no listener is refused, and closed. */
	CHECK(handoff_listen(driver, -1, 0, &listener) == -EBADF);
	CHECK(handoff_listen(driver, fd, 0, &listener) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "listen(2)") != NULL);
	CHECK(fcntl(fd, F_GETFD) == -1);
	CHECK(pipe(pipes) == 0);
	CHECK(handoff_listen(driver, pipes[0], 0, &listener) == -EINVAL);
	close(pipes[1]);
	fd = bound(&address);
	CHECK(listen(fd, 1) == 0);
	CHECK(handoff_listen(driver, fd, 0, NULL) == -EINVAL);
	fd = bound(&address);
	CHECK(listen(fd, 1) == 0);
	CHECK(handoff_listen(client, fd, 0, &listener) == -EBADF);
	CHECK(fcntl(fd, F_GETFD) == -1);
	CHECK(handoff_close(client) == 0);
	CHECK(handoff_close(driver) == 0);
}

void connection_cases(uint32_t ring)
{
	both_ends(ring);
	cancelled(ring);
	crowd(ring);
	untold(ring);
	misused(ring);
}
