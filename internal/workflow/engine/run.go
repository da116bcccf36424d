package engine

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// maxDepth bounds the nesting of template calls.
const maxDepth = 100

// maxItems bounds the number of items of one loop.
const maxItems = 100_000

// Library gives access to the objects that a workflow may refer to. Most are read by the first
// Step; a template or ConfigMap key whose name has variables is read when the call is made.
// Templates are then stored in the status, and values of inputs in their node.
type Library interface {
	// Spec returns the spec of a WorkflowTemplate, or of a ClusterWorkflowTemplate.
	Spec(cluster bool, name string) (*wf.WorkflowSpec, bool)
	// ConfigMapKey returns the value of a key of a ConfigMap that holds parameters.
	ConfigMapKey(name, key string) (string, bool)
	// ConfigMap reports whether there is such a ConfigMap: one that exists and has the label that
	// makes it readable for workflows.
	ConfigMap(name string) bool
}

// Config holds the dependencies and limits of a Run.
type Config struct {
	Library Library
	// Transient reports whether an error message is transient; nil: no message is.
	Transient func(message string) bool
	MaxNodes  int // a workflow with more nodes ends in Error; 0: 200,000
	// MaxTexts is in bytes: a workflow whose nodes have longer texts ends in Error; 0: 32 MiB.
	MaxTexts int
	// Evaluate evaluates expressions that are not cheap; nil: such expressions are errors.
	Evaluate template.Run
	Specs    *SpecCache // shared with other runs; nil: none
	// Defaults are merged below the template that the workflow refers to; nil: none. A workflow
	// without such a reference must have its defaults in its spec.
	Defaults *wf.WorkflowSpec
}

// Result lists the actions that a Step requests.
type Result struct {
	Create  []CreatePod
	Delete  []DeletePod
	Changed []string  // IDs of the changed nodes, in the order of their first change
	Status  bool      // the workflow's own status changed
	Wake    time.Time // when to call Step next if no event comes before; zero: not needed

	Locks   []locks.Request // each is answered by LockStates
	Unlock  []string        // holders whose locks and requests end
	Stores  []CacheStore    // to be carried out before Lookups are answered
	Lookups []CacheLookup   // each is answered by a CacheAnswer
	Samples []Sample

	// StatusFirst is true if the status must be written before pods are created, because it records
	// new locks.
	StatusFirst bool
}

// CreatePod describes a pod to create. The values that it points to are shared and must not be
// changed.
type CreatePod struct {
	NodeID, NodeName, PodName string
	Template                  *wf.Template // with all variables resolved except in the outputs
	// Inputs have values and the artifacts' locations; nil if there are none.
	Inputs  *wf.Inputs
	Outputs *wf.Outputs // as declared, with all variables resolved
	// Spec is the workflow's spec after workflowTemplateRef, with the variables in the pod settings
	// resolved.
	Spec          *wf.WorkflowSpec
	IncludeResult bool     // some text refers to the result
	OnExit        bool     // part of an exit handler, which goes on when the workflow is stopped
	AvoidHosts    []string // hosts of failed attempts
}

// DeletePod names a pod to delete.
type DeletePod struct{ NodeID, PodName, Reason string }

// Event is a PodState, Resume, LockState or CacheAnswer. Of several events with the same key only
// the last counts.
type Event interface{ key() string }

