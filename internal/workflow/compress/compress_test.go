package compress_test

import (
	"encoding/json"
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
