package nodecontroller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/api/scheme"
	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/cputopology/request"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/kubeclient"
	"lockstep.dev/lockstep/internal/malformed"
	"lockstep.dev/lockstep/internal/panics"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// Mover reserves the CPUs of moves: see scheduler.Scheduler.
type Mover interface {
	Move(node string, moves []pin.Move, done func([]error))
}

// Policy configures the moves that the manager makes without a request. The zero value makes none.
type Policy struct {
	// MovesPerHour is the maximum number of pods of one node that are moved in an hour; 0 means
	// none.
	MovesPerHour int
	// CostMax is the maximum cost, in CPUs moved per CPU freed. 0 means the planner's default.
	CostMax float64
	// StayInNUMA forbids moves to other NUMA nodes.
	StayInNUMA bool
	// Quiet is the time for which the pinned pods of a node must not have changed before a plan.
	// The interval between two plans for a node is at least twice that. Default: 30 s.
	Quiet time.Duration
	// Patience is how long an agent may take for a move, requested or not, before the move is
	// reversed. If the agent reports that it cannot make the move, or does not work, the limit is a
	// sixth of Patience. Default: a minute.
	Patience time.Duration
}

// Config configures a Controller. All fields except Policy, LeaseNamespace, Guard, Metrics, Clock
// and Log are required.
type Config struct {
	REST      *rest.Config
	Informers *informer.Set
	Model     *cluster.Cluster
	Mover     Mover
	Writer    apiwriter.Writer
	// Ours reports whether a pod is scheduled by this manager.
	Ours func(*corev1.Pod) bool
	// Policy configures the moves that no user requested.
	Policy Policy
	// LeaseNamespace is the namespace of the agents' leases. Default: lockstep-system.
	LeaseNamespace string
	// Guard recovers from panics caused by one NodeTopology. With a nil Guard such panics end the
	// process.
	Guard   *panics.Guard
	Metrics prometheus.Registerer
	Clock   clock.WithTicker
	Log     *slog.Logger
}

// Controller maintains NodeTopologies.
type Controller struct {
	cfg     Config
	log     *slog.Logger
	clock   clock.WithTicker
	metrics *metrics
	leases  *informer.Informer[*coordinationv1.Lease]
	loop    *controlloop.Loop[string, node]

	mu     sync.Mutex
	gone   map[string]bool // nodes whose agent is gone
	short  time.Time       // when the scheduler last found too few CPUs for a pod
	active int             // number of running repacks of the policy
}

// node is the in-memory state of one NodeTopology.
type node struct {
	name    string
	monitor agentMonitor
	repack  *repacking // running, or nil
	// shown is the state of a repack that the watch may not show yet.
	shown  *topologyv1alpha1.RepackStatus
	policy policyState
	// pendingMoves are the moves that are not known to be complete, by the pod's UID. rewriting
	// means that annotations of pods are being rewritten, which takes longer after a conflict.
	// stuck are the pods whose move was reversed.
	pendingMoves    map[types.UID]pendingMove
	rewriting       bool
	conflictedMoves []conflictedMove
	stuck           map[types.UID]bool
	// fitting are the resource versions at which pods had as many CPUs as they requested, by namespace/name,
	// under the node's policy at that time.
	fitting       map[string]string
	fittingPolicy request.NodePolicy
	// unresized are the resized pods for which there are no CPUs, and why, by namespace/name.
	unresized map[string]string
	// written is the object after this manager's last write.
	written *topologyv1alpha1.NodeTopology
	writing bool
	// writes is the backoff after a refused write. conflicted is the resource version with which a
	// write failed.
	writes     controlloop.Backoff
	conflicted string
}

// New returns a Controller and registers its handlers with the informers. Call it before the
// informers start, and after the model's handlers are registered.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Informers == nil || cfg.Model == nil || cfg.Mover == nil || cfg.Writer == nil || cfg.Ours == nil {
		return nil, errors.New("nodecontroller: something required is missing")
	}
	if cfg.LeaseNamespace == "" {
		cfg.LeaseNamespace = "lockstep-system"
	}
	if cfg.Policy.Quiet <= 0 {
		cfg.Policy.Quiet = 30 * time.Second
	}
	if cfg.Policy.Patience <= 0 {
		cfg.Policy.Patience = time.Minute
	}
	if cfg.Clock == nil {
		cfg.Clock = clock.RealClock{}
	}
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	client, err := kubeclient.ForGroupVersion(cfg.REST, nil, coordinationv1.SchemeGroupVersion, scheme.Scheme)
	if err != nil {
		return nil, fmt.Errorf("nodecontroller: %w", err)
	}
	c := &Controller{cfg: cfg, log: cfg.Log, clock: cfg.Clock, metrics: newMetrics(cfg.Metrics), gone: map[string]bool{}}
	c.leases = informer.New(client, "leases", informer.Options[*coordinationv1.Lease]{Namespace: cfg.LeaseNamespace, Labels: topologyv1alpha1.AgentLabel})
	c.loop = controlloop.New[string, node](controlloop.Config[string]{Name: "nodetopologies", Workers: 2, Turn: c.turn, Clock: cfg.Clock, Guard: cfg.Guard, Panicked: c.panicked})
	changed := func(t *topologyv1alpha1.NodeTopology) { c.loop.Wake(t.Name) }
	cfg.Informers.NodeTopologies.Follow(changed, changed)
	cfg.Informers.Pods.Follow(c.podChanged, c.podChanged)
	c.leases.Follow(c.leaseChanged, c.leaseChanged)
	return c, nil
}

