package engine

import (
	"cmp"
	"container/heap"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	"lockstep.dev/lockstep/internal/workflow/locks"
	"lockstep.dev/lockstep/internal/workflow/template"
)

// maxDepth bounds how deep templates call each other.
const maxDepth = 100

// maxItems bounds one loop.
const maxItems = 100_000

// Library is what a workflow may refer to outside of itself. It is asked at the start only; the answers are kept in the
// status.
type Library interface {
	// Spec returns the spec of a WorkflowTemplate, or of a ClusterWorkflowTemplate.
	Spec(cluster bool, name string) (*wf.WorkflowSpec, bool)
	// ConfigMapKey returns the value of a key of a ConfigMap for parameters.
	ConfigMapKey(name, key string) (string, bool)
}

// Config is what a Run depends on beside the workflow.
type Config struct {
	Library   Library
	Transient func(message string) bool // says which errors are transient; nil: none
	MaxNodes  int                       // a workflow with more ends in Error; 0: 200,000
	MaxTexts  int                       // bytes; one whose nodes have longer texts ends in Error; 0: 32 MiB
	Evaluate  template.Run              // evaluates expressions that are not cheap; nil: they are errors
	Known     *Known                    // what is known of specs that other workflows run, too; nil: nothing
}

// Result is what a Step asks for.
type Result struct {
	Create  []CreatePod
	Delete  []DeletePod
	Changed []string  // ids of nodes that changed, in the order of their first change
	Status  bool      // the workflow's own status changed
	Wake    time.Time // when to call Step again if nothing happens before; zero: not needed

	Locks   []locks.Request // to be answered by LockStates
	Unlock  []string        // holders that hold and wait no more
	Stores  []CacheStore    // to be done before Lookups are answered
	Lookups []CacheLookup   // to be answered by CacheAnswers
	Samples []Sample

	// StatusFirst says that the status must be written before pods are created: it records new locks.
	StatusFirst bool
}

// CreatePod describes a pod to be made. What it points to is shared: not to be changed.
type CreatePod struct {
	NodeID, NodeName, PodName string
	Template                  *wf.Template // with all variables resolved, but for the outputs
	Inputs                    *wf.Inputs   // with their values and the artifacts' locations; nil: none
	Outputs                   *wf.Outputs  // as declared, with all variables resolved
	// Spec is the workflow's, after workflowTemplateRef. The variables of what shapes pods are resolved.
	Spec          *wf.WorkflowSpec
	IncludeResult bool     // somebody reads the result
	OnExit        bool     // it belongs to an exit handler, and survives a stop
	AvoidHosts    []string // hosts of failed attempts
}

// DeletePod names a pod that must end.
type DeletePod struct{ NodeID, PodName, Reason string }

// Event is a PodState, Resume, LockState or CacheAnswer. Of the events with the same key the last counts.
type Event interface{ key() string }

// Run is one workflow under way. It is not safe for concurrent use.
type Run struct {
	Workflow *wf.Workflow // the status in it is kept up to date

	config     Config
	spec       *wf.WorkflowSpec // after workflowTemplateRef
	templates  map[string]*compiled
	globals    *globals
	now        time.Time
	started    bool
	ended      bool
	rebuilding bool // the first Step: progress is counted before it is shown

	nodes    map[string]*node
	texts    int // bytes: see keep
	altered  []*node
	status   bool
	queue    []*node // fulfilled; their owners are to be told
	timers   timers
	active   int                 // pods that run
	waiting  []*leaf             // for the workflow's parallelism
	observed map[string]bool     // pods known at the first Step
	early    map[string]PodState // their states, until there is a leaf to observe them
	held     map[string]Event    // events to be taken in, also while the workflow is suspended
	arrived  []string            // their keys, in the order of their arrival
	live     map[*leaf]struct{}  // leaves under way
	create   []CreatePod
	remove   []DeletePod

	gates   map[string]waiter // that wait for locks, by holder
	wanted  map[string][]string
	awaited map[string]LockState
	holds   map[string]map[string]bool // holders by lock
	lookups map[string]*gate           // that wait for a cache, by node id
	metered []func()                   // what is to be emitted when the Step is done

	locks       []locks.Request
	unlocked    []string
	asked       []CacheLookup
	stores      []CacheStore
	samples     []Sample
	synced      bool // locks are held, or waited for, other than before
	statusFirst bool

	root, exit  *node
	hooks       *hooks
	shape       *podPrograms // the variables that are left in the spec, those of a pod
	outcome     *node        // the main node, once it is fulfilled
	stopping    string
	stopMessage string
	done, total int // pods
	deadline    time.Time
	terminated  bool // exit handlers were ended too
}

