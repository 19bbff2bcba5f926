/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What can be told of misuse is told; nothing of it does harm. */
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

static void *elsewhere(void *argument)
{
	handoff_region region = *(handoff_region *)argument, own;
	handoff_buffer buffer;

	CHECK(handoff_buffer_new(region, 16, &buffer) == -EBADF);
	CHECK(strstr(handoff_error_text(), "another thread") != NULL);
	CHECK(handoff_close(region) == -EBADF);
	/* What is left open goes with the thread. */
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &own) == 0);
	return NULL;
}

static void tell(const struct handoff_capability *capability, void *context)
{
	CHECK(capability->mechanism != NULL && capability->state <= HANDOFF_UNKNOWN);
	++*(int *)context;
}

static int descriptors(void)
{
	DIR *directory = opendir("/proc/self/fd");
	int count = 0;

	CHECK(directory != NULL);
	while (readdir(directory))
		count++;
	closedir(directory);
	return count;
}

/* What has no place for its handle, which nobody could close, is not made. */
static void no_place(void)
{
	handoff_driver driver;
	handoff_region region;
	handoff_buffer buffer;
	void *data;
	size_t length;
	int ends[2], before = descriptors();

	connected(ends);
	CHECK(handoff_driver_new(NULL, NULL) == -EINVAL);
	CHECK(handoff_driver_new(NULL, &driver) == 0);
	CHECK(handoff_group_new(driver, NULL) == -EINVAL);
	CHECK(handoff_socket_new(driver, ends[0], NULL) == -EINVAL);
	CHECK(handoff_file_new(driver, dup(ends[1]), NULL) == -EINVAL);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, NULL) == -EINVAL);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 4096, NULL) == -EINVAL);
	CHECK(handoff_buffer_new(region, 4096, &buffer) == 0);
	CHECK(handoff_buffer_split(buffer, 1, NULL) == -EINVAL);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == 4096);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
	CHECK(descriptors() == before);
}

/* A length without a place, and a length that nothing has. */
static void lengths_without_places(void)
{
	struct handoff_send_options options;
	handoff_driver driver;
	handoff_region region;
	handoff_buffer buffer;
	handoff_socket sender;
	int ends[2];

	connected(ends);
	CHECK(handoff_driver_new(NULL, &driver) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 16, &buffer) == 0);
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.header_length = 4;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "header") != NULL);
	options.header = "head";
	options.header_length = SIZE_MAX;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == -EINVAL);
	options.header_length = 0;
	options.address_length = 16;
	CHECK(handoff_send(sender, buffer, &options, 1, NULL) == -EINVAL);
	CHECK(strstr(handoff_error_text(), "address") != NULL);
	CHECK(handoff_connect(sender, NULL, 16, 1, NULL) == -EINVAL);
	CHECK(handoff_lane_push(0, NULL, 1, 1) == -EINVAL);
	CHECK(handoff_lane_take(0, NULL, 1) == -EINVAL);
	CHECK(handoff_driver_in_flight(driver) == 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
}

void misuse_cases(void)
{
	handoff_region region, again;
	handoff_driver driver;
	handoff_buffer buffer;
	handoff_socket socket_handle;
	struct handoff_driver_options options;
	struct {
		struct handoff_driver_options known;
		uint32_t unknown;
	} longer;
	pthread_t thread;
	int told = 0;

	CHECK(handoff_close(0) == -EBADF);
	CHECK(handoff_close(0xffffffffffffffff) == -EBADF);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_driver_fd(region) == -EBADF);
	CHECK(strstr(handoff_error_text(), "is a region, and a driver is wanted") != NULL);
	CHECK(handoff_turn(region, 0, NULL, 0) == -EBADF);
	CHECK(handoff_buffer_new(region, 16, &buffer) == 0);

	CHECK(pthread_create(&thread, NULL, elsewhere, &region) == 0);
	CHECK(pthread_join(thread, NULL) == 0);

	/* Twice, and after the end, also when the place has another use. */
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(region) == -EBADF);
	CHECK(strstr(handoff_error_text(), "closed") != NULL);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &again) == 0);
	CHECK(handoff_close(region) == -EBADF);
	CHECK(handoff_close(again) == 0);
	CHECK(handoff_close(buffer) == 0);

	/* Options of this version, of an older one, and of a newer one. */
	memset(&options, 0, sizeof(options));
	CHECK(handoff_driver_new(&options, &driver) == -EINVAL);
	options.size = sizeof(options);
	options.ring = 9;
	CHECK(handoff_driver_new(&options, &driver) == -EINVAL);
	options.size = 2 * sizeof(uint32_t);
	options.ring = HANDOFF_RING_AVOID;
	CHECK(handoff_driver_new(&options, &driver) == 0);
	CHECK(handoff_close(driver) == 0);
	memset(&longer, 0, sizeof(longer));
	longer.known.size = sizeof(longer);
	longer.known.completions = 1000;
	CHECK(handoff_driver_new(&longer.known, &driver) == 0);
	CHECK(handoff_close(driver) == 0);
	longer.unknown = 1;
	CHECK(handoff_driver_new(&longer.known, &driver) == -E2BIG);

	CHECK(handoff_driver_new(NULL, &driver) == 0);
	CHECK(handoff_driver_fd(driver) >= 0);
	CHECK(handoff_driver_ring_fd(region) == -EBADF);
	CHECK(handoff_driver_ring_fd(driver) >= 0 || handoff_driver_ring_fd(driver) == -EOPNOTSUPP);
	CHECK(handoff_driver_in_flight(driver) == 0);
	CHECK(handoff_turn(driver, -1, NULL, 0) == 0);
	CHECK(handoff_turn(driver, 0, NULL, 1) == -EINVAL);
	CHECK(handoff_socket_new(driver, -1, &socket_handle) == -EBADF);
	CHECK(handoff_socket_new(driver, dup(0), &socket_handle) < 0);
	CHECK(handoff_close(driver) == 0);

	no_place();
	lengths_without_places();
	CHECK(handoff_probe(NULL, NULL) == -EINVAL);
	CHECK(handoff_probe(tell, &told) == 0 && told > 10);
}
