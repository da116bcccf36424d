package podset

import (
	"errors"
	"iter"
	"log/slog"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/controlloop"
	"lockstep.dev/lockstep/internal/informer"
	"lockstep.dev/lockstep/internal/scheduler"
)

// Scheduler places gangs.
type Scheduler interface {
	// Submit requests nodes for a gang, and replaces an earlier request with the same key.
	Submit(*scheduler.Gang)
	// Withdraw takes back the request with this key. A Commit that has already begun may still
	// arrive.
	Withdraw(key string)
}

// Model is the part of the cluster model that this package updates, and the priorities of gangs.
type Model interface {
	// Confirm records that an assumed pod has been written.
	Confirm(pod types.NamespacedName, which cluster.Assumption, uid types.UID, resourceVersion string)
	// UpsertPod updates the model with a pod as the API server has it, ahead of the watch.
	UpsertPod(pod *corev1.Pod)
	// Forget releases the room assumed for a pod that will not be created.
	Forget(pod types.NamespacedName, which cluster.Assumption)
	// Priority returns the value of a PriorityClass, and whether the class exists. An empty name
	// means the default class.
	Priority(class string) (int32, bool)
}

// Cache is the watch cache of pods.
type Cache interface {
	Get(namespace, name string) (*corev1.Pod, bool)
	// SeenVersion returns the resource version up to which the cache is complete.
	SeenVersion() string
}

// Config is what the sets of one controller share. All fields are required, except that a
// controller all of whose groups are bound later by another manager needs no Scheduler, Model and
// Nodes.
type Config struct {
	Scheduler Scheduler
	Model     Model
	Writer    apiwriter.Writer
	Pods      Cache
	Nodes     interface {
		Get(namespace, name string) (*corev1.Node, bool)
	}
	// Rejected reports whether a pod failed for a reason that is not the user's, so that it is
	// replaced.
	Rejected func(*corev1.Pod) bool
	// Post has do run on the set of an owner in the owner's next turn, which handles the event that
	// do returns. Without an owner of that key it returns false. If to is not empty, do is dropped
	// if the owner then has another UID.
	Post func(owner types.NamespacedName, to types.UID, do func(*Set) Event) bool
	// Window is the maximum number of pods of one set at the writer: Pump sends more as answers
	// arrive. 0 means that placed pods are sent at once.
	Window int
	// CreateReason is the reason of creates in the writer's metrics.
	CreateReason string
	Clock        clock.PassiveClock
	Log          *slog.Logger
}

// Event is what happened to a set between two turns.
type Event struct {
	Kind EventKind
	// Ref is the slot, unless the event is about a request.
	Ref
	// Pod is the pod as the server returned it, or nil after an error or a binding.
	Pod     *corev1.Pod
	Err     error
	Request *Request
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	Nothing      EventKind = iota
	Placed                 // the scheduler placed the pods of Request, at least in part
	Waits                  // Request waits
	Written                // the pod was created or bound
	Changed                // the watch shows another state of the pod
	Replacing              // the pod was refused by its node, or does not fit it, and is deleted
	Refused                // the server refused to create the pod: Err
	BindFailed             // the server refused to bind the pod, which the watch will explain
	LaterInstead           // the server refused a pod that names its node: the group's pods are bound later
	Unwanted               // the pod was created after its group had been removed from the set
)

// Set is the pods of one owner. The zero value is a set of nobody, for which only Post's functions
// may be called. Only the owner's turn may call methods, except Expects.
type Set struct {
	cfg   *Config
	key   types.NamespacedName
	uid   types.UID
	owner string // fairness key of the writes

	groups   []*Group
	requests map[string]*Request
	// unsent are placed slots, and slots to be created without a node, whose pods are not at the
	// writer yet.
	unsent   []write
	inflight int
	expected atomic.Int32 // number of slots with a version

	holding  bool
	held     []Deletion
	deleting map[types.UID]bool // pods whose deletion was requested and that still exist
	failed   controlloop.FailedWrites[types.UID, Deletion]
}

// Reset makes the set an empty one of another owner. Answers to writes of the previous owner are
// dropped.
func (s *Set) Reset(cfg *Config, key types.NamespacedName, uid types.UID, owner string) {
	s.Clear()
	s.cfg, s.key, s.uid, s.owner = cfg, key, uid, owner
	s.inflight, s.holding, s.held, s.deleting, s.failed = 0, false, nil, nil, controlloop.FailedWrites[types.UID, Deletion]{}
}

// Clear removes all groups and forgets all requests, which the caller has withdrawn. Writes of the
// owner that are on their way still count.
func (s *Set) Clear() {
	s.groups, s.requests, s.unsent = nil, nil, nil
	s.expected.Store(0)
}

// Add adds a group.
func (s *Set) Add(g *Group) {
	g.at = len(s.groups)
	s.groups = append(s.groups, g)
}

// Remove removes a group. A pod of it whose create is on its way is reported as Unwanted.
func (s *Set) Remove(g *Group) {
	if !s.has(g) {
		return
	}
	for i := range g.slots {
		s.seen(&g.slots[i])
	}
	last := len(s.groups) - 1
	s.groups[g.at] = s.groups[last]
	s.groups[g.at].at = g.at
	s.groups[last] = nil
	s.groups = s.groups[:last]
}

func (s *Set) has(g *Group) bool { return g.at < len(s.groups) && s.groups[g.at] == g }

