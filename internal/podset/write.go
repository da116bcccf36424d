package podset

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	topology "lockstep.dev/lockstep/api/topology/v1alpha1"
	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/podset/plan"
)

// write is a create or binding of a slot's pod. An empty node means that the pod is created first
// and bound later.
type write struct {
	Ref
	node        string
	annotations map[string]string // the CPUs that the pod was given, if it requested CPUs
	assumption  cluster.Assumption
}

// Create creates the pod of an absent slot without a node, at the next Pump.
func (s *Set) Create(r Ref) { s.plan(Creating, write{Ref: r}) }

func (s *Set) plan(to State, w write) {
	s.move(w.Ref, to)
	w.slot().attempt++ // an answer still to come concerns an earlier write
	w.slot().unsent = true
	s.unsent = append(s.unsent, w)
}

// Pump passes pods to the writer, up to Window at a time.
func (s *Set) Pump() {
	n := len(s.unsent)
	if s.cfg.Window > 0 {
		n = min(n, s.cfg.Window-s.inflight)
	}
	if n <= 0 {
		return
	}
	for _, w := range s.unsent[:n] {
		s.send(w)
	}
	if s.unsent = s.unsent[n:]; len(s.unsent) == 0 {
		s.unsent = nil
	}
}

// dropUnsent drops the writes for which which returns true and that have not been passed to the
// writer. It releases their reservations.
func (s *Set) dropUnsent(which func(write) bool) {
	s.unsent = slices.DeleteFunc(s.unsent, func(w write) bool {
		if !which(w) {
			return false
		}
		if w.node != "" {
			s.cfg.Model.Forget(s.podName(w.Ref), w.assumption)
		}
		w.slot().unsent = false
		s.Unplace(w.Ref)
		return true
	})
}

// overtaken drops the unsent write of a slot's pod, because the watch shows that the pod has
// changed.
func (s *Set) overtaken(r Ref) {
	if r.slot().unsent {
		s.dropUnsent(func(w write) bool { return w.Ref == r })
	}
}

func (s *Set) send(w write) {
	slot := w.slot()
	slot.unsent = false
	s.inflight++
	name, attempt := s.podName(w.Ref), slot.attempt
	cfg, key, uid := s.cfg, s.key, s.uid
	answer := func(p *corev1.Pod, err error) {
		cfg.account(name, w, p, err)
		cfg.Post(key, uid, func(s *Set) Event {
			s.inflight--
			e := Event{Ref: w.Ref, Pod: p, Err: err}
			e.Kind = s.answered(w, attempt, p, err)
			return e
		})
	}
	if slot.uid != "" {
		m := apiwriter.Meta{Owner: s.owner, Reason: "bind"}
		b := apiwriter.Binding{Pod: name, UID: slot.uid, Node: w.node, Annotations: w.annotations}
		s.cfg.Writer.Bind(m, b, func(err error) { answer(nil, err) })
		return
	}
	m := apiwriter.Meta{Owner: s.owner, Reason: s.cfg.CreateReason}
	s.cfg.Writer.Create(m, w.Pod(int(w.Index), w.node, w.annotations), func(o apiwriter.Object, err error) {
		p, _ := o.(*corev1.Pod)
		answer(p, err)
	})
}

// account updates the cluster model with the outcome of a write, so that the model counts the pod
// on the node that the server has.
func (c *Config) account(name types.NamespacedName, w write, p *corev1.Pod, err error) {
	switch {
	case w.node == "":
	case err != nil:
		c.Model.Forget(name, w.assumption)
	case p == nil: // bound
	case p.Spec.NodeName != "" && p.Annotations[topology.ResultAnnotation] != w.annotations[topology.ResultAnnotation]:
		// The stored pod differs from the decision: an earlier write of this pod, whose answer was
		// lost, gave it other CPUs, which the pod keeps.
		c.Model.UpsertPod(p)
	case p.Spec.NodeName != w.node: // likewise
		c.Model.Forget(name, w.assumption)
	default:
		c.Model.Confirm(name, w.assumption, p.UID, p.ResourceVersion)
	}
}

