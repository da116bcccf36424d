package engine

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// PodState is what is known of a node's pod, or of its HTTP request.
type PodState struct {
	NodeID   string
	Phase    corev1.PodPhase
	Message  string
	Error    bool // the failure is the cluster's, not the user's program's
	Ready    bool
	Gone     bool // the pod does not exist any more
	Awaited  bool // outputs are still on their way
	PodIP    string
	HostName string
	ExitCode *int32
	Outputs  *wf.Outputs
	// Containers are the phases of the members of a container set.
	Containers map[string]ContainerState
}

// ContainerState is a member of a container set.
type ContainerState struct {
	Phase   wf.NodePhase
	Message string
}

func (p PodState) nodeID() string { return p.NodeID }

// Resume ends a pause: the phase is Succeeded unless said otherwise.
type Resume struct {
	NodeID  string
	Phase   wf.NodePhase
	Message string
	Outputs map[string]string // values for the parameters that are to be supplied
}

func (e Resume) nodeID() string { return e.NodeID }

// leaf is a pod, a request or a pause under way.
type leaf struct {
	run     *Run
	node    *node
	call    call
	t       *compiled
	inputs  *inputsScope
	kind    wf.NodeType
	podName string
	outputs wf.Outputs // declared, resolved
	counted bool       // it takes a place in the workflow's parallelism
	gone    bool
	members map[string]*node
}

func (r *Run) startLeaf(n *node, c *call, t *compiled, inputs *inputsScope, kind wf.NodeType) *node {
	l := &leaf{run: r, node: n, call: *c, t: t, inputs: inputs, kind: kind}
	old := r.nodes[wf.NodeID(r.Workflow.Name, c.name)]
	if kind == wf.NodePod && (old == nil || !old.known) && !r.room() && (r.stopping == "" || c.onExit) {
		r.waiting = append(r.waiting, l)
		return n
	}
	l.launch()
	return n
}

// launch makes the node and asks for its pod.
func (l *leaf) launch() {
	r, n := l.run, l.node
	if r.begin(n, &l.call, l.kind) {
		return
	}
	if r.stopping != "" && !l.call.onExit && !n.known {
		n.set(wf.PhaseFailed, r.stopping)
		return
	}
	passes := []template.Scope{r.globals}
	passes = append(passes, l.call.outer...)
	passes = append(passes, l.inputs)
	if l.call.attempt != nil {
		passes = append(passes, l.call.attempt)
	}
	made, err := r.instance(l.t, passes)
	if err == nil {
		l.outputs, err = resolveOutputs(l.t.Outputs, passes)
	}
	if err != nil {
		n.set(wf.PhaseError, err.Error())
		return
	}
	n.Inputs, n.leaf = l.inputs.resolved, l
	r.live[l] = struct{}{}
	l.startTimers(made)
	if l.kind == wf.NodeSuspend {
		if o := l.outputs; len(o.Parameters) > 0 {
			n.Outputs = &o
		}
		n.set(wf.PhaseRunning, "")
		return
	}
	l.podName = wf.PodName(r.Workflow.Name, n.Name, l.t.Name)
	if l.call.target.ref != nil {
		l.podName = wf.PodName(r.Workflow.Name, n.Name, l.call.target.ref.Template)
	}
	if l.kind == wf.NodePod {
		l.counted = true
		r.active++
	}
	n.progress(0, 1)
	if !n.known {
		n.set(wf.PhasePending, "")
	}
	l.startMembers(made)
	if n.daemoned() {
		r.queue = append(r.queue, n)
		l.call.frame.daemons = append(l.call.frame.daemons, l)
	}
	if r.observed[n.ID] {
		return
	}
	spec := CreatePod{
		NodeID: n.ID, NodeName: n.Name, PodName: l.podName, Template: made, OnExit: l.call.onExit,
		IncludeResult: l.call.wantResult, AvoidHosts: l.call.avoidHosts,
	}
	if d := r.spec.ActiveDeadlineSeconds; d != nil && !l.call.onExit {
		spec.Deadline = r.Workflow.Status.StartedAt.Add(time.Duration(*d) * time.Second)
	}
	r.create = append(r.create, spec)
}

