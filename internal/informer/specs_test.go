package informer

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

func TestWorkflowsWithEqualSpecsShareThem(t *testing.T) {
	make := func(image, argument string) *argov1alpha1.WorkflowSpec {
		return &argov1alpha1.WorkflowSpec{
			Entrypoint: "main", NodeSelector: map[string]string{"a": "b"},
			Templates: []argov1alpha1.Template{{Name: "main", Container: &corev1.Container{Image: image, Command: []string{"c"}}}},
			Arguments: argov1alpha1.Arguments{Parameters: []argov1alpha1.Parameter{{Name: "p", Value: argov1alpha1.Any(argument)}}},
		}
	}
	var s specs
	one, two, other := make("a", "1"), make("a", "2"), make("b", "1")
	different := make("a", "1")
	different.NodeSelector["a"] = "c"
	for _, w := range []*argov1alpha1.WorkflowSpec{one, two, other, different} {
		want := w.DeepCopy()
		s.share(w)
		if !reflect.DeepEqual(w, want) {
			t.Errorf("sharing changed a spec:\n%v\n%v", w, want)
		}
	}
	if &one.Templates[0] != &two.Templates[0] {
		t.Error("workflows that differ in their arguments do not share their templates")
	}
	if &one.Templates[0] == &other.Templates[0] || &one.Templates[0] == &different.Templates[0] {
		t.Error("different specs share templates")
	}
	if cap(one.Templates) != len(one.Templates) || cap(one.Templates[0].Container.Command) != 1 {
		t.Error("there is room at the end of a shared slice")
	}
	large := make("a", "1")
	large.Templates[0].Script = &argov1alpha1.ScriptTemplate{Source: strings.Repeat("x", specTextMax+1)}
	s.share(large)
	for i := range 3 * specsMax {
		s.share(make(fmt.Sprint(i), ""))
	}
	if len(s.known) > specsMax {
		t.Errorf("%d specs are kept", len(s.known))
	}
}
