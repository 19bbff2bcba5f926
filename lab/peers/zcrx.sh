#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: liburing's examples/zcrx and `handoff bench recv --nic` receive the same bytes from the same sender, in
# turns, over a software NIC between two namespaces: by epoll, by our zcrx, and by liburing's. Arguments are options of
# the bench that come behind ours.
. /root/peers/lib.sh
near="ip netns exec near" far="ip netns exec far"
ip netns add near
ip netns add far
modprobe wire
ip link add w0 numrxqueues 32 numtxqueues 32 type wire
ip link set w0 netns near
ip link set wire0 netns far
ip -n near addr add 10.79.0.1/24 dev w0
ip -n far addr add 10.79.0.2/24 dev wire0
for end in near far; do ip -n $end link set lo up; done
ip -n near link set w0 up
ip -n far link set wire0 up
$far ethtool -K wire0 rx-gro-hw on
settings() {
	for what in g l x n k; do $far ethtool -$what wire0; done
}
before=$(settings)

begin
$far handoff bench recv --nic wire0 --connections 1,2,4,8 --meter \
	--only 'check=no.* (epoll|zcrx chunk=4k( rings=1)?|liburing)$' --json-file /root/rows.json \
	--peer 'liburing=exec zcrx -p {port} -i {iface} -q {queue} -S 67108864' "$@" >"$out" 2>/root/errors &
ours=$!
until grep -q 'run there' /root/errors; do
	kill -0 "$ours" 2>/dev/null || break
	sleep 0.2
done
$near handoff bench recv --send-to 10.79.0.2 >>"$out" 2>&1
wait "$ours"
code=$?
cat /root/errors >>"$out"
[ "$code" -eq 0 ] && verdict pass "the table is complete" || verdict fail "the table is complete" "(exit code $code)"
[ "$(settings)" = "$before" ] && verdict pass "the NIC is put back" || verdict fail "the NIC is put back"

# What each row received is what was sent, or it has failed. Here: that no row is missing, and what the kernel copied.
python3 - >/root/verdicts <<'END'
import json
rows = json.load(open("/root/rows.json"))["rows"]
groups = {}
for row in rows:
    config = row["config"]
    key = (row["engine"], config.get("sockets", 1))
    groups.setdefault(config.get("placement"), []).append(key)
wanted = sorted((engine, count) for engine in ("epoll", "liburing", "zcrx") for count in (1, 2, 4, 8))
complete = bool(groups) and all(sorted(group) == wanted for group in groups.values())
print("pass" if complete else "fail", "no row is missing")
for row in rows:
    copied, witness = row.get("copied_share"), row.get("copied_share_witness")
    wanted = 1.0 if row["engine"] == "epoll" else 0.0
    fits = "skipped" not in row and witness is not None and abs(witness - wanted) < 0.1
    # Of a program only the witness tells.
    fits = fits and copied == (None if row["peer"] else wanted)
    told = row.get("skipped") or f"copied: the report says {copied}, the meter saw {witness}"
    print("pass" if fits else "fail", f"{row['name']} ({told})")
END
cat /root/verdicts
exit 0
