# SPDX-License-Identifier: MIT OR Apache-2.0
#
# `handoff serve` for a suite on this machine: it serves the files below $site at $url, with what options it is given. Sourced.

site=$(mktemp -d)
log=$(mktemp)
server=''
keys=$(mktemp -d)
trap '[ -z "$server" ] || kill $server; rm -rf "$site" "$log" "$keys"' EXIT

# Makes a certificate for localhost, which is its own authority, and its key.
certificate() {
	openssl req -x509 -newkey rsa:2048 -noenc -days 30 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
		-addext basicConstraints=critical,CA:FALSE -keyout "$keys/key" -out "$keys/cert" 2>/dev/null
	chmod 600 "$keys/key"
}

serve() {
	# Not new, so that their tags are strong.
	find "$site" -type f -exec touch -d '1 hour ago' {} +
	starts handoff serve "$site" --listen 127.0.0.1:0 "$@"
	url=$(grep -o -m 1 'https\?://[0-9.:]*' "$log")
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
