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
	"lockstep.dev/lockstep/internal/keyed"
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
	// Patience is the time that an agent may take for a move, whoever requested it, before the move
	// is reversed. It is a sixth of that if the agent reports that it cannot make the move, or is
	// not working. Default: a minute.
	Patience time.Duration
}

// Config configures a Controller. All fields except Policy, LeaseNamespace, Guard, Metrics, Clock
// and Log are required.
type Config struct {
	REST      *rest.Config
	Informers *cluster.Informers
	Model     *cluster.Cluster
	Mover     Mover
	Writer    apiwriter.Writer
	// Ours reports whether a pod is scheduled by this manager.
	Ours func(*corev1.Pod) bool
	// Policy configures moves that nobody requested.
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
	leases  *cluster.Kind[*coordinationv1.Lease]
	loop    *keyed.Loop[string, node]

	mu     sync.Mutex
	gone   map[string]bool // nodes whose agent is gone
	active int             // number of running repacks of the policy
}

// node is the in-memory state of one NodeTopology.
type node struct {
	name     string
	watchman agentMonitor
	repack   *repacking // running, or nil
	// shown is the state of a repack that the watch may not show yet.
	shown  *topologyv1alpha1.RepackStatus
	policy policyState
	// pendingMoves are the moves that are not known to be complete, by the pod's UID. rewriting means
	// that pods are being given other CPUs; doubts can prolong it. stuck are pods whose move was
	// reversed.
	pendingMoves    map[types.UID]pendingMove
	rewriting       bool
	conflictedMoves []conflictedMove
	stuck           map[types.UID]bool
	// written is the object after this manager's last write.
	written *topologyv1alpha1.NodeTopology
	writing bool
	// writes is the backoff after a refused write. conflicted is the resource version with which a
	// write failed.
	writes     keyed.Pause
	conflicted string
}

