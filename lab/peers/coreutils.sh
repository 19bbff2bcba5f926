#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: coreutils' tests of cp(1), with `handoff cp` in its place as far as it has words for what they ask
# (/root/peers/cp). The arguments are the tests. A test is skipped that asks for nothing that `handoff cp` has. Each runs as
# root or, if it wants that, as a user without privileges.
. /root/peers/lib.sh
peers=$(dirname "$0")
cp -r /root/coreutils /mnt/coreutils
cd /mnt/coreutils || exit 1
CP=$(command -v cp) CALLS=/mnt/calls
export CP CALLS
mkdir -p src
cp "$peers/cp" src/
# Numbers and messages of the system, which coreutils has a program of its own for.
cat >src/getlimits <<'LIMITS'
#!/bin/sh
printf '%s\n' INT_MAX=2147483647 "EACCES='Permission denied'" "EINVAL='Invalid argument'" "ENOTSUP='Operation not supported'"
LIMITS
printf '%s\n' '#define USE_ACL 1' '#define USE_XATTR 1' '#define HAVE_CAP 1' >config.h
chmod +x src/getlimits
# Tests work in directories below this one.
chmod -R a+rX .
chmod a+rwx .
export srcdir=. top_srcdir=. abs_srcdir=$PWD abs_top_srcdir=$PWD abs_top_builddir=$PWD CONFIG_HEADER=$PWD/config.h
built_programs="cat chmod chown chroot cp dd df ln ls mkdir mkfifo mv printf rm stat touch truncate"
PACKAGE_VERSION=$(rm --version | sed -n '1s/.* //p')
export built_programs PACKAGE_VERSION
export AWK=awk PERL=perl SHELL=/bin/bash LC_ALL=C COREUTILS_GROUPS="4 5" RUN_VERY_EXPENSIVE_TESTS=yes fail=0
PATH=$PWD/src:$PATH
for test in "$@"; do
	test=tests/cp/$(basename "$test" .sh).sh
	name=${test#tests/cp/}
	user=()
	grep -q '^skip_if_root_' "$test" && user=(chroot --skip-chdir --userspec=nobody --groups=4,5 /)
	begin
	: >"$CALLS"
	chmod a+rw "$CALLS"
	timeout --kill-after=5 1800 "${user[@]}" bash "$test" 9>&2 >"$out" 2>&1
	code=$?
	ours=$(grep -c ours "$CALLS") all=$(grep -c . "$CALLS")
	if [ "$code" -eq 77 ]; then
		verdict skip "$name" "$(sed -n 's/^.*: skipped test: //p' "$out" | head -n 1)"
	elif [ "$ours" -eq 0 ]; then
		begin
		verdict skip "$name" "asks for nothing that handoff cp has"
	elif [ "$code" -eq 0 ]; then
		verdict pass "$name" "(calls that are ours: $ours of $all)"
	else
		verdict fail "$name" "(exit code $code; calls that are ours: $ours of $all)"
	fi
done
exit 0