// New returns a Run of a workflow. It changes w.Status only. A workflow that cannot run ends in Error at the first Step.
func New(w *wf.Workflow, config Config) *Run {
	if config.MaxNodes == 0 {
		config.MaxNodes = 200_000
	}
	if config.MaxTexts == 0 {
		config.MaxTexts = textsMax
	}
	r := &Run{
		Workflow: w, config: config,
		templates: map[string]*compiled{}, globals: &globals{Map: template.Map{}, evaluate: config.Evaluate}, nodes: map[string]*node{},
	}
	for key, holders := range locks.Holding(w.Status.Synchronization) {
		for _, holder := range holders {
			r.noteHeld(key, holder)
		}
	}
	if w.Status.Nodes == nil {
		w.Status.Nodes = wf.Nodes{}
	}
	for id, status := range w.Status.Nodes {
		r.nodes[id] = &node{NodeStatus: status, known: true}
		r.keep(outputsBytes(status.Outputs) + len(status.Message)) // the rest when it is begun again
	}
	return r
}

// Step takes in what happened and goes as far as it can. The first Step must be given the states of all pods there are.
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
	if s := &r.Workflow.Spec; s.Suspend == nil || !*s.Suspend || s.Shutdown != wf.ShutdownNone { // a suspended workflow can be ended
		r.advance()
	}
	return r.result()
}

// takeEdits takes in what users may change of a workflow that runs, beside suspend and shutdown, which are read where they
// count. All else was compiled at the start.
func (r *Run) takeEdits() {
	own := &r.Workflow.Spec
	byItself := own.WorkflowTemplateRef == nil // else what it does not say is as its template says
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

// setDeadline has the workflow stopped at its deadline, in place of the one that was set before.
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
		// What was taken up again went through states that it had been in before.
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
	if s := r.Workflow.Spec.Shutdown; s != wf.ShutdownNone && (r.stopping == "" || s == wf.ShutdownTerminate && !r.terminated) {
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
	r.held, r.arrived = nil, nil // a map that was large once would take long to clear for ever
	r.catchUp()
	for len(r.timers) > 0 && !r.timers[0].at.After(r.now) {
		heap.Pop(&r.timers).(timer).fire()
		r.settle()
	}
	r.settle()
	r.catchUp()
}

// catchUp lets leaves observe pods that were known before them: after a restart pods may be further than the status.
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

// settle tells the owners of fulfilled nodes until nothing more follows.
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

// room says whether the workflow's parallelism lets another pod run.
func (r *Run) room() bool {
	return r.spec.Parallelism == nil || *r.spec.Parallelism <= 0 || int64(r.active) < *r.spec.Parallelism
}

func (r *Run) result() Result {
	for _, emit := range r.metered {
		emit()
	}
	if r.synced {
		r.recordLocks()
	}
	out := Result{
		Create: r.create, Delete: r.remove, Status: r.status, Locks: r.locks, Unlock: r.unlocked, Lookups: r.asked, Stores: r.stores,
		Samples: r.samples, StatusFirst: r.statusFirst,
	}
	for _, n := range r.altered {
		n.dirty = false
		r.Workflow.Status.Nodes[n.ID] = n.NodeStatus
		out.Changed = append(out.Changed, n.ID)
	}
	if progress := fmt.Sprintf("%d/%d", r.done, r.total); len(r.altered) > 0 && r.Workflow.Status.Progress != progress {
		r.Workflow.Status.Progress, out.Status = progress, true
	}
	r.create, r.remove, r.altered, r.status = nil, nil, nil, false
	r.locks, r.unlocked, r.asked, r.stores, r.samples, r.metered = nil, nil, nil, nil, nil, nil
	r.synced, r.statusFirst = false, false
	if len(r.timers) > 0 && !r.ended {
		out.Wake = r.timers[0].at
	}
	return out
}

// start begins, or takes up again, the workflow.
func (r *Run) start() {
	if err := r.load(); err != nil {
		r.end(wf.WorkflowError, err.Error())
		return
	}
	if err := r.resolveSpec(); err != nil {
		r.end(wf.WorkflowError, "spec."+err.Error())
		return
	}
	if r.lockWorkflow() {
		r.run()
	}
}

// mainOwner is told about the root node, exitOwner about the workflow's exit handler.
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

// finish starts the exit handler, when the main node and the hooks are done.
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
		name: name, display: name, target: target{template: hook.Template, ref: hook.TemplateRef}, from: r.local(), args: args,
		owner: (*exitOwner)(r), onExit: true, hooked: true, failure: err,
	}
	if len(args.Parameters)+len(args.Artifacts) == 0 {
		c.args, c.topLevel = r.spec.Arguments, true
	}
	r.exit = &node{} // started, even if it ends at once
	r.exit = r.execute(c)
}

