package compress_test

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/compress"
)

func TestUnpackGivesWhatWasPacked(t *testing.T) {
	want := wf.Nodes{"a": {ID: "a", Name: "a", Type: wf.NodePod, Phase: wf.PhaseRunning, Message: strings.Repeat("long ", 1000)}}
	data, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	text, err := compress.Pack(data)
	if err != nil {
		t.Fatal(err)
	}
	if len(text) > len(data)/10 {
		t.Errorf("%d bytes became %d", len(data), len(text))
	}
	got, err := compress.Nodes(&wf.WorkflowStatus{CompressedNodes: text})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	edited := wf.Nodes{"b": {ID: "b"}}
	got, err = compress.Nodes(&wf.WorkflowStatus{CompressedNodes: text, Nodes: edited})
	if err != nil || len(got) != 2 || got["a"].Name != "a" || got["b"].ID != "b" {
		t.Errorf("with a node beside them: %v, %v", got, err)
	}
}

func TestUnpackRefusesWhatItCannotRead(t *testing.T) {
	for _, text := range []string{"!", "aGVsbG8=", "H4sIAAAAAAAA"} {
		if _, err := compress.Unpack(text); err == nil || !strings.Contains(err.Error(), "status.compressedNodes") {
			t.Errorf("%q: %v, want an error that names the field", text, err)
		}
	}
}

// bomb returns packed JSON of nodes that is size bytes long when unpacked, and a thousandth of that
// packed.
func bomb(t *testing.T, filler string, size int) string {
	t.Helper()
	var out bytes.Buffer
	for _, text := range append([]string{`{"a":`}, slices.Repeat([]string{strings.Repeat(filler, 1<<20/len(filler))}, size>>20)...) {
		z := gzip.NewWriter(&out) // concatenated gzip files are one gzip file
		if _, err := z.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return base64.StdEncoding.EncodeToString(out.Bytes())
}

func TestUnpackStopsAtItsLimit(t *testing.T) {
	for name, text := range map[string]string{
		"a gigabyte of text":     bomb(t, " ", 1<<30),
		"hundred million values": bomb(t, `{"b":[[],[],[],`, 1<<30),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := compress.Unpack(text)
		runtime.ReadMemStats(&after)
		if err == nil || !strings.Contains(err.Error(), "status.compressedNodes has more than") {
			t.Errorf("%s: %v", name, err)
		}
		if made := (after.TotalAlloc - before.TotalAlloc) >> 20; made > 64 {
			t.Errorf("%s: %d MiB were allocated", name, made)
		}
	}
}
