package engine

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// PodState is the observed state of a node's pod.
type PodState struct {
	NodeID   string
	Phase    corev1.PodPhase
	Message  string
	Error    bool // the cluster, not the user's program, caused the failure
	Ready    bool
	Gone     bool // the pod no longer exists
	Awaited  bool // outputs have not arrived yet
	PodIP    string
	HostName string
	ExitCode *int32
	Outputs  *wf.Outputs
	Progress string // "N/M" as reported by the pod; "" if it reports none
	// Containers are the states of the containers of a container set, by name.
	Containers map[string]ContainerState
	// ResourcesDuration is the resource usage of a finished pod: its requests times its running
	// time.
	ResourcesDuration map[corev1.ResourceName]int64
}

// ContainerState is the state of one container of a container set.
type ContainerState struct {
	Phase   wf.NodePhase
	Message string
}

func (p PodState) key() string { return p.NodeID }

// Resume ends a pause. The default of Phase is Succeeded.
type Resume struct {
	NodeID  string
	Phase   wf.NodePhase
	Message string
	Outputs map[string]string // values of the supplied parameters, by name
}

func (e Resume) key() string { return e.NodeID }

// leaf is a pod, a request or a pause under way.
type leaf struct {
	run     *Run
	node    *node
	call    call
	t       *compiled
	inputs  *inputsScope
	kind    wf.NodeType
	podName string
	outputs wf.Outputs // as declared, with variables resolved
	counted bool       // counted in the workflow's parallelism
	gone    bool
	members map[string]*node
}

func (r *Run) startLeaf(n *node, c *call, t *compiled, inputs *inputsScope, kind wf.NodeType) *node {
	l := &leaf{run: r, node: n, call: *c, t: t, inputs: inputs, kind: kind}
	old := r.nodes[wf.NodeID(r.Workflow.Name, c.name)]
	if l.hasPod() && (old == nil || !old.known) && !r.room() && (r.stopping == "" || c.onExit) {
		r.waiting = append(r.waiting, l)
		return n
	}
	l.launch()
	return n
}

// hasPod reports whether the leaf has a pod, unlike a pause.
func (l *leaf) hasPod() bool { return l.kind != wf.NodeSuspend }

// launch begins the node and requests its pod.
func (l *leaf) launch() {
	r, n := l.run, l.node
	if r.begin(n, &l.call, l.kind) {
		l.countMembers()
		return
	}
	if r.stopping != "" && !l.call.onExit && !n.known {
		n.set(wf.PhaseFailed, r.stopping)
		return
	}
	passes := slices.Concat([]template.Scope{r.globalsFor(n.Name)}, l.call.outer, []template.Scope{l.inputs})
	if l.call.attempt != nil {
		passes = append(passes, l.call.attempt)
	}
	made, err := r.instance(l.t, passes)
	if err == nil {
		l.outputs, err = resolveOutputs(l.t.Outputs, passes)
	}
	shared := r.spec
	if err == nil && l.hasPod() {
		shared, err = r.podSpec(passes)
	}
	if err != nil {
		n.reject(err.Error())
		return
	}
	l.inputs.locate(l.t.Template, made)
	if n.leaf = l; !n.known || n.Inputs == nil {
		n.Inputs = l.inputs.resolved
	}
	put(&r.live, l, struct{}{})
	if l.startTimers(made); n.Phase.Fulfilled() {
		return // a duration is not valid
	}
	if l.kind == wf.NodeSuspend {
		if o := l.outputs; len(o.Parameters) > 0 {
			n.give(&o)
		}
		n.progress(0, 1)
		n.set(wf.PhaseRunning, "")
		return
	}
	l.podName = wf.PodName(r.Workflow.Name, n.Name, l.t.Name)
	if l.call.target.ref != nil {
		l.podName = wf.PodName(r.Workflow.Name, n.Name, l.call.target.ref.Template)
	}
	l.counted = true
	r.active++
	done, total := 0, 1
	if n.known { // the pod may have reported more progress
		if d, t, ok := ParseProgress(n.Progress); ok {
			done, total = d, t
		}
	}
	n.progress(done, total)
	if !n.known {
		n.set(wf.PhasePending, "")
	}
	l.startMembers(made)
	if n.Daemon() {
		l.serve()
	}
	if r.observed[n.ID] {
		return
	}
	spec := CreatePod{
		NodeID: n.ID, NodeName: n.Name, PodName: l.podName, Template: made, OnExit: l.call.onExit,
		Inputs: l.inputs.resolved, Outputs: &l.outputs, Spec: shared,
		IncludeResult: l.call.wantResult, AvoidHosts: l.call.avoidHosts,
	}
	r.out.Create = append(r.out.Create, spec)
}

