# SPDX-License-Identifier: MIT OR Apache-2.0
#
# `handoff serve` for a suite on this machine: it serves the files below $site at $url. Sourced.

site=$(mktemp -d)
log=$(mktemp)
server=''
trap '[ -z "$server" ] || kill $server; rm -rf "$site" "$log"' EXIT

serve() {
	# Not new, so that their tags are strong.
	find "$site" -type f -exec touch -d '1 hour ago' {} +
	starts handoff serve "$site" --listen 127.0.0.1:0
	url=$(grep -o -m 1 'http://[0-9.:]*' "$log")
}

# Starts a server, and waits until it tells where it listens.
starts() {
	"$@" >"$log" 2>&1 &
	server=$!
	until grep -q 'listening on' "$log"; do
		kill -0 $server 2>/dev/null || { cat "$log" && exit 1; }
		sleep 0.05
	done
}
