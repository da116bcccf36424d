package v1alpha1

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestNames checks names that other programs also compute.
func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		NodeID("samp", "samp"):                "samp",
		NodeID("samp", "samp[0].gen"):         "samp-2420843178",
		PodName("samp", "samp", "main"):       "samp",
		PodName("samp", "samp[0].gen", "say"): "samp-say-2420843178",
	} {
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	if long := PodName("samp", "x", strings.Repeat("a", 300)); len(long) > 253 {
		t.Errorf("pod name has %d bytes", len(long))
	}
}

func TestValuesMayBeWrittenInSeveralWays(t *testing.T) {
	var w Workflow
	text := `{"metadata":{},"spec":{"arguments":{"parameters":[{"name":"a","value":1e3},{"name":"b","value":true},{"name":"c","value":"x"}]},
		"templates":[{"name":"t","steps":[{"name":"one","withItems":[1,{"k":[2]}]},[{"name":"two"}]]}]}}`
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"1e3", "true", "x"} {
		if got := string(*w.Spec.Arguments.Parameters[i].Value); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	steps := w.Spec.Templates[0].Steps
	if len(steps) != 2 || steps[0].Steps[0].Name != "one" || steps[1].Steps[0].Name != "two" {
		t.Errorf("steps are %+v", steps)
	}
	again, err := json.Marshal(w.DeepCopy())
	if err != nil || !strings.Contains(string(again), `"withItems":[1,{"k":[2]}]`) || !strings.Contains(string(again), `"value":"1e3"`) {
		t.Errorf("got %s, %v", again, err)
	}
	if err := json.Unmarshal([]byte(`{"name":"a","value":{}}`), &Parameter{}); err == nil {
		t.Error("an object was taken for a value")
	}
}
