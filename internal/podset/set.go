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
	// Withdraw withdraws the request with this key. A Commit that has already begun may still
	// arrive.
	Withdraw(key string)
}

// Model is the part of the cluster model that pod sets use.
type Model interface {
	// Confirm records that an assumed pod has been written.
	Confirm(pod types.NamespacedName, which cluster.Assumption, uid types.UID, resourceVersion string)
	// UpsertPod updates the model with a pod as the API server has it, ahead of the watch.
	UpsertPod(pod *corev1.Pod)
	// Forget releases the reservation assumed for a pod that will not be created.
	Forget(pod types.NamespacedName, which cluster.Assumption)
	// Priority returns the value of a PriorityClass, and false if the class does not exist. An
	// empty name means the default class.
	Priority(class string) (int32, bool)
}

// Cache is the watch cache of pods.
type Cache interface {
	Get(namespace, name string) (*corev1.Pod, bool)
	// SeenVersion returns the resource version up to which the cache is complete.
	SeenVersion() string
}

// Config is shared by the sets of one controller. All fields are required, except that Scheduler,
// Model and Nodes may be nil if another manager places and binds all pods of the controller.
type Config struct {
	Scheduler Scheduler
	Model     Model
	Writer    apiwriter.Writer
	Pods      Cache
	Nodes     interface {
		Get(namespace, name string) (*corev1.Node, bool)
	}
	// Rejected reports whether a pod failed because its node rejected it, not because of the user's
	// program. Such a pod is replaced.
	Rejected func(*corev1.Pod) bool
	// Post runs do on the set of an owner in the owner's next turn, which handles the event that do
	// returns. It returns false if there is no owner with that key. If to is not empty and the
	// owner has another UID in that turn, do is dropped.
	Post func(owner types.NamespacedName, to types.UID, do func(*Set) Event) bool
	// Window is the maximum number of pods of one set at the writer: Pump sends more as answers
	// arrive. 0 means that placed pods are sent at once.
	Window int
	// DeleteMany, if set, deletes pods by fewer requests than one for each. It returns the deletions
	// that it leaves to the set.
	DeleteMany func(*Set, []Deletion) []Deletion
	// CreateReason is the reason of creates in the writer's metrics.
	CreateReason string
	Clock        clock.PassiveClock
	Log          *slog.Logger
}

// Event is something that happened to a set between two turns.
type Event struct {
	Kind EventKind
	// Ref is the slot; it is zero if the event is about a request.
	Ref
	// Pod is the pod that the server returned; nil after an error or a binding.
	Pod     *corev1.Pod
	Err     error
	Request *Request
}

// EventKind is the kind of an Event.
type EventKind uint8

// The kinds of events.
const (
	Nothing      EventKind = iota
	Placed                 // the scheduler placed pods of Request, some or all
	Waits                  // the gang of Request waits
	Written                // the pod was created or bound
	Changed                // the watch shows another state of the pod
	Replacing              // the pod's node rejected it, or it does not fit the node, and it is being deleted
	Refused                // the server refused to create the pod, with Err
	BindFailed             // the server refused to bind the pod; the watch will show why
	LaterInstead           // the server refused a pod that names its node: the group's pods are bound later
	Unwanted               // the pod was created after its group had been removed from the set
)

// Set is the pods of one owner. The zero value has no owner; only the functions passed to Post may
// be called with it. Only the owner's turn may call methods, except Expects.
type Set struct {
	cfg   *Config
	key   types.NamespacedName
	uid   types.UID
	owner string // fairness key of the writes

	groups   []*Group
	requests map[string]*Request
	// unsent has the creates and bindings that have not been passed to the writer yet.
	unsent   []write
	inflight int          // pods at the writer
	expected atomic.Int32 // number of slots with a version

	explained explanation // of why pods wait for nodes

	holding  bool
	held     []Deletion
	deleting map[types.UID]bool // pods whose deletion was requested and that still exist
	failed   controlloop.FailedWrites[types.UID, Deletion]
	unseen   controlloop.FailedWrites[types.UID, Deletion] // made by other means, and not yet shown by the watch
}

