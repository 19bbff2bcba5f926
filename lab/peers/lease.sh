#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: other people's programs receive in a container, on a queue that `handoff nic lease` has leased to it from
# a software NIC. They check what they receive; the meter says that nothing was copied.
. /root/peers/lib.sh
far="ip netns exec far" host="ip netns exec host" box="ip netns exec box"
for name in far host box; do
	ip netns add $name
	ip -n $name link set lo up
done
modprobe wire
ip link add w0 numrxqueues 8 numtxqueues 8 type wire
ip link set w0 netns far
ip link set wire0 netns host
ip -n far addr add 10.79.0.1/24 dev w0
ip -n host addr add 10.79.0.2/24 dev wire0
ip -n far link set w0 up
ip -n host link set wire0 up
ip -n far route add 10.79.7.2 via 10.79.0.2
settings() {
	for what in g l x n k; do $host ethtool -$what wire0; done
	$host ip -d link
}
before=$(settings)

begin
if ! $host handoff nic lease wire0 --to box --address 10.79.7.2 >"$out" 2>&1; then
	verdict fail "a queue is leased"
	exit 0
fi
verdict pass "a queue is leased"

# What the kernel copied of what was received, as the meter's JSON tells.
cat >/root/copied.py <<'END'
import json, sys
places = json.load(open("/root/meter.json"))["places"]
# What interrupts copy meanwhile, such as a header of the sender's, has the receiver in its path but another function.
received = [place for place in places
            if place["function"] == "io_zcrx_copy_chunk"
            or place["function"] == "_copy_to_iter" and "tcp_recvmsg" in place["path"]]
print(sum(place["bytes"] for place in received))
for place in received:
    print(place["bytes"], place["calls"], place["function"], *place["path"], file=sys.stderr)
END

# The case's name, the receiver, the sender, and what the kernel is to have copied if not 0. The sender starts when the receiver listens on port 9999, and waits until
# the receiver closes the connection. A receiver that serves for ever is then stopped; one that has found a wrong byte
# has ended before, and tells so by its exit code.
received() {
	name=$1 receiver=$2 sender=$3 expected=${4:-0}
	begin
	handoff meter --json -- $box $receiver >/root/meter.json 2>"$out" &
	ours=$!
	until $box ss -Hltn 'sport = 9999' | grep -q .; do
		kill -0 $ours 2>/dev/null || break
		sleep 0.2
	done
	sent=0 code=0
	timeout 100 $far $sender >>"$out" 2>&1 || sent=$?
	case $receiver in zcrx*) pkill -TERM -x zcrx || code=1 ;; esac
	wait $ours || { ended=$?; [ $ended -eq 143 ] || code=$ended; }
	copied=$(python3 /root/copied.py 2>>"$out")
	[ $sent -eq 0 ] && [ $code -eq 0 ] && [ "$copied" = $expected ] && verdict pass "$name" ||
		verdict fail "$name" "(the receiver's exit code $code, the sender's $sent; copied $copied)"
}

if command -v iou-zcrx >/dev/null; then
	client="iou-zcrx -c -h 10.79.7.2 -p 9999"
	received "iou-zcrx" "iou-zcrx -s -p 9999 -i nk0 -q 1" "$client -l 12840"
	received "iou-zcrx, one receive at a time" "iou-zcrx -s -p 9999 -i nk0 -q 1 -o 4" "$client -l 4096 -z 16384"
else
	verdict skip "iou-zcrx" "(not built)"
fi
# Sends the letters that liburing's example expects.
cat >/root/letters.py <<'END'
import socket, string, sys
size = int(sys.argv[1])
letters = (string.ascii_lowercase * (size // 26 + 1))[:size].encode()
with socket.create_connection(("10.79.7.2", 9999)) as connection:
    connection.sendall(letters)
    connection.shutdown(socket.SHUT_WR)
    connection.recv(1)
END
cat >/root/plain.py <<'END'
import socket
listener = socket.create_server(("10.79.7.2", 9999))
connection, _ = listener.accept()
while connection.recv(65536):
    pass
END
received "a program that copies, as the meter sees" "python3 /root/plain.py" "python3 /root/letters.py 1000000" 1000000
echo 16 >/proc/sys/vm/nr_hugepages
for area in 0 1 2; do
	received "liburing's zcrx, area of kind $area" "zcrx -v -p 9999 -i nk0 -q 1 -A $area -s 20000000 -S 16777216" \
		"python3 /root/letters.py 20000000"
done

begin
$host handoff nic restore wire0 >"$out" 2>&1
[ "$(settings)" = "$before" ] && verdict pass "the NIC is put back" || {
	diff <(echo "$before") <(settings) >>"$out"
	verdict fail "the NIC is put back"
}
exit 0
