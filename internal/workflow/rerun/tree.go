package rerun

import (
	"slices"
	"strings"

	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// tree indexes the nodes of a workflow, and collects which of them to remove and reopen. The names
// of the nodes inside a node begin with the node's name.
type tree struct {
	w         *wf.Workflow
	sorted    []*wf.NodeStatus // by name
	byID      map[string]*wf.NodeStatus
	byName    map[string]*wf.NodeStatus
	members   map[string][]*wf.NodeStatus // by the ID of the enclosing steps or dag node
	gone      map[string]bool             // IDs of nodes to remove
	reset     map[string]bool             // IDs of nodes to reopen
	restarted []string
}

func newTree(w *wf.Workflow) *tree {
	t := &tree{
		w: w, byID: map[string]*wf.NodeStatus{}, byName: map[string]*wf.NodeStatus{}, members: map[string][]*wf.NodeStatus{},
		gone: map[string]bool{}, reset: map[string]bool{},
	}
	for _, n := range w.Status.Nodes {
		t.sorted = append(t.sorted, &n)
	}
	slices.SortFunc(t.sorted, func(a, b *wf.NodeStatus) int { return strings.Compare(a.Name, b.Name) })
	for _, n := range t.sorted {
		t.byID[n.ID], t.byName[n.Name] = n, n
		if n.BoundaryID != "" && !hooked(n) && !retried(n) {
			t.members[n.BoundaryID] = append(t.members[n.BoundaryID], n)
		}
	}
	return t
}

func hooked(n *wf.NodeStatus) bool { return n.NodeFlag != nil && n.NodeFlag.Hooked }

// retried reports whether the node is an attempt of a retry.
func retried(n *wf.NodeStatus) bool { return n.NodeFlag != nil && n.NodeFlag.Retried }

// retryOf returns the retry node of an attempt, or nil.
func (t *tree) retryOf(n *wf.NodeStatus) *wf.NodeStatus {
	if !retried(n) {
		return nil
	}
	return t.byName[n.Name[:strings.LastIndexByte(n.Name, '(')]]
}

// restartFailed restarts the nodes because of which the workflow failed.
func (t *tree) restartFailed() {
	root := t.byName[t.w.Name]
	if root == nil || root.Phase == wf.PhaseSucceeded || root.Phase == wf.PhaseSkipped || t.gone[root.ID] {
		return
	}
	t.restartIn(root)
}

// restartIn restarts the failed members of a steps or dag node; it restarts any other node as a
// whole.
func (t *tree) restartIn(n *wf.NodeStatus) {
	members := t.members[n.ID]
	if n.Type != wf.NodeSteps && n.Type != wf.NodeDAG || len(members) == 0 {
		t.restart(n)
		return
	}
	t.reopen(n)
	for _, m := range members {
		switch {
		case t.gone[m.ID] || m.Type == wf.NodeStepGroup || m.Type == wf.NodeTaskGroup:
		case t.absorbed(n, m):
		case m.Phase.FailedOrError(), m.Phase == wf.PhaseOmitted, !m.Phase.Fulfilled():
			t.restartIn(m)
		case t.isDaemon(m): // it ended with the enclosing node
			t.remove(m)
			t.reopenAround(m)
		}
	}
}

// absorbed reports whether a step's group succeeded although the step failed.
func (t *tree) absorbed(frame, m *wf.NodeStatus) bool {
	if frame.Type != wf.NodeSteps {
		return false
	}
	g := t.groupOf(frame, m)
	return g != nil && g.Phase == wf.PhaseSucceeded && !t.isDaemon(m)
}

// groupOf returns the step group of a step, or nil if it has none.
func (t *tree) groupOf(frame, m *wf.NodeStatus) *wf.NodeStatus {
	end := strings.Index(m.Name[len(frame.Name):], "]")
	if end < 0 {
		return nil
	}
	return t.byName[m.Name[:len(frame.Name)+end+1]]
}

// restart removes a node, the nodes inside it and the nodes after it, and reopens the enclosing
// nodes.
func (t *tree) restart(n *wf.NodeStatus) {
	if t.gone[n.ID] {
		return
	}
	if whole := t.retryOf(n); whole != nil { // all attempts are removed together
		n = whole
	}
	t.restarted = append(t.restarted, n.Name)
	t.remove(n)
	t.after(n)
}

// after removes the nodes after a node, in its frame and in the outer frames, and reopens the
// frames.
func (t *tree) after(n *wf.NodeStatus) {
	frame := t.byID[n.BoundaryID]
	if frame == nil {
		return
	}
	for _, m := range t.inside(n) {
		t.next(frame, m)
	}
	t.reopenAround(n)
	if hooked(n) {
		return
	}
	t.reopen(frame)
	t.after(frame)
}

// next removes the members of a frame to which edges from a node lead, directly or indirectly.
func (t *tree) next(frame, from *wf.NodeStatus) {
	for _, id := range from.Children {
		m := t.byID[id]
		if m == nil || t.gone[id] || m.BoundaryID != frame.ID || within(m.Name, from.Name) {
			continue
		}
		t.remove(m)
		for _, f := range t.inside(m) {
			t.next(frame, f)
		}
	}
}

// reopenAround reopens the step group or loop of a node inside its frame.
func (t *tree) reopenAround(n *wf.NodeStatus) {
	frame := t.byID[n.BoundaryID]
	if frame == nil {
		return
	}
	if frame.Type == wf.NodeSteps {
		if g := t.groupOf(frame, n); g != nil {
			t.reopen(g)
		}
	}
	for i := len(frame.Name) + 1; i < len(n.Name); i++ { // the task group of a loop
		if n.Name[i] == '(' {
			if g := t.byName[n.Name[:i]]; g != nil {
				t.reopen(g)
			}
		}
	}
}

// reopen lets a node run again, keeping its members, and reopens the enclosing nodes.
func (t *tree) reopen(n *wf.NodeStatus) {
	if t.gone[n.ID] || t.reset[n.ID] {
		return
	}
	t.reset[n.ID] = true
	t.dropHooks(n)
	if whole := t.retryOf(n); whole != nil {
		t.reopen(whole)
	}
	if frame := t.byID[n.BoundaryID]; frame != nil {
		t.reopenAround(n)
		t.reopen(frame)
	}
}

// remove removes a node and the nodes inside it.
func (t *tree) remove(n *wf.NodeStatus) {
	for _, m := range t.inside(n) {
		t.gone[m.ID] = true
		delete(t.reset, m.ID)
	}
}

// inside returns a node and the nodes inside it, including hooks and attempts.
func (t *tree) inside(n *wf.NodeStatus) []*wf.NodeStatus {
	at, found := slices.BinarySearchFunc(t.sorted, n.Name, func(m *wf.NodeStatus, name string) int {
		return strings.Compare(m.Name, name)
	})
	if !found {
		return nil
	}
	var all []*wf.NodeStatus
	for ; at < len(t.sorted) && strings.HasPrefix(t.sorted[at].Name, n.Name); at++ {
		if within(t.sorted[at].Name, n.Name) {
			all = append(all, t.sorted[at])
		}
	}
	return all
}

// within reports whether name is outer or the name of a node inside outer.
func within(name, outer string) bool {
	rest, found := strings.CutPrefix(name, outer)
	return found && (rest == "" || strings.IndexByte(".[(", rest[0]) >= 0)
}

// isHookOf reports whether a node is the exit handler or a hook of the node called name.
func isHookOf(name string, n *wf.NodeStatus) bool {
	rest, found := strings.CutPrefix(n.Name, name)
	return found && hooked(n) && (rest == ".onExit" || strings.HasPrefix(rest, ".hooks."))
}

// dropHooks removes the hooks of a node that is reopened.
func (t *tree) dropHooks(n *wf.NodeStatus) {
	for _, m := range t.inside(n) {
		if n.Name != t.w.Name && isHookOf(n.Name, m) {
			t.remove(m)
		}
	}
}

// dropWorkflowHooks removes the workflow's exit handler and hooks: they run again at its new end.
func (t *tree) dropWorkflowHooks() {
	for _, n := range t.sorted {
		if n.BoundaryID == "" && isHookOf(t.w.Name, n) {
			t.remove(n)
		}
	}
}

// isDaemon reports whether a node's template is a daemon.
func (t *tree) isDaemon(n *wf.NodeStatus) bool {
	if n.Type != wf.NodePod && n.Type != wf.NodeRetry {
		return false
	}
	daemon := func(t wf.Template) bool { return ptr.Deref(t.Daemon, false) }
	if ref := n.TemplateRef; ref != nil {
		key, stored := ref.Name+"/"+ref.Template, t.w.Status.StoredTemplates
		return daemon(stored["namespaced/"+key]) || daemon(stored["cluster/"+key])
	}
	return slices.ContainsFunc(t.w.EffectiveSpec().Templates, func(t wf.Template) bool { return t.Name == n.TemplateName && daemon(t) })
}
