/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Many sends, one event; and what sends are told beside. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

#define SENDS 5
#define BYTES 3000

static struct handoff_send_options in_group(handoff_group group)
{
	struct handoff_send_options options;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.group = group;
	return options;
}

static double seconds(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
	return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* Waits for what comes back without an event. */
static void await_back(handoff_driver driver, handoff_buffer buffer)
{
	void *data;

	for (int turns = 0; handoff_buffer_data(buffer, &data, NULL) == -EBUSY; turns++) {
		CHECK(turns < 1000);
		CHECK(handoff_turn(driver, 10 * 1000 * 1000, NULL, 0) == 0);
	}
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
}

static void together(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffers[SENDS], whole;
	handoff_frozen frozen;
	handoff_socket senders[2];
	handoff_group group;
	struct handoff_send_options options;
	struct handoff_event event;
	void *data;
	int ends[2][2];

	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	for (int number = 0; number < 2; number++) {
		connected(ends[number]);
		CHECK(handoff_socket_new(driver, ends[number][0], &senders[number]) == 0);
	}
	CHECK(handoff_group_new(driver, &group) == 0);
	options = in_group(group);
	for (int number = 0; number < SENDS; number++) {
		CHECK(handoff_buffer_new(region, BYTES, &buffers[number]) == 0);
		CHECK(handoff_buffer_data(buffers[number], &data, NULL) == 0);
		memset(data, 4, BYTES);
		CHECK(handoff_send(senders[number % 2], buffers[number], &options, 77, NULL) == 0);
	}
	CHECK(handoff_buffer_new(region, BYTES, &whole) == 0);
	CHECK(handoff_buffer_data(whole, &data, NULL) == 0);
	memset(data, 4, BYTES);
	CHECK(handoff_freeze(whole, &frozen) == 0);
	CHECK(handoff_send(senders[1], frozen, &options, 77, NULL) == 0);

	/* They go, and nothing is told before the flush. */
	CHECK(handoff_turn(driver, 0, &event, 1) == 0);
	exactly(ends[0][1], 4, 3 * BYTES);
	exactly(ends[1][1], 4, 3 * BYTES);
	CHECK(handoff_turn(driver, 50 * 1000 * 1000, &event, 1) == 0);
	CHECK(handoff_buffer_data(buffers[0], &data, NULL) == -EBUSY);
	CHECK(handoff_group_flush(group, 9) == SENDS + 1);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.user_data == 9 && event.handle == 0);
	CHECK(event.error == 0 && event.error_text == NULL && event.bytes == (SENDS + 1) * BYTES);
	CHECK(event.tally.zero_copy + event.tally.copied + event.tally.unknown == event.bytes);
	CHECK(handoff_outcome(&event.tally) >= HANDOFF_OUTCOME_ZERO_COPY);
	for (int number = 0; number < SENDS; number++)
		CHECK(handoff_buffer_data(buffers[number], &data, NULL) == 0);
	CHECK(handoff_unfreeze(frozen, &whole) == 0);

	/* Once more, with nothing, and with one. */
	CHECK(handoff_group_flush(group, 10) == 0);
	event = next_event(driver);
	CHECK(event.user_data == 10 && event.bytes == 0 && event.error == 0);
	CHECK(event.engine == HANDOFF_ENGINE_NONE);
	CHECK(handoff_send(senders[0], buffers[0], &options, 0, NULL) == 0);
	CHECK(handoff_group_flush(group, 11) == 1);
	CHECK(next_event(driver).bytes == BYTES);
	exactly(ends[0][1], 4, BYTES);

	/* A group that is closed tells nothing, and what it had comes back. */
	CHECK(handoff_send(senders[0], buffers[1], &options, 0, NULL) == 0);
	CHECK(handoff_close(group) == 0);
	await_back(driver, buffers[1]);
	exactly(ends[0][1], 4, BYTES);

	/* One that fails, for all. */
	CHECK(handoff_group_new(driver, &group) == 0);
	options = in_group(group);
	close(ends[0][1]);
	for (int error = 0; error == 0;) {
		CHECK(handoff_send(senders[1], buffers[2], &options, 0, NULL) == 0);
		CHECK(handoff_send(senders[0], buffers[3], &options, 0, NULL) == 0);
		CHECK(handoff_group_flush(group, 12) == 2);
		event = next_event(driver);
		error = event.error;
		CHECK(event.bytes >= BYTES);
		CHECK(error == 0 || (error < 0 && event.bytes == BYTES && event.error_text != NULL));
		exactly(ends[1][1], 4, BYTES);
	}
	for (int number = 0; number < 2; number++)
		CHECK(handoff_close(senders[number]) == 0);
	CHECK(handoff_close(group) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1][1]);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring), other = driver_with(ring);
	struct handoff_send_options options;
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	handoff_group group;
	handoff_operation operation;
	void *data;
	int ends[2];

	connected(ends);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, BYTES, &buffer) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_group_new(driver, NULL) == -EINVAL);
	CHECK(handoff_group_new(sender, &group) == -EBADF);
	CHECK(handoff_group_new(other, &group) == 0);
	options = in_group(group);
	CHECK(handoff_send(sender, buffer, &options, 0, &operation) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "another driver") != NULL);
	CHECK(handoff_close(group) == 0);
	CHECK(handoff_group_flush(group, 0) == -EBADF);
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == -EBADF);
	options.group = sender;
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == -EBADF);
	CHECK(strstr(handoff_error_text(), "is a socket, and a group is wanted") != NULL);
	CHECK(handoff_group_new(driver, &group) == 0);
	options.group = group;
	options.flags = HANDOFF_SEND_TELL_SENT;
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == -EINVAL);
	options.flags = 64;
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == -EINVAL);
	options.flags = 0;
	options.reserved = 1;
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == -EINVAL);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);

	/* The driver's handle goes while the group's is there. */
	options.reserved = 0;
	CHECK(handoff_send(sender, buffer, &options, 0, NULL) == 0);
	CHECK(handoff_close(driver) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_group_flush(group, 0) == 1);
	CHECK(handoff_close(group) == 0);
	CHECK(handoff_outcome(NULL) == -EINVAL);
	CHECK(handoff_close(other) == 0);
	CHECK(handoff_close(region) == 0);
	close(ends[1]);
}