// Sum returns the counts of all groups.
func (s *Set) Sum() *Counts {
	sum := &Counts{}
	for _, g := range s.groups {
		for state, n := range g.Counts {
			sum[state] += n
		}
	}
	return sum
}

// Writing returns the number of pods at the writer.
func (s *Set) Writing() int { return s.inflight }

// Busy reports whether pods are at the writer, or are to go there.
func (s *Set) Busy() bool { return s.inflight > 0 || len(s.unsent) > 0 }

// Expects reports whether pods that were written are not shown by the watch yet. Any goroutine may
// call it.
func (s *Set) Expects() bool { return s.expected.Load() > 0 }

func (s *Set) move(r Ref, to State) {
	r.move(r.Index, to)
	if slot := r.slot(); to == Absent {
		s.seen(slot)
		slot.uid, slot.Code = "", 0
		slot.attempt++ // an answer still to come concerns a pod that is gone
	}
}

// expect notes the pod of a slot as written.
func (s *Set) expect(r Ref, p *corev1.Pod) {
	slot := r.slot()
	s.seen(slot)
	slot.uid, slot.version = p.UID, p.ResourceVersion
	if slot.version != "" {
		s.expected.Add(1)
	}
}

func (s *Set) seen(slot *Slot) {
	if slot.version != "" {
		slot.version = ""
		s.expected.Add(-1)
	}
}

// StateOf returns the state of a slot with this pod.
func (c *Config) StateOf(p *corev1.Pod) State {
	switch {
	case p.DeletionTimestamp != nil && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed:
		return Leaving
	case p.Status.Phase == corev1.PodSucceeded:
		return Succeeded
	case p.Status.Phase == corev1.PodFailed:
		if p.DeletionTimestamp != nil || c.Rejected(p) {
			return Leaving
		}
		return Failed
	case p.Spec.NodeName == "":
		return Unbound
	case p.Status.Phase == corev1.PodRunning:
		return Running
	case p.Status.Phase == corev1.PodUnknown:
		return Unknown
	}
	return Pending
}

// See takes in a pod of a slot as the watch shows it. It returns Nothing, Changed or Replacing.
func (s *Set) See(r Ref, p *corev1.Pod) EventKind {
	slot := r.slot()
	s.seen(slot)
	if slot.uid == p.UID && (slot.state == Leaving || slot.state.Ended() && p.DeletionTimestamp == nil) {
		return Nothing // only the pod's deletion can follow
	}
	to := s.cfg.StateOf(p)
	slot.uid = p.UID
	if to == Unbound && (slot.state == Queued || slot.state == Placing) {
		return Nothing // the pod is about to get its node
	}
	s.overtaken(r)
	s.move(r, to)
	if p.DeletionTimestamp != nil || !s.cfg.Rejected(p) {
		return Changed
	}
	s.cfg.Log.Info("a pod was refused by its node and is replaced", "owner", s.owner, "pod", p.Name, "node", p.Spec.NodeName,
		"reason", p.Status.Reason)
	s.Delete(r, new(int64), "replace-rejected-pod")
	return Replacing
}

// Expect notes a pod that exists, of which the watch has not told yet.
func (s *Set) Expect(r Ref, p *corev1.Pod) {
	s.expect(r, p)
	s.move(r, Created)
}

// Await notes that a slot may have a pod, about which the server is asked.
func (s *Set) Await(r Ref) { s.move(r, Unknown) }

// Gone takes in that the pod of a slot no longer exists. It reports whether the slot is absent now:
// a pod that has succeeded has done its work, which its removal does not undo.
func (s *Set) Gone(r Ref, uid types.UID) bool {
	s.PodGone(uid)
	slot := r.slot()
	if slot.uid != uid || slot.state == Succeeded {
		return false
	}
	s.overtaken(r)
	if slot.state == Queued {
		for _, q := range s.requests {
			q.Stale = true // it has a pod that must be created first
		}
	}
	s.move(r, Absent)
	return true
}

// Shown is a slot with its pod in the cache, which is nil if the pod no longer exists.
type Shown struct {
	Ref
	Pod *corev1.Pod
}

// Unseen returns the pods that were written and that the watch, which has passed their versions,
// has not shown: those without a pod were deleted while the watch was broken.
func (s *Set) Unseen() (list []Shown) {
	if !s.Expects() {
		return nil
	}
	version := s.cfg.Pods.SeenVersion()
	for r := range s.every() {
		slot := r.slot()
		if slot.version == "" || !informer.Older(slot.version, version) {
			continue
		}
		s.seen(slot)
		p, found := s.cfg.Pods.Get(s.key.Namespace, r.name())
		if !found || p.UID != slot.uid {
			p = nil
		}
		list = append(list, Shown{r, p})
	}
	return list
}

// every returns all slots, also those of the surplus.
func (s *Set) every() iter.Seq[Ref] {
	return func(yield func(Ref) bool) {
		for _, g := range s.groups {
			for i := range g.slots {
				if !yield(Ref{g, int32(i)}) {
					return
				}
			}
		}
	}
}

func (s *Set) podName(r Ref) types.NamespacedName {
	return types.NamespacedName{Namespace: s.key.Namespace, Name: r.name()}
}

func stopped(err error) bool { return errors.Is(err, apiwriter.ErrStopped) }
