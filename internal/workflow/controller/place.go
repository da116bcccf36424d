package controller

import (
	"errors"
	"maps"
	"regexp"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
	scheduling "lockstep.dev/lockstep/api/scheduling/v1beta1"
	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/podset/plan"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/workflow/engine"
	"lockstep.dev/lockstep/internal/workflow/pods"
)

// transientPattern matches messages of transient errors.
var transientPattern = regexp.MustCompile(`(?i)exceeded quota|connection refused|timeout|timed out|too many requests|temporarily|pod deleted|OutOf[a-z]|NodeLost|NodeShutdown|Evicted|Preempting`)

// startWaiting builds the pods that the engine requested, once their preconditions hold: no status
// to be written first, no backoff, the artifact finalizer and the workflow's objects.
func (c *Controller) startWaiting(r *record) {
	if len(r.waiting) == 0 || r.first != firstNone || !c.refusalOver(r) {
		return
	}
	if !c.Leads && wantsGang(r.waiting) {
		c.leaveToLeader(r)
		return
	}
	r.spec = r.waiting[0].Spec
	if c.guardArtifacts(r) || !c.ensureObjects(r) {
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
		c.step(r) // nodes whose pods cannot be built end
		if r.run != nil && len(r.waiting) > 0 {
			c.loop.Wake(r.key)
		}
	}
}

// start builds the pod of a node, unless the node has ended or has a unit. If the pod's name is
// still taken, the create is delayed.
func (c *Controller) start(r *record, create *engine.CreatePod) {
	if n, found := r.run.Workflow.Status.Nodes[create.NodeID]; !found || n.Phase.Fulfilled() || r.units[create.NodeID] != nil {
		return
	}
	if _, taken := r.leaving[create.PodName]; taken {
		r.delayed[create.PodName] = *create
		return
	}
	u := &unit{name: create.PodName, nodeID: create.NodeID, create: create}
	options, err := c.podOptions(r)
	if err == nil {
		u.pod, err = pods.Build(r.run.Workflow, *create, options)
	}
	if err != nil {
		r.events = append(r.events, engine.PodState{NodeID: u.nodeID, Phase: corev1.PodFailed, Error: true, Message: err.Error()})
		return
	}
	for _, key := range topology.ResultAnnotations() {
		delete(u.pod.Annotations, key) // placement assigns CPUs, not a template
	}
	u.queue = scheduling.DefaultQueue
	if q := u.pod.Annotations[scheduling.QueueNameAnnotation]; q != "" {
		u.queue = q
	}
	r.units[u.nodeID] = u
	if u.unbound = !c.ours(u.pod.Spec.SchedulerName) || len(u.pod.Spec.SchedulingGates) > 0 || len(u.pod.Spec.ResourceClaims) > 0; u.unbound {
		return
	}
	u.plan = c.plans.Share(plan.Of(u.pod, c.limitRanges(r.key.Namespace), wf.LabelWorkflow))
}

// startDelayed moves the create that waited for this pod name to waiting.
func (c *Controller) startDelayed(r *record, pod string) {
	if create, found := r.delayed[pod]; found {
		delete(r.delayed, pod)
		r.waiting = append(r.waiting, create)
	}
}

func (c *Controller) limitRanges(namespace string) []*corev1.LimitRange {
	if c.Informers.LimitRanges == nil {
		return nil
	}
	var out []*corev1.LimitRange
	for _, l := range c.Informers.LimitRanges.List() {
		if l.Namespace == namespace {
			out = append(out, l)
		}
	}
	return out
}

// gangOf returns the name of the gang that a pod is in, or "".
func gangOf(m *wf.Metadata) string {
	if g := m.Annotations[wf.KeyGang]; g != "" {
		return g
	}
	return m.Labels[wf.KeyGang]
}

func wantsGang(list []engine.CreatePod) bool {
	for i := range list {
		if gangOf(&list[i].Template.Metadata) != "" {
			return true
		}
	}
	return false
}

// gangKey identifies the units that are requested together.
type gangKey struct {
	name, boundary, queue string
	plan                  *corev1.Pod
	priority              int32
}

