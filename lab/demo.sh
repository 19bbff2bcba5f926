#!/bin/sh
# What `handoff lab demo` runs in the guest.
set -eu

title() {
    printf '\n== %s\n' "$*"
}

title "A guest with Debian's own kernel, nothing added"
uname -srv
# Drivers of mechanisms that many machines lack; the kernel brings them as modules.
for module in dummy ublk_drv rds_tcp; do
    modprobe "$module" && echo "loaded $module"
done

title "What works there: handoff doctor"
handoff doctor

title "The copy meter, on a copy between two files in memory: handoff meter -- dd"
dd if=/dev/urandom of=/tmp/from bs=1M count=16 status=none
handoff meter -- dd if=/tmp/from of=/tmp/to bs=64k status=none

title "A block device of two disks, its loop a BPF program in the kernel: handoff blk add linear"
handoff blk add linear /dev/disk/by-id/virtio-half-1 /dev/disk/by-id/virtio-half-2
device=/dev/ublkb0
mkfs.ext4 -q "$device"
mkdir /tmp/tree
mount "$device" /tmp/tree

title "A tree of files onto it: handoff meter -- cp"
tree=/usr/lib/modules/$(uname -r)/kernel/fs
handoff meter -- cp -a "$tree" /tmp/tree/copy | sed -n 1,6p

title "The tree read back from the disks and compared, and what the server copies meanwhile"
umount /tmp/tree
mount "$device" /tmp/tree
(cd "$tree" && find . -type f -exec sha256sum {} + > /tmp/sums)
handoff blk show 0 --witness 2s > /tmp/show &
rounds=0
while kill -0 $! 2> /dev/null; do
    # Else the second round would not reach the device.
    echo 3 > /proc/sys/vm/drop_caches
    (cd /tmp/tree/copy && sha256sum --check --quiet /tmp/sums)
    rounds=$((rounds + 1))
done
wait $!
echo "$(wc -l < /tmp/sums) files the same, $(du -sm "$tree" | cut -f1) MiB, read $rounds times"
# Without the histograms.
grep -v '^    ' /tmp/show
grep -q '^engine  *bpf$' /tmp/show
umount /tmp/tree
handoff blk del 0

title "A pair of software NICs between two hosts: handoff nic show"
mkfs.ext4 -q /dev/disk/by-id/virtio-half-1
mkfs.ext4 -q /dev/disk/by-id/virtio-half-2
mkdir /tmp/near /tmp/far
mount /dev/disk/by-id/virtio-half-1 /tmp/near
mount /dev/disk/by-id/virtio-half-2 /tmp/far
ip netns add far
modprobe wire
# A page of payload and the headers.
ip link add near0 mtu 4148 type wire
ip link set wire0 mtu 4148 netns far
ip address add 10.99.0.1/24 dev near0
ip -n far address add 10.99.0.2/24 dev wire0
ip link set near0 up
ip -n far link set wire0 up
ip netns exec far handoff nic show wire0

title "A file over them, from disk to disk: handoff meter -- (handoff cp, at both ends)"
dd if=/dev/urandom of=/tmp/near/sent bs=1M count=16 status=none
cat > /tmp/both << 'END'
ip netns exec far handoff cp --raw --direct --verify --nic wire0 \
    tcp-listen://10.99.0.2:9000 /tmp/far/received > /tmp/received.txt &
until ip netns exec far ss -Hltn 'sport = 9000' | grep -q 9000; do sleep 0.1; done
handoff cp --raw --direct --engine uring-zc /tmp/near/sent tcp://10.99.0.2:9000
wait $!
cat /tmp/received.txt
END
handoff meter -- sh -e /tmp/both | tee /tmp/both.txt
# Starting programs copies pages; of the stream, nobody copies anything.
if grep -E 'tcp_sendmsg|tcp_recvmsg|zcrx_copy|ext4_' /tmp/both.txt; then exit 1; fi
ip netns exec far ethtool -S wire0 | awk '$1 == "dma_bytes:" { print "simulated DMA:", $2, "bytes by the NIC'\''s own thread" }'
cmp /tmp/near/sent /tmp/far/received && sha256sum /tmp/near/sent /tmp/far/received
grep -q 'socket -> memory .*zcrx' /tmp/received.txt

title "The same by a KEY, ciphered by the kernel: handoff meter -- (handoff cp over TLS, at both ends)"
# On most machines udev loads what the processor has for ciphers.
modprobe -a aesni_intel tls
# There the command tries what the kernel ciphers.
ip -n far link set lo up
cat > /tmp/keyed << 'END'
rm /tmp/far/received
ip netns exec far handoff cp --direct --verify --key-file /tmp/key \
    tls-listen://10.99.0.2:9001 /tmp/far/received > /tmp/received.txt &