// Run is the execution of one workflow. It is not safe for concurrent use.
type Run struct {
	Workflow *wf.Workflow // its status is kept up to date

	config     Config
	spec       *wf.WorkflowSpec // after workflowTemplateRef
	templates  map[string]*compiled
	globals    *globals
	now        time.Time
	started    bool
	ended      bool
	rebuilding bool // during the first Step: progress is summed up before it is written to nodes

	nodes    map[string]*node
	texts    int // in bytes; see keep
	altered  []*node
	out      Result  // of this Step
	queue    []*node // fulfilled nodes whose owners have not been notified
	timers   timers
	active   int                 // number of pods counted in parallelism
	waiting  []*leaf             // leaves that wait because of the workflow's parallelism
	observed map[string]bool     // IDs of nodes whose pods were known at the first Step
	early    map[string]PodState // states of these pods until their leaf exists
	held     map[string]Event    // events not taken in yet, also while the workflow is suspended
	arrived  []string            // keys of held in the order of arrival
	live     map[*leaf]struct{}  // leaves under way
	backoffs map[string]*retry   // retries that wait for their next attempt, by node ID

	lockWaiters   map[string]waiter // waiters for locks, by holder
	requestedKeys map[string][]string
	waitingLocks  map[string]LockState
	holds         map[string]map[string]bool // holders by lock key
	lookups       map[string]*lockAndCache   // lock-and-cache checks that wait for a cache, by node ID
	metered       []func()                   // emit metrics when the Step is done
	locksChanged  bool                       // held or awaited locks have changed

	root, exit  *node
	hooks       *hooks
	shape       *podPrograms // compiled variables of the spec that depend on the pod
	outcome     *node        // the main node once it is fulfilled
	stopping    string
	stopMessage string
	done, total int // progress of all pods
	deadline    time.Time
	terminated  bool // exit handlers were ended too
}

// New returns a Run of a workflow. It changes only w.Status. A workflow that cannot run ends in
// Error at the first Step.
func New(w *wf.Workflow, config Config) *Run {
	config.MaxNodes, config.MaxTexts = cmp.Or(config.MaxNodes, 200_000), cmp.Or(config.MaxTexts, textsMax)
	r := &Run{
		Workflow: w, config: config,
		templates: map[string]*compiled{}, globals: &globals{Map: template.Map{}, evaluate: config.Evaluate},
		nodes: map[string]*node{},
	}
	for key, holders := range locks.Holding(w.Status.Synchronization) {
		for _, holder := range holders {
			r.addHolder(key, holder)
		}
	}
	if w.Status.Nodes == nil {
		w.Status.Nodes = wf.Nodes{}
	}
	for id, status := range w.Status.Nodes {
		r.nodes[id] = &node{NodeStatus: status, known: true}
		// The other texts are counted when the node is begun again.
		r.keep(outputsBytes(status.Outputs) + len(status.Message))
	}
	return r
}

// Step takes in events and advances the workflow as far as possible. The first Step must be given
// the states of all existing pods.
func (r *Run) Step(now time.Time, events ...Event) Result {
	r.now = now
	if r.Workflow.Status.Phase.Completed() {
		return Result{}
	}
	for _, e := range events {
		if key := e.key(); r.held[key] == nil {
			r.arrived = append(r.arrived, key)
		}
		put(&r.held, e.key(), e)
	}
	// A suspended workflow can still be stopped.
	if s := &r.Workflow.Spec; s.Suspend == nil || !*s.Suspend || s.Shutdown != wf.ShutdownNone {
		r.advance()
	}
	return r.result()
}

// takeEdits takes in the fields that users may change while the workflow runs, except suspend and
// shutdown, which are read where they are used. All other fields were compiled at the start.
func (r *Run) takeEdits() {
	own := &r.Workflow.Spec
	byItself := own.WorkflowTemplateRef == nil // otherwise unset fields come from the template
	if byItself || own.Parallelism != nil {
		r.spec.Parallelism = own.Parallelism
	}
	if byItself || own.ActiveDeadlineSeconds != nil {
		r.spec.ActiveDeadlineSeconds = own.ActiveDeadlineSeconds
	}
	if r.root != nil {
		r.setDeadline()
	}
}

// setDeadline sets the timer that stops the workflow at its deadline, replacing an earlier one.
func (r *Run) setDeadline() {
	t := time.Time{} // never
	if d := r.spec.ActiveDeadlineSeconds; d != nil {
		t = r.Workflow.Status.StartedAt.Add(time.Duration(*d) * time.Second)
	}
	if t.Equal(r.deadline) {
		return
	}
	if r.deadline = t; !t.IsZero() {
		r.at(t, func() {
			if r.deadline.Equal(t) {
				r.stop("Step exceeded its deadline", false)
			}
		})
	}
}