// submit requests nodes for the units that have none. Units that a template's annotation makes a
// gang, among the children of one node, are placed all together or not at all; other units share a
// request only because that is cheaper.
func (c *Controller) submit(r *record) {
	if !c.refusalOver(r) {
		return
	}
	var fresh map[gangKey][]*unit
	var order []gangKey
	for _, id := range r.wantedUnits() {
		u := r.units[id]
		if u.unbound {
			c.write(r, u, "", nil)
			continue
		}
		key := gangKey{queue: u.queue, plan: u.plan, priority: c.priority(r, u)}
		if u.create != nil {
			if key.name = gangOf(&u.create.Template.Metadata); key.name != "" {
				key.plan, key.boundary = nil, r.run.Workflow.Status.Nodes[u.nodeID].BoundaryID
			}
		}
		if fresh == nil {
			fresh = map[gangKey][]*unit{}
		}
		if fresh[key] == nil {
			order = append(order, key)
		}
		fresh[key] = append(fresh[key], u)
	}
	for _, key := range order {
		r.gangSeq++
		g := &gang{
			c: c, key: ownerKey(r.key) + "/" + strconv.Itoa(r.gangSeq), record: r.key, uid: r.uid,
			units: fresh[key], all: key.name != "", queue: key.queue, priority: key.priority, created: r.object.CreationTimestamp.Time,
		}
		r.gangs[g.key] = g
		c.request(r, g)
	}
	for _, g := range r.gangs {
		if g.stale {
			c.request(r, g)
		}
	}
}

// wantedUnits returns the node IDs of the units to submit, in a deterministic order.
func (r *record) wantedUnits() []string {
	var ids []string
	for id, u := range r.units {
		if u.state == wanted {
			ids = append(ids, id)
		}
	}
	if len(ids) > 1 {
		sortNatural(ids)
	}
	return ids
}

// request submits a gang to the scheduler, replacing its earlier request, or withdraws it if no
// unit is left.
func (c *Controller) request(r *record, g *gang) {
	g.stale = false
	request := &scheduler.Gang{Key: g.key, Queue: g.queue, Priority: g.priority, Created: g.created, MinMember: 1, Owner: g}
	at := map[*corev1.Pod]int{}
	total := 0
	for _, u := range g.units {
		if r.units[u.nodeID] != u || u.state != wanted && u.state != queued {
			continue
		}
		u.state, u.gang = queued, g
		i, found := at[u.plan]
		if !found {
			i = len(request.Demands)
			at[u.plan] = i
			request.Demands = append(request.Demands, scheduler.Demand{Template: u.plan})
		}
		d := &request.Demands[i]
		d.Units = append(d.Units, types.NamespacedName{Namespace: r.key.Namespace, Name: u.name})
		total++
	}
	if total == 0 {
		if g.request != nil {
			c.Placer.Withdraw(g.key)
		}
		delete(r.gangs, g.key)
		return
	}
	if g.all {
		request.MinMember = total
	}
	g.request = request
	c.Placer.Submit(request)
}

// priority returns a pod's priority in its queue: that of its PriorityClass, else the workflow's
// own, else that of the default class.
func (c *Controller) priority(r *record, u *unit) int32 {
	if class := u.pod.Spec.PriorityClassName; class != "" {
		value, _ := c.Model.Priority(class)
		return value
	}
	if p := r.spec.Priority; p != nil {
		return *p
	}
	value, _ := c.Model.Priority("")
	return value
}

// Commit implements scheduler.Owner.
func (g *gang) Commit(request *scheduler.Gang, placed []scheduler.Assignment) {
	told := g.c.loop.Post(g.record, keyed.Anyone, func(r *record) { g.c.committed(r, g, request, placed) })
	if !told {
		for _, a := range placed {
			if a.Node != "" {
				g.c.Model.Forget(request.Demands[a.Demand].Units[a.Unit])
			}
		}
	}
}

// Waiting implements scheduler.Owner.
func (g *gang) Waiting(request *scheduler.Gang, why scheduler.Reason) {
	g.c.loop.Post(g.record, g.uid, func(r *record) {
		if r.gangs[g.key] == g && g.request == request {
			g.why, g.whySince = &why, g.c.Clock.Now()
			g.c.loop.WakeAfter(r.key, waitTold)
		}
	})
}

