/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Waits at a path for a process that passes an open file (example pass-file), and prints what is in it:
 *     cc receive_file.c $(pkg-config --cflags --libs handoff) -o receive_file && ./receive_file /tmp/socket */
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <handoff.h>

int main(int argc, char **argv)
{
	struct sockaddr_un name = { .sun_family = AF_UNIX };
	struct handoff_event event = { 0 };
	handoff_handle driver, region, buffer, listener, message;
	char part[4096];
	ssize_t got;
	int file;

	snprintf(name.sun_path, sizeof(name.sun_path), "%s", argc > 1 ? argv[1] : "");
	if (handoff_driver_new(NULL, &driver) || handoff_region_new(4096, HANDOFF_PAGES_BASE, &region) ||
	    handoff_buffer_new(region, 4096, &buffer) ||
	    handoff_listen_unix(driver, &name, sizeof(name), SOCK_SEQPACKET, 0, &listener))
		return fprintf(stderr, "%s\n", handoff_error_text()), 1;
	printf("waiting at unix:%s\n", name.sun_path);
	fflush(stdout);
	while (event.kind != HANDOFF_EVENT_ACCEPTED)
		handoff_turn(driver, -1, &event, 1);
	if (handoff_receive_message(event.handle, buffer, 1, 0, &message))
		return fprintf(stderr, "%s\n", handoff_error_text()), 1;
	while (event.kind != HANDOFF_EVENT_TRANSFERRED)
		handoff_turn(driver, -1, &event, 1);
	/* The handle of the receive has the descriptor. */
	if (event.error || handoff_take_descriptors(message, &file, 1) != 1)
		return fprintf(stderr, "no file came\n"), 1;
	while ((got = read(file, part, sizeof(part))) > 0)
		fwrite(part, 1, (size_t)got, stdout);
	return handoff_close(listener);
}
