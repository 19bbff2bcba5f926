/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Receives from an rx queue of a network card without a copy, and counts: what liburing's example zcrx does, with its
 * options. Prepare the queue with `handoff nic prepare`, which also steers the port's connections to it.
 *
 *     cc zcrx.c $(pkg-config --cflags --libs handoff) -o zcrx && ./zcrx -i eth0 -q 3 -p 8000
 *
 * What is different:
 *   -r 1  (the kernel makes the refill queue) is refused: the library has it in memory of its own always, as -r 0 says.
 *   -R    (its entries) is refused: the library gives it an entry for each chunk, so -S is what counts.
 *   -A 2  (a dma-buf) is refused: handoff.h has no such areas; Driver::dma_buf_queue in Rust has.
 *   -c    without a processor of the socket's, or with one that this process may not use, is an error.
 *   There are at most 64 connections; more are closed at once. An end before the bytes of -s is an error.
 */
#define _GNU_SOURCE 1 /* sched_setaffinity() */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <handoff.h>

#define CONNECTIONS 64
static struct connection {
	handoff_socket socket;
	handoff_receiver receiver;
	unsigned long long received, spans;
} connections[CONNECTIONS];
/* How many of these were ever used. */
static unsigned int places;

static const char *interface;
static int queue = -1, port = 8000, verifies, huge;
static size_t area = 256 << 20;
static uint32_t expected, completions;
/* Where to receive: anywhere, where the kernel handles the socket's packets, or on another processor. */
static enum { ANYWHERE, SAME, DIFFERENT } affinity;

static int must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "zcrx: %s: %s\n", what, handoff_error_text());
		exit(1);
	}
	return result;
}

static int listening(void)
{
	struct sockaddr_in6 address = { .sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port) };
	int one = 1, fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof(address)) || listen(fd, CONNECTIONS)) {
		perror("zcrx: listen");
		exit(1);
	}
	return fd;
}

/* Moves to a processor for a connection. The first one decides: there is one thread for all. */
static void pin(int fd)
{
	static int pinned = -1;
	int cpu = -1;
	socklen_t length = sizeof(cpu);
	cpu_set_t set;

	if (affinity == ANYWHERE)
		return;
	if (getsockopt(fd, SOL_SOCKET, SO_INCOMING_CPU, &cpu, &length) || cpu < 0) {
		fprintf(stderr, "zcrx: -c: the kernel does not tell the processor of the connection\n");
		exit(1);
	}
	if (affinity == DIFFERENT)
		cpu = pinned >= 0 && pinned != cpu ? pinned : cpu ^ 1;
	if (pinned >= 0 && cpu != pinned) {
		printf("-c: the first connection decided: the thread stays on processor %d\n", pinned);
		return;
	}
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set)) {
		fprintf(stderr, "zcrx: -c: pin to processor %d: %s\n", cpu, strerror(errno));
		exit(1);
	}
	pinned = cpu;
}

static void print_peer(unsigned int place, int fd)
{
	struct sockaddr_in6 peer;
	socklen_t length = sizeof(peer);
	char text[INET6_ADDRSTRLEN] = "?";

	memset(&peer, 0, sizeof(peer));
	if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0)
		inet_ntop(AF_INET6, &peer.sin6_addr, text, sizeof(text));
	printf("connection %u accepted, of %s port %d\n", place, text, ntohs(peer.sin6_port));
	fflush(stdout);
}

static void begin(handoff_socket accepted, handoff_pool pool)
{
	int fd = must(handoff_socket_fd(accepted), "look at a connection");
	unsigned int place = 0;

	while (place < CONNECTIONS && connections[place].socket)
		place++;
	if (place == CONNECTIONS) {
		handoff_close(accepted);
		return;
	}
	print_peer(place, fd);
	pin(fd);
	connections[place].socket = accepted;
	must(handoff_receive_in_bulk(accepted, pool, &connections[place].receiver), "receive");
	if (place == places)
		places++;
}

static void look(const void *data, size_t length, void *context)
{
	const unsigned char *bytes = data;
	struct connection *it = context;

	for (size_t byte = 0; verifies && byte < length; byte++)
		if (bytes[byte] != 'a' + (it->received + byte) % 26) {
			fprintf(stderr, "zcrx: byte %llu is wrong\n", it->received + byte);
			exit(1);
		}
	it->received += length;
	it->spans++;
}

