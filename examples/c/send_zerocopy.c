/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sends the same messages again and again, and says how fast: what liburing's example send-zerocopy does, with all of
 * its options.
 *
 *     cc send_zerocopy.c $(pkg-config --cflags --libs handoff) -o send_zerocopy
 *     ./send_zerocopy -4 -R -p 8000 tcp &
 *     ./send_zerocopy -4 -D 127.0.0.1 -p 8000 -s 65536 -n 8 -t 2 tcp
 *
 * What is different:
 *   -d  is accepted, and changes nothing: the library always leaves the kernel's tasks to the turn.
 *   -v  is possible with -n above 1 on TCP, since the library keeps a stream in order. Each message is written anew
 *       then. With -R it verifies all bytes of senders that have -v; datagrams' first bytes are verified in any case.
 *   -y  has a receive wait on the sending socket, for which the ring polls it.
 *   -C  pins the threads, and not the kernel's helpers of the ring, which these sends don't use.
 *   -z 0  copies, one send for each message.
 *   A broken connection is an error. Ctrl-C ends a receiver, too, and figures follow.
 */
#define _GNU_SOURCE 1 /* sched_setaffinity() */
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
/* Seconds that a run takes beyond those of -t, as liburing's does; a receiver waits as long again, twice. */
#define LONGER 0.2
/* Bytes of a message are a to z again and again. */
#define LETTERS 26
/* A datagram of IPv6 with every header has room for so many. */
#define MOST_OF_DATAGRAM 65435
/* Of a datagram, the receiver always looks at so many. */
#define LOOKED_AT 64

static struct {
	int family, type, receives, lends, registered, huge, cpu, threads, port, seconds, verifies, polls;
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
static volatile sig_atomic_t stopped;

static void stop(int number)
{
	(void)number;
	stopped = 1;
}

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

