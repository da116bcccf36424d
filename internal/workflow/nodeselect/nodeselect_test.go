package nodeselect

import (
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func TestParse(t *testing.T) {
	n := &wf.NodeStatus{ID: "w-1", Name: "w.a", DisplayName: "a", Type: wf.NodePod, Phase: wf.PhaseFailed,
		TemplateRef: &wf.TemplateRef{Name: "lib", Template: "t"},
		Inputs:      &wf.Inputs{Parameters: []wf.Parameter{{Name: "region", Value: wf.Any("eu")}, {Name: "none"}}}}
	for text, want := range map[string]bool{
		"":                                          true,
		"displayName=a":                             true,
		"displayName=b":                             false,
		"name==w.a,phase!=Succeeded":                true,
		"name=w.a,phase=Succeeded":                  false,
		"templateRef.name=lib,type=Pod":             true,
		"templateName=t":                            false,
		"inputs.parameters.region.value=eu":         true,
		"inputs.parameters.none.value=eu":           false,
		"inputs.parameters.region.value!=eu,id=w-1": false,
	} {
		match, err := Parse(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
		} else if got := match(n); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	for _, text := range []string{"a", "display=a", "inputs.parameters.x=1", "phase>1"} {
		if _, err := Parse(text); err == nil {
			t.Errorf("%q: accepted", text)
		}
	}
}
