# Boots systemd in a container with these packages, and asks its services: systemd.sh ROOT PACKAGE...
set -eu
root=$1
shift
. /etc/os-release
mmdebstrap --quiet --variant=minbase --include=curl,kmod,libelf1,systemd,systemd-sysv \
    "$VERSION_CODENAME" "$root"
cp "$@" "$root/root"
chroot "$root" sh -c 'dpkg --force-unsafe-io --install /root/*.deb' >/dev/null
mkdir -p "$root/srv/www"
head -c 200000 /dev/urandom >"$root/srv/www/file"
printf 'DIRECTORY=/srv/www\nOPTIONS=--threads 2\n' >"$root/etc/handoff/serve.d/8081.conf"
printf 'TARGET=tcp://127.0.0.1:8081\nOPTIONS=--idle 60\n' >"$root/etc/handoff/relay.d/8082.conf"
cat >"$root/root/ask.sh" <<'END'
exec >/root/said 2>/root/told
systemctl start handoff-serve@8081.socket handoff-relay@8082.socket
curl --silent --show-error --max-time 20 --output /root/file http://127.0.0.1:8082/file
cmp /root/file /srv/www/file
for unit in handoff-relay@8082 handoff-serve@8081; do
    systemctl is-active $unit.service
    systemctl stop $unit.socket $unit.service
    systemctl is-failed $unit.service
done
journalctl --no-pager --unit 'handoff*' >&2
END
cat >"$root/etc/systemd/system/ask.service" <<'END'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/sh /root/ask.sh
ExecStopPost=/bin/systemctl poweroff --no-block
END
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../ask.service "$root/etc/systemd/system/multi-user.target.wants"
timeout 120 systemd-nspawn --quiet --directory "$root" --register=no --keep-unit --private-network \
    --boot >"$root/root/boot" 2>&1 || true
cat "$root/root/said" "$root/root/told"
cmp "$root/root/file" "$root/srv/www/file"
printf 'active\ninactive\nactive\ninactive\n' | cmp - "$root/root/said"
echo "ended well"
