/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * An echo server in an event loop of its own: what comes is sent back from where it was received. With -u it answers
 * datagrams, each to its sender; with -6 it has IPv6, and IPv4 by it. A peer that takes none of what comes back for -p
 * seconds (5) is reset: it would keep chunks of the pool from the others.
 *
 *     cc echo.c $(pkg-config --cflags --libs handoff) -o echo && ./echo [-u] [-6] [-p SECONDS] 7000
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <handoff.h>

#define CONNECTIONS 1024

static struct connection {
	handoff_socket socket;
	handoff_receiver receiver;
	/* Tells connections apart that had this place. */
	uint64_t use;
	/* Spans on their way back, and when the peer last took one, or had none to take. */
	unsigned int out;
	time_t since;
} connections[CONNECTIONS];

static int must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "echo: %s: %s\n", what, handoff_error_text());
		exit(1);
	}
	return result;
}

static int datagrams, ipv6, timeout = 5;

static time_t now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec;
}

static int listening(int port)
{
	struct sockaddr_in four = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 six = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	struct sockaddr *address = ipv6 ? (struct sockaddr *)&six : (struct sockaddr *)&four;
	socklen_t length = ipv6 ? sizeof(six) : sizeof(four);
	int listener = socket(address->sa_family, datagrams ? SOCK_DGRAM : SOCK_STREAM, 0);

	if (bind(listener, address, length) || (!datagrams && listen(listener, 64)) ||
	    getsockname(listener, address, &length)) {
		perror("echo: listen");
		exit(1);
	}
	printf("listening on port %d\n", ntohs(ipv6 ? six.sin6_port : four.sin_port));
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
	must(handoff_receive(it->socket, pool, it->use * CONNECTIONS + place, &it->receiver), "receive");
}

static void end(struct connection *it)
{
	handoff_close(it->receiver);
	handoff_close(it->socket); /* what is on its way goes out */
	*it = (struct connection){ .use = it->use + 1 };
}

/* Peers that take nothing. Receiving from one that is reset ends. */
static void reset_stalled(void)
{
	for (struct connection *it = connections; it < connections + CONNECTIONS; it++) {
		if (!it->socket || !it->out || now() - it->since <= timeout)
			continue;
		handoff_abort(it->socket);
		it->since = now();
	}
}

/* The first place is the socket that gets all datagrams. */
static void begin_datagrams(handoff_driver driver, handoff_pool pool, int fd)
{
	must(handoff_socket_new(driver, fd, &connections[0].socket), "attach the socket");
	must(handoff_pool_with_senders(pool, &pool), "keep senders");
	must(handoff_receive(connections[0].socket, pool, 0, &connections[0].receiver), "receive");
}

static void answer_datagram(const struct handoff_event *event)
{
	struct sockaddr_storage sender;
	struct handoff_send_options options = { .size = sizeof(options), .address = &sender };

	if (event->kind == HANDOFF_EVENT_ENDED) {
		fprintf(stderr, "echo: receive: %s\n", event->error_text);
		exit(1);
	}
	/* Else an answer is over, and if it failed, it is lost as datagrams are. */
	if (event->kind != HANDOFF_EVENT_RECEIVED)
		return;
	options.address_length = sizeof(sender);
	must(handoff_span_sender(event->handle, &sender, &options.address_length, NULL), "look at the sender");
	if (handoff_send(connections[0].socket, event->handle, &options, 0, NULL) < 0)
		handoff_close(event->handle);
}

static void answer(const struct handoff_event *event)
{
	struct connection *it = &connections[event->user_data % CONNECTIONS];
	int is_there = it->socket && it->use == event->user_data / CONNECTIONS;

	if (event->kind == HANDOFF_EVENT_RECEIVED) {
		if (is_there && handoff_send(it->socket, event->handle, NULL, event->user_data, NULL) == 0) {
			if (it->out++ == 0)
				it->since = now();
			return;
		}
		handoff_close(event->handle);
	}
	if (event->kind == HANDOFF_EVENT_RETURNED && is_there) {
		it->out--;
		it->since = now();
	}
	if (event->kind == HANDOFF_EVENT_ENDED && is_there)
		end(it);
}

int main(int argc, char **argv)
{
	int option, listener, loop = epoll_create1(0);
	handoff_driver driver;
	handoff_region region;
	handoff_pool pool;

	while ((option = getopt(argc, argv, "u6p:")) != -1) {
		datagrams |= option == 'u';
		ipv6 |= option == '6';
		if (option == 'p')
			timeout = atoi(optarg);
		if (option == '?')
			exit(2);
	}
	listener = listening(optind < argc ? atoi(argv[optind]) : 0);
	must(handoff_driver_new(NULL, &driver), "make a driver");
	must(handoff_region_new(16 << 20, HANDOFF_PAGES_BASE, &region), "make a region");
	if (handoff_register(driver, region) < 0)
		fprintf(stderr, "echo: unregistered memory: %s\n", handoff_error_text());
	/* A chunk has room for the longest datagram. */
	must(handoff_pool_new(driver, region, datagrams ? HANDOFF_DATAGRAM_HEAD + (64 << 10) : 16 << 10, &pool),
	     "make a pool");
	if (datagrams)
		begin_datagrams(driver, pool, listener);

	int watched[] = { handoff_driver_fd(driver), listener };
	for (int i = 0; i < 2 - datagrams; i++)
		epoll_ctl(loop, EPOLL_CTL_ADD, watched[i],
			  &(struct epoll_event){ .events = EPOLLIN, .data.fd = watched[i] });
	for (;;) {
		struct handoff_event events[64];
		struct epoll_event ready;
		int told;

		while ((told = must(handoff_turn(driver, 0, events, 64), "turn")) > 0)
			for (int i = 0; i < told; i++)
				(datagrams ? answer_datagram : answer)(&events[i]);
		if (epoll_wait(loop, &ready, 1, 1000) > 0 && ready.data.fd == listener)
			begin(driver, pool, accept(listener, NULL, NULL));
		reset_stalled();
	}
}