// committed takes in a placement: it creates the pods of the placed units and releases the room of
// units that are no longer wanted.
func (c *Controller) committed(r *record, g *gang, request *scheduler.Gang, placed []scheduler.Assignment) {
	byName := map[string]*unit{}
	if r.uid == g.uid && r.run != nil && r.gangs[g.key] == g {
		for _, u := range g.units {
			byName[u.name] = u
		}
	}
	for _, a := range placed {
		name := request.Demands[a.Demand].Units[a.Unit]
		if u := byName[name.Name]; u != nil && u.state == queued && r.units[u.nodeID] == u {
			c.write(r, u, a.Node, a.Annotations)
		} else if a.Node != "" {
			c.Model.Forget(name)
		}
	}
	g.why = nil
	left := false
	for _, u := range g.units {
		left = left || u.state == queued && r.units[u.nodeID] == u
	}
	if !left && len(byName) > 0 {
		delete(r.gangs, g.key)
	}
}

// write creates a unit's pod. node is empty for a pod that is bound later; annotations are those
// that placement adds.
func (c *Controller) write(r *record, u *unit, node string, annotations map[string]string) {
	u.state = placing
	u.gang = nil
	u.attempt++
	r.creating++
	attempt, owner, key := u.attempt, r.uid, r.key
	name := types.NamespacedName{Namespace: key.Namespace, Name: u.name}
	pod := u.pod
	if node != "" {
		placed := *pod
		placed.Spec.NodeName = node
		if annotations != nil {
			placed.Annotations = maps.Clone(pod.Annotations)
			maps.Copy(placed.Annotations, annotations)
		}
		pod = &placed
	}
	c.Writer.Create(apiwriter.Meta{Owner: ownerKey(key), Reason: "workflow-pod"}, pod, func(o apiwriter.Object, err error) {
		p, _ := o.(*corev1.Pod)
		switch {
		case node == "":
		case err != nil:
			c.Model.Forget(name)
		case p.Spec.NodeName != node:
			// an earlier write whose answer was lost had placed the pod elsewhere
			c.Model.Forget(name)
		case p.Annotations[topology.ResultAnnotation] != annotations[topology.ResultAnnotation]:
			c.Model.UpsertPod(p) // likewise: the pod has the CPUs of that earlier write
		default:
			c.Model.Confirm(name, p.UID, p.ResourceVersion)
		}
		c.loop.Post(key, owner, func(r *record) {
			r.creating--
			r.created = c.Clock.Now()
			if u.attempt == attempt {
				c.wrote(r, u, node, p, err)
			}
		})
	})
}

// wrote takes in the writer's answer to the create of a pod.
func (c *Controller) wrote(r *record, u *unit, node string, p *corev1.Pod, err error) {
	current := r.units[u.nodeID] == u
	switch {
	case errors.Is(err, apiwriter.ErrStopped):
	case err != nil:
		if current && u.state == placing {
			c.refused(r, u, node, err)
		}
	case !current:
		if c.unwanted(r, u, p) {
			c.deletePod(r, p.Name, p.UID, nil, "delete-unwanted-pod")
		}
	case u.state != placing:
		// The watch was faster.
	default:
		u.uid, u.version, u.pod, u.state = p.UID, p.ResourceVersion, nil, created
		r.unseen.Add(1)
		r.refusal = nil
		if node != "" && p.Spec.NodeName == node {
			c.checkStored(r, u, p)
		}
	}
}

// unwanted reports whether p, the pod just created for a unit that was let go of meanwhile, has to
// be deleted. It is false if the watch showed the pod before the answer came: then the node took
// the pod in and podGC decides, as for every pod that has ended.
func (c *Controller) unwanted(r *record, u *unit, p *corev1.Pod) bool {
	if u.uid == p.UID {
		return false
	}
	if now := r.units[u.nodeID]; now != nil && now.uid == p.UID {
		return false // the workflow was taken up again with this pod
	}
	seen, found := c.Informers.Pods.Get(p.Namespace, p.Name)
	return !found || seen.UID != p.UID || !ended(seen)
}

// checkStored compares the pod as the API server stored it with the planned pod. If the node is
// gone or admission changed the pod's demands, the pod is replaced.
func (c *Controller) checkStored(r *record, u *unit, p *corev1.Pod) {
	switch {
	case c.nodeMissing(p.Spec.NodeName):
	case !plan.Matches(u.plan, p):
		c.Log.Info("admission changed a pod's requests or constraints: it is created first and bound later", "workflow", r.key, "pod", p.Name)
		u.unbound = true
	default:
		return
	}
	u.state = replacing
	r.unseen.Add(-1)
	c.deletePod(r, p.Name, p.UID, ptr.To[int64](0), "replace-pod")
}