func (r *Run) advance() {
	if !r.started {
		r.started = true
		for _, e := range r.held {
			if p, found := e.(PodState); found {
				put(&r.observed, p.NodeID, true)
			}
		}
		r.rebuilding = true
		r.start()
		r.settle()
		r.rebuilding = false
		for _, id := range sortedKeys(r.nodes) {
			if n := r.nodes[id]; n.run != nil {
				n.showProgress()
			}
		}
		// Restored nodes pass through states that they had before: drop those that are unchanged in
		// the end.
		r.altered = slices.DeleteFunc(r.altered, func(n *node) bool {
			old, found := r.Workflow.Status.Nodes[n.ID]
			same := found && reflect.DeepEqual(old, n.NodeStatus)
			if same {
				n.dirty = false
			}
			return same
		})
	}
	if !r.ended {
		r.takeEdits()
	}
	if s := r.Workflow.Spec.Shutdown; s != wf.ShutdownNone &&
		(r.stopping == "" || s == wf.ShutdownTerminate && !r.terminated) {
		r.terminated = s == wf.ShutdownTerminate
		r.stop(fmt.Sprintf("Stopped with strategy '%s'", s), r.terminated)
	}
	for _, key := range r.arrived {
		switch e := r.held[key].(type) {
		case LockState:
			r.lockState(e)
		case CacheAnswer:
			if g := r.lookups[e.NodeID]; g != nil {
				delete(r.lookups, e.NodeID)
				g.cached(e)
			}
		default:
			if n := r.nodes[key]; n != nil && n.leaf != nil {
				n.leaf.observe(e)
			} else if p, found := e.(PodState); found && r.observed[key] {
				put(&r.early, key, p)
			}
		}
		r.settle()
	}
	r.held, r.arrived = nil, nil // clearing a map that was once large stays slow
	r.catchUp()
	for len(r.timers) > 0 && !r.timers[0].at.After(r.now) {
		heap.Pop(&r.timers).(timer).fire()
		r.settle()
	}
	r.settle()
	r.catchUp()
}

// catchUp delivers the states of pods whose leaf did not exist when the states arrived: after a
// restart pods may be ahead of the status.
func (r *Run) catchUp() {
	for again := true; again; {
		again = false
		for _, id := range sortedKeys(r.early) {
			n := r.nodes[id]
			if n == nil || n.leaf == nil {
				continue
			}
			state := r.early[id]
			delete(r.early, id)
			n.leaf.observe(state)
			r.settle()
			again = true
		}
	}
}

// settle notifies the owners of fulfilled nodes and launches waiting leaves until there is nothing
// left to do.
func (r *Run) settle() {
	for !r.ended {
		switch {
		case len(r.queue) > 0:
			n := r.queue[0]
			if r.full(n.Name) {
				return
			}
			r.queue = r.queue[1:]
			if n.owner != nil {
				n.owner.fulfilled(n)
			}
		case len(r.waiting) > 0 && (r.stopping != "" || r.room()):
			l := r.waiting[0]
			r.waiting = r.waiting[1:]
			l.launch()
		default:
			return
		}
	}
}

// room reports whether the workflow's parallelism allows another pod.
func (r *Run) room() bool {
	return r.spec.Parallelism == nil || *r.spec.Parallelism <= 0 || int64(r.active) < *r.spec.Parallelism
}

func (r *Run) result() Result {
	for _, emit := range r.metered {
		emit()
	}
	if r.locksChanged {
		r.recordLocks()
	}
	out := r.out
	for _, n := range r.altered {
		n.dirty = false
		r.Workflow.Status.Nodes[n.ID] = n.NodeStatus
		out.Changed = append(out.Changed, n.ID)
	}
	if progress := fmt.Sprintf("%d/%d", r.done, r.total); len(r.altered) > 0 && r.Workflow.Status.Progress != progress {
		r.Workflow.Status.Progress, out.Status = progress, true
	}
	r.out, r.altered, r.metered, r.locksChanged = Result{}, nil, nil, false
	if len(r.timers) > 0 && !r.ended {
		out.Wake = r.timers[0].at
	}
	return out
}

// start begins the workflow or resumes it after a restart.
func (r *Run) start() {
	if err := r.load(); err != nil {
		r.end(wf.WorkflowError, err.Error())
		return
	}
	if err := r.resolveSpec(); err != nil {
		r.end(wf.WorkflowError, "spec."+err.Error())
		return
	}
	r.warnUnused()
	if r.lockWorkflow() {
		r.run()
	}
}

