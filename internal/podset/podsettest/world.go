// Package podsettest simulates the surroundings of a controller that has pods: an API server that
// stores pods, a watch that may be late or break, a writer whose answers come in any order, and a
// scheduler. Nothing happens by itself: a test makes the steps.
package podsettest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"lockstep.dev/lockstep/internal/apiwriter"
	"lockstep.dev/lockstep/internal/cluster"
	"lockstep.dev/lockstep/internal/scheduler"
)

// Pods is the resource of pods.
var Pods = schema.GroupResource{Resource: "pods"}

// Node is the only node of a world.
const Node = "node"

// World implements apiwriter.Writer, and the scheduler, model and cache of package podset.
type World struct {
	// Fail ends the test.
	Fail func(format string, args ...any)
	// Show is called when the watch shows a pod. gone means that the pod was deleted.
	Show func(p *corev1.Pod, gone bool)
	// Listed is called with all pods and their version after the watch has begun anew; may be nil.
	Listed func(pods []*corev1.Pod, version string)
	// Refuse, if not nil, returns the error with which the server refuses a create, or nil.
	Refuse func(*corev1.Pod) error
	// Choose returns a number from 0 to n-1.
	Choose func(what string, n int) int
	// Calm means that the server refuses no deletions, that gangs are withdrawn in time, and that
	// the watch is not late.
	Calm bool
	// Room is the number of pods that fit on the node.
	Room int

	Server  map[string]*corev1.Pod // by name
	Written map[string]int         // number of pods created, by name
	version int
	cache   map[string]*corev1.Pod
	seen    int // version up to which the cache is complete
	changes []change

	writes    []*write
	gangs     map[string]*scheduler.Gang
	submitted map[string]*scheduler.Gang // the last ones by key
	late      []*scheduler.Gang          // withdrawn or replaced while they were being placed
	assumed   map[string]assumption
	// assumptions is the number of assumptions made so far.
	assumptions cluster.Assumption
}

type change struct {
	pod     *corev1.Pod
	gone    bool
	version int
}

// assumption is a reservation that the watch has not confirmed yet.
type assumption struct {
	id        cluster.Assumption
	binds     types.UID // UID of the existing pod that is to be bound; empty for a new pod
	confirmed bool
}

type write struct {
	creates string // name of the pod to create, or ""
	do      func() // carries out the write at the server; nil when that is done
	answer  func()
}

// New returns an empty world.
func New(choose func(what string, n int) int, fail func(format string, args ...any)) *World {
	return &World{
		Fail: fail, Choose: choose, Room: 1 << 20, Server: map[string]*corev1.Pod{}, Written: map[string]int{},
		cache: map[string]*corev1.Pod{}, gangs: map[string]*scheduler.Gang{}, submitted: map[string]*scheduler.Gang{},
		assumed: map[string]assumption{},
	}
}

// Idle reports whether no writes, gangs or changes are under way.
func (w *World) Idle() bool {
	return len(w.writes) == 0 && len(w.gangs) == 0 && len(w.late) == 0 && len(w.changes) == 0
}

// Writes returns the number of writes without an answer.
func (w *World) Writes() int { return len(w.writes) }

// Assumed returns the sorted names of the pods with a reservation that the watch has not confirmed.
func (w *World) Assumed() []string { return slices.Sorted(maps.Keys(w.assumed)) }

// Step makes a random step: a write is carried out or answered, a gang is placed or told to wait,
// or the watch shows a change. It reports whether there was anything to do.
func (w *World) Step() bool {
	var steps []func()
	if w.Calm && len(w.changes) > 0 {
		w.Watch()
		return true
	}
	if len(w.writes) > 0 {
		steps = append(steps, w.advance)
	}
	if len(w.gangs)+len(w.late) > 0 {
		steps = append(steps, w.schedule)
	}
	if len(w.changes) > 0 {
		steps = append(steps, w.Watch)
	}
	if len(steps) == 0 {
		return false
	}
	steps[w.Choose("step", len(steps))]()
	return true
}

func (w *World) advance() {
	i := w.Choose("write", len(w.writes))
	x := w.writes[i]
	if x.do != nil {
		x.do()
		x.do = nil
		return
	}
	w.writes = slices.Delete(w.writes, i, i+1)
	x.answer()
}

// Watch shows the next change.
func (w *World) Watch() {
	c := w.changes[0]
	w.changes = w.changes[1:]
	w.seen = c.version
	w.show(c.pod, c.gone)
}

// Relist breaks the watch: pending changes are lost, and the cache is filled by a new list.
func (w *World) Relist() {
	w.changes, w.seen = nil, w.version
	for _, name := range slices.Sorted(maps.Keys(w.cache)) {
		if now := w.Server[name]; now == nil || now.UID != w.cache[name].UID {
			w.show(w.cache[name], true)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.Server)) {
		w.show(w.Server[name], false)
	}
	if w.Listed != nil {
		w.Listed(slices.Collect(maps.Values(w.cache)), w.SeenVersion())
	}
	for name, a := range w.assumed { // as Cluster.Expire does
		if a.confirmed && w.cache[name] == nil {
			delete(w.assumed, name)
		}
	}
}

