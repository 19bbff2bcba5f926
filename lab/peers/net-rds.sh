#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: the kernel's tests of RDS (tools/testing/selftests/net/rds) over TCP. They have its sockets at both
# ends, so they tell what our engine is measured by. The arguments are the options of one run of test.py.
. /root/peers/lib.sh
for module in rds rds_tcp sch_netem; do modprobe "$module"; done
ip link set lo up
# The test looks for namespaces where they are kept elsewhere.
[ -e /var/run/netns ] || { rmdir /var/run && ln -s /run /var/run; }
cd /root/linux/tools/testing/selftests/net/rds || exit 1

exchange() {
	begin
	if timeout --kill-after=5 800 python3 -u ./test.py --transport tcp "$@" >"$out" 2>&1; then
		verdict pass "test.py $*"
	else
		verdict fail "test.py $*" "(exit code $?)"
	fi
}

if [ $# -gt 0 ]; then
	exchange "$@"
	exit
fi
exchange
exchange --loss 5
exchange --corruption 5
exchange --duplicate 5
./getsockopt >"$out" 2>&1
sed -n -e "/# SKIP/{s/^ok [0-9]* \\([^ ]*\\).*# SKIP/skip \\1/p;d}" \
	-e "s/^ok [0-9]* \\([^ ]*\\).*/pass \\1/p" \
	-e "s/^not ok [0-9]* \\([^ ]*\\).*/fail \\1/p" "$out"
