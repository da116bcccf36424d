package nodecontroller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/clip"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/cputopology"
	"lockstep.dev/lockstep/internal/cputopology/allocate"
	"lockstep.dev/lockstep/internal/cputopology/cpuset"
	"lockstep.dev/lockstep/internal/cputopology/repack"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// Bounds of a repack.
const (
	// waveMax is the maximum number of pods of a node that are moved at once.
	waveMax = 16
	// busyMax is the number of consecutive waves without a single move, because the CPUs were given
	// to other pods first or the pods were changed, after which a repack fails.
	busyMax = 5
)

// byPolicy is the ID of repacks that the policy starts.
const byPolicy = "policy"

// policyNodesMax is the maximum number of nodes on which the policy moves pods at the same time.
const policyNodesMax = 10

// policyState is the policy's state of a node.
type policyState struct {
	changed time.Time   // last change of the pinned pods
	planned time.Time   // time of the last plan
	moves   []time.Time // times of the moves of the last hour
}

// repacking is the state of a running repack.
//
//	begin ──▶ plan ──▶ reserve ──▶ write ──▶ the agent moves ──▶ plan ...
//	           │          │                       │
//	           │          │ CPUs were taken        ▼
//	           ▼          ▼ meanwhile: plan  a move is reversed (pending_moves.go): Failed
//	     no move left: Done
type repacking struct {
	id      string
	policy  bool
	budget  repack.Budget
	started metav1.Time
	moves   int32
	moved   map[types.UID]bool
	rest    []repack.Move // of the last plan, not yet in a wave
	freed   []cpuset.Set
	busy    int // consecutive waves without a move, because the CPUs or pods changed first
	failure string
	left    string // says which pod was not moved because it has a problem
}

// repack advances the repack of a node, and puts its state into status. underWay means that moves
// on the node are incomplete.
func (c *Controller) repack(n *node, t *topologyv1alpha1.NodeTopology, on cluster.NodeCPUs, underWay bool, status *topologyv1alpha1.NodeTopologyStatus, now time.Time) {
	defer func() {
		// The state to show stays in status until the watch shows it, even if the agent writes the
		// status in the meantime.
		if n.shown != nil {
			status.Repack = n.shown
		}
		if n.repack == nil && equality.Semantic.DeepEqual(n.shown, t.Status.Repack) {
			n.shown = nil
		}
	}()
	if n.repack == nil && !c.begin(n, t, now) || n.rewriting {
		return // the answer wakes the node
	}
	r := n.repack
	// 1. Check for a reason to stop.
	if !r.policy && (t.Repack == nil || t.Repack.ID != r.id) {
		n.failed("the request was withdrawn")
	}
	n.failed(hindrance(t, on))
	// 2. Wait until the moves that have started are completed or reversed.
	if underWay {
		return
	}
	if pod := unsettled(on); pod != "" {
		n.failed("pod " + pod + " has not got back to the CPUs that it had before an earlier move" + problemOf(t, pod))
	}
	// 3. Move the next pods.
	if r.failure == "" {
		if moves := c.plan(n, t, on); len(moves) > 0 {
			c.rewrite(n, moves, func(n *node, errs []error) { c.written(n, r, moves, errs) })
			c.show(n, topologyv1alpha1.RepackMoving, nil)
			return
		}
	}
	// 4. End the repack, because no moves are left.
	c.finish(n, on, now)
}

// begin starts a repack that was requested, or that the policy starts. It reports whether there is
// one.
func (c *Controller) begin(n *node, t *topologyv1alpha1.NodeTopology, now time.Time) bool {
	was := t.Status.Repack
	if n.shown != nil {
		was = n.shown
	}
	under := was != nil && was.Phase == topologyv1alpha1.RepackMoving
	r := &repacking{started: metav1.NewTime(now).Rfc3339Copy(), moved: map[types.UID]bool{}}
	switch ask := t.Repack; {
	case ask != nil && (was == nil || was.ID != ask.ID || under):
		r.id = ask.ID
		r.budget = repack.Budget{MovesMax: int(ask.MovesMax), CostMax: float64(ask.CostMaxPercent) / 100, StayInNUMA: ask.StayInNUMA}
	case under && was.ID != byPolicy:
		r.id = was.ID // withdrawn, which is reported below
	case under, c.policyMoves(n, now):
		r.id, r.policy = byPolicy, true
		r.budget = repack.Budget{MovesMax: c.policyLeft(n, now), CostMax: c.cfg.Policy.CostMax, StayInNUMA: c.cfg.Policy.StayInNUMA}
	default:
		return false
	}
	if under && was.ID == r.id {
		// Another manager has started this repack. Its moves are in the pods' annotations.
		r.started, r.moves = was.Started, was.Moves
		for _, l := range was.Freed {
			if set, err := cpuset.Parse(string(l)); err == nil {
				r.freed = append(r.freed, set)
			}
		}
	}
	if r.policy {
		c.mu.Lock()
		c.active++
		c.mu.Unlock()
	}
	n.repack = r
	return true
}