	if (options.cpu < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(options.cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set))
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

/* Fills a buffer with the letters that follow so many bytes. */
static void fill(handoff_buffer buffer, unsigned long long before)
{
	void *data;
	size_t length;

	must(handoff_buffer_data(buffer, &data, &length), "fill a buffer");
	for (size_t at = 0; at < length; at++)
		((char *)data)[at] = (char)('a' + (before + at) % LETTERS);
}

/* Fills the buffers that go next, if their letters are to follow those of the last one: `sent` bytes went before. */
static void follow_on(const handoff_buffer *buffers, unsigned int count, unsigned long long *sent)
{
	if (!options.verifies || options.type != SOCK_STREAM)
		return;
	for (unsigned int place = 0; place < count; place++, *sent += options.bytes)
		fill(buffers[place], *sent);
}

static int is_over(double end)
{
	return stopped || now() >= end;
}

/* Lends through a lane: what is back goes again. */
static void lend(struct worker *it, handoff_driver driver, handoff_socket sender,
		 handoff_region region, handoff_buffer *buffers, unsigned int free)
{
	struct handoff_event events[ON_LOAN];
	unsigned int loops = 0, on_loan = 0;
	unsigned long long sent = 0;
	double end = now() + options.seconds + LONGER;
	handoff_lane lane;

	must(handoff_lane_new(sender, region, free, &lane), "make a lane");
	while (on_loan || loops % 16 || !is_over(end)) {
		int taken, over = loops % 16 == 0 && is_over(end);

		if (!over && free) {
			unsigned int next = free < options.requests ? free : options.requests;
			int lent;

			follow_on(buffers + free - next, next, &sent);
			lent = handoff_lane_push(lane, buffers + free - next, next, 0);
			/* A stream that broke takes no more, and what comes back says why. */
			if (lent < 0 && on_loan)
				lent = 0;
			must(lent, "send");
			/* All, or none: the lane has room for as many as there are. */
			on_loan += (unsigned int)lent;
			free -= (unsigned int)lent;
		}
		/* Lanes have no events, and that of a receive (-y) says nothing here; it is not waited for. */
		must(handoff_turn(driver, on_loan && (over || !free) ? -1 : 0, events, ON_LOAN), "turn");
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
	unsigned long long sent = 0;
	double end = now() + options.seconds + LONGER;

	must(handoff_socket_set_engine(sender, HANDOFF_ENGINE_COPY), "copy");
	while (on_loan || !is_over(end)) {
		int told, over = is_over(end);

		for (unsigned int request = 0; request < options.requests && free && !over; request++) {
			follow_on(buffers + free - 1, 1, &sent);
			must(handoff_send(sender, buffers[--free], NULL, 0, NULL), "send");
			on_loan++;
		}
		/* That of a receive (-y) is not waited for, and says nothing here. */
		told = must(handoff_turn(driver, on_loan ? -1 : 0, events, ON_LOAN), "turn");
		for (int event = 0; event < told; event++) {
			if (events[event].kind != HANDOFF_EVENT_RETURNED)
				continue;
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
	handoff_buffer *buffers = calloc(places, sizeof(*buffers)), received;
	handoff_driver driver;
	handoff_socket sender;
	handoff_region region;
	int fd = socket(options.family, options.type, 0);

	pin();
	if (options.device && setsockopt(fd, SOL_SOCKET, SO_BINDTODEVICE, options.device,
					 (socklen_t)strlen(options.device)))
		die("bind to the device");
	if (!buffers || fd < 0 || connect(fd, (struct sockaddr *)&peer, peer_length))
		die("connect");
	must(handoff_driver_new(NULL, &driver), "make a driver");
	must(handoff_socket_new(driver, fd, &sender), "attach the socket");
	must(handoff_region_new(places * room + 4096, options.huge ? HANDOFF_PAGES_HUGE : HANDOFF_PAGES_BASE,
				&region), "make a region");
	if (options.registered)
		must(handoff_register(driver, region), "register memory");
	for (unsigned int place = 0; place < places; place++) {
		must(handoff_buffer_new(region, room, &buffers[place]), "cut a buffer");
		must(handoff_buffer_set_length(buffers[place], options.bytes), "cut a buffer");
		fill(buffers[place], 0);
	}
	if (options.polls) {
		must(handoff_buffer_new(region, 1, &received), "cut a buffer");
		must(handoff_receive_into(sender, received, 0, 0, 0, NULL), "wait for bytes");
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

/* Whether so many bytes are letters that follow so many others. */
static int are_letters(const void *data, size_t length, unsigned long long before)
{
	for (size_t at = 0; at < length; at++)
		if (((const char *)data)[at] != (char)('a' + (before + at) % LETTERS))
			return 0;
	return 1;
}

static void verify(const struct worker *it, const struct handoff_event *event)
{
	int datagram = options.type == SOCK_DGRAM;
	const void *data;
	size_t length;

	if (!datagram && !options.verifies)
		return;
	must(handoff_span_data(event->handle, &data, &length), "look at a span");
	if (datagram && length != options.bytes) {
		fprintf(stderr, "send_zerocopy: a datagram of %zu bytes, and -s says %zu\n", length,
			options.bytes);
		exit(1);
	}
	if (!options.verifies && length > LOOKED_AT)
		length = LOOKED_AT;
	if (!are_letters(data, length, datagram ? 0 : it->bytes)) {
		fprintf(stderr, "send_zerocopy: wrong bytes behind %llu of them\n", it->bytes);
		exit(1);
	}
}

/* Counts what comes, until the time is over, or the peer has closed. */
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
	end = it->seconds + options.seconds + 3 * LONGER;
	/* Once in any case: what came before Ctrl-C counts. */
	do {
		told = must(handoff_turn(driver, 100 * 1000 * 1000, events, ON_LOAN), "turn");
		for (int event = 0; event < told; event++) {
			check(&events[event], "receive");
			over |= events[event].kind == HANDOFF_EVENT_ENDED;
			if (events[event].kind != HANDOFF_EVENT_RECEIVED)
				continue;
			verify(it, &events[event]);
			it->packets++;
			it->bytes += events[event].bytes;
			handoff_close(events[event].handle);
		}
	} while (!over && !is_over(end));
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

static void usage(int status)
{
	fputs("Usage: send_zerocopy -4|-6 [-D ADDRESS] [options] tcp|udp\n"
	     "       send_zerocopy -4|-6 -R [options] tcp|udp\n"
	     "  -4, -6      IPv4 or IPv6\n"
	     "  -D ADDRESS  send to this address; with -R, listen at it (this host, all addresses)\n"
	     "  -R          receive\n"
	     "  -p PORT     connect to this port, or listen on it (8000)\n"
	     "  -I DEVICE   send by this device\n"
	     "  -s BYTES    bytes of a message (65435, and the most of a datagram)\n"
	     "  -n NUMBER   messages of a system call, at most 512 (8)\n"
	     "  -t SECONDS  how long, and a fifth of a second more (4)\n"
	     "  -z 0|1      1: lend (default), 0: copy\n"
	     "  -b 0|1      1: registered memory (default)\n"
	     "  -l 0|1      1: huge pages\n"
	     "  -d          tasks deferred to the turn, as always here\n"
	     "  -v          letters go on from message to message of a stream; with -R: verify them\n"
	     "  -y          wait for bytes on the sending socket meanwhile\n"
	     "  -C CPU      pin to this processor\n"
	     "  -T NUMBER   threads, at most 100 (1)\n", status ? stderr : stdout);
	exit(status);
}

/* Ends for a command line that can't be followed. */
static void refuse(const char *why)
{
	fprintf(stderr, "send_zerocopy: %s\n", why);
	exit(2);
}

static unsigned long number(int option, unsigned long least, unsigned long most)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(optarg, &end, 0);
	if (!isdigit((unsigned char)*optarg) || *end || errno || value < least || value > most) {
		fprintf(stderr, "send_zerocopy: -%c %s: give a number from %lu to %lu\n", option, optarg, least,
			most);
		exit(2);
	}
	return value;
}

static void family(int family)
{
	if (options.family)
		refuse("pass one of -4 and -6");
	options.family = family;
}

static void read_options(int argc, char **argv)
{
	struct sockaddr_in *four = (struct sockaddr_in *)&peer;
	struct sockaddr_in6 *six = (struct sockaddr_in6 *)&peer;
	int option;

	if (argc < 2 || !strcmp(argv[1], "--help"))
		usage(argc < 2 ? 2 : 0);
	while ((option = getopt(argc, argv, "46D:Rp:I:s:n:t:z:b:l:dvyC:T:")) != -1)
		switch (option) {
		case '4': family(AF_INET); break;
		case '6': family(AF_INET6); break;
		case 'D': options.address = optarg; break;
		case 'R': options.receives = 1; break;
		case 'p': options.port = (int)number(option, 0, 65535); break;
		case 'I': options.device = optarg; break;
		case 's': options.bytes = number(option, 1, 1 << 30); break;
		case 'n': options.requests = (unsigned int)number(option, 1, MOST_REQUESTS); break;
		case 't': options.seconds = (int)number(option, 0, 1000000); break;
		case 'z': options.lends = number(option, 0, UINT_MAX) != 0; break;
		case 'b': options.registered = number(option, 0, UINT_MAX) != 0; break;
		case 'l': options.huge = number(option, 0, UINT_MAX) != 0; break;
		case 'd': break;
		case 'v': options.verifies = 1; break;
		case 'y': options.polls = 1; break;
		case 'C': options.cpu = (int)number(option, 0, CPU_SETSIZE - 1); break;
		case 'T': options.threads = (int)number(option, 1, MOST_THREADS); break;
		default: usage(2);
		}
	if (!options.family)
		refuse("pass -4 or -6");
	if (optind != argc - 1)
		refuse("pass tcp or udp, behind the options");
	if (!strcmp(argv[optind], "tcp"))
		options.type = SOCK_STREAM;
	else if (!strcmp(argv[optind], "udp"))
		options.type = SOCK_DGRAM;
	else
		refuse("pass tcp or udp, behind the options");
	if (options.receives && options.type == SOCK_DGRAM && options.threads > 1)
		refuse("-T: datagrams are received by one thread");
	if (options.receives && options.device)
		refuse("-I: only a sender is bound to a device");
	if (options.receives && options.polls)
		refuse("-y: only a sender waits for bytes beside");
	if (options.type == SOCK_DGRAM && options.bytes > MOST_OF_DATAGRAM)
		refuse("-s: a datagram has at most 65435 bytes");
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
		refuse("-D: this is no address of the family; names are not looked up");
}

int main(int argc, char **argv)
{
	unsigned long long packets = 0, bytes = 0;
	double seconds = 0;

	read_options(argc, argv);
	/* The second one kills. */
	sigaction(SIGINT, &(struct sigaction){ .sa_handler = stop, .sa_flags = (int)SA_RESETHAND }, NULL);
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
