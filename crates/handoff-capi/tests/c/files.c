/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <fcntl.h>
#include <unistd.h>

#include "check.h"

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

	CHECK(handoff_write(file, out, -2, 1) == -EINVAL);
	CHECK(handoff_write(file, out, 500, 1) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.error == 0);
	CHECK(event.handle == out && event.bytes == 10000 && event.user_data == 1);

	CHECK(handoff_read(file, in, 600, 2) == 0);
	CHECK(handoff_buffer_data(in, &data, &length) == -EBUSY);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.bytes == 9900 && event.handle == in);
	CHECK(handoff_buffer_data(in, &data, &length) == 0);
	CHECK(((unsigned char *)data)[0] == 3 && ((unsigned char *)data)[9899] == 3);

	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(in) == 0);
	CHECK(handoff_close(out) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
}
