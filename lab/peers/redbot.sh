#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# REDbot asks `handoff serve` for resources of each kind. Of its notes, those that praise or tell pass, and those that warn
# or blame fail. The arguments are the resources, if not all.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
. "$here/serving.sh"
mkdir "$site/directory"
printf '<!doctype html>\n<title>a page</title>\n<p>%02000d\n' 0 >"$site/index.html"
printf '%05000d\n' 0 >"$site/text.txt"
head -c 300000 /dev/urandom >"$site/large.bin"
: >"$site/empty.bin"
serve
resources=("$@")
[ $# -gt 0 ] || resources=(/ text.txt large.bin empty.bin missing directory)

# A line for each note: its level, and what it says.
notes='
import json, sys
for entry in json.load(sys.stdin)["log"]["entries"]:
    for note in entry["_red_messages"]:
        print(note["level"], note["summary"])
'
for resource in "${resources[@]}"; do
	begin
	timeout --kill-after=5 60 "$SUITE/bin/redbot" -o har "$url/${resource#/}" >"$out" 2>&1
	told=$(python3 -c "$notes" <"$out") || verdict fail "$resource" "(REDbot tells nothing)"
	while read -r level note; do
		case $level:$note in
		GOOD:* | INFO:*) verdict pass "$resource: $note" ;;
		WARN:*'assign their own freshness lifetimes'*) echo "skip $resource: $note Who serves files would have to say how long." ;;
		*) echo "fail $resource: $note ($level)" ;;
		esac
	done <<<"$told"
done
exit 0