func (l *leaf) startTimers(made *wf.Template) {
	after := func(text, what string, fire func()) {
		if text == "" {
			return
		}
		d, err := duration(text)
		if err != nil {
			l.node.broken = true
			l.end(wf.PhaseError, fmt.Sprintf("%s: %v", what, err))
			return
		}
		l.run.at(l.node.StartedAt.Add(d), fire)
	}
	if made.Suspend != nil {
		after(made.Suspend.Duration, "suspend.duration", func() { l.observe(Resume{}) })
	}
	after(made.Timeout, "timeout", func() {
		if !l.node.Phase.Fulfilled() && !l.node.Daemon() {
			l.run.removePod(l, "template timeout")
			l.end(wf.PhaseFailed, "Step exceeded its timeout of "+made.Timeout)
		}
	})
	after(made.PendingTimeout, "pendingTimeout", func() {
		if l.node.Phase == wf.PhasePending {
			l.run.removePod(l, "template pending timeout")
			l.end(wf.PhaseFailed, "Step was pending longer than its pendingTimeout of "+made.PendingTimeout)
		}
	})
}

// startMembers creates the nodes of the containers of a container set.
func (l *leaf) startMembers(made *wf.Template) {
	if made.ContainerSet == nil {
		return
	}
	l.members = map[string]*node{}
	for i := range made.ContainerSet.Containers {
		container := &made.ContainerSet.Containers[i]
		m := &node{}
		edges := []*node{l.node}
		for _, name := range container.Dependencies {
			if d := l.members[name]; d != nil {
				edges = append(edges, d)
			}
		}
		if len(edges) > 1 {
			edges = edges[1:]
		}
		l.run.begin(m, &call{
			name: l.node.Name + "." + container.Name, display: container.Name, target: l.call.target, from: l.call.from,
			boundary: l.node, edges: edges, parent: l.node.parent, // a container counts beside its pod
		}, wf.NodeContainer)
		if !m.Phase.Fulfilled() {
			m.progress(0, 1)
		}
		if !m.known {
			m.set(wf.PhasePending, "")
		}
		l.members[container.Name] = m
	}
}

// countMembers adds the progress of the containers of a restored pod that is done.
func (l *leaf) countMembers() {
	if l.t.ContainerSet == nil {
		return
	}
	for i := range l.t.ContainerSet.Containers {
		name := l.node.Name + "." + l.t.ContainerSet.Containers[i].Name
		if old := l.run.nodes[wf.NodeID(l.run.Workflow.Name, name)]; old != nil {
			m := &node{NodeStatus: old.NodeStatus, run: l.run, parent: l.node.parent}
			m.count()
		}
	}
}

// observe takes in an event for the leaf.
func (l *leaf) observe(e Event) {
	if l.node.Phase.Fulfilled() {
		return
	}
	switch e := e.(type) {
	case Resume:
		if l.kind == wf.NodeSuspend {
			l.resume(e)
		}
	case PodState:
		if l.hasPod() {
			l.pod(e)
		}
	}
}

func (l *leaf) resume(e Resume) {
	e.Phase = cmp.Or(e.Phase, wf.PhaseSucceeded)
	supplied := &wf.Outputs{}
	for name, value := range e.Outputs {
		supplied.Parameters = append(supplied.Parameters, wf.Parameter{Name: name, Value: wf.Any(value)})
	}
	if e.Phase == wf.PhaseSucceeded {
		if err := l.produce(supplied, nil); err != nil {
			l.end(wf.PhaseError, err.Error())
			return
		}
	}
	l.end(e.Phase, e.Message)
}

func (l *leaf) pod(e PodState) {
	n := l.node
	if e.HostName != "" && n.HostNodeName != e.HostName || e.PodIP != "" && n.PodIP != e.PodIP && l.daemon() {
		n.HostNodeName = e.HostName
		if l.daemon() {
			n.PodIP = e.PodIP
		}
		n.touch()
	}
	if e.ResourcesDuration != nil {
		n.ResourcesDuration = e.ResourcesDuration
	}
	if done, total, ok := ParseProgress(e.Progress); ok && l.podName != "" && (done != n.done || total != n.total) {
		n.progress(done-n.done, total-n.total)
	}
	for name, state := range e.Containers {
		if m := l.members[name]; m != nil {
			m.settle(state.Phase, state.Message)
		}
	}
	if e.ExitCode != nil && n.Phase == wf.PhasePending {
		// The pod ran, but no event showed it running: it was short, or the watch was interrupted.
		// Hooks on the phase Running are due nevertheless.
		n.set(wf.PhaseRunning, "")
	}
	switch {
	case e.Gone && e.Phase != corev1.PodSucceeded && e.Phase != corev1.PodFailed:
		l.gone = true
		l.end(wf.PhaseError, "pod deleted")
	case e.Phase == corev1.PodFailed:
		phase, message := wf.PhaseFailed, e.Message
		if e.Error {
			phase = wf.PhaseError
		}
		if message == "" && e.ExitCode != nil {
			message = fmt.Sprintf("%s: Error (exit code %d)", mainContainer, *e.ExitCode)
		}
		l.settleMembers(phase)
		n.give(l.partly(e.Outputs, e.ExitCode))
		l.end(phase, message)
	case e.Phase == corev1.PodSucceeded && l.daemon():
		l.end(wf.PhaseFailed, "daemon ended")
	case e.Phase == corev1.PodSucceeded:
		if err := l.produce(e.Outputs, e.ExitCode); err != nil {
			if e.Awaited {
				n.set(wf.PhaseRunning, "")
				return
			}
			l.end(wf.PhaseError, err.Error())
			return
		}
		l.settleMembers(wf.PhaseSucceeded)
		message := ""
		if l.kind == wf.NodePlugin {
			message = e.Message // what the plugin says
		}
		l.end(wf.PhaseSucceeded, message)
	case e.Phase == corev1.PodRunning:
		n.set(wf.PhaseRunning, e.Message)
		if l.daemon() && e.Ready && !n.Daemon() {
			n.Daemoned = ptr.To(true)
			n.touch()
			l.serve()
		}
	default:
		n.set(wf.PhasePending, e.Message)
	}
}

