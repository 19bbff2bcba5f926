/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What the cases share: checks that say where they failed, and set-up. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "handoff.h"

#define CHECK(condition)                                                              \
	do {                                                                          \
		if (!(condition)) {                                                   \
			fprintf(stderr, "%s:%d: %s\nlast error: %s\n", __FILE__,      \
				__LINE__, #condition, handoff_error_text());          \
			exit(1);                                                      \
		}                                                                     \
	} while (0)

/* Both ends of a TCP connection over loopback. */
void connected(int ends[2]);

/* A driver of one of HANDOFF_RING_... */
handoff_driver driver_with(uint32_t ring);

/* Reads so many bytes, each of which is this one. */
void exactly(int fd, unsigned char byte, size_t count);

/* Waits until there is something to receive, or to accept. */
void await_readable(int fd);

/* Turns the driver until an event comes. */
struct handoff_event next_event(handoff_driver driver);

void memory_cases(void);
void frozen_cases(uint32_t ring);
void socket_cases(uint32_t ring);
void datagram_cases(uint32_t ring);
void group_cases(uint32_t ring);
void connection_cases(uint32_t ring);
void visit_cases(uint32_t ring);
void into_cases(uint32_t ring);
void unix_cases(uint32_t ring);
void lane_cases(void);
void file_cases(uint32_t ring);
void storage_cases(uint32_t ring);
void option_cases(uint32_t ring);
void route_cases(uint32_t ring);
void misuse_cases(void);
void fork_cases(uint32_t ring);

#endif
