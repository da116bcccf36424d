package controller

import (
	"cmp"
	"errors"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// transientPattern matches the messages of transient errors.
var transientPattern = regexp.MustCompile(`(?i)exceeded quota|connection refused|timeout|timed out|too many requests|temporarily|pod deleted|OutOf[a-z]|NodeLost|NodeShutdown|Evicted|Preempting`)

// nodePod is the pod of a node that has not ended: a group of one slot.
type nodePod struct {
	podset.Group
	name, nodeID string
	create       *engine.CreatePod // nil if the pod was found, not created by this run
	pod          *corev1.Pod       // the pod to create; nil once it exists
	queue        string
	gang         string          // key of the gang in which it was requested
	phase        corev1.PodPhase // as last shown by the watch
	replacing    bool            // the pod is being deleted, to be created again
	deleted      bool            // its deletion was requested
	ending       bool            // a write that ends its injected containers is in flight
}

// PodName implements podset.Maker.
func (p *nodePod) PodName(int) string { return p.name }

// Pod implements podset.Maker.
func (p *nodePod) Pod(_ int, node string, annotations map[string]string) *corev1.Pod {
	out := *p.pod
	out.Spec.NodeName = node
	if annotations != nil {
		out.Annotations = maps.Clone(out.Annotations)
		maps.Copy(out.Annotations, annotations)
	}
	return &out
}

func (p *nodePod) ref() podset.Ref     { return podset.Ref{Group: &p.Group} }
func (p *nodePod) uid() types.UID      { return p.Slot(0).UID() }
func (p *nodePod) state() podset.State { return p.Slot(0).State() }

// addPod adds the pod of a node to the record.
func (r *record) addPod(nodeID, name string, create *engine.CreatePod) *nodePod {
	p := &nodePod{name: name, nodeID: nodeID, create: create}
	p.Maker = p
	p.Resize(1)
	r.nodePods[nodeID] = p
	r.pods.Add(&p.Group)
	return p
}

// startWaiting builds the pods that the engine requested once no status has to be written first, no
// backoff is left, the artifact finalizer and the workflow's objects exist, and the artifact
// repository is known.
func (c *Controller) startWaiting(r *record) {
	if len(r.waiting) == 0 || r.first != firstNone || !c.refusalOver(r) {
		return
	}
	inGang := func(create engine.CreatePod) bool { return gangOf(&create.Template.Metadata) != "" }
	if r.leaves = !c.Leads && slices.ContainsFunc(r.waiting, inGang); r.leaves {
		return
	}
	r.spec = r.waiting[0].Spec
	if c.guardArtifacts(r) || !c.ensureRepository(r) || !c.ensureObjects(r) {
		return
	}
	list := r.waiting
	r.waiting = nil
	r.evaluations.spent = 0
	for i := range list {
		if c.start(r, &list[i]); r.evaluations.interrupted {
			return
		}
	}
	if len(r.events) > 0 {
		c.step(r) // end the nodes whose pods cannot be built
		if r.run != nil && len(r.waiting) > 0 {
			c.loop.Wake(r.key)
		}
	}
}

// start builds the pod of a node, unless the node has ended or has a pod. If the pod's name is
// still taken, the create is delayed.
func (c *Controller) start(r *record, create *engine.CreatePod) {
	if n, found := r.run.Workflow.Status.Nodes[create.NodeID]; !found || n.Phase.Fulfilled() || r.nodePods[create.NodeID] != nil {
		return
	}
	if _, taken := r.leaving[create.PodName]; taken {
		r.delayed[create.PodName] = *create
		return
	}
	var pod *corev1.Pod
	options, err := c.podOptions(r)
	if err == nil {
		pod, err = c.build(r, create, options)
	}
	if unknown := (*pods.NoCommandError)(nil); errors.As(err, &unknown) && c.lookUpImage(r, create, unknown) {
		return
	}
	if err != nil {
		r.events = append(r.events, engine.PodState{NodeID: create.NodeID, Phase: corev1.PodFailed, Error: true, Message: err.Error()})
		return
	}
	for _, key := range topology.ResultAnnotations() {
		delete(pod.Annotations, key) // placement assigns CPUs, not a template
	}
	if c.Settings().LogSpecs.AllPods {
		c.logSpec(r, pod.Name, &pod.Spec)
	}
	p := r.addPod(create.NodeID, create.PodName, create)
	p.pod, p.queue = pod, c.inQueue(pod)
	p.BindLater = c.Placer == nil || !c.ours(pod.Spec.SchedulerName) || len(pod.Spec.SchedulingGates) > 0 || plan.OwnClaims(pod)
	if !p.BindLater {
		p.Plan = c.plans.Share(plan.Of(pod, plan.Ranges(c.Informers.LimitRanges.List(), r.key.Namespace), wf.LabelWorkflow))
	}
}

// inQueue returns the queue of a pod. If the pod does not name it, the pod's namespace does; the pod
// then keeps it in its annotation.
func (c *Controller) inQueue(pod *corev1.Pod) string {
	named := pod.Annotations[scheduling.QueueNameAnnotation]
	queue, _ := c.Informers.QueueIn(pod.Namespace, named)
	if queue != scheduling.DefaultQueue && queue != named && c.ours(pod.Spec.SchedulerName) {
		pod.Annotations[scheduling.QueueNameAnnotation] = queue
	}
	return queue
}

// build builds the pod of a node.
func (c *Controller) build(r *record, create *engine.CreatePod, options pods.Options) (*corev1.Pod, error) {
	if create.Template.Plugin != nil {
		var found []*corev1.ConfigMap
		for _, namespace := range []string{r.key.Namespace, c.SystemNamespace} {
			found = append(found, c.Informers.ConfigMaps.ByIndex(informer.PluginsByNamespace, namespace)...)
		}
		var err error
		if options.Plugins, err = pods.FindPlugins(r.spec.ExecutorPlugins, found); err != nil {
			return nil, err
		}
	}
	return pods.Build(r.run.Workflow, *create, options)
}

// startDelayed moves the create that waited for this pod name from delayed to waiting.
func (c *Controller) startDelayed(r *record, pod string) {
	if create, found := r.delayed[pod]; found {
		delete(r.delayed, pod)
		r.waiting = append(r.waiting, create)
	}
}

// gangOf returns the name of the gang that a pod is in, or "".
func gangOf(m *wf.Metadata) string {
	if g := m.Annotations[wf.KeyGang]; g != "" {
		return g
	}
	return m.Labels[wf.KeyGang]
}

// gangKey identifies the pods that are requested together.
type gangKey struct {
	name, boundary, queue string
	plan                  *corev1.Pod
	priority              int32
}

// submit requests nodes for the pods that have none. Pods that a template's annotation makes a
// gang, among the children of one workflow node, are placed all together or not at all; other pods
// share a request only because that is cheaper.
func (c *Controller) submit(r *record) {
	if !c.refusalOver(r) {
		return
	}
	var fresh map[gangKey][]*nodePod
	var order []gangKey
	for _, id := range r.absentPods() {
		p := r.nodePods[id]
		if p.BindLater {
			r.pods.Create(p.ref())
			continue
		}
		key := gangKey{queue: p.queue, plan: p.Plan, priority: c.priority(r, p)}
		if p.create != nil {
			if key.name = gangOf(&p.create.Template.Metadata); key.name != "" {
				key.plan, key.boundary = nil, r.run.Workflow.Status.Nodes[p.nodeID].BoundaryID
			}
		}
		if fresh == nil {
			fresh = map[gangKey][]*nodePod{}
		}
		if fresh[key] == nil {
			order = append(order, key)
		}
		fresh[key] = append(fresh[key], p)
	}
	r.pods.Pump()
	for _, key := range order {
		r.gangSeq++
		c.request(r, key, fresh[key])
	}
	for _, q := range r.pods.Requests() {
		if q.Stale {
			r.pods.Resubmit(q)
		}
	}
}

// absentPods returns the node IDs of the pods that neither exist nor are requested, in a
// deterministic order.
func (r *record) absentPods() []string {
	var ids []string
	for id, p := range r.nodePods {
		if p.state() == podset.Absent {
			ids = append(ids, id)
		}
	}
	// Shorter names come first, so that item(2) comes before item(10).
	slices.SortFunc(ids, func(a, b string) int { return cmp.Or(len(a)-len(b), strings.Compare(a, b)) })
	return ids
}

// request submits a gang to the scheduler.
func (c *Controller) request(r *record, key gangKey, list []*nodePod) {
	g := &scheduler.Gang{
		Key: ownerKey(r.key) + "/" + strconv.Itoa(r.gangSeq), Queue: key.queue, Priority: key.priority,
		Created: r.object.CreationTimestamp.Time, MinMember: 1,
	}
	if key.name != "" {
		g.MinMember = len(list)
	}
	var slots [][]podset.Ref
	at := map[*corev1.Pod]int{}
	for _, p := range list {
		i, found := at[p.Plan]
		if !found {
			i = len(slots)
			at[p.Plan] = i
			g.Demands = append(g.Demands, scheduler.Demand{Template: p.Plan})
			slots = append(slots, nil)
		}
		slots[i] = append(slots[i], p.ref())
	}
	for _, p := range list {
		p.gang = g.Key
	}
	r.pods.Submit(g, slots)
}

// priority returns a pod's priority in its queue: the value of its PriorityClass, else the
// workflow's priority, else the value of the default class.
func (c *Controller) priority(r *record, p *nodePod) int32 {
	if class := p.pod.Spec.PriorityClassName; class != "" {
		value, _ := c.Model.Priority(class)
		return value
	}
	if p := r.spec.Priority; p != nil {
		return *p
	}
	value, _ := c.Model.Priority("")
	return value
}

// happened handles an event from the scheduler or the writer about the workflow's pods.
func (c *Controller) happened(r *record, e podset.Event) {
	if e.Kind == podset.Waits {
		c.loop.WakeAfter(r.key, waitTold)
	}
	if e.Group == nil {
		return
	}
	r.created = c.Clock.Now()
	p := e.Maker.(*nodePod)
	switch e.Kind {
	case podset.Written, podset.Replacing:
		p.pod, p.replacing, r.refusal = nil, e.Kind == podset.Replacing, podset.Refusal{}
	case podset.Refused:
		c.refused(r, p, e.Err)
	case podset.Unwanted:
		// The workflow may have been loaded again with this pod.
		if now := r.nodePods[p.nodeID]; now == nil || now.uid() != e.Pod.UID {
			r.pods.DeletePod(podset.Deletion{Name: p.name, UID: e.Pod.UID, Reason: "delete-unwanted-pod"})
		}
	}
}

// refused handles the server's refusal to create a pod.
func (c *Controller) refused(r *record, p *nodePod, err error) {
	switch {
	case apierrors.IsAlreadyExists(err):
		// An earlier pod of this workflow is terminating: its deletion is posted to the record. Of
		// pods of other owners, such as a deleted workflow of the same name, nothing is posted, so
		// the create is tried again later.
		old, found := c.Informers.Pods.Get(r.key.Namespace, p.name)
		if found && old.DeletionTimestamp != nil && p.create != nil && metav1.IsControlledBy(old, r.object) {
			c.removePod(r, p)
			r.leaving[p.name], r.delayed[p.name] = old.UID, *p.create
			return
		}
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "exceeded quota"), apierrors.IsBadRequest(err):
		c.removePod(r, p)
		r.events = append(r.events, engine.PodState{NodeID: p.nodeID, Phase: corev1.PodFailed, Error: true, Message: plain(err)})
		return
	}
	c.loop.WakeAfter(r.key, r.refusal.Note(c.Clock.Now(), "", plain(err)))
	r.events = append(r.events, engine.PodState{NodeID: p.nodeID, Phase: corev1.PodPending, Message: r.refusal.Message})
}

