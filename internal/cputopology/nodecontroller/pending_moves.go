package nodecontroller

import (
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topologyv1alpha1 "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// A move that the agent does not complete is reversed: another move gives the pod its previous
// CPUs. All information needed for this is read from the pods, so it does not matter which manager
// started the move, or whether the repack still runs.
//
//	written ──▶ the agent reports the number: complete
//	   │
//	   ├─ no agent, or it reports a problem: after patience/refusedShare ─┐
//	   └─ no report: after patience ──────────────────────────────────────┴▶ back, without a limit
//
// The write of a move carries the resource version of the pod on which the move was planned, so
// that a late write overwrites nothing. After a conflict everything is planned again from the state
// that the watch then shows; apiwriter reports a conflict only if the version differs.

// movePoll is the interval of checks while moves are incomplete: the model may learn of a pod's end
// later than this package.
const movePoll = 2 * time.Second

// refusedShare is the factor by which a move is reversed sooner if it is known that the move will
// not be made.
const refusedShare = 6

// pendingMove is a move that is not known to be complete.
type pendingMove struct {
	move    int64
	since   time.Time
	retryAt time.Time // not to be reversed again before this time, after a failed attempt
}

// followMoves reverses the moves that the agent does not complete in time. It reports whether there
// are moves that may still be completed or reversed.
func (c *Controller) followMoves(n *node, t *topologyv1alpha1.NodeTopology, on cluster.NodeCPUs, now time.Time) (underWay bool) {
	if on.Machine == nil || on.Machine.Fault != nil {
		return false // the owners of the CPUs cannot be determined
	}
	known := n.pendingMoves
	n.pendingMoves = map[types.UID]pendingMove{}
	var late []string
	serial := nextMove(on)
	for _, name := range slices.Sorted(maps.Keys(on.Pods)) {
		pod := on.Pods[name]
		if pod.Object == nil || pod.Result.Back || !pod.Result.Moving(on.Machine.Moved) {
			continue
		}
		underWay = true
		w, found := known[pod.Object.UID]
		if !found || w.move != pod.Result.Move {
			w = pendingMove{move: pod.Result.Move, since: now}
		}
		n.pendingMoves[pod.Object.UID] = w
		due := w.since.Add(c.cfg.Policy.Patience)
		if hindrance(t, on) != "" || problemOf(t, name) != "" {
			due = w.since.Add(c.cfg.Policy.Patience / refusedShare)
		}
		if due = latest(due, w.retryAt); now.Before(due) {
			c.loop.WakeAfter(n.name, min(due.Sub(now), movePoll))
			continue
		}
		late = append(late, name)
	}
	n.keepStuck(on)
	if n.rewriting || len(late) == 0 {
		return underWay
	}
	moves := make([]pin.Move, 0, len(late))
	for _, name := range late {
		why := hindrance(t, on)
		if why == "" {
			why = "the agent has not moved it" + problemOf(t, name)
		}
		move, err := back(on.Pods[name], serial, on.Machine.Layout.Topology())
		if err != nil {
			c.log.Error("a move cannot be taken back", "node", n.name, "pod", name, "error", err)
			continue
		}
		c.log.Warn("a move is taken back", "node", n.name, "pod", name, "why", why)
		n.failed(fmt.Sprintf("pod %s keeps its CPUs: %s", name, why))
		moves = append(moves, move)
	}
	c.rewrite(n, moves, func(n *node, written []error) {
		for i, err := range written {
			if err == nil {
				n.stuck[moves[i].UID] = true
				c.metrics.moves.WithLabelValues("back").Inc()
				if n.repack != nil {
					n.repack.moves = max(0, n.repack.moves-1)
				}
				continue
			}
			c.log.Debug("a move is not taken back yet", "node", n.name, "pod", moves[i].Pod.String(), "why", err)
			if w, found := n.pendingMoves[moves[i].UID]; found {
				w.retryAt = c.clock.Now().Add(movePoll)
				n.pendingMoves[moves[i].UID] = w
			}
		}
	})
	return underWay
}

// keepStuck removes the pods that no longer exist from stuck.
func (n *node) keepStuck(on cluster.NodeCPUs) {
	there := map[types.UID]bool{}
	for _, pod := range on.Pods {
		if pod.Object != nil {
			there[pod.Object.UID] = true
		}
	}
	maps.DeleteFunc(n.stuck, func(uid types.UID, _ bool) bool { return !there[uid] })
}

// failed records why the current repack, if there is one, does not continue. An empty reason is
// ignored.
func (n *node) failed(why string) {
	if why != "" && n.repack != nil && n.repack.failure == "" {
		n.repack.failure = why
	}
}

// nextMove returns a number that no move on the node has had.
func nextMove(on cluster.NodeCPUs) int64 {
	last := int64(0)
	if on.Machine.Moved < noAgent {
		last = on.Machine.Moved
	}
	for _, pod := range on.Pods {
		last = max(last, pod.Result.Move)
	}
	return last + 1
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// rewrite gives pods other CPUs. In the scheduler's memory both their previous and their new CPUs
// belong to them before the pods are written. done gets, for each move, the reason why it was not
// made. It is called later, in a turn, and no other rewrite begins before that.
func (c *Controller) rewrite(n *node, moves []pin.Move, done func(n *node, errs []error)) {
	if len(moves) == 0 {
		return
	}
	n.rewriting = true
	c.cfg.Mover.Move(n.name, moves, func(errs []error) {
		if !c.loop.Post(n.name, controlloop.Anyone, func(now *node) {
			if now != n {
				c.giveBack(moves, errs) // another node of this name
				return
			}
			c.writePods(n, moves, errs, done)
		}) {
			c.giveBack(moves, errs) // the node is gone
		}
	})
}

func (c *Controller) giveBack(moves []pin.Move, errs []error) {
	for i, m := range moves {
		if errs[i] == nil {
			c.cfg.Model.ForgetMoved(m.Pod, m.After)
		}
	}
}

// writePods writes the moves whose CPUs have been reserved, each with the resource version of the
// pod on which it was planned.
func (c *Controller) writePods(n *node, moves []pin.Move, errs []error, done func(*node, []error)) {
	left := 1
	written := func(n *node) {
		if left--; left == 0 {
			n.rewriting = false
			done(n, errs)
		}
	}
	for i, m := range moves {
		if errs[i] != nil {
			continue
		}
		left++
		answer := func(n *node, err error) {
			errs[i] = err
			written(n)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.Pod.Namespace, Name: m.Pod.Name, UID: m.UID, ResourceVersion: m.Version}}
		c.cfg.Writer.PatchVersion(apiwriter.Meta{Owner: "node/" + n.name, Reason: "cpu-move"}, pod, false, m.Patch,
			func(_ apiwriter.Object, err error) { c.answered(n, m, err, answer) })
	}
	written(n)
}

// answered handles the result of the write of a move.
func (c *Controller) answered(n *node, m pin.Move, err error, answer func(*node, error)) {
	unclear := apierrors.IsConflict(err)
	forget := func() { c.cfg.Model.ForgetMoved(m.Pod, m.After) }
	if err != nil {
		err = writeError{err}
		if !unclear {
			forget()
		}
	}
	posted := c.loop.Post(n.name, controlloop.Anyone, func(now *node) {
		switch {
		case now == n && unclear:
			n.conflictedMoves = append(n.conflictedMoves, conflictedMove{m, err, answer})
		case now == n:
			answer(n, err)
		case unclear:
			// The NodeTopology is gone: no CPUs of the node are given out before the pods are read
			// anew.
			forget()
		}
	})
	if !posted && unclear {
		forget()
	}
}

// conflictedMove is a move whose write met a conflict: either another client has changed the pod,
// or an earlier attempt whose answer was lost has made the move. Until the watch shows which, the
// pod holds both its previous and its new CPUs.
type conflictedMove struct {
	move   pin.Move
	err    error
	answer func(*node, error)
}

// resolveConflicts answers the conflicted moves whose outcome the watch has shown.
func (c *Controller) resolveConflicts(n *node) {
	doubts := n.conflictedMoves
	n.conflictedMoves = nil
	for _, d := range doubts {
		m := d.move
		switch pod, _ := c.cfg.Model.Pod(m.Pod); {
		case pod != nil && pod.UID == m.UID && pod.ResourceVersion == m.Version:
			n.conflictedMoves = append(n.conflictedMoves, d)
		case pod != nil && pod.UID == m.UID && pod.Annotations[topologyv1alpha1.ResultAnnotation] == m.After.Annotation:
			d.answer(n, nil)
		default:
			c.cfg.Model.ForgetMoved(m.Pod, m.After)
			d.answer(n, d.err)
		}
	}
	if len(n.conflictedMoves) > 0 {
		c.loop.WakeAfter(n.name, movePoll) // no event reports a pod that is no longer pinned
	}
}

// writeError is an error of the API server, as opposed to a refusal by the scheduler.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// gone reports whether the pod no longer exists.
func (e writeError) gone() bool { return apierrors.IsNotFound(e.error) }

// overtaken reports whether the pod was changed between the plan and the write.
func (e writeError) overtaken() bool { return apierrors.IsConflict(e.error) }
