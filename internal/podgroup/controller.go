package podgroup

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha2 "k8s.io/api/scheduling/v1alpha2"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	batchv1alpha1 "lockstep.dev/lockstep/api/batch/v1alpha1"
	schedulingv1beta1 "lockstep.dev/lockstep/api/scheduling/v1beta1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/podset"
	"lockstep.dev/lockstep/internal/scheduler"
	"lockstep.dev/lockstep/internal/scheduler/share"
)

// Config configures a Controller. Informers, Cluster, Scheduler and Writer are required.
type Config struct {
	Informers *informer.Set
	Cluster   *cluster.Cluster
	Scheduler Scheduler
	Writer    apiwriter.Writer
	// SchedulerNames are the scheduler names whose pods are scheduled; lockstep and volcano by
	// default.
	SchedulerNames []string
	// Owners reads the annotations of the owners of pods; nil means that they have none.
	Owners Owners
	// ReportAfter is how long a pod waits before a status says so; 1 s by default. Pods placed sooner
	// are never reported as waiting, which saves most of them a write. Groups, and their pods, wait five
	// times as long.
	ReportAfter time.Duration
	// Guard recovers from panics caused by one PodGroup or pod. With a nil Guard such panics end
	// the process.
	Guard *panics.Guard
	// Clock defaults to the real clock.
	Clock clock.WithTicker
	Log   *slog.Logger
}

// Scheduler places the pods of groups. It is a scheduler.Scheduler.
type Scheduler interface {
	podset.Scheduler
	Promise(gang, queue string, amounts corev1.ResourceList)
}

// Controller schedules pods that Lockstep does not create.
type Controller struct {
	cfg  Config
	loop *controlloop.Loop[key, groupState]
	// foreign reports whether this package schedules a pod.
	foreign func(*corev1.Pod) bool
	owners  owners

	mu        sync.Mutex                         // guards the records of loop, too
	binding   map[types.NamespacedName]types.UID // pods that are placed and not yet seen bound
	reports   map[types.NamespacedName]*podReport
	templates templates
}

// podReport is the last status written for a pod, which the informer may not show yet.
type podReport struct {
	uid      types.UID
	message  string
	underWay bool
	then     []func() // writes that must follow this one
}

// key identifies a PodGroup, or a pod without a PodGroup.
type key struct {
	pod  bool
	kube bool // the PodGroup is one of scheduling.k8s.io
	name types.NamespacedName
}

// The prefixes of the kinds of keys.
const (
	podPrefix       = "pod/"
	groupPrefix     = "podgroup/"
	kubeGroupPrefix = "kube-podgroup/"
)

func (k key) String() string {
	switch {
	case k.pod:
		return podPrefix + k.name.String()
	case k.kube:
		return kubeGroupPrefix + k.name.String()
	}
	return groupPrefix + k.name.String()
}

// groupState is the in-memory state of one key.
type groupState struct {
	gang    *scheduler.Gang // as last submitted; nil if nothing is requested
	waiting *waitReason     // last reason given by the scheduler or by the check of the members
	since   time.Time       // when it began to wait, or zero
	named   string          // the queue that its object names, which may be none; see queueOf
	// admitted means that the group has not started, and that its pods may be created.
	admitted bool
	promised promised
	// written is the PodGroup as last written, or as being written, until the informer has caught
	// up.
	written     *schedulingv1beta1.PodGroup
	kubeWritten *schedulingv1alpha2.PodGroup
	underWay    bool
	unsettled   settling
	creating    bool // a PodGroup for an owner is being created
	// created is when that was done. The watch may not show it yet.
	created time.Time
}

// DefaultSchedulerNames are the scheduler names that Lockstep serves by default.
var DefaultSchedulerNames = []string{schedulingv1beta1.SchedulerLockstep, schedulingv1beta1.SchedulerVolcano}

// Foreign returns a predicate for the pods that this package schedules: pods that name one of the
// schedulers and do not belong to a batch Job. Pods of a batch Job are placed before they are
// created.
func Foreign(schedulerNames []string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		if !slices.Contains(schedulerNames, p.Spec.SchedulerName) {
			return false
		}
		c := metav1.GetControllerOf(p)
		return c == nil || !isOurJob(c)
	}
}