// mainOwner is the owner of the root node; exitOwner is the owner of the node of the workflow's
// exit handler.
type (
	mainOwner Run
	exitOwner Run
)

func (o *mainOwner) changed(n *node) { r := (*Run)(o); r.hooks.consider([]template.Scope{r.globals}) }

func (o *mainOwner) fulfilled(n *node) {
	r := (*Run)(o)
	r.outcome = n
	r.globals.Map["workflow.status"] = string(workflowPhase(n.Phase))
	r.hooks.consider([]template.Scope{r.globals})
	if r.hooks.open == 0 {
		r.finish()
	}
}

func (o *exitOwner) changed(*node)     {}
func (o *exitOwner) fulfilled(n *node) { (*Run)(o).conclude() }

// finish starts the exit handler once the main node and the hooks are done.
func (r *Run) finish() {
	if r.outcome == nil || r.exit != nil {
		return
	}
	hook := wf.LifecycleHook{Template: r.spec.OnExit}
	if h, found := r.spec.Hooks[wf.ExitHook]; found {
		hook = h
	}
	if hook.Template == "" && hook.TemplateRef == nil || r.Workflow.Spec.Shutdown == wf.ShutdownTerminate {
		r.conclude()
		return
	}
	r.globals.Map["workflow.failures"] = r.failures()
	name := r.Workflow.Name + ".onExit"
	args, err := resolveArguments(hook.Arguments, []template.Scope{r.globalsFor(name)})
	c := call{
		name: name, display: name, target: target{template: hook.Template, ref: hook.TemplateRef}, from: r.local(),
		args:  args,
		owner: (*exitOwner)(r), onExit: true, hooked: true, failure: err,
	}
	if len(args.Parameters)+len(args.Artifacts) == 0 {
		c.args, c.topLevel = r.spec.Arguments, true
	}
	r.exit = &node{} // marks the exit handler as started, even if it ends at once
	r.exit = r.execute(c)
}

// conclude ends the workflow in the phase that follows from its main node and its exit handler.
func (r *Run) conclude() {
	phase, message := workflowPhase(r.outcome.Phase), r.outcome.Message
	if r.stopMessage != "" && phase != wf.WorkflowSucceeded {
		message = r.stopMessage
	}
	if r.exit != nil && phase == wf.WorkflowSucceeded && r.exit.Phase.FailedOrError() {
		phase, message = workflowPhase(r.exit.Phase), r.exit.Message
	}
	r.end(phase, message)
}

func workflowPhase(p wf.NodePhase) wf.WorkflowPhase {
	switch p {
	case wf.PhaseFailed:
		return wf.WorkflowFailed
	case wf.PhaseError:
		return wf.WorkflowError
	}
	return wf.WorkflowSucceeded
}

func (r *Run) end(phase wf.WorkflowPhase, message string) {
	s := &r.Workflow.Status
	s.Phase, s.Message, s.FinishedAt = phase, message, metav1.NewTime(r.now)
	if s.StartedAt.IsZero() {
		s.StartedAt = s.FinishedAt
	}
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c wf.Condition) bool {
		return c.Type != wf.ConditionMetricsError && !isSpecWarning(c)
	})
	s.Conditions = append([]wf.Condition{{Type: wf.ConditionPodRunning, Status: metav1.ConditionFalse},
		{Type: wf.ConditionCompleted, Status: metav1.ConditionTrue}}, s.Conditions...)
	r.out.Status, r.ended = true, true
	for _, l := range r.underway() { // daemons that belong to no frame
		r.removePod(l, "the workflow is done")
		if l.node.Daemon() {
			l.node.Daemoned = nil
			l.node.set(wf.PhaseSucceeded, "")
		}
	}
	for _, holders := range r.holds { // the workflow's own locks, and any that are left
		for holder := range holders {
			r.unlock(holder)
		}
	}
	for holder := range r.lockWaiters {
		r.unlock(holder)
	}
	slices.Sort(r.out.Unlock)
	r.meterEnd()
}

// Abort ends a workflow in Error for a reason outside of the engine.
func (r *Run) Abort(now time.Time, message string) Result {
	r.now = now
	if !r.Workflow.Status.Phase.Completed() {
		r.abort(message)
	}
	return r.result()
}

