// SPDX-License-Identifier: MIT OR Apache-2.0

// Asks a server for the ranges of Go's own test of files. Its rows, ServeFileRangeTests of net/http, are copied into
// rows_test.go when this is built (scripts/peers).
//
// FILE has testFileLen bytes, and URL is where it is served.
package ranges

import (
	"fmt"
	"io"
	. "net/http"
	"os"
	"testing"
)

const testFileLen = 11

func TestRanges(t *testing.T) {
	file, err := os.ReadFile(os.Getenv("FILE"))
	if err != nil || len(file) != testFileLen {
		t.Fatal("FILE:", err, len(file))
	}
	for _, row := range ServeFileRangeTests {
		t.Run(row.r, func(t *testing.T) { ask(t, file, row.r, row.code, row.ranges) })
	}
}

func ask(t *testing.T, file []byte, asked string, code int, ranges []wantRange) {
	request, err := NewRequest("GET", os.Getenv("URL"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if asked != "" {
		request.Header.Set("Range", asked)
	}
	answer, err := DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	several := len(ranges) > 1
	if several {
		code, ranges = StatusOK, nil
	}
	var told string
	wanted := string(file)
	if len(ranges) == 1 {
		told = fmt.Sprintf("bytes %d-%d/%d", ranges[0].start, ranges[0].end-1, testFileLen)
		wanted = wanted[ranges[0].start:ranges[0].end]
	}
	if answer.StatusCode != code {
		t.Errorf("status %d, and %d is wanted", answer.StatusCode, code)
	}
	if code == StatusRequestedRangeNotSatisfiable {
		return
	}
	if header := answer.Header.Get("Content-Range"); header != told {
		t.Errorf("Content-Range %q, and %q is wanted", header, told)
	}
	if string(body) != wanted {
		t.Errorf("body %q, and %q is wanted", body, wanted)
	}
	if several {
		t.Skip("several ranges get the whole file, and it came")
	}
}