func isOurJob(c *metav1.OwnerReference) bool {
	return c.Kind == "Job" && c.APIVersion == batchv1alpha1.GroupVersion.String()
}

// New returns a controller and registers it with the informers, which must not have been started.
func New(cfg Config) (*Controller, error) {
	if cfg.Informers == nil || cfg.Cluster == nil || cfg.Scheduler == nil || cfg.Writer == nil {
		return nil, errors.New("podgroup: informers, cluster, scheduler and writer are required")
	}
	if len(cfg.SchedulerNames) == 0 {
		cfg.SchedulerNames = DefaultSchedulerNames
	}
	cfg.ReportAfter = cmp.Or(cfg.ReportAfter, time.Second)
	cfg.Clock = cmp.Or[clock.WithTicker](cfg.Clock, clock.RealClock{})
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c := &Controller{
		cfg:       cfg,
		foreign:   Foreign(cfg.SchedulerNames),
		binding:   map[types.NamespacedName]types.UID{},
		reports:   map[types.NamespacedName]*podReport{},
		templates: newTemplates(),
		owners:    owners{Owners: cfg.Owners, known: map[types.UID]*ownerRecord{}},
	}
	c.loop = controlloop.New[key, groupState](controlloop.Config[key]{
		Name: "podgroups", Workers: 1, Turn: c.reconcile, Guard: cfg.Guard, Panicked: c.panicked, Clock: cfg.Clock,
		RetryMin: 100 * time.Millisecond, RetryMax: time.Minute,
	})
	c.owners.loop = controlloop.New[types.UID, struct{}](controlloop.Config[types.UID]{
		Name: "pod-owners", Workers: ownersInFlight, Turn: c.readOwner, Guard: cfg.Guard, Clock: cfg.Clock,
		RetryMin: 100 * time.Millisecond, RetryMax: time.Minute,
	})
	pod := func(p *corev1.Pod) {
		if !c.foreign(p) {
			return
		}
		if k, known := c.keyOf(p); known {
			c.loop.Wake(k)
		}
	}
	group := func(g *schedulingv1beta1.PodGroup) {
		c.loop.Wake(key{name: types.NamespacedName{Namespace: g.Namespace, Name: g.Name}})
	}
	cfg.Informers.Pods.Handle(informer.Handler[*corev1.Pod]{
		Added: func(p *corev1.Pod) {
			c.warn(p)
			pod(p)
		},
		Updated: func(old, p *corev1.Pod) {
			if old.UID != p.UID {
				c.forgetPod(old)
			}
			if of, known := c.keyOf(old); known && c.foreign(old) {
				c.loop.Wake(of) // another key than that of p if the annotation changed
			}
			pod(p)
		},
		Deleted: func(p *corev1.Pod) {
			c.forgetPod(p)
			pod(p)
			c.forgetOwner(p)
		},
	})
	cfg.Informers.PodGroups.Follow(group, group)
	kubeGroup := func(g *schedulingv1alpha2.PodGroup) { c.loop.Wake(kubeGroupKey(g)) }
	cfg.Informers.KubePodGroups.Follow(kubeGroup, kubeGroup)
	cfg.Informers.FollowQueues(c.wakeAll)
	return c, nil
}

// Run reconciles until ctx is done. The informers must have synced, because a part of a group must
// not be taken for the whole group.
func (c *Controller) Run(ctx context.Context) {
	c.promiseAll()
	var owners sync.WaitGroup
	owners.Go(func() { c.owners.loop.Run(ctx) })
	c.loop.Run(ctx)
	owners.Wait()
}

// panicked sets a PodGroup apart after a reconcile of it has panicked: the PodGroup is left alone
// until it is changed. A pod without a PodGroup is reconciled again when it changes.
func (c *Controller) panicked(k key, p *panics.Panic) {
	p.Unlocked(&c.mu)
	c.loop.Drop(k)
	c.cfg.Scheduler.Withdraw(k.String())
	c.cfg.Scheduler.Promise(k.String(), "", nil)
	pg := c.groupOf(k)
	switch {
	case pg == nil:
	case k.kube:
		c.cfg.Informers.KubePodGroups.SetApart(k.name.Namespace, k.name.Name, pg.UID, p)
	default:
		c.cfg.Informers.PodGroups.SetApart(k.name.Namespace, k.name.Name, pg.UID, p)
	}
}

