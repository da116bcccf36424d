package unpack

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"os"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"

	"lockstep.dev/lockstep/internal/race"
)

// packed returns about size bytes that begin with head and continue with filler, as gzip data made
// of several gzip members.
func packed(t testing.TB, head, filler string, size int) []byte {
	t.Helper()
	pack := func(text string) []byte {
		var out bytes.Buffer
		z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.WriteString(z, text)
		if err := errors.Join(err, z.Close()); err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	const block = 1 << 20
	out := pack(head)
	many := pack(strings.Repeat(filler, block/len(filler)))
	for ; size >= block; size -= block {
		out = append(out, many...)
	}
	return append(out, pack(strings.Repeat(filler, size/len(filler)))...)
}

// peak returns the maximum increase of the process's resident memory while f runs, in bytes.
func peak(t testing.TB, f func()) int64 {
	t.Helper()
	resident := func(field string) int64 {
		status, err := os.ReadFile("/proc/self/status")
		if err != nil {
			t.Skip("resident memory is not known here:", err)
		}
		_, rest, _ := strings.Cut(string(status), field+":")
		line, _, _ := strings.Cut(rest, " kB")
		kib, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return kib << 10
	}
	debug.FreeOSMemory()
	if err := os.WriteFile("/proc/self/clear_refs", []byte("5"), 0); err != nil { // resets the peak
		t.Skip(err)
	}
	before := resident("VmRSS")
	f()
	return resident("VmHWM") - before
}

var limits = []Limit{WorkflowNodes, ArchivedWorkflow, Tracker, Report, Plan, Chart}

// TestBombsCostNoMoreThanTheLimit unpacks a gigabyte packed into a megabyte, for each kind of data:
// one long text, and as many values as possible.
func TestBombsCostNoMoreThanTheLimit(t *testing.T) {
	if race.Enabled {
		t.Skip("the race detector multiplies the memory and the CPU time that are limited here")
	}
	const most = 64 << 20
	honest := func(data []byte) []byte {
		binary.LittleEndian.PutUint32(data[len(data)-4:], 1<<30)
		return data
	}
	for name, bomb := range map[string][]byte{
		"a text":                  packed(t, `{"a":"`, "x", 1<<30),
		"values":                  packed(t, `{"a":[`, "{},", 1<<30),
		"not JSON at all":         packed(t, ``, "\x00", 1<<30),
		"one that tells its size": honest(packed(t, `{"a":"`, "x", 1<<30)),
	} {
		for _, l := range limits {
			var err error
			rise := peak(t, func() { _, err = Base64Gzip(base64.StdEncoding.EncodeToString(bomb), l) })
			var large *TooLargeError
			if !errors.As(err, &large) || !strings.Contains(err.Error(), l.What) {
				t.Errorf("%s, %s: %v", name, l.What, err)
			}
			if rise > most {
				t.Errorf("%s, %s: it takes %d MiB", name, l.What, rise>>20)
			}
		}
	}
}

func TestDataWithinItsLimitIsUnpacked(t *testing.T) {
	for _, l := range limits {
		data := packed(t, "", "x", int(l.Bytes))
		got, err := Gzip(data, Limit{What: l.What, Bytes: l.Bytes})
		if err != nil || int64(len(got)) != l.Bytes {
			t.Errorf("%s: %d bytes, %v", l.What, len(got), err)
		}
		if _, err := Gzip(data, Limit{What: l.What, Bytes: l.Bytes - 1}); err == nil {
			t.Errorf("%s: one byte more than the limit is taken", l.What)
		}
	}
	for _, text := range []string{"!", "aGVsbG8=", "H4sIAAAAAAAA", ""} {
		if _, err := Base64Gzip(text, WorkflowNodes); err == nil || !strings.Contains(err.Error(), WorkflowNodes.What) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// FuzzCounter checks the bound of Counter for any text, however it is cut into pieces.
func FuzzCounter(f *testing.F) {
	for _, text := range []string{`{"a":[1,2,{"b":"c,\"["}],"d":{}}`, `[[],[],[]]`, `"x"`, `[{"a":null}]`, `{}`, `{"\\":1,"b":"\\"}`} {
		f.Add([]byte(text), 3)
	}
	f.Fuzz(func(t *testing.T, text []byte, cut int) {
		var value any
		if json.Unmarshal(text, &value) != nil {
			return
		}
		var c Counter
		if cut > 0 && cut < len(text) {
			c.Add(text[:cut])
			text = text[cut:]
		}
		// Each container counts as one, and each of its values except the first as another: no
		// value is counted less than half.
		if n := c.Add(text); values(value) > 2*n+1 {
			t.Errorf("%s: %d values, counted %d", text, values(value), n)
		}
	})
}

func values(v any) int {
	n := 1
	switch v := v.(type) {
	case []any:
		for _, item := range v {
			n += values(item)
		}
	case map[string]any:
		for _, item := range v {
			n += values(item)
		}
	}
	return n
}
