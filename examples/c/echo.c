/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An echo server in an event loop of its own: what comes is sent back from where it was received.
 *
 *     cc echo.c $(pkg-config --cflags --libs handoff) -o echo && ./echo 7000
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <handoff.h>

#define CONNECTIONS 1024

static struct connection {
	handoff_socket socket;
	handoff_receiver receiver;
} connections[CONNECTIONS];

static int must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "echo: %s: %s\n", what, handoff_error_text());
		exit(1);
	}
	return result;
}

static int listening(int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	socklen_t length = sizeof(address);
	int listener = socket(AF_INET, SOCK_STREAM, 0);

	if (bind(listener, (struct sockaddr *)&address, length) || listen(listener, 64) ||
	    getsockname(listener, (struct sockaddr *)&address, &length)) {
		perror("echo: listen");
		exit(1);
	}
	printf("listening on port %d\n", ntohs(address.sin_port));
	fflush(stdout);
	return listener;
}

static void begin(handoff_driver driver, handoff_pool pool, int fd)
{
	size_t place = 0;

	while (place < CONNECTIONS && connections[place].socket)
		place++;
	if (fd < 0 || place == CONNECTIONS) {
		close(fd);
		return;
	}
	struct connection *it = &connections[place];
	must(handoff_socket_new(driver, fd, &it->socket), "attach a connection");
	must(handoff_receive(it->socket, pool, place, &it->receiver), "receive");
}

static void end(struct connection *it)
{
	handoff_close(it->receiver);
	handoff_close(it->socket); /* what is on its way goes out */
	memset(it, 0, sizeof(*it));
}

static void answer(const struct handoff_event *event)
{
	struct connection *it = &connections[event->user_data];

	if (event->kind == HANDOFF_EVENT_RECEIVED) {
		if (it->socket && handoff_send(it->socket, event->handle, NULL, event->user_data, NULL) == 0)
			return;
		handoff_close(event->handle);
	}
	if (event->kind == HANDOFF_EVENT_ENDED && it->socket)
		end(it);
}

int main(int argc, char **argv)
{
	int listener = listening(argc > 1 ? atoi(argv[1]) : 0), loop = epoll_create1(0);
	handoff_driver driver;
	handoff_region region;
	handoff_pool pool;

	must(handoff_driver_new(NULL, &driver), "make a driver");
	must(handoff_region_new(16 << 20, HANDOFF_PAGES_BASE, &region), "make a region");
	if (handoff_register(driver, region) < 0)
		fprintf(stderr, "echo: unregistered memory: %s\n", handoff_error_text());
	must(handoff_pool_new(driver, region, 16 << 10, &pool), "make a pool");

	int watched[] = { listener, handoff_driver_fd(driver) };
	for (int i = 0; i < 2; i++)
		epoll_ctl(loop, EPOLL_CTL_ADD, watched[i],
			  &(struct epoll_event){ .events = EPOLLIN, .data.fd = watched[i] });
	for (;;) {
		struct handoff_event events[64];
		struct epoll_event ready;
		int told;

		while ((told = must(handoff_turn(driver, 0, events, 64), "turn")) > 0)
			for (int i = 0; i < told; i++)
				answer(&events[i]);
		if (epoll_wait(loop, &ready, 1, -1) > 0 && ready.data.fd == listener)
			begin(driver, pool, accept(listener, NULL, NULL));
	}
}
