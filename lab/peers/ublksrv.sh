#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: ublksrv's own tests, with our devices in place of ublk's. They print what they find, and end with 0 whatever
# that is. The arguments are the tests, as generic/001; all of generic, loop and null if none.
. /root/peers/lib.sh
cd /root/ublksrv/tests || exit 1
mkdir -p /root/shim /mnt/images
install -m 755 /root/peers/kublk /root/peers/ublksrv /root/shim/
modprobe ublk_drv
export UBLK=/root/shim/ublksrv TEST_DIR=$PWD UBLK_TMP=/root/ublk_tmp UBLK_TMP_DIR=/mnt/images ALL_TGTS="null loop"
export TRUNTIME=${TRUNTIME:-3} T_TYPE_PARAMS=''
# The root disk's file system, of which one is made on a device, is not one to make here.
cat >/usr/local/bin/findmnt <<'END'
#!/bin/sh
case " $* " in *" / ") echo ext4 ;; *) exec /usr/bin/findmnt "$@" ;; esac
END
chmod +x /usr/local/bin/findmnt
# Writing 1 GiB of zeroes first takes a minute here, emulated.
sed -i 's/LO_IMG_SZ=1G/LO_IMG_SZ=256M/' common/loop_common
# There is no such target.
sed -i 's/"loop" "nbd"/"loop"/' generic/003

# Why a test cannot pass here, if it cannot.
not_ours() {
	case $1 in
	generic/007) echo "(a device without a server that does not wait for one, or fails requests meanwhile)" ;;
	loop/003) echo "(it is about the kernel's loop driver)" ;;
	loop/013) echo "(memory shared with the driver)" ;;
	*) return 1 ;;
	esac
}

tests=("$@")
[ $# -gt 0 ] || tests=({generic,loop,null}/0*)
for test in "${tests[@]}"; do
	if why=$(not_ours "$test"); then
		echo "skip $test $why"
		continue
	fi
	begin
	unset UBLK_PID
	[ "$test" != generic/008 ] || export UBLK_PID=server
	timeout --kill-after=5 400 bash "$test" >"$out" 2>&1
	code=$?
	bad=$(grep -i -m 1 -E "fail|error|isn't|incorrect|did not|unexpectedly|not in IO_FLUSHER|unknown|iops (read )?(0?,|0 )|write (0?,|0 )" "$out" |
		grep -v -E 'expect (no|I/O) error')
	if [ $code -eq 0 ] && [ -z "$bad" ] && [ -s "$out" ]; then
		verdict pass "$test"
		sed 's/^/    | /' "$out"
	else
		verdict fail "$test" "(exit code $code) $bad"
	fi
	"$UBLK" del -a >/dev/null 2>&1
done
exit 0
