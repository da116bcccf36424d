package controller

import (
	"cmp"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	wf "lockstep.dev/lockstep/api/argoproj/v1alpha1"
)

// throttle limits the workflows that run at a time, in the cluster and in each namespace. It counts
// the workflows of all managers; only the leader lets workflows begin.
//
//	wants ──enter──▶ waiting ──a place is free, in order──▶ running ──leave──▶ (none)
//
// It is a state machine without clock or client, safe for concurrent use. Methods return the keys
// of the workflows that may begin now.
type throttle struct {
	// limit returns the numbers of workflows that may run in the cluster, and in a namespace; 0
	// means any number.
	limit func(namespace string) (all, own int)

	mu      sync.Mutex
	running map[types.NamespacedName]types.UID
	own     map[string]int // number of running workflows by namespace
	waiting map[string][]waitingWorkflow
}

// waitingWorkflow is a workflow that waits, in the list of its namespace.
type waitingWorkflow struct {
	key      types.NamespacedName
	uid      types.UID
	priority int32
	created  time.Time
}

// before orders waiting workflows by priority, then age.
func (a waitingWorkflow) before(b waitingWorkflow) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), a.created.Compare(b.created),
		strings.Compare(a.key.Name, b.key.Name), strings.Compare(a.key.Namespace, b.key.Namespace))
}

func newThrottle(limit func(string) (int, int)) *throttle {
	t := &throttle{limit: limit}
	t.clear()
	return t
}

func (t *throttle) clear() {
	t.running, t.own, t.waiting = map[types.NamespacedName]types.UID{}, map[string]int{}, map[string][]waitingWorkflow{}
}

func waiterOf(w *wf.Workflow) waitingWorkflow {
	out := waitingWorkflow{key: types.NamespacedName{Namespace: w.Namespace, Name: w.Name}, uid: w.UID, created: w.CreationTimestamp.Time}
	if p := w.Spec.Priority; p != nil {
		out.priority = *p
	}
	return out
}

// restart sets the state: the workflows that run, and those that wait.
func (t *throttle) restart(running, waiting []*wf.Workflow) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	begun := t.running
	t.clear()
	for _, w := range running {
		t.run(types.NamespacedName{Namespace: w.Namespace, Name: w.Name}, w.UID)
	}
	for _, w := range waiting {
		key := types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
		if begun[key] == w.UID { // no cache shows yet that it runs
			t.run(key, w.UID)
			continue
		}
		t.waiting[w.Namespace] = append(t.waiting[w.Namespace], waiterOf(w))
	}
	for _, list := range t.waiting {
		slices.SortFunc(list, waitingWorkflow.before)
	}
	return t.next()
}

// seen counts a workflow that runs, whoever let it begin.
func (t *throttle) seen(key types.NamespacedName, uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(key, uid)
	t.run(key, uid)
}

// enter reports whether a workflow may begin. If not, it waits from now on.
func (t *throttle) enter(w *wf.Workflow) (may bool, others []types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := waiterOf(w)
	if t.running[own.key] == own.uid {
		return true, nil
	}
	list := t.waiting[own.key.Namespace]
	if !slices.ContainsFunc(list, func(x waitingWorkflow) bool { return x.key == own.key && x.uid == own.uid }) {
		at, _ := slices.BinarySearchFunc(list, own, waitingWorkflow.before)
		t.waiting[own.key.Namespace] = slices.Insert(list, at, own)
	}
	others = t.next()
	return t.running[own.key] == own.uid, slices.DeleteFunc(others, func(k types.NamespacedName) bool { return k == own.key })
}

// leave takes in the end of a workflow, whether it ran or waited.
func (t *throttle) leave(key types.NamespacedName, uid types.UID) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(key, uid)
	if t.running[key] == uid {
		delete(t.running, key)
		if t.own[key.Namespace]--; t.own[key.Namespace] <= 0 {
			delete(t.own, key.Namespace)
		}
	}
	return t.next()
}

// stopWaiting takes in that a workflow is not this manager's to begin any more.
func (t *throttle) stopWaiting(key types.NamespacedName, uid types.UID) []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(key, uid)
	return t.next()
}

// check lets workflows begin after limits have changed.
func (t *throttle) check() []types.NamespacedName {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.next()
}

func (t *throttle) run(key types.NamespacedName, uid types.UID) {
	if _, counted := t.running[key]; !counted {
		t.own[key.Namespace]++
	}
	t.running[key] = uid
}

// drop removes a workflow from those that wait.
func (t *throttle) drop(key types.NamespacedName, uid types.UID) {
	list, waits := t.waiting[key.Namespace]
	if !waits {
		return
	}
	list = slices.DeleteFunc(list, func(x waitingWorkflow) bool { return x.key == key && x.uid == uid })
	if t.waiting[key.Namespace] = list; len(list) == 0 {
		delete(t.waiting, key.Namespace)
	}
}

// next moves workflows from waiting to running while there are places.
func (t *throttle) next() (begun []types.NamespacedName) {
	for {
		var best *waitingWorkflow
		for namespace, list := range t.waiting {
			all, own := t.limit(namespace)
			if all > 0 && len(t.running) >= all {
				return begun
			}
			if own > 0 && t.own[namespace] >= own {
				continue
			}
			if best == nil || list[0].before(*best) < 0 {
				best = &list[0]
			}
		}
		if best == nil {
			return begun
		}
		x := *best
		t.drop(x.key, x.uid)
		t.run(x.key, x.uid)
		begun = append(begun, x.key)
	}
}