// abort ends the workflow and all its nodes in Error.
func (r *Run) abort(message string) {
	for _, l := range r.underway() {
		r.removePod(l, message)
	}
	clear(r.live)
	r.ended = true // nothing more is started
	for _, id := range sortedKeys(r.nodes) {
		if n := r.nodes[id]; n.run != nil {
			n.Daemoned = nil
			n.set(wf.PhaseError, message)
		}
	}
	r.end(wf.WorkflowError, message)
}

// underway returns the leaves that are not done, sorted by name.
func (r *Run) underway() []*leaf {
	return slices.SortedFunc(maps.Keys(r.live), func(a, b *leaf) int { return cmp.Compare(a.node.Name, b.node.Name) })
}

// stop ends the leaves under way and the backoffs of retries. If all is false, those of exit
// handlers go on.
func (r *Run) stop(message string, all bool) {
	r.stopping = message
	if r.Workflow.Spec.Shutdown != wf.ShutdownNone {
		r.stopMessage = message
	}
	for _, holder := range sortedKeys(r.lockWaiters) {
		if w := r.lockWaiters[holder]; w != nil && (all || !w.survives()) {
			w.cancel(message)
		}
	}
	for _, id := range sortedKeys(r.lookups) {
		if g := r.lookups[id]; g != nil && (all || !g.survives()) {
			g.cancel(message)
		}
	}
	for _, l := range r.underway() {
		if all || !l.call.onExit {
			r.removePod(l, message)
			l.end(wf.PhaseFailed, message)
		}
	}
	for _, id := range sortedKeys(r.backoffs) {
		if y := r.backoffs[id]; all || !y.call.onExit {
			y.stop(message)
		}
	}
	r.settle()
}

// stopped reports whether the workflow has been stopped so that a call is not made any more: calls
// of exit handlers are made until the workflow is terminated.
func (r *Run) stopped(c *call) bool { return r.stopping != "" && (!c.onExit || r.terminated) }

// removePod requests the deletion of a leaf's pod.
func (r *Run) removePod(l *leaf, reason string) {
	if l.podName != "" && !l.gone {
		r.out.Delete = append(r.out.Delete, DeletePod{l.node.ID, l.podName, reason})
	}
}

// failures returns the failed pods as JSON, for the exit handler.
func (r *Run) failures() string {
	type failure struct {
		DisplayName  string `json:"displayName"`
		Message      string `json:"message"`
		TemplateName string `json:"templateName"`
		Phase        string `json:"phase"`
		PodName      string `json:"podName"`
		FinishedAt   string `json:"finishedAt"`
	}
	list := []failure{}
	for _, id := range sortedKeys(r.nodes) {
		n := r.nodes[id]
		if n.Phase.FailedOrError() && n.Type == wf.NodePod {
			list = append(list, failure{n.DisplayName, n.Message, n.TemplateName, string(n.Phase),
				n.PodName(r.Workflow.Name), n.FinishedAt.UTC().Format(time.RFC3339)})
		}
	}
	text, _ := json.Marshal(list)
	return string(text)
}