// Restart simulates a restart of the manager: requests, reservations and unanswered writes are
// lost, although the server may have carried out some of the writes. The watch then shows all pods
// of the server.
func (w *World) Restart() {
	w.writes, w.late = nil, nil
	clear(w.gangs)
	clear(w.assumed)
	clear(w.cache)
	w.Relist()
}

func (w *World) show(p *corev1.Pod, gone bool) {
	if gone {
		delete(w.cache, p.Name)
		if w.assumed[p.Name].binds == p.UID {
			delete(w.assumed, p.Name)
		}
	} else {
		w.cache[p.Name] = p
		if p.Spec.NodeName != "" {
			delete(w.assumed, p.Name)
		}
	}
	w.Show(p, gone)
}

// Change changes a pod at the server.
func (w *World) Change(name string, change func(*corev1.Pod)) {
	if p := w.Server[name]; p != nil {
		p = p.DeepCopy()
		change(p)
		w.store(p)
	}
}

func (w *World) store(p *corev1.Pod) {
	w.version++
	p.ResourceVersion = strconv.Itoa(w.version)
	w.Server[p.Name] = p
	w.changes = append(w.changes, change{p, false, w.version})
}

// Remove removes a pod from the server.
func (w *World) Remove(name string) {
	p := w.Server[name]
	if p == nil {
		return
	}
	w.version++
	delete(w.Server, name)
	w.changes = append(w.changes, change{p, true, w.version})
}

func (w *World) schedule() {
	if len(w.late) > 0 { // the scheduler places one gang after the other
		g := w.late[0]
		w.late = w.late[1:]
		w.place(g)
		return
	}
	key := slices.Sorted(maps.Keys(w.gangs))[w.Choose("gang", len(w.gangs))]
	g := w.gangs[key]
	if !w.place(g) {
		g.Owner.Waiting(g, scheduler.Reason{Code: scheduler.Unschedulable, Message: "no room", Ahead: w.ahead(g)})
		return
	}
	if w.gangs[key] == g {
		delete(w.gangs, key)
	}
}

// ahead returns the units of a gang whose pods are asked for although they have no nodes: all that do not
// exist, or none.
func (w *World) ahead(g *scheduler.Gang) [][]int {
	if !g.Ahead || w.Choose("pods ahead", 2) == 0 {
		return nil
	}
	units := make([][]int, len(g.Demands))
	for d := range g.Demands {
		for u := range g.Demands[d].Units {
			if existing := g.Demands[d].Existing; existing == nil || !existing[u] {
				units[d] = append(units[d], u)
			}
		}
	}
	return units
}

// place places a gang if its minimum has room.
func (w *World) place(g *scheduler.Gang) bool {
	used := len(w.assumed)
	for _, p := range w.Server {
		if _, counted := w.assumed[p.Name]; p.Spec.NodeName != "" && !counted {
			used++
		}
	}
	var placed []scheduler.Assignment
	for d := range g.Demands {
		for u := range g.Demands[d].Units {
			if used++; used <= w.Room {
				placed = append(placed, scheduler.Assignment{Demand: d, Unit: u, Node: Node})
			}
		}
	}
	if len(placed) < max(1, g.MinMember) {
		return false
	}
	for i := range placed {
		name := g.Demands[placed[i].Demand].Units[placed[i].Unit].Name
		w.assumptions++
		a := assumption{id: w.assumptions}
		if p := w.cache[name]; p != nil && p.Spec.NodeName == "" {
			a.binds = p.UID
		}
		w.assumed[name], placed[i].Assumption = a, a.id
	}
	g.Owner.Commit(g, placed)
	return true
}

// Submitted returns the gang that was last submitted under key, or nil.
func (w *World) Submitted(key string) *scheduler.Gang { return w.submitted[key] }

// Submit implements podset.Scheduler.
func (w *World) Submit(g *scheduler.Gang) {
	w.Withdraw(g.Key)
	w.gangs[g.Key], w.submitted[g.Key] = g, g
}

// Withdraw implements podset.Scheduler: a gang that is being placed may still be committed.
func (w *World) Withdraw(key string) {
	if g := w.gangs[key]; g != nil && !w.Calm && w.Choose("is being placed", 4) == 0 {
		w.late = append(w.late, g)
	}
	delete(w.gangs, key)
}

// Confirm implements podset.Model.
func (w *World) Confirm(pod types.NamespacedName, which cluster.Assumption, _ types.UID, _ string) {
	if a, found := w.assumed[pod.Name]; found && (which == 0 || a.id == which) {
		a.confirmed = true
		w.assumed[pod.Name] = a
	}
}

