#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# h1spec asks the example `echo_bodies` of handoff-http.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
. "$here/serving.sh"
starts echo_bodies 127.0.0.1:0
port=$(sed -n 's/^listening on .*://p' "$log")
begin
NO_COLOR=1 timeout --kill-after=5 60 "$SUITE/node_modules/.bin/deno" run --allow-net "$SUITE/http_test.ts" 127.0.0.1 "$port" >"$out" 2>&1
code=$?
sed -n 's/^✅ /pass /p; s/^❌ /fail /p' "$out"
[ $code -eq 0 ] || verdict fail "all of it" "(exit code $code)"
exit 0