// refusalOver reports whether the backoff after a refusal is over. If not, it schedules the key
// again, because an earlier wake may have replaced the one scheduled at the refusal.
func (c *Controller) refusalOver(r *record) bool {
	wait := r.refusal.Left(c.Clock.Now())
	if wait > 0 {
		c.loop.WakeAfter(r.key, wait)
	}
	return wait <= 0
}

// plain returns the server's message without the client's wrapping.
func plain(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return status.Status().Message
	}
	return err.Error()
}

// stopPod stops the pod of a node, as the engine requested.
func (c *Controller) stopPod(r *record, d engine.DeletePod) {
	stop := podset.Deletion{Name: d.PodName, Reason: "stop-pod"}
	if p := r.nodePods[d.NodeID]; p != nil {
		c.cancel(r, p)
		if stop.UID = p.uid(); stop.UID != "" && !p.deleted {
			stop.Name, p.deleted = p.name, true
			r.pods.DeletePod(stop)
		}
		return
	}
	if p, found := c.Informers.Pods.Get(r.key.Namespace, d.PodName); found && !ended(p) && p.DeletionTimestamp == nil {
		if owner := workflowOf(p); owner != nil && owner.UID == r.uid {
			stop.UID = p.UID
			r.pods.DeletePod(stop)
		}
	}
}