// setGlobals sets the variables of the whole workflow.
func (r *Run) setGlobals() error {
	w, g := r.Workflow, r.globals.Map
	g["workflow.name"], g["workflow.namespace"], g["workflow.uid"] = w.Name, w.Namespace, string(w.UID)
	g["workflow.serviceAccountName"], g["workflow.mainEntrypoint"] = r.spec.ServiceAccountName, r.spec.Entrypoint
	if r.spec.Priority != nil {
		g["workflow.priority"] = strconv.Itoa(int(*r.spec.Priority))
	}
	r.globals.created = w.CreationTimestamp.UTC()
	if at, found := w.Annotations[wf.AnnotationScheduledTime]; found {
		g["workflow.scheduledTime"] = at
	}
	for key, value := range w.Labels {
		g["workflow.labels."+key] = value
	}
	for key, value := range w.Annotations {
		g["workflow.annotations."+key] = value
	}
	labels, _ := json.Marshal(w.Labels)
	annotations, _ := json.Marshal(w.Annotations)
	g["workflow.labels"], g["workflow.labels.json"] = string(labels), string(labels)
	g["workflow.annotations"], g["workflow.annotations.json"] = string(annotations), string(annotations)
	g["workflow.status"] = string(wf.WorkflowRunning)
	for i := range r.spec.Arguments.Parameters {
		p := &r.spec.Arguments.Parameters[i]
		if p.Value == nil && p.ValueFrom != nil && p.ValueFrom.ConfigMapKeyRef != nil {
			if err := r.fromConfigMap(p); err != nil {
				return fmt.Errorf("spec.arguments.parameters.%s: %w", p.Name, err)
			}
		}
		if p.Value = cmp.Or(p.Value, p.Default); p.Value == nil {
			return fmt.Errorf("spec.arguments.parameters.%s.value or spec.arguments.parameters.%s.valueFrom is required", p.Name,
				p.Name)
		}
		text, err := resolveText(string(*p.Value), []template.Scope{r.globals})
		if err != nil {
			return fmt.Errorf("spec.arguments.parameters.%s: %w", p.Name, err)
		}
		if p.Value = wf.Any(text); !allows(p, *p.Value) {
			return fmt.Errorf("spec.arguments.parameters.%s: %s", p.Name, notInEnum(p, *p.Value))
		}
		g["workflow.parameters."+p.Name] = text
	}
	parameters, _ := json.Marshal(r.spec.Arguments.Parameters)
	g["workflow.parameters"], g["workflow.parameters.json"] = string(parameters), string(parameters)
	for i := range r.spec.Arguments.Artifacts {
		a := &r.spec.Arguments.Artifacts[i]
		if err := template.Resolve(a, []template.Scope{r.globals}, "workflow."); err != nil {
			return fmt.Errorf("spec.arguments.artifacts.%s: %w", a.Name, err)
		}
	}
	if out := w.Status.Outputs; out != nil {
		for _, a := range out.Artifacts {
			g["workflow.outputs.artifacts."+a.Name] = artifactText(a)
		}
		for _, p := range out.Parameters {
			if p.Value != nil {
				g["workflow.outputs.parameters."+p.Name] = string(*p.Value)
			}
		}
	}
	return nil
}

// fromConfigMap sets a parameter to the value of a ConfigMap key. The names of the ConfigMap and
// the key may contain the workflow's variables.
func (r *Run) fromConfigMap(p *wf.Parameter) error {
	ref := *p.ValueFrom.ConfigMapKeyRef
	for _, name := range []*string{&ref.Name, &ref.Key} {
		var err error
		if *name, err = resolveText(*name, []template.Scope{r.globals}, "workflow."); err != nil {
			return err
		}
	}
	value, found := "", false
	if r.config.Library != nil {
		value, found = r.config.Library.ConfigMapKey(ref.Name, ref.Key)
	}
	switch {
	case found:
		p.Value = wf.Any(value)
	case p.ValueFrom.Default != nil:
		p.Value = p.ValueFrom.Default
	case ref.Optional != nil && *ref.Optional:
	case r.config.Library == nil || !r.config.Library.ConfigMap(ref.Name):
		return fmt.Errorf("there is no ConfigMap '%s' with the label %s", ref.Name, wf.LabelConfigMapType)
	default:
		return fmt.Errorf("ConfigMap '%s' has no key '%s'", ref.Name, ref.Key)
	}
	return nil
}

// put sets a key of a map. It allocates the map if it is nil: most workflows need few of a Run's
// maps.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// at schedules fire for time t, or for the next Step if t is past.
func (r *Run) at(t time.Time, fire func()) { heap.Push(&r.timers, timer{t, fire}) }

type timer struct {
	at   time.Time
	fire func()
}

// timers is a heap ordered by time.
type timers []timer

func (t timers) Len() int           { return len(t) }
func (t timers) Less(i, j int) bool { return t[i].at.Before(t[j].at) }
func (t timers) Swap(i, j int)      { t[i], t[j] = t[j], t[i] }
func (t *timers) Push(x any)        { *t = append(*t, x.(timer)) }
func (t *timers) Pop() any {
	old := *t
	last := old[len(old)-1]
	*t = old[:len(old)-1]
	return last
}
