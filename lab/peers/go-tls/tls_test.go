// SPDX-License-Identifier: MIT OR Apache-2.0

// Package gotls asks `handoff serve` by Go's crypto/tls: each version and group, protocols, resumption, ends.
package gotls

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

var (
	address = os.Getenv("ADDRESS")
	file    = os.Getenv("FILE")
)

func config(t *testing.T) *tls.Config {
	pem, err := os.ReadFile(os.Getenv("CERT"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate")
	}
	return &tls.Config{RootCAs: roots, ServerName: "localhost", NextProtos: []string{"http/1.1"}}
}

func dial(t *testing.T, config *tls.Config) *tls.Conn {
	connection, err := tls.Dial("tcp", address, config)
	if err != nil {
		t.Fatal(err)
	}
	return connection
}

// get has the whole file, and an end that was said: without close-notify, Go reports that it is unexpected.
func get(t *testing.T, connection *tls.Conn) {
	request := "GET /file HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
	if _, err := io.WriteString(connection, request); err != nil {
		t.Fatal(err)
	}
	answer, err := io.ReadAll(connection)
	if err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, body, found := bytes.Cut(answer, []byte("\r\n\r\n")); !found || !bytes.Equal(body, content) {
		t.Fatalf("another file of %d bytes", len(body))
	}
	connection.Close()
}

func TestServe(t *testing.T) {
	groups := []tls.CurveID{tls.X25519, tls.CurveP256, tls.CurveP384, tls.X25519MLKEM768}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for _, group := range groups {
			if version == tls.VersionTLS12 && group == tls.X25519MLKEM768 {
				continue
			}
			t.Run(fmt.Sprintf("%s/%s", strings.ReplaceAll(tls.VersionName(version), " ", "_"), group), func(t *testing.T) {
				config := config(t)
				config.MinVersion, config.MaxVersion = version, version
				config.CurvePreferences = []tls.CurveID{group}
				connection := dial(t, config)
				state := connection.ConnectionState()
				if state.Version != version || state.NegotiatedProtocol != "http/1.1" {
					t.Fatalf("agreed on %x, %q", state.Version, state.NegotiatedProtocol)
				}
				get(t, connection)
			})
		}
	}
	for _, suite := range []uint16{
		tls.TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
		tls.TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
		tls.TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
	} {
		t.Run(tls.CipherSuiteName(suite), func(t *testing.T) {
			config := config(t)
			config.MaxVersion = tls.VersionTLS12
			config.CipherSuites = []uint16{suite}
			get(t, dial(t, config))
		})
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run("resumed/"+strings.ReplaceAll(tls.VersionName(version), " ", "_"), func(t *testing.T) {
			config := config(t)
			config.MinVersion, config.MaxVersion = version, version
			config.ClientSessionCache = tls.NewLRUClientSessionCache(4)
			for _, resumed := range []bool{false, true, true} {
				connection := dial(t, config)
				if is := connection.ConnectionState().DidResume; is != resumed {
					t.Fatalf("resumed: %t, not %t", is, resumed)
				}
				get(t, connection)
			}
		})
	}
	refused := func(name, why string, change func(*tls.Config)) {
		t.Run(name, func(t *testing.T) {
			config := config(t)
			change(config)
			_, err := tls.Dial("tcp", address, config)
			if err == nil || !strings.Contains(err.Error(), why) {
				t.Fatalf("%v, not %q", err, why)
			}
		})
	}
	refused("no_common_version", "remote error", func(config *tls.Config) {
		config.MinVersion, config.MaxVersion = tls.VersionTLS10, tls.VersionTLS11
	})
	refused("no_common_protocol", "no application protocol", func(config *tls.Config) {
		config.NextProtos = []string{"h2"}
	})
	refused("no_common_group", "handshake failure", func(config *tls.Config) {
		config.CurvePreferences = []tls.CurveID{tls.CurveP521}
	})
}
