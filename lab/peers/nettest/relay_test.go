// SPDX-License-Identifier: MIT OR Apache-2.0

// Package relay runs golang.org/x/net's tests of a connection through `handoff relay`: one end is connected to the relay, the
// other has the connection that the relay makes.
package relay

import (
	"bufio"
	"io"
	"net"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/net/nettest"
)

// The engines of `handoff relay --engine`.
var engines = []string{"auto", "get-buf", "splice", "memory", "copy"}

// TestRelay runs all of TestConn by each engine, from either end, over TCP and over Unix sockets.
func TestRelay(t *testing.T) {
	for _, engine := range engines {
		t.Run(engine, func(t *testing.T) {
			target, err := net.Listen("tcp4", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			address := target.Addr().String()
			ends(t, start(t, engine, "tcp-listen://127.0.0.1:0", "tcp://"+address), target)
		})
		if engine == "get-buf" {
			// It sends without copying or not at all, which Unix sockets cannot.
			continue
		}
		t.Run(engine+" by unix", func(t *testing.T) {
			directory := t.TempDir()
			target, err := net.Listen("unix", directory+"/target")
			if err != nil {
				t.Fatal(err)
			}
			defer target.Close()
			address := target.Addr().String()
			ends(t, start(t, engine, "unix:"+directory+"/relay", "unix:"+address), target)
		})
	}
}

// ends runs all of TestConn from either end.
func ends(t *testing.T, relay string, target net.Listener) {
	t.Run("from the client", func(t *testing.T) {
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			client, server, stop, err := pipe(relay, target)
			return client, server, stop, err
		})
	})
	t.Run("from the server", func(t *testing.T) {
		nettest.TestConn(t, func() (net.Conn, net.Conn, func(), error) {
			client, server, stop, err := pipe(relay, target)
			return server, client, stop, err
		})
	})
}

// start starts a relay, and returns where it listens. It skips the test if the engine is not possible here.
func start(t *testing.T, engine, listen, target string) string {
	command := exec.Command("handoff", "relay", "--engine", engine, listen, target)
	messages, err := command.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(messages)
	var listening []string
	var last string
	for listening == nil && lines.Scan() {
		last = lines.Text()
		listening = regexp.MustCompile(`listening on (tcp://|unix:)(\S+)`).FindStringSubmatch(last)
	}
	if listening == nil {
		command.Wait()
		if command.ProcessState.ExitCode() == 3 {
			t.Skip(last)
		}
		t.Fatalf("%v: %s", command.ProcessState, last)
	}
	go io.Copy(io.Discard, messages)
	t.Cleanup(func() {
		command.Process.Signal(syscall.SIGTERM)
		command.Wait()
		if code := command.ProcessState.ExitCode(); code != 128+int(syscall.SIGTERM) {
			t.Errorf("the relay ended with %v", command.ProcessState)
		}
	})
	return listening[1] + listening[2]
}

// pipe makes one connection through the relay.
func pipe(relay string, target net.Listener) (client, server net.Conn, stop func(), err error) {
	if path, isUnix := strings.CutPrefix(relay, "unix:"); isUnix {
		client, err = net.Dial("unix", path)
	} else {
		client, err = net.Dial("tcp4", strings.TrimPrefix(relay, "tcp://"))
	}
	if err != nil {
		return nil, nil, nil, err
	}
	target.(interface{ SetDeadline(time.Time) error }).SetDeadline(time.Now().Add(10 * time.Second))
	server, err = target.Accept()
	if err != nil {
		client.Close()
		return nil, nil, nil, err
	}
	stop = func() {
		client.Close()
		server.Close()
	}
	return client, server, stop, nil
}
