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
#define EVENTS 64
/* What events are about: the listener, and connections from 0 on. */
#define LISTENER CONNECTIONS

static struct connection {
	handoff_socket socket;
	handoff_receiver receiver;
	unsigned long long received, spans;
} connections[CONNECTIONS];

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

static void begin(const struct handoff_event *event, handoff_pool pool)
{
	unsigned int place = 0;

	must(event->error, "accept");
	while (place < CONNECTIONS && connections[place].socket)
		place++;
	if (place == CONNECTIONS) {
		handoff_close(event->handle);
		return;
	}
	connections[place].socket = event->handle;
	must(handoff_receive(event->handle, pool, place, &connections[place].receiver), "receive");
	printf("connection %u accepted\n", place);
	fflush(stdout);
}

static void verify(handoff_span span, unsigned long long at)
{
	const unsigned char *bytes;
	const void *data;
	size_t length;

	must(handoff_span_data(span, &data, &length), "look at a span");
	bytes = data;
	for (size_t byte = 0; byte < length; byte++)
		if (bytes[byte] != 'a' + (at + byte) % 26) {
			fprintf(stderr, "zcrx: byte %llu is wrong\n", at + byte);
			exit(1);
		}
}

static void end(const struct handoff_event *event)
{
	struct connection *it = &connections[event->user_data];

	if (event->error)
		fprintf(stderr, "zcrx: receive: %s\n", event->error_text);
	printf("connection %u ended: received %llu, spans %llu, copied %llu\n", (unsigned int)event->user_data,
	       it->received, it->spans, (unsigned long long)event->tally.copied);
	fflush(stdout);
	if (event->error || (expected && it->received != expected)) {
		fprintf(stderr, "zcrx: that is not what was expected\n");
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
	must(handoff_listen(driver, listening(), LISTENER, &listener), "listen");
	for (;;) {
		struct handoff_event events[EVENTS];
		int told = must(handoff_turn(driver, -1, events, EVENTS), "turn");

		for (struct handoff_event *event = events; event < events + told; event++)
			switch (event->kind) {
			case HANDOFF_EVENT_ACCEPTED:
				begin(event, pool);
				break;
			case HANDOFF_EVENT_RECEIVED:
				if (verifies)
					verify(event->handle, connections[event->user_data].received);
				connections[event->user_data].received += event->bytes;
				connections[event->user_data].spans++;
				handoff_close(event->handle);
				break;
			case HANDOFF_EVENT_ENDED:
				if (event->user_data == LISTENER)
					must(event->error, "accept");
				end(event);
				break;
			}
	}
}