func (l *leaf) startTimers(made *wf.Template) {
	after := func(text, what string, fire func()) {
		if text == "" {
			return
		}
		d, err := duration(text)
		if err != nil {
			l.end(wf.PhaseError, fmt.Sprintf("%s: %v", what, err))
			return
		}
		l.run.at(l.node.StartedAt.Add(d), fire)
	}
	if made.Suspend != nil {
		after(made.Suspend.Duration, "suspend.duration", func() { l.observe(Resume{}) })
	}
	after(made.Timeout, "timeout", func() {
		if !l.node.Phase.Fulfilled() && !l.node.daemoned() {
			l.run.removePod(l, "template timeout")
			l.end(wf.PhaseFailed, "Step exceeded its timeout of "+made.Timeout)
		}
	})
}

// startMembers makes the nodes of a container set.
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
			boundary: l.node, edges: edges,
		}, wf.NodeContainer)
		if !m.known {
			m.set(wf.PhasePending, "")
		}
		l.members[container.Name] = m
	}
}

// observe takes in what happened to the leaf.
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
		if l.kind != wf.NodeSuspend {
			l.pod(e)
		}
	}
}

func (l *leaf) resume(e Resume) {
	if e.Phase == "" {
		e.Phase = wf.PhaseSucceeded
	}
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
	for name, state := range e.Containers {
		if m := l.members[name]; m != nil {
			m.set(state.Phase, state.Message)
		}
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
			message = fmt.Sprintf("Error (exit code %d)", *e.ExitCode)
		}
		l.settleMembers(phase)
		n.Outputs = l.partly(e.Outputs, e.ExitCode)
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
		l.end(wf.PhaseSucceeded, "")
	case e.Phase == corev1.PodRunning:
		n.set(wf.PhaseRunning, e.Message)
		if l.daemon() && e.Ready && !n.daemoned() {
			yes := true
			n.Daemoned = &yes
			n.touch()
			l.run.queue = append(l.run.queue, n)
			if l.call.frame != nil {
				l.call.frame.daemons = append(l.call.frame.daemons, l)
			}
		}
	default:
		n.set(wf.PhasePending, e.Message)
	}
}

func (l *leaf) settleMembers(phase wf.NodePhase) {
	for _, name := range sortedKeys(l.members) {
		l.members[name].set(phase, "")
	}
}

func (l *leaf) daemon() bool { return l.t.Daemon != nil && *l.t.Daemon }

// end fulfils the leaf.
func (l *leaf) end(phase wf.NodePhase, message string) {
	if l.node.Phase.Fulfilled() {
		return
	}
	delete(l.run.live, l)
	l.node.Daemoned = nil
	l.release()
	l.node.set(phase, message)
}

// release gives back the leaf's place in the workflow's parallelism.
func (l *leaf) release() {
	if l.counted {
		l.counted = false
		l.run.active--
	}
	if l.podName != "" && l.node.done == 0 {
		l.node.progress(1, 0)
	}
}

// partly are the outputs of a pod that failed: those that are there.
func (l *leaf) partly(given *wf.Outputs, exitCode *int32) *wf.Outputs {
	out := &wf.Outputs{}
	if given != nil {
		out = given.DeepCopy()
	}
	if exitCode != nil {
		text := strconv.Itoa(int(*exitCode))
		out.ExitCode = &text
	}
	if out.ExitCode == nil && given == nil {
		return nil
	}
	return out
}

