/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <fcntl.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "check.h"

/* An abstract name of this process. */
static socklen_t name_of(struct sockaddr_un *address)
{
	int length;

	memset(address, 0, sizeof(*address));
	address->sun_family = AF_UNIX;
	length = snprintf(address->sun_path + 1, sizeof(address->sun_path) - 1, "handoff-c-%d",
			  (int)getpid());
	return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)length);
}

static handoff_buffer buffer_of(handoff_region *region, const char *text)
{
	handoff_buffer buffer;
	void *data;

	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, region) == 0);
	CHECK(handoff_buffer_new(*region, 64, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	strcpy((char *)data, text);
	return buffer;
}

static int pass(handoff_socket from, handoff_buffer buffer, const int *passed, size_t count)
{
	struct handoff_send_options options;

	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.descriptors = passed;
	options.descriptor_count = count;
	return handoff_send(from, buffer, &options, 1, NULL);
}

/* A connection by name, and a descriptor over it. */
static void a_descriptor_is_passed(uint32_t ring, int type)
{
	handoff_driver driver = driver_with(ring);
	handoff_listener listener;
	handoff_socket near, far = 0;
	handoff_operation operation;
	handoff_region regions[2];
	handoff_buffer sent = buffer_of(&regions[0], "a pipe"), got = buffer_of(&regions[1], "");
	struct sockaddr_un address;
	socklen_t length = name_of(&address);
	int is_connected = 0, is_received = 0, is_returned = 0, ends[2], passed[2];
	void *data;
	char byte;

	CHECK(handoff_listen_unix(driver, &address, length, type, 5, &listener) == 0);
	CHECK(handoff_socket_new(driver, socket(AF_UNIX, type | SOCK_CLOEXEC, 0), &near) == 0);
	CHECK(handoff_connect(near, &address, length, 6, NULL) == 0);
	while (!far || !is_connected) {
		struct handoff_event event = next_event(driver);

		CHECK(event.error == 0);
		if (event.kind == HANDOFF_EVENT_ACCEPTED)
			far = event.handle;
		else
			is_connected = event.kind == HANDOFF_EVENT_CONNECTED;
	}
	CHECK(pipe2(ends, O_CLOEXEC) == 0);
	CHECK(pass(near, sent, &ends[1], 1) == 0);
	CHECK(handoff_receive_message(far, got, 2, 9, NULL) == -EINVAL);
	CHECK(handoff_receive_message(far, got, 2, 9, &operation) == 0);
	while (!is_received || !is_returned) {
		struct handoff_event event = next_event(driver);

		CHECK(event.error == 0);
		if (event.kind == HANDOFF_EVENT_TRANSFERRED) {
			CHECK(event.user_data == 9 && event.handle == got && event.bytes == 64);
			is_received = 1;
		} else {
			CHECK(event.kind == HANDOFF_EVENT_RETURNED);
			CHECK(event.engine == HANDOFF_ENGINE_COPY);
			CHECK(handoff_outcome(&event.tally) == HANDOFF_OUTCOME_COPIED);
			is_returned = 1;
		}
	}
	CHECK(handoff_buffer_data(got, &data, NULL) == 0);
	CHECK(strcmp((const char *)data, "a pipe") == 0);
	CHECK(handoff_take_descriptors(operation, passed, 2) == 1);
	CHECK(handoff_take_descriptors(operation, passed, 2) == 0);
	CHECK(fcntl(passed[0], F_GETFD) & FD_CLOEXEC);
	CHECK(write(passed[0], "!", 1) == 1 && read(ends[0], &byte, 1) == 1 && byte == '!');
	close(passed[0]);
	handoff_close(operation);

	/* More than are wanted, and one that is not taken, are closed. */
	passed[0] = passed[1] = ends[1];
	for (int wanted = 1; wanted <= 2; wanted++) {
		CHECK(pass(near, sent, passed, 2) == 0);
		CHECK(next_event(driver).kind == HANDOFF_EVENT_RETURNED);
		CHECK(handoff_receive_message(far, got, (size_t)wanted, 9, &operation) == 0);
		CHECK(next_event(driver).error == (wanted == 1 ? -EMSGSIZE : 0));
		handoff_close(operation);
	}
	close(ends[1]);
	CHECK(read(ends[0], &byte, 1) == 0);
	close(ends[0]);

	CHECK(handoff_listen_unix(driver, &address, length, type, 5, &operation) == -EADDRINUSE);
	CHECK(handoff_listen_unix(driver, &address, length, SOCK_DGRAM, 5, &operation) == -EINVAL);
	passed[0] = -1;
	CHECK(pass(near, sent, passed, 1) == -EBADF);
	CHECK(pass(near, sent, passed, 254) == -EINVAL);
	handoff_close(far);
	handoff_close(near);
	handoff_close(listener);
	handoff_close(driver);
}

/* The file of a listener goes with it, and one that is left is replaced. */
static void a_file_goes_with_its_listener(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_listener listener;
	struct sockaddr_un address;
	int left = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	memset(&address, 0, sizeof(address));
	address.sun_family = AF_UNIX;
	snprintf(address.sun_path, sizeof(address.sun_path), "/tmp/handoff-c-%d", (int)getpid());
	CHECK(bind(left, (struct sockaddr *)&address, sizeof(address)) == 0);
	close(left);
	CHECK(handoff_listen_unix(driver, &address, sizeof(address), SOCK_STREAM, 5, &listener) == 0);
	CHECK(access(address.sun_path, F_OK) == 0);
	handoff_close(listener);
	CHECK(handoff_turn(driver, 0, NULL, 0) == 0);
	CHECK(access(address.sun_path, F_OK) != 0);
	handoff_close(driver);
}

void unix_cases(uint32_t ring)
{
	a_descriptor_is_passed(ring, SOCK_STREAM);
	a_descriptor_is_passed(ring, SOCK_SEQPACKET);
	a_file_goes_with_its_listener(ring);
}
