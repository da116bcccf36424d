package engine

import (
	"strings"
	"testing"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

func TestAnArtifactIsTakenFromBelowAnother(t *testing.T) {
	for _, c := range []struct{ source, own, want string }{
		{"", "", ""}, {"", "two", "two"}, {"one", "", "one"}, {"one", "two", "one/two"},
	} {
		scope := template.Map{"inputs.artifacts.a": artifactText(wf.Artifact{Name: "a", SubPath: c.source})}
		got, err := linkArtifact(wf.Artifact{Name: "b", From: "{{inputs.artifacts.a}}", SubPath: c.own}, []template.Scope{scope})
		if err != nil || got.SubPath != c.want {
			t.Errorf("%q below %q: %q, %v", c.own, c.source, got.SubPath, err)
		}
	}
}

func TestTheBucketsOfAHistogramAreNumbers(t *testing.T) {
	for _, bucket := range []wf.AnyString{"NaN", "one"} {
		m := &wf.Prometheus{Name: "m", Histogram: &wf.Histogram{Value: "1", Buckets: []wf.AnyString{"1", bucket}}}
		if _, _, err := sample(m, nil); err == nil || !strings.Contains(err.Error(), "histogram.buckets: '"+string(bucket)+"'") {
			t.Errorf("%s: the error is %v", bucket, err)
		}
	}
}
