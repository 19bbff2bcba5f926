#!/bin/bash
# SPDX-License-Identifier: MIT OR Apache-2.0
#
# In a guest: ublk-go's integration tests on our devices over theirs (lab/peers/ublk-go/handoff.go). The arguments are
# kinds of devices, behind an engine if not behind bpf: loop and mirror (with records) take all tests; loop-killed and
# mirror-killed those that compare data, while servers are killed; mirror-failing the same while a leg fails, too.
. /root/peers/lib.sh
modprobe ublk_drv
# Emulated, they are slow.
export UBLK_LINZ_OPS=${UBLK_LINZ_OPS:-600} UBLK_TORTURE_DURATION=${UBLK_TORTURE_DURATION:-20s}
[ $# -gt 0 ] || set -- mirror-killed mirror-failing mirror loop-killed loop user-auto:mirror-killed

# Those that make no device.
alone='TestUblkStructSizes|TestNewValidation|TestNewNilBackend|TestWorker.*|TestAlignedAlloc'
# Those that compare data.
data='TestPorcupine.*|TestTorture.*|TestRandomIOVerified'
# Tests that no device of ours can pass, and that a mirror cannot, with the reasons.
zeroes=TestBlkDiscardAndZeroOut
hides='TestBackendWriteErrorPropagates TestBackendReadErrorPropagates TestChaosErrorsPropagateAsEIO TestChaosRecovery'
small='TestSmallestDevice TestRapidStateMachine'

# leave_out REASON TEST...
leave_out() {
	local reason=$1
	shift
	for test in "$@"; do
		echo "skip $kind $engine $test ($reason)"
		skip+="|$test"
	done
}

judge() {
	local kind=${1#*:} engine=bpf tests=. skip=$alone test result name code
	case $1 in *:*) engine=${1%:*} ;; esac
	begin
	export HANDOFF_ADD="${kind%-*} --engine $engine" HANDOFF_KILLS='' HANDOFF_LEG_FAILS=''
	case $kind in mirror*) HANDOFF_ADD+=' --create --chunk 4k' ;; esac
	case $kind in *-killed | *-failing) HANDOFF_KILLS=2s tests="^($data)\$" ;; esac
	case $kind in *-failing) HANDOFF_LEG_FAILS=3s ;; esac
	case $kind in
	*-*) ;;
	*) leave_out "a discarded range reads as zeroes, so zeroes are written below" $zeroes ;;
	esac
	if [ "$kind" = mirror ]; then
		# shellcheck disable=SC2086
		leave_out "a mirror hides errors of a leg" $hides
		# shellcheck disable=SC2086
		leave_out "blocks of a mirror with records have 4 KiB" $small
	fi
	timeout --kill-after=5 600 ublk-go.test -test.v -test.timeout 500s -test.run "$tests" -test.skip "^($skip)\$" \
		-rapid.checks=3 -rapid.steps=15 -rapid.nofailfile 2>&1 | tee "$out" |
		sed -n -u "s/^--- \(PASS\|FAIL\|SKIP\): \(.*\)/\1 $kind $engine \2/p" |
		while read -r result name; do
			case $result in
			FAIL) verdict fail "$name" ;;
			*) echo "${result,,} $name" ;;
			esac
		done
	code=${PIPESTATUS[0]}
	# Who checks a history may give up.
	! grep -q 'TIMED OUT' "$out" || verdict fail "$kind $engine the history was not checked"
	sed -n 's/^device [0-9]*: \([0-9]*\) kills.*/\1/p' "$out" |
		awk -v of="$kind $engine" '{ kills += $1 } END { print "    | " of ": " kills " kills of a server" }'
	grep -e '^panic' -e 'linearizable: ' "$out" | sed 's/^/    | /'
	[ "$code" -eq 0 ] || verdict fail "$kind $engine all of it" "(exit code $code)"
	for id in $(handoff blk list --json | sed -n 's/^ *"id": \([0-9]*\).*/\1/p'); do handoff blk del --force "$id"; done
}

for kind in "$@"; do judge "$kind"; done
exit 0
