/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The same bytes to many sockets and files at once. */
#include <pthread.h>
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define READERS 3
#define BYTES 40000

static void *elsewhere(void *argument)
{
	handoff_frozen part;
	handoff_buffer buffer;

	CHECK(handoff_frozen_part(*(handoff_frozen *)argument, 0, 1, &part) == -EBADF);
	CHECK(strstr(handoff_error_text(), "another thread") != NULL);
	CHECK(handoff_unfreeze(*(handoff_frozen *)argument, &buffer) == -EBADF);
	return NULL;
}

static void to_many(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffer;
	handoff_frozen whole, part;
	handoff_file file;
	handoff_socket readers[READERS];
	int ends[READERS][2];
	char path[] = "/tmp/handoff-frozen-XXXXXX", place[16];
	int fd = mkstemp(path), returned = 0, written = 0;
	const void *bytes;
	void *data;
	size_t length;

	CHECK(fd >= 0 && unlink(path) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	if (ring != HANDOFF_RING_AVOID)
		CHECK(handoff_register(driver, region) == 0);
	CHECK(handoff_buffer_new(region, BYTES, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == 0);
	memset(data, 8, BYTES);
	CHECK(handoff_freeze(buffer, NULL) == -EINVAL);
	CHECK(handoff_freeze(buffer, &whole) == 0);
	CHECK(handoff_buffer_data(buffer, &data, NULL) == -EBADF);
	CHECK(handoff_frozen_data(whole, &bytes, &length) == 0);
	CHECK(bytes == data && length == BYTES);
	CHECK(handoff_frozen_part(whole, BYTES - 10, 10, &part) == 0);
	CHECK(handoff_frozen_data(part, &bytes, &length) == 0);
	CHECK(bytes == (char *)data + BYTES - 10 && length == 10);

	/* All of them at once, and the end of it to a file. */
	CHECK(handoff_file_new(driver, dup(fd), &file) == 0);
	CHECK(handoff_write(file, part, 3, 100, NULL) == 0);
	for (int number = 0; number < READERS; number++) {
		connected(ends[number]);
		CHECK(handoff_socket_new(driver, ends[number][0], &readers[number]) == 0);
		CHECK(handoff_send(readers[number], whole, NULL, (uint64_t)number, NULL) == 0);
	}
	CHECK(handoff_unfreeze(whole, &buffer) == -EBUSY);
	CHECK(handoff_frozen_data(whole, &bytes, NULL) == 0 && bytes == data);
	for (int number = 0; number < READERS; number++) {
		CHECK(handoff_turn(driver, 0, NULL, 0) == 0);
		exactly(ends[number][1], 8, BYTES);
	}
	while (returned < READERS || !written) {
		struct handoff_event event = next_event(driver);

		CHECK(event.error == 0);
		if (event.kind == HANDOFF_EVENT_TRANSFERRED) {
			CHECK(event.user_data == 100 && event.handle == part && event.bytes == 10);
			written = 1;
		} else {
			CHECK(event.kind == HANDOFF_EVENT_RETURNED);
			CHECK(event.handle == whole && event.bytes == BYTES);
			returned++;
		}
	}
	CHECK(pread(fd, place, sizeof(place), 3) == 10 && place[9] == 8);

	/* The last handle has the buffer whole again; all there are may write it. */
	CHECK(handoff_unfreeze(whole, &buffer) == -EBUSY);
	CHECK(strstr(handoff_error_text(), "other handles") != NULL);
	CHECK(handoff_close(whole) == 0);
	CHECK(handoff_unfreeze(part, NULL) == -EINVAL);
	CHECK(handoff_unfreeze(part, &buffer) == 0);
	CHECK(handoff_unfreeze(part, &buffer) == -EBADF);
	CHECK(handoff_buffer_data(buffer, &data, &length) == 0 && length == BYTES);

	/* A handle that is closed while its bytes are on loan. */
	CHECK(handoff_freeze(buffer, &whole) == 0);
	CHECK(handoff_send(readers[0], whole, NULL, 7, NULL) == 0);
	CHECK(handoff_close(whole) == 0);
	exactly(ends[0][1], 8, BYTES);
	CHECK(next_event(driver).user_data == 7);

	for (int number = 0; number < READERS; number++) {
		CHECK(handoff_close(readers[number]) == 0);
		close(ends[number][1]);
	}
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(fd);
}

static void misused(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);
	handoff_region region;
	handoff_buffer buffer, front;
	handoff_frozen frozen, part;
	handoff_socket sender;
	handoff_file file;
	pthread_t thread;
	const void *bytes;
	void *data;
	int ends[2], pipes[2];

	connected(ends);
	CHECK(pipe(pipes) == 0);
	CHECK(handoff_region_new(1 << 16, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 100, &buffer) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	CHECK(handoff_file_new(driver, pipes[0], &file) == 0);
	CHECK(handoff_frozen_data(buffer, &bytes, NULL) == -EBADF);
	CHECK(strstr(handoff_error_text(), "is a buffer, and a frozen buffer is wanted") != NULL);
	CHECK(handoff_freeze(region, &frozen) == -EBADF);
	CHECK(handoff_freeze(0, &frozen) == -EBADF);

	/* What is on loan can't be frozen, and comes back all the same. */
	CHECK(handoff_send(sender, buffer, NULL, 1, NULL) == 0);
	CHECK(handoff_freeze(buffer, &frozen) == -EBUSY);
	CHECK(next_event(driver).handle == buffer);
	CHECK(handoff_freeze(buffer, &frozen) == 0);
	CHECK(handoff_freeze(buffer, &frozen) == -EBADF);

	/* Nobody writes it. */
	CHECK(handoff_read(file, frozen, -1, 0, NULL) == -EBADF);
	CHECK(handoff_buffer_data(frozen, &data, NULL) == -EBADF);
	CHECK(handoff_buffer_split(frozen, 1, &front) == -EBADF);
	CHECK(handoff_frozen_part(frozen, 99, 2, &part) == -EINVAL);
	CHECK(handoff_frozen_part(frozen, 1, SIZE_MAX, &part) == -EINVAL);
	CHECK(handoff_frozen_part(frozen, 0, 1, NULL) == -EINVAL);
	CHECK(handoff_unfreeze(frozen, &buffer) == 0);
	CHECK(handoff_freeze(buffer, &frozen) == 0);
	CHECK(handoff_frozen_part(frozen, 100, 0, &part) == 0);
	CHECK(handoff_close(part) == 0);
	CHECK(pthread_create(&thread, NULL, elsewhere, &frozen) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
	CHECK(handoff_close(frozen) == 0);
	CHECK(handoff_frozen_data(frozen, &bytes, NULL) == -EBADF);
	CHECK(handoff_send(sender, frozen, NULL, 1, NULL) == -EBADF);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
	close(pipes[1]);
}

void frozen_cases(uint32_t ring)
{
	to_many(ring);
	misused(ring);
}
