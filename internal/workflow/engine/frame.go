package engine

import (
	"fmt"
	"slices"
	"strings"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// frame is an instance of a steps or dag template.
type frame struct {
	run     *Run
	node    *node
	call    *call
	t       *compiled
	inputs  *inputsScope
	members map[string]*member
	daemons []*leaf

	// Of steps:
	group     int
	groupNode *node
	open      int // members of the group that are not done

	// Of a dag:
	waits   []int // number of unfinished dependencies, by task
	begun   []bool
	left    int  // number of needed tasks that are not done
	running int  // number of members that have begun and are not done
	failed  bool // the branch of a target has failed: with failFast no further task is started

	// For the template's parallelism:
	active      int
	queued      []queued
	childFailed bool
}

// queued is a child that waits because of the template's parallelism.
type queued struct{ start, drop func() }

func (r *Run) startFrame(n *node, c *call, t *compiled, inputs *inputsScope, kind wf.NodeType) *node {
	if r.begin(n, c, kind) {
		return n
	}
	if t.named {
		own, err := t.withNames(slices.Concat([]template.Scope{r.globalsFor(n.Name)}, c.outer, []template.Scope{inputs}))
		if err != nil {
			n.reject(err.Error())
			return n
		}
		t = own
	}
	f := &frame{run: r, node: n, call: c, t: t, inputs: inputs, members: map[string]*member{}}
	if !n.known {
		n.Inputs = inputs.resolved
	}
	if t.dag != nil {
		f.startDAG()
	} else {
		f.startGroup(0)
	}
	return n
}

// passes returns the scopes for the texts of a member whose node is called name.
func (f *frame) passes(s *step, name string) []template.Scope {
	return []template.Scope{f.run.globalsFor(name), f.inputs, &siblings{f, s}}
}

// admit calls start as soon as the template's parallelism allows. With failFast, it calls drop
// instead if the child had to wait and another child has failed meanwhile.
func (f *frame) admit(start, drop func()) {
	if p := f.t.Parallelism; p != nil && *p > 0 && int64(f.active) >= *p && f.run.stopping == "" {
		f.queued = append(f.queued, queued{start, drop})
		return
	}
	f.active++
	start()
}

// release frees a place in the template's parallelism and starts the next waiting child.
func (f *frame) release() {
	f.active--
	if len(f.queued) > 0 {
		next := f.queued[0]
		f.queued = f.queued[1:]
		f.active++
		if f.childFailed && f.t.FailFast != nil && *f.t.FailFast {
			next.drop()
			return
		}
		next.start()
	}
}

// startGroup starts the steps of group i in parallel, or ends the frame after the last group.
func (f *frame) startGroup(i int) {
	if f.run.ended {
		return
	}
	if i == len(f.t.groups) {
		f.end(wf.PhaseSucceeded, "")
		return
	}
	edges := []*node{f.node}
	switch {
	case f.groupNode == nil:
	case len(f.t.groups[f.group]) == 0:
		edges = []*node{f.groupNode} // its only edge leads to the next group
	default:
		edges = f.groupNode.outbound()
	}
	g := &node{}
	c := &call{
		name: fmt.Sprintf("%s[%d]", f.node.Name, i), display: fmt.Sprintf("[%d]", i), boundary: f.node, parent: f.node,
		edges: edges, from: f.t,
	}
	f.run.begin(g, c, wf.NodeStepGroup)
	f.group, f.groupNode, f.open = i, g, len(f.t.groups[i])
	if f.open == 0 {
		f.groupDone()
		return
	}
	members := make([]*member, 0, f.open)
	for _, s := range f.t.groups[i] {
		m := &member{frame: f, step: s, base: g.Name + "." + s.Name}
		f.members[s.Name] = m
		members = append(members, m)
	}
	for _, m := range members {
		if !f.run.ended {
			m.start([]*node{g}, g)
		}
	}
}

// erroredGroup is the beginning of the message of a group that could not be executed.
const erroredGroup = "step group deemed errored due to child"

// groupDone starts the next group, or ends the frame if a step failed without continueOn.
func (f *frame) groupDone() {
	for _, s := range f.t.groups[f.group] {
		for _, c := range f.members[s.Name].children {
			if c.node.Phase.FailedOrError() && !continues(s.ContinueOn, c.node.Phase) {
				phase, message := wf.PhaseFailed, fmt.Sprintf("child '%s' failed", c.node.ID)
				if c.node.broken && c.node.Phase == wf.PhaseError {
					f.node.broken = true
					message = c.node.Message
					if !strings.HasPrefix(message, erroredGroup) {
						message = fmt.Sprintf("%s %s error: %s", erroredGroup, c.node.Name, message)
					}
					phase = wf.PhaseError
				}
				f.groupNode.set(phase, message)
				f.end(wf.PhaseFailed, message)
				return
			}
		}
	}
	f.groupNode.set(wf.PhaseSucceeded, "")
	if f.run.stopping != "" && !f.call.onExit {
		f.end(wf.PhaseFailed, f.run.stopping)
		return
	}
	f.startGroup(f.group + 1)
}

func continues(c *wf.ContinueOn, phase wf.NodePhase) bool {
	return c != nil && (c.Failed && phase == wf.PhaseFailed || c.Error && phase == wf.PhaseError)
}

func (f *frame) startDAG() {
	d := f.t.dag
	f.waits, f.begun = make([]int, len(d.tasks)), make([]bool, len(d.tasks))
	for i := range d.tasks {
		if f.waits[i] = len(d.deps[i]); d.needed[i] {
			f.left++
		}
	}
	if f.left == 0 {
		f.end(wf.PhaseSucceeded, "")
		return
	}
	for i := range d.tasks {
		if d.needed[i] && f.waits[i] == 0 && !f.begun[i] {
			f.startTask(i)
		}
	}
}

// startTask runs or omits a task whose dependencies are done. It does neither if the dag has failed
// or is stopping.
func (f *frame) startTask(i int) {
	if f.run.ended {
		return
	}
	d := f.t.dag
	s := d.tasks[i]
	f.begun[i] = true
	edges := []*node{f.node}
	if len(d.deps[i]) > 0 {
		edges = nil
		for _, j := range d.deps[i] {
			edges = append(edges, f.members[d.tasks[j].Name].outbound()...)
		}
	}
	m := &member{frame: f, step: s, base: f.node.Name + "." + s.Name}
	if s.depends != nil && !s.depends(f.result) {
		f.members[s.Name] = m
		f.running++
		m.alone(wf.PhaseOmitted, "omitted: depends condition not met", edges, f.node)
		return
	}
	if d.failFast && f.failed || f.run.stopping != "" && !f.call.onExit {
		return
	}
	f.members[s.Name] = m
	f.running++
	m.start(edges, f.node)
}

// result reports whether a task is done and has the result that a depends condition names.
func (f *frame) result(task, result string) bool {
	m := f.members[task]
	if m == nil {
		return false
	}
	any, all := false, len(m.children) > 0
	for _, c := range m.children {
		any = any || c.node.Phase == wf.PhaseSucceeded
		all = all && c.node.Phase.FailedOrError()
	}
	n := m.node()
	switch result {
	case "Succeeded":
		return n.Phase == wf.PhaseSucceeded
	case "Failed":
		return n.Phase == wf.PhaseFailed
	case "Errored":
		return n.Phase == wf.PhaseError
	case "Skipped":
		return n.Phase == wf.PhaseSkipped
	case "Omitted":
		return n.Phase == wf.PhaseOmitted
	case "Daemoned":
		return n.Daemon() && n.Phase != wf.PhasePending
	case "AnySucceeded":
		return any && m.step.loops()
	case "AllFailed":
		return all && m.step.loops()
	}
	return false
}

// memberDone is called when a member's children, exit handlers and hooks are done.
func (f *frame) memberDone(m *member) {
	if f.t.dag == nil {
		if f.open--; f.open == 0 {
			f.groupDone()
		}
		return
	}
	d, i := f.t.dag, m.step.index
	f.running--
	f.left--
	m.branch = m.node().Phase
	if !m.branch.Completed() { // the task did not run: its branch has the phase of its dependencies
		m.branch = wf.PhaseSucceeded
		if !m.node().Daemon() {
			for _, j := range d.deps[i] {
				if b := f.members[d.tasks[j].Name].branch; b.FailedOrError() && !m.branch.FailedOrError() {
					m.branch = b
				}
			}
		}
	}
	if slices.Contains(d.targets, i) {
		f.failed = f.failed || m.branch.FailedOrError() && !continues(m.step.ContinueOn, m.branch)
	}
	for _, j := range d.dependents[i] {
		if f.waits[j]--; f.waits[j] == 0 && d.needed[j] {
			f.startTask(j)
		}
	}
	if f.left == 0 || f.running == 0 {
		f.end(f.dagPhase(), "")
	}
}

// dagPhase returns the phase of the first failed branch that leads to a target, or Succeeded.
func (f *frame) dagPhase() wf.NodePhase {
	d := f.t.dag
	for _, i := range d.targets {
		m := f.members[d.tasks[i].Name]
		if m != nil && m.branch.FailedOrError() && !continues(m.step.ContinueOn, m.branch) {
			return m.branch
		}
	}
	if f.left > 0 {
		return wf.PhaseFailed // stopped
	}
	return wf.PhaseSucceeded
}

// end fulfils the frame's node, with its outputs, and ends the frame's daemons.
func (f *frame) end(phase wf.NodePhase, message string) {
	for _, l := range f.daemons {
		if l.node.Daemon() {
			f.run.removePod(l, "the scope of the daemon is done")
			delete(f.run.live, l)
			l.node.Daemoned = nil
			l.release()
			l.node.set(wf.PhaseSucceeded, "")
		}
	}
	if phase == wf.PhaseSucceeded {
		outputs, err := f.run.frameOutputs(f)
		if err != nil {
			phase, message, f.node.broken = wf.PhaseError, err.Error(), true
		}
		f.node.give(outputs)
	}
	f.node.OutboundNodes = nil
	for _, n := range f.outbound() {
		f.node.OutboundNodes = append(f.node.OutboundNodes, n.ID)
	}
	f.node.set(phase, message)
}

func (f *frame) outbound() []*node {
	if f.t.dag == nil {
		if f.groupNode == nil {
			return nil
		}
		return f.groupNode.outbound()
	}
	var out []*node
	for _, i := range f.t.dag.targets {
		if m := f.members[f.t.dag.tasks[i].Name]; m != nil {
			out = append(out, m.outbound()...)
		}
	}
	return out
}

// siblings is the scope of the variables of a frame's members that viewer may use: in steps those
// of the members of earlier groups, in a dag those of the viewer's ancestors. A nil viewer stands
// for the outputs of the frame, which may use all members.
type siblings struct {
	frame  *frame
	viewer *step
}

func (s *siblings) Lookup(name string) (template.Value, bool) {
	rest, found := strings.CutPrefix(name, s.prefix())
	if !found {
		return template.Value{}, false
	}
	member, rest, _ := strings.Cut(rest, ".")
	m := s.frame.members[member]
	if m == nil || !s.sees(m) {
		return template.Value{}, false
	}
	return m.lookup(rest)
}

func (s *siblings) prefix() string {
	if s.frame.t.dag != nil {
		return "tasks."
	}
	return "steps."
}

func (s *siblings) sees(m *member) bool {
	switch {
	case s.viewer == nil || s.viewer == m.step:
		return true
	case s.frame.t.dag == nil:
		return m.step.index < s.viewer.index
	}
	return s.frame.t.dag.ancestor(s.viewer.index, m.step.index)
}

// Walk calls yield with the variables whose names begin with prefix.
func (s *siblings) Walk(prefix string, yield func(string, template.Value)) {
	for _, name := range sortedKeys(s.frame.members) {
		base := s.prefix() + name + "."
		if m := s.frame.members[name]; (strings.HasPrefix(prefix, base) || strings.HasPrefix(base, prefix)) && s.sees(m) {
			m.walk(func(rest string, v template.Value) {
				if strings.HasPrefix(base+rest, prefix) {
					yield(base+rest, v)
				}
			})
		}
	}
}
