# In a guest with systemd: the services start, answer, are killed, stopped and upgraded, and go with their package.
set -eu
. /root/shared.sh

# Another host, for RDS.
ip netns add other
ip link add near type veth peer far netns other
ip address add 192.0.2.1/24 dev near
ip link set near up
ip -netns other address add 192.0.2.2/24 dev far
ip -netns other link set far up
# Enabling makes it, and nothing takes it away.
mkdir -p /etc/systemd/system/sockets.target.wants
# A unit of somebody else, whose name begins like ours: it stays.
cat >/etc/systemd/system/handoff-mine@.service <<END
[Service]
ExecStart=/bin/sleep infinity
[Install]
WantedBy=multi-user.target
END
quietly systemctl enable --now handoff-mine@a
all_files >/tmp/before
install /root/packages/handoff_*.deb
mkdir -p /srv/www
head -c 200000 /dev/urandom >/srv/www/file
printf 'DIRECTORY=/srv/www\nOPTIONS=--threads 2\n' >/etc/handoff/serve.d/8081.conf
printf 'TARGET=tcp://127.0.0.1:8081\nOPTIONS=--idle 60\n' >/etc/handoff/relay.d/8082.conf
printf 'ADDRESS=192.0.2.1\nOPTIONS=--engine own --from 192.0.2.0/24\n' >/etc/handoff/rds.d/local.conf
make_device
fetch() { curl --silent --show-error --max-time 60 --output /tmp/file http://127.0.0.1:8082/file && cmp /tmp/file /srv/www/file; }
main() { systemctl show --value --property MainPID "$1"; }
# Kills a service, and waits for the next process that takes its place.
killed() {
    before=$(main "$1")
    kill -KILL "$before"
    until_true sh -c "n=\$(systemctl show --value --property MainPID $1); [ \$n -ne 0 ] && [ \$n -ne $before ]"
}

# Nothing is in their files but what is said above; then the services start with the first connection.
quietly systemctl enable --now handoff-serve@8081.socket handoff-relay@8082.socket handoff-rds@local handoff-blk@data
[ "$(main handoff-relay@8082)" = 0 ]
fetch
for unit in handoff-relay@8082 handoff-serve@8081 handoff-rds@local handoff-blk@data; do
    # One by one: asked about several, it is content with one.
    systemctl is-active $unit
    [ -n "$(systemctl show --value --property StatusText $unit)" ]
    systemd-analyze security --no-pager $unit | tail -n 1
done
ask() { ip netns exec other handoff rds stress 192.0.2.2 -s 192.0.2.1 --engine own --time 1; }
ask
cmp /root/image /dev/ublkb7

# Killed, they come back; connections find the socket meanwhile.
for unit in handoff-relay@8082 handoff-serve@8081 handoff-rds@local; do
    killed $unit
    until_true systemctl is-active $unit
done
fetch
ask
# As soon as it starts, six times: systemd could take it for a service that never will.
group=/sys/fs/cgroup$(systemctl show --value --property ControlGroup handoff-relay@8082)
started() { read -r process <"$group/cgroup.procs"; }
for _ in $(seq 6); do
    until_true started
    kill -KILL $process
    until_true [ ! -e /proc/$process ]
done
until_true systemctl is-active handoff-relay@8082
fetch
# A killed server of a block device is followed by another.
server=$(systemctl show --value --property ControlGroup handoff-blk@data)
server=$(grep -vx "$(main handoff-blk@data)" "/sys/fs/cgroup$server/cgroup.procs" | head -n 1)
kill -KILL "$server"
until_true cmp /root/image /dev/ublkb7
systemctl is-active handoff-blk@data
# Without its supervisor, the server goes on alone; after that the device waits, for a server or to be removed.
kill -KILL "$(main handoff-blk@data)"
until_true systemctl is-failed handoff-blk@data
cmp /root/image /dev/ublkb7
kill -KILL "$(pgrep -f '^@handoff blk serve')"
until_true sh -c 'handoff blk list | grep "waits for a server"'
handoff blk recover 7
cmp /root/image /dev/ublkb7
handoff blk del 7
quietly systemctl restart handoff-blk@data
cmp /root/image /dev/ublkb7
quietly systemctl restart handoff-blk@data
cmp /root/image /dev/ublkb7
echo put back

# An upgrade restarts what only has connections, and leaves the device alone.
services="handoff-relay@8082 handoff-serve@8081 handoff-rds@local"
for unit in $services; do
    main $unit
done >/tmp/old
device=$(main handoff-blk@data)
install /root/newer/handoff_*.deb
for unit in $services; do
    until_true systemctl is-active $unit
    ! main $unit | grep -xf /tmp/old || exit 1
done
[ "$(main handoff-blk@data)" = "$device" ]
fetch
cmp /root/image /dev/ublkb7
echo upgraded

ended_well handoff-relay@8082.socket handoff-relay@8082.service handoff-serve@8081.socket handoff-serve@8081.service \
    handoff-rds@local.service handoff-blk@data.service
[ -z "$(handoff blk list)" ]
quietly systemctl start handoff-serve@8081.socket handoff-relay@8082.socket handoff-rds@local handoff-blk@data
fetch
# Removed, they have ended; their files stay until the purge.
quietly apt-get --yes remove handoff
[ ! -e /dev/ublkb7 ]
[ -e /etc/handoff/blk.d/data.conf ]
! curl --silent --max-time 5 http://127.0.0.1:8082/file || exit 1
purge handoff
rm -r /srv/www /root/image
all_files >/tmp/after
diff /tmp/before /tmp/after
echo purged
