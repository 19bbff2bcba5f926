/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends the same messages again and again, and says how fast: what liburing's example send-zerocopy does, with its
 * options as far as the library has them.
 *
 *     cc send_zerocopy.c $(pkg-config --cflags --libs handoff) -o send_zerocopy
 *     ./send_zerocopy -4 -R -p 8000 tcp &
 *     ./send_zerocopy -4 -D 127.0.0.1 -p 8000 -s 65536 -n 8 -t 2 tcp
 */
#include <arpa/inet.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <handoff.h>

#define MOST_THREADS 100
#define MOST_REQUESTS 512
/* Messages that may be on loan at once, at least; each has memory of its own. */
#define ON_LOAN 64

static struct {
	int family, type, receives, lends, registered, huge, cpu, threads, port, seconds;
	unsigned int requests;
	size_t bytes;
	const char *address, *device;
} options = {
	.lends = 1, .registered = 1, .cpu = -1, .threads = 1, .port = 8000, .seconds = 4,
	.requests = 8, .bytes = 65435, .address = NULL, .device = NULL,
};

static struct worker {
	pthread_t thread;
	int fd;
	unsigned long long packets, bytes;
	double seconds;
} workers[MOST_THREADS];

static struct sockaddr_storage peer;
static socklen_t peer_length;
static pthread_barrier_t begin;

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static int must(int result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "send_zerocopy: %s: %s\n", what, handoff_error_text());
		exit(1);
	}
	return result;
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void pin(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(options.cpu, &set);
	if (options.cpu >= 0 && sched_setaffinity(0, sizeof(set), &set))
		die("pin to the processor");
}

static void check(const struct handoff_event *event, const char *what)
{
	if (event->error) {
		/* What a lane gives back has its text elsewhere. */
		fprintf(stderr, "send_zerocopy: %s: %s\n", what,
			event->error_text ? event->error_text : handoff_error_text());
		exit(1);
	}
}

static void count(struct worker *it, const struct handoff_event *event)
{
	check(event, "send");
	it->packets++;
	it->bytes += event->bytes;
}

/* Lends through a lane: what is back goes again. */
static void lend(struct worker *it, handoff_driver driver, handoff_socket sender,
		 handoff_region region, handoff_buffer *buffers, unsigned int free)
{
	struct handoff_event events[ON_LOAN];
	unsigned int loops = 0, on_loan = 0;
	double end = now() + options.seconds;
	handoff_lane lane;

	must(handoff_lane_new(sender, region, free, &lane), "make a lane");
	while (on_loan || loops % 16 || now() < end) {
		int taken, over = loops % 16 == 0 && now() >= end;

		if (!over && free) {
			unsigned int next = free < options.requests ? free : options.requests;

			int lent = handoff_lane_push(lane, buffers + free - next, next, 0);

			/* A stream that broke takes no more, and what comes back says why. */
			if (lent < 0 && on_loan)
				lent = 0;
			must(lent, "send");
			/* All, or none: the lane has room for as many as there are. */
			on_loan += (unsigned int)lent;
			free -= (unsigned int)lent;
		}
		must(handoff_turn(driver, free && !over ? 0 : -1, NULL, 0), "turn");
		taken = must(handoff_lane_take(lane, events, ON_LOAN), "take back");
		for (int event = 0; event < taken; event++) {
			count(it, &events[event]);
			buffers[free++] = events[event].handle;
			on_loan--;
		}
		loops += !over;
	}
	handoff_close(lane);
}

/* Sends each by itself, copied. */
static void copy(struct worker *it, handoff_driver driver, handoff_socket sender,
		 handoff_buffer *buffers, unsigned int free)
{
	struct handoff_event events[ON_LOAN];
	unsigned int on_loan = 0;
	double end = now() + options.seconds;

	must(handoff_socket_set_engine(sender, HANDOFF_ENGINE_COPY), "copy");
	while (on_loan || now() < end) {
		int told, over = now() >= end;

		for (unsigned int request = 0; request < options.requests && free && !over; request++) {
			must(handoff_send(sender, buffers[--free], NULL, 0, NULL), "send");
			on_loan++;
		}
		told = must(handoff_turn(driver, -1, events, ON_LOAN), "turn");
		for (int event = 0; event < told; event++) {
			count(it, &events[event]);
			buffers[free++] = events[event].handle;
			on_loan--;
		}
	}
}

