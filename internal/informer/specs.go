package informer

import (
	"reflect"
	"strings"
	"sync"

	argov1alpha1 "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// specs lets workflows share equal specs: thousands of workflows are submitted with the same spec
// and different arguments, or none. A shared spec must not be modified, like any object from a
// cache. The memory is bounded: large specs are not shared, and a full table is cleared.
type specs struct {
	mu    sync.Mutex
	known map[string]*argov1alpha1.WorkflowSpec
}

const (
	specsMax = 256
	// specTextMax is the maximum size of scripts and arguments of a shared spec, in bytes.
	// specTemplatesMax is its maximum number of templates.
	specTextMax      = 16 << 10
	specTemplatesMax = 64
)

// share replaces a spec by an equal one from the table, if there is one, else adds a copy to the
// table.
func (s *specs) share(w *argov1alpha1.WorkflowSpec) {
	if len(w.Templates) == 0 || len(w.Templates) > specTemplatesMax || specText(w) > specTextMax {
		return
	}
	own := w.Arguments
	w.Arguments = argov1alpha1.Arguments{}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := specKey(w)
	same := s.known[key]
	if same == nil || !reflect.DeepEqual(same, w) {
		if s.known == nil || len(s.known) >= specsMax {
			s.known = map[string]*argov1alpha1.WorkflowSpec{}
		}
		// A copy has slices without spare capacity, so that an append does not write to the shared
		// array.
		same = w.DeepCopy()
		s.known[key] = same
	}
	*w = *same
	w.Arguments = own
}

// specKey returns a key that is the same for equal specs and mostly different for others.
func specKey(w *argov1alpha1.WorkflowSpec) string {
	var b strings.Builder
	b.WriteString(w.Entrypoint)
	for i := range w.Templates {
		b.WriteByte('/')
		b.WriteString(w.Templates[i].Name)
		if c := w.Templates[i].Container; c != nil {
			b.WriteByte('=')
			b.WriteString(c.Image)
		}
	}
	return b.String()
}

func specText(w *argov1alpha1.WorkflowSpec) int {
	n := 0
	for i := range w.Templates {
		t := &w.Templates[i]
		if t.Script != nil {
			n += len(t.Script.Source)
		}
		if t.Resource != nil {
			n += len(t.Resource.Manifest)
		}
		if c := t.Container; c != nil {
			for _, text := range append(c.Command[:len(c.Command):len(c.Command)], c.Args...) {
				n += len(text)
			}
		}
	}
	return n
}
