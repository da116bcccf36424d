package manager

import (
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/fence"
	"lockstep.dev/lockstep/internal/informer"
)

// leadership is the authority of a manager that leads: the term of the leader's lease, and its part
// in the division of keys. nil means that this is the only manager, whose writes have no fence.
type leadership struct {
	term   *fence.Term
	shards *shards
}

func (l *leadership) members() *shards {
	if l == nil {
		return nil
	}
	return l.shards
}

// writer returns the writer for work that only the leader does.
func (l *leadership) writer(w *apiwriter.W) apiwriter.Writer {
	if l == nil {
		return w
	}
	return w.Fenced(l)
}

// Term implements apiwriter.Fence.
func (l *leadership) Term(string) *fence.Term { return l.term }

// workflows returns the writer for the workflows that belong to the leader and for those in this
// manager's share.
func (l *leadership) workflows(w *apiwriter.W, informers *informer.Set) apiwriter.Writer {
	if l == nil {
		return w
	}
	return w.Fenced(leadersWorkflows{l, informers.Workflows})
}

// leadersWorkflows is the fence for workflows in the manager that leads.
type leadersWorkflows struct {
	*leadership
	workflows *informer.Informer[*wf.Workflow]
}

// Term implements apiwriter.Fence.
func (l leadersWorkflows) Term(owner string) *fence.Term {
	namespace, name, _ := strings.Cut(keyOf(owner), "/")
	w, found := l.workflows.Get(namespace, name)
	if found && w.Annotations[wf.AnnotationLeader] != "" {
		return l.term
	}
	term := l.shards.Term(owner)
	if term == nil && !found {
		return l.term // it may have been one of the leader's workflows
	}
	return term
}

// writer returns the writer for this manager's share.
func (s *shards) writer(w *apiwriter.W) apiwriter.Writer {
	if s == nil {
		return w
	}
	return w.Fenced(s)
}

// fence returns the fence for this manager's share, or nil if there are no other managers.
func (s *shards) fence() apiwriter.Fence {
	if s == nil {
		return nil
	}
	return s
}

// Term implements apiwriter.Fence.
func (s *shards) Term(owner string) *fence.Term { return s.member.Term(keyOf(owner)) }

// keyOf returns the namespace/name in the owner of a write, which is "kind/namespace/name".
func keyOf(owner string) string {
	_, key, _ := strings.Cut(owner, "/")
	return key
}
