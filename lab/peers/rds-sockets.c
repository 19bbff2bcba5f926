// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Loaded before a program (LD_PRELOAD), this makes its sockets of RDS connections to handoff-rds's example `gateway`,
// whose socket $RDS_GATEWAY names. The program's messages then go by our engine, and poll() and the kernel's limits for
// a socket work as they do for any connection. Without $RDS_GATEWAY its sockets stay the kernel's.
//
// The option that resets a connection (RDS_CONN_RESET) is not in Linux: its number is another option's there. Here it
// is, for sockets of both kinds: the TCP connections of RDS between the two addresses are ended (ss -K).

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>

#ifndef PF_RDS
#define PF_RDS 21
#endif
#ifndef SOL_RDS
#define SOL_RDS 276
#endif

#define RDS_CONN_RESET 8

#define SOCKETS 1024
#define PARTS 64

// What begins each packet.
struct address {
	struct in_addr host;
	in_port_t port;
} __attribute__((packed));

// What RDS_CONN_RESET takes.
struct reset {
	unsigned char tos;
	struct in_addr own;
	struct in_addr peer;
};

static struct {
	int is_rds;
	struct sockaddr_in bound;
} sockets[SOCKETS];

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int is_rds(int fd)
{
	return fd >= 0 && fd < SOCKETS && sockets[fd].is_rds;
}

static struct address packed(const struct sockaddr_in *address)
{
	return (struct address){ address->sin_addr, address->sin_port };
}

static struct sockaddr_in unpacked(const struct address *address)
{
	return (struct sockaddr_in){ .sin_family = AF_INET, .sin_addr = address->host, .sin_port = address->port };
}

static int fails(int error)
{
	errno = error;
	return -1;
}

int socket(int domain, int type, int protocol)
{
	int by_engine = domain == PF_RDS && getenv("RDS_GATEWAY");
	int fd = REAL(socket)(by_engine ? AF_UNIX : domain, type, by_engine ? 0 : protocol);

	if (fd >= SOCKETS && by_engine)
		abort();
	if (fd >= 0 && fd < SOCKETS)
		sockets[fd].is_rds = by_engine;
	return fd;
}

int bind(int fd, const struct sockaddr *address, socklen_t length)
{
	struct sockaddr_un gateway = { .sun_family = AF_UNIX };
	const char *path = getenv("RDS_GATEWAY");
	struct address asked;

	if (!is_rds(fd))
		return REAL(bind)(fd, address, length);
	if (!path || strlen(path) >= sizeof(gateway.sun_path))
		return fails(EADDRNOTAVAIL);
	strcpy(gateway.sun_path, path);
	if (connect(fd, (struct sockaddr *)&gateway, sizeof(gateway)))
		return -1;
	asked = packed((const struct sockaddr_in *)address);
	if (send(fd, &asked, sizeof(asked), MSG_NOSIGNAL) != sizeof(asked) ||
	    recv(fd, &asked, sizeof(asked), 0) != sizeof(asked))
		return fails(EADDRINUSE);
	sockets[fd].bound = unpacked(&asked);
	return 0;
}

int getsockname(int fd, struct sockaddr *address, socklen_t *length)
{
	if (!is_rds(fd))
		return REAL(getsockname)(fd, address, length);
	memcpy(address, &sockets[fd].bound, sizeof(struct sockaddr_in));
	*length = sizeof(struct sockaddr_in);
	return 0;
}

// Ends the connections, of which one side's port is RDS's, or that at which our engine listens (rds.sh). What ended is
// printed.
static int reset(const struct reset *asked)
{
	char own[INET_ADDRSTRLEN], peer[INET_ADDRSTRLEN], command[256];

	inet_ntop(AF_INET, &asked->own, own, sizeof(own));
	inet_ntop(AF_INET, &asked->peer, peer, sizeof(peer));
	snprintf(command, sizeof(command),
		 "exec ss -KHtn src %s dst %s '( sport = :16385 or dport = :16385 or sport = :17000 )'", own, peer);
	return system(command) ? fails(EIO) : 0;
}

// The gateway has none of RDS's other options.
int setsockopt(int fd, int level, int name, const void *value, socklen_t length)
{
	if (level == SOL_RDS && name == RDS_CONN_RESET && length == sizeof(struct reset))
		return reset(value);
	if (is_rds(fd) && level == SOL_RDS)
		return fails(ENOPROTOOPT);
	return REAL(setsockopt)(fd, level, name, value, length);
}

// The message, behind an address.
static struct msghdr behind(const struct msghdr *message, struct address *address, struct iovec *parts)
{
	parts[0] = (struct iovec){ address, sizeof(*address) };
	memcpy(parts + 1, message->msg_iov, message->msg_iovlen * sizeof(*parts));
	return (struct msghdr){ .msg_iov = parts, .msg_iovlen = message->msg_iovlen + 1 };
}

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	struct iovec parts[PARTS + 1];
	struct address to;
	struct msghdr packet;
	ssize_t sent;

	if (!is_rds(fd))
		return REAL(sendmsg)(fd, message, flags);
	if (message->msg_iovlen > PARTS || message->msg_controllen || !message->msg_name)
		return fails(EOPNOTSUPP);
	to = packed(message->msg_name);
	packet = behind(message, &to, parts);
	sent = REAL(sendmsg)(fd, &packet, flags | MSG_NOSIGNAL);
	return sent < 0 ? sent : sent - (ssize_t)sizeof(to);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	struct iovec parts[PARTS + 1];
	struct address from;
	struct msghdr packet;
	ssize_t received;

	if (!is_rds(fd))
		return REAL(recvmsg)(fd, message, flags);
	if (message->msg_iovlen > PARTS)
		return fails(EOPNOTSUPP);
	packet = behind(message, &from, parts);
	received = REAL(recvmsg)(fd, &packet, flags);
	if (received < 0)
		return received;
	if (received < (ssize_t)sizeof(from))
		return fails(ECONNRESET);
	if (message->msg_name) {
		*(struct sockaddr_in *)message->msg_name = unpacked(&from);
		message->msg_namelen = sizeof(struct sockaddr_in);
	}
	message->msg_controllen = 0;
	message->msg_flags = packet.msg_flags;
	return received - sizeof(from);
}