// podChanged wakes the node of an agent's pod, and of a pod that holds CPUs.
func (c *Controller) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	_, pinned := p.Annotations[topologyv1alpha1.ResultAnnotation]
	if pinned && c.cfg.Policy.MovesPerHour > 0 {
		now := c.clock.Now()
		c.loop.PostLatest(p.Spec.NodeName, controlloop.Anyone, "changed", func(n *node) { n.policy.changed = now })
	}
	if pinned || p.Labels[topologyv1alpha1.AgentLabel] != "" {
		c.loop.Wake(p.Spec.NodeName)
	}
}

func (c *Controller) leaseChanged(l *coordinationv1.Lease) {
	if node := l.Spec.HolderIdentity; node != nil {
		c.loop.Wake(*node)
	}
}

// shortEvery is the minimum time between two plans of a node for pods that wait for CPUs, and between two
// looks at all nodes.
const shortEvery = 5 * time.Second

// CPUsShort tells the controller that a pod waits for CPUs of its own, so that the policy looks for moves
// at once and not only when a node is quiet. It does not block.
func (c *Controller) CPUsShort() {
	now := c.clock.Now()
	c.mu.Lock()
	soon := now.Sub(c.short) < shortEvery
	if !soon {
		c.short = now
	}
	c.mu.Unlock()
	if !soon && c.cfg.Policy.MovesPerHour > 0 {
		c.loop.Each(func(name string, _ *node) { c.loop.Wake(name) })
	}
}

// shortSince reports whether a pod has waited for CPUs of its own since a moment.
func (c *Controller) shortSince(t time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.short.After(t)
}

// Run runs until ctx is done.
func (c *Controller) Run(ctx context.Context) {
	var leases sync.WaitGroup
	leases.Go(func() { c.leases.Run(ctx) })
	defer leases.Wait()
	if c.leases.WaitForSync(ctx) == nil {
		c.loop.Run(ctx)
	}
}

// turn processes one node.
func (c *Controller) turn(name string) {
	watched, found := c.cfg.Informers.NodeTopologies.Get("", name)
	n := c.loop.Get(name)
	if !found {
		if n != nil {
			c.forget(n)
		}
		return
	}
	if n == nil {
		n = &node{name: name, policy: policyState{changed: c.clock.Now()}, stuck: map[types.UID]bool{}, unresized: map[string]string{}, fitting: map[string]string{}}
		c.loop.Put(name, n)
	}
	c.loop.Deliver(name, controlloop.Anyone)
	c.resolveConflicts(n)
	t := watched
	if w := n.written; w != nil && w.UID == t.UID && informer.Older(t.ResourceVersion, w.ResourceVersion) {
		t = w // the cache has not caught up with this manager's own write
	}
	now := c.clock.Now()
	// 1. Judge whether the agent is alive.
	v := n.monitor.judge(t, c.signs(t), now)
	c.count(name, !v.alive)
	if !v.next.IsZero() {
		c.loop.WakeAfter(name, v.next.Sub(now))
	}
	status := t.Status
	status.Conditions = v.conditions(t, now)
	// 2. Follow the incomplete moves, and reverse those that take too long.
	on := c.cfg.Model.CPUsOn(name)
	underWay := c.followMoves(n, t, on, now)
	// 3. Give pods that were resized as many CPUs as they request now.
	underWay = c.resize(n, t, on, underWay, now) || underWay
	// 4. Begin or advance a repack.
	c.repack(n, t, on, underWay, &status, now)
	// 5. Write the status.
	c.write(n, t, status, now)
}

// panicked sets a NodeTopology apart after a turn on it has panicked: it is left alone until it is
// changed, and no pods are pinned on its node.
func (c *Controller) panicked(name string, p *panics.Panic) {
	p.Unlocked(&c.mu)
	if n := c.loop.Get(name); n != nil {
		c.forget(n)
	}
	if t, found := c.cfg.Informers.NodeTopologies.Get("", name); found {
		c.cfg.Informers.NodeTopologies.SetApart("", name, t.UID, p)
	}
}

func (c *Controller) forget(n *node) {
	if n.repack != nil {
		c.ended(n.repack)
		n.repack = nil
	}
	for _, d := range n.conflictedMoves {
		c.cfg.Model.ForgetMoved(d.move.Pod, d.move.After)
	}
	c.loop.Drop(n.name)
	c.count(n.name, false)
}