// cancel removes a pod that is not being created yet. A pod whose create is in flight is deleted
// once it exists.
func (c *Controller) cancel(r *record, p *nodePod) {
	switch p.state() {
	case podset.Queued:
		if q := r.pods.Requests()[p.gang]; q != nil {
			q.Stale = true
		}
		c.removePod(r, p)
	case podset.Absent:
		c.removePod(r, p)
	}
}

// removePod removes the pod of a node from the record.
func (c *Controller) removePod(r *record, p *nodePod) {
	if r.nodePods[p.nodeID] != p {
		return
	}
	delete(r.nodePods, p.nodeID)
	r.pods.Remove(&p.Group)
	c.plans.Release(p.Plan)
	p.Plan = nil
	r.count(p.phase, "")
}

// removeEnded removes the pods of nodes that have ended.
func (c *Controller) removeEnded(r *record, changed []string) {
	for _, id := range changed {
		p := r.nodePods[id]
		if n := r.run.Workflow.Status.Nodes[id]; p == nil || !n.Phase.Fulfilled() {
			continue
		}
		c.cancel(r, p)
		c.removePod(r, p)
		if p.uid() != "" && !p.deleted {
			r.done = append(r.done, finishedPod{name: p.name, uid: p.uid(), nodeID: id})
		}
	}
}

// withdraw cancels all requests to the scheduler and all creates that have not been sent.
func (c *Controller) withdraw(r *record) {
	r.pods.Withdraw()
	r.waiting = nil
}

// releaseRun releases the resources that a run has outside its record, and resets the record. Pods
// stay.
func (c *Controller) releaseRun(r *record) {
	c.withdraw(r)
	for _, p := range r.nodePods {
		c.plans.Release(p.Plan)
	}
	c.workflowMetrics.forget(string(r.uid))
	r.reset()
}

// deleteAgain repeats deletions that the server refused once their backoff is over.
func (c *Controller) deleteAgain(r *record) {
	own, left := r.pods.DeleteAgain()
	if left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
	r.over.expired = r.over.expired && !own
}
