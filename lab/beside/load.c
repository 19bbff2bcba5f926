/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The load of `scripts/beside relay`: connections over loopback, and on each 300 bytes there and back.
 *
 *     load serve PORT         answers, until it is killed
 *     load ask PORT COUNT     makes COUNT connections, eight at a time
 */
#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROCESSES 8

static char message[300];

static void must(int done, const char *what)
{
	if (done)
		return;
	perror(what);
	exit(1);
}

static void send_message(int stream)
{
	must(write(stream, message, sizeof(message)) == sizeof(message), "load: sending");
}

static void receive_message(int stream)
{
	ssize_t received;

	for (size_t all = 0; all < sizeof(message); all += received) {
		received = read(stream, message + all, sizeof(message) - all);
		must(received > 0, "load: receiving");
	}
}

static void answer(int listener)
{
	for (;;) {
		int stream = accept(listener, NULL, NULL);

		must(stream >= 0, "load: accepting");
		receive_message(stream);
		send_message(stream);
		close(stream);
	}
}

static void ask(const struct sockaddr_in *address, int count)
{
	while (count--) {
		int stream = socket(AF_INET, SOCK_STREAM, 0);

		must(!connect(stream, (const void *)address, sizeof(*address)), "load: connecting");
		send_message(stream);
		receive_message(stream);
		/* Whoever ends a connection keeps its ports for a minute: let that be the server. */
		must(read(stream, message, 1) == 0, "load: awaiting the end");
		close(stream);
	}
}

int main(int count, char **words)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_addr = { htonl(INADDR_LOOPBACK) } };
	int serves = count == 3 && !strcmp(words[1], "serve");
	int listener = socket(AF_INET, SOCK_STREAM, 0), one = 1, status, failed = 0;

	if (!serves && !(count == 4 && !strcmp(words[1], "ask"))) {
		fputs("usage: load serve PORT | load ask PORT COUNT\n", stderr);
		return 2;
	}
	address.sin_port = htons(atoi(words[2]));
	if (serves) {
		setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		must(!bind(listener, (void *)&address, sizeof(address)) && !listen(listener, 1024), "load: listening");
	}
	for (int process = 0; process < PROCESSES; process++) {
		pid_t made = fork();

		must(made >= 0, "load: making a process");
		if (made)
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (serves)
			answer(listener);
		ask(&address, atoi(words[3]) / PROCESSES);
		return 0;
	}
	while (wait(&status) > 0)
		failed |= status;
	return failed != 0;
}
