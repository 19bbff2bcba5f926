/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Connects with options that are set before the first packet, by a ring that the kernel polls, and says what the socket has:
 *     cc connect_options.c $(pkg-config --cflags --libs handoff) -o connect_options && ./connect_options 7070 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>

#include <handoff.h>

int main(int argc, char **argv)
{
	struct sockaddr_in to = { .sin_family = AF_INET }, from = { .sin_family = AF_INET };
	struct handoff_driver_options how = { .size = sizeof(how), .sq_poll_idle_ms = 2 };
	struct handoff_socket_options options = { .size = sizeof(options) };
	struct handoff_event event = { 0 };
	handoff_driver driver;

	to.sin_port = htons((unsigned short)atoi(argc > 1 ? argv[1] : "7070"));
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	from.sin_addr.s_addr = htonl(INADDR_LOOPBACK + 1);
	options.given = HANDOFF_OPTION_NODELAY | HANDOFF_OPTION_USER_TIMEOUT | HANDOFF_OPTION_BIND;
	options.nodelay = 1;
	options.user_timeout_ms = 20 * 1000;
	options.bind = &from;
	options.bind_length = sizeof(from);
	if (handoff_driver_new(&how, &driver))
		return fprintf(stderr, "%s\n", handoff_error_text()), 1;
	if (handoff_driver_sq_poll(driver) < 0)
		fprintf(stderr, "requests are submitted by calls: %s\n", handoff_error_text());
	if (handoff_connect_with(driver, &to, sizeof(to), &options, 0, NULL))
		return fprintf(stderr, "%s\n", handoff_error_text()), 1;
	while (event.kind != HANDOFF_EVENT_CONNECTED)
		handoff_turn(driver, -1, &event, 1);
	if (event.error || handoff_socket_get_options(event.handle, &options))
		return fprintf(stderr, "%s\n", event.error ? event.error_text : handoff_error_text()), 1;
	printf("nodelay %u, user time-out %u ms, send buffer %u\n", options.nodelay,
	       options.user_timeout_ms, options.send_buffer);
	return handoff_close(event.handle);
}
