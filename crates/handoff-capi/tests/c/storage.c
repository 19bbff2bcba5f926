/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Files as storage engines use them: opened, synced, cut, renamed and removed by calls that tell of their end. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include "check.h"

static handoff_handle opened(handoff_driver driver, handoff_directory directory, const char *path,
			     int flags)
{
	struct handoff_event event;

	CHECK(handoff_open(driver, directory, path, flags, 0600, 0, 7, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_OPENED && event.user_data == 7);
	CHECK(event.error == 0 && event.handle != 0);
	return event.handle;
}

/* The error of the call that was begun. */
static int ended(handoff_driver driver)
{
	struct handoff_event event = next_event(driver);

	CHECK(event.kind == HANDOFF_EVENT_CALLED && event.handle == 0);
	CHECK((event.error == 0) == (event.error_text == NULL));
	return event.error;
}

static void log_is_kept(handoff_driver driver)
{
	struct handoff_metadata metadata;
	handoff_operation operation;
	handoff_directory directory;
	handoff_region region;
	handoff_buffer buffer;
	handoff_file file;
	struct handoff_event event;
	struct stat there;
	void *bytes;
	char place[] = "/tmp/handoff-storage-XXXXXX";
	char path[100];

	CHECK(mkdtemp(place) != NULL);
	directory = opened(driver, 0, place, O_RDONLY | O_DIRECTORY);
	file = opened(driver, directory, "new", O_RDWR | O_CREAT | O_EXCL);
	CHECK(handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_buffer_new(region, 10, &buffer) == 0);
	CHECK(handoff_buffer_data(buffer, &bytes, NULL) == 0);
	memset(bytes, 5, 10);
	CHECK(handoff_write(file, buffer, 0, 1, NULL) == 0);
	CHECK(next_event(driver).bytes == 10);
	CHECK(handoff_allocate(file, 0, 4096, HANDOFF_ALLOCATE_KEEP_SIZE, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_sync(file, HANDOFF_SYNC_DATA, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_sync(file, 0, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_truncate(file, 4, 1, NULL) == 0);
	CHECK(ended(driver) == 0);

	CHECK(handoff_stat(file, 1, &operation) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_CALLED && event.error == 0 && event.bytes == 4);
	CHECK(handoff_take_metadata(operation, &metadata) == 0);
	CHECK(metadata.length == 4 && metadata.links == 1 && metadata.user == getuid());
	CHECK(S_ISREG(metadata.mode) && metadata.allocated >= 4096);
	CHECK(handoff_take_descriptors(operation, NULL, 0) == -EINVAL);
	CHECK(handoff_close(operation) == 0);

	CHECK(handoff_rename(driver, directory, "new", directory, "kept", HANDOFF_RENAME_NO_REPLACE, 1,
			     NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_sync(directory, 0, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	snprintf(path, sizeof(path), "%s/kept", place);
	CHECK(stat(path, &there) == 0 && there.st_size == 4 && there.st_ino == metadata.inode);
	CHECK(handoff_open(driver, directory, "../../etc/passwd", O_RDONLY, 0, HANDOFF_OPEN_BENEATH, 1,
			   NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_OPENED && event.error == -EXDEV);
	CHECK(strstr(event.error_text, "opening ../../etc/passwd: ") != NULL);
	CHECK(handoff_stat_at(driver, directory, "kept", 0, 1, &operation) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_CALLED && event.error == 0 && event.bytes == 4);
	CHECK(handoff_take_metadata(operation, &metadata) == 0);
	CHECK(metadata.inode == there.st_ino);
	CHECK(handoff_close(operation) == 0);

	/* A record at the end, which is on its device when the write ends. */
	CHECK(handoff_write_with(file, buffer, 0, RWF_APPEND | RWF_DSYNC, 1, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_TRANSFERRED && event.error == 0 && event.bytes == 10);
	CHECK(stat(path, &there) == 0 && there.st_size == 14);
	CHECK(handoff_read_with(file, buffer, 4, 0, 1, NULL) == 0);
	CHECK(next_event(driver).bytes == 10);
	CHECK(handoff_write_back(file, 0, 0, HANDOFF_WRITE_BACK_BEGIN, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_write_back(file, 0, 14, HANDOFF_WRITE_BACK_FINISH, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_advise(file, 0, 0, POSIX_FADV_DONTNEED, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_link(file, directory, "other", 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(stat(path, &there) == 0 && there.st_nlink == 2);
	CHECK(handoff_link(file, directory, "other", 1, NULL) == 0);
	CHECK(ended(driver) == -EEXIST);
	CHECK(handoff_mkdir(driver, directory, "made", 0700, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_unlink(driver, directory, "made", AT_REMOVEDIR, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	snprintf(path, sizeof(path), "%s/points", place);
	CHECK(symlink("nowhere", path) == 0);
	CHECK(handoff_stat_at(driver, directory, "points", 0, 1, NULL) == 0);
	CHECK(ended(driver) == -ENOENT);
	CHECK(handoff_stat_at(driver, directory, "points", AT_SYMLINK_NOFOLLOW, 1, &operation) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_take_metadata(operation, &metadata) == 0 && S_ISLNK(metadata.mode));
	CHECK(handoff_close(operation) == 0);
	CHECK(unlink(path) == 0);
	CHECK(handoff_unlink(driver, directory, "other", 0, 1, NULL) == 0);
	CHECK(ended(driver) == 0);

	CHECK(handoff_unlink(driver, directory, "kept", 0, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(handoff_unlink(driver, directory, "kept", 0, 1, NULL) == 0);
	CHECK(ended(driver) == -ENOENT);
	CHECK(handoff_close(file) == 0);
	CHECK(handoff_close(directory) == 0);
	CHECK(handoff_unlink(driver, 0, place, AT_REMOVEDIR, 1, NULL) == 0);
	CHECK(ended(driver) == 0);
	CHECK(stat(place, &there) != 0);
	CHECK(handoff_close(buffer) == 0);
	CHECK(handoff_close(region) == 0);
}

static void misuse(handoff_driver driver, uint32_t ring)
{
	handoff_file file = opened(driver, 0, "/dev/null", O_RDONLY);
	handoff_directory directory = opened(driver, 0, "/", O_RDONLY | O_DIRECTORY);
	handoff_driver other = driver_with(ring);
	struct handoff_metadata metadata;
	handoff_operation operation;

	CHECK(handoff_open(driver, 0, NULL, O_RDONLY, 0, 0, 1, NULL) == -EINVAL);
	CHECK(handoff_open(driver, 0, "x", O_RDONLY | O_CREAT, 0600, 0, 1, NULL) == -EINVAL);
	CHECK(handoff_open(driver, 0, "x", O_RDONLY, 0, 9, 1, NULL) == -EINVAL);
	CHECK(handoff_open(driver, file, "x", O_RDONLY, 0, 0, 1, NULL) == -EBADF);
	CHECK(handoff_open(other, directory, "x", O_RDONLY, 0, 0, 1, NULL) == -EINVAL);
	CHECK(handoff_sync(directory, HANDOFF_SYNC_DATA, 1, NULL) == -EINVAL);
	CHECK(handoff_sync(file, 9, 1, NULL) == -EINVAL);
	CHECK(handoff_allocate(file, 0, 0, HANDOFF_ALLOCATE_GROW, 1, NULL) == -EINVAL);
	CHECK(handoff_allocate(file, 0, 1, 9, 1, NULL) == -EINVAL);
	CHECK(handoff_rename(driver, 0, "x", 0, "y", 9, 1, NULL) == -EINVAL);
	CHECK(handoff_unlink(driver, 0, "x", 9, 1, NULL) == -EINVAL);
	CHECK(handoff_stat_at(driver, 0, "x", 9, 1, NULL) == -EINVAL);
	CHECK(handoff_stat_at(driver, 0, NULL, 0, 1, NULL) == -EINVAL);
	CHECK(handoff_write_back(file, 0, 0, 9, 1, NULL) == -EINVAL);
	CHECK(handoff_advise(file, 0, 0, 99, 1, NULL) == -EINVAL);
	CHECK(handoff_link(file, file, "x", 1, NULL) == -EBADF);
	CHECK(handoff_mkdir(driver, 0, NULL, 0700, 1, NULL) == -EINVAL);
	CHECK(handoff_read_with(file, 0, -1, RWF_NOWAIT, 1, NULL) == -EINVAL);
	CHECK(handoff_read_with(file, 0, 0, 1 << 20, 1, NULL) == -EINVAL);
	CHECK(handoff_stat(file, 1, &operation) == 0);
	CHECK(handoff_cancel(operation) == 0);
	CHECK(next_event(driver).kind == HANDOFF_EVENT_CALLED);
	CHECK(handoff_take_metadata(operation, NULL) == -EINVAL);
	CHECK(handoff_close(operation) == 0);
	CHECK(handoff_sync(file, 0, 1, &operation) == 0);
	CHECK(handoff_take_metadata(operation, &metadata) == -EINVAL);
	next_event(driver);
	CHECK(handoff_close(operation) == 0);
	/* What nobody hears of is closed with the driver. */
	CHECK(handoff_open(other, 0, "/dev/null", O_RDONLY, 0, 0, 1, NULL) == 0);
	CHECK(handoff_close(other) == 0);
	CHECK(handoff_close(directory) == 0);
	CHECK(handoff_close(file) == 0);
}

static void pipes_are_carried(handoff_driver driver)
{
	struct handoff_route_options options;
	struct handoff_event event;
	handoff_file from, to;
	char bytes[5];
	int in[2], out[2];

	CHECK(pipe(in) == 0 && pipe(out) == 0);
	CHECK(write(in[1], "bytes", 5) == 5);
	close(in[1]);
	CHECK(handoff_file_new(driver, in[0], &from) == 0);
	CHECK(handoff_file_new(driver, out[1], &to) == 0);
	memset(&options, 0, sizeof(options));
	options.size = sizeof(options);
	options.source = from;
	options.source_offset = UINT64_MAX;
	options.source_length = 1;
	options.sink = to;
	options.sink_offset = UINT64_MAX;
	CHECK(handoff_route(&options, 1, NULL) == -EINVAL);
	options.source_length = 0;
	CHECK(handoff_route(&options, 1, NULL) == 0);
	event = next_event(driver);
	CHECK(event.kind == HANDOFF_EVENT_CARRIED && event.error == 0 && event.bytes == 5);
	CHECK(read(out[0], bytes, 5) == 5 && memcmp(bytes, "bytes", 5) == 0);
	CHECK(handoff_close(from) == 0);
	CHECK(handoff_close(to) == 0);
	close(out[0]);
}

void storage_cases(uint32_t ring)
{
	handoff_driver driver = driver_with(ring);

	log_is_kept(driver);
	misuse(driver, ring);
	pipes_are_carried(driver);
	CHECK(handoff_driver_in_flight(driver) == 0);
	CHECK(handoff_close(driver) == 0);
}
