#!/bin/sh
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: the example of rx queues receives by a software NIC between two namespaces. Prints what it says, when it
# has ended.
set -eu
modprobe wire
ip netns add near
ip netns add far
ip link add w0 numrxqueues 4 numtxqueues 4 type wire
ip link set w0 netns near
ip link set wire0 netns far
for end in near,w0,1 far,wire0,2; do
	set -- $(echo $end | tr , ' ')
	ip -n $1 addr add 10.79.0.$3/24 dev $2
	ip -n $1 addr add fd00:79::$3/64 dev $2 nodad
	ip -n $1 link set $2 up
done
far="ip netns exec far"
$far ethtool -G wire0 tcp-data-split on
for family in tcp4 tcp6; do $far ethtool -N wire0 flow-type $family dst-port 8000 action 3 >&2; done

# Sends so many bytes to an address, a to z again and again from a letter on; waits for the end of the other side.
cat >/root/send.py <<'END'
import socket, string, sys, time
host, count, begin = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
while True:
    try:
        peer = socket.create_connection((host, 8000))
        break
    except ConnectionRefusedError:
        time.sleep(0.1)
letters = string.ascii_lowercase.encode()
try:
    peer.sendall((letters * (count // 26 + 2))[begin:begin + count])
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
except OSError:
    pass
END
send() { ip netns exec near python3 /root/send.py "$@"; }
begin() {
	echo "zcrx $*"
	$far zcrx -i wire0 -q 3 -S 4194304 "$@" >/root/said 2>&1 &
	program=$!
}
end() {
	code=0
	wait $program || code=$?
	sed 's/port [0-9]*/port N/; s/spans [0-9]*/spans N/' /root/said
	echo "code $code"
}
# Whether it may use one processor only.
processors() {
	case $(grep Cpus_allowed_list /proc/$program/status | tr -dc 0-9,-) in
	*[,-]*) echo "processors: more" ;;
	*) echo "processors: one" ;;
	esac
}

begin -v -s 100000
# What is behind these bytes stays where it is.
send 10.79.0.2 300000 0
send fd00:79::2 100000 0
send 10.79.0.2 99999 0
end

begin -v -c 1 -C 1
send 10.79.0.2 200000 0
processors
send 10.79.0.2 26 1
end

begin -c 2 -A 1
send fd00:79::2 70000 5
processors
kill $program
end
