/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A driver belongs to the process that made it: what a child does, its end included, leaves it alone. */
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

#define LONG (1 << 20)

/* A driver with a read and a send under way that wait for others. */
struct busy {
	handoff_driver driver;
	handoff_region region;
	handoff_file pipe;
	handoff_socket socket;
	handoff_receiver receiver;
	handoff_pool pool;
	handoff_buffer read, sent;
	handoff_operation reading;
	int source, peer;
};

static struct busy busy_driver(uint32_t ring)
{
	struct busy busy;
	handoff_region chunks;
	int ends[2], pair[2];

	busy.driver = driver_with(ring);
	CHECK(pipe(ends) == 0);
	busy.source = ends[1];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	busy.peer = pair[1];
	CHECK(handoff_file_new(busy.driver, ends[0], &busy.pipe) == 0);
	CHECK(handoff_socket_new(busy.driver, pair[0], &busy.socket) == 0);
	CHECK(handoff_region_new(LONG + 4096, HANDOFF_PAGES_BASE, &busy.region) == 0);
	CHECK(handoff_buffer_new(busy.region, 4096, &busy.read) == 0);
	CHECK(handoff_buffer_new(busy.region, LONG, &busy.sent) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &chunks) == 0);
	CHECK(handoff_pool_new(busy.driver, chunks, 4096, &busy.pool) == 0);
	CHECK(handoff_receive(busy.socket, busy.pool, 3, &busy.receiver) == 0);
	CHECK(handoff_read(busy.pipe, busy.read, -1, 1, &busy.reading) == 0);
	CHECK(handoff_send(busy.socket, busy.sent, NULL, 2, NULL) == 0);
	CHECK(handoff_turn(busy.driver, 0, NULL, 0) == 0);
	return busy;
}

/* What was under way goes on, for whoever made the driver. */
static void goes_on(const struct busy *busy)
{
	char place[4096];
	int told = 0;

	CHECK(write(busy->source, "data", 4) == 4);
	CHECK(write(busy->peer, "more", 4) == 4);
	while (told != 7) {
		struct handoff_event event;
		int count = handoff_turn(busy->driver, 1000000, &event, 1);

		CHECK(count >= 0);
		while (recv(busy->peer, place, sizeof(place), MSG_DONTWAIT) > 0)
			;
		if (count == 0)
			continue;
		CHECK(event.error == 0);
		told |= event.user_data == 3 ? 4 : (int)event.user_data;
		if (event.user_data == 1)
			CHECK(event.bytes == 4);
		if (event.user_data == 2)
			CHECK(event.bytes == LONG);
		if (event.user_data == 3)
			CHECK(handoff_close(event.handle) == 0);
	}
}

static void give_up(const struct busy *busy)
{
	const handoff_handle handles[] = {
		busy->receiver, busy->reading, busy->read, busy->sent,
		busy->region, busy->pool, busy->pipe, busy->socket, busy->driver,
	};

	for (size_t at = 0; at < sizeof(handles) / sizeof(handles[0]); at++)
		CHECK(handoff_close(handles[at]) == 0);
	close(busy->source);
	close(busy->peer);
}

/* All that a child can ask of its parent's handles. */
static void refused(const struct busy *busy)
{
	handoff_buffer buffer;
	void *data;

	CHECK(handoff_turn(busy->driver, 0, NULL, 0) == -EBADF);
	CHECK(strstr(handoff_error_text(), "forked") != NULL);
	CHECK(handoff_send(busy->socket, busy->read, NULL, 9, NULL) == -EBADF);
	CHECK(handoff_read(busy->pipe, busy->read, -1, 9, NULL) == -EBADF);
	CHECK(handoff_cancel(busy->reading) == -EBADF);
	CHECK(handoff_abort(busy->socket) == -EBADF);
	CHECK(handoff_buffer_data(busy->read, &data, NULL) == -EBADF);
	CHECK(handoff_buffer_new(busy->region, 16, &buffer) == -EBADF);
	CHECK(handoff_close(busy->receiver) == -EBADF);
	CHECK(handoff_close(busy->socket) == -EBADF);
	CHECK(handoff_close(busy->driver) == -EBADF);
}

/* -1: whichever child ends next. */
static void ends_well(pid_t child)
{
	int status;

	CHECK(waitpid(child, &status, 0) > 0);
	if (WIFSIGNALED(status))
		fprintf(stderr, "the child ended by signal %d\n", WTERMSIG(status));
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void fork_cases(uint32_t ring)
{
	struct busy busy, own;
	pid_t child;

	/* A child that only ends. */
	busy = busy_driver(ring);
	child = fork();
	if (child == 0)
		exit(0);
	ends_well(child);
	goes_on(&busy);
	give_up(&busy);

	/* A child that asks, and has a driver of its own then. */
	busy = busy_driver(ring);
	child = fork();
	if (child == 0) {
		refused(&busy);
		own = busy_driver(ring);
		CHECK(own.driver != busy.driver);
		goes_on(&own);
		give_up(&own);
		refused(&busy);
		exit(0);
	}
	ends_well(child);
	goes_on(&busy);
	give_up(&busy);

	/* A child whose parent is gone: it became a daemon too late. */
	CHECK(prctl(PR_SET_CHILD_SUBREAPER, 1) == 0);
	child = fork();
	if (child == 0) {
		busy = busy_driver(ring);
		child = fork();
		if (child > 0)
			_exit(0);
		refused(&busy);
		exit(0);
	}
	ends_well(child);
	ends_well(-1);
}