// Owner returns the key and the UID of the set's owner.
func (s *Set) Owner() (types.NamespacedName, types.UID) { return s.key, s.uid }

// Reset empties the set and gives it to another owner. Answers to writes of the previous owner are
// dropped.
func (s *Set) Reset(cfg *Config, key types.NamespacedName, uid types.UID, owner string) {
	s.Clear()
	s.cfg, s.key, s.uid, s.owner = cfg, key, uid, owner
	s.explained = explanation{}
	s.inflight, s.holding, s.held, s.deleting = 0, false, nil, nil
	s.failed, s.unseen = controlloop.FailedWrites[types.UID, Deletion]{}, controlloop.FailedWrites[types.UID, Deletion]{}
}

// Clear removes all groups and forgets all requests, which the caller must have withdrawn. Writes
// in flight still count as the set's.
func (s *Set) Clear() {
	s.groups, s.requests, s.unsent = nil, nil, nil
	s.expected.Store(0)
}

// Add adds a group.
func (s *Set) Add(g *Group) {
	g.at = len(s.groups)
	s.groups = append(s.groups, g)
}

// Remove removes a group. If a create of one of its pods is in flight, the pod is reported as
// Unwanted.
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

// Busy reports whether pods are at the writer or wait for Pump.
func (s *Set) Busy() bool { return s.inflight > 0 || len(s.unsent) > 0 }

// Expects reports whether the watch has yet to show pods that were written. Any goroutine may call
// it.
func (s *Set) Expects() bool { return s.expected.Load() > 0 }

func (s *Set) move(r Ref, to State) {
	r.move(r.Index, to)
	if to == Unbound {
		s.explained.incomplete = true
	}
	if slot := r.slot(); to == Absent {
		s.seen(slot)
		slot.uid, slot.Code = "", 0
		slot.attempt++ // a later answer concerns a pod that no longer exists
	}
}

// expect records that the pod of a slot was written, until seen is called.
func (s *Set) expect(r Ref, p *corev1.Pod) {
	slot := r.slot()
	s.seen(slot)
	r.setUID(r.Index, p.UID)
	slot.version = p.ResourceVersion
	if slot.version != "" {
		s.expected.Add(1)
	}
}

// seen records that the watch has shown the slot's pod, or that it no longer matters.
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

// Observe updates a slot with its pod as the watch shows it. It returns Nothing, Changed or Replacing.
func (s *Set) Observe(r Ref, p *corev1.Pod) EventKind {
	slot := r.slot()
	s.seen(slot)
	if slot.uid == p.UID && (slot.state == Leaving || slot.state.Ended() && p.DeletionTimestamp == nil) {
		return Nothing // only the pod's deletion can follow
	}
	to := s.cfg.StateOf(p)
	r.setUID(r.Index, p.UID)
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

// SetCreated records that a slot's pod exists, although the watch has not shown it yet.
func (s *Set) SetCreated(r Ref, p *corev1.Pod) {
	s.expect(r, p)
	s.move(r, Created)
}

// SetUnknown records that a slot may have a pod. The caller looks the pod up at the server.
func (s *Set) SetUnknown(r Ref) { s.move(r, Unknown) }

// ObserveDeleted records that the pod of a slot no longer exists, and reports whether the slot is absent now.
// A slot whose pod succeeded stays Succeeded, because the pod has done its work.
func (s *Set) ObserveDeleted(r Ref, uid types.UID) bool {
	s.PodDeleted(uid)
	slot := r.slot()
	if slot.uid != uid || slot.state == Succeeded {
		return false
	}
	s.overtaken(r)
	if slot.state == Queued {
		for _, q := range s.requests {
			q.Stale = true // the slot's pod must be created again first
		}
	}
	s.move(r, Absent)
	return true
}

// Shown is a slot with its pod in the cache. Pod is nil if the pod no longer exists.
type Shown struct {
	Ref
	Pod *corev1.Pod
}

// Unseen returns the slots whose pods were written and that the watch has not shown, although it
// has passed the pods' versions. An entry without a pod means that the pod was deleted while the
// watch was broken.
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

// every returns all slots, including the surplus.
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