// produce fills the declared outputs with what was given, and exports those with a global name.
func (l *leaf) produce(given *wf.Outputs, exitCode *int32) error {
	if given == nil {
		given = &wf.Outputs{}
	}
	out := l.outputs.DeepCopy()
	out.Result, out.ExitCode = given.Result, given.ExitCode
	if exitCode != nil {
		text := strconv.Itoa(int(*exitCode))
		out.ExitCode = &text
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
		if found || a.ArtifactLocation != (wf.ArtifactLocation{}) {
			out.Artifacts = append(out.Artifacts, a)
		}
	}
	if len(out.Parameters)+len(out.Artifacts) > 0 || out.Result != nil || out.ExitCode != nil {
		l.node.Outputs = out
		l.run.export(out)
	}
	return nil
}

// retry is the attempts at a template.
type retry struct {
	run      *Run
	node     *node
	call     call
	inputs   *inputsScope
	strategy wf.RetryStrategy
	attempts []*node
}

func (r *Run) startRetry(n *node, c *call, t *compiled, inputs *inputsScope) *node {
	if r.begin(n, c, wf.NodeRetry) {
		return n
	}
	n.Inputs = inputs.resolved
	y := &retry{run: r, node: n, call: *c, inputs: inputs, strategy: *t.RetryStrategy.DeepCopy()}
	program, err := template.Compile(&y.strategy)
	if err == nil {
		err = program.Apply(&y.strategy, []template.Scope{r.globals, inputs}, known...)
	}
	if err != nil {
		n.set(wf.PhaseError, "retryStrategy: "+err.Error())
		return n
	}
	y.next()
	return n
}

// next starts an attempt.
func (y *retry) next() {
	c := y.call
	i := len(y.attempts)
	c.name, c.display = fmt.Sprintf("%s(%d)", c.name, i), fmt.Sprintf("%s(%d)", c.display, i)
	c.owner, c.edges, c.parent, c.retried = y, []*node{y.node}, y.node, true
	c.attempt = y.variables()
	if a := y.strategy.Affinity; a != nil && a.NodeAntiAffinity != nil {
		for _, n := range y.attempts {
			if n.HostNodeName != "" {
				c.avoidHosts = append(c.avoidHosts, n.HostNodeName)
			}
		}
	}
	y.attempts = append(y.attempts, &node{}) // it may have to wait
	y.attempts[i] = y.run.execute(c)
}

// variables are what an attempt, and the decision on another one, know of those before.
func (y *retry) variables() template.Map {
	v := template.Map{"retries": strconv.Itoa(len(y.attempts))}
	if len(y.attempts) == 0 {
		v["lastRetry.exitCode"], v["lastRetry.status"], v["lastRetry.duration"], v["lastRetry.message"] = "0", "", "0", ""
		return v
	}
	last := y.attempts[len(y.attempts)-1]
	v["lastRetry.exitCode"] = "-1"
	if last.Outputs != nil && last.Outputs.ExitCode != nil {
		v["lastRetry.exitCode"] = *last.Outputs.ExitCode
	}
	v["lastRetry.status"], v["lastRetry.message"] = string(last.Phase), last.Message
	v["lastRetry.duration"] = strconv.Itoa(int(last.FinishedAt.Sub(last.StartedAt.Time).Seconds()))
	return v
}

func (y *retry) changed(n *node) {
	if n.Phase == wf.PhaseRunning {
		y.node.set(wf.PhaseRunning, "")
	}
}

// fulfilled decides what follows an attempt.
func (y *retry) fulfilled(last *node) {
	y.attempts[len(y.attempts)-1] = last
	n := y.node
	switch {
	case last.daemoned():
		n.Daemoned, n.PodIP = last.Daemoned, last.PodIP
		n.touch()
		y.run.queue = append(y.run.queue, n)
		return
	case !last.Phase.FailedOrError():
		n.Outputs, n.Daemoned = last.Outputs, nil
		n.set(wf.PhaseSucceeded, "")
		return
	}
	n.Daemoned = nil
	n.Outputs = last.Outputs
	if y.run.stopping != "" && !y.call.onExit {
		n.set(last.Phase, y.run.stopping)
		return
	}
	wait, refusal, err := y.decide(last)
	switch {
	case err != nil:
		n.set(wf.PhaseError, "retryStrategy: "+err.Error())
	case refusal != "":
		n.set(last.Phase, refusal)
	case wait > 0 && last.FinishedAt.Add(wait).After(y.run.now):
		n.set(wf.PhaseRunning, "Backoff for "+humanize(wait))
		y.run.at(last.FinishedAt.Add(wait), y.again)
	default:
		y.again()
	}
}