// reconcile brings the gang submitted to the scheduler, and the statuses, up to date with the
// informers' caches.
func (c *Controller) reconcile(k key) {
	// 1. What exists?
	pods := c.podsOf(k)
	pg := c.groupOf(k)
	if pg != nil && !k.kube {
		if owner := metav1.GetControllerOf(pg); owner != nil && isOurJob(owner) {
			return // the controller of batch Jobs is responsible for it
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seeBound(pods)
	m := countMembers(pods, c.isBinding)
	if pg == nil && len(pods) == 0 {
		if u := c.loop.Get(k); u != nil {
			c.withdraw(k)
			c.promise(k, u, nil, m)
			c.loop.Drop(k)
		}
		return
	}
	u := c.state(k, pg, m)
	pg = u.latest(pg)
	if u.named, m.queue = c.queueOf(k, pg, m); m.queue == "" {
		c.withdraw(k)
		return // the namespace, once it is seen, wakes the key
	}
	if r := c.ownerOf(k); r != nil && pg == nil {
		c.createGroup(k, u, r, pods)
	}

	// 2. What does the group need, and can it be requested?
	r := c.request(k, pg, &m)
	switch {
	case !k.kube && u.asks(pg, m):
		c.submit(k, u, c.gang(k, pg, m, gangRequest{}))
	case r.missing != "" && !(m.none() && pg != nil && pg.Status.Phase == schedulingv1beta1.PodGroupCompleted):
		c.withdraw(k)
		c.waits(u, &waitReason{reason: r.reason, message: r.missing})
	case len(m.waiting) == 0:
		c.withdraw(k)
		c.loop.Succeeded(k)
		u.waiting, u.since = nil, time.Time{}
	default:
		c.submit(k, u, c.gang(k, pg, m, r))
	}

	// 3. Which statuses must be written?
	c.promise(k, u, pg, m)
	c.report(k, u, pg, m)
}

// request returns what a key must request, and records in m whether its sub-groups lack pods.
func (c *Controller) request(k key, pg *schedulingv1beta1.PodGroup, m *members) gangRequest {
	switch {
	case k.pod:
		return ask(1, nil, nil, *m, c.templates.of)
	case k.kube && len(m.waiting) == 0:
		return gangRequest{} // nobody waits for it to be admitted
	}
	if missing := c.missing(k, pg); missing != "" {
		return gangRequest{missing: missing, reason: schedulingv1beta1.ReasonNotEnoughTasks}
	}
	policies, err := policiesOf(pg)
	if err != nil {
		return gangRequest{missing: err.Error(), reason: reasonInvalidSubGroups}
	}
	m.lacks = policies.lacking(policies.divide(m), (*subGroup).holds) != nil
	r := ask(int(pg.Spec.MinMember), pg.Spec.MinTaskMember, policies, *m, c.templates.within(pg))
	if k.kube && r.missing == fewerThanMinMember {
		r.missing = fewerThanMinCount
	}
	return r
}

// state returns the state of a key, which it creates if there is none. A group that is Inqueue and
// has no pods was admitted before a restart.
func (c *Controller) state(k key, pg *schedulingv1beta1.PodGroup, m members) *groupState {
	u := c.loop.Get(k)
	if u == nil {
		u = &groupState{admitted: pg != nil && m.none() && pg.Status.Phase == schedulingv1beta1.PodGroupInqueue}
		c.loop.Put(k, u)
	}
	return u
}

// latest returns the PodGroup with the status that was last written, which the informer may not show
// yet. pg may be nil.
func (u *groupState) latest(pg *schedulingv1beta1.PodGroup) *schedulingv1beta1.PodGroup {
	if pg == nil || pg.DeletionTimestamp != nil {
		return pg
	}
	if u.written != nil && (u.written.UID != pg.UID || !u.underWay && !informer.Older(pg.ResourceVersion, u.written.ResourceVersion)) {
		u.written = nil
	}
	if u.written == nil {
		return pg
	}
	return &schedulingv1beta1.PodGroup{ObjectMeta: u.written.ObjectMeta, Spec: pg.Spec, Status: u.written.Status}
}

// podsOf returns the pods of a key that this package schedules.
func (c *Controller) podsOf(k key) []*corev1.Pod {
	if !k.pod {
		index := informer.PodsByGroup
		if k.kube {
			index = informer.PodsByKubeGroup
		}
		pods := c.cfg.Informers.Pods.ByIndex(index, k.name.String())
		pods = slices.DeleteFunc(pods, func(p *corev1.Pod) bool { return !c.foreign(p) })
		if r := c.ownerOf(k); r != nil {
			pods = append(pods, c.podsOfOwner(r.ref.UID)...)
		}
		return pods
	}
	p, ok := c.cfg.Informers.Pods.Get(k.name.Namespace, k.name.Name)
	if !ok || !c.foreign(p) {
		return nil
	}
	if of, known := c.keyOf(p); !known || of != k {
		return nil
	}
	return []*corev1.Pod{p}
}

// isBinding reports whether a bind of this pod is in flight.
func (c *Controller) isBinding(p *corev1.Pod) bool {
	uid, ok := c.binding[types.NamespacedName{Namespace: p.Namespace, Name: p.Name}]
	return ok && uid == p.UID
}

// seeBound drops the state of the binds that the informer shows.
func (c *Controller) seeBound(pods []*corev1.Pod) {
	for _, p := range pods {
		if p.Spec.NodeName == "" {
			continue
		}
		name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
		delete(c.binding, name)
		if r := c.reports[name]; r != nil && !r.underWay {
			delete(c.reports, name)
		}
		c.templates.forget(p.UID)
	}
}

// forgetPod drops the state of a deleted pod.
func (c *Controller) forgetPod(p *corev1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	if c.binding[name] == p.UID {
		delete(c.binding, name)
	}
	if r := c.reports[name]; r != nil && r.uid == p.UID {
		delete(c.reports, name)
	}
	c.templates.forget(p.UID)
}

// gang returns the gang to request from the scheduler.
func (c *Controller) gang(k key, pg *schedulingv1beta1.PodGroup, m members, r gangRequest) *scheduler.Gang {
	g := &scheduler.Gang{
		Key: k.String(), MinMember: r.minMember, Demands: r.demands, Parts: r.parts, MinParts: r.minParts, Owner: (*owner)(c),
		Queue: m.queue,
	}
	if len(m.waiting) > 0 {
		g.Created = m.waiting[0].CreationTimestamp.Time
	}
	if k.pod && len(m.waiting) > 0 {
		topology, _ := topologyOf(m.waiting[0])
		g.Near = scheduler.NearOf(topology)
	}
	for _, p := range m.waiting {
		if p.Spec.Priority != nil {
			g.Priority = max(g.Priority, *p.Spec.Priority)
		}
	}
	need := r.minMember
	switch {
	case m.none():
		g.Since = pg.CreationTimestamp.Time
	case m.total == 0:
		g.Since = m.waiting[len(m.waiting)-1].CreationTimestamp.Time // of the youngest
		need = max(need, 1)                                          // without a minimum, the first pod is not surplus
	}
	g.Surplus = max(0, r.units()-need)
	if pg != nil {
		g.Created = pg.CreationTimestamp.Time
		g.WaitAtMost, _ = schedulingv1beta1.WaitingTime(pg)
		if g.Near = scheduler.NearOf(pg.Spec.NetworkTopology); g.Near != nil {
			g.Mates = namesOf(m.held)
		}
		g.Resume = m.total > m.ended.succeeded && r.minMember > 0
		if !m.started() && !c.loop.Get(k).admitted {
			g.Announced = c.outstanding(pg, m)
		}
		if v, ok := c.cfg.Cluster.Priority(pg.Spec.PriorityClassName); ok && pg.Spec.PriorityClassName != "" {
			g.Priority, g.PriorityClass = v, pg.Spec.PriorityClassName
		}
		if of := c.kubeGroup(k); of != nil && of.Spec.Priority != nil {
			g.Priority = *of.Spec.Priority
		}
	}
	return g
}

// submit submits a gang to the scheduler unless it equals the last one submitted.
func (c *Controller) submit(k key, u *groupState, g *scheduler.Gang) {
	if u.gang != nil && sameGang(u.gang, g) {
		return
	}
	u.gang = g
	u.waiting = nil // the scheduler will give the reasons of the new gang
	c.cfg.Scheduler.Submit(g)
}

func sameGang(a, b *scheduler.Gang) bool {
	return a.Queue == b.Queue && a.Priority == b.Priority && a.PriorityClass == b.PriorityClass && a.Resume == b.Resume &&
		a.MinMember == b.MinMember && a.Surplus == b.Surplus && a.Since.Equal(b.Since) && a.WaitAtMost == b.WaitAtMost &&
		equality.Semantic.DeepEqual(a.Announced, b.Announced) && equality.Semantic.DeepEqual(a.Near, b.Near) &&
		slices.Equal(a.Mates, b.Mates) && slices.Equal(a.MinParts, b.MinParts) && equality.Semantic.DeepEqual(a.Parts, b.Parts) &&
		slices.EqualFunc(a.Demands, b.Demands, func(x, y scheduler.Demand) bool {
			return x.Template == y.Template && x.Min == y.Min && slices.Equal(x.Units, y.Units)
		})
}

// queueOf returns the queue that a group or a pod without a group names, and the one it is in. A group
// that names none, and has pods with nodes, stays in the queue of these pods. queue is empty if the
// namespace is not known yet.
func (c *Controller) queueOf(k key, pg *schedulingv1beta1.PodGroup, m members) (named, queue string) {
	named = schedulingv1beta1.DefaultQueue
	switch {
	case pg != nil && (!k.kube || pg.Spec.Queue != ""):
		named = pg.QueueName()
	case len(m.waiting) > 0:
		named = cmp.Or(cluster.QueueOf(m.waiting[0]), named)
	}
	queue, known := c.cfg.Informers.QueueIn(k.name.Namespace, named)
	if named == schedulingv1beta1.DefaultQueue {
		for _, p := range m.held {
			if of := cluster.QueueOf(p); of != "" {
				return named, of
			}
		}
	}
	if !known {
		return named, ""
	}
	return named, queue
}

// wakeAll wakes the groups of a namespace, and its pods without a group that have no nodes.
func (c *Controller) wakeAll(namespace string) {
	for _, pg := range c.cfg.Informers.PodGroups.List() {
		if pg.Namespace == namespace {
			c.loop.Wake(key{name: informer.KeyOf(pg)})
		}
	}
	for _, g := range c.cfg.Informers.KubePodGroups.List() {
		if g.Namespace == namespace {
			c.loop.Wake(kubeGroupKey(g))
		}
	}
	for _, p := range c.cfg.Informers.Pods.List() {
		if p.Namespace == namespace && p.Spec.NodeName == "" && c.foreign(p) {
			if k, known := c.keyOf(p); known {
				c.loop.Wake(k)
			}
		}
	}
}

func (c *Controller) withdraw(k key) {
	if u := c.loop.Get(k); u != nil && u.gang != nil {
		u.gang = nil
		c.cfg.Scheduler.Withdraw(k.String())
	}
}

// waits records why a key waits. report writes the reason if it still holds after a delay.
func (c *Controller) waits(u *groupState, w *waitReason) {
	if u.since.IsZero() {
		u.since = c.cfg.Clock.Now()
	}
	u.waiting = w
}

// owner implements scheduler.Owner for a Controller.
type owner Controller

// Commit implements scheduler.Owner. It binds the pods.
func (o *owner) Commit(g *scheduler.Gang, placed []scheduler.Assignment) {
	c := (*Controller)(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := keyOfGang(g)
	u := c.loop.Get(k)
	stale := u == nil || u.gang != g // the request has been replaced
	for _, a := range placed {
		name := g.Demands[a.Demand].Units[a.Unit]
		p, ok := c.cfg.Informers.Pods.Get(name.Namespace, name.Name)
		if stale || !ok || p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
			c.cfg.Cluster.Forget(name, a.Assumption)
			continue
		}
		c.binding[name] = p.UID
		c.bind(k, apiwriter.Binding{Pod: name, UID: p.UID, Node: a.Node, Annotations: c.annotations(k, u, p, a)}, a.Assumption)
	}
	switch {
	case g.Announced == nil:
	case u == nil:
		c.cfg.Scheduler.Promise(g.Key, "", nil) // the group has been deleted
	default:
		u.promised.unknown = true // the scheduler has made a promise of its own
	}
	if !stale {
		u.waiting, u.since = nil, time.Time{}
		u.admitted = len(g.Demands) == 0
		// The next reconcile requests the remaining pods, if there are any.
		c.withdraw(k)
	}
	c.loop.Wake(k)
}

// annotations returns the annotations that a pod gets with its node: the CPUs that it was given, its
// group if its owner has made it, and its queue if its namespace, or Kubernetes' PodGroup, named that.
func (c *Controller) annotations(k key, u *groupState, p *corev1.Pod, a scheduler.Assignment) map[string]string {
	out := maps.Clone(a.Annotations)
	set := func(name, value string) {
		if out == nil {
			out = map[string]string{}
		}
		out[name] = value
	}
	if _, named := schedulingv1beta1.GroupOf(p); !named && !k.pod && !k.kube {
		set(schedulingv1beta1.GroupNameAnnotation, k.name.Name)
	}
	if queue := u.gang.Queue; queue != cluster.QueueOf(p) && (queue != u.named || k.kube && queue != schedulingv1beta1.DefaultQueue) {
		set(schedulingv1beta1.QueueNameAnnotation, queue)
	}
	return out
}

func keyOfGang(g *scheduler.Gang) key { return keyFrom(g.Key) }

// keyFrom is the inverse of key.String.
func keyFrom(gang string) key {
	kind, rest, _ := strings.Cut(gang, "/")
	namespace, name, _ := strings.Cut(rest, "/")
	return key{pod: kind+"/" == podPrefix, kube: kind+"/" == kubeGroupPrefix, name: types.NamespacedName{Namespace: namespace, Name: name}}
}

// bind writes a pod's node. A status write of the pod that is in flight is completed first, because
// it would undo the condition that the binding sets.
func (c *Controller) bind(k key, b apiwriter.Binding, assumed cluster.Assumption) {
	write := func() {
		c.cfg.Writer.Bind(apiwriter.Meta{Owner: k.String(), Reason: "bind"}, b, func(err error) {
			if err != nil {
				c.bindFailed(k, b.Pod, b.UID, assumed, err)
			}
		})
	}
	if r := c.reports[b.Pod]; r != nil && r.underWay {
		r.then = append(r.then, write)
		return
	}
	write()
}

func (c *Controller) bindFailed(k key, name types.NamespacedName, uid types.UID, assumed cluster.Assumption, err error) {
	if errors.Is(err, apiwriter.ErrStopped) {
		return
	}
	c.mu.Lock()
	if c.binding[name] == uid {
		delete(c.binding, name)
	}
	c.mu.Unlock()
	c.cfg.Cluster.Forget(name, assumed)
	if !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.cfg.Log.Warn("a pod could not be bound", "pod", name, "error", err)
	}
	c.loop.Retry(k)
}

// Waiting implements scheduler.Owner.
func (o *owner) Waiting(g *scheduler.Gang, why scheduler.Reason) {
	c := (*Controller)(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	k := keyOfGang(g)
	u := c.loop.Get(k)
	if u == nil || u.gang != g {
		return
	}
	w := &waitReason{reason: schedulingv1beta1.ReasonNotEnoughResources, message: why.Message}
	if short := why.Shortage; short != nil && short.Domain != nil {
		w.message = short.Counted()
	}
	if fault := c.cfg.Informers.Queues.Malformed("", g.Queue); fault != nil && why.Code == share.QueueNotFound {
		w.message = fault.Error()
	}
	switch why.Code {
	case share.QueueNotFound, share.QueueClosed, share.QueueNotLeaf:
		if field := informer.QueueField(k.name.Namespace, u.named, g.Queue, ""); field != "" {
			w.message = field + ": " + w.message
		}
	}
	switch why.Code {
	case share.QueueNotFound, share.QueueClosed, share.QueueNotLeaf, share.QueueOverCapability:
		w.reason, w.byQueue = why.Code, true
	case share.BehindFirst:
		w.reason = why.Code
	case scheduler.Unschedulable:
		w.reason = why.Code
		if why.Shortage != nil {
			w.figures = why.Shortage.Counted()
		}
	}
	w.byQueue = w.byQueue || why.Announced
	if why.Eviction != "" {
		w.message += "; " + why.Eviction
		if w.figures != "" {
			w.figures += "; " + why.Eviction
		}
	}
	c.waits(u, w)
	c.loop.Wake(k)
}
