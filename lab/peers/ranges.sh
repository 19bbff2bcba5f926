#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# The ranges that Go's net/http asks its own files for, asked of `handoff serve` (ranges). The arguments are ranges, if not
# all.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
. "$here/serving.sh"
printf '0123456789\n' >"$site/file"
serve
begin
[ $# -gt 0 ] && set -- -test.run "TestRanges/($(IFS='|' && echo "$*"))"
FILE=$site/file URL=$url/file timeout --kill-after=5 60 "$WORK/ranges.test" -test.v "$@" >"$out" 2>&1
code=$?
while read -r result name; do
	name=${name#TestRanges/}
	case $result in
	PASS:) verdict pass "$name" ;;
	SKIP:) echo "skip $name: several ranges get the whole file, and it came" ;;
	*) verdict fail "$name" ;;
	esac
done < <(sed -n 's/^ *--- \([A-Z]*:\) \(TestRanges\/[^ ]*\).*/\1 \2/p' "$out")
[ $code -eq 0 ] || verdict fail "all of it" "(exit code $code)"
exit 0