until ip netns exec far ss -Hltn 'sport = 9001' | grep -q 9001; do sleep 0.1; done
handoff cp --direct --key-file /tmp/key /tmp/near/sent tls://10.99.0.2:9001
wait $!
cat /tmp/received.txt
END
handoff meter -- sh -e /tmp/keyed | tee /tmp/keyed.txt
# The ciphers of both ends are all that moves the payload: the kernel's own, and no copy beside it.
if grep 'kernel-tls .* copied' /tmp/keyed.txt; then exit 1; fi
test "$(grep -c 'kernel-tls .* ciphered' /tmp/keyed.txt)" -eq 2
cmp /tmp/near/sent /tmp/far/received && sha256sum /tmp/near/sent /tmp/far/received

title "The same through a relay on a third host, lent from the page cache and from a receive queue"
modprobe getbuf
ip netns add mid
# The other end of a new link is called wire0.
ip link add near1 mtu 4148 type wire
ip link set wire0 mtu 4148 netns mid name mid0
ip link add mid1 mtu 4148 type wire
ip link set wire0 mtu 4148 netns far name far1
ip link set mid1 netns mid
for end in "mid mid0 10.99.1.2" "mid mid1 10.99.2.1" "far far1 10.99.2.2"; do
    set -- $end
    ip -n "$1" address add "$3/24" dev "$2"
    ip -n "$1" link set "$2" up
done
ip address add 10.99.1.1/24 dev near1
ip link set near1 up
cat > /tmp/three << 'END'
rm /tmp/far/received
ip netns exec far handoff cp --raw --direct --nic far1 \
    tcp-listen://10.99.2.2:9000 /tmp/far/received > /tmp/received.txt &
receiver=$!
ip netns exec mid handoff relay --engine get-buf --connections 1 \
    tcp-listen://10.99.1.2:9000 tcp://10.99.2.2:9000 > /tmp/relayed.txt &
relay=$!
until ip netns exec far ss -Hltn 'sport = 9000' | grep -q 9000; do sleep 0.1; done
until ip netns exec mid ss -Hltn 'sport = 9000' | grep -q 9000; do sleep 0.1; done
handoff cp --raw --lend always --engine uring-zc /tmp/near/sent tcp://10.99.1.2:9000
wait $receiver
wait $relay
cat /tmp/relayed.txt /tmp/received.txt
END
handoff meter -- sh -e /tmp/three | tee /tmp/three.txt
# The receiver copies what a relay has put at odd places.
if grep -E 'tcp_sendmsg|tcp_recvmsg|skb_copy_ubufs|ext4_' /tmp/three.txt; then exit 1; fi
cmp /tmp/near/sent /tmp/far/received && sha256sum /tmp/near/sent /tmp/far/received
grep -q 'file -> ring .*get-buf' /tmp/three.txt
grep -q 'get-buf .*2 directions' /tmp/relayed.txt
ip netns del mid

title "Messages of 1 MiB from our RDS engine to the kernel's and back, and a cut: handoff rds stress"
# Our engine stands for a host without the kernel's RDS, whose port the kernel has here all the same: what
# comes for it is led to a port that nobody has.
modprobe -a rds_tcp act_pedit act_csum cls_flower sch_ingress
tc qdisc add dev near0 clsact
tc filter add dev near0 ingress protocol ip flower ip_proto tcp dst_port 16385 \
    action pedit ex munge tcp dport set 9 pipe action csum ip and tcp
tc filter add dev near0 egress protocol ip flower ip_proto tcp src_port 9 \
    action pedit ex munge tcp sport set 16385 pipe action csum ip and tcp
ip netns exec far handoff rds stress 10.99.0.2 --engine kernel > /tmp/answered.txt 2>&1 &
answering=$!
until grep -q answering /tmp/answered.txt; do sleep 0.1; done
handoff --json rds stress 10.99.0.1 --engine own -s 10.99.0.2 -q 1M -a 1M -d 2 --time 8 \
    > /tmp/asked.json 2> /tmp/asked.txt &
asking=$!
until ss -Htn 'dport = 16385' | grep -q 16385; do sleep 0.1; done
sleep 2
echo "cut: $(ss -KHtn 'dport = 16385' 2> /dev/null | wc -l) connections are reset"
wait $asking
kill -INT $answering
wait $answering || true
cat /tmp/asked.txt /tmp/asked.json
grep -q '"corrupt": 0' /tmp/asked.json
ip netns del far
umount /tmp/near /tmp/far
