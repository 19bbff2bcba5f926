/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Receives from an rx queue of a network card without a copy, and counts: what liburing's example zcrx does, with its
 * options as far as the library has them. Prepare the queue with `handoff nic prepare`, which also steers the port's
 * connections to it.
 *
 *     cc zcrx.c $(pkg-config --cflags --libs handoff) -o zcrx && ./zcrx -i eth0 -q 3 -p 8000
 */
#include <arpa/inet.h>
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
static unsigned long long expected;

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

static void begin(handoff_socket accepted, handoff_pool pool)
{
	unsigned int place = 0;

	while (place < CONNECTIONS && connections[place].socket)
		place++;
	if (place == CONNECTIONS) {
		handoff_close(accepted);
		return;
	}
	connections[place].socket = accepted;
	must(handoff_receive_in_bulk(accepted, pool, &connections[place].receiver), "receive");
	if (place == places)
		places++;
	printf("connection %u accepted\n", place);
	fflush(stdout);
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
		fprintf(stderr, "zcrx: %llu bytes were expected\n", expected);
		exit(1);
	}
	handoff_close(it->receiver);
	handoff_close(it->socket);
	memset(it, 0, sizeof(*it));
}

static void usage(void)
{
	puts("Usage: zcrx -i INTERFACE -q QUEUE [options]\n"
	     "  -p PORT   listen on this port (8000)\n"
	     "  -s BYTES  a connection must bring so many\n"
	     "  -S BYTES  memory for the card (268435456)\n"
	     "  -A 0|1    1: of huge pages\n"
	     "  -v        verify that the bytes are a to z again and again");
	exit(2);
}

static void read_options(int argc, char **argv)
{
	int option;

	while ((option = getopt(argc, argv, "vp:i:q:s:S:A:")) != -1)
		switch (option) {
		case 'p': port = atoi(optarg); break;
		case 'i': interface = optarg; break;
		case 'q': queue = atoi(optarg); break;
		case 's': expected = strtoull(optarg, NULL, 0); break;
		case 'S': area = strtoul(optarg, NULL, 0); break;
		case 'A': huge = atoi(optarg); break;
		case 'v': verifies = 1; break;
		default: usage();
		}
	if (!interface || queue < 0 || optind != argc)
		usage();
}

int main(int argc, char **argv)
{
	struct handoff_driver_options options = { .size = sizeof(options), .zero_copy_receive = 1 };
	handoff_driver driver;
	handoff_region region;
	handoff_pool pool;
	handoff_listener listener;

	read_options(argc, argv);
	must(handoff_driver_new(&options, &driver), "make a driver");
	must(handoff_region_new(area, huge ? HANDOFF_PAGES_HUGE : HANDOFF_PAGES_BASE, &region), "make a region");
	must(handoff_rx_queue_new(driver, region, interface, (uint32_t)queue, &pool), "bind the queue");
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
