package engine

import (
	"sync"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// Known is what was found out about specs that several workflows run, so that it is found out once. Who gives one to its Runs
// sees to it that specs with the same slice of templates are the same but for their arguments, and never changes one.
//
// Its methods may be called from several goroutines, and on nil. Its memory is bounded: when it is full it begins anew.
type Known struct {
	mu        sync.Mutex
	templates map[*wf.Template]*compiled
	specs     map[*wf.Template]knownSpec // by their first template
}

type knownSpec struct {
	templates int
	faultless bool         // without arguments
	shape     *podPrograms // of a spec whose settings have no variables; nil: not known
}

// knownMax bounds both tables. There are more templates than that only where they are not shared.
const knownMax = 512

// template is the template with its tags parsed, or nil. Its scope is another workflow's.
func (k *Known) template(t *wf.Template) *compiled {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.templates[t]
}

func (k *Known) compiled(c *compiled) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.templates == nil || len(k.templates) >= knownMax {
		k.templates = map[*wf.Template]*compiled{}
	}
	k.templates[c.Template] = c
}

// faultless says that a spec was checked and nothing found.
func (k *Known) faultless(s *wf.WorkflowSpec) bool { return withoutArguments(s) && k.spec(s).faultless }

func (k *Known) noFault(s *wf.WorkflowSpec) {
	if withoutArguments(s) {
		k.change(s, func(known *knownSpec) { known.faultless = true })
	}
}

// withoutArguments says that there is no more to check of a spec than what it shares, and that it refers to nothing that
// is not part of it.
func withoutArguments(s *wf.WorkflowSpec) bool {
	return len(s.Arguments.Parameters)+len(s.Arguments.Artifacts) == 0 && s.WorkflowTemplateRef == nil
}

// shape are the variables of what shapes the pods of a spec without others, or nil.
func (k *Known) shape(s *wf.WorkflowSpec) *podPrograms { return k.spec(s).shape }

func (k *Known) plain(s *wf.WorkflowSpec, shape *podPrograms) {
	k.change(s, func(known *knownSpec) { known.shape = shape })
}

func (k *Known) spec(s *wf.WorkflowSpec) knownSpec {
	if k == nil || len(s.Templates) == 0 {
		return knownSpec{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if known := k.specs[&s.Templates[0]]; known.templates == len(s.Templates) {
		return known
	}
	return knownSpec{}
}

func (k *Known) change(s *wf.WorkflowSpec, change func(*knownSpec)) {
	if k == nil || len(s.Templates) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.specs[&s.Templates[0]]
	if known.templates != len(s.Templates) {
		known = knownSpec{templates: len(s.Templates)}
	}
	change(&known)
	if k.specs == nil || len(k.specs) >= knownMax {
		k.specs = map[*wf.Template]knownSpec{}
	}
	k.specs[&s.Templates[0]] = known
}