// again starts the next attempt after a wait, unless the workflow was stopped meanwhile.
func (y *retry) again() {
	last := y.attempts[len(y.attempts)-1]
	if y.node.Phase.Fulfilled() {
		return
	}
	if y.run.stopping != "" && !y.call.onExit {
		y.node.set(last.Phase, y.run.stopping)
		return
	}
	y.node.set(wf.PhaseRunning, "")
	y.next()
}

// decide says how long to wait for another attempt, or why there is none.
func (y *retry) decide(last *node) (wait time.Duration, refusal string, err error) {
	s := &y.strategy
	if b := s.Backoff; b != nil {
		if wait, refusal, err = y.backoff(b, last); refusal != "" || err != nil {
			return
		}
	}
	policy := s.RetryPolicy
	if policy == "" {
		policy = wf.RetryOnFailure
		if s.Expression != "" {
			policy = wf.RetryAlways
		}
	}
	var wanted bool
	switch policy {
	case wf.RetryAlways:
		wanted = true
	case wf.RetryOnFailure:
		wanted = last.Phase == wf.PhaseFailed
	case wf.RetryOnError:
		wanted = last.Phase == wf.PhaseError
	case wf.RetryOnTransientError:
		wanted = y.run.config.Transient != nil && y.run.config.Transient(last.Message)
	default:
		return 0, "", fmt.Errorf("retryPolicy '%s' is not known", policy)
	}
	if !wanted {
		if last.Message == "" {
			return 0, "not retried", nil
		}
		return 0, last.Message, nil
	}
	if s.Limit != nil {
		limit, err := strconv.Atoi(s.Limit.String())
		if err != nil {
			return 0, "", fmt.Errorf("limit '%s' is not a number", s.Limit.String())
		}
		if len(y.attempts) > limit {
			return 0, "No more retries left", nil
		}
	}
	if s.Expression != "" {
		variables := y.variables()
		variables["retries"] = strconv.Itoa(len(y.attempts) - 1)
		again, err := evaluate(s.Expression, []template.Scope{y.run.globals, y.inputs, variables})
		if err != nil {
			return 0, "", fmt.Errorf("expression: %w", err)
		}
		if !again {
			return 0, "retryStrategy.expression evaluated to false", nil
		}
	}
	return wait, "", nil
}

func (y *retry) backoff(b *wf.Backoff, last *node) (wait time.Duration, refusal string, err error) {
	if b.Duration == "" {
		return 0, "", fmt.Errorf("backoff.duration is missing")
	}
	if wait, err = duration(b.Duration); err != nil {
		return 0, "", fmt.Errorf("backoff.duration: %w", err)
	}
	longest := 365 * 24 * time.Hour
	if b.Cap != "" {
		if longest, err = duration(b.Cap); err != nil {
			return 0, "", fmt.Errorf("backoff.cap: %w", err)
		}
	}
	if b.Factor != nil {
		factor, err := strconv.ParseFloat(b.Factor.String(), 64)
		if err != nil {
			return 0, "", fmt.Errorf("backoff.factor: '%s' is not a number", b.Factor.String())
		}
		for i := 1; i < len(y.attempts) && factor > 0 && wait < longest; i++ {
			wait = time.Duration(float64(wait) * factor)
		}
	}
	wait = min(wait, longest)
	if b.MaxDuration != "" {
		most, err := duration(b.MaxDuration)
		if err != nil {
			return 0, "", fmt.Errorf("backoff.maxDuration: %w", err)
		}
		end := y.attempts[0].StartedAt.Add(most)
		if last.FinishedAt.After(end) {
			return 0, "Max duration limit exceeded", nil
		}
		if last.FinishedAt.Add(wait).After(end) {
			return 0, "Backoff would exceed max duration limit", nil
		}
	}
	return wait, "", nil
}