func (c *Controller) nodeMissing(node string) bool {
	if c.Informers.Nodes == nil {
		return false
	}
	_, found := c.Informers.Nodes.Get("", node)
	return !found
}

// Bounds of the delay between two attempts after a refusal.
const (
	retryMin = time.Second
	retryMax = 5 * time.Minute
)

// refused takes in that the API server refused to create a pod.
func (c *Controller) refused(r *record, u *unit, node string, err error) {
	u.state = wanted
	switch {
	case node != "" && mayForbidNode(err):
		c.Log.Info("a policy refuses pods that name their node: the pod is created first and bound later", "workflow", r.key,
			"pod", u.name, "error", err)
		u.unbound = true
		return
	case apierrors.IsAlreadyExists(err):
		// The pod belongs to another owner, or is an earlier pod of this workflow that is
		// terminating.
		if p, found := c.Informers.Pods.Get(r.key.Namespace, u.name); found && p.DeletionTimestamp != nil && u.create != nil {
			c.letGo(r, u)
			r.leaving[u.name], r.delayed[u.name] = p.UID, *u.create
			return
		}
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err) && !strings.Contains(err.Error(), "exceeded quota"), apierrors.IsBadRequest(err):
		c.letGo(r, u)
		r.events = append(r.events, engine.PodState{NodeID: u.nodeID, Phase: corev1.PodFailed, Error: true, Message: plain(err)})
		return
	}
	now := c.Clock.Now()
	if r.refusal == nil {
		r.refusal = &refusal{}
	}
	if !r.refusal.retryAt.After(now) { // all answers to one burst of writes count as one refusal
		r.refusal.retryAt = now.Add(min(retryMax, retryMin<<min(r.refusal.times, 9)))
		r.refusal.times++
	}
	r.refusal.message = plain(err)
	c.loop.WakeAfter(r.key, r.refusal.retryAt.Sub(now))
	r.events = append(r.events, engine.PodState{NodeID: u.nodeID, Phase: corev1.PodPending, Message: r.refusal.message})
}

// refusalOver reports whether the backoff after a refusal is over. If not, it schedules the key
// again, because an earlier wake may have replaced the one scheduled at the refusal.
func (c *Controller) refusalOver(r *record) bool {
	if r.refusal == nil {
		return true
	}
	wait := r.refusal.retryAt.Sub(c.Clock.Now())
	if wait > 0 {
		c.loop.WakeAfter(r.key, wait)
	}
	return wait <= 0
}

// mayForbidNode reports whether the refusal may come from a policy or webhook that rejects pods
// that name their node.
func mayForbidNode(err error) bool {
	s := err.Error()
	return strings.Contains(s, "nodeName") || strings.Contains(s, "denied request") || strings.Contains(s, "denied the request")
}

// plain returns the server's message without the client's wrapping.
func plain(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) && status.Status().Message != "" {
		return status.Status().Message
	}
	return err.Error()
}

// unwant stops the pod of a node, as the engine requested.
func (c *Controller) unwant(r *record, d engine.DeletePod) {
	if u := r.units[d.NodeID]; u != nil {
		c.cancel(r, u)
		if u.uid != "" && !u.deleted {
			u.deleted = true
			c.deletePod(r, u.name, u.uid, nil, "stop-pod")
		}
		return
	}
	if p, found := c.Informers.Pods.Get(r.key.Namespace, d.PodName); found && !ended(p) && p.DeletionTimestamp == nil {
		if owner := workflowOf(p); owner != nil && owner.UID == r.uid {
			c.deletePod(r, p.Name, p.UID, nil, "stop-pod")
		}
	}
}

// cancel drops a unit that has no pod yet. A pod whose create is in flight is deleted once it
// exists.
func (c *Controller) cancel(r *record, u *unit) {
	if u.state == queued && u.gang != nil {
		u.gang.stale = true
	}
	if u.state < placing {
		c.letGo(r, u)
	}
}

// letGo removes a unit from the record.
func (c *Controller) letGo(r *record, u *unit) {
	if r.units[u.nodeID] != u {
		return
	}
	delete(r.units, u.nodeID)
	c.plans.Release(u.plan)
	u.plan = nil
	if u.state == created {
		r.unseen.Add(-1)
	}
	r.count(u.phase, "")
}

