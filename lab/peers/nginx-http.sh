#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# nginx-tests of HTTP, with `handoff serve` in nginx's place (nginx-http). The arguments are the tests.
here=$(cd "$(dirname "$0")" && pwd)
. "$here/verdict.sh"
cd "$SUITE" || exit 1
tests=("$@")
[ $# -gt 0 ] || tests=(range range_if_range not_modified http_method http_keepalive http_host headers ignore_invalid_headers)

# Why a check does not apply, if it does not: it asks for what `handoff serve` does not have, or has another answer for.
not_applicable() {
	case $1 in
	'range: multipart'* | 'range: max_ranges not'*) echo "several ranges get the whole file" ;;
	'range: max_ranges zero') echo "ranges cannot be switched off" ;;
	'range: recoded - correct content') echo "no charset is changed" ;;
	'range: not satisfiable - alpha'* | 'range: not satisfiable - no '*)
		echo "what is no range counts as not there, and 200 is the answer (RFC 9110, 14.2)"
		;;
	*'notime - no last modified' | *'time wrong - last modified' | *'if-range time') echo "no fields are set by hand" ;;
	'http_method: trace' | 'http_method: connect')
		echo "nginx's own reason, 405 Not Allowed, is compared; here TRACE gets 405 Method Not Allowed, and CONNECT 501"
		;;
	'http_host: domain empty (host header)') echo "an empty Host has the default here (RFC 9112, 3.3)" ;;
	'http_host: '*' w/ double dot '* | 'http_host: empty domain'*) [[ $1 == *ipv6* ]] || echo "a name may have empty labels by the grammar (RFC 3986, 3.2.2)" ;;
	'http_keepalive: keepalive time requests' | 'http_keepalive: keepalive time connection') ;;
	'http_keepalive: '[ks]*) echo "HTTP/1.1 keeps a connection without a field that says so, and --idle is the only limit" ;;
	'headers: '*) echo "no fields are set by hand: add_header, expires" ;;
	'ignore_invalid_headers: o'[fn]*' - '[ub]* | 'ignore_invalid_headers: underscores'*) echo "this is no proxy" ;;
	esac
}

export TEST_NGINX_BINARY=$here/nginx-http PERL5LIB=$SUITE/lib:$here HARNESS_PERL_SWITCHES=-MCrLf
for test in "${tests[@]}"; do
	test=${test%.t}
	begin
	timeout --kill-after=5 120 prove -v "$test.t" >"$out" 2>&1
	code=$?
	checks=0
	while read -r result check; do
		checks=$((checks + 1)) name="$test: $check"
		# Each file ends with two checks of what nginx writes into its log.
		case $check in 'no alerts' | 'no sanitizer errors') continue ;; esac
		why=$(not_applicable "$name")
		if [ -n "$why" ]; then
			echo "skip $name: $why"
		elif [ "$result" = skipped ]; then
			echo "skip $name"
		elif [ "$result" = ok ]; then
			verdict pass "$name"
		else
			verdict fail "$name"
		fi
	done < <(sed -n 's/^not ok [0-9]* - /not-ok /p; s/^ok [0-9]* - /ok /p; s/^ok [0-9]* # skip /skipped /p' "$out")
	planned=$(sed -n 's/^1\.\.\([0-9]*\).*/\1/p' "$out")
	[ "$checks" = "${planned:-none}" ] || verdict fail "$test" "(exit code $code; checks: $checks of ${planned:-none})"
done
exit 0
