package engine

import (
	"sync"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// SpecCache caches the results of checking and compiling specs for all workflows that run the same
// spec. The caller must ensure that specs with the same slice of templates differ only in their
// arguments, and must never change such a spec.
//
// All methods are safe for concurrent use and on a nil receiver. The memory is bounded: a full
// table is emptied.
type SpecCache struct {
	mu        sync.Mutex
	templates map[*wf.Template]*compiled
	specs     map[*wf.Template]specFacts // by the address of their first template
}

type specFacts struct {
	templates int
	faultless bool         // checked without findings; only for specs without arguments
	shape     *podPrograms // only for specs whose settings have no variables; nil if unknown
}

// specCacheMax bounds the entries of each table. More templates occur only where workflows do not share
// them.
const specCacheMax = 512

// template returns the compiled template, or nil. The caller must replace its scope, which may be
// another workflow's.
func (k *SpecCache) template(t *wf.Template) *compiled {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.templates[t]
}

func (k *SpecCache) compiled(c *compiled) {
	if k == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.templates == nil || len(k.templates) >= specCacheMax {
		k.templates = map[*wf.Template]*compiled{}
	}
	k.templates[c.Template] = c
}

// faultless reports whether a spec was checked without findings.
func (k *SpecCache) faultless(s *wf.WorkflowSpec) bool {
	return withoutArguments(s) && k.spec(s).faultless
}

func (k *SpecCache) noFault(s *wf.WorkflowSpec) {
	if withoutArguments(s) {
		k.change(s, func(known *specFacts) { known.faultless = true })
	}
}

// withoutArguments reports whether a spec has neither arguments nor a workflowTemplateRef, so that
// a check of the shared parts covers all of it.
func withoutArguments(s *wf.WorkflowSpec) bool {
	return len(s.Arguments.Parameters)+len(s.Arguments.Artifacts) == 0 && s.WorkflowTemplateRef == nil
}

// shape returns the compiled podShape and podPlace of a spec whose other settings have no
// variables, or nil if they are unknown.
func (k *SpecCache) shape(s *wf.WorkflowSpec) *podPrograms { return k.spec(s).shape }

func (k *SpecCache) plain(s *wf.WorkflowSpec, shape *podPrograms) {
	k.change(s, func(known *specFacts) { known.shape = shape })
}

func (k *SpecCache) spec(s *wf.WorkflowSpec) specFacts {
	if k == nil || len(s.Templates) == 0 {
		return specFacts{}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if known := k.specs[&s.Templates[0]]; known.templates == len(s.Templates) {
		return known
	}
	return specFacts{}
}

func (k *SpecCache) change(s *wf.WorkflowSpec, change func(*specFacts)) {
	if k == nil || len(s.Templates) == 0 {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.specs[&s.Templates[0]]
	if known.templates != len(s.Templates) {
		known = specFacts{templates: len(s.Templates)}
	}
	change(&known)
	if k.specs == nil || len(k.specs) >= specCacheMax {
		k.specs = map[*wf.Template]specFacts{}
	}
	k.specs[&s.Templates[0]] = known
}