// settleUnits removes the units of nodes that have ended.
func (c *Controller) settleUnits(r *record, changed []string) {
	for _, id := range changed {
		u := r.units[id]
		if n := r.run.Workflow.Status.Nodes[id]; u == nil || !n.Phase.Fulfilled() {
			continue
		}
		c.cancel(r, u)
		c.letGo(r, u)
		if u.uid != "" && !u.deleted {
			r.done = append(r.done, donePod{name: u.name, uid: u.uid, nodeID: id})
		}
	}
}

// withdraw cancels all requests to the scheduler and all creates that have not been sent.
func (c *Controller) withdraw(r *record) {
	for key := range r.gangs {
		c.Placer.Withdraw(key)
	}
	clear(r.gangs)
	for _, u := range r.units {
		if u.state == queued {
			u.state = wanted
		}
	}
	r.waiting = nil
}

// deletion holds the parameters of a refused deletion that is to be repeated.
type deletion struct {
	name   string
	grace  *int64
	reason string
}

// notDeleted notes that the server refused to delete a pod, or the workflow itself.
func (c *Controller) notDeleted(r *record, uid types.UID, d deletion) {
	r.undeleted.Add(c.Clock.Now(), uid, d)
}

// deleteAgain repeats refused deletions whose backoff is over.
func (c *Controller) deleteAgain(r *record) {
	undeleted, left := r.undeleted.Due(c.Clock.Now())
	if left > 0 {
		c.loop.WakeAfter(r.key, left)
	}
	for uid, d := range undeleted {
		if uid == r.uid {
			r.over.expired = false
			continue
		}
		delete(r.deleting, uid)
		if p, found := c.Informers.Pods.Get(r.key.Namespace, d.name); found && p.UID == uid && p.DeletionTimestamp == nil {
			c.deletePod(r, d.name, uid, d.grace, d.reason)
		}
	}
}

// deletePod deletes a pod. grace is the grace period in seconds, nil for the pod's own. A refused
// deletion is repeated after a backoff.
func (c *Controller) deletePod(r *record, name string, uid types.UID, grace *int64, reason string) {
	if r.deleting == nil {
		r.deleting = map[types.UID]bool{}
	}
	r.deleting[uid] = true
	key, owner := r.key, r.uid
	about := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.key.Namespace, Name: name, UID: uid}}
	c.Writer.Delete(apiwriter.Meta{Owner: ownerKey(r.key), Reason: reason}, about, apiwriter.DeleteOptions{GracePeriodSeconds: grace}, func(err error) {
		p, found := c.Informers.Pods.Get(key.Namespace, name)
		switch {
		case errors.Is(err, apiwriter.ErrStopped):
			return
		case err != nil:
			c.Log.Warn("deleting a pod failed", "workflow", key, "pod", name, "error", err)
			c.loop.Post(key, owner, func(r *record) { c.notDeleted(r, uid, deletion{name, grace, reason}) })
			return
		case found && p.UID == uid:
			return // the watch will say when it is gone
		}
		c.loop.Post(key, owner, func(r *record) { delete(r.deleting, uid) })
	})
}

// Elsewhere is the Placer and Model of a manager that does not lead: its pods are created without a
// node, and the leader binds them.
type Elsewhere struct {
	// Priorities returns the values of PriorityClasses; may be nil.
	Priorities func(class string) (int32, bool)
}

// Submit implements Placer.
func (Elsewhere) Submit(g *scheduler.Gang) {
	var placed []scheduler.Assignment
	for d := range g.Demands {
		for u := range g.Demands[d].Units {
			placed = append(placed, scheduler.Assignment{Demand: d, Unit: u})
		}
	}
	g.Owner.Commit(g, placed)
}

// Withdraw implements Placer.
func (Elsewhere) Withdraw(string) {}

// Confirm implements Model.
func (Elsewhere) Confirm(types.NamespacedName, types.UID, string) {}

// UpsertPod implements Model.
func (Elsewhere) UpsertPod(*corev1.Pod) {}

// Forget implements Model.
func (Elsewhere) Forget(types.NamespacedName) {}

// Priority implements Model.
func (e Elsewhere) Priority(class string) (int32, bool) {
	if e.Priorities == nil {
		return 0, false
	}
	return e.Priorities(class)
}