// ended updates the number of running repacks of the policy. It is called once for each repacking.
func (c *Controller) ended(r *repacking) {
	if r.policy {
		c.mu.Lock()
		c.active--
		c.mu.Unlock()
	}
}

// policyMoves reports whether the policy should plan moves on a node now.
func (c *Controller) policyMoves(n *node, now time.Time) bool {
	p := &n.policy
	if c.cfg.Policy.MovesPerHour <= 0 || !p.changed.After(p.planned) {
		return false // a plan for the same pods has been made
	}
	short := c.shortSince(p.planned)
	quiet := c.cfg.Policy.Quiet
	due := p.changed.Add(quiet)
	if next := p.planned.Add(2 * quiet); next.After(due) {
		due = next
	}
	if soon := p.planned.Add(shortEvery); short && soon.Before(due) {
		due = soon
	}
	if now.Before(due) {
		c.loop.WakeAfter(n.name, due.Sub(now))
		return false
	}
	c.mu.Lock()
	full := c.active >= policyNodesMax
	c.mu.Unlock()
	if left := c.policyLeft(n, now); full || left == 0 {
		later := 2 * quiet
		if short && left > 0 {
			later = min(later, shortEvery)
		}
		c.loop.WakeAfter(n.name, later)
		return false
	}
	p.planned = now
	return true
}

// policyLeft returns the number of moves that the policy may still make on a node, given the moves
// of the last hour.
func (c *Controller) policyLeft(n *node, now time.Time) int {
	n.policy.moves = slices.DeleteFunc(n.policy.moves, func(at time.Time) bool { return now.Sub(at) >= time.Hour })
	return max(0, c.cfg.Policy.MovesPerHour-len(n.policy.moves))
}

// hindrance returns the reason why no pod can be moved on a node, or "".
func hindrance(t *topologyv1alpha1.NodeTopology, node cluster.NodeCPUs) string {
	ready := meta.FindStatusCondition(t.Status.Conditions, topologyv1alpha1.NodeReady)
	switch {
	case node.Machine == nil:
		return "the node does not exist"
	case node.Machine.Fault != nil:
		return "the machine is not described correctly: " + node.Machine.Fault.Error()
	case node.Machine.Closed:
		return "the node's agent is not at work"
	case t.Status.Mode == topologyv1alpha1.ApplyNothing, ready != nil && ready.Reason == topologyv1alpha1.ReasonObserving:
		return "the node's agent only observes"
	}
	return ""
}

// unsettled returns a pod whose move is incomplete, or "".
func unsettled(node cluster.NodeCPUs) string {
	if node.Machine == nil {
		return ""
	}
	first := ""
	for name, pod := range node.Pods {
		if pod.Result.Moving(node.Machine.Moved) && (first == "" || name < first) {
			first = name
		}
	}
	return first
}

func problemOf(t *topologyv1alpha1.NodeTopology, pod string) string {
	for _, p := range t.Status.Problems {
		if p.Pod == pod {
			return ": " + p.Message
		}
	}
	return ""
}

// plan chooses the next wave: moves that do not depend on each other.
func (c *Controller) plan(n *node, t *topologyv1alpha1.NodeTopology, on cluster.NodeCPUs) []pin.Move {
	r := n.repack
	budget := r.budget
	if budget.MovesMax > 0 || r.policy {
		if budget.MovesMax -= int(r.moves); budget.MovesMax <= 0 {
			return nil
		}
	}
	pods := map[string]*movable{}
	serial := nextMove(on)
	for name, pod := range on.Pods {
		// The policy does not retry pods that could not be moved before. Pods with a problem are
		// never moved.
		m := c.movable(on.Machine, on.Policy, pod)
		if m == nil || r.policy && n.stuck[pod.Object.UID] {
			continue
		}
		if problem := problemOf(t, name); problem != "" {
			r.left = "pod " + name + " is left where it is" + problem
			continue
		}
		pods[name] = m
	}
	state := replay(n.name, on)
	if len(state.Problems) > 0 {
		r.failure = "the pods of the node contradict each other: " + state.Problems[0].Key + ": " + state.Problems[0].Message
		return nil
	}
	plan, shared := repack.Plan{Moves: r.rest}, false
	if !continues(state.Node, pods, r.rest) {
		// A plan may move a pod more than once. A new one leaves the pods alone that were moved, so that a
		// repack ends although pods come and go meanwhile.
		maps.DeleteFunc(pods, func(_ string, m *movable) bool { return r.moved[m.pod.Object.UID] })
		plan = repack.Within(state.Node, requests(pods), budget)
	}
	if len(plan.Moves) == 0 {
		plan, shared = repack.Shared(state.Node, requests(pods), requestedBy(on), budget), true
	}
	for _, f := range plan.Freed {
		if !slices.ContainsFunc(r.freed, f.Equal) {
			r.freed = append(r.freed, f)
		}
	}
	next := plan.Moves[:min(len(plan.Moves), waveMax)]
	if !shared {
		next = independent(state.Node, pods, plan.Moves)
	}
	var wave []pin.Move
	for _, m := range next {
		move, err := pods[m.Pod].to(state.Node, m.To, serial)
		if err != nil {
			r.failure = fmt.Sprintf("pod %s: %v", m.Pod, err)
			return nil
		}
		wave = append(wave, move)
	}
	if r.rest = nil; !shared {
		r.rest = plan.Moves[len(wave):]
	}
	return wave
}