// answered handles the writer's answer to a create or a binding.
func (s *Set) answered(w write, attempt uint16, p *corev1.Pod, err error) EventKind {
	slot := w.slot()
	switch {
	case stopped(err):
		return Nothing
	case !s.has(w.Group):
		if err != nil || p == nil || !s.unwanted(slot, p) {
			return Nothing
		}
		return Unwanted
	case slot.attempt != attempt || slot.state != Placing && slot.state != Creating:
		return Nothing // the watch was faster
	case err != nil:
		return s.refused(w, err)
	case p == nil: // bound
		s.move(w.Ref, Created)
		return Written
	}
	s.expect(w.Ref, p)
	if w.node == "" {
		s.move(w.Ref, s.cfg.StateOf(p))
		return Written
	}
	s.move(w.Ref, Created)
	return s.checkStored(w, p)
}

// unwanted reports whether a pod must be deleted that was created for a group that has since been
// removed. It returns false if the watch showed the pod before the answer came, or if the pod has
// ended.
func (s *Set) unwanted(slot *Slot, p *corev1.Pod) bool {
	if slot.uid == p.UID {
		return false
	}
	shown, found := s.cfg.Pods.Get(p.Namespace, p.Name)
	return !found || shown.UID != p.UID || shown.Status.Phase != corev1.PodSucceeded && shown.Status.Phase != corev1.PodFailed
}

func (s *Set) refused(w write, err error) EventKind {
	switch {
	case w.slot().uid != "":
		s.move(w.Ref, Unbound) // the pod was deleted, or another client bound it
		return BindFailed
	case w.node != "" && forbidsNode(err):
		s.cfg.Log.Info("a policy refuses pods that name their node: pods like this one are created first and bound later",
			"owner", s.owner, "pod", w.name(), "error", err)
		s.move(w.Ref, Absent)
		w.BindLater = true
		s.dropUnsent(func(x write) bool { return x.Group == w.Group })
		return LaterInstead
	}
	s.move(w.Ref, Absent)
	return Refused
}

// checkStored compares the pod that the API server stored with the placement.
func (s *Set) checkStored(w write, p *corev1.Pod) EventKind {
	_, exists := s.cfg.Nodes.Get("", w.node)
	switch {
	case p.Spec.NodeName != w.node:
		// An earlier write of this pod, whose answer was lost, put the pod on another node, where
		// it stays.
		return Written
	case !exists:
		s.Delete(w.Ref, new(int64), "replace-lost-pod")
		return Replacing
	case !plan.Matches(w.Plan, p) || w.annotations != nil && p.Annotations[topology.ResultAnnotation] == "":
		s.cfg.Log.Info("admission changed a pod's requests or constraints: pods like this one are created first and bound later",
			"owner", s.owner, "pod", p.Name)
		w.BindLater = true
		s.Delete(w.Ref, new(int64), "replace-changed-pod")
		return Replacing
	}
	return Written
}

// Deletion is a request to delete a pod.
type Deletion struct {
	Name   string
	UID    types.UID
	Grace  *int64 // grace period in seconds; nil for the pod's own
	Reason string // for the writer's metrics
	Among  Among
}

// Among says which other pods of the owner's run are deleted for the same reason.
type Among uint8

const (
	// Alone means that the deletion says nothing of other pods.
	Alone Among = iota
	// Unended means that all pods of the run are deleted that have not ended.
	Unended
	// All means that all pods of the run are deleted.
	All
)

// Delete deletes the pod of a slot. The slot is Leaving until the watch shows the deletion.
func (s *Set) Delete(r Ref, grace *int64, reason string) {
	s.delete(r, Deletion{Grace: grace, Reason: reason})
}

// DeleteAmong is Delete for a pod whose run is over. It takes effect at ReleaseDeletions, and gives the
// pod its own grace period.
func (s *Set) DeleteAmong(r Ref, others Among, reason string) {
	s.delete(r, Deletion{Reason: reason, Among: others})
}

func (s *Set) delete(r Ref, d Deletion) {
	s.move(r, Leaving)
	d.Name, d.UID = r.name(), r.slot().uid
	if s.holding || d.Among != Alone {
		s.held = append(s.held, d)
		return
	}
	s.DeletePod(d)
}

// HoldDeletions delays all calls of Delete until ReleaseDeletions.
func (s *Set) HoldDeletions() { s.holding = true }

// ReleaseDeletions carries out the delayed deletions and ends the delay.
func (s *Set) ReleaseDeletions() {
	held := s.held
	s.holding, s.held = false, nil
	if s.cfg != nil && s.cfg.DeleteMany != nil && len(held) > 1 {
		held = s.cfg.DeleteMany(s, held)
	}
	for _, d := range held {
		s.DeletePod(d)
	}
}

// Holding reports whether deletions are delayed until ReleaseDeletions.
func (s *Set) Holding() bool { return s.holding }

