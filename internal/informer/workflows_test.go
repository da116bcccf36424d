package informer

import (
	"encoding/json"
	"math/rand"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/client-go/kubernetes/scheme"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// TestWorkflowsAreCutAsTheyAreTrimmed compares workflows of random content that are cut before
// decoding with workflows that are decoded completely and then trimmed.
func TestWorkflowsAreCutAsTheyAreTrimmed(t *testing.T) {
	seed := time.Now().UnixNano()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewSource(seed))
	fill := fuzzer.FuzzerFor(metafuzzer.Funcs, rand.NewSource(seed), scheme.Codecs).NilChance(0.5).NumElements(0, 2).MaxDepth(14)
	phases := []argov1alpha1.WorkflowPhase{"", argov1alpha1.WorkflowRunning, argov1alpha1.WorkflowSucceeded, argov1alpha1.WorkflowFailed, argov1alpha1.WorkflowError}
	ended := 0
	for range 200 {
		w := &argov1alpha1.Workflow{}
		fill.Fill(&w.ObjectMeta)
		fill.Fill(&w.Spec.Arguments)
		fill.Fill(&w.Spec.PodGC)
		fill.Fill(&w.Spec.TTLStrategy)
		fill.Fill(&w.Status.Message)
		fill.Fill(&w.Status.StartedAt)
		w.APIVersion, w.Kind = argov1alpha1.GroupVersion.String(), "Workflow"
		w.Spec.Templates = []argov1alpha1.Template{{Name: `a "template"`}}
		w.Status.Nodes = argov1alpha1.Nodes{"n": {ID: "n", Message: `\"}{`}}
		w.Status.Phase = phases[random.Intn(len(phases))]
		if w.Labels == nil || random.Intn(2) == 0 {
			w.Labels = map[string]string{argov1alpha1.LabelCompleted: []string{"true", "false"}[random.Intn(2)]}
		}
		raw, err := json.Marshal(w)
		if err != nil {
			t.Fatal(err)
		}
		cut, err := cutWorkflow(nil, "Workflow", raw)
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		var s Set
		s.Workflows = New(nil, "workflows", Options[*argov1alpha1.Workflow]{})
		trimmed := func(raw []byte) *argov1alpha1.Workflow {
			var w argov1alpha1.Workflow
			if err := json.Unmarshal(raw, &w); err != nil {
				t.Fatalf("%v: %s", err, raw)
			}
			trimMeta(&w)
			s.trimWorkflow(&w)
			return &w
		}
		whole, lean := trimmed(raw), trimmed(cut)
		if !equality.Semantic.DeepEqual(whole, lean) {
			t.Fatalf("got\n%s\nwant that of\n%s", cut, raw)
		}
		if len(whole.Spec.Templates) == 0 {
			ended++
		}
	}
	if ended == 0 {
		t.Error("none had ended")
	}
}