// serve lets the nodes after a daemon that is ready begin. The daemon ends with its frame or, if it
// has none, as daemons of hooks and exit handlers do, with the workflow.
func (l *leaf) serve() {
	l.run.queue = append(l.run.queue, l.node)
	if l.call.frame != nil {
		l.call.frame.daemons = append(l.call.frame.daemons, l)
	}
}

func (l *leaf) settleMembers(phase wf.NodePhase) {
	for _, name := range sortedKeys(l.members) {
		l.members[name].settle(phase, "")
	}
}

// settle sets the phase of a node without an owner. A fulfilled node has no progress left.
func (n *node) settle(phase wf.NodePhase, message string) {
	if n.set(phase, message); n.Phase.Fulfilled() && n.done < n.total {
		n.progress(n.total-n.done, 0)
	}
}

func (l *leaf) daemon() bool { return ptr.Deref(l.t.Daemon, false) }

// end fulfils the leaf's node.
func (l *leaf) end(phase wf.NodePhase, message string) {
	if l.node.Phase.Fulfilled() {
		return
	}
	delete(l.run.live, l)
	l.node.Daemoned = nil
	l.release()
	l.node.set(phase, message)
}

// release frees the leaf's place in the workflow's parallelism and completes its progress.
func (l *leaf) release() {
	if l.counted {
		l.counted = false
		l.run.active--
	}
	if n := l.node; n.done < n.total {
		n.progress(n.total-n.done, 0)
	}
}

// partly returns the outputs that a failed pod has, or nil if there are none.
func (l *leaf) partly(given *wf.Outputs, exitCode *int32) *wf.Outputs {
	out := &wf.Outputs{}
	if given != nil {
		out = given.DeepCopy()
	}
	if exitCode != nil {
		out.ExitCode = ptr.To(strconv.Itoa(int(*exitCode)))
	}
	if out.ExitCode == nil && given == nil {
		return nil
	}
	return out
}

// produce sets the node's outputs from given and the exit code, and exports the outputs that have a
// global name. It returns an error if a required output is missing.
func (l *leaf) produce(given *wf.Outputs, exitCode *int32) error {
	if given == nil {
		given = &wf.Outputs{}
	}
	out := l.outputs.DeepCopy()
	out.Result, out.ExitCode = given.Result, given.ExitCode
	if exitCode != nil {
		out.ExitCode = ptr.To(strconv.Itoa(int(*exitCode)))
	}
	for i := range out.Parameters {
		p := &out.Parameters[i]
		for j := range given.Parameters {
			if given.Parameters[j].Name == p.Name && given.Parameters[j].Value != nil {
				p.Value = given.Parameters[j].Value
			}
		}
		if p.Value == nil && p.ValueFrom != nil {
			p.Value = p.ValueFrom.Default
		}
		if p.Value == nil {
			return fmt.Errorf("output parameter '%s' has no value", p.Name)
		}
	}
	artifacts := out.Artifacts
	out.Artifacts = nil
	for _, a := range artifacts {
		found := false
		for _, b := range given.Artifacts {
			if b.Name == a.Name {
				a.ArtifactLocation, found = b.ArtifactLocation, true
			}
		}
		if !found && !a.Optional && a.ArtifactLocation == (wf.ArtifactLocation{}) {
			return fmt.Errorf("output artifact '%s' was not saved", a.Name)
		}
		if found || !a.Optional && a.ArtifactLocation != (wf.ArtifactLocation{}) {
			out.Artifacts = append(out.Artifacts, a)
		}
	}
	for _, b := range given.Artifacts { // logs are kept although they are not declared
		if strings.HasSuffix(b.Name, "-logs") && !slices.ContainsFunc(artifacts, func(a wf.Artifact) bool {
			return a.Name == b.Name
		}) {
			out.Artifacts = append(out.Artifacts, b)
		}
	}
	if len(out.Parameters)+len(out.Artifacts) > 0 || out.Result != nil || out.ExitCode != nil {
		l.node.give(out)
		l.run.export(out)
	}
	return nil
}