/* What came for a connection, and its end. */
static void visit(struct connection *it)
{
	if (!it->socket || must(handoff_visit(it->receiver, look, it), "receive"))
		return;
	printf("connection ended: received %llu, spans %llu\n", it->received, it->spans);
	fflush(stdout);
	if (expected && it->received != expected) {
		fprintf(stderr, "zcrx: %u bytes were expected\n", expected);
		exit(1);
	}
	handoff_close(it->receiver);
	handoff_close(it->socket);
	memset(it, 0, sizeof(*it));
}

static void usage(int status)
{
	fputs("Usage: zcrx -i INTERFACE -q QUEUE [options]\n"
	     "  -p PORT   listen on this port (8000)\n"
	     "  -s BYTES  a connection brings so many, and ends behind them; 0: it ends as its peer says (0)\n"
	     "  -S BYTES  memory for the card (268435456)\n"
	     "  -A 0|1    1: of huge pages (0; 2, a dma-buf, is refused)\n"
	     "  -C NUMBER places of the completion queue (8192)\n"
	     "  -c 0|1|2  receive anywhere, on the processor of the connection, or on another (0)\n"
	     "  -r 0      the refill queue is in this program's memory, as always (1 is refused)\n"
	     "  -R NUMBER is refused: the refill queue has an entry for each chunk\n"
	     "  -v        verify that the bytes are a to z again and again\n", status ? stderr : stdout);
	exit(status);
}

/* Ends for a command line that can't be followed. */
static void refuse(const char *why)
{
	fprintf(stderr, "zcrx: %s\n", why);
	exit(2);
}

static unsigned long number(int option, unsigned long least, unsigned long most)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(optarg, &end, 0);
	if (!isdigit((unsigned char)*optarg) || *end || errno || value < least || value > most) {
		fprintf(stderr, "zcrx: -%c %s: give a number from %lu to %lu\n", option, optarg, least, most);
		exit(2);
	}
	return value;
}

static void read_options(int argc, char **argv)
{
	unsigned long kind;
	int option;

	if (argc < 2 || !strcmp(argv[1], "--help"))
		usage(argc < 2 ? 2 : 0);
	while ((option = getopt(argc, argv, "vp:i:q:s:r:A:S:C:R:c:")) != -1)
		switch (option) {
		case 'p': port = (int)number(option, 0, 65535); break;
		case 'i': interface = optarg; break;
		case 'q': queue = (int)number(option, 0, INT_MAX); break;
		case 's': expected = (uint32_t)number(option, 0, UINT32_MAX); break;
		case 'S': area = number(option, 1, SIZE_MAX); break;
		case 'A':
			kind = number(option, 0, 2);
			huge = kind == 1;
			if (kind == 2)
				refuse("-A 2: handoff.h has no areas of dma-bufs; take 0 or 1, or "
				       "Driver::dma_buf_queue in Rust");
			break;
		case 'C': completions = (uint32_t)number(option, 1, UINT32_MAX); break;
		case 'c': affinity = number(option, 0, 2); break;
		case 'r':
			if (number(option, 0, 1))
				refuse("-r 1: the library has the refill queue in memory of its own; take -r 0");
			break;
		case 'R':
			refuse("-R: the library's refill queue has an entry for each chunk; give the card's "
			       "memory with -S instead");
			break;
		case 'v': verifies = 1; break;
		default: usage(2);
		}
	if (!interface)
		refuse("give the interface: -i INTERFACE");
	if (queue < 0)
		refuse("give the queue: -q QUEUE");
	if (optind != argc)
		usage(2);
}

int main(int argc, char **argv)
{
	struct handoff_driver_options options = { .size = sizeof(options), .zero_copy_receive = 1 };
	handoff_driver driver;
	handoff_region region;
	handoff_pool pool;
	handoff_listener listener;

	read_options(argc, argv);
	options.completions = completions;
	must(handoff_driver_new(&options, &driver), "make a driver");
	must(handoff_region_new(area, huge ? HANDOFF_PAGES_HUGE : HANDOFF_PAGES_BASE, &region), "make a region");
	must(handoff_rx_queue_new(driver, region, interface, (uint32_t)queue, &pool), "bind the queue");
	if (expected)
		must(handoff_rx_queue_take(pool, expected, &pool), "receive so many bytes");
	must(handoff_listen(driver, listening(), 0, &listener), "listen");
	for (;;) {
		struct handoff_event event;

		/* Only the listener has events: receivers in bulk are visited after each turn. */
		if (must(handoff_turn(driver, -1, &event, 1), "turn")) {
			must(event.error, "accept");
			begin(event.handle, pool);
		}
		for (unsigned int place = 0; place < places; place++)
			visit(&connections[place]);
	}
}
