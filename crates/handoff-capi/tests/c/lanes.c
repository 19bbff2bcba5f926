/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include <sys/socket.h>
#include <unistd.h>

#include "check.h"

#define PLACES 4
#define ROUNDS 50

void lane_cases(void)
{
	handoff_driver driver;
	handoff_region region;
	handoff_socket sender;
	handoff_lane lane;
	handoff_buffer buffers[PLACES], more[PLACES], beyond;
	void *data;
	uint64_t pushed = 0, returned = 0;
	size_t read_back = 0;
	int ends[2];

	connected(ends);
	CHECK(handoff_driver_new(NULL, &driver) == 0);
	CHECK(handoff_region_new(1 << 20, HANDOFF_PAGES_BASE, &region) == 0);
	CHECK(handoff_socket_new(driver, ends[0], &sender) == 0);
	if (handoff_lane_new(sender, region, PLACES, &lane) == -EOPNOTSUPP) {
		close(ends[1]);
		return;
	}
	CHECK(handoff_register(driver, region) == 0);
	for (int place = 0; place < PLACES; place++) {
		CHECK(handoff_buffer_new(region, 4096, &buffers[place]) == 0);
	}
	CHECK(handoff_buffer_new(region, 4096, &beyond) == 0);
	CHECK(handoff_lane_push(lane, NULL, 1, 0) == -EINVAL);
	CHECK(handoff_lane_push(lane, NULL, 0, 0) == 0);
	CHECK(handoff_lane_push(beyond, buffers, 1, 0) == -EBADF);
	CHECK(handoff_lane_push(lane, buffers, 1, pushed++) == 1);
	CHECK(handoff_lane_push(lane, buffers, 2, 0) == -EBUSY);

	/* As many as there is room for; what is not lent can be had. */
	for (int place = 1; place < PLACES; place++)
		more[place - 1] = buffers[place];
	more[PLACES - 1] = beyond;
	CHECK(handoff_lane_push(lane, more, PLACES, pushed) == PLACES - 1);
	pushed += PLACES - 1;
	CHECK(handoff_buffer_data(beyond, &data, NULL) == 0);
	CHECK(handoff_buffer_data(buffers[1], &data, NULL) == -EBUSY);
	CHECK(handoff_lane_push(lane, &beyond, 1, 0) == -EAGAIN);
	CHECK(handoff_lane_take(lane, NULL, 1) == -EINVAL);
	CHECK(handoff_lane_length(lane) == PLACES);

	/* What comes back goes again, in order. */
	while (returned < pushed) {
		struct handoff_event events[PLACES];
		char place[PLACES * 4096];
		ssize_t got;
		int taken;

		CHECK(handoff_turn(driver, 1000 * 1000 * 1000, NULL, 0) >= 0);
		while ((got = recv(ends[1], place, sizeof(place), MSG_DONTWAIT)) > 0)
			read_back += (size_t)got;
		taken = handoff_lane_take(lane, events, PLACES);
		CHECK(taken >= 0);
		for (int number = 0; number < taken; number++) {
			CHECK(events[number].kind == HANDOFF_EVENT_RETURNED);
			CHECK(events[number].error == 0 && events[number].bytes == 4096);
			CHECK(events[number].user_data == (returned < PLACES ? returned > 0 : returned));
			CHECK(events[number].handle == buffers[returned % PLACES]);
			returned++;
			if (pushed < ROUNDS * PLACES)
				CHECK(handoff_lane_push(lane, &events[number].handle, 1, pushed++) == 1);
		}
	}
	CHECK(handoff_lane_length(lane) == 0);
	while (read_back < pushed * 4096) {
		char place[4096];
		ssize_t got = read(ends[1], place, sizeof(place));

		CHECK(got > 0);
		read_back += (size_t)got;
	}
	CHECK(read_back == pushed * 4096);
	for (int place = 0; place < PLACES; place++)
		CHECK(handoff_close(buffers[place]) == 0);
	CHECK(handoff_close(beyond) == 0);
	CHECK(handoff_close(lane) == 0);
	CHECK(handoff_close(sender) == 0);
	CHECK(handoff_close(region) == 0);
	CHECK(handoff_close(driver) == 0);
	close(ends[1]);
}