// signs returns the objects by which an agent is judged.
func (c *Controller) signs(t *topologyv1alpha1.NodeTopology) agentSigns {
	out := agentSigns{node: t.Name}
	switch l := t.Status.Liveness; {
	case l == nil:
	case l.Pod != "":
		out.pod, _ = c.cfg.Informers.Pods.Get(split(l.Pod))
	default:
		if namespace, name := split(l.Lease); namespace == c.cfg.LeaseNamespace {
			out.lease, _ = c.leases.Get(namespace, name)
		}
	}
	return out
}

// count updates the number of nodes without an agent.
func (c *Controller) count(name string, gone bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gone {
		c.gone[name] = true
	} else {
		delete(c.gone, name)
	}
	c.metrics.gone.Set(float64(len(c.gone)))
}

// write writes the status if it differs. The agent writes the status too; after a conflict the
// write is retried when the agent's write has been seen.
func (c *Controller) write(n *node, t *topologyv1alpha1.NodeTopology, status topologyv1alpha1.NodeTopologyStatus, now time.Time) {
	if n.writing || n.conflicted == t.ResourceVersion || equality.Semantic.DeepEqual(t.Status, status) {
		return
	}
	if left := n.writes.Left(now); left > 0 {
		c.loop.WakeAfter(n.name, left)
		return
	}
	o := t.DeepCopy()
	o.Status = *status.DeepCopy()
	n.writing = true
	gone := goneSince(t, &o.Status)
	ended := repackEnded(t, &o.Status)
	c.cfg.Writer.Status(apiwriter.Meta{Owner: "node/" + n.name, Reason: "node-topology-status"}, o, true,
		func(done apiwriter.Object, err error) {
			c.loop.Post(n.name, controlloop.Anyone, func(n *node) {
				n.writing = false
				switch w, ok := done.(*topologyv1alpha1.NodeTopology); {
				case err == nil && ok && malformed.Of(w) != nil: // changed meanwhile; left alone
				case err == nil && ok:
					n.written = w
					c.tell(w, gone, ended)
				case apierrors.IsConflict(err), apierrors.IsNotFound(err):
					n.conflicted = o.ResourceVersion // the watch will show the newer version
				case errors.Is(err, apiwriter.ErrStopped):
				default:
					c.log.Error("the status of a NodeTopology cannot be written", "node", n.name, "error", err)
					n.writes.Failed(c.clock.Now())
				}
			})
		})
}

// goneSince returns the message of a status write that reports the agent as gone, or "".
func goneSince(t *topologyv1alpha1.NodeTopology, status *topologyv1alpha1.NodeTopologyStatus) string {
	for _, c := range status.Conditions {
		if c.Type == topologyv1alpha1.AgentAlive && c.Status == "False" && !equality.Semantic.DeepEqual(t.Status.Conditions, status.Conditions) {
			return c.Message
		}
	}
	return ""
}

// repackEnded returns the repack that ends with a write, or nil.
func repackEnded(t *topologyv1alpha1.NodeTopology, status *topologyv1alpha1.NodeTopologyStatus) *topologyv1alpha1.RepackStatus {
	if r := status.Repack; r != nil && r.Finished != nil && (r.Moves > 0 || r.Phase == topologyv1alpha1.RepackFailed) && !equality.Semantic.DeepEqual(t.Status.Repack, r) {
		return r
	}
	return nil
}

// tell logs and records events about a successful write.
func (c *Controller) tell(t *topologyv1alpha1.NodeTopology, gone string, ended *topologyv1alpha1.RepackStatus) {
	if gone != "" {
		c.log.Warn("a node's agent is gone; no pods are given CPUs there", "node", t.Name, "why", gone)
		c.cfg.Writer.Event(t, corev1.EventTypeWarning, "AgentGone", gone)
	}
	if ended == nil {
		return
	}
	kind, text := corev1.EventTypeNormal, fmt.Sprintf("moved %d pods; free by that: %s", ended.Moves, lists(ended.Freed))
	if ended.Phase == topologyv1alpha1.RepackFailed {
		kind = corev1.EventTypeWarning
	}
	if ended.Message != "" {
		text += "; " + ended.Message
	}
	c.log.Info("repacked", "node", t.Name, "phase", ended.Phase, "moves", ended.Moves, "freed", len(ended.Freed), "message", ended.Message)
	c.cfg.Writer.Event(t, kind, "Repacked", text)
}

func lists(sets []topologyv1alpha1.CPUList) string {
	if len(sets) == 0 {
		return "nothing"
	}
	var b strings.Builder
	for i, l := range sets {
		if i > 0 {
			b.WriteString(" and ")
		}
		fmt.Fprintf(&b, "CPUs %s", l)
	}
	return b.String()
}
