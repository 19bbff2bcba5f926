/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "check.h"

#define CROWD 129

/* Many reads that end in one turn: the descriptor says that there is more to do, as long as there is. */
static void crowd(handoff_driver driver)
{
	struct handoff_event events[CROWD];
	struct pollfd driven = { handoff_driver_fd(driver), POLLIN, 0 };
	handoff_buffer buffers[CROWD];
	handoff_region region;
	handoff_file file;
	char bytes[CROWD];
	int told = 0;
	int ends[2];

	CHECK(pipe(ends) == 0);
	CHECK(handoff_file_new(driver, ends[0], &file) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	for (int number = 0; number < CROWD; number++) {
		CHECK(handoff_buffer_new(region, 1, &buffers[number]) == 0);
		CHECK(handoff_read(file, buffers[number], -1, (uint64_t)number, NULL) == 0);
	}
	CHECK(handoff_turn(driver, 0, events, CROWD) == 0);
	memset(bytes, 5, sizeof(bytes));
	CHECK(write(ends[1], bytes, sizeof(bytes)) == CROWD);
	for (;;) {
		int now = handoff_turn(driver, 0, events + told, (uint32_t)(CROWD - told));

		CHECK(now >= 0);
		told += now;
		if (told == CROWD)
			break;
		CHECK(poll(&driven, 1, 5000) == 1);
	}
	for (int number = 0; number < CROWD; number++) {
		CHECK(events[number].error == 0 && events[number].bytes == 1);
		CHECK(handoff_close(buffers[number]) == 0);
	}
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(file) == 0);
	close(ends[1]);
}

/* A read that has nothing to read ends when it is asked to. */
static void cancelled(handoff_driver driver)
{
	handoff_operation operation, second;
	handoff_region region;
	handoff_buffer buffer;
	handoff_file file, sink;
	struct handoff_event event;
	void *data;
	char bytes[3];
	int ends[2];

	CHECK(pipe(ends) == 0);
	CHECK(handoff_file_new(driver, ends[0], &file) == 0);
	CHECK(handoff_file_new(driver, dup(ends[1]), &sink) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 3, &buffer) == 0);
	CHECK(handoff_read(file, buffer, -1, 1, &operation) == 0);
	CHECK(handoff_read(file, buffer, -1, 1, &second) == -EBUSY);
	CHECK(handoff_turn(driver, 0, &event, 1) == 0);
	CHECK(handoff_cancel(operation) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.error == -ECANCELED);
	CHECK(event.handle == buffer && event.bytes == 0 && strlen(event.error_text) > 0);
	CHECK(handoff_cancel(operation) == 0);
	CHECK(handoff_close(operation) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	memcpy(data, "xyz", 3);
	CHECK(handoff_write(sink, buffer, -1, 2, &operation) == 0);
	CHECK(next_event(driver).bytes == 3);
	CHECK(handoff_close(operation) == 0);
	CHECK(read(ends[0], bytes, 3) == 3 && memcmp(bytes, "xyz", 3) == 0);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(sink) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	close(ends[1]);
}

void file_cases(uint32_t ring)
{
	struct handoff_driver_options options;
	struct handoff_event event;
	handoff_driver driver;
	handoff_region region;
	handoff_buffer out, in;
	handoff_file file;
	void *data;
	size_t length;
	char name[] = "/tmp/handoff-capi-XXXXXX";
	int fd = mkstemp(name);

	CHECK(fd >= 0 && unlink(name) == 0);
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.ring = ring;
	CHECK(handoff_driver_new(&options, &driver) == 0);
	CHECK(handoff_file_new(driver, fd, &file) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 10000, &out) == 0);
	CHECK(handoff_buffer_new(region, 10000, &in) == 0);
	CHECK(handoff_buffer_data(out, &data, &length) == 0);
	memset(data, 3, length);

	CHECK(handoff_write(file, out, -2, 1, NULL) == -EINVAL);
	CHECK(handoff_write(file, out, 500, 1, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.error == 0);
	CHECK(event.handle == out && event.bytes == 10000 && event.user_data == 1);

	CHECK(handoff_read(file, in, 600, 2, NULL) == 0);
	CHECK(handoff_buffer_data(in, &data, &length) == -EBUSY);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.bytes == 9900 && event.handle == in);
	CHECK(handoff_buffer_data(in, &data, &length) == 0);
	CHECK(((unsigned char *)data)[0] == 3 && ((unsigned char *)data)[9899] == 3);

	crowd(driver);
	cancelled(driver);

	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(in) == 0);
	CHECK(handoff_close(out) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
}