// BeginDeletions records that the deletion of pods was requested by other means than DeletePod.
func (s *Set) BeginDeletions(list []Deletion) {
	if s.deleting == nil {
		s.deleting = make(map[types.UID]bool, len(list))
	}
	for _, d := range list {
		s.deleting[d.UID] = true
	}
}

// unseenFor is how long the watch may take to show deletions that the API server says it has made.
const unseenFor = 10 * time.Second

// EndDeletions ends what BeginDeletions has begun: after a pause, the pods that are not being deleted
// are deleted one by one. done means that the API server has deleted all: the pause is then longer,
// because only the watch is late.
func (s *Set) EndDeletions(list []Deletion, done bool) {
	for _, d := range list {
		p, found := s.cfg.Pods.Get(s.key.Namespace, d.Name)
		switch {
		case !found || p.UID != d.UID:
			s.PodDeleted(d.UID)
		case p.DeletionTimestamp == nil && done:
			s.unseen.AtLeast(unseenFor)
			s.unseen.Add(s.cfg.Clock.Now(), d.UID, d)
		case p.DeletionTimestamp == nil:
			s.notDeleted(d)
		}
	}
}

// DeletePod deletes a pod, which may belong to no slot.
func (s *Set) DeletePod(d Deletion) {
	if s.deleting == nil {
		s.deleting = map[types.UID]bool{}
	}
	s.deleting[d.UID] = true
	cfg, key, uid := s.cfg, s.key, s.uid
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: d.Name, UID: d.UID}}
	m := apiwriter.Meta{Owner: s.owner, Reason: d.Reason}
	s.cfg.Writer.Delete(m, pod, apiwriter.DeleteOptions{GracePeriodSeconds: d.Grace}, func(err error) {
		p, found := cfg.Pods.Get(key.Namespace, d.Name)
		switch {
		case stopped(err):
		case err != nil:
			cfg.Log.Warn("deleting a pod failed", "owner", key, "pod", d.Name, "error", err)
			cfg.Post(key, uid, func(s *Set) Event { s.notDeleted(d); return Event{} })
		case !found || p.UID != d.UID: // otherwise the watch shows the deletion
			cfg.Post(key, uid, func(s *Set) Event { s.PodDeleted(d.UID); return Event{} })
		}
	})
}

// DeleteOwner deletes the owner o itself, if it still has this version. If the server refuses,
// DeleteAgain reports the owner when the pause is over.
func (s *Set) DeleteOwner(o apiwriter.Object, version, reason string) {
	cfg, key, uid := s.cfg, s.key, s.uid
	opts := apiwriter.DeleteOptions{Propagation: metav1.DeletePropagationBackground, Version: version}
	s.cfg.Writer.Delete(apiwriter.Meta{Owner: s.owner, Reason: reason}, o, opts, func(err error) {
		if err != nil && !stopped(err) {
			cfg.Log.Warn("deleting what has expired failed", "owner", key, "error", err)
			cfg.Post(key, uid, func(s *Set) Event { s.notDeleted(Deletion{UID: uid}); return Event{} })
		}
	})
}

func (s *Set) notDeleted(d Deletion) { s.failed.Add(s.cfg.Clock.Now(), d.UID, d) }

// DeleteAgain repeats the refused deletions of pods whose pause is over. owner reports whether the
// deletion of the owner itself is due; the caller repeats it. left is the time until the next
// deletion is due.
func (s *Set) DeleteAgain() (owner bool, left time.Duration) {
	now := s.cfg.Clock.Now()
	due, left := s.failed.Due(now)
	unseen, later := s.unseen.Due(now)
	if left == 0 || later > 0 && later < left {
		left = later
	}
	if due == nil {
		due = unseen
	} else {
		maps.Copy(due, unseen)
	}
	for uid, d := range due {
		delete(s.deleting, uid)
		if uid == s.uid {
			owner = true
		} else if p, found := s.cfg.Pods.Get(s.key.Namespace, d.Name); found && p.UID == uid && p.DeletionTimestamp == nil {
			s.DeletePod(d)
		}
	}
	return owner, left
}

// Deleting reports whether the deletion of a pod was requested, and the pod still exists.
func (s *Set) Deleting(uid types.UID) bool { return s.deleting[uid] }

// Deletions returns the number of pods whose deletion was requested and that still exist.
func (s *Set) Deletions() int { return len(s.deleting) }

// PodDeleted records that a pod, which may belong to no slot, no longer exists.
func (s *Set) PodDeleted(uid types.UID) { delete(s.deleting, uid) }
