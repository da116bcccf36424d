package steward

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
	"lockstep.dev/lockstep/internal/keyed"
	"lockstep.dev/lockstep/internal/scheduler/pin"
)

// A move that the agent does not complete is taken back: the pod is told its old CPUs again, by another move. Whoever is to
// see to that reads from the pods alone what is under way, so it does not matter who began it, nor whether a repack still is.
//
//	written ──▶ the agent reports the number: complete
//	   │
//	   ├─ no agent at work, or it says that it cannot: after patience/refusedShare ─┐
//	   └─ nothing: after patience ──────────────────────────────────────────────────┴▶ back, which has all the time it needs
//
// A move is written in the place of the version of the pod that it was planned on, so that a late one overwrites nothing. On a
// conflict all is planned again from what the watch shows then; apiwriter has made sure that it is another version.

// movePoll is how often to look meanwhile: the model may learn of a pod's end later than this package.
const movePoll = 2 * time.Second

// refusedShare is by how much sooner a move is taken back of which it is known that it is not made.
const refusedShare = 6

// settling is a move that is not known to be complete.
type settling struct {
	move  int64
	since time.Time
	again time.Time // not before then, if taking it back has failed
}

// settle takes back what the agent does not get done. It says whether moves are under way that may still be completed or
// taken back.
func (s *Steward) settle(n *node, t *topologyv1alpha1.NodeTopology, on cluster.NodeCPUs, now time.Time) (underWay bool) {
	if on.Machine == nil || on.Machine.Fault != nil {
		return false // whose CPUs are whose cannot be told
	}
	known := n.settling
	n.settling = map[types.UID]settling{}
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
			w = settling{move: pod.Result.Move, since: now}
		}
		n.settling[pod.Object.UID] = w
		due := w.since.Add(s.cfg.Policy.Patience)
		if hindrance(t, on) != "" || problemOf(t, name) != "" {
			due = w.since.Add(s.cfg.Policy.Patience / refusedShare)
		}
		if due = latest(due, w.again); now.Before(due) {
			s.loop.WakeAfter(n.name, min(due.Sub(now), movePoll))
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
			s.log.Error("a move cannot be taken back", "node", n.name, "pod", name, "error", err)
			continue
		}
		s.log.Warn("a move is taken back", "node", n.name, "pod", name, "why", why)
		n.failed(fmt.Sprintf("pod %s keeps its CPUs: %s", name, why))
		moves = append(moves, move)
	}
	s.rewrite(n, moves, func(n *node, written []error) {
		for i, err := range written {
			if err == nil {
				n.stuck[moves[i].UID] = true
				s.metrics.moves.WithLabelValues("back").Inc()
				if n.repack != nil {
					n.repack.moves = max(0, n.repack.moves-1)
				}
				continue
			}
			s.log.Debug("a move is not taken back yet", "node", n.name, "pod", moves[i].Pod.String(), "why", err)
			if w, found := n.settling[moves[i].UID]; found {
				w.again = s.clock.Now().Add(movePoll)
				n.settling[moves[i].UID] = w
			}
		}
	})
	return underWay
}

// keepStuck forgets pods that have gone.
func (n *node) keepStuck(on cluster.NodeCPUs) {
	there := map[types.UID]bool{}
	for _, pod := range on.Pods {
		if pod.Object != nil {
			there[pod.Object.UID] = true
		}
	}
	maps.DeleteFunc(n.stuck, func(uid types.UID, _ bool) bool { return !there[uid] })
}

// failed notes why the repack under way, if there is one and there is a reason, does not go on.
func (n *node) failed(why string) {
	if why != "" && n.repack != nil && n.repack.failure == "" {
		n.repack.failure = why
	}
}

// nextMove is a number that no move on the node has had.
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

// rewrite gives pods other CPUs: those they have and those they get are theirs in the scheduler's memory before they are
// written. done has for each move why it was not made; it is called in a turn, later, and no other rewrite begins before.
func (s *Steward) rewrite(n *node, moves []pin.Move, done func(n *node, errs []error)) {
	if len(moves) == 0 {
		return
	}
	n.rewriting = true
	s.cfg.Mover.Move(n.name, moves, func(errs []error) {
		if !s.loop.Post(n.name, keyed.Anyone, func(now *node) {
			if now != n {
				s.giveBack(moves, errs) // another node of this name
				return
			}
			s.writePods(n, moves, errs, done)
		}) {
			s.giveBack(moves, errs) // the node has gone
		}
	})
}

func (s *Steward) giveBack(moves []pin.Move, errs []error) {
	for i, m := range moves {
		if errs[i] == nil {
			s.cfg.Model.ForgetMoved(m.Pod, m.After)
		}
	}
}

// writePods writes the moves that have their CPUs, each in the place of the version of its pod that it was planned on.
func (s *Steward) writePods(n *node, moves []pin.Move, errs []error, done func(*node, []error)) {
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
		s.cfg.Writer.PatchVersion(apiwriter.Meta{Owner: "node/" + n.name, Reason: "cpu-move"}, pod, false, m.Patch,
			func(_ apiwriter.Object, err error) { s.answered(n, m, err, answer) })
	}
	written(n)
}

// answered takes up how the write of a move has ended.
func (s *Steward) answered(n *node, m pin.Move, err error, answer func(*node, error)) {
	unclear := apierrors.IsConflict(err)
	forget := func() { s.cfg.Model.ForgetMoved(m.Pod, m.After) }
	if err != nil {
		err = writeError{err}
		if !unclear {
			forget()
		}
	}
	posted := s.loop.Post(n.name, keyed.Anyone, func(now *node) {
		switch {
		case now == n && unclear:
			n.doubts = append(n.doubts, doubt{m, err, answer})
		case now == n:
			answer(n, err)
		case unclear:
			forget() // the NodeTopology has gone: nobody is given CPUs of the node before the pods are read anew
		}
	})
	if !posted && unclear {
		forget()
	}
}

// doubt is a move whose write met a conflict: somebody has changed the pod, or an earlier attempt, the answer to which was lost,
// has made the move. Until the watch shows which, the pod holds both its old CPUs and its new ones.
type doubt struct {
	move   pin.Move
	err    error
	answer func(*node, error)
}

// resolve answers for the moves in doubt of which the watch has shown what became.
func (s *Steward) resolve(n *node) {
	doubts := n.doubts
	n.doubts = nil
	for _, d := range doubts {
		m := d.move
		switch pod, _ := s.cfg.Model.Pod(m.Pod); {
		case pod != nil && pod.UID == m.UID && pod.ResourceVersion == m.Version:
			n.doubts = append(n.doubts, d)
		case pod != nil && pod.UID == m.UID && pod.Annotations[topologyv1alpha1.ResultAnnotation] == m.After.Annotation:
			d.answer(n, nil)
		default:
			s.cfg.Model.ForgetMoved(m.Pod, m.After)
			d.answer(n, d.err)
		}
	}
	if len(n.doubts) > 0 {
		s.loop.WakeAfter(n.name, movePoll) // of a pod that is not pinned any more nobody tells
	}
}

// writeError is an error of the API server, as against the scheduler's refusal.
type writeError struct{ error }

func (e writeError) Unwrap() error { return e.error }

// gone says that the pod is: its CPUs went with it.
func (e writeError) gone() bool { return apierrors.IsNotFound(e.error) }

// overtaken says that the pod was changed between the plan and the write.
func (e writeError) overtaken() bool { return apierrors.IsConflict(e.error) }
