/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "check.h"

void memory_cases(void)
{
	handoff_region region;
	handoff_buffer buffer, front, more;
	void *data;
	size_t length;

	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 10000, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == 10000);
	memset(data, 7, length);

	CHECK(handoff_buffer_set_length(buffer, 9000) == 0);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == 9000);
	CHECK(handoff_buffer_set_length(buffer, 10001) == -EINVAL);
	CHECK(handoff_buffer_split(buffer, 4000, &front) == 0);
	CHECK(handoff_buffer_data(front, &data, &length) == 0 && length == 4000);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == 5000);
	CHECK(((unsigned char *)data)[4999] == 7);
	CHECK(handoff_buffer_split(buffer, 5001, &front) == -EINVAL);

	/* The memory is there as long as one of its buffers. */
	CHECK(handoff_buffer_new(region, 1 << 16, &more) == -ENOSPC);
	CHECK(strstr(handoff_error_text(), "65536") != NULL);
	CHECK(handoff_close(region) == 0);
	memset(data, 8, 5000);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(front) == 0);

	CHECK(handoff_region_new(1 << 16, 77, &region) == -EINVAL);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, NULL) == -EINVAL);
}