// continues reports whether the next move of a plan can be made as it was planned. The moves before it
// may have used an idle domain, for which the rest of the plan makes up; a new plan might not find such
// moves.
func continues(n *allocate.Node, pods map[string]*movable, rest []repack.Move) bool {
	return len(independent(n, pods, rest)) > 0 && pods[rest[0].Pod].request.CPUs() == rest[0].To.CPUs().Len()
}

// independent returns the moves at the beginning of a plan that can be made at once, at most a wave. The
// first move that goes to CPUs that another one leaves, or moves a pod again, waits for the next wave, and
// so do the moves after it. The same is true of a pod that has ended or was moved by others meanwhile: the
// plan is then given up with the next wave.
func independent(n *allocate.Node, pods map[string]*movable, plan []repack.Move) []repack.Move {
	plan = plan[:min(len(plan), waveMax)]
	idle := n.Idle()
	for i, m := range plan {
		present := n.Pod(m.Pod)
		if pods[m.Pod] == nil || present == nil || !present.CPUs().Equal(m.From.CPUs()) ||
			!m.To.CPUs().Minus(m.From.CPUs()).SubsetOf(idle) {
			return plan[:i]
		}
		idle = idle.Minus(m.To.CPUs())
	}
	return plan
}

// written handles the results of a wave.
func (c *Controller) written(n *node, r *repacking, moves []pin.Move, errs []error) {
	busy := true
	for i, err := range errs {
		m := moves[i]
		if err != nil {
			r.rest = nil // what follows may count on this move
		}
		var refused writeError
		switch {
		case err == nil:
			busy = false
			r.moves++
			r.moved[m.UID] = true
			c.metrics.moves.WithLabelValues("made").Inc()
			n.policy.moves = append(n.policy.moves, c.clock.Now())
			c.log.Info("a pod is moved to other CPUs", "node", n.name, "pod", m.Pod.String(), "cpus", m.After.Annotation)
		case !errors.As(err, &refused), refused.overtaken():
			c.metrics.moves.WithLabelValues("busy").Inc()
			c.log.Debug("a pod is not moved", "node", n.name, "pod", m.Pod.String(), "why", err)
		case refused.gone():
			busy = false
		default:
			busy = false
			c.metrics.moves.WithLabelValues("failed").Inc()
			n.failed(fmt.Sprintf("pod %s cannot be written: %v", m.Pod, err))
		}
	}
	if !busy {
		r.busy = 0
		return
	}
	if r.busy++; r.busy >= busyMax {
		n.failed("the CPUs were given to others, or the pods changed, again and again: " + errors.Join(errs...).Error())
	}
}

// finish ends the repack.
func (c *Controller) finish(n *node, on cluster.NodeCPUs, now time.Time) {
	r := n.repack
	defer func() { n.repack = nil }()
	c.ended(r)
	if r.policy && r.moves == 0 && r.failure == "" {
		return // the repack was not requested, and there is nothing to report
	}
	r.freed = slices.DeleteFunc(r.freed, func(f cpuset.Set) bool { return !idle(on, f) })
	phase, by := topologyv1alpha1.RepackDone, "request"
	if r.failure != "" {
		phase = topologyv1alpha1.RepackFailed
	}
	if r.policy {
		by = byPolicy
	}
	c.show(n, phase, &now)
	c.metrics.repacks.WithLabelValues(by, string(phase)).Inc()
	c.metrics.freed.Add(float64(len(r.freed)))
}

// idle reports whether no pod has any of the CPUs.
func idle(on cluster.NodeCPUs, cpus cpuset.Set) bool {
	for _, pod := range on.Pods {
		for _, c := range pod.Result.Containers {
			if c.CPUs.Overlaps(cpus) {
				return false
			}
		}
	}
	return true
}

// messageMax is the API's limit for the message of a repack, in bytes.
const messageMax = 512

// show sets the state of the repack that the status will show.
func (c *Controller) show(n *node, phase topologyv1alpha1.RepackPhase, finished *time.Time) {
	r := n.repack
	out := &topologyv1alpha1.RepackStatus{ID: r.id, Phase: phase, Moves: r.moves, Started: r.started,
		Message: clip.Text(cmp.Or(r.failure, r.left), messageMax)}
	for _, f := range r.freed {
		out.Freed = append(out.Freed, cputopology.List(f))
	}
	if finished != nil {
		at := metav1.NewTime(*finished).Rfc3339Copy()
		out.Finished = &at
	}
	n.shown = out
}