static void segments(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	struct handoff_send_options options;
	struct sockaddr_in address;
	socklen_t length = sizeof(address);
	struct handoff_event event;
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender, stream;
	char place[4096];
	int receiver = socket(AF_INET, SOCK_DGRAM, 0), ends[2];

	memset(&address, 0, sizeof(address));
	address.sin_family = AF_INET;
	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK(bind(receiver, (struct sockaddr *)&address, length) == 0);
	CHECK(getsockname(receiver, (struct sockaddr *)&address, &length) == 0);
	CHECK(handoff_socket_new(driver, socket(AF_INET, SOCK_DGRAM, 0), &sender) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, BYTES, &buffer) == 0);
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.address = &address;
	options.address_length = sizeof(address);
	options.segment = 1200;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_RETURNED && event.error == 0 && event.bytes == BYTES);
	for (size_t left = BYTES; left > 0;) {
		ssize_t got = recv(receiver, place, sizeof(place), 0);

		CHECK(got == (ssize_t)(left < 1200 ? left : 1200));
		left -= (size_t)got;
	}
	options.segment = 70000;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == -EINVAL);
	connected(ends);
	CHECK(handoff_socket_new(driver, ends[0], &stream) == 0);
	options.address = NULL;
	options.address_length = 0;
	options.segment = 1200;
	CHECK(handoff_send(stream, buffer, &options, 1, NULL) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "UDP") != NULL);

	/* The end of a send that says that more follows waits for that; TCP lets it go after 200 ms. */
	options.segment = 0;
	options.flags = HANDOFF_SEND_MORE;
	CHECK(handoff_socket_set_engine(stream, HANDOFF_ENGINE_COPY) == 0);
	CHECK(handoff_buffer_set_length(buffer, 10) == 0);
	for (int slow = 1; slow;) {
		double begun = seconds();
		int waits, together;

		CHECK(handoff_send(stream, buffer, &options, 2, NULL) == 0);
		CHECK(next_event(driver).bytes == 10);
		waits = recv(ends[1], place, 1, MSG_DONTWAIT | MSG_PEEK) == -1 && errno == EAGAIN;
		CHECK(handoff_send(stream, buffer, NULL, 2, NULL) == 0);
		together = ring != HANDOFF_RING_AVOID ||
			   recv(ends[1], place, sizeof(place), MSG_PEEK) == 20;
		slow = seconds() - begun > 0.1;
		CHECK((waits && together) || slow);
		CHECK(next_event(driver).bytes == 10);
		CHECK(recv(ends[1], place, 20, MSG_WAITALL) == 20);
	}
	CHECK(handoff_close(stream) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(receiver);
	close(ends[1]);
}

void group_cases(uint32_t ring)
{
	together(ring);
	misused(ring);
	segments(ring);
}
