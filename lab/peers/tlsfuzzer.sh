#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# tlsfuzzer speaks TLS, right and wrong, to `handoff serve`. Each of its conversations is a check; of those that fail,
# tlsfuzzer/choices says why they may. The arguments are names of its scripts, if not all of tlsfuzzer/scripts.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
. "$here/serving.sh"
printf '%0100d' 0 >"$site/index.html"
certificate
serve --cert "$keys/cert" --cert-key "$keys/key" --max-per-client 1000

# A line for each conversation of what a script prints.
told='
BEGIN {
	while ((getline line < choices) > 0)
		if (split(line, field, "\t") == 3 && field[1] == script) { names[++count] = field[2]; why[count] = field[3] }
}
function end() {
	if (name == "") return
	result = ok ? "pass" : "fail"
	for (i = 1; i <= count && !ok; i++) if (name ~ names[i]) { result = "skip"; reason = ": " why[i]; break }
	print result " " script ": " name reason
	name = ""; reason = ""; ok = 0
}
/ \.\.\.$/ { end(); name = substr($0, 1, length($0) - 4) }
/^OK$/ { ok = 1 }
/^Test end$/ { end() }
END { end() }
'
while read -r script options; do
	case " $* " in "  " | *" $script "*) ;; *) continue ;; esac
	begin
	# Word splitting is wanted: options.
	# shellcheck disable=SC2086
	timeout --kill-after=5 300 "$SUITE/python/bin/python" "$here/tlsfuzzer/run" "$SUITE" "$script" -h 127.0.0.1 \
		-p "${url##*:}" $options >"$out" 2>&1 </dev/null
	grep -q '^TOTAL:' "$out" || verdict fail "$script" "(it did not end)"
	awk -v script="$script" -v choices="$here/tlsfuzzer/choices" "$told" "$out"
	[ -z "${KEEP:-}" ] || cp "$out" "$KEEP/$script"
done < <(grep -v '^#' "$here/tlsfuzzer/scripts")
kill -0 $server 2>/dev/null || { cat "$log" && verdict fail "all of it" "(the server ended)"; }
exit 0
