/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note OR MIT */
/* Attributes of a link of the kind "wire", inside IFLA_INFO_DATA. */
#ifndef WIRE_LINK_H
#define WIRE_LINK_H

enum {
	WIRE_INFO_UNSPEC,
	/*
	 * The other end: a struct ifinfomsg, followed by IFLA_* attributes
	 * (name, address, MTU, namespace). Without it the other end gets the
	 * first free name of wire0, wire1, ... in the same namespace.
	 */
	WIRE_INFO_PEER,
	__WIRE_INFO_MAX
};

#define WIRE_INFO_MAX (__WIRE_INFO_MAX - 1)

#endif