// humanize writes a duration as people say it.
func humanize(d time.Duration) string {
	s := int(d.Seconds())
	switch {
	case s < 60:
		return fmt.Sprintf("%d seconds", s)
	case s < 3600:
		return fmt.Sprintf("%d minutes %d seconds", s/60, s%60)
	case s < 86400:
		return fmt.Sprintf("%d hours %d minutes", s/3600, s%3600/60)
	}
	return fmt.Sprintf("%d days %d hours", s/86400, s%86400/3600)
}

// hooks are the lifecycle hooks of a node or of the workflow, but for its exit handler.
type hooks struct {
	run      *Run
	name     string
	spec     wf.LifecycleHooks
	from     *compiled
	boundary *node
	parent   *node
	onExit   bool
	finished func()
	fired    map[string]bool
	open     int
}

// consider runs the hooks whose expressions are true now, each once.
func (h *hooks) consider(passes []template.Scope) {
	for _, name := range sortedKeys(h.spec) {
		hook := h.spec[name]
		if name == wf.ExitHook || h.fired[name] {
			continue
		}
		full := h.name + ".hooks." + name
		old := h.run.nodes[wf.NodeID(h.run.Workflow.Name, full)]
		if due, err := evaluate(hook.Expression, passes); (err != nil || !due) && (old == nil || !old.known) {
			continue // what it asks about may not be there yet
		}
		if h.fired == nil {
			h.fired = map[string]bool{}
		}
		h.fired[name] = true
		h.open++
		args, err := resolveArguments(hook.Arguments, passes)
		c := call{
			name: full, display: full, target: target{template: hook.Template, ref: hook.TemplateRef}, args: args, failure: err,
			from: h.from, boundary: h.boundary, owner: h, hooked: true, onExit: h.onExit, depth: 1,
		}
		if h.parent != nil {
			c.edges = []*node{h.parent}
		}
		h.run.execute(c)
	}
}

func (h *hooks) changed(*node) {}

func (h *hooks) fulfilled(*node) {
	if h.open--; h.open == 0 {
		h.finished()
	}
}

// evaluate decides an expression that is not a tag.
func evaluate(expression string, passes []template.Scope) (bool, error) {
	e, err := template.CompileExpr(expression)
	if err != nil {
		return false, err
	}
	return e.Bool(template.Scopes(passes))
}

// export makes outputs with a global name known to the whole workflow. The last one to do so is heard.
func (r *Run) export(out *wf.Outputs) {
	for _, p := range out.Parameters {
		if p.GlobalName == "" || p.Value == nil {
			continue
		}
		r.globals["workflow.outputs.parameters."+p.GlobalName] = string(*p.Value)
		s := r.globalOutputs()
		exported, found := wf.Parameter{Name: p.GlobalName, Value: p.Value}, false
		for i := range s.Parameters {
			if s.Parameters[i].Name == p.GlobalName {
				s.Parameters[i], found = exported, true
			}
		}
		if !found {
			s.Parameters = append(s.Parameters, exported)
		}
	}
	for _, a := range out.Artifacts {
		if a.GlobalName == "" {
			continue
		}
		s := r.globalOutputs()
		name := a.GlobalName
		a.Name, a.GlobalName = name, ""
		found := false
		for i := range s.Artifacts {
			if s.Artifacts[i].Name == name {
				s.Artifacts[i], found = a, true
			}
		}
		if !found {
			s.Artifacts = append(s.Artifacts, a)
		}
	}
}

func (r *Run) globalOutputs() *wf.Outputs {
	s := &r.Workflow.Status
	if s.Outputs == nil {
		s.Outputs = &wf.Outputs{}
	}
	r.status = true
	return s.Outputs
}
