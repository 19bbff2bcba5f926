#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# Go's crypto/tls asks `handoff serve` by each version and group that both have. The arguments are tests, if not all.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
. "$here/serving.sh"
head -c 3000001 /dev/urandom >"$site/file"
certificate
serve --cert "$keys/cert" --cert-key "$keys/key"
begin
[ $# -gt 0 ] && set -- -test.run "TestServe/($(IFS='|' && echo "$*"))"
ADDRESS=${url#https://} CERT=$keys/cert FILE=$site/file timeout --kill-after=5 60 "$WORK.test" -test.v "$@" >"$out" 2>&1
code=$?
while read -r result name; do
	case $result in
	PASS:) verdict pass "$name" ;;
	*) verdict fail "$name" ;;
	esac
done < <(sed -n 's/^ *--- \([A-Z]*:\) TestServe\/\([^ ]*\).*/\1 \2/p' "$out" | grep -v -E ' (TLS_1\.[23]|resumed)$')
[ $code -eq 0 ] || verdict fail "all of it" "(exit code $code)"
exit 0
