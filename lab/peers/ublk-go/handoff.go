// SPDX-License-Identifier: MIT OR Apache-2.0

//go:build integration

// Devices of `handoff blk` for ublk-go's tests: each lies over a device of theirs, which has the test's backend. So the
// tests see what reaches the backend, and let it fail.
//
// HANDOFF_ADD has the target, loop or mirror, and options of `handoff blk add`. The second leg of a mirror is memory of
// its own. With HANDOFF_LEG_FAILS, a duration, that leg fails from then on. With HANDOFF_KILLS, a duration, the server
// is killed again and again, at random times that far apart on average.

package ublk

import (
	"encoding/json"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// room is what a mirror takes at the end of a small leg.
const room = 76 << 10

// leg is a leg of a mirror: a backend, and memory behind it for the mirror's record.
type leg struct {
	Backend
	size  int64
	end   *memBackend
	fails atomic.Bool
}

func newLeg(backend Backend, size uint64) *leg {
	return &leg{Backend: backend, size: int64(size), end: newMemBackend(room)}
}

// both calls one of two functions with each of the parts of a range, before and behind the end of the data.
func (l *leg) both(p []byte, at int64, data, end func([]byte, int64) (int, error)) (int, error) {
	if l.fails.Load() {
		return 0, unix.EIO
	}
	if at >= l.size {
		return end(p, at-l.size)
	}
	here := min(int64(len(p)), l.size-at)
	done, err := data(p[:here], at)
	if err != nil || here == int64(len(p)) {
		return done, err
	}
	more, err := end(p[here:], 0)
	return done + more, err
}

func (l *leg) ReadAt(p []byte, at int64) (int, error) {
	return l.both(p, at, l.Backend.ReadAt, l.end.ReadAt)
}

func (l *leg) WriteAt(p []byte, at int64) (int, error) {
	return l.both(p, at, l.Backend.WriteAt, l.end.WriteAt)
}

// zeroingLeg is one whose backend takes zeroes and discards. A mirror sends none for its record.
type zeroingLeg struct{ *leg }

func (l zeroingLeg) DiscardAt(at, length int64) (int, error) {
	return l.Backend.(Discarder).DiscardAt(at, length)
}

func (l zeroingLeg) WriteZeroesAt(at, length int64, flags ZeroFlags) (int, error) {
	return l.Backend.(ZeroWriter).WriteZeroesAt(at, length, flags)
}

// stack is a device of ours and what lies below it.
type stack struct {
	id    int
	lower []*Device
	stop  chan struct{}
	ends  sync.WaitGroup
	kills int
}

var (
	mutex  sync.Mutex
	stacks = map[*Device]*stack{}
)

// New makes a device of ours over one of theirs, or over two.
func New(backend Backend, size uint64, options ...Option) (*Device, error) {
	wanted := config{blockSize: defaultBlockSize, queueDepth: defaultQueueDepth, maxIOSize: defaultMaxIOSize}
	for _, option := range options {
		option(&wanted)
	}
	words := strings.Fields(os.Getenv("HANDOFF_ADD"))
	made := &stack{stop: make(chan struct{})}
	var backends []Backend
	length := size
	if words[0] == "mirror" && size > 0 && !isNilBackend(backend) {
		length += room
		first, second := newLeg(backend, size), newLeg(newMemBackend(int(size)), size)
		backends = []Backend{first, second}
		if _, zeroes := backend.(ZeroWriter); zeroes {
			second.Backend = &zeroBackend{memBackend: memBackend{data: make([]byte, size)}}
			backends = []Backend{zeroingLeg{first}, zeroingLeg{second}}
		}
		made.after("HANDOFF_LEG_FAILS", func(after time.Duration) bool {
			second.fails.Store(made.sleeps(after))
			return false
		})
	} else {
		backends = []Backend{backend}
	}
	for _, each := range backends {
		lower, err := newOwn(each, length, options...)
		if err != nil {
			made.end()
			return nil, err
		}
		made.lower = append(made.lower, lower)
		words = append(words, lower.ownPath())
	}
	arguments := append([]string{"blk", "add", "--json", "--block-size", fmt.Sprint(wanted.blockSize),
		"--depth", fmt.Sprint(wanted.queueDepth), "--max-request", fmt.Sprint(wanted.maxIOSize)}, words...)
	answer, err := handoff(arguments...)
	if err != nil {
		made.end()
		return nil, err
	}
	made.id = int(answer["id"].(float64))
	made.after("HANDOFF_KILLS", func(apart time.Duration) bool {
		if !made.sleeps(time.Duration(mrand.Int64N(int64(2 * apart)))) {
			return false
		}
		shown, _ := handoff("blk", "show", fmt.Sprint(made.id), "--json")
		if server, ok := shown["server"].(float64); ok && unix.Kill(int(server), unix.SIGKILL) == nil {
			made.kills++
		}
		return true
	})
	mutex.Lock()
	defer mutex.Unlock()
	stacks[made.lower[0]] = made
	return made.lower[0], nil
}

// handoff runs the command, and returns its answer also of a mirror that lacks a leg.
func handoff(arguments ...string) (answer map[string]any, err error) {
	command := exec.Command("handoff", arguments...)
	output, err := command.Output()
	if json.Unmarshal(output, &answer) == nil && answer["error"] == nil {
		return answer, nil
	}
	return nil, fmt.Errorf("handoff %v: %w: %s", arguments, err, output)
}

// after runs something with a duration of the environment, again as long as it says so.
func (s *stack) after(name string, step func(time.Duration) bool) {
	duration, err := time.ParseDuration(os.Getenv(name))
	if err != nil {
		return
	}
	s.ends.Add(1)
	go func() {
		defer s.ends.Done()
		for step(duration) {
		}
	}()
}

// sleeps tells whether the device was still there afterwards.
func (s *stack) sleeps(duration time.Duration) bool {
	select {
	case <-s.stop:
		return false
	case <-time.After(duration):
		return true
	}
}

func (s *stack) end() error {
	close(s.stop)
	s.ends.Wait()
	var failed error
	for _, lower := range s.lower {
		if err := lower.ownClose(); err != nil {
			failed = err
		}
	}
	return failed
}

// Path returns the node of our device over this one.
func (d *Device) Path() string {
	mutex.Lock()
	defer mutex.Unlock()
	if above := stacks[d]; above != nil {
		return fmt.Sprintf("/dev/ublkb%d", above.id)
	}
	return ""
}

// Close removes our device, and then those below. It does so once.
func (d *Device) Close() error {
	mutex.Lock()
	above := stacks[d]
	delete(stacks, d)
	mutex.Unlock()
	if above == nil {
		return nil
	}
	shown, _ := handoff("blk", "show", fmt.Sprint(above.id), "--json")
	_, err := handoff("blk", "del", fmt.Sprint(above.id), "--json")
	// Commands that other tests run may have inherited its node, as the tests open that without O_CLOEXEC.
	for again := 0; err != nil && again < 100; again++ {
		if testing.Verbose() {
			fmt.Println(err)
		}
		time.Sleep(100 * time.Millisecond)
		_, err = handoff("blk", "del", fmt.Sprint(above.id), "--json")
	}
	if failed := above.end(); err == nil {
		err = failed
	}
	if testing.Verbose() {
		fmt.Printf("device %d: %d kills, legs that are out: %v\n", above.id, above.kills, shown["failed_legs"])
	}
	return err
}