static void *send_all(void *argument)
{
	struct worker *it = argument;
	unsigned int places = options.requests > ON_LOAN / 2 ? 2 * options.requests : ON_LOAN;
	size_t room = (options.bytes + 4095) / 4096 * 4096;
	handoff_buffer *buffers = calloc(places, sizeof(*buffers));
	handoff_driver driver;
	handoff_socket sender;
	handoff_region region;
	void *data;
	int fd = socket(options.family, options.type, 0);

	pin();
	if (options.device && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, options.device,
					 (socklen_t)strlen(options.device)))
		die("bind to the device");
	if (!buffers || fd < 0 || connect(fd, (struct sockaddr *)&peer, peer_length))
		die("connect");
	must(handoff_driver_new(NULL, &driver), "make a driver");
	must(handoff_socket_new(driver, fd, &sender), "attach the socket");
	must(handoff_region_new(places * room, options.huge ? HANDOFF_PAGES_HUGE : HANDOFF_PAGES_BASE,
				&region), "make a region");
	if (options.registered)
		must(handoff_register(driver, region), "register memory");
	for (unsigned int place = 0; place < places; place++) {
		must(handoff_buffer_new(region, room, &buffers[place]), "cut a buffer");
		must(handoff_buffer_set_length(buffers[place], options.bytes), "cut a buffer");
		must(handoff_buffer_data(buffers[place], &data, NULL), "fill a buffer");
		for (size_t at = 0; at < options.bytes; at++)
			((char *)data)[at] = (char)('a' + at % 26);
	}

	pthread_barrier_wait(&begin);
	it->seconds = now();
	if (options.lends)
		lend(it, driver, sender, region, buffers, places);
	else
		copy(it, driver, sender, buffers, places);
	it->seconds = now() - it->seconds;
	free(buffers);
	return NULL;
}

/* Counts what comes, until nothing has come for a while, or the peer has closed. */
static void *receive_all(void *argument)
{
	struct worker *it = argument;
	struct handoff_event events[ON_LOAN];
	handoff_driver driver;
	handoff_socket receiver;
	handoff_region region;
	handoff_pool pool;
	handoff_receiver receiving;
	double end;
	int told, over = 0;

	pin();
	must(handoff_driver_new(NULL, &driver), "make a driver");
	must(handoff_socket_new(driver, it->fd, &receiver), "attach the socket");
	must(handoff_region_new(16 << 20, HANDOFF_PAGES_BASE, &region), "make a region");
	must(handoff_pool_new(driver, region, 1 << 16, &pool), "make a pool");
	must(handoff_receive(receiver, pool, 0, &receiving), "receive");
	it->seconds = now();
	end = it->seconds + options.seconds + 0.4;
	while (!over && now() < end) {
		told = must(handoff_turn(driver, 100 * 1000 * 1000, events, ON_LOAN), "turn");
		for (int event = 0; event < told; event++) {
			check(&events[event], "receive");
			over |= events[event].kind == HANDOFF_EVENT_ENDED;
			if (events[event].kind != HANDOFF_EVENT_RECEIVED)
				continue;
			it->packets++;
			it->bytes += events[event].bytes;
			handoff_close(events[event].handle);
		}
	}
	it->seconds = now() - it->seconds;
	return NULL;
}

static void listen_for_workers(void)
{
	int one = 1, fd = socket(options.family, options.type, 0);

	setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (struct sockaddr *)&peer, peer_length) ||
	    getsockname(fd, (struct sockaddr *)&peer, &peer_length))
		die("bind");
	if (options.type == SOCK_STREAM && listen(fd, options.threads))
		die("listen");
	/* The port is at the same place in the addresses of both families. */
	printf("listening on port %d\n", ntohs(((struct sockaddr_in *)&peer)->sin_port));
	fflush(stdout);
	if (options.type == SOCK_DGRAM) {
		workers[0].fd = fd;
		return;
	}
	for (int thread = 0; thread < options.threads; thread++)
		if ((workers[thread].fd = accept(fd, NULL, NULL)) < 0)
			die("accept");
	close(fd);
}