// conclude ends the workflow by how its main node and its exit handler ended.
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
	s.Conditions = slices.DeleteFunc(s.Conditions, func(c wf.Condition) bool { return c.Type != wf.ConditionMetricsError })
	s.Conditions = append([]wf.Condition{{Type: wf.ConditionPodRunning, Status: metav1.ConditionFalse}, {Type: wf.ConditionCompleted, Status: metav1.ConditionTrue}}, s.Conditions...)
	r.status, r.ended = true, true
	for _, l := range r.underway() { // daemons of no frame
		r.removePod(l, "the workflow is done")
		if l.node.daemoned() {
			l.node.Daemoned = nil
			l.node.set(wf.PhaseSucceeded, "")
		}
	}
	for _, holders := range r.holds { // the workflow's own, and whatever is left
		for holder := range holders {
			r.unlock(holder)
		}
	}
	for holder := range r.gates {
		r.unlock(holder)
	}
	slices.Sort(r.unlocked)
	r.meterEnd()
}

// Abort ends a workflow in Error, for a reason that the engine cannot know.
func (r *Run) Abort(now time.Time, message string) Result {
	r.now = now
	if !r.Workflow.Status.Phase.Completed() {
		r.abort(message)
	}
	return r.result()
}

// abort ends the workflow, and every node in it, in Error.
func (r *Run) abort(message string) {
	for _, l := range r.underway() {
		r.removePod(l, message)
	}
	clear(r.live)
	r.ended = true // nothing is started from here on
	for _, id := range sortedKeys(r.nodes) {
		if n := r.nodes[id]; n.run != nil {
			n.Daemoned = nil
			n.set(wf.PhaseError, message)
		}
	}
	r.end(wf.WorkflowError, message)
}

// underway returns the leaves that are not done, by name.
func (r *Run) underway() []*leaf {
	leaves := make([]*leaf, 0, len(r.live))
	for l := range r.live {
		leaves = append(leaves, l)
	}
	slices.SortFunc(leaves, func(a, b *leaf) int { return cmp.Compare(a.node.Name, b.node.Name) })
	return leaves
}

// stop ends the leaves that are under way, but for those of exit handlers, unless all.
func (r *Run) stop(message string, all bool) {
	r.stopping = message
	if r.Workflow.Spec.Shutdown != wf.ShutdownNone {
		r.stopMessage = message
	}
	for _, holder := range sortedKeys(r.gates) {
		if w := r.gates[holder]; w != nil && (all || !w.survives()) {
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
	r.settle()
}

// removePod asks for a leaf's pod to be deleted.
func (r *Run) removePod(l *leaf, reason string) {
	if l.podName != "" && !l.gone {
		r.remove = append(r.remove, DeletePod{l.node.ID, l.podName, reason})
	}
}

// failures describes the failed pods, for exit handlers.
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

// setGlobals fills the variables of the whole workflow.
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
	g["workflow.labels.json"], g["workflow.annotations.json"] = string(labels), string(annotations)
	g["workflow.status"] = string(wf.WorkflowRunning)
	for i := range r.spec.Arguments.Parameters {
		p := &r.spec.Arguments.Parameters[i]
		if p.Value == nil && p.ValueFrom != nil && p.ValueFrom.ConfigMapKeyRef != nil {
			if err := r.fromConfigMap(p); err != nil {
				return fmt.Errorf("spec.arguments.parameters.%s: %w", p.Name, err)
			}
		}
		if p.Value == nil {
			p.Value = p.Default
		}
		if p.Value == nil {
			return fmt.Errorf("spec.arguments.parameters.%s.value or spec.arguments.parameters.%s.valueFrom is required", p.Name, p.Name)
		}
		text, err := resolveText(string(*p.Value), []template.Scope{r.globals})
		if err != nil {
			return fmt.Errorf("spec.arguments.parameters.%s: %w", p.Name, err)
		}
		p.Value = wf.Any(text)
		g["workflow.parameters."+p.Name] = text
	}
	parameters, _ := json.Marshal(r.spec.Arguments.Parameters)
	g["workflow.parameters"], g["workflow.parameters.json"] = string(parameters), string(parameters)
	for i := range r.spec.Arguments.Artifacts {
		a := &r.spec.Arguments.Artifacts[i]
		program, err := template.Compile(a)
		if err == nil {
			err = program.Apply(a, []template.Scope{r.globals}, "workflow.")
		}
		if err != nil {
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

// fromConfigMap gives a parameter the value of a ConfigMap's key, whose names may have the workflow's variables.
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
	case ref.Optional == nil || !*ref.Optional:
		return fmt.Errorf("ConfigMap '%s' has no key '%s'", ref.Name, ref.Key)
	}
	return nil
}

// put sets a key of a map, and makes the map if there is none: most workflows need few of those that a Run has.
func put[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = map[K]V{}
	}
	(*m)[key] = value
}

// at calls fire at a time, or at the next Step if that is past.
func (r *Run) at(t time.Time, fire func()) { heap.Push(&r.timers, timer{t, fire}) }

type timer struct {
	at   time.Time
	fire func()
}

// timers is a heap by time.
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