// New returns a Controller and registers its handlers with the informers. Call it before the
// informers start, and after the model's handlers are registered.
func New(cfg Config) (*Controller, error) {
	if cfg.REST == nil || cfg.Informers == nil || cfg.Model == nil || cfg.Mover == nil || cfg.Writer == nil ||
		cfg.Ours == nil {
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
	s := &Controller{cfg: cfg, log: cfg.Log, clock: cfg.Clock, metrics: newMetrics(cfg.Metrics), gone: map[string]bool{}}
	s.leases = cluster.WatchIn(client, "leases", cfg.LeaseNamespace, topologyv1alpha1.AgentLabel, &coordinationv1.Lease{},
		nil)
	s.loop = keyed.New[string,
		node](keyed.Config[string]{Name: "nodetopologies", Workers: 2, Turn: s.turn, Clock: cfg.Clock, Guard: cfg.Guard,
		Panicked: s.panicked})
	changed := func(t *topologyv1alpha1.NodeTopology) { s.loop.Wake(t.Name) }
	cfg.Informers.NodeTopologies.Follow(changed, changed)
	cfg.Informers.Pods.Follow(s.podChanged, s.podChanged)
	s.leases.Follow(s.leaseChanged, s.leaseChanged)
	return s, nil
}

// podChanged wakes the node of an agent's pod, and of a pod that holds CPUs.
func (s *Controller) podChanged(p *corev1.Pod) {
	if p.Spec.NodeName == "" {
		return
	}
	_, pinned := p.Annotations[topologyv1alpha1.ResultAnnotation]
	if pinned && s.cfg.Policy.MovesPerHour > 0 {
		now := s.clock.Now()
		s.loop.PostLatest(p.Spec.NodeName, keyed.Anyone, "changed", func(n *node) { n.policy.changed = now })
	}
	if pinned || p.Labels[topologyv1alpha1.AgentLabel] != "" {
		s.loop.Wake(p.Spec.NodeName)
	}
}

func (s *Controller) leaseChanged(l *coordinationv1.Lease) {
	if node := l.Spec.HolderIdentity; node != nil {
		s.loop.Wake(*node)
	}
}

// Run runs until ctx is done.
func (s *Controller) Run(ctx context.Context) {
	var leases sync.WaitGroup
	leases.Go(func() { s.leases.Run(ctx) })
	defer leases.Wait()
	if s.leases.WaitForSync(ctx) == nil {
		s.loop.Run(ctx)
	}
}

// turn processes one node.
func (s *Controller) turn(name string) {
	watched, found := s.cfg.Informers.NodeTopologies.Get("", name)
	n := s.loop.Get(name)
	if !found {
		if n != nil {
			s.forget(n)
		}
		return
	}
	if n == nil {
		n = &node{name: name, policy: policyState{changed: s.clock.Now()}, stuck: map[types.UID]bool{}}
		s.loop.Put(name, n)
	}
	s.loop.Deliver(name, keyed.Anyone)
	s.resolveConflicts(n)
	t := watched
	if w := n.written; w != nil && w.UID == t.UID && cluster.Older(t.ResourceVersion, w.ResourceVersion) {
		t = w // the cache has not caught up with this manager's own write
	}
	now := s.clock.Now()
	// 1. Is the agent alive?
	v := n.watchman.judge(t, s.signs(t), now)
	s.count(name, !v.alive)
	if !v.next.IsZero() {
		s.loop.WakeAfter(name, v.next.Sub(now))
	}
	status := t.Status
	status.Conditions = v.conditions(t, now)
	// 2. Which moves are incomplete, and do they make progress?
	on := s.cfg.Model.CPUsOn(name)
	underWay := s.followMoves(n, t, on, now)
	// 3. Are there pods to move?
	s.repack(n, t, on, underWay, &status, now)
	// 4. Write the status.
	s.write(n, t, status, now)
}

// panicked sets a NodeTopology apart after a turn on it has panicked: it is left alone until it is
// changed, and no pods are pinned on its node.
func (s *Controller) panicked(name string, p *panics.Panic) {
	p.Unlocked(&s.mu)
	if n := s.loop.Get(name); n != nil {
		s.forget(n)
	}
	if t, found := s.cfg.Informers.NodeTopologies.Get("", name); found {
		s.cfg.Informers.NodeTopologies.SetApart("", name, t.UID, p)
	}
}

func (s *Controller) forget(n *node) {
	if n.repack != nil {
		s.ended(n.repack)
		n.repack = nil
	}
	for _, d := range n.conflictedMoves {
		s.cfg.Model.ForgetMoved(d.move.Pod, d.move.After)
	}
	s.loop.Drop(n.name)
	s.count(n.name, false)
}

// signs returns the objects by which an agent is judged.
func (s *Controller) signs(t *topologyv1alpha1.NodeTopology) agentSigns {
	out := agentSigns{node: t.Name}
	switch l := t.Status.Liveness; {
	case l == nil:
	case l.Pod != "":
		out.pod, _ = s.cfg.Informers.Pods.Get(split(l.Pod))
	default:
		if namespace, name := split(l.Lease); namespace == s.cfg.LeaseNamespace {
			out.lease, _ = s.leases.Get(namespace, name)
		}
	}
	return out
}

// count updates the number of nodes without an agent.
func (s *Controller) count(name string, gone bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if gone {
		s.gone[name] = true
	} else {
		delete(s.gone, name)
	}
	s.metrics.gone.Set(float64(len(s.gone)))
}

// write writes the status if it differs. The agent writes the status too; after a conflict the
// write is retried when the agent's write has been seen.
func (s *Controller) write(n *node, t *topologyv1alpha1.NodeTopology, status topologyv1alpha1.NodeTopologyStatus,
	now time.Time) {
	if n.writing || n.conflicted == t.ResourceVersion || equality.Semantic.DeepEqual(t.Status, status) {
		return
	}
	if left := n.writes.Left(now); left > 0 {
		s.loop.WakeAfter(n.name, left)
		return
	}
	o := t.DeepCopy()
	o.Status = *status.DeepCopy()
	n.writing = true
	gone := goneSince(t, &o.Status)
	ended := repackEnded(t, &o.Status)
	s.cfg.Writer.Status(apiwriter.Meta{Owner: "node/" + n.name, Reason: "node-topology-status"}, o, true,
		func(done apiwriter.Object, err error) {
			s.loop.Post(n.name, keyed.Anyone, func(n *node) {
				n.writing = false
				switch w, ok := done.(*topologyv1alpha1.NodeTopology); {
				case err == nil && ok && malformed.Of(w) != nil: // changed meanwhile; left alone
				case err == nil && ok:
					n.written = w
					s.tell(w, gone, ended)
				case apierrors.IsConflict(err), apierrors.IsNotFound(err):
					n.conflicted = o.ResourceVersion // the watch will show the newer version
				case errors.Is(err, apiwriter.ErrStopped):
				default:
					s.log.Error("the status of a NodeTopology cannot be written", "node", n.name, "error", err)
					n.writes.Refused(s.clock.Now())
				}
			})
		})
}

// goneSince returns the message of a write that says that an agent is gone, or "".
func goneSince(t *topologyv1alpha1.NodeTopology, status *topologyv1alpha1.NodeTopologyStatus) string {
	for _, c := range status.Conditions {
		if c.Type == topologyv1alpha1.AgentAlive && c.Status == "False" &&
			!equality.Semantic.DeepEqual(t.Status.Conditions, status.Conditions) {
			return c.Message
		}
	}
	return ""
}

// repackEnded returns the repack that ends with a write, or nil.
func repackEnded(t *topologyv1alpha1.NodeTopology,
	status *topologyv1alpha1.NodeTopologyStatus) *topologyv1alpha1.RepackStatus {
	if r := status.Repack; r != nil && r.Finished != nil && (r.Moves > 0 || r.Phase == topologyv1alpha1.RepackFailed) &&
		!equality.Semantic.DeepEqual(t.Status.Repack, r) {
		return r
	}
	return nil
}

// tell logs and records events about a successful write.
func (s *Controller) tell(t *topologyv1alpha1.NodeTopology, gone string, ended *topologyv1alpha1.RepackStatus) {
	if gone != "" {
		s.log.Warn("a node's agent is gone; no pods are given CPUs there", "node", t.Name, "why", gone)
		s.cfg.Writer.Event(t, corev1.EventTypeWarning, "AgentGone", gone)
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
	s.log.Info("repacked", "node", t.Name, "phase", ended.Phase, "moves", ended.Moves, "freed", len(ended.Freed),
		"message", ended.Message)
	s.cfg.Writer.Event(t, kind, "Repacked", text)
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