static void usage(void)
{
	puts("Usage: send_zerocopy -4|-6 -D ADDRESS|-R [options] tcp|udp\n"
	     "  -4, -6      IPv4 or IPv6\n"
	     "  -D ADDRESS  send to this address\n"
	     "  -R          receive\n"
	     "  -p PORT     connect to this port, or listen on it (8000)\n"
	     "  -I DEVICE   bind to this device\n"
	     "  -s BYTES    bytes of a message (65435)\n"
	     "  -n NUMBER   messages of a system call (8)\n"
	     "  -t SECONDS  how long (4)\n"
	     "  -z 0|1      1: lend (default), 0: copy\n"
	     "  -b 0|1      1: registered memory (default)\n"
	     "  -l 0|1      1: huge pages\n"
	     "  -d          tasks deferred to the turn, as always here\n"
	     "  -C CPU      pin to this processor\n"
	     "  -T NUMBER   threads (1)");
	exit(2);
}

static void read_options(int argc, char **argv)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&peer;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&peer;
	int option;

	while ((option = getopt(argc, argv, "46D:Rp:I:s:n:t:z:b:l:dC:T:")) != -1)
		switch (option) {
		case '4': options.family = AF_INET; break;
		case '6': options.family = AF_INET6; break;
		case 'D': options.address = optarg; break;
		case 'R': options.receives = 1; break;
		case 'p': options.port = atoi(optarg); break;
		case 'I': options.device = optarg; break;
		case 's': options.bytes = strtoul(optarg, NULL, 0); break;
		case 'n': options.requests = (unsigned int)strtoul(optarg, NULL, 0); break;
		case 't': options.seconds = atoi(optarg); break;
		case 'z': options.lends = atoi(optarg); break;
		case 'b': options.registered = atoi(optarg); break;
		case 'l': options.huge = atoi(optarg); break;
		case 'd': break;
		case 'C': options.cpu = atoi(optarg); break;
		case 'T': options.threads = atoi(optarg); break;
		default: usage();
		}
	if (optind != argc - 1 || !options.family || options.receives == !!options.address ||
	    options.requests < 1 || options.requests > MOST_REQUESTS || options.bytes < 1 ||
	    options.threads < 1 || options.threads > MOST_THREADS)
		usage();
	if (!strcmp(argv[optind], "tcp"))
		options.type = SOCK_STREAM;
	else if (!strcmp(argv[optind], "udp") && !(options.receives && options.threads > 1))
		options.type = SOCK_DGRAM;
	else
		usage();
	peer.ss_family = (sa_family_t)options.family;
	if (options.family == AF_INET) {
		four->sin_port = htons((uint16_t)options.port);
		peer_length = sizeof(*four);
	} else {
		six->sin6_port = htons((uint16_t)options.port);
		peer_length = sizeof(*six);
	}
	if (options.address && inet_pton(options.family, options.address, options.family == AF_INET ?
			(void *)&four->sin_addr : (void *)&six->sin6_addr) != 1)
		usage();
}

int main(int argc, char **argv)
{
	unsigned long long packets = 0, bytes = 0;
	double seconds = 0;

	read_options(argc, argv);
	if (options.receives)
		listen_for_workers();
	pthread_barrier_init(&begin, NULL, (unsigned int)options.threads);
	for (int thread = 0; thread < options.threads; thread++)
		if (pthread_create(&workers[thread].thread, NULL, options.receives ? receive_all : send_all,
				   &workers[thread]))
			die("start a thread");
	for (int thread = 0; thread < options.threads; thread++) {
		pthread_join(workers[thread].thread, NULL);
		packets += workers[thread].packets;
		bytes += workers[thread].bytes;
		seconds += workers[thread].seconds / options.threads;
	}
	printf("packets=%llu (bytes=%llu), rps=%.0f (MB/s=%.1f)\n", packets, bytes,
	       (double)packets / seconds, (double)bytes / (1 << 20) / seconds);
	return 0;
}