// UpsertPod implements podset.Model.
func (w *World) UpsertPod(p *corev1.Pod) { delete(w.assumed, p.Name) }

// Forget implements podset.Model.
func (w *World) Forget(pod types.NamespacedName, which cluster.Assumption) {
	if which == 0 || w.assumed[pod.Name].id == which {
		delete(w.assumed, pod.Name)
	}
}

// Priority implements podset.Model.
func (w *World) Priority(string) (int32, bool) { return 0, false }

// Get implements podset.Cache.
func (w *World) Get(_, name string) (*corev1.Pod, bool) {
	p, found := w.cache[name]
	return p, found
}

// SeenVersion implements podset.Cache.
func (w *World) SeenVersion() string { return strconv.Itoa(w.seen) }

func (w *World) write(creates string, do, answer func()) {
	for _, x := range w.writes {
		if creates != "" && x.creates == creates && x.do != nil {
			w.Fail("pod %s is created twice", creates)
		}
	}
	w.writes = append(w.writes, &write{creates, do, answer})
}

// Create implements apiwriter.Writer. Objects that are not pods are created at once.
func (w *World) Create(_ apiwriter.Meta, o apiwriter.Object, done func(apiwriter.Object, error)) {
	p, ok := o.(*corev1.Pod)
	if !ok {
		done(o, nil)
		return
	}
	var stored *corev1.Pod
	var err error
	w.write(p.Name, func() {
		stored = w.Server[p.Name]
		switch {
		case stored != nil && stored.DeletionTimestamp == nil: // an earlier create, whose answer was lost
		case stored != nil:
			err = apierrors.NewAlreadyExists(Pods, p.Name)
		case w.Refuse != nil && w.Refuse(p) != nil:
			err = w.Refuse(p)
		default:
			if _, assumed := w.assumed[p.Name]; p.Spec.NodeName != "" && !assumed {
				w.Fail("pod %s is created on a node without room that is kept for it", p.Name)
			}
			w.Written[p.Name]++
			stored = p.DeepCopy()
			stored.UID = types.UID(fmt.Sprintf("%s-%d", p.Name, w.Written[p.Name]))
			stored.Status.Phase = corev1.PodPending
			w.store(stored)
		}
	}, func() {
		if err != nil {
			done(nil, err)
			return
		}
		done(stored, nil)
	})
}

// Bind implements apiwriter.Writer.
func (w *World) Bind(_ apiwriter.Meta, b apiwriter.Binding, done func(error)) {
	var err error
	w.write("", func() {
		if p := w.Server[b.Pod.Name]; p == nil || p.UID != b.UID || p.Spec.NodeName != "" {
			err = apierrors.NewConflict(Pods, b.Pod.Name, fmt.Errorf("it is another pod, or bound"))
			return
		}
		w.Change(b.Pod.Name, func(p *corev1.Pod) { p.Spec.NodeName = b.Node })
	}, func() { done(err) })
}

// Delete implements apiwriter.Writer. A pod with a node terminates first, unless its grace period
// is 0.
func (w *World) Delete(_ apiwriter.Meta, o apiwriter.Object, opts apiwriter.DeleteOptions, done func(error)) {
	var err error
	w.write("", func() {
		p := w.Server[o.GetName()]
		switch {
		case !w.Calm && w.Choose("deletion is refused", 8) == 0:
			err = apierrors.NewForbidden(Pods, o.GetName(), fmt.Errorf("a policy"))
		case p == nil || p.UID != o.GetUID():
		case p.Spec.NodeName == "" || opts.GracePeriodSeconds != nil:
			w.Remove(p.Name)
		default:
			w.Change(p.Name, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} })
		}
	}, func() {
		if done != nil {
			done(err)
		}
	})
}

// DeletePods implements apiwriter.Writer: no set asks for it.
func (*World) DeletePods(_ apiwriter.Meta, _ apiwriter.Selection, _ func(error)) {
	panic("pods are deleted one by one here")
}

// Status implements apiwriter.Writer: every status is written at once.
func (w *World) Status(_ apiwriter.Meta, o apiwriter.Object, _ bool, done func(apiwriter.Object, error)) {
	done(o, nil)
}

// Patch implements apiwriter.Writer.
func (w *World) Patch(_ apiwriter.Meta, o apiwriter.Object, _ types.PatchType, _ []byte, done func(apiwriter.Object, error)) {
	done(o, nil)
}

// PatchVersion implements apiwriter.Writer.
func (w *World) PatchVersion(_ apiwriter.Meta, o apiwriter.Object, _ bool, _ []byte, done func(apiwriter.Object, error)) {
	done(o, nil)
}

// Event implements apiwriter.Writer.
func (*World) Event(apiwriter.Object, string, string, string) {}

// Latency implements apiwriter.Writer.
func (*World) Latency() time.Duration { return 0 }

// Flush implements apiwriter.Writer.
func (*World) Flush(context.Context) error { return nil }
